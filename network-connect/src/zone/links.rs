//! Links between networks' routers and the connect router, and what is sent over them.

use super::rows::{Key, Port, Side, Value, mac, port_name, router_name};
use super::{Joined, Member, Read, V, joined, keys, locals_of, problem};
use crate::address::{Family, Subnet};
use crate::resource::{Changed, Layer};
use ovn_schema::{Set, Str};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The addresses of both sides of a link, by family.
fn pairs(member: &Member, number: u32) -> Option<Vec<(Subnet, IpAddr, IpAddr)>> {
    let one = |s: Subnet| s.pair(number).map(|(connect, network)| (s, connect, network));
    member.subnets.iter().map(one).collect::<Option<Vec<_>>>().filter(|p| !p.is_empty())
}

fn networks(pairs: &[(Subnet, IpAddr, IpAddr)], side: Side) -> (Str, Set<Str>) {
    let ip = |(_, connect, network): &(Subnet, IpAddr, IpAddr)| if side == Side::Connect { *connect } else { *network };
    let first = pairs.first().map_or(IpAddr::from([0; 4]), ip);
    let texts = pairs.iter().map(|p| format!("{}/{}", ip(p), Subnet::pair_prefix(p.0.family())).into());
    (mac(first), texts.collect())
}

/// A link: both ports where it is in this zone, that of the connect router where it is in another.
struct Place<'a> {
    /// The number in external IDs.
    id: u32,
    /// The number of the pair of addresses.
    pair: u32,
    /// The node's name, in layer 3 networks.
    node: Option<&'a str>,
    /// The chassis, where it is in another zone.
    remote: Option<Str>,
}

fn link_ports(name: &Str, j: &Joined, member: &Member, place: &Place<'_>, v: &mut V<'_>) {
    let network = &member.network;
    let Some(pairs) = pairs(member, place.pair) else {
        let node = place.node.unwrap_or_default();
        let text = format!(
            "network {}: node {node} has number {}, and {:?} has fewer pairs of addresses",
            network.name, place.id, member.subnets
        );
        return problem(name, v, text);
    };
    let key = match keys::port_key(&j.spec, member.owner, &member.subnets, place.id) {
        Ok(key) => Some(key),
        Err(why) => {
            // In this zone northd finds one; other zones could not know it.
            if place.remote.is_some() || !locals_alone(v) {
                problem(name, v, format!("network {}: a port's key is left to northd: {why}", network.name));
            }
            None
        }
    };
    let names = |side| port_name(name, &network.name, place.node, side);
    let local = place.remote.is_none();
    let (mac, addresses) = networks(&pairs, Side::Connect);
    let port = Port {
        router: router_name(name),
        name: names(Side::Connect),
        mac,
        networks: addresses,
        peer: local.then(|| names(Side::Network)),
        key,
        chassis: place.remote.clone(),
    };
    v.emit(Key::Port(name.clone(), network.id, place.id, Side::Connect), Value::Port(Box::new(port)));
    if local {
        let (mac, addresses) = networks(&pairs, Side::Network);
        let port = Port {
            router: member.router.clone(),
            name: names(Side::Network),
            mac,
            networks: addresses,
            peer: Some(names(Side::Connect)),
            key: None,
            chassis: None,
        };
        v.emit(Key::Port(name.clone(), network.id, place.id, Side::Network), Value::Port(Box::new(port)));
    }
}

/// Whether all nodes are in this zone.
fn locals_alone(v: &mut V<'_>) -> bool {
    let input = v.read(Read::Resource(Changed::Zones));
    input.resources.nodes().all(|(name, n)| super::is_local(&input.zone, name, n.zone.as_ref()))
}

/// Routes to subnets behind a link.
fn routes(name: &Str, member: &Member, place: &Place<'_>, subnets: &[Subnet], v: &mut V<'_>) {
    let Some(pairs) = pairs(member, place.pair) else { return };
    let mut seen = BTreeSet::new();
    for subnet in subnets {
        let family = subnet.family();
        let Some((_, _, nexthop)) = pairs.iter().find(|(s, ..)| s.family() == family) else { continue };
        let prefix: Str = subnet.to_string().into();
        let more = if seen.insert(family) { None } else { Some(prefix.clone()) };
        let key = Key::Route(name.clone(), member.network.id, place.id, family, more);
        v.emit(key, Value::Route(prefix, nexthop.to_string().into()));
    }
}

/// A layer 3 network has a link for each node.
pub fn at(name: &Str, node: &Str, v: &mut V<'_>) {
    let Some(j) = joined(name, v) else { return };
    let input = v.read(Read::Resource(Changed::Node(node.clone())));
    let Some(n) = input.resources.node_named(node) else { return };
    let Some(id) = n.id else {
        return problem(name, v, format!("node {node} has no {} yet", crate::resource::node::NODE_ID));
    };
    let local = super::is_local(&input.zone, node, n.zone.as_ref());
    let remote = match (local, &n.chassis) {
        (true, _) => None,
        (false, Some(chassis)) => Some(Str::from(chassis.as_str())),
        (false, None) => {
            let annotation = crate::resource::node::CHASSIS;
            return problem(name, v, format!("node {node} is in another zone and has no {annotation} yet"));
        }
    };
    let place = Place { id, pair: id, node: Some(node), remote };
    for member in j.members.iter().filter(|m| m.owner.layer == Layer::Three) {
        link_ports(name, j, member, &place, v);
        if let Some(subnets) = n.subnets.get(&*member.network.name) {
            routes(name, member, &place, subnets, v);
        }
    }
}

/// A network's policies towards the others; its link, where it has one for all nodes.
pub fn link(name: &Str, network: u32, v: &mut V<'_>) {
    let Some(j) = joined(name, v) else { return };
    let Some(member) = j.members.iter().find(|m| m.network.id == network) else { return };
    if member.owner.layer == Layer::Two {
        let place = Place { id: 0, pair: 0, node: None, remote: None };
        link_ports(name, j, member, &place, v);
        routes(name, member, &place, &member.network.subnets, v);
        policies(name, j, member, None, 0, v);
        return;
    }
    for local in locals_of(v) {
        policies(name, j, member, Some((&local.name, (!local.first).then_some(local.id))), local.id, v);
    }
}

/// What comes from pods of a network for pods of another goes to the connect router.
fn policies(name: &Str, j: &Joined, member: &Member, node: Option<(&Str, Option<u32>)>, pair: u32, v: &mut V<'_>) {
    let Some(pairs) = pairs(member, pair) else { return };
    let inport = member.network.router_to_switch(node.map_or("", |(name, _)| name));
    for other in j.members.iter().filter(|m| m.network.id != member.network.id) {
        for family in Family::ALL {
            let Some((_, nexthop, _)) = pairs.iter().find(|(s, ..)| s.family() == family) else { continue };
            let matches: Vec<String> = other
                .network
                .subnets
                .iter()
                .filter(|s| s.family() == family)
                .map(|s| format!("{}.dst == {s}", family.protocol()))
                .collect();
            let matches = match matches.as_slice() {
                [] => continue,
                [one] => one.clone(),
                several => format!("({})", several.join(" || ")),
            };
            let key =
                Key::Policy(name.clone(), member.network.id, other.network.id, family, node.and_then(|(_, node)| node));
            let text = format!("inport == \"{inport}\" && {matches}").into();
            v.emit(key, Value::Policy(member.router.clone(), text, nexthop.to_string().into()));
        }
    }
}
