//! `Load_Balancer`: what controllers need of one for hairpinned traffic.

use crate::context::Ctx;
use crate::model::{Cell, Columns, RowKey};
use ovn_schema::{Str, Uuid, sb};
use std::sync::Arc;

/// The row of a load balancer that is in some datapath.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lb) = ctx.lb(uuid) else { return };
    super::health::load_balancer(ctx, lb);
    let Some(used) = ctx.lb_use(uuid).filter(|u| !u.switches.all.is_empty() || !u.routers.all.is_empty()) else {
        return;
    };
    let mut vips = lb.row.vips.clone();
    if lb.template && lb.row.options.get("address-family").is_some_and(|f| &**f != "ipv4") {
        // Controllers tell the address that a variable stands for from the port by the brackets.
        let told = lb
            .vips
            .iter()
            .map(|v| {
                let port = v.port.as_ref().map_or(String::new(), |p| format!(":{p}"));
                let address =
                    if v.address.starts_with('^') { format!("[{}]", v.address) } else { v.address.to_string() };
                (format!("{address}{port}").into(), v.backends_text.clone())
            })
            .collect::<ovn_schema::Map<Str, Str>>();
        // What cannot be read stays as it is.
        if !told.is_empty() {
            vips = told;
        }
    }
    let columns = Columns::new()
        .data("name", &lb.row.name)
        .data("vips", &vips)
        .data("protocol", &lb.row.protocol)
        .data("options", &lb.row.options)
        .refs("datapaths", Vec::new())
        .cell("datapath_group", Cell::Group(Arc::from([])))
        .cell("ls_datapath_group", Cell::Group(used.switches.all.clone()))
        .cell("lr_datapath_group", Cell::Group(used.routers.all.clone()));
    ctx.row(RowKey::new(sb::TableId::LoadBalancer, uuid.to_string()), columns);
}
