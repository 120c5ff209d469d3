//! The flows found last: the next packet often belongs to the same, which a few words of its frame tell.

use super::key::{Alone, BLOCK, NUMBER, PackedKey, RAW_WORDS, classify_as, inner_at, kind_of};
use super::megaflow::{Mask, NUMBERS, Narrow};
use crate::buf::PacketBuf;
use crate::ids::DeviceId;
use crate::tunnel::Own;

/// The flow found last in a burst: its mask and values by word of the frame, to compare the next frame without a key.
#[derive(Debug)]
pub(crate) struct LastFlow {
    head: u64,
    /// It is a megaflow; else its packets have all of their keys in common.
    pub(crate) wide: bool,
    number: u32,
    /// The entry's key.
    key: Narrow,
    blocks: usize,
    /// (word, mask, value)
    words: [(u8, u64, u64); RAW_WORDS],
    len: usize,
    /// Mask and value of the first words, which nearly all frames have: compared at once.
    front: [[u64; FRONT]; 2],
    /// How many of `words` are among these.
    near: usize,
    /// What its frames are, if they are in no tunnel. What tells these from others is among the first words, too.
    alone: Option<Alone>,
}

/// Words of [`LastFlow::front`]: all that decide in a frame without a tunnel, and no more than the shortest frame has.
const FRONT: usize = 7;

impl LastFlow {
    /// For a masked key whose entry has this number.
    pub(crate) fn new(mask: &Mask, key: &Narrow, blocks: usize, number: u32) -> LastFlow {
        LastFlow::under(mask.bits.as_flattened(), key, blocks, number, true)
    }

    /// For a whole key whose entry is its candidate, if that is a frame's bytes.
    pub(crate) fn exact(key: &PackedKey) -> Option<LastFlow> {
        let shape = key.shape()?;
        let mut own = Narrow::default();
        own.iter_mut().zip(key.blocks()).for_each(|(to, from)| *to = *from);
        Some(LastFlow::under(shape.masks.as_flattened(), &own, key.blocks().len(), key.candidate, false))
    }

    fn under(masks: &[u64], key: &Narrow, blocks: usize, number: u32, wide: bool) -> LastFlow {
        let (words, front) = ([(0, 0, 0); RAW_WORDS], [[0; FRONT]; 2]);
        let mut last =
            LastFlow { head: 0, wide, number, key: *key, blocks, words, len: 0, front, near: 0, alone: None };
        last.head = key.as_flattened().first().map_or(0, |v| v & !(NUMBERS << NUMBER));
        let both = masks.iter().zip(key.as_flattened()).skip(1);
        let decide = both.zip(0..).filter(|((m, _), _)| **m != 0);
        for (to, ((mask, value), word)) in last.words.iter_mut().zip(decide) {
            *to = (word, *mask, *value);
            last.len += 1;
            let [masks, values] = &mut last.front;
            if let (Some(m), Some(v)) = (masks.get_mut(usize::from(word)), values.get_mut(usize::from(word))) {
                (*m, *v) = (*mask, *value);
                last.near += 1;
            }
        }
        last.alone = Alone::of(last.kind());
        for (at, mask, value) in last.alone.iter().flat_map(|a| a.bytes()) {
            let word = |b: u8| {
                let mut bytes = [0; 8];
                bytes.get_mut(at % 8).into_iter().for_each(|to| *to = b);
                u64::from_ne_bytes(bytes)
            };
            let [masks, values] = &mut last.front;
            if let (Some(m), Some(v)) = (masks.get_mut(at / 8), values.get_mut(at / 8)) {
                (*m, *v) = (*m | word(mask), *v | word(value));
            }
        }
        last
    }

    /// The entry's number, and its key.
    pub(crate) fn entry(&self) -> (u32, &[[u64; BLOCK]]) {
        (self.number, self.key.get(..self.blocks).unwrap_or_default())
    }

    /// The kind of its frames.
    pub(crate) fn kind(&self) -> usize {
        kind_of(self.head)
    }

    /// Where the inner frame of its frames begins; 0: there is none.
    pub(crate) fn inner_at(&self) -> usize {
        inner_at(self.kind())
    }

    /// The length of the inner frame of one whose IP packet ends there.
    pub(crate) fn inner_length(&self, end: usize) -> usize {
        match self.inner_at() {
            0 => 0,
            at => end - at,
        }
    }

    /// The device that they come from.
    pub(crate) fn device(&self) -> DeviceId {
        DeviceId(self.head as u32)
    }

    /// The entry's number, if a frame matches.
    #[inline(always)]
    pub(crate) fn is(&self, head: u64, p: &[u8]) -> Option<u32> {
        (self.head == head && self.has_bytes(p)).then_some(self.number)
    }

    /// Whether a frame agrees in the bytes that decide, if it is of the same kind.
    #[inline(always)]
    pub(crate) fn has_bytes(&self, p: &[u8]) -> bool {
        let (frame, _) = p.as_chunks::<8>();
        let Some(first) = frame.first_chunk::<FRONT>() else { return self.has_short(p) };
        let [masks, values] = &self.front;
        let differ = (0..FRONT).fold(0, |d, i| d | u64::from_ne_bytes(first[i]) & masks[i] ^ values[i]);
        differ == 0 && (self.near == self.len || self.has_words(frame, self.near))
    }

    /// The same for a frame that has not all of the first words.
    #[inline(never)]
    fn has_short(&self, p: &[u8]) -> bool {
        self.has_words(p.as_chunks().0, 0) && self.alone.is_none_or(|a| a.has_bytes(p))
    }

    /// The same for the words from a place in the list on.
    #[inline(never)]
    fn has_words(&self, frame: &[[u8; 8]], from: usize) -> bool {
        self.words.iter().take(self.len).skip(from).all(|(word, mask, value)| {
            frame.get(usize::from(*word)).is_some_and(|w| u64::from_ne_bytes(*w) & mask == *value)
        })
    }

    /// How many of the first packets match, as far as `takes` says so of their lengths, and where their IP packets end.
    #[inline(always)]
    pub(crate) fn run<P: PacketBuf>(
        &self,
        packets: &[(DeviceId, P)],
        own: &Own,
        exact_flags: bool,
        takes: impl FnMut(usize, usize) -> bool,
    ) -> usize {
        let kind = self.kind();
        match self.alone.filter(|a| a.is_in_use(exact_flags)) {
            Some(a @ Alone { v6: false, tcp: false, .. }) => {
                self.run_of(packets, |p| a.end::<false, false>(p.data(), own), takes)
            }
            Some(a @ Alone { v6: false, tcp: true, .. }) => {
                self.run_of(packets, |p| a.end::<false, true>(p.data(), own), takes)
            }
            Some(a @ Alone { v6: true, tcp: false, .. }) => {
                self.run_of(packets, |p| a.end::<true, false>(p.data(), own), takes)
            }
            Some(a @ Alone { v6: true, tcp: true, .. }) => {
                self.run_of(packets, |p| a.end::<true, true>(p.data(), own), takes)
            }
            // The bytes that define a kind are among those that decide.
            None => {
                let class = |p: &P| classify_as(kind, p.data(), own, exact_flags).filter(|c| c.kind == kind);
                self.run_of(packets, |p| class(p).filter(|c| c.is_sound(p)).map(|c| c.end), takes)
            }
        }
    }

    /// The same, where `end` tells where the IP packet ends of a frame that agrees in the bytes that decide, if it is of this
    /// kind.
    #[inline(always)]
    fn run_of<P: PacketBuf>(
        &self,
        packets: &[(DeviceId, P)],
        end: impl Fn(&P) -> Option<usize>,
        mut takes: impl FnMut(usize, usize) -> bool,
    ) -> usize {
        let first = self.device();
        let mut belongs = |(device, p): &(DeviceId, P)| {
            let data = p.data();
            *device == first && self.has_bytes(data) && end(p).is_some_and(|end| takes(data.len(), end))
        };
        packets.iter().take_while(|p| belongs(p)).count()
    }
}

/// Devices whose flows are kept at a time.
const RECENT: usize = 8;

/// The flow found last of each of some devices.
#[derive(Debug, Default)]
pub(crate) struct Recent([Option<LastFlow>; RECENT]);

impl Recent {
    /// That of a device; it may be another one's.
    #[inline(always)]
    pub(crate) fn of(&self, device: DeviceId) -> Option<&LastFlow> {
        self.0.get(device.index() % RECENT)?.as_ref()
    }

    /// Keeps one.
    pub(crate) fn keep(&mut self, l: LastFlow) {
        if let Some(place) = self.0.get_mut(l.device().index() % RECENT) {
            *place = Some(l);
        }
    }

    /// Forgets that of a device.
    #[cold]
    pub(crate) fn forget(&mut self, device: DeviceId) {
        self.0.get_mut(device.index() % RECENT).into_iter().for_each(|l| *l = None);
    }

    /// Puts `l` in the place of the one before it in a burst, which is kept where it is of another device.
    #[inline(always)]
    pub(crate) fn follow(&mut self, before: &mut Option<LastFlow>, l: LastFlow) {
        let device = l.device();
        if let Some(b) = before.replace(l).filter(|b| b.device() != device) {
            self.keep(b);
        }
    }
}
