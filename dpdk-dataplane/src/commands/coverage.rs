//! The counters of `coverage/show`: those of the main PMD thread, and dropped packets by reason.

use crate::pmd::{Handle, MainPmd};
use daemon::{Counter, Daemon};
use std::time::Duration;
use switch::DropReason;

/// How often the counters are updated.
const PERIOD: Duration = Duration::from_secs(1);
/// Names of the counters beside drops.
const NAMES: [&str; 11] = [
    "packet_received",
    "packet_sent",
    "packet_queue_full",
    "packet_oversize",
    "packet_device_gone",
    "packet_sampled",
    "flow_cache_hit",
    "flow_cache_miss",
    "flow_cache_insert",
    "flow_cache_refuse",
    "pmd_job",
];

fn values(w: &MainPmd) -> Vec<u64> {
    let (c, cache) = (w.counters, w.switch.cache_stats());
    let mut v = vec![c.received, c.sent, c.full, c.oversize, c.gone, w.switch.samples];
    v.extend([cache.hits, cache.misses, cache.inserted, cache.refused, c.jobs]);
    v.extend(DropReason::ALL.iter().map(|r| w.switch.drops.get(*r)));
    v
}

/// Adds the counters to the daemon's, and starts to update them.
pub(super) fn register(d: &Daemon, pmd: &Handle) {
    let names = NAMES.iter().map(|n| n.to_string()).chain(DropReason::ALL.iter().map(|r| format!("drop_{}", r.name())));
    // The daemon keeps references to counters for as long as it runs.
    let counters: Vec<&'static Counter> =
        names.map(|n| &*Box::leak(Box::new(Counter::new(Box::leak(n.into_boxed_str()))))).collect();
    d.counters(&counters);
    let pmd = pmd.clone();
    tokio::spawn(async move {
        while let Ok(now) = pmd.read(values).await {
            // A counter of `coverage/show` never falls, also after `pmd-stats-clear`.
            counters.iter().zip(now).for_each(|(c, n)| c.raise_to(n));
            tokio::time::sleep(PERIOD).await;
        }
    });
}
