//! Answers to ARP requests and neighbour solicitations for the addresses of ports.

use crate::addresses::{Mac, PortAddresses, parse_net, solicited_node};
use crate::context::Ctx;
use crate::facts::global::copp;
use crate::facts::lsp::{Kind, Lsp, proxied};
use crate::facts::switch::Switch;
use crate::registers::*;
use crate::stage::Stage::LsInArpRsp;
use const_format::formatcp;
use std::net::IpAddr;

/// The actions that answer an ARP request.
pub fn reply(mac: impl std::fmt::Display, ip: impl std::fmt::Display) -> String {
    format!(
        "eth.dst = eth.src; eth.src = {mac}; arp.op = 2; /* ARP reply */ arp.tha = arp.sha; arp.sha = {mac}; \
         arp.tpa = arp.spa; arp.spa = {ip}; outport = inport; flags.loopback = 1; output;"
    )
}

/// The flows of a port.
pub fn run(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    if lsp.kind == Kind::Virtual {
        virtual_port(ctx, lsp);
        return;
    }
    if lsp.kind == Kind::Vtep {
        let actions = "flags.loopback = 1; next;";
        ctx.about_none().flow(
            lsp.switch,
            LsInArpRsp,
            65535,
            formatcp!("{REGBIT_FROM_RAMP} == 1 && (arp || nd_ns)"),
            actions,
        );
    }
    let down = lsp.down && !matches!(lsp.kind, Kind::Router | Kind::Localport);
    let silent = lsp.kind == Kind::Vif && lsp.option("disable_arp_nd_rsp");
    if down || lsp.unknown || silent || switch.vlan_passthru || lsp.kind == Kind::External {
        return;
    }
    if proxied(lsp) {
        proxy(ctx, lsp, switch);
    }
    let at = if switch.localnets.is_empty() {
        String::new()
    } else {
        format!(" && ((flags.localnet == 1 && is_chassis_resident({})) || flags.localnet == 0)", lsp.json)
    };
    for a in &lsp.addresses {
        answer(ctx, lsp, switch, a, &at);
        if switch.arp_proxy {
            leave(ctx, lsp, switch, a);
        }
    }
}

/// What is asked of a port itself goes to it, not to the router that answers for the network.
fn leave(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch, a: &PortAddresses) {
    for n in &a.v4 {
        let matches = format!("arp.tpa == {} && arp.op == 1 && eth.dst == {}", n.addr, a.mac);
        ctx.flow(lsp.switch, LsInArpRsp, 50, matches, "next;");
    }
    for n in &a.v6 {
        let matches = format!("nd_ns && ip6.dst == {0} && nd.target == {0}", n.addr);
        let extra = copp(&switch.copp, "nd-na", ctx.global());
        ctx.flow_with(lsp.switch, LsInArpRsp, 50, matches, "next;", extra);
    }
}

fn answer(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch, a: &PortAddresses, at: &str) {
    let u = lsp.switch;
    for n in &a.v4 {
        let request = format!("arp.tpa == {} && arp.op == 1 && eth.dst == ff:ff:ff:ff:ff:ff", n.addr);
        let own = format!("{request} && inport == {}", lsp.json);
        ctx.flow(u, LsInArpRsp, 50, format!("{request}{at}"), reply(a.mac, n.addr));
        ctx.port_flow(u, LsInArpRsp, 100, own, "next;", &lsp.name);
    }
    let reply = if lsp.kind == Kind::Router { "nd_na_router" } else { "nd_na" };
    for n in &a.v6 {
        let ip = n.addr;
        let request = format!("nd_ns_mcast && ip6.dst == {} && nd.target == {ip}", solicited_node(ip));
        let own = format!("{request} && inport == {}", lsp.json);
        let actions = format!(
            "{reply} {{ eth.src = {0}; ip6.src = {ip}; nd.target = {ip}; nd.tll = {0}; outport = inport; \
             flags.loopback = 1; output; }};",
            a.mac
        );
        let extra = copp(&switch.copp, "nd-na", ctx.global());
        ctx.flow_with(u, LsInArpRsp, 50, format!("{request}{at}"), actions, extra);
        ctx.port_flow(u, LsInArpRsp, 100, own, "next;", &lsp.name);
    }
}

/// An address that moves: whoever announces it has it.
fn virtual_port(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) {
    let options = &lsp.row.options;
    let (Some(text), Some(parents)) = (options.get("virtual-ip"), options.get("virtual-parents")) else { return };
    let Ok(ip) = text.parse::<IpAddr>() else {
        ctx.problem(format!("logical switch port {}: virtual-ip \"{text}\" is no address", lsp.name));
        return;
    };
    for parent in parents.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let known = ctx.read(crate::input::Read::LspName(parent.into())).lsp_by_name(parent);
        let Some(parent) = known.and_then(|p| ctx.lsp(p)).filter(|p| p.switch == lsp.switch) else { continue };
        let ctx = &mut ctx.about(parent.uuid);
        let p = &parent.json;
        let matches = match ip {
            IpAddr::V4(ip) => format!(
                "inport == {p} && ((arp.op == 1 && arp.spa == {ip} && arp.tpa == {ip}) || \
                 (arp.op == 2 && arp.spa == {ip}))"
            ),
            // Written as given.
            IpAddr::V6(ip) => format!(
                "inport == {p} && ((nd_ns && ip6.dst == {{{text}, {}}} && nd.target == {text}) ||\
                 (nd_na && nd.target == {text}))",
                solicited_node(ip)
            ),
        };
        let actions = format!("bind_vport({}, inport); next;", lsp.json);
        ctx.port_flow(lsp.switch, LsInArpRsp, 100, matches, actions, &parent.name);
    }
}

/// The Ethernet address of its own that a port answers for networks with (`arp_proxy`).
pub fn proxy_mac(lsp: &Lsp) -> Option<Mac> {
    lsp.row.options.get("arp_proxy").filter(|_| proxied(lsp))?.split_whitespace().next()?.parse().ok()
}

/// `arp_proxy`: networks that a router answers for, with a MAC of their own or the router's.
fn proxy(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let Some(text) = lsp.row.options.get("arp_proxy") else { return };
    let Some(lrp) = lsp.lrp.and_then(|p| ctx.lrp(p)) else { return };
    let mut words = text.split_whitespace().peekable();
    let own = words.peek().and_then(|w| w.parse::<Mac>().ok());
    if own.is_some() {
        words.next();
    }
    let mac = own.unwrap_or(lrp.mac);
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for word in words {
        match parse_net(word) {
            Some((IpAddr::V4(addr), plen)) => v4.push(crate::addresses::Net4 { addr, plen }),
            Some((IpAddr::V6(addr), plen)) => v6.push(crate::addresses::Net6 { addr, plen }),
            None => {
                ctx.problem(format!("logical switch port {}: \"{word}\" in arp_proxy is no network", lsp.name));
                return;
            }
        }
    }
    if !v4.is_empty() {
        let list: Vec<String> = v4.iter().map(|n| format!("{}/{}", n.addr, n.plen)).collect();
        let matches = format!("{REGBIT_FROM_ROUTER_PORT} == 0 && arp.op == 1 && arp.tpa == {{{}}}", list.join(","));
        let actions = format!(
            "eth.dst = eth.src; eth.src = {mac}; arp.op = 2; /* ARP reply */ arp.tha = arp.sha; arp.sha = {mac}; \
             arp.tpa <-> arp.spa; outport = inport; flags.loopback = 1; output;"
        );
        ctx.flow(lsp.switch, LsInArpRsp, 30, matches, actions);
    }
    if !v6.is_empty() {
        let list: Vec<String> = v6.iter().map(|n| format!("{}/{}", n.addr, n.plen)).collect();
        let nodes: Vec<String> =
            v6.iter().map(|n| format!("{0}/{1}, {2}/{1}", n.addr, n.plen, solicited_node(n.addr))).collect();
        let matches = format!(
            "{REGBIT_FROM_ROUTER_PORT} == 0 && nd_ns && ip6.dst == {{ {} }} && nd.target == {{ {} }}",
            nodes.join(", "),
            list.join(", ")
        );
        let actions = format!(
            "nd_na_router {{ eth.src = {mac}; ip6.src = nd.target; nd.target = nd.target; nd.tll = {mac}; \
             outport = inport; flags.loopback = 1; output; }};"
        );
        let extra = copp(&switch.copp, "nd-na", ctx.global());
        ctx.flow_with(lsp.switch, LsInArpRsp, 30, matches, actions, extra);
    }
}
