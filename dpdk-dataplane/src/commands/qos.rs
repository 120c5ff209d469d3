//! `qos/show` and `qos/show-types` (ovs-vswitchd(8)).

use super::datapath::device;
use crate::worker::Worker;
use std::fmt::Write;

type Answer = Result<String, String>;
type Command = fn(&mut Worker, &[String]) -> Answer;

/// Name, usage, fewest and most arguments.
pub(super) const COMMANDS: &[(&str, &str, usize, usize, Command)] =
    &[("qos/show", "interface", 1, 1, show), ("qos/show-types", "interface", 1, 1, types)];

/// The device of an interface.
fn device_of(w: &Worker, args: &[String]) -> Result<Option<u32>, String> {
    let name = args.first().map(String::as_str).unwrap_or_default();
    let port = w.switch.bridges().find_map(|(_, b)| b.port_by_name(name));
    port.map(device).ok_or_else(|| "no such interface".to_string())
}

fn types(w: &mut Worker, args: &[String]) -> Answer {
    device_of(w, args)?;
    Ok("QoS type: egress-policer\nQoS type: trtcm-policer\n".into())
}

fn show(w: &mut Worker, args: &[String]) -> Answer {
    let name = args.first().map(String::as_str).unwrap_or_default();
    let Some(rate) = device_of(w, args)?.and_then(|d| w.shaped(d)) else {
        return Ok(format!("QoS not configured on {name}\n"));
    };
    let kind = if rate.excess.is_some() { "trtcm-policer" } else { "egress-policer" };
    let mut out = format!("QoS: {name} {kind}\ncbs: {}\ncir: {}\n", rate.byte_burst, rate.bytes);
    if let Some((eir, ebs)) = rate.excess {
        let _ = writeln!(out, "ebs: {ebs}\neir: {eir}");
    }
    Ok(out)
}
