//! How long things take, as `stopwatch/show` prints it.

use crate::Daemon;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many of the last samples the percentile is of.
const KEPT: usize = 1000;

#[derive(Debug, Default)]
struct Samples {
    total: u64,
    longest: f64,
    shortest: f64,
    short_term: f64,
    long_term: f64,
    last: VecDeque<f64>,
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

/// All stopwatches of a daemon.
#[derive(Debug)]
pub struct Stopwatches {
    names: Vec<&'static str>,
    samples: Mutex<BTreeMap<&'static str, Samples>>,
}

impl Stopwatches {
    /// Stopwatches of these names, which are shown in this order.
    pub fn new(names: impl IntoIterator<Item = &'static str>) -> Stopwatches {
        Stopwatches { names: names.into_iter().collect(), samples: Mutex::default() }
    }

    /// Takes note of how long something took.
    pub fn add(&self, name: &'static str, took: Duration) {
        let mut all = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name).or_default().add(took.as_secs_f64() * 1e3);
    }

    /// The statistics of one, or of all that have samples.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub fn show(&self, name: Option<&str>) -> Result<String, String> {
        let all = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        if let Some(name) = name {
            let known = self.names.iter().find(|n| **n == name).ok_or_else(unknown)?;
            all.get(known).unwrap_or(&Samples::default()).show(known, &mut out);
            return Ok(out);
        }
        let mut without = 0;
        for known in &self.names {
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
        if name.is_some_and(|n| !self.names.contains(&n)) {
            return Err(unknown());
        }
        let mut all = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known, _| name.is_some_and(|n| n != *known));
        Ok(String::new())
    }

    /// Adds `stopwatch/show` and `stopwatch/reset` to a daemon's commands.
    pub fn register(self: &Arc<Self>, d: &Daemon) {
        let (shown, reset) = (self.clone(), self.clone());
        let name = |args: &[String]| args.first().cloned();
        let c = d.commands();
        c.register("stopwatch/show", "[NAME]", 0, 1, move |args| shown.show(name(&args).as_deref()));
        c.register("stopwatch/reset", "[NAME]", 0, 1, move |args| reset.reset(name(&args).as_deref()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_up() {
        let s = Stopwatches::new(["compile", "write", "loop"]);
        for ms in [10, 20, 30] {
            s.add("compile", Duration::from_millis(ms));
        }
        let text = s.show(Some("compile")).unwrap();
        assert_eq!(
            text,
            "Statistics for 'compile'\n  Total samples: 3\n  Maximum: 30 msec\n  Minimum: 10 msec\n  \
             95th percentile: 30.000000 msec\n  Short term average: 22.500000 msec\n  \
             Long term average: 10.299000 msec\n"
        );
        assert!(s.show(Some("write")).unwrap().contains("Statistics for 'write'\n  Total samples: 0\n"));
        assert!(s.show(None).unwrap().ends_with("2 stopwatches with no samples\n"));
        assert!(s.show(Some("x")).is_err() && s.reset(Some("x")).is_err());
        s.reset(Some("compile")).unwrap();
        assert!(s.show(Some("compile")).unwrap().contains("Total samples: 0"));
    }
}
