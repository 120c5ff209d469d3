//! The journal of one table and the replica of another: what is told makes both tables the same.

use super::super::journal::{Change, ReaderId};
use super::super::replica::{Lack, RemoteConnection, Replica};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What is told, on its way.
#[derive(Clone, Debug)]
enum Told {
    Begin,
    Put(u32, RemoteConnection),
    State(u32, replica::RemoteState),
    Close(u32),
    GaveWay(u32),
    Fence(u64),
    End(u32),
}

fn told(c: &Change<'_>) -> Told {
    match c {
        Change::Begin => Told::Begin,
        Change::Put(p) => {
            let c = RemoteConnection::of(p.connection, p.idle);
            Told::Put(p.slot, RemoteConnection { ours_before: p.from == 1, ..c })
        }
        Change::State(slot, c) => Told::State(*slot, c.state()),
        Change::Close(slot) => Told::Close(*slot),
        Change::GaveWay(slot) => Told::GaveWay(*slot),
        Change::Fence(n) => Told::Fence(*n),
        Change::End(n) => Told::End(*n),
    }
}

/// One chassis: its table, its reader (the other chassis), what it has told, and what it knows of the other.
struct Chassis {
    ct: Conntrack,
    reader: Option<ReaderId>,
    wire: Vec<Told>,
    replica: Replica,
    fences: Vec<u64>,
    /// What the last dump's end said, and what its sweep counted.
    dumps: Vec<(u32, Option<u32>)>,
}

impl Chassis {
    fn new(keeps: bool) -> Chassis {
        Chassis {
            ct: Conntrack::new(256),
            reader: None,
            wire: Vec::new(),
            replica: Replica::new(1, keeps),
            fences: Vec::new(),
            dumps: Vec::new(),
        }
    }

    fn connect(&mut self) {
        self.disconnect();
        self.reader = self.ct.add_reader([1, 2].map(Zone));
        if let Some(r) = self.reader {
            self.ct.set_chassis(r, self.replica.owner());
        }
    }

    /// The stream is cut: what is on its way is lost.
    fn disconnect(&mut self) {
        if let Some(r) = self.reader.take() {
            self.ct.remove_reader(r);
        }
        self.wire.clear();
    }

    fn speak(&mut self, most: usize, now: Duration) {
        let Some(r) = self.reader else { return };
        let wire = &mut self.wire;
        self.ct.changes(r, most, now, |c| wire.push(told(&c)));
    }

    fn hear(&mut self, all: Vec<Told>, now: Duration) {
        for t in all {
            match t {
                Told::Begin => self.replica.begin(),
                Told::Put(slot, c) => self.replica.put(&mut self.ct, slot, &c, now),
                Told::State(slot, s) => self.replica.state(&mut self.ct, slot, &s),
                Told::Close(slot) => self.replica.close(&mut self.ct, slot),
                Told::GaveWay(slot) => self.replica.gave_way(&mut self.ct, slot, now),
                Told::Fence(n) => self.fences.push(n),
                Told::End(n) => {
                    self.replica.end();
                    let count = self.replica.sweep(&mut self.ct, usize::MAX, now);
                    self.dumps.push((n, count));
                }
            }
        }
    }

    /// Connections of this chassis (`own`), or of the other, by tuple; those whose time is over do not count.
    fn connections(&self, own: bool, now: Duration) -> BTreeMap<(Zone, Tuple), (Tuple, replica::RemoteState)> {
        let alive = self.ct.export().filter(|c| (c.owner == 0) == own && c.expires > now && c.zone < Zone(3));
        alive.map(|c| ((c.zone, c.original), (c.reply, c.state()))).collect()
    }
}

/// Tells everything that is due, both ways, until nothing is.
fn settle(pair: &mut [Chassis; 2], now: Duration) {
    for _ in 0..8 {
        for from in 0..2 {
            pair[from].speak(usize::MAX, now);
            let all = std::mem::take(&mut pair[from].wire);
            pair[1 - from].hear(all, now);
        }
    }
}

/// Each asks for what it lacks.
fn ask_again(pair: &mut [Chassis; 2]) {
    (0..2).for_each(|c| ask(pair, c));
}

fn ask(pair: &mut [Chassis; 2], c: usize) {
    let [a, b] = pair;
    let (from, to) = if c == 0 { (b, a) } else { (a, b) };
    let (lack, reader) = (to.replica.lacks(&mut to.ct), from.reader.expect("connected"));
    match lack {
        Lack::Nothing => {}
        Lack::Slots(all) => all.iter().for_each(|s| from.ct.tell_again(reader, *s)),
        Lack::Much => from.ct.dump_again(reader),
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A packet at one of the chassis: zone, source, port, TCP flags, the answer to it.
    Packet(usize, u16, u32, u16, u16, bool),
    Mark(usize, u32, u16, u32),
    Flush(usize, u16),
    Speak(usize, usize),
    Hear(usize, usize),
    Again(usize),
    /// A chassis asks the other one for what it lacks.
    Ask(usize),
    Cut(usize),
    /// The stream of a chassis is lost for a while, and both live on.
    Lose(usize),
    Wait(u16),
}

fn op(chassis: usize) -> impl Strategy<Value = Op> {
    let of = move || 0..chassis;
    prop_oneof![
        10 => (of(), 1u16..4, 1u32..4, 1u16..4, prop_oneof![Just(2u16), Just(0x10), Just(0x11), Just(0x14), Just(0)], any::<bool>())
            .prop_map(|(c, z, s, p, f, back)| Op::Packet(c, z, s, p, f, back)),
        2 => (of(), 1u32..4, 1u16..4, 0u32..3).prop_map(|(c, s, p, m)| Op::Mark(c, s, p, m)),
        1 => (of(), 1u16..4).prop_map(|(c, z)| Op::Flush(c, z)),
        5 => (0usize..2, 1usize..9).prop_map(|(c, n)| Op::Speak(c, n)),
        5 => (0usize..2, 1usize..9).prop_map(|(c, n)| Op::Hear(c, n)),
        1 => (0usize..2).prop_map(Op::Again),
        1 => (0usize..2).prop_map(Op::Cut),
        // With one active chassis the other one would keep what the first has already forgotten, for one timeout.
        1 => (0usize..2).prop_map(move |c| if chassis == 1 { Op::Cut(c) } else { Op::Lose(c) }),
        3 => (1u16..20_000).prop_map(Op::Wait),
    ]
}

fn packet_at(c: &mut Chassis, (zone, src, port): (u16, u32, u16), flags: u16, back: bool, now: Duration) {
    let t = tuple(if flags == 0 { 17 } else { 6 }, src, port, 9, 53);
    // Each connection has a port of its own: what two ask for at once is another test.
    let own = (src * 16 + u32::from(port)) as u16;
    let nat = if flags == 0x10 || flags == 0 { snat(77, Some((own, own))) } else { snat(77, Some((1, 20))) };
    let out = c.ct.find(Zone(zone), &t).and_then(|(i, _)| c.ct.slots.look(i, |c| c.reply));
    let (p, nat) = match (back, out) {
        (true, Some(reply)) => (packet(reply, if flags == 2 { 0x12 } else { flags }), NatSpec::default()),
        _ => (packet(t, flags), nat),
    };
    c.ct.process(&p, &Request { zone: Zone(zone), commit: true, nat: Some(&nat), ..Default::default() }, now);
}

fn run(ops: Vec<Op>) -> ([Chassis; 2], Duration) {
    let mut pair = [Chassis::new(true), Chassis::new(false)];
    pair.iter_mut().for_each(Chassis::connect);
    let mut now = NOW;
    for op in ops {
        // Two packets never come at one time: whose was later is what decides.
        now += Duration::from_millis(1);
        match op {
            Op::Packet(c, zone, src, port, flags, back) => {
                packet_at(&mut pair[c], (zone, src, port), flags, back, now);
            }
            Op::Mark(c, src, port, mark) => {
                let t = tuple(17, src, port, 9, 53);
                let commit = Request { zone: Zone(1), ..Default::default() };
                if let Some(id) = pair[c].ct.process(&packet(t, 0), &commit, now).conn {
                    pair[c].ct.set_mark_label(id, mark, mark.into());
                }
            }
            Op::Flush(c, zone) => drop(pair[c].ct.flush_zone(Zone(zone))),
            Op::Speak(c, n) => pair[c].speak(n, now),
            Op::Hear(c, n) => {
                let n = n.min(pair[1 - c].wire.len());
                let some = pair[1 - c].wire.drain(..n).collect();
                pair[c].hear(some, now);
            }
            Op::Again(c) => {
                if let Some(r) = pair[c].reader {
                    pair[c].ct.dump_again(r);
                }
            }
            Op::Ask(c) => ask(&mut pair, c),
            Op::Cut(c) => pair[c].connect(),
            Op::Lose(c) => {
                pair[c].disconnect();
                pair[1 - c].ct.set_lost(1, true);
                pair[1 - c].ct.sweep(usize::MAX, now);
                pair[1 - c].ct.set_lost(1, false);
                pair[c].connect();
            }
            Op::Wait(ms) => {
                now += Duration::from_millis(ms.into());
                pair.iter_mut().for_each(|c| c.ct.sweep(usize::MAX, now));
            }
        }
    }
    pair.iter_mut().for_each(|c| c.ct.sweep(usize::MAX, now));
    (pair, now)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// One active chassis: whatever happens, the standby has what the active one has, and nothing else.
    #[test]
    fn a_standby_has_what_the_active_one_has(ops in proptest::collection::vec(op(1), 1..200)) {
        let (mut pair, now) = run(ops);
        let r = pair[0].reader.expect("connected");
        let fence = pair[0].ct.fence(r);
        settle(&mut pair, now);
        prop_assert_eq!(pair[0].connections(true, now), pair[1].connections(false, now));
        prop_assert_eq!(pair[1].fences.clone(), vec![fence]);
        prop_assert_eq!((pair[0].ct.has_changes(r), pair[0].ct.behind(r)), (false, Some(0)));
        pair[0].ct.dump_again(r);
        settle(&mut pair, now);
        let (told, counted) = *pair[1].dumps.last().expect("a dump");
        prop_assert_eq!(Some(told), counted);
        prop_assert_eq!(told as usize, pair[0].connections(true, now).len());
        // The active one dies, and comes back without memory: it is told all that it had.
        let mut had = pair[0].connections(true, now);
        had.extend(pair[0].connections(false, now));
        pair[1].replica = Replica::new(2, false);
        pair[1].ct.set_lost(1, true);
        pair[1].ct.sweep(usize::MAX, now);
        prop_assert_eq!(&pair[1].connections(true, now), &had);
        pair[0] = Chassis::new(true);
        pair.iter_mut().for_each(Chassis::connect);
        settle(&mut pair, now);
        prop_assert_eq!(&pair[0].connections(false, now), &had);
        // None stays for ever.
        let end = now + Duration::from_secs(86_401);
        pair[1].ct.sweep(usize::MAX, end);
        settle(&mut pair, end);
        prop_assert_eq!((pair[0].ct.len(), pair[1].ct.len()), (0, 0));
    }

    /// Two chassis that both get packets: in the end each connection belongs to one of them, and the other has it.
    #[test]
    fn each_connection_has_one_owner(ops in proptest::collection::vec(op(2), 1..200)) {
        let (pair, now) = agreed(ops);
        for (a, b) in [(0, 1), (1, 0)] {
            prop_assert_eq!(pair[a].connections(true, now), pair[b].connections(false, now));
        }
    }
}

/// Both have told each other everything, and asked for what they lack.
fn agreed(ops: Vec<Op>) -> ([Chassis; 2], Duration) {
    let (mut pair, now) = run(ops);
    settle(&mut pair, now);
    // What was refused because of a connection that has itself been given up since is asked for again: chains of them
    // are as long as there are addresses here.
    for _ in 0..8 {
        ask_again(&mut pair);
        settle(&mut pair, now);
    }
    (pair, now)
}

/// A connection takes the place of one that another chassis had, and goes before that has heard of it.
#[test]
fn what_took_a_place_is_told_even_if_it_is_gone() {
    let syn = |c| Op::Packet(c, 2, 3, 3, 2, false);
    let reset = Op::Packet(1, 2, 3, 3, 0x14, false);
    let (pair, now) = agreed(vec![syn(1), reset, Op::Speak(1, 2), Op::Hear(0, 3), syn(0), Op::Flush(0, 2)]);
    let [had, has] = [pair[1].connections(true, now), pair[0].connections(false, now)];
    assert_eq!((had.len(), &had), (1, &has), "whoever flushed is told what the other one still has");
}

/// A chassis that gave up its own connection as one of another was preferred has that one, although the stream that
/// said so says by now that it is gone.
#[test]
fn what_was_preferred_is_told_to_who_gave_up() {
    use Op::{Cut, Flush, Hear, Speak};
    let syn = |c| Op::Packet(c, 1, 1, 3, 2, false);
    let ops = vec![syn(0), Speak(0, 2), Hear(1, 3), syn(1), Speak(0, 1), syn(0), Cut(1), Speak(1, 1), Flush(1, 1)];
    let (pair, now) = agreed(ops);
    let [has, told] = [pair[0].connections(true, now), pair[1].connections(false, now)];
    assert_eq!((has.len(), &has), (1, &told));
}

/// A connection that has expired, and that no sweep has found, is not told after the one that has its port.
#[test]
fn a_dump_has_no_dead_connection_in_a_living_ones_place() {
    let mut pair = [Chassis::new(true), Chassis::new(false)];
    pair.iter_mut().for_each(Chassis::connect);
    let udp = |c: &mut Chassis, src, port, now| {
        let nat = snat(77, Some((port, port)));
        let req = Request { zone: Zone(1), commit: true, nat: Some(&nat), ..Default::default() };
        assert!(c.ct.process(&packet(tuple(17, src, 5, 9, 53), 0), &req, now).conn.is_some());
    };
    udp(&mut pair[0], 1, 1, NOW);
    udp(&mut pair[0], 2, 2, NOW);
    let later = NOW + Duration::from_secs(1000);
    // The first slot is free, the second one is not, and its port is wanted.
    pair[0].ct.sweep(1, NOW);
    pair[0].ct.sweep(1, later);
    assert_eq!(pair[0].ct.len(), 1);
    udp(&mut pair[0], 3, 2, later);
    settle(&mut pair, later);
    let [has, told] = [pair[0].connections(true, later), pair[1].connections(false, later)];
    assert_eq!((has.len(), &has), (1, &told));
}

/// Packets at both chassis, streams that are slow and cut: all but what ends connections.
fn endless() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (0usize..2, 1u16..3, 1u32..4, 1u16..4, prop_oneof![Just(0x10u16), Just(0)], any::<bool>())
            .prop_map(|(c, z, s, p, f, back)| Op::Packet(c, z, s, p, f, back)),
        5 => (0usize..2, 1usize..9).prop_map(|(c, n)| Op::Speak(c, n)),
        5 => (0usize..2, 1usize..9).prop_map(|(c, n)| Op::Hear(c, n)),
        2 => (0usize..2).prop_map(Op::Ask),
        1 => (0usize..2).prop_map(Op::Again),
        1 => (0usize..2).prop_map(Op::Cut),
        1 => (0usize..2).prop_map(Op::Lose),
        3 => (1u16..50).prop_map(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// No connection is lost because each chassis takes it for the other's: whatever is on its way meanwhile, both have in
    /// the end what a packet came for.
    #[test]
    fn none_is_lost(ops in proptest::collection::vec(endless(), 1..120)) {
        let seen: std::collections::BTreeSet<(u16, u8, u32, u16)> = ops
            .iter()
            .filter_map(|op| match op {
                Op::Packet(_, zone, src, port, flags, _) => Some((*zone, if *flags == 0 { 17 } else { 6 }, *src, *port)),
                _ => None,
            })
            .collect();
        let (mut pair, now) = run(ops);
        for _ in 0..8 {
            settle(&mut pair, now);
            ask_again(&mut pair);
        }
        for c in &pair {
            let all = c.ct.export().filter(|c| c.zone < Zone(3));
            let there: std::collections::BTreeSet<(u16, u8, u32, u16)> =
                all.map(|c| (c.zone.0, c.original.proto, c.original.src as u32, c.original.sport)).collect();
            prop_assert_eq!(&there, &seen);
        }
        for (a, b) in [(0, 1), (1, 0)] {
            prop_assert_eq!(pair[a].connections(true, now), pair[b].connections(false, now));
        }
    }
}

/// The standby goes on with a connection where the dead gateway stopped: same address, same port, and it stays
/// established. A new connection does not get a port that the dead gateway gave out.
#[test]
fn a_connection_survives_its_gateway() {
    let mut pair = [Chassis::new(true), Chassis::new(false)];
    pair[0].connect();
    let nat = snat(77, Some((10, 11)));
    let commit = Request { zone: Zone(1), commit: true, nat: Some(&nat), ..Default::default() };
    let t = tuple(6, 1, 1000, 2, 80);
    let out = pair[0].ct.process(&packet(t, 2), &commit, NOW).translated.expect("translated");
    let back = NatSpec::default();
    let look = Request { zone: Zone(1), nat: Some(&back), ..Default::default() };
    pair[0].ct.process(&packet(out.reversed(), 0x12), &look, NOW);
    settle(&mut pair, NOW);
    pair[1].ct.set_lost(1, true);
    let later = NOW + Duration::from_secs(3000);
    pair[1].ct.sweep(usize::MAX, later);
    let v = pair[1].ct.process(&packet(out.reversed(), 0x10), &look, later);
    assert_eq!(v.translated, Some(t.reversed()));
    assert_eq!(v.state, flag::TRK | flag::EST | flag::RPL | flag::DNAT);
    assert_eq!(pair[1].connections(true, later).len(), 1, "the packet made it this chassis' own");
    let other = pair[1].ct.process(&packet(tuple(6, 3, 1000, 2, 80), 2), &commit, later).translated.expect("a port");
    assert_ne!(other.sport, out.sport);
}

/// A slow reader costs one mark for each slot; what has come and gone meanwhile is not told.
#[test]
fn a_slow_reader_is_told_what_is_there() {
    let mut pair = [Chassis::new(true), Chassis::new(false)];
    pair[0].connect();
    settle(&mut pair, NOW);
    for n in 0..10_000u32 {
        let req = Request { zone: Zone(1), commit: true, ..Default::default() };
        pair[0].ct.process(&packet(tuple(17, n, 1, 2, 2), 0), &req, NOW);
        if n % 100 != 0 {
            pair[0].ct.flush_zone(Zone(1));
        }
    }
    pair[0].ct.flush_zone(Zone(1));
    assert_eq!(pair[0].ct.behind(pair[0].reader.expect("connected")), Some(2));
    pair[0].speak(usize::MAX, NOW);
    assert!(pair[0].wire.is_empty(), "{:?}", pair[0].wire);
}

/// Of what was refused, what is still there is asked for slot by slot; for want of room, all of it once there is some.
#[test]
fn what_was_refused_is_asked_for_again() {
    let mut pair = [Chassis::new(true), Chassis::new(false)];
    let commit = Request { zone: Zone(1), commit: true, ..Default::default() };
    let t = tuple(17, 1, 1, 2, 2);
    pair[0].ct.process(&packet(t, 0), &commit, NOW);
    let later = NOW + Duration::from_millis(5);
    pair[1].ct.process(&packet(t, 0), &commit, later);
    pair[0].connect();
    settle(&mut pair, later);
    assert_eq!(pair[1].ct.of_owner(1), 0, "the second chassis saw the later packet");
    let lacks = |c: &mut Chassis| c.replica.lacks(&mut c.ct);
    assert_eq!(lacks(&mut pair[1]), Lack::Slots(vec![0]));
    assert_eq!(lacks(&mut pair[1]), Lack::Nothing, "it has been asked for");
    assert_eq!(pair[1].ct.flush_zone(Zone(1)), 1);
    let r = pair[0].reader.expect("connected");
    pair[0].ct.tell_again(r, 0);
    pair[0].ct.tell_again(r, 1_000_000);
    settle(&mut pair, later);
    assert_eq!((pair[1].ct.of_owner(1), lacks(&mut pair[1])), (1, Lack::Nothing));
    // No room.
    pair[1].ct.limit = 4;
    for port in 10..20 {
        pair[0].ct.process(&packet(tuple(17, 1, port, 2, 2), 0), &commit, later);
    }
    settle(&mut pair, later);
    assert_eq!((pair[1].ct.of_owner(1), lacks(&mut pair[1])), (4, Lack::Nothing), "there is none yet");
    pair[1].ct.limit = 100;
    assert_eq!(lacks(&mut pair[1]), Lack::Much);
    // A flush of what the other one still has.
    assert_eq!((pair[1].ct.flush_zone(Zone(1)), lacks(&mut pair[1])), (4, Lack::Much));
    assert_eq!(lacks(&mut pair[1]), Lack::Nothing);
}
