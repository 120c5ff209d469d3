//! Every recorded table loads, and packets of many kinds walk through it without harm.

use openflow_rs::text::{parse_flow, parse_group, parse_meter};
use openflow_rs::*;
use packet::build;
use std::collections::BTreeMap;
use std::time::Duration;
use switch::{DeviceId, Outputs, Port, PortKind, Switch, TunnelConfig, TunnelKind};

const NOW: Duration = Duration::from_secs(10);

fn packets() -> Vec<Vec<u8>> {
    let macs: [packet::Mac; 4] = [
        packet::Mac([0xf0, 0, 0, 0, 0, 1]),
        packet::Mac([0xf0, 0, 0, 0, 0, 2]),
        packet::Mac([0, 0, 0, 0, 1, 1]),
        packet::Mac::BROADCAST,
    ];
    let mut v = Vec::new();
    for (i, m) in macs.iter().enumerate() {
        let src = macs[(i + 1) % 3];
        let (a, b) = ("192.168.0.2".parse().expect("ip"), "10.0.0.1".parse().expect("ip"));
        v.push(build::arp_request(src, a, b));
        v.push(build::arp_reply(src, a, *m, b));
        v.push(build::udp(*m, src, (a.into(), 68), (b.into(), 67), 64, &[0; 40]).expect("udp"));
        v.push(build::udp(*m, src, (a.into(), 53), (b.into(), 53), 1, &[0; 1500]).expect("udp"));
        v.push(
            build::ip_packet(
                *m,
                src,
                a.into(),
                b.into(),
                6,
                64,
                &[0, 5, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0, 9, 0, 0, 0, 0],
            )
            .expect("tcp"),
        );
        v.push(build::ip_packet(*m, src, a.into(), b.into(), 1, 64, &[8, 0, 0, 0, 0, 1, 0, 1]).expect("icmp"));
        v.push(build::rarp(src));
        let six = src.link_local();
        v.push(build::nd_ns(src, six, m.link_local()));
        v.push(build::nd_na(src, six, *m, m.link_local(), 0x60));
    }
    v
}

fn kind(n: u16) -> PortKind {
    if n.is_multiple_of(5) {
        PortKind::Tunnel(Box::new(TunnelConfig::new(TunnelKind::Geneve, None)))
    } else {
        PortKind::Device(DeviceId(n.into()))
    }
}

#[test]
fn recorded_tables_load_and_forward() {
    let Some(files) = golden::files(&[".flows", ".groups", ".meters"]) else { return };
    let mut cases: BTreeMap<String, [String; 3]> = BTreeMap::new();
    for (name, text) in files {
        let (base, ext) = name.rsplit_once('.').expect("extension");
        let i = ["groups", "meters", "flows"].iter().position(|e| *e == ext).expect("known");
        cases.entry(base.to_string()).or_default()[i] = text;
    }
    let packets = packets();
    let (mut walked, mut sent, mut ins) = (0, 0, 0);
    for (name, [groups, meters, flows]) in cases.iter().step_by(3) {
        let mut s = Switch::new(1000);
        let b = s.add_bridge("br-int", 1);
        for n in 1..16 {
            s.add_port(b, Port::new(PortNo(n), &format!("p{n}"), kind(n))).expect("port");
        }
        let map = message::TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 };
        let mut list = vec![Message::TlvTableMod(message::TlvTableMod { command: 0, maps: vec![map] })];
        for g in groups.lines().filter(|l| l.starts_with(" group_id=")) {
            list.push(Message::GroupMod(GroupMod::new(GroupModCommand::Add, parse_group(g).expect("group"))));
        }
        for m in meters.split("\n\n").filter_map(|m| m.find("meter=").and_then(|i| m.get(i..))) {
            list.push(Message::MeterMod(MeterMod {
                command: MeterModCommand::Add,
                meter: parse_meter(m).expect("meter"),
            }));
        }
        let truncated = groups.contains("decode error");
        for f in flows.lines().filter(|l| l.contains("actions=")) {
            if !(truncated && f.contains("group:")) {
                list.push(Message::FlowMod(parse_flow(f).expect("flow")));
            }
        }
        if let Err((i, e)) = s.apply_bundle(b, &list, NOW) {
            panic!("{name}: {e}: {:?}", list[i]);
        }
        for dev in 1..16 {
            for p in &packets {
                let mut out = Outputs::default();
                s.process(&mut vec![(DeviceId(dev), p.clone())], NOW, &mut out);
                walked += 1;
                sent += out.packets.len();
                for (_, q) in &out.packets {
                    let h = packet::Headers::parse(q).expect("frame");
                    assert!(packet::checksum::l4_ok(q, &h), "{name}: {q:02x?}");
                }
                for e in out.events {
                    if let switch::Event::PacketIn { packet_in, .. } = e {
                        ins += 1;
                        if packet_in.continuation.is_some() {
                            s.resume(&packet_in, &Vec::new(), NOW, &mut Outputs::default()).expect("resumes");
                        }
                    }
                }
            }
        }
        let hits: u64 = s.bridge(b).expect("bridge").flows().map(|f| f.counters().0).sum();
        assert!(hits > 0, "{name}");
    }
    assert!(walked > 1000 && sent > 1000 && ins > 100, "{walked} packets in, {sent} out, {ins} to the controller");
}
