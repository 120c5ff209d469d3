//! The segment cache: which flows a segment of a walk meets, so that similar packets need no search.
//!
//! ```text
//!   arrival ──► table, table, … ──► ct ──► table, table, … ──► clone ──► …
//!               one segment                one segment
//! ```
//! A segment begins with the first lookup after something whose outcome does not follow from the key: arrival, `ct`, a
//! group, an output, a copy of the packet. It ends with the next of these, or with the list of actions that its first
//! lookup led to. Within a segment the flows follow from the key at its beginning: from the bits that lookups compared
//! and that actions copied or tested ([`ends_segment`]). A packet that has these bits in common with an earlier
//! one meets the same flows; their writes are applied in one go ([`crate::xlate::segment`]).
//!
//! All segments are forgotten as soon as any table or bridge changes. Building one costs no more than the searches,
//! which are made anyway.

use super::FlowCache;
use super::observer::CacheObserver;
use crate::classifier::{Wildcards, hash};
use crate::ids::BridgeId;
use crate::xlate::segment::{Frame, Hop, Op, Segment};
use crate::xlate::{Backer, SegmentStart};
use hashbrown::HashTable;
use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, FlowKey, Prereq, TableId, WORDS};
use std::sync::Arc;

/// Most segments in all; beyond it all are forgotten.
const MOST: usize = 32_768;
/// Most masks of segments that begin in one table: each costs a lookup one hash.
const SETS: usize = 8;
/// If at most so many bits of a word tell segments of one table apart, all of them compare these bits: this keeps masks
/// few.
const APART: u32 = 8;
/// Segments found last, which a packet is compared with before the search.
const RECENT: usize = 4;
/// Upper bound on steps per segment (16-bit index).
const STEPS: usize = 1 << 16;
/// Lookups of segments after which their hit rate is judged.
const TRIES: u32 = 256;
/// Lookups to skip if fewer than half of those hit.
const PAUSE: u32 = 8192;

/// A segment that is being built.
#[derive(Debug)]
pub(crate) struct SegmentBuilder {
    start: usize,
    /// The key that it began with.
    key: FlowKey,
    /// Depth and levels at its beginning.
    origin: (u32, u32),
    /// The bits of the key that decided.
    pub(crate) looked: Wildcards,
    /// Bits that tell the key from matches it does not have; also those of earlier segments, to reuse them.
    pub(crate) chosen: Wildcards,
    pub(crate) hops: Vec<Hop>,
    pub(crate) ops: Vec<Op>,
    /// Lists of actions around the one that runs, the outermost first, and where they go on.
    frames: Vec<Frame>,
    /// The lookup whose actions run.
    hop: usize,
    /// The action that runs.
    action: Option<Frame>,
    /// Most depth and levels on the way.
    most: (u32, u32),
}

impl SegmentBuilder {
    /// The value of a field decides.
    pub(crate) fn reads(&mut self, f: F) {
        crate::classifier::reads(&mut self.looked, f);
    }

    /// A lookup, with the depth and levels that it is made at.
    pub(crate) fn met(&mut self, hop: Hop, depth: u32, levels: u32) {
        if self.hops.is_empty() {
            self.origin = (depth, levels);
        }
        self.most = (self.most.0.max(depth - self.origin.0), self.most.1.max(levels - self.origin.1));
        self.hop = self.hops.len();
        self.ops.push(Op::Lookup(self.hop as u16));
        if hop.rule.is_none() {
            self.ops.push(Op::Miss);
        }
        self.hops.push(hop);
    }

    fn frame(&self, step: usize, depth: u32, levels: u32) -> Frame {
        Frame { hop: self.hop, step, depth: depth - self.origin.0, levels: levels - self.origin.1, last: false }
    }

    /// An action begins.
    pub(crate) fn begins(&mut self, step: usize, depth: u32, levels: u32) {
        self.action = Some(self.frame(step, depth, levels));
    }

    /// The action is done, and the segment goes on.
    pub(crate) fn done(&mut self) {
        if let Some(f) = self.action.take() {
            self.ops.push(Op::Act { hop: f.hop as u16, action: f.step as u16 });
        }
    }

    /// A lookup from which the walk comes back to this step.
    pub(crate) fn descends(&mut self, step: usize, depth: u32, levels: u32) {
        let f = self.frame(step, depth, levels);
        self.frames.push(f);
    }

    /// The walk has come back.
    pub(crate) fn returns(&mut self) {
        if let Some(f) = self.frames.pop() {
            self.hop = f.hop;
        }
    }
}

/// Segments with the same mask.
#[derive(Debug)]
struct Set {
    mask: Box<[(u8, u64)]>,
    list: HashTable<Arc<Segment>>,
}

fn masked(mask: &[(u8, u64)], key: &FlowKey) -> impl Iterator<Item = u64> {
    mask.iter().map(|(w, bits)| key.0.get(usize::from(*w)).map_or(0, |x| x & bits))
}

/// Segments that begin in one table.
#[derive(Debug)]
struct Start {
    sets: Vec<Set>,
    /// Found last, as similar packets come together; the place for the next one.
    recent: [Option<Arc<Segment>>; RECENT],
    place: usize,
    /// Bits that told keys from matches they did not have.
    chosen: Wildcards,
    /// Lookups, and hits.
    tries: u32,
    found: u32,
    /// Lookups still to skip.
    pause: u32,
}

impl Start {
    fn new(pause: u32) -> Start {
        Start {
            sets: Vec::new(),
            recent: [const { None }; RECENT],
            place: 0,
            chosen: [0; WORDS],
            tries: 0,
            found: 0,
            pause,
        }
    }
}

/// All segments of a switch.
#[derive(Debug, Default)]
pub(crate) struct SegmentCache {
    /// By bridge and table.
    starts: Vec<Option<Box<Start>>>,
    len: usize,
    /// [`Backer::tables_version`] when they were made.
    version: u64,
    on: bool,
    /// Segments whose packets their flows have not counted yet.
    pub(crate) uncounted: Vec<Arc<Segment>>,
}

impl SegmentCache {
    pub(crate) fn new(on: bool) -> SegmentCache {
        SegmentCache { on, ..SegmentCache::default() }
    }

    fn clear(&mut self) {
        self.starts.clear();
        self.len = 0;
    }

    /// The known segment that begins with a lookup in a table; else a builder for it, if it is worth building.
    fn begin(
        &mut self,
        bridge: BridgeId,
        table: TableId,
        key: &FlowKey,
    ) -> Result<Arc<Segment>, Option<Box<SegmentBuilder>>> {
        let at = bridge.index() * 256 + table.index();
        if self.starts.len() <= at {
            self.starts.resize_with(at + 1, || None);
        }
        let Some(start) = self.starts.get_mut(at).map(|s| s.get_or_insert_with(|| Box::new(Start::new(0)))) else {
            return Err(None);
        };
        if start.pause > 0 {
            start.pause -= 1;
            return Err(None);
        }
        if start.tries == TRIES {
            // Where packets hardly ever share the deciding bits, segments cost time and memory only.
            if start.found < TRIES / 2 {
                let gone: usize = start.sets.iter().map(|s| s.list.len()).sum();
                self.len -= gone.min(self.len);
                **start = Start::new(PAUSE);
                return Err(None);
            }
            (start.tries, start.found) = (0, 0);
        }
        start.tries += 1;
        if let Some(s) = start.recent.iter().flatten().find(|s| s.is_for(key)) {
            start.found += 1;
            return Ok(s.clone());
        }
        for n in 0..start.sets.len() {
            let Some(set) = start.sets.get(n) else { break };
            let h = hash(masked(&set.mask, key));
            if let Some(segment) = set.list.find(h, |s| s.is_for(key)).cloned() {
                start.found += 1;
                start.place = (start.place + 1) % RECENT;
                if let Some(r) = start.recent.get_mut(start.place) {
                    *r = Some(segment.clone());
                }
                // Masks with more hits come first.
                if n > 0 {
                    start.sets.swap(n - 1, n);
                }
                return Ok(segment);
            }
        }
        let mut notes = SegmentBuilder {
            start: at,
            key: key.clone(),
            origin: (0, 0),
            looked: [0; WORDS],
            chosen: start.chosen,
            hops: Vec::new(),
            ops: Vec::new(),
            frames: Vec::new(),
            hop: 0,
            action: None,
            most: (0, 0),
        };
        // Prerequisites of actions, and the port of arrival, to which nothing is sent.
        [F::InPort, F::EthType, F::VlanTci, F::IpProto, F::IpFrag].into_iter().for_each(|f| notes.reads(f));
        Err(Some(Box::new(notes)))
    }

    /// Stores a built segment.
    fn keep(&mut self, mut n: SegmentBuilder) {
        if self.len >= MOST {
            self.clear();
        }
        let Some(Some(start)) = self.starts.get_mut(n.start).filter(|_| !n.hops.is_empty() && n.ops.len() < STEPS)
        else {
            return;
        };
        start.chosen = n.chosen;
        // Few bits that told any segment apart go into the masks of all: so these are the same.
        for (looked, chosen) in n.looked.iter_mut().zip(n.chosen) {
            *looked |= if chosen.count_ones() <= APART { chosen } else { 0 };
        }
        let mask: Box<[(u8, u64)]> =
            n.looked.iter().enumerate().filter(|(_, m)| **m != 0).map(|(w, m)| (w as u8, *m)).collect();
        let at = start.sets.iter().position(|s| s.mask == mask).unwrap_or_else(|| {
            if start.sets.len() == SETS {
                // The mask with the fewest hits is last.
                self.len -= start.sets.pop().map_or(0, |s| s.list.len()).min(self.len);
            }
            start.sets.push(Set { mask: mask.clone(), list: HashTable::new() });
            start.sets.len() - 1
        });
        let Some(set) = start.sets.get_mut(at) else { return };
        let start = mask.iter().zip(masked(&mask, &n.key)).map(|((w, m), v)| (*w, *m, v)).collect();
        let end = n.action.into_iter().chain(n.frames.into_iter().rev()).collect();
        let segment = Arc::new(Segment::new(start, n.hops, n.ops, end, n.most));
        set.list.insert_unique(hash(masked(&mask, &n.key)), segment, |s| hash(s.values()));
        self.len += 1;
    }
}

/// Whether the effect of an action follows from the key alone, and later lookups see nothing of it but the key.
fn follows(a: &Action) -> bool {
    let nd = |f: F| matches!(f.def().prereq, Prereq::Nd | Prereq::NdSolicit | Prereq::NdAdvert);
    match a {
        Action::SetField { field, .. } => !nd(*field),
        Action::Load { dst, .. } => !nd(dst.field),
        Action::Move { src, dst } => !nd(src.field) && !nd(dst.field),
        Action::SetTunnel { .. }
        | Action::Push(_)
        | Action::PushVlan(_)
        | Action::PopVlan
        | Action::DecTtl(_)
        | Action::CtClear
        | Action::SetQueue(_)
        | Action::PopQueue
        | Action::Conjunction { .. }
        | Action::Debug(_)
        | Action::Note(_) => true,
        Action::Output { .. }
        | Action::OutputTrunc { .. }
        | Action::OutputReg { .. }
        | Action::Controller(_)
        | Action::Group(_)
        | Action::Pop(_)
        | Action::Resubmit { .. }
        | Action::Clone(_)
        | Action::Ct(_)
        | Action::Nat(_)
        | Action::Learn(_)
        | Action::CheckPktLarger { .. }
        | Action::Sample(_)
        | Action::Bundle(_)
        | Action::Multipath(_)
        | Action::FinTimeout { .. }
        | Action::Mpls(_)
        | Action::Encap(_)
        | Action::Decap(_)
        | Action::DecNshTtl
        | Action::Exit
        | Action::DeleteField(_)
        | Action::Meter(_)
        | Action::ClearActions
        | Action::WriteActions(_)
        | Action::WriteMetadata { .. }
        | Action::GotoTable(_) => false,
    }
}

/// Before an action: notes what of the key decides, if a segment is being built. True if the segment ends with it.
#[inline]
pub(super) fn ends_segment(a: &Action, key: &FlowKey, builder: Option<&mut SegmentBuilder>) -> bool {
    // A packet whose TTL expires goes to controllers, or nowhere.
    if !follows(a) || matches!(a, Action::DecTtl(_)) && key.get(F::IpTtl) <= 1 {
        return true;
    }
    // Segments of fragments do not know their ports, which lookups do not see.
    if let Action::Move { src, .. } | Action::Push(src) = a
        && src.field.words() & F::TcpSrc.words() != 0
        && key.get(F::IpFrag) != 0
    {
        return true;
    }
    if let Some(b) = builder {
        match a {
            Action::Move { src, .. } | Action::Push(src) => b.reads(src.field),
            Action::DecTtl(_) => b.reads(F::IpTtl),
            Action::PushVlan(_) | Action::PopVlan => {
                [F::VlanTpid, F::Vlan1Tci, F::Vlan1Tpid].into_iter().for_each(|f| b.reads(f));
            }
            _ => {}
        }
    }
    false
}

impl CacheObserver<'_> {
    /// Keeps the segment that was built, unless the tables are others by now.
    #[cold]
    pub(super) fn keep_segment(&mut self, backer: &Backer) {
        if let Some(b) = self.builder.take()
            && self.flowcache.segments.version == backer.tables_version()
        {
            self.flowcache.segments.keep(*b);
        }
    }

    /// Drops the segment that was built.
    #[cold]
    pub(super) fn drop_segment(&mut self) {
        self.builder = None;
    }

    /// The known segment that begins with a lookup; if there is none, one may be built.
    #[inline(never)]
    pub(super) fn begin_segment(&mut self, backer: &Backer, start: &SegmentStart<'_>) -> Option<Arc<Segment>> {
        let there = backer.bridges.get(start.bridge).is_some();
        // A record that is to become a megaflow needs each search.
        let asked = self.recorder.as_ref().is_some_and(|r| r.looked.only);
        let segments = &mut self.flowcache.segments;
        if !segments.on || !there || asked {
            return None;
        }
        let version = backer.tables_version();
        if segments.version != version {
            segments.clear();
            segments.version = version;
        }
        match segments.begin(start.bridge, start.table, start.key) {
            Ok(s) => Some(s),
            Err(builder) => {
                self.builder = builder;
                None
            }
        }
    }
}

impl FlowCache {
    /// Has flows count the packets that were carried through segments.
    pub(crate) fn count_segments(&mut self, backer: &mut Backer) {
        let Backer { bridges, now, .. } = backer;
        for s in self.segments.uncounted.drain(..) {
            let [n, bytes] = s.take_counts();
            for h in &s.hops {
                let stats = bridges.get_mut(h.bridge).and_then(|b| b.table_stats.get_mut(h.table.index()));
                if let Some(t) = stats {
                    t.0 += n;
                    t.1 += if h.rule.is_some() { n } else { 0 };
                }
                if let Some(r) = &h.rule {
                    r.hits(n, bytes, *now);
                }
            }
        }
    }
}
