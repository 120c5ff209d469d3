//! Network devices through DPDK's drivers.

use dpdk_rs::{Eal, Error, Pool, Port, PortConfig};
use packet::Mac;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which device to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// An existing network device of the kernel (AF_PACKET).
    System(String),
    /// A tap device that the kernel gets, with this address.
    Tap(String, Mac),
    /// A DPDK device: the bus, its name there, and the driver's arguments.
    Dpdk {
        /// `pci` or `vdev`.
        bus: String,
        /// Name on the bus.
        name: String,
        /// Arguments.
        arguments: String,
    },
    /// A vhost-user socket that a virtual machine's monitor serves.
    VhostClient(String),
}

/// A number that no other device of the process has; names of closed devices are not used anew.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// An open device.
#[derive(Debug)]
pub struct Device {
    /// The port; other threads receive from it and send through it.
    pub port: Arc<Port>,
    /// The kernel's network stack is behind it.
    pub internal: bool,
    /// Packets that its queue had no room for.
    pub full: u64,
}

/// Text of an Ethernet address.
pub fn mac_text(m: Mac) -> String {
    m.map(|b| format!("{b:02x}")).join(":")
}

/// Opens a device. It blocks: not for the worker's thread.
///
/// # Errors
/// DPDK's, naming the device.
pub fn open(eal: &Eal, pool: &Pool, spec: &DeviceSpec, setup: &PortConfig) -> Result<Device, Error> {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let (bus, name, arguments) = match spec {
        DeviceSpec::System(iface) => ("vdev", format!("net_af_packet{n}"), format!("iface={iface}")),
        // A persistent tap keeps its addresses while its switch restarts, even after a crash.
        DeviceSpec::Tap(iface, mac) => {
            ("vdev", format!("net_tap{n}"), format!("iface={iface},mac={},persist", mac_text(*mac)))
        }
        DeviceSpec::VhostClient(path) => {
            ("vdev", format!("net_vhost{n}"), format!("iface={path},client=1,queues={}", setup.rx_queues))
        }
        DeviceSpec::Dpdk { bus, name, arguments } => (bus.as_str(), name.clone(), arguments.clone()),
    };
    let port = Port::attach(eal, bus, &name, &arguments, pool, setup)?;
    Ok(Device { port: Arc::new(port), internal: matches!(spec, DeviceSpec::Tap(..)), full: 0 })
}
