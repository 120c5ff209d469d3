//! OpenFlow 1.0, which `ovs-ofctl` speaks unless told otherwise, with the Nicira extensions that it uses there:
//! extended match, flow statistics and packet-ins. Messages that newer versions added have no form here.

use super::encode::Entries;
use super::stats::{all, entry, pull_text, put_text};
use super::{
    DescStats, Features, FlowRemoved, FlowStats, FlowStatsRequest, Message, MultipartReply, MultipartRequest, PacketIn,
    PacketOut, PortDesc, PortMod, PortStats, PortStatus, Role, TableStats, ipfix, monitor, packet, queue,
};
use crate::OfError;
use crate::action::PacketInReason;
use crate::field::FieldId;
use crate::flow_match::Match;
use crate::ids::{GroupId, TableId};
use crate::message::Version;
use crate::mods::{FlowFlags, FlowMod, FlowModCommand};
use crate::port::PortNo;
use crate::wire::{DecodeError, NX_VENDOR, Put, Reader, Result, encode_actions, group, of10};

/// The actions that a 1.0 peer is told of: all of OpenFlow 1.0's.
const ACTIONS: u32 = 0xfff;
/// All of an `ofp10_match` may be left out.
const WILDCARDS: u32 = 0x3f_ffff;

/// Nicira's statistics of groups.
const FLOW_MONITOR: u32 = 2;
const GROUP_STATS: u32 = 7;
const GROUP_DESC: u32 = 8;
const GROUP_FEATURES: u32 = 9;

type Body<'a> = Box<dyn FnOnce(&mut Vec<u8>) + 'a>;

/// A message's type and body; `None` for what 1.0 cannot say. Vendor messages have type 4.
pub(super) fn encode(m: &Message) -> Option<(u8, Body<'_>)> {
    fn nx<'a>(subtype: u32, body: impl FnOnce(&mut Vec<u8>) + 'a) -> Option<(u8, Body<'a>)> {
        Some((
            4,
            Box::new(move |o: &mut Vec<u8>| {
                o.p32(NX_VENDOR);
                o.p32(subtype);
                body(o);
            }),
        ))
    }
    fn std<'a>(kind: u8, body: impl FnOnce(&mut Vec<u8>) + 'a) -> Option<(u8, Body<'a>)> {
        Some((kind, Box::new(body)))
    }
    match m {
        Message::FeaturesReply(f) => std(6, |o| put_features(o, f)),
        Message::PacketIn(p) => std(10, |o| {
            o.p32(p.buffer_id);
            o.p16(p.total_len.min(0xffff) as u16);
            o.p16(p.metadata.exact(FieldId::InPort).map_or(PortNo::ANY.0, |v| v as u16));
            // Reasons that came later are actions.
            // What came with 1.4 is an action here.
            o.p8(match p.reason {
                PacketInReason::NoMatch | PacketInReason::InvalidTtl => p.reason as u8,
                _ => PacketInReason::Action as u8,
            });
            o.p8(0);
            o.extend_from_slice(&p.packet);
        }),
        Message::Error { error_type, code, data } => std(1, |o| {
            match error_code(*error_type, *code) {
                Ok((t, c)) => {
                    o.p16(t);
                    o.p16(c);
                }
                Err((t, c)) => {
                    o.p16(0xb0c2);
                    o.p16(0);
                    o.p32(NX_VENDOR);
                    o.p16(t);
                    o.p16(c);
                }
            }
            o.extend_from_slice(data);
        }),
        Message::FlowRemovedOf10(r) => std(11, |o| {
            of10::put_match(o, &r.matches);
            o.p64(r.cookie);
            o.p16(r.priority);
            o.p8(r.reason_in(Version::Of10));
            o.zeros(1);
            o.p32(r.duration_sec);
            o.p32(r.duration_nsec);
            o.p16(r.idle_timeout);
            o.zeros(2);
            o.p64(r.packets);
            o.p64(r.bytes);
        }),
        Message::FlowRemoved(r) => nx(14, |o| {
            o.p64(r.cookie);
            o.p16(r.priority);
            o.p8(r.reason_in(Version::Of10));
            o.p8(r.table.0.wrapping_add(1));
            o.p32(r.duration_sec);
            o.p32(r.duration_nsec);
            o.p16(r.idle_timeout);
            let at = o.len();
            o.p16(0);
            o.p64(r.packets);
            o.p64(r.bytes);
            let n = of10::put_nxm(o, &r.matches, None);
            patch(o, at, n);
        }),
        Message::PortStatus(s) => std(12, |o| {
            o.p8(s.reason);
            o.zeros(7);
            put_port(o, &s.desc);
        }),
        Message::PacketOut(p) => std(13, |o| {
            let mut acts = Vec::new();
            encode_actions(&mut acts, &p.actions, Version::Of10);
            o.p32(p.buffer_id);
            o.p16(p.in_port().0);
            o.p16(acts.len() as u16);
            o.extend_from_slice(&acts);
            o.extend_from_slice(&p.packet);
        }),
        Message::FlowMod(f) => nx(13, |o| put_flow_mod(o, f)),
        Message::GroupMod(m) => nx(31, |o| group::put_group_mod(o, m, Version::Of10)),
        Message::QueueGetConfigRequest(p) => std(20, |o| {
            o.p16(p.0);
            o.zeros(2);
        }),
        Message::QueueGetConfigReply(p, queues) => std(21, |o| queue::put_config(o, *p, queues, Version::Of10)),
        Message::PortMod(p) => std(15, |o| {
            o.p16(p.port.0);
            o.extend_from_slice(&p.hw_addr[..]);
            o.p32(p.config);
            o.p32(p.mask);
            o.zeros(8);
        }),
        Message::MultipartRequest(q) => std(16, |o| put_request(o, q)),
        Message::BarrierRequest => std(18, |_| {}),
        Message::BarrierReply => std(19, |_| {}),
        _ => None,
    }
}

/// A message's body of a type that differs from newer versions.
pub(super) fn decode(kind: u8, mut r: Reader<'_>) -> Result<Message> {
    Ok(match kind {
        6 => Message::FeaturesReply(pull_features(r)?),
        10 => {
            let (buffer_id, total_len) = (r.u32()?, u32::from(r.u16()?));
            let metadata = Match::new().with(FieldId::InPort, r.u16()?.into());
            let reason = PacketInReason::from_u8(r.u8()?).unwrap_or_default();
            r.skip(1)?;
            Message::PacketIn(PacketIn {
                buffer_id,
                total_len,
                metadata,
                reason,
                packet: r.buf.to_vec(),
                ..Default::default()
            })
        }
        11 => {
            let matches = of10::pull_match(&mut r)?;
            let mut m =
                FlowRemoved { matches, cookie: r.u64()?, priority: r.u16()?, reason: r.u8()?, ..Default::default() };
            r.skip(1)?;
            (m.duration_sec, m.duration_nsec, m.idle_timeout) = (r.u32()?, r.u32()?, r.u16()?);
            r.skip(2)?;
            (m.packets, m.bytes) = (r.u64()?, r.u64()?);
            Message::FlowRemoved(m)
        }
        12 => {
            let reason = r.u8()?;
            r.skip(7)?;
            Message::PortStatus(PortStatus { reason, desc: pull_port(&mut r)? })
        }
        13 => {
            let buffer_id = r.u32()?;
            let metadata = Match::new().with(FieldId::InPort, r.u16()?.into());
            let n = usize::from(r.u16()?);
            packet::from_port(&metadata)?;
            let actions = of10::decode_actions(r.take(n)?)?;
            Message::PacketOut(PacketOut { buffer_id, metadata, actions, packet: r.buf.to_vec() })
        }
        14 => {
            let mut f = FlowMod { matches: of10::pull_match(&mut r)?, cookie: r.u64()?, ..Default::default() };
            pull_changes(&mut r, &mut f)?;
            pull_rest(r, f)?
        }
        15 => {
            let port = PortNo(r.u16()?);
            let hw_addr = r.mac()?;
            Message::PortMod(PortMod { port, hw_addr, config: r.u32()?, mask: r.u32()? })
        }
        16 => Message::MultipartRequest(pull_request(r)?),
        17 => {
            let (more, body) = pull_reply(r)?;
            Message::MultipartReply { more, body }
        }
        18 => Message::BarrierRequest,
        19 => Message::BarrierReply,
        20 => Message::QueueGetConfigRequest(PortNo(r.u16()?)),
        21 => {
            let (port, queues) = queue::pull_config(r, Version::Of10)?;
            Message::QueueGetConfigReply(port, queues)
        }
        k => return Err(DecodeError::message_type(k)),
    })
}

/// Nicira's messages of 1.0; `None` for those that all versions share.
pub(super) fn decode_nicira(subtype: u32, mut r: Reader<'_>) -> Result<Option<Message>> {
    Ok(Some(match subtype {
        10 | 11 => {
            let role = Role { role: r.u32()?.saturating_add(1), ..Default::default() };
            if role.role > 3 {
                return Err(DecodeError::new(OfError::RoleUnknown, format!("there is no role {}", role.role - 1)));
            }
            if subtype == 10 { Message::RoleRequest(role) } else { Message::RoleReply(role) }
        }
        13 => {
            let mut f = FlowMod { cookie: r.u64()?, ..Default::default() };
            pull_changes(&mut r, &mut f)?;
            let n = usize::from(r.u16()?);
            r.skip(6)?;
            let (matches, cookie, mask) = of10::pull_nxm(&mut r, n, false)?;
            f.matches = matches;
            if mask != 0 && f.command != FlowModCommand::Add {
                (f.cookie, f.cookie_mask, f.or_add) = (cookie, mask, false);
            }
            pull_rest(r, f)?
        }
        14 => {
            let mut m = FlowRemoved {
                cookie: r.u64()?,
                priority: r.u16()?,
                reason: r.u8()?,
                table: TableId(r.u8()?.wrapping_sub(1)),
                duration_sec: r.u32()?,
                duration_nsec: r.u32()?,
                idle_timeout: r.u16()?,
                ..Default::default()
            };
            let n = usize::from(r.u16()?);
            (m.packets, m.bytes) = (r.u64()?, r.u64()?);
            m.matches = of10::pull_nxm(&mut r, n, true)?.0;
            Message::FlowRemoved(m)
        }
        19 => Message::SetAsync(r.buf.to_vec()),
        31 => Message::GroupMod(group::pull_group_mod(r, Version::Of10)?),
        _ => return Ok(None),
    }))
}

/// An OpenFlow error's type and code as a 1.0 peer knows them: `Err` holds those of Nicira's own error message.
pub(super) fn error_code(error_type: u16, code: u16) -> std::result::Result<(u16, u16), (u16, u16)> {
    match (error_type, code) {
        (0, c) | (1, c @ 0..=8) => Ok((error_type, c)),
        (2, c @ 0..=8) => Ok((2, c)),
        // What is inconsistent with the match; a field that is not known, its length, its value.
        (2, 10) => Err((1, 0x20a)),
        (2, c @ 13..=15) => Err((1, 0x20b + c - 13)),
        (2, c) => Err((2, c)),
        // The field, its value, its mask, its prerequisites, twice.
        (4, c @ 6..=10) => Err((1, 0x101 + c - 6)),
        (5, 1) => Ok((3, 0)),
        (5, 3) => Ok((3, 1)),
        (5, 4) => Ok((3, 2)),
        (5, 6) => Ok((3, 4)),
        (7, c @ 0..=1) => Ok((4, c)),
        (9, c @ 0..=2) => Ok((5, c)),
        // NXTTMFC_*, NXFMFC_INVALID_TLV_FIELD, NXTTMFC_INVALID_TLV_DEL
        (0xffff, c @ 16..=21) => Err((1, 0x20f + c - 16)),
        // NXST_NOT_CONFIGURED
        (0xffff, 36) => Err((1, 535)),
        (0xffff, c @ 37..=38) => Err((1, 0x218 + c - 37)),
        // "A code that this version has no word for."
        _ => Err((1, 0x209)),
    }
}

/// The body of NXT_PACKET_IN, in all versions.
pub(super) fn put_packet_in(o: &mut Vec<u8>, p: &PacketIn) {
    packet::put_head(o, p);
    let at = o.len();
    o.p16(0);
    o.zeros(6);
    let n = of10::put_nxm(o, &p.metadata, None);
    patch(o, at, n);
    o.zeros(2);
    o.extend_from_slice(&p.packet);
}

pub(super) fn pull_packet_in(mut r: Reader<'_>) -> Result<PacketIn> {
    let mut p = packet::pull_head(&mut r)?;
    let n = usize::from(r.u16()?);
    r.skip(6)?;
    p.metadata = of10::pull_nxm(&mut r, n, true)?.0;
    r.skip(2)?;
    p.packet = r.buf.to_vec();
    Ok(p)
}

fn patch(o: &mut [u8], at: usize, n: u16) {
    if let Some(s) = o.get_mut(at..at + 2) {
        s.copy_from_slice(&n.to_be_bytes());
    }
}

fn put_flow_mod(o: &mut Vec<u8>, f: &FlowMod) {
    o.p64(f.new_cookie.unwrap_or(f.cookie));
    o.p16(u16::from(f.table.0) << 8 | f.command as u16);
    o.p16(f.idle_timeout);
    o.p16(f.hard_timeout);
    o.p16(f.priority);
    o.p32(f.buffer_id);
    o.p16(f.out_port.0);
    o.p16(f.flags.0 & (FlowFlags::SEND_FLOW_REM | FlowFlags::CHECK_OVERLAP));
    let at = o.len();
    o.p16(0);
    o.zeros(6);
    let wanted = (f.command != FlowModCommand::Add).then_some((f.cookie, f.cookie_mask));
    let n = of10::put_nxm(o, &f.matches, wanted);
    patch(o, at, n);
    encode_actions(o, &f.actions, Version::Of10);
}

/// The fields from the command to the flags. The table is in the command's upper byte (NXT_FLOW_MOD_TABLE_ID).
fn pull_changes(r: &mut Reader<'_>, f: &mut FlowMod) -> Result<()> {
    f.table = TableId(r.u8()?);
    f.command = FlowModCommand::from_u8(r.u8()?)
        .ok_or_else(|| DecodeError::new(OfError::FlowModBadCommand, "unknown flow-mod command"))?;
    f.idle_timeout = r.u16()?;
    f.hard_timeout = r.u16()?;
    f.priority = r.u16()?;
    f.buffer_id = r.u32()?;
    let port = PortNo(r.u16()?);
    if matches!(f.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict) {
        f.out_port = port;
    }
    let flags = r.u16()?;
    if flags & !(FlowFlags::SEND_FLOW_REM | FlowFlags::CHECK_OVERLAP) != 0 {
        return Err(DecodeError::new(OfError::FlowModBadFlags, format!("flow-mod flags {flags:#x} are not supported")));
    }
    // A flow that takes the place of another starts anew in this version; one that gets other actions goes on.
    let anew = if f.command == FlowModCommand::Add { FlowFlags::RESET_COUNTS } else { 0 };
    f.flags = FlowFlags(flags | anew);
    f.or_add = matches!(f.command, FlowModCommand::Modify | FlowModCommand::ModifyStrict);
    // All bits set: it is not to change.
    f.new_cookie = (f.or_add && f.cookie != u64::MAX).then_some(f.cookie);
    Ok(())
}

fn pull_rest(r: Reader<'_>, mut f: FlowMod) -> Result<Message> {
    f.actions = of10::decode_actions(r.buf)?;
    of10::complete(&mut f);
    Ok(Message::FlowMod(f))
}

fn put_features(o: &mut Vec<u8>, f: &Features) {
    o.p64(f.datapath_id);
    o.p32(f.n_buffers);
    o.p8(f.n_tables);
    o.zeros(3);
    // Flow, table, port and queue statistics; addresses in ARP can be matched.
    o.p32(f.capabilities & 0x47 | 0x80);
    o.p32(ACTIONS);
    f.ports.iter().for_each(|p| put_port(o, p));
}

fn pull_features(mut r: Reader<'_>) -> Result<Features> {
    let mut f = Features { datapath_id: r.u64()?, n_buffers: r.u32()?, n_tables: r.u8()?, ..Default::default() };
    r.skip(3)?;
    f.capabilities = r.u32()?;
    r.skip(4)?;
    f.ports = all(r, pull_port)?;
    Ok(f)
}

fn put_port(o: &mut Vec<u8>, p: &PortDesc) {
    o.p16(p.port.0);
    o.extend_from_slice(&p.hw_addr[..]);
    put_text(o, &p.name, 16);
    o.p32(p.config);
    // "Live" came later.
    o.p32(p.state & 1);
    // Features that are current, advertised, supported, and the peer's. Speeds above 10 Gbit/s came later, and copper
    // has another bit.
    o.p32(p.curr & 0x7f | (p.curr >> 11 & 1) << 7);
    o.zeros(12);
}

fn pull_port(r: &mut Reader<'_>) -> Result<PortDesc> {
    let port = PortNo(r.u16()?);
    let hw_addr = r.mac()?;
    let name = pull_text(r, 16)?;
    let (config, state) = (r.u32()?, r.u32()?);
    let curr = r.u32()?;
    let curr = curr & 0x7f | (curr >> 7 & 1) << 11;
    r.skip(12)?;
    Ok(PortDesc { port, hw_addr, name, config, state, curr, curr_speed: 0, max_speed: 0 })
}

fn stats_head(o: &mut Vec<u8>, kind: u16, flags: u16) {
    o.p16(kind);
    o.p16(flags);
}

/// The head of Nicira's flow statistics.
fn nicira_head(o: &mut Vec<u8>, flags: u16, subtype: u32) {
    stats_head(o, 0xffff, flags);
    o.p32(NX_VENDOR);
    o.p32(subtype);
    o.zeros(4);
}

fn put_request(o: &mut Vec<u8>, q: &MultipartRequest) {
    use MultipartRequest as Q;
    match q {
        Q::Flow(f) | Q::Aggregate(f) => {
            nicira_head(o, 0, if matches!(q, Q::Flow(_)) { 0 } else { 1 });
            o.p16(f.out_port.0);
            let at = o.len();
            o.p16(0);
            o.p8(f.table.0);
            o.zeros(3);
            let n = of10::put_nxm(o, &f.matches, Some((f.cookie, f.cookie_mask)));
            patch(o, at, n);
        }
        Q::GroupStats(g) | Q::GroupDesc(g) => {
            nicira_head(o, 0, if matches!(q, Q::GroupStats(_)) { GROUP_STATS } else { GROUP_DESC });
            o.p32(g.0);
            o.zeros(4);
        }
        Q::GroupFeatures => nicira_head(o, 0, GROUP_FEATURES),
        Q::Desc => stats_head(o, 0, 0),
        Q::Table => stats_head(o, 3, 0),
        Q::PortStats(p) => {
            stats_head(o, 4, 0);
            o.p16(p.0);
            o.zeros(6);
        }
        Q::Queue(p, n) => {
            stats_head(o, 5, 0);
            o.p16(p.0);
            o.zeros(2);
            o.p32(*n);
        }
        Q::PortDesc(_) => stats_head(o, 13, 0),
        Q::FlowMonitor(l) => {
            nicira_head(o, 0, FLOW_MONITOR);
            l.iter().for_each(|m| monitor::put_request(o, m, Version::Of10));
        }
        Q::IpfixBridge => nicira_head(o, 0, ipfix::BRIDGE),
        Q::IpfixFlow => nicira_head(o, 0, ipfix::FLOW),
        Q::Other(k, b) => {
            stats_head(o, *k, 0);
            o.extend_from_slice(b);
        }
        // Asked of a 1.0 switch, which has none of these, in words that it refuses.
        _ => stats_head(o, 0xfffe, 0),
    }
}

fn pull_request(mut r: Reader<'_>) -> Result<MultipartRequest> {
    use MultipartRequest as Q;
    let kind = r.u16()?;
    r.skip(2)?;
    Ok(match kind {
        0 => Q::Desc,
        1 | 2 => {
            let matches = of10::pull_match(&mut r)?;
            let table = TableId(r.u8()?);
            r.skip(1)?;
            let f = FlowStatsRequest { matches, table, out_port: PortNo(r.u16()?), ..Default::default() };
            if kind == 1 { Q::FlowOf10(f) } else { Q::AggregateOf10(f) }
        }
        3 => Q::Table,
        4 => Q::PortStats(PortNo(r.u16()?)),
        5 => {
            let port = PortNo(r.u16()?);
            r.skip(2)?;
            // OFPP_ALL is how 1.0 says "any" here.
            Q::Queue(if port == PortNo::ALL { PortNo::ANY } else { port }, r.u32()?)
        }
        13 => Q::PortDesc(PortNo::ANY),
        0xffff => {
            let vendor = r.u32()?;
            if vendor != NX_VENDOR {
                return Err(DecodeError::new(
                    OfError::RequestBadExperimenter,
                    format!("vendor {vendor:#x} is not supported"),
                ));
            }
            let subtype = r.u32()?;
            r.skip(4)?;
            match subtype {
                0 | 1 => {}
                GROUP_STATS => return Ok(Q::GroupStats(GroupId(r.u32()?))),
                GROUP_DESC => return Ok(Q::GroupDesc(GroupId(r.u32()?))),
                GROUP_FEATURES => return Ok(Q::GroupFeatures),
                ipfix::BRIDGE => return Ok(Q::IpfixBridge),
                ipfix::FLOW => return Ok(Q::IpfixFlow),
                FLOW_MONITOR => {
                    return Ok(Q::FlowMonitor(all(r, |r| monitor::pull_request(r, Version::Of10))?));
                }
                s => {
                    return Err(DecodeError::new(
                        OfError::RequestBadSubtype,
                        format!("Nicira statistics {s} are not supported"),
                    ));
                }
            }
            let out_port = PortNo(r.u16()?);
            let n = usize::from(r.u16()?);
            let table = TableId(r.u8()?);
            r.skip(3)?;
            let (matches, cookie, cookie_mask) = of10::pull_nxm(&mut r, n, false)?;
            let f = FlowStatsRequest { table, out_port, out_group: GroupId::ANY, cookie, cookie_mask, matches };
            if subtype == 0 { Q::Flow(f) } else { Q::Aggregate(f) }
        }
        k => Q::Other(k, r.buf.to_vec()),
    })
}

/// A reply's head and its entries, so that a long one can be split between entries.
pub(super) fn entries(body: &MultipartReply) -> Entries {
    use MultipartReply as P;
    fn each<T>(list: &[T], put: impl Fn(&mut Vec<u8>, &T)) -> Vec<Vec<u8>> {
        let one = |x| {
            let mut o = Vec::new();
            put(&mut o, x);
            o
        };
        list.iter().map(one).collect()
    }
    let nicira = |subtype| Box::new(move |o: &mut Vec<u8>, flags| nicira_head(o, flags, subtype)) as Box<_>;
    let parts = match body {
        P::Flow(l) => return (nicira(0), each(l, put_flow)),
        P::Aggregate(p, b, n) => return (nicira(1), each(&[(*p, *b, *n)], put_aggregate)),
        P::GroupStats(_) => return (nicira(GROUP_STATS), body.entries(Version::Of10).1),
        P::GroupDesc(_) => return (nicira(GROUP_DESC), body.entries(Version::Of10).1),
        P::GroupFeatures(_) => return (nicira(GROUP_FEATURES), body.entries(Version::Of10).1),
        P::FlowMonitor(_) => return (nicira(FLOW_MONITOR), body.entries(Version::Of10).1),
        P::IpfixBridge(_) => return (nicira(ipfix::BRIDGE), body.entries(Version::Of10).1),
        P::IpfixFlow(_) => return (nicira(ipfix::FLOW), body.entries(Version::Of10).1),
        P::FlowOf10(l) => each(l, put_flow_of10),
        P::AggregateOf10(p, b, n) => each(&[(*p, *b, *n)], put_aggregate),
        P::Table(l) => each(l, |o, t| {
            o.p8(t.table.0);
            o.zeros(3);
            super::stats::put_table_name(o, &t.name);
            o.p32(WILDCARDS);
            o.p32(t.most);
            o.p32(t.active);
            o.p64(t.lookups);
            o.p64(t.matched);
        }),
        P::PortStats(l) => each(l, |o, s| {
            o.p16(s.port.0);
            o.zeros(6);
            s.counters.iter().for_each(|c| o.p64(*c));
            (0..4).for_each(|_| o.p64(if s.counters[6] == u64::MAX { u64::MAX } else { 0 }));
        }),
        P::PortDesc(l) => each(l, put_port),
        P::Queue(_) => body.entries(Version::Of10).1,
        P::Desc(_) | P::Other(..) => body.entries(Version::Of13).1,
        // Not what a 1.0 peer can have asked for.
        _ => Vec::new(),
    };
    let kind = body.kind();
    (Box::new(move |o, flags| stats_head(o, kind, flags)), parts)
}

fn put_aggregate(o: &mut Vec<u8>, (packets, bytes, flows): &(u64, u64, u32)) {
    o.p64(*packets);
    o.p64(*bytes);
    o.p32(*flows);
    o.zeros(4);
}

fn put_flow(o: &mut Vec<u8>, s: &FlowStats) {
    let f = &s.flow;
    o.p16(0);
    o.p8(f.table.0);
    o.p8(0);
    o.p32(s.duration_sec);
    o.p32(s.duration_nsec);
    o.p16(f.priority);
    o.p16(f.idle_timeout);
    o.p16(f.hard_timeout);
    let at = o.len();
    o.p16(0);
    // Ages are one more than they are; 0 is unknown.
    o.p16(s.idle_age.saturating_add(1).min(0xffff) as u16);
    o.p16(s.hard_age.saturating_add(1).min(0xffff) as u16);
    o.p64(f.cookie);
    o.p64(s.packets);
    o.p64(s.bytes);
    let n = of10::put_nxm(o, &f.matches, None);
    patch(o, at, n);
    encode_actions(o, &f.actions, Version::Of10);
    o.patch_len(0, 0);
}

fn put_flow_of10(o: &mut Vec<u8>, s: &FlowStats) {
    let f = &s.flow;
    o.p16(0);
    o.p8(f.table.0);
    o.p8(0);
    of10::put_match(o, &f.matches);
    o.p32(s.duration_sec);
    o.p32(s.duration_nsec);
    o.p16(f.priority);
    o.p16(f.idle_timeout);
    o.p16(f.hard_timeout);
    o.zeros(6);
    o.p64(f.cookie);
    o.p64(s.packets);
    o.p64(s.bytes);
    encode_actions(o, &f.actions, Version::Of10);
    o.patch_len(0, 0);
}

fn pull_reply(mut r: Reader<'_>) -> Result<(bool, MultipartReply)> {
    use MultipartReply as P;
    let kind = r.u16()?;
    let more = r.u16()? & 1 != 0;
    let aggregate = |mut r: Reader<'_>| Ok::<_, DecodeError>((r.u64()?, r.u64()?, r.u32()?));
    let body = match kind {
        0 => P::Desc(DescStats::pull(r)?),
        1 => P::FlowOf10(all(r, |r| {
            let mut b = sized(r)?;
            let mut s = FlowStats::default();
            s.flow.table = TableId(b.u8()?);
            b.skip(1)?;
            s.flow.matches = of10::pull_match(&mut b)?;
            (s.duration_sec, s.duration_nsec) = (b.u32()?, b.u32()?);
            (s.flow.priority, s.flow.idle_timeout, s.flow.hard_timeout) = (b.u16()?, b.u16()?, b.u16()?);
            b.skip(6)?;
            (s.flow.cookie, s.packets, s.bytes) = (b.u64()?, b.u64()?, b.u64()?);
            s.flow.actions = of10::decode_actions(b.buf)?;
            of10::complete(&mut s.flow);
            Ok(s)
        })?),
        2 => {
            let (p, b, n) = aggregate(r)?;
            P::AggregateOf10(p, b, n)
        }
        3 => P::Table(all(r, |r| {
            let table = TableId(r.u8()?);
            r.skip(3)?;
            r.skip(40)?;
            let (active, lookups, matched) = (r.u32()?, r.u64()?, r.u64()?);
            Ok(TableStats { table, active, lookups, matched, ..TableStats::default() })
        })?),
        4 => P::PortStats(all(r, |r| {
            let port = PortNo(r.u16()?);
            r.skip(6)?;
            let mut s = PortStats { port, counters: [0; 8], duration_sec: 0, duration_nsec: 0, custom: Vec::new() };
            for c in &mut s.counters {
                *c = r.u64()?;
            }
            r.skip(32)?;
            Ok(s)
        })?),
        5 => P::pull(5, r, Version::Of10)?,
        13 => P::PortDesc(all(r, pull_port)?),
        0xffff => {
            let (vendor, subtype) = (r.u32()?, r.u32()?);
            r.skip(4)?;
            match (vendor, subtype) {
                (NX_VENDOR, 0) => P::Flow(all(r, |r| pull_flow(sized(r)?))?),
                (NX_VENDOR, 1) => {
                    let (p, b, n) = aggregate(r)?;
                    P::Aggregate(p, b, n)
                }
                (NX_VENDOR, FLOW_MONITOR) => P::pull(16, r, Version::Of10)?,
                (NX_VENDOR, subtype @ (ipfix::BRIDGE | ipfix::FLOW)) => P::pull_ipfix(subtype, r)?,
                (NX_VENDOR, GROUP_STATS) => P::pull(6, r, Version::Of10)?,
                (NX_VENDOR, GROUP_DESC) => P::pull(7, r, Version::Of10)?,
                (NX_VENDOR, GROUP_FEATURES) => P::pull(8, r, Version::Of10)?,
                _ => {
                    return Err(DecodeError::new(
                        OfError::RequestBadSubtype,
                        format!("statistics {vendor:#x}, {subtype} are not supported"),
                    ));
                }
            }
        }
        k => P::Other(k, r.buf.to_vec()),
    };
    Ok((more, body))
}

fn sized<'a>(r: &mut Reader<'a>) -> Result<Reader<'a>> {
    let len = usize::from(r.u16()?);
    entry(r, len, 2, "flow statistics")
}

fn pull_flow(mut b: Reader<'_>) -> Result<FlowStats> {
    let mut s = FlowStats::default();
    s.flow.table = TableId(b.u8()?);
    b.skip(1)?;
    (s.duration_sec, s.duration_nsec) = (b.u32()?, b.u32()?);
    (s.flow.priority, s.flow.idle_timeout, s.flow.hard_timeout) = (b.u16()?, b.u16()?, b.u16()?);
    let n = usize::from(b.u16()?);
    s.idle_age = u32::from(b.u16()?).saturating_sub(1);
    b.skip(2)?;
    (s.flow.cookie, s.packets, s.bytes) = (b.u64()?, b.u64()?, b.u64()?);
    s.flow.matches = of10::pull_nxm(&mut b, n, false)?.0;
    s.flow.actions = of10::decode_actions(b.buf)?;
    of10::complete(&mut s.flow);
    Ok(s)
}
