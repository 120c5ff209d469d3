//! The learn action on the wire: subtype 16, or 45 where it has a limit or a result.

use super::{DecodeError, NX_VENDOR, Put, Reader, Result, oxm};
use crate::FieldId;
use crate::action::{Action, LearnAction, LearnDst, LearnSpec, LearnSrc};
use crate::field::{Subfield, ones};
use crate::ids::TableId;

const SRC_IMMEDIATE: u16 = 1 << 13;
const DST_LOAD: u16 = 1 << 11;
const DST_OUTPUT: u16 = 2 << 11;

fn put_sub(out: &mut Vec<u8>, s: &Subfield) {
    out.p32(oxm::nxm_header(s.field));
    out.p16(s.ofs as u16);
}

fn put_spec(out: &mut Vec<u8>, s: &LearnSpec) {
    let n = match (&s.src, &s.dst) {
        (_, LearnDst::Match(d) | LearnDst::Load(d)) => d.n_bits,
        (LearnSrc::Field(f), LearnDst::Output) if f.field == FieldId::InPortOxm => PORT_BITS,
        (LearnSrc::Field(f), LearnDst::Output) => f.n_bits,
        (LearnSrc::Imm(_, n), LearnDst::Output) => *n,
    };
    let mut h = n as u16;
    if matches!(s.src, LearnSrc::Imm(..)) {
        h |= SRC_IMMEDIATE;
    }
    match s.dst {
        LearnDst::Match(_) => {}
        LearnDst::Load(_) => h |= DST_LOAD,
        LearnDst::Output => h |= DST_OUTPUT,
    }
    out.p16(h);
    match &s.src {
        LearnSrc::Imm(v, _) => out.uint(*v, 2 * (n as usize).div_ceil(16)),
        LearnSrc::Field(f) => put_sub(out, f),
    }
    if let LearnDst::Match(d) | LearnDst::Load(d) = &s.dst {
        put_sub(out, d);
    }
}

pub(super) fn encode(out: &mut Vec<u8>, l: &LearnAction) {
    let v2 = l.limit != 0 || l.result_dst.is_some();
    let start = out.len();
    out.p16(0xffff);
    out.p16(0);
    out.p32(NX_VENDOR);
    out.p16(if v2 { 45 } else { 16 });
    out.p16(l.idle_timeout);
    out.p16(l.hard_timeout);
    out.p16(l.priority);
    out.p64(l.cookie);
    out.p16(u16::from(l.send_flow_rem) | u16::from(l.delete_learned) << 1 | u16::from(l.result_dst.is_some()) << 2);
    out.p8(l.table.0);
    out.p8(0);
    out.p16(l.fin_idle_timeout);
    out.p16(l.fin_hard_timeout);
    if v2 {
        out.p32(l.limit);
        out.p16(l.result_dst.map_or(0, |d| d.ofs as u16));
        out.p16(0);
        if let Some(d) = &l.result_dst {
            out.p32(oxm::nxm_header(d.field));
        }
    }
    l.specs.iter().for_each(|s| put_spec(out, s));
    out.pad8(start);
    out.patch_len(start + 2, start);
}

fn sub(r: &mut Reader<'_>, n: u32) -> Result<Subfield> {
    let h = r.u32()?;
    let ofs = u32::from(r.u16()?);
    oxm::subfield(h, ofs, n)
}

/// Bits of a port's number from OpenFlow 1.1 on.
const PORT_BITS: u32 = 32;

/// All of such a number (OXM_OF_IN_PORT), of which the switch's ports take 16 bits, or 32 bits of another field.
fn port(r: &mut Reader<'_>) -> Result<Subfield> {
    let (h, ofs) = (r.u32()?, u32::from(r.u16()?));
    match h {
        oxm::IN_PORT if ofs == 0 => oxm::part(FieldId::InPortOxm, 0, 16),
        _ => oxm::subfield(h, ofs, PORT_BITS),
    }
}

pub(super) fn decode(subtype: u16, mut r: Reader<'_>) -> Result<Action> {
    let mut l = LearnAction {
        idle_timeout: r.u16()?,
        hard_timeout: r.u16()?,
        priority: r.u16()?,
        cookie: r.u64()?,
        ..Default::default()
    };
    let flags = r.u16()?;
    l.send_flow_rem = flags & 1 != 0;
    l.delete_learned = flags & 2 != 0;
    l.table = TableId(r.u8()?);
    r.skip(1)?;
    l.fin_idle_timeout = r.u16()?;
    l.fin_hard_timeout = r.u16()?;
    if l.table == TableId::ALL {
        return Err(DecodeError::argument("learn into table 255"));
    }
    if subtype == 45 {
        l.limit = r.u32()?;
        let ofs = u32::from(r.u16()?);
        r.skip(2)?;
        if flags & 4 != 0 {
            l.result_dst = Some(oxm::subfield(r.u32()?, ofs, 1)?);
        }
    }
    while r.len() >= 2 {
        let h = r.u16()?;
        if h == 0 {
            break;
        }
        let n = u32::from(h & 0x7ff);
        let output = h & (3 << 11) == DST_OUTPUT;
        let src = if output && n == PORT_BITS && h & SRC_IMMEDIATE == 0 {
            LearnSrc::Field(port(&mut r)?)
        } else if h & SRC_IMMEDIATE != 0 {
            let v = r.uint(2 * (n as usize).div_ceil(16))?;
            LearnSrc::Imm(v & ones(n), n)
        } else {
            LearnSrc::Field(sub(&mut r, n)?)
        };
        let dst = match h & (3 << 11) {
            0 => LearnDst::Match(sub(&mut r, n)?),
            DST_LOAD => LearnDst::Load(sub(&mut r, n)?),
            DST_OUTPUT => LearnDst::Output,
            _ => return Err(DecodeError::argument("learn: unknown destination")),
        };
        l.specs.push(LearnSpec { src, dst });
    }
    Ok(Action::Learn(Box::new(l)))
}
