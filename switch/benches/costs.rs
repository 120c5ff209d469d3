//! What a packet costs, in nanoseconds of the thread's processor time, without devices: `cargo bench -p switch --bench costs`,
//! with names of cases for some of them. Other programs on the machine disturb it only through the processor's caches.
//!
//! Callgrind counts the instructions of a case: `valgrind --tool=callgrind costs-… CASE`.

#[path = "common/packet.rs"]
mod buffer;
mod common;
#[path = "common/prefetch.rs"]
mod prefetch;
#[path = "common/time.rs"]
mod time;

use buffer::Packet;
use openflow_rs::text::parse_flow;
use openflow_rs::{FlowMod, FlowModCommand, Message, PortNo, TableId};
use packet::build;
use prefetch::prefetch;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use switch::{BridgeId, DeviceId, Outputs, Port, PortKind, Switch};

const BATCH: usize = 32;
/// Tries of what happens once.
const TIMES: usize = 5;

/// Memory that the process has.
fn memory() -> u64 {
    let s = std::fs::read_to_string("/proc/self/statm").expect("statm");
    s.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number") * 4096
}

/// A switch, packets for it, and the time.
struct Rig {
    switch: Switch,
    out: Outputs<Packet>,
    spare: Vec<Packet>,
    now: Duration,
}

impl Rig {
    fn new(connections: usize, flows: &[String]) -> Rig {
        let mut switch = Switch::new(connections);
        let b = switch.add_bridge("br0", 1);
        for i in 1..=2 {
            switch
                .add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into()))))
                .expect("port");
        }
        let now = Duration::from_secs(1);
        switch.apply_bundle(b, &bundle(flows), now).expect("flows");
        Rig { switch, out: Outputs::default(), spare: (0..2 * BATCH).map(|_| Packet::new()).collect(), now }
    }

    /// Sends packets number `range` in bursts; gives the processor time.
    fn send(&mut self, device: u32, reply: bool, range: std::ops::Range<u32>) -> Duration {
        let mut template = packet(0, reply);
        let start = time::processor_time();
        let mut burst = Vec::with_capacity(BATCH);
        let mut n = range.start;
        while n < range.end {
            while burst.len() < BATCH && n < range.end {
                let mut p = self.spare.pop().expect("a packet");
                number(&mut template, n, reply);
                p.becomes(&template);
                burst.push((DeviceId(device), p));
                n += 1;
            }
            self.now += Duration::from_micros(10);
            let sent = burst.len();
            self.switch.process(&mut burst, self.now, &mut self.out);
            assert_eq!(self.out.packets.len(), sent, "packets leave: {:?}", self.switch.drops);
            self.spare.extend(self.out.packets.drain(..).map(|(_, p)| p));
        }
        time::processor_time().saturating_sub(start)
    }
}

fn bundle(flows: &[String]) -> Vec<Message> {
    flows.iter().map(|f| Message::FlowMod(parse_flow(f).expect("flow"))).collect()
}

fn packet(n: u32, reply: bool) -> Vec<u8> {
    let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [8, 8, 8, 8].into());
    let nat: IpAddr = [172, 16, 0, 1].into();
    let (src, dst) = if reply { ((b, 53), (nat, 0)) } else { ((a, 0), (b, 53)) };
    let mut p = build::udp(packet::Mac([2, 0, 0, 0, 0, 1]), packet::Mac([2, 0, 0, 0, 0, 0xa]), src, dst, 64, &[7; 22])
        .expect("udp");
    number(&mut p, n, reply);
    p
}

/// Makes it the packet of connection `n`: another near port, and far address.
fn number(p: &mut [u8], n: u32, reply: bool) {
    let far = Ipv4Addr::from(0x0808_0000 + n / 50_000).octets();
    let port = (10_000 + (n % 50_000) as u16).to_be_bytes();
    let (address, at) = if reply { (26, 36) } else { (30, 34) };
    p[address..address + 4].copy_from_slice(&far);
    p[at..at + 2].copy_from_slice(&port);
    // No checksum (RFC 768), and the header's anew.
    p[40..42].fill(0);
    packet::checksum::set_ipv4(p, 14);
}

/// Flows of other logical ports and routers, which these packets do not meet.
fn others(n: usize) -> impl Iterator<Item = String> {
    (0..n).map(|i| {
        let (table, a, b, c) = (8 + i % 24, i >> 16 & 255, i >> 8 & 255, i & 255);
        match i % 4 {
            0 => format!("table={table},priority=100,metadata={:#x},reg14={i} actions=resubmit(,40)", 4 + i / 100),
            1 => format!("table={table},priority=90,ip,metadata={:#x},nw_dst=10.{a}.{b}.{c} actions=drop", 4 + i / 100),
            2 => format!("table={table},priority=80,tcp,metadata={:#x},tp_dst={} actions=drop", 4 + i / 100, i & 0xfff),
            _ => format!("table={table},priority=50,ipv6,metadata={:#x},reg15={i} actions=drop", 4 + i / 100),
        }
    })
}

fn each(what: &str, n: u32, t: Duration) {
    println!("costs {what}: {:.0} ns a packet", t.as_nanos() as f64 / f64::from(n));
}

/// Established traffic over so many connections.
fn established(name: &str, connections: u32, packets: u32) {
    let mut r = Rig::new(connections as usize + 1, &common::snat());
    let t = r.send(1, false, 0..connections);
    each(&format!("{name} new connections"), connections, t);
    r.send(2, true, 0..connections);
    for _ in 0..2 {
        r.send(1, false, 0..connections);
        r.send(2, true, 0..connections);
    }
    let rounds = (packets / connections).max(1);
    let before = r.switch.cache_stats();
    let t: Duration = (0..rounds).map(|_| r.send(1, false, 0..connections)).sum();
    each(name, rounds * connections, t);
    let after = r.switch.cache_stats();
    let (hits, all) = (after.hits - before.hits, u64::from(rounds * connections));
    assert!(hits * 100 > all * 95, "{hits} of {all} from the cache");
}

fn forward() {
    let mut r = Rig::new(1000, &["in_port=1 actions=output:2".into()]);
    r.send(1, false, 0..1000);
    let t: Duration = (0..4000).map(|_| r.send(1, false, 0..1000)).sum();
    each("forward", 4_000_000, t);
}

/// What a change of tables costs traffic over 100,000 connections, among 100,000 flows of others.
fn changes() {
    const N: u32 = 100_000;
    let flows: Vec<String> = common::snat().into_iter().chain(others(100_000)).collect();
    let mut r = Rig::new(N as usize + 1, &flows);
    for _ in 0..3 {
        r.send(1, false, 0..N);
        r.send(2, true, 0..N);
    }
    each("100,000 flows, unchanged", N, r.send(1, false, 0..N));
    let one = bundle(&["table=14,priority=1000,ip,reg14=0x99,metadata=0x77 actions=drop".into()]);
    let added = shortest(&mut r, |r| {
        r.switch.apply(BridgeId(0), &one[0], r.now).expect("flow");
        r.send(1, false, 0..32);
    });
    println!("costs a flow added, with a burst of packets: {added:?}");
    each("after a flow was added", N, r.send(1, false, 0..N));
    let all = FlowMod { command: FlowModCommand::Delete, table: TableId::ALL, ..Default::default() };
    let mut list = vec![Message::FlowMod(all)];
    list.extend(bundle(&flows));
    let mut drafted = Duration::MAX;
    let adopted = (0..TIMES)
        .map(|_| {
            let mut draft = Box::new(r.switch.table_transaction(BridgeId(0)).expect("bridge"));
            let start = Instant::now();
            draft.apply(&list, r.now).expect("flows");
            drafted = drafted.min(start.elapsed());
            let start = Instant::now();
            let replaced = r.switch.commit(draft, r.now).expect("nobody else changes the bridge");
            r.send(1, false, 0..32);
            let t = start.elapsed();
            drop(replaced);
            t
        })
        .min();
    println!(
        "costs all flows replaced: {drafted:?} of another thread, {:?} of the worker's",
        adopted.unwrap_or_default()
    );
    each("after all flows were replaced", N, r.send(1, false, 0..N));
}

/// Of a few tries: other programs disturb some of them.
fn shortest(r: &mut Rig, mut what: impl FnMut(&mut Rig)) -> Duration {
    let once = |_| {
        let start = Instant::now();
        what(r);
        start.elapsed()
    };
    (0..TIMES).map(once).min().unwrap_or_default()
}

/// Four million connections: memory for each, and that they go when their time is over.
fn millions() {
    const N: u32 = 4_000_000;
    let mut r = Rig::new(N as usize, &common::snat());
    r.send(1, false, 0..1000);
    let before = memory();
    // Three zones see each packet, of which one keeps it.
    let t = r.send(1, false, 1000..N);
    each("4,000,000 connections, new", N, t);
    assert_eq!(r.switch.conntrack.lock().len(), N as usize);
    println!("costs 4,000,000 connections: {} bytes each", (memory() - before) / u64::from(N));
    let held = r.switch.conntrack.lock().len();
    r.now += Duration::from_secs(20);
    r.switch.tick(r.now, &mut r.out);
    assert_eq!(r.switch.conntrack.lock().len(), held, "none goes before its time");
    r.now += Duration::from_secs(60);
    let start = time::processor_time();
    let mut sweeps = 0u32;
    while !r.switch.conntrack.lock().is_empty() {
        r.switch.conntrack.lock().sweep(64, r.now);
        sweeps += 1;
        assert!(sweeps <= N / 64 + 1, "one round of sweeps ends all");
    }
    println!("costs 4,000,000 connections: {:?} to end all, 64 a sweep", time::processor_time().saturating_sub(start));
}

/// Established traffic in lanes, each a thread with a half of the connections: alone, and both at a time.
fn lanes() {
    const N: u32 = 1000;
    let mut r = Rig::new(N as usize + 1, &common::snat());
    r.send(1, false, 0..N);
    r.send(2, true, 0..N);
    let mut made: Vec<Worker> = (0..2).map(|i| Worker::new(r.switch.fast_path(), i * N / 2..(i + 1) * N / 2)).collect();
    for w in &mut made {
        for _ in 0..2 {
            let missed = w.round(r.now);
            let mut flows = Vec::new();
            r.switch.walk_for(missed, r.now, &mut r.out, &mut flows);
            r.out.packets.clear();
            flows.into_iter().for_each(|f| w.fast.learn(f, r.now));
        }
    }
    let now = r.now;
    let work = |w: &mut Worker| {
        let start = time::processor_time();
        for _ in 0..4000 {
            assert!(w.round(now).is_empty(), "a fast path serves established connections by itself");
        }
        time::processor_time().saturating_sub(start)
    };
    let alone = made.iter_mut().map(work).min().unwrap_or_default();
    each("a fast path alone", 4000 * N / 2, alone);
    let both: Vec<Duration> = std::thread::scope(|s| {
        let threads: Vec<_> = made.iter_mut().map(|w| s.spawn(|| work(w))).collect();
        threads.into_iter().map(|t| t.join().expect("thread")).collect()
    });
    both.into_iter().for_each(|t| each("one of two lanes", 4000 * N / 2, t));
}

/// A fast path with its packets.
struct Worker {
    fast: switch::FastPath,
    range: std::ops::Range<u32>,
    spare: Vec<Packet>,
    out: Outputs<Packet>,
}

impl Worker {
    fn new(fast: switch::FastPath, range: std::ops::Range<u32>) -> Worker {
        Worker { fast, range, spare: Vec::new(), out: Outputs::default() }
    }

    /// Sends a packet of each connection; gives those that the fast path does not serve.
    fn round(&mut self, now: Duration) -> Vec<switch::Upcall<Packet>> {
        let mut template = packet(0, false);
        let (mut burst, mut missed) = (Vec::with_capacity(BATCH), Vec::new());
        for n in self.range.clone() {
            let mut p = self.spare.pop().unwrap_or_else(Packet::new);
            number(&mut template, n, false);
            p.becomes(&template);
            burst.push((DeviceId(1), p));
            if burst.len() == BATCH || n + 1 == self.range.end {
                self.fast.process(&mut burst, now, &mut self.out, &mut missed);
                self.spare.extend(self.out.packets.drain(..).map(|(_, p)| p));
            }
        }
        missed
    }
}

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let cases: [(&str, fn()); 7] = [
        ("forward", forward),
        ("snat-1000", || established("snat-1000", 1000, 4_000_000)),
        ("snat-100000", || established("snat-100000", 100_000, 4_000_000)),
        ("snat-1000000", || established("snat-1000000", 1_000_000, 4_000_000)),
        ("changes", changes),
        ("lanes", lanes),
        ("connections-4M", millions),
    ];
    for (name, case) in cases {
        if only.is_empty() || only.iter().any(|o| o == name) {
            case();
        }
    }
}
