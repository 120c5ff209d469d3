//! DPDK's devices that go and come back: a card is unplugged or reset, a driver gives up, a network device below a vdev is deleted.
//!
//! ```text
//!            the device is gone, or goes           it is there again: opened, at most once a second until that works
//!   Running ─────────────────────────────► Lost ─────────────────────────────────────────────────────────────────► Running
//! ```
//!
//! Whether a device is there is looked at, in what DPDK was told ([`dpdk_rs::Health`]), in the kernel's network devices and in its
//! list of PCI devices. A tap may be moved to another namespace and named anew there: whether it is there, the descriptors tell by which
//! its driver holds it (the line `iff:` of proc_pid_fdinfo(5), which is empty once the tap is deleted). A port that lost its device
//! keeps number and rows.

use super::devices::DeviceError;
use super::{Reconciler, RunningPort};
use crate::config::port::{DpdkDevice, Kind, PortSpec};
use crate::kernel::netlink::KernelSnapshot;
use crate::pmd::Jobs;
use crate::ports::absent::Absent;
use crate::ports::frame::memory;
use crate::ports::netdev::{Device, DeviceSpec};
use dpdk_rs::{Health, Port};
use packet::Mac;
use representors::devargs::Devargs;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use switch::DeviceId;
use tokio::time::Instant;

/// How long after an attempt to open a device that came back the next one is made.
const PAUSE: Duration = Duration::from_secs(1);

/// What a device of DPDK's stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Below {
    /// What was there before it.
    Place(Place),
    /// A tap, which its driver makes.
    Tap(String),
}

/// What is there before DPDK opens a device.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A network device of the kernel.
    Link(String),
    /// A PCI device.
    Pci(String),
}

impl Below {
    /// Of a device by its arguments. Vdevs without a network device stand on nothing.
    fn of(device: &DpdkDevice) -> Option<Below> {
        let place = match device {
            DpdkDevice::OfLink(name) => Place::Link(name.clone()),
            DpdkDevice::Named(d) => match d.pci() {
                Some(address) => Place::Pci(address),
                None if d.name_and_arguments().0.starts_with("net_tap") => {
                    return d.argument("iface").map(|l| Below::Tap(l.into()));
                }
                None => Place::Link(d.argument("iface")?.into()),
            },
        };
        Some(Below::Place(place))
    }

    /// What has to be there, and is not, before a device that stands on it can be opened.
    fn missing(self, host: &KernelSnapshot) -> Option<Place> {
        match self {
            Below::Tap(_) => None,
            Below::Place(p) => p.index(host).is_none().then_some(p),
        }
    }
}

impl Place {
    /// Whether it is there: the index of a network device, 0 for a PCI device.
    fn index(&self, host: &KernelSnapshot) -> Option<u32> {
        match self {
            Place::Link(name) => host.links.get(name).map(|l| l.index),
            Place::Pci(address) => pci(address).exists().then_some(0),
        }
    }
}

/// The kernel's folder of a PCI device.
fn pci(address: &str) -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(address)
}

/// What mends that a PCI device could not be opened, as far as the kernel's list tells.
pub(super) fn pci_hint(address: &str) -> String {
    if !pci(address).exists() {
        return format!("; there is no PCI device {address}; the port is made when it comes");
    }
    let driver = std::fs::read_link(pci(address).join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
    match driver.as_deref() {
        None => format!("; no driver of the kernel has it: driverctl set-override {address} vfio-pci"),
        // The latter share a card with the kernel.
        Some("vfio-pci" | "uio_pci_generic" | "igb_uio" | "mlx5_core" | "mlx4_core" | "mana") => {
            "; vfio-pci has to be loaded before this switch starts, and other_config:dpdk-extra must not shut the device out".into()
        }
        Some(d) => format!("; the kernel's driver {d} has it: driverctl set-override {address} vfio-pci"),
    }
}

/// The descriptors by which this process holds a tap that now has this name.
fn tap_descriptors(name: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc/self/fdinfo").into_iter().flatten().flatten();
    let numbers = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
    // The driver cuts a name to what the kernel takes (IFNAMSIZ).
    let name = name.get(..15).unwrap_or(name);
    numbers.filter(|fd| tap_of(*fd).as_deref() == Some(name)).collect()
}

/// The tap that a descriptor of this process holds, by its present name in whatever namespace.
fn tap_of(descriptor: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    let name = text.lines().find_map(|l| l.strip_prefix("iff:"))?.trim();
    (!name.is_empty()).then(|| name.to_string())
}

/// How a device is known to be there still.
#[derive(Debug)]
enum Proof {
    /// What it stands on has this index; none: the kernel has not told of it yet.
    Index(Place, Option<u32>),
    /// One of these descriptors holds a tap, whose name was this when it was opened; there are none if it was deleted before
    /// anybody looked.
    Descriptors(String, Vec<u32>),
}

/// Where a port's device is.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Since it was opened; none: it stands on nothing that could go.
    proof: Option<Proof>,
    /// Why it is gone; none: it is not.
    lost: Option<String>,
    /// When it was last tried to open it again.
    tried: Option<Instant>,
    /// A port without a number waits until this is there, or until other network devices are there than these.
    waits: Option<(Option<Place>, u64)>,
}

impl Presence {
    /// The port is without its device.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Remembers what an opened device stands on.
    pub(super) fn opened(&mut self, spec: &PortSpec, host: &KernelSnapshot) {
        let below = match &spec.kind {
            Ok(Kind::Dpdk(d)) => Below::of(d),
            _ => None,
        };
        self.proof = below.map(|b| match b {
            Below::Tap(name) => {
                let descriptors = tap_descriptors(&name);
                Proof::Descriptors(name, descriptors)
            }
            Below::Place(p) => {
                let index = p.index(host);
                Proof::Index(p, index)
            }
        });
        (self.lost, self.tried, self.waits) = (None, None, None);
    }

    /// Waits for what could not be opened, if it may come.
    pub(super) fn wait(&mut self, spec: &PortSpec, error: &DeviceError, host: &KernelSnapshot) {
        let Ok(Kind::Dpdk(d)) = &spec.kind else { return };
        let missing = Below::of(d).and_then(|b| b.missing(host));
        self.waits = (missing.is_some() || error.is_of_functions()).then(|| (missing, fingerprint(host)));
    }

    /// What was waited for may be there.
    pub(super) fn is_due(&self, host: &KernelSnapshot) -> bool {
        self.waits.as_ref().is_some_and(|(place, links)| match place {
            Some(p) => p.index(host).is_some(),
            None => *links != fingerprint(host),
        })
    }

    /// Why the device of a running port is gone; none: it is there.
    fn gone(&mut self, health: Health, host: &KernelSnapshot) -> Option<String> {
        match health {
            Health::Removed => return Some("it is being taken away".into()),
            Health::Failed => return Some("its driver could not recover it from an error".into()),
            // Nothing must be asked of it.
            Health::Recovering => return None,
            Health::Working => {}
        }
        let (place, index) = match self.proof.as_mut()? {
            Proof::Index(place, index) => (place, index),
            Proof::Descriptors(_, all) if all.iter().any(|d| tap_of(*d).is_some()) => return None,
            Proof::Descriptors(name, _) => return Some(format!("there is no network device {name}")),
        };
        let now = place.index(host);
        let Some(index) = *index else {
            *index = now;
            return None;
        };
        match (now, &*place) {
            (Some(n), _) if n == index => None,
            (Some(_), Place::Link(l)) => Some(format!("network device {l} was made anew")),
            (None, Place::Link(l)) => Some(format!("there is no network device {l}")),
            (_, Place::Pci(address)) => Some(format!("there is no PCI device {address}")),
        }
    }
}

/// Another number for other network devices.
fn fingerprint(host: &KernelSnapshot) -> u64 {
    host.links.values().fold(0, |h: u64, l| h.wrapping_add(u64::from(l.index).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

impl RunningPort {
    fn dpdk(&self) -> Option<&DpdkDevice> {
        match &self.spec.kind {
            Ok(Kind::Dpdk(d)) => Some(d),
            _ => None,
        }
    }
}

impl Reconciler {
    /// Which device of DPDK's is meant, once it is known that its card could have it.
    pub(super) async fn devargs(&self, port: &str, device: DpdkDevice) -> Result<Devargs, DeviceError> {
        if let DpdkDevice::Named(d) = &device
            && d.wanted().is_none()
        {
            return Ok(d.clone());
        }
        let of_card = |error| DeviceError::Function { port: port.into(), error };
        let of_link = |error| DeviceError::NoDevargs { port: port.into(), error };
        // Without what the kernel knows of cards the driver is asked.
        let inventory = tokio::task::spawn_blocking(representors::kernel::read).await?.unwrap_or_default();
        let devargs = match device {
            DpdkDevice::Named(d) => d,
            DpdkDevice::OfLink(name) => inventory.devargs(&name).map_err(of_link)?,
        };
        inventory.check(&devargs).map_err(of_card)?;
        Ok(devargs)
    }

    /// Takes devices that are gone from their ports, and gives them those that are back.
    pub(super) async fn follow_presence(&mut self) {
        let all = || self.bridges.values().flat_map(|b| b.ports.values()).filter(|p| p.dpdk().is_some());
        let numbers: Vec<DeviceId> = all().filter_map(|p| p.device).collect();
        if numbers.is_empty() {
            return;
        }
        let asked = self.pmd.run(move |w| {
            let one = |n: DeviceId| Some((n, w.device(n)?.port.health()));
            numbers.into_iter().filter_map(one).collect::<HashMap<_, _>>()
        });
        let Ok(health) = asked.await else { return };
        let (host, now) = (self.kernel.snapshot(), self.pmd.clock.instant());
        let (mut lost, mut back) = (Vec::new(), Vec::new());
        for (bridge, b) in &mut self.bridges {
            for p in b.ports.values_mut() {
                let (Some(d), Some(n)) = (p.dpdk(), p.device.filter(|_| p.no.is_some())) else { continue };
                let Some(health) = health.get(&n).copied() else { continue };
                let key = (bridge.clone(), p.spec.name.clone(), n);
                if p.presence.is_lost() {
                    let there = Below::of(d).is_none_or(|b| b.missing(&host).is_none());
                    if there && p.presence.tried.is_none_or(|t| now >= t + PAUSE) {
                        p.presence.tried = Some(now);
                        back.push(key);
                    }
                } else if let Some(why) = p.presence.gone(health, &host) {
                    lost.push((key, why));
                } else {
                    let recovering = format!("{}: its driver recovers its device from an error", p.spec.name);
                    match (health == Health::Recovering, p.error.as_ref() == Some(&recovering)) {
                        (true, false) => p.error = Some(recovering),
                        (false, true) => p.error = None,
                        _ => {}
                    }
                }
            }
        }
        for ((bridge, port, n), why) in lost {
            self.lose(&bridge, &port, n, why).await;
        }
        for (bridge, port, n) in back {
            self.regain(&bridge, &port, n).await;
        }
    }

    fn port_mut(&mut self, bridge: &str, port: &str) -> Option<&mut RunningPort> {
        self.bridges.get_mut(bridge)?.ports.get_mut(port)
    }

    /// Closes the device of a port, which goes on without.
    async fn lose(&mut self, bridge: &str, port: &str, n: DeviceId, why: String) {
        let Some(p) = self.port_mut(bridge, port) else { return };
        let Some(memory) = memory() else { return };
        let text = format!("{port}: the device is gone: {why}; the port goes on when it is back");
        tracing::warn!(target: "netdev", "{text}");
        (p.presence.lost, p.presence.tried, p.error) = (Some(why), None, Some(text));
        let (mac, mtu) = (p.mac, p.link.mtu);
        let absent = Port::software(memory, port, mac, Arc::new(Absent));
        absent.limit(mtu);
        self.exchange(n, Device::new(absent, "dpdk", false)).await;
    }

    /// Opens a device that is there again.
    async fn regain(&mut self, bridge: &str, port: &str, n: DeviceId) {
        let Some(p) = self.port_mut(bridge, port) else { return };
        let (spec, Some(named)) = (p.spec.clone(), p.dpdk().cloned()) else { return };
        let opened = self.open_dpdk(&spec, named).await;
        let host = self.kernel.snapshot();
        let Some(p) = self.port_mut(bridge, port) else { return };
        match opened {
            Ok((device, complaint)) => {
                let mac = device.port.mac();
                p.presence.opened(&spec, &host);
                (p.mac, p.error) = (mac, complaint);
                let number = p.no;
                tracing::info!(target: "netdev", "{port}: the device is back");
                self.exchange(n, device).await;
                let id = self.bridges.get(bridge).map(|b| b.id);
                if let (Some(id), Some(no)) = (id, number) {
                    self.change_address_of(id, no, mac).await;
                }
            }
            Err(e) => {
                let why = p.presence.lost.clone().unwrap_or_default();
                let text = format!("{port}: the device is gone: {why}; it is tried again each second: {e}");
                if p.error.as_ref() != Some(&text) {
                    tracing::warn!(target: "netdev", "{text}");
                    p.error = Some(text);
                }
            }
        }
    }

    /// Tells the switch and controllers of the address of a port's other card.
    async fn change_address_of(&self, id: switch::BridgeId, no: openflow_rs::PortNo, mac: Mac) {
        let changed = self.pmd.run(move |w| {
            let mut other = false;
            w.switch.set_inputs(id, no, |p| other = std::mem::replace(&mut p.hw_addr, mac) != mac);
            w.switch.bridge(id).and_then(|b| b.ports.get(&no)).filter(|_| other).cloned()
        });
        if let Ok(Some(port)) = changed.await {
            self.connections.port_status(id, 2, &port);
        }
    }

    async fn exchange(&self, n: DeviceId, device: Device) {
        let old = self.pmd.exchange_device(n, device).await;
        // Closing may take long.
        let _ = tokio::task::spawn_blocking(move || drop(old)).await;
    }

    /// Opens the device of a port of type `dpdk`; gives also what of the port's row could not be done.
    pub(super) async fn open_dpdk(
        &self,
        spec: &PortSpec,
        device: DpdkDevice,
    ) -> Result<(Device, Option<String>), DeviceError> {
        let devargs = self.devargs(&spec.name, device).await?;
        let (name, arguments) = devargs.name_and_arguments();
        let bus = if name.starts_with("net_") || name.starts_with("eth_") { "vdev" } else { "pci" };
        let device = DeviceSpec::Dpdk { bus: bus.into(), name: name.into(), arguments: arguments.into() };
        let opened = self.open_device(device, spec).await?;
        let complaint = super::devices::refused_mtu(spec, &opened);
        Ok((opened, complaint))
    }
}
