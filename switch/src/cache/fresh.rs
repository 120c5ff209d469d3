//! Flows of packets that open connections.
//!
//! ```text
//!   frame ─► a flow under a mask? ─► no connection in any of its zones? ─► opened, all at once ─► its steps
//!                    └─no─► the tables            └─no─► the tables
//! ```
//! What a walk does that opens connections follows, as for wide flows ([`wide`](super::wide)), from some bits of the packet, from its having
//! no connection in the zones that it passes, and from the addresses and ports that are chosen for it. The first are the flow's key, the second is
//! looked at for each packet, and of the third lookups and actions may only have seen what is the same for all. So others with the
//! same bits are taken through the same zones ([`Conntrack::open`](crate::conntrack::Conntrack::open)), and repeat the same steps with their own tuples. Packets
//! whose tuple is looked for in vain are few among those of established connections, so these flows are asked last, before the tables.

use super::Cache;
use super::code::Entry;
use super::key::{PackedKey, SHAPES};
use super::replay::serve;
use super::show::{Shown, line};
use super::table::Table;
use super::wide::{Last, Mask};
use crate::buf::PacketBuf;
use crate::conntrack::{Opening, Packet, Plan};
use crate::ctaction::arriving;
use crate::switch::{Outputs, Switch};
use hashbrown::HashTable;
use packet::{be16, checksum, ipproto};

/// Flows at most; beyond it all are forgotten.
const MOST: usize = 16_384;
/// Masks for a kind of frame; where there are more, those of the kind are forgotten.
const MASKS: usize = 32;

/// A flow.
#[derive(Debug)]
pub(crate) struct Fresh {
    entry: Entry,
    passes: Box<[Opening]>,
}

impl Fresh {
    pub(crate) fn new(entry: Entry, passes: Box<[Opening]>) -> Fresh {
        Fresh { entry, passes }
    }
}

/// Flows whose keys are under the same mask, by number.
#[derive(Debug)]
struct Under {
    mask: Mask,
    flows: HashTable<u32>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct FreshFlows {
    kinds: Box<[Vec<Under>; SHAPES]>,
    list: Vec<Fresh>,
    /// The one found last.
    last: Option<Last>,
    plan: Plan,
}

impl Default for FreshFlows {
    fn default() -> FreshFlows {
        let kinds = Box::new(std::array::from_fn(|_| Vec::new()));
        FreshFlows { kinds, list: Vec::new(), last: None, plan: Plan::default() }
    }
}

impl FreshFlows {
    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        *self = FreshFlows { plan: std::mem::take(&mut self.plan), ..FreshFlows::default() };
    }

    /// Those that are not stale, a line each.
    pub(crate) fn lines(&self, cache: &Cache) -> impl Iterator<Item = Shown> {
        let all = self.kinds.iter().flatten().flat_map(|u| u.flows.iter().map(move |i| (u, i)));
        all.filter_map(|(u, i)| {
            let Fresh { entry, passes } = self.list.get(*i as usize).filter(|f| cache.table.fresh(&f.entry))?;
            let shown = line(entry, Some(&u.mask), &cache.table.masks)?;
            let passes: Vec<String> = passes.iter().map(|p| p.action().to_string()).collect();
            let packets = format!("ct_state(new),{}", shown.packets);
            Some(Shown { packets, actions: format!("{},{}", passes.join(","), shown.actions), ..shown })
        })
    }

    /// Puts a flow of keys like this one, under this mask.
    pub(crate) fn keep(&mut self, key: &PackedKey, mask: Mask, flow: Fresh, table: &Table) {
        let Some(kind) = key.kind() else { return };
        if self.list.len() >= MOST {
            self.clear();
        }
        self.last = None;
        let FreshFlows { kinds, list, .. } = self;
        let Some(kind) = kinds.get_mut(kind) else { return };
        if kind.iter().all(|u| !u.mask.same(&mask)) {
            if kind.len() >= MASKS {
                kind.clear();
            }
            kind.push(Under { mask: mask.clone(), flows: HashTable::new() });
        }
        let Some(u) = kind.iter_mut().find(|u| u.mask.same(&mask)) else { return };
        let own = flow.entry.parts().0;
        let hash = table.hash(own);
        let there = u.flows.find(hash, |i| list.get(*i as usize).is_some_and(|f| f.entry.is(own))).copied();
        match there.and_then(|i| list.get_mut(i as usize)) {
            Some(f) => *f = flow,
            None => {
                let number = list.len() as u32;
                list.push(flow);
                let again = |i: &u32| list.get(*i as usize).map_or(0, |f| table.hash(f.entry.parts().0));
                u.flows.insert_unique(hash, number, again);
            }
        }
    }

    /// The number of a frame's flow.
    fn find(&mut self, key: &PackedKey, frame: &[u8], table: &Table) -> Option<u32> {
        if let Some(l) = &self.last
            && let Some(number) = l.is(key.head(), frame)
        {
            return Some(number);
        }
        for u in self.kinds.get(key.kind()?)? {
            let narrow = u.mask.of(key.blocks());
            let own = narrow.get(..key.blocks().len())?;
            let is = |i: &u32| self.list.get(*i as usize).is_some_and(|f| table.fresh(&f.entry) && f.entry.is(own));
            if let Some(number) = u.flows.find(table.hash(own), is) {
                self.last = Some(Last::new(&u.mask, &narrow, *number));
                return Some(*number);
            }
        }
        None
    }
}

/// A frame as the tracker sees it; none if its checksums do not hold, or it has no ports.
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

impl Switch {
    /// Serves a packet that opens connections as others before it did; gives it back if none did.
    pub(crate) fn open<P: PacketBuf>(
        &mut self,
        key: &PackedKey,
        packet: P,
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
    ) -> Option<P> {
        let Switch { fresh, cache, conntrack, now, openings, .. } = self;
        if fresh.list.is_empty() {
            return Some(packet);
        }
        let Some(number) = fresh.find(key, packet.data(), &cache.table) else { return Some(packet) };
        let Cache { table, views, tallies, stats, .. } = cache;
        let FreshFlows { list, plan, .. } = fresh;
        let Some(Fresh { entry, passes }) = list.get(number as usize) else { return Some(packet) };
        let (lengths, at) = (key.lengths(packet.data().len()), now.as_nanos() as u64);
        if !table.fresh(entry) || entry.checks().any(|c| !views.holds(c, Some(lengths), at)) {
            return Some(packet);
        }
        match seen(&packet, key) {
            Some(p) if conntrack.open(&p, passes, *now, plan) => {}
            _ => return Some(packet),
        }
        openings.opened();
        stats.opened += 1;
        for c in entry.checks() {
            views.pass(c, &lengths, at);
        }
        serve(entry, entry.steps(), packet, (key.end, lengths), (&plan.translated, outer), out, tallies);
        None
    }
}
