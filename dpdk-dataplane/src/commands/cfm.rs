//! `cfm/*` (ovs-vswitchd(8), "CFM Commands").

use crate::pmd::MainPmd;
use openflow_rs::PortNo;
use switch::BridgeId;

fn name(w: &MainPmd, bridge: BridgeId, port: PortNo) -> &str {
    w.switch.bridge(bridge).and_then(|b| b.ports.get(&port)).map_or("", |p| &p.name)
}

pub(super) fn show(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let of = |(b, p, text): (BridgeId, PortNo, String)| (name(w, b, p), text);
    let mut all: Vec<(&str, String)> = w.cfm.show(w.now()).into_iter().map(of).collect();
    if let Some(wanted) = args.first() {
        all.retain(|(name, _)| name == wanted);
        if all.is_empty() {
            return Err("no such CFM object".into());
        }
    }
    all.sort();
    Ok(all.into_iter().map(|(name, text)| format!("---- {name} ----\n{text}")).collect())
}

/// Has maintenance points report a fault or none, whatever they find; `normal` returns to what they find.
pub(super) fn set_fault(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let (last, before) = args.split_last().ok_or("unknown fault string")?;
    let fault = match last.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        "normal" => None,
        _ => return Err("unknown fault string".into()),
    };
    let of = |wanted: &String| {
        let mut bridges = w.switch.bridges();
        bridges.find_map(|(id, b)| b.ports.values().find(|p| p.name == *wanted).map(|p| (id, p.no)))
    };
    let port = match before.first() {
        Some(wanted) => Some(of(wanted).ok_or("no such CFM object")?),
        None => None,
    };
    if w.cfm.force(port, fault) { Ok("OK".into()) } else { Err("no such CFM object".into()) }
}
