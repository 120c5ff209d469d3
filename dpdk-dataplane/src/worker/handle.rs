//! A way to have the worker do things, for those in other threads.

use super::Worker;
use dpdk_rs::Eal;
use openflow_rs::Message;
use openflow_rs::mods::TABLE_ALL;
use openflow_rs::wire::DecodeError;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use switch::BridgeId;
use switch::classifier::Rule;
use tokio::sync::oneshot;

/// Something to do in the worker's thread.
pub type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// Drafts of a bundle that may be overtaken by other changes before it is done in the worker's thread.
const DRAFTS: usize = 3;
/// Flows that a dump takes from the worker at once, if they are not all of one table.
const RULES: usize = 2000;

/// A way to give the worker jobs; clones are the same worker's.
#[derive(Clone)]
pub struct Handle {
    pub(super) jobs: Sender<Job>,
    /// The worker's thread, which may wait to be woken.
    pub(super) thread: std::thread::Thread,
    /// The DPDK environment.
    pub eal: Eal,
}

impl Handle {
    /// Does something in the worker's thread; none where it has ended.
    pub async fn run<T: Send + 'static>(&self, f: impl FnOnce(&mut Worker) -> T + Send + 'static) -> Option<T> {
        let (tx, rx) = oneshot::channel();
        // A caller that went away does not want the answer.
        self.post(move |w| drop(tx.send(f(w))));
        rx.await.ok()
    }

    /// Applies a bundle: all of it, or nothing, and says then which message failed, from 0, and why. None where the worker
    /// has ended. The work is done in another thread, on a draft of the tables; packets wait only for the exchange.
    pub async fn apply_bundle(
        &self,
        bridge: BridgeId,
        list: Arc<Vec<Message>>,
    ) -> Option<Result<(), (usize, DecodeError)>> {
        for _ in 0..DRAFTS {
            // A bridge that is not there says so below.
            let Some(mut draft) =
                self.run(move |w| w.switch.table_transaction(bridge).map(|d| (Box::new(d), w.now()))).await?
            else {
                break;
            };
            let changes = list.clone();
            let work = move || draft.0.apply(&changes, draft.1).map(|()| draft.0);
            let draft = match tokio::task::spawn_blocking(work).await.ok()? {
                Ok(draft) => draft,
                Err(e) => return Some(Err(e)),
            };
            let done = self.run(move |w| {
                let now = w.now();
                w.switch.commit(draft, now)
            });
            let done = done.await?;
            let adopted = done.is_ok();
            // Freeing the tables that were takes time as well.
            tokio::task::spawn_blocking(move || drop(done)).await.ok()?;
            if adopted {
                return Some(Ok(()));
            }
        }
        // Others change the bridge all the time.
        self.run(move |w| {
            let now = w.now();
            w.switch.apply_bundle(bridge, &list, now)
        })
        .await
    }

    /// The flows of a table, or of all, at one time: which that was comes along. Packets do not wait for all of them at once, unless
    /// somebody changes flows meanwhile.
    pub async fn rules(&self, bridge: BridgeId, table: u8) -> Option<(Vec<Arc<Rule>>, Duration)> {
        let (mut list, mut from, mut seen) = (Vec::new(), 0, None);
        while table == TABLE_ALL && from < switch::bridge::N_TABLES {
            let part = self.run(move |w| {
                let b = w.switch.bridge(bridge)?;
                Some((b.version(), b.rules_from(from, RULES), w.now()))
            });
            let (version, (part, next), now) = part.await??;
            if *seen.get_or_insert(version) != version {
                break;
            }
            (from, list) = (next, [list, part].concat());
            if from >= switch::bridge::N_TABLES {
                return Some((list, now));
            }
        }
        self.run(move |w| Some((w.switch.bridge(bridge)?.rules(table), w.now()))).await?
    }

    /// Does something in the worker's thread, at some time.
    pub fn post(&self, f: impl FnOnce(&mut Worker) + Send + 'static) {
        // A worker that has ended does nothing any more.
        let _ = self.jobs.send(Box::new(f));
        self.thread.unpark();
    }
}
