//! How often a daemon derives all or what a change concerns, as `inc-engine/show-stats` prints it.

use crate::Daemon;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of an engine, which is one node.
#[derive(Debug, Default)]
pub struct EngineCounts {
    recomputes: AtomicU64,
    computes: AtomicU64,
}

impl EngineCounts {
    /// Counts a derivation: of all, or of what a change concerns.
    pub fn count(&self, all: bool) {
        if all { &self.recomputes } else { &self.computes }.fetch_add(1, Ordering::Relaxed);
    }

    fn counters(&self) -> [(&'static str, u64); 3] {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [("recompute", of(&self.recomputes)), ("compute", of(&self.computes)), ("cancel", 0)]
    }

    /// The counters under the name of a node, or one of them.
    ///
    /// # Errors
    /// Where there is no counter of that name.
    pub fn show(&self, node: &str, counter: Option<&str>) -> Result<String, String> {
        let Some(name) = counter else {
            let mut out = format!("Node: {node}\n");
            for (name, n) in self.counters() {
                let _ = writeln!(out, "- {:<10} {n:>12}", format!("{name}:"));
            }
            return Ok(out);
        };
        let found = self.counters().into_iter().find(|(n, _)| *n == name);
        found.map(|(_, n)| n.to_string()).ok_or_else(|| format!("Invalid stat type : {name}"))
    }

    /// Adds `inc-engine/clear-stats` to a daemon's commands.
    pub fn register_clear(self: &Arc<Self>, d: &Daemon) {
        let counts = self.clone();
        d.commands().register("inc-engine/clear-stats", "", 0, 0, move |_| {
            counts.recomputes.store(0, Ordering::Relaxed);
            counts.computes.store(0, Ordering::Relaxed);
            Ok(String::new())
        });
    }
}
