//! In-band control: what its hidden flows let through, whatever the tables say.

use crate::rig::{NOW, ip, load, send, via};
use openflow_rs::PortNo;
use packet::{Headers, Mac, build, checksum, ipproto};
use std::net::Ipv4Addr;
use switch::{BridgeId, DeviceId, InBand, InBandRemote, Outputs, Port, PortKind, Switch};

const LOCAL: Mac = Mac([2, 0, 0, 0, 0, 0x10]);
const HOP: Mac = Mac([2, 0, 0, 0, 0, 0x20]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 0x30]);
const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 0x40]);
const HOST: u32 = 100;

fn remotes() -> Vec<InBandRemote> {
    let of = |last, port, next_hop| InBandRemote { address: Ipv4Addr::new(10, 0, 0, last), port, next_hop };
    vec![of(1, 6653, Some(HOP)), of(2, 6640, None)]
}

fn controlled(queue: Option<u32>) -> InBand {
    InBand { local: LOCAL, remotes: remotes(), queue }
}

/// A bridge with two ports and its own, whose table drops all.
fn switch() -> Switch {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    for i in 1..=2 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    s.add_port(b, Port::new(PortNo::LOCAL, "br0", PortKind::Internal(DeviceId(HOST)))).expect("port");
    load(&mut s, b, &["priority=65534 actions=drop"]);
    s
}

/// A packet, the device that it comes by, and what RFCs and the database's manual say of it: it passes, it is for the host.
#[derive(Clone, Debug)]
struct Case {
    device: u32,
    frame: Vec<u8>,
    passes: bool,
    to_host: bool,
}

/// One of a list, by a generator's next number.
fn pick<T: Copy>(seed: &mut u64, list: &[T]) -> T {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    list[(*seed >> 33) as usize % list.len()]
}

/// A TCP segment without payload.
fn segment(to: Mac, from: Mac, (src, sport): (Ipv4Addr, u16), (dst, dport): (Ipv4Addr, u16)) -> Option<Vec<u8>> {
    let [a, b, c, d] = [sport.to_be_bytes(), dport.to_be_bytes()].concat()[..] else { return None };
    let tcp = [a, b, c, d, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0];
    let mut frame = build::ip_packet(to, from, src.into(), dst.into(), ipproto::TCP, 64, &tcp)?;
    let headers = Headers::parse(&frame)?;
    checksum::set_l4(&mut frame, &headers);
    Some(frame)
}

fn case(seed: &mut u64) -> Case {
    let device = pick(seed, &[1, 2, HOST]);
    // Each address is behind one port.
    let from = match device {
        HOST => LOCAL,
        2 => HOP,
        _ => OTHER,
    };
    let to = loop {
        let to = pick(seed, &[LOCAL, HOP, NOBODY]);
        if to != from {
            break to;
        }
    };
    let addresses = [1, 2, 3].map(|n| Ipv4Addr::new(10, 0, 0, n));
    let (src, dst) = (pick(seed, &addresses), pick(seed, &addresses));
    if pick(seed, &[true, false]) {
        let request = pick(seed, &[true, false]);
        let frame = build::arp(if request { 1 } else { 2 }, to, from, src, to, dst);
        let known = |a: Ipv4Addr| remotes().iter().any(|r| r.address == a);
        let passes =
            if request { from == LOCAL || from == HOP || known(src) } else { to == LOCAL || to == HOP || known(dst) };
        return Case { device, frame, passes, to_host: false };
    }
    let ports = [6653, 6640, 67, 68, 9];
    let (sport, dport, tcp) = (pick(seed, &ports), pick(seed, &ports), pick(seed, &[true, false]));
    let (a, b) = ((src.into(), sport), (dst.into(), dport));
    let frame =
        if tcp { segment(to, from, (src, sport), (dst, dport)) } else { build::udp(to, from, a, b, 64, b"hello") };
    let is = |address: Ipv4Addr, port: u16| remotes().iter().any(|r| (r.address, r.port) == (address, port));
    let passes = if tcp { is(dst, dport) || is(src, sport) } else { device == HOST && (sport, dport) == (68, 67) };
    let to_host = !tcp && device != HOST && (sport, dport) == (67, 68);
    Case { device, frame: frame.expect("one family"), passes, to_host }
}

/// The bridge's packets, many of which are cached, fare as said: what hidden flows let through is switched as NORMAL does,
/// answers of DHCP servers reach the host, and nothing else goes anywhere. Without in-band control nothing does.
#[test]
fn hidden_flows_let_control_traffic_through() {
    let mut s = switch();
    let mut seed = 7;
    let cases: Vec<Case> = (0..4000).map(|_| case(&mut seed)).collect();
    let count = |f: &dyn Fn(&Case) -> bool| cases.iter().filter(|c| f(c)).count();
    assert!([count(&|c| c.passes), count(&|c| c.to_host), count(&|c| !c.passes && !c.to_host)].iter().all(|n| *n > 20));
    assert!(cases.iter().all(|c| send(&mut s, c.device, &c.frame).packets.is_empty()), "no in-band control");
    s.bridge_mut(BridgeId(0)).expect("bridge").set_in_band(&controlled(None), NOW);
    for c in &cases {
        let out = send(&mut s, c.device, &c.frame);
        let sent: Vec<_> = out.packets.iter().map(|(to, _)| *to).collect();
        assert_eq!(!sent.is_empty(), c.passes || c.to_host, "{c:02x?}: {sent:?}");
        if c.to_host && !c.passes {
            assert_eq!(sent, [via(HOST)], "{c:02x?}");
        }
        assert!(out.packets.iter().all(|(_, p)| *p == c.frame));
    }
    let stats = s.cache_stats();
    assert!(stats.hits > 1000, "{stats:?}");
    // Hidden flows count, and controllers do not see them.
    let b = s.bridge(BridgeId(0)).expect("bridge");
    assert_eq!((b.hidden_flows().count(), b.flows().count()), (13, 1));
    assert!(b.hidden_flows().all(|(priority, _)| (180_000..=180_008).contains(&priority)));
    s.tick(NOW, &mut Outputs::<Vec<u8>>::default());
    let packets =
        |s: &Switch| s.bridge(BridgeId(0)).expect("bridge").hidden_flows().map(|(_, r)| r.counters().0).sum::<u64>();
    assert_eq!(packets(&s), count(&|c| c.passes) as u64);
    // A queue changes the flows; without controllers they are gone.
    s.bridge_mut(BridgeId(0)).expect("bridge").set_in_band(&controlled(Some(3)), NOW);
    let passing = cases.iter().find(|c| c.passes).expect("one");
    assert!(send(&mut s, passing.device, &passing.frame).packets.iter().all(|(to, _)| to.queue() == 3));
    s.bridge_mut(BridgeId(0)).expect("bridge").set_in_band(&InBand::default(), NOW);
    assert!(cases.iter().all(|c| send(&mut s, c.device, &c.frame).packets.is_empty()));
}

/// An answer that the tables send to the host goes there once.
#[test]
fn the_host_gets_an_answer_of_dhcp_once() {
    let mut s = switch();
    load(&mut s, BridgeId(0), &["priority=65535,in_port=1 actions=output:2,LOCAL"]);
    s.bridge_mut(BridgeId(0)).expect("bridge").set_in_band(&controlled(None), NOW);
    let answer = build::udp(LOCAL, OTHER, (ip("10.0.0.3"), 67), (ip("10.0.0.4"), 68), 64, b"offer").expect("udp");
    for _ in 0..3 {
        let sent: Vec<_> = send(&mut s, 1, &answer).packets.into_iter().map(|(to, _)| to).collect();
        assert_eq!(sent, [via(2), via(HOST)]);
    }
}
