//! Transit switches and their ports (ovn-ic-nb(5), `Transit_Switch`). Ports come from `Transit_Switch_Port` rows, or
//! from ports that people add to the logical switch in one zone.

use super::{Unit, V, Zone, chassis_name, is_remote, vxlan, warn, zone_of};
use crate::model::{Read, TSP};
use crate::output::{Datapath, Key, Kind, Port, SwitchPort, Transit, Value};
use ovn_schema::{Str, Uuid, ic_nb, ic_sb, nb};
use std::collections::{BTreeMap, BTreeSet};

/// A transit switch while its ports are gone through.
struct Switch<'a> {
    id: Uuid,
    name: &'a Str,
    zone: &'a Zone,
    /// Ports in all zones.
    ports: BTreeMap<&'a Str, &'a ic_sb::PortBinding>,
}

impl Switch<'_> {
    fn port(&self, address: Str, gateway: Str) -> Port {
        Port {
            zone: self.zone.row,
            of: self.name.clone(),
            row: self.id,
            kind: Kind::Switch,
            address,
            gateway,
            router: None,
            shared: false,
        }
    }
}

/// Puts out a transit switch: its datapath, the logical switch that stands for it here, and the ports of both.
pub fn switch(id: Uuid, v: &mut V<'_>) {
    let Some(zone) = zone_of(v) else { return };
    let icnb = &v.read(Read::TransitSwitch(id)).icnb;
    let Some(ts) = icnb.db.transit_switch.get(&id) else { return };
    let transit = Transit::Switch(ts.name.clone());
    let vxlan = vxlan(v);
    v.emit(Key::Datapath(transit.clone()), Value::Datapath(Datapath { row: id, vxlan }));
    let datapath = v.read(Read::IcDatapath(transit.clone())).icsb.datapath(&transit);
    v.spawn(Unit::RoutersOn(ts.name.clone()));
    v.emit(Key::Switch(ts.name.clone()), Value::Switch(vxlan, datapath.map(|d| d.tunnel_key)));
    let ports = v.read(Read::IcPortsOf(ts.name.clone())).icsb.ports_of(&ts.name);
    let switch = Switch { id, name: &ts.name, zone, ports: ports.map(|p| (&p.logical_port, p)).collect() };
    let mut done: BTreeSet<&Str> = BTreeSet::new();
    for tsp in ts.ports.iter().filter_map(|p| icnb.db.transit_switch_port.get(p)) {
        done.insert(&tsp.name);
        transit_port(&switch, tsp, v);
    }
    let nb = &v.read(Read::SwitchOf(ts.name.clone())).nb;
    if let Some((_, ls)) = nb.switch_of_transit(&ts.name) {
        let by_hand = ls.ports.iter().filter_map(|p| nb.db.logical_switch_port.get(p));
        for lsp in by_hand.filter(|p| !p.options.contains_key(TSP) && matches!(&*p.r#type, "router" | "switch")) {
            if done.insert(&lsp.name) {
                local_port(&switch, lsp, v);
            }
        }
    }
    for (name, port) in switch.ports.iter().filter(|(n, p)| !done.contains(*n) && p.availability_zone != zone.row) {
        remote_port(&switch, name, port, v);
    }
}

/// A `Transit_Switch_Port`. The zone of its chassis writes its row for all; one without a chassis is everywhere, and
/// the zone with the lock writes its row.
fn transit_port(switch: &Switch<'_>, tsp: &ic_nb::TransitSwitchPort, v: &mut V<'_>) {
    let anywhere = tsp.chassis.is_empty();
    let remote = !anywhere && is_remote(&tsp.chassis, v);
    let row = switch.ports.get(&tsp.name);
    let own = row.is_some_and(|r| r.availability_zone == switch.zone.row);
    let address = tsp.addresses.first().cloned().unwrap_or_default();
    let mut port = switch.port(address, tsp.chassis.clone());
    if anywhere {
        // Whoever wrote the row first keeps it.
        port.shared = true;
        port.zone = row.map_or(port.zone, |r| r.availability_zone);
        if own || v.read(Read::Leader).leader {
            v.emit(Key::Port(tsp.name.clone()), Value::Port(Box::new(port)));
        }
    } else if !remote {
        v.emit(Key::Port(tsp.name.clone()), Value::Port(Box::new(port)));
    }
    let Some(row) = row.filter(|_| anywhere || own != remote) else { return };
    let is_router = &*tsp.r#type == "router";
    let peer = |wanted: bool| if wanted { tsp.peer.clone() } else { Str::default() };
    let value = SwitchPort::Transit {
        kind: if remote { "remote".into() } else { tsp.r#type.clone() },
        addresses: tsp.addresses.clone(),
        chassis: tsp.chassis.clone(),
        router_port: peer(is_router),
        peer: peer(!is_router),
        key: row.tunnel_key,
    };
    v.emit(Key::SwitchPort(switch.name.clone(), tsp.name.clone()), Value::SwitchPort(Box::new(value)));
}

/// A port that people added here.
fn local_port(switch: &Switch<'_>, lsp: &nb::LogicalSwitchPort, v: &mut V<'_>) {
    let row = v.read(Read::IcPort(lsp.name.clone())).icsb.port(&lsp.name);
    if row.is_some_and(|r| r.availability_zone != switch.zone.row) {
        let text = format!(
            "port {} of transit switch {}: another zone has a port of this name; it is left out: give one of them \
             another name",
            lsp.name, switch.name
        );
        warn(v, text);
        return;
    }
    let row = row.filter(|r| r.transit_switch == *switch.name);
    let sb = &v.read(Read::PortBinding(lsp.name.clone())).sb;
    match sb.port(&lsp.name) {
        Some((_, binding)) => {
            let place = place(lsp, binding, v);
            let mut port = switch.port(place.address, place.gateway);
            port.router = place.router;
            v.emit(Key::Port(lsp.name.clone()), Value::Port(Box::new(port)));
            if &*lsp.r#type == "router"
                && let Some(router) = place.router
            {
                v.spawn(Unit::Attached(router));
            }
        }
        // northd has not come to it, or starts anew: what the others know of it stays.
        None => {
            if let Some(row) = row {
                let mut port = switch.port(row.address.clone(), row.gateway.clone());
                port.router = row.external_ids.get("router-id").and_then(|id| id.parse().ok());
                v.emit(Key::Port(lsp.name.clone()), Value::Port(Box::new(port)));
            }
        }
    }
    if let Some(row) = row {
        let value = SwitchPort::Local { key: row.tunnel_key };
        v.emit(Key::SwitchPort(switch.name.clone(), lsp.name.clone()), Value::SwitchPort(Box::new(value)));
    }
}

/// Where a port of this zone is.
struct Place {
    address: Str,
    gateway: Str,
    router: Option<Uuid>,
}

/// A router's port has the router port's addresses, and is where its `chassisredirect` port is.
fn place(lsp: &nb::LogicalSwitchPort, binding: &ovn_schema::sb::PortBinding, v: &mut V<'_>) -> Place {
    let peer = binding.options.get("peer").cloned();
    let router_port = peer.as_ref().and_then(|name| v.read(Read::PortBinding(name.clone())).sb.port(name));
    let redirect = peer.as_ref().and_then(|name| {
        let name: Str = format!("cr-{name}").into();
        let (_, port) = v.read(Read::PortBinding(name.clone())).sb.port(&name)?;
        chassis_name(port.chassis, v).cloned()
    });
    let is_switch = &*lsp.r#type == "switch";
    let address = match router_port {
        // Switches have the address "unknown" always.
        _ if is_switch => "unknown".into(),
        Some((_, p)) => p.mac.first().cloned().unwrap_or_default(),
        None => Str::default(),
    };
    let own = chassis_name(binding.chassis.filter(|_| is_switch), v).cloned();
    let gateway = redirect.or(own).unwrap_or_default();
    let router = router_port.and_then(|(_, p)| v.read(Read::Row(p.datapath)).sb.northbound_of(p.datapath));
    Place { address, gateway, router }
}

/// A port of another zone.
fn remote_port(switch: &Switch<'_>, name: &Str, port: &ic_sb::PortBinding, v: &mut V<'_>) {
    let key = port.tunnel_key;
    let value = SwitchPort::Remote { address: port.address.clone(), key };
    v.emit(Key::SwitchPort(switch.name.clone(), name.clone()), Value::SwitchPort(Box::new(value)));
    let nb = &v.read(Read::SwitchOf(switch.name.clone())).nb;
    let lsp = nb.present.row(&Key::SwitchPort(switch.name.clone(), name.clone()));
    let lsp = lsp.and_then(|id| nb.db.logical_switch_port.get(&id));
    // Whoever asks for a chassis here is obeyed by northd.
    if lsp.is_some_and(|p| p.options.contains_key("requested-chassis")) {
        return;
    }
    if port.gateway.is_empty() {
        v.emit(Key::Binding(name.clone()), Value::Binding(None));
    } else if v.read(Read::Chassis(port.gateway.clone())).sb.chassis(&port.gateway).is_some() {
        v.emit(Key::Binding(name.clone()), Value::Binding(Some(port.gateway.clone())));
    }
}
