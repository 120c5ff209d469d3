mod sync;

use super::*;
use openflow_rs::NatRange;
use openflow_rs::message::CtFlush;
use std::net::{IpAddr, Ipv4Addr};

const NOW: Duration = Duration::from_secs(100);

fn tuple(proto: u8, src: u32, sport: u16, dst: u32, dport: u16) -> Tuple {
    Tuple { v6: false, proto, src: src.into(), dst: dst.into(), sport, dport, icmp_type: 0, icmp_code: 0 }
}

fn packet(tuple: Tuple, tcp_flags: u16) -> Packet {
    Packet { tuple, tcp_flags, segment: None, error: false, broken: false }
}

fn snat(a: u32, ports: Option<(u16, u16)>) -> NatSpec {
    let addr = IpAddr::V4(Ipv4Addr::from(a));
    NatSpec { src: true, range: NatRange { addr: Some((addr, addr)), port: ports }, ..Default::default() }
}

#[test]
fn tcp_walks_its_states() {
    let mut ct = Conntrack::new(10);
    let t = tuple(6, 1, 1000, 2, 80);
    let commit = Request { zone: Zone(5), commit: true, ..Default::default() };
    let look = Request { zone: Zone(5), ..Default::default() };
    let v = ct.process(&packet(t, 2), &commit, NOW);
    assert_eq!(v.state, flag::TRK | flag::NEW);
    assert_eq!(
        ct.process(&packet(t, 2), &Request::default(), NOW).state,
        flag::TRK | flag::NEW,
        "another zone knows nothing"
    );
    let v = ct.process(&packet(t.reversed(), 0x12), &look, NOW);
    assert_eq!(v.state, flag::TRK | flag::EST | flag::RPL);
    assert_eq!(ct.process(&packet(t, 0x10), &look, NOW).state, flag::TRK | flag::EST);
    assert!(
        ct.dump(None, None).contains("tcp,orig=(src=0.0.0.1,dst=0.0.0.2,sport=1000,dport=80)"),
        "{}",
        ct.dump(None, None)
    );
    assert!(ct.dump(None, None).contains("state=ESTABLISHED"));
    ct.process(&packet(t, 0x11), &look, NOW);
    ct.process(&packet(t.reversed(), 0x11), &look, NOW);
    assert!(ct.dump(None, None).contains("state=TIME_WAIT"));
    assert!(ct.dump(None, Some(NOW)).contains("timeout=45,protoinfo=(state_orig=FIN_WAIT_2,state_reply=CLOSING)"));
    assert_eq!(ct.process(&packet(t, 2), &look, NOW).state, flag::TRK | flag::EST, "not done yet");
    ct.process(&packet(t, 0x10), &look, NOW);
    assert_eq!(ct.process(&packet(t, 2), &look, NOW).state, flag::TRK | flag::NEW, "a SYN reopens");
    let other = tuple(6, 9, 9, 9, 9);
    assert_eq!(ct.process(&packet(other, 0x12), &look, NOW).state, flag::TRK | flag::INV, "a lone SYN+ACK");
}

#[test]
fn source_translation_and_back() {
    let mut ct = Conntrack::new(10);
    let nat = snat(77, None);
    let commit = Request { zone: Zone(1), commit: true, nat: Some(&nat), ..Default::default() };
    let t = tuple(17, 1, 5000, 2, 53);
    let v = ct.process(&packet(t, 0), &commit, NOW);
    let out = v.translated.expect("translated");
    assert_eq!((out.src, out.sport, out.dst), (77, 5000, 2));
    assert_eq!(v.state, flag::TRK | flag::NEW | flag::SNAT);
    let v = ct.process(&packet(tuple(17, 3, 5000, 2, 53), 0), &commit, NOW);
    let second = v.translated.expect("translated");
    assert!(second.src == 77 && second.sport != 5000, "the port was taken");
    let plain = NatSpec::default();
    let look = Request { zone: Zone(1), nat: Some(&plain), ..Default::default() };
    let v = ct.process(&packet(out.reversed(), 0), &look, NOW);
    assert_eq!(v.translated.expect("translated back"), t.reversed());
    assert_eq!(v.state, flag::TRK | flag::EST | flag::RPL | flag::DNAT);
}

#[test]
fn errors_are_related() {
    let mut ct = Conntrack::new(10);
    let nat = snat(77, None);
    let t = tuple(17, 1, 5000, 2, 53);
    ct.process(&packet(t, 0), &Request { commit: true, nat: Some(&nat), ..Default::default() }, NOW);
    let inner = tuple(17, 77, 5000, 2, 53);
    let plain = NatSpec::default();
    let p = Packet { tuple: inner.reversed(), tcp_flags: 0, segment: None, error: true, broken: false };
    let v = ct.process(&p, &Request { nat: Some(&plain), ..Default::default() }, NOW);
    assert_eq!(v.state & !(flag::DNAT | flag::SNAT), flag::TRK | flag::REL | flag::RPL);
    assert_eq!(v.translated.expect("translated"), t.reversed());
}

/// Two gateways that do not hear each other give a connection the same port, and connections that ask for one port
/// different ones, as far as a search of one chassis alone can.
#[test]
fn ports_follow_from_the_connection() {
    let nat = snat(77, None);
    let commit = Request { zone: Zone(1), commit: true, nat: Some(&nat), ..Default::default() };
    let port = |ct: &mut Conntrack, src| {
        ct.process(&packet(tuple(17, src, 5000, 2, 53), 0), &commit, NOW).translated.expect("translated").sport
    };
    // Each has the port 5000 taken by another host, and then serves other hosts than the other one.
    let (mut a, mut b) = (Conntrack::new(64), Conntrack::new(64));
    let first = [port(&mut a, 1), port(&mut b, 1)];
    assert_eq!(first, [5000, 5000]);
    let of_a: Vec<u16> = (2..12).map(|src| port(&mut a, src)).collect();
    let of_b: Vec<u16> = (12..22).map(|src| port(&mut b, src)).collect();
    assert!(of_a.iter().all(|p| !of_b.contains(p)), "{of_a:?} {of_b:?}");
    // What it has served before does not count.
    let mut c = Conntrack::new(64);
    port(&mut c, 99);
    assert_eq!((2..12).map(|src| port(&mut c, src)).collect::<Vec<_>>(), of_a);
}

/// As Open vSwitch does, and its suite wants ("conntrack - SNAT with icmp_id").
#[test]
fn an_identifier_of_icmp_that_is_taken_becomes_the_next_one() {
    let mut ct = Conntrack::new(10);
    let nat = snat(77, None);
    let commit = Request { zone: Zone(1), commit: true, nat: Some(&nat), ..Default::default() };
    let mut id = |src, id| {
        let echo = Tuple { icmp_type: 8, ..tuple(1, src, id, 2, id) };
        let to = ct.process(&packet(echo, 0), &commit, NOW).translated.expect("translated");
        assert_eq!((to.src, to.sport), (77, to.dport));
        to.sport
    };
    assert_eq!([1, 3, 4].map(|src| id(src, 500)), [500, 501, 502]);
    assert_eq!([1, 3, 4].map(|src| id(src, 65535)), [65535, 1, 2], "0 is no identifier");
}

/// Two hosts with the same 5,300 ports, one behind the other: each connection of the second gets another port, and none is
/// refused although thousands of ports in a row are taken. Of a small range all are found.
#[test]
fn ports_in_a_row_that_are_taken_refuse_nobody() {
    let mut ct = Conntrack::new(20_000);
    let nat = snat(77, None);
    let commit = Request { zone: Zone(1), commit: true, nat: Some(&nat), ..Default::default() };
    let mut ports = std::collections::HashSet::new();
    for (host, n) in (1..3).flat_map(|host| (20_000..25_300).map(move |n| (host, n))) {
        let v = ct.process(&packet(tuple(17, host, n, 2, 53), 0), &commit, NOW);
        let port = v.translated.unwrap_or_else(|| panic!("host {host}, port {n}: {:?}", v.refused)).sport;
        assert!(ports.insert(port) && port >= 1024);
    }
    let nat = snat(78, Some((3000, 3099)));
    let few = Request { zone: Zone(1), commit: true, nat: Some(&nat), ..Default::default() };
    let mut find = |n| ct.process(&packet(tuple(17, 3, n, 2, 53), 0), &few, NOW).translated.map(|t| t.sport);
    let found: std::collections::BTreeSet<u16> = (1..101).filter_map(&mut find).collect();
    assert_eq!(found, (3000..3100).collect());
    assert_eq!(find(101), None);
}

#[test]
fn a_port_range_runs_out() {
    let mut ct = Conntrack::new(100);
    let nat = snat(77, Some((10, 12)));
    let r = Request { commit: true, nat: Some(&nat), ..Default::default() };
    let mut ports = std::collections::BTreeSet::new();
    for i in 0..3 {
        let v = ct.process(&packet(tuple(17, 1, 5000 + i, 2, 53), 0), &r, NOW);
        ports.insert(v.translated.expect("translated").sport);
    }
    assert_eq!(ports.into_iter().collect::<Vec<_>>(), [10, 11, 12]);
    assert_eq!(ct.process(&packet(tuple(17, 1, 6000, 2, 53), 0), &r, NOW).state, flag::TRK | flag::INV);
    let later = NOW + Duration::from_secs(1000);
    assert!(ct.process(&packet(tuple(17, 1, 6000, 2, 53), 0), &r, later).translated.is_some(), "old ones expire");
    ct.sweep(100, later + Duration::from_secs(1000));
    assert!(ct.is_empty());
}

#[test]
fn flush_and_bounds() {
    let mut ct = Conntrack::new(2);
    let r = |zone| Request { zone: Zone(zone), commit: true, ..Default::default() };
    for z in 1..=2 {
        ct.process(&packet(tuple(17, 1, 1, 2, 2), 0), &r(z), NOW);
    }
    assert_eq!(ct.process(&packet(tuple(17, 1, 1, 2, 2), 0), &r(3), NOW).state, flag::TRK | flag::INV, "full");
    let copies: Vec<Connection> = ct.export().collect();
    assert_eq!(ct.flush_zone(Zone(1)), 1);
    let f = CtFlush { proto: 17, zone: Some(2), ..Default::default() };
    assert_eq!(ct.flush(&Flush::Filter(f.clone())), 1);
    for c in copies {
        assert!(ct.restore(&replica::RemoteConnection::of(&c, Duration::ZERO), Duration::from_secs(60), NOW));
    }
    assert_eq!(ct.len(), 2);
    // Named in full, it is looked for in one zone; a part is looked for in all.
    let address = |n: u32| Some(std::net::IpAddr::from(n.to_be_bytes()));
    let mut f = CtFlush { proto: 17, ..Default::default() };
    (f.original.src, f.original.dst) = (address(1), address(2));
    (f.original.src_port, f.original.dst_port) = (Some(1), Some(2));
    assert_eq!(ct.flush(&Flush::Filter(f.clone())), 0);
    assert_eq!(ct.flush(&Flush::Filter(CtFlush { zone: Some(1), ..f.clone() })), 1);
    f.original.dst_port = None;
    assert_eq!(ct.flush(&Flush::Filter(f.clone())), 1);
}

proptest::proptest! {
    /// However packets come, both directions of a connection find it, and no two share a tuple.
    #[test]
    fn tuples_stay_unique(ops in proptest::collection::vec((1u32..4, 1u16..4, proptest::bool::ANY), 1..60)) {
        let mut ct = Conntrack::new(64);
        let nat = snat(77, Some((1, 20)));
        let plain = NatSpec::default();
        for (src, port, back) in ops {
            let t = tuple(17, src, port, 9, 53);
            let req = Request { commit: true, nat: Some(&nat), ..Default::default() };
            let v = ct.process(&packet(t, 0), &req, NOW);
            let Some(out) = v.translated else { continue };
            if back {
                let v = ct.process(&packet(out.reversed(), 0), &Request { nat: Some(&plain), ..Default::default() }, NOW);
                proptest::prop_assert_eq!(v.translated, Some(t.reversed()));
            }
        }
        let mut seen = std::collections::HashSet::new();
        for c in ct.export() {
            proptest::prop_assert!(seen.insert(c.reply));
        }
    }
}

#[test]
fn zones_have_limits_and_timeouts() {
    let mut ct = Conntrack::new(100);
    ct.set_limit(Some(Zone(1)), 2);
    ct.set_limit(None, 3);
    let mut short = Timeouts::default();
    assert!(short.set("udp_first", 5) && short.set("tcp_unack", 9) && !short.set("udp_forever", 1));
    ct.set_timeouts(HashMap::from([(Zone(1), short)]));
    let made = |ct: &mut Conntrack, zone, port| {
        let v = ct.process(
            &packet(tuple(17, 1, port, 2, 2), 0),
            &Request { zone: Zone(zone), commit: true, ..Default::default() },
            NOW,
        );
        (v.conn.is_some(), v.refused)
    };
    for zone in [1, 2] {
        let most = if zone == 1 { 2 } else { 3 };
        for port in 1..=most {
            assert_eq!(made(&mut ct, zone, port), (true, None));
        }
        assert_eq!(made(&mut ct, zone, 9), (false, Some(Refusal::ZoneLimit)));
    }
    assert_eq!(ct.limits(&[]), (3, vec![(Zone(1), 2, 2)]));
    assert_eq!(ct.limits(&[Zone(2), Zone(7)]), (3, vec![(Zone(2), 3, 3), (Zone(7), 3, 0)]));
    ct.sweep(100, NOW + Duration::from_secs(6));
    assert_eq!(ct.limits(&[Zone(1), Zone(2)]).1, [(Zone(1), 2, 0), (Zone(2), 3, 3)], "a zone's own timeout");
    assert!(ct.delete_limit(Zone(1)) && !ct.delete_limit(Zone(1)));
    for port in 1..=3 {
        assert_eq!(made(&mut ct, 1, port), (true, None));
    }
    assert_eq!(made(&mut ct, 1, 9), (false, Some(Refusal::ZoneLimit)), "the default");
    ct.close_zone(Zone(5));
    assert_eq!(
        (made(&mut ct, 5, 1), ct.limits(&[Zone(5)]).1),
        ((false, Some(Refusal::ZoneLimit)), vec![(Zone(5), 0, 0)])
    );
    ct.set_limit(Some(Zone(5)), 0);
    assert_eq!(made(&mut ct, 5, 1), (true, None), "no limit");
}

/// A connection whose time is over goes as soon as another takes its tuple; no sweep is needed.
#[test]
fn a_successor_takes_the_place_of_what_has_expired() {
    let mut ct = Conntrack::new(10);
    let nat = snat(9, Some((50, 50)));
    let req = Request { commit: true, nat: Some(&nat), ..Default::default() };
    assert!(ct.process(&packet(tuple(17, 1, 7, 2, 53), 0), &req, NOW).conn.is_some());
    let later = NOW + Duration::from_secs(1000);
    let v = ct.process(&packet(tuple(17, 3, 7, 2, 53), 0), &req, later);
    assert_eq!((v.conn.is_some(), ct.len()), (true, 1));
    ct.sweep(10, later);
    assert_eq!(ct.len(), 1);
    let back = tuple(17, 2, 53, 9, 50);
    let plain = NatSpec::default();
    let v = ct.process(&packet(back, 0), &Request { nat: Some(&plain), ..Default::default() }, later);
    assert_eq!(v.translated, Some(tuple(17, 2, 53, 3, 7)));
}

/// A flush part by part removes what one at once does, and looks no further when the zone is empty; so it is with what is
/// shown.
#[test]
fn parts_are_the_whole() {
    let full = || {
        let mut ct = Conntrack::new(1000);
        for port in 0..100 {
            let zone = Zone(port % 3);
            let r = Request { zone, commit: true, ..Default::default() };
            ct.process(&packet(tuple(17, port.into(), port, 2, 53), 0), &r, NOW);
        }
        ct
    };
    let filter = CtFlush {
        proto: 17,
        original: openflow_rs::message::CtTuple { src_port: Some(31), ..Default::default() },
        ..Default::default()
    };
    for what in [Flush::Zone(Zone(1)), Flush::Zone(Zone(7)), Flush::Filter(CtFlush::default()), Flush::Filter(filter)] {
        let (mut whole, mut parts) = (full(), full());
        let (mut removed, mut next, mut looks) = (0, Some(0), 0);
        while let Some(from) = next {
            let (n, then) = parts.flush_part(&what, from, 9);
            (removed, next, looks) = (removed + n, then, looks + 1);
        }
        assert_eq!(whole.flush(&what), removed, "{what:?}");
        assert!(whole.export().eq(parts.export()), "{what:?}");
        assert_eq!(looks == 1, matches!(what, Flush::Zone(Zone(7))), "{what:?}: {looks}");
    }
    let ct = full();
    for zone in [None, Some(Zone(2)), Some(Zone(9))] {
        let (mut shown, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let (list, then) = ct.shown_part((from, 7), zone, NOW);
            (shown, next) = ([shown, list].concat(), then);
        }
        let all: Vec<Connection> = ct.export().filter(|c| zone.is_none_or(|z| z == c.zone)).collect();
        assert_eq!(shown, all);
    }
}
