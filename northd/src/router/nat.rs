//! Network address translation.

use super::input::{arp_reply, nd_reply};
use super::port::solicited;
use crate::addresses::quoted;
use crate::context::{Ctx, flag_or};
use crate::facts::lrp::Lrp;
use crate::facts::nat::{Kind, Nat};
use crate::facts::router::Router;
use crate::input::Read;
use crate::stage::Stage::*;
use ovn_schema::Uuid;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// One rule with all that its flows are made of.
struct Rule<'a> {
    nat: &'a Nat,
    router: &'a Router,
    gateway: Option<&'a Lrp>,
    /// `ip4` or `ip6`.
    f: &'static str,
    /// The inside address or network.
    inside: String,
    /// Where a rule of a distributed router is done: the gateway chassis, or the port's.
    resident: String,
}

/// The flows of a router's rules.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    let Some(nats) = ctx.nats(uuid) else { return };
    let gateways = router.gateway_ports().count();
    force_snat(ctx, router);
    let mut answered: BTreeSet<IpAddr> = BTreeSet::new();
    for nat in nats {
        let gateway = nat.gateway.and_then(|g| ctx.lrp(g));
        let resident = match (gateway, &nat.port) {
            (Some(_), Some(port)) if nat.distributed() => quoted(port),
            (Some(gateway), _) => gateway.cr_json.to_string(),
            (None, _) => String::new(),
        };
        let inside = match nat.logical {
            (IpAddr::V4(addr), plen) => crate::addresses::Net4 { addr, plen }.match_text(),
            (IpAddr::V6(addr), plen) => crate::addresses::Net6 { addr, plen }.match_text(),
        };
        let f = if nat.v4() { "ip4" } else { "ip6" };
        let rule = Rule { nat, router, gateway, f, inside, resident };
        if !router.is_gateway() && gateway.is_none() {
            // There is nowhere to translate, but the address is the router's.
            if answered.insert(nat.external) {
                answer(ctx, &rule);
            }
            continue;
        }
        inbound(ctx, &rule);
        outbound(ctx, &rule);
        if answered.insert(nat.external) || nat.distributed() {
            answer(ctx, &rule);
        }
        if gateways > 0 {
            distributed(ctx, &rule);
        }
    }
}

impl Rule<'_> {
    fn uuid(&self) -> Uuid {
        self.router.uuid
    }

    /// ` && inport == P && is_chassis_resident(X)` for packets from outside.
    fn inbound(&self) -> String {
        match self.gateway {
            Some(g) if self.nat.distributed() => format!(" && inport == {}", g.json),
            Some(g) => format!(" && inport == {} && is_chassis_resident({})", g.json, self.resident),
            None => String::new(),
        }
    }

    /// ` && outport == P` and on which chassis, for packets to outside.
    fn outbound(&self) -> String {
        match self.gateway {
            Some(g) if self.nat.distributed() => format!(" && outport == {}", g.json),
            Some(g) => format!(" && outport == {} && is_chassis_resident({})", g.json, self.resident),
            None => String::new(),
        }
    }

    fn mac(&self) -> String {
        match self.nat.mac.filter(|_| self.nat.distributed() && self.gateway.is_some()) {
            Some(mac) => format!("eth.src = {mac}; "),
            None => String::new(),
        }
    }
}

fn inbound(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>) {
    let (u, f, nat) = (r.uuid(), r.f, r.nat);
    let to = format!("ip && {f}.dst == {}", nat.external);
    let from = r.inbound();
    if nat.kind != Kind::Dnat {
        let priority = if r.gateway.is_some() { 100 } else { 90 };
        let actions = if nat.stateless { "next;" } else { "ct_snat;" };
        ctx.flow(u, LrInUnsnat, priority, format!("{to}{from}"), actions);
    }
    if nat.kind == Kind::Snat {
        return;
    }
    let mut actions = String::new();
    if r.gateway.is_none() {
        if r.router.dnat_force_snat.any() {
            actions.push_str("flags.force_snat_for_dnat = 1; ");
        }
        actions.push_str("flags.loopback = 1; ");
    }
    let inside = nat.logical.0;
    if nat.stateless {
        actions.push_str(&format!("{f}.dst={inside}; next;"));
    } else if nat.row.external_port_range.is_empty() {
        actions.push_str(&format!("ct_dnat({inside});"));
    } else {
        actions.push_str(&format!("ct_dnat({inside},{});", nat.row.external_port_range));
    }
    let (extra, priority) = conditions(ctx, r, "src", 100);
    let matches = format!("{to}{from}{extra}");
    if nat.stateless && nat.v4() && flag_or(&nat.row.options, "stateless_icmp_helper", true) {
        let matches = format!("{matches} && icmp4 && icmp4.type == {{3, 11, 12}}");
        let actions = format!("ip4.dst={inside}; icmp4.inner_ip4.src = {inside}; next;");
        ctx.flow(u, LrInDnat, priority + 1, matches, actions);
    }
    exempt(ctx, r, LrInDnat, &format!("{to}{from}"), "src", priority + 2);
    ctx.flow(u, LrInDnat, priority, matches, actions);
}

/// What `match`, `priority` and `allowed_ext_ips` add to a flow.
fn conditions(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>, side: &str, priority: u16) -> (String, u16) {
    let mut extra = String::new();
    if let Some(set) = r.nat.row.allowed_ext_ips.and_then(|s| ctx.nb::<ovn_schema::nb::AddressSet>(s)) {
        extra.push_str(&format!(" && {}.{side} == ${}", r.f, set.name));
    }
    if r.nat.row.r#match.is_empty() {
        return (extra, priority);
    }
    extra.push_str(&format!(" && ({})", r.nat.row.r#match));
    (extra, 300 + r.nat.row.priority as u16)
}

fn exempt(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>, stage: crate::stage::Stage, matches: &str, side: &str, priority: u16) {
    if let Some(set) = r.nat.row.exempted_ext_ips.and_then(|s| ctx.nb::<ovn_schema::nb::AddressSet>(s)) {
        let matches = format!("{matches} && {}.{side} == ${}", r.f, set.name);
        ctx.flow(r.uuid(), stage, priority, matches, "next;");
    }
}

fn outbound(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>) {
    let (u, f, nat) = (r.uuid(), r.f, r.nat);
    let from = format!("ip && {f}.src == {}", r.inside);
    let to = r.outbound();
    let mac = r.mac();
    if nat.kind != Kind::Snat && r.gateway.is_some() {
        let actions = if nat.stateless { format!("{mac}next;") } else { format!("{mac}ct_dnat;") };
        ctx.flow(u, LrOutUndnat, 100, format!("{from}{to}"), actions);
    }
    if nat.kind == Kind::Dnat {
        return;
    }
    let base = u16::from(nat.logical.1) + 1;
    let untracked = " && (!ct.trk || !ct.rpl)";
    let priority = if r.gateway.is_some() { base + 128 } else { base };
    let there = match r.gateway {
        Some(g) => format!(" && outport == {} && is_chassis_resident({})", g.json, r.resident),
        None => String::new(),
    };
    let range = &nat.row.external_port_range;
    let actions = if nat.stateless {
        format!("{mac}{f}.src={}; next;", nat.external)
    } else if range.is_empty() {
        format!("{mac}ct_snat({});", nat.external)
    } else {
        format!("{mac}ct_snat({},{range});", nat.external)
    };
    let (extra, priority) = conditions(ctx, r, "dst", priority);
    exempt(ctx, r, LrOutSnat, &format!("{from}{there}"), "dst", priority + 2);
    let tracked = if nat.stateless { "" } else { untracked };
    ctx.flow(u, LrOutSnat, priority, format!("{from}{there}{tracked}{extra}"), actions);
    if let (Some(g), false) = (r.gateway, nat.stateless) {
        let (zone, pre, back) = match nat.kind {
            Kind::Snat => ("snat", 70, priority),
            _ => ("dnat", 75, priority + 5),
        };
        let global = ctx.global().features;
        if global.ct_next_zone {
            let matches = format!("{from}{there}{untracked}{extra}");
            ctx.flow(u, LrOutPostUndnat, pre, matches, format!("ct_next({zone});"));
        }
        if !global.ct_commit_to_zone {
            return;
        }
        let returning =
            format!("ip && {f}.dst == {} && inport == {} && is_chassis_resident({})", r.inside, g.json, r.resident);
        ctx.flow(u, LrOutSnat, back, format!("{returning}{untracked}"), format!("ct_{zone};"));
        let commit = format!("ct_commit_to_zone({zone});");
        ctx.flow(u, LrOutPostSnat, back, format!("{returning} && ct.new"), commit);
    }
}

/// Answers to those who ask for the outside address.
fn answer(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>) {
    let (u, nat) = (r.uuid(), r.nat);
    let mac = match nat.mac.filter(|_| nat.distributed() && r.gateway.is_some()) {
        Some(mac) => mac.to_string(),
        None => "xreg0[0..47]".to_string(),
    };
    let outside = match r.gateway {
        Some(g) => g.switch_ports.is_empty() || super::port::leads_outside(ctx, g),
        None => false,
    };
    let (inport, resident, priority) = match r.gateway.filter(|_| outside) {
        Some(g) => (format!("inport == {} && ", g.json), format!(" && is_chassis_resident({})", r.resident), 92),
        None => (String::new(), String::new(), 90),
    };
    match nat.external {
        IpAddr::V4(ip) => {
            let matches = format!("{inport}arp.op == 1 && arp.tpa == {ip}{resident}");
            ctx.flow(u, LrInIpInput, priority, matches, arp_reply(&mac));
        }
        IpAddr::V6(ip) => {
            let matches = format!("{inport}ip6.dst == {} && nd_ns && nd.target == {ip}{resident}", solicited(ip));
            ctx.flow(u, LrInIpInput, priority, matches, nd_reply("nd_na", &mac));
        }
    }
}

/// What only routers with gateway ports have.
fn distributed(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>) {
    let Some(g) = r.gateway else { return };
    let (u, f, nat, port) = (r.uuid(), r.f, r.nat, &g.json);
    let drop = ctx.global().drop.clone();
    let external = nat.external;
    if nat.kind == Kind::Snat {
        ctx.flow(u, LrInIpInput, 120, format!("inport == {port} && {f}.src == {external}"), "next;");
    }
    let resident = &r.resident;
    if let Some(mac) = nat.mac.filter(|_| nat.distributed()) {
        let matches = format!("eth.dst == {mac} && inport == {port} && is_chassis_resident({resident})");
        ctx.flow(u, LrInAdmission, 50, matches, format!("xreg0[0..47] = {}; next;", g.mac));
        let register = if nat.v4() { "reg5" } else { "xxreg1" };
        let matches = format!("{f}.src == {} && outport == {port} && is_chassis_resident({resident})", r.inside);
        ctx.flow(u, LrInGwRedirect, 100, matches, format!("eth.src = {mac}; {register} = {external}; next;"));
        if virtual_port(ctx, nat) {
            let matches = format!("{f}.src == {} && outport == {port}", r.inside);
            ctx.flow(u, LrInGwRedirect, 80, matches, &*drop);
        }
        if g.row.options.get("redirect-type").is_some_and(|t| t.eq_ignore_ascii_case("bridged")) {
            let matches = format!("outport == {port} && {f}.src == {} && is_chassis_resident({resident})", r.inside);
            let actions = if nat.v4() { "get_arp(outport, reg0); next;" } else { "get_nd(outport, xxreg0); next;" };
            ctx.flow(u, LrInArpResolve, 90, matches, actions);
        }
    }
    let register = if nat.v4() { "reg0" } else { "xxreg0" };
    let mac = nat.mac.filter(|_| nat.distributed()).unwrap_or(g.mac);
    let matches = format!("outport == {port} && {register} == {external}");
    ctx.flow(u, LrInArpResolve, 100, matches, format!("eth.dst = {mac}; next;"));
    let matches = format!("inport == {port} && outport == {port} && {f}.dst == {external}");
    ctx.flow(u, LrInArpResolve, 150, matches, &*drop);
    let matches = format!("{f}.dst == {external} && outport == {port} && is_chassis_resident({resident})");
    let registers: String = (0..10).map(|i| format!("reg{i} = 0; ")).collect();
    let actions = format!(
        "clone {{ ct_clear; inport = outport; outport = \"\"; eth.dst <-> eth.src; flags = 0; flags.loopback = 1; \
         {registers}reg9[0] = 1; next(pipeline=ingress, table=0); }};"
    );
    ctx.flow(u, LrOutEgrLoop, 100, matches, actions);
}

/// Whether a rule's port is a virtual one that no chassis has.
fn virtual_port(ctx: &mut Ctx<'_, '_>, nat: &Nat) -> bool {
    let Some(name) = &nat.port else { return false };
    let Some(lsp) = ctx.read(Read::LspName(name.clone())).lsp_by_name(name).and_then(|l| ctx.lsp(l)) else {
        return false;
    };
    lsp.kind == crate::facts::lsp::Kind::Virtual
}

/// `dnat_force_snat_ip`, `lb_force_snat_ip`.
fn force_snat(ctx: &mut Ctx<'_, '_>, router: &Router) {
    if !router.is_gateway() {
        return;
    }
    let u = router.uuid;
    for (name, force) in [("dnat", &router.dnat_force_snat), ("lb", &router.lb_force_snat)] {
        for ip in &force.ips {
            let f = if ip.is_ipv4() { "ip4" } else { "ip6" };
            ctx.flow(u, LrInUnsnat, 110, format!("{f} && {f}.dst == {ip}"), "ct_snat;");
            let matches = format!("flags.force_snat_for_{name} == 1 && {f}");
            ctx.flow(u, LrOutSnat, 100, matches, format!("ct_snat({ip});"));
        }
    }
    if !router.lb_force_snat.router_ip || !super::lb::has_vips(ctx, u) {
        return;
    }
    for p in &router.ports {
        let v4: Vec<IpAddr> = p.v4.iter().map(|n| n.addr.into()).collect();
        let v6: Vec<IpAddr> = p.v6.iter().filter(|n| !n.addr.is_unicast_link_local()).map(|n| n.addr.into()).collect();
        for (f, all) in [("ip4", v4), ("ip6", v6)] {
            for (i, ip) in all.iter().enumerate() {
                ctx.flow(u, LrInUnsnat, 110, format!("inport == {} && {f}.dst == {ip}", p.json), "ct_snat;");
                if i == 0 {
                    let matches = format!("flags.force_snat_for_lb == 1 && {f} && outport == {}", p.json);
                    ctx.flow(u, LrOutSnat, 105, matches, format!("ct_snat({ip});"));
                }
                if i > 15 {
                    continue;
                }
                let matches =
                    format!("flags.force_snat_for_lb == 1 && flags.network_id == {i} && {f} && outport == {}", p.json);
                ctx.flow(u, LrOutSnat, 110, matches, format!("ct_snat({ip});"));
            }
        }
    }
}
