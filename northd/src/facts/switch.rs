//! Logical switches: the part of their ports that concerns the others, and what conntrack is for.

use super::Fact;
use super::lsp::Kind;
use crate::context::{Ctx, flag};
use crate::input::Read;
use crate::model::Unit;
use ovn_schema::{Map, Str, Uuid, nb};
use packet::Vni;
use std::collections::BTreeMap;

/// A switch, with those of its ports that other ports' flows depend on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Switch {
    /// UUID of the northbound row.
    pub uuid: Uuid,
    /// The switch's name.
    pub name: Str,
    /// `other_config`.
    pub config: Map<Str, Str>,
    /// The ports to routers, in the order of their UUIDs.
    pub router_ports: Vec<RouterPort>,
    /// The names of the `localnet` ports.
    pub localnets: Vec<Str>,
    /// Whether a `localnet` port has a VLAN tag.
    pub localnet_tag: bool,
    /// `options:network_name` of the first `localnet` port.
    pub physical_network: Option<Str>,
    /// The names of the `vtep` ports.
    pub vteps: Vec<Str>,
    /// The names of the ports to other switches.
    pub switch_ports: Vec<Str>,
    /// Whether some port, enabled or not, takes unknown addresses.
    pub unknown: bool,
    /// Whether some port has `mcast_flood`.
    pub mcast_flood: bool,
    /// Whether a port is bound by a router with multicast relay.
    pub mcast_relay: bool,
    /// `vlan-passthru`.
    pub vlan_passthru: bool,
    /// The control plane protection in force.
    pub copp: Map<Str, Str>,
    /// The ports that mirrored packets leave by: their names, the port each leads to, and the first port that is
    /// mirrored there.
    pub mirrors: BTreeMap<(Str, Str), Uuid>,
    /// Whether a router answers for whole networks.
    pub arp_proxy: bool,
    /// Whether DNS records are attached to the switch.
    pub dns: bool,
    /// Whether `mcast_snoop` is on.
    pub mcast_snoop: bool,
    /// The EVPN VNI.
    pub vni: Option<Vni>,
}

/// A port to a router.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterPort {
    /// The switch port's row name.
    pub lsp: Uuid,
    /// The switch port's name.
    pub name: Str,
    /// The name in quotes.
    pub json: Str,
    /// The router port.
    pub lrp: Option<Uuid>,
    /// The router.
    pub router: Option<Uuid>,
    /// Whether the switch port is enabled.
    pub enabled: bool,
}

/// Derives [`Fact::Switch`].
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) else { return };
    let mut switch = Switch {
        uuid,
        name: row.name.clone(),
        config: row.other_config.clone(),
        vlan_passthru: flag(&row.other_config, "vlan-passthru"),
        copp: row.copp.and_then(|c| ctx.nb::<nb::Copp>(c)).map(|c| c.meters.clone()).unwrap_or_default(),
        dns: has_dns(ctx, row),
        mcast_snoop: flag(&row.other_config, "mcast_snoop"),
        vni: row.other_config.get("dynamic-routing-vni").and_then(|v| v.parse().ok()),
        ..Switch::default()
    };
    let mut only_routers = true;
    for p in &row.ports {
        let Some(lsp) = ctx.lsp(*p).filter(|l| l.switch == uuid) else { continue };
        only_routers &= lsp.kind == Kind::Router && lsp.lrp.is_some();
        switch.unknown |= lsp.unknown;
        switch.arp_proxy |= lsp.lrp.is_some() && super::lsp::proxied(lsp);
        switch.mcast_flood |= lsp.option("mcast_flood")
            && lsp.enabled()
            && crate::context::flag_or(&lsp.row.options, "receive_multicast", true);
        for sink in mirror_sinks(ctx, &lsp.row) {
            switch.mirrors.entry((mirror_port(&row.name, &sink).into(), sink)).or_insert(*p);
        }
        match lsp.kind {
            Kind::Router => {
                if let Some(r) = lsp.router.and_then(|r| ctx.router(r)) {
                    switch.mcast_relay |= r.mcast_relay();
                }
                switch.router_ports.push(RouterPort {
                    lsp: *p,
                    name: lsp.name.clone(),
                    json: lsp.json.clone(),
                    lrp: lsp.lrp,
                    router: lsp.router,
                    enabled: lsp.enabled(),
                });
            }
            Kind::Localnet => {
                if switch.localnets.is_empty() {
                    switch.physical_network = lsp.row.options.get("network_name").cloned();
                }
                switch.localnet_tag |= lsp
                    .row
                    .tag_request
                    .is_some_and(|t| t != 0 || lsp.row.parent_name.as_ref().is_some_and(|p| !p.is_empty()));
                switch.localnets.push(lsp.name.clone());
            }
            Kind::Vtep => switch.vteps.push(lsp.name.clone()),
            Kind::Switch => switch.switch_ports.push(lsp.name.clone()),
            _ => {}
        }
    }
    let reach = Reach { only_routers, physical: !switch.localnets.is_empty() };
    ctx.give(Unit::SwitchReach(uuid), Fact::SwitchReach(reach));
    ctx.derive(Fact::Switch(Box::new(switch)));
}

/// Whom frames of a switch can reach; few of its changes change that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Routers, and nobody else.
    pub only_routers: bool,
    /// Physical networks.
    pub physical: bool,
}

/// The name of the port of a switch that packets mirrored to a port leave by.
pub fn mirror_port(switch: &str, sink: &str) -> String {
    format!("mp-{switch}-{sink}")
}

/// The ports that a port's packets are mirrored to.
fn mirror_sinks(ctx: &mut Ctx<'_, '_>, row: &nb::LogicalSwitchPort) -> Vec<Str> {
    let mut sinks = Vec::new();
    for m in &row.mirror_rules {
        let Some(mirror) = ctx.nb::<nb::Mirror>(*m).filter(|m| &*m.r#type == "lport") else { continue };
        if ctx.read(Read::LspName(mirror.sink.clone())).lsp_by_name(&mirror.sink).is_some() {
            sinks.push(mirror.sink.clone());
        }
    }
    sinks
}

fn has_dns(ctx: &mut Ctx<'_, '_>, row: &nb::LogicalSwitch) -> bool {
    row.dns_records.iter().any(|d| ctx.nb::<nb::Dns>(*d).is_some_and(|d| !d.records.is_empty()))
}

/// What a switch needs conntrack for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Port groups with ports in the switch, by UUID.
    pub groups: Vec<Uuid>,
    /// Whether any ACL applies.
    pub has_acls: bool,
    /// Whether an `allow-related` ACL applies.
    pub has_stateful: bool,
    /// Whether an `allow-stateless` ACL applies.
    pub has_stateless: bool,
    /// Whether a load balancer has a virtual address.
    pub has_lb: bool,
    /// The highest ACL tiers: ingress, ingress after load balancing, egress.
    pub max_tier: [i64; 3],
}

/// The index of the ACL's evaluation stage: 0 ingress, 1 ingress after load balancing, 2 egress.
pub fn acl_stage(acl: &nb::Acl) -> usize {
    match (&*acl.direction, flag(&acl.options, "apply-after-lb")) {
        ("from-lport", false) => 0,
        ("from-lport", true) => 1,
        _ => 2,
    }
}

/// Derives [`Fact::SwitchState`].
pub fn state(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) else { return };
    let mut state = State::default();
    if let Some(Fact::PortGroupsBySwitch(all)) = ctx.fact(Unit::PortGroupsBySwitch) {
        state.groups = all.get(&uuid).cloned().unwrap_or_default();
    }
    let mut acls = row.acls.clone();
    for g in &state.groups {
        if let Some(group) = ctx.port_group(*g) {
            acls.extend(&group.acls);
        }
    }
    for a in acls {
        let Some(acl) = ctx.nb::<nb::Acl>(a) else { continue };
        state.has_acls = true;
        state.has_stateful |= &*acl.action == "allow-related";
        state.has_stateless |= &*acl.action == "allow-stateless";
        if let Some(tier) = state.max_tier.get_mut(acl_stage(acl)) {
            *tier = acl.tier.max(*tier);
        }
    }
    state.has_lb = ctx.kinds(uuid).any;
    ctx.derive(Fact::SwitchState(Box::new(state)));
}
