//! The daemon among virtual machines in network namespaces.

mod common;

use common::*;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn machines_across_one_dataplane() {
    if !able(&["ovs-vsctl", "ovs-ofctl", "ovs-appctl"]) {
        return;
    }
    let host = Namespace::new("one");
    let (a, b) = (host.machine("va", "10.1.0.1/24"), host.machine("vb", "10.1.0.2/24"));
    let mut s = Switch::ours(&host);
    // A device that is not there does not disturb the others, and is taken once it is.
    s.vsctl("add-br br0 -- add-port br0 va -- add-port br0 late -- add-port br0 vb");
    a.reaches("10.1.0.2");
    assert_eq!(s.vsctl("get interface late ofport").trim(), "-1");
    assert!(s.vsctl("get interface late error").contains("No such device"));
    let c = host.machine("late", "10.1.0.3/24");
    s.becomes("get interface late error", "[]", SOON);
    c.reaches("10.1.0.1");
    tools(&s);
    s.vsctl("set bridge br0 fail-mode=secure");
    eventually("the default flow goes", SOON, || {
        let flows = s.ofctl(&["dump-flows", "br0"]);
        if flows.contains("NORMAL") { Err(flows) } else { Ok(()) }
    });
    s.ofctl(&["add-flow", "br0", "priority=0,actions=NORMAL"]);
    figures(&s);
    devices(&s);
    vlans(&s, &a, &b);
    patches(&s, &a, &b);
    // The bridge's own port is the host's.
    host.ip("addr add 10.1.0.9/24 dev br0");
    host.ip("link set br0 up");
    a.reaches("10.1.0.9");
    assert_eq!(s.vsctl("get interface br0 ofport").trim(), "65534");
    // After a crash the next one takes over.
    s.vsctl("set bridge br0 fail-mode=standalone");
    let port = s.vsctl("get interface va ofport");
    s.crash();
    s.start_ours(&host);
    a.reaches("10.1.0.2");
    a.reaches("10.1.0.9");
    assert_eq!(s.vsctl("get interface va ofport"), port);
    s.vsctl("del-port va -- del-br br0");
    eventually("br0.mgmt goes", SOON, || {
        let there = s.dir.path().join("br0.mgmt").exists();
        if there { Err("it is there".into()) } else { Ok(()) }
    });
    assert!(host.exec("ip link show br0").is_err(), "the tap goes with its bridge");
}

/// Metrics and connection tracking by the control socket.
fn figures(s: &Switch) {
    let ask = |args: &[&str]| s.appctl(args).unwrap_or_else(|e| panic!("{args:?}: {e}"));
    let metrics = ask(&["metrics/show"]);
    for part in [
        "isthmus_port_packets_total{bridge=\"br0\",port=\"va\",direction=\"rx\"} ",
        "isthmus_drops_total{reason=\"zone_limit\"} 0\n",
        "isthmus_cache_lookups_total{result=\"hit\"} ",
        "isthmus_flows{bridge=\"br0\"} ",
        "isthmus_pmd_seconds_total{state=\"busy\"} ",
        "isthmus_connections 0\n",
    ] {
        assert!(metrics.contains(part), "{part}: {metrics}");
    }
    ask(&["dpctl/ct-set-limits", "default=9", "zone=5,limit=7"]);
    assert_eq!(ask(&["dpctl/ct-get-limits"]), "default limit=9\nzone=5,limit=7,count=0\n");
    ask(&["dpctl/ct-del-limits", "zone=5"]);
    assert_eq!(ask(&["dpctl/ct-get-limits", "zone=5"]), "default limit=9\nzone=5,limit=9,count=0\n");
    ask(&["dpctl/ct-set-limits", "default=0"]);
    ask(&["dpctl/flush-conntrack", "zone=5", "ct_nw_src=10.0.0.1,ct_nw_proto=17"]);
    let dpif = ask(&["dpif/show"]);
    assert!(dpif.contains("  br0:\n    br0 65534/") && dpif.contains("    va 1/"), "{dpif}");
    assert!(ask(&["dpctl/ipf-set-min-frag", "v4", "500"]).contains("successful"));
    assert!(ask(&["dpctl/ipf-get-status"]).contains("min v4 frag size: 500"));
    assert!(s.appctl(&["dpctl/ipf-set-min-frag", "v4", "20"]).is_err());
    // Zones' limits and timeouts, from the database.
    s.vsctl(
        "-- --id=@t create CT_Timeout_Policy timeouts:udp_first=7 -- --id=@z create CT_Zone timeout_policy=@t \
         -- --id=@d create Datapath datapath_version=x ct_zones:9=@z -- set Open_vSwitch . datapaths:netdev=@d",
    );
    eventually("the switch says what it can do", SOON, || {
        let text = s.vsctl("list Datapath");
        if text.contains("ct_timeout=") { Ok(()) } else { Err(text) }
    });
    // Fragment modes, as `ovs-ofctl set-frags` has them.
    s.ofctl(&["set-frags", "br0", "nx-match"]);
    assert!(s.ofctl(&["get-frags", "br0"]).contains("nx-match"));
    s.ofctl(&["set-frags", "br0", "normal"]);
}

/// Debian's tools.
fn tools(s: &Switch) {
    let show = s.ofctl(&["show", "br0"]);
    assert!(show.contains("(va)") && show.contains("LOCAL(br0)"), "{show}");
    assert!(s.ofctl(&["dump-ports", "br0"]).contains("rx pkts="));
    assert!(s.ofctl(&["dump-flows", "br0"]).contains("actions=NORMAL"));
    s.ofctl(&["add-group", "br0", "group_id=5,type=ff,bucket=watch_port:1,output:1"]);
    assert!(s.ofctl(&["dump-groups", "br0"]).contains("group_id=5,type=ff"));
    s.ofctl(&["dump-group-stats", "br0"]);
    s.ofctl(&["add-meter", "br0", "meter=1,pktps,bands=type=drop,rate=10"]);
    assert!(s.ofctl(&["dump-meters", "br0"]).contains("rate=10"));
    let e = s.try_ofctl(&["add-flow", "br0", "table=3,actions=group:99"]).expect_err("no such group");
    assert!(e.contains("OFPBAC_BAD_OUT_GROUP"), "{e}");
    // A bundle is all or nothing.
    let flows = s.dir.path().join("flows");
    std::fs::write(&flows, "table=4,priority=5 actions=drop\ntable=4,priority=6 actions=group:99\n").expect("file");
    assert!(s.try_ofctl(&["--bundle", "add-flows", "br0", &flows.display().to_string()]).is_err());
    assert!(!s.ofctl(&["dump-flows", "br0"]).contains("table=4"));
    std::fs::write(&flows, "table=4,priority=5 actions=drop\ntable=4,priority=6,ip actions=drop\n").expect("file");
    s.ofctl(&["--bundle", "add-flows", "br0", &flows.display().to_string()]);
    assert_eq!(s.ofctl(&["dump-flows", "br0", "table=4"]).matches("actions=drop").count(), 2);
    s.ofctl(&["del-flows", "br0", "table=4"]);
    s.ofctl(&["-O", "OpenFlow13", "add-flow", "br0", "table=9,actions=drop"]);
    for command in [
        "fdb/show br0",
        "dpif-netdev/pmd-stats-show",
        "dpctl/dump-conntrack",
        "bfd/show",
        "coverage/show",
        "dpctl/show",
        "dpctl/dump-dps",
        "dpctl/dump-flows",
        "dpif/dump-flows br0",
        "upcall/show",
        "revalidator/wait",
        "dpif-netdev/pmd-rxq-show",
        "ofproto/list-tunnels",
        "memory/show",
        "ovs/route/show",
        "tnl/neigh/show",
        "tnl/neigh/set br0 10.7.7.7 02:00:00:00:00:07",
        "tnl/neigh/flush",
        "dpctl/del-flows",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        s.appctl(&words).unwrap_or_else(|e| panic!("{command}: {e}"));
    }
    let trace = s.appctl(&["ofproto/trace", "br0", "in_port=1,icmp,dl_dst=ff:ff:ff:ff:ff:ff"]).expect("traced");
    assert!(trace.contains("Datapath actions: ") && !trace.contains("actions: drop"), "{trace}");
    let root = s.vsctl("get open_vswitch . dpdk_initialized dpdk_version cur_cfg next_cfg");
    let words: Vec<&str> = root.lines().collect();
    assert!(words[0] == "true" && words[1].contains("DPDK") && words[2] == words[3], "{root}");
}

/// Ports on DPDK devices, here those that need no hardware, and ports that cannot be.
fn devices(s: &Switch) {
    let socket = s.path("vhost.sock");
    s.vsctl(&format!(
        "add-port br0 n0 -- set interface n0 type=dpdk options:dpdk-devargs=net_null77 \
         -- add-port br0 n1 -- set interface n1 type=dpdk options:dpdk-devargs=0000:ff:1f.7 \
         -- add-port br0 n2 -- set interface n2 type=nonsense \
         -- add-port br0 n3 -- set interface n3 type=dpdkvhostuserclient options:vhost-server-path={socket} \
         -- add-port br0 n4 -- set interface n4 type=vxlan options:remote_ip=nowhere"
    ));
    for n in ["n0", "n3"] {
        assert_eq!(s.vsctl(&format!("get interface {n} error")).trim(), "[]", "{n}");
    }
    for (n, text) in [("n1", "0000:ff:1f.7"), ("n2", "could not open network device n2"), ("n4", "nowhere")] {
        assert!(s.vsctl(&format!("get interface {n} error")).contains(text), "{n}");
    }
    for n in 0..5 {
        s.vsctl(&format!("del-port n{n}"));
    }
}

fn vlans(s: &Switch, a: &Namespace, b: &Namespace) {
    s.vsctl("set port va tag=10");
    eventually("another VLAN is apart", SOON, || match a.ping("10.1.0.2") {
        Ok(()) => Err("reached".into()),
        Err(_) => Ok(()),
    });
    s.vsctl("set port vb tag=10");
    b.reaches("10.1.0.1");
    s.vsctl("clear port va tag -- clear port vb tag");
    a.reaches("10.1.0.2");
}

fn patches(s: &Switch, a: &Namespace, b: &Namespace) {
    s.vsctl(
        "add-br br1 -- add-port br0 p01 -- set interface p01 type=patch options:peer=p10 \
         -- add-port br1 p10 -- set interface p10 type=patch options:peer=p01 -- del-port br0 vb -- add-port br1 vb",
    );
    a.reaches("10.1.0.2");
    s.vsctl("del-port br1 vb -- add-port br0 vb -- del-br br1 -- del-port br0 p01");
    b.reaches("10.1.0.1");
}

/// Bridges as a chassis has them: br-phys with the network's device and address, br-int with a machine and a tunnel.
fn chassis(s: &Switch, ns: &Namespace, n: u8, vm: &str) {
    let peer = 3 - n;
    s.vsctl(&format!(
        "add-br br-phys -- set bridge br-phys datapath_type=netdev -- add-port br-phys eth0 \
         -- add-br br-int -- set bridge br-int datapath_type=netdev fail-mode=secure \
         -- add-port br-int {vm} -- set interface {vm} ofport_request=1 \
         -- add-port br-int tun -- set interface tun type=geneve options:remote_ip=172.16.0.{peer} \
            options:key=flow options:csum=true ofport_request=10"
    ));
    ns.ip(&format!("addr replace 172.16.0.{n}/24 dev br-phys"));
    ns.ip("link set br-phys up");
}

fn flows(s: &Switch) {
    s.ofctl(&["add-flow", "br-int", "in_port=1,actions=set_field:7->tun_id,output:10"]);
    s.ofctl(&["add-flow", "br-int", "in_port=10,tun_id=7,actions=output:1"]);
}

fn bfd(s: &Switch) {
    s.vsctl("set interface tun bfd:enable=true bfd:min_rx=200 bfd:min_tx=200");
}

/// VXLAN over IPv6 in place of Geneve over IPv4, for a moment.
fn over_ipv6(sides: [(&Switch, &Namespace); 2], vm: &Namespace) {
    for (n, (s, ns)) in sides.iter().enumerate() {
        ns.ip(&format!("addr add fd00::{}/64 dev br-phys nodad", n + 1));
        s.vsctl(&format!(
            "add-port br-int six -- set interface six type=vxlan options:remote_ip=fd00::{} options:local_ip=fd00::{} \
             options:key=9 ofport_request=11",
            2 - n,
            n + 1
        ));
        s.ofctl(&["--strict", "mod-flows", "br-int", "in_port=1,actions=output:11"]);
        s.ofctl(&["add-flow", "br-int", "in_port=11,tun_id=9,actions=output:1"]);
    }
    vm.reaches("10.1.0.2");
    for (s, _) in sides {
        let n = s.ofctl(&["dump-flows", "br-int", "in_port=11"]);
        assert!(!n.contains("n_packets=0"), "{n}");
        flows(s);
        s.vsctl("del-port six");
    }
}

#[test]
fn two_dataplanes_with_geneve_and_bfd() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let (x, y) = joined("x", "y");
    let (a, b) = (x.machine("vx", "10.1.0.1/24"), y.machine("vy", "10.1.0.2/24"));
    let (s, mut t) = (Switch::ours(&x), Switch::ours(&y));
    for (switch, ns, n, vm) in [(&s, &x, 1, "vx"), (&t, &y, 2, "vy")] {
        chassis(switch, ns, n, vm);
        bfd(switch);
    }
    flows(&s);
    // The peer's tables are not in place, so it holds its session.
    s.becomes("get interface tun bfd_status:remote_state", "admin_down", SOON);
    flows(&t);
    for switch in [&s, &t] {
        switch.becomes("get interface tun bfd_status:state", "up", SOON);
        switch.becomes("get interface tun bfd_status:forwarding", "true", SOON);
    }
    a.reaches("10.1.0.2");
    b.reaches("10.1.0.1");
    let shown = s.appctl(&["bfd/show", "tun"]).expect("shown");
    assert!(shown.contains("Local Session State: up"), "{shown}");
    over_ipv6([(&s, &x), (&t, &y)], &a);
    // A tunnel's options change without the port's number.
    s.vsctl("set interface tun options:tos=16");
    a.reaches("10.1.0.2");
    assert_eq!(s.vsctl("get interface tun ofport").trim(), "10");
    t.crash();
    s.becomes("get interface tun bfd_status:state", "down", Duration::from_secs(3));
    s.becomes("get interface tun bfd_status:diagnostic", "Control Detection Time Expired", SOON);
    t.start_ours(&y);
    // The tap kept its address; the tables are empty.
    s.becomes("get interface tun bfd_status:remote_state", "admin_down", SOON);
    flows(&t);
    s.becomes("get interface tun bfd_status:state", "up", SOON);
    a.reaches("10.1.0.2");
}

#[test]
fn against_open_vswitch() {
    if !able(&["ovs-vsctl", "ovs-ofctl", "ovs-vswitchd", "ovsdb-tool"]) {
        return;
    }
    let (x, y) = joined("p", "q");
    let (a, b) = (x.machine("vp", "10.1.0.1/24"), y.machine("vq", "10.1.0.2/24"));
    let (s, t) = (Switch::ours(&x), Switch::debian(&y));
    chassis(&s, &x, 1, "vp");
    chassis(&t, &y, 2, "vq");
    for switch in [&s, &t] {
        bfd(switch);
        flows(switch);
    }
    x.reaches("172.16.0.2");
    a.reaches("10.1.0.2");
    b.reaches("10.1.0.1");
    for switch in [&s, &t] {
        switch.becomes("get interface tun bfd_status:state", "up", SOON);
        switch.becomes("get interface tun bfd_status:forwarding", "true", SOON);
    }
    drop(t);
    s.becomes("get interface tun bfd_status:state", "down", Duration::from_secs(4));
}
