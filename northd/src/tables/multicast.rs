//! `Multicast_Group` and `IP_Multicast` of a switch.

use super::igmp;
use crate::context::{Ctx, flag, flag_or, number};
use crate::facts::lsp::Kind;
use crate::facts::lsp::switch_redirect;
use crate::model::{Columns, RowKey};
use ovn_schema::{Str, Uuid, nb, sb};

/// Every port.
pub const FLOOD: (&str, i64) = ("_MC_flood", 32768);
/// Every port that takes unknown addresses.
pub const UNKNOWN: (&str, i64) = ("_MC_unknown", 32769);
/// Ports to routers that relay multicast.
pub const MROUTER_FLOOD: (&str, i64) = ("_MC_mrouter_flood", 32770);
/// Ports with `mcast_flood`.
pub const STATIC: (&str, i64) = ("_MC_static", 32771);
/// Every port that leads to no router.
pub const FLOOD_L2: (&str, i64) = ("_MC_flood_l2", 32772);

/// A multicast group, unless it is empty.
pub fn group(ctx: &mut Ctx<'_, '_>, datapath: Uuid, (name, key): (&str, i64), ports: Vec<RowKey>) {
    if ports.is_empty() {
        return;
    }
    let columns = Columns::new()
        .data("name", &Str::from(name))
        .data("tunnel_key", &key)
        .refs("datapath", vec![RowKey::datapath(datapath)])
        .refs("ports", ports);
    ctx.row(RowKey::new(sb::TableId::MulticastGroup, format!("{datapath}/{name}")), columns);
}

/// The groups of a switch.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) else { return };
    let [mut flood, mut unknown, mut flood_l2, mut statics, mut mrouters] = [const { Vec::new() }; 5];
    let switch = ctx.switch(uuid);
    for p in &row.ports {
        let Some(lsp) = ctx.lsp(*p).filter(|l| l.switch == uuid && l.enabled()) else { continue };
        let redirected = lsp.kind == Kind::Router && switch_redirect(ctx, lsp);
        let name = if redirected { Str::from(format!("cr-{}", lsp.name)) } else { lsp.name.clone() };
        let key = || RowKey::port(&name);
        if flag_or(&lsp.row.options, "receive_multicast", true) {
            if lsp.unknown {
                unknown.push(key());
            }
            // Where its packets are mirrored to another port, the way there is as the port itself.
            let mirrors = switch.into_iter().flat_map(|s| s.mirrors.iter()).filter(|(_, first)| **first == *p);
            for key in mirrors.map(|((name, _), _)| RowKey::port(name)).chain([key()]) {
                flood.push(key.clone());
                if lsp.kind != Kind::Router {
                    flood_l2.push(key.clone());
                }
                if lsp.option("mcast_flood") {
                    statics.push(key.clone());
                }
                if lsp.option("mcast_flood_reports") {
                    mrouters.push(key);
                }
            }
            if lsp.router.and_then(|r| ctx.router(r)).is_some_and(|r| r.mcast_relay()) {
                mrouters.push(key());
            }
        }
    }
    if let Some(switch) = switch {
        let learned = igmp::of_switch(ctx, switch);
        igmp::switch(ctx, switch, &learned);
        igmp::transit(ctx, switch);
        mrouters.extend(learned.mrouters);
    }
    group(ctx, uuid, FLOOD, flood);
    group(ctx, uuid, UNKNOWN, unknown);
    group(ctx, uuid, FLOOD_L2, flood_l2);
    group(ctx, uuid, STATIC, statics);
    mrouters.sort();
    mrouters.dedup();
    group(ctx, uuid, MROUTER_FLOOD, mrouters);
    ip_multicast(ctx, uuid, row);
}

fn ip_multicast(ctx: &mut Ctx<'_, '_>, uuid: Uuid, row: &nb::LogicalSwitch) {
    let config = &row.other_config;
    let of = |key: &str, default: i64| number(config, key).unwrap_or(default);
    let number = |key: &str, default: i64, low: i64, high: i64| Some(of(key, default).clamp(low, high));
    let idle = number("mcast_idle_timeout", 300, 15, 3600);
    let interval = number("mcast_query_interval", idle.unwrap_or(300) / 2, 1, 3600);
    let text = |key: &str| config.get(key).cloned().unwrap_or_default();
    let columns = Columns::new()
        .refs("datapath", vec![RowKey::datapath(uuid)])
        .data("enabled", &Some(flag(config, "mcast_snoop")))
        .data("querier", &Some(flag_or(config, "mcast_querier", true)))
        .data("table_size", &Some(of("mcast_table_size", 2048)))
        .data("idle_timeout", &idle)
        .data("query_interval", &interval)
        .data("query_max_resp", &Some(of("mcast_query_max_response", 1)))
        .data("eth_src", &text("mcast_eth_src"))
        .data("ip4_src", &text("mcast_ip4_src"))
        .data("ip6_src", &text("mcast_ip6_src"));
    ctx.row(RowKey::new(sb::TableId::IpMulticast, uuid.to_string()), columns);
}
