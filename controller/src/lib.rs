//! The chassis controller: southbound and local OVSDB to OpenFlow.
//!
//! | module | holds |
//! |---|---|
//! | [`tables`] | the numbers of the OpenFlow tables |
//! | [`of`] | logical fields as OpenFlow fields |
//! | [`encode`] | logical actions as OpenFlow actions |
//! | [`model`] | what flows are derived from |
//! | [`presence`], [`local`] | what is on this chassis: local datapaths, zones, claims, announcements, patch ports, limits |
//! | [`conditions`] | which southbound rows are replicated |
//! | [`flows`] | the derivation |
//! | [`settings`] | the local configuration |
//! | [`chassis`], [`claims`], [`learned`] | what the controller writes into the southbound database |
//! | [`interfaces`] | what the integration bridge's interfaces say |
//! | [`plumbing`], [`zones`] | what it writes into the local database |
//! | [`plug`] | devices that it plugs into the integration bridge itself |
//! | [`routing`] | dynamic routing: the kernel's tables |
//! | [`plan`] | one transaction's parts, and what became of those that were refused |
//! | [`run`], [`request`] | the loop, and what the control socket asks it |

pub mod aging;
pub mod binding;
pub mod chassis;
pub mod claims;
pub mod conditions;
pub mod encode;
pub mod evpn;
pub mod flows;
pub mod ha_peers;
mod inject;
pub mod install;
pub mod interfaces;
pub mod learned;
pub mod local;
pub mod mirrors;
pub mod model;
pub mod of;
pub mod once;
pub mod openflow;
pub mod pinctrl;
pub mod plan;
pub mod plug;
pub mod plumbing;
pub mod presence;
pub mod queues;
pub mod request;
pub mod routing;
pub mod run;
pub mod settings;
pub mod switch_config;
pub mod tables;
pub mod tunnels;
pub mod uplinks;
pub mod virtual_ports;
pub mod zones;
