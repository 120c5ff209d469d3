//! Random changes: what an engine holds after updates equals what a fresh one computes.

use incremental::{Derivation, Engine, View};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Rows: key → (value, the key of another row).
type Rows = BTreeMap<u8, (u8, u8)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Read {
    Keys,
    Row(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Root,
    Class(u8),
    Extra(u8),
    Pair(u8),
    /// Given by `Class`: half its value.
    Half(u8),
}

struct Toy;

impl Derivation for Toy {
    type Input = Rows;
    type Read = Read;
    type Unit = Unit;
    type Fact = u8;
    type Key = String;
    type Value = u8;

    fn layers(&self) -> usize {
        4
    }

    fn layer(&self, unit: &Unit) -> usize {
        match unit {
            Unit::Root => 0,
            Unit::Class(_) => 1,
            Unit::Extra(_) => 2,
            Unit::Pair(_) | Unit::Half(_) => 3,
        }
    }

    fn roots(&self) -> Vec<Unit> {
        vec![Unit::Root]
    }

    fn run(&self, unit: &Unit, view: &mut View<'_, Toy>) {
        match unit {
            Unit::Root => {
                for key in view.read(Read::Keys).keys() {
                    view.spawn(Unit::Class(*key));
                    view.spawn(Unit::Pair(*key));
                }
            }
            Unit::Class(k) => {
                let Some((value, link)) = view.read(Read::Row(*k)).get(k) else { return };
                if value % 5 != 0 {
                    view.derive(value % 4);
                }
                if value % 2 == 0 {
                    view.spawn(Unit::Extra(*link));
                }
                if value % 3 != 0 {
                    view.give(Unit::Half(*k), value / 2);
                }
                view.emit(format!("value {value}"), *k);
            }
            Unit::Extra(k) => {
                let class = view.fact(&Unit::Class(*k)).copied();
                view.derive(class.unwrap_or(9));
                view.emit(format!("extra {class:?}"), *k);
            }
            Unit::Pair(k) => {
                let Some((_, link)) = view.read(Read::Row(*k)).get(k) else { return };
                let class = view.fact(&Unit::Class(*link)).copied();
                let extra = view.fact(&Unit::Extra(*link)).copied();
                let half = view.fact(&Unit::Half(*link)).copied();
                view.emit(format!("pair {class:?} {extra:?} {half:?}"), *k);
                // Twice the same: it counts once.
                view.emit("all".to_string(), *k);
                view.emit("all".to_string(), *k);
            }
            Unit::Half(_) => unreachable!("it is given"),
        }
    }
}

type Result = BTreeMap<String, Vec<u8>>;

fn held(engine: &Engine<Toy>) -> Result {
    let sorted = |values: Vec<u8>| values.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    engine.outputs().iter().map(|(k, v)| (k.clone(), sorted(v.copied().collect()))).collect()
}

fn fresh(rows: &Rows) -> Result {
    let mut engine = Engine::new(Toy);
    engine.update(rows, [], |_| ());
    held(&engine)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn updates_equal_a_fresh_run(
        batches in prop::collection::vec(
            prop::collection::vec((0u8..12, prop::option::of((0u8..20, 0u8..12))), 1..4), 1..25)
    ) {
        let mut rows = Rows::new();
        let mut engine = Engine::new(Toy);
        engine.update(&rows, [], |_| ());
        let mut told = Result::new();
        for batch in batches {
            let mut changed = Vec::new();
            for (key, row) in batch {
                changed.push(Read::Row(key));
                let had = rows.contains_key(&key);
                match row {
                    Some(r) => { rows.insert(key, r); }
                    None => { rows.remove(&key); }
                }
                if had != rows.contains_key(&key) {
                    changed.push(Read::Keys);
                }
            }
            engine.update(&rows, changed, |changes| {
                for c in changes {
                    assert_ne!(c.before, c.after);
                    assert_eq!(told.get(c.key).cloned().unwrap_or_default(), c.before.into_vec());
                    if c.after.is_empty() {
                        told.remove(c.key);
                    } else {
                        told.insert(c.key.clone(), c.after.into_vec());
                    }
                }
            });
            prop_assert_eq!(&held(&engine), &fresh(&rows));
            prop_assert_eq!(&told, &fresh(&rows));
        }
    }
}

#[test]
fn an_equal_fact_wakes_nobody() {
    let mut rows: Rows = (0..100).map(|k| (k, (k, (k + 1) % 100))).collect();
    let mut engine = Engine::new(Toy);
    engine.update(&rows, [], |_| ());
    rows.insert(7, (11, 8));
    engine.update(&rows, [Read::Row(7)], |_| ());
    assert_eq!(engine.stats().ran, 3, "Class(7), Pair(7) and Pair(6): 7 % 4 == 11 % 4, but 7 / 2 != 11 / 2");
    rows.insert(9, (9 + 12, 10));
    engine.update(&rows, [Read::Row(9)], |_| ());
    assert_eq!(engine.stats().ran, 2, "Class(9) and Pair(9); not Pair(8), as 9 % 4 == 21 % 4 and neither gives a half");
}

#[test]
fn why_names_unit_and_rows() {
    let rows: Rows = [(1, (3, 2)), (2, (6, 1))].into();
    let mut engine = Engine::new(Toy);
    engine.update(&rows, [], |_| ());
    let why = engine.why(&"value 3".to_string());
    assert_eq!(why.len(), 1);
    assert_eq!(*why[0].unit, Unit::Class(1));
    assert_eq!(why[0].reads, [&Read::Row(1)]);
    let all: Vec<&Unit> = engine.why(&"all".to_string()).iter().map(|o| o.unit).collect();
    assert_eq!(all, [&Unit::Pair(1), &Unit::Pair(2)]);
    let pair = engine.why(&"pair Some(2) None None".to_string());
    assert_eq!(
        (pair[0].unit, &pair[0].facts[..]),
        (&Unit::Pair(1), &[&Unit::Class(2), &Unit::Extra(2), &Unit::Half(2)][..])
    );
}

/// Whatever comes and goes: names are held of what is there, and of little more.
#[test]
fn names_of_what_is_gone_are_forgotten() {
    struct Wide;
    impl Derivation for Wide {
        type Input = (u32, u32);
        type Read = u32;
        type Unit = u32;
        type Fact = u32;
        type Key = u32;
        type Value = u32;
        fn layers(&self) -> usize {
            2
        }
        fn layer(&self, unit: &u32) -> usize {
            usize::from(*unit != 0)
        }
        fn roots(&self) -> Vec<u32> {
            vec![0]
        }
        fn present(&self, _: &(u32, u32)) -> Vec<u32> {
            Vec::new()
        }
        fn decided(&self, _: &(u32, u32), _: &u32) -> Vec<(u32, bool)> {
            Vec::new()
        }
        fn run(&self, unit: &u32, view: &mut View<'_, Wide>) {
            if *unit == 0 {
                let (from, to) = *view.read(0);
                (from..to).for_each(|n| view.spawn(n));
            } else {
                view.read(*unit);
                view.fact(&0);
                // Of a unit that never is.
                view.fact(&(*unit + (1 << 30)));
                view.emit(*unit, *unit);
            }
        }
    }
    let mut engine = Engine::new(Wide);
    engine.update(&(1, 1001), [], |_| ());
    let start = engine.stats();
    let mut most = 0;
    for round in 0..100 {
        let from = 1 + round * 1000;
        engine.update(&(from, from + 1000), [0], |_| ());
        most = most.max(engine.stats().names);
        assert_eq!((engine.stats().units, engine.outputs().iter().count()), (1001, 1000));
    }
    assert!(most < 15_000, "{most} names of 3,000 things");
    engine.update(&(1, 1001), [0], |_| ());
    engine.trim();
    let end = engine.stats();
    assert_eq!((end.units, end.keys, end.names), (start.units, start.keys, start.names));
    // What has a number that was another one's works as ever.
    engine.update(&(500, 700), [0, 600], |_| ());
    assert_eq!(engine.outputs().iter().map(|(k, _)| *k).collect::<BTreeSet<_>>(), (500..700).collect());
}
