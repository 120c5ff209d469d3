//! `HA_Chassis_Group`, `HA_Chassis`: which chassis a gateway port or an external port is on.
//!
//! Every port that needs a group puts its rows out; equal rows of several ports are one.

use super::binding::chassis_ref;
use crate::context::Ctx;
use crate::facts::Fact;
use crate::facts::lrp::Lrp;
use crate::facts::lsp::Kind;
use crate::input::Read;
use crate::model::{Cell, Columns, RowKey, Unit};
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::collections::{BTreeMap, BTreeSet};

/// The group that a gateway port is on: the one that it names, or one of its own for its gateway chassis.
pub fn of_port(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> RowKey {
    if let Some(key) = lrp.row.ha_chassis_group.and_then(|g| named(ctx, g)) {
        return key;
    }
    let mut members = Vec::new();
    for g in &lrp.row.gateway_chassis {
        if let Some(g) = ctx.nb::<nb::GatewayChassis>(*g) {
            members.push((g.chassis_name.clone(), g.priority));
        }
    }
    group(ctx, &lrp.name, members)
}

/// A group of the northbound database.
pub fn named(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> Option<RowKey> {
    let row = ctx.nb::<nb::HaChassisGroup>(uuid)?;
    let mut members = Vec::new();
    for h in &row.ha_chassis {
        if let Some(h) = ctx.nb::<nb::HaChassis>(*h) {
            members.push((h.chassis_name.clone(), h.priority));
        }
    }
    Some(group(ctx, &row.name, members))
}

/// The row of a group. A chassis that is named several times counts with the highest of its priorities.
fn group(ctx: &mut Ctx<'_, '_>, name: &Str, members: Vec<(Str, i64)>) -> RowKey {
    let mut highest: BTreeMap<Str, i64> = BTreeMap::new();
    for (chassis, priority) in members {
        let one = highest.entry(chassis).or_insert(priority);
        *one = priority.max(*one);
    }
    let mut refs = Vec::new();
    for (chassis, priority) in highest {
        let key = RowKey::new(sb::TableId::HaChassis, format!("{name}/{chassis}"));
        let at = chassis_ref(ctx, &chassis);
        let ids: Map<Str, Str> = Map::from([("chassis-name".into(), chassis.clone())]);
        let columns =
            Columns::new().cell("chassis", Cell::Data(at)).data("priority", &priority).data("external_ids", &ids);
        ctx.row(key.clone(), columns);
        refs.push(key);
    }
    let columns = Columns::new().data("name", name).refs("ha_chassis", refs);
    let key = RowKey::new(sb::TableId::HaChassisGroup, name);
    ctx.row(key.clone(), columns);
    key
}

/// Derives [`Fact::Chassis`]: the chassis that the ports of a switch are on.
pub fn chassis_of(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) else { return };
    let mut all = BTreeSet::new();
    for p in &row.ports {
        let Some(lsp) = ctx.lsp(*p) else { continue };
        let redirect = (lsp.kind == Kind::Router).then(|| Str::from(format!("cr-{}", lsp.name)));
        for name in redirect.iter().chain([&lsp.name]) {
            let Some((u, _)) = ctx.read(Read::Binding(name.clone())).binding(name) else { continue };
            if let Some(binding) = ctx.sb::<sb::PortBinding>(u) {
                all.extend(binding.chassis.iter().chain(&binding.additional_chassis));
            }
        }
    }
    ctx.derive(Fact::Chassis(all));
}

/// `ref_chassis`: the chassis with ports from which the routers of a group of several chassis can be reached.
pub fn references(ctx: &mut Ctx<'_, '_>) {
    let mut done: BTreeSet<Uuid> = BTreeSet::new();
    let mut wanted: BTreeMap<Str, BTreeSet<Uuid>> = BTreeMap::new();
    for u in ctx.nb_table::<nb::LogicalRouter>() {
        if done.contains(&u) || groups_of(ctx, u).is_empty() {
            continue;
        }
        let (mut groups, mut chassis) = (BTreeSet::new(), BTreeSet::new());
        let (routers, switches) = reachable(ctx, u);
        for router in &routers {
            groups.extend(groups_of(ctx, *router));
        }
        for switch in switches {
            if let Some(Fact::Chassis(all)) = ctx.fact(Unit::SwitchChassis(switch)) {
                chassis.extend(all);
            }
        }
        done.extend(routers);
        for group in groups {
            wanted.entry(group).or_default().extend(&chassis);
        }
    }
    for (name, chassis) in wanted {
        let columns = Columns::new().data("ref_chassis", &chassis);
        ctx.row(RowKey::new(sb::TableId::HaChassisGroup, &name), columns);
    }
}

/// The groups of several chassis that a router's gateway ports are on.
fn groups_of(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> BTreeSet<Str> {
    let mut all = BTreeSet::new();
    let Some(router) = ctx.router(uuid) else { return all };
    for port in router.gateway_ports() {
        let (name, members) = match port.row.ha_chassis_group.and_then(|g| ctx.nb::<nb::HaChassisGroup>(g)) {
            Some(group) => (&group.name, group.ha_chassis.len()),
            None => (&port.name, port.row.gateway_chassis.len()),
        };
        if members > 1 {
            all.insert(name.clone());
        }
    }
    all
}

/// The routers that a router is connected with, and the switches between and around them.
fn reachable(ctx: &mut Ctx<'_, '_>, from: Uuid) -> (BTreeSet<Uuid>, BTreeSet<Uuid>) {
    let (mut routers, mut switches, mut next) = (BTreeSet::from([from]), BTreeSet::new(), vec![from]);
    while let Some(router) = next.pop().and_then(|r| ctx.router(r)) {
        for port in &router.ports {
            let mut others = Vec::new();
            let lsp = port.switch_port.and_then(|l| ctx.lsp(l)).filter(|l| l.lrp.is_some());
            if let Some(switch) = lsp.map(|l| l.switch).filter(|s| switches.insert(*s)) {
                others.extend(ctx.switch(switch).into_iter().flat_map(|s| &s.router_ports).filter_map(|p| p.router));
            }
            if let Some(name) = &port.row.peer
                && let Some(peer) = ctx.read(Read::LrpName(name.clone())).lrp_by_name(name)
            {
                others.extend(ctx.lrp(peer).map(|p| p.router));
            }
            next.extend(others.into_iter().filter(|r| routers.insert(*r)));
        }
    }
    (routers, switches)
}
