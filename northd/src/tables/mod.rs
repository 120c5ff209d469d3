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
use crate::model::CopyKind;

/// Derives the rows of one southbound table.
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
