//! Gateways that know each other's connections, so that these survive the death of one (docs/ha.md).
//!
//! | file | holds |
//! |---|---|
//! | here | which streams there are, as the configuration says |
//! | [`grpc`] | gRPC over the streams of [`ovsdb_rs::stream`] |
//! | [`sender`] | a stream to a peer |
//! | [`receiver`] | streams of peers |
//! | [`readiness`] | when this gateway has its peers' connections, and may say by BFD that it is alive |
//! | [`status`] | what `ha/show` and the metrics say |
//! | [`file`] | connections kept over an orderly restart |
//! | [`requests`] | what these ask of the main PMD thread |

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
    let common = Common { pmd: pmd.clone(), status: status.clone(), spec: spec.clone() };
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

/// Numbers of peers in the table of connections: a name keeps its number while the process runs.
#[derive(Debug, Default)]
struct Owners(HashMap<String, Owner>);

impl Owners {
    /// None: there have been 255 peers.
    fn number(&mut self, name: &str) -> Option<Owner> {
        let next = Owner::try_from(self.0.len() + 1).ok();
        if let Some(n) = self.0.get(name) {
            return Some(*n);
        }
        let n = next?;
        self.0.insert(name.to_owned(), n);
        Some(n)
    }
}
