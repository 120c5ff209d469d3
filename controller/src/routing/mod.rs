//! Dynamic routing (`options:dynamic-routing*`, ovn-nb(5)): prefixes of a router go into a routing table of the kernel, where a routing
//! daemon reads them, and what routing daemons put there goes into the southbound database.
//!
//! ```text
//!   Port_Binding, Advertised_Route ─► rows ─► presence ─► wish ─► kernel (netlink) ─► table, VRF
//!                                                           │          │ difference
//!   Learned_Route ◄─────────────────── learned ◄────────────┴──────────┘
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`rows`] | what rows say of one port, and of one prefix |
//! | [`wish`] | what the kernel's tables are to hold, and who learns from them |
//! | [`difference`] | what is between a table and the wish, without I/O |
//! | [`kernel`] | reading, changing and watching the kernel's tables |
//! | [`kernel_task`] | the task that does so, when there is something to do; EVPN has one as well |
//! | [`learned`] | `Learned_Route` rows |

pub mod difference;
pub mod kernel;
pub mod kernel_task;
pub mod learned;
pub mod rows;
pub mod wish;

pub use wish::{Filter, Learner, Wish};
