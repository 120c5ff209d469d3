//! Gateways that know each other's connections, so that these survive the death of one (docs/ha.md).
//!
//! | file | holds |
//! |---|---|
//! | here | which streams there are, as the configuration says |
//! | `grpc` | gRPC over the streams of [`ovsdb_rs::stream`] |
//! | `sender` | a stream to a peer |
//! | `receiver` | streams of peers |
//! | `readiness` | when this gateway has its peers' connections, and may say by BFD that it is alive |
//! | `status` | what `ha/show` and the metrics say |
//! | `file` | connections kept over an orderly restart |
//! | `requests` | what these ask of the main PMD thread |

pub mod file;
mod grpc;
mod readiness;
mod receiver;
mod requests;
mod sender;
pub mod status;

use crate::config::ha::HaSpec;
use crate::pmd::Handle;
use ovsdb_rs::stream::Remote;
use ovsdb_rs::tls::{Tls, TlsFiles};
use status::Status;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use switch::conntrack::replica::Owner;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What all streams share.
#[derive(Clone)]
struct Common {
    pmd: Handle,
    status: Arc<Status>,
    spec: watch::Receiver<HaSpec>,
    /// Differs after each start.
    boot: u64,
}

/// A task that ends with this.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn tls(files: Option<&TlsFiles>) -> std::io::Result<Option<Tls>> {
    files.cloned().map(Tls::new).transpose().map_err(std::io::Error::other)
}

/// Runs the streams that the configuration asks for, until the configuration's sender is gone.
pub async fn run(mut spec: watch::Receiver<HaSpec>, pmd: Handle, status: Arc<Status>) {
    let boot = RandomState::new().build_hasher().finish();
    let common = Common { pmd: pmd.clone(), status: status.clone(), spec: spec.clone(), boot };
    let _readiness = Task(tokio::spawn(readiness::run(pmd.clone(), status.clone(), spec.clone())));
    let mut listener: Option<(Remote, Option<TlsFiles>, String, Task)> = None;
    let mut senders: BTreeMap<String, (SenderKey, Task)> = BTreeMap::new();
    let mut said = Vec::new();
    loop {
        let now = spec.borrow_and_update().clone();
        for e in now.errors.iter().filter(|e| !said.contains(*e)) {
            tracing::warn!(target: "ha", "{e}");
        }
        said.clone_from(&now.errors);
        let usable = now.name.is_empty().then(Vec::new).unwrap_or_else(|| now.peers.iter().collect());
        let wanted = now.listen.clone().filter(|_| !now.name.is_empty());
        let same = |(at, files, name, _): &(Remote, Option<TlsFiles>, String, Task)| {
            wanted.as_ref() == Some(at) && *files == now.tls && *name == now.name
        };
        if !listener.as_ref().is_some_and(same) {
            listener = None;
            if let Some(at) = wanted {
                let task = tokio::spawn(receiver::listen(common.clone(), at.clone(), now.clone()));
                listener = Some((at, now.tls.clone(), now.name.clone(), Task(task)));
            }
        }
        senders.retain(|name, _| usable.iter().any(|(n, _)| *n == name));
        for (name, remote) in usable {
            let key = SenderKey {
                remote: remote.clone(),
                tls: now.tls.clone(),
                own: now.name.clone(),
                zones: now.zones.clone(),
            };
            if senders.get(name).is_some_and(|(k, _)| *k == key) {
                continue;
            }
            senders.remove(name);
            let task = sender::run(common.clone(), name.clone(), key.clone());
            senders.insert(name.clone(), (key, Task(tokio::spawn(task))));
        }
        status.keep_peers(now.peers.keys());
        if spec.changed().await.is_err() {
            return;
        }
    }
}

/// What a stream to a peer depends on: it begins anew when that changes.
#[derive(Clone, PartialEq)]
struct SenderKey {
    remote: Remote,
    tls: Option<TlsFiles>,
    own: String,
    zones: BTreeMap<String, u16>,
}

/// Numbers of peers in the table of connections. A peer that has started anew is another one: what it had before belongs
/// to nobody then, and is not to be taken for gone because it does not tell it.
#[derive(Debug, Default)]
struct Owners {
    of: HashMap<String, (u64, Owner)>,
    last: Owner,
}

impl Owners {
    /// The number of a peer as of this start. None: there are 255 peers.
    fn number(&mut self, name: &str, boot: u64) -> Option<Owner> {
        if let Some((_, n)) = self.of.get(name).filter(|(b, _)| *b == boot) {
            return Some(*n);
        }
        // The one that was free for the longest.
        let used = |n: &Owner| self.of.values().any(|(_, used)| used == n);
        let next = (1..=u8::MAX).map(|i| self.last.wrapping_add(i)).find(|n| *n != 0 && !used(n))?;
        self.last = next;
        self.of.insert(name.to_owned(), (boot, next));
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_starts_anew_is_another_one() {
        let mut o = Owners::default();
        assert_eq!(
            [("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 1)].map(|(n, b)| o.number(n, b)),
            [1, 2, 1, 3, 2].map(Some)
        );
        let all: Vec<_> = (0..600).filter_map(|boot| o.number("c", boot)).collect();
        assert_eq!((all.len(), all.contains(&0), all.contains(&2), all.contains(&3)), (600, false, false, false));
    }
}
