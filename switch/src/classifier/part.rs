//! Tuple space search among the rules of one partition.

use super::Rule;
use super::shards::Shards;
use openflow_rs::flow_match::want_ethernet;
use openflow_rs::{FieldId, FlowKey, Match, MatchWord, WORDS};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Rules with the same match, the highest priority first. Copies of a table share it, so that nothing is allocated for each
/// match of a piece that is copied.
#[derive(Clone, Debug)]
pub(super) struct Same {
    values: Values,
    pub(super) rules: SmallVec<[Arc<Rule>; 1]>,
}

/// The words of a match, of which most have few.
type Values = SmallVec<[u64; 4]>;

/// A word of a mask, and the bits that all matches have in common in it.
#[derive(Clone, Copy, Debug)]
struct Word {
    word: u8,
    mask: u64,
    /// Bits that have been equal in all matches, and their values.
    same: u64,
    common: u64,
}

/// Rules with the same mask.
#[derive(Clone, Debug)]
pub(super) struct SubTable {
    words: Box<[Word]>,
    /// The only match, if there is one: then the common bits are its.
    only: Option<Arc<Same>>,
    /// The matches, once there was more than one.
    matches: Shards<Arc<Same>>,
    /// Priorities, ascending, and how many rules have them.
    priorities: Vec<(u16, usize)>,
    pub(super) max_priority: u16,
    /// Only packets with an Ethernet header fit.
    pub(super) ethernet: bool,
}

/// A hash of masked words. Collisions depend on flows only, which are trusted, not on packets.
#[inline]
pub(crate) fn hash(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0x9e37_79b9_7f4a_7c15, |h, w| {
        let m = u128::from(h ^ w).wrapping_mul(0xd6e8_feb8_6659_fd93_a076_1d64_78bd_642f);
        m as u64 ^ (m >> 64) as u64
    })
}

/// Mixes 64 bits.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

#[inline(always)]
pub(super) fn word(key: &FlowKey, w: u8) -> u64 {
    key.0.get(usize::from(w)).copied().unwrap_or(0)
}

/// Bits of the key that a decision depended on.
pub type Wildcards = [u64; WORDS];

/// Adds all bits of a field.
pub(crate) fn reads(wc: &mut Wildcards, f: FieldId) {
    for w in Match::new().with(f, 0).words() {
        if let Some(x) = wc.get_mut(usize::from(w.word)) {
            *x |= w.mask;
        }
    }
}

/// How precisely a lookup reports the bits it used.
pub(super) enum Looked<'a> {
    Nobody,
    /// All bits that were compared, as Open vSwitch shows them.
    All(&'a mut Wildcards),
    /// As few bits as explain the result: for each match that the key does not fit, one differing bit. The second mask
    /// holds bits chosen earlier, which are preferred.
    Least(&'a mut Wildcards, &'a mut Wildcards),
}

/// Up to so many matches of a mask a differing bit is chosen for each; beyond it, all bits of the mask count.
const FEW: usize = 64;

impl Looked<'_> {
    #[inline]
    pub(super) fn at(&mut self, w: u8, bits: u64) {
        if let Looked::All(wc) | Looked::Least(wc, _) = self
            && let Some(x) = wc.get_mut(usize::from(w))
        {
            *x |= bits;
        }
    }

    /// These bits were compared, and some differ.
    #[inline]
    fn differs(&mut self, w: u8, bits: u64, differ: u64) {
        match self {
            Looked::Nobody => {}
            Looked::All(_) => self.at(w, bits),
            Looked::Least(wc, chosen) => {
                let w = usize::from(w);
                let (Some(looked), Some(chosen)) = (wc.get_mut(w), chosen.get_mut(w)) else { return };
                if *looked & differ == 0 {
                    // Far addresses and ports differ in high bits, and most packets in the same ones.
                    let among = if *chosen & differ == 0 { differ } else { *chosen & differ };
                    let bit = 1 << (63 - among.leading_zeros().min(63));
                    *looked |= bit;
                    *chosen |= bit;
                }
            }
        }
    }
}

impl SubTable {
    /// A sub-table with its first rule.
    fn new(words: &[MatchWord], values: Values, rule: Arc<Rule>) -> SubTable {
        let ethernet = want_ethernet(words);
        let words = words.iter().map(|w| Word { word: w.word, mask: w.mask, same: w.mask, common: w.value }).collect();
        let (max_priority, priorities) = (rule.priority, vec![(rule.priority, 1)]);
        let only = Some(Arc::new(Same { values, rules: smallvec![rule] }));
        SubTable { words, only, matches: Shards::default(), priorities, max_priority, ethernet }
    }

    pub(super) fn has_mask(&self, words: &[MatchWord]) -> bool {
        self.words.len() == words.len()
            && self.words.iter().zip(words).all(|(a, b)| (a.word, a.mask) == (b.word, b.mask))
    }

    fn all(&self) -> impl Iterator<Item = &Same> {
        self.only.iter().chain(self.matches.iter()).map(|s| &**s)
    }

    pub(super) fn find(&self, values: &[u64]) -> Option<&Same> {
        match &self.only {
            Some(s) => (*s.values == *values).then_some(s),
            None => self.matches.find(hash(values.iter().copied()), |s| *s.values == *values).map(|s| &**s),
        }
    }

    /// Adds a rule; returns the one with the same match and priority that it replaces.
    fn insert(&mut self, values: Values, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        for (w, v) in self.words.iter_mut().zip(&values) {
            w.same &= !(w.common ^ v);
            w.common &= w.same;
        }
        let priority = rule.priority;
        let again = |s: &Arc<Same>| hash(s.values.iter().copied());
        if let Some(s) = self.only.take_if(|s| s.values != values) {
            self.matches.insert_unique(again(&s), s, again);
        }
        let there = match &mut self.only {
            Some(s) => Some(s),
            None => self.matches.find_mut(hash(values.iter().copied()), |s| s.values == values),
        };
        match there {
            Some(s) => {
                let rules = &mut Arc::make_mut(s).rules;
                let at = rules.partition_point(|r| r.priority > priority);
                if let Some(r) = rules.get_mut(at).filter(|r| r.priority == priority) {
                    return Some(std::mem::replace(r, rule));
                }
                rules.insert(at, rule);
            }
            None => {
                let new = Arc::new(Same { values, rules: smallvec![rule] });
                self.matches.insert_unique(again(&new), new, again);
            }
        }
        match self.priorities.binary_search_by_key(&priority, |p| p.0) {
            Ok(i) => self.priorities.get_mut(i).into_iter().for_each(|p| p.1 += 1),
            Err(i) => self.priorities.insert(i, (priority, 1)),
        }
        self.max_priority = self.max_priority.max(priority);
        None
    }

    fn remove(&mut self, values: &[u64], priority: u16) -> Option<Arc<Rule>> {
        let out_of = |s: &mut Arc<Same>| {
            let at = s.rules.iter().position(|r| r.priority == priority)?;
            Some(Arc::make_mut(s).rules.remove(at))
        };
        let old = match &mut self.only {
            Some(s) => out_of(Some(s).filter(|s| *s.values == *values)?)?,
            None => {
                let hash = hash(values.iter().copied());
                let s = self.matches.find_mut(hash, |s| *s.values == *values)?;
                let old = out_of(s)?;
                if s.rules.is_empty() {
                    self.matches.remove(hash, |s| *s.values == *values);
                }
                old
            }
        };
        if let Ok(i) = self.priorities.binary_search_by_key(&priority, |p| p.0)
            && let Some(p) = self.priorities.get_mut(i)
        {
            p.1 -= 1;
            if p.1 == 0 {
                self.priorities.remove(i);
            }
        }
        self.max_priority = self.priorities.last().map_or(0, |p| p.0);
        Some(old)
    }

    fn is_empty(&self) -> bool {
        self.priorities.is_empty()
    }

    /// The rules that match a key. Adds the bits looked at to `wc`.
    #[inline]
    pub(super) fn lookup(&self, key: &FlowKey, wc: &mut Looked<'_>) -> Option<&[Arc<Rule>]> {
        for w in &self.words {
            let differ = word(key, w.word) & w.same ^ w.common;
            if differ != 0 {
                wc.differs(w.word, w.same, differ);
                return None;
            }
        }
        let found = match &self.only {
            Some(s) => Some(s.rules.as_slice()),
            None => {
                let masked = || self.words.iter().map(|w| word(key, w.word) & w.mask);
                self.matches.find(hash(masked()), |s| s.values.iter().copied().eq(masked())).map(|s| s.rules.as_slice())
            }
        };
        match wc {
            Looked::Nobody => {}
            Looked::Least(wc, chosen) if found.is_none() && self.matches.len() <= FEW => self.apart(key, wc, chosen),
            _ => self.words.iter().for_each(|w| wc.at(w.word, w.mask)),
        }
        found
    }

    /// For each match, adds a bit in which the key differs, if none is there yet.
    #[cold]
    fn apart(&self, key: &FlowKey, wc: &mut Wildcards, chosen: &mut Wildcards) {
        for s in self.matches.iter() {
            let differ = |(w, v): (&Word, &u64)| (w.word, word(key, w.word) & w.mask ^ v);
            let words = || self.words.iter().zip(&s.values).map(differ);
            let known = words().any(|(w, d)| wc.get(usize::from(w)).is_some_and(|x| x & d != 0));
            if let Some((w, d)) = words().find(|(_, d)| *d != 0).filter(|_| !known) {
                Looked::Least(wc, chosen).differs(w, d, d);
            }
        }
    }
}

/// Sub-tables, ordered by highest priority, descending.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    pub(super) tables: Vec<SubTable>,
    /// TCP flags that its rules match or once matched, at their place in the key.
    pub(super) flags: u64,
}

pub(super) fn values_of(words: &[MatchWord]) -> Values {
    words.iter().map(|w| w.value).collect()
}

/// Where TCP flags are.
fn flags_place() -> (usize, u64) {
    let d = FieldId::TcpFlags.def();
    (d.word, (FieldId::TcpFlags.full_mask() as u64) << d.shift)
}

impl Part {
    pub(super) fn insert(&mut self, words: &[MatchWord], rule: Arc<Rule>) -> Option<Arc<Rule>> {
        let values = values_of(words);
        let (word, bits) = flags_place();
        self.flags |= words.iter().filter(|w| usize::from(w.word) == word).fold(0, |all, w| all | w.mask & bits);
        let old = match self.tables.iter_mut().find(|t| t.has_mask(words)) {
            Some(t) => t.insert(values, rule),
            None => {
                self.tables.push(SubTable::new(words, values, rule));
                None
            }
        };
        self.order();
        old
    }

    pub(super) fn remove(&mut self, words: &[MatchWord], priority: u16) -> Option<Arc<Rule>> {
        let i = self.tables.iter().position(|t| t.has_mask(words))?;
        let t = self.tables.get_mut(i)?;
        let old = t.remove(&values_of(words), priority)?;
        if t.is_empty() {
            self.tables.remove(i);
        }
        self.order();
        Some(old)
    }

    fn order(&mut self) {
        if !self.tables.is_sorted_by(|a, b| a.max_priority >= b.max_priority) {
            self.tables.sort_by_key(|t| std::cmp::Reverse(t.max_priority));
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.tables.iter().flat_map(|t| t.all().flat_map(|s| &s.rules))
    }
}
