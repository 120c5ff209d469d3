//! The interconnection databases.

use super::{Effect, Present, Read};
use crate::output::{Key, MonitorId, RouteId, Transit};
use ovn_schema::{Index, Str, Uuid, ic_nb, ic_sb};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The interconnection northbound database.
#[derive(Debug, Default)]
pub struct IcNorthbound {
    /// Its tables.
    pub db: ic_nb::Database,
    switches: Index<Str>,
    /// The transit switch or router of a port.
    of: HashMap<Uuid, Uuid>,
}

impl IcNorthbound {
    /// Takes a change over into the indexes; the table has it already.
    pub fn changed(&mut self, change: &ic_nb::AnyChange) -> Effect {
        use ic_nb::AnyChange as A;
        let id = change.key().1;
        let mut e = Effect::default();
        match change {
            A::IcNbGlobal(_) => e.reads.push(Read::IcNbGlobal),
            A::TransitSwitch(c) => {
                let name = |r: &Option<Arc<ic_nb::TransitSwitch>>| r.as_ref().map(|r| r.name.clone());
                if self.switches.shift(id, name(&c.old), name(&c.new)) {
                    let both = name(&c.old).into_iter().chain(name(&c.new));
                    e.reads.extend(both.map(Read::TransitSwitchNamed));
                }
                let ports = |r: &Option<Arc<ic_nb::TransitSwitch>>| r.as_ref().map(|r| r.ports.clone());
                self.belong(id, ports(&c.old), ports(&c.new));
                e.reads.push(Read::TransitSwitch(id));
            }
            A::TransitRouter(c) => {
                let ports = |r: &Option<Arc<ic_nb::TransitRouter>>| r.as_ref().map(|r| r.ports.clone());
                self.belong(id, ports(&c.old), ports(&c.new));
                e.reads.push(Read::TransitRouter(id));
            }
            A::TransitSwitchPort(_) => e.reads.extend(self.of.get(&id).map(|of| Read::TransitSwitch(*of))),
            A::TransitRouterPort(_) => e.reads.extend(self.of.get(&id).map(|of| Read::TransitRouter(*of))),
            A::Connection(_) | A::Ssl(_) => {}
        }
        e
    }

    fn belong(&mut self, to: Uuid, old: Option<BTreeSet<Uuid>>, new: Option<BTreeSet<Uuid>>) {
        for port in old.into_iter().flatten() {
            self.of.remove(&port);
        }
        for port in new.into_iter().flatten() {
            self.of.insert(port, to);
        }
    }

    /// `IC_NB_Global`.
    pub fn global(&self) -> Option<&ic_nb::IcNbGlobal> {
        self.db.ic_nb_global.values().next().map(|g| &**g)
    }

    /// A transit switch by name.
    pub fn switch_named(&self, name: &Str) -> Option<Uuid> {
        self.switches.get(name).next()
    }
}

/// The interconnection southbound database.
#[derive(Debug, Default)]
pub struct IcSouthbound {
    /// Its tables.
    pub db: ic_sb::Database,
    /// Its rows by key.
    pub present: Present,
    ports: Index<Str>,
    gateways: Index<Str>,
}

/// The key of a datapath's row.
fn datapath_key(d: &ic_sb::DatapathBinding) -> Option<Transit> {
    match d.r#type.as_deref() {
        Some("transit-router") => d.nb_ic_uuid.map(Transit::Router),
        _ => Some(Transit::Switch(d.transit_switch.clone())),
    }
}

/// What a health check is.
pub fn monitor_id(m: &ic_sb::ServiceMonitor) -> MonitorId {
    MonitorId {
        kind: m.r#type.clone(),
        ip: m.ip.clone(),
        port: m.port,
        protocol: m.protocol.clone(),
        logical_port: m.logical_port.clone(),
        src_ip: m.src_ip.clone(),
    }
}

/// What tells a route from others.
pub fn route_id(r: &ic_sb::Route) -> RouteId {
    RouteId {
        zone: r.availability_zone,
        switch: r.transit_switch.clone(),
        table: r.route_table.clone(),
        prefix: r.ip_prefix.clone(),
        nexthop: r.nexthop.clone(),
    }
}

impl IcSouthbound {
    /// Takes a change over into the indexes; the table has it already.
    pub fn changed(&mut self, change: &ic_sb::AnyChange) -> Effect {
        use ic_sb::AnyChange as A;
        let id = change.key().1;
        let mut e = Effect::default();
        match change {
            A::AvailabilityZone(_) => e.reads.push(Read::Zones),
            A::Gateway(c) => {
                let name = |r: &Option<Arc<ic_sb::Gateway>>| r.as_ref().map(|r| r.name.clone());
                self.gateways.shift(id, name(&c.old), name(&c.new));
                let key = c.new.as_ref().map(|g| Key::Gateway(g.availability_zone, g.name.clone()));
                self.present.set(id, key, &mut e);
                e.reads.push(Read::IcGateways);
            }
            A::Encap(c) => {
                e.reads.extend([Read::IcEncaps, Read::IcGateways]);
                for name in c.old.iter().chain(&c.new).map(|r| &r.gateway_name) {
                    let rows = self.gateways.get(name).filter_map(|g| self.db.gateway.get(&g));
                    e.keys.extend(rows.map(|g| Key::Gateway(g.availability_zone, g.name.clone())));
                }
            }
            A::DatapathBinding(c) => {
                let of = |r: &Option<Arc<ic_sb::DatapathBinding>>| r.as_deref().and_then(datapath_key);
                self.present.set(id, of(&c.new).map(Key::Datapath), &mut e);
                e.reads.extend(of(&c.old).into_iter().chain(of(&c.new)).map(Read::IcDatapath));
            }
            A::PortBinding(c) => {
                let of = |r: &Option<Arc<ic_sb::PortBinding>>| r.as_ref().map(|r| r.transit_switch.clone());
                let name = |r: &Option<Arc<ic_sb::PortBinding>>| r.as_ref().map(|r| r.logical_port.clone());
                self.ports.shift(id, of(&c.old), of(&c.new));
                self.present.set(id, name(&c.new).map(Key::Port), &mut e);
                e.reads.extend(of(&c.old).into_iter().chain(of(&c.new)).map(Read::IcPortsOf));
                e.reads.extend(name(&c.old).into_iter().chain(name(&c.new)).map(Read::IcPort));
            }
            A::Route(c) => {
                self.present.set(id, c.new.as_deref().map(|r| Key::Route(Arc::new(route_id(r)))), &mut e);
                e.reads.push(Read::IcRoute(id));
            }
            A::AddressSet(c) => {
                let key = c.new.as_ref().map(|s| Key::IcAddressSet(s.availability_zone, s.name.clone()));
                self.present.set(id, key, &mut e);
                e.reads.push(Read::IcAddressSets);
            }
            A::ServiceMonitor(c) => {
                let key = c.new.as_ref();
                let key = key.map(|m| Key::IcMonitor(m.target_availability_zone.clone(), Box::new(monitor_id(m))));
                self.present.set(id, key, &mut e);
                e.keys.push(Key::IcMonitorStatus(id));
                e.reads.push(Read::IcMonitors);
            }
            A::IcSbGlobal(_) | A::Connection(_) | A::Ssl(_) => {}
        }
        e
    }

    /// A zone by name.
    pub fn zone(&self, name: &str) -> Option<(Uuid, &ic_sb::AvailabilityZone)> {
        let mut rows = self.db.availability_zone.iter().filter(|(_, z)| &*z.name == name);
        rows.next().map(|(id, z)| (*id, &**z))
    }

    /// `IC_SB_Global`.
    pub fn global(&self) -> Option<(Uuid, &ic_sb::IcSbGlobal)> {
        self.db.ic_sb_global.iter().next().map(|(id, g)| (*id, &**g))
    }

    /// The datapath of a transit switch or router.
    pub fn datapath(&self, of: &Transit) -> Option<&ic_sb::DatapathBinding> {
        self.db.datapath_binding.get(&self.present.row(&Key::Datapath(of.clone()))?).map(|d| &**d)
    }

    /// The ports of a transit switch or router.
    pub fn ports_of(&self, name: &Str) -> impl Iterator<Item = &ic_sb::PortBinding> {
        self.ports.get(name).filter_map(|id| self.db.port_binding.get(&id)).map(|p| &**p)
    }

    /// A port by its logical port.
    pub fn port(&self, name: &Str) -> Option<&ic_sb::PortBinding> {
        self.db.port_binding.get(&self.present.row(&Key::Port(name.clone()))?).map(|p| &**p)
    }

    /// The tunnel endpoints of a gateway.
    pub fn encaps(&self, gateway: &ic_sb::Gateway) -> crate::output::Encaps {
        let rows = gateway.encaps.iter().filter_map(|id| self.db.encap.get(id));
        rows.map(|x| ((x.r#type.clone(), x.ip.clone()), x.options.clone())).collect()
    }
}
