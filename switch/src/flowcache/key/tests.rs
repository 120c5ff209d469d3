//! Kinds and shapes beside the parser.

use super::shape::{ALONE_SHAPES, FAMILY, TRANSPORTS, ip_len};
use super::*;
use crate::tunnel::{Egress, Route, Underlay};
use packet::{Mac, build, ethertype, ipproto};
use proptest::prelude::*;

/// A frame of so many bytes with these values in its headers, whether they hold or not: the IP header's first byte, the
/// protocol, the ports, the word that says of what fragment it is, and lengths: of the IP payload, of UDP, of the TCP header.
fn frame(
    (v6, tags): (bool, usize),
    (first, proto): (u8, u8),
    (ports, fragment): ([u16; 2], u16),
    (payload, udp, data): (u16, u16, u8),
    size: usize,
) -> Vec<u8> {
    let mut p = vec![0; 120];
    let l3 = 14 + 4 * tags;
    let l4 = l3 + ip_len(v6);
    let mut put = |at: usize, v: u16| p[at..at + 2].copy_from_slice(&v.to_be_bytes());
    put(12, ethertype::VLAN);
    put(l3 - 2, if v6 { ethertype::IPV6 } else { ethertype::IPV4 });
    put(l3 + if v6 { 4 } else { 2 }, if v6 { payload } else { payload + 20 });
    if !v6 {
        put(l3 + 6, fragment);
    }
    let [source, port] = ports;
    for (at, v) in [(0, source), (2, port), (4, udp)] {
        put(l4 + at, v);
    }
    // An error quotes a packet with such a header.
    let at = if v6 { 6 } else { 9 };
    p[l4 + 8] = first;
    p[l4 + 8 + at] = [ipproto::UDP, ipproto::ICMP][usize::from(port == 53)];
    p[l3] = first;
    p[l3 + if v6 { 6 } else { 9 }] = proto;
    if proto == ipproto::TCP {
        p[l4 + 12] = data << 4;
    }
    if let Some(h) = Headers::parse(&p).filter(|h| h.proto == proto && matches!(proto, ipproto::ICMP | ipproto::ICMPV6))
    {
        packet::checksum::set_l4(&mut p, &h);
        if !v6 {
            packet::checksum::set_ipv4(&mut p, l3);
        }
    }
    p.truncate(size);
    p
}

const ESP: u8 = 50;

/// Protocols that have kinds of frames of their own, that share one, and that have none.
fn protocol() -> impl Strategy<Value = u8> {
    prop_oneof![
        2 => Just(ipproto::TCP),
        3 => Just(ipproto::UDP),
        2 => prop::sample::select(vec![ipproto::ICMP, ipproto::ICMPV6]),
        1 => Just(ipproto::SCTP),
        2 => prop::sample::select(vec![0, 2, 43, 44, ipproto::GRE, 50, 51, 59, 60, 200]),
    ]
}

/// Source ports, some of which are types of ICMP.
fn source() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0x0800, 0x0303, 0x8000, 0x8600, 0x8700, 0x8800, 0x8801])
}

proptest! {
    /// Frames of a kind are found without a look at their EtherTypes, and no others.
    #[test]
    fn a_known_kind_is_as_one_that_is_found_out(
        v6: bool,
        tags in 0..2usize,
        (proto, source) in (protocol(), source()),
        odd in prop::bool::weighted(0.1),
        fragment in prop_oneof![4 => Just(0u16), 1 => Just(0x4000), 1 => Just(0x2000), 1 => Just(5)],
        port in prop_oneof![Just(53u16), Just(packet::tunnel::GENEVE_PORT), Just(packet::tunnel::VXLAN_PORT)],
        (payload, udp, data) in (4..66u16, 4..48u16, 3..9u8),
        size in 40..120usize,
        exact_flags: bool,
    ) {
        let first = match (v6, odd) {
            (true, true) => 0x45,
            (true, false) => 0x61,
            (false, true) => 0x46,
            (false, false) => 0x45,
        };
        let p = frame((v6, tags), (first, proto), ([source, port], fragment), (payload, udp, data), size);
        let own = Own::default();
        let own_family = |k: usize| (k % FAMILY) / TRANSPORTS.len() == tags && (k >= FAMILY) == v6;
        for kind in (0..SHAPES).filter(|k| k % FAMILY >= ALONE_SHAPES || own_family(*k)) {
            let end = |c: Option<Class>| c.filter(|c| c.kind == kind).map(|c| c.end);
            prop_assert_eq!(
                end(classify_as(kind, &p, &own, exact_flags)),
                end(classify(&p, &own, exact_flags)),
                "kind {}", kind
            );
        }
    }

    /// A frame that has a key of its bytes is one whose fields say so: a transport header where it is looked for, of the
    /// protocol that its kind names, with lengths that hold, or that do not; or none of which anything is read.
    #[test]
    fn a_kind_is_what_the_headers_say(
        v6: bool,
        tags in 0..2usize,
        (proto, source, port) in (protocol(), source(), 52..54u16),
        (payload, udp, data) in (4..66u16, 4..48u16, 3..9u8),
        size in 40..120usize,
    ) {
        let first = if v6 { 0x60 } else { 0x45 };
        let p = frame((v6, tags), (first, proto), ([source, port], 0), (payload, udp, data), size);
        let class = classify(&p, &Own::default(), false);
        let said = Headers::parse(&p).filter(|h| h.ip_ok && (!v6 || !matches!(proto, 0 | 43 | 44 | 51 | 60))).and_then(|h| {
            let holds = crate::extract::length_holds(&p, &h);
            let discovers = matches!(source >> 8, 135 | 136);
            let (read, odd) = match proto {
                ipproto::TCP => (holds, false),
                ipproto::UDP => (true, !holds),
                ipproto::ICMP => (!v6, false),
                ipproto::ICMPV6 => (v6 && !discovers, false),
                ipproto::SCTP => (true, false),
                _ => return Some((Layout { proto: 0, ..Layout::of(&h)? }, h.l3_end, false)),
            };
            (read && h.l4.is_some()).then_some((Layout::of(&h)?, h.l3_end, odd))
        });
        let odd = |kind: usize| TRANSPORTS[kind % FAMILY % TRANSPORTS.len()] == super::shape::Transport::OddUdp;
        let found = class.and_then(|c| Some((ALL.get(c.kind)?.outer, c.end, odd(c.kind))));
        prop_assert_eq!(found, said);
        // The checksum is right if the packet is whole; types 3 are errors of both, and so is 1, which is none of these.
        let n = if v6 { 44 } else { 24 };
        let error = said.is_some() && source >> 8 == 3 && port != 53 && payload >= 8 + n
            && (if v6 { proto == ipproto::ICMPV6 } else { proto == ipproto::ICMP });
        prop_assert_eq!(class.is_some_and(|c| ALL[c.kind].quotes), error);
    }
}

/// Headers in a tunnel over UDP are where the shape of their kind says, and no two forms share a kind.
#[test]
fn shapes_in_tunnels_are_where_the_headers_are() {
    let (here, there) = (|v6| if v6 { "fd00::1" } else { "10.0.0.1" }, |v6| if v6 { "fd00::2" } else { "10.0.0.2" });
    let address = |s: &str| -> std::net::IpAddr { s.parse().expect("address") };
    let route = |v6| Route {
        prefix: address(here(v6)),
        len: 64,
        gateway: None,
        source: address(here(v6)),
        source_mac: Mac::ZERO,
        egress: Egress::Port("br-ex".into()),
        hop_source: None,
        table: Route::MAIN,
        own: false,
        mark: 0,
    };
    let mut underlay = Underlay::default();
    underlay.set_routes([false, true].map(route).into());
    let tagged = |mut p: Vec<u8>, tag: bool| {
        p.splice(12..12, [0x81, 0, 0, 7].into_iter().take(if tag { 4 } else { 0 }));
        p
    };
    let mut kinds = std::collections::BTreeSet::new();
    let protocols = [ipproto::UDP, ipproto::TCP, ipproto::ICMP, ipproto::SCTP, ESP];
    let all = protocols.map(|p| (p, false)).into_iter().chain([(ipproto::ICMP, true)]);
    for (n, (proto, error)) in (0..32).flat_map(|n| all.clone().map(move |p| (n, p))) {
        let [over_v6, outer_tag, option, v6, tag] = [0, 1, 2, 3, 4].map(|bit| n >> bit & 1 != 0);
        let proto = if v6 && proto == ipproto::ICMP { ipproto::ICMPV6 } else { proto };
        let ends = (address(there(v6)), address(here(v6)));
        let header = [&[0, 80, 0, 53][..], &[0; 8], &[0x50, 0x10, 0, 0, 0, 0, 0, 0]].concat();
        let inner = if proto == ipproto::UDP {
            build::udp(Mac::ZERO, Mac::ZERO, (ends.0, 80), (ends.1, 53), 64, &[7; 9])
        } else if error {
            let about = build::udp(Mac::ZERO, Mac::ZERO, (ends.0, 80), (ends.1, 53), 64, &[7; 9]).expect("quoted");
            build::icmp_error(&about, Mac::ZERO, ends.1, if v6 { 1 } else { 3 }, 1, 0)
        } else {
            build::ip_packet(Mac::ZERO, Mac::ZERO, ends.0, ends.1, proto, 64, &header)
        };
        let inner = tagged(inner.expect("inner"), tag);
        let options = [(0x102, 0x80, vec![0, 1, 0, 2])];
        let mut body = Vec::new();
        let used = if option { &options[..] } else { &[] };
        packet::tunnel::Geneve::put(&mut body, packet::Vni::of_low_bits(5), false, used);
        body.extend_from_slice(&inner);
        let ends = ((address(there(over_v6)), 7), (address(here(over_v6)), packet::tunnel::GENEVE_PORT));
        let p = tagged(build::udp(Mac::ZERO, Mac::ZERO, ends.0, ends.1, 64, &body).expect("outer"), outer_tag);
        let class = classify(&p, &underlay.local, false).expect("a kind");
        let shape = &ALL[class.kind];
        let layout = |p: &[u8]| Layout::of(&Headers::parse(p).expect("headers")).expect("layout");
        let within = Layout { proto: if proto == ESP { 0 } else { proto }, ..layout(&inner) };
        assert_eq!((shape.outer, shape.inner), (layout(&p), within), "{proto}, {n:#b}");
        assert_eq!((shape.inner_at, class.end), (p.len() - inner.len(), p.len()), "{n:#b}");
        assert!(kinds.insert(class.kind), "{n:#b}");
        assert_eq!(shape.quotes, error && !(v6 && over_v6), "{n:#b}");
        if shape.quotes {
            // The port that the quoted packet goes to is the last thing in its key.
            let masks: Vec<u8> = shape.masks.as_flattened()[1..].iter().flat_map(|w| w.to_ne_bytes()).collect();
            let last = masks.iter().rposition(|b| *b != 0);
            assert_eq!(last, Some(shape.inner_at + usize::from(layout(&inner).l4) + 8 + ip_len(v6) + 3), "{n:#b}");
        }
    }
}
