//! Messages to bytes.

use super::{Message, MultipartReply, Version, ipfix, monitor, nicira, of10, packet, port, queue, stats};
use crate::wire::{NX_VENDOR, ONF_VENDOR, Put, flow, group};

/// Most bytes of one multipart reply part.
const MAX_PART: usize = 65_000;

/// A message that is longer than a message can be (OpenFlow 1.5 section 7.1: the length has 16 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has {len} octets, 65535 is the most; split it")]
pub struct TooLong {
    /// Its length in octets.
    pub len: usize,
}

fn frame(version: u8, kind: u8, xid: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut o = Vec::with_capacity(64);
    o.p8(version);
    o.p8(kind);
    o.p16(0);
    o.p32(xid);
    body(&mut o);
    o.patch_len(2, 0);
    o
}

fn experimenter(v: Version, xid: u32, vendor: u32, subtype: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    frame(v as u8, 4, xid, |o| {
        o.p32(vendor);
        o.p32(subtype);
        body(o);
    })
}

/// Encodes a reply as one or more messages, each below the 64 kB that a message can be.
pub(super) fn reply_parts(v: Version, xid: u32, more: bool, body: &MultipartReply) -> Vec<Vec<u8>> {
    let (kind, (head, entries)) = match v {
        Version::Of10 => (17, of10::entries(body)),
        _ => (19, multipart_entries(body, v)),
    };
    let mut parts: Vec<Vec<u8>> = vec![Vec::new()];
    for e in entries {
        let full = parts.last().is_some_and(|p| !p.is_empty() && p.len() + e.len() > MAX_PART);
        if full {
            parts.push(Vec::new());
        }
        if let Some(p) = parts.last_mut() {
            p.extend_from_slice(&e);
        }
    }
    let n = parts.len();
    let part = |(i, p): (usize, &Vec<u8>)| {
        frame(v as u8, kind, xid, |o| {
            head(o, u16::from(more || i + 1 < n));
            o.extend_from_slice(p);
        })
    };
    parts.iter().enumerate().map(part).collect()
}

/// What begins each part, given its flags, and the entries.
pub(super) type Entries = (Box<dyn Fn(&mut Vec<u8>, u16)>, Vec<Vec<u8>>);

fn multipart_entries(body: &MultipartReply, v: Version) -> Entries {
    let (kind, entries) = body.entries(v);
    let extension = match body {
        MultipartReply::FlowMonitor(_) => monitor::experimenter(v),
        MultipartReply::IpfixBridge(_) => Some((NX_VENDOR, ipfix::BRIDGE)),
        MultipartReply::IpfixFlow(_) => Some((NX_VENDOR, ipfix::FLOW)),
        _ => None,
    };
    let head = move |o: &mut Vec<u8>, flags| {
        o.p16(extension.map_or(kind, |_| 0xffff));
        o.p16(flags);
        o.zeros(4);
        if let Some((vendor, subtype)) = extension {
            o.p32(vendor);
            o.p32(subtype);
        }
    };
    (Box::new(head), entries)
}

/// A message that is an extension of the ONF in 1.3, and has a type of its own later.
fn extension(v: Version, xid: u32, kind: u8, subtype: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    if v >= Version::Of14 { frame(v as u8, kind, xid, body) } else { experimenter(v, xid, ONF_VENDOR, subtype, body) }
}

/// An error's type and code as a version since 1.1 knows them, and the experimenter that those of type 0xffff are of.
fn error_code(error_type: u16, code: u16, v: Version) -> (u16, u16, u32) {
    match (error_type, code) {
        // Properties came with tables' features; what is wrong with bundles, and an
        // instruction that is there twice, are errors of ONF's extensions.
        (14, c @ 0..=1) if v < Version::Of14 => (13, c + 2, NX_VENDOR),
        (3, 9) if v < Version::Of14 => (0xffff, 2600, ONF_VENDOR),
        (17, c) if v < Version::Of14 => (0xffff, 2300 + c, ONF_VENDOR),
        (t, c) => (t, c, NX_VENDOR),
    }
}

impl Message {
    /// Encodes a message. A multipart reply that may exceed 64 kB wants [`Message::encode_all`].
    pub fn encode(&self, v: Version, xid: u32) -> Vec<u8> {
        let f = |kind: u8, body: &dyn Fn(&mut Vec<u8>)| frame(v as u8, kind, xid, body);
        let nx = |subtype: u32, body: &dyn Fn(&mut Vec<u8>)| experimenter(v, xid, NX_VENDOR, subtype, body);
        if v == Version::Of10
            && let Some((kind, body)) = of10::encode(self)
        {
            return frame(v as u8, kind, xid, body);
        }
        match self {
            Message::Hello(bitmap) => f(0, &|o| {
                if let Some(b) = bitmap {
                    o.p16(1);
                    o.p16(8);
                    o.p32(*b);
                }
            }),
            Message::Error { error_type, code, data } => f(1, &|o| {
                let (error_type, code, experimenter) = error_code(*error_type, *code, v);
                o.p16(error_type);
                o.p16(code);
                if error_type == 0xffff {
                    o.p32(experimenter);
                }
                o.extend_from_slice(data);
            }),
            Message::EchoRequest(b) => f(2, &|o| o.extend_from_slice(b)),
            Message::EchoReply(b) => f(3, &|o| o.extend_from_slice(b)),
            Message::FeaturesRequest => f(5, &|_| {}),
            Message::FeaturesReply(x) => f(6, &|o| {
                o.p64(x.datapath_id);
                o.p32(x.n_buffers);
                o.p8(x.n_tables);
                o.p8(if v >= Version::Of13 { x.auxiliary_id } else { 0 });
                o.zeros(2);
                o.p32(x.capabilities);
                o.zeros(4);
                if v < Version::Of13 {
                    x.ports.iter().for_each(|p| port::put_desc(o, p, v));
                }
            }),
            Message::GetConfigRequest => f(7, &|_| {}),
            Message::GetConfigReply(c) | Message::SetConfig(c) => {
                f(if matches!(self, Message::SetConfig(_)) { 9 } else { 8 }, &|o| {
                    o.p16(c.flags);
                    o.p16(c.miss_send_len);
                })
            }
            Message::PacketIn(p) => f(10, &|o| packet::put_packet_in(o, p, v)),
            Message::NxPacketIn(p) => nx(17, &|o| of10::put_packet_in(o, p)),
            Message::PacketIn2(p) => nx(30, &|o| packet::put_packet_in2(o, p, false)),
            Message::Resume(p) => nx(28, &|o| packet::put_packet_in2(o, p, true)),
            Message::FlowRemoved(m) | Message::FlowRemovedOf10(m) => f(11, &|o| flow::put_flow_removed(o, m, v)),
            Message::PortStatus(s) => f(12, &|o| {
                o.p8(s.reason);
                o.zeros(7);
                port::put_desc(o, &s.desc, v);
            }),
            Message::PacketOut(p) => f(13, &|o| packet::put_packet_out(o, p, v)),
            Message::FlowMod(m) => f(14, &|o| flow::put_flow_mod(o, m, v)),
            Message::GroupMod(m) => f(15, &|o| group::put_group_mod(o, m, v)),
            Message::PortMod(m) => f(16, &|o| {
                o.p32(m.port.to_u32());
                o.zeros(4);
                o.extend_from_slice(&m.hw_addr[..]);
                o.zeros(2);
                o.p32(m.config);
                o.p32(m.mask);
                if v < Version::Of14 {
                    o.zeros(8);
                }
            }),
            Message::TableMod(t) => f(17, &|o| {
                o.p8(t.table.0);
                o.zeros(3);
                o.p32(t.config);
                if let Some([down, up]) = t.vacancy.filter(|_| v >= Version::Of14) {
                    o.extend_from_slice(&[0, 3, 0, 8, down, up, 0, 0]);
                }
            }),
            Message::TableStatus(s) => f(31, &|o| {
                o.p8(s.reason);
                o.zeros(7);
                o.extend_from_slice(&s.desc);
            }),
            Message::MultipartRequest(q) => f(18, &|o| stats::put_request(o, q, v)),
            Message::MultipartReply { more, body } => reply_parts(v, xid, *more, body).concat(),
            Message::BarrierRequest => f(20, &|_| {}),
            Message::BarrierReply => f(21, &|_| {}),
            Message::QueueGetConfigRequest(p) => f(22, &|o| queue::put_config(o, *p, &[], v)),
            Message::QueueGetConfigReply(p, queues) => f(23, &|o| queue::put_config(o, *p, queues, v)),
            // Roles from 0, other, primary and secondary (Nicira).
            Message::RoleRequest(r) if v < Version::Of12 => nx(10, &|o| o.p32(r.role.saturating_sub(1))),
            Message::RoleReply(r) if v < Version::Of12 => nx(11, &|o| o.p32(r.role.saturating_sub(1))),
            Message::RoleRequest(r) | Message::RoleReply(r) => {
                f(if matches!(self, Message::RoleRequest(_)) { 24 } else { 25 }, &|o| {
                    o.p32(r.role);
                    o.p16(if v >= Version::Of15 { r.short_id } else { 0 });
                    o.zeros(2);
                    o.p64(r.generation_id);
                })
            }
            Message::RoleStatus(r, reason) => extension(v, xid, 30, 1911, |o| {
                o.p32(r.role);
                o.p8(*reason);
                o.zeros(3);
                o.p64(r.generation_id);
            }),
            Message::GetAsyncRequest => f(26, &|_| {}),
            Message::GetAsyncReply(b) => f(27, &|o| o.extend_from_slice(b)),
            Message::SetAsync(b) if v < Version::Of13 => nx(19, &|o| o.extend_from_slice(b)),
            Message::SetAsync2(b) => nx(27, &|o| o.extend_from_slice(b)),
            Message::RequestForward(m) => {
                let body = |o: &mut Vec<u8>| o.extend_from_slice(&m.encode(v, xid));
                if v < Version::Of13 { nx(132, &body) } else { extension(v, xid, 32, 2350, body) }
            }
            Message::SetAsync(b) => f(28, &|o| o.extend_from_slice(b)),
            Message::MeterMod(m) => f(29, &|o| group::put_meter_mod(o, m)),
            Message::BundleControl(c) => extension(v, xid, 33, 2300, |o| {
                o.p32(c.id);
                o.p16(c.command as u16);
                o.p16(c.flags);
            }),
            Message::BundleAdd(a) => a.message.in_bundle(v, a.id, a.flags, xid),
            Message::SetFlowFormat(x) => nx(12, &|o| o.p32(*x)),
            Message::FlowModTableId(on) => nx(15, &|o| {
                o.p8(u8::from(*on));
                o.zeros(7);
            }),
            Message::SetPacketInFormat(x) => nx(16, &|o| o.p32(*x)),
            Message::SetControllerId(x) => nx(20, &|o| {
                o.zeros(6);
                o.p16(*x);
            }),
            Message::FlowMonitorCancel(id) if v == Version::Of13 => {
                experimenter(v, xid, ONF_VENDOR, 1870, |o| o.p32(*id))
            }
            Message::FlowMonitorCancel(id) => nx(21, &|o| o.p32(*id)),
            Message::TlvTableMod(m) => nx(24, &|o| nicira::put_tlv_mod(o, m)),
            Message::TlvTableRequest => nx(25, &|_| {}),
            Message::TlvTableReply(t) => nx(26, &|o| nicira::put_tlv_reply(o, t)),
            Message::CtFlushZone(z) => nx(29, &|o| {
                o.zeros(6);
                o.p16(*z);
            }),
            Message::CtFlush(c) => nx(32, &|o| nicira::put_ct_flush(o, c)),
        }
    }

    /// Encodes a message; a long multipart reply becomes several.
    pub fn encode_all(&self, v: Version, xid: u32) -> Vec<Vec<u8>> {
        match self {
            Message::MultipartReply { more, body } => reply_parts(v, xid, *more, body),
            m => vec![m.encode(v, xid)],
        }
    }

    /// The message that adds this one to a bundle.
    fn in_bundle(&self, v: Version, id: u32, flags: u16, xid: u32) -> Vec<u8> {
        extension(v, xid, 34, 2301, |o| {
            o.p32(id);
            o.zeros(2);
            o.p16(flags);
            o.extend_from_slice(&self.encode(v, xid));
        })
    }

    /// What [`Message::try_encode`] makes of the [`Message::BundleAdd`] of this message.
    ///
    /// # Errors
    /// [`TooLong`] where the message does not fit the 16 bits of a message's length.
    pub fn bundle_add(&self, v: Version, id: u32, flags: u16, xid: u32) -> Result<Vec<u8>, TooLong> {
        let octets = self.in_bundle(v, id, flags, xid);
        if octets.len() > usize::from(u16::MAX) { Err(TooLong { len: octets.len() }) } else { Ok(octets) }
    }

    /// As [`Message::encode_all`], for messages whose size is not known.
    ///
    /// # Errors
    /// [`TooLong`] where the message does not fit the 16 bits of a message's length.
    pub fn try_encode(&self, v: Version, xid: u32) -> Result<Vec<Vec<u8>>, TooLong> {
        let parts = self.encode_all(v, xid);
        match parts.iter().map(Vec::len).find(|len| *len > usize::from(u16::MAX)) {
            Some(len) => Err(TooLong { len }),
            None => Ok(parts),
        }
    }
}

/// A hello that offers the given versions. It says no more than the highest one where that means all older ones as well, as
/// to peers of OpenFlow 1.0, whose hellos have no body (OpenFlow 1.3 section 7.5.1).
pub(crate) fn hello(highest: Version, bitmap: u32, xid: u32) -> Vec<u8> {
    let all = (2 << highest as u32) - 2;
    Message::Hello(Some(bitmap).filter(|b| *b != all)).encode(highest, xid)
}
