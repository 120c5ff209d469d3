//! What the services look at of the databases. The loop tells what changed of it; the services never wait for the loop.

use super::bfd::Wanted;
use super::boot::Rules;
use ovn_schema::{DatapathKey, PortKey, Uuid, sb};
use packet::Mac;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A part of the southbound database, by the keys that packets carry.
#[derive(Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Names, by the key of the datapath that asks and by row.
    dns: HashMap<DatapathKey, BTreeMap<Uuid, Arc<sb::Dns>>>,
    /// The key of the port behind which answers come, by the keys of datapath and redirect port.
    distributed: HashMap<(DatapathKey, PortKey), PortKey>,
    /// What machines are to load, by the key of the datapath and their Ethernet address.
    boot: HashMap<(DatapathKey, Mac), Arc<Rules>>,
    /// The BFD sessions of this chassis, by row.
    sessions: BTreeMap<Uuid, Wanted>,
}

/// What changed.
#[derive(Debug)]
pub enum Told {
    /// All of it.
    Anew(Snapshot),
    /// The names of a row in a datapath; none: it has them no more.
    Names(DatapathKey, Uuid, Option<Arc<sb::Dns>>),
    /// Behind which port answers for a redirect port come.
    Distributed((DatapathKey, PortKey), Option<PortKey>),
    /// What a machine is to load.
    Boot((DatapathKey, Mac), Option<Arc<Rules>>),
    /// A BFD session, by its row.
    Session(Uuid, Option<Wanted>),
}

impl Snapshot {
    /// Takes over what changed.
    pub fn take(&mut self, told: Told) {
        match told {
            Told::Anew(all) => *self = all,
            Told::Names(datapath, row, Some(names)) => {
                self.dns.entry(datapath).or_default().insert(row, names);
            }
            Told::Names(datapath, row, None) => {
                let of = self.dns.entry(datapath).or_default();
                of.remove(&row);
                if of.is_empty() {
                    self.dns.remove(&datapath);
                }
            }
            Told::Distributed(port, Some(behind)) => drop(self.distributed.insert(port, behind)),
            Told::Distributed(port, None) => drop(self.distributed.remove(&port)),
            Told::Boot(machine, Some(rules)) => drop(self.boot.insert(machine, rules)),
            Told::Boot(machine, None) => drop(self.boot.remove(&machine)),
            Told::Session(row, Some(wanted)) => drop(self.sessions.insert(row, wanted)),
            Told::Session(row, None) => drop(self.sessions.remove(&row)),
        }
    }

    /// The names that a datapath knows.
    pub fn dns(&self, datapath: DatapathKey) -> impl Iterator<Item = &sb::Dns> {
        self.dns.get(&datapath).into_iter().flat_map(BTreeMap::values).map(|r| &**r)
    }

    /// The key of the port behind which answers come: of a redirect port, its distributed port's.
    pub fn distributed(&self, datapath: DatapathKey, port: PortKey) -> PortKey {
        self.distributed.get(&(datapath, port)).copied().unwrap_or(port)
    }

    /// The BFD sessions of this chassis.
    pub fn sessions(&self) -> &BTreeMap<Uuid, Wanted> {
        &self.sessions
    }

    /// What a machine is to load.
    pub fn boot(&self, datapath: DatapathKey, machine: Mac) -> Option<&Rules> {
        self.boot.get(&(datapath, machine)).map(|r| &**r)
    }
}
