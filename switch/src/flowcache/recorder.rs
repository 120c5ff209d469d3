//! The recorder: notes what a walk did and compiles it into an entry.

use super::ct_template::{CHOICES, Choice, CtTemplate, Meets, choice, said, said_quoting, settled};
use super::depend::Looks;
use super::dump::Installed;
use super::entry::{Check, Entry};
use super::example::Example;
use super::key::{BLOCK, Layout, PackedKey};
use super::megaflow::{DependencyMask, Layer, Mask, TupleBits, own_tuple_fields};
use super::metered::{Marks, Metered, metered};
use super::observer::CacheObserver;
use super::patches::patches;
use super::xcache::XlateCaches;
use super::{At, Cache, Condition, Count, Encap, FlowCache, Step};
use crate::bridge::Bridges;
use crate::bridge::meter::SharedMeter;
use crate::buf::PacketBuf;
use crate::classifier::{Classifier, Rule};
use crate::conntrack::reassembly::Suspended;
use crate::conntrack::{ConnSnapshot, Conntrack, Expected, Outcome, SharedConntrack, Tuple, Zone};
use crate::dependency::Dependency;
use crate::drops::DropReason;
use crate::extract::PACKET_WORDS;
use crate::ids::{BridgeId, Target};
use crate::netflow::{self, NetflowFlow};
use crate::tunnel::Shim;
use crate::xlate::controller::SoFar;
use crate::xlate::quoted;
use crate::xlate::sample::Sampler;
use crate::xlate::segment::Segment;
use crate::xlate::selection::Selection;
use crate::xlate::{Backer, Counted, Observer, Xlate};
use openflow_rs::{FieldId as F, FlowKey, GroupId, PortNo, TableId};
use packet::{ethertype, ipproto};
use std::sync::Arc;
use std::time::Duration;

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

/// Tuples that have no connection, by zone.
type Absent = Vec<(Zone, Tuple)>;

/// What the conditions of a walk are about: the connections, and the bridges with their learned addresses.
#[derive(Clone, Copy)]
pub(super) struct Learned<'a> {
    pub(super) ct: &'a Conntrack,
    /// When the walk was.
    pub(super) now: Duration,
    pub(super) bridges: &'a Bridges,
}

/// Addresses and ports of a packet.
fn tuple(k: &FlowKey) -> TupleBits {
    TupleBits(own_tuple_fields(k.get(F::EthType) as u16 == ethertype::IPV6).map(|f| k.get(f)))
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

    /// Completes what steps say of meters, once all that was noted is in its place. `own`: the checks are of connections, too;
    /// `origins` are the conditions that checks are of.
    fn complete_meters(&mut self, own: bool, origins: &[usize], xcaches: &mut XlateCaches) -> Option<()> {
        let checked = |p: &&Expected| !own && matches!(p.outcome, Outcome::None | Outcome::Has { .. });
        for (m, mark) in metered(&mut self.steps).zip(&self.meters.list) {
            let counts = self.counts.get(..mark.counts)?;
            let looks = counts.iter().filter(|c| c.look().is_some()).count();
            m.path = xcaches.path(counts, &self.looks.first(looks), &self.needs)?;
            m.checks = mark.checks(origins)?;
            m.passes = mark.passes;
            m.found = self.passes.iter().take(mark.passes).filter(checked).count();
        }
        Some(())
    }

    /// Where packets of this xlate cache are counted that its meters drop.
    fn drops_at(&mut self, path: (u32, u32), xcaches: &mut XlateCaches) {
        metered(&mut self.steps).for_each(|m| xcaches.drops_at(path, m.path));
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

    /// The walk is at the packet that a template is of: as it arrived, or out of its tunnel.
    fn is_here(&self) -> bool {
        let arrived = if self.tunnel { Layer::Inner } else { Layer::Received };
        [arrived, Layer::Translated].contains(&self.looked.layer)
    }

    /// Notes that a `select` group chose a bucket for the packet, which has this key. There is a template of packets that
    /// choose by the tuple that they came with.
    pub(crate) fn chooses(&mut self, (group, bucket): (GroupId, usize), selection: Selection, key: &FlowKey) {
        let protocols = [ipproto::TCP, ipproto::UDP, ipproto::ICMP, ipproto::ICMPV6];
        let ports = protocols.contains(&(key.get(F::IpProto) as u8)) && key.get(F::IpFrag) == 0;
        let quotes = quoted::is_error(key.get(F::IpProto) as u8, key.get(F::IcmpType) as u8);
        let own = self.is_here() && self.translated.is_empty() && self.tuple == tuple(key) && !quotes;
        self.looked.only &= own && ports && selection.is_of_tuple() && self.choices.len() < CHOICES;
        if self.looked.only {
            self.looked.field(F::IpProto);
            self.choices.push(Choice { group, selection, bucket });
        }
    }

    /// Notes what a pass through a zone found, for a template. False if there can be no template. `quotes`: it is an ICMP
    /// error, whose tuple is that of the packet that it quotes.
    pub(crate) fn expects(&mut self, zone: Zone, (t, quotes): (&Tuple, bool), outcome: Outcome) -> bool {
        let here = self.is_here();
        let own = if quotes { self.tuple.destination() == t.dst } else { self.tuple == said(t) };
        // Whether it finds the connection that was just opened depends on the translation that was chosen.
        let opened = self.passes.iter().any(|p| p.zone == zone && matches!(p.outcome, Outcome::Opens(_)));
        if !self.looked.only || !here || !own || !t.has_templates() || opened {
            self.looked.only = false;
            return false;
        }
        self.quotes |= quotes;
        if quotes || t.is_icmp() {
            // A question and its answer find something else, and so does an error.
            [F::IpProto, F::IcmpType, F::IcmpCode].into_iter().for_each(|f| self.looked.field(f));
        }
        let before = self.passes.iter().rposition(|p| p.zone == zone);
        let same = |i: &usize| !self.passes.iter().skip(*i).any(|p| p.outcome.translates());
        // A missing connection is looked up once per tuple.
        match before.filter(same).filter(|_| !matches!(outcome, Outcome::Has { .. })) {
            Some(_) if matches!(outcome, Outcome::None | Outcome::Unrelated) => return true,
            Some(i) => {
                self.passes.remove(i);
                self.meters.pass_goes(i);
            }
            None => {}
        }
        self.passes.push(Expected { zone, outcome });
        true
    }

    /// Notes that a packet is invalid as its key says. False if it was not so before.
    pub(crate) fn is_malformed(&mut self) -> bool {
        [F::IpProto, F::IcmpType, F::IcmpCode].into_iter().for_each(|f| self.looked.field(f));
        self.passes.is_empty() && self.is_here()
    }

    /// Notes that a packet with this key was invalid by itself in a zone, for a template. False if there can be no template.
    pub(crate) fn expects_broken(&mut self, zone: Zone, key: &FlowKey) -> bool {
        let proto = key.get(F::IpProto) as u8;
        let t = Tuple {
            v6: key.get(F::EthType) as u16 == ethertype::IPV6,
            proto,
            icmp_type: key.get(F::IcmpType) as u8,
            icmp_code: key.get(F::IcmpCode) as u8,
            src: 0,
            dst: 0,
            sport: 0,
            dport: 0,
        };
        // Where flows have written a port, one of 0 on arrival says nothing.
        self.looked.only &= self.is_here()
            && key.get(F::IpFrag) == 0
            && t.has_templates()
            && self.tuple == tuple(key)
            && self.passes.iter().all(|p| p.outcome == Outcome::Broken);
        if self.looked.only {
            // Which checksums there are.
            self.looked.field(F::IpProto);
            if t.is_icmp() {
                [F::IcmpType, F::IcmpCode].into_iter().for_each(|f| self.looked.field(f));
            }
            self.passes.push(Expected { zone, outcome: Outcome::Broken });
        }
        self.looked.only
    }

    /// Whether packets that match the last pass through a zone are translated in the same way.
    pub(crate) fn expects_translation(&self, zone: Zone) -> bool {
        let last = self.passes.iter().rfind(|p| p.zone == zone);
        last.is_some_and(|p| match &p.outcome {
            Outcome::None | Outcome::Unrelated | Outcome::Broken => false,
            Outcome::Opens(_) | Outcome::Again { .. } => true,
            Outcome::Has { nat, .. } => *nat,
        })
    }

    /// Notes that a pass found the connection of the one before, and asked for its translation as that did not. False if
    /// there can be no template.
    pub(crate) fn expects_again(&mut self, zone: Zone, t: &Tuple, state: u32, translates: bool) -> bool {
        let before = self.passes.last();
        self.looked.only &= self.is_here()
            && self.tuple == said(t)
            && before.is_some_and(|p| p.zone == zone && matches!(p.outcome, Outcome::Has { nat: false, .. }));
        if self.looked.only {
            self.passes.push(Expected { zone, outcome: Outcome::Again { state, translates } });
        }
        self.looked.only
    }

    /// The packet's connection in a zone gets this mark and label.
    pub(crate) fn marked(&mut self, zone: Zone, new: (u32, u128)) {
        let of = |p: &&mut Expected| p.zone == zone && !matches!(p.outcome, Outcome::Again { .. });
        match self.passes.iter_mut().rfind(of).map(|p| &mut p.outcome) {
            Some(Outcome::Opens(c)) => (c.mark, c.label) = new,
            Some(Outcome::Has { mark, label, bits, .. }) => {
                self.looked.only &= (*mark, *label) == new;
                bits.all = true;
            }
            _ => self.looked.only = false,
        }
    }

    /// The packet, which says `base`, is translated.
    pub(crate) fn translate(&mut self, base: &FlowKey, pair: [Tuple; 2]) {
        self.sync(base);
        self.steps.push(Step::Translate { quoting: self.quotes });
        let [_, to] = &pair;
        let fields = own_tuple_fields(to.v6);
        if self.quotes {
            self.tuple = said_quoting(self.tuple, &pair);
            let [src, dst, ..] = fields;
            quoted::sender(&pair).into_iter().for_each(|hidden| self.has.set(src, hidden));
            self.has.set(dst, to.dst);
        } else {
            self.tuple = said(to);
            for (f, v) in fields.into_iter().zip(self.tuple.0) {
                self.has.set(f, v);
            }
            if to.is_icmp() {
                // It is a part of the translation.
                self.icmp_id = Some(to.sport);
            }
        }
        self.looked.layer = Layer::Translated;
        self.translated.push(pair);
        self.said.push(self.tuple);
    }

    /// Notes the check for a pass through connection tracking; `before` and `after` are the connections of the tuple.
    /// False if the pass changed something.
    pub(crate) fn tracked(
        &mut self,
        zone: Zone,
        tuple: &Tuple,
        before: Option<ConnSnapshot>,
        after: Option<ConnSnapshot>,
    ) -> bool {
        match (before, after) {
            (Some(a), Some(b)) if a == b => {
                self.conditions.push(Condition::Connection(b));
            }
            (None, None) => self.conditions.push(Condition::NoConnection { zone, tuple: *tuple }),
            _ => return false,
        }
        true
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

    /// The checks of an entry, the tuples without a connection, and the place of the condition that each check is of.
    /// `own`: include the checks of connections.
    fn checks(&self, own: bool, learned: Learned<'_>) -> Option<(Vec<Check>, Absent, Vec<usize>)> {
        let mut conditions: Vec<(usize, &Condition)> = self.conditions.iter().enumerate().collect();
        conditions.sort_by_key(|(_, c)| !matches!(c, Condition::Length { .. }));
        let (mut checks, mut absent, mut origins) = (Vec::new(), Absent::new(), Vec::new());
        for (origin, c) in conditions {
            match c {
                Condition::Connection(_) | Condition::NoConnection { .. } if !own => {}
                Condition::NoConnection { zone, tuple } if absent.contains(&(*zone, *tuple)) => {}
                Condition::NoConnection { zone, tuple } => {
                    absent.push((*zone, *tuple));
                    let (place, arrivals) = learned.ct.arrivals(*zone, tuple);
                    checks.push(Check::Absent { place, arrivals });
                    origins.push(origin);
                }
                c => {
                    let c = check(c, learned)?;
                    // A packet may pass the same connection or address several times.
                    if !checks.contains(&c) {
                        checks.push(c);
                        origins.push(origin);
                    }
                }
            }
        }
        Some((checks, absent, origins))
    }

    /// Whether network or transport headers are rewritten; none if a packet enters a tunnel whose flow cannot be told from
    /// its headers as they stand ([`crate::tunnel::entropy_of`]).
    fn rewrites(&self, key: &PackedKey) -> Option<bool> {
        let decapped = self.steps.iter().any(|s| matches!(s, Step::Decap { .. }));
        let told = |l: Layout| matches!((l.ip, l.l4.checked_sub(l.l3)), (4, Some(20)) | (6, Some(40)));
        let spreads = |s: &Step| matches!(s, Step::Encap { encap, .. } if matches!(encap.shim, Shim::Udp { .. }));
        let encapped = self.steps.iter().any(spreads);
        let tunnels = encapped && !(told(key.outer) && (!decapped || told(key.inner)));
        let above = |s: &Step| match s {
            Step::Rewrite(patches) => patches.iter().any(|p| p.at != At::Frame),
            s => matches!(s, Step::IcmpId(_) | Step::Translate { .. }),
        };
        (!tunnels).then(|| self.steps.iter().any(above))
    }

    /// Removes steps at the end that have no effect.
    fn trim(&mut self) {
        while matches!(self.steps.last(), Some(Step::Pop | Step::IcmpId(_))) {
            self.steps.pop();
        }
        mark_last(&mut self.steps);
    }

    /// Compiles the entry of this key, if the walk can be repeated.
    pub(super) fn compile(
        &mut self,
        key: &PackedKey,
        xcaches: &mut XlateCaches,
        learned: Learned<'_>,
        drop: Option<DropReason>,
    ) -> Option<Entry> {
        self.trim();
        let (checks, absent, origins) = self.checks(true, learned)?;
        self.complete_meters(true, &origins, xcaches)?;
        let path = xcaches.path(&self.counts, &self.looks, &self.needs)?;
        self.drops_at(path, xcaches);
        let steps = settled(&self.steps, &self.translated);
        let mut e = Entry::new((key.blocks(), [key.outer, key.inner]), &checks, &steps, path, drop, absent)?;
        self.held.iter().for_each(|h| e.hold(h.rest.clone()));
        Some(e)
    }

    /// Compiles a megaflow; checks of connections are added per packet. `hash` is that of the megaflow if it is to have
    /// an xlate cache of its own, else 0.
    fn compile_wide(
        &mut self,
        key: &PackedKey,
        (mask, hash): (&Mask, impl Fn(&[[u64; BLOCK]]) -> u64),
        xcaches: &mut XlateCaches,
        learned: Learned<'_>,
        drop: Option<DropReason>,
    ) -> Option<Entry> {
        self.looks.widen(&self.looked);
        for s in &mut self.steps {
            if let Step::Encap { encap, .. } = s {
                encap.spread = true;
            }
        }
        self.trim();
        let (checks, absent, origins) = self.checks(false, learned)?;
        self.complete_meters(false, &origins, xcaches)?;
        let narrow = mask.of(key.blocks());
        let blocks = narrow.get(..key.blocks().len())?;
        let path = xcaches.path_of(&self.counts, &self.looks, &self.needs, (hash(blocks), self.origin[0]))?;
        self.drops_at(path, xcaches);
        Entry::new((blocks, [key.outer, key.inner]), &checks, &self.steps, path, drop, absent)
    }
}

/// Compiles a condition to a check; `None` if it does not hold any more.
fn check(c: &Condition, Learned { ct, bridges, now }: Learned<'_>) -> Option<Check> {
    let macs = |b: BridgeId| Some((u16::try_from(b.index()).ok()?, &bridges.get(b)?.macs));
    Some(match *c {
        Condition::Connection(seen) => Check::connection(ct.stamp_of(seen)?, seen.timeout)?,
        Condition::Length { which, min, max } => Check::Length { which, min, max },
        Condition::Address { bridge, vlan, mac, port } => {
            let (bridge, macs) = macs(bridge)?;
            match port {
                Some(p) => Check::Known { bridge, place: macs.place(vlan, mac, p)? },
                // The walk has learned it itself, behind the look: the next packet finds it.
                None if macs.lookup(vlan, mac, now).is_some() => return None,
                None => Check::Unknown { bridge, arrivals: macs.shared().arrivals() },
            }
        }
        Condition::Source { bridge, vlan, mac, port } => {
            let (bridge, macs) = macs(bridge)?;
            Check::Source { bridge, place: macs.place(vlan, mac, port)? }
        }
        Condition::NoConnection { .. } => return None,
    })
}

/// Marks the last use of each packet, which needs no copy.
fn mark_last(steps: &mut [Step]) {
    for i in 0..steps.len() {
        let (head, rest) = steps.split_at_mut(i + 1);
        let Some(step) = head.last_mut() else { return };
        let (last, opens) = match step {
            Step::Send { last, .. } | Step::Session { last, .. } => (last, false),
            Step::Encap { encap, last } => {
                let opens = encap.target.is_none();
                (last, opens)
            }
            Step::Decap { last, .. } | Step::Cut { last, .. } => (last, true),
            _ => continue,
        };
        let mut depth = i32::from(opens);
        let mut used = false;
        for s in rest.iter() {
            match s {
                Step::Pop if depth == 0 => break,
                Step::Pop => depth -= 1,
                _ if depth == 0 => {
                    used = true;
                    break;
                }
                Step::Decap { .. } | Step::Cut { .. } => depth += 1,
                Step::Encap { encap, .. } if encap.target.is_none() => depth += 1,
                _ => {}
            }
        }
        *last = !used;
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

impl FlowCache {
    /// Keeps the storage of a record for the next one.
    pub(super) fn put_back(&mut self, mut r: Box<Recorder>) {
        r.clear();
        self.spare = Some(r);
    }

    /// Compiles a recorded walk; of a megaflow the mask is returned, too.
    pub(crate) fn entry(
        &mut self,
        backer: &mut Backer,
        key: &PackedKey,
        rec: Option<Record>,
    ) -> Option<(Entry, Option<Mask>)> {
        self.settle(backer);
        let (mut rec, drop) = rec?;
        if self.cache.table.masks.spent() {
            self.purge(backer);
            self.cache.table.masks.renumber();
            return None;
        }
        if rec.conditions.iter().any(|c| matches!(c, Condition::NoConnection { .. })) && rec.exact {
            self.connection_predictor.none();
        }
        if rec.flags_read && !self.cache.views.exact_flags() {
            // From now on keys hold all flags.
            self.pay_out(backer);
            self.cache.views.set_exact_flags();
            self.purge(backer);
            return None;
        }
        let lengths = rec.origin;
        // A choice takes more than the bits of a megaflow, too.
        let tracked = !rec.passes.is_empty() || !rec.choices.is_empty();
        let FlowCache { cache, xcaches, .. } = self;
        let Backer { conntrack, bridges, now, .. } = &*backer;
        // Nothing comes or goes between what the entry says of connections and the look whether that is so.
        let held = conntrack.lock();
        let learned = Learned { ct: &held, bridges, now: *now };
        let waits = rec.held.is_some();
        let wide = match key.shape() {
            _ if tracked || waits || !self.megaflows => None,
            Some(s) => rec.looked.mask(s),
            None => rec.rewrites(key).and_then(|rewrites| rec.looked.mask_of_fields(key, rewrites)),
        };
        let mask = wide.and_then(|m| cache.table.masks.add(key, m));
        let entry = match &mask {
            Some(m) => {
                let entry = rec.compile_wide(key, (m, |b| cache.table.hash(b)), xcaches, learned, drop);
                // In Open vSwitch each such way is two flows.
                if let Some(e) = entry.as_ref().filter(|_| rec.steps.iter().any(|s| matches!(s, Step::Decap { .. }))) {
                    xcaches.keep_example((e.path, e.generation), || std::mem::take(&mut rec.example));
                }
                entry
            }
            None if rec.exact => rec.compile(key, xcaches, learned, drop),
            None => None,
        };
        let now = now.as_nanos() as u64;
        let entry = entry.filter(|e| super::exec::holds(e, &held, &cache.views, lengths, now));
        std::mem::drop(held);
        let alike = mask.is_some() || tracked && self.megaflows && self.keep_tracked(backer, key, &mut rec, drop);
        self.megaflow_predictor.answer(alike);
        self.put_back(rec);
        Some((entry?, mask))
    }

    /// Keeps a recorded walk through connection tracking, or by a choice, as a template; false if it cannot be one.
    fn keep_tracked(&mut self, backer: &Backer, key: &PackedKey, rec: &mut Recorder, drop: Option<DropReason>) -> bool {
        let FlowCache { cache, xcaches, ct_templates, .. } = self;
        let Backer { conntrack, bridges, now, .. } = backer;
        let layer = if rec.tunnel { Layer::Inner } else { Layer::Received };
        let answers = |p: &Expected| matches!(p.outcome, Outcome::Has { reply: true, .. });
        let chosen = |p: &Expected| matches!(p.outcome, Outcome::Opens(_)) && p.outcome.translates();
        // The connection's original tuple is not what an error says either.
        let answers = rec.quotes || rec.passes.iter().any(answers);
        let v6 = if rec.tunnel { key.inner.ip } else { key.outer.ip } == 6;
        let Some(tuple) = rec.looked.untranslate(layer, answers, v6).filter(|_| rec.looked.only) else { return false };
        let mask = match key.shape() {
            Some(s) => rec.looked.mask(s),
            None => rec.rewrites(key).and_then(|rewrites| rec.looked.mask_of_fields(key, rewrites)),
        };
        let Some(mask) = mask else { return false };
        // Templates are of many of NetFlow's flows.
        let Some(kind) = key.kind().filter(|_| !rec.netflow) else { return false };
        // Templates open connections and translate: no packet of a session needs that.
        if rec.steps.iter().any(|s| matches!(s, Step::Session { .. })) {
            return false;
        }
        // Each connection is translated to another port: a template that compares the port would serve one connection
        // only.
        let TupleBits([.., sport, _]) = tuple;
        let icmp = rec.translated.iter().any(|[_, t]| t.is_icmp());
        if sport != 0 && !icmp && rec.passes.iter().any(chosen) {
            return false;
        }
        let learned = Learned { ct: &conntrack.lock(), bridges, now: *now };
        let Some(entry) = rec.compile_wide(key, (&mask, |_| 0), xcaches, learned, drop) else {
            return false;
        };
        let values = rec.said.iter().map(|t| *t & tuple).collect();
        let looked = rec.looked.marks();
        for p in &mut rec.passes {
            if let Outcome::Has { mark, label, bits, .. } = &mut p.outcome {
                bits.looked = looked;
                (*mark, *label) = bits.of(*mark, *label);
            }
        }
        let (passes, steps) = (std::mem::take(&mut rec.passes), std::mem::take(&mut rec.steps));
        let example = Arc::new(std::mem::take(&mut rec.example));
        let flow = Arc::new(CtTemplate::new(entry, steps.into(), values, example));
        if let Some(installed) = &mut cache.installed {
            let chosen = rec.choices.iter().map(|c| choice(c.group, c.bucket)).collect();
            let flow = super::ct_template::shown(&flow, &mask, (chosen, &passes), &cache.table.masks);
            installed.extend(flow.map(|flow| Installed { flow, old: None }));
        }
        let choices = std::mem::take(&mut rec.choices).into();
        ct_templates.keep(kind, mask, Meets { choices, passes: passes.into(), tuple }, flow, &cache.table);
        cache.stats.inserted += 1;
        true
    }

    /// Puts a recorded walk into the cache.
    pub(crate) fn keep(&mut self, backer: &mut Backer, key: &PackedKey, rec: Option<Record>) {
        let Some((entry, mask)) = self.entry(backer, key, rec) else {
            self.cache.stats.refused += 1;
            return;
        };
        let hash = if mask.is_some() { self.cache.table.hash(entry.parts().0) } else { key.hash };
        self.cache.insert(&backer.conntrack, backer.now, hash, entry);
    }
}

impl Cache {
    /// Puts a flow into the cache.
    pub(crate) fn insert(&mut self, conntrack: &SharedConntrack, now: Duration, hash: u64, entry: Entry) {
        self.note(hash, &entry, None);
        let now = now.as_nanos() as u64;
        let Cache { table, views, stats, .. } = self;
        let holds = |e: &Entry| super::exec::holds_but_length(e, conntrack, views, now);
        table.insert(hash, entry, |e| !holds(e));
        stats.inserted += 1;
    }
}
