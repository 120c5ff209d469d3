//! Network address translation.

use super::input::{arp_reply, nd_reply};
use super::port::{at_vtep, solicited};
use crate::addresses::quoted;
use crate::context::{Ctx, flag, flag_or};
use crate::facts::Fact;
use crate::facts::global::copp;
use crate::facts::lrp::Lrp;
use crate::facts::nat::{Kind, Nat, Repeats};
use crate::facts::router::Router;
use crate::input::Read;
use crate::model::Unit;
use crate::registers::*;
use crate::stage::Stage::*;
use const_format::formatcp;
use ovn_schema::{Uuid, nb};
use std::net::IpAddr;
use std::sync::Arc;

/// What connections that are not replies match.
const UNTRACKED: &str = " && (!ct.trk || !ct.rpl)";

/// One rule with all that its flows are made of.
struct Rule<'a> {
    nat: &'a Nat,
    router: &'a Router,
    gateway: Option<&'a Lrp>,
    /// `ip4` or `ip6`.
    f: &'static str,
    /// The inside address or network.
    inside: &'a str,
    /// Where a rule of a distributed router is done: the gateway chassis, or the port's.
    resident: String,
}

/// The flows of a rule.
pub fn rule(ctx: &mut Ctx<'_, '_>, router: Uuid, uuid: Uuid) {
    let Some(Fact::Nat(nat)) = ctx.fact(Unit::Nat(router, uuid)) else { return };
    let Some(router) = ctx.router(router) else { return };
    let repeats = match ctx.fact(Unit::NatRepeats(router.uuid, uuid)) {
        Some(Fact::NatRepeats(repeats)) => *repeats,
        _ => Repeats::default(),
    };
    let ctx = &mut ctx.about(uuid);
    if !repeats.source {
        answers(ctx, router, nat);
    }
    if !translates(router) {
        return;
    }
    let rule = Rule::of(ctx, router, nat);
    unsnat(ctx, &rule);
    dnat(ctx, &rule);
    undnat(ctx, &rule);
    snat(ctx, &rule);
    distributed(ctx, &rule, !repeats.at_gateway);
}

/// Whether a router's rules are done anywhere.
fn translates(router: &Router) -> bool {
    router.is_gateway() || router.gateway_ports().next().is_some()
}

/// What a router's rules have in common.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    let Some(nats) = ctx.nats(uuid) else { return };
    force_snat(ctx, router);
    if !translates(router) {
        return;
    }
    selected(ctx, router, &nats.rules);
    let stateful = nats.stateful || ctx.kinds(uuid).any || router.dnat_force_snat.any() || router.lb_force_snat.any();
    if stateful && commits_all(router) && ctx.global().features.zones() {
        commit_all(ctx, router);
    }
    if flag(&ctx.global().options, "use_common_zone") && !nats.rules.is_empty() {
        ctx.flow(
            uuid,
            LrOutChkDnatLocal,
            50,
            "ip && ct_mark.natted == 1",
            formatcp!("{REGBIT_DST_NAT_IP_LOCAL} = 1; next;"),
        );
    }
}

/// Stateless rules of some outside addresses only, at the gateway ports (`allowed_ext_ips`, `exempted_ext_ips`) but those to
/// hardware VTEPs, whose packets are not sent to the gateway. OVN gives each of these flows the match and actions of the last
/// flow that it made for the router's rules.
fn selected<'a>(ctx: &mut Ctx<'_, 'a>, router: &'a Router, nats: &'a [Arc<Nat>]) {
    let u = router.uuid;
    let some = |n: &&Arc<Nat>| n.stateless && (n.row.allowed_ext_ips.is_some() || n.row.exempted_ext_ips.is_some());
    let chosen: Vec<&Arc<Nat>> = nats.iter().filter(some).collect();
    if chosen.is_empty() {
        return;
    }
    let common = flag(&ctx.global().options, "use_common_zone");
    let (matches, actions) = if common {
        ("ip && ct_mark.natted == 1".into(), formatcp!("{REGBIT_DST_NAT_IP_LOCAL} = 1; next;").into())
    } else {
        let last = nats.iter().rfind(|n| n.gateway.is_some()).map(|n| Rule::of(ctx, router, n));
        last.and_then(|r| Some(loop_back(ctx, &r, r.gateway?))).unwrap_or_default()
    };
    let drop = ctx.global().drop.clone();
    for g in router.gateway_ports() {
        if at_vtep(ctx, g) {
            continue;
        }
        let mut dropped = false;
        for nat in &chosen {
            let set = nat.row.allowed_ext_ips.or(nat.row.exempted_ext_ips);
            let Some(set) = set.and_then(|s| ctx.nb::<nb::AddressSet>(s)) else { continue };
            let f = if nat.v4() { "ip4" } else { "ip6" };
            let matches = format!("{matches} && {f}.src == ${}", set.name);
            let allowed = nat.row.allowed_ext_ips.is_some();
            let actions = if allowed { actions.as_str() } else { &*drop };
            ctx.about(g.uuid).flow(u, LrInGwRedirect, 75, matches, actions);
            if allowed && !std::mem::replace(&mut dropped, true) {
                let matches = format!("ip && {f}.dst == {}", nat.row.external_ip);
                ctx.about_none().flow(u, LrInGwRedirect, 70, matches, &*drop);
            }
        }
    }
}

/// Whether every connection is committed to both zones (`options:ct-commit-all`).
pub fn commits_all(router: &Router) -> bool {
    flag(&router.options, "ct-commit-all")
}

impl<'a> Rule<'a> {
    fn of(ctx: &mut Ctx<'_, 'a>, router: &'a Router, nat: &'a Nat) -> Rule<'a> {
        let gateway = nat.gateway.and_then(|g| ctx.lrp(g));
        let resident = match (gateway, &nat.port) {
            (Some(_), Some(port)) if nat.distributed() => quoted(port),
            (Some(gateway), _) => gateway.cr_json.to_string(),
            (None, _) => String::new(),
        };
        let f = if nat.v4() { "ip4" } else { "ip6" };
        Rule { nat, router, gateway, f, inside: &nat.row.logical_ip, resident }
    }
}

impl Rule<'_> {
    fn uuid(&self) -> Uuid {
        self.router.uuid
    }

    /// ` && inport == P && is_chassis_resident(X)`; a distributed rule is done wherever its port is.
    fn at(&self, side: &str) -> String {
        match self.gateway {
            Some(g) if self.nat.distributed() => format!(" && {side} == {}", g.json),
            Some(g) => format!(" && {side} == {} && is_chassis_resident({})", g.json, self.resident),
            None => String::new(),
        }
    }

    fn mac(&self) -> String {
        match self.nat.mac.filter(|_| self.nat.distributed()) {
            Some(mac) => format!("eth.src = {mac}; "),
            None => String::new(),
        }
    }

    /// `(ADDRESS)` or `(ADDRESS,PORTS)`.
    fn target(&self, address: &str) -> String {
        match &*self.nat.row.external_port_range {
            "" => format!("({address})"),
            range => format!("({address},{range})"),
        }
    }

    fn priority(&self, plain: u16) -> u16 {
        if self.nat.row.r#match.is_empty() { plain } else { 300 + self.nat.row.priority as u16 }
    }

    /// ` && (MATCH)`, where the rule has one.
    fn own_match(&self) -> String {
        match &*self.nat.row.r#match {
            "" => String::new(),
            m => format!(" && ({m})"),
        }
    }
}

/// What `allowed_ext_ips` adds to a match; what `exempted_ext_ips` lists is passed on before.
fn external(
    ctx: &mut Ctx<'_, '_>,
    r: &Rule<'_>,
    matches: &str,
    side: &str,
    stage: crate::stage::Stage,
    priority: u16,
) -> String {
    let row = &r.nat.row;
    if let Some(set) = row.allowed_ext_ips.and_then(|s| ctx.nb::<nb::AddressSet>(s)) {
        return format!(" && {}.{side} == ${}", r.f, set.name);
    }
    if let Some(set) = row.exempted_ext_ips.and_then(|s| ctx.nb::<nb::AddressSet>(s)) {
        let matches = format!("{matches} && {}.{side} == ${}", r.f, set.name);
        ctx.flow(r.uuid(), stage, priority + 2, matches, "next;");
    }
    String::new()
}

/// Undoes the translation in replies to packets sent from the outside address (`lr_in_unsnat`).
fn unsnat(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>) {
    let (u, nat) = (r.uuid(), r.nat);
    if nat.kind == Kind::Dnat {
        return;
    }
    let matches = format!("ip && {}.dst == {}{}", r.f, nat.external, r.at("inport"));
    let priority = if r.router.is_gateway() { 90 } else { 100 };
    if nat.stateless {
        ctx.flow(u, LrInUnsnat, priority, matches, "next;");
    } else if r.router.common_zone {
        ctx.flow(u, LrInUnsnat, 100, format!("{matches} && flags.loopback == 0"), "ct_snat_in_czone;");
        let matches = format!("{matches} && flags.loopback == 1 && flags.use_snat_zone == 1");
        ctx.flow(u, LrInUnsnat, 100, matches, "ct_snat;");
    } else {
        ctx.flow(u, LrInUnsnat, priority, matches, "ct_snat;");
    }
}

/// What comes from outside for the outside address.
fn dnat(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>) {
    let (u, f, nat) = (r.uuid(), r.f, r.nat);
    if nat.kind == Kind::Snat {
        return;
    }
    let mut matches = format!("ip && {f}.dst == {}{}", nat.external, r.at("inport"));
    let mut actions = String::new();
    if r.router.is_gateway() {
        if r.router.dnat_force_snat.any() {
            actions.push_str("flags.force_snat_for_dnat = 1; ");
        }
        actions.push_str("flags.loopback = 1; ");
    }
    let inside = r.inside;
    if nat.stateless {
        actions.push_str(&format!("{f}.dst={inside}; next;"));
    } else {
        let zone = if r.router.common_zone { "ct_dnat_in_czone" } else { "ct_dnat" };
        actions.push_str(&format!("{zone}{};", r.target(inside)));
    }
    let priority = r.priority(100);
    let more = external(ctx, r, &matches, "src", LrInDnat, priority);
    matches.push_str(&more);
    if nat.stateless && nat.v4() && flag_or(&nat.row.options, "stateless_icmp_helper", true) {
        let matches = format!("{matches} && icmp4 && icmp4.type == {{3, 11, 12}}");
        let actions = format!("ip4.dst={inside}; icmp4.inner_ip4.src = {inside}; next;");
        let extra = copp(&r.router.copp, "icmp4-error", ctx.global());
        ctx.flow_with(u, LrInDnat, priority + 1, matches, actions, extra);
    }
    ctx.flow(u, LrInDnat, priority, format!("{matches}{}", r.own_match()), actions);
}

/// What the inside address answers to outside.
fn undnat(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>) {
    let (u, f, nat) = (r.uuid(), r.f, r.nat);
    let Some(g) = r.gateway else { return };
    if flag(&ctx.global().options, "use_common_zone") {
        let matches = format!("ip && {f}.dst == {} && is_chassis_resident({})", nat.external, r.resident);
        ctx.flow(u, LrOutChkDnatLocal, 50, matches, formatcp!("{REGBIT_DST_NAT_IP_LOCAL} = 1; next;"));
    }
    if nat.kind == Kind::Snat {
        return;
    }
    let mut matches = format!("ip && {f}.src == {} && outport == {}", r.inside, g.json);
    if !nat.distributed() {
        matches.push_str(&format!(" && is_chassis_resident({})", g.cr_json));
    }
    let back = match (nat.stateless, r.router.common_zone) {
        (true, _) => "next;",
        (_, true) => "ct_dnat_in_czone;",
        _ => "ct_dnat;",
    };
    ctx.flow(u, LrOutUndnat, 100, matches, format!("{}{back}", r.mac()));
}

/// A rule's match on packets between the inside and outside, without what allows or exempts outside addresses.
fn between(r: &Rule<'_>, reverse: bool) -> String {
    let (side, port) = if reverse { ("dst", "inport") } else { ("src", "outport") };
    let there = match r.gateway {
        Some(g) => format!(" && {port} == {} && is_chassis_resident({})", g.json, r.resident),
        None => String::new(),
    };
    format!("ip && {}.{side} == {}{there}", r.f, r.inside)
}

/// What goes from the inside address to outside.
fn snat(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>) {
    let (u, f, nat) = (r.uuid(), r.f, r.nat);
    if nat.kind == Kind::Dnat {
        return;
    }
    let base = u16::from(nat.logical.1) + 1 + if r.gateway.is_some() { 128 } else { 0 };
    let priority = r.priority(base);
    let mut matches = between(r, false);
    let more = external(ctx, r, &matches, "dst", LrOutSnat, priority);
    matches.push_str(&more);
    matches.push_str(&r.own_match());
    let mac = r.mac();
    if nat.stateless {
        ctx.flow(u, LrOutSnat, priority, matches, format!("{mac}{f}.src={}; next;", nat.external));
        return;
    }
    matches.push_str(UNTRACKED);
    let target = r.target(&nat.external.to_string());
    if r.router.common_zone {
        ctx.flow(u, LrOutSnat, priority, matches.as_str(), format!("{mac}ct_snat_in_czone{target};"));
        let matches = format!("{matches} && {REGBIT_DST_NAT_IP_LOCAL} == 1");
        ctx.flow(u, LrOutSnat, priority + 1, matches, format!("{mac}{REGBIT_DST_NAT_IP_LOCAL} = 0; ct_snat{target};"));
        return;
    }
    ctx.flow(u, LrOutSnat, priority, matches.as_str(), format!("{mac}ct_snat{target};"));
    if r.gateway.is_some() && ctx.global().features.zones() && !commits_all(r.router) {
        track(ctx, r, priority, matches);
    }
}

/// On a distributed router, what is to be translated is known by the connections of the right zone.
fn track(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>, priority: u16, matches: String) {
    let u = r.uuid();
    let mut back = between(r, true);
    let allowed = external(ctx, r, &back, "src", LrInDnat, r.priority(100));
    let ctx = &mut ctx.about_none();
    let (zone, more) = if r.nat.kind == Kind::Snat { ("snat", 0) } else { ("dnat", 5) };
    ctx.flow(u, LrOutPostUndnat, 70 + more, matches, format!("ct_next({zone});"));
    back.push_str(&allowed);
    back.push_str(&r.own_match());
    ctx.flow(u, LrOutSnat, priority + more, format!("{back}{UNTRACKED}"), format!("ct_{zone};"));
    let commit = format!("ct_commit_to_zone({zone});");
    ctx.flow(u, LrOutPostSnat, priority + more, format!("{back} && ct.new"), commit);
}

/// ARP and ND replies for a rule's outside address.
fn answers(ctx: &mut Ctx<'_, '_>, router: &Router, nat: &Nat) {
    let u = router.uuid;
    let several = router.gateway_ports().count() > 1;
    let na = copp(&router.copp, "nd-na", ctx.global());
    let target = |inport: String, resident: String, mac: &str| match nat.external {
        IpAddr::V4(ip) => (format!("{inport}arp.op == 1 && arp.tpa == {ip}{resident}"), arp_reply(mac), None),
        IpAddr::V6(ip) => {
            let to = solicited(ip);
            let matches = format!("{inport}ip6.dst == {to} && nd_ns && nd.target == {ip}{resident}");
            (matches, nd_reply("nd_na", mac), Some(na.clone()))
        }
    };
    if nat.gateway.is_none() || nat.centralized {
        let (matches, actions, extra) = target(String::new(), String::new(), REG_INPORT_ETH_ADDR);
        ctx.flow_with(u, LrInIpInput, 90, matches, actions, extra.unwrap_or_default());
    }
    for g in router.gateway_ports() {
        let elsewhere = match nat.row.gateway_port {
            Some(port) => port != g.uuid,
            None => g.ip_in_network_of(nat.external).is_none(),
        };
        if several && elsewhere || centralized(ctx, g) {
            continue;
        }
        let inport = format!("inport == {} && ", g.json);
        let (matches, actions, extra) = match (nat.mac, &nat.port) {
            (Some(mac), Some(port)) => {
                let resident = format!(" && is_chassis_resident({})", quoted(port));
                target(inport, resident, &mac.to_string())
            }
            _ => target(inport, format!(" && is_chassis_resident({})", g.cr_json), REG_INPORT_ETH_ADDR),
        };
        ctx.flow_with(u, LrInIpInput, 92, matches, actions, extra.unwrap_or_default());
    }
}

/// Whether a gateway port's networks are routed on the gateway chassis only.
fn centralized(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> bool {
    let lsps: Vec<_> = lrp.switch_port.iter().filter_map(|l| ctx.lsp(*l)).collect();
    lsps.into_iter().any(|l| crate::facts::lsp::switch_redirect(ctx, l))
}

/// The flows that only routers with distributed gateway ports have.
fn distributed(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>, first: bool) {
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
        let keep = format!("{REG_INPORT_ETH_ADDR} = {}; next;", g.mac);
        super::mtu::admission(ctx, g, &matches, &keep);
        super::mtu::translated(ctx, r.router, g, &nat.row);
        let register = if nat.v4() { REG_SRC_IPV4 } else { REG_SRC_IPV6 };
        let matches = format!("{f}.src == {} && outport == {port}", r.inside);
        if virtual_port(ctx, nat) {
            ctx.flow(u, LrInGwRedirect, 80, matches.as_str(), &*drop);
        }
        let matches = format!("{matches} && is_chassis_resident({resident})");
        ctx.flow(u, LrInGwRedirect, 100, matches, format!("eth.src = {mac}; {register} = {external}; next;"));
    }
    if first {
        resolve(ctx, r, g);
    }
    let (matches, actions) = loop_back(ctx, r, g);
    ctx.flow(u, LrOutEgrLoop, 100, matches, actions);
}

/// What is for an outside address and leaves by the gateway port comes in by it again.
fn loop_back(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>, g: &Lrp) -> (String, String) {
    let matches =
        format!("{}.dst == {} && outport == {} && is_chassis_resident({})", r.f, r.nat.external, g.json, r.resident);
    let registers: String = (0..10).map(|i| format!("reg{i} = 0; ")).collect();
    let zone = if flag(&ctx.global().options, "use_common_zone") {
        formatcp!("flags.use_snat_zone = {REGBIT_DST_NAT_IP_LOCAL}; ")
    } else {
        ""
    };
    let actions = format!(
        "clone {{ ct_clear; inport = outport; outport = \"\"; eth.dst <-> eth.src; flags = 0; flags.loopback = 1; \
         {zone}{registers}{REGBIT_EGRESS_LOOPBACK} = 1; next(pipeline=ingress, table=0); }};"
    );
    (matches, actions)
}

/// The outside address as a next hop of other ports of the router.
fn resolve(ctx: &mut Ctx<'_, '_>, r: &Rule<'_>, g: &Lrp) {
    let (u, f, nat, port) = (r.uuid(), r.f, r.nat, &g.json);
    let drop = ctx.global().drop.clone();
    let matches = format!("inport == {port} && outport == {port} && {f}.dst == {}", nat.external);
    ctx.flow(u, LrInArpResolve, 150, matches, &*drop);
    let register = if nat.v4() { REG_NEXT_HOP_IPV4 } else { REG_NEXT_HOP_IPV6 };
    let mac = nat.mac.filter(|_| nat.distributed()).unwrap_or(g.mac);
    let matches = format!("outport == {port} && {register} == {}", nat.external);
    ctx.flow(u, LrInArpResolve, 100, matches, format!("eth.dst = {mac}; next;"));
    let bridged = |p: &Lrp| p.row.options.get("redirect-type").is_some_and(|t| t.eq_ignore_ascii_case("bridged"));
    if nat.distributed()
        && r.router.ports.iter().any(|p| bridged(p))
        && let Some(first) = r.router.gateway_ports().next()
    {
        let matches =
            format!("outport == {} && {f}.src == {} && is_chassis_resident({})", first.json, r.inside, r.resident);
        let actions = if nat.v4() {
            formatcp!("get_arp(outport, {REG_NEXT_HOP_IPV4}); next;")
        } else {
            formatcp!("get_nd(outport, {REG_NEXT_HOP_IPV6}); next;")
        };
        ctx.flow(u, LrInArpResolve, 90, matches, actions);
    }
}

/// Whether a rule's port is a virtual one that no chassis has.
fn virtual_port(ctx: &mut Ctx<'_, '_>, nat: &Nat) -> bool {
    let Some(name) = &nat.port else { return false };
    let Some(lsp) = ctx.read(Read::LspName(name.clone())).lsp_by_name(name).and_then(|l| ctx.lsp(l)) else {
        return false;
    };
    lsp.kind == crate::facts::lsp::Kind::Virtual
}

/// Every connection is committed to both zones, so that hardware can take it over.
fn commit_all(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let u = router.uuid;
    let mut places = Vec::new();
    if router.is_gateway() {
        places.push((String::new(), String::new()));
    }
    for g in router.gateway_ports() {
        let side = |side: &str| format!(" && {side} == {} && is_chassis_resident({})", g.json, g.cr_json);
        places.push((side("inport"), side("outport")));
    }
    for (inn, out) in places {
        for (stage, matches, actions) in [
            (LrInDefrag, format!("ip{UNTRACKED}{inn}"), "ct_next(dnat);"),
            (LrInDnat, format!("ip && ct.new{inn}"), "ct_commit_to_zone(dnat);"),
            (LrInPostUnsnat, format!("ip && ct.new{inn}"), "flags.unsnat_new = 1; next;"),
            (LrInPostUnsnat, format!("ip && !ct.trk{inn}"), "flags.unsnat_not_tracked = 1; next;"),
            (LrOutPostUndnat, format!("ip{UNTRACKED} && flags.unsnat_not_tracked == 1{out}"), "ct_next(snat);"),
            (LrOutPostUndnat, format!("ip && flags.unsnat_new == 1{out}"), "next;"),
            (LrOutSnat, format!("ip{UNTRACKED} && flags.unsnat_new == 1{out}"), "ct_commit_to_zone(snat);"),
            (LrOutSnat, format!("ip && ct.new{out}"), "ct_commit_to_zone(snat);"),
        ] {
            ctx.flow(u, stage, 10, matches, actions);
        }
    }
}

/// The highest number of a port's network that flows can tell apart (`flags.network_id` has four bits).
const MOST_NETWORK_ID: usize = 15;

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
    if !router.lb_force_snat.router_ip {
        return;
    }
    for p in router.ports.iter().filter(|p| super::port::has_peer(ctx, p)).collect::<Vec<_>>() {
        let v4: Vec<IpAddr> = p.v4.iter().map(|n| n.addr.into()).collect();
        // The last one is the link-local one.
        let v6: Vec<IpAddr> = p.v6.iter().take(p.v6.len().saturating_sub(1)).map(|n| n.addr.into()).collect();
        for (f, all) in [("ip4", v4), ("ip6", v6)] {
            for (i, ip) in all.iter().enumerate() {
                ctx.flow(u, LrInUnsnat, 110, format!("inport == {} && {f}.dst == {ip}", p.json), "ct_snat;");
                if i == 0 {
                    let matches = format!("flags.force_snat_for_lb == 1 && {f} && outport == {}", p.json);
                    ctx.flow(u, LrOutSnat, 105, matches, format!("ct_snat({ip});"));
                }
                if i > MOST_NETWORK_ID {
                    let first = all.first().unwrap_or(ip);
                    ctx.problem(format!(
                        "Logical router port {} already has the max of {} networks configured, so for network \"{ip}\" \
                         the first IP [{first}] will be considered as SNAT for load balancer.",
                        p.json,
                        MOST_NETWORK_ID + 1
                    ));
                    continue;
                }
                let matches =
                    format!("flags.force_snat_for_lb == 1 && flags.network_id == {i} && {f} && outport == {}", p.json);
                ctx.flow(u, LrOutSnat, 110, matches, format!("ct_snat({ip});"));
            }
        }
    }
}
