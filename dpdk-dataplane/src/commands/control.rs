//! Commands that the control plane carries out: `bridge/reconnect`, and those that change routes and rules of tunnels,
//! `ovs/route/add`, `ovs/route/del`, `ovs/route/rule/add` and `ovs/route/rule/del` (ovs-vswitchd(8)).

use crate::reconcile::{OperatorRequest, OwnRoute, Request};
use daemon::Daemon;
use std::net::IpAddr;
use switch::{Route, RouteRule};
use tokio::sync::{mpsc, oneshot};

pub(super) type Parse = fn(&[String]) -> Result<Request, String>;

/// Name, usage, numbers of arguments, and how the arguments are parsed.
pub(super) type RequestCommand = (&'static str, &'static str, usize, usize, Parse);

const COMMANDS: &[RequestCommand] = &[
    ("bridge/reconnect", "[bridge]", 0, 1, |args| Ok(Request::Reconnect(args.first().cloned()))),
    ("ovs/route/add", "ip/plen dev [gw] [pkt_mark=mark] [src=src_ip] [table=id]", 2, 6, add),
    ("ovs/route/del", "ip/plen [pkt_mark=mark] [table=id]", 1, 3, delete),
    ("ovs/route/rule/add", "[-6] [not] from=all|ip/plen [prio=num] table=local|main|default|id", 2, 5, add_rule),
    ("ovs/route/rule/del", "[-6] [not] from=all|ip/plen [prio=num] table=local|main|default|id", 2, 5, delete_rule),
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

/// The number behind `NAME=`, in decimal or with `0x`; `None` for other words.
fn number(text: &str, name: &str) -> Option<Option<u32>> {
    let text = text.strip_prefix(name)?.strip_prefix('=')?;
    Some(text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |h| u32::from_str_radix(h, 16).ok()))
}

fn add(args: &[String]) -> Result<Request, String> {
    let [to, device, more @ ..] = args else { return Err("Invalid parameters".into()) };
    let (prefix, len) = prefix(to).map_err(|_| "Invalid 'ip/plen' parameter")?;
    let (device, table) = (device.clone(), Route::MAIN);
    let mut r = OwnRoute { prefix, len, device, gateway: None, source: None, mark: 0, table };
    for word in more {
        let address = |text: &str| text.parse().ok().filter(|a: &IpAddr| a.is_ipv4() == prefix.is_ipv4());
        if let Some(Some(n)) = number(word, "pkt_mark") {
            r.mark = n;
        } else if let Some(n) = number(word, "table") {
            r.table = n.ok_or("Invalid table format")?;
        } else if let Some(a) = word.strip_prefix("src=").and_then(address) {
            r.source = Some(a);
        } else {
            r.gateway = Some(address(word).ok_or("Invalid pkt_mark, IP gateway or src_ip")?);
        }
    }
    Ok(Request::AddRoute(r))
}

fn delete(args: &[String]) -> Result<Request, String> {
    let [to, more @ ..] = args else { return Err("Invalid parameters".into()) };
    let (prefix, len) = prefix(to)?;
    let (mut mark, mut table) = (0, Route::MAIN);
    for word in more {
        match (number(word, "pkt_mark"), number(word, "table")) {
            (Some(Some(n)), _) => mark = n,
            (_, Some(n)) => table = n.ok_or("Invalid table format")?,
            _ => return Err("Invalid pkt_mark or table".into()),
        }
    }
    Ok(Request::DeleteRoute((prefix, len, mark, table)))
}

/// A rule's priority, if it is given, and the rule.
fn rule(args: &[String]) -> Result<(Option<u32>, RouteRule), String> {
    let mut words = args.iter().map(String::as_str).peekable();
    let mut v6 = words.next_if_eq(&"-6").is_some();
    let invert = words.next_if_eq(&"not").is_some();
    let from = words.next().and_then(|w| w.strip_prefix("from=")).ok_or("Invalid 'from' parameter")?;
    let from = match from {
        "all" => None,
        text => Some(prefix(text).map_err(|_| "Invalid from=ip/plen")?),
    };
    if let Some((a, _)) = from {
        v6 = a.is_ipv6();
    }
    let mut next = words.next().ok_or("Not enough arguments")?;
    let mut priority = None;
    if let Some(Some(n)) = number(next, "prio") {
        priority = Some(n).filter(|n| *n > 0);
        next = words.next().ok_or("Not enough arguments")?;
    }
    let table = match next {
        "table=local" => Route::LOCAL,
        "table=main" => Route::MAIN,
        "table=default" => Route::DEFAULT,
        text => number(text, "table").flatten().ok_or("Invalid 'table' format")?,
    };
    Ok((priority, RouteRule { priority: 0, v6, from, invert, table, own: true }))
}

fn add_rule(args: &[String]) -> Result<Request, String> {
    rule(args).map(|(priority, r)| Request::AddRule(priority, r))
}

fn delete_rule(args: &[String]) -> Result<Request, String> {
    rule(args).map(|(priority, r)| Request::DeleteRule(priority, r))
}
