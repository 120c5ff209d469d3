//! OXM and NXM type-length-values (OpenFlow 1.5 section 7.2.3).

use super::{DecodeError, ONF_VENDOR, Put, Reader, Result};
use crate::OfError;
use crate::field::{ALL_FIELDS, FieldId, Subfield, class_of_experimenter, experimenter, ones};
use crate::flow_match::Match;
use crate::port::PortNo;

/// Bytes of a field on the wire. Tunnel options are as long as their value needs, four at least,
/// as OVN maps them.
fn wire_len(id: FieldId, value: u128, mask: u128) -> usize {
    if is_tun_metadata(id) && (value | mask) >> 32 != 0 { 8 } else { (header(id) & 0xff) as usize }
}

/// Bytes that the value of a `set_field` has on the wire, without its mask.
pub fn value_len(id: FieldId, value: u128, mask: Option<u128>) -> usize {
    wire_len(id, value, mask.unwrap_or(0))
}

const fn is_tun_metadata(id: FieldId) -> bool {
    id as u8 >= FieldId::TunMetadata0 as u8 && id as u8 <= FieldId::TunMetadata7 as u8
}

const fn join(id: FieldId, (class, num): (u16, u8)) -> u32 {
    let len = if is_tun_metadata(id) { 4 } else { id.def().bytes };
    (class as u32) << 16 | (num as u32) << 9 | len as u32
}

/// The header of each field, in little room.
const HEADERS: [u32; ALL_FIELDS.len()] = {
    let mut all = [0; ALL_FIELDS.len()];
    let mut i = 0;
    while i < all.len() {
        let first = ALL_FIELDS[i].def().headers.first();
        all[i] = join(ALL_FIELDS[i], if let Some(first) = first { *first } else { (0, 0) });
        i += 1;
    }
    all
};

/// The 32-bit header of a field, as subfield references carry it.
pub fn header(id: FieldId) -> u32 {
    HEADERS[id as usize]
}

/// Whether a field has a length of its own and a header of 32 bits, so that parts of it can be loaded.
pub(crate) fn is_loadable(id: FieldId) -> bool {
    !is_tun_metadata(id) && !is_experimenters(id)
}

/// Whether a field has a header of 64 bits only.
pub(crate) fn is_experimenters(id: FieldId) -> bool {
    experimenter((header(id) >> 16) as u16).is_some()
}

/// Appends a field's header, of 64 bits where it is an experimenter's.
pub(crate) fn put_header(out: &mut Vec<u8>, id: FieldId) {
    put_any_header(out, header(id));
}

/// Names a field as table features do: with a mask's bit if it can have one.
pub(crate) fn put_id(out: &mut Vec<u8>, id: FieldId, has_mask: bool) {
    let h = header(id);
    put_any_header(out, if has_mask { masked(h) } else { h });
}

/// The header of a field that has a mask behind its value.
fn masked(header: u32) -> u32 {
    (header & !0x1ff) | 0x100 | ((header & 0xff) * 2)
}

/// The same with the Nicira header, where there is one.
pub(crate) fn put_nxm_header(out: &mut Vec<u8>, id: FieldId) {
    put_any_header(out, nxm_header(id));
}

fn put_any_header(out: &mut Vec<u8>, header: u32) {
    match experimenter((header >> 16) as u16) {
        None => out.p32(header),
        Some(owner) => {
            out.p32(0xffff_0000 | header & 0xffff);
            if let Some(len) = out.last_mut() {
                *len += 4;
            }
            out.p32(owner);
        }
    }
}

/// The field that a header of 32 or 64 bits names.
pub(crate) fn pull_header(r: &mut Reader<'_>) -> Result<FieldId> {
    let h = r.u32()?;
    let class = match h >> 16 {
        0xffff => match r.u32()? {
            ONF_VENDOR => Some(0x8000),
            other => class_of_experimenter(other),
        },
        class => Some(class as u16),
    };
    class.and_then(|c| FieldId::by_header(c, (h >> 9 & 0x7f) as u8)).ok_or_else(|| DecodeError::field(h))
}

/// The Nicira (NXM) header where there is one; Nicira's own actions carry it.
pub(crate) fn nxm_header(id: FieldId) -> u32 {
    let d = id.def();
    join(id, d.headers.iter().find(|h| h.0 < 2).or(d.headers.first()).copied().unwrap_or((0, 0)))
}

/// The field of a 32-bit header, ignoring its mask bit.
pub fn field_of(header: u32) -> Option<FieldId> {
    FieldId::by_header((header >> 16) as u16, (header >> 9 & 0x7f) as u8)
}

fn to_wire(id: FieldId, v: u128) -> u128 {
    if id == FieldId::InPortOxm || id == FieldId::ActsetOutput { u128::from(PortNo(v as u16).to_u32()) } else { v }
}

/// Appends one field; `mask` is `None` for all bits.
pub(crate) fn put(out: &mut Vec<u8>, id: FieldId, value: u128, mask: Option<u128>) {
    put_as(out, id, header(id), value, mask);
}

fn put_as(out: &mut Vec<u8>, id: FieldId, header: u32, value: u128, mask: Option<u128>) {
    let len = wire_len(id, value, mask.unwrap_or(0));
    let header = header & !0xff | len as u32;
    put_any_header(out, if mask.is_some() { masked(header) } else { header });
    out.uint(to_wire(id, value), len);
    if let Some(m) = mask {
        out.uint(m, len);
    }
}

/// Appends all fields of a match, without header or padding.
pub fn put_match(out: &mut Vec<u8>, m: &Match) {
    m.each_field(|id, v, mask| match id {
        FieldId::InPort => put(out, FieldId::InPortOxm, v, None),
        FieldId::VlanTci => {
            let vid = mask & 0x1fff;
            if vid == 0x1fff {
                put(out, FieldId::VlanVid, v & 0x1fff, None);
            } else if vid != 0 {
                put(out, FieldId::VlanVid, v & vid, Some(vid));
            }
            if v & 0x1fff != 0 && mask & 0xe000 != 0 {
                put(out, FieldId::VlanPcp, v >> 13, None);
            }
        }
        _ => put(out, id, v, (mask != id.full_mask()).then_some(mask)),
    });
}

/// Appends all fields of a match as OpenFlow 1.0's Nicira extension has them, without padding.
pub(crate) fn put_nxm_match(out: &mut Vec<u8>, m: &Match) {
    m.each_field(|id, v, mask| put_as(out, id, nxm_header(id), v, (mask != id.full_mask()).then_some(mask)));
}

/// One decoded field: id, value, and mask if the header had one.
pub(crate) fn pull(r: &mut Reader<'_>) -> Result<(FieldId, u128, Option<u128>)> {
    let mut class = r.u16()?;
    let fh = r.u8()?;
    let mut len = usize::from(r.u8()?);
    let header = u32::from(class) << 16 | u32::from(fh) << 8 | len as u32;
    let mut body = r.sub(len)?;
    if class == 0xffff {
        let owner = body.u32()?;
        // OpenFlow 1.3 extensions that later became basic fields of the same number.
        class = if owner == ONF_VENDOR { 0x8000 } else { class_of_experimenter(owner).unwrap_or(class) };
        len -= 4;
    }
    let id = FieldId::by_header(class, fh >> 1).ok_or_else(|| DecodeError::field(header))?;
    let masked = fh & 1 != 0;
    let n = if masked { len / 2 } else { len };
    let fits = if is_tun_metadata(id) { n <= 8 } else { n == id.def().bytes };
    if !fits || (masked && !len.is_multiple_of(2)) {
        return Err(DecodeError::new(OfError::MatchBadField, format!("field {} has length {len}", id.def().name)));
    }
    let mut v = body.uint(n)?;
    let mask = if masked { Some(body.uint(n)?) } else { None };
    if mask.is_some_and(|m| v & !m != 0) {
        let detail = format!("field {} has bits in its value that its mask leaves out", id.def().name);
        return Err(DecodeError::new(OfError::MatchBadWildcards, detail));
    }
    if matches!(id, FieldId::InPortOxm | FieldId::ActsetOutput) {
        let p = PortNo::from_u32(v as u32)
            .ok_or_else(|| DecodeError::new(OfError::MatchBadValue, format!("port {v:#x} is out of range")))?;
        v = u128::from(p.0);
    }
    Ok((id, v, mask))
}

/// Puts one decoded field into a match.
pub(crate) fn apply(m: &mut Match, id: FieldId, v: u128, mask: Option<u128>) -> Result<()> {
    let id = if id == FieldId::InPortOxm { FieldId::InPort } else { id };
    let full = id.full_mask();
    if id.is_link() && m.lacks_ethernet() || id == FieldId::PacketType && v != 0 && m.exact(FieldId::EthType).is_some()
    {
        return Err(DecodeError::new(
            OfError::MatchBadPrerequisite,
            format!("field {}: packets of that type have no Ethernet header", id.def().name),
        ));
    }
    if mask.is_some_and(|k| k & full != full) && !id.def().maskable {
        return Err(DecodeError::new(OfError::MatchBadMask, format!("field {} cannot be masked", id.def().name)));
    }
    if !m.satisfies(id.def().prereq) {
        return Err(DecodeError::new(
            OfError::MatchBadPrerequisite,
            format!("field {} lacks its prerequisite", id.def().name),
        ));
    }
    let mask = mask.map_or(full, |k| k & full);
    // Flags that have a meaning.
    let known = match id {
        FieldId::CtState => 0xff,
        FieldId::TunFlags => 1,
        _ => full,
    };
    let beyond = if id == FieldId::NwTos { v & 3 } else { v & !full };
    if v & mask & !known != 0 || beyond != 0 {
        return Err(DecodeError::new(OfError::MatchBadValue, format!("value of {} is too large", id.def().name)));
    }
    if mask == 0 {
        m.require(id);
    }
    m.set_masked(id, v, if id == FieldId::NwTos { 0xfc } else { mask });
    Ok(())
}

/// Decodes fields until the end. With `loose`, unknown fields and missing prerequisites are let pass (packet metadata).
///
/// # Errors
/// OFPET_BAD_MATCH.
pub fn decode_fields(buf: &[u8], loose: bool) -> std::result::Result<Match, DecodeError> {
    let mut r = Reader::new(buf);
    let mut m = Match::new();
    let mut seen = Vec::new();
    while !r.is_empty() {
        match pull(&mut r) {
            Ok((id, v, mask)) if loose => {
                let id = if id == FieldId::InPortOxm { FieldId::InPort } else { id };
                m.set_masked(id, v, mask.unwrap_or(id.full_mask()));
            }
            Ok((id, v, mask)) => {
                if seen.contains(&id) {
                    return Err(DecodeError::new(
                        OfError::MatchDuplicateField,
                        format!("field {} twice", id.def().name),
                    ));
                }
                seen.push(id);
                apply(&mut m, id, v, mask)?;
            }
            Err(e) if loose && e.numbers().0 == 4 => {}
            Err(e) => return Err(e),
        }
    }
    if !loose {
        m.leave_out_ethernet();
    }
    Ok(m)
}

/// Appends an `ofp_match` structure, padded.
pub(crate) fn put_ofp_match(out: &mut Vec<u8>, m: &Match) {
    let start = out.len();
    out.p16(1);
    out.p16(0);
    put_match(out, m);
    out.patch_len(start + 2, start);
    out.pad8(start);
}

/// Reads an `ofp_match` structure and its padding.
pub(crate) fn pull_ofp_match(r: &mut Reader<'_>, loose: bool) -> Result<Match> {
    let none = |_| DecodeError::new(OfError::MatchBadLength, "there is no match");
    let kind = r.u16().map_err(none)?;
    let len = usize::from(r.u16().map_err(none)?);
    if kind > 1 {
        return Err(DecodeError::new(
            OfError::MatchBadType,
            format!("match type {kind}: only OXM matches are supported"),
        ));
    }
    let bad_len = || DecodeError::new(OfError::MatchBadLength, format!("match of type {kind} has length {len}"));
    let fields = len.checked_sub(4).filter(|_| kind == 1).ok_or_else(bad_len)?;
    let m = decode_fields(r.take(fields).map_err(|_| bad_len())?, loose)?;
    r.skip(len.next_multiple_of(8) - len).map_err(|_| bad_len())?;
    Ok(m)
}

/// The header of OXM_OF_IN_PORT: class 0x8000, field 0, four bytes.
pub(crate) const IN_PORT: u32 = 0x8000_0004;

/// A subfield from a header and a bit range.
pub(crate) fn subfield(header: u32, ofs: u32, n_bits: u32) -> Result<Subfield> {
    part(field_of(header).ok_or_else(|| DecodeError::field(header))?, ofs, n_bits)
}

/// So many bits of a field.
pub(crate) fn part(field: FieldId, ofs: u32, n_bits: u32) -> Result<Subfield> {
    if n_bits == 0 || ofs.saturating_add(n_bits) > Subfield::width(field) {
        return Err(DecodeError::new(
            OfError::ActionBadSetLength,
            format!("bits {ofs}+{n_bits} lie outside {}", field.def().name),
        ));
    }
    Ok(Subfield { field, ofs, n_bits })
}

/// `ofs << 6 | n_bits - 1`, as Nicira actions pack a range.
pub(crate) fn ofs_nbits(s: &Subfield) -> u16 {
    (s.ofs << 6 | (s.n_bits - 1)) as u16
}

/// The range packed by [`ofs_nbits`].
pub(crate) fn from_ofs_nbits(header: u32, v: u16) -> Result<Subfield> {
    subfield(header, u32::from(v >> 6), u32::from(v & 0x3f) + 1)
}

/// Drops a mask that covers all bytes of the field, for `set_field`.
pub(crate) fn clip(id: FieldId, mask: Option<u128>) -> Option<u128> {
    let bytes = ones(id.def().bytes as u32 * 8);
    mask.filter(|m| *m & bytes != bytes)
}
