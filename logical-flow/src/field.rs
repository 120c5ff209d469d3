//! The packet and metadata fields that logical flows read and write.

/// A field. Registers are the chassis' 32-bit ones; wider overlays are split into them by [`crate::normal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the variants are the field's own names")]
pub enum Field {
    /// A 32-bit register: 0-9 for logical flows, 10 flags, 14 inport, 15 outport.
    Reg(u8),
    /// A 64-bit overlay of registers 2n and 2n+1, the first one most significant.
    XReg(u8),
    /// A 128-bit overlay of registers 4n to 4n+3, the first one most significant.
    XxReg(u8),
    Metadata,
    CtState,
    CtMark,
    CtLabel,
    PktMark,
    TunId,
    EthSrc,
    EthDst,
    EthType,
    VlanTci,
    IpProto,
    IpDscp,
    IpEcn,
    IpTtl,
    IpFrag,
    Ip4Src,
    Ip4Dst,
    Ip6Src,
    Ip6Dst,
    Ip6Label,
    ArpOp,
    ArpSpa,
    ArpTpa,
    ArpSha,
    ArpTha,
    NdTarget,
    NdSll,
    NdTll,
    Icmp4Type,
    Icmp4Code,
    Icmp6Type,
    Icmp6Code,
    TcpSrc,
    TcpDst,
    TcpFlags,
    UdpSrc,
    UdpDst,
    SctpSrc,
    SctpDst,
    CtNwProto,
    CtNwSrc,
    CtNwDst,
    CtIp6Src,
    CtIp6Dst,
    CtTpSrc,
    CtTpDst,
}

/// The flags register.
pub const FLAGS: Field = Field::Reg(10);
/// The logical input port's register.
pub const INPORT: Field = Field::Reg(14);
/// The logical output port's register.
pub const OUTPORT: Field = Field::Reg(15);

impl Field {
    /// The width in bits.
    pub fn width(self) -> u8 {
        use Field::*;
        match self {
            XxReg(_) | CtLabel | Ip6Src | Ip6Dst | NdTarget | CtIp6Src | CtIp6Dst => 128,
            XReg(_) | Metadata | TunId => 64,
            EthSrc | EthDst | ArpSha | ArpTha | NdSll | NdTll => 48,
            Reg(_) | CtState | CtMark | PktMark | Ip4Src | Ip4Dst | ArpSpa | ArpTpa | CtNwSrc | CtNwDst => 32,
            Ip6Label => 20,
            EthType | VlanTci | TcpSrc | TcpDst | UdpSrc | UdpDst | SctpSrc | SctpDst | ArpOp | CtTpSrc | CtTpDst => 16,
            TcpFlags => 12,
            IpProto | IpTtl | Icmp4Type | Icmp4Code | Icmp6Type | Icmp6Code | CtNwProto => 8,
            IpDscp => 6,
            IpEcn | IpFrag => 2,
        }
    }

    /// Whether it must be stated together with what depends on it, and so can be no clause of a conjunction of its own.
    pub fn must_crossproduct(self) -> bool {
        matches!(self, Field::EthType | Field::IpProto | Field::VlanTci | Field::IpFrag)
    }
}

/// The lowest `n` bits set.
pub fn ones(n: u8) -> u128 {
    if n >= 128 { u128::MAX } else { (1u128 << n) - 1 }
}
