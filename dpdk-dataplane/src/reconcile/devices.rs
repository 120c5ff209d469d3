//! Opens, reconfigures and exchanges the devices of ports.

use super::{Reconciler, RunningBridge, RunningPort, presence};
use crate::config::BridgeSpec;
use crate::config::port::{Kind, PortError, PortSpec};
use crate::pmd::{Jobs, MainPmd, PmdEnded};
use crate::ports::frame::memory;
use crate::ports::netdev::{self, Device, DeviceSpec, Shown};
use dpdk_rs::Port;
use futures::{StreamExt, stream};
use packet::Mac;
use representors::devargs::{Devargs, NotOfDpdk};
use representors::select::Missing;
use std::collections::BTreeMap;
use std::sync::Arc;
use switch::{DeviceId, PortKind};

/// What is behind a new port.
pub(super) struct Made {
    pub kind: PortKind,
    pub device: Option<DeviceId>,
    pub mac: Mac,
    pub ifindex: Option<u32>,
    /// The MTU for which a device of the kernel was opened.
    pub room: u32,
    /// What of the port's row could not be done, for column `error`.
    pub complaint: Option<String>,
}

/// A device of the kernel that was opened.
pub(super) struct SystemDevice {
    device: Device,
    /// The MTU for which it was opened.
    room: u32,
    complaint: Option<String>,
}

/// Devices of the kernel that were opened before their ports are made, by name.
pub(super) type OpenedAhead = BTreeMap<String, Result<SystemDevice, DeviceError>>;

/// Most devices of the kernel that are opened or closed at once. The kernel takes 10 ms and more for each, in which it
/// waits until no processor looks at the packet sockets that were there before; all that wait are done together.
pub(super) const AT_ONCE: usize = 64;

/// Why what is behind a port could not be opened or reconfigured. The text stands in column `error`.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeviceError {
    /// The port's row cannot be followed.
    #[error(transparent)]
    Row(#[from] PortError),
    /// The kernel has no such device. The port is made when it comes.
    #[error("could not open network device {0} (No such device)")]
    NoSuchDevice(String),
    /// The kernel refused the device; in the words of Open vSwitch, which operators and their tools know.
    #[error("could not open network device {port} ({reason})")]
    Kernel { port: String, reason: String },
    /// The kernel's tables cannot be read.
    #[error("{port}: {error}")]
    Netlink { port: String, error: rtnetlink::Error },
    /// The port names no device, and there is none by its name.
    #[error("'{port}' is missing 'options:dpdk-devargs', and {error}")]
    NoDevargs { port: String, error: NotOfDpdk },
    /// The card has no such function, or none at all.
    #[error("{port}: {error}")]
    Function { port: String, error: Missing },
    /// DPDK refused the device.
    #[error("{port}: {error}{hint}")]
    Dpdk { port: String, error: dpdk_rs::Error, hint: String },
    /// There is no memory for packets.
    #[error("DPDK has no packet memory")]
    NoMemory,
    /// A PMD thread still uses the device.
    #[error("{0}: a PMD thread keeps the device")]
    InUse(String),
    /// The device has to be opened anew for another number of queues.
    #[error("{0}: queues change")]
    Queues(String),
    /// The main PMD thread has ended.
    #[error(transparent)]
    Ended(#[from] PmdEnded),
    /// The thread that should have opened the device was lost.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

/// The MTU of a dummy that asks for none.
const DUMMY_MTU: u32 = 1500;

impl DeviceError {
    /// It may be mended by functions that a card gets.
    pub(super) fn is_of_functions(&self) -> bool {
        matches!(self, DeviceError::Function { .. } | DeviceError::NoDevargs { .. })
    }
}

impl Reconciler {
    /// Opens the devices of the kernel that ports are made for.
    pub(super) async fn open_ahead(&self, wanted: &[BridgeSpec]) -> OpenedAhead {
        let runs =
            |b: &BridgeSpec, p: &PortSpec| self.bridges.get(&b.name).is_some_and(|r| r.ports.contains_key(&p.name));
        let new = wanted.iter().flat_map(|b| b.ports.iter().filter(move |p| p.kind == Ok(Kind::System) && !runs(b, p)));
        let opened = new.map(|p| async { (p.name.clone(), self.open_system(p).await) });
        stream::iter(opened).buffer_unordered(AT_ONCE).collect().await
    }

    /// Opens what is behind a port, unless that was done ahead.
    pub(super) async fn make(
        &self,
        bridge: &BridgeSpec,
        spec: &PortSpec,
        ahead: &mut OpenedAhead,
    ) -> Result<Made, DeviceError> {
        let kind = spec.kind.clone()?;
        let plain = |kind| Made { kind, device: None, mac: bridge.mac, ifindex: None, room: 0, complaint: None };
        let local = spec.name == bridge.name;
        let (opened, complaint) = match kind {
            Kind::Patch(peer) => return Ok(plain(PortKind::Patch(peer))),
            Kind::Tunnel(t) => return Ok(plain(PortKind::Tunnel(t))),
            Kind::Dummy { internal } => return self.make_dummy(bridge, spec, internal).await,
            Kind::System => {
                let opened = match ahead.remove(&spec.name) {
                    Some(opened) => opened,
                    None => self.open_system(spec).await,
                };
                return self.add_system(spec, opened?).await;
            }
            Kind::Internal => {
                // A tap that is there already keeps its address, unless its row asks for another.
                let there = self.is_there(&spec.name).await;
                let stays = !local && spec.mac.is_none() && there;
                let mac = (!stays).then(|| own_address(bridge, spec, local));
                return self.make_tap(spec, mac, there).await;
            }
            Kind::Dpdk(named) => self.open_dpdk(spec, named).await?,
            Kind::VhostClient(path) => {
                let opened = self.open_device(DeviceSpec::VhostClient(path), spec).await?;
                let complaint = refused_mtu(spec, &opened);
                (opened, complaint)
            }
        };
        let mac = opened.port.mac();
        let number = self.pmd.run(move |w| w.add_device(opened)).await?;
        let kind = PortKind::Device(number);
        Ok(Made { kind, device: Some(number), mac, ifindex: None, room: 0, complaint })
    }

    /// Whether the kernel has a device. It is asked, as the snapshot may still have one that has just been deleted.
    async fn is_there(&self, name: &str) -> bool {
        self.kernel.link(name).await.is_ok()
    }

    /// Opens the device of the kernel that a port names.
    async fn open_system(&self, spec: &PortSpec) -> Result<SystemDevice, DeviceError> {
        if !self.is_there(&spec.name).await {
            return Err(DeviceError::NoSuchDevice(spec.name.clone()));
        }
        if let Err(e) = self.kernel.bring_up(&spec.name).await {
            tracing::warn!(target: "netdev", "{}: cannot be brought up: {e}", spec.name);
        }
        let complaint = match spec.mtu {
            Some(m) => self.set_mtu(&spec.name, m).await,
            None => None,
        };
        let link = self.kernel.link(&spec.name).await;
        let link = link.map_err(|error| DeviceError::Netlink { port: spec.name.clone(), error })?;
        let device = self.open_device(system(spec, link.mtu), spec).await?;
        Ok(SystemDevice { device, room: link.mtu, complaint })
    }

    /// Has the switch know an open device of the kernel.
    async fn add_system(&self, spec: &PortSpec, opened: SystemDevice) -> Result<Made, DeviceError> {
        let SystemDevice { device, room, complaint } = opened;
        if room > 0 {
            device.port.limit(Some(room));
        }
        let mac = device.port.mac();
        let number = self.pmd.run(move |w| w.add_device(device)).await?;
        let (ifindex, mac) = self.index_and_address(&spec.name, mac).await;
        Ok(Made { kind: PortKind::Device(number), device: Some(number), mac, ifindex, room, complaint })
    }

    /// Makes a tap, or takes the one that is there.
    async fn make_tap(&self, spec: &PortSpec, mac: Option<Mac>, there: bool) -> Result<Made, DeviceError> {
        let opened = self.open_device(DeviceSpec::Tap(spec.name.clone(), mac), spec).await?;
        let mac = opened.port.mac();
        let number = self.pmd.run(move |w| w.add_device(opened)).await?;
        let complaint = match spec.mtu {
            Some(m) => self.set_mtu(&spec.name, m).await,
            None => None,
        };
        let (ifindex, mac) = self.index_and_address(&spec.name, mac).await;
        if !there && let Err(e) = self.kernel.mark(&spec.name).await {
            tracing::warn!(target: "netdev", "{}: this tap cannot be marked as made by this switch: {e}", spec.name);
        }
        Ok(Made { kind: PortKind::Internal(number), device: Some(number), mac, ifindex, room: 0, complaint })
    }

    /// The kernel's index of a device, and its address; without the device none, and this one.
    async fn index_and_address(&self, name: &str, mac: Mac) -> (Option<u32>, Mac) {
        let link = self.kernel.link(name).await.ok();
        link.map_or((None, mac), |l| (Some(l.index), l.mac))
    }

    /// Makes a dummy.
    async fn make_dummy(&self, bridge: &BridgeSpec, spec: &PortSpec, internal: bool) -> Result<Made, DeviceError> {
        let Some(memory) = memory() else { return Err(DeviceError::NoMemory) };
        let of_bridge = (spec.name == bridge.name).then_some(bridge.mac);
        let dummy = self.test_bed.dummies.make(&spec.name, spec.mac.or(of_bridge));
        let complaint = dummy.configure(&spec.dummy);
        complaint.iter().for_each(|c| tracing::warn!(target: "netdev_dummy", "{c}"));
        let mac = dummy.mac();
        let port = Port::software(memory, &spec.name, mac, dummy);
        port.limit(Some(spec.mtu.unwrap_or(DUMMY_MTU)));
        let device = Device { shown: Shown::of_dummy(&spec.dummy, internal), ..Device::new(port, "dummy", internal) };
        let wanted = wanted_number(&spec.name);
        let number = self.pmd.run(move |w| w.add_device_as(device, wanted)).await?;
        let kind = if internal { PortKind::Internal(number) } else { PortKind::Device(number) };
        Ok(Made { kind, device: Some(number), mac, ifindex: None, room: 0, complaint })
    }

    /// Has a dummy follow the new row of its port.
    pub(super) async fn change_dummy(&self, new: &PortSpec, device: Option<DeviceId>) -> Option<String> {
        let complaint = self.test_bed.dummies.get(&new.name)?.configure(&new.dummy);
        complaint.iter().for_each(|c| tracing::warn!(target: "netdev_dummy", "{c}"));
        let (device, options) = (device?, new.dummy.clone());
        // Without a request the MTU of one in the place of an internal port follows the bridge.
        let usual = (new.kind != Ok(Kind::Dummy { internal: true })).then_some(DUMMY_MTU);
        new.mtu.or(usual).into_iter().for_each(|mtu| self.limit_dummy(device, mtu));
        self.pmd.post(move |w| {
            if let Some(d) = w.device_mut(device) {
                d.shown = Shown::of_dummy(&options, d.internal);
            }
        });
        complaint
    }

    /// Sets the MTU of a dummy.
    pub(super) fn limit_dummy(&self, device: DeviceId, mtu: u32) {
        self.pmd.post(move |w| w.device(device).into_iter().for_each(|d| d.port.limit(Some(mtu))));
    }

    pub(super) async fn open_device(&self, device: DeviceSpec, spec: &PortSpec) -> Result<Device, DeviceError> {
        let Some(memory) = memory() else { return Err(DeviceError::NoMemory) };
        let (eal, setup) = (self.pmd.eal.clone(), spec.setup.clone());
        let pci = match &device {
            DeviceSpec::Dpdk { name, .. } => Devargs::parse(name).ok().and_then(|d| d.pci()),
            _ => None,
        };
        let opened = tokio::task::spawn_blocking(move || netdev::open(&eal, memory, &device, &setup)).await;
        let port = spec.name.clone();
        let kernel = matches!(spec.kind, Ok(Kind::Internal | Kind::System));
        opened?.map_err(|e| match e {
            dpdk_rs::Error::Device { reason, .. } if kernel => {
                let reason = reason.split_once(" (os error").map_or(&*reason, |(text, _)| text).into();
                DeviceError::Kernel { port, reason }
            }
            error => {
                let hint = pci.as_deref().map(presence::pci_hint).unwrap_or_default();
                DeviceError::Dpdk { port, error, hint }
            }
        })
    }

    /// Follows MTUs that have grown. A device of the kernel is exchanged for one with larger buffers in its ring; a tap
    /// only needs that there are such buffers.
    pub(super) async fn follow_mtus(&mut self) {
        let grown = |p: &RunningPort| match (&p.spec.kind, p.link.mtu, p.device) {
            (Ok(Kind::System), Some(mtu), Some(_)) => !netdev::fits(p.room, mtu),
            (Ok(Kind::Internal), Some(mtu), Some(_)) => mtu > p.room && !netdev::fits(p.room.max(1500), mtu),
            _ => false,
        };
        let all = self.bridges.iter().flat_map(|(b, r)| r.ports.values().map(move |p| (b, p)));
        let grown: Vec<_> =
            all.filter(|(_, p)| grown(p)).map(|(b, p)| (b.clone(), p.spec.clone(), p.link.mtu, p.device)).collect();
        for (bridge, spec, mtu, device) in grown {
            let (Some(mtu), Some(device)) = (mtu, device) else { continue };
            let result = self.grow_buffers(&spec, device, mtu).await;
            let port = self.bridges.get_mut(&bridge).and_then(|b| b.ports.get_mut(&spec.name));
            let Some(p) = port else { continue };
            // It is tried once for each size.
            p.room = mtu;
            p.error = result.err().map(|e| e.to_string());
            p.error.iter().for_each(|e| tracing::warn!(target: "netdev", "{e}; longer frames are dropped"));
        }
    }

    async fn grow_buffers(&self, spec: &PortSpec, device: DeviceId, mtu: u32) -> Result<(), DeviceError> {
        if spec.kind == Ok(Kind::Internal) {
            let Some(memory) = memory() else { return Ok(()) };
            let made = tokio::task::spawn_blocking(move || memory.for_frames(netdev::frame(mtu)).map(drop)).await;
            return made?.map_err(|error| DeviceError::Dpdk { port: spec.name.clone(), error, hint: String::new() });
        }
        let opened = self.open_device(system(spec, mtu), spec).await?;
        opened.port.limit(Some(mtu));
        let old = self.pmd.exchange_device(device, opened).await;
        // Closing may take long.
        let _ = tokio::task::spawn_blocking(move || drop(old)).await;
        Ok(())
    }

    /// Reconfigures a port's DPDK device where queues, descriptors or MTU change. A device that cannot be reconfigured
    /// is closed; the port is then made like a new one.
    pub(super) async fn reconfigure_port(&mut self, b: &mut RunningBridge, spec: &PortSpec) {
        let Some(p) = b.ports.get(&spec.name).filter(|p| p.spec.setup != spec.setup) else { return };
        let Some(d) = p.device else { return };
        // The number of queues of vhost-user is an argument of its opening.
        let done = match spec.kind {
            Ok(Kind::VhostClient(_)) => Err(DeviceError::Queues(spec.name.clone())),
            _ => self.reconfigure(d, spec).await,
        };
        match done {
            Ok(complaint) => {
                if let Some(p) = b.ports.get_mut(&spec.name).filter(|p| !p.presence.is_lost()) {
                    p.error = complaint;
                }
            }
            Err(e) => {
                tracing::warn!(target: "netdev", "{e}; it is opened anew");
                if let Some(p) = b.ports.remove(&spec.name) {
                    self.close_port(b, p).await;
                }
            }
        }
    }

    /// Reconfigures a device, without which its port goes on meanwhile. Gives what could not be done.
    async fn reconfigure(&self, n: DeviceId, spec: &PortSpec) -> Result<Option<String>, DeviceError> {
        let Some(mut lifted) = self.pmd.lift_device(n).await? else { return Ok(None) };
        let (setup, port) = (spec.setup.clone(), spec.name.clone());
        let done = tokio::task::spawn_blocking(move || {
            let result = match (Arc::get_mut(&mut lifted.device_mut().port), memory()) {
                (Some(p), Some(m)) => m
                    .for_frames(netdev::buffer(&setup))
                    .and_then(|pool| p.reconfigure(pool, &setup))
                    .map_err(|error| DeviceError::Dpdk { port, error, hint: String::new() }),
                (None, _) => Err(DeviceError::InUse(port)),
                (_, None) => Err(DeviceError::NoMemory),
            };
            (lifted, result)
        });
        let (mut lifted, result) = done.await?;
        let (works, complaint) = (result.is_ok(), refused_mtu(spec, lifted.device_mut()));
        let back = move |w: &mut MainPmd| {
            w.put_back(n, lifted);
            if works {
                w.poll_device(n);
            }
        };
        self.pmd.run(back).await?;
        result.map(|()| complaint)
    }

    /// Sets the MTU of a device of the kernel; gives the error text if the kernel refuses it.
    pub(super) async fn set_mtu(&self, name: &str, mtu: u32) -> Option<String> {
        let e = self.kernel.set_mtu(name, mtu).await.err()?;
        let text = format!("{name}: mtu_request {mtu}: {e}");
        tracing::warn!(target: "netdev", "{text}");
        Some(text)
    }
}

/// The device of the kernel that a port names.
fn system(spec: &PortSpec, mtu: u32) -> DeviceSpec {
    DeviceSpec::System { name: spec.name.clone(), mtu, of_machine: spec.of_machine }
}

/// The datapath's number of a dummy, which test beds know in advance, as in Open vSwitch: the first number in its name,
/// and 100 more for names that begin with `br`.
fn wanted_number(name: &str) -> Option<DeviceId> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let n: u32 = digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    n.checked_add(if name.starts_with("br") { 100 } else { 0 }).map(DeviceId)
}

/// The error text where a DPDK device has not taken the requested MTU.
pub(super) fn refused_mtu(spec: &PortSpec, device: &Device) -> Option<String> {
    let (asked, has) = (spec.mtu?, device.port.mtu()?);
    let dpdk = matches!(spec.kind, Ok(Kind::Dpdk(_) | Kind::VhostClient(_)));
    (dpdk && has != asked).then(|| format!("{}: mtu_request {asked}: its device keeps {has}", spec.name))
}

/// The address of an internal port: the requested one; else, for the bridge's own port, the bridge's; else one derived
/// from its row.
fn own_address(bridge: &BridgeSpec, spec: &PortSpec, local: bool) -> Mac {
    let b = spec.interface.as_bytes();
    let derived = [0x02 | (b[0] & 0xfc), b[1], b[2], b[3], b[4], b[5]];
    spec.mac.unwrap_or(if local { bridge.mac } else { Mac(derived) })
}
