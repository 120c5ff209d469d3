//! A connection, and the tuples of its directions.

use super::{ConnId, Phase, TcpState, Verdict, Window, Zone, flag, replica};
use openflow_rs::action::NatSpec;
use packet::ipproto;
use std::time::Duration;

/// One direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Tuple {
    /// IPv6, else IPv4.
    pub v6: bool,
    /// Protocol.
    pub proto: u8,
    /// Source; IPv4 in the low 32 bits.
    pub src: u128,
    /// Destination.
    pub dst: u128,
    /// Source port, or ICMP id.
    pub sport: u16,
    /// Destination port, or ICMP id.
    pub dport: u16,
    /// ICMP type, as the request names it.
    pub icmp_type: u8,
    /// ICMP code.
    pub icmp_code: u8,
}

impl Tuple {
    /// ICMP, of either version.
    pub(crate) fn is_icmp(&self) -> bool {
        matches!(self.proto, ipproto::ICMP | ipproto::ICMPV6)
    }

    /// A template can say what becomes of such a packet. Of ICMP that is so of questions and their answers.
    pub(crate) fn has_templates(&self) -> bool {
        match self.proto {
            ipproto::ICMP => !self.v6 && matches!(self.icmp_type, 0 | 8) && self.icmp_code == 0,
            ipproto::ICMPV6 => self.v6 && matches!(self.icmp_type, 128 | 129) && self.icmp_code == 0,
            _ => true,
        }
    }

    /// The tuple of replies.
    pub fn reversed(&self) -> Tuple {
        let icmp_type = match (self.proto, self.icmp_type) {
            (1, 8) => 0,
            (1, 0) => 8,
            (1, 13) => 14,
            (1, 14) => 13,
            (1, 15) => 16,
            (1, 16) => 15,
            (58, 128) => 129,
            (58, 129) => 128,
            (_, t) => t,
        };
        Tuple { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport, icmp_type, ..*self }
    }
}

/// Whose address `nat` translates. `ct_state` says so even if the address stays the same, as in Open vSwitch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Translates {
    /// Nobody's.
    #[default]
    Nothing,
    /// The originator's.
    Source,
    /// The other end's.
    Destination,
}

impl Translates {
    pub(super) fn asked(nat: Option<&NatSpec>) -> Translates {
        match nat {
            Some(n) if n.src => Translates::Source,
            Some(n) if n.dst => Translates::Destination,
            _ => Translates::Nothing,
        }
    }

    /// Its bit of `ct_state` for a packet of this direction.
    fn flag(self, dir: Direction) -> u32 {
        match (self, dir) {
            (Translates::Nothing, _) => 0,
            (Translates::Source, Direction::Original) | (Translates::Destination, Direction::Reply) => flag::SNAT,
            _ => flag::DNAT,
        }
    }
}

/// A tracked connection, as it is exported and imported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Zone.
    pub zone: Zone,
    /// First packet's tuple, before translation.
    pub original: Tuple,
    /// The tuple of replies, before they are translated back.
    pub reply: Tuple,
    /// What `nat` does.
    pub translates: Translates,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// A reply was seen.
    pub replied: bool,
    /// TCP state of both ends, the originator's first.
    pub ends: [TcpState; 2],
    /// Which timeout holds.
    pub phase: Phase,
    /// TCP windows, if they are tracked.
    pub window: Option<Box<Window>>,
    /// When it expires. For a connection in the table the time in `live` counts.
    pub expires: Duration,
    /// The chassis that saw its last packet; 0: this one ([`replica`]).
    pub owner: replica::Owner,
    /// The dump of its owner that told it last.
    pub(super) epoch: u8,
    /// The chassis whose it was before, if that has not been told yet.
    pub(super) from: replica::Owner,
    /// It is this chassis' as its owner was lost, and no packet of it has come since.
    pub(super) orphan: bool,
    /// It was this chassis' until it gave way to its owner's. That one may have given way as well, whatever it told before.
    pub(super) gave_way: bool,
    pub(super) generation: u64,
    /// Moves with state, mark and label.
    pub(super) version: u32,
}

impl Connection {
    /// The verdict for one of its packets.
    pub(super) fn verdict(&self, dir: Direction, tuple: &Tuple, established: bool, nat: bool) -> Verdict {
        let mut v = Verdict { state: flag::TRK, reply: dir == Direction::Reply, ..Default::default() };
        // As in Open vSwitch, a connection that is not established has no reply direction.
        v.state |= match (established, dir) {
            (false, _) => flag::NEW,
            (true, Direction::Original) => flag::EST,
            (true, Direction::Reply) => flag::EST | flag::RPL,
        };
        if nat {
            self.translate(dir, tuple, &mut v);
        }
        v
    }

    /// The verdict for an ICMP error about one of its packets; the tuple is that of packets that go the error's way.
    pub(super) fn related(&self, dir: Direction, tuple: &Tuple, nat: bool) -> Verdict {
        let reply = dir == Direction::Reply;
        let state = flag::TRK | flag::REL | if reply { flag::RPL } else { 0 };
        let mut v = Verdict { state, reply, ..Default::default() };
        if nat {
            self.translate(dir, tuple, &mut v);
        }
        v
    }

    pub(super) fn translate(&self, dir: Direction, tuple: &Tuple, v: &mut Verdict) {
        let target = match dir {
            Direction::Original => self.reply.reversed(),
            Direction::Reply => self.original.reversed(),
        };
        v.state |= self.translates.flag(dir);
        v.translated = Some(target).filter(|t| t != tuple);
    }
}

/// A connection in the state in which a packet found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnSnapshot {
    pub(crate) id: ConnId,
    pub(crate) version: u32,
    /// How long it lives after a packet.
    pub(crate) timeout: Duration,
}

/// A direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// As the first packet.
    Original,
    /// As replies.
    Reply,
}
