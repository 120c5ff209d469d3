//! Our server beside Debian's ovsdb-server in one run: transactions, fan-out to monitoring clients, start-up,
//! memory, compaction. `make bench-ovsdb`; only the ratios travel from one machine to another.

mod bulk;
mod fanout;
mod server;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use server::{Client, Server};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What was measured of one server.
#[derive(Debug, Default)]
struct Figures {
    transactions_1: f64,
    transactions_50: f64,
    durable_1: f64,
    durable_50: f64,
    rows_delivered: f64,
    rows_per_cpu: f64,
    delay_p99: f64,
    start: f64,
    memory: f64,
    memory_served: f64,
    pause: f64,
    usual: f64,
}

const THEIRS: &str = "/usr/sbin/ovsdb-server";
const SCHEMA: &str = "/usr/share/ovn/ovn-sb.ovsschema";

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn main() -> anyhow::Result<()> {
    let this = std::env::current_exe()?;
    let ours = this.parent().and_then(Path::parent).context("where am I?")?.join("ovsdb");
    ensure!(ours.exists(), "{}: build it first (make bench-ovsdb does)", ours.display());
    ensure!(Path::new(THEIRS).exists(), "{THEIRS}: install openvswitch-switch first (scripts/install test)");
    let (flows, clients) = (number("FLOWS", 200_000), number("CLIENTS", 1000));
    let root = tempfile::tempdir()?;
    let large = root.path().join("large.db");
    std::fs::write(&large, large_database(flows)?)?;
    println!("database of {flows} logical flows: {} MB", std::fs::metadata(&large)?.len() >> 20);
    println!("\n| {flows} flows in one transaction | ours | ovsdb-server | ratio |\n|---|---|---|---|");
    let line = |what: &str, x: f64, y: f64| println!("| {what} | {x:.1} | {y:.1} | {:.2} |", y / x);
    let bulk = |program: &Path, name: &str| {
        let dir = root.path().join(name);
        std::fs::create_dir_all(&dir)?;
        bulk::measure(program, &dir, flows).with_context(|| name.to_string())
    };
    let (a, b) = (bulk(&ours, "ours")?, bulk(Path::new(THEIRS), "ovsdb-server")?);
    line("until its answer, ms", a.clock, b.clock);
    line("processor time of the server, s", a.cpu, b.cpu);
    line("memory at the peak beyond the empty server's, MB", a.peak, b.peak);
    line("memory afterwards, MB", a.memory, b.memory);
    line("a single change then, ms", a.change, b.change);
    line("processor time of a single change, ms", a.change_cpu, b.change_cpu);
    if std::env::var_os("BULK").is_some() {
        return Ok(());
    }
    let measure = |program: &Path, name: &str| {
        let dir = root.path().join(name);
        std::fs::create_dir_all(&dir)?;
        let figures = measure(program, &dir, &large, clients).with_context(|| name.to_string());
        println!("{name}: {figures:?}");
        figures
    };
    let a = measure(&ours, "ours")?;
    let b = measure(Path::new(THEIRS), "ovsdb-server")?;
    println!("\n| what | ours | ovsdb-server | ratio |\n|---|---|---|---|");
    let line = |what: &str, x: f64, y: f64, ratio: f64| println!("| {what} | {x:.1} | {y:.1} | {ratio:.2} |");
    let more = |what: &str, x: f64, y: f64| line(what, x, y, x / y);
    let less = |what: &str, x: f64, y: f64| line(what, x, y, y / x);
    more("transactions/s, 1 writer", a.transactions_1, b.transactions_1);
    more("transactions/s, 50 writers", a.transactions_50, b.transactions_50);
    more("durable transactions/s, 1 writer", a.durable_1, b.durable_1);
    more("durable transactions/s, 50 writers", a.durable_50, b.durable_50);
    more(&format!("rows/s delivered to {clients} clients"), a.rows_delivered, b.rows_delivered);
    more("rows delivered for a second of the server's CPU", a.rows_per_cpu, b.rows_per_cpu);
    less("delay of an update, p99, ms", a.delay_p99, b.delay_p99);
    less(&format!("start with {flows} flows, ms"), a.start, b.start);
    less("memory after that, MB", a.memory, b.memory);
    less("memory after a client has read it all, MB", a.memory_served, b.memory_served);
    less("longest wait for an answer while compacting, ms", a.pause, b.pause);
    less("longest wait without compacting, ms", a.usual, b.usual);
    Ok(())
}

/// A southbound database such as northd makes.
fn large_database(flows: usize) -> anyhow::Result<Vec<u8>> {
    let text = std::fs::read_to_string(SCHEMA).with_context(|| SCHEMA.to_string())?;
    let schema = ovsdb_rs::DatabaseSchema::from_json(&serde_json::from_str(&text)?)?;
    // Spread, as ovsdb-server hashes a UUID by its first bits alone.
    let uuid = |n: usize| {
        ovsdb_rs::Uuid::from_u128((n as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)).to_string()
    };
    let (mut datapaths, mut rows) = (serde_json::Map::new(), serde_json::Map::new());
    let count = (flows / 800).max(1);
    for i in 0..count {
        datapaths.insert(uuid(i), json!({"tunnel_key": i + 1, "external_ids": ["map", [["name", format!("ls{i}")]]]}));
    }
    for i in 0..flows {
        let (a, b) = (i / 256 % 256, i % 256);
        let stage = format!("ls_in_stage{}", i % 25);
        rows.insert(
            uuid(1_000_000 + i),
            json!({"logical_datapath": ["uuid", uuid(i % count)], "pipeline": "ingress", "table_id": i % 25,
                "priority": 100 + i % 2000,
                "match": format!("inport == \"lsp-{i}\" && eth.src == 00:00:00:{:02x}:{a:02x}:{b:02x} && ip4.src == 10.{}.{a}.{b}",
                    i >> 16, i >> 16),
                "actions": format!("reg0[{}] = 1; next;", i % 16),
                "tags": ["map", []],
                "external_ids": ["map", [["source", format!("northd.c:{}", 5000 + i % 300)], ["stage-name", stage],
                    ["stage-hint", format!("{:08x}", i % 12_000)]]]}),
        );
    }
    let mut out = ovsdb_rs::file::write_record(&schema.to_json());
    out.extend(ovsdb_rs::file::write_record(
        &json!({"Datapath_Binding": datapaths, "Logical_Flow": rows, "_date": 1_700_000_000_000u64}),
    ));
    Ok(out)
}

/// Replaces a row. Ours is on disk before the answer in any case; ovsdb-server's where that is asked for.
fn small(name: usize, durable: bool) -> Vec<Value> {
    let is = json!([["name", "==", format!("c{name}")]]);
    let row = json!({"name": format!("c{name}"), "addresses": "10.0.0.1"});
    vec![
        json!({"op": "delete", "table": "Address_Set", "where": is}),
        json!({"op": "insert", "table": "Address_Set", "row": row}),
        json!({"op": "commit", "durable": durable}),
    ]
}

/// Transactions per second of so many writers.
fn transactions(server: &Server, writers: usize, durable: bool) -> anyhow::Result<f64> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let clients: Vec<Client> = (0..writers).map(|_| server.client()).collect::<Result<_, _>>()?;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (i, mut client) in clients.into_iter().enumerate() {
            let (stop, done) = (&stop, &done);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) && client.transact(small(i, durable)).is_ok() {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(4));
        stop.store(true, Ordering::Relaxed);
    });
    Ok(done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

fn milliseconds(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// The longest wait of a writer for an answer, in ms, while `meanwhile` runs and a little longer.
fn longest_wait(server: &Server, meanwhile: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let stop = AtomicBool::new(false);
    let mut client = server.client()?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let sent = Instant::now();
                if client.transact(small(0, true)).is_err() {
                    break;
                }
                longest = longest.max(sent.elapsed());
            }
            longest
        });
        std::thread::sleep(Duration::from_millis(300));
        let result = meanwhile();
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        result?;
        let longest = writer.join().map_err(|_| anyhow::anyhow!("the writer failed"))?;
        Ok(milliseconds(longest))
    })
}

fn measure(program: &Path, dir: &Path, large: &Path, clients: usize) -> anyhow::Result<Figures> {
    let mut f = Figures::default();
    let db = dir.join("small.db");
    std::fs::write(&db, large_database(1)?)?;
    let server = Server::start(program, dir, &db)?.0;
    f.transactions_1 = transactions(&server, 1, false)?;
    f.transactions_50 = transactions(&server, 50, false)?;
    f.durable_1 = transactions(&server, 1, true)?;
    f.durable_50 = transactions(&server, 50, true)?;
    let fanout = fanout::measure(&server, clients)?;
    (f.rows_delivered, f.rows_per_cpu, f.delay_p99) =
        (fanout.rows_per_second, fanout.rows_per_cpu_second, fanout.delay_p99);
    drop(server);

    let db = dir.join("large.db");
    std::fs::copy(large, &db)?;
    let (server, start) = Server::start(program, dir, &db)?;
    f.start = milliseconds(start);
    f.memory = server.memory()?;
    f.usual = longest_wait(&server, || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    f.pause = longest_wait(&server, || server.control("ovsdb-server/compact"))?;
    server.client()?.ask(
        "monitor_cond_since",
        json!(["OVN_Southbound", "m",
        {"Logical_Flow": [{}], "Datapath_Binding": [{}]}, ovsdb_rs::Uuid::nil().to_string()]),
    )?;
    f.memory_served = server.memory()?;
    Ok(f)
}
