//! Kinds and shapes beside the parser.

use super::shape::{ALONE_SHAPES, FAMILY, ip_len};
use super::*;
use crate::tunnel::{Egress, Route, Underlay};
use packet::{Mac, build, ethertype, ipproto};
use proptest::prelude::*;

/// A frame of so many bytes with these values in its headers, whether they hold or not: the IP header's first byte, the
/// protocol, the destination port, the word that says of what fragment it is, and lengths: of the IP payload, of UDP, of the
/// TCP header.
fn frame(
    (v6, tags): (bool, usize),
    (first, proto): (u8, u8),
    (port, fragment): (u16, u16),
    (payload, udp, data): (u16, u16, u8),
    size: usize,
) -> Vec<u8> {
    let mut p = vec![0; 110];
    let l3 = 14 + 4 * tags;
    let l4 = l3 + ip_len(v6);
    let mut put = |at: usize, v: u16| p[at..at + 2].copy_from_slice(&v.to_be_bytes());
    put(12, ethertype::VLAN);
    put(l3 - 2, if v6 { ethertype::IPV6 } else { ethertype::IPV4 });
    put(l3 + if v6 { 4 } else { 2 }, if v6 { payload } else { payload + 20 });
    if !v6 {
        put(l3 + 6, fragment);
    }
    for (at, v) in [(2, port), (4, udp)] {
        put(l4 + at, v);
    }
    p[l3] = first;
    p[l3 + if v6 { 6 } else { 9 }] = proto;
    if proto == ipproto::TCP {
        p[l4 + 12] = data << 4;
    }
    p.truncate(size);
    p
}

proptest! {
    /// Frames of a kind are found without a look at their EtherTypes, and no others.
    #[test]
    fn a_known_kind_is_as_one_that_is_found_out(
        v6: bool,
        tags in 0..2usize,
        proto in prop_oneof![Just(6u8), Just(17), Just(1)],
        odd in prop::bool::weighted(0.1),
        fragment in prop_oneof![4 => Just(0u16), 1 => Just(0x4000), 1 => Just(0x2000), 1 => Just(5)],
        port in prop_oneof![Just(53u16), Just(packet::tunnel::GENEVE_PORT), Just(packet::tunnel::VXLAN_PORT)],
        (payload, udp, data) in (4..44u16, 4..48u16, 3..9u8),
        size in 40..110usize,
        exact_flags: bool,
    ) {
        let first = match (v6, odd) {
            (true, true) => 0x45,
            (true, false) => 0x61,
            (false, true) => 0x46,
            (false, false) => 0x45,
        };
        let p = frame((v6, tags), (first, proto), (port, fragment), (payload, udp, data), size);
        let own = Own::default();
        let own_family = |k: usize| (k % FAMILY) / 3 == tags && (k >= FAMILY) == v6;
        for kind in (0..SHAPES).filter(|k| k % FAMILY >= ALONE_SHAPES || own_family(*k)) {
            let end = |c: Option<Class>| c.filter(|c| c.kind == kind).map(|c| c.end);
            prop_assert_eq!(
                end(classify_as(kind, &p, &own, exact_flags)),
                end(classify(&p, &own, exact_flags)),
                "kind {}", kind
            );
        }
    }

    /// A frame that has a key of its bytes is one whose fields say so: ports where they are looked for, of the protocol
    /// that its kind names, with lengths that hold.
    #[test]
    fn a_kind_is_what_the_headers_say(
        v6: bool,
        tags in 0..2usize,
        proto in prop_oneof![Just(6u8), Just(17), Just(0), Just(44)],
        (payload, udp, data) in (4..44u16, 4..48u16, 3..9u8),
        size in 40..110usize,
    ) {
        let first = if v6 { 0x60 } else { 0x45 };
        let p = frame((v6, tags), (first, proto), (53, 0), (payload, udp, data), size);
        let class = classify(&p, &Own::default(), false);
        let h = Headers::parse(&p).filter(|h| h.ip_ok && crate::extract::length_holds(&p, h));
        let h = h.filter(|h| h.l4.is_some() && matches!(h.proto, ipproto::TCP | ipproto::UDP));
        let said = h.and_then(|h| Some((Layout::of(&h)?, h.l3_end)));
        let found = class.and_then(|c| Some((ALL.get(c.kind)?.outer, c.end)));
        prop_assert_eq!(found, said);
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
    for n in 0..64 {
        let [over_v6, outer_tag, option, v6, tag, tcp] = [0, 1, 2, 3, 4, 5].map(|bit| n >> bit & 1 != 0);
        let ends = (address(there(v6)), address(here(v6)));
        let header = [&[0, 80, 0, 53][..], &[0; 8], &[0x50, 0x10, 0, 0, 0, 0, 0, 0]].concat();
        let inner = if tcp {
            build::ip_packet(Mac::ZERO, Mac::ZERO, ends.0, ends.1, ipproto::TCP, 64, &header)
        } else {
            build::udp(Mac::ZERO, Mac::ZERO, (ends.0, 80), (ends.1, 53), 64, &[7; 9])
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
        assert_eq!((shape.outer, shape.inner), (layout(&p), layout(&inner)), "{n:#b}");
        assert_eq!((shape.inner_at, class.end), (p.len() - inner.len(), p.len()), "{n:#b}");
        assert!(kinds.insert(class.kind), "{n:#b}");
    }
}
