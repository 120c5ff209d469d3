//! Where a switch sends packets that are for many: unknown unicast, broadcast, multicast.

use super::{Attachment, Fact, Place, Unit, V, attached, endpoint_of, registry_of, warn};
use crate::address;
use crate::model::{Read, TorId, is_gateway};
use crate::output::Module::Vtep;
use crate::output::{Key, Value};
use ovn_schema::{Set, Str, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// The row for all that has no row of its own (vtep(5), Mcast_Macs_Remote).
pub const UNKNOWN: &str = "unknown-dst";

/// The groups of ovn-northd whose ports get every group's packets.
const TO_ALL: [&str; 2] = ["_MC_mrouter_flood", "_MC_static"];

/// Puts out the sets of locators of a logical switch.
pub fn flood(tor: TorId, switch: Uuid, datapath: Uuid, v: &mut V<'_>) {
    let Some(a) = attached(v, datapath).iter().find(|a| a.tor == tor && a.switch == switch) else { return };
    let (own, down) = (own(tor, v), down(tor, v));
    let keep = |ips: &BTreeSet<Str>| reachable(ips.iter().filter(|ip| !own.contains(*ip)), &down);
    let places = places(datapath, v);
    let others = |p: &&(Uuid, &Place)| !p.1.own.contains(&tor);
    if a.replication.by_service_node {
        let nodes = keep(&service_nodes(a, v));
        if !nodes.is_empty() {
            v.emit(Key::Mcast(tor, switch, UNKNOWN.into()), Value::Mcast(nodes));
            return;
        }
        let text = format!(
            "Logical_Switch {switch}: no service node has a VXLAN endpoint; the switch is given all chassis instead. Set service-nodes, or make a chassis a gateway"
        );
        warn(v, Vtep, text);
    }
    let all: BTreeSet<Str> = places.iter().filter(others).flat_map(|(_, p)| p.ips.clone()).collect();
    let all = keep(&all);
    if a.replication.groups {
        // Routers and other switches get every group: who listens behind them is not known here.
        let base = places.iter().filter(|(_, p)| p.router);
        let mut base: BTreeSet<Str> = base.flat_map(|(_, p)| p.ips.clone()).collect();
        base.extend(peers(datapath, tor, v));
        for (mac, ips) in groups(datapath, &places, base, v) {
            let ips = keep(&ips);
            if !ips.is_empty() && ips != all {
                v.emit(Key::Mcast(tor, switch, mac), Value::Mcast(ips));
            }
        }
    }
    if !all.is_empty() {
        v.emit(Key::Mcast(tor, switch, UNKNOWN.into()), Value::Mcast(all));
    }
}

/// The endpoints of a database's own switches.
fn own(tor: TorId, v: &mut V<'_>) -> BTreeSet<Str> {
    registry_of(v).and_then(|r| r.own.get(&tor)).cloned().unwrap_or_default()
}

fn down(tor: TorId, v: &mut V<'_>) -> BTreeSet<Str> {
    match v.fact(&Unit::Tunnels(tor)) {
        Some(Fact::Down(ips)) => ips.clone(),
        _ => BTreeSet::new(),
    }
}

/// Those that are not down; all where none is left, as then it is not they who are cut off.
fn reachable<'i>(ips: impl Iterator<Item = &'i Str>, down: &BTreeSet<Str>) -> Set<Str> {
    let ips: Set<Str> = ips.cloned().collect();
    let up: Set<Str> = ips.difference(down).cloned().collect();
    if up.is_empty() { ips } else { up }
}

/// The places of all ports of a datapath.
fn places<'a>(datapath: Uuid, v: &mut V<'a>) -> Vec<(Uuid, &'a Place)> {
    let Some(Fact::Members(ports, peers)) = v.fact(&Unit::Members(datapath)) else { return Vec::new() };
    let units = ports.iter().map(|p| (*p, Unit::Port(*p))).chain(peers.iter().map(|p| (*p, Unit::Peer(*p))));
    let mut out = Vec::new();
    for (id, unit) in units {
        if let Some(Fact::Place(place)) = v.fact(&unit) {
            out.push((id, place));
        }
    }
    out
}

/// The endpoints of other switches at a datapath.
fn peers(datapath: Uuid, tor: TorId, v: &mut V<'_>) -> BTreeSet<Str> {
    let Some(Fact::Members(_, peers)) = v.fact(&Unit::Members(datapath)) else { return BTreeSet::new() };
    let mut out = BTreeSet::new();
    for p in peers {
        if let Some(Fact::Place(place)) = v.fact(&Unit::Peer(*p))
            && !place.own.contains(&tor)
        {
            out.extend(place.ips.iter().cloned());
        }
    }
    out
}

/// The endpoints of each multicast group, by MAC: groups that share a MAC share the set.
fn groups(
    datapath: Uuid,
    places: &[(Uuid, &Place)],
    mut base: BTreeSet<Str>,
    v: &mut V<'_>,
) -> BTreeMap<Str, BTreeSet<Str>> {
    let mut by_mac: BTreeMap<Str, BTreeSet<Str>> = BTreeMap::new();
    for g in v.read(Read::GroupsOf(datapath)).sb.groups_of(datapath) {
        let ip = g.chassis.and_then(|c| endpoint_of(v, c).cloned());
        match address::group_mac(&g.address) {
            Some(mac) => by_mac.entry(mac).or_default().extend(ip),
            // `mrouters`: a multicast router hears every group.
            None => base.extend(ip),
        }
    }
    if by_mac.is_empty() {
        return by_mac;
    }
    for g in v.read(Read::FloodsOf(datapath)).sb.floods_of(datapath).filter(|g| TO_ALL.contains(&&*g.name)) {
        base.extend(places.iter().filter(|(id, _)| g.ports.contains(id)).flat_map(|(_, p)| p.ips.clone()));
    }
    for ips in by_mac.values_mut() {
        ips.extend(base.iter().cloned());
    }
    by_mac
}

/// The endpoints of the service nodes: those that are named, else the gateway chassis.
fn service_nodes(a: &Attachment, v: &mut V<'_>) -> BTreeSet<Str> {
    let mut out = BTreeSet::new();
    for node in &a.replication.nodes {
        if address::endpoint(node).is_some() {
            out.insert(node.clone());
            continue;
        }
        let chassis = v.read(Read::ChassisNamed(node.clone())).sb.chassis(node).map(|(id, _)| id);
        match chassis.and_then(|c| endpoint_of(v, c)) {
            Some(ip) => {
                out.insert(ip.clone());
            }
            None => {
                let text = format!(
                    "service node ({node}) is neither an IPv4 address nor a chassis with a VXLAN endpoint; it is left out"
                );
                warn(v, Vtep, text);
            }
        }
    }
    if a.replication.nodes.is_empty() {
        let gateways: Vec<Uuid> =
            v.read(Read::Gateways).sb.gateways().filter(|(_, c)| is_gateway(c)).map(|(id, _)| id).collect();
        out.extend(gateways.into_iter().filter_map(|c| endpoint_of(v, c).cloned()));
    }
    out
}
