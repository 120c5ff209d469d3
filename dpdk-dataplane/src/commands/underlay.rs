//! What tunnels leave by: `ovs/route/*` and `tnl/neigh/*` (ovs-vswitchd(8)).

use crate::worker::Worker;
use std::fmt::Write;
use std::net::IpAddr;

type Answer = Result<String, String>;

fn address(args: &[String], at: usize) -> Result<IpAddr, String> {
    let text = args.get(at).map(String::as_str).unwrap_or_default();
    text.parse().map_err(|_| format!("{text}: invalid IP address"))
}

pub(super) fn routes(w: &mut Worker, _: &[String]) -> Answer {
    let mut out = String::from("Route Table:\n");
    for r in w.switch.underlay.routes() {
        let gateway = r.gateway.map(|g| format!(" GW {g}")).unwrap_or_default();
        let kind = if r.own { "User" } else { "Cached" };
        let _ = writeln!(out, "{kind}: {}/{} dev {}{gateway} SRC {}", r.prefix, r.len, r.egress, r.source);
    }
    Ok(out)
}

pub(super) fn lookup(w: &mut Worker, args: &[String]) -> Answer {
    let r = w.switch.underlay.route(address(args, 0)?).ok_or("Not found")?;
    let gateway = r.gateway.map_or("::".to_string(), |g| g.to_string());
    Ok(format!("src {}\ngateway {gateway}\ndev {}\n", r.source, r.egress))
}

/// Sets a next hop's address by hand; it stays until the next one is learned, or what is known is flushed.
pub(super) fn set(w: &mut Worker, args: &[String]) -> Answer {
    let bridge = args.first().map(String::as_str).unwrap_or_default();
    if w.switch.bridge_by_name(bridge).is_none() {
        return Err(format!("{bridge}: no such bridge"));
    }
    let hop = address(args, 1)?;
    let text = args.get(2).map(String::as_str).unwrap_or_default();
    let mac = crate::config::parse_mac(text).ok_or_else(|| format!("{text}: bad MAC address"))?;
    let now = w.now();
    w.neighbours.teach(hop, mac, now);
    w.switch.underlay.set_neighbour(hop, Some(mac));
    Ok("OK\n".into())
}

/// Shows or sets the age at which a learned next hop is forgotten.
pub(super) fn aging(w: &mut Worker, args: &[String]) -> Answer {
    let Some(text) = args.first() else { return Ok(format!("{}", w.neighbours.aging.as_secs())) };
    let seconds = text.parse().ok().filter(|s| (1..=3600).contains(s)).ok_or("bad aging value")?;
    w.neighbours.aging = std::time::Duration::from_secs(seconds);
    Ok("OK\n".into())
}

pub(super) fn flush(w: &mut Worker, _: &[String]) -> Answer {
    for hop in w.neighbours.flush() {
        let kernel = w.neighbours.of_kernel(hop);
        w.switch.underlay.set_neighbour(hop, kernel);
    }
    Ok("OK\n".into())
}
