//! Nicira extension messages.

use super::{CtFlush, CtTuple, TlvMap, TlvTable, TlvTableMod};
use crate::OfError;
use crate::wire::{DecodeError, Put, Reader, Result};
use std::net::{IpAddr, Ipv6Addr};

fn put_maps(o: &mut Vec<u8>, maps: &[TlvMap]) {
    for m in maps {
        o.p16(m.class);
        o.p8(m.kind);
        o.p8(m.len);
        o.p16(m.index);
        o.zeros(2);
    }
}

fn pull_maps(mut r: Reader<'_>) -> Result<Vec<TlvMap>> {
    let mut v = Vec::new();
    while !r.is_empty() {
        v.push(TlvMap { class: r.u16()?, kind: r.u8()?, len: r.u8()?, index: r.u16()? });
        r.skip(2)?;
    }
    Ok(v)
}

pub(super) fn put_tlv_mod(o: &mut Vec<u8>, m: &TlvTableMod) {
    o.p16(m.command);
    o.zeros(6);
    put_maps(o, &m.maps);
}

pub(super) fn pull_tlv_mod(mut r: Reader<'_>) -> Result<TlvTableMod> {
    let command = r.u16()?;
    r.skip(6)?;
    Ok(TlvTableMod { command, maps: pull_maps(r)? })
}

pub(super) fn put_tlv_reply(o: &mut Vec<u8>, t: &TlvTable) {
    o.p32(t.max_option_space);
    o.p16(t.max_fields);
    o.zeros(10);
    put_maps(o, &t.maps);
}

pub(super) fn pull_tlv_reply(mut r: Reader<'_>) -> Result<TlvTable> {
    let (max_option_space, max_fields) = (r.u32()?, r.u16()?);
    r.skip(10)?;
    Ok(TlvTable { max_option_space, max_fields, maps: pull_maps(r)? })
}

fn prop(o: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let at = o.len();
    o.p16(kind);
    o.p16(0);
    body(o);
    o.patch_len(at + 2, at);
    o.pad8(at);
}

/// A property of 16 bits, whose length counts two bytes of padding.
fn prop16(o: &mut Vec<u8>, kind: u16, value: u16) {
    prop(o, kind, |o| {
        o.p16(value);
        o.zeros(2);
    });
}

fn v6(a: IpAddr) -> u128 {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped().into(),
        IpAddr::V6(a) => a.into(),
    }
}

fn put_tuple(o: &mut Vec<u8>, kind: u16, t: &CtTuple) {
    if *t == CtTuple::default() {
        return;
    }
    prop(o, kind, |o| {
        o.zeros(4);
        for (k, a) in [(0, t.src), (1, t.dst)] {
            if let Some(a) = a {
                prop(o, k, |o| o.p128(v6(a)));
            }
        }
        for (k, p) in [(2, t.src_port), (3, t.dst_port), (4, t.icmp_id)] {
            if let Some(p) = p {
                prop16(o, k, p);
            }
        }
        for (k, p) in [(5, t.icmp_type), (6, t.icmp_code)] {
            if let Some(p) = p {
                prop(o, k, |o| o.p8(p));
            }
        }
    });
}

pub(super) fn put_ct_flush(o: &mut Vec<u8>, f: &CtFlush) {
    o.p8(f.proto);
    o.zeros(7);
    put_tuple(o, 0, &f.original);
    put_tuple(o, 1, &f.reply);
    if let Some(z) = f.zone {
        prop16(o, 2, z);
    }
    if let Some((v, m)) = f.mark {
        prop(o, 3, |o| o.p32(v));
        // A mask of ones goes without saying.
        if m != u32::MAX {
            prop(o, 4, |o| o.p32(m));
        }
    }
    if let Some((v, m)) = f.label {
        prop(o, 5, |o| o.p128(v));
        if m != u128::MAX {
            prop(o, 6, |o| o.p128(m));
        }
    }
}

fn props<'a>(mut r: Reader<'a>, mut each: impl FnMut(u16, Reader<'a>) -> Result<()>) -> Result<()> {
    while r.len() >= 4 {
        let kind = r.u16()?;
        let len = usize::from(r.u16()?);
        let b = r.sub(len.checked_sub(4).ok_or_else(|| DecodeError::len("property"))?)?;
        r.skip_pad(len.next_multiple_of(8) - len);
        each(kind, b)?;
    }
    Ok(())
}

/// OFPBPC_BAD_TYPE.
fn unknown_prop(kind: u16) -> DecodeError {
    DecodeError::new(OfError::PropertyBadType, format!("NXT_CT_FLUSH: property {kind} is not supported"))
}

/// An address, IPv4 mapped into IPv6; zero is none.
fn pull_address(b: &mut Reader<'_>) -> Result<Option<IpAddr>> {
    let v = b.u128()?;
    let a = Ipv6Addr::from(v);
    Ok((v != 0).then(|| a.to_ipv4_mapped().map_or(IpAddr::V6(a), IpAddr::V4)))
}

fn pull_tuple(mut r: Reader<'_>) -> Result<CtTuple> {
    let mut t = CtTuple::default();
    r.skip(4)?;
    props(r, |kind, mut b| {
        match kind {
            0 => t.src = pull_address(&mut b)?,
            1 => t.dst = pull_address(&mut b)?,
            // As with addresses, port 0 is none.
            2 => t.src_port = Some(b.u16()?).filter(|p| *p != 0),
            3 => t.dst_port = Some(b.u16()?).filter(|p| *p != 0),
            4 => t.icmp_id = Some(b.u16()?),
            5 => t.icmp_type = Some(b.u8()?),
            6 => t.icmp_code = Some(b.u8()?),
            k => return Err(unknown_prop(k)),
        }
        Ok(())
    })?;
    if t.src.zip(t.dst).is_some_and(|(s, d)| s.is_ipv4() != d.is_ipv4()) {
        return Err(DecodeError::new(OfError::PropertyBadValue, "NXT_CT_FLUSH: IPv4 and IPv6 addresses in one tuple"));
    }
    // Open vSwitch gives ICMP's parts of both directions always; without an address they say nothing.
    if t.src.is_none() && t.dst.is_none() {
        (t.icmp_id, t.icmp_type, t.icmp_code) = (None, None, None);
    }
    Ok(t)
}

pub(super) fn pull_ct_flush(mut r: Reader<'_>) -> Result<CtFlush> {
    let mut f = CtFlush { proto: r.u8()?, ..Default::default() };
    r.skip(7)?;
    let (mut mark, mut label) = ((None, u32::MAX), (None, u128::MAX));
    props(r, |kind, mut b| {
        match kind {
            0 => f.original = pull_tuple(b)?,
            1 => f.reply = pull_tuple(b)?,
            2 => f.zone = Some(b.u16()?),
            3 => mark.0 = Some(b.u32()?),
            4 => mark.1 = b.u32()?,
            5 => label.0 = Some(b.u128()?),
            6 => label.1 = b.u128()?,
            k => return Err(unknown_prop(k)),
        }
        Ok(())
    })?;
    f.mark = mark.0.map(|v| (v, mark.1));
    f.label = label.0.map(|v| (v, label.1));
    Ok(f)
}
