//! BFD sessions, as far as routes and policies depend on them.

use super::Fact;
use crate::context::Ctx;
use crate::input::Read;
use crate::model::Unit;
use ovn_schema::{Str, nb};
use std::collections::BTreeSet;

/// Whether traffic may go to where a session leads: it is up or coming up.
pub fn usable(ctx: &mut Ctx<'_, '_>, row: &nb::Bfd) -> bool {
    let read = Read::Bfd(row.logical_port.clone(), row.dst_ip.clone());
    let session = ctx.read(read).bfd(&row.logical_port, &row.dst_ip);
    session.is_some_and(|s| !matches!(&*s.status, "down" | "admin_down"))
}

/// Says of each router port that has sessions that it does, so that a route need not look through all of them, and whether
/// there are any.
pub fn ports(ctx: &mut Ctx<'_, '_>) {
    let rows = ctx.nb_table::<nb::Bfd>();
    let ports: BTreeSet<Str> =
        rows.into_iter().filter_map(|b| Some(ctx.nb::<nb::Bfd>(b)?.logical_port.clone())).collect();
    if !ports.is_empty() {
        ctx.derive(Fact::BfdPort);
    }
    for port in ports {
        ctx.give(Unit::BfdPort(port), Fact::BfdPort);
    }
}
