//! Queues of ports: their numbers and counters (OpenFlow 1.0 section 5.3, 1.3 section 7.2.2, 1.5 section 7.3.5.9).

use super::Version;
use crate::OfError;
use crate::port::PortNo;
use crate::wire::{DecodeError, Put, Reader, Result};

/// All queues.
pub const QUEUE_ALL: u32 = 0xffff_ffff;

/// Counters of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueStats {
    /// Its port.
    pub port: PortNo,
    /// Its number.
    pub queue: u32,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped.
    pub errors: u64,
    /// Age, seconds.
    pub duration_sec: u32,
    /// Age, nanoseconds beyond.
    pub duration_nsec: u32,
}

fn pull_port(r: &mut Reader<'_>, v: Version) -> Result<PortNo> {
    if v == Version::Of10 {
        let port = PortNo(r.u16()?);
        r.skip(2)?;
        return Ok(port);
    }
    PortNo::from_u32(r.u32()?).ok_or_else(|| DecodeError::new(OfError::QueueBadPort, "port out of range"))
}

fn put_port(o: &mut Vec<u8>, p: PortNo, v: Version) {
    if v == Version::Of10 {
        o.p16(p.0);
        o.zeros(2);
    } else {
        o.p32(p.to_u32());
    }
}

pub(super) fn put_stats(o: &mut Vec<u8>, s: &QueueStats, v: Version) {
    if v >= Version::Of14 {
        o.p16(48);
        o.zeros(6);
    }
    put_port(o, s.port, v);
    o.p32(s.queue);
    o.p64(s.bytes);
    o.p64(s.packets);
    o.p64(s.errors);
    if v >= Version::Of13 {
        o.p32(s.duration_sec);
        o.p32(s.duration_nsec);
    }
}

pub(super) fn pull_stats(r: &mut Reader<'_>, v: Version) -> Result<QueueStats> {
    if v >= Version::Of14 {
        r.skip(8)?;
    }
    let (port, queue, bytes, packets, errors) = (pull_port(r, v)?, r.u32()?, r.u64()?, r.u64()?, r.u64()?);
    let (duration_sec, duration_nsec) = if v >= Version::Of13 { (r.u32()?, r.u32()?) } else { (0, 0) };
    Ok(QueueStats { port, queue, bytes, packets, errors, duration_sec, duration_nsec })
}

/// A port's queue, without properties: what Open vSwitch says of one.
pub(super) fn put_queue(o: &mut Vec<u8>, port: PortNo, queue: u32, v: Version) {
    match v {
        Version::Of10 | Version::Of11 => {
            o.p32(queue);
            o.p16(8);
            o.zeros(2);
        }
        v => {
            if v >= Version::Of14 {
                o.p32(port.to_u32());
                o.p32(queue);
            } else {
                o.p32(queue);
                o.p32(port.to_u32());
            }
            o.p16(16);
            o.zeros(6);
        }
    }
}

/// The body of a reply that lists a port's queues, before OpenFlow 1.4.
pub(super) fn put_config(o: &mut Vec<u8>, port: PortNo, queues: &[u32], v: Version) {
    put_port(o, port, v);
    o.zeros(4);
    queues.iter().for_each(|q| put_queue(o, port, *q, v));
}

/// The other way round; properties are passed over.
pub(super) fn pull_config(mut r: Reader<'_>, v: Version) -> Result<(PortNo, Vec<u32>)> {
    let port = pull_port(&mut r, v)?;
    r.skip(4)?;
    let mut queues = Vec::new();
    while !r.is_empty() {
        queues.push(r.u32()?);
        let head = if v < Version::Of12 { 0 } else { 4 };
        r.skip(head)?;
        let length = usize::from(r.u16()?);
        r.skip(length.checked_sub(6 + head).ok_or_else(|| DecodeError::len("queue"))?)?;
    }
    Ok((port, queues))
}

/// OFPMP_QUEUE_DESC of OpenFlow 1.4 and later: a port's queue.
pub(super) fn pull_desc(r: &mut Reader<'_>) -> Result<(PortNo, u32)> {
    let (port, queue) = (pull_port(r, Version::Of14)?, r.u32()?);
    let length = usize::from(r.u16()?);
    r.skip(length.checked_sub(10).ok_or_else(|| DecodeError::len("queue"))?)?;
    Ok((port, queue))
}

#[cfg(test)]
mod tests {
    use super::super::{Message, MultipartReply, MultipartRequest};
    use super::*;

    fn there_and_back(m: &Message, v: Version) -> Option<Message> {
        Message::decode(&m.encode(v, 7)).ok().map(|(_, m)| m)
    }

    #[test]
    fn queues_survive_every_version() {
        let stats = QueueStats {
            port: PortNo(3),
            queue: 7,
            bytes: 1,
            packets: 2,
            errors: 3,
            duration_sec: 4,
            duration_nsec: 5,
        };
        for v in [Version::Of10, Version::Of13, Version::Of14, Version::Of15] {
            let aged =
                if v == Version::Of10 { QueueStats { duration_sec: 0, duration_nsec: 0, ..stats } } else { stats };
            let m = Message::MultipartReply { more: false, body: MultipartReply::Queue(vec![aged, aged]) };
            assert_eq!(there_and_back(&m, v), Some(m), "{v:?}");
            let m = Message::MultipartRequest(MultipartRequest::Queue(PortNo(3), QUEUE_ALL));
            assert_eq!(there_and_back(&m, v), Some(m), "{v:?}");
            let m = if v >= Version::Of14 {
                let body = MultipartReply::QueueDesc(vec![(PortNo(3), 0), (PortNo(3), 9)]);
                Message::MultipartReply { more: false, body }
            } else {
                Message::QueueGetConfigReply(PortNo(3), vec![0, 9])
            };
            assert_eq!(there_and_back(&m, v), Some(m), "{v:?}");
        }
    }
}
