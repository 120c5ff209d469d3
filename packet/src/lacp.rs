//! Packets of LACP (IEEE 802.1AX-2014 section 6.4.2), behind the Ethernet header.

use crate::{Mac, be16, mac_at};

/// Bits of a state (section 6.4.2.3).
pub mod state {
    /// Sends PDUs by itself.
    pub const ACTIVITY: u8 = 0x01;
    /// Wants PDUs each second, not each thirty.
    pub const TIMEOUT: u8 = 0x02;
    /// May be part of an aggregation.
    pub const AGGREGATION: u8 = 0x04;
    /// Is part of the right one.
    pub const SYNC: u8 = 0x08;
    /// Takes packets.
    pub const COLLECTING: u8 = 0x10;
    /// Sends packets.
    pub const DISTRIBUTING: u8 = 0x20;
    /// Has no partner.
    pub const DEFAULTED: u8 = 0x40;
    /// The partner is silent.
    pub const EXPIRED: u8 = 0x80;
    /// With names, from the lowest.
    pub const NAMES: [&str; 8] =
        ["activity", "timeout", "aggregation", "synchronized", "collecting", "distributing", "defaulted", "expired"];
}

/// Bytes of a PDU behind the Ethernet header.
const PDU: usize = 110;

/// What a side says of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Info {
    /// System priority.
    pub sys_priority: u16,
    /// System.
    pub sys_id: Mac,
    /// Ports with the same key can be aggregated.
    pub key: u16,
    /// Port priority.
    pub port_priority: u16,
    /// Port.
    pub port_id: u16,
    /// See [`state`].
    pub state: u8,
}

impl Info {
    fn put(self, o: &mut Vec<u8>, kind: u8) {
        o.extend_from_slice(&[kind, 20]);
        o.extend_from_slice(&self.sys_priority.to_be_bytes());
        o.extend_from_slice(&self.sys_id[..]);
        for v in [self.key, self.port_priority, self.port_id] {
            o.extend_from_slice(&v.to_be_bytes());
        }
        o.extend_from_slice(&[self.state, 0, 0, 0]);
    }

    fn pull(b: &[u8], at: usize, kind: u8) -> Option<Info> {
        let head = (b.get(at)?, b.get(at + 1)?);
        (head == (&kind, &20)).then_some(())?;
        Some(Info {
            sys_priority: be16(b, at + 2)?,
            sys_id: mac_at(b, at + 4)?,
            key: be16(b, at + 10)?,
            port_priority: be16(b, at + 12)?,
            port_id: be16(b, at + 14)?,
            state: *b.get(at + 16)?,
        })
    }
}

/// Reads a PDU, which begins behind the Ethernet header: what its sender says of itself, and of us.
pub fn parse(b: &[u8]) -> Option<(Info, Info)> {
    // Subtype LACP; later versions keep the first part (section 6.4.2.4).
    let whole = b.len() >= PDU && b.first() == Some(&1) && b.get(1).is_some_and(|v| *v >= 1);
    whole.then(|| Info::pull(b, 2, 1).zip(Info::pull(b, 22, 2))).flatten()
}

/// Makes a PDU.
pub fn compose(actor: Info, partner: Info) -> Vec<u8> {
    let mut o = vec![1, 1];
    actor.put(&mut o, 1);
    partner.put(&mut o, 2);
    // Collector information, without a delay, and the end.
    o.extend_from_slice(&[3, 16]);
    o.resize(PDU, 0);
    o
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pdus_survive_and_cut_ones_do_not() {
        let one = |n: u8| Info {
            sys_priority: 7,
            sys_id: Mac([2, 0, 0, 0, 0, n]),
            key: 3,
            port_priority: 9,
            port_id: n.into(),
            state: 0x3d,
        };
        let pdu = compose(one(1), one(2));
        assert_eq!((pdu.len(), parse(&pdu)), (PDU, Some((one(1), one(2)))));
        for n in 0..PDU {
            assert_eq!(pdu.get(..n).and_then(parse), None);
        }
        let marker = [&[2], pdu.get(1..).unwrap_or_default()].concat();
        assert_eq!(parse(&marker), None);
    }
}
