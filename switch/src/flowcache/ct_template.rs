//! Connection tracking templates: one walk through connection tracking serves all similar packets.
//!
//! ```text
//!   frame ─► its key under a mask ─► what it finds in each zone ─► its tuple, translated, under a mask ─► all is done at once, its steps
//!               └─────────────no────────────────┴────────────────────────no───────────┴─► the tables
//! ```
//! What such a walk does follows from some bits of the packet, as for [megaflows](super::megaflow); from what it finds
//! in each zone (no connection, or one with some state and mark); and from some bits of the tuples after translation.
//! The first are the template's key, the second belong to a [`Group`], the third tell the templates of a group apart. A
//! packet that agrees in all of them passes the same zones
//! ([`Conntrack::foresee`](crate::conntrack::Conntrack::foresee)) and executes the same steps with its own tuples. So
//! packets that open or change a connection need no walk. One that changes nothing gets an entry of its own for the
//! packets after it. Templates are looked up last, before the tables.

use super::dump::{Shown, line};
use super::entry::{Check, Entry};
use super::exec::serve;
use super::key::{PackedKey, SHAPES};
use super::megaflow::{Mask, pack};
use super::recorder::patch;
use super::table::Table;
use super::{At, Cache, FlowCache, Step, Sums};
use crate::buf::PacketBuf;
use crate::conntrack::{Conntrack, Expected, Found, Outcome, Packet, Plan, Tuple, flag};
use crate::events::Outputs;
use crate::extract::address;
use crate::xlate::Backer;
use hashbrown::{HashMap, HashTable};
use packet::{be16, checksum, ipproto};

/// Most templates; beyond it all are forgotten.
const MOST: usize = 16_384;
/// Most masks of a kind of frame, and most groups of a key; beyond them those are forgotten.
const MASKS: usize = 16;
const GROUPS: usize = 16;
/// One of so many packets without a connection gets an entry of its own.
const SOME: u64 = 16;

/// A template.
#[derive(Debug)]
pub(crate) struct CtTemplate {
    entry: Entry,
    /// The steps that the entry was compiled from.
    steps: Box<[Step]>,
    /// The deciding bits of the translated tuples.
    values: Box<[u128]>,
}

impl CtTemplate {
    pub(crate) fn new(entry: Entry, steps: Box<[Step]>, values: Box<[u128]>) -> CtTemplate {
        CtTemplate { entry, steps, values }
    }

    /// Compiles an entry for one key, with checks of the connections that were found.
    fn own(&self, key: &PackedKey, found: &[Found], translated: &[[Tuple; 2]], ct: &Conntrack) -> Option<Entry> {
        let mut checks: Vec<Check> = self.entry.checks().collect();
        let mut absent = Vec::new();
        for f in found {
            let check = match f {
                Found::Connection(stamp, timeout) => Check::connection(*stamp, *timeout)?,
                Found::None(zone, t) => {
                    absent.push((*zone, *t));
                    let (place, arrivals) = ct.arrivals(*zone, t);
                    Check::Absent { place, arrivals }
                }
            };
            // A packet may pass the same connection several times.
            if !checks.contains(&check) {
                checks.push(check);
            }
        }
        let steps = settled(&self.steps, translated);
        let path = (self.entry.path, self.entry.generation);
        Entry::new((key.blocks(), [key.outer, key.inner]), &checks, &steps, path, self.entry.drop, absent)
    }
}

/// Templates with the same key whose packets find the same in each zone.
#[derive(Debug)]
struct Group {
    passes: Box<[Expected]>,
    /// The bits of translated tuples that decide.
    tuple: u128,
    /// Templates by those bits.
    flows: HashMap<Box<[u128]>, u32>,
}

/// Templates with the same key.
#[derive(Debug)]
struct Bucket {
    key: Box<[u64]>,
    groups: Vec<Group>,
}

/// Keys with the same mask.
#[derive(Debug)]
struct Subtable {
    mask: Mask,
    keys: HashTable<Bucket>,
}

/// All templates.
#[derive(Debug)]
pub(crate) struct CtTemplateCache {
    kinds: Box<[Vec<Subtable>; SHAPES]>,
    list: Vec<CtTemplate>,
    plan: Plan,
    values: Vec<u128>,
    found: Vec<Found>,
}

impl Default for CtTemplateCache {
    fn default() -> CtTemplateCache {
        let kinds = Box::new(std::array::from_fn(|_| Vec::new()));
        CtTemplateCache { kinds, list: Vec::new(), plan: Plan::default(), values: Vec::new(), found: Vec::new() }
    }
}

/// A tuple as one number, as masks of tuples order it.
pub(crate) fn said(t: &Tuple) -> u128 {
    pack([t.src, t.dst, t.sport.into(), t.dport.into()])
}

/// The steps for packets with these tuples: translations become rewrites, and adjacent rewrites one.
pub(crate) fn settled(steps: &[Step], translated: &[[Tuple; 2]]) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::with_capacity(steps.len());
    let mut translated = translated.iter();
    for s in steps {
        let list = match s {
            Step::Translate => translated.next().map(patches).unwrap_or_default().into(),
            Step::Rewrite(list) => list.clone(),
            s => {
                all.push(s.clone());
                continue;
            }
        };
        match all.last_mut() {
            _ if list.is_empty() => {}
            Some(Step::Rewrite(before)) => *before = before.iter().chain(&list).cloned().collect(),
            _ => all.push(Step::Rewrite(list)),
        }
    }
    all
}

/// The header changes of a translation.
fn patches([from, to]: &[Tuple; 2]) -> Vec<super::Patch> {
    let fields = [
        (At::Network, 12, 4, [from.src, to.src], Sums::Both),
        (At::Network, 16, 4, [from.dst, to.dst], Sums::Both),
        (At::Transport, 0, 2, [from.sport.into(), to.sport.into()], Sums::Transport),
        (At::Transport, 2, 2, [from.dport.into(), to.dport.into()], Sums::Transport),
    ];
    let differ = fields.into_iter().filter(|(.., [from, to], _)| from != to);
    differ.map(|(at, offset, len, values, sums)| patch(at, offset, len, values, sums)).collect()
}

impl CtTemplateCache {
    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        *self = CtTemplateCache::default();
    }

    /// Valid templates, a line each.
    pub(crate) fn lines(&self, cache: &Cache) -> impl Iterator<Item = Shown> {
        let keys = self.kinds.iter().flatten().flat_map(|u| u.keys.iter().map(move |k| (u, k)));
        let groups = keys.flat_map(|(u, k)| k.groups.iter().map(move |g| (u, g)));
        let all = groups.flat_map(|(u, g)| g.flows.values().map(move |i| (u, g, i)));
        all.filter_map(|(u, g, i)| {
            let flow = self.list.get(*i as usize).filter(|f| cache.table.fresh(&f.entry))?;
            let shown = line(&flow.entry, Some(&u.mask), &cache.table.masks)?;
            let passes: Vec<String> = g.passes.iter().map(|p| p.action().to_string()).collect();
            let states: Vec<String> = g.passes.iter().map(state).collect();
            // After the recirculation id and the device.
            let at = shown.packets.match_indices(',').nth(1).map_or(shown.packets.len(), |(at, _)| at);
            let (from, rest) = shown.packets.split_at(at);
            let packets = format!("{from},{}{rest}", states.join(","));
            Some(Shown { packets, actions: format!("{},{}", passes.join(","), shown.actions), ..shown })
        })
    }

    /// Adds a template for keys like this one under a mask; `passes` is what its packets find, `tuple` the bits of
    /// their tuples that decide.
    pub(crate) fn keep(
        &mut self,
        key: &PackedKey,
        mask: Mask,
        (passes, tuple): (Box<[Expected]>, u128),
        flow: CtTemplate,
        table: &Table,
    ) {
        if self.list.len() >= MOST {
            self.clear();
        }
        let CtTemplateCache { kinds, list, .. } = self;
        let Some(kind) = key.kind().and_then(|k| kinds.get_mut(k)) else { return };
        if kind.iter().all(|u| !u.mask.same(&mask)) {
            if kind.len() >= MASKS {
                kind.clear();
            }
            kind.push(Subtable { mask: mask.clone(), keys: HashTable::new() });
        }
        let Some(u) = kind.iter_mut().find(|u| u.mask.same(&mask)) else { return };
        let own = flow.entry.parts().0;
        let hash = |k: &[u64]| table.hash(k.as_chunks().0);
        let own_hash = table.hash(own);
        let is = |k: &Bucket| *k.key == *own.as_flattened();
        let new = || Bucket { key: own.as_flattened().into(), groups: Vec::new() };
        let alike = u.keys.entry(own_hash, is, |k| hash(&k.key)).or_insert_with(new).into_mut();
        let place = alike.groups.iter().position(|g| g.tuple == tuple && g.passes == passes);
        let place = place.unwrap_or_else(|| {
            if alike.groups.len() >= GROUPS {
                alike.groups.clear();
            }
            alike.groups.push(Group { passes, tuple, flows: HashMap::new() });
            alike.groups.len() - 1
        });
        let Some(group) = alike.groups.get_mut(place) else { return };
        match group.flows.get(&flow.values).and_then(|i| list.get_mut(*i as usize)) {
            Some(f) => *f = flow,
            None => {
                group.flows.insert(flow.values.clone(), list.len() as u32);
                list.push(flow);
            }
        }
    }
}

/// `ct_state(…),ct_zone(…)` of what a pass finds, with the bits of the connection's mark and label that flows looked at
/// (ovs-dpctl(8)).
fn state(p: &Expected) -> String {
    let (state, (mark, label), bits) = match &p.outcome {
        Outcome::Has { state, mark, label, bits, .. } => (*state, (*mark, *label), bits.looked),
        Outcome::None | Outcome::Opens(_) => (flag::NEW | flag::TRK, (0, 0), (0, 0)),
    };
    let names = [
        (flag::NEW, "new"),
        (flag::EST, "est"),
        (flag::REL, "rel"),
        (flag::RPL, "rpl"),
        (flag::INV, "inv"),
        (flag::TRK, "trk"),
        (flag::SNAT, "snat"),
        (flag::DNAT, "dnat"),
    ];
    let words: String = names.iter().filter(|(f, _)| state & f != 0).map(|(_, name)| format!("+{name}")).collect();
    let mut text = format!("ct_state({words}),ct_zone({:#x})", p.zone);
    let mut put = |name: &str, value: u128, bits: u128, all: u128| match bits {
        0 => {}
        bits if bits == all => text += &format!(",{name}({value:#x})"),
        bits => text += &format!(",{name}({:#x}/{bits:#x})", value & bits),
    };
    put("ct_mark", mark.into(), bits.0.into(), u32::MAX.into());
    put("ct_label", label, bits.1, u128::MAX);
    text
}

/// The tuple of a frame as it arrives, or of the frame in its tunnel; none without TCP or UDP ports.
fn arriving(p: &[u8], key: &PackedKey) -> Option<Tuple> {
    let at = if key.inner_at == 0 { key.outer } else { key.inner };
    if !matches!(at.proto, ipproto::TCP | ipproto::UDP) || at.l4 == 0 {
        return None;
    }
    let p = p.get(key.inner_at..)?;
    let (v6, l3, l4) = (at.ip == 6, usize::from(at.l3), usize::from(at.l4));
    let (src, dst) = if v6 { (l3 + 8, l3 + 24) } else { (l3 + 12, l3 + 16) };
    Some(Tuple {
        v6,
        proto: at.proto,
        src: address(p, src, v6)?,
        dst: address(p, dst, v6)?,
        sport: be16(p, l4)?,
        dport: be16(p, l4 + 2)?,
        icmp_type: 0,
        icmp_code: 0,
    })
}

impl FlowCache {
    /// Prefetches what packets of a burst without a flow will read of the connection table. Only speed depends on it.
    #[inline(never)]
    pub(crate) fn expect_connections<P: PacketBuf>(&self, ct: &Conntrack, burst: &[(u32, P)], keys: &[PackedKey]) {
        for ((_, p), key) in burst.iter().zip(keys) {
            if key.cached() && key.found == super::key::Found::Exact {
                arriving(p.data(), key).iter().for_each(|t| ct.near(t, P::prefetch));
            }
        }
    }
}

/// A frame as connection tracking sees it; none if its checksums are wrong or a port is 0. Its lengths are right, or it
/// would have no such key.
fn seen<P: PacketBuf>(p: &P, key: &PackedKey) -> Option<Packet> {
    let (frame, tuple) = (p.data(), arriving(p.data(), key)?);
    let (at, good) = if key.inner_at == 0 { (key.outer, p.checksum_good()) } else { (key.inner, false) };
    let (l3, l4) = (key.inner_at + usize::from(at.l3), key.inner_at + usize::from(at.l4));
    let end = l3 + usize::from(be16(frame, l3 + 2)?);
    let tcp = at.proto == ipproto::TCP;
    let transport = frame.get(l4..end)?;
    let unsaid = !tcp && be16(transport, 6) == Some(0);
    let covered = || {
        let addresses = frame.get(l3 + 12..l3 + 20).map_or(0, checksum::sum);
        let pseudo = addresses + u32::from(at.proto) + transport.len() as u32;
        checksum::finish(checksum::sum(transport) + pseudo) == 0
    };
    let right = checksum::of(frame.get(l3..l4)?) == 0 && (good || unsaid || covered());
    // Port 0 is reserved (RFC 6335 section 6).
    if !right || tuple.v6 || tuple.sport == 0 || tuple.dport == 0 {
        return None;
    }
    let tcp_flags = if tcp { be16(transport, 12)? & 0xfff } else { 0 };
    Some(Packet { tuple, tcp_flags, segment: None, error: false })
}

impl FlowCache {
    /// Serves a packet from a template; without one, the packet is returned. If the packet changed nothing, an entry
    /// for its key is returned, too.
    pub(crate) fn serve_from_template<P: PacketBuf>(
        &mut self,
        backer: &mut Backer,
        key: &PackedKey,
        packet: P,
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
    ) -> Result<Option<Entry>, P> {
        let FlowCache { ct_templates, cache, connection_predictor, .. } = self;
        let Backer { conntrack, now, .. } = backer;
        let CtTemplateCache { kinds, list, plan, values, found } = ct_templates;
        let Cache { table, views, tallies, stats, .. } = cache;
        let masks = match key.kind().and_then(|k| kinds.get_mut(k)) {
            Some(k) if !k.is_empty() => k,
            _ => return Err(packet),
        };
        let (lengths, at) = (key.lengths(packet.data().len()), now.as_nanos() as u64);
        let Some(seen) = seen(&packet, key) else { return Err(packet) };
        for u in masks {
            let narrow = u.mask.of(key.blocks());
            let own = narrow.get(..key.blocks().len()).unwrap_or_default();
            let Some(alike) = u.keys.find(table.hash(own), |k| *k.key == *own.as_flattened()) else { continue };
            for g in &alike.groups {
                if !conntrack.foresee(&seen, &g.passes, *now, plan) {
                    continue;
                }
                values.clear();
                values.extend(plan.translated.iter().map(|[_, t]| said(t) & g.tuple));
                let flow = g.flows.get(values.as_slice()).and_then(|i| list.get(*i as usize));
                let Some(CtTemplate { entry, .. }) = flow.filter(|f| table.fresh(&f.entry)) else { continue };
                if entry.checks().any(|c| !views.holds(c, Some(lengths), at)) {
                    continue;
                }
                // A packet without a connection may be one of many single packets: few of them get an entry.
                let has = g.passes.iter().any(|p| matches!(p.outcome, Outcome::Has { .. }));
                let stays = (has || stats.ct_template_packets % SOME == 0)
                    && conntrack.unchanged(&seen, &g.passes, plan, found);
                let opens = g.passes.iter().any(|p| matches!(p.outcome, Outcome::Opens(_)));
                conntrack.carry_out(&seen, &g.passes, *now, plan);
                if opens {
                    connection_predictor.opened();
                }
                stats.ct_template_packets += 1;
                for c in entry.checks() {
                    views.pass(c, &lengths, at);
                }
                serve(entry, entry.steps(), packet, (key.end, lengths), (&plan.translated, outer), out, tallies);
                return Ok(flow.filter(|_| stays).and_then(|f| f.own(key, found, &plan.translated, conntrack)));
            }
        }
        Err(packet)
    }
}
