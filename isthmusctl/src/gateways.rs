//! `isthmusctl gateways`: who serves each distributed gateway port, who would next, and what those know of its connections.

use crate::show::southbound;
use anyhow::Result;
use ovn_schema::sb::Chassis;
use std::time::Duration;

/// What two gateways say of each other (`Chassis:other_config:isthmus-ha-state`, docs/ha.md): what the second one has of
/// the connections of the first, which serves. Nothing where they tell each other none.
fn connections(serves: &Chassis, stands_by: &Chassis) -> String {
    let of = |c: &Chassis, peer: &str| {
        let all = c.other_config.get("isthmus-ha-state")?;
        let mut words = all.split(',').map(|one| one.split(' ').map(str::to_owned).collect::<Vec<_>>());
        words.find(|w| w.first().is_some_and(|n| n == peer))
    };
    let (theirs, ours) = (of(serves, &stands_by.name), of(stands_by, &serves.name));
    if theirs.is_none() && ours.is_none() {
        return String::new();
    }
    let lag = theirs.and_then(|w| w.get(2).cloned()).unwrap_or_default();
    match ours.as_ref().and_then(|w| w.get(1)).map_or("", |w| w) {
        "in-step" if lag.ends_with('s') => format!(", has its connections, at most {lag} late"),
        "in-step" => ", has its connections".to_owned(),
        "dump" => ", is being told its connections".to_owned(),
        _ => ", knows none of its connections".to_owned(),
    }
}

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
            let known = match p.chassis.and_then(|c| db.chassis.get(&c)).filter(|holder| &*holder.name != name) {
                Some(holder) => chassis.map(|c| connections(holder, c)).unwrap_or_default(),
                None => String::new(),
            };
            println!("  {name:<16} priority {:<6} {state}{known}", h.priority);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chassis(name: &str, state: &str) -> Chassis {
        let other_config = [("isthmus-ha-state".into(), state.into())].into_iter().filter(|_| !state.is_empty());
        Chassis { name: name.into(), other_config: other_config.collect(), ..Default::default() }
    }

    #[test]
    fn what_a_standby_knows() {
        let known = |serves: &str, stands_by: &str| connections(&chassis("gw1", serves), &chassis("gw2", stands_by));
        assert_eq!(known("", ""), "");
        let both = known("gw3 silent silent,gw2 in-step 10ms", "gw1 in-step 1ms");
        assert_eq!(both, ", has its connections, at most 10ms late");
        assert_eq!(known("gw2 in-step dump", "gw1 dump 1ms"), ", is being told its connections");
        assert_eq!(known("gw2 in-step 1ms", ""), ", knows none of its connections", "its switch is another one");
        assert_eq!(known("", "gw1 silent silent"), ", knows none of its connections");
        assert_eq!(known("", "gw1 in-step silent"), ", has its connections");
    }
}
