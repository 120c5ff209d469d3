//! What everything is derived from: the southbound database and the databases of the switches, with indexes.

use crate::address;
use crate::output::Key;
use ovn_schema::{Change, Index, Str, Uuid, sb, vtep};
use std::collections::{BTreeSet, HashMap};

/// The number of a hardware_vtep database, in the order of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TorId(pub u16);

/// A thing that a unit of the derivation can look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// A southbound row.
    Sb(sb::TableId, Uuid),
    /// `SB_Global.options`.
    Options,
    /// Which chassis there are.
    ChassisList,
    /// A chassis by name.
    ChassisNamed(Str),
    /// Which chassis have a VXLAN encapsulation of this address.
    EncapOf(Str),
    /// The gateway chassis.
    Gateways,
    /// All port bindings of type `vtep`.
    VtepPorts,
    /// Which ports a datapath has.
    PortsOf(Uuid),
    /// The `chassisredirect` port of a distributed gateway port.
    RedirectOf(Str),
    /// A port binding by its logical port.
    PortNamed(Str),
    /// The `IGMP_Group` rows of a datapath.
    GroupsOf(Uuid),
    /// The `Multicast_Group` rows of a datapath.
    FloodsOf(Uuid),
    /// Which rows `FDB` has for a port: keys of the datapath and of the port.
    LearnedAt(i64, i64),
    /// Switches, ports, bindings and logical switches of a hardware_vtep database: all that people configure there.
    Topology(TorId),
    /// Which rows `Ucast_Macs_Local` has for a logical switch.
    LocalsOf(TorId, Uuid),
    /// A row of `Ucast_Macs_Local`.
    Local(TorId, Uuid),
    /// Which rows `Ucast_Macs_Local` has for a MAC, in any database.
    LocalsWith(Str),
    /// The tunnels of a hardware_vtep database.
    Tunnels(TorId),
}

/// What a change means: reads of units, and keys of outputs whose actual state it touched.
#[derive(Debug, Default)]
pub struct Effect {
    /// What changed for units.
    pub reads: Vec<Read>,
    /// Whose actual state changed.
    pub keys: Vec<Key>,
}

/// The southbound database.
#[derive(Debug, Default)]
pub struct Southbound {
    /// Its tables.
    pub db: sb::Database,
    chassis: Index<Str>,
    encaps: Index<Str>,
    ports: Index<Str>,
    ports_of: Index<Uuid>,
    keys: Index<(Uuid, i64)>,
    redirects: Index<Str>,
    vtep_ports: BTreeSet<Uuid>,
    igmp: Index<Uuid>,
    floods: Index<Uuid>,
    learned: Index<(i64, i64)>,
    fdb: Index<(i64, Str)>,
    neighbours: Index<(Str, Str)>,
    datapaths: HashMap<i64, Uuid>,
}

/// The ports that a `chassisredirect` port stands for.
fn redirected(p: &sb::PortBinding) -> Option<Str> {
    (&*p.r#type == "chassisredirect").then(|| p.options.get("distributed-port").cloned()).flatten()
}

fn vxlan_ip(e: &sb::Encap) -> Option<Str> {
    (&*e.r#type == "vxlan").then(|| e.ip.clone())
}

/// Whether a chassis says that it can be a gateway.
pub fn is_gateway(c: &sb::Chassis) -> bool {
    c.other_config.get("ovn-cms-options").is_some_and(|o| o.split(',').any(|w| w.trim() == "enable-chassis-as-gw"))
}

impl Southbound {
    /// Takes a change over into the indexes; the table has it already.
    pub fn changed(&mut self, change: &sb::AnyChange) -> Effect {
        use sb::AnyChange as A;
        let (table, id) = change.key();
        let mut e = Effect { reads: vec![Read::Sb(table, id)], keys: Vec::new() };
        match change {
            A::Chassis(c) => self.chassis_changed(c, &mut e),
            A::Encap(c) => {
                let of = |r: &Option<std::sync::Arc<sb::Encap>>| r.as_deref().and_then(vxlan_ip);
                let (old, new) = (of(&c.old), of(&c.new));
                self.encaps.shift(id, old.clone(), new.clone());
                e.reads.extend(old.into_iter().chain(new).map(Read::EncapOf));
                e.keys.extend(c.old.iter().chain(&c.new).map(|r| Key::Chassis(r.chassis_name.clone())));
            }
            A::PortBinding(c) => self.port_changed(c, &mut e),
            A::IgmpGroup(c) => {
                let of = |r: &Option<std::sync::Arc<sb::IgmpGroup>>| r.as_ref().and_then(|r| r.datapath);
                let (old, new) = (of(&c.old), of(&c.new));
                self.igmp.shift(id, old, new);
                e.reads.extend(old.into_iter().chain(new).map(Read::GroupsOf));
            }
            A::MulticastGroup(c) => {
                let of = |r: &Option<std::sync::Arc<sb::MulticastGroup>>| r.as_ref().map(|r| r.datapath);
                let (old, new) = (of(&c.old), of(&c.new));
                self.floods.shift(id, old, new);
                e.reads.extend(old.into_iter().chain(new).map(Read::FloodsOf));
            }
            A::Fdb(c) => {
                let port = |r: &Option<std::sync::Arc<sb::Fdb>>| r.as_ref().map(|r| (r.dp_key, r.port_key));
                let mac = |r: &Option<std::sync::Arc<sb::Fdb>>| r.as_ref().map(|r| (r.dp_key, r.mac.clone()));
                if self.learned.shift(id, port(&c.old), port(&c.new)) {
                    let both = port(&c.old).into_iter().chain(port(&c.new));
                    e.reads.extend(both.map(|(d, p)| Read::LearnedAt(d, p)));
                }
                self.fdb.shift(id, mac(&c.old), mac(&c.new));
                e.keys.extend(mac(&c.old).into_iter().chain(mac(&c.new)).map(|(d, m)| Key::Fdb(d, m)));
            }
            A::MacBinding(c) => {
                let key = |r: &Option<std::sync::Arc<sb::MacBinding>>| {
                    r.as_ref().map(|r| (r.logical_port.clone(), r.ip.clone()))
                };
                self.neighbours.shift(id, key(&c.old), key(&c.new));
                e.keys.extend(key(&c.old).into_iter().chain(key(&c.new)).map(|(p, ip)| Key::Neighbour(p, ip)));
            }
            A::DatapathBinding(c) => {
                if let Some(old) = &c.old {
                    self.datapaths.remove(&old.tunnel_key);
                }
                if let Some(new) = &c.new {
                    self.datapaths.insert(new.tunnel_key, id);
                }
                // A port's unit takes the key from here.
                e.reads.push(Read::VtepPorts);
            }
            A::SbGlobal(_) => e.reads.push(Read::Options),
            _ => {}
        }
        e
    }

    fn chassis_changed(&mut self, c: &Change<sb::Chassis>, e: &mut Effect) {
        let name = |r: &Option<std::sync::Arc<sb::Chassis>>| r.as_ref().map(|r| r.name.clone());
        self.chassis.shift(c.uuid, name(&c.old), name(&c.new));
        e.keys.extend(name(&c.old).into_iter().chain(name(&c.new)).map(Key::Chassis));
        e.reads.extend(name(&c.old).into_iter().chain(name(&c.new)).map(Read::ChassisNamed));
        let gateway = |r: &Option<std::sync::Arc<sb::Chassis>>| r.as_deref().is_some_and(is_gateway);
        if gateway(&c.old) || gateway(&c.new) {
            e.reads.push(Read::Gateways);
        }
        if c.old.is_none() || c.new.is_none() {
            e.reads.push(Read::ChassisList);
            // Bindings refer to the chassis by name.
            e.reads.push(Read::VtepPorts);
            e.keys.extend(self.vtep_ports.iter().copied().map(Key::Binding));
        }
    }

    fn port_changed(&mut self, c: &Change<sb::PortBinding>, e: &mut Effect) {
        let (old, new) = (c.old.as_deref(), c.new.as_deref());
        let name = |p: Option<&sb::PortBinding>| p.map(|p| p.logical_port.clone());
        let datapath = |p: Option<&sb::PortBinding>| p.map(|p| p.datapath);
        let vtep = |p: Option<&sb::PortBinding>| p.is_some_and(|p| &*p.r#type == "vtep");
        let key = |p: Option<&sb::PortBinding>| p.map(|p| (p.datapath, p.tunnel_key));
        self.ports.shift(c.uuid, name(old), name(new));
        self.keys.shift(c.uuid, key(old), key(new));
        e.reads.extend(
            name(old).into_iter().chain(name(new).filter(|n| name(old).as_ref() != Some(n))).map(Read::PortNamed),
        );
        if self.ports_of.shift(c.uuid, datapath(old), datapath(new)) || old.map(|p| &p.r#type) != new.map(|p| &p.r#type)
        {
            e.reads.extend(datapath(old).into_iter().chain(datapath(new)).map(Read::PortsOf));
        }
        let (was, is) = (old.and_then(redirected), new.and_then(redirected));
        self.redirects.shift(c.uuid, was.clone(), is.clone());
        e.reads.extend(was.into_iter().chain(is).map(Read::RedirectOf));
        if vtep(new) {
            self.vtep_ports.insert(c.uuid);
        } else {
            self.vtep_ports.remove(&c.uuid);
        }
        if vtep(old) || vtep(new) {
            e.reads.push(Read::VtepPorts);
            e.keys.push(Key::Binding(c.uuid));
        }
    }

    /// A chassis by name.
    pub fn chassis(&self, name: &Str) -> Option<(Uuid, &sb::Chassis)> {
        let id = self.chassis.get(name).next()?;
        Some((id, self.db.chassis.get(&id)?))
    }

    /// The names of the chassis that have a VXLAN encapsulation of this address.
    pub fn chassis_at(&self, ip: &Str) -> impl Iterator<Item = &Str> {
        self.encaps.get(ip).filter_map(|id| self.db.encap.get(&id)).map(|e| &e.chassis_name)
    }

    /// Whether an address is a VXLAN tunnel endpoint of any chassis.
    pub fn is_endpoint(&self, ip: &Str) -> bool {
        self.encaps.get(ip).next().is_some()
    }

    /// The gateway chassis.
    pub fn gateways(&self) -> impl Iterator<Item = (Uuid, &sb::Chassis)> {
        self.db.chassis.iter().filter(|(_, c)| is_gateway(c)).map(|(id, c)| (*id, &**c))
    }

    /// The port bindings of type `vtep`.
    pub fn vtep_ports(&self) -> impl Iterator<Item = (Uuid, &sb::PortBinding)> {
        self.vtep_ports.iter().filter_map(|id| Some((*id, &**self.db.port_binding.get(id)?)))
    }

    /// The ports of a datapath.
    pub fn ports_of(&self, datapath: Uuid) -> impl Iterator<Item = (Uuid, &sb::PortBinding)> {
        self.ports_of.get(&datapath).filter_map(|id| Some((id, &**self.db.port_binding.get(&id)?)))
    }

    /// A port by its logical port's name.
    pub fn port(&self, name: &Str) -> Option<(Uuid, &sb::PortBinding)> {
        let id = self.ports.get(name).next()?;
        Some((id, self.db.port_binding.get(&id)?))
    }

    /// The `chassisredirect` port of a distributed gateway port.
    pub fn redirect_of(&self, port: &Str) -> Option<(Uuid, &sb::PortBinding)> {
        let id = self.redirects.get(port).next()?;
        Some((id, self.db.port_binding.get(&id)?))
    }

    /// The `IGMP_Group` rows of a datapath.
    pub fn groups_of(&self, datapath: Uuid) -> impl Iterator<Item = &sb::IgmpGroup> {
        self.igmp.get(&datapath).filter_map(|id| Some(&**self.db.igmp_group.get(&id)?))
    }

    /// The `Multicast_Group` rows of a datapath.
    pub fn floods_of(&self, datapath: Uuid) -> impl Iterator<Item = &sb::MulticastGroup> {
        self.floods.get(&datapath).filter_map(|id| Some(&**self.db.multicast_group.get(&id)?))
    }

    /// The rows of `FDB` for a port.
    pub fn learned_at(&self, datapath: i64, port: i64) -> impl Iterator<Item = Uuid> {
        self.learned.get(&(datapath, port))
    }

    /// The rows of `FDB` for a MAC of a datapath.
    pub fn fdb(&self, datapath: i64, mac: &Str) -> impl Iterator<Item = (Uuid, &sb::Fdb)> {
        self.fdb.get(&(datapath, mac.clone())).filter_map(|id| Some((id, &**self.db.fdb.get(&id)?)))
    }

    /// The rows of `MAC_Binding` for an address at a router's port; the schema allows one.
    pub fn neighbour(&self, port: &Str, ip: &Str) -> Option<(Uuid, &sb::MacBinding)> {
        let id = self.neighbours.get(&(port.clone(), ip.clone())).next()?;
        Some((id, self.db.mac_binding.get(&id)?))
    }

    /// A datapath's port by its key.
    pub fn port_by_key(&self, datapath: i64, port: i64) -> Option<(Uuid, &sb::PortBinding)> {
        let id = self.keys.get(&(*self.datapaths.get(&datapath)?, port)).next()?;
        Some((id, self.db.port_binding.get(&id)?))
    }
}

/// A hardware_vtep database.
#[derive(Debug)]
pub struct Tor {
    /// Its number.
    pub id: TorId,
    /// How people know it: the remote.
    pub name: Str,
    /// Its tables.
    pub db: vtep::Database,
    switches: Index<Str>,
    locals: Index<Uuid>,
    locals_with: Index<Str>,
    ucast: Index<(Uuid, Str)>,
    mcast: Index<(Uuid, Str)>,
    locators: Index<Str>,
}

impl Tor {
    /// An empty one.
    pub fn new(id: TorId, name: Str) -> Tor {
        Tor {
            id,
            name,
            db: vtep::Database::default(),
            switches: Index::default(),
            locals: Index::default(),
            locals_with: Index::default(),
            ucast: Index::default(),
            mcast: Index::default(),
            locators: Index::default(),
        }
    }

    /// Takes a change over into the indexes; the table has it already.
    pub fn changed(&mut self, change: &vtep::AnyChange) -> Effect {
        use vtep::AnyChange as A;
        let (t, id) = (self.id, change.key().1);
        let mut e = Effect::default();
        match change {
            A::LogicalSwitch(c) => {
                let name = |r: &Option<std::sync::Arc<vtep::LogicalSwitch>>| r.as_ref().map(|r| r.name.clone());
                if self.switches.shift(id, name(&c.old), name(&c.new)) {
                    e.reads.push(Read::Topology(t));
                }
                e.keys.push(Key::Switch(t, id));
            }
            A::Global(_) | A::PhysicalSwitch(_) | A::PhysicalPort(_) => {
                e.reads.push(Read::Topology(t));
                if matches!(change, A::PhysicalSwitch(_)) {
                    e.reads.push(Read::Tunnels(t));
                }
            }
            A::Tunnel(_) => {
                e.reads.push(Read::Tunnels(t));
                e.keys.push(Key::Tunnel(t, id));
            }
            A::UcastMacsLocal(c) => {
                let ls = |r: &Option<std::sync::Arc<vtep::UcastMacsLocal>>| r.as_ref().map(|r| r.logical_switch);
                e.reads.push(Read::Local(t, id));
                if self.locals.shift(id, ls(&c.old), ls(&c.new)) {
                    e.reads.extend(ls(&c.old).into_iter().chain(ls(&c.new)).map(|s| Read::LocalsOf(t, s)));
                }
                let mac =
                    |r: &Option<std::sync::Arc<vtep::UcastMacsLocal>>| r.as_ref().and_then(|r| address::mac(&r.mac));
                self.locals_with.shift(id, mac(&c.old), mac(&c.new));
                e.reads.extend(mac(&c.old).into_iter().chain(mac(&c.new)).map(Read::LocalsWith));
            }
            A::UcastMacsRemote(c) => {
                let key = |r: &Option<std::sync::Arc<vtep::UcastMacsRemote>>| {
                    r.as_ref().map(|r| (r.logical_switch, r.mac.clone()))
                };
                self.ucast.shift(id, key(&c.old), key(&c.new));
                e.keys.extend(key(&c.old).into_iter().chain(key(&c.new)).map(|(s, m)| Key::Ucast(t, s, m)));
            }
            A::McastMacsRemote(c) => {
                let key = |r: &Option<std::sync::Arc<vtep::McastMacsRemote>>| {
                    r.as_ref().map(|r| (r.logical_switch, r.mac.clone()))
                };
                self.mcast.shift(id, key(&c.old), key(&c.new));
                e.keys.extend(key(&c.old).into_iter().chain(key(&c.new)).map(|(s, m)| Key::Mcast(t, s, m)));
            }
            A::PhysicalLocator(c) => {
                let ip = |r: &Option<std::sync::Arc<vtep::PhysicalLocator>>| {
                    r.as_ref().filter(|r| r.tunnel_key.is_none()).map(|r| r.dst_ip.clone())
                };
                self.locators.shift(id, ip(&c.old), ip(&c.new));
            }
            _ => {}
        }
        e
    }

    /// The rows of `Ucast_Macs_Local` for a logical switch.
    pub fn locals_of(&self, switch: Uuid) -> impl Iterator<Item = Uuid> {
        self.locals.get(&switch)
    }

    /// The rows of `Ucast_Macs_Local` for a MAC.
    pub fn locals_with(&self, mac: &Str) -> impl Iterator<Item = &vtep::UcastMacsLocal> {
        self.locals_with.get(mac).filter_map(|id| Some(&**self.db.ucast_macs_local.get(&id)?))
    }

    /// The rows of `Ucast_Macs_Remote` for a MAC of a logical switch.
    pub fn ucast(&self, switch: Uuid, mac: &Str) -> impl Iterator<Item = (Uuid, &vtep::UcastMacsRemote)> {
        self.ucast.get(&(switch, mac.clone())).filter_map(|id| Some((id, &**self.db.ucast_macs_remote.get(&id)?)))
    }

    /// The rows of `Mcast_Macs_Remote` for a MAC of a logical switch.
    pub fn mcast(&self, switch: Uuid, mac: &Str) -> impl Iterator<Item = (Uuid, &vtep::McastMacsRemote)> {
        self.mcast.get(&(switch, mac.clone())).filter_map(|id| Some((id, &**self.db.mcast_macs_remote.get(&id)?)))
    }

    /// All logical switches and MACs of `Ucast_Macs_Remote` and of `Mcast_Macs_Remote`, as keys of outputs.
    pub fn remote_keys(&self) -> impl Iterator<Item = Key> {
        let (t, of) = (self.id, |(s, m): &(Uuid, Str)| (*s, m.clone()));
        let ucast = self.ucast.keys().map(of).map(move |(s, m)| Key::Ucast(t, s, m));
        ucast.chain(self.mcast.keys().map(of).map(move |(s, m)| Key::Mcast(t, s, m)))
    }

    /// The locator of an address.
    pub fn locator(&self, ip: &Str) -> Option<Uuid> {
        self.locators.get(ip).next()
    }

    /// A locator's address.
    pub fn locator_ip(&self, id: Uuid) -> Option<&Str> {
        self.db.physical_locator.get(&id).map(|l| &l.dst_ip)
    }

    /// The addresses of a set of locators.
    pub fn set_ips(&self, set: Uuid) -> BTreeSet<Str> {
        let locators = self.db.physical_locator_set.get(&set).into_iter().flat_map(|s| &s.locators);
        locators.filter_map(|l| self.locator_ip(*l)).cloned().collect()
    }
}

/// All databases.
#[derive(Debug, Default)]
pub struct Input {
    /// The southbound database.
    pub sb: Southbound,
    /// The databases of the switches.
    pub tors: Vec<Tor>,
}

impl Input {
    /// A switch's database.
    pub fn tor(&self, id: TorId) -> Option<&Tor> {
        self.tors.get(usize::from(id.0))
    }

    /// Every row anew, as effects: after an index was lost or at the start.
    pub fn touched(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.sb.db.chassis.values().map(|c| Key::Chassis(c.name.clone())).collect();
        keys.extend(self.sb.vtep_ports.iter().copied().map(Key::Binding));
        keys.extend(self.sb.db.fdb.values().map(|f| Key::Fdb(f.dp_key, f.mac.clone())));
        for tor in &self.tors {
            keys.extend(tor.remote_keys());
            keys.extend(tor.db.logical_switch.keys().map(|s| Key::Switch(tor.id, *s)));
            keys.extend(tor.db.tunnel.keys().map(|s| Key::Tunnel(tor.id, *s)));
        }
        keys
    }
}
