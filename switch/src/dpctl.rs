//! Cached flows and what they do in the words of ovs-dpctl(8), which dumps, logs and traces use.

pub(crate) mod actions;
pub(crate) mod flow;
pub(crate) mod names;
pub(crate) mod tunnel;

pub(crate) use actions::{changes, hexadecimal, without_last_copy};
pub use names::of_datapath as name_datapath_ports;
pub(crate) use tunnel::{Pushed, pushed_headers};
