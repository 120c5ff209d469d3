//! A cached flow in one piece of memory: key, checks and steps as words, one after the other. What a packet needs of a flow
//! lies together, so that a lookup waits for memory once and not for every list and box of it.
//!
//! ```text
//! | key … | checks, 3 words each … | steps … |
//! ```
//! A step is a word whose top byte says what it is, with operands in its lower bytes and the words behind it.

use super::{At, Encap, Patch, Step, Sums};
use crate::conntrack::{Stamp, Tuple};
use crate::drops::DropReason;
use crate::mac::Place;

/// Words of a check.
const CHECK: usize = 3;
/// Words that an entry has room for; those of longer ones are elsewhere.
const ROOM: usize = 44;

/// A cached flow.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Entry {
    /// Its counters, and what it depends on.
    pub(crate) path: u32,
    pub(crate) generation: u32,
    /// Why nothing leaves.
    pub(crate) drop: Option<DropReason>,
    key: u8,
    checks: u8,
    len: u8,
    /// Tuples that had no connection.
    pub(crate) absent: Option<Box<Absent>>,
    /// The words, if there are more of them than there is room for.
    more: Option<Box<[u64]>>,
    words: [u64; ROOM],
}

/// Tuples that had no connection, by zone, and how many connections there had been when that was last seen.
#[derive(Debug)]
pub(crate) struct Absent {
    pub(crate) list: Vec<(u16, Tuple)>,
    pub(crate) at: u64,
}

/// Something that must hold before a flow's steps are repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// The connection is as it was; it is refreshed for so many nanoseconds.
    Connection { stamp: Stamp, timeout: u64 },
    /// The packet as received (0) or taken out of its tunnel (1) has at least and at most so many bytes.
    Length { which: u8, min: usize, max: usize },
    /// A lookup finds an address where it was.
    Known { bridge: u16, place: Place },
    /// No address became known since.
    Unknown { bridge: u16, arrivals: u64 },
    /// The source address is known at this port; its age is refreshed.
    Source { bridge: u16, place: Place },
}

impl Check {
    fn words(self) -> [u64; CHECK] {
        let at = |kind: u64, bridge: u16, slot: u32| kind << 56 | u64::from(bridge) << 32 | u64::from(slot);
        match self {
            Check::Connection { stamp, timeout } => [at(0, 0, stamp.index), stamp.stamp, timeout],
            Check::Length { which, min, max } => [at(1, 0, which.into()), min as u64, max as u64],
            Check::Known { bridge, place } => [at(2, bridge, place.slot), place.stamp, 0],
            Check::Unknown { bridge, arrivals } => [at(3, bridge, 0), arrivals, 0],
            Check::Source { bridge, place } => [at(4, bridge, place.slot), place.stamp, 0],
        }
    }

    #[inline]
    fn of([head, a, b]: [u64; CHECK]) -> Check {
        let (bridge, slot) = ((head >> 32) as u16, head as u32);
        match head >> 56 {
            0 => Check::Connection { stamp: Stamp { index: slot, stamp: a }, timeout: b },
            1 => Check::Length { which: slot as u8, min: a as usize, max: b as usize },
            2 => Check::Known { bridge, place: Place { slot, stamp: a } },
            3 => Check::Unknown { bridge, arrivals: a },
            _ => Check::Source { bridge, place: Place { slot, stamp: a } },
        }
    }
}

/// A step as it is repeated.
#[derive(Debug)]
pub(crate) enum Op<'a> {
    /// Bytes that change, and what that adds to the header's, the transport's and ICMP's checksums (RFC 1624, equation 3).
    Write {
        sums: [u16; 3],
        patches: Patches<'a>,
    },
    /// Makes the tags these: (TPID, TCI), the outer one first.
    Tags {
        tags: [(u16, u16); 2],
        n: usize,
    },
    IcmpId(u16),
    Send {
        device: u32,
        last: bool,
    },
    /// `keep`: what is inside is needed again.
    Encap {
        len: usize,
        words: &'a [u64],
        device: Option<u32>,
        v6: bool,
        csum: bool,
        last: bool,
        keep: bool,
    },
    Decap {
        offset: usize,
        last: bool,
        keep: bool,
    },
    Pop,
}

/// The changes of [`Op::Write`].
#[derive(Clone, Debug)]
pub(crate) struct Patches<'a>(&'a [u64]);

/// (header, offset, length, bytes): the bytes come first, in memory's order, in the two words.
impl Iterator for Patches<'_> {
    type Item = (u8, usize, usize, [u64; 2]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.0.split_first()?;
        let n = (head >> 32) as usize & 0xff;
        let (words, rest) = rest.split_at_checked(n.div_ceil(8))?;
        self.0 = rest;
        let word = |i: usize| words.get(i).copied().unwrap_or(0);
        Some(((head >> 56) as u8, (head >> 40) as usize & 0xff, n, [word(0), word(1)]))
    }
}

const WRITE: u64 = 1 << 56;
const TAGS: u64 = 2 << 56;
const ICMP_ID: u64 = 3 << 56;
const SEND: u64 = 4 << 56;
const ENCAP: u64 = 5 << 56;
const DECAP: u64 = 6 << 56;
const POP: u64 = 7 << 56;
/// Flags of a step.
const LAST: u64 = 1 << 55;
const KEEP: u64 = 1 << 54;
const V6: u64 = 1 << 53;
const CSUM: u64 = 1 << 52;
const DEVICE: u64 = 1 << 51;

/// The steps of an entry.
#[derive(Debug)]
pub(crate) struct Steps<'a>(&'a [u64]);

impl<'a> Iterator for Steps<'a> {
    type Item = Op<'a>;

    #[inline]
    fn next(&mut self) -> Option<Op<'a>> {
        let (head, rest) = self.0.split_first()?;
        let has = |flag: u64| head & flag != 0;
        let last = has(LAST);
        let mut more = 0;
        let op = match head >> 56 << 56 {
            WRITE => {
                more = (head & 0xff) as usize;
                let sums = [(head >> 8) as u16, (head >> 24) as u16, (head >> 40) as u16];
                Op::Write { sums, patches: Patches(rest.get(..more)?) }
            }
            TAGS => {
                more = 1;
                let w = *rest.first()?;
                let tag = |shift: u32| ((w >> (shift + 16)) as u16, (w >> shift) as u16);
                Op::Tags { tags: [tag(0), tag(32)], n: (head & 3) as usize }
            }
            ICMP_ID => Op::IcmpId(*head as u16),
            SEND => Op::Send { device: *head as u32, last },
            ENCAP => {
                let len = (head >> 32) as usize & 0xffff;
                more = len.div_ceil(8);
                let device = has(DEVICE).then_some(*head as u32);
                Op::Encap { len, words: rest.get(..more)?, device, v6: has(V6), csum: has(CSUM), last, keep: has(KEEP) }
            }
            DECAP => Op::Decap { offset: (head & 0xffff) as usize, last, keep: has(KEEP) },
            _ => Op::Pop,
        };
        self.0 = rest.get(more..)?;
        Some(op)
    }
}

/// Bytes as words, in memory's order.
fn pack(bytes: &[u8], into: &mut Vec<u64>) {
    for c in bytes.chunks(8) {
        let mut w = [0; 8];
        w.iter_mut().zip(c).for_each(|(w, b)| *w = *b);
        into.push(u64::from_ne_bytes(w));
    }
}

/// A sum folded to 16 bits.
fn fold(mut s: u64) -> u64 {
    while s >> 16 != 0 {
        s = (s & 0xffff) + (s >> 16);
    }
    s
}

/// What changes add to the checksums over them: header, transport, ICMP.
fn sums(list: &[Patch]) -> [u64; 3] {
    let mut s = [0; 3];
    for p in list {
        let mut sum = 0;
        for (i, (o, n)) in p.old.iter().zip(&p.bytes).take(usize::from(p.len)).enumerate() {
            // Each byte where it is in its 16-bit word.
            let shift = if (usize::from(p.offset) + i) & 1 == 0 { 8 } else { 0 };
            sum += u64::from(0xffff ^ u32::from(*o) << shift) + (u64::from(*n) << shift);
        }
        let [header, transport, icmp] = &mut s;
        match p.sums {
            Sums::None => {}
            Sums::Header => *header += sum,
            Sums::Both => (*header, *transport) = (*header + sum, *transport + sum),
            Sums::Transport => *transport += sum,
            Sums::Icmp => *icmp += sum,
        }
    }
    s.map(fold)
}

/// Changes side by side as one, 16 bytes at most.
fn joined(list: &[Patch]) -> Vec<Patch> {
    let mut v: Vec<Patch> = Vec::new();
    for p in list {
        match v.last_mut() {
            Some(l) if l.at == p.at && l.offset + l.len == p.offset && l.len + p.len <= 16 => {
                let (at, n) = (usize::from(l.len), usize::from(p.len));
                l.bytes[at..at + n].copy_from_slice(&p.bytes[..n]);
                l.len += p.len;
            }
            _ => v.push(p.clone()),
        }
    }
    v
}

fn write(list: &[Patch], into: &mut Vec<u64>) {
    let [header, transport, icmp] = sums(list);
    let at = into.len();
    into.push(0);
    for p in joined(list) {
        let which = match p.at {
            At::Frame => 0u64,
            At::Network => 1,
            At::Transport => 2,
        };
        into.push(which << 56 | u64::from(p.offset) << 40 | u64::from(p.len) << 32);
        pack(p.bytes.get(..usize::from(p.len)).unwrap_or_default(), into);
    }
    let n = (into.len() - at - 1) as u64;
    if let Some(head) = into.get_mut(at) {
        *head = WRITE | icmp << 40 | transport << 24 | header << 8 | n;
    }
}

fn encap(e: &Encap, flags: u64, into: &mut Vec<u64>) {
    let flag = |on, bit| if on { bit } else { 0 };
    let device = e.device.map_or(0, |d| DEVICE | u64::from(d));
    into.push(ENCAP | flags | flag(e.v6, V6) | flag(e.csum, CSUM) | (e.headers.len() as u64) << 32 | device);
    pack(&e.headers, into);
}

/// Whether what a step leaves behind is needed again: some later step goes back to it.
fn kept(rest: &[Step]) -> bool {
    let mut depth = 0;
    for s in rest {
        match s {
            Step::Pop if depth == 0 => return true,
            Step::Pop => depth -= 1,
            Step::Decap { .. } => depth += 1,
            Step::Encap { encap, .. } if encap.device.is_none() => depth += 1,
            _ => {}
        }
    }
    false
}

impl Entry {
    /// An entry; `None` if it has more checks or words than one can have.
    pub(crate) fn new(
        key: &[u64],
        checks: &[Check],
        steps: &[Step],
        (path, generation): (u32, u32),
        drop: Option<DropReason>,
        absent: Vec<(u16, Tuple)>,
    ) -> Option<Entry> {
        let mut words = key.to_vec();
        checks.iter().for_each(|c| words.extend(c.words()));
        for (i, s) in steps.iter().enumerate() {
            let keep = || if kept(steps.get(i + 1..).unwrap_or_default()) { KEEP } else { 0 };
            let last = |last: &bool| if *last { LAST } else { 0 };
            match s {
                Step::Rewrite(list) => write(list, &mut words),
                Step::Vlans(tags) => {
                    words.push(TAGS | tags.len() as u64);
                    let tag = |i: usize| tags.get(i).map_or(0, |(tpid, tci)| u64::from(*tpid) << 16 | u64::from(*tci));
                    words.push(tag(1) << 32 | tag(0));
                }
                Step::IcmpId(id) => words.push(ICMP_ID | u64::from(*id)),
                Step::Send { device, last: l } => words.push(SEND | last(l) | u64::from(*device)),
                Step::Encap { encap: e, last: l } => encap(e, last(l) | keep(), &mut words),
                Step::Decap { offset, last: l } => words.push(DECAP | last(l) | keep() | *offset as u64),
                Step::Pop => words.push(POP),
            }
        }
        let mut room = [0; ROOM];
        let fits = room.get_mut(..words.len()).map(|r| r.copy_from_slice(&words)).is_some();
        Some(Entry {
            path,
            generation,
            drop,
            key: key.len().try_into().ok()?,
            checks: checks.len().try_into().ok()?,
            len: if fits { words.len() as u8 } else { 0 },
            absent: (!absent.is_empty()).then(|| Box::new(Absent { list: absent, at: 0 })),
            more: (!fits).then(|| words.into()),
            words: room,
        })
    }

    #[inline]
    fn words(&self) -> &[u64] {
        match &self.more {
            None => self.words.get(..usize::from(self.len)).unwrap_or_default(),
            Some(w) => w,
        }
    }

    /// The key's words.
    #[inline]
    pub(crate) fn key(&self) -> &[u64] {
        self.words().get(..usize::from(self.key)).unwrap_or_default()
    }

    /// What must hold.
    #[inline]
    pub(crate) fn checks(&self) -> impl Iterator<Item = Check> {
        let from = usize::from(self.key);
        let words = self.words().get(from..from + CHECK * usize::from(self.checks)).unwrap_or_default();
        words.as_chunks::<CHECK>().0.iter().map(|c| Check::of(*c))
    }

    /// What is repeated.
    #[inline]
    pub(crate) fn steps(&self) -> Steps<'_> {
        Steps(self.words().get(usize::from(self.key) + CHECK * usize::from(self.checks)..).unwrap_or_default())
    }

    /// Hands over a word of each cache line that a packet reads.
    #[inline]
    pub(crate) fn lines(&self, near: impl Fn(&u64)) {
        // The first line has what is before the words.
        self.words.iter().step_by(8).take(usize::from(self.len).div_ceil(8) + 1).for_each(&near);
        self.more.iter().for_each(|w| w.iter().step_by(8).for_each(&near));
    }
}
