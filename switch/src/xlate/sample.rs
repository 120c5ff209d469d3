//! `sample` (ovs-actions(7)), and what exporters see of observed packets.

use crate::buf::PacketBuf;
use crate::classifier::mix;
use crate::events::{Departure, Event, Glimpse, Passage, Sample};
use crate::tunnel::{Outer, TunnelConfig};
use crate::xlate::{Counted, Observer, Xlate};
use openflow_rs::action::{SampleAction, SampleDirection, SampleId};
use openflow_rs::{FieldId as F, PortNo};

/// Bytes of a packet that a sample keeps: enough for all headers that records report.
const HEAD: usize = 192;

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Receives a packet from outside the switch, or out of a tunnel.
    pub(crate) fn arrive_outside(&mut self) {
        if self.backer.passing.is_none() || !self.backer.bridges.get(self.pipeline.bridge).is_some_and(|b| b.observed) {
            return self.arrive();
        }
        let in_port = PortNo(self.packet.key.get(F::InPort) as u16);
        let (bridge, packet) = (self.pipeline.bridge, Glimpse::of(self.packet.buf.data()));
        let passage = Passage { in_port, packet, outer: self.came_by(), flooded: false, outputs: Vec::new() };
        self.backer.passing.iter_mut().for_each(|open| open.push(passage.clone()));
        self.arrive();
        if let Some(passage) = self.backer.passing.as_mut().and_then(Vec::pop) {
            self.out.events.push(Event::Passage { bridge, passage: Box::new(passage) });
        }
    }

    /// The tunnel that the packet arrived by, while it is in the bridge of arrival.
    fn came_by(&self) -> Option<Outer> {
        let tunnelled = self.packet.key.get(F::TunDst) != 0 || self.packet.key.get(F::TunIpv6Dst) != 0;
        self.packet.tunnel.filter(|_| tunnelled)
    }

    /// The packet leaves by a port, and this tunnel, if the port is one.
    #[inline]
    pub(crate) fn passes(&mut self, no: PortNo, tunnel: Option<&TunnelConfig>) {
        if let Some(p) = self.backer.passing.as_mut().and_then(|open| open.last_mut()) {
            let packet = Glimpse::of(self.packet.buf.data());
            let outer = tunnel.and_then(|t| t.outer(&self.packet.key));
            p.outputs.push(Departure { bridge: self.pipeline.bridge, port: no, packet, outer });
        }
    }

    /// The packet leaves in a tunnel, as this one.
    pub(crate) fn passes_within(&mut self, whole: &[u8]) {
        let open = self.backer.passing.as_mut().and_then(|open| open.last_mut());
        if let Some(outer) = open.and_then(|p| p.outputs.last_mut()).and_then(|d| d.outer.as_mut()) {
            outer.read(whole);
        }
    }

    /// Does what happens to a packet below a tunnel: where it leaves there is none of the observed packet's outputs.
    pub(crate) fn below(&mut self, what: impl FnOnce(&mut Self)) {
        let passing = self.backer.passing.as_mut().map(std::mem::take);
        what(self);
        self.backer.passing = passing;
    }

    /// The packet goes to all ports.
    pub(crate) fn passes_to_all(&mut self) {
        if let Some(p) = self.backer.passing.as_mut().and_then(|open| open.last_mut()) {
            p.flooded = true;
        }
    }

    /// An observation domain or point.
    pub(crate) fn observation(&self, id: &SampleId) -> u32 {
        match id {
            SampleId::Imm(v) => *v,
            SampleId::Field(f) => self.packet.key.get_sub(f) as u32,
        }
    }

    /// Samples some packets for a collector set. The choice differs by packet, so such walks are not cached. Without
    /// the collector set packets are only counted.
    pub(crate) fn sample(&mut self, s: &SampleAction) {
        if self.observer.dry() {
            return;
        }
        let seen = self.backer.samples;
        self.backer.samples += 1;
        let collected =
            self.backer.bridges.get(self.pipeline.bridge).is_some_and(|b| b.collectors.contains(&s.collector_set_id));
        if !collected {
            self.observer.counts(Counted::Sample, 0);
            return;
        }
        self.observer.side_effect();
        let chosen = s.probability == u16::MAX || mix(seen ^ 0x5a3c_96e1) & 0xffff < u64::from(s.probability);
        if !chosen || !self.commit() {
            return;
        }
        let data = self.packet.buf.data();
        let sample = Sample {
            collector_set: s.collector_set_id,
            domain: self.observation(&s.obs_domain_id),
            point: self.observation(&s.obs_point_id),
            in_port: PortNo(self.packet.key.get(F::InPort) as u16),
            sampling_port: s.sampling_port,
            egress: s.direction == SampleDirection::Egress,
            head: data.get(..HEAD).unwrap_or(data).to_vec(),
            headers: self.packet.headers,
            len: data.len(),
            outer: self.came_by(),
            weight: u32::from(u16::MAX / s.probability.max(1)),
        };
        self.out.events.push(Event::Sample { bridge: self.pipeline.bridge, sample: Box::new(sample) });
    }
}
