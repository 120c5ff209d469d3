//! IP reassembly for connection tracking (RFC 791 section 3.2, RFC 8200 section 4.5, RFC 5722).
//!
//! A fragment waits at its `ct` action until its datagram is complete; the datagram is tracked, and then each fragment
//! continues with the verdict. Memory is bounded; incomplete datagrams are dropped after some seconds.

use super::Zone;
use crate::classifier::{Frames, Origin};
use crate::conntrack::Pass;
use crate::ids::BridgeId;
use crate::tunnel::Outer;
use hashbrown::HashMap;
use openflow_rs::action::{Action, CtAction};
use openflow_rs::{FlowKey, TableId};
use packet::{Headers, be16, be32, checksum};
use std::sync::Arc;
use std::time::Duration;

/// How long fragments wait for the rest of their datagram.
const PATIENCE: Duration = Duration::from_secs(15);
/// Default limit of waiting fragments, as in Open vSwitch.
const MOST: usize = 1000;
/// The longest frame of a reassembled datagram, in bytes.
const LONGEST: usize = 0xffff;
/// For so many fragments storage is kept.
const SPARE: usize = 256;
/// Most fragments of one datagram.
const MOST_OF_ONE: usize = 64;
/// The least size of a fragment that is not the last, IPv4 and IPv6, in bytes from the IP header on, as in Open
/// vSwitch.
const LEAST: [usize; 2] = [1200, 1280];

/// Which datagram, and in which zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Datagram {
    v6: bool,
    zone: Zone,
    src: u128,
    dst: u128,
    id: u32,
    proto: u8,
}

/// A waiting fragment.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rest: Arc<Suspended>,
}

/// How the walk of a fragment continues. Fragments whose flow says where they wait share one.
#[derive(Debug)]
pub(crate) struct Suspended {
    /// No other has this number.
    pub(crate) number: u64,
    /// An earlier `ct` let it go on, so the number tells of its datagram's ports, too.
    pub(crate) resumed: bool,
    pub(crate) key: FlowKey,
    /// What an earlier `ct` said of its datagram.
    pub(crate) pass: Option<Pass>,
    pub(crate) ct: Box<CtAction>,
    pub(crate) zone: Zone,
    pub(crate) bridge: BridgeId,
    pub(crate) table: TableId,
    pub(crate) cookie: Origin,
    pub(crate) stack: Vec<(u128, u32)>,
    pub(crate) action_set: Vec<Action>,
    pub(crate) frames: Frames,
    /// The queue, the tunnel that it came by, and the mirrors that have their copy.
    pub(crate) queue: Option<u16>,
    pub(crate) tunnel: Option<Outer>,
    pub(crate) mirrored: u32,
}

/// Where a fragment's payload lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Start and end of the payload in the frame.
    at: usize,
    end: usize,
    /// Offset of the payload in the datagram.
    offset: usize,
    more: bool,
    /// The fragment header; IPv6 only.
    header: Option<usize>,
}

#[derive(Debug)]
struct Waiting {
    since: Duration,
    parts: Vec<(Place, Held)>,
}

/// What reassembly did with a fragment.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It waits.
    Waits,
    /// The datagram is complete: its bytes, and its fragments in order.
    Whole(Vec<u8>, Vec<Held>),
    /// The fragment is invalid: too small, of a bad length, or a duplicate.
    Invalid(Held),
    /// It overlaps another: the datagram is dropped with so many fragments.
    Overlap(u64),
    /// Too many fragments wait.
    Full,
    /// The datagram is too long, as in Open vSwitch: it is dropped with so many fragments.
    Big(u64),
}

/// Counters of fragments of one version of IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentCounts {
    /// Accepted.
    pub accepted: u64,
    /// Of datagrams that were completed.
    pub completed: u64,
    /// Of datagrams that were not completed in time.
    pub expired: u64,
    /// Too small.
    pub small: u64,
    /// Of datagrams with overlapping fragments.
    pub overlapped: u64,
    /// Of datagrams whose frames would be longer than 65,535 bytes.
    pub big: u64,
}

/// The fragments that wait.
#[derive(Debug)]
pub struct Fragments {
    list: HashMap<Datagram, Waiting>,
    count: usize,
    /// Counters for IPv4 and IPv6.
    pub counts: [FragmentCounts; 2],
    /// Most waiting fragments.
    pub most: usize,
    /// Whether fragments of IPv4 and of IPv6 are reassembled; if not, they are invalid.
    pub enabled: [bool; 2],
    /// The least size of fragments that are not the last, IPv4 and IPv6.
    pub least: [usize; 2],
    /// The number of the last [`Suspended`].
    last: u64,
    /// Storage for the next fragments, and for a datagram.
    spare: Vec<Vec<u8>>,
    whole: Vec<u8>,
}

impl Default for Fragments {
    fn default() -> Self {
        Fragments {
            list: HashMap::new(),
            count: 0,
            counts: Default::default(),
            most: MOST,
            enabled: [true; 2],
            least: LEAST,
            last: 0,
            spare: Vec::new(),
            whole: Vec::new(),
        }
    }
}

/// Offsets of the fragment header of an IPv6 packet, and of the next-header field that names it.
fn v6_header(p: &[u8], l3: usize) -> Option<(usize, usize)> {
    let (mut field, mut at) = (l3 + 6, l3 + 40);
    loop {
        match *p.get(field)? {
            44 => return Some((field, at)),
            0 | 43 | 60 => {
                (field, at) = (at, at + (usize::from(*p.get(at + 1)?) + 1) * 8);
            }
            _ => return None,
        }
    }
}

fn place(p: &[u8], h: &Headers, zone: Zone) -> Option<(Datagram, Place)> {
    let (src, dst) = h.addresses(p)?;
    if h.is_ipv4() {
        let word = be16(p, h.l3 + 6)?;
        let at = h.l3 + usize::from(p.get(h.l3)? & 15) * 4;
        let id = be16(p, h.l3 + 4)?.into();
        let place =
            Place { at, end: h.l3_end, offset: usize::from(word & 0x1fff) * 8, more: word & 0x2000 != 0, header: None };
        return Some((Datagram { v6: false, zone, src, dst, id, proto: h.proto }, place));
    }
    let (_, at) = v6_header(p, h.l3)?;
    let word = be16(p, at + 2)?;
    let id = be32(p, at + 4)?;
    let place =
        Place { at: at + 8, end: h.l3_end, offset: usize::from(word & 0xfff8), more: word & 1 != 0, header: Some(at) };
    Some((Datagram { v6: true, zone, src, dst, id, proto: *p.get(at)? }, place))
}

impl Fragments {
    /// The number of waiting fragments.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no fragment waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A number for a [`Suspended`].
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A fragment's bytes, to be kept.
    pub(crate) fn store(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut stored = self.spare.pop().unwrap_or_default();
        stored.clear();
        stored.extend_from_slice(bytes);
        stored
    }

    /// Takes back the storage of a datagram and its fragments.
    pub(crate) fn reuse(&mut self, whole: Vec<u8>, list: Vec<Held>) {
        self.whole = whole;
        self.spare.extend(list.into_iter().map(|held| held.bytes));
        self.spare.truncate(SPARE);
    }

    /// Takes a fragment.
    pub(crate) fn take(&mut self, held: Held, h: &Headers, now: Duration) -> Taken {
        let Some((datagram, place)) = place(&held.bytes, h, held.rest.zone) else { return Taken::Invalid(held) };
        let size = place.end.saturating_sub(h.l3);
        let payload = place.end.saturating_sub(place.at);
        let least = if h.is_ipv4() { self.least[0] } else { self.least[1] };
        let off = !self.enabled[usize::from(!h.is_ipv4())];
        // Only the last fragment may have a length that is no multiple of 8.
        let odd = off || place.more && size < least || place.offset + payload > 0xffff;
        let counts = &mut self.counts[usize::from(!h.is_ipv4())];
        if odd {
            counts.small += u64::from(!off && place.more && size < least);
            return Taken::Invalid(held);
        }
        if self.count >= self.most {
            return Taken::Full;
        }
        let waiting = self.list.entry(datagram).or_insert_with(|| Waiting { since: now, parts: Vec::new() });
        if waiting.parts.len() >= MOST_OF_ONE {
            return Taken::Full;
        }
        let (from, to) = (place.offset, place.offset + payload);
        // A duplicate is no overlap.
        if waiting.parts.iter().any(|(o, _)| (o.offset, o.end - o.at, o.more) == (from, payload, place.more)) {
            return Taken::Invalid(held);
        }
        let clash = waiting.parts.iter().any(|(o, _)| from < o.offset + (o.end - o.at) && o.offset < to);
        if clash {
            let n = self.list.remove(&datagram).map_or(0, |w| w.parts.len());
            self.count -= n;
            counts.overlapped += n as u64 + 1;
            return Taken::Overlap(n as u64 + 1);
        }
        waiting.parts.push((place, held));
        waiting.parts.sort_by_key(|(p, _)| p.offset);
        self.count += 1;
        counts.accepted += 1;
        if !whole(&waiting.parts) {
            return Taken::Waits;
        }
        let Some(w) = self.list.remove(&datagram) else { return Taken::Waits };
        self.count -= w.parts.len();
        counts.completed += w.parts.len() as u64;
        let mut joined = std::mem::take(&mut self.whole);
        join(w.parts.iter().map(|(p, h)| (*p, h)), &mut joined);
        if joined.len() > LONGEST {
            counts.big += w.parts.len() as u64;
            return Taken::Big(w.parts.len() as u64);
        }
        Taken::Whole(joined, w.parts.into_iter().map(|(_, h)| h).collect())
    }

    /// Takes all fragments of a datagram, in order, which have just passed another zone together; false, without effect,
    /// if they have to be taken one by one.
    pub(crate) fn take_whole(&mut self, list: &[Held]) -> bool {
        let (mut of, mut next, mut length) = (None, 0, 0);
        for (i, held) in list.iter().enumerate() {
            let Some(h) = Headers::parse(&held.bytes) else { return false };
            let Some((datagram, p)) = place(&held.bytes, &h, held.rest.zone) else { return false };
            let least = if h.is_ipv4() { self.least[0] } else { self.least[1] };
            let fits = p.offset == next && p.more == (i + 1 < list.len());
            if !fits || *of.get_or_insert(datagram) != datagram || p.more && p.end.saturating_sub(h.l3) < least {
                return false;
            }
            let payload = p.end.saturating_sub(p.at);
            length += if i == 0 { p.header.unwrap_or(p.at) } else { 0 } + payload;
            next += payload;
        }
        let Some(datagram) = of else { return false };
        let at = usize::from(datagram.v6);
        let room = self.count + list.len() <= self.most && list.len() <= MOST_OF_ONE;
        let alone = self.list.is_empty() || !self.list.contains_key(&datagram);
        let Some(counts) = self.counts.get_mut(at).filter(|_| self.enabled.get(at) == Some(&true)) else {
            return false;
        };
        if !(room && alone && next <= 0xffff && length <= LONGEST) {
            return false;
        }
        counts.accepted += list.len() as u64;
        counts.completed += list.len() as u64;
        true
    }

    /// Incomplete datagrams, in the format of ovs-dpctl(8).
    pub fn lines(&self) -> Vec<String> {
        let line = |(d, w): (&Datagram, &Waiting)| {
            let address = |a: u128| match d.v6 {
                true => std::net::Ipv6Addr::from(a).to_string(),
                false => std::net::Ipv4Addr::from(a as u32).to_string(),
            };
            let first = w.parts.iter().any(|(p, _)| p.offset == 0);
            let last = w.parts.iter().any(|(p, _)| !p.more);
            let state = match (first, last) {
                (true, true) => "first/last frag",
                (true, false) => "first frag",
                (false, true) => "last frag",
                (false, false) => "other frag",
            };
            let kind = if d.v6 { 0x86dd } else { 0x800 };
            format!(
                "(src={},dst={},recirc_id=0,ip_id={},dl_type={kind:#x},zone={},nw_proto={},num_fragments={},state={state})",
                address(d.src),
                address(d.dst),
                d.id,
                d.zone,
                d.proto,
                w.parts.len()
            )
        };
        let mut all: Vec<String> = self.list.iter().map(line).collect();
        all.sort();
        all
    }

    /// Drops datagrams that were not completed in time; returns the number of their fragments.
    pub(crate) fn expire(&mut self, now: Duration) -> u64 {
        let before = self.count;
        let Fragments { list, counts, .. } = self;
        list.retain(|d, w| {
            let stays = w.since + PATIENCE > now;
            if !stays {
                counts[usize::from(d.v6)].expired += w.parts.len() as u64;
            }
            stays
        });
        self.count = self.list.values().map(|w| w.parts.len()).sum();
        (before - self.count) as u64
    }
}

/// Whether sorted fragments make a complete datagram.
fn whole(parts: &[(Place, Held)]) -> bool {
    let mut next = 0;
    for (p, _) in parts {
        if p.offset != next {
            return false;
        }
        next += p.end - p.at;
    }
    parts.last().is_some_and(|(p, _)| !p.more)
}

/// The datagram of these fragments, which are all of it, in order.
pub(crate) fn datagram(list: &[Held], into: &mut Vec<u8>) {
    let parts = list.iter().filter_map(|held| {
        let (_, place) = place(&held.bytes, &Headers::parse(&held.bytes)?, held.rest.zone)?;
        Some((place, held))
    });
    join(parts, into);
}

/// Joins the first fragment's headers and all payloads.
fn join<'a>(parts: impl Iterator<Item = (Place, &'a Held)> + Clone, out: &mut Vec<u8>) {
    out.clear();
    let Some((first, held)) = parts.clone().next() else { return };
    let head = first.header.unwrap_or(first.at);
    out.extend_from_slice(held.bytes.get(..head).unwrap_or_default());
    for (p, h) in parts {
        out.extend_from_slice(h.bytes.get(p.at..p.end).unwrap_or_default());
    }
    let Some(l3) = Headers::parse(&held.bytes).map(|h| h.l3) else { return };
    let total = out.len() - l3;
    let mut put = |at: usize, b: &[u8]| {
        if let Some(d) = out.get_mut(at..at + b.len()) {
            d.copy_from_slice(b);
        }
    };
    match first.header {
        None => {
            put(l3 + 2, &(total as u16).to_be_bytes());
            put(l3 + 6, &[0, 0]);
            checksum::set_ipv4(out, l3);
        }
        Some(header) => {
            let next = held.bytes.get(header).copied().unwrap_or(59);
            if let Some((field, _)) = v6_header(&held.bytes, l3) {
                put(field, &[next]);
            }
            put(l3 + 4, &(total.saturating_sub(40) as u16).to_be_bytes());
        }
    }
}
