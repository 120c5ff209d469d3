//! `isthmusctl ic`: zones that are joined, as the interconnection southbound database has them.

use crate::database::{connect, rows};
use crate::why::Program;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use ovn_schema::{Uuid, ic_sb};
use ovsdb_rs::client::{Client, Transaction};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Shows zones with their gateways and ports on transit switches and routers; then, as the interconnect of this zone
    /// says, each route that the zone tells or learns, and why others are not.
    Show {
        /// The routes whose prefix or router begins with this.
        route: Option<String>,
        /// The program, by its pidfile in the run directory (OVN_RUNDIR, /var/run/ovn), or its control socket.
        #[arg(long, value_name = "TARGET")]
        interconnect: Option<String>,
    },
    /// Takes away all that a zone which is gone for good left behind.
    ///
    /// Without --yes it shows what would go, and changes nothing. A zone whose daemon runs registers itself again.
    Prune {
        /// The zone's name.
        zone: String,
        /// Takes it away.
        #[arg(long)]
        yes: bool,
    },
}

/// The names under which interconnect runs.
const NAMES: [&str; 2] = ["ovn-ic", "interconnect"];

const TABLES: [&str; 8] = [
    "Availability_Zone",
    "Gateway",
    "Encap",
    "Datapath_Binding",
    "Port_Binding",
    "Route",
    "Address_Set",
    "Service_Monitor",
];

fn load(client: &Client) -> Result<ic_sb::Database> {
    let mut db = ic_sb::Database::default();
    rows(client, &TABLES, |table, schema, id, row| db.apply(table, schema, id, row))?;
    Ok(db)
}

/// Runs a command.
pub async fn run(remote: &str, command: &Command, limit: Duration) -> Result<()> {
    let client = connect(remote, ic_sb::Database::NAME, &TABLES, limit).await?;
    let db = load(&client)?;
    match command {
        Command::Show { route, interconnect } => {
            print!("{}", show(&db));
            let program = Program { names: NAMES, option: "--interconnect", target: interconnect.as_deref() };
            match program.ask("routes/show", route.as_slice(), limit).await {
                Ok(routes) if routes.is_empty() => println!("no such route"),
                Ok(routes) => print!("{routes}"),
                // The zones may be looked at from a machine without a daemon.
                Err(e) if interconnect.is_none() => println!("routes are not shown: {e:#}"),
                Err(e) => return Err(e),
            }
        }
        Command::Prune { zone, yes } => print!("{}", prune(&client, &db, zone, *yes).await?),
    }
    Ok(())
}

fn show(db: &ic_sb::Database) -> String {
    let mut out = String::new();
    if db.availability_zone.is_empty() {
        return "no zone is registered\n".into();
    }
    let mut zones: Vec<_> = db.availability_zone.iter().collect();
    zones.sort_by_key(|(_, z)| z.name.clone());
    for (id, zone) in zones {
        let routes = db.route.values().filter(|r| r.availability_zone == *id).count();
        let _ = writeln!(out, "zone {}: {routes} routes told, sequence number {}", zone.name, zone.nb_ic_cfg);
        let mut gateways: Vec<_> = db.gateway.values().filter(|g| g.availability_zone == *id).collect();
        gateways.sort_by_key(|g| g.name.clone());
        for g in gateways {
            let mut ends: Vec<String> =
                g.encaps.iter().filter_map(|e| db.encap.get(e)).map(|e| format!("{} {}", e.r#type, e.ip)).collect();
            ends.sort();
            let host = if g.hostname.is_empty() { String::new() } else { format!(" on {}", g.hostname) };
            let _ = writeln!(out, "  gateway {}{host}: {}", g.name, ends.join(", "));
        }
        let mut ports: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for p in db.port_binding.values().filter(|p| p.availability_zone == *id) {
            let place = if p.gateway.is_empty() { String::new() } else { format!(" at {}", p.gateway) };
            let text = format!("    port {} (key {}){place}: {}", p.logical_port, p.tunnel_key, p.address);
            ports.entry(&p.transit_switch).or_default().push(text.trim_end_matches([' ', ':']).to_string());
        }
        for (of, mut lines) in ports {
            lines.sort();
            let _ = writeln!(out, "  on {of}\n{}", lines.join("\n"));
        }
    }
    out
}

/// All rows of a zone: the table, the row, and what it is.
fn rows_of(db: &ic_sb::Database, zone: Uuid, name: &str) -> Vec<(&'static str, Uuid, String)> {
    let mut out = Vec::new();
    let gateways = db.gateway.iter().filter(|(_, g)| g.availability_zone == zone);
    out.extend(gateways.map(|(id, g)| ("Gateway", *id, g.name.to_string())));
    let ports = db.port_binding.iter().filter(|(_, p)| p.availability_zone == zone);
    out.extend(ports.map(|(id, p)| ("Port_Binding", *id, format!("{} on {}", p.logical_port, p.transit_switch))));
    let routes = db.route.iter().filter(|(_, r)| r.availability_zone == zone);
    out.extend(
        routes.map(|(id, r)| ("Route", *id, format!("{} by {} on {}", r.ip_prefix, r.nexthop, r.transit_switch))),
    );
    let sets = db.address_set.iter().filter(|(_, s)| s.availability_zone == zone);
    out.extend(sets.map(|(id, s)| ("Address_Set", *id, s.name.to_string())));
    let monitors = db
        .service_monitor
        .iter()
        .filter(|(_, m)| &*m.source_availability_zone == name || &*m.target_availability_zone == name);
    out.extend(monitors.map(|(id, m)| {
        let (from, to) = (&m.source_availability_zone, &m.target_availability_zone);
        ("Service_Monitor", *id, format!("{}:{} ({from} asks {to})", m.ip, m.port))
    }));
    out.push(("Availability_Zone", zone, name.to_string()));
    out.sort_by(|a, b| (a.0, &a.2).cmp(&(b.0, &b.2)));
    out
}

async fn prune(client: &Client, db: &ic_sb::Database, name: &str, yes: bool) -> Result<String> {
    let Some(zone) = db.availability_zone.iter().find(|(_, z)| &*z.name == name).map(|(id, _)| *id) else {
        let mut names: Vec<&str> = db.availability_zone.values().map(|z| &*z.name).collect();
        names.sort_unstable();
        bail!("there is no zone {name}; zones are: {}", names.join(", "));
    };
    let rows = rows_of(db, zone, name);
    let mut out = String::new();
    for (table, _, text) in &rows {
        let _ = writeln!(out, "{} {table}: {text}", if yes { "deleted" } else { "would delete" });
    }
    if !yes {
        let _ = writeln!(out, "nothing is changed; --yes takes these {} rows away", rows.len());
        return Ok(out);
    }
    let mut txn = Transaction::new(client.schema().context("the database has no schema")?);
    txn.comment(&format!("isthmusctl ic prune {name}"));
    for (table, id, _) in &rows {
        txn.delete(table, *id);
    }
    let results = client.transact(txn.into_operations()).await?;
    if let Some(error) = results.iter().find(|r| r.get("error").is_some_and(|e| !e.is_null())) {
        bail!("zone {name} is not taken away: {error}");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const LIMIT: Duration = Duration::from_secs(30);

    async fn world() -> (tempfile::TempDir, ovsdb_rs::Server, Client) {
        let dir = tempfile::tempdir().unwrap();
        let server = ovsdb_rs::Server::new();
        server.add_file(&dir.path().join("icsb.db"), Some(&ic_sb::Database::schema())).await.unwrap();
        let socket = dir.path().join("sock");
        server.listen(&format!("punix:{}", socket.display())).await.unwrap();
        let mut operations = Vec::new();
        for (n, zone) in ["north", "south"].iter().enumerate() {
            let az = json!(["named-uuid", format!("az{n}")]);
            operations.extend([
                json!({"op": "insert", "table": "Availability_Zone", "uuid-name": format!("az{n}"), "row": {"name": zone}}),
                json!({"op": "insert", "table": "Encap", "uuid-name": format!("e{n}"),
                    "row": {"type": "geneve", "ip": format!("10.0.0.{n}")}}),
                json!({"op": "insert", "table": "Gateway", "row": {"name": format!("gw-{zone}"), "hostname": "host",
                    "availability_zone": az, "encaps": ["named-uuid", format!("e{n}")]}}),
                json!({"op": "insert", "table": "Port_Binding", "row": {"logical_port": format!("p-{zone}"),
                    "transit_switch": "ts1", "availability_zone": az, "tunnel_key": n + 1,
                    "gateway": format!("gw-{zone}"), "address": "00:00:00:00:00:01 10.1.0.1/24"}}),
                json!({"op": "insert", "table": "Route", "row": {"transit_switch": "ts1", "availability_zone": az,
                    "ip_prefix": format!("192.168.{n}.0/24"), "nexthop": "10.1.0.1", "origin": "connected"}}),
            ]);
        }
        let results = server.transact(ic_sb::Database::NAME, operations).await.unwrap();
        assert!(results.iter().all(|r| r.get("error").is_none_or(Value::is_null)), "{results:?}");
        let remote = format!("unix:{}", socket.display());
        let client = connect(&remote, ic_sb::Database::NAME, &TABLES, LIMIT).await.unwrap();
        (dir, server, client)
    }

    #[tokio::test]
    async fn a_zone_goes_with_all_that_it_left_when_that_is_said() {
        let (_dir, server, client) = world().await;
        let db = load(&client).unwrap();
        let shown = show(&db);
        assert_eq!(
            shown.lines().take(4).collect::<Vec<_>>(),
            [
                "zone north: 1 routes told, sequence number 0",
                "  gateway gw-north on host: geneve 10.0.0.0",
                "  on ts1",
                "    port p-north (key 1) at gw-north: 00:00:00:00:00:01 10.1.0.1/24",
            ]
        );
        let error = prune(&client, &db, "east", true).await.unwrap_err().to_string();
        assert_eq!(error, "there is no zone east; zones are: north, south");
        let count = async || {
            let select = |t: &&str| json!({"op": "select", "table": t, "where": []});
            let results = server.transact(ic_sb::Database::NAME, TABLES.iter().map(select).collect()).await.unwrap();
            results.iter().map(|r| r["rows"].as_array().unwrap().len()).collect::<Vec<_>>()
        };
        let before = count().await;
        let text = prune(&client, &db, "north", false).await.unwrap();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "would delete Availability_Zone: north",
                "would delete Gateway: gw-north",
                "would delete Port_Binding: p-north on ts1",
                "would delete Route: 192.168.0.0/24 by 10.1.0.1 on ts1",
                "nothing is changed; --yes takes these 4 rows away",
            ]
        );
        assert_eq!(count().await, before);
        prune(&client, &db, "north", true).await.unwrap();
        assert_eq!(count().await, before.iter().map(|n| n / 2).collect::<Vec<_>>());
    }
}
