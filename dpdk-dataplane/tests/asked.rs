//! What operators ask of a running switch by `ovs-appctl`, beside Debian's Open vSwitch: the same answers, and the same
//! effect.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// Commands and what both answer.
const ASKED: &[&str] = &[
    "bridge/reconnect",
    "bridge/reconnect br0",
    "bridge/reconnect nowhere",
    "ovs/route/add 10.55.0.0/16 br0",
    "ovs/route/add 10.56.0.0/16 br0 172.16.9.5",
    "ovs/route/add 10.56.0.0/16 br0 172.16.9.6",
    "ovs/route/add 10.57.9.9/24 br0 172.16.9.7",
    "ovs/route/add 10.58.0.0/16 nowhere",
    "ovs/route/add nothing br0",
    "ovs/route/add 10.59.0.0/33 br0",
    "ovs/route/add 10.59.0.0/16 br0 gateway",
    "ovs/route/add 10.59.0.0/16 br0 172.16.9.5 mark",
    "ovs/route/add fd09::/64 br0 gateway",
    "ovs/route/add fd09::/64 br0 fd00:9::7",
    "ovs/route/add 10.60.0.7 br0 172.16.9.5",
    "ovs/route/add",
    "ovs/route/add 10.61.0.0/16",
    "ovs/route/lookup 10.56.1.1",
    "ovs/route/lookup 10.57.9.1",
    "ovs/route/lookup 10.55.1.1",
    "ovs/route/lookup 172.16.9.77",
    "ovs/route/lookup fd09::1",
    // One that an operator has added comes before the kernel's.
    "ovs/route/add 0.0.0.0/0 br0 172.16.9.3",
    "ovs/route/lookup 10.77.1.1",
    "ovs/route/lookup 172.16.9.77",
    "ovs/route/del 0.0.0.0/0",
    "ovs/route/lookup 172.16.9.77",
    "ovs/route/del 10.57.9.0/24",
    "ovs/route/del 10.57.9.0/24",
    "ovs/route/del nothing",
    "ovs/route/del 10.56.0.0/16 mark",
    "ovs/route/del 172.16.9.0/24",
    "ovs/route/del",
    "ovs/route/lookup 10.57.9.1",
    "dpctl/dump-flows nowhere",
    "dpctl/dump-flows type=none",
    "dpctl/ct-stats-show nowhere",
    "dpctl/ct-set-maxconns 10",
    "dpctl/ct-get-maxconns",
    "dpctl/ct-set-maxconns netdev@ovs-netdev 20",
    "dpctl/ct-set-maxconns elsewhere 20",
    "dpctl/ct-set-maxconns many",
    "dpctl/ct-set-maxconns",
    "dpctl/ct-get-maxconns",
    "dpctl/ct-set-maxconns 3000000",
    "dpctl/ipf-set-disabled v4",
    "dpctl/ipf-set-disabled v7",
    "dpctl/ipf-set-disabled",
    "dpctl/ipf-set-enabled v4",
    "dpctl/ipf-set-enabled netdev@ovs-netdev v6",
    "dpctl/ipf-set-max-nfrags 500",
    "dpctl/ipf-set-max-nfrags some",
    "dpctl/ipf-set-max-nfrags 99999",
    "dpctl/ipf-set-max-nfrags 1000",
    "dpif/show-dp-features nowhere",
    "tnl/egress_port_range 40000 50000",
    "tnl/egress_port_range",
    "tnl/egress_port_range 50001 40001",
    "tnl/egress_port_range",
];

/// An answer without the daemon's name and socket.
fn answer(s: &Switch, args: &[&str]) -> Result<String, String> {
    s.appctl(args).map_err(|e| e.replace(&s.path(""), "").replace("ovs-vswitchd: ", ""))
}

fn sides(names: [&str; 2]) -> ([Switch; 2], [Namespace; 2]) {
    let spaces = names.map(Namespace::new);
    let switches = [Switch::ours(&spaces[0]), Switch::debian(&spaces[1])];
    for (s, ns) in switches.iter().zip(&spaces) {
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 p1 -- set interface p1 type=internal ofport_request=1");
        ns.ip("addr add 172.16.9.1/24 dev br0");
        ns.ip("link set br0 up");
        ns.ip("addr add fd00:9::1/64 dev br0 nodad");
        eventually("the kernel's route", SOON, || {
            let of = |a: &str| s.appctl(&["ovs/route/lookup", a]);
            of("172.16.9.5").and_then(|_| of("fd00:9::7")).map(drop)
        });
    }
    (switches, spaces)
}

#[test]
fn answers_are_the_same() {
    if !able(&["ovs-vswitchd", "ovs-appctl"]) {
        return;
    }
    let (switches, _spaces) = sides(["qo", "qd"]);
    let mut bad = Vec::new();
    for command in ASKED {
        let words: Vec<&str> = command.split(' ').collect();
        let [ours, theirs] = switches.each_ref().map(|s| answer(s, &words));
        // Newer ones refuse routes in other words, which are ours.
        let refused = command.starts_with("ovs/route/") && ours.is_err() && theirs.is_err();
        if ours != theirs && !refused {
            bad.push(format!("{command}\nours: {ours:?}\ntheirs: {theirs:?}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    let lines = |command: &[&str], prefix: &str| {
        switches.each_ref().map(|s| {
            let text = s.appctl(command).expect("an answer");
            let mut lines: Vec<String> =
                text.lines().filter(|l| l.trim().starts_with(prefix)).map(|l| l.trim().to_string()).collect();
            lines.sort();
            lines
        })
    };
    let [ours, theirs] = lines(&["ovs/route/show"], "User: ");
    assert!(ours == theirs && ours.len() == 3, "{ours:?} {theirs:?}");
    let names = lines(&["dpif/show-dp-features", "br0"], "")
        .map(|l| l.iter().map(|l| l.split(':').next().map(String::from)).collect::<Vec<_>>());
    assert_eq!(names[0], names[1]);
    for what in ["v4 enabled", "v6 enabled", "max num frags"] {
        let [ours, theirs] = lines(&["dpctl/ipf-get-status"], what);
        assert!(ours == theirs && ours.len() == 1, "{what}: {ours:?} {theirs:?}");
    }
    assert!(
        switches[0].appctl(&["dpctl/ct-set-maxconns", "4000000000"]).is_err_and(|e| e.contains("there is room for"))
    );
    assert!(
        switches[0]
            .appctl(&["ovs/route/add", "10.62.0.0/16", "br0", "172.16.9.5", "src=172.16.9.99"])
            .is_err_and(|e| e.contains("Error while inserting route."))
    );
    // They stay when the kernel's routes change, and go with their device.
    _spaces[0].ip("route add 10.88.0.0/16 via 172.16.9.9");
    eventually("the kernel's new route", SOON, || answer(&switches[0], &["ovs/route/lookup", "10.88.0.1"]).map(drop));
    assert!(answer(&switches[0], &["ovs/route/lookup", "10.56.1.1"]).is_ok());
    _spaces[0].ip("addr del 172.16.9.1/24 dev br0");
    eventually("no address", SOON, || answer(&switches[0], &["ovs/route/lookup", "10.56.1.1"]).map_or(Ok(()), Err));
}

/// A UDP packet, or a fragment of one, in hexadecimal.
fn packet(source: u16, flags: u16) -> String {
    let (ip, fragment) = ("02000000000202000000000108004500", format!("{flags:04x}"));
    let length = if flags == 0 { 36 } else { 20 + 1304 };
    let head = format!("{ip}{length:04x}0007{fragment}4011");
    let addresses = "0a0000010a000002";
    let words: Vec<u32> = format!("{}0000{addresses}", &head[28..])
        .as_bytes()
        .chunks(4)
        .map(|c| u32::from_str_radix(&String::from_utf8_lossy(c), 16).expect("hexadecimal"))
        .collect();
    let sum: u32 = words.iter().sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) & 0xffff;
    let data = "00".repeat(length as usize - 28);
    format!("{head}{sum:04x}{addresses}{source:04x}0050{:04x}0000{data}", length - 20)
}

/// The limits hold: no connection above them, no datagram put together where that is off.
#[test]
fn limits_hold() {
    if !able(&["ovs-vswitchd", "ovs-appctl"]) {
        return;
    }
    let (switches, _spaces) = sides(["ho", "hd"]);
    for s in &switches {
        let send = |source, flags, actions: &str| {
            s.ofctl(&["packet-out", "br0", &format!("in_port=1 packet={} actions={actions}", packet(source, flags))]);
        };
        let connections = || s.appctl(&["dpctl/dump-conntrack"]).expect("connections").matches("sport=").count() / 2;
        s.appctl(&["dpctl/ct-set-maxconns", "2"]).expect("set");
        (1000..1005).for_each(|n| send(n, 0, "ct(commit)"));
        eventually(
            "two connections",
            SOON,
            || if connections() == 2 { Ok(()) } else { Err(connections().to_string()) },
        );
        s.appctl(&["dpctl/ct-set-maxconns", "4"]).expect("set");
        (2000..2005).for_each(|n| send(n, 0, "ct(commit)"));
        eventually(
            "four connections",
            SOON,
            || if connections() == 4 { Ok(()) } else { Err(connections().to_string()) },
        );
        s.ofctl(&["add-flow", "br0", "table=1,priority=2,ct_state=+inv+trk,actions=drop"]);
        s.ofctl(&["add-flow", "br0", "table=1,priority=1,actions=drop"]);
        let invalid = || {
            let text = s.ofctl(&["dump-flows", "br0", "table=1,ct_state=+inv+trk"]);
            text.split("n_packets=").nth(1).and_then(|t| t.split(',').next()?.parse::<u64>().ok()).expect("a count")
        };
        s.appctl(&["dpctl/ipf-set-disabled", "v4"]).expect("set");
        // The first fragment of a datagram.
        send(3000, 0x2000, "ct(table=1)");
        eventually("an invalid fragment", SOON, || if invalid() == 1 { Ok(()) } else { Err(invalid().to_string()) });
        s.appctl(&["dpctl/ipf-set-enabled", "v4"]).expect("set");
        send(3000, 0x2000, "ct(table=1)");
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(invalid(), 1, "it waits for the others");
    }
}

/// Controllers lose their connection and get another one.
#[test]
fn controllers_are_connected_anew() {
    if !able(&["ovs-vswitchd", "ovs-appctl"]) {
        return;
    }
    let (switches, _spaces) = sides(["ro", "rd"]);
    for s in &switches {
        let path = s.path("controller");
        let listener = UnixListener::bind(&path).expect("a socket");
        s.vsctl(&format!("set-controller br0 unix:{path}"));
        let (mut first, _) = listener.accept().expect("a connection");
        first.set_read_timeout(Some(SOON)).expect("a limit");
        s.appctl(&["bridge/reconnect", "br0"]).expect("asked");
        // Its hello, and the end.
        first.read_to_end(&mut Vec::new()).expect("the end");
        drop(listener.accept().expect("another connection"));
    }
}

/// A controller's connection survives changes of its row, of other controllers, and of keys. Only where the bridge has another
/// number it begins anew, as no message tells of that.
#[test]
fn controllers_keep_their_connection() {
    if !able(&["ovs-vswitchd", "ovs-appctl", "openssl"]) {
        return;
    }
    let (switches, _spaces) = sides(["kc", "kd"]);
    for s in &switches {
        if !needs::certificates(Path::new(&s.path(""))) {
            return;
        }
        let (path, key, certificate, ca) =
            (s.path("controller"), s.path("test.key"), s.path("test.pem"), s.path("ca.pem"));
        let listener = UnixListener::bind(&path).expect("a socket");
        s.vsctl(&format!("set-controller br0 unix:{path}"));
        let (mut peer, _) = listener.accept().expect("a connection");
        peer.set_read_timeout(Some(SOON)).expect("a limit");
        peer.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).expect("a hello");
        for (n, change) in [
            format!("set-controller br0 unix:{path} tcp:127.0.0.1:9"),
            format!("set-controller br0 unix:{path}"),
            "set controller br0 inactivity_probe=7000 max_backoff=2000 controller_rate_limit=100".into(),
            "set controller br0 inactivity_probe=0 enable_async_messages=false".into(),
            format!("set-ssl {key} {certificate} {ca}"),
            "del-ssl".into(),
        ]
        .iter()
        .enumerate()
        {
            s.vsctl(change);
            // An echo request of OpenFlow 1.3, and what comes before its answer.
            peer.write_all(&[4, 2, 0, 8, 0, 0, 0, 100 + n as u8]).expect("sent");
            loop {
                let mut header = [0; 8];
                peer.read_exact(&mut header).unwrap_or_else(|e| panic!("after {change}: {e}"));
                let mut rest = vec![0; usize::from(u16::from_be_bytes([header[2], header[3]])) - 8];
                peer.read_exact(&mut rest).expect("its rest");
                if header[1] == 3 && header[7] == 100 + n as u8 {
                    break;
                }
            }
        }
        s.vsctl("set bridge br0 other_config:datapath-id=00000000000000aa");
        peer.read_to_end(&mut Vec::new()).expect("the end");
        drop(listener.accept().expect("another connection"));
    }
}

/// Controllers that connect by TLS are let in by their certificate, before and after the switch's own is another one.
#[test]
fn controllers_connect_by_tls() {
    if !able(&["ovs-vswitchd", "ovs-ofctl", "openssl"]) {
        return;
    }
    let (switches, spaces) = sides(["to", "td"]);
    for (s, ns) in switches.iter().zip(&spaces) {
        ns.ip("link set lo up");
        s.vsctl("set-controller br0 pssl:16699:127.0.0.1");
        for n in ["a", "b"] {
            let dir = s.path(n);
            std::fs::create_dir(&dir).expect("a directory");
            if !needs::certificates(Path::new(&dir)) {
                return;
            }
            s.vsctl(&format!("set-ssl {dir}/test.key {dir}/test.pem {dir}/ca.pem"));
            let show = |of: &str| {
                let dir = s.path(of);
                let files = format!("-p {dir}/test.key -c {dir}/test.pem -C {dir}/ca.pem");
                ns.exec(&format!("ovs-ofctl -O OpenFlow13 {files} show ssl:127.0.0.1:16699"))
            };
            eventually("a controller by TLS", SOON, || show(n).map(drop));
            assert!(show(n).expect("shown").contains("LOCAL(br0)"));
            if n == "b" {
                show("a").expect_err("a certificate of another CA");
            }
        }
    }
}

/// `vlog/set vconn:dbg` shows the OpenFlow conversation, in ovs-ofctl's names.
#[test]
fn the_log_has_openflow_messages() {
    if !able(&["ovs-vsctl", "ovs-ofctl", "ovs-appctl"]) {
        return;
    }
    let ns = Namespace::new("vconn");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0");
    let log = || std::fs::read_to_string(s.path("stderr")).expect("log");
    s.ofctl(&["add-flow", "br0", "priority=7,actions=drop"]);
    assert!(!log().contains("|vconn|DBG|"), "{}", log());
    s.appctl(&["vlog/set", "vconn:dbg"]).expect("vlog/set");
    s.ofctl(&["-O", "OpenFlow15", "add-flow", "br0", "table=3,priority=9,ip,actions=drop"]);
    s.ofctl(&["-O", "OpenFlow15", "ct-flush", "br0", "zone=5"]);
    eventually("messages both ways", SOON, || {
        let log = log();
        let wanted = [
            "received: OFPT_FLOW_MOD (OF1.5) (xid=0x",
            "): ADD table=3, priority=9,ip actions=drop",
            "received: NXT_CT_FLUSH (OF1.5) (xid=0x",
            "sent (Success): OFPT_BARRIER_REPLY (OF1.5) (xid=0x",
        ];
        match wanted.iter().find(|w| !log.contains(**w)) {
            None => Ok(()),
            Some(w) => Err(format!("no {w:?} in\n{log}")),
        }
    });
}

/// A bridge whose controller does not control it for three probe intervals switches by itself, over whatever flows there
/// are, until the controller says more than who looks around.
#[test]
fn bridges_fail_open() {
    if !able(&["ovs-vswitchd", "ovs-appctl", "ovs-ofctl"]) {
        return;
    }
    /// OFPT_BARRIER_REQUEST and OFPT_FEATURES_REQUEST of OpenFlow 1.3.
    const BARRIER: [u8; 8] = [4, 20, 0, 8, 0, 0, 0, 2];
    const FEATURES: [u8; 8] = [4, 5, 0, 8, 0, 0, 0, 1];
    let (switches, _spaces) = sides(["fo", "fd"]);
    for s in &switches {
        // Which flow a packet meets.
        let meets = |what: &str| {
            eventually(what, SOON, || {
                let trace = s.appctl(&["ofproto/trace", "br0", "in_port=LOCAL,dl_type=0x88b5"])?;
                if trace.contains(what) { Ok(()) } else { Err(trace) }
            });
        };
        let path = s.path("controller");
        s.vsctl(&format!(
            "set-fail-mode br0 standalone -- set-controller br0 unix:{path} -- set controller br0 inactivity_probe=1000 max_backoff=1000"
        ));
        s.ofctl(&["add-flow", "br0", "priority=7,actions=drop"]);
        meets("priority 15790320");
        assert!(!s.ofctl(&["dump-flows", "br0"]).contains("priority=7"), "what flows there were is gone");
        s.ofctl(&["add-flow", "br0", "priority=7,actions=drop"]);
        let listener = UnixListener::bind(&path).expect("a socket");
        let (mut peer, _) = listener.accept().expect("a connection");
        peer.set_read_timeout(Some(SOON)).expect("a limit");
        // A hello, and who looks around.
        peer.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).expect("sent");
        peer.write_all(&FEATURES).expect("sent");
        // Until a packet comes that nobody sent.
        let mut header = [0; 8];
        loop {
            peer.read_exact(&mut header).expect("a message");
            let mut rest = vec![0; usize::from(u16::from_be_bytes([header[2], header[3]])) - 8];
            peer.read_exact(&mut rest).expect("its rest");
            if header[1] == 10 {
                break;
            }
        }
        meets("priority 15790320");
        peer.write_all(&BARRIER).expect("sent");
        meets("priority 7\n");
        // The controller goes: its flows stay for three intervals.
        drop((peer, listener));
        meets("priority 7\n");
        meets("priority 15790320");
        s.vsctl("set-fail-mode br0 secure");
        meets("No match");
    }
}
