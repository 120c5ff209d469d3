//! Samples as IPFIX records: a collector that decodes them by their templates (RFC 7011) hears the same of our switch
//! as of Debian's.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::collections::{BTreeMap, HashMap};
use std::net::UdpSocket;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// An enterprise's element.
const OWN: u16 = 0x8000;

/// A record: elements by number.
type Record = BTreeMap<u16, Vec<u8>>;

/// A collector in a namespace.
struct Collector {
    socket: UdpSocket,
    templates: HashMap<(u32, u16), Vec<(u16, usize)>>,
    /// The next sequence number of each domain, once one was seen.
    next: HashMap<u32, u32>,
    /// Messages out of sequence.
    gaps: usize,
}

impl Collector {
    fn new(ns: &Namespace) -> Collector {
        let place = std::fs::File::open(format!("/var/run/netns/{}", ns.0)).expect("namespace");
        // A thread of its own goes there; the socket stays.
        let bound = std::thread::spawn(move || {
            nix::sched::setns(place, nix::sched::CloneFlags::CLONE_NEWNET).expect("setns");
            UdpSocket::bind("127.0.0.1:4739").expect("socket")
        });
        let socket = bound.join().expect("thread");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
        Collector { socket, templates: HashMap::new(), next: HashMap::new(), gaps: 0 }
    }

    /// The records that have come, of packets from our sender.
    fn records(&mut self) -> Vec<(u32, Record)> {
        let mut out = Vec::new();
        let mut room = [0; 65536];
        while let Ok(n) = self.socket.recv(&mut room) {
            self.message(&room[..n], &mut out);
        }
        out.retain(|(_, r)| r.get(&56).map(Vec::as_slice) == Some(&[2, 0, 0, 0, 0, 1]));
        out
    }

    fn message(&mut self, m: &[u8], out: &mut Vec<(u32, Record)>) {
        let u16_at = |at: usize| u16::from_be_bytes([m[at], m[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([m[at], m[at + 1], m[at + 2], m[at + 3]]);
        assert_eq!((u16_at(0), usize::from(u16_at(2))), (10, m.len()), "version and length");
        let (sequence, domain) = (u32_at(8), u32_at(12));
        let (mut at, mut n) = (16, 0);
        while at < m.len() {
            let (id, end) = (u16_at(at), at + usize::from(u16_at(at + 2)));
            at += 4;
            match id {
                2 => {
                    while at < end {
                        let (template, count) = (u16_at(at), usize::from(u16_at(at + 2)));
                        at += 4;
                        let mut elements = Vec::new();
                        for _ in 0..count {
                            elements.push((u16_at(at), usize::from(u16_at(at + 2))));
                            // An enterprise's own says whose it is.
                            at += if u16_at(at) & 0x8000 == 0 { 4 } else { 8 };
                        }
                        self.templates.insert((domain, template), elements);
                    }
                }
                3 => at = end,
                id => {
                    // Without its template it cannot be read.
                    let Some(elements) = self.templates.get(&(domain, id)) else {
                        at = end;
                        continue;
                    };
                    while at < end {
                        let mut r = Record::new();
                        for (element, len) in elements {
                            let len = if *len == 65535 {
                                at += 1;
                                usize::from(m[at - 1])
                            } else {
                                *len
                            };
                            r.insert(*element, m[at..at + len].to_vec());
                            at += len;
                        }
                        out.push((domain, r));
                        n += 1;
                    }
                }
            }
            assert_eq!(at, end, "a set's end");
        }
        let expected = self.next.insert(domain, sequence.wrapping_add(n));
        self.gaps += usize::from(expected.is_some_and(|e| e != sequence));
    }
}

/// Frames of each kind that records tell apart.
const PACKETS: &[&str] = &[
    "0200000000020200000000010800450000280000000040066664c0a80001c0a800020050138800000001000000025002200000000000",
    "02000000000202000000000108004580001c0000000007110000c0a80001c0a800020050138800080000",
    "020000000002020000000001810020050800454d001c0000000040010000c0a80001c0a800020800000000000000",
    "020000000002020000000001810000070800450000180000000040590000c0a80001c0a8000200000000",
    "02000000000202000000000186dd6ab123450008112020010db800000000000000000000000120010db800000000000000000000000200350036000800aa",
    "02000000000202000000000186dd6000000000083aff20010db800000000000000000000000120010db80000000000000000000000028500000000000000",
    "0200000000020200000000018100000986dd6000000000043b4020010db800000000000000000000000120010db800000000000000000000000200000000",
    "ffffffffffff02000000000108060001080006040001020000000001c0a80001000000000000c0a80002",
    "02000000000202000000000188cc0207040200000000010403020001060200780000",
];

#[test]
fn records_are_those_of_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("xo"), Namespace::new("xc"));
    let mut collectors = [Collector::new(&a), Collector::new(&b)];
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for (s, ns) in switches.iter().zip([&a, &b]) {
        ns.ip("link add v1 type veth peer name v2");
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 v1 -- set interface v1 ofport_request=1 -- add-port br0 i1 -- set interface i1 type=internal ofport_request=2");
        s.vsctl("-- --id=@b get bridge br0 -- --id=@i create ipfix targets=\"127.0.0.1:4739\" other_config:virtual_obs_id=chassis-7 -- create flow_sample_collector_set id=7 bridge=@b ipfix=@i");
        s.ofctl(&[
            "add-flow",
            "br0",
            "table=5,actions=sample(probability=21845,collector_set_id=7,obs_domain_id=0x1234,obs_point_id=9)",
        ]);
        s.ofctl(&["add-flow", "br0", "dl_src=02:00:00:00:00:01,actions=sample(probability=65535,collector_set_id=7,obs_domain_id=0x1234,obs_point_id=0x55667788),output:2"]);
        s.ofctl(&["add-flow", "br0", "priority=65535,dl_src=02:00:00:00:00:05,actions=sample(probability=65535,collector_set_id=8,obs_domain_id=1,obs_point_id=1),output:2"]);
    }
    let send = |s: &Switch, packet: &str| {
        s.ofctl(&["packet-out", "br0", &format!("in_port=1 packet={packet} actions=resubmit(,0)")]);
    };
    // The collector set is there once the first record comes; with it, its templates.
    for (s, c) in switches.iter().zip(&mut collectors) {
        eventually("the first record", SOON, || {
            send(s, PACKETS[0]);
            if c.records().is_empty() { Err("none".into()) } else { Ok(()) }
        });
        c.records();
    }
    let mut heard = Vec::new();
    let before = switches.each_ref().map(counted);
    for packet in PACKETS {
        let [ours, theirs] = [0, 1].map(|i| {
            send(&switches[i], packet);
            let mut got = Vec::new();
            eventually(packet, SOON, || {
                got.extend(collectors[i].records());
                if got.len() == 1 { Ok(()) } else { Err(format!("{got:?}")) }
            });
            got.remove(0)
        });
        let ((domain, ours), (other, mut theirs)) = (ours.clone(), theirs);
        assert_eq!(domain, other);
        theirs.retain(|e, _| ours.contains_key(e));
        let mut mine = ours.clone();
        // Numbers of interfaces are the switch's own, and times those of the run.
        for r in [&mut mine, &mut theirs] {
            [10, 14, 158, 159].iter().for_each(|e| drop(r.remove(e)));
        }
        assert_eq!(mine, theirs, "{packet}");
        assert_eq!(ours.get(&10).map(Vec::as_slice), Some(&[0, 0, 0, 1][..]), "the OpenFlow port");
        assert_eq!(ours.get(&(OWN | 898)).map(Vec::as_slice), Some(&b"chassis-7"[..]));
        heard.push(ours);
    }
    assert_eq!(collectors[0].gaps, 0);
    let [ours, theirs] = switches.each_ref().map(counted);
    let more = |after: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
        after.iter().map(|(k, n)| (k.clone(), n - before[k])).collect::<BTreeMap<_, _>>()
    };
    let [ours, theirs] = [more(&ours, &before[0]), more(&theirs, &before[1])];
    assert_eq!(ours, theirs, "what the exporters count");
    assert_eq!(ours["sampled pkts"], PACKETS.len() as u64);
    // One of three stands for all.
    let counted = [0, 1].map(|i| {
        let mut got = Vec::new();
        eventually("one of three", SOON, || {
            switches[i].ofctl(&["packet-out", "br0", &format!("in_port=1 packet={} actions=resubmit(,5)", PACKETS[0])]);
            got.extend(collectors[i].records());
            got.pop().ok_or("none yet".into()).map(|(_, r)| got.push((0, r)))
        });
        [1, 2, 352].map(|e| got[0].1.get(&e).cloned().expect("a count"))
    });
    assert_eq!(counted[0], counted[1]);
    assert_eq!(counted[0][1], 3_u64.to_be_bytes());
    std::thread::sleep(Duration::from_millis(500));
    collectors[0].records();
    gathered(&switches[0], &mut collectors[0], &send);
}

/// The counters of the collector set 7, but for how many messages went out: templates go with them now and then.
fn counted(s: &Switch) -> BTreeMap<String, u64> {
    let text = s.ofctl(&["dump-ipfix-flow", "br0"]);
    let (_, counters) = text.split_once("id   7:").unwrap_or_else(|| panic!("{text}"));
    let all = counters.split([',', '\n']).filter_map(|pair| pair.trim().split_once('='));
    let all = all.filter(|(key, _)| *key != "tx pkts");
    all.map(|(key, n)| (key.to_string(), n.parse().expect("a number"))).collect()
}

/// All packets of a bridge, as they come and as they leave.
#[test]
fn a_bridge_tells_of_all_its_packets() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("bo"), Namespace::new("bc"));
    let mut collectors = [Collector::new(&a), Collector::new(&b)];
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    let mut all: Vec<Vec<Record>> = Vec::new();
    for (i, (s, ns)) in switches.iter().zip([&a, &b]).enumerate() {
        let vm = ns.machine(&format!("b{i}"), "10.8.0.1/24");
        vm.ip("link set eth0 address 02:00:00:00:00:01");
        vm.ip("neigh add 10.8.0.2 lladdr 02:00:00:00:00:02 dev eth0");
        ns.ip("link add v2 type veth peer name v3");
        ["v2", "v3"].iter().for_each(|l| drop(ns.ip(&format!("link set {l} up"))));
        s.vsctl(&format!("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 b{i} -- set interface b{i} ofport_request=1 -- add-port br0 v2 -- set interface v2 ofport_request=2"));
        s.ofctl(&["add-flow", "br0", "in_port=1,ip,actions=dec_ttl,output:2"]);
        s.vsctl("-- --id=@i create ipfix targets=\"127.0.0.1:4739\" sampling=1 obs_domain_id=123 obs_point_id=456 -- set bridge br0 ipfix=@i");
        let c = &mut collectors[i];
        let mut heard = |want: usize| {
            let mut got = Vec::new();
            eventually("records", SOON, || {
                // Not answered: only the request is seen.
                let _ = vm.exec("ping -n -c 1 -W 0.2 -s 40 10.8.0.2");
                got = c.records();
                got.retain(|(domain, r)| *domain == 123 && r.get(&4).map(Vec::as_slice) == Some(&[1]));
                if got.len() == want { Ok(()) } else { Err(format!("{got:?}")) }
            });
            got.into_iter().map(|(_, r)| r).collect::<Vec<_>>()
        };
        all.push(heard(2));
        // Open vSwitch 3.1 goes on with cached flows as they were.
        if i > 0 {
            continue;
        }
        s.vsctl("clear bridge br0 ipfix");
        s.vsctl("-- --id=@i create ipfix targets=\"127.0.0.1:4739\" sampling=1 obs_domain_id=123 obs_point_id=456 other_config:enable-input-sampling=false -- set bridge br0 ipfix=@i");
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(heard(1)[0].get(&61).map(Vec::as_slice), Some(&[1][..]), "what left");
    }
    let [ours, theirs] = all.try_into().expect("two");
    for (mut o, mut t) in ours.into_iter().zip(theirs) {
        t.retain(|e, _| o.contains_key(e));
        // Numbers of interfaces are the switch's own, times and names those of the run.
        for r in [&mut o, &mut t] {
            let name = String::from_utf8(r.remove(&82).expect("a name")).expect("text");
            assert!(name.starts_with('b') == (r[&61] == [0]) && (name == "v2") == (r[&61] == [1]), "{name}");
            [10, 14, 158, 159].iter().for_each(|e| drop(r.remove(e)));
        }
        // What leaves has no egress interface where it arrives.
        assert_eq!(o, t);
    }
}

/// With a cache the packets of a flow are one record.
fn gathered(s: &Switch, c: &mut Collector, send: &dyn Fn(&Switch, &str)) {
    let row = s.vsctl("--bare --columns=_uuid list ipfix");
    s.vsctl(&format!("set ipfix {} cache_active_timeout=3 cache_max_flows=2", row.trim()));
    std::thread::sleep(Duration::from_millis(300));
    (0..5).for_each(|_| send(s, PACKETS[0]));
    send(s, PACKETS[1]);
    let counts =
        |r: &Record| [2, 352].map(|e: u16| r.get(&e).map_or(0, |v| v.iter().fold(0, |n, b| n << 8 | u64::from(*b))));
    let mut got: Vec<Record> = Vec::new();
    eventually("both flows", SOON, || {
        got.extend(c.records().into_iter().map(|(_, r)| r));
        if got.len() == 2 { Ok(()) } else { Err(format!("{got:?}")) }
    });
    let mut sums: Vec<[u64; 2]> = got.iter().map(counts).collect();
    sums.sort_unstable();
    assert_eq!(sums, [[1, 42], [5, 5 * 54]]);
    // A third flow has no room.
    [0, 1, 4].iter().for_each(|i| send(s, PACKETS[*i]));
    got.clear();
    eventually("those that made room", SOON, || {
        got.extend(c.records().into_iter().map(|(_, r)| r));
        if got.len() == 3 { Ok(()) } else { Err(format!("{got:?}")) }
    });
    let reasons: Vec<&[u8]> = got.iter().filter_map(|r| r.get(&136)).map(Vec::as_slice).collect();
    assert_eq!(reasons, [&[5], &[5], &[2]]);
    assert_eq!(c.gaps, 0);
    let metrics = s.appctl(&["metrics/show"]).expect("metrics");
    assert!(
        metrics.contains("isthmus_ipfix_records_total ") && metrics.contains("isthmus_ipfix_failures_total 0\n"),
        "{metrics}"
    );
}

/// The headers of the tunnels that packets come by.
#[test]
fn tunnels_are_told_of() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let inner: Vec<u8> = (0..PACKETS[1].len() / 2)
        .map(|n| u8::from_str_radix(&PACKETS[1][2 * n..2 * n + 2], 16).expect("hexadecimal"))
        .collect();
    let lab = |(own, peer): (&str, &str)| {
        let (ns, sender) = common::joined(own, peer);
        let s = if own == "ko" { Switch::ours(&ns) } else { Switch::debian(&ns) };
        s.vsctl("add-br br-phys -- set bridge br-phys datapath_type=netdev other_config:hwaddr=02:00:00:00:06:01 -- add-port br-phys eth0");
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 x1 -- set interface x1 type=vxlan options:remote_ip=172.16.0.2 options:key=flow ofport_request=1 -- add-port br0 g1 -- set interface g1 type=geneve options:remote_ip=172.16.0.2 options:key=flow ofport_request=2");
        s.ofctl(&["add-flow", "br0", "actions=drop"]);
        ns.ip("addr add 172.16.0.1/24 dev br-phys");
        ns.ip("link set br-phys up");
        (s, Collector::new(&ns), ns, sender)
    };
    let mut labs = [("ko", "kp"), ("kd", "ke")].map(lab);
    let own = |r: &Record| r.iter().filter(|(e, _)| **e & OWN != 0).map(|(e, v)| (*e, v.clone())).collect::<Record>();
    for (port, header, kind) in
        [(4789, [8, 0, 0, 0, 0, 0x12, 0x34, 0], 1), (6081, [0, 0, 0x65, 0x58, 0, 0x12, 0x34, 0], 7)]
    {
        let payload = [&header[..], &inner].concat();
        let (from, to) = (([172, 16, 0, 2].into(), 50_123), ([172, 16, 0, 1].into(), port));
        let frame = packet::build::udp(
            packet::Mac([2, 0, 0, 0, 6, 1]),
            packet::Mac([2, 0, 0, 0, 6, 2]),
            from,
            to,
            64,
            &payload,
        )
        .expect("a frame");
        let mut heard = |config: &str| {
            let mut all = Vec::new();
            for (s, c, _, sender) in &mut labs {
                s.vsctl(&format!(
                    "-- --id=@i create ipfix targets=\"127.0.0.1:4739\" sampling=1 {config} -- set bridge br0 ipfix=@i"
                ));
                s.appctl(&["revalidator/purge"]).expect("purged");
                eventually("a record", SOON, || {
                    c.records();
                    common::send(sender, "eth0", vec![frame.clone()]);
                    std::thread::sleep(Duration::from_millis(300));
                    let got = c.records().pop().ok_or("none")?;
                    all.push(got.1);
                    Ok(())
                });
            }
            let theirs = all.pop().expect("theirs");
            (all.pop().expect("ours"), theirs)
        };
        let (ours, theirs) = heard("");
        let (mut mine, mut other) = (own(&ours), own(&theirs));
        let expected: [(u16, &[u8]); 7] = [
            (891, &[kind]),
            (892, &[0, 0x12, 0x34]),
            (893, &[172, 16, 0, 2]),
            (894, &[172, 16, 0, 1]),
            (895, &[17]),
            (896, &50_123_u16.to_be_bytes()),
            (897, &u16::to_be_bytes(port)),
        ];
        assert_eq!(mine, expected.iter().map(|(e, v)| (OWN | e, v.to_vec())).collect::<Record>());
        // Open vSwitch has a place for Geneve's protocol, and nothing in it.
        if kind == 7 {
            [&mut mine, &mut other].into_iter().for_each(|r| drop(r.remove(&(OWN | 895))));
        }
        assert_eq!(mine, other);
        let (ours, theirs) = heard("other_config:enable-tunnel-sampling=false");
        assert_eq!((own(&ours), own(&theirs)), (Record::new(), Record::new()));
    }
}
