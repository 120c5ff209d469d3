//! `dpctl/dump-flows`, `dpif/dump-flows` and `dpctl/get-flow`: the cached flows of all PMD threads (ovs-dpctl(8)), and
//! `ofproto/detrace`: the flows of OpenFlow that a cached flow stands for (ovs-vswitchd(8)).

use super::conntrack::is_datapath;
use super::fdb::flow_text;
use crate::pmd::{Handle, MainPmd};
use daemon::Daemon;
use openflow_rs::TableId;
use openflow_rs::mods::Group;
use openflow_rs::text::group_to_string;
use ovn_schema::Uuid;
use switch::{BridgeId, Met, Shown};

/// Which flows are wanted.
#[derive(Clone, Debug, Default)]
struct Wanted {
    /// Only those of packets that a bridge's ports receive.
    bridge: Option<BridgeId>,
    /// Only those of the PMD thread on this processor.
    processor: Option<usize>,
    /// Only those that fit all words of a filter.
    filter: Vec<String>,
    /// With names of ports in place of numbers.
    names: bool,
    /// With its UFID, and the reason of drops.
    more: bool,
}

/// A flow's UFID, as ovs-dpctl(8) writes it.
fn ufid_text(n: u128) -> String {
    format!("ufid:{}", Uuid::from_u128(n))
}

/// Parses a UFID, with or without its `ufid:`.
fn parse_ufid(text: &str) -> Option<u128> {
    Uuid::try_parse(text.strip_prefix("ufid:").unwrap_or(text)).ok().map(|u| u.as_u128())
}

/// Adds the commands.
pub(super) fn register(d: &Daemon, pmd: &Handle) {
    let handle = pmd.clone();
    let usage = "[-m] [--names] [netdev] [filter=..] [type=..] [pmd=..]";
    d.commands().register_async("dpctl/dump-flows", usage, 0, 8, move |args| {
        let pmd = handle.clone();
        async move { dump(&pmd, wanted(&args)?).await }
    });
    let handle = pmd.clone();
    d.commands().register_async("dpif/dump-flows", "[-m] [--names | --no-names] bridge", 1, 3, move |args| {
        let pmd = handle.clone();
        async move {
            let (options, names): (Vec<String>, Vec<String>) = args.into_iter().partition(|a| a.starts_with('-'));
            let name = names.into_iter().next_back().unwrap_or_default();
            let bridge = pmd.read_with(name, |w, name| super::bridge(w, &[name])).await??;
            dump(&pmd, Wanted { bridge: Some(bridge), ..wanted(&options)? }).await
        }
    });
    let handle = pmd.clone();
    d.commands().register_async("dpctl/get-flow", "[dp] ufid:UFID [pmd=..]", 1, 4, move |args| {
        let pmd = handle.clone();
        async move {
            let ufid = args.iter().find_map(|a| parse_ufid(a)).ok_or("ovs-vswitchd: expected ufid:UFID")?;
            let options: Vec<String> = args.into_iter().filter(|a| parse_ufid(a).is_none()).collect();
            let found = find(&pmd, ufid, &wanted(&options)?).await?;
            let flow = found.ok_or("ovs-vswitchd: getting flow (No such file or directory)")?;
            Ok(pmd.read_with(flow, |w, f| w.switch.tell_flow(&f, w.now()) + "\n").await?)
        }
    });
    let handle = pmd.clone();
    d.commands().register_async("ofproto/detrace", "UFID [pmd=PMD-ID]", 1, 2, move |args| {
        let pmd = handle.clone();
        async move {
            let ufid = args.first().and_then(|a| parse_ufid(a)).ok_or("failed to parse ufid")?;
            let found = find(&pmd, ufid, &wanted(args.get(1..).unwrap_or_default())?).await?;
            Ok(pmd.read_with(found, |w, f| detrace(w, f.as_ref())).await?)
        }
    });
}

/// Types of flows that there are on devices which forward by themselves, here none.
const TYPES: [&str; 4] = ["tc", "dpdk", "offloaded", "partially-offloaded"];

/// Parses the arguments. All flows have the same details and the same type, so `-m` adds only the UFID and the reason
/// of drops.
fn wanted(args: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    for a in args {
        match a.split_once('=') {
            Some(("filter", f)) => wanted.filter = f.split(',').map(|w| w.trim().to_string()).collect(),
            Some(("pmd", "-1")) => {}
            Some(("pmd", n)) => {
                wanted.processor = Some(n.parse().map_err(|_| format!("pmd={n}: expected a processor"))?)
            }
            Some(("type", t)) if t.split(',').any(|t| matches!(t, "all" | "ovs" | "non-offloaded")) => {}
            Some(("type", t)) if t.split(',').all(|t| TYPES.contains(&t)) => {
                wanted.filter = vec!["no flow is of this type".into()];
            }
            Some(("type", t)) => return Err(format!("Failed to parse type ({t}) (Invalid argument)")),
            Some((key, _)) => return Err(format!("{key}: unknown option")),
            None if !a.starts_with('-') && !is_datapath(a) => {
                return Err("datapath not found (Invalid argument)".into());
            }
            None => wanted.more |= matches!(a.as_str(), "-m" | "--more"),
        }
    }
    // The last of these words counts; with -m names are the default.
    let word = args.iter().rfind(|a| matches!(a.as_str(), "--names" | "--no-names"));
    wanted.names = word.map_or(wanted.more, |w| w == "--names");
    Ok(wanted)
}

/// The flow of this UFID, if a PMD thread that is wanted has it.
async fn find(pmd: &Handle, ufid: u128, wanted: &Wanted) -> Result<Option<Shown>, String> {
    let threads = pmd.cached_flows().await?;
    let threads = threads.into_iter().filter(|(n, _)| wanted.processor.is_none() || wanted.processor == *n);
    Ok(threads.flat_map(|(_, flows)| flows).find(|f| f.ufid() == ufid))
}

/// The flows of OpenFlow, and the buckets of groups, that a cached flow's packets meet, below the bridges that they are
/// of, in the order of the walk. Tables without a flow for them are told as well.
fn detrace(w: &MainPmd, flow: Option<&Shown>) -> String {
    let Some(flow) = flow else { return format!("UFID was not found for {}\n", w.datapath()) };
    let Some(met) = w.switch.met_by(flow) else { return format!("Cache was not found for {}\n", w.datapath()) };
    let (now, mut last, mut out) = (w.now(), None, String::new());
    for m in met {
        let Some(bridge) = w.switch.bridge(m.bridge()) else { continue };
        if last.replace(m.bridge()) != Some(m.bridge()) {
            out += &format!("{}\n", bridge.name);
        }
        match m {
            Met::Rule(_, r) => out += &format!("  {}\n", flow_text(&r, r.priority.into(), now)),
            // Of the flows that Open vSwitch has for such packets in a table of its own, the one that drops: packets that
            // controllers get are not cached.
            Met::Miss(_, table) => {
                let own = TableId::INTERNAL;
                out += &format!("  table_id={table}, no match\n  table_id={own}, priority=0,reg0=0x2,actions=drop\n");
            }
            Met::Bucket(_, group, index) => {
                let Some(g) = bridge.groups().find(|g| g.group.id == group) else { continue };
                let chosen = g.group.buckets.get(index).cloned().into_iter().collect();
                out += &format!(" {}\n", group_to_string(&Group { buckets: chosen, ..(*g.group).clone() }));
            }
        }
    }
    out
}

/// The text of the flows that are wanted.
async fn dump(pmd: &Handle, wanted: Wanted) -> Result<String, String> {
    let mut out = String::new();
    for (processor, flows) in pmd.cached_flows().await? {
        if wanted.processor.is_some() && wanted.processor != processor {
            continue;
        }
        let of_bridge = wanted.bridge.is_some();
        let wanted = wanted.clone();
        let mut lines = pmd.tell_flows(flows, move |w, f| line(w, &wanted, f)).await?;
        lines.sort();
        // `dpif/dump-flows` does not tell of threads.
        match processor {
            _ if lines.is_empty() || of_bridge => {}
            None => out += "flow-dump from the main thread:\n",
            Some(n) => out += &format!("flow-dump from pmd on cpu core: {n}\n"),
        }
        out.extend(lines.into_iter().map(|l| l + "\n"));
    }
    Ok(out)
}

/// A flow's line, if it is wanted.
fn line(w: &MainPmd, wanted: &Wanted, f: &Shown) -> Option<String> {
    let name = |n: u32| w.switch.datapath_port_name(n);
    let arrives = || f.bridge.or_else(|| w.switch.port_of_device(f.device).map(|p| p.0));
    let of_bridge = wanted.bridge.is_none() || arrives() == wanted.bridge;
    if !of_bridge || !wanted.filter.iter().all(|x| selects(x, f, name)) {
        return None;
    }
    let text = w.switch.tell_flow(f, w.now());
    let text = if wanted.names { named(&text, name) } else { text };
    let why = f.drop.filter(|_| wanted.more).map(|r| format!(", dp-extra-info:{}", r.name()));
    let ufid = if wanted.more { ufid_text(f.ufid()) + ", " } else { String::new() };
    Some(ufid + &text + &why.unwrap_or_default())
}

/// Whether a flow fits a word of a filter: `in_port=PORT` or `in_port(PORT)` with a name or a number of ovs-dpctl(8), or a
/// part of the flow's text.
fn selects(word: &str, f: &Shown, name: impl Fn(u32) -> Option<String>) -> bool {
    let port = match word.strip_prefix("in_port") {
        Some(p) if p.starts_with('(') => p.trim_start_matches('(').strip_suffix(')'),
        p => p.and_then(|p| p.strip_prefix('=')),
    };
    let Some(port) = port else { return f.packets.contains(word) };
    let number = f.packets.split("in_port(").nth(1).and_then(|n| n.split(')').next()?.parse().ok());
    number.is_some_and(|n| port.parse() == Ok(n) || name(n).is_some_and(|name| name == port.trim_matches('"')))
}

/// The text of a flow with names of ports in place of numbers.
fn named(text: &str, name: impl Fn(u32) -> Option<String>) -> String {
    let (packets, actions) = text.split_once(", actions:").map_or((text, None), |(p, a)| (p, Some(a)));
    let port = |part: &str| {
        let inside = part.strip_prefix("in_port(").and_then(|p| p.strip_suffix(')'));
        let named = inside.and_then(|n| name(n.parse().ok()?));
        named.map_or_else(|| part.to_string(), |n| format!("in_port({n})"))
    };
    let packets = packets.split(',').map(port).collect::<Vec<_>>().join(",");
    let Some(actions) = actions else { return packets };
    format!("{packets}, actions:{}", switch::name_datapath_ports(actions, &name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_names() {
        let names = |n: u32| ["br0", "p0", "p1"].get(n as usize - 1).map(|n| n.to_string());
        let text = "recirc_id(0),in_port(2),packet_type(ns=0,id=0),eth_type(0x0800),ipv4(proto=3,frag=no), packets:0, bytes:0, used:never, actions:set(ipv4(ttl=2)),1,ct(commit,zone=3),3";
        let wanted = "recirc_id(0),in_port(p0),packet_type(ns=0,id=0),eth_type(0x0800),ipv4(proto=3,frag=no), packets:0, bytes:0, used:never, actions:set(ipv4(ttl=2)),br0,ct(commit,zone=3),p1";
        assert_eq!(named(text, names), wanted);
        assert_eq!(named("in_port(9), actions:9", names), "in_port(9), actions:9", "one that is not there");
    }
}
