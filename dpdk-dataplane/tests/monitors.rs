//! Flow monitors, beside Debian's Open vSwitch: what `ovs-ofctl monitor … watch:` shows while others change flows, and
//! what a connection hears of its own changes.

mod common;

use common::{Namespace, Switch, able, eventually, run};
use openflow_rs::connection::{Received, negotiate};
use openflow_rs::message::monitor::flags;
use openflow_rs::message::{FlowMonitor, Message, MultipartRequest, Role};
use openflow_rs::{FlowMod, GroupId, Match, PortNo, TableId};
use std::process::{Child, Command};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// What is watched, and over which version.
const WATCHED: &[(&str, &str)] = &[
    ("OpenFlow10", "watch:"),
    ("OpenFlow10", "watch:table=1,!initial,out_port=2"),
    ("OpenFlow14", "watch:!actions,ip"),
    ("OpenFlow15", "watch:!delete"),
];

/// What is changed meanwhile.
const CHANGES: &[&str] = &[
    "add-flow br0 table=1,priority=5,ip,actions=output:2",
    "add-flow br0 cookie=0x9,table=1,priority=6,tcp,actions=output:2,output:3",
    "add-flow br0 table=1,priority=6,tcp,cookie=0x9,actions=output:3",
    "add-flow br0 table=1,priority=6,tcp,cookie=0x9,actions=output:3",
    "-O OpenFlow14 --bundle add-flow br0 table=2,priority=7,arp,actions=NORMAL",
    "mod-flows br0 table=1,actions=output:2",
    "add-flow br0 table=3,hard_timeout=1,udp,actions=drop",
    "--strict del-flows br0 table=1,priority=5,ip",
    "del-flows br0 table=1",
];

/// A program that looks on; it ends with this.
struct Watcher(Child, String);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Watcher {
    fn new(s: &Switch, n: usize, version: &str, watch: &str) -> Watcher {
        let out = s.path(&format!("watched{n}"));
        let file = std::fs::File::options().create(true).append(true).open(&out).expect("file");
        // What is there goes to its output, by lines; what changes, to the other.
        let child = Command::new("stdbuf")
            .args(["-oL", "ovs-ofctl", "-O", version, "monitor", "br0", watch])
            .env("OVS_RUNDIR", s.path(""))
            .stdout(file.try_clone().expect("file"))
            .stderr(file)
            .spawn()
            .expect("ovs-ofctl");
        Watcher(child, out)
    }

    /// What it has shown: events in order, without transaction ids and the times of the log. One message may hold
    /// several.
    fn shown(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.1).unwrap_or_default();
        text.lines().filter(|l| l.starts_with(' ')).map(String::from).collect()
    }
}

#[test]
fn monitors_hear_what_changes() {
    if !able(&["ovs-vswitchd", "ovs-ofctl", "stdbuf"]) {
        return;
    }
    let (a, b) = (Namespace::new("mo"), Namespace::new("mc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for s in &switches {
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure");
        s.ofctl(&["add-flow", "br0", "table=1,priority=1,icmp,actions=output:2"]);
        s.ofctl(&["add-flow", "br0", "table=0,priority=1,arp,actions=output:3"]);
    }
    let watchers = switches.each_ref().map(|s| {
        let started = WATCHED.iter().enumerate().map(|(n, (version, watch))| Watcher::new(s, n, version, watch));
        started.collect::<Vec<Watcher>>()
    });
    for w in &watchers {
        eventually("what is there", SOON, || {
            let seen: Vec<usize> = w.iter().map(|w| w.shown().len()).collect();
            if seen[0] >= 2 && seen[2] >= 1 && seen[3] >= 2 { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
    // The one that asks for nothing at first may still be about to ask.
    std::thread::sleep(Duration::from_millis(500));
    for command in CHANGES {
        for s in &switches {
            let dir = s.path("");
            run("ovs-ofctl", &command.split(' ').collect::<Vec<_>>(), &[("OVS_RUNDIR", &dir)]).expect(command);
        }
    }
    // The last event of each is that of the flow whose time was over, or that came before it.
    for (n, (version, watch)) in WATCHED.iter().enumerate() {
        eventually(&format!("{version} {watch}"), SOON, || {
            let [mut ours, mut theirs] = [0, 1].map(|i| watchers[i][n].shown());
            // In which order one message finds flows is the switch's own.
            [&mut ours, &mut theirs].into_iter().for_each(|l| l.sort());
            let ended = n != 0 || theirs.iter().any(|l| l.contains("reason=hard"));
            if ours == theirs && ended { Ok(()) } else { Err(format!("ours {ours:#?}\ntheirs {theirs:#?}")) }
        });
    }
    drop(watchers);
    own(&switches);
}

/// Over one connection: a monitor, changes, another monitor of the same number, one that goes.
fn own(switches: &[Switch; 2]) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    for version in [1u32, 5, 6] {
        let [ours, theirs] = switches.each_ref().map(|s| {
            s.ofctl(&["del-flows", "br0"]);
            rt.block_on(async {
                let peer = tokio::net::UnixStream::connect(s.path("br0.mgmt")).await.expect("socket");
                let (mut tx, mut rx) = negotiate(peer, 1 << version).await.expect("OpenFlow");
                let all = flags::INITIAL | flags::ADD | flags::DELETE | flags::MODIFY | flags::ACTIONS;
                let monitor = |id, table, flags| {
                    let (out_port, out_group) = (PortNo::ANY, GroupId::ANY);
                    let m = FlowMonitor { id, command: 0, flags, table, out_port, out_group, matches: Match::new() };
                    Message::MultipartRequest(MultipartRequest::FlowMonitor(vec![m]))
                };
                let mut first = FlowMod::add(TableId(3), 7, 1, Match::new(), Vec::new());
                first.idle_timeout = 50;
                let list = [
                    Message::FlowMod(first),
                    monitor(1, TableId::ALL, all),
                    Message::FlowMod(FlowMod::add(TableId(4), 7, 2, Match::new(), Vec::new())),
                    // Open vSwitch refuses the other of the two in OpenFlow 1.4.
                    monitor(2, TableId(5), all | if version == 1 { flags::OWN } else { flags::ONLY_OWN }),
                    Message::FlowMod(FlowMod::add(TableId(5), 7, 3, Match::new(), Vec::new())),
                    Message::FlowMod(FlowMod::delete_strict(TableId(5), 7, Match::new())),
                    Message::FlowMod(FlowMod::delete_strict(TableId(4), 7, Match::new())),
                    Message::BarrierRequest,
                ];
                let mut heard = Vec::new();
                if version == 1 {
                    // Flow-mods of OpenFlow 1.0 say their table.
                    tx.send(&Message::FlowModTableId(true)).await.expect("sends");
                }
                for (i, m) in list.iter().enumerate() {
                    // One at a time, so that what is told together is the same.
                    tx.queue(100 + i as u32, m);
                    tx.queue(200 + i as u32, &Message::BarrierRequest);
                    tx.flush().await.expect("sends");
                    loop {
                        let Received { header, message, .. } = rx.recv().await.expect("an answer");
                        match message {
                            Ok(Message::BarrierReply) if header.xid == 200 + i as u32 => break,
                            m => heard.push((header.xid, format!("{m:?}"))),
                        }
                    }
                }
                heard
            })
        });
        assert!(ours.len() > 5, "{ours:#?}");
        assert_eq!(ours, theirs, "version {version}");
    }
}

/// Who was primary hears that another is.
#[test]
fn roles_that_change_are_told() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("wo"), Namespace::new("wc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    for version in [4u32, 5, 6] {
        let [ours, theirs] = switches.each_ref().map(|s| {
            s.vsctl("--may-exist add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure");
            rt.block_on(async {
                let mut heard = Vec::new();
                let mut open = Vec::new();
                for generation_id in [u64::from(version) * 10, u64::from(version) * 10 + 1] {
                    let peer = tokio::net::UnixStream::connect(s.path("br0.mgmt")).await.expect("socket");
                    let (mut tx, mut rx) = negotiate(peer, 1 << version).await.expect("OpenFlow");
                    let role = Role { role: 2, generation_id, ..Default::default() };
                    tx.send(&Message::RoleRequest(role)).await.expect("sends");
                    heard.push(format!("{:?}", rx.recv().await.expect("an answer").message));
                    open.push((tx, rx));
                }
                // The first one asks for something, so that there is an end to what it hears.
                let Some((tx, rx)) = open.first_mut() else { return heard };
                tx.send(&Message::EchoRequest(vec![7])).await.expect("sends");
                loop {
                    let m = rx.recv().await.expect("an answer").message;
                    heard.push(format!("{m:?}"));
                    if matches!(m, Ok(Message::EchoReply(_))) {
                        return heard;
                    }
                }
            })
        });
        assert_eq!(ours, theirs, "version {version}");
        assert!(ours.iter().any(|m| m.contains("RoleStatus")), "{ours:?}");
    }
}
