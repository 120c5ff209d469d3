//! Every column of every row that the daemon may write (ovs-vswitchd.conf.db(5)), for one configuration with ports of
//! all types that both have, beside Debian's Open vSwitch.

mod common;

use common::{Namespace, Switch, able, eventually};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

const TABLES: &[&str] = &[
    "Open_vSwitch",
    "Bridge",
    "Port",
    "Interface",
    "Controller",
    "Mirror",
    "NetFlow",
    "sFlow",
    "IPFIX",
    "Flow_Sample_Collector_Set",
    "Flow_Table",
    "QoS",
    "Queue",
    "Datapath",
    "CT_Zone",
    "CT_Timeout_Policy",
];

/// Columns that are another switch's on purpose, and why.
const OTHERS: &[(&str, &str)] = &[
    ("Open_vSwitch", "dpdk_initialized"),
    ("Open_vSwitch", "dpdk_version"),
    ("Open_vSwitch", "iface_types"),
    ("Open_vSwitch", "datapath_types"),
    // Open vSwitch's scripts write these two.
    ("Open_vSwitch", "ovs_version"),
    ("Open_vSwitch", "db_version"),
    ("Bridge", "datapath_version"),
    // Which capabilities there are, see `Datapath` in docs/compatibility.md.
    ("Datapath", "capabilities"),
];

/// Rows by table and name, and in them columns as text.
type Rows = BTreeMap<(String, String), BTreeMap<String, Value>>;

fn rows(s: &Switch) -> Rows {
    let mut all = Rows::default();
    for table in TABLES {
        let text = s.vsctl(&format!("--format=json list {table}"));
        let v: Value = serde_json::from_str(&text).expect("JSON");
        let headings: Vec<&str> =
            v["headings"].as_array().expect("headings").iter().filter_map(Value::as_str).collect();
        for row in v["data"].as_array().expect("rows") {
            let row: BTreeMap<String, Value> =
                headings.iter().zip(row.as_array().expect("a row")).map(|(h, v)| (h.to_string(), v.clone())).collect();
            let name = ["name", "target", "targets"]
                .iter()
                .find_map(|k| row.get(*k))
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_string();
            all.insert((table.to_string(), name), row);
        }
    }
    all
}

fn is_map(v: &Value) -> Option<BTreeMap<String, String>> {
    let pairs = v.as_array().filter(|a| a.first().and_then(Value::as_str) == Some("map"))?.get(1)?.as_array()?;
    Some(pairs.iter().map(|p| (p[0].as_str().unwrap_or_default().into(), p[1].to_string())).collect())
}

/// What of a column is to be the same: all of it, or, where values are a machine's or a moment's, that there is one.
fn essence(table: &str, column: &str, v: &Value) -> Value {
    let empty = v.as_array().is_some_and(|a| a.get(1).and_then(Value::as_array).is_some_and(Vec::is_empty));
    match (table, column) {
        (_, "_uuid") => Value::Null,
        ("Interface", "mac_in_use" | "link_resets") => Value::Bool(empty),
        ("Interface", "ifindex") => Value::String(if v.as_i64() == Some(0) { "0".into() } else { format!("{empty}") }),
        ("Interface" | "Mirror" | "Open_vSwitch" | "Port", "statistics") => {
            // Daemons have names of their own.
            is_map(v).map(|m| m.into_keys().filter(|k| !k.starts_with("process_")).collect::<Vec<_>>()).into()
        }
        // The other end of a veth, of which 3.1 says nothing yet.
        ("Interface", "status") => is_map(v)
            .map(|mut m| {
                m.remove("peer_ifindex");
                m.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>()
            })
            .into(),
        ("Controller", "status") => is_map(v)
            .map(|mut m| {
                m.remove("sec_since_connect");
                m.remove("sec_since_disconnect");
                m.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>()
            })
            .into(),
        // References, by how many there are.
        _ if v.to_string().contains("\"uuid\"") => Value::from(v.to_string().matches("\"uuid\"").count()),
        _ => v.clone(),
    }
}

/// What is not the same.
fn differences(ours: &Rows, theirs: &Rows) -> Vec<String> {
    let mut out = Vec::new();
    let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for key in names {
        let (Some(o), Some(t)) = (ours.get(key), theirs.get(key)) else {
            out.push(format!("{key:?} is in one alone"));
            continue;
        };
        for (column, theirs) in t {
            let Some(ours) = o.get(column).filter(|_| !OTHERS.contains(&(&*key.0, column))) else { continue };
            let [a, b] = [ours, theirs].map(|v| essence(&key.0, column, v));
            // Ours may count more.
            let within = column == "statistics"
                && b.as_array().zip(a.as_array()).is_some_and(|(b, a)| b.iter().all(|k| a.contains(k)));
            if a != b && !within {
                out.push(format!("{} {} {column}: ours {ours}, theirs {theirs}", key.0, key.1));
            }
        }
    }
    out
}

fn set_up(s: &Switch, ns: &Namespace) {
    for n in [1, 3, 5, 7] {
        ns.ip(&format!("link add v{n} type veth peer name v{}", n + 1));
        (n..n + 2).for_each(|n| drop(ns.ip(&format!("link set v{n} address 02:00:00:00:03:0{n} up"))));
    }
    s.vsctl("set open . other_config:enable-statistics=true");
    s.vsctl(
        "add-br br0 -- set bridge br0 datapath_type=netdev other_config:hwaddr=02:00:00:00:00:aa fail_mode=secure \
         -- add-br br1 -- set bridge br1 datapath_type=netdev other_config:hwaddr=02:00:00:00:00:bb \
         -- add-port br0 v1 -- set interface v1 ofport_request=1 -- set port v1 tag=5 \
         -- add-port br0 i1 -- set interface i1 type=internal ofport_request=2 mac=\"02:00:00:00:00:77\" -- set port i1 trunks=5,6 vlan_mode=trunk \
         -- add-port br0 t1 -- set interface t1 type=tap ofport_request=3 \
         -- add-port br0 p1 -- set interface p1 type=patch options:peer=p2 ofport_request=4 \
         -- add-port br1 p2 -- set interface p2 type=patch options:peer=p1 ofport_request=4 \
         -- add-port br0 g1 -- set interface g1 type=geneve options:remote_ip=172.16.9.2 options:key=flow options:csum=true ofport_request=5 \
         -- add-port br0 g2 -- set interface g2 type=geneve options:remote_ip=flow options:key=7 ofport_request=6 \
         -- add-port br0 x1 -- set interface x1 type=vxlan options:remote_ip=10.99.9.9 options:key=9 ofport_request=7 \
         -- add-bond br0 bond1 v3 v5 bond_mode=active-backup other_config:bond-primary=v3 -- set interface v3 ofport_request=8 -- set interface v5 ofport_request=9 \
         -- add-bond br1 bond2 v7 v8 bond_mode=balance-tcp lacp=active -- set interface v7 ofport_request=8 -- set interface v8 ofport_request=9",
    );
    s.vsctl("--no-wait add-port br0 none -- set interface none ofport_request=20 -- add-port br1 odd -- set interface odd type=patch options:peer=nobody");
    s.vsctl("-- --id=@o get port i1 -- --id=@m create mirror name=m1 select_all=true output_port=@o snaplen=100 -- set bridge br0 mirrors=@m");
    s.vsctl("-- --id=@s create sflow agent=lo targets=\"127.0.0.1:6343\" -- --id=@n create netflow targets=\"127.0.0.1:2055\" -- set bridge br0 sflow=@s netflow=@n");
    s.vsctl("-- --id=@i create ipfix targets=\"127.0.0.1:4739\" -- set bridge br0 ipfix=@i -- --id=@b get bridge br0 -- --id=@j create ipfix targets=\"127.0.0.1:4740\" -- create flow_sample_collector_set id=1 bridge=@b ipfix=@j");
    s.vsctl("-- --id=@t create flow_table name=first flow_limit=10 -- set bridge br0 flow_tables:3=@t");
    s.vsctl("-- --id=@q create queue other_config:max-rate=1000000 -- --id=@h create qos type=linux-htb other_config:max-rate=10000000 queues:0=@q -- set port v1 qos=@h");
    s.vsctl("set-controller br0 ptcp:16633:127.0.0.1 tcp:127.0.0.1:9");
    s.vsctl("set interface v5 ingress_policing_rate=1000 ingress_policing_burst=100");
    ns.ip("addr add 172.16.9.1/24 dev br1");
    // Ours brings its own devices up.
    ["br0", "br1", "i1", "t1"].iter().for_each(|d| drop(ns.ip(&format!("link set {d} up"))));
}

#[test]
fn every_column_is_as_in_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-vsctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("ao"), Namespace::new("ad"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    switches.iter().zip([&a, &b]).for_each(|(s, ns)| set_up(s, ns));
    let same = |what: &str| {
        eventually(what, SOON, || {
            let [ours, theirs] = switches.each_ref().map(rows);
            let bad = differences(&ours, &theirs);
            if bad.is_empty() { Ok(()) } else { Err(bad.join("\n")) }
        });
    };
    same("the whole configuration");
}

/// The same of DPDK's ports, beside Debian's daemon with DPDK.
#[test]
fn columns_of_dpdk_ports_are_as_in_open_vswitch() {
    if !able(&[common::DPDK, "ovs-vsctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("po"), Namespace::new("pd"));
    let switches = [Switch::ours(&a), Switch::debian_dpdk(&b)];
    for (s, ns) in switches.iter().zip([&a, &b]) {
        ns.ip("link add v1 type veth peer name v2");
        ["v1", "v2"].iter().for_each(|d| drop(ns.ip(&format!("link set {d} up"))));
        let socket = s.path("vhost");
        s.vsctl(&format!(
            "add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure other_config:hwaddr=02:00:00:00:00:aa \
             -- add-port br0 a1 -- set interface a1 type=dpdk options:dpdk-devargs=net_af_packet81,iface=v1 ofport_request=1 \
             -- add-port br0 c1 -- set interface c1 type=dpdkvhostuserclient options:vhost-server-path={socket} ofport_request=2"
        ));
        s.vsctl("--no-wait add-port br0 w1 -- set interface w1 type=dpdk ofport_request=3");
        ns.ip("link set br0 up");
    }
    eventually("the ports of DPDK", SOON, || {
        let [mut ours, mut theirs] = switches.each_ref().map(rows);
        for r in [&mut ours, &mut theirs] {
            r.retain(|(table, _), _| table != "Open_vSwitch");
            // Of a socket to which nobody is connected yet.
            r.get_mut(&("Interface".into(), "c1".into())).map(|c| c.remove("mtu"));
        }
        let mut bad = Vec::new();
        for name in ["a1", "c1", "w1"] {
            let key = ("Interface".to_string(), name.to_string());
            let (Some(o), Some(t)) = (ours.get_mut(&key), theirs.get_mut(&key)) else { return Err(name.into()) };
            // Paths of the run, and the number that a program gives its devices.
            [&mut *o, &mut *t].into_iter().for_each(|r| drop(r.remove("options")));
            // A port without devargs is that of a network device here; Open vSwitch's text goes on about its old names.
            if name == "w1" {
                for r in [&mut *o, &mut *t] {
                    let text = r.remove("error").map(|e| e.to_string()).unwrap_or_default();
                    if !text.contains("'w1' is missing 'options:dpdk-devargs'") {
                        bad.push(format!("w1 error: {text}"));
                    }
                }
            }
            let status =
                |r: &mut BTreeMap<String, Value>| r.remove("status").as_ref().and_then(is_map).unwrap_or_default();
            let (mine, other) = (status(o), status(t));
            for (k, v) in other.iter().filter(|(k, _)| *k != "port_no") {
                if mine.get(k) != Some(v) {
                    bad.push(format!("{name} status:{k}: ours {:?}, theirs {v}", mine.get(k)));
                }
            }
        }
        bad.extend(differences(&ours, &theirs));
        if bad.is_empty() { Ok(()) } else { Err(bad.join("\n")) }
    });
}
