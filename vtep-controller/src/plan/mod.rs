//! From derived rows and rows that are there to operations of transactions.

mod southbound;
mod tor;

pub use tor::lacks;

use crate::model::{Input, Read, TorId};
use crate::output::{Key, Module, Notice, Value};
use crate::units::{Fact, Unit, Vtep};
use incremental::{Change, Engine};
use ovn_schema::{Str, Uuid};
use ovsdb_rs::client::writer::Batch;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

/// What we have to do with rows that are not derived.
#[derive(Debug, Default)]
struct Memory {
    /// Rows that were derived once and may still have to be undone. MACs are not among them: they go by their switch.
    ours: BTreeMap<Key, Value>,
    /// Chassis that were seen in the southbound database.
    registered: HashSet<Str>,
    /// MACs that a switch learned just now, so that its word counts more than that of another switch.
    fresh: HashSet<Key>,
}

/// How long something may be incomplete before it is said.
const EARLY: Duration = Duration::from_secs(5);

/// The derived rows, and which of them may differ from those that are there.
pub struct Plan {
    engine: Engine<Vtep>,
    desired: HashMap<Key, Value>,
    memory: Memory,
    southbound: BTreeSet<Key>,
    tors: Vec<BTreeSet<Key>>,
    /// The common name of our certificate; empty without TLS.
    client: Str,
    /// What was derived before a database had to be read anew.
    previous: Option<HashMap<Key, Value>>,
    notices: BTreeSet<Notice>,
    /// Notices that are said when they still hold at a time.
    unsaid: BTreeMap<Notice, Instant>,
    conflicts: BTreeMap<Key, Vec<Notice>>,
}

/// Operations, with the key that each is for.
pub type Operations = Batch<Key>;

impl Plan {
    /// A plan for so many hardware_vtep databases.
    pub fn new(tors: u16) -> Plan {
        Plan {
            engine: Engine::new(Vtep { tors }),
            desired: HashMap::new(),
            memory: Memory::default(),
            southbound: BTreeSet::new(),
            tors: (0..tors).map(|_| BTreeSet::new()).collect(),
            client: Str::default(),
            previous: None,
            notices: BTreeSet::new(),
            unsaid: BTreeMap::new(),
            conflicts: BTreeMap::new(),
        }
    }

    /// The southbound server knows the controller by this name from now on.
    pub fn rename(&mut self, client: Str) {
        self.client = client;
    }

    /// Derives anew what depends on what was read. Gives the number of units that ran.
    pub fn derive(&mut self, input: &Input, reads: Vec<Read>) -> usize {
        let first = !self.engine.started();
        let changes = self.engine.update(input, reads, |changes| {
            let own = |c: Change<'_, Key, Value>| (c.key.clone(), c.before, c.after);
            changes.map(own).collect::<Vec<_>>()
        });
        for (key, before, after) in changes {
            self.take(key, &before, &after, first);
        }
        if let Some(previous) = self.previous.take() {
            let gone: Vec<_> = previous.into_iter().filter(|(k, _)| !self.desired.contains_key(k)).collect();
            for (key, value) in gone {
                self.remember(key, value);
            }
            self.touch_all(input);
        }
        self.engine.stats().ran
    }

    /// Says what was too early to say, and holds still.
    pub fn say_late(&mut self, now: Instant) {
        self.unsaid.retain(|notice, at| {
            let due = *at <= now;
            if due {
                notice.say();
            }
            !due
        });
    }

    fn take(&mut self, key: Key, before: &[Value], after: &[Value], first: bool) {
        if let Key::Notice(notice) = key {
            if after.is_empty() {
                self.notices.remove(&notice);
                self.unsaid.remove(&notice);
            } else if self.notices.insert(notice.clone()) {
                match notice.early {
                    true => drop(self.unsaid.insert(notice, Instant::now() + EARLY)),
                    false => notice.say(),
                }
            }
            return;
        }
        let value = match &key {
            Key::Fdb(..) | Key::Neighbour(..) => newest(before, after, self.desired.get(&key)),
            _ => after.first().cloned(),
        };
        self.conflict(&key, after);
        match value {
            Some(value) => {
                if matches!(key, Key::Neighbour(..))
                    && let Some(old) = self.desired.get(&key).filter(|old| **old != value)
                {
                    self.memory.ours.insert(key.clone(), old.clone());
                }
                if matches!(key, Key::Fdb(..)) && !first {
                    self.memory.fresh.insert(key.clone());
                }
                self.desired.insert(key.clone(), value);
            }
            None => {
                self.memory.fresh.remove(&key);
                if let Some(old) = self.desired.remove(&key) {
                    self.remember(key.clone(), old);
                }
            }
        }
        self.touch(key);
    }

    /// A row that is not derived any more still has to be undone.
    fn remember(&mut self, key: Key, value: Value) {
        if !matches!(key, Key::Ucast(..) | Key::Mcast(..)) {
            self.memory.ours.insert(key, value);
        }
    }

    /// Derives everything anew the next time, as a database starts from nothing.
    pub fn restart(&mut self) {
        if self.engine.started() {
            let tors = self.engine.derivation().tors;
            self.engine = Engine::new(Vtep { tors });
            self.previous = Some(std::mem::take(&mut self.desired));
        }
    }

    /// The database of the switch that gave a chassis its name.
    fn tor_of(&self, chassis: &Str) -> Option<TorId> {
        let Some(Fact::Registry(r)) = self.engine.fact(&Unit::Registry) else { return None };
        r.groups.get(chassis).and_then(|g| g.members.first()).map(|m| m.tor)
    }

    /// A MAC that several ports have is at the first one.
    fn conflict(&mut self, key: &Key, values: &[Value]) {
        let mut now = Vec::new();
        if let (Key::Ucast(_, _, mac), [Value::Ucast(first), others @ ..]) = (key, values) {
            let mut ignored: BTreeSet<&Str> = BTreeSet::new();
            for v in others {
                if let Value::Ucast(other) = v
                    && other.port != first.port
                    && ignored.insert(&other.port)
                {
                    let text = format!(
                        "MAC address ({mac}) has already been known to be on logical port ({}) in the same logical datapath, so just ignore this logical port ({})",
                        first.port, other.port
                    );
                    now.push(Notice::warning(Module::Vtep, text));
                }
            }
        }
        let before = self.conflicts.remove(key).unwrap_or_default();
        for notice in before.iter().filter(|n| !now.contains(n)) {
            // Another logical switch at the same datapath may have the same conflict.
            if !self.conflicts.values().any(|held| held.contains(notice)) {
                self.notices.remove(notice);
            }
        }
        for notice in &now {
            if self.notices.insert(notice.clone()) {
                notice.say();
            }
        }
        if !now.is_empty() {
            self.conflicts.insert(key.clone(), now);
        }
    }

    /// The row of this key may differ from what is derived.
    pub fn touch(&mut self, key: Key) {
        match key.tor() {
            Some(TorId(t)) => {
                if let Some(dirty) = self.tors.get_mut(usize::from(t)) {
                    dirty.insert(key);
                }
            }
            None => {
                self.southbound.insert(key);
            }
        }
    }

    /// Every row may differ from what is derived. What was learned a while ago counts no more than what others learned.
    pub fn touch_all(&mut self, input: &Input) {
        self.memory.fresh.clear();
        let keys: Vec<Key> = self.desired.keys().cloned().chain(input.touched()).collect();
        for key in keys {
            self.touch(key);
        }
    }

    /// What people should know.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter()
    }

    /// The number of derived rows.
    pub fn len(&self) -> usize {
        self.desired.len()
    }

    /// How much there is, by what it is, for `memory/show`. `remembered` is all that is held of rows that are not derived, of those
    /// that may have to be written, and of what was said.
    pub fn sizes(&self) -> [(&'static str, usize); 4] {
        let m = &self.memory;
        let dirty = self.southbound.len() + self.tors.iter().map(BTreeSet::len).sum::<usize>();
        let said = self.notices.len() + self.unsaid.len() + self.conflicts.len();
        let remembered = m.ours.len() + m.registered.len() + m.fresh.len() + dirty + said;
        let stats = self.engine.stats();
        [("derived-rows", self.len()), ("units", stats.units), ("names", stats.names), ("remembered", remembered)]
    }

    /// Whether nothing is derived.
    pub fn is_empty(&self) -> bool {
        self.desired.is_empty()
    }

    /// A derived row.
    pub fn desired(&self, key: &Key) -> Option<&Value> {
        self.desired.get(key)
    }

    /// All derived rows.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.desired.iter()
    }

    /// Whether a switch's database is ours to write to: the logical switch is attached, or was.
    fn is_ours(&self, tor: TorId, switch: Uuid) -> bool {
        let key = Key::Switch(tor, switch);
        self.desired.contains_key(&key) || self.memory.ours.contains_key(&key)
    }
}

/// Where a MAC is that several switches learned: where it was learned last.
fn newest(before: &[Value], after: &[Value], now: Option<&Value>) -> Option<Value> {
    let new = after.iter().find(|v| !before.contains(v));
    new.or_else(|| now.filter(|v| after.contains(v))).or_else(|| after.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A MAC that goes before it was written leaves no word of having been learned just now.
    #[test]
    fn what_goes_unwritten_is_not_remembered() {
        let mut plan = Plan::new(1);
        let (key, value) = (Key::Fdb(1, "02:00:00:00:00:01".into()), Value::Fdb(2, TorId(0)));
        plan.take(key.clone(), &[], std::slice::from_ref(&value), false);
        assert_eq!(plan.memory.fresh.len(), 1);
        plan.take(key, &[value], &[], false);
        assert!(plan.memory.fresh.is_empty());
    }
}
