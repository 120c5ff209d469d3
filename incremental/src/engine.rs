//! Units, what they read, and running those that must run.

use crate::Derivation;
use crate::outputs::{Changes, Outputs};
use crate::readers::Readers;
use crate::view::{Made, View, WhatIf};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// How many units are run before their results are taken over; bounds what is held twice.
const BATCH: usize = 2048;

/// How many units are worth other threads: waking these, and their search for work afterwards, takes the time of a dozen units.
const TOGETHER: usize = 64;

/// The derivation's state: every unit, what it read, and all outputs.
pub struct Engine<D: Derivation> {
    derivation: D,
    facts: Facts<D>,
    reads: Reads<D>,
    outputs: Outputs<D::Key, D::Value>,
    dirty: Vec<Vec<u32>>,
    stats: Stats,
    started: bool,
    /// With how many names the next look for those of what is gone is due.
    collect_at: usize,
}

/// Counts of what an update did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Units that ran.
    pub ran: usize,
    /// Things and facts that these looked at.
    pub looks: usize,
    /// Units that exist.
    pub units: usize,
    /// Output keys that exist.
    pub keys: usize,
    /// Names of units and of what they look at that are held: those that exist, and some that are gone.
    pub names: usize,
}

/// Where an output came from.
pub struct Origin<'a, D: Derivation> {
    /// The unit.
    pub unit: &'a D::Unit,
    /// The value that it put out.
    pub value: &'a D::Value,
    /// What the unit looked at in the input.
    pub reads: Vec<&'a D::Read>,
    /// The units whose facts it looked at.
    pub facts: Vec<&'a D::Unit>,
}

/// An output that would not be.
pub struct Lost<'a, D: Derivation> {
    /// Its key.
    pub key: &'a D::Key,
    /// Its value.
    pub value: &'a D::Value,
    /// Whether the unit would put out another value under the key.
    pub changed: bool,
}

/// Units by number and name, with what they derived.
pub(crate) struct Facts<D: Derivation> {
    ids: FxHashMap<D::Unit, u32>,
    units: Vec<Unit<D>>,
    /// Numbers that stand for no unit any more.
    free: Vec<u32>,
}

struct Unit<D: Derivation> {
    name: D::Unit,
    layer: u32,
    parents: u32,
    /// Whether the input is one of the parents.
    present: bool,
    dirty: bool,
    fact: Option<D::Fact>,
    readers: Readers,
    reads: Box<[u32]>,
    facts_read: Box<[u32]>,
    children: Box<[u32]>,
    /// The names under which it gives facts.
    gives: Box<[u32]>,
    /// The unit that gives its fact, where it does not run.
    giver: Option<u32>,
    /// The numbers of the keys that it put out; their values are with these.
    outputs: Box<[u32]>,
}

struct Reads<D: Derivation> {
    ids: FxHashMap<D::Read, u32>,
    names: Vec<D::Read>,
    readers: Vec<Readers>,
    /// Numbers that stand for nothing any more.
    free: Vec<u32>,
}

impl<D: Derivation> Facts<D> {
    /// The layer at which the fact under a name is made: its giver's where it is given; none where nothing makes it.
    pub(crate) fn made_at(&self, id: u32) -> Option<u32> {
        let unit = self.units.get(id as usize)?;
        match unit.giver {
            Some(giver) => self.units.get(giver as usize).map(|u| u.layer),
            None => (unit.parents > 0).then_some(unit.layer),
        }
    }

    /// A unit's number, and what it derived.
    pub(crate) fn find(&self, unit: &D::Unit) -> Option<(u32, Option<&D::Fact>)> {
        let id = *self.ids.get(unit)?;
        Some((id, self.units.get(id as usize)?.fact.as_ref()))
    }

    fn id(&mut self, derivation: &D, name: D::Unit) -> u32 {
        if let Some(id) = self.ids.get(&name) {
            return *id;
        }
        let reused = self.free.pop();
        let id = reused.unwrap_or(self.units.len() as u32);
        self.ids.insert(name.clone(), id);
        let unit = Unit {
            layer: derivation.layer(&name) as u32,
            name,
            parents: 0,
            present: false,
            dirty: false,
            fact: None,
            readers: Readers::default(),
            reads: Box::default(),
            facts_read: Box::default(),
            children: Box::default(),
            gives: Box::default(),
            giver: None,
            outputs: Box::default(),
        };
        match self.units.get_mut(id as usize).filter(|_| reused.is_some()) {
            Some(slot) => *slot = unit,
            None => self.units.push(unit),
        }
        id
    }

    /// Forgets units that nobody wants, looks at or waits for.
    fn collect(&mut self) {
        for (id, u) in (0..).zip(&self.units) {
            let idle = u.parents == 0 && !u.dirty && u.fact.is_none() && u.readers.is_empty();
            if idle && self.ids.get(&u.name) == Some(&id) {
                self.ids.remove(&u.name);
                self.free.push(id);
            }
        }
    }
}

impl<D: Derivation> Reads<D> {
    fn id(&mut self, read: D::Read) -> u32 {
        if let Some(id) = self.ids.get(&read) {
            return *id;
        }
        let reused = self.free.pop();
        let id = reused.unwrap_or(self.names.len() as u32);
        self.ids.insert(read.clone(), id);
        match self.names.get_mut(id as usize).filter(|_| reused.is_some()) {
            // It had no reader, so its list is empty.
            Some(slot) => *slot = read,
            None => {
                self.names.push(read);
                self.readers.push(Readers::default());
            }
        }
        id
    }

    /// Forgets what nobody looks at.
    fn collect(&mut self) {
        for ((id, name), readers) in (0..).zip(&self.names).zip(&mut self.readers) {
            if readers.is_empty() && self.ids.get(name) == Some(&id) {
                self.ids.remove(name);
                self.free.push(id);
                readers.trim();
            }
        }
    }
}

/// How many numbers may be in use before those of what is gone are looked for: some, and a part of those that last were.
const FEW: usize = 4096;

impl<D: Derivation> Engine<D> {
    /// An engine that has not run.
    pub fn new(derivation: D) -> Engine<D> {
        let dirty = (0..derivation.layers()).map(|_| Vec::new()).collect();
        Engine {
            derivation,
            facts: Facts { ids: FxHashMap::default(), units: Vec::new(), free: Vec::new() },
            reads: Reads { ids: FxHashMap::default(), names: Vec::new(), readers: Vec::new(), free: Vec::new() },
            outputs: Outputs::new(),
            dirty,
            stats: Stats::default(),
            started: false,
            collect_at: FEW,
        }
    }

    /// Runs what must run after these things of the input changed; the first time, everything.
    /// Then hands the changes of the outputs to `sink`.
    pub fn update<R>(
        &mut self,
        input: &D::Input,
        changed: impl IntoIterator<Item = D::Read>,
        sink: impl FnOnce(Changes<'_, D::Key, D::Value>) -> R,
    ) -> R {
        (self.stats.ran, self.stats.looks) = (0, 0);
        let first = !std::mem::replace(&mut self.started, true);
        if first {
            for root in self.derivation.roots() {
                let id = self.facts.id(&self.derivation, root);
                self.adopt(id);
            }
            for unit in self.derivation.present(input) {
                self.decide(unit, true);
            }
        }
        // The first time everything runs anyway.
        for read in changed.into_iter().take_while(|_| !first) {
            for (unit, present) in self.derivation.decided(input, &read) {
                self.decide(unit, present);
            }
            if let Some(id) = self.reads.ids.get(&read)
                && let Some(readers) = self.reads.readers.get(*id as usize)
            {
                for unit in readers.to_vec() {
                    self.mark(unit);
                }
            }
        }
        for layer in 0..self.dirty.len() {
            self.sweep(layer, input);
        }
        let result = sink(self.outputs.changes());
        self.outputs.settle();
        self.stats.keys = self.outputs.len();
        if self.facts.ids.len() + self.reads.ids.len() > self.collect_at {
            self.collect();
        }
        self.stats.names = self.facts.ids.len() + self.reads.ids.len();
        result
    }

    /// Forgets the names of what is gone, so that numbers are given again. All names are looked at, which is done again only
    /// when there are a quarter more of them: the cost for each new name is constant.
    fn collect(&mut self) {
        self.facts.collect();
        self.reads.collect();
        let left = self.facts.ids.len() + self.reads.ids.len();
        self.collect_at = left + left / 4 + FEW;
        self.stats.names = left;
    }

    /// Whether it has run.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Gives back room in its tables that is not used.
    pub fn trim(&mut self) {
        self.collect();
        self.outputs.trim();
        self.facts.ids.shrink_to_fit();
        self.facts.units.shrink_to_fit();
        self.facts.units.iter_mut().for_each(|u| u.readers.trim());
        self.reads.ids.shrink_to_fit();
        self.reads.names.shrink_to_fit();
        self.reads.readers.shrink_to_fit();
        self.reads.readers.iter_mut().for_each(Readers::trim);
        self.dirty.iter_mut().for_each(Vec::shrink_to_fit);
    }

    /// All outputs.
    pub fn outputs(&self) -> &Outputs<D::Key, D::Value> {
        &self.outputs
    }

    /// What a unit derived.
    pub fn fact(&self, unit: &D::Unit) -> Option<&D::Fact> {
        self.facts.find(unit)?.1
    }

    /// The derivation.
    pub fn derivation(&self) -> &D {
        &self.derivation
    }

    /// What the last update did.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Looks at the input and at facts as a unit does, outside of any: so that what units decide can be shown by the code
    /// that decides. Nothing changes.
    pub fn look<R>(&self, input: &D::Input, f: impl FnOnce(&mut View<'_, D>) -> R) -> R {
        f(&mut View::new(input, &self.facts))
    }

    /// What a unit looked at: things of the input, and units.
    pub fn looked_at(&self, unit: &D::Unit) -> (Vec<&D::Read>, Vec<&D::Unit>) {
        let Some(u) = self.facts.ids.get(unit).and_then(|id| self.facts.units.get(*id as usize)) else {
            return (Vec::new(), Vec::new());
        };
        if let Some(giver) = u.giver.and_then(|id| self.facts.units.get(id as usize)) {
            return (Vec::new(), vec![&giver.name]);
        }
        let reads = u.reads.iter().filter_map(|r| self.reads.names.get(*r as usize)).collect();
        (reads, u.facts_read.iter().filter_map(|f| self.facts.units.get(*f as usize).map(|u| &u.name)).collect())
    }

    /// Where the values under a key came from.
    pub fn why(&self, key: &D::Key) -> Vec<Origin<'_, D>> {
        let origin = |(unit, value)| {
            let u: &Unit<D> = self.facts.units.get(unit as usize)?;
            let names = &self.reads.names;
            Some(Origin {
                unit: &u.name,
                value,
                reads: u.reads.iter().filter_map(|r| names.get(*r as usize)).collect(),
                facts: u.facts_read.iter().filter_map(|f| self.facts.units.get(*f as usize).map(|u| &u.name)).collect(),
            })
        };
        self.outputs.sources(key).iter().filter_map(|(u, v)| origin((*u, v))).collect()
    }

    /// The outputs that would not be, were this thing not in the input: those of the units that looked at it, of the units
    /// that looked at their facts, and so on. Nothing changes.
    pub fn without(&self, input: &D::Input, hidden: &D::Read) -> Vec<Lost<'_, D>> {
        let mut what_if = WhatIf { hidden: hidden.clone(), facts: FxHashMap::default() };
        let mut layers: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); self.derivation.layers()];
        let mut gone: FxHashSet<u32> = FxHashSet::default();
        let mut lost = Vec::new();
        let unit = |id: u32| self.facts.units.get(id as usize).filter(|u| u.parents > 0);
        let add = |layers: &mut Vec<BTreeSet<u32>>, ids: &[u32]| {
            for id in ids {
                if let Some(layer) = unit(*id).and_then(|u| layers.get_mut(u.layer as usize)) {
                    layer.insert(*id);
                }
            }
        };
        if let Some(readers) = self.reads.ids.get(hidden).and_then(|id| self.reads.readers.get(*id as usize)) {
            add(&mut layers, &readers.to_vec());
        }
        for (name, _) in self.derivation.decided(input, hidden) {
            let Some(id) = self.facts.ids.get(&name) else { continue };
            if unit(*id).is_some_and(|u| u.present && u.parents == 1) {
                gone.insert(*id);
                add(&mut layers, &[*id]);
            }
        }
        for layer in 0..layers.len() {
            for id in layers.get_mut(layer).map(std::mem::take).unwrap_or_default() {
                let Some(u) = unit(id) else { continue };
                let made = if gone.contains(&id) {
                    Made::default()
                } else {
                    let mut view = View::supposing(input, &self.facts, &what_if);
                    self.derivation.run(&u.name, &mut view);
                    view.made
                };
                let mut kept: FxHashMap<&D::Key, Vec<&D::Value>> = FxHashMap::default();
                for (k, v) in &made.outputs {
                    kept.entry(k).or_default().push(v);
                }
                for (key, value) in self.outputs.of(&u.outputs, id) {
                    let left = kept.get(key);
                    if left.is_none_or(|values| !values.contains(&value)) {
                        lost.push(Lost { key, value, changed: left.is_some() });
                    }
                }
                let children: FxHashSet<u32> =
                    made.children.iter().filter_map(|c| self.facts.ids.get(c).copied()).collect();
                for child in u.children.iter().filter(|c| !children.contains(c)) {
                    if unit(*child).is_some_and(|c| c.parents == 1) {
                        gone.insert(*child);
                        add(&mut layers, &[*child]);
                    }
                }
                let given: FxHashMap<D::Unit, D::Fact> = made.given.into_iter().collect();
                for part in u.gives.iter().filter_map(|id| self.facts.units.get(*id as usize)) {
                    if part.fact.as_ref() != given.get(&part.name) {
                        add(&mut layers, &part.readers.to_vec());
                        what_if.facts.insert(part.name.clone(), None);
                    }
                }
                what_if.facts.extend(given.into_iter().map(|(name, fact)| (name, Some(fact))));
                if u.fact != made.fact {
                    what_if.facts.insert(u.name.clone(), made.fact);
                    add(&mut layers, &u.readers.to_vec());
                }
            }
        }
        lost
    }

    fn mark(&mut self, id: u32) {
        if let Some(u) = self.facts.units.get_mut(id as usize)
            && u.parents > 0
            && !u.dirty
        {
            u.dirty = true;
            if let Some(layer) = self.dirty.get_mut(u.layer as usize) {
                layer.push(id);
            }
        }
    }

    /// The input has a unit exist, or no longer.
    fn decide(&mut self, unit: D::Unit, present: bool) {
        let id = match present {
            true => self.facts.id(&self.derivation, unit),
            // What has no number is not there.
            false => match self.facts.find(&unit) {
                Some((id, _)) => id,
                None => return,
            },
        };
        let Some(u) = self.facts.units.get_mut(id as usize) else { return };
        if std::mem::replace(&mut u.present, present) != present {
            if present { self.adopt(id) } else { self.abandon(id) }
        }
    }

    /// One more unit wants this one to exist.
    fn adopt(&mut self, id: u32) {
        if let Some(u) = self.facts.units.get_mut(id as usize) {
            u.parents += 1;
            if u.parents == 1 {
                self.stats.units += 1;
                self.mark(id);
            }
        }
    }

    /// One unit less wants this one to exist; the last one takes it, and all that only it made, away.
    fn abandon(&mut self, id: u32) {
        let mut gone = vec![id];
        while let Some(id) = gone.pop() {
            let Some(u) = self.facts.units.get_mut(id as usize).filter(|u| u.parents > 0) else { continue };
            u.parents -= 1;
            if u.parents > 0 {
                continue;
            }
            self.stats.units -= 1;
            let children = std::mem::take(&mut u.children);
            let gives = std::mem::take(&mut u.gives);
            let had_fact = u.fact.take().is_some();
            gone.extend(children.iter().copied());
            self.forget_reads(id);
            self.replace_outputs(id, Vec::new());
            for part in gives {
                self.take_back(part);
            }
            if had_fact {
                self.wake_readers(id);
            }
        }
    }

    fn wake_readers(&mut self, id: u32) {
        let readers = self.facts.units.get(id as usize).map(|u| u.readers.to_vec()).unwrap_or_default();
        for reader in readers {
            self.mark(reader);
        }
    }

    fn sweep(&mut self, layer: usize, input: &D::Input) {
        let Some(dirty) = self.dirty.get_mut(layer) else { return };
        let mut ids = std::mem::take(dirty);
        for id in &ids {
            if let Some(u) = self.facts.units.get_mut(*id as usize) {
                u.dirty = false;
            }
        }
        let units = &self.facts.units;
        ids.retain(|id| units.get(*id as usize).is_some_and(|u| u.parents > 0));
        self.stats.ran += ids.len();
        for batch in ids.chunks(BATCH) {
            let (derivation, facts) = (&self.derivation, &self.facts);
            let run = |id: &u32| {
                let unit = facts.units.get(*id as usize)?;
                let mut view = View::new(input, facts).of_layer(unit.layer);
                derivation.run(&unit.name, &mut view);
                Some((*id, view.made))
            };
            let made: Vec<(u32, Made<D>)> = if batch.len() < TOGETHER {
                batch.iter().filter_map(run).collect()
            } else {
                batch.par_iter().filter_map(run).collect()
            };
            for (id, made) in made {
                self.stats.looks += made.reads.len() + made.facts_read.len() + made.facts_missed.len();
                self.take_over(id, made);
            }
        }
    }

    fn take_over(&mut self, id: u32, made: Made<D>) {
        let mut facts = made.facts_read;
        facts.extend(made.facts_missed.into_iter().map(|name| self.facts.id(&self.derivation, name)));
        self.replace_reads(id, made.reads, facts);
        self.replace_outputs(id, made.outputs);
        self.replace_given(id, made.given);
        let children: Box<[u32]> = {
            let mut c: Vec<u32> = made.children.into_iter().map(|name| self.facts.id(&self.derivation, name)).collect();
            c.sort_unstable();
            c.dedup();
            c.into()
        };
        debug_assert!(self.above(id, &children), "a unit of layer {:?} makes one that is not above it", self.layer(id));
        let Some(u) = self.facts.units.get_mut(id as usize) else { return };
        let old = std::mem::replace(&mut u.children, children.clone());
        let changed = u.fact != made.fact;
        u.fact = made.fact;
        if changed {
            self.wake_readers(id);
        }
        for child in children.iter().filter(|c| old.binary_search(c).is_err()) {
            self.adopt(*child);
        }
        for child in old.iter().filter(|c| children.binary_search(c).is_err()) {
            self.abandon(*child);
        }
    }

    fn layer(&self, id: u32) -> Option<u32> {
        self.facts.units.get(id as usize).map(|u| u.layer)
    }

    /// Whether all of these units are of higher layers than one.
    fn above(&self, id: u32, others: &[u32]) -> bool {
        others.iter().all(|other| self.layer(*other) > self.layer(id))
    }

    fn replace_given(&mut self, id: u32, given: Vec<(D::Unit, D::Fact)>) {
        let mut parts = Vec::with_capacity(given.len());
        for (name, fact) in given {
            let part = self.facts.id(&self.derivation, name);
            parts.push(part);
            let Some(u) = self.facts.units.get_mut(part as usize) else { continue };
            u.giver = Some(id);
            if u.fact.as_ref() != Some(&fact) {
                u.fact = Some(fact);
                self.wake_readers(part);
            }
        }
        parts.sort_unstable();
        parts.dedup();
        let Some(u) = self.facts.units.get_mut(id as usize) else { return };
        let old = std::mem::replace(&mut u.gives, parts.clone().into());
        for part in missing(&old, &parts) {
            self.take_back(part);
        }
    }

    /// A given fact is given no longer.
    fn take_back(&mut self, part: u32) {
        if self.facts.units.get_mut(part as usize).is_some_and(|u| u.fact.take().is_some()) {
            self.wake_readers(part);
        }
    }

    fn replace_outputs(&mut self, id: u32, outputs: Vec<(D::Key, D::Value)>) {
        let Some(u) = self.facts.units.get_mut(id as usize) else { return };
        let old = std::mem::take(&mut u.outputs);
        let mut new: Vec<(u32, D::Value)> = outputs.into_iter().map(|(k, v)| (self.outputs.number(k), v)).collect();
        new.sort_by_key(|(key, _)| *key);
        // What a unit puts out for each of hundreds of datapaths may be the same.
        new.dedup();
        let mut keys = Vec::with_capacity(new.len());
        for same in new.chunk_by(|a, b| a.0 == b.0) {
            if let Some((key, _)) = same.first() {
                keys.push(*key);
                self.outputs.set(*key, id, same.iter().map(|(_, v)| v.clone()));
            }
        }
        for key in missing(&old, &keys) {
            self.outputs.set(key, id, std::iter::empty());
        }
        if let Some(u) = self.facts.units.get_mut(id as usize) {
            u.outputs = keys.into();
        }
    }

    fn forget_reads(&mut self, id: u32) {
        let Some(u) = self.facts.units.get_mut(id as usize) else { return };
        let (reads, facts) = (std::mem::take(&mut u.reads), std::mem::take(&mut u.facts_read));
        for r in reads {
            if let Some(readers) = self.reads.readers.get_mut(r as usize) {
                readers.remove(id);
            }
        }
        for f in facts {
            if let Some(unit) = self.facts.units.get_mut(f as usize) {
                unit.readers.remove(id);
            }
        }
    }

    fn replace_reads(&mut self, id: u32, reads: Vec<D::Read>, mut facts: Vec<u32>) {
        let mut reads: Vec<u32> = reads.into_iter().map(|r| self.reads.id(r)).collect();
        reads.sort_unstable();
        reads.dedup();
        facts.sort_unstable();
        facts.dedup();
        let Some(u) = self.facts.units.get_mut(id as usize) else { return };
        let old_reads = std::mem::replace(&mut u.reads, reads.clone().into());
        let old_facts = std::mem::replace(&mut u.facts_read, facts.clone().into());
        // Most stay: of what many units look at, the list of readers is long.
        for r in missing(&old_reads, &reads) {
            if let Some(readers) = self.reads.readers.get_mut(r as usize) {
                readers.remove(id);
            }
        }
        for r in missing(&reads, &old_reads) {
            if let Some(readers) = self.reads.readers.get_mut(r as usize) {
                readers.add(id);
            }
        }
        for f in missing(&old_facts, &facts) {
            if let Some(unit) = self.facts.units.get_mut(f as usize) {
                unit.readers.remove(id);
            }
        }
        for f in missing(&facts, &old_facts) {
            if let Some(unit) = self.facts.units.get_mut(f as usize) {
                unit.readers.add(id);
            }
        }
    }
}

/// Those of one sorted list that are not in another.
fn missing<'a>(from: &'a [u32], other: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    from.iter().copied().filter(|x| other.binary_search(x).is_err())
}
