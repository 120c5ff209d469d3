//! The network that tunnels cross: routes, neighbours and own addresses.

use super::{Own, SourcePorts};
use crate::dependency::Dependency;
use crate::ids::DeviceId;
use packet::Mac;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Where encapsulated packets leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Egress {
    /// Through a bridge's flows, as from its port of this name: the one that has the tunnels' address.
    Port(String),
    /// Straight to a device.
    Device(DeviceId),
    /// Through a device of the host that belongs to no bridge, by name: the switch cannot send there.
    Host(String),
}

impl std::fmt::Display for Egress {
    /// The name of the port or of the host's device, or `device N`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Egress::Port(b) => f.write_str(b),
            Egress::Device(d) => write!(f, "device {d}"),
            Egress::Host(name) => f.write_str(name),
        }
    }
}

/// A route of the underlay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Destination.
    pub prefix: IpAddr,
    /// Length of the destination prefix.
    pub len: u8,
    /// Next hop; `None` if on link.
    pub gateway: Option<IpAddr>,
    /// Own address.
    pub source: IpAddr,
    /// Local address of the next hop's IP version, if that differs (RFC 5549).
    pub hop_source: Option<IpAddr>,
    /// Own Ethernet address.
    pub source_mac: Mac,
    /// Where packets leave.
    pub egress: Egress,
    /// Added by the operator (ovs/route/add): within its table these have precedence.
    pub own: bool,
    /// Only for packets with this mark; 0: for all that have no route of their mark.
    pub mark: u32,
    /// The kernel's table that it is in.
    pub table: u32,
}

impl Route {
    /// The kernel's main table (linux/rtnetlink.h).
    pub const MAIN: u32 = 254;
    /// The kernel's table of local addresses.
    pub const LOCAL: u32 = 255;
    /// The kernel's default table, which is looked up last.
    pub const DEFAULT: u32 = 253;
}

/// Which of the kernel's tables packets from an address look their route up in (ip-rule(8)); other selectors are not
/// followed.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct RouteRule {
    /// Lower comes first.
    pub priority: u32,
    /// For IPv6 destinations, else for IPv4.
    pub v6: bool,
    /// Source, and the length of its prefix; none: any.
    pub from: Option<(IpAddr, u8)>,
    /// The source is inverted.
    pub invert: bool,
    /// Table.
    pub table: u32,
    /// Added by the operator (ovs/route/rule/add).
    pub own: bool,
}

impl RouteRule {
    /// The kernel's default rules.
    pub fn standard() -> Vec<RouteRule> {
        let tables = [(0, Route::LOCAL), (32766, Route::MAIN), (32767, Route::DEFAULT)];
        let of = |v6| {
            tables.map(|(priority, table)| RouteRule { priority, v6, from: None, invert: false, table, own: false })
        };
        // There is no default table for IPv6.
        of(false).into_iter().chain(of(true).into_iter().filter(|r| r.table != Route::DEFAULT)).collect()
    }

    fn fits(&self, v6: bool, source: Option<IpAddr>) -> bool {
        let from = match (self.from, source) {
            (None, _) => true,
            (Some((a, len)), Some(s)) => within(s, a, len),
            (Some(_), None) => false,
        };
        self.v6 == v6 && from != self.invert
    }
}

/// Whether an address has a prefix.
fn within(a: IpAddr, prefix: IpAddr, len: u8) -> bool {
    let ((v6, a), (other, p)) = (bits(a), bits(prefix));
    v6 == other && (a ^ p) & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0) == 0
}

/// Routes, neighbours and own addresses, mirrored from the host.
#[derive(Clone, Debug, Default)]
pub struct Underlay {
    routes: Vec<Route>,
    /// Sorted; none: the kernel's default rules.
    rules: Vec<RouteRule>,
    neighbours: HashMap<IpAddr, Mac>,
    source_ports: SourcePorts,
    /// Devices beside internal ports that have own addresses, in order.
    hosts: Vec<DeviceId>,
    /// Own addresses, by version and number, in order.
    pub(crate) local: Own,
    /// Own addresses with the Ethernet addresses of their devices, at which tunnels end: those of the host's devices, and
    /// with those that routes have for sources.
    of_devices: BTreeSet<(IpAddr, Mac)>,
    ends: BTreeSet<(IpAddr, Mac)>,
    /// Moves with own addresses, who has them, and source ports.
    pub(crate) epoch: u64,
    /// Changes that the flow cache has not seen yet.
    pub(crate) touched: Vec<Dependency>,
}

fn number(a: IpAddr) -> (bool, u128) {
    match a {
        IpAddr::V4(a) => (false, u128::from(u32::from(a))),
        IpAddr::V6(a) => (true, u128::from(a)),
    }
}

fn bits(a: IpAddr) -> (bool, u128) {
    match a {
        IpAddr::V4(a) => (false, u128::from(u32::from(a)) << 96),
        IpAddr::V6(a) => (true, u128::from(a)),
    }
}

impl Underlay {
    /// Replaces the routes.
    pub fn set_routes(&mut self, mut routes: Vec<Route>) {
        routes.sort_by_key(|r| std::cmp::Reverse((r.own, r.len)));
        if self.routes != routes {
            self.routes = routes;
            self.touched.push(Dependency::Routes);
            self.find_ends();
        }
    }

    /// Replaces the own addresses of devices, each with its device's Ethernet address. Tunnels end at those, and at the
    /// sources of routes.
    pub fn set_local(&mut self, of_devices: BTreeSet<(IpAddr, Mac)>) {
        if self.of_devices != of_devices {
            self.of_devices = of_devices;
            self.find_ends();
        }
    }

    fn find_ends(&mut self) {
        let by_ports = |r: &&Route| !matches!(r.egress, Egress::Host(_)) && r.source.is_ipv4() == r.prefix.is_ipv4();
        let sources = self.routes.iter().filter(by_ports).map(|r| (r.source, r.source_mac));
        let ends: BTreeSet<(IpAddr, Mac)> = self.of_devices.iter().copied().chain(sources).collect();
        if self.ends != ends {
            let mut addresses: Vec<(bool, u128)> = ends.iter().map(|(a, _)| number(*a)).collect();
            addresses.sort_unstable();
            addresses.dedup();
            (self.local.addresses, self.ends) = (Arc::new(addresses), ends);
            self.epoch += 1;
        }
    }

    /// Whether tunnels end at an address where a frame is for this Ethernet address.
    pub(crate) fn ends_at(&self, a: IpAddr, mac: Mac) -> bool {
        self.ends.contains(&(a, mac))
    }

    /// Sets which devices have own addresses beside internal ports.
    pub fn set_hosts(&mut self, mut devices: Vec<DeviceId>) {
        devices.sort_unstable();
        if self.hosts != devices {
            self.hosts = devices;
            self.epoch += 1;
        }
    }

    /// Whether a device that is no internal port has an own address, so that tunnels end there.
    pub fn is_host(&self, device: DeviceId) -> bool {
        self.hosts.binary_search(&device).is_ok()
    }

    /// Sets how many VLAN tags are parsed, two at most; further tags are payload.
    pub fn set_tags(&mut self, n: usize) {
        let n = n.min(crate::extract::TAGS);
        if self.local.tags != n {
            self.local.tags = n;
            self.epoch += 1;
        }
    }

    /// The source ports of tunnels' packets.
    pub fn source_ports(&self) -> SourcePorts {
        self.source_ports
    }

    /// Sets these.
    pub fn set_source_ports(&mut self, ports: SourcePorts) {
        if self.source_ports != ports {
            self.source_ports = ports;
            self.epoch += 1;
        }
    }

    /// How many VLAN tags are parsed.
    pub fn tags(&self) -> usize {
        self.local.tags()
    }

    /// Learns a neighbour, or forgets it.
    pub fn set_neighbour(&mut self, a: IpAddr, mac: Option<Mac>) {
        let old = match mac {
            Some(m) => self.neighbours.insert(a, m),
            None => self.neighbours.remove(&a),
        };
        if old != mac {
            self.touched.push(Dependency::Neighbour(a));
        }
    }

    /// Replaces the rules.
    pub fn set_rules(&mut self, mut rules: Vec<RouteRule>) {
        rules.sort();
        if self.rules != rules {
            self.rules = rules;
            self.touched.push(Dependency::Routes);
        }
    }

    /// The rules, in their order.
    pub fn rules(&self) -> Vec<RouteRule> {
        if self.rules.is_empty() { RouteRule::standard() } else { self.rules.clone() }
    }

    /// The route of packets without source or mark.
    pub fn route(&self, to: IpAddr) -> Option<&Route> {
        self.route_from(to, None, 0)
    }

    /// Whether routes differ with packets' marks.
    pub(crate) fn looks_at_marks(&self) -> bool {
        self.routes.iter().any(|r| r.mark != 0)
    }

    /// The route of the first table that has one: of the operator's own the longest, else the longest of the kernel's.
    /// Routes of the packet's mark come before those for all.
    pub fn route_from(&self, to: IpAddr, source: Option<IpAddr>, mark: u32) -> Option<&Route> {
        let standard;
        let rules = if self.rules.is_empty() {
            standard = RouteRule::standard();
            &standard
        } else {
            &self.rules
        };
        let find = |t, mark| self.routes.iter().find(|r| r.table == t && r.mark == mark && within(to, r.prefix, r.len));
        let tables = || rules.iter().filter(|r| r.fits(to.is_ipv6(), source)).map(|r| r.table);
        let marked = if mark == 0 { None } else { tables().find_map(|t| find(t, mark)) };
        marked.or_else(|| tables().find_map(|t| find(t, 0)))
    }

    /// A neighbour's Ethernet address.
    pub fn neighbour(&self, a: IpAddr) -> Option<Mac> {
        self.neighbours.get(&a).copied()
    }

    /// The next hop of packets to an address, and from another if one is given.
    pub fn next_hop(&self, to: IpAddr, source: Option<IpAddr>) -> Option<IpAddr> {
        let route = self.route_from(to, source, 0).filter(|r| !matches!(r.egress, Egress::Host(_)))?;
        Some(route.gateway.unwrap_or(to))
    }

    /// All routes, the best first.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    /// Whether an address is local.
    pub fn is_local(&self, a: IpAddr) -> bool {
        let (v6, n) = number(a);
        self.local.has(v6, n)
    }
}
