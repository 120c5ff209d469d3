//! The chassis controller: southbound and local OVSDB to OpenFlow.
//!
//! | module | holds |
//! |---|---|
//! | [`tables`] | the numbers of the OpenFlow tables |
//! | [`of`] | logical fields as OpenFlow fields |
//! | [`encode`] | logical actions as OpenFlow actions |
//! | [`local`] | which datapaths are local |
//! | [`model`] | what flows are derived from |
//! | [`flows`] | the derivation |

pub mod encode;
pub mod flows;
pub mod local;
pub mod model;
pub mod of;
pub mod tables;
