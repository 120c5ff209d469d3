//! Two gateways that tell each other their connections, while packets come to the one and the other.

use crate::rig::{A, B, NOW, ip, of_size, via};
use packet::{Headers, Mac, build, checksum, ipproto};
use std::net::IpAddr;
use std::time::Duration;
use switch::conntrack::Zone;
use switch::conntrack::journal::{Change, ReaderId};
use switch::conntrack::replica::{RemoteConnection, Replica};
use switch::{DeviceId, DropReason, Outputs, Switch};

const ZONE: Zone = Zone(1);
const MS: Duration = Duration::from_millis(1);

/// Machines behind port 1 have one address outside, behind port 2; what comes from there belongs to a connection or is
/// lost. Port 3 takes what outsiders open.
const FLOWS: &[&str] = &[
    "table=0,ip,in_port=1 actions=ct(table=1,zone=1,nat)",
    "table=0,ipv6,in_port=1 actions=ct(table=1,zone=1,nat)",
    "table=0,ip,in_port=2 actions=ct(table=2,zone=1,nat)",
    "table=0,ipv6,in_port=2 actions=ct(table=2,zone=1,nat)",
    "table=0,ip,in_port=3 actions=ct(table=3,zone=2)",
    "table=1,ct_state=+new+trk,ip actions=ct(commit,zone=1,nat(src=192.0.2.1)),output:2",
    "table=1,ct_state=+new+trk,ipv6 actions=ct(commit,zone=1,nat(src=2001:db8::1)),output:2",
    "table=1,ct_state=+est+trk actions=output:2",
    "table=2,ct_state=+est+trk actions=output:1",
    "table=2,ct_state=+new+trk,tcp,tcp_flags=+syn-ack actions=output:3",
    "table=2,ct_state=+new+trk,icmp actions=output:3",
    "table=3 actions=output:1",
];

/// The gateway that has the port, and the one that gets it.
struct Pair {
    old: Switch,
    new: Switch,
    reader: ReaderId,
    replica: Replica,
}

impl Pair {
    fn new() -> Pair {
        let [old, new] = [(); 2].map(|()| of_size(1000, FLOWS));
        let reader = old.conntrack.lock().add_reader([ZONE]).expect("room");
        // The new one tells the old one as well: so it knows that others have connections of this zone.
        let back = new.conntrack.lock().add_reader([ZONE]).expect("room");
        new.conntrack.lock().set_chassis(back, 1);
        Pair { old, new, reader, replica: Replica::new(1, true) }
    }

    /// The old one's word comes to the new one.
    fn tell(&mut self, now: Duration) {
        let Pair { old, new, reader, replica } = self;
        let mut ct = new.conntrack.lock();
        old.conntrack.lock().changes(*reader, usize::MAX, now, |c| match c {
            Change::Put(p) => replica.put(&mut ct, p.slot, &RemoteConnection::of(p.connection, p.idle), now),
            Change::State(slot, c) => replica.state(&mut ct, slot, &c.state()),
            Change::Close(slot) => replica.close(&mut ct, slot),
            _ => {}
        });
    }

    /// A machine's question goes out by the old one; returns what the server answers.
    fn ask(&mut self, k: Kind, now: Duration) -> Vec<u8> {
        let out = send(&mut self.old, 1, &k.question(), now);
        assert_eq!(out.len(), 1, "{k:?}");
        k.answer(&out[0].1)
    }

    /// A connection moves: its question went by the old one, which has told of it, and its answer comes to the new one.
    fn move_one(&mut self, now: Duration) {
        let answer = self.ask(Kind { proto: ipproto::UDP, v6: false, port: 999 }, now);
        self.tell(now);
        assert_eq!(send(&mut self.new, 2, &answer, now).len(), 1);
    }

    fn end_waits(&mut self, now: Duration) -> Vec<(switch::Target, Vec<u8>)> {
        let mut out = Outputs::default();
        self.new.end_waits(&Vec::new(), now, &mut out);
        out.packets
    }
}

fn send(s: &mut Switch, device: u32, p: &[u8], now: Duration) -> Vec<(switch::Target, Vec<u8>)> {
    let mut out = Outputs::default();
    s.process(&mut vec![(DeviceId(device), p.to_vec())], now, &mut out);
    out.packets
}

fn dropped(s: &Switch) -> u64 {
    DropReason::ALL.iter().map(|r| s.drops.get(*r)).sum()
}

/// What a machine and a server say to each other.
#[derive(Clone, Copy, Debug)]
struct Kind {
    proto: u8,
    v6: bool,
    port: u16,
}

const SYN: u8 = 2;
const ACK: u8 = 16;

impl Kind {
    fn ends(self) -> [IpAddr; 2] {
        if self.v6 { ["fd00::5", "2001:db8::99"].map(ip) } else { ["10.0.0.5", "192.0.2.99"].map(ip) }
    }

    fn packet(self, from: (IpAddr, u16), to: (IpAddr, u16), answer: bool) -> Vec<u8> {
        let (src, dst): (Mac, Mac) = if answer { (B, A) } else { (A, B) };
        let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        let body = match self.proto {
            ipproto::UDP => return build::udp(src, dst, from, to, 64, b"word").expect("udp"),
            ipproto::TCP => {
                let flags = if answer { SYN | ACK } else { SYN };
                [&ports[..], &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0]].concat()
            }
            _ => {
                let id = if answer { to.1 } else { from.1 }.to_be_bytes();
                let kind = match (self.v6, answer) {
                    (false, false) => 8,
                    (false, true) => 0,
                    (true, false) => 128,
                    (true, true) => 129,
                };
                vec![kind, 0, 0, 0, id[0], id[1], 0, 1]
            }
        };
        let mut p = build::ip_packet(src, dst, from.0, to.0, self.proto, 64, &body).expect("packet");
        let h = Headers::parse(&p).expect("headers");
        checksum::set_l4(&mut p, &h);
        p
    }

    fn question(self) -> Vec<u8> {
        let [machine, server] = self.ends();
        self.packet((machine, self.port), (server, 53), false)
    }

    /// The answer to a question as it left.
    fn answer(self, asked: &[u8]) -> Vec<u8> {
        let h = Headers::parse(asked).expect("headers");
        let outside = if self.v6 { ip("2001:db8::1") } else { ip("192.0.2.1") };
        let port = match self.proto {
            ipproto::UDP | ipproto::TCP => h.ports(asked).expect("ports").0,
            _ => packet::be16(asked, h.l4.expect("icmp") + 4).expect("id"),
        };
        self.packet((self.ends()[1], 53), (outside, port), true)
    }
}

fn kinds() -> impl Iterator<Item = Kind> {
    let icmp = |v6| if v6 { ipproto::ICMPV6 } else { ipproto::ICMP };
    let of = move |v6| [ipproto::TCP, ipproto::UDP, icmp(v6)].map(|proto| Kind { proto, v6, port: 1234 });
    [false, true].into_iter().flat_map(of)
}

/// An answer that is sooner than word of its connection waits for that, and comes out as if it had come later.
#[test]
fn an_answer_waits_for_word_of_its_connection() {
    for k in kinds() {
        let mut late = Pair::new();
        let answer = late.ask(k, NOW);
        late.tell(NOW);
        let expected = send(&mut late.new, 2, &answer, NOW);
        assert_eq!(expected.iter().map(|o| o.0).collect::<Vec<_>>(), [via(1)], "{k:?}");

        let mut p = Pair::new();
        p.move_one(NOW);
        let answer = p.ask(k, NOW);
        assert!(send(&mut p.new, 2, &answer, NOW).is_empty(), "{k:?}: no connection is known");
        assert!(p.end_waits(NOW + MS).is_empty(), "{k:?}: nor now");
        p.tell(NOW + MS);
        assert_eq!(p.end_waits(NOW + 2 * MS), expected, "{k:?}");
        assert!(p.new.awaiting.is_empty());
        assert_eq!(dropped(&p.new), 0, "{k:?}");
        // The next ones find it.
        assert_eq!(send(&mut p.new, 2, &answer, NOW + 3 * MS), expected, "{k:?}");
    }
}

/// So does a machine's next packet, though others like it have opened connections here: it would open another one.
#[test]
fn templates_open_nothing_that_may_be_told() {
    let mut p = Pair::new();
    let of = |port| Kind { proto: ipproto::UDP, v6: false, port };
    for port in 1..40 {
        assert_eq!(send(&mut p.new, 1, &of(port).question(), NOW).len(), 1);
    }
    p.move_one(NOW);
    p.ask(of(1234), NOW);
    let connections = p.new.conntrack.lock().len();
    assert!(send(&mut p.new, 1, &of(1234).question(), NOW).is_empty());
    assert_eq!(p.new.conntrack.lock().len(), connections);
    p.tell(NOW + MS);
    let out = p.end_waits(NOW + 2 * MS);
    assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [via(2)]);
    assert_eq!(p.new.conntrack.lock().len(), connections + 1, "the one that was told");
}

/// If no word comes the packet goes on as it would have.
#[test]
fn nobody_waits_for_ever() {
    for k in kinds() {
        let mut p = Pair::new();
        p.move_one(NOW);
        let answer = p.ask(k, NOW);
        assert!(send(&mut p.new, 2, &answer, NOW).is_empty());
        let before = dropped(&p.new);
        assert!(p.end_waits(NOW + 4 * MS).is_empty() && !p.new.awaiting.is_empty(), "{k:?}: it waits");
        assert!(p.end_waits(NOW + 6 * MS).is_empty() && p.new.awaiting.is_empty(), "{k:?}: it has waited");
        assert_eq!(dropped(&p.new), before + 1, "{k:?}: it is dropped once");
    }
}

/// Packets of one connection go on in their order.
#[test]
fn the_order_stays() {
    let mut p = Pair::new();
    p.move_one(NOW);
    let k = Kind { proto: ipproto::UDP, v6: false, port: 7 };
    let answer = p.ask(k, NOW);
    let mut all = vec![answer; 5];
    all.iter_mut().zip(0u8..).for_each(|(a, n)| {
        let end = a.len() - 1;
        a[end] = n;
        let h = Headers::parse(a).expect("headers");
        checksum::set_l4(a, &h);
    });
    all.iter().for_each(|a| assert!(send(&mut p.new, 2, a, NOW).is_empty()));
    p.tell(NOW);
    let last = |(_, p): &(switch::Target, Vec<u8>)| p.last().copied();
    assert_eq!(p.end_waits(NOW + MS).iter().filter_map(last).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

/// Nothing waits that cannot be waited for: questions; packets while no connection moves, or none of a gateway that lives;
/// packets of zones that nobody is told of; more than there is room for.
#[test]
fn others_go_on_at_once() {
    let question = |proto, port| {
        let k = Kind { proto, v6: false, port };
        k.packet((k.ends()[1], port), (ip("192.0.2.1"), 80), false)
    };
    let answer = Kind { proto: ipproto::UDP, v6: false, port: 5 };
    let answer = answer.packet((answer.ends()[1], 53), (ip("192.0.2.1"), 5), true);
    let waits = |p: &mut Pair, device, packet: &[u8], now| {
        send(&mut p.new, device, packet, now);
        !p.new.awaiting.is_empty()
    };
    let mut p = Pair::new();
    assert!(!waits(&mut p, 2, &answer, NOW), "nothing has moved");
    p.move_one(NOW);
    for proto in [ipproto::TCP, ipproto::ICMP] {
        assert_eq!(send(&mut p.new, 2, &question(proto, 6), NOW)[0].0, via(3), "a question");
    }
    assert_eq!(send(&mut p.new, 3, &question(ipproto::UDP, 6), NOW)[0].0, via(1), "a zone of this chassis alone");
    assert!(!waits(&mut p, 2, &answer, NOW + 60 * MS), "that was long ago");

    let mut p = Pair::new();
    p.new.conntrack.lock().set_lost(1, true);
    p.move_one(NOW);
    assert!(!waits(&mut p, 2, &answer, NOW), "nobody is there to tell");

    let mut p = Pair::new();
    p.move_one(NOW);
    let before = dropped(&p.new);
    for port in 0..300 {
        let k = Kind { proto: ipproto::UDP, v6: false, port: 2000 + port };
        send(&mut p.new, 2, &k.packet((k.ends()[1], 53), (ip("192.0.2.1"), k.port), true), NOW);
    }
    assert_eq!(dropped(&p.new) - before, 300 - 256, "what finds no room goes on");
    p.end_waits(NOW + 10 * MS);
    assert_eq!(dropped(&p.new) - before, 300);
}
