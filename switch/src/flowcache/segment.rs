//! Guides: which flows a segment of a walk meets, so that packets alike need not search for them.
//!
//! ```text
//!   arrival ──► table, table, … ──► ct ──► table, table, … ──► clone ──► …
//!               one segment                one segment
//! ```
//! A segment begins with the first lookup behind something whose outcome the key does not say: arrival, `ct`, a group, an output,
//! a copy of the packet; it ends with the list of actions that its first lookup led to, if nothing ends it before. Within it the
//! flows that are met follow from the key that it began with: what lookups compared of it, and what actions copied or
//! tested ([`Xlate::notes`]). Whoever has these bits in common with an earlier packet meets the same
//! flows, and is changed as they say in one go ([`crate::xlate::segment`]).
//!
//! All guides go as soon as any table or bridge changes: they are made again in the time that searching takes anyway.

use super::FlowCache;
use super::observer::CacheObserver;
use crate::classifier::{Wildcards, hash};
use crate::xlate::segment::{Frame, Hop, Op, Segment};
use crate::xlate::{Backer, SegmentStart};
use hashbrown::HashTable;
use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, FlowKey, Prereq, WORDS};
use std::sync::Arc;

/// SegmentCache in all; beyond it they begin anew.
const MOST: usize = 32_768;
/// Sets of bits that segments from one table may compare: each of them costs the search for a guide a hash.
const SETS: usize = 8;
/// Bits of a word that all segments from one table compare, as some are told apart by them.
const APART: u32 = 8;
/// Segments that a packet is compared with before they are searched.
const RECENT: usize = 4;
/// Steps that a segment has fewer of: they are numbered with 16 bits.
const STEPS: usize = 1 << 16;
/// Segments after which it is looked whether guides were of use.
const TRIES: u32 = 256;
/// Segments without guides, if they were not.
const PAUSE: u32 = 8192;

/// Where a walk is.
#[derive(Debug, Default)]
pub(crate) enum SegmentState {
    /// The next lookup begins a segment.
    #[default]
    Open,
    /// Lookups search until the segment ends.
    Lost,
    /// Lookups search, and what they find is noted.
    Building(Box<SegmentBuilder>),
}

/// What is noted of a segment.
#[derive(Debug)]
pub(crate) struct SegmentBuilder {
    start: usize,
    /// The key that it began with.
    key: FlowKey,
    /// Depth and levels there.
    origin: (u32, u32),
    /// The bits of the key that decided.
    pub(crate) looked: Wildcards,
    /// Bits that tell it from matches that it does not have, here or in segments before.
    pub(crate) chosen: Wildcards,
    pub(crate) hops: Vec<Hop>,
    pub(crate) ops: Vec<Op>,
    /// Lists of actions that wait for the one that is carried out, the outermost first, and where they go on.
    frames: Vec<Frame>,
    /// The lookup whose actions are carried out.
    hop: usize,
    /// The action that is carried out.
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

    /// It is done, and the segment goes on.
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

/// SegmentCache that compare the same bits.
#[derive(Debug)]
struct Set {
    mask: Box<[(u8, u64)]>,
    list: HashTable<Arc<Segment>>,
}

fn masked(mask: &[(u8, u64)], key: &FlowKey) -> impl Iterator<Item = u64> {
    mask.iter().map(|(w, bits)| key.0.get(usize::from(*w)).map_or(0, |x| x & bits))
}

/// SegmentCache for segments from one table.
#[derive(Debug)]
struct Start {
    sets: Vec<Set>,
    /// What was found last: packets alike come together. The next place for one.
    recent: [Option<Arc<Segment>>; RECENT],
    place: usize,
    /// Bits that told segments from matches that they do not have.
    chosen: Wildcards,
    /// Segments, and those that found one.
    tries: u32,
    found: u32,
    /// So many segments do without.
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

/// All guides of a switch.
#[derive(Debug, Default)]
pub(crate) struct SegmentCache {
    /// By bridge and table.
    starts: Vec<Option<Box<Start>>>,
    len: usize,
    /// What the bridges were when they were made.
    version: u64,
    on: bool,
    /// Segments with packets that their flows have not counted yet.
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

    /// Begins a segment with a lookup in a table; the error is what lookups do if it is not known.
    fn begin(&mut self, bridge: usize, table: u8, key: &FlowKey) -> Result<Arc<Segment>, SegmentState> {
        let at = bridge * 256 + usize::from(table);
        if self.starts.len() <= at {
            self.starts.resize_with(at + 1, || None);
        }
        let Some(start) = self.starts.get_mut(at).map(|s| s.get_or_insert_with(|| Box::new(Start::new(0)))) else {
            return Err(SegmentState::Lost);
        };
        if start.pause > 0 {
            start.pause -= 1;
            return Err(SegmentState::Lost);
        }
        if start.tries == TRIES {
            // Where packets differ in what decides, guides are of no use and only take memory.
            if start.found < TRIES / 2 {
                let gone: usize = start.sets.iter().map(|s| s.list.len()).sum();
                self.len -= gone.min(self.len);
                **start = Start::new(PAUSE);
                return Err(SegmentState::Lost);
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
                // Who is found often comes first.
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
        // What actions ask for before they change a field, and before they send to the port of arrival.
        [F::InPort, F::EthType, F::VlanTci, F::IpProto, F::IpFrag].into_iter().for_each(|f| notes.reads(f));
        Err(SegmentState::Building(Box::new(notes)))
    }

    /// Keeps what was noted.
    fn keep(&mut self, mut n: SegmentBuilder) {
        if self.len >= MOST {
            self.clear();
        }
        let Some(Some(start)) = self.starts.get_mut(n.start).filter(|_| !n.hops.is_empty() && n.ops.len() < STEPS)
        else {
            return;
        };
        start.chosen = n.chosen;
        // Where all segments compare the bits that any of them was told apart by, they compare the same bits.
        for (looked, chosen) in n.looked.iter_mut().zip(n.chosen) {
            *looked |= if chosen.count_ones() <= APART { chosen } else { 0 };
        }
        let mask: Box<[(u8, u64)]> =
            n.looked.iter().enumerate().filter(|(_, m)| **m != 0).map(|(w, m)| (w as u8, *m)).collect();
        let at = start.sets.iter().position(|s| s.mask == mask).unwrap_or_else(|| {
            if start.sets.len() == SETS {
                // Who is hardly ever found comes last.
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

/// Whether what an action does, beside lookups, follows from the key alone and changes nothing that later lookups see but by
/// what it says.
fn follows(a: &Action) -> bool {
    let nd = |f: F| matches!(f.def().prereq, Prereq::Nd | Prereq::NdSolicit | Prereq::NdAdvert);
    match a {
        Action::SetField { field, .. } => !nd(*field),
        Action::Load { dst, .. } => !nd(dst.field),
        Action::Move { src, dst } => !nd(src.field) && !nd(dst.field),
        Action::Push(_)
        | Action::PushVlan(_)
        | Action::PopVlan
        | Action::DecTtl(_)
        | Action::CtClear
        | Action::SetQueue(_)
        | Action::PopQueue
        | Action::Conjunction { .. }
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
        | Action::FinTimeout { .. }
        | Action::Exit
        | Action::DeleteField(_)
        | Action::Meter(_)
        | Action::ClearActions
        | Action::WriteActions(_)
        | Action::WriteMetadata { .. }
        | Action::GotoTable(_) => false,
    }
}

impl SegmentState {
    /// Before an action: notes what of the key decides. True if the segment ends with it.
    #[inline]
    pub(super) fn action(&mut self, a: &Action, key: &FlowKey) -> bool {
        // A packet whose TTL expires goes to controllers, or nowhere.
        if !follows(a) || matches!(a, Action::DecTtl(_)) && key.get(F::IpTtl) <= 1 {
            return true;
        }
        if let SegmentState::Building(b) = self {
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
}

impl CacheObserver<'_> {
    /// Keeps the segment that was built, unless the tables are others by now.
    #[cold]
    pub(super) fn keep_segment(&mut self, backer: &Backer) {
        if let SegmentState::Building(b) = std::mem::take(&mut self.segment)
            && self.flowcache.segments.version == backer.tables_version()
        {
            self.flowcache.segments.keep(*b);
        }
    }

    /// The segment that begins with a lookup; the error is what lookups do if it is not known.
    #[inline(never)]
    pub(super) fn begin_segment(
        &mut self,
        backer: &Backer,
        start: &SegmentStart<'_>,
    ) -> Result<Arc<Segment>, SegmentState> {
        let there = start.bridge < backer.bridges.len();
        // A record that is to become a megaflow needs each search.
        let asked = self.recorder.as_ref().is_some_and(|r| r.looked.only);
        let segments = &mut self.flowcache.segments;
        if !segments.on || !there || asked || start.key.get(F::IpFrag) != 0 {
            return Err(SegmentState::Lost);
        }
        let version = backer.tables_version();
        if segments.version != version {
            segments.clear();
            segments.version = version;
        }
        segments.begin(start.bridge, start.table, start.key)
    }
}

impl FlowCache {
    /// Has flows count the packets that were carried through segments.
    pub(crate) fn count_segments(&mut self, backer: &mut Backer) {
        let Backer { bridges, now, .. } = backer;
        for s in self.segments.uncounted.drain(..) {
            let [n, bytes] = s.take_counts();
            for h in &s.hops {
                let stats = bridges.get_mut(h.bridge).and_then(|b| b.table_stats.get_mut(usize::from(h.table)));
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
