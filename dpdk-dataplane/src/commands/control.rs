//! Commands that the control plane carries out: `bridge/reconnect`, `ovs/route/add` and `ovs/route/del`
//! (ovs-vswitchd(8)).

use crate::reconcile::{OperatorRequest, OwnRoute, Request};
use daemon::Daemon;
use std::net::IpAddr;
use tokio::sync::{mpsc, oneshot};

pub(super) type Parse = fn(&[String]) -> Result<Request, String>;

/// Name, usage, numbers of arguments, and how the arguments are parsed.
pub(super) type RequestCommand = (&'static str, &'static str, usize, usize, Parse);

const COMMANDS: &[RequestCommand] = &[
    ("bridge/reconnect", "[bridge]", 0, 1, |args| Ok(Request::Reconnect(args.first().cloned()))),
    ("ovs/route/add", "ip_addr/prefix_len out_br_name [gw] [pkt_mark=mark]", 2, 4, add),
    ("ovs/route/del", "ip_addr/prefix_len [pkt_mark=mark]", 1, 2, delete),
];

/// Adds the commands.
pub(super) fn register(d: &Daemon, requests: &mpsc::UnboundedSender<OperatorRequest>) {
    register_requests(d, requests, COMMANDS);
}

/// Adds commands that the control plane carries out.
pub(super) fn register_requests(
    d: &Daemon,
    requests: &mpsc::UnboundedSender<OperatorRequest>,
    commands: &[RequestCommand],
) {
    for (name, usage, min, max, parse) in commands.iter().copied() {
        let requests = requests.clone();
        d.commands().register_async(name, usage, min, max, move |args| {
            let requests = requests.clone();
            async move {
                let (tx, rx) = oneshot::channel();
                let ask = parse(&args)?;
                requests.send((ask, tx)).map_err(|_| "the control plane has ended")?;
                rx.await.map_err(|_| "the control plane has ended")?
            }
        });
    }
}

/// Parses `ADDRESS/LENGTH`, or an address alone.
pub(super) fn prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let parsed = || {
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let len = len.map_or(Some(most), |l| l.parse().ok()).filter(|l| *l <= most)?;
        Some((address, len))
    };
    parsed().ok_or_else(|| "Invalid parameters".into())
}

/// Parses `pkt_mark=N`, of which only 0 is supported; `None` for other words.
fn marked(text: &str) -> Option<Result<(), String>> {
    let mark = text.strip_prefix("pkt_mark=")?;
    let number = mark.strip_prefix("0x").map_or_else(|| mark.parse().ok(), |h| u32::from_str_radix(h, 16).ok());
    Some(match number {
        Some(0) => Ok(()),
        Some(_) => Err("routes for packets with a mark are not supported".into()),
        None => Err("Invalid pkt_mark".into()),
    })
}

fn add(args: &[String]) -> Result<Request, String> {
    let [to, device, more @ ..] = args else { return Err("Invalid parameters".into()) };
    let (prefix, len) = prefix(to)?;
    let mut gateway = None;
    for (n, word) in more.iter().enumerate() {
        match (marked(word), n) {
            (Some(Err(e)), 0) if e == "Invalid pkt_mark" => return Err(bad_gateway(prefix)),
            (Some(m), _) => m?,
            (None, 0) => {
                let a = word.parse().ok().filter(|a: &IpAddr| a.is_ipv4() == prefix.is_ipv4());
                gateway = Some(a.ok_or_else(|| bad_gateway(prefix))?);
            }
            (None, _) => return Err("Invalid pkt_mark".into()),
        }
    }
    Ok(Request::AddRoute(OwnRoute { prefix, len, device: device.clone(), gateway }))
}

fn bad_gateway(prefix: IpAddr) -> String {
    format!("Invalid pkt_mark or {}gateway", if prefix.is_ipv4() { "" } else { "IPv6 " })
}

fn delete(args: &[String]) -> Result<Request, String> {
    let [to, more @ ..] = args else { return Err("Invalid parameters".into()) };
    let (prefix, len) = prefix(to)?;
    for word in more {
        marked(word).unwrap_or_else(|| Err("Invalid pkt_mark".into()))?;
    }
    Ok(Request::DeleteRoute(prefix, len))
}
