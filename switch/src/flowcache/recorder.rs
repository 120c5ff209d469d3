//! The recorder: notes what a walk did ([`tracked`] has what it found in connection tracking), which is compiled into an
//! entry of the flow cache ([`compile`]).

mod compile;
mod tracked;

pub(super) use compile::Learned;

use super::ct_template::Choice;
use super::depend::Looks;
use super::example::Example;
use super::megaflow::{DependencyMask, Layer, TupleBits};
use super::metered::{Marks, Metered};
use super::observer::CacheObserver;
use super::patches::patches;
use super::{Condition, Count, Encap, Step};
use crate::bridge::meter::SharedMeter;
use crate::buf::PacketBuf;
use crate::classifier::{Classifier, Rule};
use crate::conntrack::reassembly::Suspended;
use crate::conntrack::{Expected, Tuple};
use crate::dependency::Dependency;
use crate::drops::DropReason;
use crate::extract::PACKET_WORDS;
use crate::extract::tuple_fields;
use crate::ids::{BridgeId, Target};
use crate::netflow::{self, NetflowFlow};
use crate::tunnel::Shim;
use crate::xlate::controller::SoFar;
use crate::xlate::sample::Sampler;
use crate::xlate::segment::Segment;
use crate::xlate::{Counted, Observer, Xlate};
use openflow_rs::{FieldId as F, FlowKey, PortNo, TableId};
use packet::{ethertype, ipproto};
use std::sync::Arc;

/// A recorded walk, and the reason if the packet was dropped.
pub(crate) type Record = (Box<Recorder>, Option<DropReason>);

/// A packet that was cut, whose length is what is added to that of none ([`Recorder::length`]).
const CUT: u8 = 2;

/// The record of one walk.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// The walk can be repeated.
    pub(crate) ok: bool,
    /// The walk read TCP flags that connection tracking does not use.
    pub(crate) flags_read: bool,
    /// The key covers the packet's tunnel header.
    tunnel: bool,
    /// The fields of the packet after the steps so far.
    has: FlowKey,
    icmp_id: Option<u16>,
    origin: [usize; 2],
    which: u8,
    /// `which` of the next packet.
    entering: Option<u8>,
    /// Packets around the current one, which was made of them.
    around: Vec<Around>,
    sends: usize,
    steps: Vec<Step>,
    conditions: Vec<Condition>,
    counts: Vec<Count>,
    looks: Looks,
    needs: Vec<Dependency>,
    segments: Vec<Carried>,
    /// The bits of the packet that decided.
    pub(crate) looked: DependencyMask,
    /// The current addresses and ports of the packet.
    tuple: TupleBits,
    /// What the packet found in each zone, in terms that other packets can match.
    passes: Vec<Expected>,
    /// What `select` groups chose by its tuple.
    choices: Vec<Choice>,
    /// Its tuples before and after each translation.
    pub(crate) translated: Vec<[Tuple; 2]>,
    /// What it says after each.
    said: Vec<TupleBits>,
    /// It is an ICMP error, whose tuples are those of the packet that it quotes.
    quotes: bool,
    /// Packets with the same key do the same.
    pub(crate) exact: bool,
    /// It is counted as one of NetFlow's flows.
    netflow: bool,
    /// What had come out of the walk when the record began.
    pub(super) begun: SoFar,
    /// The meters that it passed.
    meters: Marks,
    /// The packet is a fragment that waits.
    pub(crate) held: Option<HeldRecord>,
    /// The packet, if others may take the same way through connection tracking.
    pub(super) example: Example,
}

/// What a record says of a fragment that waits.
#[derive(Debug)]
pub(crate) struct HeldRecord {
    rest: Arc<Suspended>,
    /// Why it is dropped if nothing of it is sent.
    pub(crate) why: Option<DropReason>,
    /// How much had been noted by then: nothing may come behind it.
    noted: [usize; 5],
}

/// A segment that the packet was carried through. Its lookups are listed only when the record is kept.
#[derive(Debug)]
struct Carried {
    /// The number of counters before it.
    at: usize,
    segment: Arc<Segment>,
    /// The key that it began with.
    key: FlowKey,
    length: (u8, i32),
}

/// What a record knows of a packet while the walk is at another one that was made of it.
#[derive(Debug)]
struct Around {
    has: FlowKey,
    icmp_id: Option<u16>,
    which: u8,
    layer: Layer,
    tuple: TupleBits,
}

/// Addresses and ports of a packet.
fn tuple(k: &FlowKey) -> TupleBits {
    TupleBits(tuple_fields(k.get(F::EthType) as u16 == ethertype::IPV6).map(|f| k.get(f)))
}

/// Fields that rewrites of IPv4 packets may change.
const REWRITTEN: [F; 8] = [F::EthDst, F::EthSrc, F::IpSrc, F::IpDst, F::NwTos, F::IpTtl, F::TcpSrc, F::TcpDst];

/// The same for packets with keys of fields. If one field of a list changes, all are written: they share bytes.
const REWRITTEN_TOGETHER: [&[F]; 12] = [
    &[F::Ipv6Src],
    &[F::Ipv6Dst],
    &[F::NwTos, F::Ipv6Label],
    &[F::IcmpType, F::IcmpCode],
    &[F::ArpOp],
    &[F::ArpSha],
    &[F::ArpSpa],
    &[F::ArpTha],
    &[F::ArpTpa],
    &[F::MplsLse],
    &[F::MplsLse1],
    &[F::MplsLse2],
];

impl Recorder {
    /// A record of a walk of this packet. `spare` is an old one whose storage is reused; `wide`: collect the bits that
    /// decide.
    pub(crate) fn new(
        base: &FlowKey,
        len: usize,
        (tunnel, wide): (bool, bool),
        spare: Option<Box<Recorder>>,
    ) -> Box<Recorder> {
        let mut r = spare.unwrap_or_default();
        r.looked.begin(wide);
        (r.ok, r.flags_read, r.tunnel) = (true, false, tunnel);
        r.has.clone_from(base);
        (r.icmp_id, r.entering) = (None, None);
        (r.origin, r.which, r.sends) = ([len, 0], 0, 0);
        (r.tuple, r.exact, r.quotes, r.netflow) = (tuple(base), true, false, false);
        r.clear();
        r
    }

    /// Drops its contents and keeps the storage.
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.conditions.clear();
        self.counts.clear();
        self.looks.clear();
        self.needs.clear();
        self.segments.clear();
        self.passes.clear();
        self.choices.clear();
        self.translated.clear();
        self.said.clear();
        self.around.clear();
        self.example.clear();
        self.meters.clear();
        self.held = None;
    }

    /// The packet, of so many bytes, passes a meter.
    pub(super) fn meter(&mut self, meter: SharedMeter, len: usize) {
        let metered = Metered::new(meter, self.length(len));
        self.steps.push(Step::Meter(Box::new(metered)));
        self.ok &= self.held.is_none();
        let [conditions, passes] = [self.conditions.len(), self.passes.len()];
        self.meters.passed(conditions, passes, (self.counts.len(), self.segments.len()));
    }

    pub(super) fn scope_begins(&mut self) {
        self.meters.scope_begins();
    }

    pub(super) fn scope_ends(&mut self) {
        let noted = if self.is_metered() { self.noted() } else { Default::default() };
        self.meters.scope_ends(noted);
    }

    /// Whether it passed meters.
    pub(super) fn is_metered(&self) -> bool {
        !self.meters.list.is_empty()
    }

    /// The fragment waits from here on.
    pub(super) fn hold(&mut self, base: &FlowKey, rest: Arc<Suspended>, why: Option<DropReason>) {
        self.ok &= self.held.is_none() && self.sends == 0 && self.which != CUT;
        self.sync(base);
        self.steps.push(Step::Hold);
        self.looked.only = false;
        self.held = Some(HeldRecord { rest, why, noted: self.noted() });
    }

    /// How many steps there are but for those that go back to another packet, and what else is noted.
    fn noted(&self) -> [usize; 5] {
        let steps = self.steps.iter().filter(|s| !matches!(s, Step::Pop)).count();
        [steps, self.conditions.len(), self.counts.len(), self.segments.len(), self.needs.len()]
    }

    /// How many packets are sent.
    pub(super) fn sends(&self) -> usize {
        self.sends
    }

    /// Whether all of what follows is that the fragment waits.
    pub(super) fn ends_held(&self) -> bool {
        self.held.as_ref().is_some_and(|h| h.noted == self.noted())
    }

    /// The current length, as a difference to the length on arrival.
    pub(super) fn length(&self, now: usize) -> (u8, i32) {
        let origin = self.origin.get(usize::from(self.which)).copied().unwrap_or(0);
        (self.which, now as i32 - origin as i32)
    }

    /// A lookup in a table found a rule, or none.
    pub(crate) fn table(
        &mut self,
        bridge: BridgeId,
        (number, table): (TableId, &Classifier),
        key: &FlowKey,
        rule: Option<&Arc<Rule>>,
        len: usize,
    ) {
        let length = self.length(len);
        self.looks.add(table, key, self.looked.layer);
        self.counts.push(Count::Table { bridge, table: number, rule: rule.cloned(), length });
    }

    /// A flow that is there is learned once more: the walk depends on it, and each packet renews it.
    pub(super) fn learns(&mut self, bridge: BridgeId, rule: &Arc<Rule>) {
        self.looks.learned(rule);
        self.counts.push(Count::Learn { bridge, rule: rule.clone() });
    }

    /// A segment begins with this key.
    pub(crate) fn segment(&mut self, segment: &Arc<Segment>, key: &FlowKey, len: usize) {
        let (at, length) = (self.counts.len(), self.length(len));
        self.segments.push(Carried { at, segment: segment.clone(), key: key.clone(), length });
    }

    /// The walk depends on something beside tables.
    pub(crate) fn need(&mut self, n: Dependency) {
        if !self.needs.contains(&n) {
            self.needs.push(n);
        }
    }

    /// Every packet of the flow moves this counter.
    pub(super) fn count(&mut self, c: Count) {
        self.counts.push(c);
    }

    /// The frame's length was compared with `limit`; `len` is what it was.
    pub(crate) fn compared(&mut self, len: usize, limit: usize) {
        let (which, difference) = self.length(len);
        let limit = (limit as i64 - i64::from(difference)).max(0) as usize;
        let (min, max) =
            if len > (limit as i64 + i64::from(difference)) as usize { (limit + 1, usize::MAX) } else { (0, limit) };
        self.limited(which, min, max);
    }

    /// The length is between these. That of a packet that was cut always is.
    fn limited(&mut self, which: u8, min: usize, max: usize) {
        if which != CUT {
            self.conditions.push(Condition::Length { which, min, max });
        }
    }

    pub(crate) fn condition(&mut self, c: Condition) {
        self.conditions.push(c);
    }

    pub(crate) fn read(&mut self, f: F) {
        self.flags_read |= f == F::TcpFlags;
    }

    /// The packet, of so many bytes, is one of this flow of NetFlow's, of which each has a flow of its own here.
    pub(super) fn netflow(&mut self, flow: &Arc<NetflowFlow>, len: usize) {
        let tcp = flow.key.proto == ipproto::TCP;
        netflow::fields(flow.key.proto).chain(tcp.then_some(F::TcpFlags)).for_each(|f| self.looked.field(f));
        self.flags_read |= tcp;
        self.netflow = true;
        let length = self.length(len);
        self.counts.push(Count::Netflow { flow: flow.clone(), length });
    }

    /// Some packets like this one, which says `base`, are sampled.
    pub(super) fn samples(&mut self, base: &FlowKey, s: &Sampler) {
        self.sync(base);
        // A fragment that goes on has left its tunnel before.
        self.ok &= !s.tells_of_tunnel() || self.steps.iter().any(|s| matches!(s, Step::Decap { .. }));
        self.steps.push(Step::Sample(Box::new(s.clone())));
    }

    pub(crate) fn icmp_id(&mut self, id: u16) {
        if self.icmp_id != Some(id) {
            self.icmp_id = Some(id);
            self.steps.push(Step::IcmpId(id));
        }
    }

    /// The packet is sent or read now and says `base`: adds the steps that make it so.
    fn sync(&mut self, base: &FlowKey) {
        if self.has.0[PACKET_WORDS] == base.0[PACKET_WORDS] {
            return;
        }
        let differs = |f: F| self.has.get(f) != base.get(f);
        if [F::VlanTci, F::VlanTpid, F::Vlan1Tci, F::Vlan1Tpid].into_iter().any(differs) {
            self.steps.push(Step::Vlans(crate::extract::tags(base).collect()));
        }
        // A write may cover a part of a field; then the rest of it decides.
        for f in REWRITTEN {
            if differs(f) {
                self.looked.field(f);
            }
        }
        if base.get(F::EthType) != u128::from(ethertype::IPV4) || base.get(F::IpProto) == u128::from(ipproto::ICMP) {
            let written = REWRITTEN_TOGETHER.into_iter().filter(|list| list.iter().any(|f| differs(*f)));
            written.flatten().for_each(|f| self.looked.field(*f));
        }
        match patches(&self.has, base) {
            Some(v) if v.is_empty() => {}
            Some(v) => self.steps.push(Step::Rewrite(v.into())),
            None => self.ok = false,
        }
        self.has = base.clone();
    }

    pub(crate) fn send(&mut self, base: &FlowKey, target: Target) {
        self.sync(base);
        self.sends += 1;
        self.steps.push(Step::Send { target, last: false });
    }

    pub(crate) fn session(&mut self, base: &FlowKey, bridge: BridgeId, port: PortNo) {
        self.sync(base);
        self.sends += 1;
        match u16::try_from(bridge.index()) {
            Ok(bridge) => self.steps.push(Step::Session { bridge, port, last: false }),
            Err(_) => self.ok = false,
        }
    }

    pub(crate) fn encap(&mut self, base: &FlowKey, encap: Encap, len: usize) {
        self.sync(base);
        // The source port is that of a whole packet's flow.
        let whole = self.which != CUT || matches!(encap.shim, Shim::Gre { .. });
        self.looked.only &= self.looked.layer != Layer::Made && whole;
        self.sends += usize::from(encap.target.is_some());
        // Longer packets do not fit into the tunnel: they walk.
        let (which, difference) = self.length(len);
        let max = (65_000 - encap.headers.len() as i64 - i64::from(difference)).max(0) as usize;
        self.limited(which, 0, max);
        self.steps.push(Step::Encap { encap: Box::new(encap), last: false });
    }

    /// A packet for a local address has the UDP port of a tunnel, or is of GRE: the tunnel header is read, so the key must cover it.
    pub(crate) fn tunnelled(&mut self) {
        self.ok &= self.tunnel && self.around.is_empty();
    }

    /// The packet leaves its tunnel.
    pub(crate) fn decap(&mut self, base: &FlowKey, offset: usize, len: usize) {
        self.sync(base);
        // Keys say how long what is inside is in a whole packet.
        self.ok &= self.which != CUT;
        (self.entering, self.origin[1]) = (Some(1), len);
        self.steps.push(Step::Decap { offset, last: false });
    }

    /// Begins with another packet, until [`Recorder::leave`].
    pub(super) fn enter(&mut self, base: &FlowKey) {
        let layer = if self.entering.is_some() { Layer::Inner } else { Layer::Made };
        let which = self.entering.take().unwrap_or(self.which);
        self.around.push(Around {
            has: std::mem::replace(&mut self.has, base.clone()),
            icmp_id: self.icmp_id.take(),
            which: std::mem::replace(&mut self.which, which),
            layer: std::mem::replace(&mut self.looked.layer, layer),
            tuple: std::mem::replace(&mut self.tuple, tuple(base)),
        });
    }

    /// Begins with the first bytes of the packet, until [`Recorder::leave`].
    pub(super) fn cut(&mut self, base: &FlowKey, (len, told): (usize, usize)) {
        self.sync(base);
        self.around.push(Around {
            has: self.has.clone(),
            icmp_id: self.icmp_id,
            which: std::mem::replace(&mut self.which, CUT),
            layer: self.looked.layer,
            tuple: self.tuple,
        });
        match u16::try_from(len) {
            Ok(len) => self.steps.push(Step::Cut { len, told: told.try_into().unwrap_or(u32::MAX), last: false }),
            Err(_) => self.ok = false,
        }
    }

    /// Whether the walk is at the first bytes of the packet.
    pub(super) fn is_cut(&self) -> bool {
        self.which == CUT
    }

    /// Goes back to the packet before.
    pub(super) fn leave(&mut self) {
        let Some(a) = self.around.pop() else { return };
        (self.has, self.icmp_id, self.which) = (a.has, a.icmp_id, a.which);
        (self.looked.layer, self.tuple) = (a.layer, a.tuple);
        self.steps.push(Step::Pop);
    }
}

impl<P: PacketBuf> Xlate<'_, P, CacheObserver<'_>> {
    /// Begins to record; `tunnel`: the key, which is of this kind, covers the packet's tunnel header.
    pub(crate) fn record(&mut self, (tunnel, kind): (bool, Option<usize>), port: Option<(BridgeId, PortNo)>) {
        let n = self.packet.buf.data().len();
        let spare = self.observer.flowcache.spare.take();
        let wide = self.observer.flowcache.megaflow_predictor.ask(kind);
        let mut r = Recorder::new(&self.packet.base, n, (tunnel, wide), spare);
        r.begun = self.so_far();
        if wide {
            r.example.begin(self.packet.buf.data());
        }
        self.observer.recorder = Some(r);
        if let Some((bridge, no)) = port {
            self.observer.counts(Counted::Port { bridge, no, sent: false }, n);
        }
    }

    /// Ends the record. `None` if the walk cannot be repeated.
    pub(crate) fn recorded(&mut self) -> Option<Record> {
        let mut rec = self.observer.recorder.take()?;
        let flags = F::TcpFlags.def();
        let looked = self.observer.tcp_flags >> flags.shift & 0xfff;
        rec.flags_read |= looked & !0x17 != 0;
        let sent = self.out.packets.len().saturating_sub(self.pipeline.before.0)
            + self.out.bfd.len().saturating_sub(self.pipeline.before.2)
            + usize::from(self.packet.target.is_some());
        rec.ok &= self.pipeline.frozen.is_none() && rec.meters.end_all(rec.noted());
        if let Some(h) = &rec.held {
            let why = h.why;
            if !rec.ok || self.pipeline.failed || why == Some(DropReason::NoBuffer) || !rec.ends_held() {
                self.observer.flowcache.put_back(rec);
                return None;
            }
            self.put_lookups(&mut rec);
            return Some((rec, why));
        }
        rec.ok &= self.pipeline.drop != Some(DropReason::NoBuffer);
        if self.pipeline.failed {
            // Nothing leaves. Lookups of a segment that was left early are not known.
            rec.ok &= rec.segments.is_empty() && !rec.steps.iter().any(|s| matches!(s, Step::Sample(_)));
            rec.steps.clear();
        } else {
            rec.ok &= self.out.events.len() == self.pipeline.before.1 + self.pipeline.samples
                && sent == rec.sends
                && sent == self.pipeline.sent as usize;
        }
        let drop =
            (self.pipeline.sent == 0 || self.pipeline.failed).then(|| self.pipeline.drop.unwrap_or(DropReason::Action));
        if !rec.ok {
            self.observer.flowcache.put_back(rec);
            return None;
        }
        self.put_lookups(&mut rec);
        Some((rec, drop))
    }

    /// Inserts the lookups of segments among the others, in the order of the walk.
    pub(super) fn put_lookups(&mut self, rec: &mut Recorder) {
        if rec.segments.is_empty() {
            return;
        }
        let (counts, looks) = (std::mem::take(&mut rec.counts), std::mem::take(&mut rec.looks));
        let mut words = looks.iter();
        let segments = std::mem::take(&mut rec.segments);
        let mut carried = segments.iter().peekable();
        let mut inserted = Vec::new();
        let mut put = |x: &mut Self, rec: &mut Recorder, c: &Carried| {
            let before = rec.counts.len();
            x.relive(&c.segment, &c.key, |backer, key, h| {
                if let Some(t) = backer.bridges.get(h.bridge).and_then(|b| b.tables.get(h.table.index())) {
                    rec.looks.add(t, key, Layer::default());
                    let count =
                        Count::Table { bridge: h.bridge, table: h.table, rule: h.rule.clone(), length: c.length };
                    rec.counts.push(count);
                }
            });
            inserted.push(rec.counts.len() - before);
        };
        for (i, count) in counts.into_iter().enumerate() {
            while let Some(c) = carried.next_if(|c| c.at == i) {
                put(self, rec, c);
            }
            if count.look().is_some()
                && let Some(w) = words.next()
            {
                rec.looks.again(w);
            }
            rec.counts.push(count);
        }
        carried.for_each(|c| put(self, rec, c));
        rec.meters.counts_come(&inserted);
    }
}
