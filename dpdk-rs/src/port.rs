//! Ethernet devices.

use crate::error::reason;
use crate::{Eal, Error, Mbuf, Pool, ffi};
use std::ffi::CString;
use std::ptr::NonNull;

/// How a port is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors of each receive queue.
    pub rx_descriptors: u16,
    /// Descriptors of each transmit queue.
    pub tx_descriptors: u16,
    /// The largest frame's payload in bytes; none: the device's own.
    pub mtu: Option<u16>,
}

impl Default for PortConfig {
    fn default() -> PortConfig {
        PortConfig { rx_queues: 1, tx_queues: 1, rx_descriptors: 512, tx_descriptors: 512, mtu: None }
    }
}

/// A link's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LinkState {
    /// Whether it carries packets.
    pub up: bool,
    /// Megabits a second; 0 or `u32::MAX`: unknown.
    pub speed: u32,
    /// Full duplex.
    pub full_duplex: bool,
}

/// A port's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Statistics {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_errors: u64,
    pub rx_missed: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
}

/// The most packets that one call receives or sends.
pub const BURST: usize = 32;

/// A started Ethernet device. It is stopped, closed and detached when it is dropped.
#[derive(Debug)]
pub struct Port {
    id: u16,
    name: String,
    mac: [u8; 6],
    _pool: Pool,
    _eal: Eal,
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
        // SAFETY: the environment is initialised and all texts are C strings.
        let code = unsafe { ffi::rte_eal_hotplug_add(c_bus.as_ptr(), c_name.as_ptr(), c_arguments.as_ptr()) };
        if code < 0 {
            return Err(fail("attach", code));
        }
        let mut id = 0u16;
        // SAFETY: writes one number.
        let code = unsafe { ffi::rte_eth_dev_get_port_by_name(c_name.as_ptr(), &raw mut id) };
        if code < 0 {
            // SAFETY: the device was attached above.
            unsafe { ffi::rte_eal_hotplug_remove(c_bus.as_ptr(), c_name.as_ptr()) };
            return Err(fail("find its port", code));
        }
        // From here on dropping the port detaches it.
        let mut port = Port { id, name: name.to_string(), mac: [0; 6], _pool: pool.clone(), _eal: eal.clone() };
        port.start(pool, config).map_err(|(step, code)| fail(step, code))?;
        Ok(port)
    }

    fn start(&mut self, pool: &Pool, config: &PortConfig) -> Result<(), (&'static str, i32)> {
        let id = self.id;
        let check = |step, code: i32| if code < 0 { Err((step, code)) } else { Ok(()) };
        let conf = ffi::rte_eth_conf::default();
        // SAFETY: `conf` is a valid, zeroed configuration; the port exists and is stopped.
        check("configure", unsafe {
            ffi::rte_eth_dev_configure(id, config.rx_queues, config.tx_queues, &raw const conf)
        })?;
        if let Some(mtu) = config.mtu {
            // Not every driver can change it; those that cannot keep their own.
            // SAFETY: the port exists.
            let _ = unsafe { ffi::rte_eth_dev_set_mtu(id, mtu) };
        }
        for q in 0..config.rx_queues {
            // SAFETY: a null configuration means the driver's default; the pool outlives the port, which keeps it.
            let code = unsafe {
                ffi::rte_eth_rx_queue_setup(id, q, config.rx_descriptors, u32::MAX, std::ptr::null(), pool.as_ptr())
            };
            check("set up receive queue", code)?;
        }
        for q in 0..config.tx_queues {
            // SAFETY: a null configuration means the driver's default.
            let code = unsafe { ffi::rte_eth_tx_queue_setup(id, q, config.tx_descriptors, u32::MAX, std::ptr::null()) };
            check("set up transmit queue", code)?;
        }
        // SAFETY: the port is configured.
        check("start", unsafe { ffi::rte_eth_dev_start(id) })?;
        // SAFETY: the port is started. A device that is always promiscuous may not know the call.
        let _ = unsafe { ffi::rte_eth_promiscuous_enable(id) };
        let mut mac = ffi::rte_ether_addr::default();
        // SAFETY: writes six bytes.
        check("read its address", unsafe { ffi::rte_eth_macaddr_get(id, &raw mut mac) })?;
        self.mac = mac.addr_bytes;
        Ok(())
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Receives up to [`BURST`] packets of a queue, and hands each over. Gives the number of packets that could not be put
    /// in one piece, because they do not fit into the pool's room, and are gone.
    #[inline]
    pub fn receive(&self, queue: u16, mut each: impl FnMut(Mbuf)) -> usize {
        let mut raw = [std::ptr::null_mut(); BURST];
        let mut broken = 0;
        // SAFETY: the port is started, there is room for BURST pointers and for one number.
        let n = unsafe { ffi::isthmus_receive(self.id, queue, raw.as_mut_ptr(), BURST as u16, &raw mut broken) };
        for m in raw.into_iter().take(usize::from(n)).filter_map(NonNull::new) {
            // SAFETY: a valid mbuf of one segment that nobody else owns.
            each(unsafe { Mbuf::from_raw(m) });
        }
        usize::from(broken)
    }

    /// Sends packets by a queue. Takes those that were sent; those left in `packets` did not fit into the queue.
    pub fn transmit(&self, queue: u16, packets: &mut Vec<Mbuf>) -> usize {
        let mut sent = 0;
        while sent < packets.len() {
            let chunk = &packets[sent..packets.len().min(sent + BURST)];
            let mut pointers = [std::ptr::null_mut(); BURST];
            for (slot, m) in pointers.iter_mut().zip(chunk) {
                *slot = m.as_raw();
            }
            // SAFETY: the port is started; the first `chunk.len()` pointers are valid packets. DPDK takes over the first
            // `n` of them.
            let n = unsafe { ffi::isthmus_tx_burst(self.id, queue, pointers.as_mut_ptr(), chunk.len() as u16) };
            let whole = usize::from(n) == chunk.len();
            sent += usize::from(n);
            if !whole {
                break;
            }
        }
        // The driver owns the first `sent` packets now.
        packets.drain(..sent).for_each(|m| {
            m.into_raw();
        });
        sent
    }

    /// The link's state.
    pub fn link(&self) -> LinkState {
        let mut l = ffi::rte_eth_link::default();
        // SAFETY: writes a plain structure.
        if unsafe { ffi::rte_eth_link_get_nowait(self.id, &raw mut l) } < 0 {
            return LinkState::default();
        }
        LinkState {
            up: u32::from(l.link_status()) == ffi::RTE_ETH_LINK_UP,
            speed: l.link_speed,
            full_duplex: l.link_duplex() == 1,
        }
    }

    /// The counters.
    pub fn statistics(&self) -> Statistics {
        let mut s = ffi::rte_eth_stats::default();
        // SAFETY: writes a plain structure.
        if unsafe { ffi::rte_eth_stats_get(self.id, &raw mut s) } < 0 {
            return Statistics::default();
        }
        Statistics {
            rx_packets: s.ipackets,
            rx_bytes: s.ibytes,
            rx_errors: s.ierrors,
            rx_missed: s.imissed,
            tx_packets: s.opackets,
            tx_bytes: s.obytes,
            tx_errors: s.oerrors,
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: the port exists and no other handle to it does; closing detaches a virtual device as well.
        unsafe {
            ffi::rte_eth_dev_stop(self.id);
            ffi::rte_eth_dev_close(self.id);
        }
    }
}
