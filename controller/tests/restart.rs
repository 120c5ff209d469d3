//! A controller that crashes or is replaced while it serves a chassis with 10,000 flows: at no moment does the switch lack one of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use openflow_rs::connection::{OUR_VERSIONS, Receiver, Sender, negotiate};
use openflow_rs::message::{FlowStatsRequest, MultipartReply, MultipartRequest};
use openflow_rs::{Message, PackedActions, PackedMatch, TableId};
use ovn_schema::{ovs, sb};
use ovsdb_rs::Server;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;

const FLOWS: usize = 10_000;

/// A program that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    dir: tempfile::TempDir,
    ovs: Server,
    sb: Server,
    _switch: Option<Running>,
}

fn command(program: &str, dir: &Path) -> Command {
    let mut c = Command::new(program);
    for name in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "OVN_SYSCONFDIR"] {
        c.env(name, dir);
    }
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    c
}

async fn transact(server: &Server, database: &str, operations: Vec<Value>) {
    let results = server.transact(database, operations).await.unwrap();
    assert!(results.iter().all(|r| r.get("error").is_none_or(Value::is_null)), "{results:?}");
}

impl World {
    /// A switch with a port of a logical switch that has many flows.
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (ovs, sb) = (Server::new(), Server::new());
        ovs.add_file(&dir.path().join("conf.db"), Some(&ovs::Database::schema())).await.unwrap();
        sb.add_file(&dir.path().join("sb.db"), Some(&sb::Database::schema())).await.unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        ovs.listen(&format!("punix:{}", path("db.sock"))).await.unwrap();
        sb.listen(&format!("punix:{}", path("sb.sock"))).await.unwrap();
        let mut rows = vec![
            json!({"op": "insert", "table": "SB_Global", "row": {}}),
            json!({"op": "insert", "table": "Datapath_Binding", "uuid-name": "d",
                "row": {"tunnel_key": 1, "external_ids": ["map", [["logical-switch", "x"], ["name", "s"]]]}}),
            json!({"op": "insert", "table": "Port_Binding",
                "row": {"logical_port": "lp1", "datapath": ["named-uuid", "d"], "tunnel_key": 1, "up": false}}),
        ];
        rows.extend((0..FLOWS).map(|n| {
            let m = format!("ip4.dst == 10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
            json!({"op": "insert", "table": "Logical_Flow", "row": {"logical_datapath": ["named-uuid", "d"], "pipeline": "ingress",
                "table_id": 5, "priority": 100, "match": m, "actions": "next;"}})
        }));
        transact(&sb, "OVN_Southbound", rows).await;
        let ids = json!([
            "map",
            [
                ["system-id", "hv1"],
                ["ovn-remote", format!("unix:{}", path("sb.sock"))],
                ["ovn-encap-type", "geneve"],
                ["ovn-encap-ip", "127.0.0.1"],
                ["hostname", "hv1"]
            ]
        ]);
        let ports =
            [("br-int", "internal", json!(["map", []])), ("tap1", "dummy", json!(["map", [["iface-id", "lp1"]]]))];
        let mut local = Vec::new();
        for (n, (name, kind, ids)) in ports.iter().enumerate() {
            local.push(json!({"op": "insert", "table": "Interface", "uuid-name": format!("i{n}"),
                "row": {"name": name, "type": kind, "external_ids": ids}}));
            local.push(json!({"op": "insert", "table": "Port", "uuid-name": format!("p{n}"),
                "row": {"name": name, "interfaces": ["named-uuid", format!("i{n}")]}}));
        }
        local.push(json!({"op": "insert", "table": "Bridge", "uuid-name": "b", "row": {"name": "br-int", "datapath_type": "dummy",
            "fail_mode": "secure", "ports": ["set", [["named-uuid", "p0"], ["named-uuid", "p1"]]]}}));
        local.push(json!({"op": "insert", "table": "Open_vSwitch", "row": {"external_ids": ids, "bridges": ["named-uuid", "b"]}}));
        transact(&ovs, "Open_vSwitch", local).await;
        World { dir, ovs, sb, _switch: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Debian's switch with its dummy datapath.
    async fn switch(&mut self) {
        let remote = format!("unix:{}", self.path("db.sock").display());
        let mut c = command("ovs-vswitchd", self.dir.path());
        c.args(["--enable-dummy=override", "--disable-system", "--no-chdir", &remote]);
        self._switch = Some(Running(c.spawn().unwrap()));
        let end = Instant::now() + Duration::from_secs(20);
        while !self.path("br-int.mgmt").exists() {
            assert!(Instant::now() < end, "no bridge");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn controller(&self) -> Running {
        let mut c = command(env!("CARGO_BIN_EXE_controller"), self.dir.path());
        let log = self.path("controller.log");
        c.args([
            "-vconsole:off",
            "-vsyslog:off",
            &format!("--unixctl={}", self.path("ctl").display()),
            &format!("--log-file={}", log.display()),
        ]);
        Running(c.spawn().unwrap())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("controller.log")).unwrap_or_default()
    }
}

/// A connection to the bridge.
struct Ofctl(Sender<UnixStream>, Receiver<UnixStream>);

/// A flow as it is compared: table, priority, match and actions.
type Flow = (TableId, u16, PackedMatch, PackedActions);

impl Ofctl {
    async fn connect(at: &Path) -> Ofctl {
        let (tx, rx) = negotiate(UnixStream::connect(at).await.unwrap(), OUR_VERSIONS).await.unwrap();
        Ofctl(tx, rx)
    }

    async fn dump(&mut self) -> HashSet<Flow> {
        let request = Message::MultipartRequest(MultipartRequest::Flow(FlowStatsRequest::default()));
        let xid = self.0.send(&request).await.unwrap();
        let mut out = HashSet::new();
        loop {
            let m = self.1.recv().await.unwrap();
            if m.header.xid != xid {
                continue;
            }
            let Ok(Message::MultipartReply { more, body: MultipartReply::Flow(flows) }) = m.message else {
                panic!("{:?}", m.message)
            };
            out.extend(flows.into_iter().map(|s| {
                let f = s.flow;
                (f.table, f.priority, PackedMatch::from(&f.matches), PackedActions::from(&f.actions[..]))
            }));
            if !more {
                return out;
            }
        }
    }
}

impl Ofctl {
    async fn count(&mut self) -> usize {
        let request = Message::MultipartRequest(MultipartRequest::Aggregate(FlowStatsRequest::default()));
        let xid = self.0.send(&request).await.unwrap();
        loop {
            let m = self.1.recv().await.unwrap();
            if let Ok(Message::MultipartReply { body: MultipartReply::Aggregate(_, _, flows), .. }) = m.message
                && m.header.xid == xid
            {
                return flows as usize;
            }
        }
    }
}

/// Waits until the switch's flows are all there and stay as they are.
async fn settled(w: &World, at: &Path) -> HashSet<Flow> {
    let (mut ofctl, end) = (Ofctl::connect(at).await, Instant::now() + Duration::from_secs(60));
    let mut before = HashSet::new();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = ofctl.dump().await;
        if now.len() > FLOWS && now == before {
            return now;
        }
        assert!(Instant::now() < end, "{} flows\n{}", now.len(), w.log());
        before = now;
    }
}

/// Looks every 10 ms until it is over: how many looks there were, and how many of them saw fewer flows than wanted.
async fn fewer_than(wanted: usize, at: PathBuf, over: Arc<AtomicBool>) -> (usize, usize) {
    let (mut ofctl, mut looks, mut fewer) = (Ofctl::connect(&at).await, 0, 0);
    while !over.load(Ordering::Relaxed) {
        looks += 1;
        fewer += usize::from(ofctl.count().await < wanted);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (looks, fewer)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_flow_is_missing_while_controllers_come_and_go() {
    if !needs::installed(&["ovs-vswitchd"]) {
        return;
    }
    let mut w = World::new().await;
    w.switch().await;
    let mut controller = w.controller();
    let bridge = w.path("br-int.mgmt");
    let all = Arc::new(settled(&w, &bridge).await);
    let over = Arc::new(AtomicBool::new(false));
    // How many flows there are every 10 ms, and which ones as often as the switch says it.
    let counts = tokio::spawn(fewer_than(all.len(), bridge.clone(), over.clone()));
    let (o, a, at) = (over.clone(), all.clone(), bridge.clone());
    let dumps = tokio::spawn(async move {
        let (mut ofctl, mut looks, mut worst) = (Ofctl::connect(&at).await, 0, 0);
        while !o.load(Ordering::Relaxed) {
            let now = ofctl.dump().await;
            looks += 1;
            worst = worst.max(a.difference(&now).count());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (looks, worst)
    });
    // Killed in each phase of its start: while it reads databases, derives, sends, and when all is done.
    for pause in [0, 50, 100, 200, 300, 400, 600, 800, 1200, 3000] {
        drop(controller);
        controller = w.controller();
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    // Replaced as an upgrade does it.
    for _ in 0..2 {
        exit_for_restart(&w.path("ctl")).await;
        let _ = controller.0.wait().unwrap();
        controller = w.controller();
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    over.store(true, Ordering::Relaxed);
    let ((looks, fewer), (dumped, worst)) = (counts.await.unwrap(), dumps.await.unwrap());
    assert!(looks > 100 && dumped > 3, "{looks} and {dumped} looks");
    assert_eq!((fewer, worst), (0, 0), "flows were missing in some looks of {looks} and {dumped}\n{}", w.log());
    assert_eq!(settled(&w, &bridge).await, *all, "it ends as it began");
    let restarts = w.log().matches("replacing the flow tables").count();
    assert!(restarts > 3, "only {restarts} controllers came as far as to send flows");
    w.ovs.shutdown().await;
    w.sb.shutdown().await;
}

/// The names of the chassis that the southbound database has.
async fn chassis(w: &World) -> Vec<String> {
    let select = json!({"op": "select", "table": "Chassis", "where": [], "columns": ["name"]});
    let r = w.sb.transact("OVN_Southbound", vec![select]).await.unwrap();
    let rows = r[0]["rows"].as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| row["name"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn registered_as(w: &World, name: &str) {
    let end = Instant::now() + Duration::from_secs(30);
    while chassis(w).await != [name] {
        assert!(Instant::now() < end, "{name} is not registered\n{}", w.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn forget_chassis(w: &World) {
    let delete = |table: &str| json!({"op": "delete", "table": table, "where": []});
    transact(&w.sb, "OVN_Southbound", vec![delete("Chassis_Private"), delete("Chassis")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_flow_is_missing_while_the_chassis_has_no_row() {
    if !needs::installed(&["ovs-vswitchd"]) {
        return;
    }
    let mut w = World::new().await;
    w.switch().await;
    let _controller = w.controller();
    let bridge = w.path("br-int.mgmt");
    let all = settled(&w, &bridge).await;
    let over = Arc::new(AtomicBool::new(false));
    let counts = tokio::spawn(fewer_than(all.len(), bridge.clone(), over.clone()));
    // Somebody takes the row away; the controller writes it anew.
    forget_chassis(&w).await;
    registered_as(&w, "hv1").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    // A chassis that gets another name cannot register while the row of its old name has its address.
    let named = |name: &str| {
        json!({"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [
            ["external_ids", "delete", ["set", ["system-id"]]], ["external_ids", "insert", ["map", [["system-id", name]]]]]})
    };
    transact(&w.ovs, "Open_vSwitch", vec![named("hv9")]).await;
    let end = Instant::now() + Duration::from_secs(30);
    while !w.log().contains("cannot duplicate on 'hv9'") {
        assert!(Instant::now() < end, "{}", w.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The operator takes the old row away, as OVN wants it.
    forget_chassis(&w).await;
    registered_as(&w, "hv9").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    over.store(true, Ordering::Relaxed);
    let (looks, fewer) = counts.await.unwrap();
    assert!(looks > 100, "{looks} looks");
    assert_eq!(fewer, 0, "of {looks} looks\n{}", w.log());
    assert_eq!(settled(&w, &bridge).await, all, "it ends as it began");
    w.ovs.shutdown().await;
    w.sb.shutdown().await;
}

/// The control command that ends a controller and leaves everything as it is.
async fn exit_for_restart(socket: &Path) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut s = UnixStream::connect(socket).await.unwrap();
    s.write_all(br#"{"id":0,"method":"exit","params":["--restart"]}"#).await.unwrap();
    let mut answer = [0; 256];
    let n = s.read(&mut answer).await.unwrap();
    assert!(String::from_utf8_lossy(&answer[..n]).contains("\"error\":null"));
}
