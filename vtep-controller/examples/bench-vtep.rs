//! One MAC among 100,000, beside Debian's ovn-controller-vtep in the same run.
//!
//! Usage: `bench [LOGICAL_SWITCHES] [MACS_EACH] [CHANGES]`. Both controllers get databases of their own with the same
//! content, served by one server; measured is the time from the answer of a southbound transaction until the switch's
//! database holds the row, and the processor time of the controller.

use anyhow::{Context, Result, bail};
use ovn_schema::{sb, vtep};
use ovsdb_rs::Server;
use ovsdb_rs::client::{Client, Config, Event, TableRequest};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

/// Hypervisors that the ports are spread over.
const CHASSIS: usize = 20;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(600);

/// The network's size.
#[derive(Clone, Copy)]
struct Size {
    switches: usize,
    macs: usize,
}

struct World {
    sb: Server,
    client: Client,
    events: UnboundedReceiver<Event>,
    ports: Vec<Value>,
    chassis: Vec<Value>,
    dir: tempfile::TempDir,
}

/// What was measured, in seconds.
#[derive(Default)]
struct Figures {
    start: f64,
    start_cpu: f64,
    mac: Vec<f64>,
    moved: Vec<f64>,
    cpu_each: f64,
    memory: f64,
}

fn mac(n: usize) -> String {
    format!("02:00:{:02x}:{:02x}:{:02x}:{:02x}", n >> 24 & 255, n >> 16 & 255, n >> 8 & 255, n & 255)
}

async fn transact(server: &Server, database: &str, operations: Vec<Value>) -> Result<Vec<Value>> {
    let results = server.transact(database, operations).await?;
    if let Some(e) = results.iter().find(|r| r.get("error").is_some_and(|e| !e.is_null())) {
        bail!("{database}: {e}");
    }
    Ok(results)
}

fn uuid_of(results: &[Value], n: usize) -> Value {
    results.get(n).map(|r| r["uuid"].clone()).unwrap_or_default()
}

impl World {
    async fn new(size: Size) -> Result<World> {
        let dir = tempfile::tempdir()?;
        let sb = Server::new();
        sb.add_file(&dir.path().join("sb.db"), Some(&sb::Database::schema())).await?;
        sb.listen(&format!("punix:{}", dir.path().join("sb.sock").display())).await?;
        let tor = Server::new();
        tor.add_file(&dir.path().join("vtep.db"), Some(&vtep::Database::schema())).await?;
        tor.listen(&format!("punix:{}", dir.path().join("vtep.sock").display())).await?;
        let mut operations = Vec::new();
        let mut vlans = Vec::new();
        for n in 0..size.switches {
            operations.push(json!({"op": "insert", "table": "Logical_Switch", "row": {"name": format!("ls{n}")}, "uuid-name": format!("ls{n}")}));
            vlans.push(json!([n, ["named-uuid", format!("ls{n}")]]));
        }
        operations.push(json!({"op": "insert", "table": "Physical_Port", "uuid-name": "p", "row": {"name": "p0", "vlan_bindings": ["map", vlans]}}));
        operations.push(json!({"op": "insert", "table": "Physical_Switch", "uuid-name": "s",
            "row": {"name": "tor", "tunnel_ips": "10.255.0.1", "ports": ["named-uuid", "p"]}}));
        operations.push(json!({"op": "insert", "table": "Global", "row": {"switches": ["named-uuid", "s"]}}));
        transact(&tor, vtep::Database::NAME, operations).await?;
        let config = Config::in_process(&tor, vtep::Database::NAME)
            .table("Ucast_Macs_Remote", TableRequest::columns(["MAC", "locator", "logical_switch"]));
        let (client, events) = Client::start(config);
        let mut world = World { sb, client, events, ports: Vec::new(), chassis: Vec::new(), dir };
        world.southbound(size).await?;
        Ok(world)
    }

    async fn southbound(&mut self, size: Size) -> Result<()> {
        let name = sb::Database::NAME;
        let mut operations = vec![json!({"op": "insert", "table": "SB_Global", "row": {}})];
        for n in 0..CHASSIS {
            operations.push(json!({"op": "insert", "table": "Encap", "uuid-name": format!("e{n}"),
                "row": {"type": "vxlan", "ip": format!("10.0.0.{}", n + 1), "chassis_name": format!("hv{n}")}}));
            operations.push(json!({"op": "insert", "table": "Chassis",
                "row": {"name": format!("hv{n}"), "hostname": format!("hv{n}"), "encaps": ["named-uuid", format!("e{n}")]}}));
        }
        let results = transact(&self.sb, name, operations).await?;
        self.chassis = (0..CHASSIS).map(|n| uuid_of(&results, 2 + 2 * n)).collect();
        for s in 0..size.switches {
            let mut operations = vec![
                json!({"op": "insert", "table": "Datapath_Binding", "row": {"tunnel_key": s + 1}, "uuid-name": "d"}),
                json!({"op": "insert", "table": "Port_Binding", "row": {"logical_port": format!("vtep{s}"), "type": "vtep",
                    "datapath": ["named-uuid", "d"], "tunnel_key": 1, "mac": "unknown",
                    "options": ["map", [["vtep-physical-switch", "tor"], ["vtep-logical-switch", format!("ls{s}")]]]}}),
            ];
            for m in 0..size.macs {
                let n = s * size.macs + m;
                operations.push(json!({"op": "insert", "table": "Port_Binding", "row": {"logical_port": format!("port{n}"),
                    "datapath": ["named-uuid", "d"], "tunnel_key": m + 2, "mac": mac(n), "chassis": self.chassis[n % CHASSIS]}}));
            }
            let results = transact(&self.sb, name, operations).await?;
            self.ports.extend((0..size.macs).map(|m| uuid_of(&results, m + 2)));
        }
        Ok(())
    }

    /// Waits for a change in the switch's database that this holds for.
    async fn wait(
        &mut self,
        what: &str,
        mut is: impl FnMut(&Client, &[ovsdb_rs::client::RowChange]) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let event =
                tokio::time::timeout(left, self.events.recv()).await.with_context(|| format!("{what}: not in time"))?;
            if let Some(Event::Update(u)) = event
                && is(&self.client, &u.changes)
            {
                return Ok(());
            }
        }
    }

    async fn set(&self, port: usize, row: Value) -> Result<()> {
        let id = self.ports.get(port).context("no such port")?;
        let operation = json!({"op": "update", "table": "Port_Binding", "where": [["_uuid", "==", id]], "row": row});
        transact(&self.sb, sb::Database::NAME, vec![operation]).await.map(|_| ())
    }
}

struct Controller(Child);

impl Controller {
    fn start(program: &Path, dir: &Path) -> Result<Controller> {
        let mut c = Command::new(program);
        for key in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR"] {
            c.env(key, dir);
        }
        c.env("OVS_SYSLOG_METHOD", "null").args(["-vconsole:off", "--log-file"]);
        for (option, file) in [("--vtep-db", "vtep.sock"), ("--ovnsb-db", "sb.sock")] {
            c.arg(format!("{option}=unix:{}", dir.join(file).display()));
        }
        let child = c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Controller(child.with_context(|| format!("start {}", program.display()))?))
    }

    /// Processor seconds so far (proc(5): utime and stime, in hundredths).
    fn cpu(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let after = text.rsplit_once(')').map_or("", |(_, a)| a);
        let fields: Vec<f64> = after.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
        (fields.get(11).unwrap_or(&0.0) + fields.get(12).unwrap_or(&0.0)) / 100.0
    }

    /// Megabytes that it holds at most.
    fn memory(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(program: &Path, size: Size, changes: usize) -> Result<Figures> {
    let mut w = World::new(size).await?;
    w.client.connected().await;
    let all = size.switches * size.macs;
    let begin = Instant::now();
    let c = Controller::start(program, w.dir.path())?;
    w.wait("all MACs", |client, _| client.replica(|r| r.rows("Ucast_Macs_Remote").count()) >= all).await?;
    let mut f = Figures { start: begin.elapsed().as_secs_f64(), ..Figures::default() };
    // What follows from the last answer belongs to the start.
    let mut before = c.cpu();
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = c.cpu();
        if now - before < 0.02 {
            break;
        }
        before = now;
    }
    f.start_cpu = c.cpu();
    for n in 0..changes {
        let port = (n * 7919) % all;
        let new = mac(all + n);
        let begin = Instant::now();
        w.set(port, json!({"mac": new})).await?;
        let holds = |row: &ovsdb_rs::Row| row.0.iter().any(|d| d.scalar().and_then(|a| a.as_str()) == Some(&new));
        w.wait("a MAC", |_, changes| changes.iter().any(|c| c.new.as_deref().is_some_and(holds))).await?;
        f.mac.push(begin.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_millis(200)).await;
        let begin = Instant::now();
        let to = w.chassis.get((port + 1) % CHASSIS).context("no such chassis")?.clone();
        w.set(port, json!({"chassis": to})).await?;
        w.wait("a move", |_, changes| changes.iter().any(|c| c.new.as_deref().is_some_and(holds))).await?;
        f.moved.push(begin.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    f.cpu_each = (c.cpu() - f.start_cpu) / (2 * changes) as f64;
    f.memory = c.memory();
    Ok(f)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn line(what: &str, unit: &str, factor: f64, theirs: f64, ours: f64) {
    println!("{what:<44} {:>12.2} {:>12.2} {unit:<3} {:>8.1}x", theirs * factor, ours * factor, theirs / ours);
}

fn installed(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|d| d.join(program)).find(|p| p.exists())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>());
    let mut next = |default| args.next().unwrap_or(Ok(default));
    let (switches, macs, changes) = (next(50)?, next(2000)?, next(15)?);
    let size = Size { switches, macs };
    let ours = std::env::current_exe()?;
    let ours = ours.parent().and_then(Path::parent).context("where is this program?")?.join("vtep-controller");
    let theirs =
        installed("ovn-controller-vtep").context("ovn-controller-vtep is not installed (scripts/install test)")?;
    let mut theirs = measure(&theirs, size, changes).await.context("ovn-controller-vtep")?;
    let mut ours = measure(&ours, size, changes).await.context("vtep-controller")?;
    println!("{} MACs in {switches} logical switches, {changes} changes of each kind (medians)", switches * macs);
    println!("{:<44} {:>12} {:>12} {:<3} {:>9}", "", "C", "ours", "", "ratio");
    line("start until the switch has all", "s", 1.0, theirs.start, ours.start);
    line("start, processor time", "s", 1.0, theirs.start_cpu, ours.start_cpu);
    line("a port gets another MAC", "ms", 1e3, median(&mut theirs.mac), median(&mut ours.mac));
    line("a port moves to another chassis", "ms", 1e3, median(&mut theirs.moved), median(&mut ours.moved));
    line("one change, processor time", "ms", 1e3, theirs.cpu_each, ours.cpu_each.max(1e-4));
    line("memory", "MB", 1.0, theirs.memory, ours.memory);
    Ok(())
}
