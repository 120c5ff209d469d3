//! A port that becomes another one gets another row; one that only changes keeps it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/written.rs"]
mod written;

use northd::{Changes, Compiler, Op};
use ovn_schema::{Change, Map, Str, Uuid, nb, sb};
use std::sync::Arc;

const PORT: Uuid = Uuid::from_u128(1 << 100 | 1);
const SWITCH: Uuid = Uuid::from_u128(1 << 100 | 2);

fn compiled() -> Compiler {
    let mut db = nb::Database::default();
    let port = nb::LogicalSwitchPort {
        name: "p".into(),
        addresses: [Str::from("0a:00:00:00:00:01 10.0.0.1")].into(),
        ..Default::default()
    };
    db.logical_switch_port.insert(PORT, Arc::new(port));
    let switch = nb::LogicalSwitch { name: "s".into(), ports: [PORT].into(), ..Default::default() };
    db.logical_switch.insert(SWITCH, Arc::new(switch));
    let mut compiler = Compiler::new(db, sb::Database::default());
    let first = compiler.run();
    compiler.change_sb(|db| written::insert(db, &first.sb));
    compiler.run();
    compiler
}

fn change(compiler: &mut Compiler, change: impl FnOnce(&mut nb::LogicalSwitchPort)) -> Changes {
    compiler.change_nb(|db| {
        let old = db.logical_switch_port.get(&PORT).cloned();
        let mut new = nb::LogicalSwitchPort::clone(old.as_ref().unwrap());
        change(&mut new);
        let new = Arc::new(new);
        db.logical_switch_port.insert(PORT, new.clone());
        vec![nb::AnyChange::LogicalSwitchPort(Change { uuid: PORT, old, new: Some(new) })]
    });
    compiler.run()
}

/// The row that goes, and the tunnel key and name of the one that comes.
fn replaced(changes: &Changes) -> Option<(Uuid, Uuid, i64)> {
    let gone = changes.sb.iter().find_map(|op| match op {
        Op::Delete(sb::TableId::PortBinding, u) => Some(*u),
        _ => None,
    })?;
    changes.sb.iter().find_map(|op| match op {
        Op::Insert(sb::TableId::PortBinding, u, columns) => {
            let key = columns.iter().find(|(n, _)| *n == "tunnel_key")?.1.scalar()?.as_integer()?;
            Some((gone, *u, key))
        }
        _ => None,
    })
}

#[test]
fn a_container_port_is_another_one() {
    let mut compiler = compiled();
    let (old, row) = compiler.input().sb.port_binding.iter().next().map(|(u, r)| (*u, r.clone())).unwrap();
    let changes = change(&mut compiler, |p| (p.parent_name, p.tag_request) = (Some("other".into()), Some(7)));
    let (gone, new, key) = replaced(&changes).unwrap();
    assert_eq!((gone, key), (old, row.tunnel_key));
    let groups: Vec<_> = changes
        .sb
        .iter()
        .filter_map(|op| match op {
            Op::Update(sb::TableId::MulticastGroup, _, columns) => columns.iter().find(|(n, _)| *n == "ports"),
            _ => None,
        })
        .collect();
    assert!(!groups.is_empty(), "groups that the port is in name the new row");
    for (_, ports) in groups {
        let ports: Vec<Uuid> = ports.atoms().iter().filter_map(|a| a.as_uuid()).collect();
        assert_eq!(ports, [new]);
    }
}

#[test]
fn a_virtual_port_is_another_one() {
    let mut compiler = compiled();
    let changes = change(&mut compiler, |p| {
        p.r#type = "virtual".into();
        p.options = Map::from([("virtual-ip".into(), "10.0.0.9".into()), ("virtual-parents".into(), "x".into())]);
    });
    assert!(replaced(&changes).is_some());
}

#[test]
fn other_changes_keep_the_row() {
    let mut compiler = compiled();
    assert!(replaced(&change(&mut compiler, |p| p.r#type = "localport".into())).is_none());
    let mut compiler = self::compiled();
    assert!(replaced(&change(&mut compiler, |p| p.addresses = [Str::from("unknown")].into())).is_none());
}
