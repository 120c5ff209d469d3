//! How many packet-ins controllers get: a flood for one reason must neither displace those for others nor fill the
//! memory.

use openflow_rs::action::PacketInReason;
use std::collections::BTreeMap;
use std::time::Duration;
use switch::BridgeId;

/// Packets a second, for each bridge and reason.
const RATE: u32 = 20_000;
/// Packets in a burst.
const BURST: u32 = 4_000;

/// The token bucket of one bridge and reason.
#[derive(Debug)]
struct Bucket {
    /// Billionths of a packet.
    tokens: u64,
    at: Duration,
    passed: u64,
    dropped: u64,
}

/// The limits of packet-ins.
#[derive(Debug, Default)]
pub struct PacketInLimits(BTreeMap<(BridgeId, &'static str), Bucket>);

impl PacketInLimits {
    /// Whether another packet of a reason may pass.
    pub fn pass(&mut self, bridge: BridgeId, reason: PacketInReason, now: Duration) -> bool {
        const ONE: u64 = 1_000_000_000;
        let most = u64::from(BURST) * ONE;
        let b =
            self.0.entry((bridge, reason.name())).or_insert(Bucket { tokens: most, at: now, passed: 0, dropped: 0 });
        let since = now.saturating_sub(b.at).as_nanos().min(u128::from(u32::MAX)) as u64;
        b.tokens = (b.tokens + since * u64::from(RATE)).min(most);
        b.at = now;
        let pass = b.tokens >= ONE;
        if pass {
            b.tokens -= ONE;
            b.passed += 1;
        } else {
            b.dropped += 1;
        }
        pass
    }

    /// What became of packet-ins: bridge, reason, passed, dropped.
    pub fn show(&self) -> impl Iterator<Item = (BridgeId, &'static str, u64, u64)> {
        self.0.iter().map(|((bridge, reason), b)| (*bridge, *reason, b.passed, b.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own() {
        let mut l = PacketInLimits::default();
        let mut now = Duration::from_secs(5);
        let offer = |l: &mut PacketInLimits, r, now| (0..10_000).filter(|_| l.pass(0, r, now)).count();
        assert_eq!(offer(&mut l, PacketInReason::Action, now), 4_000);
        assert!(l.pass(0, PacketInReason::InvalidTtl, now) && l.pass(1, PacketInReason::Action, now));
        now += Duration::from_millis(100);
        assert_eq!(offer(&mut l, PacketInReason::Action, now), 2_000);
        now += Duration::from_secs(86_400);
        assert_eq!(offer(&mut l, PacketInReason::Action, now), 4_000);
        assert_eq!(l.show().find(|s| s.1 == "action" && s.0 == 0), Some((0, "action", 10_000, 20_000)));
    }
}
