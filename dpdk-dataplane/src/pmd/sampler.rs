//! One of so many packets, at random (sFlow Version 5 section 3.1: a count of packets to skip, anew after each sample).

/// Chooses packets.
#[derive(Debug)]
pub(crate) struct Picker {
    rate: u32,
    left: u32,
    seed: u64,
}

impl Picker {
    /// Chooses one of `rate` packets on average.
    pub(crate) fn new(rate: u32) -> Picker {
        let mut p = Picker { rate: rate.max(1), left: 1, seed: u64::from(rate) ^ 0x9e37_79b9_7f4a_7c15 };
        p.skip();
        p
    }

    /// Of how many packets it chooses one.
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

    /// From one to twice the rate less one: the rate on average.
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
            let mut p = Picker::new(rate);
            let n = (0..400_000).filter(|_| p.pick()).count() as f64;
            let wanted = 400_000.0 / f64::from(rate);
            assert!((n - wanted).abs() <= 4.0 * wanted.sqrt() || rate == 1 && n == wanted, "{rate}: {n}");
        }
        assert!(!(0..1000).all({
            let mut p = Picker::new(u32::MAX);
            move |_| p.pick()
        }));
    }
}
