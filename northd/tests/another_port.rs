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

/// Options of an address set go along: `ic-adv` tells the interconnection controller that other zones are to have it.
#[test]
fn options_of_address_sets_are_copied() {
    let mut db = nb::Database::default();
    let options: Map<Str, Str> = [("ic-adv".into(), "true".into())].into();
    let set = nb::AddressSet { name: "as1".into(), options: options.clone(), ..Default::default() };
    db.address_set.insert(SWITCH, Arc::new(set));
    let mut compiler = Compiler::new(db, sb::Database::default());
    let first = compiler.run();
    compiler.change_sb(|db| written::insert(db, &first.sb));
    let row = compiler.input().sb.address_set.values().find(|s| &*s.name == "as1").cloned();
    assert_eq!(row.unwrap().options, options);
}

/// A health check that another zone asked for becomes northd's when a load balancer here wants the same: the row stays,
/// with its state, and is not put in a second time.
#[test]
fn a_check_of_another_zone_is_taken_over() {
    let (lb, check, learned) = (Uuid::from_u128(7), Uuid::from_u128(8), Uuid::from_u128(9));
    let mut compiler = compiled();
    let monitor = sb::ServiceMonitor {
        logical_port: "p".into(),
        ip: "10.0.0.1".into(),
        port: 80,
        protocol: Some("tcp".into()),
        r#type: Some("load-balancer".into()),
        src_ip: "10.0.0.9".into(),
        status: Some("error".into()),
        ic_learned: true,
        ..Default::default()
    };
    compiler.change_sb(|db| {
        let new = Arc::new(monitor);
        db.service_monitor.insert(learned, new.clone());
        vec![sb::AnyChange::ServiceMonitor(Change { uuid: learned, old: None, new: Some(new) })]
    });
    compiler.run();
    let pairs = |k: &str, v: &str| -> Map<Str, Str> { [(k.into(), v.into())].into() };
    compiler.change_nb(|db| {
        let balancer = Arc::new(nb::LoadBalancer {
            name: "lb".into(),
            protocol: Some("tcp".into()),
            vips: pairs("10.9.0.1:80", "10.0.0.1:80"),
            ip_port_mappings: pairs("10.0.0.1", "p:10.0.0.9"),
            health_check: [check].into(),
            ..Default::default()
        });
        let health = Arc::new(nb::LoadBalancerHealthCheck { vip: "10.9.0.1:80".into(), ..Default::default() });
        let old = db.logical_switch.get(&SWITCH).cloned();
        let mut switch = nb::LogicalSwitch::clone(old.as_ref().unwrap());
        switch.load_balancer = [lb].into();
        let switch = Arc::new(switch);
        db.load_balancer.insert(lb, balancer.clone());
        db.load_balancer_health_check.insert(check, health.clone());
        db.logical_switch.insert(SWITCH, switch.clone());
        vec![
            nb::AnyChange::LoadBalancer(Change { uuid: lb, old: None, new: Some(balancer) }),
            nb::AnyChange::LoadBalancerHealthCheck(Change { uuid: check, old: None, new: Some(health) }),
            nb::AnyChange::LogicalSwitch(Change { uuid: SWITCH, old, new: Some(switch) }),
        ]
    });
    let changes = compiler.run();
    let ours = |op: &&Op<sb::TableId>| match op {
        Op::Insert(t, ..) | Op::Update(t, ..) | Op::Delete(t, _) => *t == sb::TableId::ServiceMonitor,
    };
    let written: Vec<_> = changes.sb.iter().filter(ours).collect();
    let [Op::Update(_, row, columns)] = &written[..] else { panic!("{written:?}") };
    assert_eq!(*row, learned);
    assert!(columns.iter().any(|(n, _)| *n == "ic_learned"), "{columns:?}");
    assert!(!columns.iter().any(|(n, _)| *n == "status"), "its state stays: {columns:?}");
}

/// A controller says that a port is up only where it was said to be down: a binding that says nothing is told so again.
#[test]
fn a_binding_that_says_nothing_of_up_is_said_to_be_down() {
    let mut compiler = compiled();
    let (id, before) = compiler.input().sb.port_binding.iter().next().map(|(u, r)| (*u, r.clone())).unwrap();
    assert_eq!(before.up, Some(false));
    let mut write = |up: Option<bool>| {
        compiler.change_sb(|db| {
            let old = db.port_binding.get(&id).cloned();
            let new = Arc::new(sb::PortBinding { up, ..(*before).clone() });
            db.port_binding.insert(id, new.clone());
            vec![sb::AnyChange::PortBinding(Change { uuid: id, old, new: Some(new) })]
        });
        compiler.run().sb
    };
    assert!(write(Some(true)).is_empty(), "what the controller says stays");
    let written = write(None);
    let said = written.iter().find_map(|op| match op {
        Op::Update(sb::TableId::PortBinding, row, columns) if *row == id => columns.iter().find(|(n, _)| *n == "up"),
        _ => None,
    });
    let down = ovsdb_rs::Atom::Boolean(false);
    assert_eq!(said.and_then(|(_, d)| d.scalar()), Some(&down), "{written:?}");
}
