//! Limits on how often one place in the program logs, as ovs-vswitchd(8) describes them.
//!
//! A site is a log statement; where one statement passes on texts of several kinds, the event's field `kind` parts them.
//! Each site has a token bucket: a burst passes, then so many messages a minute. The first message that passes again is
//! preceded by one that counts those lost.

use crate::levels::Level;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A bucket's measures.
#[derive(Clone, Copy)]
struct Rate {
    /// Messages that pass at once.
    burst: f64,
    /// Messages a minute after these.
    per_minute: f64,
}

/// Which measures apply. What somebody asked for passes in full: information, and debugging but for OpenFlow's messages,
/// one for each packet that comes to a controller.
fn rate(module: &str, level: Level) -> Option<Rate> {
    match level {
        Level::Err | Level::Warn => Some(Rate { burst: 20.0, per_minute: 5.0 }),
        Level::Dbg if module == "vconn" => Some(Rate { burst: 600.0, per_minute: 600.0 }),
        _ => None,
    }
}

struct Bucket {
    tokens: f64,
    filled: Instant,
    dropped: u64,
    first_dropped: Instant,
    last_dropped: Instant,
}

/// More sites than a program has; only kinds without number make so many.
const SITES: usize = 4096;

/// A message's fate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is written.
    Pass,
    /// It is written after this one.
    PassAfter(String),
    /// It is counted.
    Drop,
}

/// The buckets of a log.
#[derive(Default)]
pub(crate) struct Limits {
    buckets: HashMap<(usize, String), Bucket>,
}

impl Limits {
    /// Whether a message of this site passes now.
    pub(crate) fn check(&mut self, site: usize, kind: &str, module: &str, level: Level, now: Instant) -> Verdict {
        let Some(rate) = rate(module, level) else { return Verdict::Pass };
        if self.buckets.len() >= SITES {
            self.buckets.retain(|_, b| b.dropped > 0 && now - b.last_dropped < Duration::from_secs(60));
            if self.buckets.len() >= SITES {
                self.buckets.clear();
            }
        }
        let bucket = self.buckets.entry((site, kind.to_string())).or_insert(Bucket {
            tokens: rate.burst,
            filled: now,
            dropped: 0,
            first_dropped: now,
            last_dropped: now,
        });
        let gained = (now - bucket.filled).as_secs_f64() / 60.0 * rate.per_minute;
        bucket.tokens = (bucket.tokens + gained).min(rate.burst);
        bucket.filled = now;
        if bucket.tokens < 1.0 {
            if bucket.dropped == 0 {
                bucket.first_dropped = now;
            }
            bucket.last_dropped = now;
            bucket.dropped += 1;
            return Verdict::Drop;
        }
        bucket.tokens -= 1.0;
        match std::mem::take(&mut bucket.dropped) {
            0 => Verdict::Pass,
            n => Verdict::PassAfter(format!(
                "Dropped {n} log messages in last {} seconds (most recently, {} seconds ago) due to excessive rate",
                (now - bucket.first_dropped).as_secs(),
                (now - bucket.last_dropped).as_secs()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let (mut l, start) = (Limits::default(), Instant::now());
        for _ in 0..20 {
            assert_eq!(l.check(1, "", "main", Level::Warn, start), Verdict::Pass);
        }
        for s in 0..10 {
            assert_eq!(l.check(1, "", "main", Level::Warn, start + Duration::from_secs(s)), Verdict::Drop);
        }
        // Another site, another kind of text at the same site, and what is not limited.
        assert_eq!(l.check(2, "", "main", Level::Warn, start), Verdict::Pass);
        assert_eq!(l.check(1, "other", "main", Level::Warn, start), Verdict::Pass);
        for _ in 0..1000 {
            assert_eq!(l.check(3, "", "main", Level::Info, start), Verdict::Pass);
            assert_eq!(l.check(4, "", "jsonrpc", Level::Dbg, start), Verdict::Pass);
        }
        let later = start + Duration::from_secs(13);
        assert_eq!(
            l.check(1, "", "main", Level::Warn, later),
            Verdict::PassAfter(
                "Dropped 10 log messages in last 13 seconds (most recently, 4 seconds ago) due to excessive rate"
                    .into()
            )
        );
        assert_eq!(l.check(1, "", "main", Level::Warn, later), Verdict::Drop);
    }

    #[test]
    fn sites_without_number_take_bounded_room() {
        let (mut l, now) = (Limits::default(), Instant::now());
        for i in 0..10 * SITES {
            l.check(1, &i.to_string(), "main", Level::Warn, now);
        }
        assert!(l.buckets.len() <= SITES);
    }
}
