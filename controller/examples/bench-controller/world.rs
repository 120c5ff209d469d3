//! A chassis over a copy of the cloud: databases, switch, controller.

use crate::cloud::{self, transact};
use crate::process::Running;
use crate::wire::Wire;
use anyhow::{Context, Result, bail};
use ovsdb_rs::Server;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(600);

pub struct World {
    pub server: Server,
    pub wire: Wire,
    pub controller: Running,
    _switch: Running,
    monitor: Option<Monitor>,
    folder: PathBuf,
}

/// `ovs-ofctl monitor`: when the switch last changed a flow.
struct Monitor {
    child: Child,
    last: Arc<Mutex<Option<Instant>>>,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl World {
    /// Starts all, the controller last. `made` is the folder of the cloud's database.
    pub async fn new(made: &Path, folder: &Path, program: &Path, monitor_all: bool) -> Result<World> {
        std::fs::create_dir_all(folder.join("switch"))?;
        std::fs::create_dir_all(folder.join("controller"))?;
        std::fs::copy(made.join("sb.db"), folder.join("sb.db"))?;
        let server = Server::new();
        server.add_file(&folder.join("sb.db"), None).await?;
        server
            .add_file(
                &folder.join("conf.db"),
                Some(&cloud::schema(Path::new("/usr/share/openvswitch/vswitch.ovsschema"))?),
            )
            .await?;
        server.listen(&format!("punix:{}", folder.join("db.sock").display())).await?;
        let remote = format!("unix:{}", folder.join("db.sock").display());
        let mut interfaces = vec![
            json!({"op": "insert", "table": "Interface", "uuid-name": "i", "row": {"name": "br-int", "type": "internal"}}),
        ];
        interfaces.push(json!({"op": "insert", "table": "Port", "uuid-name": "p", "row": {"name": "br-int", "interfaces": ["named-uuid", "i"]}}));
        interfaces.push(json!({"op": "insert", "table": "Bridge", "uuid-name": "b", "row":
            {"name": "br-int", "datapath_type": "dummy", "fail_mode": "secure", "ports": ["named-uuid", "p"]}}));
        let ids = json!([
            "map",
            [
                ["system-id", "local"],
                ["ovn-remote", remote],
                ["ovn-encap-type", "geneve"],
                ["ovn-encap-ip", "10.255.0.1"],
                ["ovn-monitor-all", monitor_all.to_string()],
                ["ovn-openflow-probe-interval", "0"],
                ["ovn-remote-probe-interval", "0"]
            ]
        ]);
        interfaces.push(json!({"op": "insert", "table": "Open_vSwitch", "row": {"bridges": ["named-uuid", "b"], "external_ids": ids}}));
        transact(&server, "Open_vSwitch", interfaces).await?;
        for t in 0..cloud::LOCAL_TENANTS {
            for s in 0..cloud::SWITCHES {
                for p in 0..cloud::LOCAL_PORTS {
                    plug(&server, &cloud::port(t, s, p)).await?;
                }
            }
        }
        let mut switch = Command::new("ovs-vswitchd");
        switch.args(["--enable-dummy=override", "--disable-system", "--no-chdir", &remote]);
        let switch = Running::start(switch, &folder.join("switch"))?;
        let socket = folder.join("switch/br-int.mgmt");
        let end = Instant::now() + Duration::from_secs(30);
        while !socket.exists() {
            if Instant::now() > end {
                bail!("ovs-vswitchd made no bridge, see {}", folder.join("switch").display());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let wire = Wire::start(&folder.join("controller/br-int.mgmt"), &socket)?;
        let mut controller = Command::new(program);
        controller.arg(&remote);
        let controller = Running::start(controller, &folder.join("controller"))?;
        Ok(World { server, wire, controller, _switch: switch, monitor: None, folder: folder.into() })
    }

    pub async fn sb(&self, operations: Vec<Value>) -> Result<Vec<Value>> {
        transact(&self.server, "OVN_Southbound", operations).await
    }

    pub async fn sb_rows(&self, table: &str, r#where: Value, columns: Value) -> Result<Vec<Value>> {
        cloud::rows(&self.server, "OVN_Southbound", table, r#where, columns).await
    }

    fn ofctl(&self, args: &[&str]) -> Result<String> {
        let remote = format!("unix:{}", self.folder.join("switch/br-int.mgmt").display());
        let (first, rest) = args.split_first().context("no command")?;
        let out = Command::new("ovs-ofctl").arg(first).arg(remote).args(rest).output()?;
        if !out.status.success() {
            bail!("ovs-ofctl {first}: {}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(String::from_utf8(out.stdout)?)
    }

    /// How many flows the switch has.
    pub fn flows(&self) -> Result<usize> {
        let text = self.ofctl(&["dump-aggregate"])?;
        let n = text.split("flow_count=").nth(1).context("flow_count")?;
        Ok(n.chars().take_while(char::is_ascii_digit).collect::<String>().parse()?)
    }

    /// The flows, as text.
    pub fn dump(&self) -> Result<String> {
        self.ofctl(&["dump-flows", "--no-stats"])
    }

    /// Waits until the controller has nothing to do and the switch's flows stay as they are, at least so many. Returns when the flows
    /// were there, how many, and the processor time until all was quiet.
    pub async fn settle(&mut self, at_least: usize) -> Result<(Instant, usize, f64)> {
        let end = Instant::now() + LIMIT;
        let (mut n, mut since, mut ran, mut quiet) = (0, Instant::now(), self.controller.ran(), Instant::now());
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let (flows, now) = (self.flows()?, Instant::now());
            if flows != n {
                (n, since) = (flows, now);
            }
            let used = self.controller.ran();
            // Two in a hundred is what a controller that has nothing to do may take.
            if used - ran > 0.02 {
                (ran, quiet) = (used, now);
            } else if now - quiet > Duration::from_secs(2) {
                ran = used;
            }
            if n >= at_least && now - since > Duration::from_secs(3) && now - quiet > Duration::from_secs(3) {
                return Ok((since, n, used));
            }
            if self.controller.is_over() {
                bail!("the controller ended, see {}", self.folder.join("controller").display());
            }
            if now > end {
                bail!("{n} flows, not settled in time, see {}", self.folder.join("controller").display());
            }
        }
    }

    /// Watches the switch's flows from now on: when this returns, a change has been seen.
    pub async fn watch(&mut self) -> Result<()> {
        let remote = format!("unix:{}", self.folder.join("switch/br-int.mgmt").display());
        let mut c = Command::new("ovs-ofctl");
        // Its own control socket is there, too.
        c.env("OVS_RUNDIR", self.folder.join("switch"))
            .args(["monitor", &remote, "watch:!initial"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = c.spawn()?;
        let lines = BufReader::new(child.stderr.take().context("no output")?);
        let last: Arc<Mutex<Option<Instant>>> = Arc::default();
        let l = last.clone();
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok).filter(|l| l.contains("event=")) {
                if !line.contains("event=ABBREV") || line.contains("xid=") {
                    *l.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                }
            }
        });
        self.monitor = Some(Monitor { child, last: last.clone() });
        // On a busy machine it takes its time to begin; a flow in a table that no controller uses tells.
        let end = Instant::now() + Duration::from_secs(60);
        let mut n = 0;
        while last.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            if Instant::now() > end {
                bail!("ovs-ofctl monitor shows no flow that is added, see {}", self.folder.join("switch").display());
            }
            n += 1;
            self.ofctl(&["add-flow", &format!("table=250,priority={n},actions=drop")])?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.ofctl(&["del-flows", "table=250"]).map(drop)
    }

    /// Runs a change. Returns seconds from its end until the last flow of the switch that changes, and the processor time of the controller.
    pub async fn change<F: Future<Output = Result<()>>>(&self, what: &str, change: F) -> Result<(f64, f64)> {
        let still = quiet()?;
        let last = self.monitor.as_ref().context("nobody watches the switch")?.last.clone();
        let seen = || *last.lock().unwrap_or_else(PoisonError::into_inner);
        *last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let (start, ran) = (Instant::now(), self.controller.threads_ran());
        change.await?;
        let made = Instant::now();
        loop {
            tokio::time::sleep((still / 4).min(Duration::from_millis(5))).await;
            if let Some(at) = seen().filter(|at| at.elapsed() > still) {
                let after = at.saturating_duration_since(if at > made { made } else { start });
                return Ok((after.as_secs_f64(), self.controller.threads_ran() - ran));
            }
            if made.elapsed() > Duration::from_secs(60) {
                bail!("{what}: no flow changed within a minute");
            }
        }
    }
}

/// For how long no flow changes when a change is over.
fn quiet() -> Result<Duration> {
    let text = std::env::var("QUIET").unwrap_or_else(|_| "400".into());
    Ok(Duration::from_millis(text.parse().context("QUIET is a number of milliseconds")?))
}

/// Plugs an interface in for a port.
pub async fn plug(server: &Server, port: &str) -> Result<()> {
    let name = port.replace('-', "_");
    let operations = vec![
        json!({"op": "insert", "table": "Interface", "uuid-name": "i", "row": {"name": name, "type": "dummy", "external_ids": ["map", [["iface-id", port]]]}}),
        json!({"op": "insert", "table": "Port", "uuid-name": "p", "row": {"name": name, "interfaces": ["named-uuid", "i"]}}),
        json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", "br-int"]], "mutations": [["ports", "insert", ["named-uuid", "p"]]]}),
        json!({"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg", "+=", 1]]}),
    ];
    transact(server, "Open_vSwitch", operations).await.map(|_| ())
}
