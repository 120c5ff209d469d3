//! Port descriptions, statistics and status.

use super::Version;
use crate::OfError;
use crate::port::PortNo;
use crate::wire::{DecodeError, Put, Reader, Result};
use packet::Mac;

/// A port of a bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortDesc {
    /// Number.
    pub port: PortNo,
    /// Address.
    pub hw_addr: Mac,
    /// Name.
    pub name: String,
    /// Configuration bits: 1 is down, 0x10 no flooding.
    pub config: u32,
    /// State bits: 1 is link down, 4 live.
    pub state: u32,
    /// Features that are current, as OpenFlow 1.1 and later number them (`OFPPF_*`).
    pub curr: u32,
    /// Speed now, kbit/s.
    pub curr_speed: u32,
    /// Highest speed, kbit/s.
    pub max_speed: u32,
}

/// A change of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortStatus {
    /// 0 added, 1 deleted, 2 changed.
    pub reason: u8,
    /// The port.
    pub desc: PortDesc,
}

/// Counters of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortStats {
    /// Number.
    pub port: PortNo,
    /// Packets received and sent, bytes received and sent, packets dropped on receiving and sending,
    /// errors on receiving and sending.
    pub counters: [u64; 8],
    /// Age, seconds.
    pub duration_sec: u32,
    /// Age, nanoseconds beyond.
    pub duration_nsec: u32,
    /// Counters that are of this kind of device alone, by name (at most 255 octets); OpenFlow 1.4 and later carry them.
    pub custom: Vec<(String, u64)>,
}

/// The experimenter whose property carries counters by name, and the property's number, as Open vSwitch sends it.
const CUSTOM: (u32, u32) = (0xaa01, 2);

/// The most octets of counters by name for one port: all of a port has to fit into one message.
const MOST_CUSTOM: usize = 48_000;

/// Appends the property of counters by name, as many of them as have room.
fn put_custom(o: &mut Vec<u8>, custom: &[(String, u64)]) {
    let size = |(name, _): &(String, u64)| 1 + name.len().min(255) + 8;
    let room = custom.iter().scan(0, |all, c| {
        *all += size(c);
        (*all <= MOST_CUSTOM).then_some(())
    });
    let custom = custom.get(..room.count()).unwrap_or_default();
    let start = o.len();
    o.p16(0xffff);
    o.zeros(2);
    o.p32(CUSTOM.0);
    o.p32(CUSTOM.1);
    o.zeros(2);
    o.p16(custom.len() as u16);
    for (name, value) in custom {
        let name = name.as_bytes();
        let name = name.get(..255).unwrap_or(name);
        o.p8(name.len() as u8);
        o.extend_from_slice(name);
        o.p64(*value);
    }
    // Zeros behind the last one count: there are controllers that read such a property as words of four octets.
    o.pad8(start);
    o.patch_len(start + 2, start);
}

/// The counters by name among a port's properties.
fn pull_custom(mut r: Reader<'_>) -> Result<Vec<(String, u64)>> {
    let mut custom = Vec::new();
    while !r.is_empty() {
        let (kind, len) = (r.u16()?, usize::from(r.u16()?));
        let mut b = r.sub(len.checked_sub(4).ok_or_else(|| DecodeError::len("property of port statistics"))?)?;
        r.skip_pad(len.next_multiple_of(8) - len);
        if kind != 0xffff || (b.u32()?, b.u32()?) != CUSTOM {
            continue;
        }
        b.skip(2)?;
        for _ in 0..b.u16()? {
            let n = usize::from(b.u8()?);
            custom.push((String::from_utf8_lossy(b.take(n)?).into_owned(), b.u64()?));
        }
    }
    Ok(custom)
}

/// `OFPPF_*` bits of a speed in megabits a second, and of copper; 0 where there is no bit for it.
pub fn port_features(mbps: u32, full_duplex: bool, copper: bool) -> u32 {
    let bit = match (mbps, full_duplex) {
        (10, half) => u32::from(half),
        (100, half) => 2 + u32::from(half),
        (1000, half) => 4 + u32::from(half),
        (10_000, true) => 6,
        (40_000, true) => 7,
        (100_000, true) => 8,
        (1_000_000, true) => 9,
        (0, _) => return 0,
        _ => 10,
    };
    1 << bit | u32::from(copper) << 11
}

fn put_name(o: &mut Vec<u8>, name: &str) {
    let mut b: Vec<u8> = name.bytes().take(15).collect();
    b.resize(16, 0);
    o.extend_from_slice(&b);
}

pub(super) fn put_desc(o: &mut Vec<u8>, p: &PortDesc, v: Version) {
    o.p32(p.port.to_u32());
    if v >= Version::Of14 {
        o.p16(72);
        o.zeros(2);
    } else {
        o.zeros(4);
    }
    o.extend_from_slice(&p.hw_addr[..]);
    o.zeros(2);
    put_name(o, &p.name);
    o.p32(p.config);
    o.p32(p.state);
    if v >= Version::Of14 {
        o.p16(0);
        o.p16(32);
        o.zeros(4);
    }
    o.p32(p.curr);
    o.zeros(12);
    o.p32(p.curr_speed);
    o.p32(p.max_speed);
}

pub(super) fn pull_desc(r: &mut Reader<'_>, v: Version) -> Result<PortDesc> {
    let port =
        PortNo::from_u32(r.u32()?).ok_or_else(|| DecodeError::new(OfError::PortModBadPort, "port out of range"))?;
    let len = usize::from(r.u16()?);
    r.skip(2)?;
    let n =
        if v >= Version::Of14 { len.checked_sub(8).ok_or_else(|| DecodeError::len("port description"))? } else { 56 };
    let mut b = r.sub(n)?;
    let hw_addr = b.mac()?;
    b.skip(2)?;
    let name = String::from_utf8_lossy(b.take(16)?).trim_end_matches('\0').to_string();
    let (config, state) = (b.u32()?, b.u32()?);
    let (mut curr, mut curr_speed, mut max_speed) = (0, 0, 0);
    if v >= Version::Of14 {
        while b.len() >= 4 {
            let kind = b.u16()?;
            let plen = usize::from(b.u16()?);
            let mut p = b.sub(plen.checked_sub(4).ok_or_else(|| DecodeError::len("port property"))?)?;
            if kind == 0 {
                p.skip(4)?;
                curr = p.u32()?;
                p.skip(12)?;
                curr_speed = p.u32()?;
                max_speed = p.u32()?;
            }
        }
    } else {
        curr = b.u32()?;
        b.skip(12)?;
        curr_speed = b.u32()?;
        max_speed = b.u32()?;
    }
    Ok(PortDesc { port, hw_addr, name, config, state, curr, curr_speed, max_speed })
}

pub(super) fn put_stats(o: &mut Vec<u8>, s: &PortStats, v: Version) {
    // Errors of frames, overruns, checksums and collisions are as unknown as other errors.
    let others = |o: &mut Vec<u8>| (0..4).for_each(|_| o.p64(if s.counters[6] == u64::MAX { u64::MAX } else { 0 }));
    if v >= Version::Of14 {
        let start = o.len();
        o.zeros(4);
        o.p32(s.port.to_u32());
        o.p32(s.duration_sec);
        o.p32(s.duration_nsec);
        s.counters.iter().for_each(|c| o.p64(*c));
        o.p16(0);
        o.p16(40);
        o.zeros(4);
        others(o);
        if !s.custom.is_empty() {
            put_custom(o, &s.custom);
        }
        o.patch_len(start, start);
    } else {
        o.p32(s.port.to_u32());
        o.zeros(4);
        s.counters.iter().for_each(|c| o.p64(*c));
        others(o);
        if v >= Version::Of13 {
            o.p32(s.duration_sec);
            o.p32(s.duration_nsec);
        }
    }
}

pub(super) fn pull_stats(r: &mut Reader<'_>, v: Version) -> Result<PortStats> {
    let bad = || DecodeError::new(OfError::PortModBadPort, "port out of range");
    let counters = [0; 8];
    let mut s = PortStats { port: PortNo::ANY, counters, duration_sec: 0, duration_nsec: 0, custom: Vec::new() };
    if v >= Version::Of14 {
        let len = usize::from(r.u16()?);
        r.skip(2)?;
        let mut b = r.sub(len.checked_sub(4).ok_or_else(|| DecodeError::len("port statistics"))?)?;
        s.port = PortNo::from_u32(b.u32()?).ok_or_else(bad)?;
        s.duration_sec = b.u32()?;
        s.duration_nsec = b.u32()?;
        for c in &mut s.counters {
            *c = b.u64()?;
        }
        s.custom = pull_custom(b)?;
    } else {
        s.port = PortNo::from_u32(r.u32()?).ok_or_else(bad)?;
        r.skip(4)?;
        for c in &mut s.counters {
            *c = r.u64()?;
        }
        r.skip(32)?;
        if v >= Version::Of13 {
            s.duration_sec = r.u32()?;
            s.duration_nsec = r.u32()?;
        }
    }
    Ok(s)
}
