//! `bfd/*` (ovs-vswitchd(8), "BFD Commands").

use crate::pmd::MainPmd;
use openflow_rs::PortNo;
use switch::BridgeId;

fn name(w: &MainPmd, bridge: BridgeId, port: PortNo) -> &str {
    w.switch.bridge(bridge).and_then(|b| b.ports.get(&port)).map_or("", |p| &p.name)
}

pub(super) fn show(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let mut all = w.bfd.show(w.now()).into_iter();
    match args.first() {
        Some(wanted) => {
            all.find(|(b, p, _)| name(w, *b, *p) == wanted).map(|(.., text)| text).ok_or("no such bfd object".into())
        }
        None => Ok(all.map(|(b, p, text)| format!("---- {} ----\n{text}", name(w, b, p))).collect()),
    }
}

/// Has sessions forward or not, whatever their state; `normal` returns to the state.
pub(super) fn set_forwarding(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let (last, before) = args.split_last().ok_or("unknown fault string")?;
    let forwarding = match last.to_ascii_lowercase().as_str() {
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
        Some(wanted) => Some(of(wanted).ok_or("no such BFD object")?),
        None => None,
    };
    if w.bfd.force(port, forwarding) { Ok("OK\n".into()) } else { Err("no such BFD object".into()) }
}
