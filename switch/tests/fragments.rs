//! Fragments through connection tracking: whole datagrams are tracked, fragments go on by themselves.

#[path = "cache/cut.rs"]
mod cut;

use cut::cut;
use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo};
use packet::{Headers, build, checksum};
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;
use switch::{DeviceId, DropReason, Outputs, Port, PortKind, Switch};

const A: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 1]);
const B: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 2]);
const FLOWS: &[&str] = &[
    "table=0,in_port=1,ip actions=ct(commit,table=1,zone=5,nat(src=172.16.0.1:7000-7999))",
    "table=0,in_port=1,ipv6 actions=ct(commit,table=1,zone=5)",
    "table=1,ct_state=+trk-inv actions=output:2",
    "table=0,in_port=2,ip actions=ct(table=2,zone=5,nat)",
    "table=0,in_port=2,ipv6 actions=ct(table=2,zone=5,nat)",
    "table=2,ct_state=+est+rpl actions=output:1",
];

/// A datagram passes zone 5 twice each way, as one does that a gateway sends back into its own router.
const HAIRPIN: &[&str] = &[
    "table=0,in_port=1,ip actions=ct(commit,table=1,zone=5,nat(src=172.16.0.1:7000-7999))",
    "table=0,in_port=1,ipv6 actions=ct(commit,table=1,zone=5,nat(src=fd01::1))",
    "table=1,ip actions=ct(table=2,zone=5,nat)",
    "table=1,ipv6 actions=ct(table=2,zone=5,nat)",
    "table=2,ip actions=ct(commit,table=3,zone=6,nat(dst=10.0.0.3))",
    "table=2,ipv6 actions=ct(commit,table=3,zone=6,nat(dst=fd00::3))",
    "table=3,ct_state=+trk-inv actions=output:2",
    "table=0,in_port=2,ip actions=ct(table=4,zone=6,nat)",
    "table=0,in_port=2,ipv6 actions=ct(table=4,zone=6,nat)",
    "table=4,ip actions=ct(table=5,zone=5,nat)",
    "table=4,ipv6 actions=ct(table=5,zone=5,nat)",
    "table=5,ip actions=ct(table=6,zone=5,nat)",
    "table=5,ipv6 actions=ct(table=6,zone=5,nat)",
    "table=6,ct_state=+est+rpl actions=output:1",
];

fn switch(flows: &[&str]) -> Switch {
    let mut s = Switch::new(100);
    let b = s.add_bridge("br0", 1);
    for n in 1..=2 {
        s.add_port(b, Port::new(PortNo(n), &format!("p{n}"), PortKind::Device(DeviceId(n.into())))).expect("port");
    }
    for f in flows {
        s.apply(b, &Message::FlowMod(parse_flow(f).expect("flow")), Duration::ZERO).expect("applies");
    }
    s
}

/// A datagram to the server, or the answer to one that the server got.
fn datagram(v6: bool, got: Option<&[u8]>, n: usize) -> Vec<u8> {
    let (from, to): ((IpAddr, u16), (IpAddr, u16)) = match got {
        Some(p) => {
            let h = Headers::parse(p).expect("headers");
            let ((from, to), (sport, dport)) = (h.addresses(p).expect("addresses"), h.ports(p).expect("ports"));
            let address = |a: u128| if v6 { IpAddr::V6(a.into()) } else { IpAddr::V4((a as u32).into()) };
            ((address(to), dport), (address(from), sport))
        }
        None if v6 => (("fd00::1".parse().expect("address"), 5000), ("fd00::2".parse().expect("address"), 53)),
        None => (([10, 0, 0, 1].into(), 5000), ([10, 0, 0, 2].into(), 53)),
    };
    let load: Vec<u8> = (0..n).map(|i| i as u8).collect();
    build::udp(B, A, from, to, 64, &load).expect("udp")
}

/// The payloads of fragments, in order of their offsets.
fn payload(list: &[Vec<u8>], v6: bool) -> Vec<u8> {
    let mut parts: Vec<(u16, &[u8])> = list
        .iter()
        .map(|f| match v6 {
            false => (u16::from_be_bytes([f[20] & 0x1f, f[21]]) * 8, &f[34..]),
            true => (u16::from_be_bytes([f[56], f[57]]) & 0xfff8, &f[62..]),
        })
        .collect();
    parts.sort();
    parts.iter().flat_map(|(_, p)| p.iter().copied()).collect()
}

fn send(s: &mut Switch, device: u32, p: &[u8], now: u64) -> Vec<Vec<u8>> {
    let mut out = Outputs::default();
    s.process(&mut vec![(DeviceId(device), p.to_vec())], Duration::from_secs(now), &mut out);
    out.packets.into_iter().map(|(_, p)| p).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// In whatever order they come, all fragments leave once the last is there; together they are what one packet
    /// would have become.
    #[test]
    fn fragments_are_as_the_whole(v6: bool, hairpin: bool, n in 2600usize..9000, seed: u64, size in 155usize..180) {
        let size = size * 8 + 80;
        let flows = if hairpin { HAIRPIN } else { FLOWS };
        let mut whole = switch(flows);
        let mut parts = switch(flows);
        let mut last: Option<Vec<u8>> = None;
        for device in [1, 2, 1, 2] {
            let p = datagram(v6, last.as_deref().filter(|_| device == 2), n);
            let expected = send(&mut whole, device, &p, 1);
            last = expected.first().cloned();
            let mut list = cut(&p, size, 9);
            let mut x = seed | 1;
            for i in (1..list.len()).rev() {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                list.swap(i, (x >> 33) as usize % (i + 1));
            }
            let mut got = Vec::new();
            for (i, f) in list.iter().enumerate() {
                let out = send(&mut parts, device, f, 1);
                prop_assert!(out.is_empty() || i + 1 == list.len());
                got.extend(out);
            }
            prop_assert_eq!((expected.len(), got.len()), (1, list.len()));
            let head = 14 + if v6 { 40 } else { 20 };
            prop_assert_eq!(payload(&got, v6), &expected[0][head..]);
            let addresses = if v6 { 22..54 } else { 26..34 };
            prop_assert!(got.iter().all(|f| f[addresses.clone()] == expected[0][addresses.clone()]), "addresses");
            prop_assert!(v6 || got.iter().all(|f| checksum::of(&f[14..34]) == 0));
        }
        prop_assert_eq!(whole.conntrack.lock().dump(None, None), parts.conntrack.lock().dump(None, None));
        prop_assert!(parts.fragments.is_empty());
    }
}

/// Behind a `ct` all fragments are of the datagram's protocol, as ACLs want it: IPv6 names it in the first one alone. So it
/// is behind a second zone, for the packets that walk and those that do not.
#[test]
fn all_fragments_are_of_the_datagrams_protocol() {
    let flows = [
        "table=0,in_port=1,ip actions=ct(commit,table=1,zone=5)",
        "table=0,in_port=1,ipv6 actions=ct(commit,table=1,zone=5)",
        "table=1,priority=9,udp actions=ct(commit,table=2,zone=6)",
        "table=1,priority=9,udp6 actions=ct(commit,table=2,zone=6)",
        "table=1,priority=1 actions=drop",
        "table=2,priority=9,udp actions=set_field:02:00:00:00:00:09->eth_dst,output:2",
        "table=2,priority=9,udp6 actions=set_field:02:00:00:00:00:09->eth_dst,output:2",
        "table=2,priority=1 actions=drop",
    ];
    for v6 in [false, true] {
        let mut s = switch(&flows);
        let p = datagram(v6, None, 4000);
        for n in 0..5 {
            let misses = s.cache_stats().misses;
            let list = cut(&p, 1400, n);
            let got: Vec<Vec<u8>> = list.iter().flat_map(|f| send(&mut s, 1, f, 1)).collect();
            assert_eq!(got.len(), list.len(), "IPv6: {v6}, datagram {n}");
            assert_eq!(payload(&got, v6), p[14 + if v6 { 40 } else { 20 }..]);
            assert!(n < 3 || s.cache_stats().misses == misses, "IPv6: {v6}, datagram {n} walks");
        }
    }
}

#[test]
fn overlaps_latecomers_and_floods_go() {
    let mut s = switch(FLOWS);
    let list = cut(&datagram(false, None, 4000), 1400, 1);
    assert!(send(&mut s, 1, &list[0], 1).is_empty());
    let mut shifted = list[1].clone();
    shifted[20..22].copy_from_slice(&((1400 / 8 - 1) | 0x2000u16).to_be_bytes());
    checksum::set_ipv4(&mut shifted, 14);
    assert!(send(&mut s, 1, &shifted, 1).is_empty());
    assert_eq!((s.drops.get(DropReason::FragmentOverlap), s.fragments.len()), (2, 0));
    // What is not complete in time goes; the same fragment once more is invalid, and harms nobody.
    send(&mut s, 1, &list[0], 2);
    assert!(send(&mut s, 1, &list[0], 2).is_empty());
    s.tick(Duration::from_secs(16), &mut Outputs::<Vec<u8>>::default());
    assert_eq!(s.fragments.len(), 1);
    s.tick(Duration::from_secs(17), &mut Outputs::<Vec<u8>>::default());
    assert_eq!((s.drops.get(DropReason::FragmentTimeout), s.fragments.len()), (1, 0));
    // However many there are, memory is bounded.
    for id in 0..3000 {
        send(&mut s, 1, &cut(&datagram(false, None, 4000), 1400, id)[0], 20);
    }
    assert_eq!((s.drops.get(DropReason::FragmentsFull), s.fragments.len()), (2000, 1000));
    // Small fragments that are not the last are invalid.
    let mut s = switch(FLOWS);
    for f in cut(&datagram(false, None, 100), 48, 1) {
        assert!(send(&mut s, 1, &f, 1).is_empty());
    }
    assert!(s.conntrack.lock().is_empty());
}
