//! What a packet costs that opens a connection, and what by fast paths, one and two at a time: two benches call this, one
//! with packets that prefetch and one without.

#[path = "packet.rs"]
mod buffer;
#[path = "time.rs"]
mod time;

use buffer::Packet;
use openflow_rs::message::{CtFlush, TlvMap, TlvTableMod};
use openflow_rs::text::{parse_flow, parse_group};
use openflow_rs::{GroupMod, Message, PortNo};
use packet::{build, checksum};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use switch::conntrack::Flush;
use switch::{BridgeId, DeviceId, Egress, FastPath, Outputs, Port, PortKind, Route, Switch, TunnelConfig, TunnelKind};

const BATCH: usize = 32;
const CONNECTIONS: u32 = 200_000;
const ROUNDS: u32 = 3;
/// Where packets come in, and where they leave.
const UNDER: DeviceId = DeviceId(10);
const PHYS: DeviceId = DeviceId(20);
/// The VLAN of the router's port.
const VLAN: u16 = 100;
/// Group 1 of the gateway.
const SERVICE: &str = "group_id=1,type=select,selection_method=dp_hash,bucket=bucket_id:0,weight:100,actions=ct(commit,table=19,zone=NXM_NX_REG11[0..15],nat(dst=10.0.1.11:5000),exec(set_field:0x2/0x2->ct_mark))";
/// A datagram of 10.0.1.11 to 172.31.0.1, out of the hypervisor's tunnel and bound for the router's gateway port.
const FRAME: [u8; 122] = frame();

const HERE: [u8; 6] = [2, 0, 0, 0, 0x50, 0x11];
const THERE: [u8; 6] = [2, 0, 0, 0, 0x50, 0x12];
const NEXT: [u8; 6] = [2, 0, 0, 0, 0x99, 1];

/// Its headers; where the inner ones begin, and what lies behind them.
const INNER: usize = 58;
const fn frame() -> [u8; 122] {
    let head: [u8; 100] = [
        2, 0, 0, 0, 0x50, 0x11, 2, 0, 0, 0, 0x50, 0x12, 8, 0, // Ethernet
        0x45, 0, 0, 0x6c, 0, 0, 0, 0, 0x40, 17, 0x95, 0x19, 192, 168, 50, 12, 192, 168, 50, 11, // IPv4
        0, 1, 0x17, 0xc1, 0, 0x58, 0, 0, // UDP
        2, 0x40, 0x65, 0x58, 0, 0, 9, 0, 1, 2, 0x80, 1, 0, 3, 0, 2, // Geneve: datapath 9, from port 3 to port 2
        2, 0, 0, 0, 0x99, 1, 2, 0, 0, 0, 0xfe, 3, 8, 0, // Ethernet
        0x45, 0, 0, 0x32, 0, 0, 0, 0, 0x40, 17, 0, 0, 10, 0, 1, 11, 172, 31, 0, 1, // IPv4
        0x27, 0x10, 0, 53, 0, 30, 0, 0, // UDP
    ];
    let mut f = [0; 122];
    let mut i = 0;
    while i < head.len() {
        f[i] = head[i];
        i += 1;
    }
    f
}

/// The same for connection `n`, as `make bench-switch` numbers them.
fn number(p: &mut [u8], n: u32) {
    let l3 = INNER + 14;
    p[l3 + 15] = 11 + (n % 4) as u8;
    p[l3 + 16..l3 + 20].copy_from_slice(&Ipv4Addr::from(0xac1f_0001 + n / 50_000).octets());
    p[l3 + 20..l3 + 22].copy_from_slice(&(10_000 + (n % 50_000) as u16).to_be_bytes());
    checksum::set_ipv4(p, l3);
}

struct Rig {
    switch: Switch,
    out: Outputs<Packet>,
    now: Duration,
}

impl Rig {
    fn port(&mut self, bridge: BridgeId, no: u16, name: &str, kind: PortKind) {
        self.switch.add_port(bridge, Port::new(PortNo(no), name, kind)).expect("port");
    }

    fn apply(&mut self, bridge: BridgeId, m: &Message) {
        self.switch.apply(bridge, m, self.now).expect("a change");
    }

    fn new(connections: u32) -> Rig {
        let switch = Switch::new(connections as usize + 1);
        let mut r = Rig { switch, out: Outputs::default(), now: Duration::from_secs(1) };
        let [under, int, phys] =
            [("br-under", 1), ("br-int", 2), ("br-phys", 3)].map(|(n, i)| r.switch.add_bridge(n, i));
        let here: IpAddr = [192, 168, 50, 11].into();
        let there: IpAddr = [192, 168, 50, 12].into();
        let mut geneve = TunnelConfig::new(TunnelKind::Geneve, Some(there));
        (geneve.local, geneve.csum) = (Some(here), Some(true));
        r.port(under, UNDER.0 as u16, "under0", PortKind::Device(UNDER));
        r.port(under, 0xfffe, "br-under", PortKind::Internal(DeviceId(11)));
        r.port(int, 1, "ovn-hv1-0", PortKind::Tunnel(Box::new(geneve)));
        for (no, name) in [(2, "wire-gw"), (3, "public-physical")] {
            let [a, b] = [format!("patch-br-int-to-{name}"), format!("patch-{name}-to-br-int")];
            r.port(int, no, &a, PortKind::Patch(b.clone()));
            r.port(phys, no, &b, PortKind::Patch(a));
        }
        r.port(int, 0xfffe, "br-int", PortKind::Internal(DeviceId(12)));
        r.port(phys, PHYS.0 as u16, "phys0", PortKind::Device(PHYS));
        r.port(phys, 0xfffe, "br-phys", PortKind::Internal(DeviceId(21)));
        r.switch.underlay.set_routes(vec![Route {
            prefix: [192, 168, 50, 0].into(),
            len: 24,
            gateway: None,
            source: here,
            source_mac: packet::Mac(HERE),
            egress: Egress::Port("br-under".into()),
            hop_source: None,
            table: Route::MAIN,
            own: false,
            mark: 0,
        }]);
        r.switch.underlay.set_neighbour(there, Some(packet::Mac(THERE)));
        let map = TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 };
        r.apply(int, &Message::TlvTableMod(TlvTableMod { command: 0, maps: vec![map] }));
        let group = parse_group(SERVICE).expect("group");
        r.apply(int, &Message::GroupMod(GroupMod::new(openflow_rs::mods::GroupModCommand::Add, group)));
        for f in include_str!("../data/gateway.flows").lines() {
            r.apply(int, &Message::FlowMod(parse_flow(f).unwrap_or_else(|e| panic!("{f}: {e}"))));
        }
        for b in [under, phys] {
            r.apply(b, &Message::FlowMod(parse_flow("priority=0 actions=NORMAL").expect("flow")));
        }
        r.switch.count_late();
        // The bridge learns where the next hop is.
        let mut hello = build::gratuitous_arp(packet::Mac(NEXT), [172, 16, 0, 254].into());
        hello.splice(12..12, [0x81, 0].into_iter().chain(VLAN.to_be_bytes()));
        let mut p = Packet::new();
        p.becomes(&hello);
        r.switch.process(&mut vec![(PHYS, p)], r.now, &mut r.out);
        r.out.packets.clear();
        r
    }

    /// Sends the packets of connections number `range` in bursts; gives the processor time.
    fn send(&mut self, range: std::ops::Range<u32>) -> Duration {
        let mut template = FRAME;
        let start = time::processor_time();
        let mut burst = Vec::with_capacity(BATCH);
        let mut spare: Vec<Packet> = (0..BATCH).map(|_| Packet::new()).collect();
        let mut n = range.start;
        while n < range.end {
            while burst.len() < BATCH && n < range.end {
                let mut p = spare.pop().unwrap_or_else(Packet::new);
                number(&mut template, n);
                p.becomes(&template);
                burst.push((UNDER, p));
                n += 1;
            }
            self.now += Duration::from_micros(10);
            let sent = burst.len();
            self.switch.process(&mut burst, self.now, &mut self.out);
            assert_eq!(self.out.packets.len(), sent, "packets leave: {:?}", self.switch.drops);
            spare.extend(self.out.packets.drain(..).map(|(_, p)| p));
        }
        time::processor_time().saturating_sub(start)
    }

    /// The same where no connection is there.
    #[inline(never)]
    fn open(&mut self, range: std::ops::Range<u32>) -> Duration {
        let n = range.len();
        let t = self.send(range);
        assert_eq!(self.switch.conntrack.lock().len(), n, "each packet opens one");
        t
    }
}

/// A fast path in a thread of its own.
struct Lane {
    path: FastPath,
    out: Outputs<Packet>,
    spare: Vec<Packet>,
}

impl Lane {
    /// Sends the packets of these connections; says how many upcalls there were, how much processor time it took, and how
    /// long.
    fn open(&mut self, range: std::ops::Range<u32>, now: Duration) -> (usize, Duration, Duration) {
        let Lane { path, out, spare } = self;
        let (start, begun) = (time::processor_time(), std::time::Instant::now());
        let (mut template, mut burst, mut missed, mut upcalls) = (FRAME, Vec::with_capacity(BATCH), Vec::new(), 0);
        for n in range {
            let mut p = spare.pop().unwrap_or_else(Packet::new);
            number(&mut template, n);
            p.becomes(&template);
            burst.push((UNDER, p));
            if burst.len() == BATCH {
                path.process(&mut burst, now, out, &mut missed);
                spare.extend(out.packets.drain(..).map(|(_, p)| p));
                upcalls += missed.len();
                missed.drain(..).for_each(|u| path.left(u.ticket));
            }
        }
        (upcalls, time::processor_time().saturating_sub(start), begun.elapsed())
    }
}

/// The same by fast paths, one and two at a time: processor time of each for a connection, and how many both open in a
/// second of their time.
fn lanes(n: u32) {
    let mut r = Rig::new(n);
    // All ways through the tables have been seen.
    r.send(0..n);
    let mut one = 0.0;
    for threads in [1, 2, 1, 2] {
        r.switch.conntrack.lock().flush(&Flush::Filter(CtFlush::default()));
        let now = r.now;
        let of = |_| Lane { path: r.switch.fast_path(), out: Outputs::default(), spare: Vec::new() };
        let mut lanes: Vec<Lane> = (0..threads).map(of).collect();
        let share = n / threads / BATCH as u32 * BATCH as u32;
        let all: Vec<(usize, Duration, Duration)> = std::thread::scope(|s| {
            let start = |(l, i): (_, u32)| s.spawn(move || Lane::open(l, i * share..(i + 1) * share, now));
            let threads: Vec<_> = lanes.iter_mut().zip(0..).map(start).collect();
            threads.into_iter().map(|t| t.join().expect("thread")).collect()
        });
        let upcalls: usize = all.iter().map(|a| a.0).sum();
        let opened = r.switch.conntrack.lock().len();
        assert_eq!(opened + upcalls, (threads * share) as usize, "each packet opens one");
        let each: Vec<f64> = all.iter().map(|a| a.1.as_nanos() as f64 / f64::from(share)).collect();
        let rate: f64 = each.iter().map(|ns| 1000.0 / ns).sum();
        let elapsed: Vec<f64> = all.iter().map(|a| a.2.as_nanos() as f64 / f64::from(share)).collect();
        one = if threads == 1 { rate } else { one };
        println!(
            "fresh {threads} fast paths: {each:.0?} ns of processor time each, {elapsed:.0?} ns elapsed, {rate:.2} million a second, {:.2} times one; {upcalls} upcalls",
            rate / one
        );
    }
}

/// Measures what the arguments ask for.
pub fn main() {
    if std::env::args().any(|a| a == "lanes") {
        return lanes(std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(1_000_000));
    }
    let n = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(CONNECTIONS);
    let mut r = Rig::new(n);
    let each = |what: &str, t: Duration| println!("fresh {what}: {:.0} ns", t.as_nanos() as f64 / f64::from(n));
    each("in new places", r.open(0..n));
    for _ in 0..ROUNDS {
        // Packets of connections that are there make cached flows, which are stale then.
        each("the next packet of each", r.send(0..n));
        each("one more of each", r.send(0..n));
        r.switch.conntrack.lock().flush(&Flush::Filter(CtFlush::default()));
        each("after all went", r.open(0..n));
    }
}
