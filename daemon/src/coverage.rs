//! Named event counters, shown by `coverage/show` and `coverage/read-counter`.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// An event counter: a `static` beside the code that counts.
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    value: AtomicU64,
}

impl Counter {
    /// A counter at zero.
    pub const fn new(name: &'static str) -> Counter {
        Counter { name, value: AtomicU64::new(0) }
    }

    /// Counts one event.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `n` events.
    pub fn add(&self, n: u64) {
        self.value.fetch_add(n, Ordering::Relaxed);
    }

    /// There were `n` events at least: somebody else counts them.
    pub fn raise_to(&self, n: u64) {
        self.value.fetch_max(n, Ordering::Relaxed);
    }

    /// How many events there were.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// Seconds between two samples.
pub(crate) const SAMPLE_SECONDS: u64 = 5;
const SAMPLES: usize = (3600 / SAMPLE_SECONDS) as usize;

struct Entry {
    counter: &'static Counter,
    /// Values at past samples, newest first.
    samples: VecDeque<u64>,
}

/// The counters of a daemon.
#[derive(Clone, Default)]
pub struct Coverage(Arc<Mutex<Vec<Entry>>>);

impl Coverage {
    /// Makes counters visible.
    pub fn register(&self, counters: &[&'static Counter]) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for counter in counters {
            if !entries.iter().any(|e| std::ptr::eq(e.counter, *counter)) {
                entries.push(Entry { counter, samples: VecDeque::new() });
            }
        }
        entries.sort_by_key(|e| e.counter.name);
    }

    /// The value of the counter of this name.
    pub fn read(&self, name: &str) -> Option<u64> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|e| e.counter.name == name).map(|e| e.counter.get())
    }

    /// All names and values.
    pub(crate) fn values(&self) -> Vec<(&'static str, u64)> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|e| (e.counter.name, e.counter.get())).collect()
    }

    /// Notes the values now; to be called every [`SAMPLE_SECONDS`].
    pub(crate) fn sample(&self) {
        for e in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            e.samples.push_front(e.counter.get());
            e.samples.truncate(SAMPLES);
        }
    }

    /// The table of `coverage/show`.
    pub fn show(&self) -> String {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::from("Event coverage, avg rate over last: 5 seconds, last minute, last hour:\n");
        let mut silent = 0;
        for e in entries.iter() {
            let total = e.counter.get();
            if total == 0 {
                silent += 1;
                continue;
            }
            let rate = |seconds: u64| {
                let past = e.samples.get((seconds / SAMPLE_SECONDS) as usize).copied().unwrap_or(0);
                let newest = e.samples.front().copied().unwrap_or(0);
                newest.saturating_sub(past) as f64 / seconds as f64
            };
            let _ = writeln!(
                out,
                "{:<24} {:5.1}/sec {:9.3}/sec {:13.4}/sec   total: {total}",
                e.counter.name,
                rate(SAMPLE_SECONDS),
                rate(60),
                rate(3600)
            );
        }
        let _ = writeln!(out, "{silent} events never hit");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static HIT: Counter = Counter::new("hit");
    static SILENT: Counter = Counter::new("silent");

    #[test]
    fn counters_are_read_and_shown() {
        let c = Coverage::default();
        c.register(&[&HIT, &SILENT, &HIT]);
        c.sample();
        HIT.add(10);
        c.sample();
        assert_eq!((c.read("hit"), c.read("silent"), c.read("other")), (Some(10), Some(0), None));
        let shown = c.show();
        assert!(shown.contains("2.0/sec"), "{shown}");
        assert!(shown.contains("total: 10\n1 events never hit\n"), "{shown}");
    }
}
