//! What the kernel and the machine say.
//!
//! | file | holds |
//! |---|---|
//! | [`netlink`] | links, addresses, routes, rules and neighbours, followed by netlink; changes of links |
//! | [`sysfs`] | speed and counters of devices in /sys |
//! | [`os_statistics`] | `Open_vSwitch:statistics` |
//! | [`dpdk_rundir`] | DPDK's run-time directories |

pub mod dpdk_rundir;
pub mod netlink;
pub mod os_statistics;
pub mod sysfs;
