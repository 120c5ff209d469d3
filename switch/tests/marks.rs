//! What the end of a connection, a mirror's filter and a queue's mark do to packets and flows, cached or not.

use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo, TableId};
use packet::{Headers, checksum};
use std::time::Duration;
use switch::{BridgeId, DeviceId, Mirror, MirrorOutput, Outputs, Port, PortKind, Switch};

const NOW: Duration = Duration::from_secs(10);
const FIN: u8 = 0x11;
const ACK: u8 = 0x10;
const RST: u8 = 0x04;

/// A bridge with devices 1 to 3 as ports 1 to 3.
fn one(flows: &[&str]) -> Switch {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    for i in 1..=3 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    for f in flows {
        s.apply(b, &Message::FlowMod(parse_flow(f).expect("flow")), NOW).expect("applies");
    }
    s
}

/// A TCP segment without data over IPv4 or IPv6, with a tag or without.
fn segment(v6: bool, tag: Option<u16>, port: u16, flags: u8) -> Vec<u8> {
    let mut p = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    p.extend(tag.into_iter().flat_map(|t| [0x8100u16.to_be_bytes(), t.to_be_bytes()].concat()));
    if v6 {
        p.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
        p.extend([
            0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        ]);
    } else {
        p.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    p.extend(port.to_be_bytes());
    p.extend([0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    let h = Headers::parse(&p).expect("headers");
    if h.is_ipv4() {
        let sum = checksum::of(&p[h.l3..h.l3 + 20]);
        p[h.l3 + 10..h.l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    checksum::set_l4(&mut p, &h);
    p
}

fn send(s: &mut Switch, device: u32, p: &[u8], now: Duration) -> Vec<(u32, Vec<u8>)> {
    let mut out = Outputs::default();
    s.process(&mut vec![(DeviceId(device), p.to_vec())], now, &mut out);
    out.packets.into_iter().map(|(to, p)| (to.device().0, p)).collect()
}

/// The idle and hard timeouts of the flows of a table.
fn timeouts(s: &Switch, table: u8) -> Vec<[u16; 2]> {
    let b = s.bridge(BridgeId(0)).expect("bridge");
    b.flows().filter(|r| r.table == TableId(table)).map(|r| [r.idle_timeout(), r.hard_timeout()]).collect()
}

/// FIN or RST lowers a flow's timeouts to those of its `fin_timeout`, never raises them, whatever is cached; others and
/// other protocols do not. The flow then expires by the new ones.
#[test]
fn the_end_of_a_connection_lowers_timeouts() {
    for (v6, tag, end) in [(false, None, FIN), (true, None, RST), (false, Some(5), RST), (true, Some(5), FIN)] {
        for (own, fin, then) in [([60, 0], [5, 7], [5, 7]), ([3, 100], [5, 7], [3, 7]), ([0, 9], [0, 20], [0, 9])] {
            let kind = if v6 { "tcp6" } else { "tcp" };
            let flow = format!(
                "{kind},idle_timeout={},hard_timeout={},actions=output:2,fin_timeout(idle_timeout={},hard_timeout={})",
                own[0], own[1], fin[0], fin[1]
            );
            let mut s = one(&[&flow]);
            for _ in 0..3 {
                assert_eq!(send(&mut s, 1, &segment(v6, tag, 7, ACK), NOW).len(), 1);
            }
            assert_eq!(timeouts(&s, 0), [own], "{flow}");
            assert_eq!(send(&mut s, 1, &segment(v6, tag, 7, end), NOW).len(), 1);
            assert_eq!(timeouts(&s, 0), [then], "{flow}");
            let lasts = then.into_iter().filter(|t| *t != 0).min().map_or(0, u64::from);
            let mut out = Outputs::<Vec<u8>>::default();
            s.tick(NOW + Duration::from_secs(lasts) - Duration::from_millis(1), &mut out);
            assert_eq!(timeouts(&s, 0).len(), 1, "{flow}: not yet");
            s.tick(NOW + Duration::from_secs(lasts), &mut out);
            assert_eq!(timeouts(&s, 0).len(), 0, "{flow}: expired");
        }
    }
}

/// A learned flow has the timeouts that `learn` gives for the end; the flow behind a resubmit is meant, not the first one.
#[test]
fn learned_flows_end_with_their_connections() {
    let learn = "table=0,tcp,actions=learn(table=1,idle_timeout=60,fin_idle_timeout=4,eth_type=0x800,nw_proto=6,\
                 NXM_OF_TCP_SRC[],output:NXM_OF_IN_PORT[]),resubmit(,1)";
    let mut s = one(&[learn]);
    for port in [7, 8] {
        for _ in 0..2 {
            send(&mut s, 1, &segment(false, None, port, ACK), NOW);
        }
    }
    assert_eq!(timeouts(&s, 1), [[60, 0]; 2]);
    send(&mut s, 1, &segment(false, None, 8, FIN), NOW);
    let mut left = timeouts(&s, 1);
    left.sort_unstable();
    assert_eq!(left, [[4, 0], [60, 0]]);
    assert_eq!(timeouts(&s, 0), [[0, 0]], "the flow that learns has no such action");
}

/// A mirror with a filter copies what matches, and follows a change of the filter while flows are cached.
#[test]
fn mirrors_copy_what_matches() {
    let mut s = one(&["in_port=1,actions=output:2"]);
    let set = |s: &mut Switch, filter: Option<&str>| {
        let mirror = Mirror {
            name: "m".into(),
            all: true,
            sources: Default::default(),
            destinations: Default::default(),
            vlans: Default::default(),
            filter: filter.map(|f| f.parse().expect("match")),
            output: MirrorOutput::Port(PortNo(3)),
            snaplen: None,
        };
        s.bridge_mut(BridgeId(0)).expect("bridge").set_mirrors(vec![mirror]);
    };
    let copied = |s: &mut Switch, p: &[u8]| {
        let sent: Vec<Vec<u32>> = (0..3).map(|_| send(s, 1, p, NOW).into_iter().map(|(d, _)| d).collect()).collect();
        assert!(sent.iter().all(|l| *l == sent[0]) && sent[0].contains(&2), "{sent:?}");
        sent[0].contains(&3)
    };
    let packets = [
        segment(false, None, 7, ACK),
        segment(false, None, 9, ACK),
        segment(true, None, 7, ACK),
        segment(false, Some(5), 7, ACK),
    ];
    let cases: [(Option<&str>, [bool; 4]); 6] = [
        (None, [true; 4]),
        (Some("udp"), [false; 4]),
        (Some("tcp,tp_src=7"), [true, false, false, true]),
        (Some("tcp6"), [false, false, true, false]),
        (Some("dl_vlan=5"), [false, false, false, true]),
        (Some("ip,nw_dst=10.0.0.2/31,tcp_flags=+ack"), [true, true, false, true]),
    ];
    for (filter, wanted) in cases {
        set(&mut s, filter);
        let found: Vec<bool> = packets.iter().map(|p| copied(&mut s, p)).collect();
        assert_eq!(found, wanted, "{filter:?}");
    }
}

/// IP packets leave by a queue with its mark, and with right checksums; their congestion bits, other ports and later
/// copies stay as they are. A change holds for cached flows.
#[test]
fn queues_mark_packets() {
    let mut s =
        one(&["in_port=1,actions=set_queue:1,output:2,set_queue:2,output:2,pop_queue,output:2,set_queue:1,output:3"]);
    let dscp = |p: &[u8]| {
        let h = Headers::parse(p).expect("headers");
        if h.is_ipv4() {
            assert_eq!(checksum::of(&p[h.l3..h.l3 + 20]), 0, "header checksum");
            return p[h.l3 + 1];
        }
        p[h.l3] << 4 | p[h.l3 + 1] >> 4
    };
    for marks in [[(1, 46), (2, 8)].as_slice(), &[(2, 63)], &[]] {
        let all = marks.iter().map(|(q, m)| ((PortNo(2), *q), *m)).collect();
        s.bridge_mut(BridgeId(0)).expect("bridge").set_queue_marks(all);
        let of = |q| marks.iter().find(|(n, _)| *n == q).map_or(0, |(_, m)| m << 2);
        for (v6, tag) in [(false, None), (true, None), (false, Some(5)), (true, Some(5))] {
            for _ in 0..3 {
                let sent = send(&mut s, 1, &segment(v6, tag, 7, ACK), NOW);
                let mut found: Vec<(u32, u8)> = sent.iter().map(|(d, p)| (*d, dscp(p))).collect();
                found.sort_unstable();
                let mut wanted = vec![(2, of(1)), (2, of(2)), (2, 0), (3, 0)];
                wanted.sort_unstable();
                assert_eq!(found, wanted, "{marks:?}, IPv6: {v6}, tag {tag:?}");
            }
        }
        let arp = packet::build::arp_request(packet::Mac([2; 6]), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert!(send(&mut s, 1, &arp, NOW).iter().all(|(_, p)| *p == arp), "what is no IP stays");
    }
}

/// A flow that replaces another keeps the time of its last packet, also where its counters begin anew.
#[test]
fn a_flow_that_takes_anothers_place_is_as_idle() {
    let mut s = one(&["ip,actions=output:2"]);
    send(&mut s, 1, &segment(false, None, 7, ACK), NOW);
    let later = NOW + Duration::from_secs(5);
    let mut m = parse_flow("reset_counts,ip,actions=output:3").expect("flow");
    s.apply(BridgeId(0), &Message::FlowMod(m.clone()), later).expect("applies");
    let counters = |s: &mut Switch| {
        s.count();
        s.bridge(BridgeId(0)).expect("bridge").flows().map(|r| r.counters()).next().expect("a flow")
    };
    assert_eq!(counters(&mut s), (0, 0, NOW));
    send(&mut s, 1, &segment(false, None, 7, ACK), later);
    m.flags = Default::default();
    s.apply(BridgeId(0), &Message::FlowMod(m), later + Duration::from_secs(1)).expect("applies");
    assert_eq!(counters(&mut s).0, 1);
    assert_eq!(counters(&mut s).2, later);
}
