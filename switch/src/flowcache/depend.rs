//! Dependencies on lookups: a change of tables makes only those flows stale whose lookups it may concern.
//!
//! Flows that took the same way share an [`XlateCache`](super::xcache::XlateCache). For each lookup it knows the rule
//! that was found, and the bits of the key that were equal for all its flows ([`Look`]). A new rule concerns a lookup
//! only if its priority is high enough and no known bit contradicts its match. A removed rule concerns the lookups that
//! found it. A rule that replaces one with the same match and actions concerns none: the xlate cache continues with the
//! new rule, as when a controller installs all its flows again.

use super::Count;
use super::megaflow::{DependencyMask, Layer};
use super::xcache::XlateCaches;
use crate::bridge::changes::{Changes, place};
use crate::classifier::{Classifier, Rule};
use crate::dependency::Dependency;
use crate::ids::BridgeId;
use openflow_rs::{FieldId, FlowKey, Match, TableId};
use std::sync::Arc;

/// Most comparisons of rules with lookups for one change of tables; beyond it, all flows that looked up a changed table
/// become stale.
const MOST_LOOKS: usize = 500_000;

/// Bits of a word of the key that were the same for all flows, and what they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    word: u8,
    mask: u64,
    value: u64,
}

/// A lookup of an xlate cache, or a flow that its packets learn.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    bridge: BridgeId,
    table: TableId,
    rule: Option<Arc<Rule>>,
    /// It is learned: another one takes its place only on the same terms.
    learned: bool,
    /// Sorted by word.
    known: Vec<Known>,
}

/// The lookups of one walk, in the order of its counts of tables.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Where the words of each end.
    ends: Vec<usize>,
    /// The words that the tables look at, one lookup after the other.
    words: Vec<Known>,
    /// Which packet each lookup was of; none: it is a learned flow, of which all that it matches is known.
    layers: Vec<Option<Layer>>,
}

impl Looks {
    /// A lookup in a table with this key.
    pub(crate) fn add(&mut self, table: &Classifier, key: &FlowKey, layer: Layer) {
        let mut bits = table.words();
        while bits != 0 {
            let w = bits.trailing_zeros();
            bits &= bits - 1;
            let value = key.0.get(w as usize).copied().unwrap_or(0);
            self.words.push(Known { word: w as u8, mask: u64::MAX, value });
        }
        self.ends.push(self.words.len());
        self.layers.push(Some(layer));
    }

    /// A flow is learned.
    pub(crate) fn learned(&mut self, rule: &Rule) {
        let known = rule.matches.words().iter().map(|w| Known { word: w.word, mask: w.mask, value: w.value });
        self.words.extend(known);
        self.ends.push(self.words.len());
        self.layers.push(None);
    }

    /// The walk becomes a megaflow: only the bits of its mask are known.
    pub(crate) fn widen(&mut self, looked: &DependencyMask) {
        let mut from = 0;
        for (end, layer) in self.ends.iter().zip(&self.layers) {
            let words = self.words.get_mut(from..*end).unwrap_or_default();
            from = *end;
            let Some(layer) = layer else { continue };
            for k in words {
                k.mask &= looked.shared(*layer, k.word);
                k.value &= k.mask;
            }
        }
    }

    /// Appends a lookup of another list.
    pub(super) fn again(&mut self, (words, layer): (&[Known], Option<Layer>)) {
        self.words.extend_from_slice(words);
        self.ends.push(self.words.len());
        self.layers.push(layer);
    }

    /// The first of them.
    pub(super) fn first(&self, n: usize) -> Looks {
        let ends: Vec<usize> = self.ends.iter().take(n).copied().collect();
        let words = self.words.get(..ends.last().copied().unwrap_or(0)).unwrap_or_default().to_vec();
        Looks { layers: self.layers.iter().take(n).copied().collect(), ends, words }
    }

    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.words.clear();
        self.layers.clear();
    }

    /// The words and the packet of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[Known], Option<Layer>)> {
        let mut from = 0;
        self.ends.iter().zip(&self.layers).map(move |(end, layer)| {
            let words = self.words.get(from..*end).unwrap_or_default();
            from = *end;
            (words, *layer)
        })
    }

    /// As the lookups of a new xlate cache with these counters.
    pub(crate) fn known(&self, counts: &[Count]) -> Box<[Look]> {
        let looks = counts.iter().filter_map(Count::look).zip(self.iter());
        looks
            .map(|((bridge, table, rule), (words, layer))| Look {
                bridge,
                table,
                rule: rule.cloned(),
                learned: layer.is_none(),
                known: words.to_vec(),
            })
            .collect()
    }

    /// Another flow shares the xlate cache: known bits are now those that it has in common, too.
    pub(crate) fn join(&self, path: &mut [Look]) {
        for (look, (words, _)) in path.iter_mut().zip(self.iter()) {
            let same = look.known.len() == words.len() && look.known.iter().zip(words).all(|(k, w)| k.word == w.word);
            if same {
                for (k, w) in look.known.iter_mut().zip(words) {
                    k.mask &= w.mask & !(k.value ^ w.value);
                    k.value &= k.mask;
                }
                continue;
            }
            // Rules of the table match other words than before.
            look.known.retain_mut(|k| {
                let w = words.iter().find(|w| w.word == k.word);
                k.mask &= w.map_or(0, |w| w.mask & !(k.value ^ w.value));
                k.value &= k.mask;
                k.mask != 0
            });
        }
    }
}

/// Whether a packet with these known bits may match. `conj_id` is left out, as the search itself sets it.
fn may_match(known: &[Known], m: &Match) -> bool {
    let conj = FieldId::ConjId.def();
    let conj_bits = FieldId::ConjId.full_mask() as u64;
    m.words().iter().all(|w| {
        let mask = if usize::from(w.word) == conj.word { w.mask & !(conj_bits << conj.shift) } else { w.mask };
        match known.iter().find(|k| k.word == w.word) {
            Some(k) => (k.value ^ w.value) & k.mask & mask == 0,
            None => true,
        }
    })
}

impl Look {
    /// `None`: after these changes the lookup may find another rule. Else the rule that replaced its own, if one did.
    fn after(&self, c: &Changes, tables: &[Arc<Classifier>], looks: &mut usize) -> Option<Option<Arc<Rule>>> {
        let mut next = None;
        if let Some(new) = self.rule.as_ref().and_then(|r| c.gone.get(&place(r))) {
            let new = new.clone()?;
            if self.learned && self.rule.as_ref().is_some_and(|old| !old.is_on_terms_of(&new)) {
                return None;
            }
            next = Some(new);
        }
        let Some(list) = c.rules.get(&self.table) else { return Some(next) };
        *looks += list.len();
        if *looks > MOST_LOOKS {
            return None;
        }
        let conjunctions = tables.get(self.table.index()).is_some_and(|t| t.has_conjunctions())
            || list.iter().any(|(r, _)| r.is_soft());
        let least = self.rule.as_ref().map_or(0, |r| r.priority);
        let concerned = list
            .iter()
            .any(|(r, came)| (conjunctions || *came && r.priority >= least) && may_match(&self.known, &r.matches));
        (!concerned).then_some(next)
    }
}

impl XlateCaches {
    /// Flows that a bridge's changes may concern become stale. Counters must have been paid out.
    pub(crate) fn tables_changed(&mut self, bridge: BridgeId, c: &Changes, tables: &[Arc<Classifier>]) {
        let mut looks = 0;
        for i in 0..self.list.len() {
            let Some(path) = self.list.get(i) else { continue };
            let mut next = Vec::new();
            let holds = path.looks.iter().enumerate().filter(|(_, l)| l.bridge == bridge).all(|(n, l)| {
                match l.after(c, tables, &mut looks) {
                    Some(Some(rule)) => {
                        next.push((n, rule));
                        true
                    }
                    Some(None) => true,
                    None => false,
                }
            });
            if !holds {
                self.forget_path(i);
            } else if !next.is_empty() {
                self.relink(i, next);
            }
        }
    }

    /// Flows with one of these dependencies become stale. Counters must have been paid out.
    pub(crate) fn needs_changed(&mut self, list: &[Dependency]) {
        for i in 0..self.list.len() {
            if self.list.get(i).is_some_and(|p| p.needs.iter().any(|n| list.contains(n))) {
                self.forget_path(i);
            }
        }
    }

    /// Replaces rules by equal ones.
    fn relink(&mut self, i: usize, next: Vec<(usize, Arc<Rule>)>) {
        self.unlist_path(i);
        let Some(path) = self.list.get_mut(i) else { return };
        for (n, rule) in next {
            let mut of_looks = path.counts.iter_mut().filter(|c| c.look().is_some());
            if let (Some(l), Some(c)) = (path.looks.get_mut(n), of_looks.nth(n)) {
                l.rule = Some(rule.clone());
                match c {
                    Count::Table { rule: r, .. } => *r = Some(rule),
                    Count::Learn { rule: r, .. } => *r = rule,
                    _ => {}
                }
            }
        }
        self.list_path(i);
    }
}
