//! What every logical router has: its datapath, and the flows that do not depend on ports.

use crate::context::{Ctx, flag, flag_or};
use crate::facts::Fact;
use crate::facts::global::copp;
use crate::facts::router::Router;
use crate::input::Read;
use crate::model::{Columns, RouterColumn, RowKey, Unit};
use crate::registers::*;
use crate::stage::Stage::{self, *};
use crate::switch::TOO_BIG;
use crate::tables::multicast;
use const_format::formatcp;
use ovn_schema::{Map, Str, Uuid, nb, sb};

/// The flows and rows of a router that its ports have no part in.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    datapath(ctx, router);
    pass(ctx, uuid);
    dropped(ctx, router);
    neighbors(ctx, router);
    fixed(ctx, router);
    conntrack(ctx, router);
    groups(ctx, router);
}

fn datapath(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let Some(Fact::DatapathKeys(keys)) = ctx.fact(Unit::DatapathKeys) else { return };
    let Some(key) = keys.get(&router.uuid) else { return };
    let Some(row) = ctx.nb::<nb::LogicalRouter>(router.uuid) else { return };
    let mut ids: Map<Str, Str> = Map::new();
    crate::switch::base::names(&mut ids, &row.name, &row.external_ids, "neutron:router_name");
    ids.insert("logical-router".into(), router.uuid.to_string().into());
    let options = &router.options;
    if !flag_or(options, "always_learn_from_arp_request", true) {
        ids.insert("always_learn_from_arp_request".into(), "false".into());
    }
    let disable = flag(options, "disable_garp_rarp");
    ids.insert("disable_garp_rarp".into(), disable.to_string().into());
    if let Some(zone) = options.get("snat-ct-zone").filter(|z| z.parse::<u16>().is_ok()) {
        ids.insert("snat-ct-zone".into(), zone.clone());
    }
    let age = "mac_binding_age_threshold";
    if let Some(shortest) = options.get(age).and_then(|text| crate::ageing::shortest(text)) {
        ids.insert(age.into(), shortest.to_string().into());
    }
    for key in ["dynamic-routing-v4-prefix-nexthop", "dynamic-routing-v6-prefix-nexthop"] {
        if let Some(value) = options.get(key).filter(|v| !v.is_empty()) {
            ids.insert(key.into(), value.clone());
        }
    }
    for key in ["ct-zone-limit", "dynamic-routing-vrf-id"] {
        if let Some(value) = crate::context::number(options, key).filter(|n| *n > 0) {
            ids.insert(key.into(), value.to_string().into());
        }
    }
    let columns = Columns::new()
        .data("nb_uuid", &Some(router.uuid))
        .data("type", &Some(Str::from("logical-router")))
        .data("tunnel_key", &key.0)
        .data("external_ids", &ids);
    ctx.row(RowKey::datapath(router.uuid), columns);
}

/// Stages whose lowest flow passes everything on.
const PASS: &[Stage] = &[
    LrInIpInput,
    LrInDhcpRelayReq,
    LrInUnsnat,
    LrInPostUnsnat,
    LrInDefrag,
    LrInCtExtract,
    LrInLbAffCheck,
    LrInDnat,
    LrInLbAffLearn,
    LrInEcmpStateful,
    LrInNdRaOptions,
    LrInNdRaResponse,
    LrInDhcpRelayRespChk,
    LrInDhcpRelayResp,
    LrInChkPktLen,
    LrInLargerPkts,
    LrInGwRedirect,
    LrInNetworkId,
    LrInArpRequest,
    LrOutUndnat,
    LrOutPostUndnat,
    LrOutSnat,
    LrOutPostSnat,
    LrOutEgrLoop,
];

fn pass(ctx: &mut Ctx<'_, '_>, u: Uuid) {
    for stage in PASS {
        ctx.flow(u, *stage, 0, "1", "next;");
    }
}

fn dropped(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let u = router.uuid;
    let drop = ctx.global().drop.clone();
    let relay = router.mcast_relay();
    for stage in [
        LrInAdmission,
        LrInLearnNeighbor,
        LrInIpRouting,
        LrInIpRoutingEcmp,
        LrInPolicyEcmp,
        LrInArpResolve,
        LrOutDelivery,
    ] {
        ctx.flow(u, stage, 0, "1", &*drop);
    }
    let invalid = "ip4.src_mcast ||ip4.src == 255.255.255.255 || ip4.src == 127.0.0.0/8 || ip4.dst == 127.0.0.0/8 || \
                   ip4.src == 0.0.0.0/8 || ip4.dst == 0.0.0.0/8";
    for (stage, priority, matches) in [
        (LrInAdmission, 110, TOO_BIG),
        (LrInAdmission, 100, "vlan.present || eth.src[40]"),
        (LrInIpInput, 100, invalid),
        (LrInIpInput, 85, "arp || nd"),
        (LrInIpInput, 83, "ip6.mcast_rsvd"),
        (LrInIpInput, 50, "eth.bcast"),
        (LrInIpInput, 32, "ip.ttl == {0, 1} && !ip.later_frag && (ip4.mcast || ip6.mcast)"),
        (LrInIpInput, 29, "ip.ttl == {0, 1}"),
        (LrInIpRouting, 10550, "nd_rs || nd_ra"),
    ] {
        ctx.flow(u, stage, priority, matches, &*drop);
    }
    let multicast = if relay { "next;" } else { &*drop };
    ctx.flow(u, LrInIpInput, 82, "ip4.mcast || ip6.mcast", multicast);
}

fn neighbors(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let u = router.uuid;
    let always = flag_or(&router.options, "always_learn_from_arp_request", true);
    let global = ctx.global();
    let extra = |protocol| copp(&router.copp, protocol, global);
    let (arp, nd) = (extra("arp"), extra("nd-na"));
    let ns = extra("nd-ns");
    ctx.flow(u, LrInLookupNeighbor, 0, "1", formatcp!("{REGBIT_LOOKUP_NEIGHBOR_RESULT} = 1; next;"));
    let ok = if always { "" } else { formatcp!("{REGBIT_LOOKUP_NEIGHBOR_IP_RESULT} = 1; ") };
    let flood = if in_transit(ctx, router) { "flood_remote; " } else { "" };
    let lookup = |fields: &str, then: &str| format!("{REGBIT_LOOKUP_NEIGHBOR_RESULT} = {fields}; {then}{flood}next;");
    let s = LrInLookupNeighbor;
    ctx.flow(u, s, 100, "arp.op == 2", lookup("lookup_arp(inport, arp.spa, arp.sha)", ok));
    ctx.flow(u, s, 100, "nd_na", lookup("lookup_nd(inport, nd.target, nd.tll)", ok));
    ctx.flow(u, s, 105, "nd_na && nd.tll == 0", lookup("lookup_nd(inport, nd.target, eth.src)", ok));
    let known =
        if always { "" } else { formatcp!("{REGBIT_LOOKUP_NEIGHBOR_IP_RESULT} = lookup_nd_ip(inport, ip6.src); ") };
    ctx.flow(
        u,
        s,
        100,
        "nd_ns",
        format!("{REGBIT_LOOKUP_NEIGHBOR_RESULT} = lookup_nd(inport, ip6.src, nd.sll); {known}next;"),
    );
    if !always {
        let known = formatcp!("{REGBIT_LOOKUP_NEIGHBOR_IP_RESULT} = lookup_nd_ip(inport, nd.target); ");
        let link_local = "ip6.src == fe80::/10 && ip6.dst == ff00::/8";
        let matches = format!("nd_na && {link_local}");
        ctx.flow(u, s, 110, matches, lookup("lookup_nd(inport, nd.target, nd.tll)", known));
        let matches = format!("nd_na && nd.tll == 0 && {link_local}");
        ctx.flow(u, s, 115, matches, lookup("lookup_nd(inport, nd.target, eth.src)", known));
    }
    let s = LrInLearnNeighbor;
    let known = if always {
        formatcp!("{REGBIT_LOOKUP_NEIGHBOR_RESULT} == 1")
    } else {
        formatcp!("{REGBIT_LOOKUP_NEIGHBOR_RESULT} == 1 || {REGBIT_LOOKUP_NEIGHBOR_IP_RESULT} == 0")
    };
    ctx.flow(u, s, 100, known, "mac_cache_use; next;");
    ctx.flow(u, s, 95, "nd_ns && (ip6.src == 0 || nd.sll == 0)", "next;");
    ctx.flow_with(u, s, 95, "nd_na && nd.tll == 0", "put_nd(inport, nd.target, eth.src); next;", nd.clone());
    ctx.flow_with(u, s, 90, "arp", "put_arp(inport, arp.spa, arp.sha); next;", arp);
    ctx.flow_with(u, s, 90, "nd_na", "put_nd(inport, nd.target, nd.tll); next;", nd);
    ctx.flow_with(u, s, 90, "nd_ns", "put_nd(inport, ip6.src, nd.sll); next;", ns);
}

/// Whether a port of the router is on a chassis of another availability zone.
fn in_transit(ctx: &mut Ctx<'_, '_>, router: &Router) -> bool {
    router.ports.iter().any(|p| {
        let binding = ctx.read(Read::Binding(p.name.clone())).binding(&p.name).map(|(u, _)| u);
        let chassis = binding.and_then(|u| ctx.sb::<sb::PortBinding>(u)?.chassis);
        let chassis = chassis.and_then(|c| ctx.sb::<sb::Chassis>(c));
        chassis.is_some_and(|c| flag(&c.other_config, "is-remote"))
    })
}

fn fixed(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let u = router.uuid;
    ctx.flow(u, LrInIpInput, 84, "nd_rs || nd_ra", "next;");
    ctx.flow(u, LrInIpRoutingPre, 0, "1", formatcp!("{REG_ROUTE_TABLE_ID} = 0; next;"));
    ctx.flow(u, LrInIpRoutingEcmp, 150, formatcp!("{REG_ECMP_GROUP_ID} == 0"), "next;");
    ctx.flow(u, LrInPolicy, 0, "1", formatcp!("{REG_ECMP_GROUP_ID} = 0; next;"));
    ctx.flow(u, LrInPolicyEcmp, 150, formatcp!("{REG_ECMP_GROUP_ID} == 0"), "next;");
    ctx.flow(u, LrInArpResolve, 500, "ip4.mcast || ip6.mcast", "next;");
    ctx.flow(
        u,
        LrInArpResolve,
        1,
        formatcp!("{REGBIT_NEXTHOP_IS_IPV4} == 1"),
        formatcp!("get_arp(outport, {REG_NEXT_HOP_IPV4}); next;"),
    );
    ctx.flow(
        u,
        LrInArpResolve,
        1,
        formatcp!("{REGBIT_NEXTHOP_IS_IPV4} == 0"),
        formatcp!("get_nd(outport, {REG_NEXT_HOP_IPV6}); next;"),
    );
    ctx.flow(u, LrInNetworkId, 105, "1", "flags.network_id = 0; next;");
    ctx.flow(u, LrInEcmpStatefulEgr, 0, "1", "output;");
    let arp = copp(&router.copp, "arp-resolve", ctx.global());
    let nd = copp(&router.copp, "nd-ns-resolve", ctx.global());
    let actions = formatcp!(
        "arp {{ eth.dst = ff:ff:ff:ff:ff:ff; arp.spa = {REG_SRC_IPV4}; arp.tpa = {REG_NEXT_HOP_IPV4}; arp.op = 1; output; }}; next;"
    );
    ctx.flow_with(
        u,
        LrInArpRequest,
        100,
        formatcp!("eth.dst == 00:00:00:00:00:00 && {REGBIT_NEXTHOP_IS_IPV4} == 1"),
        actions,
        arp,
    );
    let actions = formatcp!("nd_ns {{ nd.target = {REG_NEXT_HOP_IPV6}; output; }}; next;");
    ctx.flow_with(
        u,
        LrInArpRequest,
        100,
        formatcp!("eth.dst == 00:00:00:00:00:00 && {REGBIT_NEXTHOP_IS_IPV4} == 0"),
        actions,
        nd,
    );
    ctx.flow(u, LrOutChkDnatLocal, 0, "1", formatcp!("{REGBIT_DST_NAT_IP_LOCAL} = 0; next;"));
    ctx.flow(u, LrOutSnat, 120, "nd_ns", "next;");
}

/// A gateway router takes every packet through conntrack when it translates any.
fn conntrack(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let u = router.uuid;
    let nats = !ctx.rows_of(u, RouterColumn::Nat).is_empty();
    let lbs = ctx.kinds(u).any;
    if lbs {
        ctx.flow(
            u,
            LrInCtExtract,
            100,
            "ct.new && ip",
            formatcp!("{REG_CT_PROTO} = ct_proto(); {REG_CT_TP_DST} = ct_tp_dst(); next;"),
        );
        lb_related(ctx, u);
    }
    if router.is_gateway() && (nats || lbs) {
        ctx.flow(u, LrOutUndnat, 100, "nd || nd_rs || nd_ra", "next;");
        ctx.flow(u, LrOutUndnat, 50, "ip", "flags.loopback = 1; ct_dnat;");
        let stateful = lbs
            || ctx.nats(u).is_some_and(|n| n.stateful)
            || router.dnat_force_snat.any()
            || router.lb_force_snat.any();
        if !(super::nat::commits_all(router) && stateful) {
            ctx.flow(u, LrOutPostUndnat, 50, "ip && ct.new", "ct_commit { } ; next; ");
        }
    }
}

fn lb_related(ctx: &mut Ctx<'_, '_>, u: Uuid) {
    let established = "ct.est && !ct.rel && !ct.new && !ct.rpl && ct_mark.natted";
    let related = "ct.rel && !ct.est && !ct.new && !ct.rpl";
    for kind in ["skip", "force"] {
        let set = format!("flags.{kind}_snat_for_lb = 1; ");
        ctx.flow(u, LrInDnat, 70, format!("{established} && ct_mark.{kind}_snat == 1"), format!("{set}next;"));
        ctx.flow(u, LrInDnat, 70, format!("{related} && ct_mark.{kind}_snat == 1"), format!("{set}ct_commit_nat;"));
    }
    ctx.flow(u, LrInDnat, 50, established, "next;");
    ctx.flow(u, LrInDnat, 50, related, "ct_commit_nat;");
}

/// Ports that take all multicast.
fn groups(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let u = router.uuid;
    let flood: Vec<_> = router.ports.iter().filter(|p| p.enabled() && flag(&p.row.options, "mcast_flood")).collect();
    if router.mcast_relay() {
        let drop = ctx.global().drop.clone();
        for p in router.ports.iter().filter(|_| !flood.is_empty()) {
            for protocol in ["igmp", "(mldv1 || mldv2)"] {
                let matches = format!("eth.src == {} && {protocol}", p.mac);
                ctx.flow(u, LrInIpRouting, 10550, matches, &*drop);
            }
        }
        let any = "ip4.mcast || ip6.mcast";
        if flood.is_empty() {
            ctx.flow(u, LrInIpRouting, 10450, any, &*drop);
        } else {
            let actions = "clone { outport = \"_MC_static\"; ip.ttl--; next; };";
            ctx.flow(u, LrInIpRouting, 10450, any, actions);
            for protocol in ["igmp", "mldv1 || mldv2"] {
                ctx.flow(u, LrInIpRouting, 10460, protocol, "clone { outport = \"_MC_static\"; next; };");
            }
        }
    }
    if !flood.is_empty() {
        ctx.flow(u, LrInIpInput, 120, "igmp && ip.ttl == 1", "next;");
        ctx.flow(u, LrInIpInput, 120, "(mldv1 || mldv2) && ip.ttl == 1", "next;");
        let ports = flood
            .iter()
            .map(|p| if router.is_gateway_port(p) { RowKey::port(&p.cr_name()) } else { RowKey::port(&p.name) })
            .collect();
        multicast::group(ctx, u, multicast::STATIC, ports);
    }
    if router.mcast_relay() {
        crate::tables::igmp::router(ctx, router);
    }
}
