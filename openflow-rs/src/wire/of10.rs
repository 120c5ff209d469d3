//! The wire form of OpenFlow 1.0's matches and actions, and of Nicira's extended match (NXM) that `ovs-ofctl` uses with it.
//!
//! A flow of a newer version is shown as Open vSwitch shows it to a 1.0 peer: `set_field` as `mod_*` or `load`, `goto_table`
//! as `resubmit`; meters, `clear_actions` and `write_actions` have no form there and are left out.

use super::actions::{decode_nested, encode_actions, loads};
use super::{DecodeError, NX_VENDOR, Put, Reader, Result, nicira, oxm};
use crate::OfError;
use crate::action::Action;
use crate::field::{FieldId as F, ones};
use crate::flow_match::Match;
use crate::ids::GroupId;
use crate::message::Version;
use crate::mods::FlowMod;
use crate::port::PortNo;

const IN_PORT: u32 = 1;
const VLAN: u32 = 1 << 1;
const DL_SRC: u32 = 1 << 2;
const DL_DST: u32 = 1 << 3;
const DL_TYPE: u32 = 1 << 4;
const NW_PROTO: u32 = 1 << 5;
const TP_SRC: u32 = 1 << 6;
const TP_DST: u32 = 1 << 7;
const VLAN_PCP: u32 = 1 << 20;
const NW_TOS: u32 = 1 << 21;
/// NXM_NX_COOKIE, without and with a mask.
const COOKIE: u32 = 0x0001_3c08;
const COOKIE_MASKED: u32 = 0x0001_3d10;

/// The fields of the transport's two ports, or ICMP's type and code.
pub(super) fn transport(m: &Match) -> Option<(F, F)> {
    Some(match (m.exact(F::EthType)?, m.exact(F::IpProto)?) {
        (0x800, 1) => (F::IcmpType, F::IcmpCode),
        (0x800, 6) => (F::TcpSrc, F::TcpDst),
        (0x800, 17) => (F::UdpSrc, F::UdpDst),
        (0x800, 132) => (F::SctpSrc, F::SctpDst),
        _ => return None,
    })
}

/// Appends what an `ofp10_match` can say of a match.
pub(crate) fn put_match(o: &mut Vec<u8>, m: &Match) {
    let mut wild = 0;
    let mut exact = |f: F, bit: u32| match m.exact(f) {
        Some(v) => v,
        None => {
            wild |= bit;
            0
        }
    };
    let port = exact(F::InPort, IN_PORT);
    let (src, dst) = (exact(F::EthSrc, DL_SRC), exact(F::EthDst, DL_DST));
    let kind = exact(F::EthType, DL_TYPE);
    let arp = matches!(kind, 0x806 | 0x8035);
    let proto = exact(if arp { F::ArpOp } else { F::IpProto }, NW_PROTO);
    let (s, d) = transport(m).map_or((0, 0), |(s, d)| (exact(s, TP_SRC), exact(d, TP_DST)));
    if transport(m).is_none() {
        wild |= TP_SRC | TP_DST;
    }
    let (tos, tos_mask) = m.get(F::NwTos);
    if tos_mask & 0xfc != 0xfc {
        wild |= NW_TOS;
    }
    let (tci, tci_mask) = m.get(F::VlanTci);
    let vlan = match (tci, tci_mask) {
        (0, k) if k & 0x1000 != 0 => 0xffff,
        (v, k) if k & 0x1fff == 0x1fff => (v & 0xfff) as u16,
        _ => {
            wild |= VLAN;
            0
        }
    };
    if tci_mask & 0xe000 != 0xe000 || vlan == 0xffff {
        wild |= VLAN_PCP;
    }
    let (fs, fd) = if arp { (F::ArpSpa, F::ArpTpa) } else { (F::IpSrc, F::IpDst) };
    let ((ns, ms), (nd, md)) = (m.get(fs), m.get(fd));
    let prefix = |mask: u128| (mask as u32).leading_ones();
    wild |= (32 - prefix(ms)) << 8 | (32 - prefix(md)) << 14;
    o.p32(wild);
    o.p16(port as u16);
    o.uint(src, 6);
    o.uint(dst, 6);
    o.p16(vlan);
    o.p8((tci >> 13) as u8 & if wild & VLAN_PCP == 0 { 7 } else { 0 });
    o.p8(0);
    o.p16(kind as u16);
    o.p8(if wild & NW_TOS == 0 { tos as u8 & 0xfc } else { 0 });
    o.p8(proto as u8);
    o.zeros(2);
    o.p32(ns as u32);
    o.p32(nd as u32);
    o.p16(s as u16);
    o.p16(d as u16);
}

/// Reads an `ofp10_match`. Fields without their prerequisites are ignored (OpenFlow 1.0 section 3.4).
pub(crate) fn pull_match(r: &mut Reader<'_>) -> Result<Match> {
    let wild = r.u32()?;
    let has = |bit: u32| wild & bit == 0;
    let mut m = Match::new();
    let port = r.u16()?;
    let (src, dst) = (r.uint(6)?, r.uint(6)?);
    let (vlan, pcp) = (r.u16()?, r.u8()?);
    r.skip(1)?;
    let kind = u128::from(r.u16()?);
    let (tos, proto) = (r.u8()?, u128::from(r.u8()?));
    r.skip(2)?;
    let (ns, nd) = (r.u32()?, r.u32()?);
    let (s, d) = (r.u16()?, r.u16()?);
    for (bit, f, v) in [(IN_PORT, F::InPort, port.into()), (DL_SRC, F::EthSrc, src), (DL_DST, F::EthDst, dst)] {
        if has(bit) {
            m.set(f, v);
        }
    }
    match (has(VLAN), has(VLAN_PCP)) {
        (true, _) if vlan == 0xffff => {
            m.set_masked(F::VlanTci, 0, 0xffff);
        }
        (id, priority) => {
            let bits = if id { 0x1fff } else { 0 } | if priority { 0xf000 } else { 0 };
            if bits != 0 {
                let tci = 0x1000 | u128::from(vlan & 0xfff) | u128::from(pcp & 7) << 13;
                m.set_masked(F::VlanTci, tci & bits, bits);
            }
        }
    }
    // 0x5ff: a frame with a length in place of an EtherType.
    if !has(DL_TYPE) {
        return Ok(m);
    }
    m.set(F::EthType, kind);
    let (arp, ip) = (matches!(kind, 0x806 | 0x8035), kind == 0x800);
    if !arp && !ip {
        return Ok(m);
    }
    let (fs, fd) = if arp { (F::ArpSpa, F::ArpTpa) } else { (F::IpSrc, F::IpDst) };
    for (f, v, wild_bits) in [(fs, ns, wild >> 8 & 0x3f), (fd, nd, wild >> 14 & 0x3f)] {
        let mask = u32::MAX.checked_shl(wild_bits).unwrap_or(0);
        if mask != 0 {
            m.set_masked(f, (v & mask).into(), mask.into());
        }
    }
    if has(NW_PROTO) {
        m.set(if arp { F::ArpOp } else { F::IpProto }, proto);
    }
    if has(NW_TOS) && ip {
        m.set_masked(F::NwTos, (tos & 0xfc).into(), 0xfc);
    }
    if let Some((fs, fd)) = transport(&m) {
        for (bit, f, v) in [(TP_SRC, fs, s), (TP_DST, fd, d)] {
            if has(bit) {
                m.set(f, v.into());
            }
        }
    }
    Ok(m)
}

/// Appends a padded NXM match, with a cookie to look for if `cookie` has a mask; gives its length without padding.
pub(crate) fn put_nxm(o: &mut Vec<u8>, m: &Match, cookie: Option<(u64, u64)>) -> u16 {
    let start = o.len();
    oxm::put_nxm_match(o, m);
    match cookie {
        Some((c, u64::MAX)) => {
            o.p32(COOKIE);
            o.p64(c);
        }
        Some((c, k)) if k != 0 => {
            o.p32(COOKIE_MASKED);
            o.p64(c);
            o.p64(k);
        }
        _ => {}
    }
    let n = (o.len() - start) as u16;
    o.pad8(start);
    n
}

/// Reads a padded NXM match of `n` bytes and the cookie in it, with its mask (0 for none).
pub(crate) fn pull_nxm(r: &mut Reader<'_>, n: usize, loose: bool) -> Result<(Match, u64, u64)> {
    let mut b = r.sub(n).map_err(|_| DecodeError::new(OfError::MatchBadLength, "a match longer than its message"))?;
    r.skip_pad(n.next_multiple_of(8) - n);
    let (mut cookie, mut mask) = (0, 0);
    let mut fields = Vec::with_capacity(n);
    while !b.is_empty() {
        let mut ahead = b;
        match ahead.u32()? {
            h @ (COOKIE | COOKIE_MASKED) => {
                cookie = ahead.u64()?;
                mask = if h == COOKIE { u64::MAX } else { ahead.u64()? };
                b = ahead;
            }
            h => fields.extend_from_slice(b.take(4 + (h & 0xff) as usize)?),
        }
    }
    Ok((oxm::decode_fields(&fields, loose)?, cookie, mask))
}

fn short(o: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = o.len();
    o.p16(kind);
    o.p16(0);
    body(o);
    o.pad8(start);
    o.patch_len(start + 2, start);
}

/// One action for a peer of OpenFlow 1.0.
pub(super) fn encode(o: &mut Vec<u8>, a: &Action) {
    match a {
        Action::Output { port, max_len } => short(o, 0, |o| {
            o.p16(port.0);
            o.p16(*max_len);
        }),
        Action::SetField { field, value, mask, .. } => set_field(o, *field, *value, *mask),
        Action::PopVlan => short(o, 3, |_| {}),
        Action::Group(g) => nicira::nx(o, 40, |o| {
            o.zeros(2);
            o.p32(g.0);
        }),
        Action::SetQueue(q) => nicira::nx(o, 4, |o| {
            o.zeros(2);
            o.p32(*q);
        }),
        Action::DecTtl(None) => nicira::nx(o, 18, |_| {}),
        Action::GotoTable(t) => encode_actions(o, &[Action::resubmit(*t)], Version::Of10),
        Action::WriteMetadata { value, mask } => nicira::nx(o, 22, |o| {
            o.zeros(6);
            o.p64(*value);
            o.p64(*mask);
        }),
        // Setting the tag's fields adds a tag where there is none.
        Action::PushVlan(_) | Action::Meter(_) | Action::ClearActions | Action::WriteActions(_) => {}
        Action::Load { value, dst } if !oxm::is_loadable(dst.field) => {
            let (value, mask) = (u128::from(*value) << dst.ofs, ones(dst.n_bits) << dst.ofs);
            nicira::set_field(o, dst.field, value, Some(mask));
        }
        Action::Load { value, dst } => nicira::load(o, *value, dst),
        a => nicira::encode(o, a, Version::Of10),
    }
}

fn set_field(o: &mut Vec<u8>, f: F, value: u128, given: Option<u128>) {
    let mask = given.unwrap_or(f.full_mask());
    if mask == f.full_mask() {
        let one = |o: &mut Vec<u8>, kind: u16, v: u128, n: usize| {
            short(o, kind, |o| o.uint(v, n));
        };
        match f {
            F::EthSrc => return one(o, 4, value, 6),
            F::EthDst => return one(o, 5, value, 6),
            F::IpSrc => return one(o, 6, value, 4),
            F::IpDst => return one(o, 7, value, 4),
            F::IpDscp => return one(o, 8, value << 2, 1),
            F::NwTos => return one(o, 8, value, 1),
            F::TcpSrc | F::UdpSrc | F::SctpSrc => return one(o, 9, value, 2),
            F::TcpDst | F::UdpDst | F::SctpDst => return one(o, 10, value, 2),
            F::VlanVid => return one(o, 1, value & 0xfff, 2),
            F::VlanPcp => return one(o, 2, value, 1),
            F::VlanTci => {
                one(o, 1, value & 0xfff, 2);
                return one(o, 2, value >> 13 & 7, 1);
            }
            _ => {}
        }
    }
    if oxm::is_loadable(f) {
        return loads(o, f, value, mask);
    }
    nicira::set_field(o, f, value, oxm::clip(f, given));
}

fn output(p: u16, max_len: u16) -> Result<Action> {
    // The reserved numbers start at 0xfff8; none of those between is a port.
    if (0xff00..0xfff8).contains(&p) || p == PortNo::ANY.0 {
        return Err(DecodeError::new(OfError::ActionBadOutPort, format!("output port {p:#x} is out of range")));
    }
    Ok(Action::Output { port: PortNo(p), max_len })
}

/// Decodes an action of OpenFlow 1.0; some are several actions of ours.
pub(super) fn decode(kind: u16, mut r: Reader<'_>, depth: usize, out: &mut Vec<Action>) -> Result<()> {
    let a = match kind {
        0 => output(r.u16()?, r.u16()?)?,
        1 => match r.u16()? {
            vid @ 0..=0xfff => Action::set(F::VlanVid, u128::from(vid) | 0x1000),
            vid => return Err(DecodeError::argument(format!("VLAN {vid}"))),
        },
        2 => match r.u8()? {
            pcp @ 0..=7 => Action::set(F::VlanPcp, pcp.into()),
            pcp => return Err(DecodeError::argument(format!("priority {pcp} of a VLAN"))),
        },
        3 => Action::PopVlan,
        4 => Action::set_old(F::EthSrc, r.uint(6)?),
        5 => Action::set_old(F::EthDst, r.uint(6)?),
        6 => Action::set_old(F::IpSrc, r.u32()?.into()),
        7 => Action::set_old(F::IpDst, r.u32()?.into()),
        8 => Action::set_old(F::IpDscp, u128::from(r.u8()? >> 2)),
        9 => Action::set_old(F::TcpSrc, r.u16()?.into()),
        10 => Action::set_old(F::TcpDst, r.u16()?.into()),
        11 => {
            let port = output(r.u16()?, 0)?;
            r.skip(6)?;
            out.push(Action::SetQueue(r.u32()?));
            out.push(port);
            Action::PopQueue
        }
        0xffff => {
            let vendor = r.u32()?;
            if vendor != NX_VENDOR {
                return Err(DecodeError::new(
                    OfError::ActionBadExperimenter,
                    format!("vendor {vendor:#x} is not supported"),
                ));
            }
            let subtype = r.u16()?;
            match subtype {
                4 => {
                    r.skip(2)?;
                    Action::SetQueue(r.u32()?)
                }
                18 => Action::DecTtl(None),
                22 => {
                    r.skip(6)?;
                    Action::WriteMetadata { value: r.u64()?, mask: r.u64()? }
                }
                40 => {
                    r.skip(2)?;
                    Action::Group(GroupId(r.u32()?))
                }
                _ => nicira::decode(subtype, r, Version::Of10, depth)?,
            }
        }
        k => return Err(DecodeError::action_type(k)),
    };
    out.push(a);
    Ok(())
}

/// Adds what newer versions say and 1.0 does not: the tag that setting a tag's fields adds, and which transport's ports
/// are set.
pub(crate) fn complete(f: &mut FlowMod) {
    let mut tagged = f.matches.get(F::VlanTci).0 & 0x1000 != 0;
    let mut out = Vec::with_capacity(f.actions.len() + 1);
    for a in std::mem::take(&mut f.actions) {
        match a {
            Action::SetField { field: F::VlanVid | F::VlanPcp, .. } if !tagged => {
                out.push(Action::PushVlan(0x8100));
                tagged = true;
            }
            Action::PushVlan(_) => tagged = true,
            Action::PopVlan => tagged = false,
            _ => {}
        }
        out.push(a);
    }
    f.actions = out;
    name_ports(f);
}

/// Says of which transport the ports are that actions set: 1.0 and 1.1 leave that to the packet.
pub(crate) fn name_ports(f: &mut FlowMod) {
    let (src, dst) = match f.matches.exact(F::IpProto) {
        Some(17) => (F::UdpSrc, F::UdpDst),
        Some(132) => (F::SctpSrc, F::SctpDst),
        _ => return,
    };
    for a in &mut f.actions {
        match a {
            Action::SetField { field: field @ F::TcpSrc, .. } => *field = src,
            Action::SetField { field: field @ F::TcpDst, .. } => *field = dst,
            _ => {}
        }
    }
}

/// Decodes a list of actions.
pub(crate) fn decode_actions(buf: &[u8]) -> Result<Vec<Action>> {
    decode_nested(buf, Version::Of10, 0)
}
