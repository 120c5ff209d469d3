//! The switching engine: OpenFlow tables, lookup, translation, connection tracking and address translation, tunnels,
//! groups, meters, learning. It does no I/O and reads no clock: packets and the time come in, packets and events go
//! out.

pub mod bridge;
pub mod buf;
pub mod classifier;
pub mod conntrack;
mod datapath;
mod dependency;
mod dpctl;
pub mod drops;
mod events;
pub mod extract;
pub mod fastpath;
mod flowcache;
mod ids;
mod netflow;
mod stamps;
mod trace;
pub mod tunnel;
mod xlate;

pub use bridge::bond::{Bond, Spread};
pub use bridge::eviction::TableConfig;
pub use bridge::hidden::{InBand, InBandRemote};
pub use bridge::mirror::{Mirror, MirrorOutput};
pub use bridge::misses::TableMiss;
pub use bridge::queue_marks::QueueMarks;
pub use bridge::snooping::{Snooping, SnoopingSettings};
pub use bridge::transaction::{PacketOutThen, Replaced, TableTransaction, TablesThen};
pub use bridge::validate::MOST_METERS;
pub use bridge::{
    BfdPackets, Bridge, CcmPackets, FlowUpdate, Fragments, Port, PortKind, PortLink, PriorityTags, StpState, VlanMode,
    is_live,
};
pub use bridge::{bond, mac, meter};
pub use buf::PacketBuf;
pub use conntrack::reassembly as fragments;
pub use conntrack::{Conntrack, SharedConntrack};
pub use datapath::{MAX_IDLE, Switch};
pub use dpctl::name_datapath_ports;
pub use drops::{DropCounters, DropReason};
pub use events::{Departure, Event, Glimpse, HeldPacket, Miss, Outputs, Passage, Sample};
pub use fastpath::{FastPath, Flow, News, Sums, Ticket, Upcall, View};
pub use flowcache::CacheStats;
pub use flowcache::dump::{DumpPart, Installed, Met, Path, Shown, merge_flows};
pub use flowcache::own::KnownWay;
pub use ids::{BridgeId, DeviceId, Target};
pub use netflow::{Leaves, NetflowCount, NetflowFlow, NetflowKey};
pub use trace::{TraceRequest, parse_ct_state};
pub use tunnel::{
    Egress, ErspanOptions, FlowLabel, Outer, PacketMode, Route, RouteRule, SourcePorts, TunnelConfig, TunnelKey,
    TunnelKind, Underlay, metadata_field,
};
pub use xlate::backer::{Backer, SwitchError};
pub use xlate::limit_text;
pub use xlate::port_numbers::PortNumbers;
