//! From the logical flow language's fields to OpenFlow's, and the few actions that all flows are made of.

use logical_flow::expr::Operand;
use logical_flow::field::Field;
use logical_flow::fields::Fields;
use openflow_rs::{Action, FieldId, Match, NatSpec, PortNo, Subfield, ones};
use ovn_schema::{DatapathKey, PortKey};

/// Logical datapath, a field of the whole pipeline.
pub const DATAPATH: FieldId = FieldId::Metadata;
/// Flags.
pub const FLAGS: FieldId = FieldId::Reg10;
/// Connection tracking zone for destination translation on a router.
pub const DNAT_ZONE: FieldId = FieldId::Reg11;
/// Connection tracking zone for source translation on a router.
pub const SNAT_ZONE: FieldId = FieldId::Reg12;
/// Connection tracking zone of a logical port (low 16 bits), encapsulation choice (high 16 bits).
pub const PORT_ZONE: FieldId = FieldId::Reg13;
/// Logical input port.
pub const INPORT: FieldId = FieldId::Reg14;
/// Logical output port.
pub const OUTPORT: FieldId = FieldId::Reg15;

/// The flag bits that the physical tables use.
pub mod flag {
    /// The packet may leave through the port that it came in by.
    pub const LOOPBACK: u32 = 1 << 0;
    /// It came from a VTEP gateway.
    pub const RCV_FROM_RAMP: u32 = 1 << 1;
    /// It stays on this chassis.
    pub const LOCAL_ONLY: u32 = 1 << 4;
    /// It came from a container port.
    pub const NESTED_CONTAINER: u32 = 1 << 5;
    /// A MAC binding was found.
    pub const LOOKUP_MAC: u32 = 1 << 6;
    /// It is a hairpin of a load balancer.
    pub const LOOKUP_LB_HAIRPIN: u32 = 1 << 7;
    /// A forwarding entry was found.
    pub const LOOKUP_FDB: u32 = 1 << 8;
    /// It came from a localport.
    pub const LOCALPORT: u32 = 1 << 10;
    /// Port security refuses it.
    pub const CHECK_PORT_SEC: u32 = 1 << 12;
    /// A symmetric reply's next hop was found.
    pub const LOOKUP_COMMIT_ECMP_NH: u32 = 1 << 13;
    /// A load balancer's affinity was found.
    pub const USE_LB_AFF_SESSION: u32 = 1 << 14;
    /// It came from a provider network.
    pub const FROM_LOCALNET: u32 = 1 << 15;
    /// It came through a tunnel and is an ICMP error.
    pub const RX_FROM_TUNNEL: u32 = 1 << 16;
    /// The controller made it.
    pub const FROM_CONTROLLER: u32 = 1 << 19;
    /// It has been snooped on.
    pub const SNOOPED: u32 = 1 << 22;
    /// It has been through connection tracking behind a network function.
    pub const RECIRCULATED: u32 = 1 << 24;
    /// A neighbour of EVPN was found.
    pub const EVPN_LOOKUP: u32 = 1 << 25;
    /// Local only does not count.
    pub const OVERRIDE_LOCAL_ONLY: u32 = 1 << 18;
}

/// A 32-bit register.
pub fn register(n: u8) -> FieldId {
    FieldId::reg(usize::from(n)).unwrap_or(FieldId::Reg0)
}

/// The OpenFlow field of a logical one. The second value is the shift of narrower logical registers within it:
/// Open vSwitch is told of the widest register that holds them, as OVN does.
pub fn field(f: Field) -> (FieldId, u32) {
    use FieldId as F;
    let whole = match f {
        Field::Reg(n) => return wide_register(n),
        Field::XReg(n) => return wide_register64(n),
        Field::XxReg(0) => F::XxReg0,
        Field::XxReg(_) => F::XxReg1,
        Field::Metadata => F::Metadata,
        Field::CtState => F::CtState,
        Field::CtMark => F::CtMark,
        Field::CtLabel => F::CtLabel,
        Field::PktMark => F::PktMark,
        Field::TunId => F::TunId,
        Field::EthSrc => F::EthSrc,
        Field::EthDst => F::EthDst,
        Field::EthType => F::EthType,
        Field::VlanTci => F::VlanTci,
        Field::IpProto => F::IpProto,
        Field::IpDscp => F::IpDscp,
        Field::IpEcn => F::IpEcn,
        Field::IpTtl => F::IpTtl,
        Field::IpFrag => F::IpFrag,
        Field::Ip4Src => F::IpSrc,
        Field::Ip4Dst => F::IpDst,
        Field::Ip6Src => F::Ipv6Src,
        Field::Ip6Dst => F::Ipv6Dst,
        Field::Ip6Label => F::Ipv6Label,
        Field::ArpOp => F::ArpOp,
        Field::ArpSpa => F::ArpSpa,
        Field::ArpTpa => F::ArpTpa,
        Field::ArpSha => F::ArpSha,
        Field::ArpTha => F::ArpTha,
        Field::NdTarget => F::NdTarget,
        Field::NdSll => F::NdSll,
        Field::NdTll => F::NdTll,
        Field::Icmp4Type => F::IcmpType,
        Field::Icmp4Code => F::IcmpCode,
        Field::Icmp6Type => F::Icmpv6Type,
        Field::Icmp6Code => F::Icmpv6Code,
        Field::TcpSrc => F::TcpSrc,
        Field::TcpDst => F::TcpDst,
        Field::TcpFlags => F::TcpFlags,
        Field::UdpSrc => F::UdpSrc,
        Field::UdpDst => F::UdpDst,
        Field::SctpSrc => F::SctpSrc,
        Field::SctpDst => F::SctpDst,
        Field::CtNwProto => F::CtNwProto,
        Field::CtNwSrc => F::CtNwSrc,
        Field::CtNwDst => F::CtNwDst,
        Field::CtIp6Src => F::CtIpv6Src,
        Field::CtIp6Dst => F::CtIpv6Dst,
        Field::CtTpSrc => F::CtTpSrc,
        Field::CtTpDst => F::CtTpDst,
    };
    (whole, 0)
}

fn wide_register(n: u8) -> (FieldId, u32) {
    match n {
        0..=3 => (FieldId::XxReg0, 32 * u32::from(3 - n)),
        4..=7 => (FieldId::XxReg1, 32 * u32::from(7 - n)),
        8 => (FieldId::XReg4, 32),
        9 => (FieldId::XReg4, 0),
        _ => (register(n), 0),
    }
}

fn wide_register64(n: u8) -> (FieldId, u32) {
    match n {
        0 | 1 => (FieldId::XxReg0, 64 * u32::from(1 - n)),
        2 | 3 => (FieldId::XxReg1, 64 * u32::from(3 - n)),
        _ => (FieldId::XReg4, 0),
    }
}

/// The bits that an operand names.
pub fn subfield(o: &Operand) -> Option<Subfield> {
    let (f, offset) = o.field()?;
    // Ports keep to their own registers.
    if o.width == 0 {
        let Field::Reg(n) = f else { return None };
        return Some(Subfield::full(register(n)));
    }
    let (id, shift) = field(f);
    let first = shift + u32::from(offset);
    // The operation of ARP has 16 bits in the language and 8 in the switch.
    if first == 0 && u32::from(o.width) >= id.bits() {
        return Some(Subfield::full(id));
    }
    Subfield::bits(id, first, first + u32::from(o.width) - 1)
}

/// The match of a logical flow in a datapath.
pub fn matches(fields: &Fields, datapath: DatapathKey) -> Match {
    let mut m = Match::with_room(12);
    m.set(DATAPATH, datapath.into());
    for (f, (value, mask)) in fields {
        match f {
            Field::Reg(n) => m.set_masked(register(*n), *value, *mask),
            f => {
                let (id, shift) = field(*f);
                m.set_masked(id, value << shift, mask << shift)
            }
        };
    }
    m
}

/// The datapath that a packet's metadata or a flow's match names.
pub fn datapath_in(m: &Match) -> DatapathKey {
    DatapathKey::from_metadata(m.get(DATAPATH).0 as u64)
}

/// The port that it names in [`INPORT`] or [`OUTPORT`].
pub fn port_in(m: &Match, register: FieldId) -> PortKey {
    PortKey::from_register(m.get(register).0 as u32)
}

/// Sets bits of a field.
pub fn set_sub(s: Subfield, value: u128) -> Action {
    let mask = ones(s.n_bits) << s.ofs;
    if s.field == FieldId::IpDscp {
        // Six bits of an octet, whose others stay.
        return Action::SetField { field: s.field, value: value << s.ofs, mask: Some(mask), old: false };
    }
    if s.is_full() { Action::set(s.field, value) } else { Action::set_masked(s.field, value << s.ofs, mask) }
}

/// Sets a field.
pub fn set(field: FieldId, value: u64) -> Action {
    Action::set(field, u128::from(value))
}

/// Sets flag bits.
pub fn set_flags(bits: u32) -> Action {
    Action::set_masked(FLAGS, u128::from(bits), u128::from(bits))
}

/// Clears flag bits.
pub fn clear_flags(bits: u32) -> Action {
    Action::set_masked(FLAGS, 0, u128::from(bits))
}

/// Copies bits.
pub fn copy(src: Subfield, dst: Subfield) -> Action {
    Action::Move { src, dst }
}

/// Some bits of a field; the caller knows that they are there.
pub fn bits(field: FieldId, first: u32, last: u32) -> Subfield {
    Subfield { field, ofs: first, n_bits: last - first + 1 }
}

/// `output:PORT`.
pub fn output(port: u16) -> Action {
    Action::output(PortNo(port))
}

/// `nat` without arguments: apply the connection's translation.
pub fn nat_existing() -> Option<NatSpec> {
    Some(NatSpec::default())
}

/// Actions as OpenFlow 1.5 bytes, for user data that the controller runs later.
pub fn bytes(actions: &[Action]) -> Vec<u8> {
    let mut out = Vec::new();
    openflow_rs::wire::encode_actions(&mut out, actions, openflow_rs::Version::Of15);
    out
}

/// The four bytes by which OpenFlow names a field.
pub fn field_header(f: FieldId) -> [u8; 4] {
    openflow_rs::wire::oxm::header(f).to_be_bytes()
}

/// An Ethernet address in text, as a field's value.
pub fn ethernet(text: &str) -> Option<u128> {
    text.parse::<packet::Mac>().ok().map(u128::from)
}
