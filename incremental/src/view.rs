//! What a unit sees while it runs.

use crate::Derivation;
use crate::engine::Facts;
use rustc_hash::FxHashMap;

/// A unit's window on the input and on facts; it records what was looked at and what was made.
pub struct View<'a, D: Derivation> {
    input: &'a D::Input,
    facts: &'a Facts<D>,
    what_if: Option<&'a WhatIf<D>>,
    /// The layer of the unit that runs; the highest where none was said.
    layer: u32,
    pub(crate) made: Made<D>,
}

/// What a run supposes instead of what is.
pub(crate) struct WhatIf<D: Derivation> {
    /// A thing of the input that is not there.
    pub hidden: D::Read,
    /// Facts that are other ones then, or none.
    pub facts: FxHashMap<D::Unit, Option<D::Fact>>,
}

impl<D: Derivation> Default for Made<D> {
    fn default() -> Made<D> {
        Made {
            reads: Vec::new(),
            facts_read: Vec::new(),
            facts_missed: Vec::new(),
            children: Vec::new(),
            outputs: Vec::new(),
            fact: None,
            given: Vec::new(),
        }
    }
}

/// All that a run of a unit left behind.
pub(crate) struct Made<D: Derivation> {
    pub reads: Vec<D::Read>,
    /// Units whose facts were looked at, by number; by name where they have none yet.
    pub facts_read: Vec<u32>,
    pub facts_missed: Vec<D::Unit>,
    pub children: Vec<D::Unit>,
    pub outputs: Vec<(D::Key, D::Value)>,
    pub fact: Option<D::Fact>,
    pub given: Vec<(D::Unit, D::Fact)>,
}

impl<'a, D: Derivation> View<'a, D> {
    pub(crate) fn new(input: &'a D::Input, facts: &'a Facts<D>) -> View<'a, D> {
        View { input, facts, what_if: None, layer: u32::MAX, made: Made::default() }
    }

    /// For a unit of this layer.
    pub(crate) fn of_layer(self, layer: u32) -> View<'a, D> {
        View { layer, ..self }
    }

    pub(crate) fn supposing(input: &'a D::Input, facts: &'a Facts<D>, what_if: &'a WhatIf<D>) -> View<'a, D> {
        View { what_if: Some(what_if), ..View::new(input, facts) }
    }

    /// Whether a thing of the input is to be taken for absent ([`crate::Engine::without`]).
    pub fn hides(&self, read: &D::Read) -> bool {
        self.what_if.is_some_and(|w| w.hidden == *read)
    }

    /// The input, to look at the thing of this name; it is recorded as read, whether it exists or not.
    pub fn read(&mut self, read: D::Read) -> &'a D::Input {
        self.made.reads.push(read);
        self.input
    }

    /// The input, to look at the results of earlier runs: a number that was given out and that its holder keeps. Nothing is recorded, so no
    /// unit runs again when they change; the result depends on the order of changes as far as they do, and a fresh engine may derive
    /// another one.
    pub fn history(&self) -> &'a D::Input {
        self.input
    }

    /// What another unit of a lower layer derived; none where that unit does not exist or derived nothing.
    pub fn fact(&mut self, unit: &D::Unit) -> Option<&'a D::Fact> {
        let known = self.facts.find(unit);
        match known {
            Some((id, _)) => {
                // What units of one layer see of each other would depend on their order.
                let below = self.facts.made_at(id).is_none_or(|layer| layer < self.layer);
                debug_assert!(below, "a unit of layer {} looks at one that is not below it", self.layer);
                self.made.facts_read.push(id);
            }
            None => self.made.facts_missed.push(unit.clone()),
        }
        match self.what_if.and_then(|w| w.facts.get(unit)) {
            Some(supposed) => supposed.as_ref(),
            None => known.and_then(|(_, fact)| fact),
        }
    }

    /// Makes a unit of a higher layer exist as long as this unit says so.
    pub fn spawn(&mut self, unit: D::Unit) {
        self.made.children.push(unit);
    }

    /// Puts out a value under a key.
    pub fn emit(&mut self, key: D::Key, value: D::Value) {
        self.made.outputs.push((key, value));
    }

    /// Sets what later layers see of this unit.
    pub fn derive(&mut self, fact: D::Fact) {
        self.made.fact = Some(fact);
    }

    /// Sets what later layers see under another name, that of no unit that runs and which no other unit gives. So a fact with many
    /// parts wakes only those that look at a part that changed.
    pub fn give(&mut self, name: D::Unit, fact: D::Fact) {
        self.made.given.push((name, fact));
    }
}
