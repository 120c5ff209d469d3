//! DSCP and packet marks, rate limits.

use crate::context::Ctx;
use crate::facts::switch::Switch;
use crate::stage::Stage::{LsInQos, LsOutQos};
use ovn_schema::nb;

/// The flows of a switch's QoS rules.
pub fn run(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(switch.uuid) else { return };
    for q in &row.qos_rules {
        let Some(qos) = ctx.nb::<nb::Qos>(*q) else { continue };
        let ctx = &mut ctx.about(*q);
        let mut actions = String::new();
        if let Some(rate) = qos.bandwidth.get("rate").filter(|r| **r > 0) {
            match qos.bandwidth.get("burst").filter(|b| **b > 0) {
                Some(burst) => actions.push_str(&format!("set_meter({rate}, {burst}); ")),
                None => actions.push_str(&format!("set_meter({rate}); ")),
            }
        }
        if let Some(dscp) = qos.action.get("dscp") {
            if *dscp > 63 {
                ctx.problem(format!(
                    "QoS rule of logical switch {}: Bad 'dscp' value {dscp}; it must be at most 63",
                    switch.name
                ));
            } else {
                actions.push_str(&format!("ip.dscp = {dscp}; "));
            }
        }
        if let Some(mark) = qos.action.get("mark") {
            actions.push_str(&format!("pkt.mark = {mark}; "));
        }
        actions.push_str("next;");
        let stage = if &*qos.direction == "from-lport" { LsInQos } else { LsOutQos };
        ctx.flow(switch.uuid, stage, qos.priority as u16, &*qos.r#match, actions);
    }
}
