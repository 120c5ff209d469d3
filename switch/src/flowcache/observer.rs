//! The flow cache as the observer of a walk: it records the walk, to repeat it for later packets, and builds segments,
//! which speed up other walks.

use super::FlowCache;
use super::fragments::Begun;
use super::recorder::Recorder;
use super::segment::{self, SegmentBuilder};
use super::{Condition, Count, Encap};
use crate::bridge::Bridge;
use crate::bridge::meter::SharedMeter;
use crate::buf::PacketBuf;
use crate::classifier::Rule;
use crate::conntrack::reassembly::Suspended;
use crate::conntrack::{Bits, Commit, Outcome, Zone, flag};
use crate::dependency::Dependency;
use crate::drops::DropReason;
use crate::ids::{BridgeId, Target};
use crate::netflow::NetflowFlow;
use crate::tunnel::{Egress, TunnelConfig};
use crate::xlate::controller::SoFar;
use crate::xlate::ct::{Joint, Unfit};
use crate::xlate::sample::Sampler;
use crate::xlate::segment::{Hop, Op, Segment};
use crate::xlate::selection::Selection;
use crate::xlate::{Backer, Counted, CtPass, Encapsulation, Kind, Lookup, Observer, SegmentStart, SlowPath, Xlate};
use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, FlowKey, GroupId, PortNo, TableId};
use packet::VlanId;
use std::net::IpAddr;
use std::sync::Arc;

/// See the module.
pub(crate) struct CacheObserver<'a> {
    pub(super) flowcache: &'a mut FlowCache,
    /// The record of the walk; none if it is not recorded, or cannot be repeated.
    pub(super) recorder: Option<Box<Recorder>>,
    /// The segment that is being built.
    pub(super) builder: Option<Box<SegmentBuilder>>,
    /// Nothing can be known of the segment that the walk is in.
    lost: bool,
    /// TCP flags that flows of the tables that were looked up look at, in their place of the key.
    pub(super) tcp_flags: u64,
    /// The packet has opened a connection.
    pub(crate) opened: bool,
    /// How fragments go on is kept for the next ones.
    pub(crate) keeps_legs: bool,
    /// What was known of marks and labels when a `ct` action's `exec` began.
    marks_before_exec: Option<[[u64; 3]; 4]>,
}

impl FlowCache {
    /// An observer of a walk that is not recorded yet ([`Xlate::record`]).
    #[inline(always)]
    pub(crate) fn observer(&mut self) -> CacheObserver<'_> {
        CacheObserver {
            flowcache: self,
            recorder: None,
            builder: None,
            lost: false,
            tcp_flags: 0,
            opened: false,
            keeps_legs: false,
            marks_before_exec: None,
        }
    }
}

impl CacheObserver<'_> {
    /// Whether others that are alike may find in this zone what a packet found; such walks are recorded for all of
    /// them.
    fn serves_others(&mut self, pass: &CtPass<'_>) -> bool {
        let Some(r) = &mut self.recorder else { return false };
        let CtPass { packet: p, request, verdict: v, .. } = pass;
        // An error about no connection is invalid, and so is what belongs to none and opens none.
        let stray = p.error || !p.may_open();
        let valid = v.state & flag::INV == 0 || stray && pass.before.is_none();
        let plain = valid && v.refused.is_none() && p.segment.is_none() && !request.force;
        let outcome = match (pass.before, pass.after) {
            _ if !plain || !r.looked.only => None,
            (None, None) if stray => Some(Outcome::Unrelated),
            (None, None) if !request.commit => Some(Outcome::None),
            (None, Some(_)) => Some(Outcome::Opens(Commit { nat: request.nat.cloned(), ..Default::default() })),
            (Some(a), Some(b)) if a.id == b.id => pass.conntrack.look(a.id, |c| Outcome::Has {
                state: v.state,
                mark: c.mark,
                label: c.label,
                bits: Bits::default(),
                reply: v.reply,
                nat: request.nat.is_some(),
            }),
            _ => None,
        };
        let translates = outcome.as_ref().is_some_and(Outcome::translates);
        let alike = outcome.is_some_and(|o| r.expects(request.zone, (&p.tuple, p.error), o));
        r.looked.only &= alike;
        if alike && translates {
            r.translate(pass.base, [p.tuple, v.translated.unwrap_or(p.tuple)]);
        }
        alike
    }
}

impl Observer for CacheObserver<'_> {
    const TRACES: bool = false;

    #[inline]
    fn lookup(&mut self, l: &Lookup<'_>) -> Option<Arc<Rule>> {
        let flags = l.classifier.flags(l.key);
        self.tcp_flags |= flags;
        let rule = match (&mut self.builder, &mut self.recorder) {
            (Some(b), _) => {
                let rule = l.classifier.lookup_least(l.key, &mut b.looked, &mut b.chosen).cloned();
                let hop = Hop { bridge: l.bridge, table: l.table, in_port: l.in_port, rule: rule.clone(), flags };
                b.met(hop, l.depth, l.levels);
                rule
            }
            (_, Some(r)) if r.looked.only => r.looked.lookup(l.classifier, l.key).cloned(),
            _ => l.classifier.lookup_brief(l.key).cloned(),
        };
        if let Some(r) = &mut self.recorder {
            r.table(l.bridge, (l.table, l.classifier), l.key, rule.as_ref(), l.len);
        }
        rule
    }

    #[inline]
    fn may_begin_segment(&self) -> bool {
        self.builder.is_none() && !self.lost
    }

    #[inline]
    fn segment(
        &mut self,
        backer: &Backer,
        start: &SegmentStart<'_>,
        fits: impl FnOnce(&Segment) -> bool,
    ) -> Option<Arc<Segment>> {
        self.lost = true;
        // With another port than the packet's, only the first lookup is made.
        if start.in_port.0 != start.key.get(F::InPort) as u16 {
            return None;
        }
        let s = self.begin_segment(backer, start).filter(|s| fits(s))?;
        self.lost = false;
        Some(s)
    }

    #[inline]
    fn segment_carries(&mut self, s: &Arc<Segment>, key: &FlowKey, len: usize) {
        self.flowcache.cache.stats.segment_lookups += s.hops.len() as u64;
        self.tcp_flags |= s.flags;
        if s.count(len) {
            self.flowcache.segments.uncounted.push(s.clone());
        }
        if let Some(r) = &mut self.recorder {
            r.segment(s, key, len);
        }
    }

    #[inline]
    fn segment_ends(&mut self, backer: &Backer) {
        if self.builder.is_some() {
            self.keep_segment(backer);
        }
        self.lost = false;
    }

    #[inline]
    fn segment_is_lost(&mut self) {
        self.lost = true;
        if self.builder.is_some() {
            self.drop_segment();
        }
    }

    #[inline]
    fn resubmits(&mut self, step: usize, depth: u32, levels: u32) {
        if let Some(b) = &mut self.builder {
            b.descends(step, depth, levels);
        }
    }

    #[inline]
    fn resubmitted(&mut self) {
        if let Some(b) = &mut self.builder {
            b.returns();
        }
    }

    #[inline]
    fn action_begins(&mut self, step: usize, depth: u32, levels: u32) {
        if let Some(b) = &mut self.builder {
            b.begins(step, depth, levels);
        }
    }

    #[inline]
    fn action_done(&mut self) {
        if let Some(b) = &mut self.builder {
            b.done();
        }
    }

    #[inline]
    fn writes(&mut self, words: &[(u8, u64, u64)]) {
        // Whether a write changes the packet depends on what it said.
        if let Some(r) = self.recorder.as_mut().filter(|r| r.looked.only) {
            for (word, mask, _) in words {
                r.looked.bits().get_mut(usize::from(*word)).into_iter().for_each(|x| *x |= mask);
            }
        }
        if let Some(b) = &mut self.builder {
            b.ops.extend(words.iter().map(|(word, mask, value)| Op::write(*word, *mask, *value)));
        }
    }

    #[inline]
    fn action(&mut self, a: &Action, key: &FlowKey, backer: &Backer, bridge: BridgeId) -> bool {
        if let Some(l) = self.recorder.as_mut().map(|r| &mut r.looked).filter(|l| l.only) {
            l.action(a, backer.bridges.get(bridge));
        }
        segment::ends_segment(a, key, self.builder.as_deref_mut())
    }

    type Muted = Option<Box<Recorder>>;

    #[inline]
    fn mute(&mut self) -> Self::Muted {
        self.recorder.take()
    }

    #[inline]
    fn unmute(&mut self, m: Self::Muted) {
        self.recorder = m;
    }

    #[inline]
    fn reads(&mut self, f: F) {
        if let Some(r) = &mut self.recorder {
            r.read(f);
        }
    }

    #[inline]
    fn decides(&mut self, f: F) {
        if let Some(r) = &mut self.recorder {
            r.looked.field(f);
        }
    }

    fn examines(&mut self, f: F) {
        self.decides(f);
    }

    #[inline]
    fn decides_whether(&mut self, f: F, has: u128, value: u128) {
        if let Some(r) = &mut self.recorder {
            r.looked.compared(f, has, value);
        }
    }

    #[inline]
    fn compares_length(&mut self, len: usize, limit: usize) {
        if let Some(r) = &mut self.recorder {
            r.compared(len, limit);
        }
    }

    #[inline]
    fn depends(&mut self, d: Dependency) {
        if let Some(r) = &mut self.recorder {
            r.need(d);
        }
    }

    fn meters(&mut self, meter: Option<&SharedMeter>, len: usize) {
        if let (Some(r), Some(m)) = (&mut self.recorder, meter) {
            r.meter(m.clone(), len);
        }
    }

    fn learns(&mut self, bridge: BridgeId, rule: &Arc<Rule>) {
        if let Some(r) = &mut self.recorder {
            r.learns(bridge, rule);
        }
    }

    #[inline]
    fn scope_begins(&mut self) {
        if let Some(r) = &mut self.recorder {
            r.scope_begins();
        }
    }

    #[inline]
    fn scope_ends(&mut self) {
        if let Some(r) = &mut self.recorder {
            r.scope_ends();
        }
    }

    #[inline]
    fn chooses(&mut self, bucket: (GroupId, usize), selection: Selection, key: &FlowKey) {
        if let Some(r) = &mut self.recorder {
            r.chooses(bucket, selection, key);
        }
    }

    #[inline(always)]
    fn tells_hashes(&self) -> bool {
        false
    }

    #[inline(always)]
    fn hashed(&mut self, _: &FlowKey, _: (BridgeId, TableId), _: (usize, usize), _: String, _: &mut Backer) {}

    #[inline]
    fn notes_dependencies(&self) -> bool {
        self.recorder.is_some()
    }

    #[inline]
    fn learns_mac(&mut self, bridge: BridgeId, vlan: VlanId, mac: u64, port: PortNo) {
        if let Some(r) = &mut self.recorder {
            r.condition(Condition::Source { bridge, vlan, mac, port });
        }
    }

    #[inline]
    fn looks_up_mac(&mut self, bridge: BridgeId, vlan: VlanId, mac: u64, port: Option<PortNo>) {
        if let Some(r) = &mut self.recorder {
            r.condition(Condition::Address { bridge, vlan, mac, port });
        }
    }

    #[inline]
    fn counts(&mut self, c: Counted, len: usize) {
        let Some(r) = &mut self.recorder else { return };
        let length = r.length(len);
        r.count(match c {
            Counted::Port { bridge, no, sent } => Count::Port { bridge, no, sent, length },
            Counted::Bucket { bridge, group, index } => Count::Bucket { bridge, group: GroupId(group), index, length },
            Counted::Bond { bridge, bond, bucket } => Count::Bond { bridge, bond, bucket, length },
            Counted::Sample => Count::Sample,
        });
    }

    fn slow_path(&mut self, _: SlowPath) {}

    #[inline]
    fn side_effect(&mut self) {
        if let Some(r) = self.recorder.take() {
            self.flowcache.put_back(r);
        }
    }

    #[inline]
    fn flows_change(&mut self, backer: &mut Backer) {
        // A flow that goes says what it counted.
        self.flowcache.pay_out(backer);
    }

    #[inline]
    fn commits(&mut self, _: &FlowKey, _: &FlowKey) {}

    #[inline(always)]
    fn crosses(&mut self, _: &FlowKey, _: &FlowKey) {}

    #[inline]
    fn sends(&mut self, base: &FlowKey, target: Target) {
        if let Some(r) = &mut self.recorder {
            r.send(base, target);
        }
    }

    #[inline]
    fn ends_at_session(&mut self, base: &FlowKey, bridge: BridgeId, port: PortNo) {
        if let Some(r) = &mut self.recorder {
            r.session(base, bridge, port);
        }
    }

    #[inline]
    fn cuts(&mut self, _: usize, _: bool) {}

    #[inline]
    fn writes_icmp_id(&mut self, id: u16) {
        if let Some(r) = &mut self.recorder {
            r.icmp_id(id);
        }
    }

    #[inline]
    fn encapsulates(&mut self, base: &FlowKey, e: Encapsulation, len: usize) {
        if let Some(r) = &mut self.recorder {
            let Encapsulation { headers, v6, shim, target } = e;
            r.encap(base, Encap { headers, v6, shim, spread: false, target }, len);
        }
    }

    #[inline]
    fn netflow(&mut self, flow: &Arc<NetflowFlow>, len: usize) {
        if let Some(r) = &mut self.recorder {
            r.netflow(flow, len);
        }
    }

    #[inline]
    fn samples(&mut self, base: &FlowKey, s: &Sampler) {
        if let Some(r) = &mut self.recorder {
            r.samples(base, s);
        }
    }

    #[inline]
    fn reads_tunnel_header(&mut self) {
        if let Some(r) = &mut self.recorder {
            r.tunnelled();
        }
    }

    #[inline(always)]
    fn arrives_by_tunnel(&mut self, _: &FlowKey, _: (BridgeId, PortNo), _: &Backer) {}

    #[inline(always)]
    fn arrived_by_tunnel(&mut self, _: &FlowKey) {}

    #[inline]
    fn decapsulates(&mut self, base: &FlowKey, offset: usize, len: usize) {
        if let Some(r) = &mut self.recorder {
            r.decap(base, offset, len);
        }
    }

    #[inline]
    fn enters_packet(&mut self, base: &FlowKey) {
        if let Some(r) = &mut self.recorder {
            r.enter(base);
        }
    }

    #[inline]
    fn enters_cut(&mut self, base: &FlowKey, bytes: (usize, usize)) {
        if let Some(r) = &mut self.recorder {
            r.cut(base, bytes);
        }
    }

    #[inline]
    fn leaves_packet(&mut self) {
        if let Some(r) = &mut self.recorder {
            r.leave();
        }
    }

    #[inline]
    fn ct(&mut self, pass: &CtPass<'_>) {
        if self.recorder.as_ref().is_some_and(|r| r.is_cut()) {
            // What is tracked of a cut packet is not what its key says.
            self.side_effect();
        }
        let serves_others = self.serves_others(pass);
        let CtPass { packet: p, request, verdict, before, after, .. } = *pass;
        let opens = match (before, after) {
            (None, None) => {
                !serves_others
                    && !request.commit
                    && self.recorder.is_some()
                    && self.flowcache.connection_predictor.likely()
            }
            (None, Some(_)) => {
                self.flowcache.connection_predictor.opened();
                self.opened = true;
                if self.recorder.is_some() && !serves_others {
                    // It asked what of the packet decides for nothing.
                    self.flowcache.megaflow_predictor.answer(false);
                }
                true
            }
            _ => false,
        };
        // Errors, packets that do not fit their connection, and refused commits are looked at each time.
        // So are TCP segments where their windows count.
        let odd = p.error
            || opens
            || p.segment.is_some()
            || verdict.state & flag::INV != 0 && after.is_some()
            || request.commit && after.is_none();
        let Some(r) = &mut self.recorder else { return };
        let repeatable = !odd && r.tracked(request.zone, &p.tuple, before, after);
        if serves_others {
            r.exact &= repeatable;
        } else if !repeatable {
            self.side_effect();
        }
    }

    fn ct_invalid(&mut self, zone: Zone, key: &FlowKey, (why, own): (Unfit, bool)) {
        let Some(r) = &mut self.recorder else { return };
        let known = own
            && !r.is_cut()
            && match why {
                Unfit::Malformed => r.is_malformed(),
                Unfit::Broken => r.expects_broken(zone, key),
            };
        if !known {
            return self.side_effect();
        }
        // The next packet with the same key may be in order.
        r.exact &= why == Unfit::Malformed;
    }

    #[inline]
    fn ct_from_fields(&mut self) {
        if let Some(r) = &mut self.recorder {
            r.looked.only = false;
        }
    }

    #[inline]
    fn ct_again(&mut self, pass: &CtPass<'_>) {
        let CtPass { packet: p, request, verdict: v, .. } = *pass;
        let Some(r) = &mut self.recorder else { return };
        // What the first pass expects of a connection says nothing of its translation, unless it asked for that itself.
        if request.nat.is_none() || r.expects_translation(request.zone) {
            r.looked.only &= v.translated.is_none();
            return;
        }
        r.looked.only &= !p.error && p.segment.is_none() && !request.force;
        if r.expects_again(request.zone, &p.tuple, v.state, v.translated.is_some())
            && let Some(t) = v.translated
        {
            r.translate(pass.base, [p.tuple, t]);
        }
    }

    #[inline]
    fn ct_exec_begins(&mut self) {
        self.marks_before_exec = self.recorder.as_ref().map(|r| r.looked.connection());
    }

    #[inline]
    fn ct_exec_done(&mut self) {
        // What the actions read of mark and label does not decide: all of both are compared.
        if let (Some(r), Some(before)) = (&mut self.recorder, self.marks_before_exec.take()) {
            r.looked.set_connection(before);
        }
    }

    #[inline]
    fn ct_marks(&mut self, zone: Zone, mark: u32, label: u128) {
        if let Some(r) = &mut self.recorder {
            r.marked(zone, (mark, label));
        }
    }

    fn holds(&mut self, base: &FlowKey, rest: &Arc<Suspended>, so_far: Option<SoFar>, why: Option<DropReason>) {
        match &mut self.recorder {
            Some(r) if so_far == Some(r.begun) => r.hold(base, rest.clone(), why),
            _ => self.side_effect(),
        }
    }

    type Begun = Option<Box<Begun>>;

    fn resumes<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, rest: &Arc<Suspended>, joint: &Joint) -> Self::Begun {
        x.begin_leg(rest, joint)
    }

    fn resumed<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, begun: Self::Begun) {
        x.end_leg(begun);
    }

    #[inline]
    fn goes_on(&mut self, at: (BridgeId, TableId), key: &FlowKey) {
        if let Some(r) = self.recorder.as_mut().filter(|r| r.looked.only) {
            r.example.goes_on(at, key);
        }
    }

    #[inline]
    fn came_back(&mut self) {
        if let Some(r) = &mut self.recorder {
            r.example.came_back();
        }
    }

    #[inline]
    fn translations(&self) -> usize {
        self.recorder.as_ref().map_or(0, |r| r.translated.len())
    }

    #[inline]
    fn restores(&mut self, translations: usize) {
        // If it was translated in between, the walk cannot serve as a template for others.
        if let Some(r) = &mut self.recorder {
            r.looked.only &= r.translated.len() == translations;
        }
    }

    #[inline(always)]
    fn dry(&self) -> bool {
        false
    }

    #[inline(always)]
    fn tell(&mut self, _: Kind, _: impl FnOnce() -> String) {}

    #[inline(always)]
    fn open(&mut self, _: Kind, _: impl FnOnce() -> String) {}

    #[inline(always)]
    fn close(&mut self) {}

    #[inline(always)]
    fn open_action_set(&mut self) {}

    #[inline(always)]
    fn named(&self, text: String, _: Option<&Bridge>) -> String {
        text
    }

    #[inline(always)]
    fn datapath(&mut self, _: impl FnOnce() -> String) {}

    #[inline(always)]
    fn copy_begins(&mut self) -> usize {
        0
    }

    #[inline(always)]
    fn copy_ends(&mut self, _: usize, _: bool) {}

    #[inline(always)]
    fn tunnels(&mut self, _: &TunnelConfig, _: &[u8], _: &Egress, _: &Backer) {}

    #[inline(always)]
    fn lacks_neighbour(&mut self, _: &TunnelConfig, _: &FlowKey, _: IpAddr, _: &Backer) {}

    #[inline]
    fn list<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, list: &[Action]) {
        x.each(list);
    }

    #[inline]
    fn act<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, a: &Action) -> bool {
        x.act(a)
    }
}
