//! The threads that poll devices and switch packets (poll mode driver threads, as in Open vSwitch with DPDK).
//!
//! | file | holds |
//! |---|---|
//! | [`main`] | the main PMD thread, which owns the switch and all devices |
//! | `round` | which queues are polled when |
//! | [`mod@start`] | its start with DPDK, and its end |
//! | `timers` | what it does when its time has come: messages of BFD, LACP and others, the liveness of ports |
//! | `deliver` | what becomes of the packets and events that the switch produced |
//! | [`fast`] | the other PMD threads, which only repeat cached flows |
//! | [`handle`] | how other threads have the main one do something |
//! | [`devices`] | devices: who polls which queue, what limits them |
//! | [`conn_sync`] | connections that other gateways are told of, and tell |
//! | `next_hops` | next hops of tunnels: who is asked for, which packets wait |
//! | [`packet_in_limit`] | how many packets go to controllers |
//! | `dump` | cached flows of all threads, taken a few at a time |
//! | `flow_log` | the log of flows that are put into the cache |
//! | [`ipfix_statistics`] | what exporters of IPFIX have counted |
//! | [`sampler`] | which packets are observed |
//! | [`mod@port_statistics`] | counters of ports |
//! | [`idle`] | priority, processors and sleep of such threads |

pub mod conn_sync;
mod connections;
mod deliver;
pub mod devices;
mod dump;
pub mod fast;
mod flow_log;
pub mod handle;
pub mod idle;
pub mod ipfix_statistics;
pub mod main;
mod next_hops;
pub mod packet_in_limit;
pub mod port_statistics;
mod round;
pub mod sampler;
pub mod start;
mod timers;

pub use devices::released;
pub(crate) use handle::Jobs;
pub use handle::{Command, Handle, Job, PmdEnded};
pub use idle::processors;
pub(crate) use idle::{IdleBackoff, run_on, sleep_exactly};
pub use main::{CollectorInput, ControllerEvent, Counters, MainPmd, PathChange};
pub use port_statistics::{custom_counters, port_statistics};
pub(crate) use sampler::PacketSampler;
pub use start::{Running, StartError, start, stop};
