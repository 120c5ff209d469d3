//! What the streams ask of the main PMD thread.

use crate::pmd::conn_sync::{Batch, News, Remote, told_connection};
use crate::pmd::{Handle, Jobs, PmdEnded};
use gateway_ha::sync::Connection;
use std::time::Duration;
use switch::conntrack::Zone;
use switch::conntrack::replica::{Owner, RemoteConnection, ReplicaCounters};
use tokio::sync::mpsc;

/// Of a peer: how many changes it has not been told, what became of what it told, and how many connections of it are in
/// the table.
pub(super) type Figures = (Option<usize>, ReplicaCounters, usize);

impl Handle {
    /// Has a peer told the connections of these zones. False: there are too many peers.
    pub(super) async fn tell_connections(
        &self,
        peer: String,
        zones: Vec<Zone>,
        to: mpsc::Sender<Batch>,
    ) -> Result<bool, PmdEnded> {
        self.run(move |w| w.conn_sync.tell(&mut w.switch.conntrack.lock(), peer, zones, to)).await
    }

    /// Tells a peer nothing more.
    pub(super) fn silence_connections(&self, peer: String) {
        self.post(move |w| w.conn_sync.silence(&mut w.switch.conntrack.lock(), &peer));
    }

    /// Tells a peer everything once more.
    pub(super) fn tell_connections_again(&self, peer: String) {
        self.post(move |w| w.conn_sync.dump_again(&mut w.switch.conntrack.lock(), &peer));
    }

    /// Tells a peer once more what is in these slots.
    pub(super) fn tell_slots_again(&self, peer: String, slots: Vec<u32>) {
        self.post(move |w| {
            slots.iter().for_each(|s| w.conn_sync.tell_again(&mut w.switch.conntrack.lock(), &peer, *s))
        });
    }

    /// A peer's stream has begun; see [`crate::pmd::conn_sync::ConnSync::hear`].
    pub(super) fn hear_connections(&self, peer: String, owner: (Owner, bool), stream: mpsc::UnboundedSender<News>) {
        self.post(move |w| w.conn_sync.hear(&mut w.switch.conntrack.lock(), peer, owner, stream));
    }

    /// A peer's stream has ended.
    pub(super) fn lose_connections(&self, peer: String) {
        self.post(move |w| w.conn_sync.lose(&mut w.switch.conntrack.lock(), &peer));
    }

    /// Takes what a peer told; returns when it is in the table.
    pub(super) async fn take_connections(&self, peer: String, all: Vec<Remote>) -> Result<(), PmdEnded> {
        self.run(move |w| {
            let now = w.now();
            w.conn_sync.take(&mut w.switch, &peer, all, now);
        })
        .await
    }

    /// Lets BFD sessions come up, as this gateway has its peers' connections.
    pub(super) fn connections_ready(&self) {
        self.post(|w| {
            let now = w.now();
            w.bfd.hold(false, now);
        });
    }

    /// The figures of each of these peers.
    pub(super) async fn connection_figures(&self, peers: Vec<String>) -> Result<Vec<Figures>, PmdEnded> {
        self.run(move |w| {
            let ct = &w.switch.conntrack.lock();
            let of = |p: &String| {
                let (counters, held) = w.conn_sync.held(ct, p);
                (w.conn_sync.behind(ct, p), counters, held)
            };
            peers.iter().map(of).collect()
        })
        .await
    }

    /// All connections of this chassis, to be saved.
    pub(super) async fn own_connections(&self) -> Result<Vec<Connection>, PmdEnded> {
        self.run(|w| {
            let now = w.now();
            let left = |t: Duration| u64::try_from(t.saturating_sub(now).as_millis()).unwrap_or(u64::MAX);
            let table = w.switch.conntrack.lock();
            let own = table.export().filter(|c| c.owner == 0 && c.expires > now);
            own.map(|c| Connection { left: left(c.expires), ..told_connection(&c) }).collect()
        })
        .await
    }

    /// Puts saved connections into the table; returns how many were taken.
    pub(super) async fn restore_connections(&self, all: Vec<(RemoteConnection, Duration)>) -> Result<usize, PmdEnded> {
        self.run(move |w| {
            let now = w.now();
            all.iter().filter(|(c, left)| w.switch.conntrack.lock().restore(c, *left, now)).count()
        })
        .await
    }
}
