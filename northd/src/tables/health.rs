//! Health checks of load balancers' backends.

use crate::context::Ctx;
use crate::facts::lb::{Lb, Vip};
use ovn_schema::sb;
use std::net::IpAddr;

/// The backends of a virtual address that are not known to be out of service.
pub fn backends(ctx: &mut Ctx<'_, '_>, lb: &Lb, vip: &Vip) -> Vec<(IpAddr, u16)> {
    if vip.health_check.is_none() {
        return vip.backends.clone();
    }
    let mut down = Vec::new();
    for u in ctx.sb_table::<sb::ServiceMonitor>() {
        let Some(row) = ctx.sb::<sb::ServiceMonitor>(u) else { continue };
        if matches!(row.status.as_deref(), Some("offline" | "error"))
            && row.protocol.as_deref().unwrap_or("tcp") == &*lb.protocol
            && let Ok(ip) = row.ip.parse::<IpAddr>()
        {
            down.push((ip, row.port));
        }
    }
    vip.backends.iter().copied().filter(|(ip, port)| !down.contains(&(*ip, i64::from(*port)))).collect()
}
