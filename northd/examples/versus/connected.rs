//! Single changes by a client that is connected and stays so: what northd and the databases take, without a process that starts.

use anyhow::{Context, Result, bail};
use ovsdb_rs::client::{Client, Config, Event, TableRequest, inserted};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;

/// How often each change is made.
const TIMES: usize = 15;

/// A client of the northbound database that replicates how far northd is.
pub struct Connected {
    runtime: Runtime,
    client: Client,
    events: UnboundedReceiver<Event>,
}

/// An insertion, and the mutation that gives the new row to another one.
fn child(table: &str, row: Value, parent: &str, name: &str, column: &str) -> Vec<Value> {
    vec![
        json!({"op": "insert", "table": table, "uuid-name": "new", "row": row}),
        json!({"op": "mutate", "table": parent, "where": [["name", "==", name]],
            "mutations": [[column, "insert", ["named-uuid", "new"]]]}),
    ]
}

/// The operations of change `i` of a kind, in the network of pods or that of tenants.
fn operations(kind: &str, pods: bool, i: usize, ports: &mut Vec<String>) -> Option<Vec<Value>> {
    let (switch, router) = if pods { ("n1", "cluster") } else { ("t1", "r1") };
    Some(match kind {
        "port" => {
            let row = json!({"name": format!("connected-{i}"), "addresses": format!("0a:0f:01:00:00:{i:02x}")});
            child("Logical_Switch_Port", row, "Logical_Switch", switch, "ports")
        }
        "port removed" => vec![json!({"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", switch]],
            "mutations": [["ports", "delete", ["uuid", ports.pop()?]]]})],
        "ACL" => {
            let row = json!({"direction": "to-lport", "priority": 1100 + i, "match": "tcp", "action": "allow"});
            let (table, name) = if pods { ("Logical_Switch", "n1") } else { ("Port_Group", "sg1") };
            child("ACL", row, table, name, "acls")
        }
        "LB backend" => {
            vec![json!({"op": "update", "table": "Load_Balancer", "where": [["name", "==", "svc-1"]], "row": {
                "vips": ["map", [["172.30.0.2:80", format!("10.3.0.{}:8080", 20 + i)]]]}})]
        }
        "route" => {
            let row = json!({"ip_prefix": format!("198.51.{i}.0/24"), "nexthop": "10.1.0.9"});
            child("Logical_Router_Static_Route", row, "Logical_Router", router, "static_routes")
        }
        "NAT" => {
            let network = format!("10.253.{i}.0/24");
            let row = json!({"type": "snat", "external_ip": "192.168.1.2", "logical_ip": network});
            child("NAT", row, "Logical_Router", "gr-1", "nat")
        }
        "FIP" => {
            let address = format!("172.16.1.{}", 150 + i);
            let row = json!({"type": "dnat_and_snat", "external_ip": address, "logical_ip": "10.1.0.29"});
            child("NAT", row, "Logical_Router", "r1", "nat")
        }
        _ => return None,
    })
}

impl Connected {
    /// Connects to a northbound database.
    pub fn start(server: &str) -> Result<Connected> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let request = TableRequest::columns(["nb_cfg", "sb_cfg"]);
        let config = Config::new(server, "OVN_Northbound")?.table("NB_Global", request);
        let (client, events) = runtime.block_on(async {
            let (client, events) = Client::start(config);
            client.connected().await;
            (client, events)
        });
        Ok(Connected { runtime, client, events })
    }

    /// `nb_cfg` and `sb_cfg`.
    fn numbers(client: &Client) -> Option<(i64, i64)> {
        client.replica(|r| {
            let table = r.schema()?.table("NB_Global").ok()?;
            let (_, row) = r.rows("NB_Global").next()?;
            let of = |column: &str| row.get(table, column)?.scalar()?.as_integer();
            Some((of("nb_cfg")?, of("sb_cfg")?))
        })
    }

    /// Carries out operations and waits until the southbound database has what follows; seconds, and the UUID of the row that
    /// the first one inserted.
    fn change(&mut self, mut operations: Vec<Value>) -> Result<(f64, Option<String>)> {
        let Connected { runtime, client, events } = self;
        runtime.block_on(async {
            let (nb, _) = Connected::numbers(client).context("no NB_Global")?;
            operations.push(json!({"op": "update", "table": "NB_Global", "where": [], "row": {"nb_cfg": nb + 1}}));
            while events.try_recv().is_ok() {}
            let start = Instant::now();
            let results = client.transact(operations).await?;
            if let Some(error) = results.iter().find(|r| r.get("error").is_some()) {
                bail!("{error}");
            }
            while Connected::numbers(client).is_none_or(|(_, sb)| sb < nb + 1) {
                tokio::time::timeout(Duration::from_secs(900), events.recv()).await?.context("connection lost")?;
            }
            let row = results.first().and_then(inserted).map(|u| u.to_string());
            Ok((start.elapsed().as_secs_f64(), row))
        })
    }

    /// The median of several changes of each kind, in seconds; none where there is no such change here.
    pub fn medians(&mut self, pods: bool, kinds: &[&str]) -> Result<Vec<Option<f64>>> {
        let mut ports = Vec::new();
        let mut medians = Vec::new();
        for kind in kinds {
            let mut took = Vec::new();
            for i in 0..TIMES {
                let Some(operations) = operations(kind, pods, i, &mut ports) else { break };
                let (seconds, row) = self.change(operations)?;
                took.push(seconds);
                if *kind == "port" {
                    ports.extend(row);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            took.sort_by(f64::total_cmp);
            medians.push(took.get(took.len() / 2).copied());
        }
        Ok(medians)
    }
}
