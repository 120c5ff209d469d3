//! What becomes of a record: an entry, a megaflow, or a template.

use super::{Record, Recorder};
use crate::bridge::Bridges;
use crate::conntrack::{Conntrack, Expected, Outcome, SharedConntrack, Tuple, Zone};
use crate::drops::DropReason;
use crate::flowcache::check::Check;
use crate::flowcache::ct_template::{self, CtTemplate, Meets, choice, settled};
use crate::flowcache::dump::Installed;
use crate::flowcache::entry::Entry;
use crate::flowcache::exec;
use crate::flowcache::key::{BLOCK, Layout, PackedKey};
use crate::flowcache::megaflow::{Layer, Mask, TupleBits};
use crate::flowcache::metered::metered;
use crate::flowcache::xcache::XlateCaches;
use crate::flowcache::{At, Cache, Condition, FlowCache, Step};
use crate::ids::BridgeId;
use crate::tunnel::Shim;
use crate::xlate::Backer;
use std::sync::Arc;
use std::time::Duration;

/// Tuples that have no connection, by zone.
type Absent = Vec<(Zone, Tuple)>;

/// What the conditions of a walk are about: the connections, and the bridges with their learned addresses.
#[derive(Clone, Copy)]
pub(in crate::flowcache) struct Learned<'a> {
    pub(in crate::flowcache) ct: &'a Conntrack,
    /// When the walk was.
    pub(in crate::flowcache) now: Duration,
    pub(in crate::flowcache) bridges: &'a Bridges,
}

impl Recorder {
    /// Completes what steps say of meters, once all that was noted is in its place. `own`: the checks are of connections, too;
    /// `origins` are the conditions that checks are of.
    fn complete_meters(&mut self, own: bool, origins: &[usize], xcaches: &mut XlateCaches) -> Option<()> {
        let checked = |p: &&Expected| !own && matches!(p.outcome, Outcome::None | Outcome::Has { .. });
        for (m, mark) in metered(&mut self.steps).zip(&self.meters.list) {
            let counts = self.counts.get(..mark.counts)?;
            let looks = counts.iter().filter(|c| c.look().is_some()).count();
            m.path = xcaches.path(counts, &self.looks.first(looks), &self.needs)?;
            m.checks = mark.checks(origins)?;
            m.passes = mark.passes;
            m.found = self.passes.iter().take(mark.passes).filter(checked).count();
        }
        Some(())
    }

    /// Where packets of this xlate cache are counted that its meters drop.
    fn drops_at(&mut self, path: (u32, u32), xcaches: &mut XlateCaches) {
        metered(&mut self.steps).for_each(|m| xcaches.drops_at(path, m.path));
    }

    /// The checks of an entry, the tuples without a connection, and the place of the condition that each check is of.
    /// `own`: include the checks of connections.
    fn checks(&self, own: bool, learned: Learned<'_>) -> Option<(Vec<Check>, Absent, Vec<usize>)> {
        let mut conditions: Vec<(usize, &Condition)> = self.conditions.iter().enumerate().collect();
        conditions.sort_by_key(|(_, c)| !matches!(c, Condition::Length { .. }));
        let (mut checks, mut absent, mut origins) = (Vec::new(), Absent::new(), Vec::new());
        for (origin, c) in conditions {
            match c {
                Condition::Connection(_) | Condition::NoConnection { .. } if !own => {}
                Condition::NoConnection { zone, tuple } if absent.contains(&(*zone, *tuple)) => {}
                Condition::NoConnection { zone, tuple } => {
                    absent.push((*zone, *tuple));
                    let (place, arrivals) = learned.ct.arrivals(*zone, tuple);
                    checks.push(Check::Absent { place, arrivals });
                    origins.push(origin);
                }
                c => {
                    let c = check(c, learned)?;
                    // A packet may pass the same connection or address several times.
                    if !checks.contains(&c) {
                        checks.push(c);
                        origins.push(origin);
                    }
                }
            }
        }
        Some((checks, absent, origins))
    }

    /// Whether network or transport headers are rewritten; none if a packet enters a tunnel whose flow cannot be told from
    /// its headers as they stand ([`crate::tunnel::entropy_of`]).
    fn rewrites(&self, key: &PackedKey) -> Option<bool> {
        let decapped = self.steps.iter().any(|s| matches!(s, Step::Decap { .. }));
        let told = |l: Layout| matches!((l.ip, l.l4.checked_sub(l.l3)), (4, Some(20)) | (6, Some(40)));
        let spreads = |s: &Step| matches!(s, Step::Encap { encap, .. } if matches!(encap.shim, Shim::Udp { .. }));
        let encapped = self.steps.iter().any(spreads);
        let tunnels = encapped && !(told(key.outer) && (!decapped || told(key.inner)));
        let above = |s: &Step| match s {
            Step::Rewrite(patches) => patches.iter().any(|p| p.at != At::Frame),
            s => matches!(s, Step::IcmpId(_) | Step::Translate { .. }),
        };
        (!tunnels).then(|| self.steps.iter().any(above))
    }

    /// What of a packet with this key decided; none if the walk is of no other packets.
    fn mask(&self, key: &PackedKey) -> Option<Mask> {
        let rewrites = self.rewrites(key)?;
        match key.shape() {
            Some(s) => self.looked.mask(s),
            None => self.looked.mask_of_fields(key, rewrites),
        }
    }

    /// Removes steps at the end that have no effect.
    fn trim(&mut self) {
        while matches!(self.steps.last(), Some(Step::Pop | Step::IcmpId(_))) {
            self.steps.pop();
        }
        mark_last(&mut self.steps);
    }

    /// Compiles the entry of this key, if the walk can be repeated.
    pub(in crate::flowcache) fn compile(
        &mut self,
        key: &PackedKey,
        xcaches: &mut XlateCaches,
        learned: Learned<'_>,
        drop: Option<DropReason>,
    ) -> Option<Entry> {
        self.trim();
        let (checks, absent, origins) = self.checks(true, learned)?;
        self.complete_meters(true, &origins, xcaches)?;
        let path = xcaches.path(&self.counts, &self.looks, &self.needs)?;
        self.drops_at(path, xcaches);
        let steps = settled(&self.steps, &self.translated);
        let mut e = Entry::new((key.blocks(), [key.outer, key.inner]), &checks, &steps, path, drop, absent)?;
        self.held.iter().for_each(|h| e.hold(h.rest.clone()));
        Some(e)
    }

    /// Compiles a megaflow; checks of connections are added per packet. `hash` is that of the megaflow if it is to have
    /// an xlate cache of its own, else 0.
    fn compile_wide(
        &mut self,
        key: &PackedKey,
        (mask, hash): (&Mask, impl Fn(&[[u64; BLOCK]]) -> u64),
        xcaches: &mut XlateCaches,
        learned: Learned<'_>,
        drop: Option<DropReason>,
    ) -> Option<Entry> {
        self.looks.widen(&self.looked);
        for s in &mut self.steps {
            if let Step::Encap { encap, .. } = s {
                encap.spread = true;
            }
        }
        self.trim();
        let (checks, absent, origins) = self.checks(false, learned)?;
        self.complete_meters(false, &origins, xcaches)?;
        let narrow = mask.of(key.blocks());
        let blocks = narrow.get(..key.blocks().len())?;
        let path = xcaches.path_of(&self.counts, &self.looks, &self.needs, (hash(blocks), self.origin[0]))?;
        self.drops_at(path, xcaches);
        Entry::new((blocks, [key.outer, key.inner]), &checks, &self.steps, path, drop, absent)
    }
}

/// Compiles a condition to a check; `None` if it does not hold any more.
fn check(c: &Condition, Learned { ct, bridges, now }: Learned<'_>) -> Option<Check> {
    let macs = |b: BridgeId| Some((u16::try_from(b.index()).ok()?, &bridges.get(b)?.macs));
    Some(match *c {
        Condition::Connection(seen) => Check::connection(ct.stamp_of(seen)?, seen.timeout)?,
        Condition::Length { which, min, max } => Check::Length { which, min, max },
        Condition::Address { bridge, vlan, mac, port } => {
            let (bridge, macs) = macs(bridge)?;
            match port {
                Some(p) => Check::Known { bridge, place: macs.place(vlan, mac, p)? },
                // The walk has learned it itself, behind the look: the next packet finds it.
                None if macs.lookup(vlan, mac, now).is_some() => return None,
                None => Check::Unknown { bridge, arrivals: macs.shared().arrivals() },
            }
        }
        Condition::Source { bridge, vlan, mac, port } => {
            let (bridge, macs) = macs(bridge)?;
            Check::Source { bridge, place: macs.place(vlan, mac, port)? }
        }
        Condition::NoConnection { .. } => return None,
    })
}

/// Marks the last use of each packet, which needs no copy.
fn mark_last(steps: &mut [Step]) {
    for i in 0..steps.len() {
        let (head, rest) = steps.split_at_mut(i + 1);
        let Some(step) = head.last_mut() else { return };
        let (last, opens) = match step {
            Step::Send { last, .. } | Step::Session { last, .. } => (last, false),
            Step::Encap { encap, last } => {
                let opens = encap.target.is_none();
                (last, opens)
            }
            Step::Decap { last, .. } | Step::Cut { last, .. } => (last, true),
            _ => continue,
        };
        let mut depth = i32::from(opens);
        let mut used = false;
        for s in rest.iter() {
            match s {
                Step::Pop if depth == 0 => break,
                Step::Pop => depth -= 1,
                _ if depth == 0 => {
                    used = true;
                    break;
                }
                Step::Decap { .. } | Step::Cut { .. } => depth += 1,
                Step::Encap { encap, .. } if encap.target.is_none() => depth += 1,
                _ => {}
            }
        }
        *last = !used;
    }
}

impl FlowCache {
    /// Keeps the storage of a record for the next one.
    pub(in crate::flowcache) fn put_back(&mut self, mut r: Box<Recorder>) {
        r.clear();
        self.spare = Some(r);
    }

    /// Compiles a recorded walk; of a megaflow the mask is returned, too.
    pub(crate) fn entry(
        &mut self,
        backer: &mut Backer,
        key: &PackedKey,
        rec: Option<Record>,
    ) -> Option<(Entry, Option<Mask>)> {
        self.settle(backer);
        let (mut rec, drop) = rec?;
        if self.cache.table.masks.spent() {
            self.purge(backer);
            self.cache.table.masks.renumber();
            return None;
        }
        if rec.conditions.iter().any(|c| matches!(c, Condition::NoConnection { .. })) && rec.exact {
            self.connection_predictor.none();
        }
        if rec.flags_read && !self.cache.views.exact_flags() {
            // From now on keys hold all flags.
            self.pay_out(backer);
            self.cache.views.set_exact_flags();
            self.purge(backer);
            return None;
        }
        let lengths = rec.origin;
        // A choice takes more than the bits of a megaflow, too.
        let tracked = !rec.passes.is_empty() || !rec.choices.is_empty();
        let FlowCache { cache, xcaches, .. } = self;
        let Backer { conntrack, bridges, now, .. } = &*backer;
        // Nothing comes or goes between what the entry says of connections and the look whether that is so.
        let held = conntrack.lock();
        let learned = Learned { ct: &held, bridges, now: *now };
        let waits = rec.held.is_some();
        let wide = if tracked || waits || !self.megaflows { None } else { rec.mask(key) };
        let mask = wide.and_then(|m| cache.table.masks.add(key, m));
        let entry = match &mask {
            Some(m) => {
                let entry = rec.compile_wide(key, (m, |b| cache.table.hash(b)), xcaches, learned, drop);
                // In Open vSwitch each such way is two flows.
                if let Some(e) = entry.as_ref().filter(|_| rec.steps.iter().any(|s| matches!(s, Step::Decap { .. }))) {
                    xcaches.keep_example((e.path, e.generation), || std::mem::take(&mut rec.example));
                }
                entry
            }
            None if rec.exact => rec.compile(key, xcaches, learned, drop),
            None => None,
        };
        let now = now.as_nanos() as u64;
        let entry = entry.filter(|e| exec::holds(e, &held, &cache.views, lengths, now));
        std::mem::drop(held);
        let alike = mask.is_some() || tracked && self.megaflows && self.keep_tracked(backer, key, &mut rec, drop);
        self.megaflow_predictor.answer(alike);
        self.put_back(rec);
        Some((entry?, mask))
    }

    /// Keeps a recorded walk through connection tracking, or by a choice, as a template; false if it cannot be one.
    fn keep_tracked(&mut self, backer: &Backer, key: &PackedKey, rec: &mut Recorder, drop: Option<DropReason>) -> bool {
        let FlowCache { cache, xcaches, ct_templates, .. } = self;
        let Backer { conntrack, bridges, now, .. } = backer;
        let layer = if rec.tunnel { Layer::Inner } else { Layer::Received };
        let answers = |p: &Expected| matches!(p.outcome, Outcome::Has { reply: true, .. });
        let chosen = |p: &Expected| matches!(p.outcome, Outcome::Opens(_)) && p.outcome.translates();
        // The connection's original tuple is not what an error says either.
        let answers = rec.quotes || rec.passes.iter().any(answers);
        let v6 = if rec.tunnel { key.inner.ip } else { key.outer.ip } == 6;
        let Some(tuple) = rec.looked.untranslate(layer, answers, v6).filter(|_| rec.looked.only) else { return false };
        let Some(mask) = rec.mask(key) else { return false };
        // Templates are of many of NetFlow's flows.
        let Some(kind) = key.kind().filter(|_| !rec.netflow) else { return false };
        // Templates open connections and translate: no packet of a session needs that.
        if rec.steps.iter().any(|s| matches!(s, Step::Session { .. })) {
            return false;
        }
        // Each connection is translated to another port: a template that compares the port would serve one connection
        // only.
        let TupleBits([.., sport, _]) = tuple;
        let icmp = rec.translated.iter().any(|[_, t]| t.is_icmp());
        if sport != 0 && !icmp && rec.passes.iter().any(chosen) {
            return false;
        }
        let learned = Learned { ct: &conntrack.lock(), bridges, now: *now };
        let Some(entry) = rec.compile_wide(key, (&mask, |_| 0), xcaches, learned, drop) else {
            return false;
        };
        let values = rec.said.iter().map(|t| *t & tuple).collect();
        let looked = rec.looked.marks();
        for p in &mut rec.passes {
            if let Outcome::Has { mark, label, bits, .. } = &mut p.outcome {
                bits.looked = looked;
                (*mark, *label) = bits.of(*mark, *label);
            }
        }
        let (passes, steps) = (std::mem::take(&mut rec.passes), std::mem::take(&mut rec.steps));
        let example = Arc::new(std::mem::take(&mut rec.example));
        let flow = Arc::new(CtTemplate::new(entry, steps.into(), values, example));
        if let Some(installed) = &mut cache.installed {
            let chosen = rec.choices.iter().map(|c| choice(c.group, c.bucket)).collect();
            let flow = ct_template::shown(&flow, &mask, (chosen, &passes), &cache.table.masks);
            installed.extend(flow.map(|flow| Installed { flow, old: None }));
        }
        let choices = std::mem::take(&mut rec.choices).into();
        ct_templates.keep(kind, mask, Meets { choices, passes: passes.into(), tuple }, flow, &cache.table);
        cache.stats.inserted += 1;
        true
    }

    /// Puts a recorded walk into the cache.
    pub(crate) fn keep(&mut self, backer: &mut Backer, key: &PackedKey, rec: Option<Record>) {
        let Some((entry, mask)) = self.entry(backer, key, rec) else {
            self.cache.stats.refused += 1;
            return;
        };
        let hash = if mask.is_some() { self.cache.table.hash(entry.parts().0) } else { key.hash };
        self.cache.insert(&backer.conntrack, backer.now, hash, entry);
    }
}

impl Cache {
    /// Puts a flow into the cache.
    pub(crate) fn insert(&mut self, conntrack: &SharedConntrack, now: Duration, hash: u64, entry: Entry) {
        self.note(hash, &entry, None);
        let now = now.as_nanos() as u64;
        let Cache { table, views, stats, .. } = self;
        let holds = |e: &Entry| exec::holds_but_length(e, conntrack, views, now);
        table.insert(hash, entry, |e| !holds(e));
        stats.inserted += 1;
    }
}
