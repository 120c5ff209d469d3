//! Tunnels between this switch and Debian's Open vSwitch that bridges seldom have: frames of mirrors in ERSPAN, users'
//! packets in GTP-U, GRE with and without keys, numbers and checksums.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// One end: an underlay with an address, and a bridge with a machine at port 1.
struct End {
    switch: Switch,
    machine: Namespace,
    namespace: Namespace,
}

/// Two ends with one wire between them: ours first.
fn ends() -> [End; 2] {
    let (a, b) = (Namespace::new("ea"), Namespace::new("eb"));
    a.ip(&format!("link add u1 type veth peer name u1 netns {}", b.0));
    let end = |namespace: Namespace, ours: bool, n: u8| {
        namespace.ip("link set u1 mtu 1600 up");
        namespace.exec("ethtool -K u1 tx off").expect("ethtool");
        let machine = namespace.machine(&format!("v{n}"), &format!("10.8.0.{n}/24"));
        machine.ip(&format!("link set eth0 address {}", mac(n)));
        machine.ip(&format!("neigh replace 10.8.0.{0} lladdr {1} dev eth0", 3 - n, mac(3 - n)));
        let switch = if ours { Switch::ours(&namespace) } else { Switch::debian(&namespace) };
        switch.vsctl(&format!(
            "add-br under -- set bridge under datapath_type=netdev other_config:hwaddr=02:00:00:00:01:0{n} -- add-port under u1 -- add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 v{n} -- set interface v{n} ofport_request=1"
        ));
        switch.ofctl(&["add-flow", "under", "actions=NORMAL"]);
        namespace.ip(&format!("addr add 172.31.0.{n}/24 dev under"));
        namespace.ip("link set under up");
        End { switch, machine, namespace }
    };
    [end(a, true, 1), end(b, false, 2)]
}

fn mac(n: u8) -> String {
    format!("02:00:00:00:00:0{n}")
}

/// Makes port 2 of both a tunnel to the other, with these options and flows.
fn join(ends: &[End; 2], kind: &str, options: &str, flows: impl Fn(u8) -> Vec<String>) {
    for (end, n) in ends.iter().zip(1..) {
        let options: Vec<String> = options.split(' ').map(|o| format!("options:{o}")).collect();
        end.switch.vsctl(&format!(
            "--if-exists del-port br0 tun -- add-port br0 tun -- set interface tun ofport_request=2 type={kind} options:remote_ip=172.31.0.{} {}",
            3 - n,
            options.join(" ")
        ));
        end.switch.becomes("get interface tun ofport", "2", SOON);
        end.switch.ofctl(&["del-flows", "br0"]);
        flows(n).iter().for_each(|f| drop(end.switch.ofctl(&["add-flow", "br0", f])));
    }
}

#[test]
fn mirrors_and_mobile_networks_reach_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let ends = ends();
    let frames = |matched: &str| {
        let matched = matched.to_string();
        move |_: u8| vec!["in_port=1,actions=output:2".to_string(), format!("in_port=2,{matched},actions=output:1")]
    };
    let packets = |matched: &str| {
        let matched = matched.to_string();
        move |n: u8| {
            let deliver = format!("in_port=2,ip,{matched},actions=set_field:{}->eth_dst,output:1", mac(n));
            vec!["in_port=1,ip,actions=output:2".to_string(), deliver]
        }
    };
    type Flows = Box<dyn Fn(u8) -> Vec<String>>;
    let cases: [(&str, &str, Flows); 7] = [
        // Open vSwitch 3.1 writes the number after it has summed, so that nobody takes packets of its that have both.
        ("gre", "key=3", Box::new(frames("tun_id=3"))),
        ("gre", "csum=true", Box::new(frames("tun_id=0"))),
        ("gre", "key=4 seq=true", Box::new(frames("tun_id=4"))),
        ("erspan", "key=7 erspan_ver=1 erspan_idx=0x3", Box::new(frames("tun_id=7,tun_erspan_ver=1,tun_erspan_idx=3"))),
        (
            "erspan",
            "key=9 erspan_ver=2 erspan_dir=1 erspan_hwid=0x4",
            Box::new(frames("tun_id=9,tun_erspan_ver=2,tun_erspan_dir=1,tun_erspan_hwid=4")),
        ),
        ("gtpu", "key=5", Box::new(packets("tun_id=5"))),
        ("gtpu", "key=6 seq=true csum=true", Box::new(packets("tun_id=6"))),
    ];
    for (kind, options, flows) in cases {
        join(&ends, kind, options, flows);
        let [ours, theirs] = &ends;
        eventually(&format!("{kind} {options}"), SOON, || {
            ours.machine.ping("10.8.0.2")?;
            theirs.machine.ping("10.8.0.1")
        });
        // Cached flows serve most of these, of two sizes: checksums are over odd and even numbers of bytes.
        for size in [997, 1200] {
            let many = format!("ping -n -q -c 25 -i 0.02 -W 2 -s {size}");
            ours.machine
                .exec(&format!("{many} 10.8.0.2"))
                .unwrap_or_else(|e| panic!("{kind} {options}, {size} bytes: {e}"));
            theirs
                .machine
                .exec(&format!("{many} 10.8.0.1"))
                .unwrap_or_else(|e| panic!("{kind} {options}, {size} bytes: {e}"));
        }
        for end in &ends {
            // Both have found what they match in the tunnel's header.
            let flows = end.switch.ofctl(&["dump-flows", "br0", "in_port=2"]);
            let passed = flows.contains("tun_id") && !flows.contains("n_packets=0,");
            assert!(passed, "{kind} {options} in {}: {flows}", end.namespace.0);
        }
    }
}
