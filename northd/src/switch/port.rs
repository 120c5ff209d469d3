//! All flows of a switch port.

use super::{arp, dhcp, l2_lookup, mirror, security};
use crate::checks;
use crate::context::Ctx;
use ovn_schema::Uuid;

/// The flows of a port.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lsp) = ctx.lsp(uuid) else { return };
    let Some(switch) = ctx.switch(lsp.switch) else { return };
    let Some(state) = ctx.switch_state(lsp.switch) else { return };
    checks::options(ctx, &format!("logical switch port {}", lsp.name), &lsp.row.options, checks::SWITCH_PORT);
    checks::port_security(ctx, lsp);
    let ctx = &mut ctx.about(uuid);
    security::admission(ctx, lsp, switch);
    crate::tables::health::port(ctx, lsp);
    security::skip_conntrack(ctx, lsp, state);
    mirror::port(ctx, lsp, switch);
    arp::run(ctx, lsp, switch);
    dhcp::run(ctx, lsp, switch);
    l2_lookup::port(ctx, lsp, switch);
    crate::router::dhcp_relay::lsp(ctx, lsp, switch);
    crate::router::resolve::lsp(ctx, lsp, switch);
}
