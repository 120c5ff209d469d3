//! What the controller writes into databases: each module holds derived rows against those that are there.
//!
//! | southbound | holds |
//! |---|---|
//! | [`chassis`] | this chassis: Chassis, Encap, Chassis_Private |
//! | [`claims`], [`virtual_ports`] | Port_Binding |
//! | [`learned`], [`aging`] | neighbours and stations: MAC_Binding, FDB, and that they are in use |
//! | [`ha_peers`], [`uplinks`] | what gateways tell each other in `Chassis:other_config` |
//!
//! | local database | holds |
//! |---|---|
//! | [`plumbing`], [`tunnels`] | the integration bridge, patch ports, tunnels |
//! | [`mirrors`], [`queues`], [`switch_config`] | Mirror, QoS and Queue, Flow_Table and CT_Zone |
//! | [`zones`] | numbers of zones, kept in the bridge's `external_ids` |

pub mod aging;
pub mod chassis;
pub mod claims;
pub mod ha_peers;
pub mod learned;
pub mod mirrors;
pub mod plumbing;
pub mod queues;
pub mod switch_config;
pub mod tunnels;
pub mod uplinks;
pub mod virtual_ports;
pub mod zones;
