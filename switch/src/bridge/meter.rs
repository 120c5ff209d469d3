//! Meters: token buckets (OpenFlow 1.5 section 5.9).

use openflow_rs::MeterConfig;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The numbers of meters in the datapath, which all bridges share.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeterNumbers(Arc<Mutex<BTreeSet<u32>>>);

impl MeterNumbers {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The least that is free.
    fn take(&self) -> MeterNumber {
        let mut taken = self.lock();
        let number = (0..).zip(&*taken).find(|(n, of)| n != *of).map_or(taken.len() as u32, |(n, _)| n);
        taken.insert(number);
        MeterNumber { number, of: self.clone() }
    }
}

/// The number of a bridge's meter in the datapath: free once the meter has gone.
#[derive(Debug)]
struct MeterNumber {
    number: u32,
    of: MeterNumbers,
}

impl Drop for MeterNumber {
    fn drop(&mut self) {
        self.of.lock().remove(&self.number);
    }
}

/// A bridge's meter.
#[derive(Clone, Debug)]
pub(crate) struct BridgeMeter {
    pub(crate) shared: SharedMeter,
    number: Arc<MeterNumber>,
}

impl BridgeMeter {
    /// A meter with full buckets. It has the number of the one in whose place it comes.
    pub(crate) fn new(
        config: MeterConfig,
        now: Duration,
        old: Option<&BridgeMeter>,
        numbers: &MeterNumbers,
    ) -> BridgeMeter {
        let number = old.map_or_else(|| Arc::new(numbers.take()), |old| old.number.clone());
        let meter = Arc::new(Mutex::new(Meter::new(config, now)));
        BridgeMeter { shared: SharedMeter { meter, number: number.number }, number }
    }
}

/// A meter that several threads ask.
#[derive(Clone, Debug)]
pub(crate) struct SharedMeter {
    meter: Arc<Mutex<Meter>>,
    /// Its number in the datapath.
    pub(crate) number: u32,
}

impl SharedMeter {
    /// The meter, for this thread alone.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are configured alike.
    pub(crate) fn is_like(&self, other: &SharedMeter) -> bool {
        // One is locked at a time: both may be the same, or another thread have them the other way round.
        let other = if Arc::ptr_eq(&self.meter, &other.meter) { None } else { Some(other.lock().config.clone()) };
        other.is_none_or(|other| self.lock().config == other)
    }

    /// Whether a packet may pass.
    pub(crate) fn pass(&self, bytes: usize, now: Duration) -> bool {
        self.lock().pass(bytes, now)
    }
}

/// A meter with its state.
#[derive(Clone, Debug)]
pub struct Meter {
    /// Configuration.
    pub config: MeterConfig,
    /// Tokens of each band, in bits or thousandths of a packet.
    tokens: Vec<u64>,
    filled: Duration,
    /// When it was added.
    pub created: Duration,
    /// Packets seen.
    pub packets: u64,
    /// Bytes seen.
    pub bytes: u64,
    /// (packets, bytes) that each band dropped.
    pub dropped: Vec<(u64, u64)>,
}

impl Meter {
    /// A meter with full buckets.
    pub fn new(config: MeterConfig, now: Duration) -> Meter {
        let mut m = Meter {
            tokens: Vec::new(),
            filled: now,
            created: now,
            packets: 0,
            bytes: 0,
            dropped: vec![(0, 0); config.bands.len()],
            config,
        };
        m.tokens = (0..m.config.bands.len()).map(|i| m.capacity(i)).collect();
        m
    }

    fn capacity(&self, band: usize) -> u64 {
        self.config.bands.get(band).map_or(0, |b| {
            let burst = if self.config.flags & MeterConfig::BURST != 0 && b.burst != 0 { b.burst } else { b.rate };
            u64::from(burst.max(1)) * 1000
        })
    }

    /// Adds the tokens of the time since it was last asked.
    fn fill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.filled).as_nanos() as u64 / 1_000_000;
        if elapsed == 0 {
            return;
        }
        self.filled += Duration::from_millis(elapsed);
        for i in 0..self.config.bands.len() {
            let cap = self.capacity(i);
            let (Some(b), Some(t)) = (self.config.bands.get(i), self.tokens.get_mut(i)) else { continue };
            *t = t.saturating_add(elapsed.saturating_mul(u64::from(b.rate))).min(cap);
        }
    }

    /// The tokens that so many packets of so many bytes in all take from each band.
    fn cost(&self, packets: usize, bytes: usize) -> u64 {
        let pktps = self.config.flags & MeterConfig::PKTPS != 0;
        if pktps { packets as u64 * 1000 } else { bytes as u64 * 8 }
    }

    /// Whether a packet may pass.
    pub fn pass(&mut self, bytes: usize, now: Duration) -> bool {
        self.packets += 1;
        self.bytes += bytes as u64;
        self.fill(now);
        let cost = self.cost(1, bytes);
        let mut hit: Option<(usize, u32)> = None;
        for (i, (b, t)) in self.config.bands.iter().zip(&mut self.tokens).enumerate() {
            if *t >= cost {
                *t -= cost;
            } else if hit.is_none_or(|(_, r)| b.rate > r) {
                hit = Some((i, b.rate));
            }
        }
        let Some((i, _)) = hit else { return true };
        if let Some(d) = self.dropped.get_mut(i) {
            d.0 += 1;
            d.1 += bytes as u64;
        }
        self.config.bands.get(i).is_some_and(|b| b.band_type != 1)
    }

    /// [`Meter::pass`] of several packets, of so many bytes in all, if no band is short of tokens for any of them; else
    /// nothing is counted, and each packet has to be asked for.
    pub fn pass_all(&mut self, packets: usize, bytes: usize, now: Duration) -> bool {
        self.fill(now);
        let cost = self.cost(packets, bytes);
        if self.tokens.iter().any(|t| *t < cost) {
            return false;
        }
        self.tokens.iter_mut().for_each(|t| *t -= cost);
        self.packets += packets as u64;
        self.bytes += bytes as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::MeterBand;
    use proptest::{prop_assert_eq, proptest};

    #[test]
    fn meters_have_the_least_free_number_as_long_as_they_are_there() {
        let numbers = MeterNumbers::default();
        let new = |old: Option<&BridgeMeter>| BridgeMeter::new(MeterConfig::default(), Duration::ZERO, old, &numbers);
        let (a, b, c) = (new(None), new(None), new(None));
        assert_eq!([&a, &b, &c].map(|m| m.shared.number), [0, 1, 2]);
        // A cached flow keeps no number.
        let cached = b.shared.clone();
        let changed = new(Some(&a));
        drop((a, b));
        assert_eq!((new(None).shared.number, changed.shared.number, cached.number), (1, 0, 1));
    }

    proptest! {
        #[test]
        fn packets_that_pass_together_pass_one_by_one(
            bands in proptest::collection::vec((1..200u32, 0..300u32), 1..4),
            flags in proptest::sample::select(vec![MeterConfig::KBPS, MeterConfig::PKTPS]),
            bursts in proptest::collection::vec((proptest::collection::vec(0..2000usize, 1..40), 0..3_000_000u64), 1..60),
        ) {
            let bands = bands.into_iter().map(|(rate, burst)| MeterBand { band_type: 1, rate, burst, prec_level: 0 });
            let config = MeterConfig { flags: flags | MeterConfig::BURST, bands: bands.collect(), ..Default::default() };
            let (mut together, mut single) = (Meter::new(config.clone(), Duration::ZERO), Meter::new(config, Duration::ZERO));
            let mut now = Duration::ZERO;
            for (lengths, pause) in bursts {
                now += Duration::from_nanos(pause);
                let one_by_one: Vec<bool> = lengths.iter().map(|n| single.pass(*n, now)).collect();
                let all = together.pass_all(lengths.len(), lengths.iter().sum(), now);
                prop_assert_eq!(all, one_by_one.iter().all(|p| *p));
                if !all {
                    let again: Vec<bool> = lengths.iter().map(|n| together.pass(*n, now)).collect();
                    prop_assert_eq!(again, one_by_one);
                }
                prop_assert_eq!(format!("{together:?}"), format!("{single:?}"));
            }
        }
    }
}
