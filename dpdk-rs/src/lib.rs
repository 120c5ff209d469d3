//! DPDK: generated bindings and a safe layer over the part of it that a switch needs.
//!
//! ```text
//! Eal ──► Pool ──► Mbuf          Eal ──► Port ──► receive / transmit
//! ```
//! One [`Eal`] a process; pools and ports keep it alive by a reference. An [`Mbuf`] is owned: it is freed when it is
//! dropped, and [`Port::transmit`] takes those that it sent.

mod eal;
mod error;
mod ffi;
mod mbuf;
mod port;

pub use eal::Eal;
pub use error::Error;
pub use mbuf::{Mbuf, Pool};
pub use port::{BURST, LinkState, Port, PortConfig, Statistics};
