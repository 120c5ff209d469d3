//! `isthmusctl show`: the logical network as a tree, with where its ports are.

use crate::database::{connect, rows};
use anyhow::Result;
use ovn_schema::{Str, nb, sb};
use std::collections::BTreeMap;
use std::time::Duration;

const NB: [&str; 8] = [
    "NB_Global",
    "Logical_Switch",
    "Logical_Switch_Port",
    "Logical_Router",
    "Logical_Router_Port",
    "NAT",
    "Logical_Router_Static_Route",
    "Load_Balancer",
];
const SB: [&str; 7] =
    ["SB_Global", "Chassis", "Chassis_Private", "Encap", "Port_Binding", "HA_Chassis_Group", "HA_Chassis"];

/// The northbound database, typed.
async fn northbound(remote: &str, limit: Duration) -> Result<nb::Database> {
    let client = connect(remote, "OVN_Northbound", &NB, limit).await?;
    let mut db = nb::Database::default();
    rows(&client, &NB, |table, schema, id, row| db.apply(table, schema, id, row))?;
    Ok(db)
}

/// The southbound database, typed.
pub async fn southbound(remote: &str, limit: Duration) -> Result<sb::Database> {
    let client = connect(remote, "OVN_Southbound", &SB, limit).await?;
    let mut db = sb::Database::default();
    rows(&client, &SB, |table, schema, id, row| db.apply(table, schema, id, row))?;
    Ok(db)
}

fn list<'a>(items: impl IntoIterator<Item = &'a Str>) -> String {
    items.into_iter().map(|s| &**s).collect::<Vec<_>>().join(", ")
}

/// Prints everything.
pub async fn run(nb_remote: &str, sb_remote: &str, limit: Duration) -> Result<()> {
    let nb = northbound(nb_remote, limit).await?;
    let sb = southbound(sb_remote, limit).await?;
    let places: BTreeMap<&Str, &sb::PortBinding> = sb.port_binding.values().map(|p| (&p.logical_port, &**p)).collect();
    let place = |name: &Str| -> String {
        let Some(p) = places.get(name) else { return "not compiled yet".into() };
        let up = if p.up == Some(true) { "up" } else { "down" };
        match p.chassis.and_then(|c| sb.chassis.get(&c)) {
            Some(c) => format!("on {}, {up}", c.name),
            None if p.r#type.is_empty() => "plugged in nowhere".into(),
            None => String::new(),
        }
    };
    let mut switches: Vec<_> = nb.logical_switch.values().collect();
    switches.sort_by(|a, b| a.name.cmp(&b.name));
    for s in switches {
        println!("switch {}", s.name);
        let mut ports: Vec<_> = s.ports.iter().filter_map(|p| nb.logical_switch_port.get(p)).collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        for p in ports {
            let kind = if p.r#type.is_empty() { String::new() } else { format!(" ({})", p.r#type) };
            println!("  {}{kind}: {}  {}", p.name, list(&p.addresses), place(&p.name));
        }
    }
    let mut routers: Vec<_> = nb.logical_router.values().collect();
    routers.sort_by(|a, b| a.name.cmp(&b.name));
    for r in routers {
        println!("router {}", r.name);
        let mut ports: Vec<_> = r.ports.iter().filter_map(|p| nb.logical_router_port.get(p)).collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        for p in ports {
            let redirect: Str = format!("cr-{}", p.name).into();
            let gateway =
                if places.contains_key(&redirect) { format!("  gateway {}", place(&redirect)) } else { String::new() };
            println!("  {}: {} {}{gateway}", p.name, p.mac, list(&p.networks));
        }
        for route in r.static_routes.iter().filter_map(|id| nb.logical_router_static_route.get(id)) {
            println!("  route {} via {}", route.ip_prefix, route.nexthop);
        }
        for n in r.nat.iter().filter_map(|id| nb.nat.get(id)) {
            let port = n.logical_port.as_ref().map(|p| format!(" at {p}")).unwrap_or_default();
            println!("  {} {} for {}{port}", n.r#type, n.external_ip, n.logical_ip);
        }
    }
    println!("chassis");
    let mut chassis: Vec<_> = sb.chassis.values().collect();
    chassis.sort_by(|a, b| a.name.cmp(&b.name));
    let wanted = sb.sb_global.values().next().map_or(0, |g| g.nb_cfg);
    for c in chassis {
        let encaps: Vec<String> =
            c.encaps.iter().filter_map(|e| sb.encap.get(e)).map(|e| format!("{} {}", e.r#type, e.ip)).collect();
        let cfg = sb.chassis_private.values().find(|p| p.name == c.name).map_or(0, |p| p.nb_cfg);
        let state =
            if cfg >= wanted { "up to date".to_string() } else { format!("at configuration {cfg} of {wanted}") };
        println!("  {}: {}  {state}", c.name, encaps.join(", "));
    }
    Ok(())
}
