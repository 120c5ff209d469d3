//! Geneve (RFC 8926) and VXLAN (RFC 7348) headers.

use crate::{Vni, be16, be32};

/// UDP port of Geneve.
pub const GENEVE_PORT: u16 = 6081;
/// UDP port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;

/// A Geneve option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GeneveOption<'a> {
    /// Class.
    pub class: u16,
    /// Type; the top bit says that the option is critical.
    pub kind: u8,
    /// Value.
    pub data: &'a [u8],
}

/// A Geneve header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geneve<'a> {
    /// Virtual network identifier.
    pub vni: Vni,
    /// Control packet.
    pub oam: bool,
    /// Some option is critical.
    pub critical: bool,
    /// EtherType of what follows; 0x6558 is Ethernet.
    pub protocol: u16,
    /// Options.
    pub options: Vec<GeneveOption<'a>>,
    /// Bytes of the header, options included.
    pub len: usize,
}

impl<'a> Geneve<'a> {
    /// Reads a header; `None` if it is cut, malformed, or of another version.
    pub fn parse(b: &'a [u8]) -> Option<Geneve<'a>> {
        let mut options = Vec::new();
        let g = Geneve::parse_with(b, |o| options.push(o))?;
        Some(Geneve { options, ..g })
    }

    /// The same, with the options told one by one instead of put into the header.
    pub fn parse_with(b: &'a [u8], mut tell: impl FnMut(GeneveOption<'a>)) -> Option<Geneve<'a>> {
        let first = *b.first()?;
        let second = *b.get(1)?;
        if first >> 6 != 0 {
            return None;
        }
        let len = 8 + usize::from(first & 0x3f) * 4;
        let mut rest = b.get(8..len)?;
        while !rest.is_empty() {
            let n = usize::from(*rest.get(3)? & 0x1f) * 4;
            tell(GeneveOption { class: be16(rest, 0)?, kind: *rest.get(2)?, data: rest.get(4..4 + n)? });
            rest = rest.get(4 + n..)?;
        }
        Some(Geneve {
            vni: Vni::of_word(be32(b, 4)?),
            oam: second & 0x80 != 0,
            critical: second & 0x40 != 0,
            protocol: be16(b, 2)?,
            options: Vec::new(),
            len,
        })
    }

    /// Appends a header. Option data is padded to four bytes.
    pub fn put(out: &mut Vec<u8>, vni: Vni, oam: bool, options: &[(u16, u8, Vec<u8>)]) {
        let n: usize = options.iter().map(|o| 4 + o.2.len().next_multiple_of(4)).sum();
        let critical = options.iter().any(|o| o.1 & 0x80 != 0);
        out.push((n / 4) as u8 & 0x3f);
        out.push(u8::from(oam) << 7 | u8::from(critical) << 6);
        out.extend_from_slice(&0x6558u16.to_be_bytes());
        out.extend_from_slice(&vni.word().to_be_bytes());
        for (class, kind, data) in options {
            let len = data.len().next_multiple_of(4);
            out.extend_from_slice(&class.to_be_bytes());
            out.push(*kind);
            out.push((len / 4) as u8 & 0x1f);
            out.extend_from_slice(data);
            out.resize(out.len() + len - data.len(), 0);
        }
    }
}

/// What a VXLAN header with the generic protocol extension says that it carries (draft-ietf-nvo3-vxlan-gpe section
/// 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VxlanPayload {
    /// Ethernet: a header of RFC 7348, or one with the extension.
    Ethernet,
    /// A packet of this EtherType, by the extension only.
    Ethertype(u16),
}

/// A header of VXLAN with its extensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vxlan {
    /// Network identifier.
    pub vni: Vni,
    /// With the generic protocol extension.
    pub gpe: bool,
    /// What is behind it.
    pub payload: VxlanPayload,
    /// Group policy (draft-smith-vxlan-group-policy): identifier, and flags (0x40: do not learn, 0x08: applied).
    pub policy: Option<(u16, u8)>,
}

/// Bits of VXLAN's first byte: group policy, a network identifier, a next protocol, operations and maintenance.
const POLICY: u8 = 0x80;
const VNI: u8 = 0x08;
const NEXT: u8 = 0x04;
const OAM: u8 = 0x01;
/// The protocols of the extension, and their EtherTypes.
const NEXT_ETHERNET: u8 = 3;
const NEXT_PROTOCOLS: [(u8, u16); 3] = [(1, 0x0800), (2, 0x86dd), (4, 0x894f)];

impl Vxlan {
    /// Reads a header; `None` if it is cut, has no identifier, or names an unknown next protocol.
    pub fn parse(b: &[u8]) -> Option<Vxlan> {
        let (&[first, flags, high, low], vni) = (b.first_chunk()?, vxlan_vni(b)?);
        let policy = (first & POLICY != 0).then(|| (u16::from_be_bytes([high, low]), flags & 0x48));
        if first & NEXT == 0 {
            return Some(Vxlan { vni, gpe: false, payload: VxlanPayload::Ethernet, policy });
        }
        let kind = NEXT_PROTOCOLS.iter().find(|(n, _)| *n == low).map(|(_, t)| VxlanPayload::Ethertype(*t));
        let payload = if low == NEXT_ETHERNET { Some(VxlanPayload::Ethernet) } else { kind };
        Some(Vxlan { vni, gpe: true, payload: payload.filter(|_| first & OAM == 0)?, policy: None })
    }

    /// Appends the header. False, and nothing is appended, if it has no number for the payload's protocol.
    pub fn put(&self, out: &mut Vec<u8>) -> bool {
        let next = match self.payload {
            VxlanPayload::Ethernet => Some(NEXT_ETHERNET),
            VxlanPayload::Ethertype(t) => NEXT_PROTOCOLS.iter().find(|(_, kind)| *kind == t).map(|(n, _)| *n),
        };
        match (self.gpe, next, self.payload, self.policy) {
            (true, Some(next), ..) => out.extend_from_slice(&[VNI | NEXT, 0, 0, next]),
            (false, _, VxlanPayload::Ethernet, Some((id, flags))) => {
                let [high, low] = id.to_be_bytes();
                out.extend_from_slice(&[VNI | POLICY, flags & 0x48, high, low]);
            }
            (false, _, VxlanPayload::Ethernet, None) => out.extend_from_slice(&[VNI, 0, 0, 0]),
            _ => return false,
        }
        out.extend_from_slice(&self.vni.word().to_be_bytes());
        true
    }
}

/// Reads a VXLAN header: the network identifier, `None` if it is cut or has none.
pub fn vxlan_vni(b: &[u8]) -> Option<Vni> {
    (b.first()? & 0x08 != 0).then_some(())?;
    be32(b, 4).map(Vni::of_word)
}

/// Appends a VXLAN header.
pub fn put_vxlan(out: &mut Vec<u8>, vni: Vni) {
    out.extend_from_slice(&[8, 0, 0, 0]);
    out.extend_from_slice(&vni.word().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vxlan_headers_say_what_is_behind_them() {
        let plain = Vxlan { vni: Vni::of_low_bits(7), gpe: false, payload: VxlanPayload::Ethernet, policy: None };
        let cases = [
            (plain, "0800000000000700"),
            (Vxlan { gpe: true, ..plain }, "0c00000300000700"),
            (Vxlan { gpe: true, payload: VxlanPayload::Ethertype(0x0800), ..plain }, "0c00000100000700"),
            (Vxlan { gpe: true, payload: VxlanPayload::Ethertype(0x894f), ..plain }, "0c00000400000700"),
            (Vxlan { policy: Some((0x1234, 0x48)), ..plain }, "8848123400000700"),
        ];
        for (v, bytes) in cases {
            let mut out = Vec::new();
            assert!(v.put(&mut out));
            assert_eq!(out.iter().map(|b| format!("{b:02x}")).collect::<String>(), bytes);
            assert_eq!(Vxlan::parse(&out), Some(v));
        }
        for bad in [&[0, 0, 0, 0, 0, 0, 7, 0][..], &[0x0c, 0, 0, 9, 0, 0, 7, 0], &[0x0d, 0, 0, 1, 0, 0, 7, 0], &[8; 7]]
        {
            assert_eq!(Vxlan::parse(bad), None, "{bad:x?}");
        }
        let arp = Vxlan { gpe: true, payload: VxlanPayload::Ethertype(0x0806), ..plain };
        assert!(!arp.put(&mut Vec::new()) && !Vxlan { gpe: false, ..arp }.put(&mut Vec::new()));
    }
}
