//! Fields: identity, place in a [`FlowKey`], names and wire headers.

use crate::field_table::DEFS;
pub use crate::field_table::{ALL_FIELDS, FieldId, WORDS};
use std::collections::HashMap;
use std::sync::OnceLock;

/// How a field's value is written in text (ovs-fields(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Hexadecimal with `0x`; zero is `0`.
    Hex,
    /// Decimal.
    Dec,
    /// Ethernet address.
    Eth,
    /// Dotted quad.
    Ipv4,
    /// RFC 5952 text.
    Ipv6,
    /// OpenFlow port: a number or a reserved name.
    Port,
    /// Fragment keyword.
    Frag,
    /// Connection state flags.
    CtState,
    /// TCP flags.
    TcpFlags,
    /// Tunnel flags.
    TunFlags,
    /// Namespace and type of a packet: `(1,0x800)`.
    PacketType,
}

/// What a packet must be for a field to exist (ovs-fields(7), "Prerequisites").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prereq {
    /// Always there.
    None,
    /// A VLAN tag.
    Vlan,
    /// MPLS.
    Mpls,
    /// A network service header (RFC 8300).
    Nsh,
    /// ARP or RARP.
    Arp,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// IPv4 or IPv6.
    Ip,
    /// TCP over IP.
    Tcp,
    /// UDP over IP.
    Udp,
    /// SCTP over IP.
    Sctp,
    /// ICMP over IPv4.
    Icmp4,
    /// ICMPv6.
    Icmp6,
    /// Neighbour solicitation or advertisement.
    Nd,
    /// Neighbour solicitation.
    NdSolicit,
    /// Neighbour advertisement.
    NdAdvert,
    /// Tracked, IPv4 or IPv6.
    Ct,
    /// Tracked IPv4.
    Ct4,
    /// Tracked IPv6.
    Ct6,
}

/// Static description of one field.
#[derive(Clone, Copy, Debug)]
pub struct FieldDef {
    /// Name in `set_field`, `learn` and matches.
    pub name: &'static str,
    /// Other accepted names.
    pub aliases: &'static [&'static str],
    /// Name in subfield notation, such as `NXM_NX_REG0`; empty if the field has no wire form.
    pub nxm_name: &'static str,
    /// (class, field number), preferred first for OpenFlow 1.2 and later. Fields of experimenters have a class of
    /// `experimenter`.
    pub headers: &'static [(u16, u8)],
    /// Width in bits.
    pub bits: u32,
    /// Length on the wire, in bytes.
    pub bytes: usize,
    /// First word in a [`FlowKey`].
    pub word: usize,
    /// Shift within the word (0 for 128-bit fields).
    pub shift: u32,
    /// Text form.
    pub format: Format,
    /// Prerequisite.
    pub prereq: Prereq,
    /// Whether bitwise masks are allowed.
    pub maskable: bool,
}

/// The class that stands for NSH's fields in [`FieldDef::headers`].
pub(crate) const NSH_CLASS: u16 = 0xff01;
/// The class that stands for Nicira's own ones of those.
pub(crate) const ET_CLASS: u16 = 0xff02;

/// The experimenter whose fields a class stands for. On the wire they have the class 0xffff, and the experimenter's number
/// behind the header (OpenFlow 1.5 section 7.2.3.10).
pub(crate) const fn experimenter(class: u16) -> Option<u32> {
    match class {
        NSH_CLASS => Some(0x005a_d650),
        ET_CLASS => Some(crate::wire::NX_VENDOR),
        _ => None,
    }
}

/// The class that stands for an experimenter's fields.
pub(crate) const fn class_of_experimenter(id: u32) -> Option<u16> {
    match id {
        0x005a_d650 => Some(NSH_CLASS),
        crate::wire::NX_VENDOR => Some(ET_CLASS),
        _ => None,
    }
}

/// `n` low one-bits, up to 128.
pub const fn ones(n: u32) -> u128 {
    if n >= 128 { u128::MAX } else { (1u128 << n) - 1 }
}

/// `n` low one-bits, up to 64.
#[inline(always)]
pub(crate) const fn low_bits(n: u32) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// What [`FlowKey`] and [`crate::Match`] need of a field's description, in little room.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) word: usize,
    pub(crate) shift: u32,
    pub(crate) bits: u32,
}

const PLACES: [Place; DEFS.len()] = {
    let mut places = [Place { word: 0, shift: 0, bits: 0 }; DEFS.len()];
    let mut i = 0;
    while i < places.len() {
        places[i] = Place { word: DEFS[i].word, shift: DEFS[i].shift, bits: DEFS[i].bits };
        i += 1;
    }
    places
};

/// The words of a [`FlowKey`] that each field has a part in, that of its presence included: a bit each.
const WORDS_OF: [u64; DEFS.len()] = {
    assert!(WORDS <= 64);
    let mut all = [0; DEFS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = 1 << PLACES[i].word;
        if PLACES[i].bits > 64 {
            all[i] |= 1 << (PLACES[i].word + 1);
        }
        // One of the eight `tun_metadata` fields.
        if i.wrapping_sub(FieldId::TunMetadata0 as usize) < 8 {
            all[i] |= 1 << OPTIONS_PRESENT.0;
        }
        i += 1;
    }
    all
};

struct Index {
    names: HashMap<&'static str, FieldId>,
    nxm: HashMap<&'static str, FieldId>,
    headers: HashMap<(u16, u8), FieldId>,
}

fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| {
        let mut ix = Index { names: HashMap::new(), nxm: HashMap::new(), headers: HashMap::new() };
        for &id in ALL_FIELDS {
            let def = id.def();
            ix.names.insert(def.name, id);
            for a in def.aliases {
                ix.names.insert(a, id);
            }
            if !def.nxm_name.is_empty() {
                ix.nxm.insert(def.nxm_name, id);
            }
            for h in def.headers {
                ix.headers.insert(*h, id);
            }
        }
        for (alias, id) in [
            ("OXM_OF_ETH_DST", FieldId::EthDst),
            ("OXM_OF_ETH_SRC", FieldId::EthSrc),
            ("OXM_OF_ETH_TYPE", FieldId::EthType),
            ("OXM_OF_IP_PROTO", FieldId::IpProto),
            ("OXM_OF_IPV4_SRC", FieldId::IpSrc),
            ("OXM_OF_IPV4_DST", FieldId::IpDst),
            ("OXM_OF_IPV6_SRC", FieldId::Ipv6Src),
            ("OXM_OF_IPV6_DST", FieldId::Ipv6Dst),
            ("OXM_OF_TCP_SRC", FieldId::TcpSrc),
            ("OXM_OF_TCP_DST", FieldId::TcpDst),
            ("OXM_OF_UDP_SRC", FieldId::UdpSrc),
            ("OXM_OF_UDP_DST", FieldId::UdpDst),
            ("OXM_OF_ARP_OP", FieldId::ArpOp),
            ("OXM_OF_ARP_SPA", FieldId::ArpSpa),
            ("OXM_OF_ARP_TPA", FieldId::ArpTpa),
            ("OXM_OF_ARP_SHA", FieldId::ArpSha),
            ("OXM_OF_ARP_THA", FieldId::ArpTha),
            ("OXM_OF_TUNNEL_ID", FieldId::TunId),
            ("OXM_OF_ICMPV4_TYPE", FieldId::IcmpType),
            ("OXM_OF_ICMPV4_CODE", FieldId::IcmpCode),
            ("OXM_OF_ICMPV6_TYPE", FieldId::Icmpv6Type),
            ("OXM_OF_ICMPV6_CODE", FieldId::Icmpv6Code),
            ("OXM_OF_IPV6_ND_TARGET", FieldId::NdTarget),
            ("OXM_OF_IPV6_ND_SLL", FieldId::NdSll),
            ("OXM_OF_IPV6_ND_TLL", FieldId::NdTll),
        ] {
            ix.nxm.insert(alias, id);
        }
        ix
    })
}

impl FieldId {
    /// The field's description.
    pub const fn def(self) -> &'static FieldDef {
        &DEFS[self as usize]
    }

    /// Where a key holds the field. Compilers know it for a field that they know.
    #[inline(always)]
    pub(crate) const fn place(self) -> Place {
        PLACES[self as usize]
    }

    /// Its first word in a [`FlowKey`].
    #[inline]
    pub const fn word(self) -> usize {
        self.place().word
    }

    /// The words that it has a part in, a bit each.
    #[inline(always)]
    pub const fn words(self) -> u64 {
        WORDS_OF[self as usize]
    }

    /// Width in bits.
    pub const fn bits(self) -> u32 {
        self.place().bits
    }

    /// Whether it belongs to a packet's way through a switch, not to its bytes (OpenFlow 1.5 section 7.2.3.9).
    pub fn is_pipeline(self) -> bool {
        self < FieldId::EthDst || self >= FieldId::CtState
    }

    /// Whether it lies in an Ethernet header, or in the tags behind it.
    pub fn is_link(self) -> bool {
        use FieldId as F;
        matches!(
            self,
            F::EthDst
                | F::EthSrc
                | F::EthType
                | F::VlanTci
                | F::VlanVid
                | F::VlanPcp
                | F::VlanTpid
                | F::Vlan1Tci
                | F::Vlan1Tpid
        )
    }

    /// All-ones mask of the field's width.
    pub fn full_mask(self) -> u128 {
        ones(self.bits())
    }

    /// Finds a field by its match or `set_field` name, or by its NXM/OXM name.
    pub fn by_name(name: &str) -> Option<FieldId> {
        let ix = index();
        ix.names.get(name).or_else(|| ix.nxm.get(name)).copied()
    }

    /// Finds a field by its OXM class and field number.
    pub fn by_header(class: u16, number: u8) -> Option<FieldId> {
        index().headers.get(&(class, number)).copied()
    }

    /// Register `n`, 0 to 31.
    pub fn reg(n: usize) -> Option<FieldId> {
        (n < 32).then(|| ALL_FIELDS[FieldId::Reg0 as usize + n])
    }
}

/// A packed set of all fields of a packet: the key that classifiers and caches look up.
///
/// Fields that can never be present together, or are parts of one another, share storage:
/// `reg0`/`reg1` are the halves of `xreg0`, `arp_spa` lies where `ip_src` does, and so on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FlowKey(pub [u64; WORDS]);

impl Default for FlowKey {
    fn default() -> Self {
        FlowKey([0; WORDS])
    }
}

impl std::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut list = f.debug_map();
        for &id in ALL_FIELDS {
            let v = self.get(id);
            if v != 0 {
                list.entry(&id.def().name, &format_args!("{v:#x}"));
            }
        }
        list.finish()
    }
}

/// Where a key says which `tun_metadata` fields are there: word and lowest of eight bits. To match a field in any way asks
/// for its presence (ovs-fields(7), "Tunnel Fields").
const OPTIONS_PRESENT: (usize, u32) = (16, 56);

impl FieldId {
    /// For a `tun_metadata` field, the word and bit of a key that say whether it is there.
    pub fn presence(self) -> Option<(usize, u64)> {
        let n = (self as usize).checked_sub(FieldId::TunMetadata0 as usize).filter(|n| *n < 8)?;
        Some((OPTIONS_PRESENT.0, 1 << (OPTIONS_PRESENT.1 + n as u32)))
    }
}

impl FlowKey {
    /// An all-zero key.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of a field, right-aligned.
    #[inline]
    pub fn get(&self, id: FieldId) -> u128 {
        let p = id.place();
        if p.bits > 64 {
            (u128::from(self.0[p.word]) << 64) | u128::from(self.0[p.word + 1])
        } else {
            u128::from(self.0[p.word] >> p.shift & low_bits(p.bits))
        }
    }

    /// Sets a field; bits beyond its width are ignored.
    #[inline]
    pub fn set(&mut self, id: FieldId, value: u128) {
        self.set_masked(id, value, u128::MAX);
    }

    /// Sets the bits of a field that `mask` selects.
    #[inline]
    pub fn set_masked(&mut self, id: FieldId, value: u128, mask: u128) {
        let p = id.place();
        if p.bits > 64 {
            let mask = mask & ones(p.bits);
            let (vh, vl) = ((value >> 64) as u64, value as u64);
            let (mh, ml) = ((mask >> 64) as u64, mask as u64);
            self.0[p.word] = (self.0[p.word] & !mh) | (vh & mh);
            self.0[p.word + 1] = (self.0[p.word + 1] & !ml) | (vl & ml);
        } else {
            let m = (mask as u64 & low_bits(p.bits)) << p.shift;
            let v = (value as u64) << p.shift;
            self.0[p.word] = (self.0[p.word] & !m) | (v & m);
        }
    }

    /// ORs all bits of a field into this key, taken as a mask.
    #[inline]
    pub fn unwildcard(&mut self, id: FieldId) {
        self.set(id, u128::MAX);
    }

    /// The value of a subfield.
    pub fn get_sub(&self, sub: &Subfield) -> u128 {
        (self.get(sub.field) >> sub.ofs) & ones(sub.n_bits)
    }

    /// Sets a subfield.
    pub fn set_sub(&mut self, sub: &Subfield, value: u128) {
        let mask = ones(sub.n_bits).checked_shl(sub.ofs).unwrap_or(0);
        self.set_masked(sub.field, value.checked_shl(sub.ofs).unwrap_or(0), mask);
    }
}

/// Some consecutive bits of a field, written `NXM_NX_REG0[0..15]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Subfield {
    /// The field.
    pub field: FieldId,
    /// First bit, from the least significant.
    pub ofs: u32,
    /// Number of bits.
    pub n_bits: u32,
}

impl Subfield {
    /// The whole of a field.
    pub fn full(field: FieldId) -> Self {
        Subfield { field, ofs: 0, n_bits: Subfield::width(field) }
    }

    /// So many bits of a field can be named: not the one that says that there is a VLAN, nor flags without a meaning.
    pub fn width(field: FieldId) -> u32 {
        match field {
            FieldId::VlanVid => 12,
            FieldId::TunFlags => 1,
            // As wide as on the wire; what is beyond the eight bits that there are does not count.
            FieldId::ArpOp => 16,
            f => f.bits(),
        }
    }

    /// Bits `first..=last` of a field, `None` if they lie outside.
    pub fn bits(field: FieldId, first: u32, last: u32) -> Option<Self> {
        (first <= last && last < Subfield::width(field)).then(|| Subfield {
            field,
            ofs: first,
            n_bits: last - first + 1,
        })
    }

    /// True if this covers the whole field.
    pub fn is_full(&self) -> bool {
        self.ofs == 0 && self.n_bits == Subfield::width(self.field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second names of ovs-fields(7) for fields that the table has.
    #[test]
    fn a_field_is_found_by_each_of_its_names() {
        let names = [
            ("tun_id", "tunnel_id"),
            ("eth_src", "dl_src"),
            ("eth_dst", "dl_dst"),
            ("eth_type", "dl_type"),
            ("ip_src", "nw_src"),
            ("ip_dst", "nw_dst"),
            ("nw_proto", "ip_proto"),
            ("nw_ecn", "ip_ecn"),
            ("ip_frag", "nw_frag"),
            ("tcp_src", "tp_src"),
            ("tcp_dst", "tp_dst"),
        ];
        for (name, second) in names {
            let found = FieldId::by_name(name);
            assert!(found.is_some() && found == FieldId::by_name(second), "{name}, {second}");
        }
    }
}
