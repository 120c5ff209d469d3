//! What Open vSwitch refuses, ours refuses with the same error type and code; what it takes, ours takes.

use crate::compare::our_switch;
use crate::ovs::Ovs;
use openflow_rs::GroupId;
use openflow_rs::MeterId;
use openflow_rs::mods::FlowFlags;
use openflow_rs::text::{parse_flow, parse_group, parse_meter};
use openflow_rs::*;
use std::time::Duration;

/// Flows that are added, in this order.
const FLOWS: &[&str] = &[
    "table=0,priority=1,ip actions=output:1",
    "table=253,priority=1,ip actions=output:1",
    "table=254,priority=1,ip actions=output:1",
    "table=255,priority=1,ip actions=output:1",
    "actions=output:400",
    "actions=output:65280",
    "actions=output:65527",
    "actions=output:65528",
    "actions=output:65529",
    "actions=output:65533",
    "actions=LOCAL",
    "actions=NORMAL",
    "actions=65535",
    "actions=0",
    "actions=group:7",
    "actions=clone(group:7)",
    "actions=write_actions(group:7)",
    "actions=write_actions(set_field:1->ct_mark)",
    "actions=write_actions(set_field:1->ct_label)",
    "actions=write_actions(set_field:1->ct_state)",
    "actions=write_actions(load:1->NXM_NX_CT_MARK[])",
    "actions=write_actions(load:1->NXM_NX_CT_MARK[0..3])",
    "actions=write_actions(move:NXM_NX_REG0[]->NXM_NX_CT_MARK[])",
    "actions=write_actions(move:NXM_OF_IP_SRC[]->NXM_NX_CT_MARK[])",
    "actions=write_actions(move:NXM_NX_REG0[]->NXM_NX_CT_LABEL[3..34])",
    "actions=group:1",
    "actions=group:7,resubmit(,2,ct)",
    "actions=meter:9,dec_ttl",
    "actions=dec_ttl,set_field:no->ip_frag",
    "actions=dec_ttl,set_field:1->ct_mark",
    "actions=dec_ttl,load:1->NXM_NX_CT_MARK[0..3]",
    "actions=dec_ttl,move:NXM_NX_REG0[]->NXM_NX_CT_MARK[]",
    "actions=dec_ttl,pop:NXM_NX_IP_FRAG[]",
    "actions=dec_ttl,learn(table=255,NXM_OF_ETH_DST[])",
    "actions=clone(group:7),dec_ttl",
    "actions=write_actions(group:7),goto_table:0",
    "actions=meter:9",
    "actions=meter:1,output:1",
    "actions=controller(userdata=00.01,meter_id=9)",
    "actions=set_field:10.0.0.1->ip_src",
    "ip actions=set_field:10.0.0.1->ip_src",
    "ip actions=set_field:80->tcp_dst",
    "tcp actions=set_field:80->tcp_dst",
    "udp actions=set_field:80->tcp_dst",
    "tcp,nw_frag=later actions=set_field:80->tcp_dst",
    "ipv6 actions=set_field:10.0.0.1->ip_dst",
    "arp actions=set_field:1->arp_op",
    "actions=set_field:1->arp_op",
    "arp actions=load:0x2->NXM_OF_ARP_OP[0..15]",
    "arp actions=load:0x1312->NXM_OF_ARP_OP[]",
    "arp actions=load:0x40->NXM_OF_ARP_OP[2..11]",
    "arp actions=move:NXM_NX_REG0[0..15]->NXM_OF_ARP_OP[]",
    "ct_state=+inv+trk,tcp actions=ct(commit)",
    "ct_state=+inv+trk,tcp actions=ct_clear,ct(commit)",
    "ct_state=+inv+trk,tcp actions=ct(table=1)",
    "ct_state=-inv+trk,tcp actions=ct(commit)",
    "actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[]",
    "actions=move:NXM_NX_REG0[]->NXM_OF_IP_SRC[]",
    "arp actions=move:NXM_NX_ARP_SHA[]->NXM_OF_ETH_SRC[]",
    "actions=push:NXM_OF_IP_SRC[]",
    "actions=pop:NXM_OF_IP_SRC[]",
    "ip actions=push:NXM_OF_IP_SRC[],pop:NXM_OF_IP_SRC[]",
    "actions=dec_ttl",
    "ip actions=dec_ttl",
    "ipv6 actions=dec_ttl(1,2)",
    "actions=pop_vlan",
    "vlan_tci=0x1000/0x1000 actions=pop_vlan",
    "actions=push_vlan:0x8100,set_field:5->vlan_vid",
    "actions=push_vlan:0x0800",
    "actions=set_field:5->vlan_vid",
    "dl_vlan=3 actions=set_field:5->vlan_vid",
    "actions=set_field:5->vlan_pcp",
    "actions=push_vlan:0x8100,pop_vlan,set_field:5->vlan_vid",
    "actions=goto_table:0",
    "actions=goto_table:1",
    "table=5 actions=goto_table:5",
    "table=5 actions=goto_table:4",
    "table=5 actions=goto_table:254",
    "actions=goto_table:255",
    "actions=resubmit(,254)",
    "actions=resubmit(,255)",
    "actions=ct(table=1)",
    "ip actions=ct(table=1)",
    "ip actions=ct(table=0)",
    "ip actions=ct(table=254)",
    "ip actions=ct(commit,exec(set_field:1->ct_mark))",
    "ip actions=ct(commit,exec(set_field:1->reg0))",
    "ip actions=ct(exec(set_field:1->ct_mark))",
    "ip actions=ct(nat)",
    "ip actions=ct(nat(src=10.0.0.1))",
    "ip actions=ct(commit,nat(src=10.0.0.1-10.0.0.9:5-9))",
    "ip actions=ct(commit,nat(src=fd00::1))",
    "ipv6 actions=ct(commit,nat(src=fd00::1))",
    "ip actions=ct(commit,force)",
    "ip actions=ct(force)",
    "ip actions=ct(zone=NXM_NX_REG0[0..15],table=1)",
    "ip actions=ct(zone=NXM_NX_REG0[0..7],table=1)",
    "ip actions=ct(zone=NXM_OF_IP_SRC[0..15],table=1)",
    "ip actions=ct(commit,alg=ftp)",
    "tcp actions=ct(commit,alg=ftp)",
    "udp actions=ct(commit,alg=tftp)",
    "tcp actions=ct(commit,alg=tftp)",
    "ip actions=set_field:1->ct_mark",
    "ip actions=set_field:1->ct_label",
    "actions=ct_clear",
    "ct_state=+trk,ip actions=drop",
    "ip,ct_mark=1 actions=drop",
    "conj_id=5,ip actions=output:1",
    "ip,nw_src=1.1.1.1 actions=conjunction(1,1/2)",
    "ip,nw_src=1.1.1.2 actions=conjunction(1,1/2),output:1",
    "ip,nw_src=1.1.1.3 actions=conjunction(1,1/2),conjunction(2,2/3)",
    "actions=learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
    "actions=learn(table=254,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[])",
    "actions=learn(table=255,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[])",
    "actions=learn(table=1,NXM_OF_IP_SRC[])",
    "ip actions=learn(table=1,NXM_OF_IP_SRC[])",
    "ip actions=learn(table=1,eth_type=0x800,NXM_OF_IP_SRC[])",
    "tcp actions=learn(table=1,eth_type=0x800,NXM_OF_TCP_SRC[])",
    "actions=learn(table=1,load:NXM_OF_IP_SRC[]->NXM_NX_REG0[])",
    "actions=bundle(eth_src,0,active_backup,ofport,members:1,2)",
    "actions=bundle(eth_src,0,hrw,ofport,members:1,400)",
    "actions=bundle_load(eth_src,0,hrw,ofport,NXM_NX_REG0[],members:1,2)",
    "actions=bundle_load(eth_src,0,hrw,ofport,NXM_OF_IP_SRC[],members:1,2)",
    "actions=check_pkt_larger(1500)->NXM_NX_REG0[0]",
    "actions=check_pkt_larger(1500)->NXM_OF_IP_SRC[0]",
    "actions=sample(probability=100,collector_set_id=1)",
    "actions=sample(probability=0,collector_set_id=1)",
    "actions=output:NXM_NX_REG0[]",
    "actions=output:NXM_OF_IP_SRC[]",
    "actions=output(port=1,max_len=100)",
    "actions=output(port=65533,max_len=100)",
    "actions=output(port=65528,max_len=100)",
    "actions=output(port=1,max_len=13)",
    "actions=set_queue:5",
    "actions=note:00.11",
    "actions=exit",
    "tcp actions=fin_timeout(idle_timeout=5)",
    "udp actions=fin_timeout(idle_timeout=5)",
    "actions=write_metadata:5",
    "actions=write_actions(output:1)",
    "actions=clear_actions",
    "actions=write_actions(resubmit(,1))",
    "actions=write_actions(note:00)",
    "actions=write_actions(learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]))",
    "actions=write_actions(dec_ttl)",
    "actions=write_actions(ct(commit))",
    "actions=set_field:1->in_port",
    "actions=set_field:1->tun_id",
    "actions=set_field:1->tun_metadata0",
    "actions=set_field:1->tun_metadata1",
    "tun_metadata1=1 actions=drop",
    "tun_metadata0=1 actions=drop",
    "actions=set_field:1->reg0,set_field:1->xreg7,set_field:1->xxreg3",
    "actions=set_field:1->metadata",
    "actions=set_field:1->pkt_mark",
    "actions=set_field:1->eth_type",
    "ip actions=set_field:6->nw_proto",
    "actions=set_field:1->conj_id",
    "icmp actions=set_field:1->icmp_type",
    "icmp6 actions=set_field:1->icmpv6_type",
    "icmp6,icmp_type=135,icmp_code=0 actions=set_field:fd00::1->nd_target",
    "icmp6,icmp_type=136 actions=set_field:fd00::1->nd_target",
    "icmp6 actions=set_field:fd00::1->nd_target",
    "ipv6 actions=set_field:fd00::1->ipv6_dst",
    "ip actions=set_field:1->nw_ttl",
    "ip actions=set_field:1->ip_dscp",
    "actions=delete_field:tun_metadata0",
    "actions=delete_field:reg0",
];

fn change(f: &str, edit: impl Fn(&mut FlowMod)) -> Message {
    let mut f = parse_flow(f).expect("flow");
    edit(&mut f);
    Message::FlowMod(f)
}

fn group(command: GroupModCommand, text: &str) -> Message {
    Message::GroupMod(GroupMod::new(command, parse_group(text).unwrap_or_else(|e| panic!("{text}: {e}"))))
}

fn meter(command: MeterModCommand, text: &str) -> Message {
    Message::MeterMod(MeterMod { command, meter: parse_meter(text).unwrap_or_else(|e| panic!("{text}: {e}")) })
}

fn messages() -> Vec<(String, Message)> {
    use GroupModCommand as G;
    use MeterModCommand as M;
    let mut v: Vec<(String, Message)> = Vec::new();
    let mut put = |m: Message| v.push((format!("{m:?}"), m));
    for (command, text) in [
        (G::Add, "group_id=1,type=all,bucket=actions=output:1"),
        (G::Add, "group_id=1,type=all,bucket=actions=output:1"),
        (G::Modify, "group_id=2,type=all,bucket=actions=output:1"),
        (G::AddOrModify, "group_id=2,type=all,bucket=actions=output:1"),
        (G::AddOrModify, "group_id=2,type=select,bucket=weight:5,actions=output:1"),
        (G::Add, "group_id=3,type=indirect,bucket=actions=output:1"),
        (G::Add, "group_id=4,type=indirect,bucket=actions=output:1,bucket=actions=output:2"),
        (G::Add, "group_id=4,type=indirect"),
        (G::Add, "group_id=5,type=all,bucket=actions=group:99"),
        (G::Add, "group_id=6,type=all,bucket=actions=group:6"),
        (G::Add, "group_id=8,type=fast_failover,bucket=watch_port:1,actions=output:1"),
        (G::Add, "group_id=9,type=select"),
        (G::Add, "group_id=4294967040,type=all"),
        (G::Add, "group_id=4294967292,type=all"),
        (G::Delete, "group_id=77"),
        (
            G::Add,
            "group_id=10,type=select,selection_method=dp_hash,bucket=bucket_id:1,actions=output:1,bucket=bucket_id:2,actions=output:2",
        ),
        (G::Add, "group_id=11,type=select,bucket=bucket_id:1,actions=output:1,bucket=bucket_id:1,actions=output:2"),
        (G::Add, "group_id=12,type=all,bucket=actions=meter:3"),
        (G::Add, "group_id=13,type=all,bucket=actions=set_field:10.0.0.1->ip_src"),
        (G::Add, "group_id=18,type=all,bucket=actions=load:0x1312->NXM_OF_ARP_OP[]"),
        (G::Add, "group_id=19,type=all,bucket=actions=set_field:1->ct_mark"),
        (G::Add, "group_id=20,type=all,bucket=actions=move:NXM_NX_REG0[0..1]->NXM_NX_IP_FRAG[]"),
        (G::Add, "group_id=21,type=all,bucket=actions=move:NXM_NX_REG0[]->NXM_NX_CT_MARK[]"),
        (G::Add, "group_id=22,type=all,bucket=actions=move:NXM_NX_REG0[]->NXM_OF_IP_SRC[]"),
        (G::Add, "group_id=23,type=all,bucket=actions=pop:NXM_NX_IP_FRAG[]"),
        (G::Add, "group_id=24,type=all,bucket=actions=pop:NXM_NX_CT_MARK[]"),
        (G::Add, "group_id=25,type=all,bucket=actions=load:1->NXM_NX_CT_MARK[]"),
        (G::Add, "group_id=14,type=all,bucket=actions=ct(commit)"),
        (G::Add, "group_id=15,type=all,bucket=actions=resubmit(,9)"),
        (G::Add, "group_id=16,type=select,selection_method=no_such,bucket=actions=output:1"),
        (G::Add, "group_id=17,type=all,selection_method=dp_hash,bucket=actions=output:1"),
    ] {
        put(group(command, text));
    }
    for (command, text) in [
        (M::Add, "meter=1 pktps bands=type=drop rate=100"),
        (M::Add, "meter=1 pktps bands=type=drop rate=100"),
        (M::Modify, "meter=2 pktps bands=type=drop rate=100"),
        (M::Modify, "meter=1 kbps burst bands=type=drop rate=100 burst_size=200"),
        (M::Add, "meter=3 kbps pktps bands=type=drop rate=100"),
        (M::Add, "meter=4 bands=type=drop rate=100"),
        (M::Add, "meter=5 kbps bands=type=drop rate=0"),
        (M::Add, "meter=6 kbps bands=type=drop rate=1 type=drop rate=2"),
        (M::Add, "meter=0 kbps bands=type=drop rate=1"),
        (M::Add, "meter=4294901761 kbps bands=type=drop rate=1"),
        (M::Add, "meter=7 kbps burst bands=type=drop rate=1 burst_size=0"),
        (M::Delete, "meter=88 kbps bands=type=drop rate=1"),
    ] {
        put(meter(command, text));
    }
    let mut with = |f: &str, edit: &dyn Fn(&mut FlowMod)| v.push((f.to_string(), change(f, edit)));
    for f in FLOWS {
        with(f, &|_| {});
    }
    let overlap = |f: &mut FlowMod| f.flags = FlowFlags(FlowFlags::CHECK_OVERLAP);
    with("table=9,priority=9,ip,nw_src=1.1.1.1 actions=drop", &overlap);
    with("table=9,priority=9,ip,nw_dst=1.1.1.1 actions=drop", &overlap);
    with("table=9,priority=9,ip,nw_src=1.1.1.2 actions=drop", &overlap);
    with("table=9,priority=9,ip,nw_src=1.1.1.1 actions=drop", &overlap);
    with("table=9 actions=drop", &|f| f.buffer_id = 5);
    with("table=9 actions=drop", &|f| f.flags = FlowFlags(0x8000));
    for command in [FlowModCommand::Modify, FlowModCommand::ModifyStrict, FlowModCommand::Delete] {
        with("table=254 actions=output:1", &|f| f.command = command);
        with("table=255 actions=output:1", &|f| f.command = command);
        with("table=17 actions=output:1", &|f| f.command = command);
        with("table=17 actions=group:99", &|f| f.command = command);
    }
    with("table=255", &|f| {
        (f.command, f.out_group) = (FlowModCommand::Delete, GroupId(99));
    });
    v.push(("the last of a group".into(), group(G::Delete, "group_id=1")));
    v.push((
        "all meters".into(),
        Message::MeterMod(MeterMod {
            command: M::Delete,
            meter: MeterConfig { id: MeterId::ALL, ..Default::default() },
        }),
    ));
    v
}

#[test]
fn the_same_is_refused() {
    let Some(mut ovs) = Ovs::start() else { return };
    ovs.clear();
    let (mut ours, bridge) = our_switch();
    let (mut bad, mut refused) = (Vec::new(), 0);
    for (name, m) in messages() {
        let theirs = ovs.apply(std::slice::from_ref(&m)).first().map(|(_, t, c)| (*t, *c));
        let raw = m.encode(message::Version::Of15, 1);
        let mine = match Message::decode(&raw) {
            Err(e) => Err(e),
            Ok((_, m)) => ours.apply(bridge, &m, Duration::from_secs(1)),
        };
        refused += usize::from(theirs.is_some());
        let mine = mine.err().map(|e| (e.numbers().0, e.numbers().1, e.detail));
        if mine.as_ref().map(|e| (e.0, e.1)) != theirs {
            bad.push(format!("{name}: ours {mine:?}, theirs {theirs:?}"));
        }
    }
    println!("{refused} refused, {} otherwise by ours", bad.len());
    assert!(refused > 30, "{refused}");
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}
