//! The switching engine: OpenFlow tables, lookup, translation, connection tracking and address translation, tunnels,
//! groups, meters, learning. It does no I/O and reads no clock: packets and the time come in, packets and events go out.

pub mod bond;
pub mod bridge;
pub mod buf;
mod cache;
mod check;
pub mod classifier;
pub mod conntrack;
mod continuation;
mod ctaction;
mod draft;
pub mod drops;
pub mod extract;
mod forward;
pub mod fragments;
mod group;
mod guide;
pub mod lane;
pub mod mac;
pub mod meter;
pub mod mirror;
mod room;
mod sample;
mod stretch;
mod switch;
mod trace;
pub mod tunnel;
mod walk;
mod xlate;

pub use bond::{Bond, Spread};
pub use bridge::{Bridge, Fragments, Port, PortKind, PortLink, PriorityTags, Told, VlanMode, is_live};
pub use buf::{PacketBuf, destination};
pub use cache::CacheStats;
pub use cache::show::Shown;
pub use conntrack::Conntrack;
pub use draft::{Draft, Replaced};
pub use drops::{DropCounters, DropReason};
pub use lane::{Flow, Lane, Sums, View};
pub use mirror::{Mirror, MirrorOutput};
pub use room::TableConfig;
pub use sample::{Departure, Glimpse, Passage, Sample};
pub use switch::{BridgeId, Event, MAX_IDLE, Outputs, Switch, SwitchError};
pub use trace::{TraceRequest, parse_ct_state};
pub use tunnel::{BfdPackets, Egress, Outer, Route, RouteRule, TunnelConfig, TunnelKind, Underlay};
