//! Logical switch ports.

use super::Fact;
use crate::addresses::{Mac, PortAddresses, parse_net, quoted};
use crate::context::{Ctx, flag};
use crate::input::Read;
use ovn_schema::{Str, Uuid, nb};
use std::sync::Arc;

/// What is attached to the port (`Logical_Switch_Port:type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A virtual interface.
    Vif,
    /// A logical router.
    Router,
    /// Another logical switch.
    Switch,
    /// A physical network on every chassis.
    Localnet,
    /// An interface on every chassis.
    Localport,
    /// A physical network on one chassis.
    L2Gateway,
    /// A hardware VTEP.
    Vtep,
    /// A machine outside OVN (`external`), whose DHCP and RA a chassis serves.
    External,
    /// An address that moves between ports (`virtual`).
    Virtual,
    /// A port of another availability zone (`remote`).
    Remote,
}

impl Kind {
    fn parse(ty: &str) -> Option<Kind> {
        Some(match ty {
            "" => Kind::Vif,
            "router" => Kind::Router,
            "switch" => Kind::Switch,
            "localnet" => Kind::Localnet,
            "localport" => Kind::Localport,
            "l2gateway" => Kind::L2Gateway,
            "vtep" => Kind::Vtep,
            "external" => Kind::External,
            "virtual" => Kind::Virtual,
            "remote" => Kind::Remote,
            _ => return None,
        })
    }
}

/// A switch port, parsed.
#[derive(Clone, Debug)]
pub struct Lsp {
    /// UUID of the northbound row.
    pub uuid: Uuid,
    /// The port's name.
    pub name: Str,
    /// The name in quotes.
    pub json: Str,
    /// The switch.
    pub switch: Uuid,
    /// What is attached to it.
    pub kind: Kind,
    /// The addresses; of a router port with `router`, those of the router port.
    pub addresses: Vec<PortAddresses>,
    /// How many of `addresses` are its own; they come first, those of the router port follow.
    pub own_addresses: usize,
    /// Whether `addresses` has `unknown`.
    pub unknown: bool,
    /// Whether `addresses` has `router`.
    pub router_addresses: bool,
    /// The router port that `options:router-port` names, where it exists.
    pub lrp: Option<Uuid>,
    /// The router of that port.
    pub router: Option<Uuid>,
    /// Whether it is down, where that matters (`NB_Global.options:ignore_lsp_down`).
    pub down: bool,
    /// The row. Whether it is up there is what northd has written, and is nobody's concern.
    pub row: Arc<nb::LogicalSwitchPort>,
}

impl PartialEq for Lsp {
    fn eq(&self, other: &Lsp) -> bool {
        let fields = |l: &Lsp| {
            (l.uuid, l.switch, l.kind, l.own_addresses, l.unknown, l.router_addresses, l.lrp, l.router, l.down)
        };
        fields(self) == fields(other) && self.addresses == other.addresses && same(&self.row, &other.row)
    }
}

/// Whether two rows are the same but for `up`, which northd itself writes.
fn same(a: &Arc<nb::LogicalSwitchPort>, b: &Arc<nb::LogicalSwitchPort>) -> bool {
    if Arc::ptr_eq(a, b) || a.up == b.up {
        return a == b;
    }
    let mut a = nb::LogicalSwitchPort::clone(a);
    a.up = b.up;
    a == **b
}

impl Lsp {
    /// Whether it is enabled.
    pub fn enabled(&self) -> bool {
        self.row.enabled.unwrap_or(true)
    }

    /// Whether an option is true.
    pub fn option(&self, key: &str) -> bool {
        flag(&self.row.options, key)
    }

    /// Whether it is a VIF or leads to another switch, takes unknown addresses, and has no port security.
    pub fn learns_macs(&self) -> bool {
        matches!(self.kind, Kind::Vif | Kind::Switch) && self.unknown && !self.secured()
    }

    /// Whether port security holds it to Ethernet addresses.
    pub fn secured(&self) -> bool {
        self.row.port_security.iter().any(|text| {
            let first = text.split_whitespace().find(|w| *w != "VRRPv3");
            first.is_some_and(|w| w.parse::<Mac>().is_ok())
        })
    }
}

/// Derives [`Fact::Lsp`].
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalSwitchPort>(uuid) else { return };
    let Some(switch) = ctx.read(Read::LspOwner(uuid)).lsp_owner(uuid) else { return };
    if ctx.read(Read::LspOwner(uuid)).owners(uuid) > 1 {
        ctx.problem(format!("duplicate logical port {}: several switches have it; it is in one of them", row.name));
    }
    if let Some(lrp) = ctx.read(Read::LrpName(row.name.clone())).lrp_by_name(&row.name)
        && ctx.lrp(lrp).is_some()
    {
        ctx.problem(format!("duplicate logical port {}: a router port has the name; rename one of them", row.name));
        return;
    }
    let kind = Kind::parse(&row.r#type).unwrap_or_else(|| {
        let (name, kind) = (&row.name, &row.r#type);
        ctx.problem(format!("logical switch port {name}: unknown type \"{kind}\"; the port is taken for a VIF"));
        Kind::Vif
    });
    let mut port = Lsp {
        uuid,
        json: quoted(&row.name).into(),
        name: row.name.clone(),
        switch,
        kind,
        addresses: Vec::new(),
        own_addresses: 0,
        unknown: kind == Kind::Switch,
        router_addresses: false,
        lrp: None,
        router: None,
        down: !ctx.global().ignore_lsp_down && !row.up.unwrap_or(false),
        row: row.clone(),
    };
    let mut peer = None;
    if kind == Kind::Router
        && let Some(name) = row.options.get("router-port")
        && let Some(lrp) = ctx.read(Read::LrpName(name.clone())).lrp_by_name(name)
        && let Some(own) = ctx.lrp(lrp).and_then(|l| l.row.peer.as_ref())
    {
        ctx.problem(format!(
            "Bad configuration: The peer of the switch port '{}' (LRP peer: '{name}') has its own peer configuration: '{own}'",
            row.name
        ));
    }
    if kind == Kind::Router
        && let Some(name) = row.options.get("router-port")
        && let Some(lrp) = ctx.read(Read::LrpName(name.clone())).lrp_by_name(name)
        && let Some(lrp) = ctx.lrp(lrp)
        && lrp.row.peer.is_none()
        && ctx.router(lrp.router).is_some()
    {
        (port.lrp, port.router, peer) = (Some(lrp.uuid), Some(lrp.router), Some(lrp));
    }
    for text in &row.addresses {
        match text.trim() {
            "unknown" => port.unknown = true,
            "router" => {
                port.router_addresses = true;
            }
            text if super::ipam::is_dynamic(text) => {}
            text => match parse(text) {
                Some(a) => port.addresses.push(a),
                None => ctx.problem(format!(
                    "logical switch port {}: \"{text}\" in addresses starts with no Ethernet address; it is left out",
                    row.name
                )),
            },
        }
    }
    if row.addresses.iter().any(|t| super::ipam::is_dynamic(t))
        && let Some(Fact::Ipam(all)) = ctx.fact(crate::model::Unit::Ipam(switch))
    {
        port.addresses.extend(all.get(&uuid).and_then(|d| PortAddresses::parse(d)));
    }
    port.own_addresses = port.addresses.len();
    if let Some(lrp) = peer.filter(|_| port.router_addresses) {
        port.addresses.push(PortAddresses { mac: lrp.mac, v4: lrp.v4.clone(), v6: lrp.v6.clone() });
    }
    ctx.derive(Fact::Lsp(Box::new(port)));
}

/// The addresses of an entry; none for `MAC dynamic`, which northd has yet to complete.
fn parse(text: &str) -> Option<PortAddresses> {
    let first = text.split_whitespace().next()?;
    first.parse::<Mac>().ok()?;
    PortAddresses::parse(text)
}

/// Whether a switch's port to a distributed gateway port has a `cr-` binding of its own: the router has no other
/// gateway port, and the switch leads to no physical network.
pub fn switch_redirect(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) -> bool {
    let Some(lrp) = lsp.lrp.and_then(|p| ctx.lrp(p)) else { return false };
    ctx.only_gateway(lrp.router) == Some(&lrp.uuid) && ctx.switch_reach(lsp.switch).is_some_and(|s| !s.physical)
}

/// Whether a port answers for networks with `arp_proxy`.
pub fn proxied(lsp: &Lsp) -> bool {
    let asks =
        |text: &Str| text.split_whitespace().next().is_some_and(|w| w.parse::<Mac>().is_ok() || parse_net(w).is_some());
    lsp.kind == Kind::Router && lsp.row.options.get("arp_proxy").is_some_and(asks)
}
