//! How many packet-ins controllers get: a flood for one reason must neither displace those for others nor fill the
//! memory, and a flood from one port must not displace the packets of others.

use crate::token_bucket::TokenBucket;
use openflow_rs::FieldId;
use openflow_rs::action::PacketInReason;
use openflow_rs::message::PacketIn;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use switch::BridgeId;

/// Packets a second, for each bridge and reason.
const RATE: u64 = 20_000;
/// Packets in a burst; half of them are kept for ports that keep to [`PORT_RATE`].
const BURST: u64 = 4_000;
/// Packets a second that a port may send with nobody else's leave.
const PORT_RATE: u64 = 200;
/// Packets of a port in a burst.
const PORT_BURST: u64 = 100;
/// Ports that are remembered; beyond that those that sent nothing for a while are forgotten.
const PORTS: usize = 4096;

/// What becomes of a packet-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Pass,
    /// It passes if nothing else waits: its port sends more than 200 a second.
    Flood,
    /// It is dropped.
    Drop,
}

/// One bridge and reason.
#[derive(Debug)]
struct Bucket {
    tokens: TokenBucket,
    passed: u64,
    dropped: u64,
}

/// Takes a packet's token, if more than `keep` are left.
fn take(b: &mut TokenBucket, keep: u64, now: Duration) -> bool {
    b.fill(now);
    let enough = b.has(keep + 1);
    if enough {
        b.take(1);
    }
    enough
}

/// The limits of packet-ins.
#[derive(Debug, Default)]
pub struct PacketInLimits {
    all: BTreeMap<(BridgeId, &'static str), Bucket>,
    ports: HashMap<(BridgeId, u32), TokenBucket>,
    /// When the next look for ports to forget is due.
    forget_at: Duration,
}

impl PacketInLimits {
    /// What becomes of another packet.
    pub fn judge(&mut self, bridge: BridgeId, p: &PacketIn, now: Duration) -> Verdict {
        let port = p.metadata.exact(FieldId::InPort).unwrap_or_default() as u32;
        self.admit(bridge, port, p.reason, now)
    }

    fn admit(&mut self, bridge: BridgeId, port: u32, reason: PacketInReason, now: Duration) -> Verdict {
        if self.ports.len() >= PORTS && now >= self.forget_at {
            self.ports.retain(|_, t| {
                t.fill(now);
                !t.is_full()
            });
            self.forget_at = now + Duration::from_secs(1);
        }
        // Where all of so many send all the time, one more has no claim of its own.
        let own = self.ports.len() < PORTS || self.ports.contains_key(&(bridge, port));
        let modest = own && {
            let new = || TokenBucket::new(PORT_RATE, PORT_BURST, now);
            take(self.ports.entry((bridge, port)).or_insert_with(new), 0, now)
        };
        let new = || Bucket { tokens: TokenBucket::new(RATE, BURST, now), passed: 0, dropped: 0 };
        let b = self.all.entry((bridge, reason.name())).or_insert_with(new);
        let pass = take(&mut b.tokens, if modest { 0 } else { BURST / 2 }, now);
        if !pass {
            b.dropped += 1;
            return Verdict::Drop;
        }
        b.passed += 1;
        if modest { Verdict::Pass } else { Verdict::Flood }
    }

    /// A packet of a port that floods found no room after all.
    pub fn no_room(&mut self, bridge: BridgeId, reason: PacketInReason) {
        if let Some(b) = self.all.get_mut(&(bridge, reason.name())) {
            b.passed -= 1;
            b.dropped += 1;
        }
    }

    /// What became of packet-ins: bridge, reason, passed, dropped.
    pub fn show(&self) -> impl Iterator<Item = (BridgeId, &'static str, u64, u64)> {
        self.all.iter().map(|((bridge, reason), b)| (*bridge, *reason, b.passed, b.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own() {
        let mut l = PacketInLimits::default();
        let mut now = Duration::from_secs(5);
        let offer = |l: &mut PacketInLimits, r, now| {
            (0..10_000).filter(|_| l.admit(BridgeId(0), 1, r, now) != Verdict::Drop).count()
        };
        // Half of the burst is others', but for what the port may take in any case.
        assert_eq!(offer(&mut l, PacketInReason::Action, now), 2_000);
        assert_eq!(l.admit(BridgeId(0), 2, PacketInReason::InvalidTtl, now), Verdict::Pass);
        assert_eq!(l.admit(BridgeId(1), 2, PacketInReason::Action, now), Verdict::Pass);
        now += Duration::from_millis(100);
        assert_eq!(offer(&mut l, PacketInReason::Action, now), 2_000);
        now += Duration::from_secs(86_400);
        assert_eq!(offer(&mut l, PacketInReason::Action, now), 2_000);
        assert_eq!(
            l.show().find(|s| s.1 == "action" && s.0 == BridgeId(0)),
            Some((BridgeId(0), "action", 6_000, 24_000))
        );
    }

    #[test]
    fn a_flood_of_a_port_leaves_others_their_packets() {
        let mut l = PacketInLimits::default();
        let mut passed = 0;
        // 100,000 packets a second for ten seconds, and 100 a second from each of nine other ports.
        for n in 0..1_000_000u32 {
            let now = Duration::from_micros(u64::from(n) * 10);
            passed += u64::from(l.admit(BridgeId(0), 1, PacketInReason::Action, now) != Verdict::Drop);
            if n % 1_000 < 9 {
                let verdict = l.admit(BridgeId(0), 2 + n % 1_000, PacketInReason::Action, now);
                assert_eq!(verdict, Verdict::Pass, "packet {n}");
            }
        }
        // The flood gets what they leave.
        assert!((189_000..=205_000).contains(&passed), "{passed}");
    }

    #[test]
    fn all_ports_together_have_one_limit() {
        let mut l = PacketInLimits::default();
        let (mut passed, last) = (0u64, Duration::from_secs(1));
        for n in 0..200_000u32 {
            let now = last * n / 200_000;
            passed += u64::from(l.admit(BridgeId(0), n % 10_000, PacketInReason::Action, now) != Verdict::Drop);
        }
        assert!(passed <= RATE + BURST + 1, "{passed}");
        assert!(l.ports.len() <= PORTS, "{} ports", l.ports.len());
    }
}
