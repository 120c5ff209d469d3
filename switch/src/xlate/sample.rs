//! `sample` (ovs-actions(7)), and what exporters see of packets.

use crate::bridge::PortKind;
use crate::buf::PacketBuf;
use crate::classifier::mix;
use crate::events::{Departure, Event, Glimpse, Passage, Sample};
use crate::ids::{BridgeId, DeviceId};
use crate::netflow::{NetflowCount, NetflowFlow};
use crate::tunnel::{Outer, TunnelConfig};
use crate::xlate::{Counted, Observer, Xlate};
use openflow_rs::action::{SampleAction, SampleDirection, SampleId};
use openflow_rs::{FieldId as F, PortNo};
use packet::Headers;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a packet that a sample keeps: enough for all headers that records report.
const HEAD: usize = 192;

/// Numbers by which packets are chosen. All threads and flows draw from one sequence, so that those with few packets have their
/// share of samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draws(Arc<AtomicU64>);

impl Draws {
    fn draw(&self) -> u16 {
        mix(self.0.fetch_add(1, Relaxed) ^ 0x5a3c_96e1) as u16
    }
}

/// Which packets of a flow are sampled, and what is known of their samples before there are any.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    bridge: BridgeId,
    probability: u16,
    draws: Draws,
    tags: usize,
    /// What it says of the packet's direction, and the device of the port that it names.
    direction: SampleDirection,
    device: DeviceId,
    like: Sample,
}

impl Sampler {
    /// The sample of a packet, which came by a tunnel with this source port, if it is chosen.
    pub(crate) fn of(&self, packet: &[u8], port: u16) -> Option<Event> {
        if self.probability != u16::MAX && self.draws.draw() >= self.probability {
            return None;
        }
        let Sampler { bridge, tags, like, .. } = self;
        let sample = Sample {
            head: packet.get(..HEAD).unwrap_or(packet).to_vec(),
            headers: Headers::parse_tags(packet, *tags)?,
            len: packet.len(),
            outer: like.outer.map(|o| Outer { ports: [port, o.ports[1]], ..o }),
            ..like.clone()
        };
        Some(Event::Sample { bridge: *bridge, sample: Box::new(sample) })
    }

    /// Samples tell of the tunnel that packets came by.
    pub(crate) fn tells_of_tunnel(&self) -> bool {
        self.like.outer.is_some()
    }

    /// The datapath's action.
    pub(crate) fn text(&self) -> String {
        let Sampler { probability, device, like: Sample { collector_set, domain, point, .. }, .. } = self;
        let direction = match self.direction {
            SampleDirection::Ingress => ",ingress",
            SampleDirection::Egress => ",egress",
            _ => "",
        };
        let told = format!(
            "userspace(pid=0,flow_sample(probability={probability},collector_set_id={collector_set},obs_domain_id={domain},obs_point_id={point},output_port={device}{direction}))"
        );
        match *probability {
            u16::MAX => told,
            p => format!("sample(sample={:.1}%,actions({told}))", f64::from(p) * 100.0 / 65535.0),
        }
    }
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Receives a packet from outside the switch, or out of a tunnel.
    pub(crate) fn arrive_outside(&mut self) {
        let b = self.backer.bridges.get(self.pipeline.bridge);
        let (exported, netflow) = b.map_or((false, false), |b| (b.observed, b.netflow));
        let observed = exported && self.backer.observing;
        if exported {
            self.is_sampled();
        }
        if !observed && !netflow {
            return self.arrive();
        }
        let in_port = PortNo(self.packet.key.get(F::InPort) as u16);
        let (bridge, data) = (self.pipeline.bridge, self.packet.buf.data());
        let (len, packet) = (data.len(), Glimpse::of(data));
        let flow = NetflowFlow::of(bridge, in_port, data, &self.packet.headers).filter(|_| netflow).map(Arc::new);
        if let Some(f) = &flow {
            self.observer.netflow(f, len);
        }
        let passage = Passage { in_port, packet, outer: self.came_by(), flooded: false, outputs: Vec::new() };
        let alone = self.backer.passing.is_none();
        self.backer.passing.get_or_insert_default().push(passage);
        let before = std::mem::take(&mut self.pipeline.put_by);
        self.arrive();
        let put_by = std::mem::replace(&mut self.pipeline.put_by, before);
        let passage = self.backer.passing.as_mut().and_then(Vec::pop);
        if alone {
            self.backer.passing = None;
        }
        let Some(passage) = passage else { return };
        if let Some(flow) = flow {
            // What a datagram's fragments do once they are all there is not the last one's alone.
            if !put_by {
                flow.left(&passage);
            }
            if !self.is_uncounted() {
                self.backer.netflow.push(NetflowCount { flow, packets: 1, bytes: len as u64 });
            }
        }
        if observed {
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

    /// Samples some packets for a collector set. Without the collector set packets are only counted.
    pub(crate) fn sample(&mut self, s: &SampleAction) {
        if self.observer.dry() {
            return;
        }
        self.backer.samples += 1;
        self.observer.counts(Counted::Sample, 0);
        let b = self.backer.bridges.get(self.pipeline.bridge);
        if !b.is_some_and(|b| b.collectors.contains(&s.collector_set_id)) || !self.commit() {
            return;
        }
        let sampler = self.sampler(s);
        let port = sampler.like.outer.map_or(0, |o| o.ports[0]);
        self.observer.samples(&self.packet.base, &sampler);
        let sample = sampler.of(self.packet.buf.data(), port);
        self.pipeline.samples += usize::from(sample.is_some());
        self.is_sampled();
        self.out.events.extend(sample);
    }

    /// What the action does to packets like this one.
    pub(crate) fn sampler(&self, s: &SampleAction) -> Sampler {
        let b = self.backer.bridges.get(self.pipeline.bridge);
        let named = b.and_then(|b| b.ports.get(&s.sampling_port)).filter(|_| s.sampling_port != PortNo::ANY);
        let device = named.and_then(|p| match p.kind {
            PortKind::Device(d) | PortKind::Internal(d) => Some(d),
            _ => None,
        });
        let like = Sample {
            collector_set: s.collector_set_id,
            domain: self.observation(&s.obs_domain_id),
            point: self.observation(&s.obs_point_id),
            in_port: PortNo(self.packet.key.get(F::InPort) as u16),
            sampling_port: s.sampling_port,
            egress: s.direction == SampleDirection::Egress,
            head: Vec::new(),
            headers: Headers::default(),
            len: 0,
            outer: self.came_by(),
            weight: u32::from(u16::MAX / s.probability.max(1)),
        };
        let (probability, draws, tags) = (s.probability, self.backer.draws.clone(), self.backer.underlay.tags());
        let (direction, device) = (s.direction, device.unwrap_or(DeviceId::NONE));
        Sampler { bridge: self.pipeline.bridge, probability, draws, tags, direction, device, like }
    }
}
