//! What is derived, in units that run again when what they read changes.
//!
//! | module | holds |
//! |---|---|
//! | [`flows`] | the flows, groups and meters of logical flows, ports, multicast groups, neighbours, tunnels |
//! | [`presence`] | what is here besides: local datapaths, zones, claims, announcements, tunnels, mirrors |
//! | [`binding`] | as what this chassis has a port, who serves a gateway port |
//! | [`local`] | which datapaths lead to which |

pub mod binding;
pub mod flows;
pub mod local;
pub mod presence;
