//! Gives the switch the kernel's routes and neighbours, by which tunnels leave, and the addresses at which tunnels end.

use super::{Reconciler, RunningBridge};
use crate::config::port::{Kind, of_host};
use crate::kernel::netlink::{KernelRoute, KernelSnapshot, Link};
use crate::pmd::Jobs;
use crate::ports::dummy::Dummy;
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};
use switch::{BridgeId, DeviceId, Egress, InBand, InBandRemote, Route, RouteRule};

impl Reconciler {
    pub(super) async fn apply_underlay(&mut self) {
        let host = self.host();
        let ours = self.links_of_ports(&host);
        let hosts = self.addressed_devices(&ours);
        let mut ends = BTreeSet::new();
        for p in self.bridges.values_mut().flat_map(|b| b.ports.values_mut()) {
            let Ok(Kind::Tunnel(t)) = &p.spec.kind else { continue };
            p.egress = t.remote.and_then(|to| egress(&host, to));
            let first = t.segments.first().map(|s| IpAddr::from(*s)).or(t.remote);
            ends.extend(first.map(|to| (to, t.local)));
        }
        let mut routes: Vec<(u32, Route)> = host.routes.iter().filter_map(|r| route(&host, r, &ours)).collect();
        routes.sort_by_key(|(metric, _)| *metric);
        let routes = best_of_each(routes);
        let own = self.own_routes.iter().filter_map(|r| r.route(&host, &ours));
        let (routes, rules) = (routes.into_iter().chain(own).collect(), self.rules(&host));
        let macs: HashMap<u32, Mac> = host.links.values().map(|l| (l.index, l.mac)).collect();
        let addresses = host.addresses.iter().filter(|(link, ..)| ours.contains_key(link));
        let local: BTreeSet<(IpAddr, Mac)> =
            addresses.filter_map(|(link, a, _)| Some((*a, *macs.get(link)?))).collect();
        let in_band: Vec<(BridgeId, InBand)> = self.bridges.values().map(|b| (b.id, in_band(&host, b))).collect();
        let neighbours = host.neighbours;
        let done = self.pmd.run(move |w| {
            let now = w.now();
            for (id, wanted) in in_band {
                // A bridge that is taken to be changed has all its cached flows checked.
                let changed = w.switch.bridge(id).filter(|b| *b.controlled() != wanted).map(|_| id);
                changed.and_then(|id| w.switch.bridge_mut(id)).into_iter().for_each(|b| b.set_in_band(&wanted, now));
            }
            w.set_hosts(hosts);
            w.switch.underlay.set_rules(rules);
            w.switch.underlay.set_routes(routes);
            w.switch.underlay.set_local(local);
            let hops = ends.iter().filter_map(|(to, local)| w.switch.underlay.next_hop(*to, *local));
            w.neighbours.expect(hops.collect());
            for (a, mac) in w.neighbours.set_kernel(neighbours) {
                w.switch.underlay.set_neighbour(a, mac);
            }
        });
        // A switch that has ended has no tunnels.
        let _ = done.await;
    }
}

/// A route that an operator has added (`ovs/route/add`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRoute {
    /// Destination.
    pub prefix: IpAddr,
    /// Its length.
    pub len: u8,
    /// The device by which packets leave; tunnels use ports only.
    pub device: String,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Own address; none: the one in the longest network of the device with the destination or the next hop in it.
    pub source: Option<IpAddr>,
    /// The packets' mark; 0: none.
    pub mark: u32,
    /// The table that it is in.
    pub table: u32,
}

/// What names a route of the operator's: prefix, its length, mark and table.
type OwnRouteKey = (IpAddr, u8, u32, u32);

impl OwnRoute {
    /// What no two routes have in common.
    pub fn key(&self) -> OwnRouteKey {
        (masked(self.prefix, self.len), self.len, self.mark, self.table)
    }

    /// The route as the switch has it. None if there is no such device, or it has no address, or not the one wanted, in
    /// the network of the destination or of the next hop.
    fn route(&self, host: &KernelSnapshot, ours: &HashMap<u32, String>) -> Option<Route> {
        let link = host.links.get(&self.device)?;
        let egress = ours.get(&link.index);
        let egress = egress.map_or_else(|| Egress::Host(self.device.clone()), |p| Egress::Port(p.clone()));
        let near = |to: IpAddr| {
            let on = host.addresses.iter().filter(|(l, a, _)| *l == link.index && a.is_ipv4() == to.is_ipv4());
            let on = on.filter(|(_, a, _)| self.source.is_none_or(|s| s == *a));
            // The first of the longest.
            let fitting = on.filter(|(_, a, len)| same_network(*a, to, *len)).rev();
            fitting.max_by_key(|(_, _, len)| *len).map(|(_, a, _)| *a)
        };
        let source = near(self.prefix).or_else(|| near(self.gateway?))?;
        Some(Route {
            prefix: masked(self.prefix, self.len),
            len: self.len,
            gateway: self.gateway,
            source,
            hop_source: None,
            source_mac: link.mac,
            egress,
            own: true,
            mark: self.mark,
            table: self.table,
        })
    }
}

/// An address with the bits behind its prefix set to zero.
fn masked(a: IpAddr, len: u8) -> IpAddr {
    match a {
        IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)).into(),
        IpAddr::V6(a) => {
            Ipv6Addr::from(u128::from(a) & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)).into()
        }
    }
}

impl Reconciler {
    /// The names of the ports that tunnels may end at, by the kernel's index of the port: internal ones, and those that
    /// have an address.
    fn links_of_ports(&self, host: &KernelSnapshot) -> HashMap<u32, String> {
        let usable = |a: &IpAddr| !matches!(a, IpAddr::V6(a) if a.is_unicast_link_local());
        let addressed = |link: u32| host.addresses.iter().any(|(l, a, _)| *l == link && usable(a));
        let ports = self.bridges.values().flat_map(|b| b.ports.values()).filter(|p| p.no.is_some());
        let ends = ports.filter_map(|p| Some((host.links.get(&p.spec.name)?.index, p)));
        let ends = ends.filter(|(link, p)| of_host(&p.spec.kind) || p.device.is_some() && addressed(*link));
        ends.map(|(link, p)| (link, p.spec.name.clone())).collect()
    }

    /// The devices of such ports that are not internal.
    fn addressed_devices(&self, ends: &HashMap<u32, String>) -> Vec<DeviceId> {
        let ports = self.bridges.values().flat_map(|b| b.ports.values()).filter(|p| !of_host(&p.spec.kind));
        ports.filter(|p| ends.values().any(|name| *name == p.spec.name)).filter_map(|p| p.device).collect()
    }

    /// The kernel's tables, with the links, addresses and routes of dummies; without the kernel's routes if these are not
    /// to be used.
    fn host(&self) -> KernelSnapshot {
        let mut host = self.kernel.snapshot();
        if self.test_bed.no_kernel_routes {
            host.routes.clear();
            host.rules.clear();
        }
        for p in self.bridges.values().flat_map(|b| b.ports.values()) {
            let (Some(device), Ok(Kind::Dummy { .. })) = (p.device, &p.spec.kind) else { continue };
            let Some(dummy) = self.test_bed.dummies.get(&p.spec.name) else { continue };
            add_dummy(&mut host, &p.spec.name, FIRST_DUMMY_LINK + device.0, &dummy);
        }
        host
    }

    /// The kernel's rules and the operator's.
    fn rules(&self, host: &KernelSnapshot) -> Vec<RouteRule> {
        let kernel = if host.rules.is_empty() { RouteRule::standard() } else { host.rules.clone() };
        kernel.into_iter().chain(self.own_rules.iter().cloned()).collect()
    }

    /// Adds a route, in place of one to the same prefix. The caller tells the switch.
    pub(super) fn add_route(&mut self, r: OwnRoute) -> Result<String, String> {
        let host = self.host();
        r.route(&host, &self.links_of_ports(&host)).ok_or("Error while inserting route.")?;
        let r = OwnRoute { prefix: masked(r.prefix, r.len), ..r };
        self.own_routes.retain(|o| o.key() != r.key());
        self.own_routes.push(r);
        Ok("OK\n".into())
    }

    pub(super) fn delete_route(&mut self, (prefix, len, mark, table): OwnRouteKey) -> Result<String, String> {
        let (before, key) = (self.own_routes.len(), (masked(prefix, len), len, mark, table));
        self.own_routes.retain(|o| o.key() != key);
        if self.own_routes.len() < before { Ok("OK\n".into()) } else { Err("Not found".into()) }
    }

    /// Adds a rule. Without a priority it comes right before the first rule of a run of priorities without a gap: the
    /// last such run.
    pub(super) fn add_rule(&mut self, priority: Option<u32>, rule: RouteRule) -> Result<String, String> {
        let mut taken: Vec<u32> = self.rules(&self.host()).iter().map(|r| r.priority).collect();
        taken.sort_unstable();
        let priority = priority.unwrap_or_else(|| free_priority(&taken));
        self.own_rules.push(RouteRule { priority, ..rule });
        Ok("OK\n".into())
    }

    /// Deletes the first such rule of the operator's, of this priority if one is given.
    pub(super) fn delete_rule(&mut self, priority: Option<u32>, rule: &RouteRule) -> Result<String, String> {
        let alike = |r: &RouteRule| {
            let (is, wanted) = ((r.v6, r.from, r.invert, r.table), (rule.v6, rule.from, rule.invert, rule.table));
            is == wanted && priority.is_none_or(|p| p == r.priority)
        };
        let rules = self.own_rules.iter().enumerate().filter(|(_, r)| alike(r));
        let (first, _) = rules
            .min_by_key(|(_, r)| r.priority)
            .ok_or("Failed to delete router rule: -2 (No such file or directory)")?;
        self.own_rules.remove(first);
        Ok("OK\n".into())
    }
}

/// The priority of the next rule without one, where these are taken, in order. As `ip rule add` has it, but that a gap
/// further down is filled first.
fn free_priority(taken: &[u32]) -> u32 {
    let (mut found, mut before) = (0, 0);
    for p in taken.iter().copied() {
        if p > 0 && (found == 0 || p - before > 1) {
            found = p - 1;
        }
        before = p;
    }
    found
}

/// The index of the link that stands for device 0, if that is a dummy. The kernel counts from 1, and does not come here.
const FIRST_DUMMY_LINK: u32 = 1 << 30;

/// Adds a dummy to the links; for each of its addresses, the routes that a kernel would have.
fn add_dummy(host: &mut KernelSnapshot, name: &str, index: u32, dummy: &Dummy) {
    let (mac, up) = (dummy.mac(), dummy.is_up());
    let link = Link { index, mac, mtu: 1500, admin_up: up, up, peer: None, made_here: true };
    host.links.insert(name.into(), link);
    for (address, len) in dummy.addresses() {
        host.addresses.push((index, address, len));
        let all = if address.is_ipv4() { 32 } else { 128 };
        for (table, len) in [(Route::LOCAL, all), (Route::MAIN, len)] {
            let (prefix, source) = (masked(address, len), Some(address));
            host.routes.push(KernelRoute { prefix, len, gateway: None, source, link: index, metric: 0, table });
        }
    }
}

/// What in-band control of a bridge lets through. Next hops are those of the kernel.
fn in_band(host: &KernelSnapshot, b: &RunningBridge) -> InBand {
    let remote = |a: &SocketAddrV4| {
        let hop = best(host, (*a.ip()).into()).map(|r| r.gateway.unwrap_or((*a.ip()).into()));
        let next_hop = hop.and_then(|hop| host.neighbours.get(&hop).copied());
        InBandRemote { address: *a.ip(), port: a.port(), next_hop }
    };
    let local = b.ports.get(&b.spec.name).map_or(b.spec.mac, |p| p.mac);
    InBand { local, remotes: b.spec.in_band.remotes.iter().map(remote).collect(), queue: b.spec.in_band.queue }
}

/// The kernel's route to an address.
fn best(host: &KernelSnapshot, to: IpAddr) -> Option<&KernelRoute> {
    let main = host.routes.iter().filter(|r| r.table == Route::MAIN);
    let fitting = main.filter(|r| same_network(to, r.prefix, r.len));
    fitting.max_by_key(|r| (r.len, std::cmp::Reverse(r.metric)))
}

/// The device by which the kernel's routes lead to an address, and whether it is up.
fn egress(host: &KernelSnapshot, to: IpAddr) -> Option<(String, bool)> {
    let best = best(host, to)?;
    host.links.iter().find(|(_, l)| l.index == best.link).map(|(name, l)| (name.clone(), l.up))
}

/// Of the routes of a table to the same prefix, the one of the least metric; of several with that, the one that the
/// kernel lists last, as in Open vSwitch. The routes come ordered by metric.
fn best_of_each(routes: Vec<(u32, Route)>) -> Vec<Route> {
    let mut best: BTreeMap<(u32, IpAddr, u8), (u32, usize)> = BTreeMap::new();
    for (i, (metric, r)) in routes.iter().enumerate() {
        let known = best.entry((r.table, r.prefix, r.len)).or_insert((*metric, i));
        if known.0 == *metric {
            known.1 = i;
        }
    }
    let chosen: BTreeSet<usize> = best.values().map(|(_, i)| *i).collect();
    routes.into_iter().enumerate().filter(|(i, _)| chosen.contains(i)).map(|(_, (_, r))| r).collect()
}

/// One of the kernel's routes as the switch has it, with its metric. Routes by devices that are no bridge's count as
/// well: a worse route by a bridge must not be used in their place.
fn route(host: &KernelSnapshot, r: &KernelRoute, ours: &HashMap<u32, String>) -> Option<(u32, Route)> {
    let (name, link) = host.links.iter().find(|(_, l)| l.index == r.link)?;
    let egress = ours.get(&r.link).map_or_else(|| Egress::Host(name.clone()), |p| Egress::Port(p.clone()));
    let near = r.gateway.unwrap_or(r.prefix);
    // An address of the device: one in the network of the next hop, or any of that IP version.
    let of_link = |near: IpAddr| {
        let mine = || host.addresses.iter().filter(move |(l, a, _)| *l == r.link && a.is_ipv4() == near.is_ipv4());
        let found = mine().find(|(_, a, len)| same_network(*a, near, *len)).or_else(|| mine().next());
        found.map(|(_, a, _)| *a)
    };
    let other = near.is_ipv4() != r.prefix.is_ipv4();
    let hop_source = of_link(near).filter(|_| other);
    // Packets of an unnumbered link get the address of another device (RFC 5549), as from the kernel.
    let elsewhere = || {
        let fits = |a: &IpAddr| a.is_ipv4() == r.prefix.is_ipv4() && !a.is_loopback();
        host.addresses.iter().map(|(_, a, _)| *a).find(fits).filter(|_| other)
    };
    let source = r.source.or_else(|| of_link(if other { r.prefix } else { near })).or_else(elsewhere).or(hop_source)?;
    let (prefix, len, gateway, source_mac) = (r.prefix, r.len, r.gateway, link.mac);
    Some((
        r.metric,
        Route { prefix, len, gateway, source, hop_source, source_mac, egress, own: false, mark: 0, table: r.table },
    ))
}

fn same_network(a: IpAddr, b: IpAddr, len: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            (u32::from(a) ^ u32::from(b)) & mask == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            (u128::from(a) ^ u128::from(b)) & mask == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(a: &str) -> IpAddr {
        a.parse().expect("address")
    }

    fn host() -> KernelSnapshot {
        let link = |index| Link {
            index,
            mac: packet::Mac([2, 0, 0, 0, 0, index as u8]),
            mtu: 1500,
            admin_up: true,
            up: true,
            peer: None,
            made_here: false,
        };
        let links = [("br0", 1), ("mgmt", 2), ("lo", 3)].map(|(n, i)| (n.to_string(), link(i)));
        let addresses = vec![
            (3, address("127.0.0.1"), 8),
            (1, address("192.168.9.2"), 24),
            (1, address("fe80::1"), 64),
            (2, address("10.0.0.5"), 24),
        ];
        KernelSnapshot { links: links.into(), addresses, ..KernelSnapshot::default() }
    }

    fn to(prefix: &str, len: u8, gateway: Option<&str>, link: u32) -> KernelRoute {
        let (prefix, gateway) = (address(prefix), gateway.map(address));
        KernelRoute { prefix, len, gateway, source: None, link, metric: 0, table: Route::MAIN }
    }

    /// Next hops of IPv6 for IPv4 (RFC 5549): packets have an address of IPv4, the request for the hop one of IPv6.
    #[test]
    fn hops_may_be_of_the_other_version() {
        let ours = HashMap::from([(1, "br0".to_string())]);
        let r = route(&host(), &to("192.168.10.12", 32, Some("fe80::51"), 1), &ours).expect("a route").1;
        assert_eq!(
            (r.source, r.hop_source, r.gateway),
            (address("192.168.9.2"), Some(address("fe80::1")), Some(address("fe80::51")))
        );
        // An unnumbered link takes the address of another.
        let mut host = host();
        host.addresses.retain(|(l, a, _)| *l != 1 || a.is_ipv6());
        let r = route(&host, &to("192.168.10.12", 32, Some("fe80::51"), 1), &ours).expect("a route").1;
        assert_eq!(r.source, address("10.0.0.5"));
        let r = route(&host, &to("10.9.0.0", 16, None, 2), &ours).expect("a route").1;
        assert_eq!((r.egress, r.source, r.hop_source), (Egress::Host("mgmt".into()), address("10.0.0.5"), None));
    }

    #[test]
    fn rules_get_the_priority_before_a_run() {
        let of = |own: &[u32]| {
            let mut taken = [&[0, 32766, 32767], own].concat();
            taken.sort_unstable();
            free_priority(&taken)
        };
        assert_eq!([of(&[]), of(&[32765]), of(&[32762, 32764, 32765])], [32765, 32764, 32763]);
    }

    #[test]
    fn own_routes_want_an_address_near() {
        let ours = HashMap::from([(1, "br0".to_string())]);
        let own = |prefix: &str, gateway: Option<&str>, source: Option<&str>| OwnRoute {
            prefix: address(prefix),
            len: 24,
            device: "br0".into(),
            gateway: gateway.map(address),
            source: source.map(address),
            mark: 3,
            table: 11,
        };
        let r = own("192.168.10.0", Some("192.168.9.1"), None).route(&host(), &ours).expect("a route");
        assert_eq!((r.source, r.mark, r.table), (address("192.168.9.2"), 3, 11));
        for (prefix, gateway, source) in [
            ("192.168.10.0", None, None),
            ("192.168.10.0", Some("192.168.11.1"), None),
            ("192.168.10.0", Some("192.168.9.1"), Some("192.168.9.99")),
        ] {
            assert_eq!(own(prefix, gateway, source).route(&host(), &ours), None, "{prefix} {gateway:?} {source:?}");
        }
    }

    #[test]
    fn the_best_of_each_prefix_is_kept() {
        let (ours, host) = (HashMap::new(), host());
        let list = [(1, 10), (2, 0), (3, 0)];
        let mut routes: Vec<_> = list
            .iter()
            .filter_map(|(link, metric)| {
                route(
                    &host,
                    &KernelRoute {
                        metric: *metric,
                        source: Some(address("10.0.0.5")),
                        ..to("10.0.0.0", 24, None, *link)
                    },
                    &ours,
                )
            })
            .collect();
        routes.sort_by_key(|(metric, _)| *metric);
        let best: Vec<String> = best_of_each(routes).into_iter().map(|r| r.egress.to_string()).collect();
        assert_eq!(best, ["lo"], "the last of the least metric");
    }
}
