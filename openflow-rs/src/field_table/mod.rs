//! The table of match fields: one row each (manual page ovs-fields(7), OpenFlow 1.5 section 7.2.3).

mod connection;
mod link;
mod metadata;
mod network;
mod nsh;
mod registers;
mod transport;
mod tunnel;

use crate::field::FieldDef;

/// Number of 64-bit words of a [`crate::FlowKey`].
pub const WORDS: usize = 59;

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
    /// Register 16.
    Reg16,
    /// Register 17.
    Reg17,
    /// Register 18.
    Reg18,
    /// Register 19.
    Reg19,
    /// Register 20.
    Reg20,
    /// Register 21.
    Reg21,
    /// Register 22.
    Reg22,
    /// Register 23.
    Reg23,
    /// Register 24.
    Reg24,
    /// Register 25.
    Reg25,
    /// Register 26.
    Reg26,
    /// Register 27.
    Reg27,
    /// Register 28.
    Reg28,
    /// Register 29.
    Reg29,
    /// Register 30.
    Reg30,
    /// Register 31.
    Reg31,
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
    /// 64-bit register 8.
    XReg8,
    /// 64-bit register 9.
    XReg9,
    /// 64-bit register 10.
    XReg10,
    /// 64-bit register 11.
    XReg11,
    /// 64-bit register 12.
    XReg12,
    /// 64-bit register 13.
    XReg13,
    /// 64-bit register 14.
    XReg14,
    /// 64-bit register 15.
    XReg15,
    /// 128-bit register 0.
    XxReg0,
    /// 128-bit register 1.
    XxReg1,
    /// 128-bit register 2.
    XxReg2,
    /// 128-bit register 3.
    XxReg3,
    /// 128-bit register 4.
    XxReg4,
    /// 128-bit register 5.
    XxReg5,
    /// 128-bit register 6.
    XxReg6,
    /// 128-bit register 7.
    XxReg7,
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
    /// Version of ERSPAN: 1 (type II) or 2 (type III).
    TunErspanVer,
    /// Index of the mirrored port, in version 1.
    TunErspanIdx,
    /// Whether the frame was mirrored as it left, in version 2.
    TunErspanDir,
    /// Number of the mirroring hardware, in version 2.
    TunErspanHwid,
    /// Version and flags of GTP-U.
    TunGtpuFlags,
    /// Type of the message of GTP-U: 255 has a packet in it.
    TunGtpuMsgtype,
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
    /// Label of the outermost stack entry of MPLS.
    MplsLabel,
    /// Traffic class of that entry.
    MplsTc,
    /// Bottom of stack.
    MplsBos,
    /// Time to live of that entry.
    MplsTtl,
    /// The outermost stack entry (internal).
    MplsLse,
    /// The second stack entry (internal).
    MplsLse1,
    /// The third stack entry (internal).
    MplsLse2,
    /// Flags of the network service header (RFC 8300): O and a reserved one.
    NshFlags,
    /// Its time to live, of six bits.
    NshTtl,
    /// Its type of metadata.
    NshMdtype,
    /// What is behind it.
    NshNp,
    /// Its service path.
    NshSpi,
    /// Its place in the service path.
    NshSi,
    /// Word 1 of its context, with metadata of type 1.
    NshC1,
    /// Word 2 of its context, with metadata of type 1.
    NshC2,
    /// Word 3 of its context, with metadata of type 1.
    NshC3,
    /// Word 4 of its context, with metadata of type 1.
    NshC4,
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
    FieldId::Reg16,
    FieldId::Reg17,
    FieldId::Reg18,
    FieldId::Reg19,
    FieldId::Reg20,
    FieldId::Reg21,
    FieldId::Reg22,
    FieldId::Reg23,
    FieldId::Reg24,
    FieldId::Reg25,
    FieldId::Reg26,
    FieldId::Reg27,
    FieldId::Reg28,
    FieldId::Reg29,
    FieldId::Reg30,
    FieldId::Reg31,
    FieldId::XReg0,
    FieldId::XReg1,
    FieldId::XReg2,
    FieldId::XReg3,
    FieldId::XReg4,
    FieldId::XReg5,
    FieldId::XReg6,
    FieldId::XReg7,
    FieldId::XReg8,
    FieldId::XReg9,
    FieldId::XReg10,
    FieldId::XReg11,
    FieldId::XReg12,
    FieldId::XReg13,
    FieldId::XReg14,
    FieldId::XReg15,
    FieldId::XxReg0,
    FieldId::XxReg1,
    FieldId::XxReg2,
    FieldId::XxReg3,
    FieldId::XxReg4,
    FieldId::XxReg5,
    FieldId::XxReg6,
    FieldId::XxReg7,
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
    FieldId::TunErspanVer,
    FieldId::TunErspanIdx,
    FieldId::TunErspanDir,
    FieldId::TunErspanHwid,
    FieldId::TunGtpuFlags,
    FieldId::TunGtpuMsgtype,
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
    FieldId::MplsLabel,
    FieldId::MplsTc,
    FieldId::MplsBos,
    FieldId::MplsTtl,
    FieldId::MplsLse,
    FieldId::MplsLse1,
    FieldId::MplsLse2,
    FieldId::NshFlags,
    FieldId::NshTtl,
    FieldId::NshMdtype,
    FieldId::NshNp,
    FieldId::NshSpi,
    FieldId::NshSi,
    FieldId::NshC1,
    FieldId::NshC2,
    FieldId::NshC3,
    FieldId::NshC4,
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

/// The rows of all families, in the order of [`FieldId`].
pub(crate) static DEFS: [FieldDef; ALL_FIELDS.len()] = {
    let families: [&[FieldDef]; 8] = [
        &metadata::DEFS,
        &registers::DEFS,
        &tunnel::DEFS,
        &link::DEFS,
        &nsh::DEFS,
        &network::DEFS,
        &transport::DEFS,
        &connection::DEFS,
    ];
    let mut all = [metadata::DEFS[0]; ALL_FIELDS.len()];
    let (mut family, mut n) = (0, 0);
    while family < families.len() {
        let mut i = 0;
        while i < families[family].len() {
            all[n] = families[family][i];
            (i, n) = (i + 1, n + 1);
        }
        family += 1;
    }
    assert!(n == all.len());
    all
};
