//! Packets for controllers, and walks that wait: for a controller (`pause`), for the rest of a datagram, or for word of a
//! connection.

use crate::buf::PacketBuf;
use crate::classifier::Frames;
use crate::conntrack::reassembly::{Held, Suspended};
use crate::conntrack::{Tuple, flag};
use crate::drops::DropReason;
use crate::events::{Event, Miss};
use crate::extract;
use crate::xlate::{Observer, Within, Xlate, continuation, prereq_ok};
use openflow_rs::action::{ControllerAction, PacketInReason};
use openflow_rs::message::PacketIn;
use openflow_rs::{ALL_FIELDS, FieldId as F, Match, MeterId, Prereq, TableId};
use std::sync::Arc;

/// What a packet's walk waits for.
pub(crate) enum Wait {
    /// The controller, which gets this.
    Controller(u16, Box<PacketIn>),
    /// The rest of its datagram.
    Fragment(Box<Suspended>),
    /// Word of the connection that this tuple belongs to.
    Word(Tuple, Box<Suspended>),
}

/// A packet whose walk waits, and what is left to do.
pub(crate) struct Frozen {
    pub(crate) wait: Wait,
    pub(crate) frames: Frames,
}

/// What has come out of a walk: packets, events but for its samples, and BFD packets in all, and how many of them are the
/// walk's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SoFar {
    pub(crate) out: [usize; 3],
    pub(crate) sent: u32,
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// The metadata of a packet-in: all fields that the packet's bytes do not hold.
    pub(super) fn metadata(&self) -> Match {
        let mut m = Match::new();
        m.set(F::InPort, self.packet.key.get(F::InPort));
        if let kind @ 1.. = self.packet.key.get(F::PacketType) {
            m.set(F::PacketType, kind);
        }
        for id in ALL_FIELDS.iter().copied() {
            let d = id.def();
            let packet = extract::PACKET_WORDS.contains(&d.word);
            let whole = id.bits() == 128 && !d.name.starts_with("xx") || id.bits() <= 64 && !d.name.starts_with("xreg");
            let skip = matches!(
                id,
                F::InPort
                    | F::InPortOxm
                    | F::ConjId
                    | F::DpHash
                    | F::PacketType
                    | F::TunTtl
                    | F::TunTos
                    | F::ActsetOutput
            );
            let v = self.packet.key.get(id);
            // A tunnel option may be present and empty.
            let there =
                id.presence().is_some_and(|(word, bit)| self.packet.key.0.get(word).is_some_and(|w| w & bit != 0));
            if !packet && whole && !skip && (v != 0 || there) {
                m.set(id, v);
            }
        }
        self.connection(&mut m);
        m
    }

    /// Adds EtherType and original tuple of a tracked packet.
    fn connection(&self, m: &mut Match) {
        let state = self.packet.key.get(F::CtState) as u32;
        if state == 0 {
            return;
        }
        let kind = self.packet.key.get(F::EthType);
        m.set(F::EthType, kind);
        // As in Open vSwitch, for an error that goes the way of the connection's first packet the tuple is not told.
        let valid = state & (flag::NEW | flag::EST | flag::RPL) != 0 && state & (flag::TRK | flag::INV) == flag::TRK;
        if !valid || !prereq_ok(&self.packet.key, Prereq::Ip) || self.packet.key.get(F::CtNwProto) == 0 {
            for f in [F::CtNwSrc, F::CtNwDst, F::CtIpv6Src, F::CtIpv6Dst, F::CtNwProto, F::CtTpSrc, F::CtTpDst] {
                m.clear(f);
            }
            return;
        }
        let (src, dst) = if kind == 0x800 { (F::CtNwSrc, F::CtNwDst) } else { (F::CtIpv6Src, F::CtIpv6Dst) };
        for f in [src, dst, F::CtNwProto, F::CtTpSrc, F::CtTpDst] {
            m.set(f, self.packet.key.get(f));
        }
    }

    pub(crate) fn controller(&mut self, c: &ControllerAction) {
        let flow = c.reason == PacketInReason::Action && self.pipeline.flow.miss && !c.pause;
        self.packet_in(c, if flow { Miss::Flow } else { Miss::No });
    }

    /// Sends the packet to a controller.
    pub(super) fn packet_in(&mut self, c: &ControllerAction, miss: Miss) {
        self.observer.side_effect();
        if !self.commit() {
            return;
        }
        self.observer.datapath(|| {
            let (reason, id) = (c.reason as u8, c.id);
            let cookie = match self.pipeline.flow.cookie {
                0 => "0".into(),
                cookie => format!("{cookie:#x}"),
            };
            let continues = u8::from(c.pause);
            let max_len = if c.max_len == 0 { u16::MAX } else { c.max_len };
            format!(
                "userspace(pid=0,controller(reason={reason},dont_send=0,continuation={continues},recirc_id=1,rule_cookie={cookie},controller_id={id},max_len={max_len}))"
            )
        });
        if self.observer.dry() {
            self.pipeline.sent += 1;
            if c.pause {
                // A trace ends where the packet waits for the controller.
                self.pipeline.exit = true;
            }
            return;
        }
        let n = self.wire_len();
        if !self.backer.meter_pass(self.pipeline.bridge, c.meter_id.unwrap_or(MeterId::CONTROLLER), n) {
            return self.because(DropReason::Meter);
        }
        // Without an Ethernet header where the packet has none.
        let data = self.packet.buf.data();
        let data = data.get(data.len().saturating_sub(n)..).unwrap_or_default();
        // No packet is buffered, so that `max_len` has no effect, as in Open vSwitch.
        let pin = PacketIn {
            packet: data.to_vec(),
            total_len: n as u32,
            table: self.pipeline.table,
            cookie: self.pipeline.flow.cookie,
            // The table-miss flow gives its own reason.
            reason: if miss == Miss::Flow { PacketInReason::NoMatch } else { c.reason },
            metadata: self.metadata(),
            userdata: c.userdata.clone(),
            ..Default::default()
        };
        self.pipeline.sent += 1;
        if let Some(b) = self.backer.bridges.get_mut(self.pipeline.bridge) {
            b.packet_ins += 1;
        }
        if c.pause {
            self.pipeline.frozen = Some(Frozen { wait: Wait::Controller(c.id, Box::new(pin)), frames: Vec::new() });
        } else {
            self.out.events.push(Event::PacketIn {
                bridge: self.pipeline.bridge,
                controller: c.id,
                packet_in: Box::new(pin),
                miss,
            });
        }
    }

    /// What has come out of the walk.
    pub(crate) fn so_far(&self) -> SoFar {
        let out = &self.out;
        let events = out.events.len().saturating_sub(self.pipeline.samples);
        SoFar { out: [out.packets.len(), events, out.bfd.len()], sent: self.pipeline.sent }
    }

    /// Hands a frozen packet over to the controller or to reassembly.
    #[inline]
    pub(crate) fn thaw(&mut self) {
        if self.pipeline.frozen.is_some() {
            self.hand_over();
        }
    }

    #[cold]
    fn hand_over(&mut self) {
        match self.pipeline.frozen.take() {
            Some(Frozen { wait: Wait::Controller(controller, mut pin), frames }) => {
                // As in Open vSwitch: table 0, and the cookie of the flow that paused.
                (pin.table, pin.cookie) = (TableId::FIRST, self.pipeline.flow.cookie);
                let at = &self.pipeline;
                let mirrored = self.packet.mirrored;
                pin.continuation = Some(continuation::encode(at.bridge, &at.stack, &at.action_set, &frames, mirrored));
                self.out.events.push(Event::PacketIn {
                    bridge: self.pipeline.bridge,
                    controller,
                    packet_in: pin,
                    miss: Miss::No,
                });
            }
            Some(Frozen { wait: Wait::Fragment(rest), frames }) => {
                let held = self.held(rest, frames);
                let (so_far, plain) = (self.so_far(), self.pipeline.within == Within::Flow && !self.pipeline.failed);
                let why = self.pipeline.drop;
                self.observer.holds(&self.packet.base, &held.rest, plain.then_some(so_far), why);
                self.pipeline.put_by = true;
                let own = self.observer.mute();
                self.not_last(|x| x.reassemble(held));
                self.observer.unmute(own);
            }
            Some(Frozen { wait: Wait::Word(tuple, rest), frames }) => {
                let (zone, held) = (rest.zone, self.held(rest, frames));
                // It is counted when it goes on.
                self.pipeline.sent += 1;
                self.backer.awaiting.put(zone, tuple, held, self.backer.now);
            }
            None => {}
        }
    }

    /// The packet as it waits at a `ct`, with what is left to do.
    fn held(&self, mut rest: Box<Suspended>, frames: Frames) -> Held {
        rest.frames = frames;
        rest.stack = self.pipeline.stack.clone();
        rest.action_set = self.pipeline.action_set.clone();
        Held { bytes: self.packet.buf.data().to_vec(), rest: Arc::new(*rest) }
    }

    /// Executes what a frozen walk left to do, to the end.
    pub(crate) fn go_on(&mut self, frames: Frames) {
        let mut frames = frames.into_iter();
        for (table, cookie, list) in frames.by_ref() {
            (self.pipeline.table, self.pipeline.flow) = (table, cookie);
            // The lists belong to the flow that froze, whatever is looked up on the way.
            self.pipeline.levels += 1;
            self.actions(&list);
            self.pipeline.levels -= 1;
            if self.pipeline.frozen.is_some() {
                break;
            }
        }
        if let Some(f) = &mut self.pipeline.frozen {
            f.frames.extend(frames);
        }
        self.finish();
    }
}
