//! What a translation depends on beside flow tables. A change of it makes those cached flows stale that asked for it.

use crate::ids::BridgeId;
use openflow_rs::{GroupId, MeterId, PortNo};
use std::net::IpAddr;

/// Something beside the tables that a walk asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Dependency {
    /// A group of a bridge.
    Group(BridgeId, GroupId),
    /// Whether a port of a bridge carries packets.
    Live(BridgeId, PortNo),
    /// A meter of a bridge.
    Meter(BridgeId, MeterId),
    /// Which ports of a bridge want which groups.
    Multicast(BridgeId),
    /// A neighbour of the network below.
    Neighbour(IpAddr),
    /// The routes of the network below.
    Routes,
}
