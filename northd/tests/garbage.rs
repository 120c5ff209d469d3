//! Anything that the schema lets through: every string of recorded northbound content is replaced by garbage in turn. The
//! compiler goes on, what must be an address or a match is reported, what it writes fits the southbound schema, and a switch and a
//! router that have nothing to do with it keep their flows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use northd::model::{Key, Value};
use northd::{Changes, Compiler, Op};
use ovn_schema::{Str, Uuid, nb, sb};
use ovsdb_rs::{Atom, AtomType, ColumnType, DatabaseSchema, Datum, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Strings that nobody should write.
const GARBAGE: &[&str] = &[
    "",
    " ",
    "zz",
    "-1",
    "999.1.2.3/77",
    "ip4.src == ",
    "\"; drop; \\",
    "0a:00:00:00:00:zz 10.0.0.1",
    "18446744073709551616",
    "10.0.0.1:99999,fd00::/999",
    "\u{1f980}\u{0}",
];

/// Columns of which a string that is no address, network or match has to be reported.
const CHECKED: &[(&str, &str)] = &[
    ("ACL", "match"),
    ("DHCP_Options", "cidr"),
    ("Logical_Router_Policy", "match"),
    ("Logical_Router_Port", "mac"),
    ("Logical_Router_Port", "networks"),
    ("Logical_Router_Static_Route", "ip_prefix"),
    ("Logical_Router_Static_Route", "nexthop"),
    ("Logical_Switch_Port", "addresses"),
    ("Logical_Switch_Port", "port_security"),
    ("NAT", "external_ip"),
    ("NAT", "logical_ip"),
    ("QoS", "match"),
];

/// How many changes are tried in a situation.
const TRIES: usize = 250;

fn row(schema: &DatabaseSchema, table: &str, columns: Vec<(&'static str, Datum)>) -> Row {
    let ts = schema.table(table).unwrap();
    let mut row = Row::default_for(ts);
    for (name, datum) in columns {
        row.0[ts.column_index(name).unwrap()] = datum;
    }
    row
}

/// A column with its strings replaced; none where it has none, or where the schema names those that it may have.
fn spoilt(ty: &ColumnType, datum: &Datum, garbage: &str) -> Option<Datum> {
    let text = |base: &ovsdb_rs::BaseType| base.ty == AtomType::String && base.enumeration.is_none();
    let bad = Atom::String(garbage.into());
    match &ty.value {
        Some(value) if text(value) && !datum.is_empty() => {
            Some(Datum::map(datum.pairs().iter().map(|(k, _)| (k.clone(), bad.clone())).collect()))
        }
        None if text(&ty.key) && (!datum.is_empty() || ty.max > 1) => Some(Datum::set(vec![bad])),
        _ => None,
    }
}

/// A switch and a router with a port each that nothing else names.
fn island(nb: &mut nb::Database) -> [Uuid; 2] {
    let id = |n: u128| Uuid::from_u128(0x15_1a_0d << 64 | n);
    let text = |s: &str| Str::from(s);
    let port = nb::LogicalSwitchPort {
        name: text("island-p"),
        addresses: [text("0a:15:1a:0d:00:01 192.0.2.9")].into(),
        ..Default::default()
    };
    let lrp = nb::LogicalRouterPort {
        name: text("island-r"),
        mac: text("0a:15:1a:0d:00:02"),
        networks: [text("192.0.2.1/24")].into(),
        ..Default::default()
    };
    nb.logical_switch_port.insert(id(1), Arc::new(port));
    nb.logical_router_port.insert(id(2), Arc::new(lrp));
    let switch = nb::LogicalSwitch { name: text("island"), ports: [id(1)].into(), ..Default::default() };
    let router = nb::LogicalRouter { name: text("island-lr"), ports: [id(2)].into(), ..Default::default() };
    nb.logical_switch.insert(id(3), Arc::new(switch));
    nb.logical_router.insert(id(4), Arc::new(router));
    [id(3), id(4)]
}

fn flows(compiler: &Compiler, of: [Uuid; 2]) -> BTreeSet<String> {
    let outputs = compiler.engine().outputs().iter();
    let here = |v: &Value| v.datapaths().is_some_and(|d| d.all().iter().any(|u| of.contains(u)));
    let flows = outputs.filter_map(|(k, mut values)| match k {
        Key::Flow(f) if values.any(here) => Some(format!("{:?} {} {} {}", f.stage, f.priority, f.matches, f.actions)),
        _ => None,
    });
    flows.collect()
}

fn diagnostics(compiler: &Compiler) -> BTreeSet<Str> {
    let keys = compiler.engine().outputs().iter().map(|(k, _)| k);
    keys.filter_map(|k| if let Key::Diagnostic(text) = k { Some(text.clone()) } else { None }).collect()
}

/// What is written fits the southbound schema.
fn fits(schema: &DatabaseSchema, changes: &Changes) -> Result<(), String> {
    for op in &changes.sb {
        let (Op::Insert(table, _, columns) | Op::Update(table, _, columns)) = op else { continue };
        let ts = schema.table(table.name()).unwrap();
        for (name, datum) in columns {
            let ty = &ts.column(name).unwrap().ty;
            let parsed = Datum::from_json(ty, &datum.to_json(), &|_| None);
            parsed.map_err(|e| format!("{} {name} = {}: {e}", table.name(), datum.to_json()))?;
        }
    }
    Ok(())
}

#[test]
fn garbage_is_reported_and_nothing_else_suffers() {
    let Some(dir) = common::golden() else {
        return;
    };
    let (schema, southbound) = (nb::Database::schema(), sb::Database::schema());
    let (mut tried, mut silent): (usize, BTreeMap<String, BTreeSet<String>>) = (0, BTreeMap::new());
    for (n, archive) in common::archives(&dir).into_iter().step_by(9).enumerate() {
        let name = archive.file_name().unwrap().to_string_lossy().into_owned();
        let Some((_, nb, sb)) = common::snapshots(&archive).into_iter().next_back() else { continue };
        let mut nb = nb::Database::load(&ovsdb_rs::file::parse(&nb).unwrap()).unwrap();
        let sb = sb::Database::load(&ovsdb_rs::file::parse(&sb).unwrap()).unwrap();
        let island = island(&mut nb);
        let mut compiler = Compiler::new(nb.clone(), sb);
        fits(&southbound, &compiler.run()).unwrap();
        let (before, said) = (flows(&compiler, island), diagnostics(&compiler));
        assert!(!before.is_empty());
        let mut all: Vec<(nb::TableId, Uuid)> = Vec::new();
        for table in nb::TableId::ALL.iter().filter(|t| **t != nb::TableId::NbGlobal) {
            all.extend(nb.uuids(*table).into_iter().map(|u| (*table, u)));
        }
        all.retain(|(_, u)| u.as_u128() >> 64 != 0x15_1a_0d);
        all.sort_unstable();
        let step = (all.len() * 6 / TRIES).max(1);
        for (i, (table, uuid)) in all.into_iter().enumerate().filter(|(i, _)| i % step == n % step) {
            let ts = schema.table(table.name()).unwrap();
            let columns = nb.columns(table, uuid).unwrap();
            let good = row(&schema, table.name(), columns);
            for (c, column) in ts.columns.iter().enumerate() {
                let garbage = GARBAGE[(i * 7 + c * 3 + n) % GARBAGE.len()];
                let Some(bad) = spoilt(&column.ty, &good.0[c], garbage) else { continue };
                if bad == good.0[c] || ["name", "external_ids"].contains(&column.name.as_str()) && n % 2 == 0 {
                    continue;
                }
                let mut spoilt = good.clone();
                spoilt.0[c] = bad;
                let what = format!("{name}: {} {} {garbage:?}", table.name(), column.name);
                let mut put = |row: &Row| {
                    compiler.change_nb(|db| db.apply(table.name(), ts, uuid, Some(row)).unwrap().into_iter().collect());
                    let changes = compiler.run();
                    fits(&southbound, &changes).unwrap_or_else(|e| panic!("{what}: {e}"));
                    (flows(&compiler, island), diagnostics(&compiler))
                };
                let (now, says) = put(&spoilt);
                assert!(now == before, "{what}: the island's flows changed");
                let checked = CHECKED.contains(&(table.name(), &column.name)) && !garbage.trim().is_empty();
                if checked && says.is_subset(&said) {
                    silent.entry(format!("{} {}", table.name(), column.name)).or_default().insert(what.clone());
                }
                let (now, says) = put(&good);
                assert!(now == before && says == said, "{what}: not as before when it is taken back");
                tried += 1;
            }
        }
    }
    println!("{tried} columns spoilt");
    assert!(tried > 500, "{tried}");
    assert!(silent.is_empty(), "not reported: {silent:#?}");
}
