//! Cached flows in the words of ovs-dpctl(8), for `dpctl/dump-flows`.

use super::entry::{Entry, cut, encapsulated, icmp_id, op, retagged};
use super::example::Example;
use super::exec::addresses_hold;
use super::key::{Layout, places};
use super::megaflow::{Mask, Masks};
use super::{Cache, Count};
use crate::classifier::Rule;
use crate::dpctl::{Pushed, changes, flow};
use crate::drops::DropReason;
use crate::extract::tuple_fields;
use crate::ids::{BridgeId, DeviceId, Target};
use crate::xlate::quoted;
use crate::xlate::sample::Sampler;
use openflow_rs::{FieldId as F, FlowKey, GroupId, TableId, WORDS};
use packet::ipproto;
use std::collections::hash_map::Entry as Place;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The fields of a packet whose words begin at `first`, and the first word behind them.
fn fields(words: &[u64], first: usize, fragment: u64) -> Option<(FlowKey, usize)> {
    let mut k = FlowKey::new();
    let (places, end) = places(words, first)?;
    for p in places {
        let bits = (words.get(p.word)? & p.mask()) >> p.shift;
        if let Some(f) = p.field {
            k.set(f, k.get(f) | u128::from(bits) << p.from);
        }
    }
    let (head, source) = (words.get(first)?, words.get(first + 1)?);
    k.set(F::EthType, (source & 0xffff).into());
    k.set(F::IpFrag, fragment.into());
    if head & 0x1000 != 0 {
        let tags = words.get(first + 2)?;
        for (i, (tpid, tci)) in [(F::VlanTpid, F::VlanTci), (F::Vlan1Tpid, F::Vlan1Tci)].into_iter().enumerate() {
            let tag = if i == 0 { tags >> 32 } else { tags & 0xffff_ffff };
            k.set(tpid, (tag >> 16).into());
            k.set(tci, (tag & 0xffff).into());
        }
    }
    Some((k, end))
}

/// Applies bytes written at an offset of a header to fields.
fn write(k: &mut FlowKey, header: u8, offset: usize, bytes: &[u8]) {
    let v6 = k.get(F::EthType) == 0x86dd;
    let parts: &[(usize, usize, F)] = match (header, v6) {
        (0, _) => &[(0, 6, F::EthDst), (6, 6, F::EthSrc)],
        (1, false) if k.get(F::EthType) == 0x800 => {
            &[(1, 1, F::NwTos), (8, 1, F::IpTtl), (12, 4, F::IpSrc), (16, 4, F::IpDst)]
        }
        (1, false) => {
            &[(6, 2, F::ArpOp), (8, 6, F::ArpSha), (14, 4, F::ArpSpa), (18, 6, F::ArpTha), (24, 4, F::ArpTpa)]
        }
        (1, true) => &[(7, 1, F::IpTtl), (8, 16, F::Ipv6Src), (24, 16, F::Ipv6Dst)],
        _ if matches!(k.get(F::IpProto), 1 | 58) => &[(0, 1, F::IcmpType), (1, 1, F::IcmpCode)],
        _ => &[(0, 2, F::TcpSrc), (2, 2, F::TcpDst)],
    };
    for (at, n, f) in parts {
        let old = k.get(*f).to_be_bytes();
        let mut new = old;
        for i in 0..*n {
            let byte = (at + i).checked_sub(offset).and_then(|j| bytes.get(j));
            if let (Some(b), Some(slot)) = (byte, new.get_mut(16 - n + i)) {
                *slot = *b;
            }
        }
        k.set(*f, u128::from_be_bytes(new));
    }
}

/// Stands in a flow's text for what [`Shown::pushes`] has, in this order.
pub(crate) const PUSH: &str = "tnl_push()";

fn actions(e: &Entry, k: &FlowKey, inner: Option<&FlowKey>, layouts: [Layout; 2]) -> (String, Vec<Pushed>) {
    let (mut out, mut pushes) = (Vec::new(), Vec::new());
    let [outer, beneath] = layouts;
    let (mut now, mut layout, mut sampled) = (k.clone(), outer, false);
    let mut steps = e.steps();
    let (all, mut meters) = (steps.left(), e.meters().iter().peekable());
    let mut push = |words: &[u64], len: usize, csum: bool, target: Option<Target>| {
        let headers = words.iter().flat_map(|w| w.to_ne_bytes()).take(len).collect();
        pushes.push(Pushed { headers, csum, device: target.map(Target::device) });
        PUSH.to_string()
    };
    loop {
        while let Some(m) = meters.next_if(|m| m.words <= all - steps.left()) {
            out.push(format!("meter({})", m.number()));
        }
        let Some(head) = steps.head() else { break };
        match head & op::ALL {
            op::WRITE => {
                let Some(w) = steps.write(head) else { break };
                let before = now.clone();
                let bytes = w.words.iter().flat_map(|[k, c]| k.to_ne_bytes().into_iter().zip(c.to_ne_bytes()));
                for (i, (_, byte)) in bytes.enumerate().filter(|(_, (keep, _))| *keep == 0) {
                    let (at, l3, l4) = (w.at + i, usize::from(layout.l3), usize::from(layout.l4));
                    let (header, from) = match at {
                        at if at < l3 => (0, 0),
                        at if l4 == 0 || at < l4 => (1, l3),
                        _ => (2, l4),
                    };
                    write(&mut now, header, at - from, &[byte]);
                }
                changes(&before, &now, &mut out);
            }
            op::TAGS => {
                let Some(t) = steps.tags(head) else { break };
                layout = retagged(layout, t.list().len());
                let before = now.clone();
                let tci = t.list().first().map_or(0, |(_, tci)| *tci | 0x1000);
                now.set(F::VlanTci, tci.into());
                changes(&before, &now, &mut out);
            }
            op::SCTP_SUM => _ = steps.head(),
            op::QUOTE => {
                let Some(pair) = steps.quote(head) else { break };
                let before = now.clone();
                let [_, to] = &pair;
                let [src, dst, ..] = tuple_fields(to.v6);
                quoted::sender(&pair).into_iter().for_each(|hidden| now.set(src, hidden));
                now.set(dst, to.dst);
                changes(&before, &now, &mut out);
            }
            op::ICMP_ID => out.push(format!("set(icmp(id={}))", icmp_id(head).1)),
            op::SEND => {
                let target = Target::of_bits(head as u32);
                let queue = target.queue();
                if queue != 0 {
                    out.push(format!("set(skb_priority({queue:#x}))"));
                }
                out.push(target.device().to_string());
            }
            op::SESSION => out.push("userspace(pid=0,slow_path(bfd))".into()),
            op::ENCAP => {
                let Some(o) = steps.outer(head) else { break };
                if o.target.is_none() {
                    layout = encapsulated(o.v6, false);
                }
                out.push(push(o.words, o.len, o.csum, o.target));
            }
            op::ENCAP_GRE => {
                let Some(o) = steps.outer_gre(head) else { break };
                if o.target.is_none() {
                    layout = encapsulated(o.v6, true);
                }
                out.push(push(o.words, o.len, o.csum, o.target));
            }
            op::CUT => out.push(format!("trunc({})", cut(head).1)),
            op::SAMPLE => {
                out.extend(steps.sampler(head).map(Sampler::text));
                sampled = true;
            }
            op::DECAP => {
                out.push("tnl_pop".into());
                layout = beneath;
                if let Some(i) = inner {
                    now = i.clone();
                }
            }
            _ => {}
        }
    }
    // Where nothing leaves but samples the packet is dropped only if that counts as a drop.
    if out.is_empty() || sampled && matches!(e.drop, Some(DropReason::Action | DropReason::TableMiss)) {
        out.push("drop".into());
    }
    (out.join(","), pushes)
}

/// The fields of a frame.
fn of_frame(p: &[u8]) -> FlowKey {
    let mut k = FlowKey::new();
    crate::extract::extract(p, crate::extract::TAGS, &mut k);
    k
}

/// Place and generation of an xlate cache.
pub type Path = (u32, u32);

/// A cached flow as text.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The device that its packets come from.
    pub device: DeviceId,
    /// The bridge where they arrive; none: that of the device.
    pub bridge: Option<BridgeId>,
    /// What its packets look like.
    pub packets: String,
    /// What is done with them, but for the headers of tunnels ([`crate::Switch::tell_actions`]).
    pub actions: String,
    pub(crate) pushes: Vec<Pushed>,
    /// Why nothing leaves, if nothing does.
    pub drop: Option<DropReason>,
    /// Place and generation of the xlate cache that counts for it.
    pub(crate) path: Path,
    /// The same of others that do so as well.
    pub(crate) more_paths: Vec<Path>,
    /// When its connection last had a packet, if it has one.
    pub(crate) used: Option<Duration>,
    /// A packet of it, if it is of all packets that find the same in connection tracking.
    pub(crate) example: Option<Arc<Example>>,
    /// What its packets met in the tables; none: what its xlate cache says.
    pub(crate) met: Option<Arc<[Met]>>,
    /// All of its packets' headers count.
    pub(crate) exact: bool,
    /// An address is no more where the walk found it: the next packet walks.
    pub(crate) moved: bool,
}

/// What the packets of a cached flow met in the tables of OpenFlow, in this order.
#[derive(Clone, Debug)]
pub enum Met {
    /// A flow of OpenFlow.
    Rule(BridgeId, Arc<Rule>),
    /// No flow in this table.
    Miss(BridgeId, TableId),
    /// A group's bucket, by its place among them.
    Bucket(BridgeId, GroupId, usize),
}

impl Met {
    /// The bridge.
    pub fn bridge(&self) -> BridgeId {
        let (Met::Rule(b, _) | Met::Miss(b, _) | Met::Bucket(b, ..)) = self;
        *b
    }

    pub(crate) fn of(c: &Count) -> Option<Met> {
        match c {
            Count::Table { bridge, rule: Some(r), .. } => Some(Met::Rule(*bridge, r.clone())),
            Count::Learn { .. } => None,
            Count::Table { bridge, table, rule: None, .. } => Some(Met::Miss(*bridge, *table)),
            Count::Bucket { bridge, group, index, .. } => Some(Met::Bucket(*bridge, *group, *index)),
            Count::Port { .. } | Count::Bond { .. } | Count::Sample | Count::Netflow { .. } => None,
        }
    }
}

impl Shown {
    /// An entry of which nothing is told yet.
    fn bare(e: &Entry) -> Shown {
        Shown {
            device: super::key::device(e.key()),
            bridge: None,
            packets: String::new(),
            actions: String::new(),
            pushes: Vec::new(),
            drop: e.drop,
            path: (e.path, e.generation),
            more_paths: Vec::new(),
            used: None,
            example: None,
            met: None,
            exact: false,
            moved: false,
        }
    }

    /// A whole way, of which only the sections are to be told.
    pub(super) fn way(e: &Entry, example: Arc<Example>) -> Shown {
        Shown { example: Some(example), ..Shown::bare(e) }
    }

    /// It has its packets' whole way, which Open vSwitch's datapath would have in parts ([`crate::Switch::sections`]).
    pub fn is_whole_way(&self) -> bool {
        self.example.is_some()
    }

    /// All of its packets' headers count: flows that are alike may be told of in its place.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// What counts its packets; flows that took the same way through the tables share it.
    pub fn counted_by(&self) -> Path {
        self.path
    }

    /// Names the flow: a number that follows from what its packets look like, the same in all PMD threads and after a
    /// restart.
    pub fn ufid(&self) -> u128 {
        let half = |seed: u64| {
            let words = self.packets.as_bytes().chunks(8).map(|c| {
                let mut word = [0; 8];
                word.iter_mut().zip(c).for_each(|(w, b)| *w = *b);
                u64::from_le_bytes(word)
            });
            crate::classifier::hash(std::iter::once(seed).chain(words))
        };
        u128::from(half(1)) << 64 | u128::from(half(2))
    }

    fn does_as(&self, other: &Shown) -> bool {
        let headers = |f: &Shown| f.pushes.iter().map(|p| (p.headers.clone(), p.device)).collect::<Vec<_>>();
        self.actions == other.actions && headers(self) == headers(other)
    }
}

/// Flows that are told of in one go, and sets that are looked at: packets wait meanwhile.
const LINES: usize = 64;
const SETS: usize = 2048;

/// A part of a dump.
#[derive(Debug, Default)]
pub struct DumpPart {
    /// The flows.
    pub flows: Vec<Shown>,
    /// What counts those that were left out ([`Shown::counted_by`]).
    pub alike: HashSet<Path>,
    /// Where the next part begins; none: this is the last one.
    pub next: Option<usize>,
}

/// Flows as they are listed: of those that are alike in what their packets look like and what is done with them, as the first
/// sections of several ways are, and megaflows of protocols that do not matter, one, which counts for all.
pub fn merge_flows(flows: Vec<Shown>) -> Vec<Shown> {
    let mut places: HashMap<(String, String), usize> = HashMap::new();
    let mut out: Vec<Shown> = Vec::with_capacity(flows.len());
    for f in flows {
        match places.entry((f.packets.clone(), f.actions.clone())) {
            Place::Occupied(at) if f.met.is_some() || !f.exact => {
                let Some(first) = out.get_mut(*at.get()) else { continue };
                let counted = first.path == f.path || first.more_paths.contains(&f.path);
                first.more_paths.extend((!counted).then_some(f.path));
                first.used = first.used.max(f.used);
            }
            Place::Occupied(_) => out.push(f),
            Place::Vacant(v) => {
                v.insert(out.len());
                out.push(f);
            }
        }
    }
    out
}

/// A flow that was put into the cache, for the log.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The flow.
    pub flow: Shown,
    /// The one that it takes the place of, if that did something else.
    pub old: Option<Shown>,
}

/// A flow as text; its mask is this one, or the one that its key names, or none.
pub(super) fn line(e: &Entry, mask: Option<&Mask>, masks: &Masks) -> Option<Shown> {
    // A half of what becomes of a fragment is no flow.
    if e.held().is_some() || super::key::is_leg(e.key()) {
        return None;
    }
    let all = [FlowKey([u64::MAX; WORDS]), FlowKey([u64::MAX; WORDS])];
    let mask = mask.or_else(|| masks.of_entry(e.key()));
    let (looked, exact) = (mask.map_or(&all, |m| &*m.fields), mask.is_none());
    if let Some((device, p, shape)) = super::key::frame(e.key()) {
        let k = of_frame(&p);
        let inner = p.get(shape.inner_at..).filter(|_| shape.inner_at != 0).map(of_frame);
        let proto = shape.outer.proto;
        let body = if proto == ipproto::GRE { shape.outer.l3 + 20 } else { shape.outer.l4 + 8 };
        let first = p.get(body.into()..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b));
        let inner = inner.map(|i| (tunnel_key(proto, first), i));
        return Some(whole(e, device, &k, inner, (looked, exact), [shape.outer, shape.inner]));
    }
    let words = super::key::used(e.key());
    let (head, form) = (words.first()?, words.get(1)?);
    let (k, n) = fields(words, 2, super::key::fragment(words))?;
    let mut layouts = [Layout::offsets(*form), Layout::default()];
    let mut inner = None;
    if let Some((mark, rest)) = words.get(n..).and_then(<[u64]>::split_first) {
        let vni = tunnel_key(k.get(F::IpProto) as u8, rest.first().copied().unwrap_or(0));
        let (i, _) = fields(words, super::key::within(words, n)?, mark >> 32 & 3)?;
        layouts[1] = Layout::offsets(mark >> 8);
        inner = Some((vni, i));
    }
    Some(whole(e, DeviceId(*head as u32), &k, inner, (looked, exact), layouts))
}

/// The key in a tunnel's header that begins with these bytes.
fn tunnel_key(proto: u8, first: u64) -> u64 {
    match proto {
        // If the flag of a key is set, it stands behind flags and protocol (RFC 2890 section 2).
        ipproto::GRE if first >> 61 & 1 != 0 => first & 0xffff_ffff,
        ipproto::GRE => 0,
        _ => first >> 8 & 0xff_ffff,
    }
}

/// `inner`: the key and the inner frame of a tunnel's packet.
fn whole(
    e: &Entry,
    device: DeviceId,
    k: &FlowKey,
    inner: Option<(u64, FlowKey)>,
    (looked, exact): (&[FlowKey; 2], bool),
    layouts: [Layout; 2],
) -> Shown {
    let [outer, within] = looked;
    let mut packets = format!("recirc_id(0),in_port({device}),packet_type(ns=0,id=0),{}", flow::text(k, outer));
    if let Some((vni, i)) = &inner {
        packets += &format!(",tunnel(vni={vni:#x}),inner({})", flow::text(i, within));
    }
    let (actions, pushes) = actions(e, k, inner.as_ref().map(|(_, i)| i), layouts);
    Shown { packets, actions, pushes, exact, ..Shown::bare(e) }
}

impl Cache {
    /// Notes a flow that is about to be put into the cache, if such are noted.
    #[inline]
    pub(crate) fn note(&mut self, hash: u64, entry: &Entry, mask: Option<&Mask>) {
        if self.installed.is_some() {
            self.note_entry(hash, entry, mask);
        }
    }

    #[cold]
    fn note_entry(&mut self, hash: u64, entry: &Entry, mask: Option<&Mask>) {
        let masks = &self.table.masks;
        let Some(flow) = line(entry, mask, masks) else { return };
        let old = self.table.with_key(hash, entry.key()).and_then(|e| line(e, mask, masks));
        let old = old.filter(|o| !o.does_as(&flow));
        self.installed.get_or_insert_default().push(Installed { flow, old });
    }

    /// The flows in the cache that are not stale, a line each, in no order.
    pub(crate) fn lines(&self, now: Duration) -> impl Iterator<Item = Shown> {
        self.table.used().filter_map(move |e| self.line(e, now))
    }

    fn line(&self, e: &Entry, now: Duration) -> Option<Shown> {
        let connections = e.checks().filter_map(|c| self.views.last_packet(c));
        let moved = !addresses_hold(e, &self.views, now.as_nanos() as u64);
        Some(Shown { used: connections.max(), moved, ..line(e, None, &self.table.masks)? })
    }

    /// The same from a set of the table on, until there is enough for one go. Exact flows that `known` flows count with
    /// are left out: these are of packets that are alike.
    pub(crate) fn dump(&self, from: usize, known: &HashSet<Path>, now: Duration) -> DumpPart {
        let mut part = DumpPart::default();
        for set in from.. {
            let Some(used) = self.table.used_in_set(set) else { return part };
            if part.flows.len() >= LINES || set >= from + SETS {
                part.next = Some(set);
                return part;
            }
            for e in used {
                let path = (e.path, e.generation);
                if known.contains(&path) && self.table.masks.of_entry(e.key()).is_none() {
                    part.alike.insert(path);
                } else {
                    part.flows.extend(self.line(e, now));
                }
            }
        }
        part
    }

    /// How many flows are in the cache, and how many there is room for.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.table.used().count(), self.table.room())
    }
}
