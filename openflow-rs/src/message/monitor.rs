//! Flow monitors: Nicira's (NXST_FLOW_MONITOR, OpenFlow 1.0 to 1.2) and OpenFlow 1.4's (section 7.3.5.17), which are an
//! extension of the ONF in 1.3.

use super::Version;
use crate::OfError;
use crate::action::Action;
use crate::flow_match::Match;
use crate::ids::{GroupId, TableId};
use crate::mods::FlowMod;
use crate::port::PortNo;
use crate::wire::{
    DecodeError, NX_VENDOR, ONF_VENDOR, Put, Reader, Result, decode_actions, encode_actions, flow, of10, oxm,
};

/// What a monitor asks for; the bits are the same in both.
pub mod flags {
    /// The flows that are there.
    pub const INITIAL: u16 = 1;
    /// Flows that come.
    pub const ADD: u16 = 2;
    /// Flows that go.
    pub const DELETE: u16 = 4;
    /// Flows that change.
    pub const MODIFY: u16 = 8;
    /// With their actions.
    pub const ACTIONS: u16 = 16;
    /// In full, what the peer's own messages change.
    pub const OWN: u16 = 32;
    /// Only changes by messages of the monitoring connection, in OpenFlow 1.4. Open vSwitch and `ovs-ofctl` treat it as
    /// [`OWN`].
    pub const ONLY_OWN: u16 = 64;
}

/// A monitor, or that one is to go.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowMonitor {
    /// Its number.
    pub id: u32,
    /// 0 adds it, 1 changes it, 2 takes it off.
    pub command: u8,
    /// What it asks for: [`flags`].
    pub flags: u16,
    /// Table, [`TableId::ALL`] for all.
    pub table: TableId,
    /// Flows with output to this port ([`PortNo::ANY`]: all).
    pub out_port: PortNo,
    /// Flows with this group.
    pub out_group: GroupId,
    /// Flows within this match.
    pub matches: Match,
}

/// What happened to a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEvent {
    /// It was there.
    Initial,
    /// It came.
    Added,
    /// It went.
    Removed,
    /// It changed.
    Modified,
}

/// A monitor's news.
#[derive(Clone, PartialEq, Debug)]
pub enum FlowUpdate {
    /// What happened to a flow, why (OFPRR_*), the flow; and whether its actions are said.
    Full(FlowEvent, u8, Box<FlowMod>, bool),
    /// What the peer asked for with this transaction id was done.
    Abbreviated(u32),
}

/// Nicira's subtype of monitors, and that of the extension of the ONF for OpenFlow 1.3.
const NICIRA: u32 = 2;
const ONF: u32 = 1870;

/// Whether monitors have Nicira's form.
pub(super) fn is_nicira(v: Version) -> bool {
    v < Version::Of13
}

/// The experimenter and subtype of monitors, where they are no part of OpenFlow.
pub(super) fn experimenter(v: Version) -> Option<(u32, u32)> {
    match v {
        v if is_nicira(v) => Some((NX_VENDOR, NICIRA)),
        Version::Of13 => Some((ONF_VENDOR, ONF)),
        _ => None,
    }
}

/// Adds a match, and writes its length to `at`.
fn put_match(o: &mut Vec<u8>, at: usize, m: &Match, v: Version) {
    let n = if is_nicira(v) {
        of10::put_nxm(o, m, None)
    } else {
        let start = o.len();
        oxm::put_ofp_match(o, m);
        // Without its padding.
        o.get(start + 2..start + 4).map_or(0, |b| b.iter().fold(0, |n, x| n << 8 | u16::from(*x)))
    };
    if let Some(len) = o.get_mut(at..at + 2) {
        len.copy_from_slice(&n.to_be_bytes());
    }
}

fn pull_match(r: &mut Reader<'_>, n: usize, v: Version) -> Result<Match> {
    if is_nicira(v) { Ok(of10::pull_nxm(r, n, false)?.0) } else { oxm::pull_ofp_match(r, false) }
}

fn pull_port(r: &mut Reader<'_>) -> Result<PortNo> {
    PortNo::from_u32(r.u32()?).ok_or_else(|| DecodeError::new(OfError::RequestBadPort, "port out of range"))
}

/// Whether what happened is told as Nicira tells it, which the extension for 1.3 does too.
fn is_old(v: Version) -> bool {
    v <= Version::Of13
}

pub(super) fn put_request(o: &mut Vec<u8>, m: &FlowMonitor, v: Version) {
    o.p32(m.id);
    if is_nicira(v) {
        o.p16(m.flags);
        o.p16(m.out_port.0);
        let at = o.len();
        o.p16(0);
        o.p8(m.table.0);
        o.zeros(5);
        put_match(o, at, &m.matches, v);
        return;
    }
    if v == Version::Of13 {
        o.p16(m.flags);
        let at = o.len();
        o.p16(0);
        o.p32(m.out_port.to_u32());
        o.p8(m.table.0);
        o.zeros(3);
        put_match(o, at, &m.matches, v);
        return;
    }
    o.p32(m.out_port.to_u32());
    o.p32(m.out_group.0);
    o.p16(m.flags);
    o.p8(m.table.0);
    o.p8(m.command);
    oxm::put_ofp_match(o, &m.matches);
}

pub(super) fn pull_request(r: &mut Reader<'_>, v: Version) -> Result<FlowMonitor> {
    let id = r.u32()?;
    if is_old(v) {
        let flags = r.u16()?;
        let (n, out_port, table) = if is_nicira(v) {
            let out_port = PortNo(r.u16()?);
            let (n, table) = (r.u16()?, TableId(r.u8()?));
            r.skip(5)?;
            (n, out_port, table)
        } else {
            let (n, out_port, table) = (r.u16()?, pull_port(r)?, TableId(r.u8()?));
            r.skip(3)?;
            (n, out_port, table)
        };
        if flags & !0x3f != 0 {
            // OFPBRC_BAD_SUBTYPE: Open vSwitch's own errors have no form here.
            return Err(DecodeError::new(OfError::RequestBadSubtype, format!("flow monitor {id}: flags {flags:#x}")));
        }
        let matches = pull_match(r, n.into(), v)?;
        return Ok(FlowMonitor { id, command: 0, flags, table, out_port, out_group: GroupId::ANY, matches });
    }
    let out_port = pull_port(r)?;
    let (out_group, flags, table, command) = (r.u32()?, r.u16()?, TableId(r.u8()?), r.u8()?);
    if flags & !0x7f != 0 {
        // OFPMOFC_BAD_FLAGS
        return Err(DecodeError::new(OfError::FlowMonitorBadFlags, format!("flow monitor {id}: flags {flags:#x}")));
    }
    if command > 2 {
        // OFPMOFC_BAD_COMMAND
        return Err(DecodeError::new(OfError::FlowMonitorBadCommand, format!("flow monitor {id}: command {command}")));
    }
    let matches = oxm::pull_ofp_match(r, false)?;
    Ok(FlowMonitor { id, command, flags, table, out_port, out_group: GroupId(out_group), matches })
}

fn event(e: FlowEvent, v: Version) -> u16 {
    match (e, is_old(v)) {
        (FlowEvent::Initial | FlowEvent::Added, true) | (FlowEvent::Initial, _) => 0,
        (FlowEvent::Removed, true) | (FlowEvent::Added, _) => 1,
        (FlowEvent::Modified, true) | (FlowEvent::Removed, _) => 2,
        (FlowEvent::Modified, _) => 3,
    }
}

pub(super) fn put_update(o: &mut Vec<u8>, u: &FlowUpdate, v: Version) {
    let start = o.len();
    o.p16(0);
    match u {
        FlowUpdate::Abbreviated(xid) => {
            o.p16(if is_old(v) { 3 } else { 4 });
            o.p32(*xid);
        }
        FlowUpdate::Full(e, reason, f, actions) => {
            let list: &[Action] = if *actions { &f.actions } else { &[] };
            o.p16(event(*e, v));
            if is_old(v) {
                o.p16((*reason).into());
                o.p16(f.priority);
                o.p16(f.idle_timeout);
                o.p16(f.hard_timeout);
                let at = o.len();
                o.p16(0);
                o.p8(f.table.0);
                o.p8(0);
                o.p64(f.cookie);
                put_match(o, at, &f.matches, v);
                if is_nicira(v) {
                    encode_actions(o, list, v);
                } else {
                    flow::put_instructions(o, list, v);
                }
            } else {
                o.p8(f.table.0);
                o.p8(*reason);
                o.p16(f.idle_timeout);
                o.p16(f.hard_timeout);
                o.p16(f.priority);
                o.zeros(4);
                o.p64(f.cookie);
                oxm::put_ofp_match(o, &f.matches);
                flow::put_instructions(o, list, v);
            }
        }
    }
    o.patch_len(start, start);
}

/// `r` starts after the entry's length.
pub(super) fn pull_update(mut r: Reader<'_>, v: Version) -> Result<FlowUpdate> {
    let old = is_old(v);
    let e = match (r.u16()?, old) {
        (3, true) | (4, false) => return Ok(FlowUpdate::Abbreviated(r.u32()?)),
        (0, false) => FlowEvent::Initial,
        (0, true) | (1, false) => FlowEvent::Added,
        (1, true) | (2, false) => FlowEvent::Removed,
        (2, true) | (3, false) => FlowEvent::Modified,
        (e, _) => return Err(DecodeError::new(OfError::RequestNotPermitted, format!("flow monitor event {e}"))),
    };
    let mut f = FlowMod::default();
    let reason;
    if old {
        reason = r.u16()? as u8;
        (f.priority, f.idle_timeout, f.hard_timeout) = (r.u16()?, r.u16()?, r.u16()?);
        let n = usize::from(r.u16()?);
        f.table = TableId(r.u8()?);
        r.skip(1)?;
        f.cookie = r.u64()?;
        f.matches = pull_match(&mut r, n, v)?;
        f.actions = if is_nicira(v) { decode_actions(r.buf, v)? } else { flow::pull_instructions(r, v)? };
    } else {
        (f.table, reason) = (TableId(r.u8()?), r.u8()?);
        (f.idle_timeout, f.hard_timeout, f.priority) = (r.u16()?, r.u16()?, r.u16()?);
        r.skip(4)?;
        f.cookie = r.u64()?;
        f.matches = oxm::pull_ofp_match(&mut r, false)?;
        f.actions = flow::pull_instructions(r, v)?;
    }
    let told = !f.actions.is_empty();
    Ok(FlowUpdate::Full(e, reason, Box::new(f), told))
}
