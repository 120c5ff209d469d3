//! Runs: packets one behind the other that belong to the flow found last. They need no keys, and what is the same for all
//! of them is done once: its entry is found, its steps are decoded, its counters are added to.

use super::Cache;
use super::encap::{Headers, decapsulate, encapsulate};
use super::entry::{Outer, Steps, Tags, Write, icmp_id, inner, op};
use super::exec::{BURST, change_sctp, passes, repeat, unsent, write};
use super::last::LastFlow;
use super::metered::{Asked, serve_metered};
use super::patches::Ports;
use super::views::Views;
use crate::buf::PacketBuf;
use crate::events::Outputs;
use crate::extract::{put_icmp_id, set_tags};
use crate::ids::{DeviceId, Target};

/// Most steps of a [`Program`] before a packet is sent.
const STEPS: usize = 4;
/// From this many packets on it pays to decode the steps first.
const MANY: usize = 4;
/// A bit for each packet of a run.
type Bits = u32;
const _: () = assert!(BURST <= Bits::BITS as usize);

/// So many packets of a run are found, and then served, before the next ones are looked at: their lines, and the
/// translations of their addresses, are in the processor's first caches still.
const CHUNK: usize = 8;

/// What is done with a packet of a run, decoded.
enum Stage<'a> {
    Write(Write<'a>),
    Tags(Tags),
    IcmpId(usize, u16),
    SctpPorts(Ports),
    /// Headers in front, after so many tags have come off.
    Encap(Outer<'a>, usize),
    Decap((usize, i8)),
}

/// Steps that make one packet of each, which is sent.
struct Program<'a> {
    stages: [Option<Stage<'a>>; STEPS],
    target: Target,
}

impl<'a> Program<'a> {
    /// None of steps that copy packets, do not send them, or are too many.
    fn decode(mut steps: Steps<'a>) -> Option<Program<'a>> {
        let (mut stages, mut n) = ([const { None }; STEPS], 0_usize);
        loop {
            let head = steps.head()?;
            let alone = head & (op::LAST | op::KEEP) == op::LAST;
            let stage = match head & op::ALL {
                op::SEND if alone => return Some(Program { stages, target: Target::of_bits(head as u32) }),
                op::WRITE => Stage::Write(steps.write(head)?),
                op::TAGS => Stage::Tags(steps.tags(head)?),
                op::ICMP_ID => {
                    let (l4, id) = icmp_id(head);
                    Stage::IcmpId(l4, id)
                }
                op::SCTP_SUM => Stage::SctpPorts(steps.ports(head)?),
                op::ENCAP if alone => {
                    let outer = steps.outer(head)?;
                    // Both move what is in front, so they are done at once.
                    let tags = match n.checked_sub(1).and_then(|n| stages.get(n)) {
                        Some(Some(Stage::Tags(t))) if t.list().is_empty() => {
                            n -= 1;
                            t.have
                        }
                        _ => 0,
                    };
                    if let Some(target) = outer.target {
                        *stages.get_mut(n)? = Some(Stage::Encap(outer, tags));
                        return Some(Program { stages, target });
                    }
                    Stage::Encap(outer, tags)
                }
                op::DECAP if alone => Stage::Decap(inner(head)),
                _ => return None,
            };
            *stages.get_mut(n)? = Some(stage);
            n += 1;
        }
    }

    /// The headers of its tunnel, made ready for all packets of a run; none where there is no tunnel, or one in another.
    fn headers(&self) -> Option<Headers> {
        let mut tunnels = self.stages.iter().flatten().filter_map(|s| match s {
            Stage::Encap(o, tags) => Some((o, *tags)),
            _ => None,
        });
        let (o, tags) = tunnels.next()?;
        if tunnels.next().is_some() {
            return None;
        }
        Headers::new(o, tags)
    }

    /// Does it to packets, which ended at `ends` as they were received. Returns a bit for each that had no room.
    fn run<P: PacketBuf>(&self, packets: &mut [(Target, P)], ends: &[usize], headers: &mut Option<Headers>) -> Bits {
        self.stages.iter().flatten().fold(0, |lost, s| lost | s.each(packets, ends, headers))
    }
}

/// Does something to each packet; returns a bit for each that had no room for it.
#[inline(always)]
fn each<P>(packets: &mut [(Target, P)], mut done: impl FnMut(&mut P) -> bool) -> Bits {
    let (mut lost, mut bit) = (0, 1);
    for (_, p) in packets {
        if !done(p) {
            lost |= bit;
        }
        bit <<= 1;
    }
    lost
}

/// A function of its own, which has the processor's registers for itself.
#[inline(never)]
fn put_headers<P: PacketBuf>(headers: &mut Headers, packets: &mut [(Target, P)]) -> Bits {
    each(packets, |p| headers.put(p))
}

impl Stage<'_> {
    #[inline(always)]
    fn each<P: PacketBuf>(&self, packets: &mut [(Target, P)], ends: &[usize], headers: &mut Option<Headers>) -> Bits {
        match self {
            Stage::Write(w) => packets.iter_mut().for_each(|(_, p)| write(p.data_mut(), w)),
            Stage::Tags(t) => return each(packets, |p| set_tags(p, t.have, t.list())),
            Stage::IcmpId(l4, id) => packets.iter_mut().for_each(|(_, p)| put_icmp_id(p.data_mut(), *l4, *id)),
            Stage::SctpPorts(ports) => packets.iter_mut().for_each(|(_, p)| change_sctp(p.data_mut(), *ports)),
            Stage::Encap(o, tags) => {
                return match headers {
                    Some(headers) => put_headers(headers, packets),
                    None => each(packets, |p| set_tags(p, *tags, &[]) && encapsulate(p, o)),
                };
            }
            Stage::Decap(at) => packets.iter_mut().zip(ends).for_each(|((_, p), end)| decapsulate(p, *at, *end)),
        }
        0
    }
}

/// How many packets belong to the entry found last and have lengths that it serves, the sums of their lengths, and of those
/// of their inner frames.
type Run = (usize, [usize; 2]);

/// Finds these; `ends` gets where their IP packets end.
#[inline(never)]
fn find_run<P: PacketBuf>(
    l: &LastFlow,
    of: &[(usize, usize); 2],
    packets: &[(DeviceId, P)],
    views: &Views,
    ends: &mut [usize; BURST],
) -> Run {
    let [whole, inside] = *of;
    let within = |n: usize, (least, greatest): (usize, usize)| least <= n && n <= greatest;
    let before = l.inner_at();
    let inner = |end: usize| if before == 0 { 0 } else { end - before };
    let [mut all, mut places] = [0; 2];
    let mut ends = ends.iter_mut();
    let n = l.run(packets, &views.own, views.exact_flags(), |len, end| {
        let fits = within(len, whole) && within(inner(end), inside);
        if fits && let Some(to) = ends.next() {
            (*to, all, places) = (end, all + len, places + end);
        }
        fits
    });
    (n, [all, if before == 0 { 0 } else { places - n * before }])
}

impl Cache {
    /// Serves the first packets of a burst while they belong to the flows found last, without building keys; returns
    /// how many.
    #[inline]
    pub(crate) fn serve_burst_prefix<P: PacketBuf>(
        &mut self,
        burst: &mut std::vec::Drain<'_, (DeviceId, P)>,
        most: usize,
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
        at: u64,
    ) -> usize {
        let mut served = 0;
        while served < most {
            match self.serve_run_of_last(burst, most - served, outer, out, at) {
                0 => break,
                n => served += n,
            }
        }
        served
    }

    /// The same while they belong to one flow.
    #[inline(always)]
    fn serve_run_of_last<P: PacketBuf>(
        &mut self,
        burst: &mut std::vec::Drain<'_, (DeviceId, P)>,
        most: usize,
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
        at: u64,
    ) -> usize {
        let Cache { table, views, tallies, recent, .. } = self;
        let Some(first) = burst.as_slice().first().map(|(device, _)| *device) else { return 0 };
        let Some(l) = recent.of(first).filter(|l| l.device() == first) else { return 0 };
        let (number, key) = l.entry();
        let Some(e) = table.entries.get(number as usize).filter(|e| e.is(key) && table.fresh(e)) else {
            recent.forget(first);
            return 0;
        };
        let (of, others) = e.lengths();
        let steps = e.steps();
        let straight = steps.straight().filter(|_| !e.metered);
        // All at once where packets are only looked at, and where a meter is asked about all of them.
        let at_once = if e.metered || straight.is_some() { BURST } else { CHUNK }.min(most);
        let mut ends = [0; BURST];
        let find = |packets: &[(DeviceId, P)], n: usize, ends: &mut _| {
            find_run(l, &of, packets.get(..n).unwrap_or(packets), views, ends)
        };
        let (mut n, mut sum) = find(burst.as_slice(), at_once, &mut ends);
        if n == 0 {
            return 0;
        }
        // What else holds for the first one holds for the next ones, too.
        if e.metered {
            // What is checked is only looked at, as a packet that a meter drops refreshes nothing behind it.
            if !others.clone().all(|c| views.holds(c, None, at)) {
                return 0;
            }
            if let Some(from) = e.refused_by((n, sum), at) {
                let mut meters = Asked::new(e, from, at);
                for ((_, p), end) in burst.by_ref().take(n).zip(ends) {
                    let lengths = [p.data().len(), l.inner_length(end)];
                    let dropped = meters.dropped_by(lengths);
                    serve_metered((e, dropped), p, (end, lengths), (&[], outer), out, (views, tallies), at);
                }
                if l.wide {
                    table.masks.again(l.kind(), n as u32);
                }
                return n;
            }
            others.for_each(|c| _ = views.pass(c, &sum, at));
        } else if !passes(others, views, &sum, at) {
            return 0;
        }
        let program = if straight.is_none() && n >= MANY { Program::decode(steps) } else { None };
        let mut headers = program.as_ref().and_then(Program::headers);
        let (mut all, mut sums) = (0, [0; 2]);
        loop {
            let mut packets = burst.by_ref().take(n).map(|(_, p)| p);
            if let Some(target) = straight {
                out.packets.extend(packets.map(|p| (target, p)));
            } else if let Some(program) = &program {
                let begin = out.packets.len();
                out.packets.extend(packets.map(|p| (program.target, p)));
                let lost = program.run(out.packets.get_mut(begin..).unwrap_or_default(), &ends, &mut headers);
                if lost != 0 {
                    drop_lost(begin, lost, out);
                    (0..lost.count_ones()).for_each(|_| unsent(e, out, tallies));
                }
            } else {
                for end in ends {
                    let Some(p) = packets.next() else { break };
                    repeat(e, e.steps(), p, end, (&[], outer), out, tallies);
                }
            }
            (all, sums) = (all + n, [sums[0] + sum[0], sums[1] + sum[1]]);
            if n < at_once || all >= most || e.metered {
                break;
            }
            (n, sum) = find(burst.as_slice(), at_once.min(most - all), &mut ends);
            if n == 0 {
                break;
            }
        }
        if l.wide {
            table.masks.again(l.kind(), all as u32);
        }
        tallies.count_run(e.path, e.generation, (all as u32, sums));
        all
    }
}

/// Drops those of the packets behind a place that had no room for what was to be done.
#[cold]
fn drop_lost<P>(begin: usize, lost: Bits, out: &mut Outputs<P>) {
    let behind = out.packets.split_off(begin);
    let kept = behind.into_iter().zip(0..).filter(|(_, i)| lost >> i & 1 == 0);
    out.packets.extend(kept.map(|(p, _)| p));
}
