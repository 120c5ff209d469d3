//! How long things take, as `stopwatch/show` prints it.

use northd::clock::{Clock, KINDS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// All stopwatches.
pub struct Stopwatches {
    /// Those that are shown.
    pub all: Arc<daemon::Stopwatches>,
    /// Whether compiles are measured under the name of the engine.
    engine: AtomicBool,
    /// The time of units.
    pub clock: Arc<Clock>,
}

impl Default for Stopwatches {
    fn default() -> Stopwatches {
        let all = Arc::new(daemon::Stopwatches::new(names()));
        Stopwatches { all, engine: AtomicBool::default(), clock: Arc::default() }
    }
}

impl Stopwatches {
    /// Takes note of how long something took.
    pub fn add(&self, name: &'static str, took: Duration) {
        self.all.add(name, took);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_measured_where_that_is_asked_for() {
        let s = Stopwatches::default();
        let samples = |name| s.all.show(Some(name)).unwrap().contains("Total samples: 1\n");
        s.compiled(true, Duration::from_millis(5));
        assert!(samples(COMPILE) && !samples(ENGINE) && !samples("lr_nat"));
        s.measure(Some(ENGINE), true).unwrap();
        s.all.reset(None).unwrap();
        s.compiled(true, Duration::from_millis(5));
        assert!(samples(ENGINE) && !samples("lr_nat"));
        s.measure(None, true).unwrap();
        s.measure(Some(ENGINE), false).unwrap();
        s.all.reset(None).unwrap();
        s.compiled(true, Duration::from_millis(5));
        // A compile of what changed in which no such unit ran is no sample.
        s.compiled(false, Duration::from_millis(5));
        assert!(!samples(ENGINE) && samples("lr_nat"));
        assert_eq!(s.measure(Some("x"), true).unwrap_err(), "node not found");
    }
}
