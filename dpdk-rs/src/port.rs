//! Ethernet devices.

use crate::error::reason;
use crate::events::Health;
use crate::info::{PortInfo, describe, device_info};
use crate::mbuf::BY_DEVICES;
use crate::socket::{Ring, Socket};
use crate::software::{Software, SoftwareDevice};
use crate::tap::Tap;
use crate::{Eal, Error, Mbuf, Memory, Pool, ffi};
use packet::Mac;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a port is to be set up. A device that has fewer queues or descriptors gets as many as it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Receive queues. Packets are spread over several by a hash of addresses and ports (RSS).
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors of each receive queue: packets that may wait there. None: 2,048 where there is memory enough for many such
    /// queues, as in Open vSwitch, else 512.
    pub rx_descriptors: Option<u16>,
    /// Descriptors of each transmit queue.
    pub tx_descriptors: u16,
    /// The largest frame's payload in bytes; none: the device's own.
    pub mtu: Option<u16>,
    /// The device is to say whether checksums of received packets hold.
    pub rx_checksums: bool,
}

impl Default for PortConfig {
    fn default() -> PortConfig {
        PortConfig {
            rx_queues: 1,
            tx_queues: 1,
            rx_descriptors: None,
            tx_descriptors: 512,
            mtu: None,
            rx_checksums: false,
        }
    }
}

/// Descriptors of a receive queue if nothing is said: the second number where memory is short.
const DESCRIPTORS: [u16; 2] = [2048, 512];
/// A port's queues may take one of so many packets for that.
const SHARE: u32 = 16;

/// The most packets that one call receives or sends.
pub const BURST: usize = 32;

/// DPDK's numbers of the devices that ports have. No two ports have the same device: each takes it for its own.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn taken() -> MutexGuard<'static, BTreeSet<u16>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A started Ethernet device. It is stopped when it is dropped; one that DPDK did not have before is closed and detached.
#[derive(Debug)]
pub struct Port {
    pub(crate) id: u16,
    pub(crate) info: PortInfo,
    name: String,
    mac: Mac,
    /// Which receive and transmit queues some thread is using: DPDK lets one at a time.
    used: [Box<[AtomicBool]>; 2],
    pub(crate) behind: Behind,
    /// The longest frame without a tag that it sends.
    most: AtomicU32,
    /// Frames that were longer.
    too_long: AtomicU64,
    /// The bus of a driver's device and its name there.
    place: Option<[CString; 2]>,
    /// This port had it attached.
    attached: bool,
}

/// What moves a port's packets.
#[derive(Debug)]
pub(crate) enum Behind {
    /// A driver of DPDK's, which receives into this pool.
    Driver(Pool, #[allow(dead_code, reason = "kept while the driver runs")] Eal),
    /// A tap.
    Tap(Box<Tap>),
    /// A device of the kernel.
    Socket(Box<Socket>),
    /// A device of this process.
    Software(Box<SoftwareDevice>),
}

/// Bytes of an Ethernet header, and of a tag in it.
const HEADER: usize = 14;
const TAG: usize = 4;

/// A queue that this thread has for itself until it is dropped.
struct Use<'a>(&'a AtomicBool);

impl<'a> Use<'a> {
    #[inline]
    fn of(queue: Option<&'a AtomicBool>) -> Option<Use<'a>> {
        queue.filter(|q| !q.swap(true, Ordering::Acquire)).map(Use)
    }
}

impl Drop for Use<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The device, of those that DPDK has, that is meant by a name on its bus with arguments (`pci:0000:03:00.0,representor=[1]`) or by
/// what it is (`class=eth,mac=…`).
fn matching(device: &CStr) -> Option<u16> {
    let mut search = ffi::rte_dev_iterator::default();
    // SAFETY: the text is a C string, of which DPDK makes copies; the search is there during the call.
    if unsafe { ffi::rte_eth_iterator_init(&raw mut search, device.as_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the search was begun above, and not ended.
    let id = unsafe { ffi::rte_eth_iterator_next(&raw mut search) };
    // A search that found nothing more has ended by itself.
    if u32::from(id) >= ffi::RTE_MAX_ETHPORTS {
        return None;
    }
    // SAFETY: the search was begun, and found something, so that it is not ended yet.
    unsafe { ffi::rte_eth_iterator_cleanup(&raw mut search) };
    Some(id)
}

/// Takes a device from its bus, unless it has more ports, which may be in use.
fn detach(bus: &CStr, name: &CStr) {
    let device = CString::new([bus.to_bytes(), b":", name.to_bytes()].concat());
    if device.is_ok_and(|d| matching(&d).is_none()) {
        // SAFETY: both are C strings; the device has nothing that a port could have.
        unsafe { ffi::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
    }
}

impl Port {
    /// Attaches a device, configures and starts it. `bus` is `vdev` or `pci`, `name` the device's name on it
    /// (`net_af_packet0`, `0000:03:00.0`) and `arguments` what its driver wants (`iface=eth0`, `representor=vf3`).
    ///
    /// # Errors
    /// [`Error::Device`], naming the device and the step.
    pub fn attach(
        eal: &Eal,
        bus: &str,
        name: &str,
        arguments: &str,
        pool: &Pool,
        config: &PortConfig,
    ) -> Result<Port, Error> {
        let text = |s: &str| CString::new(s).map_err(|_| Error::Text(s.to_string()));
        let (c_bus, c_name, c_arguments) = (text(bus)?, text(name)?, text(arguments)?);
        let device = if arguments.is_empty() { name.to_string() } else { format!("{name},{arguments}") };
        let fail = |step, code| Error::Device { device: device.clone(), step, reason: reason(code) };
        let c_device = text(&if name.starts_with("class=") { device.clone() } else { format!("{bus}:{device}") })?;
        // Who attaches, or closes, does so alone until it is known whose device it is.
        let mut taken = taken();
        let own = |id: &u16| !taken.contains(id);
        let there = matching(&c_device);
        if there.is_some_and(|id| !own(&id)) {
            return Err(Error::Device {
                device: device.clone(),
                step: "attach",
                reason: "it is in use by another port".into(),
            });
        }
        if there.is_none() {
            // SAFETY: the environment is initialised (`eal` says so) and all texts are C strings, which DPDK copies.
            let code = unsafe { ffi::rte_eal_hotplug_add(c_bus.as_ptr(), c_name.as_ptr(), c_arguments.as_ptr()) };
            if code < 0 {
                return Err(fail("attach", code));
            }
        }
        let Some(id) = there.or_else(|| matching(&c_device)).filter(own) else {
            detach(&c_bus, &c_name);
            return Err(fail("find its port", -libc::ENODEV));
        };
        taken.insert(id);
        drop(taken);
        crate::events::forget(id, name);
        // From here on dropping the port detaches it.
        let mut port = Port {
            id,
            info: PortInfo::default(),
            name: name.to_string(),
            mac: Mac::ZERO,
            used: Default::default(),
            behind: Behind::Driver(pool.clone(), eal.clone()),
            most: AtomicU32::new(u32::MAX),
            too_long: AtomicU64::new(0),
            place: Some([c_bus, c_name]),
            attached: there.is_none(),
        };
        port.start(pool, config).map_err(|(step, code)| fail(step, code))?;
        port.info.bus = bus.to_string();
        Ok(port)
    }

    /// Opens a tap of the kernel, a new one or one that stayed, gives it this address, if there is one, and brings it up. It stays
    /// when the port is closed.
    ///
    /// # Errors
    /// [`Error::Device`], naming the device.
    pub fn tap(memory: &Memory, name: &str, mac: Option<Mac>) -> Result<Port, Error> {
        let fail = |e| Port::not_opened(name, "create a tap", &e);
        let tap = Tap::open(memory, name, mac).map_err(fail)?;
        let mac = mac.map_or_else(|| crate::socket::address(name), Ok).map_err(fail)?;
        Ok(Port::of_kernel(name, "tun", mac, Behind::Tap(Box::new(tap))))
    }

    /// Opens a network device of the kernel that is there. What it sends and receives is seen by the kernel as well.
    ///
    /// # Errors
    /// [`Error::Device`], naming the device.
    pub fn socket(memory: &Memory, name: &str, ring: Ring) -> Result<Port, Error> {
        let fail = |e| Port::not_opened(name, "open", &e);
        let socket = Socket::open(memory, name, ring).map_err(fail)?;
        let mac = crate::socket::address(name).map_err(fail)?;
        Ok(Port::of_kernel(name, "af_packet", mac, Behind::Socket(Box::new(socket))))
    }

    /// Opens a device of this process, with this name and address.
    pub fn software(memory: &Memory, name: &str, mac: Mac, device: Arc<dyn Software>) -> Port {
        Port::of_kernel(name, "dummy", mac, Behind::Software(Box::new(SoftwareDevice::new(memory, device))))
    }

    fn not_opened(name: &str, step: &'static str, e: &std::io::Error) -> Error {
        Error::Device { device: name.to_string(), step, reason: e.to_string() }
    }

    /// A port that no driver of DPDK's is behind.
    fn of_kernel(name: &str, driver: &str, mac: Mac, behind: Behind) -> Port {
        let one = || [AtomicBool::new(false)].into();
        let info = PortInfo { driver: driver.into(), queues: [1, 1], max_queues: [1, 1], ..PortInfo::default() };
        Port {
            id: u16::MAX,
            info,
            name: name.to_string(),
            mac,
            used: [one(), one()],
            behind,
            most: AtomicU32::new(u32::MAX),
            too_long: AtomicU64::new(0),
            place: None,
            attached: false,
        }
    }

    /// What DPDK has told of the device since it was opened.
    pub fn health(&self) -> Health {
        match &self.behind {
            Behind::Driver(..) => crate::events::health(self.id, &self.name),
            _ => Health::Working,
        }
    }

    /// Has the thread that asked for it ([`crate::wake`]) be woken when something comes. False if the device cannot do that: it has to
    /// be polled.
    pub fn arm(&self) -> bool {
        match &self.behind {
            Behind::Driver(..) => false,
            // Those who give a device of this process a frame wake the thread themselves.
            Behind::Tap(_) | Behind::Software(_) => true,
            Behind::Socket(s) => {
                s.arm();
                true
            }
        }
    }

    /// There may be something to receive.
    pub fn ready(&self) -> bool {
        match &self.behind {
            Behind::Driver(..) => true,
            Behind::Tap(t) => t.ready(),
            Behind::Socket(s) => s.ready(),
            Behind::Software(s) => s.ready(),
        }
    }

    /// Sets the largest payload of a frame that the port sends. Longer frames are dropped and counted; a tag does not count.
    pub fn limit(&self, mtu: Option<u32>) {
        self.most.store(mtu.map_or(u32::MAX, |m| m.saturating_add(HEADER as u32)), Ordering::Relaxed);
    }

    /// The largest payload of a frame that the port sends; none: whatever there is.
    pub fn mtu(&self) -> Option<u32> {
        let most = self.most.load(Ordering::Relaxed);
        (most != u32::MAX).then(|| most.saturating_sub(HEADER as u32))
    }

    /// Frames that were too long to be sent.
    pub fn too_long(&self) -> u64 {
        self.too_long.load(Ordering::Relaxed)
    }

    /// Sets the device up anew, to receive into this pool. It is stopped meanwhile, and stays so where that fails.
    ///
    /// # Errors
    /// [`Error::Device`], naming the device and the step.
    pub fn reconfigure(&mut self, pool: &Pool, config: &PortConfig) -> Result<(), Error> {
        if !matches!(self.behind, Behind::Driver(..)) {
            return Ok(());
        }
        // One that is stopped has no queues that anybody could use.
        self.used = Default::default();
        // SAFETY: the port exists, and no thread is using it, as this one has it alone; stopping one that is stopped does nothing.
        let code = unsafe { ffi::rte_eth_dev_stop(self.id) };
        let fail = |step, code| Error::Device { device: self.name.clone(), step, reason: reason(code) };
        if code < 0 {
            return Err(fail("stop", code));
        }
        let bus = std::mem::take(&mut self.info.bus);
        let started = self.start(pool, config);
        self.info.bus = bus;
        started.map_err(|(step, code)| Error::Device { device: self.name.clone(), step, reason: reason(code) })
    }

    fn start(&mut self, pool: &Pool, config: &PortConfig) -> Result<(), (&'static str, i32)> {
        let id = self.id;
        let check = |step, code: i32| if code < 0 { Err((step, code)) } else { Ok(()) };
        let device = device_info(id).ok_or(("describe", -libc::ENOTSUP))?;
        let mut info = describe(id, &device);
        let [most_rx, most_tx] = info.max_queues.map(|n| n.max(1));
        let [mut rx, mut tx] = [config.rx_queues.clamp(1, most_rx), config.tx_queues.clamp(1, most_tx)];
        let mut conf = ffi::rte_eth_conf::default();
        let offered = |capabilities: u64, wanted: u64| if capabilities & wanted == wanted { wanted } else { 0 };
        if config.rx_checksums {
            conf.rxmode.offloads = offered(device.rx_offload_capa, ffi::ISTHMUS_RX_CHECKSUMS);
        }
        conf.txmode.offloads = offered(device.tx_offload_capa, ffi::ISTHMUS_TX_UDP)
            | offered(device.tx_offload_capa, ffi::ISTHMUS_TX_IPV4);
        if rx > 1 && device.flow_type_rss_offloads != 0 {
            conf.rxmode.mq_mode = ffi::ISTHMUS_MQ_RSS;
            conf.rx_adv_conf.rss_conf.rss_hf = device.flow_type_rss_offloads & ffi::ISTHMUS_RSS;
        }
        let configure = |rx, tx| {
            // SAFETY: `conf` is a valid configuration, zeroed but for numbers; the port exists and is stopped.
            check("configure", unsafe { ffi::rte_eth_dev_configure(id, rx, tx, &raw const conf) })
        };
        let both = rx.max(tx);
        if let Err(e) = configure(rx, tx) {
            // Some drivers (tap) want as many queues of one kind as of the other.
            if rx == tx || both > most_rx.min(most_tx) {
                return Err(e);
            }
            configure(both, both)?;
            (rx, tx) = (both, both);
        }
        let own = self.driver_mtu();
        let mtu = config.mtu.map_or(own, |mtu| {
            // Not every driver can change it. Those that refuse keep their own; those that know none have that of the switch.
            // SAFETY: the port exists.
            match unsafe { ffi::rte_eth_dev_set_mtu(id, mtu) } {
                code if code == -libc::ENOTSUP => Some(mtu),
                _ => self.driver_mtu(),
            }
        });
        self.limit(mtu.map(u32::from));
        // The driver lets go of the old pool's packets when it sets its queues up.
        if let Behind::Driver(own, _) = &mut self.behind {
            *own = pool.clone();
        }
        let [many, few] = DESCRIPTORS;
        let fit = u32::from(rx) * u32::from(many) <= pool.available() / SHARE;
        let mut rx_descriptors = config.rx_descriptors.unwrap_or(if fit { many } else { few });
        let mut tx_descriptors = config.tx_descriptors;
        // SAFETY: changes the two numbers to what the device can have.
        check("choose descriptors", unsafe {
            ffi::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rx_descriptors, &raw mut tx_descriptors)
        })?;
        for q in 0..rx {
            // SAFETY: a null configuration means the driver's default; the pool is there for good.
            let code = unsafe {
                ffi::rte_eth_rx_queue_setup(id, q, rx_descriptors, u32::MAX, std::ptr::null(), pool.as_ptr())
            };
            check("set up receive queue", code)?;
        }
        for q in 0..tx {
            // SAFETY: a null configuration means the driver's default, with the offloads above.
            let code = unsafe { ffi::rte_eth_tx_queue_setup(id, q, tx_descriptors, u32::MAX, std::ptr::null()) };
            check("set up transmit queue", code)?;
        }
        // SAFETY: the port is configured.
        check("start", unsafe { ffi::rte_eth_dev_start(id) })?;
        // SAFETY: the port is started. A device that is always promiscuous may not know the call.
        let _ = unsafe { ffi::rte_eth_promiscuous_enable(id) };
        let mut mac = ffi::rte_ether_addr::default();
        // SAFETY: writes six bytes.
        check("read its address", unsafe { ffi::rte_eth_macaddr_get(id, &raw mut mac) })?;
        self.mac = Mac(mac.addr_bytes);
        self.used = [rx, tx].map(|n| (0..n).map(|_| AtomicBool::new(false)).collect());
        (info.queues, info.descriptors) = ([rx, tx], [rx_descriptors, tx_descriptors]);
        info.rx_checksums = conf.rxmode.offloads != 0;
        info.tx_udp = conf.txmode.offloads & ffi::ISTHMUS_TX_UDP != 0;
        BY_DEVICES.fetch_or(info.tx_udp, Ordering::Relaxed);
        info.tx_ipv4 = conf.txmode.offloads & ffi::ISTHMUS_TX_IPV4 != 0;
        self.info = info;
        Ok(())
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Receives up to [`BURST`] packets of a queue, and hands each over. Gives the number of packets that could not be put
    /// in one piece, because they do not fit into the pool's room, and are gone. None come of a queue that is not there, or
    /// that another thread receives from at this moment.
    #[inline]
    pub fn receive(&self, queue: u16, mut each: impl FnMut(Mbuf)) -> usize {
        let Some(_mine) = Use::of(self.used[0].get(usize::from(queue))) else { return 0 };
        match &self.behind {
            Behind::Driver(..) => {}
            Behind::Tap(tap) => return tap.receive(each),
            Behind::Socket(socket) => return socket.receive(each),
            Behind::Software(device) => return device.receive(each),
        }
        let mut raw = [std::ptr::null_mut(); BURST];
        let (n, broken) = self.receive_raw(queue, &mut raw);
        for m in raw.into_iter().take(n).filter_map(NonNull::new) {
            // SAFETY: the driver gave it away, and `isthmus_receive` made it one segment.
            each(unsafe { Mbuf::from_raw(m) });
        }
        broken
    }

    /// The same into a list, each as `wrap` makes it.
    #[inline]
    pub fn receive_into<T>(&self, queue: u16, to: &mut Vec<T>, wrap: impl Fn(Mbuf) -> T) -> usize {
        if !matches!(self.behind, Behind::Driver(..)) {
            return self.receive(queue, |m| to.push(wrap(m)));
        }
        let Some(_mine) = Use::of(self.used[0].get(usize::from(queue))) else { return 0 };
        let mut raw = [std::ptr::null_mut(); BURST];
        let (n, broken) = self.receive_raw(queue, &mut raw);
        let packet = |m| {
            // SAFETY: the driver gave it away, and `isthmus_receive` made it one segment; so it is not null.
            unsafe { Mbuf::from_raw(NonNull::new_unchecked(m)) }
        };
        to.extend(raw.into_iter().take(n).map(|m| wrap(packet(m))));
        broken
    }

    /// Has a driver receive; the caller has the queue for itself. Gives the number of packets, and of those that are gone.
    #[inline]
    fn receive_raw(&self, queue: u16, raw: &mut [*mut ffi::rte_mbuf; BURST]) -> (usize, usize) {
        let mut broken = 0;
        // SAFETY: the port is started, as it has this queue (`start`, `reconfigure`), which is this thread's; there is room for BURST
        // pointers and for one number.
        let n = unsafe { ffi::isthmus_receive(self.id, queue, raw.as_mut_ptr(), BURST as u16, &raw mut broken) };
        (usize::from(n), usize::from(broken))
    }

    /// Drops what is longer than the port sends; an IEEE 802.1Q tag does not count.
    #[cold]
    fn drop_long(&self, packets: &mut Vec<Mbuf>, most: usize) {
        let before = packets.len();
        packets.retain(|m| {
            let tagged = packet::be16(m.data(), 12) == Some(packet::ethertype::VLAN);
            m.len() <= most + if tagged { TAG } else { 0 }
        });
        self.too_long.fetch_add((before - packets.len()) as u64, Ordering::Relaxed);
    }

    /// Sets the priority, in the words of socket(7), of what a device of the kernel sends from now on: its queues find their classes
    /// by it. Other devices have none.
    pub fn set_priority(&self, priority: u32) {
        if let Behind::Socket(socket) = &self.behind {
            socket.set_priority(priority);
        }
    }

    /// Sends packets by a queue. Takes those that were sent; those left in `packets` did not fit into the queue, those that are
    /// too long are dropped. Checksums
    /// that were left to the device are made ready for it, or written here where it does not do that. Waits while another thread
    /// sends by the same queue.
    pub fn transmit(&self, queue: u16, packets: &mut Vec<Mbuf>) -> usize {
        let mut sent = 0;
        let (most, mut long) = (self.most.load(Ordering::Relaxed) as usize, false);
        for m in packets.iter_mut() {
            long |= m.len() > most;
            m.finish(self.info.tx_udp);
        }
        if long {
            self.drop_long(packets, most);
        }
        let Some(flag) = self.used[1].get(usize::from(queue)) else { return 0 };
        let _mine = loop {
            match Use::of(Some(flag)) {
                Some(mine) => break mine,
                None => std::hint::spin_loop(),
            }
        };
        match &self.behind {
            Behind::Driver(..) => {}
            Behind::Tap(tap) => {
                packets.iter().for_each(|m| tap.send(m));
                return packets.drain(..).len();
            }
            Behind::Socket(socket) => {
                let gone = socket.send(packets);
                return packets.drain(..gone).len();
            }
            Behind::Software(device) => {
                packets.iter().for_each(|m| device.send(m));
                return packets.drain(..).len();
            }
        }
        while let Some(chunk) = packets.get_mut(sent..).filter(|c| !c.is_empty()) {
            let most = chunk.len().min(BURST);
            // SAFETY: the port is started, as it has this queue, which is this thread's; the first `most` packets are valid, and a packet
            // is its pointer (`Mbuf` is transparent). DPDK takes over the first `n` of them, which are forgotten below; the others stay
            // where they are.
            let n = unsafe { ffi::isthmus_tx_burst(self.id, queue, chunk.as_mut_ptr().cast(), most as u16) };
            sent += usize::from(n);
            if usize::from(n) < most {
                break;
            }
        }
        // The driver owns the first `sent` packets now.
        packets.drain(..sent).for_each(|m| {
            m.into_raw();
        });
        sent
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !matches!(self.behind, Behind::Driver(..)) {
            return;
        }
        // Nobody finds it between its end and that of its being taken.
        let mut taken = taken();
        // SAFETY: the port exists, and no other handle to it does: only `attach` makes ports, of devices that no port has.
        unsafe { ffi::rte_eth_dev_stop(self.id) };
        // A bus waits for a device that it wants back, whoever had it attached.
        let leaves = self.attached || self.health() == Health::Removed;
        if let Some([bus, name]) = self.place.as_ref().filter(|_| leaves) {
            // SAFETY: as above; it is stopped, and used no more.
            unsafe { ffi::rte_eth_dev_close(self.id) };
            detach(bus, name);
        }
        taken.remove(&self.id);
    }
}
