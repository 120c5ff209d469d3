//! The kernel's tables by netlink: a task that holds them to the wish, and says what routing daemons have put there. It reads them
//! when the kernel says that something changed, and after a failure; never by the clock alone.

use super::difference::{Difference, Found, Learned, OVN, Route, difference};
use super::kernel_task::{END, KernelTask, Part};
use super::wish::Wish;
use futures::TryStreamExt;
use nix::errno::Errno;
use ovn_schema::Str;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::link::{LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType, RouteVia};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, LinkVrf, MulticastGroup, RouteMessageBuilder};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tokio::sync::watch;

/// What routing daemons have put into the tables that are in use; a table that was not read yet is absent.
pub type Tables = Arc<BTreeMap<u32, BTreeSet<Learned>>>;

/// A handle on the task that holds the kernel's tables to the wish.
pub type Kernel = KernelTask<Wish, Tables>;

impl Kernel {
    /// Starts the task in the process's network namespace.
    ///
    /// # Errors
    /// There is no netlink socket.
    pub fn start() -> io::Result<Kernel> {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
        let (connection, handle, messages) = rtnetlink::new_multicast_connection(&groups)?;
        tokio::spawn(connection);
        let (tx, tables) = watch::channel(Tables::default());
        let worker =
            Worker { handle, tables: tx, wish: Wish::default(), filled: BTreeSet::new(), vrfs: BTreeSet::new() };
        Ok(Kernel::spawn(worker, tables, messages, false))
    }

    /// Takes away what was put there: routes, and the VRFs that were made.
    pub async fn clean_up(self) {
        if !self.end().await {
            tracing::warn!(target: "route_exchange", "routes and VRFs could not be taken out of the kernel in {} s", END.as_secs());
        }
    }
}

struct Worker {
    handle: Handle,
    tables: watch::Sender<Tables>,
    wish: Wish,
    /// Tables that routes were put into.
    filled: BTreeSet<u32>,
    /// VRFs that were made, or found where they were to be made.
    vrfs: BTreeSet<Str>,
}

impl Part for Worker {
    type Wish = Wish;

    fn set_wish(&mut self, wish: Wish) {
        self.wish = wish;
    }

    /// Whether what the kernel says may change a table that is in use. What this task does itself it knows.
    fn concerns(&self, m: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
        let used = |m: &RouteMessage| self.wish.tables.contains_key(&table_of(m));
        match m {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(m)) => {
                used(m) && u8::from(m.header.protocol) != OVN
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(m)) => used(m),
            // A link that goes takes routes along, of which the kernel says nothing.
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(_)) => true,
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(m)) => !m.header.flags.contains(LinkFlags::Up),
            // Something was lost.
            NetlinkPayload::Overrun(_) => true,
            _ => false,
        }
    }

    /// Brings the kernel into line with the wish. Whether all went well.
    async fn sync(&mut self) -> bool {
        let mut good = self.make_vrfs().await;
        if !self.wish.tables.is_empty() || !self.filled.is_empty() {
            good &= match read(&self.handle).await {
                Ok(found) => self.fill(&found).await,
                Err(e) => {
                    // The dump was interrupted by a change, or the kernel refuses it.
                    tracing::debug!(target: "route_exchange_netlink", "the kernel's routes cannot be read: {e}");
                    false
                }
            };
        }
        good & self.remove_vrfs().await
    }
}

impl Worker {
    async fn make_vrfs(&mut self) -> bool {
        // What others look after now is not taken away, though it may have been made here.
        self.vrfs.retain(|name| !self.wish.left.contains(name));
        let mut good = true;
        for (name, table) in self.wish.vrfs.clone() {
            if self.vrfs.contains(&name) {
                continue;
            }
            let made = self.handle.link().add(LinkVrf::new(&name, table).up().build()).execute().await;
            match code(&made) {
                None | Some(Errno::EEXIST) => drop(self.vrfs.insert(name)),
                _ => {
                    good = false;
                    warn("VRF", format!("Unable to create VRF {name} with table {table}: {}", text(&made)));
                }
            }
        }
        good
    }

    async fn remove_vrfs(&mut self) -> bool {
        let mut good = true;
        for name in self.vrfs.clone().into_iter().filter(|n| !self.wish.vrfs.contains_key(n)) {
            let index = link(&self.handle, &name).await.map(|l| l.header.index);
            let removed = match index {
                Some(i) => self.handle.link().del(i).execute().await,
                None => Ok(()),
            };
            match code(&removed) {
                None | Some(Errno::ENODEV) => drop(self.vrfs.remove(&name)),
                _ => {
                    good = false;
                    warn("VRF", format!("Unable to delete VRF {name}: {}", text(&removed)));
                }
            }
        }
        good
    }

    /// Brings tables into line, and says what else is in them.
    async fn fill(&mut self, found: &[Found]) -> bool {
        let (mut good, mut learned) = (true, BTreeMap::new());
        for (table, routes) in self.wish.tables.clone() {
            let Some(routes) = routes else { continue };
            self.filled.insert(table);
            let d = difference(&routes, table, found);
            good &= self.carry_out(table, &d).await;
            learned.insert(table, d.learned);
        }
        for table in self.filled.clone().into_iter().filter(|t| !self.wish.tables.contains_key(t)) {
            if self.carry_out(table, &difference(&BTreeSet::new(), table, found)).await {
                self.filled.remove(&table);
            } else {
                good = false;
            }
        }
        self.tables.send_if_modified(|old| {
            let changed = **old != learned;
            *old = Arc::new(learned);
            changed
        });
        good
    }

    async fn carry_out(&self, table: u32, d: &Difference) -> bool {
        let mut good = true;
        for r in &d.remove {
            tracing::debug!(target: "route_exchange_netlink", "Removing route {}", describe(table, r));
            let done = self.handle.route().del(message(table, r)).execute().await;
            // One that is gone already is what was wanted.
            if !matches!(code(&done), None | Some(Errno::ESRCH)) {
                good = false;
                warn("Delete route", format!("Delete route {} failed: {}", describe(table, r), text(&done)));
            }
        }
        for r in &d.add {
            tracing::debug!(target: "route_exchange_netlink", "Adding route {}", describe(table, r));
            let done = self.handle.route().add(message(table, r)).execute().await;
            if code(&done).is_some() {
                good = false;
                warn("Add route", format!("Add route {} failed: {}", describe(table, r), text(&done)));
            }
        }
        good
    }
}

fn warn(kind: &str, text: String) {
    tracing::warn!(target: "route_exchange_netlink", kind, "{text}");
}

/// The kernel's error, if there was one.
fn code(r: &Result<(), rtnetlink::Error>) -> Option<Errno> {
    match r {
        Ok(()) => None,
        Err(rtnetlink::Error::NetlinkError(e)) => Some(Errno::from_raw(e.raw_code().abs())),
        Err(_) => Some(Errno::EIO),
    }
}

fn text(r: &Result<(), rtnetlink::Error>) -> String {
    match r {
        Ok(()) => String::new(),
        Err(rtnetlink::Error::NetlinkError(e)) => e.to_io().to_string(),
        Err(e) => e.to_string(),
    }
}

fn describe(table: u32, r: &Route) -> String {
    let next_hop = r.next_hop.map_or_else(|| "(blackhole)".to_string(), |n| n.to_string());
    format!("table_id={table} dst={} plen={} nexthop={next_hop}", r.prefix.0, r.prefix.1)
}

/// A route as the kernel wants it.
fn message(table: u32, r: &Route) -> RouteMessage {
    let (address, length) = r.prefix;
    let (family, destination) = match address {
        IpAddr::V4(a) => (AddressFamily::Inet, RouteAddress::Inet(a)),
        IpAddr::V6(a) => (AddressFamily::Inet6, RouteAddress::Inet6(a)),
    };
    let mut m = RouteMessage::default();
    m.header.address_family = family;
    m.header.destination_prefix_length = length;
    m.header.protocol = RouteProtocol::from(OVN);
    m.header.kind = if r.next_hop.is_some() { RouteType::Unicast } else { RouteType::BlackHole };
    let mut attributes = vec![
        RouteAttribute::Table(table),
        RouteAttribute::Priority(r.priority),
        RouteAttribute::Destination(destination),
    ];
    attributes.extend(r.next_hop.map(|n| match (n, address) {
        (IpAddr::V4(n), IpAddr::V4(_)) => RouteAttribute::Gateway(RouteAddress::Inet(n)),
        (IpAddr::V6(n), IpAddr::V6(_)) => RouteAttribute::Gateway(RouteAddress::Inet6(n)),
        // Of another family than the prefix (RFC 5549).
        (IpAddr::V6(n), _) => RouteAttribute::Via(RouteVia::Inet6(n)),
        (IpAddr::V4(n), _) => RouteAttribute::Via(RouteVia::Inet(n)),
    }));
    m.attributes = attributes;
    m
}

fn table_of(m: &RouteMessage) -> u32 {
    let of = |a: &RouteAttribute| if let RouteAttribute::Table(t) = a { Some(*t) } else { None };
    m.attributes.iter().find_map(of).unwrap_or_else(|| u32::from(m.header.table))
}

async fn link(handle: &Handle, name: &str) -> Option<LinkMessage> {
    handle.link().get().match_name(name.to_string()).execute().try_next().await.ok().flatten()
}

/// Reads all routes that have a prefix and a family that is known here.
async fn read(handle: &Handle) -> Result<Vec<Found>, rtnetlink::Error> {
    let mut all = Vec::new();
    let requests = [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
    for request in requests {
        let mut routes = handle.route().get(request).execute();
        while let Some(m) = routes.try_next().await? {
            all.push(m);
        }
    }
    let mut names = HashMap::new();
    Ok(all.iter().filter_map(|m| found(m, &mut names)).collect())
}

fn found(m: &RouteMessage, names: &mut HashMap<u32, Option<Str>>) -> Option<Found> {
    let any: IpAddr = match m.header.address_family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut name = |index: u32| {
        let found = || nix::net::if_::if_indextoname(index).ok()?.to_str().ok().map(Str::from);
        names.entry(index).or_insert_with(found).clone()
    };
    let mut f = Found {
        table: table_of(m),
        protocol: m.header.protocol.into(),
        prefix: (any, m.header.destination_prefix_length),
        priority: 0,
        unicast: m.header.kind == RouteType::Unicast,
        hops: Vec::new(),
    };
    let (mut gateway, mut interface) = (None, None);
    for a in &m.attributes {
        match a {
            RouteAttribute::Destination(d) => f.prefix.0 = address(d)?,
            RouteAttribute::Priority(p) => f.priority = *p,
            RouteAttribute::Oif(i) => interface = name(*i),
            RouteAttribute::MultiPath(hops) => {
                f.hops.extend(hops.iter().map(|h| (h.attributes.iter().find_map(hop), name(h.interface_index))));
            }
            a => gateway = hop(a).or(gateway),
        }
    }
    if f.hops.is_empty() {
        f.hops.push((gateway, interface));
    }
    Some(f)
}

fn hop(a: &RouteAttribute) -> Option<IpAddr> {
    match a {
        RouteAttribute::Gateway(g) => address(g),
        RouteAttribute::Via(RouteVia::Inet(a)) => Some((*a).into()),
        RouteAttribute::Via(RouteVia::Inet6(a)) => Some((*a).into()),
        _ => None,
    }
}

fn address(a: &RouteAddress) -> Option<IpAddr> {
    match a {
        RouteAddress::Inet(a) => Some((*a).into()),
        RouteAddress::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}
