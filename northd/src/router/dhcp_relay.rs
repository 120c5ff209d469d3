//! DHCP requests that a router hands on to a server (ovn-nb(5), table `DHCP_Relay`).

use crate::addresses::parse_net4;
use crate::context::Ctx;
use crate::facts::lrp::Lrp;
use crate::facts::lsp::{Kind, Lsp};
use crate::facts::switch::Switch;
use crate::input::Read;
use crate::stage::Stage::*;
use ovn_schema::nb;
use std::net::Ipv4Addr;

/// The server of a port, with the port's own address and network.
fn server(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> Option<(Ipv4Addr, Ipv4Addr, String)> {
    let relay = lrp.row.dhcp_relay.and_then(|r| ctx.nb::<nb::DhcpRelay>(r))?;
    let servers = relay.servers.as_ref()?;
    let Some(server) = parse_net4(servers.split_whitespace().next().unwrap_or_default()) else {
        ctx.problem(format!("DHCP relay of {}: \"{servers}\" is no IPv4 address", lrp.name));
        return None;
    };
    let own = lrp.v4.first()?;
    Some((server.addr, own.addr, format!("{}/{}", own.network(), own.plen)))
}

/// The flows of a router port.
pub fn lrp(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) {
    let Some((server, own, network)) = server(ctx, lrp) else { return };
    let u = lrp.router;
    let from = format!("inport == {} && ip4.src == {{0.0.0.0, {network}}} && ip4.dst == 255.255.255.255", lrp.json);
    let request = "udp.src == 68 && udp.dst == 67";
    let reply = "udp.src == 67 && udp.dst == 67";
    let check = format!("reg9[7] = dhcp_relay_req_chk({own}, {server});next; /* DHCP_RELAY_REQ */");
    ctx.flow(u, LrInIpInput, 110, format!("{from} && ip.frag == 0 && {request}"), check);
    let to_us = format!("ip4.src == {server} && ip4.dst == {own}");
    let matches = format!("{to_us} && ip.frag == 0 && {reply}");
    ctx.flow(u, LrInIpInput, 110, matches, "next; /* DHCP_RELAY_RESP */");
    let actions = format!("ip4.src = {own}; ip4.dst = {server}; udp.src = 67; next; /* DHCP_RELAY_REQ */");
    ctx.flow(u, LrInDhcpRelayReq, 100, format!("{from} && {request} && reg9[7]"), actions);
    let refuse = "drop; /* DHCP_RELAY_REQ */";
    ctx.flow(u, LrInDhcpRelayReq, 1, format!("{from} && {request} && reg9[7] == 0"), refuse);
    let check = format!("reg2 = ip4.dst; reg9[8] = dhcp_relay_resp_chk({own}, {server}); next; /* DHCP_RELAY_RESP */");
    ctx.flow(u, LrInDhcpRelayRespChk, 100, format!("{to_us} && {reply}"), check);
    let kept = format!("ip4.src == {server} && reg2 == {own} && {reply}");
    let actions = format!("ip4.src = {own}; udp.dst = 68; outport = {}; output; /* DHCP_RELAY_RESP */", lrp.json);
    ctx.flow(u, LrInDhcpRelayResp, 100, format!("{kept} && reg9[8]"), actions);
    ctx.flow(u, LrInDhcpRelayResp, 1, format!("{kept} && reg9[8] == 0"), "drop; /* DHCP_RELAY_RESP */");
}

/// The flows of a switch port whose requests go to the switch's relay port.
pub fn lsp(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let Some(name) = switch.config.get("dhcp_relay_port").filter(|_| lsp.kind == Kind::Vif) else { return };
    let Some(port) = ctx.read(Read::LspName(name.clone())).lsp_by_name(name).and_then(|p| ctx.lsp(p)) else { return };
    let Some(lrp) = port.lrp.and_then(|p| ctx.lrp(p)) else { return };
    let Some((_, _, network)) = server(ctx, lrp) else { return };
    for a in &lsp.addresses {
        let matches = format!(
            "inport == {} && eth.src == {} && ip4.src == {{0.0.0.0, {network}}} && ip4.dst == 255.255.255.255 && \
             udp.src == 68 && udp.dst == 67",
            lsp.json, a.mac
        );
        let actions = format!("eth.dst = {}; outport = {}; next; /* DHCP_RELAY_REQ */", lrp.mac, port.json);
        ctx.port_flow(lsp.switch, LsInL2Lkup, 100, matches, actions, &lsp.name);
    }
}
