//! `isthmusctl vtep`: top-of-rack switches as both sides see them.

use crate::database::{connect, rows};
use anyhow::{Context, Result};
use clap::Subcommand;
use ovn_schema::{Map, Str, Uuid, sb, vtep};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Shows switches, their ports and VLANs with traffic and faults, tunnels with BFD, logical switches with MACs.
    Show,
}

const VTEP: [&str; 11] = [
    "Physical_Switch",
    "Physical_Port",
    "Logical_Binding_Stats",
    "Tunnel",
    "Logical_Switch",
    "Ucast_Macs_Local",
    "Ucast_Macs_Remote",
    "Mcast_Macs_Remote",
    "Physical_Locator",
    "Physical_Locator_Set",
    "Global",
];

const SB: [&str; 4] = ["Chassis", "Encap", "Port_Binding", "Datapath_Binding"];

/// A switch's database, and the version of its schema.
async fn switches(remote: &str, limit: Duration) -> Result<(vtep::Database, String)> {
    let client = connect(remote, vtep::Database::NAME, &VTEP, limit).await?;
    let mut db = vtep::Database::default();
    rows(&client, &VTEP, |table, schema, id, row| db.apply(table, schema, id, row))?;
    let schema = client.schema().context("the database has no schema")?;
    Ok((db, schema.version.clone()))
}

async fn southbound(remote: &str, limit: Duration) -> Result<sb::Database> {
    let client = connect(remote, sb::Database::NAME, &SB, limit).await?;
    let mut db = sb::Database::default();
    rows(&client, &SB, |table, schema, id, row| db.apply(table, schema, id, row))?;
    Ok(db)
}

/// Runs a command.
pub async fn run(sb_remote: &str, remotes: &[String], command: &Command, limit: Duration) -> Result<()> {
    match command {
        Command::Show => {
            let sb = southbound(sb_remote, limit).await?;
            for remote in remotes {
                let (db, version) = switches(remote, limit).await?;
                println!("{remote} (hardware_vtep {version})");
                print!("{}", show(&db, &sb));
            }
        }
    }
    Ok(())
}

fn list<'a>(items: impl IntoIterator<Item = &'a Str>) -> String {
    items.into_iter().map(|s| &**s).collect::<Vec<_>>().join(", ")
}

/// The text for one database.
fn show(db: &vtep::Database, sb: &sb::Database) -> String {
    let mut out = String::new();
    let mut switches: Vec<&vtep::PhysicalSwitch> = db.physical_switch.values().map(|s| &**s).collect();
    switches.sort_by(|a, b| a.name.cmp(&b.name));
    for s in switches {
        physical(s, db, sb, &mut out);
    }
    let mut logical: Vec<_> = db.logical_switch.iter().collect();
    logical.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    for (id, ls) in logical {
        logical_switch(*id, ls, db, &mut out);
    }
    out
}

fn physical(s: &vtep::PhysicalSwitch, db: &vtep::Database, sb: &sb::Database, out: &mut String) {
    let chassis = sb.chassis.iter().find(|(_, c)| c.name == s.name);
    let state = match chassis {
        Some((_, c)) => {
            let ips = list(c.encaps.iter().filter_map(|e| sb.encap.get(e)).map(|e| &e.ip));
            format!("chassis at {ips}")
        }
        None => "no chassis of its own".to_string(),
    };
    let _ = writeln!(out, "  switch {}: tunnel IP {}; {state}", s.name, list(&s.tunnel_ips));
    for fault in &s.switch_fault_status {
        let _ = writeln!(out, "    FAULT {fault}");
    }
    let mut ports: Vec<_> = s.ports.iter().filter_map(|p| db.physical_port.get(p)).collect();
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    for p in ports {
        let faults: String = p.port_fault_status.iter().map(|f| format!("  FAULT {f}")).collect();
        let _ = writeln!(out, "    port {}{faults}", p.name);
        for (vlan, ls) in &p.vlan_bindings {
            let name = db.logical_switch.get(ls).map(|l| l.name.clone()).unwrap_or_default();
            let place = binding(&s.name, &name, sb);
            let stats = p.vlan_stats.get(vlan).and_then(|id| db.logical_binding_stats.get(id)).map(|s| stats(s));
            let _ = writeln!(out, "      VLAN {vlan}: {name}, {place}{}", stats.unwrap_or_default());
        }
    }
    for t in s.tunnels.iter().filter_map(|t| db.tunnel.get(t)) {
        let ip = |id: &Uuid| db.physical_locator.get(id).map(|l| l.dst_ip.to_string()).unwrap_or_default();
        let _ =
            writeln!(out, "    tunnel {} to {}: {}", ip(&t.local), ip(&t.remote), bfd(&t.bfd_params, &t.bfd_status));
    }
}

fn stats(s: &vtep::LogicalBindingStats) -> String {
    format!(
        "; from it {} packets, {} bytes; to it {} packets, {} bytes",
        s.packets_from_local, s.bytes_from_local, s.packets_to_local, s.bytes_to_local
    )
}

/// The logical port that attaches a logical switch on a physical one.
fn binding(physical: &str, logical: &str, sb: &sb::Database) -> String {
    let is = |p: &sb::PortBinding, k: &str, v: &str| p.options.get(k).is_some_and(|o| &**o == v);
    let mut ports: Vec<&sb::PortBinding> = sb
        .port_binding
        .values()
        .map(|p| &**p)
        .filter(|p| {
            &*p.r#type == "vtep" && is(p, "vtep-physical-switch", physical) && is(p, "vtep-logical-switch", logical)
        })
        .collect();
    ports.sort_by_key(|p| (p.chassis.is_none(), p.logical_port.clone()));
    match ports.first() {
        None => "no logical port names it".to_string(),
        Some(p) => {
            let at = sb.datapath_binding.get(&p.datapath).and_then(|d| d.external_ids.get("name")).cloned();
            let at = at.map(|n| format!(" of {n}")).unwrap_or_default();
            let bound = if p.chassis.is_some() { "bound" } else { "NOT BOUND" };
            format!("port {}{at} {bound}", p.logical_port)
        }
    }
}

fn bfd(params: &Map<Str, Str>, status: &Map<Str, Str>) -> String {
    let get = |k: &str| status.get(k).map(|v| &**v);
    let wanted = ovn_schema::options::flag(params, "enable");
    match (get("state"), get("diagnostic")) {
        (None, _) if !wanted => "BFD is off".to_string(),
        (None, _) => "BFD is enabled, and the switch says nothing of it".to_string(),
        (Some(state), Some(why)) => format!("BFD {state} ({why})"),
        (Some(state), None) => format!("BFD {state}"),
    }
}

fn logical_switch(id: Uuid, ls: &vtep::LogicalSwitch, db: &vtep::Database, out: &mut String) {
    let key = match ls.tunnel_key {
        Some(k) if k != 0 => format!("key {k}"),
        _ => "not attached".to_string(),
    };
    let mode = ls.replication_mode.clone().unwrap_or_else(|| "replication not set".into());
    let remote = db.ucast_macs_remote.values().filter(|m| m.logical_switch == id).count();
    let local = db.ucast_macs_local.values().filter(|m| m.logical_switch == id).count();
    let _ = writeln!(out, "  logical switch {}: {key}, {mode}; {remote} remote and {local} local MACs", ls.name);
    let mut sets: BTreeMap<&Str, Vec<&Str>> = BTreeMap::new();
    for m in db.mcast_macs_remote.values().filter(|m| m.logical_switch == id) {
        let locators = db.physical_locator_set.get(&m.locator_set).into_iter().flat_map(|s| &s.locators);
        sets.entry(&m.mac).or_default().extend(locators.filter_map(|l| db.physical_locator.get(l)).map(|l| &l.dst_ip));
    }
    for (mac, mut ips) in sets {
        ips.sort();
        let _ = writeln!(out, "    {mac} to {}", list(ips));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    #[test]
    fn one_of_everything() {
        let mut db = vtep::Database::default();
        let ls = vtep::LogicalSwitch { name: "blue".into(), tunnel_key: Some(7), ..Default::default() };
        db.logical_switch.insert(id(1), Arc::new(ls));
        let stats = vtep::LogicalBindingStats { packets_from_local: 3, bytes_from_local: 180, ..Default::default() };
        db.logical_binding_stats.insert(id(2), Arc::new(stats));
        let port = vtep::PhysicalPort {
            name: "eth1".into(),
            vlan_bindings: [(100, id(1))].into(),
            vlan_stats: [(100, id(2))].into(),
            port_fault_status: ["invalid_vlan_map".into()].into(),
            ..Default::default()
        };
        db.physical_port.insert(id(3), Arc::new(port));
        let locator = |ip: &str| Arc::new(vtep::PhysicalLocator { dst_ip: ip.into(), ..Default::default() });
        db.physical_locator.insert(id(4), locator("10.0.0.1"));
        db.physical_locator.insert(id(5), locator("10.0.0.2"));
        let status = [("state".into(), "down".into()), ("diagnostic".into(), "Path Down".into())].into();
        let tunnel = vtep::Tunnel { local: id(4), remote: id(5), bfd_status: status, ..Default::default() };
        db.tunnel.insert(id(6), Arc::new(tunnel));
        let switch = vtep::PhysicalSwitch {
            name: "tor".into(),
            tunnel_ips: ["10.0.0.1".into()].into(),
            ports: [id(3)].into(),
            tunnels: [id(6)].into(),
            ..Default::default()
        };
        db.physical_switch.insert(id(7), Arc::new(switch));
        let text = show(&db, &sb::Database::default());
        let expected = "  switch tor: tunnel IP 10.0.0.1; no chassis of its own\n    \
            port eth1  FAULT invalid_vlan_map\n      \
            VLAN 100: blue, no logical port names it; from it 3 packets, 180 bytes; to it 0 packets, 0 bytes\n    \
            tunnel 10.0.0.1 to 10.0.0.2: BFD down (Path Down)\n  \
            logical switch blue: key 7, replication not set; 0 remote and 0 local MACs\n";
        assert_eq!(text, expected);
    }
}
