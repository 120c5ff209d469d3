//! Known segments of walks, executed in one go.
//!
//! ```text
//!   flows      table 8: reg10=…, go on ─► table 9: go on ─► … ─► table 57: reg0=…, ct(…), go on
//!   segment    reg10=… reg0=…  (a masked write for each word)  ─► from ct(…) in table 57 on
//! ```
//! The observer knows which flows a packet will meet ([`Observer::segment`]), and so what they do to its key: constants
//! become one masked write per word; what depends on the packet (`move`, `dec_ttl`) stands between these. At the end of
//! the segment the open lists of actions continue as usual. Flows count their packets later ([`Segment::take_counts`]).
//!
//! Builds with debug assertions also execute each step, search each table, and compare.

use crate::buf::PacketBuf;
use crate::classifier::{Origin, Rule};
use crate::drops::DropReason;
use crate::ids::BridgeId;
use crate::xlate::{Backer, MAX_DEPTH, MAX_LEVELS, MAX_RESUBMITS, Observer, SegmentStart, Xlate};
use openflow_rs::action::Action;
use openflow_rs::{FieldId, FlowKey, PortNo, Prereq, Subfield, TableId, WORDS, ones};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A lookup of a segment.
#[derive(Debug)]
pub(crate) struct Hop {
    pub(crate) bridge: BridgeId,
    pub(crate) table: TableId,
    pub(crate) in_port: PortNo,
    /// What it finds.
    pub(crate) rule: Option<Arc<Rule>>,
    /// TCP flags that flows of the table match.
    pub(crate) flags: u64,
}

/// One step of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// A masked write to a word of the key.
    Write((u8, u64, u64)),
    /// Writes of [`Segment::words`], from one on to another.
    Run { from: u16, to: u16 },
    /// Copies bits of a word to another.
    Move { from: u8, down: u8, to: u8, up: u8, mask: u64 },
    /// An action of the flow that a lookup met.
    Act { hop: u16, action: u16 },
    /// A lookup; it changes nothing.
    Lookup(u16),
    /// A lookup that found no rule.
    Miss,
}

impl Op {
    /// A masked write; `value` is zero outside the mask.
    pub(crate) fn write(word: u8, mask: u64, value: u64) -> Op {
        Op::Write((word, mask, value))
    }
}

/// A list of actions that continues where the segment ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The lookup that met its flow.
    pub(crate) hop: usize,
    /// Where it goes on.
    pub(crate) step: usize,
    /// Depth and levels beyond those at the beginning.
    pub(crate) depth: u32,
    pub(crate) levels: u32,
    /// The packet is not used after it.
    pub(crate) last: bool,
}

/// A segment.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The bits of the key at the beginning that decide: word, mask, value.
    start: Box<[(u8, u64, u64)]>,
    pub(crate) hops: Box<[Hop]>,
    ops: Box<[Op]>,
    /// The masked writes of `ops`.
    words: Box<[(u8, u64, u64)]>,
    /// The steps one by one, with lookups.
    each: Box<[Op]>,
    /// The lists that continue at its end, the innermost first.
    end: Box<[Frame]>,
    /// Most depth and levels on the way.
    most: (u32, u32),
    /// TCP flags that flows of its tables match.
    pub(crate) flags: u64,
    /// Packets and bytes that its flows have not counted yet. Only the main thread counts.
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// The word and first bit of a part of a field, if every packet has the field and it lies in one word.
fn place(s: &Subfield) -> Option<(u8, u32)> {
    let d = s.field.def();
    let odd = matches!(s.field, FieldId::TcpFlags | FieldId::InPortOxm | FieldId::VlanPcp);
    if d.prereq != Prereq::None || odd || s.n_bits > 64 || s.ofs + s.n_bits > d.bits {
        return None;
    }
    let (word, first) = match d.bits {
        0..=64 => (d.word, d.shift + s.ofs),
        _ if s.ofs >= 64 => (d.word, s.ofs - 64),
        _ => (d.word + 1, s.ofs),
    };
    (first + s.n_bits <= 64).then_some((word as u8, first))
}

/// A `move` between such parts.
fn moved(a: &Action) -> Option<Op> {
    let Action::Move { src, dst } = a else { return None };
    let ((from, down), (to, up)) = (place(src)?, place(dst)?);
    let plain = dst.field.presence().is_none();
    plain.then(|| Op::Move { from, down: down as u8, to, up: up as u8, mask: ones(src.n_bits.min(dst.n_bits)) as u64 })
}

/// Merges writes between other steps into runs of masked writes.
fn summed(ops: &[Op]) -> (Vec<Op>, Vec<(u8, u64, u64)>) {
    let (mut sum, mut words) = (Vec::new(), Vec::<(u8, u64, u64)>::new());
    let mut from = 0;
    let run = |sum: &mut Vec<Op>, from: usize, to: usize| {
        if to > from {
            sum.push(Op::Run { from: from as u16, to: to as u16 });
        }
    };
    for op in ops {
        match op {
            Op::Lookup(_) => {}
            Op::Write((word, mask, value)) => match words.iter_mut().skip(from).find(|w| w.0 == *word) {
                Some((_, m, v)) => (*m, *v) = (*m | mask, *v & !mask | value),
                None => words.push((*word, *mask, *value)),
            },
            other => {
                run(&mut sum, from, words.len());
                sum.push(*other);
                from = words.len();
            }
        }
    }
    run(&mut sum, from, words.len());
    (sum, words)
}

impl Segment {
    pub(crate) fn new(
        start: Box<[(u8, u64, u64)]>,
        hops: Vec<Hop>,
        ops: Vec<Op>,
        mut end: Box<[Frame]>,
        most: (u32, u32),
    ) -> Segment {
        let mut last = true;
        for f in end.iter_mut().rev() {
            f.last = last;
            last &= hops.get(f.hop).and_then(|h| h.rule.as_ref()).is_some_and(|r| f.step >= r.steps.seen);
        }
        let flags = hops.iter().fold(0, |all, h| all | h.flags);
        let direct = |op: &Op| match *op {
            Op::Act { hop, action } => {
                let rule = hops.get(usize::from(hop)).and_then(|h| h.rule.as_ref());
                rule.and_then(|r| moved(r.actions.get(usize::from(action))?)).unwrap_or(*op)
            }
            op => op,
        };
        let (sum, words) = summed(&ops);
        Segment {
            ops: sum.iter().map(direct).collect(),
            words: words.into(),
            start,
            hops: hops.into(),
            each: ops.into(),
            end,
            most,
            flags,
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Whether a packet with this key takes this segment.
    #[inline]
    pub(crate) fn is_for(&self, key: &FlowKey) -> bool {
        self.start.iter().all(|(w, mask, value)| key.0.get(usize::from(*w)).is_some_and(|x| x & mask == *value))
    }

    /// The values of the bits that decide.
    pub(crate) fn values(&self) -> impl Iterator<Item = u64> {
        self.start.iter().map(|s| s.2)
    }

    /// Counts a packet; true if it is the first one since [`Segment::take_counts`].
    pub(crate) fn count(&self, bytes: usize) -> bool {
        let add = |c: &AtomicU64, n: u64| {
            let before = c.load(Ordering::Relaxed);
            c.store(before.wrapping_add(n), Ordering::Relaxed);
            before
        };
        add(&self.bytes, bytes as u64);
        add(&self.packets, 1) == 0
    }

    /// Packets and bytes that its flows have not counted yet. The caller must count them now.
    pub(crate) fn take_counts(&self) -> [u64; 2] {
        [&self.packets, &self.bytes].map(|c| c.swap(0, Ordering::Relaxed))
    }

    /// Table and cookie of the first flow.
    pub(crate) fn first(&self) -> Option<(TableId, Origin)> {
        self.hops.first().and_then(|h| Some((h.table, h.rule.as_ref()?.origin())))
    }
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// The segment that begins here, if it is known and passes no limit.
    #[inline]
    pub(super) fn known_segment(&mut self, table: TableId, in_port: PortNo, deepens: u32) -> Option<Arc<Segment>> {
        let Some(ports) = self.hide_ports(self.pipeline.bridge) else {
            self.observer.segment_is_lost();
            return None;
        };
        let start = SegmentStart { bridge: self.pipeline.bridge, table, in_port, key: &self.packet.key };
        let at = &self.pipeline;
        let known = self.observer.segment(self.backer, &start, |s| {
            at.depth + deepens + s.most.0 <= MAX_DEPTH
                && at.levels + s.most.1 < MAX_LEVELS
                && at.resubmits as usize + s.hops.len() <= MAX_RESUBMITS as usize
        });
        self.show_ports(ports);
        known
    }

    /// Executes a segment and the lists that continue at its end; if the outermost of these ends in a lookup, returns
    /// its table.
    pub(super) fn carry(&mut self, s: &Arc<Segment>, deepens: u32) -> Option<TableId> {
        let (depth, levels) = (self.pipeline.depth + deepens, self.pipeline.levels);
        self.pipeline.resubmits += s.hops.len() as u32;
        self.observer.segment_carries(s, &self.packet.key, self.flow_len());
        if cfg!(debug_assertions) {
            self.check(s);
        }
        if !self.perform(s, &s.ops, |_, _| {}) {
            return None;
        }
        let (last, mut next) = (self.pipeline.last, None);
        let mut before: Option<&Frame> = None;
        for f in &s.end {
            // An inner list runs to its end before the outer one continues.
            if let Some(b) = before {
                self.chain(levels + b.levels - 1, next.map(|t| (t, self.own_port())), s.first());
                next = None;
                if self.pipeline.last {
                    break;
                }
            }
            before = Some(f);
            self.pipeline.last = last && f.last;
            let Some((table, rule)) = s.hops.get(f.hop).and_then(|h| Some((h.table, h.rule.as_ref()?))) else {
                continue;
            };
            self.begin_rule(table, rule);
            (self.pipeline.depth, self.pipeline.levels) = (depth + f.depth, levels + f.levels);
            if !self.waits(rule.actions.get(f.step..).unwrap_or_default()) {
                next = self.steps(&rule.actions, &rule.steps, f.step);
            }
        }
        self.pipeline.last = last;
        next
    }

    /// Applies masked writes; values are zero outside their masks.
    #[inline(always)]
    pub(crate) fn write(&mut self, words: &[(u8, u64, u64)]) {
        for (word, mask, value) in words {
            if let Some(x) = self.packet.key.0.get_mut(usize::from(*word)) {
                *x = *x & !mask | value;
            }
        }
    }

    /// Executes steps; false if one ends the walk. `met` is called at each lookup.
    #[inline]
    fn perform(&mut self, s: &Segment, ops: &[Op], mut met: impl FnMut(&mut Self, &Hop)) -> bool {
        for op in ops {
            match *op {
                Op::Run { from, to } => {
                    self.write(s.words.get(usize::from(from)..usize::from(to)).unwrap_or_default());
                }
                Op::Write(w) => self.write(&[w]),
                Op::Move { from, down, to, up, mask } => {
                    let v = self.packet.key.0.get(usize::from(from)).map_or(0, |x| x >> down & mask);
                    if let Some(x) = self.packet.key.0.get_mut(usize::from(to)) {
                        *x = *x & !(mask << up) | v << up;
                    }
                }
                Op::Act { hop, action } => {
                    let Some((h, rule)) = s.hops.get(usize::from(hop)).and_then(|h| Some((h, h.rule.as_ref()?))) else {
                        continue;
                    };
                    (self.pipeline.table, self.pipeline.flow) = (h.table, rule.origin());
                    rule.actions.get(usize::from(action)).map(|a| self.act(a));
                    if self.pipeline.failed {
                        return false;
                    }
                }
                Op::Miss => self.because(DropReason::TableMiss),
                Op::Lookup(hop) => {
                    if let Some(h) = s.hops.get(usize::from(hop)) {
                        met(self, h);
                    }
                }
            }
        }
        true
    }

    /// Runs `body`, then restores packet and pipeline; the observer does not see it.
    fn undone<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let (p, at) = (&self.packet, &self.pipeline);
        let saved = (p.key.clone(), at.stack.clone(), p.queue, p.conn, at.drop, at.failed);
        let muted = self.observer.mute();
        let made = body(self);
        self.observer.unmute(muted);
        let (p, at) = (&mut self.packet, &mut self.pipeline);
        (p.key, at.stack, p.queue, p.conn, at.drop, at.failed) = saved;
        made
    }

    /// Calls `met` with the key at each lookup of a segment that began with `key`.
    pub(crate) fn relive(&mut self, s: &Segment, key: &FlowKey, mut met: impl FnMut(&Backer, &FlowKey, &Hop)) {
        let at = (self.pipeline.table, self.pipeline.flow);
        self.undone(|x| {
            x.packet.key.clone_from(key);
            x.perform(s, &s.each, |x, h| {
                let ports = x.hide_ports(h.bridge);
                met(x.backer, &x.packet.key, h);
                x.show_ports(ports.flatten());
            })
        });
        (self.pipeline.table, self.pipeline.flow) = at;
    }

    /// Checks (debug builds) that searches find the segment's rules, and that its merged steps equal the single ones.
    fn check(&mut self, s: &Segment) {
        let one = self.undone(|x| {
            let on = x.perform(s, &s.each, |x, h| {
                let ports = x.hide_ports(h.bridge);
                let table = x.backer.bridges.get(h.bridge).and_then(|b| b.tables.get(h.table.index()));
                let found = table.and_then(|t| t.lookup(&x.packet.key, &mut [0; WORDS]));
                let same = (h.bridge, h.in_port) == (x.pipeline.bridge, x.own_port())
                    && found.map(Arc::as_ptr) == h.rule.as_ref().map(Arc::as_ptr);
                x.show_ports(ports.flatten());
                debug_assert!(same, "table {}: a segment says {:?}", h.table, h.rule);
            });
            (on, x.packet.key.clone())
        });
        let sum = self.undone(|x| (x.perform(s, &s.ops, |_, _| {}), x.packet.key.clone()));
        debug_assert!(one == sum, "a segment is not its steps: {s:?}");
    }
}
