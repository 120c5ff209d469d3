//! Commands of test beds: `netdev-dummy/*` for dummy devices, `time/*` for the clock, as test beds for Open vSwitch use them.

use super::control::{RequestCommand, prefix, register_requests};
use super::frame_text;
use crate::pmd::Handle;
use crate::ports::dummy::{Dummies, Dummy};
use crate::reconcile::{OperatorRequest, Request};
use daemon::Daemon;
use openflow_rs::action::PacketType;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

const COMMANDS: &[RequestCommand] = &[
    ("netdev-dummy/set-admin-state", "[netdev] up|down", 1, 2, admin_state),
    ("netdev-dummy/ip4addr", "[netdev] ipaddr/mask-prefix-len", 2, 2, address),
    ("netdev-dummy/ip6addr", "[netdev] ip6addr", 2, 2, address),
];

/// An Ethernet header: no frame is shorter.
const SHORTEST: usize = 14;

/// Adds the commands.
pub(super) fn register(d: &Daemon, pmd: &Handle, dummies: &Dummies, requests: &mpsc::UnboundedSender<OperatorRequest>) {
    register_requests(d, requests, COMMANDS);
    register_time(d, pmd, requests);
    let all = dummies.clone();
    let usage = "name [--qid queue_id] packet|flow [--len packet_len]";
    let handle = pmd.clone();
    d.commands().register_async("netdev-dummy/receive", usage, 2, usize::MAX, move |args| {
        let (all, pmd) = (all.clone(), handle.clone());
        async move {
            let answer = receive(&all, &args)?;
            // Whoever asks for something next finds what the packets did.
            pmd.settle().await?;
            Ok(answer)
        }
    });
    let all = dummies.clone();
    d.commands().register("netdev-dummy/conn-state", "[netdev]", 0, 1, move |args| Ok(states(&all, &args)));
}

/// `time/stop`, and `time/warp`, which answers when what is due has been done.
fn register_time(d: &Daemon, pmd: &Handle, requests: &mpsc::UnboundedSender<OperatorRequest>) {
    let clock = pmd.clock.clone();
    d.commands().register("time/stop", "", 0, 0, move |_| {
        clock.stop();
        Ok(String::new())
    });
    let (pmd, requests) = (pmd.clone(), requests.clone());
    d.commands().register_async("time/warp", "[large_msecs] msecs", 1, 2, move |args| {
        let (pmd, requests) = (pmd.clone(), requests.clone());
        async move { warp(&pmd, &requests, steps(&args)?).await }
    });
}

/// The steps of a warp, and the length of each but the last, in milliseconds.
fn steps(args: &[String]) -> Result<Vec<u64>, String> {
    let number = |text: &String| text.parse::<u64>().map_err(|_| "invalid MSECS".to_string());
    let (all, step) = match args {
        [all, step] => (number(all)?, number(step)?),
        [step] => (number(step)?, number(step)?),
        _ => return Err("invalid MSECS".into()),
    };
    if step == 0 {
        return Err("invalid MSECS".into());
    }
    let rest = (all % step > 0).then_some(all % step);
    Ok((0..all / step).map(|_| step).chain(rest).collect())
}

async fn warp(
    pmd: &Handle,
    requests: &mpsc::UnboundedSender<OperatorRequest>,
    steps: Vec<u64>,
) -> Result<String, String> {
    for step in steps {
        pmd.clock.advance(Duration::from_millis(step));
        pmd.settle().await?;
        let (answer, done) = oneshot::channel();
        requests.send((Request::Tick, answer)).map_err(|_| "the control plane has ended")?;
        done.await.map_err(|_| "the control plane has ended")??;
    }
    Ok("warped".into())
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
    let (mut rest, mut frames) = (packets, Vec::new());
    while let [text, more @ ..] = rest {
        let (len, more) = match more {
            [option, len, more @ ..] if option == "--len" => {
                let len = len.parse().ok().filter(|n| *n >= SHORTEST).ok_or("too small packet len")?;
                (Some(len), more)
            }
            more => (None, more),
        };
        if text.contains('(') && frame_text::packet_type(text)?.is_some_and(|t| t != PacketType::ETHERNET) {
            return Err("packet_type(): a dummy receives frames with an Ethernet header, ns=0,id=0".into());
        }
        // A flow has words, a frame digits alone.
        frames.push(if text.contains('(') { frame_text::compose(text, len)? } else { frame(text)? });
        rest = more;
    }
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
    use super::{frame, steps};

    #[test]
    fn warps_go_in_steps() {
        let of = |words: &[&str]| steps(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
        assert_eq!((of(&["500"]), of(&["2500", "1000"])), (Ok(vec![500]), Ok(vec![1000, 1000, 500])));
        assert!(of(&["0"]).is_err() && of(&["5", "0"]).is_err() && of(&["soon"]).is_err());
    }

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
