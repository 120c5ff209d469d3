//! Flow-mods, instructions, flow statistics.

use super::{DecodeError, Put, Reader, Result, actions, of10, of11, oxm};
use crate::OfError;
use crate::action::Action;
use crate::flow_match::Match;
use crate::ids::{GroupId, MeterId, TableId};
use crate::message::{FlowRemoved, FlowStats, FlowStatsRequest, Version};
use crate::mods::{FlowFlags, FlowMod, FlowModCommand};
use crate::port::PortNo;

/// A match as the version has it: OXM since 1.2.
pub(crate) fn put_match(out: &mut Vec<u8>, m: &Match, v: Version) {
    if v == Version::Of11 { of11::put_match(out, m) } else { oxm::put_ofp_match(out, m) }
}

fn pull_match(r: &mut Reader<'_>, loose: bool, v: Version) -> Result<Match> {
    // Open vSwitch sends OXM, which says more, in 1.1's statistics too.
    let own = v == Version::Of11 && r.buf.starts_with(&[0, 0]);
    if own { of11::pull_match(r) } else { oxm::pull_ofp_match(r, loose) }
}

/// The flags that a version has.
fn flags(v: Version) -> u16 {
    match v {
        Version::Of11 => FlowFlags::SEND_FLOW_REM | FlowFlags::CHECK_OVERLAP,
        Version::Of12 => FlowFlags::SEND_FLOW_REM | FlowFlags::CHECK_OVERLAP | FlowFlags::RESET_COUNTS,
        _ => u16::MAX,
    }
}

fn instruction_actions(out: &mut Vec<u8>, kind: u16, list: &[Action], v: Version) {
    let start = out.len();
    out.p16(kind);
    out.p16(0);
    out.zeros(4);
    actions::encode_actions(out, list, v);
    out.patch_len(start + 2, start);
}

fn is_apply(a: &Action, v: Version) -> bool {
    match a {
        Action::Meter(_) => v >= Version::Of15,
        Action::ClearActions | Action::WriteActions(_) | Action::WriteMetadata { .. } | Action::GotoTable(_) => false,
        _ => true,
    }
}

/// Appends the instructions of a flow, in the order of OpenFlow 1.5 section 5.5.
pub(crate) fn put_instructions(out: &mut Vec<u8>, list: &[Action], v: Version) {
    for a in list {
        // There are none before 1.3.
        if let (Action::Meter(m), true) = (a, (Version::Of13..Version::Of15).contains(&v)) {
            out.p16(6);
            out.p16(8);
            out.p32(m.0);
        }
    }
    if list.iter().all(|a| is_apply(a, v)) {
        if !list.is_empty() {
            instruction_actions(out, 4, list, v);
        }
        return;
    }
    let apply: Vec<Action> = list.iter().filter(|a| is_apply(a, v)).cloned().collect();
    if !apply.is_empty() {
        instruction_actions(out, 4, &apply, v);
    }
    for a in list {
        match a {
            Action::ClearActions => {
                out.p16(5);
                out.p16(8);
                out.zeros(4);
            }
            Action::WriteActions(w) => instruction_actions(out, 3, w, v),
            Action::WriteMetadata { value, mask } => {
                out.p16(2);
                out.p16(24);
                out.zeros(4);
                out.p64(*value);
                out.p64(*mask);
            }
            Action::GotoTable(t) => {
                out.p16(1);
                out.p16(8);
                out.p8(t.0);
                out.zeros(3);
            }
            _ => {}
        }
    }
}

/// Decodes instructions until the end into one list.
pub(crate) fn pull_instructions(mut r: Reader<'_>, v: Version) -> Result<Vec<Action>> {
    let mut slots: [Vec<Action>; 6] = Default::default();
    let mut seen = [false; 7];
    // All of them are looked at before any is read.
    let mut ahead = r;
    while !ahead.is_empty() {
        let (kind, len) = (ahead.u16()?, usize::from(ahead.u16()?));
        if len < 8 || !len.is_multiple_of(8) || len - 4 > ahead.len() {
            return Err(DecodeError::new(
                OfError::InstructionBadLength,
                format!("instruction {kind} has length {len}"),
            ));
        }
        ahead.skip(len - 4)?;
        if kind == 0xffff {
            return Err(DecodeError::new(
                OfError::InstructionBadExperimenter,
                "an experimenter's instruction is not supported",
            ));
        }
        let known = matches!(kind, 1..=5) || kind == 6 && (Version::Of13..=Version::Of14).contains(&v);
        if !known {
            return Err(DecodeError::new(OfError::InstructionUnknown, format!("instruction {kind} is not supported")));
        }
        if seen.get_mut(usize::from(kind)).is_some_and(|s| std::mem::replace(s, true)) {
            return Err(DecodeError::new(OfError::InstructionDuplicate, format!("instruction {kind} twice")));
        }
    }
    while !r.is_empty() {
        let kind = r.u16()?;
        let len = usize::from(r.u16()?);
        let bad_len =
            || DecodeError::new(OfError::InstructionBadLength, format!("instruction {kind} has length {len}"));
        let mut b = r.sub(len - 4)?;
        if matches!(kind, 2..=4) {
            b.skip(4)?;
        }
        let (slot, list) = match kind {
            1 | 5 | 6 if len != 8 => return Err(bad_len()),
            2 if len != 24 => return Err(bad_len()),
            1 => (5, vec![Action::GotoTable(TableId(b.u8()?))]),
            2 => (4, vec![Action::WriteMetadata { value: b.u64()?, mask: b.u64()? }]),
            3 => (3, vec![Action::WriteActions(actions::decode_actions(b.buf, v)?)]),
            4 => (1, actions::decode_actions(b.buf, v)?),
            5 => (2, vec![Action::ClearActions]),
            _ => (0, vec![Action::Meter(MeterId(b.u32()?))]),
        };
        if let Some(s) = slots.get_mut(slot) {
            *s = list;
        }
    }
    Ok(slots.into_iter().flatten().collect())
}

pub(crate) fn put_flow_mod(out: &mut Vec<u8>, f: &FlowMod, v: Version) {
    put_flow_mod_head(out, f, v);
    put_match(out, &f.matches, v);
    put_instructions(out, &f.actions, v);
}

/// What precedes the match: 40 octets.
pub(crate) fn put_flow_mod_head(out: &mut Vec<u8>, f: &FlowMod, v: Version) {
    out.p64(f.cookie);
    out.p64(f.cookie_mask);
    out.p8(f.table.0);
    out.p8(f.command as u8);
    out.p16(f.idle_timeout);
    out.p16(f.hard_timeout);
    out.p16(f.priority);
    out.p32(f.buffer_id);
    out.p32(f.out_port.to_u32());
    out.p32(f.out_group.0);
    out.p16(f.flags.0 & flags(v));
    out.p16(if v >= Version::Of14 { f.importance } else { 0 });
}

fn port(v: u32) -> Result<PortNo> {
    PortNo::from_u32(v)
        .ok_or_else(|| DecodeError::new(OfError::ActionBadOutPort, format!("port {v:#x} is out of range")))
}

pub(crate) fn pull_flow_mod(mut r: Reader<'_>, v: Version) -> Result<FlowMod> {
    let mut f = FlowMod { cookie: r.u64()?, cookie_mask: r.u64()?, table: TableId(r.u8()?), ..Default::default() };
    let c = r.u8()?;
    let command = FlowModCommand::from_u8(c);
    f.command = command.unwrap_or_default();
    f.idle_timeout = r.u16()?;
    f.hard_timeout = r.u16()?;
    f.priority = r.u16()?;
    f.buffer_id = r.u32()?;
    let p = r.u32()?;
    let g = r.u32()?;
    let deletes = matches!(f.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
    if deletes {
        f.out_port = port(p)?;
        f.out_group = GroupId(g);
    }
    f.flags = FlowFlags(r.u16()?);
    if f.flags.0 & !flags(v) != 0 {
        return Err(DecodeError::new(
            OfError::FlowModBadFlags,
            format!("flow-mod flags {:#x} are not supported", f.flags.0),
        ));
    }
    if v == Version::Of11 {
        // A flow that takes the place of another starts anew in this version, and what modifies no flow adds one,
        // unless it looks for a cookie.
        let anew = if f.command == FlowModCommand::Add { FlowFlags::RESET_COUNTS } else { 0 };
        f.flags = FlowFlags(f.flags.0 | anew);
        f.or_add = f.cookie_mask == 0 && matches!(f.command, FlowModCommand::Modify | FlowModCommand::ModifyStrict);
    }
    f.importance = r.u16()?;
    if v < Version::Of14 {
        f.importance = 0;
    }
    if f.command == FlowModCommand::Add {
        f.cookie_mask = 0;
    }
    f.matches = pull_match(&mut r, false, v)?;
    if command.is_none() {
        return Err(DecodeError::new(OfError::FlowModBadCommand, format!("flow-mod command {c}")));
    }
    // 1.1 has no word for all tables.
    if f.table == TableId::ALL && (!deletes || v == Version::Of11) {
        return Err(DecodeError::new(OfError::FlowModBadTable, "flow-mod for table 255; give a table below 255"));
    }
    f.actions = pull_instructions(r, v)?;
    if v == Version::Of11 {
        of10::name_ports(&mut f);
    }
    Ok(f)
}

/// OXS statistics (OpenFlow 1.5 section 7.2.4).
#[derive(Default)]
struct Oxs {
    duration: Option<(u32, u32)>,
    idle: Option<u32>,
    flows: Option<u32>,
    packets: u64,
    bytes: u64,
}

fn put_oxs(out: &mut Vec<u8>, s: &Oxs) {
    let start = out.len();
    out.p16(0);
    out.p16(0);
    let mut field = |num: u8, body: &[u8]| {
        out.p16(0x8002);
        out.p8(num << 1);
        out.p8(body.len() as u8);
        out.extend_from_slice(body);
    };
    let pair = |a: u32, b: u32| (u64::from(a) << 32 | u64::from(b)).to_be_bytes();
    if let Some((a, b)) = s.duration {
        field(0, &pair(a, b));
    }
    if let Some(i) = s.idle {
        field(1, &pair(i, 0));
    }
    if let Some(n) = s.flows {
        field(3, &n.to_be_bytes());
    }
    field(4, &s.packets.to_be_bytes());
    field(5, &s.bytes.to_be_bytes());
    out.patch_len(start + 2, start);
    out.pad8(start);
}

fn pull_oxs(r: &mut Reader<'_>) -> Result<Oxs> {
    let mut s = Oxs::default();
    r.skip(2)?;
    let len = usize::from(r.u16()?);
    let mut b = r.sub(len.checked_sub(4).ok_or_else(|| DecodeError::len("OXS statistics"))?)?;
    r.skip_pad(len.next_multiple_of(8) - len);
    while !b.is_empty() {
        let class = b.u16()?;
        let num = b.u8()? >> 1;
        let n = usize::from(b.u8()?);
        let mut f = b.sub(n)?;
        if class != 0x8002 {
            continue;
        }
        match num {
            0 => s.duration = Some((f.u32()?, f.u32()?)),
            1 => s.idle = Some(f.u32()?),
            3 => s.flows = Some(f.u32()?),
            4 => s.packets = f.u64()?,
            5 => s.bytes = f.u64()?,
            _ => {}
        }
    }
    Ok(s)
}

pub(crate) fn put_flow_stats(out: &mut Vec<u8>, s: &FlowStats, v: Version) {
    let f = &s.flow;
    let start = out.len();
    out.p16(0);
    if v >= Version::Of15 {
        out.zeros(2);
        out.p8(f.table.0);
        out.p8(0);
        out.p16(f.priority);
        out.p16(f.idle_timeout);
        out.p16(f.hard_timeout);
        out.p16(f.flags.0);
        out.p16(f.importance);
        out.p64(f.cookie);
        oxm::put_ofp_match(out, &f.matches);
        let duration = Some((s.duration_sec, s.duration_nsec));
        put_oxs(out, &Oxs { duration, idle: Some(s.idle_age), flows: None, packets: s.packets, bytes: s.bytes });
    } else {
        out.p8(f.table.0);
        out.p8(0);
        out.p32(s.duration_sec);
        out.p32(s.duration_nsec);
        out.p16(f.priority);
        out.p16(f.idle_timeout);
        out.p16(f.hard_timeout);
        out.p16(if v >= Version::Of13 { f.flags.0 } else { 0 });
        out.p16(if v >= Version::Of14 { f.importance } else { 0 });
        out.zeros(2);
        out.p64(f.cookie);
        out.p64(s.packets);
        out.p64(s.bytes);
        oxm::put_ofp_match(out, &f.matches);
    }
    put_instructions(out, &f.actions, v);
    out.patch_len(start, start);
}

/// `r` starts after the entry's length.
pub(crate) fn pull_flow_stats(mut r: Reader<'_>, v: Version) -> Result<FlowStats> {
    let mut s = FlowStats::default();
    let new = v >= Version::Of15;
    if new {
        r.skip(2)?;
    }
    s.flow.table = TableId(r.u8()?);
    r.skip(1)?;
    if !new {
        s.duration_sec = r.u32()?;
        s.duration_nsec = r.u32()?;
    }
    s.flow.priority = r.u16()?;
    s.flow.idle_timeout = r.u16()?;
    s.flow.hard_timeout = r.u16()?;
    s.flow.flags = FlowFlags(r.u16()?);
    s.flow.importance = r.u16()?;
    if !new {
        r.skip(2)?;
    }
    s.flow.cookie = r.u64()?;
    if !new {
        s.packets = r.u64()?;
        s.bytes = r.u64()?;
    }
    s.flow.matches = pull_match(&mut r, false, v)?;
    if new {
        let o = pull_oxs(&mut r)?;
        (s.duration_sec, s.duration_nsec) = o.duration.unwrap_or_default();
        s.idle_age = o.idle.unwrap_or(0);
        s.packets = o.packets;
        s.bytes = o.bytes;
    }
    s.flow.actions = pull_instructions(r, v)?;
    if v == Version::Of11 {
        of10::name_ports(&mut s.flow);
    }
    Ok(s)
}

pub(crate) fn put_stats_request(out: &mut Vec<u8>, q: &FlowStatsRequest, v: Version) {
    out.p8(q.table.0);
    out.zeros(3);
    out.p32(q.out_port.to_u32());
    out.p32(q.out_group.0);
    out.zeros(4);
    out.p64(q.cookie);
    out.p64(q.cookie_mask);
    put_match(out, &q.matches, v);
}

pub(crate) fn pull_stats_request(mut r: Reader<'_>, v: Version) -> Result<FlowStatsRequest> {
    let table = TableId(r.u8()?);
    r.skip(3)?;
    let out_port = port(r.u32()?)?;
    let out_group = r.u32()?;
    r.skip(4)?;
    let cookie = r.u64()?;
    let cookie_mask = r.u64()?;
    Ok(FlowStatsRequest {
        table,
        out_port,
        out_group: GroupId(out_group),
        cookie,
        cookie_mask,
        matches: pull_match(&mut r, false, v)?,
    })
}

/// Aggregate statistics: (packets, bytes, flows).
pub(crate) fn put_aggregate(out: &mut Vec<u8>, a: (u64, u64, u32), v: Version) {
    if v >= Version::Of15 {
        put_oxs(out, &Oxs { flows: Some(a.2), packets: a.0, bytes: a.1, ..Default::default() });
    } else {
        out.p64(a.0);
        out.p64(a.1);
        out.p32(a.2);
        out.zeros(4);
    }
}

pub(crate) fn pull_aggregate(mut r: Reader<'_>, v: Version) -> Result<(u64, u64, u32)> {
    if v >= Version::Of15 {
        let o = pull_oxs(&mut r)?;
        Ok((o.packets, o.bytes, o.flows.unwrap_or(0)))
    } else {
        Ok((r.u64()?, r.u64()?, r.u32()?))
    }
}

pub(crate) fn put_flow_removed(out: &mut Vec<u8>, m: &FlowRemoved, v: Version) {
    if v >= Version::Of15 {
        out.p8(m.table.0);
        out.p8(m.reason_in(v));
        out.p16(m.priority);
        out.p16(m.idle_timeout);
        out.p16(m.hard_timeout);
        out.p64(m.cookie);
        oxm::put_ofp_match(out, &m.matches);
        let duration = Some((m.duration_sec, m.duration_nsec));
        put_oxs(out, &Oxs { duration, packets: m.packets, bytes: m.bytes, ..Default::default() });
    } else {
        out.p64(m.cookie);
        out.p16(m.priority);
        out.p8(m.reason_in(v));
        out.p8(m.table.0);
        out.p32(m.duration_sec);
        out.p32(m.duration_nsec);
        out.p16(m.idle_timeout);
        out.p16(m.hard_timeout);
        out.p64(m.packets);
        out.p64(m.bytes);
        put_match(out, &m.matches, v);
    }
}

pub(crate) fn pull_flow_removed(mut r: Reader<'_>, v: Version) -> Result<FlowRemoved> {
    let mut m = FlowRemoved::default();
    if v >= Version::Of15 {
        m.table = TableId(r.u8()?);
        m.reason = r.u8()?;
        m.priority = r.u16()?;
        m.idle_timeout = r.u16()?;
        m.hard_timeout = r.u16()?;
        m.cookie = r.u64()?;
        m.matches = oxm::pull_ofp_match(&mut r, true)?;
        let o = pull_oxs(&mut r)?;
        (m.duration_sec, m.duration_nsec) = o.duration.unwrap_or_default();
        m.packets = o.packets;
        m.bytes = o.bytes;
    } else {
        m.cookie = r.u64()?;
        m.priority = r.u16()?;
        m.reason = r.u8()?;
        m.table = TableId(r.u8()?);
        m.duration_sec = r.u32()?;
        m.duration_nsec = r.u32()?;
        m.idle_timeout = r.u16()?;
        m.hard_timeout = r.u16()?;
        m.packets = r.u64()?;
        m.bytes = r.u64()?;
        m.matches = pull_match(&mut r, true, v)?;
    }
    Ok(m)
}
