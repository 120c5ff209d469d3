//! Ports of type `vtep`: which attaches which logical switch to which datapath
//! (ovn-architecture(7), "Life Cycle of a VTEP gateway", steps 4 and 5).

use super::{Attachment, Bindings, Fact, Group, Home, Registry, Unit, V, options_of, registry_of, warn, warn_early};
use crate::model::{Read, TorId};
use crate::output::Module::Binding;
use crate::output::{Key, Switch, Value};
use crate::settings::{Places, Replication};
use ovn_schema::{Map, Str, Uuid, sb};
use std::collections::BTreeMap;

/// A port that names one of our switches.
struct Candidate<'a> {
    id: Uuid,
    port: &'a sb::PortBinding,
    chassis: &'a Str,
    group: &'a Group,
    logical: &'a Str,
    /// The key of its datapath.
    key: i64,
    /// It is bound to the chassis already.
    incumbent: bool,
}

/// Ports that name one of our switches and a logical switch on it; those that are bound already come first.
fn candidates<'a>(registry: &'a Registry, v: &mut V<'a>) -> Vec<Candidate<'a>> {
    let sb = &v.read(Read::VtepPorts).sb;
    let mut out = Vec::new();
    for (id, port) in sb.vtep_ports() {
        let (physical, logical) = (port.options.get("vtep-physical-switch"), port.options.get("vtep-logical-switch"));
        let (Some(physical), Some(logical)) = (physical, logical) else {
            let text = format!(
                "logical port ({}) of type vtep has no options:vtep-physical-switch or no options:vtep-logical-switch and is not bound",
                port.logical_port
            );
            warn_early(v, Binding, text);
            continue;
        };
        // Switches of other controllers are none of our business.
        let Some(chassis) = registry.chassis.get(physical) else { continue };
        let Some(group) = registry.groups.get(chassis) else { continue };
        let Some((name, _)) = group.logical.get_key_value(logical) else {
            let known = group.members.iter().any(|m| registry.known.get(&m.tor).is_some_and(|k| k.contains(logical)));
            let why = if known { "no VLAN of that switch is bound to it" } else { "there is no such logical switch" };
            tracing::debug!(target: "binding", "No port binding entry for logical switch ({logical})on vtep gateway chassis ({chassis})");
            if !known {
                let text = format!(
                    "logical port ({}) names logical switch ({logical}) on physical switch ({physical}) and is not bound: {why}",
                    port.logical_port
                );
                warn(v, Binding, text);
            }
            continue;
        };
        let Some(datapath) = v.read(Read::VtepPorts).sb.db.datapath_binding.get(&port.datapath) else { continue };
        let incumbent = port.chassis.is_some() && port.chassis == sb.chassis(chassis).map(|(id, _)| id);
        out.push(Candidate { id, port, chassis, group, logical: name, key: datapath.tunnel_key, incumbent });
    }
    out.sort_by(|a, b| (!a.incumbent, &a.port.logical_port).cmp(&(!b.incumbent, &b.port.logical_port)));
    out
}

/// Binds ports, gives logical switches their keys.
pub fn bindings(v: &mut V<'_>) {
    let Some(registry) = registry_of(v) else { return };
    let options = options_of(v);
    let mut out = Bindings::default();
    let mut by_chassis: BTreeMap<(&Str, &Str), &Str> = BTreeMap::new();
    let mut by_tor: BTreeMap<(TorId, &Str), i64> = BTreeMap::new();
    for c in candidates(registry, v) {
        let (ls, chassis, port) = (c.logical, c.chassis, &c.port.logical_port);
        if let Some(first) = by_chassis.get(&(chassis, ls)) {
            warn(
                v,
                Binding,
                format!(
                    "logical switch ({ls}), on vtep gateway chassis ({chassis}) has already been associated with logical port ({first}), ignore logical port ({port})"
                ),
            );
            continue;
        }
        by_chassis.insert((chassis, ls), port);
        let places: Vec<(TorId, Uuid)> = c.group.logical.get(ls).into_iter().flatten().map(|(t, s)| (*t, *s)).collect();
        if let Some(first) = places.iter().find_map(|(t, _)| by_tor.get(&(*t, ls)).filter(|k| **k != c.key)) {
            warn(
                v,
                Binding,
                format!(
                    "logical switch ({ls}), on vtep gateway chassis ({chassis}) has already been associated with logical datapath (with tunnel key {first}), ignore logical port ({port}) which belongs to logical datapath (with tunnel key {})",
                    c.key
                ),
            );
            continue;
        }
        v.emit(Key::Binding(c.id), Value::Binding(chassis.clone()));
        for (tor, switch) in places {
            let replication = replication(&c, tor, &options, v);
            let home = Home {
                ips: c.group.ips.clone(),
                datapath: c.key,
                row: c.port.datapath,
                port: c.port.tunnel_key,
                learn_addresses: replication.learn_addresses,
            };
            out.homes.entry((tor, switch)).or_default().push(home);
            if by_tor.insert((tor, ls), c.key).is_some() {
                continue;
            }
            let value = Switch { tunnel_key: c.key, replication: replication.mode() };
            v.emit(Key::Switch(tor, switch), Value::Switch(value));
            out.attached.entry(c.port.datapath).or_default().push(Attachment { tor, switch, replication });
            v.spawn(Unit::Datapath(c.port.datapath));
            v.spawn(Unit::Locals(tor, switch));
        }
    }
    v.derive(Fact::Bindings(out));
}

fn replication(c: &Candidate<'_>, tor: TorId, options: &Map<Str, Str>, v: &mut V<'_>) -> Replication {
    let none = Map::new();
    let member = c.group.members.iter().find(|m| m.tor == tor);
    let places = Places {
        port: Some(&c.port.options),
        switch: member.map_or(&none, |m| &m.config),
        global: member.map_or(&none, |m| &m.global),
        options,
    };
    let mut bad = Vec::new();
    let replication = Replication::read(&places, &mut bad);
    for text in bad {
        warn(v, Binding, format!("logical switch ({}) on physical switch ({}): {text}", c.logical, c.chassis));
    }
    replication
}

/// What is attached to a datapath.
pub fn datapath(id: Uuid, v: &mut V<'_>) {
    let Some(Fact::Bindings(b)) = v.fact(&Unit::Bindings) else { return };
    let Some(attached) = b.attached.get(&id) else { return };
    v.spawn(Unit::Members(id));
    v.spawn(Unit::Routers(id));
    for a in attached {
        v.spawn(Unit::Flood(a.tor, a.switch, id));
    }
    v.derive(Fact::Datapath(attached.clone()));
}
