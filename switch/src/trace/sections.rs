//! What the walk of a cached flow is in Open vSwitch: a flow for each way to the next recirculation (`dpctl/dump-flows`).
//!
//! ```text
//!   arrival ──► ct ──recirc──► ct ──recirc──► output
//!      one section       one section     one section
//! ```
//! Here one flow has the whole way ([`crate::flowcache::ct_template`]). Its example makes the walk once more, as a trace, and
//! finds in connection tracking what it found before. A section ends where Open vSwitch's datapath goes on by another of its
//! flows: behind a `ct` with a table, where a packet leaves its tunnel, and where a group hashes.

use super::text::whole;
use super::{Start, TraceRequest, Tracer, run};
use crate::classifier::Wildcards;
use crate::dpctl::{flow, without_last_copy};
use crate::events::Outputs;
use crate::flowcache::dump::{Met, Shown};
use crate::flowcache::example::{Example, identity};
use crate::ids::{BridgeId, DeviceId};
use crate::xlate::{Backer, Xlate};
use openflow_rs::message::TlvMap;
use openflow_rs::{FieldId as F, FlowKey, PortNo, TableId, WORDS};
use std::sync::Arc;

/// By which port of the datapath the packets of a section came.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    bridge: BridgeId,
    number: u32,
    tunnel: bool,
}

/// Where a section begins: the bucket that was chosen by a hash before it, with the bits that tell buckets apart, and the
/// recirculation's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The `ct` of the example that it is behind.
    behind: Option<usize>,
    arrival: Arrival,
    hash: Option<(usize, usize)>,
    recirculation: u32,
}

/// A section that the walk is in.
struct Open {
    place: Place,
    /// The packet at its beginning.
    before: FlowKey,
    met: Vec<Met>,
}

/// What of a section is put aside while the walk is in one that a packet out of a tunnel began.
struct Around {
    open: Open,
    datapath: Vec<String>,
    wildcards: Wildcards,
}

/// What a tracer knows that makes the walk of a cached flow once more.
pub(super) struct Again {
    example: Arc<Example>,
    /// The places in the example's list that were taken.
    taken: Vec<usize>,
    open: Open,
    around: Vec<Around>,
    /// The options of the tunnel that it came by.
    tlv: Vec<TlvMap>,
    done: Vec<Section>,
    /// That nothing leaves but samples is told.
    sampled_drops: bool,
}

/// A section: what its packets look like, and what is done with them.
struct Section {
    bridge: BridgeId,
    packets: String,
    actions: String,
    met: Vec<Met>,
}

impl Again {
    pub(super) fn met(&mut self, m: Met) {
        self.open.met.push(m);
    }

    /// Whether the packet has a hash already.
    pub(super) fn hashed(&self) -> bool {
        self.open.place.hash.is_some()
    }

    /// The number of the recirculation behind a `ct`, and how the example went on there, if it came there.
    pub(super) fn goes_on(
        &mut self,
        at: (BridgeId, TableId),
        key: &FlowKey,
        backer: &mut Backer,
    ) -> (u32, Option<(Place, FlowKey)>) {
        let its = identity(0, at, key);
        let recirculation = backer.recirculation(its);
        let place = self.open.place;
        let (taken, example) = (&mut self.taken, &self.example);
        let mut all = example.behind.iter().enumerate();
        let found = all.find(|(i, b)| {
            b.within == place.behind && b.at == at && identity(0, b.at, &b.key) == its && !taken.contains(i)
        });
        let next = found.map(|(i, b)| {
            taken.push(i);
            (Place { behind: Some(i), recirculation, ..place }, b.key.clone())
        });
        (recirculation, next)
    }
}

impl Tracer {
    /// The packet goes on behind a recirculation in which the datapath hashes it.
    pub(super) fn hashes(
        &mut self,
        key: &FlowKey,
        at: (BridgeId, TableId),
        (bucket, of): (usize, usize),
        (hash, backer): (String, &mut Backer),
    ) {
        let Some(place) = self.again.as_ref().map(|a| a.open.place) else { return };
        let recirculation = backer.recirculation(identity(1, at, key));
        self.datapath.push(hash);
        self.datapath.push(format!("recirc({recirculation:#x})"));
        self.end(key);
        let hash = Some((bucket, of.next_power_of_two().max(16) - 1));
        self.begin(Place { hash, recirculation, ..place }, key.clone());
    }

    /// The packet has left its tunnel, and arrives at a port.
    pub(super) fn enters_tunnel(&mut self, key: &FlowKey, (bridge, no): (BridgeId, PortNo), backer: &Backer) {
        let number = backer.number_of_tunnel(bridge, no);
        self.datapath.push(format!("tnl_pop({number})"));
        let Some(a) = &mut self.again else { return };
        a.tlv = backer.bridges.get(bridge).map(|b| b.tlv.clone()).unwrap_or_default();
        let place =
            Place { arrival: Arrival { bridge, number, tunnel: true }, hash: None, recirculation: 0, ..a.open.place };
        let open = std::mem::replace(&mut a.open, Open { place, before: key.clone(), met: Vec::new() });
        let (datapath, wildcards) = (std::mem::take(&mut self.datapath), self.wildcards);
        a.around.push(Around { open, datapath, wildcards });
        self.wildcards = [0; WORDS];
        self.finds_tunnel(key);
    }

    /// All that becomes of the packet out of the tunnel is done.
    pub(super) fn leaves_tunnel(&mut self, key: &FlowKey) {
        self.end(key);
        if let Some(around) = self.again.as_mut().and_then(|a| a.around.pop()) {
            (self.datapath, self.wildcards) = (around.datapath, around.wildcards);
            if let Some(a) = &mut self.again {
                a.open = around.open;
            }
        }
    }

    /// A section begins with a packet that has this key.
    fn begin(&mut self, place: Place, before: FlowKey) {
        self.wildcards = [0; WORDS];
        self.queue = 0;
        if let Some(a) = &mut self.again {
            a.open = Open { place, before, met: Vec::new() };
        }
    }

    /// A section ends.
    fn end(&mut self, after: &FlowKey) {
        let done = without_last_copy(std::mem::take(&mut self.datapath));
        let Some(a) = &mut self.again else { return };
        let Open { place, before, met } = &mut a.open;
        let looked = super::text::examined(before, after, &self.wildcards);
        let packets = packets(place, before, &looked, &a.tlv);
        let actions = whole(done, a.sampled_drops);
        a.done.push(Section { bridge: place.arrival.bridge, packets, actions, met: std::mem::take(met) });
    }
}

/// The sections of the walk of an example that came in by a device, none if it comes in no more.
fn walk(backer: &mut Backer, device: DeviceId, example: &Arc<Example>) -> Option<Vec<Section>> {
    let (bridge, no) = backer.port_of_device(device)?;
    let mut out: Outputs<Vec<u8>> = Outputs::default();
    let arrival = Arrival { bridge, number: device.0, tunnel: false };
    let place = Place { behind: None, arrival, hash: None, recirculation: 0 };
    let mut tracer = Tracer::new(&TraceRequest::default());
    tracer.again = Some(Box::new(Again {
        example: example.clone(),
        taken: Vec::new(),
        open: Open { place, before: FlowKey::new(), met: Vec::new() },
        around: Vec::new(),
        tlv: Vec::new(),
        done: Vec::new(),
        sampled_drops: backer.sampled_drops,
    }));
    let mut x = Xlate::new(backer, &mut out, example.packet(), bridge, tracer);
    x.packet.key.set(F::InPort, no.0.into());
    let before = x.packet.key.clone();
    x.observer.begin(place, before);
    let mut start = Start::Received;
    loop {
        run(&mut x, start);
        let Xlate { packet, observer: mut tracer, .. } = x;
        tracer.end(&packet.key);
        tracer.take();
        let Some(r) = tracer.resume.pop_front() else { return tracer.again.map(|a| a.done) };
        let (queue, place) = (r.queue, r.again);
        (x, start) = r.walk(backer, &mut out, tracer);
        x.packet.queue = queue;
        if let Some(place) = place {
            let before = x.packet.key.clone();
            x.observer.begin(place, before);
        }
    }
}

/// A cached flow as Open vSwitch's datapath would have it: of a walk through connection tracking, or by the choice of a
/// group, a flow for each way to the next recirculation.
pub(crate) fn of(backer: &mut Backer, f: &Shown) -> Vec<Shown> {
    let all = f.example.as_ref().and_then(|e| walk(backer, f.device, e));
    let Some(all) = all.filter(|all| !all.is_empty()) else {
        // Of a way alone nothing else is known.
        return if f.packets.is_empty() { Vec::new() } else { vec![f.clone()] };
    };
    let shown = |s: Section| Shown {
        bridge: Some(s.bridge),
        packets: s.packets,
        drop: f.drop.filter(|_| s.actions.ends_with("drop")),
        actions: s.actions,
        pushes: Vec::new(),
        met: Some(s.met.into()),
        example: None,
        ..f.clone()
    };
    all.into_iter().map(shown).collect()
}

/// What the packets of a section look like, in the words of ovs-dpctl(8).
fn packets(place: &Place, k: &FlowKey, looked: &FlowKey, tlv: &[TlvMap]) -> String {
    let id = if place.recirculation == 0 { "0".into() } else { format!("{:#x}", place.recirculation) };
    let mut parts = vec![format!("recirc_id({id})")];
    if let Some((bucket, bits)) = place.hash {
        parts.push(format!("dp_hash({bucket:#x}/{bits:#x})"));
    }
    if place.arrival.tunnel {
        parts.push(flow::tunnel(k, looked, tlv));
    }
    parts.push(format!("in_port({})", place.arrival.number));
    parts.extend(flow::connection(k, looked));
    parts.push("packet_type(ns=0,id=0)".into());
    parts.push(flow::text(k, looked));
    parts.join(",")
}
