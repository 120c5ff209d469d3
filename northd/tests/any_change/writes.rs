//! Which operations, and how many, a change leads to.

use crate::{Servers, compare, settle};
use northd::{Changes, Compiler, Op};
use ovn_schema::{Uuid, nb, sb};
use serde_json::json;

fn compiler(servers: &mut Servers) -> Compiler {
    let (nb, sb) = servers.databases();
    let mut compiler = Compiler::new(nb, sb);
    settle(&mut compiler, servers, "start");
    compiler
}

/// Carries out a northbound transaction and what it leads to; the first changes that were written.
fn after(servers: &mut Servers, compiler: &mut Compiler, ops: &[serde_json::Value]) -> Changes {
    servers.nb.transact(ops).unwrap();
    servers.tell(compiler);
    let changes = compiler.run();
    servers.write(compiler, &changes, "change");
    settle(compiler, servers, "change");
    compare(compiler, "change");
    changes
}

fn count(changes: &Changes, wanted: sb::TableId, what: fn(&Op<sb::TableId>) -> bool) -> usize {
    let of = |op: &&Op<sb::TableId>| match op {
        Op::Insert(t, ..) | Op::Update(t, ..) | Op::Delete(t, _) => *t == wanted,
    };
    changes.sb.iter().filter(of).filter(|op| what(op)).count()
}

fn is_update(op: &Op<sb::TableId>) -> bool {
    matches!(op, Op::Update(..))
}

fn is_insert(op: &Op<sb::TableId>) -> bool {
    matches!(op, Op::Insert(..))
}

fn groups(servers: &Servers) -> Vec<Uuid> {
    servers.sb.rows("Logical_DP_Group")
}

/// The flows that all switches have name one group; a switch more or less changes that row and not the flows.
#[test]
fn a_switch_more_changes_a_group_and_no_flow() {
    let mut servers = Servers::new();
    let more = |n: usize| json!({"op": "insert", "table": "Logical_Switch", "row": {"name": format!("more{n}")}});
    // Without ports they have the same flows; the group of these flows is another one than that of flows which all have.
    servers.nb.transact(&[more(0), more(1)]).unwrap();
    let mut compiler = compiler(&mut servers);
    let before = groups(&servers);
    for n in 2..5 {
        let changes = after(&mut servers, &mut compiler, &[more(n)]);
        assert_eq!(count(&changes, sb::TableId::LogicalFlow, is_update), 0, "{:#?}", changes.sb);
        assert_eq!(count(&changes, sb::TableId::LogicalDpGroup, is_insert), 0);
        assert!(count(&changes, sb::TableId::LogicalDpGroup, is_update) > 0);
        assert_eq!(groups(&servers), before);
    }
    let gone = json!({"op": "delete", "table": "Logical_Switch", "where": [["name", "==", "more3"]]});
    let changes = after(&mut servers, &mut compiler, &[gone]);
    assert_eq!(count(&changes, sb::TableId::LogicalFlow, is_update), 0);
    assert_eq!(groups(&servers), before);
    // What a group is for stays right where only some of its flows get another switch.
    let acl = json!({"op": "insert", "table": "ACL", "uuid-name": "a", "row": {"direction": "to-lport", "priority": 1, "match": "ip4", "action": "allow-related"}});
    let with = json!({"op": "update", "table": "Logical_Switch", "where": [["name", "==", "more1"]], "row": {"acls": ["named-uuid", "a"]}});
    after(&mut servers, &mut compiler, &[acl, with]);
}

/// A copy of a northbound row has its UUID, which external programs use to find one from the other.
#[test]
fn copies_have_the_northbound_rows_uuid() {
    let mut servers = Servers::new();
    let mut compiler = compiler(&mut servers);
    let mac = json!({"op": "insert", "table": "Static_MAC_Binding", "row": {"logical_port": "r0", "ip": "10.0.0.77", "mac": "0a:00:00:00:00:77"}});
    let vars = json!({"op": "insert", "table": "Chassis_Template_Var", "row": {"chassis": "ch", "variables": ["map", [["a", "b"]]]}});
    after(&mut servers, &mut compiler, &[mac, vars]);
    for table in [nb::TableId::StaticMacBinding, nb::TableId::ChassisTemplateVar] {
        assert_eq!(servers.nb.rows(table.name()).len(), 1);
        assert_eq!(servers.nb.rows(table.name()), servers.sb.rows(table.name()), "{table:?}");
    }
    // The same row where what it says changes.
    let moved = json!({"op": "update", "table": "Static_MAC_Binding", "where": [], "row": {"logical_port": "r1", "ip": "10.0.0.78"}});
    let changes = after(&mut servers, &mut compiler, &[moved]);
    assert_eq!(count(&changes, sb::TableId::StaticMacBinding, is_update), 1);
    assert_eq!(servers.nb.rows("Static_MAC_Binding"), servers.sb.rows("Static_MAC_Binding"));
}

/// What somebody else puts beside a role of northd's goes; roles of other names stay.
#[test]
fn a_second_role_of_the_name_goes() {
    let mut servers = Servers::new();
    let mut compiler = compiler(&mut servers);
    let before = servers.sb.rows("RBAC_Role");
    let role = |name: &str| json!({"op": "insert", "table": "RBAC_Role", "row": {"name": name}});
    servers.sb.transact(&[role("ovn-controller"), role("custom")]).unwrap();
    servers.tell(&mut compiler);
    assert!(compiler.has_changes());
    settle(&mut compiler, &mut servers, "second role");
    assert_eq!(servers.sb.rows("RBAC_Role").len(), before.len() + 1);
    assert!(servers.sb.count("RBAC_Permission") > 0);
}

/// Ports keep their keys where a VXLAN chassis comes, which carries fewer; only new ones have to do without.
#[test]
fn ports_keep_their_keys_where_vxlan_comes() {
    let mut servers = Servers::new();
    let ports: Vec<_> = (0..2050).map(|n| json!({"op": "insert", "table": "Logical_Switch_Port", "uuid-name": format!("q{n}"), "row": {"name": format!("q{n}")}})).collect();
    let names: Vec<_> = (0..2050).map(|n| json!(["named-uuid", format!("q{n}")])).collect();
    let big = json!({"op": "insert", "table": "Logical_Switch", "row": {"name": "big", "ports": ["set", names]}});
    servers.nb.transact(&[ports, vec![big]].concat()).unwrap();
    let mut compiler = compiler(&mut servers);
    let bindings = servers.sb.rows("Port_Binding");
    let encap = json!({"op": "insert", "table": "Encap", "uuid-name": "e", "row": {"chassis_name": "hv", "ip": "192.0.2.1", "type": "vxlan"}});
    let chassis = json!({"op": "insert", "table": "Chassis", "row": {"name": "hv", "encaps": ["named-uuid", "e"]}});
    servers.sb.transact(&[encap, chassis]).unwrap();
    servers.tell(&mut compiler);
    settle(&mut compiler, &mut servers, "vxlan");
    assert_eq!(servers.sb.rows("Port_Binding"), bindings);
    let late = json!({"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "late", "row": {"name": "late"}});
    let there = json!({"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", "big"]], "mutations": [["ports", "insert", ["named-uuid", "late"]]]});
    let changes = after(&mut servers, &mut compiler, &[late, there]);
    assert!(changes.diagnostics.iter().any(|d| d.contains("port late: all port tunnel ids exhausted")));
    assert_eq!(servers.sb.rows("Port_Binding"), bindings);
}

/// What is wrong is said again where the row changes and is still wrong, and not where it does not.
#[test]
fn what_is_wrong_is_said_when_it_changes() {
    let mut servers = Servers::new();
    let mut compiler = compiler(&mut servers);
    let check =
        json!({"op": "insert", "table": "Load_Balancer_Health_Check", "uuid-name": "h", "row": {"vip": "1.1.1.1:80"}});
    let lb = json!({"op": "insert", "table": "Load_Balancer", "uuid-name": "l", "row": {"name": "lb", "vips": ["map", [["1.1.1.1:80", "10.0.0.1:80"]]],
        "ip_port_mappings": ["map", [["10.0.0.1", "p1:"]]], "health_check": ["named-uuid", "h"]}});
    let there = json!({"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", "ls0"]], "mutations": [["load_balancer", "insert", ["named-uuid", "l"]]]});
    let said = |c: &Changes| {
        c.diagnostics.iter().filter(|d| d.contains("Invalid svc mon src IP : bad IP address \"\"")).count()
    };
    assert_eq!(said(&after(&mut servers, &mut compiler, &[check, lb, there])), 1);
    let named =
        json!({"op": "update", "table": "Load_Balancer", "where": [], "row": {"external_ids": ["map", [["a", "b"]]]}});
    assert_eq!(said(&after(&mut servers, &mut compiler, &[named])), 0);
    let another = json!({"op": "mutate", "table": "Load_Balancer", "where": [], "mutations": [["ip_port_mappings", "insert", ["map", [["10.0.0.9", "p2:10.0.0.2"]]]]]});
    assert_eq!(said(&after(&mut servers, &mut compiler, &[another])), 1);
    let mended = json!({"op": "update", "table": "Load_Balancer", "where": [], "row": {"ip_port_mappings": ["map", [["10.0.0.1", "p1:10.0.0.9"]]]}});
    let changes = after(&mut servers, &mut compiler, &[mended]);
    assert_eq!((said(&changes), changes.mended.len()), (0, 1));
}
