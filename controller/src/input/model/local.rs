//! What the local database and the switch say, and what follows from it.

use super::{Input, Read};
use crate::evpn::Fabric;
use ovn_schema::sb::TableId;
use ovn_schema::{Str, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// A tunnel to another chassis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnel {
    /// The chassis' name.
    pub chassis: Str,
    /// `geneve` or `vxlan`.
    pub kind: Str,
    /// The remote address.
    pub remote_ip: Str,
    /// The local address; empty where the switch chooses.
    pub local_ip: Str,
    /// The OpenFlow port.
    pub ofport: u16,
}

impl Tunnel {
    /// Whether packets say where they go (`remote_ip=flow`): one port leads to all chassis.
    pub fn is_flow_based(&self) -> bool {
        &*self.remote_ip == "flow"
    }
}

/// What the operator wants of tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tunnelling {
    /// Encapsulations, the best first: kind and address.
    pub encaps: Vec<(Str, Str)>,
    /// The zones in which this chassis has tunnels; none: that of those that have none, too.
    pub transport_zones: BTreeSet<Str>,
    /// Whether it has tunnels to other availability zones.
    pub interconnection: bool,
    /// One tunnel for all chassis, whose packets say where they go.
    pub flow_based: bool,
    /// The type of service of outer headers (`options:tos`).
    pub tos: Option<Str>,
    /// Whether outer headers forbid fragments (`options:df_default`).
    pub df: Option<Str>,
}

/// A virtual interface that is plugged into this chassis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vif {
    /// The OpenFlow port; none until the switch gave one.
    pub ofport: Option<u16>,
    /// `iface-id-ver`: of which version of the port it is the interface.
    pub version: Option<Str>,
    /// `encap-ip`: by which of the chassis' addresses it is reached.
    pub encap_ip: Option<Str>,
    /// The largest packet that it takes, without Ethernet header.
    pub mtu: Option<u16>,
    /// Its row.
    pub row: Uuid,
}

/// What the local databases and the switch say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Local {
    /// This chassis' name.
    pub chassis_name: Str,
    /// This chassis' row.
    pub chassis: Option<Uuid>,
    /// This machine's name.
    pub hostname: Str,
    /// Interfaces by the logical port that they say they are (`external_ids:iface-id`).
    pub vifs: BTreeMap<Str, Vif>,
    /// OpenFlow ports of the patches to provider networks, by localnet (or l2gateway) port.
    pub localnets: BTreeMap<Str, u16>,
    /// Tunnels.
    pub tunnels: BTreeSet<Tunnel>,
    /// What the operator wants of tunnels.
    pub tunnelling: Tunnelling,
    /// This chassis' addresses, the default one first ([`crate::input::settings::Settings::encap_ips`]).
    pub encap_ips: Vec<Str>,
    /// Connection tracking zones by name: a logical port's, or `ROUTER_dnat`, `ROUTER_snat`.
    pub zones: BTreeMap<Str, u16>,
    /// Ports whose machines said that they run here now (`options:activation-strategy`), by row.
    pub activated: BTreeSet<Uuid>,
    /// Datapaths that have something on this chassis.
    pub datapaths: BTreeSet<Uuid>,
    /// Which chassis are alive, and whether this one is cut off or still starting.
    pub gateways: gateway_ha::View,
    /// The southbound database is connected: who has claimed a port is known.
    pub southbound: bool,
    /// What is known of the fabric that EVPN extends switches into.
    pub fabric: Fabric,
    /// The integration bridge's sets of sample collectors (`Flow_Sample_Collector_Set`), by number.
    pub collectors: BTreeSet<u32>,
}

impl Local {
    /// The interface of a logical port, once the switch has given it a number.
    pub fn interface(&self, port: &Str) -> Option<&Vif> {
        self.vifs.get(port).filter(|v| v.ofport.is_some())
    }
}

impl Input {
    /// Takes over another local state as a whole, and names what changed.
    pub fn set_local(&mut self, new: Local) -> Vec<Read> {
        let vifs = differing(&self.local.vifs, &new.vifs).map(|n| (n.clone(), new.vifs.get(&n).cloned()));
        let vifs: Vec<_> = vifs.collect();
        let mut reads = self.set_identity(new.chassis_name, new.hostname, new.encap_ips, new.chassis);
        reads.extend(self.set_alive(new.gateways, new.southbound));
        reads.extend(self.set_vifs(vifs));
        reads.extend(self.set_ports(new.localnets, new.tunnels));
        reads.extend(self.set_activated(new.activated));
        reads.extend(self.set_tunnelling(new.tunnelling));
        reads.extend(self.set_datapaths(new.datapaths));
        reads.extend(self.set_zones(new.zones));
        reads.extend(self.set_fabric(new.fabric));
        reads.extend(self.set_collectors(new.collectors));
        reads
    }

    /// Takes over which sets of collectors take samples.
    pub fn set_collectors(&mut self, new: BTreeSet<u32>) -> Vec<Read> {
        if self.local.collectors == new {
            return Vec::new();
        }
        self.local.collectors = new;
        self.count(vec![Read::Collectors])
    }

    /// Takes over what this chassis is called, by which addresses it is reached, and which its row is.
    pub fn set_identity(&mut self, name: Str, host: Str, encap_ips: Vec<Str>, chassis: Option<Uuid>) -> Vec<Read> {
        let mut reads = Vec::new();
        let l = &mut self.local;
        if (&l.chassis_name, &l.hostname, &l.chassis) != (&name, &host, &chassis) {
            (l.chassis_name, l.hostname, l.chassis) = (name, host, chassis);
            self.interest += 1;
            self.own_rows += 1;
            reads.push(Read::Chassis);
        }
        if self.local.encap_ips != encap_ips {
            self.local.encap_ips = encap_ips;
            reads.push(Read::Tunnels);
        }
        self.count(reads)
    }

    /// Takes over what the operator wants of tunnels.
    pub fn set_tunnelling(&mut self, new: Tunnelling) -> Vec<Read> {
        if self.local.tunnelling == new {
            return Vec::new();
        }
        self.local.tunnelling = new;
        self.count(vec![Read::Tunnelling])
    }

    /// Takes over which groups of chassis serve local datapaths, and names those that changed.
    pub fn set_serving(&mut self, groups: &BTreeSet<Uuid>) -> Vec<Read> {
        let changed = self.serving.symmetric_difference(groups).copied().map(Read::Serves).collect();
        self.serving.clone_from(groups);
        changed
    }

    /// Takes over which chassis are alive, and whether the southbound database is connected.
    pub fn set_alive(&mut self, gateways: gateway_ha::View, southbound: bool) -> Vec<Read> {
        let l = &mut self.local;
        let mut reads = Vec::new();
        if l.gateways.hushed != gateways.hushed {
            l.gateways.hushed.clone_from(&gateways.hushed);
            reads.push(Read::Hushed);
        }
        if (&l.gateways, l.southbound) != (&gateways, southbound) {
            (l.gateways, l.southbound) = (gateways, southbound);
            reads.push(Read::Alive);
        }
        self.count(reads)
    }

    /// Takes over the interfaces of some logical ports.
    pub fn set_vifs(&mut self, changed: Vec<(Str, Option<Vif>)>) -> Vec<Read> {
        let mut reads = Vec::new();
        for (name, new) in changed {
            if self.local.vifs.get(&name) == new.as_ref() {
                continue;
            }
            self.generation += 1;
            let there = new.is_some();
            // An interface without a number is not there for flows.
            let usable = |v: Option<Vif>| v.filter(|v| v.ofport.is_some());
            let after = usable(new.clone());
            let old = match new {
                Some(v) => self.local.vifs.insert(name.clone(), v),
                None => self.local.vifs.remove(&name),
            };
            let moved = old.is_some() != there;
            self.note_stranger(&name);
            if usable(old) != after {
                reads.push(Read::Vif(name));
            } else if moved {
                reads.push(Read::Plugged(name));
            }
        }
        reads
    }

    /// Takes over the patches to provider networks and the tunnels.
    pub fn set_ports(&mut self, localnets: BTreeMap<Str, u16>, tunnels: BTreeSet<Tunnel>) -> Vec<Read> {
        let mut reads: Vec<Read> = differing(&self.local.localnets, &localnets).map(Read::Localnet).collect();
        self.local.localnets = localnets;
        if self.local.tunnels != tunnels {
            self.local.tunnels = tunnels;
            reads.push(Read::Tunnels);
        }
        self.count(reads)
    }

    /// Takes over whose machines said that they run here.
    pub fn set_activated(&mut self, activated: BTreeSet<Uuid>) -> Vec<Read> {
        let old = std::mem::replace(&mut self.local.activated, activated);
        let differ = old.symmetric_difference(&self.local.activated);
        let reads = differ.map(|id| Read::Row(TableId::PortBinding, *id)).collect();
        self.count(reads)
    }

    /// Takes over which datapaths are local.
    pub fn set_datapaths(&mut self, datapaths: BTreeSet<Uuid>) -> Vec<Read> {
        if self.local.datapaths == datapaths {
            return Vec::new();
        }
        let old = std::mem::replace(&mut self.local.datapaths, datapaths);
        self.interest += 1;
        for name in self.local.vifs.keys().cloned().collect::<Vec<_>>() {
            self.note_stranger(&name);
        }
        let mut reads = vec![Read::Datapaths];
        for dp in old.symmetric_difference(&self.local.datapaths) {
            reads.extend([Read::Local(*dp), Read::FlowsOf(*dp)]);
            reads.extend(self.dp_groups_of(*dp).map(Read::FlowsOf));
        }
        self.count(reads)
    }

    /// Takes over what is known of the fabric, and names what changed. Only flows follow from it.
    pub fn set_fabric(&mut self, fabric: Fabric) -> Vec<Read> {
        let reads = self.local.fabric.differences(&fabric).into_iter().map(|e| Read::Evpn(Box::new(e))).collect();
        self.local.fabric = fabric;
        reads
    }

    /// Takes over other zones, and names those that changed.
    pub fn set_zones(&mut self, zones: BTreeMap<Str, u16>) -> Vec<Read> {
        if self.local.zones == zones {
            return Vec::new();
        }
        self.zones_generation += 1;
        let old = std::mem::replace(&mut self.local.zones, zones);
        differing(&old, &self.local.zones).map(Read::Zone).collect()
    }

    /// Notes that something local changed, if it did.
    fn count(&mut self, reads: Vec<Read>) -> Vec<Read> {
        self.generation += u64::from(!reads.is_empty());
        reads
    }
}

/// The keys whose values differ.
fn differing<'a, V: PartialEq>(
    a: &'a BTreeMap<Str, V>,
    b: &'a BTreeMap<Str, V>,
) -> impl Iterator<Item = Str> + use<'a, V> {
    let gone = a.iter().filter(|(k, v)| b.get(*k) != Some(*v)).map(|(k, _)| k.clone());
    let new = b.keys().filter(|k| !a.contains_key(*k)).cloned();
    gone.chain(new)
}
