//! OpenFlow messages.

mod async_config;
mod decode;
pub use decode::Header;
pub use encode::TooLong;
pub(crate) mod encode;
mod ipfix;
mod length;
pub mod monitor;
mod nicira;
mod of10;
mod packet;
mod port;
mod queue;
mod stats;
pub mod table_features;

pub use async_config::{AsyncConfig, AsyncMasks};
pub use ipfix::IpfixStats;
pub use monitor::{FlowEvent, FlowMonitor, FlowUpdate};
pub use packet::{PacketIn, PacketOut};
pub use port::{PortDesc, PortStats, PortStatus, port_features};
pub use queue::{QUEUE_ALL, QueueStats};
pub use stats::{
    DescStats, FlowStats, FlowStatsRequest, GroupFeatures, GroupStats, MeterFeatures, MeterStats, MultipartReply,
    MultipartRequest, TableStats,
};
pub use table_features::TableFeatures;

use crate::flow_match::Match;
use crate::ids::TableId;
use crate::mods::{FlowMod, GroupMod, MeterMod};
use crate::port::PortNo;
use std::net::IpAddr;

/// OpenFlow versions that we speak, by wire number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Version {
    /// 1.0, with Nicira's extensions.
    Of10 = 1,
    /// 1.1.
    Of11 = 2,
    /// 1.2.
    Of12 = 3,
    /// 1.3.
    Of13 = 4,
    /// 1.4.
    Of14 = 5,
    /// 1.5.
    Of15 = 6,
}

impl Version {
    /// From the wire number.
    pub fn from_u8(v: u8) -> Option<Version> {
        Some(match v {
            1 => Version::Of10,
            2 => Version::Of11,
            3 => Version::Of12,
            4 => Version::Of13,
            5 => Version::Of14,
            6 => Version::Of15,
            _ => return None,
        })
    }
}

/// Answer to a features request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Datapath id.
    pub datapath_id: u64,
    /// Packets that can be buffered.
    pub n_buffers: u32,
    /// Number of tables.
    pub n_tables: u8,
    /// Auxiliary connection number.
    pub auxiliary_id: u8,
    /// Capability bits.
    pub capabilities: u32,
    /// Ports (OpenFlow 1.0 to 1.2; newer versions ask for them apart).
    pub ports: Vec<PortDesc>,
}

/// Switch configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchConfig {
    /// Fragment handling: 0 normal, 1 drop, 2 reassemble, 3 nx-match.
    pub flags: u16,
    /// Bytes of missed packets to send.
    pub miss_send_len: u16,
}

/// A flow that went.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowRemoved {
    /// Table.
    pub table: TableId,
    /// 0 idle, 1 hard, 2 delete, 3 group delete, 4 meter delete.
    pub reason: u8,
    /// Priority.
    pub priority: u16,
    /// Idle timeout, seconds.
    pub idle_timeout: u16,
    /// Hard timeout, seconds.
    pub hard_timeout: u16,
    /// Cookie.
    pub cookie: u64,
    /// Age, seconds.
    pub duration_sec: u32,
    /// Age, nanoseconds beyond.
    pub duration_nsec: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Match.
    pub matches: Match,
}

impl FlowRemoved {
    /// The reason as a version has it: before 1.4 a meter that was deleted is none.
    pub(crate) fn reason_in(&self, v: Version) -> u8 {
        if self.reason == 4 && v < Version::Of14 { 2 } else { self.reason }
    }
}

/// A controller's role: 0 no change, 1 equal, 2 master, 3 slave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Role {
    /// Role.
    pub role: u32,
    /// Controller number (OpenFlow 1.5).
    pub short_id: u16,
    /// Generation.
    pub generation_id: u64,
}

/// Steps of a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum BundleCommand {
    /// Open.
    OpenRequest = 0,
    /// Opened.
    OpenReply = 1,
    /// Close.
    CloseRequest = 2,
    /// Closed.
    CloseReply = 3,
    /// Commit.
    CommitRequest = 4,
    /// Committed.
    CommitReply = 5,
    /// Discard.
    DiscardRequest = 6,
    /// Discarded.
    DiscardReply = 7,
}

/// Atomic bundle flag.
pub const BUNDLE_ATOMIC: u16 = 1;
/// Ordered bundle flag.
pub const BUNDLE_ORDERED: u16 = 2;

/// A bundle control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BundleControl {
    /// Bundle.
    pub id: u32,
    /// Step.
    pub command: BundleCommand,
    /// [`BUNDLE_ATOMIC`], [`BUNDLE_ORDERED`].
    pub flags: u16,
}

/// A change of a table's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableMod {
    /// The table, [`TableId::ALL`] for all.
    pub table: TableId,
    /// Bits of the version's configuration (OFPTC_*).
    pub config: u32,
    /// From OpenFlow 1.4 on: the percentages of free room at which events are told, falling and rising.
    pub vacancy: Option<[u8; 2]>,
}

/// The state of a table's room has changed (OFPT_TABLE_STATUS), from OpenFlow 1.4 on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableStatus {
    /// OFPTR_VACANCY_DOWN or OFPTR_VACANCY_UP.
    pub reason: u8,
    /// The table's description (OFPMP_TABLE_DESC).
    pub desc: Vec<u8>,
}

/// A message within a bundle. Inner and outer transaction ids are the same.
#[derive(Clone, PartialEq, Debug)]
pub struct BundleAdd {
    /// Bundle.
    pub id: u32,
    /// Flags.
    pub flags: u16,
    /// Flow, group, meter or port change, or packet-out.
    pub message: Box<Message>,
}

/// One Geneve option mapped to a `tun_metadata` field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TlvMap {
    /// Option class.
    pub class: u16,
    /// Option type.
    pub kind: u8,
    /// Length in bytes.
    pub len: u8,
    /// N of `tun_metadataN`.
    pub index: u16,
}

/// A change of the option map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTableMod {
    /// 0 add, 1 delete, 2 clear.
    pub command: u16,
    /// Entries.
    pub maps: Vec<TlvMap>,
}

/// The option map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlvTable {
    /// Bytes of options at most.
    pub max_option_space: u32,
    /// Fields at most.
    pub max_fields: u16,
    /// Entries.
    pub maps: Vec<TlvMap>,
}

/// One direction of a connection to flush; absent parts match all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CtTuple {
    /// Source.
    pub src: Option<IpAddr>,
    /// Destination.
    pub dst: Option<IpAddr>,
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
    /// ICMP id.
    pub icmp_id: Option<u16>,
    /// ICMP type.
    pub icmp_type: Option<u8>,
    /// ICMP code.
    pub icmp_code: Option<u8>,
}

/// Which connections to flush.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CtFlush {
    /// IP protocol, 0 for all.
    pub proto: u8,
    /// Zone.
    pub zone: Option<u16>,
    /// Original direction.
    pub original: CtTuple,
    /// Reply direction.
    pub reply: CtTuple,
    /// Mark and mask.
    pub mark: Option<(u32, u32)>,
    /// Label and mask.
    pub label: Option<(u128, u128)>,
}

/// A change of a port's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortMod {
    /// Port.
    pub port: crate::PortNo,
    /// Its address, as a check.
    pub hw_addr: ::packet::Mac,
    /// Configuration bits.
    pub config: u32,
    /// Bits to change.
    pub mask: u32,
}

/// An OpenFlow message.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// Hello, with the bitmap of versions (bit 4 is 1.3), if given.
    Hello(Option<u32>),
    /// Error: type, code, start of the offending message.
    Error {
        /// Error type.
        error_type: u16,
        /// Error code.
        code: u16,
        /// At least 64 bytes of the offending message.
        data: Vec<u8>,
    },
    /// Echo request.
    EchoRequest(Vec<u8>),
    /// Echo reply.
    EchoReply(Vec<u8>),
    /// Features request.
    FeaturesRequest,
    /// Features reply.
    FeaturesReply(Features),
    /// Get-config request.
    GetConfigRequest,
    /// Get-config reply.
    GetConfigReply(SwitchConfig),
    /// Set-config.
    SetConfig(SwitchConfig),
    /// Standard packet-in.
    PacketIn(PacketIn),
    /// NXT_PACKET_IN.
    NxPacketIn(PacketIn),
    /// NXT_PACKET_IN2.
    PacketIn2(PacketIn),
    /// NXT_RESUME.
    Resume(PacketIn),
    /// Packet-out.
    PacketOut(PacketOut),
    /// Flow removed.
    FlowRemoved(FlowRemoved),
    /// OFPT_FLOW_REMOVED of OpenFlow 1.0 for peers that have not asked for Nicira's matches (NXT_SET_FLOW_FORMAT): what
    /// its match cannot say is left out. It is read as [`Message::FlowRemoved`], and the same as that in later
    /// versions.
    FlowRemovedOf10(FlowRemoved),
    /// Port status.
    PortStatus(PortStatus),
    /// Flow-mod.
    FlowMod(FlowMod),
    /// Group-mod.
    GroupMod(GroupMod),
    /// Meter-mod.
    MeterMod(MeterMod),
    /// Port-mod.
    PortMod(PortMod),
    /// Table-mod: table and configuration.
    TableMod(TableMod),
    /// Takes a flow monitor off (NXT_FLOW_MONITOR_CANCEL).
    FlowMonitorCancel(u32),
    /// Multipart request.
    MultipartRequest(MultipartRequest),
    /// Multipart reply; `more` follow.
    MultipartReply {
        /// Further parts follow.
        more: bool,
        /// This part.
        body: MultipartReply,
    },
    /// Barrier request.
    BarrierRequest,
    /// Barrier reply.
    BarrierReply,
    /// The queues of a port; 1.4 and later ask for them by multipart.
    QueueGetConfigRequest(PortNo),
    /// The answer: the port and its queues.
    QueueGetConfigReply(PortNo, Vec<u32>),
    /// Role request.
    RoleRequest(Role),
    /// Role reply.
    RoleReply(Role),
    /// Events of tables' room.
    TableStatus(TableStatus),
    /// The role became another one, and why: 0, another controller became primary (OpenFlow 1.4 section 7.4.4).
    RoleStatus(Role, u8),
    /// Get-async request.
    GetAsyncRequest,
    /// Get-async reply, uninterpreted.
    GetAsyncReply(Vec<u8>),
    /// Set-async, uninterpreted.
    SetAsync(Vec<u8>),
    /// The same before 1.4 with the body of 1.4 (NXT_SET_ASYNC_CONFIG2).
    SetAsync2(Vec<u8>),
    /// A change of a group or a meter that another controller has asked for (OpenFlow 1.4 section 7.4.6).
    RequestForward(Box<Message>),
    /// Bundle control.
    BundleControl(BundleControl),
    /// Bundle add.
    BundleAdd(BundleAdd),
    /// NXT_SET_FLOW_FORMAT.
    SetFlowFormat(u32),
    /// NXT_SET_PACKET_IN_FORMAT: 0 standard, 1 NXT_PACKET_IN, 2 NXT_PACKET_IN2.
    SetPacketInFormat(u32),
    /// NXT_FLOW_MOD_TABLE_ID: flow-mods of OpenFlow 1.0 name their table.
    FlowModTableId(bool),
    /// NXT_SET_CONTROLLER_ID.
    SetControllerId(u16),
    /// NXT_TLV_TABLE_MOD.
    TlvTableMod(TlvTableMod),
    /// NXT_TLV_TABLE_REQUEST.
    TlvTableRequest,
    /// NXT_TLV_TABLE_REPLY.
    TlvTableReply(TlvTable),
    /// NXT_CT_FLUSH_ZONE.
    CtFlushZone(u16),
    /// NXT_CT_FLUSH.
    CtFlush(CtFlush),
}
