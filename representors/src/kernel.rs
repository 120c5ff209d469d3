//! Follows the kernel: two sockets that tell of changes, one that asks. A thread of its own waits for them; while nothing changes it
//! costs nothing.

use crate::inventory::{Device, Snapshot};
use crate::netlink::{self, devlink, link};
use crate::{DeviceName, Event, Follow, Inventory, smart_nic};
use netlink_sys::{Socket, SocketAddr, protocols};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The longest datagram that the kernel sends.
const LARGEST: usize = 256 << 10;
/// How long to wait before all is read again, after that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How long events are collected before what they make is told: a card that makes a thousand functions tells of each.
const COLLECT: Duration = Duration::from_millis(20);

/// Octets of events that may wait on each socket: those of a card that makes a thousand functions at once, of which each takes some
/// kilobytes. The kernel's own 208 kB hold fifty.
const BUFFER: usize = 4 << 20;

/// What the thread needs.
struct Kernel {
    /// Asks, and gets answers.
    generic: Socket,
    route: Socket,
    /// Tell of changes.
    ports: Option<Socket>,
    links: Socket,
    family: Option<devlink::Family>,
    sequence: u32,
    /// How often everything was read.
    dumps: u64,
}

fn socket(protocol: isize) -> io::Result<Socket> {
    let mut s = Socket::new(protocol)?;
    s.bind_auto()?;
    s.connect(&SocketAddr::new(0, 0))?;
    Ok(s)
}

fn listening(protocol: isize, group: u32) -> io::Result<Socket> {
    let mut s = Socket::new(protocol)?;
    // Who has no such right takes what the system allows: events are then lost earlier, and everything is read again.
    if setsockopt(&s, RcvBufForce, &BUFFER).is_err() {
        s.set_rx_buf_sz(BUFFER)?;
    }
    s.bind_auto()?;
    s.add_membership(group)?;
    s.set_non_blocking(true)?;
    Ok(s)
}

impl Kernel {
    fn new() -> io::Result<Kernel> {
        let mut k = Kernel {
            generic: socket(protocols::NETLINK_GENERIC)?,
            route: socket(protocols::NETLINK_ROUTE)?,
            ports: None,
            links: listening(protocols::NETLINK_ROUTE, link::GROUP)?,
            family: None,
            sequence: 0,
            dumps: 0,
        };
        // A kernel without devlink has cards whose network devices say what they are.
        k.sequence += 1;
        let mut family = None;
        match ask(&k.generic, &devlink::ask_family(k.sequence), k.sequence, |m| family = devlink::family(m.body).ok()) {
            Ok(()) => {}
            Err(e) => tracing::info!(target: "vif_plug", "the kernel has no devlink: {e}"),
        }
        if let Some(f) = family {
            k.ports = Some(listening(protocols::NETLINK_GENERIC, f.config)?);
            k.family = Some(f);
        }
        Ok(k)
    }

    /// All that there is.
    fn dump(&mut self) -> io::Result<Snapshot> {
        self.dumps += 1;
        let mut out = Snapshot::default();
        let mut take = |e: Option<Event>| match e {
            Some(Event::Device(d)) => out.devices.push(d),
            Some(Event::Port(p)) => out.ports.push(p),
            Some(Event::Link(l)) => out.links.push(l),
            _ => {}
        };
        if let Some(f) = self.family {
            for asked in [devlink::ask_devices, devlink::ask_ports] {
                self.sequence += 1;
                ask(&self.generic, &asked(f, self.sequence), self.sequence, |m| take(said(devlink::event(m.body))))?;
            }
        }
        self.sequence += 1;
        ask(&self.route, &link::ask(self.sequence), self.sequence, |m| take(said(link::event(m.kind, m.body))))?;
        let names: Vec<DeviceName> = out.devices.iter().map(|d| d.name.clone()).collect();
        out.devices = names.into_iter().map(|name| self.mode(name)).collect();
        Ok(out)
    }

    /// How a device's embedded switch is set; those without one do not answer.
    fn mode(&mut self, name: DeviceName) -> Device {
        let mut device = Device { name, mode: None };
        if let Some(f) = self.family {
            self.sequence += 1;
            let request = devlink::ask_mode(f, self.sequence, &device.name);
            let _ = ask(&self.generic, &request, self.sequence, |m| {
                if let Some(Event::Device(d)) = said(devlink::event(m.body)) {
                    device.mode = d.mode;
                }
            });
        }
        device
    }

    /// Waits for events and takes them over, all that are there. Whether anything is different now.
    fn wait(&mut self, inventory: &mut Inventory) -> io::Result<bool> {
        let sockets = [Some(&self.links), self.ports.as_ref()];
        let all = sockets.into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = all.map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        std::thread::sleep(COLLECT);
        let (mut changed, mut touched, mut lost) = (false, BTreeSet::new(), false);
        let mut b = Vec::with_capacity(LARGEST);
        let listening = [(Some(&self.links), true), (self.ports.as_ref(), false)];
        for (s, is_link) in listening.into_iter().filter_map(|(s, l)| Some((s?, l))) {
            loop {
                b.clear();
                match s.recv(&mut b, 0) {
                    // What is left after a loss is older than what is read anew then.
                    Ok(_) if lost => {}
                    Ok(_) => {
                        for m in netlink::messages(&b).unwrap_or_default() {
                            let told = if is_link { link::event(m.kind, m.body) } else { devlink::event(m.body) };
                            let Some(e) = said(told) else { continue };
                            touched.extend(device_of(&e).cloned());
                            changed |= inventory.apply(e);
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) if e.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                        tracing::info!(target: "vif_plug", "events of network devices were lost: all are read again");
                        inventory.apply(Event::Overflow);
                        lost = true;
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        if lost {
            return Ok(changed);
        }
        for name in touched {
            // One that just went is not there to answer.
            let there =
                inventory.devices().any(|(d, _)| *d == name) || inventory.representors().any(|r| *r.device == name);
            if there {
                let d = self.mode(name);
                changed |= inventory.apply(Event::Device(d));
            }
        }
        Ok(changed)
    }
}

/// Takes over what drivers say elsewhere than in devlink. Whether anything is different now.
fn complete(inventory: &mut Inventory) -> bool {
    let mut changed = false;
    for e in smart_nic::addresses(inventory, Path::new(smart_nic::SYSFS)) {
        changed |= inventory.apply(e);
    }
    changed
}

/// The device that an event is of.
fn device_of(e: &Event) -> Option<&DeviceName> {
    match e {
        Event::Device(d) => Some(&d.name),
        Event::Port(p) => Some(&p.device),
        Event::PortGone(d, _) => Some(d),
        _ => None,
    }
}

fn said(e: Result<Option<Event>, netlink::Malformed>) -> Option<Event> {
    e.unwrap_or_else(|e| {
        tracing::warn!(target: "vif_plug", "{e}");
        None
    })
}

/// Sends a request and gives the messages of the answer.
fn ask(s: &Socket, request: &[u8], sequence: u32, mut take: impl FnMut(netlink::Message<'_>)) -> io::Result<()> {
    s.send(request, 0)?;
    let mut b = Vec::with_capacity(LARGEST);
    loop {
        b.clear();
        s.recv(&mut b, 0)?;
        let all = netlink::messages(&b).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        for m in all.into_iter().filter(|m| m.sequence == sequence) {
            match m.kind {
                netlink::DONE => return Ok(()),
                netlink::ERROR => {
                    let code = netlink::u32_at(m.body, 0).unwrap_or(0).cast_signed();
                    return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                _ => take(m),
            }
        }
    }
}

/// Follows the kernel.
///
/// # Errors
/// Where there are no sockets.
pub fn follow() -> io::Result<Follow> {
    let mut kernel = Kernel::new()?;
    let (tx, rx) = watch::channel(Arc::default());
    std::thread::Builder::new().name("representors".into()).spawn(move || {
        let (mut inventory, mut changed) = (Inventory::default(), false);
        loop {
            while inventory.is_stale() {
                match kernel.dump() {
                    Ok(s) => changed |= inventory.apply(Event::Dump(s)),
                    Err(e) => {
                        tracing::warn!(target: "vif_plug", "this machine's network cards cannot be read: {e}");
                        std::thread::sleep(PAUSE);
                    }
                }
            }
            changed |= complete(&mut inventory);
            if std::mem::take(&mut changed) && tx.send(Arc::new(inventory.clone())).is_err() {
                return;
            }
            match kernel.wait(&mut inventory) {
                Ok(now) => changed |= now,
                Err(e) => {
                    tracing::warn!(target: "vif_plug", "events of network devices cannot be read: {e}");
                    inventory.apply(Event::Overflow);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    })?;
    Ok(rx)
}

/// Reads what there is, once.
///
/// # Errors
/// Where the kernel does not answer.
pub fn read() -> io::Result<Inventory> {
    let mut inventory = Inventory::default();
    inventory.apply(Event::Dump(Kernel::new()?.dump()?));
    complete(&mut inventory);
    Ok(inventory)
}
