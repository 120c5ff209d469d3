//! Flow lookup: tuple space search with priorities, and conjunctive matches (ovs-actions(7), "conjunction").
//!
//! Rules are partitioned by the metadata (the logical datapath) that they match exactly, if they do: a packet is
//! compared with the rules of its own metadata, and with those of none. Rules with the same mask share a sub-table, a
//! hash table from masked key to rules. Sub-tables are visited in the order of their highest priority; the search ends
//! when no later one can win. Most sub-tables are skipped without a hash, as the bits that all their rules have in
//! common (an EtherType, for example) differ from the packet's. A lookup can report the bits it compared, so that a
//! cached result never covers a packet for which the search would differ.

mod part;
mod rule;
mod shards;
#[cfg(test)]
mod tests;

pub use part::Wildcards;
pub use rule::Rule;
pub(crate) use rule::{Frames, Origin, Step, Steps};

use hashbrown::HashTable;
use openflow_rs::{FieldId, FlowKey, Match, MatchWord};
use part::{Looked, Part, values_of, word};
pub(crate) use part::{hash, mix, reads};
use std::borrow::Cow;
use std::sync::Arc;

/// One table's rules.
#[derive(Clone, Debug, Default)]
pub struct Classifier {
    /// Rules with exact metadata, by metadata; their sub-tables leave it out. Copies of the table share those that are the
    /// same.
    datapaths: HashTable<(u64, Arc<Part>)>,
    /// All other rules.
    rest: Part,
    len: usize,
    /// Rules that are parts of conjunctions.
    soft: usize,
    /// Words of the key that rules match, as bits.
    words: u64,
}

/// The word of a key that is its metadata.
const METADATA: usize = FieldId::Metadata.word();

/// Splits a match into its metadata, if it is exact, and the other words.
fn parted(m: &Match) -> (Option<u64>, Cow<'_, [MatchWord]>) {
    let is = |w: &MatchWord| usize::from(w.word) == METADATA && w.mask == u64::MAX;
    match m.words().iter().find(|w| is(w)) {
        Some(w) => (Some(w.value), m.words().iter().filter(|w| !is(w)).copied().collect()),
        None => (None, Cow::Borrowed(m.words())),
    }
}

fn hash_of_datapath((metadata, _): &(u64, Arc<Part>)) -> u64 {
    hash(std::iter::once(*metadata))
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
        self.datapaths.iter().flat_map(|(_, p)| p.all()).chain(self.rest.all())
    }

    /// Words of the key that rules match or once matched, as bits.
    pub(crate) fn words(&self) -> u64 {
        self.words
    }

    /// Whether there are conjunctions.
    pub(crate) fn has_conjunctions(&self) -> bool {
        self.soft != 0
    }

    #[inline]
    fn datapath(&self, metadata: u64) -> Option<&Part> {
        if self.datapaths.is_empty() {
            return None;
        }
        self.datapaths.find(hash(std::iter::once(metadata)), |d| d.0 == metadata).map(|d| &*d.1)
    }

    /// The rule with exactly this match and priority.
    pub fn find(&self, m: &Match, priority: u16) -> Option<&Arc<Rule>> {
        let (metadata, words) = parted(m);
        let part = metadata.map_or(Some(&self.rest), |v| self.datapath(v))?;
        let t = part.tables.iter().find(|t| t.has_mask(&words))?;
        t.find(&values_of(&words))?.rules.iter().find(|r| r.priority == priority)
    }

    /// Adds a rule; returns the one with the same match and priority that it replaces.
    pub fn insert(&mut self, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        self.words |= rule.matches.words().iter().fold(0, |all, w| all | 1 << (w.word & 63));
        self.soft += usize::from(rule.is_soft());
        let kept = rule.clone();
        let (metadata, words) = parted(&kept.matches);
        let old = match metadata {
            None => self.rest.insert(&words, rule),
            Some(v) => {
                let h = hash(std::iter::once(v));
                let e = self.datapaths.entry(h, |d| d.0 == v, hash_of_datapath);
                Arc::make_mut(&mut e.or_insert_with(|| (v, Arc::default())).into_mut().1).insert(&words, rule)
            }
        };
        match &old {
            Some(o) => self.soft -= usize::from(o.is_soft()),
            None => self.len += 1,
        }
        old
    }

    /// Removes the rule with this match and priority.
    pub fn remove(&mut self, m: &Match, priority: u16) -> Option<Arc<Rule>> {
        let (metadata, words) = parted(m);
        let old = match metadata {
            None => self.rest.remove(&words, priority)?,
            Some(v) => {
                let mut e = self.datapaths.find_entry(hash(std::iter::once(v)), |d| d.0 == v).ok()?;
                let old = Arc::make_mut(&mut e.get_mut().1).remove(&words, priority)?;
                if e.get().1.tables.is_empty() {
                    e.remove();
                }
                old
            }
        };
        self.len -= 1;
        self.soft -= usize::from(old.is_soft());
        Some(old)
    }

    /// The winning rule. Adds the bits that were compared to `wc`, but those of the packet's type, which always count:
    /// what is known of lookups is known of packets with an Ethernet header.
    pub fn lookup(&self, key: &FlowKey, wc: &mut Wildcards) -> Option<&Arc<Rule>> {
        self.decide(key, &mut Looked::All(wc))
    }

    /// The same, adding as few bits as possible such that all packets with equal bits find the same rule. Bits in
    /// `chosen`, which told matches apart before, are preferred.
    pub(crate) fn lookup_least(&self, key: &FlowKey, wc: &mut Wildcards, chosen: &mut Wildcards) -> Option<&Arc<Rule>> {
        self.decide(key, &mut Looked::Least(wc, chosen))
    }

    /// The TCP flags that any rule for the key's metadata matches, at their place in the key.
    #[inline]
    pub(crate) fn flags(&self, key: &FlowKey) -> u64 {
        self.rest.flags | self.datapath(word(key, METADATA as u8)).map_or(0, |p| p.flags)
    }

    /// The winning rule, without a report.
    #[inline]
    pub(crate) fn lookup_brief(&self, key: &FlowKey) -> Option<&Arc<Rule>> {
        if self.soft == 0 {
            return self.search(key, &mut Looked::Nobody, None);
        }
        self.decide(key, &mut Looked::Nobody)
    }

    fn decide(&self, key: &FlowKey, wc: &mut Looked<'_>) -> Option<&Arc<Rule>> {
        let mut soft = Vec::new();
        let hard = self.search(key, wc, Some(&mut soft));
        if soft.is_empty() {
            return hard;
        }
        soft.retain(|r| hard.is_none_or(|h| r.priority > h.priority));
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

    /// The rule of a conjunction that rules of one priority complete.
    fn conjunction(&self, key: &FlowKey, wc: &mut Looked<'_>, rules: &[&Arc<Rule>]) -> Option<&Arc<Rule>> {
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

    #[inline]
    fn search<'a>(
        &'a self,
        key: &FlowKey,
        wc: &mut Looked<'_>,
        mut soft: Option<&mut Vec<&'a Arc<Rule>>>,
    ) -> Option<&'a Arc<Rule>> {
        let mut best: Option<&Arc<Rule>> = None;
        // Packets without an Ethernet header are rare, and fit few flows.
        let other = key.get(FieldId::PacketType) != 0;
        let own = self.datapath(word(key, METADATA as u8));
        if !self.datapaths.is_empty() {
            wc.at(METADATA as u8, u64::MAX);
        }
        for part in own.into_iter().chain([&self.rest]) {
            for t in &part.tables {
                if best.is_some_and(|b| b.priority >= t.max_priority) {
                    break;
                }
                if other && t.ethernet {
                    continue;
                }
                let Some(list) = t.lookup(key, wc) else { continue };
                for r in list {
                    if best.is_some_and(|b| b.priority >= r.priority) {
                        break;
                    }
                    if r.is_soft() {
                        if let Some(s) = soft.as_deref_mut() {
                            s.push(r);
                        }
                    } else {
                        best = Some(r);
                        break;
                    }
                }
            }
        }
        best
    }
}

/// Reference for tests: compares every rule.
#[cfg(test)]
pub(crate) fn reference<'a>(rules: impl Iterator<Item = &'a Arc<Rule>>, key: &FlowKey) -> Option<Arc<Rule>> {
    let mut all: Vec<&Arc<Rule>> = rules.filter(|r| !r.is_soft()).collect();
    all.sort_by_key(|r| std::cmp::Reverse(r.priority));
    all.into_iter().find(|r| r.matches.matches(key)).cloned()
}
