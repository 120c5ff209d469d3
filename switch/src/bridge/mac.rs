//! MAC learning (ovs-vswitchd.conf.db(5), mac-aging-time).

use crate::stamps::StampTable;
use hashbrown::HashMap;
use openflow_rs::PortNo;
use packet::VlanId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Default age at which an address is forgotten.
pub const AGE: Duration = Duration::from_secs(300);
/// Default number of addresses.
pub const LIMIT: usize = 8192;

/// Upper bound of the configurable limit.
const MOST: usize = 1 << 20;

/// Of so many addresses of a port one is forgotten when the table is full.
const EVICTED: usize = 64;

/// The time of an address that does not age.
const NEVER: u64 = u64::MAX;

/// What flow caches check; clones share storage.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    /// By slot: a stamp that differs from that of any other address or port before, and when the address was last seen
    /// ([`NEVER`]: it does not age).
    live: StampTable,
    /// How many addresses were learned anew.
    arrivals: Arc<AtomicU64>,
    /// Age at which an address is forgotten, in nanoseconds.
    age: u64,
}

impl Shared {
    /// Whether a lookup still finds an address at its port.
    #[inline(always)]
    pub(crate) fn finds(&self, p: Place, now: u64) -> bool {
        let (stamp, at) = self.live.get(p.slot);
        stamp == p.stamp && at.saturating_add(self.age) > now
    }

    /// Whether an address is still where it was, however old.
    #[inline(always)]
    pub(crate) fn stays(&self, p: Place) -> bool {
        self.live.stays(p.slot, p.stamp)
    }

    /// Refreshes an address; false if it has moved or is forgotten.
    #[inline(always)]
    pub(crate) fn refresh(&self, p: Place, now: u64) -> bool {
        let Some(at) = self.live.touch(p.slot, p.stamp, now) else { return false };
        if at.saturating_add(self.age) <= now {
            self.arrivals.fetch_add(1, Relaxed);
        }
        true
    }

    /// Moves whenever a lookup that found nothing might find something.
    #[inline(always)]
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(Relaxed)
    }
}

/// Counters of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacStats {
    /// Learned.
    pub learned: u64,
    /// Forgotten for their age.
    pub expired: u64,
    /// Seen at another port.
    pub moved: u64,
    /// Forgotten to make room for others.
    pub evicted: u64,
}

/// An address that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Known {
    /// Where.
    pub port: PortNo,
    /// VLAN.
    pub vlan: VlanId,
    /// Address.
    pub mac: u64,
    /// When it was last seen.
    pub seen: Duration,
    /// Rises with each address that is learned or moves.
    pub order: u64,
    /// Static (set by an operator).
    pub fixed: bool,
}

/// Where an address is.
#[derive(Clone, Copy, Debug)]
struct Slot {
    port: PortNo,
    /// Put there by hand, at this time: it neither moves nor ages.
    fixed: Option<Duration>,
}

/// Which port an address was last seen at, by VLAN.
#[derive(Debug)]
pub struct MacTable {
    index: HashMap<(VlanId, u64), u32>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    stamps: u64,
    /// Beside `slots`.
    shared: Shared,
    /// Counters of events.
    pub stats: MacStats,
    limit: usize,
    /// VLANs in which no address is learned.
    floods: BTreeSet<VlanId>,
}

/// An address at a port, for the flow cache: it holds until the address moves or is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) slot: u32,
    pub(crate) stamp: u64,
}

impl Default for MacTable {
    fn default() -> Self {
        MacTable {
            index: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            stamps: 0,
            shared: Shared { live: StampTable::new(MOST), arrivals: Arc::default(), age: AGE.as_nanos() as u64 },
            stats: MacStats::default(),
            limit: LIMIT,
            floods: BTreeSet::new(),
        }
    }
}

impl MacTable {
    /// Learns a source address; multicast sources are not learned.
    pub fn learn(&mut self, vlan: VlanId, mac: u64, port: PortNo, now: Duration) {
        if mac >> 40 & 1 != 0 || self.floods_in(vlan) {
            return;
        }
        let time = now.as_nanos() as u64;
        if let Some(slot) = self.index.get(&(vlan, mac)).copied() {
            if let Some(Some(s)) = self.slots.get_mut(slot as usize).filter(|s| s.is_some_and(|s| s.fixed.is_none())) {
                let (stamp, at) = self.shared.live.get(slot);
                if at.saturating_add(self.shared.age) <= time {
                    self.shared.arrivals.fetch_add(1, Relaxed);
                }
                let moves = s.port != port;
                (self.stamps, self.stats.moved) = (self.stamps + u64::from(moves), self.stats.moved + u64::from(moves));
                s.port = port;
                self.shared.live.set(slot, if moves { self.stamps } else { stamp }, time);
            }
            return;
        }
        if self.index.len() >= self.limit {
            self.expire(now);
            while self.index.len() >= self.limit {
                if !self.evict() {
                    return;
                }
            }
        }
        if self.put(vlan, mac, port, time, None) {
            self.stats.learned += 1;
        }
    }

    /// Makes room in a full table: the port with the most addresses loses those that were not seen for the longest time, so that
    /// one port cannot push others' addresses out. At a time it loses one in [`EVICTED`] of them, so that a flood of new
    /// addresses does not look through the table for each. False: all were put there by hand.
    fn evict(&mut self) -> bool {
        let mut by_port: HashMap<PortNo, Vec<(u64, VlanId, u64)>> = HashMap::new();
        for ((vlan, mac), i) in &self.index {
            if let Some(Some(s)) = self.slots.get(*i as usize)
                && s.fixed.is_none()
            {
                by_port.entry(s.port).or_default().push((self.shared.live.get(*i).1, *vlan, *mac));
            }
        }
        let Some((_, mut list)) = by_port.into_iter().max_by_key(|(port, list)| (list.len(), port.0)) else {
            return false;
        };
        let last = (list.len() / EVICTED).max(1) - 1;
        list.select_nth_unstable(last);
        for (_, vlan, mac) in list.into_iter().take(last + 1) {
            self.remove(vlan, mac);
            self.stats.evicted += 1;
        }
        true
    }

    /// Puts an address at a port for good, wherever it was before. False: it was put there by hand already, or there is no
    /// room.
    pub fn fix(&mut self, vlan: VlanId, mac: u64, port: PortNo, now: Duration) -> bool {
        if self.seen(vlan, mac).is_some_and(|(_, s)| s.fixed.is_some() && s.port == port) {
            return false;
        }
        self.remove(vlan, mac);
        self.put(vlan, mac, port, NEVER, Some(now))
    }

    /// Takes an address off that was put there by hand; false if there is none.
    pub fn release(&mut self, vlan: VlanId, mac: u64) -> bool {
        let fixed = self.seen(vlan, mac).is_some_and(|(_, s)| s.fixed.is_some());
        if fixed {
            self.remove(vlan, mac);
        }
        fixed
    }

    fn remove(&mut self, vlan: VlanId, mac: u64) {
        if let Some(slot) = self.index.remove(&(vlan, mac)) {
            self.slots.get_mut(slot as usize).into_iter().for_each(|s| *s = None);
            self.shared.live.set(slot, 0, 0);
            self.free.push(slot);
        }
    }

    fn put(&mut self, vlan: VlanId, mac: u64, port: PortNo, time: u64, fixed: Option<Duration>) -> bool {
        let slot = match self.free.pop() {
            Some(i) => i,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        self.stamps += 1;
        if let Some(s) = self.slots.get_mut(slot as usize)
            && self.shared.live.set(slot, self.stamps, time)
        {
            *s = Some(Slot { port, fixed });
            self.index.insert((vlan, mac), slot);
            self.shared.arrivals.fetch_add(1, Relaxed);
            return true;
        }
        self.free.push(slot);
        false
    }

    fn seen(&self, vlan: VlanId, mac: u64) -> Option<(u32, Slot)> {
        let slot = *self.index.get(&(vlan, mac))?;
        Some((slot, (*self.slots.get(slot as usize)?)?))
    }

    /// Has addresses in these VLANs not be learned, so that packets to them go to all ports (`Bridge:flood_vlans` of
    /// ovs-vswitchd.conf.db(5)). Where that changes, all addresses are forgotten; whether it did.
    pub fn set_flood_vlans(&mut self, vlans: BTreeSet<VlanId>) -> bool {
        let changed = self.floods != vlans;
        if changed {
            self.floods = vlans;
            self.retain(|_, _| false);
        }
        changed
    }

    /// Whether packets in a VLAN go to all ports, wherever their addresses are.
    pub(crate) fn floods_in(&self, vlan: VlanId) -> bool {
        self.floods.contains(&vlan)
    }

    /// Where an address is.
    pub fn lookup(&self, vlan: VlanId, mac: u64, now: Duration) -> Option<PortNo> {
        if self.floods_in(vlan) {
            return None;
        }
        let (slot, s) = self.seen(vlan, mac)?;
        let at = self.shared.live.get(slot).1;
        (at.saturating_add(self.shared.age) > now.as_nanos() as u64).then_some(s.port)
    }

    /// The place of an address that is known at a port, however old.
    pub(crate) fn place(&self, vlan: VlanId, mac: u64, port: PortNo) -> Option<Place> {
        let (slot, _) = self.seen(vlan, mac).filter(|(_, s)| s.port == port)?;
        Some(Place { slot, stamp: self.shared.live.get(slot).0 })
    }

    /// What flow caches look at.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Sets the age at which an address is forgotten, and how many addresses there are at most.
    pub fn set_limits(&mut self, age: Duration, addresses: usize) {
        self.limit = addresses.min(MOST);
        self.shared.age = age.as_nanos() as u64;
    }

    /// Addresses at most.
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn retain(&mut self, keep: impl Fn(&Slot, u64) -> bool) {
        let MacTable { index, slots, free, shared, .. } = self;
        index.retain(|_, i| {
            let Some(s) = slots.get_mut(*i as usize) else { return false };
            let stays = s.as_ref().is_some_and(|slot| keep(slot, shared.live.get(*i).1));
            if !stays {
                *s = None;
                shared.live.set(*i, 0, 0);
                free.push(*i);
            }
            stays
        });
    }

    /// Forgets old addresses.
    pub fn expire(&mut self, now: Duration) {
        let (age, now, before) = (self.shared.age, now.as_nanos() as u64, self.index.len());
        self.retain(|_, at| at.saturating_add(age) > now);
        self.stats.expired += (before - self.index.len()) as u64;
    }

    /// Forgets a port's addresses.
    pub fn forget_port(&mut self, port: PortNo) {
        self.retain(|s, _| s.port != port);
    }

    /// Forgets an address, unless it was put there by hand.
    pub fn forget(&mut self, vlan: VlanId, mac: u64) {
        if self.seen(vlan, mac).is_some_and(|(_, s)| s.fixed.is_none()) {
            self.remove(vlan, mac);
        }
    }

    /// Forgets all but those put there by hand.
    pub fn flush(&mut self) {
        self.retain(|s, _| s.fixed.is_some());
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.retain(|_, _| false);
        self.stats = MacStats::default();
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Known> {
        self.index.iter().filter_map(|((vlan, mac), i)| {
            let s = (*self.slots.get(*i as usize)?)?;
            let (order, at) = self.shared.live.get(*i);
            let seen = s.fixed.unwrap_or_else(|| Duration::from_nanos(at));
            let fixed = s.fixed.is_some();
            Some(Known { port: s.port, vlan: *vlan, mac: *mac, seen, order, fixed })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLAN: VlanId = VlanId::NONE;

    /// A table that is full forgets the oldest addresses of the port that has the most, whoever asks for room.
    #[test]
    fn a_port_with_many_addresses_pushes_out_its_own() {
        let mut t = MacTable::default();
        t.set_limits(AGE, 10);
        let at = Duration::from_secs;
        for mac in 0..3 {
            t.learn(VLAN, mac, PortNo(1), at(mac));
        }
        t.fix(VLAN, 90, PortNo(2), at(0));
        for mac in 10..16 {
            t.learn(VLAN, mac, PortNo(2), at(mac));
        }
        t.learn(VLAN, 10, PortNo(2), at(20));
        // The second port has six, and one by hand.
        for (n, gone) in [(30, 11), (31, 12)] {
            assert!(t.lookup(VLAN, gone, at(n)).is_some());
            t.learn(VLAN, n, PortNo(1), at(n));
            assert_eq!((t.index.len(), t.lookup(VLAN, gone, at(n))), (10, None));
        }
        // Now the first one has five, the second one four.
        t.learn(VLAN, 33, PortNo(3), at(33));
        assert_eq!((t.lookup(VLAN, 0, at(33)), t.lookup(VLAN, 1, at(33))), (None, Some(PortNo(1))));
        assert_eq!((t.stats.evicted, t.lookup(VLAN, 90, at(33))), (3, Some(PortNo(2))));
        t.set_limits(AGE, 4);
        t.learn(VLAN, 34, PortNo(3), at(34));
        assert_eq!((t.index.len(), t.lookup(VLAN, 34, at(34))), (4, Some(PortNo(3))));
        t.clear();
        for mac in 0..4 {
            t.fix(VLAN, mac, PortNo(1), at(40));
        }
        t.learn(VLAN, 9, PortNo(1), at(40));
        assert_eq!(t.lookup(VLAN, 9, at(40)), None, "what was put there by hand stays");
    }
}
