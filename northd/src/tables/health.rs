//! Health checks of load balancers' backends and of switch ports, and what is known of their outcome.

use crate::context::Ctx;
use crate::facts::lb::{Lb, Vip};
use crate::facts::lsp::Lsp;
use crate::input::Read;
use crate::model::{Columns, RowKey};
use crate::stage::Stage::LsInArpRsp;
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::net::IpAddr;

/// What tells a monitor apart.
pub fn monitor_name(port: &str, ip: &str, number: i64, protocol: &str) -> String {
    format!("{port} {ip} {number} {protocol}")
}

/// The port and the source address of checks of a backend (`ip_port_mappings`).
fn mapping(lb: &Lb, ip: IpAddr) -> Option<(Str, IpAddr)> {
    let text =
        lb.row.ip_port_mappings.iter().find(|(k, _)| k.trim_matches(['[', ']']).parse() == Ok(ip)).map(|(_, v)| v)?;
    let (port, source) = text.split_once(':')?;
    let source = source.split(':').next().filter(|_| !source.contains('[')).unwrap_or(source);
    let source = text.split_once('[').map_or(source, |(_, s)| s.trim_end_matches(']'));
    Some((port.into(), source.parse().ok()?))
}

/// The backends of a virtual address that are not known to be out of service.
pub fn backends(ctx: &mut Ctx<'_, '_>, lb: &Lb, vip: &Vip) -> Vec<(IpAddr, u16)> {
    if vip.health_check.is_none() {
        return vip.backends.clone();
    }
    let mut usable = Vec::new();
    for u in ctx.sb_table::<sb::ServiceMonitor>() {
        let Some(row) = ctx.sb::<sb::ServiceMonitor>(u) else { continue };
        if !matches!(row.status.as_deref(), Some("offline" | "error"))
            && row.protocol.as_deref().unwrap_or("tcp") == &*lb.protocol
            && let Ok(ip) = row.ip.parse::<IpAddr>()
        {
            usable.push((ip, row.port));
        }
    }
    vip.backends.iter().copied().filter(|(ip, port)| usable.contains(&(*ip, i64::from(*port)))).collect()
}

/// The monitors of a load balancer, and the answers for the addresses that they check from.
pub fn load_balancer(ctx: &mut Ctx<'_, '_>, lb: &Lb) {
    for vip in &lb.vips {
        let Some(check) = vip.health_check.and_then(|h| ctx.nb::<nb::LoadBalancerHealthCheck>(h)) else { continue };
        for (ip, number) in &vip.backends {
            let Some((port, source)) = mapping(lb, *ip) else { continue };
            let Some(lsp) = ctx.read(Read::LspName(port.clone())).lsp_by_name(&port).and_then(|p| ctx.lsp(p)) else {
                continue;
            };
            answer(ctx, lsp.switch, source);
            let check = Check {
                ip: ip.to_string().into(),
                number: (*number).into(),
                protocol: lb.protocol.clone(),
                source,
                options: check.options.clone(),
                kind: "load-balancer",
            };
            monitor(ctx, lsp, check);
        }
    }
}

/// The monitors of a switch port.
pub fn port(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) {
    for h in &lsp.row.health_checks {
        let Some(row) = ctx.nb::<nb::LogicalSwitchPortHealthCheck>(*h) else { continue };
        let Ok(source) = row.src_ip.parse::<IpAddr>() else {
            ctx.problem(format!("health check of port {}: src_ip \"{}\" is no address", lsp.name, row.src_ip));
            continue;
        };
        answer(ctx, lsp.switch, source);
        let own = lsp.addresses.iter().flat_map(|a| {
            let v4 = a.v4.iter().map(|n| n.addr.to_string());
            v4.chain(a.v6.iter().map(|n| n.addr.to_string()))
        });
        let checked: Vec<Str> =
            if row.address.is_empty() { own.map(Str::from).collect() } else { vec![row.address.clone()] };
        for ip in checked {
            let check = Check {
                ip,
                number: row.port,
                protocol: row.protocol.clone(),
                source,
                options: row.options.clone(),
                kind: "logical-switch-port",
            };
            monitor(ctx, lsp, check);
        }
    }
}

/// One check.
struct Check {
    ip: Str,
    number: i64,
    protocol: Str,
    source: IpAddr,
    options: Map<Str, Str>,
    kind: &'static str,
}

fn monitor(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, check: Check) {
    let binding = ctx.read(Read::Binding(lsp.name.clone())).binding(&lsp.name);
    if let Some((u, _)) = binding {
        ctx.read(Read::Sb(u));
    }
    let chassis = binding.and_then(|(_, b)| b.chassis).and_then(|c| ctx.sb::<sb::Chassis>(c));
    let key =
        RowKey::new(sb::TableId::ServiceMonitor, monitor_name(&lsp.name, &check.ip, check.number, &check.protocol));
    let columns = Columns::new()
        .data("logical_port", &lsp.name)
        .data("ip", &check.ip)
        .data("port", &check.number)
        .data("protocol", &Some(check.protocol))
        .data("src_ip", &Str::from(check.source.to_string()))
        .data("src_mac", &ctx.global().svc_monitor_mac())
        .data("options", &check.options)
        .data("chassis_name", &chassis.map(|c| c.name.clone()).unwrap_or_default())
        .data("type", &Some(Str::from(check.kind)));
    ctx.row(key, columns);
}

/// The address that checks come from is answered for.
fn answer(ctx: &mut Ctx<'_, '_>, switch: Uuid, source: IpAddr) {
    let mac = ctx.global().svc_monitor_mac();
    match source {
        IpAddr::V4(ip) => {
            let matches = format!("arp.tpa == {ip} && arp.op == 1");
            ctx.flow(switch, LsInArpRsp, 110, matches, crate::switch::arp::reply(&*mac, ip));
        }
        IpAddr::V6(ip) => {
            let actions = format!(
                "nd_na {{ eth.dst = eth.src; eth.src = {mac}; ip6.src = {ip}; nd.target = {ip}; nd.tll = {mac}; \
                 outport = inport; flags.loopback = 1; output; }};"
            );
            ctx.flow(switch, LsInArpRsp, 110, format!("nd_ns && nd.target == {ip}"), actions);
        }
    }
}
