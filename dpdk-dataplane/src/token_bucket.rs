//! Token buckets: so much a second, and so much at once.

use std::time::Duration;

/// Tokens are counted in billionths, so that a nanosecond of any whole rate is a whole number of them.
const ONE: i128 = 1_000_000_000;

/// A bucket of bytes or packets.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    rate: u64,
    burst: u64,
    tokens: i128,
    filled: Duration,
}

impl TokenBucket {
    /// A full bucket that gains `rate` a second and holds `burst`.
    pub fn new(rate: u64, burst: u64, now: Duration) -> TokenBucket {
        TokenBucket { rate, burst, tokens: i128::from(burst) * ONE, filled: now }
    }

    /// What it gains a second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Fills it up to now.
    pub fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled).as_nanos() as i128;
        let gained = self.tokens.saturating_add(i128::from(self.rate).saturating_mul(passed));
        (self.tokens, self.filled) = (gained.min(i128::from(self.burst) * ONE), now);
    }

    /// Whether it is full.
    pub fn is_full(&self) -> bool {
        self.tokens == i128::from(self.burst) * ONE
    }

    /// Whether it has so many.
    pub fn has(&self, n: u64) -> bool {
        self.tokens >= i128::from(n) * ONE
    }

    /// Whether it has any, be it a part of one.
    pub fn has_any(&self) -> bool {
        self.tokens > 0
    }

    /// Takes so many, whether it has them or not. What it owes then is a second's gain at most.
    pub fn take(&mut self, n: u64) {
        self.tokens = (self.tokens - i128::from(n) * ONE).max(-i128::from(self.rate) * ONE);
    }

    /// How long until it owes nothing.
    pub fn debt(&self) -> Duration {
        match (u128::try_from(-self.tokens), self.rate) {
            (Err(_), _) => Duration::ZERO,
            (_, 0) => Duration::MAX,
            (Ok(owed), rate) => Duration::from_nanos((owed / u128::from(rate)) as u64 + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn it_gains_its_rate_and_holds_its_burst() {
        let mut b = TokenBucket::new(3, 5, S);
        assert!(b.is_full() && b.has(5) && !b.has(6));
        b.take(5);
        assert!(!b.has_any() && !b.is_full());
        // A third of a second is one of three.
        b.fill(S + Duration::from_nanos(333_333_333));
        assert!(b.has_any() && !b.has(1));
        b.fill(S + Duration::from_nanos(333_333_334));
        assert!(b.has(1) && !b.has(2));
        b.fill(S * 1_000_000_000);
        assert!(b.is_full());
        // Time that goes backwards gives nothing.
        b.take(1);
        b.fill(Duration::ZERO);
        assert!(b.has(4) && !b.has(5));
    }

    #[test]
    fn debt_is_a_seconds_gain_at_most() {
        let mut b = TokenBucket::new(100, 10, S);
        assert_eq!(b.debt(), Duration::ZERO);
        b.take(11);
        assert_eq!(b.debt(), Duration::from_millis(10) + Duration::from_nanos(1));
        b.take(1_000_000);
        assert_eq!(b.debt(), S + Duration::from_nanos(1));
        let mut none = TokenBucket::new(0, 1, S);
        none.take(2);
        assert_eq!(none.debt(), Duration::MAX);
        none.fill(S * 100);
        assert!(!none.has_any());
    }
}
