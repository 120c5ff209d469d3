//! Which session a datagram belongs to, and many sessions between two systems on a virtual clock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bfd_rs::{
    Config, Datagram, Discard, Ends, MULTI_HOP_PORT, OpenError, PacketError, Path, SINGLE_HOP_PORT, Sessions, State,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::IpAddr;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn fast() -> Config {
    Config { desired_min_tx: 10_000, required_min_rx: 10_000, ..Config::default() }
}

fn ends(local: &str, remote: &str, path: Path) -> Ends {
    Ends { local: ip(local), remote: ip(remote), path }
}

/// The first packet of a session, as the other side receives it.
fn first(s: &mut Sessions) -> ([u8; 24], Ends) {
    let (packets, _) = s.poll(0);
    (packets[0].packet.to_bytes(), packets[0].ends)
}

fn datagram<'a>(from: &Ends, interface: u32, ttl: u8, payload: &'a [u8]) -> Datagram<'a> {
    Datagram { source: from.local, destination: from.remote, port: from.path.port(), interface, ttl, payload }
}

#[test]
fn over_one_hop_the_interface_and_the_sender_count() {
    let (mut a, mut b) = (Sessions::new(1), Sessions::new(1000));
    a.open(ends("10.0.0.1", "10.0.0.2", Path::SingleHop(3)), fast(), 0).unwrap();
    let n = b.open(ends("10.0.0.2", "10.0.0.1", Path::SingleHop(7)), fast(), 0).unwrap();
    let (bytes, from) = first(&mut a);
    // RFC 5881 section 5: the generalised TTL security mechanism.
    for ttl in [0, 1, 64, 254] {
        assert_eq!(b.receive(&datagram(&from, 7, ttl, &bytes), 0), Err(Discard::Ttl(ttl)));
    }
    assert_eq!(b.receive(&datagram(&from, 8, 255, &bytes), 0), Err(Discard::Nobody(ip("10.0.0.1"))));
    let other = Ends { local: ip("10.0.0.9"), ..from };
    assert_eq!(b.receive(&datagram(&other, 7, 255, &bytes), 0), Err(Discard::Nobody(ip("10.0.0.9"))));
    // The same two, but over several hops: another session.
    let far = Ends { path: Path::MultiHop(0), ..from };
    assert_eq!(b.receive(&datagram(&far, 7, 255, &bytes), 0), Err(Discard::Nobody(ip("10.0.0.1"))));
    assert_eq!(b.get(n).unwrap().state(), State::Down);
    let change = b.receive(&datagram(&from, 7, 255, &bytes), 0).unwrap().unwrap();
    assert_eq!((change.discriminator, change.state), (n, State::Init));
    // With a discriminator the session is found by it alone, but on that link; and packets go where they always went.
    let mut p = bfd_rs::Packet::parse(&bytes).unwrap();
    p.your_discriminator = n;
    assert_eq!(b.receive(&datagram(&from, 8, 255, &p.to_bytes()), 0), Err(Discard::Elsewhere(n, ip("10.0.0.1"))));
    assert_eq!(b.receive(&datagram(&far, 7, 255, &p.to_bytes()), 0), Err(Discard::Elsewhere(n, ip("10.0.0.1"))));
    b.receive(&datagram(&other, 7, 255, &p.to_bytes()), 0).unwrap();
    assert_eq!(b.poll(0).0[0].ends.remote, ip("10.0.0.1"));
    p.your_discriminator = n + 1;
    assert_eq!(
        b.receive(&datagram(&from, 7, 255, &p.to_bytes()), 0),
        Err(Discard::Packet(PacketError::Unknown(n + 1)))
    );
}

/// RFC 5880 section 6.8.1, RFC 5882 section 8: a peer learns of the end.
#[test]
fn a_closed_session_is_told_of_before_it_goes() {
    let (mut a, mut b) = (Sessions::new(1), Sessions::new(1000));
    let e = ends("10.0.0.1", "10.0.0.2", Path::SingleHop(3));
    let one = a.open(e, fast(), 0).unwrap();
    let two = b.open(ends("10.0.0.2", "10.0.0.1", Path::SingleHop(3)), fast(), 0).unwrap();
    fn run(a: &mut Sessions, b: &mut Sessions, from: u64, to: u64) {
        for now in (from..to).step_by(1000) {
            for p in a.poll(now).0 {
                let _ = b.receive(&datagram(&p.ends, 3, 255, &p.packet.to_bytes()), now);
            }
            for p in b.poll(now).0 {
                let _ = a.receive(&datagram(&p.ends, 3, 255, &p.packet.to_bytes()), now);
            }
        }
    }
    run(&mut a, &mut b, 0, 3_000_000);
    let states = |a: &Sessions, b: &Sessions| (a.get(one).map(|s| s.state()), b.get(two).map(|s| s.state()));
    assert_eq!(states(&a, &b), (Some(State::Up), Some(State::Up)));
    a.close(one, 3_000_000);
    run(&mut a, &mut b, 3_000_000, 3_010_000);
    assert_eq!(states(&a, &b), (Some(State::AdminDown), Some(State::Down)));
    assert_eq!(b.get(two).unwrap().remote().0, State::AdminDown, "no failure: RFC 5882 section 3.2");
    // Opened again meanwhile, it is the same one.
    assert_eq!(a.open(e, fast(), 3_010_000), Ok(one));
    assert_eq!(a.open(e, fast(), 3_010_000), Err(OpenError::Exists(e)));
    run(&mut a, &mut b, 3_010_000, 6_000_000);
    assert_eq!(states(&a, &b), (Some(State::Up), Some(State::Up)));
    a.close(one, 6_000_000);
    run(&mut a, &mut b, 6_000_000, 20_000_000);
    assert_eq!(states(&a, &b), (None, Some(State::Down)));
    // One that never heard anybody has nobody to tell.
    let three = a.open(e, fast(), 20_000_000).unwrap();
    a.close(three, 20_000_000);
    assert!(a.get(three).is_none() && a.deadline().is_none());
}

/// RFC 5881 section 6: at a link with two ends the source address is not looked at; each protocol has its own session
/// (section 2).
#[test]
fn over_a_point_to_point_link_any_address_is_the_peer() {
    let (mut a, mut b) = (Sessions::new(1), Sessions::new(1000));
    a.open(ends("10.0.0.1", "10.0.0.2", Path::SingleHop(3)), fast(), 0).unwrap();
    let n = b.open(ends("10.0.0.2", "192.0.2.77", Path::PointToPoint(7)), fast(), 0).unwrap();
    let again = ends("10.9.9.9", "10.8.8.8", Path::PointToPoint(7));
    assert_eq!(b.open(again, fast(), 0), Err(OpenError::Exists(again)));
    let six = b.open(ends("fe80::2", "fe80::1", Path::PointToPoint(7)), fast(), 0).unwrap();
    let (bytes, from) = first(&mut a);
    assert_eq!(b.receive(&datagram(&from, 8, 255, &bytes), 0), Err(Discard::Nobody(ip("10.0.0.1"))));
    assert_eq!(b.receive(&datagram(&from, 7, 254, &bytes), 0), Err(Discard::Ttl(254)));
    assert_eq!(b.receive(&datagram(&from, 7, 255, &bytes), 0).unwrap().unwrap().discriminator, n);
    let v6 = Ends { local: ip("fe80::9"), remote: ip("fe80::2"), ..from };
    assert_eq!(b.receive(&datagram(&v6, 7, 255, &bytes), 0).unwrap().unwrap().discriminator, six);
    let (packets, _) = b.poll(0);
    assert_eq!(packets[0].ends.remote, ip("192.0.2.77"), "as it was opened");
}

/// RFC 5880 section 7: over several hops there is congestion control whether or not it is asked for.
#[test]
fn several_hops_have_congestion_control() {
    let mut s = Sessions::new(1);
    let far = s.open(ends("10.0.0.1", "10.9.0.2", Path::MultiHop(250)), fast(), 0).unwrap();
    let near = s.open(ends("10.0.0.1", "10.0.0.2", Path::SingleHop(1)), fast(), 0).unwrap();
    s.configure(far, Config { detect_mult: 5, ..fast() }, 0);
    assert_eq!([far, near].map(|n| s.get(n).unwrap().config().congestion_control), [true, false]);
}

#[test]
fn over_several_hops_both_addresses_and_the_allowed_distance_count() {
    let (mut a, mut b) = (Sessions::new(1), Sessions::new(1000));
    a.open(ends("2001:db8::1", "2001:db8:9::2", Path::MultiHop(0)), fast(), 0).unwrap();
    let near = b.open(ends("2001:db8:9::2", "2001:db8::1", Path::MultiHop(250)), fast(), 0).unwrap();
    let (bytes, from) = first(&mut a);
    assert_eq!(b.receive(&datagram(&from, 1, 249, &bytes), 0), Err(Discard::Ttl(249)));
    let elsewhere = Ends { remote: ip("2001:db8:9::3"), ..from };
    assert_eq!(b.receive(&datagram(&elsewhere, 1, 255, &bytes), 0), Err(Discard::Nobody(from.local)));
    // Any interface will do: the way back may be another.
    assert_eq!(b.receive(&datagram(&from, 99, 250, &bytes), 0).unwrap().unwrap().discriminator, near);
}

#[test]
fn one_session_for_two_ends_and_source_ports_of_their_own() {
    let mut s = Sessions::new(u32::MAX - 2);
    let one = ends("10.0.0.1", "10.0.0.2", Path::SingleHop(1));
    s.open(one, fast(), 0).unwrap();
    // Another address of ours on that link is no other session; several hops are.
    let again = ends("10.0.0.3", "10.0.0.2", Path::SingleHop(1));
    assert_eq!(s.open(again, fast(), 0), Err(OpenError::Exists(again)));
    s.open(Ends { path: Path::MultiHop(1), ..one }, fast(), 0).unwrap();
    for n in 0..20 {
        s.open(ends("10.0.0.1", &format!("10.0.1.{n}"), Path::SingleHop(2)), fast(), 0).unwrap();
    }
    let (packets, _) = s.poll(0);
    let ports: BTreeSet<u16> = packets.iter().map(|p| p.source_port).collect();
    assert_eq!((packets.len(), ports.len()), (22, 22));
    assert!(ports.iter().all(|p| *p >= 49152));
    assert!(packets.iter().all(|p| p.packet.my_discriminator != 0));
    let ends: BTreeSet<u16> = packets.iter().map(|p| p.ends.path.port()).collect();
    assert_eq!(ends, BTreeSet::from([SINGLE_HOP_PORT, MULTI_HOP_PORT]));
    // Each keeps its port.
    let again: BTreeSet<u16> = s.poll(2_000_000).0.iter().map(|p| p.source_port).collect();
    assert_eq!(again, ports);
}

#[test]
fn a_peer_in_demand_mode_is_not_sent_to() {
    let mut s = Sessions::new(1);
    let e = ends("10.0.0.1", "10.0.0.2", Path::SingleHop(1));
    let n = s.open(e, fast(), 0).unwrap();
    let from = Ends { local: e.remote, remote: e.local, path: e.path };
    let mut p = first(&mut s).0;
    for (state, demand) in [(1u8, 0u8), (2, 0), (3, 0), (3, 2)] {
        // Down, Init, Up, Up with demand and the answer to our poll.
        p[1] = state << 6 | demand | if state == 3 { 0x10 } else { 0 };
        p[4..8].copy_from_slice(&9u32.to_be_bytes());
        p[8..12].copy_from_slice(&n.to_be_bytes());
        s.receive(&datagram(&from, 1, 255, &p), 0).unwrap();
    }
    assert_eq!(s.get(n).unwrap().state(), State::Up);
    s.poll(0);
    assert_eq!(s.poll(25_000).0, Vec::new(), "nothing is due for a peer that asks not to be sent to");
    // A poll is answered all the same.
    p[1] = 3 << 6 | 2 | 0x20;
    s.receive(&datagram(&from, 1, 255, &p), 26_000).unwrap();
    let (answer, _) = s.poll(26_000);
    assert!(answer.len() == 1 && answer[0].packet.final_, "{answer:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Two systems with many sessions between them, over a network that loses, repeats and mixes up; all come up, those
    /// whose path is cut go down in time, and no packet reaches another's session.
    #[test]
    fn many_sessions_come_up_and_go_down_alone(count in 2usize..12, cut in any::<u16>(), seed in any::<u32>()) {
        let mut sides = [Sessions::new(seed), Sessions::new(seed ^ 0x5555_0000)];
        let path = |n: usize| if n.is_multiple_of(3) { Path::MultiHop(1) } else { Path::SingleHop(n as u32 + 1) };
        let mut numbers = Vec::new();
        for n in 0..count {
            let (a, b) = (format!("10.{n}.0.1"), format!("10.{n}.0.2"));
            let one = sides[0].open(ends(&a, &b, path(n)), fast(), 0).unwrap();
            numbers.push((one, sides[1].open(ends(&b, &a, path(n)), fast(), 0).unwrap()));
        }
        let mut random = seed | 1;
        let mut run = |sides: &mut [Sessions; 2], from: u64, to: u64, cut: u16, loss: bool| -> Result<(), TestCaseError> {
            for now in (from..to).step_by(1000) {
                for i in 0..2 {
                    for o in sides[i].poll(now).0 {
                        let IpAddr::V4(v4) = o.ends.local else { continue };
                        let n = usize::from(v4.octets()[1]);
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let bytes = o.packet.to_bytes();
                        let interface = n as u32 + 1;
                        if cut & (1 << n) == 0 && !(loss && (random >> 24).is_multiple_of(10)) {
                            let d = datagram(&o.ends, interface, 255, &bytes);
                            let result = sides[1 - i].receive(&d, now);
                            prop_assert!(result.is_ok(), "{:?}", result);
                            if (random >> 16).is_multiple_of(7) {
                                let again = sides[1 - i].receive(&d, now);
                                prop_assert!(again.is_ok(), "{:?}", again);
                            }
                        }
                    }
                }
            }
            Ok(())
        };
        // A tenth is lost; then all arrives, and whoever was down comes up.
        run(&mut sides, 0, 8_000_000, 0, true)?;
        run(&mut sides, 8_000_000, 12_000_000, 0, false)?;
        let up = |sides: &[Sessions; 2], (a, b): (u32, u32)| {
            [sides[0].get(a).unwrap().state() == State::Up, sides[1].get(b).unwrap().state() == State::Up]
        };
        for n in &numbers {
            prop_assert_eq!(up(&sides, *n), [true, true]);
        }
        // Those over several hops may have slowed down to a sixteenth of their rate.
        run(&mut sides, 12_000_000, 12_600_000, cut, false)?;
        for (n, numbers) in numbers.iter().enumerate() {
            prop_assert_eq!(up(&sides, *numbers), [cut & (1 << n) == 0; 2], "session {}", n);
        }
    }
}
