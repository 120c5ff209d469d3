//! Samples: packets that `sample` actions choose, for collectors (ovs-actions(7), `sample`).

use crate::buf::PacketBuf;
use crate::datapath::{Event, Outputs, Switch};
use crate::tunnel::Outer;
use crate::xlate::{Xlate, mix};
use openflow_rs::action::{SampleAction, SampleDirection, SampleId};
use openflow_rs::{FieldId as F, PortNo};
use packet::Headers;
use std::time::Duration;

/// Bytes of a packet that a sample keeps: all headers that records tell of.
const HEAD: usize = 192;

/// A packet that was chosen.
#[derive(Clone, Debug)]
pub struct Sample {
    /// `Flow_Sample_Collector_Set` of the bridge.
    pub collector_set: u32,
    /// Observation domain.
    pub domain: u32,
    /// Observation point.
    pub point: u32,
    /// Where the packet came from.
    pub in_port: PortNo,
    /// The port that the flow names ([`PortNo::ANY`]: none).
    pub sampling_port: PortNo,
    /// Chosen on leaving.
    pub egress: bool,
    /// Its first bytes.
    pub head: Vec<u8>,
    /// Where its headers are.
    pub headers: Headers,
    /// Its length.
    pub len: usize,
    /// The tunnel that it came by.
    pub outer: Option<Outer>,
    /// It stands for so many packets.
    pub weight: u32,
}

/// A packet that a bridge took in, and where it went: for collectors that hear of all packets, or of one of so many.
#[derive(Clone, Debug)]
pub struct Passage {
    /// Where it came from.
    pub in_port: PortNo,
    /// As it came.
    pub packet: Glimpse,
    /// The tunnel that it came by.
    pub outer: Option<Outer>,
    /// It went to all ports.
    pub flooded: bool,
    /// By which ports it left, of whichever bridge, and as what.
    pub outputs: Vec<Departure>,
}

/// A packet that left.
#[derive(Clone, Debug)]
pub struct Departure {
    /// By a port of this bridge.
    pub bridge: usize,
    /// The port.
    pub port: PortNo,
    /// As it left.
    pub packet: Glimpse,
}

/// What is seen of a packet.
#[derive(Clone, Debug)]
pub struct Glimpse {
    /// Its first bytes.
    pub head: Vec<u8>,
    /// Its length.
    pub len: usize,
}

/// Bytes of a passing packet that are seen: as many as sFlow tells of at most.
const GLIMPSE: usize = 256;

impl Glimpse {
    fn of(data: &[u8]) -> Glimpse {
        Glimpse { head: data.get(..GLIMPSE).unwrap_or(data).to_vec(), len: data.len() }
    }
}

impl Switch {
    /// Takes a packet through the tables and tells, where its bridge is observed, where it went. The flow cache has no part in it.
    pub fn observe<P: PacketBuf>(&mut self, device: u32, p: P, now: Duration, out: &mut Outputs<P>) {
        self.now = now;
        self.settle();
        self.passing = Some(Vec::new());
        self.uncached(device, p, out);
        self.passing = None;
    }
}

impl<P: PacketBuf> Xlate<'_, P> {
    /// Takes a packet in that comes from outside the switch, or out of a tunnel.
    pub(crate) fn arrive_outside(&mut self) {
        if self.sw.passing.is_none() || !self.sw.bridges.get(self.bridge).is_some_and(|b| b.observed) {
            return self.arrive();
        }
        let in_port = PortNo(self.key.get(F::InPort) as u16);
        let (bridge, packet) = (self.bridge, Glimpse::of(self.pkt.data()));
        let passage = Passage { in_port, packet, outer: self.came_by(), flooded: false, outputs: Vec::new() };
        self.sw.passing.iter_mut().for_each(|open| open.push(passage.clone()));
        self.arrive();
        if let Some(passage) = self.sw.passing.as_mut().and_then(Vec::pop) {
            self.out.events.push(Event::Passage { bridge, passage: Box::new(passage) });
        }
    }

    /// The tunnel that the packet came by, in the bridge that it came to.
    fn came_by(&self) -> Option<Outer> {
        let tunnelled = self.key.get(F::TunDst) != 0 || self.key.get(F::TunIpv6Dst) != 0;
        self.outer.filter(|_| tunnelled)
    }

    /// The packet leaves by a port.
    #[inline]
    pub(crate) fn passes(&mut self, no: PortNo) {
        if self.sw.passing.is_some() {
            let left = Departure { bridge: self.bridge, port: no, packet: Glimpse::of(self.pkt.data()) };
            if let Some(p) = self.sw.passing.as_mut().and_then(|open| open.last_mut()) {
                p.outputs.push(left);
            }
        }
    }

    /// The packet goes to all ports.
    pub(crate) fn passes_to_all(&mut self) {
        if let Some(p) = self.sw.passing.as_mut().and_then(|open| open.last_mut()) {
            p.flooded = true;
        }
    }

    /// An observation domain or point.
    pub(crate) fn observation(&self, id: &SampleId) -> u32 {
        match id {
            SampleId::Imm(v) => *v,
            SampleId::Field(f) => self.key.get_sub(f) as u32,
        }
    }

    /// Chooses some packets for a collector set. What is chosen differs from packet to packet, so such walks are not kept; without
    /// the collector set nothing is to be done but to count.
    pub(crate) fn sample(&mut self, s: &SampleAction) {
        self.sample_told(s);
        if self.dry() {
            return;
        }
        let seen = self.sw.samples;
        self.sw.samples += 1;
        let collected = self.sw.bridges.get(self.bridge).is_some_and(|b| b.collectors.contains(&s.collector_set_id));
        if !collected {
            if let Some(r) = &mut self.rec {
                r.sample();
            }
            return;
        }
        self.unrepeatable();
        let chosen = s.probability == u16::MAX || mix(seen ^ 0x5a3c_96e1) & 0xffff < u64::from(s.probability);
        if !chosen || !self.commit() {
            return;
        }
        let data = self.pkt.data();
        let sample = Sample {
            collector_set: s.collector_set_id,
            domain: self.observation(&s.obs_domain_id),
            point: self.observation(&s.obs_point_id),
            in_port: PortNo(self.key.get(F::InPort) as u16),
            sampling_port: s.sampling_port,
            egress: s.direction == SampleDirection::Egress,
            head: data.get(..HEAD).unwrap_or(data).to_vec(),
            headers: self.h,
            len: data.len(),
            outer: self.came_by(),
            weight: u32::from(u16::MAX / s.probability.max(1)),
        };
        self.out.events.push(Event::Sample { bridge: self.bridge, sample: Box::new(sample) });
    }
}
