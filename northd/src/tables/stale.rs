//! Rows that chassis have written about things that are gone: they are deleted.

use crate::context::{Ctx, flag, flag_or};
use crate::input::Read;
use ovn_schema::{Uuid, nb, sb};

/// Deletes a row if what it is about is gone.
pub fn row(ctx: &mut Ctx<'_, '_>, table: sb::TableId, uuid: Uuid) {
    let kept = match table {
        sb::TableId::MacBinding => mac_binding(ctx, uuid),
        sb::TableId::Fdb => fdb(ctx, uuid),
        sb::TableId::LearnedRoute => learned_route(ctx, uuid),
        sb::TableId::IgmpGroup => igmp_group(ctx, uuid),
        _ => None,
    };
    if kept == Some(false) {
        ctx.stale(table, uuid);
    }
}

/// The northbound switch or router of a datapath.
fn northbound(ctx: &mut Ctx<'_, '_>, datapath: Uuid) -> Option<Uuid> {
    ctx.sb::<sb::DatapathBinding>(datapath)?.nb_uuid
}

fn is_router_port(ctx: &mut Ctx<'_, '_>, name: &ovn_schema::Str) -> bool {
    let lrp = ctx.read(Read::LrpName(name.clone())).lrp_by_name(name).and_then(|l| ctx.lrp(l));
    lrp.is_some_and(|l| ctx.router(l.router).is_some())
}

fn mac_binding(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> Option<bool> {
    let row = ctx.sb::<sb::MacBinding>(uuid)?;
    let router = northbound(ctx, row.datapath).and_then(|u| ctx.router(u));
    let port = match row.logical_port.strip_prefix("cr-") {
        Some(port) if !is_router_port(ctx, &row.logical_port) => port.into(),
        _ => row.logical_port.clone(),
    };
    Some(router.is_some() && is_router_port(ctx, &port))
}

fn fdb(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> Option<bool> {
    let row = ctx.sb::<sb::Fdb>(uuid)?;
    let key = row.datapath();
    let switch = ctx.read(Read::DatapathKey(key)).datapath_by_key(key);
    // Neither what else a switch has nor its other ports are of concern.
    let table = nb::TableId::LogicalSwitch;
    let switch = switch.filter(|u| ctx.read(Read::NbRow(table, *u)).nb.has(table, *u));
    Some(switch.is_some_and(|u| ctx.is_port_key(u, row.port())))
}

fn learned_route(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> Option<bool> {
    let row = ctx.sb::<sb::LearnedRoute>(uuid)?;
    let name = ctx.sb::<sb::PortBinding>(row.logical_port)?.logical_port.clone();
    let Some(lrp) = ctx.read(Read::LrpName(name.clone())).lrp_by_name(&name).and_then(|l| ctx.lrp(l)) else {
        return Some(false);
    };
    let Some(router) = ctx.router(lrp.router) else { return Some(false) };
    let here = northbound(ctx, row.datapath) == Some(router.uuid);
    let learns = flag(&router.options, "dynamic-routing")
        && !flag_or(
            &lrp.row.options,
            "dynamic-routing-no-learning",
            flag(&router.options, "dynamic-routing-no-learning"),
        );
    Some(here && learns && lrp.enabled())
}

fn igmp_group(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> Option<bool> {
    let row = ctx.sb::<sb::IgmpGroup>(uuid)?;
    let switch = row.datapath.and_then(|d| northbound(ctx, d)).and_then(|u| ctx.switch(u));
    Some(row.chassis.is_some() && switch.is_some())
}
