//! `Port_Binding`: one row a port, and one `cr-PORT` for the gateway chassis of a distributed gateway port.

use crate::addresses::Mac;
use crate::addresses::PortAddresses;
use crate::context::{Ctx, flag, flag_or};
use crate::facts::Fact;
use crate::facts::lrp::Lrp;
use crate::facts::lsp::{Kind, Lsp, switch_redirect};
use crate::facts::router::Router;
use crate::facts::switch::Switch;
use crate::input::Read;
use crate::model::{Columns, RouterColumn, RowKey, Unit};
use ovn_schema::{Map, PortKey, Set, Str, Uuid, nb, sb};
use ovsdb_rs::{Atom, Datum};
use std::collections::BTreeSet;
use std::net::IpAddr;

fn text(s: impl AsRef<str>) -> Str {
    Str::from(s.as_ref())
}

/// The row of a switch port.
pub fn lsp(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lsp) = ctx.lsp(uuid) else { return };
    let Some(switch) = ctx.switch(lsp.switch) else { return };
    let Some(key) = ctx.port_key(lsp.switch, &lsp.name) else { return };
    let row = &lsp.row;
    let mut columns = common(ctx, lsp, &lsp.name, key);
    let present = present(ctx, &lsp.name);
    if lsp.kind == Kind::Router {
        columns = to_router(ctx, lsp, switch, columns, present);
    } else {
        columns = to_host(ctx, lsp, switch, columns, present);
    }
    let group = match lsp.kind {
        Kind::External => row.ha_chassis_group.and_then(|g| super::ha::named(ctx, g)),
        _ => None,
    };
    columns = columns.refs("ha_chassis_group", group.into_iter().collect()).refs("gateway_chassis", Vec::new());
    ctx.row(RowKey::port(&lsp.name), columns);
    up(ctx, lsp);
    tag(ctx, lsp);
    if lsp.kind == Kind::Router && switch_redirect(ctx, lsp) {
        let Some(lrp) = lsp.lrp.and_then(|p| ctx.lrp(p)) else { return };
        let name = format!("cr-{}", lsp.name);
        let Some(key) = ctx.port_key(lsp.switch, &name) else { return };
        let options = Map::from([(text("distributed-port"), lsp.name.clone())]);
        let group = super::ha::of_port(ctx, lrp);
        let columns = common(ctx, lsp, &name, key)
            .data("type", &text("chassisredirect"))
            .data("options", &options)
            .data("nat_addresses", &Set::<Str>::new())
            .refs("ha_chassis_group", vec![group])
            .refs("gateway_chassis", Vec::new());
        ctx.row(RowKey::port(&name), columns);
    }
}

/// The binding that the southbound database has under a port's name.
fn present<'a>(ctx: &mut Ctx<'_, 'a>, name: &Str) -> Option<&'a sb::PortBinding> {
    let (uuid, _) = ctx.read(Read::Binding(name.clone())).binding(name)?;
    ctx.sb::<sb::PortBinding>(uuid).map(|b| &**b)
}

/// How keys begin that say what machines of a kind are to load: in the `external_ids` of DHCP options, and in those of a port,
/// where ovn-northd copies them, too.
const BOOT: &str = "boot:";
const DHCPV4_BOOT: &str = "dhcpv4-boot:";
const DHCPV6_BOOT: &str = "dhcpv6-boot:";

/// Gives a port what its DHCP options say about booting, but for what it says itself.
fn boot_rules(ctx: &mut Ctx<'_, '_>, prefix: &str, options: Option<Uuid>, external_ids: &mut Map<Str, Str>) {
    let Some(options) = options.and_then(|id| ctx.nb::<nb::DhcpOptions>(id)) else { return };
    for (key, value) in &options.external_ids {
        if let Some(name) = key.strip_prefix(BOOT) {
            external_ids.entry(text(format!("{prefix}{name}"))).or_insert_with(|| value.clone());
        }
    }
}

/// The columns that all rows of a switch port have.
fn common(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, name: &str, key: PortKey) -> Columns {
    let row = &lsp.row;
    let mut external_ids = row.external_ids.clone();
    if let Some(name) = external_ids.get("neutron:port_name").filter(|n| !n.is_empty()).cloned() {
        external_ids.insert(text("name"), name);
    }
    for (prefix, of) in [(DHCPV4_BOOT, row.dhcpv4_options), (DHCPV6_BOOT, row.dhcpv6_options)] {
        boot_rules(ctx, prefix, of, &mut external_ids);
    }
    Columns::new()
        .data("logical_port", &text(name))
        .refs("datapath", vec![RowKey::datapath(lsp.switch)])
        .data("tunnel_key", &key.0)
        .data("mac", &row.addresses)
        .data("external_ids", &external_ids)
        .data("parent_port", &row.parent_name)
        .data("tag", &row.tag)
        .data("port_security", &row.port_security)
        .refs("mirror_rules", mirrors(ctx, row))
}

/// The columns of a port to a router.
fn to_router(
    ctx: &mut Ctx<'_, '_>,
    lsp: &Lsp,
    switch: &Switch,
    mut columns: Columns,
    present: Option<&sb::PortBinding>,
) -> Columns {
    let row = &lsp.row;
    let (lrp, router) = (lsp.lrp.and_then(|p| ctx.lrp(p)), lsp.router.and_then(|r| ctx.router(r)));
    let mut options = Map::new();
    if let Some(name) = row.options.get("router-port") {
        options.insert(text("peer"), name.clone());
        let gateway = lrp.zip(router).is_some_and(|(lrp, router)| router.is_gateway_port(lrp));
        if gateway && lsp.option("enable_router_port_acl") {
            options.insert(text("enable_router_port_acl"), text("true"));
        }
    }
    let chassis = router.and_then(|r| r.chassis.as_ref());
    if let Some(chassis) = chassis {
        options.insert(text("l3gateway-chassis"), chassis.clone());
    }
    let mut nat_addresses = Set::new();
    if let (Some(router), Some(lrp)) = (router, lrp) {
        nat_addresses = announced(ctx, lsp, !switch.localnets.is_empty(), router, lrp);
    }
    if chassis_is_remote(ctx, present.and_then(|b| b.chassis)) {
        columns = columns.data("chassis", &None::<Uuid>);
    }
    columns = encap(ctx, &row.options, &lsp.name, present, None, columns, &mut options);
    columns
        .data("type", &text(if chassis.is_some() { "l3gateway" } else { "patch" }))
        .data("options", &options)
        .data("nat_addresses", &nat_addresses)
}

/// The columns of a port to anything but a router.
fn to_host(
    ctx: &mut Ctx<'_, '_>,
    lsp: &Lsp,
    switch: &Switch,
    mut columns: Columns,
    present: Option<&sb::PortBinding>,
) -> Columns {
    let row = &lsp.row;
    let mut options = row.options.clone();
    options.remove("requested-encap-ip");
    if let Some(queue) = own_queue(ctx, lsp) {
        if let Some(network) = switch.physical_network.clone() {
            options.insert(text("qos_physical_network"), network);
        }
        options.insert(text("qdisc_queue_id"), text(queue.to_string()));
    }
    if switch.vlan_passthru {
        options.insert(text("vlan-passthru"), text("true"));
    }
    let requested = Requested::find(ctx, lsp);
    keep(lsp, present, !requested.additional.is_empty(), &mut options);
    let bound = present.and_then(|b| b.chassis);
    if lsp.kind == Kind::Remote || !requested.additional.is_empty() {
        let before = present.and_then(|b| b.options.get("is-remote-nb-bound"));
        if requested.remote {
            columns = columns.data("chassis", &requested.main);
            options.insert(text("is-remote-nb-bound"), text("true"));
        } else if let Some(before) = before {
            if ovn_schema::options::is_on(before, false) {
                columns = columns.data("chassis", &None::<Uuid>);
            }
            options.insert(text("is-remote-nb-bound"), text("false"));
        }
    } else if chassis_is_remote(ctx, bound) {
        columns = columns.data("chassis", &None::<Uuid>);
    }
    if lsp.kind == Kind::Switch
        && let Some(peer) = switch_peer(ctx, lsp)
    {
        options.insert(text("peer"), peer);
    }
    columns = encap(ctx, &row.options, &lsp.name, present, requested.name.as_ref(), columns, &mut options);
    let ty = match lsp.kind {
        Kind::Switch => text("patch"),
        // Or it has a type that nobody knows.
        Kind::Vif => text(""),
        _ => row.r#type.clone(),
    };
    columns
        .data("type", &ty)
        .data("options", &options)
        .data("nat_addresses", &Set::<Str>::new())
        .data("requested_chassis", &requested.main)
        .data("requested_additional_chassis", &requested.additional)
}

fn chassis_is_remote(ctx: &mut Ctx<'_, '_>, chassis: Option<Uuid>) -> bool {
    chassis.and_then(|c| ctx.sb::<sb::Chassis>(c)).is_some_and(|c| flag(&c.other_config, "is-remote"))
}

/// The switch port at the other end, where both name each other.
fn switch_peer(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) -> Option<Str> {
    let name = lsp.row.peer.as_ref()?;
    let other = super::health::port_named(ctx, name)?;
    (other.kind == Kind::Switch && other.row.peer.as_ref() == Some(&lsp.name)).then(|| name.clone())
}

/// The queue of a port: its own where it has QoS parameters, else the one that its options name.
pub fn queue(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) -> Option<Str> {
    own_queue(ctx, lsp).map(|q| text(q.to_string())).or_else(|| lsp.row.options.get("qdisc_queue_id").cloned())
}

fn own_queue(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) -> Option<i64> {
    match ctx.fact(crate::model::Unit::QueueIds) {
        Some(Fact::QueueIds(all)) => all.get(&lsp.uuid).copied(),
        _ => None,
    }
}

/// The options of a binding that other daemons write, and northd has to keep.
fn keep(lsp: &Lsp, present: Option<&sb::PortBinding>, several: bool, options: &mut Map<Str, Str>) {
    let Some(present) = present else { return };
    let mut keys = Vec::new();
    if several {
        keys.push("additional-chassis-activated");
    }
    if lsp.kind == Kind::Virtual {
        keys.extend(["vport-backoff", "vport-last-claim"]);
    }
    for key in keys {
        if let Some(value) = present.options.get(key) {
            options.insert(text(key), value.clone());
        }
    }
}

/// The tunnel endpoint that is asked for (`options:requested-encap-ip`).
fn encap(
    ctx: &mut Ctx<'_, '_>,
    wishes: &Map<Str, Str>,
    port: &str,
    present: Option<&sb::PortBinding>,
    chassis: Option<&Str>,
    columns: Columns,
    options: &mut Map<Str, Str>,
) -> Columns {
    let Some(ip) = wishes.get("requested-encap-ip").filter(|ip| !ip.is_empty()) else {
        let was = present.is_some_and(|b| b.options.get("requested-encap-ip").is_some_and(|ip| !ip.is_empty()));
        return if was { columns.data("encap", &None::<Uuid>) } else { columns };
    };
    options.insert(text("requested-encap-ip"), ip.clone());
    let mut found: Option<(bool, Uuid)> = None;
    for u in ctx.sb_table::<sb::Encap>() {
        let Some(row) = ctx.sb::<sb::Encap>(u) else { continue };
        if row.ip == *ip && chassis.is_none_or(|c| row.chassis_name == *c) {
            found = found.max(Some((&*row.r#type == "geneve", u)));
        }
    }
    if found.is_none() {
        ctx.problem(format!("port {port}: no chassis has the tunnel address {ip} of options:requested-encap-ip"));
    }
    columns.data("encap", &found.map(|(_, u)| u))
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
    let up = matches!(lsp.kind, Kind::Router | Kind::Switch)
        || present(ctx, &lsp.name)
            .is_some_and(|b| b.chassis.is_some() && (b.up == Some(true) || chassis_is_remote(ctx, b.chassis)));
    ctx.nb_columns(nb::TableId::LogicalSwitchPort, lsp.uuid, Columns::new().data("up", &Some(up)));
}

/// `Logical_Switch_Port.tag`, which follows `tag_request`; 0 asks for the lowest that no sibling has.
fn tag(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) {
    let row = &lsp.row;
    let parent = row.parent_name.as_ref().filter(|p| !p.is_empty());
    let tag = match (row.tag_request, parent) {
        (Some(0), Some(parent)) => match row.tag {
            Some(tag) => Some(tag),
            None => free_tag(ctx, lsp, parent),
        },
        // The tag is what was asked for, as OVN has it since 26.03: it goes with the request.
        (Some(0), None) | (None, _) => None,
        (wanted, _) => wanted,
    };
    if tag != row.tag {
        ctx.nb_columns(nb::TableId::LogicalSwitchPort, lsp.uuid, Columns::new().data("tag", &tag));
    }
}

/// The tag of a container that has none: siblings that wait are served in the order of their UUIDs.
fn free_tag(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, parent: &Str) -> Option<i64> {
    let (mut used, mut before) = (BTreeSet::new(), 0);
    for u in ctx.read(Read::Children(parent.clone())).children(parent) {
        let Some(row) = ctx.nb::<nb::LogicalSwitchPort>(u) else { continue };
        match (row.tag, row.tag_request) {
            (Some(tag), Some(_)) => {
                used.insert(tag);
            }
            (None, Some(0)) if u < lsp.uuid => before += 1,
            (None, Some(wanted)) => {
                used.insert(wanted);
            }
            _ => {}
        }
    }
    let tag = (1..4096).filter(|t| !used.contains(t)).nth(before);
    if tag.is_none() {
        ctx.problem(format!(
            "logical switch port {}: out of vlans for logical switch ports with parent {parent}",
            lsp.name
        ));
    }
    tag
}

/// The chassis that are asked to bind a port.
#[derive(Default)]
struct Requested {
    main: Option<Uuid>,
    name: Option<Str>,
    additional: Set<Uuid>,
    remote: bool,
}

impl Requested {
    fn find(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) -> Requested {
        let mut out = Requested::default();
        let Some(names) = lsp.row.options.get("requested-chassis") else { return out };
        for name in names.split(',').filter(|n| !n.is_empty()) {
            let Some((uuid, chassis)) = chassis(ctx, name) else {
                ctx.problem(format!(
                    "logical switch port {}: no chassis {name}, as requested-chassis asks for",
                    lsp.name
                ));
                continue;
            };
            if out.main.is_none() {
                out.main = Some(uuid);
                out.name = Some(chassis.name.clone());
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
    let mut all = ctx.read(Read::Host(text(name))).on_host(name);
    all.find_map(|u| ctx.sb::<sb::Chassis>(u).map(|c| (u, &**c)))
}

/// The addresses that a chassis announces by gratuitous ARP through a switch's port to a router.
fn announced(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, localnet: bool, router: &Router, lrp: &Lrp) -> Set<Str> {
    let mut out = Set::new();
    let gateways = router.gateway_ports().count();
    let option = lsp.row.options.get("nat-addresses").map(|s| &**s);
    let here = router.is_gateway() || gateways > 0;
    // A gateway port announces on its own chassis, other ports on the chassis of the first gateway port.
    let at = if router.is_gateway_port(lrp) { Some(lrp) } else { router.gateway_ports().next().map(|p| &**p) };
    let at = at.map_or(String::new(), |at| format!(" is_chassis_resident({})", at.cr_json));
    match option {
        Some("router") if here => out.extend(nat_addresses(ctx, lsp, router, lrp)),
        Some(explicit) if explicit != "router" && here => match PortAddresses::parse(explicit) {
            Some(_) => {
                out.insert(text(format!("{explicit}{at}")));
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
        s.push_str(&at);
        out.insert(text(s));
    }
    out
}

/// What `nat-addresses=router` stands for: the outside addresses of NAT rules and load balancers.
fn nat_addresses(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, router: &Router, lrp: &Lrp) -> Set<Str> {
    let mut out = Set::new();
    let mut central = Vec::new();
    let several = router.gateway_ports().count() > 1;
    let nats = ctx.rows_of(router.uuid, RouterColumn::Nat);
    for nat in nats.iter().filter_map(|n| ctx.nb::<nb::Nat>(*n)).collect::<Vec<_>>() {
        let Ok(IpAddr::V4(external)) = nat.external_ip.parse::<IpAddr>() else { continue };
        let elsewhere = match nat.gateway_port {
            Some(port) => port != lrp.uuid,
            None => lrp.ip_in_network_of(external.into()).is_none(),
        };
        if several && elsewhere {
            continue;
        }
        let distributed = router.gateway_ports().next().is_some() && &*nat.r#type == "dnat_and_snat";
        match (&nat.external_mac, &nat.logical_port) {
            (Some(mac), Some(port)) if distributed => {
                if let Ok(mac) = mac.parse::<Mac>() {
                    out.insert(text(format!("{mac} {external} is_chassis_resident(\"{port}\")")));
                }
            }
            _ if !lrp.has(external.into()) => central.push(external.to_string()),
            _ => {}
        }
    }
    if !lsp.option("exclude-lb-vips-from-garp") {
        let vips: BTreeSet<IpAddr> = ctx.all_vips(router.uuid).filter_map(|a| a.ip).collect();
        for v4 in [true, false] {
            central.extend(crate::order::listed(vips.iter().filter(|ip| ip.is_ipv4() == v4).map(IpAddr::to_string)));
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
    let Some(key) = ctx.port_key(lrp.router, &lrp.name) else { return };
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
    if peer.is_some() && lrp.row.peer.is_none() {
        super::router_advertisement::options(lrp, &mut options);
    }
    learning(ctx, lrp, router.chassis.is_some(), &mut options);
    let mac = Set::from([text(lrp.addresses_text())]);
    let present = present(ctx, &lrp.name);
    if let Some(list) = present.and_then(|b| b.options.get("ipv6_ra_pd_list")) {
        options.insert(text("ipv6_ra_pd_list"), list.clone());
        prefix(ctx, lrp, list);
    }
    let mut remote = None;
    if router.chassis.is_none()
        && let Some(name) = lrp.row.options.get("requested-chassis")
    {
        remote = chassis(ctx, name).filter(|(_, c)| flag(&c.other_config, "is-remote"));
    }
    let mut columns = Columns::new().data("requested_chassis", &remote.map(|(u, _)| u));
    if let Some((u, _)) = remote {
        ty = text("remote");
        columns = columns.data("chassis", &Some(u));
    }
    let name = remote.map(|(_, c)| &c.name);
    // A router port's options do not say what was asked for.
    columns = encap(ctx, &lrp.row.options, &lrp.name, present, name, columns, &mut Map::new());
    let columns = columns
        .data("logical_port", &lrp.name)
        .refs("datapath", vec![RowKey::datapath(lrp.router)])
        .data("tunnel_key", &key.0)
        .data("type", &ty)
        .data("mac", &mac)
        .data("options", &options)
        .data("external_ids", &lrp.row.external_ids)
        .data("parent_port", &None::<Str>)
        .data("tag", &None::<i64>)
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
        let distributed = ctx.fact(Unit::NatDistributed(lrp.router)).is_some();
        let vtep = lrp.switch_port.iter().any(|p| {
            let switch = ctx.lsp(*p).map(|l| l.switch);
            switch.and_then(|s| ctx.switch(s)).is_some_and(|s| !s.vteps.is_empty())
        });
        let balanced = ctx.kinds(lrp.router).distributed;
        if !balanced && !distributed && !vtep && redirect_type.is_none_or(|t| &**t != "bridged") {
            options.insert(text("always-redirect"), text("true"));
        }
        learning(ctx, lrp, true, &mut options);
        redirect(ctx, mac, lrp, options);
    }
    if gateway {
        status(ctx, lrp);
    }
}

/// `Logical_Router_Port.ipv6_prefix`: what was delegated to the port, `AID:PREFIX` in the binding.
fn prefix(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, list: &str) {
    if !flag(&lrp.row.options, "prefix") {
        return;
    }
    let Some((aid, prefix)) = list.split_whitespace().next().and_then(|first| first.split_once(':')) else { return };
    if aid.parse::<u32>().is_ok() && !prefix.is_empty() {
        let columns = Columns::new().data("ipv6_prefix", &Set::from([text(prefix)]));
        ctx.nb_columns(nb::TableId::LogicalRouterPort, lrp.uuid, columns);
    }
}

/// How a chassis that has the port exchanges routes there.
fn learning(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, here: bool, options: &mut Map<Str, Str>) {
    let Some(router) = ctx.router(lrp.router) else { return };
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
    if lrp.row.peer.is_some() {
        return crate::router::port::router_peer(ctx, lrp).map(|p| p.name.clone());
    }
    lrp.switch_port.iter().find_map(|p| ctx.lsp(*p).filter(|l| l.lrp.is_some())).map(|l| l.name.clone())
}

/// A `chassisredirect` row.
fn redirect(ctx: &mut Ctx<'_, '_>, mac: Set<Str>, lrp: &Lrp, mut options: Map<Str, Str>) {
    let name = lrp.cr_name();
    let Some(key) = ctx.port_key(lrp.router, &name) else { return };
    options.insert(text("distributed-port"), lrp.name.clone());
    let group = super::ha::of_port(ctx, lrp);
    let columns = Columns::new()
        .data("logical_port", &text(&name))
        .refs("datapath", vec![RowKey::datapath(lrp.router)])
        .data("tunnel_key", &key.0)
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
