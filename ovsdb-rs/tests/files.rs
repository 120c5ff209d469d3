//! Files: recorded databases load and survive a rewrite; random transactions read back as they were.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use common::{operation, schema};
use ovsdb_rs::engine::{Context, Database, Outcome};
use ovsdb_rs::storage::{self, Storage};
use ovsdb_rs::{RefType, Uuid, file};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};

/// All rows as JSON, by table and name.
fn dump(db: &Database) -> BTreeMap<(String, Uuid), BTreeMap<String, Value>> {
    let mut out = BTreeMap::new();
    for t in 0..db.tables() {
        let ts = db.table_schema(t).unwrap();
        for r in db.rows(t) {
            let columns = ts.columns.iter().zip(&r.row.0).filter(|(c, _)| !c.ephemeral);
            out.insert((ts.name.clone(), r.uuid), columns.map(|(c, d)| (c.name.clone(), d.to_json())).collect());
        }
    }
    out
}

#[test]
fn recorded_databases_survive_a_rewrite() {
    // A sample; all of them with OVSDB_ALL=1.
    let every = if std::env::var_os("OVSDB_ALL").is_some() { 1 } else { 7 };
    let mut n = 0;
    for archive in golden::archives().into_iter().step_by(every) {
        let case = golden::read(&archive).unwrap();
        for (name, bytes) in case.snapshots.iter().flatten().filter(|(n, _)| n.ends_with(".db")) {
            let content = file::parse(bytes).unwrap();
            assert_eq!(content.good_bytes as usize, bytes.len(), "{} {name}", case.name);
            let rows: usize = content.tables.values().map(HashMap::len).sum();
            let db = Database::load(content).unwrap_or_else(|e| panic!("{} {name}: {e}", case.name));
            assert_eq!((0..db.tables()).map(|t| db.row_count(t)).sum::<usize>(), rows, "{} {name}", case.name);
            let again = Database::load(file::parse(&storage::whole(&db)).unwrap()).unwrap();
            assert_eq!(dump(&db), dump(&again), "{} {name}", case.name);
            n += 1;
        }
    }
    println!("{n} databases");
}

/// What must hold of any database.
fn check(db: &Database) {
    let mut counts: HashMap<(usize, Uuid), usize> = HashMap::new();
    for t in 0..db.tables() {
        let ts = db.table_schema(t).unwrap().clone();
        assert!(db.row_count(t) as u64 <= ts.max_rows.unwrap_or(u64::MAX));
        for index in &ts.indexes {
            let mut seen = HashSet::new();
            for r in db.rows(t) {
                let key: Vec<_> = index.iter().map(|c| r.row.get(&ts, c).unwrap().clone()).collect();
                assert!(seen.insert(key), "index of {}", ts.name);
            }
        }
        for r in db.rows(t) {
            for (c, d) in ts.columns.iter().zip(&r.row.0) {
                c.ty.check_size(d).unwrap();
                let pairs = d.pairs();
                let atoms = d.atoms().iter().map(|a| (&c.ty.key, a));
                let values = pairs.iter().filter_map(|(_, v)| Some((c.ty.value.as_ref()?, v)));
                for (base, a) in atoms.chain(pairs.iter().map(|(k, _)| (&c.ty.key, k))).chain(values) {
                    base.check(a).unwrap();
                    if let (Some((target, kind)), Some(u)) = (&base.reference, a.as_uuid()) {
                        let target = db.table_index(target).unwrap();
                        assert!(db.row(target, u).is_some(), "{} {} refers to nothing", ts.name, c.name);
                        if *kind == RefType::Strong && (target, u) != (t, r.uuid) {
                            *counts.entry((target, u)).or_default() += 1;
                        }
                    }
                }
            }
        }
    }
    for t in 0..db.tables() {
        for r in db.rows(t).filter(|_| !db.table_schema(t).unwrap().is_root) {
            assert!(counts.contains_key(&(t, r.uuid)), "unreferenced row of a non-root table");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn integrity_holds_and_the_file_says_what_memory_says(
        transactions in proptest::collection::vec(proptest::collection::vec(operation(), 1..6), 1..25),
        compact_at in 0..25usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.db");
        let (mut storage, content) = Storage::open_or_create(&path, &schema()).unwrap();
        let mut db = Database::load(content).unwrap();
        let context = Context::unrestricted();
        for (i, operations) in transactions.iter().enumerate() {
            let before = dump(&db);
            let Outcome::Executed(x) = db.transact(operations, &context) else { panic!("nothing waits") };
            check(&db);
            if x.failed {
                prop_assert_eq!(&before, &dump(&db));
            }
            storage.append(&db, &x.changes, &x.comments);
            storage.commit().unwrap();
            if i == compact_at {
                storage.compact(&db).unwrap();
            }
        }
        drop(storage);
        let (_, content) = Storage::open(&path).unwrap();
        prop_assert_eq!(dump(&db), dump(&Database::load(content).unwrap()));
    }
}

#[test]
fn a_torn_record_is_cut_off_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.db");
    let (mut storage, content) = Storage::open_or_create(&path, &schema()).unwrap();
    assert!(Storage::open(&path).is_err(), "a file is open once");
    let mut db = Database::load(content).unwrap();
    let context = Context::unrestricted();
    for i in 0..3 {
        let op = json!({"op": "insert", "table": "Root", "row": {"name": i}});
        let Outcome::Executed(x) = db.transact(&[op], &context) else { panic!("nothing waits") };
        storage.append(&db, &x.changes, &[]);
        storage.commit().unwrap();
    }
    drop(storage);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 20]).unwrap();
    let (mut storage, content) = Storage::open(&path).unwrap();
    let good = content.good_bytes;
    let mut db = Database::load(content).unwrap();
    assert_eq!(dump(&db).len(), 2);
    assert!(dir.path().join(format!("d.db.torn-at-{good}")).exists());
    let op = json!({"op": "insert", "table": "Root", "row": {"name": 7}});
    let Outcome::Executed(x) = db.transact(&[op], &context) else { panic!("nothing waits") };
    storage.append(&db, &x.changes, &[]);
    storage.commit().unwrap();
    drop(storage);
    let (_, content) = Storage::open(&path).unwrap();
    assert_eq!(dump(&Database::load(content).unwrap()).len(), 3);
}
