//! Walks: lookups, flow by flow or a stretch at once, and the lists of actions between them.

use crate::bridge::Fragments;
use crate::buf::PacketBuf;
use crate::classifier::{Rule, Step, Steps, Wildcards};
use crate::drops::DropReason;
use crate::flowcache::segment::{Guide, Hop};
use crate::trace::Kind;
use crate::xlate::segment::Op;
use crate::xlate::{MAX_DEPTH, MAX_LEVELS, MAX_RESUBMITS, Origin, Within, Xlate};
use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, PortNo};
use std::sync::Arc;

impl<P: PacketBuf> Xlate<'_, P> {
    /// Walks from a table to the end, action set included.
    pub(crate) fn run_table(&mut self, table: u8) {
        self.lookup(table, self.own_port());
        self.finish();
    }

    /// Walks from a table on; a list of actions that ends in another lookup goes on there.
    pub(crate) fn lookup(&mut self, table: u8, in_port: PortNo) {
        let before = (self.table, self.cookie, self.depth, self.levels);
        let within = self.within;
        if let Within::Bucket { of_set } = within {
            self.within = if of_set { Within::ActionSet } else { Within::Flow };
        }
        let first = self.chain(before.3, Some((table, in_port)), None);
        self.within = within;
        (self.depth, self.levels) = (before.2, before.3);
        // What a packet that waits for the controller is said to come from is the first flow of its walk.
        let at = if self.levels > self.origin { Some((before.0, before.1)) } else { first };
        if let Some(at) = at {
            (self.table, self.cookie) = at;
        }
    }

    /// Lookups that follow each other, as the last action of one flow is the next lookup; gives the first flow as its table and
    /// cookie.
    pub(crate) fn chain(
        &mut self,
        levels: u32,
        mut next: Option<(u8, PortNo)>,
        mut first: Option<(u8, Origin)>,
    ) -> Option<(u8, Origin)> {
        // A stretch that begins here ends here.
        let mut begun = false;
        while let Some((table, in_port)) = next.take() {
            // Walking forward through the tables does not deepen; going back or staying does.
            let within = first.is_some() || levels > self.origin;
            let deepens = u32::from(within && table <= self.table);
            self.levels = levels;
            if matches!(self.guide, Guide::Open) && !self.original {
                begun = true;
                if let Some(s) = self.foretold(table, in_port, deepens) {
                    first = first.or_else(|| s.first());
                    next = self.carry(&s, deepens).map(|t| (t, self.own_port()));
                    continue;
                }
            }
            let Some(rule) = self.rule(table, in_port, deepens) else { break };
            (self.table, self.cookie) = (table, rule.origin());
            first.get_or_insert((table, rule.origin()));
            self.depth += deepens;
            self.levels = levels + 1;
            if self.trace.is_none() {
                next = self.steps(&rule.actions, &rule.steps, 0).map(|t| (t, self.own_port()));
                continue;
            }
            self.tell_rule(table, &rule);
            self.actions(&rule.actions);
            self.tell_up();
        }
        if begun {
            self.stretch_ends();
        }
        first
    }

    /// The rule of a table that the packet meets, and counts for.
    fn rule(&mut self, table: u8, in_port: PortNo, deepens: u32) -> Option<Arc<Rule>> {
        if self.depth + deepens > MAX_DEPTH || self.levels >= MAX_LEVELS {
            self.guide = Guide::Off;
            self.because(DropReason::TooDeep);
            return None;
        }
        self.resubmits += 1;
        if self.resubmits > MAX_RESUBMITS {
            self.guide = Guide::Off;
            self.because(DropReason::TooManyResubmits);
            return None;
        }
        let Some(ports) = self.hide_ports() else {
            self.because(DropReason::Fragment);
            return None;
        };
        let real = self.key.get(F::InPort);
        self.key.set(F::InPort, in_port.0.into());
        let original = std::mem::take(&mut self.original);
        if original {
            self.guide = Guide::Off;
            self.swap_tuples();
        }
        let (dry, tracing) = (self.dry(), self.trace.is_some());
        let mut rule = None;
        if let Some(b) = self.sw.bridges.get_mut(self.bridge)
            && let Some(t) = b.tables.get(usize::from(table))
        {
            rule = match &mut self.guide {
                Guide::Notes(n) => {
                    let rule = t.lookup_least(&self.key, &mut n.looked, &mut n.chosen).cloned();
                    let flags = t.flags(&self.key);
                    note_flags(&mut self.wildcards, flags);
                    let hop = Hop { bridge: self.bridge, table, in_port, rule: rule.clone(), flags };
                    n.met(hop, self.depth + deepens, self.levels);
                    rule
                }
                _ if tracing => t.lookup(&self.key, &mut self.wildcards).cloned(),
                _ => match &mut self.rec {
                    Some(r) if r.looked.only => {
                        note_flags(&mut self.wildcards, t.flags(&self.key));
                        r.looked.lookup(t, &self.key).cloned()
                    }
                    _ => t.lookup_brief(&self.key, &mut self.wildcards).cloned(),
                },
            };
            if !dry && let Some(s) = b.table_stats.get_mut(usize::from(table)) {
                s.0 += 1;
                s.1 += u64::from(rule.is_some());
            }
            if let Some(r) = &mut self.rec {
                r.table(self.bridge, (table, t), &self.key, rule.as_ref(), self.pkt.data().len());
            }
        }
        self.key.set(F::InPort, real);
        if original {
            self.swap_tuples();
        }
        if let Some((source, destination)) = ports {
            self.key.set(F::TcpSrc, source);
            self.key.set(F::TcpDst, destination);
        }
        match &rule {
            Some(r) if !dry => r.hits(1, self.pkt.data().len() as u64, self.sw.now),
            Some(_) => {}
            None => {
                self.tell_down(Kind::Table, || format!("{table:2}. No match."));
                self.told(Kind::Action, || "drop".into());
                self.tell_up();
                self.because(DropReason::TableMiss);
            }
        }
        rule
    }

    fn tell_rule(&mut self, table: u8, rule: &Rule) {
        self.tell_down(Kind::Table, || {
            let m = rule.matches.to_string();
            let m = if m.is_empty() { String::new() } else { format!("{m}, ") };
            let cookie = if rule.cookie == 0 { String::new() } else { format!(", cookie {:#x}", rule.cookie) };
            format!("{table:2}. {m}priority {}{cookie}", rule.priority)
        });
        if rule.actions.is_empty() {
            self.told(Kind::Action, || "drop".into());
        }
    }

    /// Carries out actions from one of them on, as [`Xlate::actions`] does; gives the table that the last of them looks up, if it
    /// does. `steps` is what the actions are worked out to be.
    pub(crate) fn steps(&mut self, actions: &[Action], steps: &Steps, from: usize) -> Option<u8> {
        let last = self.last;
        let mut at = from;
        while let Some(step) = steps.list.get(at) {
            if self.exit || self.failed {
                return None;
            }
            let i = at;
            at += 1;
            let go_on = match *step {
                Step::Write { word, mask, value } => {
                    self.writes(&[(word, mask, value)]);
                    if let Guide::Notes(n) = &mut self.guide {
                        n.ops.push(Op::write(word, mask, value));
                    }
                    continue;
                }
                Step::Run(n) => {
                    let Some(run) = steps.runs.get(usize::from(n)) else { continue };
                    self.writes(&run.words);
                    if let Guide::Notes(n) = &mut self.guide {
                        n.ops.extend(run.words.iter().map(|(word, mask, value)| Op::write(*word, *mask, *value)));
                    }
                    at = run.next;
                    continue;
                }
                Step::Table(t) if i + 1 == steps.list.len() => return Some(t),
                Step::Table(t) => {
                    if let Guide::Notes(n) = &mut self.guide {
                        n.descends(i + 1, self.depth, self.levels);
                    }
                    self.last = last && i + 1 >= steps.seen;
                    self.lookup(t, self.own_port());
                    if let Guide::Notes(n) = &mut self.guide {
                        n.returns();
                    }
                    true
                }
                Step::Action | Step::Clone(_) => {
                    if let Guide::Notes(n) = &mut self.guide {
                        n.begins(i, self.depth, self.levels);
                    }
                    let inner = if let Step::Clone(n) = *step { steps.lists.get(usize::from(n)) } else { None };
                    self.last = last
                        && i + 1 >= steps.seen
                        && matches!(actions.get(i), Some(Action::Output { .. } | Action::Ct(_) | Action::Clone(_)));
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
                    if let Guide::Notes(n) = &mut self.guide {
                        n.done();
                    }
                    go_on
                }
            };
            let ends = std::mem::replace(&mut self.last, last);
            if self.waits(actions.get(i + 1..).unwrap_or_default()) || !go_on || ends {
                return None;
            }
        }
        None
    }

    /// Whether the packet waits; what is left to do is put by then.
    #[inline]
    pub(crate) fn waits(&mut self, rest: &[Action]) -> bool {
        self.frozen.is_some() && self.put_by(rest)
    }

    #[cold]
    fn put_by(&mut self, rest: &[Action]) -> bool {
        let Some(f) = &mut self.frozen else { return false };
        if !rest.is_empty() {
            f.frames.push((self.table, self.cookie, rest.to_vec()));
        }
        true
    }

    /// Takes a fragment's transport ports (and with them ICMP's type and code) out of a lookup's sight, if it has them
    /// and they are not to be seen. `None`: no fragments are wanted.
    fn hide_ports(&mut self) -> Option<Option<(u128, u128)>> {
        if self.key.get(F::IpFrag) == 0 {
            return Some(None);
        }
        match self.sw.bridges.get(self.bridge).map(|b| b.fragments).unwrap_or_default() {
            Fragments::Drop => None,
            Fragments::Match => Some(None),
            Fragments::Normal => {
                let ports = (self.key.get(F::TcpSrc), self.key.get(F::TcpDst));
                self.key.set(F::TcpSrc, 0);
                self.key.set(F::TcpDst, 0);
                Some(Some(ports))
            }
        }
    }
}

/// Flows look at these TCP flags, in their place of the key.
pub(crate) fn note_flags(wc: &mut Wildcards, flags: u64) {
    if let Some(x) = wc.get_mut(F::TcpFlags.word()) {
        *x |= flags;
    }
}
