//! The rate of packet-ins to a controller (ovs-vswitchd.conf.db(5), Controller `controller_rate_limit`). Packets beyond
//! it wait in queues by port, which take turns; when too many wait, the longest queue loses one. Misses and other
//! packets have separate rates.

use crate::config::controller::PacketInLimit;
use openflow_rs::action::PacketInReason;
use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId, Message};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Billionths of a packet.
const ONE: u128 = 1_000_000_000;

/// What became of packet-ins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent at once.
    pub bypassed: u64,
    /// Had to wait.
    pub queued: u64,
    /// Dropped of those that had to wait.
    pub dropped: u64,
    /// Waiting now.
    pub backlog: u64,
}

/// A controller's limit, and the counters of misses and of other packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketInState {
    /// None: no limit.
    pub limit: Option<PacketInLimit>,
    /// Counters of the newest connection.
    pub counts: [Counts; 2],
}

/// A state that a connection shares with its configuration.
pub type Shared = Arc<Mutex<PacketInState>>;

/// Locks a state.
pub fn lock(s: &Shared) -> MutexGuard<'_, PacketInState> {
    s.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct RateQueue {
    tokens: u128,
    at: Option<Instant>,
    queues: BTreeMap<u16, VecDeque<Message>>,
    /// The port that had its turn last.
    last: u16,
}

/// The port that received a packet.
fn port_of(p: &PacketIn) -> u16 {
    p.metadata.exact(FieldId::InPort).unwrap_or_default() as u16
}

impl RateQueue {
    fn fill(&mut self, limit: PacketInLimit, now: Instant) {
        let most = u128::from(limit.burst) * ONE;
        let gained = self.at.map_or(most, |at| now.saturating_duration_since(at).as_nanos() * u128::from(limit.rate));
        (self.tokens, self.at) = (self.tokens.saturating_add(gained).min(most), Some(now));
    }

    fn waiting(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// Takes the next packet, port after port.
    fn pop(&mut self) -> Option<Message> {
        let next = self.queues.range(self.last.saturating_add(1)..).next().or(self.queues.iter().next());
        let port = *next?.0;
        self.last = port;
        let queue = self.queues.get_mut(&port)?;
        let m = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&port);
        }
        m
    }
}

/// Packet-ins that wait for one connection.
#[derive(Debug, Default)]
pub(super) struct PacketInQueues {
    shared: Option<Shared>,
    parts: [RateQueue; 2],
}

impl PacketInQueues {
    /// Empty queues for a new connection, whose counters begin at zero.
    pub fn new(shared: Option<Shared>) -> PacketInQueues {
        shared.iter().for_each(|s| lock(s).counts = Default::default());
        PacketInQueues { shared, parts: Default::default() }
    }

    /// Takes a message, and gives it back if it may be sent now.
    pub fn take(&mut self, m: Message, now: Instant) -> Option<Message> {
        let (Message::PacketIn(p) | Message::NxPacketIn(p) | Message::PacketIn2(p)) = &m else { return Some(m) };
        let (kind, port) = (usize::from(p.reason != PacketInReason::NoMatch), port_of(p));
        let Some(shared) = &self.shared else { return Some(m) };
        let mut state = lock(shared);
        let (Some(limit), Some(part)) = (state.limit, self.parts.get_mut(kind)) else { return Some(m) };
        let counts = &mut state.counts[kind];
        part.fill(limit, now);
        if part.queues.is_empty() && part.tokens >= ONE {
            part.tokens -= ONE;
            counts.bypassed += 1;
            return Some(m);
        }
        if part.waiting() >= limit.burst as usize
            && let Some(longest) = part.queues.values_mut().max_by_key(|q| q.len())
        {
            longest.pop_front();
            counts.dropped += 1;
            part.queues.retain(|_, q| !q.is_empty());
        }
        part.queues.entry(port).or_default().push_back(m);
        counts.queued += 1;
        counts.backlog = part.waiting() as u64;
        None
    }

    /// When the next waiting packet may be sent.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let waits = |p: &&RateQueue| !p.queues.is_empty();
        let limit = lock(self.shared.as_ref()?).limit;
        let at = self.parts.iter().filter(waits).map(|p| match limit {
            Some(l) => {
                let lacks = ONE.saturating_sub(p.tokens) / u128::from(l.rate.max(1));
                p.at.unwrap_or(now) + Duration::from_nanos(lacks as u64 + 1)
            }
            None => now,
        });
        at.min()
    }

    /// Takes the packets that may be sent by now.
    pub fn next(&mut self, now: Instant) -> Vec<Message> {
        let mut out = Vec::new();
        let Some(shared) = &self.shared else { return out };
        let mut state = lock(shared);
        let limit = state.limit;
        for (part, counts) in self.parts.iter_mut().zip(&mut state.counts) {
            if let Some(l) = limit {
                part.fill(l, now);
            }
            while limit.is_none() || part.tokens >= ONE {
                let Some(m) = part.pop() else { break };
                part.tokens = part.tokens.saturating_sub(ONE);
                out.push(m);
            }
            counts.backlog = part.waiting() as u64;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::Match;

    fn packet(port: u16, reason: PacketInReason) -> Message {
        let metadata = Match::new().with(FieldId::InPort, port.into());
        Message::PacketIn2(PacketIn { metadata, reason, ..PacketIn::default() })
    }

    #[test]
    fn what_is_too_fast_waits_and_ports_share() {
        let shared = Shared::default();
        lock(&shared).limit = Some(PacketInLimit { rate: 100, burst: 30 });
        let (mut packet_ins, start) = (PacketInQueues::new(Some(shared.clone())), Instant::now());
        let offer = |packet_ins: &mut PacketInQueues, port| {
            packet_ins.take(packet(port, PacketInReason::Action), start).is_some()
        };
        assert_eq!((0..70).filter(|_| offer(&mut packet_ins, 1)).count(), 30);
        assert_eq!(lock(&shared).counts[1], Counts { bypassed: 30, queued: 40, dropped: 10, backlog: 30 });
        // Another port gets its share, at the cost of the first.
        (0..10).for_each(|_| assert!(!offer(&mut packet_ins, 2)));
        // Misses have a rate of their own.
        assert!(packet_ins.take(packet(1, PacketInReason::NoMatch), start).is_some());
        let due = packet_ins.due(start).expect("something waits");
        assert!(due > start && due <= start + Duration::from_millis(11));
        let out = packet_ins.next(start + Duration::from_millis(105));
        let ports: Vec<u16> =
            out.iter().filter_map(|m| if let Message::PacketIn2(p) = m { Some(port_of(p)) } else { None }).collect();
        assert_eq!(ports, [1, 2, 1, 2, 1, 2, 1, 2, 1, 2]);
        assert_eq!(lock(&shared).counts[1], Counts { bypassed: 30, queued: 50, dropped: 20, backlog: 20 });
        // Without a limit everything goes.
        lock(&shared).limit = None;
        assert_eq!((packet_ins.next(start).len(), packet_ins.due(start)), (20, None));
        assert!(offer(&mut packet_ins, 1));
    }
}
