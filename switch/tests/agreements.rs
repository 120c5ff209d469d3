//! Small things in which we agree with Open vSwitch, one by one: random tables have both do them (`tests/lab/random.rs`).

use openflow_rs::action::PacketInReason;
use openflow_rs::message::{PacketIn, TlvMap, TlvTableMod};
use openflow_rs::text::{flow_to_string, parse_flow, parse_group};
use openflow_rs::*;
use packet::{Headers, Mac, build, checksum};
use std::net::IpAddr;
use std::time::Duration;
use switch::{BridgeId, DeviceId, DropReason, Event, Outputs, Port, PortKind, Switch};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const NOW: Duration = Duration::from_secs(10);

fn ip(s: &str) -> IpAddr {
    s.parse().expect("address")
}

fn udp(src: &str, sport: u16, dst: &str, dport: u16) -> Vec<u8> {
    build::udp(B, A, (ip(src), sport), (ip(dst), dport), 64, b"hello, world").expect("udp")
}

fn tcp(src: &str, sport: u16, dst: &str, dport: u16, flags: u8) -> Vec<u8> {
    let body =
        [&sport.to_be_bytes()[..], &dport.to_be_bytes(), &[0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0x20, 0, 0, 0, 0, 0]];
    build::ip_packet(B, A, ip(src), ip(dst), 6, 64, &body.concat()).expect("tcp")
}

/// A packet with these tags put before it.
fn tagged(p: &[u8], tags: &[u16]) -> Vec<u8> {
    let mut q = p[..12].to_vec();
    tags.iter().for_each(|t| q.extend([0x81, 0, (t >> 8) as u8, *t as u8]));
    q.extend_from_slice(&p[12..]);
    q
}

fn refused(s: &mut Switch, f: &str) -> Option<(u16, u16)> {
    s.apply(BridgeId(0), &Message::FlowMod(parse_flow(f).expect("flow")), NOW).err().map(|e| e.numbers())
}

/// A bridge with devices 1 to 4 as ports 1 to 4, and OVN's option of Geneve.
fn one(groups: &[&str], flows: &[&str]) -> Switch {
    let mut s = Switch::new(100);
    let b = s.add_bridge("br0", 1);
    for i in 1..=4 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    let map = TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 };
    s.apply(b, &Message::TlvTableMod(TlvTableMod { command: 0, maps: vec![map] }), NOW).expect("map");
    for g in groups {
        s.apply(b, &put(GroupModCommand::Add, g), NOW).expect("group");
    }
    flows.iter().for_each(|f| assert_eq!(refused(&mut s, f), None, "{f}"));
    s
}

fn put(command: GroupModCommand, g: &str) -> Message {
    Message::GroupMod(GroupMod::new(command, parse_group(g).expect("group")))
}

fn send(s: &mut Switch, dev: u32, p: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut out = Outputs::default();
    s.process(&mut vec![(DeviceId(dev), p.to_vec())], NOW, &mut out);
    out.packets.into_iter().map(|(to, p)| (to.device().0, p)).collect()
}

fn told(s: &mut Switch, p: &[u8]) -> Vec<PacketIn> {
    let mut out = Outputs::default();
    s.process(&mut vec![(DeviceId(1), p.to_vec())], NOW, &mut out);
    packet_ins(out)
}

fn packet_ins(out: Outputs<Vec<u8>>) -> Vec<PacketIn> {
    let one = |e| match e {
        Event::PacketIn { packet_in, .. } => Some(*packet_in),
        _ => None,
    };
    out.events.into_iter().filter_map(one).collect()
}

fn flow(s: &Switch, table: u8) -> String {
    let f = s.bridge(BridgeId(0)).expect("bridge").flows().find(|f| f.table == TableId(table)).expect("flow");
    flow_to_string(&f.to_flow_mod())
}

/// Of a value that is longer than a tunnel's option, its first bytes count.
#[test]
fn long_options_are_cut() {
    let group = "group_id=1,type=all,bucket=actions=set_field:0x1122334455667788->tun_metadata0,output:2";
    let s = one(
        &[group],
        &[
            "table=0 actions=set_field:0x1122334455667788->tun_metadata0",
            "table=1 actions=clone(set_field:0x1122334455660000/0xffffffffffff0000->tun_metadata0)",
            "table=2 actions=set_field:0x55667788->tun_metadata0",
            "table=3 actions=set_field:0x1122330000000000/0xffffff0000000000->tun_metadata0",
        ],
    );
    assert!(flow(&s, 0).ends_with("actions=set_field:0x11223344->tun_metadata0"), "{}", flow(&s, 0));
    assert!(flow(&s, 1).ends_with("actions=clone(set_field:0x11223344->tun_metadata0)"), "{}", flow(&s, 1));
    assert!(flow(&s, 2).ends_with("actions=set_field:0x55667788->tun_metadata0"), "{}", flow(&s, 2));
    assert!(flow(&s, 3).ends_with("actions=set_field:0x11223300/0xffffff00->tun_metadata0"), "{}", flow(&s, 3));
    let bucket = &s.bridge(BridgeId(0)).expect("bridge").groups().next().expect("group").group.buckets[0];
    assert_eq!(bucket.actions[0], Action::set(FieldId::TunMetadata0, 0x1122_3344));
}

/// `arp_op` has 16 bits, of which eight count.
#[test]
fn operations_of_arp_have_16_bits() {
    let whole = Subfield::bits(FieldId::ArpOp, 0, 15).expect("16 bits");
    assert!(whole.is_full());
    let mut s = one(
        &[],
        &[
            "arp actions=load:0x2->NXM_OF_ARP_OP[0..15],learn(table=1,eth_type=0x806,NXM_OF_ARP_OP[]=NXM_NX_REG0[0..15]),output:2",
            "table=2,arp actions=move:NXM_OF_ARP_OP[]->NXM_NX_REG0[0..15]",
        ],
    );
    let p = build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    assert_eq!(send(&mut s, 1, &p)[0].1[20..22], [0, 2]);
    assert!(flow(&s, 1).contains("arp_op=0"), "{}", flow(&s, 1));
    for f in ["arp actions=load:0x1312->NXM_OF_ARP_OP[]", "arp actions=load:0x40->NXM_OF_ARP_OP[2..15]"] {
        assert_eq!(refused(&mut s, f), Some((2, 15)), "{f}");
    }
    let group = put(GroupModCommand::Add, "group_id=9,type=all,bucket=actions=load:0x1312->NXM_OF_ARP_OP[],output:1");
    assert_eq!(s.apply(BridgeId(0), &group, NOW).map_err(|e| e.numbers().1), Err(15));
}

/// What is written to RARP, or to ARP without an operation, is matched later, but not sent.
#[test]
fn writes_to_odd_arp_are_matched_but_not_sent() {
    let set = "set_field:10.0.0.9->arp_spa,set_field:02:00:00:00:00:99->arp_sha,set_field:02:00:00:00:00:77->eth_src";
    let mut s = one(
        &[],
        &[
            &format!("arp actions={set},resubmit(,1)"),
            &format!("rarp actions={set},resubmit(,1)"),
            "table=1,arp,arp_spa=10.0.0.9,arp_sha=02:00:00:00:00:99 actions=output:2",
            "table=1,rarp,arp_spa=10.0.0.9,arp_sha=02:00:00:00:00:99 actions=output:3",
        ],
    );
    let plain = build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    for (operation, kind, port, sent) in [(1, 0x06, 2, true), (0, 0x06, 2, false), (3, 0x35, 3, false)] {
        let mut p = plain.clone();
        (p[12], p[13], p[21]) = (if kind == 0x35 { 0x80 } else { 8 }, kind, operation);
        // The second packet is served by the flow cache.
        for _ in 0..2 {
            let out = send(&mut s, 1, &p);
            let [(to, q)] = out.as_slice() else { panic!("{out:?}") };
            assert_eq!((*to, q[6..12].to_vec()), (port, vec![2, 0, 0, 0, 0, 0x77]), "Ethernet is written");
            assert_eq!(q[22..] != p[22..], sent, "operation {operation}");
        }
    }
}

/// Nor is what is written to IP packets of protocol 0, whatever others of the same addresses made the cache keep before; what
/// is only read, or written to Ethernet, does not ask for the protocol.
#[test]
fn writes_to_packets_of_protocol_0_are_not_sent() {
    let set = "set_field:10.0.0.9->ip_src,set_field:02:00:00:00:00:77->eth_src";
    for actions in [format!("{set},output:2"), format!("push:NXM_OF_IP_SRC[],{set},pop:NXM_NX_REG0[],output:2")] {
        for order in [[0, 99], [99, 0]] {
            let mut s = one(&[], &[&format!("ip actions={actions}")]);
            for proto in order.repeat(3) {
                let mut p =
                    build::udp(B, A, ([10, 0, 0, 1].into(), 7), ([10, 0, 0, 2].into(), 8), 64, b"x").expect("udp");
                p[23] = proto;
                p[24..26].fill(0);
                let sum = packet::checksum::of(&p[14..34]);
                p[24..26].copy_from_slice(&sum.to_be_bytes());
                let out = send(&mut s, 1, &p);
                let [(2, q)] = out.as_slice() else { panic!("{out:?}") };
                assert_eq!(q[6..12], [2, 0, 0, 0, 0, 0x77], "Ethernet is written");
                assert_eq!(q[29], if proto == 0 { 1 } else { 9 }, "protocol {proto} of {order:?}");
            }
        }
    }
}

/// A third tag is payload; where one is pushed before two, the inner one of them is lost.
#[test]
fn third_tags() {
    let mut s = one(
        &[],
        &[
            "in_port=1 actions=push_vlan:0x8100,set_field:4105->vlan_vid,output:2",
            "in_port=3,vlan_tci=0x1000/0x1000 actions=pop_vlan,output:2",
            "in_port=4,vlan_tci=0x1000/0x1000 actions=set_field:4105->vlan_vid,output:2",
        ],
    );
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    for _ in 0..2 {
        assert_eq!(send(&mut s, 1, &tagged(&p, &[1])), [(2, tagged(&p, &[9, 1]))]);
        assert_eq!(send(&mut s, 1, &tagged(&p, &[1, 2])), [(2, tagged(&p, &[9, 1]))]);
        assert_eq!(send(&mut s, 1, &tagged(&p, &[1, 2, 3])), [(2, tagged(&p, &[9, 1, 3]))]);
        assert_eq!(send(&mut s, 3, &tagged(&p, &[1, 2, 3])), [(2, tagged(&p, &[2, 3]))]);
        assert_eq!(send(&mut s, 4, &tagged(&p, &[1, 2, 3])), [(2, tagged(&p, &[9, 2, 3]))]);
    }
}

/// What a clone that cannot be undone has pushed does not count where the packet is cut afterwards; what is pushed before a
/// comparison of lengths does.
#[test]
fn cuts_count_the_tags_that_are_there() {
    let mut s = one(
        &[],
        &[
            "in_port=1 actions=clone(push_vlan:0x8100,output(port=2,max_len=100)),output(port=3,max_len=15)",
            "in_port=2 actions=push_vlan:0x88a8,check_pkt_larger(61)->NXM_NX_REG0[0],output(port=3,max_len=40)",
            "in_port=4,vlan_tci=0x1000/0x1000 actions=clone(pop_vlan,output(port=2,max_len=100)),output(port=3,max_len=15)",
        ],
    );
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let tag = tagged(&p, &[5]);
    assert_eq!(send(&mut s, 1, &tag).last(), Some(&(3, tag[..15].to_vec())));
    assert_eq!(send(&mut s, 2, &p)[0].1.len(), 40);
    assert_eq!(send(&mut s, 4, &tag).last(), Some(&(3, tag[..15].to_vec())));
    // Of a clone that can be undone the tag is taken off behind the cut: less than an Ethernet header is left.
    assert_eq!(refused(&mut s, "in_port=3 actions=clone(push_vlan:0x8100,output:2),output(port=4,max_len=15)"), None);
    assert_eq!(send(&mut s, 3, &p), [(2, tagged(&p, &[0]))]);
}

/// Right behind `ct`, `ct_clear` leaves the packet with its connection: no other is made of what it was translated to.
#[test]
fn clearing_behind_ct_keeps_the_connection() {
    let to = |n| format!("ct(commit,zone=1,nat(dst=10.0.0.{n}))");
    let mut s = one(&[], &[&format!("ip actions={},ct_clear,{},output:2", to(7), to(8))]);
    let out = send(&mut s, 1, &tcp("10.0.0.1", 1000, "10.0.0.2", 80, 2));
    assert_eq!(out[0].1[30..34], [10, 0, 0, 7]);
    assert_eq!(s.conntrack.lock().dump(None, None).lines().count(), 1, "{}", s.conntrack.lock().dump(None, None));
}

/// Learned flows go when no flow learns such any more: one of several may go, or get other actions.
#[test]
fn what_a_flow_learned_goes_when_it_learns_something_else() {
    let learned = ["table=1,cookie=0x123,reg0=3 actions=drop", "table=1,cookie=0x234,reg0=4 actions=drop"];
    let by = |cookie: u32| format!("learn(table=1,delete_learned,cookie={cookie:#x})");
    let mut s = one(&[], &learned);
    for n in 1..=2 {
        assert_eq!(refused(&mut s, &format!("reg0={n} actions={}", by(0x123))), None);
    }
    let left = |s: &Switch| s.bridge(BridgeId(0)).expect("bridge").flows().filter(|f| f.table == TableId(1)).count();
    assert_eq!(refused(&mut s, "reg0=1 actions=drop"), None);
    assert_eq!(left(&s), 2, "the other flow learns them still");
    assert_eq!(refused(&mut s, &format!("reg0=2 actions=output:1,{}", by(0x123))), None);
    assert_eq!(left(&s), 2, "it does as before");
    assert_eq!(refused(&mut s, &format!("reg0=2 actions={}", by(0x234))), None);
    assert_eq!(left(&s), 1, "those of the other cookie");
}

/// Learned flows have the timeouts for ended connections that their learner asks for.
#[test]
fn learned_flows_have_the_timeouts_of_ended_connections() {
    let learn = "table=0,actions=learn(table=1,fin_idle_timeout=5,fin_hard_timeout=10,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])";
    let mut s = one(&[], &[learn]);
    let mut out: Outputs<Vec<u8>> = Outputs::default();
    s.process(&mut vec![(DeviceId(1), udp("10.0.0.1", 1, "10.0.0.2", 2))], NOW, &mut out);
    let flow = s
        .bridge(BridgeId(0))
        .expect("bridge")
        .flows()
        .find(|f| f.table == TableId(1))
        .map(|f| flow_to_string(&f.to_flow_mod()));
    assert!(
        flow.as_ref().is_some_and(|f| f.contains("fin_timeout(idle_timeout=5,hard_timeout=10),output:1")),
        "{flow:?}"
    );
}

/// A pause says why itself; once the packet goes on, what it looks up is of the flow that it waited in.
#[test]
fn pauses_say_where_they_are() {
    let mut s = one(
        &[],
        &[
            "cookie=1,priority=0 actions=resubmit(,1)",
            "table=1,cookie=2,priority=0 actions=controller(pause),resubmit(,2)",
            "table=2,cookie=3 actions=controller(pause)",
        ],
    );
    let list = told(&mut s, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    let [first] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!((first.reason, first.cookie), (PacketInReason::Action, 1));
    let mut out = Outputs::default();
    s.resume(first, &Vec::new(), NOW, &mut out).expect("resumes");
    let list = packet_ins(out);
    let [second] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!(second.cookie, 2, "of the flow that it waited in");
}

/// What a group of an action set looks up is of the action set, and what follows it of the walk's first flow.
#[test]
fn groups_of_action_sets() {
    let mut s = one(
        &["group_id=3,type=all,bucket=bucket_id:1,actions=resubmit(,5),bucket=bucket_id:2,actions=CONTROLLER:65535"],
        &["cookie=1,priority=1 actions=write_actions(group:3)", "table=5,cookie=5,priority=1 actions=CONTROLLER:65535"],
    );
    let list = told(&mut s, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    let said: Vec<_> = list.iter().map(|p| (p.table, p.cookie, p.reason)).collect();
    assert_eq!(said, [(TableId(5), 5, PacketInReason::ActionSet), (TableId(0), 1, PacketInReason::Group)]);
    // A group that is changed does what its buckets say by then.
    let mut more = GroupMod::new(
        GroupModCommand::InsertBucket,
        parse_group("group_id=3,type=all,bucket=bucket_id:7,actions=output:2,set_field:02:00:00:00:00:77->eth_dst")
            .expect("group"),
    );
    more.command_bucket_id = 0xffff_fffd;
    s.apply(BridgeId(0), &Message::GroupMod(more), NOW).expect("taken");
    let out = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    assert_eq!(out[0].1[..6], [2, 0, 0, 0, 0, 0x77]);
}

/// Where a table has as many learned flows as it may, none is replaced by another; the same is learned again.
#[test]
fn learning_ends_at_its_limit() {
    let learn = "learn(table=1,limit=1,cookie=0x4,result_dst=NXM_NX_REG0[0],NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])";
    let mut s = one(&[], &[&format!("actions={learn},resubmit(,2)"), "table=2,reg0=1 actions=output:4"]);
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    let other = tagged(&[&B[..], &B[..], &p[12..]].concat(), &[]);
    for (port, q, learned) in [(1, &p, true), (1, &p, true), (2, &p, false), (1, &other, false)] {
        assert_eq!(!send(&mut s, port, q).is_empty(), learned, "from port {port}");
    }
    assert!(flow(&s, 1).ends_with("actions=output:1"), "{}", flow(&s, 1));
}

/// No connection is committed by a flow for packets that are in none; connections' marks are set in `ct` only.
#[test]
fn invalid_packets_commit_nothing() {
    let mut s = one(&[], &[]);
    assert_eq!(refused(&mut s, "ct_state=+inv+trk,tcp actions=ct(commit)"), Some((2, 10)));
    assert_eq!(refused(&mut s, "ct_state=+inv+trk,tcp actions=ct(table=1)"), None);
    assert_eq!(refused(&mut s, "ct_state=-inv+trk,tcp actions=ct(commit)"), None);
    assert_eq!(refused(&mut s, "actions=set_field:1->ct_mark"), Some((2, 15)));
    assert_eq!(refused(&mut s, "actions=write_actions(set_field:1->ct_mark)"), None, "of no effect");
    let group = put(GroupModCommand::Add, "group_id=9,type=all,bucket=actions=set_field:1->ct_mark,output:1");
    assert_eq!(s.apply(BridgeId(0), &group, NOW).map_err(|e| e.numbers().1), Err(15));
}

/// An error about a connection's other direction ends it where it is to begin anew.
#[test]
fn errors_end_connections_by_force() {
    let mut s = one(&[], &["ip actions=ct(commit,force,table=1)", "table=1,ct_state=+inv actions=output:2"]);
    let p = tcp("10.0.0.1", 1000, "10.0.0.2", 80, 2);
    assert_eq!(send(&mut s, 1, &p), []);
    assert_eq!(s.conntrack.lock().len(), 1);
    let e = build::icmp_error(&p, B, ip("10.0.0.2"), 3, 1, 0).expect("error");
    assert_eq!(send(&mut s, 1, &e).len(), 1, "invalid");
    assert!(s.conntrack.lock().is_empty());
}

/// What an error quotes keeps its checksum where it is translated.
#[test]
fn quoted_checksums_hold() {
    let mut s = one(
        &[],
        &[
            "in_port=1,ip actions=ct(commit,zone=1,table=1,nat(src=10.0.0.8))",
            "in_port=1,ipv6 actions=ct(commit,zone=1,table=1,nat(src=fd00::8))",
            "in_port=2,ip actions=ct(zone=1,table=1,nat)",
            "in_port=2,ipv6 actions=ct(zone=1,table=1,nat)",
            "table=1,in_port=1 actions=output:2",
            "table=1,ct_state=+rel,in_port=2 actions=output:1",
        ],
    );
    let echo = [8, 0, 0, 0, 0, 7, 0, 1];
    let list = [
        tcp("10.0.0.1", 1000, "10.0.0.2", 80, 2),
        udp("10.0.0.1", 1000, "10.0.0.2", 80),
        build::ip_packet(B, A, ip("10.0.0.1"), ip("10.0.0.2"), 1, 64, &echo).expect("echo"),
        tcp("fd00::1", 1000, "fd00::2", 80, 2),
        udp("fd00::1", 1000, "fd00::2", 80),
        build::ip_packet(B, A, ip("fd00::1"), ip("fd00::2"), 58, 64, &[128, 0, 0, 0, 0, 7, 0, 1]).expect("echo"),
    ];
    for p in list {
        let v6 = p[12] == 0x86;
        let out = send(&mut s, 1, &p);
        let (from, kind) = if v6 { (ip("fd00::2"), 1) } else { (ip("10.0.0.2"), 3) };
        let e = build::icmp_error(&out[0].1, B, from, kind, 1, 0).expect("error");
        let back = send(&mut s, 2, &e);
        let [(1, q)] = back.as_slice() else { panic!("{back:?}") };
        let quote = Headers::parse(q).and_then(|h| Some(h.l4? + 8)).expect("headers");
        assert_eq!([&p[..14], &q[quote..]].concat(), p, "it quotes what was sent");
        let h = Headers::parse(q).expect("headers");
        assert!(checksum::l4_ok(q, &h));
    }
}

/// Protocols without ports are translated whatever ports are named.
#[test]
fn protocols_without_ports_have_none_to_translate() {
    let mut s = one(&[], &["ip actions=ct(commit,zone=1,table=1,nat(dst=10.0.0.9:2007))", "table=1 actions=output:2"]);
    let p = build::ip_packet(B, A, ip("10.0.0.1"), ip("10.0.0.2"), 2, 64, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("IGMP");
    let out = send(&mut s, 1, &p);
    assert_eq!((&out[0].1[30..34], &out[0].1[34..]), (&[10, 0, 0, 9][..], &p[34..]));
}

/// What is written to a neighbour solicitation is written before its type or code becomes another.
#[test]
fn neighbours_are_written_first() {
    let f =
        "icmp6,icmp_type=135,icmp_code=0 actions=set_field:02:00:00:00:00:77->nd_sll,set_field:1->icmpv6_code,output:2";
    let mut s = one(&[], &[f]);
    let p = build::nd_ns(A, "fd00::1".parse().expect("address"), "fd00::2".parse().expect("address"));
    let out = send(&mut s, 1, &p);
    let q = &out[0].1;
    assert_eq!((q[55], &q[80..86]), (1, &[2, 0, 0, 0, 0, 0x77][..]));
    assert!(checksum::l4_ok(q, &Headers::parse(q).expect("headers")));
}

/// What a clone translates in an ICMP error, or of an ICMP id, is the clone's.
#[test]
fn translation_in_clones_stays_there() {
    let mut s = one(
        &[],
        &[
            "in_port=1,ip actions=ct(commit,zone=1,table=1,nat(src=10.0.0.8))",
            "in_port=2,ip actions=clone(ct(zone=1,table=1,nat)),output:3",
            "in_port=4,ip actions=clone(ct(commit,zone=1,table=1,nat(src=10.0.0.8))),output:3",
            "table=1,in_port=2 actions=output:1",
            "table=1 actions=output:2",
        ],
    );
    let out = send(&mut s, 1, &udp("10.0.0.1", 1000, "10.0.0.2", 80));
    let e = build::icmp_error(&out[0].1, B, ip("10.0.0.2"), 3, 1, 0).expect("error");
    let back = send(&mut s, 2, &e);
    assert_eq!(back.iter().map(|o| o.0).collect::<Vec<_>>(), [1, 3]);
    assert!(back[0].1 != e && back[1].1 == e);
    let echo = |host: &str| build::ip_packet(B, A, ip(host), ip("10.0.0.2"), 1, 64, &[8, 0, 0xf7, 0xf7, 0, 7, 0, 1]);
    let (p, q) = (echo("10.0.0.1").expect("echo"), echo("10.0.0.3").expect("echo"));
    send(&mut s, 1, &p);
    for _ in 0..2 {
        let out = send(&mut s, 4, &q);
        assert!(out[0].1[38..40] != [0, 7] && out[1] == (3, q.clone()), "another id in the clone only");
    }
}

/// Packets whose UDP or TCP header says of more bytes than there are belong to no connection.
#[test]
fn lengths_beyond_the_packet_are_invalid() {
    let mut s =
        one(&[], &["ip actions=ct(table=1)", "table=1,ct_state=+new actions=output:2", "table=1 actions=output:3"]);
    let (u, t) = (udp("10.0.0.1", 1, "10.0.0.2", 2), tcp("10.0.0.1", 1, "10.0.0.2", 2, 2));
    // Where a length is, and for what it says the port that the packet comes out of.
    let list: [(&[u8], usize, u8, u32); 7] = [
        (&u, 39, 20, 2),
        (&u, 39, 19, 2),
        (&u, 39, 21, 3),
        (&u, 39, 7, 3),
        (&t, 46, 0x50, 2),
        (&t, 46, 0x60, 3),
        (&t, 46, 0x40, 3),
    ];
    for (i, (p, at, length, port)) in (0..).zip(list) {
        let mut q = p.to_vec();
        // Each has its own source port, so that no cached flow serves it.
        (q[at], q[35]) = (length, 10 + i);
        let h = Headers::parse(&q).expect("headers");
        checksum::set_l4(&mut q, &h);
        let out = send(&mut s, 1, &q);
        assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [port], "{length}");
    }
}

/// A fragment that is not the last and whose length is no multiple of eight waits: there is never a whole datagram.
#[test]
fn odd_fragments_wait() {
    let mut s = one(&[], &["ip actions=ct(table=1)", "table=1 actions=output:2"]);
    let mut p = build::udp(B, A, (ip("10.0.0.1"), 1), (ip("10.0.0.2"), 2), 64, &[7; 1301]).expect("udp");
    p[20] = 0x20;
    checksum::set_ipv4(&mut p, 14);
    assert_eq!(send(&mut s, 1, &p), []);
    let mut out = Outputs::default();
    s.tick(NOW + Duration::from_secs(20), &mut out);
    s.process(&mut vec![(DeviceId(1), p)], NOW + Duration::from_secs(20), &mut out);
    assert!(out.packets.is_empty());
    assert_eq!(s.drops.get(DropReason::FragmentTimeout), 1);
    // So does one in which there is nothing.
    let mut p = build::ip_packet(B, A, ip("10.0.0.1"), ip("10.0.0.2"), 2, 64, &[]).expect("empty");
    p[21] = 100;
    checksum::set_ipv4(&mut p, 14);
    assert_eq!(send(&mut s, 1, &p), []);
    assert_eq!(s.fragments.len(), 2);
}

/// All ports of a range are given; a source that has one of them keeps it while it is free. Which one a connection gets follows
/// from the connection, so every switch gives it the same.
#[test]
fn every_port_of_a_range_is_given() {
    let mut s =
        one(&[], &["ip actions=ct(commit,zone=1,table=1,nat(src=172.16.0.1:7000-7003))", "table=1 actions=output:2"]);
    let mut ports = Vec::new();
    for (host, port) in [(1, 5000), (2, 5000), (3, 7003), (4, 7003), (5, 5000)] {
        let out = send(&mut s, 1, &udp(&format!("10.0.0.{host}"), port, "10.0.1.1", 53));
        ports.extend(out.iter().map(|(_, q)| u16::from_be_bytes([q[34], q[35]])));
    }
    let first_free = !ports[..2].contains(&7003);
    assert!(!first_free || ports[2] == 7003, "{ports:?}");
    ports.sort_unstable();
    assert_eq!(ports, [7000, 7001, 7002, 7003]);
    assert_eq!(s.drops.get(DropReason::NatExhausted), 1);
    // Other destinations have the same ports once more.
    let out = send(&mut s, 1, &udp("10.0.0.6", 5000, "10.0.1.2", 53));
    assert!((7000..=7003).contains(&u16::from_be_bytes([out[0].1[34], out[0].1[35]])));
}

/// Flags without names are written as a number, which reads back.
#[test]
fn flags_without_names_are_numbers() {
    let f = FlowMod::add(TableId(0), 1, 0, Match::new(), vec![Action::set_masked(FieldId::CtState, 0, 0x100)]);
    let text = flow_to_string(&f);
    assert!(text.ends_with("set_field:0/0x100->ct_state"), "{text}");
    assert_eq!(parse_flow(&text).expect("flow").actions, f.actions);
}

/// `ovs-ofctl dump-flows BR nw_src=…` without `ip` asks for flows of Ethernet packets, whatever the address.
#[test]
fn flows_of_ethernet_packets_are_found() {
    use openflow_rs::message::FlowStatsRequest;
    let s = one(
        &[],
        &[
            "priority=1,ip actions=drop",
            "priority=2,dl_src=02:00:00:00:00:01 actions=drop",
            "priority=3,reg0=7 actions=drop",
        ],
    );
    let found = |matches: Match| -> Vec<u16> {
        let q = FlowStatsRequest { matches, ..Default::default() };
        let rules = s.bridge(BridgeId(0)).map(|b| b.rules(q.table)).unwrap_or_default();
        let mut all: Vec<u16> = switch::bridge::flow_stats(&rules, &q, NOW).iter().map(|f| f.flow.priority).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(found(Match::new().with(FieldId::PacketType, 0)), [1, 2]);
    assert_eq!(found(Match::new().with(FieldId::PacketType, 0).with(FieldId::EthType, 0x800)), [1]);
    assert_eq!(found(Match::new().with(FieldId::PacketType, 1 << 16)), [0u16; 0]);
    assert_eq!(found(Match::new()), [1, 2, 3]);
}
