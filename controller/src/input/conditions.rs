//! Which southbound rows this chassis replicates: those of its local datapaths and its own, as ovn-controller does, unless
//! `external_ids:ovn-monitor-all` asks for all.
//!
//! What is local follows from rows, and which rows come follows from what is local. Patch and redirect ports of all datapaths are
//! replicated, so that all datapaths which follow from one are known at once.

use crate::input::model::Input;
use ovn_schema::DatapathKey;
use ovsdb_rs::client::Conditions;
use serde_json::{Value, json};

/// The rows that are wanted. Tables that are not named here are replicated as they are.
pub fn wanted(input: &Input, all: bool) -> Conditions {
    type Rule = fn(&Input) -> Option<Vec<Value>>;
    let rules: [(&str, Rule); 13] = [
        ("Port_Binding", |i| Some(ports(i))),
        ("Logical_Flow", |i| Some(flows(i))),
        ("MAC_Binding", |i| Some(of_datapaths(i, "datapath"))),
        ("Multicast_Group", |i| Some(of_datapaths(i, "datapath"))),
        ("FDB", |i| Some(forwarding(i))),
        ("IP_Multicast", |i| Some(of_datapaths(i, "datapath"))),
        ("IGMP_Group", |i| i.local.chassis.map(|_| [mine(i, "chassis"), of_datapaths(i, "datapath")].concat())),
        ("Controller_Event", |i| Some(mine(i, "chassis"))),
        ("Advertised_Route", |i| Some(of_datapaths(i, "datapath"))),
        ("Advertised_MAC_Binding", |i| Some(of_datapaths(i, "datapath"))),
        ("DNS", |i| Some(names(i))),
        // Before this chassis has a row, those of others are looked at so that none is made twice.
        ("Chassis_Private", |i| own(i, "name")),
        ("Chassis_Template_Var", |i| Some(own(i, "chassis").unwrap_or_default())),
    ];
    rules.into_iter().map(|(table, rule)| (table.to_string(), if all { None } else { rule(input) })).collect()
}

fn uuid(id: ovn_schema::Uuid) -> Value {
    json!(["uuid", id.to_string()])
}

fn own(input: &Input, column: &str) -> Option<Vec<Value>> {
    input.local.chassis.map(|_| vec![json!([column, "==", &*input.local.chassis_name])])
}

fn mine(input: &Input, column: &str) -> Vec<Value> {
    input.local.chassis.iter().map(|me| json!([column, "==", uuid(*me)])).collect()
}

fn of_datapaths(input: &Input, column: &str) -> Vec<Value> {
    input.local.datapaths.iter().map(|dp| json!([column, "==", uuid(*dp)])).collect()
}

fn ports(input: &Input) -> Vec<Value> {
    let local = &input.local;
    let kind = |kind: &str| json!(["type", "==", kind]);
    let option = |key: &str, value: &str| json!(["options", "includes", ["map", [[key, value]]]]);
    let mut out = vec![kind("patch"), kind("chassisredirect"), kind("external")];
    match local.chassis {
        Some(me) => {
            // What is this chassis' but should not be is released.
            for column in ["chassis", "requested_chassis"] {
                out.push(json!([column, "==", uuid(me)]));
            }
            for column in ["additional_chassis", "requested_additional_chassis"] {
                out.push(json!([column, "includes", ["set", [uuid(me)]]]));
            }
            for key in ["l2gateway-chassis", "l3gateway-chassis"] {
                out.push(option(key, &local.chassis_name));
            }
            out.push(option("ipv6_ra_send_periodic", "true"));
        }
        // A gateway's zones and flows are kept until it is known which of these it has.
        None => out.extend(["l2gateway", "l3gateway"].map(kind)),
    }
    // Those of local datapaths come with these.
    out.extend(input.strangers().iter().map(|name| json!(["logical_port", "==", &**name])));
    // Containers and exits of mirrors are few.
    out.push(json!(["parent_port", "!=", ["set", []]]));
    out.push(kind("mirror"));
    out.extend(of_datapaths(input, "datapath"));
    out
}

/// A group of datapaths is replaced by another when it changes, and the flows with it: all flows of groups are replicated, so that none
/// is missed meanwhile.
fn flows(input: &Input) -> Vec<Value> {
    let mut out = of_datapaths(input, "logical_datapath");
    if !out.is_empty() {
        out.push(json!(["logical_dp_group", "!=", ["set", []]]));
    }
    out
}

fn keys(input: &Input) -> impl Iterator<Item = DatapathKey> {
    input.local.datapaths.iter().filter_map(|dp| input.sb.datapath_binding.get(dp)).map(|d| d.key())
}

fn forwarding(input: &Input) -> Vec<Value> {
    keys(input).map(|key| json!(["dp_key", "==", key.0])).collect()
}

fn names(input: &Input) -> Vec<Value> {
    let one = |dp: &ovn_schema::Uuid| json!(["datapaths", "includes", ["set", [uuid(*dp)]]]);
    input.local.datapaths.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use ovn_schema::{Uuid, sb};

    #[test]
    fn rows_of_local_datapaths_are_wanted() {
        let mut input = Input::new(sb::Database::default(), Local::default());
        let text = |c: &Conditions, table: &str| serde_json::to_string(&c[table]).unwrap();
        let nothing = wanted(&input, false);
        assert_eq!(text(&nothing, "Logical_Flow"), "[]", "no flows before a datapath is local");
        assert_eq!(text(&nothing, "Chassis_Private"), "null", "all while there is no own row");
        input.local.chassis = Some(Uuid::from_u128(1));
        input.local.chassis_name = "hv1".into();
        input.local.datapaths.insert(Uuid::from_u128(7));
        let some = wanted(&input, false);
        for table in ["Logical_Flow", "MAC_Binding", "Multicast_Group", "Port_Binding", "DNS"] {
            assert!(text(&some, table).contains(&Uuid::from_u128(7).to_string()), "{table}");
        }
        assert_eq!(text(&some, "Chassis_Private"), r#"[["name","==","hv1"]]"#);
        assert!(wanted(&input, true).values().all(Option::is_none), "ovn-monitor-all");
    }
}
