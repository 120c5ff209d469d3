//! OpenFlow 1.3 to 1.5 with the Nicira extensions that OVN and Open vSwitch use: fields, matches,
//! actions, messages, the text form of `ovs-ofctl`, and framed connections.
//!
//! The vocabulary is that of ovs-fields(7) and ovs-actions(7); the wire form follows the OpenFlow Switch
//! Specification 1.5.1.

pub mod action;
pub mod connection;
mod field;
mod field_table;
pub mod flow_match;
mod ids;
pub mod message;
pub mod mods;
pub mod of_error;
mod packed;
mod port;
pub mod text;
pub mod wire;

pub use action::{Action, NatRange, NatSpec};
pub use field::{ALL_FIELDS, FieldDef, FieldId, FlowKey, Format, Prereq, Subfield, WORDS, ones};
pub use flow_match::{Match, MatchWord};
pub use ids::{GroupId, MeterId, TableId};
pub use message::{Message, Version};
pub use mods::{
    Bucket, FlowMod, FlowModCommand, Group, GroupMod, GroupModCommand, GroupType, MeterBand, MeterConfig, MeterMod,
    MeterModCommand,
};
pub use of_error::OfError;
pub use packed::{PackedActions, PackedFlow, PackedMatch};
pub use port::PortNo;
pub use text::ParseError;
