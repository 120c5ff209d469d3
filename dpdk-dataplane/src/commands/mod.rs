//! Commands of the control socket (ovs-vswitchd(8), "Runtime Management Commands").

mod bfd;
mod bond;
mod cfm;
mod conntrack;
mod control;
mod coverage;
mod datapath;
mod dummy;
mod fdb;
mod flows;
mod frame_text;
mod lldp;
mod others;
mod qos;
mod rstp;
mod show;
mod stp;
mod trace;
mod tunnel_text;
mod underlay;

use crate::ha::status::Status;
use crate::openflow::Connections;
use crate::pmd::{Command, Handle, MainPmd};
use crate::ports::dummy::Dummies;
use crate::reconcile::OperatorRequest;
use daemon::Daemon;
use openflow_rs::PortNo;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use switch::{BridgeId, DropReason, Egress};
use tokio::sync::mpsc;

/// Adds `exit`, which has to work whatever the daemon waits for. After `exit --cleanup` what is given is set: the daemon
/// removes its taps when it ends. Otherwise they stay, with their addresses, for the next start.
pub fn register_exit(d: &Daemon) -> Arc<AtomicBool> {
    let clean_up = Arc::new(AtomicBool::new(false));
    let (daemon, set) = (d.clone(), clean_up.clone());
    d.commands().register("exit", "[--cleanup]", 0, 1, move |args| {
        set.store(args.iter().any(|a| a == "--cleanup"), Ordering::Relaxed);
        daemon.exit();
        Ok(String::new())
    });
    clean_up
}

/// Adds the daemon's other commands to its control socket. Commands for dummies are there if these are.
pub fn register(
    d: &Daemon,
    pmd: &Handle,
    connections: &Connections,
    requests: &mpsc::UnboundedSender<OperatorRequest>,
    dummies: Option<&Dummies>,
) {
    let c = d.commands();
    if let Some(dummies) = dummies {
        dummy::register(d, pmd, dummies, requests);
    }
    coverage::register(d, pmd);
    conntrack::register(d, pmd);
    fdb::register(d, pmd);
    flows::register(d, pmd);
    others::register(d);
    control::register(d, requests);
    let add = |name: &'static str, usage, min, max, f: Command| {
        let pmd = pmd.clone();
        c.register_async(name, usage, min, max, move |args| {
            let pmd = pmd.clone();
            async move {
                // Errors of commands that ovs-dpctl(8) has as well begin with the program's name.
                pmd.command(f, args)
                    .await
                    .map_err(|e| if name.starts_with("dpctl/") { format!("ovs-vswitchd: {e}") } else { e })
            }
        });
    };
    add("ofproto/trace", "{[options] [dp_name] odp_flow | bridge br_flow} [packet]", 1, 64, trace::trace);
    add("ofproto/trace-packet-out", "[options] bridge br_flow [packet] actions", 2, 64, trace::packet_out);
    for (name, usage, least, most, f) in
        fdb::COMMANDS.iter().chain(qos::COMMANDS).chain(bond::COMMANDS).chain(show::COMMANDS)
    {
        add(name, usage, *least, *most, *f);
    }
    add("bfd/show", "[interface]", 0, 1, bfd::show);
    add("bfd/set-forwarding", "[interface] normal|false|true", 1, 2, bfd::set_forwarding);
    add("cfm/show", "[interface]", 0, 1, cfm::show);
    add("cfm/set-fault", "[interface] normal|false|true", 1, 2, cfm::set_fault);
    for (name, f) in lldp::COMMANDS {
        add(name, "[bridge]", 0, 1, *f);
    }
    add("ofproto/list", "", 0, 0, |w, _| Ok(bridges(w).map(|(_, n)| format!("{n}\n")).collect()));
    for (name, usage, most, f) in conntrack::COMMANDS {
        add(name, usage, 0, *most, *f);
    }
    for (name, usage, most, f) in datapath::COMMANDS {
        add(name, usage, 0, *most, *f);
    }
    for (set, flush) in [("tnl/neigh/set", "tnl/neigh/flush"), ("tnl/arp/set", "tnl/arp/flush")] {
        add(set, "bridge ip mac", 3, 3, underlay::set);
        add(flush, "", 0, 0, underlay::flush);
    }
    add("tnl/egress_port_range", "min max", 0, 2, underlay::source_ports);
    for name in ["tnl/neigh/aging", "tnl/arp/aging"] {
        add(name, "[SECS]", 0, 1, underlay::aging);
    }
    add("dpif-netdev/pmd-rxq-rebalance", "[dp]", 0, 1, |w, _| {
        w.assign();
        Ok(String::new())
    });
    add(
        "dpif-netdev/pmd-perf-show",
        "[-nh] [-it iter-history-len] [-ms ms-history-len] [-pmd core] [dp]",
        0,
        8,
        |w, _| Ok(loop_statistics(w)),
    );
    add("ovs/route/show", "[table=ID|all]", 0, 1, underlay::routes);
    add("ovs/route/rule/show", "[-6]", 0, 1, underlay::rules);
    add("ovs/route/lookup", "ip_addr [pkt_mark=mark] [src=src_ip]", 1, 3, underlay::lookup);
    let answer = |name: &'static str, f: fn(&MainPmd, Vec<String>) -> Result<serde_json::Value, String>| {
        let pmd = pmd.clone();
        c.answer_json(name, move |args| {
            let pmd = pmd.clone();
            async move { pmd.read_with(args, f).await? }
        });
    };
    answer("ovs/route/show", underlay::routes_json);
    answer("ovs/route/rule/show", underlay::rules_json);
    answer("fdb/show", fdb::show_json);
    answer("dpif/show", show::dpif_json);
    add("tnl/arp/show", "", 0, 0, neighbours);
    add("tnl/neigh/show", "", 0, 0, neighbours);
    add("dpif-netdev/pmd-stats-clear", "", 0, 2, |w, _| {
        w.counters = crate::pmd::Counters { since: w.now(), ..Default::default() };
        w.fast.clear_counters();
        Ok(String::new())
    });
    let (pmd, connections) = (pmd.clone(), connections.clone());
    c.register_async("dpif-netdev/pmd-stats-show", "", 0, 2, move |_| {
        let (pmd, connections) = (pmd.clone(), connections.clone());
        async move {
            let text = pmd.read(loop_statistics).await?;
            Ok(format!("{text}  dropped messages to controllers: {}\n", connections.dropped()))
        }
    });
}

/// Registers `ha/show`.
pub fn register_ha(d: &Daemon, pmd: &Handle, status: &Arc<Status>) {
    let (pmd, status) = (pmd.clone(), status.clone());
    d.commands().register_async("ha/show", "", 0, 0, move |_| {
        let (pmd, status) = (pmd.clone(), status.clone());
        async move { status.show(&pmd).await }
    });
}

fn bridges(w: &MainPmd) -> impl Iterator<Item = (BridgeId, &str)> {
    w.switch.bridges().map(|(id, b)| (id, b.name.as_str()))
}

fn bridge(w: &MainPmd, args: &[String]) -> Result<BridgeId, String> {
    let name = args.first().map(String::as_str).unwrap_or_default();
    bridges(w).find(|(_, n)| *n == name).map(|(id, _)| id).ok_or_else(|| "no such bridge".to_string())
}

/// What `bfd/set-forwarding` and `cfm/set-fault` ask for: of which port, none for all, and what it has to say whatever it
/// finds; none for `normal`.
type Forced = (Option<(BridgeId, PortNo)>, Option<bool>);

/// Reads that of a command's arguments. `missing` is the error of a port that is not there.
fn forced(w: &MainPmd, args: &[String], missing: &str) -> Result<Forced, String> {
    let (last, before) = args.split_last().ok_or("unknown fault string")?;
    let forced = match last.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        "normal" => None,
        _ => return Err("unknown fault string".into()),
    };
    let of = |wanted: &String| {
        let mut bridges = w.switch.bridges();
        bridges.find_map(|(id, b)| b.ports.values().find(|p| p.name == *wanted).map(|p| (id, p.no)))
    };
    let port = before.first().map(|wanted| of(wanted).ok_or(missing)).transpose()?;
    Ok((port, forced))
}

fn neighbours(w: &mut MainPmd, _: &[String]) -> Result<String, String> {
    w.forget_neighbours();
    let mut rows: Vec<_> = w.neighbours.iter().collect();
    rows.sort();
    let mut out = String::from("IP                                            MAC                 Bridge\n");
    out.push_str(&"=".repeat(74));
    out.push('\n');
    for (ip, mac, device) in rows {
        // The host's other neighbours are no tunnel's.
        let bridge = device.or_else(|| match &w.switch.underlay.route(ip)?.egress {
            Egress::Port(name) => Some(&w.switch.bridge(w.switch.addressed_port(name)?.0)?.name),
            Egress::Device(_) | Egress::Host(_) => None,
        });
        let Some(bridge) = bridge else { continue };
        let _ = writeln!(out, "{:<45} {mac}   {bridge}", ip.to_string());
    }
    Ok(out)
}

fn loop_statistics(w: &MainPmd) -> String {
    let c = w.counters;
    let mut out = format!(
        "main pmd thread:\n  iterations: {}\n  idle iterations: {}\n  sleeps: {}\n  packets received: {}\n  packets sent: {}\n  packets for full queues: {}\n  packets for devices that are gone: {}\n  packets longer than a buffer: {}\n  jobs: {}\n  busy: {} us\n  longest job: {} us\n  longest iteration: {} us\n  connections: {}\n",
        c.polls,
        c.idle,
        c.sleeps,
        c.received,
        c.sent,
        c.full,
        c.gone,
        c.oversize,
        c.jobs,
        c.busy.as_micros(),
        c.longest_job.as_micros(),
        c.longest_round.as_micros(),
        w.switch.conntrack.lock().len()
    );
    for (processor, figures) in w.fast.counters() {
        let _ = writeln!(out, "pmd thread core_id {processor}:");
        for (name, n) in crate::pmd::fast::COUNTER_NAMES.iter().zip(figures) {
            let _ = writeln!(out, "  {name}: {n}");
        }
    }
    let cache = w.switch.cache_stats();
    out += "all:\n";
    let _ = writeln!(
        out,
        "  flow cache hits: {}\n  flow cache misses: {}\n  flow cache entries made: {}\n  walks that cannot be cached: {}",
        cache.hits, cache.misses, cache.inserted, cache.refused
    );
    for (id, reason, passed, dropped) in w.limits.show() {
        let name = w.switch.bridge(id).map_or("", |b| b.name.as_str());
        let _ = writeln!(out, "  packet-ins of {name} because of {reason}: {passed}, over the limit: {dropped}");
    }
    for r in DropReason::ALL {
        let n = w.switch.drops.get(*r);
        if n > 0 {
            let _ = writeln!(out, "  drop {}: {n}", r.name());
        }
    }
    out
}
