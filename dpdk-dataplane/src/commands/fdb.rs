//! `fdb/*`, `mdb/*` and `bridge/dump-flows`, `stp/*` and `rstp/*` (ovs-vswitchd(8)).

use super::{bridge, bridges, rstp, stp};
use crate::pmd::{Command, Handle, MainPmd};
use daemon::Daemon;
use openflow_rs::mods::DEFAULT_PRIORITY;
use openflow_rs::text::actions_to_string;
use openflow_rs::{PortNo, TableId};
use packet::{Mac, NotAVlanId, VlanId};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;
use switch::bridge::mac::Known;
use switch::classifier::Rule;
use switch::{Bridge, BridgeId};

type Answer = Result<String, String>;

/// Name, usage, fewest and most arguments.
pub(super) const COMMANDS: &[(&str, &str, usize, usize, Command)] = &[
    ("fdb/show", "bridge", 1, 1, show),
    ("fdb/flush", "[bridge]", 0, 1, flush),
    ("fdb/add", "bridge port vlan mac", 4, 4, add),
    ("fdb/del", "bridge vlan mac", 3, 3, delete),
    ("fdb/stats-show", "bridge", 1, 1, stats),
    ("fdb/stats-clear", "[bridge]", 0, 1, clear_stats),
    ("mdb/show", "bridge", 1, 1, show_groups),
    ("mdb/flush", "[bridge]", 0, 1, flush_groups),
    ("stp/show", "[bridge]", 0, 1, stp::show),
    ("stp/tcn", "[bridge]", 0, 1, stp::change),
    ("rstp/show", "[bridge]", 0, 1, rstp::show),
    ("rstp/tcn", "[bridge]", 0, 1, rstp::change),
];

/// Adds `bridge/dump-flows`, whose text another thread makes, as it may be long.
pub(super) fn register(d: &Daemon, pmd: &Handle) {
    let pmd = pmd.clone();
    d.commands().register_async("bridge/dump-flows", "bridge", 1, 2, move |args| {
        let pmd = pmd.clone();
        async move { flows(&pmd, args).await }
    });
}

fn add(w: &mut MainPmd, args: &[String]) -> Answer {
    let id = bridge(w, args)?;
    let [_, port, vlan, mac] = args else { return Err("expected a bridge, a port, a VLAN and an address".into()) };
    let (vlan, mac) = key(vlan, mac)?;
    let now = w.now();
    let b = w.switch.bridge_mut(id).ok_or("no such bridge")?;
    let known = b.port_by_name(port).map(|p| p.no);
    let no =
        known.or_else(|| port.parse().ok().map(PortNo).filter(|n| b.ports.contains_key(n))).ok_or("no such port")?;
    let before = b.macs.iter().find(|k| (k.vlan, k.mac) == (vlan, mac)).map(|k| (k.port, k.fixed));
    if b.macs.fix(vlan, mac, no, now) {
        let how = |fixed| if fixed { "static" } else { "dynamic" };
        let told = before.filter(|old| *old != (no, true));
        let told = told.map(|(port, fixed)| format!("Overriding already existing {} entry on {port}\n", how(fixed)));
        return Ok(told.unwrap_or_default());
    }
    match b.macs.iter().any(|k| (k.vlan, k.mac, k.port) == (vlan, mac, no)) {
        true => Ok(String::new()),
        false => Err("the bridge has no room for another address".into()),
    }
}

fn delete(w: &mut MainPmd, args: &[String]) -> Answer {
    let id = bridge(w, args)?;
    let [_, vlan, mac] = args else { return Err("expected a bridge, a VLAN and an address".into()) };
    let (vlan, mac) = key(vlan, mac)?;
    let b = w.switch.bridge_mut(id).ok_or("no such bridge")?;
    if b.macs.release(vlan, mac) { Ok(String::new()) } else { Err("could not find static mac entry".into()) }
}

fn key(vlan: &str, mac: &str) -> Result<(VlanId, u64), String> {
    let vlan = vlan.parse().map_err(|e: NotAVlanId| format!("{vlan}: {e}"))?;
    let mac = mac.parse::<Mac>().map_err(|_| "bad MAC address")?;
    Ok((vlan, mac.iter().fold(0, |n, b| n << 8 | u64::from(*b))))
}

fn show(w: &mut MainPmd, args: &[String]) -> Answer {
    let mut out = String::from(" port  VLAN  MAC                Age\n");
    for k in learned(w, args)? {
        let age = if k.fixed { "static".into() } else { format!("{:3}", w.now().saturating_sub(k.seen).as_secs()) };
        let _ = writeln!(out, "{:>5}  {:4}  {}  {age}", k.port.to_string(), k.vlan, Mac::from_u64(k.mac));
    }
    Ok(out)
}

/// The same for programs.
pub(super) fn show_json(w: &MainPmd, args: Vec<String>) -> Result<Value, String> {
    let of = |k: Known| {
        let mut entry = json!({"port": k.port.0, "vlan": k.vlan.get(), "mac": Mac::from_u64(k.mac).to_string()});
        let (name, value) = match k.fixed {
            true => ("static", true.into()),
            false => ("age", w.now().saturating_sub(k.seen).as_secs().into()),
        };
        if let Some(entry) = entry.as_object_mut() {
            entry.insert(name.into(), value);
        }
        entry
    };
    Ok(learned(w, &args)?.into_iter().map(of).collect())
}

/// The addresses that a bridge knows, those first that were seen the longest time ago.
fn learned(w: &MainPmd, args: &[String]) -> Result<Vec<Known>, String> {
    let id = bridge(w, args)?;
    let mut rows: Vec<_> = w.switch.bridge(id).into_iter().flat_map(|b| b.macs.iter()).collect();
    rows.sort_by_key(|k| (k.seen, k.order));
    Ok(rows)
}

fn of_bridges(w: &mut MainPmd, args: &[String], f: impl Fn(&mut Bridge)) -> Result<(), String> {
    let ids = match args {
        [] => bridges(w).map(|(id, _)| id).collect(),
        args => vec![bridge(w, args)?],
    };
    ids.into_iter().filter_map(|id| w.switch.bridge_mut(id).map(&f)).count();
    Ok(())
}

fn flush(w: &mut MainPmd, args: &[String]) -> Answer {
    of_bridges(w, args, |b| b.macs.flush()).map(|()| {
        "table successfully flushed
"
        .into()
    })
}

fn clear_stats(w: &mut MainPmd, args: &[String]) -> Answer {
    of_bridges(w, args, |b| b.macs.stats = Default::default()).map(|()| {
        "statistics successfully cleared
"
        .into()
    })
}

fn stats(w: &mut MainPmd, args: &[String]) -> Answer {
    let id = bridge(w, args)?;
    let b = w.switch.bridge(id).ok_or("no such bridge")?;
    let (all, fixed, s) = (b.macs.iter().count(), b.macs.iter().filter(|k| k.fixed).count(), b.macs.stats);
    Ok(format!(
        "Statistics for bridge \"{}\":
  Current/maximum MAC entries in the table: {all}/{}
  Current static MAC entries in the table : {fixed}
  Total number of learned MAC entries     : {}
  Total number of expired MAC entries     : {}
  Total number of evicted MAC entries     : {}
  Total number of port moved MAC entries  : {}
",
        b.name,
        b.macs.limit(),
        s.learned,
        s.expired,
        s.evicted,
        s.moved
    ))
}

const NO_SNOOPING: &str = "multicast snooping is disabled";

fn show_groups(w: &mut MainPmd, args: &[String]) -> Answer {
    let id = bridge(w, args)?;
    let now = w.now();
    let s = w.switch.bridge(id).and_then(Bridge::snooping).ok_or(NO_SNOOPING)?;
    let mut out = String::from(" port  VLAN  protocol  GROUP                Age\n");
    let age = |seen| now.saturating_sub(seen).as_secs();
    for (group, vlan, version, m) in s.groups() {
        let (port, name) = (m.port.to_string(), version.name());
        let _ = writeln!(out, "{port:>5}  {vlan:4}  {name:<8}  {group}         {:3}", age(m.seen));
    }
    for (vlan, m) in s.queriers() {
        let (port, name) = (m.port.to_string(), "UNKNOWN");
        let _ = writeln!(out, "{port:>5}  {vlan:4}  {name:<8}  querier             {:3}", age(m.seen));
    }
    Ok(out)
}

fn flush_groups(w: &mut MainPmd, args: &[String]) -> Answer {
    if !args.is_empty() {
        let id = bridge(w, args)?;
        w.switch.bridge(id).and_then(Bridge::snooping).ok_or(NO_SNOOPING)?;
    }
    of_bridges(w, args, Bridge::flush_snooping)?;
    Ok("table successfully flushed\n".into())
}

async fn flows(pmd: &Handle, args: Vec<String>) -> Answer {
    // In-band control's are hidden from controllers.
    let hidden = |w: &MainPmd, args: Vec<String>| -> Result<(BridgeId, Vec<_>), String> {
        let id = bridge(w, args.get(args.len().saturating_sub(1)..).unwrap_or_default())?;
        let b = w.switch.bridge(id).ok_or("no such bridge")?;
        Ok((id, b.hidden_flows().map(|(priority, r)| (priority, r.clone())).collect()))
    };
    let (id, mut list) = pmd.read_with(args, hidden).await??;
    let (rules, now) = pmd.rules(id, TableId::ALL).await.ok_or("no such bridge")?;
    list.extend(rules.into_iter().map(|r| (u32::from(r.priority), r)));
    let text = move || list.iter().map(|(priority, r)| flow_text(r, *priority, now) + "\n").collect();
    tokio::task::spawn_blocking(text).await.map_err(|e| e.to_string())
}

/// A flow of OpenFlow with its counters, in a line without its end.
pub(super) fn flow_text(r: &Rule, priority: u32, now: Duration) -> String {
    let mut out = String::new();
    if r.cookie != 0 {
        let _ = write!(out, "cookie={:#x}, ", r.cookie);
    }
    if r.table != TableId::FIRST {
        let _ = write!(out, "table_id={}, ", r.table);
    }
    let (packets, bytes, _) = r.counters();
    let age = now.saturating_sub(r.created).as_secs();
    let _ = write!(out, "duration={age}s, n_packets={packets}, n_bytes={bytes}, ");
    let matches = r.matches.to_string();
    if priority != u32::from(DEFAULT_PRIORITY) {
        let _ = write!(out, "priority={priority}{}", if matches.is_empty() { "" } else { "," });
    }
    let _ = write!(out, "{matches},actions={}", actions_to_string(&r.actions));
    out
}
