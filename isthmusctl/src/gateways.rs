//! `isthmusctl gateways`: who serves each distributed gateway port, and who would next.

use crate::show::southbound;
use anyhow::Result;
use std::time::Duration;

/// Prints the gateways.
pub async fn run(sb: &str, limit: Duration) -> Result<()> {
    let db = southbound(sb, limit).await?;
    let mut ports: Vec<_> = db.port_binding.values().filter(|p| &*p.r#type == "chassisredirect").collect();
    ports.sort_by(|a, b| a.logical_port.cmp(&b.logical_port));
    if ports.is_empty() {
        println!("no distributed gateway port");
    }
    for p in ports {
        let name = p.options.get("distributed-port").unwrap_or(&p.logical_port);
        let active = p.chassis.and_then(|c| db.chassis.get(&c)).map_or("nobody", |c| &*c.name);
        println!("{name}: served by {active}");
        let Some(group) = p.ha_chassis_group.and_then(|g| db.ha_chassis_group.get(&g)) else { continue };
        let mut members: Vec<_> = group.ha_chassis.iter().filter_map(|h| db.ha_chassis.get(h)).collect();
        members.sort_by_key(|h| std::cmp::Reverse(h.priority));
        for h in members {
            let chassis = h.chassis.and_then(|c| db.chassis.get(&c));
            let listed = h.external_ids.get("chassis-name").map_or("?", |n| &**n);
            let name = chassis.map_or(listed, |c| &*c.name);
            let state = match chassis {
                Some(_) if name == active => "active",
                Some(_) => "standing by",
                None => "not registered",
            };
            println!("  {name:<16} priority {:<6} {state}", h.priority);
        }
    }
    Ok(())
}
