//! Megaflows: one entry for all packets that agree in the bits that decided.
//!
//! A walk that depends on some bits of the packet only (no connections) is the same for every packet with
//! these bits. While it is recorded, [`DependencyMask`] collects the bits that lookups compare and that actions read or
//! write. The packet's key under this mask is the key of the entry. There are few masks for each kind of frame
//! ([`Masks`]). A packet is looked up under these masks first, then by its whole key.

use super::key::{
    BLOCK, KINDS, Layout, MASK_BLOCKS, NUMBER, PackedKey, RAW_WORDS, SHAPES, Shape, places, solicits, used, within,
};
use crate::bridge::Bridge;
use crate::bridge::bond::Spread;
use crate::classifier::{Classifier, Rule};
use crate::extract::PACKET_WORDS;
use openflow_rs::action::{Action, LearnSrc, SampleId, ZoneSpec};
use openflow_rs::{FieldId as F, FlowKey, PortNo, Prereq, Subfield, WORDS, ones};
use packet::ipproto;
use std::sync::Arc;

/// Masks of one kind of frame.
const MOST: usize = 8;
/// Packets of a kind after which the use of its masks is judged.
const TRIES: u32 = 1024;
/// If masks are of no use, so many packets are looked up by their whole key first.
const PAUSE: u32 = 16_384;
/// A key's first word holds the number of its mask from [`NUMBER`] on; 0: none. Entries under an old mask may still exist,
/// also in other threads: a number is not reused before all of them are stale ([`Masks::renumber`]).
pub(super) const NUMBERS: u64 = (1 << (63 - NUMBER)) - 1;

/// Reserved port numbers begin here (OpenFlow 1.5 section 7.2.1); these two mean one port each.
const RESERVED: u16 = 0xff00;
const ONE: [PortNo; 2] = [PortNo::LOCAL, PortNo::IN_PORT];

/// What of a tunnel's headers only spreads flows.
const SPREADS: [F; 2] = [F::TcpSrc, F::Ipv6Label];

/// Which packet of a walk bits are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Layer {
    /// As received.
    #[default]
    Received,
    /// Taken out of its tunnel.
    Inner,
    /// Put into a tunnel during the walk.
    Made,
    /// One of the first two after NAT: its addresses and ports come from its connection.
    Translated,
}

/// Ports of the packet's tuple, and the fields that hold those of its connection's original tuple.
const PORTS: [(F, F); 2] = [(F::TcpSrc, F::CtTpSrc), (F::TcpDst, F::CtTpDst)];
/// The same for addresses of IPv4.
const ADDRESSES: [(F, F); 2] = [(F::IpSrc, F::CtNwSrc), (F::IpDst, F::CtNwDst)];
/// The same for addresses of IPv6.
const ADDRESSES6: [(F, F); 2] = [(F::Ipv6Src, F::CtIpv6Src), (F::Ipv6Dst, F::CtIpv6Dst)];

/// Fields of a packet's tuple (source, destination, both ports), each with the one that holds its connection's original
/// tuple.
fn tuple_fields(v6: bool) -> [(F, F); 4] {
    let [src, dst] = if v6 { ADDRESSES6 } else { ADDRESSES };
    let [sport, dport] = PORTS;
    [src, dst, sport, dport]
}

/// Words of a key that hold the original tuple of a connection, a bit each.
const ORIGINAL_WORDS: u64 = {
    let [a, b] = [ADDRESSES, ADDRESSES6];
    let fields = [a[0].1, a[1].1, b[0].1, b[1].1, PORTS[0].1, PORTS[1].1];
    let (mut words, mut i) = (0, 0);
    while i < fields.len() {
        words |= fields[i].words();
        i += 1;
    }
    words
};

/// Words of a key that hold `ct_mark` and `ct_label`.
const CONNECTION: [usize; 3] = [F::CtMark.word(), F::CtLabel.word(), F::CtLabel.word() + 1];

/// Addresses and ports of a packet, or which bits of them decide: source, destination, both ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct TupleBits(pub(crate) [u128; 4]);

impl TupleBits {
    pub(crate) fn destination(&self) -> u128 {
        self.0[1]
    }
}

impl std::ops::BitAnd for TupleBits {
    type Output = TupleBits;

    fn bitand(self, mask: TupleBits) -> TupleBits {
        let TupleBits([a, b, c, d]) = self;
        let TupleBits([w, x, y, z]) = mask;
        TupleBits([a & w, b & x, c & y, d & z])
    }
}

/// The bits of each packet of a walk that decided.
#[derive(Clone, Debug)]
pub(crate) struct DependencyMask {
    /// So far nothing but these bits decided; false: the walk cannot become a megaflow or template.
    pub(crate) only: bool,
    pub(crate) layer: Layer,
    bits: [FlowKey; 4],
    /// Bits that told matches apart in earlier walks: reusing them keeps masks few.
    chosen: [u64; WORDS],
}

impl Default for DependencyMask {
    fn default() -> DependencyMask {
        let bits = std::array::from_fn(|_| FlowKey::new());
        DependencyMask { only: false, layer: Layer::Received, bits, chosen: [0; WORDS] }
    }
}

impl DependencyMask {
    /// Begins a new walk; `only`: collect bits at all.
    pub(crate) fn begin(&mut self, only: bool) {
        (self.only, self.layer) = (only, Layer::Received);
        if only {
            self.bits.iter_mut().for_each(|k| k.0.fill(0));
        }
    }

    /// Moves the bits of translated packets to the packet as it arrived in `layer`, except for the tuple: its bits are
    /// returned. `answers`: the packet is a reply, so its connection's original tuple is not its own. None if the bits
    /// cannot be expressed so.
    pub(crate) fn untranslate(&mut self, layer: Layer, answers: bool, v6: bool) -> Option<TupleBits> {
        let [received, inner, _, behind] = &mut self.bits;
        let bits = if layer == Layer::Inner { inner } else { received };
        let fields = tuple_fields(v6);
        for (own, tracked) in fields {
            let said = bits.get(tracked);
            if behind.get(tracked) != 0 || said != 0 && answers {
                return None;
            }
            bits.set(own, bits.get(own) | said);
        }
        let tuple = fields.map(|(own, _)| behind.get(own));
        let mut rest = behind.clone();
        fields.iter().for_each(|(own, _)| rest.set(*own, 0));
        for w in PACKET_WORDS {
            if let (Some(b), Some(a)) = (bits.0.get_mut(w), rest.0.get(w)) {
                *b |= a;
            }
        }
        Some(TupleBits(tuple))
    }

    /// The bits of the current packet, and those chosen in earlier walks.
    fn parts(&mut self) -> (&mut FlowKey, &mut [u64; WORDS]) {
        let [received, inner, made, behind] = &mut self.bits;
        let bits = match self.layer {
            Layer::Received => received,
            Layer::Inner => inner,
            Layer::Made => made,
            Layer::Translated => behind,
        };
        (bits, &mut self.chosen)
    }

    /// The bits of the current packet.
    pub(crate) fn bits(&mut self) -> &mut [u64; WORDS] {
        &mut self.parts().0.0
    }

    /// Looks a key up, and adds the bits that decided.
    pub(crate) fn lookup<'a>(&mut self, table: &'a Classifier, key: &FlowKey) -> Option<&'a Arc<Rule>> {
        let (bits, chosen) = self.parts();
        table.lookup_least(key, &mut bits.0, chosen)
    }

    /// Whether a field equals `value` decides: of a field that differs, one differing bit is enough.
    pub(crate) fn compared(&mut self, f: F, has: u128, value: u128) {
        let differ = has ^ value;
        if differ == 0 {
            return self.field(f);
        }
        if self.only && self.parts().0.get(f) & differ == 0 {
            let bit = 1 << (127 - differ.leading_zeros());
            self.parts().0.set_masked(f, bit, bit);
        }
    }

    /// The collected bits of `ct_mark` and `ct_label`.
    pub(crate) fn connection(&self) -> [[u64; 3]; 4] {
        self.bits.each_ref().map(|k| CONNECTION.map(|w| k.0.get(w).copied().unwrap_or(0)))
    }

    /// Restores what [`DependencyMask::connection`] returned.
    pub(crate) fn set_connection(&mut self, before: [[u64; 3]; 4]) {
        for (k, words) in self.bits.iter_mut().zip(before) {
            for (w, bits) in CONNECTION.into_iter().zip(words) {
                k.0.get_mut(w).into_iter().for_each(|x| *x = bits);
            }
        }
    }

    /// The union of these bits over all packets of the walk.
    pub(crate) fn marks(&self) -> (u32, u128) {
        self.bits.iter().fold((0, 0), |(m, l), k| (m | k.get(F::CtMark) as u32, l | k.get(F::CtLabel)))
    }

    /// All bits of a field decide.
    pub(crate) fn field(&mut self, f: F) {
        if self.only {
            crate::classifier::reads(self.bits(), f);
        }
    }

    /// Some bits of a field decide.
    fn part(&mut self, s: &Subfield) {
        if self.only {
            let mask = ones(s.n_bits) << s.ofs;
            let (bits, _) = self.parts();
            bits.set(s.field, bits.get(s.field) | mask);
        }
    }

    /// An action writes a field: its bits decide, and whether the packet has it. Nothing is written to packets whose
    /// protocol, or ARP operation, is 0.
    fn written(&mut self, f: F) {
        self.field(f);
        if f.def().prereq != Prereq::None {
            self.field(F::IpProto);
        }
        self.told_by_icmp(f);
    }

    /// An action reads a field: its bits decide, and whether the packet has it. What has no ports needs no protocol: the
    /// type of the frame, which all packets of a key share, is enough.
    fn used(&mut self, f: F) {
        use Prereq as P;
        self.field(f);
        if !matches!(f.def().prereq, P::None | P::Vlan | P::Mpls | P::Nsh | P::Arp | P::Ipv4 | P::Ipv6 | P::Ip) {
            self.field(F::IpProto);
        }
        self.told_by_icmp(f);
    }

    /// Which message of ICMPv6 it is decides about fields of neighbour discovery.
    fn told_by_icmp(&mut self, f: F) {
        if matches!(f.def().prereq, Prereq::Nd | Prereq::NdSolicit | Prereq::NdAdvert) {
            [F::IcmpType, F::IcmpCode].into_iter().for_each(|f| self.field(f));
        }
    }

    /// The bits of a word of the lookup key that are equal for all packets of the megaflow.
    pub(crate) fn shared(&self, layer: Layer, word: u8) -> u64 {
        let (word, [received, inner, made, behind]) = (usize::from(word), &self.bits);
        if !PACKET_WORDS.contains(&word) {
            // The original tuple of a connection differs as the packet's does.
            return if ORIGINAL_WORDS >> word & 1 != 0 { 0 } else { u64::MAX };
        }
        let bits = match layer {
            Layer::Received => received,
            Layer::Inner => inner,
            // The headers are the tunnel's, whose source port differs by inner flow.
            Layer::Made => made,
            Layer::Translated => behind,
        };
        bits.0.get(word).copied().unwrap_or(0)
    }

    /// The mask for frames of a kind; none if all of the key decided, or it cannot be expressed.
    pub(crate) fn mask(&self, shape: &Shape) -> Option<Mask> {
        let [received, inner, made, _] = &self.bits;
        if !self.only || made.get(F::TcpSrc) != 0 {
            return None;
        }
        let mut fields = Box::new([received.clone(), inner.clone()]);
        for (k, layout) in fields.iter_mut().zip([shape.outer, shape.inner]).filter(|(_, l)| !has_ports(*l)) {
            widen(k, layout);
        }
        let mut bytes = [0; 8 * RAW_WORDS];
        if shape.inner_at == 0 {
            part(&mut bytes, 0, shape.outer, &fields[0]);
        } else {
            // All of the tunnel's headers but the source port, which only spreads flows (RFC 8926 section 3.3), and so may the
            // flow label of IPv6 (RFC 6438).
            bytes.get_mut(..shape.inner_at)?.fill(0xff);
            if shape.outer.ip == 6 && received.get(F::Ipv6Label) == 0 {
                let label = bytes.get_mut(usize::from(shape.outer.l3) + 1..)?.first_chunk_mut::<3>()?;
                *label = [0xf0, 0, 0];
            }
            if received.get(F::TcpSrc) == 0 {
                let ports = usize::from(shape.outer.l4);
                // GRE has none.
                if ports != 0 {
                    bytes.get_mut(ports..)?.get_mut(..2)?.fill(0);
                }
            }
            part(&mut bytes, shape.inner_at, shape.inner, &fields[1]);
        }
        let mut bits = [[0; BLOCK]; MASK_BLOCKS];
        let words = bits.as_flattened_mut();
        *words.first_mut()? = u64::MAX;
        for (to, from) in words.iter_mut().skip(1).zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_ne_bytes(*from);
        }
        let mut wider = false;
        for (b, whole) in words.iter_mut().zip(shape.masks.as_flattened()).skip(1) {
            *b &= whole;
            wider |= b != whole;
        }
        // What is told of others names a protocol only if that decided.
        for (k, _) in fields.iter_mut().zip([shape.outer, shape.inner]).filter(|(_, l)| has_ports(*l)) {
            k.set(F::IpProto, F::IpProto.full_mask());
        }
        if shape.inner_at != 0
            && let [outer, _] = &mut *fields
        {
            outer.0.fill(u64::MAX);
            SPREADS.into_iter().for_each(|f| outer.set(f, received.get(f)));
        }
        wider.then_some(Mask { number: 0, epoch: 0, bits, found: 0, fields })
    }
}

/// What stands where other protocols have ports.
const ICMP: [F; 2] = [F::IcmpType, F::IcmpCode];

/// Has [`WHOLE`] fields count whole. Type and code of ICMP are where other protocols have ports.
fn widen(fields: &mut FlowKey, layout: Layout) {
    let icmp = is_icmp(layout);
    for f in WHOLE.into_iter().filter(|f| icmp || !ICMP.contains(f)) {
        if fields.get(f) != 0 {
            fields.set(f, f.full_mask());
        }
    }
}

fn has_ports(l: Layout) -> bool {
    matches!(l.proto, ipproto::TCP | ipproto::UDP)
}

fn is_icmp(l: Layout) -> bool {
    matches!(l.proto, ipproto::ICMP | ipproto::ICMPV6)
}

/// Fields that count whole if any bit decided: this keeps masks few.
const WHOLE: [F; 11] = [
    F::EthDst,
    F::EthSrc,
    F::IpProto,
    F::IpTtl,
    F::Ipv6Label,
    F::IcmpType,
    F::IcmpCode,
    F::ArpOp,
    F::NdTarget,
    F::NdSll,
    F::NdTll,
];

impl DependencyMask {
    /// The same for packets whose keys are lists of fields. `rewritten`: network or transport headers are written, and
    /// checksums with them.
    pub(crate) fn mask_of_fields(&self, key: &PackedKey, rewritten: bool) -> Option<Mask> {
        let kind = key.kind().filter(|k| *k >= SHAPES && self.only)?;
        let [received, inner, made, _] = &self.bits;
        if made.get(F::TcpSrc) != 0 {
            return None;
        }
        let tunnel = key.inner_at != 0;
        let looked = if tunnel { inner } else { received };
        let mut fields = looked.clone();
        widen(&mut fields, if tunnel { key.inner } else { key.outer });
        // They are in other bits of a key than ports are: what a bit says there depends on the protocol.
        let transport = [F::TcpSrc, F::TcpDst].into_iter().any(|f| looked.get(f) != 0);
        if rewritten || transport || solicits(kind) {
            fields.set(F::IpProto, F::IpProto.full_mask());
        }
        if solicits(kind) {
            fields.set(F::IcmpType, F::IcmpType.full_mask());
        }
        let words = used(key.blocks().as_flattened());
        let mut bits = [[u64::MAX; BLOCK]; MASK_BLOCKS];
        let (mut list, behind) = places(words, 2)?;
        let mut outer = FlowKey([u64::MAX; WORDS]);
        if tunnel {
            // All of the tunnel's headers but what spreads flows, as above.
            SPREADS.into_iter().for_each(|f| outer.set(f, received.get(f)));
            for p in list.into_iter().filter(|p| p.field.is_some_and(|f| SPREADS.contains(&f) && outer.get(f) == 0)) {
                *bits.as_flattened_mut().get_mut(p.word)? &= !p.mask();
            }
            list = places(words, within(words, behind)?)?.0;
        }
        let mut wider = false;
        for p in list {
            let looked = p.field.map_or(0, |f| (fields.get(f) >> p.from) as u64) << p.shift & p.mask();
            let looked = if p.field == Some(F::ArpOp) && looked != 0 { p.mask() } else { looked };
            *bits.as_flattened_mut().get_mut(p.word)? &= !p.mask() | looked;
            wider |= looked != p.mask();
        }
        let fields = Box::new(if tunnel { [outer, fields] } else { [fields, outer] });
        wider.then_some(Mask { number: 0, epoch: 0, bits, found: 0, fields })
    }
}

/// Marks the bytes of an IP packet that decided. Bytes that define the kind of frame are equal in all.
fn part(bytes: &mut [u8], from: usize, l: Layout, looked: &FlowKey) {
    let (l3, l4) = (from + usize::from(l.l3), from + usize::from(l.l4));
    let mut put = |at: usize, n: usize, bits: u128| {
        let be = bits.to_be_bytes();
        let (Some(to), Some(from)) = (bytes.get_mut(at..at + n), be.get(16 - n..)) else { return };
        to.iter_mut().zip(from).for_each(|(to, from)| *to |= from);
    };
    put(from, 6, looked.get(F::EthDst));
    put(from + 6, 6, looked.get(F::EthSrc));
    put(from + 12, l3 - from - 12, u128::MAX);
    if l.ip == 6 {
        // Version, traffic class, flow label (RFC 8200 section 3).
        put(l3, 4, 0xf << 28 | looked.get(F::NwTos) << 20 | looked.get(F::Ipv6Label));
        put(l3 + 6, 1, u128::MAX);
        put(l3 + 7, 1, looked.get(F::IpTtl));
        put(l3 + 8, 16, looked.get(F::Ipv6Src));
        put(l3 + 24, 16, looked.get(F::Ipv6Dst));
    } else {
        put(l3, 1, u128::MAX);
        put(l3 + 1, 1, looked.get(F::NwTos));
        put(l3 + 8, 1, looked.get(F::IpTtl));
        put(l3 + 9, 1, u128::MAX);
        put(l3 + 12, 4, looked.get(F::IpSrc));
        put(l3 + 16, 4, looked.get(F::IpDst));
    }
    match l.proto {
        _ if l.l4 == 0 => {}
        _ if is_icmp(l) => {
            put(l4, 1, looked.get(F::IcmpType));
            put(l4 + 1, 1, looked.get(F::IcmpCode));
        }
        proto => {
            put(l4, 2, looked.get(F::TcpSrc));
            put(l4 + 2, 2, looked.get(F::TcpDst));
            if proto == ipproto::TCP {
                put(l4 + 12, 2, looked.get(F::TcpFlags));
            }
        }
    }
}

/// A key with a mask applied.
pub(crate) type Narrow = [[u64; BLOCK]; MASK_BLOCKS];

/// A mask of keys.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    /// Stands in the first word of keys under it.
    number: u32,
    /// How often numbers had begun anew before it got its own.
    epoch: u32,
    pub(super) bits: Narrow,
    /// Recent hits.
    found: u32,
    /// The mask as fields: of the packet, and of the one in its tunnel.
    pub(crate) fields: Box<[FlowKey; 2]>,
}

impl Mask {
    /// Whether both have the same bits.
    pub(crate) fn same(&self, other: &Mask) -> bool {
        self.bits == other.bits
    }

    /// Applies it to a key.
    #[inline(always)]
    pub(crate) fn of(&self, key: &[[u64; BLOCK]]) -> Narrow {
        let mut to = [[0; BLOCK]; MASK_BLOCKS];
        for ((to, from), mask) in to.iter_mut().zip(key).zip(&self.bits) {
            for i in 0..BLOCK {
                to[i] = from[i] & mask[i];
            }
        }
        to[0][0] |= u64::from(self.number) << NUMBER;
        to
    }
}

/// Masks of one kind of frame.
#[derive(Clone, Debug, Default)]
struct Kind {
    list: Vec<Mask>,
    /// Packets looked up, hits, hits of the same megaflow as the one before in their burst, and packets of the same that were
    /// found without a look.
    tries: u32,
    found: u32,
    second: u32,
    again: u32,
    pause: u32,
    /// Keys are lists of fields: a frame cannot be compared without one.
    fields: bool,
}

/// All masks, by kind of frame.
#[derive(Clone, Debug)]
pub(crate) struct Masks {
    kinds: Box<[Kind; KINDS]>,
    /// There is at least one.
    pub(crate) some: bool,
    /// The last number given to a mask, and the last that there may be.
    last: u32,
    most: u32,
    /// How often numbers have begun anew.
    epoch: u32,
    /// A mask got none.
    spent: bool,
}

impl Default for Masks {
    fn default() -> Masks {
        let kinds = Box::new(std::array::from_fn(Kind::new));
        Masks { kinds, some: false, last: 0, most: NUMBERS as u32, epoch: 0, spent: false }
    }
}

impl Masks {
    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.kinds.iter_mut().enumerate().for_each(|(n, k)| *k = Kind::new(n));
        self.some = false;
    }

    /// How many masks to try first for a packet of this kind; counts the packet.
    #[inline(always)]
    pub(crate) fn due(&mut self, kind: usize) -> usize {
        match self.kinds.get_mut(kind) {
            Some(k) if !k.list.is_empty() => k.due(),
            _ => 0,
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, kind: usize, i: usize) -> Option<&Mask> {
        self.kinds.get(kind)?.list.get(i)
    }

    /// Counts a hit of a mask; `second`: of the same megaflow as the one before.
    #[inline(always)]
    pub(crate) fn served(&mut self, kind: usize, i: usize, second: bool) {
        let Some(k) = self.kinds.get_mut(kind) else { return };
        k.found += 1;
        k.second += u32::from(second);
        if let Some(m) = k.list.get_mut(i) {
            m.found += 1;
        }
    }

    /// All masks for keys of this kind.
    pub(crate) fn all(&self, key: &PackedKey) -> &[Mask] {
        key.kind().and_then(|k| self.kinds.get(k)).map_or(&[], |k| &k.list)
    }

    /// Counts packets of the same megaflow as the one before in their burst.
    #[inline(always)]
    pub(crate) fn again(&mut self, kind: usize, packets: u32) {
        if let Some(k) = self.kinds.get_mut(kind) {
            k.again += packets;
        }
    }

    /// The mask of an entry, by its key.
    pub(crate) fn of_entry(&self, key: &[u64]) -> Option<&Mask> {
        let number = (key.first()? >> NUMBER & NUMBERS) as u32;
        self.kinds.iter().flat_map(|k| &k.list).find(|m| m.number == number)
    }

    /// Whether masks are not tried first for now, as they were of no use.
    pub(crate) fn paused(&self, key: &PackedKey) -> bool {
        key.kind().and_then(|k| self.kinds.get(k)).is_some_and(|k| k.pause > 0)
    }

    /// The mask with these bits for keys of this kind, numbered if it is new; `None` if there is no room for it.
    pub(crate) fn add(&mut self, key: &PackedKey, mut mask: Mask) -> Option<Mask> {
        let kind = self.kinds.get_mut(key.kind()?)?;
        if let Some(m) = kind.list.iter().find(|m| m.bits == mask.bits) {
            return Some(m.clone());
        }
        if self.last >= self.most {
            self.spent = true;
            return None;
        }
        (mask.number, mask.epoch) = (self.last + 1, self.epoch);
        if !kind.add(mask.clone()) {
            return None;
        }
        (self.last, self.some) = (mask.number, true);
        Some(mask)
    }

    /// Lets there be so many numbers.
    pub(crate) fn number_up_to(&mut self, most: u32) {
        self.most = most.min(NUMBERS as u32);
    }

    /// Whether numbers have to begin anew.
    pub(super) fn spent(&self) -> bool {
        self.spent
    }

    /// Forgets all of them, and has numbers begin anew. All entries must be stale, those of other threads, too.
    pub(super) fn renumber(&mut self) {
        self.clear();
        (self.last, self.spent) = (0, false);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Adds a mask that another thread has numbered.
    pub(crate) fn learn(&mut self, kind: usize, mask: &Mask) {
        if self.epoch != mask.epoch {
            // Those with the same numbers are others.
            self.clear();
            self.epoch = mask.epoch;
        }
        let Some(kind) = self.kinds.get_mut(kind) else { return };
        if kind.list.iter().all(|m| (m.number, &m.bits) != (mask.number, &mask.bits)) {
            kind.list.retain(|m| m.bits != mask.bits);
            self.some |= kind.add(mask.clone());
        }
    }
}

impl Kind {
    fn new(number: usize) -> Kind {
        Kind { fields: number >= SHAPES, ..Kind::default() }
    }

    /// The number of masks, or 0 while they are paused.
    #[inline(always)]
    fn due(&mut self) -> usize {
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        self.tries += 1;
        if self.tries > TRIES {
            self.judge();
        }
        self.list.len()
    }

    /// Pauses masks that were of no use: a lookup by the whole key is faster then. They are of use if most packets hit
    /// and packets of one megaflow come together.
    #[cold]
    fn judge(&mut self) {
        let together = self.fields || self.again + 2 * self.second >= self.found;
        self.pause = if self.found < TRIES / 2 || !together { PAUSE } else { 0 };
        (self.tries, self.found, self.second, self.again) = (0, 0, 0, 0);
        // Masks with more hits come first; one without hits may be replaced.
        self.list.sort_by_key(|m| std::cmp::Reverse(m.found));
        self.list.iter_mut().for_each(|m| m.found /= 2);
    }

    fn add(&mut self, mask: Mask) -> bool {
        if self.list.len() == MOST {
            let Some(i) = self.list.iter().position(|m| m.found == 0) else { return false };
            self.list.remove(i);
        }
        self.list.push(mask);
        true
    }
}

/// After so many walks of a kind in a row that were no megaflows, only some walks of that kind collect bits.
const ROW: u32 = 32;
/// One of so many does.
const ASKED: u32 = 16;

/// Predicts whether walks become megaflows: searches that collect bits cost more. Each kind of frame is judged by itself:
/// where all walks of one become none, those of another still do.
#[derive(Debug)]
pub(crate) struct MegaflowPredictor {
    kinds: Box<[Row; KINDS]>,
    /// The kind that was asked about last.
    asked: Option<usize>,
}

/// How walks of one kind of frame went.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    row: u32,
    turn: u32,
}

impl Default for MegaflowPredictor {
    fn default() -> MegaflowPredictor {
        MegaflowPredictor { kinds: Box::new([Row::default(); KINDS]), asked: None }
    }
}

impl MegaflowPredictor {
    /// Whether the next walk of this kind is to collect bits.
    pub(crate) fn ask(&mut self, kind: Option<usize>) -> bool {
        self.asked = kind;
        let Some(k) = kind.and_then(|k| self.kinds.get_mut(k)) else { return false };
        k.turn = (k.turn + 1) % ASKED;
        k.row < ROW || k.turn == 0
    }

    /// The walk that was asked about did, or did not, become a megaflow or template.
    pub(crate) fn answer(&mut self, wide: bool) {
        if let Some(k) = self.asked.and_then(|k| self.kinds.get_mut(k)) {
            k.row = if wide { 0 } else { k.row.saturating_add(1) };
        }
    }
}

impl DependencyMask {
    /// Before an action: adds the bits of the packet that decide its effect, and notes if other state does.
    pub(super) fn action(&mut self, a: &Action, bridge: Option<&Bridge>) {
        match a {
            // Whether writing a field changes the packet depends on what it said.
            Action::SetField { field, .. } => self.written(*field),
            Action::SetTunnel { .. } => self.written(F::TunId),
            Action::Load { dst, .. } | Action::CheckPktLarger { dst, .. } => self.written(dst.field),
            Action::Move { src, dst } => {
                self.used(src.field);
                self.written(dst.field);
            }
            Action::Pop(s) => self.written(s.field),
            Action::Learn(l) => {
                for s in &l.specs {
                    if let LearnSrc::Field(s) = &s.src {
                        self.used(s.field);
                    }
                }
                l.result_dst.iter().for_each(|d| self.written(d.field));
            }
            Action::Push(s) | Action::OutputReg { src: s, .. } => self.used(s.field),
            Action::DecTtl(_) => self.written(F::IpTtl),
            // Tags decide too, but are in all masks. Learned addresses are checks of the entry.
            Action::Output { port: PortNo::NORMAL, .. } | Action::OutputTrunc { port: PortNo::NORMAL, .. } => {
                [F::EthSrc, F::EthDst].into_iter().for_each(|f| self.field(f));
                // The members of bonds that hash ports would make a megaflow of each connection.
                self.only &= bridge.is_some_and(|b| b.bonds.iter().all(|s| s.bond.spread != Spread::Transport));
            }
            Action::Output { port, .. } | Action::OutputTrunc { port, .. } => {
                self.only &= port.0 < RESERVED || ONE.contains(port)
            }
            // [`super::observer`] decides on the pass itself.
            Action::Ct(c) => match &c.zone {
                ZoneSpec::Field(s) => self.part(s),
                ZoneSpec::Imm(_) => {}
            },
            // What decides among a group's buckets is told where it is chosen ([`super::recorder::Recorder::chooses`]); the
            // group, and which ports live, are dependencies.
            Action::Group(_) => {}
            // What they hash is told where it is done, too.
            Action::Bundle(b) => b.dst.iter().for_each(|d| self.written(d.field)),
            Action::Multipath(m) => self.written(m.dst.field),
            // Where they are done, the walk is not kept; where they cannot be, these say so.
            Action::Encap(_) | Action::Decap(_) => [F::EthType, F::VlanTci].into_iter().for_each(|f| self.field(f)),
            Action::PushVlan(_)
            | Action::PopVlan
            | Action::WriteMetadata { .. }
            | Action::WriteActions(_)
            | Action::ClearActions
            | Action::Resubmit { .. }
            | Action::GotoTable(_)
            | Action::Clone(_)
            | Action::CtClear
            | Action::Exit
            | Action::SetQueue(_)
            | Action::PopQueue
            | Action::Conjunction { .. }
            | Action::Debug(_)
            | Action::Note(_) => {}
            // Other state than the packet's decides, or what is done is not repeated.
            Action::Controller(_)
            | Action::Nat(_)
            | Action::Mpls(_)
            | Action::DecNshTtl
            | Action::FinTimeout { .. }
            | Action::DeleteField(_) => self.only = false,
            Action::Sample(s) => [&s.obs_domain_id, &s.obs_point_id].into_iter().for_each(|id| match id {
                SampleId::Field(f) => self.part(f),
                SampleId::Imm(_) => {}
            }),
            Action::Meter(_) => {}
        }
    }
}
