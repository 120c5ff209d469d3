//! `encap`, `decap`, NSH and packet types: what leaves, which flows packets meet, and what counts.

use crate::compare::Pair;
use crate::ovs::Ovs;
use openflow_rs::Message;
use openflow_rs::text::parse_flow;
use packet::nsh::Nsh;
use packet::{Mac, build};

const OUT: &str = "encap(ethernet),set_field:02:00:00:00:00:07->eth_dst,set_field:02:00:00:00:00:08->eth_src,output:9";

fn flows() -> Vec<Message> {
    let lines = [
        format!("in_port=1,ip actions=encap(nsh(md_type=1)),set_field:0x1234->nsh_spi,set_field:7->nsh_c1,{OUT}"),
        format!("in_port=1,ipv6 actions=decap(),encap(nsh),set_field:0x7700/0xff00->nsh_c3,{OUT}"),
        format!("in_port=2,ip actions=encap(nsh(md_type=2,tlv(0x1000,10,0x123456))),dec_nsh_ttl,{OUT}"),
        "in_port=2,ipv6 actions=decap(),dec_ttl,resubmit(,1)".into(),
        format!("in_port=3,ip actions=encap(mpls),set_mpls_label(2),{OUT}"),
        format!("in_port=3,ipv6 actions=decap(),encap(mpls_mc),set_mpls_label(3),set_mpls_tc(5),{OUT}"),
        "in_port=4,dl_type=0x894f actions=decap(),decap(),resubmit(,2)".into(),
        "in_port=5,mpls actions=decap(),decap(packet_type(ns=0,type=0)),output:8".into(),
        "in_port=6,mpls actions=decap(),decap(packet_type(ns=1,type=0x800)),resubmit(,1)".into(),
        format!("in_port=7,ip actions=clone(encap(nsh),{OUT}),clone(decap(),resubmit(,1)),output:8"),
        "in_port=8 actions=output:1,encap(ethernet),output:2".into(),
        "in_port=9 actions=decap(),output:1,encap(ethernet),output:2".into(),
        "table=1,priority=9,ip actions=output:1".into(),
        "table=1,priority=9,ipv6 actions=output:1".into(),
        format!("table=1,priority=8,packet_type=(1,0x800),nw_dst=10.0.0.2 actions=dec_ttl,{OUT}"),
        format!("table=1,priority=8,packet_type=(1,0x86dd) actions={OUT}"),
        "table=1,priority=1 actions=output:2".into(),
        "table=2,priority=9,ip,nw_dst=10.0.0.2 actions=dec_ttl,output:8".into(),
        format!("table=2,priority=8,packet_type=(1,0x800) actions={OUT}"),
        "table=2,priority=7,packet_type=(1,0x894f) actions=decap(),output:7".into(),
        "table=2,priority=1 actions=output:3".into(),
    ];
    lines.iter().map(|l| Message::FlowMod(parse_flow(l).expect("flow"))).collect()
}

#[test]
fn same_headers() {
    let Some(mut ovs) = Ovs::start() else { return };
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let udp = |src: &str, dst: &str| {
        let ip = |s: &str| s.parse().expect("address");
        build::udp(b, a, (ip(src), 5), (ip(dst), 6), 64, &[9; 40]).expect("udp")
    };
    let (v4, v6) = (udp("10.0.0.1", "10.0.0.2"), udp("fd00::1", "fd00::2"));
    let mut tagged = v4.clone();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    let within = |kind: [u8; 2], rest: &[&[u8]]| [&v4[..12], &kind, &rest.concat()].concat();
    let nsh = |n: Nsh| Nsh { md_type: 1, ttl: 63, path: 0x100, index: 255, ..n }.with(&[]).expect("a header");
    let header = |next| nsh(Nsh { next, ..Nsh::default() });
    let label = |bottom: u8| [0, 0, 0x20 | bottom, 64];
    let packets: Vec<(u16, Vec<u8>)> = vec![
        (1, v4.clone()),
        (1, v6.clone()),
        (1, tagged.clone()),
        (2, v4.clone()),
        (2, v6.clone()),
        (3, v4.clone()),
        (3, v6.clone()),
        (4, within([0x89, 0x4f], &[&header(3), &v4])),
        (4, within([0x89, 0x4f], &[&header(1), &v4[14..]])),
        (4, within([0x89, 0x4f], &[&header(2), &v6[14..]])),
        (4, within([0x89, 0x4f], &[&header(4), &header(3), &v4])),
        (4, within([0x89, 0x4f], &[&header(9), &v4])),
        (5, within([0x88, 0x47], &[&label(1), &v4])),
        (6, within([0x88, 0x47], &[&label(1), &v4[14..]])),
        (7, v4.clone()),
        (8, v4.clone()),
        (9, v4.clone()),
        (9, tagged),
    ];
    let mut pair = Pair::new(&mut ovs, "encap");
    let flows = flows();
    assert_eq!(pair.load(&flows).len(), flows.len());
    let mut sent = 0;
    for _ in 0..2 {
        for (port, p) in &packets {
            sent += pair.packet(*port, p).len();
        }
    }
    let count = pair.finish();
    assert!(count.bad.is_empty(), "{}", count.bad.join("\n"));
    assert!(sent > 20, "{sent}");
}
