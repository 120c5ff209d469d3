//! Routing protocols of a router port's addresses that a daemon behind a switch port speaks
//! (`options:routing-protocol-redirect`, `options:routing-protocols`).

use crate::addresses::quoted;
use crate::context::Ctx;
use crate::facts::lrp::Lrp;
use crate::input::Read;
use crate::registers::*;
use crate::stage::Stage::*;
use const_format::formatcp;
use ovn_schema::Uuid;

/// The flows of a router port, in the switch at its other end.
pub fn redirect(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) {
    let Some(name) = lrp.row.options.get("routing-protocol-redirect").filter(|_| lrp.row.peer.is_none()) else {
        return;
    };
    let Some(up) = lrp.switch_port.and_then(|p| ctx.lsp(p)).filter(|p| p.lrp.is_some()) else { return };
    let daemon = ctx.read(Read::LspName(name.clone())).lsp_by_name(name).and_then(|p| ctx.lsp(p));
    if daemon.is_none_or(|d| d.switch != up.switch) {
        ctx.problem(format!(
            "logical router port {}: its switch has no port {name}, which options:routing-protocol-redirect names",
            lrp.name
        ));
        return;
    }
    let asked = lrp.row.options.get("routing-protocols").map_or("", |p| p);
    let speaks = |protocol: &str| asked.split(',').any(|p| p == protocol);
    let (bgp, bfd) = (speaks("BGP"), speaks("BFD"));
    if !bgp && !bfd {
        ctx.problem(format!(
            "logical router port {}: options:routing-protocols has neither BGP nor BFD, so nothing is redirected",
            lrp.name
        ));
        return;
    }
    let (u, daemon) = (up.switch, quoted(name));
    let ctx = &mut ctx.about_none();
    let both = format!("clone {{ outport = {daemon}; output; }}; outport = {}; output;", up.json);
    let only = format!("outport = {daemon}; output;");
    let to_bfd = if super::input::has_bfd(ctx, lrp) { both.as_str() } else { &only };
    let v4 = lrp.v4.iter().map(|n| ("ip4", n.addr.to_string()));
    for (f, own) in v4.chain(lrp.v6.iter().map(|n| ("ip6", n.addr.to_string()))) {
        let to = format!("{f}.dst == {own}");
        if bgp {
            port(ctx, u, &to, "tcp", 179, &only);
        }
        if bfd {
            port(ctx, u, &to, "udp", 3784, to_bfd);
        }
        let answers = if f == "ip4" { format!("arp.op == 2 && arp.tpa == {own}") } else { format!("{to} && nd_na") };
        ctx.flow(u, LsInL2Lkup, 100, answers, both.as_str());
    }
    // The daemon has the router port's addresses, and the router answers for these.
    for answer in ["arp.op == 2", "nd_na", "nd_ra"] {
        let matches = format!("inport == {daemon} && {answer}");
        ctx.flow(u, LsInCheckPortSec, 80, matches, formatcp!("{REGBIT_PORT_SEC_DROP} = 1; next;"));
    }
}

/// What is for a protocol's port, and what comes from it.
fn port(ctx: &mut Ctx<'_, '_>, switch: Uuid, to: &str, protocol: &str, port: u16, actions: &str) {
    for side in ["dst", "src"] {
        ctx.flow(switch, LsInL2Lkup, 100, format!("{to} && {protocol}.{side} == {port}"), actions);
    }
}
