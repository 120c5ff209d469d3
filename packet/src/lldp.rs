//! LLDP data units (IEEE 802.1AB-2016 clause 8), with their frame, and the elements of Auto Attach, by which a switch at
//! the edge of a network of IEEE 802.1aq learns which VLANs belong to which of its services.

use crate::{Mac, VlanId, be16, be32};
use std::fmt;

/// Where they are sent to: the nearest bridge (IEEE 802.1AB table 7-1).
pub const ADDRESS: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 0x0e]);
/// Their EtherType.
pub const ETHERTYPE: u16 = 0x88cc;
/// The capability of a bridge (IEEE 802.1AB table 8-4).
pub const BRIDGE: u16 = 1 << 2;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// The longest value that a length of nine bits allows.
const LONGEST: usize = 511;
/// Who defined the elements of Auto Attach, and which these are.
const AUTO_ATTACH: [u8; 3] = [0x00, 0x04, 0x0d];
const ELEMENT: u8 = 11;
const ASSIGNMENTS: u8 = 12;
/// Octets of the digest before what these say; nobody signs it.
const DIGEST: usize = 32;
/// Octets of an element, and of an assignment.
const ELEMENT_LEN: usize = 14;
const ASSIGNMENT_LEN: usize = 5;

/// Types of values (IEEE 802.1AB table 8-1).
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const CHASSIS: u8 = 1;
    pub(super) const PORT: u8 = 2;
    pub(super) const TTL: u8 = 3;
    pub(super) const PORT_DESCRIPTION: u8 = 4;
    pub(super) const SYSTEM_NAME: u8 = 5;
    pub(super) const SYSTEM_DESCRIPTION: u8 = 6;
    pub(super) const CAPABILITIES: u8 = 7;
    pub(super) const ORGANIZATION: u8 = 127;
}

/// The name of a chassis or a port, and what it is a name of (IEEE 802.1AB tables 8-2 and 8-3).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Id {
    /// What it is.
    pub kind: u8,
    /// The name.
    pub value: Vec<u8>,
}

impl Id {
    /// A chassis by its address.
    pub fn chassis(mac: Mac) -> Id {
        Id { kind: 4, value: mac.to_vec() }
    }

    /// A port by the name of its interface.
    pub fn interface(name: &str) -> Id {
        Id { kind: 5, value: name.as_bytes().iter().copied().take(LONGEST - 1).collect() }
    }
}

/// An element of Auto Attach: what a neighbour is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Element {
    /// Its kind; 14 is a virtual switch.
    pub kind: u8,
    /// Six bits of state.
    pub state: u8,
    /// The VLAN of its management.
    pub vlan: VlanId,
    /// Its system.
    pub system: [u8; 10],
}

/// The kind of element that a virtual switch is.
pub const VIRTUAL_SWITCH: u8 = 14;

/// A VLAN that belongs to a service, or is asked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// What has become of it; 0: it is asked for.
    pub status: u8,
    /// The VLAN.
    pub vlan: VlanId,
    /// The service.
    pub isid: u32,
}

/// A data unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lldpdu {
    /// Who sends it.
    pub chassis: Id,
    /// By which port.
    pub port: Id,
    /// Seconds that it holds for; 0: it holds no longer.
    pub ttl: u16,
    /// What the port is.
    pub port_description: String,
    /// The system's name.
    pub system_name: String,
    /// What the system is.
    pub system_description: String,
    /// What it could be, and what it is.
    pub capabilities: Option<(u16, u16)>,
    /// What it is for Auto Attach.
    pub element: Option<Element>,
    /// Its VLANs.
    pub assignments: Vec<Assignment>,
    /// Values of other organisations.
    pub unrecognized: u32,
}

/// Why a frame is no data unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotAnLldpdu {
    /// A value has fewer bytes than its type wants.
    Short(&'static str),
    /// A value is there twice.
    Twice(&'static str),
    /// The first three values are not the chassis, the port and the time to live.
    Missing(&'static str),
    /// The frame ends before a value does.
    Cut,
}

impl fmt::Display for NotAnLldpdu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotAnLldpdu::Short(name) => write!(f, "{name} TLV too short"),
            NotAnLldpdu::Twice(name) => write!(f, "{name} TLV twice"),
            NotAnLldpdu::Missing(name) => write!(f, "no {name} TLV where it has to be"),
            NotAnLldpdu::Cut => f.write_str("a TLV that is longer than the frame"),
        }
    }
}

impl std::error::Error for NotAnLldpdu {}

fn put(o: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let len = parts.iter().map(|p| p.len()).sum::<usize>().min(LONGEST);
    o.extend_from_slice(&(u16::from(kind) << 9 | len as u16).to_be_bytes());
    o.extend(parts.iter().copied().flatten().take(len));
}

/// A text; values that are empty are left out.
fn put_text(o: &mut Vec<u8>, kind: u8, text: &str) {
    if !text.is_empty() {
        put(o, kind, &[text.as_bytes()]);
    }
}

/// The frame of a data unit.
pub fn compose(source: Mac, unit: &Lldpdu) -> Vec<u8> {
    let mut o = [&ADDRESS[..], &source[..], &ETHERTYPE.to_be_bytes()].concat();
    put(&mut o, kind::CHASSIS, &[&[unit.chassis.kind], &unit.chassis.value]);
    put(&mut o, kind::PORT, &[&[unit.port.kind], &unit.port.value]);
    put(&mut o, kind::TTL, &[&unit.ttl.to_be_bytes()]);
    put_text(&mut o, kind::PORT_DESCRIPTION, &unit.port_description);
    put_text(&mut o, kind::SYSTEM_NAME, &unit.system_name);
    put_text(&mut o, kind::SYSTEM_DESCRIPTION, &unit.system_description);
    if let Some((could, is)) = unit.capabilities {
        put(&mut o, kind::CAPABILITIES, &[&could.to_be_bytes(), &is.to_be_bytes()]);
    }
    if let Some(e) = unit.element {
        let first = u32::from(e.kind) << 26 | u32::from(e.state & 0x3f) << 20 | u32::from(e.vlan.get()) << 8;
        put(&mut o, kind::ORGANIZATION, &[&AUTO_ATTACH, &[ELEMENT], &[0; DIGEST], &first.to_be_bytes(), &e.system]);
    }
    // As many as one value has room for.
    for list in unit.assignments.chunks((LONGEST - 4 - DIGEST) / ASSIGNMENT_LEN) {
        let bytes: Vec<u8> = list.iter().flat_map(assignment).collect();
        put(&mut o, kind::ORGANIZATION, &[&AUTO_ATTACH, &[ASSIGNMENTS], &[0; DIGEST], &bytes]);
    }
    put(&mut o, kind::END, &[]);
    o
}

fn assignment(a: &Assignment) -> [u8; ASSIGNMENT_LEN] {
    let [s, v] = (u16::from(a.status) << 12 | a.vlan.get()).to_be_bytes();
    let [_, x, y, z] = a.isid.to_be_bytes();
    [s, v, x, y, z]
}

/// Reads a frame.
///
/// # Errors
/// What is wrong with it.
pub fn parse(frame: &[u8]) -> Result<Lldpdu, NotAnLldpdu> {
    let (mut unit, mut at, mut n) = (Lldpdu::default(), ETHERNET, 0);
    while let Some(head) = be16(frame, at) {
        let (kind, len) = ((head >> 9) as u8, usize::from(head & 0x1ff));
        let value = frame.get(at + 2..at + 2 + len).ok_or(NotAnLldpdu::Cut)?;
        at += 2 + len;
        // "The first three TLVs ... shall be ... in the order shown" (IEEE 802.1AB section 8.2).
        let wanted = [(kind::CHASSIS, "Chassis ID"), (kind::PORT, "Port ID"), (kind::TTL, "Time To Live")];
        match wanted.get(n) {
            Some((k, name)) if *k != kind => return Err(NotAnLldpdu::Missing(name)),
            None => {
                if let Some((_, name)) = wanted.iter().find(|(k, _)| *k == kind) {
                    return Err(NotAnLldpdu::Twice(name));
                }
            }
            Some(_) => {}
        }
        n += 1;
        if kind == kind::END {
            break;
        }
        unit.take(kind, value)?;
    }
    match n {
        0..3 => Err(NotAnLldpdu::Cut),
        _ => Ok(unit),
    }
}

impl Lldpdu {
    fn take(&mut self, kind: u8, value: &[u8]) -> Result<(), NotAnLldpdu> {
        let text = || String::from_utf8_lossy(value).into_owned();
        let id = |name| match value {
            [kind, value @ ..] if !value.is_empty() => Ok(Id { kind: *kind, value: value.to_vec() }),
            _ => Err(NotAnLldpdu::Short(name)),
        };
        match kind {
            kind::CHASSIS => self.chassis = id("Chassis ID")?,
            kind::PORT => self.port = id("Port ID")?,
            kind::TTL => self.ttl = be16(value, 0).ok_or(NotAnLldpdu::Short("Time To Live"))?,
            kind::PORT_DESCRIPTION => self.port_description = text(),
            kind::SYSTEM_NAME => self.system_name = text(),
            kind::SYSTEM_DESCRIPTION => self.system_description = text(),
            kind::CAPABILITIES => {
                let short = NotAnLldpdu::Short("System capabilities");
                self.capabilities = Some((be16(value, 0).ok_or(short)?, be16(value, 2).ok_or(short)?));
            }
            kind::ORGANIZATION => {
                let (head, rest) = value.split_first_chunk::<4>().ok_or(NotAnLldpdu::Short("Organisational"))?;
                match (head.first_chunk::<3>(), head[3]) {
                    (Some(&AUTO_ATTACH), ELEMENT) => self.element = Some(element(rest)?),
                    (Some(&AUTO_ATTACH), ASSIGNMENTS) => self.take_assignments(rest)?,
                    _ => self.unrecognized += 1,
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn take_assignments(&mut self, value: &[u8]) -> Result<(), NotAnLldpdu> {
        let list = value.get(DIGEST..).ok_or(NotAnLldpdu::Short("ISID_VLAN_ASGNS"))?;
        self.assignments.extend(list.as_chunks::<ASSIGNMENT_LEN>().0.iter().map(|[s, v, x, y, z]| Assignment {
            status: s >> 4,
            vlan: VlanId::of_tci(u16::from_be_bytes([*s, *v])),
            isid: u32::from_be_bytes([0, *x, *y, *z]),
        }));
        Ok(())
    }
}

fn element(value: &[u8]) -> Result<Element, NotAnLldpdu> {
    let short = NotAnLldpdu::Short("ELEMENT");
    let body = value.get(DIGEST..DIGEST + ELEMENT_LEN).ok_or(short)?;
    let (first, system) = (be32(body, 0).ok_or(short)?, body.last_chunk().ok_or(short)?);
    Ok(Element {
        kind: (first >> 26) as u8,
        state: (first >> 20) as u8 & 0x3f,
        vlan: VlanId::of_tci((first >> 8) as u16),
        system: *system,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Lldpdu {
        Lldpdu {
            chassis: Id::chassis(Mac([2, 0, 0, 0, 0, 1])),
            port: Id::interface("eth1"),
            ttl: 120,
            port_description: "to the rack".into(),
            system_name: "gw1".into(),
            system_description: "Isthmus".into(),
            capabilities: Some((BRIDGE, BRIDGE)),
            element: Some(Element { kind: VIRTUAL_SWITCH, state: 0x21, vlan: VlanId::of_tci(0x123), system: [7; 10] }),
            assignments: (1..200)
                .map(|n| Assignment { status: 2, vlan: VlanId::of_tci(n), isid: 0x10_0000 + u32::from(n) })
                .collect(),
            unrecognized: 0,
        }
    }

    #[test]
    fn data_units_come_back_as_they_were() {
        let unit = whole();
        let frame = compose(Mac([2, 0, 0, 0, 0, 9]), &unit);
        assert_eq!(parse(&frame), Ok(unit));
        let least = Lldpdu { chassis: Id::chassis(Mac::ZERO), port: Id::interface("p"), ttl: 0, ..Lldpdu::default() };
        let frame = compose(Mac::ZERO, &least);
        // Chassis, port and time to live as the standard draws them (figures 8-4 to 8-6), and the end.
        let bytes = [2, 7, 4, 0, 0, 0, 0, 0, 0, 4, 2, 5, b'p', 6, 2, 0, 0, 0, 0];
        assert_eq!(frame[ETHERNET..], bytes);
        // Nothing has to mark the end, and padding behind it is none of it.
        assert_eq!(parse(&frame[..frame.len() - 2]), Ok(least.clone()));
        assert_eq!(parse(&[frame, vec![9; 30]].concat()), Ok(least));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let frame = compose(Mac::ZERO, &whole());
        for n in 0..frame.len() - 2 {
            // What is cut between values is shorter and whole.
            assert!(parse(&frame[..n]).map_or_else(|e| !e.to_string().is_empty(), |u| u.ttl == 120), "{n}");
        }
        let with = |tlv: &[u8]| {
            let least =
                Lldpdu { chassis: Id::chassis(Mac::ZERO), port: Id::interface("p"), ttl: 9, ..Lldpdu::default() };
            let frame = compose(Mac::ZERO, &least);
            parse(&[&frame[..frame.len() - 2], tlv].concat()).map_err(|e| e.to_string())
        };
        assert_eq!(with(&[0xfe, 5, 0, 4, 0x0d, 12, 1]), Err("ISID_VLAN_ASGNS TLV too short".into()));
        assert_eq!(with(&[0xfe, 5, 0, 4, 0x0d, 11, 1]), Err("ELEMENT TLV too short".into()));
        assert_eq!(with(&[6, 2, 0, 1]), Err("Time To Live TLV twice".into()));
        assert_eq!(with(&[0xfe, 4, 0, 0x80, 0xc2, 1]).map(|u| u.unrecognized), Ok(1));
        assert_eq!(parse(&frame[..20]), Err(NotAnLldpdu::Cut));
        assert_eq!(parse(&[&[0; ETHERNET][..], &[4, 2, 5, b'p']].concat()), Err(NotAnLldpdu::Missing("Chassis ID")));
    }
}
