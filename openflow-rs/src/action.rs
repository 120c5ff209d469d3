//! Actions and instructions, as ovs-actions(7) names them.
//!
//! Instructions (`goto_table`, `write_metadata`, `meter`, `clear_actions`, `write_actions`) are variants of
//! [`Action`], so a flow is one list, as it is in text; the wire codec parts them again.

use crate::field::{FieldId, Subfield};
use crate::flow_match::Match;
use crate::ids::{GroupId, MeterId, TableId};
use crate::port::PortNo;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// An address and port range for [`NatSpec`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct NatRange {
    /// Lowest and highest address.
    pub addr: Option<(IpAddr, IpAddr)>,
    /// Lowest and highest port.
    pub port: Option<(u16, u16)>,
}

/// What `nat(...)` in a `ct` action does.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct NatSpec {
    /// Translate the source.
    pub src: bool,
    /// Translate the destination.
    pub dst: bool,
    /// To what; empty for bare `nat(src)`.
    pub range: NatRange,
    /// Keep a mapping across restarts where possible.
    pub persistent: bool,
    /// Choose the port by hash.
    pub hash: bool,
    /// Choose the port at random.
    pub random: bool,
}

/// A zone: a number or a subfield.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ZoneSpec {
    /// Immediate.
    Imm(u16),
    /// Read from the packet.
    Field(Subfield),
}

/// A `ct(...)` action.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CtAction {
    /// Put the connection into the table.
    pub commit: bool,
    /// Make the current direction the original one.
    pub force: bool,
    /// Continue in this table.
    pub table: Option<TableId>,
    /// Zone.
    pub zone: ZoneSpec,
    /// Nested `nat`.
    pub nat: Option<NatSpec>,
    /// Nested `exec(...)`: set_field, load and move on ct_mark and ct_label.
    pub exec: Vec<Action>,
    /// Application layer gateway port: 21 is ftp, 69 tftp.
    pub alg: u16,
}

impl Default for CtAction {
    fn default() -> Self {
        CtAction {
            commit: false,
            force: false,
            table: None,
            zone: ZoneSpec::Imm(0),
            nat: None,
            exec: Vec::new(),
            alg: 0,
        }
    }
}

/// Why a packet goes to the controller (OpenFlow 1.5 section 7.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum PacketInReason {
    /// Table miss.
    NoMatch = 0,
    /// An output action.
    #[default]
    Action = 1,
    /// Bad time to live.
    InvalidTtl = 2,
    /// Action set.
    ActionSet = 3,
    /// Group bucket.
    Group = 4,
    /// Packet-out.
    PacketOut = 5,
}

impl PacketInReason {
    /// From the wire.
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::NoMatch,
            1 => Self::Action,
            2 => Self::InvalidTtl,
            3 => Self::ActionSet,
            4 => Self::Group,
            5 => Self::PacketOut,
            _ => return None,
        })
    }

    /// The name that Open vSwitch prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoMatch => "no_match",
            Self::Action => "action",
            Self::InvalidTtl => "invalid_ttl",
            Self::ActionSet => "action_set",
            Self::Group => "group",
            Self::PacketOut => "packet_out",
        }
    }
}

/// A `controller(...)` action.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ControllerAction {
    /// Bytes of the packet to send; 65535 is all.
    pub max_len: u16,
    /// Which controller connection.
    pub id: u16,
    /// Reason.
    pub reason: PacketInReason,
    /// Opaque data for the controller.
    pub userdata: Vec<u8>,
    /// Freeze the packet; the controller resumes it.
    pub pause: bool,
    /// Rate limit.
    pub meter_id: Option<MeterId>,
}

impl Default for ControllerAction {
    fn default() -> Self {
        ControllerAction {
            max_len: 0xffff,
            id: 0,
            reason: PacketInReason::Action,
            userdata: Vec::new(),
            pause: false,
            meter_id: None,
        }
    }
}

/// Where a learned flow's value comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LearnSrc {
    /// From the packet.
    Field(Subfield),
    /// A constant, of this many bits.
    Imm(u128, u32),
}

/// What a learned value is for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LearnDst {
    /// The new flow matches it.
    Match(Subfield),
    /// The new flow loads it.
    Load(Subfield),
    /// The new flow outputs to it.
    Output,
}

/// One specification of a `learn(...)` action.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LearnSpec {
    /// Source.
    pub src: LearnSrc,
    /// Destination.
    pub dst: LearnDst,
}

/// A `learn(...)` action.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LearnAction {
    /// Table of the new flow.
    pub table: TableId,
    /// Seconds without use until it goes.
    pub idle_timeout: u16,
    /// Seconds until it goes.
    pub hard_timeout: u16,
    /// Idle timeout after a TCP FIN or RST.
    pub fin_idle_timeout: u16,
    /// Hard timeout after a TCP FIN or RST.
    pub fin_hard_timeout: u16,
    /// Priority of the new flow.
    pub priority: u16,
    /// Cookie of the new flow.
    pub cookie: u64,
    /// Tell the controller when the learned flow goes.
    pub send_flow_rem: bool,
    /// Learned flows go when this flow does.
    pub delete_learned: bool,
    /// Most flows with this cookie in the table; 0 is no limit.
    pub limit: u32,
    /// Bit that says whether learning worked.
    pub result_dst: Option<Subfield>,
    /// How to build the flow.
    pub specs: Vec<LearnSpec>,
}

impl Default for LearnAction {
    fn default() -> Self {
        LearnAction {
            table: TableId(1),
            idle_timeout: 0,
            hard_timeout: 0,
            fin_idle_timeout: 0,
            fin_hard_timeout: 0,
            priority: 0x8000,
            cookie: 0,
            send_flow_rem: false,
            delete_learned: false,
            limit: 0,
            result_dst: None,
            specs: Vec::new(),
        }
    }
}

/// How `bundle` chooses a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BundleAlgorithm {
    /// The first live member.
    ActiveBackup,
    /// Highest random weight.
    Hrw,
}

/// How `multipath` chooses a link by a hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum MultipathAlgorithm {
    /// The remainder.
    ModuloN = 0,
    /// Regions of equal size.
    HashThreshold = 1,
    /// The highest random weight.
    Hrw = 2,
    /// Hash again until a link is found.
    IterHash = 3,
}

impl MultipathAlgorithm {
    /// All of them, with the text name.
    pub const ALL: [(MultipathAlgorithm, &'static str); 4] = [
        (MultipathAlgorithm::ModuloN, "modulo_n"),
        (MultipathAlgorithm::HashThreshold, "hash_threshold"),
        (MultipathAlgorithm::Hrw, "hrw"),
        (MultipathAlgorithm::IterHash, "iter_hash"),
    ];
}

/// A `multipath` action: puts the number of a link into a field.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MultipathAction {
    /// What to hash.
    pub fields: HashFields,
    /// Hash basis.
    pub basis: u16,
    /// How to choose.
    pub algorithm: MultipathAlgorithm,
    /// How many links there are, 1 to 65,536.
    pub links: u32,
    /// For `iter_hash`: the numbers below this are tried.
    pub arg: u32,
    /// Where the number goes.
    pub dst: Subfield,
}

/// What `bundle` and `multipath` hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum HashFields {
    /// Ethernet source.
    EthSrc = 0,
    /// Layers 2 to 4, the same in both directions.
    SymmetricL4 = 1,
    /// Layers 3 and 4, the same in both directions.
    SymmetricL3L4 = 2,
    /// The same, with UDP ports.
    SymmetricL3L4Udp = 3,
    /// Network source.
    NwSrc = 4,
    /// Network destination.
    NwDst = 5,
    /// Layer 3, the same in both directions.
    SymmetricL3 = 6,
}

impl HashFields {
    /// All of them, by wire number, with the text name.
    pub const ALL: [(HashFields, &'static str); 7] = [
        (HashFields::EthSrc, "eth_src"),
        (HashFields::SymmetricL4, "symmetric_l4"),
        (HashFields::SymmetricL3L4, "symmetric_l3l4"),
        (HashFields::SymmetricL3L4Udp, "symmetric_l3l4+udp"),
        (HashFields::NwSrc, "nw_src"),
        (HashFields::NwDst, "nw_dst"),
        (HashFields::SymmetricL3, "symmetric_l3"),
    ];
}

/// A `bundle` or `bundle_load` action.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BundleAction {
    /// What to hash.
    pub fields: HashFields,
    /// Hash basis.
    pub basis: u16,
    /// How to choose.
    pub algorithm: BundleAlgorithm,
    /// Members.
    pub members: Vec<PortNo>,
    /// `bundle_load`: where the chosen port goes instead of output.
    pub dst: Option<Subfield>,
}

/// Which side a sampled packet is on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SampleDirection {
    /// Not said.
    #[default]
    Default,
    /// On entering.
    Ingress,
    /// On leaving.
    Egress,
}

/// A `sample(...)` action.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SampleAction {
    /// Of 65535.
    pub probability: u16,
    /// Row of Flow_Sample_Collector_Set.
    pub collector_set_id: u32,
    /// IPFIX observation domain: a number or a 32-bit field.
    pub obs_domain_id: SampleId,
    /// IPFIX observation point.
    pub obs_point_id: SampleId,
    /// Port to report.
    pub sampling_port: PortNo,
    /// Direction.
    pub direction: SampleDirection,
}

/// An observation id of [`SampleAction`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SampleId {
    /// A number.
    Imm(u32),
    /// Read from a field (Open vSwitch 3.4).
    Field(Subfield),
}

/// One action or instruction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// `output:PORT`, or a reserved name; `max_len` counts for `CONTROLLER` only.
    Output {
        /// Port.
        port: PortNo,
        /// Bytes to send to the controller.
        max_len: u16,
    },
    /// `output(port=PORT,max_len=N)`: truncates.
    OutputTrunc {
        /// Port.
        port: PortNo,
        /// Most bytes.
        max_len: u32,
    },
    /// `output:NXM_NX_REG0[]`.
    OutputReg {
        /// Holds the port.
        src: Subfield,
        /// Bytes to send to the controller.
        max_len: u16,
    },
    /// `controller(...)`.
    Controller(Box<ControllerAction>),
    /// `group:N`.
    Group(GroupId),
    /// `set_queue:N`.
    SetQueue(u32),
    /// `pop_queue`.
    PopQueue,
    /// `set_field:VALUE[/MASK]->FIELD`; `None` is all bits.
    SetField {
        /// Field.
        field: FieldId,
        /// Value.
        value: u128,
        /// Bits to set.
        mask: Option<u128>,
        /// Told as `mod_nw_dst` and the like: OpenFlow 1.0 and 1.1 have an action for each such field, and 1.2 and later for
        /// the TTL.
        old: bool,
    },
    /// `set_tunnel:KEY`, before OpenFlow 1.2.
    SetTunnel {
        /// Key.
        id: u64,
        /// As `set_tunnel64`.
        wide: bool,
    },
    /// `load:VALUE->SUBFIELD`.
    Load {
        /// Value.
        value: u64,
        /// Where to.
        dst: Subfield,
    },
    /// `move:SRC->DST`.
    Move {
        /// From.
        src: Subfield,
        /// To; as wide as `src`.
        dst: Subfield,
    },
    /// `push:SUBFIELD`.
    Push(Subfield),
    /// `pop:SUBFIELD`.
    Pop(Subfield),
    /// `push_vlan:ETHERTYPE`.
    PushVlan(u16),
    /// `pop_vlan`.
    PopVlan,
    /// `dec_ttl` or `dec_ttl(ID,...)`.
    DecTtl(Option<Vec<u16>>),
    /// `resubmit(PORT,TABLE[,ct])`.
    Resubmit {
        /// Ingress port to pretend; `IN_PORT` keeps it.
        port: PortNo,
        /// Table; 255 is the current one.
        table: TableId,
        /// Match the original direction's tuple.
        ct: bool,
    },
    /// `clone(...)`.
    Clone(Vec<Action>),
    /// `ct(...)`.
    Ct(Box<CtAction>),
    /// `ct_clear`.
    CtClear,
    /// `nat` alone, only within packets' continuations; a `ct` action holds its own.
    Nat(Box<NatSpec>),
    /// `learn(...)`.
    Learn(Box<LearnAction>),
    /// `conjunction(ID, K/N)`; `clause` counts from 0.
    Conjunction {
        /// Conjunction id.
        id: u32,
        /// Which dimension, from 0.
        clause: u8,
        /// Number of dimensions.
        n_clauses: u8,
    },
    /// `check_pkt_larger(N)->SUBFIELD`.
    CheckPktLarger {
        /// Length in bytes.
        len: u16,
        /// One bit.
        dst: Subfield,
    },
    /// `sample(...)`.
    Sample(Box<SampleAction>),
    /// `bundle(...)`, `bundle_load(...)`.
    Bundle(Box<BundleAction>),
    /// `multipath(...)`.
    Multipath(Box<MultipathAction>),
    /// `note:HEX`.
    Note(Vec<u8>),
    /// `fin_timeout(...)`.
    FinTimeout {
        /// Idle timeout.
        idle: u16,
        /// Hard timeout.
        hard: u16,
    },
    /// `exit`.
    Exit,
    /// `debug_slow` and `debug_recirc`: tests of Open vSwitch ask its datapath for detours. Nothing is done.
    Debug(DebugAction),
    /// What is done to labels of MPLS.
    Mpls(MplsAction),
    /// `encap(HEADER(PROPERTY,...))` (ovs-actions(7), ONF EXT-382).
    Encap(Encap),
    /// `decap(packet_type(ns=NS,type=TYPE))`: takes the outermost header away.
    Decap(PacketType),
    /// `dec_nsh_ttl`.
    DecNshTtl,
    /// `delete_field:FIELD`.
    DeleteField(FieldId),
    /// `meter:N`.
    Meter(MeterId),
    /// `clear_actions`.
    ClearActions,
    /// `write_actions(...)`.
    WriteActions(Vec<Action>),
    /// `write_metadata:VALUE[/MASK]`.
    WriteMetadata {
        /// Value.
        value: u64,
        /// Bits to set.
        mask: u64,
    },
    /// `goto_table:N`.
    GotoTable(TableId),
}

/// A detour in the datapath (NXAST_DEBUG_SLOW, NXAST_DEBUG_RECIRC).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DebugAction {
    /// Through the slow path.
    Slow,
    /// Another lookup.
    Recirc,
}

/// An action on the outermost label stack entry of MPLS (OpenFlow 1.5 section 7.2.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MplsAction {
    /// `push_mpls:ETHERTYPE`.
    Push(u16),
    /// `pop_mpls:ETHERTYPE`, which says what is behind the label.
    Pop(u16),
    /// `set_mpls_label(LABEL)`.
    SetLabel(u32),
    /// `set_mpls_tc(TC)`.
    SetTc(u8),
    /// `set_mpls_ttl(TTL)`.
    SetTtl(u8),
    /// `dec_mpls_ttl`.
    DecTtl,
}

/// Whether an EtherType is one of MPLS (RFC 5332 section 3).
pub fn is_mpls(kind: u16) -> bool {
    matches!(kind, 0x8847 | 0x8848)
}

/// What a packet begins with (OpenFlow 1.5 section 7.2.3.12): a namespace, and a type in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PacketType(pub u32);

impl PacketType {
    /// An Ethernet header.
    pub const ETHERNET: PacketType = PacketType(0);
    /// What the header that is taken away says (`decap()`).
    pub const NEXT: PacketType = PacketType(0xfffe);
    /// IPv4.
    pub const IPV4: PacketType = PacketType::of(0x0800);
    /// IPv6.
    pub const IPV6: PacketType = PacketType::of(0x86dd);
    /// A network service header (RFC 8300).
    pub const NSH: PacketType = PacketType::of(ETH_NSH);

    /// What an EtherType names, without an Ethernet header.
    pub const fn of(ethertype: u16) -> PacketType {
        PacketType(1 << 16 | ethertype as u32)
    }

    /// The namespace: 0 is the ONF's, 1 has EtherTypes.
    pub const fn namespace(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The type within the namespace.
    pub const fn kind(self) -> u16 {
        self.0 as u16
    }

    /// The EtherType of a packet that has no Ethernet header.
    pub fn ethertype(self) -> Option<u16> {
        (self.namespace() == 1).then_some(self.kind())
    }
}

/// EtherType of NSH (RFC 8300 section 2).
pub const ETH_NSH: u16 = 0x894f;

/// The header that `encap` puts before a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Encap {
    /// `ethernet`, before a packet that has none.
    Ethernet,
    /// `mpls` or `mpls_mc`: a label, by its EtherType, before all that the packet is.
    Mpls(u16),
    /// `nsh`.
    Nsh(Vec<NshProperty>),
}

impl Encap {
    /// The type of the packets that come of it.
    pub fn packet_type(&self) -> PacketType {
        match self {
            Encap::Ethernet => PacketType::ETHERNET,
            Encap::Mpls(kind) => PacketType::of(*kind),
            Encap::Nsh(_) => PacketType::NSH,
        }
    }
}

/// A property of `encap(nsh(...))`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NshProperty {
    /// `md_type=N`: the type of metadata.
    MdType(u8),
    /// `tlv(CLASS,TYPE,VALUE)`: metadata of type 2.
    Tlv {
        /// Class.
        class: u16,
        /// Type.
        kind: u8,
        /// Value, up to 240 bytes.
        value: Vec<u8>,
    },
}

impl Action {
    /// `output:PORT`.
    pub fn output(port: PortNo) -> Action {
        Action::Output { port, max_len: if port == PortNo::CONTROLLER { 0xffff } else { 0 } }
    }

    /// `set_field` of a whole field.
    pub fn set(field: FieldId, value: u128) -> Action {
        Action::SetField { field, value, mask: None, old: false }
    }

    /// The same by an action that is for this field alone.
    pub fn set_old(field: FieldId, value: u128) -> Action {
        Action::SetField { field, value, mask: None, old: true }
    }

    /// `set_field` of some bits; a mask of all bits of a field that fills its bytes is dropped, as Open vSwitch does.
    pub fn set_masked(field: FieldId, value: u128, mask: u128) -> Action {
        let all = mask == field.full_mask() && field.bits() as usize == field.def().bytes * 8;
        Action::SetField { field, value: value & mask, mask: (!all).then_some(mask), old: false }
    }

    /// `resubmit(,TABLE)`.
    pub fn resubmit(table: TableId) -> Action {
        Action::Resubmit { port: PortNo::IN_PORT, table, ct: false }
    }
}

/// Whether a list outputs to a port, looking into nested lists (for `out_port` filters).
pub fn outputs_to_port(actions: &[Action], want: PortNo) -> bool {
    actions.iter().any(|a| match a {
        // Open vSwitch does not look for outputs that cut the packet.
        Action::Output { port, .. } => *port == want,
        Action::Controller(_) => want == PortNo::CONTROLLER,
        Action::Clone(v) | Action::WriteActions(v) => outputs_to_port(v, want),
        Action::Bundle(b) => b.dst.is_none() && b.members.contains(&want),
        _ => false,
    })
}

/// Whether a list uses a group (for `out_group` filters).
pub fn outputs_to_group(actions: &[Action], want: GroupId) -> bool {
    actions.iter().any(|a| match a {
        Action::Group(g) => *g == want,
        Action::Clone(v) | Action::WriteActions(v) => outputs_to_group(v, want),
        _ => false,
    })
}

/// The groups that a list of actions sends packets to.
pub fn groups_of(actions: &[Action]) -> BTreeSet<GroupId> {
    let mut all = BTreeSet::new();
    for a in actions {
        match a {
            Action::Group(g) => _ = all.insert(*g),
            Action::Clone(v) | Action::WriteActions(v) => all.extend(groups_of(v)),
            _ => {}
        }
    }
    all
}

/// The match and actions that a `learn` action builds from a packet's key.
pub fn learned_flow(learn: &LearnAction, key: &crate::FlowKey) -> (Match, Vec<Action>) {
    let mut m = Match::new();
    let mut actions = Vec::new();
    if learn.fin_idle_timeout != 0 || learn.fin_hard_timeout != 0 {
        actions.push(Action::FinTimeout { idle: learn.fin_idle_timeout, hard: learn.fin_hard_timeout });
    }
    for spec in &learn.specs {
        let value = match &spec.src {
            LearnSrc::Field(f) => key.get_sub(f),
            LearnSrc::Imm(v, _) => *v,
        };
        match &spec.dst {
            LearnDst::Match(d) => {
                let mask = crate::ones(d.n_bits) << d.ofs;
                m.set_masked(d.field, value << d.ofs, mask);
            }
            LearnDst::Load(d) => {
                let mask = crate::ones(d.n_bits) << d.ofs;
                actions.push(Action::set_masked(d.field, value << d.ofs, mask));
            }
            // As in Open vSwitch, a port that cannot be sent to is left out.
            LearnDst::Output => {
                let port = u16::try_from(value).ok().map(PortNo).filter(|p| p.may_be_learned());
                actions.extend(port.map(Action::output));
            }
        }
    }
    (m, actions)
}
