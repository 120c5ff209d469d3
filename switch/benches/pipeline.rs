//! Packets per second through whole pipelines, with the flow cache and without.

mod common;

use common::snat;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo};
use packet::build;
use std::net::IpAddr;
use std::time::Duration;
use switch::{DeviceId, Outputs, Port, PortKind, Switch};

const NOW: Duration = Duration::from_secs(1);
const BATCH: usize = 32;
/// Connections, visited in turn.
const FLOWS: u16 = 1024;

fn switch(flows: &[String], cache: bool) -> Switch {
    let mut s = Switch::new(100_000);
    s.set_cache(cache);
    let b = s.add_bridge("br0", 1);
    for i in 1..=2 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    let list: Vec<Message> = flows.iter().map(|f| Message::FlowMod(parse_flow(f).expect("flow"))).collect();
    s.apply_bundle(b, &list, NOW).expect("flows");
    s
}

fn packet(n: u16, reply: bool) -> Vec<u8> {
    let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [8, 8, 8, 8].into());
    let nat: IpAddr = [172, 16, 0, 1].into();
    let (src, dst) = if reply { ((b, 53), (nat, 2000 + n)) } else { ((a, 2000 + n), (b, 53)) };
    build::udp(packet::Mac([2, 0, 0, 0, 0, 1]), packet::Mac([2, 0, 0, 0, 0, 0xa]), src, dst, 64, &[7; 22]).expect("udp")
}

fn run(c: &mut Criterion, name: &str, flows: &[String], open: bool) {
    let mut g = c.benchmark_group(name);
    g.throughput(Throughput::Elements(BATCH as u64));
    g.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    for cache in [false, true] {
        let mut s = switch(flows, cache);
        let mut out = Outputs::default();
        for n in (0..FLOWS).filter(|_| open) {
            s.process(
                &mut vec![
                    (DeviceId(1), packet(n, false)),
                    (DeviceId(2), packet(n, true)),
                    (DeviceId(1), packet(n, false)),
                ],
                NOW,
                &mut out,
            );
        }
        let packets: Vec<Vec<u8>> = (0..FLOWS).map(|n| packet(n, false)).collect();
        let mut at = 0;
        g.bench_function(BenchmarkId::from_parameter(if cache { "cached" } else { "translated" }), |b| {
            b.iter_batched(
                || {
                    at = (at + BATCH) % packets.len();
                    packets.iter().cycle().skip(at).take(BATCH).map(|p| (DeviceId(1), p.clone())).collect::<Vec<_>>()
                },
                |mut batch| {
                    out.packets.clear();
                    s.process(&mut batch, NOW, &mut out);
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
