//! Changes to flow, group and meter tables.

use crate::action::Action;
use crate::field::FieldId;
use crate::flow_match::Match;
use crate::ids::{GroupId, MeterId, TableId};
use crate::port::PortNo;

/// Default flow priority.
pub const DEFAULT_PRIORITY: u16 = 0x8000;

/// What a flow-mod does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum FlowModCommand {
    /// Add, replacing an equal match and priority.
    #[default]
    Add = 0,
    /// Change the actions of all flows within the match.
    Modify = 1,
    /// Change the actions of the one flow.
    ModifyStrict = 2,
    /// Delete all flows within the match.
    Delete = 3,
    /// Delete the one flow.
    DeleteStrict = 4,
}

impl FlowModCommand {
    /// From the wire number.
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::Add,
            1 => Self::Modify,
            2 => Self::ModifyStrict,
            3 => Self::Delete,
            4 => Self::DeleteStrict,
            _ => return None,
        })
    }
}

/// Flow flags (OpenFlow 1.5 section 7.3.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FlowFlags(pub u16);

impl FlowFlags {
    /// Send a flow-removed message.
    pub const SEND_FLOW_REM: u16 = 1;
    /// Refuse overlapping entries.
    pub const CHECK_OVERLAP: u16 = 2;
    /// Reset counters on modification.
    pub const RESET_COUNTS: u16 = 4;
    /// Do not count packets.
    pub const NO_PACKET_COUNTS: u16 = 8;
    /// Do not count bytes.
    pub const NO_BYTE_COUNTS: u16 = 16;

    /// Whether a flag is set.
    pub fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }
}

/// A change to the flow tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowMod {
    /// What to do.
    pub command: FlowModCommand,
    /// Table; [`TableId::ALL`] for deletions in all.
    pub table: TableId,
    /// Priority.
    pub priority: u16,
    /// Cookie of added flows, or the one to look for.
    pub cookie: u64,
    /// Bits of the cookie that modified and deleted flows must share.
    pub cookie_mask: u64,
    /// The cookie that modified flows get (OpenFlow 1.0 alone has it); none: they keep theirs.
    pub new_cookie: Option<u64>,
    /// Seconds without use until the flow goes; 0 is never.
    pub idle_timeout: u16,
    /// Seconds until the flow goes; 0 is never.
    pub hard_timeout: u16,
    /// Eviction precedence.
    pub importance: u16,
    /// Flags.
    pub flags: FlowFlags,
    /// Deletions: only flows that output here ([`PortNo::ANY`] for all).
    pub out_port: PortNo,
    /// Deletions: only flows that use this group ([`GroupId::ANY`] for all).
    pub out_group: GroupId,
    /// Buffered packet to send through, `0xffffffff` for none.
    pub buffer_id: u32,
    /// A modification that meets no flow adds one, as in OpenFlow 1.0.
    pub or_add: bool,
    /// The match need not imply the prerequisites of what its actions read and write, as in OpenFlow 1.0: they have no
    /// effect on other packets.
    pub lenient: bool,
    /// Match.
    pub matches: Match,
    /// Actions and instructions; empty is `drop`.
    pub actions: Vec<Action>,
}

impl Default for FlowMod {
    fn default() -> Self {
        FlowMod {
            command: FlowModCommand::Add,
            table: TableId::FIRST,
            priority: DEFAULT_PRIORITY,
            cookie: 0,
            cookie_mask: 0,
            new_cookie: None,
            idle_timeout: 0,
            hard_timeout: 0,
            importance: 0,
            flags: FlowFlags(0),
            out_port: PortNo::ANY,
            out_group: GroupId::ANY,
            buffer_id: 0xffff_ffff,
            or_add: false,
            lenient: false,
            matches: Match::new(),
            actions: Vec::new(),
        }
    }
}

impl FlowMod {
    /// Adds a flow.
    pub fn add(table: TableId, priority: u16, cookie: u64, matches: Match, actions: Vec<Action>) -> Self {
        FlowMod { table, priority, cookie, matches, actions, ..Default::default() }
    }

    /// Deletes the flow with exactly this match and priority.
    pub fn delete_strict(table: TableId, priority: u16, matches: Match) -> Self {
        FlowMod { command: FlowModCommand::DeleteStrict, table, priority, matches, ..Default::default() }
    }

    /// Deletes every flow of every table.
    pub fn delete_all() -> Self {
        FlowMod { command: FlowModCommand::Delete, table: TableId::ALL, ..Default::default() }
    }
}

/// Kind of group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum GroupType {
    /// Every bucket.
    #[default]
    All = 0,
    /// One bucket by hash and weight.
    Select = 1,
    /// The only bucket.
    Indirect = 2,
    /// The first live bucket.
    FastFailover = 3,
}

impl GroupType {
    /// The text name.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Select => "select",
            Self::Indirect => "indirect",
            Self::FastFailover => "ff",
        }
    }

    /// From the wire.
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::All,
            1 => Self::Select,
            2 => Self::Indirect,
            3 => Self::FastFailover,
            _ => return None,
        })
    }
}

/// A bucket of a group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bucket {
    /// Bucket id.
    pub id: u32,
    /// Share, for `select`.
    pub weight: u16,
    /// Live while this port is up.
    pub watch_port: PortNo,
    /// Live while this group is.
    pub watch_group: GroupId,
    /// Actions.
    pub actions: Vec<Action>,
}

impl Bucket {
    /// A bucket with an id, a weight and actions.
    pub fn new(id: u32, weight: u16, actions: Vec<Action>) -> Self {
        Bucket { id, weight, watch_port: PortNo::ANY, watch_group: GroupId::ANY, actions }
    }
}

/// How a `select` group chooses (Netronome selection method property).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SelectionMethod {
    /// `hash`, `dp_hash`, or empty for the default.
    pub name: String,
    /// Parameter of the method.
    pub param: u64,
    /// Fields to hash, each with a mask.
    pub fields: Vec<(FieldId, u128)>,
}

/// A group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Group {
    /// Group id.
    pub id: GroupId,
    /// Kind.
    pub group_type: GroupType,
    /// Selection method.
    pub selection: SelectionMethod,
    /// Buckets.
    pub buckets: Vec<Bucket>,
}

/// What a group-mod does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum GroupModCommand {
    /// Add.
    Add = 0,
    /// Replace.
    Modify = 1,
    /// Delete.
    Delete = 2,
    /// Insert buckets.
    InsertBucket = 3,
    /// Remove buckets.
    RemoveBucket = 5,
    /// Add or replace (Open vSwitch).
    AddOrModify = 0x8000,
}

/// A change to the group table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMod {
    /// What to do.
    pub command: GroupModCommand,
    /// The group; for bucket commands only the id and the buckets count.
    pub group: Group,
    /// Where to insert, or what to remove: a bucket id, or 0xfffffffd first, 0xfffffffe last, 0xffffffff all.
    pub command_bucket_id: u32,
}

impl GroupMod {
    /// A change of a whole group.
    pub fn new(command: GroupModCommand, group: Group) -> Self {
        GroupMod { command, group, command_bucket_id: 0xffff_ffff }
    }
}

/// A band of a meter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MeterBand {
    /// Band type: 1 is drop, 2 dscp_remark.
    pub band_type: u16,
    /// Rate in the meter's unit.
    pub rate: u32,
    /// Burst size.
    pub burst: u32,
    /// Precedence level of dscp_remark.
    pub prec_level: u8,
}

/// A meter's configuration.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct MeterConfig {
    /// Meter id.
    pub id: MeterId,
    /// Flags: 1 kbps, 2 pktps, 4 burst, 8 stats.
    pub flags: u16,
    /// Bands.
    pub bands: Vec<MeterBand>,
}

impl MeterConfig {
    /// Rates are kilobits per second.
    pub const KBPS: u16 = 1;
    /// Rates are packets per second.
    pub const PKTPS: u16 = 2;
    /// Bands have a burst size.
    pub const BURST: u16 = 4;
    /// Collect statistics.
    pub const STATS: u16 = 8;
}

/// What a meter-mod does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum MeterModCommand {
    /// Add.
    Add = 0,
    /// Replace.
    Modify = 1,
    /// Delete.
    Delete = 2,
}

/// A change to the meter table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterMod {
    /// What to do.
    pub command: MeterModCommand,
    /// The meter.
    pub meter: MeterConfig,
}
