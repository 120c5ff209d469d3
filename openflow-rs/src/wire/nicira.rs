//! Nicira extension actions. Each is `ffff`, length, vendor, subtype, body, padded to eight bytes.

use super::actions::{decode_nested, encode_actions};
use super::{DecodeError, NX_VENDOR, Put, Reader, Result, encap, learn, oxm};
use crate::action::{
    Action, BundleAction, BundleAlgorithm, ControllerAction, CtAction, DebugAction, HashFields, MplsAction,
    MultipathAction, MultipathAlgorithm, NatSpec, PacketInReason, SampleAction, SampleDirection, SampleId, ZoneSpec,
    is_mpls,
};
use crate::field::{FieldId, Subfield, ones};
use crate::ids::{MeterId, TableId};
use crate::message::Version;
use crate::port::PortNo;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Appends one action: `body` writes what follows the subtype.
pub(super) fn nx(out: &mut Vec<u8>, subtype: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.p16(0xffff);
    out.p16(0);
    out.p32(NX_VENDOR);
    out.p16(subtype);
    body(out);
    out.pad8(start);
    out.patch_len(start + 2, start);
}

/// NXAST_REG_LOAD.
pub(super) fn load(out: &mut Vec<u8>, value: u64, dst: &Subfield) {
    nx(out, 7, |o| {
        o.p16(oxm::ofs_nbits(dst));
        o.p32(oxm::nxm_header(dst.field));
        o.p64(value);
    });
}

/// NXAST_REG_LOAD2.
pub(super) fn set_field(out: &mut Vec<u8>, field: FieldId, value: u128, mask: Option<u128>) {
    // The field follows the subtype at once.
    nx(out, 33, |o| oxm::put(o, field, value, mask));
}

pub(super) fn encode(out: &mut Vec<u8>, a: &Action, v: Version) {
    match a {
        Action::Resubmit { port, table, ct } => nx(out, if *ct { 44 } else { 14 }, |o| {
            o.p16(port.0);
            o.p8(table.0);
        }),
        Action::Push(f) | Action::Pop(f) => nx(out, if matches!(a, Action::Push(_)) { 27 } else { 28 }, |o| {
            o.p16(f.ofs as u16);
            oxm::put_nxm_header(o, f.field);
            o.p16(f.n_bits as u16);
        }),
        Action::Move { src, dst } => nx(out, 6, |o| {
            o.p16(src.n_bits as u16);
            o.p16(src.ofs as u16);
            o.p16(dst.ofs as u16);
            oxm::put_header(o, src.field);
            oxm::put_header(o, dst.field);
        }),
        Action::OutputReg { src, max_len } if oxm::is_experimenters(src.field) => nx(out, 32, |o| {
            o.p16(oxm::ofs_nbits(src));
            o.p16(*max_len);
            oxm::put_header(o, src.field);
        }),
        Action::OutputReg { src, max_len } => nx(out, 15, |o| {
            o.p16(oxm::ofs_nbits(src));
            o.p32(oxm::nxm_header(src.field));
            o.p16(*max_len);
            o.zeros(6);
        }),
        Action::OutputTrunc { port, max_len } => nx(out, 39, |o| {
            o.p16(port.0);
            o.p32(*max_len);
        }),
        Action::DecTtl(ids) => nx(out, 21, |o| {
            let ids = ids.as_deref().unwrap_or(&[0]);
            o.p16(ids.len() as u16);
            o.zeros(4);
            ids.iter().for_each(|i| o.p16(*i));
        }),
        Action::Controller(c) => controller(out, c),
        Action::Clone(list) => nx(out, 42, |o| {
            o.zeros(6);
            encode_actions(o, list, v);
        }),
        Action::Ct(c) => ct(out, c, v),
        Action::Nat(n) => nat(out, n),
        Action::CtClear => nx(out, 43, |_| {}),
        Action::Learn(l) => learn::encode(out, l),
        Action::Conjunction { id, clause, n_clauses } => nx(out, 34, |o| {
            o.p8(*clause);
            o.p8(*n_clauses);
            o.p32(*id);
        }),
        Action::CheckPktLarger { len, dst } => nx(out, 49, |o| {
            o.p16(*len);
            o.p16(dst.ofs as u16);
            o.p32(oxm::nxm_header(dst.field));
        }),
        Action::Sample(x) => sample(out, x),
        Action::Bundle(b) => bundle(out, b),
        Action::Multipath(m) => multipath(out, m),
        Action::Note(b) => nx(out, 8, |o| o.extend_from_slice(b)),
        Action::FinTimeout { idle, hard } => nx(out, 19, |o| {
            o.p16(*idle);
            o.p16(*hard);
        }),
        Action::Exit => nx(out, 17, |_| {}),
        Action::Debug(DebugAction::Slow) => nx(out, 254, |_| {}),
        Action::Debug(DebugAction::Recirc) => nx(out, 255, |_| {}),
        Action::Mpls(m) => mpls(out, *m),
        Action::Encap(e) => encap::put_encap(out, e),
        Action::Decap(becomes) => encap::put_decap(out, *becomes),
        Action::DecNshTtl => nx(out, 48, |_| {}),
        Action::PopQueue => nx(out, 5, |_| {}),
        Action::DeleteField(id) => nx(out, 50, |o| {
            o.p32(oxm::nxm_header(*id));
            o.zeros(10);
        }),
        // Newer versions set the field.
        Action::SetTunnel { id, wide } => match u32::try_from(*id) {
            Ok(id) if !wide => nx(out, 2, |o| {
                o.zeros(2);
                o.p32(id);
            }),
            _ => nx(out, 9, |o| {
                o.zeros(6);
                o.p64(*id);
            }),
        },
        // Encoded by the caller, as instructions or as standard actions.
        Action::Meter(_)
        | Action::SetField { .. }
        | Action::Load { .. }
        | Action::ClearActions
        | Action::WriteActions(_)
        | Action::WriteMetadata { .. }
        | Action::GotoTable(_)
        | Action::Output { .. }
        | Action::Group(_)
        | Action::SetQueue(_)
        | Action::PushVlan(_)
        | Action::PopVlan => {}
    }
}

fn mpls(out: &mut Vec<u8>, m: MplsAction) {
    match m {
        MplsAction::Push(kind) => nx(out, 23, |o| o.p16(kind)),
        MplsAction::Pop(kind) => nx(out, 24, |o| o.p16(kind)),
        MplsAction::SetTtl(n) => nx(out, 25, |o| o.p8(n)),
        MplsAction::DecTtl => nx(out, 26, |_| {}),
        MplsAction::SetLabel(n) => nx(out, 30, |o| {
            o.zeros(2);
            o.p32(n);
        }),
        MplsAction::SetTc(n) => nx(out, 31, |o| o.p8(n)),
    }
}

/// What pushes a label says that the packet is one of MPLS.
pub(super) fn push_mpls(kind: u16) -> Result<Action> {
    if is_mpls(kind) {
        return Ok(Action::Mpls(MplsAction::Push(kind)));
    }
    Err(DecodeError::argument(format!("push_mpls with EtherType {kind:#06x}")))
}

pub(super) fn label(n: u32) -> Result<Action> {
    if n < 1 << 20 {
        Ok(Action::Mpls(MplsAction::SetLabel(n)))
    } else {
        Err(DecodeError::argument(format!("label {n:#x}")))
    }
}

pub(super) fn traffic_class(n: u8) -> Result<Action> {
    if n < 8 {
        Ok(Action::Mpls(MplsAction::SetTc(n)))
    } else {
        Err(DecodeError::argument(format!("traffic class {n}")))
    }
}

fn controller(out: &mut Vec<u8>, c: &ControllerAction) {
    if c.userdata.is_empty() && !c.pause && c.meter_id.is_none() {
        nx(out, 20, |o| {
            o.p16(c.max_len);
            o.p16(c.id);
            o.p8(c.reason as u8);
            o.p8(0);
        });
        return;
    }
    nx(out, 37, |o| {
        o.zeros(6);
        let mut prop = |kind: u16, body: &[u8]| {
            let at = o.len();
            o.p16(kind);
            o.p16(4 + body.len() as u16);
            o.extend_from_slice(body);
            o.pad8(at);
        };
        if c.max_len != 0xffff {
            prop(0, &c.max_len.to_be_bytes());
        }
        if c.id != 0 {
            prop(1, &c.id.to_be_bytes());
        }
        if c.reason != PacketInReason::Action {
            prop(2, &[c.reason as u8]);
        }
        if !c.userdata.is_empty() {
            prop(3, &c.userdata);
        }
        if c.pause {
            prop(4, &[]);
        }
        if let Some(m) = c.meter_id {
            prop(5, &m.0.to_be_bytes());
        }
    });
}

fn ct(out: &mut Vec<u8>, c: &CtAction, v: Version) {
    nx(out, 35, |o| {
        o.p16(u16::from(c.commit) | u16::from(c.force) << 1);
        match &c.zone {
            ZoneSpec::Imm(z) => {
                o.p32(0);
                o.p16(*z);
            }
            ZoneSpec::Field(f) => {
                o.p32(oxm::nxm_header(f.field));
                o.p16(oxm::ofs_nbits(f));
            }
        }
        o.p8(c.table.map_or(0xff, |t| t.0));
        o.zeros(3);
        o.p16(c.alg);
        if let Some(n) = &c.nat {
            nat(o, n);
        }
        encode_actions(o, &c.exec, v);
    });
}

fn nat(out: &mut Vec<u8>, n: &NatSpec) {
    let mut flags = 0u16;
    for (bit, on) in [n.src, n.dst, n.persistent, n.hash, n.random].into_iter().enumerate() {
        flags |= u16::from(on) << bit;
    }
    let mut present = 0u16;
    let mut body = Vec::new();
    match n.range.addr {
        Some((IpAddr::V4(lo), IpAddr::V4(hi))) => {
            present |= 1;
            body.p32(lo.into());
            if hi != lo {
                present |= 2;
                body.p32(hi.into());
            }
        }
        Some((IpAddr::V6(lo), IpAddr::V6(hi))) => {
            present |= 4;
            body.p128(lo.into());
            if hi != lo {
                present |= 8;
                body.p128(hi.into());
            }
        }
        _ => {}
    }
    if let Some((lo, hi)) = n.range.port {
        present |= 16;
        body.p16(lo);
        if hi != lo {
            present |= 32;
            body.p16(hi);
        }
    }
    nx(out, 36, |o| {
        o.zeros(2);
        o.p16(flags);
        o.p16(present);
        o.extend_from_slice(&body);
    });
}

fn sample(out: &mut Vec<u8>, x: &SampleAction) {
    let plain = x.sampling_port == PortNo::ANY && x.direction == SampleDirection::Default;
    let by_field = matches!(x.obs_domain_id, SampleId::Field(_)) || matches!(x.obs_point_id, SampleId::Field(_));
    let subtype = match (by_field, plain) {
        (true, _) => 51,
        (_, true) => 29,
        _ => 41,
    };
    nx(out, subtype, |o| {
        o.p16(x.probability);
        o.p32(x.collector_set_id);
        for i in [&x.obs_domain_id, &x.obs_point_id] {
            match i {
                SampleId::Imm(n) => {
                    if by_field {
                        o.p32(0);
                    }
                    o.p32(*n);
                }
                SampleId::Field(f) => {
                    o.p32(oxm::nxm_header(f.field));
                    o.p16(oxm::ofs_nbits(f));
                    o.p16(0);
                }
            }
        }
        if by_field || !plain {
            o.p16(x.sampling_port.0);
            o.p8(match x.direction {
                SampleDirection::Default => 0,
                SampleDirection::Ingress => 1,
                SampleDirection::Egress => 2,
            });
        }
    });
}

fn bundle(out: &mut Vec<u8>, b: &BundleAction) {
    nx(out, if b.dst.is_some() { 13 } else { 12 }, |o| {
        o.p16(match b.algorithm {
            BundleAlgorithm::ActiveBackup => 0,
            BundleAlgorithm::Hrw => 1,
        });
        o.p16(b.fields as u16);
        o.p16(b.basis);
        o.p32(oxm::nxm_header(FieldId::InPort));
        o.p16(b.members.len() as u16);
        match &b.dst {
            Some(d) => {
                o.p16(oxm::ofs_nbits(d));
                o.p32(oxm::nxm_header(d.field));
            }
            None => o.zeros(6),
        }
        o.zeros(4);
        b.members.iter().for_each(|p| o.p16(p.0));
    });
}

fn multipath(out: &mut Vec<u8>, m: &MultipathAction) {
    nx(out, 10, |o| {
        o.p16(m.fields as u16);
        o.p16(m.basis);
        o.zeros(2);
        o.p16(m.algorithm as u16);
        o.p16(m.links.saturating_sub(1) as u16);
        o.p32(m.arg);
        o.zeros(2);
        o.p16(oxm::ofs_nbits(&m.dst));
        o.p32(oxm::nxm_header(m.dst.field));
    });
}

fn decode_multipath(mut r: Reader<'_>) -> Result<Action> {
    let (fields, basis) = (hash_fields(r.u16()?)?, r.u16()?);
    r.skip(2)?;
    let n = r.u16()?;
    let algorithm = MultipathAlgorithm::ALL.iter().map(|(a, _)| *a).find(|a| *a as u16 == n);
    let algorithm = algorithm.ok_or_else(|| DecodeError::argument(format!("multipath algorithm {n}")))?;
    let (links, arg) = (u32::from(r.u16()?) + 1, r.u32()?);
    r.skip(2)?;
    let range = r.u16()?;
    let dst = oxm::from_ofs_nbits(r.u32()?, range)?;
    if dst.n_bits < 17 && links > 1 << dst.n_bits {
        return Err(DecodeError::argument(format!("multipath: {dst} has no room for {links} links")));
    }
    Ok(Action::Multipath(Box::new(MultipathAction { fields, basis, algorithm, links, arg, dst })))
}

fn hash_fields(n: u16) -> Result<HashFields> {
    let known = HashFields::ALL.iter().map(|(h, _)| *h).find(|h| *h as u16 == n);
    known.ok_or_else(|| DecodeError::argument(format!("there is no hash {n}")))
}

fn decode_controller2(mut r: Reader<'_>) -> Result<Action> {
    r.skip(6)?;
    let mut c = ControllerAction::default();
    while r.len() >= 4 {
        let kind = r.u16()?;
        let len = usize::from(r.u16()?);
        let mut body = r.sub(len.checked_sub(4).ok_or_else(|| DecodeError::action_len("controller property"))?)?;
        r.skip_pad(len.next_multiple_of(8) - len);
        match kind {
            0 => c.max_len = body.u16()?,
            1 => c.id = body.u16()?,
            2 => c.reason = PacketInReason::from_u8(body.u8()?).unwrap_or_default(),
            3 => c.userdata = body.buf.to_vec(),
            4 => c.pause = true,
            5 => c.meter_id = Some(MeterId(body.u32()?)),
            _ => return Err(DecodeError::argument(format!("controller property {kind} is not supported"))),
        }
    }
    Ok(Action::Controller(Box::new(c)))
}

fn decode_ct(mut r: Reader<'_>, v: Version, depth: usize) -> Result<Action> {
    let flags = r.u16()?;
    let zone_src = r.u32()?;
    let zone = r.u16()?;
    let table = r.u8()?;
    r.skip(3)?;
    let alg = r.u16()?;
    let mut c = CtAction {
        commit: flags & 1 != 0,
        force: flags & 2 != 0,
        table: (table != 0xff).then_some(TableId(table)),
        zone: if zone_src == 0 { ZoneSpec::Imm(zone) } else { ZoneSpec::Field(oxm::from_ofs_nbits(zone_src, zone)?) },
        nat: None,
        exec: Vec::new(),
        alg,
    };
    for a in decode_nested(r.buf, v, depth + 1)? {
        match a {
            Action::Nat(n) => c.nat = Some(*n),
            Action::SetField { .. } | Action::Load { .. } | Action::Move { .. } => c.exec.push(a),
            _ => return Err(DecodeError::argument("ct(exec()) takes set_field, load and move only")),
        }
    }
    Ok(Action::Ct(Box::new(c)))
}

fn decode_nat(mut r: Reader<'_>) -> Result<Action> {
    r.skip(2)?;
    let f = r.u16()?;
    let present = r.u16()?;
    let on = |bit: u16| f >> bit & 1 != 0;
    let mut n = NatSpec { src: on(0), dst: on(1), persistent: on(2), hash: on(3), random: on(4), ..Default::default() };
    if n.src && n.dst {
        return Err(DecodeError::argument("nat with both src and dst"));
    }
    if present & 1 != 0 {
        let lo = Ipv4Addr::from(r.u32()?);
        let hi = if present & 2 != 0 { Ipv4Addr::from(r.u32()?) } else { lo };
        n.range.addr = Some((lo.into(), hi.into()));
    }
    if present & 4 != 0 {
        let lo = Ipv6Addr::from(r.u128()?);
        let hi = if present & 8 != 0 { Ipv6Addr::from(r.u128()?) } else { lo };
        n.range.addr = Some((lo.into(), hi.into()));
    }
    if present & 16 != 0 {
        let lo = r.u16()?;
        let hi = if present & 32 != 0 { r.u16()? } else { lo };
        n.range.port = Some((lo, hi));
    }
    Ok(Action::Nat(Box::new(n)))
}

fn decode_sample(subtype: u16, mut r: Reader<'_>) -> Result<Action> {
    let probability = r.u16()?;
    let collector_set_id = r.u32()?;
    let mut id = || -> Result<SampleId> {
        let first = r.u32()?;
        if subtype != 51 {
            return Ok(SampleId::Imm(first));
        }
        let second = r.u32()?;
        Ok(if first == 0 {
            SampleId::Imm(second)
        } else {
            SampleId::Field(oxm::from_ofs_nbits(first, (second >> 16) as u16)?)
        })
    };
    let (obs_domain_id, obs_point_id) = (id()?, id()?);
    let sampling_port = if subtype == 29 { PortNo::ANY } else { PortNo(r.u16()?) };
    let direction = match if subtype >= 41 { r.u8()? } else { 0 } {
        1 => SampleDirection::Ingress,
        2 => SampleDirection::Egress,
        _ => SampleDirection::Default,
    };
    let x = SampleAction { probability, collector_set_id, obs_domain_id, obs_point_id, sampling_port, direction };
    Ok(Action::Sample(Box::new(x)))
}

fn decode_bundle(subtype: u16, mut r: Reader<'_>) -> Result<Action> {
    let algorithm = match r.u16()? {
        0 => BundleAlgorithm::ActiveBackup,
        1 => BundleAlgorithm::Hrw,
        a => return Err(DecodeError::argument(format!("bundle algorithm {a}"))),
    };
    let fields = hash_fields(r.u16()?)?;
    let basis = r.u16()?;
    r.skip(4)?;
    let n = r.u16()?;
    let range = r.u16()?;
    let header = r.u32()?;
    r.skip(4)?;
    let members = (0..n).map(|_| r.u16().map(PortNo)).collect::<Result<Vec<_>>>()?;
    let dst = if subtype == 13 { Some(oxm::from_ofs_nbits(header, range)?) } else { None };
    Ok(Action::Bundle(Box::new(BundleAction { fields, basis, algorithm, members, dst })))
}

pub(super) fn decode(subtype: u16, mut r: Reader<'_>, v: Version, depth: usize) -> Result<Action> {
    Ok(match subtype {
        1 => Action::Resubmit { port: PortNo(r.u16()?), table: TableId::CURRENT, ct: false },
        14 | 44 => Action::Resubmit { port: PortNo(r.u16()?), table: TableId(r.u8()?), ct: subtype == 44 },
        2 => {
            r.skip(2)?;
            Action::SetTunnel { id: r.u32()?.into(), wide: false }
        }
        9 => {
            r.skip(6)?;
            Action::SetTunnel { id: r.u64()?, wide: true }
        }
        5 => Action::PopQueue,
        6 => {
            let n = u32::from(r.u16()?);
            let (so, d_o) = (u32::from(r.u16()?), u32::from(r.u16()?));
            let (src, dst) = (oxm::pull_header(&mut r)?, oxm::pull_header(&mut r)?);
            Action::Move { src: oxm::part(src, so, n)?, dst: oxm::part(dst, d_o, n)? }
        }
        7 => {
            let range = r.u16()?;
            let h = r.u32()?;
            let value = r.u64()?;
            let dst = oxm::from_ofs_nbits(h, range)?;
            if u128::from(value) > ones(dst.n_bits) {
                return Err(DecodeError::argument("load: value does not fit"));
            }
            Action::Load { value, dst }
        }
        8 => Action::Note(r.buf.to_vec()),
        12 | 13 => decode_bundle(subtype, r)?,
        15 => {
            let range = r.u16()?;
            let h = r.u32()?;
            Action::OutputReg { src: oxm::from_ofs_nbits(h, range)?, max_len: r.u16()? }
        }
        32 => {
            let (range, max_len) = (r.u16()?, r.u16()?);
            let field = oxm::pull_header(&mut r)?;
            Action::OutputReg { src: oxm::part(field, u32::from(range >> 6), u32::from(range & 0x3f) + 1)?, max_len }
        }
        46 => encap::encap(r)?,
        47 => encap::decap(r)?,
        48 => Action::DecNshTtl,
        16 | 45 => learn::decode(subtype, r)?,
        17 => Action::Exit,
        10 => return decode_multipath(r),
        19 => Action::FinTimeout { idle: r.u16()?, hard: r.u16()? },
        20 => {
            let (max_len, id) = (r.u16()?, r.u16()?);
            let reason = PacketInReason::from_u8(r.u8()?).unwrap_or_default();
            Action::Controller(Box::new(ControllerAction { max_len, id, reason, ..Default::default() }))
        }
        21 => {
            let n = r.u16()?;
            r.skip(4)?;
            Action::DecTtl(Some((0..n).map(|_| r.u16()).collect::<Result<_>>()?))
        }
        23 => push_mpls(r.u16()?)?,
        24 => Action::Mpls(MplsAction::Pop(r.u16()?)),
        25 => Action::Mpls(MplsAction::SetTtl(r.u8()?)),
        26 => Action::Mpls(MplsAction::DecTtl),
        30 => {
            r.skip(2)?;
            label(r.u32()?)?
        }
        31 => traffic_class(r.u8()?)?,
        254 => Action::Debug(DebugAction::Slow),
        255 => Action::Debug(DebugAction::Recirc),
        27 | 28 => {
            let ofs = u32::from(r.u16()?);
            let field = oxm::pull_header(&mut r)?;
            let f = oxm::part(field, ofs, u32::from(r.u16()?))?;
            if subtype == 27 { Action::Push(f) } else { Action::Pop(f) }
        }
        29 | 38 | 41 | 51 => decode_sample(subtype, r)?,
        33 => {
            let (field, value, mask) = oxm::pull(&mut r)?;
            Action::SetField { field, value, mask: oxm::clip(field, mask), old: false }
        }
        34 => Action::Conjunction { clause: r.u8()?, n_clauses: r.u8()?, id: r.u32()? },
        35 => decode_ct(r, v, depth)?,
        36 => decode_nat(r)?,
        37 => decode_controller2(r)?,
        39 => Action::OutputTrunc { port: PortNo(r.u16()?), max_len: r.u32()? },
        42 => {
            r.skip(6)?;
            Action::Clone(decode_nested(r.buf, v, depth + 1)?)
        }
        43 => Action::CtClear,
        49 => {
            let len = r.u16()?;
            let ofs = u32::from(r.u16()?);
            let h = r.u32()?;
            Action::CheckPktLarger { len, dst: oxm::subfield(h, ofs, 1)? }
        }
        50 => {
            let h = r.u32()?;
            Action::DeleteField(oxm::field_of(h).ok_or_else(|| DecodeError::field(h))?)
        }
        _ => return Err(DecodeError::vendor_action(NX_VENDOR, subtype)),
    })
}
