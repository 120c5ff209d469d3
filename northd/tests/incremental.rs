//! What changes lead to equals what a fresh compile gives: from each recorded situation to the next, and with rows taken
//! out and put back one by one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use northd::Compiler;
use northd::model::{Key, Value};
use ovn_schema::{Change, InDatabase, Uuid, nb, sb};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

fn outputs(compiler: &Compiler) -> HashMap<Key, BTreeSet<Value>> {
    compiler.engine().outputs().iter().map(|(k, v)| (k.clone(), v.cloned().collect())).collect()
}

fn fresh(nb: &nb::Database, sb: &sb::Database) -> HashMap<Key, BTreeSet<Value>> {
    let mut compiler = Compiler::new(nb.clone(), sb.clone());
    compiler.run();
    outputs(&compiler)
}

fn compare(compiler: &Compiler, what: &str) {
    let (held, wanted) = (outputs(compiler), fresh(&compiler.input().nb, &compiler.input().sb));
    for (k, v) in &wanted {
        assert_eq!(held.get(k), Some(v), "{what}: {k:?}");
    }
    for k in held.keys() {
        assert!(wanted.contains_key(k), "{what}: stale {k:?}");
    }
}

/// The changes that turn one state of a table into another.
fn changes<T: InDatabase>(
    old: &mut ovn_schema::Rows<T>,
    new: &ovn_schema::Rows<T>,
    wrap: impl Fn(Change<T>) -> nb::AnyChange,
) -> Vec<nb::AnyChange> {
    let all: BTreeSet<Uuid> = old.keys().chain(new.keys()).copied().collect();
    let mut out = Vec::new();
    for uuid in all {
        let (a, b) = (old.get(&uuid).cloned(), new.get(&uuid).cloned());
        if a == b {
            continue;
        }
        match &b {
            Some(row) => old.insert(uuid, row.clone()),
            None => old.remove(&uuid),
        };
        out.push(wrap(Change { uuid, old: a, new: b }));
    }
    out
}

macro_rules! tables {
    ($db:expr, $new:expr; $($T:ident $field:ident)*) => {{
        let mut all = Vec::new();
        $(all.extend(changes(&mut $db.$field, &$new.$field, nb::AnyChange::$T));)*
        all
    }};
}

fn become_db(db: &mut nb::Database, new: &nb::Database) -> Vec<nb::AnyChange> {
    tables!(db, new; Acl acl AddressSet address_set Bfd bfd ChassisTemplateVar chassis_template_var Copp copp
        DhcpOptions dhcp_options DhcpRelay dhcp_relay Dns dns ForwardingGroup forwarding_group
        GatewayChassis gateway_chassis HaChassis ha_chassis HaChassisGroup ha_chassis_group
        LoadBalancer load_balancer LoadBalancerGroup load_balancer_group
        LoadBalancerHealthCheck load_balancer_health_check LogicalRouter logical_router
        LogicalRouterPolicy logical_router_policy LogicalRouterPort logical_router_port
        LogicalRouterStaticRoute logical_router_static_route LogicalSwitch logical_switch
        LogicalSwitchPort logical_switch_port Meter meter MeterBand meter_band Mirror mirror MirrorRule mirror_rule
        Nat nat NbGlobal nb_global NetworkFunction network_function NetworkFunctionGroup network_function_group
        NetworkFunctionHealthCheck network_function_health_check
        LogicalSwitchPortHealthCheck logical_switch_port_health_check PortGroup port_group Qos qos Sample sample
        SampleCollector sample_collector SamplingApp sampling_app StaticMacBinding static_mac_binding)
}

fn load(nb: &[u8], sb: &[u8]) -> (nb::Database, sb::Database) {
    let nb = nb::Database::load(&ovsdb_rs::file::parse(nb).unwrap()).unwrap();
    let sb = sb::Database::load(&ovsdb_rs::file::parse(sb).unwrap()).unwrap();
    (nb, sb)
}

#[test]
fn from_one_situation_to_the_next() {
    let Some(dir) = common::golden() else {
        return;
    };
    for archive in common::archives(&dir) {
        let name = archive.file_name().unwrap().to_string_lossy().into_owned();
        let snapshots = common::snapshots(&archive);
        for pair in snapshots.windows(2) {
            let (nb, sb) = load(&pair[0].1, &pair[0].2);
            let (next, _) = load(&pair[1].1, &pair[1].2);
            let mut compiler = Compiler::new(nb, sb);
            compiler.run();
            compiler.change_nb(|db| become_db(db, &next));
            compiler.run();
            compare(&compiler, &format!("{name} {} to {}", pair[0].0, pair[1].0));
        }
    }
}

/// Takes a row out of a table, compiles, and puts it back.
fn out_and_back(compiler: &mut Compiler, name: &str, pick: impl Fn(&mut nb::Database)) {
    let before = compiler.input().nb.clone();
    let mut without = before.clone();
    pick(&mut without);
    compiler.change_nb(|db| become_db(db, &without));
    compiler.run();
    compare(compiler, &format!("{name} without"));
    compiler.change_nb(|db| become_db(db, &before));
    compiler.run();
    compare(compiler, &format!("{name} again"));
}

#[test]
fn rows_out_and_back() {
    let Some(dir) = common::golden() else {
        return;
    };
    for archive in common::archives(&dir).into_iter().step_by(7) {
        let name = archive.file_name().unwrap().to_string_lossy().into_owned();
        let Some((_, nb, sb)) = common::snapshots(&archive).into_iter().next() else { continue };
        let (nb, sb) = load(&nb, &sb);
        let mut compiler = Compiler::new(nb.clone(), sb);
        compiler.run();
        for uuid in nb.logical_switch_port.keys().take(3) {
            out_and_back(&mut compiler, &name, |db| {
                db.logical_switch_port.remove(uuid);
                for switch in db.logical_switch.values_mut() {
                    Arc::make_mut(switch).ports.remove(uuid);
                }
            });
        }
        for uuid in nb.logical_router_port.keys().take(2) {
            out_and_back(&mut compiler, &name, |db| {
                db.logical_router_port.remove(uuid);
                for router in db.logical_router.values_mut() {
                    Arc::make_mut(router).ports.remove(uuid);
                }
            });
        }
        for uuid in nb.logical_switch.keys().take(1) {
            out_and_back(&mut compiler, &name, |db| {
                db.logical_switch.remove(uuid);
            });
        }
        for uuid in nb.logical_router.keys().take(1) {
            out_and_back(&mut compiler, &name, |db| {
                db.logical_router.remove(uuid);
            });
        }
        for uuid in nb.nat.keys().take(2) {
            out_and_back(&mut compiler, &name, |db| {
                db.nat.remove(uuid);
                for router in db.logical_router.values_mut() {
                    Arc::make_mut(router).nat.remove(uuid);
                }
            });
        }
        for uuid in nb.load_balancer.keys().take(2) {
            out_and_back(&mut compiler, &name, |db| {
                db.load_balancer.remove(uuid);
            });
        }
        for uuid in nb.port_group.keys().take(2) {
            out_and_back(&mut compiler, &name, |db| {
                db.port_group.remove(uuid);
            });
        }
    }
}
