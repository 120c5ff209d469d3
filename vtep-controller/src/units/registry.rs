//! Physical switches as chassis (ovn-architecture(7), "Life Cycle of a VTEP gateway", steps 1, 2 and 7).

use super::{Fact, Group, Member, Registry, Switch, Topology, Unit, V, Vtep, info, options_of, warn};
use crate::address;
use crate::model::{Read, TorId};
use crate::output::Module::Gateway;
use crate::output::{Chassis, Key, Value};
use crate::settings::{Bfd, Places};
use ovn_schema::{Map, Str};
use std::collections::{BTreeMap, BTreeSet};

/// The mark of a chassis that belongs to a hardware_vtep database (`external_ids`): its row of `Global`.
pub const OWNER: &str = "vtep-global";

/// Tells controllers of hypervisors that a switch expects BFD on its tunnels (`other_config`). Open vSwitch's own
/// controller does not look at it.
pub const BFD: &str = "vtep-bfd";

/// What is registered so far.
#[derive(Default)]
struct Building {
    out: Registry,
    /// The chassis by its tunnel endpoint.
    taken: BTreeMap<Str, Str>,
    /// The rows of `Global` of all our databases.
    owners: BTreeSet<Str>,
    /// `SB_Global.options`.
    options: Map<Str, Str>,
}

/// Registers all switches of all databases.
pub fn registry(d: &Vtep, v: &mut V<'_>) {
    let tors: Vec<(TorId, &Topology)> = d
        .ids()
        .filter_map(|t| match v.fact(&Unit::Topology(t)) {
            Some(Fact::Topology(topology)) => Some((t, topology)),
            _ => None,
        })
        .collect();
    let options = options_of(v);
    let mut b = Building { owners: tors.iter().map(|(_, t)| owner(t)).collect(), options, ..Building::default() };
    for (id, topology) in tors {
        b.out.known.insert(id, topology.logical.clone());
        for (name, switch) in &topology.switches {
            b.register(id, topology, name, switch, v);
        }
    }
    for (name, g) in &b.out.groups {
        let (ips, logical) = (g.ips.clone(), g.logical.keys().cloned().collect());
        let chassis = Chassis { ips, logical, owner: g.owner.clone(), bfd: g.bfd };
        v.emit(Key::Chassis(name.clone()), Value::Chassis(chassis));
    }
    v.derive(Fact::Registry(b.out));
}

fn owner(t: &Topology) -> Str {
    t.global.map(|g| g.to_string()).unwrap_or_default().into()
}

impl Building {
    fn register(&mut self, tor: TorId, topology: &Topology, name: &Str, switch: &Switch, v: &mut V<'_>) {
        if !self.name_is_free(tor, name, v) {
            return;
        }
        let twin = switch.ips.iter().find_map(|ip| self.taken.get(ip)).cloned();
        let (chassis, ips) = match twin {
            Some(chassis) => {
                let text = format!(
                    "Physical_Switch ({name}) has a tunnel IP of Physical_Switch ({chassis}): both are taken as one tunnel endpoint, chassis ({chassis})"
                );
                info(v, Gateway, text);
                (chassis, BTreeSet::new())
            }
            None => match self.addresses(name, switch, v) {
                Some(ips) => (name.clone(), ips),
                None => return,
            },
        };
        self.taken.extend(ips.iter().map(|ip| (ip.clone(), chassis.clone())));
        self.out.chassis.insert(name.clone(), chassis.clone());
        self.out.own.entry(tor).or_default().extend(switch.ips.iter().cloned());
        let group =
            self.out.groups.entry(chassis).or_insert_with(|| Group { owner: owner(topology), ..Group::default() });
        group.ips.extend(ips);
        for (ls, row) in &switch.logical {
            group.logical.entry(ls.clone()).or_default().insert(tor, *row);
        }
        let (config, global) = (switch.config.clone(), topology.config.clone());
        let places = Places { port: None, switch: &config, global: &global, options: &self.options };
        // What is wrong with it is said where the tunnels are looked at.
        group.bfd |= Bfd::read(&places, &mut Vec::new()).enable;
        group.members.push(Member { name: name.clone(), tor, row: switch.row, config, global });
    }

    fn name_is_free(&self, tor: TorId, name: &Str, v: &mut V<'_>) -> bool {
        if let Some(chassis) = self.out.chassis.get(name) {
            let member = self.out.groups.get(chassis).and_then(|g| g.members.iter().find(|m| m.name == *name));
            let mut place =
                |t: TorId| v.read(Read::Topology(t)).tor(t).map_or_else(String::new, |t| t.name.to_string());
            let (here, there) = (place(tor), member.map_or_else(String::new, |m| place(m.tor)));
            let text = format!(
                "{here}: Physical_Switch ({name}) has the name of one at {there} and is ignored; rename one of them"
            );
            warn(v, Gateway, text);
            return false;
        }
        let chassis = v.read(Read::ChassisNamed(name.clone())).sb.chassis(name);
        if chassis.is_some_and(|(_, c)| !c.hostname.is_empty()) {
            let text = format!(
                "Physical_Switch ({name}) has the name of a chassis that is no VTEP and is ignored; rename one of them"
            );
            warn(v, Gateway, text);
            return false;
        }
        true
    }

    /// The addresses that a switch can be reached at; none where it cannot be registered. A switch without any
    /// gets an empty one, as `Chassis.encaps` needs an element.
    fn addresses(&self, name: &Str, switch: &Switch, v: &mut V<'_>) -> Option<BTreeSet<Str>> {
        let mut ips = BTreeSet::new();
        for ip in &switch.ips {
            if address::endpoint(ip).is_none() {
                let text = format!(
                    "Physical_Switch ({name}): tunnel IP ({ip}) is no IPv4 address and is ignored; mend tunnel_ips"
                );
                warn(v, Gateway, text);
            } else if let Some(other) = self.foreign(name, ip, v) {
                let text = format!(
                    "Physical_Switch ({name}): tunnel IP ({ip}) is that of chassis ({other}) and is ignored; mend tunnel_ips"
                );
                warn(v, Gateway, text);
            } else {
                ips.insert(ip.clone());
            }
        }
        if ips.is_empty() {
            let none: Str = "".into();
            if let Some(other) = self.taken.get(&none).cloned().or_else(|| self.foreign(name, &none, v)) {
                let text = format!(
                    "Physical_Switch ({name}) has no tunnel IP, as chassis ({other}) has none; it is registered once tunnel_ips is set"
                );
                warn(v, Gateway, text);
                return None;
            }
            info(v, Gateway, format!("Physical_Switch ({name}) has no tunnel IP; set tunnel_ips"));
            ips.insert(none);
        }
        Some(ips)
    }

    /// The chassis that has an address already and is none of ours.
    fn foreign(&self, name: &Str, ip: &Str, v: &mut V<'_>) -> Option<Str> {
        let sb = &v.read(Read::EncapOf(ip.clone())).sb;
        let others: Vec<Str> = sb.chassis_at(ip).filter(|c| *c != name).cloned().collect();
        others.into_iter().find(|other| {
            let row = v.read(Read::ChassisNamed(other.clone())).sb.chassis(other);
            row.is_some_and(|(_, c)| c.external_ids.get(OWNER).is_none_or(|o| !self.owners.contains(o)))
        })
    }
}
