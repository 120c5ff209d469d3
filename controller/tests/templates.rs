//! Template variables: what a chassis' own values make of flows and load balancers, and what it takes to change them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::input::model::{Input, Local, Read};
use controller::units::flows::{ChassisFlows, Key, merge};
use incremental::Engine;
use openflow_rs::mods::FlowMod;
use ovn_schema::sb::{self, AnyChange};
use ovn_schema::{Change, Map, Str, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const CHASSIS: Uuid = Uuid::from_u128(1);
const DATAPATH: Uuid = Uuid::from_u128(2);
const FLOW: Uuid = Uuid::from_u128(3);
const BALANCER: Uuid = Uuid::from_u128(4);

fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

fn variables(chassis: &str, pairs: &[(&str, &str)]) -> Arc<sb::ChassisTemplateVar> {
    Arc::new(sb::ChassisTemplateVar { chassis: chassis.into(), variables: map(pairs) })
}

fn input() -> Input {
    let mut db = sb::Database::default();
    db.chassis.insert(CHASSIS, Arc::new(sb::Chassis { name: "hv1".into(), ..Default::default() }));
    let datapath = sb::DatapathBinding {
        tunnel_key: 5,
        external_ids: map(&[("logical-switch", "s")]),
        r#type: Some("logical-switch".into()),
        ..Default::default()
    };
    db.datapath_binding.insert(DATAPATH, Arc::new(datapath));
    let flow = sb::LogicalFlow {
        logical_datapath: Some(DATAPATH),
        pipeline: "ingress".into(),
        table_id: 3,
        priority: 120,
        r#match: "ip4.dst == ^vip && tcp.dst == ^port".into(),
        actions: "ct_lb_mark(backends=^ends);".into(),
        ..Default::default()
    };
    db.logical_flow.insert(FLOW, Arc::new(flow));
    let balancer = sb::LoadBalancer {
        name: "lb".into(),
        vips: map(&[("^vip:^port", "^ends")]),
        protocol: Some("tcp".into()),
        datapaths: [DATAPATH].into(),
        ..Default::default()
    };
    db.load_balancer.insert(BALANCER, Arc::new(balancer));
    let local =
        Local { chassis_name: "hv1".into(), chassis: Some(CHASSIS), datapaths: [DATAPATH].into(), ..Local::default() };
    Input::new(db, local)
}

/// Numbers of groups depend on the past.
fn without_group(actions: &str) -> String {
    match actions.split_once("group:") {
        Some((before, after)) => format!("{before}group:N{}", after.trim_start_matches(|c: char| c.is_ascii_digit())),
        None => actions.to_string(),
    }
}

/// The flows that there are, as text, kept up to date.
struct Flows {
    engine: Engine<ChassisFlows>,
    all: BTreeMap<String, String>,
}

impl Flows {
    fn new() -> Flows {
        Flows { engine: Engine::new(ChassisFlows::default()), all: BTreeMap::new() }
    }

    fn update(&mut self, input: &Input, reads: Vec<Read>) {
        let changes = self.engine.update(input, reads, |changes| {
            let text = |c: incremental::Change<'_, Key, controller::units::flows::Value>| match c.key {
                Key::Flow(t, p, m) => {
                    let m = m.unpack().unwrap();
                    let key = format!("{t} {p} {m}");
                    let flow = (!c.after.is_empty()).then(|| FlowMod::add(*t, *p, 0, m.clone(), merge(&c.after)));
                    Some((key, flow.map(|f| without_group(&openflow_rs::text::actions_to_string(&f.actions)))))
                }
                _ => None,
            };
            changes.into_iter().filter_map(text).collect::<Vec<_>>()
        });
        for (key, actions) in changes {
            match actions {
                Some(a) => self.all.insert(key, a),
                None => self.all.remove(&key),
            };
        }
    }

    /// The addresses that flows of load balancers match.
    fn with(&self, text: &str) -> usize {
        self.all.iter().filter(|(k, a)| k.contains(text) || a.contains(text)).count()
    }
}

fn set(input: &mut Input, id: Uuid, new: Option<Arc<sb::ChassisTemplateVar>>) -> Vec<Read> {
    let old = match &new {
        Some(row) => input.sb.chassis_template_var.insert(id, row.clone()),
        None => input.sb.chassis_template_var.remove(&id),
    };
    input.changed(&AnyChange::ChassisTemplateVar(Change { uuid: id, old, new }))
}

#[test]
fn a_chassis_has_its_own_values() {
    let mut input = input();
    let (mine, other) = (Uuid::from_u128(10), Uuid::from_u128(11));
    let mut flows = Flows::new();
    flows.update(&input, Vec::new());
    // Without values there is nothing to match, and nothing is wrong: the flow is for others. The other flows are there.
    assert!(!flows.engine.outputs().iter().any(|(k, _)| matches!(k, Key::Problem(_))));
    let without: BTreeSet<String> = flows.all.keys().cloned().collect();
    assert!(!without.is_empty());
    let ends = "42.42.42.2:8080,42.42.42.3:8080";
    let reads = set(&mut input, other, Some(variables("hv2", &[("vip", "7.7.7.7"), ("port", "7"), ("ends", ends)])));
    flows.update(&input, reads);
    assert_eq!((flows.with("7.7.7.7"), flows.all.len()), (0, without.len()), "the values of another chassis");
    let reads = set(&mut input, mine, Some(variables("hv1", &[("vip", "4.4.4.4"), ("port", "80"), ("ends", ends)])));
    flows.update(&input, reads);
    assert!(!flows.engine.outputs().iter().any(|(k, _)| matches!(k, Key::Problem(_))));
    assert!(flows.with("nw_dst=4.4.4.4,tp_dst=80") > 0, "{:#?}", flows.all);
    // One hairpin flow for each backend (table 68).
    assert_eq!(flows.with("nw_src=42.42.42.2,nw_dst=42.42.42.2"), 1, "{:#?}", flows.all);
    assert_eq!(flows.with("nw_src=42.42.42.3,nw_dst=42.42.42.3"), 1);
    // A change reaches both, and is what a fresh computation gives.
    let reads =
        set(&mut input, mine, Some(variables("hv1", &[("vip", "5.5.5.5"), ("port", "80"), ("ends", "42.42.42.9:1")])));
    flows.update(&input, reads);
    let mut fresh = Flows::new();
    fresh.update(&input, Vec::new());
    assert_eq!(flows.all, fresh.all);
    assert_eq!((flows.with("4.4.4.4"), flows.with("42.42.42.2")), (0, 0));
    assert!(flows.with("nw_dst=5.5.5.5") > 0);
    let reads = set(&mut input, mine, None);
    flows.update(&input, reads);
    assert_eq!(flows.all.keys().cloned().collect::<BTreeSet<_>>(), without);
}
