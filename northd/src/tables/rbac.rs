//! What a controller may change in the southbound database (ovn-architecture(7), "Role-Based Access Controls").

use crate::context::{Ctx, flag};
use crate::model::{Cell, Columns, RowKey};
use ovn_schema::{Set, Str, sb};

/// Table, columns that authorize, whether rows may be inserted and deleted, columns that may be updated.
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

/// Permissions are told apart by all of their columns: a row that differs in one is not northd's.
fn permission_name(p: &sb::RbacPermission) -> String {
    let list = |all: &Set<Str>| all.iter().map(|a| &**a).collect::<Vec<_>>().join(" ");
    format!("{} {} {} {}", p.table, list(&p.authorization), p.insert_delete, list(&p.update))
}

fn row((table, authorization, insert_delete, update): &Permission) -> sb::RbacPermission {
    sb::RbacPermission {
        table: Str::from(*table),
        authorization: Set::from([Str::from(*authorization)]),
        insert_delete: *insert_delete,
        update: update.iter().map(|c| Str::from(*c)).collect(),
    }
}

/// The name of a permission that is one of northd's.
pub fn own_permission(row_there: &sb::RbacPermission) -> Option<String> {
    let name = permission_name(row_there);
    PERMISSIONS.iter().chain(VTEP_PERMISSIONS).any(|p| permission_name(&row(p)) == name).then_some(name)
}

/// Whether a role is one of northd's.
pub fn is_own_role(name: &str) -> bool {
    matches!(name, "ovn-controller" | "vtep-controller")
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
    for permission in permissions {
        let row = row(permission);
        let key = RowKey::new(sb::TableId::RbacPermission, permission_name(&row));
        let columns = Columns::new()
            .data("table", &row.table)
            .data("authorization", &row.authorization)
            .data("insert_delete", &row.insert_delete)
            .data("update", &row.update);
        ctx.row(key.clone(), columns);
        role.push((row.table, key));
    }
    let columns = Columns::new().data("name", &Str::from(name)).cell("permissions", Cell::RefMap(role));
    ctx.row(RowKey::new(sb::TableId::RbacRole, name), columns);
}
