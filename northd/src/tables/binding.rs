//! `Port_Binding`: one row a port, and one `cr-PORT` for the gateway chassis of a distributed gateway port.

use crate::addresses::PortAddresses;
use crate::context::{Ctx, flag, flag_or};
use crate::facts::lrp::Lrp;
use crate::facts::lsp::{Kind, Lsp};
use crate::facts::nat;
use crate::facts::router::Router;
use crate::input::Read;
use crate::model::{Columns, RowKey};
use ovn_schema::{Map, Set, Str, Uuid, nb, sb};
use ovsdb_rs::{Atom, Datum};
use std::collections::BTreeSet;
use std::net::IpAddr;

fn text(s: impl AsRef<str>) -> Str {
    Str::from(s.as_ref())
}

/// Whether a switch's port to a distributed gateway port has a `cr-` binding of its own: the router has no other
/// gateway port, and the switch leads to no physical network.
pub fn switch_redirect(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) -> bool {
    let Some(lrp) = lsp.lrp.and_then(|p| ctx.lrp(p)) else { return false };
    let Some(router) = ctx.router(lrp.router) else { return false };
    if !router.is_gateway_port(lrp) || router.gateway_ports().count() != 1 {
        return false;
    }
    ctx.switch(lsp.switch).is_some_and(|s| s.localnets.is_empty())
}

/// The row of a switch port.
pub fn lsp(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lsp) = ctx.lsp(uuid) else { return };
    let Some(switch) = ctx.switch(lsp.switch) else { return };
    let Some(keys) = ctx.port_keys(lsp.switch) else { return };
    let Some(key) = keys.get(&lsp.name) else { return };
    let row = &lsp.row;
    let lrp = lsp.lrp.and_then(|p| ctx.lrp(p));
    let router = lsp.router.and_then(|r| ctx.router(r));
    let mut options = Map::new();
    let mut ty = row.r#type.clone();
    let mut requested = Requested::default();
    let mut nat_addresses = Set::new();
    match lsp.kind {
        Kind::Router => {
            ty = text("patch");
            if let Some(name) = row.options.get("router-port") {
                options.insert(text("peer"), name.clone());
            }
            if router.is_none() {
                requested = Requested::find(ctx, &row.options);
            }
            if let Some(router) = router {
                if let Some(chassis) = &router.chassis {
                    ty = text("l3gateway");
                    options.insert(text("l3gateway-chassis"), chassis.clone());
                }
                if let Some(lrp) = lrp {
                    nat_addresses = announced(ctx, lsp, !switch.localnets.is_empty(), router, lrp);
                }
            }
        }
        Kind::Switch => {
            ty = text("patch");
            options = row.options.clone();
            requested = Requested::find(ctx, &row.options);
            if let Some(peer) = &row.peer {
                options.insert(text("peer"), peer.clone());
            }
        }
        _ => {
            options = row.options.clone();
            if switch.vlan_passthru {
                options.insert(text("vlan-passthru"), text("true"));
            }
            requested = Requested::find(ctx, &row.options);
            if requested.remote || lsp.kind == Kind::Remote && row.options.contains_key("requested-chassis") {
                options.insert(text("is-remote-nb-bound"), text(requested.remote.to_string()));
            }
            keep(ctx, lsp, &mut options);
        }
    }
    let mut external_ids = row.external_ids.clone();
    if let Some(name) = external_ids.get("neutron:port_name").filter(|n| !n.is_empty()).cloned() {
        external_ids.insert(text("name"), name);
    }
    let group = match lsp.kind {
        Kind::External => row.ha_chassis_group.and_then(|g| super::ha::named(ctx, g)),
        _ => None,
    };
    let columns = Columns::new()
        .data("logical_port", &lsp.name)
        .refs("datapath", vec![RowKey::datapath(lsp.switch)])
        .data("tunnel_key", key)
        .data("type", &ty)
        .data("mac", &row.addresses)
        .data("options", &options)
        .data("external_ids", &external_ids)
        .data("parent_port", &row.parent_name)
        .data("tag", &row.tag)
        .data("port_security", &row.port_security)
        .data("nat_addresses", &nat_addresses)
        .refs("ha_chassis_group", group.into_iter().collect())
        .refs("gateway_chassis", Vec::new())
        .refs("mirror_rules", mirrors(ctx, row))
        .data("requested_chassis", &requested.main)
        .data("requested_additional_chassis", &requested.additional);
    ctx.row(RowKey::port(&lsp.name), columns);
    up(ctx, lsp);
    if lsp.kind == Kind::Router && switch_redirect(ctx, lsp) {
        let Some(lrp) = lrp else { return };
        redirect(ctx, lsp.switch, keys, &lsp.name, row.addresses.clone(), lrp, Map::new());
    }
}

/// What other daemons keep in a binding's options.
fn keep(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, options: &mut Map<Str, Str>) {
    let Some((_, binding)) = ctx.read(Read::Binding(lsp.name.clone())).binding(&lsp.name) else { return };
    if lsp.kind != Kind::Virtual {
        return;
    }
    for key in ["vport-backoff", "vport-last-claim"] {
        if let Some(value) = binding.options.get(key) {
            options.insert(text(key), value.clone());
        }
    }
}

fn mirrors(ctx: &mut Ctx<'_, '_>, row: &nb::LogicalSwitchPort) -> Vec<RowKey> {
    let mut rows = Vec::new();
    for m in &row.mirror_rules {
        if let Some(mirror) = ctx.nb::<nb::Mirror>(*m) {
            rows.push(RowKey::new(sb::TableId::Mirror, &mirror.name));
        }
    }
    rows
}

/// `Logical_Switch_Port.up`, which follows the binding; a port to a router is always up.
fn up(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) {
    let up = if matches!(lsp.kind, Kind::Router | Kind::Switch) {
        true
    } else {
        let Some((u, binding)) = ctx.read(Read::Binding(lsp.name.clone())).binding(&lsp.name) else { return };
        ctx.read(Read::Sb(u));
        let remote = match binding.chassis.and_then(|c| ctx.sb::<sb::Chassis>(c)) {
            Some(c) => flag(&c.other_config, "is-remote"),
            None => false,
        };
        binding.chassis.is_some() && (lsp.kind == Kind::Remote || remote || binding.up != Some(false))
    };
    ctx.nb_columns(nb::TableId::LogicalSwitchPort, lsp.uuid, Columns::new().data("up", &Some(up)));
}

/// The chassis that are asked to bind a port.
#[derive(Default)]
struct Requested {
    main: Option<Uuid>,
    additional: Set<Uuid>,
    remote: bool,
}

impl Requested {
    fn find(ctx: &mut Ctx<'_, '_>, options: &Map<Str, Str>) -> Requested {
        let mut out = Requested::default();
        let Some(names) = options.get("requested-chassis") else { return out };
        for (i, name) in names.split(',').map(str::trim).filter(|n| !n.is_empty()).enumerate() {
            let Some((uuid, chassis)) = chassis(ctx, name) else { continue };
            if i == 0 {
                out.main = Some(uuid);
                out.remote = flag(&chassis.other_config, "is-remote");
            } else {
                out.additional.insert(uuid);
            }
        }
        out
    }
}

/// A chassis by name, or by host name.
fn chassis<'a>(ctx: &mut Ctx<'_, 'a>, name: &str) -> Option<(Uuid, &'a sb::Chassis)> {
    if let Some((u, _)) = ctx.read(Read::Chassis(text(name))).chassis(name) {
        return ctx.sb::<sb::Chassis>(u).map(|c| (u, &**c));
    }
    let all: BTreeSet<Uuid> = ctx.sb_table::<sb::Chassis>();
    all.into_iter().find_map(|u| {
        let c = ctx.sb::<sb::Chassis>(u)?;
        (&*c.hostname == name).then_some((u, &**c))
    })
}

/// The addresses that a chassis announces by gratuitous ARP through a switch's port to a router.
fn announced(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, localnet: bool, router: &Router, lrp: &Lrp) -> Set<Str> {
    let mut out = Set::new();
    let gateways = router.gateway_ports().count();
    let option = lsp.row.options.get("nat-addresses").map(|s| &**s);
    let here = router.is_gateway() || gateways > 0;
    match option {
        Some("router") if here => out.extend(nat_addresses(ctx, lsp, router, lrp)),
        Some(explicit) if !matches!(explicit, "router" | "") && here => match PortAddresses::parse(explicit) {
            Some(_) if router.is_gateway_port(lrp) => {
                out.insert(text(format!("{explicit} is_chassis_resident({})", lrp.cr_json)));
            }
            Some(_) => {
                out.insert(text(explicit));
            }
            None => ctx.problem(format!("logical switch port {}: nat-addresses \"{explicit}\" is malformed", lsp.name)),
        },
        _ => {}
    }
    let reside = flag(&lrp.row.options, "reside-on-redirect-chassis");
    let own = if gateways > 0 {
        router.is_gateway_port(lrp) || reside && gateways == 1
    } else {
        router.is_gateway() && localnet
    };
    if own && !lsp.option("exclude-router-ips-from-garp") {
        let mut s = lrp.mac.to_string();
        for n in &lrp.v4 {
            s.push_str(&format!(" {}", n.addr));
        }
        if gateways > 0 {
            let at = if router.is_gateway_port(lrp) { Some(lrp) } else { router.gateway_ports().next().map(|p| &**p) };
            if let Some(at) = at {
                s.push_str(&format!(" is_chassis_resident({})", at.cr_json));
            }
        }
        out.insert(text(s));
    }
    out
}

/// What `nat-addresses=router` stands for: the outside addresses of NAT rules and load balancers.
fn nat_addresses(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, router: &Router, lrp: &Lrp) -> Set<Str> {
    let mut out = Set::new();
    let mut central = BTreeSet::new();
    if lrp.v4.is_empty() && lrp.v6.is_empty() {
        return out;
    }
    for n in ctx.nats(router.uuid).into_iter().flatten() {
        let nat::Nat { mac, port, external, .. } = n;
        if n.kind == nat::Kind::Snat && n.row.external_ip.is_empty() || !n.v4() && !n.distributed() {
            continue;
        }
        let own = lrp.v4.iter().any(|a| IpAddr::from(a.addr) == *external);
        if own || n.gateway.is_some() && n.gateway != Some(lrp.uuid) {
            continue;
        }
        match (mac, port) {
            (Some(mac), Some(port)) if !router.is_gateway() => {
                let port = crate::addresses::quoted(port);
                out.insert(text(format!("{mac} {external} is_chassis_resident({port})")));
            }
            _ => {
                central.insert(*external);
            }
        }
    }
    if !lsp.option("exclude-lb-vips-from-garp") {
        for lb in ctx.lbs(router.uuid).into_iter().flatten() {
            let Some(lb) = ctx.lb(*lb) else { continue };
            central.extend(lb.vips.iter().map(|v| v.ip).filter(|ip| ip.is_ipv4()));
        }
    }
    if central.is_empty() {
        return out;
    }
    let mut s = lrp.mac.to_string();
    for ip in central {
        s.push_str(&format!(" {ip}"));
    }
    if router.is_gateway_port(lrp) {
        s.push_str(&format!(" is_chassis_resident({})", lrp.cr_json));
    }
    out.insert(text(s));
    out
}

/// The row of a router port, and that of its gateway chassis.
pub fn lrp(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lrp) = ctx.lrp(uuid) else { return };
    let Some(router) = ctx.router(lrp.router) else { return };
    let Some(keys) = ctx.port_keys(lrp.router) else { return };
    let Some(key) = keys.get(&lrp.name) else { return };
    let mut options = Map::new();
    let peer = peer_name(ctx, lrp);
    if let Some(name) = &peer {
        options.insert(text("peer"), name.clone());
    }
    let mut ty = text("patch");
    if let Some(chassis) = &router.chassis {
        ty = text("l3gateway");
        options.insert(text("l3gateway-chassis"), chassis.clone());
    }
    let gateway = router.is_gateway_port(lrp);
    if gateway && peer.is_some() {
        options.insert(text("chassis-redirect-port"), text(lrp.cr_name()));
    }
    if peer.is_some() {
        super::router_advertisement::options(lrp, &mut options);
    }
    learning(ctx, lrp, router.chassis.is_some(), &mut options);
    let mac = Set::from([text(lrp.addresses_text())]);
    let columns = Columns::new()
        .data("logical_port", &lrp.name)
        .refs("datapath", vec![RowKey::datapath(lrp.router)])
        .data("tunnel_key", key)
        .data("type", &ty)
        .data("mac", &mac)
        .data("options", &options)
        .data("external_ids", &lrp.row.external_ids)
        .data("parent_port", &None::<Str>)
        .data("nat_addresses", &Set::<Str>::new())
        .refs("ha_chassis_group", Vec::new())
        .refs("gateway_chassis", Vec::new());
    ctx.row(RowKey::port(&lrp.name), columns);
    if gateway {
        let mut options = Map::new();
        let redirect_type = lrp.row.options.get("redirect-type");
        if let Some(ty) = redirect_type {
            options.insert(text("redirect-type"), ty.clone());
        }
        let distributed = ctx.nats(lrp.router).into_iter().flatten().any(|n| n.mac.is_some() && n.port.is_some());
        let vtep = lrp.switch_ports.iter().any(|p| {
            let switch = ctx.lsp(*p).map(|l| l.switch);
            switch.and_then(|s| ctx.switch(s)).is_some_and(|s| !s.vteps.is_empty())
        });
        if !distributed && !vtep && redirect_type.is_none_or(|t| !t.eq_ignore_ascii_case("bridged")) {
            options.insert(text("always-redirect"), text("true"));
        }
        learning(ctx, lrp, true, &mut options);
        redirect(ctx, lrp.router, keys, &lrp.name, mac, lrp, options);
    }
    if gateway {
        status(ctx, lrp);
    }
}

/// How a chassis that has the port exchanges routes there.
fn learning(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, here: bool, options: &mut Map<Str, Str>) {
    let Some(router) = ctx.nb::<nb::LogicalRouter>(lrp.router) else { return };
    if !flag(&router.options, "dynamic-routing") {
        return;
    }
    let own = &lrp.row.options;
    if here {
        options.insert(text("dynamic-routing"), text("true"));
        if flag(own, "dynamic-routing-maintain-vrf") {
            options.insert(text("dynamic-routing-maintain-vrf"), text("true"));
        }
        for (from, key) in [
            (&router.options, "dynamic-routing-vrf-name"),
            (own, "dynamic-routing-port-name"),
            (own, "routing-protocol-redirect"),
        ] {
            options.extend(from.get(key).map(|value| (text(key), value.clone())));
        }
    }
    for key in ["dynamic-routing-redistribute-local-only", "dynamic-routing-no-learning"] {
        if flag_or(own, key, flag(&router.options, key)) {
            options.insert(text(key), text("true"));
        }
    }
}

/// The port at the other end: another router's, or the switch's.
fn peer_name(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> Option<Str> {
    if let Some(peer) = lrp.row.peer.as_ref().filter(|p| !p.is_empty()) {
        let other = ctx.read(Read::LrpName(peer.clone())).lrp_by_name(peer)?;
        return ctx.lrp(other).map(|p| p.name.clone());
    }
    lrp.switch_ports.iter().find_map(|p| ctx.lsp(*p)).map(|l| l.name.clone())
}

/// A `chassisredirect` row.
fn redirect(
    ctx: &mut Ctx<'_, '_>,
    datapath: Uuid,
    keys: &std::collections::BTreeMap<Str, i64>,
    port: &str,
    mac: Set<Str>,
    lrp: &Lrp,
    mut options: Map<Str, Str>,
) {
    let name = format!("cr-{port}");
    let Some(key) = keys.get(&*name) else { return };
    options.insert(text("distributed-port"), text(port));
    let group = super::ha::of_port(ctx, lrp);
    let columns = Columns::new()
        .data("logical_port", &text(&name))
        .refs("datapath", vec![RowKey::datapath(datapath)])
        .data("tunnel_key", key)
        .data("type", &text("chassisredirect"))
        .data("mac", &mac)
        .data("options", &options)
        .data("external_ids", &lrp.row.external_ids)
        .data("parent_port", &None::<Str>)
        .data("nat_addresses", &Set::<Str>::new())
        .refs("ha_chassis_group", vec![group])
        .refs("gateway_chassis", Vec::new());
    ctx.row(RowKey::port(&name), columns);
}

/// `Logical_Router_Port.status:hosting-chassis`, where the gateway port is.
fn status(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) {
    let mut status = lrp.row.status.clone();
    status.remove("hosting-chassis");
    let name = Str::from(lrp.cr_name());
    if let Some((u, binding)) = ctx.read(Read::Binding(name.clone())).binding(&name) {
        ctx.read(Read::Sb(u));
        if let Some(chassis) = binding.chassis.and_then(|c| ctx.sb::<sb::Chassis>(c)) {
            status.insert(text("hosting-chassis"), chassis.name.clone());
        }
    }
    if status != lrp.row.status {
        ctx.nb_columns(nb::TableId::LogicalRouterPort, lrp.uuid, Columns::new().data("status", &status));
    }
}

/// Whether an HA chassis group's member is one of the chassis that there are.
pub fn chassis_ref(ctx: &mut Ctx<'_, '_>, name: &str) -> Datum {
    match ctx.read(Read::Chassis(text(name))).chassis(name) {
        Some((u, _)) => Datum::Scalar(Atom::Uuid(u)),
        None => Datum::empty_set(),
    }
}
