//! Access lists (ovn-nb(5), table `ACL`).

use super::{ALLOW, log, network_function as functions, sample};
use crate::context::{Ctx, flag};
use crate::facts::global::Global;
use crate::facts::global::copp;
use crate::facts::switch::{State, acl_stage};
use crate::model::FlowExtra;
use crate::registers::*;
use crate::stage::Stage::{self, *};
use const_format::formatcp;
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::collections::BTreeSet;

const EVAL: [Stage; 3] = [LsInAclEval, LsInAclAfterLbEval, LsOutAclEval];
const ACTION: [Stage; 3] = [LsInAclAction, LsInAclAfterLbAction, LsOutAclAction];

/// The flows of a switch's access lists, its own and those of port groups.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) else { return };
    let Some(switch) = ctx.switch(uuid) else { return };
    let Some(state) = ctx.switch_state(uuid) else { return };
    let mut acls: BTreeSet<Uuid> = row.acls.clone();
    for g in &state.groups {
        if let Some(group) = ctx.port_group(*g) {
            acls.extend(&group.acls);
        }
    }
    pre_acl(ctx, uuid, state);
    hints(ctx, uuid, state);
    defaults(ctx, uuid, state);
    for (i, stage) in ACTION.iter().enumerate() {
        verdicts(ctx, uuid, *stage, EVAL[i], state, state.max_tier[i], &switch.copp);
    }
    let mut groups = BTreeSet::new();
    for a in acls {
        if let Some(acl) = ctx.nb::<nb::Acl>(a) {
            evaluate(ctx, uuid, a, acl, state);
            sample::flows(ctx, uuid, acl, state);
            groups.extend(acl.network_function_group.map(|g| (g, &*acl.direction == "from-lport")));
        }
    }
    for (group, ingress) in groups {
        functions::group(ctx, uuid, group, ingress);
    }
}

fn pre_acl(ctx: &mut Ctx<'_, '_>, u: Uuid, state: &State) {
    if !state.has_stateful {
        return;
    }
    ctx.flow(u, LsInPreAcl, 110, super::TOO_BIG, "next;");
    let translation = flag(&ctx.global().options, "acl_ct_translation");
    let nd = "nd || nd_rs || nd_ra || mldv1 || mldv2 || (udp && udp.src == 546 && udp.dst == 547)";
    for stage in [LsInPreAcl, LsOutPreAcl] {
        ctx.flow(u, stage, 110, nd, "next;");
        if !translation {
            ctx.flow(u, stage, 110, "eth.mcast", "next;");
        }
        ctx.flow(u, stage, 100, "ip", formatcp!("{REGBIT_CONNTRACK_DEFRAG} = 1; next;"));
    }
}

fn hints(ctx: &mut Ctx<'_, '_>, u: Uuid, state: &State) {
    for (hint, eval) in [(LsInAclHint, LsInAclEval), (LsOutAclHint, LsOutAclEval)] {
        if !state.has_acls && !state.has_lb {
            ctx.flow(u, hint, 65535, "1", "next;");
            ctx.flow(u, eval, 65535, "1", "next;");
            continue;
        }
        ctx.flow(u, hint, 0, "1", "next;");
        if !state.has_stateful && !state.has_lb {
            continue;
        }
        let blocked = "!ct.new && ct.est && !ct.rpl && ct_mark.blocked ==";
        for (priority, matches, actions) in [
            (
                7,
                "ct.new && !ct.est".to_string(),
                formatcp!(
                    "{REGBIT_ACL_HINT_ALLOW_NEW} = 1; {REGBIT_ACL_HINT_DROP} = 1; {REGBIT_CONNTRACK_COMMIT} = 1; next;"
                ),
            ),
            (
                6,
                format!("{blocked} 1"),
                formatcp!(
                    "{REGBIT_ACL_HINT_ALLOW_NEW} = 1; {REGBIT_ACL_HINT_DROP} = 1; {REGBIT_CONNTRACK_COMMIT} = 1; next;"
                ),
            ),
            (5, "!ct.trk".to_string(), formatcp!("{REGBIT_ACL_HINT_ALLOW} = 1; {REGBIT_ACL_HINT_DROP} = 1; next;")),
            (4, format!("{blocked} 0"), formatcp!("{REGBIT_ACL_HINT_ALLOW} = 1; {REGBIT_ACL_HINT_BLOCK} = 1; next;")),
            (3, "!ct.est".to_string(), formatcp!("{REGBIT_ACL_HINT_DROP} = 1; next;")),
            (2, "ct.est && ct_mark.blocked == 1".to_string(), formatcp!("{REGBIT_ACL_HINT_DROP} = 1; next;")),
            (1, "ct.est && ct_mark.blocked == 0".to_string(), formatcp!("{REGBIT_ACL_HINT_BLOCK} = 1; next;")),
        ] {
            ctx.flow(u, hint, priority, matches, actions);
        }
    }
}

/// What holds whatever the lists say.
fn defaults(ctx: &mut Ctx<'_, '_>, u: Uuid, state: &State) {
    ctx.flow(u, LsInAclAfterLbEval, 0, "1", "next;");
    if !state.has_acls && !state.has_lb {
        return;
    }
    let global = ctx.global();
    for (eval, mac) in [(LsInAclEval, "eth.dst"), (LsOutAclEval, "eth.src")] {
        ctx.flow(u, eval, 34000, format!("{mac} == $svc_monitor_mac"), ALLOW);
        ctx.flow(u, eval, 0, "1", "next;");
        if state.has_stateful || state.has_lb {
            established(ctx, u, eval, state, global);
        }
    }
    if state.has_stateful || state.has_lb {
        ctx.flow(u, LsInAclAfterLbEval, 65532, formatcp!("{REGBIT_ACL_HINT_ALLOW_REL} == 1"), ALLOW);
        ctx.flow(u, LsInAclAfterLbEval, 65532, formatcp!("{REGBIT_ACL_HINT_ALLOW_PERSISTED} == 1"), ALLOW);
    }
}

fn established(ctx: &mut Ctx<'_, '_>, u: Uuid, eval: Stage, state: &State, global: &Global) {
    let stateless_lb = ctx.switch(u).is_some_and(|s| flag(&s.config, "enable-stateless-acl-with-lb"));
    let ingress = eval == LsInAclEval;
    ctx.flow(u, eval, 1, "ip && !ct.est", "next;");
    let tier = state.max_tier[if ingress { 0 } else { 2 }];
    let mut matches = "ip && ct.est && ct_mark.blocked == 1".to_string();
    if tier > 0 {
        matches.push_str(&format!(" && {REG_ACL_TIER} == {tier}"));
    }
    ctx.flow(u, eval, 1, matches, ALLOW);
    let invalid = if global.ct_inv_match && !stateless_lb { "ct.inv || " } else { "" };
    let matches = format!("{invalid}(ct.est && ct.rpl && ct_mark.blocked == 1)");
    ctx.flow(u, eval, 65532, matches, formatcp!("{REGBIT_ACL_VERDICT_DROP} = 1; next;"));
    let reply = "ct.est && !ct.rel && ct.rpl && ct_mark.blocked == 0";
    let (clear, seen, allowed) = if ingress {
        (
            formatcp!("{REGBIT_ACL_HINT_DROP} = 0; {REGBIT_ACL_HINT_BLOCK} = 0; {REGBIT_ACL_HINT_ALLOW_REL} = 1; "),
            formatcp!("{REGBIT_ACL_HINT_ALLOW_REL} = 1; "),
            formatcp!("{REGBIT_ACL_HINT_ALLOW_PERSISTED} = 1; "),
        )
    } else {
        ("", "", "")
    };
    ctx.flow(
        u,
        eval,
        65532,
        reply,
        format!("{clear}{REGBIT_NF_ENABLED} = ct_label.nf; {REGBIT_ACL_VERDICT_ALLOW} = 1; next;"),
    );
    let related = "!ct.est && ct.rel && !ct.new && ct_mark.blocked == 0";
    let actions = format!("{seen}{REGBIT_NF_ENABLED} = ct_label.nf; {REGBIT_ACL_VERDICT_ALLOW} = 1; ct_commit_nat;");
    ctx.flow(u, eval, 65532, related, actions);
    let actions = format!("{allowed}{REGBIT_NF_ENABLED} = ct_label.nf; {REGBIT_ACL_VERDICT_ALLOW} = 1; next;");
    ctx.flow(u, eval, 65532, "ct.est && ct_mark.allow_established == 1", actions);
}

/// Acting on what the lists said.
fn verdicts(
    ctx: &mut Ctx<'_, '_>,
    u: Uuid,
    stage: Stage,
    eval: Stage,
    state: &State,
    max_tier: i64,
    meters: &Map<Str, Str>,
) {
    if !state.has_acls {
        ctx.flow(u, stage, 0, "1", "next;");
        return;
    }
    let global = ctx.global();
    let mut clear =
        formatcp!("{REGBIT_ACL_VERDICT_ALLOW} = 0; {REGBIT_ACL_VERDICT_DROP} = 0; {REGBIT_ACL_VERDICT_REJECT} = 0; ")
            .to_string();
    if max_tier > 0 {
        clear.push_str(formatcp!("{REG_ACL_TIER} = 0; "));
    }
    ctx.flow(u, stage, 1000, formatcp!("{REGBIT_ACL_VERDICT_ALLOW} == 1"), format!("{clear}next;"));
    ctx.flow(u, stage, 1000, formatcp!("{REGBIT_ACL_VERDICT_DROP} == 1"), format!("{clear}{}", global.implicit_drop));
    let (pipeline, table) = if stage == LsOutAclAction { ("ingress", 33) } else { ("egress", 10) };
    let reject = format!(
        "{clear}{REG_SWITCH_BITS} = 0; reject {{ /* eth.dst <-> eth.src; ip.dst <-> ip.src; is implicit. */ \
         outport <-> inport; next(pipeline={pipeline},table={table}); }};"
    );
    let extra = copp(meters, "reject", global);
    ctx.flow_with(u, stage, 1000, formatcp!("{REGBIT_ACL_VERDICT_REJECT} == 1"), reject, extra);
    let last = if global.default_acl_drop { global.implicit_drop.to_string() } else { "next;".to_string() };
    ctx.flow(u, stage, 0, "1", format!("{clear}{last}"));
    for tier in 0..max_tier {
        let actions =
            format!("{REG_ACL_TIER} = {}; next(pipeline={},table={});", tier + 1, eval.pipeline().name(), eval.table());
        ctx.flow(u, stage, 500, format!("{REG_ACL_TIER} == {tier}"), actions);
    }
}

/// One list in the evaluation stage.
fn evaluate(ctx: &mut Ctx<'_, '_>, u: Uuid, uuid: Uuid, acl: &nb::Acl, state: &State) {
    let ctx = &mut ctx.about(uuid);
    let which = acl_stage(acl);
    let stage = EVAL[which];
    let priority = (acl.priority + 1000) as u16;
    let matches = &acl.r#match;
    let stateful = state.has_stateful || state.has_lb;
    if &*acl.action == "allow-stateless" && stateful {
        let pre = if which == 2 { LsOutPreAcl } else { LsInPreAcl };
        ctx.flow(u, pre, priority, &**matches, formatcp!("{REGBIT_ACL_STATELESS} = 1; next;"));
    }
    let tier = if state.max_tier[which] > 0 { format!("{REG_ACL_TIER} == {} && ", acl.tier) } else { String::new() };
    let verdict = match &*acl.action {
        "drop" => formatcp!("{REGBIT_ACL_VERDICT_DROP} = 1; "),
        "reject" => formatcp!("{REGBIT_ACL_VERDICT_REJECT} = 1; "),
        "pass" => "",
        _ => formatcp!("{REGBIT_ACL_VERDICT_ALLOW} = 1; "),
    };
    let start = format!("{}{verdict}", log::action(ctx, uuid, acl));
    let translation = flag(&ctx.global().options, "acl_ct_translation") && stateful;
    let put = |ctx: &mut Ctx<'_, '_>, hint: &str, actions: String| {
        let extra = FlowExtra { ct_translation: translation && !hint.is_empty(), ..FlowExtra::default() };
        ctx.flow_with(u, stage, priority, format!("{tier}{hint}({matches})"), actions, extra);
    };
    let allows = matches!(&*acl.action, "allow" | "allow-related");
    if acl.network_function_group.is_some() && !(allows && stateful) {
        ctx.problem(format!(
            "ACL {} (priority {}): its action {} goes with no network function group; it is left out",
            acl.name.as_deref().unwrap_or_default(),
            acl.priority,
            acl.action
        ));
        return;
    }
    if !stateful || matches!(&*acl.action, "allow-stateless" | "pass") {
        let label = sample::label(ctx, acl, false);
        put(ctx, "", format!("{start}{label}next;"));
    } else if allows {
        let label = sample::label(ctx, acl, true);
        let function = network_function(ctx, acl);
        let persist = persist(ctx, uuid, acl);
        put(ctx, formatcp!("{REGBIT_ACL_HINT_ALLOW_NEW} == 1 && "), format!("{start}{persist}{label}{function}next;"));
        let again = acl.label != 0 || acl.sample_est.is_some() || acl.network_function_group.is_some();
        let commit = if again { formatcp!("{REGBIT_CONNTRACK_COMMIT} = 1; ") } else { "" };
        put(ctx, formatcp!("{REGBIT_ACL_HINT_ALLOW} == 1 && "), format!("{start}{commit}{label}{function}next;"));
        log_related(ctx, u, uuid, acl);
    } else {
        let label = sample::label(ctx, acl, false);
        put(ctx, formatcp!("{REGBIT_ACL_HINT_DROP} == 1 && "), format!("{start}{label}next;"));
        let point = acl.sample_est.and_then(|s| ctx.nb::<nb::Sample>(s)).map_or(0, |s| s.metadata);
        let block = format!("ct_commit {{ ct_mark.blocked = 1; ct_label.obs_point_id = {point}; }}; next;");
        put(ctx, formatcp!("{REGBIT_ACL_HINT_BLOCK} == 1 && "), format!("{start}{label}{block}"));
    }
}

/// Replies and related packets are logged as well (`options:log-related`), in the other direction's stage.
fn log_related(ctx: &mut Ctx<'_, '_>, u: Uuid, uuid: Uuid, acl: &nb::Acl) {
    if !acl.log || acl.label == 0 || !flag(&acl.options, "log-related") {
        return;
    }
    let stage = if &*acl.direction == "from-lport" { LsOutAclEval } else { LsInAclEval };
    let actions = format!(
        "{}{REGBIT_NF_ENABLED} = ct_label.nf; {REGBIT_ACL_VERDICT_ALLOW} = 1; next;",
        log::action(ctx, uuid, acl)
    );
    for state in ["ct.est && !ct.rel && ct.rpl", "!ct.est && ct.rel && !ct.new"] {
        let matches = format!("{state} && ct_mark.blocked == 0 && ct_label.label == {}", acl.label);
        ctx.flow(u, stage, 65533, matches, actions.as_str());
    }
}

/// Connections that a list has allowed stay allowed (`options:persist-established`).
fn persist(ctx: &mut Ctx<'_, '_>, uuid: Uuid, acl: &nb::Acl) -> String {
    if !flag(&acl.options, "persist-established") || !ctx.global().features.ct_label_flush {
        return String::new();
    }
    match ctx.sb::<sb::AclId>(uuid) {
        Some(row) => format!("{REG_ACL_ID} = {}; {REGBIT_ACL_PERSIST_ID} = 1; ", row.id),
        None => String::new(),
    }
}

/// Sending through a network function group.
fn network_function(ctx: &mut Ctx<'_, '_>, acl: &nb::Acl) -> String {
    match acl.network_function_group.and_then(|g| ctx.nb::<nb::NetworkFunctionGroup>(g)) {
        Some(group) => format!("{REGBIT_NF_ENABLED} = 1; {REGBIT_NF_ORIG_DIR} = 1; {REG_NF_ID} = {}; ", group.id),
        None => String::new(),
    }
}
