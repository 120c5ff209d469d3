//! A whole southbound database in one transaction, as northd writes it into an empty one, with a client that
//! monitors it; then single changes in it.

use super::{SCHEMA, milliseconds};
use crate::server::{Client, Server};
use anyhow::Context;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// What one server needed.
#[derive(Debug, Default)]
pub struct Figures {
    /// From sending the transaction until its answer, ms.
    pub clock: f64,
    /// Of the server, until the monitoring client has all, s.
    pub cpu: f64,
    /// At the peak beyond what the empty server takes, MB.
    pub peak: f64,
    /// Afterwards, MB.
    pub memory: f64,
    /// A single change, mean, ms.
    pub change: f64,
    /// A single change, processor time, ms.
    pub change_cpu: f64,
}

const CHANGES: usize = 100;
const GROUPS: usize = 20;

fn uuid(kind: u128, n: usize) -> String {
    ovsdb_rs::Uuid::from_u128((kind << 64 | n as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
        .to_string()
}

fn flow(i: usize, datapaths: usize) -> Value {
    let place = match i % 4 {
        0 => ("logical_dp_group", uuid(2, i % GROUPS)),
        _ => ("logical_datapath", uuid(1, i % datapaths)),
    };
    json!({"op": "insert", "table": "Logical_Flow", "uuid": uuid(3, i), "row": {
        place.0: ["uuid", place.1], "pipeline": "ingress", "table_id": i % 25, "priority": 100 + i % 2000,
        "match": format!("inport == \"lsp-{i}\" && eth.src == 00:00:00:00:{:02x}:{:02x} && ip4.src == 10.0.{}.{}",
            i / 256 % 256, i % 256, i / 256 % 256, i % 256),
        "actions": format!("reg0[{}] = 1; next;", i % 16),
        "external_ids": ["map", [["source", format!("northd.c:{}", 5000 + i % 300)],
            ["stage-name", format!("ls_in_stage{}", i % 25)], ["stage-hint", format!("{:08x}", i % 12_000)]]]}})
}

fn operations(flows: usize, datapaths: usize) -> Vec<Value> {
    let mut out = Vec::with_capacity(flows + datapaths + GROUPS);
    for i in 0..datapaths {
        out.push(json!({"op": "insert", "table": "Datapath_Binding", "uuid": uuid(1, i),
            "row": {"tunnel_key": i + 1, "external_ids": ["map", [["name", format!("ls{i}")]]]}}));
    }
    for i in 0..GROUPS {
        let members: Vec<Value> = (0..datapaths).map(|d| json!(["uuid", uuid(1, d)])).collect();
        out.push(json!({"op": "insert", "table": "Logical_DP_Group", "uuid": uuid(2, i),
            "row": {"datapaths": ["set", members]}}));
    }
    out.extend((0..flows).map(|i| flow(i, datapaths)));
    out
}

/// Measures one server.
pub fn measure(program: &Path, dir: &Path, flows: usize) -> anyhow::Result<Figures> {
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(SCHEMA).with_context(|| SCHEMA)?)?;
    let schema = ovsdb_rs::DatabaseSchema::from_json(&schema)?;
    let db = dir.join("bulk.db");
    std::fs::write(&db, ovsdb_rs::file::write_record(&schema.to_json()))?;
    let server = Server::start(program, dir, &db)?.0;
    let mut watcher = server.client()?;
    let monitored = json!({"Logical_Flow": [{}], "Datapath_Binding": [{}], "Logical_DP_Group": [{}]});
    let nil = ovsdb_rs::Uuid::nil().to_string();
    watcher.ask("monitor_cond_since", json!(["OVN_Southbound", "m", monitored, nil]))?;
    let datapaths = (flows / 400).max(1);
    let mut client = server.client()?;
    let params: Value = std::iter::once(json!("OVN_Southbound")).chain(operations(flows, datapaths)).collect();
    let text = Client::text("transact", &params);
    drop(params);
    let (memory, cpu, sent) = (server.memory()?, server.cpu_seconds()?, Instant::now());
    let (clock, drained) = std::thread::scope(|scope| {
        let drained = scope.spawn(|| watcher.ask("echo", json!([])));
        let answer = client.exchange("transact", &text).map(|_| milliseconds(sent.elapsed()));
        // An update that was sent before the answer to the echo has been read with it.
        (answer, drained.join())
    });
    drained.map_err(|_| anyhow::anyhow!("the watcher failed"))??;
    watcher.ask("echo", json!([]))?;
    let mut f = Figures { clock: clock?, cpu: server.cpu_seconds()? - cpu, ..Figures::default() };
    f.peak = server.peak()? - memory;
    f.memory = server.memory()?;
    let (cpu, started) = (server.cpu_seconds()?, Instant::now());
    for i in 0..CHANGES {
        let group = uuid(2, i % GROUPS);
        client.transact(vec![
            json!({"op": "wait", "timeout": 0, "table": "Logical_Flow", "columns": ["priority"], "until": "!=",
                "where": [["_uuid", "==", ["uuid", uuid(3, i)]]], "rows": [{"priority": 7}]}),
            json!({"op": "update", "table": "Logical_Flow", "where": [["_uuid", "==", ["uuid", uuid(3, i)]]],
                "row": {"priority": 7}}),
            flow(flows + i, datapaths),
            json!({"op": "mutate", "table": "Logical_DP_Group", "where": [["_uuid", "==", ["uuid", group]]],
                "mutations": [["datapaths", "delete", ["uuid", uuid(1, i % datapaths)]]]}),
        ])?;
    }
    watcher.ask("echo", json!([]))?;
    f.change = milliseconds(started.elapsed()) / CHANGES as f64;
    f.change_cpu = (server.cpu_seconds()? - cpu) * 1e3 / CHANGES as f64;
    Ok(f)
}
