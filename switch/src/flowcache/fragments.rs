//! Flows of fragments through connection tracking. A fragment waits at each `ct` for the rest of its datagram, so what
//! becomes of it is kept in pieces: the way to the first `ct`, as a flow of its headers, and from each `ct` on a *leg*,
//! to the next one or to the end.
//!
//! ```text
//!   fragment ─► its flow ─► waits ┐                          ┌─► leg ─► waits ┐ … ┌─► leg ─► out
//!   fragment ─► its flow ─► waits ┴─► the datagram is whole ─┴─► leg ─► waits ┴ … ┴─► leg ─► out
//! ```
//! The key of a leg is what its fragment and the first one of its datagram waited with: of each the number of its
//! [`Suspended`], which all fragments share that came by the same flow, with the same headers; and of the datagram what
//! its transport header says. Legs serve a datagram if there is one for each fragment, and all of them end at the same
//! `ct`, or nowhere: then it needs neither a walk nor a look at its connection, but for the checks that any flow has. Its
//! checksum is checked once. Else all of its fragments walk on, and leave legs behind.

use super::exec::{run, serve};
use super::key::{Layout, PackedKey};
use super::observer::CacheObserver;
use super::recorder::{Learned, Record, Recorder};
use super::{Cache, FlowCache};
use crate::buf::PacketBuf;
use crate::conntrack::reassembly::{Held, Suspended, Taken, datagram};
use crate::drops::DropReason;
use crate::events::{Event, HeldFragment, Outputs};
use crate::ids::BridgeId;
use crate::xlate::ct::{Joint, transport_of};
use crate::xlate::{Backer, Xlate};
use packet::Headers;

/// A leg that is being recorded.
#[derive(Debug)]
pub(crate) struct Begun {
    key: [u64; 3],
    layout: Layout,
    len: usize,
}

/// A recorded leg.
#[derive(Debug)]
pub(crate) struct Leg {
    begun: Box<Begun>,
    record: Record,
}

/// What legs need beside the table.
#[derive(Debug, Default)]
pub(crate) struct Legs {
    /// Recorded in the walk at hand.
    new: Vec<Leg>,
    /// How often packets were counted as served that another flow had served before, or that walked on.
    pub(crate) served: u64,
    key: PackedKey,
    /// The entries of the fragments at hand.
    numbers: Vec<usize>,
}

/// The key of a leg: which fragment, of which datagram.
fn key_of(rest: &Suspended, first: u64, transport: u64) -> [u64; 3] {
    [rest.number, first, if rest.resumed { 0 } else { transport }]
}

impl<P: PacketBuf> Xlate<'_, P, CacheObserver<'_>> {
    /// A fragment goes on: begins to record its leg.
    pub(super) fn begin_leg(&mut self, rest: &Suspended, joint: &Joint) -> Option<Box<Begun>> {
        let passed = joint.passed.filter(|_| self.observer.keeps_legs)?;
        let layout = Layout::of(&self.packet.headers)?;
        let (len, spare) = (self.packet.buf.data().len(), self.observer.flowcache.spare.take());
        let mut r = Recorder::new(&self.packet.base, len, (false, false), spare);
        let [before, after] = passed.connection;
        r.begun = self.so_far();
        if !r.tracked(passed.zone, &passed.tuple, before, after) {
            self.observer.flowcache.put_back(r);
            return None;
        }
        self.observer.recorder = Some(r);
        Some(Box::new(Begun { key: key_of(rest, joint.first, passed.transport), layout, len }))
    }

    /// Ends the record.
    pub(super) fn end_leg(&mut self, begun: Option<Box<Begun>>) {
        let Some(begun) = begun else { return };
        let own = self.pipeline.drop;
        let Some(mut rec) = self.observer.recorder.take() else { return };
        let (now, then) = (self.so_far(), rec.begun);
        let drop = match &rec.held {
            Some(h) => {
                rec.ok &= rec.ends_held();
                h.why
            }
            None => {
                let [packets, events, bfd] = std::array::from_fn(|i| now.out[i].saturating_sub(then.out[i]));
                let sent = now.sent.saturating_sub(then.sent) as usize;
                rec.ok &= events == 0 && packets + bfd == sent && rec.sends() == sent;
                (sent == 0).then(|| own.unwrap_or(DropReason::Action))
            }
        };
        if !rec.ok || self.pipeline.failed || own == Some(DropReason::NoBuffer) {
            return self.observer.flowcache.put_back(rec);
        }
        self.put_lookups(&mut rec);
        self.observer.flowcache.legs.new.push(Leg { begun, record: (rec, drop) });
    }
}

impl FlowCache {
    /// Ends a walk in which legs may have been recorded: keeps them, unless it failed or has changed what flows depend on.
    /// So it does with the record of the walk itself, if that is a fragment's that waits.
    pub(crate) fn keep_legs(&mut self, backer: &Backer, failed: bool, record: Option<Record>) -> Option<Record> {
        let waits = record.as_ref().is_some_and(|(r, _)| r.held.is_some());
        if self.legs.new.is_empty() && !waits {
            return record;
        }
        let sound = !failed && self.is_settled(backer);
        let mut list = std::mem::take(&mut self.legs.new);
        for Leg { begun, record: (mut rec, drop) } in list.drain(..) {
            if sound {
                self.keep_leg(backer, &begun, &mut rec, drop);
            }
            self.put_back(rec);
        }
        self.legs.new = list;
        record.filter(|_| sound || !waits)
    }

    fn keep_leg(&mut self, backer: &Backer, begun: &Begun, rec: &mut Recorder, drop: Option<DropReason>) {
        let FlowCache { cache, xcaches, legs, .. } = self;
        legs.key.leg(begun.key, begun.layout);
        legs.key.hash = cache.table.hash(legs.key.blocks());
        let held = backer.conntrack.lock();
        let learned = Learned { ct: &held, bridges: &backer.bridges, now: backer.now };
        let (at, lengths) = (backer.now.as_nanos() as u64, [begun.len, 0]);
        let entry = if rec.is_metered() { None } else { rec.compile(&legs.key, xcaches, learned, drop) };
        let entry = entry.filter(|e| super::exec::holds(e, &held, &cache.views, lengths, at));
        std::mem::drop(held);
        if let Some(e) = entry {
            cache.insert(&backer.conntrack, backer.now, legs.key.hash, e);
        }
    }

    /// Takes the fragment that a flow has put by; if its datagram is complete, all of its fragments go on.
    #[inline(never)]
    pub(crate) fn join<P: PacketBuf>(&mut self, backer: &mut Backer, outer: &mut Vec<Option<P>>, out: &mut Outputs<P>) {
        let Some(HeldFragment { packet, rest, why }) = out.held.take() else { return };
        let Some(h) = Headers::parse(packet.data()) else { return };
        let held = Held { bytes: backer.fragments.store(packet.data()), rest };
        let mut lost = |why: Option<DropReason>, reason, n: u64| {
            backer.drops.add_many(reason, n - 1);
            backer.drops.add(why.unwrap_or(reason));
        };
        match backer.fragments.take(held, &h, backer.now) {
            Taken::Waits => {}
            Taken::Full => lost(why, DropReason::FragmentsFull, 1),
            Taken::Big(n) => lost(why, DropReason::FragmentsBig, n),
            Taken::Overlap(n) => lost(why, DropReason::FragmentOverlap, n),
            Taken::Invalid(held) => self.walk_on(backer, packet, out, |x| x.resume_invalid(&held)),
            Taken::Whole(whole, list) => self.go_on(backer, packet, whole, list, outer, out),
        }
    }

    /// Lets fragments walk on, as in the walk of the packet that completed their datagram.
    fn walk_on<P: PacketBuf>(
        &mut self,
        backer: &mut Backer,
        packet: P,
        out: &mut Outputs<P>,
        body: impl FnOnce(&mut Xlate<'_, P, CacheObserver<'_>>),
    ) {
        self.cache.stats.misses += 1;
        self.legs.served += 1;
        let mut x = Xlate::new(backer, out, packet, BridgeId::NONE, self.observer());
        x.observer.keeps_legs = true;
        x.pipeline.sent = 1;
        body(&mut x);
        let failed = x.pipeline.failed;
        x.end();
        self.keep_legs(backer, failed, None);
        // The walk may have learned a flow.
        self.settle(backer);
    }

    /// All fragments of a datagram go on, by legs as far as there are some.
    fn go_on<P: PacketBuf>(
        &mut self,
        backer: &mut Backer,
        packet: P,
        mut whole: Vec<u8>,
        mut list: Vec<Held>,
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
    ) {
        let windows = backer.conntrack.lock().windows;
        let alike = self.cache.on && list.iter().all(|held| !held.rest.resumed);
        let transport = if alike { transport_of(&whole, windows) } else { None };
        while let Some(waits) = transport.and_then(|t| self.find_legs(backer, &list, t)) {
            if !waits {
                self.finish(&packet, &list, outer, out);
                return backer.fragments.reuse(whole, list);
            }
            self.next_hold(&mut list, &mut out.events);
            if !backer.fragments.take_whole(&list) {
                let reasons = self.legs.numbers.iter().map(|n| self.cache.table.entries.get(*n)?.drop);
                let list: Vec<(Held, Option<DropReason>)> = list.into_iter().zip(reasons).collect();
                return self.walk_on(backer, packet, out, |x| {
                    list.into_iter().for_each(|(held, why)| x.apart(why, |x| x.reassemble(held)));
                });
            }
        }
        let resumed = list.first().is_some_and(|held| held.rest.resumed);
        if resumed {
            datagram(&list, &mut whole);
        }
        self.walk_on(backer, packet, out, |x| x.datagram(&whole, &list));
        backer.fragments.reuse(whole, list);
    }

    /// Finds the legs of all fragments of a datagram; whether they wait behind these.
    fn find_legs(&mut self, backer: &Backer, list: &[Held], transport: u64) -> Option<bool> {
        let FlowCache { cache, legs, .. } = self;
        let (first, at) = (list.first()?.rest.number, backer.now.as_nanos() as u64);
        let mut zone = None;
        legs.numbers.clear();
        for held in list {
            legs.key.leg(key_of(&held.rest, first, transport), Layout::default());
            legs.key.hash = cache.table.hash(legs.key.blocks());
            let number = cache.number(&legs.key, [held.bytes.len(), 0], at, &backer.conntrack)?;
            let waits = cache.table.entries.get(number)?.held().map(|rest| rest.zone);
            if *zone.get_or_insert(waits) != waits {
                return None;
            }
            legs.numbers.push(number);
        }
        Some(zone?.is_some())
    }

    /// The legs that were found are carried out, to where the fragments wait next; samples of them are among the events.
    fn next_hold(&mut self, list: &mut [Held], events: &mut Vec<Event>) {
        let FlowCache { cache: Cache { table, tallies, .. }, legs, .. } = self;
        let (mut outer, mut none) = (Vec::new(), Outputs::default());
        for (held, number) in list.iter_mut().zip(&legs.numbers) {
            let Some(e) = table.entries.get(*number) else { continue };
            let len = held.bytes.len();
            tallies.count(e.path, e.generation, [len, 0]);
            legs.served += 1;
            let bytes = std::mem::take(&mut held.bytes);
            run(e.steps(), bytes, len, &[], &mut outer, &mut none);
            held.bytes = none.left.take().unwrap_or_default();
            events.append(&mut none.events);
            held.rest = e.held().unwrap_or(&held.rest).clone();
        }
    }

    /// The same, to the end.
    fn finish<P: PacketBuf>(&mut self, like: &P, list: &[Held], outer: &mut Vec<Option<P>>, out: &mut Outputs<P>) {
        let FlowCache { cache: Cache { table, tallies, .. }, legs, .. } = self;
        for (held, number) in list.iter().zip(&legs.numbers) {
            let Some(e) = table.entries.get(*number) else { continue };
            legs.served += 1;
            match like.with_bytes(&held.bytes) {
                Some(p) => {
                    let len = held.bytes.len();
                    serve(e, e.steps(), p, (len, [len, 0]), (&[], outer), out, tallies);
                }
                None => tallies.drop(DropReason::NoBuffer),
            }
        }
    }
}
