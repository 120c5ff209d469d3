//! Messages from bytes.

use super::{
    BundleAdd, BundleCommand, BundleControl, Features, Message, PortMod, PortStatus, Role, SwitchConfig, TableMod,
    TableStatus, Version, length, nicira, of10, packet, port, queue, stats,
};
use crate::OfError;
use crate::ids::TableId;
use crate::port::PortNo;
use crate::wire::{DecodeError, NX_VENDOR, ONF_VENDOR, Reader, Result, flow, group};

/// The fixed part of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version number.
    pub version: u8,
    /// Message type.
    pub kind: u8,
    /// Length, this header included.
    pub length: u16,
    /// Transaction id.
    pub xid: u32,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 8;

    /// Reads a header; `None` if there are fewer than eight bytes.
    pub fn parse(buf: &[u8]) -> Option<Header> {
        let [version, kind, l0, l1, x0, x1, x2, x3, ..] = *buf else { return None };
        Some(Header { version, kind, length: u16::from_be_bytes([l0, l1]), xid: u32::from_be_bytes([x0, x1, x2, x3]) })
    }
}

impl Message {
    /// Decodes one whole message. Hello, error and echo are read in any version.
    ///
    /// # Errors
    /// What to put into the error reply.
    pub fn decode(buf: &[u8]) -> std::result::Result<(Header, Message), DecodeError> {
        let h = Header::parse(buf).ok_or_else(|| DecodeError::len("header"))?;
        if usize::from(h.length) != buf.len() {
            return Err(DecodeError::len("message"));
        }
        let mut r = Reader::new(buf);
        r.skip(Header::LEN)?;
        let m = match h.kind {
            0 => pull_hello(r),
            1 => error(r, h.version)?,
            2 => Message::EchoRequest(r.buf.to_vec()),
            3 => Message::EchoReply(r.buf.to_vec()),
            kind => {
                let v = Version::from_u8(h.version).ok_or_else(|| {
                    DecodeError::new(OfError::RequestBadVersion, format!("version {} is not supported", h.version))
                })?;
                body(kind, r, v, &h)?
            }
        };
        Ok((h, m))
    }
}

/// An error; that of an experimenter has the experimenter's number before the data.
fn error(mut r: Reader<'_>, version: u8) -> Result<Message> {
    let (error_type, code) = (r.u16()?, r.u16()?);
    if error_type == 0xffff && version > Version::Of10 as u8 {
        r.skip(4)?;
    }
    Ok(Message::Error { error_type, code, data: r.buf.to_vec() })
}

fn pull_hello(mut r: Reader<'_>) -> Message {
    let mut bitmap = None;
    while r.len() >= 4 {
        let (Ok(kind), Ok(len)) = (r.u16(), r.u16()) else { break };
        let len = usize::from(len);
        let Ok(mut b) = r.sub(len.saturating_sub(4).min(r.len())) else { break };
        r.skip_pad(len.next_multiple_of(8) - len);
        if kind == 1 {
            bitmap = b.u32().ok();
        }
        if len < 4 {
            break;
        }
    }
    Message::Hello(bitmap)
}

fn config(mut r: Reader<'_>) -> Result<SwitchConfig> {
    Ok(SwitchConfig { flags: r.u16()?, miss_send_len: r.u16()? })
}

/// Flags that a switch takes: how fragments are treated; before 1.3, whether packets without time to live are told of.
fn new_config(r: Reader<'_>, v: Version) -> Result<SwitchConfig> {
    let c = config(r)?;
    let known = if v < Version::Of13 { 7 } else { 3 };
    if c.flags & !known != 0 {
        return Err(DecodeError::new(OfError::SwitchConfigBadFlags, format!("configuration flags {:#x}", c.flags)));
    }
    Ok(c)
}

fn role(mut r: Reader<'_>) -> Result<Role> {
    let (role, short_id) = (r.u32()?, r.u16()?);
    if role > 3 {
        return Err(DecodeError::new(OfError::RoleUnknown, format!("there is no role {role}")));
    }
    r.skip(2)?;
    Ok(Role { role, short_id, generation_id: r.u64()? })
}

fn role_status(mut r: Reader<'_>) -> Result<Message> {
    let (role, reason) = (r.u32()?, r.u8()?);
    r.skip(3)?;
    Ok(Message::RoleStatus(Role { role, short_id: 0, generation_id: r.u64()? }, reason))
}

fn body(kind: u8, mut r: Reader<'_>, v: Version, h: &Header) -> Result<Message> {
    length::check(kind, v, r.buf)?;
    if v == Version::Of10 && !matches!(kind, 4 | 5 | 7..=9) {
        return of10::decode(kind, r);
    }
    Ok(match kind {
        4 => return experimenter(r, v, h),
        5 => Message::FeaturesRequest,
        6 => {
            let mut f = Features {
                datapath_id: r.u64()?,
                n_buffers: r.u32()?,
                n_tables: r.u8()?,
                auxiliary_id: r.u8()?,
                ..Default::default()
            };
            r.skip(2)?;
            f.capabilities = r.u32()?;
            if v < Version::Of13 {
                f.auxiliary_id = 0;
                r.skip(4)?;
                f.ports = stats::all(r, |r| port::pull_desc(r, v))?;
            }
            Message::FeaturesReply(f)
        }
        7 => Message::GetConfigRequest,
        8 => Message::GetConfigReply(config(r)?),
        9 => Message::SetConfig(new_config(r, v)?),
        10 => Message::PacketIn(packet::pull_packet_in(r, v)?),
        11 => Message::FlowRemoved(flow::pull_flow_removed(r, v)?),
        12 => {
            let reason = r.u8()?;
            r.skip(7)?;
            Message::PortStatus(PortStatus { reason, desc: port::pull_desc(&mut r, v)? })
        }
        31 if v >= Version::Of14 => {
            let reason = r.u8()?;
            r.skip(7)?;
            Message::TableStatus(TableStatus { reason, desc: r.buf.to_vec() })
        }
        13 => Message::PacketOut(packet::pull_packet_out(r, v)?),
        14 => Message::FlowMod(flow::pull_flow_mod(r, v)?),
        15 => Message::GroupMod(group::pull_group_mod(r, v)?),
        16 => {
            let port = PortNo::from_u32(r.u32()?)
                .ok_or_else(|| DecodeError::new(OfError::PortModBadPort, "port out of range"))?;
            r.skip(4)?;
            let hw_addr = r.mac()?;
            r.skip(2)?;
            let m = PortMod { port, hw_addr, config: r.u32()?, mask: r.u32()? };
            if v >= Version::Of14 {
                // Ethernet's alone.
                properties(r, |kind| {
                    (kind != 0).then(|| DecodeError::new(OfError::PropertyBadType, format!("port property {kind}")))
                })?;
            }
            Message::PortMod(m)
        }
        17 => {
            let table = TableId(r.u8()?);
            r.skip(3)?;
            let config = r.u32()?;
            let vacancy = if v >= Version::Of14 { table_properties(r)? } else { None };
            Message::TableMod(TableMod { table, config, vacancy })
        }
        18 => Message::MultipartRequest(stats::pull_request(r, v)?),
        19 => {
            let (more, body) = stats::pull_reply(r, v)?;
            Message::MultipartReply { more, body }
        }
        20 => Message::BarrierRequest,
        21 => Message::BarrierReply,
        22 if v < Version::Of14 => Message::QueueGetConfigRequest(queue_port(r)?),
        23 => {
            let (port, queues) = queue::pull_config(r, v)?;
            Message::QueueGetConfigReply(port, queues)
        }
        24 if v >= Version::Of12 => Message::RoleRequest(role(r)?),
        25 if v >= Version::Of12 => Message::RoleReply(role(r)?),
        30 if v >= Version::Of14 => role_status(r)?,
        26 if v >= Version::Of13 => Message::GetAsyncRequest,
        27 if v >= Version::Of13 => Message::GetAsyncReply(r.buf.to_vec()),
        28 if v >= Version::Of13 => Message::SetAsync(r.buf.to_vec()),
        29 if v >= Version::Of13 => Message::MeterMod(group::pull_meter_mod(r)?),
        33 => bundle_control(r)?,
        34 => bundle_add(r, h)?,
        k => return Err(DecodeError::message_type(k)),
    })
}

fn bad_length(kind: u16, len: usize) -> DecodeError {
    DecodeError::new(OfError::PropertyBadLength, format!("property {kind} has length {len}"))
}

/// Goes through properties; `refuse` says what is wrong with a type.
fn properties(mut r: Reader<'_>, refuse: impl Fn(u16) -> Option<DecodeError>) -> Result<()> {
    while !r.is_empty() {
        let (kind, len) = (r.u16()?, usize::from(r.u16()?));
        let bad_len = || bad_length(kind, len);
        r.take(len.checked_sub(4).ok_or_else(bad_len)?).map_err(|_| bad_len())?;
        r.skip_pad(len.next_multiple_of(8) - len);
        if let Some(e) = refuse(kind) {
            return Err(e);
        }
    }
    Ok(())
}

/// The properties of a change of a table: eviction, and the percentages of vacancy.
fn table_properties(r: Reader<'_>) -> Result<Option<[u8; 2]>> {
    /// OFPTMPT14_VACANCY.
    const VACANCY: u16 = 3;
    let mut at = Reader::new(r.buf);
    properties(r, |kind| {
        (!(2..=3).contains(&kind)).then(|| DecodeError::new(OfError::RequestBadType, format!("table property {kind}")))
    })?;
    let mut vacancy = None;
    while !at.is_empty() {
        let (kind, len) = (at.u16()?, usize::from(at.u16()?));
        let body = at.take(len.saturating_sub(4))?;
        at.skip_pad(len.next_multiple_of(8) - len);
        if kind == VACANCY {
            let [down, up, ..] = *body else { return Err(bad_length(kind, len)) };
            if len != 8 {
                return Err(bad_length(kind, len));
            }
            if down > up || up > 100 {
                let text = format!("vacancy from {down} % to {up} %: expected two percentages, the lesser first");
                return Err(DecodeError::new(OfError::PropertyBadValue, text));
            }
            vacancy = Some([down, up]);
        }
    }
    Ok(vacancy)
}

/// Types of messages that can be in bundles: those of experimenters, packet-outs, and changes of flows, groups, ports,
/// tables and meters.
fn bundled(kind: u8) -> bool {
    matches!(kind, 4 | 13..=17 | 29)
}

fn queue_port(mut r: Reader<'_>) -> Result<PortNo> {
    PortNo::from_u32(r.u32()?).ok_or_else(|| DecodeError::new(OfError::QueueBadPort, "port out of range"))
}

fn bundle_control(mut r: Reader<'_>) -> Result<Message> {
    use BundleCommand as C;
    let id = r.u32()?;
    let command = match r.u16()? {
        0 => C::OpenRequest,
        1 => C::OpenReply,
        2 => C::CloseRequest,
        3 => C::CloseReply,
        4 => C::CommitRequest,
        5 => C::CommitReply,
        6 => C::DiscardRequest,
        7 => C::DiscardReply,
        t => return Err(DecodeError::new(OfError::BundleBadType, format!("bundle control type {t}"))),
    };
    Ok(Message::BundleControl(BundleControl { id, command, flags: r.u16()? }))
}

fn bundle_add(mut r: Reader<'_>, outer: &Header) -> Result<Message> {
    let id = r.u32()?;
    r.skip(2)?;
    let flags = r.u16()?;
    let h = Header::parse(r.buf)
        .ok_or_else(|| DecodeError::new(OfError::BundleMessageBadLength, "bundle message without a header"))?;
    if matches!(h.kind, 33 | 34) {
        return Err(DecodeError::new(OfError::BundleMessageUnsupported, "a bundle within a bundle"));
    }
    let cut = |_| DecodeError::new(OfError::BundleMessageBadLength, "a bundle's message is cut");
    let inner = r.take(usize::from(h.length)).map_err(cut)?;
    if h.xid != outer.xid {
        return Err(DecodeError::new(
            OfError::BundleMessageBadXid,
            "a message of another transaction than its bundle's",
        ));
    }
    if !bundled(h.kind) {
        return Err(DecodeError::new(
            OfError::BundleMessageUnsupported,
            format!("messages of type {} are not bundled", h.kind),
        ));
    }
    let (_, message) = Message::decode(inner)?;
    Ok(Message::BundleAdd(BundleAdd { id, flags, message: Box::new(message) }))
}

fn experimenter(mut r: Reader<'_>, v: Version, h: &Header) -> Result<Message> {
    let vendor = r.u32()?;
    let subtype = r.u32()?;
    // Roles are a message of their own since 1.2, masks of asynchronous messages since 1.3.
    let old = match subtype {
        10 | 11 => v < Version::Of12,
        19 => v < Version::Of13,
        _ => v == Version::Of10,
    };
    if vendor == NX_VENDOR
        && old
        && let Some(m) = of10::decode_nicira(subtype, r)?
    {
        return Ok(m);
    }
    Ok(match (vendor, subtype) {
        (ONF_VENDOR, 1911) => role_status(r)?,
        (ONF_VENDOR, 2300) => bundle_control(r)?,
        (ONF_VENDOR, 2301) => bundle_add(r, h)?,
        (NX_VENDOR, 12) if v == Version::Of10 => match r.u32()? {
            format @ (0 | 2) => Message::SetFlowFormat(format),
            other => {
                return Err(DecodeError::new(OfError::RequestNotPermitted, format!("there is no flow format {other}")));
            }
        },
        (NX_VENDOR, 15) => Message::FlowModTableId(r.u8()? != 0),
        (NX_VENDOR, 16) => match r.u32()? {
            format @ 0..=2 => Message::SetPacketInFormat(format),
            other => {
                return Err(DecodeError::new(
                    OfError::RequestNotPermitted,
                    format!("there is no packet-in format {other}"),
                ));
            }
        },
        (NX_VENDOR, 17) => Message::NxPacketIn(of10::pull_packet_in(r)?),
        (NX_VENDOR, 20) => {
            r.skip(6)?;
            Message::SetControllerId(r.u16()?)
        }
        (NX_VENDOR, 21) => Message::FlowMonitorCancel(r.u32()?),
        (ONF_VENDOR, 1870) if v == Version::Of13 => Message::FlowMonitorCancel(r.u32()?),
        (NX_VENDOR, 24) => Message::TlvTableMod(nicira::pull_tlv_mod(r)?),
        (NX_VENDOR, 25) => Message::TlvTableRequest,
        (NX_VENDOR, 26) => Message::TlvTableReply(nicira::pull_tlv_reply(r)?),
        (NX_VENDOR, 27) if v < Version::Of14 => Message::SetAsync2(r.buf.to_vec()),
        (NX_VENDOR, 28) => Message::Resume(packet::pull_resume(r)?),
        (NX_VENDOR, 29) => {
            r.skip(6)?;
            Message::CtFlushZone(r.u16()?)
        }
        (NX_VENDOR, 30) => Message::PacketIn2(packet::pull_packet_in2(r)?),
        (NX_VENDOR, 32) => Message::CtFlush(nicira::pull_ct_flush(r)?),
        (NX_VENDOR, s) => {
            return Err(DecodeError::new(
                OfError::RequestBadSubtype,
                format!("Nicira message {s} is not supported in version {}", v as u8),
            ));
        }
        (ONF_VENDOR, s) => {
            return Err(DecodeError::new(OfError::RequestBadSubtype, format!("ONF's message {s} is not supported")));
        }
        (e, _) => {
            return Err(DecodeError::new(
                OfError::RequestBadExperimenter,
                format!("experimenter {e:#x} is not supported"),
            ));
        }
    })
}
