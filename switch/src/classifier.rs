//! Flow lookup: tuple space search with priorities, and conjunctive matches (ovs-actions(7), "conjunction").
//!
//! Rules with the same mask share a sub-table, a hash table from masked key to rules. Sub-tables are visited in the order of
//! their highest priority, and the search ends when no later one can win. Most sub-tables are passed over without a hash:
//! the bits that all their rules have in common, an EtherType say, differ from the packet's. The bits that were compared go
//! into the wildcards, so that a cached result never covers a packet that the search would have treated differently.

use hashbrown::HashTable;
use openflow_rs::action::Action;
use openflow_rs::mods::{FlowFlags, FlowMod};
use openflow_rs::{FieldId, FlowKey, Match, WORDS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An installed flow.
#[derive(Debug)]
pub struct Rule {
    /// Table.
    pub table: u8,
    /// Priority.
    pub priority: u16,
    /// Match.
    pub matches: Match,
    /// Cookie.
    pub cookie: u64,
    /// Actions.
    pub actions: Arc<[Action]>,
    /// Seconds without use until it goes.
    pub idle_timeout: u16,
    /// Seconds until it goes.
    pub hard_timeout: u16,
    /// Flags.
    pub flags: FlowFlags,
    /// Eviction precedence.
    pub importance: u16,
    /// When it was added.
    pub created: Duration,
    /// It is a part of conjunctions.
    soft: bool,
    /// Shared with the rules that it replaces, or that replace it, where they go on counting.
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    used: AtomicU64,
}

impl Rule {
    /// A rule from a flow-mod.
    pub fn new(f: &FlowMod, now: Duration) -> Rule {
        Rule {
            table: f.table,
            priority: f.priority,
            matches: f.matches.clone(),
            cookie: f.cookie,
            actions: f.actions.clone().into(),
            idle_timeout: f.idle_timeout,
            hard_timeout: f.hard_timeout,
            flags: f.flags,
            importance: f.importance,
            created: now,
            soft: f.actions.iter().any(|a| matches!(a, Action::Conjunction { .. })),
            counters: Arc::new(Counters {
                packets: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                used: AtomicU64::new(now.as_nanos() as u64),
            }),
        }
    }

    /// Counts packets. Only the thread of the switch does, so nothing has to be locked.
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

    /// Goes on with another rule's counters (modification keeps them).
    pub fn inherit(&mut self, other: &Rule) {
        self.counters = other.counters.clone();
    }

    /// Marks as used, without counting.
    pub fn touch(&self, now: Duration) {
        self.counters.used.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A copy with a modification's actions; counters stay.
    pub fn with_actions(&self, f: &FlowMod) -> Rule {
        let mut g = self.to_flow_mod();
        g.actions = f.actions.clone();
        g.cookie = if f.cookie == u64::MAX { self.cookie } else { f.cookie };
        let mut new = Rule::new(&g, self.created);
        if !f.flags.has(FlowFlags::RESET_COUNTS) {
            new.inherit(self);
        }
        new
    }

    /// As the flow-mod that would add it.
    pub fn to_flow_mod(&self) -> FlowMod {
        FlowMod {
            table: self.table,
            priority: self.priority,
            cookie: self.cookie,
            idle_timeout: self.idle_timeout,
            hard_timeout: self.hard_timeout,
            importance: self.importance,
            flags: self.flags,
            matches: self.matches.clone(),
            actions: self.actions.to_vec(),
            ..Default::default()
        }
    }

    fn conjunctions(&self) -> impl Iterator<Item = (u32, u8, u8)> {
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

type Mask = Box<[(u8, u64)]>;

/// Rules with the same match, the highest priority first.
#[derive(Clone, Debug)]
struct Same {
    values: Box<[u64]>,
    rules: Vec<Arc<Rule>>,
}

/// Rules with the same mask.
#[derive(Clone, Debug)]
struct SubTable {
    mask: Mask,
    /// For each word of the mask, bits at which all matches have been equal, and those bits.
    common: Box<[(u64, u64)]>,
    matches: HashTable<Same>,
    priorities: std::collections::BTreeMap<u16, usize>,
    max_priority: u16,
}

/// A hash of masked words. Who can choose flows can choose collisions; packets cannot make any.
fn hash(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0x9e37_79b9_7f4a_7c15, |h, w| {
        let m = u128::from(h ^ w).wrapping_mul(0xd6e8_feb8_6659_fd93_a076_1d64_78bd_642f);
        m as u64 ^ (m >> 64) as u64
    })
}

impl SubTable {
    fn new(mask: Mask, values: &[u64]) -> SubTable {
        let common = mask.iter().zip(values).map(|((_, m), v)| (*m, *v)).collect();
        SubTable { mask, common, matches: HashTable::new(), priorities: Default::default(), max_priority: 0 }
    }

    fn find(&self, values: &[u64]) -> Option<&Same> {
        self.matches.find(hash(values.iter().copied()), |s| *s.values == *values)
    }

    /// Adds a rule; gives back the one with the same match and priority that it replaces.
    fn insert(&mut self, values: Box<[u64]>, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        for ((mask, common), v) in self.common.iter_mut().zip(&values) {
            *mask &= !(*common ^ v);
            *common &= *mask;
        }
        let priority = rule.priority;
        let h = hash(values.iter().copied());
        let same = |s: &Same| s.values == values;
        let list = match self.matches.find_mut(h, same) {
            Some(s) => &mut s.rules,
            None => {
                let new = Same { values, rules: Vec::with_capacity(1) };
                let e = self.matches.insert_unique(h, new, |s| hash(s.values.iter().copied()));
                &mut e.into_mut().rules
            }
        };
        let at = list.partition_point(|r| r.priority > priority);
        if let Some(r) = list.get_mut(at).filter(|r| r.priority == priority) {
            return Some(std::mem::replace(r, rule));
        }
        list.insert(at, rule);
        *self.priorities.entry(priority).or_default() += 1;
        self.max_priority = self.max_priority.max(priority);
        None
    }

    fn remove(&mut self, values: &[u64], priority: u16) -> Option<Arc<Rule>> {
        let h = hash(values.iter().copied());
        let mut e = self.matches.find_entry(h, |s| *s.values == *values).ok()?;
        let list = &mut e.get_mut().rules;
        let at = list.iter().position(|r| r.priority == priority)?;
        let old = list.remove(at);
        if list.is_empty() {
            e.remove();
        }
        if let Some(n) = self.priorities.get_mut(&priority) {
            *n -= 1;
            if *n == 0 {
                self.priorities.remove(&priority);
                self.max_priority = self.priorities.last_key_value().map_or(0, |(p, _)| *p);
            }
        }
        Some(old)
    }

    /// The rules that match a key. Adds the bits looked at to `wc`.
    fn lookup(&self, key: &FlowKey, wc: &mut Wildcards) -> Option<&[Arc<Rule>]> {
        let word = |w: u8| key.0.get(usize::from(w)).copied().unwrap_or(0);
        for ((w, _), (mask, common)) in self.mask.iter().zip(&self.common) {
            if word(*w) & mask != *common {
                if let Some(c) = wc.get_mut(usize::from(*w)) {
                    *c |= mask;
                }
                return None;
            }
        }
        for (w, m) in &self.mask {
            if let Some(c) = wc.get_mut(usize::from(*w)) {
                *c |= m;
            }
        }
        let masked = || self.mask.iter().map(|(w, m)| word(*w) & m);
        self.matches.find(hash(masked()), |s| s.values.iter().copied().eq(masked())).map(|s| s.rules.as_slice())
    }
}

/// One table's rules.
#[derive(Clone, Debug, Default)]
pub struct Classifier {
    /// Ordered by highest priority, descending.
    tables: Vec<SubTable>,
    len: usize,
    /// Rules that are parts of conjunctions.
    soft: usize,
    /// Words of keys that rules look at, as bits.
    words: u64,
}

/// Bits of the key that a decision depended on.
pub type Wildcards = [u64; WORDS];

fn mask_of(m: &Match) -> Mask {
    m.words().iter().map(|w| (w.word, w.mask)).collect()
}

fn values_of(m: &Match) -> Box<[u64]> {
    m.words().iter().map(|w| w.value).collect()
}

impl Classifier {
    /// Number of rules.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without rules.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All rules.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.tables.iter().flat_map(|t| t.matches.iter().flat_map(|s| &s.rules))
    }

    /// Words of keys that rules look at or once did, as bits.
    pub(crate) fn words(&self) -> u64 {
        self.words
    }

    /// Whether there are conjunctions.
    pub(crate) fn has_conjunctions(&self) -> bool {
        self.soft != 0
    }

    fn position(&self, m: &Match) -> Option<usize> {
        let words = m.words();
        self.tables
            .iter()
            .position(|t| t.mask.len() == words.len() && t.mask.iter().zip(words).all(|(a, b)| *a == (b.word, b.mask)))
    }

    /// The rule with exactly this match and priority.
    pub fn find(&self, m: &Match, priority: u16) -> Option<&Arc<Rule>> {
        let t = self.tables.get(self.position(m)?)?;
        t.find(&values_of(m))?.rules.iter().find(|r| r.priority == priority)
    }

    /// Adds a rule; returns the one with the same match and priority that it replaces.
    pub fn insert(&mut self, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        let values = values_of(&rule.matches);
        let i = self.position(&rule.matches).unwrap_or_else(|| {
            self.tables.push(SubTable::new(mask_of(&rule.matches), &values));
            self.tables.len() - 1
        });
        self.words |= rule.matches.words().iter().fold(0, |all, w| all | 1 << (w.word & 63));
        self.soft += usize::from(rule.soft);
        let old = self.tables.get_mut(i)?.insert(values, rule);
        match &old {
            Some(o) => self.soft -= usize::from(o.soft),
            None => self.len += 1,
        }
        self.order();
        old
    }

    /// Removes the rule with this match and priority.
    pub fn remove(&mut self, m: &Match, priority: u16) -> Option<Arc<Rule>> {
        let i = self.position(m)?;
        let t = self.tables.get_mut(i)?;
        let old = t.remove(&values_of(m), priority)?;
        if t.matches.is_empty() {
            self.tables.remove(i);
        }
        self.len -= 1;
        self.soft -= usize::from(old.soft);
        self.order();
        Some(old)
    }

    fn order(&mut self) {
        if !self.tables.is_sorted_by(|a, b| a.max_priority >= b.max_priority) {
            self.tables.sort_by_key(|t| std::cmp::Reverse(t.max_priority));
        }
    }

    /// The winning rule. Adds the bits looked at to `wc`.
    pub fn lookup(&self, key: &FlowKey, wc: &mut Wildcards) -> Option<Arc<Rule>> {
        let mut soft = Vec::new();
        let hard = self.search(key, wc, Some(&mut soft));
        if soft.is_empty() {
            return hard;
        }
        soft.retain(|r| hard.as_ref().is_none_or(|h| r.priority > h.priority));
        soft.sort_by_key(|r| std::cmp::Reverse(r.priority));
        let mut rest = soft.as_slice();
        while let Some(first) = rest.first() {
            let n = rest.partition_point(|r| r.priority >= first.priority);
            let (same, lower) = rest.split_at(n);
            if let Some(rule) = self.conjunction(key, wc, same) {
                return Some(rule);
            }
            rest = lower;
        }
        hard
    }

    /// Tries the conjunctions that rules of one priority complete.
    fn conjunction(&self, key: &FlowKey, wc: &mut Wildcards, rules: &[Arc<Rule>]) -> Option<Arc<Rule>> {
        let mut seen: std::collections::BTreeMap<u32, (u64, u8)> = Default::default();
        for (id, clause, n) in rules.iter().flat_map(|r| r.conjunctions()) {
            let e = seen.entry(id).or_insert((0, n));
            e.0 |= 1 << (clause & 63);
        }
        for (id, (clauses, n)) in seen {
            if clauses.count_ones() < u32::from(n) {
                continue;
            }
            let mut k = key.clone();
            k.set(FieldId::ConjId, u128::from(id));
            if let Some(r) = self.search(&k, wc, None) {
                return Some(r);
            }
        }
        None
    }

    fn search(&self, key: &FlowKey, wc: &mut Wildcards, mut soft: Option<&mut Vec<Arc<Rule>>>) -> Option<Arc<Rule>> {
        let mut best: Option<&Arc<Rule>> = None;
        for t in &self.tables {
            if best.is_some_and(|b| b.priority >= t.max_priority) {
                break;
            }
            let Some(list) = t.lookup(key, wc) else { continue };
            for r in list {
                if best.is_some_and(|b| b.priority >= r.priority) {
                    break;
                }
                if r.is_soft() {
                    if let Some(s) = soft.as_deref_mut() {
                        s.push(r.clone());
                    }
                } else {
                    best = Some(r);
                    break;
                }
            }
        }
        best.cloned()
    }
}

/// The obvious lookup, for tests: walks every rule.
#[cfg(test)]
pub(crate) fn reference<'a>(rules: impl Iterator<Item = &'a Arc<Rule>>, key: &FlowKey) -> Option<Arc<Rule>> {
    let mut all: Vec<&Arc<Rule>> = rules.filter(|r| !r.is_soft()).collect();
    all.sort_by_key(|r| std::cmp::Reverse(r.priority));
    all.into_iter().find(|r| r.matches.matches(key)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arb_match() -> impl Strategy<Value = Match> {
        let field = prop_oneof![
            Just(FieldId::Reg0),
            Just(FieldId::Reg1),
            Just(FieldId::EthType),
            Just(FieldId::IpDst),
            Just(FieldId::Metadata)
        ];
        proptest::collection::vec((field, 0u128..4, prop_oneof![Just(1u128), Just(2), Just(3), Just(u128::MAX)]), 0..4)
            .prop_map(|v| {
                let mut m = Match::new();
                for (f, value, mask) in v {
                    m.set_masked(f, value, mask);
                }
                m
            })
    }

    fn rule(m: &Match, priority: u16) -> Arc<Rule> {
        Arc::new(Rule::new(&FlowMod { matches: m.clone(), priority, ..Default::default() }, Duration::ZERO))
    }

    proptest! {
        /// Under changing rules, the search finds what a walk over all rules finds, and its wildcards are honest:
        /// a key that differs only in bits not looked at gets the same answer.
        #[test]
        fn search_equals_reference(
            ops in proptest::collection::vec((arb_match(), 0u16..6, any::<bool>()), 1..40),
            keys in proptest::collection::vec((0u64..4, 0u64..4, 0u64..4, 0u64..4, any::<u64>()), 1..20),
        ) {
            let mut c = Classifier::default();
            for (m, p, remove) in &ops {
                if *remove {
                    c.remove(m, *p);
                } else {
                    c.insert(rule(m, *p));
                }
            }
            for (a, b, d, e, noise) in keys {
                let mut k = FlowKey::new();
                for (f, v) in [(FieldId::Reg0, a), (FieldId::Reg1, b), (FieldId::EthType, d), (FieldId::IpDst, e), (FieldId::Metadata, a ^ b)] {
                    k.set(f, v.into());
                }
                let mut wc = [0; WORDS];
                let got = c.lookup(&k, &mut wc).map(|r| r.priority);
                prop_assert_eq!(got, reference(c.iter(), &k).map(|r| r.priority));
                let mut other = k.clone();
                for (x, m) in other.0.iter_mut().zip(wc) {
                    *x ^= noise & !m;
                }
                prop_assert_eq!(c.lookup(&other, &mut [0; WORDS]).map(|r| r.priority), got);
            }
        }
    }

    #[test]
    fn conjunctions_need_every_clause() {
        let flows = [
            "priority=10,ip,nw_src=1.1.1.1 actions=conjunction(5,1/2)",
            "priority=10,tcp,tp_dst=80 actions=conjunction(5,2/2)",
            "priority=10,conj_id=5,ip actions=output:1",
            "priority=1 actions=drop",
        ];
        let mut c = Classifier::default();
        for f in flows {
            c.insert(Arc::new(Rule::new(&openflow_rs::text::parse_flow(f).expect("flow"), Duration::ZERO)));
        }
        let mut k: FlowKey = "tcp,nw_src=1.1.1.1,tp_dst=80".parse::<Match>().expect("match").key();
        let mut wc = [0; WORDS];
        assert_eq!(c.lookup(&k, &mut wc).map(|r| r.actions.len()), Some(1));
        k.set(FieldId::TcpDst, 81);
        assert_eq!(c.lookup(&k, &mut wc).map(|r| r.priority), Some(1));
    }
}
