//! Address sets, template variables, static neighbours.

use crate::addresses::Mac;
use crate::context::Ctx;
use crate::facts::Fact;
use crate::input::Read;
use crate::model::{Columns, RowKey, Unit};
use ovn_schema::{Set, Str, Uuid, nb, sb};

fn columns(name: &str, addresses: &Set<Str>) -> Columns {
    Columns::new().data("name", &Str::from(name)).data("addresses", addresses)
}

fn set(ctx: &mut Ctx<'_, '_>, name: &str, addresses: &Set<Str>) {
    ctx.row(RowKey::new(sb::TableId::AddressSet, name), columns(name, addresses));
}

/// A northbound address set.
pub fn address_set(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    if let Some(row) = ctx.nb::<nb::AddressSet>(uuid) {
        let columns = columns(&row.name, &row.addresses).data("options", &row.options);
        ctx.row(RowKey::new(sb::TableId::AddressSet, &row.name), columns);
    }
}

/// The name of a port group's address set.
pub fn group_set_name(group: &str, v6: bool) -> String {
    format!("{group}_ip{}", if v6 { 6 } else { 4 })
}

/// The two address sets of a port group: the addresses of its ports.
pub fn port_group_sets(ctx: &mut Ctx<'_, '_>, row: &nb::PortGroup) {
    let (mut v4, mut v6) = (Set::new(), Set::new());
    for p in &row.ports {
        let Some(port) = ctx.lsp(*p) else { continue };
        for a in port.addresses.iter().take(port.own_addresses) {
            v4.extend(a.v4.iter().map(|n| Str::from(n.addr.to_string())));
            v6.extend(a.v6.iter().map(|n| Str::from(n.addr.to_string())));
        }
    }
    set(ctx, &group_set_name(&row.name, false), &v4);
    set(ctx, &group_set_name(&row.name, true), &v6);
}

/// `Chassis_Template_Var`.
pub fn templates(ctx: &mut Ctx<'_, '_>) {
    for u in ctx.nb_table::<nb::ChassisTemplateVar>() {
        if let Some(row) = ctx.nb::<nb::ChassisTemplateVar>(u) {
            let columns = Columns::new().data("chassis", &row.chassis).data("variables", &row.variables);
            ctx.row(RowKey::new(sb::TableId::ChassisTemplateVar, u.to_string()), columns);
        }
    }
}

/// `Static_MAC_Binding`, of a port that exists.
pub fn static_mac(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::StaticMacBinding>(uuid) else { return };
    let Ok(mac) = row.mac.parse::<Mac>() else {
        ctx.problem(format!("static MAC binding of {}: \"{}\" is no Ethernet address", row.logical_port, row.mac));
        return;
    };
    let Some(lrp) = ctx.read(Read::LrpName(row.logical_port.clone())).lrp_by_name(&row.logical_port) else { return };
    let Some(Fact::Lrp(lrp)) = ctx.fact(Unit::Lrp(lrp)) else { return };
    if ctx.router(lrp.router).is_none() {
        return;
    }
    let columns = Columns::new()
        .data("logical_port", &row.logical_port)
        .data("ip", &row.ip)
        .data("mac", &Str::from(mac.to_string()))
        .data("override_dynamic_mac", &row.override_dynamic_mac)
        .refs("datapath", vec![RowKey::datapath(lrp.router)]);
    ctx.row(RowKey::new(sb::TableId::StaticMacBinding, uuid.to_string()), columns);
}
