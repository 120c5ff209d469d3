//! Execution of cached flows on bursts of packets.

use super::check::Check;
use super::encap::{decapsulate, encapsulate, encapsulate_gre, put16};
use super::entry::{Checks, Entry, Steps, Write, cut, icmp_id, inner, op, same, session, transport, tunnel_port};
use super::key::{BLOCK, Found, PackedKey, classify};
use super::last::LastFlow;
use super::patches::Ports;
use super::views::Views;
use super::{Cache, Count, FlowCache, Tallies, Tally, told};
use crate::buf::PacketBuf;
use crate::conntrack::{Conntrack, SharedConntrack, Tuple};
use crate::drops::DropReason;
use crate::events::{HeldFragment, Outputs};
use crate::ids::{DeviceId, Target};
use crate::netflow::NetflowCount;
use crate::xlate::{Backer, quoted};
use packet::{be16, checksum, ipproto};
use std::cell::OnceCell;

/// Most packets of a burst.
pub(super) const BURST: usize = 32;

/// A burst of so many packets whose one in the middle and last one are of the same flow is likely to be followed by more of
/// that.
const MANY: usize = 8;

/// The size of the next burst; none if no packet is left.
pub(crate) fn burst<P>(left: &[P]) -> Option<usize> {
    Some(left.len().min(BURST)).filter(|n| *n != 0)
}

/// Whether all checks hold for packets of these lengths, or of any. Tuples without a connection are looked up, whatever
/// their generations say.
fn all_hold<'a>(
    e: &Entry,
    ct: impl FnOnce() -> &'a Conntrack,
    views: &Views,
    lengths: Option<[usize; 2]>,
    now: u64,
) -> bool {
    e.checks().all(|c| matches!(c, Check::Absent { .. }) || views.holds(c, lengths, now))
        && (e.absent().is_empty() || {
            let ct = ct();
            e.absent().iter().all(|(zone, tuple)| ct.seen(*zone, tuple).is_none())
        })
}

/// Whether an entry serves a packet of these lengths. Times are in nanoseconds.
pub(crate) fn holds(e: &Entry, ct: &Conntrack, views: &Views, lengths: [usize; 2], now: u64) -> bool {
    all_hold(e, || ct, views, Some(lengths), now)
}

/// Whether addresses are still where a walk found them.
pub(crate) fn addresses_hold(e: &Entry, views: &Views, now: u64) -> bool {
    let of_address = |c: &Check| matches!(c, Check::Known { .. } | Check::Unknown { .. } | Check::Source { .. });
    e.checks().filter(of_address).all(|c| views.holds(c, None, now))
}

/// Whether an entry serves packets of some length.
pub(crate) fn holds_but_length(e: &Entry, ct: &SharedConntrack, views: &Views, now: u64) -> bool {
    let table = OnceCell::new();
    all_hold(e, || table.get_or_init(|| ct.lock()), views, None, now)
}

/// A megaflow whose checks held for a packet of this burst. They hold for the next ones, too, except for lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BurstHit {
    number: u32,
    path: (u32, u32),
    /// Where packets of any length leave unchanged.
    straight: Option<Target>,
}

impl BurstHit {
    #[inline(always)]
    fn new(number: u32, e: &Entry) -> BurstHit {
        BurstHit { number, path: (e.path, e.generation), straight: e.straight_of_any_length() }
    }
}

/// The packet, or a copy if it is needed again.
#[inline(always)]
fn give<P: PacketBuf>(packet: &mut Option<P>, last: bool) -> Option<P> {
    if last { packet.take() } else { packet.as_ref()?.duplicate() }
}

/// When, and against which connections, packets are replayed.
#[derive(Clone, Copy)]
pub(crate) struct ReplayContext<'a> {
    /// The time, in nanoseconds of the switch's clock.
    pub at: u64,
    /// The connection table, where the main PMD thread asks.
    pub ct: Option<&'a SharedConntrack>,
}

/// Counts a packet for an entry, and executes its steps.
#[inline(always)]
pub(super) fn serve<P: PacketBuf>(
    e: &Entry,
    steps: Steps<'_>,
    packet: P,
    (end, lengths): (usize, [usize; 2]),
    (tuples, outer): (&[[Tuple; 2]], &mut Vec<Option<P>>),
    out: &mut Outputs<P>,
    sums: &mut Tallies,
) {
    sums.count(e.path, e.generation, lengths);
    repeat(e, steps, packet, end, (tuples, outer), out, sums);
}

/// Executes an entry's steps on a packet.
#[inline(always)]
pub(super) fn repeat<P: PacketBuf>(
    e: &Entry,
    steps: Steps<'_>,
    packet: P,
    end: usize,
    (tuples, outer): (&[[Tuple; 2]], &mut Vec<Option<P>>),
    out: &mut Outputs<P>,
    sums: &mut Tallies,
) {
    let before = out.packets.len() + out.bfd.len();
    run(steps, packet, end, tuples, outer, out);
    if out.packets.len() + out.bfd.len() == before {
        unsent(e, out, sums);
    }
}

/// Nothing of a packet was sent: it waits, or is dropped.
#[inline(never)]
pub(super) fn unsent<P>(e: &Entry, out: &mut Outputs<P>, sums: &mut Tallies) {
    match (out.left.take(), e.held()) {
        (Some(packet), Some(rest)) => out.held = Some(HeldFragment { packet, rest: rest.clone(), why: e.drop }),
        _ => sums.drop(e.drop.unwrap_or(DropReason::NoBuffer)),
    }
}

impl Cache {
    /// Builds the keys of a burst, and prefetches what lookups will read: first the sets of all, then the entries of
    /// all, then their connections, so that these reads overlap.
    #[inline]
    pub(crate) fn prepare<P: PacketBuf>(&mut self, burst: &[(DeviceId, P)], keys: &mut Vec<PackedKey>) {
        let Cache { table, views, recent, .. } = self;
        let exact_flags = views.exact_flags();
        keys.resize_with(burst.len().max(keys.len()), PackedKey::default);
        // The next packet often belongs to the megaflow found last.
        let (mut last, mut before, mut again): (Option<LastFlow>, u32, u32) = (None, u32::MAX, 0);
        for ((device, p), k) in burst.iter().zip(keys.iter_mut()) {
            let class = classify(p.data(), &views.own, exact_flags);
            if class.is_some_and(|c| !c.is_sound(p)) {
                k.clear();
                continue;
            }
            if let (Some(c), Some(l)) = (class, &last)
                && let Some(number) = l.is(c.head(*device), p.data())
            {
                k.again(*device, c, number);
                again += 1;
                continue;
            }
            if !k.fill_as(*device, p.data(), class, &views.own, exact_flags) {
                continue;
            }
            if class.is_none() && !k.is_sound(p) {
                k.clear();
                continue;
            }
            if table.masks.some
                && let Some(l) = table.narrow(k, before)
            {
                before = k.candidate;
                if let Some(l) = l {
                    recent.follow(&mut last, l);
                }
                continue;
            }
            k.hash = table.hash(k.blocks());
            table.set(k.hash).into_iter().for_each(P::prefetch);
        }
        if let Some(l) = last {
            table.masks.again(l.kind(), again);
            recent.keep(l);
        }
        let Cache { table, views, recent, .. } = self;
        let Some(keys) = keys.get_mut(..burst.len()) else { return };
        for k in keys.iter_mut().filter(|k| k.cached() && k.found == Found::Exact) {
            k.candidate = table.candidate(k.blocks(), k.hash);
            if let Some(e) = table.entries.get(k.candidate as usize) {
                e.lines(P::prefetch);
            }
        }
        if let (Some(middle), Some(end)) = (keys.get(keys.len() / 2), keys.last())
            && keys.len() >= MANY
            && [middle, end].iter().all(|k| k.cached() && k.found == Found::Exact)
            && same(middle.blocks(), end.blocks())
            && table.entries.get(end.candidate as usize).is_some_and(|e| e.is(end.blocks()))
        {
            // One connection's packets: the next ones need no keys.
            LastFlow::exact(end).into_iter().for_each(|l| recent.keep(l));
        }
        for k in keys.iter().filter(|k| k.cached() && k.found == Found::Exact) {
            let Some(e) = table.entries.get(k.candidate as usize).filter(|e| e.tracked) else { continue };
            for c in e.checks() {
                if let Some(stamp) = c.stamp() {
                    views.connections().near(stamp.index, P::prefetch);
                }
            }
        }
    }

    /// Serves a packet at a time in nanoseconds. If no entry serves it, the packet is returned and its key is complete.
    /// With a connection table in `now`, a tuple whose generation moved is looked up. `held` is the
    /// megaflow served last in this burst.
    #[inline(always)]
    pub(crate) fn replay<P: PacketBuf>(
        &mut self,
        key: &mut PackedKey,
        packet: P,
        held: &mut Option<BurstHit>,
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
        now: ReplayContext<'_>,
    ) -> Option<P> {
        let lengths = key.lengths(packet.data().len());
        let Cache { table, views, .. } = self;
        let again = held.filter(|h| key.found == Found::Again && h.number == key.candidate);
        if let Some(BurstHit { straight: Some(target), path: (path, generation), .. }) = again {
            self.tallies.count(path, generation, lengths);
            out.packets.push((target, packet));
            return None;
        }
        if let Some(e) = table.entries.get(key.candidate as usize) {
            let (own, checks, steps) = e.parts();
            let holds = match key.found {
                Found::Again => again.is_some() && fits(checks, views, &lengths),
                _ if e.metered => same(own, key.blocks()) && table.fresh(e),
                _ => same(own, key.blocks()) && table.fresh(e) && passes(checks, views, &lengths, now.at),
            };
            if holds && e.metered {
                let (number, at) = (key.candidate as usize, (key.end, lengths));
                let packet = self.replay_metered(number, packet, at, outer, out, now.at);
                if let Some(packet) = packet {
                    return self.search(key, packet, outer, out, now);
                }
                if key.found == Found::Narrow
                    && let Some(e) = self.table.entries.get(number)
                {
                    *held = Some(BurstHit::new(key.candidate, e));
                }
                return None;
            }
            if holds {
                serve(e, steps, packet, (key.end, lengths), (&[], outer), out, &mut self.tallies);
                if key.found == Found::Narrow {
                    *held = Some(BurstHit::new(key.candidate, e));
                }
                return None;
            }
        }
        self.search(key, packet, outer, out, now)
    }

    /// Serves a packet whose candidate entry does not fit.
    #[cold]
    fn search<P: PacketBuf>(
        &mut self,
        key: &mut PackedKey,
        packet: P,
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
        now: ReplayContext<'_>,
    ) -> Option<P> {
        self.stats.searched += 1;
        let lengths = key.lengths(packet.data().len());
        if key.found != Found::Exact {
            let Cache { table, views, .. } = self;
            // Learned addresses that moved do not come back: without this, packets would find this entry first again
            // and again.
            let gone = |e: &Entry| e.checks().any(|c| !views.holds(c, None, now.at));
            if key.found == Found::Narrow && table.entries.get(key.candidate as usize).is_some_and(gone) {
                table.spoil(key.candidate);
            }
            key.fill(key.device(), packet.data(), &views.own, views.exact_flags());
            key.hash = table.hash(key.blocks());
        }
        let Some(number) = self.find(key, lengths, now.at, now.ct) else { return Some(packet) };
        let e = self.table.entries.get(number)?;
        if e.metered {
            return self.replay_metered(number, packet, (key.end, lengths), outer, out, now.at);
        }
        serve(e, e.steps(), packet, (key.end, lengths), (&[], outer), out, &mut self.tallies);
        None
    }

    /// The number of the entry that serves a packet with this key.
    pub(super) fn number(
        &mut self,
        key: &PackedKey,
        lengths: [usize; 2],
        at: u64,
        ct: &SharedConntrack,
    ) -> Option<usize> {
        let Cache { table, views, .. } = self;
        let number = table.candidate(key.blocks(), key.hash) as usize;
        let serves = |e: &Entry| e.is(key.blocks()) && table.fresh(e) && passes(e.checks(), views, &lengths, at);
        if table.entries.get(number).is_some_and(serves) {
            return Some(number);
        }
        self.find(key, lengths, at, Some(ct))
    }

    /// Searches an entry for a packet whose candidate does not fit; returns its number.
    pub(super) fn find(
        &mut self,
        key: &PackedKey,
        lengths: [usize; 2],
        at: u64,
        ct: Option<&SharedConntrack>,
    ) -> Option<usize> {
        let Cache { table, views, .. } = self;
        // Held until the entry says that there is no connection as of now.
        let held = OnceCell::new();
        let serves = |i: usize| {
            table.entries.get(i).is_some_and(|e| match ct {
                Some(ct) => all_hold(e, || held.get_or_init(|| ct.lock()), views, Some(lengths), at),
                None => e.checks().all(|c| views.holds(c, Some(lengths), at)),
            })
        };
        let place = |blocks: &[[u64; BLOCK]], hash: u64| {
            let (place, number) = table.find(blocks, hash).find(|(_, i)| serves(*i))?;
            Some((hash, place, number))
        };
        let wide = || {
            table.masks.all(key).iter().find_map(|m| {
                let narrow = m.of(key.blocks());
                let blocks = narrow.get(..key.blocks().len())?;
                place(blocks, table.hash(blocks))
            })
        };
        let exact = place(key.blocks(), key.hash);
        let under_mask = exact.is_none();
        let (hash, place, number) = exact.or_else(wide)?;
        table.lift(hash, place, number);
        if under_mask && table.masks.paused(key) {
            // The next packet of this flow finds it by its whole key.
            let own = table.entries.get(number).and_then(|e| e.of(key.blocks()));
            own.into_iter().for_each(|e| table.insert(key.hash, e, |_| true));
        }
        let entry = table.entries.get_mut(number)?;
        if let Some(ct) = held.get() {
            entry.set_arrivals(|zone, tuple| ct.arrivals(zone, tuple));
        }
        // What is before a meter passes even if that drops the packet, what is behind it does not.
        if !entry.metered {
            for c in entry.checks() {
                views.pass(c, &lengths, at);
            }
        }
        Some(number)
    }
}

/// Tests and carries out all checks ([`Views::pass`]).
#[inline(always)]
pub(super) fn passes(checks: Checks<'_>, views: &Views, lengths: &[usize; 2], at: u64) -> bool {
    for c in checks {
        if !views.pass(c, lengths, at) {
            return false;
        }
    }
    true
}

/// Whether the checks of lengths hold; they come first.
#[inline(always)]
fn fits(checks: Checks<'_>, views: &Views, lengths: &[usize; 2]) -> bool {
    for c in checks {
        match c {
            Check::Length { .. } if views.pass(c, lengths, 0) => {}
            Check::Length { .. } => return false,
            _ => break,
        }
    }
    true
}

impl FlowCache {
    /// Adds what cached flows counted to the counters of tables, flows, ports and groups.
    pub(crate) fn pay_out(&mut self, backer: &mut Backer) {
        self.pay_some(backer, usize::MAX);
    }

    /// The same for so many paths at most.
    pub(super) fn pay_some(&mut self, backer: &mut Backer, most: usize) {
        self.count_segments(backer);
        let list = self.cache.tallies.take_some(most);
        self.pay(backer, &list);
        if std::mem::take(&mut self.cache.tallies.dropped) {
            backer.drops.take(&mut self.cache.tallies.drops);
        }
        self.cache.tallies.again(list);
    }

    /// The same for a list of tallies by xlate cache.
    pub(crate) fn pay(&mut self, backer: &mut Backer, list: &[(u32, Tally)]) {
        let FlowCache { xcaches, cache, .. } = self;
        let Backer { bridges, samples, netflow, now, .. } = backer;
        for (place, t) in list {
            cache.stats.hits += u64::from(t.packets);
            xcaches.add(*place, t, *now);
            let Some(counts) = xcaches.counts(*place, t.generation) else { continue };
            let n = u64::from(t.packets);
            let total = |length| told(length, n, t.bytes);
            for c in counts {
                match c {
                    Count::Table { bridge, table, rule, length } => {
                        if let Some(s) = bridges.get_mut(*bridge).and_then(|b| b.table_stats.get_mut(table.index())) {
                            s.0 += n;
                            s.1 += if rule.is_some() { n } else { 0 };
                        }
                        if let Some(r) = rule {
                            r.hits(n, total(*length), *now);
                        }
                    }
                    Count::Port { bridge, no, sent, length } => {
                        if let Some(p) = bridges.get_mut(*bridge).and_then(|b| b.ports.get_mut(no)) {
                            let d = usize::from(*sent);
                            p.stats[d] += n;
                            p.stats[2 + d] += total(*length);
                        }
                    }
                    Count::Bucket { bridge, group, index, length } => {
                        if let Some(s) = bridges.get(*bridge).and_then(|b| b.groups.get(group)) {
                            s.count(*index, n, total(*length));
                        }
                    }
                    Count::Bond { bridge, bond, bucket, length } => {
                        let state = bridges.get_mut(*bridge).and_then(|b| b.bonds.get_mut(*bond));
                        if let Some(x) = state.and_then(|s| s.bytes.get_mut(*bucket)) {
                            *x += total(*length);
                        }
                    }
                    Count::Sample => *samples += n,
                    Count::Netflow { flow, length } => {
                        netflow.push(NetflowCount { flow: flow.clone(), packets: n, bytes: total(*length) });
                    }
                    Count::Learn { rule, .. } => rule.renew(*now),
                }
            }
        }
    }
}

/// Executes steps on a packet that ends at `end` according to its network header. `tuples` are those before and after
/// each translation.
#[inline(always)]
pub(super) fn run<P: PacketBuf>(
    mut steps: Steps<'_>,
    first: P,
    end: usize,
    tuples: &[[Tuple; 2]],
    outer: &mut Vec<Option<P>>,
    out: &mut Outputs<P>,
) {
    let mut now = Some(first);
    let mut tuples = tuples.iter();
    let mut port = 0;
    while let Some(head) = steps.head() {
        let last = head & op::LAST != 0;
        let keep = head & op::KEEP != 0;
        match head & op::ALL {
            op::SEND => {
                if let Some(p) = give(&mut now, last) {
                    out.packets.push((Target::of_bits(head as u32), p));
                }
            }
            op::SESSION => {
                let (bridge, port) = session(head);
                out.bfd.extend(give(&mut now, last).map(|p| (bridge, port, p)));
            }
            op::WRITE => {
                let Some(w) = steps.write(head) else { break };
                if let Some(p) = &mut now {
                    write(p.data_mut(), &w);
                }
            }
            op::TAGS => {
                let Some(t) = steps.tags(head) else { break };
                if let Some(p) = &mut now
                    && !crate::extract::set_tags(p, t.have, t.list())
                {
                    now = None;
                }
            }
            op::ICMP_ID => {
                let (l4, id) = icmp_id(head);
                if let Some(p) = &mut now {
                    crate::extract::put_icmp_id(p.data_mut(), l4, id);
                }
            }
            op::SCTP_SUM => {
                let Some(ports) = steps.ports(head) else { break };
                now.iter_mut().for_each(|p| change_sctp(p.data_mut(), ports));
            }
            op::HOLD => out.left = now.take(),
            op::TRANSLATE => {
                if let (Some([_, t]), Some(p)) = (tuples.next(), &mut now) {
                    translate(p.data_mut(), head, t);
                }
            }
            op::TRANSLATE_QUOTING => {
                if let (Some(pair), Some(p)) = (tuples.next(), &mut now) {
                    quote(p.data_mut(), head, pair);
                }
            }
            op::QUOTE => {
                let Some(pair) = steps.quote(head) else { break };
                now.iter_mut().for_each(|p| quote(p.data_mut(), head, &pair));
            }
            op::ENCAP => {
                let Some(o) = steps.outer(head) else { break };
                let mut made = give(&mut now, last);
                made.take_if(|p| !encapsulate(p, &o));
                match (o.target, made) {
                    (Some(target), Some(p)) => out.packets.push((target, p)),
                    (Some(_), None) => {}
                    (None, made) => enter(&mut now, made, keep, outer),
                }
            }
            op::ENCAP_GRE => {
                let Some(o) = steps.outer_gre(head) else { break };
                let mut made = give(&mut now, last);
                made.take_if(|p| !encapsulate_gre(p, &o));
                match (o.target, made) {
                    (Some(target), Some(p)) => out.packets.push((target, p)),
                    (Some(_), None) => {}
                    (None, made) => enter(&mut now, made, keep, outer),
                }
            }
            op::SAMPLE => {
                if let (Some(s), Some(p)) = (steps.sampler(head), &now) {
                    out.events.extend(s.of(p.data(), port));
                }
            }
            op::CUT => {
                let mut made = give(&mut now, last);
                made.iter_mut().for_each(|p| p.truncate(cut(head).0));
                enter(&mut now, made, keep, outer);
            }
            op::DECAP => {
                let at = tunnel_port(head);
                if at != 0 {
                    port = now.as_ref().and_then(|p| be16(p.data(), at)).unwrap_or(0);
                }
                let mut made = give(&mut now, last);
                made.iter_mut().for_each(|p| decapsulate(p, inner(head), end));
                enter(&mut now, made, keep, outer);
            }
            _ => {
                if let Some(p) = outer.pop() {
                    now = p;
                }
            }
        }
    }
    outer.clear();
}

/// Continues with a packet that was made of this one.
#[inline(always)]
fn enter<P>(now: &mut Option<P>, made: Option<P>, keep: bool, outer: &mut Vec<Option<P>>) {
    let before = std::mem::replace(now, made);
    if keep {
        outer.push(before);
    }
}

#[inline(always)]
pub(super) fn write(p: &mut [u8], w: &Write<'_>) {
    match p.get_mut(w.at..w.at + 8 * w.words.len()) {
        Some(to) => {
            for (to, [keep, come]) in to.as_chunks_mut::<8>().0.iter_mut().zip(w.words) {
                *to = (u64::from_ne_bytes(*to) & keep | come).to_ne_bytes();
            }
        }
        None => {
            let bytes = w.words.iter().flat_map(|[k, c]| k.to_ne_bytes().into_iter().zip(c.to_ne_bytes()));
            p.iter_mut().skip(w.at).zip(bytes).for_each(|(to, (keep, come))| *to = *to & keep | come);
        }
    }
    let (at, change) = w.header;
    if change != 0 {
        checksum::apply(p, at, change);
    }
    let (at, change) = w.transport;
    // RFC 768: zero is no checksum, and stays so.
    let none = || w.udp && be16(p, at) == Some(0);
    if change == 0 || none() {
        return;
    }
    if checksum::apply(p, at, change) == Some(0) && w.udp {
        put16(p, at, 0xffff);
    }
}

/// Changes the checksum of an SCTP packet, which is whole, for other ports.
#[inline(never)]
pub(super) fn change_sctp(p: &mut [u8], Ports { l3, l4, differ }: Ports) {
    let end = match p.get(l3).map(|b| b >> 4) {
        Some(6) => be16(p, l3 + 4).map(|n| l3 + 40 + usize::from(n)),
        _ => be16(p, l3 + 2).map(|n| l3 + usize::from(n)),
    };
    checksum::change_sctp(p, l4, end.unwrap_or(0), differ);
}

/// Writes another tuple to an ICMP error, and to what it quotes, which is what it was when its tuple was read.
#[inline(never)]
fn quote(p: &mut [u8], head: u64, pair: &[Tuple; 2]) {
    let (l3, l4, _) = transport(head);
    let _ = quoted::translate(p, [l3, l4], pair);
}

/// Writes another tuple to a packet.
fn translate(p: &mut [u8], head: u64, t: &Tuple) {
    let (l3, l4, proto) = transport(head);
    let icmp = t.is_icmp();
    let mut change = match l4 {
        // It has no ports.
        0 => 0,
        // Its id stands behind type, code and checksum.
        _ if icmp => checksum::replace(p, l4 + 4, &t.sport.to_be_bytes()),
        _ => {
            let mut ports = [0; 4];
            ports[..2].copy_from_slice(&t.sport.to_be_bytes());
            ports[2..].copy_from_slice(&t.dport.to_be_bytes());
            if proto == ipproto::SCTP {
                put_sctp_ports(p, l3, l4, ports);
                0
            } else {
                checksum::replace(p, l4, &ports)
            }
        }
    };
    if t.v6 {
        let mut addresses = [0; 32];
        addresses[..16].copy_from_slice(&t.src.to_be_bytes());
        addresses[16..].copy_from_slice(&t.dst.to_be_bytes());
        change += checksum::replace(p, l3 + 8, &addresses);
    } else {
        let mut addresses = [0; 8];
        addresses[..4].copy_from_slice(&(t.src as u32).to_be_bytes());
        addresses[4..].copy_from_slice(&(t.dst as u32).to_be_bytes());
        let changed = checksum::replace(p, l3 + 12, &addresses);
        checksum::apply(p, l3 + 10, checksum::fold(changed));
        // ICMP has no pseudo header (RFC 792); ICMPv6 has one (RFC 4443 section 2.3).
        change += if icmp { 0 } else { changed };
    }
    let udp = proto == ipproto::UDP;
    let at = l4
        + match proto {
            // Addresses are no part of its checksum (RFC 9260 section 6.8).
            ipproto::SCTP => return,
            _ if l4 == 0 => return,
            _ if icmp => 2,
            ipproto::UDP => 6,
            _ => 16,
        };
    // RFC 768: zero is no checksum, and stays so.
    if udp && be16(p, at) == Some(0) {
        return;
    }
    if checksum::apply(p, at, checksum::fold(change)) == Some(0) && udp {
        put16(p, at, 0xffff);
    }
}

/// Gives an SCTP packet other ports. What is wrong with its checksum stays so.
fn put_sctp_ports(p: &mut [u8], l3: usize, l4: usize, ports: [u8; 4]) {
    let Some(place) = p.get_mut(l4..).and_then(|b| b.first_chunk_mut::<4>()) else { return };
    let old = std::mem::replace(place, ports);
    if old != ports {
        change_sctp(p, Ports { l3, l4, differ: std::array::from_fn(|i| old[i] ^ ports[i]) });
    }
}
