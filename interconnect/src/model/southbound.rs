//! The zone's southbound database.

use super::{Effect, Present, Read};
use crate::output::{Encaps, Key, MonitorId};
use ovn_schema::{Index, Str, Uuid, options::flag, sb};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The southbound database.
#[derive(Debug, Default)]
pub struct Southbound {
    /// Its tables.
    pub db: sb::Database,
    /// Its rows by key.
    pub present: Present,
    chassis: Index<Str>,
    ports: Index<Str>,
    datapaths: Index<Uuid>,
    /// Routes that datapaths learned.
    learned: Index<Uuid>,
    /// The same, with their prefixes.
    learned_to: Index<(Uuid, Str)>,
    monitors: Index<Str>,
    gateways: BTreeSet<Uuid>,
    remote_monitors: BTreeSet<Uuid>,
    advertised: BTreeSet<Uuid>,
}

/// Whether a chassis is a gateway between zones.
pub fn is_gateway(c: &sb::Chassis) -> bool {
    flag(&c.other_config, "is-interconn")
}

/// Whether a chassis is another zone's gateway.
pub fn is_remote(c: &sb::Chassis) -> bool {
    flag(&c.other_config, "is-remote")
}

fn is_advertised(s: &sb::AddressSet) -> bool {
    flag(&s.options, "ic-adv")
}

/// What a health check is.
pub fn monitor_id(m: &sb::ServiceMonitor) -> MonitorId {
    MonitorId {
        kind: m.r#type.clone(),
        ip: m.ip.clone(),
        port: m.port,
        protocol: m.protocol.clone(),
        logical_port: m.logical_port.clone(),
        src_ip: m.src_ip.clone(),
    }
}

fn keep(set: &mut BTreeSet<Uuid>, id: Uuid, there: bool) -> bool {
    let was = if there { !set.insert(id) } else { set.remove(&id) };
    was || there
}

impl Southbound {
    /// Takes a change over into the indexes; the table has it already.
    pub fn changed(&mut self, change: &sb::AnyChange) -> Effect {
        use sb::AnyChange as A;
        let id = change.key().1;
        let mut e = Effect::default();
        match change {
            A::SbGlobal(_) => e.reads.push(Read::SbGlobal),
            A::Chassis(c) => {
                let name = |r: &Option<Arc<sb::Chassis>>| r.as_ref().map(|r| r.name.clone());
                self.chassis.shift(id, name(&c.old), name(&c.new));
                if keep(&mut self.gateways, id, c.new.as_deref().is_some_and(is_gateway)) {
                    e.reads.push(Read::Gateways);
                }
                e.reads.extend(name(&c.old).into_iter().chain(name(&c.new)).map(Read::Chassis));
                e.reads.push(Read::Row(id));
                // Bindings refer to the chassis by name, whatever kind of chassis it is.
                self.present.set(id, name(&c.new).map(Key::Chassis), &mut e);
            }
            A::Encap(c) => {
                e.reads.push(Read::Gateways);
                e.keys.extend(c.old.iter().chain(&c.new).map(|x| Key::Chassis(x.chassis_name.clone())));
            }
            A::PortBinding(c) => {
                let name = |r: &Option<Arc<sb::PortBinding>>| r.as_ref().map(|r| r.logical_port.clone());
                self.ports.shift(id, name(&c.old), name(&c.new));
                let both = name(&c.old).into_iter().chain(name(&c.new));
                e.reads.extend(both.map(Read::PortBinding));
                let remote = c.new.as_ref().filter(|p| &*p.r#type == "remote");
                self.present.set(id, remote.map(|p| Key::Binding(p.logical_port.clone())), &mut e);
            }
            A::DatapathBinding(c) => {
                let of = |r: &Option<Arc<sb::DatapathBinding>>| {
                    let r = r.as_ref()?;
                    let text = || ["logical-switch", "logical-router"].iter().find_map(|k| r.external_ids.get(*k));
                    r.nb_uuid.or_else(|| text()?.parse().ok())
                };
                self.datapaths.shift(id, of(&c.old), of(&c.new));
                e.reads.extend(of(&c.old).into_iter().chain(of(&c.new)).map(Read::DatapathOf));
                e.reads.push(Read::Row(id));
            }
            A::LearnedRoute(c) => {
                let to = |r: &Option<Arc<sb::LearnedRoute>>| r.as_ref().map(|r| (r.datapath, r.ip_prefix.clone()));
                let (old, new) = (to(&c.old), to(&c.new));
                self.learned.shift(id, old.as_ref().map(|o| o.0), new.as_ref().map(|n| n.0));
                e.reads.extend(old.iter().chain(&new).map(|(_, prefix)| Read::RoutesTo(prefix.clone())));
                e.reads.push(Read::LearnedRoute(id));
                self.learned_to.shift(id, old, new);
            }
            A::AddressSet(c) => {
                let concerned = keep(&mut self.advertised, id, c.new.as_deref().is_some_and(is_advertised));
                e.reads.extend(concerned.then_some(Read::AdvertisedSets));
            }
            A::ServiceMonitor(c) => {
                let port = |r: &Option<Arc<sb::ServiceMonitor>>| r.as_ref().map(|r| r.logical_port.clone());
                self.monitors.shift(id, port(&c.old), port(&c.new));
                e.reads.extend(port(&c.old).into_iter().chain(port(&c.new)).map(Read::MonitorsOf));
                if keep(&mut self.remote_monitors, id, c.new.as_ref().is_some_and(|m| m.remote)) {
                    e.reads.push(Read::RemoteMonitors);
                }
                let own = c.new.as_deref().filter(|m| m.ic_learned);
                self.present.set(id, own.map(|m| Key::Monitor(Box::new(monitor_id(m)))), &mut e);
                e.keys.push(Key::MonitorStatus(id));
            }
            _ => {}
        }
        e
    }

    /// `SB_Global`.
    pub fn global(&self) -> Option<&sb::SbGlobal> {
        self.db.sb_global.values().next().map(|g| &**g)
    }

    /// A chassis by name.
    pub fn chassis(&self, name: &Str) -> Option<(Uuid, &sb::Chassis)> {
        let id = self.chassis.get(name).next()?;
        Some((id, self.db.chassis.get(&id)?))
    }

    /// The name of a chassis.
    pub fn chassis_name(&self, id: Option<Uuid>) -> Option<&Str> {
        self.db.chassis.get(&id?).map(|c| &c.name)
    }

    /// The chassis that are gateways between zones.
    pub fn gateways(&self) -> impl Iterator<Item = &sb::Chassis> {
        self.gateways.iter().filter_map(|id| self.db.chassis.get(id)).map(|c| &**c)
    }

    /// The tunnel endpoints of a chassis.
    pub fn encaps(&self, chassis: &sb::Chassis) -> Encaps {
        let rows = chassis.encaps.iter().filter_map(|id| self.db.encap.get(id));
        rows.map(|x| ((x.r#type.clone(), x.ip.clone()), x.options.clone())).collect()
    }

    /// A port by its logical port.
    pub fn port(&self, name: &Str) -> Option<(Uuid, &sb::PortBinding)> {
        let id = self.ports.get(name).next()?;
        Some((id, self.db.port_binding.get(&id)?))
    }

    /// The northbound row of a datapath.
    pub fn northbound_of(&self, datapath: Uuid) -> Option<Uuid> {
        let row = self.db.datapath_binding.get(&datapath)?;
        let text = || row.external_ids.get("logical-router").or_else(|| row.external_ids.get("logical-switch"));
        row.nb_uuid.or_else(|| text()?.parse().ok())
    }

    /// The datapath of a northbound row.
    pub fn datapath_of(&self, row: Uuid) -> Option<Uuid> {
        self.datapaths.get(&row).next()
    }

    /// The routes that a datapath learned from its neighbours.
    pub fn learned_by(&self, datapath: Uuid) -> impl Iterator<Item = Uuid> {
        self.learned.get(&datapath)
    }

    /// Whether a datapath learned a route to this prefix from its neighbours.
    pub fn has_learned(&self, datapath: Uuid, prefix: &Str) -> bool {
        self.learned_to.get(&(datapath, prefix.clone())).next().is_some()
    }

    /// The address sets that others are to have.
    pub fn advertised_sets(&self) -> impl Iterator<Item = &sb::AddressSet> {
        self.advertised.iter().filter_map(|id| self.db.address_set.get(id)).map(|s| &**s)
    }

    /// The health checks that other zones do.
    pub fn remote_monitors(&self) -> impl Iterator<Item = (Uuid, &sb::ServiceMonitor)> {
        self.remote_monitors.iter().filter_map(|id| Some((*id, &**self.db.service_monitor.get(id)?)))
    }

    /// The health checks of a logical port.
    pub fn monitors_of(&self, port: &Str) -> impl Iterator<Item = (Uuid, &sb::ServiceMonitor)> {
        self.monitors.get(port).filter_map(|id| Some((id, &**self.db.service_monitor.get(&id)?)))
    }
}
