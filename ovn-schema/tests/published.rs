//! The schemas generated from the structs are the published ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ovsdb_rs::{DatabaseSchema, TableSchema, file};
use std::collections::BTreeSet;

fn assert_same(ours: &DatabaseSchema, theirs: &DatabaseSchema, whence: &str) {
    assert_eq!((&ours.name, &ours.version), (&theirs.name, &theirs.version), "{whence}");
    let names = |s: &DatabaseSchema| s.tables.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(ours), names(theirs), "{whence}: tables");
    let sorted_indexes = |t: &TableSchema| t.indexes.iter().cloned().collect::<BTreeSet<_>>();
    for (name, t) in &ours.tables {
        let p = &theirs.tables[name];
        assert_eq!(t.columns, p.columns, "{whence}: {name}");
        assert_eq!((t.is_root, t.max_rows), (p.is_root, p.max_rows), "{whence}: {name}");
        assert_eq!(sorted_indexes(t), sorted_indexes(p), "{whence}: {name}");
    }
}

#[test]
fn schemas_equal_those_of_the_golden_databases_and_every_row_is_read() {
    let mut seen = BTreeSet::new();
    for archive in golden::archives() {
        let case = golden::read(&archive).unwrap();
        for (dir, snapshot) in case.snapshots.iter().enumerate() {
            for (name, bytes) in snapshot.iter().filter(|(n, _)| n.ends_with(".db")) {
                let whence = format!("{}/{dir}/{name}", case.name);
                let content = file::parse(bytes).unwrap_or_else(|e| panic!("{whence}: {e}"));
                let theirs = &content.schema;
                let (ours, loaded) = match theirs.name.as_str() {
                    "OVN_Northbound" => {
                        (ovn_schema::nb::Database::schema(), ovn_schema::nb::Database::load(&content).err())
                    }
                    "OVN_Southbound" => {
                        (ovn_schema::sb::Database::schema(), ovn_schema::sb::Database::load(&content).err())
                    }
                    "OVN_IC_Northbound" => {
                        (ovn_schema::ic_nb::Database::schema(), ovn_schema::ic_nb::Database::load(&content).err())
                    }
                    "OVN_IC_Southbound" => {
                        (ovn_schema::ic_sb::Database::schema(), ovn_schema::ic_sb::Database::load(&content).err())
                    }
                    "Open_vSwitch" => {
                        (ovn_schema::ovs::Database::schema(), ovn_schema::ovs::Database::load(&content).err())
                    }
                    other => panic!("{whence}: unexpected database {other}"),
                };
                assert_eq!(loaded, None, "{whence}");
                if seen.insert(theirs.name.clone()) {
                    assert_same(&ours, theirs, &whence);
                }
            }
        }
    }
}

#[test]
fn a_schema_survives_its_json_form() {
    for s in [
        ovn_schema::nb::Database::schema(),
        ovn_schema::sb::Database::schema(),
        ovn_schema::ic_nb::Database::schema(),
        ovn_schema::ic_sb::Database::schema(),
        ovn_schema::ovs::Database::schema(),
        ovn_schema::vtep::Database::schema(),
    ] {
        assert_eq!(DatabaseSchema::from_json(&s.to_json()).unwrap(), s);
    }
}

#[test]
fn the_vtep_schema_is_the_one_that_openvswitch_vtep_installs() {
    let path = "/usr/share/openvswitch/vtep.ovsschema";
    if !needs::installed(&[path]) {
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let theirs = DatabaseSchema::from_json(&serde_json::from_str(&text).unwrap()).unwrap();
    assert_same(&ovn_schema::vtep::Database::schema(), &theirs, path);
}

/// An older server lacks columns and tables, a newer one has more: both are read as far as they go.
#[test]
fn rows_of_other_versions_are_read_as_far_as_they_go() {
    use ovn_schema::nb;
    use ovsdb_rs::{Atom, Datum, Row, Uuid};
    let ours = nb::Database::schema();
    let mut older = ours.tables["Logical_Switch_Port"].clone();
    older.columns.retain(|c| c.name == "name" || c.name == "addresses");
    let mut newer = ours.tables["Logical_Switch_Port"].clone();
    let mut column = newer.columns[0].clone();
    column.name = "zz_from_the_future".into();
    newer.columns.push(column);
    let mut db = nb::Database::default();
    for (i, schema) in [&older, &newer].into_iter().enumerate() {
        let mut row = Row::default_for(schema);
        row.0[schema.column_index("name").unwrap()] = Datum::Scalar(Atom::String("p".into()));
        let uuid = Uuid::from_u128(i as u128);
        assert!(db.apply("Logical_Switch_Port", schema, uuid, Some(&row)).unwrap().is_some());
        assert_eq!(&*db.logical_switch_port[&uuid].name, "p");
    }
    let row = Row::default_for(&newer);
    assert!(db.apply("Table_From_The_Future", &newer, Uuid::nil(), Some(&row)).unwrap().is_none());
}
