//! Compiling into an empty southbound database: what is written holds all that is needed, as compiling over the result
//! changes nothing, and there are as many rows as the recorded situation has.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use northd::{Compiler, Op};
use ovn_schema::{InDatabase, Table, Uuid, nb, sb};
use ovsdb_rs::{Datum, Row, TableSchema};

/// Tables that northd alone fills, with the number of their rows.
fn filled(db: &sb::Database) -> Vec<(&'static str, usize)> {
    vec![
        ("Datapath_Binding", db.datapath_binding.len()),
        ("Port_Binding", db.port_binding.len()),
        ("Logical_Flow", db.logical_flow.len()),
        ("Multicast_Group", db.multicast_group.len()),
        ("Address_Set", db.address_set.len()),
        ("Port_Group", db.port_group.len()),
        ("DHCP_Options", db.dhcp_options.len()),
        ("DNS", db.dns.len()),
        ("HA_Chassis_Group", db.ha_chassis_group.len()),
        ("Load_Balancer", db.load_balancer.len()),
        ("Meter", db.meter.len()),
        ("Mirror", db.mirror.len()),
        ("Static_MAC_Binding", db.static_mac_binding.len()),
        ("IP_Multicast", db.ip_multicast.len()),
    ]
}

fn write<T: InDatabase<Database = sb::Database>>(
    db: &mut sb::Database,
    uuid: Uuid,
    columns: &[(&'static str, Datum)],
) -> Option<sb::AnyChange> {
    let schema: TableSchema = T::schema();
    let mut row = Row::default_for(&schema);
    let old = T::rows(db).get(&uuid).map(|r| r.columns()).unwrap_or_default();
    for (name, datum) in old.iter().chain(columns) {
        row.0[schema.column_index(name).unwrap()] = datum.clone();
    }
    db.apply(<T as Table>::NAME, &schema, uuid, Some(&row)).unwrap()
}

macro_rules! written {
    ($db:expr, $table:expr, $uuid:expr, $columns:expr; $($T:ident)*) => {
        match $table { $(sb::TableId::$T => write::<sb::$T>($db, $uuid, $columns),)* other => panic!("{}", other.name()) }
    };
}

fn carry_out(db: &mut sb::Database, ops: &[Op<sb::TableId>]) -> Vec<sb::AnyChange> {
    let mut changes = Vec::new();
    for op in ops {
        changes.extend(match op {
            Op::Insert(table, uuid, columns) | Op::Update(table, uuid, columns) => {
                written!(db, table, *uuid, columns; DatapathBinding PortBinding MulticastGroup AddressSet PortGroup
                    DhcpOptions Dhcpv6Options Dns HaChassisGroup HaChassis LoadBalancer Meter MeterBand Mirror RbacRole
                    RbacPermission StaticMacBinding ChassisTemplateVar IpMulticast SbGlobal LogicalFlow LogicalDpGroup
                    ServiceMonitor AclId Bfd AdvertisedRoute AdvertisedMacBinding EcmpNexthop)
            }
            Op::Delete(table, uuid) => {
                let schema = sb::Database::schema();
                db.apply(table.name(), &schema.tables[table.name()], *uuid, None).unwrap()
            }
        });
    }
    changes
}

/// What another client might do to rows that are not its own.
fn vandalize(db: &mut sb::Database) -> Vec<Op<sb::TableId>> {
    use sb::TableId as T;
    let mut ops = Vec::new();
    let text = |s: &str| Datum::Scalar(ovsdb_rs::Atom::String(s.into()));
    if let Some(u) = db.port_binding.keys().min() {
        ops.push(Op::Update(T::PortBinding, *u, vec![("mac", text("unknown"))]));
    }
    if let Some(u) = db.address_set.keys().max() {
        ops.push(Op::Update(T::AddressSet, *u, vec![("addresses", text("192.0.2.1"))]));
    }
    if let Some(u) = db.address_set.keys().min() {
        ops.push(Op::Delete(T::AddressSet, *u));
    }
    if let Some(u) = db.logical_flow.keys().min() {
        ops.push(Op::Delete(T::LogicalFlow, *u));
    }
    if let Some(u) = db.logical_flow.keys().max() {
        ops.push(Op::Update(T::LogicalFlow, *u, vec![("actions", text("drop; /* no */"))]));
    }
    ops.push(Op::Insert(T::AddressSet, Uuid::new_v4(), vec![("name", text("stray"))]));
    ops
}

/// Rows that others change, take away or put in are as they were after the next run.
#[test]
fn repaired_at_once() {
    let Some(dir) = common::golden() else {
        return;
    };
    for name in include_str!("golden_expected.txt").lines().filter(|n| n.starts_with("ovn-northd")).step_by(6) {
        let archive = dir.join(format!("{name}.tar.zst"));
        let Some((_, nb, sb)) = common::snapshots(&archive).into_iter().next_back() else { continue };
        let nb = nb::Database::load(&ovsdb_rs::file::parse(&nb).unwrap()).unwrap();
        let sb = sb::Database::load(&ovsdb_rs::file::parse(&sb).unwrap()).unwrap();
        let mut compiler = Compiler::new(nb.clone(), sb.clone());
        let first = compiler.run();
        compiler.change_sb(|db| carry_out(db, &first.sb));
        let ops = vandalize(&mut compiler.input().sb.clone());
        for op in ops {
            compiler.change_sb(|db| carry_out(db, std::slice::from_ref(&op)));
            assert!(compiler.has_changes(), "{name}: {op:?}");
            let repair = compiler.run();
            compiler.change_sb(|db| carry_out(db, &repair.sb));
            assert!(compiler.run().sb.is_empty(), "{name}: {op:?}");
            let again = Compiler::new(nb.clone(), compiler.input().sb.clone()).run();
            assert_eq!(again.sb, [], "{name}: {op:?}");
        }
    }
}

#[test]
fn into_nothing() {
    let Some(dir) = common::golden() else {
        return;
    };
    let expected = include_str!("golden_expected.txt");
    for archive in common::archives(&dir) {
        let name = archive.file_name().unwrap().to_string_lossy().replace(".tar.zst", "");
        if !expected.lines().any(|e| e == name) {
            continue;
        }
        let Some((_, nb, full)) = common::snapshots(&archive).into_iter().next_back() else { continue };
        let nb = nb::Database::load(&ovsdb_rs::file::parse(&nb).unwrap()).unwrap();
        let full = sb::Database::load(&ovsdb_rs::file::parse(&full).unwrap()).unwrap();
        let sessions = full.bfd.values().any(|b| &*b.status != "admin_down");
        if !full.igmp_group.is_empty() || !full.learned_route.is_empty() || sessions {
            // What was learned, and the state of sessions, refers to southbound rows that are not there yet.
            continue;
        }
        let empty = sb::Database {
            chassis: full.chassis.clone(),
            chassis_private: full.chassis_private.clone(),
            encap: full.encap.clone(),
            service_monitor: full.service_monitor.clone(),
            ..sb::Database::default()
        };
        let mut compiler = Compiler::new(nb.clone(), empty.clone());
        let changes = compiler.run();
        let mut db = empty;
        carry_out(&mut db, &changes.sb);
        assert_eq!(filled(&db), filled(&full), "{name}");
        let again = Compiler::new(nb, db).run();
        assert_eq!(again.sb, [], "{name}");
    }
}
