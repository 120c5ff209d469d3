//! `dpif/*`, `tnl/ports/show`, and the commands about IP fragments (ovs-vswitchd(8), ovs-dpctl(8)).

use super::conntrack::last_word;
use crate::pmd::{Command, MainPmd};
use crate::ports::netdev::Shown;
use crate::reconcile::datapath_features::FEATURES;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use switch::{Bridge, PacketMode, Port, PortKind, TunnelConfig, TunnelKey, TunnelKind};

type Answer = Result<String, String>;

/// Name, usage, fewest and most arguments.
pub(super) const COMMANDS: &[(&str, &str, usize, usize, Command)] = &[
    ("tnl/ports/show", "-v", 0, 1, tunnels),
    ("dpif/show", "", 0, 0, dpif),
    ("dpif/show-dp-features", "bridge", 1, 1, features),
    ("dpif/set-dp-features", "bridge [feature value]", 1, 3, offer),
    ("dpctl/ct-set-maxconns", "[dp] maxconns", 1, 2, super::conntrack::set_most),
    ("dpctl/ct-set-sweep-interval", "[dp] ms", 1, 2, super::conntrack::set_sweep_interval),
    ("dpctl/ipf-get-status", "[dp] [-m]", 0, 2, fragments),
    ("dpctl/ipf-set-min-frag", "[dp] v4|v6 minfragment", 2, 3, set_least),
    ("dpctl/ipf-set-max-nfrags", "[dp] maxfrags", 1, 2, set_most),
    ("dpctl/ipf-set-enabled", "[dp] v4|v6", 1, 2, |w, args| enable(w, args, true)),
    ("dpctl/ipf-set-disabled", "[dp] v4|v6", 1, 2, |w, args| enable(w, args, false)),
];

/// The greatest limit of waiting fragments, as in Open vSwitch.
const MOST_FRAGMENTS: usize = 5000;

/// The type of a port, and its options by name. A device that is not there has neither.
fn shown(w: &MainPmd, p: &Port) -> Shown {
    match &p.kind {
        PortKind::Device(d) | PortKind::Internal(d) => w.device(*d).map_or(Shown::default(), |d| d.shown.clone()),
        PortKind::Patch(peer) => Shown { kind: "patch", options: vec![("peer", peer.clone())] },
        PortKind::Tunnel(t) => {
            let [dir, hwid, idx, ver] = erspan(t);
            let usual = TunnelConfig::new(t.kind, None);
            let (both, key) = (t.key == t.in_key, |k: Option<TunnelKey>| k.map_or("flow".into(), |k| k.to_string()));
            let flow = |a: Option<std::net::IpAddr>| a.map_or("flow".into(), |a| a.to_string());
            // What is as usual is left out.
            let options = [
                ("csum", t.csum.map(|c| c.to_string())),
                ("df_default", (!t.df).then(|| "false".into())),
                ("dst_port", (t.udp_port != usual.udp_port).then(|| t.udp_port.to_string())),
                ("egress_pkt_mark", t.mark.map(|m| m.to_string())),
                ("erspan_dir", dir),
                ("erspan_hwid", hwid),
                ("erspan_idx", idx),
                ("erspan_ver", ver),
                ("key", (both && t.has_key()).then(|| key(t.key))),
                ("in_key", (!both && t.in_key != Some(TunnelKey::NONE)).then(|| key(t.in_key))),
                ("local_ip", t.local.map(|l| l.to_string()).or(t.local_of_flow.then(|| "flow".into()))),
                ("out_key", (!both && t.has_key()).then(|| key(t.key))),
                ("packet_type", (t.mode != usual.mode).then(|| mode(t.mode).into())),
                ("remote_ip", Some(flow(t.remote))),
                ("seq", t.sequence.then(|| "true".into())),
                ("tos", t.inherits_tos.then(|| "inherit".into())),
                ("tos", (t.tos != 0).then(|| format!("{:#x}", t.tos))),
                ("ttl", t.inherits_ttl.then(|| "inherit".into())),
                ("ttl", (!t.inherits_ttl && !matches!(t.ttl, 0 | 64)).then(|| t.ttl.to_string())),
            ];
            let options = options.into_iter().filter_map(|(name, v)| Some((name, v?))).collect();
            Shown { kind: type_name(t), options }
        }
    }
}

/// The options of ERSPAN that a port's version has: direction, hardware, index, version.
fn erspan(t: &TunnelConfig) -> [Option<String>; 4] {
    if t.kind != TunnelKind::Erspan {
        return [const { None }; 4];
    }
    let (o, flow) = (t.erspan, || "flow".to_string());
    let (of_first, of_second) = (o.version != Some(2), o.version != Some(1));
    [
        of_second.then(|| o.egress.map_or_else(flow, |v| u8::from(v).to_string())),
        of_second.then(|| o.hardware.map_or_else(flow, |v| format!("{v:#x}"))),
        of_first.then(|| o.index.map_or_else(flow, |v| format!("{v:#x}"))),
        Some(o.version.map_or_else(flow, |v| v.to_string())),
    ]
}

/// A tunnel's type, as its row has it.
pub(super) fn type_name(t: &TunnelConfig) -> &'static str {
    match t.kind {
        TunnelKind::Geneve => "geneve",
        TunnelKind::Vxlan => "vxlan",
        TunnelKind::Gre if t.v6_type => "ip6gre",
        TunnelKind::Gre => "gre",
        TunnelKind::Erspan if t.v6_type => "ip6erspan",
        TunnelKind::Erspan => "erspan",
        TunnelKind::Srv6 => "srv6",
        TunnelKind::Gtpu => "gtpu",
    }
}

pub(super) fn mode(m: PacketMode) -> &'static str {
    match m {
        PacketMode::LegacyL2 => "legacy_l2",
        PacketMode::LegacyL3 => "legacy_l3",
        PacketMode::Aware => "ptap",
    }
}

/// The number of the port of the datapath that a port is; none: it is none.
fn datapath_number(w: &MainPmd, p: &Port) -> Option<u32> {
    match &p.kind {
        PortKind::Device(d) | PortKind::Internal(d) => Some(d.0),
        // As Open vSwitch numbers the common port of such tunnels.
        PortKind::Tunnel(t) => Some(w.switch.tunnel_number(t)),
        PortKind::Patch(_) => None,
    }
}

fn dpif(w: &mut MainPmd, _: &[String]) -> Answer {
    let cache = w.switch.cache_stats();
    let mut out = format!("{}: hit:{} missed:{}\n", w.datapath, cache.hits, cache.misses);
    let mut bridges: Vec<_> = w.switch.bridges().collect();
    bridges.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    for (_, b) in bridges {
        let _ = writeln!(out, "  {}:", b.name);
        let mut ports: Vec<&Port> = b.ports.values().collect();
        ports.sort_by(|x, y| x.name.cmp(&y.name));
        for p in ports {
            let number = datapath_number(w, p).map_or("none".into(), |n| n.to_string());
            let Shown { kind, options } = shown(w, p);
            let options: Vec<String> = options.into_iter().map(|(name, v)| format!("{name}={v}")).collect();
            let colon = if options.is_empty() { "" } else { ": " };
            let _ = writeln!(out, "    {} {}/{number}: ({kind}{colon}{})", p.name, p.no.0, options.join(", "));
        }
    }
    Ok(out)
}

/// The same as values.
pub(super) fn dpif_json(w: &MainPmd, _: Vec<String>) -> Result<Value, String> {
    let cache = w.switch.cache_stats();
    let port = |p: &Port| {
        let number = datapath_number(w, p).map_or("none".into(), |n| n.to_string());
        let Shown { kind, options } = shown(w, p);
        let options: Map<String, Value> = options.into_iter().map(|(name, v)| (name.into(), v.into())).collect();
        let mut all = json!({"ofport": p.no.0.to_string(), "port_no": number, "type": kind});
        if let Some(all) = all.as_object_mut().filter(|_| !options.is_empty()) {
            all.insert("config".into(), options.into());
        }
        (p.name.clone(), all)
    };
    let bridge = |b: &Bridge| (b.name.clone(), b.ports.values().map(port).collect::<Map<_, _>>().into());
    let bridges: Map<String, Value> = w.switch.bridges().map(|(_, b)| bridge(b)).collect();
    let stats = json!({"hit": cache.hits.to_string(), "missed": cache.misses.to_string()});
    Ok(json!({w.datapath: {"bridges": bridges, "stats": stats}}))
}

fn tunnels(w: &mut MainPmd, _: &[String]) -> Answer {
    let mut out = String::from("Listening ports:\n");
    let mut seen: BTreeMap<(&str, u16), (u32, usize)> = BTreeMap::new();
    for (_, b) in w.switch.bridges() {
        for p in b.ports.values() {
            let PortKind::Tunnel(t) = &p.kind else { continue };
            let port = seen.entry((t.datapath_port(), t.udp_port)).or_insert((w.switch.tunnel_number(t), 0));
            port.1 += 1;
        }
    }
    for ((name, udp), (number, n)) in seen {
        let suffix = if udp == 0 { String::new() } else { format!("_{udp}") };
        // SRv6 is listened for as IPv4 and as IPv6 within IPv6.
        for _ in 0..if name == "srv6_sys" { 2 } else { 1 } {
            let _ = writeln!(out, "{name}{suffix} ({number}) ref_cnt={n}");
        }
    }
    Ok(out)
}

fn fragments(w: &mut MainPmd, args: &[String]) -> Answer {
    let f = &w.switch.fragments;
    let mut lines = vec![
        "Fragmentation Module Status".to_string(),
        "---------------------------".into(),
        format!("v4 enabled: {}", u8::from(f.enabled[0])),
        format!("v6 enabled: {}", u8::from(f.enabled[1])),
        format!("max num frags (v4/v6): {}", f.most),
        format!("num frag: {}", f.len()),
    ];
    for (name, (least, c)) in ["v4", "v6"].into_iter().zip(f.least.iter().zip(f.counts)) {
        lines.push(format!("min {name} frag size: {least}"));
        // When there is no room, new fragments are refused; none is purged.
        let counts = [
            ("accepted", c.accepted),
            ("completed", c.completed),
            ("expired", c.expired),
            ("too small", c.small),
            ("overlapped", c.overlapped),
            ("purged", 0),
        ];
        lines.extend(counts.map(|(what, n)| format!("{name} frags {what}: {n}")));
    }
    let mut out: String = lines.into_iter().map(|l| format!("        {l}\n")).collect();
    if args.iter().any(|a| a == "-m" || a == "--more") {
        out += "\n        Fragment Lists:\n\n";
        out.extend(f.lines().into_iter().map(|l| l + "\n"));
    }
    Ok(out)
}

fn set_least(w: &mut MainPmd, args: &[String]) -> Answer {
    let [.., family, size] = args else { return Err("expected v4 or v6, and a size".into()) };
    let (at, least) = match family.as_str() {
        "v4" => (0, 400),
        "v6" => (1, 400),
        other => return Err(format!("{other}: expected v4 or v6")),
    };
    let n: usize = size.parse().map_err(|_| format!("{size}: expected a size in bytes"))?;
    if n < least {
        return Err(format!("{size}: the least is {least}"));
    }
    if let Some(l) = w.switch.fragments.least.get_mut(at) {
        *l = n;
    }
    Ok("setting minimum fragment size successful\n".into())
}

/// Turns the reassembly of IPv4 or IPv6 fragments on or off; without it they are invalid.
fn enable(w: &mut MainPmd, args: &[String], on: bool) -> Answer {
    let at = match last_word(args)? {
        "v4" => 0,
        "v6" => 1,
        _ => return Err("parameter missing: 'v4' for IPv4 or 'v6' for IPv6 (Invalid argument)".into()),
    };
    w.switch.fragments.enabled[at] = on;
    Ok(format!("{} fragmentation reassembly successful\n", if on { "enabling" } else { "disabling" }))
}

/// Sets how many fragments may wait.
fn set_most(w: &mut MainPmd, args: &[String]) -> Answer {
    let most = last_word(args)?.parse().map_err(|_| "parameter missing for maximum fragments (Invalid argument)")?;
    if most > MOST_FRAGMENTS {
        return Err("setting maximum fragments failed (Operation not permitted)".into());
    }
    w.switch.fragments.most = most;
    Ok("setting maximum fragments successful\n".into())
}

/// The features of the datapath.
fn features(w: &mut MainPmd, args: &[String]) -> Answer {
    super::bridge(w, args)?;
    let (tags, cuts, not_offered) = (w.switch.underlay.tags(), w.switch.cuts, &w.not_offered);
    let line = |(name, value): &(&str, &str)| {
        let value = match *name {
            "Max VLAN headers" => tags.to_string(),
            "Truncate action" if !cuts => "No".into(),
            feature if not_offered.contains(&feature) => "No".into(),
            _ => (*value).into(),
        };
        format!("{name}: {value}\n")
    };
    Ok(FEATURES.iter().map(line).collect())
}

/// Features that Open vSwitch does elsewhere where its datapath does not offer them, by their names in commands and in
/// what is shown: there is one place for all here, and packets fare the same.
const OFFERED: &[(&str, &str)] = &[
    ("clone", "Clone action"),
    ("ct_clear", "Conntrack clear"),
    ("check_pkt_len", "Check pkt length action"),
    ("explicit_drop_action", "Explicit Drop action"),
    ("add_mpls", "MPLS Label add"),
];

/// Turns a feature on or off, by its name in Open vSwitch; without a name it shows all.
fn offer(w: &mut MainPmd, args: &[String]) -> Answer {
    let [bridge, rest @ ..] = args else { return Err("expected a bridge".into()) };
    super::bridge(w, std::slice::from_ref(bridge))?;
    let [name, value] = rest else { return features(w, std::slice::from_ref(bridge)) };
    let on = match value.as_str() {
        "true" => true,
        "false" => false,
        other => return Err(format!("{other}: boolean value expected, true or false")),
    };
    match name.as_str() {
        "trunc" => w.switch.cuts = on,
        "tnl_push_pop" => w.switch.pushes = on,
        other => match OFFERED.iter().find(|(short, _)| *short == other) {
            Some((_, feature)) if on => w.not_offered.retain(|f| f != feature),
            Some((_, feature)) => w.not_offered.push(feature),
            None => {
                let names: Vec<&str> = OFFERED.iter().map(|(short, _)| *short).collect();
                return Err(format!(
                    "{other}: not a feature that can be changed here; trunc, tnl_push_pop, {} are",
                    names.join(", ")
                ));
            }
        },
    }
    Ok(String::new())
}
