//! How long things take, as `stopwatch/show` prints it.

use northd::clock::{Clock, KINDS};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many of the last samples the percentile is of.
const KEPT: usize = 1000;

/// What is always measured, by the names that ovn-northd has for it.
const NAMES: [&str; 4] = ["ovn-northd-loop", "ovnnb_db_run", "lflows_to_sb", "aging"];

/// From the start of a round to its end, writing and waiting for the server's answer included.
pub const LOOP: &str = NAMES[0];
/// A compile.
pub const COMPILE: &str = NAMES[1];
/// Writing southbound.
pub const WRITE: &str = NAMES[2];
/// Looking for what has grown too old.
pub const AGEING: &str = NAMES[3];
/// The engine as a node: a compile. Measured, as each kind of unit is, where `inc-engine/enable-stopwatch` says so.
const ENGINE: &str = "northd";

/// The nodes: the engine, and the kinds of its units.
pub fn nodes() -> impl Iterator<Item = &'static str> {
    std::iter::once(ENGINE).chain(KINDS.iter().copied())
}

fn names() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().chain(nodes())
}

#[derive(Default)]
struct Samples {
    total: u64,
    longest: f64,
    shortest: f64,
    short_term: f64,
    long_term: f64,
    last: VecDeque<f64>,
}

/// All stopwatches.
#[derive(Default)]
pub struct Stopwatches {
    samples: Mutex<BTreeMap<&'static str, Samples>>,
    /// Whether compiles are measured under the name of the engine.
    engine: AtomicBool,
    /// The time of units.
    pub clock: Arc<Clock>,
}

impl Samples {
    fn add(&mut self, ms: f64) {
        if self.total == 0 {
            (self.longest, self.shortest, self.short_term, self.long_term) = (ms, ms, ms, ms);
        }
        self.total += 1;
        self.longest = self.longest.max(ms);
        self.shortest = self.shortest.min(ms);
        self.short_term += 0.5 * (ms - self.short_term);
        self.long_term += 0.01 * (ms - self.long_term);
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(ms);
    }

    fn percentile_95(&self) -> f64 {
        let mut all: Vec<f64> = self.last.iter().copied().collect();
        all.sort_by(f64::total_cmp);
        all.get((all.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
    }

    fn show(&self, name: &str, out: &mut String) {
        let _ = write!(
            out,
            "Statistics for '{name}'\n  Total samples: {}\n  Maximum: {} msec\n  Minimum: {} msec\n  \
             95th percentile: {:.6} msec\n  Short term average: {:.6} msec\n  Long term average: {:.6} msec\n",
            self.total,
            self.longest as u64,
            self.shortest as u64,
            self.percentile_95(),
            self.short_term,
            self.long_term
        );
    }
}

fn unknown() -> String {
    "No such stopwatch\n".to_string()
}

impl Stopwatches {
    /// Takes note of how long something took.
    pub fn add(&self, name: &'static str, took: Duration) {
        let mut all = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name).or_default().add(took.as_secs_f64() * 1e3);
    }

    /// Measures one node or all from now on, or no longer.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub fn measure(&self, node: Option<&str>, on: bool) -> Result<String, String> {
        let mut wanted = nodes().filter(|n| node.is_none_or(|node| node == *n)).peekable();
        if wanted.peek().is_none() {
            return Err("node not found".to_string());
        }
        for name in wanted {
            if name == ENGINE {
                self.engine.store(on, Ordering::Relaxed);
            } else {
                self.clock.set(name, on);
            }
        }
        Ok(String::new())
    }

    /// Takes note of a compile and, as far as they are measured, of its nodes: the processor time of all units of a kind together.
    /// A kind none of whose units ran was not looked at, except by a full compile, where it took no time.
    pub fn compiled(&self, full: bool, took: Duration) {
        self.add(COMPILE, took);
        if self.engine.load(Ordering::Relaxed) {
            self.add(ENGINE, took);
        }
        for (kind, ran, took) in self.clock.measured() {
            if full || ran > 0 {
                self.add(kind, took);
            }
        }
    }

    /// The statistics of one, or of all that have samples.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub fn show(&self, name: Option<&str>) -> Result<String, String> {
        let all = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        if let Some(name) = name {
            let known = names().find(|n| *n == name).ok_or_else(unknown)?;
            all.get(known).unwrap_or(&Samples::default()).show(known, &mut out);
            return Ok(out);
        }
        let mut without = 0;
        for known in names() {
            match all.get(known) {
                Some(samples) => samples.show(known, &mut out),
                None => without += 1,
            }
        }
        if without > 0 {
            let _ = writeln!(out, "{without} stopwatches with no samples");
        }
        Ok(out)
    }

    /// Forgets the samples of one or of all.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub fn reset(&self, name: Option<&str>) -> Result<String, String> {
        if name.is_some_and(|n| !names().any(|known| known == n)) {
            return Err(unknown());
        }
        let mut all = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known, _| name.is_some_and(|n| n != *known));
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_up() {
        let s = Stopwatches::default();
        for ms in [10, 20, 30] {
            s.add(COMPILE, Duration::from_millis(ms));
        }
        let text = s.show(Some(COMPILE)).unwrap();
        assert_eq!(
            text,
            "Statistics for 'ovnnb_db_run'\n  Total samples: 3\n  Maximum: 30 msec\n  Minimum: 10 msec\n  \
             95th percentile: 30.000000 msec\n  Short term average: 22.500000 msec\n  \
             Long term average: 10.299000 msec\n"
        );
        assert!(s.show(Some(WRITE)).unwrap().contains("Statistics for 'lflows_to_sb'\n  Total samples: 0\n"));
        assert!(s.show(None).unwrap().ends_with(&format!("{} stopwatches with no samples\n", names().count() - 1)));
        assert!(s.show(Some("x")).is_err() && s.reset(Some("x")).is_err());
        s.reset(Some(COMPILE)).unwrap();
        assert!(s.show(Some(COMPILE)).unwrap().contains("Total samples: 0"));
    }

    #[test]
    fn nodes_are_measured_where_that_is_asked_for() {
        let s = Stopwatches::default();
        let samples = |name| s.show(Some(name)).unwrap().contains("Total samples: 1\n");
        s.compiled(true, Duration::from_millis(5));
        assert!(samples(COMPILE) && !samples(ENGINE) && !samples("lr_nat"));
        s.measure(Some(ENGINE), true).unwrap();
        s.reset(None).unwrap();
        s.compiled(true, Duration::from_millis(5));
        assert!(samples(ENGINE) && !samples("lr_nat"));
        s.measure(None, true).unwrap();
        s.measure(Some(ENGINE), false).unwrap();
        s.reset(None).unwrap();
        s.compiled(true, Duration::from_millis(5));
        // A compile of what changed in which no such unit ran is no sample.
        s.compiled(false, Duration::from_millis(5));
        assert!(!samples(ENGINE) && samples("lr_nat"));
        assert_eq!(s.measure(Some("x"), true).unwrap_err(), "node not found");
    }
}
