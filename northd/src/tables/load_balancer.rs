//! `Load_Balancer`: what controllers need of one for hairpinned traffic.

use crate::context::Ctx;
use crate::facts::Fact;
use crate::model::{Cell, Columns, RowKey, Unit};
use ovn_schema::{Set, Str, Uuid, sb};

/// The row of a load balancer that is in some datapath.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lb) = ctx.lb(uuid) else { return };
    super::health::load_balancer(ctx, lb);
    let Some(Fact::LbUse(all)) = ctx.fact(Unit::LbUse) else { return };
    let Some(used) = all.get(&uuid) else { return };
    let mut vips = lb.row.vips.clone();
    if lb.template && lb.row.options.get("address-family").is_some_and(|f| &**f != "ipv4") {
        // Controllers tell address and port apart by the brackets.
        vips = lb
            .vips
            .iter()
            .map(|v| {
                let port = v.port.as_ref().map_or(String::new(), |p| format!(":{p}"));
                (format!("[{}]{port}", v.address).into(), v.backends_text.clone())
            })
            .collect();
    }
    let group = |set: &Set<Uuid>| Cell::Group(set.iter().copied().collect());
    let columns = Columns::new()
        .data("name", &lb.row.name)
        .data("vips", &vips)
        .data("protocol", &Some(lb.protocol.clone()))
        .data("options", &lb.row.options)
        .refs("datapaths", Vec::new())
        .cell("datapath_group", Cell::Group(Vec::new()))
        .cell("ls_datapath_group", group(&used.switches))
        .cell("lr_datapath_group", group(&used.routers));
    ctx.row(RowKey::new(sb::TableId::LoadBalancer, uuid.to_string()), columns);
}

/// The protocol as it stands in a match.
pub fn protocol_number(protocol: &Str) -> u8 {
    match &**protocol {
        "udp" => 17,
        "sctp" => 132,
        _ => 6,
    }
}
