//! Router policies.

use crate::addresses::parse_net;
use crate::context::{Ctx, number};
use crate::facts::router::Router;
use crate::stage::Stage::*;
use ovn_schema::{Str, Uuid, nb};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The flows of a router's policies.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    let Some(row) = ctx.nb::<nb::LogicalRouter>(uuid) else { return };
    let mut policies = Vec::new();
    for p in &row.policies {
        if let Some(policy) = ctx.nb::<nb::LogicalRouterPolicy>(*p) {
            policies.push(policy);
        }
    }
    let chains: BTreeSet<Str> = policies
        .iter()
        .flat_map(|p| [p.chain.clone(), p.jump_chain.clone()])
        .flatten()
        .filter(|c| !c.is_empty())
        .collect();
    let chain = |name: &Option<Str>| {
        let name = name.as_ref().filter(|n| !n.is_empty());
        name.map_or(0, |n| chains.iter().position(|c| c == n).map_or(0, |i| i + 1))
    };
    let mut groups = 0;
    for policy in policies {
        let matches = if chains.is_empty() {
            policy.r#match.to_string()
        } else {
            format!("reg9[16..31] == {} && ({})", chain(&policy.chain), policy.r#match)
        };
        let priority = policy.priority as u16;
        match &*policy.action {
            "drop" => {
                let drop = ctx.global().drop.clone();
                ctx.flow(uuid, LrInPolicy, priority, matches, &*drop);
            }
            "jump" => {
                let actions = format!("reg9[16..31]={}; next(pipeline=ingress, table=18);", chain(&policy.jump_chain));
                ctx.flow(uuid, LrInPolicy, priority, matches, actions);
            }
            "reroute" => {
                let hops = hops(ctx, router, policy);
                reroute(ctx, uuid, policy, matches, &hops, &mut groups);
            }
            _ => ctx.flow(uuid, LrInPolicy, priority, matches, format!("{}reg8[0..15] = 0; next;", mark(policy))),
        }
    }
}

fn mark(policy: &nb::LogicalRouterPolicy) -> String {
    match number(&policy.options, "pkt_mark").filter(|m| (1..=i64::from(u32::MAX)).contains(m)) {
        Some(mark) => format!("pkt.mark = {mark}; "),
        None => String::new(),
    }
}

/// The registers, port and family of each next hop that can be reached.
fn hops(ctx: &mut Ctx<'_, '_>, router: &Router, policy: &nb::LogicalRouterPolicy) -> Vec<(String, u8)> {
    let named: Vec<Str> = if policy.nexthops.is_empty() {
        policy.nexthop.iter().cloned().collect()
    } else {
        policy.nexthops.iter().cloned().collect()
    };
    let output = policy.output_port.and_then(|p| ctx.lrp(p));
    let mut all = Vec::new();
    let leave = |next: &str, from: IpAddr, port: &crate::facts::lrp::Lrp| {
        let (a, b) = if from.is_ipv4() { ("reg0", "reg5") } else { ("xxreg0", "xxreg1") };
        let actions = format!("{a} = {next}; {b} = {from}; eth.src = {}; outport = {}; ", port.mac, port.json);
        (actions, u8::from(from.is_ipv4()))
    };
    for name in named.iter().filter(|n| !n.is_empty()) {
        let found = parse_net(name).map(|(ip, _)| ip).and_then(|ip| match output {
            Some(port) => Some((port, port.ip_in_network_of(ip)?, ip)),
            None => router.port_towards(ip).map(|(port, from)| (&**port, from, ip)),
        });
        match found {
            Some((port, from, ip)) => all.push(leave(&ip.to_string(), from, port)),
            None => ctx.problem(format!(
                "policy {} of logical router {}: no port of the router is in the network of {name}; it is left out",
                policy.priority, router.name
            )),
        }
    }
    all
}

fn reroute(
    ctx: &mut Ctx<'_, '_>,
    u: Uuid,
    policy: &nb::LogicalRouterPolicy,
    matches: String,
    hops: &[(String, u8)],
    groups: &mut u16,
) {
    let priority = policy.priority as u16;
    let mark = mark(policy);
    match hops {
        [] => {}
        [(hop, v4)] => {
            let actions = format!("{mark}{hop}flags.loopback = 1; reg8[0..15] = 0; reg9[9] = {v4}; next;");
            ctx.flow(u, LrInPolicy, priority, matches, actions);
        }
        several => {
            *groups += 1;
            let id = *groups;
            let members: Vec<String> = (1..=several.len()).map(|i| i.to_string()).collect();
            let actions = format!("reg8[0..15] = {id}; reg8[16..31] = select({});", members.join(", "));
            ctx.flow(u, LrInPolicy, priority, matches, actions);
            for (i, (hop, v4)) in several.iter().enumerate() {
                let matches = format!("reg8[0..15] == {id} && reg8[16..31] == {}", i + 1);
                let actions = format!("{mark}{hop}flags.loopback = 1; reg9[9] = {v4}; next;");
                ctx.flow(u, LrInPolicyEcmp, 100, matches, actions);
            }
        }
    }
}
