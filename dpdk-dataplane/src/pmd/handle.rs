//! What other threads ask of the main PMD thread, by name. The thread does each request between two bursts of packets.

use super::MainPmd;
use super::ipfix_statistics::IpfixStatistics;
use crate::clock::Clock;
use dpdk_rs::Eal;
use openflow_rs::Message;
use openflow_rs::TableId;
use openflow_rs::wire::DecodeError;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use switch::classifier::Rule;
use switch::{BridgeId, PacketOutThen};
use tokio::sync::oneshot;

/// A job: something to do in the main PMD thread.
pub struct Job {
    /// Counters are brought up to date before it.
    pub(super) counts: bool,
    pub(super) run: Box<dyn FnOnce(&mut MainPmd) + Send>,
}

/// How often something is begun that other changes of flows overtake, before the main PMD thread does it at once: a bundle
/// on a draft of the tables, or a list of flows part by part.
const DRAFTS: usize = 3;
/// Flows that a dump takes from the main PMD thread in one job.
const RULES: usize = 2000;

/// The main PMD thread has ended: the daemon is about to end as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the main PMD thread has ended")]
pub struct PmdEnded;

impl From<PmdEnded> for String {
    fn from(e: PmdEnded) -> String {
        e.to_string()
    }
}

/// Gives the main PMD thread requests. Clones are for the same thread.
#[derive(Clone)]
pub struct Handle {
    pub(super) jobs: Sender<Job>,
    /// The thread, which may sleep until it is woken.
    pub(super) thread: std::thread::Thread,
    /// The DPDK environment.
    pub eal: Eal,
    /// The time.
    pub clock: Clock,
    /// Counters of IPFIX exporters.
    pub ipfix: IpfixStatistics,
}

/// Any closure as a job. Only `reconcile` and the files that give requests names may import this (`tests/imports.rs`):
/// what features want of the thread is to be read in one place.
pub(crate) trait Jobs {
    /// Runs `f` in the main PMD thread, and waits for its result.
    async fn run<T: Send + 'static>(&self, f: impl FnOnce(&mut MainPmd) -> T + Send + 'static) -> Result<T, PmdEnded>;

    /// Has the main PMD thread run `f` at some time. A thread that has ended does nothing.
    fn post(&self, f: impl FnOnce(&mut MainPmd) + Send + 'static);
}

impl Jobs for Handle {
    async fn run<T: Send + 'static>(&self, f: impl FnOnce(&mut MainPmd) -> T + Send + 'static) -> Result<T, PmdEnded> {
        let (tx, rx) = oneshot::channel();
        // The caller may have gone: nobody wants the answer then.
        self.post(move |w| drop(tx.send(f(w))));
        rx.await.map_err(|_| PmdEnded)
    }

    fn post(&self, f: impl FnOnce(&mut MainPmd) + Send + 'static) {
        self.send(Job { counts: true, run: Box::new(f) });
    }
}

impl Handle {
    fn send(&self, job: Job) {
        let _ = self.jobs.send(job);
        self.thread.unpark();
    }

    /// Reads something of the thread's state that is no counter of flows or ports: what many flows have counted is not
    /// brought up to date for it. For what looks again and again.
    ///
    /// # Errors
    /// The thread has ended.
    pub async fn look<T: Send + 'static>(&self, f: fn(&MainPmd) -> T) -> Result<T, PmdEnded> {
        let (tx, rx) = oneshot::channel();
        self.send(Job { counts: false, run: Box::new(move |w| drop(tx.send(f(w)))) });
        rx.await.map_err(|_| PmdEnded)
    }

    /// Reads something of the thread's state, with a function that captures nothing.
    ///
    /// # Errors
    /// The thread has ended.
    pub async fn read<T: Send + 'static>(&self, f: fn(&MainPmd) -> T) -> Result<T, PmdEnded> {
        self.run(move |w| f(w)).await
    }

    /// As [`Handle::read`], with an argument.
    ///
    /// # Errors
    /// The thread has ended.
    pub async fn read_with<A, T>(&self, argument: A, f: fn(&MainPmd, A) -> T) -> Result<T, PmdEnded>
    where
        A: Send + 'static,
        T: Send + 'static,
    {
        self.run(move |w| f(w, argument)).await
    }

    /// Waits until the main PMD thread has seen the time and done what is due by it.
    ///
    /// # Errors
    /// The thread has ended.
    pub async fn settle(&self) -> Result<(), PmdEnded> {
        // A round does its jobs first, several of them if they come fast: the round of the first one has ended when
        // another one has begun.
        let first = self.run(|w| w.counters.polls).await?;
        while self.run(|w| w.counters.polls).await? == first {}
        Ok(())
    }

    /// Carries out an operator's command.
    ///
    /// # Errors
    /// The command's, or that the thread has ended.
    pub async fn command(&self, f: Command, args: Vec<String>) -> Result<String, String> {
        self.run(move |w| f(w, &args)).await?
    }

    /// Applies a bundle, all of it or nothing. The work is done in another thread, on a draft of the tables; packets
    /// wait only for the exchange.
    ///
    /// # Errors
    /// The thread has ended. The inner error says which message failed, from 0, and why.
    pub async fn apply_bundle(
        &self,
        bridge: BridgeId,
        list: Arc<Vec<Message>>,
    ) -> Result<Result<Vec<PacketOutThen>, (usize, DecodeError)>, PmdEnded> {
        for _ in 0..DRAFTS {
            // Where the bridge is not there, the error comes from below.
            let Some(mut draft) =
                self.run(move |w| w.switch.table_transaction(bridge).map(|d| (Box::new(d), w.now()))).await?
            else {
                break;
            };
            let changes = list.clone();
            let work = move || draft.0.apply(&changes, draft.1).map(|()| draft.0);
            let draft = match tokio::task::spawn_blocking(work).await.map_err(|_| PmdEnded)? {
                Ok(draft) => draft,
                Err(e) => return Ok(Err(e)),
            };
            let done = self.run(move |w| {
                let now = w.now();
                w.switch.commit(draft, now)
            });
            let mut done = done.await?;
            let then = done.as_mut().ok().map(|r| (r.flushes(), r.packet_outs()));
            // The former tables are freed in another thread, as that takes time.
            tokio::task::spawn_blocking(move || drop(done)).await.map_err(|_| PmdEnded)?;
            if let Some((flushes, packets)) = then {
                for what in flushes {
                    self.flush(what).await?;
                }
                return Ok(Ok(packets));
            }
        }
        // Others change the bridge all the time.
        self.run(move |w| {
            let now = w.now();
            w.switch.apply_bundle(bridge, &list, now)
        })
        .await
    }

    /// The flows of a table, or of all, as of one time, which comes with them; `None` where the bridge is gone. They are
    /// taken in parts, so that packets do not wait for all of them, unless somebody changes flows all the time.
    pub async fn rules(&self, bridge: BridgeId, table: TableId) -> Option<(Vec<Arc<Rule>>, Duration)> {
        for _ in 0..DRAFTS {
            let (mut list, mut from, mut seen) = (Vec::new(), (0, 0), None);
            loop {
                let part = self.run(move |w| {
                    let b = w.switch.bridge(bridge)?;
                    Some((b.version(), b.rules_from(table, from, RULES), w.now()))
                });
                let (version, (part, next), now) = part.await.ok()??;
                if *seen.get_or_insert(version) != version {
                    break;
                }
                list.extend(part);
                match next {
                    Some(next) => from = next,
                    None => return Some((list, now)),
                }
            }
        }
        self.run(move |w| Some((w.switch.bridge(bridge)?.rules(table), w.now()))).await.ok()?
    }
}

/// A command of the control socket that runs in the main PMD thread: gets its arguments, gives the text of the answer
/// or of the error.
pub type Command = fn(&mut MainPmd, &[String]) -> Result<String, String>;
