//! What every logical switch has: its datapath, and the flows that do not depend on ports.

use crate::context::{Ctx, number};
use crate::facts::Fact;
use crate::facts::global::copp;
use crate::facts::switch::Switch;
use crate::model::{Columns, FlowExtra, RowKey, Unit};
use crate::registers::*;
use crate::stage::Stage::{self, *};
use crate::switch::{ALLOW, TOO_BIG, l2_lookup, mirror, qos};
use const_format::formatcp;
use ovn_schema::{Map, Str, Uuid, nb};

/// The flows and rows of a switch that its ports have no part in.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(switch) = ctx.switch(uuid) else { return };
    datapath(ctx, switch);
    admission(ctx, switch);
    constant(ctx, uuid);
    evpn(ctx, switch);
    vtep(ctx, switch);
    pre_stateful(ctx, uuid);
    stateful(ctx, uuid);
    dns(ctx, switch);
    l2_lookup::switch(ctx, switch);
    qos::run(ctx, switch);
    mirror::switch(ctx, switch);
}

/// The longest name of an interface (Linux `if.h`), as OVN counts it.
const IFNAMSIZ: usize = 16;

/// Options of EVPN that name interfaces.
const INTERFACES: [&str; 3] =
    ["dynamic-routing-bridge-ifname", "dynamic-routing-vxlan-ifname", "dynamic-routing-advertise-ifname"];

/// Whether the interfaces that an option names, of which there may be several for VXLAN, can have these names.
fn interfaces_fit(ctx: &mut Ctx<'_, '_>, switch: &Switch, key: &str) -> bool {
    let Some(value) = switch.config.get(key) else {
        ctx.problem(format!("Missing {key} for datapath {}", switch.name));
        return false;
    };
    let fit = match key {
        "dynamic-routing-vxlan-ifname" => value.split(',').all(|name| name.len() <= IFNAMSIZ),
        _ => value.len() <= IFNAMSIZ,
    };
    if !fit {
        ctx.problem(format!("{key} {value} is too long for an interface's name (logical switch {})", switch.name));
    }
    fit
}

fn datapath(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    let Some(Fact::DatapathKeys(keys)) = ctx.fact(Unit::DatapathKeys) else { return };
    let Some(key) = keys.get(&switch.uuid) else { return };
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(switch.uuid) else { return };
    let mut ids: Map<Str, Str> = Map::new();
    names(&mut ids, &row.name, &row.external_ids, "neutron:network_name");
    ids.insert("logical-switch".into(), switch.uuid.to_string().into());
    let config = &switch.config;
    for key in ["ct-zone-limit", "fdb_age_threshold"] {
        if let Some(value) = number(config, key).filter(|n| *n > 0) {
            ids.insert(key.into(), value.to_string().into());
        }
    }
    let mut as_is = vec!["interconn-ts"];
    if config.contains_key("dynamic-routing-vni") {
        as_is.extend(["dynamic-routing-vni", "dynamic-routing-redistribute", "dynamic-routing-arp-prefer-local"]);
        as_is.extend(INTERFACES.iter().filter(|key| interfaces_fit(ctx, switch, key)));
    }
    for key in as_is {
        if let Some(value) = config.get(key) {
            ids.insert(key.into(), value.clone());
        }
    }
    let columns = Columns::new()
        .data("nb_uuid", &Some(switch.uuid))
        .data("type", &Some(Str::from("logical-switch")))
        .data("tunnel_key", &key.0)
        .data("external_ids", &ids);
    ctx.row(RowKey::datapath(switch.uuid), columns);
}

/// The names that a datapath goes by.
pub fn names(ids: &mut Map<Str, Str>, name: &Str, external_ids: &Map<Str, Str>, neutron: &str) {
    ids.insert("name".into(), name.clone());
    if let Some(name2) = external_ids.get(neutron).filter(|n| !n.is_empty()) {
        ids.insert("name2".into(), name2.clone());
    }
}

fn admission(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    let drop = ctx.global().drop.to_string();
    let u = switch.uuid;
    let described = |text| FlowExtra { description: Some(text), ..FlowExtra::default() };
    ctx.flow_with(u, LsInCheckPortSec, 105, TOO_BIG, drop.as_str(), described("ICMP: packet too big"));
    if !switch.vlan_passthru {
        let text = described("VLANs blocked due to vlan-passthru option");
        ctx.flow_with(u, LsInCheckPortSec, 100, "vlan.present", drop.as_str(), text);
    }
    let text = described("Incoming Broadcast/multicast sourceaddress is invalid");
    ctx.flow_with(u, LsInCheckPortSec, 100, "eth.src[40]", drop.as_str(), text);
    let text = described("Broadcast/multicast port security invalid");
    ctx.flow_with(u, LsInApplyPortSec, 50, formatcp!("{REGBIT_PORT_SEC_DROP} == 1"), drop.as_str(), text);
    let text = described("Packet does not follow port security rules");
    ctx.flow_with(u, LsOutApplyPortSec, 50, formatcp!("{REGBIT_PORT_SEC_DROP} == 1"), drop.as_str(), text);
    for stage in [LsInNetworkFunction, LsOutNetworkFunction] {
        ctx.flow(u, stage, 100, formatcp!("{REGBIT_NF_ENABLED} == 1 && eth.mcast"), "next;");
        ctx.flow(u, stage, 1, formatcp!("{REGBIT_NF_ENABLED} == 1"), drop.as_str());
    }
}

/// Stages whose lowest flow passes everything on.
const PASS: &[Stage] = &[
    LsInApplyPortSec,
    LsInMirror,
    LsInLookupFdb,
    LsInPutFdb,
    LsInPreAcl,
    LsInPreLb,
    LsInPreStateful,
    LsInAclSample,
    LsInQos,
    LsInCtExtract,
    LsInLbAffCheck,
    LsInLb,
    LsInLbAffLearn,
    LsInPreHairpin,
    LsInNatHairpin,
    LsInHairpin,
    LsInAclAfterLbEval,
    LsInAclAfterLbSample,
    LsInPreNetworkFunction,
    LsInStateful,
    LsInNetworkFunction,
    LsInArpNdPreLookup,
    LsInArpRsp,
    LsInDhcpOptions,
    LsInDhcpResponse,
    LsInDnsLookup,
    LsInDnsResponse,
    LsInExternalPort,
    LsOutLookupFdb,
    LsOutPutFdb,
    LsOutPreAcl,
    LsOutPreLb,
    LsOutPreStateful,
    LsOutAclSample,
    LsOutMirror,
    LsOutQos,
    LsOutPreNetworkFunction,
    LsOutStateful,
    LsOutNetworkFunction,
];

fn constant(ctx: &mut Ctx<'_, '_>, u: Uuid) {
    for stage in PASS {
        ctx.flow(u, *stage, 0, "1", "next;");
    }
    ctx.flow(u, LsInCheckPortSec, 50, "1", formatcp!("{REGBIT_PORT_SEC_DROP} = check_in_port_sec(); next;"));
    ctx.flow(u, LsOutCheckPortSec, 100, "eth.mcast", formatcp!("{REGBIT_PORT_SEC_DROP} = 0; next;"));
    ctx.flow(u, LsOutCheckPortSec, 0, "1", formatcp!("{REGBIT_PORT_SEC_DROP} = check_out_port_sec(); next;"));
    ctx.flow(u, LsOutApplyPortSec, 0, "1", "output;");
    for (stage, mac) in [
        (LsInPreAcl, "eth.dst == $svc_monitor_mac"),
        (LsOutPreAcl, "eth.src == $svc_monitor_mac"),
        (LsInPreLb, "eth.dst == $svc_monitor_mac"),
        (LsOutPreLb, "eth.src == $svc_monitor_mac"),
    ] {
        ctx.flow(u, stage, 110, mac, "next;");
    }
    for stage in [LsInPreLb, LsOutPreLb] {
        ctx.flow(u, stage, 110, "eth.mcast", "next;");
        ctx.flow(u, stage, 110, "nd || nd_rs || nd_ra || mldv1 || mldv2", "next;");
        ctx.flow(u, stage, 110, formatcp!("{REGBIT_ACL_STATELESS} == 1"), "next;");
    }
    let too_big = TOO_BIG.replace("|| (", "||(");
    ctx.flow(u, LsInPreLb, 110, too_big, "next;");
    for stage in [LsInPreNetworkFunction, LsOutPreNetworkFunction] {
        ctx.flow(
            u,
            stage,
            1,
            formatcp!("{REGBIT_NF_ENABLED} == 1 && {REGBIT_NF_ORIG_DIR} == 1"),
            formatcp!("{REG_NF_ID} = 0; next;"),
        );
    }
    for stage in [LsInAclEval, LsInAclAfterLbEval, LsOutAclEval] {
        ctx.flow(u, stage, 65532, "nd || nd_ra || nd_rs || mldv1 || mldv2", ALLOW);
    }
}

fn pre_stateful(ctx: &mut Ctx<'_, '_>, u: Uuid) {
    ctx.flow(
        u,
        LsInPreStateful,
        115,
        formatcp!("{REGBIT_CONNTRACK_NAT} == 1 && ip.is_frag"),
        formatcp!("{REGBIT_IP_FRAG} = 1; ct_lb_mark;"),
    );
    for stage in [LsInPreStateful, LsOutPreStateful] {
        ctx.flow(u, stage, 110, formatcp!("{REGBIT_CONNTRACK_NAT} == 1"), "ct_lb_mark;");
        ctx.flow(u, stage, 100, formatcp!("{REGBIT_CONNTRACK_DEFRAG} == 1"), "ct_next;");
    }
}

/// Committing connections, with or without what samples and network functions need.
fn stateful(ctx: &mut Ctx<'_, '_>, u: Uuid) {
    let start = formatcp!("ct_commit {{ ct_mark.blocked = 0; ct_mark.allow_established = {REGBIT_ACL_PERSIST_ID}; ");
    let sample = formatcp!(
        "ct_mark.obs_stage = {REG_ACL_OBS_STAGE}; ct_mark.obs_collector_id = {REG_OBS_COLLECTOR_ID_EST}; \
                  ct_label.obs_point_id = {REG_OBS_POINT_ID_EST}; "
    );
    let acl = formatcp!("ct_label.acl_id = {REG_ACL_ID}; ");
    for stage in [LsInStateful, LsOutStateful] {
        for sampled in [0, 1] {
            let matches = format!("{REGBIT_CONNTRACK_COMMIT} == 1 && {REGBIT_ACL_LABEL} == {sampled}");
            let sample = if sampled == 1 { sample } else { "" };
            let plain = format!("{start}{sample}{acl}ct_label.nf = 0; ct_label.nf_id = 0; }}; next;");
            ctx.flow(u, stage, 100, matches.as_str(), plain);
            let function = format!("{start}{sample}{acl}ct_label.nf = 1; ct_label.nf_id = {REG_NF_ID}; }}; next;");
            ctx.flow(u, stage, 110, format!("{matches} && {REGBIT_NF_ENABLED} == 1"), function);
        }
    }
}

fn dns(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    if !switch.dns {
        return;
    }
    let u = switch.uuid;
    let extra = copp(&switch.copp, "dns", ctx.global());
    ctx.flow_with(
        u,
        LsInDnsLookup,
        100,
        "udp.dst == 53",
        formatcp!("{REGBIT_DNS_LOOKUP_RESULT} = dns_lookup(); next;"),
        extra,
    );
    for ip in ["ip4", "ip6"] {
        let actions = format!(
            "eth.dst <-> eth.src; {ip}.src <-> {ip}.dst; udp.dst = udp.src; udp.src = 53; outport = inport; \
             flags.loopback = 1; output;"
        );
        ctx.flow(u, LsInDnsResponse, 100, formatcp!("udp.dst == 53 && {REGBIT_DNS_LOOKUP_RESULT}"), actions);
    }
    let tracked = ctx.switch_state(u).is_some_and(|s| s.has_stateful || s.has_lb);
    let actions = if tracked { formatcp!("{REGBIT_ACL_VERDICT_ALLOW} = 1; ct_commit; next;") } else { ALLOW };
    ctx.flow(u, LsOutAclEval, 34000, "flags.from_ctrl && udp.src == 53", actions);
}

/// What comes from a hardware VTEP goes on at the gateway chassis of the routers, and is only switched elsewhere.
fn vtep(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    if switch.vteps.is_empty() {
        return;
    }
    ctx.flow(switch.uuid, LsInHairpin, 1000, formatcp!("{REGBIT_FROM_RAMP} == 1"), "next(pipeline=ingress, table=33);");
    for p in &switch.router_ports {
        let (Some(lrp), Some(router)) = (p.lrp.and_then(|l| ctx.lrp(l)), p.router.and_then(|r| ctx.router(r))) else {
            continue;
        };
        if router.is_gateway_port(lrp) {
            let matches = format!("{REGBIT_FROM_RAMP} == 1 && is_chassis_resident({})", lrp.cr_json);
            ctx.flow(switch.uuid, LsInHairpin, 2000, matches, "next;");
        }
    }
}

fn evpn(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    if switch.vni.is_none() {
        return;
    }
    let u = switch.uuid;
    let arp = "from_evpn_vtep == 0 && arp.op == 1 && eth.bcast";
    ctx.flow(u, LsInArpNdPreLookup, 5, arp, formatcp!("{REGBIT_EVPN_LOOKUP_MAC} = chk_evpn_arp(arp.tpa); next;"));
    let nd = "from_evpn_vtep == 0 && nd_ns_mcast";
    ctx.flow(u, LsInArpNdPreLookup, 5, nd, formatcp!("{REGBIT_EVPN_LOOKUP_MAC} = chk_evpn_arp(nd.target); next;"));
    let reply = "eth.dst <-> eth.src; arp.op = 2; arp.tha = arp.sha; arp.sha = eth.src; arp.tpa <-> arp.spa; \
                 outport = inport; flags.loopback = 1; output;";
    ctx.flow(u, LsInArpRsp, 40, formatcp!("arp.op == 1 && {REGBIT_EVPN_LOOKUP_MAC} == 1"), reply);
    let reply = "nd_na { outport = inport; flags.loopback = 1; output; };";
    let extra = copp(&switch.copp, "nd-na", ctx.global());
    ctx.flow_with(u, LsInArpRsp, 40, formatcp!("nd_ns && {REGBIT_EVPN_LOOKUP_MAC} == 1"), reply, extra);
    ctx.flow(u, LsInPreLb, 110, "from_evpn_vtep", "next;");
    let stateful = ctx.switch_state(u).is_some_and(|s| s.has_stateful);
    if stateful {
        ctx.flow(u, LsInPreAcl, 110, "from_evpn_vtep", "next;");
        ctx.flow(u, LsOutPreAcl, 110, "to_evpn_vtep", "next;");
    }
    let out = if stateful { "next;" } else { "flags.pkt_sampled = 0; ct_clear; next;" };
    ctx.flow(u, LsOutPreLb, 110, "to_evpn_vtep", out);
}
