//! From wanted rows and rows that are there to operations of transactions.

mod interconnection;
mod northbound;
mod southbound;

use crate::model::{Input, Read};
use crate::output::{Encaps, Key, Notice, Place, Route, Value};
use crate::units::routes::{Shown, show};
use crate::units::{Fact, Interconnect, Unit, Zone};
use incremental::{Change, Engine};
use ovn_schema::{ColumnValue, Map, Set, Str, Uuid};
use ovsdb_rs::client::Transaction;
use ovsdb_rs::client::writer::Batch;
use ovsdb_rs::{DatabaseSchema, Datum};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The wanted rows, and which of them may differ from those that are there.
pub struct Plan {
    engine: Engine<Interconnect>,
    dirty: HashMap<Place, BTreeSet<Key>>,
    /// Northbound ports whose switch or router is not there yet. They are looked at again when one comes: nothing that
    /// they are derived from changes then.
    waiting: BTreeSet<Key>,
    /// What people should know, and for how many reasons.
    notices: BTreeMap<Notice, usize>,
}

/// What a transaction needs to know while it is made.
struct Making<'a> {
    input: &'a Input,
    zone: &'a Zone,
    schema: Arc<DatabaseSchema>,
    /// Keys of datapaths and ports that this transaction gives away: the transit switch or router (none: datapaths),
    /// and the key.
    given: BTreeSet<(Option<Str>, i64)>,
    /// Keys that belong to another place after all.
    elsewhere: Vec<(Place, Key)>,
}

impl Default for Plan {
    fn default() -> Plan {
        let (dirty, waiting, notices) = (HashMap::new(), BTreeSet::new(), BTreeMap::new());
        Plan { engine: Engine::new(Interconnect), dirty, waiting, notices }
    }
}

impl Plan {
    /// Derives anew what depends on what was read. Gives the number of units that ran.
    pub fn derive(&mut self, input: &Input, reads: Vec<Read>) -> usize {
        let own = |c: Change<'_, Key, Value>| {
            (c.key.clone(), suppressed(&c.before), suppressed(&c.after), !c.after.is_empty())
        };
        let changes = self.engine.update(input, reads, |changes| changes.map(own).collect::<Vec<_>>());
        for (key, before, after, is) in changes {
            before.iter().filter(|n| !after.contains(n)).for_each(|n| self.forget(n));
            after.into_iter().filter(|n| !before.contains(n)).for_each(|n| self.notice(n));
            match key {
                Key::Notice(notice) if is => self.notice(notice),
                Key::Notice(notice) => self.forget(&notice),
                key => self.touch(key),
            }
        }
        self.engine.stats().ran
    }

    fn notice(&mut self, notice: Notice) {
        let reasons = self.notices.entry(notice.clone()).or_default();
        *reasons += 1;
        if *reasons == 1 {
            notice.say();
        }
    }

    fn forget(&mut self, notice: &Notice) {
        if let Some(reasons) = self.notices.get_mut(notice) {
            *reasons -= 1;
            if *reasons == 0 {
                self.notices.remove(notice);
            }
        }
    }

    /// Gives back room that is not used, as after much came at once.
    pub fn trim(&mut self) {
        self.engine.trim();
    }

    /// Derives everything anew the next time.
    pub fn restart(&mut self) {
        self.engine = Engine::new(Interconnect);
        self.notices.clear();
    }

    /// The row of this key may differ from what is wanted.
    pub fn touch(&mut self, key: Key) {
        if matches!(key, Key::Switch(_) | Key::Router(_)) && !self.waiting.is_empty() {
            self.dirty.entry(Place::Nb).or_default().append(&mut self.waiting);
        }
        if let Some(place) = key.place() {
            self.dirty.entry(place).or_default().insert(key);
        }
    }

    /// Every row may differ from what is wanted.
    pub fn touch_all(&mut self, input: &Input) {
        let keys: Vec<Key> = self.all().map(|(key, _)| key).chain(input.keys()).cloned().collect();
        for key in keys {
            self.touch(key);
        }
    }

    /// Whether every row is looked at.
    pub fn is_settled(&self, place: Place) -> bool {
        self.dirty.get(&place).is_none_or(BTreeSet::is_empty)
    }

    /// What people should know.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.notices.keys()
    }

    /// All that is wanted.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Value)> {
        let all = self.engine.outputs().iter().filter(|(key, _)| key.place().is_some());
        all.filter_map(|(key, values)| Some((key, values.min()?)))
    }

    /// What is wanted under a key.
    pub fn wanted(&self, key: &Key) -> Option<&Value> {
        self.engine.outputs().first(key)
    }

    /// The routes that this zone could tell or learn, with what comes of each; and routers that are bound nowhere.
    pub fn routes(&self, input: &Input) -> (Vec<Shown>, Vec<Str>) {
        self.engine.look(input, show)
    }

    /// How much there is, by what it is, for `memory/show`.
    pub fn sizes(&self) -> [(&'static str, usize); 3] {
        let stats = self.engine.stats();
        [("wanted-rows", stats.keys), ("units", stats.units), ("names", stats.names)]
    }

    /// This zone, once it is registered and derived.
    fn zone(&self) -> Option<&Zone> {
        match self.engine.fact(&Unit::Zone) {
            Some(Fact::Zone(z)) => Some(z),
            _ => None,
        }
    }

    /// Operations that bring a database closer to what is wanted, for at most `limit` rows.
    pub fn operations(
        &mut self,
        place: Place,
        input: &Input,
        schema: &Arc<DatabaseSchema>,
        limit: usize,
    ) -> Batch<Key> {
        let mut out = Batch::default();
        let Some(zone) = self.zone().cloned() else { return out };
        let mut dirty = self.dirty.remove(&place).unwrap_or_default();
        let mut m =
            Making { input, zone: &zone, schema: schema.clone(), given: BTreeSet::new(), elsewhere: Vec::new() };
        let mut rows = 0;
        while rows < limit {
            let Some(key) = dirty.pop_first() else { break };
            let mut txn = Transaction::new(m.schema.clone());
            match place {
                Place::IcSb | Place::Shared => self.interconnection(place, &key, &mut m, &mut txn),
                Place::Nb => {
                    if !self.northbound(&key, &m, &mut txn) {
                        self.waiting.insert(key.clone());
                    }
                }
                Place::Sb => self.southbound(&key, &m, &mut txn),
            }
            rows += usize::from(!txn.is_empty());
            out.extend(&key, txn);
        }
        for (elsewhere, key) in m.elsewhere {
            self.dirty.entry(elsewhere).or_default().insert(key);
        }
        if !dirty.is_empty() {
            self.dirty.entry(place).or_default().extend(dirty);
        }
        out
    }
}

/// Several rows of this zone can make one route: the first counts, and the others are said.
fn suppressed(values: &[Value]) -> Vec<Notice> {
    let others = values.iter().skip(1).filter_map(|v| if let Value::Route(r) = v { Some(r) } else { None });
    let text = |r: &Route| {
        let (origin, of, row) = (r.origin(), r.source.row(), r.row);
        format!("Duplicate {origin} route advertisement was suppressed! NB {of} uuid: {row}").into()
    };
    others.map(|r| Notice { info: false, text: text(r) }).collect()
}

/// A column with its value, where it differs.
fn differs<T: ColumnValue + PartialEq>(name: &'static str, now: &T, wanted: &T) -> Option<(&'static str, Datum)> {
    (now != wanted).then(|| (name, wanted.to_datum()))
}

/// Encapsulations that are there, by type and address.
type Ends = BTreeMap<(Str, Str), (Uuid, Map<Str, Str>)>;

/// Puts in the encapsulations of a gateway that are not there as they should be; gives those to have. `owner` is the
/// column that names the gateway, with its name.
fn encaps(owner: (&'static str, &Str), wanted: &Encaps, there: &Ends, txn: &mut Transaction) -> Set<Uuid> {
    let mut out = Set::new();
    for (end, options) in wanted {
        out.insert(match there.get(end) {
            Some((id, now)) => {
                txn.update("Encap", *id, differs("options", now, options));
                *id
            }
            None => {
                let (kind, ip) = end;
                let columns = [
                    (owner.0, owner.1.to_datum()),
                    ("ip", ip.to_datum()),
                    ("options", options.to_datum()),
                    ("type", kind.to_datum()),
                ];
                txn.insert("Encap", columns)
            }
        });
    }
    out
}

/// Takes addresses out of a set and puts others in.
fn exchange(table: &str, id: Uuid, now: &Set<Str>, wanted: &Set<Str>, txn: &mut Transaction) {
    if now != wanted {
        let gone: Set<Str> = now.difference(wanted).cloned().collect();
        let added: Set<Str> = wanted.difference(now).cloned().collect();
        txn.exchange(table, id, "addresses", &gone.to_datum(), &added.to_datum());
    }
}

/// A map with some values set, or removed where there is none.
fn with(map: &Map<Str, Str>, values: &[(&str, Option<Str>)]) -> Map<Str, Str> {
    let mut map = map.clone();
    for (key, value) in values {
        match value {
            Some(v) => map.insert((*key).into(), v.clone()),
            None => map.remove(*key),
        };
    }
    map
}

/// A key that nobody has: the next above the highest in use, or from the start again the lowest that is free.
fn free_key(range: std::ops::RangeInclusive<i64>, used: &BTreeSet<i64>) -> Option<i64> {
    let highest = used.range(range.clone()).next_back().copied();
    let next = highest.map_or(*range.start(), |k| k + 1);
    if range.contains(&next) { Some(next) } else { range.into_iter().find(|k| !used.contains(k)) }
}

/// The UUID as text.
fn text(id: Uuid) -> Str {
    id.to_string().into()
}

fn some(text: &str) -> Option<Str> {
    (!text.is_empty()).then(|| text.into())
}

fn yes(is: bool) -> Option<Str> {
    is.then(|| "true".into())
}

#[cfg(test)]
mod tests {
    use super::free_key;

    #[test]
    fn keys_are_not_given_again_at_once() {
        let used = |keys: &[i64]| keys.iter().copied().collect();
        assert_eq!(free_key(1..=5, &used(&[])), Some(1));
        assert_eq!(free_key(1..=5, &used(&[1, 3])), Some(4));
        assert_eq!(free_key(1..=5, &used(&[1, 5])), Some(2));
        assert_eq!(free_key(1..=5, &used(&[1, 2, 3, 4, 5])), None);
        assert_eq!(free_key(1..=5, &used(&[9])), Some(1));
    }
}
