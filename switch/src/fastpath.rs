//! Fast-path (PMD) threads replay flows that the main thread compiled.
//!
//! ```text
//!             packets it has no flow for, counters
//!   FastPath  ───────────────────────────────────────────►  Switch
//!  (a flow cache) ◄─────────────────────────────────────── (tables)
//!       │     flows, templates, which packets have left       │
//!       └────────────────►  connections  ◄───────────────────┘
//! ```
//! A fast path has a flow cache of its own. It shares with the switch what its flows check: the stamp and time of each
//! connection and learned address, the generation of each xlate cache (`stamps.rs`). So a flow becomes stale in all
//! threads at once, a connection that only one thread forwards does not expire in another, and no thread waits for
//! another. A packet without a flow that opens or changes a connection, as others did before it, is served from a
//! template (`flowcache/template_run.rs`): for that fast paths have the connection table beside each other, and give up where
//! the main thread has it for long. Any other packet is an upcall: the main thread walks the tables, sends the packet, and returns
//! the flow, and a template if it is one of many. Packets of a connection stay in order: while one of its tuple is with
//! the main thread, those behind it that have no flow go there as well. (A TCP segment with other flags than one that waits may
//! have a flow, and overtake it.)

use crate::buf::PacketBuf;
use crate::conntrack::{SharedConntrack, Stash};
use crate::drops::DropCounters;
use crate::events::Outputs;
use crate::flowcache::ct_template::{CtTemplateCache, TemplateNews};
use crate::flowcache::dump::{DumpPart, Path};
use crate::flowcache::entry::Entry;
use crate::flowcache::exec::{ReplayContext, burst};
use crate::flowcache::key::PackedKey;
use crate::flowcache::megaflow::Mask;
use crate::flowcache::template_run::{Sharing, TemplateRuns, Waiting, WaitingPlace};
use crate::flowcache::views::Views;
use crate::flowcache::{Cache, CacheStats, Tally};
use crate::ids::DeviceId;
use std::collections::HashSet;
use std::time::Duration;

/// A PMD thread's share of a switch.
#[derive(Debug)]
pub struct FastPath {
    cache: Cache,
    /// Keys hold all TCP flags, as far as this thread has seen.
    exact_flags: bool,
    templates: CtTemplateCache,
    runs: TemplateRuns,
    conntrack: SharedConntrack,
    stash: Stash,
    waiting: Waiting,
}

impl Drop for FastPath {
    fn drop(&mut self) {
        self.conntrack.lock().take_back(&mut self.stash);
    }
}

/// A packet for the main thread, and the device that received it.
#[derive(Debug)]
pub struct Upcall<P> {
    /// The device.
    pub device: DeviceId,
    /// The packet.
    pub packet: P,
    /// What [`FastPath::left`] is told once the packet has been sent, or is lost.
    pub ticket: Ticket,
}

/// Says of an upcall which packets have to wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(Option<WaitingPlace>);

/// A new way to open connections, or that all are forgotten.
#[derive(Clone, Debug)]
pub struct News(TemplateNews);

impl News {
    pub(crate) fn new(news: TemplateNews) -> News {
        News(news)
    }
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
    pub(crate) fn new(cache: &Cache, templates: CtTemplateCache, conntrack: SharedConntrack) -> FastPath {
        let Cache { table, views, .. } = cache;
        FastPath {
            cache: Cache::new(table.another(), views.clone()),
            exact_flags: views.exact_flags(),
            templates,
            runs: TemplateRuns::default(),
            conntrack,
            stash: Stash::default(),
            waiting: Waiting::default(),
        }
    }

    /// Forwards a batch of packets, each with the device that received it, and empties it. `missed` gets the upcalls.
    /// [`FastPath::left`] has to be called for each of these.
    /// `now` is the switch's time.
    #[inline(never)]
    pub fn process<P: PacketBuf>(
        &mut self,
        batch: &mut Vec<(DeviceId, P)>,
        now: Duration,
        out: &mut Outputs<P>,
        missed: &mut Vec<Upcall<P>>,
    ) {
        if self.exact_flags != self.cache.views.exact_flags() {
            self.exact_flags = self.cache.views.exact_flags();
            self.cache.table.clear();
            self.templates.clear();
        }
        let at = now.as_nanos() as u64;
        let mut left = batch.drain(..);
        let mut keys = std::mem::take(&mut self.cache.keys);
        let mut outer = Vec::new();
        while let Some(n) = burst(left.as_slice()) {
            let n = n - self.cache.serve_burst_prefix(&mut left, n, &mut outer, out, at);
            if n == 0 {
                continue;
            }
            self.cache.prepare(left.as_slice().get(..n).unwrap_or_default(), &mut keys);
            let (mut held, mut done, mut first) = (None, 0, None);
            for (key, (device, p)) in keys.iter_mut().take(n).zip(left.by_ref()) {
                let back = match key.cached() {
                    true => self.cache.replay(key, p, &mut held, &mut outer, out, ReplayContext { at, ct: None }),
                    false => Some(p),
                };
                first = back.map(|p| (device, p));
                if first.is_some() {
                    break;
                }
                done += 1;
            }
            if let (Some(p), Some(keys)) = (first, keys.get_mut(done..n)) {
                let behind = left.by_ref().take(keys.len() - 1);
                let rest = std::iter::once(p).chain(behind).map(Some).collect();
                self.process_rest(keys, rest, now, (&mut outer, out), missed);
            }
        }
        self.cache.keys = keys;
    }

    /// Forwards the packets of a burst from the first on that has no flow.
    #[inline(never)]
    fn process_rest<P: PacketBuf>(
        &mut self,
        keys: &mut [PackedKey],
        mut rest: Vec<Option<(DeviceId, P)>>,
        now: Duration,
        (outer, out): (&mut Vec<Option<P>>, &mut Outputs<P>),
        missed: &mut Vec<Upcall<P>>,
    ) {
        let (mut next, mut held) = (0, None);
        let context = ReplayContext { at: now.as_nanos() as u64, ct: None };
        let FastPath { cache, templates, runs, conntrack, stash, waiting, .. } = self;
        while let (Some(key), Some(slot)) = (keys.get_mut(next), rest.get_mut(next)) {
            let Some((device, p)) = slot.take() else { break };
            if !key.cached() {
                missed.push(Upcall { device, packet: p, ticket: Ticket(None) });
                next += 1;
                continue;
            }
            *slot = match next {
                0 => Some(p),
                _ => cache.replay(key, p, &mut held, outer, out, context),
            }
            .map(|p| (device, p));
            if slot.is_none() {
                next += 1;
                continue;
            }
            held = None;
            let end = next + cache.run_length(keys, &rest, next, runs.most, context);
            let (Some(keys), Some(run)) = (keys.get(next..end), rest.get_mut(next..end)) else { break };
            let keep = |cache: &mut Cache, hash, entry| {
                let Cache { table, views, stats, .. } = cache;
                table.insert(hash, entry, |e| !e.checks().all(|c| views.holds(c, None, context.at)));
                stats.inserted += 1;
            };
            let sharing = Sharing { waiting: &mut *waiting, stash: &mut *stash };
            runs.serve((templates, cache), (conntrack, now), (keys, run), Some(sharing), (outer, out), keep);
            for (i, slot) in run.iter_mut().enumerate() {
                let Some((device, packet)) = slot.take() else { continue };
                missed.push(Upcall { device, packet, ticket: Ticket(runs.waits(i)) });
            }
            next = end;
        }
    }

    /// The packet of an upcall has been sent, or is lost.
    pub fn left(&mut self, ticket: Ticket) {
        ticket.0.into_iter().for_each(|at| self.waiting.gone(at));
    }

    /// Takes over what the main thread has learned of opening connections.
    pub fn follow(&mut self, news: &News) {
        self.templates.follow(&news.0, &self.cache.table);
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

    /// A part of the flows that are in the cache and not stale; see [`crate::Switch::dump_part`].
    pub fn dump_part(&self, from: usize, known: &HashSet<Path>, now: Duration) -> DumpPart {
        self.cache.dump(from, known, now)
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
