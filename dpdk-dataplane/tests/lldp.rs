//! LLDP with Debian's Open vSwitch as the neighbour.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

/// Open vSwitch sends its first message after half a minute.
const SOON: Duration = Duration::from_secs(75);

#[test]
fn neighbours_hear_each_other() {
    if !able(&["ovs-vswitchd", "ovs-appctl", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("la"), Namespace::new("lb"));
    a.ip(&format!("link add u1 type veth peer name u1 netns {}", b.0));
    for (n, last) in [(&a, "0a"), (&b, "0b")] {
        n.ip(&format!("link set u1 address 02:00:00:00:00:{last} up"));
    }
    let (ours, theirs) = (Switch::ours(&a), Switch::debian(&b));
    for (s, name) in [(&ours, "gw1"), (&theirs, "tor1")] {
        s.vsctl(&format!(
            "add-br br0 -- set bridge br0 datapath_type=netdev auto_attach=@a -- add-port br0 u1 -- set interface u1 lldp:enable=true -- --id=@a create AutoAttach system_name={name} system_description=switch mappings:7=70"
        ));
    }
    ours.ofctl(&["add-flow", "br0", "priority=9,dl_type=0x88cc,actions=drop"]);
    let count = |s: &Switch, what: &str| -> Result<u64, String> {
        let text = s.appctl(&["autoattach/statistics"])?;
        let line = text.lines().find_map(|l| l.trim().strip_prefix(what)?.strip_prefix(" cnt: ").map(String::from));
        line.and_then(|n| n.parse().ok()).ok_or(text)
    };
    eventually("both have heard the other", SOON, || {
        let heard = [count(&ours, "rx")?, count(&theirs, "rx")?];
        if heard.iter().all(|n| *n > 0) { Ok(()) } else { Err(format!("{heard:?}")) }
    });
    for s in [&ours, &theirs] {
        assert_eq!([count(s, "rx discarded"), count(s, "insert")], [Ok(0), Ok(1)]);
    }
    // What each has understood of the other reads the same, but for how much of a system's number is shown.
    let server = |s: &Switch| {
        let text = s.appctl(&["autoattach/status"]).expect("a status");
        text.lines().filter(|l| !l.contains("System Id")).map(String::from).collect::<Vec<_>>()
    };
    let known = |last: &str| {
        [
            "LLDP: u1".to_string(),
            format!("  Auto Attach Primary Server Id: 02:00:00:00:00:{last}"),
            "  Auto Attach Primary Server Descr: switch".into(),
        ]
    };
    assert_eq!((server(&ours), server(&theirs)), (known("0b").to_vec(), known("0a").to_vec()));
    let asked = |s: &Switch| s.appctl(&["autoattach/show-isid"]).expect("services");
    assert!(asked(&ours).contains("7        70   Switch      "), "{}", asked(&ours));
    let shown = ours.appctl(&["lldp/show", "br0"]).expect("neighbours");
    for wanted in ["---- u1 ----", "chassis: 02:00:00:00:00:0b", "  port: u1", "  system description: switch"] {
        assert!(shown.contains(wanted), "{shown}");
    }
    let flows = ours.ofctl(&["dump-flows", "br0", "dl_type=0x88cc"]);
    assert!(flows.contains("n_packets=0"), "{flows}");
    // An agent that is turned off leaves them to flows.
    ours.vsctl("set interface u1 lldp:enable=false");
    eventually("flows get them", SOON, || {
        let flows = ours.try_ofctl(&["dump-flows", "br0", "dl_type=0x88cc"])?;
        if flows.contains("n_packets=0") { Err(flows) } else { Ok(()) }
    });
    assert_eq!(ours.appctl(&["autoattach/statistics"]), Ok(String::new()));
}
