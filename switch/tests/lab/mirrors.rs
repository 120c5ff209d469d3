//! Mirrors: which packets are copied, as they are when, where to, and how often.

use crate::compare::Pair;
use crate::ovs::Ovs;
use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo};
use packet::{VlanId, build};
use std::collections::BTreeSet;
use switch::{Mirror, MirrorOutput};

fn mirror(all: bool, sources: &[u16], destinations: &[u16], vlans: &[u16], output: MirrorOutput) -> Mirror {
    let set = |l: &[u16]| l.iter().map(|n| PortNo(*n)).collect::<BTreeSet<_>>();
    Mirror {
        name: "m".into(),
        all,
        sources: set(sources),
        destinations: set(destinations),
        vlans: vlans.iter().copied().map(VlanId::of_tci).collect(),
        output,
        filter: None,
        snaplen: None,
    }
}

/// The same mirror in Open vSwitch.
fn configure(ovs: &Ovs, mirrors: &[Mirror]) {
    let mut words = String::from("clear bridge br0 mirrors");
    let ports = |set: &BTreeSet<PortNo>| set.iter().map(|n| format!("@p{n}")).collect::<Vec<_>>().join(",");
    for n in 1..10 {
        words.push_str(&format!(" -- --id=@p{n} get port p{n}"));
    }
    for (i, m) in mirrors.iter().enumerate() {
        let vlans: Vec<String> = m.vlans.iter().map(VlanId::to_string).collect();
        let output = match &m.output {
            MirrorOutput::Port(p) => format!("output_port=@p{p}"),
            MirrorOutput::Vlan(v) => format!("output_vlan={v}"),
        };
        let snaplen = m.snaplen.map(|n| format!(" snaplen={n}")).unwrap_or_default();
        words.push_str(&format!(
            " -- --id=@m{i} create mirror name=m{i} select_all={} select_src_port=[{}] select_dst_port=[{}] select_vlan=[{}] {output}{snaplen} -- add bridge br0 mirrors @m{i}",
            m.all,
            ports(&m.sources),
            ports(&m.destinations),
            vlans.join(",")
        ));
    }
    ovs.vsctl(&words);
}

#[test]
fn same_copies() {
    let Some(mut ovs) = Ovs::start() else { return };
    let flows: Vec<Message> = [
        "table=0,priority=10,in_port=1,ip actions=set_field:02:00:00:00:00:77->eth_src,output:2,output:3",
        "table=0,priority=10,in_port=2,ip actions=output:1,set_field:9->nw_ttl,output:4,clone(output:3)",
        "table=0,priority=10,in_port=4,ip actions=drop",
        "table=0,priority=10,in_port=5,ip actions=push_vlan:0x8100,set_field:0x1007->vlan_vid,output:2",
        "table=0,priority=6,in_port=3 actions=FLOOD",
        "table=0,priority=5 actions=NORMAL",
    ]
    .iter()
    .map(|l| Message::FlowMod(parse_flow(l).expect("flow")))
    .collect();
    let short = Mirror { snaplen: Some(40), ..mirror(false, &[1], &[], &[], MirrorOutput::Port(PortNo(9))) };
    let port = |n| MirrorOutput::Port(PortNo(n));
    let cases: Vec<Vec<Mirror>> = vec![
        vec![mirror(false, &[1], &[], &[], port(9))],
        vec![mirror(false, &[], &[2, 3], &[], port(9))],
        vec![mirror(false, &[1, 4], &[1, 4], &[], port(9))],
        vec![mirror(true, &[], &[], &[], port(9))],
        vec![mirror(true, &[], &[], &[7], port(9))],
        vec![mirror(false, &[1], &[], &[], port(9)), mirror(false, &[], &[2], &[], port(8))],
        vec![mirror(false, &[1], &[], &[], port(9)), mirror(false, &[2], &[2], &[], port(9))],
        vec![short],
        vec![Mirror { snaplen: Some(40), ..mirror(false, &[1, 5], &[4], &[], MirrorOutput::Vlan(VlanId::of_tci(50))) }],
        vec![mirror(false, &[1, 5], &[4], &[], MirrorOutput::Vlan(VlanId::of_tci(50)))],
        vec![],
    ];
    let (am, bm): (packet::Mac, packet::Mac) = (packet::Mac([2, 0, 0, 0, 0, 1]), packet::Mac([2, 0, 0, 0, 0, 2]));
    let ip =
        |n: u8| build::udp(bm, am, ([10, 0, 0, 1].into(), 1), ([10, 0, 0, 2].into(), 2), 64, &[n; 60]).expect("udp");
    let mut tagged = ip(5);
    tagged.splice(12..12, [0x81, 0x00, 0, 7]);
    let other = [&[0xff; 6][..], &am[..], &[0x88, 0xb5], &[1; 50]].concat();
    let mut copies = 0;
    for (i, mirrors) in cases.into_iter().enumerate() {
        configure(&ovs, &mirrors);
        let mut pair = Pair::new(&mut ovs, &format!("mirrors {i}"));
        pair.ours.bridge_mut(pair.bridge).expect("bridge").set_mirrors(mirrors.clone());
        assert_eq!(pair.load(&flows).len(), flows.len());
        // Twice, so that the flow cache has its turn.
        for _ in 0..2 {
            for n in [1, 2, 4, 5, 9] {
                let out = pair.packet(n, &ip(n as u8));
                copies += out.iter().filter(|(p, _)| *p >= 8).count();
            }
            pair.packet(1, &tagged);
            pair.packet(3, &other);
        }
        let count = pair.finish();
        assert!(count.bad.is_empty(), "case {i}: {mirrors:?}\n{}", count.bad.join("\n"));
    }
    assert!(copies > 30, "{copies}");
}
