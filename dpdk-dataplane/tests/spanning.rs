//! Spanning trees, rapid and older: two wires to Debian's Open vSwitch, and to a bridge of the kernel. One of them is
//! blocked, and takes over when the other fails.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

/// Messages age for six seconds, then ports listen and learn for four each.
const SOON: Duration = Duration::from_secs(40);
const TIMES: &str = "other_config:stp-hello-time=1 other_config:stp-max-age=6 other_config:stp-forward-delay=4";

/// Two wires between namespaces, named u1 and u2 in both.
fn wires(a: &Namespace, b: &Namespace) {
    for u in ["u1", "u2"] {
        a.ip(&format!("link add {u} type veth peer name {u} netns {}", b.0));
        for n in [a, b] {
            n.exec(&format!("ethtool -K {u} tx off")).expect("ethtool");
            n.ip(&format!("link set {u} up"));
        }
    }
}

/// A bridge with a spanning tree, whose address ends so, with both wires and a port to a machine.
fn bridge(s: &Switch, last: &str, port: &str) {
    s.vsctl(&format!(
        "add-br br0 -- set bridge br0 datapath_type=netdev other_config:hwaddr=02:00:00:00:00:{last} {TIMES} stp_enable=true"
    ));
    for port in ["u1", "u2"] {
        s.vsctl(&format!("add-port br0 {port}"));
    }
    s.vsctl(&format!("add-port br0 {port}"));
}

/// The state of a port in a switch's own words.
fn state(s: &Switch, port: &str) -> Result<String, String> {
    let text = s.appctl(&["stp/show", "br0"])?;
    let line = text.lines().find(|l| l.trim_start().starts_with(port)).ok_or(text.clone())?;
    Ok(line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" "))
}

/// The lines about a bridge's root, without which port leads there.
fn root(s: &Switch) -> Result<Vec<String>, String> {
    let text = s.appctl(&["stp/show", "br0"])?;
    let lines = text.lines().skip_while(|l| *l != "Root ID:").take(3);
    Ok(lines.map(String::from).collect())
}

fn settled(s: &Switch, wanted: [&str; 2]) -> Result<(), String> {
    let is = [state(s, "u1")?, state(s, "u2")?];
    if is == wanted { Ok(()) } else { Err(format!("{is:?}, not {wanted:?}")) }
}

#[test]
fn one_of_two_wires_to_open_vswitch_is_blocked() {
    if !able(&["ovs-vswitchd", "ovs-appctl"]) {
        return;
    }
    // Who has the lesser address is the root: both have their turn.
    for (ours_last, theirs_last) in [("02", "01"), ("01", "02")] {
        let (a, b) = (Namespace::new("sa"), Namespace::new("sb"));
        wires(&a, &b);
        let (va, _vb) = (a.machine("va", "10.9.0.1/24"), b.machine("vb", "10.9.0.2/24"));
        let (ours, theirs) = (Switch::ours(&a), Switch::debian(&b));
        bridge(&ours, ours_last, "va");
        bridge(&theirs, theirs_last, "vb");
        let we_lead = ours_last < theirs_last;
        let (leads, other) = if we_lead { (&ours, &theirs) } else { (&theirs, &ours) };
        eventually("a tree", SOON, || {
            settled(leads, ["designated forwarding"; 2])?;
            settled(other, ["root forwarding", "alternate blocking"])?;
            let machines = [state(&ours, "va")?, state(&theirs, "vb")?];
            if machines == ["designated forwarding"; 2] { Ok(()) } else { Err(format!("{machines:?}")) }
        });
        assert_eq!(root(&ours).expect("a tree"), root(&theirs).expect("a tree"));
        va.reaches("10.9.0.2");
        ours.becomes("get port u1 status:stp_state", "forwarding", SOON);
        let role = if we_lead { "designated" } else { "root" };
        ours.becomes("get port u1 status:stp_role", role, SOON);
        ours.becomes("get bridge br0 status:stp_designated_root", "8000.020000000001", SOON);
        // The wire that is used breaks; the other one takes over.
        b.ip("link set u1 down");
        eventually("the other wire", SOON, || {
            let is = [state(leads, "u2")?, state(other, "u2")?];
            if is == ["designated forwarding", "root forwarding"] { Ok(()) } else { Err(format!("{is:?}")) }
        });
        va.reaches("10.9.0.2");
        b.ip("link set u1 up");
        eventually("the tree of before", SOON, || settled(other, ["root forwarding", "alternate blocking"]));
        va.reaches("10.9.0.2");
        // Without a tree, nothing is told of one, and packets go as they did.
        b.ip("link set u2 down");
        ours.vsctl("set bridge br0 stp_enable=false");
        eventually("no tree", SOON, || match ours.appctl(&["stp/show"])?.as_str() {
            "" => Ok(()),
            text => Err(text.into()),
        });
        eventually("no status", SOON, || match ours.vsctl("get port u1 status").trim() {
            "{}" => Ok(()),
            text => Err(text.into()),
        });
        va.reaches("10.9.0.2");
    }
}

#[test]
fn one_of_two_wires_to_the_kernels_bridge_is_blocked() {
    if !able(&["bridge"]) {
        return;
    }
    let (a, b) = (Namespace::new("ka"), Namespace::new("kb"));
    wires(&a, &b);
    if b.exec("ip link add k0 type bridge stp_state 1 hello_time 100 max_age 600 forward_delay 400").is_err() {
        needs::skip("no bridges in this kernel");
        return;
    }
    let va = a.machine("vk", "10.9.0.1/24");
    b.ip("link set k0 address 02:00:00:00:00:01");
    b.ip("link set u1 master k0");
    b.ip("link set u2 master k0");
    b.ip("link set k0 up");
    b.ip("addr add 10.9.0.2/24 dev k0");
    let ours = Switch::ours(&a);
    bridge(&ours, "02", "vk");
    eventually("a tree", SOON, || settled(&ours, ["root forwarding", "alternate blocking"]));
    va.reaches("10.9.0.2");
    // We become the root: now the kernel blocks.
    ours.vsctl("set bridge br0 other_config:stp-priority=4096");
    eventually("our tree", SOON, || settled(&ours, ["designated forwarding"; 2]));
    eventually("the kernel blocks a wire", SOON, || {
        let text = b.exec("bridge link show")?;
        let counts = ["state forwarding", "state blocking"].map(|s| text.matches(s).count());
        if counts == [1, 1] { Ok(()) } else { Err(text) }
    });
    va.reaches("10.9.0.2");
}

/// A bridge with a rapid spanning tree, as [`bridge`].
fn rapid_bridge(s: &Switch, last: &str, port: &str) {
    s.vsctl(&format!(
        "add-br br0 -- set bridge br0 datapath_type=netdev other_config:hwaddr=02:00:00:00:00:{last} rstp_enable=true"
    ));
    for port in ["u1", "u2", port] {
        s.vsctl(&format!("add-port br0 {port}"));
    }
}

/// Role and state of a port in a switch's own words.
fn rapid_state(s: &Switch, port: &str) -> Result<String, String> {
    let text = s.appctl(&["rstp/show", "br0"])?;
    let line = text.lines().find(|l| l.trim_start().starts_with(port)).ok_or(text.clone())?;
    Ok(line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" "))
}

/// Two wires to Open vSwitch in the rapid protocol: the one that blocked takes over within seconds, and both sides say the
/// same of the root.
#[test]
fn a_rapid_tree_is_agreed_on_with_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-appctl"]) {
        return;
    }
    const RAPID: Duration = Duration::from_secs(20);
    for (ours_last, theirs_last) in [("02", "01"), ("01", "02")] {
        let (a, b) = (Namespace::new("ra"), Namespace::new("rb"));
        wires(&a, &b);
        let (va, _vb) = (a.machine("rva", "10.9.0.1/24"), b.machine("rvb", "10.9.0.2/24"));
        let (ours, theirs) = (Switch::ours(&a), Switch::debian(&b));
        rapid_bridge(&ours, ours_last, "rva");
        rapid_bridge(&theirs, theirs_last, "rvb");
        let we_lead = ours_last < theirs_last;
        let (leads, other) = if we_lead { (&ours, &theirs) } else { (&theirs, &ours) };
        let tree = || {
            let is = [rapid_state(leads, "u1")?, rapid_state(leads, "u2")?];
            let others = [rapid_state(other, "u1")?, rapid_state(other, "u2")?];
            let wanted = ["Designated Forwarding"; 2];
            match is == wanted && others == ["Root Forwarding", "Alternate Discarding"] {
                true => Ok(()),
                false => Err(format!("{is:?} {others:?}")),
            }
        };
        eventually("a tree", RAPID, tree);
        let root = |s: &Switch| -> Result<Vec<String>, String> {
            let text = s.appctl(&["rstp/show", "br0"])?;
            Ok(text.lines().skip_while(|l| *l != "Root ID:").take(6).map(String::from).collect())
        };
        let [own, peer] = [root(&ours), root(&theirs)].map(|r| r.expect("a tree"));
        assert_eq!(own[..3], peer[..3], "priority and address");
        va.reaches("10.9.0.2");
        // Both rows name the root, and ports have the numbers in which they came.
        let id = "8.000.020000000001";
        for s in [&ours, &theirs] {
            s.becomes("--if-exists get bridge br0 rstp_status:rstp_root_id", id, RAPID);
            s.becomes("--if-exists get port u1 rstp_status:rstp_port_state", "Forwarding", RAPID);
            s.becomes("--if-exists get port u1 rstp_status:rstp_port_id", "8001", RAPID);
        }
        ours.becomes(
            "--if-exists get port u2 rstp_status:rstp_port_role",
            if we_lead { "Designated" } else { "Alternate" },
            RAPID,
        );
        b.ip("link set u1 down");
        eventually("the other wire", RAPID, || {
            let is = [rapid_state(leads, "u2")?, rapid_state(other, "u2")?];
            if is == ["Designated Forwarding", "Root Forwarding"] { Ok(()) } else { Err(format!("{is:?}")) }
        });
        va.reaches("10.9.0.2");
        b.ip("link set u1 up");
        eventually("the tree of before", RAPID, tree);
        va.reaches("10.9.0.2");
        b.ip("link set u2 down");
        ours.vsctl("set bridge br0 rstp_enable=false");
        eventually("no status", RAPID, || match ours.vsctl("get port u1 rstp_status").trim() {
            "{}" => Ok(()),
            text => Err(text.into()),
        });
        va.reaches("10.9.0.2");
    }
}

/// Open vSwitch speaks the older protocol: so does this switch on both wires, and there is one tree.
#[test]
fn a_rapid_tree_speaks_the_older_protocol_with_older_bridges() {
    if !able(&["ovs-vswitchd", "ovs-appctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("oa"), Namespace::new("ob"));
    wires(&a, &b);
    let (va, _vb) = (a.machine("ova", "10.9.0.1/24"), b.machine("ovb", "10.9.0.2/24"));
    let (ours, theirs) = (Switch::ours(&a), Switch::debian(&b));
    rapid_bridge(&ours, "02", "ova");
    bridge(&theirs, "01", "ovb");
    eventually("a tree", SOON, || {
        settled(&theirs, ["designated forwarding"; 2])?;
        let is = [rapid_state(&ours, "u1")?, rapid_state(&ours, "u2")?];
        if is == ["Root Forwarding", "Alternate Discarding"] { Ok(()) } else { Err(format!("{is:?}")) }
    });
    va.reaches("10.9.0.2");
    b.ip("link set u1 down");
    eventually("the other wire", SOON, || match rapid_state(&ours, "u2")?.as_str() {
        "Root Forwarding" => Ok(()),
        is => Err(is.into()),
    });
    va.reaches("10.9.0.2");
}
