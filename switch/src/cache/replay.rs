//! Repeating a program.

use super::{At, Condition, Count, Encap, Patch, Program, Step, Sums};
use crate::bridge::Bridge;
use crate::buf::PacketBuf;
use crate::conntrack::Conntrack;
use crate::drops::DropReason;
use crate::switch::{Outputs, Switch};
use packet::{Headers, be16, checksum, ipproto};
use std::time::Duration;

fn condition(c: &Condition, ct: &Conntrack, bridges: &[Bridge], now: Duration) -> bool {
    match c {
        Condition::Connection { id, version, .. } => ct.is_as_seen(*id, *version, now),
        Condition::NoConnection { zone, tuple } => ct.seen(*zone, tuple).is_none(),
        Condition::Address { bridge, vlan, mac, port } => {
            bridges.get(*bridge).is_some_and(|b| b.macs.lookup(*vlan, *mac, now) == *port)
        }
        Condition::Source { bridge, vlan, mac, port } => {
            bridges.get(*bridge).is_some_and(|b| b.macs.port_of(*vlan, *mac) == Some(*port))
        }
        Condition::Length { .. } => true,
    }
}

/// Whether a program may be repeated on a packet of these lengths.
pub(crate) fn holds(p: &Program, ct: &Conntrack, bridges: &[Bridge], lengths: [usize; 2], now: Duration) -> bool {
    p.conditions.iter().all(|c| match c {
        Condition::Length { which, min, max } => {
            lengths.get(usize::from(*which)).is_some_and(|n| (*min..=*max).contains(n))
        }
        c => condition(c, ct, bridges, now),
    })
}

/// Whether a program may be repeated on packets of some length.
pub(crate) fn holds_but_length(p: &Program, ct: &Conntrack, bridges: &[Bridge], now: Duration) -> bool {
    p.conditions.iter().all(|c| condition(c, ct, bridges, now))
}

/// A packet on its way through a program.
struct Frame<P> {
    packet: Option<P>,
    headers: Headers,
}

impl<P: PacketBuf> Frame<P> {
    /// The packet, or a copy if it is needed again.
    fn give(&mut self, last: bool) -> Option<P> {
        if last { self.packet.take() } else { self.packet.as_ref()?.duplicate() }
    }
}

impl Switch {
    /// Serves a packet from the cache; gives it back if the cache has nothing for it.
    pub(crate) fn replay<P: PacketBuf>(
        &mut self,
        key: &super::key::PackedKey,
        packet: P,
        out: &mut Outputs<P>,
    ) -> Option<P> {
        let inner = key.inner.as_ref().map_or(0, |r| r.len());
        let lengths = [packet.data().len(), inner];
        let Switch { cache, conntrack, bridges, drops, now, .. } = self;
        let found = cache.find(key.words(), key.hash()).find(|p| holds(p, conntrack, bridges, lengths, *now));
        let Some(program) = found else { return Some(packet) };
        for c in &program.conditions {
            match c {
                Condition::Connection { id, timeout, .. } => conntrack.refresh(*id, *now + *timeout),
                Condition::Source { bridge, vlan, mac, port } => {
                    if let Some(b) = bridges.get_mut(*bridge) {
                        b.macs.learn(*vlan, *mac, *port, *now);
                    }
                }
                _ => {}
            }
        }
        let before = out.packets.len();
        run(&program.steps, Frame { packet: Some(packet), headers: key.headers }, out);
        if out.packets.len() == before {
            drops.add(program.drop.unwrap_or(DropReason::NoBuffer));
        }
        let path = program.path;
        if let Some(path_now) = cache.paths.get_mut(path) {
            if path_now.packets == 0 {
                cache.dirty.push(path);
            }
            path_now.packets += 1;
            path_now.bytes[0] += lengths[0] as u64;
            path_now.bytes[1] += lengths[1] as u64;
        }
        cache.stats.hits += 1;
        None
    }

    /// Pays counters of cached flows out to tables, flows, ports and groups.
    pub(crate) fn pay_out(&mut self) {
        let Switch { cache, bridges, samples, now, .. } = self;
        for i in cache.dirty.drain(..) {
            let Some(path) = cache.paths.get_mut(i) else { continue };
            let (n, bytes) = (std::mem::take(&mut path.packets), std::mem::take(&mut path.bytes));
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

fn run<P: PacketBuf>(steps: &[Step], first: Frame<P>, out: &mut Outputs<P>) {
    let mut now = first;
    let mut outer: Vec<Frame<P>> = Vec::new();
    for s in steps {
        match s {
            Step::Rewrite(list) => {
                if let Some(p) = &mut now.packet {
                    rewrite(p.data_mut(), &now.headers, list);
                }
            }
            Step::Vlans(key) => {
                if let Some(p) = &mut now.packet {
                    if !crate::extract::vlans(p, key) {
                        now.packet = None;
                    } else if let Some(h) = Headers::parse(p.data()) {
                        now.headers = h;
                    }
                }
            }
            Step::IcmpId(id) => {
                if let (Some(p), Some(l4)) = (&mut now.packet, now.headers.l4) {
                    crate::ctaction::put_icmp_id(p.data_mut(), l4, *id);
                }
            }
            Step::Send { device, last } => {
                if let Some(p) = now.give(*last) {
                    out.packets.push((*device, p));
                }
            }
            Step::Encap { encap, last } => {
                let made = now.give(*last).and_then(|p| encapsulate(p, encap));
                match (encap.device, made) {
                    (Some(d), Some((p, _))) => out.packets.push((d, p)),
                    (Some(_), None) => {}
                    (None, made) => outer.push(std::mem::replace(&mut now, frame(made))),
                }
            }
            Step::Decap { offset, last } => {
                let h = now.headers;
                let made = now.give(*last).and_then(|mut p| {
                    p.truncate(h.l3_end);
                    p.shrink_front(h.l4? + offset);
                    let h = Headers::parse(p.data())?;
                    Some((p, h))
                });
                outer.push(std::mem::replace(&mut now, frame(made)));
            }
            Step::Pop => {
                if let Some(f) = outer.pop() {
                    now = f;
                }
            }
        }
    }
}

fn frame<P>(made: Option<(P, Headers)>) -> Frame<P> {
    match made {
        Some((p, headers)) => Frame { packet: Some(p), headers },
        None => Frame { packet: None, headers: Headers::default() },
    }
}

fn put16(p: &mut [u8], at: usize, v: usize) {
    if let (Some(b), Ok(v)) = (p.get_mut(at..at + 2), u16::try_from(v)) {
        b.copy_from_slice(&v.to_be_bytes());
    }
}

fn encapsulate<P: PacketBuf>(mut p: P, e: &Encap) -> Option<(P, Headers)> {
    let n = e.headers.len();
    if !p.grow_front(n) {
        return None;
    }
    let d = p.data_mut();
    d.get_mut(..n)?.copy_from_slice(&e.headers);
    let whole = d.len();
    if e.v6 {
        put16(d, 18, whole - 54);
        put16(d, 58, whole - 54);
    } else {
        put16(d, 16, whole - 14);
        put16(d, 38, whole - 34);
        checksum::set_ipv4(d, 14);
    }
    let h = if e.csum || e.device.is_none() { Headers::parse(d)? } else { Headers::default() };
    if e.csum {
        checksum::set_l4(d, &h);
    }
    Some((p, h))
}

/// Ones' complement sum of what changed: (header, transport).
#[derive(Default)]
struct Change {
    header: u64,
    transport: u64,
    icmp: u64,
}

fn rewrite(p: &mut [u8], h: &Headers, list: &[Patch]) {
    let mut c = Change::default();
    for x in list {
        let base = match x.at {
            At::Frame => 0,
            At::Network => h.l3,
            At::Transport => match h.l4 {
                Some(l4) => l4,
                None => continue,
            },
        };
        let at = base + usize::from(x.offset);
        let n = usize::from(x.len);
        let (Some(old), Some(new)) = (p.get_mut(at..at + n), x.bytes.get(..n)) else { continue };
        if x.sums != Sums::None && old != new {
            // Each byte where it is in its 16-bit word: RFC 1624, equation 3.
            let mut sum = 0;
            for (i, (o, w)) in old.iter().zip(new).enumerate() {
                let shift = if (usize::from(x.offset) + i) & 1 == 0 { 8 } else { 0 };
                sum += u64::from(0xffff ^ u32::from(*o) << shift) + (u64::from(*w) << shift);
            }
            match x.sums {
                Sums::Header => c.header += sum,
                Sums::Both => (c.header, c.transport) = (c.header + sum, c.transport + sum),
                Sums::Transport => c.transport += sum,
                Sums::Icmp => c.icmp += sum,
                Sums::None => {}
            }
        }
        old.copy_from_slice(new);
    }
    if c.header != 0 && h.is_ipv4() {
        apply(p, h.l3 + 10, c.header);
    }
    let Some(l4) = h.l4 else { return };
    match h.proto {
        ipproto::TCP if c.transport != 0 => drop(apply(p, l4 + 16, c.transport)),
        // RFC 768: zero is no checksum, and stays so.
        ipproto::UDP if c.transport != 0 && be16(p, l4 + 6) != Some(0) => {
            if apply(p, l4 + 6, c.transport) == Some(0) {
                put16(p, l4 + 6, 0xffff);
            }
        }
        ipproto::ICMP if c.icmp != 0 => drop(apply(p, l4 + 2, c.icmp)),
        ipproto::ICMPV6 if c.icmp + c.transport != 0 => drop(apply(p, l4 + 2, c.icmp + c.transport)),
        _ => {}
    }
}

fn apply(p: &mut [u8], at: usize, change: u64) -> Option<u16> {
    let old = be16(p, at)?;
    let mut s = u64::from(!old) + change;
    while s >> 16 != 0 {
        s = (s & 0xffff) + (s >> 16);
    }
    let new = !(s as u16);
    put16(p, at, usize::from(new));
    Some(new)
}
