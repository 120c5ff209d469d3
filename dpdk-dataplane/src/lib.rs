//! The dataplane daemon: takes the place of ovs-vswitchd.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | what the Open_vSwitch database asks for, parsed |
//! | [`control`] | brings the running switch into line with it and writes what became of it |
//! | [`worker`] | the thread that polls devices and owns the switch |
//! | [`bfd`], [`bond`], [`neighbour`] | sessions, bonds and next hops, in the worker |
//! | [`device`] | network devices, [`frame`] their packets |
//! | [`host`] | links, addresses, routes and neighbours of the kernel |
//! | [`openflow`] | management sockets of the bridges |
//! | [`commands`] | the control socket |
//! | [`limit`] | how many packets go to controllers |
//! | [`collect`] | what collectors hear of packets: [`ipfix`], [`sflow`], [`netflow`] |
//! | [`kernel`] | what /sys says of devices |
//! | [`system`] | how the machine is |
//! | [`police`], [`shape`] | what ports take in and give out at most; [`qos`] reads what is asked for |
//! | [`runtime`] | DPDK's run-time directories |

pub mod commands;
pub mod config;
pub mod export;
pub mod kernel;
pub mod metrics;
pub mod openflow;
pub mod pmd;
pub mod ports;
pub mod reconcile;
