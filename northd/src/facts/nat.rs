//! Address translation of routers.

use super::Fact;
use super::lrp::Lrp;
use crate::addresses::{Mac, parse_net};
use crate::context::{Ctx, flag};
use crate::model::{RouterColumn, Unit};
use ovn_schema::{Str, Uuid, nb};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// What a NAT rule translates (`NAT:type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The source.
    Snat,
    /// The destination.
    Dnat,
    /// Both: `dnat_and_snat`.
    Both,
}

/// A `NAT` row, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Nat {
    /// UUID of the northbound row.
    pub uuid: Uuid,
    /// What is translated.
    pub kind: Kind,
    /// The outside address.
    pub external: IpAddr,
    /// The inside address or network.
    pub logical: (IpAddr, u8),
    /// The Ethernet address of a distributed rule.
    pub mac: Option<Mac>,
    /// The port that a distributed rule is at.
    pub port: Option<Str>,
    /// The distributed gateway port that it is for.
    pub gateway: Option<Uuid>,
    /// Whether the gateway port's networks are routed on the gateway chassis only, as its switch has a `cr-` port.
    pub centralized: bool,
    /// Whether it translates without conntrack (`options:stateless`).
    pub stateless: bool,
    /// The row.
    pub row: Arc<nb::Nat>,
}

impl Nat {
    /// Whether the chassis of its logical port translates, not the gateway chassis.
    pub fn distributed(&self) -> bool {
        self.kind == Kind::Both
            && self.mac.is_some()
            && self.port.is_some()
            && self.gateway.is_some()
            && !self.centralized
    }

    /// Whether it translates IPv4 addresses.
    pub fn v4(&self) -> bool {
        self.external.is_ipv4()
    }
}

/// For which addresses a router's ports answer. As long as these stay, a changed rule concerns the router alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The outside addresses in the order of the rules, whether their rules translate the source only, and the gateway port that
    /// a rule names.
    pub addresses: Vec<(IpAddr, bool, Option<Uuid>)>,
    /// The Ethernet addresses of rules that translate destinations.
    pub macs: Vec<Str>,
}

/// A router's rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nats {
    /// All that count.
    pub rules: Vec<Arc<Nat>>,
    /// Those of them for whose outside addresses other routers get routes (`options:add_route`).
    pub routed: Vec<Arc<Nat>>,
    /// The rows that are left out.
    pub left_out: Vec<Uuid>,
    /// Whether some of them need connections.
    pub stateful: bool,
}

/// Which earlier rules have the outside address of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Repeats {
    /// One of them is for a distributed gateway port, as this one is.
    pub at_gateway: bool,
    /// One of them translates the source only, as this one does.
    pub source: bool,
}

/// Makes a router's rules exist as units: one that comes or changes among thousands concerns no other.
pub fn list(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    for n in ctx.rows_of(uuid, RouterColumn::Nat) {
        ctx.spawn(Unit::Nat(uuid, *n));
        ctx.spawn(Unit::NatFlow(uuid, *n));
    }
}

/// Derives [`Fact::Nat`].
pub fn rule(ctx: &mut Ctx<'_, '_>, router: Uuid, uuid: Uuid) {
    let Some(router) = ctx.router(router) else { return };
    let Some(row) = ctx.nb::<nb::Nat>(uuid) else { return };
    let gateways: Vec<&Lrp> = router.gateway_ports().map(|p| &**p).collect();
    match parse(ctx, &gateways, uuid, row) {
        Ok(nat) => ctx.derive(Fact::Nat(Arc::new(nat))),
        Err(why) => ctx.problem(format!(
            "NAT rule {} {} of logical router {}: {why}; it is left out",
            row.r#type, row.external_ip, router.name
        )),
    }
}

/// Derives [`Fact::Nats`], and gives what concerns ports and rules.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    let mut nats = Nats::default();
    let (mut at_gateway, mut source) = (HashSet::new(), HashSet::new());
    for n in ctx.rows_of(uuid, RouterColumn::Nat) {
        let Some(Fact::Nat(nat)) = ctx.fact(Unit::Nat(uuid, *n)) else {
            nats.left_out.push(*n);
            continue;
        };
        let repeats = Repeats {
            at_gateway: nat.gateway.is_some() && !at_gateway.insert(nat.external),
            source: nat.kind == Kind::Snat && !source.insert(nat.external),
        };
        if repeats != Repeats::default() {
            ctx.give(Unit::NatRepeats(uuid, *n), Fact::NatRepeats(repeats));
        }
        if nat.v4() && nat.kind != Kind::Snat && flag(&nat.row.options, "add_route") {
            nats.routed.push(nat.clone());
        }
        nats.stateful |= !nat.stateless;
        nats.rules.push(nat.clone());
    }
    let rules = &nats.rules;
    let answers = Answers {
        addresses: rules.iter().map(|n| (n.external, n.kind == Kind::Snat, n.row.gateway_port)).collect(),
        macs: rules.iter().filter(|n| n.kind != Kind::Snat).filter_map(|n| n.row.external_mac.clone()).collect(),
    };
    let to = rules.iter().filter(|n| n.kind == Kind::Snat).map(|n| n.external);
    let shares = to.filter(|ip| router.ports.iter().any(|p| p.has(*ip))).collect();
    ctx.give(Unit::NatAnswers(uuid), Fact::NatAnswers(Box::new(answers)));
    ctx.give(Unit::NatShares(uuid), Fact::NatShares(shares));
    if rules.iter().any(|n| n.mac.is_some() && n.port.is_some()) {
        ctx.give(Unit::NatDistributed(uuid), Fact::NatDistributed);
    }
    ctx.derive(Fact::Nats(Box::new(nats)));
}

fn parse(ctx: &mut Ctx<'_, '_>, gateways: &[&Lrp], uuid: Uuid, row: &Arc<nb::Nat>) -> Result<Nat, String> {
    let kind = match &*row.r#type {
        "snat" => Kind::Snat,
        "dnat" => Kind::Dnat,
        _ => Kind::Both,
    };
    let bad = |column: &str, text: &str| format!("\"{text}\" in {column} is no address");
    let external = row.external_ip.parse::<IpAddr>().map_err(|_| bad("external_ip", &row.external_ip))?;
    let logical = parse_net(&row.logical_ip).ok_or_else(|| bad("logical_ip", &row.logical_ip))?;
    let host = logical.1 == if logical.0.is_ipv4() { 32 } else { 128 };
    if logical.0.is_ipv4() != external.is_ipv4() {
        let both = "external_ip and logical_ip must both be of IPv4 or both of IPv6";
        return Err(format!("logical_ip is {}; {both}", row.logical_ip));
    }
    if kind != Kind::Snat && !host {
        return Err(format!("logical_ip {} must be one address", row.logical_ip));
    }
    let mac = match &row.external_mac {
        Some(mac) => Some(mac.parse().map_err(|_| bad("external_mac", mac))?),
        None => None,
    };
    if row.allowed_ext_ips.is_some() && row.exempted_ext_ips.is_some() {
        return Err("allowed_ext_ips and exempted_ext_ips are both set; clear one".into());
    }
    let gateway = gateway_port(gateways, row, external)?;
    let lsps = gateway.and_then(|g| ctx.lrp(g)).map(|l| l.switch_port.as_slice()).unwrap_or_default();
    let centralized = lsps.iter().any(|l| ctx.lsp(*l).is_some_and(|l| crate::facts::lsp::switch_redirect(ctx, l)));
    Ok(Nat {
        uuid,
        centralized,
        kind,
        external,
        logical,
        port: row.logical_port.clone(),
        mac,
        gateway,
        stateless: kind == Kind::Both && flag(&row.options, "stateless"),
        row: row.clone(),
    })
}

/// The distributed gateway port that a rule is for: the one that it names, the only one, or the one in whose network
/// the outside address is.
fn gateway_port(gateways: &[&Lrp], nat: &nb::Nat, external: IpAddr) -> Result<Option<Uuid>, String> {
    if let Some(named) = nat.gateway_port {
        return match gateways.iter().find(|p| p.uuid == named) {
            Some(p) => Ok(Some(p.uuid)),
            None => Err("its gateway_port is no distributed gateway port of the router".into()),
        };
    }
    match gateways {
        [] => Ok(None),
        [only] => Ok(Some(only.uuid)),
        several => match several.iter().find(|p| p.ip_in_network_of(external).is_some()) {
            Some(p) => Ok(Some(p.uuid)),
            None => Err("the router has several gateway ports and none is in its network; set gateway_port".into()),
        },
    }
}
