//! Unicast MACs: of ports (step 6 of the life cycle), of other switches, and those that a switch learned.

use super::{Attachment, Fact, Home, Place, Unit, V, attached, endpoint_of, info, neighbours, registry_of, warn};
use crate::address;
use crate::model::{Read, TorId};
use crate::output::Module::Vtep;
use crate::output::{Key, Ucast, Value};
use ovn_schema::{Str, Uuid, sb};
use std::collections::BTreeSet;

/// The ports of a datapath to which something is attached.
pub fn members(datapath: Uuid, v: &mut V<'_>) {
    let (mut ports, mut peers) = (Vec::new(), Vec::new());
    for (id, port) in v.read(Read::PortsOf(datapath)).sb.ports_of(datapath) {
        if &*port.r#type == "vtep" {
            peers.push(id);
            v.spawn(Unit::Peer(id));
        } else {
            ports.push(id);
            v.spawn(Unit::Port(id));
        }
    }
    v.derive(Fact::Members(ports, peers));
}

fn row<'a>(id: Uuid, v: &mut V<'a>) -> Option<&'a sb::PortBinding> {
    v.read(Read::Sb(sb::TableId::PortBinding, id)).sb.db.port_binding.get(&id).map(|p| &**p)
}

/// A port's MACs at the endpoint of its chassis.
pub fn port(id: Uuid, v: &mut V<'_>) {
    let Some(port) = row(id, v) else { return };
    let attached = attached(v, port.datapath);
    match &*port.r#type {
        // Bound where its packets are served, not where the machine is; and the port that only stands for a router's
        // port, which is met from the switch's side.
        "external" | "chassisredirect" => {}
        "patch" | "l3gateway" => router(port, attached, v),
        _ => {
            let Some(chassis) = port.chassis else { return };
            let place = place(port, chassis, v);
            if let Some((ip, place)) = place {
                macs(port, &port.mac, &ip, attached, v);
                v.derive(Fact::Place(place));
            }
        }
    }
}

/// The endpoint of a port, and all that have to get packets to many for it.
fn place(port: &sb::PortBinding, chassis: Uuid, v: &mut V<'_>) -> Option<(Str, Place)> {
    let chosen = port.encap.and_then(|e| v.read(Read::Sb(sb::TableId::Encap, e)).sb.db.encap.get(&e));
    let chosen = chosen.filter(|e| &*e.r#type == "vxlan" && address::endpoint(&e.ip).is_some()).map(|e| e.ip.clone());
    let ip = match chosen.or_else(|| endpoint_of(v, chassis).cloned()) {
        Some(ip) => ip,
        None => {
            let name = v.read(Read::Sb(sb::TableId::Chassis, chassis)).sb.db.chassis.get(&chassis);
            let name = name.map(|c| c.name.clone()).unwrap_or_default();
            info(v, Vtep, format!("VTEP tunnel encap on chassis ({name}) not found"));
            return None;
        }
    };
    // While a machine moves it is at both places.
    let more: Vec<Str> = port.additional_chassis.iter().filter_map(|c| endpoint_of(v, *c).cloned()).collect();
    let ips = more.into_iter().chain([ip.clone()]).collect();
    Some((ip, Place { ips, ..Place::default() }))
}

fn macs(port: &sb::PortBinding, addresses: &BTreeSet<Str>, ip: &Str, attached: &[Attachment], v: &mut V<'_>) {
    for (mac, ipaddr) in addresses.iter().filter_map(|a| address::port_addresses(a)) {
        for a in attached {
            let ipaddr = if a.replication.arp_suppression { ipaddr.clone() } else { None };
            let value = Ucast {
                learned: false,
                port: port.logical_port.clone(),
                ip: ip.clone(),
                ipaddr: ipaddr.unwrap_or_default(),
            };
            v.emit(Key::Ucast(a.tor, a.switch, mac.clone()), Value::Ucast(value));
        }
    }
}

/// The router's port at the other end: where it is, if it is at one place at all. A distributed gateway port is
/// where its `chassisredirect` port is; a gateway router's port where the router is.
fn router(port: &sb::PortBinding, attached: &[Attachment], v: &mut V<'_>) {
    let Some(peer) = port.options.get("peer") else { return };
    let redirect = v.read(Read::RedirectOf(peer.clone())).sb.redirect_of(peer).map(|(id, _)| id);
    let (far, chassis) = if let Some(redirect) = redirect.and_then(|id| row(id, v)) {
        (redirect, redirect.chassis)
    } else if &*port.r#type == "l3gateway" {
        let Some((_, far)) = v.read(Read::PortNamed(peer.clone())).sb.port(peer) else { return };
        (far, port.chassis)
    } else {
        return;
    };
    let Some(chassis) = chassis else { return };
    if let Some((ip, place)) = place(far, chassis, v) {
        macs(far, &far.mac, &ip, attached, v);
        v.derive(Fact::Place(Place { router: true, ..place }));
    }
}

/// The port of a switch: for databases whose switch it is not, it is a place with MACs that were learned.
pub fn peer(id: Uuid, v: &mut V<'_>) {
    let Some(port) = row(id, v) else { return };
    let Some(chassis) = port.chassis else { return };
    let Some(ip) = endpoint_of(v, chassis) else { return };
    let Some(registry) = registry_of(v) else { return };
    let group = port.options.get("vtep-physical-switch").and_then(|p| registry.chassis.get(p));
    let group = group.and_then(|c| registry.groups.get(c));
    let own = group.into_iter().flat_map(|g| &g.members).map(|m| m.tor).collect();
    if let Some(key) = datapath_key(port.datapath, v) {
        for row in v.read(Read::LearnedAt(key, port.tunnel_key)).sb.learned_at(key, port.tunnel_key) {
            v.spawn(Unit::Learned(row, id));
        }
    }
    v.derive(Fact::Place(Place { ips: BTreeSet::from([ip.clone()]), own, router: false }));
}

fn datapath_key(datapath: Uuid, v: &mut V<'_>) -> Option<i64> {
    let read = Read::Sb(sb::TableId::DatapathBinding, datapath);
    v.read(read).sb.db.datapath_binding.get(&datapath).map(|d| d.tunnel_key)
}

/// A MAC that another switch learned.
pub fn learned(fdb: Uuid, peer: Uuid, v: &mut V<'_>) {
    let Some(fdb) = v.read(Read::Sb(sb::TableId::Fdb, fdb)).sb.db.fdb.get(&fdb) else { return };
    let Some(port) = row(peer, v) else { return };
    let Some(Fact::Place(place)) = v.fact(&Unit::Peer(peer)) else { return };
    let (Some(mac), Some(ip)) = (address::mac(&fdb.mac), place.ips.first()) else { return };
    let known = neighbours::address_of(fdb, &mac, v);
    for a in attached(v, port.datapath).iter().filter(|a| !place.own.contains(&a.tor)) {
        let (port, ip) = (port.logical_port.clone(), ip.clone());
        let ipaddr = if a.replication.arp_suppression { known.clone() } else { None };
        let value = Ucast { learned: true, port, ip, ipaddr: ipaddr.unwrap_or_default() };
        v.emit(Key::Ucast(a.tor, a.switch, mac.clone()), Value::Ucast(value));
    }
}

/// What a logical switch learned.
pub fn locals(tor: TorId, switch: Uuid, v: &mut V<'_>) {
    let Some(Fact::Bindings(b)) = v.fact(&Unit::Bindings) else { return };
    let Some(homes) = b.homes.get(&(tor, switch)) else { return };
    if let Some(t) = v.read(Read::LocalsOf(tor, switch)).tor(tor) {
        for row in t.locals_of(switch) {
            v.spawn(Unit::Local(tor, switch, row));
        }
    }
    v.derive(Fact::Locals(homes.clone()));
}

/// A MAC that a switch learned: it belongs to the port of the switch whose endpoint the locator is.
pub fn local(tor: TorId, switch: Uuid, id: Uuid, v: &mut V<'_>) {
    let Some(Fact::Locals(homes)) = v.fact(&Unit::Locals(tor, switch)) else { return };
    let Some(t) = v.read(Read::Local(tor, id)).tor(tor) else { return };
    let Some(local) = t.db.ucast_macs_local.get(&id) else { return };
    let Some(mac) = address::mac(&local.mac) else {
        warn(v, Vtep, format!("{}: Ucast_Macs_Local {id}: ({}) is no MAC address; it is ignored", t.name, local.mac));
        return;
    };
    let ip = t.locator_ip(local.locator);
    if ip.is_none_or(|ip| address::endpoint(ip).is_none()) {
        let text = format!(
            "{}: Physical_Locator {} of Ucast_Macs_Local {id} has no usable address; MAC ({mac}) is taken to be at any port of its logical switch",
            t.name, local.locator
        );
        warn(v, Vtep, text);
    }
    let at = |h: &&Home| ip.is_some_and(|ip| h.ips.contains(ip));
    if let Some(home) = homes.iter().find(at).or_else(|| homes.first()) {
        v.emit(Key::Fdb(home.datapath, mac.clone()), Value::Fdb(home.port, tor));
        neighbours::learned(&t.name, tor, id, local, &mac, home, v);
    }
}
