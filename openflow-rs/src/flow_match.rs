//! Flow matches: which bits of a [`FlowKey`] must have which values.

use crate::action::{ETH_NSH, PacketType, is_mpls};
use crate::field::FieldId as F;
use crate::field::{FieldId, FlowKey, Prereq, low_bits};
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
        let d = id.place();
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
        let d = id.place();
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
        get_from(id, |word| self.word(word))
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

    /// Hands over the fields of [`Match::fields`], in their order. A look at each field that there is would take longer than
    /// all else: only those are looked at that have a part in a word that is matched.
    pub(crate) fn each_field(&self, mut take: impl FnMut(FieldId, u128, u128)) {
        let (mut matched, mut places) = (0u64, 0u128);
        for w in &self.words {
            matched |= 1 << w.word;
            places |= IN_WORD.get(usize::from(w.word)).copied().unwrap_or(0);
        }
        // The words are in their order, each once.
        let word = |word: usize| {
            let before = (matched & ((1 << word) - 1)).count_ones();
            let found = self.words.get(before as usize).filter(|w| usize::from(w.word) == word);
            found.map_or((0, 0), |w| (w.value, w.mask))
        };
        places &= self.said();
        while places != 0 {
            let id = ORDER[places.trailing_zeros() as usize];
            places &= places - 1;
            let (v, m) = get_from(id, word);
            // An option that only has to be there has a mask of no bits.
            if m != 0 || self.presence(id) == Some(true) {
                take(id, v, m);
            }
        }
    }

    /// The places in [`ORDER`] of the fields that it can say something of: by the packet's type, EtherType and protocol.
    fn said(&self) -> u128 {
        let kind = self.exact(FieldId::EthType);
        let network = match kind {
            Some(ETH_ARP | ETH_RARP) => places(&ARP),
            Some(t) if is_mpls(t as u16) => places(&MPLS),
            Some(t) if t == ETH_NSH.into() => places(&NSH),
            kind => {
                let addresses = if kind == Some(ETH_IPV6) { places(&IPV6) } else { places(&IPV4) };
                let transport = match (kind, self.exact(FieldId::IpProto)) {
                    (_, Some(17)) => places(&UDP),
                    (_, Some(132)) => places(&SCTP),
                    (Some(ETH_IPV4), Some(1)) => places(&ICMP),
                    (Some(ETH_IPV6), Some(58)) => places(&ICMPV6),
                    _ => places(&TCP),
                };
                addresses | places(&IP) | transport
            }
        };
        // Where there is no Ethernet header, the packet's type has said it.
        let link = if self.lacks_ethernet() { places(&[FieldId::EthType]) } else { 0 };
        (BY_NO_KIND | network) & !link
    }
}

/// (value, mask) of a field, from those of words.
fn get_from(id: FieldId, word: impl Fn(usize) -> (u64, u64)) -> (u128, u128) {
    let d = id.place();
    let (v, m) = word(d.word);
    if d.bits > 64 {
        let (vl, ml) = word(d.word + 1);
        return ((u128::from(v) << 64) | u128::from(vl), (u128::from(m) << 64) | u128::from(ml));
    }
    (u128::from(v >> d.shift & low_bits(d.bits)), u128::from(m >> d.shift & low_bits(d.bits)))
}

const ARP: [FieldId; 5] = [F::ArpOp, F::ArpSpa, F::ArpTpa, F::ArpSha, F::ArpTha];
const MPLS: [FieldId; 6] = [F::MplsLabel, F::MplsTc, F::MplsTtl, F::MplsBos, F::MplsLse1, F::MplsLse2];
#[rustfmt::skip]
const NSH: [FieldId; 10] = [
    F::NshFlags, F::NshTtl, F::NshMdtype, F::NshNp, F::NshSpi, F::NshSi, F::NshC1, F::NshC2, F::NshC3, F::NshC4,
];
const IPV6: [FieldId; 3] = [F::Ipv6Src, F::Ipv6Dst, F::Ipv6Label];
const IPV4: [FieldId; 2] = [F::IpSrc, F::IpDst];
const IP: [FieldId; 5] = [F::IpFrag, F::IpDscp, F::IpEcn, F::IpTtl, F::IpProto];
const UDP: [FieldId; 2] = [F::UdpSrc, F::UdpDst];
const SCTP: [FieldId; 2] = [F::SctpSrc, F::SctpDst];
const ICMP: [FieldId; 2] = [F::IcmpType, F::IcmpCode];
const ICMPV6: [FieldId; 5] = [F::Icmpv6Type, F::Icmpv6Code, F::NdTarget, F::NdSll, F::NdTll];
const TCP: [FieldId; 3] = [F::TcpSrc, F::TcpDst, F::TcpFlags];

/// The fields in the order in which a match has them.
#[rustfmt::skip]
const ORDER: [FieldId; 121] = {
    let registers: &[FieldId] = ALL_FIELDS.split_at(F::Reg0 as usize).1.split_at(32).0;
    let options: &[FieldId] = ALL_FIELDS.split_at(F::TunMetadata0 as usize).1.split_at(8).0;
    let parts: [&[FieldId]; 16] = [
        &[F::PacketType, F::DpHash, F::ConjId, F::InPort, F::ActsetOutput, F::EthSrc, F::EthDst, F::EthType, F::VlanTci],
        &ARP, &MPLS, &NSH, &IPV6, &IPV4, &IP, &UDP, &SCTP, &ICMP, &ICMPV6, &TCP,
        &[
            F::TunId, F::TunSrc, F::TunDst, F::TunIpv6Src, F::TunIpv6Dst, F::TunFlags, F::TunGbpId, F::TunGbpFlags,
            F::TunErspanIdx, F::TunErspanVer, F::TunErspanDir, F::TunErspanHwid, F::TunGtpuFlags, F::TunGtpuMsgtype,
        ],
        options,
        registers,
        &[
            F::Metadata, F::PktMark, F::CtState, F::CtZone, F::CtMark, F::CtLabel, F::CtNwSrc, F::CtNwDst, F::CtIpv6Src,
            F::CtIpv6Dst, F::CtNwProto, F::CtTpSrc, F::CtTpDst,
        ],
    ];
    let (mut order, mut n, mut i) = ([F::ConjId; 121], 0, 0);
    while i < parts.len() {
        let mut k = 0;
        while k < parts[i].len() {
            order[n] = parts[i][k];
            (n, k) = (n + 1, k + 1);
        }
        i += 1;
    }
    assert!(n == order.len());
    order
};

/// The places of fields in [`ORDER`], a bit each.
const fn places(fields: &[FieldId]) -> u128 {
    let (mut all, mut i) = (0, 0);
    while i < fields.len() {
        let mut k = 0;
        while ORDER[k] as u8 != fields[i] as u8 {
            k += 1;
        }
        all |= 1 << k;
        i += 1;
    }
    all
}

/// The places of the fields that matches of each kind of packets may have.
const BY_NO_KIND: u128 = {
    let kinds = places(&ARP) | places(&MPLS) | places(&NSH) | places(&IPV6) | places(&IPV4) | places(&IP);
    let transport = places(&UDP) | places(&SCTP) | places(&ICMP) | places(&ICMPV6) | places(&TCP);
    ((1 << ORDER.len()) - 1) & !kinds & !transport
};

/// The places of the fields that have a part in each word of a key.
const IN_WORD: [u128; WORDS] = {
    let mut all = [0; WORDS];
    let mut i = 0;
    while i < ORDER.len() {
        let words = ORDER[i].words();
        let mut w = 0;
        while w < WORDS {
            if words & 1 << w != 0 {
                all[w] |= 1 << i;
            }
            w += 1;
        }
        i += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The fields of a match: of each field that its kind of packets has it is asked what is said.
    fn asked_one_by_one(m: &Match) -> Vec<(FieldId, u128, u128)> {
        let (kind, protocol) = (m.exact(F::EthType), m.exact(F::IpProto));
        let arp = matches!(kind, Some(ETH_ARP | ETH_RARP));
        let mpls = kind.is_some_and(|t| is_mpls(t as u16));
        let nsh = kind == Some(ETH_NSH.into());
        let ip = !arp && !mpls && !nsh;
        let icmp = kind == Some(ETH_IPV4) && protocol == Some(1);
        let icmpv6 = kind == Some(ETH_IPV6) && protocol == Some(58);
        let parts: [(&[FieldId], bool); 11] = [
            (&ARP, arp),
            (&MPLS, mpls),
            (&NSH, nsh),
            (&IPV6, kind == Some(ETH_IPV6)),
            (&IPV4, ip && kind != Some(ETH_IPV6)),
            (&IP, ip),
            (&UDP, ip && protocol == Some(17)),
            (&SCTP, ip && protocol == Some(132)),
            (&ICMP, icmp),
            (&ICMPV6, icmpv6),
            (&TCP, ip && !icmp && !icmpv6 && !matches!(protocol, Some(17 | 132))),
        ];
        let has = |id: &FieldId| parts.iter().all(|(fields, there)| *there || !fields.contains(id));
        let said = |id: &FieldId| {
            let (value, mask) = m.get(*id);
            let there = mask != 0 || m.presence(*id) == Some(true);
            (there && (*id != F::EthType || !m.lacks_ethernet())).then_some((*id, value, mask))
        };
        ORDER.iter().filter(|id| has(id)).filter_map(said).collect()
    }

    fn some_match() -> impl Strategy<Value = Match> {
        let types = vec![0x0800, 0x86dd, 0x0806, 0x8035, 0x8847, 0x894f, 0x1234];
        let kind = proptest::option::of(prop::sample::select(types));
        let protocol = proptest::option::of(prop::sample::select(vec![1, 6, 17, 58, 132, 99]));
        let field = (prop::sample::select(ALL_FIELDS), any::<u128>(), prop_oneof![Just(u128::MAX), any::<u128>()]);
        (kind, protocol, prop::collection::vec(field, 0..8)).prop_map(|(kind, protocol, fields)| {
            let mut m = Match::new();
            for (id, value, mask) in fields {
                m.set_masked(id, value, mask);
            }
            for (id, value) in [(F::EthType, kind), (F::IpProto, protocol)] {
                if let Some(v) = value {
                    m.set(id, v);
                }
            }
            m
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn fields_are_those_that_are_asked_for_one_by_one(m in some_match()) {
            prop_assert_eq!(m.fields(), asked_one_by_one(&m));
        }
    }
}
