//! Translation: walks one packet through the tables and carries out its actions.
//!
//! Changes are made to the key first and written to the packet when it leaves, so `clone`, group buckets and patch ports only
//! save and restore the key. `ct` does not recirculate: the walk goes on in its table at once.

pub(crate) mod continuation;
pub(crate) mod ct;
pub(crate) mod groups;
pub(crate) mod output;
pub(crate) mod pipeline;
pub(crate) mod sample;
pub(crate) mod segment;

use crate::buf::PacketBuf;
use crate::classifier::Wildcards;
use crate::conntrack::flag;
use crate::conntrack::reassembly::Held;
use crate::datapath::{Event, Outputs, Switch};
use crate::drops::DropReason;
use crate::extract;
use crate::flowcache::depend::Need;
use crate::flowcache::segment::Guide;
use crate::trace::Kind;
use openflow_rs::action::{Action, ControllerAction, LearnAction, PacketInReason, learned_flow};
use openflow_rs::message::PacketIn;
use openflow_rs::mods::{FlowFlags, FlowMod};
use openflow_rs::{ALL_FIELDS, FieldId as F, FlowKey, Match, PortNo, Prereq, Subfield, WORDS, ones};
use packet::Headers;

/// Most nested resubmits to the same or an earlier table, as Open vSwitch.
pub(crate) const MAX_DEPTH: u32 = 64;
/// Most nested resubmits of any kind: what a thread's stack of 8 MB surely bears.
pub(crate) const MAX_LEVELS: u32 = 1024;
/// Most resubmits of a packet, as Open vSwitch.
pub(crate) const MAX_RESUBMITS: u32 = 4096;
const MAX_STACK: usize = 1024;

/// What is left to do after a pause: (table, flow, actions), innermost first.
pub(crate) type Frames = Vec<(u8, Origin, Vec<Action>)>;

/// The flow that actions are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) cookie: u64,
    /// It is what packets meet that meet nothing else: without priority and match (OpenFlow 1.5 section 5.4).
    pub(crate) miss: bool,
}

impl Origin {
    /// No flow.
    pub(crate) const NONE: Origin = Origin::with(u64::MAX);

    pub(crate) const fn with(cookie: u64) -> Origin {
        Origin { cookie, miss: false }
    }
}

/// What a packet's walk waits for.
pub(crate) enum Wait {
    /// The controller, which gets this.
    Controller(u16, Box<PacketIn>),
    /// The rest of its datagram.
    Fragment(Box<Held>),
}

/// What an action is carried out of: packets to the controller say so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Within {
    Flow,
    ActionSet,
    Bucket {
        /// The group is one of an action set.
        of_set: bool,
    },
    PacketOut,
}

/// A packet whose walk waits.
pub(crate) struct Frozen {
    pub(crate) wait: Wait,
    pub(crate) frames: Frames,
}

/// A packet whose bytes change where no field tells of it.
pub(crate) struct Kept<P> {
    pkt: P,
    h: Headers,
    base: FlowKey,
    checked: bool,
}

/// One packet's walk.
pub(crate) struct Xlate<'a, P> {
    pub(crate) sw: &'a mut Switch,
    pub(crate) out: &'a mut Outputs<P>,
    pub(crate) pkt: P,
    pub(crate) h: Headers,
    /// What the packet's bytes say.
    pub(crate) base: FlowKey,
    /// What they shall say, with the pipeline's metadata.
    pub(crate) key: FlowKey,
    pub(crate) stack: Vec<(u128, u32)>,
    pub(crate) action_set: Vec<Action>,
    pub(crate) bridge: usize,
    pub(crate) table: u8,
    pub(crate) cookie: Origin,
    pub(crate) depth: u32,
    /// Nested table walks of any kind, but for those that a list of actions ends in.
    pub(crate) levels: u32,
    /// What `levels` was where the walk began, which `ct` begins anew.
    pub(crate) origin: u32,
    /// Bits of the key that lookups examined.
    pub(crate) wildcards: Wildcards,
    pub(crate) resubmits: u32,
    /// The packet's checksums hold; changes keep them so.
    pub(crate) checked: bool,
    /// The connection that the packet has in the zone that it passed last.
    pub(crate) pass: Option<crate::conntrack::Pass>,
    /// The tunnel that the packet came by; it counts while the key tells of one.
    pub(crate) outer: Option<crate::tunnel::Outer>,
    /// Lists around that go on with the packet as it is before them, and what it is there, if its bytes have changed.
    pub(crate) apart: u32,
    pub(crate) kept: Option<Box<Kept<P>>>,
    /// Walks behind `ct` that are open.
    pub(crate) nested: u32,
    /// Bridges entered and not left.
    pub(crate) crossed: u32,
    pub(crate) exit: bool,
    /// A meter has dropped the packet, or the copy that is at hand.
    pub(crate) metered: bool,
    /// What actions are carried out of.
    pub(crate) within: Within,
    /// The next lookup sees the connection's original tuple.
    pub(crate) original: bool,
    /// Nobody sees what happens to the packet behind what is being done.
    pub(crate) last: bool,
    /// The device that the packet itself leaves through when the walk has ended.
    pub(crate) leaves: Option<u32>,
    /// The queue of the ports that the packet leaves by.
    pub(crate) queue: Option<u16>,
    /// A bit for each of the bridge's mirrors that has its copy.
    pub(crate) mirrored: u32,
    pub(crate) frozen: Option<Frozen>,
    /// Packets sent, to ports or the controller.
    pub(crate) sent: u32,
    /// The packet has opened a connection.
    pub(crate) opened: bool,
    pub(crate) drop: Option<DropReason>,
    /// A limit was passed: nothing of the packet may leave.
    pub(crate) failed: bool,
    /// Outputs of earlier packets: (packets, events).
    pub(crate) before: (usize, usize),
    pub(crate) trace: Option<Box<crate::trace::Trace>>,
    /// What lookups find, as far as that is known.
    pub(crate) guide: Guide,
    /// What the walk does, for the flow cache.
    pub(crate) rec: Option<Box<crate::flowcache::recorder::Recorder>>,
}

impl<'a, P: PacketBuf> Xlate<'a, P> {
    pub(crate) fn new(sw: &'a mut Switch, out: &'a mut Outputs<P>, pkt: P, bridge: usize) -> Self {
        let mut key = FlowKey::new();
        let h = extract::extract(pkt.data(), sw.underlay.local.tags(), &mut key);
        let before = (out.packets.len(), out.events.len());
        Xlate {
            sw,
            out,
            pkt,
            h,
            base: key.clone(),
            key,
            stack: Vec::new(),
            action_set: Vec::new(),
            bridge,
            table: 0,
            cookie: Origin::NONE,
            depth: 0,
            levels: 0,
            origin: 0,
            wildcards: [0; WORDS],
            resubmits: 0,
            checked: false,
            pass: None,
            outer: None,
            apart: 0,
            kept: None,
            nested: 0,
            crossed: 0,
            exit: false,
            metered: false,
            within: Within::Flow,
            original: false,
            last: false,
            leaves: None,
            queue: None,
            mirrored: 0,
            frozen: None,
            sent: 0,
            opened: false,
            drop: None,
            failed: false,
            before,
            trace: None,
            guide: Guide::Open,
            rec: None,
        }
    }

    pub(crate) fn because(&mut self, r: DropReason) {
        use DropReason as D;
        let told = [
            D::TableMiss,
            D::NoLiveBucket,
            D::TtlExceeded,
            D::TunnelNoRoute,
            D::TunnelNoNeighbour,
            D::TunnelNoDestination,
        ];
        if !told.contains(&r) {
            self.warn(|| format!("drop: {}", r.name()));
        }
        if matches!(r, DropReason::TooDeep | DropReason::TooManyResubmits | DropReason::StackTooDeep) {
            self.failed = true;
            self.drop = Some(r);
        }
        self.drop.get_or_insert(r);
    }

    /// Whether nothing is done with the packet behind what is being done, so that nothing of it has to be kept.
    pub(crate) fn is_last(&self) -> bool {
        self.last && self.action_set.is_empty() && self.trace.is_none()
    }

    /// Does something behind which more is done with the packet.
    pub(crate) fn not_last<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let last = std::mem::take(&mut self.last);
        let made = body(self);
        self.last = last;
        made
    }

    /// Writes pending changes to the packet.
    pub(crate) fn commit(&mut self) -> bool {
        self.tell_changes();
        let ok = extract::commit(&mut self.pkt, &mut self.h, &mut self.base, &self.key);
        if !ok {
            self.because(DropReason::NoBuffer);
        }
        ok
    }

    /// Executes the action set and hands a frozen packet to the controller.
    pub(crate) fn finish(&mut self) {
        if self.frozen.is_none() {
            self.carry_out_set();
            (self.exit, self.metered) = (false, false);
        }
        self.thaw();
    }

    /// Carries out the action set, if nothing has ended the walk.
    fn carry_out_set(&mut self) {
        let set = std::mem::take(&mut self.action_set);
        if set.is_empty() || self.exit {
            return;
        }
        let set = crate::xlate::output::ordered_action_set(set);
        self.tell_action_set();
        // What wrote the set may have been in another stretch.
        self.stretch_ends();
        let within = std::mem::replace(&mut self.within, Within::ActionSet);
        // It is of the walk's first flow, whatever it looks up on the way.
        self.levels += 1;
        self.actions(&set);
        self.levels -= 1;
        self.within = within;
        self.stretch_ends();
        self.tell_up();
        self.tell_up();
    }

    /// Runs a list, as `body` does, on a copy of the packet, with a copy of its action set, which is carried out there.
    pub(crate) fn cloned(&mut self, list: &[Action], body: impl FnOnce(&mut Self)) {
        let (set, mut exit) = (self.action_set.clone(), false);
        // As in Open vSwitch, where something of the list cannot be undone, what is behind it finds the packet with the tags that
        // it had before; else tags are written again when it leaves, which counts where it is cut.
        let apart = !self.is_last() && self.trace.is_none() && !reversible(list);
        self.isolated(|x| {
            x.action_set = set;
            body(x);
            if x.frozen.is_none() {
                x.carry_out_set();
                exit = x.exit && !x.metered;
            }
        });
        self.metered = false;
        if apart && !extract::tags(&self.key).eq(extract::tags(&self.base)) {
            self.commit();
        }
        // As in Open vSwitch, an exit ends what is behind the list too.
        self.exit |= exit;
    }

    /// Runs something whose changes and pause must not reach what follows.
    pub(crate) fn isolated(&mut self, body: impl FnOnce(&mut Self)) {
        if self.is_last() {
            self.stretch_ends();
            body(self);
            self.thaw();
            self.stretch_ends();
            self.action_set.clear();
            self.exit = false;
            return;
        }
        let last = std::mem::take(&mut self.last);
        let saved = (
            self.key.clone(),
            self.stack.clone(),
            std::mem::take(&mut self.action_set),
            self.bridge,
            self.table,
            self.cookie,
            self.exit,
            self.mirrored,
        );
        let (pass, queue, kept) = (self.pass, self.queue, self.kept.take());
        self.apart += 1;
        self.stretch_ends();
        let translations = self.translations();
        body(self);
        self.thaw();
        self.stretch_ends();
        self.untranslated(translations);
        self.apart -= 1;
        if let Some(k) = std::mem::replace(&mut self.kept, kept) {
            (self.pkt, self.h, self.base, self.checked) = (k.pkt, k.h, k.base, k.checked);
        }
        let mirrored = self.mirrored;
        let bridge = self.bridge;
        (self.key, self.stack, self.action_set, self.bridge, self.table, self.cookie, self.exit, self.mirrored) = saved;
        (self.pass, self.queue, self.last) = (pass, queue, last);
        // A copy that was made within the bridge is made.
        if bridge == self.bridge {
            self.mirrored |= mirrored;
        }
    }

    /// Before bytes change of which no field tells: what is behind a clone finds them as they were.
    pub(crate) fn keep_bytes(&mut self) {
        if self.apart == 0 || self.kept.is_some() {
            return;
        }
        self.unrepeatable();
        match self.pkt.duplicate() {
            Some(pkt) => {
                let (h, base, checked) = (self.h, self.base.clone(), self.checked);
                self.kept = Some(Box::new(Kept { pkt, h, base, checked }));
            }
            None => self.because(DropReason::NoBuffer),
        }
    }

    /// Carries out a list; a pause puts the rest into the frozen packet.
    pub(crate) fn actions(&mut self, list: &[Action]) {
        self.not_last(|x| x.each(list));
    }

    fn each(&mut self, list: &[Action]) {
        let last = self.trace.as_ref().is_some_and(|t| t.last);
        for (i, a) in list.iter().enumerate() {
            if self.exit || self.failed {
                break;
            }
            self.told(Kind::Action, || a.to_string());
            let rest = list.get(i + 1..).unwrap_or_default();
            if let Some(t) = &mut self.trace {
                t.last = last && rest.is_empty();
                if let Action::CheckPktLarger { len, dst } = a {
                    self.larger_told(*len, dst, rest);
                    break;
                }
            }
            let go_on = self.action(a);
            if self.waits(rest) || !go_on {
                break;
            }
        }
        if let Some(t) = &mut self.trace {
            t.last = last;
        }
    }

    /// One action; false ends the list.
    pub(crate) fn action(&mut self, a: &Action) -> bool {
        if !self.notes(a) {
            return self.act(a);
        }
        self.stretch_ends();
        let go_on = self.act(a);
        self.stretch_ends();
        go_on
    }

    pub(crate) fn act(&mut self, a: &Action) -> bool {
        match a {
            Action::Output { port, max_len } => self.output(*port, *max_len),
            Action::OutputTrunc { port, max_len } => self.output_truncated(*port, *max_len as usize),
            Action::OutputReg { src, max_len } => {
                self.reads(src.field);
                self.output(PortNo(self.key.get_sub(src) as u16), *max_len);
            }
            Action::Controller(c) => self.controller(c),
            Action::Group(g) => self.group(*g),
            Action::SetField { field, value, mask } => self.set(*field, *value, mask.unwrap_or(u128::MAX)),
            Action::Load { value, dst } => self.set_sub(dst, u128::from(*value)),
            Action::Move { src, dst } => {
                self.reads(src.field);
                if prereq_ok(&self.key, src.field.def().prereq) {
                    let v = self.key.get_sub(src);
                    self.set_sub(dst, v);
                    self.now_is(dst);
                }
            }
            Action::Push(s) if self.stack.len() >= MAX_STACK => {
                let _ = s;
                self.because(DropReason::StackTooDeep);
                return false;
            }
            Action::Push(s) => {
                self.reads(s.field);
                self.stack.push((self.key.get_sub(s), s.n_bits));
            }
            Action::Pop(s) => match self.stack.pop() {
                Some((v, _)) => {
                    self.set_sub(s, v);
                    self.now_is(s);
                }
                None => self.because(DropReason::StackEmpty),
            },
            Action::PushVlan(t) => self.push_vlan(*t),
            Action::PopVlan => self.pop_vlan(),
            Action::DecTtl(ids) => return self.dec_ttl(ids.as_deref().unwrap_or(&[0])),
            Action::Resubmit { ct: true, .. } if !self.has_original() => {
                self.warn(|| "resubmit(ct) with non-tracked or non-IP packet!".into());
            }
            Action::Resubmit { port, table, ct } => {
                self.original = *ct;
                let p = if *port == PortNo::IN_PORT { self.own_port() } else { *port };
                let t = if *table == 255 { self.table } else { *table };
                self.lookup(t, p);
            }
            Action::GotoTable(t) => self.lookup(*t, self.own_port()),
            Action::Clone(list) if self.trace.is_some() => self.clone_told(list),
            Action::Clone(list) => self.cloned(list, |x| x.actions(list)),
            Action::Ct(c) if self.trace.is_some() => {
                if self.commit() {
                    self.ct_told(c);
                }
            }
            Action::Ct(c) => self.ct(c),
            Action::CtClear => self.clear_ct(),
            Action::Learn(l) => self.learn(l),
            Action::CheckPktLarger { len, dst } => {
                if !self.commit() {
                    return false;
                }
                let n = self.pkt.data().len();
                if let Some(r) = &mut self.rec {
                    r.compared(n, usize::from(*len));
                }
                self.set_sub(dst, u128::from(n > usize::from(*len)));
            }
            Action::Bundle(b) => self.bundle(b),
            Action::Meter(m) => {
                self.unrepeatable();
                let n = self.pkt.data().len();
                self.tell_datapath(|| format!("meter({m})"));
                if !self.dry() && !self.sw.meter_pass(self.bridge, *m, n) {
                    self.because(DropReason::Meter);
                    // The packet is gone, whatever would have been done with it.
                    (self.exit, self.metered) = (true, true);
                    return false;
                }
            }
            Action::ClearActions => {
                self.tell_set("was");
                self.action_set.clear();
                self.note_set();
            }
            Action::WriteActions(v) => {
                self.action_set.extend(v.iter().cloned());
                self.note_set();
                self.tell_set("is");
            }
            Action::WriteMetadata { value, mask } => self.key.set_masked(F::Metadata, (*value).into(), (*mask).into()),
            Action::Exit => {
                self.exit = true;
                return false;
            }
            Action::DeleteField(f) => {
                self.key.set(*f, 0);
                if let Some((word, bit)) = f.presence()
                    && let Some(w) = self.key.0.get_mut(word)
                {
                    *w &= !bit;
                }
            }
            Action::Sample(s) => self.sample(s),
            // Queue 0 is what packets are in that name none; numbers that no queue can have are no queue's.
            Action::SetQueue(q) => self.queue = u16::try_from(*q).ok().filter(|q| *q != 0),
            Action::PopQueue => {
                self.queue = None;
                self.detail(|| "queue = 0".into());
            }
            Action::Conjunction { .. } | Action::Note(_) | Action::FinTimeout { .. } | Action::Nat(_) => {}
        }
        true
    }

    /// `actset_output` says where the action set outputs to.
    pub(crate) fn note_set(&mut self) {
        let port = self.action_set.iter().fold(PortNo::UNSET, |p, a| match a {
            Action::Output { port, .. } => *port,
            _ => p,
        });
        let grouped = self.action_set.iter().any(|a| matches!(a, Action::Group(_)));
        self.key.set(F::ActsetOutput, if grouped { PortNo::UNSET } else { port }.0.into());
    }

    /// Whether the packet has the tuple that its connection began with.
    fn has_original(&mut self) -> bool {
        self.unrepeatable();
        self.key.get(F::CtNwProto) != 0 && prereq_ok(&self.key, Prereq::Ip)
    }

    /// Swaps the packet's tuple and the one that its connection began with.
    pub(crate) fn swap_tuples(&mut self) {
        let (src, dst) = match self.key.get(F::EthType) {
            0x800 => ((F::IpSrc, F::CtNwSrc), (F::IpDst, F::CtNwDst)),
            _ => ((F::Ipv6Src, F::CtIpv6Src), (F::Ipv6Dst, F::CtIpv6Dst)),
        };
        for (a, b) in [src, dst, (F::IpProto, F::CtNwProto), (F::TcpSrc, F::CtTpSrc), (F::TcpDst, F::CtTpDst)] {
            let (x, y) = (self.key.get(a), self.key.get(b));
            self.key.set(a, y);
            self.key.set(b, x);
        }
    }

    /// Tells what a field has become.
    fn now_is(&mut self, s: &Subfield) {
        let v = self.key.get_sub(s);
        self.detail(|| format!("{s} is now {v:#x}"));
    }

    /// Writes bits of words. Whether that changes the packet depends on what it said.
    #[inline]
    pub(crate) fn writes(&mut self, words: &[(u8, u64, u64)]) {
        if let Some(r) = self.rec.as_mut().filter(|r| r.looked.only) {
            for (word, mask, _) in words {
                r.looked.bits().get_mut(usize::from(*word)).into_iter().for_each(|x| *x |= mask);
            }
        }
        self.write(words);
    }

    pub(crate) fn reads(&mut self, f: F) {
        if let Some(r) = &mut self.rec {
            r.read(f);
        }
    }

    /// The walk asks for something beside the tables.
    pub(crate) fn needs(&mut self, n: Need) {
        if let Some(r) = &mut self.rec {
            r.need(n);
        }
    }

    pub(crate) fn set(&mut self, f: F, value: u128, mask: u128) {
        if prereq_ok(&self.key, f.def().prereq) {
            let f = if f == F::InPortOxm { F::InPort } else { f };
            self.key.set_masked(f, value, mask);
            if let Some((word, bit)) = f.presence()
                && let Some(w) = self.key.0.get_mut(word)
            {
                *w |= bit;
            }
        }
    }

    pub(crate) fn set_sub(&mut self, s: &Subfield, v: u128) {
        self.set(s.field, v << s.ofs, ones(s.n_bits) << s.ofs);
    }

    fn push_vlan(&mut self, tpid: u16) {
        let (tci, old) = (self.key.get(F::VlanTci), self.key.get(F::VlanTpid));
        self.key.set(F::Vlan1Tci, tci);
        self.key.set(F::Vlan1Tpid, old);
        // As Open vSwitch has it, the new tag takes nothing over from the one that it is put before.
        self.key.set(F::VlanTci, 0x1000);
        self.key.set(F::VlanTpid, tpid.into());
    }

    fn pop_vlan(&mut self) {
        let (tci, tpid) = (self.key.get(F::Vlan1Tci), self.key.get(F::Vlan1Tpid));
        self.key.set(F::VlanTci, tci);
        self.key.set(F::VlanTpid, tpid);
        self.key.set(F::Vlan1Tci, 0);
        self.key.set(F::Vlan1Tpid, 0);
    }

    fn dec_ttl(&mut self, ids: &[u16]) -> bool {
        if !prereq_ok(&self.key, Prereq::Ip) {
            return true;
        }
        let (ttl, v4) = (self.key.get(F::IpTtl), self.key.get(F::EthType) == 0x800);
        if ttl > 1 {
            self.key.set(F::IpTtl, ttl - 1);
            return true;
        }
        for id in ids {
            let c = ControllerAction { id: *id, reason: PacketInReason::InvalidTtl, ..Default::default() };
            self.controller(&c);
        }
        self.warn(|| format!("IPv{} decrement TTL exception", if v4 { 4 } else { 6 }));
        self.because(DropReason::TtlExceeded);
        false
    }

    /// The pipeline metadata of a packet-in: everything that the packet's bytes do not say.
    fn metadata(&self) -> Match {
        let mut m = Match::new();
        m.set(F::InPort, self.key.get(F::InPort));
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
            let v = self.key.get(id);
            // An option may be there with nothing in it.
            let there = id.presence().is_some_and(|(word, bit)| self.key.0.get(word).is_some_and(|w| w & bit != 0));
            if !packet && whole && !skip && (v != 0 || there) {
                m.set(id, v);
            }
        }
        self.connection(&mut m);
        m
    }

    /// A tracked packet says its EtherType, and all of its connection's tuple.
    fn connection(&self, m: &mut Match) {
        let state = self.key.get(F::CtState) as u32;
        if state == 0 {
            return;
        }
        let kind = self.key.get(F::EthType);
        m.set(F::EthType, kind);
        if state & (flag::TRK | flag::INV) != flag::TRK || self.key.get(F::CtNwProto) == 0 {
            return;
        }
        let (src, dst) = if kind == 0x800 { (F::CtNwSrc, F::CtNwDst) } else { (F::CtIpv6Src, F::CtIpv6Dst) };
        for f in [src, dst, F::CtNwProto, F::CtTpSrc, F::CtTpDst] {
            m.set(f, self.key.get(f));
        }
    }

    pub(crate) fn controller(&mut self, c: &ControllerAction) {
        self.unrepeatable();
        if !self.commit() {
            return;
        }
        if self.dry() {
            self.sent += 1;
            if c.pause {
                // What waits for the controller goes no further in a trace.
                self.exit = true;
            }
            return;
        }
        let n = self.pkt.data().len();
        if c.meter_id.is_some_and(|m| !self.sw.meter_pass(self.bridge, m, n)) {
            return self.because(DropReason::Meter);
        }
        let data = self.pkt.data();
        // No packet is buffered, so that `max_len` has no effect, as in Open vSwitch.
        let pin = PacketIn {
            packet: data.to_vec(),
            total_len: n as u32,
            table: self.table,
            cookie: self.cookie.cookie,
            // What a table's last resort sends says that nothing else matched.
            reason: match c.reason {
                PacketInReason::Action if self.cookie.miss && !c.pause => PacketInReason::NoMatch,
                reason => reason,
            },
            metadata: self.metadata(),
            userdata: c.userdata.clone(),
            ..Default::default()
        };
        self.sent += 1;
        if let Some(b) = self.sw.bridges.get_mut(self.bridge) {
            b.packet_ins += 1;
        }
        if c.pause {
            self.frozen = Some(Frozen { wait: Wait::Controller(c.id, Box::new(pin)), frames: Vec::new() });
        } else {
            self.out.events.push(Event::PacketIn { bridge: self.bridge, controller: c.id, packet_in: Box::new(pin) });
        }
    }

    /// Hands a frozen packet to what it waits for.
    #[inline]
    pub(crate) fn thaw(&mut self) {
        if self.frozen.is_some() {
            self.hand_over();
        }
    }

    #[cold]
    fn hand_over(&mut self) {
        match self.frozen.take() {
            Some(Frozen { wait: Wait::Controller(controller, mut pin), frames }) => {
                // As Open vSwitch has it: no table, and the flow whose list of actions the pause ended.
                (pin.table, pin.cookie) = (0, self.cookie.cookie);
                pin.continuation =
                    Some(crate::xlate::continuation::encode(self.bridge, &self.stack, &self.action_set, &frames));
                self.out.events.push(Event::PacketIn { bridge: self.bridge, controller, packet_in: pin });
            }
            Some(Frozen { wait: Wait::Fragment(mut held), frames }) => {
                held.frames = frames;
                held.stack = self.stack.clone();
                held.action_set = self.action_set.clone();
                self.not_last(|x| x.reassemble(*held));
            }
            None => {}
        }
    }

    /// Goes on with what a pause left to do, to the end.
    pub(crate) fn go_on(&mut self, frames: Frames) {
        let mut frames = frames.into_iter();
        for (table, cookie, list) in frames.by_ref() {
            (self.table, self.cookie) = (table, cookie);
            // What is left to do is of the flow that the packet waited in, whatever it looks up on the way.
            self.levels += 1;
            self.actions(&list);
            self.levels -= 1;
            if self.frozen.is_some() {
                break;
            }
        }
        if let Some(f) = &mut self.frozen {
            f.frames.extend(frames);
        }
        self.finish();
    }

    fn learn(&mut self, l: &LearnAction) {
        self.unrepeatable();
        if self.dry() {
            return self.warn(|| "suppressing side effects, so learn action ignored".into());
        }
        let (matches, actions) = learned_flow(l, &self.key);
        let f = FlowMod {
            table: l.table,
            priority: l.priority,
            cookie: l.cookie,
            idle_timeout: l.idle_timeout,
            hard_timeout: l.hard_timeout,
            flags: FlowFlags(if l.send_flow_rem { FlowFlags::SEND_FLOW_REM } else { 0 }),
            matches,
            actions,
            ..Default::default()
        };
        let now = self.sw.now;
        // A flow that goes says what it counted.
        self.sw.count_guided();
        let Some(b) = self.sw.bridges.get_mut(self.bridge) else { return };
        // Where there are as many as there may be, none is replaced by another either, as in Open vSwitch.
        let room = l.limit == 0
            || b.tables.get(usize::from(l.table)).is_some_and(|t| {
                t.find(&f.matches, f.priority).is_some_and(|r| *r.actions == *f.actions)
                    || t.iter().filter(|r| r.cookie == l.cookie).count() < l.limit as usize
            });
        if room {
            b.learn_flow(&f, now);
        }
        if let Some(d) = &l.result_dst {
            self.set_sub(d, u128::from(room));
        }
    }
}

/// Whether what a list does to a packet can be undone by writing its fields back. A clone in it sees to itself.
pub(crate) fn reversible(list: &[Action]) -> bool {
    let lasts =
        |a: &Action| matches!(a, Action::Ct(_) | Action::Meter(_) | Action::Nat(_) | Action::OutputTrunc { .. });
    !list.iter().any(lasts)
}

/// A good mixing of 64 bits.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

/// Whether a packet has a field.
#[inline]
pub(crate) fn prereq_ok(k: &FlowKey, p: Prereq) -> bool {
    let kind = || k.get(F::EthType);
    let v4 = || kind() == 0x800;
    let v6 = || kind() == 0x86dd;
    let ip = || v4() || v6();
    let first = |proto| k.get(F::IpProto) == proto && k.get(F::IpFrag) & 2 == 0;
    let nd = |types: &[u128]| {
        v6() && k.get(F::IpProto) == 58 && types.contains(&k.get(F::Icmpv6Type)) && k.get(F::Icmpv6Code) == 0
    };
    match p {
        Prereq::None => true,
        Prereq::Vlan => k.get(F::VlanTci) & 0x1000 != 0,
        Prereq::Arp => matches!(kind(), 0x806 | 0x8035),
        Prereq::Ipv4 => v4(),
        Prereq::Ipv6 => v6(),
        Prereq::Ip => ip(),
        Prereq::Ct | Prereq::Ct4 | Prereq::Ct6 => k.get(F::CtState) as u32 & (flag::NEW | flag::EST | flag::RPL) != 0,
        Prereq::Tcp => ip() && first(6),
        Prereq::Udp => ip() && first(17),
        Prereq::Sctp => ip() && first(132),
        Prereq::Icmp4 => v4() && first(1),
        Prereq::Icmp6 => v6() && first(58),
        Prereq::Nd => nd(&[135, 136]),
        Prereq::NdSolicit => nd(&[135]),
        Prereq::NdAdvert => nd(&[136]),
    }
}
