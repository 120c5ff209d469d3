//! Sampling of what access lists match (ovn-nb(5), tables `Sample`, `Sample_Collector`, `Sampling_App`).

use crate::context::Ctx;
use crate::facts::switch::{State, acl_stage};
use crate::registers::*;
use crate::stage::Stage::{self, *};
use ovn_schema::{Uuid, nb};
use std::sync::Arc;

const SAMPLE: [Stage; 3] = [LsInAclSample, LsInAclAfterLbSample, LsOutAclSample];

/// A sample with its collectors.
struct Sample<'a> {
    row: &'a nb::Sample,
    collectors: Vec<&'a Arc<nb::SampleCollector>>,
}

impl<'a> Sample<'a> {
    fn find(ctx: &mut Ctx<'_, 'a>, uuid: Option<Uuid>) -> Option<Sample<'a>> {
        let row = ctx.nb::<nb::Sample>(uuid?)?;
        let collectors = row.collectors.iter().filter_map(|c| ctx.nb::<nb::SampleCollector>(*c)).collect();
        Some(Sample { row, collectors })
    }

    /// The only collector.
    fn only(&self) -> Option<&'a Arc<nb::SampleCollector>> {
        match self.collectors[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// What is reported as the place where it was taken: the list's label, if it has one.
    fn point(&self, acl: &nb::Acl) -> i64 {
        if acl.label != 0 { acl.label } else { self.row.metadata }
    }

    /// The actions that sample; none without a sampling application.
    fn actions(&self, acl: &nb::Acl, domain: i64) -> String {
        if domain == 0 {
            return String::new();
        }
        let domain = if acl.label != 0 { 0 } else { domain };
        let mut s = String::new();
        if !self.collectors.is_empty() {
            s.push_str("flags.pkt_sampled = 1; ");
        }
        for c in &self.collectors {
            s.push_str(&take(c, domain, &self.point(acl).to_string()));
        }
        s.push_str(" next;");
        s
    }
}

fn take(collector: &nb::SampleCollector, domain: i64, point: &str) -> String {
    format!(
        "sample(probability={},collector_set={},obs_domain={domain},obs_point={point});",
        collector.probability, collector.set_id
    )
}

/// Keeps in registers what is reported of a packet that a list matches; with `established`, also of the packets after it.
pub fn label(ctx: &mut Ctx<'_, '_>, acl: &nb::Acl, established: bool) -> String {
    let new = Sample::find(ctx, acl.sample_new);
    let later = Sample::find(ctx, acl.sample_est.filter(|_| established));
    if acl.label == 0 && new.is_none() && later.is_none() {
        return String::new();
    }
    let values = |s: &Option<Sample<'_>>| match s {
        _ if acl.label != 0 => (acl.label, 0),
        Some(s) => (s.row.metadata, s.only().map_or(0, |c| c.id)),
        None => (0, 0),
    };
    let ((new_point, new_collector), (point, collector)) = (values(&new), values(&later));
    format!(
        "{REGBIT_ACL_LABEL} = 1; {REG_OBS_POINT_ID_NEW} = {new_point}; {REG_OBS_POINT_ID_EST} = {point}; {REG_OBS_COLLECTOR_ID_NEW} = {new_collector}; {REG_OBS_COLLECTOR_ID_EST} = {collector}; \
         {REG_ACL_OBS_STAGE} = {}; ",
        acl_stage(acl)
    )
}

/// The flows that sample what a list has matched.
pub fn flows(ctx: &mut Ctx<'_, '_>, u: Uuid, acl: &nb::Acl, state: &State) {
    let (new, later) = (Sample::find(ctx, acl.sample_new), Sample::find(ctx, acl.sample_est));
    let established = state.has_stateful && later.is_some() && &*acl.action == "allow-related";
    if new.is_none() && !established {
        return;
    }
    let stateful = state.has_stateful && &*acl.action != "allow-stateless";
    let stage = SAMPLE[acl_stage(acl)];
    let global = ctx.global();
    let registers = global.features.sample_with_registers;
    let app = |name: &str| global.sampling.get(name).copied().unwrap_or(0);
    let fresh = match (stateful, stage) {
        (false, _) => "ip",
        (true, LsOutAclSample) => "ip && (ct.new || !ct.trk)",
        _ => "ip && ct.new",
    };
    if let Some(new) = &new {
        match new.only().filter(|_| registers) {
            Some(c) => {
                let matches = format!(
                    "{fresh} && {REG_OBS_COLLECTOR_ID_NEW} == {} && {REG_ACL_OBS_STAGE} == {}",
                    c.id,
                    acl_stage(acl)
                );
                let actions = format!("flags.pkt_sampled = 1; {} next;", take(c, app("acl-new"), REG_OBS_POINT_ID_NEW));
                ctx.flow(u, stage, if stateful { 1000 } else { 900 }, matches, actions);
            }
            None => {
                let matches = format!("{fresh} && {REG_OBS_POINT_ID_NEW} == {}", new.point(acl));
                ctx.flow(u, stage, 1100, matches, new.actions(acl, app("acl-new")));
            }
        }
    }
    if let Some(later) = later.filter(|_| stateful) {
        replies(ctx, u, acl, stage, &later, registers, app("acl-est"));
    }
}

/// Packets of established connections are sampled in both directions.
fn replies(
    ctx: &mut Ctx<'_, '_>,
    u: Uuid,
    acl: &nb::Acl,
    stage: Stage,
    sample: &Sample<'_>,
    registers: bool,
    domain: i64,
) {
    let back = if stage == LsOutAclSample { LsInAclSample } else { LsOutAclSample };
    let tracked = "flags.pkt_sampled == 0 && ip && ct.trk && (ct.est || ct.rel)";
    match sample.only().filter(|_| registers) {
        Some(c) => {
            let known = format!("{tracked} && ct_label.obs_unused == 0");
            let actions = format!("flags.pkt_sampled = 1; {} next;", take(c, domain, "ct_label.obs_point_id"));
            let matches = format!(
                "{known} && !ct.rpl && ct_mark.obs_collector_id == {} && ct_mark.obs_stage == {}",
                c.id,
                acl_stage(acl)
            );
            ctx.flow(u, stage, 1000, matches, actions.as_str());
            ctx.flow(u, back, 1000, format!("{known} && ct.rpl && ct_mark.obs_collector_id == {}", c.id), actions);
        }
        None => {
            let point = format!("ct_label.obs_point_id == {} && ct_label.obs_unused == 0", sample.point(acl));
            let actions = sample.actions(acl, domain);
            ctx.flow(u, stage, 1200, format!("{tracked} && !ct.rpl && {point}"), actions.as_str());
            ctx.flow(u, back, 1200, format!("{tracked} && ct.rpl && {point}"), actions);
        }
    }
}
