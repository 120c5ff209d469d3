//! `dpctl/*` commands about tracked connections (ovs-dpctl(8), "CONNECTION TRACKING TABLE COMMANDS").

use crate::pmd::{Handle, MainPmd};
use daemon::Daemon;
use openflow_rs::message::{CtFlush, CtTuple};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use switch::conntrack::{Detail, Flush, Zone};

type Answer = Result<String, String>;

/// Name, usage, most arguments, function.
pub(super) type Row = (&'static str, &'static str, usize, fn(&mut MainPmd, &[String]) -> Answer);

pub(super) const COMMANDS: &[Row] = &[
    ("dpctl/ct-get-nconns", "[dp]", 1, |w, args| {
        known_datapath(args)?;
        Ok(format!("{}\n", w.switch.conntrack.lock().len()))
    }),
    ("dpctl/ct-get-maxconns", "[dp]", 1, |w, args| {
        known_datapath(args)?;
        Ok(format!("{}\n", w.switch.conntrack.lock().limit()))
    }),
    ("dpctl/ct-get-sweep-interval", "[dp]", 1, |w, args| {
        known_datapath(args)?;
        Ok(format!("{}\n", w.sweep_interval.as_millis()))
    }),
    ("dpctl/ct-set-limits", "[dp] [default=L] [zone=N,limit=L]...", usize::MAX, set_limits),
    ("dpctl/ct-get-limits", "[dp] [zone=N1[,N2]...]", 2, get_limits),
    ("dpctl/ct-del-limits", "[dp] [default] [zone=N1[,N2]...]", 3, delete_limits),
    ("dpctl/ct-enable-tcp-seq-chk", "[dp]", 1, |w, _| windows(w, true)),
    ("dpctl/ct-disable-tcp-seq-chk", "[dp]", 1, |w, _| windows(w, false)),
    ("dpctl/ct-get-tcp-seq-chk", "[dp]", 1, |w, _| {
        let on = w.switch.conntrack.lock().windows;
        Ok(format!("TCP sequence checking: {}\n", if on { "enabled" } else { "disabled" }))
    }),
];

/// Adds the commands that look at all connections, which may be many: they work part by part.
pub(super) fn register(d: &Daemon, pmd: &Handle) {
    let filter = "[dp] [zone=N] [mark=X[/M]] [labels=X[/M]] [ct-orig-tuple [ct-reply-tuple]]";
    add(d, pmd, ("dpctl/dump-conntrack", "[-m] [-s] [dp] [zone=zone]", 4), dump);
    add(d, pmd, ("dpctl/flush-conntrack", filter, 6), flush);
    add(d, pmd, ("dpctl/ct-stats-show", "[dp] [zone=zone] [verbose]", 4), stats);
}

fn add<F: Future<Output = Answer> + Send + 'static>(
    d: &Daemon,
    pmd: &Handle,
    (name, usage, most): (&'static str, &'static str, usize),
    f: fn(Handle, Vec<String>) -> F,
) {
    let pmd = pmd.clone();
    d.commands().register_async(name, usage, 0, most, move |args| {
        let answer = f(pmd.clone(), args);
        async move { answer.await.map_err(|e| format!("ovs-vswitchd: {e}")) }
    });
}

fn windows(w: &mut MainPmd, on: bool) -> Answer {
    w.switch.check_tcp_windows(on);
    Ok(format!("{} TCP sequence checking successful\n", if on { "enabling" } else { "disabling" }))
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("failed to parse {name}: \"{text}\""))
}

fn zone(args: &[String]) -> Result<Option<Zone>, String> {
    args.iter().find_map(|a| a.strip_prefix("zone=")).map(|z| number("zone", z)).transpose()
}

async fn dump(pmd: Handle, args: Vec<String>) -> Answer {
    let (options, rest): (Vec<String>, Vec<String>) = args.into_iter().partition(|a| a.starts_with('-'));
    let has = |short, long| options.iter().any(|a| a == short || a == long);
    let timeout = if has("-s", "--statistics") { Some(pmd.read(MainPmd::now).await?) } else { None };
    let detail = Detail { more: has("-m", "--more"), timeout };
    let zone = zone(&rest)?;
    known_datapath(rest.get(..rest.len() - usize::from(zone.is_some())).unwrap_or_default())?;
    let mut out = String::new();
    pmd.connections(zone, |c| {
        out.push_str(&c.line(detail));
        out.push('\n');
    })
    .await?;
    Ok(out)
}

fn field<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("failed to parse field {key} (Invalid argument)"))
}

/// Parses a tuple, `ct_nw_src=A,ct_nw_dst=A,ct_nw_proto=N,ct_tp_src=P,ct_tp_dst=P` or the like; the protocol comes
/// beside it.
fn tuple(text: &str) -> Result<(CtTuple, Option<u8>), String> {
    let mut t = CtTuple::default();
    let mut proto = None;
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let Some((key, value)) = part.split_once('=') else { return Err(format!("failed to parse field {part}")) };
        match key {
            "ct_nw_src" | "ct_ipv6_src" => t.src = Some(field(key, value)?),
            "ct_nw_dst" | "ct_ipv6_dst" => t.dst = Some(field(key, value)?),
            "ct_nw_proto" => proto = Some(field(key, value)?),
            "ct_tp_src" => t.src_port = Some(field(key, value)?),
            "ct_tp_dst" => t.dst_port = Some(field(key, value)?),
            "icmp_type" => t.icmp_type = Some(field(key, value)?),
            "icmp_code" => t.icmp_code = Some(field(key, value)?),
            "icmp_id" => t.icmp_id = Some(field(key, value)?),
            _ => return Err(format!("invalid conntrack tuple field: {key}")),
        }
    }
    Ok((t, proto))
}

/// Parses the arguments of a flush: `[dp] [zone=N] [mark=X[/M]] [labels=X[/M]] [original [reply]]`. An empty tuple
/// matches every connection.
fn flushed(args: &[String]) -> Result<CtFlush, String> {
    let mut f = CtFlush { zone: zone(args)?.map(|z| z.0), ..Default::default() };
    if let Some(text) = args.iter().find_map(|a| a.strip_prefix("mark=")) {
        let (v, m) = masked("mark", text, u32::MAX.into())?;
        f.mark = Some((v as u32, m as u32));
    }
    if let Some(text) = args.iter().find_map(|a| a.strip_prefix("labels=")) {
        f.label = Some(masked("labels", text, u128::MAX)?);
    }
    let other = |a: &&String| ["zone=", "mark=", "labels="].iter().any(|p| a.starts_with(p)) || is_datapath(a);
    let mut tuples = args.iter().filter(|a| !other(a));
    if let Some(text) = tuples.next() {
        let (t, proto) = tuple(text)?;
        (f.original, f.proto) = (t, proto.unwrap_or(0));
    }
    if let Some(text) = tuples.next() {
        let (t, proto) = tuple(text)?;
        f.reply = t;
        f.proto = f.proto.max(proto.unwrap_or(0));
    }
    let has_port = |t: &CtTuple| t.src_port.is_some() || t.dst_port.is_some();
    if f.proto == 0 && (has_port(&f.original) || has_port(&f.reply)) {
        return Err("port is set without protocol (Invalid argument)".into());
    }
    if tuples.next().is_some() {
        return Err("invalid arguments (Invalid argument)".into());
    }
    Ok(f)
}

/// Parses `VALUE[/MASK]`.
fn masked(name: &str, text: &str, all: u128) -> Result<(u128, u128), String> {
    let read = |t: &str| match t.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16).map_err(|_| format!("failed to parse {name}: \"{text}\"")),
        None => number(name, t),
    };
    let (value, mask) = text.split_once('/').map_or((text, None), |(v, m)| (v, Some(m)));
    Ok((read(value)?, mask.map_or(Ok(all), read)?))
}

async fn flush(pmd: Handle, args: Vec<String>) -> Answer {
    let flushed = pmd.flush(Flush::Filter(flushed(&args)?)).await?;
    tracing::debug!(target: "ofproto", "{flushed} connections flushed");
    Ok(String::new())
}

async fn stats(pmd: Handle, args: Vec<String>) -> Answer {
    /// Protocols that have a line, in the order of the lines; all others share one.
    const SHOWN: [(u8, &str); 7] =
        [(6, "TCP"), (17, "UDP"), (136, "UDPLITE"), (132, "SCTP"), (1, "ICMP"), (33, "DCCP"), (2, "IGMP")];
    let is_verbose = |a: &&String| a.starts_with("verbose") || *a == "-m" || *a == "--more";
    let verbose = args.iter().any(|a| is_verbose(&a));
    if args.iter().any(|a| !is_verbose(&a) && !a.starts_with("zone=") && !is_datapath(a)) {
        return Err("datapath not found (Invalid argument)".into());
    }
    let (mut counts, mut states) = (BTreeMap::<u8, usize>::new(), BTreeMap::<_, usize>::new());
    pmd.connections(zone(&args)?, |c| {
        *counts.entry(c.original.proto).or_default() += 1;
        if c.original.proto == 6 {
            *states.entry(c.tcp_state()).or_default() += 1;
        }
    })
    .await?;
    let mut out = format!("Connections Stats:\n    Total: {}\n", counts.values().sum::<usize>());
    for (proto, name) in SHOWN {
        let Some(n) = counts.remove(&proto) else { continue };
        let _ = writeln!(out, "  {name}: {n}");
        if proto == 6 && verbose {
            out += "    Conn per TCP states:\n";
            for (state, n) in &states {
                let _ = writeln!(out, "\t  [{state}]={n}");
            }
        }
    }
    // ICMPv6 is counted and has no line, as in Open vSwitch.
    counts.remove(&58);
    if !counts.is_empty() {
        let _ = writeln!(out, "  Other: {}", counts.values().sum::<usize>());
    }
    Ok(out)
}

/// Whether a word names the datapath: there is one.
pub(super) fn is_datapath(name: &str) -> bool {
    matches!(name.split_once('@').map_or(name, |(_, n)| n), "ovs-netdev" | "ovs-dummy" | "ovs-system")
}

/// Refuses names of other datapaths.
fn known_datapath(args: &[String]) -> Result<(), String> {
    let known = args.iter().all(|a| is_datapath(a));
    if known { Ok(()) } else { Err("datapath not found (Invalid argument)".into()) }
}

/// The last argument of a command, before which the datapath may be named.
pub(super) fn last_word(args: &[String]) -> Result<&str, String> {
    match args {
        [word] => Ok(word),
        [datapath, word] if is_datapath(datapath) => Ok(word),
        _ => Err("datapath not found (Invalid argument)".into()),
    }
}

pub(super) fn set_most(w: &mut MainPmd, args: &[String]) -> Answer {
    let most = last_word(args)?.parse::<u32>().map_err(|_| "maxconns missing or malformed (Invalid argument)")?;
    let mut ct = w.switch.conntrack.lock();
    if ct.set_most(most as usize) {
        Ok("setting maxconns successful\n".into())
    } else {
        Err(format!("maxconns could not be set: there is room for {} connections (Invalid argument)", ct.room()))
    }
}

pub(super) fn set_sweep_interval(w: &mut MainPmd, args: &[String]) -> Answer {
    let ms = last_word(args)?.parse().ok().filter(|ms: &u32| *ms != 0);
    w.sweep_interval = Duration::from_millis(ms.ok_or("invalid sweep value (Invalid argument)")?.into());
    Ok("setting sweep interval successful\n".into())
}

/// Refuses to change limits while the database sets them.
fn own_limits(w: &MainPmd, command: &str) -> Result<(), String> {
    let text = || {
        format!(
            "the zone limits are set via database, use 'ovs-vsctl {command} <...>' instead. (Operation not permitted)"
        )
    };
    if w.zones_of_database { Err(text()) } else { Ok(()) }
}

fn set_limits(w: &mut MainPmd, args: &[String]) -> Answer {
    let mut list: Vec<(Option<Zone>, u32)> = Vec::new();
    for a in args {
        if let Some(l) = a.strip_prefix("default=") {
            list.push((None, l.parse().map_err(|_| "invalid default limit (Invalid argument)")?));
        } else if let Some(rest) = a.strip_prefix("zone=") {
            let Some((z, l)) = rest.split_once(",limit=") else {
                return Err(format!("failed to parse {a}: expected zone=N,limit=L"));
            };
            let field = |name| move |_| format!("failed to parse field {name} (Invalid argument)");
            let zone = z.parse().map_err(|_: std::num::ParseIntError| field("zone")(()))?;
            list.push((Some(zone), l.parse().map_err(|_: std::num::ParseIntError| field("limit")(()))?));
        }
    }
    if list.is_empty() {
        return Err("expected default=L or zone=N,limit=L".into());
    }
    own_limits(w, "set-zone-limit")?;
    for (z, l) in list {
        match z {
            // As in Open vSwitch's userspace datapath, 0 from an operator allows no connection; 0 in the database
            // (`CT_Zone:limit`) is no limit.
            Some(z) if l == 0 => w.switch.conntrack.lock().close_zone(z),
            z => w.switch.conntrack.lock().set_limit(z, l),
        }
    }
    Ok(String::new())
}

fn zones(args: &[String]) -> Result<Vec<Zone>, String> {
    let Some(list) = args.iter().find_map(|a| a.strip_prefix("zone=")) else { return Ok(Vec::new()) };
    list.split(',').map(|z| number("zone", z)).collect()
}

fn get_limits(w: &mut MainPmd, args: &[String]) -> Answer {
    let (default, list) = w.switch.conntrack.lock().limits(&zones(args)?);
    let mut out = format!("default limit={default}\n");
    for (z, limit, n) in list {
        let _ = writeln!(out, "zone={z},limit={limit},count={n}");
    }
    Ok(out)
}

fn delete_limits(w: &mut MainPmd, args: &[String]) -> Answer {
    let (list, default) = (zones(args)?, args.iter().any(|a| a == "default"));
    if list.is_empty() && !default {
        return Err("expected default or zone=N1[,N2]...".into());
    }
    own_limits(w, "del-zone-limit")?;
    if default {
        w.switch.conntrack.lock().set_limit(None, 0);
    }
    for z in list {
        w.switch.conntrack.lock().delete_limit(z);
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes() {
        let words = |w: &[&str]| w.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let f = flushed(&words(&["netdev@ovs-netdev", "zone=5", "", "ct_nw_src=10.1.1.2"])).expect("flush");
        assert_eq!((f.zone, f.original, f.reply.src), (Some(5), CtTuple::default(), "10.1.1.2".parse().ok()));
        let f = flushed(&words(&["mark=0xaa/0xff", "labels=7", "ct_nw_src=10.1.1.1"])).expect("flush");
        assert_eq!(
            (f.mark, f.label, f.original.src),
            (Some((0xaa, 0xff)), Some((7, u128::MAX)), "10.1.1.1".parse().ok())
        );
        flushed(&words(&["mark=blue"])).expect_err("no number");
    }

    #[test]
    fn tuples() {
        let (t, proto) = tuple("ct_nw_src=10.0.0.1,ct_nw_proto=17,ct_tp_dst=53").expect("tuple");
        assert_eq!((t.src, t.dst, t.dst_port, proto), ("10.0.0.1".parse().ok(), None, Some(53), Some(17)));
        assert!(tuple("ct_nw_src=ten").expect_err("no address").contains("ct_nw_src"));
        assert!(tuple("nw_src=10.0.0.1").expect_err("no such field").contains("nw_src"));
    }
}
