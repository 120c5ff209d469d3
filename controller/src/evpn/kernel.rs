//! The devices by netlink: a task that holds them to the wish, and says what others have put there. It reads them when the kernel says that
//! something changed, and after a failure; never by the clock alone.

use super::difference::{Difference, Found, Remote, difference, neighbours, remote};
use super::next_hops::{NextHops, Source, address};
use super::wish::Wish;
use crate::routing::kernel_task::{END, KernelTask, Part};
use futures::StreamExt;
use nix::errno::Errno;
use ovn_schema::Str;
use packet::Mac;
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, Nla};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, MulticastGroup};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// NUD_NOARP and NUD_PERMANENT of linux/neighbour.h: a state may have both.
const NOARP: u16 = 0x40;
const PERMANENT: u16 = 0x80;
/// NDA_NH_ID.
const NEXT_HOP: u16 = 13;

/// What others have put into the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// They were read; until then nobody knows.
    pub read: bool,
    /// By VXLAN device; one that is not there is absent.
    pub vxlans: BTreeMap<Str, Remote>,
    /// Neighbours by bridge.
    pub bridges: BTreeMap<Str, BTreeMap<IpAddr, Mac>>,
}

/// A handle on the task that holds the devices to the wish.
pub type Kernel = KernelTask<Wish, Arc<Tables>>;

impl Kernel {
    /// Starts the task in the process's network namespace.
    ///
    /// # Errors
    /// There is no netlink socket.
    pub fn start(wish: Wish) -> io::Result<Kernel> {
        let (connection, handle, messages) =
            rtnetlink::new_multicast_connection(&[MulticastGroup::Link, MulticastGroup::Neigh])?;
        tokio::spawn(connection);
        let next_hops = Source::start();
        if let Err(e) = &next_hops {
            tracing::warn!(target: "neighbor_exchange_netlink", "the kernel's next hops cannot be read, Ethernet addresses behind several VTEPs are left out: {e}");
        }
        let (tx, tables) = watch::channel(Arc::<Tables>::default());
        let worker = Worker {
            handle,
            next_hops: next_hops.ok(),
            tables: tx,
            wish,
            filled: BTreeSet::new(),
            devices: BTreeMap::new(),
        };
        Ok(Kernel::spawn(worker, tables, messages, true))
    }

    /// Takes away what was put there.
    pub async fn clean_up(self) {
        if !self.end().await {
            tracing::warn!(target: "neighbor_exchange", "what EVPN advertises could not be taken out of the kernel in {} s", END.as_secs());
        }
    }
}

/// An entry that this controller puts into a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Own {
    ip: Option<IpAddr>,
    mac: Mac,
}

struct Worker {
    handle: Handle,
    /// None where the kernel has none.
    next_hops: Option<Source>,
    tables: watch::Sender<Arc<Tables>>,
    wish: Wish,
    /// Devices that something was put into.
    filled: BTreeSet<Str>,
    /// The devices in use, as they were last found, by index.
    devices: BTreeMap<u32, Str>,
}

impl Part for Worker {
    type Wish = Wish;

    fn set_wish(&mut self, wish: Wish) {
        self.wish = wish;
    }

    async fn changed(&mut self) {
        match &mut self.next_hops {
            Some(s) => s.changed().await,
            None => std::future::pending().await,
        }
    }

    /// Whether what the kernel says may change a device that is in use.
    fn concerns(&self, m: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
        let used = |index: u32| self.devices.contains_key(&index);
        match m {
            NetlinkPayload::InnerMessage(
                RouteNetlinkMessage::NewNeighbour(m) | RouteNetlinkMessage::DelNeighbour(m),
            ) => used(m.header.ifindex),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(m)) => used(m.header.index),
            // A device that is set down loses entries, of which the kernel says nothing.
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(m)) => {
                let down = !m.header.flags.contains(LinkFlags::Up);
                let wanted = name(m).is_some_and(|n| self.wish.has(n));
                if used(m.header.index) { down || !wanted } else { wanted }
            }
            // Something was lost.
            NetlinkPayload::Overrun(_) => true,
            _ => false,
        }
    }

    /// Brings the devices into line with the wish, and says what else is in them. Whether all went well.
    async fn sync(&mut self) -> bool {
        let mut good = true;
        let mut tables = Tables { read: true, ..Tables::default() };
        match self.read().await {
            Ok((found, next_hops)) => {
                for (index, device) in self.devices.clone() {
                    let of = |bridge: bool| found.get(&(index, bridge)).map(Vec::as_slice).unwrap_or_default();
                    good &= self.fill(index, &device, of(true), of(false)).await;
                    if self.wish.vxlans.contains(&device) {
                        tables.vxlans.insert(device.clone(), remote(of(true), |id| next_hops.paths(id)));
                    }
                    if self.wish.bridges.contains_key(&device) {
                        tables.bridges.insert(device, neighbours(of(false)));
                    }
                }
            }
            Err(e) => {
                // The dump was interrupted by a change, or the kernel refuses it: what was known stands.
                tracing::debug!(target: "neighbor_exchange_netlink", "the kernel's neighbours cannot be read: {e}");
                good = false;
                tables = Tables { read: true, ..(**self.tables.borrow()).clone() };
            }
        }
        self.tables.send_if_modified(|old| {
            let changed = **old != tables;
            *old = Arc::new(tables);
            changed
        });
        good
    }
}

impl Worker {
    /// Brings one device into line: its forwarding table, if it is one that addresses are advertised by; its neighbours, if it is a bridge.
    async fn fill(&mut self, index: u32, device: &Str, forwarding: &[Found], neighbours: &[Found]) -> bool {
        let (macs, ips) = (self.wish.advertise.get(device), self.wish.bridges.get(device));
        let was_filled = self.filled.contains(device);
        let mut good = true;
        if macs.is_some() || was_filled {
            let wanted = macs.into_iter().flatten().map(|mac| Own { ip: None, mac: *mac }).collect();
            let d = difference(&wanted, forwarding, |f| Some(Own { ip: None, mac: f.mac? }));
            good &= self.carry_out(index, device, &d).await;
        }
        if ips.is_some() || was_filled {
            let wanted = ips.into_iter().flatten().map(|(ip, mac)| Own { ip: Some(*ip), mac: *mac }).collect();
            // The kernel resolves group addresses by itself, with such entries.
            let unicast = |ip: &IpAddr| !ip.is_multicast() && !ip.is_unspecified();
            let d = difference(&wanted, neighbours, |f| Some(Own { ip: Some(f.ip.filter(unicast)?), mac: f.mac? }));
            good &= self.carry_out(index, device, &d).await;
        }
        match self.wish.advertise.contains_key(device) || self.wish.bridges.contains_key(device) {
            true => drop(self.filled.insert(device.clone())),
            false if good => drop(self.filled.remove(device)),
            false => {}
        }
        good
    }

    async fn carry_out(&self, index: u32, device: &str, d: &Difference<Own>) -> bool {
        let mut good = true;
        // An address that moved to another machine is replaced: it is added last.
        for own in &d.remove {
            let done = self.handle.neighbours().del(message(index, own)).execute().await;
            // One that is gone already is what was wanted.
            if !matches!(code(&done), None | Some(Errno::ENOENT | Errno::ESRCH)) {
                good = false;
                warn(format!("Delete neigh device={device} {} failed: {}", describe(own), text(&done)));
            }
        }
        for own in &d.add {
            let request = match own.ip {
                Some(ip) => self.handle.neighbours().add(index, ip).link_layer_address(&own.mac.0),
                None => self.handle.neighbours().add_bridge(index, &own.mac.0),
            };
            let done = request.state(NeighbourState::Noarp).replace().execute().await;
            if code(&done).is_some() {
                good = false;
                warn(format!("Add neigh device={device} {} failed: {}", describe(own), text(&done)));
            }
        }
        good
    }

    /// Reads all entries of the devices: by device, and whether they are of its forwarding table.
    async fn read(&mut self) -> Result<(BTreeMap<(u32, bool), Vec<Found>>, NextHops), rtnetlink::Error> {
        self.devices.clear();
        let names = [&self.filled, &self.wish.vxlans].into_iter().flatten();
        let names: BTreeSet<Str> =
            names.chain(self.wish.bridges.keys()).chain(self.wish.advertise.keys()).cloned().collect();
        // One that is not there yet is heard of when it comes.
        let index = |n: &Str| nix::net::if_::if_nametoindex(&**n).ok();
        self.devices.extend(names.into_iter().filter_map(|n| Some((index(&n)?, n))));
        let mut all: BTreeMap<(u32, bool), Vec<Found>> = BTreeMap::new();
        for family in [AddressFamily::Bridge, AddressFamily::Inet, AddressFamily::Inet6] {
            let mut m = NeighbourMessage::default();
            m.header.family = family;
            let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetNeighbour(m));
            request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
            let mut answers = self.handle.request(request)?;
            while let Some(m) = answers.next().await {
                match m.payload {
                    // Older kernels answer for other families, too.
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(m))
                        if m.header.family == family && self.devices.contains_key(&m.header.ifindex) =>
                    {
                        let key = (m.header.ifindex, family == AddressFamily::Bridge);
                        all.entry(key).or_default().push(found(&m));
                    }
                    NetlinkPayload::Error(e) => return Err(rtnetlink::Error::NetlinkError(e)),
                    _ => {}
                }
            }
        }
        let named = all.values().flatten().any(|f| f.next_hop.is_some());
        let next_hops = match self.next_hops.as_mut().filter(|_| named) {
            Some(source) => source.read().await.unwrap_or_else(|e| {
                warn(format!("the kernel's next hops cannot be read: {e}"));
                NextHops::default()
            }),
            None => NextHops::default(),
        };
        Ok((all, next_hops))
    }
}

fn warn(text: String) {
    tracing::warn!(target: "neighbor_exchange_netlink", kind = daemon::kind(&text), "{text}");
}

fn describe(own: &Own) -> String {
    own.ip.map_or_else(|| format!("eth={}", own.mac), |ip| format!("eth={} dst={ip}", own.mac))
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

fn name(m: &LinkMessage) -> Option<&str> {
    m.attributes.iter().find_map(|a| if let LinkAttribute::IfName(n) = a { Some(n.as_str()) } else { None })
}

/// An entry as the kernel wants it, to remove it.
fn message(index: u32, own: &Own) -> NeighbourMessage {
    let mut m = NeighbourMessage::default();
    m.header.ifindex = index;
    m.header.family = match own.ip {
        None => AddressFamily::Bridge,
        Some(IpAddr::V4(_)) => AddressFamily::Inet,
        Some(IpAddr::V6(_)) => AddressFamily::Inet6,
    };
    m.attributes.push(NeighbourAttribute::LinkLayerAddress(own.mac.0.to_vec()));
    m.attributes.extend(own.ip.map(|ip| NeighbourAttribute::Destination(ip.into())));
    m
}

fn found(m: &NeighbourMessage) -> Found {
    let state = u16::from(m.header.state);
    let mut f = Found {
        noarp: state & NOARP != 0,
        permanent: state & PERMANENT != 0,
        external: m.header.flags.contains(NeighbourFlags::ExtLearned),
        ..Found::default()
    };
    for a in &m.attributes {
        match a {
            NeighbourAttribute::LinkLayerAddress(bytes) => f.mac = bytes.as_slice().try_into().ok().map(Mac),
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => f.ip = Some((*ip).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => f.ip = Some((*ip).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => f.ip = address(bytes),
            NeighbourAttribute::Port(port) => f.port = *port,
            NeighbourAttribute::Vlan(vlan) => f.vlan = *vlan,
            NeighbourAttribute::Other(other) if other.kind() == NEXT_HOP => {
                let mut value = [0; 4];
                if other.value_len() == value.len() {
                    other.emit_value(&mut value);
                    f.next_hop = Some(u32::from_ne_bytes(value));
                }
            }
            _ => {}
        }
    }
    f
}
