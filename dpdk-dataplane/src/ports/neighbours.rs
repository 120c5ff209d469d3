//! Ethernet addresses of tunnels' next hops: the kernel's neighbours, and what ARP and neighbour discovery packets
//! teach.

use super::held::Held;
use packet::{Headers, Mac, arp_op, ethertype, mac_at};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use switch::HeldPacket;

/// The least time between two requests for the same address.
const ASK: Duration = Duration::from_secs(1);
/// The age at which a learned address is confirmed by a request.
const REFRESH: Duration = Duration::from_secs(30);
/// The age at which an unconfirmed address is forgotten, unless `tnl/neigh/aging` sets another.
const FORGET: Duration = Duration::from_secs(120);
/// The most addresses that are asked for, or learned unasked.
const MOST: usize = 4096;

/// The neighbours that tunnels need.
#[derive(Debug)]
pub struct Neighbours {
    /// The age at which an unconfirmed address is forgotten.
    pub aging: Duration,
    kernel: HashMap<IpAddr, Mac>,
    learned: HashMap<IpAddr, Learned>,
    /// When each was last asked for.
    asked: HashMap<IpAddr, Duration>,
    /// The next hops of tunnels whose other end is set.
    expected: HashSet<IpAddr>,
    /// Packets that wait for the answer.
    pub held: Held<Box<HeldPacket>>,
}

/// A neighbour that packets or an operator have taught.
#[derive(Debug)]
struct Learned {
    mac: Mac,
    /// When; none: an operator has set it.
    at: Option<Duration>,
    /// The bridge whose port it answered, or the name that an operator gave.
    device: Arc<str>,
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

    /// Learns from an ARP or neighbour discovery packet to a bridge's port: if a tunnel needs its sender, or the packet
    /// answers one of the host's own addresses.
    pub fn snoop(
        &mut self,
        p: &[u8],
        now: Duration,
        is_own: impl Fn(IpAddr) -> bool,
        device: impl Fn() -> Arc<str>,
    ) -> Option<(IpAddr, Mac)> {
        let s = sender(p)?;
        let (a, mac) = (s.address, s.mac);
        let known = self.kernel.contains_key(&a) || self.learned.contains_key(&a);
        let wanted = known || self.asked.contains_key(&a) || self.expected.contains(&a);
        if !wanted && (self.learned.len() >= MOST || !s.answers.is_some_and(is_own)) {
            return None;
        }
        self.learned.insert(a, Learned { mac, at: Some(now), device: device() });
        Some((a, mac))
    }

    /// Learns from an operator. Such an address is not confirmed and does not age; packets may teach another.
    pub fn teach(&mut self, a: IpAddr, mac: Mac, now: Duration, device: &str) {
        self.asked.entry(a).or_insert(now);
        self.learned.insert(a, Learned { mac, at: None, device: device.into() });
    }

    /// Forgets what was learned at devices that are gone; gives whose addresses they were.
    pub fn forget_devices(&mut self, is_there: impl Fn(&str) -> bool) -> Vec<IpAddr> {
        self.learned.extract_if(|_, l| !is_there(&l.device)).map(|(a, _)| a).collect()
    }

    /// Forgets all learned addresses; gives whose they were.
    pub fn flush(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.learned).into_keys().collect()
    }

    /// Forgets old addresses. Gives those to be confirmed or still awaited, and those that were forgotten.
    pub fn age(&mut self, now: Duration) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let old = |limit: Duration| -> Vec<IpAddr> {
            self.learned.iter().filter(|(_, l)| l.at.is_some_and(|t| t + limit <= now)).map(|(a, _)| *a).collect()
        };
        let (mut ask, forget) = (old(REFRESH.min(self.aging)), old(self.aging));
        // Nobody needs those that came unasked.
        ask.retain(|a| self.asked.contains_key(a));
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

    /// All neighbours: address, Ethernet address, and the device of those that were learned.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, Mac, Option<&str>)> {
        let kernel = self.kernel.iter().filter(|(a, _)| !self.learned.contains_key(a)).map(|(a, m)| (*a, *m, None));
        self.learned.iter().map(|(a, l)| (*a, l.mac, Some(&*l.device))).chain(kernel)
    }
}

/// Who sent an ARP packet or a neighbour advertisement or solicitation.
#[derive(Debug, PartialEq, Eq)]
struct Sender {
    address: IpAddr,
    mac: Mac,
    /// The address that it answers; none: it asks, or speaks to all.
    answers: Option<IpAddr>,
}

fn sender(p: &[u8]) -> Option<Sender> {
    let kind = packet::be16(p, 12)?;
    let at = if kind == ethertype::VLAN { 18 } else { 14 };
    let kind = if kind == ethertype::VLAN { packet::be16(p, 16)? } else { kind };
    match kind {
        ethertype::ARP => {
            let mac = mac_at(p, at + 8)?;
            let ip = Ipv4Addr::from(packet::be32(p, at + 14)?);
            let reply = packet::be16(p, at + 6)? == arp_op::REPLY;
            let answers = packet::be32(p, at + 24).filter(|_| reply).map(|a| Ipv4Addr::from(a).into());
            (!ip.is_unspecified()).then_some(Sender { address: ip.into(), mac, answers })
        }
        ethertype::IPV6 => {
            let h = Headers::parse(p)?;
            let icmp = h.l4.filter(|_| h.proto == packet::ipproto::ICMPV6)?;
            match *p.get(icmp)? {
                136 => {
                    let target = Ipv6Addr::from(packet::be128(p, icmp + 8)?);
                    // The option may be absent in answers to unicast probes.
                    let mac = packet::nd_options(p, &h).and_then(|o| o.tll).map(|(m, _)| m).or_else(|| mac_at(p, 6))?;
                    let answers = h.addresses(p).map(|(_, dst)| Ipv6Addr::from(dst).into());
                    Some(Sender { address: target.into(), mac, answers })
                }
                135 => {
                    let (src, _) = h.addresses(p)?;
                    (src != 0).then_some(())?;
                    Some(Sender { address: Ipv6Addr::from(src).into(), mac: mac_at(p, 6)?, answers: None })
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
        let snoop = |n: &mut Neighbours, own: bool, now| n.snoop(&reply, now, |_| own, || "br0".into());
        assert_eq!(snoop(&mut n, false, t(0)), None);
        n.expect([a.into()].into());
        assert_eq!(snoop(&mut n, false, t(0)), Some((a.into(), mac)), "a tunnel's other end");
        assert_eq!(n.flush(), [IpAddr::from(a)]);
        n.expect(HashSet::new());
        assert_eq!(snoop(&mut n, false, t(0)), None);
        assert!(n.want(a.into(), t(0)) && !n.want(a.into(), Duration::from_millis(900)) && n.want(a.into(), t(1)));
        assert_eq!(snoop(&mut n, false, t(2)), Some((a.into(), mac)));
        assert_eq!(n.age(t(10)), (vec![], vec![]));
        assert_eq!(n.age(t(40)), (vec![a.into()], vec![]));
        assert_eq!(n.age(t(200)).1, vec![IpAddr::from(a)]);
        assert_eq!(n.iter().count(), 0);
        n.teach(a.into(), mac, t(200), "br0");
        assert_eq!(n.age(t(2000)), (vec![], vec![]), "an operator's is neither asked for nor forgotten");
        assert_eq!(snoop(&mut n, false, t(2000)), Some((a.into(), mac)));
        assert_eq!(n.age(t(2040)), (vec![a.into()], vec![]));
    }

    #[test]
    fn answers_to_own_addresses_are_learned_unasked() {
        let mut n = Neighbours::default();
        let (a, own, mac) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1), Mac([2, 0, 0, 0, 0, 2]));
        let reply = packet::build::arp_reply(mac, a, Mac([2, 0, 0, 0, 0, 1]), own);
        let request = packet::build::arp_request(mac, a, own);
        let is_own = |x: IpAddr| x == IpAddr::from(own);
        let t = Duration::from_secs;
        assert_eq!(n.snoop(&request, t(0), is_own, || "br0".into()), None, "a request answers nobody");
        assert_eq!(n.snoop(&reply, t(0), |_| false, || "br0".into()), None, "an answer to another host");
        assert_eq!(n.snoop(&reply, t(0), is_own, || "br0".into()), Some((a.into(), mac)));
        assert_eq!(n.age(t(60)), (vec![], vec![]), "nobody asks for it");
        assert_eq!(n.iter().next(), Some((a.into(), mac, Some("br0"))));
        assert_eq!(n.forget_devices(|d| d == "br0"), Vec::<IpAddr>::new());
        assert_eq!(n.forget_devices(|_| false), [IpAddr::from(a)]);
    }

    #[test]
    fn advertisements_are_read() {
        let (a, mac) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), Mac([2, 0, 0, 0, 0, 2]));
        let na = packet::build::nd_na(mac, a, Mac([2, 0, 0, 0, 0, 1]), Ipv6Addr::LOCALHOST, 0x60);
        let answers = Some(Ipv6Addr::LOCALHOST.into());
        assert_eq!(sender(&na), Some(Sender { address: a.into(), mac, answers }));
        assert_eq!(sender(&[0; 20]), None);
    }
}
