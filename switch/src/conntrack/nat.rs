//! Choice of translated addresses and ports.
//!
//! Where the search for a free port begins follows from the connection alone. So two gateways, even if neither is told of
//! the other's connections, give a connection the same port, and different connections different ones where they can. An
//! identifier of ICMP that is taken becomes the next one that is free.

use super::Tuple;
use openflow_rs::action::NatSpec;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most ports tried before a connection is refused. They lie all over the range, so that this many are taken only where
/// nearly all are.
const TRIES: u64 = 4096;
/// How many addresses of a range are tried, and how many ports of each but the first: where all are taken, each packet costs
/// all of these lookups.
const ADDRESSES: u128 = 64;
const FEWER_TRIES: u64 = 64;
/// How many identifiers of ICMP behind its own an echo tries first.
const NEXT: u64 = 64;

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
/// to prefetch its line. Only speed depends on it, so that halves of two addresses in one place do no harm.
#[derive(Debug)]
pub(super) struct ReplyTuplePrefetch([[AtomicU64; 2]; NEIGHBOURHOODS]);

impl Default for ReplyTuplePrefetch {
    fn default() -> ReplyTuplePrefetch {
        ReplyTuplePrefetch([const { [AtomicU64::new(0), AtomicU64::new(0)] }; NEIGHBOURHOODS])
    }
}

impl ReplyTuplePrefetch {
    fn place(&self, t: &Tuple) -> Option<&[AtomicU64; 2]> {
        let net = if t.v6 { (t.src >> 64) as u64 } else { t.src as u64 >> 8 };
        self.0.get(mix(net) as usize % NEIGHBOURHOODS)
    }

    /// A connection was opened.
    pub(super) fn opened(&self, original: &Tuple, reply: &Tuple) {
        let to = if reply.dst == original.src { 0 } else { reply.dst };
        for (half, n) in self.place(original).into_iter().flatten().zip([to as u64, (to >> 64) as u64]) {
            // Threads that write what is there take the line from each other for nothing.
            if half.load(Relaxed) != n {
                half.store(n, Relaxed);
            }
        }
    }

    /// The predicted reply tuple of a new connection.
    pub(super) fn reply(&self, original: &Tuple) -> Tuple {
        let habit = self
            .place(original)
            .map_or(0, |[low, high]| u128::from(high.load(Relaxed)) << 64 | u128::from(low.load(Relaxed)));
        Tuple { dst: if habit == 0 { original.src } else { habit }, ..original.reversed() }
    }
}

/// The reply tuple of a new connection that is translated by `nat`; `None` if the range has nothing that is not
/// `taken`. Where ports are chosen at random they follow from `seed`.
pub(super) fn choose_reply(
    t: &Tuple,
    nat: Option<&NatSpec>,
    seed: &mut u64,
    mut taken: impl FnMut(&Tuple) -> bool,
) -> Option<Tuple> {
    let plain = t.reversed();
    let Some(n) = nat.filter(|n| n.src || n.dst) else {
        return Some(plain);
    };
    let own = if n.src { plain.dst } else { plain.src };
    let ((v6, lo), (_, hi)) = n.range.addr.map_or(((t.v6, own), (t.v6, own)), |(lo, hi)| (number(lo), number(hi)));
    if v6 != t.v6 || hi < lo {
        return None;
    }
    let span = (hi - lo).saturating_add(1);
    let first = if span == 1 { 0 } else { u128::from(hash(t)) % span };
    let (mut i, mut tries) = (0, TRIES);
    // A host keeps its address as long as that has a port for it.
    loop {
        let address = lo + if i == 0 { first } else { first.wrapping_add(i) % span };
        let reply = if n.src { Tuple { dst: address, ..plain } } else { Tuple { src: address, ..plain } };
        let chosen = choose_port(t, n, reply, tries, seed, &mut taken);
        (i, tries) = (i + 1, FEWER_TRIES);
        if chosen.is_some() || i >= span.min(ADDRESSES) {
            return chosen;
        }
    }
}

#[inline]
fn choose_port(
    t: &Tuple,
    n: &NatSpec,
    reply: Tuple,
    tries: u64,
    seed: &mut u64,
    taken: &mut impl FnMut(&Tuple) -> bool,
) -> Option<Tuple> {
    let icmp = t.is_icmp();
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
        if !taken(&same) {
            return Some(same);
        }
    }
    if !ports {
        return None;
    }
    let start = if n.random {
        *seed = mix(seed.wrapping_add(1));
        *seed
    } else {
        port_hash(t)
    };
    if icmp && !n.random {
        // The next one, as in Open vSwitch.
        let behind = u64::from(current).saturating_sub(u64::from(range.0)) + 1;
        let next = search(taken, reply, range, Way { start: behind, step: 1, tries: NEXT }, put);
        if next.is_some() {
            return next;
        }
    }
    // If translating the destination makes two connections equal, the source port is changed, too.
    search(taken, reply, range, Way::of(start, range, tries), put).or_else(|| {
        let mut to = reply;
        put(&mut to, if inside { current } else { range.0 });
        if !n.dst || icmp {
            return None;
        }
        let range = class(t.sport);
        search(taken, to, range, Way::of(start, range, tries), |r, p| r.dport = p)
    })
}

/// The way of a search through a range of ports.
struct Way {
    start: u64,
    /// From one port to the next.
    step: u64,
    tries: u64,
}

impl Way {
    /// A way that follows from a hash and comes to each port of a range once. Its steps are long: hosts use ports one behind
    /// the other, so that the next one of a port that is taken mostly is as well.
    fn of(hash: u64, range: (u16, u16), tries: u64) -> Way {
        let span = span(range);
        let mut step = 1 + (hash >> 32) % span;
        while common_divisor(step, span) != 1 {
            step += 1;
        }
        Way { start: hash, step, tries }
    }
}

/// How many ports a range has.
fn span((lo, hi): (u16, u16)) -> u64 {
    u64::from(hi.saturating_sub(lo)) + 1
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The first reply tuple with a port of this range that is not taken.
fn search(
    taken: &mut impl FnMut(&Tuple) -> bool,
    mut reply: Tuple,
    range: (u16, u16),
    Way { start, step, tries }: Way,
    put: impl Fn(&mut Tuple, u16),
) -> Option<Tuple> {
    let span = span(range);
    (0..span.min(tries)).find_map(|i| {
        put(&mut reply, range.0 + ((start % span + i * step) % span) as u16);
        (!taken(&reply)).then_some(reply)
    })
}

/// A source port stays in its class (RFC 4787 REQ-3); classes are those of Open vSwitch and Linux.
fn class(port: u16) -> (u16, u16) {
    match port {
        0..512 => (1, 511),
        512..1024 => (600, 1023),
        _ => (1024, 65535),
    }
}
