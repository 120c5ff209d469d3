//! `HA_Chassis_Group`, `HA_Chassis`: which chassis a gateway port or an external port is on.

use super::binding::chassis_ref;
use crate::context::Ctx;
use crate::facts::lsp::Kind;
use crate::model::{Cell, Columns, RowKey};
use ovn_schema::{Map, Set, Str, Uuid, nb, sb};
use std::collections::BTreeMap;

/// The groups in use: those that gateway ports and external ports name, and one for each port with gateway chassis.
pub fn run(ctx: &mut Ctx<'_, '_>) {
    let mut groups: BTreeMap<Str, Vec<(Str, i64)>> = BTreeMap::new();
    let mut named: Set<Uuid> = Set::new();
    for p in ctx.nb_table::<nb::LogicalRouterPort>() {
        let Some(lrp) = ctx.lrp(p).filter(|l| l.gateway) else { continue };
        if ctx.router(lrp.router).is_none_or(|r| r.is_gateway()) {
            continue;
        }
        if let Some(group) = lrp.row.ha_chassis_group {
            named.insert(group);
            continue;
        }
        let mut members = Vec::new();
        for g in &lrp.row.gateway_chassis {
            if let Some(g) = ctx.nb::<nb::GatewayChassis>(*g) {
                members.push((g.chassis_name.clone(), g.priority));
            }
        }
        groups.insert(lrp.name.clone(), members);
    }
    for p in ctx.nb_table::<nb::LogicalSwitchPort>() {
        let Some(lsp) = ctx.lsp(p).filter(|l| l.kind == Kind::External) else { continue };
        named.extend(lsp.row.ha_chassis_group);
    }
    for u in named {
        let Some(row) = ctx.nb::<nb::HaChassisGroup>(u) else { continue };
        let mut members = Vec::new();
        for h in &row.ha_chassis {
            if let Some(h) = ctx.nb::<nb::HaChassis>(*h) {
                members.push((h.chassis_name.clone(), h.priority));
            }
        }
        groups.insert(row.name.clone(), members);
    }
    for (name, members) in groups {
        group(ctx, &name, members);
    }
}

fn group(ctx: &mut Ctx<'_, '_>, name: &Str, members: Vec<(Str, i64)>) {
    let mut refs = Vec::new();
    for (chassis, priority) in members {
        let key = RowKey::new(sb::TableId::HaChassis, format!("{name}/{chassis}"));
        let at = chassis_ref(ctx, &chassis);
        let ids: Map<Str, Str> = Map::from([("chassis-name".into(), chassis.clone())]);
        let columns =
            Columns::new().cell("chassis", Cell::Data(at)).data("priority", &priority).data("external_ids", &ids);
        ctx.row(key.clone(), columns);
        refs.push(key);
    }
    let columns = Columns::new().data("name", name).refs("ha_chassis", refs);
    ctx.row(RowKey::new(sb::TableId::HaChassisGroup, name), columns);
}
