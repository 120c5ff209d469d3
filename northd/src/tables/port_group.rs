//! `Port_Group`: one row for each switch that a group reaches into, named `KEY_GROUP` by the switch's tunnel key.

use super::names;
use crate::context::Ctx;
use crate::facts::Fact;
use crate::model::{Columns, RowKey, Unit};
use ovn_schema::{Set, Str, Uuid, nb, sb};

/// The rows of a group, and its address sets.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(group) = ctx.port_group(uuid) else { return };
    if let Some(row) = ctx.nb::<nb::PortGroup>(uuid) {
        names::port_group_sets(ctx, row);
    }
    let Some(Fact::DatapathKeys(keys)) = ctx.fact(Unit::DatapathKeys) else { return };
    for (switch, ports) in &group.ports {
        let Some(key) = keys.get(switch) else { continue };
        let name = format!("{key}_{}", group.name);
        let ports: Set<Str> = ports.clone();
        let columns = Columns::new().data("name", &Str::from(name.as_str())).data("ports", &ports);
        ctx.row(RowKey::new(sb::TableId::PortGroup, &name), columns);
    }
}
