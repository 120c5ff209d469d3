//! What a unit sees while it runs.

use crate::Derivation;
use crate::engine::Facts;

/// A unit's window on the input and on facts; it records what was looked at and what was made.
pub struct View<'a, D: Derivation> {
    input: &'a D::Input,
    facts: &'a Facts<D>,
    pub(crate) made: Made<D>,
}

/// All that a run of a unit left behind.
pub(crate) struct Made<D: Derivation> {
    pub reads: Vec<D::Read>,
    pub facts_read: Vec<D::Unit>,
    pub children: Vec<D::Unit>,
    pub outputs: Vec<(D::Key, D::Value)>,
    pub fact: Option<D::Fact>,
}

impl<'a, D: Derivation> View<'a, D> {
    pub(crate) fn new(input: &'a D::Input, facts: &'a Facts<D>) -> View<'a, D> {
        let made =
            Made { reads: Vec::new(), facts_read: Vec::new(), children: Vec::new(), outputs: Vec::new(), fact: None };
        View { input, facts, made }
    }

    /// The input, to look at the thing of this name; it is recorded as read, whether it exists or not.
    pub fn read(&mut self, read: D::Read) -> &'a D::Input {
        self.made.reads.push(read);
        self.input
    }

    /// The input, to look at what never changes.
    pub fn input(&self) -> &'a D::Input {
        self.input
    }

    /// What another unit of a lower layer derived; none where that unit does not exist or derived nothing.
    pub fn fact(&mut self, unit: &D::Unit) -> Option<&'a D::Fact> {
        self.made.facts_read.push(unit.clone());
        self.facts.get(unit)
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
}
