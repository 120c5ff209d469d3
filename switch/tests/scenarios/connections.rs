//! Connection tracking and address translation: what packets of a connection become, and why some cannot be of one.

use crate::rig::{A, B, NOW, good, ip, of_size, one, send, udp, via};
use openflow_rs::text::parse_flow;
use openflow_rs::*;
use packet::{Headers, build};
use std::time::Duration;
use switch::conntrack::Zone;
use switch::{BridgeId, DeviceId, DropReason, Outputs, Port, PortKind, Switch};

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
    assert_eq!(out[0].0, via(2));
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
    assert!(s.conntrack.lock().dump(Some(Zone(5)), None).contains("mark=7"));
    s.apply(BridgeId(0), &Message::CtFlushZone(5), NOW).expect("flush");
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
    assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [2, 3].map(via));
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
        assert_eq!(
            send(&mut s, 1, &p).packets,
            [(via(2), p.clone())],
            "what was found of a damaged packet is not kept"
        );
    }
}

/// `resubmit(,T,ct)` looks flows up by the tuple that the connection began with. A translation counts as one
/// (`+dnat`) even where it leaves the address as it is.
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
        let [(to, p)] = out.as_slice() else { panic!("{out:?}") };
        assert_eq!(*to, via(2));
        assert_eq!(p[30..34], [10, 0, 0, 9]);
        let same = send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.9", 9)).packets;
        assert_eq!(same, [(via(3), udp("10.0.0.1", 1, "10.0.0.9", 9))]);
    }
}

/// An ICMP error about a translated packet quotes the packet as its sender sent it, checksums included (RFC 5508
/// section 4.2). It has a right checksum itself, and comes from an address that the sender knows.
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

/// A packet whose connection cannot be made is dropped, and the reason is counted: the table is full, the zone is
/// full, or no port is left to translate to.
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
    s.conntrack.lock().set_limit(Some(Zone(2)), 2);
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

/// What follows a `ct` that cannot make its connection is not done: nothing leaves untranslated. All addresses of a range are
/// used before that.
#[test]
fn nothing_leaves_untranslated() {
    for (range, of_one, all) in
        [("20.0.0.7:7000-7001", 2, 2), ("20.0.0.7-20.0.0.9:7000-7001", 2, 6), ("20.0.0.1-20.0.0.9", 20, 20)]
    {
        let mut s = one(&[
            &format!("in_port=1,udp actions=ct(commit,zone=1,nat(src={range})),output:2"),
            &format!("in_port=2,ip,nw_proto=50 actions=ct(commit,zone=1,nat(src={range})),output:1"),
            "table=1 actions=output:3",
        ]);
        let mut sources = std::collections::BTreeMap::new();
        for n in 0..20 {
            for (_, p) in send(&mut s, 1, &udp("10.0.0.1", 5000 + n, "10.0.0.2", 1)).packets {
                good(&p);
                assert_eq!(p[26], 20, "{range}: a packet of the host's own address");
                *sources.entry(p[29]).or_insert(0) += 1;
            }
        }
        assert_eq!(sources.values().sum::<i32>(), all, "{range}: {sources:?}");
        assert!(sources.values().all(|n| *n == of_one), "{range}: {sources:?}");
        // Without ports each address has one connection with the same peer.
        let esp = |n| build::ip_packet(A, B, ip(&format!("10.0.1.{n}")), ip("10.0.0.2"), 50, 64, &[7; 16]).expect("v4");
        let sent = (0..20).map(|n| send(&mut s, 2, &esp(n)).packets.len()).sum::<usize>();
        let addresses = match range {
            "20.0.0.7:7000-7001" => 1,
            "20.0.0.1-20.0.0.9" => 9,
            _ => 3,
        };
        assert_eq!(sent, addresses, "{range}");
    }
}

/// A connection's label is made of its packet as that was before the translation.
#[test]
fn labels_are_of_the_packet_before_its_translation() {
    let mut s = one(&[
        "in_port=1,udp actions=ct(commit,zone=1,nat(src=20.0.0.7:7000-7009),exec(move:NXM_OF_IP_SRC[]->NXM_NX_CT_LABEL[32..63],move:NXM_OF_UDP_SRC[]->NXM_NX_CT_MARK[0..15]),table=1)",
        "table=1,udp,nw_src=20.0.0.7,ct_mark=5000,ct_label=0x0a00000100000000 actions=output:2",
        "table=1,udp,nw_src=20.0.0.7,ct_mark=5001,ct_label=0x0a00000200000000 actions=output:3",
    ]);
    for (host, port, to) in [("10.0.0.1", 5000, 2), ("10.0.0.2", 5001, 3), ("10.0.0.1", 5000, 2)] {
        let out = send(&mut s, 1, &udp(host, port, "10.0.0.9", 1)).packets;
        assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [via(to)], "{host}");
        good(&out[0].1);
    }
}

/// An ICMPv6 error is about the connection of what it quotes, whatever extension headers that has.
#[test]
fn errors_quote_packets_with_extension_headers() {
    let mut s = one(&[
        "in_port=1,ipv6 actions=ct(commit,zone=1,nat(src=fd01::1)),output:2",
        "in_port=2,ipv6 actions=ct(zone=1,nat,table=1)",
        "table=1,ct_state=+rel-inv,ipv6,ipv6_dst=fd00::1 actions=output:1",
    ]);
    let datagram = [&[0x13, 0x88, 0, 53, 0, 12, 0, 0][..], b"ping"].concat();
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let fragment = |offset: u8| [17, 0, 0, offset, 0, 0, 0, 9];
    for (first, header, told) in [(17, &[][..], 1), (60, &options, 1), (44, &fragment(0), 1), (44, &fragment(8), 0)] {
        // The first packet, which opens the connection, is of the datagram alone.
        let mut p = build::ip_packet(A, B, ip("fd00::1"), ip("fd02::2"), 17, 64, &datagram).expect("v6");
        let h = Headers::parse(&p).expect("headers");
        packet::checksum::set_l4(&mut p, &h);
        let out = send(&mut s, 1, &p).packets.remove(0).1;
        let quoted =
            [&out[14..18], &[0, (datagram.len() + header.len()) as u8, first, 64], &out[22..54], header, &out[54..]];
        let body = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &quoted.concat()].concat();
        let mut e = build::ip_packet(B, A, ip("fd02::9"), ip("fd01::1"), 58, 64, &body).expect("v6");
        let h = Headers::parse(&e).expect("headers");
        packet::checksum::set_l4(&mut e, &h);
        let back = send(&mut s, 2, &e).packets;
        assert_eq!(back.len(), told, "{first}, {header:?}");
        for (_, b) in back {
            good(&b);
            let own = std::net::Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]).octets();
            assert_eq!((&b[38..54], &b[62 + 8..62 + 24]), (&own[..], &own[..]), "{first}: the host, and what it sent");
        }
    }
}

/// An ICMP error that quotes a later fragment is about no connection: what would be ports are bytes of the datagram.
#[test]
fn errors_about_later_fragments_are_about_no_connection() {
    let mut s = one(&[
        "in_port=1,ip actions=ct(commit,zone=1,nat(src=10.1.1.1)),output:2",
        "in_port=2,ip actions=ct(zone=1,nat,table=1)",
        "table=1,ct_state=+rel-inv,ip,nw_dst=10.0.0.1 actions=output:1",
    ]);
    let out = send(&mut s, 1, &udp("10.0.0.1", 5000, "10.0.0.9", 53)).packets.remove(0).1;
    // Whole, the first one, a later one, the last one; each again, when there is a flow for such an error.
    for (fragment, told) in [(0x4000u16, 1), (0x2000, 1), (0x2005, 0), (5, 0), (0x4000, 1)] {
        for _ in 0..3 {
            let mut quoted = out[14..].to_vec();
            quoted[6..8].copy_from_slice(&fragment.to_be_bytes());
            packet::checksum::set_ipv4(&mut quoted, 0);
            let body = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
            let mut e = build::ip_packet(B, A, ip("10.0.0.9"), ip("10.1.1.1"), 1, 64, &body).expect("v4");
            let h = Headers::parse(&e).expect("headers");
            packet::checksum::set_l4(&mut e, &h);
            assert_eq!(send(&mut s, 2, &e).packets.len(), told, "{fragment:#x}");
            // Wrong checksums are seen whether or not there is a flow.
            for at in [24, 36] {
                let mut wrong = e.clone();
                wrong[at] ^= 0x55;
                assert_eq!(send(&mut s, 2, &wrong).packets.len(), 0, "{fragment:#x}, {at}");
            }
        }
    }
}

/// SCTP through SNAT, with a packet of an association (INIT), and the same once more: both reach the controller,
/// translated.
#[test]
fn sctp_is_translated_each_time() {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    let now = Duration::from_secs(1);
    for no in [1, 2] {
        s.add_port(b, Port::new(PortNo(no), &format!("p{no}"), PortKind::Device(DeviceId(no.into())))).expect("port");
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
