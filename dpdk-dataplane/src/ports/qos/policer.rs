//! Policers drop what a port receives or sends beyond a rate (ovs-vswitchd.conf.db(5): `ingress_policing_*` of
//! Interface, `egress-policer` and `trtcm-policer` of QoS).

use crate::config::qos::Rate;
use crate::token_bucket::TokenBucket;
use std::time::Duration;

/// Whether a bucket has so many; one without a rate has no limit.
fn has(b: &TokenBucket, n: u64) -> bool {
    b.rate() == 0 || b.has(n)
}

/// A policer.
#[derive(Clone, Copy, Debug)]
pub struct Policer {
    /// The rate that passes.
    pub rate: Rate,
    bytes: TokenBucket,
    packets: TokenBucket,
    excess: Option<TokenBucket>,
    /// Packets that it dropped.
    pub dropped: u64,
}

impl Policer {
    /// A policer with full buckets; `None` for a rate that lets everything pass.
    pub fn new(r: Rate, now: Duration) -> Option<Policer> {
        let bytes = TokenBucket::new(r.bytes, r.byte_burst, now);
        let packets = TokenBucket::new(r.packets, r.packet_burst, now);
        let excess = r.excess.map(|(rate, burst)| TokenBucket::new(rate, burst, now));
        (!r.is_unlimited()).then_some(Policer { rate: r, bytes, packets, excess, dropped: 0 })
    }

    /// Whether a packet of so many bytes may pass.
    pub fn pass(&mut self, n: usize, now: Duration) -> bool {
        [&mut self.bytes, &mut self.packets].into_iter().chain(&mut self.excess).for_each(|b| b.fill(now));
        let n = n as u64;
        // RFC 4115 section 3, colour-blind: green by the one bucket, yellow by the other, red by neither.
        let bucket = match &mut self.excess {
            _ if !has(&self.packets, 1) => None,
            _ if has(&self.bytes, n) => Some(&mut self.bytes),
            Some(x) if x.rate() > 0 && x.has(n) => Some(x),
            _ => None,
        };
        match bucket {
            Some(b) => {
                b.take(n);
                self.packets.take(1);
                true
            }
            None => {
                self.dropped += 1;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(p: &mut Policer, n: usize, size: usize, from: Duration, step: Duration) -> usize {
        (0..n).filter(|i| p.pass(size, from + step * *i as u32)).count()
    }

    #[test]
    fn bursts_pass_and_then_the_rate() {
        let ms = Duration::from_millis;
        let rate = Rate { bytes: 100_000, byte_burst: 20_000, ..Default::default() };
        let mut p = Policer::new(rate, ms(0)).expect("a limit");
        assert_eq!(passed(&mut p, 100, 1000, ms(0), ms(0)), 20);
        // A thousand bytes in ten milliseconds.
        assert_eq!(passed(&mut p, 1000, 1000, ms(1), ms(1)), 100);
        assert_eq!(p.dropped, 80 + 900);
        // However long nothing came, no more than the burst comes at once.
        assert_eq!(passed(&mut p, 100, 1000, ms(100_000), ms(0)), 20);
        assert!(!p.pass(30_000, ms(900_000)), "larger than the burst");
    }

    #[test]
    fn two_rates_add_up() {
        let ms = Duration::from_millis;
        let rate = Rate { bytes: 10_000, byte_burst: 2_000, excess: Some((20_000, 3_000)), ..Default::default() };
        let mut p = Policer::new(rate, ms(0)).expect("a limit");
        assert_eq!(passed(&mut p, 100, 1000, ms(0), ms(0)), 5);
        // A second's worth of both, less what is left in them for no whole packet.
        assert!((29..=30).contains(&passed(&mut p, 1000, 1000, ms(1), ms(1))));
        let mut p = Policer::new(Rate { excess: Some((0, 3_000)), ..rate }, ms(0)).expect("a limit");
        assert_eq!(passed(&mut p, 100, 1000, ms(0), ms(0)), 2, "no excess rate, no excess");
    }

    #[test]
    fn packets_count_whatever_their_size() {
        let ms = Duration::from_millis;
        let rate = Rate { packets: 1000, packet_burst: 5, ..Default::default() };
        let mut p = Policer::new(rate, ms(0)).expect("a limit");
        assert_eq!(passed(&mut p, 100, 9000, ms(0), ms(0)), 5);
        assert_eq!(passed(&mut p, 100, 64, ms(1), ms(1)), 100);
        assert!(Policer::new(Rate::default(), ms(0)).is_none());
    }
}
