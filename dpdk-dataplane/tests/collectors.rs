//! sFlow datagrams and NetFlow messages, beside those of Open vSwitch for the same packets.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// A socket of a namespace.
fn socket(ns: &Namespace, port: u16) -> UdpSocket {
    let place = std::fs::File::open(format!("/var/run/netns/{}", ns.0)).expect("namespace");
    // A thread of its own goes there; the socket stays.
    let bound = std::thread::spawn(move || {
        nix::sched::setns(place, nix::sched::CloneFlags::CLONE_NEWNET).expect("setns");
        UdpSocket::bind(("127.0.0.1", port)).expect("socket")
    });
    let s = bound.join().expect("thread");
    s.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
    s
}

/// Big-endian numbers, one after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (a, b) = self.0.split_at(n);
        self.0 = b;
        a
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn words(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.word()).collect()
    }

    fn part(&mut self) -> (u32, Reader<'a>) {
        let (format, n) = (self.word(), self.word() as usize);
        (format, Reader(self.take(n)))
    }
}

/// What was heard of packets: input, output, the tags' numbers and priorities, length, header.
type Flow = (Vec<u32>, Vec<u32>, Vec<u32>, Vec<u8>);

#[derive(Default)]
struct Heard {
    flows: Vec<Flow>,
    /// By source: format and bytes of each record.
    counters: BTreeMap<u32, BTreeMap<u32, Vec<u8>>>,
    /// What was last said of a tunnel, by format.
    tunnels: BTreeMap<u32, Vec<u8>>,
    last: u32,
    samples: u32,
    pool: u32,
}

impl Heard {
    fn listen(&mut self, s: &UdpSocket) {
        let mut room = [0; 65536];
        while let Ok(n) = s.recv(&mut room) {
            self.datagram(&room[..n]);
        }
    }

    fn datagram(&mut self, d: &[u8]) {
        assert!(d.len() <= 1472, "{}", d.len());
        let mut r = Reader(d);
        // Version 5, an IPv4 agent, no sub-agent.
        assert_eq!(r.words(4), [5, 1, 0x7f00_0001, 0]);
        let sequence = r.word();
        assert!(self.last == 0 || sequence == self.last + 1, "{sequence} behind {}", self.last);
        self.last = sequence;
        let (_uptime, n) = (r.word(), r.word());
        for _ in 0..n {
            match r.part() {
                (1, sample) => self.flow(sample),
                (2, sample) => self.counters(sample),
                (other, _) => panic!("sample {other}"),
            }
        }
        assert!(r.0.is_empty());
    }

    fn flow(&mut self, mut r: Reader<'_>) {
        let [sequence, source, rate, pool, drops] = r.words(5).try_into().expect("five");
        assert_eq!((source, rate, drops), (2 << 24 | 1000, 1, 0));
        assert!(self.samples == 0 || (sequence, pool) == (self.samples + 1, self.pool + 1));
        (self.samples, self.pool) = (sequence, pool);
        let (ports, n) = (r.words(2), r.word());
        let (mut tags, mut lengths, mut header) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..n {
            match r.part() {
                (1001, mut p) => tags = p.words(4),
                (1, mut p) => {
                    lengths = p.words(3);
                    let n = p.word() as usize;
                    header = p.take(n).to_vec();
                    assert!(p.0.len() < 4);
                }
                (other @ (1023 | 1024 | 1029 | 1030), p) => drop(self.tunnels.insert(other, p.0.to_vec())),
                (other, _) => panic!("record {other}"),
            }
        }
        // The kernel talks by itself, too.
        if header.get(6..12) == Some(&[2, 0, 0, 0, 0, 1]) {
            self.flows.push((ports, tags, lengths, header));
        }
    }

    fn counters(&mut self, mut r: Reader<'_>) {
        let [_sequence, source, n] = r.words(3).try_into().expect("three");
        for _ in 0..n {
            let (format, p) = r.part();
            self.counters.entry(source).or_default().insert(format, p.0.to_vec());
        }
    }
}

/// A switch with ports that nothing else sends to.
fn switch(s: &Switch, ns: &Namespace) {
    for v in ["v1", "v2", "v3"] {
        ns.ip(&format!("link add {v} type veth peer name p{v}"));
        ns.exec(&format!("ethtool -K {v} tx off")).expect("ethtool");
        ns.exec(&format!("sysctl -qw net.ipv6.conf.{v}.disable_ipv6=1 net.ipv6.conf.p{v}.disable_ipv6=1"))
            .expect("sysctl");
        ns.ip(&format!("link set {v} up"));
        ns.ip(&format!("link set p{v} up"));
    }
    s.vsctl(
        "add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure other_config:datapath-id=00000000000000ab",
    );
    for (n, v) in ["v1", "v2", "v3"].iter().enumerate() {
        s.vsctl(&format!("add-port br0 {v} -- set interface {v} ofport_request={}", n + 1));
    }
    s.ofctl(&["add-flow", "br0", "priority=9,in_port=1,dl_vlan=5,actions=strip_vlan,output:2"]);
    s.ofctl(&["add-flow", "br0", "priority=8,in_port=1,udp,tp_dst=7,actions=drop"]);
    s.ofctl(&["add-flow", "br0", "priority=8,in_port=1,udp,tp_dst=8,actions=output:2,output:3"]);
    s.ofctl(&["add-flow", "br0", "priority=8,in_port=1,udp,tp_dst=9,actions=NORMAL"]);
    s.ofctl(&["add-flow", "br0", "priority=1,in_port=1,actions=output:2"]);
    s.ofctl(&["add-flow", "br0", "priority=0,actions=drop"]);
}

/// Sends frames into the first port.
fn send(ns: &Namespace, frames: &[&str]) {
    let byte = |f: &str, i: usize| u8::from_str_radix(&f[i..i + 2], 16).expect("hex");
    let bytes = |f: &&str| (0..f.len()).step_by(2).map(|i| byte(f, i)).collect();
    common::send(ns, "pv1", frames.iter().map(bytes).collect());
}

/// UDP over IPv4 to this port, with an address of its own; behind a tag or not.
fn udp(port: u16, host: u8, tagged: bool) -> String {
    let tag = if tagged { "8100a005" } else { "" };
    let ip = format!("4510002400004000401100000a0000{host:02x}0a000063");
    format!("020000000002020000000001{tag}0800{ip}1234{port:04x}00100000{}", "aa".repeat(8))
}

fn tcp(flags: u8) -> String {
    format!("0200000000020200000000010800450000280000400040060000 0a0000010a000063 1111 0050 0000000100000000 50{flags:02x}2000 00000000").replace(' ', "")
}

const ARP: &str = "ffffffffffff02000000000108060001080006040001020000000001c0a80001000000000000c0a80002";
const ECHO: &str = "02000000000202000000000108004500001c00004000400100000a0000010a0000630800f7ff00000000";

#[test]
fn sflow_is_that_of_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("so"), Namespace::new("sc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    let mut heard = [Heard::default(), Heard::default()];
    let sockets = [&a, &b].map(|ns| socket(ns, 6343));
    let frames =
        [ARP.into(), udp(7, 1, false), udp(8, 1, false), udp(1, 1, true), udp(1, 2, false), ECHO.into(), tcp(2)];
    let frames: Vec<&str> = frames.iter().map(|f: &String| f.as_str()).collect();
    for (i, (s, ns)) in switches.iter().zip([&a, &b]).enumerate() {
        switch(s, ns);
        s.vsctl("-- --id=@s create sflow agent=lo header=50 sampling=1 polling=2 targets=\"127.0.0.1\" -- set bridge br0 sflow=@s");
        eventually("the first sample", SOON, || {
            send(ns, &[ARP]);
            heard[i].listen(&sockets[i]);
            if heard[i].flows.is_empty() { Err("none".into()) } else { Ok(()) }
        });
        std::thread::sleep(Duration::from_millis(1500));
        heard[i].listen(&sockets[i]);
        heard[i].flows.clear();
        send(ns, &frames);
        eventually("samples", SOON, || {
            heard[i].listen(&sockets[i]);
            if heard[i].flows.len() >= frames.len() { Ok(()) } else { Err(heard[i].flows.len().to_string()) }
        });
    }
    assert_eq!(heard[0].flows.len(), frames.len());
    for (n, (ours, theirs)) in heard[0].flows.iter().zip(&heard[1].flows).enumerate() {
        assert_eq!(ours, theirs, "{}", frames[n]);
    }
    // Counters of ports: those that a quiet port has are the same, and what identifies ports.
    for (h, s) in heard.iter_mut().zip(&sockets) {
        eventually("counters", SOON, || {
            h.counters.clear();
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                h.listen(s);
            }
            if h.counters.len() == 5 { Ok(()) } else { Err(format!("{:?}", h.counters.keys())) }
        });
    }
    // By datapath and port number; the switch itself has neither.
    let by_port = |h: &Heard| -> BTreeMap<Vec<u8>, BTreeMap<u32, Vec<u8>>> {
        h.counters.values().map(|r| (r.get(&1004).cloned().unwrap_or_default(), r.clone())).collect()
    };
    let [ours, theirs] = heard.each_ref().map(by_port);
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (port, records) in &ours {
        let other = &theirs[port];
        assert_eq!(records.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
        let local = port.ends_with(&[0xff, 0xfe]);
        for (format, bytes) in records {
            match format {
                2 | 1005 => assert_eq!(bytes, &other[format], "{port:?}: {format}"),
                // The kernel's packets are not the same, and its device of the bridge is another one.
                1 if !local => {
                    let what = |b: &[u8]| [&b[..24], &b[52..56]].concat();
                    assert_eq!(what(bytes), what(&other[format]), "{port:?}: {format}");
                    assert_eq!(bytes.len(), 88);
                }
                _ => assert_eq!(bytes.len(), other[format].len(), "{port:?}: {format}"),
            }
        }
    }
    // What is not wanted any more ends.
    switches[0].vsctl("clear bridge br0 sflow");
    std::thread::sleep(Duration::from_secs(2));
    heard[0].listen(&sockets[0]);
    heard[0].flows.clear();
    send(&a, &[ECHO]);
    std::thread::sleep(Duration::from_secs(2));
    heard[0].listen(&sockets[0]);
    assert!(heard[0].flows.is_empty());
}

/// Records of NetFlow version 5, without times, in order.
fn netflow(s: &UdpSocket, engine: [u8; 2], sent: &mut Option<u32>) -> Vec<Vec<u8>> {
    let (mut out, mut room) = (Vec::new(), [0; 65536]);
    while let Ok(n) = s.recv(&mut room) {
        let (header, records) = room[..n].split_at(24);
        assert_eq!((&header[..2], &header[20..24]), (&[0, 5][..], &[engine[0], engine[1], 0, 0][..]));
        let count = usize::from(u16::from_be_bytes([header[2], header[3]]));
        assert!(count <= 30 && records.len() == 48 * count);
        if let Some(sent) = sent {
            assert_eq!(u32::from_be_bytes(header[16..20].try_into().expect("four")), *sent);
            *sent += count as u32;
        }
        for r in records.chunks(48) {
            let time = |at: usize| u32::from_be_bytes(r[at..at + 4].try_into().expect("four"));
            assert!(time(24) <= time(28));
            out.push([&r[..24], &r[32..]].concat());
        }
    }
    out.sort();
    out
}

#[test]
fn netflow_is_that_of_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("no"), Namespace::new("nc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    let sockets = [&a, &b].map(|ns| socket(ns, 2055));
    let frames = [
        ARP.into(),
        udp(7, 1, false),
        udp(8, 1, false),
        udp(9, 1, false),
        udp(1, 1, true),
        udp(1, 2, false),
        udp(1, 2, false),
        ECHO.into(),
        tcp(2),
        tcp(0x10),
    ];
    let frames: Vec<&str> = frames.iter().map(|f: &String| f.as_str()).collect();
    for (s, ns) in switches.iter().zip([&a, &b]) {
        switch(s, ns);
        s.vsctl("-- --id=@n create netflow engine_id=3 engine_type=4 active_timeout=4 targets=\"127.0.0.1:2055\" -- set bridge br0 netflow=@n");
    }
    for add in [false, true] {
        for s in &switches {
            let row = s.vsctl("--bare --columns=_uuid list netflow");
            s.vsctl(&format!("set netflow {} add_id_to_interface={add}", row.trim()));
        }
        std::thread::sleep(Duration::from_millis(1000));
        let mut all: [Vec<Vec<u8>>; 2] = [&a, &b].map(|ns| {
            send(ns, &frames);
            Vec::new()
        });
        let mut sent = Some(0);
        // Seven flows; the TCP flow's packets are one record or two, as flows of the cache are the switch's own matter.
        for (i, got) in all.iter_mut().enumerate() {
            eventually("records", SOON, || {
                let mut none = None;
                got.extend(netflow(&sockets[i], [4, 3], if i == 0 { &mut sent } else { &mut none }));
                if got.len() >= 7 { Ok(()) } else { Err(format!("{got:?}")) }
            });
            got.sort();
        }
        assert_eq!(all[0], all[1]);
    }
}

/// Tunnels that packets come by, and LACP's members, which are each other's partners.
#[test]
fn sflow_tells_of_tunnels_and_lacp() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = common::joined("to", "td");
    for v in ["m1", "m2"] {
        a.ip(&format!("link add {v} type veth peer name {v} netns {}", b.0));
        [&a, &b].iter().for_each(|ns| drop(ns.ip(&format!("link set {v} up"))));
    }
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    let sockets = [&a, &b].map(|ns| socket(ns, 6343));
    for (n, (s, ns)) in switches.iter().zip([&a, &b]).enumerate() {
        let (own, peer) = (n + 1, 2 - n);
        s.vsctl(&format!("add-br br-phys -- set bridge br-phys datapath_type=netdev other_config:hwaddr=02:00:00:00:06:0{own} -- add-port br-phys eth0"));
        s.vsctl(&format!("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 x1 -- set interface x1 type=vxlan options:remote_ip=172.16.0.{peer} options:key=7 options:tos=0x20 ofport_request=1"));
        s.vsctl("add-bond br0 bond1 m1 m2 bond_mode=balance-tcp lacp=active other_config:lacp-time=fast -- set interface m1 other_config:lacp-aggregation-key=77 -- set interface m2 other_config:lacp-aggregation-key=77");
        ns.ip(&format!("addr add 172.16.0.{own}/24 dev br-phys"));
        ns.ip("link set br-phys up");
        s.vsctl(
            "-- --id=@s create sflow agent=lo sampling=1 polling=1 targets=\"127.0.0.1\" -- set bridge br0 sflow=@s",
        );
    }
    let mut heard = [Heard::default(), Heard::default()];
    let echo = format!("in_port=controller packet={ECHO} actions=output:1");
    let mut said = Vec::new();
    eventually("tunnels of both", SOON, || {
        switches.iter().for_each(|s| drop(s.ofctl(&["packet-out", "br0", &echo])));
        std::thread::sleep(Duration::from_millis(300));
        heard.iter_mut().zip(&sockets).for_each(|(h, s)| h.listen(s));
        said = heard.iter().map(|h| (h.tunnels.get(&1024).cloned(), h.tunnels.get(&1030).cloned())).collect();
        if said.iter().all(|s| s.0.is_some() && s.1.is_some()) { Ok(()) } else { Err(format!("{said:?}")) }
    });
    assert!(said.iter().all(|s| s.1.as_deref() == Some(&[0, 0, 0, 7][..])), "{said:?}");
    let words: Vec<Vec<u32>> = said.iter().map(|s| Reader(s.0.as_deref().unwrap_or_default()).words(8)).collect();
    let (here, there) = (0xac10_0001, 0xac10_0002);
    let source = words[0][4];
    assert_eq!(words[0], [0, 17, there, here, source, 4789, 0, 0x20]);
    // Open vSwitch turns ports round.
    let turned = u32::from(4789_u16.swap_bytes());
    assert_eq!(words[1][..4], [0, 17, here, there]);
    assert_eq!(words[1][5..], [turned, 0, 0x20]);
    let members = |h: &Heard| -> Vec<Vec<u8>> { h.counters.values().filter_map(|r| r.get(&7).cloned()).collect() };
    eventually("members", SOON, || {
        heard.iter_mut().zip(&sockets).for_each(|(h, s)| h.listen(s));
        let [ours, theirs] = heard.each_ref().map(members);
        let (Some(o), Some(t)) = (ours.first(), theirs.first()) else { return Err("none".into()) };
        let mirrored = o[..6] == t[8..14] && o[8..14] == t[..6] && o[20] == t[20] && o[21] == t[23] && o[23] == t[21];
        let same = o.len() == t.len()
            && ours.len() == 2
            && theirs.len() == 2
            && o[16..20] == t[16..20]
            && o[16..20] == [0, 0, 0, 77];
        // In sync, collecting and distributing.
        if mirrored && same && o[21] == 0x3f { Ok(()) } else { Err(format!("ours {o:?}\ntheirs {t:?}")) }
    });
    let [o, t] = heard.each_ref().map(|h| members(h)[0].clone());
    for at in (24..56).step_by(4) {
        let [own, other] = [&o, &t].map(|m| Reader(&m[at..]).word());
        assert_eq!(own == u32::MAX, other == u32::MAX, "word at {at}");
    }
    assert!(Reader(&o[24..]).word() > 0 && Reader(&o[44..]).word() > 0, "PDUs");
}
