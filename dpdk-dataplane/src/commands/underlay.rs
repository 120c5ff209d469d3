//! Routes and neighbours of tunnels: `ovs/route/*` and `tnl/neigh/*` (ovs-vswitchd(8)).

use crate::pmd::MainPmd;
use packet::Mac;
use std::fmt::Write;
use std::net::IpAddr;
use switch::Route;

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

pub(super) fn routes(w: &mut MainPmd, args: &[String]) -> Answer {
    const STANDARD: [u32; 3] = [Route::LOCAL, Route::MAIN, Route::DEFAULT];
    let asked = args.first().map(String::as_str);
    let (underlay, rules) = (&w.switch.underlay, w.switch.underlay.rules());
    // Tables that no rule names are not used.
    let known = |t: u32| STANDARD.contains(&t) || rules.iter().any(|r| r.table == t);
    let (header, tables) = match asked.map(|a| a.strip_prefix("table=").ok_or("Invalid table format")).transpose()? {
        None => ("Route Table:\n".to_string(), STANDARD.to_vec()),
        Some("all") => {
            let mut all: Vec<u32> = underlay.routes().map(|r| r.table).filter(|t| known(*t)).collect();
            all.sort_unstable();
            all.dedup();
            (String::new(), all)
        }
        Some(n) => {
            let n: u32 = n.parse().map_err(|_| "Invalid table format")?;
            let there = known(n) && (STANDARD.contains(&n) || underlay.routes().any(|r| r.table == n));
            if !there {
                return Err(format!("Table 'table={n}' not found"));
            }
            let header = if STANDARD.contains(&n) { "Route Table:\n".into() } else { format!("Route Table #{n}:\n") };
            (header, vec![n])
        }
    };
    let mut out = header;
    for r in tables.iter().flat_map(|t| underlay.routes().filter(move |r| r.table == *t)) {
        let gateway = r.gateway.map(|g| format!(" GW {g}")).unwrap_or_default();
        let kind = if r.own { "User" } else { "Cached" };
        let source = r.hop_source.unwrap_or(r.source);
        let _ = write!(out, "{kind}: {}/{} dev {}{gateway} SRC {source}", r.prefix, r.len, r.egress);
        out += if r.table == Route::LOCAL && !r.own { " local" } else { "" };
        if asked == Some("table=all") && !STANDARD.contains(&r.table) {
            let _ = write!(out, " table {}", r.table);
        }
        out.push('\n');
    }
    Ok(out)
}

pub(super) fn rules(w: &mut MainPmd, args: &[String]) -> Answer {
    let v6 = args.first().is_some_and(|a| a == "-6");
    let mut out = String::new();
    for r in w.switch.underlay.rules().into_iter().filter(|r| r.v6 == v6) {
        let all = if v6 { 128 } else { 32 };
        let from = match r.from {
            None => "all".to_string(),
            Some((a, len)) if len == all => a.to_string(),
            Some((a, len)) => format!("{a}/{len}"),
        };
        let not = if r.invert { "not " } else { "" };
        let _ = writeln!(out, "Cached: {}: {not}from {from} lookup {}", r.priority, table_name(r.table));
    }
    Ok(out)
}

pub(super) fn lookup(w: &mut MainPmd, args: &[String]) -> Answer {
    let mut source = None;
    for a in args.iter().skip(1) {
        if let Some(text) = a.strip_prefix("src=") {
            source = Some(text.parse().map_err(|_| "Invalid src_ip parameter")?);
        }
    }
    let r = w.switch.underlay.route_from(address(args, 0)?, source).ok_or("Not found")?;
    let gateway = r.gateway.map_or("::".to_string(), |g| g.to_string());
    Ok(format!("src {}\ngateway {gateway}\ndev {}\n", source.unwrap_or(r.source), r.egress))
}

/// Sets the address of a next hop, until another is learned or all are flushed.
pub(super) fn set(w: &mut MainPmd, args: &[String]) -> Answer {
    let bridge = args.first().map(String::as_str).unwrap_or_default();
    if w.switch.bridge_by_name(bridge).is_none() {
        return Err(format!("{bridge}: no such bridge"));
    }
    let hop = address(args, 1)?;
    let text = args.get(2).map(String::as_str).unwrap_or_default();
    let mac = text.parse::<Mac>().map_err(|_| format!("{text}: bad MAC address"))?;
    let now = w.now();
    w.neighbours.teach(hop, mac, now);
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

pub(super) fn flush(w: &mut MainPmd, _: &[String]) -> Answer {
    for hop in w.neighbours.flush() {
        let kernel = w.neighbours.of_kernel(hop);
        w.switch.underlay.set_neighbour(hop, kernel);
    }
    Ok("OK\n".into())
}
