//! What `ovs-ofctl` shows of our switch is what it shows of Debian's, in every version of OpenFlow that both speak; 1.0
//! is what it speaks unless told otherwise.

mod common;

use common::{Namespace, Switch, able, run};

const FLOWS: &[&str] = &[
    "table=0,priority=100,in_port=1,actions=set_field:0x1->reg0,resubmit(,1),resubmit(,2)",
    "table=0,priority=50,in_port=3,actions=group:1",
    "table=0,priority=100,ip,in_port=2,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG3[],ct(table=5,zone=7,nat)",
    "table=1,priority=10,ip,nw_dst=10.0.0.0/24,actions=dec_ttl,set_field:02:00:00:00:00:09->eth_dst,clone(set_field:5->reg9,output:3),output:2",
    "table=2,priority=10,ip,actions=controller(userdata=01.02,pause),output:3",
    "table=4,priority=10,ip,ct_state=+trk+new,actions=set_field:0x77->tun_id,set_field:10.1.1.1->tun_dst,learn(table=9,priority=5,eth_type=0x800,NXM_OF_IP_DST[]=NXM_OF_IP_SRC[],output:NXM_OF_IN_PORT[])",
    "table=5,priority=10,ip,ct_state=+trk+est,actions=push_vlan:0x8100,set_field:0x1007->vlan_tci,output:1",
    "table=5,priority=9,ip,actions=conjunction(1,1/2)",
    "table=5,priority=8,ip,actions=note:11,exit",
    "table=10,priority=1,in_port=1,actions=set_field:0x1->reg0,set_field:1->tun_id,set_field:0x3->metadata,set_field:0x5->xreg3,set_field:0xfe800000000000000000000000000001->xxreg1,set_field:02:00:00:00:00:01->eth_src,set_field:0x7->tun_metadata0,set_field:3->in_port",
    "table=10,priority=2,ip,in_port=1,actions=set_field:1.2.3.4->ip_src,set_field:4->ip_dscp,set_field:3->nw_ttl,goto_table:11",
    "table=10,priority=3,tcp,in_port=1,actions=set_field:80->tcp_dst,output:NXM_NX_REG5[],output(port=3,max_len=100)",
    "table=10,priority=4,ipv6,in_port=1,actions=set_field:fe80::1->ipv6_src,set_queue:3,output:1,pop_queue,group:1",
    "table=10,priority=5,dl_vlan=4,actions=pop_vlan,push_vlan:0x8100,set_field:0x1005->vlan_vid,set_field:3->vlan_pcp,output:2",
    "table=10,priority=6,ip,actions=clear_actions,write_actions(output:3)",
    "table=10,priority=7,ip,reg0=1,tun_id=4,tun_metadata0=3,ct_state=+trk-new,ct_label=5,metadata=0x77,actions=meter:1,output:3",
    "table=10,priority=8,ip,actions=ct(commit,zone=NXM_NX_REG13[0..15],exec(set_field:0x11223344556677881122334455667788->ct_label)),LOCAL,IN_PORT,CONTROLLER:65535,NORMAL",
];

/// Each is run on both bridges, in this order; what both print is compared.
const COMMANDS: &[&str] = &[
    "--sort --no-stats dump-flows br0",
    "--sort --no-stats dump-flows br0 table=10",
    "--sort --no-stats dump-flows br0 out_port=3",
    "--sort --no-stats --names dump-flows br0",
    "-O OpenFlow15 --sort --no-stats dump-flows br0",
    "-O OpenFlow15 --sort --no-stats dump-flows br0 out_group=1",
    "dump-groups br0",
    "-O OpenFlow15 dump-groups br0",
    "-O OpenFlow13 dump-meters br0",
    "-O OpenFlow15 dump-meters br0",
    "-O OpenFlow15 dump-table-desc br0",
    "-O OpenFlow11 --sort --no-stats dump-flows br0",
    "-O OpenFlow11 --sort --no-stats dump-flows br0 table=10,out_port=3",
    "-O OpenFlow12 --sort --no-stats dump-flows br0",
    "-O OpenFlow12 --sort --no-stats --names dump-flows br0 table=1",
    "-O OpenFlow11 dump-groups br0",
    "-O OpenFlow12 dump-groups br0",
    "-O OpenFlow11 add-flow br0 table=3,priority=4,udp,nw_src=10.0.0.0/8,tp_dst=53,actions=mod_nw_src:1.2.3.4,mod_tp_dst:5,mod_nw_tos:32,output:2",
    "-O OpenFlow11 add-flow br0 table=3,priority=5,dl_vlan=7,dl_vlan_pcp=2,actions=mod_vlan_vid:9,strip_vlan,goto_table:4",
    "-O OpenFlow11 add-flow br0 table=3,priority=6,vlan_tci=0,arp,arp_spa=10.0.0.1,actions=write_metadata:7/0xf,write_actions(output:3)",
    "-O OpenFlow12 add-flow br0 table=3,priority=7,tcp6,reg1=5,ipv6_src=fe80::/10,actions=set_field:5->reg3,group:1",
    "-O OpenFlow13 add-flow br0 table=3,priority=8,ip,actions=mod_nw_ttl:32,set_field:33->nw_ttl,output:2",
    "-O OpenFlow13 --sort --no-stats dump-flows br0 table=3",
    "-O OpenFlow13 add-flow br0 table=3,actions=delete_field:tun_metadata1",
    "-O OpenFlow11 --sort --no-stats dump-flows br0 table=3",
    "-O OpenFlow12 --sort --no-stats dump-flows br0 table=3",
    "-O OpenFlow15 --sort --no-stats dump-flows br0 table=3",
    "-O OpenFlow11 mod-flows br0 table=3,udp,actions=drop",
    "-O OpenFlow11 --strict del-flows br0 table=3,priority=5,dl_vlan=7,dl_vlan_pcp=2",
    "-O OpenFlow12 --sort --no-stats dump-flows br0 table=3",
    "-O OpenFlow11 dump-aggregate br0 table=3",
    "-O OpenFlow12 dump-aggregate br0 table=3",
    "-O OpenFlow12 del-flows br0 table=3",
    "-O OpenFlow11 dump-aggregate br0 table=3",
    "-O OpenFlow11 queue-stats br0",
    "-O OpenFlow12 queue-stats br0",
    "-O OpenFlow11 queue-get-config br0 1",
    "-O OpenFlow12 get-frags br0",
    "-O OpenFlow11 mod-port br0 1 no-packet-in",
    "-O OpenFlow12 mod-port br0 1 packet-in",
    "-O OpenFlow11 mod-port br0 1 no-flood",
    "-O OpenFlow11 packet-out br0 1 output:2 0200000000020200000000010800450000140000000009009de40a0100010a000005",
    "-O OpenFlow12 packet-out br0 1 output:2 0200000000020200000000010800450000140000000009009de40a0100010a000005",
    "-O OpenFlow11 probe br0",
    "-O OpenFlow11 add-group br0 group_id=7,type=all,bucket=output:1",
    "-O OpenFlow15 dump-groups br0 7",
    "-O OpenFlow11 del-groups br0 group_id=7",
    "-O OpenFlow11 add-flow br0 ip,actions=group:9",
    "-O OpenFlow12 add-flow br0 ip,actions=group:9",
    "-O OpenFlow12 add-flow br0 ip,actions=meter:1",
    "-O OpenFlow12 dump-meters br0",
    "queue-stats br0",
    "-O OpenFlow13 queue-stats br0",
    "queue-get-config br0",
    "-O OpenFlow13 queue-get-config br0 1",
    "-O OpenFlow15 queue-get-config br0 1",
    "get-frags br0",
    "set-frags br0 drop",
    "get-frags br0",
    "set-frags br0 normal",
    "mod-port br0 1 no-flood",
    "mod-port br0 1 flood",
    "mod-port br0 77 up",
    "mod-port br0 1 no-receive",
    "mod-port br0 1 no-forward",
    "mod-port br0 2 down",
    "mod-port br0 1 receive",
    "mod-port br0 1 forward",
    "mod-port br0 2 up",
    "add-flow br0 table=3,priority=3,udp,actions=mod_tp_dst:5,mod_vlan_vid:5,output:2",
    "--no-stats dump-flows br0 table=3",
    "-O OpenFlow15 --no-stats dump-flows br0 table=3",
    "mod-flows br0 table=30,tcp,actions=drop",
    "--no-stats dump-flows br0 table=30",
    "--strict mod-flows br0 table=30,tcp,priority=32768,actions=output:1",
    "--no-stats dump-flows br0 table=30",
    "-O OpenFlow13 mod-flows br0 table=31,tcp,actions=drop",
    "--no-stats dump-flows br0 table=31",
    "del-flows br0 table=30",
    "--no-stats dump-flows br0 table=30",
    "add-flow br0 cookie=0x77,table=31,priority=1,actions=drop",
    "mod-flows br0 cookie=0x77/-1,table=31,actions=output:3",
    "--no-stats dump-flows br0 cookie=0x77/-1",
    "dump-aggregate br0 cookie=0x77/-1",
    "-O OpenFlow15 dump-aggregate br0 cookie=0x77/-1",
    "del-flows br0 cookie=0x77/-1",
    "--no-stats dump-flows br0 cookie=0x77/-1",
    "add-flow br0 table=33,actions=set_tunnel:11,set_tunnel64:12,set_tunnel:0x500000000,output:2",
    "--no-stats dump-flows br0 table=33",
    "-O OpenFlow11 --no-stats dump-flows br0 table=33",
    "-O OpenFlow13 --no-stats dump-flows br0 table=33",
    "-O OpenFlow13 mod-table br0 33 name:keys",
    "-O OpenFlow15 mod-table br0 32 name:rest",
    "-O OpenFlow13 --names --no-stats dump-flows br0 table=keys",
    "-O OpenFlow13 mod-table br0 254 name:own",
    "-O OpenFlow15 mod-table br0 33 name:tunnels",
    "-O OpenFlow15 --names --no-stats dump-flows br0 table=tunnels",
    "-O OpenFlow14 --bundle add-flow br0 table=32,actions=drop",
    "--no-stats dump-flows br0 table=32",
    "-F openflow10 --sort --no-stats dump-flows br0 table=0",
    "probe br0",
    "packet-out br0 1 output:2 0200000000020200000000010800450000140000000009009de40a0100010a000005",
    "-O OpenFlow15 ct-flush-zone br0 3",
    "ct-flush br0 zone=3",
    "add-flow br0 ip,actions=group:9",
    "-O OpenFlow13 add-flow br0 ip,actions=group:9",
    "-O OpenFlow13 add-flow br0 ip,actions=meter:9",
    "-O OpenFlow15 add-flow br0 ip,actions=meter:9",
    "add-group br0 group_id=5,type=all,bucket=output:1",
    "-O OpenFlow15 add-group br0 group_id=5,type=all,bucket=output:1",
    "del-groups br0 group_id=5",
    "dump-groups br0",
];

/// Flows that traces go through, by register 5.
const TRACED: &[&str] = &[
    "table=20,tcp,reg5=1,actions=group:2,output:3",
    "table=20,tcp,reg5=2,actions=output:20,output:2",
    "table=20,tcp,reg5=3,actions=output:1,ct_clear,in_port",
    "table=20,tcp,reg5=4,actions=push:NXM_NX_REG5[],pop:NXM_NX_REG6[],move:NXM_OF_IP_SRC[]->NXM_NX_REG7[],output:2",
    "table=20,tcp,reg5=5,actions=ct(commit,zone=4,exec(set_field:1->ct_mark)),output:3",
    "table=20,tcp,reg5=6,actions=ct(commit,table=22,zone=3,nat(src=1.1.1.1)),output:3",
    "table=20,tcp,reg5=7,actions=ct(table=22,zone=3,nat),output:3",
    "table=20,tcp,reg5=8,actions=mod_vlan_vid:7,output:3,strip_vlan,output:2",
    "table=20,tcp,reg5=9,actions=set_field:9.9.9.9->ip_src,set_field:7->tcp_dst,dec_ttl,set_field:02:00:00:00:00:09->eth_dst,output:2,resubmit(,21),resubmit(,99)",
    "table=20,tcp,reg5=10,actions=resubmit(,21),clone(set_field:5->reg9,output:3),output:2",
    "table=20,tcp,reg5=11,actions=group:3",
    "table=20,tcp,reg5=12,actions=set_field:2->nw_ttl,dec_ttl,output:2",
    "table=20,tcp,reg5=13,actions=drop",
    "table=20,tcp,reg5=14,actions=ct(table=22),ct(table=23,zone=9)",
    "table=20,tcp,reg5=15,actions=check_pkt_larger(100)->NXM_NX_REG1[0],resubmit(,24),output:1",
    "table=20,tcp,reg5=16,actions=resubmit(,25),output:2",
    "table=20,tcp,reg5=17,actions=check_pkt_larger(100)->NXM_NX_REG1[0],resubmit(,26)",
    "table=20,tcp,reg5=18,actions=clone(ct(commit,zone=5),output:2),output:3",
    "table=20,tcp,reg5=19,actions=clone(ct(table=24,zone=5)),output:3",
    "table=20,tcp,reg5=20,actions=clone(set_field:02:00:00:00:00:09->eth_dst,output:2),output:3",
    "table=20,tcp,reg5=21,actions=output:3,clone(ct(commit,zone=5),output:2)",
    "table=20,tcp,reg5=22,actions=sample(probability=32768,collector_set_id=1,obs_domain_id=1,obs_point_id=2),output:2",
    "table=20,tcp,reg5=23,actions=set_field:1.1.1.1->ip_src,sample(probability=65535,collector_set_id=1,obs_domain_id=1,obs_point_id=2,egress),output:2",
    "table=20,tcp,reg5=24,actions=set_queue:7,output:2,pop_queue,output:3",
    "table=20,tcp,reg5=25,actions=set_queue:7,output:2,set_field:5->nw_ttl,set_queue:9,output:3",
    "table=20,tcp,reg5=26,actions=check_pkt_larger(100)->NXM_NX_REG1[0]",
    "table=20,tcp,reg5=27,actions=set_field:02:00:00:00:00:09->eth_dst,clone(check_pkt_larger(100)->NXM_NX_REG1[0],resubmit(,24)),output:3",
    "table=20,tcp,reg5=28,actions=clone(clone(ct(commit,zone=5),output:2),output:1),output:3",
    "table=20,tcp,reg5=29,actions=check_pkt_larger(100)->NXM_NX_REG1[0],check_pkt_larger(200)->NXM_NX_REG1[1],resubmit(,27)",
    "table=20,tcp,reg5=30,actions=clone(resubmit(,28)),output:3",
    "table=20,tcp,reg5=31,actions=set_field:5->nw_ttl,clone(set_field:6->nw_ttl,ct(commit,zone=5),set_field:7->nw_ttl,output:2),output:3",
    "table=20,tcp,reg5=32,actions=ct(table=29,zone=3)",
    "table=29,actions=ct_clear,ct_clear,output:2",
    "table=24,reg1=1,actions=output:2",
    "table=24,reg1=0,actions=output:3",
    "table=25,actions=check_pkt_larger(100)->NXM_NX_REG1[0],resubmit(,24),set_field:7->reg9,output:2",
    "table=26,reg1=1,tcp,actions=dec_ttl,output:2",
    "table=26,reg1=0,tcp,actions=set_field:02:00:00:00:00:09->eth_dst,ct(table=24,zone=3)",
    "table=27,reg1=1,actions=output:2",
    "table=27,reg1=3,actions=output:3",
    "table=28,tcp,actions=ct(commit,zone=5),output:2",
    "table=20,priority=1,actions=NORMAL",
    "table=21,cookie=0x55,tcp,actions=set_field:1->reg0,resubmit(,22),set_field:2->reg0",
    "table=22,ct_state=+new+trk,tcp,actions=learn(table=9,priority=5,eth_type=0x800,NXM_OF_IP_DST[]=NXM_OF_IP_SRC[],output:NXM_OF_IN_PORT[]),output:2",
    "table=22,ct_state=+est+trk,tcp,actions=set_field:02:00:00:00:00:0a->eth_src,output:3",
    "table=22,priority=1,actions=drop",
    "table=23,priority=1,actions=output:2",
];

/// Without what differs from run to run: transaction ids, times, ages, paths.
fn normal(s: &str, dir: &str) -> Vec<String> {
    let mut out = Vec::new();
    for line in s.replace(dir, "").lines() {
        let line = line.split_once("xid=0x").map_or(line.to_string(), |(a, b)| {
            format!("{a}xid{}", b.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
        });
        // Log lines begin with a time.
        let logged = line.split_once('|').is_some_and(|(t, _)| t.starts_with("20") && t.ends_with('Z'));
        out.push(if logged { line.rsplit('|').next().unwrap_or_default().to_string() } else { line });
    }
    out
}

fn prepare(s: &Switch) {
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure other_config:hwaddr=02:00:00:00:00:aa");
    for n in 1..4 {
        s.vsctl(&format!("add-port br0 p{n} -- set interface p{n} type=internal ofport_request={n}"));
    }
    s.ofctl(&["add-tlv-map", "br0", "{class=0x102,type=0x80,len=4}->tun_metadata0"]);
    s.ofctl(&["add-meter", "br0", "meter=1,kbps,band=type=drop,rate=1000"]);
    s.ofctl(&["add-group", "br0", "group_id=1,type=select,bucket=bucket_id:1,weight=1,actions=output:1,bucket=bucket_id:2,weight=1,actions=resubmit(,1)"]);
    for f in FLOWS {
        s.ofctl(&["add-flow", "br0", f]);
    }
}

#[test]
fn ovs_ofctl_shows_the_same() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("oo"), Namespace::new("oc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for s in &switches {
        prepare(s);
    }
    let mut bad = Vec::new();
    for command in COMMANDS {
        let [ours, theirs] = switches.each_ref().map(|s| {
            let dir = s.path("");
            let words: Vec<&str> = command.split(' ').collect();
            let env = [("OVS_RUNDIR", dir.as_str())];
            match run("ovs-ofctl", &words, &env) {
                Ok(out) => normal(&format!("ok\n{out}"), &dir),
                Err(e) => normal(&format!("error\n{e}"), &dir),
            }
        });
        if ours != theirs {
            bad.push(format!(
                "ovs-ofctl {command}\n  ours:   {}\n  theirs: {}",
                ours.join("\n          "),
                theirs.join("\n          ")
            ));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// A trace without numbers that a datapath chooses, and without what Open vSwitch says of the flow that it would keep.
fn normal_trace(s: &str, dir: &str) -> Vec<String> {
    let hex = |s: &str, from: &str| match s.split_once(from) {
        Some((a, b)) => format!("{a}{from}{}", b.trim_start_matches(|c: char| c.is_ascii_hexdigit())),
        None => s.to_string(),
    };
    let mut out = Vec::new();
    for line in normal(s, dir).into_iter().filter(|l| !l.starts_with("Megaflow:")) {
        let line = hex(&hex(&line, "recirc(0x"), "recirc_id=0x");
        let Some(actions) = line.strip_prefix("Datapath actions: ") else {
            out.push(line);
            continue;
        };
        // A device's number may follow a bracket, and be followed by some.
        let of_device = |w: &str| {
            let (head, rest) = ["gt(", "le("]
                .iter()
                .find_map(|b| Some((*b, w.rsplit_once(b)?)))
                .map_or(("", ("", w)), |(b, x)| (b, x));
            let number = rest.1.trim_end_matches(')');
            match number.parse::<u32>() {
                Ok(_) => format!("{}{head}N{}", rest.0, &rest.1[number.len()..]),
                Err(_) => w.to_string(),
            }
        };
        let words: Vec<String> = actions.split(',').map(|w| hex(&of_device(w), "recirc(0x")).collect();
        out.push(words.join(","));
    }
    out
}

#[test]
fn traces_read_the_same() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("to"), Namespace::new("tc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for s in &switches {
        prepare(s);
        s.vsctl("add-br br1 -- set bridge br1 datapath_type=netdev fail_mode=secure -- add-port br0 pa -- set interface pa type=patch options:peer=pb ofport_request=20 -- add-port br1 pb -- set interface pb type=patch options:peer=pa ofport_request=21 -- add-port br1 q1 -- set interface q1 type=internal ofport_request=5");
        s.vsctl("-- --id=@b get bridge br0 -- --id=@i create IPFIX targets=\"127.0.0.1:4739\" -- create Flow_Sample_Collector_Set id=1 bridge=@b ipfix=@i");
        s.ofctl(&["add-group", "br0", "group_id=2,type=all,bucket=bucket_id:1,actions=set_field:3->reg1,output:2,bucket=bucket_id:2,actions=resubmit(,21)"]);
        s.ofctl(&["add-group", "br0", "group_id=3,type=ff,bucket=bucket_id:1,watch_port:77,actions=output:1"]);
        s.ofctl(&["add-flow", "br1", "priority=7,actions=output:5"]);
        s.ofctl(&["add-flow", "br0", "table=0,priority=300,actions=resubmit(,20)"]);
        for f in TRACED {
            s.ofctl(&["add-flow", "br0", f]);
        }
    }
    let tcp = "in_port=1,tcp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,tcp_src=1,tcp_dst=2";
    let mut list: Vec<Vec<String>> = (1..33).map(|n| vec!["br0".into(), format!("reg5={n},{tcp}")]).collect();
    for (options, flow) in [
        ("--ct-next trk,est", "reg5=7"),
        ("--ct-next est,trk,rpl --ct-next trk,inv", "reg5=14"),
        ("", "in_port=p2,icmp6,ipv6_src=fe80::1,ipv6_dst=fe80::2,nw_ttl=9,icmpv6_type=128"),
        ("", "in_port=2,arp,arp_spa=10.0.0.1,arp_tpa=10.0.0.2,arp_op=1,dl_src=02:00:00:00:00:01"),
        ("", "in_port=2,dl_vlan=7,udp,nw_src=10.0.0.1,udp_src=7"),
        ("--ct-next trk,est", "reg5=17"),
        ("--never", "reg5=7"),
    ] {
        let mut args: Vec<String> = options.split_whitespace().map(String::from).collect();
        args.push("br0".into());
        args.push(if flow.contains("in_port") { flow.into() } else { format!("{flow},{tcp}") });
        list.push(args);
    }
    list.push(vec!["--names".into(), "br0".into(), format!("reg5=18,{tcp}")]);
    list.push(vec!["nobridge".into(), tcp.into()]);
    list.push(vec![
        "br0".into(),
        "in_port=1,reg5=9".into(),
        "0200000000020200000000010800450000280000000009069dca0a0100010a000005000500500000000000000000500000009b890000"
            .into(),
    ]);
    list.iter_mut().for_each(|args| args.insert(0, "ofproto/trace".into()));
    for rest in [
        &["br0", tcp, "output:2"][..],
        &["br0", tcp, "set_field:5->reg0,set_field:02:00:00:00:00:09->eth_src,output:2"],
        &["-consistent", "br0", tcp, "resubmit(,20)"],
        &["br0", tcp, "table"],
        &["br0", tcp, "NORMAL"],
        &["br0", tcp, "group:2"],
        &["nobridge", tcp, "output:2"],
        &[
            "br0",
            "in_port=1",
            "0200000000020200000000010800450000280000000009069dca0a0100010a000005000500500000000000000000500000009b890000",
            "dec_ttl,output:2",
        ],
        &["br0", "in_port=1", "xyz", "output:2"],
    ] {
        list.push(["ofproto/trace-packet-out"].iter().chain(rest).map(|w| w.to_string()).collect());
    }
    let mut bad = Vec::new();
    for args in &list {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let [ours, theirs] = switches.each_ref().map(|s| match s.appctl(&args) {
            Ok(t) => normal_trace(&t, &s.path("")),
            Err(e) => normal_trace(&e, &s.path("")),
        });
        if ours != theirs {
            bad.push(format!("{args:?}\n---- ours\n{}\n---- theirs\n{}", ours.join("\n"), theirs.join("\n")));
        }
    }
    assert!(bad.is_empty(), "{} of {} differ\n{}", bad.len(), list.len(), bad.join("\n"));
}

/// How many tags count is what `other_config:vlan-limit` says, one if it says nothing.
#[test]
fn tags_count_as_in_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("vo"), Namespace::new("vc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for s in &switches {
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure");
        for n in 1..4 {
            s.vsctl(&format!("add-port br0 p{n} -- set interface p{n} type=internal ofport_request={n}"));
        }
        for f in [
            "priority=9,dl_vlan=6,dl_type=0x8100,actions=pop_vlan,output:2,push_vlan:0x8100,set_field:0x1007->vlan_tci,output:3",
            "priority=8,ip,dl_vlan=6,actions=dec_ttl,pop_vlan,output:2",
            "priority=7,ip,dl_vlan=5,actions=output:3",
        ] {
            s.ofctl(&["add-flow", "br0", f]);
        }
    }
    let ip = "4500001c000100004011666e0a0000010a000002000100020008e3d8";
    let tagged = |tags: &str| format!("020000000002020000000001{tags}0800{ip}");
    let packets = [
        tagged("81000006"),
        tagged("8100000681000005"),
        tagged("81000006810000058100000a"),
        tagged("88a8000681000005"),
    ];
    for limit in ["", "0", "1", "2", "9", ""] {
        for s in &switches {
            match limit {
                "" => s.vsctl("remove open_vswitch . other_config vlan-limit"),
                n => s.vsctl(&format!("set open_vswitch . other_config:vlan-limit={n}")),
            };
        }
        common::eventually(&format!("vlan-limit={limit}"), std::time::Duration::from_secs(5), || {
            for p in &packets {
                let [ours, theirs] = switches.each_ref().map(|s| {
                    let text = s.appctl(&["ofproto/trace", "br0", "in_port=1", p]).unwrap_or_else(|e| e);
                    normal_trace(&text, &s.path(""))
                });
                if ours != theirs {
                    return Err(format!("{p}\nours {ours:#?}\ntheirs {theirs:#?}"));
                }
            }
            Ok(())
        });
    }
}

/// A trace changes nothing: no counter, no learned flow, no connection.
#[test]
fn traces_change_nothing() {
    if !able(&["ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("tn");
    let s = Switch::ours(&ns);
    prepare(&s);
    for f in TRACED {
        let f = f.replace("table=20", "table=0");
        s.ofctl(&["add-flow", "br0", &f.replace("group:2", "group:1").replace("group:3", "group:1")]);
    }
    // What the kernel itself sends out of the taps is no TCP.
    let state = || {
        let dump = s.ofctl(&["dump-flows", "br0", "tcp"]);
        let flow = |l: &str| {
            Some((l.split_once("n_packets=")?.1.split(',').next()?.to_string(), l.split_once("tcp")?.1.to_string()))
        };
        let flows: Vec<_> = dump.lines().filter_map(flow).collect();
        let learned = s.ofctl(&["dump-flows", "br0", "table=9"]).lines().count();
        let known = s.appctl(&["fdb/show", "br0"]).unwrap_or_default().contains("02:00:00:00:00:01");
        (flows, learned, known, s.appctl(&["dpctl/dump-conntrack"]))
    };
    let before = state();
    for n in 1..33 {
        let flow = format!(
            "reg5={n},in_port=1,tcp,dl_src=02:00:00:00:00:01,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=9,tcp_src=1,tcp_dst=2"
        );
        s.appctl(&["ofproto/trace", "br0", &flow]).expect("a trace");
    }
    s.appctl(&["ofproto/trace", "br0", "in_port=3,dl_src=02:00:00:00:00:01"]).expect("a trace");
    assert_eq!(state(), before);
}

/// A bridge's controllers: it connects to them, or they to it; rows say how it went.
#[test]
fn controllers_are_connected() {
    if !able(&["ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("ctl");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0 -- set bridge br0 fail_mode=secure");
    let (here, there) = (s.path("controller"), s.path("br0.passive"));
    let listener = std::os::unix::net::UnixListener::bind(&here).expect("socket");
    s.vsctl(&format!("set-controller br0 unix:{here} punix:{there}"));
    let (peer, _) = listener.accept().expect("the switch connects");
    peer.set_nonblocking(true).expect("nonblocking");
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let held = rt.block_on(async {
        use openflow_rs::message::{Message, Role};
        let peer = tokio::net::UnixStream::from_std(peer).expect("socket");
        let (mut tx, mut rx) =
            openflow_rs::connection::negotiate(peer, openflow_rs::connection::OUR_VERSIONS).await.expect("OpenFlow");
        tx.send(&Message::RoleRequest(Role { role: 2, generation_id: 7, ..Default::default() })).await.expect("sends");
        let reply = rx.recv().await.expect("an answer").message;
        assert!(matches!(reply, Ok(Message::RoleReply(Role { role: 2, generation_id: 7, .. }))), "{reply:?}");
        tx.send(&Message::RoleRequest(Role { role: 2, generation_id: 6, ..Default::default() })).await.expect("sends");
        let stale = rx.recv().await.expect("an answer").message;
        assert!(matches!(stale, Ok(Message::Error { error_type: 11, code: 0, .. })), "{stale:?}");
        (tx, rx)
    });
    let find = format!("--bare --columns=is_connected,role find controller target=\"unix:{here}\"");
    common::eventually("the row says so", std::time::Duration::from_secs(10), || {
        let now = s.vsctl(&find);
        if now.split_whitespace().collect::<Vec<_>>() == ["true", "master"] { Ok(()) } else { Err(now) }
    });
    // The one that waits is there for others.
    common::eventually("the passive one answers", std::time::Duration::from_secs(10), || {
        let out = s.try_ofctl(&["dump-flows", &format!("unix:{there}")])?;
        if out.contains("OFPST_FLOW reply") { Ok(()) } else { Err(out) }
    });
    drop(held);
    common::eventually("the end is seen", std::time::Duration::from_secs(10), || {
        let now = s.vsctl(&find);
        if now.starts_with("false") { Ok(()) } else { Err(now) }
    });
    // The next bridge knows nothing of the former one's roles.
    s.vsctl("del-br br0");
    s.vsctl(&format!("add-br br1 -- set-controller br1 unix:{here}"));
    rt.block_on(async {
        use openflow_rs::message::{Message, Role};
        listener.set_nonblocking(true).expect("nonblocking");
        let listener = tokio::net::UnixListener::from_std(listener).expect("listener");
        // The former bridge may have left a connection there.
        for _ in 0..5 {
            let (peer, _) = listener.accept().await.expect("the switch connects");
            let Ok((mut tx, mut rx)) =
                openflow_rs::connection::negotiate(peer, openflow_rs::connection::OUR_VERSIONS).await
            else {
                continue;
            };
            let asked = Message::RoleRequest(Role { role: 2, generation_id: 5, ..Default::default() });
            let answered = if tx.send(&asked).await.is_ok() { rx.recv().await.ok() } else { None };
            if let Some(reply) = answered {
                let reply = reply.message;
                assert!(matches!(reply, Ok(Message::RoleReply(Role { generation_id: 5, .. }))), "{reply:?}");
                return;
            }
        }
        panic!("no bridge connects");
    });
}

/// Policers drop what is over their rates, and counters say so.
#[test]
fn policers_drop() {
    if !able(&["ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("po");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure");
    let (a, b) = (ns.machine("v1", "10.4.0.1/24"), ns.machine("v2", "10.4.0.2/24"));
    s.vsctl("add-port br0 v1 -- add-port br0 v2");
    s.ofctl(&["add-flow", "br0", "actions=NORMAL"]);
    a.reaches("10.4.0.2");
    // Forty packets of a thousand bytes at once; some of what the kernel says by itself may be among them.
    let lost = |from: &Namespace, to: &str| {
        let out = from.exec(&format!("ping -n -q -c 40 -i 0.002 -W 1 -s 958 {to}")).unwrap_or_else(|e| e);
        let word = out.split("received, ").nth(1).and_then(|r| r.split('%').next()).map(String::from);
        word.and_then(|w| w.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok())).unwrap_or_else(|| panic!("{out}"))
    };
    assert_eq!(lost(&a, "10.4.0.2"), 0.0);
    // 8 kbit/s and 80 kbit, which is ten thousand bytes, at once.
    s.vsctl("set interface v1 ingress_policing_rate=8 ingress_policing_burst=80");
    common::eventually("what comes in is limited", std::time::Duration::from_secs(10), || {
        let l = lost(&a, "10.4.0.2");
        if l > 50.0 { Ok(()) } else { Err(l.to_string()) }
    });
    s.vsctl("set interface v1 ingress_policing_rate=0");
    common::eventually("it is not any more", std::time::Duration::from_secs(10), || {
        let l = lost(&a, "10.4.0.2");
        if l == 0.0 { Ok(()) } else { Err(l.to_string()) }
    });
    s.vsctl(
        "set port v2 qos=@q -- --id=@q create qos type=egress-policer other_config:cir=1000 other_config:cbs=10000",
    );
    common::eventually("what goes out is limited", std::time::Duration::from_secs(10), || {
        let l = lost(&a, "10.4.0.2");
        if l > 50.0 { Ok(()) } else { Err(l.to_string()) }
    });
    common::eventually("drops are counted", std::time::Duration::from_secs(15), || {
        let n = s.try_vsctl("get interface v2 statistics:tx_dropped")?;
        if n.trim().parse::<u64>().is_ok_and(|n| n > 10) { Ok(()) } else { Err(n) }
    });
    let shown = s.appctl(&["qos/show", "v2"]).expect("qos/show");
    assert_eq!(shown, "QoS: v2 egress-policer\ncbs: 10000\ncir: 1000\n");
    assert_eq!(s.appctl(&["qos/show", "v1"]).expect("qos/show"), "QoS not configured on v1\n");
    assert!(s.appctl(&["qos/show", "none"]).is_err_and(|e| e.contains("no such interface")));
    // The excess makes room for the rest.
    let row = s.vsctl("--bare --columns=_uuid list qos");
    s.vsctl(&format!("set qos {} type=trtcm-policer other_config:eir=1000 other_config:ebs=50000", row.trim()));
    eventually_shown(&s, "QoS: v2 trtcm-policer\ncbs: 10000\ncir: 1000\nebs: 50000\neir: 1000\n");
    common::eventually("both bursts pass", std::time::Duration::from_secs(60), || {
        // Until both buckets are full anew; a thousand bytes a second each.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let l = lost(&a, "10.4.0.2");
        if l < 40.0 { Ok(()) } else { Err(l.to_string()) }
    });
    drop(b);
}

fn eventually_shown(s: &Switch, wanted: &str) {
    common::eventually("qos/show", std::time::Duration::from_secs(10), || {
        let now = s.appctl(&["qos/show", "v2"])?;
        if now == wanted { Ok(()) } else { Err(now) }
    });
}

/// A mirror that `ovs-vsctl` makes copies packets, and says how many.
#[test]
fn mirrors_are_made_by_ovs_vsctl() {
    if !able(&["ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("mi");
    let s = Switch::ours(&ns);
    prepare(&s);
    s.ofctl(&["del-flows", "br0"]);
    s.ofctl(&["add-flow", "br0", "actions=drop"]);
    s.vsctl("-- --id=@in get port p1 -- --id=@out get port p3 -- --id=@m create mirror name=m select_src_port=@in output_port=@out -- set bridge br0 mirrors=@m");
    let packet = "0200000000020200000000010800450000140000000009009de40a0100010a000005";
    common::eventually("copies are counted", std::time::Duration::from_secs(20), || {
        // What the kernel sends by p1 is what the switch receives there.
        ns.exec("ip neigh replace 10.9.9.9 lladdr 02:00:00:00:00:99 dev p1")?;
        ns.ip("link set p1 up");
        ns.ip("addr replace 10.9.9.1/24 dev p1");
        let _ = ns.exec("ping -c 2 -i 0.2 -W 0.2 10.9.9.9");
        let now = s.try_vsctl("get mirror m statistics:tx_packets")?;
        if now.trim().parse::<u64>().is_ok_and(|n| n > 0) { Ok(()) } else { Err(now) }
    });
    s.ofctl(&["packet-out", "br0", &format!("in_port=2 packet={packet} actions=resubmit(,0)")]);
    s.vsctl("clear bridge br0 mirrors");
    let left = s.vsctl("--bare --columns=name list mirror");
    assert_eq!(left.trim(), "");
}

/// `ovs-ofctl snoop` shows what a connection says and hears.
#[test]
fn snoop_shows_messages() {
    if !able(&["ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("snoop");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0 -- set bridge br0 fail_mode=secure");
    let out = s.path("snooped");
    let mut child = std::process::Command::new("ovs-ofctl")
        .args(["-O", "OpenFlow15", "snoop", "br0"])
        .env("OVS_RUNDIR", s.path(""))
        .stderr(std::fs::File::create(&out).expect("file"))
        .spawn()
        .expect("ovs-ofctl");
    common::eventually("a flow is seen", std::time::Duration::from_secs(10), || {
        s.ofctl(&["add-flow", "br0", "table=3,priority=7,actions=drop"]);
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        if text.contains("OFPT_FLOW_MOD") && text.contains("priority=7") { Ok(()) } else { Err(text) }
    });
    let _ = child.kill();
    let _ = child.wait();
}
