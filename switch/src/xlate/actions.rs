//! Actions: what each does to the key and the walk, and lists of them.

use crate::bridge::groups::ordered_action_set;
use crate::buf::PacketBuf;
use crate::conntrack::flag;
use crate::dependency::Dependency;
use crate::drops::DropReason;
use crate::xlate::{Kind, MAX_STACK, Observer, SlowPath, Xlate};
use openflow_rs::action::{Action, ControllerAction, DebugAction, ETH_NSH, LearnAction, PacketInReason, learned_flow};
use openflow_rs::mods::{FlowFlags, FlowMod};
use openflow_rs::{FieldId as F, FlowKey, PortNo, Prereq, Subfield, TableId, ones};

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Executes a list of actions; if the walk freezes, the rest is kept in the frozen packet.
    pub(crate) fn actions(&mut self, list: &[Action]) {
        self.not_last(|x| O::list(x, list));
    }

    /// Executes a list; if nothing is done with the packet behind the list, nothing is behind its last action.
    pub(crate) fn last_actions(&mut self, list: &[Action]) {
        if !self.is_last() {
            return self.actions(list);
        }
        for (i, a) in list.iter().enumerate() {
            if self.pipeline.exit || self.pipeline.failed {
                break;
            }
            self.pipeline.last = i + 1 == list.len() && heeds_last(a);
            let go_on = self.action(a);
            if self.waits(list.get(i + 1..).unwrap_or_default()) || !go_on {
                break;
            }
        }
        self.pipeline.last = true;
    }

    /// Executes a list, action by action.
    pub(crate) fn each(&mut self, list: &[Action]) {
        for (i, a) in list.iter().enumerate() {
            if self.pipeline.exit || self.pipeline.failed {
                break;
            }
            let go_on = self.action(a);
            if self.waits(list.get(i + 1..).unwrap_or_default()) || !go_on {
                break;
            }
        }
    }

    /// Executes an action of a flow, and tells the observer first; false ends the list.
    pub(crate) fn action(&mut self, a: &Action) -> bool {
        if !self.observer.action(a, &self.packet.key, self.backer, self.pipeline.bridge) {
            return O::act(self, a);
        }
        self.segment_ends();
        let go_on = O::act(self, a);
        self.segment_ends();
        go_on
    }

    /// Executes an action; false ends the list.
    pub(crate) fn act(&mut self, a: &Action) -> bool {
        match a {
            Action::Output { port, max_len } => self.output(*port, *max_len),
            Action::OutputTrunc { port, max_len } => self.output_truncated(*port, *max_len as usize),
            Action::OutputReg { src, max_len } => {
                self.observer.reads(src.field);
                self.output(PortNo(self.packet.key.get_sub(src) as u16), *max_len);
            }
            Action::Controller(c) => self.controller(c),
            Action::Group(g) => self.group(*g),
            Action::SetField { field, value, mask, .. } => self.set(*field, *value, mask.unwrap_or(u128::MAX)),
            Action::SetTunnel { id, .. } => self.set(F::TunId, (*id).into(), u128::MAX),
            Action::Load { value, dst } => self.set_sub(dst, u128::from(*value)),
            Action::Move { src, dst } => {
                self.observer.reads(src.field);
                if prereq_ok(&self.packet.key, src.field.def().prereq) {
                    let v = self.packet.key.get_sub(src);
                    self.set_sub(dst, v);
                    self.now_is(dst);
                }
            }
            Action::Push(s) if self.pipeline.stack.len() >= MAX_STACK => {
                let _ = s;
                self.because(DropReason::StackTooDeep);
                return false;
            }
            Action::Push(s) => {
                self.observer.reads(s.field);
                self.pipeline.stack.push((self.packet.key.get_sub(s), s.n_bits));
            }
            Action::Pop(s) => match self.pipeline.stack.pop() {
                Some((v, _)) => {
                    self.set_sub(s, v);
                    self.now_is(s);
                }
                None => self.because(DropReason::StackEmpty),
            },
            Action::PushVlan(t) => self.push_vlan(*t),
            Action::PopVlan => self.pop_vlan(),
            Action::Mpls(m) => return self.mpls(*m),
            Action::Encap(e) => return self.encap(e),
            Action::Decap(becomes) => return self.decap(*becomes),
            Action::DecNshTtl => return self.dec_nsh_ttl(),
            Action::DecTtl(ids) => return self.dec_ttl(ids.as_deref().unwrap_or(&[0])),
            Action::Resubmit { ct: true, .. } if !self.has_original() => {
                self.observer.tell(Kind::Warning, || "resubmit(ct) with non-tracked or non-IP packet!".into());
            }
            Action::Resubmit { port, table, ct } => {
                self.pipeline.match_original_tuple = *ct;
                let p = if *port == PortNo::IN_PORT { self.own_port() } else { *port };
                let t = if *table == TableId::CURRENT { self.pipeline.table } else { *table };
                self.pipeline.heeds_misses = false;
                self.lookup(t, p);
            }
            Action::GotoTable(t) => {
                self.pipeline.heeds_misses = true;
                self.lookup(*t, self.own_port());
            }
            Action::Clone(list) => self.cloned(list, |x| x.actions(list)),
            Action::Ct(c) => self.ct(c),
            Action::CtClear => self.clear_ct(),
            Action::Learn(l) => self.learn(l),
            Action::CheckPktLarger { len, dst } => {
                if !self.commit() {
                    return false;
                }
                let n = self.wire_len();
                self.observer.compares_length(n, usize::from(*len));
                self.set_sub(dst, u128::from(n > usize::from(*len)));
            }
            Action::Bundle(b) => self.bundle(b),
            Action::Multipath(m) => self.multipath(m),
            Action::Meter(m) => {
                let (at, n) = (self.pipeline.bridge, self.packet.buf.data().len());
                self.observer.depends(Dependency::Meter(at, *m));
                let meter = self.backer.meter(at, *m);
                meter.iter().for_each(|m| self.observer.datapath(|| format!("meter({})", m.number)));
                let meter = meter.filter(|_| !self.is_uncounted());
                if meter.is_none_or(|meter| meter.pass(n, self.backer.now)) {
                    self.observer.meters(meter, n);
                } else {
                    self.observer.side_effect();
                    self.because(DropReason::Meter);
                    // The packet is dropped: nothing that follows is done.
                    (self.pipeline.exit, self.pipeline.metered) = (true, true);
                    return false;
                }
            }
            Action::ClearActions => {
                self.tell_set("was");
                self.pipeline.action_set.clear();
                self.note_set();
            }
            Action::WriteActions(v) => {
                self.pipeline.action_set.extend(v.iter().cloned());
                self.note_set();
                self.tell_set("is");
            }
            Action::WriteMetadata { value, mask } => {
                self.packet.key.set_masked(F::Metadata, (*value).into(), (*mask).into())
            }
            Action::Exit => {
                self.pipeline.exit = true;
                return false;
            }
            Action::DeleteField(f) => {
                self.packet.key.set(*f, 0);
                if let Some((word, bit)) = f.presence()
                    && let Some(w) = self.packet.key.0.get_mut(word)
                {
                    *w &= !bit;
                }
            }
            Action::Sample(s) => self.sample(s),
            // Queue 0 is the default; numbers above 65,535 mean it, too.
            Action::SetQueue(q) => self.packet.queue = u16::try_from(*q).ok().filter(|q| *q != 0),
            Action::PopQueue => {
                self.packet.queue = None;
                self.observer.tell(Kind::Detail, || "queue = 0".into());
            }
            Action::Debug(DebugAction::Slow) => self.observer.slow_path(SlowPath::Action),
            Action::Debug(DebugAction::Recirc)
            | Action::Conjunction { .. }
            | Action::Note(_)
            | Action::FinTimeout { .. }
            | Action::Nat(_) => {}
        }
        true
    }

    /// Sets the field `actset_output` to the port that the action set outputs to.
    pub(crate) fn note_set(&mut self) {
        let port = self.pipeline.action_set.iter().fold(PortNo::UNSET, |p, a| match a {
            Action::Output { port, .. } => *port,
            _ => p,
        });
        let grouped = self.pipeline.action_set.iter().any(|a| matches!(a, Action::Group(_)));
        self.packet.key.set(F::ActsetOutput, if grouped { PortNo::UNSET } else { port }.0.into());
    }

    /// Tells what the action set is, or was.
    fn tell_set(&mut self, verb: &str) {
        let set = &self.pipeline.action_set;
        self.observer.tell(Kind::Detail, || {
            let set = ordered_action_set(set.clone());
            let words: Vec<String> = set.iter().map(ToString::to_string).collect();
            let words = if words.is_empty() { "empty".into() } else { words.join(",") };
            format!("action set {verb}: {words}")
        });
    }

    /// Whether the packet has the original tuple of a connection.
    fn has_original(&mut self) -> bool {
        self.observer.side_effect();
        self.packet.key.get(F::CtNwProto) != 0 && prereq_ok(&self.packet.key, Prereq::Ip)
    }

    /// Swaps the packet's tuple and the original tuple of its connection.
    pub(crate) fn swap_tuples(&mut self) {
        let (src, dst) = match self.packet.key.get(F::EthType) {
            0x800 => ((F::IpSrc, F::CtNwSrc), (F::IpDst, F::CtNwDst)),
            _ => ((F::Ipv6Src, F::CtIpv6Src), (F::Ipv6Dst, F::CtIpv6Dst)),
        };
        for (a, b) in [src, dst, (F::IpProto, F::CtNwProto), (F::TcpSrc, F::CtTpSrc), (F::TcpDst, F::CtTpDst)] {
            let (x, y) = (self.packet.key.get(a), self.packet.key.get(b));
            self.packet.key.set(a, y);
            self.packet.key.set(b, x);
        }
    }

    /// Tells what a field has become.
    fn now_is(&mut self, s: &Subfield) {
        let v = self.packet.key.get_sub(s);
        self.observer.tell(Kind::Detail, || format!("{s} is now {v:#x}"));
    }

    /// Writes bits of a field, if the packet has it.
    pub(crate) fn set(&mut self, f: F, value: u128, mask: u128) {
        if prereq_ok(&self.packet.key, f.def().prereq) {
            let f = if f == F::InPortOxm { F::InPort } else { f };
            self.packet.key.set_masked(f, value, mask);
            if let Some((word, bit)) = f.presence()
                && let Some(w) = self.packet.key.0.get_mut(word)
            {
                *w |= bit;
            }
        }
    }

    /// Writes a part of a field, if the packet has it.
    pub(crate) fn set_sub(&mut self, s: &Subfield, v: u128) {
        self.set(s.field, v << s.ofs, ones(s.n_bits) << s.ofs);
    }

    fn push_vlan(&mut self, tpid: u16) {
        let (tci, old) = (self.packet.key.get(F::VlanTci), self.packet.key.get(F::VlanTpid));
        self.packet.key.set(F::Vlan1Tci, tci);
        self.packet.key.set(F::Vlan1Tpid, old);
        // As in Open vSwitch, the new tag takes nothing over from the outer tag.
        self.packet.key.set(F::VlanTci, 0x1000);
        self.packet.key.set(F::VlanTpid, tpid.into());
    }

    fn pop_vlan(&mut self) {
        let (tci, tpid) = (self.packet.key.get(F::Vlan1Tci), self.packet.key.get(F::Vlan1Tpid));
        self.packet.key.set(F::VlanTci, tci);
        self.packet.key.set(F::VlanTpid, tpid);
        self.packet.key.set(F::Vlan1Tci, 0);
        self.packet.key.set(F::Vlan1Tpid, 0);
    }

    fn dec_ttl(&mut self, ids: &[u16]) -> bool {
        if !prereq_ok(&self.packet.key, Prereq::Ip) {
            return true;
        }
        let (ttl, v4) = (self.packet.key.get(F::IpTtl), self.packet.key.get(F::EthType) == 0x800);
        if ttl > 1 {
            self.packet.key.set(F::IpTtl, ttl - 1);
            return true;
        }
        for id in ids {
            let c = ControllerAction { id: *id, reason: PacketInReason::InvalidTtl, ..Default::default() };
            self.controller(&c);
        }
        self.observer.tell(Kind::Warning, || format!("IPv{} decrement TTL exception", if v4 { 4 } else { 6 }));
        self.because(DropReason::TtlExceeded);
        false
    }

    fn learn(&mut self, l: &LearnAction) {
        let (matches, actions) = learned_flow(l, &self.packet.key);
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
        let (at, now) = (self.pipeline.bridge, self.backer.now);
        let there = self.backer.bridges.get(at).and_then(|b| b.as_learned(&f));
        if self.observer.dry() {
            self.observer.tell(Kind::Warning, || "suppressing side effects, so learn action ignored".into());
            return if there.is_some() {
                self.learned(l, true)
            };
        }
        if let Some(rule) = there {
            rule.renew(now);
            self.observer.learns(at, rule);
            return self.learned(l, true);
        }
        self.observer.side_effect();
        // A replaced flow reports its counters: pay them out first.
        self.observer.flows_change(self.backer);
        let Some(b) = self.backer.bridges.get_mut(at) else { return };
        // At the limit no flow is replaced by a different one either, as in Open vSwitch.
        let room = l.limit == 0
            || b.tables.get(l.table.index()).is_some_and(|t| {
                t.find(&f.matches, f.priority).is_some_and(|r| *r.actions == *f.actions)
                    || t.iter().filter(|r| r.cookie == l.cookie).count() < l.limit as usize
            });
        if room {
            // The action was validated: its table exists.
            let _ = b.add_flow(&f, now);
        }
        self.learned(l, room);
    }

    /// Writes whether there is a learned flow where an action wants that.
    fn learned(&mut self, l: &LearnAction, there: bool) {
        if let Some(d) = &l.result_dst {
            self.set_sub(d, u128::from(there));
        }
    }
}

/// Whether an action does otherwise where it is the last that is done with a packet: nothing of the packet is kept then.
pub(crate) fn heeds_last(a: &Action) -> bool {
    use Action as A;
    matches!(a, A::Output { .. } | A::Ct(_) | A::Clone(_) | A::Group(_) | A::Resubmit { .. } | A::GotoTable(_))
}

/// Whether a packet meets the prerequisite of a field.
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
        Prereq::Mpls => matches!(kind(), 0x8847 | 0x8848),
        Prereq::Nsh => kind() == ETH_NSH.into(),
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
