//! Router policies.

use crate::addresses::parse_net;
use crate::context::{Ctx, number};
use crate::facts::lrp::Lrp;
use crate::facts::router::{Router, port_towards};
use crate::model::RouterColumn;
use crate::registers::*;
use crate::stage::Stage::*;
use crate::sticky_ids::assign;
use ovn_schema::{Str, Uuid, nb};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A next hop that can be reached: the actions that lead there, without those at the end.
struct Hop {
    leave: String,
    v4: bool,
}

/// The flows of a router's policies.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    let mut policies = Vec::new();
    for p in ctx.rows_of(uuid, RouterColumn::Policies) {
        policies.extend(ctx.nb::<nb::LogicalRouterPolicy>(*p).map(|policy| (*p, policy)));
    }
    let chains = chains(ctx, uuid, policies.iter().map(|(_, p)| &***p));
    let chain = |name: &Option<Str>| match name.as_ref().filter(|n| !n.is_empty()) {
        Some(name) => chains.get(name).copied(),
        None => Some(0),
    };
    let mut several = Vec::new();
    for (u, policy) in policies {
        let priority = policy.priority as u16;
        let ctx = &mut ctx.about(u);
        let Some(number) = chain(&policy.chain) else { continue };
        if policy.nexthop.as_ref().is_some_and(|n| !n.is_empty()) {
            ctx.problem(format!(
                "policy {} of logical router {}: the column nexthop is ignored; use nexthops",
                policy.priority, router.name
            ));
            continue;
        }
        let matches = if chains.is_empty() {
            policy.r#match.to_string()
        } else {
            format!("{REG_POLICY_CHAIN_ID} == {number} && ({})", policy.r#match)
        };
        match &*policy.action {
            "drop" => {
                let drop = ctx.global().drop.clone();
                ctx.flow(uuid, LrInPolicy, priority, matches, &*drop);
            }
            "jump" => match chain(&policy.jump_chain).filter(|c| *c != 0) {
                Some(to) => {
                    let actions = format!("{REG_POLICY_CHAIN_ID}={to}; next(pipeline=ingress, table=18);");
                    ctx.flow(uuid, LrInPolicy, priority, matches, actions);
                }
                None => ctx.problem(format!(
                    "Logical router: {}, policy action 'jump' follows to non-existent chain {}; policy {} is left out",
                    router.name,
                    policy.jump_chain.as_deref().unwrap_or_default(),
                    policy.priority
                )),
            },
            "reroute" => {
                let hops = hops(ctx, router, policy);
                if policy.nexthops.len() > 1 {
                    several.push((u, policy, hops));
                } else if let Some(hop) = hops.first() {
                    let actions = format!(
                        "{}{}flags.loopback = 1; {REG_ECMP_GROUP_ID} = 0; {REGBIT_NEXTHOP_IS_IPV4} = {}; next;",
                        mark(policy),
                        hop.leave,
                        u8::from(hop.v4)
                    );
                    ctx.flow(uuid, LrInPolicy, priority, matches, actions);
                }
            }
            _ => {
                ctx.flow(uuid, LrInPolicy, priority, matches, format!("{}{REG_ECMP_GROUP_ID} = 0; next;", mark(policy)))
            }
        }
    }
    share(ctx, uuid, several);
}

/// The numbers of the chains that policies are in.
fn chains<'p>(
    ctx: &mut Ctx<'_, '_>,
    u: Uuid,
    policies: impl Iterator<Item = &'p nb::LogicalRouterPolicy>,
) -> BTreeMap<Str, u16> {
    let mut wishes: BTreeMap<Str, BTreeMap<u16, usize>> = BTreeMap::new();
    let policies: Vec<_> = policies.collect();
    let in_chain = |p: &nb::LogicalRouterPolicy| p.chain.as_ref().filter(|c| !c.is_empty()).cloned();
    if policies.iter().all(|p| in_chain(p).is_none()) {
        return BTreeMap::new();
    }
    let numbers = ctx.numbers().policies(u);
    let known = |p: &'p nb::LogicalRouterPolicy| numbers.get(&(p.priority, &*p.r#match));
    for (policy, chain) in policies.iter().filter_map(|p| Some((p, in_chain(p)?))) {
        let votes = wishes.entry(chain).or_default();
        for number in known(policy).into_iter().flat_map(|k| &k.chains) {
            *votes.entry(*number).or_default() += 1;
        }
    }
    for policy in policies {
        let votes = policy.jump_chain.as_ref().and_then(|c| wishes.get_mut(c));
        if let (Some(votes), Some(number)) = (votes, known(policy).and_then(|k| k.jump)) {
            // A jump tells for certain.
            *votes.entry(number).or_default() += 1000;
        }
    }
    let most = |votes: BTreeMap<u16, usize>| votes.into_iter().rev().max_by_key(|(_, n)| *n).map(|(number, _)| number);
    assign(wishes.into_iter().map(|(chain, votes)| (chain, most(votes))).collect())
}

fn mark(policy: &nb::LogicalRouterPolicy) -> String {
    match number(&policy.options, "pkt_mark").filter(|m| (1..=i64::from(u32::MAX)).contains(m)) {
        Some(mark) => format!("pkt.mark = {mark}; "),
        None => String::new(),
    }
}

/// The port and the router's address towards a next hop.
fn towards<'r>(
    ctx: &mut Ctx<'_, 'r>,
    router: &'r Router,
    policy: &nb::LogicalRouterPolicy,
    ip: IpAddr,
) -> Option<(&'r Lrp, IpAddr)> {
    match policy.output_port {
        Some(port) => {
            let port = ctx.lrp(port)?;
            let first = || match ip {
                IpAddr::V4(_) => port.v4.first().map(|n| n.addr.into()),
                IpAddr::V6(_) => port.v6.first().map(|n| n.addr.into()),
            };
            Some((port, port.ip_in_network_of(ip).or_else(first)?))
        }
        None => port_towards(ctx, router, ip).map(|(port, from)| (&**port, from)),
    }
}

/// The next hops of a policy that can be reached: there is a port, and no BFD session says otherwise.
fn hops(ctx: &mut Ctx<'_, '_>, router: &Router, policy: &nb::LogicalRouterPolicy) -> Vec<Hop> {
    let mut all = Vec::new();
    if policy.output_port.is_some() && policy.nexthops.len() != 1 {
        ctx.problem(format!(
            "Logical router: {}, policy (chain: '{}', match: '{}', priority {}): output_port only supported on non-ECMP \
             reroute policies; it is left out",
            router.name,
            policy.chain.as_deref().filter(|c| !c.is_empty()).unwrap_or("<Default>"),
            policy.r#match,
            policy.priority
        ));
        return all;
    }
    let Some(router) = ctx.router(router.uuid) else { return all };
    for name in policy.nexthops.iter().filter(|n| !n.is_empty()) {
        let ip = parse_net(name).map(|(ip, _)| ip);
        let Some((ip, (port, from))) = ip.and_then(|ip| Some((ip, towards(ctx, router, policy, ip)?))) else {
            ctx.problem(format!(
                "policy {} of logical router {}: no port of the router is in the network of {name}; it is left out",
                policy.priority, router.name
            ));
            continue;
        };
        let session = session(ctx, policy, name, port);
        if session.is_some_and(|(_, bfd)| !crate::facts::bfd::usable(ctx, bfd)) {
            continue;
        }
        let (a, b) = if ip.is_ipv4() { (REG_NEXT_HOP_IPV4, REG_SRC_IPV4) } else { (REG_NEXT_HOP_IPV6, REG_SRC_IPV6) };
        let leave = format!("{a} = {name}; {b} = {from}; eth.src = {}; outport = {}; ", port.mac, port.json);
        all.push(Hop { leave, v4: ip.is_ipv4() });
    }
    all
}

/// The BFD session of a policy for one of its next hops.
fn session<'a>(
    ctx: &mut Ctx<'_, 'a>,
    policy: &nb::LogicalRouterPolicy,
    hop: &str,
    port: &Lrp,
) -> Option<(Uuid, &'a nb::Bfd)> {
    policy.bfd_sessions.iter().find_map(|b| {
        let bfd = ctx.nb::<nb::Bfd>(*b)?;
        (&*bfd.dst_ip == hop && bfd.logical_port == port.name).then_some((*b, &**bfd))
    })
}

/// The BFD sessions that a policy depends on.
pub fn sessions(ctx: &mut Ctx<'_, '_>, router: Uuid, policy: &nb::LogicalRouterPolicy) -> BTreeSet<Uuid> {
    let mut all = BTreeSet::new();
    let Some(router) = ctx.router(router) else { return all };
    for name in &policy.nexthops {
        let found = parse_net(name).and_then(|(ip, _)| towards(ctx, router, policy, ip));
        all.extend(found.and_then(|(port, _)| session(ctx, policy, name, port)).map(|(u, _)| u));
    }
    all
}

/// Policies with several next hops share traffic between those that can be reached.
fn share(ctx: &mut Ctx<'_, '_>, u: Uuid, policies: Vec<(Uuid, &std::sync::Arc<nb::LogicalRouterPolicy>, Vec<Hop>)>) {
    let numbers = ctx.numbers();
    let wish = |policy: &nb::LogicalRouterPolicy| numbers.group(u, LrInPolicy, &policy.r#match);
    let ids = assign(policies.iter().map(|(p, policy, _)| (*p, wish(policy))).collect());
    for (p, policy, hops) in policies {
        let ctx = &mut ctx.about(p);
        let (Some(id), false) = (ids.get(&p), hops.is_empty()) else { continue };
        if hops.iter().any(|h| h.v4 != hops[0].v4) {
            ctx.problem(format!("policy {}: its next hops are of both families; it is left out", policy.priority));
            continue;
        }
        let texts: Vec<String> = hops
            .iter()
            .map(|h| {
                format!(
                    "{}{}flags.loopback = 1; {REGBIT_NEXTHOP_IS_IPV4} = {}; next;",
                    mark(policy),
                    h.leave,
                    u8::from(h.v4)
                )
            })
            .collect();
        for (i, actions) in texts.iter().enumerate() {
            let matches = format!("{REG_ECMP_GROUP_ID} == {id} && {REG_ECMP_MEMBER_ID} == {}", i + 1);
            ctx.flow(u, LrInPolicyEcmp, 100, matches, actions.as_str());
        }
        let members: Vec<String> = (1..=texts.len()).map(|i| i.to_string()).collect();
        let actions = match members.len() {
            1 => format!("{REG_ECMP_GROUP_ID} = {id}; {REG_ECMP_MEMBER_ID} = 1; next;"),
            _ => format!("{REG_ECMP_GROUP_ID} = {id}; {REG_ECMP_MEMBER_ID} = select({});", members.join(", ")),
        };
        ctx.flow(u, LrInPolicy, policy.priority as u16, &*policy.r#match, actions);
    }
}
