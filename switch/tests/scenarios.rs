//! Packets through small networks: what comes out, byte for byte.

use openflow_rs::text::{parse_flow, parse_group, parse_meter};
use openflow_rs::*;
use packet::{Headers, build, checksum};
use std::net::IpAddr;
use std::time::Duration;
use switch::{DropReason, Egress, Event, Outputs, Port, PortKind, Route, Switch, VlanMode};

const A: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 0xa]);
const B: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 0xb]);
const NOW: Duration = Duration::from_secs(10);

fn ip(s: &str) -> IpAddr {
    s.parse().expect("address")
}

fn udp(src: &str, sport: u16, dst: &str, dport: u16) -> Vec<u8> {
    build::udp(B, A, (ip(src), sport), (ip(dst), dport), 64, b"hello").expect("udp")
}

/// A bridge with devices 1 to 3 as ports 1 to 3.
fn one(flows: &[&str]) -> Switch {
    of_size(100, flows)
}

/// The same, with room for so many connections.
fn of_size(connections: usize, flows: &[&str]) -> Switch {
    let mut s = Switch::new(connections);
    let b = s.add_bridge("br0", 1);
    for i in 1..=3 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(i.into()))).expect("port");
    }
    load(&mut s, b, flows);
    s
}

fn load(s: &mut Switch, b: usize, flows: &[&str]) {
    let list: Vec<Message> = flows.iter().map(|f| Message::FlowMod(parse_flow(f).expect("flow"))).collect();
    s.apply_bundle(b, &list, NOW).expect("bundle");
}

fn send(s: &mut Switch, dev: u32, p: &[u8]) -> Outputs<Vec<u8>> {
    let mut out = Outputs::default();
    s.process(&mut vec![(dev, p.to_vec())], NOW, &mut out);
    out
}

fn good(p: &[u8]) {
    let h = Headers::parse(p).expect("headers");
    assert!(checksum::l4_ok(p, &h), "transport checksum");
    if h.is_ipv4() {
        assert_eq!(checksum::of(&p[h.l3..h.l3 + 20]), 0, "header checksum");
    }
}

#[test]
fn normal_learns_and_respects_vlans() {
    let mut s = one(&["actions=NORMAL"]);
    s.remove_port(0, PortNo(3));
    let mut p3 = Port::new(PortNo(3), "p3", PortKind::Device(3));
    p3.vlan = VlanMode::Access(7);
    s.add_port(0, p3).expect("port");
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    assert_eq!(send(&mut s, 1, &p).packets, [(2, p.clone())], "VLAN 0 floods to the trunk only");
    let tagged = send(&mut s, 3, &p).packets;
    assert_eq!(tagged.len(), 2, "VLAN 7 floods to both trunks");
    assert_eq!(tagged[0].1[12..16], [0x81, 0, 0, 7]);
    let back = send(&mut s, 2, &tagged[0].1).packets;
    assert!(back.iter().any(|(d, q)| *d == 3 && *q == p), "untagged again on the access port");
}

/// A packet of UDP to a group, and an IGMPv2 message about it.
fn multicast(kind: u8) -> (Vec<u8>, Vec<u8>) {
    let (group, to) = (ip("239.0.0.1"), packet::Mac([1, 0, 0x5e, 0, 0, 1]));
    let data = build::udp(to, A, (ip("10.0.0.9"), 7), (group, 8), 9, b"hello").expect("udp");
    let mut said = vec![kind, 0, 0, 0, 239, 0, 0, 1];
    let sum = checksum::of(&said).to_be_bytes();
    said[2..4].copy_from_slice(&sum);
    let igmp = build::ip_packet(to, B, ip("10.0.0.1"), group, packet::ipproto::IGMP, 1, &said).expect("igmp");
    (data, igmp)
}

/// Packets to groups go where they are wanted, also those that the flow cache serves.
#[test]
fn groups_get_what_they_asked_for() {
    let settings = |flood_unregistered| {
        Some(switch::SnoopingSettings { idle: Duration::from_secs(300), limit: 10, flood_unregistered })
    };
    let mut s = one(&["actions=NORMAL"]);
    let to = |s: &mut Switch, p: &[u8]| {
        // Twice: the second one is cached.
        let twice = [(); 2].map(|()| {
            let mut devices: Vec<u32> = send(s, 3, p).packets.into_iter().map(|(d, _)| d).collect();
            devices.sort_unstable();
            devices
        });
        assert_eq!(twice[0], twice[1]);
        twice[0].clone()
    };
    let (data, join) = multicast(0x16);
    let (_, leave) = multicast(0x17);
    let (_, query) = multicast(0x11);
    send(&mut s, 1, &join);
    assert_eq!(to(&mut s, &data), [1, 2], "the bridge does not snoop");
    s.with_tables(0, |b| b.set_snooping(settings(true), &[], &[]));
    assert_eq!(to(&mut s, &data), [1, 2], "nobody asked for it");
    assert!(send(&mut s, 1, &join).packets.is_empty(), "there is no router");
    assert_eq!(to(&mut s, &data), [1]);
    assert_eq!(send(&mut s, 2, &query).packets.len(), 2, "a query goes to all");
    assert_eq!(to(&mut s, &data), [1, 2], "routers get all groups");
    assert_eq!(send(&mut s, 1, &join).packets.len(), 1, "a report goes to the router");
    s.with_tables(0, |b| b.set_snooping(settings(false), &[], &[]));
    send(&mut s, 1, &leave);
    assert_eq!(to(&mut s, &data), [2], "the router is left");
    s.with_tables(0, |b| b.set_snooping(settings(false), &[PortNo(1)], &[]));
    assert_eq!(to(&mut s, &data), [1, 2], "a port that gets all multicast packets");
    let mut wrong = join.clone();
    wrong[36] ^= 1;
    s.with_tables(0, |b| b.flush_snooping());
    s.with_tables(0, |b| b.set_snooping(settings(false), &[], &[]));
    send(&mut s, 1, &wrong);
    assert!(to(&mut s, &data).is_empty(), "its checksum is wrong");
    send(&mut s, 1, &join);
    assert_eq!(to(&mut s, &data), [1]);
    s.tick(NOW + Duration::from_secs(301), &mut Outputs::<Vec<u8>>::default());
    assert!(to(&mut s, &data).is_empty(), "silent for too long");
}

/// A modification keeps a flow's cookie unless it brings one, and its hard timeout begins anew.
#[test]
fn a_modification_keeps_the_cookie() {
    let mut s = one(&["cookie=5,hard_timeout=10,udp actions=output:2"]);
    let mut f = parse_flow("cookie=7,udp actions=output:3").expect("flow");
    f.command = FlowModCommand::Modify;
    let later = NOW + Duration::from_secs(8);
    let cookies = |s: &Switch| s.bridge(0).expect("bridge").flows().map(|r| r.cookie).collect::<Vec<_>>();
    s.apply(0, &Message::FlowMod(f.clone()), later).expect("modified");
    assert_eq!(cookies(&s), [5]);
    f.new_cookie = Some(7);
    s.apply(0, &Message::FlowMod(f), later).expect("modified");
    assert_eq!(cookies(&s), [7]);
    let tick = |s: &mut Switch, seconds| {
        s.tick(NOW + Duration::from_secs(seconds), &mut Outputs::<Vec<u8>>::default());
        cookies(s).len()
    };
    assert_eq!((tick(&mut s, 17), tick(&mut s, 18)), (1, 0));
}

/// ICMPv6 has a checksum over addresses in IPv6 only, as Open vSwitch sees it.
#[test]
fn icmpv6_in_ipv4_is_payload() {
    let mut s = one(&["ip actions=mod_nw_dst:10.9.9.9,output:2"]);
    let mut p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    p[23] = 58;
    packet::checksum::set_ipv4(&mut p, 14);
    let out = send(&mut s, 1, &p).packets;
    let [(2, q)] = out.as_slice() else { panic!("{out:?}") };
    assert_eq!((&q[30..34], &q[34..]), (&[10, 9, 9, 9][..], &p[34..]));
}

/// With one tag that counts, what is behind it is payload, however it is changed; a second pass is served by the cache.
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
    assert_eq!(send(&mut s, 1, &p).packets, [(2, lower)], "two tags count: it is IP");
    s.underlay.set_tags(1);
    let (mut popped, mut other) = (p.clone(), p.clone());
    popped.drain(12..16);
    other[15] = 7;
    for _ in 0..3 {
        assert_eq!(send(&mut s, 1, &p).packets, [(2, popped.clone()), (3, other.clone())]);
    }
    assert_eq!(s.cache_stats().hits, 2);
}

/// A bond is one port for NORMAL, whatever member its packets use.
#[test]
fn bonds_are_one_port() {
    let mut s = one(&["actions=NORMAL"]);
    let bond = |active: u16, spread| switch::Bond {
        name: "b".into(),
        members: vec![PortNo(2), PortNo(3)],
        spread,
        basis: 0,
        active: Some(PortNo(active)),
        takes: if spread == switch::Spread::Active { vec![PortNo(active)] } else { vec![PortNo(2), PortNo(3)] },
        buckets: (0..switch::bond::BUCKETS as u16).map(|n| Some(PortNo(2 + n % 2))).collect(),
        lacp: true,
        all_active: false,
        reflects: spread == switch::Spread::Source,
    };
    let packet = |src: u8, dst: u8, port: u16| {
        let (a, b) = ([2, 0, 0, 0, 0, src], [2, 0, 0, 0, 0, dst]);
        build::udp(packet::Mac(a), packet::Mac(b), (ip("10.0.0.1"), port), (ip("10.0.0.2"), 2), 64, b"hello")
            .expect("udp")
    };
    let to = |o: Outputs<Vec<u8>>| o.packets.iter().map(|p| p.0).collect::<Vec<_>>();
    s.set_bond(0, bond(3, switch::Spread::Active));
    assert_eq!(to(send(&mut s, 1, &packet(1, 9, 1))), [3], "flooded once, by the active member");
    assert_eq!(to(send(&mut s, 2, &packet(9, 1, 1))), [], "nothing from the other one");
    assert_eq!(to(send(&mut s, 3, &packet(9, 1, 1))), [1]);
    s.set_bond(0, bond(2, switch::Spread::Active));
    assert_eq!(to(send(&mut s, 1, &packet(1, 9, 1))), [2], "what is known of the bond stays known");
    s.set_bond(0, bond(2, switch::Spread::Transport));
    let members: std::collections::BTreeSet<_> = (0..40).flat_map(|n| to(send(&mut s, 1, &packet(1, 9, n)))).collect();
    assert_eq!(members, [2, 3].into());
    assert!(s.take_bond_bytes(0, "b").iter().filter(|n| **n > 0).count() > 20);
    assert_eq!(to(send(&mut s, 3, &packet(9, 1, 1))), [1], "any member takes");
    let flood = build::arp_request(packet::Mac([2, 0, 0, 0, 0, 9]), [10, 0, 0, 2].into(), [10, 0, 0, 1].into());
    assert_eq!(to(send(&mut s, 3, &flood)), [], "but for broadcasts, of which there are as many as members");
    assert_eq!(to(send(&mut s, 2, &flood)), [1]);
    s.set_bond(0, bond(2, switch::Spread::Source));
    assert_eq!(to(send(&mut s, 1, &packet(1, 9, 1))).len(), 1);
    assert_eq!(to(send(&mut s, 3, &packet(1, 7, 1))), [], "what went out comes back from the other end");
    let slow = {
        let mut p = packet(9, 1, 1);
        p[..6].copy_from_slice(&switch::bond::SLOW_ADDRESS[..]);
        p[12..14].copy_from_slice(&switch::bond::SLOW_PROTOCOLS.to_be_bytes());
        p
    };
    let out = send(&mut s, 3, &slow);
    assert!(matches!(&out.events[..], [Event::Slow { port: PortNo(3), packet, .. }] if *packet == slow));
    s.remove_bond(0, "b");
    assert_eq!(to(send(&mut s, 1, &packet(1, 77, 1))), [2, 3]);
}

#[test]
fn rewrites_keep_checksums() {
    let mut s = one(&[
        "in_port=1,udp actions=set_field:10.9.9.9->ip_src,set_field:02:00:00:00:00:99->eth_src,set_field:4000->udp_src,dec_ttl,push_vlan:0x8100,set_field:4101->vlan_vid,output:2,pop_vlan,clone(set_field:1.1.1.1->ip_dst,output:3),output:3",
    ]);
    let out = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2)).packets;
    assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [2, 3, 3]);
    out.iter().for_each(|o| good(&o.1));
    assert_eq!(out[0].1[12..16], [0x81, 0, 0, 5]);
    assert_eq!(out[2].1[26..34], [10, 9, 9, 9, 10, 0, 0, 2], "clone's change is gone");
    assert_eq!(out[1].1[30..34], [1, 1, 1, 1]);
    assert_eq!((out[2].1[22], &out[2].1[34..36]), (63, &4000u16.to_be_bytes()[..]));
    assert_eq!(s.bridge(0).expect("bridge").flows().next().expect("flow").counters().0, 1);
}

#[test]
fn snat_and_back_with_marks() {
    let mut s = one(&[
        "table=0,ip,in_port=1 actions=ct(commit,zone=5,table=1,nat(src=172.16.0.1),exec(set_field:0x7->ct_mark))",
        "table=0,ip,in_port=2 actions=ct(zone=5,table=1,nat)",
        "table=1,ct_state=+new+trk,ip,in_port=1 actions=output:2",
        "table=1,ct_state=+est+rpl+trk,ct_mark=0x7,ip,in_port=2 actions=output:1",
        "table=1,ct_state=+rel+rpl+trk,icmp,in_port=2 actions=output:1",
    ]);
    let out = send(&mut s, 1, &udp("10.0.0.1", 1111, "8.8.8.8", 53)).packets;
    assert_eq!(out[0].0, 2);
    good(&out[0].1);
    assert_eq!(out[0].1[26..30], [172, 16, 0, 1]);
    let reply = build::udp(A, B, (ip("8.8.8.8"), 53), (ip("172.16.0.1"), 1111), 64, b"x").expect("udp");
    let back = send(&mut s, 2, &reply).packets;
    assert_eq!(back.len(), 1, "{:?}", s.drops);
    good(&back[0].1);
    assert_eq!(back[0].1[30..34], [10, 0, 0, 1]);
    let err = build::icmp_error(&out[0].1, B, ip("9.9.9.9"), 3, 1, 0).expect("error");
    let back = send(&mut s, 2, &err).packets;
    assert_eq!(back.len(), 1, "{:?}", s.drops);
    good(&back[0].1);
    assert_eq!(back[0].1[30..34], [10, 0, 0, 1], "the error reaches the sender");
    assert_eq!(back[0].1[14 + 28 + 12..14 + 28 + 16], [10, 0, 0, 1], "and quotes what it sent");
    assert!(s.conntrack.lock().dump(Some(5), None).contains("mark=7"));
    s.apply(0, &Message::CtFlushZone(5), NOW).expect("flush");
    assert!(s.conntrack.lock().is_empty());
}

#[test]
fn what_follows_ct_goes_on_untracked() {
    let mut s = one(&[
        "table=0,ip actions=set_field:0x5->reg1,ct(table=1,zone=NXM_NX_REG1[0..15]),resubmit(,2)",
        "table=1,ct_state=+new+trk,ct_zone=0x5,reg1=0x5 actions=output:2",
        "table=2,ct_state=-trk actions=output:3",
    ]);
    let out = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2)).packets;
    assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn pause_and_resume() {
    let mut s = one(&[
        "table=0 actions=set_field:0x9->reg3,push:NXM_NX_REG3[],resubmit(,1),output:3",
        "table=1 actions=controller(userdata=00.01.02,pause),pop:NXM_NX_REG4[],resubmit(,2)",
        "table=2,reg3=0x9,reg4=0x9 actions=output:2",
    ]);
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let mut out = send(&mut s, 1, &p);
    assert!(out.packets.is_empty());
    let Some(Event::PacketIn { packet_in, .. }) = out.events.pop() else { panic!("{:?}", out.events) };
    assert_eq!((packet_in.userdata.as_slice(), packet_in.table), (&[0u8, 1, 2][..], 0));
    let bytes = Message::Resume(*packet_in).encode(Version::Of15, 1);
    let Ok((_, Message::Resume(back))) = Message::decode(&bytes) else { panic!("resume") };
    let mut out = Outputs::default();
    s.resume(&back, &Vec::new(), NOW, &mut out).expect("resumes");
    assert_eq!(out.packets.iter().map(|o| o.0).collect::<Vec<_>>(), [2, 3]);
    assert!(s.resume::<Vec<u8>>(&Default::default(), &Vec::new(), NOW, &mut out).is_err());
}

/// As in Open vSwitch, a packet that waits for its controller within a clone is forgotten behind it.
#[test]
fn a_pause_within_a_clone_ends_what_is_behind_it() {
    let mut s = one(&[
        "table=0 actions=clone(controller(pause),output:2),output:3",
        "table=0,priority=40000,in_port=2 actions=clone(output:1),output:3",
    ]);
    let out = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    assert_eq!((out.packets.len(), out.events.len()), (0, 1), "{:?}", out.events);
    let out = send(&mut s, 2, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    assert_eq!(out.packets.iter().map(|o| o.0).collect::<Vec<_>>(), [1, 3]);
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

/// What is popped is matched again as what it is; what a clone or bucket pushes is not on the packet behind it.
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
    s.apply(0, &Message::GroupMod(GroupMod::new(GroupModCommand::Add, parse_group(group).expect("group"))), NOW)
        .expect("group");
    load(&mut s, 0, &["table=0,in_port=3 actions=group:1,output:1"]);
    let out = send(&mut s, 1, &p).packets;
    assert_eq!(out.len(), 1);
    let h = Headers::parse(&out[0].1).expect("headers");
    assert!(h.is_ipv4() && checksum::l4_ok(&out[0].1, &h) && out[0].1[30..34] == [10, 0, 0, 9], "{:02x?}", out[0].1);
    for (port, first) in [(2, 3), (3, 2)] {
        let out = send(&mut s, port, &p).packets;
        let told: Vec<_> = out.iter().map(|(to, q)| (*to, labels(q).0.len())).collect();
        assert_eq!(told, [(first, 1), (1, 0)], "from {port}");
        assert_eq!(out[1].1, p, "as it came");
    }
}

/// Three labels are parsed: no fourth is pushed, and of a longer stack none is taken.
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

#[test]
fn learn_then_use() {
    let mut s = one(&[
        "table=0,in_port=1 actions=learn(table=1,idle_timeout=5,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0x1->NXM_NX_REG0[3],output:NXM_OF_IN_PORT[])",
        "table=0,in_port=2 actions=resubmit(,1)",
    ]);
    send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    let back = build::udp(A, B, (ip("10.0.0.2"), 2), (ip("10.0.0.1"), 1), 64, b"").expect("udp");
    assert_eq!(send(&mut s, 2, &back).packets.len(), 1);
    let mut out: Outputs<Vec<u8>> = Outputs::default();
    s.tick(NOW + Duration::from_secs(20), &mut out);
    assert_eq!(s.bridge(0).expect("bridge").flows().count(), 2, "the learned flow went");
}

#[test]
fn groups_meters_and_limits() {
    let mut s = one(&[]);
    let group = |t: &str| Message::GroupMod(GroupMod::new(GroupModCommand::Add, parse_group(t).expect("group")));
    let meter = MeterMod {
        command: MeterModCommand::Add,
        meter: parse_meter("meter=1 pktps stats bands=type=drop rate=2").expect("meter"),
    };
    s.apply(0, &group("group_id=1,type=select,selection_method=dp_hash,bucket=bucket_id:0,weight:100,actions=output:2,bucket=bucket_id:1,weight:100,actions=output:3"), NOW).expect("group");
    s.apply(0, &group("group_id=2,type=ff,bucket=bucket_id:0,watch_port:2,actions=output:2,bucket=bucket_id:1,watch_port:3,actions=output:3"), NOW).expect("group");
    s.apply(0, &Message::MeterMod(meter), NOW).expect("meter");
    load(
        &mut s,
        0,
        &[
            "in_port=1,udp actions=group:1",
            "in_port=1,arp actions=group:2",
            "in_port=2 actions=meter:1,output:3",
            "in_port=3 actions=resubmit(,0)",
        ],
    );
    let mut hits = [0; 4];
    for i in 0..64 {
        let p = udp("10.0.0.1", 1000 + i, "10.0.0.2", 2);
        let first = send(&mut s, 1, &p).packets;
        assert_eq!(first, send(&mut s, 1, &p).packets, "a flow sticks to its bucket");
        hits[first[0].0 as usize] += 1;
    }
    assert!(hits[2] > 10 && hits[3] > 10, "{hits:?}");
    let arp = build::arp_request(A, "10.0.0.1".parse().expect("address"), "10.0.0.2".parse().expect("address"));
    assert_eq!(send(&mut s, 1, &arp).packets[0].0, 2);
    s.bridge_mut(0).and_then(|b| b.ports.get_mut(&PortNo(2))).expect("port").link.up = false;
    assert_eq!(send(&mut s, 1, &arp).packets[0].0, 3, "fails over");
    let passed: usize = (0..5).map(|_| send(&mut s, 2, &arp).packets.len()).sum();
    assert_eq!(passed, 2);
    send(&mut s, 3, &arp);
    assert_eq!(s.drops.get(switch::DropReason::TooDeep), 1);
    let bad = [
        Message::FlowMod(parse_flow("table=9 actions=output:1").expect("flow")),
        Message::FlowMod(parse_flow("actions=group:99").expect("flow")),
    ];
    assert_eq!(s.apply_bundle(0, &bad, NOW).expect_err("no such group").0, 1);
    assert!(!s.bridge(0).expect("bridge").table_sizes().contains_key(&9), "nothing of it stays");
}

/// OpenFlow 1.4 section 7.3.5.17: each of the two events makes room for the other.
#[test]
fn tables_tell_when_their_room_falls_and_rises() {
    let mut s = one(&[]);
    let limit = |n| {
        let config = switch::TableConfig { limit: n, ..Default::default() };
        std::collections::BTreeMap::from([(1, config)])
    };
    s.with_tables(0, |b| b.set_table_config(limit(Some(10)), NOW));
    s.with_tables(0, |b| b.watch_vacancy(1, Some([20, 80])));
    let mut told = Vec::new();
    let mut change = |s: &mut Switch, flow: &str, add: bool| {
        let mut f = parse_flow(flow).expect("flow");
        f.command = if add { openflow_rs::FlowModCommand::Add } else { openflow_rs::FlowModCommand::Delete };
        s.apply(0, &Message::FlowMod(f), NOW).expect("applies");
        s.with_tables(0, |b| told.extend(b.vacancy_changes().iter().map(|c| (c.table, c.up, b.vacancy(1)))));
        std::mem::take(&mut told)
    };
    for round in 0..2 {
        for n in 1..=10 {
            let wanted = if n == 9 { vec![(1, false, 10)] } else { vec![] };
            assert_eq!(change(&mut s, &format!("table=1,in_port={n} actions=drop"), true), wanted, "{round}: flow {n}");
        }
        for n in 1..=10 {
            let wanted = if n == 9 { vec![(1, true, 90)] } else { vec![] };
            assert_eq!(
                change(&mut s, &format!("table=1,in_port={n} actions=drop"), false),
                wanted,
                "{round}: flow {n}"
            );
        }
    }
    // The database's configuration of the table leaves what a controller has asked for; a table without a limit is empty.
    s.with_tables(0, |b| b.set_table_config(limit(None), NOW));
    assert_eq!(
        s.bridge(0).map(|b| (b.vacancy(1), b.table_config(1).and_then(|c| c.vacancy).map(|v| v.down))),
        Some((100, Some(20)))
    );
    s.with_tables(0, |b| b.watch_vacancy(255, None));
    assert_eq!(change(&mut s, "table=1,in_port=1 actions=drop", true), []);
}

#[test]
fn patch_ports_join_bridges() {
    let mut s = one(&[
        "in_port=1 actions=set_field:0x5->reg0,set_field:0x3->pkt_mark,output:20,resubmit(,1)",
        "table=1,reg0=0x5 actions=output:2",
    ]);
    let b = s.add_bridge("br-phys", 2);
    s.add_port(0, Port::new(PortNo(20), "int-phys", PortKind::Patch("phys-int".into()))).expect("port");
    s.add_port(b, Port::new(PortNo(1), "phys-int", PortKind::Patch("int-phys".into()))).expect("port");
    s.add_port(b, Port::new(PortNo(2), "eth0", PortKind::Device(50))).expect("port");
    load(
        &mut s,
        b,
        &["priority=5,reg0=0,pkt_mark=0x3,in_port=1 actions=set_field:02:02:02:02:02:02->eth_dst,output:2"],
    );
    let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
    let out = send(&mut s, 1, &p).packets;
    assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [50, 2]);
    assert_eq!(out[1].1, p, "the other bridge's change stays there");
    let metadata = Match::new().with(FieldId::InPort, 1);
    let r = switch::TraceRequest { metadata, packet: p, ..Default::default() };
    assert!(s.trace(r).contains(" 0. in_port=1, priority 32768"));
}

/// Packets that go to the daemon are told with the reason, in Open vSwitch's words; others are not.
#[test]
fn traces_say_why_packets_go_to_the_daemon() {
    let mut s = one(&["actions=output:2"]);
    let session = udp("169.254.1.0", 49152, "169.254.1.1", 3784);
    let tree = packet::bpdu::compose(A, &packet::bpdu::Bpdu::Notification);
    let ask = |s: &mut Switch, packet: &[u8]| {
        let text = s.trace(switch::TraceRequest {
            metadata: Match::new().with(FieldId::InPort, 1),
            packet: packet.to_vec(),
            ..Default::default()
        });
        text.split_once("Datapath actions: ").map(|(_, rest)| rest.to_string()).expect("an end")
    };
    let told = |what| {
        format!("drop\nThis flow is handled by the userspace slow path because it:\n  - Consists of {what} packets.\n")
    };
    for p in [&session, &tree] {
        assert_eq!(ask(&mut s, p), "2\n");
    }
    let port = s.bridge_mut(0).and_then(|b| b.ports.get_mut(&PortNo(1))).expect("port");
    port.bfd_packets = Some(switch::BfdPackets::default());
    s.set_inputs(0, PortNo(1), |p| p.stp = Some(switch::StpState::Forwarding));
    assert_eq!([&session, &tree].map(|p| ask(&mut s, p)), ["BFD", "STP"].map(told));
    assert_eq!(ask(&mut s, &udp("10.0.0.1", 1, "10.0.0.2", 2)), "2\n");
}

#[test]
fn a_damaged_packet_does_not_stop_its_connection() {
    let mut s = one(&[
        "in_port=1,ip actions=ct(table=1,zone=5)",
        "table=1,ct_state=+new+trk,ip actions=ct(commit,zone=5),output:2",
        "table=1,ct_state=+inv+trk actions=drop",
        "table=1,ct_state=+est+trk actions=output:3",
    ]);
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let mut damaged = p.clone();
    *damaged.last_mut().expect("a byte") ^= 1;
    assert_eq!(send(&mut s, 1, &damaged).packets, []);
    for _ in 0..3 {
        assert_eq!(send(&mut s, 1, &p).packets, [(2, p.clone())], "what was found of a damaged packet is not kept");
    }
}

/// What the flow cache holds is shown in the words of ovs-dpctl(8).
#[test]
fn cached_flows_are_shown() {
    let mut s = one(&[
        "priority=9,in_port=1,udp actions=set_field:02:00:00:00:00:77->eth_src,set_field:9.9.9.9->ip_src,dec_ttl,set_field:53->udp_dst,push_vlan:0x8100,set_field:0x1007->vlan_vid,output:2,pop_vlan,output:3",
        "priority=9,in_port=1,ipv6 actions=set_field:fd00::9->ipv6_dst,output:2",
        "priority=9,in_port=1,arp actions=drop",
        "priority=1 actions=output:1",
    ]);
    let six = build::udp(B, A, (ip("fd00::1"), 7), (ip("fd00::2"), 8), 64, b"hello").expect("udp");
    let mut tagged = udp("10.0.0.1", 1, "10.0.0.2", 2);
    tagged.splice(12..12, [0x81, 0x00, 0x60, 9]);
    let request = build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    for (device, p) in [(1, udp("10.0.0.1", 1, "10.0.0.2", 2)), (1, six), (2, tagged), (1, request)] {
        send(&mut s, device, &p);
    }
    // Once more, for the counters.
    send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    let later = NOW + Duration::from_millis(1500);
    let mut lines: Vec<String> = s.cached_flows().map(|f| s.tell_flow(&f, later)).collect();
    lines.sort();
    let head = "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth(src=02:00:00:00:00:0a";
    // What decided nothing is not there: these are flows of all packets that are alike in the rest.
    assert_eq!(
        lines,
        [
            format!(
                "{head}),eth_type(0x0800),ipv4(src=10.0.0.1,proto=17,ttl=64,frag=no),udp(dst=2), packets:1, bytes:47, used:1.500s, actions:push_vlan(vid=7,pcp=0),set(eth(src=02:00:00:00:00:77)),set(ipv4(src=9.9.9.9,ttl=63)),set(udp(dst=53)),2,pop_vlan,3",
            ),
            "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x0806), packets:0, bytes:0, used:never, actions:drop".into(),
            "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x86dd),ipv6(dst=fd00::2,proto=17,frag=no), packets:0, bytes:0, used:never, actions:set(ipv6(dst=fd00::9)),2".into(),
            "recirc_id(0),in_port(2),packet_type(ns=0,id=0),eth_type(0x8100),vlan(vid=9,pcp=3),encap(eth_type(0x0800),ipv4(proto=17,frag=no)), packets:0, bytes:0, used:never, actions:1".into(),
        ]
    );
    s.purge_cache();
    assert_eq!(s.cached_flows().count(), 0);
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
        let [(2, q)] = out.as_slice() else { panic!("{out:?}") };
        assert_eq!((&q[6..12], &q[26..30]), (&[0x0b, 0x54, 0x20, 0, 0, n][..], &[10, 0, 7, n][..]), "packet {n}");
        good(q);
    }
}

/// A bucket is an action set: of what sends, the last of the strongest kind counts, and nothing is done without it.
#[test]
fn buckets_are_action_sets() {
    let mut s = one(&[]);
    for (id, actions) in [
        (1, "actions=output:2,set_field:02:00:00:00:00:77->eth_src,output:3,exit"),
        (2, "actions=set_field:02:00:00:00:00:77->eth_src"),
    ] {
        let g = parse_group(&format!("group_id={id},type=indirect,bucket={actions}")).expect("group");
        s.apply(0, &Message::GroupMod(GroupMod::new(GroupModCommand::Add, g)), NOW).expect("taken");
    }
    load(&mut s, 0, &["in_port=1 actions=group:1,group:2,output:2"]);
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let mut q = p.clone();
    q[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x77]);
    for _ in 0..3 {
        assert_eq!(send(&mut s, 1, &p).packets, [(3, q.clone()), (2, p.clone())]);
    }
}

/// A clone carries out a copy of the action set; an exit is the end of all that, and of what is behind the clone.
#[test]
fn clones_and_exits_mind_the_action_set() {
    let mut s = one(&[
        "in_port=1,udp,tp_dst=2 actions=resubmit(,1)",
        "in_port=1,udp,tp_dst=3 actions=clone(exit),output:3",
        "in_port=1,udp,tp_dst=4 actions=resubmit(,2)",
        "table=1,actions=clone(output:3),write_actions(output:2),goto_table:3",
        "table=2,actions=write_actions(output:2),goto_table:4",
        "table=3,actset_output=2 actions=clone(set_field:5->reg1)",
        "table=4,actions=exit",
    ]);
    let to = |s: &mut Switch, port| -> Vec<u32> {
        send(s, 1, &udp("10.0.0.1", 1, "10.0.0.2", port)).packets.iter().map(|p| p.0).collect()
    };
    for _ in 0..3 {
        assert_eq!(to(&mut s, 2), [3, 2, 2], "the clone of table 3 sends too");
        assert_eq!(to(&mut s, 3), [] as [u32; 0]);
        assert_eq!(to(&mut s, 4), [] as [u32; 0]);
    }
}

/// `resubmit(,T,ct)` looks up what the connection began with; translation to what an address is says so in `ct_state`.
#[test]
fn original_tuples_are_looked_up() {
    let mut s = one(&[
        "in_port=1,ip actions=ct(commit,table=1,zone=3,nat(dst=10.0.0.9))",
        "table=1,ct_state=+trk+dnat,udp actions=resubmit(,2,ct)",
        "table=2,udp,nw_dst=10.0.0.2 actions=output:2",
        "table=2,udp,nw_dst=10.0.0.9,tp_dst=9 actions=output:3",
    ]);
    for _ in 0..3 {
        let out = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2)).packets;
        let [(2, p)] = out.as_slice() else { panic!("{out:?}") };
        assert_eq!(p[30..34], [10, 0, 0, 9]);
        let same = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.9", 9)).packets;
        assert_eq!(same, [(3, udp("10.0.0.1", 1, "10.0.0.9", 9))]);
    }
}

/// What a table's last resort sends to the controller says that nothing matched, and all of the packet.
#[test]
fn misses_say_so() {
    let mut s = one(&["priority=1,arp actions=CONTROLLER:20", "priority=0 actions=CONTROLLER:20"]);
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let arp = build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    for (q, reason) in [(p, action::PacketInReason::NoMatch), (arp, action::PacketInReason::Action)] {
        let out = send(&mut s, 1, &q);
        let [Event::PacketIn { packet_in, .. }] = &out.events[..] else { panic!("{:?}", out.events) };
        assert_eq!((packet_in.reason, &packet_in.packet), (reason, &q));
    }
}

/// What a meter drops is gone for what follows the flow's resubmit as well, but not for what is behind a clone.
#[test]
fn metered_packets_are_gone() {
    let mut s = one(&[]);
    let meter = parse_meter("meter=1 pktps bands=type=drop rate=1").expect("meter");
    s.apply(0, &Message::MeterMod(MeterMod { command: MeterModCommand::Add, meter }), NOW).expect("taken");
    load(
        &mut s,
        0,
        &[
            "in_port=1 actions=resubmit(,1),output:2",
            "in_port=2 actions=clone(meter:1,output:1),output:3",
            "table=1,actions=meter:1,output:3",
        ],
    );
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    assert_eq!(send(&mut s, 1, &p).packets.len(), 2);
    assert_eq!(send(&mut s, 1, &p).packets, []);
    assert_eq!(send(&mut s, 2, &p).packets, [(3, p.clone())]);
}

/// Whoever sent a packet that was translated is told of the packet as it left him, checksums included (RFC 5508 section 4.2), by an
/// error with a right checksum, from an address that he knows.
#[test]
fn errors_tell_of_packets_as_they_were_sent() {
    let mut s = one(&[
        "in_port=1,ip actions=ct(commit,zone=5,nat(src=20.0.0.7:7000-7999)),output:2",
        "in_port=1,ipv6 actions=ct(commit,zone=5,nat(src=[fd00::77]:7000-7999)),output:2",
        "in_port=3,ip actions=ct(commit,zone=5,nat(dst=10.0.0.9)),output:2",
        "in_port=3,ipv6 actions=ct(commit,zone=5,nat(dst=fd00::99)),output:2",
        "in_port=2,ip actions=ct(table=2,zone=5,nat)",
        "in_port=2,ipv6 actions=ct(table=2,zone=5,nat)",
        "table=2,ct_state=+rel+trk actions=output:1",
    ]);
    let (router4, router6) = (ip("10.0.0.250"), ip("fd00::fa"));
    let tcp = [0x30, 5, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0x20, 0, 0, 0, 0, 0];
    for (port, v6, proto) in
        [1, 3].into_iter().flat_map(|p| [false, true].map(|v| [(p, v, 6), (p, v, 17), (p, v, 1)]).concat())
    {
        let from = if v6 { format!("fd00::{port}") } else { format!("10.0.0.{port}") };
        let (from, to, router) =
            if v6 { (ip(&from), ip("fd00::2"), router6) } else { (ip(&from), ip("10.0.0.2"), router4) };
        let (proto, body) = match (proto, v6) {
            (6, _) => (6, tcp.to_vec()),
            (17, _) => (17, vec![0x30, 5, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]),
            (_, true) => (58, vec![128, 0, 0, 0, 0, 5, 0, 1, 9, 9]),
            _ => (1, vec![8, 0, 0, 0, 0, 5, 0, 1, 9, 9]),
        };
        let p = build::ip_packet(
            packet::Mac([2, 0, 0, 0, 0, 2]),
            packet::Mac([2, 0, 0, 0, 0, 1]),
            from,
            to,
            proto,
            64,
            &body,
        )
        .expect("one family");
        let sent = send(&mut s, port, &p).packets.remove(0).1;
        let h = Headers::parse(&sent).expect("headers");
        let (src, dst) = switch::tunnel::outer_addresses(&sent, &h).expect("addresses");
        assert!((src, dst) != (from, to), "translated");
        let error = [&[if v6 { 1 } else { 3 }, 0, 0, 0, 0, 0, 0, 0], &sent[14..]].concat();
        let e = build::ip_packet(
            packet::Mac([2; 6]),
            packet::Mac([4; 6]),
            router,
            src,
            if v6 { 58 } else { 1 },
            64,
            &error,
        )
        .expect("one family");
        let told = send(&mut s, 2, &e).packets.remove(0).1;
        good(&told);
        let l4 = if v6 { 54 } else { 34 };
        assert_eq!(&told[l4 + 8..][..p.len() - 14], &p[14..], "port {port}, protocol {proto}, IPv6 {v6}");
        let h = Headers::parse(&told).expect("headers");
        // What is behind a translated destination stays hidden.
        let teller = if port == 3 { to } else { router };
        assert_eq!(switch::tunnel::outer_addresses(&told, &h), Some((teller, from)));
    }
}

/// What cannot become a connection is dropped, and the reason is counted: a full table, a full zone, no port left to translate to.
#[test]
fn connections_that_cannot_be_say_why() {
    let mut s = one(&[
        "in_port=1,udp,tp_dst=1 actions=ct(commit,table=1,zone=1,nat(src=20.0.0.7:10-12))",
        "in_port=1,udp,tp_dst=2 actions=ct(commit,table=1,zone=2)",
        "in_port=1,sctp actions=ct(commit,table=1,zone=3,nat(src=20.0.0.7:7000-7001))",
        "in_port=2,sctp actions=ct(table=2,zone=3,nat)",
        "table=1 actions=output:2",
        "table=2,ct_state=+est+rpl actions=output:1",
    ]);
    s.conntrack.lock().set_limit(Some(2), 2);
    let drops = |s: &Switch| [DropReason::NatExhausted, DropReason::ZoneLimit].map(|r| s.drops.get(r));
    for n in 0..5 {
        let out = send(&mut s, 1, &udp("10.0.0.1", 5000 + n, "10.0.0.2", 1));
        assert_eq!(out.packets.len(), usize::from(n < 3), "three ports");
        let out = send(&mut s, 1, &udp("10.0.0.1", 5000 + n, "10.0.0.2", 2));
        assert_eq!(out.packets.len(), usize::from(n < 2), "two connections");
    }
    assert_eq!(drops(&s), [2, 3]);
    // SCTP has ports, which are translated, and a checksum over all of it.
    let sctp = |from: (&str, u16), to: (&str, u16)| {
        let body = [&from.1.to_be_bytes()[..], &to.1.to_be_bytes(), &[0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 4]].concat();
        let mut p = build::ip_packet(packet::Mac([2; 6]), packet::Mac([4; 6]), ip(from.0), ip(to.0), 132, 64, &body)
            .expect("one family");
        let h = Headers::parse(&p).expect("headers");
        packet::checksum::set_l4(&mut p, &h);
        p
    };
    for n in 0..3u16 {
        let out = send(&mut s, 1, &sctp(("10.0.0.1", 5000 + n), ("10.0.0.2", 9)));
        let Some((_, p)) = out.packets.first().filter(|_| n < 2) else {
            assert_eq!((out.packets.len(), n), (0, 2));
            continue;
        };
        good(p);
        let port = u16::from_be_bytes([p[34], p[35]]);
        assert!((7000..=7001).contains(&port));
        // Nobody else's answers are its answers.
        assert!(send(&mut s, 2, &sctp(("10.0.0.2", 8), ("20.0.0.7", port))).packets.is_empty());
        let back = send(&mut s, 2, &sctp(("10.0.0.2", 9), ("20.0.0.7", port))).packets.remove(0).1;
        good(&back);
        assert_eq!((&back[30..34], &back[36..38]), (&[10, 0, 0, 1][..], &(5000 + n).to_be_bytes()[..]));
    }
    assert_eq!(drops(&s), [3, 3]);
    // The table itself.
    let mut s = of_size(4, &["in_port=1,udp actions=ct(commit,table=1,zone=1)", "table=1 actions=output:2"]);
    let out = (1..7).map(|n| send(&mut s, 1, &udp("10.0.0.1", n, "10.0.0.2", 1)).packets.len()).sum::<usize>();
    assert_eq!((out, s.drops.get(DropReason::ConntrackFull)), (4, 2));
}

#[test]
fn a_port_is_live_as_its_link_bfd_cfm_and_lacp_say() {
    let link = |admin_up, up| switch::PortLink { admin_up, up, ..Default::default() };
    let said = [None, Some(false), Some(true)];
    for (admin_up, up) in [(false, false), (false, true), (true, false), (true, true)] {
        for (bfd, cfm, lacp) in said.into_iter().flat_map(|b| said.map(|c| said.map(|l| (b, c, l)))).flatten() {
            // Where a port has both BFD and CFM, one of them is enough.
            let path = match (bfd, cfm) {
                (Some(true), _) | (_, Some(true)) | (None, None) => true,
                (Some(false), _) | (_, Some(false)) => false,
            };
            let wanted = admin_up && up && path && lacp != Some(false);
            let is = switch::is_live(&link(admin_up, up), [bfd, cfm], lacp);
            assert_eq!(is, wanted, "admin_up {admin_up}, up {up}, BFD {bfd:?}, CFM {cfm:?}, LACP {lacp:?}");
        }
    }
}

#[test]
fn a_flow_of_no_table_goes_into_the_first() {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    let now = Duration::from_secs(1);
    let mut f = openflow_rs::text::parse_flow("priority=7,udp actions=drop").expect("flow");
    f.table = 255;
    s.apply(b, &openflow_rs::Message::FlowMod(f.clone()), now).expect("as in Open vSwitch");
    assert_eq!(s.bridge(b).expect("bridge").flows().map(|r| (r.table, r.priority)).collect::<Vec<_>>(), [(0, 7)]);
    f.command = openflow_rs::FlowModCommand::Modify;
    let mut other = openflow_rs::text::parse_flow("table=5,priority=7,udp actions=drop").expect("flow");
    s.apply(b, &openflow_rs::Message::FlowMod(other.clone()), now).expect("another table");
    f.actions = openflow_rs::text::parse_flow("actions=output:2").expect("flow").actions;
    s.apply(b, &openflow_rs::Message::FlowMod(f), now).expect("changed in all tables");
    assert!(s.bridge(b).expect("bridge").flows().all(|r| r.to_flow_mod().actions.len() == 1));
    other.command = openflow_rs::FlowModCommand::Delete;
    other.table = 255;
    s.apply(b, &openflow_rs::Message::FlowMod(other), now).expect("all go");
    assert_eq!(s.bridge(b).expect("bridge").flows().count(), 0);
}

#[test]
fn a_route_by_a_device_of_the_host_hides_worse_ones_by_bridges() {
    let address = |a: &str| a.parse::<std::net::IpAddr>().expect("address");
    let route = |prefix: &str, len, egress, table| Route {
        prefix: address(prefix),
        len,
        gateway: None,
        source: address("10.0.0.1"),
        hop_source: None,
        source_mac: packet::Mac([2; 6]),
        egress,
        own: false,
        mark: 0,
        table,
    };
    let mut u = switch::Underlay::default();
    u.set_routes(vec![
        route("0.0.0.0", 0, Egress::Bridge("br-phys".into()), Route::MAIN),
        route("10.9.0.0", 16, Egress::Host("mgmt".into()), Route::MAIN),
        route("10.9.0.0", 16, Egress::Bridge("br-other".into()), 42),
    ]);
    let egress = |u: &switch::Underlay, to: &str, from: Option<&str>| {
        u.route_from(address(to), from.map(address), 0).map(|r| r.egress.to_string()).unwrap_or_default()
    };
    assert_eq!(egress(&u, "10.9.1.1", None), "mgmt");
    assert_eq!(egress(&u, "10.8.1.1", None), "br-phys");
    // A rule for a source names another table.
    let mut rules = switch::RouteRule::standard();
    let from = Some((address("10.0.0.0"), 24));
    rules.push(switch::RouteRule { priority: 100, v6: false, from, invert: false, table: 42, own: false });
    u.set_rules(rules);
    assert_eq!(egress(&u, "10.9.1.1", Some("10.0.0.7")), "br-other");
    assert_eq!(egress(&u, "10.9.1.1", Some("10.0.1.7")), "mgmt");
    assert_eq!(egress(&u, "10.8.1.1", Some("10.0.0.7")), "br-phys", "the next table, where one has none");
    // The operator's own come first within their table; those of a mark are for it alone, and others serve it, too.
    let own = |prefix, len, bridge: &str, mark| Route {
        own: true,
        mark,
        ..route(prefix, len, Egress::Bridge(bridge.into()), Route::MAIN)
    };
    u.set_routes(vec![
        route("10.9.0.0", 16, Egress::Bridge("br-kernel".into()), Route::MAIN),
        own("10.0.0.0", 8, "br-own", 0),
        own("10.9.0.0", 16, "br-marked", 7),
    ]);
    let marked =
        |to: &str, mark| u.route_from(address(to), None, mark).map(|r| r.egress.to_string()).unwrap_or_default();
    assert_eq!(
        ["br-own", "br-own", "br-marked"],
        [marked("10.9.1.1", 0), marked("10.9.1.1", 5), marked("10.9.1.1", 7)]
    );
    assert_eq!(marked("10.8.1.1", 7), "br-own", "the mark has no route there");
}

/// What the spanning tree does to a port: BPDUs go to it alone, other packets wait until it forwards.
#[test]
fn the_spanning_tree_holds_ports() {
    use switch::StpState as S;
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    let now = Duration::from_secs(1);
    for no in [1, 2] {
        s.add_port(b, Port::new(PortNo(no), &format!("p{no}"), PortKind::Device(no.into()))).expect("port");
    }
    s.apply(b, &openflow_rs::Message::FlowMod(parse_flow("actions=normal").expect("flow")), now).expect("flow");
    let source = packet::Mac([2, 0, 0, 0, 0, 1]);
    let mut frame = [&[0xff; 6][..], &source[..], &[0x12, 0x34]].concat();
    frame.resize(60, 0);
    let bpdu = packet::bpdu::compose(source, &packet::bpdu::Bpdu::Notification);
    let check = packet::ccm::compose(
        packet::ccm::ADDRESS,
        source,
        None,
        &packet::ccm::Ccm {
            defect: false,
            interval: 4,
            sequence: 1,
            point: 1,
            association: packet::ccm::ASSOCIATION,
            interval_ms: 0,
            long_point: 0,
            down: false,
        },
    );
    let point = switch::CcmPackets { eth_dst: packet::ccm::ADDRESS, no_key: false };
    // Twice each: the second packet meets what the first has left in the cache.
    let receive = |s: &mut Switch, frame: &[u8]| {
        let mut out = Outputs::default();
        for _ in 0..2 {
            s.process(&mut vec![(1, frame.to_vec())], now, &mut out);
        }
        (out.packets.len(), out.events.len())
    };
    assert_eq!((receive(&mut s, &frame), receive(&mut s, &bpdu)), ((2, 0), (0, 0)), "no tree");
    for (state, learns, sent) in [
        (S::Disabled, false, 0),
        (S::Blocking, false, 0),
        (S::Listening, false, 0),
        (S::Learning, true, 0),
        (S::Forwarding, true, 2),
    ] {
        s.set_inputs(b, PortNo(1), |p| p.stp = Some(state));
        s.with_tables(b, |b| b.forget_addresses());
        assert_eq!((receive(&mut s, &frame), receive(&mut s, &bpdu)), ((sent, 0), (0, 2)), "from {state:?}");
        s.bridge_mut(b).expect("bridge").ports.get_mut(&PortNo(1)).expect("port").ccm_packets = Some(point);
        s.bridge_mut(b).expect("bridge").epoch += 1;
        assert_eq!(receive(&mut s, &check), (0, 2), "checks from {state:?}");
        assert_eq!(s.bridge(b).expect("bridge").macs.iter().count(), usize::from(learns), "{state:?}");
        s.set_inputs(b, PortNo(1), |p| p.stp = Some(S::Forwarding));
        s.set_inputs(b, PortNo(2), |p| p.stp = Some(state));
        assert_eq!(receive(&mut s, &frame).0, sent, "to {state:?}");
        // Continuity checks of this switch and for it pass where packets do not; those of others are packets.
        let out = |s: &mut Switch, metadata| {
            let m = openflow_rs::message::PacketOut {
                buffer_id: u32::MAX,
                metadata,
                actions: vec![action::Action::Output { port: PortNo(2), max_len: 0 }],
                packet: check.clone(),
            };
            let mut out = Outputs::default();
            s.packet_out(b, &m, &Vec::new(), now, &mut out);
            out.packets.len()
        };
        let received = Match::new().with(FieldId::InPort, 1);
        assert_eq!((out(&mut s, Match::new()), out(&mut s, received)), (1, sent / 2), "to {state:?}");
        s.set_inputs(b, PortNo(2), |p| p.stp = None);
    }
}

/// SCTP through SNAT, with a packet of an association (INIT), and the same once more: both reach the controller, translated.
#[test]
fn sctp_is_translated_each_time() {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    let now = Duration::from_secs(1);
    for no in [1, 2] {
        s.add_port(b, Port::new(PortNo(no), &format!("p{no}"), PortKind::Device(no.into()))).expect("port");
    }
    let f = parse_flow("in_port=1,sctp actions=ct(commit,zone=1,nat(src=10.1.1.240:34567)),controller").expect("flow");
    s.apply(b, &openflow_rs::Message::FlowMod(f), now).expect("flow");
    let hex = "e666c1222222e666c111111108004502004400004000408424300a0101010a010102d6b9303900000000c5cc426b0100002470e18ccc0001a000000affff7ae1c142000c00060005000080000004c0000004";
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect();
    for _ in 0..2 {
        let mut out = Outputs::default();
        let m = openflow_rs::message::PacketOut {
            buffer_id: u32::MAX,
            metadata: Match::new().with(FieldId::InPort, 1),
            actions: vec![action::Action::Output { port: PortNo::TABLE, max_len: 0 }],
            packet: bytes.clone(),
        };
        s.packet_out(b, &m, &Vec::new(), now, &mut out);
        assert_eq!(out.events.len(), 1, "{:?}", s.drops);
    }
}

#[test]
fn a_bridge_that_takes_another_ones_place_takes_nothing_else() {
    let mut s = Switch::new(10);
    let id = s.add_bridge("br0", 7);
    let b = s.bridge_mut(id).expect("bridge");
    b.fragments = switch::Fragments::Drop;
    (b.packet_ins, b.observed) = (9, true);
    b.table_stats[3] = (5, 4);
    b.record_flow_updates(true);
    b.forget();
    assert_eq!((b.fragments, b.packet_ins, b.observed, b.datapath_id), (switch::Fragments::Normal, 0, false, 0));
    assert!(b.table_stats.iter().all(|t| *t == (0, 0)));
}
