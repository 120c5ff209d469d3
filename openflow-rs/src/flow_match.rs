//! Flow matches: which bits of a [`FlowKey`] must have which values.

use crate::action::{ETH_NSH, PacketType, is_mpls};
use crate::field::{FieldId, FlowKey, Prereq};
use crate::{ALL_FIELDS, WORDS, ones};

/// One 64-bit word of a match.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MatchWord {
    /// Index into [`FlowKey`].
    pub word: u8,
    /// Bits that must be equal.
    pub mask: u64,
    /// Their values; zero outside `mask`.
    pub value: u64,
}

/// A set of field → value/mask, in canonical form: equal matches compare and hash equal, however they were written.
#[derive(Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Match {
    words: Vec<MatchWord>,
}

/// EtherType of IPv4.
pub const ETH_IPV4: u128 = 0x0800;
/// EtherType of ARP.
pub const ETH_ARP: u128 = 0x0806;
/// EtherType of RARP.
pub const ETH_RARP: u128 = 0x8035;
/// EtherType of IPv6.
pub const ETH_IPV6: u128 = 0x86dd;

impl std::fmt::Debug for Match {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Match({self})")
    }
}

/// The words of a key that packets' bytes say.
const DATA_WORDS: std::ops::Range<u8> = FieldId::EthDst.word() as u8..FieldId::CtState.word() as u8;

/// Where a key has the packet's type: in the low 32 bits of its last word.
const TYPE_WORD: u8 = FieldId::PacketType.word() as u8;
const _: () = assert!(FieldId::PacketType.word() == WORDS - 1, "no field has a word behind packet_type's");
const TYPE_BITS: u64 = u32::MAX as u64;

/// Whether words, in their order, match what packets say, but not their type: only packets with an Ethernet header fit
/// (ovs-fields(7), `packet_type`).
pub fn want_ethernet(words: &[MatchWord]) -> bool {
    words.iter().any(|w| DATA_WORDS.contains(&w.word))
        && !words.last().is_some_and(|w| w.word == TYPE_WORD && w.mask & TYPE_BITS != 0)
}

impl Match {
    /// Matches every packet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Matches every packet; there is room for as many words as these.
    pub fn with_room(words: usize) -> Self {
        Match { words: Vec::with_capacity(words) }
    }

    /// The words, ordered by index; none has a zero mask.
    pub fn words(&self) -> &[MatchWord] {
        &self.words
    }

    fn set_word(&mut self, word: usize, value: u64, mask: u64) {
        if mask == 0 {
            return;
        }
        let word = word as u8;
        match self.words.binary_search_by_key(&word, |w| w.word) {
            Ok(i) => {
                if let Some(w) = self.words.get_mut(i) {
                    w.value = (w.value & !mask) | (value & mask);
                    w.mask |= mask;
                }
            }
            Err(i) => self.words.insert(i, MatchWord { word, mask, value: value & mask }),
        }
    }

    /// Requires a field to have exactly this value.
    pub fn set(&mut self, id: FieldId, value: u128) -> &mut Self {
        self.set_masked(id, value, id.full_mask())
    }

    /// Requires some bits of a field. Bits set earlier and not in `mask` stay.
    pub fn set_masked(&mut self, id: FieldId, value: u128, mask: u128) -> &mut Self {
        let d = id.def();
        let mask = mask & ones(d.bits);
        if d.bits > 64 {
            self.set_word(d.word, (value >> 64) as u64, (mask >> 64) as u64);
            self.set_word(d.word + 1, value as u64, mask as u64);
        } else {
            let mut m = (mask as u64) << d.shift;
            let mut v = (value as u64) << d.shift;
            if id == FieldId::VlanPcp && mask != 0 {
                m |= 0x1000 << 48;
                v |= 0x1000 << 48;
            }
            self.set_word(d.word, v, m);
            if let (FieldId::PacketType, true, Some(kind)) = (id, mask != 0, PacketType(value as u32).ethertype()) {
                self.set(FieldId::EthType, kind.into());
            }
            if let Some((word, bit)) = id.presence().filter(|_| mask != 0) {
                self.set_word(word, bit, bit);
            }
        }
        self
    }

    /// Requires a `tun_metadata` field to be there, whatever its value.
    pub fn require(&mut self, id: FieldId) {
        self.set_presence(id, true);
    }

    /// Requires a `tun_metadata` field to be there, or not to be.
    pub fn set_presence(&mut self, id: FieldId, there: bool) {
        if let Some((word, bit)) = id.presence() {
            self.set_word(word, if there { bit } else { 0 }, bit);
        }
    }

    /// Whether a `tun_metadata` field has to be there, or not to be; none: either will do.
    pub fn presence(&self, id: FieldId) -> Option<bool> {
        let (word, bit) = id.presence()?;
        let (value, mask) = self.word(word);
        (mask & bit != 0).then_some(value & bit != 0)
    }

    /// Builder form of [`Match::set`].
    pub fn with(mut self, id: FieldId, value: u128) -> Self {
        self.set(id, value);
        self
    }

    /// Builder form of [`Match::set_masked`].
    pub fn with_masked(mut self, id: FieldId, value: u128, mask: u128) -> Self {
        self.set_masked(id, value, mask);
        self
    }

    /// Stops matching on a field.
    pub fn clear(&mut self, id: FieldId) {
        let d = id.def();
        let mut wipe = |word: usize, mask: u64| {
            if let Ok(i) = self.words.binary_search_by_key(&(word as u8), |w| w.word) {
                if let Some(w) = self.words.get_mut(i) {
                    w.mask &= !mask;
                    w.value &= !mask;
                }
                if self.words.get(i).is_some_and(|w| w.mask == 0) {
                    self.words.remove(i);
                }
            }
        };
        if d.bits > 64 {
            wipe(d.word, u64::MAX);
            wipe(d.word + 1, u64::MAX);
        } else {
            wipe(d.word, (ones(d.bits) as u64) << d.shift);
            if let Some((word, bit)) = id.presence() {
                wipe(word, bit);
            }
        }
    }

    fn word(&self, word: usize) -> (u64, u64) {
        match self.words.binary_search_by_key(&(word as u8), |w| w.word) {
            Ok(i) => self.words.get(i).map_or((0, 0), |w| (w.value, w.mask)),
            Err(_) => (0, 0),
        }
    }

    /// (value, mask) of a field; the mask is zero if the field is not matched.
    pub fn get(&self, id: FieldId) -> (u128, u128) {
        let d = id.def();
        if d.bits > 64 {
            let (vh, mh) = self.word(d.word);
            let (vl, ml) = self.word(d.word + 1);
            ((u128::from(vh) << 64) | u128::from(vl), (u128::from(mh) << 64) | u128::from(ml))
        } else {
            let (v, m) = self.word(d.word);
            (u128::from(v >> d.shift) & ones(d.bits), u128::from(m >> d.shift) & ones(d.bits))
        }
    }

    /// The value of a field that is matched in full.
    pub fn exact(&self, id: FieldId) -> Option<u128> {
        let (v, m) = self.get(id);
        (m == id.full_mask()).then_some(v)
    }

    /// The type of packets that it matches, if it says one.
    pub fn packet_type(&self) -> Option<PacketType> {
        let last = self.words.last().filter(|w| w.word == TYPE_WORD && w.mask & TYPE_BITS != 0)?;
        Some(PacketType(last.value as u32))
    }

    /// Whether it is of packets without an Ethernet header.
    pub fn lacks_ethernet(&self) -> bool {
        self.packet_type().is_some_and(|t| t != PacketType::ETHERNET)
    }

    /// Leaves out that packets have an Ethernet header where what else is matched says so.
    pub fn leave_out_ethernet(&mut self) {
        if self.packet_type() == Some(PacketType::ETHERNET) && self.words.iter().any(|w| DATA_WORDS.contains(&w.word)) {
            self.clear(FieldId::PacketType);
        }
    }

    /// Whether a packet's key satisfies this match.
    pub fn matches(&self, key: &FlowKey) -> bool {
        self.words.iter().all(|w| key.0.get(w.word as usize).is_some_and(|k| (k ^ w.value) & w.mask == 0))
            && (key.get(FieldId::PacketType) == 0 || !want_ethernet(&self.words))
    }

    /// Whether every packet that satisfies `self` satisfies `wider` too (as loose flow deletion asks).
    pub fn is_within(&self, wider: &Match) -> bool {
        wider.words.iter().all(|w| {
            let (v, m) = self.word(w.word as usize);
            m & w.mask == w.mask && (v ^ w.value) & w.mask == 0
        }) && !(self.lacks_ethernet() && want_ethernet(&wider.words))
    }

    /// Whether a packet could satisfy both.
    pub fn overlaps(&self, other: &Match) -> bool {
        other.words.iter().all(|w| {
            let (v, m) = self.word(w.word as usize);
            (v ^ w.value) & w.mask & m == 0
        }) && !(self.lacks_ethernet() && want_ethernet(&other.words))
            && !(other.lacks_ethernet() && want_ethernet(&self.words))
    }

    /// The key with the matched values, zero elsewhere.
    pub fn key(&self) -> FlowKey {
        let mut k = FlowKey::new();
        for w in &self.words {
            if let Some(slot) = k.0.get_mut(w.word as usize) {
                *slot = w.value;
            }
        }
        k
    }

    /// Whether this match implies a field's prerequisite.
    pub fn satisfies(&self, p: Prereq) -> bool {
        use FieldId as F;
        let et = self.exact(F::EthType);
        let proto = self.exact(F::IpProto);
        let ip = matches!(et, Some(ETH_IPV4 | ETH_IPV6));
        // Later fragments have no ports.
        let first = self.get(F::IpFrag).0 & 2 == 0;
        let nd = |t: &[u128]| {
            et == Some(ETH_IPV6)
                && proto == Some(58)
                && self.exact(F::Icmpv6Type).is_some_and(|v| t.contains(&v))
                && self.get(F::Icmpv6Code).0 == 0
        };
        match p {
            Prereq::None => true,
            Prereq::Vlan => {
                let (v, m) = self.get(F::VlanTci);
                v & m & 0x1000 != 0
            }
            Prereq::Mpls => et.is_some_and(|t| is_mpls(t as u16)),
            Prereq::Nsh => et == Some(ETH_NSH.into()),
            Prereq::Arp => matches!(et, Some(ETH_ARP | ETH_RARP)),
            Prereq::Ipv4 => et == Some(ETH_IPV4),
            Prereq::Ipv6 => et == Some(ETH_IPV6),
            Prereq::Ip => ip,
            Prereq::Tcp => ip && proto == Some(6) && first,
            Prereq::Udp => ip && proto == Some(17) && first,
            Prereq::Sctp => ip && proto == Some(132) && first,
            Prereq::Icmp4 => et == Some(ETH_IPV4) && proto == Some(1),
            Prereq::Icmp6 => et == Some(ETH_IPV6) && proto == Some(58),
            Prereq::Nd => nd(&[135, 136]),
            Prereq::NdSolicit => nd(&[135]),
            Prereq::NdAdvert => nd(&[136]),
            Prereq::Ct | Prereq::Ct4 | Prereq::Ct6 => self.tracked(),
        }
    }

    /// Whether it is of packets with a valid connection: a flag that only they have, or not the one that they lack
    /// (ovs-fields(7), `ct_state`).
    pub fn tracked(&self) -> bool {
        const VALID: u128 = 0x01 | 0x02 | 0x04 | 0x08 | 0x40 | 0x80;
        const INVALID: u128 = 0x10;
        const TRACKED: u128 = 0x20;
        let (state, mask) = self.get(FieldId::CtState);
        state & VALID != 0 || state & TRACKED != 0 && mask & INVALID != 0 && state & INVALID == 0
    }

    /// The match as fields, each value and mask in the field's own terms, ordered so that every field
    /// comes after those that its prerequisites name. Shared storage is told apart by EtherType and protocol.
    pub fn fields(&self) -> Vec<(FieldId, u128, u128)> {
        let mut out = Vec::with_capacity(self.words.len() + 4);
        self.each_field(|id, value, mask| out.push((id, value, mask)));
        out
    }

    /// Hands over the fields of [`Match::fields`], in their order.
    pub(crate) fn each_field(&self, mut take: impl FnMut(FieldId, u128, u128)) {
        use FieldId as F;
        // Most fields are not matched: one look at this tells.
        let matched = self.words.iter().fold(0u64, |all, w| all | 1 << w.word);
        let mut put = |id: FieldId| {
            if matched & id.words() == 0 {
                return;
            }
            let (v, m) = self.get(id);
            // An option that only has to be there has a mask of no bits.
            if m != 0 || self.presence(id) == Some(true) {
                take(id, v, m);
            }
        };
        for id in [
            F::PacketType,
            F::DpHash,
            F::ConjId,
            F::InPort,
            F::ActsetOutput,
            F::EthSrc,
            F::EthDst,
            F::EthType,
            F::VlanTci,
        ] {
            // The packet's type has said it.
            if id != F::EthType || !self.lacks_ethernet() {
                put(id);
            }
        }
        let et = self.exact(F::EthType);
        let arp = matches!(et, Some(ETH_ARP | ETH_RARP));
        match et {
            Some(ETH_ARP | ETH_RARP) => {
                [F::ArpOp, F::ArpSpa, F::ArpTpa, F::ArpSha, F::ArpTha].into_iter().for_each(&mut put)
            }
            Some(t) if is_mpls(t as u16) => {
                [F::MplsLabel, F::MplsTc, F::MplsTtl, F::MplsBos, F::MplsLse1, F::MplsLse2]
                    .into_iter()
                    .for_each(&mut put);
            }
            Some(t) if t == ETH_NSH.into() => {
                [F::NshFlags, F::NshTtl, F::NshMdtype, F::NshNp, F::NshSpi, F::NshSi].into_iter().for_each(&mut put);
                [F::NshC1, F::NshC2, F::NshC3, F::NshC4].into_iter().for_each(&mut put);
            }
            Some(ETH_IPV6) => [F::Ipv6Src, F::Ipv6Dst, F::Ipv6Label].into_iter().for_each(&mut put),
            _ => [F::IpSrc, F::IpDst].into_iter().for_each(&mut put),
        }
        if !arp && !et.is_some_and(|t| is_mpls(t as u16) || t == ETH_NSH.into()) {
            [F::IpFrag, F::IpDscp, F::IpEcn, F::IpTtl, F::IpProto].into_iter().for_each(&mut put);
            match (et, self.exact(F::IpProto)) {
                (_, Some(17)) => [F::UdpSrc, F::UdpDst].into_iter().for_each(&mut put),
                (_, Some(132)) => [F::SctpSrc, F::SctpDst].into_iter().for_each(&mut put),
                (Some(ETH_IPV4), Some(1)) => [F::IcmpType, F::IcmpCode].into_iter().for_each(&mut put),
                (Some(ETH_IPV6), Some(58)) => {
                    [F::Icmpv6Type, F::Icmpv6Code, F::NdTarget, F::NdSll, F::NdTll].into_iter().for_each(&mut put);
                }
                _ => [F::TcpSrc, F::TcpDst, F::TcpFlags].into_iter().for_each(&mut put),
            }
        }
        for id in [
            F::TunId,
            F::TunSrc,
            F::TunDst,
            F::TunIpv6Src,
            F::TunIpv6Dst,
            F::TunFlags,
            F::TunGbpId,
            F::TunGbpFlags,
            F::TunErspanIdx,
            F::TunErspanVer,
            F::TunErspanDir,
            F::TunErspanHwid,
            F::TunGtpuFlags,
            F::TunGtpuMsgtype,
        ] {
            put(id);
        }
        for i in 0..8 {
            put(ALL_FIELDS[F::TunMetadata0 as usize + i]);
        }
        for i in 0..32 {
            put(ALL_FIELDS[F::Reg0 as usize + i]);
        }
        for id in [
            F::Metadata,
            F::PktMark,
            F::CtState,
            F::CtZone,
            F::CtMark,
            F::CtLabel,
            F::CtNwSrc,
            F::CtNwDst,
            F::CtIpv6Src,
            F::CtIpv6Dst,
            F::CtNwProto,
            F::CtTpSrc,
            F::CtTpDst,
        ] {
            put(id);
        }
    }
}
