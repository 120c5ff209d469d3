//! Samples: packets that `sample` actions choose, for collectors (ovs-actions(7), `sample`).

use crate::buf::PacketBuf;
use crate::switch::Event;
use crate::xlate::{Xlate, mix};
use openflow_rs::action::{SampleAction, SampleDirection, SampleId};
use openflow_rs::{FieldId as F, PortNo};
use packet::Headers;

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
}

impl<P: PacketBuf> Xlate<'_, P> {
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
        };
        self.out.events.push(Event::Sample { bridge: self.bridge, sample: Box::new(sample) });
    }
}
