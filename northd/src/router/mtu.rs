//! Packets that are too large for what is behind a gateway port (`gateway_mtu`).

use crate::context::{Ctx, number};
use crate::facts::global::copp;
use crate::facts::lrp::Lrp;
use crate::facts::router::Router;
use crate::registers::*;
use crate::stage::Stage::*;
use const_format::formatcp;

/// The MTU of a port, where one is set.
fn mtu(lrp: &Lrp) -> Option<i64> {
    number(&lrp.row.options, "gateway_mtu").filter(|m| *m > 0)
}

/// The length that a frame with a packet of the MTU has at most: with a VLAN tag, where the network behind the port has one.
fn limit(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, mtu: i64) -> i64 {
    let lsps: Vec<_> = lrp.switch_port.iter().filter_map(|l| ctx.lsp(*l)).collect();
    let tagged = lsps.into_iter().any(|l| ctx.switch(l.switch).is_some_and(|s| s.localnet_tag));
    mtu + if tagged { 18 } else { 14 }
}

/// What is not checked: ARP, and what `gateway_mtu_bypass` says.
fn bypass(lrp: &Lrp) -> String {
    match lrp.row.options.get("gateway_mtu_bypass") {
        Some(bypass) => format!("arp || {bypass}"),
        None => "arp".to_string(),
    }
}

/// The flow that lets a port's unicast packets in.
pub fn admission(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, matches: &str, actions: &str) {
    let u = lrp.router;
    match mtu(lrp) {
        Some(mtu) => {
            let limit = limit(ctx, lrp, mtu);
            let check = format!("{REGBIT_PKT_LARGER} = check_pkt_larger({limit}); {actions}");
            ctx.flow(u, LrInAdmission, 50, matches, check);
            ctx.flow(u, LrInAdmission, 55, format!("{matches} && ({})", bypass(lrp)), actions);
        }
        None => ctx.flow(u, LrInAdmission, 50, matches, actions),
    }
}

/// The flows of a port with an MTU.
pub fn run(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) {
    let Some(mtu) = mtu(lrp) else { return };
    let u = lrp.router;
    let features = ctx.global().features;
    let saved = if features.ct_state_save { formatcp!("{REG_CT_STATE} = ct_state_save(); ") } else { "" };
    let matches = format!("outport == {}", lrp.json);
    let limit = limit(ctx, lrp, mtu);
    let actions = format!("{REGBIT_PKT_LARGER} = check_pkt_larger({limit}); {saved}next;");
    ctx.flow(u, LrInChkPktLen, 50, matches.as_str(), actions);
    let actions = format!("{saved}next;");
    ctx.flow(u, LrInChkPktLen, 55, format!("{matches} && ({})", bypass(lrp)), actions);
    let translated = if features.ct_state_save {
        formatcp!(" && {REGBIT_CT_STATE_TRK} && {REGBIT_CT_STATE_RPL} && {REGBIT_CT_STATE_DNAT}")
    } else {
        " && ct.trk && ct.rpl && ct.dnat"
    };
    for p in router.ports.iter().filter(|p| p.uuid != lrp.uuid) {
        let between = format!("inport == {} && outport == {}", p.json, lrp.json);
        errors(ctx, router, p, mtu, LrInLargerPkts, 150, &between, "", "");
        errors(ctx, router, p, mtu, LrInLargerPkts, 160, &between, translated, "flags.icmp_snat = 1; ");
    }
    let inport = format!("inport == {}", lrp.json);
    errors(ctx, router, lrp, mtu, LrInIpInput, 150, &inport, "", "");
    if features.ct_commit_nat {
        ctx.flow(u, LrOutPostSnat, 100, "icmp && flags.icmp_snat == 1", "ct_commit_nat(snat);");
    }
}

#[allow(clippy::too_many_arguments, reason = "each names a part of one flow")]
fn errors(
    ctx: &mut Ctx<'_, '_>,
    router: &Router,
    from: &Lrp,
    mtu: i64,
    stage: crate::stage::Stage,
    priority: u16,
    ports: &str,
    and: &str,
    first: &str,
) {
    let ctx = &mut ctx.about(from.uuid);
    let u = router.uuid;
    if let Some(n) = from.v4.first() {
        let matches = format!("{ports} && ip4 && {REGBIT_PKT_LARGER} && {REGBIT_EGRESS_LOOPBACK} == 0{and}");
        let actions = format!(
            "icmp4_error {{{first}{REGBIT_EGRESS_LOOPBACK} = 1; {REGBIT_PKT_LARGER} = 0; eth.dst = {}; ip4.dst = ip4.src; ip4.src = {}; \
             ip.ttl = 255; icmp4.type = 3; /* Destination Unreachable. */ icmp4.code = 4; \
             /* Frag Needed and DF was Set. */ icmp4.frag_mtu = {mtu}; next(pipeline=ingress, table=0); }};",
            from.mac, n.addr
        );
        let extra = copp(&router.copp, "icmp4-error", ctx.global());
        ctx.flow_with(u, stage, priority, matches, actions, extra);
    }
    if let Some(n) = from.v6.first() {
        let matches = format!("{ports} && ip6 && {REGBIT_PKT_LARGER} && {REGBIT_EGRESS_LOOPBACK} == 0{and}");
        let actions = format!(
            "icmp6_error {{{first}{REGBIT_EGRESS_LOOPBACK} = 1; {REGBIT_PKT_LARGER} = 0; eth.dst = {}; ip6.dst = ip6.src; ip6.src = {}; \
             ip.ttl = 255; icmp6.type = 2; /* Packet Too Big. */ icmp6.code = 0; icmp6.frag_mtu = {mtu}; \
             next(pipeline=ingress, table=0); }};",
            from.mac, n.addr
        );
        let extra = copp(&router.copp, "icmp6-error", ctx.global());
        ctx.flow_with(u, stage, priority, matches, actions, extra);
    }
}

/// Packets for a distributed rule's outside address that are too large for what is behind the gateway port.
pub fn translated(ctx: &mut Ctx<'_, '_>, router: &Router, lrp: &Lrp, nat: &ovn_schema::nb::Nat) {
    let Some(mtu) = mtu(lrp) else { return };
    let (mac, ip) = (nat.external_mac.as_deref().unwrap_or_default(), &nat.external_ip);
    let v6 = ip.contains(':');
    let (f, icmp) = if v6 { ("ip6", "icmp6") } else { ("ip4", "icmp4") };
    let kind = if v6 {
        "icmp6.type = 2; /* Packet Too Big. */ icmp6.code = 0; "
    } else {
        "icmp4.type = 3; /* Destination Unreachable. */ icmp4.code = 4; /* Frag Needed and DF was Set. */ "
    };
    let matches = format!(
        "inport == {} && {REGBIT_PKT_LARGER} && {REGBIT_EGRESS_LOOPBACK} == 0 && {f} && {f}.dst == {ip}",
        lrp.json
    );
    let actions = format!(
        "{icmp}_error {{{REGBIT_EGRESS_LOOPBACK} = 1; {REGBIT_PKT_LARGER} = 0; eth.dst = eth.src; eth.src = {mac}; {f}.dst = {f}.src; {f}.src = {ip}; \
         ip.ttl = 254; {kind}{icmp}.frag_mtu = {mtu}; outport = {}; flags.loopback = 1; output; }};",
        lrp.json
    );
    let extra = copp(&router.copp, if v6 { "icmp6-error" } else { "icmp4-error" }, ctx.global());
    ctx.flow_with(lrp.router, LrInIpInput, 160, matches, actions, extra);
}
