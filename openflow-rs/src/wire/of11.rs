//! OpenFlow 1.1's match, and its actions for single fields. What they cannot say is left out of a match; fields without an
//! action of their own are loaded (Nicira).

use super::of10::transport;
use super::{DecodeError, Put, Reader, Result, actions, nicira, oxm};
use crate::OfError;
use crate::action::Action;
use crate::field::FieldId as F;
use crate::flow_match::Match;
use crate::port::PortNo;

const IN_PORT: u32 = 1;
const VLAN: u32 = 1 << 1;
const VLAN_PCP: u32 = 1 << 2;
const DL_TYPE: u32 = 1 << 3;
const NW_TOS: u32 = 1 << 4;
const NW_PROTO: u32 = 1 << 5;
const TP_SRC: u32 = 1 << 6;
const TP_DST: u32 = 1 << 7;
const MPLS_LABEL: u32 = 1 << 8;
const MPLS_TC: u32 = 1 << 9;

/// `dl_vlan`: any tag, and none.
const ANY_TAG: u16 = 0xfffe;
const NO_TAG: u16 = 0xffff;
/// Bytes of an `ofp_match` of type 0.
const LEN: u16 = 88;

fn is_arp(kind: u128) -> bool {
    matches!(kind, 0x806 | 0x8035)
}

/// Appends an `ofp_match` (OpenFlow 1.1 section A.2.3.2). One bits in its masks are bits that do not matter.
pub(crate) fn put_match(o: &mut Vec<u8>, m: &Match) {
    let mut wild = MPLS_LABEL | MPLS_TC;
    let mut exact = |f: F, bit: u32| {
        m.exact(f).unwrap_or_else(|| {
            wild |= bit;
            0
        })
    };
    let port = exact(F::InPort, IN_PORT);
    let kind = exact(F::EthType, DL_TYPE);
    let proto = exact(if is_arp(kind) { F::ArpOp } else { F::IpProto }, NW_PROTO);
    let ports = transport(m);
    let tp_src = ports.map_or(0, |p| exact(p.0, TP_SRC));
    let tp_dst = ports.map_or(0, |p| exact(p.1, TP_DST));
    if ports.is_none() {
        wild |= TP_SRC | TP_DST;
    }
    let (tos, tos_mask) = m.get(F::NwTos);
    if tos_mask & 0xfc != 0xfc {
        wild |= NW_TOS;
    }
    let (tci, mask) = m.get(F::VlanTci);
    let vlan = match (tci & 0x1000 != 0, mask & 0x1000 != 0, mask & 0xfff != 0) {
        (false, true, _) => NO_TAG,
        (true, true, false) => ANY_TAG,
        (_, _, true) => (tci & 0xfff) as u16,
        (_, false, false) => {
            wild |= VLAN;
            0
        }
    };
    if mask & 0xe000 != 0xe000 || vlan == NO_TAG {
        wild |= VLAN_PCP;
    }
    o.p16(0);
    o.p16(LEN);
    o.p32(PortNo(port as u16).to_u32());
    o.p32(wild);
    for f in [F::EthSrc, F::EthDst] {
        let (value, mask) = m.get(f);
        o.uint(value, 6);
        o.uint(!mask, 6);
    }
    o.p16(vlan);
    o.p8(if wild & VLAN_PCP == 0 { (tci >> 13) as u8 & 7 } else { 0 });
    o.p8(0);
    o.p16(kind as u16);
    o.p8(if wild & NW_TOS == 0 { tos as u8 & 0xfc } else { 0 });
    o.p8(proto as u8);
    for f in if is_arp(kind) { [F::ArpSpa, F::ArpTpa] } else { [F::IpSrc, F::IpDst] } {
        let (value, mask) = m.get(f);
        o.p32(value as u32);
        o.p32(!(mask as u32));
    }
    o.p16(tp_src as u16);
    o.p16(tp_dst as u16);
    o.zeros(8);
    let (value, mask) = m.get(F::Metadata);
    o.p64(value as u64);
    o.p64(!(mask as u64));
}

/// Reads an `ofp_match`. Fields without their prerequisites are ignored.
pub(crate) fn pull_match(r: &mut Reader<'_>) -> Result<Match> {
    let (kind, len) = (r.u16()?, r.u16()?);
    if (kind, len) != (0, LEN) {
        return Err({
            let error = if kind == 0 { OfError::MatchBadLength } else { OfError::MatchBadType };
            DecodeError::new(error, format!("match type {kind}, length {len}"))
        });
    }
    let mut m = Match::new();
    let (port, wild) = (r.u32()?, r.u32()?);
    let has = |bit: u32| wild & bit == 0;
    if has(IN_PORT) {
        let port = PortNo::from_u32(port)
            .ok_or_else(|| DecodeError::new(OfError::MatchBadValue, "ingress port out of range"))?;
        m.set(F::InPort, port.0.into());
    }
    for f in [F::EthSrc, F::EthDst] {
        let (value, mask) = (r.uint(6)?, !r.uint(6)? & f.full_mask());
        if mask != 0 {
            m.set_masked(f, value & mask, mask);
        }
    }
    let (vlan, pcp) = (r.u16()?, r.u8()?);
    r.skip(1)?;
    if has(VLAN) {
        let (mut tci, mut mask) = match vlan {
            NO_TAG => (0, 0xffff),
            ANY_TAG => (0x1000, 0x1000),
            n => (0x1000 | u128::from(n & 0xfff), 0x1fff),
        };
        if has(VLAN_PCP) && vlan != NO_TAG {
            tci |= u128::from(pcp & 7) << 13;
            mask |= 0xe000;
        }
        m.set_masked(F::VlanTci, tci, mask);
    }
    let kind = u128::from(r.u16()?);
    let (tos, proto) = (r.u8()?, u128::from(r.u8()?));
    let mut addresses = [(0, 0); 2];
    for a in &mut addresses {
        *a = (r.u32()?, !r.u32()?);
    }
    let ports = [(TP_SRC, r.u16()?), (TP_DST, r.u16()?)];
    r.skip(8)?;
    let (metadata, mask) = (r.u64()?, !r.u64()?);
    if mask != 0 {
        m.set_masked(F::Metadata, (metadata & mask).into(), mask.into());
    }
    if !has(DL_TYPE) {
        return Ok(m);
    }
    m.set(F::EthType, kind);
    let (arp, ip) = (is_arp(kind), kind == 0x800);
    if arp || ip {
        let fields = if arp { [F::ArpSpa, F::ArpTpa] } else { [F::IpSrc, F::IpDst] };
        for (f, (value, mask)) in fields.into_iter().zip(addresses).filter(|(_, a)| a.1 != 0) {
            m.set_masked(f, (value & mask).into(), mask.into());
        }
    }
    if has(NW_PROTO) && (arp || ip || kind == 0x86dd) {
        m.set(if arp { F::ArpOp } else { F::IpProto }, proto);
    }
    if has(NW_TOS) && (ip || kind == 0x86dd) {
        m.set_masked(F::NwTos, (tos & 0xfc).into(), 0xfc);
    }
    if let Some((src, dst)) = transport(&m) {
        for (f, (bit, value)) in [src, dst].into_iter().zip(ports) {
            if has(bit) {
                m.set(f, value.into());
            }
        }
    }
    Ok(m)
}

/// Sets some of a field's bits.
pub(super) fn set_field(o: &mut Vec<u8>, f: F, value: u128, mask: u128) {
    let mut one = |kind: u16, value: u128, n: usize| {
        let start = o.len();
        o.p16(kind);
        o.p16(0);
        o.uint(value, n);
        o.pad8(start);
        o.patch_len(start + 2, start);
    };
    if mask == f.full_mask() {
        match f {
            F::VlanVid => return one(1, value & 0xfff, 2),
            F::VlanPcp => return one(2, value, 1),
            F::VlanTci => {
                one(1, value & 0xfff, 2);
                return one(2, value >> 13 & 7, 1);
            }
            F::EthSrc => return one(3, value, 6),
            F::EthDst => return one(4, value, 6),
            F::IpSrc => return one(5, value, 4),
            F::IpDst => return one(6, value, 4),
            F::IpDscp => return one(7, value << 2, 1),
            F::NwTos => return one(7, value, 1),
            F::IpEcn => return one(8, value, 1),
            F::TcpSrc | F::UdpSrc | F::SctpSrc => return one(9, value, 2),
            F::TcpDst | F::UdpDst | F::SctpDst => return one(10, value, 2),
            _ => {}
        }
    }
    if oxm::is_loadable(f) {
        return actions::loads(o, f, value, mask);
    }
    nicira::set_field(o, f, value, oxm::clip(f, Some(mask)));
}

/// An action for a single field; `None` for other types.
pub(super) fn decode(kind: u16, r: &mut Reader<'_>) -> Result<Option<Action>> {
    Ok(Some(match kind {
        1 => Action::set(F::VlanVid, u128::from(r.u16()? & 0xfff) | 0x1000),
        2 => Action::set(F::VlanPcp, u128::from(r.u8()? & 7)),
        3 => Action::set_old(F::EthSrc, r.uint(6)?),
        4 => Action::set_old(F::EthDst, r.uint(6)?),
        5 => Action::set_old(F::IpSrc, r.u32()?.into()),
        6 => Action::set_old(F::IpDst, r.u32()?.into()),
        7 => Action::set_old(F::IpDscp, u128::from(r.u8()? >> 2)),
        8 => Action::set_old(F::IpEcn, u128::from(r.u8()? & 3)),
        9 => Action::set_old(F::TcpSrc, r.u16()?.into()),
        10 => Action::set_old(F::TcpDst, r.u16()?.into()),
        _ => return Ok(None),
    }))
}
