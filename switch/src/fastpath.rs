//! Threads that repeat flows of a switch that is another thread's.
//!
//! ```text
//!             packets it has no flow for, counters
//!   Lane  ───────────────────────────────────────────►  Switch
//!  (a flow cache) ◄─────────────────────────────────  (tables, connections)
//!             flows
//! ```
//! A lane has a flow cache of its own and shares with the switch what its flows look at: of each connection and each learned
//! address a stamp and a time, of each path a generation (`cache/live.rs`). So a flow is stale in all threads as soon as
//! it is in one, a connection that one thread sees does not end in another, and no thread ever waits for another. What a lane
//! has no flow for it gives to the switch's thread, which walks the tables, sends the packet, and gives the flow back.

use crate::buf::PacketBuf;
use crate::drops::DropCounters;
use crate::events::Outputs;
use crate::flowcache::dump::Shown;
use crate::flowcache::entry::Entry;
use crate::flowcache::exec::burst;
use crate::flowcache::megaflow::Mask;
use crate::flowcache::views::Views;
use crate::flowcache::{Cache, CacheStats, Tally};
use std::time::Duration;

/// A thread's part of a switch.
#[derive(Debug)]
pub struct Lane {
    cache: Cache,
    /// Keys tell all TCP flags apart, as far as this lane has seen.
    exact_flags: bool,
}

/// A flow for a lane's cache.
#[derive(Debug)]
pub struct Flow {
    hash: u64,
    entry: Entry,
    /// The mask that its key is under, and for which kind of frame that is.
    mask: Option<(usize, Mask)>,
}

/// What a lane's packets did to counters.
#[derive(Debug)]
pub struct Sums {
    pub(crate) tallies: Vec<(u32, Tally)>,
    pub(crate) drops: DropCounters,
    pub(crate) stats: CacheStats,
}

/// What changes for all lanes: their switch's bridges or addresses are others.
#[derive(Clone, Debug)]
pub struct View(Views);

impl Flow {
    pub(crate) fn new(hash: u64, entry: Entry, mask: Option<(usize, Mask)>) -> Flow {
        Flow { hash, entry, mask }
    }
}

impl View {
    /// What entries of this cache look at.
    pub(crate) fn new(cache: &Cache) -> View {
        View(cache.views.clone())
    }
}

impl Lane {
    /// A lane whose cache is like this one, and looks at the same.
    pub(crate) fn new(cache: &Cache) -> Lane {
        let Cache { table, views, .. } = cache;
        Lane { cache: Cache::new(table.another(), views.clone()), exact_flags: views.exact_flags() }
    }

    /// Switches a batch of packets, each with the device it came from, and empties it. `missed` gets those that the switch has to walk.
    /// `now` is the switch's time.
    #[inline(never)]
    pub fn process<P: PacketBuf>(
        &mut self,
        batch: &mut Vec<(u32, P)>,
        now: Duration,
        out: &mut Outputs<P>,
        missed: &mut Vec<(u32, P)>,
    ) {
        if self.exact_flags != self.cache.views.exact_flags() {
            self.exact_flags = self.cache.views.exact_flags();
            self.cache.table.clear();
        }
        let at = now.as_nanos() as u64;
        let mut left = batch.drain(..);
        let mut keys = std::mem::take(&mut self.cache.keys);
        let mut outer = Vec::new();
        while let Some(n) = burst(left.as_slice()) {
            let n = n - self.cache.lead(&mut left, n, &mut outer, out, at);
            self.cache.prepare(left.as_slice().get(..n).unwrap_or_default(), &mut keys);
            let mut held = None;
            for (key, (device, p)) in keys.iter_mut().take(n).zip(left.by_ref()) {
                let back = match key.cached() {
                    true => self.cache.replay(key, p, &mut held, &mut outer, out, (at, None)),
                    false => Some(p),
                };
                missed.extend(back.map(|p| (device, p)));
            }
        }
        self.cache.keys = keys;
    }

    /// Takes a flow into its cache. `now` is the switch's time.
    pub fn learn(&mut self, f: Flow, now: Duration) {
        let now = now.as_nanos() as u64;
        let Cache { table, views, stats, .. } = &mut self.cache;
        if let Some((kind, mask)) = &f.mask {
            table.masks.learn(*kind, mask);
        }
        table.insert(f.hash, f.entry, |e| !e.checks().all(|c| views.holds(c, None, now)));
        stats.inserted += 1;
    }

    /// Sees the switch as it is now.
    pub fn look(&mut self, view: View) {
        self.cache.views = view.0;
    }

    /// Forgets all flows.
    pub fn clear(&mut self) {
        self.cache.table.clear();
    }

    /// What was counted since it was asked last; none if nothing was.
    pub fn sums(&mut self) -> Option<Sums> {
        let c = &mut self.cache;
        if c.tallies.is_empty() {
            return None;
        }
        c.tallies.dropped = false;
        Some(Sums {
            tallies: c.tallies.take(),
            drops: std::mem::take(&mut c.tallies.drops),
            stats: std::mem::take(&mut c.stats),
        })
    }

    /// The flows that are in the cache and not stale, as text for [`crate::Switch::tell_flow`].
    pub fn shown(&self) -> impl Iterator<Item = Shown> {
        self.cache.lines()
    }

    /// Numbers of its flow cache since [`Lane::sums`] was asked last.
    pub fn stats(&self) -> CacheStats {
        self.cache.stats
    }

    /// How many flows are in the cache and not stale.
    pub fn flows(&self) -> usize {
        self.cache.table.used().count()
    }
}
