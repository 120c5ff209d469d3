//! `BFD`: sessions of router ports that routes or policies depend on, and what their state means for these.

use crate::context::Ctx;
use crate::facts::Fact;
use crate::input::Read;
use crate::model::{Columns, RouterColumn, RowKey, Unit};
use ovn_schema::{Str, Uuid, nb, sb};
use std::collections::BTreeSet;

/// The first source port (RFC 5881, section 4).
const FIRST_PORT: i64 = 49152;

/// What tells a session apart.
pub fn name(port: &str, address: &str) -> String {
    format!("{port} {address}")
}

/// Derives [`Fact::BfdUse`]: the sessions that a router's routes and policies depend on.
pub fn used(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    // Without sessions, nobody needs to look through thousands of routes.
    if ctx.fact(Unit::BfdPorts).is_none() {
        return;
    }
    let mut all: BTreeSet<Uuid> = BTreeSet::new();
    for r in ctx.rows_of(uuid, RouterColumn::StaticRoutes) {
        let Some(route) = ctx.nb::<nb::LogicalRouterStaticRoute>(*r) else { continue };
        let Some((u, bfd)) = route.bfd.and_then(|b| Some((b, ctx.nb::<nb::Bfd>(b)?))) else { continue };
        if bfd.dst_ip == route.nexthop && crate::facts::route::leads_somewhere(ctx, uuid, route) {
            all.insert(u);
        }
    }
    for p in ctx.rows_of(uuid, RouterColumn::Policies) {
        let Some(policy) = ctx.nb::<nb::LogicalRouterPolicy>(*p).filter(|p| &*p.action == "reroute") else { continue };
        if policy.bfd_sessions.is_empty() {
            continue;
        }
        all.extend(crate::router::policy::sessions(ctx, uuid, policy));
    }
    ctx.derive(Fact::BfdUse(all));
}

/// The rows, and `BFD.status` northbound.
pub fn run(ctx: &mut Ctx<'_, '_>) {
    let mut ports = BTreeSet::new();
    for u in ctx.sb_table::<sb::Bfd>() {
        ports.extend(ctx.sb::<sb::Bfd>(u).map(|r| r.src_port));
    }
    for u in ctx.nb_table::<nb::Bfd>() {
        let Some(row) = ctx.nb::<nb::Bfd>(u) else { continue };
        let Some(lrp) = ctx
            .read(Read::LrpName(row.logical_port.clone()))
            .lrp_by_name(&row.logical_port)
            .and_then(|l| ctx.lrp(l))
            .filter(|l| ctx.router(l.router).is_some())
        else {
            continue;
        };
        let used = matches!(ctx.fact(Unit::RouterBfd(lrp.router)), Some(Fact::BfdUse(all)) if all.contains(&u));
        let present =
            ctx.read(Read::Bfd(row.logical_port.clone(), row.dst_ip.clone())).bfd(&row.logical_port, &row.dst_ip);
        let status = match (used, present.map(|p| &*p.status)) {
            (false, _) => "admin_down",
            (true, None | Some("admin_down")) => "down",
            (true, Some(status)) => status,
        };
        ctx.nb_columns(nb::TableId::Bfd, u, Columns::new().data("status", &Some(Str::from(status))));
        let src_port = match present {
            Some(p) => p.src_port,
            None => match (FIRST_PORT..65535).find(|p| ports.insert(*p)) {
                Some(port) => port,
                None => {
                    ctx.problem(format!("BFD session {} {}: no source port is left", row.logical_port, row.dst_ip));
                    continue;
                }
            },
        };
        let chassis = match present {
            Some(p) => p.chassis_name.clone(),
            None => super::health::place(ctx, &row.logical_port).1.unwrap_or_default(),
        };
        let columns = Columns::new()
            .data("logical_port", &row.logical_port)
            .data("dst_ip", &row.dst_ip)
            .data("disc", &present.map_or_else(|| discriminator(u), |p| p.disc))
            .data("src_port", &src_port)
            .data("status", &Str::from(status))
            .data("chassis_name", &chassis)
            .data("min_tx", &row.min_tx.unwrap_or(1000))
            .data("min_rx", &row.min_rx.unwrap_or(1000))
            .data("detect_mult", &row.detect_mult.unwrap_or(5));
        ctx.row(RowKey::new(sb::TableId::Bfd, name(&row.logical_port, &row.dst_ip)), columns);
    }
}

/// A discriminator for a new session: not 0, and as random as the row's UUID.
fn discriminator(uuid: Uuid) -> i64 {
    let [a, b, c, d, ..] = *uuid.as_bytes();
    i64::from(u32::from_be_bytes([a, b, c, d]).max(1))
}
