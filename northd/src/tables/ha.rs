//! `HA_Chassis_Group`, `HA_Chassis`: which chassis a gateway port or an external port is on.
//!
//! Every port that needs a group puts its rows out; equal rows of several ports are one.

use super::binding::chassis_ref;
use crate::context::Ctx;
use crate::facts::lrp::Lrp;
use crate::model::{Cell, Columns, RowKey};
use ovn_schema::{Map, Str, Uuid, nb, sb};

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

fn group(ctx: &mut Ctx<'_, '_>, name: &Str, members: Vec<(Str, i64)>) -> RowKey {
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
    let key = RowKey::new(sb::TableId::HaChassisGroup, name);
    ctx.row(key.clone(), columns);
    key
}
