//! Connections that other gateways are told of, and those that they tell: what the main PMD thread does for [`crate::ha`],
//! some of it in each round, so that packets do not wait.

use gateway_ha::sync::{self, Record};
use std::collections::HashMap;
use std::time::Duration;
use switch::Conntrack;
use switch::conntrack::journal::{Change, Put, ReaderId};
use switch::conntrack::replica::{Owner, RemoteConnection, RemoteState, Replica, ReplicaCounters};
use switch::conntrack::{Connection, Phase, TcpState, Translates, Tuple};
use tokio::sync::mpsc;

/// A batch is told that often, if something changed.
const EVERY: Duration = Duration::from_micros(500);
/// The most changes in a batch: 50 µs of this thread's time.
const MOST: usize = 512;
/// How often a fence is put up: its answer says that the peer is alive, and how far behind.
const FENCE: Duration = Duration::from_millis(100);
/// Slots of a peer that are looked at in a round after its dump.
const SWEPT: usize = 4096;

/// Records for a peer.
#[derive(Debug)]
pub struct Batch {
    /// The records.
    pub bytes: Vec<u8>,
    /// How many there are.
    pub records: usize,
    /// The fences among them.
    pub fences: Vec<u64>,
}

/// A change that a peer told.
#[derive(Clone, Debug)]
pub enum Remote {
    /// A dump begins.
    Begin,
    /// A connection is in a slot.
    Put(u32, RemoteConnection),
    /// It has another state.
    State(u32, RemoteState),
    /// The slot is empty.
    Close(u32),
    /// The dump is complete; the sender is told how many connections there are.
    End,
}

/// What is told to one peer.
struct Feed {
    peer: String,
    reader: ReaderId,
    to: mpsc::Sender<Batch>,
    next_fence: Duration,
}

/// What one peer has told.
struct Peer {
    replica: Replica,
    /// Is told the number of its connections when a dump has been taken.
    ended: Option<mpsc::UnboundedSender<u32>>,
}

/// All of it.
#[derive(Default)]
pub struct ConnSync {
    feeds: Vec<Feed>,
    peers: HashMap<String, Peer>,
    next: Duration,
}

impl ConnSync {
    /// Tells a peer the connections of these zones, beginning with all of them. False: there are too many peers.
    pub fn tell(
        &mut self,
        ct: &mut Conntrack,
        peer: String,
        zones: impl IntoIterator<Item = u16>,
        to: mpsc::Sender<Batch>,
    ) -> bool {
        self.silence(ct, &peer);
        let Some(reader) = ct.add_reader(zones) else { return false };
        self.feeds.push(Feed { peer, reader, to, next_fence: Duration::ZERO });
        true
    }

    /// Tells a peer nothing more.
    pub fn silence(&mut self, ct: &mut Conntrack, peer: &str) {
        self.feeds.retain(|f| {
            if f.peer == peer {
                ct.remove_reader(f.reader);
            }
            f.peer != peer
        });
    }

    /// Tells a peer everything once more.
    pub fn dump_again(&mut self, ct: &mut Conntrack, peer: &str) {
        self.feeds.iter().filter(|f| f.peer == peer).for_each(|f| ct.dump_again(f.reader));
    }

    /// How many changes a peer has not been told; none while a dump is under way, or if it is told nothing.
    pub fn behind(&self, ct: &Conntrack, peer: &str) -> Option<usize> {
        ct.behind(self.feeds.iter().find(|f| f.peer == peer)?.reader)
    }

    /// A peer's stream has begun; `owner` is its number as of its start. `ended` is told how many connections the peer
    /// has, after each dump.
    pub fn hear(&mut self, ct: &mut Conntrack, peer: String, owner: Owner, ended: mpsc::UnboundedSender<u32>) {
        let p = self.peers.entry(peer).or_insert_with(|| Peer { replica: Replica::new(owner), ended: None });
        if p.replica.owner() != owner {
            ct.set_lost(p.replica.owner(), true);
            p.replica = Replica::new(owner);
        }
        p.ended = Some(ended);
        ct.set_lost(owner, false);
    }

    /// A peer's stream has ended: its connections are this chassis' own now.
    pub fn lose(&mut self, ct: &mut Conntrack, peer: &str) {
        if let Some(p) = self.peers.get_mut(peer) {
            p.ended = None;
            ct.set_lost(p.replica.owner(), true);
        }
    }

    /// What became of what a peer told, and how many connections in the table are its.
    pub fn held(&self, ct: &Conntrack, peer: &str) -> (ReplicaCounters, usize) {
        let of = |p: &Peer| (p.replica.counters, ct.of_owner(p.replica.owner()));
        self.peers.get(peer).map(of).unwrap_or_default()
    }

    /// Takes what a peer told.
    pub fn take(&mut self, ct: &mut Conntrack, peer: &str, all: Vec<Remote>, now: Duration) {
        let Some(Peer { replica, .. }) = self.peers.get_mut(peer) else { return };
        for r in all {
            match r {
                Remote::Begin => replica.begin(),
                Remote::Put(slot, c) => replica.put(ct, slot, &c, now),
                Remote::State(slot, s) => replica.state(ct, slot, &s),
                Remote::Close(slot) => replica.close(ct, slot),
                Remote::End => replica.end(),
            }
        }
    }

    /// When [`ConnSync::poll`] wants to be called next; none: there is nothing to do.
    pub fn due(&self, ct: &Conntrack) -> Option<Duration> {
        if self.peers.values().any(|p| p.replica.is_sweeping()) {
            return Some(self.next);
        }
        let of = |f: &Feed| if ct.has_changes(f.reader) { self.next } else { f.next_fence };
        self.feeds.iter().map(of).min()
    }

    /// Tells and sweeps what is due.
    pub fn poll(&mut self, ct: &mut Conntrack, now: Duration) {
        if now < self.next || self.feeds.is_empty() && self.peers.is_empty() {
            return;
        }
        self.next = now + EVERY;
        for Peer { replica, ended } in self.peers.values_mut().filter(|p| p.replica.is_sweeping()) {
            if let (Some(n), Some(ended)) = (replica.sweep(ct, SWEPT), ended) {
                // The stream may have ended meanwhile.
                let _ = ended.send(n);
            }
        }
        for f in &mut self.feeds {
            // A slow peer is told later: what changes meanwhile is marked, and takes no memory.
            let Ok(place) = f.to.try_reserve() else { continue };
            if now >= f.next_fence {
                f.next_fence = now + FENCE;
                ct.fence(f.reader);
            }
            if !ct.has_changes(f.reader) {
                continue;
            }
            let mut batch = Batch { bytes: Vec::with_capacity(4096), records: 0, fences: Vec::new() };
            let owner = self.peers.get(&f.peer).map_or(0, |p| p.replica.owner());
            ct.changes(f.reader, MOST, now, |c| {
                batch.records += 1;
                if let Change::Fence(n) = c {
                    batch.fences.push(n);
                }
                record(&c, owner).encode(&mut batch.bytes);
            });
            if batch.records > 0 {
                place.send(batch);
            }
        }
    }
}

/// A change as a peer is told it.
fn record(c: &Change<'_>, peer: Owner) -> Record {
    match c {
        Change::Begin => Record::Begin,
        Change::Put(p) => Record::Put(p.slot, told(p, peer)),
        Change::State(slot, c) => Record::State(*slot, told_state(&c.state())),
        Change::Close(slot) => Record::Close(*slot),
        Change::Fence(n) => Record::Fence(*n),
        Change::End(n) => Record::End(*n),
    }
}

fn millis(t: Duration) -> u64 {
    u64::try_from(t.as_millis()).unwrap_or(u64::MAX)
}

fn told(p: &Put<'_>, peer: Owner) -> sync::Connection {
    let idle = u32::try_from(millis(p.idle)).unwrap_or(u32::MAX);
    sync::Connection { idle, was_receivers: p.from == peer && peer != 0, ..told_connection(p.connection) }
}

/// A connection as it is sent or saved.
pub fn told_connection(c: &Connection) -> sync::Connection {
    sync::Connection {
        zone: c.zone,
        v6: c.original.v6,
        proto: c.original.proto,
        original: told_tuple(&c.original),
        reply: told_tuple(&c.reply),
        translates: match c.translates {
            Translates::Nothing => 0,
            Translates::Source => 1,
            Translates::Destination => 2,
        },
        was_receivers: false,
        orphan: c.is_orphan(),
        idle: 0,
        left: 0,
        state: told_state(&c.state()),
    }
}

fn told_tuple(t: &Tuple) -> sync::Tuple {
    let Tuple { src, dst, sport, dport, icmp_type, icmp_code, .. } = *t;
    sync::Tuple { src, dst, sport, dport, icmp_type, icmp_code }
}

fn told_state(s: &RemoteState) -> sync::State {
    let RemoteState { ends: [a, b], phase, replied, mark, label } = *s;
    sync::State { ends: [a as u8, b as u8], phase: phase as u8, replied, mark, label }
}

/// A connection that was received or read; none if a number in it means nothing here.
pub fn taken_connection(c: &sync::Connection) -> Option<RemoteConnection> {
    let tuple = |t: &sync::Tuple| {
        let sync::Tuple { src, dst, sport, dport, icmp_type, icmp_code } = *t;
        Tuple { v6: c.v6, proto: c.proto, src, dst, sport, dport, icmp_type, icmp_code }
    };
    Some(RemoteConnection {
        zone: c.zone,
        original: tuple(&c.original),
        reply: tuple(&c.reply),
        translates: match c.translates {
            0 => Translates::Nothing,
            1 => Translates::Source,
            2 => Translates::Destination,
            _ => return None,
        },
        state: taken_state(&c.state)?,
        idle: Duration::from_millis(c.idle.into()),
        ours_before: c.was_receivers,
        orphan: c.orphan,
    })
}

/// A state that was received; none if a number in it means nothing here.
pub fn taken_state(s: &sync::State) -> Option<RemoteState> {
    let sync::State { ends: [a, b], phase, replied, mark, label } = *s;
    let ends = [TcpState::from_number(a)?, TcpState::from_number(b)?];
    Some(RemoteState { ends, phase: Phase::from_number(phase)?, replied, mark, label })
}
