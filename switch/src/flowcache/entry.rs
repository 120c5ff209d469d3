//! A cached flow in one piece of memory: key, checks and steps as words, one after the other. What a packet needs of a
//! flow lies together, so that a lookup waits for memory once and not for every list and box of it.
//!
//! ```text
//! | key, in blocks … | checks, 2 words each … | steps … |
//! ```
//! A step is a word whose top byte says what it is, with operands in its lower bytes and the words behind it. Where
//! headers are follows from the key, so steps say offsets from the frame's start.

use super::check::{CHECK, Check};
use super::encap::{outer_l4, put_source_ports};
use super::key::{BLOCK, Layout};
use super::metered::Metered;
use super::patches::{Ports, differ};
use super::{At, Encap, Patch, Step, Sums};
use crate::conntrack::reassembly::Suspended;
use crate::conntrack::{Tuple, Zone};
use crate::drops::DropReason;
use crate::ids::{BridgeId, Target};
use crate::tunnel::{Sequence, Shim, SourcePorts};
use crate::xlate::sample::Sampler;
use openflow_rs::PortNo;
use packet::{checksum, gre, ipproto};
use std::sync::Arc;

/// Words that an entry has room for; those of longer ones are elsewhere.
const ROOM: usize = 45;

/// A cached flow.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Entry {
    /// Its counters, and what it depends on.
    pub(crate) path: u32,
    pub(crate) generation: u32,
    /// Why nothing leaves.
    pub(crate) drop: Option<DropReason>,
    /// Blocks of the key, and checks.
    key: u8,
    checks: u8,
    /// How many words; 0: they are elsewhere.
    len: u8,
    /// Some of the checks are of connections.
    pub(crate) tracked: bool,
    /// There are meters on the way.
    pub(crate) metered: bool,
    rare: Option<Box<Rare>>,
    words: [u64; ROOM],
}

/// What few packets need of an entry.
#[derive(Debug, Default)]
struct Rare {
    /// Tuples that had no connection, by zone, in the order of their checks.
    absent: Vec<(Zone, Tuple)>,
    /// The words, if there are more of them than there is room for.
    words: Box<[u64]>,
    /// Its packets are fragments, which wait with this left to do.
    held: Option<Arc<Suspended>>,
    /// The meters on the way.
    meters: Box<[Metered]>,
    /// What steps have that are no words, in the order of the steps.
    sequences: Box<[Sequence]>,
    samplers: Box<[Sampler]>,
}

impl Rare {
    /// Whether the entry is its words and nothing else.
    fn is_of_words(&self) -> bool {
        let Rare { absent, words: _, held, meters, sequences, samplers } = self;
        absent.is_empty() && held.is_none() && meters.is_empty() && sequences.is_empty() && samplers.is_empty()
    }
}

/// Bytes that change, and what that adds to checksums (RFC 1624, equation 3).
#[derive(Debug)]
pub(crate) struct Write<'a> {
    /// Where the first word is written.
    pub(crate) at: usize,
    /// (bits that stay, bits that come), in memory's order.
    pub(crate) words: &'a [[u64; 2]],
    /// The IPv4 header's checksum, and what it changes by; 0: not at all.
    pub(crate) header: (usize, u16),
    /// The transport's.
    pub(crate) transport: (usize, u16),
    /// That is UDP's, where 0 stands for none (RFC 768).
    pub(crate) udp: bool,
}

/// What a step is, in its word's top byte.
pub(crate) mod op {
    /// Bytes that change: [`super::Write`].
    pub(crate) const WRITE: u64 = 1 << 56;
    /// Tags: [`super::Tags`].
    pub(crate) const TAGS: u64 = 2 << 56;
    /// The ICMP id in the low 16 bits, of the header at the offset above.
    pub(crate) const ICMP_ID: u64 = 3 << 56;
    /// Leaves for the [`crate::Target`] in the low half.
    pub(crate) const SEND: u64 = 4 << 56;
    /// Outer headers: [`super::Outer`].
    pub(crate) const ENCAP: u64 = 5 << 56;
    /// The frame inside: [`super::inner`].
    pub(crate) const DECAP: u64 = 6 << 56;
    /// Back to the packet that this one was made of.
    pub(crate) const POP: u64 = 7 << 56;
    /// The tuple becomes that of a connection which was opened: [`super::transport`].
    pub(crate) const TRANSLATE: u64 = 8 << 56;
    /// The same of an ICMP error, with what it quotes.
    pub(crate) const TRANSLATE_QUOTING: u64 = 11 << 56;
    /// Goes to a BFD session: [`super::session`].
    pub(crate) const SESSION: u64 = 9 << 56;
    /// The packet, a fragment, waits.
    pub(crate) const HOLD: u64 = 10 << 56;
    /// Outer headers with GRE: [`super::OuterGre`].
    pub(crate) const ENCAP_GRE: u64 = 12 << 56;
    /// Some packets are sampled: [`super::Steps::sampler`].
    pub(crate) const SAMPLE: u64 = 13 << 56;
    /// The first bytes: [`super::cut`].
    pub(crate) const CUT: u64 = 14 << 56;
    /// Other ports change the checksum of SCTP ([`super::Steps::ports`]): what is wrong with it stays so.
    pub(crate) const SCTP_SUM: u64 = 15 << 56;
    /// What an ICMP error quotes becomes another tuple's: [`super::Steps::quote`].
    pub(crate) const QUOTE: u64 = 16 << 56;
    /// All of these bits.
    pub(crate) const ALL: u64 = 0xff << 56 & !FLAGS;
    /// The packet is not used again: nothing needs to be copied.
    pub(crate) const LAST: u64 = 1 << 63;
    /// What is inside is needed again.
    pub(crate) const KEEP: u64 = 1 << 62;
    const FLAGS: u64 = LAST | KEEP;
}

use op::{KEEP, LAST};

/// Flags of steps.
const V6: u64 = 1 << 53;
const CSUM: u64 = 1 << 52;
const DEVICE: u64 = 1 << 51;
const SPREAD: u64 = 1 << 50;
const UDP: u64 = 1 << 55;

/// Whether keys are the same.
#[inline(always)]
pub(crate) fn same(a: &[[u64; BLOCK]], b: &[[u64; BLOCK]]) -> bool {
    let differ = |a: &[u64; BLOCK], b: &[u64; BLOCK]| (0..BLOCK).fold(0, |d, i| d | (a[i] ^ b[i]));
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (a, b)| d | differ(a, b)) == 0
}

/// The checks of an entry.
#[derive(Clone, Debug)]
pub(crate) struct Checks<'a>(&'a [[u64; CHECK]]);

impl Iterator for Checks<'_> {
    type Item = Check;

    #[inline(always)]
    fn next(&mut self) -> Option<Check> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(Check::of(*first))
    }
}

/// Tags to be: (TPID, TCI), the outer one first, and how many there are.
pub(crate) struct Tags {
    pub(crate) have: usize,
    tags: [(u16, u16); 2],
    n: usize,
}

impl Tags {
    pub(crate) fn list(&self) -> &[(u16, u16)] {
        self.tags.get(..self.n).unwrap_or_default()
    }
}

/// Outer headers to be put in front.
pub(crate) struct Outer<'a> {
    pub(crate) len: usize,
    pub(crate) words: &'a [u64],
    /// Where the packet leaves; none: it goes on.
    pub(crate) target: Option<Target>,
    pub(crate) v6: bool,
    /// With a UDP checksum.
    pub(crate) csum: bool,
    /// Of the IPv4 header, but for its length.
    pub(crate) sum: u16,
    /// Of what the UDP checksum covers of the headers, but for the source port and lengths.
    pub(crate) covered: u16,
    /// The source port follows from the flow of the packet, whose IP header is here; else it is among the words.
    pub(crate) spread: Option<usize>,
}

/// The same with GRE behind the IP header.
pub(crate) struct OuterGre<'a> {
    pub(crate) len: usize,
    pub(crate) words: &'a [u64],
    pub(crate) target: Option<Target>,
    pub(crate) v6: bool,
    /// Of the IPv4 header, but for its length.
    pub(crate) sum: u16,
    /// With GRE's checksum.
    pub(crate) csum: bool,
    /// Where the packet's number stands, and who has it.
    pub(crate) sequence: Option<(usize, &'a Sequence)>,
}

/// Where a frame begins inside, and by how many bytes the packet is longer than it was received.
#[inline(always)]
pub(crate) fn inner(head: u64) -> (usize, i8) {
    ((head & 0xffff) as usize, (head >> 16) as i8)
}

/// Where the source port of the tunnel stands that a packet leaves, if a sample tells of it; else 0.
#[inline(always)]
pub(crate) fn tunnel_port(head: u64) -> usize {
    (head >> 24) as usize & 0xffff
}

/// How many bytes are left, and how many the datapath is told of.
#[inline(always)]
pub(crate) fn cut(head: u64) -> (usize, u32) {
    ((head >> 32) as usize & 0xffff, head as u32)
}

/// The ICMP header's offset, and the id.
#[inline(always)]
pub(crate) fn icmp_id(head: u64) -> (usize, u16) {
    ((head >> 16) as usize & 0xffff, head as u16)
}

/// The bridge and the port of a session.
#[inline(always)]
pub(crate) fn session(head: u64) -> (BridgeId, PortNo) {
    (BridgeId((head >> 16) as usize & 0xffff), PortNo(head as u16))
}

/// Offsets of an IP header, and of the transport header behind it, which has this protocol; 0: it has none with ports.
#[inline(always)]
pub(crate) fn transport(head: u64) -> (usize, usize, u8) {
    ((head >> 16) as usize & 0xffff, head as usize & 0xffff, (head >> 32) as u8)
}

/// The steps of an entry: the words of what is left of them, and where the rest is.
#[derive(Debug)]
pub(crate) struct Steps<'a>(&'a [u64], Option<&'a Rare>);

impl<'a> Steps<'a> {
    /// The word of the next step. What that has in words behind it must be taken before the one after.
    #[inline(always)]
    pub(crate) fn head(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*head)
    }

    /// How many words there are.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    /// Where the packet leaves, if all that is done is to send it there.
    #[inline(always)]
    pub(crate) fn straight(&self) -> Option<Target> {
        let &[head] = self.0 else { return None };
        (head & (op::ALL | LAST) == op::SEND | LAST).then_some(Target::of_bits(head as u32))
    }

    #[inline(always)]
    pub(crate) fn write(&mut self, head: u64) -> Option<Write<'a>> {
        let change = self.head()?;
        let (words, rest) = self.0.split_at_checked(2 * (head & 0xff) as usize)?;
        self.0 = rest;
        Some(Write {
            at: (head >> 8) as usize & 0xffff,
            words: words.as_chunks().0,
            header: ((change >> 32) as usize & 0xffff, change as u16),
            transport: ((change >> 48) as usize, (change >> 16) as u16),
            udp: head & UDP != 0,
        })
    }

    #[inline(always)]
    pub(crate) fn tags(&mut self, head: u64) -> Option<Tags> {
        let w = self.head()?;
        let tag = |shift: u32| ((w >> (shift + 16)) as u16, (w >> shift) as u16);
        Some(Tags { have: (head >> 8 & 3) as usize, tags: [tag(0), tag(32)], n: (head & 3) as usize })
    }

    /// Where the headers of an SCTP packet are, and what differs in its ports.
    #[inline(always)]
    pub(crate) fn ports(&mut self, head: u64) -> Option<Ports> {
        let (l3, l4, _) = transport(head);
        Some(Ports { l3, l4, differ: (self.head()? as u32).to_be_bytes() })
    }

    /// The tuples of a connection before and after, as far as an error says them: addresses and ports.
    pub(crate) fn quote(&mut self, head: u64) -> Option<[Tuple; 2]> {
        let v6 = head & V6 != 0;
        let mut tuple = || {
            let ports = self.head()?;
            let [mut src, mut dst] = [self.head()?, self.head()?].map(u128::from);
            if v6 {
                (src, dst) = (src << 64 | u128::from(self.head()?), dst << 64 | u128::from(self.head()?));
            }
            let (sport, dport, proto) = (ports as u16, (ports >> 16) as u16, (ports >> 32) as u8);
            Some(Tuple { v6, proto, src, dst, sport, dport, icmp_type: 0, icmp_code: 0 })
        };
        Some([tuple()?, tuple()?])
    }

    pub(crate) fn sampler(&self, head: u64) -> Option<&'a Sampler> {
        self.1?.samplers.get((head & 0xffff) as usize)
    }

    pub(crate) fn outer_gre(&mut self, head: u64) -> Option<OuterGre<'a>> {
        let more = self.head()?;
        let len = (head >> 32) as usize & 0xffff;
        let (words, rest) = self.0.split_at_checked(len.div_ceil(8))?;
        self.0 = rest;
        let target = (head & DEVICE != 0).then_some(Target::of_bits(head as u32));
        let (number, at) = ((more >> 16) as usize & 0xffff, (more >> 32) as usize & 0xffff);
        let sequence = self.1.and_then(|r| r.sequences.get(number)).filter(|_| at != 0).map(|s| (at, s));
        Some(OuterGre { len, words, target, v6: head & V6 != 0, csum: head & CSUM != 0, sum: more as u16, sequence })
    }

    #[inline(always)]
    pub(crate) fn outer(&mut self, head: u64) -> Option<Outer<'a>> {
        let more = self.head()?;
        let (sum, l3, covered) = (more as u16, (more >> 16) as u16, (more >> 32) as u16);
        let len = (head >> 32) as usize & 0xffff;
        let (words, rest) = self.0.split_at_checked(len.div_ceil(8))?;
        self.0 = rest;
        let target = (head & DEVICE != 0).then_some(Target::of_bits(head as u32));
        let spread = (head & SPREAD != 0).then_some(l3.into());
        Some(Outer { len, words, target, v6: head & V6 != 0, csum: head & CSUM != 0, sum, covered, spread })
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

/// Where a change goes in a frame with this layout.
fn place(p: &Patch, l: Layout) -> Option<(usize, &[u8])> {
    let base = match p.at {
        At::Frame => Some(0),
        At::Network => Some(l.l3),
        At::Transport => Some(l.l4).filter(|l4| *l4 != 0),
    };
    Some((usize::from(base?) + usize::from(p.offset), p.bytes.get(..usize::from(p.len))?))
}

/// Changes in a frame with this layout, as one piece of memory.
fn write(list: &[Patch], l: Layout, into: &mut Vec<u64>) {
    let places = || list.iter().filter_map(|p| place(p, l));
    let end = places().map(|(at, b)| at + b.len()).max().unwrap_or(0);
    let start = places().map(|(at, _)| at).min().unwrap_or(0);
    let n = (end - start).div_ceil(8);
    // Rather before the first change than behind the last, where the frame may end.
    let at = end.saturating_sub(8 * n).min(start);
    let (mut keep, mut come) = (vec![0xff; 8 * n], vec![0; 8 * n]);
    for (from, bytes) in places() {
        for (i, b) in bytes.iter().enumerate() {
            if let (Some(k), Some(c)) = (keep.get_mut(from - at + i), come.get_mut(from - at + i)) {
                (*k, *c) = (0, *b);
            }
        }
    }
    let [header, transport, icmp] = sums(list);
    let (l3, l4) = (u64::from(l.l3), u64::from(l.l4));
    let header = if l.ip == 4 { (l3 + 10, header) } else { (0, 0) };
    let transport = match (l.proto, l.ip) {
        _ if l.l4 == 0 => (0, 0),
        (ipproto::TCP, _) => (l4 + 16, transport),
        (ipproto::UDP, _) => (l4 + 6, transport),
        (ipproto::ICMP, 4) => (l4 + 2, icmp),
        (ipproto::ICMPV6, 6) => (l4 + 2, fold(icmp + transport)),
        _ => (0, 0),
    };
    let udp = if l.proto == ipproto::UDP { UDP } else { 0 };
    into.push(op::WRITE | udp | (at as u64) << 8 | n as u64);
    into.push(transport.0 << 48 | header.0 << 32 | transport.1 << 16 | header.1);
    for (k, c) in keep.chunks(8).zip(come.chunks(8)) {
        pack(k, into);
        pack(c, into);
    }
}

/// The words of [`op::QUOTE`].
fn quote(pair: &[Tuple; 2], l: Layout, into: &mut Vec<u64>) {
    into.push(op::QUOTE | flag(l.ip == 6, V6) | u64::from(l.l3) << 16 | u64::from(l.l4));
    for t in pair {
        into.push(u64::from(t.proto) << 32 | u64::from(t.dport) << 16 | u64::from(t.sport));
        if t.v6 {
            into.extend([(t.src >> 64) as u64, (t.dst >> 64) as u64]);
        }
        into.extend([t.src as u64, t.dst as u64]);
    }
}

fn flag(on: bool, bit: u64) -> u64 {
    if on { bit } else { 0 }
}

/// The first word of outer headers, but for what they are.
fn encap_head(e: &Encap, csum: bool) -> u64 {
    let target = e.target.map_or(0, |t| DEVICE | u64::from(t.bits()));
    flag(e.v6, V6) | flag(csum, CSUM) | (e.headers.len() as u64) << 32 | target
}

/// Outer headers without what comes with the packet in IPv4's, its length and checksum; and the sum of that header.
fn without_length(e: &Encap) -> (Vec<u8>, u64) {
    let mut headers = e.headers.to_vec();
    if e.v6 {
        return (headers, 0);
    }
    for at in [16, 17, 24, 25] {
        headers.get_mut(at).into_iter().for_each(|b| *b = 0);
    }
    let sum = checksum::sum(headers.get(14..34).unwrap_or_default());
    (headers, fold(sum.into()))
}

/// `number`: that of the tunnel's sequence among the entry's.
fn encap_gre(e: &Encap, csum: bool, flags: u64, number: Option<usize>, into: &mut Vec<u64>) {
    into.push(op::ENCAP_GRE | flags | encap_head(e, csum));
    let (headers, sum) = without_length(e);
    let gre = outer_l4(e.v6);
    let at = number.zip(gre::sequence_at(headers.get(gre..).unwrap_or_default()));
    into.push(at.map_or(0, |(n, at)| ((gre + at) as u64) << 32 | (n as u64) << 16) | sum);
    pack(&headers, into);
}

fn encap(e: &Encap, (csum, ports): (bool, SourcePorts), flags: u64, l3: u16, into: &mut Vec<u64>) {
    into.push(op::ENCAP | flags | encap_head(e, csum) | flag(e.spread, SPREAD));
    let (mut headers, sum) = without_length(e);
    let (addresses, l4) = (if e.v6 { 22 } else { 26 }, outer_l4(e.v6));
    if e.spread {
        put_source_ports(&mut headers, l4, ports);
    }
    let parts = [headers.get(addresses..l4), headers.get(l4 + 2..l4 + 4), headers.get(l4 + 8..)];
    let covered: u32 = parts.into_iter().flatten().map(checksum::sum).sum();
    let covered = fold((covered + u32::from(ipproto::UDP)).into());
    into.push(covered << 32 | u64::from(l3) << 16 | sum);
    pack(&headers, into);
}

/// What a frame looks like after its tags have changed.
pub(crate) fn retagged(l: Layout, n: usize) -> Layout {
    let moved = |at: u16| if at == 0 { 0 } else { at + 4 * n as u16 - 4 * u16::from(l.tags) };
    Layout { l3: moved(l.l3), l4: moved(l.l4), tags: n as u8, ..l }
}

/// What a frame looks like that tunnel headers were put in front of.
pub(crate) fn encapsulated(v6: bool, gre: bool) -> Layout {
    // GRE has no ports.
    let (l4, proto) = if gre { (0, ipproto::GRE) } else { (outer_l4(v6) as u16, ipproto::UDP) };
    Layout { l3: 14, l4, tags: 0, ip: if v6 { 6 } else { 4 }, proto }
}

/// Whether what a step leaves behind is needed again: some later step goes back to it.
fn kept(rest: &[Step]) -> bool {
    let mut depth = 0;
    for s in rest {
        match s {
            Step::Pop if depth == 0 => return true,
            Step::Pop => depth -= 1,
            Step::Decap { .. } | Step::Cut { .. } => depth += 1,
            Step::Encap { encap, .. } if encap.target.is_none() => depth += 1,
            _ => {}
        }
    }
    false
}

impl Entry {
    /// An entry for packets with headers in these places; `None` if it has more checks or words than one can have.
    pub(crate) fn new(
        (key, layouts): (&[[u64; BLOCK]], [Layout; 2]),
        checks: &[Check],
        steps: &[Step],
        (path, generation): (u32, u32),
        drop: Option<DropReason>,
        absent: Vec<(Zone, Tuple)>,
    ) -> Option<Entry> {
        let mut words = key.as_flattened().to_vec();
        checks.iter().for_each(|c| words.extend(c.words()));
        let [outer, inner] = layouts;
        let (mut now, mut left) = (outer, Vec::new());
        let (begin, mut meters) = (words.len(), Vec::new());
        let (mut sequences, mut samplers): (Vec<Sequence>, Vec<Sampler>) = Default::default();
        for (i, s) in steps.iter().enumerate() {
            let keep = || if kept(steps.get(i + 1..).unwrap_or_default()) { KEEP } else { 0 };
            let last = |last: &bool| if *last { LAST } else { 0 };
            match s {
                Step::Rewrite(list) => {
                    let mut ports = list.iter().filter(|p| p.at == At::Transport).peekable();
                    if now.proto == ipproto::SCTP && now.l4 != 0 && ports.peek().is_some() {
                        words.push(op::SCTP_SUM | u64::from(now.l3) << 16 | u64::from(now.l4));
                        words.push(differ(ports).into());
                    }
                    write(list, now, &mut words);
                }
                Step::Vlans(tags) => {
                    words.push(op::TAGS | u64::from(now.tags) << 8 | tags.len() as u64);
                    let tag = |i: usize| tags.get(i).map_or(0, |(tpid, tci)| u64::from(*tpid) << 16 | u64::from(*tci));
                    words.push(tag(1) << 32 | tag(0));
                    now = retagged(now, tags.len());
                }
                Step::IcmpId(id) if now.l4 != 0 => words.push(op::ICMP_ID | u64::from(now.l4) << 16 | u64::from(*id)),
                Step::IcmpId(_) => {}
                Step::Translate { quoting: true } => {
                    words.push(op::TRANSLATE_QUOTING | u64::from(now.l3) << 16 | u64::from(now.l4));
                }
                Step::Quote(pair) => quote(pair, now, &mut words),
                Step::Translate { quoting: false } => {
                    let proto = u64::from(now.proto) << 32;
                    words.push(op::TRANSLATE | proto | u64::from(now.l3) << 16 | u64::from(now.l4));
                }
                Step::Send { target, last: l } => words.push(op::SEND | last(l) | u64::from(target.bits())),
                Step::Session { bridge, port, last: l } => {
                    words.push(op::SESSION | last(l) | u64::from(*bridge) << 16 | u64::from(port.0));
                }
                Step::Encap { encap: e, last: l } => {
                    match &e.shim {
                        Shim::Udp { csum, ports } => {
                            encap(e, (*csum, *ports), last(l) | keep(), now.l3, &mut words);
                        }
                        Shim::Gre { csum, sequence } => {
                            let number = sequence.as_ref().map(|_| sequences.len());
                            sequences.extend(sequence.clone());
                            encap_gre(e, *csum, last(l) | keep(), number, &mut words);
                        }
                    }
                    if e.target.is_none() {
                        let gre = matches!(e.shim, Shim::Gre { .. });
                        left.push(std::mem::replace(&mut now, encapsulated(e.v6, gre)));
                    }
                }
                Step::Decap { offset, last: l } => {
                    let longer = (now.l3 as i16 - outer.l3 as i16) as u8;
                    let at = usize::from(now.l3) + offset;
                    let told = |s: &Step| matches!(s, Step::Sample(s) if s.tells_of_tunnel());
                    let port = if steps.iter().any(told) { u64::from(now.l4) << 24 } else { 0 };
                    words.push(op::DECAP | last(l) | keep() | port | u64::from(longer) << 16 | at as u64);
                    left.push(std::mem::replace(&mut now, inner));
                }
                Step::Cut { len, told, last: l } => {
                    words.push(op::CUT | last(l) | keep() | u64::from(*len) << 32 | u64::from(*told));
                    left.push(now);
                }
                Step::Pop => {
                    words.push(op::POP);
                    now = left.pop().unwrap_or(now);
                }
                Step::Hold => words.push(op::HOLD),
                Step::Meter(m) => meters.push(m.behind(words.len() - begin)),
                Step::Sample(s) => {
                    words.push(op::SAMPLE | samplers.len() as u64);
                    samplers.push((**s).clone());
                }
            }
        }
        let mut room = [0; ROOM];
        let fits = room.get_mut(..words.len()).map(|r| r.copy_from_slice(&words)).is_some();
        let len = if fits { words.len() as u8 } else { 0 };
        let words = if fits { Box::default() } else { words.into() };
        let (meters, sequences, samplers) = (meters.into(), sequences.into(), samplers.into());
        let rare = Rare { absent, words, held: None, meters, sequences, samplers };
        Some(Entry {
            path,
            generation,
            drop,
            key: key.len().try_into().ok()?,
            checks: checks.len().try_into().ok()?,
            len,
            tracked: checks.iter().any(|c| c.stamp().is_some()),
            metered: !rare.meters.is_empty(),
            rare: (!fits || !rare.is_of_words()).then(|| Box::new(rare)),
            words: room,
        })
    }

    #[inline(always)]
    fn words(&self) -> &[u64] {
        match (self.len, &self.rare) {
            (0, Some(r)) => &r.words,
            (n, _) => self.words.get(..usize::from(n)).unwrap_or_default(),
        }
    }

    /// Its parts: the key, what must hold, and what is repeated.
    #[inline(always)]
    pub(crate) fn parts(&self) -> (&[[u64; BLOCK]], Checks<'_>, Steps<'_>) {
        let words = self.words();
        let key = words.as_chunks().0.get(..usize::from(self.key)).unwrap_or_default();
        let behind = words.get(BLOCK * usize::from(self.key)..).unwrap_or_default();
        let (checks, steps) = behind.split_at_checked(CHECK * usize::from(self.checks)).unwrap_or_default();
        (key, Checks(checks.as_chunks().0), Steps(steps, self.rare.as_deref()))
    }

    /// The same for packets with another key; none if there is no room, or not all of it is words.
    pub(crate) fn of(&self, key: &[[u64; BLOCK]]) -> Option<Entry> {
        if self.rare.as_ref().is_some_and(|r| !r.is_of_words()) {
            return None;
        }
        let behind = self.words().get(BLOCK * usize::from(self.key)..)?;
        let mut words = [0; ROOM];
        let (head, rest) = words.split_at_mut_checked(key.as_flattened().len())?;
        head.copy_from_slice(key.as_flattened());
        rest.get_mut(..behind.len())?.copy_from_slice(behind);
        let len = head.len() + behind.len();
        let (rare, key) = (None, key.len().try_into().ok()?);
        Some(Entry { key, len: len.try_into().ok()?, rare, words, ..*self })
    }

    /// Whether it is a key's.
    pub(crate) fn is(&self, key: &[[u64; BLOCK]]) -> bool {
        same(self.parts().0, key)
    }

    /// The key's words.
    pub(crate) fn key(&self) -> &[u64] {
        self.parts().0.as_flattened()
    }

    /// What must hold.
    #[inline(always)]
    pub(crate) fn checks(&self) -> Checks<'_> {
        self.parts().1
    }

    /// The least and the greatest lengths of packets and of their inner frames, and what else must hold.
    pub(crate) fn lengths(&self) -> ([(usize, usize); 2], Checks<'_>) {
        let (mut of, mut checks) = ([(0, usize::MAX); 2], self.checks());
        let mut rest = Checks(checks.0);
        // Checks of lengths come first.
        while let Some(Check::Length { which, min, max }) = checks.next() {
            match of.get_mut(usize::from(which)) {
                Some((least, greatest)) => (*least, *greatest) = (min.max(*least), max.min(*greatest)),
                None => of = [(1, 0); 2],
            }
            rest = Checks(checks.0);
        }
        (of, rest)
    }

    /// Where packets leave, if all that is done is to send them there, whatever their lengths.
    #[inline(always)]
    pub(crate) fn straight_of_any_length(&self) -> Option<Target> {
        let (_, mut checks, steps) = self.parts();
        // Checks of lengths come first.
        let any_length = checks.next().is_none_or(|c| !matches!(c, Check::Length { .. }));
        steps.straight().filter(|_| any_length && !self.metered)
    }

    /// The meters on the way, in its order.
    pub(crate) fn meters(&self) -> &[Metered] {
        self.rare.as_ref().map_or(&[], |r| &r.meters)
    }

    /// The steps before a meter.
    pub(crate) fn steps_before(&self, m: &Metered) -> Steps<'_> {
        let Steps(all, rare) = self.steps();
        Steps(all.get(..m.words).unwrap_or_default(), rare)
    }

    /// What is repeated.
    #[inline(always)]
    pub(crate) fn steps(&self) -> Steps<'_> {
        self.parts().2
    }

    /// Hands over a word of each cache line that a packet reads. The first has what is before the words and five of
    /// them.
    #[inline(always)]
    pub(crate) fn lines(&self, near: impl Fn(&u64)) {
        let [w0, _, _, _, _, w5, _, _, _, _, _, _, _, w13, _, _, _, _, _, _, _, w21, _, _, _, _, _, _, _, w29, ..] =
            &self.words;
        near(w0);
        near(w5);
        if self.len > 13 {
            near(w13);
            near(w21);
        }
        if self.len > 29 {
            near(w29);
            self.words.last().into_iter().for_each(&near);
        }
        if self.len == 0
            && let Some(r) = &self.rare
        {
            r.words.iter().step_by(8).for_each(&near);
        }
    }

    /// Its packets wait with this left to do.
    pub(crate) fn hold(&mut self, rest: Arc<Suspended>) {
        self.rare.get_or_insert_default().held = Some(rest);
    }

    /// What is left to do with its packets, which wait.
    pub(crate) fn held(&self) -> Option<&Arc<Suspended>> {
        self.rare.as_ref()?.held.as_ref()
    }

    /// Tuples that had no connection, by zone.
    pub(crate) fn absent(&self) -> &[(Zone, Tuple)] {
        self.rare.as_ref().map_or(&[], |r| &r.absent)
    }

    /// None of them has one: these are the numbers for that.
    pub(crate) fn set_arrivals(&mut self, arrivals: impl Fn(Zone, &Tuple) -> (u32, u32)) {
        let Some(rare) = &mut self.rare else { return };
        let words = if self.len == 0 { &mut *rare.words } else { &mut self.words };
        let checks =
            words.get_mut(BLOCK * usize::from(self.key)..).map_or(&mut [][..], |w| w.as_chunks_mut::<CHECK>().0);
        let absent =
            checks.iter_mut().take(self.checks.into()).filter(|c| matches!(Check::of(**c), Check::Absent { .. }));
        for (c, (zone, tuple)) in absent.zip(&rare.absent) {
            let (place, arrivals) = arrivals(*zone, tuple);
            *c = Check::Absent { place, arrivals }.words();
        }
    }
}
