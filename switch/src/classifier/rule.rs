//! Installed flows: match, compiled actions, counters.

use openflow_rs::action::Action;
use openflow_rs::mods::{FlowFlags, FlowMod};
use openflow_rs::{FieldId, Match, PortNo, Prereq, TableId, ones};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// An installed flow.
#[derive(Debug)]
pub struct Rule {
    /// Table.
    pub table: TableId,
    /// Priority.
    pub priority: u16,
    /// Match.
    pub matches: Match,
    /// Cookie.
    pub cookie: u64,
    /// Actions.
    pub actions: Arc<[Action]>,
    /// Idle and hard timeout in seconds; 0: none.
    timeouts: [u16; 2],
    /// Those that its `fin_timeout` sets at most once a TCP connection has ended.
    fin: Option<[u16; 2]>,
    /// One has.
    ended: AtomicBool,
    /// Flags.
    pub flags: FlowFlags,
    /// Importance for eviction: flows with less go first.
    pub importance: u16,
    /// When it was added.
    pub created: Duration,
    /// When it was last modified, in nanoseconds: its hard timeout begins anew then.
    modified: AtomicU64,
    /// The compiled actions.
    pub(crate) steps: Steps,
    /// It is a part of conjunctions.
    soft: bool,
    /// Shared with rules that it replaced or that replaced it, if they continue its counters.
    counters: Arc<Counters>,
}

/// The flow that actions belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) cookie: u64,
    /// It is the table-miss flow: priority 0, no match (OpenFlow 1.5 section 5.4).
    pub(crate) miss: bool,
}

impl Origin {
    /// No flow.
    pub(crate) const NONE: Origin = Origin::with(u64::MAX);

    pub(crate) const fn with(cookie: u64) -> Origin {
        Origin { cookie, miss: false }
    }
}

/// What a frozen walk has left to do: (table, flow, actions), innermost first.
pub(crate) type Frames = Vec<(TableId, Origin, Vec<Action>)>;

/// A compiled action.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A masked write to a word of the key, for fields that every packet has.
    Write {
        /// Which word.
        word: u8,
        /// Which bits.
        mask: u64,
        /// The value, zero outside the mask.
        value: u64,
    },
    /// Several such writes, by their number in [`Steps::runs`].
    Run(u16),
    /// A lookup in a table, with the ingress port that the packet has.
    Table(TableId),
    /// A list of actions on a copy of the packet, by its number in [`Steps::lists`].
    Clone(u16),
    /// Anything else: the action itself is executed.
    Action,
}

/// A compiled list of actions.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) list: Box<[Step]>,
    /// For lists within the list.
    pub(crate) lists: Box<[Steps]>,
    pub(crate) runs: Box<[Run]>,
    /// Steps from this index on have no effect unless the packet is used after the list.
    pub(crate) seen: usize,
}

/// Consecutive writes, merged into one masked write per word.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) words: Box<[(u8, u64, u64)]>,
    /// The index of the step after them.
    pub(crate) next: usize,
}

impl Run {
    /// Merges the writes at `at` and after; `None` for less than two.
    fn of(list: &[Step], from: usize) -> Option<Run> {
        let mut words: Vec<(u8, u64, u64)> = Vec::new();
        let mut next = from;
        while let Some(Step::Write { word, mask, value }) = list.get(next) {
            match words.iter_mut().find(|w| w.0 == *word) {
                Some((_, m, v)) => (*m, *v) = (*m | mask, *v & !mask | value),
                None => words.push((*word, *mask, *value)),
            }
            next += 1;
        }
        (next > from + 1).then(|| Run { words: words.into(), next })
    }
}

/// Whether an action has no effect but on later actions.
fn prepares(a: &Action) -> bool {
    match a {
        Action::SetField { .. }
        | Action::SetTunnel { .. }
        | Action::Load { .. }
        | Action::Move { .. }
        | Action::PushVlan(_)
        | Action::PopVlan
        | Action::CtClear
        | Action::SetQueue(_)
        | Action::PopQueue
        | Action::Debug(_)
        | Action::Note(_) => true,
        Action::Output { .. }
        | Action::OutputTrunc { .. }
        | Action::OutputReg { .. }
        | Action::Controller(_)
        | Action::Group(_)
        | Action::Push(_)
        | Action::Pop(_)
        | Action::DecTtl(_)
        | Action::Resubmit { .. }
        | Action::Clone(_)
        | Action::Ct(_)
        | Action::Nat(_)
        | Action::Learn(_)
        | Action::Conjunction { .. }
        | Action::CheckPktLarger { .. }
        | Action::Sample(_)
        | Action::Bundle(_)
        | Action::Multipath(_)
        | Action::FinTimeout { .. }
        | Action::Mpls(_)
        | Action::Encap(_)
        | Action::Decap(_)
        | Action::DecNshTtl
        | Action::Exit
        | Action::DeleteField(_)
        | Action::Meter(_)
        | Action::ClearActions
        | Action::WriteActions(_)
        | Action::WriteMetadata { .. }
        | Action::GotoTable(_) => false,
    }
}

impl Steps {
    fn of(actions: &[Action]) -> Steps {
        let mut lists = Vec::new();
        let list = actions.iter().map(|a| match (a, u16::try_from(lists.len())) {
            (Action::Clone(inner), Ok(n)) => {
                lists.push(Steps::of(inner));
                Step::Clone(n)
            }
            _ => Step::of(a),
        });
        let mut list: Vec<Step> = list.collect();
        let (mut runs, mut at) = (Vec::new(), 0);
        while at < list.len() {
            let next = match (Run::of(&list, at), u16::try_from(runs.len())) {
                (Some(run), Ok(n)) => {
                    let next = run.next;
                    if let Some(s) = list.get_mut(at) {
                        *s = Step::Run(n);
                    }
                    runs.push(run);
                    next
                }
                _ => at + 1,
            };
            at = next;
        }
        let seen = actions.iter().rposition(|a| !prepares(a)).map_or(0, |i| i + 1);
        Steps { list: list.into(), lists: lists.into(), runs: runs.into(), seen }
    }
}

impl Step {
    fn of(a: &Action) -> Step {
        match a {
            Action::SetField { field, value, mask, .. } => Step::write(*field, *value, mask.unwrap_or(u128::MAX)),
            Action::SetTunnel { id, .. } => Step::write(FieldId::TunId, (*id).into(), u128::MAX),
            Action::Load { value, dst } => {
                let mask = ones(dst.n_bits).checked_shl(dst.ofs).unwrap_or(0);
                Step::write(dst.field, u128::from(*value).checked_shl(dst.ofs).unwrap_or(0), mask)
            }
            // `TableId::CURRENT` is the one that the packet is in.
            Action::Resubmit { port: PortNo::IN_PORT, table, ct: false } if *table != TableId::CURRENT => {
                Step::Table(*table)
            }
            Action::GotoTable(t) => Step::Table(*t),
            _ => Step::Action,
        }
    }

    fn write(f: FieldId, value: u128, mask: u128) -> Step {
        if f.def().prereq != Prereq::None || f.presence().is_some() || f == FieldId::InPortOxm {
            return Step::Action;
        }
        let mut m = Match::new();
        // A match on a VLAN priority has an additional bit: no plain write.
        m.set_masked(f, value, mask);
        match m.words() {
            [w] if f != FieldId::VlanPcp => Step::Write { word: w.word, mask: w.mask, value: w.value },
            _ => Step::Action,
        }
    }
}

/// The timeouts of the last `fin_timeout` of a list, if there is one.
fn fin_timeouts(list: &[Action]) -> Option<[u16; 2]> {
    let of = |a: &Action| match a {
        Action::FinTimeout { idle, hard } => Some([*idle, *hard]),
        Action::Clone(list) => fin_timeouts(list),
        _ => None,
    };
    list.iter().rev().find_map(of)
}

#[derive(Debug)]
struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    used: AtomicU64,
}

impl Rule {
    /// The origin of its actions.
    pub(crate) fn origin(&self) -> Origin {
        Origin { cookie: self.cookie, miss: self.priority == 0 && self.matches.words().is_empty() }
    }

    /// A rule from a flow-mod.
    pub fn new(f: &FlowMod, now: Duration) -> Rule {
        Rule {
            table: f.table,
            priority: f.priority,
            matches: f.matches.clone(),
            cookie: f.cookie,
            actions: f.actions.clone().into(),
            timeouts: [f.idle_timeout, f.hard_timeout],
            fin: fin_timeouts(&f.actions),
            ended: AtomicBool::new(false),
            flags: f.flags,
            importance: f.importance,
            created: now,
            modified: AtomicU64::new(now.as_nanos() as u64),
            steps: Steps::of(&f.actions),
            soft: f.actions.iter().any(|a| matches!(a, Action::Conjunction { .. })),
            counters: Arc::new(Counters {
                packets: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                used: AtomicU64::new(now.as_nanos() as u64),
            }),
        }
    }

    /// Idle timeout in seconds; 0: none.
    pub fn idle_timeout(&self) -> u16 {
        self.timeout(0)
    }

    /// Hard timeout in seconds; 0: none.
    pub fn hard_timeout(&self) -> u16 {
        self.timeout(1)
    }

    fn timeout(&self, which: usize) -> u16 {
        let of = |list: &[u16; 2]| list.get(which).copied().unwrap_or_default();
        let most = self.fin.as_ref().filter(|_| self.ended.load(Ordering::Relaxed)).map_or(0, of);
        match (of(&self.timeouts), most) {
            (own, 0) => own,
            (0, most) => most,
            (own, most) => own.min(most),
        }
    }

    /// Whether the flow may expire, now or once a connection has ended.
    pub(crate) fn may_expire(&self) -> bool {
        self.timeouts != [0, 0] || self.fin.is_some()
    }

    /// Whether it has a `fin_timeout`.
    pub(crate) fn shortens(&self) -> bool {
        self.fin.is_some()
    }

    /// A TCP connection of the flow has ended: its `fin_timeout` holds from now on.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Counts packets. Only the main thread does, so no lock is needed.
    pub(crate) fn hits(&self, packets: u64, bytes: u64, now: Duration) {
        let add = |c: &AtomicU64, n| c.store(c.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        add(&self.counters.packets, packets);
        add(&self.counters.bytes, bytes);
        self.touch(now);
    }

    /// (packets, bytes, time of the last packet).
    pub fn counters(&self) -> (u64, u64, Duration) {
        let c = &self.counters;
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        (get(&c.packets), get(&c.bytes), Duration::from_nanos(get(&c.used)))
    }

    /// Continues another rule's counters (modification keeps them).
    pub fn inherit(&mut self, other: &Rule) {
        self.counters = other.counters.clone();
    }

    /// Takes another rule's place: with its counters, unless the flow-mod's flags reset them, and with the time of its
    /// last packet.
    pub(crate) fn follow(&mut self, other: &Rule, flags: FlowFlags) {
        match flags.has(FlowFlags::RESET_COUNTS) {
            false => self.inherit(other),
            true => self.touch(other.counters().2),
        }
    }

    /// When it was last modified, or learned.
    pub fn modified(&self) -> Duration {
        Duration::from_nanos(self.modified.load(Ordering::Relaxed))
    }

    /// It is learned once more as it is: both of its timeouts begin anew.
    pub(crate) fn renew(&self, now: Duration) {
        self.modified.store(now.as_nanos() as u64, Ordering::Relaxed);
        self.touch(now);
    }

    /// Whether it differs from another one in nothing that a flow-mod says beside match and actions.
    pub(crate) fn is_on_terms_of(&self, other: &Rule) -> bool {
        let terms = |r: &Rule| (r.cookie, r.timeouts, r.flags, r.importance);
        terms(self) == terms(other)
    }

    /// Refreshes the idle timeout without counting.
    pub fn touch(&self, now: Duration) {
        self.counters.used.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A copy with a modification's actions; counters stay.
    pub fn with_actions(&self, f: &FlowMod, now: Duration) -> Rule {
        let mut g = self.to_flow_mod();
        g.actions = f.actions.clone();
        g.cookie = f.new_cookie.unwrap_or(self.cookie);
        let mut new = Rule::new(&g, self.created);
        new.modified = AtomicU64::new(now.as_nanos() as u64);
        new.follow(self, f.flags);
        new
    }

    /// As the flow-mod that would add it.
    pub fn to_flow_mod(&self) -> FlowMod {
        FlowMod {
            table: self.table,
            priority: self.priority,
            cookie: self.cookie,
            idle_timeout: self.idle_timeout(),
            hard_timeout: self.hard_timeout(),
            importance: self.importance,
            flags: self.flags,
            matches: self.matches.clone(),
            actions: self.actions.to_vec(),
            ..Default::default()
        }
    }

    pub(super) fn conjunctions(&self) -> impl Iterator<Item = (u32, u8, u8)> {
        self.actions.iter().filter_map(|a| match a {
            Action::Conjunction { id, clause, n_clauses } => Some((*id, *clause, *n_clauses)),
            _ => None,
        })
    }

    /// Whether it is a part of conjunctions.
    pub(crate) fn is_soft(&self) -> bool {
        self.soft
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::{ALL_FIELDS, FlowKey, Subfield};
    use proptest::prelude::*;

    proptest! {
        /// Words that are written are what setting the field does.
        #[test]
        fn writes_are_what_fields_say(
            i in 0..ALL_FIELDS.len(), words in any::<[u64; 32]>(), value: u128, mask: u128, part in any::<(u8, u8)>(),
        ) {
            let f = ALL_FIELDS[i];
            let mut key = FlowKey::new();
            key.0.iter_mut().zip(words.iter().cycle()).for_each(|(k, w)| *k = *w);
            let bits = Subfield::width(f);
            let first = u32::from(part.0) % bits;
            let dst = Subfield::bits(f, first, first + u32::from(part.1) % (bits - first).min(64)).expect("within");
            let whole = (part.0 & 1 == 0).then_some(mask);
            let narrow = value as u64 & ones(dst.n_bits) as u64;
            for a in [Action::SetField { field: f, value, mask: whole, old: false }, Action::Load { value: narrow, dst }] {
                let mut want = key.clone();
                match &a {
                    Action::Load { value, dst } => want.set_sub(dst, u128::from(*value)),
                    _ => want.set_masked(f, value, whole.unwrap_or(u128::MAX)),
                }
                if let Step::Write { word, mask, value } = Step::of(&a) {
                    let x = &mut key.clone();
                    x.0[usize::from(word)] = x.0[usize::from(word)] & !mask | value;
                    prop_assert_eq!(x, &want, "{}", a);
                }
            }
        }
    }
}
