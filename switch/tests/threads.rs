//! Several threads open, answer and close connections, and the table is what one thread would have made of it.

use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo};
use packet::{Mac, build};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use switch::conntrack::journal::{Change, ReaderId};
use switch::conntrack::{Connection, Tuple, Zone};
use switch::{DeviceId, FastPath, Outputs, Port, PortKind, Switch, Target, Upcall};

const HOST: Mac = Mac([2, 0, 0, 0, 0, 1]);
const FAR: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Zones in which UDP and TCP are translated.
const ZONES: [Zone; 2] = [Zone(6), Zone(7)];

/// A switch that translates what hosts behind port 1 send to as many ports as `ports` says.
fn gateway(cache: bool, room: usize, ports: &str) -> Switch {
    let mut s = Switch::new(room);
    s.set_cache(cache);
    let b = s.add_bridge("br", 1);
    for n in [1, 2] {
        s.add_port(b, Port::new(PortNo(n), &format!("p{n}"), PortKind::Device(DeviceId(n.into())))).expect("port");
    }
    for text in [
        "in_port=1,udp actions=ct(zone=5,table=1)".to_string(),
        format!("table=1,udp actions=ct(commit,zone=6,nat(src=172.16.0.1:{ports}),exec(set_field:3->ct_mark),table=2)"),
        format!("in_port=1,tcp actions=ct(commit,zone=7,nat(src=172.16.0.2:{ports}),table=2)"),
        "table=2,ip actions=output:2".into(),
        "in_port=2,udp actions=ct(zone=6,nat,table=3)".into(),
        "in_port=2,tcp actions=ct(zone=7,nat,table=3)".into(),
        "table=3,ct_state=+est,ip actions=output:1".into(),
    ] {
        s.apply(b, &Message::FlowMod(parse_flow(&text).expect("flow")), Duration::ZERO).expect("applies");
    }
    s
}

fn host(n: u8, sport: u16) -> (IpAddr, u16) {
    (Ipv4Addr::new(10, 0, 0, n).into(), sport)
}

fn far(n: u8) -> (IpAddr, u16) {
    (Ipv4Addr::new(8, 8, 8, n).into(), 53)
}

/// A packet; the number is its content, or TCP's sequence number.
fn frame(macs: (Mac, Mac), from: (IpAddr, u16), to: (IpAddr, u16), flags: Option<u8>, n: u32) -> Vec<u8> {
    match flags {
        None => build::udp(macs.0, macs.1, from, to, 64, &n.to_be_bytes()).expect("udp"),
        Some(flags) => {
            let mut p = build::udp(macs.0, macs.1, from, to, 64, &[0; 12]).expect("udp");
            p[23] = 6;
            p[38..42].copy_from_slice(&n.to_be_bytes());
            p[42..46].fill(0);
            p[46..54].copy_from_slice(&[0x50, flags, 1, 0, 0, 0, 0, 0]);
            packet::checksum::set_ipv4(&mut p, 14);
            let covered = packet::checksum::sum(&p[26..34]) + 6 + 20 + packet::checksum::sum(&p[34..54]);
            let sum = packet::checksum::finish(covered);
            p[50..52].copy_from_slice(&sum.to_be_bytes());
            p
        }
    }
}

/// What comes back for a packet that left.
fn answer(p: &[u8], flags: u8) -> Vec<u8> {
    let at = |i: usize| u16::from_be_bytes([p[i], p[i + 1]]);
    let ip = |i: usize| IpAddr::from([p[i], p[i + 1], p[i + 2], p[i + 3]]);
    let flags = (p[23] == 6).then_some(flags);
    frame((FAR, HOST), (ip(30), at(36)), (ip(26), at(34)), flags, 0)
}

/// Where a frame is from and for, with its number.
fn said(p: &[u8]) -> (Vec<u8>, u32) {
    let n = if p[23] == 6 { 38 } else { 42 };
    (p[23..24].iter().chain(&p[26..38]).copied().collect(), u32::from_be_bytes([p[n], p[n + 1], p[n + 2], p[n + 3]]))
}

/// The table, but for the numbers of generations, of which each thread has its own.
fn connections(s: &Switch) -> Vec<String> {
    let text = |c: Connection| {
        let text = format!("{c:?}");
        let (before, rest) = text.split_once("generation: ").expect("a generation");
        format!("{before}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
    };
    let mut all: Vec<String> = s.conntrack.lock().export().map(text).collect();
    all.sort();
    all
}

/// No tuple of a zone belongs to two connections.
fn unique(s: &Switch) -> bool {
    let mut seen = BTreeSet::new();
    s.conntrack.lock().export().all(|c| seen.insert((c.zone, c.reply)) && seen.insert((c.zone, c.original)))
}

type Told = (Zone, Tuple, Tuple, String);

fn told(c: &Connection) -> Told {
    (c.zone, c.original, c.reply, format!("{:?} {:?} {} {}", c.ends, c.phase, c.replied, c.mark))
}

/// A standby gateway that hears of all connections.
struct Standby {
    reader: ReaderId,
    slots: BTreeMap<u32, Told>,
}

impl Standby {
    fn new(s: &Switch) -> Standby {
        Standby { reader: s.conntrack.lock().add_reader(ZONES).expect("room"), slots: BTreeMap::new() }
    }

    fn hear(&mut self, s: &Switch, now: Duration) {
        let Standby { reader, slots } = self;
        s.conntrack.lock().changes(*reader, 10_000, now, |c| match c {
            Change::Put(p) => drop(slots.insert(p.slot, told(p.connection))),
            Change::State(slot, c) => drop(slots.insert(slot, told(c))),
            Change::Close(slot) => drop(slots.remove(&slot)),
            _ => {}
        });
    }

    fn agrees(&self, s: &Switch) -> bool {
        let mut have: Vec<&Told> = self.slots.values().collect();
        have.sort();
        let mut are: Vec<Told> = s.conntrack.lock().export().map(|c| told(&c)).collect();
        are.sort();
        have.into_iter().eq(&are)
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A host sends through one of the fast paths.
    Send {
        host: u8,
        sport: u16,
        far: u8,
        flags: Option<u8>,
    },
    /// One of the packets that left last is answered, through the other one.
    Answer {
        which: usize,
        flags: u8,
    },
    /// The main thread serves the upcalls of a fast path.
    Serve(usize),
    /// Fast paths hear of templates.
    News,
    Flush(u16),
    Limit(u16, u32),
    Later(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flags = prop_oneof![4 => Just(None), 3 => Just(Some(2u8)), 2 => Just(Some(0x10)), 1 => Just(Some(0x11)), 1 => Just(Some(4))];
    let op = prop_oneof![
        12 => (1u8..5, 1000u16..1004, 1u8..3, flags).prop_map(|(host, sport, far, flags)| Op::Send { host, sport, far, flags }),
        8 => (0usize..6, prop_oneof![Just(0x12u8), Just(0x10), Just(0x11)]).prop_map(|(which, flags)| Op::Answer { which, flags }),
        6 => (0usize..2).prop_map(Op::Serve),
        3 => Just(Op::News),
        1 => (6u16..8).prop_map(Op::Flush),
        1 => (6u16..8, 0u32..12).prop_map(|(z, n)| Op::Limit(z, n)),
        1 => (1u64..70).prop_map(Op::Later),
    ];
    proptest::collection::vec(op, 1..160)
}

/// Two fast paths, the packets that wait for the main thread, and a switch without a cache that takes each packet when it is
/// decided on.
struct Both {
    with: Switch,
    lanes: [FastPath; 2],
    waiting: [Vec<Upcall<Vec<u8>>>; 2],
    plain: Switch,
    standby: Standby,
    now: Duration,
    number: u32,
    sent: Vec<Vec<u8>>,
    last: HashMap<Vec<u8>, u32>,
    by_lanes: usize,
}

/// Packets as they came in, and as they left.
type Arrived = Vec<(DeviceId, Vec<u8>)>;
type Left = Vec<(Target, Vec<u8>)>;

impl Both {
    /// `room`: in a table that is nearly full, each thread has it alone.
    fn new(room: usize) -> Both {
        let [mut with, plain] = [true, false].map(|cache| gateway(cache, room, "2000-2005"));
        let lanes = [with.fast_path(), with.fast_path()];
        let standby = Standby::new(&with);
        let (waiting, last) = Default::default();
        let now = Duration::from_secs(10);
        Both { with, lanes, waiting, plain, standby, now, number: 0, sent: Vec::new(), last, by_lanes: 0 }
    }

    /// These packets have been decided on, and this came of them.
    fn decided(&mut self, mut packets: Arrived, mut out: Left) -> Result<(), TestCaseError> {
        for (device, p) in packets.iter().filter(|(device, _)| *device == DeviceId(1)) {
            let (ends, n) = said(p);
            // A segment with other flags may have a flow when one before it has none, and overtake it.
            let flags = if p[23] == 6 { p[47] } else { 0 };
            let before = self.last.insert([&[device.0 as u8, flags][..], &ends].concat(), n);
            prop_assert!(before.is_none_or(|b| b < n), "packet {n} left behind {before:?}");
        }
        let mut want = Outputs::default();
        for p in packets.drain(..) {
            self.plain.process(&mut vec![p], self.now, &mut want);
        }
        prop_assert_eq!(&out, &want.packets);
        self.sent.extend(out.drain(..).filter(|(to, _)| to.device() == DeviceId(2)).map(|(_, p)| p));
        let old = self.sent.len().saturating_sub(6);
        self.sent.drain(..old);
        Ok(())
    }

    fn arrives(&mut self, lane: usize, p: (DeviceId, Vec<u8>)) -> Result<(), TestCaseError> {
        let (mut out, mut missed) = (Outputs::default(), Vec::new());
        self.lanes[lane].process(&mut vec![p.clone()], self.now, &mut out, &mut missed);
        if let Some(sums) = self.lanes[lane].sums() {
            self.with.settle_sums(sums, self.now);
        }
        if missed.is_empty() {
            self.by_lanes += 1;
            return self.decided(vec![p], out.packets);
        }
        self.waiting[lane].extend(missed);
        Ok(())
    }

    fn play(&mut self, op: &Op) -> Result<(), TestCaseError> {
        self.now += Duration::from_millis(3);
        match op {
            Op::Send { host: n, sport, far: to, flags } => {
                self.number += 1;
                let p = frame((HOST, FAR), host(*n, *sport), far(*to), *flags, self.number);
                self.arrives(usize::from(n % 2), (DeviceId(1), p))?;
            }
            Op::Answer { which, flags } => {
                if let Some(p) = self.sent.get(*which).map(|p| answer(p, *flags)) {
                    self.arrives(usize::from(p[37] % 2), (DeviceId(2), p))?;
                }
            }
            Op::Serve(lane) => {
                let list = std::mem::take(&mut self.waiting[*lane]);
                let packets = list.iter().map(|u| (u.device, u.packet.clone())).collect();
                let tickets: Vec<_> = list.iter().map(|u| u.ticket).collect();
                let (mut out, mut flows) = (Outputs::default(), Vec::new());
                self.with.walk_for(list, self.now, &mut out, &mut flows);
                self.decided(packets, out.packets)?;
                flows.into_iter().for_each(|f| self.lanes[*lane].learn(f, self.now));
                tickets.into_iter().for_each(|t| self.lanes[*lane].left(t));
            }
            Op::News => {
                for n in self.with.news() {
                    self.lanes.iter_mut().for_each(|l| l.follow(&n));
                }
            }
            Op::Flush(zone) => {
                for s in [&self.with, &self.plain] {
                    s.conntrack.lock().flush_zone(Zone(*zone));
                    prop_assert!(s.conntrack.lock().export().all(|c| c.zone != Zone(*zone)));
                }
            }
            Op::Limit(zone, limit) => {
                for s in [&self.with, &self.plain] {
                    s.conntrack.lock().set_limit(Some(Zone(*zone)), *limit);
                }
            }
            Op::Later(seconds) => {
                self.now += Duration::from_secs(*seconds);
                for s in [&mut self.with, &mut self.plain] {
                    s.tick(self.now, &mut Outputs::<Vec<u8>>::default());
                    s.conntrack.lock().sweep(usize::MAX, self.now);
                }
            }
        }
        prop_assert_eq!(connections(&self.with), connections(&self.plain));
        prop_assert!(unique(&self.with), "a port was given twice");
        self.standby.hear(&self.with, self.now);
        prop_assert!(self.standby.agrees(&self.with), "the journal has missed a change");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
    ))]
    /// In whatever order fast paths and the main thread come to the table: packets, connections, and what the journal tells
    /// are those of one thread that walks the tables for each packet, and packets of a connection stay in order.
    #[test]
    fn any_order_equals_one_thread(list in ops(), room in prop_oneof![1 => Just(40), 2 => Just(10_000)]) {
        let mut b = Both::new(room);
        for op in &list {
            b.play(op).map_err(|e| TestCaseError::fail(format!("after {op:?}: {e}")))?;
        }
    }
}

/// The test above would also hold if fast paths opened nothing.
#[test]
fn fast_paths_open_connections() {
    let send = |host, sport, flags| Op::Send { host, sport, far: 1, flags };
    for (room, flags) in [40, 10_000].into_iter().flat_map(|room| [(room, None), (room, Some(2))]) {
        let mut b = Both::new(room);
        for host in [1, 2] {
            let lane = usize::from(host % 2);
            for op in [send(host, 1000, flags), Op::Serve(lane), send(host, 1001, flags), Op::Serve(lane), Op::News] {
                b.play(&op).expect("equal");
            }
        }
        let before = (b.by_lanes, b.with.conntrack.lock().len(), b.with.cache_stats().misses);
        for host in [1, 2] {
            b.play(&send(host, 1002, flags)).expect("equal");
        }
        let after = (b.by_lanes, b.with.conntrack.lock().len(), b.with.cache_stats().misses);
        assert_eq!(after, (before.0 + 2, before.1 + 2, before.2), "{flags:?}");
    }
}

enum ToLane {
    Flow(Box<switch::Flow>),
    News(switch::News),
    Left(switch::Ticket),
}

/// Two threads with clashing ports, each of which also gets answers to what the other one sent, and the main one, which walks
/// the tables, listens and looks for what has expired, at the same time.
#[test]
fn threads_at_the_same_time() {
    const EACH: u32 = 12_000;
    let mut s = gateway(true, 100_000, "2000-39999");
    let mut standby = Standby::new(&s);
    let now = Duration::from_secs(10);
    // Packets in the order in which they left.
    let log = Mutex::new(Vec::new());
    let (asked, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let leave = |packets: Left| {
        let (back, sent): (Vec<_>, Vec<_>) = packets.into_iter().partition(|(to, _)| to.device() == DeviceId(1));
        answered.fetch_add(back.len(), Ordering::Relaxed);
        log.lock().expect("log").extend(sent);
    };
    let (up, from_lanes) = channel();
    let lanes: Vec<FastPath> = (0..2).map(|_| s.fast_path()).collect();
    let opened = std::thread::scope(|scope| {
        let mut to = Vec::new();
        for (i, mut lane) in (0u8..).zip(lanes) {
            let (tx, rx) = channel();
            to.push(tx);
            let (up, log, asked, leave) = (up.clone(), &log, &asked, &leave);
            scope.spawn(move || {
                let mut pending = 0;
                let mut round = |n: u32, pending: &mut usize| {
                    while let Ok(m) = rx.try_recv() {
                        match m {
                            ToLane::Flow(f) => lane.learn(*f, now),
                            ToLane::News(n) => lane.follow(&n),
                            ToLane::Left(t) => {
                                lane.left(t);
                                *pending -= 1;
                            }
                        }
                    }
                    let mut burst = Vec::new();
                    // Each connection sends two packets, in this burst and the next: the same ports for both threads.
                    for k in (n.saturating_sub(16)..n + 16).filter(|k| *k < EACH) {
                        let flags = (k % 2 == 0).then_some(2);
                        let from = host(2 * (k / 6000) as u8 + i + 1, 10_000 + (k % 6000) as u16);
                        burst.push((DeviceId(1), frame((HOST, FAR), from, far(1), flags, 2 * n + u32::from(i))));
                    }
                    // The last packets of the other thread are answered, again and again.
                    let last: Vec<Vec<u8>> = log
                        .lock()
                        .expect("log")
                        .iter()
                        .rev()
                        .take(24)
                        .map(|(_, p): &(Target, Vec<u8>)| p.clone())
                        .collect();
                    let others = last.iter().filter(|p| said(p).1 % 2 != u32::from(i));
                    burst.extend(others.map(|p| (DeviceId(2), answer(p, 0x12))));
                    asked.fetch_add(
                        burst.iter().filter(|(device, _)| *device == DeviceId(2)).count(),
                        Ordering::Relaxed,
                    );
                    let (mut out, mut missed) = (Outputs::default(), Vec::new());
                    lane.process(&mut burst, now, &mut out, &mut missed);
                    *pending += missed.len();
                    leave(out.packets);
                    up.send((usize::from(i), missed, lane.sums())).expect("the main thread listens");
                };
                for n in (0..=EACH).step_by(16) {
                    round(n, &mut pending);
                }
                while pending > 0 {
                    round(EACH + 16, &mut pending);
                    std::thread::yield_now();
                }
            });
        }
        drop(up);
        let mut rounds = 0;
        while let Ok((lane, missed, sums)) = from_lanes.recv() {
            let (mut out, mut flows) = (Outputs::default(), Vec::new());
            let tickets: Vec<_> = missed.iter().map(|u| u.ticket).collect();
            s.walk_for(missed, now, &mut out, &mut flows);
            leave(out.packets);
            // Threads end while others go on.
            flows.into_iter().for_each(|f| drop(to[lane].send(ToLane::Flow(Box::new(f)))));
            for n in s.news() {
                to.iter().for_each(|to| drop(to.send(ToLane::News(n.clone()))));
            }
            tickets.into_iter().for_each(|t| drop(to[lane].send(ToLane::Left(t))));
            if let Some(sums) = sums {
                s.settle_sums(sums, now);
            }
            standby.hear(&s, now);
            s.conntrack.lock().sweep(64, now);
            rounds += 1;
        }
        assert!(rounds > 100);
        s.cache_stats().ct_template_packets
    });
    while s.conntrack.lock().has_changes(standby.reader) {
        standby.hear(&s, now);
    }
    assert!(standby.agrees(&s), "the journal has missed a change");
    assert!(unique(&s), "a port was given twice");
    assert_eq!(s.conntrack.lock().len(), 2 * EACH as usize, "each connection is there");
    assert!(opened > u64::from(EACH), "templates served {opened} packets");
    let asked = asked.into_inner();
    assert!(asked > 1000, "{asked} answers");
    assert_eq!(answered.into_inner(), asked, "each answer has been translated back");
    let log = log.into_inner().expect("log");
    assert_eq!(log.len(), 4 * EACH as usize, "each packet has left");
    let mut last = HashMap::new();
    for (_, p) in &log {
        let (ends, n) = said(p);
        // As each is translated to another port, these name the connection.
        if let Some(before) = last.insert(ends, n) {
            assert!(before < n, "packet {n} of a connection left behind {before}");
        }
    }
    assert_eq!(last.len(), 2 * EACH as usize, "no two connections have the same port, and none has two");
}
