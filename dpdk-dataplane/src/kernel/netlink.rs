//! The kernel's network tables by netlink: links, addresses, routes, rules, neighbours. Within milliseconds of a change
//! there is a new snapshot of all of them.

use futures::{StreamExt, TryStreamExt};
use nix::errno::Errno;
use packet::Mac;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourState};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion, LinkUnspec, MulticastGroup, RouteMessageBuilder};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use switch::RouteRule;
use tokio::sync::watch;

/// A network device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// `ifindex`.
    pub index: u32,
    /// Ethernet address.
    pub mac: Mac,
    /// MTU.
    pub mtu: u32,
    /// Administratively up.
    pub admin_up: bool,
    /// Up, with a carrier.
    pub up: bool,
    /// The index of a veth's other end, in that end's namespace.
    pub peer: Option<u32>,
    /// This switch made it, in this run or an earlier one ([`KernelTables::mark`]).
    pub made_here: bool,
}

/// The alias of taps that this switch made (`ip link` shows it).
const ALIAS: &str = "made by dpdk-dataplane";

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Destination.
    pub prefix: IpAddr,
    /// Prefix length.
    pub len: u8,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Preferred source.
    pub source: Option<IpAddr>,
    /// The index of the outgoing link.
    pub link: u32,
    /// Metric; the lowest is used.
    pub metric: u32,
    /// Routing table; own addresses are in table 255.
    pub table: u32,
}

/// The kernel's tables at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSnapshot {
    /// Links by name.
    pub links: BTreeMap<String, Link>,
    /// Addresses: index of the link, address, prefix length.
    pub addresses: Vec<(u32, IpAddr, u8)>,
    /// Routes.
    pub routes: Vec<KernelRoute>,
    /// Rules that select by source at most.
    pub rules: Vec<RouteRule>,
    /// Resolved neighbours.
    pub neighbours: HashMap<IpAddr, Mac>,
}

/// Follows the kernel's tables, and changes links. Clones are for the same tables.
#[derive(Clone)]
pub struct KernelTables {
    handle: Handle,
    /// For traffic control: a socket lists one thing at a time, and the other one's lists are the reader's.
    pub(super) control: Handle,
    snapshot: watch::Receiver<KernelSnapshot>,
}

/// Why the kernel's tables cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// There is no netlink socket.
    #[error("netlink socket: {0}")]
    Socket(#[from] std::io::Error),
    /// The tables cannot be read.
    #[error(transparent)]
    Read(#[from] rtnetlink::Error),
}

/// How long changes are gathered before the tables are read.
const GATHER: Duration = Duration::from_millis(5);

impl KernelTables {
    /// Starts following the kernel's tables of the process's network namespace.
    ///
    /// # Errors
    /// There is no netlink socket, or the tables cannot be read.
    pub async fn start() -> Result<KernelTables, NetlinkError> {
        let (connection, handle, mut messages) = rtnetlink::new_multicast_connection(&[
            MulticastGroup::Link,
            MulticastGroup::Neigh,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
            MulticastGroup::Ipv4Rule,
            MulticastGroup::Ipv6Rule,
        ])?;
        tokio::spawn(connection);
        let (connection, control, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        let (tx, snapshot) = watch::channel(read(&handle).await?);
        let reader = handle.clone();
        tokio::spawn(async move {
            while messages.next().await.is_some() {
                tokio::time::sleep(GATHER).await;
                while let Some(Some(_)) = futures::FutureExt::now_or_never(messages.next()) {}
                let mut result = read(&reader).await;
                for _ in 0..5 {
                    if result.is_ok() {
                        break;
                    }
                    // Reading fails if a table changes meanwhile.
                    tokio::time::sleep(GATHER).await;
                    result = read(&reader).await;
                }
                match result {
                    Ok(new) => drop(tx.send_if_modified(|old| {
                        let changed = *old != new;
                        *old = new;
                        changed
                    })),
                    Err(e) => tracing::warn!(target: "netlink", "the kernel's tables cannot be read: {e}"),
                }
                if tx.is_closed() {
                    return;
                }
            }
        });
        Ok(KernelTables { handle, control, snapshot })
    }

    /// The snapshot, with notice of changes.
    pub fn watch(&self) -> watch::Receiver<KernelSnapshot> {
        self.snapshot.clone()
    }

    /// The snapshot now.
    pub fn snapshot(&self) -> KernelSnapshot {
        self.snapshot.borrow().clone()
    }

    /// Brings a link up.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn bring_up(&self, name: &str) -> Result<(), rtnetlink::Error> {
        let found = self.handle.link().get().match_name(name.to_string()).execute().try_next().await?;
        let Some(link) = found else { return Ok(()) };
        self.handle.link().set(LinkUnspec::new_with_index(link.header.index).up().build()).execute().await
    }

    /// Sets a link's MTU.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn set_mtu(&self, name: &str, mtu: u32) -> Result<(), rtnetlink::Error> {
        let found = self.handle.link().get().match_name(name.to_string()).execute().try_next().await?;
        let Some(link) = found else { return Ok(()) };
        self.handle.link().set(LinkUnspec::new_with_index(link.header.index).mtu(mtu).build()).execute().await
    }

    /// Sets a link's Ethernet address. A link that is up is taken down for that, so that the kernel gives it the
    /// link-local address of the new one, as Open vSwitch does with taps.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn set_address(&self, name: &str, mac: Mac) -> Result<(), rtnetlink::Error> {
        let link = self.link(name).await?;
        let change = || LinkUnspec::new_with_index(link.index);
        let address = change().address(mac.to_vec()).build();
        if !link.admin_up {
            return self.handle.link().set(address).execute().await;
        }
        self.handle.link().set(change().down().build()).execute().await?;
        let set = self.handle.link().set(address).execute().await;
        self.handle.link().set(change().up().build()).execute().await?;
        set
    }

    /// Marks a link as made by this switch, for later runs to know.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn mark(&self, name: &str) -> Result<(), rtnetlink::Error> {
        let link = self.link(name).await?;
        let alias = LinkAttribute::IfAlias(ALIAS.into());
        let change = LinkUnspec::new_with_index(link.index).append_extra_attribute(alias).build();
        self.handle.link().set(change).execute().await
    }

    /// Deletes a link, if it is there.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn delete(&self, name: &str) -> Result<(), rtnetlink::Error> {
        let done = match self.link(name).await {
            Ok(link) => self.handle.link().del(link.index).execute().await,
            Err(e) => Err(e),
        };
        match done {
            Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == -(Errno::ENODEV as i32) => Ok(()),
            done => done,
        }
    }

    /// Reads one link from the kernel.
    ///
    /// # Errors
    /// The kernel's, or there is no such link.
    pub async fn link(&self, name: &str) -> Result<Link, rtnetlink::Error> {
        let found = self.handle.link().get().match_name(name.to_string()).execute().try_next().await?;
        found.as_ref().and_then(link).map(|(_, l)| l).ok_or(rtnetlink::Error::RequestFailed)
    }
}

fn link(m: &rtnetlink::packet_route::link::LinkMessage) -> Option<(String, Link)> {
    let flags = m.header.flags;
    let mut l = Link {
        index: m.header.index,
        mac: Mac::ZERO,
        mtu: 0,
        admin_up: flags.contains(LinkFlags::Up),
        up: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        peer: None,
        made_here: false,
    };
    let (mut name, mut veth) = (None, false);
    for a in &m.attributes {
        match a {
            LinkAttribute::IfName(n) => name = Some(n.clone()),
            LinkAttribute::Mtu(n) => l.mtu = *n,
            LinkAttribute::IfAlias(a) => l.made_here = a == ALIAS,
            LinkAttribute::Link(n) => l.peer = Some(*n),
            LinkAttribute::LinkInfo(list) => veth = list.contains(&LinkInfo::Kind(InfoKind::Veth)),
            LinkAttribute::Address(b) => l.mac = <Mac>::try_from(b.as_slice()).unwrap_or_default(),
            _ => {}
        }
    }
    l.peer = l.peer.filter(|_| veth);
    name.map(|n| (n, l))
}

fn address_of(a: &RouteAddress) -> Option<IpAddr> {
    match a {
        RouteAddress::Inet(a) => Some((*a).into()),
        RouteAddress::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}

fn route(m: &RouteMessage) -> Option<KernelRoute> {
    let v6 = m.header.address_family == AddressFamily::Inet6;
    let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let mut r = KernelRoute {
        prefix: any,
        len: m.header.destination_prefix_length,
        gateway: None,
        source: None,
        link: 0,
        metric: 0,
        table: u32::from(m.header.table),
    };
    for a in &m.attributes {
        match a {
            RouteAttribute::Destination(d) => r.prefix = address_of(d)?,
            RouteAttribute::Gateway(g) => r.gateway = address_of(g),
            RouteAttribute::PrefSource(s) => r.source = address_of(s),
            RouteAttribute::Oif(i) => r.link = *i,
            RouteAttribute::Priority(p) => r.metric = *p,
            RouteAttribute::Via(v) => r.gateway = via(v),
            RouteAttribute::Table(t) => r.table = *t,
            // The first of several next hops.
            RouteAttribute::MultiPath(hops) => {
                let hop = hops.first()?;
                r.link = hop.interface_index;
                r.gateway = hop.attributes.iter().find_map(|a| match a {
                    RouteAttribute::Gateway(g) => address_of(g),
                    RouteAttribute::Via(v) => via(v),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let usable = matches!(m.header.kind, RouteType::Unicast | RouteType::Local) && r.link != 0;
    usable.then_some(r)
}

/// A next hop of another version than its route's (RFC 5549).
fn via(v: &RouteVia) -> Option<IpAddr> {
    match v {
        RouteVia::Inet(a) => Some((*a).into()),
        RouteVia::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}

/// A rule that names a table and selects by source at most. Others are left out: they do not concern packets of
/// tunnels.
fn rule(m: &RuleMessage) -> Option<RouteRule> {
    let mut r = RouteRule {
        priority: 0,
        v6: m.header.family == AddressFamily::Inet6,
        from: None,
        invert: m.header.flags.contains(RuleFlags::Invert),
        table: u32::from(m.header.table),
        own: false,
    };
    for a in &m.attributes {
        match a {
            RuleAttribute::Source(s) => r.from = Some((*s, m.header.src_len)),
            RuleAttribute::Priority(n) => r.priority = *n,
            RuleAttribute::Table(t) => r.table = *t,
            // These do not change what is selected.
            RuleAttribute::Protocol(_) | RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            _ => return None,
        }
    }
    (m.header.action == RuleAction::ToTable && m.header.tos == 0).then_some(r)
}

async fn read(h: &Handle) -> Result<KernelSnapshot, rtnetlink::Error> {
    let mut host = KernelSnapshot::default();
    let mut links = h.link().get().execute();
    while let Some(m) = links.try_next().await? {
        host.links.extend(link(&m));
    }
    let mut addresses = h.address().get().execute();
    while let Some(m) = addresses.try_next().await? {
        let mut found = None;
        for a in &m.attributes {
            match a {
                AddressAttribute::Local(a) => found = Some(*a),
                AddressAttribute::Address(a) => found = found.or(Some(*a)),
                _ => {}
            }
        }
        host.addresses.extend(found.map(|a| (m.header.index, a, m.header.prefix_len)));
    }
    let requests = [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
    for request in requests {
        let mut routes = h.route().get(request).execute();
        while let Some(m) = routes.try_next().await? {
            host.routes.extend(route(&m));
        }
    }
    for version in [IpVersion::V4, IpVersion::V6] {
        let mut rules = h.rule().get(version).execute();
        while let Some(m) = rules.try_next().await? {
            host.rules.extend(rule(&m));
        }
    }
    let mut neighbours = h.neighbours().get().execute();
    while let Some(m) = neighbours.try_next().await? {
        use NeighbourState as S;
        if matches!(m.header.state, S::Failed | S::Incomplete | S::Noarp | S::None) {
            continue;
        }
        let (mut ip, mut mac) = (None, None);
        for a in &m.attributes {
            match a {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(a)) => ip = Some(IpAddr::from(*a)),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(a)) => ip = Some(IpAddr::from(*a)),
                NeighbourAttribute::LinkLayerAddress(b) => mac = <Mac>::try_from(b.as_slice()).ok(),
                _ => {}
            }
        }
        if let (Some(ip), Some(mac)) = (ip, mac)
            && mac != Mac::ZERO
        {
            host.neighbours.insert(ip, mac);
        }
    }
    Ok(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_link_that_is_gone_counts_as_deleted() {
        let kernel = KernelTables::start().await.expect("netlink");
        assert!(kernel.link("isthmus-none").await.is_err());
        assert!(kernel.delete("isthmus-none").await.is_ok());
        assert!(kernel.delete("a-name-longer-than-links-have").await.is_err());
    }
}
