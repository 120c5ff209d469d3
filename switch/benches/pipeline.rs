//! Packets per second through whole pipelines, with the flow cache and without.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo};
use packet::build;
use std::net::IpAddr;
use std::time::Duration;
use switch::{Outputs, Port, PortKind, Switch};

const NOW: Duration = Duration::from_secs(1);
const BATCH: usize = 32;
/// Connections, visited in turn.
const FLOWS: u16 = 1024;

fn switch(flows: &[String], cache: bool) -> Switch {
    let mut s = Switch::new(100_000);
    s.set_cache(cache);
    let b = s.add_bridge("br0", 1);
    for i in 1..=2 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(i.into()))).expect("port");
    }
    let list: Vec<Message> = flows.iter().map(|f| Message::FlowMod(parse_flow(f).expect("flow"))).collect();
    s.apply_bundle(b, &list, NOW).expect("flows");
    s
}

fn packet(n: u16, reply: bool) -> Vec<u8> {
    let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [8, 8, 8, 8].into());
    let nat: IpAddr = [172, 16, 0, 1].into();
    let (src, dst) = if reply { ((b, 53), (nat, 2000 + n)) } else { ((a, 2000 + n), (b, 53)) };
    build::udp([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 0xa], src, dst, 64, &[7; 22]).expect("udp")
}

/// Tables that a packet of OVN's pipelines passes between its actions.
fn chain(from: u8, to: u8) -> impl Iterator<Item = String> {
    (from..to).flat_map(|t| {
        [
            format!("table={t},priority=0,metadata=0x3 actions=resubmit(,{})", t + 1),
            format!("table={t},priority=100,metadata=0x3,reg15=0x77,ip actions=drop"),
        ]
    })
}

/// SNAT as OVN's gateway router does it: un-SNAT, DNAT and SNAT zones, two dozen tables.
fn snat() -> Vec<String> {
    let mut v: Vec<String> = [
        "table=0,in_port=1 actions=set_field:0x3->metadata,set_field:0x1->reg14,resubmit(,8)",
        "table=0,in_port=2 actions=set_field:0x3->metadata,set_field:0x2->reg14,resubmit(,8)",
        "table=14,ip,reg14=0x1,metadata=0x3 actions=ct(table=15,zone=11)",
        "table=14,ip,reg14=0x2,metadata=0x3 actions=ct(table=15,zone=12,nat)",
        "table=22,ip,reg14=0x1,metadata=0x3 actions=dec_ttl,set_field:02:00:00:00:00:0c->eth_dst,set_field:02:00:00:00:00:0d->eth_src,set_field:0x2->reg15,ct(table=23,zone=13)",
        "table=22,ip,reg14=0x2,metadata=0x3 actions=dec_ttl,set_field:02:00:00:00:00:0a->eth_dst,set_field:02:00:00:00:00:01->eth_src,set_field:0x1->reg15,ct(table=23,zone=11)",
        "table=30,ip,reg15=0x2,metadata=0x3 actions=ct(commit,table=31,zone=12,nat(src=172.16.0.1))",
        "table=30,ip,reg15=0x1,metadata=0x3 actions=ct(table=31,zone=13)",
        "table=36,reg15=0x1 actions=output:1",
        "table=36,reg15=0x2 actions=output:2",
    ]
    .map(String::from)
    .to_vec();
    for (a, b) in [(8, 14), (15, 22), (23, 30), (31, 36)] {
        v.extend(chain(a, b));
    }
    v
}

fn run(c: &mut Criterion, name: &str, flows: &[String], open: bool) {
    let mut g = c.benchmark_group(name);
    g.throughput(Throughput::Elements(BATCH as u64));
    g.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    for cache in [false, true] {
        let mut s = switch(flows, cache);
        let mut out = Outputs::default();
        for n in (0..FLOWS).filter(|_| open) {
            s.process([(1, packet(n, false)), (2, packet(n, true)), (1, packet(n, false))], NOW, &mut out);
        }
        let packets: Vec<Vec<u8>> = (0..FLOWS).map(|n| packet(n, false)).collect();
        let mut at = 0;
        g.bench_function(BenchmarkId::from_parameter(if cache { "cached" } else { "translated" }), |b| {
            b.iter_batched(
                || {
                    at = (at + BATCH) % packets.len();
                    packets.iter().cycle().skip(at).take(BATCH).map(|p| (1, p.clone())).collect::<Vec<_>>()
                },
                |batch| {
                    out.packets.clear();
                    s.process(batch, NOW, &mut out);
                    assert_eq!(out.packets.len(), BATCH);
                },
                BatchSize::SmallInput,
            );
        });
    }
    g.finish();
}

fn pipelines(c: &mut Criterion) {
    run(c, "forward", &["in_port=1 actions=output:2".into()], false);
    run(c, "snat-established", &snat(), true);
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    pipelines(&mut c);
    c.final_summary();
}
