//! Choice of translated addresses and ports.
//!
//! Where the search for a free port begins follows from the connection alone. So two gateways, even if neither is told of
//! the other's connections, give a connection the same port, and different connections different ones where they can.

use super::{Conntrack, Request, Tuple, Zone};
use openflow_rs::action::NatSpec;
use std::net::IpAddr;
use std::time::Duration;

/// Most ports tried before a connection is refused.
const TRIES: u64 = 4096;

fn number(a: IpAddr) -> (bool, u128) {
    match a {
        IpAddr::V4(a) => (false, u128::from(u32::from(a))),
        IpAddr::V6(a) => (true, u128::from(a)),
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

fn hash(t: &Tuple) -> u64 {
    [t.src as u64, (t.src >> 64) as u64, t.dst as u64, (t.dst >> 64) as u64, u64::from(t.proto)]
        .iter()
        .fold(0x1234, |h, v| mix(h ^ v))
}

/// Of all that a connection is known by: the same on every chassis and after each start.
fn port_hash(t: &Tuple) -> u64 {
    let ports = u64::from(t.sport) << 32 | u64::from(t.dport) << 16 | u64::from(t.icmp_type);
    mix(hash(t) ^ mix(ports))
}

/// Prefixes of hosts whose last translation is remembered.
const NEIGHBOURHOODS: usize = 64;

/// The addresses that hosts of a prefix were last translated to: they predict the reply tuple of the next connection,
/// to prefetch its line. Only speed depends on it.
#[derive(Debug)]
pub(super) struct ReplyTuplePrefetch([Option<u128>; NEIGHBOURHOODS]);

impl Default for ReplyTuplePrefetch {
    fn default() -> ReplyTuplePrefetch {
        ReplyTuplePrefetch([None; NEIGHBOURHOODS])
    }
}

impl ReplyTuplePrefetch {
    fn place(t: &Tuple) -> usize {
        let net = if t.v6 { (t.src >> 64) as u64 } else { t.src as u64 >> 8 };
        mix(net) as usize % NEIGHBOURHOODS
    }

    /// A connection was opened.
    pub(super) fn opened(&mut self, original: &Tuple, reply: &Tuple) {
        if let Some(h) = self.0.get_mut(Self::place(original)) {
            *h = Some(reply.dst).filter(|to| *to != original.src);
        }
    }

    /// The predicted reply tuple of a new connection.
    pub(super) fn reply(&self, original: &Tuple) -> Tuple {
        let habit = self.0.get(Self::place(original)).copied().flatten();
        Tuple { dst: habit.unwrap_or(original.src), ..original.reversed() }
    }
}

impl Conntrack {
    fn taken(&self, zone: Zone, t: &Tuple, now: Duration) -> bool {
        self.find(zone, t).is_some_and(|(i, _)| self.expires(i) > now)
    }

    /// The reply tuple of a new connection; `None` if the range has nothing free.
    pub(super) fn choose_reply(&mut self, t: &Tuple, req: &Request<'_>, now: Duration) -> Option<Tuple> {
        let plain = t.reversed();
        let Some(n) = req.nat.filter(|n| n.src || n.dst) else {
            return Some(plain);
        };
        let mut reply = plain;
        if let Some((lo, hi)) = n.range.addr {
            let ((v6, lo), (_, hi)) = (number(lo), number(hi));
            if v6 != t.v6 || hi < lo {
                return None;
            }
            let span = (hi - lo).saturating_add(1);
            let pick = lo + u128::from(hash(t)) % span;
            if n.src {
                reply.dst = pick;
            } else {
                reply.src = pick;
            }
        }
        self.choose_port(t, n, reply, req.zone, now)
    }

    fn choose_port(&mut self, t: &Tuple, n: &NatSpec, reply: Tuple, zone: Zone, now: Duration) -> Option<Tuple> {
        let icmp = matches!(t.proto, 1 | 58);
        let ports = icmp || matches!(t.proto, 6 | 17 | 132);
        let current = if n.src { t.sport } else { t.dport };
        let put = |r: &mut Tuple, p: u16| {
            if icmp {
                (r.sport, r.dport) = (p, p);
            } else if n.src {
                r.dport = p;
            } else {
                r.sport = p;
            }
        };
        let range = match n.range.port {
            Some(r) if !icmp => r,
            None if icmp => (1, 65535),
            _ if icmp => (1024, 65535),
            _ if n.dst => (current, current),
            _ => class(current),
        };
        if range.1 < range.0 {
            return None;
        }
        // Protocols without ports ignore a range of ports.
        let inside = !ports || (range.0..=range.1).contains(&current) || n.range.port.is_none();
        if inside && !(n.random && ports) {
            let mut same = reply;
            put(&mut same, current);
            if !self.taken(zone, &same, now) {
                return Some(same);
            }
        }
        if !ports {
            return None;
        }
        let start = if n.random {
            self.seed = mix(self.seed.wrapping_add(1));
            self.seed
        } else {
            port_hash(t)
        };
        // If translating the destination makes two connections equal, the source port is changed, too.
        self.search(zone, now, reply, range, (start, TRIES), put).or_else(|| {
            let mut to = reply;
            put(&mut to, if inside { current } else { range.0 });
            if !n.dst || icmp {
                return None;
            }
            self.search(zone, now, to, class(t.sport), (start, TRIES), |r, p| r.dport = p)
        })
    }

    /// The first free reply tuple with a port of this range.
    fn search(
        &self,
        zone: Zone,
        now: Duration,
        mut reply: Tuple,
        (lo, hi): (u16, u16),
        (start, tries): (u64, u64),
        put: impl Fn(&mut Tuple, u16),
    ) -> Option<Tuple> {
        let span = u64::from(hi - lo) + 1;
        (0..span.min(tries)).find_map(|i| {
            put(&mut reply, lo + ((start % span + i) % span) as u16);
            (!self.taken(zone, &reply, now)).then_some(reply)
        })
    }
}

/// A source port stays in its class (RFC 4787 REQ-3); classes are those of Open vSwitch and Linux.
fn class(port: u16) -> (u16, u16) {
    match port {
        0..512 => (1, 511),
        512..1024 => (600, 1023),
        _ => (1024, 65535),
    }
}
