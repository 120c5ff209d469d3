//! The table of match fields: one row each (manual page ovs-fields(7), OpenFlow 1.5 section 7.2.3).

use crate::field::{FieldDef, Format, Prereq};

/// Number of 64-bit words of a [`crate::FlowKey`].
pub const WORDS: usize = 50;

/// A match field. The variants carry the names of ovs-fields(7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum FieldId {
    /// Conjunction identifier.
    ConjId,
    /// Output port of the action set.
    ActsetOutput,
    /// Hash computed by the datapath.
    DpHash,
    /// Packet type (0 is Ethernet).
    PacketType,
    /// Ingress port, 16 bits as Open vSwitch keeps it.
    InPort,
    /// Ingress port in its 32-bit wire form.
    InPortOxm,
    /// Packet mark.
    PktMark,
    /// Table metadata.
    Metadata,
    /// Register 0.
    Reg0,
    /// Register 1.
    Reg1,
    /// Register 2.
    Reg2,
    /// Register 3.
    Reg3,
    /// Register 4.
    Reg4,
    /// Register 5.
    Reg5,
    /// Register 6.
    Reg6,
    /// Register 7.
    Reg7,
    /// Register 8.
    Reg8,
    /// Register 9.
    Reg9,
    /// Register 10.
    Reg10,
    /// Register 11.
    Reg11,
    /// Register 12.
    Reg12,
    /// Register 13.
    Reg13,
    /// Register 14.
    Reg14,
    /// Register 15.
    Reg15,
    /// 64-bit register 0.
    XReg0,
    /// 64-bit register 1.
    XReg1,
    /// 64-bit register 2.
    XReg2,
    /// 64-bit register 3.
    XReg3,
    /// 64-bit register 4.
    XReg4,
    /// 64-bit register 5.
    XReg5,
    /// 64-bit register 6.
    XReg6,
    /// 64-bit register 7.
    XReg7,
    /// 128-bit register 0.
    XxReg0,
    /// 128-bit register 1.
    XxReg1,
    /// 128-bit register 2.
    XxReg2,
    /// 128-bit register 3.
    XxReg3,
    /// Tunnel key.
    TunId,
    /// Outer IPv4 source.
    TunSrc,
    /// Outer IPv4 destination.
    TunDst,
    /// Outer IPv6 source.
    TunIpv6Src,
    /// Outer IPv6 destination.
    TunIpv6Dst,
    /// Tunnel flags.
    TunFlags,
    /// Outer time to live.
    TunTtl,
    /// Outer type of service.
    TunTos,
    /// VXLAN group policy id.
    TunGbpId,
    /// VXLAN group policy flags.
    TunGbpFlags,
    /// Tunnel option field 0, up to 64 bits.
    TunMetadata0,
    /// Tunnel option field 1, up to 64 bits.
    TunMetadata1,
    /// Tunnel option field 2, up to 64 bits.
    TunMetadata2,
    /// Tunnel option field 3, up to 64 bits.
    TunMetadata3,
    /// Tunnel option field 4, up to 64 bits.
    TunMetadata4,
    /// Tunnel option field 5, up to 64 bits.
    TunMetadata5,
    /// Tunnel option field 6, up to 64 bits.
    TunMetadata6,
    /// Tunnel option field 7, up to 64 bits.
    TunMetadata7,
    /// Ethernet destination.
    EthDst,
    /// Ethernet source.
    EthSrc,
    /// Ethernet type.
    EthType,
    /// 802.1Q tag control information; bit 12 is set when a tag is present.
    VlanTci,
    /// VLAN id with the present bit (0x1000).
    VlanVid,
    /// VLAN priority.
    VlanPcp,
    /// EtherType of the outer tag (internal).
    VlanTpid,
    /// Inner tag control information (internal).
    Vlan1Tci,
    /// EtherType of the inner tag (internal).
    Vlan1Tpid,
    /// IPv4 source.
    IpSrc,
    /// IPv4 destination.
    IpDst,
    /// IPv6 source.
    Ipv6Src,
    /// IPv6 destination.
    Ipv6Dst,
    /// IPv6 flow label.
    Ipv6Label,
    /// IP protocol.
    IpProto,
    /// DSCP in the upper six bits.
    NwTos,
    /// DSCP.
    IpDscp,
    /// Explicit congestion notification.
    IpEcn,
    /// Time to live or hop limit.
    IpTtl,
    /// Fragment bits: 1 a fragment, 2 not the first.
    IpFrag,
    /// ARP operation.
    ArpOp,
    /// ARP sender protocol address.
    ArpSpa,
    /// ARP target protocol address.
    ArpTpa,
    /// ARP sender hardware address.
    ArpSha,
    /// ARP target hardware address.
    ArpTha,
    /// TCP source port.
    TcpSrc,
    /// TCP destination port.
    TcpDst,
    /// UDP source port.
    UdpSrc,
    /// UDP destination port.
    UdpDst,
    /// SCTP source port.
    SctpSrc,
    /// SCTP destination port.
    SctpDst,
    /// TCP flags.
    TcpFlags,
    /// ICMP type.
    IcmpType,
    /// ICMP code.
    IcmpCode,
    /// ICMPv6 type.
    Icmpv6Type,
    /// ICMPv6 code.
    Icmpv6Code,
    /// Neighbour discovery target.
    NdTarget,
    /// Neighbour discovery source link-layer address.
    NdSll,
    /// Neighbour discovery target link-layer address.
    NdTll,
    /// Connection state.
    CtState,
    /// Connection zone.
    CtZone,
    /// Protocol of the original direction.
    CtNwProto,
    /// Connection mark.
    CtMark,
    /// Connection label.
    CtLabel,
    /// IPv4 source of the original direction.
    CtNwSrc,
    /// IPv4 destination of the original direction.
    CtNwDst,
    /// IPv6 source of the original direction.
    CtIpv6Src,
    /// IPv6 destination of the original direction.
    CtIpv6Dst,
    /// Source port of the original direction.
    CtTpSrc,
    /// Destination port of the original direction.
    CtTpDst,
}

/// Every field, in the order of [`FieldId`].
pub const ALL_FIELDS: &[FieldId] = &[
    FieldId::ConjId,
    FieldId::ActsetOutput,
    FieldId::DpHash,
    FieldId::PacketType,
    FieldId::InPort,
    FieldId::InPortOxm,
    FieldId::PktMark,
    FieldId::Metadata,
    FieldId::Reg0,
    FieldId::Reg1,
    FieldId::Reg2,
    FieldId::Reg3,
    FieldId::Reg4,
    FieldId::Reg5,
    FieldId::Reg6,
    FieldId::Reg7,
    FieldId::Reg8,
    FieldId::Reg9,
    FieldId::Reg10,
    FieldId::Reg11,
    FieldId::Reg12,
    FieldId::Reg13,
    FieldId::Reg14,
    FieldId::Reg15,
    FieldId::XReg0,
    FieldId::XReg1,
    FieldId::XReg2,
    FieldId::XReg3,
    FieldId::XReg4,
    FieldId::XReg5,
    FieldId::XReg6,
    FieldId::XReg7,
    FieldId::XxReg0,
    FieldId::XxReg1,
    FieldId::XxReg2,
    FieldId::XxReg3,
    FieldId::TunId,
    FieldId::TunSrc,
    FieldId::TunDst,
    FieldId::TunIpv6Src,
    FieldId::TunIpv6Dst,
    FieldId::TunFlags,
    FieldId::TunTtl,
    FieldId::TunTos,
    FieldId::TunGbpId,
    FieldId::TunGbpFlags,
    FieldId::TunMetadata0,
    FieldId::TunMetadata1,
    FieldId::TunMetadata2,
    FieldId::TunMetadata3,
    FieldId::TunMetadata4,
    FieldId::TunMetadata5,
    FieldId::TunMetadata6,
    FieldId::TunMetadata7,
    FieldId::EthDst,
    FieldId::EthSrc,
    FieldId::EthType,
    FieldId::VlanTci,
    FieldId::VlanVid,
    FieldId::VlanPcp,
    FieldId::VlanTpid,
    FieldId::Vlan1Tci,
    FieldId::Vlan1Tpid,
    FieldId::IpSrc,
    FieldId::IpDst,
    FieldId::Ipv6Src,
    FieldId::Ipv6Dst,
    FieldId::Ipv6Label,
    FieldId::IpProto,
    FieldId::NwTos,
    FieldId::IpDscp,
    FieldId::IpEcn,
    FieldId::IpTtl,
    FieldId::IpFrag,
    FieldId::ArpOp,
    FieldId::ArpSpa,
    FieldId::ArpTpa,
    FieldId::ArpSha,
    FieldId::ArpTha,
    FieldId::TcpSrc,
    FieldId::TcpDst,
    FieldId::UdpSrc,
    FieldId::UdpDst,
    FieldId::SctpSrc,
    FieldId::SctpDst,
    FieldId::TcpFlags,
    FieldId::IcmpType,
    FieldId::IcmpCode,
    FieldId::Icmpv6Type,
    FieldId::Icmpv6Code,
    FieldId::NdTarget,
    FieldId::NdSll,
    FieldId::NdTll,
    FieldId::CtState,
    FieldId::CtZone,
    FieldId::CtNwProto,
    FieldId::CtMark,
    FieldId::CtLabel,
    FieldId::CtNwSrc,
    FieldId::CtNwDst,
    FieldId::CtIpv6Src,
    FieldId::CtIpv6Dst,
    FieldId::CtTpSrc,
    FieldId::CtTpDst,
];

pub(crate) static DEFS: [FieldDef; 104] = [
    FieldDef { name: "conj_id", aliases: &[], nxm_name: "NXM_NX_CONJ_ID", headers: &[(0x0001, 37)], bits: 32, bytes: 4, word: 48, shift: 32, format: Format::Dec, prereq: Prereq::None, maskable: false },
    FieldDef { name: "actset_output", aliases: &[], nxm_name: "OXM_OF_ACTSET_OUTPUT", headers: &[(0x8000, 43)], bits: 32, bytes: 4, word: 48, shift: 0, format: Format::Port, prereq: Prereq::None, maskable: false },
    FieldDef { name: "dp_hash", aliases: &[], nxm_name: "NXM_NX_DP_HASH", headers: &[(0x0001, 35)], bits: 32, bytes: 4, word: 49, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "packet_type", aliases: &[], nxm_name: "OXM_OF_PACKET_TYPE", headers: &[(0x8000, 44)], bits: 32, bytes: 4, word: 49, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: false },
    FieldDef { name: "in_port", aliases: &[], nxm_name: "NXM_OF_IN_PORT", headers: &[(0x0000, 0)], bits: 16, bytes: 2, word: 1, shift: 0, format: Format::Port, prereq: Prereq::None, maskable: false },
    FieldDef { name: "in_port_oxm", aliases: &[], nxm_name: "OXM_OF_IN_PORT", headers: &[(0x8000, 0)], bits: 16, bytes: 4, word: 1, shift: 0, format: Format::Port, prereq: Prereq::None, maskable: false },
    FieldDef { name: "pkt_mark", aliases: &[], nxm_name: "NXM_NX_PKT_MARK", headers: &[(0x0001, 33)], bits: 32, bytes: 4, word: 1, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "metadata", aliases: &[], nxm_name: "OXM_OF_METADATA", headers: &[(0x8000, 2)], bits: 64, bytes: 8, word: 0, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg0", aliases: &[], nxm_name: "NXM_NX_REG0", headers: &[(0x0001, 0)], bits: 32, bytes: 4, word: 2, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg1", aliases: &[], nxm_name: "NXM_NX_REG1", headers: &[(0x0001, 1)], bits: 32, bytes: 4, word: 2, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg2", aliases: &[], nxm_name: "NXM_NX_REG2", headers: &[(0x0001, 2)], bits: 32, bytes: 4, word: 3, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg3", aliases: &[], nxm_name: "NXM_NX_REG3", headers: &[(0x0001, 3)], bits: 32, bytes: 4, word: 3, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg4", aliases: &[], nxm_name: "NXM_NX_REG4", headers: &[(0x0001, 4)], bits: 32, bytes: 4, word: 4, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg5", aliases: &[], nxm_name: "NXM_NX_REG5", headers: &[(0x0001, 5)], bits: 32, bytes: 4, word: 4, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg6", aliases: &[], nxm_name: "NXM_NX_REG6", headers: &[(0x0001, 6)], bits: 32, bytes: 4, word: 5, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg7", aliases: &[], nxm_name: "NXM_NX_REG7", headers: &[(0x0001, 7)], bits: 32, bytes: 4, word: 5, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg8", aliases: &[], nxm_name: "NXM_NX_REG8", headers: &[(0x0001, 8)], bits: 32, bytes: 4, word: 6, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg9", aliases: &[], nxm_name: "NXM_NX_REG9", headers: &[(0x0001, 9)], bits: 32, bytes: 4, word: 6, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg10", aliases: &[], nxm_name: "NXM_NX_REG10", headers: &[(0x0001, 10)], bits: 32, bytes: 4, word: 7, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg11", aliases: &[], nxm_name: "NXM_NX_REG11", headers: &[(0x0001, 11)], bits: 32, bytes: 4, word: 7, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg12", aliases: &[], nxm_name: "NXM_NX_REG12", headers: &[(0x0001, 12)], bits: 32, bytes: 4, word: 8, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg13", aliases: &[], nxm_name: "NXM_NX_REG13", headers: &[(0x0001, 13)], bits: 32, bytes: 4, word: 8, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg14", aliases: &[], nxm_name: "NXM_NX_REG14", headers: &[(0x0001, 14)], bits: 32, bytes: 4, word: 9, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "reg15", aliases: &[], nxm_name: "NXM_NX_REG15", headers: &[(0x0001, 15)], bits: 32, bytes: 4, word: 9, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xreg0", aliases: &[], nxm_name: "OXM_OF_PKT_REG0", headers: &[(0x8001, 0)], bits: 64, bytes: 8, word: 2, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xreg1", aliases: &[], nxm_name: "OXM_OF_PKT_REG1", headers: &[(0x8001, 1)], bits: 64, bytes: 8, word: 3, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xreg2", aliases: &[], nxm_name: "OXM_OF_PKT_REG2", headers: &[(0x8001, 2)], bits: 64, bytes: 8, word: 4, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xreg3", aliases: &[], nxm_name: "OXM_OF_PKT_REG3", headers: &[(0x8001, 3)], bits: 64, bytes: 8, word: 5, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xreg4", aliases: &[], nxm_name: "OXM_OF_PKT_REG4", headers: &[(0x8001, 4)], bits: 64, bytes: 8, word: 6, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xreg5", aliases: &[], nxm_name: "OXM_OF_PKT_REG5", headers: &[(0x8001, 5)], bits: 64, bytes: 8, word: 7, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xreg6", aliases: &[], nxm_name: "OXM_OF_PKT_REG6", headers: &[(0x8001, 6)], bits: 64, bytes: 8, word: 8, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xreg7", aliases: &[], nxm_name: "OXM_OF_PKT_REG7", headers: &[(0x8001, 7)], bits: 64, bytes: 8, word: 9, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xxreg0", aliases: &[], nxm_name: "NXM_NX_XXREG0", headers: &[(0x0001, 111)], bits: 128, bytes: 16, word: 2, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xxreg1", aliases: &[], nxm_name: "NXM_NX_XXREG1", headers: &[(0x0001, 112)], bits: 128, bytes: 16, word: 4, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xxreg2", aliases: &[], nxm_name: "NXM_NX_XXREG2", headers: &[(0x0001, 113)], bits: 128, bytes: 16, word: 6, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "xxreg3", aliases: &[], nxm_name: "NXM_NX_XXREG3", headers: &[(0x0001, 114)], bits: 128, bytes: 16, word: 8, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_id", aliases: &["tunnel_id"], nxm_name: "NXM_NX_TUN_ID", headers: &[(0x8000, 38), (0x0001, 16)], bits: 64, bytes: 8, word: 10, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_src", aliases: &[], nxm_name: "NXM_NX_TUN_IPV4_SRC", headers: &[(0x0001, 31)], bits: 32, bytes: 4, word: 11, shift: 32, format: Format::Ipv4, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_dst", aliases: &[], nxm_name: "NXM_NX_TUN_IPV4_DST", headers: &[(0x0001, 32)], bits: 32, bytes: 4, word: 11, shift: 0, format: Format::Ipv4, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_ipv6_src", aliases: &[], nxm_name: "NXM_NX_TUN_IPV6_SRC", headers: &[(0x0001, 109)], bits: 128, bytes: 16, word: 12, shift: 0, format: Format::Ipv6, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_ipv6_dst", aliases: &[], nxm_name: "NXM_NX_TUN_IPV6_DST", headers: &[(0x0001, 110)], bits: 128, bytes: 16, word: 14, shift: 0, format: Format::Ipv6, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_flags", aliases: &[], nxm_name: "NXM_NX_TUN_FLAGS", headers: &[(0x0001, 104)], bits: 16, bytes: 2, word: 16, shift: 0, format: Format::TunFlags, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_ttl", aliases: &[], nxm_name: "", headers: &[], bits: 8, bytes: 1, word: 16, shift: 16, format: Format::Dec, prereq: Prereq::None, maskable: false },
    FieldDef { name: "tun_tos", aliases: &[], nxm_name: "", headers: &[], bits: 8, bytes: 1, word: 16, shift: 24, format: Format::Dec, prereq: Prereq::None, maskable: false },
    FieldDef { name: "tun_gbp_id", aliases: &[], nxm_name: "NXM_NX_TUN_GBP_ID", headers: &[(0x0001, 38)], bits: 16, bytes: 2, word: 16, shift: 32, format: Format::Dec, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_gbp_flags", aliases: &[], nxm_name: "NXM_NX_TUN_GBP_FLAGS", headers: &[(0x0001, 39)], bits: 8, bytes: 1, word: 16, shift: 48, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_metadata0", aliases: &[], nxm_name: "NXM_NX_TUN_METADATA0", headers: &[(0x0001, 40)], bits: 64, bytes: 8, word: 17, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_metadata1", aliases: &[], nxm_name: "NXM_NX_TUN_METADATA1", headers: &[(0x0001, 41)], bits: 64, bytes: 8, word: 18, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_metadata2", aliases: &[], nxm_name: "NXM_NX_TUN_METADATA2", headers: &[(0x0001, 42)], bits: 64, bytes: 8, word: 19, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_metadata3", aliases: &[], nxm_name: "NXM_NX_TUN_METADATA3", headers: &[(0x0001, 43)], bits: 64, bytes: 8, word: 20, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_metadata4", aliases: &[], nxm_name: "NXM_NX_TUN_METADATA4", headers: &[(0x0001, 44)], bits: 64, bytes: 8, word: 21, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_metadata5", aliases: &[], nxm_name: "NXM_NX_TUN_METADATA5", headers: &[(0x0001, 45)], bits: 64, bytes: 8, word: 22, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_metadata6", aliases: &[], nxm_name: "NXM_NX_TUN_METADATA6", headers: &[(0x0001, 46)], bits: 64, bytes: 8, word: 23, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "tun_metadata7", aliases: &[], nxm_name: "NXM_NX_TUN_METADATA7", headers: &[(0x0001, 47)], bits: 64, bytes: 8, word: 24, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "eth_dst", aliases: &["dl_dst"], nxm_name: "NXM_OF_ETH_DST", headers: &[(0x8000, 3), (0x0000, 1)], bits: 48, bytes: 6, word: 25, shift: 0, format: Format::Eth, prereq: Prereq::None, maskable: true },
    FieldDef { name: "eth_src", aliases: &["dl_src"], nxm_name: "NXM_OF_ETH_SRC", headers: &[(0x8000, 4), (0x0000, 2)], bits: 48, bytes: 6, word: 26, shift: 0, format: Format::Eth, prereq: Prereq::None, maskable: true },
    FieldDef { name: "eth_type", aliases: &["dl_type"], nxm_name: "NXM_OF_ETH_TYPE", headers: &[(0x8000, 5), (0x0000, 3)], bits: 16, bytes: 2, word: 25, shift: 48, format: Format::Hex, prereq: Prereq::None, maskable: false },
    FieldDef { name: "vlan_tci", aliases: &[], nxm_name: "NXM_OF_VLAN_TCI", headers: &[(0x0000, 4)], bits: 16, bytes: 2, word: 26, shift: 48, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "vlan_vid", aliases: &[], nxm_name: "OXM_OF_VLAN_VID", headers: &[(0x8000, 6)], bits: 13, bytes: 2, word: 26, shift: 48, format: Format::Dec, prereq: Prereq::None, maskable: true },
    FieldDef { name: "vlan_pcp", aliases: &["dl_vlan_pcp"], nxm_name: "OXM_OF_VLAN_PCP", headers: &[(0x8000, 7)], bits: 3, bytes: 1, word: 26, shift: 61, format: Format::Dec, prereq: Prereq::Vlan, maskable: false },
    FieldDef { name: "vlan_tpid", aliases: &[], nxm_name: "", headers: &[], bits: 16, bytes: 2, word: 27, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: false },
    FieldDef { name: "vlan1_tci", aliases: &[], nxm_name: "", headers: &[], bits: 16, bytes: 2, word: 27, shift: 16, format: Format::Hex, prereq: Prereq::None, maskable: false },
    FieldDef { name: "vlan1_tpid", aliases: &[], nxm_name: "", headers: &[], bits: 16, bytes: 2, word: 27, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: false },
    FieldDef { name: "ip_src", aliases: &["nw_src"], nxm_name: "NXM_OF_IP_SRC", headers: &[(0x8000, 11), (0x0000, 7)], bits: 32, bytes: 4, word: 28, shift: 32, format: Format::Ipv4, prereq: Prereq::Ipv4, maskable: true },
    FieldDef { name: "ip_dst", aliases: &["nw_dst"], nxm_name: "NXM_OF_IP_DST", headers: &[(0x8000, 12), (0x0000, 8)], bits: 32, bytes: 4, word: 28, shift: 0, format: Format::Ipv4, prereq: Prereq::Ipv4, maskable: true },
    FieldDef { name: "ipv6_src", aliases: &[], nxm_name: "NXM_NX_IPV6_SRC", headers: &[(0x8000, 26), (0x0001, 19)], bits: 128, bytes: 16, word: 29, shift: 0, format: Format::Ipv6, prereq: Prereq::Ipv6, maskable: true },
    FieldDef { name: "ipv6_dst", aliases: &[], nxm_name: "NXM_NX_IPV6_DST", headers: &[(0x8000, 27), (0x0001, 20)], bits: 128, bytes: 16, word: 31, shift: 0, format: Format::Ipv6, prereq: Prereq::Ipv6, maskable: true },
    FieldDef { name: "ipv6_label", aliases: &[], nxm_name: "NXM_NX_IPV6_LABEL", headers: &[(0x8000, 28), (0x0001, 27)], bits: 20, bytes: 4, word: 33, shift: 32, format: Format::Hex, prereq: Prereq::Ipv6, maskable: true },
    FieldDef { name: "nw_proto", aliases: &["ip_proto"], nxm_name: "NXM_OF_IP_PROTO", headers: &[(0x8000, 10), (0x0000, 6)], bits: 8, bytes: 1, word: 33, shift: 0, format: Format::Dec, prereq: Prereq::Ip, maskable: false },
    FieldDef { name: "nw_tos", aliases: &[], nxm_name: "NXM_OF_IP_TOS", headers: &[(0x0000, 5)], bits: 8, bytes: 1, word: 33, shift: 8, format: Format::Dec, prereq: Prereq::Ip, maskable: false },
    FieldDef { name: "ip_dscp", aliases: &["nw_tos_shifted"], nxm_name: "OXM_OF_IP_DSCP", headers: &[(0x8000, 8)], bits: 6, bytes: 1, word: 33, shift: 10, format: Format::Dec, prereq: Prereq::Ip, maskable: false },
    FieldDef { name: "nw_ecn", aliases: &["ip_ecn"], nxm_name: "NXM_NX_IP_ECN", headers: &[(0x8000, 9), (0x0001, 28)], bits: 2, bytes: 1, word: 33, shift: 8, format: Format::Dec, prereq: Prereq::Ip, maskable: false },
    FieldDef { name: "nw_ttl", aliases: &[], nxm_name: "NXM_NX_IP_TTL", headers: &[(0x0001, 29)], bits: 8, bytes: 1, word: 33, shift: 16, format: Format::Dec, prereq: Prereq::Ip, maskable: false },
    FieldDef { name: "ip_frag", aliases: &["nw_frag"], nxm_name: "NXM_NX_IP_FRAG", headers: &[(0x0001, 26)], bits: 2, bytes: 1, word: 33, shift: 24, format: Format::Frag, prereq: Prereq::Ip, maskable: true },
    FieldDef { name: "arp_op", aliases: &[], nxm_name: "NXM_OF_ARP_OP", headers: &[(0x8000, 21), (0x0000, 15)], bits: 8, bytes: 2, word: 33, shift: 0, format: Format::Dec, prereq: Prereq::Arp, maskable: false },
    FieldDef { name: "arp_spa", aliases: &[], nxm_name: "NXM_OF_ARP_SPA", headers: &[(0x8000, 22), (0x0000, 16)], bits: 32, bytes: 4, word: 28, shift: 32, format: Format::Ipv4, prereq: Prereq::Arp, maskable: true },
    FieldDef { name: "arp_tpa", aliases: &[], nxm_name: "NXM_OF_ARP_TPA", headers: &[(0x8000, 23), (0x0000, 17)], bits: 32, bytes: 4, word: 28, shift: 0, format: Format::Ipv4, prereq: Prereq::Arp, maskable: true },
    FieldDef { name: "arp_sha", aliases: &[], nxm_name: "NXM_NX_ARP_SHA", headers: &[(0x8000, 24), (0x0001, 17)], bits: 48, bytes: 6, word: 34, shift: 0, format: Format::Eth, prereq: Prereq::Arp, maskable: true },
    FieldDef { name: "arp_tha", aliases: &[], nxm_name: "NXM_NX_ARP_THA", headers: &[(0x8000, 25), (0x0001, 18)], bits: 48, bytes: 6, word: 35, shift: 0, format: Format::Eth, prereq: Prereq::Arp, maskable: true },
    FieldDef { name: "tcp_src", aliases: &[], nxm_name: "NXM_OF_TCP_SRC", headers: &[(0x8000, 13), (0x0000, 9)], bits: 16, bytes: 2, word: 36, shift: 16, format: Format::Dec, prereq: Prereq::Tcp, maskable: true },
    FieldDef { name: "tcp_dst", aliases: &[], nxm_name: "NXM_OF_TCP_DST", headers: &[(0x8000, 14), (0x0000, 10)], bits: 16, bytes: 2, word: 36, shift: 0, format: Format::Dec, prereq: Prereq::Tcp, maskable: true },
    FieldDef { name: "udp_src", aliases: &[], nxm_name: "NXM_OF_UDP_SRC", headers: &[(0x8000, 15), (0x0000, 11)], bits: 16, bytes: 2, word: 36, shift: 16, format: Format::Dec, prereq: Prereq::Udp, maskable: true },
    FieldDef { name: "udp_dst", aliases: &[], nxm_name: "NXM_OF_UDP_DST", headers: &[(0x8000, 16), (0x0000, 12)], bits: 16, bytes: 2, word: 36, shift: 0, format: Format::Dec, prereq: Prereq::Udp, maskable: true },
    FieldDef { name: "sctp_src", aliases: &[], nxm_name: "OXM_OF_SCTP_SRC", headers: &[(0x8000, 17)], bits: 16, bytes: 2, word: 36, shift: 16, format: Format::Dec, prereq: Prereq::Sctp, maskable: true },
    FieldDef { name: "sctp_dst", aliases: &[], nxm_name: "OXM_OF_SCTP_DST", headers: &[(0x8000, 18)], bits: 16, bytes: 2, word: 36, shift: 0, format: Format::Dec, prereq: Prereq::Sctp, maskable: true },
    FieldDef { name: "tcp_flags", aliases: &[], nxm_name: "NXM_NX_TCP_FLAGS", headers: &[(0x8000, 42), (0x0001, 34)], bits: 12, bytes: 2, word: 34, shift: 48, format: Format::TcpFlags, prereq: Prereq::Tcp, maskable: true },
    FieldDef { name: "icmp_type", aliases: &[], nxm_name: "NXM_OF_ICMP_TYPE", headers: &[(0x8000, 19), (0x0000, 13)], bits: 8, bytes: 1, word: 36, shift: 16, format: Format::Dec, prereq: Prereq::Icmp4, maskable: false },
    FieldDef { name: "icmp_code", aliases: &[], nxm_name: "NXM_OF_ICMP_CODE", headers: &[(0x8000, 20), (0x0000, 14)], bits: 8, bytes: 1, word: 36, shift: 0, format: Format::Dec, prereq: Prereq::Icmp4, maskable: false },
    FieldDef { name: "icmpv6_type", aliases: &[], nxm_name: "NXM_NX_ICMPV6_TYPE", headers: &[(0x8000, 29), (0x0001, 21)], bits: 8, bytes: 1, word: 36, shift: 16, format: Format::Dec, prereq: Prereq::Icmp6, maskable: false },
    FieldDef { name: "icmpv6_code", aliases: &[], nxm_name: "NXM_NX_ICMPV6_CODE", headers: &[(0x8000, 30), (0x0001, 22)], bits: 8, bytes: 1, word: 36, shift: 0, format: Format::Dec, prereq: Prereq::Icmp6, maskable: false },
    FieldDef { name: "nd_target", aliases: &[], nxm_name: "NXM_NX_ND_TARGET", headers: &[(0x8000, 31), (0x0001, 23)], bits: 128, bytes: 16, word: 37, shift: 0, format: Format::Ipv6, prereq: Prereq::Nd, maskable: true },
    FieldDef { name: "nd_sll", aliases: &[], nxm_name: "NXM_NX_ND_SLL", headers: &[(0x8000, 32), (0x0001, 24)], bits: 48, bytes: 6, word: 34, shift: 0, format: Format::Eth, prereq: Prereq::NdSolicit, maskable: true },
    FieldDef { name: "nd_tll", aliases: &[], nxm_name: "NXM_NX_ND_TLL", headers: &[(0x8000, 33), (0x0001, 25)], bits: 48, bytes: 6, word: 35, shift: 0, format: Format::Eth, prereq: Prereq::NdAdvert, maskable: true },
    FieldDef { name: "ct_state", aliases: &[], nxm_name: "NXM_NX_CT_STATE", headers: &[(0x0001, 105)], bits: 32, bytes: 4, word: 39, shift: 32, format: Format::CtState, prereq: Prereq::None, maskable: true },
    FieldDef { name: "ct_zone", aliases: &[], nxm_name: "NXM_NX_CT_ZONE", headers: &[(0x0001, 106)], bits: 16, bytes: 2, word: 39, shift: 16, format: Format::Hex, prereq: Prereq::None, maskable: false },
    FieldDef { name: "ct_nw_proto", aliases: &[], nxm_name: "NXM_NX_CT_NW_PROTO", headers: &[(0x0001, 119)], bits: 8, bytes: 1, word: 39, shift: 8, format: Format::Dec, prereq: Prereq::Ct, maskable: false },
    FieldDef { name: "ct_mark", aliases: &[], nxm_name: "NXM_NX_CT_MARK", headers: &[(0x0001, 107)], bits: 32, bytes: 4, word: 40, shift: 32, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "ct_label", aliases: &[], nxm_name: "NXM_NX_CT_LABEL", headers: &[(0x0001, 108)], bits: 128, bytes: 16, word: 41, shift: 0, format: Format::Hex, prereq: Prereq::None, maskable: true },
    FieldDef { name: "ct_nw_src", aliases: &[], nxm_name: "NXM_NX_CT_NW_SRC", headers: &[(0x0001, 120)], bits: 32, bytes: 4, word: 43, shift: 32, format: Format::Ipv4, prereq: Prereq::Ct4, maskable: true },
    FieldDef { name: "ct_nw_dst", aliases: &[], nxm_name: "NXM_NX_CT_NW_DST", headers: &[(0x0001, 121)], bits: 32, bytes: 4, word: 43, shift: 0, format: Format::Ipv4, prereq: Prereq::Ct4, maskable: true },
    FieldDef { name: "ct_ipv6_src", aliases: &[], nxm_name: "NXM_NX_CT_IPV6_SRC", headers: &[(0x0001, 122)], bits: 128, bytes: 16, word: 44, shift: 0, format: Format::Ipv6, prereq: Prereq::Ct6, maskable: true },
    FieldDef { name: "ct_ipv6_dst", aliases: &[], nxm_name: "NXM_NX_CT_IPV6_DST", headers: &[(0x0001, 123)], bits: 128, bytes: 16, word: 46, shift: 0, format: Format::Ipv6, prereq: Prereq::Ct6, maskable: true },
    FieldDef { name: "ct_tp_src", aliases: &[], nxm_name: "NXM_NX_CT_TP_SRC", headers: &[(0x0001, 124)], bits: 16, bytes: 2, word: 40, shift: 16, format: Format::Dec, prereq: Prereq::Ct, maskable: true },
    FieldDef { name: "ct_tp_dst", aliases: &[], nxm_name: "NXM_NX_CT_TP_DST", headers: &[(0x0001, 125)], bits: 16, bytes: 2, word: 40, shift: 0, format: Format::Dec, prereq: Prereq::Ct, maskable: true },
];
