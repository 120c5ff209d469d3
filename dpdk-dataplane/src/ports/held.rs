//! Packets that wait for the Ethernet addresses of tunnels' next hops.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// How long a packet waits; requests go out once a second (RFC 4861 section 10: three of them).
const HOLD: Duration = Duration::from_secs(3);
/// The most packets that wait for one next hop.
const EACH: usize = 16;
/// The most packets that wait.
const ALL: usize = 1024;

/// Packets by next hop, with the time at which each came; the oldest first.
#[derive(Debug)]
pub struct Held<T> {
    hops: HashMap<IpAddr, VecDeque<(Duration, T)>>,
    /// How many packets that are.
    n: usize,
}

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held { hops: HashMap::new(), n: 0 }
    }
}

impl<T> Held<T> {
    /// Keeps a packet until its next hop is known. Gives how many are lost for want of room: the oldest of the same next
    /// hop, or this one.
    pub fn put(&mut self, hop: IpAddr, packet: T, now: Duration) -> u64 {
        let full = self.n >= ALL;
        if full && !self.hops.contains_key(&hop) {
            return 1;
        }
        let waiting = self.hops.entry(hop).or_default();
        let lost = (full || waiting.len() >= EACH).then(|| waiting.pop_front()).flatten();
        waiting.push_back((now, packet));
        self.n += usize::from(lost.is_none());
        u64::from(lost.is_some())
    }

    /// Takes the packets whose next hops are known now.
    pub fn take(&mut self, known: impl Fn(IpAddr) -> bool) -> Vec<T> {
        if self.n == 0 {
            return Vec::new();
        }
        let ready: Vec<IpAddr> = self.hops().filter(|hop| known(*hop)).collect();
        let taken: Vec<T> = ready.iter().filter_map(|hop| self.hops.remove(hop)).flatten().map(|(_, p)| p).collect();
        self.n -= taken.len();
        taken
    }

    /// Gives up the packets that have waited too long; how many.
    pub fn give_up(&mut self, now: Duration) -> u64 {
        let mut lost = 0;
        self.hops.retain(|_, waiting| {
            let before = waiting.len();
            waiting.retain(|(since, _)| *since + HOLD > now);
            lost += before - waiting.len();
            !waiting.is_empty()
        });
        self.n -= lost;
        lost as u64
    }

    /// The next hops that packets wait for.
    pub fn hops(&self) -> impl Iterator<Item = IpAddr> {
        self.hops.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(n).into()
    }

    #[test]
    fn packets_wait_in_their_order_for_three_seconds() {
        let (mut h, t) = (Held::<u32>::default(), Duration::from_secs);
        for n in 0..4 {
            assert_eq!(h.put(hop(n % 2), n, t(u64::from(n))), 0);
        }
        assert!(h.take(|_| false).is_empty());
        assert_eq!((h.give_up(t(2)), h.give_up(t(3)), h.hops().count()), (0, 1, 2));
        assert_eq!(h.take(|a| a == hop(1)), vec![1, 3]);
        assert_eq!((h.give_up(t(5)), h.hops().count(), h.n), (1, 0, 0));
    }

    #[test]
    fn there_is_a_limit() {
        let (mut h, now) = (Held::default(), Duration::ZERO);
        let lost: u64 = (0..EACH + 2).map(|n| h.put(hop(0), n, now)).sum();
        assert_eq!((lost, h.take(|_| true)), (2, (2..EACH + 2).collect()));
        let lost: u64 = (0..ALL + 9).map(|n| h.put(hop((n % ALL) as u32), n, now)).sum();
        assert_eq!((lost, h.put(hop(u32::MAX), 0, now)), (9, 1));
        let left = h.take(|_| true);
        assert_eq!((left.len(), left.iter().any(|n| *n < 9), h.n), (ALL, false, 0));
    }
}
