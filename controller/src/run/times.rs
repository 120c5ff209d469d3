//! How often flows are derived and how long that takes, for the control socket, under the names that OVN's tools ask for.

use daemon::{Daemon, EngineCounts, Stopwatches};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// From a change to the flows that follow from it.
const GENERATION: &str = "flow-generation";
/// From the bundle that the switch is given to its confirmation.
const INSTALLATION: &str = "flow-installation";
/// What is derived, as a node of OVN's engine.
const NODE: &str = "flow_output";
/// A derivation that takes as long is logged, in milliseconds.
const SLOW: u64 = 500;

/// Counters and stopwatches.
#[derive(Debug)]
pub struct Times {
    watches: Arc<Stopwatches>,
    counts: Arc<EngineCounts>,
    slow: AtomicU64,
}

impl Default for Times {
    fn default() -> Times {
        let watches = Arc::new(Stopwatches::new([GENERATION, INSTALLATION]));
        Times { watches, counts: Arc::default(), slow: SLOW.into() }
    }
}

impl Times {
    /// Flows were derived, all of them or those that a change concerns.
    pub(super) fn derived(&self, all: bool, took: Duration) {
        self.counts.count(all);
        self.watches.add(GENERATION, took);
        if took.as_millis() >= u128::from(self.slow.load(Ordering::Relaxed)) {
            let what = if all { "recompute" } else { "handler" };
            tracing::info!(target: "inc_proc_eng", "node: {NODE}, {what} took {}ms", took.as_millis());
        }
    }

    /// The switch has confirmed what it was given.
    pub(super) fn installed(&self, took: Duration) {
        self.watches.add(INSTALLATION, took);
    }

    fn show(&self, args: &[String]) -> Result<String, String> {
        if args.first().is_some_and(|node| node != NODE) {
            return Err(format!("node not found; there is {NODE}"));
        }
        self.counts.show(NODE, args.get(1).map(String::as_str))
    }

    /// Adds the commands.
    pub fn register(self: &Arc<Self>, d: &Daemon) {
        self.watches.register(d);
        let c = d.commands();
        let t = self.clone();
        c.register("inc-engine/show-stats", "[NODE [COUNTER]]", 0, 2, move |args| t.show(&args));
        self.counts.register_clear(d);
        let t = self.clone();
        c.register("inc-engine/compute-log-timeout", "MSECS", 1, 1, move |args| {
            let ms = args.first().and_then(|n| n.parse().ok()).ok_or("unsigned integer required")?;
            t.slow.store(ms, Ordering::Relaxed);
            Ok(String::new())
        });
        c.register("inc-engine/list-stopwatches", "[NODE]", 0, 1, |_| Ok(format!("{NODE}\n")));
        // It is measured always.
        for name in ["inc-engine/enable-stopwatch", "inc-engine/disable-stopwatch"] {
            c.register(name, "[NODE]", 0, 1, |_| Ok(String::new()));
        }
        // There is no cache of logical flows.
        c.register("lflow-cache/show-stats", "", 0, 0, |_| {
            let counters = ["high-watermark", "total", "cache-expr", "cache-matches", "trim count", "Mem usage (KB)"];
            let lines: String = counters.iter().map(|name| format!("{name:<16}: 0\n")).collect();
            Ok(format!("Enabled: false\n{lines}"))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivations_are_counted_by_kind() {
        let t = Times::default();
        t.derived(true, Duration::from_millis(20));
        t.derived(false, Duration::from_millis(10));
        t.derived(false, Duration::from_millis(10));
        let ask = |args: &[&str]| t.show(&args.iter().map(|a| a.to_string()).collect::<Vec<_>>());
        assert_eq!(ask(&[NODE, "compute"]), Ok("2".into()));
        assert_eq!(
            ask(&[]),
            Ok("Node: flow_output\n- recompute:            1\n- compute:              2\n- cancel:               0\n"
                .into())
        );
        assert!(ask(&["nothing"]).is_err() && ask(&[NODE, "nothing"]).is_err());
        let text = t.watches.show(Some(GENERATION)).expect("there");
        assert!(text.contains("Total samples: 3\n  Maximum: 20 msec\n"), "{text}");
    }
}
