//! Commands for dummy devices: `netdev-dummy/*`, as test beds for Open vSwitch use them.

use super::control::{RequestCommand, prefix, register_requests};
use crate::ports::dummy::{Dummies, Dummy};
use crate::reconcile::{OperatorRequest, Request};
use daemon::Daemon;
use tokio::sync::mpsc;

const COMMANDS: &[RequestCommand] = &[
    ("netdev-dummy/set-admin-state", "[netdev] up|down", 1, 2, admin_state),
    ("netdev-dummy/ip4addr", "[netdev] ipaddr/mask-prefix-len", 2, 2, address),
    ("netdev-dummy/ip6addr", "[netdev] ip6addr", 2, 2, address),
];

/// An Ethernet header: no frame is shorter.
const SHORTEST: usize = 14;

/// Adds the commands.
pub(super) fn register(d: &Daemon, dummies: &Dummies, requests: &mpsc::UnboundedSender<OperatorRequest>) {
    register_requests(d, requests, COMMANDS);
    let all = dummies.clone();
    let usage = "name [--qid queue_id] packet|flow [--len packet_len]";
    d.commands().register("netdev-dummy/receive", usage, 2, usize::MAX, move |args| receive(&all, &args));
    let all = dummies.clone();
    d.commands().register("netdev-dummy/conn-state", "[netdev]", 0, 1, move |args| Ok(states(&all, &args)));
}

fn receive(all: &Dummies, args: &[String]) -> Result<String, String> {
    let [name, rest @ ..] = args else { return Err("no such dummy netdev".into()) };
    let dummy = all.get(name).ok_or("no such dummy netdev")?;
    let packets = match rest {
        // A dummy has one queue.
        [option, queue, packets @ ..] if option == "--qid" && !packets.is_empty() => {
            if queue != "0" {
                return Err("bad rx queue id.".into());
            }
            packets
        }
        packets => packets,
    };
    // Nothing is received of a list with an error in it.
    let frames = packets.iter().map(|p| frame(p)).collect::<Result<Vec<_>, String>>()?;
    frames.into_iter().for_each(|f| dummy.inject(f));
    Ok(String::new())
}

/// Parses a frame in hexadecimal digits; white space between bytes does not count.
fn frame(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{text}: expected a frame in hexadecimal digits"))?;
    if !digits.len().is_multiple_of(2) || digits.len() < 2 * SHORTEST {
        return Err(format!("{text}: a frame has {SHORTEST} bytes at least, of two digits each"));
    }
    Ok(digits.chunks_exact(2).map(|b| b[0] << 4 | b[1]).collect())
}

fn states(all: &Dummies, args: &[String]) -> String {
    let line = |name: &str, state: Option<bool>| {
        let text = match state {
            Some(true) => "connected",
            Some(false) => "disconnected",
            None => "unknown",
        };
        format!("{name}: {text}\n")
    };
    let of = |d: &Dummy| d.is_connected();
    match args.first() {
        Some(name) => line(name, all.get(name).and_then(|d| of(&d))),
        None => all.all().iter().filter_map(|(n, d)| of(d).map(|s| line(n, Some(s)))).collect(),
    }
}

fn admin_state(args: &[String]) -> Result<Request, String> {
    let (name, state) = match args {
        [state] => (None, state),
        [name, state, ..] => (Some(name.clone()), state),
        [] => return Err("Invalid Admin State".into()),
    };
    let up = match state.to_ascii_lowercase().as_str() {
        "up" => true,
        "down" => false,
        _ => return Err("Invalid Admin State".into()),
    };
    Ok(Request::SetAdminState(name, up))
}

fn address(args: &[String]) -> Result<Request, String> {
    let [name, address] = args else { return Err("Unknown Dummy Interface".into()) };
    let (address, len) = prefix(address).map_err(|_| format!("{address}: invalid IP address"))?;
    Ok(Request::AddAddress(name.clone(), address, len))
}

#[cfg(test)]
mod tests {
    use super::frame;

    #[test]
    fn frames_are_hexadecimal() {
        assert_eq!(
            frame("ffffffffffff 0a0000000001 0806").unwrap_or_default(),
            [255, 255, 255, 255, 255, 255, 10, 0, 0, 0, 0, 1, 8, 6]
        );
        for wrong in ["", "ff", "fffffffffffff0a00000000010806", "in_port(1),eth()"] {
            assert!(frame(wrong).is_err(), "{wrong}");
        }
    }
}
