//! The pipelines of logical routers.

pub mod base;
pub mod dhcp_relay;
pub mod input;
pub mod lb;
pub mod mtu;
pub mod nat;
pub mod policy;
pub mod port;
mod protocol;
pub mod resolve;
pub mod routes;
