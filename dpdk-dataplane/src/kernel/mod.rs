//! What the kernel says of the machine and its network.
//!
//! | file | holds |
//! |---|---|
//! | [`netlink`] | links, addresses, routes, rules and neighbours, followed by netlink; changes of links |
//! | [`tc`] | queues and policers of links, by netlink |
//! | [`sysfs`] | speed and counters of devices in /sys |
//! | [`os_statistics`] | `Open_vSwitch:statistics` |
//! | [`dpdk_rundir`] | DPDK's run-time directories |

pub mod dpdk_rundir;
pub mod netlink;
pub mod os_statistics;
pub mod sysfs;
pub mod tc;

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The address from which the kernel would send to `target`.
pub fn source_address(target: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    socket.local_addr().ok().map(|a| a.ip())
}
