//! What a controller may change in the southbound database (ovn-architecture(7), "Role-Based Access Controls").

use crate::context::{Ctx, flag};
use crate::model::{Cell, Columns, RowKey};
use ovn_schema::{Set, Str, sb};

/// (table, authorized by, may insert and delete, may update).
pub type Permission = (&'static str, &'static str, bool, &'static [&'static str]);

const PERMISSIONS: &[Permission] = &[
    ("BFD", "chassis_name", false, &["status"]),
    (
        "Chassis",
        "name",
        true,
        &["encaps", "external_ids", "nb_cfg", "other_config", "transport_zones", "vtep_logical_switches"],
    ),
    ("Chassis_Private", "name", true, &["chassis", "external_ids", "nb_cfg", "nb_cfg_timestamp"]),
    ("Controller_Event", "", true, &["chassis", "event_info", "event_type", "seq_num"]),
    ("Encap", "chassis_name", true, &["ip", "options", "type"]),
    ("FDB", "", true, &["dp_key", "mac", "port_key", "timestamp"]),
    ("IGMP_Group", "chassis_name", true, &["address", "chassis", "datapath", "ports", "protocol"]),
    ("Learned_Route", "", true, &["datapath", "external_ids", "ip_prefix", "logical_port", "nexthop"]),
    ("MAC_Binding", "", true, &["datapath", "ip", "logical_port", "mac", "timestamp"]),
    (
        "Port_Binding",
        "",
        false,
        &["additional_chassis", "additional_encap", "chassis", "encap", "options", "up", "virtual_parent"],
    ),
    ("Service_Monitor", "chassis_name", false, &["status"]),
];

/// What a controller of top-of-rack switches needs. It stands for many chassis, so their names do not tell whose they
/// are: it leaves its certificate's common name in its rows.
pub const VTEP_PERMISSIONS: &[Permission] = &[
    (
        "Chassis",
        "external_ids:vtep-controller",
        true,
        &["encaps", "external_ids", "other_config", "vtep_logical_switches"],
    ),
    ("Encap", "options:vtep-controller", true, &["ip", "options", "type"]),
    ("FDB", "", true, &["dp_key", "mac", "port_key", "timestamp"]),
    ("MAC_Binding", "", true, &["datapath", "ip", "logical_port", "mac", "timestamp"]),
    ("Port_Binding", "", false, &["chassis", "up"]),
];

/// What tells one permission from another.
pub fn permission_name(table: &str, authorization: &Set<Str>) -> String {
    format!("{table} {}", authorization.iter().map(|a| &**a).collect::<Vec<_>>().join(" "))
}

/// The roles and their permissions. That of top-of-rack switches is ours, so there is one only where it is asked for
/// (`NB_Global.options:vtep-rbac`).
pub fn run(ctx: &mut Ctx<'_, '_>) {
    publish(ctx, "ovn-controller", PERMISSIONS);
    if flag(&ctx.global().options, "vtep-rbac") {
        publish(ctx, "vtep-controller", VTEP_PERMISSIONS);
    }
}

fn publish(ctx: &mut Ctx<'_, '_>, name: &str, permissions: &[Permission]) {
    let mut role = Vec::new();
    for (table, authorization, insert_delete, update) in permissions {
        let authorization = Set::from([Str::from(*authorization)]);
        let key = RowKey::new(sb::TableId::RbacPermission, permission_name(table, &authorization));
        let update: Set<Str> = update.iter().map(|c| Str::from(*c)).collect();
        let columns = Columns::new()
            .data("table", &Str::from(*table))
            .data("authorization", &authorization)
            .data("insert_delete", insert_delete)
            .data("update", &update);
        ctx.row(key.clone(), columns);
        role.push((Str::from(*table), key));
    }
    let columns = Columns::new().data("name", &Str::from(name)).cell("permissions", Cell::RefMap(role));
    ctx.row(RowKey::new(sb::TableId::RbacRole, name), columns);
}
