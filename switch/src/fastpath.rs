//! Fast-path (PMD) threads replay flows that the main thread compiled.
//!
//! ```text
//!             packets it has no flow for, counters
//!   FastPath  ───────────────────────────────────────────►  Switch
//!  (a flow cache) ◄─────────────────────────────────  (tables, connections)
//!             flows
//! ```
//! A fast path has a flow cache of its own. It shares with the switch what its flows check: the stamp and time of each
//! connection and learned address, the generation of each xlate cache (`stamps.rs`). So a flow becomes stale in all
//! threads at once, a connection that only one thread forwards does not expire in another, and no thread waits for
//! another. A packet without a flow is an upcall: the main thread walks the tables, sends the packet, and returns the
//! flow.

use crate::buf::PacketBuf;
use crate::drops::DropCounters;
use crate::events::Outputs;
use crate::flowcache::dump::Shown;
use crate::flowcache::entry::Entry;
use crate::flowcache::exec::{ReplayContext, burst};
use crate::flowcache::megaflow::Mask;
use crate::flowcache::views::Views;
use crate::flowcache::{Cache, CacheStats, Tally};
use std::time::Duration;

/// A PMD thread's share of a switch.
#[derive(Debug)]
pub struct FastPath {
    cache: Cache,
    /// Keys hold all TCP flags, as far as this thread has seen.
    exact_flags: bool,
}

/// A flow for a fast path's cache.
#[derive(Debug)]
pub struct Flow {
    hash: u64,
    entry: Entry,
    /// Of a megaflow: the kind of frame, and the mask.
    mask: Option<(usize, Mask)>,
}

/// What a fast path counted.
#[derive(Debug)]
pub struct Sums {
    pub(crate) tallies: Vec<(u32, Tally)>,
    pub(crate) drops: DropCounters,
    pub(crate) stats: CacheStats,
}

/// What fast paths must see after the switch's bridges or local addresses changed.
#[derive(Clone, Debug)]
pub struct View(Views);

impl Flow {
    pub(crate) fn new(hash: u64, entry: Entry, mask: Option<(usize, Mask)>) -> Flow {
        Flow { hash, entry, mask }
    }
}

impl View {
    /// What entries of this cache check.
    pub(crate) fn new(cache: &Cache) -> View {
        View(cache.views.clone())
    }
}

impl FastPath {
    /// A fast path with a cache of the same size that checks the same stamps.
    pub(crate) fn new(cache: &Cache) -> FastPath {
        let Cache { table, views, .. } = cache;
        FastPath { cache: Cache::new(table.another(), views.clone()), exact_flags: views.exact_flags() }
    }

    /// Forwards a batch of packets, each with the device that received it, and empties it. `missed` gets the upcalls.
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
            let n = n - self.cache.serve_burst_prefix(&mut left, n, &mut outer, out, at);
            self.cache.prepare(left.as_slice().get(..n).unwrap_or_default(), &mut keys);
            let mut held = None;
            for (key, (device, p)) in keys.iter_mut().take(n).zip(left.by_ref()) {
                let back = match key.cached() {
                    true => self.cache.replay(key, p, &mut held, &mut outer, out, ReplayContext { at, ct: None }),
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

    /// Takes over the view of a changed switch.
    pub fn look(&mut self, view: View) {
        self.cache.views = view.0;
    }

    /// Forgets all flows.
    pub fn clear(&mut self) {
        self.cache.table.clear();
    }

    /// Takes what was counted since the last call; none if nothing was.
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

    /// Statistics of its flow cache since the last call of [`FastPath::sums`].
    pub fn stats(&self) -> CacheStats {
        self.cache.stats
    }

    /// How many flows are in the cache and not stale.
    pub fn flows(&self) -> usize {
        self.cache.table.used().count()
    }
}
