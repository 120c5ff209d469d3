//! The pipeline: lookups, one by one or a segment at once, and lists of actions.

use crate::bridge::groups::ordered_action_set;
use crate::bridge::hidden::hidden_priority;
use crate::bridge::misses::OnMiss;
use crate::bridge::{Fragments, Port};
use crate::buf::PacketBuf;
use crate::classifier::{Origin, Rule, Step, Steps};
use crate::drops::DropReason;
use crate::events::Miss;
use crate::ids::BridgeId;
use crate::xlate::controller::Frozen;
use crate::xlate::{Kind, Lookup, MAX_DEPTH, MAX_LEVELS, MAX_RESUBMITS, Observer, Xlate, heeds_last, prereq_ok};
use openflow_rs::action::{Action, ControllerAction, PacketInReason};
use openflow_rs::{FieldId as F, PortNo, Prereq, TableId};
use std::sync::Arc;

/// What an action belongs to: packet-ins give it as their reason.
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

/// Whether a lookup is that of `goto_table`.
fn is_goto(a: Option<&Action>) -> bool {
    matches!(a, Some(Action::GotoTable(_)))
}

/// Where a walk is in the tables, and its result so far.
pub(crate) struct Pipeline {
    pub(crate) bridge: BridgeId,
    pub(crate) table: TableId,
    /// The flow whose actions run.
    pub(crate) flow: Origin,
    /// What these actions belong to.
    pub(crate) within: Within,
    /// Values of `push`, with their widths in bits.
    pub(crate) stack: Vec<(u128, u32)>,
    pub(crate) action_set: Vec<Action>,
    /// Nested resubmits to the same or an earlier table.
    pub(crate) depth: u32,
    /// Nested lookups, except those at the end of a list of actions.
    pub(crate) levels: u32,
    /// `levels` at the beginning of the walk, or of the part after the last `ct`.
    pub(crate) first_level: u32,
    pub(crate) resubmits: u32,
    /// Nested walks after `ct`.
    pub(crate) ct_depth: u32,
    /// Bridges entered and not left.
    pub(crate) bridge_hops: u32,
    /// The next lookup sees the tuple that the packet's connection began with.
    pub(crate) match_original_tuple: bool,
    /// If no flow matches in the next lookup, what the table is set to do is done. Behind `resubmit` such packets are
    /// always dropped.
    pub(crate) heeds_misses: bool,
    /// The packet is not used after the current action.
    pub(crate) last: bool,
    /// `exit` ended the walk.
    pub(crate) exit: bool,
    /// A meter has dropped the packet, or the copy that is at hand.
    pub(crate) metered: bool,
    /// The packet is a fragment that went on behind a `ct`.
    pub(crate) resumed: bool,
    /// The packet is a fragment that was put by until its datagram is complete.
    pub(crate) put_by: bool,
    /// The packet has waited for word of its connection.
    pub(crate) waited: bool,
    /// The walk waits.
    pub(crate) frozen: Option<Frozen>,
    /// Packets sent, to ports or the controller.
    pub(crate) sent: u32,
    /// One was sent to a bridge's own port.
    pub(crate) reached_host: bool,
    /// Why the packet is dropped, if nothing of it is sent.
    pub(crate) drop: Option<DropReason>,
    /// A limit was passed: nothing of the packet may leave.
    pub(crate) failed: bool,
    /// Samples of it that were taken.
    pub(crate) samples: usize,
    /// Packets, events and BFD packets in the outputs before this walk.
    pub(crate) before: (usize, usize, usize),
}

impl Pipeline {
    /// The beginning of a walk in a bridge.
    #[inline(always)]
    pub(super) fn new(bridge: BridgeId, before: (usize, usize, usize)) -> Pipeline {
        Pipeline {
            bridge,
            table: TableId::FIRST,
            flow: Origin::NONE,
            within: Within::Flow,
            stack: Vec::new(),
            action_set: Vec::new(),
            depth: 0,
            levels: 0,
            first_level: 0,
            resubmits: 0,
            ct_depth: 0,
            bridge_hops: 0,
            match_original_tuple: false,
            heeds_misses: true,
            last: false,
            exit: false,
            metered: false,
            resumed: false,
            put_by: false,
            waited: false,
            frozen: None,
            sent: 0,
            samples: 0,
            reached_host: false,
            drop: None,
            failed: false,
            before,
        }
    }
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Walks from a table to the end, action set included.
    pub(crate) fn run_table(&mut self, table: TableId) {
        self.pipeline.heeds_misses = true;
        self.lookup(table, self.own_port());
        self.finish();
    }

    /// Executes the action set and hands a frozen packet to the controller.
    pub(crate) fn finish(&mut self) {
        if self.pipeline.frozen.is_none() {
            self.carry_out_set();
            (self.pipeline.exit, self.pipeline.metered) = (false, false);
        }
        self.thaw();
    }

    /// Carries out the action set, if nothing has ended the walk.
    pub(super) fn carry_out_set(&mut self) {
        let set = std::mem::take(&mut self.pipeline.action_set);
        if set.is_empty() || self.pipeline.exit {
            return;
        }
        let set = ordered_action_set(set);
        self.observer.open_action_set();
        // What wrote the set may have been in another segment.
        self.segment_ends();
        let within = std::mem::replace(&mut self.pipeline.within, Within::ActionSet);
        // The action set belongs to the walk's first flow, whatever is looked up on the way.
        self.pipeline.levels += 1;
        self.actions(&set);
        self.pipeline.levels -= 1;
        self.pipeline.within = within;
        self.segment_ends();
        self.observer.close();
        self.observer.close();
    }

    /// Looks the packet up in a table and executes the flow's actions, further lookups included.
    pub(crate) fn lookup(&mut self, table: TableId, in_port: PortNo) {
        let before = (self.pipeline.table, self.pipeline.flow, self.pipeline.depth, self.pipeline.levels);
        let within = self.pipeline.within;
        if let Within::Bucket { of_set } = within {
            self.pipeline.within = if of_set { Within::ActionSet } else { Within::Flow };
        }
        let first = self.chain(before.3, Some((table, in_port)), None);
        self.pipeline.within = within;
        (self.pipeline.depth, self.pipeline.levels) = (before.2, before.3);
        // A packet-in of a paused walk names the first flow.
        let at = if self.pipeline.levels > self.pipeline.first_level { Some((before.0, before.1)) } else { first };
        if let Some(at) = at {
            (self.pipeline.table, self.pipeline.flow) = at;
        }
    }

    /// Runs lookups as long as the last action of each flow is the next lookup; returns the table and cookie of the
    /// first flow.
    pub(crate) fn chain(
        &mut self,
        levels: u32,
        mut next: Option<(TableId, PortNo)>,
        mut first: Option<(TableId, Origin)>,
    ) -> Option<(TableId, Origin)> {
        // A segment that begins here ends here.
        let mut begun = false;
        while let Some((table, in_port)) = next.take() {
            // A resubmit to a later table does not count as depth; one to the same or an earlier table does.
            let within = first.is_some() || levels > self.pipeline.first_level;
            let deepens = u32::from(within && table <= self.pipeline.table);
            self.pipeline.levels = levels;
            let hidden = if table == TableId::FIRST { self.hidden_flow(in_port) } else { None };
            let is_hidden = hidden.is_some();
            // Segments are of packets with an Ethernet header.
            let ethernet = self.packet.key.get(F::PacketType) == 0;
            if ethernet && !is_hidden && self.observer.may_begin_segment() && !self.pipeline.match_original_tuple {
                begun = true;
                if let Some(s) = self.known_segment(table, in_port, deepens) {
                    first = first.or_else(|| s.first());
                    next = self.carry(&s, deepens).map(|t| (t, self.own_port()));
                    continue;
                }
            }
            let rule = match hidden.map_or_else(|| self.rule(table, in_port, deepens), Ok) {
                Ok(rule) => rule,
                Err(further) => {
                    next = further.map(|t| (t, in_port));
                    continue;
                }
            };
            self.begin_rule(table, &rule);
            first.get_or_insert((table, rule.origin()));
            self.pipeline.depth += deepens;
            self.pipeline.levels = levels + 1;
            if !O::TRACES {
                next = self.steps(&rule.actions, &rule.steps, 0).map(|t| (t, self.own_port()));
                continue;
            }
            let priority = if is_hidden { hidden_priority(&rule) } else { rule.priority.into() };
            self.tell_rule(table, &rule, priority);
            self.actions(&rule.actions);
            self.observer.close();
        }
        if begun {
            self.segment_ends();
        }
        first
    }

    /// The actions of a rule are carried out from here on. The end of a TCP connection lowers the timeouts of those with
    /// a `fin_timeout`.
    #[inline]
    pub(super) fn begin_rule(&mut self, table: TableId, rule: &Arc<Rule>) {
        (self.pipeline.table, self.pipeline.flow) = (table, rule.origin());
        if rule.shortens() {
            self.shorten(rule);
        }
    }

    #[cold]
    fn shorten(&mut self, rule: &Rule) {
        /// FIN and RST (RFC 9293 section 3.1).
        const ENDS: u128 = 0x05;
        [F::IpProto, F::TcpFlags].into_iter().for_each(|f| self.observer.decides(f));
        if prereq_ok(&self.packet.key, Prereq::Tcp) && self.packet.key.get(F::TcpFlags) & ENDS != 0 {
            self.observer.side_effect();
            if !self.observer.dry() {
                rule.end();
            }
        }
    }

    /// Nothing counts the packet: it is traced, whatever effects that has.
    pub(crate) fn is_uncounted(&self) -> bool {
        O::TRACES || self.observer.dry()
    }

    /// Looks up a table and counts the packet for the rule. Without one, gives the table to go on with, if there is one.
    fn rule(&mut self, table: TableId, in_port: PortNo, deepens: u32) -> Result<Arc<Rule>, Option<TableId>> {
        if self.pipeline.depth + deepens > MAX_DEPTH || self.pipeline.levels >= MAX_LEVELS {
            self.observer.segment_is_lost();
            self.because(DropReason::TooDeep);
            return Err(None);
        }
        self.pipeline.resubmits += 1;
        if self.pipeline.resubmits > MAX_RESUBMITS {
            self.observer.segment_is_lost();
            self.because(DropReason::TooManyResubmits);
            return Err(None);
        }
        let Some(ports) = self.hide_ports(self.pipeline.bridge) else {
            self.observer.open(Kind::Table, || {
                format!("{table:2}. Packets are IP fragments and the fragment handling mode is \"drop\".")
            });
            self.observer.tell(Kind::Action, || "drop".into());
            self.observer.close();
            self.because(DropReason::Fragment);
            return Err(None);
        };
        let real = self.packet.key.get(F::InPort);
        self.packet.key.set(F::InPort, in_port.0.into());
        let original = std::mem::take(&mut self.pipeline.match_original_tuple);
        if original {
            self.observer.segment_is_lost();
            self.swap_tuples();
        }
        let (dry, len) = (self.is_uncounted(), self.flow_len());
        let mut rule = None;
        if let Some(b) = self.backer.bridges.get_mut(self.pipeline.bridge)
            && let Some(t) = b.tables.get(table.index())
        {
            rule = self.observer.lookup(&Lookup {
                bridge: self.pipeline.bridge,
                table,
                classifier: t,
                key: &self.packet.key,
                in_port,
                depth: self.pipeline.depth + deepens,
                levels: self.pipeline.levels,
                len,
            });
            if !dry && let Some(s) = b.table_stats.get_mut(table.index()) {
                s.0 += 1;
                s.1 += u64::from(rule.is_some());
            }
        }
        self.packet.key.set(F::InPort, real);
        if original {
            self.swap_tuples();
        }
        self.show_ports(ports);
        if let Some(r) = &rule
            && !dry
        {
            r.hits(1, len as u64, self.backer.now);
        }
        rule.ok_or_else(|| self.no_match(table))
    }

    /// No flow of a table matches: gives the table to go on with, if there is one.
    fn no_match(&mut self, table: TableId) -> Option<TableId> {
        let heeded = self.backer.bridges.get(self.pipeline.bridge).filter(|_| self.pipeline.heeds_misses);
        let on_miss = heeded.map_or(OnMiss::Drop, |b| b.on_miss(table));
        if on_miss != OnMiss::Drop {
            self.observer.segment_is_lost();
            self.observer.side_effect();
        }
        let port = heeded.and_then(|b| b.ports.get(&self.own_port()));
        let silent = port.is_none_or(|p| p.config & Port::NO_PACKET_IN != 0);
        match on_miss {
            OnMiss::Table(t) => return Some(t),
            OnMiss::Controller if !silent => {
                (self.pipeline.table, self.pipeline.flow) = (table, Origin::with(0));
                self.observer.open(Kind::Table, || format!("{table:2}. No match, and a \"packet-in\" is called for."));
                self.observer.tell(Kind::Action, || "controller(reason=no_match)".into());
                let reason = PacketInReason::NoMatch;
                self.packet_in(&ControllerAction { max_len: u16::MAX, reason, ..Default::default() }, Miss::NoFlow);
                self.observer.close();
            }
            OnMiss::Controller | OnMiss::Drop => {
                self.observer.open(Kind::Table, || format!("{table:2}. No match."));
                self.observer.tell(Kind::Action, || "drop".into());
                self.observer.close();
                self.because(DropReason::TableMiss);
            }
        }
        None
    }

    fn tell_rule(&mut self, table: TableId, rule: &Rule, priority: u32) {
        let m = self.observer.named(rule.matches.to_string(), self.backer.bridges.get(self.pipeline.bridge));
        self.observer.open(Kind::Table, || {
            let m = if m.is_empty() { String::new() } else { format!("{m}, ") };
            let cookie = if rule.cookie == 0 { String::new() } else { format!(", cookie {:#x}", rule.cookie) };
            format!("{table:2}. {m}priority {priority}{cookie}")
        });
        if rule.actions.is_empty() {
            self.observer.tell(Kind::Action, || "drop".into());
        }
    }

    /// Executes actions from index `from` on in their compiled form (`steps`). If the last one is a lookup, its table
    /// is returned instead.
    pub(crate) fn steps(&mut self, actions: &[Action], steps: &Steps, from: usize) -> Option<TableId> {
        let last = self.pipeline.last;
        let mut at = from;
        while let Some(step) = steps.list.get(at) {
            if self.pipeline.exit || self.pipeline.failed {
                return None;
            }
            let i = at;
            at += 1;
            let go_on = match *step {
                Step::Write { word, mask, value } => {
                    self.observer.writes(&[(word, mask, value)]);
                    self.write(&[(word, mask, value)]);
                    continue;
                }
                Step::Run(n) => {
                    let Some(run) = steps.runs.get(usize::from(n)) else { continue };
                    self.observer.writes(&run.words);
                    self.write(&run.words);
                    at = run.next;
                    continue;
                }
                Step::Table(t) if i + 1 == steps.list.len() => {
                    self.pipeline.heeds_misses = is_goto(actions.get(i));
                    return Some(t);
                }
                Step::Table(t) => {
                    self.pipeline.heeds_misses = is_goto(actions.get(i));
                    self.observer.resubmits(i + 1, self.pipeline.depth, self.pipeline.levels);
                    self.pipeline.last = last && i + 1 >= steps.seen;
                    self.lookup(t, self.own_port());
                    self.observer.resubmitted();
                    true
                }
                Step::Action | Step::Clone(_) => {
                    self.observer.action_begins(i, self.pipeline.depth, self.pipeline.levels);
                    let inner = if let Step::Clone(n) = *step { steps.lists.get(usize::from(n)) } else { None };
                    self.pipeline.last = last && i + 1 >= steps.seen && actions.get(i).is_some_and(heeds_last);
                    let go_on = match (actions.get(i), inner) {
                        (Some(Action::Clone(list)), Some(inner)) => {
                            self.cloned(list, |x| {
                                if let Some(t) = x.steps(list, inner, 0) {
                                    x.lookup(t, x.own_port());
                                }
                            });
                            true
                        }
                        (a, _) => a.is_some_and(|a| self.action(a)),
                    };
                    self.observer.action_done();
                    go_on
                }
            };
            let ends = std::mem::replace(&mut self.pipeline.last, last);
            if self.waits(actions.get(i + 1..).unwrap_or_default()) || !go_on || ends {
                return None;
            }
        }
        None
    }

    /// Whether the walk is frozen; then `rest` is kept.
    #[inline]
    pub(crate) fn waits(&mut self, rest: &[Action]) -> bool {
        self.pipeline.frozen.is_some() && self.put_by(rest)
    }

    #[cold]
    fn put_by(&mut self, rest: &[Action]) -> bool {
        let Some(f) = &mut self.pipeline.frozen else { return false };
        if !rest.is_empty() {
            f.frames.push((self.pipeline.table, self.pipeline.flow, rest.to_vec()));
        }
        true
    }

    /// Hides transport ports (and ICMP type and code) of a fragment from a lookup, as the bridge's mode wants, and
    /// returns them. `None`: the bridge drops fragments.
    #[inline]
    pub(super) fn hide_ports(&mut self, bridge: BridgeId) -> Option<Option<(u128, u128)>> {
        if self.packet.key.get(F::IpFrag) == 0 {
            return Some(None);
        }
        self.hide_ports_of_fragment(bridge)
    }

    fn hide_ports_of_fragment(&mut self, bridge: BridgeId) -> Option<Option<(u128, u128)>> {
        match self.backer.bridges.get(bridge).map(|b| b.fragments).unwrap_or_default() {
            Fragments::Drop => None,
            Fragments::Match => Some(None),
            Fragments::Normal => {
                let ports = (self.packet.key.get(F::TcpSrc), self.packet.key.get(F::TcpDst));
                self.packet.key.set(F::TcpSrc, 0);
                self.packet.key.set(F::TcpDst, 0);
                Some(Some(ports))
            }
        }
    }

    /// Undoes [`Xlate::hide_ports`].
    #[inline]
    pub(super) fn show_ports(&mut self, ports: Option<(u128, u128)>) {
        if let Some((source, destination)) = ports {
            self.packet.key.set(F::TcpSrc, source);
            self.packet.key.set(F::TcpDst, destination);
        }
    }
}
