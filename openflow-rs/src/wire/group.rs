//! Groups and meters on the wire.

use super::{DecodeError, NTR_OLD_VENDOR, NTR_VENDOR, Put, Reader, Result, actions, oxm};
use crate::OfError;
use crate::field::FieldId;
use crate::ids::{GroupId, MeterId};
use crate::message::Version;
use crate::mods::{
    Bucket, Group, GroupMod, GroupModCommand, GroupType, MeterBand, MeterConfig, MeterMod, MeterModCommand,
};
use crate::port::PortNo;

/// Whether buckets have numbers and properties: in OpenFlow 1.5, and in Nicira's groups for 1.0.
fn has_ids(v: Version) -> bool {
    v >= Version::Of15 || v == Version::Of10
}

fn put_bucket(out: &mut Vec<u8>, b: &Bucket, select: bool, v: Version) {
    let start = out.len();
    out.p16(0);
    if has_ids(v) {
        out.p16(0);
        out.p32(b.id);
        actions::encode_actions(out, &b.actions, v);
        out.patch_len(start + 2, start + 8);
        if select || b.weight != 0 {
            out.p16(0);
            out.p16(8);
            out.p16(b.weight);
            out.zeros(2);
        }
        if b.watch_port != PortNo::ANY {
            out.p16(1);
            out.p16(8);
            out.p32(b.watch_port.to_u32());
        }
        if b.watch_group != GroupId::ANY {
            out.p16(2);
            out.p16(8);
            out.p32(b.watch_group.0);
        }
    } else {
        out.p16(b.weight);
        out.p32(b.watch_port.to_u32());
        out.p32(b.watch_group.0);
        out.zeros(4);
        actions::encode_actions(out, &b.actions, v);
    }
    out.patch_len(start, start);
}

fn bad_bucket() -> DecodeError {
    DecodeError::new(OfError::GroupModBadBucket, "malformed bucket")
}

fn bad_property() -> DecodeError {
    DecodeError::new(OfError::PropertyBadLength, "a property's length")
}

fn pull_bucket(r: &mut Reader<'_>, index: u32, v: Version) -> Result<Bucket> {
    if r.len() < if has_ids(v) { 8 } else { 16 } {
        return Err(bad_bucket());
    }
    let len = usize::from(r.u16()?);
    let second = r.u16()?;
    if !has_ids(v) {
        let mut b = Bucket::new(index, second, Vec::new());
        b.watch_port = PortNo::from_u32(r.u32()?).unwrap_or(PortNo::ANY);
        b.watch_group = GroupId(r.u32()?);
        r.skip(4)?;
        let actions = r.take(len.checked_sub(16).ok_or_else(bad_bucket)?).map_err(|_| bad_bucket())?;
        b.actions = actions::decode_actions(actions, v)?;
        return Ok(b);
    }
    let mut b = Bucket::new(r.u32()?, 0, Vec::new());
    let mut body = r.sub(len.checked_sub(8).ok_or_else(bad_bucket)?).map_err(|_| bad_bucket())?;
    b.actions = actions::decode_actions(body.take(usize::from(second)).map_err(|_| bad_bucket())?, v)?;
    while body.len() >= 4 {
        let kind = body.u16()?;
        let plen = usize::from(body.u16()?);
        let mut p = body.sub(plen.checked_sub(4).ok_or_else(bad_property)?).map_err(|_| bad_property())?;
        body.skip_pad(plen.next_multiple_of(8) - plen);
        match kind {
            0 => b.weight = p.u16()?,
            1 => b.watch_port = PortNo::from_u32(p.u32()?).unwrap_or(PortNo::ANY),
            2 => b.watch_group = GroupId(p.u32()?),
            k => {
                return Err(DecodeError::new(
                    OfError::PropertyBadType,
                    format!("bucket property {k} is not supported"),
                ));
            }
        }
    }
    Ok(b)
}

fn put_selection(out: &mut Vec<u8>, g: &Group) {
    let s = &g.selection;
    if s.name.is_empty() {
        return;
    }
    let start = out.len();
    out.p16(0xffff);
    out.p16(0);
    out.p32(NTR_VENDOR);
    out.p32(1);
    out.zeros(4);
    let mut name = [0u8; 16];
    for (d, c) in name.iter_mut().zip(s.name.bytes().take(15)) {
        *d = c;
    }
    out.extend_from_slice(&name);
    out.p64(s.param);
    for (id, mask) in &s.fields {
        oxm::put(out, *id, *mask, None);
    }
    out.patch_len(start + 2, start);
    out.pad8(start);
}

fn pull_group_props(g: &mut Group, mut r: Reader<'_>) -> Result<()> {
    while r.len() >= 4 {
        let kind = r.u16()?;
        let len = usize::from(r.u16()?);
        let mut p = r.sub(len.checked_sub(4).ok_or_else(bad_property)?).map_err(|_| bad_property())?;
        r.skip_pad(len.next_multiple_of(8) - len);
        if kind != 0xffff || ![NTR_VENDOR, NTR_OLD_VENDOR].contains(&p.u32()?) || p.u32()? != 1 {
            return Err(DecodeError::new(
                OfError::PropertyBadType,
                format!("group {} property {kind} is not supported", g.id),
            ));
        }
        p.skip(4)?;
        let name = p.take(16)?;
        g.selection.name = name.iter().take_while(|b| **b != 0).map(|b| char::from(*b)).collect();
        if !matches!(g.selection.name.as_str(), "hash" | "dp_hash") {
            return Err(DecodeError::new(
                OfError::PropertyBadValue,
                format!("group {}: selection_method {}", g.id, g.selection.name),
            ));
        }
        g.selection.param = p.u64()?;
        while p.len() >= 4 {
            let (id, v, _) = oxm::pull(&mut p)?;
            let id = if id == FieldId::InPortOxm { FieldId::InPort } else { id };
            g.selection.fields.push((id, v & id.full_mask()));
        }
    }
    Ok(())
}

fn put_buckets(out: &mut Vec<u8>, g: &Group, v: Version) {
    for b in &g.buckets {
        put_bucket(out, b, g.group_type == GroupType::Select, v);
    }
}

fn pull_buckets(g: &mut Group, mut r: Reader<'_>, v: Version) -> Result<()> {
    while !r.is_empty() {
        let i = g.buckets.len() as u32;
        g.buckets.push(pull_bucket(&mut r, i, v)?);
    }
    Ok(())
}

pub(crate) fn put_group_mod(out: &mut Vec<u8>, m: &GroupMod, v: Version) {
    out.p16(m.command as u16);
    out.p8(m.group.group_type as u8);
    out.p8(0);
    out.p32(m.group.id.0);
    if has_ids(v) {
        let at = out.len();
        out.p32(0);
        out.p32(m.command_bucket_id);
        let start = out.len();
        put_buckets(out, &m.group, v);
        out.patch_len(at, start);
        put_selection(out, &m.group);
    } else {
        put_buckets(out, &m.group, v);
    }
}

fn group_type(t: u8) -> Result<GroupType> {
    GroupType::from_u8(t).ok_or_else(|| DecodeError::new(OfError::GroupModBadType, format!("group type {t}")))
}

pub(crate) fn pull_group_mod(mut r: Reader<'_>, v: Version) -> Result<GroupMod> {
    let (command, kind) = (r.u16()?, r.u8()?);
    let mut group = Group::default();
    r.skip(1)?;
    group.id = GroupId(r.u32()?);
    let mut command_bucket_id = 0xffff_ffff;
    if has_ids(v) {
        let n = usize::from(r.u16()?);
        r.skip(2)?;
        command_bucket_id = r.u32()?;
        // Which bucket others come behind, or goes; else it says all.
        if (command_bucket_id == 0xffff_ffff) == (command == 3) && command != 5 {
            return Err(bad_bucket());
        }
        pull_buckets(&mut group, r.sub(n)?, v)?;
        pull_group_props(&mut group, r)?;
    } else {
        pull_buckets(&mut group, r, v)?;
    }
    let command = match command {
        0 => GroupModCommand::Add,
        1 => GroupModCommand::Modify,
        2 => GroupModCommand::Delete,
        3 => GroupModCommand::InsertBucket,
        5 => GroupModCommand::RemoveBucket,
        0x8000 => GroupModCommand::AddOrModify,
        c => return Err(DecodeError::new(OfError::GroupModBadCommand, format!("group-mod command {c}"))),
    };
    group.group_type = group_type(kind)?;
    let weighs = group.buckets.iter().any(|b| b.weight != 0);
    if !has_ids(v) && group.group_type != GroupType::Select && weighs {
        return Err(DecodeError::new(
            OfError::GroupModInvalidGroup,
            format!("group {}: only buckets of select groups have weights", group.id),
        ));
    }
    Ok(GroupMod { command, group, command_bucket_id })
}

/// One entry of a group description reply.
pub(crate) fn put_group_desc(out: &mut Vec<u8>, g: &Group, v: Version) {
    let start = out.len();
    out.p16(0);
    out.p8(g.group_type as u8);
    out.p8(0);
    out.p32(g.id.0);
    if has_ids(v) {
        let at = out.len();
        out.p64(0);
        let b = out.len();
        put_buckets(out, g, v);
        out.patch_len(at, b);
        put_selection(out, g);
    } else {
        put_buckets(out, g, v);
    }
    out.patch_len(start, start);
}

pub(crate) fn pull_group_desc(r: &mut Reader<'_>, v: Version) -> Result<Group> {
    let len = usize::from(r.u16()?);
    let mut b = r.sub(len.checked_sub(2).ok_or_else(bad_bucket)?)?;
    let mut g = Group { group_type: group_type(b.u8()?)?, ..Default::default() };
    b.skip(1)?;
    g.id = GroupId(b.u32()?);
    if has_ids(v) {
        let n = usize::from(b.u16()?);
        b.skip(6)?;
        pull_buckets(&mut g, b.sub(n)?, v)?;
        pull_group_props(&mut g, b)?;
    } else {
        pull_buckets(&mut g, b, v)?;
    }
    Ok(g)
}

fn put_bands(out: &mut Vec<u8>, bands: &[MeterBand]) {
    for b in bands {
        out.p16(b.band_type);
        out.p16(16);
        out.p32(b.rate);
        out.p32(b.burst);
        out.p8(b.prec_level);
        out.zeros(3);
    }
}

fn pull_bands(mut r: Reader<'_>) -> Result<Vec<MeterBand>> {
    let mut v = Vec::new();
    while !r.is_empty() {
        if r.len() < 16 {
            return Err(DecodeError::len("meter band"));
        }
        let band_type = r.u16()?;
        if !(1..=2).contains(&band_type) {
            return Err(DecodeError::new(
                OfError::MeterModBadBand,
                format!("there are no meter bands of type {band_type}"),
            ));
        }
        if r.u16()? != 16 {
            return Err(DecodeError::len("meter band"));
        }
        let mut b = r.sub(12)?;
        v.push(MeterBand { band_type, rate: b.u32()?, burst: b.u32()?, prec_level: b.u8()? });
    }
    Ok(v)
}

pub(crate) fn put_meter_mod(out: &mut Vec<u8>, m: &MeterMod) {
    out.p16(m.command as u16);
    out.p16(m.meter.flags);
    out.p32(m.meter.id.0);
    put_bands(out, &m.meter.bands);
}

pub(crate) fn pull_meter_mod(mut r: Reader<'_>) -> Result<MeterMod> {
    let command = match r.u16()? {
        0 => MeterModCommand::Add,
        1 => MeterModCommand::Modify,
        2 => MeterModCommand::Delete,
        c => return Err(DecodeError::new(OfError::MeterModBadCommand, format!("meter-mod command {c}"))),
    };
    let flags = r.u16()?;
    let id = r.u32()?;
    // What goes needs none.
    let bands = if command == MeterModCommand::Delete { Vec::new() } else { pull_bands(r)? };
    Ok(MeterMod { command, meter: MeterConfig { id: MeterId(id), flags, bands } })
}

pub(crate) fn put_meter_config(out: &mut Vec<u8>, m: &MeterConfig) {
    out.p16(8 + 16 * m.bands.len() as u16);
    out.p16(m.flags);
    out.p32(m.id.0);
    put_bands(out, &m.bands);
}

pub(crate) fn pull_meter_config(r: &mut Reader<'_>) -> Result<MeterConfig> {
    let len = usize::from(r.u16()?);
    let flags = r.u16()?;
    let id = r.u32()?;
    let body = r.sub(len.checked_sub(8).ok_or_else(|| DecodeError::len("meter config"))?)?;
    Ok(MeterConfig { id: MeterId(id), flags, bands: pull_bands(body)? })
}
