//! Who serves the gateway ports of an HA chassis group, and when a chassis takes such a port over or gives it up
//! (ovn-architecture(7), "High Availability for Distributed Gateways"). No I/O, no clock: the controller says what it
//! sees, and asks what follows.
//!
//! Two parts:
//!
//! - [`Takeover`] follows one chassis over time. From the BFD sessions of its tunnels, the connection to its own switch
//!   and the claims of others it derives a [`View`]: who is alive, whether this chassis is cut off, and whether it is still
//!   starting.
//! - [`View::active`] is a pure function of that view, the group's priorities and the chassis that holds the port. Chassis
//!   that see the same choose the same.
//!
//! A chassis claims a port where it is the active one, has the port's flows in its switch, and is not starting. It gives
//! the port up when another claims it, or when it is cut off.

pub mod sync;
mod takeover;
mod view;

pub use takeover::{Session, Takeover};
pub use view::{Member, View};
