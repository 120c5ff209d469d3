//! Geneve (RFC 8926) and VXLAN (RFC 7348) headers.

use crate::{be16, be32};

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
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
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
            vni: be32(b, 4)? >> 8,
            oam: second & 0x80 != 0,
            critical: second & 0x40 != 0,
            protocol: be16(b, 2)?,
            options: Vec::new(),
            len,
        })
    }

    /// Appends a header. Option data is padded to four bytes.
    pub fn put(out: &mut Vec<u8>, vni: u32, oam: bool, options: &[(u16, u8, Vec<u8>)]) {
        let n: usize = options.iter().map(|o| 4 + o.2.len().next_multiple_of(4)).sum();
        let critical = options.iter().any(|o| o.1 & 0x80 != 0);
        out.push((n / 4) as u8 & 0x3f);
        out.push(u8::from(oam) << 7 | u8::from(critical) << 6);
        out.extend_from_slice(&0x6558u16.to_be_bytes());
        out.extend_from_slice(&(vni << 8).to_be_bytes());
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

/// Reads a VXLAN header: the network identifier, `None` if it is cut or has none.
pub fn vxlan_vni(b: &[u8]) -> Option<u32> {
    (b.first()? & 0x08 != 0).then_some(())?;
    Some(be32(b, 4)? >> 8)
}

/// Appends a VXLAN header.
pub fn put_vxlan(out: &mut Vec<u8>, vni: u32) {
    out.extend_from_slice(&[8, 0, 0, 0]);
    out.extend_from_slice(&(vni << 8).to_be_bytes());
}
