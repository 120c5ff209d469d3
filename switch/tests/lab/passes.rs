//! Packets that pass connection tracking more than once, with and without translation: what each pass says, how packets are
//! translated, and which connections there are then.

use crate::compare::Pair;
use crate::ovs::Ovs;
use openflow_rs::Message;
use openflow_rs::text::parse_flow;
use packet::build;
use rand::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

/// First passes, by ingress port.
const FIRST: [&str; 6] = [
    "ct(commit,table=1,zone=2,nat(dst=20.0.0.1))",
    "ct(table=1,zone=2,nat)",
    "ct(commit,table=1,zone=2,nat(src=20.0.0.7))",
    "ct(commit,table=1,zone=2,exec(set_field:0x5->ct_mark))",
    "ct(table=1,zone=2)",
    "ct(commit,table=1,zone=4,nat(dst=20.0.0.1))",
];

/// Second passes, by the last byte of the Ethernet source.
const SECOND: [&str; 9] = [
    "ct(table=2,zone=2,nat)",
    "ct(table=2,zone=2)",
    "ct(commit,table=2,zone=2,nat(src=20.0.0.8))",
    "ct_clear,ct(table=2,zone=2,nat)",
    "ct(commit,table=2,zone=2,nat(dst=20.0.0.2))",
    "ct(commit,force,table=2,zone=3)",
    "controller(pause),ct(table=2,zone=2,nat)",
    "controller(pause),ct(table=2,zone=2)",
    "controller(pause),ct(commit,table=2,zone=2)",
];

/// Packets among a few addresses, so that hairpins, answers and clashes are frequent.
#[test]
fn passes_agree() {
    let Some(mut ovs) = Ovs::start() else { return };
    let mut lines: Vec<String> =
        FIRST.iter().zip(1..).map(|(a, port)| format!("table=0,in_port={port},ip actions={a}")).collect();
    lines.extend(SECOND.iter().zip(1..).map(|(a, n)| format!("table=1,ip,dl_src=02:00:00:00:00:0{n} actions={a}")));
    lines.push("table=2 actions=controller,output:9".into());
    let flows: Vec<Message> = lines.iter().map(|l| Message::FlowMod(parse_flow(l).expect("flow"))).collect();
    let seed = std::env::var("COMPARE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut bad = Vec::new();
    for round in 0..40 {
        let mut pair = Pair::new(&mut ovs, &format!("passes, round {round}"));
        assert_eq!(pair.load(&flows).len(), flows.len());
        for id in 0..12 {
            let (a, b): (u8, u8) = (rng.random_range(1..10), rng.random_range(1..10));
            let address = |n| -> IpAddr { Ipv4Addr::new(20, 0, 0, n).into() };
            // Which other port a source gets that clashes is each switch's own affair.
            let from_port = 1000 + u16::from(a) * 100 + u16::from(b);
            let (s, d) = (from_port.to_be_bytes(), 1000u16.to_be_bytes());
            let (proto, body) = match rng.random_range(0..5) {
                // A datagram in two fragments. What Open vSwitch takes for the checksum of the later one is 0, which it leaves.
                4 => {
                    let mut whole = vec![s[0], s[1], d[0], d[1], 5, 220, 0, 0];
                    whole.resize(1500, 0);
                    (17, whole)
                }
                0 => (6, vec![s[0], s[1], d[0], d[1], 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0x20, 0, 0, 0, 0, 0]),
                1 => (17, vec![s[0], s[1], d[0], d[1], 0, 8, 0, 0]),
                2 => (1, vec![*[0, 8].choose(&mut rng).expect("some"), 0, 0, 0, s[0], s[1], 0, 1]),
                _ => (3, vec![1, 2, 3, 4]),
            };
            let from = [2, 0, 0, 0, 0, rng.random_range(1..=SECOND.len() as u8)];
            let p = build::ip_packet(
                packet::Mac([2, 0, 0, 0, 0, 0xa]),
                packet::Mac(from),
                address(a),
                address(b),
                proto,
                64,
                &body,
            )
            .expect("one family");
            let port = rng.random_range(1..=FIRST.len() as u16);
            if body.len() < 1500 {
                pair.packet(port, &p);
                continue;
            }
            for (offset, part) in [(0, &p[34..34 + 1240]), (1240 / 8, &p[34 + 1240..])] {
                let mut fragment = p[..34].to_vec();
                fragment[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
                fragment[18..20].copy_from_slice(&(round as u16 * 100 + id).to_be_bytes());
                fragment[20..22].copy_from_slice(&(offset | if offset == 0 { 0x2000u16 } else { 0 }).to_be_bytes());
                packet::checksum::set_ipv4(&mut fragment, 14);
                fragment.extend_from_slice(part);
                pair.packet(port, &fragment);
            }
        }
        bad.extend(pair.finish().bad);
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
