//! How fast controllers get packets, beside Open vSwitch.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::thread::JoinHandle;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// Bypassed, queued, dropped, backlog of packets that actions send.
fn counts(s: &Switch) -> Result<[u64; 4], String> {
    let mut out = [0; 4];
    for (n, what) in out.iter_mut().zip(["bypassed", "queued", "dropped", "backlog"]) {
        let text = s.try_vsctl(&format!("--bare get controller br0 status:packet-in-action-{what}"))?;
        *n = text.trim().trim_matches('"').parse().map_err(|_| text)?;
    }
    Ok(out)
}

/// A controller that counts the packets that it gets until its switch goes.
fn controller(path: &str) -> JoinHandle<usize> {
    use openflow_rs::Message;
    let listener = std::os::unix::net::UnixListener::bind(path).expect("socket");
    std::thread::spawn(move || {
        let (peer, _) = listener.accept().expect("the switch connects");
        peer.set_nonblocking(true).expect("nonblocking");
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        rt.block_on(async {
            let peer = tokio::net::UnixStream::from_std(peer).expect("socket");
            let (_tx, mut rx) = openflow_rs::connection::negotiate(peer, openflow_rs::connection::OUR_VERSIONS)
                .await
                .expect("OpenFlow");
            let mut packets = 0;
            while let Ok(m) = rx.recv().await {
                packets += usize::from(matches!(m.message, Ok(Message::PacketIn(_))));
            }
            packets
        })
    })
}

/// A switch in a namespace with a bridge `br0` whose controller gets what comes by `v1`, sent by `pv1`.
fn controlled(s: &Switch, ns: &Namespace, limits: &str) -> JoinHandle<usize> {
    ns.ip("link add v1 type veth peer name pv1");
    ["v1", "pv1"].iter().for_each(|l| {
        ns.exec(&format!("sysctl -qw net.ipv6.conf.{l}.disable_ipv6=1")).expect("sysctl");
        ns.ip(&format!("link set {l} up"));
    });
    let path = s.path("br0.controller");
    let monitor = controller(&path);
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 v1");
    s.vsctl(&format!(
        "set-controller br0 unix:{path} -- set controller br0 connection_mode=out-of-band inactivity_probe=0 {limits}"
    ));
    s.ofctl(&["add-flow", "br0", "in_port=v1,dl_type=0x88b5,actions=controller"]);
    s.becomes("get controller br0 is_connected", "true", SOON);
    std::thread::sleep(Duration::from_secs(1));
    monitor
}

/// Two hundred and fifty frames at once.
fn burst(ns: &Namespace) {
    let frame = |n: u8| [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, n][..], &[0x88, 0xb5], &[0; 50]].concat();
    common::send(ns, "pv1", (0..250u8).map(frame).collect());
}

/// The virtual meter of packets to controllers drops what is above it, until it goes.
#[test]
fn the_meter_of_controllers_drops() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("mo"), Namespace::new("mc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    let mut all = Vec::new();
    for (s, ns) in switches.iter().zip([&a, &b]) {
        let monitor = controlled(s, ns, "");
        let meter = |what: &[&str]| s.ofctl(&[&["-O", "OpenFlow13"], what].concat());
        meter(&["add-meter", "br0", "meter=controller,pktps,burst,bands=type=drop,rate=10,burst_size=20"]);
        meter(&["add-meter", "br0", "meter=slowpath,pktps,bands=type=drop,rate=10"]);
        assert!(meter(&["dump-meters", "br0"]).contains("meter=controller pktps burst bands=\n"));
        burst(ns);
        eventually("packets at the meter", SOON, || {
            let shown = meter(&["meter-stats", "br0", "meter=controller"]);
            if shown.contains("packet_in_count:250") { Ok(()) } else { Err(shown) }
        });
        meter(&["del-meter", "br0", "meter=controller"]);
        burst(ns);
        std::thread::sleep(Duration::from_secs(1));
        s.vsctl("del-controller br0");
        all.push(monitor.join().expect("the controller"));
    }
    // Twenty at once, ten a second, and then all.
    for packets in &all {
        assert!((260..300).contains(packets), "{all:?}");
    }
}

#[test]
fn packets_that_come_too_fast_wait_or_are_dropped() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("ro"), Namespace::new("rc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    let mut all = Vec::new();
    for (s, ns) in switches.iter().zip([&a, &b]) {
        let monitor = controlled(s, ns, "controller_rate_limit=100 controller_burst_limit=40");
        burst(ns);
        let mut got = [0; 4];
        eventually("counters", SOON, || {
            got = counts(s)?;
            if got[0] + got[1] == 250 && got[3] == 0 { Ok(()) } else { Err(format!("{got:?}")) }
        });
        all.push(got);
        // Without a limit there is nothing to tell of, and nothing is lost.
        s.vsctl("clear controller br0 controller_rate_limit");
        eventually("no counters", SOON, || counts(s).map_or(Ok(()), |c| Err(format!("{c:?}"))));
        assert_eq!(s.vsctl("get controller br0 is_connected").trim(), "true");
        s.vsctl("del-controller br0");
        let packets = monitor.join().expect("the controller");
        assert_eq!(packets as u64, got[0] + got[1] - got[2], "what was not dropped came");
    }
    // Forty at once, a hundred a second, and forty that wait: with 250 in a quarter of a second or a bit more.
    for [bypassed, queued, dropped, _] in &all {
        assert!((40..110).contains(bypassed) && *queued > 100 && (30..180).contains(dropped), "{all:?}");
    }
}
