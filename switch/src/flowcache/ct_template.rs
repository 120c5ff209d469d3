//! Connection tracking templates: one walk through connection tracking serves all similar packets.
//!
//! ```text
//!   frame ─► its key under a mask ─► what groups choose ─► what it finds in each zone ─► its tuple, translated
//!               └─────────no─────────────────┴─────────no────────────┴─► the tables ◄───no───┴─► all is done at once,
//!                                                                                                 and its steps
//! ```
//! What such a walk does follows from some bits of the packet, as for [megaflows](super::megaflow); from the buckets that
//! `select` groups choose by its tuple; from what it finds in each zone (no connection, or one with some state and mark);
//! and from some bits of the tuples after translation. The first are the template's key, the second a [`Fork`], the third
//! belong to a [`Group`], the last tell the templates of a group apart. A packet that agrees in all of them passes the
//! same zones
//! ([`Conntrack::foresee`](crate::conntrack::Conntrack::foresee)) and executes the same steps with its own tuples
//! ([`super::template_run`]). So packets that open or change a connection need no walk. One that changes nothing gets
//! an entry of its own for the packets after it. Templates are looked up last, before the tables.
//!
//! Each thread has all templates. The main thread makes them and tells the others ([`TemplateNews`]), who do with each
//! what the main thread did, in the same order: so all have the same ones.

use super::check::Check;
use super::dump::{Shown, line};
use super::entry::Entry;
use super::example::Example;
use super::exec::addresses_hold;
use super::key::{BLOCK, KINDS, PackedKey};
use super::megaflow::{Mask, Masks, TupleBits};
use super::metered::{CHECKS, metered};
use super::patches::patch;
use super::table::Table;
use super::{At, Cache, Step, Sums};
use crate::conntrack::{Expected, Found, Outcome, Tuple, flag};
use crate::xlate::quoted;
use crate::xlate::selection::{Ends, Selection};
use hashbrown::{HashMap, HashTable};
use openflow_rs::{FieldId as F, FlowKey, GroupId};
use packet::{ethertype, ipproto};
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

/// Most templates; beyond it all are forgotten.
const MOST: usize = 16_384;
/// Most masks of a kind of frame, and most groups of a key; beyond them those are forgotten.
const MASKS: usize = 16;
const GROUPS: usize = 16;
/// Most sets of choices that templates with one key go by; beyond them those are forgotten.
const FORKS: usize = 8;
/// A template.
#[derive(Debug)]
pub(crate) struct CtTemplate {
    pub(super) entry: Entry,
    /// The steps that the entry was compiled from.
    steps: Box<[Step]>,
    /// The deciding bits of the translated tuples.
    values: Box<[TupleBits]>,
    /// The packet that it was made of.
    example: Arc<Example>,
}

impl CtTemplate {
    pub(crate) fn new(entry: Entry, steps: Box<[Step]>, values: Box<[TupleBits]>, example: Arc<Example>) -> CtTemplate {
        CtTemplate { entry, steps, values, example }
    }

    /// Compiles an entry for one key, with checks of the connections that were found.
    pub(super) fn own(&self, key: &PackedKey, found: &[Found], translated: &[[Tuple; 2]]) -> Option<Entry> {
        let mut checks: Vec<Check> = self.entry.checks().collect();
        let mut absent = Vec::new();
        let mut places = Vec::new();
        for f in found {
            let check = match *f {
                Found::Connection(stamp, timeout) => Check::connection(stamp, timeout)?,
                Found::Related(stamp) => Check::Related(stamp),
                Found::None { zone, tuple, arrivals: (place, arrivals) } => {
                    absent.push((zone, tuple));
                    Check::Absent { place, arrivals }
                }
            };
            // A packet may pass the same connection several times.
            let known = checks.iter().position(|c| *c == check);
            places.push(known.unwrap_or(checks.len()));
            if known.is_none() {
                checks.push(check);
            }
        }
        let mut steps = settled(&self.steps, translated);
        if self.entry.metered {
            if checks.len() > CHECKS {
                return None;
            }
            for m in metered(&mut steps) {
                m.checks = places.iter().take(m.found).fold(m.checks, |bits, place| bits | 1 << place);
            }
        }
        let path = (self.entry.path, self.entry.generation);
        Entry::new((key.blocks(), [key.outer, key.inner]), &checks, &steps, path, self.entry.drop, absent)
    }
}

/// The choice of a `select` group in a walk, and the place of the bucket.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Choice {
    pub(super) group: GroupId,
    pub(super) selection: Selection,
    pub(super) bucket: usize,
}

/// A choice as a match of a dump. Open vSwitch's datapath compares a hash there, which says less.
pub(super) fn choice(group: GroupId, bucket: usize) -> String {
    format!("group({group},{bucket})")
}

/// Most choices of a walk that becomes a template.
pub(super) const CHOICES: usize = 4;

/// The places of the buckets that were chosen, in turn.
type Chosen = [Option<u32>; CHOICES];

/// What the packets of a template meet.
#[derive(Clone, Debug)]
pub(crate) struct Meets {
    /// In `select` groups, before anything translates them.
    pub(super) choices: Arc<[Choice]>,
    /// In each zone.
    pub(super) passes: Arc<[Expected]>,
    /// The bits of translated tuples that decide.
    pub(super) tuple: TupleBits,
}

/// Templates with the same key whose packets find the same in each zone.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) passes: Arc<[Expected]>,
    /// The bits of translated tuples that decide.
    pub(super) tuple: TupleBits,
    /// Templates by those bits.
    flows: HashMap<Box<[TupleBits]>, u32>,
}

/// Templates with the same key.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    key: Box<[u64]>,
    /// The number of its mask.
    under: u32,
    groups: Vec<Group>,
    forks: Vec<Fork>,
}

/// Templates with the same key whose packets go by the same choices of `select` groups.
#[derive(Clone, Debug)]
struct Fork {
    choices: Arc<[Choice]>,
    groups: HashMap<Chosen, Vec<Group>>,
}

impl Fork {
    /// Whether choices are the same but for the buckets that were chosen.
    fn is_of(&self, choices: &[Choice]) -> bool {
        let same = |(a, b): (&Choice, &Choice)| a.group == b.group && a.selection == b.selection;
        self.choices.len() == choices.len() && self.choices.iter().zip(choices).all(same)
    }

    /// What a packet with these fields chooses.
    fn chosen(&self, f: &Fields) -> Chosen {
        places(self.choices.iter().map(|c| c.selection.bucket_of(&f.ends, || f.key.get_or_init(|| fields(&f.tuple)))))
    }
}

fn places(chosen: impl Iterator<Item = Option<usize>>) -> Chosen {
    let mut all = [None; CHOICES];
    all.iter_mut().zip(chosen).for_each(|(to, place)| *to = place.map(|n| n as u32));
    all
}

/// What a tuple says, for groups that choose.
struct Fields {
    tuple: Tuple,
    ends: Ends,
    /// All of it, if a group hashes fields of its own choice.
    key: OnceCell<FlowKey>,
}

impl Fields {
    fn of(t: &Tuple) -> Fields {
        let TupleBits([src, dst, a, b]) = said(t);
        let ends = Ends { v6: t.v6, addresses: [src, dst], proto: t.proto, ports: [a as u16, b as u16] };
        Fields { tuple: *t, ends, key: OnceCell::new() }
    }
}

/// The fields that a tuple says.
fn fields(t: &Tuple) -> FlowKey {
    let mut key = FlowKey::new();
    let (kind, src, dst) = match t.v6 {
        false => (ethertype::IPV4, F::IpSrc, F::IpDst),
        true => (ethertype::IPV6, F::Ipv6Src, F::Ipv6Dst),
    };
    key.set(F::EthType, kind.into());
    key.set(F::IpProto, t.proto.into());
    let TupleBits(values) = said(t);
    for (f, v) in [src, dst, F::TcpSrc, F::TcpDst].into_iter().zip(values) {
        key.set(f, v);
    }
    key
}

impl Bucket {
    /// The groups of templates that a packet with this tuple may find.
    pub(super) fn groups(&self, t: &Tuple) -> impl Iterator<Item = &Group> {
        self.groups.iter().chain(self.chosen_groups(t))
    }

    /// Those of them that `select` groups choose.
    pub(super) fn chosen_groups(&self, t: &Tuple) -> impl Iterator<Item = &Group> {
        let fields = (!self.forks.is_empty()).then(|| Fields::of(t));
        let forks = self.forks.iter().filter_map(move |f| f.groups.get(&f.chosen(fields.as_ref()?)));
        forks.flatten()
    }

    /// All groups, each with what its packets choose.
    fn all(&self) -> impl Iterator<Item = (&Group, Vec<String>)> {
        let words = |f: &Fork, chosen: &Chosen| {
            let pairs = f.choices.iter().zip(chosen.iter().flatten());
            pairs.map(|(c, n)| choice(c.group, *n as usize)).collect()
        };
        let plain = self.groups.iter().map(|g| (g, Vec::new()));
        let chosen = self.forks.iter().flat_map(|f| f.groups.iter().map(move |(chosen, list)| (f, chosen, list)));
        plain.chain(chosen.flat_map(move |(f, chosen, list)| list.iter().map(move |g| (g, words(f, chosen)))))
    }

    /// The groups of packets that choose as these do.
    fn of_choices(&mut self, choices: &Arc<[Choice]>) -> &mut Vec<Group> {
        if choices.is_empty() {
            return &mut self.groups;
        }
        let known = self.forks.iter().position(|f| f.is_of(choices));
        let place = known.unwrap_or_else(|| {
            if self.forks.len() >= FORKS {
                self.forks.clear();
            }
            self.forks.push(Fork { choices: choices.clone(), groups: HashMap::new() });
            self.forks.len() - 1
        });
        let chosen = places(choices.iter().map(|c| Some(c.bucket)));
        match self.forks.get_mut(place) {
            Some(f) => f.groups.entry(chosen).or_default(),
            None => &mut self.groups,
        }
    }
}

/// The place that comes `n`th if that at `first` comes before the others.
pub(super) fn turn(first: usize, n: usize) -> usize {
    match n {
        0 => first,
        n if n <= first => n - 1,
        n => n,
    }
}

/// Keys with the same mask.
#[derive(Clone, Debug)]
struct Subtable {
    mask: Mask,
    /// Tells it from others that there are at the same time.
    number: u32,
    /// Their numbers among all buckets.
    keys: HashTable<u32>,
}

/// A change of the templates, for other threads.
#[derive(Clone, Debug)]
pub(crate) enum TemplateNews {
    /// All are forgotten.
    Clear,
    /// One is new, of a kind of frame; see [`CtTemplateCache::keep`].
    Keep(usize, Box<Mask>, Meets, Arc<CtTemplate>),
}

/// All templates.
#[derive(Clone, Debug)]
pub(crate) struct CtTemplateCache {
    kinds: Box<[Vec<Subtable>; KINDS]>,
    /// How many masks there have been.
    masks: u32,
    buckets: Vec<Bucket>,
    list: Vec<Arc<CtTemplate>>,
    /// What other threads have not been told; none: there are no other threads.
    news: Option<Vec<TemplateNews>>,
}

impl Default for CtTemplateCache {
    fn default() -> CtTemplateCache {
        let kinds = Box::new(std::array::from_fn(|_| Vec::new()));
        CtTemplateCache { kinds, masks: 0, buckets: Vec::new(), list: Vec::new(), news: None }
    }
}

impl Group {
    /// The template for translated tuples with these deciding bits.
    pub(super) fn flow(&self, values: &[TupleBits]) -> Option<u32> {
        self.flows.get(values).copied()
    }
}

/// A tuple's addresses and ports; type and code stand in the place of ICMP's ports.
pub(crate) fn said(t: &Tuple) -> TupleBits {
    let (a, b) = if t.is_icmp() { (t.icmp_type.into(), t.icmp_code.into()) } else { (t.sport, t.dport) };
    TupleBits([t.src, t.dst, a.into(), b.into()])
}

/// What an ICMP error says when the tuple of its connection has become another one, where it said `before`.
pub(crate) fn said_quoting(before: TupleBits, pair: &[Tuple; 2]) -> TupleBits {
    let (TupleBits([src, _, kind, code]), [_, to]) = (before, pair);
    TupleBits([quoted::sender(pair).unwrap_or(src), to.dst, kind, code])
}

/// The steps for packets with these tuples: translations become rewrites, and adjacent rewrites one.
pub(crate) fn settled(steps: &[Step], translated: &[[Tuple; 2]]) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::with_capacity(steps.len());
    let mut translated = translated.iter();
    for s in steps {
        let list = match s {
            Step::Translate { quoting: true } => {
                let pair = translated.next().filter(|[from, to]| from != to);
                all.extend(pair.map(|pair| Step::Quote(Box::new(*pair))));
                continue;
            }
            Step::Translate { quoting: false } => translated.next().map(patches).unwrap_or_default().into(),
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
    let (src, dst, len, sums) = if to.v6 { (8, 24, 16, Sums::Transport) } else { (12, 16, 4, Sums::Both) };
    // ICMP has no pseudo header (RFC 792); ICMPv6 has one (RFC 4443 section 2.3).
    let sums = if to.proto == ipproto::ICMP { Sums::Header } else { sums };
    let addresses =
        [(At::Network, src, len, [from.src, to.src], sums), (At::Network, dst, len, [from.dst, to.dst], sums)];
    let port = |offset, from: u16, to: u16, sums| (At::Transport, offset, 2, [from.into(), to.into()], sums);
    let ports = match to.is_icmp() {
        true => vec![port(4, from.sport, to.sport, Sums::Icmp)],
        false => vec![port(0, from.sport, to.sport, Sums::Transport), port(2, from.dport, to.dport, Sums::Transport)],
    };
    let differ = addresses.into_iter().chain(ports).filter(|(.., [from, to], _)| from != to);
    differ.map(|(at, offset, len, values, sums)| patch(at, offset, len, values, sums)).collect()
}

/// A template as text; its packets choose as `chosen` says, and `passes` is what they find.
pub(super) fn shown(
    flow: &CtTemplate,
    mask: &Mask,
    (chosen, passes): (Vec<String>, &[Expected]),
    masks: &Masks,
) -> Option<Shown> {
    let shown = line(&flow.entry, Some(mask), masks)?;
    // The datapath's words are those of OpenFlow, but for empty brackets.
    let text = |p: &Expected| p.action().to_string().replace("ct()", "ct");
    let actions: Vec<String> = passes.iter().map(text).collect();
    let met: Vec<String> = chosen.into_iter().chain(passes.iter().map(state)).collect();
    // After the recirculation id and the device.
    let at = shown.packets.match_indices(',').nth(1).map_or(shown.packets.len(), |(at, _)| at);
    let (from, rest) = shown.packets.split_at(at);
    let packets = format!("{from},{}{rest}", met.join(","));
    let actions = [actions, vec![shown.actions]].concat().join(",");
    Some(Shown { packets, actions, example: Some(flow.example.clone()), ..shown })
}

impl CtTemplateCache {
    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        let news = self.news.take().map(|mut n| {
            n.push(TemplateNews::Clear);
            n
        });
        *self = CtTemplateCache { news, ..CtTemplateCache::default() };
    }

    /// A copy for another thread, which is told of all changes from now on.
    pub(crate) fn another(&mut self) -> CtTemplateCache {
        self.news.get_or_insert_default();
        CtTemplateCache { news: None, ..self.clone() }
    }

    /// What changed since the last call.
    pub(crate) fn news(&mut self) -> Vec<TemplateNews> {
        self.news.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Does what another thread's cache did.
    pub(crate) fn follow(&mut self, news: &TemplateNews, table: &Table) {
        match news {
            TemplateNews::Clear => self.clear(),
            TemplateNews::Keep(kind, mask, meets, flow) => {
                self.keep(*kind, (**mask).clone(), meets.clone(), flow.clone(), table);
            }
        }
    }

    /// A template by its number.
    pub(super) fn get(&self, number: u32) -> Option<&CtTemplate> {
        self.list.get(number as usize).map(|t| &**t)
    }

    /// A bucket by its number.
    pub(super) fn bucket(&self, number: u32) -> Option<&Bucket> {
        self.buckets.get(number as usize)
    }

    /// The next bucket that a packet's key belongs to, from the `from`th mask on: which mask that is, and the bucket's
    /// number. The mask at `first` comes first, and of its buckets the `likely` one, as packets in a row mostly go the same
    /// way.
    pub(super) fn next_bucket(
        &self,
        key: &PackedKey,
        table: &Table,
        (first, likely): (usize, u32),
        from: usize,
    ) -> Option<(usize, u32)> {
        let subtables = self.kinds.get(key.kind()?)?;
        // One more, as masks may have been forgotten since and there is none at `first`.
        (from..=subtables.len()).find_map(|n| {
            let u = subtables.get(turn(first, n))?;
            let narrow = u.mask.of(key.blocks());
            let own = narrow.get(..key.blocks().len())?;
            if n == 0 && self.bucket(likely).is_some_and(|b| b.under == u.number && *b.key == *own.as_flattened()) {
                return Some((n, likely));
            }
            u.keys.find(table.hash(own), |n| self.is(*n, own)).map(|number| (n, *number))
        })
    }

    fn is(&self, number: u32, key: &[[u64; BLOCK]]) -> bool {
        self.bucket(number).is_some_and(|b| *b.key == *key.as_flattened())
    }

    /// Valid templates, a line each.
    pub(crate) fn lines(&self, cache: &Cache, now: Duration) -> impl Iterator<Item = Shown> {
        let now = now.as_nanos() as u64;
        let keys = self.kinds.iter().flatten().flat_map(|u| u.keys.iter().map(move |k| (u, k)));
        let groups = keys.filter_map(|(u, k)| Some((u, self.bucket(*k)?)));
        let groups = groups.flat_map(|(u, k)| k.all().map(move |g| (u, g)));
        let all = groups.flat_map(|(u, (g, chosen))| g.flows.values().map(move |i| (u, g, chosen.clone(), i)));
        all.filter_map(move |(u, g, chosen, i)| {
            let flow = self.get(*i).filter(|f| cache.table.fresh(&f.entry))?;
            addresses_hold(&flow.entry, &cache.views, now).then_some(())?;
            shown(flow, &u.mask, (chosen, &g.passes), &cache.table.masks)
        })
    }

    /// Valid templates as they are needed for their sections alone.
    pub(crate) fn ways(&self, cache: &Cache, now: Duration) -> impl Iterator<Item = Shown> {
        let now = now.as_nanos() as u64;
        let valid =
            move |t: &&Arc<CtTemplate>| cache.table.fresh(&t.entry) && addresses_hold(&t.entry, &cache.views, now);
        self.list.iter().filter(valid).map(|t| Shown::way(&t.entry, t.example.clone()))
    }

    /// Adds a template for keys of this kind under a mask.
    pub(crate) fn keep(&mut self, kind: usize, mask: Mask, meets: Meets, flow: Arc<CtTemplate>, table: &Table) {
        if self.list.len() >= MOST {
            self.clear();
        }
        let CtTemplateCache { kinds, masks, buckets, list, news } = self;
        let Some(subtables) = kinds.get_mut(kind) else { return };
        if let Some(n) = news {
            n.push(TemplateNews::Keep(kind, Box::new(mask.clone()), meets.clone(), flow.clone()));
        }
        if subtables.iter().all(|u| !u.mask.same(&mask)) {
            if subtables.len() >= MASKS {
                subtables.clear();
            }
            *masks += 1;
            subtables.push(Subtable { mask: mask.clone(), number: *masks, keys: HashTable::new() });
        }
        let Some(u) = subtables.iter_mut().find(|u| u.mask.same(&mask)) else { return };
        let own = flow.entry.parts().0;
        let own_hash = table.hash(own);
        let known = u.keys.find(own_hash, |n| buckets.get(*n as usize).is_some_and(|b| *b.key == *own.as_flattened()));
        let number = known.copied().unwrap_or_else(|| {
            let number = buckets.len() as u32;
            let (key, under) = (own.as_flattened().into(), u.number);
            buckets.push(Bucket { key, under, groups: Vec::new(), forks: Vec::new() });
            let hash = |n: &u32| buckets.get(*n as usize).map_or(0, |b| table.hash(b.key.as_chunks().0));
            u.keys.insert_unique(own_hash, number, hash);
            number
        });
        let Some(bucket) = buckets.get_mut(number as usize) else { return };
        let alike = bucket.of_choices(&meets.choices);
        let Meets { passes, tuple, .. } = meets;
        let place = alike.iter().position(|g| g.tuple == tuple && g.passes == passes);
        let place = place.unwrap_or_else(|| {
            if alike.len() >= GROUPS {
                alike.clear();
            }
            alike.push(Group { passes, tuple, flows: HashMap::new() });
            alike.len() - 1
        });
        let Some(group) = alike.get_mut(place) else { return };
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
        Outcome::Again { state, .. } => (*state, (0, 0), (0, 0)),
        Outcome::Unrelated | Outcome::Broken => (flag::INV | flag::TRK, (0, 0), (0, 0)),
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
    let mut text = format!("ct_state({words}),ct_zone({:#x})", p.zone.0);
    let mut put = |name: &str, value: u128, bits: u128, all: u128| match bits {
        0 => {}
        bits if bits == all => text += &format!(",{name}({value:#x})"),
        bits => text += &format!(",{name}({:#x}/{bits:#x})", value & bits),
    };
    put("ct_mark", mark.into(), bits.0.into(), u32::MAX.into());
    put("ct_label", label, bits.1, u128::MAX);
    text
}

#[cfg(test)]
mod tests {
    use super::{Fields, Tuple, fields, turn};
    use crate::xlate::selection::Selection;
    use openflow_rs::{Bucket, FieldId as F, Group};
    use proptest::prelude::*;

    proptest! {
        /// A template's packets choose as the walk that made it did.
        #[test]
        fn a_tuple_chooses_as_its_fields_do(
            (v6, src, dst) in any::<(bool, u128, u128)>(),
            (proto, sport, dport) in (prop::sample::select(&[1u8, 6, 17, 50, 58, 132]), any::<u16>(), any::<u16>()),
            (param, own, zero) in any::<(u64, bool, bool)>(),
        ) {
            let most = if zero { 0 } else if v6 { u128::MAX } else { u128::from(u32::MAX) };
            let t = Tuple {
                v6, proto, src: src & most, dst: dst & most, sport, dport,
                icmp_type: sport as u8, icmp_code: dport as u8,
            };
            let mut g = Group { buckets: (0..97).map(|id| Bucket::new(id, 1, Vec::new())).collect(), ..Group::default() };
            g.selection.param = param;
            if own {
                g.selection.name = "hash".into();
                g.selection.fields = vec![(F::IpProto, u128::MAX), (F::TcpSrc, 0xff), (F::IpSrc, u128::MAX)];
            }
            let selection = Selection::new(&g, &(0..97).collect::<Vec<_>>());
            let (f, key) = (Fields::of(&t), fields(&t));
            prop_assert_eq!(selection.bucket_of(&f.ends, || &key), selection.bucket(&key));
        }
    }

    #[test]
    fn each_place_has_its_turn_once() {
        for first in 0..5 {
            let mut all: Vec<usize> = (0..5).map(|n| turn(first, n)).collect();
            assert_eq!(all[0], first);
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4]);
        }
        // One that is not there any more takes a turn in vain.
        assert_eq!((0..=3).map(|n| turn(7, n)).collect::<Vec<_>>(), [7, 0, 1, 2]);
    }
}
