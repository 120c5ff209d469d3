//! Routes and neighbours of tunnels: `ovs/route/*` and `tnl/neigh/*` (ovs-vswitchd(8)).

use crate::pmd::MainPmd;
use packet::Mac;
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::IpAddr;
use switch::{Route, RouteRule, SourcePorts};

type Answer = Result<String, String>;

fn address(args: &[String], at: usize) -> Result<IpAddr, String> {
    let text = args.get(at).map(String::as_str).unwrap_or_default();
    text.parse().map_err(|_| format!("{text}: invalid IP address"))
}

/// The name of a routing table, or its number.
fn table_name(table: u32) -> String {
    match table {
        Route::LOCAL => "local".into(),
        Route::MAIN => "main".into(),
        Route::DEFAULT => "default".into(),
        n => n.to_string(),
    }
}

const STANDARD: [u32; 3] = [Route::LOCAL, Route::MAIN, Route::DEFAULT];

/// The tables that `ovs/route/show` is asked for, in their order.
fn tables(w: &MainPmd, asked: Option<&str>) -> Result<Vec<u32>, String> {
    let (underlay, rules) = (&w.switch.underlay, w.switch.underlay.rules());
    // The kernel's tables that no rule names are not used.
    let known = |r: &Route| r.own || STANDARD.contains(&r.table) || rules.iter().any(|rule| rule.table == r.table);
    match asked.map(|a| a.strip_prefix("table=").ok_or("Invalid table format")).transpose()? {
        None => Ok(STANDARD.to_vec()),
        Some("all") => {
            let mut all: Vec<u32> = underlay.routes().filter(|r| known(r)).map(|r| r.table).collect();
            all.sort_unstable();
            all.dedup();
            Ok(all)
        }
        Some(text) => {
            let n: u32 = text.parse().map_err(|_| "Invalid table format")?;
            let there = STANDARD.contains(&n) || underlay.routes().any(|r| r.table == n && known(r));
            if there { Ok(vec![n]) } else { Err(format!("Table 'table={n}' not found")) }
        }
    }
}

/// The routes of a table, the longest prefix first, of each length the kernel's first.
fn of_table(w: &MainPmd, table: u32) -> Vec<&Route> {
    let mut routes: Vec<&Route> = w.switch.underlay.routes().filter(|r| r.table == table).collect();
    routes.sort_by_key(|r| (std::cmp::Reverse(r.len), r.own));
    routes
}

/// Whether a route leads to an address of this host.
fn is_local(r: &Route) -> bool {
    r.table == Route::LOCAL && !r.own
}

pub(super) fn routes(w: &mut MainPmd, args: &[String]) -> Answer {
    let asked = args.first().map(String::as_str);
    let tables = tables(w, asked)?;
    let mut out = match (asked, tables.as_slice()) {
        (Some("table=all"), _) => String::new(),
        (_, [n]) if !STANDARD.contains(n) => format!("Route Table #{n}:\n"),
        _ => "Route Table:\n".to_string(),
    };
    for r in tables.iter().flat_map(|t| of_table(w, *t)) {
        let mark = if r.mark == 0 { String::new() } else { format!(" MARK {}", r.mark) };
        let gateway = r.gateway.map(|g| format!(" GW {g}")).unwrap_or_default();
        let kind = if r.own { "User" } else { "Cached" };
        let source = r.hop_source.unwrap_or(r.source);
        let _ = write!(out, "{kind}: {}/{}{mark} dev {}{gateway} SRC {source}", r.prefix, r.len, r.egress);
        out += if is_local(r) { " local" } else { "" };
        if asked == Some("table=all") && !STANDARD.contains(&r.table) {
            let _ = write!(out, " table {}", r.table);
        }
        out.push('\n');
    }
    Ok(out)
}

/// The same for programs.
pub(super) fn routes_json(w: &MainPmd, args: Vec<String>) -> Result<Value, String> {
    let tables = tables(w, args.first().map(String::as_str))?;
    let of = |r: &Route| {
        let mut hop = json!({"dev": r.egress.to_string()});
        if let (Some(g), Some(hop)) = (r.gateway, hop.as_object_mut()) {
            hop.insert("gateway".into(), g.to_string().into());
        }
        let source = r.hop_source.unwrap_or(r.source).to_string();
        let (dst, table, prefix) = (r.prefix.to_string(), r.table, r.len);
        let mut route = json!({"dst": dst, "local": is_local(r), "nexthops": [hop], "prefix": prefix, "prefsrc": source,
            "table": table, "user": r.own});
        if let (Some(route), true) = (route.as_object_mut(), r.mark != 0) {
            route.insert("mark".into(), r.mark.into());
        }
        route
    };
    Ok(tables.iter().flat_map(|t| of_table(w, *t)).map(of).collect())
}

/// The rules of one IP version.
fn of_version(w: &MainPmd, args: &[String]) -> Vec<RouteRule> {
    let v6 = args.first().is_some_and(|a| a == "-6");
    w.switch.underlay.rules().into_iter().filter(|r| r.v6 == v6).collect()
}

pub(super) fn rules(w: &mut MainPmd, args: &[String]) -> Answer {
    let mut out = String::new();
    for r in of_version(w, args) {
        let all = if r.v6 { 128 } else { 32 };
        let from = match r.from {
            None => "all".to_string(),
            Some((a, len)) if len == all => a.to_string(),
            Some((a, len)) => format!("{a}/{len}"),
        };
        let (kind, not) = (if r.own { "User" } else { "Cached" }, if r.invert { "not " } else { "" });
        let _ = writeln!(out, "{kind}: {}: {not}from {from} lookup {}", r.priority, table_name(r.table));
    }
    Ok(out)
}

/// The same for programs.
pub(super) fn rules_json(w: &MainPmd, args: Vec<String>) -> Result<Value, String> {
    let of = |r: RouteRule| {
        let (from, len) = r.from.map_or(("all".to_string(), 0), |(a, len)| (a.to_string(), len));
        json!({"from": from, "invert": r.invert, "ipv4": !r.v6, "lookup": r.table, "priority": r.priority,
            "src-prefix": len, "user": r.own})
    };
    Ok(of_version(w, &args).into_iter().map(of).collect())
}

pub(super) fn lookup(w: &mut MainPmd, args: &[String]) -> Answer {
    let to: IpAddr = args.first().and_then(|a| a.parse().ok()).ok_or("Invalid 'ip/plen' parameter")?;
    let (mut source, mut mark) = (None, 0);
    for a in args.iter().skip(1) {
        let address = |text: &str| text.parse().ok().filter(|a: &IpAddr| a.is_ipv4() == to.is_ipv4());
        if let Some(n) = a.strip_prefix("pkt_mark=").and_then(|n| n.parse().ok()) {
            mark = n;
        } else {
            source = Some(a.strip_prefix("src=").and_then(address).ok_or("Invalid pkt_mark or src")?);
        }
    }
    let underlay = &w.switch.underlay;
    // Packets leave with addresses of this host.
    let is_own = |a: IpAddr| underlay.routes().any(|r| r.table == Route::LOCAL && r.prefix == a);
    let source = source.filter(|a| !a.is_unspecified());
    let r = underlay.route_from(to, source, mark).filter(|_| source.is_none_or(is_own)).ok_or("Not found")?;
    let gateway = r.gateway.map_or("::".to_string(), |g| g.to_string());
    Ok(format!("src {}\ngateway {gateway}\ndev {}\n", source.unwrap_or(r.source), r.egress))
}

/// Sets the address of a next hop, until another is learned or all are flushed.
pub(super) fn set(w: &mut MainPmd, args: &[String]) -> Answer {
    let device = args.first().map(String::as_str).unwrap_or_default();
    if !w.switch.has_port(device) {
        return Err(format!("{device}: no such bridge or port"));
    }
    let hop = address(args, 1)?;
    let text = args.get(2).map(String::as_str).unwrap_or_default();
    let mac = text.parse::<Mac>().map_err(|_| format!("{text}: bad MAC address"))?;
    let now = w.now();
    w.neighbours.teach(hop, mac, now, device);
    w.switch.underlay.set_neighbour(hop, Some(mac));
    Ok("OK\n".into())
}

/// Shows or sets the age in seconds at which an unconfirmed next hop is forgotten.
pub(super) fn aging(w: &mut MainPmd, args: &[String]) -> Answer {
    let Some(text) = args.first() else { return Ok(format!("{}", w.neighbours.aging.as_secs())) };
    let seconds = text.parse().ok().filter(|s| (1..=3600).contains(s)).ok_or("bad aging value")?;
    w.neighbours.aging = std::time::Duration::from_secs(seconds);
    Ok("OK\n".into())
}

/// Shows or sets the source ports of UDP that tunnels' packets have.
pub(super) fn source_ports(w: &mut MainPmd, args: &[String]) -> Answer {
    let [a, b] = args else {
        let ports = w.switch.underlay.source_ports();
        return Ok(format!("Tunnel UDP source port range: {}-{}\n", ports.first, ports.last()));
    };
    let port =
        |text: &String, word: &str| text.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("Invalid {word}."));
    w.switch.underlay.set_source_ports(SourcePorts::between(port(a, "min")?, port(b, "max")?));
    Ok("OK\n".into())
}

pub(super) fn flush(w: &mut MainPmd, _: &[String]) -> Answer {
    for hop in w.neighbours.flush() {
        let kernel = w.neighbours.of_kernel(hop);
        w.switch.underlay.set_neighbour(hop, kernel);
    }
    Ok("OK\n".into())
}
