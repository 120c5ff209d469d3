//! Packet-ins and packet-outs.

use super::Version;
use crate::OfError;
use crate::action::{Action, PacketInReason};
use crate::field::FieldId;
use crate::flow_match::Match;
use crate::ids::TableId;
use crate::port::PortNo;
use crate::wire::{DecodeError, Put, Reader, Result, decode_actions, encode_actions, oxm};

/// A packet on its way to the controller, or back (NXT_RESUME).
#[derive(Clone, PartialEq, Debug)]
pub struct PacketIn {
    /// The packet, perhaps cut.
    pub packet: Vec<u8>,
    /// Its full length.
    pub total_len: u32,
    /// Buffer, `0xffffffff` for none.
    pub buffer_id: u32,
    /// Table of the flow that sent it.
    pub table: TableId,
    /// Cookie of the flow that sent it.
    pub cookie: u64,
    /// Why.
    pub reason: PacketInReason,
    /// Fields that are not in the packet: ingress port, registers, tunnel, connection.
    pub metadata: Match,
    /// From the action.
    pub userdata: Vec<u8>,
    /// The frozen state of the switch; hand it back unchanged.
    pub continuation: Option<Vec<u8>>,
}

impl Default for PacketIn {
    fn default() -> Self {
        PacketIn {
            packet: Vec::new(),
            total_len: 0,
            buffer_id: 0xffff_ffff,
            table: TableId::FIRST,
            cookie: u64::MAX,
            reason: PacketInReason::Action,
            metadata: Match::new(),
            userdata: Vec::new(),
            continuation: None,
        }
    }
}

/// A packet from the controller.
#[derive(Clone, PartialEq, Debug)]
pub struct PacketOut {
    /// Buffer, `0xffffffff` for none.
    pub buffer_id: u32,
    /// Ingress port to pretend, and other metadata (OpenFlow 1.5).
    pub metadata: Match,
    /// What to do with it.
    pub actions: Vec<Action>,
    /// The packet.
    pub packet: Vec<u8>,
}

impl PacketOut {
    /// A packet from a port, through actions.
    pub fn new(in_port: PortNo, packet: Vec<u8>, actions: Vec<Action>) -> Self {
        let metadata = Match::new().with(FieldId::InPort, u128::from(in_port.0));
        PacketOut { buffer_id: 0xffff_ffff, metadata, actions, packet }
    }

    /// The ingress port.
    pub fn in_port(&self) -> PortNo {
        self.metadata.exact(FieldId::InPort).map_or(PortNo::ANY, |p| PortNo(p as u16))
    }
}

/// What NXT_PACKET_IN begins with.
pub(super) fn put_head(o: &mut Vec<u8>, p: &PacketIn) {
    o.p32(p.buffer_id);
    put_reason(o, p);
    o.p64(p.cookie);
}

pub(super) fn pull_head(r: &mut Reader<'_>) -> Result<PacketIn> {
    let mut p = PacketIn { buffer_id: r.u32()?, ..Default::default() };
    pull_reason(r, &mut p)?;
    p.cookie = r.u64()?;
    Ok(p)
}

/// Length, reason and table.
fn put_reason(o: &mut Vec<u8>, p: &PacketIn) {
    o.p16(p.total_len.min(0xffff) as u16);
    o.p8(p.reason as u8);
    o.p8(p.table.0);
}

fn pull_reason(r: &mut Reader<'_>, p: &mut PacketIn) -> Result<()> {
    p.total_len = u32::from(r.u16()?);
    p.reason = PacketInReason::from_u8(r.u8()?).unwrap_or_default();
    p.table = TableId(r.u8()?);
    Ok(())
}

/// The body of a standard packet-in: 1.1 says the ingress port alone, 1.3 adds the cookie.
pub(super) fn put_packet_in(o: &mut Vec<u8>, p: &PacketIn, v: Version) {
    if v == Version::Of11 {
        let port = p.metadata.exact(FieldId::InPort).map_or(PortNo::ANY, |n| PortNo(n as u16));
        o.p32(p.buffer_id);
        o.p32(port.to_u32());
        o.p32(port.to_u32());
        put_reason(o, p);
    } else {
        o.p32(p.buffer_id);
        put_reason(o, p);
        if v >= Version::Of13 {
            o.p64(p.cookie);
        }
        oxm::put_ofp_match(o, &p.metadata);
        o.zeros(2);
    }
    o.extend_from_slice(&p.packet);
}

pub(super) fn pull_packet_in(mut r: Reader<'_>, v: Version) -> Result<PacketIn> {
    let mut p = PacketIn { buffer_id: r.u32()?, ..Default::default() };
    if v == Version::Of11 {
        let port = PortNo::from_u32(r.u32()?)
            .ok_or_else(|| DecodeError::new(OfError::RequestBadPort, "packet-in from a bad port"))?;
        p.metadata = Match::new().with(FieldId::InPort, u128::from(port.0));
        r.skip(4)?;
        pull_reason(&mut r, &mut p)?;
        p.packet = r.buf.to_vec();
        return Ok(p);
    }
    pull_reason(&mut r, &mut p)?;
    if v >= Version::Of13 {
        p.cookie = r.u64()?;
    }
    p.metadata = oxm::pull_ofp_match(&mut r, true)?;
    r.skip(2)?;
    p.packet = r.buf.to_vec();
    Ok(p)
}

fn prop(o: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let at = o.len();
    o.p16(kind);
    o.p16(0);
    body(o);
    o.patch_len(at + 2, at);
    o.pad8(at);
}

/// The body of NXT_PACKET_IN2 and NXT_RESUME.
pub(super) fn put_packet_in2(o: &mut Vec<u8>, p: &PacketIn, resume: bool) {
    prop(o, 0, |o| o.extend_from_slice(&p.packet));
    if p.total_len as usize > p.packet.len() {
        prop(o, 1, |o| o.p32(p.total_len));
    }
    if p.buffer_id != 0xffff_ffff {
        prop(o, 2, |o| o.p32(p.buffer_id));
    }
    prop(o, 3, |o| o.p8(p.table.0));
    if p.cookie != u64::MAX {
        prop(o, 4, |o| {
            o.zeros(4);
            o.p64(p.cookie);
        });
    }
    prop(o, 5, |o| o.p8(p.reason as u8));
    prop(o, 6, |o| oxm::put_match(o, &p.metadata));
    if !resume && !p.userdata.is_empty() {
        prop(o, 7, |o| o.extend_from_slice(&p.userdata));
    }
    if let Some(c) = &p.continuation {
        prop(o, 8, |o| {
            o.zeros(4);
            o.extend_from_slice(c);
        });
    }
}

/// The body of NXT_RESUME, which has no properties but those that its sender was told.
pub(super) fn pull_resume(r: Reader<'_>) -> Result<PacketIn> {
    let mut left = r;
    while left.len() >= 4 {
        let (kind, len) = (left.u16()?, usize::from(left.u16()?));
        if kind > 8 {
            return Err(DecodeError::new(
                OfError::PropertyBadType,
                format!("NXT_RESUME: property {kind} is not supported"),
            ));
        }
        if len < 4 {
            return Err(DecodeError::new(
                OfError::PropertyBadLength,
                format!("NXT_RESUME: property {kind} has length {len}"),
            ));
        }
        left.skip_pad(len.next_multiple_of(8).saturating_sub(4));
    }
    pull_packet_in2(r)
}

pub(super) fn pull_packet_in2(mut r: Reader<'_>) -> Result<PacketIn> {
    let mut p = PacketIn::default();
    while r.len() >= 4 {
        let kind = r.u16()?;
        let len = usize::from(r.u16()?);
        let mut b = r.sub(len.checked_sub(4).ok_or_else(|| DecodeError::len("packet-in property"))?)?;
        r.skip_pad(len.next_multiple_of(8) - len);
        match kind {
            0 => p.packet = b.buf.to_vec(),
            1 => p.total_len = b.u32()?,
            2 => p.buffer_id = b.u32()?,
            3 => p.table = TableId(b.u8()?),
            4 => {
                b.skip(4)?;
                p.cookie = b.u64()?;
            }
            5 => p.reason = PacketInReason::from_u8(b.u8()?).unwrap_or_default(),
            6 => p.metadata = oxm::decode_fields(b.buf, true)?,
            7 => p.userdata = b.buf.to_vec(),
            8 => {
                b.skip(4)?;
                p.continuation = Some(b.buf.to_vec());
            }
            _ => {}
        }
    }
    p.total_len = p.total_len.max(p.packet.len() as u32);
    Ok(p)
}

pub(super) fn put_packet_out(o: &mut Vec<u8>, p: &PacketOut, v: Version) {
    let mut acts = Vec::new();
    encode_actions(&mut acts, &p.actions, v);
    o.p32(p.buffer_id);
    if v >= Version::Of15 {
        o.p16(acts.len() as u16);
        o.zeros(2);
        oxm::put_ofp_match(o, &p.metadata);
    } else {
        o.p32(p.in_port().to_u32());
        o.p16(acts.len() as u16);
        o.zeros(6);
    }
    o.extend_from_slice(&acts);
    o.extend_from_slice(&p.packet);
}

/// Checks where a packet to be sent says that it comes from: a port, the controller, or nowhere.
pub(super) fn from_port(metadata: &Match) -> Result<()> {
    let port = metadata.exact(FieldId::InPort).map(|n| PortNo(n as u16));
    match port {
        Some(p) if p.0 < 0xff00 || matches!(p, PortNo::LOCAL | PortNo::CONTROLLER | PortNo::ANY) => Ok(()),
        _ => Err(DecodeError::new(OfError::RequestBadPort, "packet-out from a port that there cannot be")),
    }
}

pub(super) fn pull_packet_out(mut r: Reader<'_>, v: Version) -> Result<PacketOut> {
    let buffer_id = r.u32()?;
    let (metadata, n) = if v >= Version::Of15 {
        let n = usize::from(r.u16()?);
        r.skip(2)?;
        let metadata = oxm::pull_ofp_match(&mut r, true)?;
        if metadata.fields().iter().any(|(f, ..)| !f.is_pipeline()) {
            return Err(DecodeError::new(OfError::RequestPipelineFieldsOnly, "packet-out with fields of a packet"));
        }
        (metadata, n)
    } else {
        let port = PortNo::from_u32(r.u32()?)
            .ok_or_else(|| DecodeError::new(OfError::RequestBadPort, "packet-out from a bad port"))?;
        let n = usize::from(r.u16()?);
        r.skip(6)?;
        (Match::new().with(FieldId::InPort, u128::from(port.0)), n)
    };
    from_port(&metadata)?;
    let actions = decode_actions(r.take(n)?, v)?;
    Ok(PacketOut { buffer_id, metadata, actions, packet: r.buf.to_vec() })
}
