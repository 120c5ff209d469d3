//! Guides: which flows a stretch of a walk meets, so that packets alike need not search for them.
//!
//! ```text
//!   arrival ──► table, table, … ──► ct ──► table, table, … ──► clone ──► …
//!               one stretch                one stretch
//! ```
//! A stretch begins with the first lookup behind something whose outcome the key does not say: arrival, `ct`, a group, a copy of
//! the packet. Within it the flows that are met follow from the key that it began with: what lookups compared of
//! it, and what actions copied or tested ([`Xlate::notes`]). Whoever has these bits in common with an earlier packet meets the same
//! flows. Their actions are carried out as ever; only the searches are saved.
//!
//! All guides go as soon as any table or bridge changes: they are made again in the time that searching takes anyway.

use crate::classifier::{Rule, Wildcards, hash};
use crate::switch::Switch;
use crate::xlate::Xlate;
use hashbrown::HashTable;
use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, FlowKey, Match, PortNo, Prereq, WORDS};
use std::sync::Arc;

/// Guides in all; beyond it they begin anew.
const MOST: usize = 32_768;
/// Sets of bits that stretches from one table may compare: each of them costs the search for a guide a hash.
const SETS: usize = 8;
/// Stretches after which it is looked whether guides were of use.
const TRIES: u32 = 256;
/// Stretches without guides, if they were not.
const PAUSE: u32 = 8192;
/// Ports above are not one port (OpenFlow 1.5, section 7.2.1).
const RESERVED: u16 = 0xff00;

/// One lookup.
#[derive(Debug)]
pub(crate) struct Hop {
    pub(crate) bridge: usize,
    pub(crate) table: u8,
    pub(crate) in_port: PortNo,
    /// What it finds.
    pub(crate) rule: Option<Arc<Rule>>,
    /// TCP flags that flows of the table look at.
    pub(crate) flags: u64,
}

/// Where a walk is.
#[derive(Debug, Default)]
pub(crate) enum Guide {
    /// The next lookup begins a stretch.
    #[default]
    Open,
    /// Lookups search until the stretch ends.
    Off,
    /// Lookups meet these flows.
    Follows(Arc<[Hop]>, usize),
    /// Lookups search, and what they find is noted.
    Notes(Box<Notes>),
}

/// What is noted of a stretch.
#[derive(Debug)]
pub(crate) struct Notes {
    start: usize,
    /// The key that it began with.
    key: FlowKey,
    /// The bits of it that decided.
    pub(crate) looked: Wildcards,
    pub(crate) hops: Vec<Hop>,
}

impl Notes {
    /// The value of a field decides.
    pub(crate) fn reads(&mut self, f: F) {
        for w in Match::new().with(f, 0).words() {
            if let Some(x) = self.looked.get_mut(usize::from(w.word)) {
                *x |= w.mask;
            }
        }
    }
}

/// A guide, and the bits for which it is one.
#[derive(Debug)]
struct Known {
    values: Box<[u64]>,
    hops: Arc<[Hop]>,
}

/// Guides that compare the same bits.
#[derive(Debug)]
struct Set {
    mask: Box<[(u8, u64)]>,
    list: HashTable<Known>,
}

fn masked(mask: &[(u8, u64)], key: &FlowKey) -> impl Iterator<Item = u64> {
    mask.iter().map(|(w, bits)| key.0.get(usize::from(*w)).map_or(0, |x| x & bits))
}

/// Guides for stretches from one table.
#[derive(Debug, Default)]
struct Start {
    sets: Vec<Set>,
    /// Stretches, and those that found one.
    tries: u32,
    found: u32,
    /// So many stretches do without.
    pause: u32,
}

/// All guides of a switch.
#[derive(Debug, Default)]
pub(crate) struct Guides {
    /// By bridge and table.
    starts: Vec<Option<Box<Start>>>,
    len: usize,
    /// What the bridges were when they were made.
    version: u64,
    on: bool,
}

impl Guides {
    pub(crate) fn new(on: bool) -> Guides {
        Guides { on, ..Guides::default() }
    }

    fn clear(&mut self) {
        self.starts.clear();
        self.len = 0;
    }

    /// Begins a stretch with a lookup in a table.
    fn begin(&mut self, bridge: usize, table: u8, key: &FlowKey) -> Guide {
        let at = bridge * 256 + usize::from(table);
        if self.starts.len() <= at {
            self.starts.resize_with(at + 1, || None);
        }
        let Some(start) = self.starts.get_mut(at).map(|s| s.get_or_insert_default()) else { return Guide::Off };
        if start.pause > 0 {
            start.pause -= 1;
            return Guide::Off;
        }
        if start.tries == TRIES {
            // Where packets differ in what decides, guides are of no use and only take memory.
            if start.found < TRIES / 2 {
                let gone: usize = start.sets.iter().map(|s| s.list.len()).sum();
                self.len -= gone.min(self.len);
                **start = Start { pause: PAUSE, ..Start::default() };
                return Guide::Off;
            }
            (start.tries, start.found) = (0, 0);
        }
        start.tries += 1;
        for n in 0..start.sets.len() {
            let Some(set) = start.sets.get(n) else { break };
            let h = hash(masked(&set.mask, key));
            if let Some(k) = set.list.find(h, |k| k.values.iter().copied().eq(masked(&set.mask, key))) {
                let hops = k.hops.clone();
                start.found += 1;
                // Who is found often comes first.
                if n > 0 {
                    start.sets.swap(n - 1, n);
                }
                return Guide::Follows(hops, 0);
            }
        }
        let mut notes = Notes { start: at, key: key.clone(), looked: [0; WORDS], hops: Vec::new() };
        // What actions ask for before they change a field, and before they send to the port of arrival.
        [F::InPort, F::EthType, F::VlanTci, F::IpProto, F::IpFrag].into_iter().for_each(|f| notes.reads(f));
        Guide::Notes(Box::new(notes))
    }

    /// Keeps what was noted.
    fn keep(&mut self, n: Notes) {
        if self.len >= MOST {
            self.clear();
        }
        let Some(Some(start)) = self.starts.get_mut(n.start).filter(|_| !n.hops.is_empty()) else { return };
        let mask: Box<[(u8, u64)]> =
            n.looked.iter().enumerate().filter(|(_, m)| **m != 0).map(|(w, m)| (w as u8, *m)).collect();
        let at = start.sets.iter().position(|s| s.mask == mask).or_else(|| {
            (start.sets.len() < SETS).then(|| {
                start.sets.push(Set { mask: mask.clone(), list: HashTable::new() });
                start.sets.len() - 1
            })
        });
        let Some(set) = at.and_then(|i| start.sets.get_mut(i)) else { return };
        let values: Box<[u64]> = masked(&mask, &n.key).collect();
        let known = Known { values, hops: n.hops.into() };
        let h = hash(known.values.iter().copied());
        set.list.insert_unique(h, known, |k| hash(k.values.iter().copied()));
        self.len += 1;
    }
}

impl Switch {
    /// Moves with everything that decides which flows a stretch meets. Each part only ever grows.
    fn guided_by(&self) -> u64 {
        self.bridges.iter().fold(self.opened(), |v, b| v + b.version + b.epoch)
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
        Action::Output { port, .. } => port.0 < RESERVED,
        Action::Push(_)
        | Action::Resubmit { .. }
        | Action::GotoTable(_)
        | Action::Clone(_)
        | Action::DecTtl(_)
        | Action::CtClear
        | Action::Exit
        | Action::SetQueue(_)
        | Action::PopQueue
        | Action::Conjunction { .. }
        | Action::Note(_) => true,
        _ => false,
    }
}

impl<P> Xlate<'_, P> {
    /// Ends the stretch: what comes does not follow from the key that it began with.
    #[inline]
    pub(crate) fn stretch_ends(&mut self) {
        if let Guide::Notes(n) = std::mem::take(&mut self.guide)
            && self.sw.guides.version == self.sw.guided_by()
        {
            self.sw.guides.keep(*n);
        }
    }

    /// Before an action: notes what of the key decides. True if the stretch ends with it.
    #[inline]
    pub(crate) fn notes(&mut self, a: &Action) -> bool {
        if !follows(a) {
            return true;
        }
        if let Guide::Notes(n) = &mut self.guide {
            match a {
                Action::Move { src, .. } | Action::Push(src) => n.reads(src.field),
                Action::DecTtl(_) => n.reads(F::IpTtl),
                _ => {}
            }
        }
        false
    }

    /// What the guide says that a lookup finds, if there is one, with the TCP flags that flows of the table look at.
    #[inline]
    pub(crate) fn guided(&mut self, table: u8, in_port: PortNo) -> Option<(Option<Arc<Rule>>, u64)> {
        if matches!(self.guide, Guide::Open) {
            self.guide = self.begins(table);
        }
        let Guide::Follows(hops, at) = &mut self.guide else { return None };
        let hop = hops.get(*at).filter(|h| (h.bridge, h.table, h.in_port) == (self.bridge, table, in_port));
        *at += 1;
        let found = hop.map(|h| (h.rule.clone(), h.flags));
        if found.is_none() {
            self.guide = Guide::Off;
        }
        found
    }

    #[inline(never)]
    fn begins(&mut self, table: u8) -> Guide {
        let there = self.bridge < self.sw.bridges.len();
        if !self.sw.guides.on || !there || self.trace.is_some() || self.key.get(F::IpFrag) != 0 {
            return Guide::Off;
        }
        let version = self.sw.guided_by();
        if self.sw.guides.version != version {
            self.sw.guides.clear();
            self.sw.guides.version = version;
        }
        self.sw.guides.begin(self.bridge, table, &self.key)
    }
}
