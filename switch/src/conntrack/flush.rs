//! Removing many connections at once: those of a zone, or those that a filter selects.
//!
//! The table is looked through part by part ([`Conntrack::flush_part`]), as all of a million connections at once would keep
//! packets from it for a quarter of a second.

use super::{Connection, Conntrack, Tuple, Zone};
use openflow_rs::Message;
use openflow_rs::message::{CtFlush, CtTuple};
use std::net::IpAddr;

/// Which connections are removed.
#[derive(Clone, Debug)]
pub enum Flush {
    /// Those of a zone.
    Zone(Zone),
    /// Those that a filter selects.
    Filter(CtFlush),
}

/// Whether what is asked of a tuple is so.
fn fits(t: &Tuple, q: &CtTuple) -> bool {
    let number = |a: IpAddr| match a {
        IpAddr::V4(a) => (false, u128::from(u32::from(a))),
        IpAddr::V6(a) => (true, u128::from(a)),
    };
    q.src.is_none_or(|a| number(a) == (t.v6, t.src))
        && q.dst.is_none_or(|a| number(a) == (t.v6, t.dst))
        && q.src_port.is_none_or(|p| p == t.sport)
        && q.dst_port.is_none_or(|p| p == t.dport)
        && q.icmp_id.is_none_or(|p| p == t.sport)
        && q.icmp_type.is_none_or(|p| p == t.icmp_type)
        && q.icmp_code.is_none_or(|p| p == t.icmp_code)
}

impl Flush {
    /// What a controller's message asks to remove, if it is one that does.
    pub fn asked(m: &Message) -> Option<Flush> {
        match m {
            Message::CtFlushZone(z) => Some(Flush::Zone(Zone(*z))),
            Message::CtFlush(f) => Some(Flush::Filter(f.clone())),
            _ => None,
        }
    }

    /// The zone that they are in; none: in any.
    fn zone(&self) -> Option<Zone> {
        match self {
            Flush::Zone(z) => Some(*z),
            Flush::Filter(f) => {
                // A complete tuple is looked up in zone 0 if no zone is given (ovs-ofctl(8), ct-flush).
                let whole = Flush::is_full(f) && f.mark.is_none() && f.label.is_none();
                f.zone.map(Zone).or(whole.then_some(Zone::DEFAULT))
            }
        }
    }

    /// Whether a filter has one complete tuple.
    fn is_full(f: &CtFlush) -> bool {
        let o = &f.original;
        let ports = matches!(f.proto, 1 | 58) || o.src_port.is_some() && o.dst_port.is_some();
        o.src.is_some() && o.dst.is_some() && ports && f.reply == CtTuple::default()
    }

    /// Whether a connection of the zone is one of them.
    fn selects(&self, c: &Connection) -> bool {
        let Flush::Filter(f) = self else { return true };
        (f.proto == 0 || f.proto == c.original.proto)
            && f.mark.is_none_or(|(v, m)| c.mark & m == v & m)
            && f.label.is_none_or(|(v, m)| c.label & m == v & m)
            // The tuple of either direction names a connection.
            && (fits(&c.original, &f.original) && fits(&c.reply, &f.reply)
                || Flush::is_full(f) && fits(&c.reply, &f.original))
    }
}

impl Conntrack {
    /// Removes those in `n` slots from one on. Returns how many they were, and where to go on; none: there are no more.
    /// Connections that are made meanwhile may stay.
    pub fn flush_part(&mut self, what: &Flush, from: usize, n: usize) -> (usize, Option<usize>) {
        let (zone, to) = (what.zone(), from.saturating_add(n).min(self.slots.len()));
        if zone.is_some_and(|z| self.zones.is_empty(z)) {
            return (0, None);
        }
        let mut removed = 0;
        for i in from as u32..to as u32 {
            if self.slots.get(i).is_some_and(|c| zone.is_none_or(|z| z == c.zone) && what.selects(c)) {
                removed += 1;
                self.unheard += u64::from(self.delete(i).is_some_and(|c| c.owner != 0));
            }
        }
        (removed, Some(to).filter(|to| *to < self.slots.len()))
    }

    /// Removes all of them at once; returns their number.
    pub fn flush(&mut self, what: &Flush) -> usize {
        self.flush_part(what, 0, usize::MAX).0
    }

    /// Removes all connections of a zone at once; returns their number.
    pub fn flush_zone(&mut self, zone: Zone) -> usize {
        self.flush(&Flush::Zone(zone))
    }
}
