//! Southbound tables other than logical flows.

pub mod acl_id;
pub mod advertise;
pub mod bfd;
pub mod binding;
pub mod dhcp;
pub mod global;
pub mod ha;
pub mod health;
pub mod igmp;
pub mod load_balancer;
pub mod multicast;
pub mod names;
pub mod port_group;
pub mod rbac;
pub mod router_advertisement;
pub mod services;
pub mod stale;

use crate::context::Ctx;

/// A southbound table that is made in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CopyKind {
    /// `ACL_ID`.
    AclIds,
    /// `BFD`.
    Bfd,
    /// `Chassis_Template_Var`.
    Templates,
    /// `DHCP_Options`, `DHCPv6_Options`: the options that controllers understand.
    Dhcp,
    /// `DNS`.
    Dns,
    /// `Meter` with `Meter_Band`.
    Meters,
    /// `Mirror`.
    Mirrors,
    /// `RBAC_Role`, `RBAC_Permission`.
    Rbac,
    /// `SB_Global`.
    Global,
}

impl CopyKind {
    /// All of them.
    pub const ALL: &'static [CopyKind] = &[
        CopyKind::AclIds,
        CopyKind::Bfd,
        CopyKind::Templates,
        CopyKind::Dhcp,
        CopyKind::Dns,
        CopyKind::Meters,
        CopyKind::Mirrors,
        CopyKind::Rbac,
        CopyKind::Global,
    ];
}

/// Makes a table.
pub fn copy(ctx: &mut Ctx<'_, '_>, kind: CopyKind) {
    match kind {
        CopyKind::AclIds => acl_id::run(ctx),
        CopyKind::Bfd => bfd::run(ctx),
        CopyKind::Templates => names::templates(ctx),
        CopyKind::Dhcp => dhcp::run(ctx),
        CopyKind::Dns => services::dns(ctx),
        CopyKind::Meters => services::meters(ctx),
        CopyKind::Mirrors => services::mirrors(ctx),
        CopyKind::Rbac => rbac::run(ctx),
        CopyKind::Global => global::run(ctx),
    }
}

/// The meter of a control plane protection entry, where the meter exists.
pub fn copp(
    entries: &ovn_schema::Map<ovn_schema::Str, ovn_schema::Str>,
    protocol: &str,
    global: &crate::facts::global::Global,
) -> crate::model::FlowExtra {
    let meter = entries.get(protocol).filter(|m| global.meters.contains(*m)).cloned();
    crate::model::FlowExtra { meter, ..crate::model::FlowExtra::default() }
}
