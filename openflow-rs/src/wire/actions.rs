//! Actions on the wire. OpenFlow 1.5 has masked set-field, copy-field and the meter action; older versions get the
//! Nicira actions instead.

use super::{DecodeError, NX_VENDOR, ONF_VENDOR, Put, Reader, Result, nicira, of10, of11, oxm};
use crate::OfError;
use crate::action::{Action, MplsAction};
use crate::field::{FieldId, Subfield, ones};
use crate::ids::{GroupId, MeterId};
use crate::message::Version;
use crate::port::PortNo;

/// Appends a list of actions.
pub fn encode_actions(out: &mut Vec<u8>, actions: &[Action], v: Version) {
    for a in actions {
        encode(out, a, v);
    }
}

fn with_u32(out: &mut Vec<u8>, kind: u16, v: u32) {
    out.p16(kind);
    out.p16(8);
    out.p32(v);
}

fn encode(out: &mut Vec<u8>, a: &Action, v: Version) {
    if v == Version::Of10 {
        return of10::encode(out, a);
    }
    let start = out.len();
    match a {
        Action::Output { port, max_len } => {
            out.p16(0);
            out.p16(16);
            out.p32(port.to_u32());
            out.p16(*max_len);
            out.zeros(6);
        }
        Action::Group(g) => with_u32(out, 22, g.0),
        Action::SetQueue(q) => with_u32(out, 21, *q),
        Action::Meter(m) if v >= Version::Of15 => with_u32(out, 29, m.0),
        Action::PushVlan(t) => with_u32(out, 17, u32::from(*t) << 16),
        Action::PopVlan => with_u32(out, 18, 0),
        Action::DecTtl(None) => with_u32(out, 24, 0),
        Action::Mpls(MplsAction::Push(t)) => with_u32(out, 19, u32::from(*t) << 16),
        Action::Mpls(MplsAction::Pop(t)) => with_u32(out, 20, u32::from(*t) << 16),
        Action::Mpls(MplsAction::SetTtl(n)) => with_u32(out, 15, u32::from(*n) << 24),
        Action::Mpls(MplsAction::DecTtl) => with_u32(out, 16, 0),
        Action::Mpls(MplsAction::SetLabel(n)) if v == Version::Of11 => with_u32(out, 13, *n),
        Action::Mpls(MplsAction::SetTc(n)) if v == Version::Of11 => with_u32(out, 14, u32::from(*n) << 24),
        Action::Mpls(MplsAction::SetLabel(n)) => set_field(out, FieldId::MplsLabel, (*n).into(), None, v),
        Action::Mpls(MplsAction::SetTc(n)) => set_field(out, FieldId::MplsTc, (*n).into(), None, v),
        Action::SetField { field: FieldId::IpTtl, value, mask: None, old: true } => {
            with_u32(out, 23, (*value as u32) << 24)
        }
        Action::SetField { field, value, mask, .. } => set_field(out, *field, *value, *mask, v),
        Action::SetTunnel { id, .. } if v >= Version::Of12 => {
            set_field(out, FieldId::TunId, (*id).into(), None, v);
        }
        Action::Load { value, dst } if v < Version::Of15 && oxm::is_loadable(dst.field) => {
            nicira::load(out, *value, dst)
        }
        Action::Load { value, dst } => {
            set_field(out, dst.field, u128::from(*value) << dst.ofs, Some(ones(dst.n_bits) << dst.ofs), v);
        }
        Action::Move { src, dst } if v >= Version::Of15 => {
            out.p16(28);
            out.p16(0);
            out.p16(src.n_bits as u16);
            out.p16(src.ofs as u16);
            out.p16(dst.ofs as u16);
            out.zeros(2);
            oxm::put_header(out, src.field);
            oxm::put_header(out, dst.field);
            out.pad8(start);
            out.patch_len(start + 2, start);
        }
        _ => nicira::encode(out, a, v),
    }
}

/// Sets some of a field's bits. OpenFlow 1.5 has masks for that; before, whole fields are set so, and parts of them
/// loaded.
fn set_field(out: &mut Vec<u8>, field: FieldId, value: u128, mask: Option<u128>, v: Version) {
    if v == Version::Of11 {
        return of11::set_field(out, field, value, mask.unwrap_or(field.full_mask()));
    }
    let mask = oxm::clip(field, mask);
    let (Some(mask), true) = (mask, v < Version::Of15 && oxm::is_loadable(field)) else {
        let start = out.len();
        if v < Version::Of15 && mask.is_some() {
            return nicira::set_field(out, field, value, mask);
        }
        out.p16(25);
        out.p16(0);
        oxm::put(out, field, value, mask);
        out.pad8(start);
        out.patch_len(start + 2, start);
        return;
    };
    loads(out, field, value, mask);
}

/// Loads parts of a field, each run of bits by itself.
pub(super) fn loads(out: &mut Vec<u8>, field: FieldId, value: u128, mask: u128) {
    let mut left = mask & field.full_mask();
    while left != 0 {
        let ofs = left.trailing_zeros();
        let n_bits = (left >> ofs).trailing_ones().min(64);
        left &= !(ones(n_bits) << ofs);
        let part = (value >> ofs & ones(n_bits)) as u64;
        // A run up to the last bit that there is goes as far as the field does on the wire (`ARP_OP`).
        let beyond = if ofs + n_bits == field.bits() { Subfield::width(field).saturating_sub(field.bits()) } else { 0 };
        nicira::load(out, part, &Subfield { field, ofs, n_bits: n_bits + beyond });
    }
}

/// Decodes actions until the end.
///
/// # Errors
/// OFPET_BAD_ACTION or OFPET_BAD_MATCH, naming the action.
pub fn decode_actions(buf: &[u8], v: Version) -> std::result::Result<Vec<Action>, DecodeError> {
    decode_nested(buf, v, 0)
}

/// How deep actions may be nested: a message of 64 kB could hold thousands, and the stack is finite.
const DEEPEST: usize = 50;

/// As [`decode_actions`], within `depth` other actions.
pub(super) fn decode_nested(buf: &[u8], v: Version, depth: usize) -> Result<Vec<Action>> {
    if depth > DEEPEST {
        return Err(DecodeError::argument("actions are nested too deeply"));
    }
    let mut r = Reader::new(buf);
    let mut out = Vec::new();
    while !r.is_empty() {
        let kind = r.u16()?;
        let len = usize::from(r.u16()?);
        if len < 8 || !len.is_multiple_of(8) || len - 4 > r.len() {
            return Err(DecodeError::action_len(&format!("type {kind}")));
        }
        let body = r.sub(len - 4)?;
        match v {
            Version::Of10 => of10::decode(kind, body, depth, &mut out)?,
            _ => out.push(decode(kind, body, v, depth)?),
        }
    }
    Ok(out)
}

fn decode(kind: u16, mut r: Reader<'_>, v: Version, depth: usize) -> Result<Action> {
    if v == Version::Of11
        && let Some(a) = of11::decode(kind, &mut r)?
    {
        return Ok(a);
    }
    // Bytes behind its type and length.
    let size = match kind {
        0 => Some(12),
        13..=24 | 29 => Some(4),
        _ => None,
    };
    if size.is_some_and(|n| n != r.len()) {
        return Err(DecodeError::action_len(&format!("type {kind}")));
    }
    Ok(match kind {
        0 => {
            let p = r.u32()?;
            let port = PortNo::from_u32(p).ok_or_else(|| {
                DecodeError::new(OfError::ActionBadOutPort, format!("output port {p:#x} is out of range"))
            })?;
            Action::Output { port, max_len: r.u16()? }
        }
        17 => {
            let t = r.u16()?;
            if t != 0x8100 && t != 0x88a8 {
                return Err(DecodeError::argument(format!("push_vlan with EtherType {t:#06x}")));
            }
            Action::PushVlan(t)
        }
        18 => Action::PopVlan,
        13 if v == Version::Of11 => nicira::label(r.u32()?)?,
        14 if v == Version::Of11 => nicira::traffic_class(r.u8()?)?,
        15 => Action::Mpls(MplsAction::SetTtl(r.u8()?)),
        16 => Action::Mpls(MplsAction::DecTtl),
        19 => nicira::push_mpls(r.u16()?)?,
        20 => Action::Mpls(MplsAction::Pop(r.u16()?)),
        21 => Action::SetQueue(r.u32()?),
        22 => Action::Group(GroupId(r.u32()?)),
        23 => Action::set_old(crate::FieldId::IpTtl, u128::from(r.u8()?)),
        24 => Action::DecTtl(None),
        25 if v >= Version::Of12 => {
            let (field, value, mask) = oxm::pull(&mut r).map_err(|e| match e.error {
                OfError::MatchBadField => DecodeError { error: OfError::ActionBadSetLength, ..e },
                _ => e,
            })?;
            if value & !field.full_mask() != 0 {
                return Err(DecodeError::new(
                    OfError::ActionBadSetArgument,
                    format!("value of {} is too large", field.def().name),
                ));
            }
            Action::SetField { field, value, mask: oxm::clip(field, mask), old: false }
        }
        28 if v >= Version::Of15 => {
            let n = u32::from(r.u16()?);
            let (so, d_o) = (u32::from(r.u16()?), u32::from(r.u16()?));
            r.skip(2)?;
            let (src, dst) = (oxm::pull_header(&mut r)?, oxm::pull_header(&mut r)?);
            Action::Move { src: oxm::part(src, so, n)?, dst: oxm::part(dst, d_o, n)? }
        }
        29 if v >= Version::Of15 => Action::Meter(MeterId(r.u32()?)),
        0xffff => {
            let vendor = r.u32()?;
            if vendor == ONF_VENDOR && v < Version::Of15 {
                return onf_copy_field(r);
            }
            if vendor != NX_VENDOR && vendor != ONF_VENDOR {
                return Err(DecodeError::new(
                    OfError::ActionBadExperimenter,
                    format!("experimenter {vendor:#x} is not supported"),
                ));
            }
            let subtype = r.u16()?;
            // What OpenFlow 1.5 has actions of its own for: move, load, masked set_field, copy_field.
            if vendor == ONF_VENDOR || v >= Version::Of15 && matches!(subtype, 6 | 7 | 33) {
                return Err(DecodeError::vendor_action(vendor, subtype));
            }
            nicira::decode(subtype, r, v, depth)?
        }
        _ => return Err(DecodeError::action_type(kind)),
    })
}

/// The copy-field extension of OpenFlow 1.3 (ONF EXT-320).
fn onf_copy_field(mut r: Reader<'_>) -> Result<Action> {
    let kind = r.u16()?;
    if kind != 3200 {
        return Err(DecodeError::vendor_action(ONF_VENDOR, kind));
    }
    r.skip(2)?;
    let n = u32::from(r.u16()?);
    let (so, d_o) = (u32::from(r.u16()?), u32::from(r.u16()?));
    r.skip(2)?;
    let (src, dst) = (oxm::pull_header(&mut r)?, oxm::pull_header(&mut r)?);
    Ok(Action::Move { src: oxm::part(src, so, n)?, dst: oxm::part(dst, d_o, n)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_fields_are_loaded_as_wide_as_on_the_wire() {
        let full = |field: FieldId| (field, field.full_mask(), Subfield::full(field));
        let low = (FieldId::Reg0, 0xff, Subfield { field: FieldId::Reg0, ofs: 0, n_bits: 8 });
        for (field, mask, wanted) in [full(FieldId::ArpOp), full(FieldId::Reg0), low] {
            let mut out = Vec::new();
            loads(&mut out, field, 2, mask);
            let text: Vec<String> =
                decode_actions(&out, Version::Of10).unwrap().iter().map(Action::to_string).collect();
            assert_eq!(text, [format!("load:0x2->{wanted}")]);
        }
    }
}
