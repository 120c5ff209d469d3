//! `qos/show` and `qos/show-types` (ovs-vswitchd(8)).

use super::datapath::device;
use crate::pmd::{Command, MainPmd};
use crate::ports::qos::shaper::Shaper;
use std::fmt::Write;
use switch::DeviceId;

type Answer = Result<String, String>;

/// Name, usage, fewest and most arguments.
pub(super) const COMMANDS: &[(&str, &str, usize, usize, Command)] =
    &[("qos/show", "interface", 1, 1, show), ("qos/show-types", "interface", 1, 1, types)];

/// The device of an interface.
fn device_of(w: &MainPmd, args: &[String]) -> Result<Option<DeviceId>, String> {
    let name = args.first().map(String::as_str).unwrap_or_default();
    let port = w.switch.bridges().find_map(|(_, b)| b.port_by_name(name));
    port.map(device).ok_or_else(|| "no such interface".to_string())
}

fn types(w: &mut MainPmd, args: &[String]) -> Answer {
    device_of(w, args)?;
    Ok(crate::config::qos::TYPES.iter().map(|t| format!("QoS type: {t}\n")).collect())
}

fn show(w: &mut MainPmd, args: &[String]) -> Answer {
    let name = args.first().map(String::as_str).unwrap_or_default();
    let device = device_of(w, args)?;
    if let Some(s) = device.and_then(|d| w.shaper(d)) {
        return Ok(queues(name, s));
    }
    let Some(rate) = device.and_then(|d| w.policer(d)) else {
        return Ok(format!("QoS not configured on {name}\n"));
    };
    let kind = if rate.excess.is_some() { "trtcm-policer" } else { "egress-policer" };
    let mut out = format!("QoS: {name} {kind}\ncbs: {}\ncir: {}\n", rate.byte_burst, rate.bytes);
    if let Some((eir, ebs)) = rate.excess {
        let _ = writeln!(out, "ebs: {ebs}\neir: {eir}");
    }
    Ok(out)
}

/// The queues of a port, with their rates and counters.
fn queues<P>(port: &str, s: &Shaper<P>) -> String {
    let plan = s.plan();
    let mut out = format!("QoS: {port} {}\nmax-rate: {}\n", plan.kind, plan.rate * 8);
    for (number, class, counts) in s.queues() {
        match number {
            0 => out += "\nDefault:\n",
            n => out += &format!("\nQueue {n}:\n"),
        }
        if plan.kind == "linux-htb" {
            let _ = writeln!(out, "  burst: {}", class.burst * 8);
            if class.priority != 0 {
                let _ = writeln!(out, "  priority: {}", class.priority);
            }
        }
        let _ = write!(
            out,
            "  min-rate: {}\n  max-rate: {}\n  tx_packets: {}\n  tx_bytes: {}\n  tx_errors: {}\n",
            class.min * 8,
            class.max * 8,
            counts.packets,
            counts.bytes,
            counts.dropped
        );
    }
    out
}
