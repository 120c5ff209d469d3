//! How late a peer was told, over a stream's life: a histogram in quarters of powers of two.

use std::time::Duration;

/// Buckets: from 16 µs to 16 s.
const BUCKETS: usize = 80;
/// Steps of a power of two.
const STEPS: f64 = 4.0;
/// The end of the first bucket, in microseconds.
const FIRST: f64 = 16.0;

/// Lags of a stream's fences.
#[derive(Clone, Copy, Debug)]
pub struct Lags([u32; BUCKETS]);

impl Default for Lags {
    fn default() -> Lags {
        Lags([0; BUCKETS])
    }
}

impl Lags {
    /// A fence was answered after this time.
    pub(super) fn add(&mut self, lag: Duration) {
        let at = ((lag.as_secs_f64() * 1e6 / FIRST).log2() * STEPS).ceil().clamp(0.0, (BUCKETS - 1) as f64);
        if let Some(n) = self.0.get_mut(at as usize) {
            *n = n.saturating_add(1);
        }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|n| u64::from(*n)).sum()
    }

    /// A time within which this share of them was answered, at most a fifth more than the shortest such one.
    pub fn within(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = self.0.iter().position(|n| {
            seen += u64::from(*n);
            seen >= wanted
        });
        Duration::from_secs_f64(FIRST * (at.unwrap_or(0) as f64 / STEPS).exp2() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside the sorted list.
        #[test]
        fn quantiles_are_those_of_the_list(mut all in prop::collection::vec(20u64..10_000_000, 1..200), share in 0.01f64..1.0) {
            let mut lags = Lags::default();
            all.iter().for_each(|us| lags.add(Duration::from_micros(*us)));
            all.sort_unstable();
            let exact = all[((all.len() as f64 * share).ceil() as usize - 1).min(all.len() - 1)] as f64;
            let found = lags.within(share).as_secs_f64() * 1e6;
            prop_assert!(found >= exact * 0.999 && found <= exact * 1.2, "{found} for {exact}");
        }
    }
}
