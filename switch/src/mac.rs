//! MAC learning (ovs-vswitchd.conf.db(5), mac-aging-time).

use crate::cache::live::Live;
use hashbrown::HashMap;
use openflow_rs::PortNo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Default age at which an address is forgotten.
pub const AGE: Duration = Duration::from_secs(300);
/// Default number of addresses.
pub const LIMIT: usize = 8192;

/// Addresses at most, whatever is set.
const MOST: usize = 1 << 20;

/// What flow caches look at: clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    /// By slot: a stamp unlike that of any other address or port before, and when the address was last seen.
    live: Live,
    /// How often an address became known that was not.
    arrivals: Arc<AtomicU64>,
    /// [`MacTable::age`] in nanoseconds.
    age: u64,
}

impl Shared {
    /// Whether a lookup still finds an address where it was.
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

    /// A packet came from an address; false if it does not stay where it was.
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

/// Which port an address was last seen at, by VLAN.
#[derive(Debug)]
pub struct MacTable {
    index: HashMap<(u16, u64), u32>,
    slots: Vec<Option<PortNo>>,
    free: Vec<u32>,
    stamps: u64,
    /// Beside `slots`.
    shared: Shared,
    /// Age at which an address is forgotten.
    age: Duration,
    limit: usize,
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
            shared: Shared { live: Live::new(MOST), arrivals: Arc::default(), age: AGE.as_nanos() as u64 },
            age: AGE,
            limit: LIMIT,
        }
    }
}

impl MacTable {
    /// Learns a source address; multicast sources are not learned.
    pub fn learn(&mut self, vlan: u16, mac: u64, port: PortNo, now: Duration) {
        if mac >> 40 & 1 != 0 {
            return;
        }
        let time = now.as_nanos() as u64;
        if let Some(slot) = self.index.get(&(vlan, mac)).copied() {
            if let Some(Some(p)) = self.slots.get_mut(slot as usize) {
                let (stamp, at) = self.shared.live.get(slot);
                if at.saturating_add(self.shared.age) <= time {
                    self.shared.arrivals.fetch_add(1, Relaxed);
                }
                let stamp = if *p == port { stamp } else { self.stamps + 1 };
                (*p, self.stamps) = (port, self.stamps.max(stamp));
                self.shared.live.set(slot, stamp, time);
            }
            return;
        }
        if self.index.len() >= self.limit {
            self.expire(now);
            if self.index.len() >= self.limit {
                return;
            }
        }
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
            *s = Some(port);
            self.index.insert((vlan, mac), slot);
            self.shared.arrivals.fetch_add(1, Relaxed);
        }
    }

    fn seen(&self, vlan: u16, mac: u64) -> Option<(u32, PortNo)> {
        let slot = *self.index.get(&(vlan, mac))?;
        Some((slot, (*self.slots.get(slot as usize)?)?))
    }

    fn at(&self, slot: u32) -> Duration {
        Duration::from_nanos(self.shared.live.get(slot).1)
    }

    /// Where an address is.
    pub fn lookup(&self, vlan: u16, mac: u64, now: Duration) -> Option<PortNo> {
        self.seen(vlan, mac).filter(|(slot, _)| self.at(*slot) + self.age > now).map(|(_, p)| p)
    }

    /// The place of an address that is known at a port, however old.
    pub(crate) fn place(&self, vlan: u16, mac: u64, port: PortNo) -> Option<Place> {
        let (slot, _) = self.seen(vlan, mac).filter(|(_, p)| *p == port)?;
        Some(Place { slot, stamp: self.shared.live.get(slot).0 })
    }

    /// What flow caches look at.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Sets the age at which an address is forgotten, and how many addresses there are at most.
    pub fn limit(&mut self, age: Duration, addresses: usize) {
        (self.age, self.limit) = (age, addresses.min(MOST));
        self.shared.age = age.as_nanos() as u64;
    }

    fn retain(&mut self, keep: impl Fn(PortNo, Duration) -> bool) {
        let MacTable { index, slots, free, shared, .. } = self;
        index.retain(|_, i| {
            let Some(s) = slots.get_mut(*i as usize) else { return false };
            let at = Duration::from_nanos(shared.live.get(*i).1);
            let stays = s.is_some_and(|port| keep(port, at));
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
        let age = self.age;
        self.retain(|_, at| at + age > now);
    }

    /// Forgets a port's addresses.
    pub fn forget_port(&mut self, port: PortNo) {
        self.retain(|p, _| p != port);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.retain(|_, _| false);
    }

    /// (port, VLAN, address, time last seen) of all.
    pub fn iter(&self) -> impl Iterator<Item = (PortNo, u16, u64, Duration)> {
        self.index.iter().filter_map(|((v, m), i)| Some(((*self.slots.get(*i as usize)?)?, *v, *m, self.at(*i))))
    }
}
