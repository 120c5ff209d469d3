//! Headers that actions write, push and pop: what the packet is afterwards, and that its checksums are right.

use crate::rig::{NOW, good, load, one, send, udp, via};
use openflow_rs::text::parse_group;
use openflow_rs::*;
use packet::{Headers, checksum};
use switch::BridgeId;

/// The checksum of ICMPv6 covers addresses in IPv6 alone: within IPv4, ICMPv6 is payload, as in Open vSwitch.
#[test]
fn icmpv6_in_ipv4_is_payload() {
    let mut s = one(&["ip actions=mod_nw_dst:10.9.9.9,output:2"]);
    let mut p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    p[23] = 58;
    packet::checksum::set_ipv4(&mut p, 14);
    let out = send(&mut s, 1, &p).packets;
    let [(to, q)] = out.as_slice() else { panic!("{out:?}") };
    assert_eq!(*to, via(2));
    assert_eq!((&q[30..34], &q[34..]), (&[10, 9, 9, 9][..], &p[34..]));
}

/// With `vlan-limit=1` only the outer tag is parsed: whatever is behind it stays as it is when that tag is changed.
/// The second packet is served from the cache.
#[test]
fn tags_beyond_the_limit_are_payload() {
    let mut s = one(&[
        "in_port=1,dl_vlan=6,dl_type=0x8100 actions=pop_vlan,output:2,push_vlan:0x8100,set_field:4103->vlan_vid,output:3",
        "in_port=1,priority=1,ip actions=dec_ttl,output:2",
    ]);
    let mut p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    p.splice(12..12, [0x81, 0, 0, 6, 0x81, 0, 0, 5]);
    let mut lower = p.clone();
    lower[14 + 8 + 8] -= 1;
    packet::checksum::set_ipv4(&mut lower, 22);
    assert_eq!(send(&mut s, 1, &p).packets, [(via(2), lower)], "two tags count: it is IP");
    s.underlay.set_tags(1);
    let (mut popped, mut other) = (p.clone(), p.clone());
    popped.drain(12..16);
    other[15] = 7;
    for _ in 0..3 {
        assert_eq!(send(&mut s, 1, &p).packets, [(via(2), popped.clone()), (via(3), other.clone())]);
    }
    assert_eq!(s.cache_stats().hits, 2);
}

#[test]
fn rewrites_keep_checksums() {
    let mut s = one(&[
        "in_port=1,udp actions=set_field:10.9.9.9->ip_src,set_field:02:00:00:00:00:99->eth_src,set_field:4000->udp_src,dec_ttl,push_vlan:0x8100,set_field:4101->vlan_vid,output:2,pop_vlan,clone(set_field:1.1.1.1->ip_dst,output:3),output:3",
    ]);
    let out = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2)).packets;
    assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [2, 3, 3].map(via));
    out.iter().for_each(|o| good(&o.1));
    assert_eq!(out[0].1[12..16], [0x81, 0, 0, 5]);
    assert_eq!(out[2].1[26..34], [10, 9, 9, 9, 10, 0, 0, 2], "clone's change is gone");
    assert_eq!(out[1].1[30..34], [1, 1, 1, 1]);
    assert_eq!((out[2].1[22], &out[2].1[34..36]), (63, &4000u16.to_be_bytes()[..]));
    assert_eq!(s.bridge(BridgeId(0)).expect("bridge").flows().next().expect("flow").counters().0, 1);
}

/// What is written to some bits of an address leaves the others as each packet has them, cached or not.
#[test]
fn written_bits_leave_the_others() {
    let mut s =
        one(&["in_port=1,udp actions=load:0xb542->NXM_OF_ETH_SRC[28..43],load:7->NXM_OF_IP_SRC[8..15],output:2"]);
    for n in [1, 2, 3, 2, 1] {
        let mut p = udp(&format!("10.0.0.{n}"), 5, "10.0.9.9", 6);
        p[11] = n;
        let out = send(&mut s, 1, &p).packets;
        let [(to, q)] = out.as_slice() else { panic!("{out:?}") };
        assert_eq!(*to, via(2));
        assert_eq!((&q[6..12], &q[26..30]), (&[0x0b, 0x54, 0x20, 0, 0, n][..], &[10, 0, 7, n][..]), "packet {n}");
        good(q);
    }
}

/// The label stack entries of an untagged frame, and what is behind them.
fn labels(p: &[u8]) -> (Vec<u32>, Vec<u8>) {
    if p[12..14] != [0x88, 0x47] {
        return (Vec::new(), p[14..].to_vec());
    }
    let all: Vec<u32> = p[14..].chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).collect();
    let n = 1 + all.iter().position(|e| e & 0x100 != 0).expect("the bottom of the stack");
    (all[..n].to_vec(), p[14 + 4 * n..].to_vec())
}

fn entry(label: u32, tc: u32, bottom: bool, ttl: u32) -> u32 {
    label << 12 | tc << 9 | u32::from(bottom) << 8 | ttl
}

#[test]
fn labels_are_pushed_set_and_popped() {
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let ip_packet = p[14..].to_vec();
    let cases: [(&str, Vec<u32>); 5] = [
        ("push_mpls:0x8847,output:2", vec![entry(0, 0, true, 64)]),
        ("push_mpls:0x8847,set_mpls_label(10),set_mpls_tc(3),set_mpls_ttl(9),output:2", vec![entry(10, 3, true, 9)]),
        (
            "push_mpls:0x8847,set_field:10->mpls_label,push_mpls:0x8847,set_field:11->mpls_label,dec_mpls_ttl,output:2",
            vec![entry(11, 0, false, 63), entry(10, 0, true, 64)],
        ),
        ("push_mpls:0x8847,set_mpls_label(10),push_mpls:0x8847,pop_mpls:0x8847,output:2", vec![entry(10, 0, true, 64)]),
        ("push_mpls:0x8847,pop_mpls:0x0800,output:2", vec![]),
    ];
    for (actions, stack) in cases {
        let mut s = one(&[&format!("table=0,in_port=1,ip actions={actions}")]);
        let out = send(&mut s, 1, &p).packets;
        assert_eq!(out.len(), 1, "{actions}");
        assert_eq!(labels(&out[0].1), (stack, ip_packet.clone()), "{actions}");
    }
}

/// A packet whose label was popped is matched by its IP header again. A label that a clone or a bucket pushes is on
/// its copy alone.
#[test]
fn labels_are_matched_and_restored() {
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let mut s = one(&[
        "table=0,priority=5,in_port=1,ip actions=push_mpls:0x8847,set_mpls_label(7),resubmit(,1)",
        "table=1,mpls,mpls_label=7,mpls_bos=1,mpls_tc=0,mpls_ttl=64 actions=pop_mpls:0x0800,resubmit(,2)",
        "table=2,udp,nw_dst=10.0.0.2,tp_dst=2 actions=mod_nw_dst:10.0.0.9,output:2",
        "table=0,in_port=2 actions=clone(push_mpls:0x8847,output:3),output:1",
    ]);
    let group = "group_id=1,type=all,bucket=bucket_id:0,actions=push_mpls:0x8847,output:2";
    s.apply(
        BridgeId(0),
        &Message::GroupMod(GroupMod::new(GroupModCommand::Add, parse_group(group).expect("group"))),
        NOW,
    )
    .expect("group");
    load(&mut s, BridgeId(0), &["table=0,in_port=3 actions=group:1,output:1"]);
    let out = send(&mut s, 1, &p).packets;
    assert_eq!(out.len(), 1);
    let h = Headers::parse(&out[0].1).expect("headers");
    assert!(h.is_ipv4() && checksum::l4_ok(&out[0].1, &h) && out[0].1[30..34] == [10, 0, 0, 9], "{:02x?}", out[0].1);
    for (port, first) in [(2, 3), (3, 2)] {
        let out = send(&mut s, port, &p).packets;
        let told: Vec<_> = out.iter().map(|(to, q)| (*to, labels(q).0.len())).collect();
        assert_eq!(told, [(via(first), 1), (via(1), 0)], "from {port}");
        assert_eq!(out[1].1, p, "as it came");
    }
}

/// Three labels are parsed at most: pushing a fourth drops the packet, and so does popping from a longer stack.
#[test]
fn more_labels_than_are_parsed_drop_the_packet() {
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let push = "push_mpls:0x8847,";
    let mut s = one(&[
        &format!("table=0,in_port=1 actions=output:3,{push}{push}{push}{push}output:2"),
        "table=0,in_port=2,mpls actions=pop_mpls:0x8847,output:1",
    ]);
    assert!(send(&mut s, 1, &p).packets.is_empty());
    let mut long = p[..12].to_vec();
    long.extend([0x88, 0x47]);
    (0..4).for_each(|i| long.extend(entry(i, 0, i == 3, 64).to_be_bytes()));
    long.extend_from_slice(&p[14..]);
    assert!(send(&mut s, 2, &long).packets.is_empty());
    assert_eq!(s.drops.get(switch::DropReason::TooManyLabels), 2);
}
