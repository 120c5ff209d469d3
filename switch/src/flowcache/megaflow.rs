//! Wide flows: one entry for all packets that are alike in what decided.
//!
//! A walk that asks for nothing but some bits of the packet (no connections, no groups) goes for every packet with these bits the
//! same way. While it is recorded, what lookups compare and actions read or write is noted ([`Looked`]); what is left of the
//! packet's key under a mask of these bits is the key of its entry. The masks that there are, by kind of frame, are few ([`Masks`]).
//! A packet is first looked up under those, and then by all of its key.

use super::key::{BLOCK, KINDS, Layout, PackedKey, RAW_BLOCKS, RAW_WORDS, SHAPES, Shape, places, solicits, used};
use crate::bridge::Bridge;
use crate::classifier::{Classifier, Rule};
use crate::extract::PACKET_WORDS;
use openflow_rs::action::{Action, ZoneSpec};
use openflow_rs::{FieldId as F, FlowKey, PortNo, Prereq, Subfield, WORDS, ones};
use packet::ipproto;
use std::sync::Arc;

/// Masks for a kind of frame.
const MOST: usize = 4;
/// Packets of a kind after which it is looked whether its masks are of use.
const TRIES: u32 = 1024;
/// So many packets then go by all of their key first, if they are not.
const PAUSE: u32 = 16_384;
/// Bits of a key's first word that number its mask, from this one on; 0: it has none. No number is ever used again, as entries
/// under an old mask may still be there, in other threads too.
const NUMBER: u32 = 40;
const NUMBERS: u64 = (1 << 23) - 1;

/// Ports above are not one port (OpenFlow 1.5, section 7.2.1), but for these.
const RESERVED: u16 = 0xff00;
const ONE: [PortNo; 2] = [PortNo::LOCAL, PortNo::IN_PORT];

/// Which packet of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Layer {
    /// As received.
    #[default]
    Received,
    /// What was in its tunnel.
    Inner,
    /// Made on the way, with a tunnel's headers.
    Made,
    /// One of the first two, behind a translation: its addresses and ports are what its connection says.
    Translated,
}

/// The fields that a connection's tuple says, and those of the packet.
const TUPLE: [(F, F); 4] =
    [(F::IpSrc, F::CtNwSrc), (F::IpDst, F::CtNwDst), (F::TcpSrc, F::CtTpSrc), (F::TcpDst, F::CtTpDst)];

/// Words of keys with connections' marks and labels.
const CONNECTION: [usize; 3] = [F::CtMark.word(), F::CtLabel.word(), F::CtLabel.word() + 1];

/// Addresses and ports of an IPv4 packet in one number.
pub(crate) fn pack([src, dst, sport, dport]: [u128; 4]) -> u128 {
    src << 64 | dst << 32 | sport << 16 | dport
}

/// What of each packet of a walk decides.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    /// The walk asks for nothing else so far.
    pub(crate) only: bool,
    pub(crate) layer: Layer,
    bits: [FlowKey; 4],
    /// Bits that told matches apart in earlier walks: where the same ones do again, there are fewer masks.
    chosen: [u64; WORDS],
}

impl Default for Looked {
    fn default() -> Looked {
        let bits = std::array::from_fn(|_| FlowKey::new());
        Looked { only: false, layer: Layer::Received, bits, chosen: [0; WORDS] }
    }
}

impl Looked {
    /// Begins anew; `only` if this is to be found out at all.
    pub(crate) fn begin(&mut self, only: bool) {
        (self.only, self.layer) = (only, Layer::Received);
        if only {
            self.bits.iter_mut().for_each(|k| k.0.fill(0));
        }
    }

    /// What decided of a packet behind translations, in terms of the packet as it arrived in `layer`; but for its tuple, of which it
    /// comes back, as [`pack`] has it. `answers`: the tuple that its connection began with is not its own. None, if what decided cannot
    /// be said so.
    pub(crate) fn untranslate(&mut self, layer: Layer, answers: bool) -> Option<u128> {
        let [received, inner, _, behind] = &mut self.bits;
        let bits = if layer == Layer::Inner { inner } else { received };
        for (own, tracked) in TUPLE {
            let said = bits.get(tracked);
            if behind.get(tracked) != 0 || said != 0 && answers {
                return None;
            }
            bits.set(own, bits.get(own) | said);
        }
        let [src, dst, sport, dport] = TUPLE.map(|(own, _)| behind.get(own));
        let mut rest = behind.clone();
        TUPLE.iter().for_each(|(own, _)| rest.set(*own, 0));
        for w in PACKET_WORDS {
            if let (Some(b), Some(a)) = (bits.0.get_mut(w), rest.0.get(w)) {
                *b |= a;
            }
        }
        Some(pack([src, dst, sport, dport]))
    }

    /// The bits of the packet that the walk has before it, and those chosen before.
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

    /// Bits of the packet that the walk has before it.
    pub(crate) fn bits(&mut self) -> &mut [u64; WORDS] {
        &mut self.parts().0.0
    }

    /// What a lookup finds, of which it notes what decided.
    pub(crate) fn lookup<'a>(&mut self, table: &'a Classifier, key: &FlowKey) -> Option<&'a Arc<Rule>> {
        let (bits, chosen) = self.parts();
        table.lookup_least(key, &mut bits.0, chosen)
    }

    /// Whether a field of the packet has a value decides: if it has not, a bit that differs does.
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

    /// Bits of the words that hold connections' marks and labels, of each packet of the walk.
    pub(crate) fn connection(&self) -> [[u64; 3]; 4] {
        self.bits.each_ref().map(|k| CONNECTION.map(|w| k.0.get(w).copied().unwrap_or(0)))
    }

    /// Makes them what they were.
    pub(crate) fn set_connection(&mut self, before: [[u64; 3]; 4]) {
        for (k, words) in self.bits.iter_mut().zip(before) {
            for (w, bits) in CONNECTION.into_iter().zip(words) {
                k.0.get_mut(w).into_iter().for_each(|x| *x = bits);
            }
        }
    }

    /// Bits of connections' marks and labels that decide.
    pub(crate) fn marks(&self) -> (u32, u128) {
        self.bits.iter().fold((0, 0), |(m, l), k| (m | k.get(F::CtMark) as u32, l | k.get(F::CtLabel)))
    }

    /// A field decides.
    pub(crate) fn field(&mut self, f: F) {
        if self.only {
            crate::classifier::reads(self.bits(), f);
        }
    }

    /// Bits of a field decide.
    fn part(&mut self, s: &Subfield) {
        if self.only {
            let mask = ones(s.n_bits) << s.ofs;
            let (bits, _) = self.parts();
            bits.set(s.field, bits.get(s.field) | mask);
        }
    }

    /// A field decides that an action reads or writes, and whether the packet has it.
    fn used(&mut self, f: F) {
        self.field(f);
        if f.def().prereq != Prereq::None {
            self.field(F::IpProto);
        }
        if matches!(f.def().prereq, Prereq::Nd | Prereq::NdSolicit | Prereq::NdAdvert) {
            [F::IcmpType, F::IcmpCode].into_iter().for_each(|f| self.field(f));
        }
    }

    /// The bits of a word of a lookup's key that all packets with the same deciding bits have in common.
    pub(crate) fn shared(&self, layer: Layer, word: u8) -> u64 {
        let (word, [received, inner, made, behind]) = (usize::from(word), &self.bits);
        if !PACKET_WORDS.contains(&word) {
            // What connections say of packets' addresses differs as these do.
            return if TUPLE.iter().any(|(_, f)| f.word() == word) { 0 } else { u64::MAX };
        }
        let bits = match layer {
            Layer::Received => received,
            Layer::Inner => inner,
            // Its headers are the tunnel's, with a source port that is another one for each flow in it.
            Layer::Made => made,
            Layer::Translated => behind,
        };
        bits.0.get(word).copied().unwrap_or(0)
    }

    /// The mask of the frames of a kind that go this way; none if that is all of their key, or there is no such mask.
    pub(crate) fn mask(&self, shape: &Shape) -> Option<Mask> {
        let [received, inner, made, _] = &self.bits;
        if !self.only || made.get(F::TcpSrc) != 0 {
            return None;
        }
        let mut bytes = [0; 8 * RAW_WORDS];
        if shape.inner_at == 0 {
            part(&mut bytes, 0, shape.outer, received);
        } else {
            // All of a tunnel's headers but for the source port, which says nothing but that flows differ (RFC 8926 section 3.3).
            bytes.get_mut(..shape.inner_at)?.fill(0xff);
            if received.get(F::TcpSrc) == 0 {
                bytes.get_mut(usize::from(shape.outer.l4)..)?.get_mut(..2)?.fill(0);
            }
            part(&mut bytes, shape.inner_at, shape.inner, inner);
        }
        let mut bits = [[0; BLOCK]; RAW_BLOCKS];
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
        let mut fields = Box::new([received.clone(), inner.clone()]);
        fields.iter_mut().for_each(|k| k.set(F::IpProto, F::IpProto.full_mask()));
        if shape.inner_at != 0
            && let [outer, _] = &mut *fields
        {
            let port = received.get(F::TcpSrc);
            outer.0.fill(u64::MAX);
            outer.set(F::TcpSrc, port);
        }
        wider.then_some(Mask { number: 0, bits, found: 0, fields })
    }
}

/// Fields of which all bits decide if any does: half of one tells nobody anything, and there are fewer masks.
const WHOLE: [F; 12] = [
    F::EthDst,
    F::EthSrc,
    F::IpProto,
    F::NwTos,
    F::IpTtl,
    F::Ipv6Label,
    F::IcmpType,
    F::IcmpCode,
    F::ArpOp,
    F::NdTarget,
    F::NdSll,
    F::NdTll,
];

impl Looked {
    /// The mask of the packets of a kind whose keys are fields that go this way, bare ones; none as above. `rewritten`: bytes of
    /// network or transport headers are, and checksums with them.
    pub(crate) fn mask_of_fields(&self, key: &PackedKey, rewritten: bool) -> Option<Mask> {
        let kind = key.kind().filter(|k| *k >= SHAPES && self.only)?;
        let [received, ..] = &self.bits;
        let mut fields = received.clone();
        WHOLE.into_iter().filter(|f| received.get(*f) != 0).for_each(|f| fields.set(f, f.full_mask()));
        if rewritten || solicits(kind) {
            fields.set(F::IpProto, F::IpProto.full_mask());
        }
        if solicits(kind) {
            fields.set(F::IcmpType, F::IcmpType.full_mask());
        }
        let words = used(key.blocks().as_flattened());
        let mut bits = [[u64::MAX; BLOCK]; RAW_BLOCKS];
        let mut wider = false;
        for p in places(words, 2)?.0 {
            let looked = p.field.map_or(0, |f| (fields.get(f) >> p.from) as u64) << p.shift & p.mask();
            let looked = if p.field == Some(F::ArpOp) && looked != 0 { p.mask() } else { looked };
            *bits.as_flattened_mut().get_mut(p.word)? &= !p.mask() | looked;
            wider |= looked != p.mask();
        }
        let fields = Box::new([fields, FlowKey([u64::MAX; WORDS])]);
        wider.then_some(Mask { number: 0, bits, found: 0, fields })
    }
}

/// Marks what decided of an IPv4 packet with ports. What tells kinds of frames apart is the same in all.
fn part(bytes: &mut [u8], from: usize, l: Layout, looked: &FlowKey) {
    let (l3, l4) = (from + usize::from(l.l3), from + usize::from(l.l4));
    let mut put = |at: usize, n: usize, bits: u128| {
        let be = bits.to_be_bytes();
        let (Some(to), Some(from)) = (bytes.get_mut(at..at + n), be.get(16 - n..)) else { return };
        to.iter_mut().zip(from).for_each(|(to, from)| *to |= from);
    };
    put(from, 6, looked.get(F::EthDst));
    put(from + 6, 6, looked.get(F::EthSrc));
    put(from + 12, l3 + 1 - from - 12, u128::MAX);
    put(l3 + 1, 1, looked.get(F::NwTos));
    put(l3 + 8, 1, looked.get(F::IpTtl));
    put(l3 + 9, 1, u128::MAX);
    put(l3 + 12, 4, looked.get(F::IpSrc));
    put(l3 + 16, 4, looked.get(F::IpDst));
    put(l4, 2, looked.get(F::TcpSrc));
    put(l4 + 2, 2, looked.get(F::TcpDst));
    if l.proto == ipproto::TCP {
        put(l4 + 12, 2, looked.get(F::TcpFlags));
    }
}

/// A key under a mask.
pub(crate) type Narrow = [[u64; BLOCK]; RAW_BLOCKS];

/// The wide flow that packets of a burst were found to be of last: what decides, word by word of the frame.
#[derive(Debug)]
pub(crate) struct Last {
    head: u64,
    number: u32,
    /// The entry's key.
    key: Narrow,
    blocks: usize,
    /// (word, mask, value)
    words: [(u8, u64, u64); RAW_WORDS],
    len: usize,
}

impl Last {
    /// A key under a mask, whose entry has this number.
    pub(crate) fn new(mask: &Mask, key: &Narrow, blocks: usize, number: u32) -> Last {
        let mut last = Last { head: 0, number, key: *key, blocks, words: [(0, 0, 0); RAW_WORDS], len: 0 };
        let both = || mask.bits.as_flattened().iter().zip(key.as_flattened());
        last.head = both().next().map_or(0, |(_, v)| v & !(NUMBERS << NUMBER));
        let decide = both().skip(1).zip(0..).filter(|((m, _), _)| **m != 0);
        for (to, ((mask, value), word)) in last.words.iter_mut().zip(decide) {
            *to = (word, *mask, *value);
            last.len += 1;
        }
        last
    }

    /// The entry's number, and its key.
    pub(crate) fn entry(&self) -> (u32, &[[u64; BLOCK]]) {
        (self.number, self.key.get(..self.blocks).unwrap_or_default())
    }

    /// The kind of its frames.
    pub(crate) fn kind(&self) -> usize {
        (self.head >> 32 & 0xff) as usize
    }

    /// The entry's number, if a frame is of the same flow.
    #[inline(always)]
    pub(crate) fn is(&self, head: u64, p: &[u8]) -> Option<u32> {
        if self.head != head {
            return None;
        }
        let (frame, _) = p.as_chunks::<8>();
        for (word, mask, value) in self.words.get(..self.len)? {
            if u64::from_ne_bytes(*frame.get(usize::from(*word))?) & mask != *value {
                return None;
            }
        }
        Some(self.number)
    }
}

/// A mask of keys.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    /// In the first word of keys under it.
    number: u32,
    bits: Narrow,
    /// Packets that it found an entry for, of late.
    found: u32,
    /// The same for the fields of the packet, and of the one in its tunnel.
    pub(crate) fields: Box<[FlowKey; 2]>,
}

impl Mask {
    /// Whether it leaves the same of keys.
    pub(crate) fn same(&self, other: &Mask) -> bool {
        self.bits == other.bits
    }

    /// A key under it.
    #[inline(always)]
    pub(crate) fn of(&self, key: &[[u64; BLOCK]]) -> Narrow {
        let mut to = [[0; BLOCK]; RAW_BLOCKS];
        for ((to, from), mask) in to.iter_mut().zip(key).zip(&self.bits) {
            for i in 0..BLOCK {
                to[i] = from[i] & mask[i];
            }
        }
        to[0][0] |= u64::from(self.number) << NUMBER;
        to
    }
}

/// Masks for a kind of frame.
#[derive(Clone, Debug, Default)]
struct Kind {
    list: Vec<Mask>,
    /// Packets, those that they found an entry for, and those that were of the same flow as one before in their burst.
    tries: u32,
    found: u32,
    again: u32,
    pause: u32,
    /// Its keys are fields: no packet is found to be of the same flow as the one before without them.
    fields: bool,
}

/// All masks.
#[derive(Clone, Debug)]
pub(crate) struct Masks {
    kinds: Box<[Kind; KINDS]>,
    /// There are some.
    pub(crate) some: bool,
    /// The last number.
    last: u32,
}

impl Default for Masks {
    fn default() -> Masks {
        Masks { kinds: Box::new(std::array::from_fn(Kind::new)), some: false, last: 0 }
    }
}

impl Masks {
    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.kinds.iter_mut().enumerate().for_each(|(n, k)| *k = Kind::new(n));
        self.some = false;
    }

    /// How many masks keys of a kind are to be tried under first; it counts as a packet.
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

    /// A mask found an entry for a packet that was tried under it first.
    #[inline(always)]
    pub(crate) fn served(&mut self, kind: usize, i: usize) {
        let Some(k) = self.kinds.get_mut(kind) else { return };
        k.found += 1;
        if let Some(m) = k.list.get_mut(i) {
            m.found += 1;
        }
    }

    /// All masks for a key.
    pub(crate) fn all(&self, key: &PackedKey) -> &[Mask] {
        key.kind().and_then(|k| self.kinds.get(k)).map_or(&[], |k| &k.list)
    }

    /// So many packets of a kind were of the same flow as one before in their burst.
    #[inline(always)]
    pub(crate) fn again(&mut self, kind: usize, packets: u32) {
        if let Some(k) = self.kinds.get_mut(kind) {
            k.again += packets;
        }
    }

    /// The mask that a key of an entry is under.
    pub(crate) fn of_entry(&self, key: &[u64]) -> Option<&Mask> {
        let number = (key.first()? >> NUMBER & NUMBERS) as u32;
        self.kinds.iter().flat_map(|k| &k.list).find(|m| m.number == number)
    }

    /// Whether keys of a kind are looked up by all of them first, as masks are of no use.
    pub(crate) fn paused(&self, key: &PackedKey) -> bool {
        key.kind().and_then(|k| self.kinds.get(k)).is_some_and(|k| k.pause > 0)
    }

    /// The mask with these bits for keys of this one's kind, which gets a number if there was none; `None` if there are enough.
    pub(crate) fn add(&mut self, key: &PackedKey, mut mask: Mask) -> Option<Mask> {
        let kind = self.kinds.get_mut(key.kind()?)?;
        if let Some(m) = kind.list.iter().find(|m| m.bits == mask.bits) {
            return Some(m.clone());
        }
        mask.number = self.last + 1;
        if u64::from(mask.number) > NUMBERS || !kind.add(mask.clone()) {
            return None;
        }
        (self.last, self.some) = (mask.number, true);
        Some(mask)
    }

    /// A mask that has its number from another thread.
    pub(crate) fn learn(&mut self, kind: usize, mask: &Mask) {
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

    /// How many masks there are, if it is their turn.
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

    /// Whether masks were of use: they found entries, and packets of the same flow came together. Otherwise a key's own entry is
    /// found sooner.
    #[cold]
    fn judge(&mut self) {
        let together = self.fields || self.again >= self.found;
        self.pause = if self.found < TRIES / 2 || !together { PAUSE } else { 0 };
        (self.tries, self.found, self.again) = (0, 0, 0);
        // Who finds most comes first, and who finds nothing makes room.
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

/// Walks in a row that asked for more than the packet, after which only some are asked whether they do.
const ROW: u32 = 32;
/// Of so many of those, one.
const ASKED: u32 = 16;

/// Whether it is worth the while to find out what of a packet decides: searches that note it cost more.
#[derive(Debug, Default)]
pub(crate) struct Hopes {
    row: u32,
    turn: u32,
}

impl Hopes {
    /// Whether the next walk is asked.
    pub(crate) fn ask(&mut self) -> bool {
        self.turn = (self.turn + 1) % ASKED;
        self.row < ROW || self.turn == 0
    }

    /// What was found.
    pub(crate) fn answer(&mut self, wide: bool) {
        self.row = if wide { 0 } else { self.row.saturating_add(1) };
    }
}

impl Looked {
    /// Before an action in a bridge: notes what of the packet decides what it does, and whether anything else does.
    pub(super) fn action(&mut self, a: &Action, bridge: Option<&Bridge>) {
        match a {
            // Whether writing a field changes the packet depends on what it said.
            Action::SetField { field, .. } => self.used(*field),
            Action::Load { dst, .. } | Action::CheckPktLarger { dst, .. } => self.used(dst.field),
            Action::Move { src, dst } => [src, dst].into_iter().for_each(|s| self.used(s.field)),
            Action::Push(s) | Action::Pop(s) | Action::OutputReg { src: s, .. } => self.used(s.field),
            Action::DecTtl(_) => self.used(F::IpTtl),
            // Tags decide too, and are in all keys. What is learned is a check of the entry's.
            Action::Output { port: PortNo::NORMAL, .. } => {
                [F::EthSrc, F::EthDst].into_iter().for_each(|f| self.field(f));
                self.only &= bridge.is_some_and(|b| b.bonds.is_empty());
            }
            Action::Output { port, .. } => self.only &= port.0 < RESERVED || ONE.contains(port),
            // Whether it is repeated is said where it is done.
            Action::Ct(c) => match &c.zone {
                ZoneSpec::Field(s) => self.part(s),
                ZoneSpec::Imm(_) => {}
            },
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
            | Action::Note(_) => {}
            // Other state than the packet's decides, or what is done is not repeated.
            Action::OutputTrunc { .. }
            | Action::Controller(_)
            | Action::Group(_)
            | Action::Nat(_)
            | Action::Learn(_)
            | Action::Sample(_)
            | Action::Bundle(_)
            | Action::FinTimeout { .. }
            | Action::DeleteField(_)
            | Action::Meter(_) => self.only = false,
        }
    }
}
