//! Load balancing in a switch, and hairpinned traffic.

use crate::context::{Ctx, flag};
use crate::facts::lb::{Lb, Vip};
use crate::stage::Stage::*;
use crate::tables::copp;
use crate::tables::load_balancer::protocol_number;
use ovn_schema::Uuid;
use std::net::IpAddr;

/// The flows of a switch's load balancers.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(state) = ctx.switch_state(uuid) else { return };
    if state.has_lb {
        common(ctx, uuid);
    }
    for l in ctx.lbs(uuid).into_iter().flatten() {
        let Some(lb) = ctx.lb(*l) else { continue };
        for vip in &lb.vips {
            balance(ctx, uuid, lb, vip);
        }
    }
}

fn common(ctx: &mut Ctx<'_, '_>, u: Uuid) {
    for stage in [LsInPreLb, LsOutPreLb] {
        ctx.flow(u, stage, 100, "ip", "reg0[2] = 1; next;");
    }
    ctx.flow(u, LsInCtExtract, 100, "ct.new && ip", "reg1[16..23] = ct_proto(); reg1[0..15] = ct_tp_dst(); next;");
    let hairpin = "reg0[6] = chk_lb_hairpin(); reg0[12] = chk_lb_hairpin_reply(); next;";
    ctx.flow(u, LsInPreHairpin, 100, "ip && ct.trk", hairpin);
    ctx.flow(u, LsInNatHairpin, 100, "ip && ct.new && ct.trk && reg0[6] == 1", "ct_snat_to_vip; next;");
    ctx.flow(u, LsInNatHairpin, 100, "ip && ct.est && ct.trk && reg0[6] == 1", "ct_snat;");
    ctx.flow(u, LsInNatHairpin, 90, "ip && reg0[12] == 1", "ct_snat;");
    let back = "eth.dst <-> eth.src; outport = inport; flags.loopback = 1; output;";
    ctx.flow(u, LsInHairpin, 1, "(reg0[6] == 1 || reg0[12] == 1)", back);
    for (ip, register, field) in [("ip4", "reg4", "ct_nw_dst()"), ("ip6", "xxreg1", "ct_ip6_dst()")] {
        let matches = format!("ct.trk && ct.est && !ct.rpl && reg0[19] == 1 && {ip}");
        let actions = format!("{register} = {field}; reg2[0..15] = ct_tp_dst(); next;");
        ctx.flow(u, LsInLb, 110, matches, actions);
    }
}

/// The family's name in matches, and the register that keeps the address.
fn family(ip: IpAddr) -> (&'static str, &'static str) {
    if ip.is_ipv4() { ("ip4", "reg4") } else { ("ip6", "xxreg1") }
}

fn balance(ctx: &mut Ctx<'_, '_>, u: Uuid, lb: &Lb, vip: &Vip) {
    let (ip, register) = family(vip.ip);
    let protocol = &lb.protocol;
    let mut keep = format!("{register} = {}; ", vip.ip);
    if vip.port != 0 {
        keep.push_str(&format!("reg2[0..15] = {}; ", vip.port));
    }
    let port = if vip.port == 0 { String::new() } else { format!(" && {protocol}.dst == {}", vip.port) };
    let matches = format!("reg0[2] == 1 && {ip}.dst == {}{port}", vip.ip);
    ctx.flow(u, LsInPreStateful, 120, matches, format!("{keep}ct_lb_mark;"));
    if vip.backends.is_empty() && event(ctx, lb) {
        empty(ctx, u, lb, vip);
    }
    let mut matches = format!("ct.new && {ip}.dst == {}", vip.ip);
    if vip.port != 0 {
        matches.push_str(&format!(" && reg1[16..23] == {} && reg1[0..15] == {}", protocol_number(protocol), vip.port));
    }
    let backends = crate::tables::health::backends(ctx, lb, vip);
    let actions = match crate::router::lb::ct_lb(lb, &backends, "") {
        Some(ct_lb) => format!("{keep}{ct_lb}"),
        None if flag(&lb.row.options, "reject") => {
            "reg0 = 0; reject { /* eth.dst <-> eth.src; ip.dst <-> ip.src; is implicit. */ \
             outport <-> inport; next(pipeline=egress,table=10); };"
                .to_string()
        }
        None => ctx.global().drop.to_string(),
    };
    ctx.flow(u, LsInLb, if vip.port == 0 { 110 } else { 120 }, matches, actions);
}

/// Whether controllers are to report traffic to a balancer with nothing behind it.
pub fn event(ctx: &mut Ctx<'_, '_>, lb: &Lb) -> bool {
    let global = ctx.global();
    flag(&lb.row.options, "event") || flag(&global.options, "controller_event")
}

/// The event action for a balancer with nothing behind it.
pub fn event_action(lb: &Lb, vip: &Vip) -> String {
    format!(
        "trigger_event(event = \"empty_lb_backends\", vip = \"{}\", protocol = \"{}\", load_balancer = \"{}\");",
        vip.text, lb.protocol, lb.uuid
    )
}

fn empty(ctx: &mut Ctx<'_, '_>, u: Uuid, lb: &Lb, vip: &Vip) {
    let Some(switch) = ctx.switch(u) else { return };
    let (ip, _) = family(vip.ip);
    let protocol = &lb.protocol;
    let mut matches = format!("{ip}.dst == {} && {protocol}", vip.ip);
    if vip.port != 0 {
        matches.push_str(&format!(" && {protocol}.dst == {}", vip.port));
    }
    let extra = copp(&switch.copp, "event-elb", ctx.global());
    ctx.flow_with(u, LsInPreLb, 130, matches, event_action(lb, vip), extra);
}
