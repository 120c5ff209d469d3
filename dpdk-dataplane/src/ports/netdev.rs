//! Network devices through DPDK's drivers.

use crate::config::dummy::DummyOptions;
use dpdk_rs::{Eal, Error, LARGER, Memory, ORDINARY, Port, PortConfig, Ring};
use packet::Mac;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which device to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// An existing network device of the kernel, by AF_PACKET.
    System {
        /// Its name.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// One machine is behind it.
        of_machine: bool,
    },
    /// A tap device, which is made if it does not exist, with this address; none: it keeps its own.
    Tap(String, Option<Mac>),
    /// A DPDK device: the bus, its name there, and the driver's arguments.
    Dpdk {
        /// `pci` or `vdev`.
        bus: String,
        /// Name on the bus.
        name: String,
        /// Arguments.
        arguments: String,
    },
    /// A vhost-user socket that a hypervisor (QEMU) serves.
    VhostClient(String),
}

/// The next number for names of devices: those of closed ones are not used again.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// An open device.
#[derive(Debug)]
pub struct Device {
    /// The DPDK port. All PMD threads that use it hold a reference.
    pub port: Arc<Port>,
    /// It is an internal port: the kernel's network stack is behind it.
    pub internal: bool,
    /// Packets dropped as its transmit queue was full.
    pub full: u64,
    /// What is shown of it.
    pub shown: Shown,
}

/// What `dpif/show` says of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Its type, as Open vSwitch calls it.
    pub kind: &'static str,
    /// Its options, by name.
    pub options: Vec<(&'static str, String)>,
}

impl Shown {
    /// What is shown of a dummy, which may be one in the place of an internal port.
    pub fn of_dummy(o: &DummyOptions, internal: bool) -> Shown {
        let kind = match (internal, o.pmd) {
            (true, _) => "dummy-internal",
            (false, true) => "dummy-pmd",
            (false, false) => "dummy",
        };
        let wire = o.wire.clone().map(|w| (if w.starts_with('p') { "pstream" } else { "stream" }, w));
        // All dummies have one queue in each direction, and no NUMA node of their own.
        let queues = [("n_rxq", "1"), ("n_txq", "1"), ("numa_id", "0")].map(|(name, v)| (name, v.to_string()));
        let queues = queues.into_iter().filter(|_| kind == "dummy-pmd");
        let options = o.ifindex.map(|n| ("ifindex", n.to_string())).into_iter().chain(queues).chain(wire).collect();
        Shown { kind, options }
    }
}

impl Device {
    /// A device without options to show.
    pub fn new(port: Port, kind: &'static str, internal: bool) -> Device {
        Device { port: Arc::new(port), internal, full: 0, shown: Shown { kind, options: Vec::new() } }
    }
}

/// The most bytes of a frame beside its payload: an Ethernet header with two VLAN tags.
const BESIDE: usize = 22;
/// Bytes of a slot of AF_PACKET's ring that are not the frame's (packet(7), TPACKET_V2).
const RING_HEADER: usize = 66;

/// The size of the buffers of a device of the kernel that is opened for this MTU.
fn ring_room(mtu: u32) -> usize {
    let wanted = frame(mtu) + RING_HEADER;
    let room = std::iter::once(ORDINARY).chain(LARGER).find(|room| wanted <= *room);
    room.unwrap_or(LARGER[LARGER.len() - 1])
}

/// Whether a device of the kernel that was opened for one MTU has room for frames of another.
pub fn fits(opened: u32, mtu: u32) -> bool {
    ring_room(mtu) <= ring_room(opened)
}

/// AF_PACKET's ring for frames of this size. Rings of large frames have fewer slots, as they take the kernel's memory; so has
/// that of a device with one machine, of which there are many.
fn ring(room: usize, of_machine: bool) -> Ring {
    match room {
        ORDINARY => Ring { frame: 2048, block: 4096, frames: if of_machine { 512 } else { 2048 } },
        r if r < 16_384 => Ring { frame: 10_240, block: 20_480, frames: 256 },
        _ => Ring { frame: 61_440, block: 61_440, frames: 64 },
    }
}

/// Opens a device. This may block for long, so it must not run in a PMD thread.
///
/// # Errors
/// DPDK's, naming the device.
pub fn open(eal: &Eal, memory: &Memory, spec: &DeviceSpec, setup: &PortConfig) -> Result<Device, Error> {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let (bus, name, arguments, room, kind) = match spec {
        // A persistent tap keeps its addresses while the switch restarts, even after a crash.
        DeviceSpec::Tap(name, mac) => {
            let port = Port::tap(memory, name, *mac)?;
            return Ok(Device::new(port, "tap", true));
        }
        DeviceSpec::System { name, mtu, of_machine } => {
            let room = ring_room(*mtu);
            memory.for_frames(room)?;
            let port = Port::socket(memory, name, ring(room, *of_machine))?;
            return Ok(Device::new(port, "system", false));
        }
        DeviceSpec::VhostClient(path) => {
            let arguments = format!("iface={path},client=1,queues={}", setup.rx_queues);
            ("vdev", format!("net_vhost{n}"), arguments, buffer(setup), "dpdkvhostuserclient")
        }
        DeviceSpec::Dpdk { bus, name, arguments } => {
            (bus.as_str(), name.clone(), arguments.clone(), buffer(setup), "dpdk")
        }
    };
    let port = Port::attach(eal, bus, &name, &arguments, memory.for_frames(room)?, setup)?;
    Ok(Device::new(port, kind, false))
}

/// The longest frame with this MTU, in bytes.
pub fn frame(mtu: u32) -> usize {
    mtu as usize + BESIDE
}

/// The size of buffers that a DPDK device needs.
pub fn buffer(setup: &PortConfig) -> usize {
    setup.mtu.map_or(ORDINARY, |m| frame(m.into()))
}
