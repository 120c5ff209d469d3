//! Meters on the way of cached flows.
//!
//! ```text
//!   steps ─► meter ─► steps ─► meter ─► steps       one entry: its meters are asked before anything is done,
//!              └─ drops: the steps before it,       in their order, until one drops the packet
//!                 the checks before it, and the
//!                 counters that had moved by then
//! ```
//! What meters say follows from their state, the time and the packet's length, and not from what the walk did before. So
//! they are asked first, and what is behind the one that drops is not done: no connection is opened or refreshed there.
//! A walk in which anything was done behind the scope that a meter ends is not kept.

use super::entry::Entry;
use super::exec::{run, serve};
use super::table::Table;
use super::views::Views;
use super::{Cache, Step, Tallies, told};
use crate::bridge::meter::{Meter, SharedMeter};
use crate::buf::PacketBuf;
use crate::conntrack::Tuple;
use crate::drops::DropReason;
use crate::events::Outputs;
use crate::extract::STAND_IN;
use std::sync::MutexGuard;
use std::time::Duration;

/// Most checks of an entry with meters.
pub(super) const CHECKS: usize = u64::BITS as usize;

/// A meter of a cached flow.
#[derive(Clone, Debug)]
pub(crate) struct Metered {
    meter: SharedMeter,
    /// The length that it is told, as a difference to that of the packet as received (0) or out of its tunnel (1).
    length: (u8, i32),
    /// Passes through connection tracking before it, and those of them of which entries have checks.
    pub(super) passes: usize,
    pub(super) found: usize,
    /// Which checks are of what is before it, in bits.
    pub(super) checks: u64,
    /// Words of the steps before it.
    pub(super) words: usize,
    /// The counters that had moved before it.
    pub(super) path: (u32, u32),
}

impl Metered {
    pub(super) fn new(meter: SharedMeter, length: (u8, i32)) -> Metered {
        Metered { meter, length, passes: 0, found: 0, checks: 0, words: 0, path: (0, 0) }
    }

    /// The same behind so many words of steps.
    pub(super) fn behind(&self, words: usize) -> Metered {
        Metered { words, ..self.clone() }
    }

    /// The meter's number in the datapath.
    pub(super) fn number(&self) -> u32 {
        self.meter.number
    }

    fn len(&self, lengths: [usize; 2]) -> usize {
        told(self.length, 1, lengths.map(|n| n as u64)) as usize
    }

    /// The sum of these lengths for so many packets, if none can be less than 0: every frame has Ethernet's header.
    fn sum(&self, (packets, sums): (usize, [usize; 2])) -> Option<usize> {
        let (_, difference) = self.length;
        let sum = || told(self.length, packets as u64, sums.map(|n| n as u64)) as usize;
        (difference >= -(STAND_IN as i32)).then(sum)
    }
}

/// The meters among steps.
pub(super) fn metered(steps: &mut [Step]) -> impl Iterator<Item = &mut Metered> {
    steps.iter_mut().filter_map(|s| if let Step::Meter(m) = s { Some(&mut **m) } else { None })
}

/// What had been noted of a walk when its packet passed a meter.
#[derive(Debug)]
pub(super) struct Mark {
    conditions: usize,
    pub(super) passes: usize,
    /// Counters and segments; counters alone once the lookups of segments are among them.
    pub(super) counts: usize,
    segments: usize,
    /// The scope that the meter ends, and what had been noted when that ended.
    scope: usize,
    behind: Option<[usize; 5]>,
}

impl Mark {
    /// Which checks are of what is before the meter, in bits; none if there are too many. `origins` are the conditions that
    /// they are of.
    pub(super) fn checks(&self, origins: &[usize]) -> Option<u64> {
        let before = origins.iter().enumerate().filter(|(_, origin)| **origin < self.conditions);
        (origins.len() <= CHECKS).then(|| before.fold(0, |bits, (n, _)| bits | 1 << n))
    }
}

/// The meters that the packet of a walk passed.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) list: Vec<Mark>,
    /// How many scopes the walk is in.
    scopes: usize,
}

impl Marks {
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.scopes = 0;
    }

    pub(super) fn passed(&mut self, conditions: usize, passes: usize, (counts, segments): (usize, usize)) {
        self.list.push(Mark { conditions, passes, counts, segments, scope: self.scopes, behind: None });
    }

    pub(super) fn scope_begins(&mut self) {
        self.scopes += 1;
    }

    pub(super) fn scope_ends(&mut self, noted: [usize; 5]) {
        for m in self.list.iter_mut().filter(|m| m.scope == self.scopes && m.behind.is_none()) {
            m.behind = Some(noted);
        }
        self.scopes = self.scopes.saturating_sub(1);
    }

    /// Whether a meter that drops the packet ends all: nothing was noted behind the scopes that they end.
    pub(super) fn end_all(&self, noted: [usize; 5]) -> bool {
        self.list.iter().all(|m| m.behind.is_none_or(|behind| behind == noted))
    }

    /// A pass through connection tracking is not noted any more.
    pub(super) fn pass_goes(&mut self, n: usize) {
        self.list.iter_mut().filter(|m| m.passes > n).for_each(|m| m.passes -= 1);
    }

    /// Counters come among the others: so many of each segment.
    pub(super) fn counts_come(&mut self, of_segments: &[usize]) {
        self.list.iter_mut().for_each(|m| m.counts += of_segments.iter().take(m.segments).sum::<usize>());
    }
}

impl Entry {
    /// Asks the meters for a packet of these lengths: the place of the one that drops it.
    pub(super) fn dropped_by(&self, lengths: [usize; 2], now: u64) -> Option<usize> {
        dropped_by(self.meters(), lengths, now)
    }

    /// Asks the meters for so many packets in a row, with these sums of lengths: the place of the first that does not let all
    /// of them pass, which has counted none.
    pub(super) fn refused_by(&self, run: (usize, [usize; 2]), now: u64) -> Option<usize> {
        let pass = |m: &Metered| {
            let bytes = m.sum(run);
            bytes.is_some_and(|bytes| m.meter.lock().pass_all(run.0, bytes, Duration::from_nanos(now)))
        };
        self.meters().iter().position(|m| !pass(m))
    }
}

/// The meters of an entry from one on, asked for packets in a row: one alone is locked once for all of them.
pub(super) struct Asked<'a> {
    meters: &'a [Metered],
    from: usize,
    now: u64,
    one: Option<(&'a Metered, MutexGuard<'a, Meter>)>,
}

impl<'a> Asked<'a> {
    /// Those before `from` let all of them pass.
    pub(super) fn new(e: &'a Entry, from: usize, now: u64) -> Asked<'a> {
        let meters = e.meters().get(from..).unwrap_or_default();
        let one = if let [m] = meters { Some((m, m.meter.lock())) } else { None };
        Asked { meters, from, now, one }
    }

    /// [`Entry::dropped_by`].
    pub(super) fn dropped_by(&mut self, lengths: [usize; 2]) -> Option<usize> {
        match &mut self.one {
            Some((m, meter)) => (!meter.pass(m.len(lengths), Duration::from_nanos(self.now))).then_some(self.from),
            None => dropped_by(self.meters, lengths, self.now).map(|n| self.from + n),
        }
    }
}

/// The place of the meter that drops a packet of these lengths.
fn dropped_by(meters: &[Metered], lengths: [usize; 2], now: u64) -> Option<usize> {
    meters.iter().position(|m| !m.meter.pass(m.len(lengths), Duration::from_nanos(now)))
}

impl Table {
    /// Whether the counters are known that had moved before the meters of an entry.
    #[cold]
    pub(super) fn meters_fresh(&self, e: &Entry) -> bool {
        e.meters().iter().all(|m| self.is_at(m.path))
    }
}

/// Serves a packet whose checks hold from an entry whose meters have been asked ([`Entry::dropped_by`]).
pub(super) fn serve_metered<P: PacketBuf>(
    (e, dropped): (&Entry, Option<usize>),
    packet: P,
    (end, lengths): (usize, [usize; 2]),
    (tuples, outer): (&[[Tuple; 2]], &mut Vec<Option<P>>),
    out: &mut Outputs<P>,
    (views, tallies): (&Views, &mut Tallies),
    now: u64,
) {
    let by = dropped.and_then(|n| e.meters().get(n));
    let before = |n: &usize| by.is_none_or(|m| m.checks >> n & 1 != 0);
    for (_, c) in e.checks().enumerate().filter(|(n, _)| before(n)) {
        views.pass(c, &lengths, now);
    }
    let Some(m) = by else {
        return serve(e, e.steps(), packet, (end, lengths), (tuples, outer), out, tallies);
    };
    let (path, generation) = m.path;
    tallies.count(path, generation, lengths);
    let sent = out.packets.len() + out.bfd.len();
    run(e.steps_before(m), packet, end, tuples, outer, out);
    if out.packets.len() + out.bfd.len() == sent {
        tallies.drop(DropReason::Meter);
    }
}

impl Cache {
    /// Serves a packet from an entry with meters, if its checks hold; else it comes back.
    #[inline(never)]
    pub(super) fn replay_metered<P: PacketBuf>(
        &mut self,
        number: usize,
        packet: P,
        (end, lengths): (usize, [usize; 2]),
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
        now: u64,
    ) -> Option<P> {
        let Cache { table, views, tallies, .. } = self;
        let holds = |e: &&Entry| e.checks().all(|c| views.holds(c, Some(lengths), now));
        let Some(e) = table.entries.get(number).filter(holds) else { return Some(packet) };
        let dropped = e.dropped_by(lengths, now);
        serve_metered((e, dropped), packet, (end, lengths), (&[], outer), out, (views, tallies), now);
        None
    }
}
