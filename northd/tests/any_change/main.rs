//! Random changes of any northbound table, and of what chassis write southbound: after each step the compiler holds what a
//! fresh one gives, the southbound server takes what it writes, and compiling over the result changes nothing.
//!
//! Rows come from the schema, so that no table is forgotten: each is generated, or listed with why not. Servers are played
//! by the engine of `ovsdb-rs`, which holds references and indexes as ovsdb-server does. `ANY_CHANGE=SEEDS` asks for more.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rows;
mod servers;
mod writes;

use northd::Compiler;
use northd::model::{Key, Value};
use ovn_schema::{nb, sb};
use rows::{Random, step};
use serde_json::json;
use servers::Servers;
use std::collections::{BTreeSet, HashMap};

/// Northbound tables that the compiler does not read: the server's own.
const NB_OTHERS: [nb::TableId; 2] = [nb::TableId::Connection, nb::TableId::Ssl];

/// Southbound tables in which chassis (and, of `Service_Monitor`, other zones) write.
const BY_CHASSIS: [sb::TableId; 12] = [
    sb::TableId::Chassis,
    sb::TableId::ChassisPrivate,
    sb::TableId::Encap,
    sb::TableId::PortBinding,
    sb::TableId::MacBinding,
    sb::TableId::Fdb,
    sb::TableId::IgmpGroup,
    sb::TableId::LearnedRoute,
    sb::TableId::ServiceMonitor,
    sb::TableId::Bfd,
    sb::TableId::SbGlobal,
    sb::TableId::StaticMacBinding,
];

/// Southbound tables that the compiler alone writes.
const BY_NORTHD: [sb::TableId; 24] = [
    sb::TableId::AclId,
    sb::TableId::AddressSet,
    sb::TableId::AdvertisedMacBinding,
    sb::TableId::AdvertisedRoute,
    sb::TableId::ChassisTemplateVar,
    sb::TableId::DhcpOptions,
    sb::TableId::Dhcpv6Options,
    sb::TableId::Dns,
    sb::TableId::DatapathBinding,
    sb::TableId::EcmpNexthop,
    sb::TableId::GatewayChassis,
    sb::TableId::HaChassis,
    sb::TableId::HaChassisGroup,
    sb::TableId::IpMulticast,
    sb::TableId::LoadBalancer,
    sb::TableId::LogicalDpGroup,
    sb::TableId::LogicalFlow,
    sb::TableId::Meter,
    sb::TableId::MeterBand,
    sb::TableId::Mirror,
    sb::TableId::MulticastGroup,
    sb::TableId::PortGroup,
    sb::TableId::RbacPermission,
    sb::TableId::RbacRole,
];

/// Southbound tables that are no business of the compiler's: the server's own, and events for the CMS.
const SB_OTHERS: [sb::TableId; 3] = [sb::TableId::Connection, sb::TableId::Ssl, sb::TableId::ControllerEvent];

#[test]
fn no_table_is_forgotten() {
    let all: BTreeSet<sb::TableId> = sb::TableId::ALL.iter().copied().collect();
    let listed: BTreeSet<sb::TableId> = BY_CHASSIS.into_iter().chain(BY_NORTHD).chain(SB_OTHERS).collect();
    assert_eq!(all, listed);
    // What the steps really put in.
    let mut seen: BTreeSet<nb::TableId> = BTreeSet::new();
    let mut by_chassis: BTreeSet<sb::TableId> = BTreeSet::new();
    let mut servers = Servers::new();
    for seed in 1..200 {
        let mut random = Random::new(seed);
        servers = if seed % 20 == 0 { Servers::new() } else { servers };
        step(&mut servers, &mut random);
        seen.extend(nb::TableId::ALL.iter().filter(|t| servers.nb.count(t.name()) > 0));
        by_chassis.extend(BY_CHASSIS.iter().filter(|t| servers.touched.contains(t.name())));
    }
    let wanted: BTreeSet<nb::TableId> = nb::TableId::ALL.iter().copied().filter(|t| !NB_OTHERS.contains(t)).collect();
    let missing: Vec<_> = wanted.difference(&seen).collect();
    assert!(missing.len() < 4, "rarely or never made: {missing:?}");
}

fn outputs(compiler: &Compiler) -> HashMap<Key, BTreeSet<Value>> {
    compiler.engine().outputs().iter().map(|(k, v)| (k.clone(), v.cloned().collect())).collect()
}

/// Runs until nothing is left to write, as the daemon does.
fn settle(compiler: &mut Compiler, servers: &mut Servers, what: &str) {
    for _ in 0..8 {
        let changes = compiler.run();
        if changes.sb.is_empty() && changes.nb.is_empty() {
            return;
        }
        servers.write(compiler, &changes, what);
    }
    let changes = compiler.run();
    assert_eq!((changes.sb, changes.nb), (vec![], vec![]), "{what}: no end of changes");
}

fn compare(compiler: &Compiler, what: &str) {
    let input = compiler.input();
    let mut fresh = Compiler::new(input.nb.clone(), input.sb.clone());
    let changes = fresh.run();
    let (held, wanted) = (outputs(compiler), outputs(&fresh));
    for (k, v) in &wanted {
        assert_eq!(held.get(k), Some(v), "{what}: {k:?}");
    }
    for k in held.keys() {
        assert!(wanted.contains_key(k), "{what}: stale {k:?}");
    }
    assert_eq!((changes.sb, changes.nb), (vec![], vec![]), "{what}: a fresh compile changes what is there");
}

#[test]
fn as_a_fresh_compile() {
    let seeds = std::env::var("ANY_CHANGE").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    for seed in 1..=seeds {
        let mut random = Random::new(seed);
        let mut servers = Servers::new();
        for _ in 0..80 {
            step(&mut servers, &mut random);
        }
        let (nb, sb) = servers.databases();
        let mut compiler = Compiler::new(nb, sb);
        settle(&mut compiler, &mut servers, &format!("seed {seed}: start"));
        let mut told = Vec::new();
        for n in 0..30 {
            for _ in 0..1 + random.below(3) {
                told.push(step(&mut servers, &mut random));
            }
            let what = format!("seed {seed} step {n}: {}", told.join("; "));
            servers.tell(&mut compiler);
            settle(&mut compiler, &mut servers, &what);
            compare(&compiler, &what);
            told.clear();
        }
    }
}

/// A switch for which no tunnel key is left gets one, and all that is its, as soon as another goes.
#[test]
fn keys_run_out_and_come_back() {
    let mut servers = Servers::new();
    let zones = json!(["map", [["ic-vxlan_mode", "true"]]]);
    let switches = (0..1023).map(
        |n| json!({"op": "insert", "table": "Logical_Switch", "row": {"name": format!("s{n}"), "other_config": zones}}),
    );
    servers.nb.transact(&switches.collect::<Vec<_>>()).unwrap();
    let (nb, sb) = servers.databases();
    let mut compiler = Compiler::new(nb, sb);
    settle(&mut compiler, &mut servers, "start");
    assert_eq!(servers.sb.count("Datapath_Binding"), 1023);
    servers.nb.transact(&[json!({"op": "delete", "table": "Logical_Switch", "where": [["name", "!=", "ls0"], ["name", "!=", "s5"], ["name", "!=", "s6"]]})]).unwrap();
    servers.tell(&mut compiler);
    settle(&mut compiler, &mut servers, "keys are free again");
    compare(&compiler, "keys are free again");
    assert_eq!(servers.sb.count("Datapath_Binding"), 5);
}
