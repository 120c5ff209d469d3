//! Multicast groups that chassis have learned from IGMP and MLD (`IGMP_Group`): their `Multicast_Group` rows and flows.

use super::multicast;
use crate::context::{Ctx, flag};
use crate::facts::router::Router;
use crate::facts::switch::Switch;
use crate::input::Read;
use crate::model::RowKey;
use crate::stage::Stage::*;
use ovn_schema::{Str, Uuid, nb, sb};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The tunnel keys of learned groups.
const KEYS: std::ops::RangeInclusive<i64> = 32773..=65535;

/// What was learned in a switch.
#[derive(Default)]
pub struct Learned {
    /// The ports of each group.
    groups: BTreeMap<Str, BTreeSet<RowKey>>,
    /// Ports to multicast routers.
    pub mrouters: BTreeSet<RowKey>,
}

/// What was learned in a switch, also where it does not snoop (any more): that is for chassis to take back.
pub fn of_switch(ctx: &mut Ctx<'_, '_>, switch: &Switch) -> Learned {
    let mut out = Learned::default();
    ctx.read(Read::Datapath(switch.uuid));
    for uuid in ctx.read(Read::IgmpGroups(switch.uuid)).igmp_groups(switch.uuid) {
        let Some(row) = ctx.sb::<sb::IgmpGroup>(*uuid).filter(|r| r.chassis.is_some()) else { continue };
        let ports: BTreeSet<RowKey> = row.ports.iter().filter_map(|p| member(ctx, *p)).collect();
        if &*row.address == "mrouters" {
            out.mrouters.extend(ports);
        } else if row.address.parse::<IpAddr>().is_err() {
            ctx.problem(format!("IGMP_Group {}: no address; it is left out", row.address));
        } else if !ports.is_empty() {
            out.groups.entry(row.address.clone()).or_default().extend(ports);
        }
    }
    for ports in out.groups.values_mut() {
        ports.extend(switch.localnets.iter().map(|p| RowKey::port(p)));
    }
    out
}

/// A port, unless all multicast goes there anyway.
fn member(ctx: &mut Ctx<'_, '_>, binding: Uuid) -> Option<RowKey> {
    let name = ctx.sb::<sb::PortBinding>(binding)?.logical_port.clone();
    let read = Read::LspName(name.clone());
    let lsp = ctx.read(read).lsp_by_name(&name).and_then(|l| ctx.lsp(l))?;
    let relayed = lsp.router.and_then(|r| ctx.router(r)).is_some_and(|r| r.mcast_relay());
    (!lsp.option("mcast_flood") && !lsp.option("mcast_flood_reports") && !relayed).then(|| RowKey::port(&name))
}

/// The rows of learned groups, each with the key that it has or the next one free.
fn rows(ctx: &mut Ctx<'_, '_>, datapath: Uuid, groups: &BTreeMap<Str, BTreeSet<RowKey>>) {
    if groups.is_empty() {
        return;
    }
    ctx.read(Read::Datapath(datapath));
    let mut keys: BTreeMap<Str, i64> = BTreeMap::new();
    for uuid in ctx.read(Read::MulticastGroups(datapath)).multicast_groups(datapath) {
        let Some(row) = ctx.sb::<sb::MulticastGroup>(*uuid) else { continue };
        if groups.contains_key(&row.name) {
            keys.insert(row.name.clone(), row.tunnel_key);
        }
    }
    let mut used: BTreeSet<i64> = keys.values().copied().collect();
    for (name, ports) in groups {
        let kept = keys.get(name).copied();
        let Some(key) = kept.or_else(|| KEYS.into_iter().find(|k| !used.contains(k))) else {
            ctx.problem(format!("multicast group {name}: no tunnel key is left; it is left out"));
            continue;
        };
        used.insert(key);
        multicast::group(ctx, datapath, (name, key), ports.iter().cloned().collect());
    }
}

/// The rows and flows of what was learned in a switch.
pub fn switch(ctx: &mut Ctx<'_, '_>, switch: &Switch, learned: &Learned) {
    rows(ctx, switch.uuid, &learned.groups);
    let most = crate::context::number(&switch.config, "mcast_table_size").unwrap_or(2048).max(0) as usize;
    let [mut v4, mut v6] = [0; 2];
    for name in learned.groups.keys() {
        let Ok(ip) = name.parse::<IpAddr>() else { continue };
        let (family, count) = match ip {
            IpAddr::V4(ip) if ip.octets().starts_with(&[224, 0, 0]) => continue,
            IpAddr::V4(_) => ("ip4", &mut v4),
            IpAddr::V6(ip) if ["ff02::1", "ff02::2", "ff05::2"].contains(&&*ip.to_string()) => continue,
            IpAddr::V6(_) => ("ip6", &mut v6),
        };
        *count += 1;
        if *count > most {
            continue;
        }
        let mut actions = String::new();
        if switch.mcast_relay {
            actions.push_str("clone { outport = \"_MC_mrouter_flood\"; output; };");
        }
        if switch.mcast_flood {
            actions.push_str("clone { outport =\"_MC_static\"; output; };");
        }
        actions.push_str(&format!("outport = \"{name}\"; output; "));
        let matches = format!("eth.mcast && {family} && {family}.dst == {name} ");
        ctx.flow(switch.uuid, LsInL2Lkup, 90, matches, actions);
    }
}

/// The rows and flows of what was learned in the switches around a router that relays.
pub fn router(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let mut groups: BTreeMap<Str, BTreeSet<RowKey>> = BTreeMap::new();
    let floods = router.ports.iter().any(|p| p.enabled() && flag(&p.row.options, "mcast_flood"));
    for port in router.ports.iter().filter(|p| !flag(&p.row.options, "mcast_flood")) {
        let lsp = port.switch_port.and_then(|l| ctx.lsp(l));
        if let Some(switch) = lsp.and_then(|l| ctx.switch(l.switch)) {
            for name in of_switch(ctx, switch).groups.into_keys().filter(|n| routable(n)) {
                let key = if router.is_gateway_port(port) { port.cr_name() } else { port.name.to_string() };
                groups.entry(name).or_default().insert(RowKey::port(&key));
            }
        }
    }
    rows(ctx, router.uuid, &groups);
    for name in groups.keys() {
        let family = if name.contains(':') { "ip6" } else { "ip4" };
        let flood = if floods { "clone { outport = \"_MC_static\"; ip.ttl--; next; };" } else { "" };
        let actions = format!("{flood}outport = \"{name}\"; ip.ttl--; next;");
        ctx.flow(router.uuid, LrInIpRouting, 10500, format!("{family} && {family}.dst == {name} "), actions);
    }
}

/// Whether a group's scope is more than one link.
fn routable(name: &str) -> bool {
    match name.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => !matches!(ip.octets()[1] & 0xf, 0 | 1 | 2 | 3 | 0xf),
        Ok(IpAddr::V4(_)) => true,
        Err(_) => false,
    }
}

/// In a switch that joins availability zones, reports that come from elsewhere are for the chassis to learn from.
pub fn transit(ctx: &mut Ctx<'_, '_>, switch: &Switch) {
    if !switch.mcast_snoop || !switch.config.contains_key("interconn-ts") {
        return;
    }
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(switch.uuid) else { return };
    let global = ctx.global();
    for p in &row.ports {
        let Some(lsp) = ctx.lsp(*p).filter(|l| l.kind == crate::facts::lsp::Kind::Remote) else { continue };
        for protocol in ["igmp", "(mldv1 || mldv2)"] {
            let matches = format!("inport == {} && {protocol} && flags.igmp_loopback == 0", lsp.json);
            let extra = crate::facts::global::copp(&switch.copp, "igmp", global);
            ctx.flow_with(switch.uuid, LsOutPreLb, 120, matches, "clone { igmp; }; next;", extra);
        }
    }
}
