//! Dummy devices (`--enable-dummy`): two switches on wires of their own, without a machine's network.

mod common;

use common::{Namespace, Switch, able, eventually};
use packet::{Mac, build};
use std::net::Ipv4Addr;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// The frames of a capture file.
fn frames(path: &str) -> Vec<Vec<u8>> {
    let all = std::fs::read(path).unwrap_or_default();
    let number = |at: usize| all.get(at..at + 4).map(|b| u32::from_ne_bytes(b.try_into().expect("four bytes")));
    if all.is_empty() {
        return Vec::new();
    }
    assert_eq!((number(0), number(20)), (Some(0xa1b2_c3d4), Some(1)), "the header of {path}");
    let (mut at, mut found) = (24, Vec::new());
    while let Some(length) = number(at + 8) {
        assert_eq!(number(at + 12), Some(length));
        found.push(all[at + 16..at + 16 + length as usize].to_vec());
        at += 16 + length as usize;
    }
    assert_eq!(at, all.len(), "whole frames in {path}");
    found
}

fn arrives(path: &str, wanted: &[Vec<u8>]) {
    eventually(path, SOON, || {
        let found = frames(path);
        if found == wanted { Ok(()) } else { Err(format!("{found:02x?}")) }
    });
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|b| format!("{b:02x}")).collect()
}

fn frame(n: u8) -> Vec<u8> {
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let (from, to) = ((Ipv4Addr::new(10, 0, 0, 1).into(), 1000), (Ipv4Addr::new(10, 0, 0, 2).into(), 2000));
    build::udp(b, a, from, to, 64, &[n; 40]).expect("one family")
}

fn receive(s: &Switch, port: &str, frame: &[u8]) {
    s.appctl(&["netdev-dummy/receive", port, &hex(frame)]).expect("receive");
}

/// The state of the connection of a port's wire.
fn connection(s: &Switch, port: &str, state: &str) {
    eventually(&format!("{port} {state}"), SOON, || {
        let now = s.appctl(&["netdev-dummy/conn-state", port])?;
        if now == format!("{port}: {state}\n") { Ok(()) } else { Err(now) }
    });
}

/// Two switches with a wire between their ports `up`: the first listens, the second connects.
fn wired(a: &Switch, b: &Switch, bridge: &str) {
    let socket = a.path("wire.sock");
    for (s, option) in [(a, format!("pstream=punix:{socket}")), (b, format!("stream=unix:{socket}"))] {
        s.vsctl(&format!("add-br {bridge} -- add-port {bridge} up -- set interface up options:{option}"));
    }
    connection(b, "up", "connected");
}

/// In VLANs of `Bridge:flood_vlans` no address is learned, from when they are listed until they no longer are.
#[test]
fn vlans_are_flooded_that_are_listed() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("fv");
    let s = Switch::test_bed(&ns);
    s.vsctl("add-br br0");
    for p in ["p1", "p2", "p3"] {
        s.vsctl(&format!("add-port br0 {p} -- set interface {p} options:tx_pcap={}", s.path(&format!("{p}.pcap"))));
    }
    let tagged = |vlan: u8, from: u8, to: u8| {
        [&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x81, 0, 0, vlan][..], &[0x88, 0xb5], &[7; 46]].concat()
    };
    // Of each question and its answer: how many frames left by the first and by the third port.
    let mut seen = [0; 2];
    let mut left = |vlan: u8| {
        for (port, from, to) in [("p1", 1, 2), ("p2", 2, 1)] {
            receive(&s, port, &tagged(vlan, from, to));
        }
        s.appctl(&["revalidator/wait"]).expect("wait");
        let now = ["p1.pcap", "p3.pcap"].map(|f| frames(&s.path(f)).len());
        let new = [now[0] - seen[0], now[1] - seen[1]];
        seen = now;
        new
    };
    let known = || s.appctl(&["fdb/show", "br0"]).expect("fdb").lines().count() - 1;
    for _ in 0..2 {
        // The first packet goes to all, the answer to who has asked.
        assert_eq!((left(20), left(21)), ([1, 1], [1, 1]));
        assert_eq!((left(20), left(21), known()), ([1, 0], [1, 0], 4));
        s.vsctl("set bridge br0 flood_vlans=20,30");
        eventually("forgotten", SOON, || if known() == 0 { Ok(()) } else { Err(String::new()) });
        assert_eq!((left(20), left(21)), ([1, 2], [1, 1]));
        assert_eq!((left(20), left(21), known()), ([1, 2], [1, 0], 2));
        s.vsctl("clear bridge br0 flood_vlans");
        eventually("forgotten", SOON, || if known() == 0 { Ok(()) } else { Err(String::new()) });
    }
}

/// A frame that a port receives passes both switches, and is in the capture files of all devices on its way. When one of
/// the switches starts again, the wire does as well.
#[test]
fn frames_cross_a_wire_between_two_switches() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("du");
    let (mut a, b) = (Switch::test_bed(&ns), Switch::test_bed(&ns));
    wired(&a, &b, "br0");
    let (out, back, through) = (b.path("p.pcap"), a.path("p.pcap"), b.path("up.pcap"));
    a.vsctl(&format!("add-port br0 p -- set interface p options:pcap={back}"));
    b.vsctl(&format!("add-port br0 p -- set interface p options:tx_pcap={out}"));
    b.vsctl(&format!("set interface up options:rxq_pcap={through}"));
    assert_eq!(b.appctl(&["netdev-dummy/conn-state", "p"]).as_deref(), Ok("p: unknown\n"));
    connection(&b, "up", "connected");
    receive(&a, "p", &frame(1));
    receive(&a, "p", &frame(2));
    arrives(&out, &[frame(1), frame(2)]);
    assert_eq!(frames(&through), [frame(1), frame(2)]);
    assert_eq!(frames(&back), [frame(1), frame(2)], "received; sent to nobody here");
    b.becomes("get interface p mtu", "1500", SOON);

    a.crash();
    connection(&b, "up", "disconnected");
    a.start_test_bed(&ns);
    connection(&b, "up", "connected");
    receive(&a, "p", &frame(3));
    arrives(&out, &[frame(1), frame(2), frame(3)]);

    // Another file from now on.
    let other = b.path("other.pcap");
    b.vsctl(&format!("set interface p options:tx_pcap={other}"));
    receive(&a, "p", &frame(4));
    arrives(&other, &[frame(4)]);
    assert_eq!(frames(&out).len(), 3);
    // One that was deleted is made again when the database changes next.
    std::fs::remove_file(&other).expect("the file");
    b.vsctl("set interface up external_ids:some=thing");
    assert_eq!(frames(&other), [[0; 0]; 0]);
    receive(&a, "p", &frame(1));
    arrives(&other, &[frame(1)]);
    // Flows in words are frames as well.
    let words = "eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,ttl=64),udp(src=1000,dst=2000)";
    a.appctl(&["netdev-dummy/receive", "p", words, "--len", "82"]).expect("a flow");
    let zeros = {
        let mut f = frame(0);
        f.truncate(82);
        f
    };
    eventually("the flow's frame", SOON, || {
        let last = frames(&other).pop().unwrap_or_default();
        if last.len() == 82 && last[..40] == zeros[..40] {
            Ok(())
        } else {
            Err(format!("{last:02x?}, not {zeros:02x?}"))
        }
    });
    for (wrong, why) in [("zz", "hexadecimal"), ("0102", "at least")] {
        let refused = a.appctl(&["netdev-dummy/receive", "p", wrong]).expect_err("no frame");
        assert!(refused.contains(why), "{refused}");
    }
    assert!(a.appctl(&["netdev-dummy/receive", "nobody", &hex(&frame(1))]).is_err());
}

/// A dummy goes down and up by command; it has the address that it is given, or one of a row of its own.
#[test]
fn dummies_have_states_and_addresses() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("ds");
    let s = Switch::test_bed(&ns);
    s.vsctl("add-br br0 -- add-port br0 p -- add-port br0 q -- set interface q mac=\"02:00:00:00:00:09\"");
    s.becomes("get interface p mac_in_use", "aa:55:aa:55:00:02", SOON);
    s.becomes("get interface q mac_in_use", "02:00:00:00:00:09", SOON);
    assert!(ns.exec("ip link show dev br0").is_err(), "the kernel has no such device");
    for (state, shown) in [("down", "down"), ("up", "up")] {
        s.appctl(&["netdev-dummy/set-admin-state", "p", state]).expect("set");
        s.becomes("get interface p admin_state", shown, SOON);
        s.becomes("get interface p link_state", shown, SOON);
    }
    s.becomes("get interface q link_resets", "0", SOON);
    assert!(s.appctl(&["netdev-dummy/set-admin-state", "p", "sideways"]).is_err());
    assert!(s.appctl(&["netdev-dummy/ip4addr", "nobody", "10.0.0.1/24"]).is_err());

    // What asks for the address of a bridge's own port is answered, as by a kernel.
    let answers = s.path("p.pcap");
    s.vsctl(&format!("set interface p options:tx_pcap={answers}"));
    s.appctl(&["netdev-dummy/ip4addr", "br0", "10.0.0.9/24"]).expect("address");
    let (asker, me) = (Mac([2, 0, 0, 0, 0, 7]), Ipv4Addr::new(10, 0, 0, 9));
    receive(&s, "p", &build::arp_request(asker, Ipv4Addr::new(10, 0, 0, 7), me));
    let own: Mac = s.vsctl("get interface br0 mac_in_use").trim().trim_matches('"').parse().expect("an address");
    arrives(&answers, &[build::arp_reply(own, me, asker, Ipv4Addr::new(10, 0, 0, 7))]);
}

/// Tunnels between two switches whose underlay is a wire: addresses, routes and neighbours by commands. One has its
/// address at the bridge's own port, the other at a port that is none of the host's.
#[test]
fn tunnels_run_over_dummies() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("dt");
    // The kernel has the peer's address, which is nothing to a switch whose devices are all dummies.
    ns.ip("addr add 172.16.0.2/32 dev lo");
    let (a, b) = (Switch::dummies(&ns), Switch::test_bed(&ns));
    wired(&a, &b, "br-phys");
    b.vsctl("add-port br-phys vtep");
    let ends = [(&a, "br-phys", "172.16.0.1", "172.16.0.2"), (&b, "vtep", "172.16.0.2", "172.16.0.1")];
    let mac = |s: &Switch| s.vsctl("get interface br-phys mac_in_use").trim().trim_matches('"').to_string();
    let add = |s: &Switch, words: &[&str]| s.appctl(words).expect("command");
    for (s, port, own, _) in ends {
        add(s, &["netdev-dummy/ip4addr", port, &format!("{own}/24")]);
        add(s, &["ovs/route/add", &format!("{own}/24"), port]);
    }
    // One is told its neighbour's address, the other asks for it when there are packets, which wait.
    add(&b, &["tnl/neigh/set", "br-phys", "172.16.0.1", &mac(&a)]);
    for (s, _, _, peer) in ends {
        s.vsctl("add-br br-int -- set bridge br-int fail_mode=secure");
        s.vsctl(&format!("add-port br-int t -- set interface t type=geneve options:remote_ip={peer} options:key=7"));
        s.vsctl(&format!("add-port br-int p -- set interface p options:tx_pcap={}", s.path("p.pcap")));
        s.ofctl(&["add-flow", "br-int", "in_port=p,actions=output:t"]);
        s.ofctl(&["add-flow", "br-int", "in_port=t,actions=output:p"]);
    }
    let routes = a.appctl(&["ovs/route/show"]).expect("routes");
    for line in
        ["Cached: 172.16.0.1/32 dev br-phys SRC 172.16.0.1 local", "User: 172.16.0.0/24 dev br-phys SRC 172.16.0.1"]
    {
        assert!(routes.contains(line), "{line} in {routes}");
    }
    assert_eq!(routes.lines().count(), 4, "no route of the kernel's: {routes}");
    [4, 5].iter().for_each(|n| receive(&a, "p", &frame(*n)));
    arrives(&b.path("p.pcap"), &[frame(4), frame(5)]);
    receive(&b, "p", &frame(6));
    arrives(&a.path("p.pcap"), &[frame(6)]);
    // An answer to that port teaches a neighbour, with the port's bridge.
    let vtep: Mac = b.vsctl("get interface vtep mac_in_use").trim().trim_matches('"').parse().expect("an address");
    let [here, there] = [2, 7].map(|n| Ipv4Addr::new(172, 16, 0, n));
    receive(&b, "up", &build::arp_reply(Mac([2, 0, 0, 0, 0, 7]), there, vtep, here));
    eventually("the neighbour", SOON, || {
        let shown = b.appctl(&["tnl/neigh/show"])?;
        let known = shown.lines().any(|l| l.split_whitespace().eq(["172.16.0.7", "02:00:00:00:00:07", "br-phys"]));
        if known { Ok(()) } else { Err(shown) }
    });
}

/// Packets wait for their tunnel's next hop, which is asked for once a second; those of more than three seconds are gone.
#[test]
fn packets_wait_for_a_tunnels_next_hop() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("dh");
    let s = Switch::test_bed(&ns);
    let ask = |words: &str| s.appctl(&words.split(' ').collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{words}: {e}"));
    let up = s.path("up.pcap");
    s.vsctl(&format!("add-br br-phys -- add-port br-phys up -- set interface up options:tx_pcap={up}"));
    ask("netdev-dummy/ip4addr br-phys 172.16.0.1/24");
    ask("ovs/route/add 172.16.0.1/24 br-phys");
    s.vsctl("add-br br-int -- set bridge br-int fail_mode=secure -- add-port br-int p");
    s.vsctl("add-port br-int t -- set interface t type=geneve options:remote_ip=172.16.0.9");
    s.ofctl(&["add-flow", "br-int", "in_port=p,actions=output:t"]);
    ask("time/stop");
    // How many requests there were, and what left by the tunnel.
    let seen = || {
        let (requests, tunnelled): (Vec<_>, Vec<_>) = frames(&up).into_iter().partition(|f| f[12..14] == [8, 6]);
        (requests.len(), tunnelled.iter().map(|f| f[50..].to_vec()).collect::<Vec<_>>())
    };
    let becomes =
        |requests: usize, tunnelled: &[u8]| {
            let wanted = (requests, tunnelled.iter().map(|n| frame(*n)).collect::<Vec<_>>());
            eventually("requests and packets", SOON, || {
                if seen() == wanted { Ok(()) } else { Err(format!("{:?}", seen())) }
            });
        };
    let own: Mac = s.vsctl("get interface br-phys mac_in_use").trim().trim_matches('"').parse().expect("an address");
    let [here, there] = [1, 9].map(|n| Ipv4Addr::new(172, 16, 0, n));
    let answer = || receive(&s, "up", &build::arp_reply(Mac([2, 0, 0, 0, 0, 9]), there, own, here));
    assert_eq!(seen(), (0, vec![]), "a tunnel alone asks for nothing");
    receive(&s, "p", &frame(1));
    receive(&s, "p", &frame(2));
    becomes(1, &[]);
    ask("time/warp 1000");
    becomes(2, &[]);
    answer();
    becomes(2, &[1, 2]);
    ask("tnl/neigh/flush");
    ask("time/warp 1000");
    receive(&s, "p", &frame(3));
    becomes(3, &[1, 2]);
    ask("time/warp 4000 1000");
    let (requests, _) = seen();
    assert!((5..=6).contains(&requests), "{requests}");
    answer();
    receive(&s, "p", &frame(4));
    becomes(requests, &[1, 2, 4]);
}

/// Time stands still until it is moved on: what ages does so exactly when it has to.
#[test]
fn timeouts_come_when_time_is_moved_on() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("dw");
    let s = Switch::test_bed(&ns);
    let ask = |words: &str| s.appctl(&words.split(' ').collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{words}: {e}"));
    s.vsctl("add-br br0 -- add-port br0 p -- add-port br0 q");
    ask("time/stop");
    s.ofctl(&["add-flow", "br0", "idle_timeout=20,priority=7,ip,actions=ct(commit,table=1)"]);
    s.ofctl(&["add-flow", "br0", "table=1,actions=NORMAL"]);
    receive(&s, "p", &frame(1));
    let learned = || ask("fdb/show br0").contains("02:00:00:00:00:01");
    let flow = || s.ofctl(&["dump-flows", "br0"]).contains("priority=7,ip actions");
    let connection = || ask("dpctl/dump-conntrack").contains("src=10.0.0.1");
    eventually("the frame passes", SOON, || if learned() && connection() { Ok(()) } else { Err(ask("fdb/show br0")) });
    assert!(flow());
    // In milliseconds: what of the three is there then. A first UDP packet's connection lasts 60 s, the address 300.
    for (warp, expected) in [
        ("19000", [true, true, true]),
        ("2000", [false, true, true]),
        ("38000 1000", [false, true, true]),
        ("4000 1000", [false, false, true]),
        ("235000", [false, false, true]),
        ("3000", [false, false, false]),
    ] {
        assert_eq!(ask(&format!("time/warp {warp}")).trim_end(), "warped");
        assert_eq!([flow(), connection(), learned()], expected, "after {warp}");
    }
    assert!(s.appctl(&["time/warp", "0"]).is_err());
}

/// The datapath of dummies has the name and the numbers that test beds count on; packets are traced there in its own
/// words, and over OpenFlow 1.0 actions need no prerequisites.
#[test]
fn packets_are_traced_in_the_words_of_the_datapath() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("do");
    let s = Switch::test_bed(&ns);
    s.vsctl("add-br br0 -- add-port br0 p7 -- add-port br0 p9 -- add-port br0 p8 -- set interface p8 type=dummy-pmd ofport_request=3");
    s.vsctl("set interface p8 options:ifindex=77 -- set interface p9 options:pstream=punix:p9");
    s.becomes("get interface p8 ofport", "3", SOON);
    let shown = s.appctl(&["dpif/show"]).expect("dpif/show");
    for wanted in [
        "system@ovs-system: ",
        "br0 65534/100: (dummy-internal)\n",
        "p7 1/7: (dummy)\n",
        "p8 3/8: (dummy-pmd: ifindex=77, n_rxq=1, n_txq=1, numa_id=0)\n",
        "p9 2/9: (dummy: pstream=punix:p9)\n",
    ] {
        assert!(shown.contains(wanted), "{shown}");
    }
    for flow in [
        "in_port=1,actions=dec_ttl,output:2",
        "priority=40000,in_port=1,ip,nw_proto=17,actions=push_mpls:0x8847,set_mpls_label(10),output:2",
        "in_port=2,mpls,mpls_label=10,actions=pop_mpls:0x0800,output:1",
    ] {
        s.ofctl(&["-OOpenFlow10", "add-flow", "br0", flow]);
    }
    let ip =
        "eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,tos=0,ttl=64";
    let traced = |args: &[&str]| {
        let text = s.appctl(&[&["ofproto/trace"], args].concat()).expect("a trace");
        text.lines().last().unwrap_or_default().to_string()
    };
    let tcp = format!("in_port(7),{ip},proto=6),tcp(src=1,dst=2)");
    let udp = format!("in_port(p7),{ip},proto=17),udp(src=1,dst=2)");
    let label =
        "in_port(9),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x8847),mpls(label=10,tc=0,ttl=64,bos=1)";
    for (args, wanted) in [
        (&["ovs-system", tcp.as_str()][..], "Datapath actions: set(ipv4(ttl=63)),9"),
        (&[udp.as_str()], "Datapath actions: push_mpls(label=10,tc=0,ttl=64,bos=1,eth_type=0x8847),9"),
        (&["br0", label], "Datapath actions: pop_mpls(eth_type=0x800),7"),
    ] {
        assert_eq!(traced(args), wanted, "{args:?}");
    }
    let wrong = s.appctl(&["ofproto/trace", "ovs-other", &tcp]);
    assert!(wrong.as_ref().is_err_and(|e| e.contains("Cannot find the datapath")), "{wrong:?}");
    let counted = s.ofctl(&["dump-ports", "br0", "1"]);
    assert!(counted.contains("drop=?, errs=?"), "{counted}");
}

/// A number goes to the port that asks for it, if the one that has it did not ask; of two that ask, the first keeps it,
/// and the other one's number stays as well.
#[test]
fn numbers_go_to_those_who_ask() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("dn");
    let s = Switch::test_bed(&ns);
    s.vsctl("add-br br0 -- add-port br0 p");
    s.becomes("get interface p ofport", "1", SOON);
    s.vsctl("add-port br0 q -- set interface q ofport_request=1");
    // Ports that are there are looked at with the next change.
    s.vsctl("add-port br0 r -- set interface r ofport_request=1");
    s.becomes("get interface q ofport", "1", SOON);
    let numbers = || ["p", "q", "r"].map(|p| s.vsctl(&format!("get interface {p} ofport")).trim().to_string());
    let before = numbers();
    assert!(before[0] != "1" && before[2] != "1" && before[0] != before[2], "{before:?}");
    s.vsctl("add-port br0 t");
    s.vsctl("del-port t");
    assert_eq!(numbers(), before);
    let log = std::fs::read_to_string(s.path("stderr")).expect("the log");
    assert!(!log.contains("deleted interface r"), "{log}");
}

/// `vlog/set dpif_netdev:dbg` logs each flow that is put into the cache, in the words of `dpctl/dump-flows`, one that does
/// something else than the one before it as a change, and nothing once the level is back.
#[test]
fn the_log_has_flows_of_the_datapath() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("dflog");
    let s = Switch::test_bed(&ns);
    let ports = ["p1", "p2", "p3"].map(|p| format!("-- add-port br0 {p}")).join(" ");
    s.vsctl(&format!("add-br br0 -- set bridge br0 fail_mode=secure {ports}"));
    s.ofctl(&["add-flow", "br0", "in_port=p1,dl_dst=02:00:00:00:00:02,actions=output:p2"]);
    let lines = || {
        let log = std::fs::read_to_string(s.path("stderr")).expect("log");
        // The thread's name stands behind the module's.
        let all = log.lines().filter(|l| l.contains("|dpif_netdev(")).filter_map(|l| l.split_once("|DBG|"));
        all.map(|(_, text)| text.to_string()).collect::<Vec<String>>()
    };
    receive(&s, "p1", &frame(1));
    assert_eq!(lines(), [""; 0], "nobody asked");
    s.appctl(&["vlog/set", "dpif_netdev:dbg"]).expect("vlog/set");
    s.appctl(&["revalidator/purge"]).expect("purge");
    let mut wanted: Vec<String> = Vec::new();
    let logged = |wanted: &[String]| {
        eventually("lines of the log", SOON, || if lines() == wanted { Ok(()) } else { Err(format!("{:?}", lines())) });
    };
    let shown = || {
        let all = s.appctl(&["dpctl/dump-flows"]).expect("flows");
        let flow = all.lines().nth(1).expect("a flow").to_string();
        let (packets, rest) = flow.split_once(", packets:").expect("counters");
        (packets.to_string(), rest.split_once("actions:").expect("actions").1.to_string())
    };
    receive(&s, "p1", &frame(1));
    let (packets, first) = shown();
    wanted.push(format!("flow_add: {packets}, actions:{first}"));
    logged(&wanted);
    // A packet that the flow serves says nothing.
    receive(&s, "p1", &frame(2));
    s.ofctl(&["add-flow", "br0", "in_port=p1,dl_dst=02:00:00:00:00:02,actions=output:p3,output:p2"]);
    receive(&s, "p1", &frame(3));
    let (packets, second) = shown();
    wanted.push(format!("flow_mod: {packets}, old_actions:{first}, actions:{second}"));
    logged(&wanted);
    s.appctl(&["vlog/set", "dpif_netdev:info"]).expect("vlog/set");
    s.appctl(&["revalidator/purge"]).expect("purge");
    receive(&s, "p1", &frame(4));
    assert_eq!(lines(), wanted);
}

/// In-band control: hidden flows for controllers and managers over IPv4, unless the database says that these are reached
/// otherwise. `bridge/dump-flows` shows them, OpenFlow does not.
#[test]
fn hidden_flows_lead_to_controllers_in_band() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("di");
    let s = Switch::test_bed(&ns);
    s.vsctl("add-br br0 -- set bridge br0 fail_mode=secure");
    // Whose addresses the hidden flows have, and their actions.
    let hidden = |wanted: &[&str], actions: &str| {
        eventually("hidden flows", SOON, || {
            let shown = s.appctl(&["bridge/dump-flows", "br0"])?;
            let lines: Vec<&str> = shown.lines().filter(|l| l.contains("priority=180007,")).collect();
            let fits = lines.len() == wanted.len()
                && wanted.iter().all(|w| lines.iter().any(|l| l.contains(w)))
                && lines.iter().all(|l| l.ends_with(&format!("actions={actions}")));
            if fits { Ok(()) } else { Err(shown) }
        });
    };
    hidden(&[], "");
    s.vsctl("set-controller br0 tcp:240.0.0.1 ssl:240.0.0.2:77 unix:nobody tcp:[fd00::1]:6653");
    s.vsctl("set-manager tcp:240.0.0.3 tcp:127.0.0.1:9 ptcp:0");
    let all = ["nw_dst=240.0.0.1,tp_dst=6653", "nw_dst=240.0.0.2,tp_dst=77", "nw_dst=240.0.0.3,tp_dst=6640"];
    hidden(&all, "NORMAL");
    s.vsctl("set bridge br0 other_config:in-band-queue=5");
    hidden(&all, "set_queue:5,NORMAL");
    let visible = s.ofctl(&["dump-flows", "br0"]);
    assert!(!visible.contains("240.0.0"), "{visible}");
    s.ofctl(&["del-flows", "br0"]);
    hidden(&all, "set_queue:5,NORMAL");
    let packet = "in_port=LOCAL,tcp,nw_dst=240.0.0.2,tp_dst=77";
    let trace = s.appctl(&["ofproto/trace", "br0", packet]).expect("a trace");
    assert!(trace.contains(" 0. tcp,nw_dst=240.0.0.2,tp_dst=77, priority 180007\n"), "{trace}");
    s.vsctl("set manager tcp:240.0.0.3 connection_mode=out-of-band -- remove bridge br0 other_config in-band-queue");
    hidden(&all[..2], "NORMAL");
    s.vsctl("set bridge br0 other_config:disable-in-band=true");
    hidden(&[], "");
    s.vsctl("set bridge br0 other_config:disable-in-band=false -- del-controller br0 -- set manager tcp:240.0.0.3 connection_mode=in-band");
    hidden(&all[2..], "NORMAL");
}

/// `dpctl/dump-flows -m` names each cached flow, `dpctl/get-flow` finds it by that name, and `ofproto/detrace` tells the
/// flows of OpenFlow behind it, over bridges, groups and tables without a flow.
#[test]
fn cached_flows_lead_back_to_openflow() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("dt");
    let s = Switch::test_bed(&ns);
    s.vsctl(
        "add-br br0 -- set bridge br0 fail_mode=secure -- add-br br1 -- set bridge br1 fail_mode=secure \
         -- add-port br0 p1 -- set interface p1 type=dummy ofport_request=1 \
         -- add-port br0 to1 -- set interface to1 type=patch options:peer=to0 ofport_request=3 \
         -- add-port br1 to0 -- set interface to0 type=patch options:peer=to1 ofport_request=4",
    );
    s.ofctl(&["-OOpenFlow15", "add-group", "br0", "group_id=7,type=all,bucket=bucket_id:2,actions=resubmit(,2)"]);
    for f in ["cookie=0xab,ip,nw_dst=10.0.0.2,actions=resubmit(,1)", "table=1,priority=5,actions=group:7,resubmit(,9)"]
    {
        s.ofctl(&["add-flow", "br0", f]);
    }
    s.ofctl(&["add-flow", "br0", "table=2,ip,actions=output:3"]);
    s.ofctl(&["add-flow", "br1", "in_port=4,actions=drop"]);
    let packet = "in_port(1),eth(src=50:54:00:00:00:05,dst=50:54:00:00:00:07),eth_type(0x0800),\
                  ipv4(src=10.0.0.1,dst=10.0.0.2,proto=1,tos=0,ttl=64,frag=no),icmp(type=8,code=0)";
    for _ in 0..2 {
        s.appctl(&["netdev-dummy/receive", "p1", packet]).expect("a packet");
    }
    let dumped = s.appctl(&["dpctl/dump-flows", "-m", "filter=in_port=p1"]).expect("flows");
    let line = dumped.lines().find(|l| l.starts_with("ufid:")).expect(&dumped);
    let (ufid, _) = line.split_once(", ").expect(line);
    let got = s.appctl(&["dpctl/get-flow", ufid]).expect("the flow");
    assert!(got.starts_with("recirc_id(0),in_port(") && got.contains("dst=10.0.0.2"), "{got}");
    let of_bridge = s.appctl(&["dpif/dump-flows", "-m", "br0"]).expect("flows");
    assert!(of_bridge.contains(ufid), "the same name: {of_bridge}");
    let traced = s.appctl(&["ofproto/detrace", ufid]).expect("flows of OpenFlow");
    let plain: Vec<String> = traced
        .lines()
        .map(|l| match l.split_once("duration=") {
            Some((before, rest)) => format!("{before}{}", rest.split_once(", ").map_or("", |(_, after)| after)),
            None => l.to_string(),
        })
        .collect();
    let counted = "n_packets=2, n_bytes=212";
    let wanted = [
        "br0".into(),
        format!("  cookie=0xab, {counted}, ip,nw_dst=10.0.0.2,actions=resubmit(,1)"),
        format!("  table_id=1, {counted}, priority=5,actions=group:7,resubmit(,9)"),
        "  group_id=7,type=all,bucket=bucket_id:2,actions=resubmit(,2)".into(),
        format!("  table_id=2, {counted}, ip,actions=output:3"),
        "br1".into(),
        format!("  {counted}, in_port=4,actions=drop"),
        "br0".into(),
        "  table_id=9, no match".into(),
        "  table_id=254, priority=0,reg0=0x2,actions=drop".into(),
    ];
    assert_eq!(plain, wanted, "{traced}");
    assert_eq!(s.appctl(&["ofproto/detrace", "ufid:7"]).unwrap_err().lines().next(), Some("failed to parse ufid"));
    let other = "ufid:00000000-0000-0000-0000-000000000001";
    let absent = s.appctl(&["ofproto/detrace", other]).expect("an answer");
    assert!(absent.starts_with("UFID was not found for "), "{absent}");
    let absent = s.appctl(&["dpctl/get-flow", other]).unwrap_err();
    assert!(absent.contains("No such file or directory"), "{absent}");
}

/// A cached flow that passes connection tracking is told of as in Open vSwitch: a flow for each way to the next
/// recirculation, each of which leads back to the flows of OpenFlow that it met, and one for all connections that are alike.
#[test]
fn ways_through_connection_tracking_are_told_in_sections() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("ds");
    let s = Switch::test_bed(&ns);
    s.vsctl("add-br br0 -- set bridge br0 fail_mode=secure");
    for p in ["p1", "p2"] {
        s.vsctl(&format!("add-port br0 {p} -- set interface {p} type=dummy ofport_request={}", &p[1..]));
    }
    for f in [
        "cookie=1,ip,in_port=1,actions=ct(table=1,zone=3,nat)",
        "cookie=2,table=1,ct_state=+trk+new,ip,actions=ct(commit,zone=3,nat(src=10.9.9.9),exec(set_field:7->ct_label)),2",
        "cookie=3,table=1,ct_state=+trk+est,ct_label=7/0xf,ip,actions=dec_ttl,2",
        "cookie=4,ip,in_port=2,actions=ct(table=1,zone=3,nat)",
    ] {
        s.ofctl(&["add-flow", "br0", f]);
    }
    let send = |device: &str, (src, dst): (&str, &str), (sport, dport): (u16, u16)| {
        let no = &device[1..];
        let packet = format!(
            "in_port({no}),eth(src=50:54:00:00:00:05,dst=50:54:00:00:00:07),eth_type(0x0800),\
             ipv4(src={src},dst={dst},proto=17,tos=0,ttl=64,frag=no),udp(src={sport},dst={dport})"
        );
        s.appctl(&["netdev-dummy/receive", device, &packet]).expect("a packet");
    };
    // Connections that are alike, with an answer, and two packets when they are open.
    for port in 1000..1008 {
        let open = || send("p1", ("10.0.0.1", "10.0.0.2"), (port, 53));
        open();
        send("p2", ("10.0.0.2", "10.9.9.9"), (53, port));
        open();
        open();
    }
    let dumped = s.appctl(&["dpctl/dump-flows", "-m", "filter=in_port(p1)"]).expect("flows");
    // Without UFIDs and counters.
    let plain = |l: &str| {
        let (packets, rest) = l.split_once(", ").and_then(|(_, l)| l.split_once(", packets:")).unwrap_or((l, ""));
        format!("{packets} {}", rest.split_once("actions:").map_or("", |(_, a)| a))
    };
    let lines: Vec<&str> = dumped.lines().skip(1).collect();
    let mut shown: Vec<String> = lines.iter().map(|l| plain(l)).collect();
    shown.sort();
    let head = "in_port(p1)";
    let ip = "packet_type(ns=0,id=0),eth_type(0x0800)";
    let wanted = [
        format!("recirc_id(0),{head},{ip},ipv4(frag=no) ct(zone=3,nat),recirc(0x1)"),
        format!(
            "recirc_id(0x1),{head},ct_state(+new+trk),{ip},ipv4(frag=no) ct(commit,zone=3,label=0x7,nat(src=10.9.9.9)),p2"
        ),
        format!(
            "recirc_id(0x1),{head},ct_state(-new+est+trk),ct_label(0x7/0xf),{ip},ipv4(proto=17,ttl=64,frag=no) set(ipv4(ttl=63)),p2"
        ),
    ];
    assert_eq!(shown, wanted, "{dumped}");
    let established = lines.iter().find(|l| l.contains("+est")).expect(&dumped);
    let ufid = established.split(", ").next().expect(established);
    let met = s.appctl(&["ofproto/detrace", ufid]).expect("flows of OpenFlow");
    assert!(met.contains("cookie=0x3") && !met.contains("cookie=0x1"), "{met}");
    // The first section's packets are those of both ways behind it: all but those that made the flows.
    let packets = |at: usize| lines[at].split("packets:").nth(1).and_then(|n| n.split(',').next()?.parse::<u32>().ok());
    let mut counted: Vec<u32> = (0..3).filter_map(packets).collect();
    counted.sort_unstable();
    assert_eq!(counted, [7, 15, 22], "{dumped}");
}
