//! The state of the fast path: `dpctl/show`, `upcall/show`, `pmd-rxq-show` and the like (ovs-dpctl(8),
//! ovs-vswitchd(8)).

use super::conntrack::is_datapath;
use super::show::{mode, type_name};
use crate::pmd::{Command, MainPmd};
use std::fmt::Write;
use switch::{DeviceId, Port, PortKind, TunnelKey};

type Answer = Result<String, String>;

/// Name, usage, most arguments.
pub(super) const COMMANDS: &[(&str, &str, usize, Command)] = &[
    ("dpctl/dump-dps", "", 0, datapaths),
    ("dpctl/show", "[-s] [dp...]", 8, show),
    ("dpctl/del-flows", "[netdev]", 2, purge),
    ("dpif/dump-dps", "", 0, of_bridges),
    ("upcall/show", "", 0, upcalls),
    // Flows that are learned and packets that flows count are there at once: there is nothing to hold up.
    ("revalidator/pause", "", 0, |_, _| Ok(String::new())),
    ("revalidator/resume", "", 0, |_, _| Ok(String::new())),
    ("revalidator/wait", "", 0, |_, _| Ok(String::new())),
    ("upcall/disable-megaflows", "", 0, |w, _| megaflows(w, false)),
    ("upcall/enable-megaflows", "", 0, |w, _| megaflows(w, true)),
    ("revalidator/purge", "", 0, purge),
    ("dpif-netdev/pmd-rxq-show", "[-pmd core] [dp]", 3, queues),
    ("ofproto/list-tunnels", "", 0, tunnels),
    ("memory/show", "", 0, memory),
];

fn datapaths(w: &mut MainPmd, _: &[String]) -> Answer {
    Ok(format!("{}\n", w.datapath))
}

/// A port's number in the datapath: that of its device. Tunnels and patch ports have none: they are parts of other
/// flows.
pub(super) fn device(p: &Port) -> Option<DeviceId> {
    match p.kind {
        PortKind::Device(d) | PortKind::Internal(d) => Some(d),
        _ => None,
    }
}

fn show(w: &mut MainPmd, args: &[String]) -> Answer {
    if let Some(other) = args.iter().find(|a| !a.starts_with('-') && !is_datapath(a)) {
        return Err(format!("opening datapath {other} failed (No such device)"));
    }
    let cache = w.switch.cache_stats();
    let (flows, _) = w.switch.cache_size();
    let mut out =
        format!("{}:\n  lookups: hit:{} missed:{} lost:0\n  flows: {flows}\n", w.datapath, cache.hits, cache.misses);
    let mut ports: Vec<(DeviceId, &Port)> =
        w.switch.bridges().flat_map(|(_, b)| b.ports.values()).filter_map(|p| Some((device(p)?, p))).collect();
    ports.sort_by_key(|(n, _)| *n);
    out += "  port 0: ovs-netdev (tap)\n";
    for (n, p) in ports {
        let note = if matches!(p.kind, PortKind::Internal(_)) { " (tap)" } else { "" };
        let _ = writeln!(out, "  port {n}: {}{note}", p.name);
    }
    Ok(out)
}

/// Whether cached flows are of many packets, or of one each.
fn megaflows(w: &mut MainPmd, on: bool) -> Answer {
    w.switch.set_megaflows(on);
    Ok(format!("megaflows {}\n", if on { "enabled" } else { "disabled" }))
}

fn purge(w: &mut MainPmd, _: &[String]) -> Answer {
    w.switch.purge_cache();
    Ok(String::new())
}

fn upcalls(w: &mut MainPmd, _: &[String]) -> Answer {
    let ((now, most), c) = (w.switch.cache_size(), w.switch.cache_stats());
    Ok(format!(
        "{}:\n  flows         : (current {now}) (limit {most})\n  walks         : (all {}) (cached {}) (cannot be cached {})\n",
        w.datapath, c.misses, c.inserted, c.refused
    ))
}

fn queues(w: &mut MainPmd, _: &[String]) -> Answer {
    let c = w.counters;
    let all = w.now().saturating_sub(c.since).as_secs_f64();
    let share = |busy: f64| if all > 0.0 { busy / all * 100.0 } else { 0.0 };
    let mut ports: Vec<(&Port, DeviceId)> =
        w.switch.bridges().flat_map(|(_, b)| b.ports.values()).filter_map(|p| Some((p, device(p)?))).collect();
    ports.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    let fast = w.fast.counters().map(|(processor, f)| (Some(processor), f.last().map_or(0.0, |n| *n as f64 / 1e9)));
    let mut out = String::new();
    for (thread, (processor, busy)) in std::iter::once((None, c.busy.as_secs_f64())).chain(fast).enumerate() {
        let name = processor.map_or("main pmd thread".into(), |p| format!("pmd thread core_id {p}"));
        let _ = writeln!(out, "{name}: {:.0} % busy since counters were cleared", share(busy));
        for (p, d) in &ports {
            for (q, _) in w.queues(*d).iter().filter(|(_, t)| *t == Some(thread)) {
                let _ = writeln!(out, "  port: {:<16}  queue-id: {q:2} (enabled)", p.name);
            }
        }
    }
    Ok(out)
}

/// The datapath's type and the bridges' names.
fn of_bridges(w: &mut MainPmd, _: &[String]) -> Answer {
    let kind = w.datapath.split('@').next().unwrap_or_default();
    let mut names: Vec<&str> = w.switch.bridges().map(|(_, b)| b.name.as_str()).collect();
    names.sort_unstable();
    Ok(names.iter().map(|n| format!("{kind}@{n}\n")).collect())
}

/// The tunnels, as Open vSwitch tells them.
fn tunnels(w: &mut MainPmd, _: &[String]) -> Answer {
    let mut lines = Vec::new();
    for p in w.switch.bridges().flat_map(|(_, b)| b.ports.values()) {
        let PortKind::Tunnel(t) = &p.kind else { continue };
        let (number, local) = (w.switch.tunnel_number(t), t.local.map_or("::".into(), |a| a.to_string()));
        let ends = match (t.remote, t.local_of_flow) {
            (Some(r), _) => format!("{local}->{r}"),
            (None, false) => format!("{local}->flow"),
            (None, true) => "flow->flow".into(),
        };
        let key = |k: Option<TunnelKey>| match k {
            None => "flow".to_string(),
            Some(TunnelKey::NONE) => "0".into(),
            Some(k) => format!("{:#x}", k.0),
        };
        let out_key = (t.key != t.in_key).then(|| match t.key {
            Some(TunnelKey::NONE) => ", out_key=none".into(),
            k => format!(", out_key={}", key(k)),
        });
        let ttl = if t.inherits_ttl { "inherit".into() } else { if t.ttl == 0 { 64 } else { t.ttl }.to_string() };
        let tos = match (t.inherits_tos, t.tos) {
            (true, _) => ", tos=inherit".into(),
            (false, 0) => String::new(),
            (false, tos) => format!(", tos={tos:#x}"),
        };
        let df = if t.df { "" } else { ", df=false" };
        let csum = t.csum.map(|c| format!(", csum={c}")).unwrap_or_default();
        let (kind, mode, key, out_key) = (type_name(t), mode(t.mode), key(t.in_key), out_key.unwrap_or_default());
        lines.push((
            number,
            format!(
                "port {number}: {} ({kind}: {ends}, key={key}, {mode}, dp port={number}{out_key}, ttl={ttl}{tos}{df}{csum})\n",
                p.name
            ),
        ));
    }
    lines.sort();
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

fn memory(w: &mut MainPmd, _: &[String]) -> Answer {
    let rules: usize = w.switch.bridges().map(|(_, b)| b.flow_count()).sum();
    let ports: usize = w.switch.bridges().map(|(_, b)| b.ports.len()).sum();
    let ((flows, _), connections) = (w.switch.cache_size(), w.switch.conntrack.lock().len());
    Ok(format!("cached-flows:{flows} connections:{connections} ports:{ports} rules:{rules}\n"))
}
