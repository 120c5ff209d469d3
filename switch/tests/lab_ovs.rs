//! The same recorded flows in Open vSwitch's userspace datapath and in ours, the same packets in: the same packets must come out.

use openflow_rs::text::parse_flow;
use openflow_rs::*;
use packet::build;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use switch::{Outputs, Port, PortKind, Switch};

const PORTS: u16 = 8;

/// Tables left out: this one makes packets pass Open vSwitch's resubmit limit, and what Open vSwitch then sends differs
/// from run to run.
const EXCEPT: &str = "resubmit-overfl";

struct Ovs {
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for c in self.children.iter_mut().rev() {
            let _ = c.kill();
            let _ = c.wait();
        }
    }
}

impl Ovs {
    fn start() -> Option<Ovs> {
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        if !Path::new(schema).exists() || Command::new("ovs-vswitchd").arg("--version").output().is_err() {
            eprintln!("skipped: Open vSwitch is not installed");
            return None;
        }
        let dir = tempfile::tempdir().expect("temporary folder");
        let mut ovs = Ovs { dir, children: Vec::new() };
        ovs.run("ovsdb-tool", &["create", &ovs.path("conf.db"), schema]).expect("database");
        let db = ovs.path("db.sock");
        ovs.spawn("ovsdb-server", &["--no-chdir", &format!("--remote=punix:{db}"), &ovs.path("conf.db")]);
        ovs.wait_for("db.sock");
        ovs.spawn(
            "ovs-vswitchd",
            &["--enable-dummy=override", "--disable-system", "--unixctl=ctl", &format!("unix:{db}")],
        );
        let mut args: Vec<String> = vec![format!("--db=unix:{db}")];
        args.extend("add-br br0 -- set bridge br0 datapath_type=dummy fail-mode=secure".split(' ').map(String::from));
        for n in 1..=PORTS {
            let pcap = ovs.path(&format!("p{n}.pcap"));
            let add = format!(
                "-- add-port br0 p{n} -- set interface p{n} type=dummy ofport_request={n} options:tx_pcap={pcap}"
            );
            args.extend(add.split(' ').map(String::from));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        ovs.run("ovs-vsctl", &args).expect("bridge");
        ovs.wait_for("br0.mgmt");
        Some(ovs)
    }

    fn wait_for(&self, n: &str) {
        let path = self.path(n);
        assert!((0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            Path::new(&path).exists()
        }));
    }

    fn path(&self, n: &str) -> String {
        self.dir.path().join(n).display().to_string()
    }

    fn spawn(&mut self, cmd: &str, args: &[&str]) {
        let d = self.dir.path();
        let child = Command::new(cmd)
            .args(args)
            .envs([("OVS_RUNDIR", d), ("OVS_LOGDIR", d), ("OVS_DBDIR", d), ("OVS_SYSCONFDIR", d)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        self.children.push(child);
    }

    fn run(&self, cmd: &str, args: &[&str]) -> Result<String, String> {
        let d = self.dir.path();
        let out = Command::new(cmd).args(args).envs([("OVS_RUNDIR", d), ("OVS_LOGDIR", d)]).output().expect("runs");
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }

    fn ofctl(&self, args: &[&str]) -> Result<String, String> {
        let mut v = vec!["-O", "OpenFlow15", args[0]];
        let bridge = format!("unix:{}", self.path("br0.mgmt"));
        v.push(&bridge);
        v.extend_from_slice(&args[1..]);
        self.run("ovs-ofctl", &v)
    }

    fn receive(&self, port: u16, p: &[u8]) {
        let hex: String = p.iter().map(|b| format!("{b:02x}")).collect();
        let ctl = self.path("ctl");
        self.run("ovs-appctl", &["-t", &ctl, "netdev-dummy/receive", &format!("p{port}"), &hex]).expect("receives");
    }

    /// Waits until nothing has been sent for a while: some tables take Open vSwitch long.
    fn settle(&self) {
        let count = || (1..=PORTS).map(|p| self.sent(p).len()).sum::<usize>();
        let mut last = count();
        let mut quiet = 0;
        while quiet < 4 {
            std::thread::sleep(Duration::from_millis(100));
            let n = count();
            quiet = if n == last { quiet + 1 } else { 0 };
            last = n;
        }
    }

    /// Packets that a port has sent so far.
    fn sent(&self, port: u16) -> Vec<Vec<u8>> {
        let b = std::fs::read(self.path(&format!("p{port}.pcap"))).unwrap_or_default();
        let mut rest = b.get(24..).unwrap_or_default();
        let mut v = Vec::new();
        while let Some(n) = rest.get(8..12) {
            let n = u32::from_le_bytes([n[0], n[1], n[2], n[3]]) as usize;
            let Some(p) = rest.get(16..16 + n) else { break };
            v.push(p.to_vec());
            rest = &rest[16 + n..];
        }
        v
    }
}

/// Packets made of the addresses that the flows name.
fn packets(flows: &[FlowMod]) -> Vec<Vec<u8>> {
    let (mut macs, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for f in flows {
        for id in [FieldId::EthSrc, FieldId::EthDst] {
            macs.extend(f.matches.exact(id).filter(|m| *m != 0).map(|m| m as u64));
        }
        for id in [FieldId::IpSrc, FieldId::IpDst] {
            ips.extend(f.matches.exact(id).filter(|m| *m >> 24 != 224 && *m >> 24 != 255 && *m != 0).map(|m| m as u32));
        }
    }
    let mac = |m: &u64| -> packet::Mac { m.to_be_bytes()[2..].try_into().expect("six") };
    let macs: Vec<packet::Mac> =
        macs.iter().filter(|m| **m >> 40 & 1 == 0).take(5).map(mac).chain([[0xff; 6]]).collect();
    let ips: Vec<Ipv4Addr> = ips.iter().take(5).map(|a| Ipv4Addr::from(*a)).collect();
    let mut v = Vec::new();
    for (i, src) in macs.iter().enumerate().filter(|(_, m)| m[0] & 1 == 0) {
        for (j, dst) in macs.iter().enumerate().filter(|(j, _)| *j != i) {
            let (Some(a), Some(b)) = (ips.get(i % ips.len().max(1)), ips.get((i + j) % ips.len().max(1))) else {
                continue;
            };
            let (a4, b4): (IpAddr, IpAddr) = ((*a).into(), (*b).into());
            if dst[0] & 1 != 0 {
                v.push(build::arp_request(*src, *a, *b));
                continue;
            }
            v.push(build::udp(*dst, *src, (a4, 1000), (b4, 53), 64, &[7; 30]).expect("udp"));
            v.push(build::udp(*src, *dst, (b4, 53), (a4, 1000), 64, &[8; 30]).expect("udp"));
            v.push(build::ip_packet(*dst, *src, a4, b4, 1, 64, &[8, 0, 0, 0, 0, 1, 0, 1]).expect("icmp"));
            let tcp = |f: u8| [0x30, 5, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, f, 0, 9, 0, 0, 0, 0];
            v.push(build::ip_packet(*dst, *src, a4, b4, 6, 64, &tcp(2)).expect("tcp"));
            let back = [0, 80, 0x30, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0, 9, 0, 0, 0, 0];
            v.push(build::ip_packet(*src, *dst, b4, a4, 6, 64, &back).expect("tcp"));
            v.push(build::arp_reply(*src, *a, *dst, *b));
            let six = (build::link_local(*src), build::link_local(*dst));
            v.push(build::udp(*dst, *src, (six.0.into(), 5), (six.1.into(), 6), 64, &[9; 20]).expect("udp"));
            v.push(build::nd_na(*src, six.0, *dst, six.1, 0x60));
            v.push(build::nd_ns(*src, six.0, six.1));
        }
    }
    v.truncate(60);
    v
}

/// Runs one table in both; returns (packets out, differences).
fn compare(ovs: &Ovs, name: &str, lines: &[&str]) -> Option<(usize, Vec<String>)> {
    let flows: Vec<FlowMod> = lines.iter().map(|l| parse_flow(l).expect("flow")).collect();
    let mut list = Vec::new();
    for (i, p) in packets(&flows).into_iter().enumerate() {
        let port = (i as u16 % 3) + 1;
        list.extend([(port, p.clone()), ((port % 3) + 1, p)]);
    }
    compare_on(ovs, name, lines, &list)
}

/// The same with given packets and the ports that they come from.
fn compare_on(ovs: &Ovs, name: &str, lines: &[&str], packets: &[(u16, Vec<u8>)]) -> Option<(usize, Vec<String>)> {
    let flows: Vec<FlowMod> = lines.iter().map(|l| parse_flow(l).expect("flow")).collect();
    let file = ovs.path("flows.txt");
    std::fs::write(&file, lines.join("\n")).expect("written");
    ovs.ofctl(&["del-flows"]).expect("empty");
    let ctl = ovs.path("ctl");
    ovs.run("ovs-appctl", &["-t", &ctl, "dpctl/flush-conntrack"]).expect("flushed");
    if let Err(e) = ovs.ofctl(&["add-flows", &file, "--bundle"]) {
        eprintln!("{name}: not for this Open vSwitch: {}", e.lines().next().unwrap_or_default());
        return None;
    }
    let before: BTreeMap<u16, usize> = (1..=PORTS).map(|p| (p, ovs.sent(p).len())).collect();
    let mut s = Switch::new(10_000);
    let b = s.add_bridge("br0", 1);
    for n in 1..=PORTS {
        s.add_port(b, Port::new(PortNo(n), &format!("p{n}"), PortKind::Device(n.into()))).expect("port");
    }
    let list: Vec<Message> = flows.iter().cloned().map(Message::FlowMod).collect();
    s.apply_bundle(b, &list, Duration::from_secs(1)).expect("bundle");
    let mut ours: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    for (port, p) in packets {
        ovs.receive(*port, p);
        let mut out = Outputs::default();
        s.process([(u32::from(*port), p.clone())], Duration::from_secs(2), &mut out);
        for (d, q) in out.packets {
            ours.entry(d as u16).or_default().push(q);
        }
    }
    ovs.settle();
    let mut bad = Vec::new();
    let mut n = 0;
    for port in 1..=PORTS {
        let mut theirs = ovs.sent(port).split_off(before[&port]);
        let mut mine = ours.remove(&port).unwrap_or_default();
        // A dummy device pads to the least Ethernet length.
        for p in theirs.iter_mut().chain(&mut mine) {
            p.resize(p.len().max(60), 0);
        }
        n += mine.len();
        theirs.sort();
        mine.sort();
        let hex = |p: &[u8]| p.iter().map(|b| format!("{b:02x}")).collect::<String>();
        for p in &mine {
            match theirs.iter().position(|q| q == p) {
                Some(i) => drop(theirs.remove(i)),
                None => bad.push(format!("{name}: port {port}: only ours:   {}", hex(p))),
            }
        }
        bad.extend(theirs.iter().map(|p| format!("{name}: port {port}: only theirs: {}", hex(p))));
    }
    Some((n, bad))
}

#[test]
fn same_packets_out() {
    let Some(files) = golden::files(&[".flows", ".groups"]) else { return };
    let Some(ovs) = Ovs::start() else { return };
    ovs.ofctl(&["add-tlv-map", "{class=0x102,type=0x80,len=4}->tun_metadata0"]).expect("option map");
    let grouped: BTreeSet<&str> = files
        .iter()
        .filter(|(n, t)| n.ends_with(".groups") && t.contains("group_id"))
        .filter_map(|(n, _)| n.strip_suffix(".groups"))
        .collect();
    // Every table with LAB_STEP=1; a sample otherwise.
    let step = std::env::var("LAB_STEP").ok().and_then(|s| s.parse().ok()).unwrap_or(41);
    let (mut cases, mut total, mut bad) = (0, 0, Vec::new());
    let only = std::env::var("LAB_ONLY").unwrap_or_default();
    for (name, text) in
        files.iter().filter(|(n, _)| n.ends_with(".flows") && n.contains(&only) && !n.contains(EXCEPT)).step_by(step)
    {
        let base = name.strip_suffix(".flows").unwrap_or(name);
        let lines: Vec<&str> = text.lines().filter(|l| l.contains("actions=") && !l.contains("meter_id")).collect();
        if grouped.contains(base) || lines.len() != text.lines().filter(|l| l.contains("actions=")).count() {
            continue;
        }
        if let Some((n, b)) = compare(&ovs, base, &lines) {
            cases += 1;
            total += n;
            bad.extend(b);
        }
    }
    eprintln!("{cases} tables, {total} packets out, {} differences", bad.len());
    for b in bad.iter().take(12) {
        eprintln!("{b}");
    }
    assert!(cases > 5 && total > 50 || !only.is_empty(), "{cases} tables, {total} packets");
    assert!(bad.is_empty());
}

/// When a connection is new, established or invalid, packet by packet: the state is written into the Ethernet source.
#[test]
fn same_connection_states() {
    let Some(ovs) = Ovs::start() else { return };
    let mut lines = vec![
        "table=0,in_port=1,ip actions=ct(table=1,zone=5)".to_string(),
        "table=0,in_port=2,ip actions=ct(table=2,zone=5)".to_string(),
        "table=1,ip actions=resubmit(,10),ct(commit,zone=5),output:2".to_string(),
        "table=2,ip actions=resubmit(,10),output:1".to_string(),
    ];
    for (i, state) in ["+new-est-rpl", "+new-est+rpl", "-new+est-rpl", "-new+est+rpl", "+inv"].iter().enumerate() {
        lines.push(format!("table=10,ct_state={state} actions=set_field:02:00:00:00:00:f{i}->eth_src"));
    }
    let (am, bm): (packet::Mac, packet::Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut list: Vec<(u16, Vec<u8>)> = Vec::new();
    // The payload or id numbers the packets, so that their order counts.
    for (n, back) in [false, false, true, false, true, false].into_iter().enumerate() {
        let (from, to) = if back { ((b, 2), (a, 1)) } else { ((a, 1), (b, 2)) };
        let p = build::udp(bm, am, from, to, 64, &[n as u8; 30]).expect("udp");
        list.push((1 + u16::from(back), p));
        let echo = [if back { 0 } else { 8 }, 0, 0, 0, 0, 7, 0, n as u8];
        let (s, d) = if back { (b, a) } else { (a, b) };
        list.push((1 + u16::from(back), build::ip_packet(bm, am, s, d, 1, 64, &echo).expect("icmp")));
    }
    list.push((2, build::ip_packet(bm, am, b, a, 1, 64, &[0, 0, 0, 0, 0, 9, 0, 1]).expect("lone reply")));
    let tcp = |back: bool, seq: u8, ack: u8, flags: u8, mark: u8| {
        let mut t = if back { vec![0, 80, 0x30, 5] } else { vec![0x30, 5, 0, 80] };
        t.extend_from_slice(&[0, 0, 0, seq, 0, 0, 0, ack, 0x50, flags, 0x20, mark, 0, 0, 0, 0]);
        let (s, d) = if back { (b, a) } else { (a, b) };
        (1 + u16::from(back), build::ip_packet(bm, am, s, d, 6, 64, &t).expect("tcp"))
    };
    list.extend([
        tcp(false, 1, 0, 2, 0),
        tcp(false, 1, 0, 2, 1),
        tcp(true, 100, 2, 0x12, 2),
        tcp(true, 100, 2, 0x12, 3),
        tcp(false, 2, 101, 0x10, 4),
        tcp(true, 101, 2, 0x10, 5),
        tcp(false, 2, 101, 0x10, 6),
        tcp(false, 2, 101, 0x11, 7),
        tcp(true, 101, 3, 0x11, 8),
        tcp(false, 3, 102, 0x10, 9),
    ]);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let (n, bad) = compare_on(&ovs, "states", &lines, &list).expect("flows load");
    assert_eq!(n, list.len(), "every packet comes out");
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
