//! Open vSwitch in a folder of its own, with dummy ports and a clock that stands still.

use openflow_rs::connection::{OUR_VERSIONS, Receiver, Sender, negotiate};
use openflow_rs::message::{
    FlowStats, FlowStatsRequest, MultipartReply, MultipartRequest, PacketIn, TlvMap, TlvTableMod,
};
use openflow_rs::{
    FlowMod, Group, GroupId, GroupMod, GroupModCommand, Message, MeterConfig, MeterId, MeterMod, MeterModCommand,
    TableId, text,
};
use packet::build;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Milliseconds behind which it gives up on fragments.
const FRAGMENTS_WAIT: u64 = 20_000;
/// Ports of the bridge, from 1.
pub const PORTS: u16 = 18;

/// A refusal: which message, type and code.
pub type Refusal = (usize, u16, u16);

/// OVN's Geneve option.
pub fn option_map() -> Message {
    let map = TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 };
    Message::TlvTableMod(TlvTableMod { command: 0, maps: vec![map] })
}

/// Open vSwitch with one bridge.
pub struct Ovs {
    dir: tempfile::TempDir,
    children: Vec<Child>,
    control: UnixStream,
    runtime: tokio::runtime::Runtime,
    sender: Sender<tokio::net::UnixStream>,
    receiver: Receiver<tokio::net::UnixStream>,
    packet_ins: Vec<PacketIn>,
    read: BTreeMap<u16, u64>,
    too_deep: u64,
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for c in self.children.iter_mut().rev() {
            let _ = c.kill();
            let _ = c.wait();
        }
    }
}

/// Waits until somebody listens on a socket.
fn wait_for(path: &Path) {
    let there = (0..400).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        std::os::unix::net::UnixStream::connect(path).is_ok()
    });
    assert!(there, "{}", path.display());
}

fn run(dir: &Path, cmd: &str, args: &[String]) {
    let out = Command::new(cmd).args(args).envs([("OVS_RUNDIR", dir), ("OVS_LOGDIR", dir)]).output().expect("runs");
    assert!(out.status.success(), "{cmd} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn spawn(dir: &Path, cmd: &str, args: &[String]) -> Child {
    Command::new(cmd)
        .args(args)
        .envs([("OVS_RUNDIR", dir), ("OVS_LOGDIR", dir), ("OVS_DBDIR", dir), ("OVS_SYSCONFDIR", dir)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts")
}

impl Ovs {
    /// Starts it; `None`, and the test is skipped, where it is not installed.
    pub fn start() -> Option<Ovs> {
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        if !needs::installed(&[schema, "ovs-vswitchd"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("temporary folder");
        let at = dir.path().to_path_buf();
        let path = |n: &str| at.join(n).display().to_string();
        run(&at, "ovsdb-tool", &["create".into(), path("conf.db"), schema.into()]);
        let db = path("db.sock");
        let mut children = Vec::new();
        children.push(spawn(
            &at,
            "ovsdb-server",
            &["--no-chdir".into(), format!("--remote=punix:{db}"), path("conf.db")],
        ));
        wait_for(&at.join("db.sock"));
        let options = ["--enable-dummy=override", "--disable-system", "--unixctl=ctl"];
        let mut args: Vec<String> = options.iter().map(|s| s.to_string()).collect();
        args.push(format!("unix:{db}"));
        children.push(spawn(&at, "ovs-vswitchd", &args));
        let mut args = vec![format!("--db=unix:{db}")];
        let mut add = |s: &str| args.extend(s.split(' ').map(String::from));
        // Nothing stays in its flow caches: every packet is translated.
        add("set Open_vSwitch . other_config:flow-limit=0 other_config:stats-update-interval=3600000");
        // Unless told, it sees but the outer one of two tags.
        add("other_config:vlan-limit=0");
        add("-- add-br br0 -- set bridge br0 datapath_type=dummy fail-mode=secure other_config:datapath-id=1");
        for n in 1..=PORTS {
            let pcap = path(&format!("p{n}.pcap"));
            add(&format!(
                "-- add-port br0 p{n} -- set interface p{n} type=dummy ofport_request={n} options:tx_pcap={pcap}"
            ));
        }
        run(&at, "ovs-vsctl", &args);
        wait_for(&at.join("br0.mgmt"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let (mut sender, receiver) = runtime.block_on(async {
            let stream = tokio::net::UnixStream::connect(at.join("br0.mgmt")).await.expect("connects");
            negotiate(stream, OUR_VERSIONS & !(1 << 4 | 1 << 5)).await.expect("OpenFlow 1.5")
        });
        let config = openflow_rs::message::SwitchConfig { flags: 0, miss_send_len: 0xffff };
        runtime.block_on(async {
            sender.send(&Message::SetPacketInFormat(2)).await.expect("sent");
            sender.send(&Message::SetConfig(config)).await.expect("sent");
        });
        let control = UnixStream::connect(at.join("ctl")).expect("control socket");
        let read = (1..=PORTS).map(|p| (p, 24)).collect();
        let mut ovs =
            Ovs { dir, children, control, runtime, sender, receiver, packet_ins: Vec::new(), read, too_deep: 0 };
        ovs.appctl("time/stop", &[]);
        assert_eq!(ovs.apply(&[option_map()]), []);
        ovs.appctl("dpctl/ct-disable-tcp-seq-chk", &[]);
        // A first pass of its revalidators puts the flow limit in force.
        ovs.warp(2000);
        Some(ovs)
    }

    /// Whether its switch has ended by itself, as it does with some tables.
    pub fn has_ended(&mut self) -> bool {
        let Some(child) = self.children.last_mut() else { return true };
        // Its connections go a moment before.
        (0..100).any(|_| {
            let ended = matches!(child.try_wait(), Ok(Some(_)));
            if !ended {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            ended
        })
    }

    /// Changes its database, and waits until the change is in force.
    pub fn vsctl(&self, words: &str) {
        let db = self.dir.path().join("db.sock").display().to_string();
        let mut args = vec![format!("--db=unix:{db}")];
        args.extend(words.split(' ').map(String::from));
        run(self.dir.path(), "ovs-vsctl", &args);
    }

    /// A control command's answer.
    pub fn appctl(&mut self, command: &str, args: &[&str]) -> String {
        let request = json!({"id": 0, "method": command, "params": args}).to_string();
        self.control.write_all(request.as_bytes()).expect("written");
        let mut buffer = Vec::new();
        loop {
            let mut chunk = [0; 65536];
            let n = self.control.read(&mut chunk).expect("an answer");
            assert!(n > 0, "{command}: Open vSwitch has ended");
            buffer.extend_from_slice(&chunk[..n]);
            if let Ok(v) = serde_json::from_slice::<Value>(&buffer) {
                assert!(v["error"].is_null(), "{command} {args:?}: {v}");
                return v["result"].as_str().unwrap_or_default().to_string();
            }
        }
    }

    /// Lets its clock go on by so many milliseconds.
    pub fn warp(&mut self, ms: u64) {
        self.appctl("time/warp", &[&ms.to_string()]);
    }

    /// Waits until what was given to it has been handled.
    pub fn settle(&mut self) {
        self.barrier(&BTreeMap::new());
    }

    /// Gives a packet to a port, and waits until it has been handled.
    pub fn receive(&mut self, port: u16, p: &[u8]) {
        let hex: String = p.iter().map(|b| format!("{b:02x}")).collect();
        self.appctl("netdev-dummy/receive", &[&format!("p{port}"), &hex]);
        // Each round of its loop takes packets in before it answers messages.
        self.settle();
    }

    /// What has been sent since the last look: port and packet.
    pub fn sent(&mut self) -> Vec<(u16, Vec<u8>)> {
        let mut out = Vec::new();
        for (port, at) in &mut self.read {
            let path = self.dir.path().join(format!("p{port}.pcap"));
            let Ok(mut f) = std::fs::File::open(path) else { continue };
            if f.metadata().map_or(0, |m| m.len()) <= *at || f.seek(std::io::SeekFrom::Start(*at)).is_err() {
                continue;
            }
            let mut b = Vec::new();
            f.read_to_end(&mut b).expect("pcap");
            let mut rest: &[u8] = &b;
            while let Some(n) = rest.get(8..12) {
                let n = u32::from_le_bytes([n[0], n[1], n[2], n[3]]) as usize;
                let Some(p) = rest.get(16..16 + n) else { break };
                out.push((*port, p.to_vec()));
                rest = &rest[16 + n..];
                *at += 16 + n as u64;
            }
        }
        out
    }

    /// Whether a packet was dropped since the last look as it had been recirculated more than six times.
    pub fn too_deep(&mut self) -> bool {
        let text = self.appctl("coverage/read-counter", &["datapath_drop_recirc_error"]);
        let n = text.trim().parse().expect("a number");
        std::mem::replace(&mut self.too_deep, n) != n
    }

    /// Gives it messages; what it refuses.
    pub fn apply(&mut self, list: &[Message]) -> Vec<Refusal> {
        let mut at: BTreeMap<u32, usize> = BTreeMap::new();
        let mut refused = Vec::new();
        for (i, m) in list.iter().enumerate() {
            let xid = self.sender.xid();
            at.insert(xid, i);
            self.sender.queue(xid, m);
            if self.sender.backlog() > 1 << 18 {
                refused.extend(self.barrier(&at));
            }
        }
        refused.extend(self.barrier(&at));
        refused
    }

    fn barrier(&mut self, at: &BTreeMap<u32, usize>) -> Vec<Refusal> {
        let mut refused = Vec::new();
        self.runtime.block_on(async {
            let xid = self.sender.send(&Message::BarrierRequest).await.expect("sent");
            loop {
                let r = self.receiver.recv().await.expect("connected");
                match r.message {
                    Ok(Message::BarrierReply) if r.header.xid == xid => return,
                    Ok(Message::Error { error_type, code, .. }) => {
                        if let Some(i) = at.get(&r.header.xid) {
                            refused.push((*i, error_type, code));
                        }
                    }
                    Ok(Message::PacketIn2(p)) => self.packet_ins.push(p),
                    Ok(Message::EchoRequest(d)) => {
                        self.sender.reply(r.header.xid, &Message::EchoReply(d)).await.expect("sent");
                    }
                    _ => {}
                }
            }
        });
        refused
    }

    /// The packet-ins since the last look.
    pub fn packet_ins(&mut self) -> Vec<PacketIn> {
        self.settle();
        std::mem::take(&mut self.packet_ins)
    }

    /// All flows with their counters.
    pub fn flows(&mut self) -> Vec<FlowStats> {
        let request = MultipartRequest::Flow(FlowStatsRequest { table: TableId::ALL, ..Default::default() });
        let mut all = Vec::new();
        self.runtime.block_on(async {
            let xid = self.sender.send(&Message::MultipartRequest(request)).await.expect("sent");
            loop {
                let r = self.receiver.recv().await.expect("connected");
                if r.header.xid != xid {
                    continue;
                }
                match r.message {
                    Ok(Message::MultipartReply { more, body: MultipartReply::Flow(list) }) => {
                        all.extend(list);
                        if !more {
                            return;
                        }
                    }
                    other => panic!("flow statistics: {other:?}"),
                }
            }
        });
        all
    }

    /// Takes everything away that a table brought.
    pub fn clear(&mut self) {
        let groups = GroupMod::new(GroupModCommand::Delete, Group { id: GroupId::ALL, ..Default::default() });
        let meter = MeterConfig { id: MeterId::ALL, ..Default::default() };
        let refused = self.apply(&[
            Message::FlowMod(FlowMod::delete_all()),
            Message::GroupMod(groups),
            Message::MeterMod(MeterMod { command: MeterModCommand::Delete, meter }),
        ]);
        assert_eq!(refused, []);
        self.forget_fragments();
        self.appctl("dpctl/flush-conntrack", &[]);
        self.packet_ins();
        self.sent();
    }

    /// Fragments that wait leave it with the first tracked packet behind the end of their time.
    fn forget_fragments(&mut self) {
        self.warp(FRAGMENTS_WAIT);
        let flow = text::parse_flow("ip actions=ct(zone=65535)").expect("flow");
        assert_eq!(self.apply(&[Message::FlowMod(flow)]), []);
        let (a, b) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let p =
            build::ip_packet(packet::Mac([2, 0, 0, 0, 0, 1]), packet::Mac([2, 0, 0, 0, 0, 2]), a, b, 253, 64, &[0; 32])
                .expect("one family");
        self.receive(1, &p);
        assert_eq!(self.apply(&[Message::FlowMod(FlowMod::delete_all())]), []);
    }

    /// The connection table, a line each, sorted.
    pub fn connections(&mut self) -> Vec<String> {
        let text = self.appctl("dpctl/dump-conntrack", &[]);
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        lines.sort();
        lines
    }
}
