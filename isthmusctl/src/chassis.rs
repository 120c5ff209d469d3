//! `isthmusctl chassis`: the local database's settings, for machines without ovs-vsctl.

use crate::database::{connect, rows};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use ovn_schema::{Map, Set, Str, Uuid, Write, ovs};
use ovsdb_rs::client::{Client, Transaction};
use std::time::{Duration, Instant};

/// What to configure.
#[derive(Subcommand)]
pub enum Command {
    /// Sets what ovn-controller(8) reads: name, southbound database, encapsulation, bridge mappings.
    Set {
        /// The chassis' name (`system-id`).
        #[arg(long)]
        name: String,
        /// The southbound database (`ovn-remote`).
        #[arg(long)]
        remote: String,
        /// The tunnels' address (`ovn-encap-ip`).
        #[arg(long)]
        encap_ip: String,
        /// The tunnels' types (`ovn-encap-type`).
        #[arg(long, default_value = "geneve")]
        encap_type: String,
        /// Provider networks, NETWORK:BRIDGE (`ovn-bridge-mappings`).
        #[arg(long, value_delimiter = ',')]
        mapping: Vec<String>,
        /// Tunnels to other zones end here (`ovn-is-interconn`).
        #[arg(long)]
        interconn: bool,
        /// The integration bridge's datapath type, for Open vSwitch without its kernel module: netdev.
        #[arg(long)]
        datapath_type: Option<String>,
    },
    /// Makes a bridge, with interfaces in it.
    Bridge {
        /// Its name.
        name: String,
        /// Interfaces; NAME=VLAN makes an access port.
        interfaces: Vec<String>,
        /// The datapath type, for Open vSwitch without its kernel module: netdev.
        #[arg(long)]
        datapath_type: Option<String>,
    },
    /// Puts an interface into the integration bridge for a logical port.
    Plug {
        /// The interface.
        interface: String,
        /// The logical port.
        port: String,
    },
    /// Takes an interface out of its bridge.
    Unplug {
        /// The interface.
        interface: String,
    },
}

const TABLES: [&str; 4] = ["Open_vSwitch", "Bridge", "Port", "Interface"];

/// The local database, typed.
fn load(client: &Client) -> Result<ovs::Database> {
    let mut db = ovs::Database::default();
    rows(client, &TABLES, |table, schema, id, row| db.apply(table, schema, id, row))?;
    Ok(db)
}

/// Runs a command and waits until the switch has taken it over.
pub async fn run(remote: &str, command: Command, limit: Duration) -> Result<()> {
    let client = connect(remote, "Open_vSwitch", &TABLES, limit).await?;
    let db = load(&client)?;
    let mut txn = Transaction::new(client.schema().context("the database has no schema")?);
    let root = match db.open_vswitch.iter().next() {
        Some((id, _)) => *id,
        None => txn.insert_row::<ovs::OpenVswitch>([]),
    };
    let row = db.open_vswitch.get(&root).map(|r| (**r).clone()).unwrap_or_default();
    match command {
        Command::Set { name, remote, encap_ip, encap_type, mapping, interconn, datapath_type } => {
            let mut ids = row.external_ids.clone();
            let mut set = |k: &str, v: String| drop(ids.insert(k.into(), v.into()));
            set("system-id", name.clone());
            set("hostname", name);
            set("ovn-remote", remote);
            set("ovn-encap-ip", encap_ip);
            set("ovn-encap-type", encap_type);
            if !mapping.is_empty() {
                set("ovn-bridge-mappings", mapping.join(","));
            }
            if interconn {
                set("ovn-is-interconn", "true".into());
            }
            if let Some(t) = datapath_type {
                set("ovn-bridge-datapath-type", t);
            }
            txn.update_row(root, [ovs::OpenVswitch::external_ids(&ids)]);
        }
        Command::Bridge { name, interfaces, datapath_type } => {
            bridge(&db, root, &name, &interfaces, datapath_type.as_deref(), &mut txn)?;
        }
        Command::Plug { interface, port } => {
            let Some((id, br)) = db.bridge.iter().find(|(_, b)| &*b.name == "br-int") else {
                bail!("there is no bridge br-int yet; the controller makes it");
            };
            if br.ports.iter().any(|p| db.port.get(p).is_some_and(|p| *p.name == *interface)) {
                bail!("{interface} is in br-int already; unplug it first");
            }
            let ids: Map<Str, Str> = Map::from([("iface-id".into(), port.as_str().into())]);
            let new = add_port(&interface, None, ids, "", &mut txn);
            txn.add_to_row(*id, ovs::Bridge::ports(&Set::from([new])));
        }
        Command::Unplug { interface } => {
            let port = db.port.iter().find(|(_, p)| *p.name == *interface).map(|(id, _)| *id);
            let Some(port) = port else { bail!("no port has the name {interface}") };
            for (id, _) in db.bridge.iter().filter(|(_, b)| b.ports.contains(&port)) {
                txn.remove_from_row(*id, ovs::Bridge::ports(&Set::from([port])));
            }
        }
    }
    let cfg = row.next_cfg + 1;
    txn.update_row(root, [ovs::OpenVswitch::next_cfg(&cfg)]);
    client.commit(txn).await?;
    taken_over(&client, cfg, limit).await
}

fn bridge(
    db: &ovs::Database,
    root: Uuid,
    name: &str,
    interfaces: &[String],
    kind: Option<&str>,
    txn: &mut Transaction,
) -> Result<()> {
    let mut ports = Set::new();
    for i in interfaces {
        let (device, tag) = match i.split_once('=') {
            Some((d, t)) => (d, Some(t.parse::<i64>().with_context(|| format!("{i}: the VLAN is no number"))?)),
            None => (i.as_str(), None),
        };
        if !db.interface.values().any(|x| &*x.name == device) {
            ports.insert(add_port(device, tag, Map::new(), "", txn));
        }
    }
    match db.bridge.iter().find(|(_, b)| &*b.name == name) {
        Some((id, _)) => txn.add_to_row(*id, ovs::Bridge::ports(&ports)),
        None => {
            ports.insert(add_port(name, None, Map::new(), "internal", txn));
            let mut columns = vec![ovs::Bridge::name(&Str::from(name)), ovs::Bridge::ports(&ports)];
            if let Some(k) = kind {
                columns.push(ovs::Bridge::datapath_type(&Str::from(k)));
            }
            let id = txn.insert_row(columns);
            txn.add_to_row(root, ovs::OpenVswitch::bridges(&Set::from([id])));
        }
    }
    Ok(())
}

fn add_port(name: &str, tag: Option<i64>, ids: Map<Str, Str>, kind: &str, txn: &mut Transaction) -> Uuid {
    let iface = [
        ovs::Interface::name(&Str::from(name)),
        ovs::Interface::external_ids(&ids),
        ovs::Interface::r#type(&Str::from(kind)),
    ];
    let iface = txn.insert_row(iface);
    txn.insert_row([
        ovs::Port::name(&Str::from(name)),
        ovs::Port::interfaces(&Set::from([iface])),
        ovs::Port::tag(&tag),
    ])
}

/// Waits for the switch, as ovs-vsctl does; then tells of interfaces that it could not open.
async fn taken_over(client: &Client, cfg: i64, limit: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        let db = load(client)?;
        if db.open_vswitch.values().any(|r| r.cur_cfg >= cfg) {
            for i in db.interface.values() {
                if let Some(e) = i.error.as_ref().filter(|e| !e.is_empty()) {
                    eprintln!("interface {}: {e}", i.name);
                }
            }
            return Ok(());
        }
        if start.elapsed() > limit {
            bail!("written, but the switch has not taken it over within {limit:?}; does it run?");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
