//! What the interfaces of the integration bridge say, kept as their rows change: only interfaces that changed are looked at.

use crate::input::model::{Tunnel, Vif};
use crate::input::settings;
use gateway_ha::Session;
use ovn_schema::ovs::{AnyChange, Bridge, Database, Interface, OpenVswitch, Port};
use ovn_schema::{Set, Str, Uuid, options};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Marks ports that are tunnels, with the chassis: `CHASSIS@REMOTE%LOCAL`.
pub const TUNNEL_ID: &str = "ovn-chassis-id";
/// Marks patch ports to provider networks, with the logical port.
pub const LOCALNET_ID: &str = "ovn-localnet-port";
/// Likewise, of ports of type `l2gateway`.
pub const L2GATEWAY_ID: &str = "ovn-l2gateway-port";

/// Marks interfaces that a controller plugged in, with the provider of their devices.
pub const PLUGGED_ID: &str = "ovn-plugged";

/// What one interface says.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    port: Uuid,
    vif: Option<(Str, Vif)>,
    localnet: Option<(Str, u16)>,
    tunnel: Option<Tunnel>,
    session: Option<(Str, Session)>,
    plugged: bool,
}

/// The interfaces that say they are one logical port.
#[derive(Debug, Default)]
struct Claimants {
    /// By port and own row, which is their order in the bridge.
    all: BTreeMap<(Uuid, Uuid), Vif>,
    /// Those that had a number at the look before.
    known: BTreeSet<Uuid>,
    chosen: Option<Vif>,
}

/// What the bridge's interfaces say.
#[derive(Debug, Default)]
pub struct Interfaces {
    bridge: Option<Uuid>,
    /// Ports by interface, and interfaces by port, of all bridges.
    owner: HashMap<Uuid, Uuid>,
    of_port: HashMap<Uuid, Set<Uuid>>,
    said: HashMap<Uuid, Said>,
    claimants: BTreeMap<Str, Claimants>,
    /// Interfaces whose rows, ports or bridges changed since the last look, and ports that went from bridge to bridge.
    changed: BTreeSet<Uuid>,
    moved: BTreeSet<Uuid>,
    /// Patches to provider networks, by interface: logical ports with their numbers. While one takes another's place there are two.
    localnets: BTreeMap<Uuid, (Str, u16)>,
    /// Tunnels, likewise.
    tunnels: BTreeMap<Uuid, Tunnel>,
    /// BFD sessions, by tunnel's interface: chassis and state.
    sessions: BTreeMap<Uuid, (Str, Session)>,
    /// Interfaces that changed and whose mark was not looked at since.
    pub unmarked: BTreeSet<Uuid>,
    /// Interfaces that a controller plugged in.
    plugged: BTreeSet<Uuid>,
    /// How often something changed that tunnels, patch ports, queues or mirrors may follow from.
    plumbing: u64,
    /// How often any interface changed, be it of another bridge.
    generation: u64,
}

/// What a bridge is, but for its ports and its `external_ids`. Nothing is copied: both may be long, and this controller and the
/// switch change them with each port.
pub(crate) fn bare(b: &Bridge) -> impl PartialEq + use<'_> {
    let Bridge {
        auto_attach,
        controller,
        datapath_id,
        datapath_type,
        datapath_version,
        external_ids: _,
        fail_mode,
        flood_vlans,
        flow_tables,
        ipfix,
        mcast_snooping_enable,
        mirrors,
        name,
        netflow,
        other_config,
        ports: _,
        protocols,
        rstp_enable,
        rstp_status,
        sflow,
        status,
        stp_enable,
    } = b;
    let what = (name, datapath_id, datapath_type, datapath_version, fail_mode, protocols, other_config);
    let tables = (auto_attach, controller, flow_tables, ipfix, mirrors, netflow, sflow);
    (what, tables, (flood_vlans, mcast_snooping_enable, rstp_enable, rstp_status, status, stp_enable))
}

/// Whether an interface is a machine's, and no more than that.
fn is_machine(i: &Interface) -> bool {
    i.external_ids.contains_key("iface-id") && !i.external_ids.contains_key("mirror-id")
}

fn is_machine_port(db: &Database, p: &Port) -> bool {
    p.external_ids.is_empty() && p.interfaces.iter().all(|i| db.interface.get(i).is_some_and(|i| is_machine(i)))
}

fn said(port: Uuid, p: &Port, id: Uuid, i: &Interface) -> Said {
    let ofport = i.ofport.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
    let mut out = Said { port, ..Said::default() };
    if let Some(name) = i.external_ids.get("iface-id") {
        let (version, encap_ip) = (i.external_ids.get("iface-id-ver"), i.external_ids.get("encap-ip"));
        let mtu = i.mtu.and_then(|m| u16::try_from(m).ok()).filter(|m| *m > 0);
        let vif = Vif { mtu, ofport, version: version.cloned(), encap_ip: encap_ip.cloned(), row: id };
        out.vif = Some((name.clone(), vif));
        out.plugged = i.external_ids.contains_key(PLUGGED_ID);
    }
    let patch = p.external_ids.get(LOCALNET_ID).or(p.external_ids.get(L2GATEWAY_ID));
    out.localnet = patch.cloned().zip(ofport);
    if let Some(id) = p.external_ids.get(TUNNEL_ID) {
        let chassis: Str = id.split('@').next().unwrap_or_default().into();
        if options::flag(&i.bfd, "enable") {
            let status = |key: &str| i.bfd_status.get(key).map(|s| &**s);
            out.session = Some((chassis.clone(), Session::from_status(status("state"), status("remote_state"))));
        }
        out.tunnel = ofport.map(|n| Tunnel {
            chassis,
            kind: i.r#type.clone(),
            remote_ip: i.options.get("remote_ip").cloned().unwrap_or_default(),
            local_ip: i.options.get("local_ip").cloned().unwrap_or_default(),
            ofport: n,
        });
    }
    out
}

impl Interfaces {
    /// Takes note of a change that the database has taken over. Of what this controller wrote itself (`own`) nothing follows.
    pub fn changed(&mut self, change: &AnyChange, own: bool) {
        let concerns = match change {
            AnyChange::Interface(c) => {
                self.changed.insert(c.uuid);
                ![&c.old, &c.new].into_iter().flatten().all(|i| is_machine(i))
            }
            AnyChange::Port(c) => {
                for i in c.old.iter().flat_map(|p| &p.interfaces) {
                    self.changed.insert(*i);
                    self.owner.remove(i);
                }
                for i in c.new.iter().flat_map(|p| &p.interfaces) {
                    self.changed.insert(*i);
                    self.owner.insert(*i, c.uuid);
                }
                match &c.new {
                    Some(p) => drop(self.of_port.insert(c.uuid, p.interfaces.clone())),
                    None => drop(self.of_port.remove(&c.uuid)),
                }
                // A port without marks that comes or goes is what its interfaces are.
                let one = c.old.as_ref().xor(c.new.as_ref());
                one.is_none_or(|p| !p.external_ids.is_empty() || p.qos.is_some())
            }
            AnyChange::Bridge(c) => {
                let none = Set::new();
                let (old, new) = (c.old.as_deref(), c.new.as_deref());
                let (before, after) = (old.map_or(&none, |b| &b.ports), new.map_or(&none, |b| &b.ports));
                for port in before.symmetric_difference(after) {
                    self.changed.extend(self.of_port.get(port).into_iter().flatten());
                    self.moved.insert(*port);
                }
                old.map(|b| &b.external_ids) != new.map(|b| &b.external_ids) || old.map(bare) != new.map(bare)
            }
            AnyChange::OpenVswitch(c) => {
                let bare = |r: &std::sync::Arc<OpenVswitch>| OpenVswitch { next_cfg: 0, ..(**r).clone() };
                c.old.as_ref().map(bare) != c.new.as_ref().map(bare)
            }
            _ => true,
        };
        self.plumbing += u64::from(concerns && !own);
    }

    /// The database begins anew: what it has comes as changes.
    pub fn restart(&mut self) {
        self.changed.extend(self.said.keys());
        self.owner.clear();
        self.of_port.clear();
        self.plumbing += 1;
    }

    /// Another number whenever something changed that tunnels, patch ports, queues or mirrors may follow from.
    pub fn plumbing(&self) -> u64 {
        self.plumbing
    }

    /// Looks at what changed. Gives the logical ports whose interface is another now.
    pub fn look(&mut self, db: &Database, (bridge, br): (Uuid, &Bridge)) -> Vec<(Str, Option<Vif>)> {
        if self.bridge.replace(bridge) != Some(bridge) {
            self.changed.extend(self.said.keys());
            self.changed.extend(settings::interfaces(db, br).map(|(.., id, _)| id));
        }
        // One that goes from bridge to bridge changes no row of its own.
        let moved = std::mem::take(&mut self.moved);
        let moved = moved.iter().filter_map(|p| db.port.get(p)).any(|p| !is_machine_port(db, p));
        self.plumbing += u64::from(moved);
        let mut names = BTreeSet::new();
        self.generation += u64::from(!self.changed.is_empty());
        for id in std::mem::take(&mut self.changed) {
            let port = self.owner.get(&id).filter(|p| br.ports.contains(*p));
            let rows = port.and_then(|p| Some((*p, db.port.get(p)?, db.interface.get(&id)?)));
            let new = rows.map(|(port, p, i)| said(port, p, id, i));
            if rows.is_some() {
                self.unmarked.insert(id);
            }
            self.replace(id, new, &mut names);
        }
        let chosen = |s: &mut Interfaces, name: Str| {
            let c = s.claimants.get_mut(&name)?;
            let (before, now) = (c.chosen.clone(), c.choose());
            if c.all.is_empty() {
                s.claimants.remove(&name);
            }
            (before != now).then_some((name, now))
        };
        names.into_iter().filter_map(|n| chosen(self, n)).collect()
    }

    /// Takes over what an interface says now.
    fn replace(&mut self, id: Uuid, new: Option<Said>, names: &mut BTreeSet<Str>) {
        let old = match &new {
            Some(s) => self.said.insert(id, s.clone()),
            None => self.said.remove(&id),
        };
        if old == new {
            return;
        }
        // Mirrors name the port that an interface is in.
        self.plumbing += u64::from(old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old.port != new.port));
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        match new.plugged {
            true => self.plugged.insert(id),
            false => self.plugged.remove(&id),
        };
        if let Some((name, _)) = &old.vif {
            names.insert(name.clone());
            if let Some(c) = self.claimants.get_mut(name) {
                c.all.remove(&(old.port, id));
            }
        }
        if let Some((name, vif)) = new.vif {
            names.insert(name.clone());
            self.claimants.entry(name).or_default().all.insert((new.port, id), vif);
        }
        match new.localnet {
            Some(l) => drop(self.localnets.insert(id, l)),
            None => drop(self.localnets.remove(&id)),
        }
        match new.tunnel {
            Some(t) => drop(self.tunnels.insert(id, t)),
            None => drop(self.tunnels.remove(&id)),
        }
        match new.session {
            Some(s) => drop(self.sessions.insert(id, s)),
            None => drop(self.sessions.remove(&id)),
        }
    }

    /// Patches to provider networks: logical ports with their numbers.
    pub fn localnets(&self) -> BTreeMap<Str, u16> {
        self.localnets.values().cloned().collect()
    }

    /// Tunnels.
    pub fn tunnels(&self) -> BTreeSet<Tunnel> {
        self.tunnels.values().cloned().collect()
    }

    /// BFD sessions by the chassis at the other end, the best where there are several tunnels.
    pub fn sessions(&self) -> BTreeMap<Str, Session> {
        let mut out: BTreeMap<Str, Session> = BTreeMap::new();
        for (chassis, session) in self.sessions.values() {
            let best = out.entry(chassis.clone()).or_insert(*session);
            *best = (*session).max(*best);
        }
        out
    }

    /// Another number whenever an interface changed since the look before, be it of another bridge.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The bridge's interfaces that a controller plugged in.
    pub fn plugged(&self) -> &BTreeSet<Uuid> {
        &self.plugged
    }

    /// The bridge's interfaces that say they are a logical port.
    pub fn claimants(&self, name: &Str) -> impl Iterator<Item = Uuid> + use<'_> {
        self.claimants.get(name).into_iter().flat_map(|c| c.all.keys().map(|(_, row)| *row))
    }

    /// The bridge's port that an interface is in.
    pub fn port_of(&self, interface: &Uuid) -> Option<Uuid> {
        self.said.get(interface).map(|s| s.port)
    }
}

impl Claimants {
    /// Chooses one: that which said so last, the others were there the look before.
    fn choose(&mut self) -> Option<Vif> {
        let usable = |v: &&Vif| v.ofport.is_some();
        let new = self.all.values().rfind(|v| usable(v) && !self.known.contains(&v.row));
        let before = self.chosen.as_ref();
        let old = before.and_then(|b| self.all.values().find(|v| v.row == b.row && usable(v)));
        let any = || self.all.values().rfind(|v| usable(v)).or_else(|| self.all.values().next_back());
        let chosen = new.or(old).or_else(any).cloned();
        self.known = self.all.values().filter(usable).map(|v| v.row).collect();
        self.chosen.clone_from(&chosen);
        chosen
    }
}
