//! DHCP replies, and keeping external ports to the chassis that serves them.

use super::ALLOW;
use crate::addresses::{Mac, quoted, solicited_node};
use crate::context::Ctx;
use crate::facts::global::copp;
use crate::facts::lsp::{Kind, Lsp};
use crate::facts::switch::Switch;
use crate::model::FlowExtra;
use crate::registers::*;
use crate::stage::Stage::*;
use crate::tables::dhcp;
use ovn_schema::{Str, nb};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The flows of a port.
pub fn run(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let served = lsp.enabled() && lsp.kind != Kind::Router && !switch.config.contains_key("dhcp_relay_port");
    if lsp.kind == Kind::External {
        for localnet in &switch.localnets {
            let inport = (localnet.clone(), quoted(localnet));
            if served && lsp.row.ha_chassis_group.is_some() {
                offers(ctx, lsp, switch, &inport, true);
            }
            external(ctx, lsp, switch, &inport);
        }
    } else if served {
        offers(ctx, lsp, switch, &(lsp.name.clone(), lsp.json.to_string()), false);
    }
}

fn offers(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch, inport: &(Str, String), external: bool) {
    let resident = if external { format!(" && is_chassis_resident({})", lsp.json) } else { String::new() };
    for a in &lsp.addresses {
        let client = Client { lsp, switch, inport, resident: &resident, mac: a.mac };
        // One address of each kind is offered: the first that options are for.
        let _ = a.v4.iter().any(|n| client.offer_v4(ctx, n.addr));
        let _ = a.v6.iter().any(|n| client.offer_v6(ctx, n.addr));
    }
}

/// A machine that asks, and where.
struct Client<'a> {
    lsp: &'a Lsp,
    switch: &'a Switch,
    /// The port that its packets come by, and that in a match.
    inport: &'a (Str, String),
    /// The part of each match that says who answers; empty: the chassis of the port.
    resident: &'a str,
    mac: Mac,
}

impl Client<'_> {
    /// Flows by which its chassis answers with this address; false if there are no options for it.
    fn offer_v4(&self, ctx: &mut Ctx<'_, '_>, offer: Ipv4Addr) -> bool {
        let Client { lsp, switch, inport, resident, mac } = *self;
        let Some(of) = lsp.row.dhcpv4_options else { return false };
        let Some(row) = ctx.nb::<nb::DhcpOptions>(of) else { return false };
        let ctx = &mut ctx.about(of);
        let Some(cidr) = crate::addresses::parse_net4(&row.cidr) else { return false };
        if !cidr.contains(offer) {
            return false;
        }
        let mut options = row.options.clone();
        // Written as given: OVN does not put it in another form.
        let (Some(server), Some(server_mac), true) = (
            options.get("server_id").and_then(|s| s.parse::<Ipv4Addr>().ok()),
            options.remove("server_mac").filter(|s| s.parse::<Mac>().is_ok()),
            options.contains_key("lease_time"),
        ) else {
            ctx.problem(format!(
                "DHCP options {} of port {}: server_id, server_mac and lease_time are required",
                row.cidr, lsp.name
            ));
            return false;
        };
        options.insert("netmask".into(), cidr.mask().to_string().into());
        if let Some(name) = lsp.row.options.get("hostname") {
            options.insert("hostname".into(), name.clone());
        }
        let mut actions = format!("{REGBIT_DHCP_OPTS_RESULT} = put_dhcp_opts(offerip = {offer}");
        let asked = row.options.get_key_value("netmask");
        for (name, value) in &options {
            actions.push_str(&format!(", {name} = {value}"));
            // A mask of its own stands behind that of the network.
            if let Some((name, value)) = asked.filter(|(n, _)| *n == name) {
                actions.push_str(&format!(", {name} = {value}"));
            }
            if dhcp::v4_type(name).is_none() {
                ctx.problem(format!(
                    "DHCP options {}: \"{name}\" is no known option; no chassis answers with it",
                    row.cidr
                ));
            }
        }
        actions.push_str("); next;");
        let from = format!("inport == {} && eth.src == {mac}", inport.1);
        let ports = "udp.src == 68 && udp.dst == 67";
        let addresses = format!("(ip4.src == {{{offer}, 0.0.0.0}} && ip4.dst == {{{server}, 255.255.255.255}})");
        let e = extra(ctx, &inport.0, switch, "dhcpv4-opts");
        ctx.flow_with(
            lsp.switch,
            LsInDhcpOptions,
            100,
            format!("{from} && {addresses} && {ports}{resident}"),
            actions,
            e,
        );
        let reply = format!(
            "eth.dst = eth.src; eth.src = {server_mac}; ip4.src = {server}; udp.src = 67; udp.dst = 68; \
             outport = inport; flags.loopback = 1; output;"
        );
        let matches = format!("{from} && ip4 && {ports} && {REGBIT_DHCP_OPTS_RESULT}{resident}");
        ctx.port_flow(lsp.switch, LsInDhcpResponse, 100, matches, reply, &inport.0);
        if !resident.is_empty() {
            return true;
        }
        let matches = format!(
            "outport == {} && eth.src == {server_mac} && ip4.src == {server} && udp && udp.src == 67 && udp.dst == 68",
            lsp.json
        );
        ctx.port_flow(lsp.switch, LsOutAclEval, 34000, matches, ALLOW, &lsp.name);
        true
    }

    /// Flows by which its chassis answers with this address; false if there are no options for it.
    fn offer_v6(&self, ctx: &mut Ctx<'_, '_>, offer: Ipv6Addr) -> bool {
        let Client { lsp, switch, inport, resident, mac } = *self;
        let Some(of) = lsp.row.dhcpv6_options else { return false };
        let Some(row) = ctx.nb::<nb::DhcpOptions>(of) else { return false };
        let ctx = &mut ctx.about(of);
        let Some(cidr) = crate::addresses::parse_net6(&row.cidr) else { return false };
        if !cidr.contains(offer) {
            return false;
        }
        let mut options = row.options.clone();
        let id = options.get("server_id").cloned().unwrap_or_default();
        let Ok(server) = id.parse::<Mac>().map(|mac| mac.link_local()) else {
            ctx.problem(format!(
                "DHCP options {} of port {}: server_id must be an Ethernet address",
                row.cidr, lsp.name
            ));
            return false;
        };
        let server_mac = id;
        let stateless = options.remove("dhcpv6_stateless").is_some_and(|v| ovn_schema::options::is_on(&v, false));
        let mut list = Vec::new();
        if !stateless {
            list.push(format!("ia_addr = {offer}"));
        }
        for (name, value) in &options {
            match dhcp::v6_type(name) {
                Some(_) => list.push(format!("{name} = {value}")),
                None => ctx.problem(format!("DHCP options {}: \"{name}\" is no known option", row.cidr)),
            }
        }
        let actions = format!("{REGBIT_DHCP_OPTS_RESULT} = put_dhcpv6_opts({}); next;", list.join(", "));
        let matches = format!(
            "inport == {} && eth.src == {mac} && ip6.mcast && ip6.dst == ff02::1:2 && udp.src == 546 && \
             udp.dst == 547{resident}",
            inport.1
        );
        let e = extra(ctx, &inport.0, switch, "dhcpv6-opts");
        ctx.flow_with(lsp.switch, LsInDhcpOptions, 100, matches.as_str(), actions, e);
        let reply = format!(
            "eth.dst = eth.src; eth.src = {server_mac}; ip6.dst = ip6.src; ip6.src = {server}; udp.src = 547; \
             udp.dst = 546; outport = inport; flags.loopback = 1; output;"
        );
        ctx.port_flow(
            lsp.switch,
            LsInDhcpResponse,
            100,
            format!("{matches} && {REGBIT_DHCP_OPTS_RESULT}"),
            reply,
            &inport.0,
        );
        if !resident.is_empty() {
            return true;
        }
        let matches = format!(
            "outport == {} && eth.src == {server_mac} && ip6.src == {server} && udp && udp.src == 547 && \
             udp.dst == 546",
            lsp.json
        );
        ctx.port_flow(lsp.switch, LsOutAclEval, 34000, matches, ALLOW, &lsp.name);
        true
    }
}

fn extra(ctx: &mut Ctx<'_, '_>, port: &Str, switch: &Switch, protocol: &str) -> FlowExtra {
    let mut extra = copp(&switch.copp, protocol, ctx.global());
    extra.port = Some(port.clone());
    extra
}

/// Only the chassis that serves an external port answers for the routers.
fn external(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch, localnet: &(Str, String)) {
    let drop = ctx.global().drop.clone();
    let described =
        |text| FlowExtra { description: Some(text), port: Some(localnet.0.clone()), ..FlowExtra::default() };
    for a in &lsp.addresses {
        for r in &switch.router_ports {
            let Some(rp) = ctx.lsp(r.lsp).filter(|p| p.lrp.is_some()) else { continue };
            for router in &rp.addresses {
                let from = format!("inport == {} && eth.src == {}", localnet.1, a.mac);
                let away = format!("!is_chassis_resident({})", lsp.json);
                for n in &router.v4 {
                    let matches = format!("{from} && {away} && arp.tpa == {} && arp.op == 1", n.addr);
                    let text = described("Drop ARP for unknown router ports");
                    ctx.flow_with(switch.uuid, LsInExternalPort, 100, matches, &*drop, text);
                }
                for n in &router.v6 {
                    let matches = format!(
                        "{from} && {away} && nd_ns && ip6.dst == {{{0}, {1}}} && nd.target == {0}",
                        n.addr,
                        solicited_node(n.addr)
                    );
                    let text = described("Drop ND for unbound router ports");
                    ctx.flow_with(switch.uuid, LsInExternalPort, 100, matches, &*drop, text);
                }
                let matches = format!("{from} && eth.dst == {} && {away}", router.mac);
                let text = described("Packet does not come from a chassis resident");
                ctx.flow_with(switch.uuid, LsInExternalPort, 100, matches, &*drop, text);
            }
        }
    }
}
