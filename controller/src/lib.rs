//! The chassis controller: southbound and local OVSDB to OpenFlow.
//!
//! | room | holds |
//! |---|---|
//! | [`encode`] | logical actions and fields as OpenFlow, the numbers of tables |
//! | [`plan`] | one transaction's parts, and what became of those that were refused |
//! | [`input`] | what is derived from: the southbound database, the local one, the operator's settings |
//! | [`units`] | what is derived: flows, and what is on this chassis |
//! | [`rows`] | what it writes into both databases |
//! | [`openflow`] | the connections to the switch, and the bundles that bring its tables into line |
//! | [`pinctrl`] | packets that come from the switch, and those that it is to send |
//! | [`routing`], [`evpn`] | the kernel's side of dynamic routing and of EVPN |
//! | [`plug`] | devices that it plugs into the integration bridge itself |
//! | [`run`] | the loop, and what the control socket asks it |
//!
//! `tests/imports.rs` says which room may use which.

pub mod encode;
pub mod evpn;
pub mod input;
pub mod openflow;
pub mod pinctrl;
pub mod plan;
pub mod plug;
pub mod routing;
pub mod rows;
pub mod run;
pub mod units;
