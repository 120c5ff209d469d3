//! `encap` and `decap` on the wire (NXAST_ENCAP, NXAST_DECAP; ONF EXT-382).

use super::nicira::nx;
use super::{DecodeError, Put, Reader, Result};
use crate::OfError;
use crate::action::{Action, Encap, NshProperty, PacketType, is_mpls};

/// Class of properties of NSH, and their types.
const NSH: u16 = 4;
const MD_TYPE: u8 = 1;
const TLV: u8 = 2;

pub(super) fn put_encap(out: &mut Vec<u8>, e: &Encap) {
    nx(out, 46, |o| {
        o.p16(0);
        o.p32(e.packet_type().0);
        let Encap::Nsh(properties) = e else { return };
        for p in properties {
            put_property(o, p);
        }
    });
}

fn put_property(o: &mut Vec<u8>, p: &NshProperty) {
    o.p16(NSH);
    match p {
        NshProperty::MdType(n) => {
            o.p8(MD_TYPE);
            o.p8(5);
            o.p8(*n);
            o.zeros(3);
        }
        NshProperty::Tlv { class, kind, value } => {
            let padded = value.len().next_multiple_of(8);
            o.p8(TLV);
            o.p8((8 + padded) as u8);
            o.p16(*class);
            o.p8(*kind);
            o.p8(value.len() as u8);
            o.extend_from_slice(value);
            o.zeros(padded - value.len());
        }
    }
}

pub(super) fn put_decap(out: &mut Vec<u8>, becomes: PacketType) {
    nx(out, 47, |o| {
        o.zeros(2);
        o.p32(becomes.0);
    });
}

pub(super) fn encap(mut r: Reader<'_>) -> Result<Action> {
    // The header's size is a hint, which nobody gives.
    r.skip(2)?;
    let kind = PacketType(r.u32()?);
    let mut e = match kind.ethertype() {
        None if kind == PacketType::ETHERNET => Encap::Ethernet,
        Some(t) if is_mpls(t) => Encap::Mpls(t),
        Some(_) if kind == PacketType::NSH => Encap::Nsh(Vec::new()),
        _ => {
            let what = format!("encap of packet type ({},{:#x})", kind.namespace(), kind.kind());
            return Err(DecodeError::new(OfError::ActionBadHeaderType, what));
        }
    };
    while !r.is_empty() {
        let p = property(&mut r)?;
        match &mut e {
            Encap::Nsh(list) => list.push(p),
            _ => {
                return Err(DecodeError::new(OfError::ActionUnknownHeaderProperty, "NSH's property of another header"));
            }
        }
    }
    Ok(Action::Encap(e))
}

fn property(r: &mut Reader<'_>) -> Result<NshProperty> {
    let bad = |_| DecodeError::new(OfError::ActionBadHeaderProperty, "encap: a property of a wrong length");
    let (class, kind, len) = (r.u16().map_err(bad)?, r.u8().map_err(bad)?, usize::from(r.u8().map_err(bad)?));
    let wrong = || DecodeError::new(OfError::ActionBadHeaderProperty, format!("encap: a property of {len} bytes"));
    let body = len.checked_sub(4).ok_or_else(wrong)?;
    let mut b = r.sub(body).map_err(bad)?;
    r.skip_pad(len.next_multiple_of(8) - len);
    match (class, kind) {
        (NSH, MD_TYPE) if len <= 8 => match b.u8().map_err(bad)? {
            n @ 1..=2 => Ok(NshProperty::MdType(n)),
            _ => Err(wrong()),
        },
        (NSH, TLV) => {
            let (class, kind, n) = (b.u16().map_err(bad)?, b.u8().map_err(bad)?, usize::from(b.u8().map_err(bad)?));
            if b.len() != n.next_multiple_of(8) {
                return Err(wrong());
            }
            Ok(NshProperty::Tlv { class, kind, value: b.take(n).map_err(bad)?.to_vec() })
        }
        (NSH, MD_TYPE) => Err(wrong()),
        _ => {
            let what = format!("encap: property {kind} of class {class} is not known");
            Err(DecodeError::new(OfError::ActionUnknownHeaderProperty, what))
        }
    }
}

pub(super) fn decap(mut r: Reader<'_>) -> Result<Action> {
    if r.len() > 6 {
        return Err(DecodeError::new(OfError::ActionUnknownHeaderProperty, "decap has no properties"));
    }
    r.skip(2)?;
    Ok(Action::Decap(PacketType(r.u32()?)))
}
