//! Ethernet addresses of tunnels' next hops: the kernel's neighbours, and what ARP and neighbour discovery packets
//! teach.

use super::held::Held;
use packet::{Headers, Mac, ethertype, mac_at};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use switch::HeldPacket;

/// The least time between two requests for the same address.
const ASK: Duration = Duration::from_secs(1);
/// The age at which a learned address is confirmed by a request.
const REFRESH: Duration = Duration::from_secs(30);
/// The age at which an unconfirmed address is forgotten, unless `tnl/neigh/aging` sets another.
const FORGET: Duration = Duration::from_secs(120);
/// The most addresses that are asked for.
const MOST: usize = 4096;

/// The neighbours that tunnels need.
#[derive(Debug)]
pub struct Neighbours {
    /// The age at which an unconfirmed address is forgotten.
    pub aging: Duration,
    kernel: HashMap<IpAddr, Mac>,
    /// With the time at which each was learned; none: an operator has set it.
    learned: HashMap<IpAddr, (Mac, Option<Duration>)>,
    /// When each was last asked for.
    asked: HashMap<IpAddr, Duration>,
    /// The next hops of tunnels whose other end is set.
    expected: HashSet<IpAddr>,
    /// Packets that wait for the answer.
    pub held: Held<Box<HeldPacket>>,
}

impl Default for Neighbours {
    fn default() -> Neighbours {
        let (kernel, learned, asked, expected, held) = Default::default();
        Neighbours { aging: FORGET, kernel, learned, asked, expected, held }
    }
}

impl Neighbours {
    /// Whether to send a request for this address now.
    pub fn want(&mut self, a: IpAddr, now: Duration) -> bool {
        if self.asked.len() >= MOST && !self.asked.contains_key(&a) {
            return false;
        }
        let due = self.asked.get(&a).is_none_or(|t| *t + ASK <= now);
        if due {
            self.asked.insert(a, now);
        }
        due
    }

    /// Replaces the next hops of tunnels whose other end is set: answers of theirs are believed unasked.
    pub fn expect(&mut self, hops: HashSet<IpAddr>) {
        self.expected = hops;
    }

    /// Replaces the kernel's neighbours; gives what has changed.
    pub fn set_kernel(&mut self, table: HashMap<IpAddr, Mac>) -> Vec<(IpAddr, Option<Mac>)> {
        let old = std::mem::replace(&mut self.kernel, table);
        let keys: HashSet<IpAddr> = old.keys().chain(self.kernel.keys()).copied().collect();
        keys.into_iter()
            .filter(|a| !self.learned.contains_key(a) && old.get(a) != self.kernel.get(a))
            .map(|a| (a, self.kernel.get(&a).copied()))
            .collect()
    }

    /// Learns from an ARP or neighbour discovery packet to the host, if a tunnel needs its sender.
    pub fn snoop(&mut self, p: &[u8], now: Duration) -> Option<(IpAddr, Mac)> {
        let (a, mac) = sender(p)?;
        if !self.asked.contains_key(&a) && !self.kernel.contains_key(&a) && !self.expected.contains(&a) {
            return None;
        }
        self.learned.insert(a, (mac, Some(now)));
        Some((a, mac))
    }

    /// Learns from an operator. Such an address is not confirmed and does not age; packets may teach another.
    pub fn teach(&mut self, a: IpAddr, mac: Mac, now: Duration) {
        self.asked.entry(a).or_insert(now);
        self.learned.insert(a, (mac, None));
    }

    /// Forgets all learned addresses; gives whose they were.
    pub fn flush(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.learned).into_keys().collect()
    }

    /// Forgets old addresses. Gives those to be confirmed or still awaited, and those that were forgotten.
    pub fn age(&mut self, now: Duration) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let old = |limit: Duration| -> Vec<IpAddr> {
            self.learned.iter().filter(|(_, (_, t))| t.is_some_and(|t| t + limit <= now)).map(|(a, _)| *a).collect()
        };
        let (mut ask, forget) = (old(REFRESH.min(self.aging)), old(self.aging));
        ask.extend(self.held.hops());
        for a in &forget {
            self.learned.remove(a);
        }
        (ask, forget)
    }

    /// The kernel's neighbour entry of an address.
    pub fn of_kernel(&self, a: IpAddr) -> Option<Mac> {
        self.kernel.get(&a).copied()
    }

    /// All neighbours: address, Ethernet address, whether it was learned from packets.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, Mac, bool)> {
        let kernel = self.kernel.iter().filter(|(a, _)| !self.learned.contains_key(a)).map(|(a, m)| (*a, *m, false));
        self.learned.iter().map(|(a, (m, _))| (*a, *m, true)).chain(kernel)
    }
}

/// The sender that an ARP packet or a neighbour advertisement or solicitation names.
fn sender(p: &[u8]) -> Option<(IpAddr, Mac)> {
    let kind = packet::be16(p, 12)?;
    let at = if kind == ethertype::VLAN { 18 } else { 14 };
    let kind = if kind == ethertype::VLAN { packet::be16(p, 16)? } else { kind };
    match kind {
        ethertype::ARP => {
            let mac = mac_at(p, at + 8)?;
            let ip = Ipv4Addr::from(packet::be32(p, at + 14)?);
            (!ip.is_unspecified()).then_some((ip.into(), mac))
        }
        ethertype::IPV6 => {
            let h = Headers::parse(p)?;
            let icmp = h.l4.filter(|_| h.proto == packet::ipproto::ICMPV6)?;
            match *p.get(icmp)? {
                136 => {
                    let target = Ipv6Addr::from(packet::be128(p, icmp + 8)?);
                    // The option may be absent in answers to unicast probes.
                    let mac = packet::nd_options(p, &h).and_then(|o| o.tll).map(|(m, _)| m).or_else(|| mac_at(p, 6))?;
                    Some((target.into(), mac))
                }
                135 => {
                    let (src, _) = h.addresses(p)?;
                    (src != 0).then_some(())?;
                    Some((Ipv6Addr::from(src).into(), mac_at(p, 6)?))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wanted_addresses_are_learned_and_age() {
        let mut n = Neighbours::default();
        let (a, mac) = (Ipv4Addr::new(10, 0, 0, 2), Mac([2, 0, 0, 0, 0, 2]));
        let reply = packet::build::arp_reply(mac, a, Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1));
        let t = Duration::from_secs;
        assert_eq!(n.snoop(&reply, t(0)), None);
        n.expect([a.into()].into());
        assert_eq!(n.snoop(&reply, t(0)), Some((a.into(), mac)), "a tunnel's other end");
        assert_eq!(n.flush(), [IpAddr::from(a)]);
        n.expect(HashSet::new());
        assert_eq!(n.snoop(&reply, t(0)), None);
        assert!(n.want(a.into(), t(0)) && !n.want(a.into(), Duration::from_millis(900)) && n.want(a.into(), t(1)));
        assert_eq!(n.snoop(&reply, t(2)), Some((a.into(), mac)));
        assert_eq!(n.age(t(10)), (vec![], vec![]));
        assert_eq!(n.age(t(40)), (vec![a.into()], vec![]));
        assert_eq!(n.age(t(200)).1, vec![IpAddr::from(a)]);
        assert_eq!(n.iter().count(), 0);
        n.teach(a.into(), mac, t(200));
        assert_eq!(n.age(t(2000)), (vec![], vec![]), "an operator's is neither asked for nor forgotten");
        assert_eq!(n.snoop(&reply, t(2000)), Some((a.into(), mac)));
        assert_eq!(n.age(t(2040)), (vec![a.into()], vec![]));
    }

    #[test]
    fn advertisements_are_read() {
        let (a, mac) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), Mac([2, 0, 0, 0, 0, 2]));
        let na = packet::build::nd_na(mac, a, Mac([2, 0, 0, 0, 0, 1]), Ipv6Addr::LOCALHOST, 0x60);
        assert_eq!(sender(&na), Some((a.into(), mac)));
        assert_eq!(sender(&[0; 20]), None);
    }
}
