//! `isthmusctl nic`: this machine's network cards, their functions, and which logical ports these serve.

use crate::database::{connect, rows};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use ovn_schema::ovs;
use ovsdb_rs::stream::socket_file;
use representors::inventory::{Event, Inventory, Mode, Representor};
use representors::{DeviceName, kernel, recorded};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to do with the cards.
#[derive(Subcommand)]
pub enum Command {
    /// Shows cards, their functions, the network devices that represent these, and the logical ports that they serve or fail to serve.
    Show {
        /// One line for each function, with its card.
        #[arg(long)]
        table: bool,
        /// A file of `isthmusctl nic record`, instead of this machine's cards.
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// Puts a card into switchdev mode. Without --yes it only prints the commands, and what they take away.
    Switchdev {
        /// The card: 0000:03:00.0, or as `nic show` has it.
        card: String,
        /// How many virtual functions it is to have; without it as many as it has.
        #[arg(long, value_name = "N")]
        vfs: Option<u32>,
        /// Does it.
        #[arg(long)]
        yes: bool,
    },
    /// Prints what there is as JSON, as `nic show --from` and the controller's --representors take it.
    Record,
}

/// What the switch says of a network device.
#[derive(Debug, Default, PartialEq)]
struct Use {
    port: Option<String>,
    provider: Option<String>,
    error: Option<String>,
}

impl Use {
    fn text(&self) -> String {
        let mut out = match (&self.port, &self.provider) {
            (Some(p), Some(_)) => format!("{p}, plugged in by the controller"),
            (Some(p), None) => format!("{p}, plugged in by somebody else"),
            (None, _) => "in a bridge, for no logical port".to_string(),
        };
        if let Some(e) = &self.error {
            out += &format!("; error: {e}");
        }
        out
    }
}

fn uses(db: &ovs::Database) -> BTreeMap<String, Use> {
    let one = |i: &ovs::Interface| {
        let get = |key: &str| i.external_ids.get(key).map(|v| v.to_string());
        let error = get("ovn-plug-error").or_else(|| i.error.as_ref().map(|e| e.to_string()));
        (i.name.to_string(), Use { port: get("iface-id"), provider: get("ovn-plugged"), error })
    };
    db.interface.values().map(|i| one(i)).collect()
}

/// A function's columns: what it is, its network device, its address, whom it serves.
fn columns(r: &Representor<'_>, uses: &BTreeMap<String, Use>) -> [String; 4] {
    let name = r.link.map(|l| l.name.clone());
    let address = r.address.or_else(|| r.link.and_then(|l| l.address)).map_or("-".to_string(), |a| a.to_string());
    let used = match &name {
        Some(n) => uses.get(n).map_or("-".to_string(), Use::text),
        None => "has no network device".to_string(),
    };
    [r.function.to_string(), name.unwrap_or_else(|| "-".into()), address, used]
}

/// Lines with columns as wide as they need to be.
fn align<const N: usize>(lines: &[[String; N]]) -> Vec<String> {
    let width = |n: usize| lines.iter().map(|l| l[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |l: &[String; N]| l.iter().zip(&widths).map(|(c, w)| format!("{c:w$}")).collect::<Vec<_>>().join("  ");
    lines.iter().map(|l| line(l).trim_end().to_string()).collect()
}

fn show(inventory: &Inventory, uses: &BTreeMap<String, Use>, table: bool) -> String {
    let mut of: BTreeMap<&DeviceName, Vec<Representor<'_>>> =
        inventory.devices().map(|(d, _)| (d, Vec::new())).collect();
    for r in inventory.representors() {
        of.entry(r.device).or_default().push(r);
    }
    let modes: BTreeMap<&DeviceName, Option<Mode>> = inventory.devices().collect();
    let mode = |d: &DeviceName| match modes.get(d).copied().flatten() {
        Some(Mode::Switchdev) => "switchdev",
        Some(Mode::Legacy) => "legacy: its functions have no representors",
        None => "no embedded switch",
    };
    of.values_mut().for_each(|all| all.sort_by_key(|r| r.function));
    let mut out = String::new();
    if table {
        let head = ["CARD", "FUNCTION", "DEVICE", "ADDRESS", "LOGICAL PORT"].map(String::from);
        let mut lines = vec![head];
        for (d, all) in &of {
            for [function, name, address, used] in all.iter().map(|r| columns(r, uses)) {
                lines.push([d.to_string(), function, name, address, used]);
            }
        }
        return align(&lines).iter().map(|l| format!("{l}\n")).collect();
    }
    for (d, all) in &of {
        out += &format!("{d} ({})\n", mode(d));
        let lines = align(&all.iter().map(|r| columns(r, uses)).collect::<Vec<_>>());
        for (n, line) in lines.iter().enumerate() {
            let branch = if n + 1 == lines.len() { "└─" } else { "├─" };
            out += &format!("{branch} {line}\n");
        }
    }
    if of.is_empty() {
        out += "no card with an embedded switch\n";
    }
    out
}

const TABLES: [&str; 1] = ["Interface"];

/// What the local database says of network devices. Without it the cards are shown all the same.
async fn local(remote: &str, limit: Duration) -> Result<ovs::Database> {
    // A machine without a switch is not waited for, as ovs-vsctl does not.
    if let Some(socket) = remote.strip_prefix("unix:").map(|s| socket_file(Path::new(s)))
        && !socket.exists()
    {
        let socket = socket.display();
        bail!("there is no database server at {socket}: start the switch, or name its database by --ovs");
    }
    let client = connect(remote, "Open_vSwitch", &TABLES, limit).await?;
    let mut db = ovs::Database::default();
    rows(&client, &TABLES, |table, schema, id, row| db.apply(table, schema, id, row))?;
    Ok(db)
}

/// Runs a command.
pub async fn run(remote: &str, command: Command, limit: Duration) -> Result<()> {
    let read = || kernel::read().context("this machine's network cards cannot be read");
    match command {
        Command::Record => println!("{}", serde_json::to_string_pretty(&read()?.snapshot())?),
        Command::Switchdev { card, vfs, yes } => {
            // Only the warning is poorer without the database.
            let uses = local(remote, limit).await.map(|db| uses(&db)).unwrap_or_default();
            crate::switchdev::run(&read()?, &card, vfs, yes, |link| uses.get(link).map(Use::text))?;
        }
        Command::Show { table, from } => {
            let inventory = match from {
                Some(f) => {
                    let mut i = Inventory::default();
                    i.apply(Event::Dump(recorded::read(&f).with_context(|| f.display().to_string())?));
                    i
                }
                None => read()?,
            };
            let db = match local(remote, limit).await {
                Ok(db) => db,
                Err(e) => {
                    eprintln!("isthmusctl: which logical ports are served is not known: {e:#}");
                    ovs::Database::default()
                }
            };
            print!("{}", show(&inventory, &uses(&db), table));
            let waiting = crate::why::plugs(limit).await;
            for line in waiting.iter().flat_map(|t| t.lines()).filter(|l| l.contains(", error: ")) {
                println!("{line}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use ovn_schema::{Map, Str, Uuid};
    use std::sync::Arc;

    const CARD: &str = r#"{
      "devices": [{"name": "pci/0000:03:00.0", "mode": "switchdev"}, {"name": "pci/0000:04:00.0", "mode": "legacy"}],
      "ports": [
        {"device": "pci/0000:03:00.0", "index": 0, "function": {"physical": {"port": 0}}, "ifindex": 2},
        {"device": "pci/0000:03:00.0", "index": 1, "function": {"vf": {"pf": 0, "vf": 0}}, "ifindex": 3},
        {"device": "pci/0000:03:00.0", "index": 2, "function": {"vf": {"pf": 0, "vf": 1}}, "ifindex": 4},
        {"device": "pci/0000:03:00.0", "index": 3, "function": {"vf": {"pf": 0, "vf": 2}}}
      ],
      "links": [{"ifindex": 2, "name": "p0", "address": "00:53:00:00:00:02"}, {"ifindex": 3, "name": "eth1"}, {"ifindex": 4, "name": "eth2"}]
    }"#;

    #[test]
    fn a_tree_and_a_table() {
        let mut inventory = Inventory::default();
        inventory.apply(Event::Dump(serde_json::from_str(CARD).unwrap()));
        let mut db = ovs::Database::default();
        let ids = [("iface-id", "lp0"), ("ovn-plugged", "representor"), ("ovn-plug-error", "gone")];
        let external_ids: Map<Str, Str> = ids.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let i = ovs::Interface { name: "eth1".into(), external_ids, ..Default::default() };
        db.interface.insert(Uuid::from_u128(1), Arc::new(i));
        let tree = "pci/0000:03:00.0 (switchdev)\n\
                    ├─ p0      p0    00:53:00:00:00:02  -\n\
                    ├─ pf0vf0  eth1  -                  lp0, plugged in by the controller; error: gone\n\
                    ├─ pf0vf1  eth2  -                  -\n\
                    └─ pf0vf2  -     -                  has no network device\n\
                    pci/0000:04:00.0 (legacy: its functions have no representors)\n";
        assert_eq!(show(&inventory, &uses(&db), false), tree);
        let table = show(&inventory, &uses(&db), true);
        assert_eq!(table.lines().count(), 5);
        assert!(table.contains("pci/0000:03:00.0  pf0vf1    eth2"), "{table}");
    }
}
