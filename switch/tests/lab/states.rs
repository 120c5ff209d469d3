//! Connection states, packet by packet.

use crate::compare::Pair;
use crate::ovs::Ovs;
use openflow_rs::Message;
use openflow_rs::text::parse_flow;
use packet::build;
use std::net::IpAddr;

/// When a connection is new, established or invalid, packet by packet: the state is written into the Ethernet source.
#[test]
fn same_connection_states() {
    let Some(mut ovs) = Ovs::start() else { return };
    let mut lines = vec![
        "table=0,in_port=1,ip actions=ct(table=1,zone=5)".to_string(),
        "table=0,in_port=2,ip actions=ct(table=2,zone=5)".to_string(),
        "table=1,ip actions=resubmit(,10),ct(commit,zone=5),output:2".to_string(),
        "table=2,ip actions=resubmit(,10),output:1".to_string(),
    ];
    for (i, state) in ["+new-est-rpl", "+new-est+rpl", "-new+est-rpl", "-new+est+rpl", "+inv"].iter().enumerate() {
        lines.push(format!("table=10,ct_state={state} actions=set_field:02:00:00:00:00:f{i}->eth_src"));
    }
    let (am, bm): (packet::Mac, packet::Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut list: Vec<(u16, Vec<u8>)> = Vec::new();
    // The payload or id numbers the packets, so that their order counts.
    for (n, back) in [false, false, true, false, true, false].into_iter().enumerate() {
        let (from, to) = if back { ((b, 2), (a, 1)) } else { ((a, 1), (b, 2)) };
        let p = build::udp(bm, am, from, to, 64, &[n as u8; 30]).expect("udp");
        list.push((1 + u16::from(back), p));
        let echo = [if back { 0 } else { 8 }, 0, 0, 0, 0, 7, 0, n as u8];
        let (s, d) = if back { (b, a) } else { (a, b) };
        list.push((1 + u16::from(back), build::ip_packet(bm, am, s, d, 1, 64, &echo).expect("icmp")));
    }
    list.push((2, build::ip_packet(bm, am, b, a, 1, 64, &[0, 0, 0, 0, 0, 9, 0, 1]).expect("lone reply")));
    let tcp = |back: bool, seq: u8, ack: u8, flags: u8, mark: u8| {
        let mut t = if back { vec![0, 80, 0x30, 5] } else { vec![0x30, 5, 0, 80] };
        t.extend_from_slice(&[0, 0, 0, seq, 0, 0, 0, ack, 0x50, flags, 0x20, mark, 0, 0, 0, 0]);
        let (s, d) = if back { (b, a) } else { (a, b) };
        (1 + u16::from(back), build::ip_packet(bm, am, s, d, 6, 64, &t).expect("tcp"))
    };
    list.extend([
        tcp(false, 1, 0, 2, 0),
        tcp(false, 1, 0, 2, 1),
        tcp(true, 100, 2, 0x12, 2),
        tcp(true, 100, 2, 0x12, 3),
        tcp(false, 2, 101, 0x10, 4),
        tcp(true, 101, 2, 0x10, 5),
        tcp(false, 2, 101, 0x10, 6),
        tcp(false, 2, 101, 0x11, 7),
        tcp(true, 101, 3, 0x11, 8),
        tcp(false, 3, 102, 0x10, 9),
    ]);
    let flows: Vec<Message> = lines.iter().map(|l| Message::FlowMod(parse_flow(l).expect("flow"))).collect();
    let mut pair = Pair::new(&mut ovs, "states");
    assert_eq!(pair.load(&flows).len(), flows.len());
    for (port, p) in &list {
        assert_eq!(pair.packet(*port, p).len(), 1, "every packet comes out");
    }
    let count = pair.finish();
    assert!(count.bad.is_empty(), "{}", count.bad.join("\n"));
}
