//! Packed keys: every byte of a packet that translation can see, without its lengths and checksums.
//!
//! IPv4 and IPv6 without options, untagged or tagged, alone or in a tunnel that ends here, is nearly all that passes a
//! gateway. The key of such a frame is its first bytes under a mask ([`Shape`]). Keys of other frames are
//! assembled field by field. Either way a key is one or more blocks of eight words, so that filling, hashing and comparing
//! it needs no loop over words.
//!
//! [`shape`] has the kinds of frames whose bytes are their keys, [`fields`] builds the keys of all others, and [`places`]
//! reads keys back.

mod fields;
mod places;
mod shape;

use crate::buf::PacketBuf;
use crate::ids::DeviceId;
use crate::tunnel::{self, Own};
use fields::kinds;
use packet::Headers;
pub(super) use places::device;
pub(crate) use places::{fragment, frame, is_leg, places, solicits, used, within};
use shape::ALL;
pub(crate) use shape::{Alone, Class, MASK_BLOCKS, RAW_WORDS, SHAPES, Shape, classify, classify_as, inner_at};

/// Words of a block; unused words are 0.
pub(crate) const BLOCK: usize = 8;
/// Most blocks: device, two packets with IPv6 and tags, and a tunnel header have up to 36 words.
pub(crate) const MAX_BLOCKS: usize = 5;
/// TCP flags that connection tracking uses: FIN, SYN, RST, ACK.
const TRACKED_FLAGS: u16 = 0x17;
/// In the first word: the key is masked bytes.
const RAW: u64 = 1 << 63;
/// In the first word, from this bit on: the kind of frame.
const KIND: u32 = 32;
/// Its bits.
const KIND_MASK: u64 = 0x3ff;
/// In the first word, from this bit up to [`RAW`]: the number of the mask, in keys under one.
pub(super) const NUMBER: u32 = KIND + KIND_MASK.trailing_ones();
/// The first word of a key that is no packet's, but of how a fragment goes on.
const LEG: u64 = KIND_MASK << KIND;

/// Where a frame's headers are: the same in all packets of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Layout {
    /// Offset of the network header.
    pub(crate) l3: u16,
    /// Offset of the transport header; 0: none.
    pub(crate) l4: u16,
    /// Tags.
    pub(crate) tags: u8,
    /// IP version; 0: not well-formed IP.
    pub(crate) ip: u8,
    /// IP protocol; 0 in keys of bytes that have no more of a protocol than its number.
    pub(crate) proto: u8,
}

impl Layout {
    pub(crate) fn of(h: &Headers) -> Option<Layout> {
        Some(Layout {
            l3: h.l3.try_into().ok()?,
            l4: h.l4.unwrap_or(0).try_into().ok()?,
            tags: h.vlans.iter().flatten().count() as u8,
            ip: if h.is_ipv4() { 4 } else { u8::from(h.is_ipv6()) * 6 },
            proto: h.proto,
        })
    }

    /// The layout in 23 bits.
    fn word(self) -> u64 {
        u64::from(self.l4) | u64::from(self.l3 & 0x7f) << 16
    }

    /// The layout from such a word.
    pub(crate) fn offsets(word: u64) -> Layout {
        Layout { l3: (word >> 16) as u16 & 0x7f, l4: word as u16, ..Layout::default() }
    }
}

/// Kinds of frames that have masks: shapes, and kinds of fields, each untagged or tagged, alone and in tunnels over IPv4
/// and IPv6 that end here.
pub(crate) const KINDS: usize = SHAPES + 3 * ALONE;
// All ones mean no kind.
const _: () = assert!(KINDS < KIND_MASK as usize);
/// Kinds of frames with keys of fields, untagged.
const FIELD_KINDS: usize = 7;
/// The same with those that are tagged.
const ALONE: usize = 2 * FIELD_KINDS;

/// The kind that a key's first word says.
#[inline(always)]
pub(super) fn kind_of(head: u64) -> usize {
    (head >> KIND & KIND_MASK) as usize
}

/// How the candidate entry of a key was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Found {
    /// By the whole key.
    #[default]
    Exact,
    /// Under a mask; the key was narrowed to the megaflow's.
    Narrow,
    /// It is the megaflow of an earlier packet; only the first word of the key is set.
    Again,
}

/// Fills words from a frame under masks; beyond its end they are 0.
#[inline(always)]
fn masked<const N: usize>(p: &[u8], to: &mut [u64; N], masks: &[u64; N]) {
    let (from, rest) = p.as_chunks::<8>();
    match from.first_chunk::<N>() {
        Some(from) => {
            for i in 0..N {
                to[i] = u64::from_ne_bytes(from[i]) & masks[i];
            }
        }
        None => {
            let mut last = [0; 8];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            let words = from.iter().chain([&last, &[0; 8], &[0; 8]]);
            to.fill(0);
            for ((to, from), mask) in to.iter_mut().zip(words).zip(masks) {
                *to = u64::from_ne_bytes(*from) & mask;
            }
        }
    }
}

/// A key under construction.
#[derive(Clone, Debug)]
pub(crate) struct PackedKey {
    blocks: [[u64; BLOCK]; MAX_BLOCKS],
    /// Blocks in use; 0: packets of this kind are not cached.
    len: usize,
    /// The hash of the blocks.
    pub(crate) hash: u64,
    /// The number of the candidate entry.
    pub(crate) candidate: u32,
    /// How the candidate was found.
    pub(crate) found: Found,
    /// Where the packet's headers are.
    pub(crate) outer: Layout,
    /// Where the headers of the inner frame are, from its beginning.
    pub(crate) inner: Layout,
    /// Where the inner frame of a tunnel that ends here begins; else 0.
    pub(crate) inner_at: usize,
    /// Where the packet ends according to its network header.
    pub(crate) end: usize,
}

impl Default for PackedKey {
    fn default() -> PackedKey {
        PackedKey {
            blocks: [[0; BLOCK]; MAX_BLOCKS],
            len: 0,
            hash: 0,
            candidate: 0,
            found: Found::Exact,
            outer: Layout::default(),
            inner: Layout::default(),
            inner_at: 0,
            end: 0,
        }
    }
}

impl PackedKey {
    /// Whether the packet is in no tunnel that ends here, or the checksums outside it hold.
    pub(crate) fn is_sound<P: PacketBuf>(&self, p: &P) -> bool {
        let Layout { l3, l4, ip, proto, .. } = self.outer;
        let sound =
            || tunnel::is_sound(p.data(), [l3.into(), l4.into(), self.end], (ip == 6, proto), p.checksum_good());
        self.inner_at == 0 || sound()
    }

    /// Becomes one of a packet that is not cached.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Builds the key of a packet; false if its kind is not cached. The hash is not set.
    #[inline]
    pub(crate) fn fill(&mut self, device: DeviceId, p: &[u8], own: &Own, exact_flags: bool) -> bool {
        self.fill_as(device, p, classify(p, own, exact_flags), own, exact_flags)
    }

    /// The same for a packet whose kind is known.
    #[inline(always)]
    pub(crate) fn fill_as(
        &mut self,
        device: DeviceId,
        p: &[u8],
        class: Option<Class>,
        own: &Own,
        exact_flags: bool,
    ) -> bool {
        self.found = Found::Exact;
        match class {
            Some(class) => {
                self.raw(device, p, class);
                true
            }
            None => self.fields(device, p, own, exact_flags),
        }
    }

    /// The blocks in use; none if packets of this kind are not cached.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> &[[u64; BLOCK]] {
        self.blocks.get(..self.len).unwrap_or_default()
    }

    /// The kind of frame, if it is one that has masks.
    #[inline(always)]
    pub(crate) fn kind(&self) -> Option<usize> {
        let [[head, ..], ..] = &self.blocks;
        (self.len != 0).then_some(kind_of(*head)).filter(|kind| *kind < KINDS)
    }

    /// The device that the packet came from.
    pub(crate) fn device(&self) -> DeviceId {
        DeviceId(self.head() as u32)
    }

    /// Its first word.
    pub(crate) fn head(&self) -> u64 {
        let [[head, ..], ..] = &self.blocks;
        *head
    }

    /// Whether it is the key of a fragment, or of one in a tunnel that ends here.
    pub(crate) fn is_fragment(&self) -> bool {
        let kind = self.kind().and_then(|k| k.checked_sub(SHAPES)).map_or(kinds::OTHER, |k| (k % FIELD_KINDS) as u64);
        matches!(kind, kinds::FRAGMENT4 | kinds::FRAGMENT6)
    }

    /// Becomes the key of how a fragment goes on ([`super::fragments`]), whose headers are in these places.
    pub(crate) fn leg(&mut self, words: [u64; 3], layout: Layout) {
        let [first, ..] = &mut self.blocks;
        let [number, of, transport] = words;
        *first = [LEG, number, of, transport, 0, 0, 0, 0];
        (self.len, self.found, self.outer, self.inner_at) = (1, Found::Exact, layout, 0);
    }

    /// The shape of that kind.
    pub(crate) fn shape(&self) -> Option<&'static Shape> {
        ALL.get(self.kind()?)
    }

    /// Whether it is an ICMP error's and says what connection that is about.
    pub(crate) fn quotes(&self) -> bool {
        self.shape().is_some_and(|s| s.quotes)
    }

    /// Becomes the key of a megaflow, whose entry has this number.
    #[inline(always)]
    pub(crate) fn narrow(&mut self, to: &[[u64; BLOCK]; MASK_BLOCKS], number: u32) {
        for (to, from) in self.blocks.iter_mut().zip(to).take(self.len) {
            *to = *from;
        }
        (self.candidate, self.found) = (number, Found::Narrow);
    }

    /// Packets of its kind are cached.
    #[inline(always)]
    pub(crate) fn cached(&self) -> bool {
        self.len != 0
    }

    /// The lengths of the packet, and of the inner frame.
    #[inline]
    pub(crate) fn lengths(&self, whole: usize) -> [usize; 2] {
        [whole, if self.inner_at == 0 { 0 } else { self.end - self.inner_at }]
    }

    /// Becomes the key of a frame of this kind.
    #[inline(always)]
    fn raw(&mut self, device: DeviceId, p: &[u8], class: Class) {
        let Some(shape) = self.begin(device, class) else { return };
        let [first, second, third, ..] = &mut self.blocks;
        let [masks, more, most] = &shape.masks;
        let [_, to @ ..] = first;
        let [_, masks @ ..] = masks;
        masked(p, to, masks);
        if shape.blocks > 1 {
            masked(p.get(8 * (BLOCK - 1)..).unwrap_or_default(), second, more);
        }
        if shape.blocks > 2 {
            masked(p.get(8 * (2 * BLOCK - 1)..).unwrap_or_default(), third, most);
        }
    }

    /// The same, but only its first word.
    #[inline(always)]
    fn begin(&mut self, device: DeviceId, class: Class) -> Option<&'static Shape> {
        let shape = ALL.get(class.kind)?;
        let [[head, ..], ..] = &mut self.blocks;
        *head = class.head(device);
        self.len = shape.blocks;
        (self.outer, self.inner, self.inner_at, self.end) = (shape.outer, shape.inner, shape.inner_at, class.end);
        Some(shape)
    }

    /// Is known to be the key of this entry, as the one before it was.
    #[inline(always)]
    pub(crate) fn again(&mut self, device: DeviceId, class: Class, number: u32) {
        self.begin(device, class);
        (self.candidate, self.found) = (number, Found::Again);
    }
}

#[cfg(test)]
mod tests;
