//! DHCP requests that a router hands on to a server (ovn-nb(5), table `DHCP_Relay`).

use crate::addresses::{Net4, parse_endpoint};
use crate::context::Ctx;
use crate::facts::global::copp;
use crate::facts::lrp::Lrp;
use crate::facts::lsp::{Kind, Lsp};
use crate::facts::switch::Switch;
use crate::input::Read;
use crate::registers::*;
use crate::stage::Stage::*;
use ovn_schema::{Str, nb};
use std::net::{IpAddr, Ipv4Addr};

/// The server of a port, with the port's own address and network. The server's port does not count.
fn server(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> Option<(IpAddr, Ipv4Addr, String)> {
    let relay = lrp.row.dhcp_relay.and_then(|r| ctx.nb::<nb::DhcpRelay>(r))?;
    let servers = relay.servers.as_ref()?;
    let Some((server, _)) = parse_endpoint(servers) else {
        ctx.problem(format!("DHCP relay {}: servers \"{servers}\" is no ADDRESS or ADDRESS:PORT", relay.name));
        return None;
    };
    let own = own_address(ctx, lrp)?;
    Some((server, own.addr, format!("{}/{}", own.network(), own.plen)))
}

/// The address that a port relays with: `options:dhcpv4_primary_ip`, or the first.
fn own_address(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> Option<Net4> {
    let first = lrp.v4.first()?;
    let Some(wanted) = lrp.row.options.get("dhcpv4_primary_ip").filter(|w| !w.is_empty()) else { return Some(*first) };
    let address = wanted.parse::<Ipv4Addr>().ok();
    let found = lrp.v4.iter().find(|n| Some(n.addr) == address);
    if found.is_none() {
        ctx.problem(format!(
            "Logical_Router_Port {}: options:dhcpv4_primary_ip={wanted} does not match any address in 'networks'.",
            lrp.name
        ));
    }
    found.copied()
}

/// The switch port that relays for a switch, where that is so (`other_config:dhcp_relay_port`).
fn relay_port(switch: &Switch) -> Option<&Str> {
    switch.config.get("dhcp_relay_port")
}

/// The flows of a router port.
pub fn lrp(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) {
    let switch = lrp.switch_port.and_then(|p| ctx.lsp(p)).filter(|l| l.lrp.is_some()).map(|l| l.switch);
    if switch.and_then(|s| ctx.switch(s)).and_then(relay_port).is_none() {
        return;
    }
    let Some((server, own, network)) = server(ctx, lrp) else { return };
    let meter = ctx.router(lrp.router).map(|r| copp(&r.copp, "dhcpv4-relay", ctx.global())).unwrap_or_default();
    let u = lrp.router;
    let from = format!("inport == {} && ip4.src == {{0.0.0.0, {network}}} && ip4.dst == 255.255.255.255", lrp.json);
    let request = "udp.src == 68 && udp.dst == 67";
    let reply = "udp.src == 67 && udp.dst == 67";
    let check = format!("{REGBIT_DHCP_RELAY_REQ_CHK} = dhcp_relay_req_chk({own}, {server});next; /* DHCP_RELAY_REQ */");
    ctx.flow_with(u, LrInIpInput, 110, format!("{from} && ip.frag == 0 && {request}"), check, meter.clone());
    let to_us = format!("ip4.src == {server} && ip4.dst == {own}");
    let matches = format!("{to_us} && ip.frag == 0 && {reply}");
    ctx.flow(u, LrInIpInput, 110, matches, "next; /* DHCP_RELAY_RESP */");
    let actions = format!("ip4.src = {own}; ip4.dst = {server}; udp.src = 67; next; /* DHCP_RELAY_REQ */");
    ctx.flow(u, LrInDhcpRelayReq, 100, format!("{from} && {request} && {REGBIT_DHCP_RELAY_REQ_CHK}"), actions);
    let refuse = "drop; /* DHCP_RELAY_REQ */";
    ctx.flow(u, LrInDhcpRelayReq, 1, format!("{from} && {request} && {REGBIT_DHCP_RELAY_REQ_CHK} == 0"), refuse);
    let check = format!(
        "{REG_DHCP_RELAY_DIP_IPV4} = ip4.dst; {REGBIT_DHCP_RELAY_RESP_CHK} = dhcp_relay_resp_chk({own}, {server}); next; /* DHCP_RELAY_RESP */"
    );
    ctx.flow_with(u, LrInDhcpRelayRespChk, 100, format!("{to_us} && {reply}"), check, meter);
    let kept = format!("ip4.src == {server} && {REG_DHCP_RELAY_DIP_IPV4} == {own} && {reply}");
    let actions = format!("ip4.src = {own}; udp.dst = 68; outport = {}; output; /* DHCP_RELAY_RESP */", lrp.json);
    ctx.flow(u, LrInDhcpRelayResp, 100, format!("{kept} && {REGBIT_DHCP_RELAY_RESP_CHK}"), actions);
    ctx.flow(
        u,
        LrInDhcpRelayResp,
        1,
        format!("{kept} && {REGBIT_DHCP_RELAY_RESP_CHK} == 0"),
        "drop; /* DHCP_RELAY_RESP */",
    );
}

/// The flows of a switch port whose requests go to the switch's relay port.
pub fn lsp(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let Some(name) = relay_port(switch).filter(|_| lsp.kind == Kind::Vif) else { return };
    let Some(port) = ctx.read(Read::LspName(name.clone())).lsp_by_name(name).and_then(|p| ctx.lsp(p)) else { return };
    let Some(lrp) = port.lrp.and_then(|p| ctx.lrp(p)).filter(|l| l.switch_port == Some(port.uuid)) else { return };
    let Some((_, _, network)) = server(ctx, lrp) else { return };
    if let Some(a) = lsp.addresses.first() {
        let matches = format!(
            "inport == {} && eth.src == {} && ip4.src == {{0.0.0.0, {network}}} && ip4.dst == 255.255.255.255 && \
             udp.src == 68 && udp.dst == 67",
            lsp.json, a.mac
        );
        let actions = format!("eth.dst = {}; outport = {}; next; /* DHCP_RELAY_REQ */", lrp.mac, port.json);
        ctx.port_flow(lsp.switch, LsInL2Lkup, 100, matches, actions, &lsp.name);
    }
}
