//! The chassis controller: southbound and local OVSDB to OpenFlow.
//!
//! | module | holds |
//! |---|---|
//! | [`tables`] | the numbers of the OpenFlow tables |
//! | [`of`] | logical fields as OpenFlow fields |
//! | [`encode`] | logical actions as OpenFlow actions |
//! | [`model`] | what flows are derived from |
//! | [`local`] | which datapaths are local |
//! | [`flows`] | the derivation |
//! | [`settings`] | the local configuration |
//! | [`chassis`], [`binding`] | what the controller writes into the southbound database |
//! | [`plumbing`], [`zones`] | what it writes into the local database |

pub mod binding;
pub mod chassis;
pub mod encode;
pub mod flows;
pub mod install;
pub mod local;
pub mod model;
pub mod of;
pub mod openflow;
pub mod pinctrl;
pub mod plumbing;
pub mod run;
pub mod settings;
pub mod tables;
pub mod zones;
