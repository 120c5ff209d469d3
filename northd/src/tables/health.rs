//! Health checks of load balancers' backends and of switch ports, and what is known of their outcome.

use crate::context::Ctx;
use crate::facts::lb::{Backend, Lb, Mapping, Vip};
use crate::facts::lrp::Lrp;
use crate::facts::lsp::Lsp;
use crate::input::Read;
use crate::model::{Columns, RowKey};
use crate::stage::Stage::{LsInArpRsp, LsInL2Lkup};
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The columns by which monitors are told apart.
pub fn monitor_name(port: &str, ip: &str, number: i64, protocol: &str) -> String {
    format!("{port} {ip} {number} {protocol}")
}

/// The monitor of a service behind a port, of this zone or learned from another one.
pub fn find<'a>(
    ctx: &mut Ctx<'_, 'a>,
    port: &Str,
    ip: &str,
    number: i64,
    protocol: &str,
) -> Option<&'a Arc<sb::ServiceMonitor>> {
    let all: Vec<Uuid> = ctx.read(Read::Monitors(port.clone())).monitors(port);
    all.into_iter().find_map(|u| {
        ctx.sb::<sb::ServiceMonitor>(u)
            .filter(|r| &*r.ip == ip && r.port == number && r.protocol.as_deref() == Some(protocol))
    })
}

/// Whether a backend is known to work.
fn works(ctx: &mut Ctx<'_, '_>, lb: &Lb, backend: &Backend, mapping: &Mapping) -> bool {
    find(ctx, &mapping.port, &backend.address, backend.port.into(), &lb.protocol)
        .is_some_and(|m| m.status.as_deref().is_none_or(|s| s == "online"))
}

/// The backends of a virtual address that are in use, as the action lists them.
pub fn backends(ctx: &mut Ctx<'_, '_>, lb: &Lb, vip: &Vip) -> String {
    if vip.health_check.is_none() && !lb.distributed {
        return if vip.backends.is_empty() { String::new() } else { vip.backends_text.to_string() };
    }
    let mut usable = Vec::new();
    for b in &vip.backends {
        let Some(mapping) = &b.mapping else { continue };
        if vip.health_check.is_some() && !works(ctx, lb, b, mapping) {
            continue;
        }
        let endpoint = if vip.v6 { format!("[{}]:{}", b.address, b.port) } else { format!("{}:{}", b.address, b.port) };
        usable.push(if lb.distributed { format!("\"{}\":{endpoint}", mapping.port) } else { endpoint });
    }
    usable.join(",")
}

/// A switch port by name.
pub fn port_named<'a>(ctx: &mut Ctx<'_, 'a>, name: &Str) -> Option<&'a Lsp> {
    ctx.read(Read::LspName(name.clone())).lsp_by_name(name).and_then(|p| ctx.lsp(p))
}

/// The router port that a backend is checked from: one at the backend's switch that has the source address, of a router
/// that has the load balancer.
fn source_port<'a>(ctx: &mut Ctx<'_, 'a>, lb: &Lb, lsp: &Lsp, source: IpAddr) -> Option<&'a Lrp> {
    let switch = ctx.switch(lsp.switch)?;
    switch.router_ports.iter().find_map(|p| {
        let lrp = p.lrp.and_then(|l| ctx.lrp(l)).filter(|l| l.has(source))?;
        ctx.lb_use(lb.uuid).is_some_and(|used| used.routers.all.contains(&lrp.router)).then_some(lrp)
    })
}

/// The monitors of a load balancer, and the answers for the addresses that they check from.
pub fn load_balancer(ctx: &mut Ctx<'_, '_>, lb: &Lb) {
    for vip in &lb.vips {
        let Some(check) = vip.health_check.and_then(|h| ctx.nb::<nb::LoadBalancerHealthCheck>(h)) else { continue };
        for backend in &vip.backends {
            if let Some(mapping) = &backend.mapping {
                check_backend(ctx, lb, vip, backend, mapping, &check.options);
            }
        }
    }
}

fn check_backend(
    ctx: &mut Ctx<'_, '_>,
    lb: &Lb,
    vip: &Vip,
    backend: &Backend,
    mapping: &Mapping,
    options: &Map<Str, Str>,
) {
    let Some(source) = mapping.source else { return };
    let lsp = port_named(ctx, &mapping.port);
    let here = lsp.filter(|l| mapping.zone.is_none() && l.enabled());
    let lrp = here.and_then(|lsp| source_port(ctx, lb, lsp, source));
    match (lsp, lrp) {
        (Some(lsp), Some(lrp)) => answers_of(ctx, lb, vip, backend, lsp, lrp, source),
        (Some(lsp), None) => answer(&mut ctx.about(lb.uuid), lsp.switch, source),
        (None, _) => {}
    }
    if here.is_none() && mapping.zone.is_none() {
        return;
    }
    let mut options = options.clone();
    if let Some(zone) = &mapping.zone {
        options.insert("az-name".into(), zone.clone());
    }
    let src_mac = lrp.map_or_else(|| ctx.global().svc_monitor_mac(), |l| l.mac.to_string().into());
    let check = Check {
        ip: backend.address.clone(),
        number: backend.port.into(),
        protocol: lb.protocol.clone(),
        source: source.to_string().into(),
        src_mac,
        options,
        kind: "load-balancer",
        remote: mapping.zone.is_some(),
    };
    monitor(ctx, &mapping.port, here, check);
}

/// Sends the backends' answers to checks from a router port to the controller.
fn answers_of(ctx: &mut Ctx<'_, '_>, lb: &Lb, vip: &Vip, backend: &Backend, lsp: &Lsp, lrp: &Lrp, source: IpAddr) {
    let Some(switch) = ctx.switch(lsp.switch) else { return };
    let Some(name) = backend.mapping.as_ref().map(|m| &m.port) else { return };
    let f = vip.family();
    let what = match (&*lb.protocol, &backend.port_text) {
        ("tcp", Some(port)) => format!("tcp.src == {port}"),
        ("tcp", None) => return,
        _ if vip.v6 => "icmp6.type == 1".to_string(),
        _ => "icmp4.type == 3".to_string(),
    };
    let matches = format!(
        "inport == \"{name}\" && {f}.dst == {source} && {f}.src == {} && eth.dst == {} && {what}",
        backend.address, lrp.mac
    );
    let extra = crate::facts::global::copp(&switch.copp, "svc-monitor", ctx.global());
    ctx.flow_with(switch.uuid, LsInL2Lkup, 110, matches, "handle_svc_check(inport);", extra);
}

/// The monitors of a switch port, and the answers for what other zones check it from.
pub fn port(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) {
    for u in ctx.read(Read::Monitors(lsp.name.clone())).monitors(&lsp.name) {
        let learned = ctx.sb::<sb::ServiceMonitor>(u).filter(|m| m.ic_learned);
        if let Some(source) = learned.and_then(|m| m.src_ip.parse::<IpAddr>().ok()) {
            answer(ctx, lsp.switch, source);
        }
    }
    // Of checks that differ in where they come from alone, the last one counts, as in OVN.
    let mut seen = BTreeSet::new();
    for h in lsp.row.health_checks.iter().rev() {
        let Some(row) = ctx.nb::<nb::LogicalSwitchPortHealthCheck>(*h) else { continue };
        let Ok(source) = row.src_ip.parse::<IpAddr>() else {
            ctx.problem(format!("health check of port {}: src_ip \"{}\" is no address", lsp.name, row.src_ip));
            continue;
        };
        let own: Vec<IpAddr> = lsp
            .addresses
            .iter()
            .flat_map(|a| {
                let v4 = a.v4.iter().map(|n| IpAddr::from(n.addr));
                v4.chain(a.v6.iter().map(|n| IpAddr::from(n.addr)))
            })
            .collect();
        if !row.address.parse().is_ok_and(|ip| own.contains(&ip)) {
            continue;
        }
        answer(ctx, lsp.switch, source);
        if !lsp.enabled() {
            continue;
        }
        let check = Check {
            ip: row.address.clone(),
            number: row.port,
            protocol: row.protocol.clone(),
            source: row.src_ip.clone(),
            src_mac: ctx.global().svc_monitor_mac(),
            options: row.options.clone(),
            kind: "logical-switch-port",
            remote: false,
        };
        let present = find(ctx, &lsp.name, &row.address, row.port, &row.protocol);
        if let Some(status) = present.filter(|m| m.src_ip == row.src_ip).and_then(|m| m.status.clone()) {
            let columns = Columns::new().data("status", &Some(status));
            ctx.nb_columns(nb::TableId::LogicalSwitchPortHealthCheck, *h, columns);
        }
        if seen.insert((&row.address, row.port, &row.protocol)) {
            monitor(ctx, &lsp.name, Some(lsp), check);
        }
    }
}

/// The columns of a service monitor that do not follow from its port.
struct Check {
    ip: Str,
    number: i64,
    protocol: Str,
    source: Str,
    src_mac: Str,
    options: Map<Str, Str>,
    kind: &'static str,
    remote: bool,
}

/// Whether a port is up, and the chassis that it is on.
pub fn place(ctx: &mut Ctx<'_, '_>, port: &Str) -> (bool, Option<Str>) {
    let Some((u, binding)) = ctx.read(Read::Binding(port.clone())).binding(port) else { return (false, None) };
    ctx.read(Read::Sb(u));
    let chassis = binding.chassis.and_then(|c| ctx.sb::<sb::Chassis>(c)).map(|c| c.name.clone());
    (binding.up == Some(true), chassis)
}

fn monitor(ctx: &mut Ctx<'_, '_>, port: &Str, lsp: Option<&Lsp>, check: Check) {
    let name = monitor_name(port, &check.ip, check.number, &check.protocol);
    let mut columns = Columns::new()
        .data("logical_port", port)
        .data("ip", &check.ip)
        .data("port", &check.number)
        .data("protocol", &Some(check.protocol.clone()))
        .data("src_ip", &check.source)
        .data("src_mac", &check.src_mac)
        .data("options", &check.options)
        .data("ic_learned", &false)
        .data("type", &Some(Str::from(check.kind)));
    if check.remote {
        columns = columns.data("remote", &true);
    }
    if lsp.is_some() {
        let present = find(ctx, port, &check.ip, check.number, &check.protocol);
        let (up, chassis) = place(ctx, port);
        if !up && present.is_some_and(|m| m.status.as_deref() == Some("online")) {
            columns = columns.data("status", &Some(Str::from("offline")));
        }
        if let Some(chassis) = chassis {
            columns = columns.data("chassis_name", &chassis);
        }
    }
    ctx.row(RowKey::new(sb::TableId::ServiceMonitor, name), columns);
}

/// The monitor of a network function: it is checked through its outer port.
pub fn network_function(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::NetworkFunction>(uuid) else { return };
    let Some(check) = row.health_check.and_then(|h| ctx.nb::<nb::NetworkFunctionHealthCheck>(h)) else { return };
    let options = &ctx.global().options;
    let (Some(source), Some(target)) = (options.get("svc_monitor_ip"), options.get("svc_monitor_ip_dst")) else {
        ctx.problem(format!(
            "network function {}: it cannot be checked; set options:svc_monitor_ip and svc_monitor_ip_dst in NB_Global",
            row.name
        ));
        return;
    };
    let inner = ctx.nb::<nb::LogicalSwitchPort>(row.inport).map(|p| p.name.clone());
    let outer = row.outport.and_then(|p| ctx.nb::<nb::LogicalSwitchPort>(p)).map(|p| p.name.clone());
    let (Some(inner), Some(outer)) = (inner, outer) else {
        ctx.problem(format!("network function {}: a health check needs inport and outport", row.name));
        return;
    };
    let (source, target) = (source.clone(), target.clone());
    let target_mac = options.get("svc_monitor_mac_dst").cloned().unwrap_or_default();
    let present = find(ctx, &outer, &target, 0, "icmp").and_then(|m| m.status.clone());
    let mut columns = Columns::new()
        .data("logical_port", &outer)
        .data("logical_input_port", &inner)
        .data("ip", &target)
        .data("port", &0)
        .data("protocol", &Some(Str::from("icmp")))
        .data("src_ip", &source)
        .data("src_mac", &ctx.global().svc_monitor_mac())
        .data("mac", &target_mac)
        .data("options", &check.options)
        .data("ic_learned", &false)
        .data("type", &Some(Str::from("network-function")));
    let (outer_place, inner_place) = (place(ctx, &outer), place(ctx, &inner));
    let together = outer_place.1.is_some() && outer_place.1 == inner_place.1;
    if !(together && outer_place.0 && inner_place.0) && present.as_deref() == Some("online") {
        columns = columns.data("status", &Some(Str::from("offline")));
    }
    if let Some(chassis) = outer_place.1.filter(|_| together) {
        columns = columns.data("chassis_name", &chassis);
    }
    ctx.row(RowKey::new(sb::TableId::ServiceMonitor, monitor_name(&outer, &target, 0, "icmp")), columns);
}

/// ARP and ND replies for the address that checks come from.
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
