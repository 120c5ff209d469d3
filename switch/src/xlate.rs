//! Translation: walks one packet through the tables and carries out its actions.
//!
//! Changes are made to the key first and written to the packet when it leaves, so `clone`, group buckets and patch
//! ports only save and restore the key. `ct` does not recirculate: the walk goes on in its table at once.
//!
//! A walk has three parts: the packet ([`packet::PacketState`]), where it is in the tables ([`pipeline::Pipeline`]),
//! and who looks on ([`Observer`]): the flow cache, which records the walk, or a trace, which tells of it. This room
//! knows neither.

mod actions;
pub(crate) mod backer;
pub(crate) mod continuation;
pub(crate) mod controller;
pub(crate) mod ct;
pub(crate) mod encap;
pub(crate) mod groups;
mod hidden;
pub(crate) mod mpls;
mod normal;
pub(crate) mod observer;
pub(crate) mod output;
pub(crate) mod packet;
pub(crate) mod pipeline;
pub(crate) mod port_numbers;
pub(crate) mod quoted;
pub(crate) mod sample;
pub(crate) mod segment;
pub(crate) mod selection;
mod snooping;
mod tunnel_text;

pub(crate) use actions::{heeds_last, prereq_ok};
pub(crate) use backer::Backer;
pub(crate) use observer::{Counted, CtPass, Encapsulation, Kind, Lookup, Observer, SegmentStart, SlowPath};
pub(crate) use packet::PacketState;
pub(crate) use pipeline::{Pipeline, Within};

use crate::buf::PacketBuf;
use crate::drops::DropReason;
use crate::events::{Event, Outputs};
use crate::extract;
use crate::ids::BridgeId;
use openflow_rs::action::PacketType;
use openflow_rs::{ALL_FIELDS, FieldId as F, Match, PortNo};
use std::time::Duration;

/// Most nested resubmits to the same or an earlier table, as Open vSwitch.
const MAX_DEPTH: u32 = 64;
/// Most nested resubmits of any kind: what a thread's stack of 8 MB surely bears.
const MAX_LEVELS: u32 = 1024;
/// Most resubmits of a packet, as Open vSwitch.
const MAX_RESUBMITS: u32 = 4096;
/// How long no other packet that passed a limit is told of: each is traced for the log.
const TELL_OF_LIMITS: Duration = Duration::from_secs(60);
/// Most values on the stack of `push` and `pop`.
const MAX_STACK: usize = 1024;

/// One packet's walk.
pub(crate) struct Xlate<'a, P, O> {
    pub(crate) backer: &'a mut Backer,
    pub(crate) out: &'a mut Outputs<P>,
    pub(crate) packet: PacketState<P>,
    pub(crate) pipeline: Pipeline,
    pub(crate) observer: O,
}

impl<'a, P: PacketBuf, O: Observer> Xlate<'a, P, O> {
    /// A walk of this packet, which begins in a bridge.
    pub(crate) fn new(backer: &'a mut Backer, out: &'a mut Outputs<P>, buf: P, bridge: BridgeId, observer: O) -> Self {
        let before = (out.packets.len(), out.events.len(), out.bfd.len());
        let pipeline = Pipeline::new(bridge, before);
        let mut x = Xlate { backer, out, packet: PacketState::empty(buf), pipeline, observer };
        // Keys are large: they are filled where they are.
        let PacketState { buf, headers, base, key, .. } = &mut x.packet;
        *headers = extract::extract(buf.data(), x.backer.underlay.local.tags(), key);
        base.clone_from(key);
        x
    }

    /// The packet has the type that a packet-out's or packet-in's metadata says: one without an Ethernet header gets a
    /// stand-in. Before anything else is done with it.
    pub(crate) fn of_type(&mut self, m: &Match) {
        let Some(kind) = m.packet_type().and_then(PacketType::ethertype) else { return };
        let PacketState { buf, headers, base, key, .. } = &mut self.packet;
        let there = extract::put_stand_in(buf, kind);
        *headers = extract::extract(buf.data(), self.backer.underlay.local.tags(), key);
        base.clone_from(key);
        self.observer.side_effect();
        if !there {
            self.because(DropReason::NoBuffer);
            self.pipeline.exit = true;
        }
    }

    /// Puts a packet-out's or packet-in's metadata over the key.
    pub(crate) fn overlay(&mut self, m: &Match) {
        for w in m.words() {
            let packet = extract::PACKET_WORDS.contains(&usize::from(w.word));
            if let (false, Some(k)) = (packet, self.packet.key.0.get_mut(usize::from(w.word))) {
                *k = (*k & !w.mask) | w.value;
            }
        }
    }

    /// Notes why the packet is dropped, if nothing of it leaves; the first reason counts.
    pub(crate) fn because(&mut self, r: DropReason) {
        use DropReason as D;
        let told = [
            D::TableMiss,
            D::NoLiveBucket,
            D::TtlExceeded,
            D::TunnelNoRoute,
            D::TunnelNoNeighbour,
            D::TunnelNoDestination,
            D::TunnelNoHeader,
            D::BondMember,
            D::TooDeep,
            D::TooManyResubmits,
            D::StackTooDeep,
            D::TooManyLabels,
            D::PacketType,
            D::NotEthernet,
            D::Fragment,
        ];
        if !told.contains(&r) {
            self.observer.tell(Kind::Warning, || format!("drop: {}", r.name()));
        }
        if matches!(r, D::TooDeep | D::TooManyResubmits | D::StackTooDeep | D::TooManyLabels | D::PacketType) {
            if !self.pipeline.failed {
                self.observer.tell(Kind::Warning, || limit_text(r));
            }
            self.pipeline.failed = true;
            self.pipeline.drop = Some(r);
        }
        // That it was only sampled gives way to any reason but that flows send it nowhere.
        let only_sampled = self.pipeline.drop == Some(D::Sampled) && !matches!(r, D::TableMiss | D::Action);
        if self.pipeline.drop.is_none() || only_sampled {
            self.pipeline.drop = Some(r);
        }
    }

    /// Samples are made of the packet: it is no drop if nothing else leaves, unless an operator wants that it is.
    pub(crate) fn is_sampled(&mut self) {
        if !self.backer.sampled_drops {
            self.pipeline.drop.get_or_insert(DropReason::Sampled);
        }
    }

    /// Whether nothing is done with the packet behind what is being done, so that nothing of it has to be kept.
    pub(crate) fn is_last(&self) -> bool {
        self.pipeline.last && self.pipeline.action_set.is_empty() && !O::TRACES
    }

    /// Does something behind which more is done with the packet.
    pub(crate) fn not_last<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let last = std::mem::take(&mut self.pipeline.last);
        let made = body(self);
        self.pipeline.last = last;
        made
    }

    /// What follows cannot be foreseen from the key at the beginning of the segment: it ends.
    #[inline]
    pub(crate) fn segment_ends(&mut self) {
        self.observer.segment_ends(self.backer);
    }

    /// The port of arrival, as lookups see it.
    pub(crate) fn own_port(&self) -> PortNo {
        PortNo(self.packet.key.get(F::InPort) as u16)
    }

    /// Ends the walk: the packet itself leaves, if it is to, or is counted as dropped. Of a packet that passed a limit
    /// nothing leaves: what did is taken back.
    pub(crate) fn end(mut self) {
        self.segment_ends();
        let passed = if self.pipeline.failed { self.limit_passed() } else { None };
        let Pipeline { failed, before, drop, mut sent, .. } = self.pipeline;
        if let Some(target) = self.packet.target {
            self.out.packets.push((target, self.packet.buf));
        }
        if failed {
            self.out.packets.truncate(before.0);
            self.out.events.truncate(before.1);
            self.out.bfd.truncate(before.2);
            self.out.events.extend(passed);
            sent = 0;
        }
        if sent == 0 {
            self.backer.drops.add(drop.unwrap_or(DropReason::Action));
        }
    }

    /// What to tell of a packet that passed a limit, if that is due.
    #[cold]
    fn limit_passed(&mut self) -> Option<Event> {
        if O::TRACES || self.backer.now < self.backer.limit_told {
            return None;
        }
        // That a port takes no packets of a type is no limit.
        let reason = self.pipeline.drop.filter(|r| *r != DropReason::PacketType)?;
        self.backer.limit_told = self.backer.now + TELL_OF_LIMITS;
        // A trace begins with what the packet came with: it has its port and its tunnel, and no registers yet.
        let mut metadata = self.metadata();
        for f in ALL_FIELDS.iter().copied() {
            let came = matches!(f, F::InPort | F::InPortOxm | F::PacketType) || f.def().name.starts_with("tun_");
            if !came {
                metadata.clear(f);
            }
        }
        let bridge = self.pipeline.bridge;
        Some(Event::LimitPassed { bridge, reason, metadata, packet: self.packet.buf.data().to_vec() })
    }
}

/// The limit that a packet passed, in Open vSwitch's words where it has it.
pub fn limit_text(r: DropReason) -> String {
    match r {
        DropReason::TooDeep => format!("over max translation depth {MAX_DEPTH}"),
        DropReason::TooManyResubmits => format!("over {MAX_RESUBMITS} resubmit actions"),
        DropReason::StackTooDeep => "resubmits yielded over 64 kB of stack".into(),
        other => format!("drop: {}", other.name()),
    }
}
