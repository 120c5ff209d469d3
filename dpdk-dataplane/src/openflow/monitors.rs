//! Flow monitors (OpenFlow 1.4 section 6.7; NXST_FLOW_MONITOR).

use crate::pmd::MainPmd;
use openflow_rs::action::{outputs_to_group, outputs_to_port};
use openflow_rs::message::monitor::flags;
use openflow_rs::message::{FlowEvent, FlowMonitor, FlowUpdate};
use openflow_rs::mods::FlowMod;
use openflow_rs::wire::DecodeError;
use openflow_rs::{GroupId, OfError, PortNo, TableId};
use switch::classifier::Rule;
use switch::{BridgeId, FlowUpdate as Told};

/// The most monitors of a connection.
const MOST: usize = 1024;

/// Adds, changes or deletes a monitor.
///
/// # Errors
/// OFPET_FLOW_MONITOR_FAILED.
pub(super) fn change(list: &mut Vec<FlowMonitor>, m: &FlowMonitor) -> Result<(), DecodeError> {
    let refused = |error: OfError, detail: String| Err(error.because(detail));
    match (list.iter().position(|x| x.id == m.id), m.command) {
        (Some(_), 0) => return refused(OfError::FlowMonitorExists, format!("flow monitor {} exists", m.id)),
        (None, 1 | 2) => {
            return refused(OfError::FlowMonitorUnknownMonitor, format!("flow monitor {} does not exist", m.id));
        }
        (Some(i), 2) => drop(list.remove(i)),
        (Some(i), _) => {
            if let Some(x) = list.get_mut(i) {
                x.clone_from(m);
            }
        }
        (None, _) if list.len() >= MOST => {
            return refused(OfError::FlowMonitorUnknown, format!("there are {MOST} flow monitors already"));
        }
        (None, _) => list.push(m.clone()),
    }
    Ok(())
}

fn concerns(m: &FlowMonitor, r: &Rule) -> bool {
    (m.table == TableId::ALL || m.table == r.table)
        && (m.out_port == PortNo::ANY || outputs_to_port(&r.actions, m.out_port))
        && r.matches.is_within(&m.matches)
}

/// The flags of all monitors that a change of these rules concerns; 0: none.
fn wanted(list: &[FlowMonitor], kind: u16, rules: [Option<&Rule>; 2]) -> u16 {
    // As in Open vSwitch, a group counts that the flow sends to now, a port also if it did so before.
    let last = rules.iter().flatten().next_back();
    let group = |m: &FlowMonitor| {
        m.out_group == GroupId::ANY || last.is_some_and(|r| outputs_to_group(&r.actions, m.out_group))
    };
    let any = |m: &&FlowMonitor| m.flags & kind != 0 && group(m) && rules.iter().flatten().any(|r| concerns(m, r));
    list.iter().filter(any).fold(0, |f, m| f | m.flags)
}

fn full(event: FlowEvent, reason: u8, r: &Rule, wants: u16) -> FlowUpdate {
    let flow: FlowMod = r.to_flow_mod();
    FlowUpdate::Full(event, reason, Box::new(flow), wants & flags::ACTIONS != 0)
}

/// The present flows that new monitors want.
pub(super) fn initial(w: &MainPmd, bridge: BridgeId, new: &[FlowMonitor]) -> Vec<FlowUpdate> {
    let flows = w.switch.bridge(bridge).into_iter().flat_map(|b| b.flows());
    let told = flows.filter_map(|r| {
        let wants = wanted(new, flags::INITIAL, [Some(r), None]);
        (wants != 0).then(|| full(FlowEvent::Initial, 0, r, wants))
    });
    told.collect()
}

/// The updates for a connection with these monitors; `own` is the transaction if the connection made the changes.
pub(super) fn updates(list: &[FlowMonitor], own: Option<u32>, told: &[Told]) -> Vec<FlowUpdate> {
    let mut out = Vec::new();
    for t in told {
        let (old, new) = (t.old.as_deref(), t.new.as_deref());
        let (event, kind, rule) = match (old, new) {
            (Some(a), Some(b)) if t.modified && a.actions == b.actions && a.cookie == b.cookie => continue,
            (Some(_), Some(r)) if t.modified => (FlowEvent::Modified, flags::MODIFY, r),
            (_, Some(r)) => (FlowEvent::Added, flags::ADD, r),
            (Some(r), None) => (FlowEvent::Removed, flags::DELETE, r),
            (None, None) => continue,
        };
        let wants = wanted(list, kind, [old, new]);
        match own {
            _ if wants == 0 => {}
            Some(xid) if wants & (flags::OWN | flags::ONLY_OWN) == 0 => {
                if !out.contains(&FlowUpdate::Abbreviated(xid)) {
                    out.push(FlowUpdate::Abbreviated(xid));
                }
            }
            _ => out.push(full(event, if new.is_none() { t.reason } else { 0 }, rule, wants)),
        }
    }
    out
}
