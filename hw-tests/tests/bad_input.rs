//! What nobody should have written, and packets that nobody should have sent: reported where people look, and nothing else
//! is disturbed.

mod common;

use common::{Guard, able};
use hw_tests::lab::{Lab, until};
use hw_tests::network::{CHASSIS, Cast, EXTERNAL, Network, underlay_ip};
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// Rows of which each has one fault, all in one transaction.
const ROWS: &str = r#"[
 {"op":"insert","table":"Logical_Switch_Port","uuid-name":"p1","row":{"name":"bad-mac","addresses":"zz:00:00:00:01:99 10.0.1.99"}},
 {"op":"insert","table":"Logical_Switch_Port","uuid-name":"p2","row":{"name":"dup-address","addresses":"02:00:00:00:09:08 10.0.1.13"}},
 {"op":"insert","table":"Logical_Switch_Port","uuid-name":"p3","row":{"name":"bad-type","type":"teleport"}},
 {"op":"insert","table":"Logical_Switch_Port","uuid-name":"p4","row":{"name":"bad-option","addresses":"02:00:00:00:09:02",
   "options":["map",[["qos_max_rate","fast"],["vlan-passthru","perhaps"]]]}},
 {"op":"insert","table":"ACL","uuid-name":"a1","row":{"name":"bad-acl","direction":"to-lport","priority":1001,"match":"ip4.src == ","action":"drop"}},
 {"op":"mutate","table":"Logical_Switch","where":[["name","==","web"]],"mutations":[
   ["ports","insert",["set",[["named-uuid","p1"],["named-uuid","p2"],["named-uuid","p3"],["named-uuid","p4"]]]],
   ["acls","insert",["named-uuid","a1"]],
   ["other_config","insert",["map",[["subnet","10.0.1.0/99"]]]]]},
 {"op":"insert","table":"NAT","uuid-name":"n1","row":{"type":"dnat_and_snat","external_ip":"172.16.0.999","logical_ip":"10.0.1.13"}},
 {"op":"insert","table":"NAT","uuid-name":"n2","row":{"type":"snat","external_ip":"172.16.0.77","logical_ip":"nowhere"}},
 {"op":"insert","table":"NAT","uuid-name":"n3","row":{"type":"dnat_and_snat","external_ip":"198.51.100.7","logical_ip":"192.0.2.7"}},
 {"op":"insert","table":"Logical_Router_Port","uuid-name":"r1","row":{"name":"bad-cidr","mac":"02:00:00:00:09:09","networks":"10.9.9.9/77"}},
 {"op":"insert","table":"Logical_Router_Static_Route","uuid-name":"s1","row":{"ip_prefix":"10.300.0.0/16","nexthop":"172.16.0.254"}},
 {"op":"insert","table":"Logical_Router_Static_Route","uuid-name":"s2","row":{"ip_prefix":"10.40.0.0/16","nexthop":"192.0.2.1"}},
 {"op":"insert","table":"Load_Balancer","uuid-name":"l1","row":{"name":"bad-lb","protocol":"tcp",
   "vips":["map",[["172.16.0.300:80","10.0.1.13:80"],["172.16.0.101:80","10.0.1.13:eighty"]]]}},
 {"op":"mutate","table":"Logical_Router","where":[["name","==","edge"]],"mutations":[
   ["nat","insert",["set",[["named-uuid","n1"],["named-uuid","n2"],["named-uuid","n3"]]]],
   ["ports","insert",["named-uuid","r1"]],
   ["static_routes","insert",["set",[["named-uuid","s1"],["named-uuid","s2"]]]],
   ["load_balancer","insert",["named-uuid","l1"]]]},
 {"op":"mutate","table":"DHCP_Options","where":[["cidr","==","10.0.1.0/24"]],"mutations":[["options","insert",["map",[["warp_factor","9"]]]]]}
]"#;

/// What northd's log has to say of them: the object, and what is wrong with it.
const SAID: &[[&str; 2]] = &[
    ["logical switch port bad-mac", "zz:00:00:00:01:99"],
    ["ports dup-address and vm3", "10.0.1.13"],
    ["logical switch port bad-type", "teleport"],
    ["logical switch port bad-option", "qos_max_rate is \"fast\""],
    ["logical switch port bad-option", "vlan-passthru is \"perhaps\""],
    ["ACL bad-acl", "Syntax error"],
    ["logical switch web", "subnet is \"10.0.1.0/99\""],
    ["NAT rule dnat_and_snat 172.16.0.999 of logical router edge", "external_ip is no address"],
    ["NAT rule snat 172.16.0.77 of logical router edge", "\"nowhere\" in logical_ip"],
    ["NAT rule dnat_and_snat 198.51.100.7 of logical router edge", "in no network"],
    ["logical router port bad-cidr", "10.9.9.9/77"],
    ["static route 10.300.0.0/16", "ip_prefix is no network"],
    ["static route 10.40.0.0/16", "no port of the router"],
    ["load balancer bad-lb", "172.16.0.300:80"],
    ["load balancer bad-lb", "10.0.1.13:eighty"],
    ["DHCP options 10.0.1.0/24", "warp_factor"],
];

/// Interfaces that cannot be, on a gateway's integration bridge.
const INTERFACES: &str = r#"[
 {"op":"insert","table":"Interface","uuid-name":"i1","row":{"name":"bad-pci","type":"dpdk","options":["map",[["dpdk-devargs","0000:ff:1f.7"]]]}},
 {"op":"insert","table":"Interface","uuid-name":"i2","row":{"name":"bad-type","type":"nonsense"}},
 {"op":"insert","table":"Interface","uuid-name":"i3","row":{"name":"not-there"}},
 {"op":"insert","table":"Interface","uuid-name":"i4","row":{"name":"bad-tunnel","type":"geneve","options":["map",[["remote_ip","nowhere"]]]}},
 {"op":"insert","table":"Port","uuid-name":"q1","row":{"name":"bad-pci","interfaces":["named-uuid","i1"]}},
 {"op":"insert","table":"Port","uuid-name":"q2","row":{"name":"bad-type","interfaces":["named-uuid","i2"]}},
 {"op":"insert","table":"Port","uuid-name":"q3","row":{"name":"not-there","interfaces":["named-uuid","i3"]}},
 {"op":"insert","table":"Port","uuid-name":"q4","row":{"name":"bad-tunnel","interfaces":["named-uuid","i4"]}},
 {"op":"mutate","table":"Bridge","where":[["name","==","br-int"]],"mutations":[["ports","insert",
   ["set",[["named-uuid","q1"],["named-uuid","q2"],["named-uuid","q3"],["named-uuid","q4"]]]]]},
 {"op":"mutate","table":"Open_vSwitch","where":[],"mutations":[["next_cfg","+=",1]]}
]"#;

const WRONG: &[[&str; 2]] = &[
    ["bad-pci", "0000:ff:1f.7"],
    ["bad-type", "nonsense"],
    ["not-there", "No such device"],
    ["bad-tunnel", "nowhere"],
];

fn ping(n: &Network, from: &str, to: &str) {
    until(&format!("{from} → {to}"), SOON, || n.lab.exec(from, "ping", &["-c", "1", "-W", "1", to]))
        .unwrap_or_else(|e| panic!("{e:#}"));
}

fn all_reach(n: &Network) {
    for (from, to) in
        [("vm1", "10.0.1.13"), ("vm1", "10.0.2.12"), ("vm2", EXTERNAL), ("ext", "172.16.0.13"), ("ext", "172.16.0.11")]
    {
        ping(n, from, to);
    }
}

/// A log line that has both texts is there, and only once.
fn said_once(n: &Network, machine: &str, key: &str, texts: &[&str; 2]) {
    let found = until(&format!("{machine}/{key} says {texts:?}"), SOON, || {
        let log = n.lab.output(machine, key);
        let lines: Vec<String> =
            log.lines().filter(|l| texts.iter().all(|t| l.contains(t))).map(String::from).collect();
        if lines.is_empty() { anyhow::bail!("{log}") } else { Ok(lines) }
    });
    let lines = found.unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(lines.len(), 1, "{lines:#?}");
}

fn rows(n: &Network) {
    let (nb, _) = Network::remotes();
    n.ctl("central", &["db", &nb, "transact", "OVN_Northbound", ROWS]).expect("transact");
    for texts in SAID {
        said_once(n, "central", "northd", texts);
    }
    // The controllers leave the flow of the malformed match out; northd has said whose it is.
    said_once(n, "hv1", "controller", &["logical flow", "ip4.src == "]);
    // What is right goes on being realised: another floating IP.
    let yaml = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("demo.yaml")).expect("demo.yaml");
    let more = yaml.replace(
        "    load_balancers: [service]",
        "      - {type: dnat_and_snat, external: 172.16.0.12, logical: 10.0.2.12}\n    load_balancers: [service]",
    );
    assert_ne!(more, yaml);
    let file = n.lab.machine_dir("central").join("more.yaml");
    std::fs::write(&file, more).expect("write");
    n.apply(&file).expect("apply");
    ping(n, "ext", "172.16.0.12");
    all_reach(n);
    for texts in SAID {
        said_once(n, "central", "northd", texts);
    }
}

fn interfaces(n: &Network) {
    let db = format!("unix:{}", n.lab.machine_dir("gw1").join("db.sock").display());
    n.ctl("gw1", &["db", &db, "transact", "Open_vSwitch", INTERFACES]).expect("transact");
    for texts in WRONG {
        let [name, why] = texts;
        let select = format!(
            r#"[{{"op":"select","table":"Interface","where":[["name","==","{name}"]],"columns":["error","ofport"]}}]"#
        );
        let row = until(&format!("{name}'s error"), SOON, || {
            let row = n.ctl("gw1", &["db", &db, "transact", "Open_vSwitch", &select])?;
            if row.contains(why) { Ok(row) } else { anyhow::bail!("{row}") }
        });
        let row = row.unwrap_or_else(|e| panic!("{e:#}"));
        assert!(row.contains("-1"), "{row}");
        said_once(n, "gw1", "switch", texts);
    }
    all_reach(n);
}

fn packets(n: &mut Network) {
    let agent = n.agent();
    for (machine, device) in [("vm1", "eth0"), ("vm3", "eth0"), ("ext", "eth0"), ("tor", "p-gw1")] {
        n.lab.exec(machine, &agent, &["agent", "garbage", device]).unwrap_or_else(|e| panic!("{e:#}"));
    }
    for (port, to) in [(6081, "gw1"), (4789, "gw1"), (6081, "hv2"), (3784, "gw2")] {
        let to = format!("{}:{port}", underlay_ip(to));
        n.lab.exec("hv1", &agent, &["agent", "udp-garbage", &to]).unwrap_or_else(|e| panic!("{e:#}"));
    }
    for m in CHASSIS {
        for key in ["switch", "controller"] {
            assert!(n.lab.is_running(m, key), "{key} of {m}: {}", n.lab.output(m, key));
        }
    }
    assert!(n.lab.is_running("tor", "switch") && n.lab.is_running("central", "northd"));
    all_reach(n);
}

#[test]
fn bad_rows_devices_and_packets_disturb_nothing_else() {
    let _one = Guard::take();
    if !able(&[]) {
        return;
    }
    let lab = Lab::new("isbad", &std::env::temp_dir().join("isthmus-bad")).expect("lab");
    let mut n = Network::start(lab, Cast::default(), |_| {}).expect("network");
    n.apply(&Path::new(env!("CARGO_MANIFEST_DIR")).join("demo.yaml")).expect("apply");
    n.addresses().expect("addresses");
    all_reach(&n);
    rows(&n);
    interfaces(&n);
    packets(&mut n);
}
