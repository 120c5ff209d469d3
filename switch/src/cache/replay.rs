//! Repeating cached flows.

use super::code::{Check, Entry, Op, Patches, Steps};
use super::key::PackedKey;
use super::{Cache, Count};
use crate::bridge::Bridge;
use crate::buf::PacketBuf;
use crate::conntrack::Conntrack;
use crate::drops::DropReason;
use crate::switch::{Outputs, Switch};
use packet::{Headers, Vlan, be16, checksum, ethertype, ipproto};
use std::time::Duration;

/// Packets that are looked up together.
pub(crate) const BURST: usize = 32;

#[inline]
fn check(c: Check, ct: &Conntrack, bridges: &[Bridge], lengths: Option<[usize; 2]>, now: u64) -> bool {
    let macs = |b: u16| bridges.get(usize::from(b)).map(|b| &b.macs);
    match c {
        Check::Connection { stamp, .. } => ct.stays(stamp, now),
        Check::Length { which, min, max } => {
            lengths.is_none_or(|l| l.get(usize::from(which)).is_some_and(|n| (min..=max).contains(n)))
        }
        Check::Known { bridge, place } => macs(bridge).is_some_and(|m| m.finds(place, Duration::from_nanos(now))),
        Check::Unknown { bridge, arrivals } => macs(bridge).is_some_and(|m| m.arrivals() == arrivals),
        Check::Source { bridge, place } => macs(bridge).is_some_and(|m| m.stays(place)),
    }
}

fn absent(e: &Entry, ct: &Conntrack) -> bool {
    e.absent
        .as_ref()
        .is_none_or(|a| a.at == ct.arrivals() || a.list.iter().all(|(zone, tuple)| ct.seen(*zone, tuple).is_none()))
}

/// Whether a flow may be repeated on a packet of these lengths. Times are in nanoseconds.
#[inline]
pub(crate) fn holds(e: &Entry, ct: &Conntrack, bridges: &[Bridge], lengths: [usize; 2], now: u64) -> bool {
    e.checks().all(|c| check(c, ct, bridges, Some(lengths), now)) && absent(e, ct)
}

/// Whether a flow may be repeated on packets of some length.
pub(crate) fn holds_but_length(e: &Entry, ct: &Conntrack, bridges: &[Bridge], now: u64) -> bool {
    e.checks().all(|c| check(c, ct, bridges, None, now)) && absent(e, ct)
}

/// A packet on its way through the steps.
pub(crate) struct Frame<P> {
    packet: Option<P>,
    headers: Headers,
}

impl<P: PacketBuf> Frame<P> {
    /// The packet, or a copy if it is needed again.
    fn give(&mut self, last: bool) -> Option<P> {
        if last { self.packet.take() } else { self.packet.as_ref()?.duplicate() }
    }
}

impl Cache {
    /// Makes the keys of a burst, and asks for what looking them up will read: first the sets of all, then the entries of
    /// all, then their connections, so that the processor waits for none of them alone.
    pub(crate) fn prepare<P: PacketBuf>(
        &self,
        burst: &[(u32, P)],
        keys: &mut Vec<PackedKey>,
        underlay: &crate::tunnel::Underlay,
        ct: &Conntrack,
    ) {
        keys.resize_with(burst.len().max(keys.len()), PackedKey::default);
        for ((device, p), k) in burst.iter().zip(keys.iter_mut()) {
            if k.fill(*device, p.data(), underlay, self.exact_flags) {
                k.hash = self.hash(k.words());
                self.set(k.hash).into_iter().for_each(P::prefetch);
            }
        }
        let Some(keys) = keys.get_mut(..burst.len()) else { return };
        for k in keys.iter_mut() {
            k.candidate = if k.words().is_empty() { None } else { self.candidate(k.hash) };
            if let Some(e) = k.candidate.and_then(|(_, i)| self.entries.get(i as usize)) {
                e.lines(P::prefetch);
            }
        }
        for e in keys.iter().filter_map(|k| self.entries.get(k.candidate?.1 as usize)) {
            for c in e.checks() {
                if let Check::Connection { stamp, .. } = c {
                    ct.hot(stamp.index).into_iter().for_each(P::prefetch);
                }
            }
        }
    }
}

impl Switch {
    /// Serves a packet from the cache; gives it back if the cache has nothing for it.
    pub(crate) fn replay<P: PacketBuf>(
        &mut self,
        key: &PackedKey,
        packet: P,
        outer: &mut Vec<Frame<P>>,
        out: &mut Outputs<P>,
    ) -> Option<P> {
        let inner = key.inner.as_ref().map_or(0, |r| r.len());
        let lengths = [packet.data().len(), inner];
        let Switch { cache, conntrack, bridges, drops, now, .. } = self;
        let at = now.as_nanos() as u64;
        let serves = |i: usize| cache.entries.get(i).is_some_and(|e| holds(e, conntrack, bridges, lengths, at));
        let first = key.candidate.map(|(place, i)| (place as usize, i as usize)).filter(|(_, i)| {
            cache.entries.get(*i).is_some_and(|e| e.key() == key.words() && cache.fresh(e)) && serves(*i)
        });
        let found = first.or_else(|| cache.find(key.words(), key.hash).find(|(_, i)| serves(*i)));
        let Some((place, number)) = found else { return Some(packet) };
        cache.lift(key.hash, place, number);
        let Some(entry) = cache.entries.get_mut(number) else { return Some(packet) };
        if let Some(a) = &mut entry.absent {
            a.at = conntrack.arrivals();
        }
        for c in entry.checks() {
            match c {
                Check::Connection { stamp, timeout } => conntrack.refresh(stamp, at + timeout),
                Check::Source { bridge, place } => {
                    if let Some(b) = bridges.get_mut(usize::from(bridge)) {
                        b.macs.refresh(place, *now);
                    }
                }
                _ => {}
            }
        }
        let before = out.packets.len();
        run(entry.steps(), Frame { packet: Some(packet), headers: key.headers }, &key.inner_headers, outer, out);
        if out.packets.len() == before {
            drops.add(entry.drop.unwrap_or(DropReason::NoBuffer));
        }
        let path = entry.path;
        if let Some(t) = cache.tallies.get_mut(path as usize) {
            if t.packets == 0 {
                cache.dirty.push(path);
            }
            t.packets += 1;
            t.bytes[0] += lengths[0] as u64;
            t.bytes[1] += lengths[1] as u64;
        }
        cache.stats.hits += 1;
        None
    }

    /// Pays counters of cached flows out to tables, flows, ports and groups.
    pub(crate) fn pay_out(&mut self) {
        let Switch { cache, bridges, samples, now, .. } = self;
        for i in cache.dirty.drain(..) {
            let (Some(path), Some(t)) = (cache.paths.get(i as usize), cache.tallies.get_mut(i as usize)) else {
                continue;
            };
            let (n, bytes) = (u64::from(std::mem::take(&mut t.packets)), std::mem::take(&mut t.bytes));
            let total = |(which, difference): (u8, i32)| {
                let b = bytes.get(usize::from(which)).copied().unwrap_or(0);
                (b as i64 + i64::from(difference) * n as i64).max(0) as u64
            };
            for c in &path.counts {
                match c {
                    Count::Table { bridge, table, rule, length } => {
                        if let Some(s) =
                            bridges.get_mut(*bridge).and_then(|b| b.table_stats.get_mut(usize::from(*table)))
                        {
                            s.0 += n;
                            s.1 += if rule.is_some() { n } else { 0 };
                        }
                        if let Some(r) = rule {
                            r.hits(n, total(*length), *now);
                        }
                    }
                    Count::Port { bridge, no, sent, length } => {
                        if let Some(p) = bridges.get_mut(*bridge).and_then(|b| b.ports.get_mut(no)) {
                            let d = usize::from(*sent);
                            p.stats[d] += n;
                            p.stats[2 + d] += total(*length);
                        }
                    }
                    Count::Bucket { bridge, group, index, length } => {
                        let state = bridges.get_mut(*bridge).and_then(|b| b.groups.get_mut(group));
                        if let Some(c) = state.and_then(|s| s.buckets.get_mut(*index)) {
                            c.0 += n;
                            c.1 += total(*length);
                        }
                    }
                    Count::Sample => *samples += n,
                }
            }
        }
    }
}

fn run<P: PacketBuf>(
    steps: Steps<'_>,
    first: Frame<P>,
    inner: &Headers,
    outer: &mut Vec<Frame<P>>,
    out: &mut Outputs<P>,
) {
    let mut now = first;
    outer.clear();
    for s in steps {
        match s {
            Op::Write { sums, patches } => {
                if let Some(p) = &mut now.packet {
                    rewrite(p.data_mut(), &now.headers, sums, patches);
                }
            }
            Op::Tags { tags, n } => {
                if let Some(p) = &mut now.packet
                    && !retag(p, &mut now.headers, tags.get(..n).unwrap_or_default())
                {
                    now.packet = None;
                }
            }
            Op::IcmpId(id) => {
                if let (Some(p), Some(l4)) = (&mut now.packet, now.headers.l4) {
                    crate::ctaction::put_icmp_id(p.data_mut(), l4, id);
                }
            }
            Op::Send { device, last } => {
                if let Some(p) = now.give(last) {
                    out.packets.push((device, p));
                }
            }
            Op::Encap { len, words, device, v6, csum, last, keep } => {
                let made = now.give(last).and_then(|p| encapsulate(p, len, words, v6, csum));
                match (device, made) {
                    (Some(d), Some((p, _))) => out.packets.push((d, p)),
                    (Some(_), None) => {}
                    (None, made) => enter(&mut now, made, keep, outer),
                }
            }
            Op::Decap { offset, last, keep } => {
                let h = now.headers;
                let made = now.give(last).and_then(|mut p| {
                    if p.data().len() > h.l3_end {
                        p.truncate(h.l3_end);
                    }
                    p.shrink_front(h.l4? + offset);
                    Some((p, *inner))
                });
                enter(&mut now, made, keep, outer);
            }
            Op::Pop => {
                if let Some(f) = outer.pop() {
                    now = f;
                }
            }
        }
    }
}

/// Goes on with a packet that was made of this one.
fn enter<P>(now: &mut Frame<P>, made: Option<(P, Headers)>, keep: bool, outer: &mut Vec<Frame<P>>) {
    let next = match made {
        Some((p, headers)) => Frame { packet: Some(p), headers },
        None => Frame { packet: None, headers: Headers::default() },
    };
    let before = std::mem::replace(now, next);
    if keep {
        outer.push(before);
    }
}

fn retag<P: PacketBuf>(p: &mut P, h: &mut Headers, tags: &[(u16, u16)]) -> bool {
    let have = h.vlans.iter().flatten().count();
    if !crate::extract::set_tags(p, have, tags) {
        return false;
    }
    // What is not in the packet has no place, and gets none.
    let moved = |at: usize| if at < 14 + 4 * have { at } else { at + 4 * tags.len() - 4 * have };
    h.l3 = moved(h.l3);
    h.l3_end = moved(h.l3_end);
    h.l4 = h.l4.map(moved);
    h.payload = moved(h.payload);
    for (i, v) in h.vlans.iter_mut().enumerate() {
        *v = tags.get(i).map(|(tpid, tci)| Vlan { tpid: *tpid, tci: *tci });
    }
    true
}

fn put16(p: &mut [u8], at: usize, v: usize) {
    if let (Some(b), Ok(v)) = (p.get_mut(at..).and_then(|b| b.first_chunk_mut()), u16::try_from(v)) {
        *b = v.to_be_bytes();
    }
}

/// Copies words as bytes.
fn unpack(words: &[u64], to: &mut [u8]) {
    for (c, w) in to.chunks_mut(8).zip(words) {
        match c.first_chunk_mut::<8>() {
            Some(c) => *c = w.to_ne_bytes(),
            None => c.iter_mut().zip(w.to_ne_bytes()).for_each(|(c, b)| *c = b),
        }
    }
}

fn encapsulate<P: PacketBuf>(mut p: P, n: usize, words: &[u64], v6: bool, csum: bool) -> Option<(P, Headers)> {
    p.settle_checksum();
    if !p.grow_front(n) {
        return None;
    }
    let d = p.data_mut();
    unpack(words, d.get_mut(..n)?);
    let whole = d.len();
    let l4 = if v6 { 54 } else { 34 };
    if v6 {
        put16(d, 18, whole - 54);
    } else {
        put16(d, 16, whole - 14);
        checksum::set_ipv4(d, 14);
    }
    put16(d, l4 + 4, whole - l4);
    let h = Headers {
        ethertype: if v6 { ethertype::IPV6 } else { ethertype::IPV4 },
        l3: 14,
        l3_end: whole,
        proto: ipproto::UDP,
        ip_ok: true,
        l4: Some(l4),
        payload: l4 + 8,
        ..Headers::default()
    };
    if csum {
        // Zero is no checksum, which changes of headers leave alone.
        put16(d, l4 + 6, 0);
        if !p.leave_checksum() {
            checksum::set_l4(p.data_mut(), &h);
        }
    }
    Some((p, h))
}

/// Writes so many of the bytes of two words.
fn patch(p: &mut [u8], at: usize, n: usize, words: [u64; 2]) {
    fn fixed<const N: usize>(p: &mut [u8], at: usize, b: &[u8]) {
        if let (Some(to), Some(from)) = (p.get_mut(at..).and_then(|p| p.first_chunk_mut::<N>()), b.first_chunk()) {
            *to = *from;
        }
    }
    let mut b = [0; 16];
    unpack(&words, &mut b);
    match n {
        1 => fixed::<1>(p, at, &b),
        2 => fixed::<2>(p, at, &b),
        4 => fixed::<4>(p, at, &b),
        6 => fixed::<6>(p, at, &b),
        8 => fixed::<8>(p, at, &b),
        12 => fixed::<12>(p, at, &b),
        16 => fixed::<16>(p, at, &b),
        _ => p.iter_mut().skip(at).zip(b).take(n).for_each(|(p, b)| *p = b),
    }
}

fn rewrite(p: &mut [u8], h: &Headers, [header, transport, icmp]: [u16; 3], patches: Patches<'_>) {
    for (which, offset, n, words) in patches {
        let base = match (which, h.l4) {
            (0, _) => 0,
            (1, _) => h.l3,
            (_, Some(l4)) => l4,
            (_, None) => continue,
        };
        patch(p, base + offset, n, words);
    }
    if header != 0 && h.is_ipv4() {
        apply(p, h.l3 + 10, header.into());
    }
    let Some(l4) = h.l4 else { return };
    let both = u32::from(icmp) + u32::from(transport);
    match h.proto {
        ipproto::TCP if transport != 0 => drop(apply(p, l4 + 16, transport.into())),
        // RFC 768: zero is no checksum, and stays so.
        ipproto::UDP
            if transport != 0 && be16(p, l4 + 6) != Some(0) && apply(p, l4 + 6, transport.into()) == Some(0) =>
        {
            put16(p, l4 + 6, 0xffff);
        }
        ipproto::ICMP if icmp != 0 => drop(apply(p, l4 + 2, icmp.into())),
        ipproto::ICMPV6 if both != 0 => drop(apply(p, l4 + 2, both)),
        _ => {}
    }
}

fn apply(p: &mut [u8], at: usize, change: u32) -> Option<u16> {
    let old = be16(p, at)?;
    let mut s = u32::from(!old) + change;
    s = (s & 0xffff) + (s >> 16);
    s = (s & 0xffff) + (s >> 16);
    let new = !(s as u16);
    put16(p, at, usize::from(new));
    Some(new)
}
