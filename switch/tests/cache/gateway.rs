//! The gateway that the tests are about.

use openflow_rs::text::{parse_flow, parse_group, parse_meter};
use openflow_rs::*;
use std::net::IpAddr;
use std::time::Duration;
use switch::{
    BridgeId, DeviceId, Egress, Port, PortKind, Route, Switch, TunnelConfig, TunnelKey, TunnelKind, VlanMode,
};

pub const VIF: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 0xa]);
pub const ROUTER: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 1]);
pub const PEER: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 0xc]);

/// A gateway: br-int (0) with three ports and a tunnel, br-ex (1) with the uplink, a local port and NORMAL.
pub const FLOWS: &[&str] = &[
    "table=0,priority=9,in_port=1,tcp,tp_dst=81 actions=drop",
    "table=0,priority=9,in_port=1,udp,tp_dst=82 actions=learn(table=30,idle_timeout=9,eth_type=0x800,NXM_OF_IP_SRC[],load:1->NXM_NX_REG5[]),output:2",
    "table=0,priority=9,in_port=1,udp,tp_dst=83 actions=controller,output:3",
    "table=0,priority=9,in_port=1,udp,tp_dst=84 actions=meter:1,output:3",
    "table=0,priority=9,in_port=1,udp,tp_dst=85 actions=check_pkt_larger(90)->NXM_NX_REG4[0],resubmit(,31)",
    "table=31,reg4=0x1 actions=output:2",
    "table=31,priority=2,reg4=0 actions=output:3",
    "table=0,priority=9,in_port=1,udp,tp_dst=86 actions=group:1",
    "table=0,priority=9,in_port=1,udp,tp_dst=87 actions=group:2",
    "table=0,priority=9,in_port=1,udp,tp_dst=88 actions=set_queue:6,push_vlan:0x8100,set_field:4101->vlan_vid,output:2,pop_vlan,clone(set_queue:0,set_field:9.9.9.9->ip_src,output:3),dec_ttl,output:2,pop_queue,output:3",
    "table=0,priority=9,in_port=1,udp,tp_dst=89 actions=set_queue:61439,set_field:0x1234->tun_id,set_field:0x8002->tun_metadata0,set_field:192.168.0.2->tun_dst,output:10,output:11",
    "table=0,priority=9,in_port=1,udp,tp_dst=90 actions=ct(commit,zone=21,nat(src=172.16.0.9),table=32)",
    "table=32,ip actions=ct(zone=21,nat,table=33)",
    "table=33,ct_state=+snat actions=output:2",
    "table=0,priority=7,in_port=11,ip,tun_id=0x1234 actions=dec_ttl,output:2,set_field:10.0.0.99->ip_src,output:3",
    "table=0,priority=7,in_port=3,ip,dl_vlan=5 actions=set_field:02:00:00:00:00:0e->eth_dst,dec_ttl,set_field:4102->vlan_vid,output:2,pop_vlan,output:1",
    "table=0,priority=8,in_port=1,ip actions=set_field:0x5->reg1,ct(table=1,zone=7,nat)",
    "table=0,priority=8,in_port=1,ipv6 actions=ct(table=1,zone=7)",
    "table=1,priority=1,ip,ct_state=+trk-inv actions=set_field:02:00:00:00:00:0c->eth_dst,dec_ttl,ct(commit,table=2,zone=NXM_NX_REG1[0..15],nat(src=172.16.0.1),exec(set_field:0x3->ct_mark))",
    "table=1,priority=3,ipv6,ct_state=+trk-inv actions=dec_ttl,ct(commit,table=2,zone=9)",
    "table=2,ip,ct_mark=0x3,ct_state=+snat actions=ct(table=3,zone=8)",
    "table=2,priority=1,ct_state=+trk,ip actions=ct(table=3,zone=8)",
    "table=2,priority=1,ct_state=+trk,ipv6 actions=ct(table=3,zone=8)",
    "table=3 actions=output:20",
    "table=0,priority=8,in_port=20,ip actions=ct(table=4,zone=5,nat)",
    "table=0,priority=8,in_port=20,ipv6 actions=ct(table=5,zone=9)",
    "table=4,ip,ct_state=+est+rpl actions=ct(table=5,zone=7)",
    "table=4,priority=5,ct_state=+rel actions=output:1",
    "table=5,ct_state=-inv actions=set_field:02:00:00:00:00:0a->eth_dst,output:1",
    "table=0,priority=8,in_port=10,tun_id=0x1234,tun_metadata0=0x8002,ip actions=ct(table=6,zone=12,commit)",
    "table=0,priority=8,in_port=10,tun_id=0x1234,tun_metadata0=0x8002,ipv6 actions=ct(table=6,zone=12,commit)",
    "table=6,ip actions=output:3",
    "table=0,priority=1,arp actions=FLOOD",
    "table=0,priority=7,in_port=2,ip actions=ct(table=3,zone=7,commit)",
    "table=0,priority=7,in_port=2,ipv6 actions=ct(table=3,zone=7,commit)",
    "table=0,priority=6,in_port=3,tcp_flags=+psh actions=output:1",
    "table=0,priority=8,in_port=3,udp,vlan_tci=0 actions=resubmit(,40)",
    "table=40,priority=5,udp,nw_dst=10.9.0.0/31 actions=dec_ttl,set_field:02:00:00:00:00:0e->eth_dst,output:2",
    "table=40,priority=4,udp,tp_src=1001 actions=move:NXM_OF_UDP_DST[]->NXM_NX_REG3[0..15],resubmit(,41)",
    "table=40,priority=3,udp actions=push:NXM_NX_REG3[],set_field:9.9.9.8->ip_src,pop:NXM_NX_REG4[],output:20",
    "table=41,priority=9,reg3=82 actions=push_vlan:0x8100,set_field:4103->vlan_vid,output:1,pop_vlan,output:2",
    "table=41,priority=0 actions=set_field:0x1234->tun_id,set_field:0x8002->tun_metadata0,set_field:192.168.0.2->tun_dst,output:10",
    "table=0,priority=5,in_port=3,tcp actions=output:2",
    // Packets whose keys are fields.
    "table=0,priority=9,in_port=3,icmp6,icmp_type=136,nd_target=2001::9 actions=output:2",
    "table=0,priority=9,in_port=3,icmp6,icmp_type=136,nd_target=2001::a actions=dec_ttl,output:1,output:20",
    "table=0,priority=8,in_port=3,icmp6,icmp_type=136 actions=output:20",
    "table=0,priority=7,in_port=3,icmp6 actions=set_field:2001::7->ipv6_src,output:2",
    "table=0,priority=9,in_port=3,icmp,nw_dst=10.9.0.0/31 actions=dec_ttl,set_field:9.9.9.6->ip_src,output:2",
    "table=0,priority=8,in_port=3,icmp,icmp_type=8 actions=output:1,output:20",
    "table=0,priority=6,in_port=3,icmp,nw_frag=later actions=set_field:9.9.9.5->ip_dst,output:2",
    "table=0,priority=8,in_port=3,udp6,ipv6_dst=2001::8/127 actions=set_field:2001::5->ipv6_src,dec_ttl,output:2",
    "table=0,priority=6,in_port=3,ipv6,nw_frag=later actions=set_field:2001::6->ipv6_dst,output:20",
    "table=0,priority=5,in_port=3,udp6,tp_dst=81 actions=output:1",
    "table=0,priority=4,in_port=3,udp6 actions=set_field:8->nw_tos,output:1",
    "table=0,priority=4,in_port=3,icmp,icmp_type=3 actions=set_field:4->icmp_type,output:2",
    "table=0,priority=8,in_port=3,arp,arp_tpa=10.9.0.0/31 actions=set_field:1.2.3.4->arp_spa,output:2",
    "table=0,priority=10,in_port=3,arp,arp_tpa=10.9.0.3 actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],set_field:02:00:00:00:00:0e->eth_src,set_field:2->arp_op,move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],set_field:02:00:00:00:00:0e->arp_sha,push:NXM_OF_ARP_SPA[],move:NXM_OF_ARP_TPA[]->NXM_OF_ARP_SPA[],pop:NXM_OF_ARP_TPA[],IN_PORT",
    "table=0,priority=8,in_port=3,sctp,tp_dst=80 actions=set_field:77->sctp_src,set_field:9.9.9.3->ip_dst,output:2",
    "table=0,priority=8,in_port=3,sctp6,tp_dst=80 actions=set_field:78->sctp_dst,set_field:2001::3->ipv6_dst,dec_ttl,output:2",
    "table=0,priority=8,in_port=3,sctp,tp_dst=81 actions=ct(commit,zone=41,nat(dst=10.8.1.9:99),table=120)",
    "table=0,priority=8,in_port=3,sctp6,tp_dst=81 actions=ct(commit,zone=41,nat(src=[2001::b1]:2000-2010),table=120)",
    "table=0,priority=8,in_port=3,sctp,tp_dst=82 actions=set_field:79->sctp_src,set_field:0x1234->tun_id,set_field:192.168.0.2->tun_dst,output:10",
    "table=0,priority=7,in_port=3,sctp actions=set_field:77->sctp_src,output:2",
    "table=0,priority=7,in_port=3,sctp6 actions=set_field:77->sctp_src,output:2",
    "table=120,ip actions=output:2",
    "table=120,ipv6 actions=output:2",
    "table=0,priority=8,in_port=3,ip,nw_proto=2 actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG3[],output:20",
    "table=0,priority=8,in_port=3,ip,nw_proto=0 actions=set_field:9.9.9.4->ip_dst,dec_ttl,output:2",
    "table=0,priority=8,in_port=3,dl_type=0x1234,dl_dst=02:00:00:00:00:01 actions=set_field:02:00:00:00:00:0e->eth_dst,output:2",
    "table=0,priority=5,in_port=3,dl_type=0x1234 actions=output:20",
    // Labels.
    "table=0,priority=8,in_port=3,mpls,mpls_label=1 actions=dec_mpls_ttl,set_mpls_label(9),output:2,output:20",
    "table=0,priority=8,in_port=3,mpls,mpls_label=2 actions=clone(pop_mpls:0x0800,dec_ttl,output:2),output:20",
    "table=0,priority=5,in_port=3,mpls actions=pop_mpls:0x0800,output:1",
    // Other headers, and packets without an Ethernet header, which only some flows are for.
    "table=0,priority=9,in_port=3,mpls,mpls_label=1,mpls_ttl=2 actions=decap(),decap(packet_type(ns=1,type=0x800)),resubmit(,79),output:20",
    "table=0,priority=9,in_port=3,mpls,mpls_label=2,mpls_ttl=2 actions=clone(decap(),decap(packet_type(ns=1,type=0x800)),resubmit(,79)),output:20",
    "table=0,priority=9,in_port=3,dl_type=0x1234,dl_dst=02:00:00:00:00:02 actions=decap(),encap(ethernet),resubmit(,79)",
    "table=40,priority=6,udp,tp_src=1001,nw_dst=10.9.0.2,tp_dst=83 actions=encap(nsh(md_type=1)),set_field:5->nsh_c1,resubmit(,79),decap(),output:20",
    "table=40,priority=6,udp,tp_src=1003,nw_dst=10.9.0.2,tp_dst=83 actions=encap(ethernet),output:20",
    "table=79,priority=9,packet_type=(1,0x800) actions=dec_ttl,encap(ethernet),set_field:02:00:00:00:00:0b->eth_dst,output:2",
    "table=79,priority=9,packet_type=(1,0x894f),nsh_c1=5 actions=clone(encap(ethernet),dec_nsh_ttl,output:1),set_field:9->nsh_si",
    "table=79,priority=8,ip actions=output:1",
    "table=79,priority=7 actions=output:3",
    "table=40,priority=6,udp,tp_src=1002,nw_dst=10.9.0.2,tp_dst=83 actions=push_mpls:0x8847,set_mpls_label(5),output:2,pop_mpls:0x0800,clone(push_mpls:0x8847,output:1),output:20",
    // Packets whose keys are fields, into tunnels and out of them.
    "table=0,priority=11,in_port=3,udp6,tp_src=1002 actions=dec_ttl,set_field:0x1234->tun_id,set_field:0x8002->tun_metadata0,set_field:192.168.0.2->tun_dst,output:10",
    "table=0,priority=11,in_port=3,icmp,nw_dst=10.9.0.2 actions=set_field:0x1234->tun_id,set_field:192.168.0.2->tun_dst,output:10",
    "table=0,priority=11,in_port=3,icmp6,icmp_type=128,ipv6_dst=2001::a actions=set_field:0x1234->tun_id,set_field:192.168.0.2->tun_dst,output:11",
    "table=0,priority=11,in_port=3,ip,nw_proto=2,nw_dst=10.9.0.1 actions=set_field:0x1234->tun_id,set_field:192.168.0.2->tun_dst,output:10",
    "table=0,priority=11,in_port=3,ipv6,nw_frag=later,ipv6_dst=2001::9 actions=set_field:0x1234->tun_id,set_field:192.168.0.2->tun_dst,output:10",
    "table=0,priority=11,in_port=3,arp,arp_tpa=10.9.0.2 actions=set_field:0x1234->tun_id,set_field:192.168.0.2->tun_dst,output:10",
    "table=0,priority=9,in_port=10,tun_id=0x1235,tun_metadata0=0x8002,udp6,ipv6_dst=2001::8/127 actions=dec_ttl,set_field:02:00:00:00:00:0a->eth_dst,output:2",
    "table=0,priority=8,in_port=10,tun_id=0x1235,udp6,tp_dst=82 actions=set_field:2001::5->ipv6_src,set_field:192.168.0.2->tun_dst,output:11",
    "table=0,priority=8,in_port=10,tun_id=0x1235,icmp6,icmp_type=136,nd_target=2001::9 actions=output:2",
    "table=0,priority=7,in_port=10,tun_id=0x1235,icmp6 actions=output:2,output:3",
    "table=0,priority=7,in_port=10,tun_id=0x1235,icmp actions=dec_ttl,output:2",
    "table=0,priority=7,in_port=10,tun_id=0x1235,arp actions=output:3",
    "table=0,priority=7,in_port=10,tun_id=0x1235,ipv6,nw_frag=later actions=set_field:2001::6->ipv6_dst,output:2",
    // Ports by liveness and hash.
    "table=0,priority=11,in_port=3,udp,vlan_tci=0,tp_src=1000,nw_dst=10.9.0.2,tp_dst=80/0xfffe actions=bundle(eth_src,0,active_backup,ofport,members:2,1)",
    "table=0,priority=11,in_port=3,udp6,tp_src=1003 actions=bundle_load(symmetric_l4,0,hrw,ofport,NXM_NX_REG9[],members:1,2,20),output:NXM_NX_REG9[]",
    "table=0,priority=11,in_port=3,udp,vlan_tci=0,tp_src=1002,nw_dst=10.9.0.2 actions=multipath(symmetric_l3l4+udp,0,hash_threshold,2,0,NXM_NX_REG9[0..1]),resubmit(,42)",
    "table=42,reg9=0 actions=output:2",
    "table=42,ip,reg9=1 actions=dec_ttl,output:1",
    // Copies in GRE and ERSPAN, with numbers and checksums, of packets that came by a tunnel, too.
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.1,tp_dst=82 actions=output:2,set_field:0x77->tun_id,set_field:192.168.0.2->tun_dst,output:12,dec_ttl,output:13",
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.1,tp_dst=83 actions=set_field:192.168.0.2->tun_dst,output:14,output:12,output:13,output:15",
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.1,tp_dst=84 actions=output:14",
    "table=0,priority=10,in_port=3,udp6,tp_dst=82 actions=set_field:192.168.0.2->tun_dst,set_field:7->tun_id,output:14,output:20",
    "table=0,priority=9,in_port=10,tun_id=0x1235,ip,nw_proto=2 actions=set_field:192.168.0.2->tun_dst,output:13,output:2",
    // And out of such tunnels.
    "table=0,priority=9,in_port=12,tun_id=0x1236,ip actions=dec_ttl,output:2",
    "table=0,priority=8,in_port=12,tun_id=0x1236,ipv6 actions=ct(table=6,zone=12,commit)",
    "table=0,priority=9,in_port=12,tun_id=0x1237,udp6,ipv6_dst=2001::8/127 actions=set_field:2001::5->ipv6_src,set_field:192.168.0.2->tun_dst,output:13,output:2",
    "table=0,priority=7,in_port=12 actions=sample(probability=65535,collector_set_id=7,obs_domain_id=5,obs_point_id=8),output:3",
    "table=0,priority=9,in_port=13,tun_id=0x38,tun_erspan_idx=5,ip actions=dec_ttl,output:2,output(port=3,max_len=30)",
    "table=0,priority=9,in_port=13,tun_id=0x39,tun_erspan_dir=1 actions=output:3",
    "table=0,priority=7,in_port=13,ip actions=ct(table=6,zone=12,commit)",
    "table=0,priority=6,in_port=13 actions=output:2",
    // The same with extensions of VXLAN.
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.1,tp_dst=81 actions=set_field:192.168.0.2->tun_dst,set_field:5->tun_id,set_field:7->tun_gbp_id,output:16,set_field:0->tun_gbp_id,output:17,output:16",
    "table=0,priority=9,in_port=16,tun_gbp_id=7,ip actions=dec_ttl,output:2",
    "table=0,priority=8,in_port=16 actions=output:3",
    "table=0,priority=8,in_port=17,ip actions=set_field:192.168.0.2->tun_dst,output:16",
    "table=0,priority=7,in_port=17 actions=output:2",
    // Samples, before and behind what changes; the domain says where packets came from.
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.0,tp_dst=82 actions=sample(probability=30000,collector_set_id=7,obs_domain_id=1,obs_point_id=2),dec_ttl,output:2,sample(probability=65535,collector_set_id=7,obs_domain_id=3,obs_point_id=NXM_OF_IP_SRC[],sampling_port=2,egress)",
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.0,tp_dst=83 actions=clone(set_field:9.9.9.1->ip_src,sample(probability=65535,collector_set_id=7,obs_domain_id=NXM_OF_ETH_SRC[0..31],obs_point_id=2)),sample(probability=65535,collector_set_id=8),output:2",
    "table=0,priority=10,in_port=10,tun_id=0x1235,udp6 actions=sample(probability=40000,collector_set_id=7,obs_domain_id=5,obs_point_id=6),dec_ttl,output:2",
    "table=0,priority=8,in_port=10,tun_id=0x1235,icmp actions=sample(probability=65535,collector_set_id=7,obs_domain_id=5,obs_point_id=7)",
    // The first bytes, of a packet that gets a tag before, too; into a tunnel, a bridge and a sample; what is shorter is whole.
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.0,tp_dst=81,tp_src=1000 actions=output(port=2,max_len=50),dec_ttl,output:1,push_vlan:0x8100,set_field:4103->vlan_vid,output(port=2,max_len=60),output:1",
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.0,tp_dst=81,tp_src=1001 actions=set_field:192.168.0.2->tun_dst,output(port=13,max_len=40),output(port=12,max_len=62),output(port=10,max_len=30),output(port=20,max_len=50)",
    "table=0,priority=10,in_port=3,udp,vlan_tci=0,nw_dst=10.9.0.0,tp_dst=81,tp_src=1002 actions=output(port=20,max_len=61),output(port=2,max_len=300)",
    "table=0,priority=8,in_port=10,tun_id=0x1235,arp actions=output(port=2,max_len=35),output:3",
    // Too deep: nothing of it leaves.
    "table=0,priority=8,in_port=3,dl_type=0x1235 actions=output:2,resubmit(,78)",
    "table=78 actions=output:20,resubmit(,78)",
];

/// More of it, for packets that open connections. What is behind a translation sees what was chosen, or does not; some have another
/// tuple by then, or are what they were again.
pub const OPENING: &[&str] = &[
    "table=0,priority=20,in_port=1,udp,tp_dst=91 actions=ct(commit,zone=22,nat(dst=10.8.0.1-10.8.0.3:1000-1001),table=50)",
    "table=50,ip actions=ct(zone=23,table=51)",
    "table=51,ct_state=+new,ip,nw_dst=10.8.0.2 actions=output:2",
    "table=51,priority=1,ip actions=output:3",
    "table=0,priority=20,in_port=1,udp,tp_dst=92 actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG6[0..15],ct(commit,zone=24,nat(src=172.16.1.1:2000-2007),exec(move:NXM_NX_REG6[0..15]->NXM_NX_CT_MARK[0..15],move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47])),output:2",
    "table=0,priority=20,in_port=1,udp,tp_dst=93 actions=clone(ct(commit,zone=25,nat(src=172.16.1.2),table=52)),output:3",
    "table=52 actions=output:2",
    "table=0,priority=20,in_port=1,udp,tp_dst=94 actions=ct(commit,zone=26,table=53)",
    "table=53,ip,ct_state=+new+trk actions=move:NXM_NX_CT_NW_SRC[]->NXM_NX_REG7[],ct(commit,zone=27,nat(src=172.16.1.3-172.16.1.4),table=54)",
    "table=54,udp,ct_state=+new+trk,ct_nw_src=10.0.0.1,ct_tp_dst=94 actions=output:2",
    "table=54,priority=1,ip,reg7=0x0a000002 actions=dec_ttl,output:2",
    "table=54,priority=0 actions=output:3",
    "table=0,priority=20,in_port=1,udp,tp_dst=95 actions=ct(zone=28,table=55)",
    "table=55,ip,ct_state=+new actions=set_field:9.9.9.7->ip_dst,ct(commit,zone=28,nat(src=172.16.1.5),table=56)",
    "table=56,udp,tp_src=1000 actions=output:2",
    "table=56,priority=1 actions=output:3",
    "table=0,priority=20,in_port=1,udp,tp_dst=96 actions=ct(commit,zone=29,nat(src=172.16.1.6),exec(set_field:7->ct_mark),table=57)",
    "table=57,ip actions=ct(commit,zone=30,exec(set_field:8->ct_mark)),ct(commit,zone=29,exec(set_field:9->ct_mark)),ct(commit,zone=29,table=58)",
    "table=58,ct_mark=9,ip actions=set_field:172.16.1.7->ip_src,output:2",
    "table=58,priority=1 actions=output:3",
    "table=0,priority=20,in_port=1,tcp,tp_dst=97 actions=ct(zone=31,table=59)",
    "table=59,ct_state=+new-est,tcp actions=ct(commit,zone=31,table=60,nat(src=172.16.1.8))",
    "table=59,priority=1,tcp actions=ct(zone=31,nat,table=60)",
    "table=60,ip,ct_state=+snat,nw_src=172.16.1.8 actions=set_field:0x1234->tun_id,set_field:0x8002->tun_metadata0,set_field:192.168.0.2->tun_dst,output:10",
    "table=60,priority=1,ip actions=output:20",
    // Some connections are translated and some are not, and only a second pass through their zone translates.
    "table=0,priority=20,in_port=1,udp,tp_dst=98 actions=ct(zone=33,table=62)",
    "table=62,priority=3,ip,ct_state=+est actions=ct(zone=33,nat,table=63)",
    "table=62,priority=2,ip,ct_state=+new,nw_src=10.0.0.1 actions=ct(commit,zone=33,table=63)",
    "table=62,priority=2,ip,ct_state=+new,nw_src=10.0.0.2 actions=ct(commit,zone=33,nat(src=0.0.0.0),table=63)",
    "table=62,priority=1,ip,ct_state=+new actions=ct(commit,zone=33,nat(src=172.16.1.10),table=63)",
    "table=63,ip actions=output:20",
    "table=0,priority=20,in_port=20,udp,tp_src=98 actions=ct(zone=33,table=64)",
    "table=64,ip,ct_state=+est+rpl actions=ct(zone=33,nat,table=65)",
    "table=65,ip actions=output:1",
    // The same over IPv6.
    "table=0,priority=20,in_port=1,udp6,tp_dst=101 actions=ct(commit,zone=42,nat(dst=2001::81-2001::83),table=90)",
    "table=90,ipv6 actions=ct(zone=43,table=91)",
    "table=91,ct_state=+new,ipv6,ipv6_dst=2001::82 actions=output:2",
    "table=91,priority=1,ipv6 actions=output:3",
    "table=0,priority=20,in_port=1,udp6,tp_dst=102 actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG6[0..15],ct(commit,zone=44,nat(src=[2001::91]:2000-2007),exec(move:NXM_NX_REG6[0..15]->NXM_NX_CT_MARK[0..15])),output:2",
    "table=0,priority=20,in_port=1,udp6,tp_dst=103 actions=ct(zone=45,table=92)",
    "table=92,ct_state=+new,ipv6 actions=ct(commit,zone=45,nat(src=2001::92),table=93)",
    "table=92,priority=1,ipv6 actions=ct(zone=45,nat,table=93)",
    "table=0,priority=20,in_port=1,udp6,tp_dst=104 actions=ct(commit,zone=45,nat(src=2001::94),table=97)",
    "table=97,ipv6,ct_ipv6_src=2001::1,ct_tp_dst=104 actions=output:2",
    "table=97,priority=1,ipv6 actions=output:3",
    "table=93,priority=1,ipv6,ipv6_src=2001::92 actions=dec_ttl,output:20",
    "table=0,priority=20,in_port=20,udp6,tp_src=103 actions=ct(zone=45,nat,table=94)",
    "table=0,priority=20,in_port=2,udp6,tp_src=103 actions=ct(zone=45,nat,table=94)",
    "table=94,ct_state=+est+rpl,ipv6 actions=output:1",
    "table=0,priority=20,in_port=1,tcp6,tp_dst=107 actions=ct(zone=46,table=95)",
    "table=95,ct_state=+new-est,tcp6 actions=ct(commit,zone=46,table=96,nat(src=2001::93))",
    "table=95,priority=1,tcp6 actions=ct(zone=46,nat,table=96)",
    "table=96,ipv6,ct_state=+snat,ipv6_src=2001::93 actions=set_field:0x1234->tun_id,set_field:0x8002->tun_metadata0,set_field:192.168.0.2->tun_dst,output:10",
    "table=96,priority=1,ipv6 actions=output:20",
    // Groups choose: a backend, one of two ways, and where nothing but their own tuple may tell packets apart.
    "table=0,priority=20,in_port=1,udp,tp_dst=70 actions=ct(zone=34,nat,table=66)",
    "table=66,ip,ct_state=+new,nw_dst=8.8.8.8 actions=group:3",
    "table=66,priority=1,ip actions=ct(zone=37,table=67)",
    "table=67,ip,ct_state=+new,nw_dst=10.8.1.1 actions=ct(commit,zone=37),output:2",
    "table=67,priority=1,ip actions=output:3",
    "table=67,priority=1,ipv6 actions=output:20",
    "table=0,priority=20,in_port=1,udp,tp_dst=71 actions=dec_ttl,group:4",
    "table=69,ip,reg8=1 actions=ct(commit,zone=38,nat(src=172.16.1.14),table=67)",
    "table=69,priority=1,ip actions=output:3",
    "table=0,priority=20,in_port=1,udp,tp_dst=72 actions=group:5,output:20",
    "table=0,priority=20,in_port=1,udp,tp_dst=73 actions=ct(commit,zone=39,nat(src=172.16.1.15-172.16.1.16),table=81)",
    "table=81,ip actions=group:4",
    "table=0,priority=20,in_port=1,udp,tp_dst=74 actions=group:6",
    "table=0,priority=20,in_port=1,udp,tp_dst=75 actions=set_field:9.9.9.3->ip_src,group:4",
    "table=0,priority=20,in_port=1,udp,tp_dst=76 actions=group:8",
    "table=0,priority=20,in_port=1,tcp,tp_dst=77 actions=ct(zone=34,nat,table=66)",
    "table=0,priority=20,in_port=1,udp6,tp_dst=108 actions=ct(zone=36,nat,table=82)",
    "table=82,ipv6,ct_state=+new,ipv6_dst=2001::8:8 actions=resubmit(,83)",
    "table=83,ipv6 actions=group:7",
    "table=82,priority=1,ipv6 actions=output:20",
    "table=0,priority=20,in_port=2,udp,tp_src=70 actions=ct(zone=34,nat,table=84)",
    "table=0,priority=20,in_port=3,udp,tp_src=70 actions=ct(zone=34,nat,table=84)",
    "table=84,ip,ct_state=+rpl actions=output:1",
    // Questions of ICMP, some of hosts that ask with the same id, and their answers.
    "table=0,priority=20,in_port=1,icmp actions=resubmit(,98)",
    "table=98,priority=1,icmp actions=set_field:0x5->reg1,ct(table=1,zone=7,nat)",
    "table=98,priority=20,icmp,nw_src=10.0.0.2 actions=ct(commit,zone=40,nat(src=172.16.1.21),table=85)",
    "table=98,priority=20,icmp,nw_src=10.0.0.3 actions=ct(commit,zone=40,nat(src=172.16.1.21),table=85)",
    "table=85,ip,nw_ttl=64 actions=dec_ttl,output:20",
    "table=0,priority=20,in_port=20,icmp,nw_dst=172.16.1.21 actions=ct(zone=40,nat,table=86)",
    "table=86,ip,ct_state=+est+rpl actions=output:1",
    "table=0,priority=20,in_port=1,icmp6,icmp_type=128 actions=ct(zone=41,table=87)",
    "table=87,ipv6,ct_state=+new actions=ct(commit,zone=41,nat(src=2001::95),table=88)",
    "table=87,priority=1,ipv6 actions=ct(zone=41,nat,table=88)",
    "table=88,ipv6 actions=output:20",
    "table=0,priority=20,in_port=20,icmp6,ipv6_dst=2001::95 actions=ct(zone=41,nat,table=89)",
    "table=89,ipv6,ct_state=+est+rpl actions=output:1",
    // Meters, before and behind what connections are, in clones, at the end, and before several ports.
    "table=0,priority=20,in_port=1,udp,tp_dst=60 actions=dec_ttl,meter:2,ct(commit,zone=47,nat(src=172.16.1.30),table=102)",
    "table=102,ip actions=meter:3,ct(commit,zone=48,table=103)",
    "table=103,ip actions=dec_ttl,output:20",
    "table=0,priority=20,in_port=1,udp,tp_dst=61 actions=ct(zone=49,table=104)",
    "table=104,ip,ct_state=+new actions=meter:2,ct(commit,zone=49,table=105)",
    "table=104,ip,ct_state=+est actions=meter:2,output:2,meter:3,dec_ttl,output:3",
    "table=105,ip actions=output:2",
    "table=0,priority=20,in_port=20,udp,tp_src=61 actions=ct(zone=49,table=104)",
    "table=0,priority=20,in_port=1,udp,tp_dst=62 actions=clone(dec_ttl,meter:2,output:2),output:3",
    "table=0,priority=20,in_port=1,udp,tp_dst=63 actions=output:2,meter:2,resubmit(,106)",
    "table=106,ip actions=dec_ttl,output:20",
    "table=0,priority=20,in_port=1,udp,tp_dst=64 actions=meter:2,group:1",
    "table=0,priority=20,in_port=1,udp,tp_dst=65 actions=clone(output:2,meter:3,set_field:0x1234->tun_id,set_field:192.168.0.2->tun_dst,output:10)",
    "table=0,priority=20,in_port=1,udp,tp_dst=66 actions=write_actions(output:2),meter:2,set_field:9.9.9.2->ip_src",
    "table=0,priority=8,in_port=10,tun_id=0x1235,ip,nw_proto=0 actions=meter:3,output:2",
    // Flows that learn, from what packets say and from what translation made of it, and look there at once.
    "table=0,priority=20,in_port=1,udp,tp_dst=67 actions=learn(table=107,hard_timeout=5,idle_timeout=9,priority=7,cookie=0x77,eth_type=0x800,NXM_OF_IP_SRC[],load:NXM_OF_UDP_DST[]->NXM_NX_REG5[0..15],output:NXM_OF_IN_PORT[]),resubmit(,107)",
    "table=107,priority=1 actions=output:3",
    "table=0,priority=20,in_port=1,udp,tp_dst=68 actions=ct(commit,zone=50,nat(src=172.16.1.31-172.16.1.32),exec(set_field:5->ct_mark),table=108)",
    "table=108,ip actions=learn(table=107,idle_timeout=20,priority=8,cookie=0x78,limit=2,result_dst=NXM_NX_REG6[0],eth_type=0x800,NXM_OF_IP_DST[]=NXM_OF_IP_SRC[],load:NXM_NX_CT_MARK[]->NXM_NX_REG5[]),resubmit(,109)",
    "table=109,ip,reg6=1 actions=dec_ttl,output:20",
    "table=109,ip,reg6=0 actions=output:2",
    "table=0,priority=20,in_port=1,udp,tp_dst=69 actions=learn(table=110,hard_timeout=30,cookie=0x79,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),meter:2,output:20",
    // Samples and copies in GRE behind connections.
    "table=0,priority=20,in_port=1,udp,tp_dst=78 actions=sample(probability=33000,collector_set_id=7,obs_domain_id=8,obs_point_id=9),ct(commit,zone=52,nat(src=172.16.1.33),table=112)",
    "table=112,ip actions=sample(probability=65535,collector_set_id=7,obs_domain_id=8,obs_point_id=10),dec_ttl,output:20,output(port=2,max_len=45),set_field:192.168.0.2->tun_dst,output:14",
    "table=0,priority=20,in_port=1,udp,tp_dst=79 actions=meter:2,sample(probability=20000,collector_set_id=7,obs_domain_id=8,obs_point_id=11),set_field:192.168.0.2->tun_dst,output:13,meter:3,output:2",
    // ICMP errors, both ways. What is behind sees who sent them, or for whom they are; some connections are marked.
    "table=86,ip,ct_state=+rel actions=dec_ttl,output:1",
    "table=98,priority=21,icmp,icmp_type=3 actions=ct(zone=33,nat,table=99)",
    "table=0,priority=21,in_port=20,icmp,icmp_type=11 actions=ct(zone=33,nat,table=99)",
    "table=0,priority=21,in_port=20,icmp,icmp_type=3,icmp_code=3 actions=ct(zone=33,table=99)",
    "table=99,priority=5,ct_state=+rel-rpl,ip,nw_src=172.16.1.10 actions=dec_ttl,output:20",
    "table=99,priority=4,ct_state=+rel-rpl,ip actions=set_field:02:00:00:00:00:0e->eth_dst,output:20",
    "table=99,priority=3,ct_state=+rel+rpl,ip,nw_dst=10.0.0.2 actions=dec_ttl,output:1",
    "table=99,priority=2,ct_state=+rel,ip,nw_src=8.8.8.8 actions=output:1,output:2",
    "table=99,priority=1,ct_state=+inv actions=output:3",
    "table=0,priority=21,in_port=1,icmp6,icmp_type=1 actions=ct(zone=45,nat,table=100)",
    "table=0,priority=21,in_port=20,icmp6,icmp_type=1 actions=ct(zone=45,nat,table=100)",
    "table=0,priority=21,in_port=20,icmp6,icmp_type=3 actions=ct(zone=45,table=101)",
    "table=100,priority=5,ct_state=+rel+rpl,ipv6 actions=dec_ttl,output:1",
    "table=100,priority=4,ct_state=+rel-rpl,ipv6,ipv6_src=2001::92 actions=output:20",
    "table=100,priority=3,ct_state=+rel-rpl,ipv6 actions=dec_ttl,output:20,output:3",
    "table=101,priority=1,ct_state=+rel,ipv6,ct_ipv6_src=2001::2 actions=ct(zone=45,nat,table=100)",
    "table=6,priority=40000,udp actions=ct(commit,zone=32,nat(src=172.16.1.9),exec(set_field:1->ct_label),table=61)",
    "table=61,ip,ct_state=+trk actions=dec_ttl,set_field:02:00:00:00:00:0f->eth_dst,output:3",
];

/// How many groups there are.
pub const GROUPS: u32 = 8;

/// A group, or the same with its buckets the other way round. Those from 3 on choose for new connections.
pub fn group(n: u32, swap: bool) -> String {
    let balance = |zone: u16, to: &str, behind: u8| format!("ct(commit,zone={zone},nat(dst={to}),table={behind})");
    let hash = "select,selection_method=dp_hash";
    let (kind, buckets) = match n {
        1 => (hash, ["watch_port:2,actions=output:2".into(), "watch_port:3,actions=output:3".into()]),
        2 => ("ff", ["watch_port:2,actions=output:2".into(), "watch_port:3,actions=output:3".into()]),
        3 => (
            hash,
            [("10.8.1.1:81", 100), ("10.8.1.2", 50)]
                .map(|(to, w)| format!("weight:{w},actions={}", balance(34, to, 67))),
        ),
        4 => (
            "select,selection_method=hash,fields(ip_src,udp_src=0xfffe),selection_method_param=7",
            [1, 2].map(|n| format!("watch_port:{},actions=load:{n}->NXM_NX_REG8[],resubmit(,69)", n + 1)),
        ),
        5 => (
            hash,
            ["172.16.1.12", "172.16.1.13"].map(|to| format!("actions=ct(commit,zone=35,nat(src={to}),table=67)")),
        ),
        6 => (
            "select,selection_method=hash,fields(eth_src,ip_src)",
            [2, 3].map(|n| format!("actions=load:{n}->NXM_NX_REG8[],resubmit(,69)")),
        ),
        7 => (hash, ["[2001::a1]:81", "2001::a2"].map(|to| format!("actions={}", balance(36, to, 67)))),
        _ => ("all", [2, 3].map(|n| format!("actions=dec_ttl,load:{n}->NXM_NX_REG8[],resubmit(,69)"))),
    };
    let [a, b] = buckets;
    let (a, b) = if swap { (b, a) } else { (a, b) };
    format!("group_id={n},type={kind},bucket=bucket_id:0,{a},bucket=bucket_id:1,{b}")
}

/// Meters 1 and 2 count packets, 3 bits.
pub fn meter(command: MeterModCommand, n: u32, rate: u32) -> MeterMod {
    let (unit, rate) = if n < 3 { ("pktps", 10 * rate) } else { ("kbps", 15 * rate) };
    let text = format!("meter={n} {unit} stats bands=type=drop rate={rate}");
    MeterMod { command, meter: parse_meter(&text).expect("meter") }
}

pub fn ip(s: &str) -> IpAddr {
    s.parse().expect("address")
}

pub fn flow(s: &mut Switch, bridge: BridgeId, text: &str, now: Duration) {
    s.apply(bridge, &Message::FlowMod(parse_flow(text).expect("flow")), now).expect("flow applies");
}

/// GRE with everything: a key, checksums, numbers.
fn numbered() -> PortKind {
    let mut c = TunnelConfig::new(TunnelKind::Gre, Some(ip("192.168.0.2")));
    (c.csum, c.sequence, c.key, c.in_key) = (Some(true), true, Some(TunnelKey(9)), Some(TunnelKey(9)));
    PortKind::Tunnel(Box::new(c))
}

/// VXLAN at a port of its own, with group policies or the generic protocol extension.
fn vxlan(port: u16, gpe: bool) -> PortKind {
    let mut c = TunnelConfig::new(TunnelKind::Vxlan, None);
    (c.udp_port, c.gpe, c.policy) = (port, gpe, !gpe);
    PortKind::Tunnel(Box::new(c))
}

/// ERSPAN whose headers have the time.
fn type3() -> PortKind {
    let mut c = TunnelConfig::new(TunnelKind::Erspan, Some(ip("192.168.0.2")));
    (c.erspan.version, c.in_key) = (Some(2), Some(TunnelKey(999)));
    PortKind::Tunnel(Box::new(c))
}

/// The gateway, with room for so many connections.
pub fn gateway(cache: bool, room: usize) -> Switch {
    let now = Duration::from_secs(1);
    let mut s = Switch::new(room);
    s.set_cache(cache);
    let (int, ex) = (s.add_bridge("br-int", 1), s.add_bridge("br-ex", 2));
    let tunnel = |kind, csum| {
        let mut c = TunnelConfig::new(kind, None);
        c.csum = Some(csum);
        PortKind::Tunnel(Box::new(c))
    };
    let ports = [
        (int, 1, "p1", PortKind::Device(DeviceId(1))),
        (int, 2, "p2", PortKind::Device(DeviceId(2))),
        (int, 3, "p3", PortKind::Device(DeviceId(3))),
        (int, 10, "gnv", tunnel(TunnelKind::Geneve, true)),
        (int, 11, "vxl", tunnel(TunnelKind::Vxlan, false)),
        (int, 12, "gre", PortKind::Tunnel(Box::new(TunnelConfig::new(TunnelKind::Gre, None)))),
        (int, 13, "erspan", tunnel(TunnelKind::Erspan, false)),
        (int, 14, "numbered", numbered()),
        (int, 15, "type3", type3()),
        (int, 16, "policy", vxlan(4790, false)),
        (int, 17, "gpe", vxlan(4791, true)),
        (int, 20, "int-ex", PortKind::Patch("ex-int".into())),
        (ex, 1, "ex-int", PortKind::Patch("int-ex".into())),
        (ex, 2, "eth0", PortKind::Device(DeviceId(50))),
        (ex, 3, "eth1", PortKind::Device(DeviceId(51))),
        (ex, 0xfffe, "br-ex", PortKind::Internal(DeviceId(60))),
    ];
    for (b, no, name, kind) in ports {
        let mut p = Port::new(PortNo(no), name, kind);
        if name == "eth1" {
            p.vlan = VlanMode::Access(packet::VlanId::of_tci(7));
        }
        s.add_port(b, p).expect("port");
    }
    s.bridge_mut(int).expect("bridge").collectors = vec![7];
    let tlv = openflow_rs::message::TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 };
    s.apply(int, &Message::TlvTableMod(openflow_rs::message::TlvTableMod { command: 0, maps: vec![tlv] }), now)
        .expect("option");
    for n in 1..=GROUPS {
        let g = GroupMod::new(GroupModCommand::Add, parse_group(&group(n, false)).expect("group"));
        s.apply(int, &Message::GroupMod(g), now).expect("group");
    }
    for n in 1..=3 {
        s.apply(int, &Message::MeterMod(meter(MeterModCommand::Add, n, 2)), now).expect("meter");
    }
    FLOWS.iter().chain(OPENING).for_each(|f| flow(&mut s, int, f, now));
    flow(&mut s, ex, "actions=NORMAL", now);
    let route = |prefix: &str, len, source: &str| Route {
        prefix: ip(prefix),
        len,
        gateway: None,
        source: ip(source),
        source_mac: ROUTER,
        egress: Egress::Port("br-ex".into()),
        hop_source: None,
        table: Route::MAIN,
        own: false,
        mark: 0,
    };
    s.underlay.set_routes(vec![route("192.168.0.0", 24, "192.168.0.1"), route("fd00::", 64, "fd00::1")]);
    s.underlay.set_neighbour(ip("192.168.0.2"), Some(PEER));
    s
}
