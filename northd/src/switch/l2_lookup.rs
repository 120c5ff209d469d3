//! Where a frame goes: by its Ethernet address, or as a broadcast.

use crate::addresses::{Mac, is_link_local};
use crate::context::{Ctx, flag, flag_or};
use crate::facts::global::copp;
use crate::facts::lrp::Lrp;
use crate::facts::lsp::{Kind, Lsp};
use crate::facts::router::Router;
use crate::facts::switch::Switch;
use crate::model::{FlowExtra, RouterColumn, Unit};
use crate::registers::*;
use crate::stage::Stage::*;
use const_format::formatcp;
use ovn_schema::{Uuid, nb};
use std::collections::BTreeSet;
use std::net::IpAddr;

const FLOOD_L2: &str = "outport = \"_MC_flood_l2\"; output;";

/// The flows of a switch.
pub fn switch(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    let u = switch.uuid;
    let matches = "eth.dst == $svc_monitor_mac && (tcp || icmp || icmp6)";
    let extra = copp(&switch.copp, "svc-monitor", ctx.global());
    ctx.flow_with(u, LsInL2Lkup, 110, matches, "handle_svc_check(inport);", extra);
    ctx.flow(u, LsInL2Lkup, 100, formatcp!("{REGBIT_NF_EGRESS_LOOPBACK} == 1"), "output;");
    if switch.mcast_snoop {
        snooping(ctx, switch);
    }
    let all = "outport = \"_MC_flood\"; output;";
    ctx.flow(u, LsInL2Lkup, 72, "eth.mcast && (nd_na || nd_rs || nd_ra)", all);
    if !flag_or(&switch.config, "broadcast-arps-to-all-routers", true) {
        let unknown = "outport = \"_MC_unknown\"; output;";
        ctx.flow(u, LsInL2Lkup, 72, "eth.mcast && (arp.op == 1 || nd_ns)", unknown);
    }
    ctx.flow(u, LsInL2Lkup, 71, "eth.mcast && arp", all);
    let mut multicast = String::new();
    if switch.mcast_relay {
        multicast.push_str("clone { outport = \"_MC_mrouter_flood\"; output; }; ");
    }
    if switch.mcast_flood {
        multicast.push_str("clone { outport = \"_MC_static\"; output; }; ");
    }
    multicast.push_str(FLOOD_L2);
    ctx.flow(u, LsInL2Lkup, 71, "eth.mcast && ip", multicast);
    ctx.flow(u, LsInL2Lkup, 70, "eth.mcast", FLOOD_L2);
    unknown(ctx, switch);
    forwarding_groups(ctx, switch);
}

fn unknown(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    let u = switch.uuid;
    let remote = switch.vni.is_some();
    let lookup = if remote {
        "outport = get_fdb(eth.dst); remote_outport = get_remote_fdb(eth.dst); next;"
    } else {
        "outport = get_fdb(eth.dst); next;"
    };
    ctx.flow(u, LsInL2Lkup, 0, "1", lookup);
    let none = if remote { "outport == \"none\" && remote_outport == \"none\"" } else { "outport == \"none\"" };
    if switch.unknown {
        ctx.flow(u, LsInL2Unknown, 50, none, "outport = \"_MC_unknown\"; output;");
    } else {
        let extra = FlowExtra { description: Some("No L2 destination"), ..FlowExtra::default() };
        let drop = ctx.global().drop.clone();
        ctx.flow_with(u, LsInL2Unknown, 50, none, &*drop, extra);
    }
    if remote {
        let local_first = flag(&switch.config, "dynamic-routing-fdb-prefer-local");
        let (other, fallback) = if local_first {
            ("outport == \"none\"", ["outport = remote_outport; output;", "output;"])
        } else {
            ("remote_outport == \"none\"", ["output;", "outport = remote_outport; output;"])
        };
        ctx.flow(u, LsInL2Unknown, 25, other, fallback[0]);
        ctx.flow(u, LsInL2Unknown, 0, "1", fallback[1]);
    } else {
        ctx.flow(u, LsInL2Unknown, 0, "1", "output;");
    }
}

fn snooping(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    let u = switch.uuid;
    let global = ctx.global();
    let extra = || copp(&switch.copp, "igmp", global);
    for protocol in ["igmp", "(mldv1 || mldv2)"] {
        ctx.flow_with(u, LsInL2Lkup, 100, format!("flags.igmp_loopback == 0 && {protocol}"), "igmp;", extra());
    }
    ctx.flow(u, LsInL2Lkup, 85, "ip4.mcast && ip4.dst == 224.0.0.0/24", FLOOD_L2);
    ctx.flow(u, LsInL2Lkup, 85, "ip6.mcast_flood", "outport = \"_MC_flood\"; output;");
    if flag(&switch.config, "mcast_flood_unregistered") {
        return;
    }
    let mut actions = String::new();
    if switch.mcast_relay {
        actions.push_str("clone { outport = \"_MC_mrouter_flood\"; output; }; ");
    }
    if switch.mcast_flood {
        actions.push_str("outport =\"_MC_static\"; output;");
    }
    if actions.is_empty() {
        actions = ctx.global().drop.to_string();
    }
    ctx.flow(u, LsInL2Lkup, 80, "ip4.mcast || ip6.mcast", actions);
}

fn forwarding_groups(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(switch.uuid) else { return };
    for g in &row.forwarding_groups {
        let Some(group) = ctx.nb::<nb::ForwardingGroup>(*g) else { continue };
        if group.child_port.is_empty() {
            continue;
        }
        let ctx = &mut ctx.about(*g);
        let matches = format!("arp.tpa == {} && arp.op == 1", group.vip);
        ctx.flow(switch.uuid, LsInArpRsp, 50, matches, super::arp::reply(&group.vmac, &group.vip));
        let ports: Vec<String> = group.child_port.iter().map(|p| crate::addresses::quoted(p)).collect();
        let liveness = if group.liveness { "liveness=\"true\"," } else { "" };
        let actions = format!("fwd_group({liveness}childports={});", ports.join(","));
        ctx.flow(switch.uuid, LsInL2Lkup, 50, format!("eth.dst == {}", group.vmac), actions);
    }
}

/// The flows of a port.
pub fn port(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    if lsp.kind == Kind::External {
        return;
    }
    let peer = lsp.lrp.and_then(|p| ctx.lrp(p));
    let router = lsp.router.and_then(|r| ctx.router(r));
    if peer.is_some_and(Lrp::enabled) && router.is_some() {
        ctx.spawn(Unit::RequestList(lsp.uuid));
    }
    unicast(ctx, lsp, switch, peer.zip(router));
}

fn unicast(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch, peer: Option<(&Lrp, &Router)>) {
    if lsp.kind == Kind::Vif && lsp.unknown && lsp.option("force_fdb_lookup") {
        return;
    }
    let u = lsp.switch;
    let drop = ctx.global().drop.clone();
    let asks = lsp.row.options.get("pkt_clone_type").is_some_and(|t| t.eq_ignore_ascii_case("mc_unknown"));
    let clones = lsp.kind == Kind::Vif && switch.unknown && asks;
    let to = |port: &str| match (lsp.enabled(), clones) {
        (false, _) => drop.to_string(),
        (true, true) => format!("clone {{outport = {port}; output; }};outport = \"_MC_unknown\"; output;"),
        (true, false) => format!("outport = {port}; output;"),
    };
    let Some((lrp, router)) = peer else {
        for a in &lsp.addresses {
            ctx.flow(u, LsInL2Lkup, 50, format!("eth.dst == {}", a.mac), to(&lsp.json));
        }
        return;
    };
    let mut matches = match super::arp::proxy_mac(lsp) {
        Some(mac) => format!("eth.dst == {{ {mac}, {} }}", lrp.mac),
        None => format!("eth.dst == {}", lrp.mac),
    };
    let central = router.gateway_ports().next().is_some() && !ctx.kinds(router.uuid).distributed;
    if central && !switch.localnets.is_empty() {
        if let Some(gateway) = router.resides_at(lrp) {
            matches.push_str(&format!(" && is_chassis_resident({})", gateway.cr_json));
        }
    } else if let Some(cr) = redirected(ctx, lsp) {
        let away = format!("eth.dst == {} && !is_chassis_resident({cr})", lrp.mac);
        ctx.flow(u, LsInL2Lkup, 50, away, to(&cr));
        matches.push_str(&format!(" && is_chassis_resident({cr})"));
    }
    ctx.flow(u, LsInL2Lkup, 50, matches, to(&lsp.json));
    if router.is_gateway_port(lrp) {
        let plain = if lsp.enabled() { format!("outport = {}; output;", lsp.json) } else { drop.to_string() };
        translated(ctx, u, router, &plain);
    }
}

/// The Ethernet addresses of distributed NAT rules are behind the port to the router.
fn translated(ctx: &mut Ctx<'_, '_>, u: Uuid, router: &Router, actions: &str) {
    let nats = ctx.rows_of(router.uuid, RouterColumn::Nat);
    for nat in nats.iter().filter_map(|n| ctx.nb::<nb::Nat>(*n)).collect::<Vec<_>>() {
        let mac = nat.external_mac.as_ref().and_then(|m| m.parse::<Mac>().ok());
        if let (Some(mac), Some(port), "dnat_and_snat") = (mac, &nat.logical_port, &*nat.r#type) {
            let matches = format!("eth.dst == {mac} && is_chassis_resident({})", crate::addresses::quoted(port));
            ctx.flow(u, LsInL2Lkup, 50, matches, actions);
        }
    }
}

/// The port's binding on the gateway chassis, in quotes, where it has one.
fn redirected(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) -> Option<String> {
    let has = lsp.kind == Kind::Router && crate::facts::lsp::switch_redirect(ctx, lsp);
    has.then(|| crate::addresses::quoted(&format!("cr-{}", lsp.name)))
}

/// Requests for what a router has go to it, not to everyone: makes its addresses exist as units, so that one that comes among
/// thousands concerns no other, and another port of the router none of them.
pub fn request_list(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lsp) = ctx.lsp(uuid) else { return };
    let Some(lrp) = lsp.lrp.and_then(|l| ctx.lrp(l)) else { return };
    if ctx.switch_reach(lsp.switch).is_some_and(|s| !s.only_routers) {
        self_originated(ctx, lsp, lrp);
    }
    for ip in owned(ctx, lrp) {
        ctx.spawn(Unit::Requests(uuid, ip));
    }
}

/// The flows of ARP and ND requests for an address of the router behind a port.
pub fn requests(ctx: &mut Ctx<'_, '_>, lsp: Uuid, ip: IpAddr) {
    let Some(lsp) = ctx.lsp(lsp) else { return };
    let Some(switch) = ctx.switch_reach(lsp.switch) else { return };
    let redirected = redirected(ctx, lsp);
    let ctx = &mut ctx.about(lsp.uuid);
    let u = lsp.switch;
    let request = match ip {
        IpAddr::V4(ip) => {
            let request = format!("flags[1] == 0 && eth.dst == ff:ff:ff:ff:ff:ff && arp.op == 1 && arp.tpa == {ip}");
            if !switch.only_routers {
                ctx.flow(u, LsInL2Lkup, 90, format!("{request} && arp.spa == {ip}"), FLOOD_L2);
            }
            request
        }
        IpAddr::V6(ip) => format!("flags[1] == 0 && eth.mcast && nd_ns && nd.target == {ip}"),
    };
    let to = |port: &str| {
        if switch.only_routers {
            format!("outport = {port}; output;")
        } else {
            format!("clone {{outport = {port}; output; }}; outport = \"_MC_unknown\"; output;")
        }
    };
    match &redirected {
        Some(cr) => {
            let here = format!("{request} && is_chassis_resident({cr})");
            ctx.flow(u, LsInL2Lkup, 80, here, to(&lsp.json));
            let away = format!("{request} && !is_chassis_resident({cr})");
            ctx.flow(u, LsInL2Lkup, 80, away, to(cr));
        }
        None => ctx.flow(u, LsInL2Lkup, 80, request, to(&lsp.json)),
    }
}

/// What the router itself asks reaches everyone but routers.
fn self_originated(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, lrp: &Lrp) {
    let ctx = &mut ctx.about_none();
    let mut list = vec![lrp.mac.to_string()];
    let macs = ctx.nat_answers(lrp.router).into_iter().flat_map(|a| &a.macs);
    list.extend(crate::order::listed(macs.map(|m| m.to_string())));
    let matches = format!(
        "eth.src == {{{}}} && eth.dst == ff:ff:ff:ff:ff:ff && (arp.op == 1 || rarp.op == 3 || nd_ns)",
        list.join(", ")
    );
    ctx.flow(lsp.switch, LsInL2Lkup, 75, matches, FLOOD_L2);
}

/// The addresses that a router answers for on a port.
fn owned(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> BTreeSet<IpAddr> {
    let mut all: BTreeSet<IpAddr> = BTreeSet::new();
    all.extend(lrp.v4.iter().map(|n| IpAddr::from(n.addr)));
    all.extend(lrp.v6.iter().map(|n| IpAddr::from(n.addr)));
    let balanced = &ctx.vips(lrp.router).answered;
    let shares = ctx.nat_shares(lrp.router);
    let own = |ip: &IpAddr| shares.is_some_and(|s| s.contains(ip)) && !link_local(*ip);
    let mut snat = BTreeSet::new();
    for (external, source_only, gateway_port) in ctx.nat_answers(lrp.router).into_iter().flat_map(|a| &a.addresses) {
        if *source_only && (!snat.insert(*external) || own(external)) {
            continue;
        }
        if gateway_port.is_none_or(|p| p == lrp.uuid) && !balanced.contains(external) {
            all.insert(*external);
        }
    }
    all.extend(balanced.iter().filter(|ip| lrp.ip_in_network_of(**ip).is_some()));
    all
}

fn link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if is_link_local(ip))
}
