//! Runs: packets one behind the other that belong to the flow found last. They need no keys, and what is the same for all
//! of them is done once: its entry is found, its steps are decoded, its counters are added to.

use super::Cache;
use super::entry::{Outer, Steps, Tags, Write, icmp_id, inner, op};
use super::exec::{BURST, decapsulate, encapsulate, fits, passes, repeat, unsent, write};
use super::key::classify_as;
use super::metered::{Asked, serve_metered};
use crate::buf::PacketBuf;
use crate::events::Outputs;
use crate::extract::{put_icmp_id, set_tags};
use crate::ids::{DeviceId, Target};

/// Most steps of a [`Program`] before a packet is sent.
const STEPS: usize = 4;
/// From this many packets on it pays to decode the steps first.
const MANY: usize = 4;

/// What is done with a packet of a run, decoded.
enum Stage<'a> {
    Write(Write<'a>),
    Tags(Tags),
    IcmpId(usize, u16),
    Encap(Outer<'a>),
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
        let mut stages = [const { None }; STEPS];
        let mut places = stages.iter_mut();
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
                op::ENCAP if alone => {
                    let outer = steps.outer(head)?;
                    if let Some(target) = outer.target {
                        *places.next()? = Some(Stage::Encap(outer));
                        return Some(Program { stages, target });
                    }
                    Stage::Encap(outer)
                }
                op::DECAP if alone => Stage::Decap(inner(head)),
                _ => return None,
            };
            *places.next()? = Some(stage);
        }
    }
}

impl Stage<'_> {
    /// Does this with each packet of a run, of which it leaves none where that has no room. They ended at `ends` as they were
    /// received.
    #[inline(always)]
    fn each<P: PacketBuf>(&self, packets: &mut [Option<P>], ends: &[usize]) {
        let there = packets.iter_mut();
        match self {
            Stage::Write(w) => there.flatten().for_each(|p| write(p.data_mut(), w)),
            Stage::Tags(t) => there.for_each(|p| {
                if p.as_mut().is_some_and(|p| !set_tags(p, t.have, t.list())) {
                    *p = None;
                }
            }),
            Stage::IcmpId(l4, id) => there.flatten().for_each(|p| put_icmp_id(p.data_mut(), *l4, *id)),
            Stage::Encap(o) => there.for_each(|p| *p = p.take().and_then(|p| encapsulate(p, o))),
            Stage::Decap(at) => {
                for (p, end) in there.zip(ends) {
                    p.iter_mut().for_each(|p| decapsulate(p, *at, *end));
                }
            }
        }
    }
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
        let exact_flags = views.exact_flags();
        let Some(e) = table.entries.get(number as usize).filter(|e| e.is(key) && table.fresh(e)) else {
            recent.forget(first);
            return 0;
        };
        if let Some(target) = e.straight_of_any_length() {
            // A loop of its own, without lengths: in the one below packets that only pass took some 5 % longer.
            let (n, sum) = l.run(burst.as_slice().get(..most).unwrap_or_default(), &views.own, exact_flags);
            if n == 0 || !passes(e.checks(), views, &sum, at) {
                return 0;
            }
            out.packets.extend(burst.by_ref().take(n).map(|(_, p)| (target, p)));
            if l.wide {
                table.masks.again(l.kind(), n as u32);
            }
            tallies.count_run(e.path, e.generation, (n as u32, sum));
            return n;
        }
        let (mut n, mut sum, mut ends) = (0, [0; 2], [0; BURST]);
        // Meters want that of each packet.
        let lengths_of: &mut [[usize; 2]] = if e.metered { &mut [[0; 2]; BURST] } else { &mut [] };
        for ((device, p), end) in burst.as_slice().iter().take(most).zip(&mut ends) {
            if *device != first || !l.has_bytes(p.data()) {
                break;
            }
            let Some(class) = classify_as(l.kind(), p.data(), &views.own, exact_flags).filter(|c| c.kind == l.kind())
            else {
                break;
            };
            let (end_of_this, lengths) = class.lengths(p.data().len());
            // What holds for the first one holds for the next ones, too, except for lengths.
            let holds = match n {
                0 if e.metered => e.checks().all(|c| views.holds(c, Some(lengths), at)),
                0 => passes(e.checks(), views, &lengths, at),
                _ => fits(e.checks(), views, &lengths),
            };
            if !holds {
                break;
            }
            if let Some(of_this) = lengths_of.get_mut(n) {
                *of_this = lengths;
            }
            n += 1;
            *end = end_of_this;
            sum = [sum[0] + lengths[0], sum[1] + lengths[1]];
        }
        if n == 0 {
            return 0;
        }
        let mut run = burst.by_ref().take(n).map(|(_, p)| p);
        let refused = if e.metered { e.refused_by((n, sum), at) } else { None };
        if let Some(from) = refused {
            let mut meters = Asked::new(e, from, at);
            for ((p, end), lengths) in run.zip(ends).zip(&*lengths_of) {
                let dropped = meters.dropped_by(*lengths);
                serve_metered((e, dropped), p, (end, *lengths), (&[], outer), out, (views, tallies), at);
            }
            if l.wide {
                table.masks.again(l.kind(), n as u32);
            }
            return n;
        }
        if e.metered {
            // What they checked was only looked at, as a packet that a meter drops refreshes nothing behind it.
            e.checks().for_each(|c| _ = views.pass(c, &sum, at));
        }
        if n >= MANY
            && let Some(Program { stages, target }) = Program::decode(e.steps())
        {
            outer.extend(run.map(Some));
            for stage in stages.iter().flatten() {
                stage.each(outer, &ends);
            }
            for p in outer.drain(..) {
                match p {
                    Some(p) => out.packets.push((target, p)),
                    None => unsent(e, out, tallies),
                }
            }
        } else {
            for end in ends {
                let Some(p) = run.next() else { break };
                repeat(e, e.steps(), p, end, (&[], outer), out, tallies);
            }
        }
        if l.wide {
            table.masks.again(l.kind(), n as u32);
        }
        tallies.count_run(e.path, e.generation, (n as u32, sum));
        n
    }
}
