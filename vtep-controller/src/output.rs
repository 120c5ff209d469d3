//! What is derived: the rows that the databases should have, by keys that name them.

use crate::model::TorId;
use ovn_schema::{Map, Set, Str, Uuid};

/// The name of a derived row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Southbound `Chassis` with its `Encap`s, by name.
    Chassis(Str),
    /// `chassis` of a southbound `Port_Binding`.
    Binding(Uuid),
    /// Southbound `FDB`: the datapath's key and a MAC.
    Fdb(i64, Str),
    /// Southbound `MAC_Binding`: a router's port and an IP address.
    Neighbour(Str, Str),
    /// What is ours of a `Logical_Switch`.
    Switch(TorId, Uuid),
    /// `Ucast_Macs_Remote`: a logical switch and a MAC.
    Ucast(TorId, Uuid, Str),
    /// `Mcast_Macs_Remote`: a logical switch and a MAC or `unknown-dst`.
    Mcast(TorId, Uuid, Str),
    /// What is ours of a `Tunnel`.
    Tunnel(TorId, Uuid),
    /// Something that people should know.
    Notice(Notice),
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Chassis(name) => write!(f, "Chassis ({name})"),
            Key::Binding(id) => write!(f, "the binding of Port_Binding {id}"),
            Key::Fdb(datapath, mac) => write!(f, "the FDB entry of MAC ({mac}) in datapath {datapath}"),
            Key::Neighbour(port, ip) => write!(f, "the MAC_Binding of IP ({ip}) at router port ({port})"),
            Key::Switch(_, id) => write!(f, "Logical_Switch {id}"),
            Key::Ucast(_, id, mac) => write!(f, "Ucast_Macs_Remote of MAC ({mac}) in Logical_Switch {id}"),
            Key::Mcast(_, id, mac) => write!(f, "Mcast_Macs_Remote of MAC ({mac}) in Logical_Switch {id}"),
            Key::Tunnel(_, id) => write!(f, "Tunnel {id}"),
            Key::Notice(n) => f.write_str(&n.text),
        }
    }
}

/// Something that people should know; said once, when it begins to hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Notice {
    /// The log module.
    pub module: Module,
    /// Only informative.
    pub info: bool,
    /// It may hold only because the rest has not been written yet: people make a port and its options in two steps.
    pub early: bool,
    /// The text.
    pub text: Str,
}

/// Where a notice belongs; the log modules of ovn-controller-vtep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Module {
    /// Registration of switches.
    Gateway,
    /// Bindings of ports.
    Binding,
    /// The switches' tables.
    Vtep,
}

/// The value of a derived row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Under [`Key::Chassis`].
    Chassis(Chassis),
    /// Under [`Key::Binding`]: the chassis' name.
    Binding(Str),
    /// Under [`Key::Fdb`]: the port's key, and the database that learned it.
    Fdb(i64, TorId),
    /// Under [`Key::Neighbour`].
    Neighbour(Neighbour),
    /// Under [`Key::Switch`].
    Switch(Switch),
    /// Under [`Key::Ucast`].
    Ucast(Ucast),
    /// Under [`Key::Mcast`]: addresses of the locators.
    Mcast(Set<Str>),
    /// Under [`Key::Tunnel`].
    Tunnel(Tunnel),
    /// Under [`Key::Notice`].
    Notice,
}

/// A switch as a chassis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chassis {
    /// Tunnel endpoints.
    pub ips: Set<Str>,
    /// Names of the logical switches that it has.
    pub logical: Set<Str>,
    /// The row of `Global` of the database that registers it.
    pub owner: Str,
    /// It runs BFD on its tunnels.
    pub bfd: bool,
}

/// An address that a switch knows the MAC of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    /// The MAC address.
    pub mac: Str,
    /// The router's datapath.
    pub router: Uuid,
    /// The database that knows it.
    pub tor: TorId,
}

/// What is ours of a `Logical_Switch`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Switch {
    /// The key of the datapath.
    pub tunnel_key: i64,
    /// `source_node` or `service_node`.
    pub replication: Str,
}

/// Where a MAC is. Values sort so that the one to use is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ucast {
    /// It was learned by another switch rather than configured.
    pub learned: bool,
    /// The logical port.
    pub port: Str,
    /// The tunnel endpoint.
    pub ip: Str,
    /// The IP address, for suppression of ARP; may be empty.
    pub ipaddr: Str,
}

/// What is ours of a `Tunnel`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnel {
    /// `bfd_params`.
    pub params: Map<Str, Str>,
    /// `bfd_config_remote`.
    pub remote: Map<Str, Str>,
}

impl Notice {
    /// A warning.
    pub fn warning(module: Module, text: String) -> Notice {
        Notice { module, info: false, early: false, text: text.into() }
    }

    /// An information.
    pub fn info(module: Module, text: String) -> Notice {
        Notice { module, info: true, early: false, text: text.into() }
    }

    /// Puts it into the log.
    pub fn say(&self) {
        let text = &self.text;
        let kind = daemon::kind(text);
        match (self.module, self.info) {
            (Module::Gateway, true) => tracing::info!(target: "gateway", "{text}"),
            (Module::Gateway, false) => tracing::warn!(target: "gateway", kind, "{text}"),
            (Module::Binding, true) => tracing::info!(target: "binding", "{text}"),
            (Module::Binding, false) => tracing::warn!(target: "binding", kind, "{text}"),
            (Module::Vtep, true) => tracing::info!(target: "vtep", "{text}"),
            (Module::Vtep, false) => tracing::warn!(target: "vtep", kind, "{text}"),
        }
    }
}

impl Key {
    /// The switch's database that the row is in; none for southbound rows.
    pub fn tor(&self) -> Option<TorId> {
        match self {
            Key::Switch(t, _) | Key::Ucast(t, ..) | Key::Mcast(t, ..) | Key::Tunnel(t, _) => Some(*t),
            Key::Chassis(_) | Key::Binding(_) | Key::Fdb(..) | Key::Neighbour(..) | Key::Notice(_) => None,
        }
    }
}
