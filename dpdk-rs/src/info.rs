//! What a device is and does: `rte_eth_dev_info`, link, counters.

use crate::port::Behind;
use crate::{Health, Port, ffi};
use std::ffi::CStr;

/// The speed that the kernel gives taps, in megabits a second.
const TAP_SPEED: u32 = 10_000;

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
    pub rx_no_memory: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
}

/// What is known of a device, and how it was set up.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PortInfo {
    /// DPDK's number of the port.
    pub number: u16,
    /// The driver (`net_tap`).
    pub driver: String,
    /// The bus (`pci`, `vdev`) and, where the driver says it, what the bus knows of the device.
    pub bus: String,
    /// The processor socket that it is near; negative: any.
    pub socket: i32,
    /// The smallest buffer for received packets, in bytes.
    pub min_rx_buffer: u32,
    /// The longest packet, in bytes.
    pub max_rx_packet: u32,
    /// Queues that it can have: receive, transmit.
    pub max_queues: [u16; 2],
    /// Addresses that it can filter: exactly, by hash.
    pub max_macs: [u32; 2],
    /// Virtual functions at most.
    pub max_vfs: u16,
    /// VMDq pools at most.
    pub max_vmdq_pools: u16,
    /// Queues that it has: receive, transmit.
    pub queues: [u16; 2],
    /// Descriptors of each queue: receive, transmit.
    pub descriptors: [u16; 2],
    /// It says of received packets whether their checksums hold.
    pub rx_checksums: bool,
    /// It can finish UDP checksums of packets to send, and IPv4 header checksums.
    pub tx_udp: bool,
    /// It can finish IPv4 header checksums.
    pub tx_ipv4: bool,
}

/// A C text of a driver; empty where there is none.
///
/// # Safety
/// `text` is null or a C string that outlives the call.
unsafe fn text(text: *const libc::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A device's description as DPDK gives it; `None` for a device that gives none.
pub(crate) fn device_info(id: u16) -> Option<ffi::rte_eth_dev_info> {
    let mut d = ffi::rte_eth_dev_info::default();
    // SAFETY: writes a plain structure.
    (unsafe { ffi::rte_eth_dev_info_get(id, &raw mut d) } == 0).then_some(d)
}

/// What the description says, without what was asked for.
pub(crate) fn describe(id: u16, d: &ffi::rte_eth_dev_info) -> PortInfo {
    PortInfo {
        number: id,
        // SAFETY: the driver's name is a constant of the driver.
        driver: unsafe { text(d.driver_name) },
        bus: String::new(),
        // SAFETY: reads a number of a port that exists.
        socket: unsafe { ffi::rte_eth_dev_socket_id(id) },
        min_rx_buffer: d.min_rx_bufsize,
        max_rx_packet: d.max_rx_pktlen,
        max_queues: [d.max_rx_queues, d.max_tx_queues],
        max_macs: [d.max_mac_addrs, d.max_hash_mac_addrs],
        max_vfs: d.max_vfs,
        max_vmdq_pools: d.max_vmdq_pools,
        ..PortInfo::default()
    }
}

impl Port {
    /// What is known of the device, and how it was set up.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// The link's state.
    pub fn link(&self) -> LinkState {
        match &self.behind {
            Behind::Driver(..) if self.health() != Health::Working => return LinkState::default(),
            Behind::Driver(..) => {}
            Behind::Software(device) => return LinkState { up: device.up(), ..LinkState::default() },
            _ => return LinkState { up: true, speed: TAP_SPEED, full_duplex: true },
        }
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

    /// The largest payload of a frame that the driver takes.
    pub(crate) fn driver_mtu(&self) -> Option<u16> {
        let mut mtu = 0;
        // SAFETY: writes one number.
        (unsafe { ffi::rte_eth_dev_get_mtu(self.id, &raw mut mtu) } == 0).then_some(mtu)
    }

    /// The counters.
    pub fn statistics(&self) -> Statistics {
        if let Behind::Tap(tap) = &self.behind {
            let [rx_packets, rx_bytes, tx_packets, tx_bytes, tx_errors] =
                tap.counters.each_ref().map(|c| c.load(std::sync::atomic::Ordering::Relaxed));
            return Statistics { rx_packets, rx_bytes, tx_packets, tx_bytes, tx_errors, ..Statistics::default() };
        }
        if let Behind::Software(device) = &self.behind {
            let [rx_packets, rx_bytes, tx_packets, tx_bytes, rx_no_memory] =
                device.counters.each_ref().map(|c| c.load(std::sync::atomic::Ordering::Relaxed));
            return Statistics { rx_packets, rx_bytes, tx_packets, tx_bytes, rx_no_memory, ..Statistics::default() };
        }
        if let Behind::Socket(socket) = &self.behind {
            let rx_missed = socket.missed();
            let [rx_packets, rx_bytes, tx_packets, tx_bytes, tx_errors, _] =
                socket.counters.each_ref().map(|c| c.load(std::sync::atomic::Ordering::Relaxed));
            return Statistics {
                rx_packets,
                rx_bytes,
                rx_missed,
                tx_packets,
                tx_bytes,
                tx_errors,
                ..Statistics::default()
            };
        }
        if self.health() != Health::Working {
            return Statistics::default();
        }
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
            rx_no_memory: s.rx_nombuf,
            tx_packets: s.opackets,
            tx_bytes: s.obytes,
            tx_errors: s.oerrors,
        }
    }

    /// The driver's own counters, by its names.
    pub fn extended_statistics(&self) -> Vec<(String, u64)> {
        if !matches!(self.behind, Behind::Driver(..)) || self.health() != Health::Working {
            return Vec::new();
        }
        // SAFETY: asks with no room for how many there are.
        let n = unsafe { ffi::rte_eth_xstats_get(self.id, std::ptr::null_mut(), 0) };
        let Ok(room) = usize::try_from(n) else { return Vec::new() };
        let mut names = vec![ffi::rte_eth_xstat_name::default(); room];
        let mut values = vec![ffi::rte_eth_xstat::default(); room];
        // SAFETY: there is room for as many as are said.
        let named = unsafe { ffi::rte_eth_xstats_get_names(self.id, names.as_mut_ptr(), room as u32) };
        // SAFETY: as above.
        let got = unsafe { ffi::rte_eth_xstats_get(self.id, values.as_mut_ptr(), room as u32) };
        let (Ok(named), Ok(got)) = (usize::try_from(named), usize::try_from(got)) else { return Vec::new() };
        names.truncate(named);
        let name = |v: &ffi::rte_eth_xstat| {
            let bytes = names.get(usize::try_from(v.id).ok()?)?.name.map(|c| c as u8);
            Some(CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy().into_owned())
        };
        values.iter().take(got).filter_map(|v| Some((name(v)?, v.value))).collect()
    }
}
