//! Chooses one of N packets at random, as sFlow version 5 wants it (section 3.1): after each sample, a random number of
//! packets is skipped.

/// Chooses one of N packets.
#[derive(Debug)]
pub(crate) struct PacketSampler {
    rate: u32,
    left: u32,
    seed: u64,
}

impl PacketSampler {
    /// Chooses one of `rate` packets on average.
    pub(crate) fn new(rate: u32) -> PacketSampler {
        let mut p = PacketSampler { rate: rate.max(1), left: 1, seed: u64::from(rate) ^ 0x9e37_79b9_7f4a_7c15 };
        p.skip();
        p
    }

    /// N.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Whether this packet is chosen.
    #[inline]
    pub(crate) fn pick(&mut self) -> bool {
        self.left -= 1;
        if self.left == 0 {
            self.skip();
            return true;
        }
        false
    }

    /// Draws how many packets to go on to the next sample: 1 to 2N - 1, so N on average.
    fn skip(&mut self) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let span = 2 * u64::from(self.rate) - 1;
        self.left = u32::try_from((self.seed >> 32) % span + 1).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_asked_for() {
        for rate in [1, 2, 7, 400] {
            let mut p = PacketSampler::new(rate);
            let n = (0..400_000).filter(|_| p.pick()).count() as f64;
            let wanted = 400_000.0 / f64::from(rate);
            assert!((n - wanted).abs() <= 4.0 * wanted.sqrt() || rate == 1 && n == wanted, "{rate}: {n}");
        }
        assert!(!(0..1000).all({
            let mut p = PacketSampler::new(u32::MAX);
            move |_| p.pick()
        }));
    }
}
