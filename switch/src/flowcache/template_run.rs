//! Serves packets without a flow from templates, several in a row.
//!
//! ```text
//!   each by itself: frame ─► tuple ─► checksums, templates whose keys fit
//!   the table held: all in their order: zones looked up, template chosen, connections opened and changed
//!   each by itself: counters, steps
//! ```
//! Only the middle part needs the connection table, which threads have beside each other (`conntrack/joint.rs`); a packet
//! that this does not serve gets it alone. A template that became stale before the table was taken is not used: what
//! follows a change of flows (a zone is emptied) finds no connection that old flows open later.

use super::Cache;
use super::ct_template::{CtTemplateCache, said, said_quoting, turn};
use super::entry::Entry;
use super::exec::{ReplayContext, serve};
use super::key::{self, KINDS, Layout, PackedKey};
use super::megaflow::TupleBits;
use super::metered::serve_metered;
use super::table::Table;
use crate::buf::PacketBuf;
use crate::conntrack::{Beside, Conntrack, Found, Held, Joint, NotNow, Outcome, Packet};
use crate::conntrack::{Plan, SharedConntrack, Stash, Tuple};
use crate::events::Outputs;
use crate::extract::{address, sctp_chunks_hold};
use crate::ids::DeviceId;
use crate::xlate::quoted::{self, Quoted};
use packet::{be16, checksum, ipproto};
use std::time::Duration;

/// One of so many packets without a connection gets an entry of its own.
const SOME: u64 = 16;
/// Most packets in a row.
const MOST: usize = 32;
/// Places of [`Waiting`].
const PLACES: usize = 4096;
/// Octets of an IPv6 header.
const IPV6: usize = 40;

/// The tuple of a frame as it arrives, or of the frame in its tunnel; none if no template is of such packets. That of an
/// ICMP error is the reversed one of the packet that it quotes, and what it says itself is the second.
fn arriving(p: &[u8], key: &PackedKey) -> Option<(Tuple, Option<TupleBits>)> {
    let at = if key.inner_at == 0 { key.outer } else { key.inner };
    let p = p.get(key.inner_at..)?;
    let (v6, l3, l4) = (at.ip == 6, usize::from(at.l3), usize::from(at.l4));
    let (src, dst) = if v6 { (l3 + 8, l3 + 24) } else { (l3 + 12, l3 + 16) };
    let (proto, sport, dport) = match (is_read(at.proto), l4) {
        (false, _) => (portless(p, at)?, 0, 0),
        (true, 0) => return None,
        (true, l4) => (at.proto, be16(p, l4)?, be16(p, l4 + 2)?),
    };
    let (src, dst) = (address(p, src, v6)?, address(p, dst, v6)?);
    let mut t = Tuple { v6, proto, src, dst, sport, dport, icmp_type: 0, icmp_code: 0 };
    let mut own = None;
    if t.is_icmp() {
        [t.icmp_type, t.icmp_code] = t.sport.to_be_bytes();
        if quoted::is_error(t.proto, t.icmp_type) {
            own = Some(said(&t));
            t = Quoted::parse(p, v6, l4)?.reversed(t.dst)?;
        } else {
            t.sport = be16(p, l4 + 4)?;
            t.dport = t.sport;
        }
    }
    t.has_templates().then_some((t, own))
}

/// Whether connection tracking reads what is behind the IP header.
fn is_read(proto: u8) -> bool {
    matches!(proto, ipproto::TCP | ipproto::UDP | ipproto::SCTP | ipproto::ICMP | ipproto::ICMPV6)
}

/// The protocol of an IP packet that has another one than those. A layout may not say it.
fn portless(p: &[u8], at: Layout) -> Option<u8> {
    match (at.ip, at.proto) {
        (4, 0) => p.get(usize::from(at.l3) + 9).copied(),
        (6, 0) => p.get(usize::from(at.l3) + 6).copied(),
        (4 | 6, proto) => Some(proto),
        _ => None,
    }
}

/// A frame as connection tracking sees it. Its lengths are right, or it would have no such key.
fn seen<P: PacketBuf>(p: &P, key: &PackedKey, tuple: Tuple, error: bool) -> Option<Packet> {
    let frame = p.data();
    let (at, good) = if key.inner_at == 0 { (key.outer, p.checksum_good()) } else { (key.inner, false) };
    let l3 = key.inner_at + usize::from(at.l3);
    if !is_read(at.proto) {
        let header = usize::from(frame.get(l3)? & 0xf) * 4;
        let broken = !tuple.v6 && checksum::of(frame.get(l3..l3 + header)?) != 0;
        return Some(Packet { tuple, tcp_flags: 0, segment: None, error, broken });
    }
    let l4 = key.inner_at + usize::from(at.l4);
    let (end, addresses) = match tuple.v6 {
        false => (l3 + usize::from(be16(frame, l3 + 2)?), l3 + 12..l3 + 20),
        true => (l3 + IPV6 + usize::from(be16(frame, l3 + 4)?), l3 + 8..l3 + 40),
    };
    let icmp = matches!(at.proto, ipproto::ICMP | ipproto::ICMPV6);
    let transport = frame.get(l4..end)?;
    // Only over IPv4 a datagram may say nothing (RFC 8200 section 8.1).
    let unsaid = at.proto == ipproto::UDP && !tuple.v6 && be16(transport, 6) == Some(0);
    let covered = || {
        let addresses = frame.get(addresses).map_or(0, checksum::sum);
        // ICMP of IPv4 has none (RFC 792).
        let pseudo = match at.proto {
            ipproto::ICMP => 0,
            proto => addresses + u32::from(proto) + transport.len() as u32,
        };
        checksum::finish(checksum::sum(transport) + pseudo) == 0
    };
    let transport_right = match at.proto {
        ipproto::SCTP => checksum::sctp_holds(transport) && sctp_chunks_hold(transport),
        _ => good && !icmp || unsaid || covered(),
    };
    let right = (tuple.v6 || checksum::of(frame.get(l3..l4)?) == 0) && transport_right;
    // Port 0 is reserved (RFC 6335 section 6).
    let broken = !right || !icmp && (tuple.sport == 0 || tuple.dport == 0);
    let tcp_flags = if at.proto == ipproto::TCP { be16(transport, 12)? & 0xfff } else { 0 };
    Some(Packet { tuple, tcp_flags, segment: None, error, broken })
}

/// Packets that wait for the main thread, by hashes of their tuples: what comes behind such a packet has to wait there,
/// too, or it would overtake it.
#[derive(Debug)]
pub(crate) struct Waiting {
    counts: Box<[u16]>,
    all: u32,
}

/// The place of a packet among those that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaitingPlace(u16);

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { counts: vec![0; PLACES].into(), all: 0 }
    }
}

impl Waiting {
    fn place(t: &Tuple, table: &Table) -> WaitingPlace {
        let ports = u64::from(t.sport) << 32 | u64::from(t.dport) << 8 | u64::from(t.proto);
        let words = [t.src as u64, (t.src >> 64) as u64, t.dst as u64, (t.dst >> 64) as u64, ports, 0, 0, 0];
        WaitingPlace((table.hash(&[words]) % PLACES as u64) as u16)
    }

    fn is_at(&self, at: WaitingPlace) -> bool {
        self.all != 0 && self.counts.get(usize::from(at.0)).is_some_and(|n| *n != 0)
    }

    /// A packet waits.
    fn come(&mut self, at: WaitingPlace) {
        if let Some(n) = self.counts.get_mut(usize::from(at.0)) {
            *n += 1;
            self.all += 1;
        }
    }

    /// One of them has been sent, or is lost.
    pub(crate) fn gone(&mut self, at: WaitingPlace) {
        if let Some(n) = self.counts.get_mut(usize::from(at.0)).filter(|n| **n != 0) {
            *n -= 1;
            self.all -= 1;
        }
    }
}

/// What is known of a packet of a run.
#[derive(Debug, Default)]
struct Known {
    tuple: Option<Tuple>,
    /// What an ICMP error says itself.
    own_said: Option<TupleBits>,
    seen: Option<Packet>,
    lengths: [usize; 2],
    /// The mask that is tried first, and the first one under which there are templates: in its turn, with their bucket.
    first: usize,
    bucket: Option<(usize, u32)>,
    plan: Plan,
    /// Its template.
    template: Option<u32>,
    /// What an entry of its own checks, if it gets one.
    found: Vec<Found>,
    own: bool,
    /// The meter of the template that drops it, by its place.
    dropped: Option<usize>,
    waits: Option<WaitingPlace>,
}

/// What a fast path needs to have the table beside others, and packets of others wait.
pub(crate) struct Sharing<'a> {
    pub(crate) waiting: &'a mut Waiting,
    pub(crate) stash: &'a mut Stash,
}

/// How a run has the table.
enum Hold<'a> {
    Alone(Held<'a>),
    Beside(Beside<'a>),
}

impl<'a> Hold<'a> {
    /// The table for a fast path's run; none if others have it for long.
    fn for_run(ct: &'a SharedConntrack, stash: &mut Stash) -> Option<Hold<'a>> {
        let beside = ct.beside()?;
        let room = beside.has_room_for_all();
        if room && !stash.is_low() {
            return Some(Hold::Beside(beside));
        }
        drop(beside);
        let mut held = ct.try_lock()?;
        if !room {
            return Some(Hold::Alone(held));
        }
        held.fill(stash);
        drop(held);
        ct.beside().map(Hold::Beside)
    }

    /// The table.
    fn table(&self) -> &Conntrack {
        match self {
            Hold::Alone(ct) => ct,
            Hold::Beside(ct) => ct,
        }
    }
}

/// How one packet gets the table.
enum Access<'a> {
    Alone(&'a mut Conntrack),
    Beside(&'a Conntrack, &'a mut Stash),
}

/// What became of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunOutcome {
    /// How many packets at its beginning are done with.
    pub(crate) done: usize,
    /// How many of these opened connections.
    pub(crate) opened: usize,
}

/// The place of a mask among those of a kind of frame, and the number of a bucket under it.
type Recent = (usize, u32);

/// A template, and the lengths of packets, for which all that it checks held at the time of this run.
type Checked = Option<(u32, [usize; 2])>;

/// Serves runs; it has the storage for that.
#[derive(Debug)]
pub(crate) struct TemplateRuns {
    list: Vec<Known>,
    /// Under which mask the last packet of each kind had its template, and in which bucket.
    recent: Box<[Recent; KINDS]>,
    values: Vec<TupleBits>,
    /// How long a run may be: where its first packet is likely to need a walk, looking at more is of no use.
    pub(crate) most: usize,
}

impl Default for TemplateRuns {
    fn default() -> TemplateRuns {
        TemplateRuns { list: Vec::new(), recent: Box::new([(0, 0); KINDS]), values: Vec::new(), most: MOST }
    }
}

/// The packets of a run, with their keys. None of them has a flow.
pub(crate) type Run<'a, P> = (&'a [PackedKey], &'a mut [Option<(DeviceId, P)>]);

impl TemplateRuns {
    /// Serves packets from templates, in their order, and takes them out of the run. Without `waiting` it ends with the
    /// first packet that has no template, or that finds something else. With it, such packets are left, and all that
    /// have to wait for them. `own` gets entries for packets that changed nothing.
    pub(crate) fn serve<P: PacketBuf>(
        &mut self,
        (templates, cache): (&CtTemplateCache, &mut Cache),
        (ct, now): (&SharedConntrack, Duration),
        (keys, packets): Run<'_, P>,
        sharing: Option<Sharing<'_>>,
        (outer, out): (&mut Vec<Option<P>>, &mut Outputs<P>),
        mut own: impl FnMut(&mut Cache, u64, Entry),
    ) -> RunOutcome {
        let n = packets.len();
        self.list.resize_with(n.max(self.list.len()), Known::default);
        for ((k, key), slot) in self.list.iter_mut().zip(keys).zip(packets.iter()) {
            let arrives = slot.as_ref().and_then(|(_, p)| arriving(p.data(), key));
            (k.tuple, k.own_said) = arrives.map_or((None, None), |(t, own)| (Some(t), own));
        }
        let outcome = match sharing {
            None => {
                if n > 1
                    && let Some(table) = ct.beside_now()
                {
                    self.prefetch::<P>(&table, n);
                }
                self.look_at(templates, cache, keys, packets);
                if n > 1
                    && let Some(table) = ct.beside_now()
                {
                    self.prefetch_translated::<P>(templates, &table, n);
                }
                self.decide((templates, keys), cache, &mut ct.lock(), now, n)
            }
            Some(Sharing { waiting, stash }) => {
                let hold = Hold::for_run(ct, stash);
                hold.iter().for_each(|h| self.prefetch::<P>(h.table(), n));
                self.look_at(templates, cache, keys, packets);
                hold.iter().for_each(|h| self.prefetch_translated::<P>(templates, h.table(), n));
                self.decide_beside((templates, keys), cache, (ct, hold, stash), now, n, waiting)
            }
        };
        self.finish(templates, cache, now, ((keys, packets), outcome.done), (outer, out), &mut own);
        outcome
    }

    /// Asks for the memory that the first packets of a run will read if they open connections.
    fn prefetch<P: PacketBuf>(&self, table: &Conntrack, n: usize) {
        self.list.iter().take(n).filter_map(|k| k.tuple.as_ref()).for_each(|t| table.near(t, P::prefetch));
    }

    /// Asks for what they will read besides where groups choose what their destinations become.
    fn prefetch_translated<P: PacketBuf>(&self, templates: &CtTemplateCache, table: &Conntrack, n: usize) {
        for k in self.list.iter().take(n) {
            let (Some(t), Some(b)) = (&k.tuple, k.bucket.and_then(|(_, n)| templates.bucket(n))) else { continue };
            let opening = b.chosen_groups(t).find(|g| g.passes.iter().any(|p| p.outcome.opens().is_some()));
            opening.into_iter().for_each(|g| table.near_translated(t, &g.passes, P::prefetch));
        }
    }

    /// Of a run of `all` packets the first `done` were served.
    pub(crate) fn judge(&mut self, all: usize, done: usize) {
        self.most = match done {
            0 => 1,
            n if n == all => (2 * self.most).min(MOST),
            _ => self.most,
        };
    }

    /// Where a packet that a run left waits.
    pub(crate) fn waits(&self, n: usize) -> Option<WaitingPlace> {
        self.list.get(n)?.waits
    }

    /// What the frames say, and the templates whose keys fit.
    fn look_at<P: PacketBuf>(
        &mut self,
        templates: &CtTemplateCache,
        cache: &Cache,
        keys: &[PackedKey],
        packets: &[Option<(DeviceId, P)>],
    ) {
        for ((k, key), slot) in self.list.iter_mut().zip(keys).zip(packets) {
            (k.template, k.own, k.waits, k.seen, k.bucket) = (None, false, None, None, None);
            let (Some((_, p)), Some(tuple)) = (slot, k.tuple) else { continue };
            let recent = key.kind().and_then(|kind| self.recent.get(kind)).copied().unwrap_or_default();
            k.first = recent.0;
            k.bucket = templates.next_bucket(key, &cache.table, recent, 0);
            if k.bucket.is_none() {
                continue;
            }
            k.seen = seen(p, key, tuple, k.own_said.is_some());
            k.lengths = key.lengths(p.data().len());
        }
    }

    /// Has the packets find, open and change their connections, up to the first that has no template.
    fn decide(
        &mut self,
        (templates, keys): (&CtTemplateCache, &[PackedKey]),
        cache: &mut Cache,
        ct: &mut Conntrack,
        now: Duration,
        n: usize,
    ) -> RunOutcome {
        let TemplateRuns { list, recent, values, .. } = self;
        let (mut outcome, mut checked) = (RunOutcome::default(), None);
        for (k, key) in list.iter_mut().zip(keys).take(n) {
            let access = &mut Access::Alone(ct);
            let known = (&mut **recent, &mut checked);
            let Ok(opened) = k.choose((templates, key), cache, access, now, known, values) else { break };
            outcome.opened += usize::from(opened);
            outcome.done += 1;
        }
        outcome
    }

    /// The same beside other threads, for all packets: those that are not served wait.
    fn decide_beside<'a>(
        &mut self,
        (templates, keys): (&CtTemplateCache, &[PackedKey]),
        cache: &mut Cache,
        (ct, mut hold, stash): (&'a SharedConntrack, Option<Hold<'a>>, &mut Stash),
        now: Duration,
        n: usize,
        waiting: &mut Waiting,
    ) -> RunOutcome {
        let TemplateRuns { list, recent, values, .. } = self;
        let (mut outcome, mut checked) = (RunOutcome { done: n, opened: 0 }, None);
        for (k, key) in list.iter_mut().zip(keys).take(n) {
            let behind = k.tuple.as_ref().is_some_and(|t| waiting.is_at(Waiting::place(t, &cache.table)));
            let mut choose = |mut access: Access<'_>| match behind {
                true => Err(NotNow::Otherwise),
                false => k.choose((templates, key), cache, &mut access, now, (&mut **recent, &mut checked), values),
            };
            let mut served = match &mut hold {
                None => Err(NotNow::Otherwise),
                Some(Hold::Alone(table)) => choose(Access::Alone(table)),
                Some(Hold::Beside(table)) => choose(Access::Beside(table, stash)),
            };
            if served == Err(NotNow::Busy)
                && let Some(Hold::Beside(table)) = hold.take()
            {
                table.write_ledger(stash);
                drop(table);
                if let Some(mut table) = ct.try_lock() {
                    served = choose(Access::Alone(&mut table));
                    drop(table);
                    hold = Hold::for_run(ct, stash);
                }
            }
            match served {
                Ok(opened) => outcome.opened += usize::from(opened),
                Err(_) => k.wait(waiting, &cache.table),
            }
        }
        if let Some(Hold::Beside(table)) = hold {
            table.write_ledger(stash);
        }
        outcome
    }

    /// Does what is left for packets that have a template.
    fn finish<P: PacketBuf>(
        &mut self,
        templates: &CtTemplateCache,
        cache: &mut Cache,
        now: Duration,
        ((keys, packets), done): (Run<'_, P>, usize),
        (outer, out): (&mut Vec<Option<P>>, &mut Outputs<P>),
        own: &mut impl FnMut(&mut Cache, u64, Entry),
    ) {
        let (at, mut passed) = (now.as_nanos() as u64, None);
        for ((k, key), slot) in self.list.iter_mut().zip(keys).zip(packets).take(done) {
            let Some((number, t)) = k.template.and_then(|n| Some((n, templates.get(n)?))) else { continue };
            let Some((_, packet)) = slot.take() else { continue };
            let Cache { views, tallies, .. } = cache;
            let (tuples, lengths) = (&k.plan.translated, (key.end, k.lengths));
            if t.entry.metered {
                let by = (&t.entry, k.dropped);
                serve_metered(by, packet, lengths, (tuples, outer), out, (views, tallies), at);
            } else {
                // They are about addresses and lengths: once for packets that are alike.
                if passed != Some((number, k.lengths)) {
                    for c in t.entry.checks() {
                        views.pass(c, &k.lengths, at);
                    }
                    passed = Some((number, k.lengths));
                }
                serve(&t.entry, t.entry.steps(), packet, lengths, (tuples, outer), out, tallies);
            }
            if k.own
                && let Some(e) = t.own(key, &k.found, tuples)
            {
                own(cache, key.hash, e);
            }
        }
    }
}

impl Known {
    fn wait(&mut self, waiting: &mut Waiting, table: &Table) {
        self.waits = self.tuple.as_ref().map(|t| Waiting::place(t, table));
        self.waits.into_iter().for_each(|at| waiting.come(at));
    }

    /// Finds the packet's template and makes its changes; says whether it opened a connection. If not, nothing has changed.
    fn choose(
        &mut self,
        (templates, key): (&CtTemplateCache, &PackedKey),
        cache: &mut Cache,
        access: &mut Access<'_>,
        now: Duration,
        (recent, checked): (&mut [Recent; KINDS], &mut Checked),
        values: &mut Vec<TupleBits>,
    ) -> Result<bool, NotNow> {
        let Known { lengths, plan, found, first, own_said, .. } = self;
        let (seen, at) = (self.seen.as_ref().ok_or(NotNow::Otherwise)?, now.as_nanos() as u64);
        let Cache { table, views, stats, .. } = cache;
        let (bucket, mut last) = (self.bucket, None);
        let buckets = std::iter::from_fn(|| {
            let next = match last {
                None => bucket?,
                Some(n) => templates.next_bucket(key, table, (*first, 0), n + 1)?,
            };
            last = Some(next.0);
            Some(next)
        });
        let buckets = buckets.filter_map(|(n, number)| Some(((n, number), templates.bucket(number)?)));
        for ((n, bucket), g) in buckets.flat_map(|(n, b)| b.groups(&seen.tuple).map(move |g| (n, g))) {
            let mut joint = None;
            let planned = match access {
                Access::Alone(ct) => ct.foresee(seen, &g.passes, now, plan),
                Access::Beside(ct, stash) => {
                    match joint.insert(Joint::new(ct)).foresee(seen, &g.passes, now, plan, stash) {
                        Ok(()) => true,
                        Err(NotNow::Otherwise) => false,
                        Err(NotNow::Busy) => return Err(NotNow::Busy),
                    }
                }
            };
            if !planned {
                continue;
            }
            values.clear();
            match *own_said {
                None => values.extend(plan.translated.iter().map(|[_, t]| said(t) & g.tuple)),
                Some(mut own) => values.extend(plan.translated.iter().map(|pair| {
                    own = said_quoting(own, pair);
                    own & g.tuple
                })),
            }
            let number = g.flow(values);
            let Some((number, t)) = number.and_then(|n| Some((n, templates.get(n)?))) else { continue };
            if !table.fresh(&t.entry) {
                continue;
            }
            if *checked != Some((number, *lengths)) {
                if t.entry.checks().any(|c| !views.holds(c, Some(*lengths), at)) {
                    continue;
                }
                *checked = Some((number, *lengths));
            }
            // A packet without a connection may be one of many single packets: few of them get an entry.
            let has = g.passes.is_empty() || g.passes.iter().any(|p| matches!(p.outcome, Outcome::Has { .. }));
            let opens = g.passes.iter().any(|p| matches!(p.outcome, Outcome::Opens(_)));
            let ct: &Conntrack = match access {
                Access::Alone(ct) => ct,
                Access::Beside(ct, _) => ct,
            };
            // Another error may be about another connection.
            self.own = (own_said.is_none() || key.quotes())
                && (has || stats.ct_template_packets % SOME == 0)
                && plan.unchanged(ct, seen, &g.passes, found);
            self.dropped = if t.entry.metered { t.entry.dropped_by(*lengths, at) } else { None };
            if let Some(m) = self.dropped.and_then(|n| t.entry.meters().get(n)) {
                self.own = false;
                plan.cut(&g.passes, m.passes);
            }
            match (access, joint) {
                (Access::Beside(_, stash), Some(joint)) => joint.carry_out(seen, &g.passes, now, plan, stash),
                (Access::Alone(ct), _) => ct.carry_out(seen, &g.passes, now, plan),
                (Access::Beside(..), None) => {}
            }
            stats.ct_template_packets += 1;
            self.template = Some(number);
            if let Some(place) = key.kind().and_then(|kind| recent.get_mut(kind)) {
                *place = (turn(*first, n), bucket);
            }
            return Ok(opens);
        }
        Err(NotNow::Otherwise)
    }
}

impl Cache {
    /// How many packets from `first` on have no flow, `most` at most; the first has none.
    pub(crate) fn run_length<P: PacketBuf>(
        &mut self,
        keys: &[PackedKey],
        packets: &[Option<(DeviceId, P)>],
        first: usize,
        most: usize,
        now: ReplayContext<'_>,
    ) -> usize {
        let behind = keys.iter().zip(packets).take(first + most).skip(first + 1);
        1 + behind.take_while(|(key, slot)| slot.as_ref().is_some_and(|(_, p)| self.lacks(key, p, now))).count()
    }

    /// Whether no entry serves a packet.
    fn lacks<P: PacketBuf>(&mut self, key: &PackedKey, packet: &P, now: ReplayContext<'_>) -> bool {
        if !key.cached() || key.found != key::Found::Exact {
            return false;
        }
        let lengths = key.lengths(packet.data().len());
        let Cache { table, views, .. } = self;
        let fits = |e: &Entry| e.is(key.blocks()) && table.fresh(e);
        if let Some(e) = table.entries.get(key.candidate as usize).filter(|e| fits(e))
            && e.checks().all(|c| views.holds(c, Some(lengths), now.at))
        {
            return false;
        }
        self.stats.searched += 1;
        self.find(key, lengths, now.at, now.ct).is_none()
    }
}
