//! What IGMP (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810) packets say of groups.

use crate::{Headers, be16, be32, be128, checksum, ipproto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How a group was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IGMPv1.
    Igmp1,
    /// IGMPv2.
    Igmp2,
    /// IGMPv3.
    Igmp3,
    /// MLDv1.
    Mld1,
    /// MLDv2.
    Mld2,
}

impl Version {
    /// All of them, with their names.
    pub const ALL: [(Version, &str); 5] = [
        (Version::Igmp1, "IGMPv1"),
        (Version::Igmp2, "IGMPv2"),
        (Version::Igmp3, "IGMPv3"),
        (Version::Mld1, "MLDv1"),
        (Version::Mld2, "MLDv2"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Version::ALL.iter().find(|(v, _)| *v == self).map_or("", |(_, n)| n)
    }
}

/// What a packet says of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A host wants it.
    Join(IpAddr, Version),
    /// A host does not want it any more.
    Leave(IpAddr),
    /// A router asks who wants which groups.
    Query,
}

/// What a packet says, and whether it is a query. None: it is no such packet, or its checksum is wrong.
pub fn read(p: &[u8]) -> Option<(Vec<Said>, bool)> {
    let h = Headers::parse(p)?;
    if h.is_ipv4() && h.proto == ipproto::IGMP {
        let at = h.l3 + usize::from(*p.get(h.l3)? & 0xf) * 4;
        let b = p.get(at..h.l3_end).filter(|b| b.len() >= 8 && checksum::of(b) == 0)?;
        let group = IpAddr::V4(Ipv4Addr::from(be32(b, 4)?));
        return Some(match b[0] {
            0x11 => (vec![Said::Query], true),
            0x12 => (vec![Said::Join(group, Version::Igmp1)], false),
            0x16 => (vec![Said::Join(group, Version::Igmp2)], false),
            0x17 => (vec![Said::Leave(group)], false),
            0x22 => (records(b, 4, Version::Igmp3), false),
            _ => return None,
        });
    }
    let at = h.l4.filter(|_| h.is_ipv6() && h.proto == ipproto::ICMPV6 && checksum::l4_ok(p, &h))?;
    let b = p.get(at..h.l3_end)?;
    let group = || be128(b, 8).map(|a| IpAddr::V6(Ipv6Addr::from(a)));
    Some(match b.first()? {
        // Who has no address yet is no router.
        130 => (if h.addresses(p)?.0 == 0 { Vec::new() } else { vec![Said::Query] }, true),
        131 => (vec![Said::Join(group()?, Version::Mld1)], false),
        132 => (vec![Said::Leave(group()?)], false),
        143 => (records(b, 16, Version::Mld2), false),
        _ => return None,
    })
}

/// The records of a report of IGMPv3 (RFC 3376 section 4.2) or MLDv2 (RFC 3810 section 5.2), whose addresses have `size` octets.
fn records(b: &[u8], size: usize, version: Version) -> Vec<Said> {
    let (mut out, mut at) = (Vec::new(), 8);
    for _ in 0..be16(b, 6).unwrap_or(0) {
        let (Some([kind, words]), Some(sources)) = (b.get(at..at + 2), be16(b, at + 2)) else { break };
        let address = match size {
            4 => be32(b, at + 4).map(|a| IpAddr::V4(a.into())),
            _ => be128(b, at + 4).map(|a| IpAddr::V6(a.into())),
        };
        let Some(address) = address else { break };
        match (kind, sources) {
            // From nobody: not at all.
            (1 | 3, 0) => out.push(Said::Leave(address)),
            (1..=6, _) => out.push(Said::Join(address, version)),
            _ => {}
        }
        at += 4 + size * (1 + usize::from(sources)) + usize::from(*words) * 4;
    }
    out
}
