//! Connections that other gateways are told of, and those that they tell: what the main PMD thread does for [`crate::ha`],
//! some of it in each round, so that packets do not wait.

use gateway_ha::sync::codec::FLOW;
use gateway_ha::sync::{self, Record};
use openflow_rs::message::Version;
use openflow_rs::{FlowMod, Message};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use switch::classifier::Rule;
use switch::conntrack::journal::{Change, Put, ReaderId};
use switch::conntrack::replica::{Lack, Owner, RemoteConnection, RemoteState, Replica, ReplicaCounters};
use switch::conntrack::{Connection, Phase, TcpState, Translates, Tuple, Zone};
use switch::{BridgeId, Conntrack, SharedConntrack, Switch};
use tokio::sync::mpsc;

/// A batch is told that often, if something changed.
const EVERY: Duration = Duration::from_micros(500);
/// The most changes in a batch: 50 µs of this thread's time.
const MOST: usize = 512;
/// How often a fence is put up: its answer says that the peer is alive, and how far behind.
const FENCE: Duration = Duration::from_millis(100);
/// How often a peer is asked for what was refused.
const ASK: Duration = Duration::from_secs(1);
/// How often learned flows are looked at.
const LEARNED: Duration = Duration::from_millis(250);
/// The most flows of one look; the next one goes on behind them, and soon.
const LOOKED: usize = 1024;
const SOON: Duration = Duration::from_millis(20);
/// The most bytes of learned flows in a batch.
const BATCH: usize = 1 << 20;
/// A learned flow that is used is told so often in the time that it lasts.
const USES: u32 = 8;
/// The most learned flows that wait for the flows that learn them.
const WAITING: usize = 16_384;
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
    /// Its connection gave way to one of this chassis.
    GaveWay(u32),
    /// The dump is complete; the sender is told how many connections there are.
    End,
    /// The peer learned this flow, and used it last so long ago.
    Learn(Box<FlowMod>, Duration),
}

/// A learned flow, and of which of its uses a peer knows. The flow's place is not given to another one meanwhile.
type ToldFlow = (Weak<Rule>, Duration);

/// What is told to one peer.
struct Feed {
    peer: String,
    reader: ReaderId,
    to: mpsc::Sender<Batch>,
    next_fence: Duration,
    /// Learned flows that it has been told, by their places.
    learned: HashMap<usize, ToldFlow>,
}

/// What the stream of a peer is told.
#[derive(Clone, Debug)]
pub enum News {
    /// A dump has been taken; the peer has so many connections.
    Taken(u32),
    /// The table lacks something that the peer has told.
    Lacks(Lack),
}

/// What one peer has told.
struct Peer {
    replica: Replica,
    /// Its stream.
    stream: Option<mpsc::UnboundedSender<News>>,
    /// When it is asked next for what was refused.
    next_ask: Duration,
}

/// All of it.
#[derive(Default)]
pub struct ConnSync {
    feeds: Vec<Feed>,
    peers: HashMap<String, Peer>,
    next: Duration,
    next_learned: Duration,
    /// Where the next look at learned flows begins: a bridge, and a place there.
    look: (BridgeId, usize),
    /// Flows of peers that no flow here learns yet, with their last use: after a start they come before the controller's.
    waiting: Vec<(Box<FlowMod>, Duration)>,
    /// How many kinds of flows were learned at the last look.
    learned: usize,
}

impl ConnSync {
    /// Tells a peer the connections of these zones, beginning with all of them. False: there are too many peers.
    pub fn tell(
        &mut self,
        ct: &mut Conntrack,
        peer: String,
        zones: impl IntoIterator<Item = Zone>,
        to: mpsc::Sender<Batch>,
    ) -> bool {
        self.silence(ct, &peer);
        let Some(reader) = ct.add_reader(zones) else { return false };
        ct.set_chassis(reader, self.peers.get(&peer).map_or(0, |p| p.replica.owner()));
        self.feeds.push(Feed { peer, reader, to, next_fence: Duration::ZERO, learned: HashMap::new() });
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

    /// Tells a peer once more what is in a slot.
    pub fn tell_again(&mut self, ct: &mut Conntrack, peer: &str, slot: u32) {
        self.feeds.iter().filter(|f| f.peer == peer).for_each(|f| ct.tell_again(f.reader, slot));
    }

    /// How many changes a peer has not been told; none while a dump is under way, or if it is told nothing.
    pub fn behind(&self, ct: &Conntrack, peer: &str) -> Option<usize> {
        ct.behind(self.feeds.iter().find(|f| f.peer == peer)?.reader)
    }

    /// A peer's stream has begun; `owner` is its number as of its start, with whether this chassis keeps what both have
    /// inherited. `stream` is told how many connections the peer has, after each dump, and what is to be asked for.
    pub fn hear(
        &mut self,
        ct: &mut Conntrack,
        peer: String,
        (owner, keeps): (Owner, bool),
        stream: mpsc::UnboundedSender<News>,
    ) {
        self.feeds.iter().filter(|f| f.peer == peer).for_each(|f| ct.set_chassis(f.reader, owner));
        let new = || Peer { replica: Replica::new(owner, keeps), stream: None, next_ask: Duration::ZERO };
        let p = self.peers.entry(peer).or_insert_with(new);
        if p.replica.owner() != owner {
            ct.set_lost(p.replica.owner(), true);
            p.replica = Replica::new(owner, keeps);
        }
        p.stream = Some(stream);
        ct.set_lost(owner, false);
    }

    /// A peer's stream has ended: its connections are this chassis' own now.
    pub fn lose(&mut self, ct: &mut Conntrack, peer: &str) {
        if let Some(p) = self.peers.get_mut(peer) {
            p.stream = None;
            ct.set_lost(p.replica.owner(), true);
        }
    }

    /// What became of what a peer told, and how many connections in the table are its.
    pub fn held(&self, ct: &Conntrack, peer: &str) -> (ReplicaCounters, usize) {
        let of = |p: &Peer| (p.replica.counters, ct.of_owner(p.replica.owner()));
        self.peers.get(peer).map(of).unwrap_or_default()
    }

    /// Takes what a peer told.
    pub fn take(&mut self, switch: &mut Switch, peer: &str, all: Vec<Remote>, now: Duration) {
        let Some(Peer { replica, .. }) = self.peers.get_mut(peer) else { return };
        for r in all {
            let connections = switch.conntrack.clone();
            match r {
                Remote::Learn(f, idle) => {
                    if !switch.take_learned(&f, idle, now) && self.waiting.len() < WAITING {
                        self.waiting.push((f, now.saturating_sub(idle)));
                    }
                }
                Remote::Begin => replica.begin(),
                Remote::Put(slot, c) => replica.put(&mut connections.lock(), slot, &c, now),
                Remote::State(slot, s) => replica.state(&mut connections.lock(), slot, &s),
                Remote::Close(slot) => replica.close(&mut connections.lock(), slot),
                Remote::GaveWay(slot) => replica.gave_way(&mut connections.lock(), slot, now),
                Remote::End => replica.end(),
            }
        }
    }

    /// When [`ConnSync::poll`] wants to be called next; none: there is nothing to do.
    pub fn due(&self, connections: &SharedConntrack) -> Option<Duration> {
        if self.feeds.is_empty() && self.peers.is_empty() && self.waiting.is_empty() {
            return None;
        }
        let ct = connections.lock();
        if self.peers.values().any(|p| p.replica.is_sweeping()) {
            return Some(self.next);
        }
        let of = |f: &Feed| if ct.has_changes(f.reader) { self.next } else { f.next_fence };
        let learned = (!self.feeds.is_empty() || !self.waiting.is_empty()).then_some(self.next_learned);
        let ask = |p: &Peer| p.stream.is_some().then_some(p.next_ask);
        self.feeds.iter().map(of).chain(self.peers.values().filter_map(ask)).chain(learned).min()
    }

    /// Takes the flows that waited for flows that learn such: at once when these come, as packets come with them.
    fn take_waiting(&mut self, switch: &mut Switch, now: Duration) {
        self.waiting.retain(|(f, used)| {
            let idle = now.saturating_sub(*used);
            idle.as_secs() < f.idle_timeout.into() && !switch.take_learned(f, idle, now)
        });
    }

    /// Tells peers of learned flows that are new or were used, and takes those that had to wait for the controller's flows.
    pub fn poll_learned(&mut self, switch: &mut Switch, now: Duration) {
        if !self.waiting.is_empty() && self.learned != switch.learns() {
            self.learned = switch.learns();
            self.take_waiting(switch, now);
        }
        if now < self.next_learned || self.feeds.is_empty() && self.waiting.is_empty() {
            return;
        }
        let (found, all) = self.look_at_learned(switch);
        self.next_learned = now + if all { LEARNED } else { SOON };
        if all {
            self.take_waiting(switch, now);
            self.feeds.iter_mut().for_each(|f| f.learned.retain(|_, (r, _)| r.strong_count() > 0));
        }
        for f in &mut self.feeds {
            // What does not fit is told at the next look.
            let Ok(place) = f.to.try_reserve() else { continue };
            let mut batch = Batch { bytes: Vec::new(), records: 0, fences: Vec::new() };
            for (r, used) in &found {
                let lasts = Duration::from_secs(r.idle_timeout().into());
                let at = Arc::as_ptr(r) as usize;
                // It lives on with the peer while it is used here.
                if f.learned.get(&at).is_some_and(|(_, told)| *used < *told + lasts / USES) {
                    continue;
                }
                let bytes = Message::FlowMod(r.to_flow_mod()).encode(Version::Of15, 0);
                if bytes.len() > FLOW {
                    continue;
                }
                f.learned.insert(at, (Arc::downgrade(r), *used));
                let idle = u32::try_from(millis(now.saturating_sub(*used))).unwrap_or(u32::MAX);
                Record::Learn(idle, bytes).encode(&mut batch.bytes);
                batch.records += 1;
                if batch.bytes.len() >= BATCH {
                    break;
                }
            }
            if batch.records > 0 {
                place.send(batch);
            }
        }
    }

    /// The next learned flows with their last use, and whether all have been looked at since the last time that was so.
    fn look_at_learned(&mut self, switch: &Switch) -> (Vec<(Arc<Rule>, Duration)>, bool) {
        let (mut found, mut left) = (Vec::new(), LOOKED);
        let (first, mut from) = std::mem::take(&mut self.look);
        for (id, b) in switch.bridges().filter(|(id, _)| *id >= first) {
            let start = if id == first { std::mem::take(&mut from) } else { 0 };
            let end = b.timed_flows().min(start.saturating_add(left));
            found.extend(b.learned(start.min(end)..end));
            left -= end.saturating_sub(start);
            if left == 0 {
                self.look = (id, end);
                return (found, false);
            }
        }
        (found, true)
    }

    /// Tells and sweeps what is due.
    pub fn poll(&mut self, connections: &SharedConntrack, now: Duration) {
        if now < self.next || self.feeds.is_empty() && self.peers.is_empty() {
            return;
        }
        self.next = now + EVERY;
        let ct = &mut *connections.lock();
        for Peer { replica, stream, next_ask } in self.peers.values_mut() {
            let mut news = replica.sweep(ct, SWEPT, now).map(News::Taken);
            if stream.is_some() && now >= *next_ask && !replica.is_sweeping() && news.is_none() {
                *next_ask = now + ASK;
                news = Some(replica.lacks(ct)).filter(|l| *l != Lack::Nothing).map(News::Lacks);
            }
            if let (Some(n), Some(stream)) = (news, stream) {
                // It may have ended meanwhile.
                let _ = stream.send(n);
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
                if let Change::GaveWay(slot) = c {
                    Record::Close(slot).encode(&mut batch.bytes);
                }
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
        Change::GaveWay(slot) => Record::GaveWay(*slot),
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
        zone: c.zone.0,
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
        zone: Zone(c.zone),
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
