//! Load balancing in a switch, and hairpinned traffic.

use crate::context::{Ctx, flag};
use crate::facts::lb::{Lb, Vip};
use crate::facts::lb_use::SwitchShape;
use crate::model::FlowExtra;
use crate::registers::*;
use crate::stage::Stage::*;
use crate::tables::health;
use const_format::formatcp;
use ovn_schema::Uuid;
use std::sync::Arc;

/// What a switch with virtual addresses always has.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    if ctx.switch(uuid).is_some() && ctx.kinds(uuid).any {
        common(ctx, uuid);
    }
}

/// The flows of a load balancer in all its switches.
pub fn load_balancer(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lb) = ctx.lb(uuid) else { return };
    let Some(used) = ctx.lb_use(uuid) else { return };
    let ctx = &mut ctx.about(uuid);
    for (shape, switches) in &used.switches.by_shape {
        for vip in &lb.vips {
            balance(ctx, switches, shape, lb, vip);
            if shape.stateless {
                untracked(ctx, switches, lb, vip);
            }
        }
        if shape.stateless {
            let ctx = &mut ctx.about_none();
            ctx.flow(
                switches,
                LsOutPreLb,
                115,
                formatcp!("{REGBIT_ACL_STATELESS} == 1"),
                formatcp!("{REGBIT_CONNTRACK_NAT} = 1; next;"),
            );
            ctx.flow(switches, LsOutStateful, 110, formatcp!("{REGBIT_ACL_STATELESS} == 1 && ct.new"), "next;");
        }
    }
}

fn common(ctx: &mut Ctx<'_, '_>, u: Uuid) {
    for stage in [LsInPreLb, LsOutPreLb] {
        ctx.flow(u, stage, 100, "ip", formatcp!("{REGBIT_CONNTRACK_NAT} = 1; next;"));
    }
    ctx.flow(
        u,
        LsInCtExtract,
        100,
        "ct.new && ip",
        formatcp!("{REG_CT_PROTO} = ct_proto(); {REG_CT_TP_DST} = ct_tp_dst(); next;"),
    );
    hairpin(ctx, u);
    for (ip, register, field) in [("ip4", REG_LB_IPV4, "ct_nw_dst()"), ("ip6", REG_LB_IPV6, "ct_ip6_dst()")] {
        let matches = format!("ct.trk && ct.est && !ct.rpl && {REGBIT_IP_FRAG} == 1 && {ip}");
        let actions = format!("{register} = {field}; {REG_LB_PORT} = ct_tp_dst(); next;");
        ctx.flow(u, LsInLb, 110, matches, actions);
    }
}

/// What a port sends to a virtual address whose backend it is comes back to it.
fn hairpin(ctx: &mut Ctx<'_, '_>, u: Uuid) {
    let back = "eth.dst <-> eth.src; outport = inport; flags.loopback = 1; output;";
    ctx.flow(u, LsInHairpin, 1, formatcp!("({REGBIT_HAIRPIN} == 1 || {REGBIT_HAIRPIN_REPLY} == 1)"), back);
    let ctx = &mut ctx.about(u);
    let hairpin =
        formatcp!("{REGBIT_HAIRPIN} = chk_lb_hairpin(); {REGBIT_HAIRPIN_REPLY} = chk_lb_hairpin_reply(); next;");
    ctx.flow(u, LsInPreHairpin, 100, "ip && ct.trk", hairpin);
    ctx.flow(
        u,
        LsInNatHairpin,
        100,
        formatcp!("ip && ct.new && ct.trk && {REGBIT_HAIRPIN} == 1"),
        "ct_snat_to_vip; next;",
    );
    ctx.flow(u, LsInNatHairpin, 100, formatcp!("ip && ct.est && ct.trk && {REGBIT_HAIRPIN} == 1"), "ct_snat;");
    ctx.flow(u, LsInNatHairpin, 90, formatcp!("ip && {REGBIT_HAIRPIN_REPLY} == 1"), "ct_snat;");
}

fn balance(ctx: &mut Ctx<'_, '_>, u: &Arc<[Uuid]>, shape: &SwitchShape, lb: &Lb, vip: &Vip) {
    let f = vip.family();
    let to = format!("{f}.dst == {}", vip.address);
    let matches = format!("{REGBIT_CONNTRACK_NAT} == 1 && {to}{}", vip.port_match(&lb.protocol));
    ctx.flow(u, LsInPreStateful, 120, matches, format!("{}ct_lb_mark;", vip.keep()));
    if let Some((matches, actions)) = event(ctx, lb, vip) {
        let extra = FlowExtra { meter: shape.event.clone(), ..FlowExtra::default() };
        ctx.flow_with(u, LsInPreLb, 130, matches, actions, extra);
    }
    let tracked = vip.tracked_match(&lb.protocol);
    if lb.affinity > 0 {
        let matches = format!("ct.new && {f} && {to}{tracked}");
        ctx.flow(u, LsInLbAffCheck, 100, matches, formatcp!("{REGBIT_KNOWN_LB_SESSION} = chk_lb_aff(); next;"));
        for flow in affinity(lb, vip, f, vip.register(), &vip.keep(), "") {
            ctx.flow(u, LsInLb, 150, flow.known, flow.balance);
            ctx.flow(u, LsInLbAffLearn, 100, flow.fresh, flow.learn);
        }
    }
    let matches = format!("ct.new && {to}{tracked}");
    match ct_lb(ctx, lb, vip) {
        Target::Backends(ct_lb) => {
            ctx.flow(u, LsInLb, vip.priority(), matches, format!("{}{ct_lb});", vip.keep()));
        }
        Target::Reject => {
            let extra = FlowExtra { meter: shape.reject.clone(), ..FlowExtra::default() };
            ctx.flow_with(u, LsInLb, vip.priority(), matches, reject(10), extra);
        }
        Target::Drop => {
            let drop = ctx.global().drop.clone();
            ctx.flow(u, LsInLb, vip.priority(), matches, &*drop);
        }
    }
}

/// What access lists leave untracked is tracked if it is for a load balancer (`enable-stateless-acl-with-lb`).
fn untracked(ctx: &mut Ctx<'_, '_>, u: &Arc<[Uuid]>, lb: &Lb, vip: &Vip) {
    let ctx = &mut ctx.about_none();
    let f = vip.family();
    let matches = format!("{f}.dst == {}{}", vip.address, vip.port_match(&lb.protocol));
    ctx.flow(u, LsInPreStateful, 150, matches, format!("{}ct_lb_mark;", vip.keep()));
    if lb.hairpin.is_some() || vip.port.is_some() {
        let to = lb.hairpin.as_ref().unwrap_or(&vip.address);
        ctx.flow(u, LsInPreStateful, 105, format!("{} && {f}.dst == {to}", lb.protocol), "ct_lb_mark;");
    }
}

/// What becomes of a new connection to a virtual address.
pub enum Target {
    /// The action that balances, up to the parameters after the backends.
    Backends(String),
    /// There is no backend, and the client is told.
    Reject,
    /// There is no backend.
    Drop,
}

/// The action that balances to a virtual address.
pub fn ct_lb(ctx: &mut Ctx<'_, '_>, lb: &Lb, vip: &Vip) -> Target {
    let backends = health::backends(ctx, lb, vip);
    if backends.is_empty() {
        return if lb.reject { Target::Reject } else { Target::Drop };
    }
    let action = if lb.distributed { "ct_lb_mark_local" } else { "ct_lb_mark" };
    let fields = if lb.fields.is_empty() { String::new() } else { format!("; hash_fields=\"{}\"", lb.fields) };
    Target::Backends(format!("{action}(backends={backends}{fields}"))
}

/// The actions that tell a client that nothing is there, by way of an egress table.
pub fn reject(table: u8) -> String {
    format!("{REG_SWITCH_BITS} = 0; reject {{ outport <-> inport; next(pipeline=egress,table={table});}};")
}

/// The match and the action of the event that tells that traffic for nothing has come; none where nobody asked for it.
pub fn event(ctx: &mut Ctx<'_, '_>, lb: &Lb, vip: &Vip) -> Option<(String, String)> {
    let wanted = flag(&lb.row.options, "event") || flag(&ctx.global().options, "controller_event");
    if !wanted || !vip.backends.is_empty() || lb.reject {
        return None;
    }
    let protocol = &lb.protocol;
    let matches = format!("{}.dst == {} && {protocol}{}", vip.family(), vip.address, vip.port_match(protocol));
    let actions = format!(
        "trigger_event(event = \"empty_lb_backends\", vip = \"{}\", protocol = \"{protocol}\", load_balancer = \"{}\");",
        vip.endpoint(),
        lb.uuid
    );
    Some((matches, actions))
}

/// The flows by which a client stays with a backend.
pub struct Affinity {
    /// Matches a new connection of a client that is known to go to the backend.
    pub known: String,
    /// Balances to that one.
    pub balance: String,
    /// Matches a new connection that was balanced to the backend.
    pub fresh: String,
    /// Learns that.
    pub learn: String,
}

/// The flows of every backend of a virtual address.
pub fn affinity(lb: &Lb, vip: &Vip, f: &str, register: &str, keep: &str, flag: &str) -> Vec<Affinity> {
    let v6 = f == "ip6";
    let endpoint = |address: &str, port: Option<&str>| match port {
        Some(port) if v6 => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
        None => address.to_string(),
    };
    let kept_port = vip.port.as_ref().map_or(String::new(), |p| format!(" && {REG_LB_PORT} == {p}"));
    let protocol = if vip.port.is_some() { format!(", proto = {}", lb.protocol) } else { String::new() };
    let whole = endpoint(&vip.address, vip.port.as_deref());
    let flows = vip.backends.iter().map(|b| {
        let port = (b.port != 0).then(|| b.port.to_string());
        let one = endpoint(&b.address, port.as_deref());
        let (mut known_port, mut fresh_port) = (String::new(), String::new());
        if let Some(port) = &port {
            known_port = format!(" && {REG_LB_PORT} == {port}");
            fresh_port = format!(" && {}.dst == {port}", lb.protocol);
        }
        Affinity {
            known: format!(
                "{REGBIT_KNOWN_LB_SESSION} == 1 && ct.new && {f}.dst == {} && {register} == {}{known_port}",
                vip.address, b.address
            ),
            balance: format!("{keep}ct_lb_mark(backends={one}{flag});"),
            fresh: format!(
                "{REGBIT_KNOWN_LB_SESSION} == 0 && ct.new && {f} && {register} == {}{kept_port} && {f}.dst == {}{fresh_port}",
                vip.address, b.address
            ),
            learn: format!(
                "commit_lb_aff(vip = \"{whole}\", backend = \"{one}\"{protocol}, timeout = {}); /* drop */",
                lb.affinity
            ),
        }
    });
    flows.collect()
}
