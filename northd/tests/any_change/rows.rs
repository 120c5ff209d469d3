//! Random rows and changes, made from the schemas.

use crate::servers::Servers;
use crate::{BY_CHASSIS, NB_OTHERS};
use ovn_schema::nb;
use ovsdb_rs::{AtomType, BaseType, ColumnType, DatabaseSchema};
use serde_json::{Map, Value, json};

/// A source of numbers that look random (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}

const PORTS: &[&str] = &["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9"];
const ROUTER_PORTS: &[&str] = &["r0", "r1", "r2", "r3", "r4", "cr-r0", "cr-r2"];
const NETWORKS: &[&str] =
    &["10.0.0.1/24", "10.1.0.1/24", "172.16.0.1/16", "fd00::1/64", "fe80::1/64", "10.0.0.0/33", "0.0.0.0/0", "::/0"];
const IPS: &[&str] =
    &["10.0.0.11", "10.0.0.12", "10.1.0.11", "172.16.0.9", "fd00::11", "192.0.2.1", "224.1.2.3", "bad"];
const MACS: &[&str] = &["0a:00:00:00:00:11", "0a:00:00:00:00:12", "0a:00:00:01:00:00", "bad"];
const CHASSIS: &[&str] = &["ch0", "ch1", "ch2", ""];
const MATCHES: &[&str] =
    &["ip4", "tcp.dst == 80", "outport == @pg0", "inport == \"p1\" && ip", "ip4.src == $as0", "udp &&", "1", "icmp6"];
const ADDRESSES: &[&str] = &[
    "unknown",
    "router",
    "dynamic",
    "dynamic 10.0.0.40",
    "0a:00:00:00:00:21 dynamic",
    "0a:00:00:00:00:22 10.0.0.22 fd00::22",
    "0a:00:00:00:00:23 10.1.0.23",
    "0a:00:00:00:00:24",
    "bad",
];
const VIPS: &[&str] = &["10.0.9.1:80", "10.0.9.1:81", "10.1.9.1", "[fd00::9]:80", "^vip:80", "172.16.0.50:443", "bad"];
const BACKENDS: &[&str] = &["10.0.0.11:80,10.0.0.12:80", "10.1.0.11", "[fd00::11]:80", "", "^backends", "10.0.0.11:80"];

/// Options, with what they may be set to.
const OPTIONS: &[(&str, &[&str])] = &[
    ("router-port", &["r0", "r1", "r2", "r3"]),
    ("peer", &["p0", "p4", "p8"]),
    ("network_name", &["phys", "phys2"]),
    ("requested-chassis", CHASSIS),
    ("chassis", &["ch0", "ch1"]),
    ("nat-addresses", &["router", "0a:00:00:00:00:31 10.0.0.31"]),
    ("arp_proxy", &["10.0.0.0/24", "0a:00:00:00:00:32 fd00::/64"]),
    ("virtual-ip", IPS),
    ("virtual-parents", &["p1,p2", "p3"]),
    ("qos_max_rate", &["1000", "x"]),
    ("qos_burst", &["100"]),
    ("requested-tnl-key", &["5", "6", "70000", "-1"]),
    ("gateway_mtu", &["1400", "0"]),
    ("redirect-type", &["bridged", "overlay"]),
    ("reside-on-redirect-chassis", &["true"]),
    ("mcast_snoop", &["true", "false"]),
    ("mcast_relay", &["true"]),
    ("mcast_flood", &["true"]),
    ("mcast_flood_reports", &["true"]),
    ("mcast_flood_unregistered", &["true"]),
    ("mcast_querier", &["true", "false"]),
    ("mcast_eth_src", MACS),
    ("mcast_ip4_src", IPS),
    ("subnet", &["10.0.0.0/28", "10.1.0.0/24", "bad"]),
    ("exclude_ips", &["10.0.0.2", "10.0.0.2..10.0.0.5", "bad"]),
    ("ipv6_prefix", &["fd00::", "fd01::/64"]),
    ("mac_only", &["true"]),
    ("vlan-passthru", &["true"]),
    ("enable-stateless-acl-with-lb", &["true"]),
    ("interconn-ts", &["ts0"]),
    ("lb_force_snat_ip", &["router_ip", "10.0.0.1", "fd00::1 10.1.0.1"]),
    ("dnat_force_snat_ip", &["10.0.0.1"]),
    ("use_common_zone", &["true"]),
    ("ct-commit-all", &["true"]),
    ("dynamic_neigh_routers", &["true"]),
    ("always_learn_from_arp_request", &["false"]),
    ("dynamic-routing", &["true"]),
    ("dynamic-routing-redistribute", &["connected,static", "nat,lb", "connected-as-host"]),
    ("dynamic-routing-vni", &["10"]),
    ("snat-ct-zone", &["7"]),
    ("mac_binding_age_threshold", &["5", "10.0.0.0/24:3;0"]),
    ("fdb_age_threshold", &["5"]),
    ("reject", &["true"]),
    ("event", &["true"]),
    ("skip_snat", &["true"]),
    ("template", &["true"]),
    ("distributed", &["true"]),
    ("affinity_timeout", &["10"]),
    ("use_stateless_nat", &["true"]),
    ("hairpin_snat_ip", &["10.0.9.9", "fd00::99"]),
    ("neighbor_responder", &["all", "none", "reachable"]),
    ("address-family", &["ipv4", "ipv6"]),
    ("install_ls_lb_from_router", &["true"]),
    ("controller_event", &["true"]),
    ("use_logical_dp_groups", &["true"]),
    ("default_acl_drop", &["true"]),
    ("debug_drop_collector_set", &["1"]),
    ("debug_drop_domain_id", &["2"]),
    ("ignore_lsp_down", &["false", "true"]),
    ("ignore_chassis_features", &["true"]),
    ("vxlan_mode", &["false"]),
    ("stateless", &["true"]),
    ("apply-after-lb", &["true"]),
    ("persist-established", &["true"]),
    ("log-related", &["true"]),
    ("ecmp_symmetric_reply", &["true"]),
    ("route_table", &["t1", "t2"]),
    ("prefix_delegation", &["true"]),
    ("prefix", &["true"]),
    ("address_mode", &["slaac", "dhcpv6_stateful"]),
    ("send_periodic", &["true"]),
    ("server_id", &["10.0.0.1", "0a:00:00:00:00:01"]),
    ("server_mac", MACS),
    ("lease_time", &["3600"]),
    ("router", &["10.0.0.1"]),
    ("dhcp_relay_port", &["r0"]),
    ("ovn-owned", &["true"]),
    ("is-remote", &["true"]),
    ("ct-commit-nat-v2", &["true"]),
    ("ct-commit-to-zone", &["true"]),
    ("ct-next-zone", &["true"]),
    ("ct-state-save", &["true"]),
    ("svc_monitor_ip", &["192.0.2.2"]),
    ("svc_monitor_ip_dst", &["192.0.2.3"]),
    ("chassis-name", CHASSIS),
    ("rate", &["100"]),
    ("dscp", &["10"]),
    ("mark", &["2"]),
    ("src_ip", IPS),
];

/// What strings of a column are picked from.
fn words(table: &str, column: &str) -> &'static [&'static str] {
    match (table, column) {
        ("Logical_Switch_Port", "name") => &PORTS[..9],
        ("Logical_Router_Port", "name") => &ROUTER_PORTS[..5],
        ("Logical_Switch", "name") => &["ls0", "ls1", "ls2"],
        ("Logical_Router", "name") => &["lr0", "lr1", "lr2"],
        ("Logical_Switch_Port", "type") => &[
            "",
            "router",
            "localnet",
            "vtep",
            "external",
            "virtual",
            "remote",
            "localport",
            "l2gateway",
            "switch",
            "odd",
        ],
        ("Logical_Switch_Port", "addresses") => ADDRESSES,
        ("Logical_Switch_Port", "dynamic_addresses") => &ADDRESSES[5..7],
        ("Logical_Switch_Port", "port_security") => &ADDRESSES[5..],
        ("Logical_Switch_Port", "parent_name") => &["p1", "p2"],
        ("Logical_Switch_Port", "peer") => &["p3", "p5"],
        ("Logical_Router_Port", "peer") => &["r2", "r3"],
        ("Port_Group", "name") => &["pg0", "pg1"],
        ("Address_Set", "name") => &["as0", "as1"],
        ("Address_Set", "addresses") => IPS,
        ("Meter", "name") | (_, "meter" | "meters") => &["m0", "m1"],
        ("Load_Balancer", "name") => &["lb0", "lb1", "lb2"],
        ("Load_Balancer", "ip_port_mappings") => &["p1:10.0.0.1", "p2:10.0.0.1", "p1", "bad:"],
        ("Load_Balancer_Health_Check", "vip") => VIPS,
        ("Forwarding_Group", "child_port") => &PORTS[1..4],
        ("Mirror", "sink") => &["p3", "10.0.0.11"],
        ("Chassis" | "Chassis_Private", "name") | (_, "chassis_name" | "chassis") => CHASSIS,
        ("HA_Chassis_Group", "name") => &["ha0", "ha1"],
        (_, "output_port") => &ROUTER_PORTS[..4],
        ("MAC_Binding" | "Static_MAC_Binding" | "BFD", "logical_port") => ROUTER_PORTS,
        (_, "logical_port" | "logical_input_port") => PORTS,
        ("IGMP_Group", "address") => &["224.1.2.3", "ff0e::1", "mrouters", "bad"],
        (_, "match") => MATCHES,
        (_, "route_table") => &["", "t1"],
        (_, "policy") => &["dst-ip", "src-ip"],
        (_, "chain" | "jump_chain") => &["", "a", "b"],
        (_, "networks" | "ip_prefix" | "cidr" | "ipv6_prefix" | "ipv4_prefix") => NETWORKS,
        (_, "nexthop") => &IPS[..6],
        (_, "mac" | "external_mac" | "eth_src" | "vmac" | "mac_prefix") => MACS,
        (_, "external_port_range") => &["1-30000", "", "x"],
        (_, "records") => &["10.0.0.11", "host.example"],
        (_, "protocols") => &["OpenFlow13"],
        (_, "virtual_parent") => &PORTS[1..4],
        (_, "variables") => &["10.0.9.7", "80"],
        (_, c) if c.contains("ip") || c == "address" || c == "nexthops" || c == "dst_ip" || c == "servers" => IPS,
        _ => &["a", "b", "true", "10"],
    }
}

fn atom(servers: &Servers, table: &str, column: &str, base: &BaseType, nb: bool, r: &mut Random) -> Option<Value> {
    if let Some((target, _)) = &base.reference {
        let rows = if nb { servers.nb.rows(target) } else { servers.sb.rows(target) };
        return r.pick(&rows).map(|u| json!(["uuid", u.to_string()]));
    }
    if let Some(all) = &base.enumeration {
        return r.pick(all).map(ovsdb_rs::Atom::to_json);
    }
    Some(match base.ty {
        AtomType::Integer => {
            let (low, high) = base.integer;
            let wish = [0, 1, 2, 3, 10, 100, 1000][r.below(7)];
            json!(wish.clamp(low.unwrap_or(wish), high.unwrap_or(i64::MAX)))
        }
        AtomType::Real => json!(1.5),
        AtomType::Boolean => json!(r.one_in(2)),
        AtomType::String => json!(r.pick(words(table, column)).copied().unwrap_or("a")),
        AtomType::Uuid => json!(["uuid", ovn_schema::Uuid::from_u128(r.below(9) as u128).to_string()]),
    })
}

fn pair(column: &str, r: &mut Random) -> (&'static str, &'static str) {
    match column {
        "vips" => (r.pick(VIPS).unwrap(), r.pick(BACKENDS).unwrap()),
        "ip_port_mappings" => (r.pick(IPS).unwrap(), r.pick(words("Load_Balancer", column)).unwrap()),
        "meters" => (r.pick(&["arp", "event-elb", "reject", "svc-monitor"]).unwrap(), r.pick(&["m0", "m1"]).unwrap()),
        "records" => (r.pick(&["a.example", "B.example"]).unwrap(), r.pick(IPS).unwrap()),
        "variables" => (r.pick(&["vip", "backends"]).unwrap(), r.pick(&["10.0.9.7", "10.0.0.11:80"]).unwrap()),
        _ => {
            let (key, values) = r.pick(OPTIONS).unwrap();
            (key, r.pick(values).unwrap())
        }
    }
}

fn value(servers: &Servers, table: &str, column: &str, ty: &ColumnType, nb: bool, r: &mut Random) -> Option<Value> {
    if let Some(of) = &ty.value {
        let mut map = Map::new();
        for _ in 0..r.below(3) {
            let (k, v) = pair(column, r);
            if of.ty == AtomType::String {
                map.insert(k.into(), json!(v));
            }
        }
        return Some(json!(["map", map.into_iter().map(|(k, v)| json!([k, v])).collect::<Vec<_>>()]));
    }
    let least = ty.min as usize;
    let n = if ty.max == 1 { least.max(usize::from(!r.one_in(3))) } else { least + r.below(3) };
    let mut all: Vec<Value> = Vec::new();
    for _ in 0..n {
        let v = atom(servers, table, column, &ty.key, nb, r);
        all.extend(v.filter(|v| !all.contains(v)));
    }
    if all.len() < least {
        return None;
    }
    Some(if all.len() == 1 { all.remove(0) } else { json!(["set", all]) })
}

/// A row of a table; none where it must refer to what is not there.
fn row(
    servers: &Servers,
    schema: &DatabaseSchema,
    table: &str,
    nb: bool,
    r: &mut Random,
) -> Option<Map<String, Value>> {
    let mut row = Map::new();
    for column in &schema.table(table).ok()?.columns {
        let must = column.ty.min > 0 || ["name", "options", "vips", "addresses"].contains(&&*column.name);
        if must || r.one_in(3) {
            match value(servers, table, &column.name, &column.ty, nb, r) {
                Some(v) => row.insert(column.name.clone(), v),
                None if column.ty.min > 0 && column.ty.key.reference.is_some() => return None,
                None => None,
            };
        }
    }
    Some(row)
}

/// The columns that keep rows of a table alive.
fn parents(schema: &DatabaseSchema, table: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (name, ts) in &schema.tables {
        for c in &ts.columns {
            let bases = std::iter::once(&c.ty.key).chain(&c.ty.value);
            if bases.filter_map(|b| b.reference.as_ref()).any(|(t, _)| t == table) {
                all.push((name.clone(), c.name.clone()));
            }
        }
    }
    all
}

fn is(uuid: impl ToString) -> Value {
    json!([["_uuid", "==", ["uuid", uuid.to_string()]]])
}

/// Changes one of the databases as somebody might; what the server refuses changes nothing. Tells what it was.
pub fn step(servers: &mut Servers, r: &mut Random) -> String {
    let nb = !r.one_in(3);
    let (tables, schema): (Vec<&str>, _) = if nb {
        (
            nb::TableId::ALL.iter().filter(|t| !NB_OTHERS.contains(t)).map(|t| t.name()).collect(),
            servers.nb.schema.clone(),
        )
    } else {
        (BY_CHASSIS.iter().map(|t| t.name()).collect(), servers.sb.schema.clone())
    };
    let table = *r.pick(&tables).unwrap();
    let rows = if nb { servers.nb.rows(table) } else { servers.sb.rows(table) };
    let one = r.pick(&rows).copied();
    let may_insert =
        nb || !["Port_Binding", "BFD", "SB_Global", "Service_Monitor", "Static_MAC_Binding"].contains(&table);
    let mut ops = Vec::new();
    match (r.below(5), one) {
        (0 | 1, _) | (_, None) if may_insert => ops = insert(servers, &schema, table, nb, r),
        (2, Some(u)) if may_insert && table != "NB_Global" => {
            for (parent, column) in parents(&schema, table) {
                let mutation = json!([[column, "delete", ["set", [["uuid", u.to_string()]]]]]);
                ops.push(json!({"op": "mutate", "table": parent, "where": [], "mutations": mutation}));
            }
            ops.push(json!({"op": "delete", "table": table, "where": is(u)}));
            ops.retain(|o| o["op"] != "mutate" || settable(&schema, o));
        }
        (_, Some(u)) => {
            let columns: Vec<_> = schema.table(table).unwrap().columns.iter().filter(|c| c.mutable).collect();
            let columns: Vec<_> = columns.into_iter().filter(|c| nb || by_others(table, &c.name)).collect();
            if let Some(column) = r.pick(&columns)
                && let Some(v) = value(servers, table, &column.name, &column.ty, nb, r)
            {
                let mut set = Map::new();
                set.insert(column.name.clone(), v);
                ops.push(json!({"op": "update", "table": table, "where": is(u), "row": set}));
            }
        }
        _ => {}
    }
    let told = Value::Array(ops.clone()).to_string();
    let done = if nb { servers.nb.transact(&ops) } else { servers.sb.transact(&ops) };
    if done.is_ok() && !nb && !ops.is_empty() {
        servers.touched.insert(table.to_string());
    }
    if done.is_ok() { told } else { "refused".into() }
}

/// Whether a mutation is of a set; from maps and single values nothing can be taken that way.
fn settable(schema: &DatabaseSchema, op: &Value) -> bool {
    let (table, column) = (op["table"].as_str().unwrap(), op["mutations"][0][0].as_str().unwrap());
    let ty = &schema.table(table).unwrap().column(column).unwrap().ty;
    ty.value.is_none() && (ty.max > 1 || ty.min == 0)
}

/// Whether others than the compiler write a column.
fn by_others(table: &str, column: &str) -> bool {
    match table {
        "Port_Binding" => ["chassis", "up", "virtual_parent", "encap", "additional_chassis"].contains(&column),
        "BFD" | "Service_Monitor" => column == "status",
        "SB_Global" => column == "external_ids",
        "Static_MAC_Binding" => false,
        _ => true,
    }
}

fn insert(servers: &Servers, schema: &DatabaseSchema, table: &str, nb: bool, r: &mut Random) -> Vec<Value> {
    if table == "NB_Global" {
        return Vec::new();
    }
    let Some(row) = row(servers, schema, table, nb, r) else { return Vec::new() };
    let mut ops = vec![json!({"op": "insert", "table": table, "uuid-name": "new", "row": row})];
    if schema.table(table).is_ok_and(|t| t.is_root) {
        return ops;
    }
    let parents = parents(schema, table);
    let Some((parent, column)) = r.pick(&parents) else { return ops };
    let rows = if nb { servers.nb.rows(parent) } else { servers.sb.rows(parent) };
    let ty = &schema.table(parent).unwrap().column(column).unwrap().ty;
    match r.pick(&rows) {
        Some(u) if ty.value.is_none() && ty.max > 1 => {
            let mutation = json!([[column, "insert", ["set", [["named-uuid", "new"]]]]]);
            ops.push(json!({"op": "mutate", "table": parent, "where": is(u), "mutations": mutation}));
        }
        Some(u) => {
            let mut set = Map::new();
            set.insert(column.clone(), json!(["named-uuid", "new"]));
            ops.push(json!({"op": "update", "table": parent, "where": is(u), "row": set}));
        }
        None => {
            // The one that keeps it has to be made too.
            let Some(mut owner) = self::row(servers, schema, parent, nb, r) else { return Vec::new() };
            owner.insert(column.clone(), json!(["named-uuid", "new"]));
            ops.push(json!({"op": "insert", "table": parent, "row": owner}));
        }
    }
    ops
}
