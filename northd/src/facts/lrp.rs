//! Logical router ports.

use super::Fact;
use crate::addresses::{Mac, Net4, Net6, parse_net, quoted};
use crate::context::Ctx;
use crate::input::Read;
use ovn_schema::{Str, Uuid, nb, sb};
use std::net::IpAddr;
use std::sync::Arc;

/// A router port, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Lrp {
    /// UUID of the northbound row.
    pub uuid: Uuid,
    /// The port's name.
    pub name: Str,
    /// The name in quotes.
    pub json: Str,
    /// `cr-NAME` in quotes.
    pub cr_json: Str,
    /// The router.
    pub router: Uuid,
    /// The Ethernet address.
    pub mac: Mac,
    /// IPv4 networks.
    pub v4: Vec<Net4>,
    /// IPv6 networks, the link-local one last.
    pub v6: Vec<Net6>,
    /// How many of the IPv6 networks, the first ones, were asked for.
    asked: usize,
    /// Whether gateway chassis are set: on a distributed router, a distributed gateway port.
    pub gateway: bool,
    /// The switch port that names it as its router port.
    pub switch_port: Option<Uuid>,
    /// The row.
    pub row: Arc<nb::LogicalRouterPort>,
}

impl Lrp {
    /// The binding on the gateway chassis.
    pub fn cr_name(&self) -> String {
        format!("cr-{}", self.name)
    }

    /// `MAC NETWORK…` as the southbound database has it; a link-local network that was not asked for is left out.
    pub fn addresses_text(&self) -> String {
        let mut s = self.mac.to_string();
        for n in &self.v4 {
            s.push_str(&format!(" {}/{}", n.addr, n.plen));
        }
        for n in self.asked_v6() {
            s.push_str(&format!(" {}/{}", n.addr, n.plen));
        }
        s
    }

    /// The IPv6 networks that were asked for.
    pub fn asked_v6(&self) -> impl Iterator<Item = &Net6> {
        self.v6.iter().take(self.asked)
    }

    /// Its address in the network of another address.
    pub fn ip_in_network_of(&self, ip: IpAddr) -> Option<IpAddr> {
        match ip {
            IpAddr::V4(ip) => self.v4.iter().find(|n| n.contains(ip)).map(|n| n.addr.into()),
            IpAddr::V6(ip) => self.v6.iter().find(|n| n.contains(ip)).map(|n| n.addr.into()),
        }
    }

    /// Whether an address is its own.
    pub fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.v4.iter().any(|n| n.addr == ip),
            IpAddr::V6(ip) => self.v6.iter().any(|n| n.addr == ip),
        }
    }

    /// Whether it is disabled.
    pub fn enabled(&self) -> bool {
        self.row.enabled.unwrap_or(true)
    }
}

/// Derives [`Fact::Lrp`].
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalRouterPort>(uuid) else { return };
    let Some(router) = ctx.read(Read::LrpOwner(uuid)).lrp_owner(uuid) else { return };
    if ctx.read(Read::LrpOwner(uuid)).owners(uuid) > 1 {
        ctx.problem(format!(
            "duplicate logical router port {}: several routers have it; it is in one of them",
            row.name
        ));
    }
    let Ok(mac) = row.mac.trim().parse::<Mac>() else {
        ctx.problem(format!("logical router port {}: \"{}\" is no Ethernet address; set mac", row.name, row.mac));
        return;
    };
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for network in &row.networks {
        match parse_net(network) {
            Some((IpAddr::V4(addr), plen)) if !addr.is_unspecified() => v4.push(Net4 { addr, plen }),
            Some((IpAddr::V6(addr), plen)) => v6.push(Net6 { addr, plen }),
            Some(_) => ctx.problem(format!(
                "logical router port {}: \"{network}\" in networks is the address of no port; it is left out",
                row.name
            )),
            None => ctx.problem(format!(
                "logical router port {}: \"{network}\" in networks is no ADDRESS/LENGTH; it is left out",
                row.name
            )),
        }
    }
    let asked = v6.len();
    if !v6.iter().any(|n| n.addr == mac.link_local()) {
        v6.push(Net6 { addr: mac.link_local(), plen: 64 });
    }
    let switch_port = switch_port(ctx, &row.name);
    ctx.derive(Fact::Lrp(Arc::new(Lrp {
        uuid,
        json: quoted(&row.name).into(),
        cr_json: quoted(&format!("cr-{}", row.name)).into(),
        name: row.name.clone(),
        router,
        mac,
        v4,
        v6,
        asked,
        gateway: row.ha_chassis_group.is_some() || !row.gateway_chassis.is_empty(),
        switch_port,
        row: row.clone(),
    })));
}

/// The switch port that names a router port. Of several, OVN takes the last one that it sees in a hash table, a different one on
/// another machine; here the one that the southbound database has stays, and what is new gets the first.
fn switch_port(ctx: &mut Ctx<'_, '_>, name: &Str) -> Option<Uuid> {
    let mut all = Vec::new();
    for port in ctx.read(Read::RouterPort(name.clone())).switch_ports_of(name) {
        all.extend(ctx.read(Read::LspOwner(port)).lsp_owner(port).map(|_| port));
    }
    let (first, others) = all.split_first()?;
    if others.is_empty() {
        return Some(*first);
    }
    ctx.problem(format!(
        "logical router port {name}: several switch ports name it; only one is its peer, remove the others"
    ));
    let binding = ctx.read(Read::Binding(name.clone())).binding(name).map(|(u, _)| u);
    let kept = binding.and_then(|u| ctx.sb::<sb::PortBinding>(u)).and_then(|b| b.options.get("peer"));
    let is_kept = |ctx: &mut Ctx<'_, '_>, p: Uuid| {
        let row = ctx.nb::<nb::LogicalSwitchPort>(p);
        row.is_some_and(|r| Some(&r.name) == kept)
    };
    Some(all.iter().copied().find(|p| is_kept(ctx, *p)).unwrap_or(*first))
}

/// Whether the switch at the other end has a `localnet` port.
pub fn leads_outside(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> bool {
    lrp.switch_port.iter().any(|p| {
        let switch = ctx.lsp(*p).map(|l| l.switch);
        switch.and_then(|s| ctx.switch_reach(s)).is_some_and(|s| s.physical)
    })
}
