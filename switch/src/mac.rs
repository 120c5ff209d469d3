//! MAC learning (ovs-vswitchd.conf.db(5), mac-aging-time).

use hashbrown::HashMap;
use openflow_rs::PortNo;
use std::time::Duration;

/// Default age at which an address is forgotten.
pub const AGE: Duration = Duration::from_secs(300);
/// Default number of addresses.
pub const LIMIT: usize = 8192;

/// Where an address was last seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    port: PortNo,
    at: Duration,
    /// Put there by hand: it neither moves nor ages.
    fixed: bool,
    /// Unlike that of any other address or port before.
    stamp: u64,
}

impl Seen {
    fn holds(&self, age: Duration, now: Duration) -> bool {
        self.fixed || self.at + age > now
    }
}

/// What became of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacStats {
    /// Learned.
    pub learned: u64,
    /// Forgotten for their age.
    pub expired: u64,
    /// Seen at another port.
    pub moved: u64,
}

/// An address that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Known {
    /// Where.
    pub port: PortNo,
    /// VLAN.
    pub vlan: u16,
    /// Address.
    pub mac: u64,
    /// When it was last seen.
    pub seen: Duration,
    /// Put there by hand.
    pub fixed: bool,
}

/// Which port an address was last seen at, by VLAN.
#[derive(Debug)]
pub struct MacTable {
    index: HashMap<(u16, u64), u32>,
    slots: Vec<Option<Seen>>,
    free: Vec<u32>,
    stamps: u64,
    /// How often an address became known that was not.
    arrivals: u64,
    /// What became of addresses.
    pub stats: MacStats,
    /// Age at which an address is forgotten.
    pub age: Duration,
    /// Most addresses.
    pub limit: usize,
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
            arrivals: 0,
            stats: MacStats::default(),
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
        if let Some(slot) = self.index.get(&(vlan, mac)).copied() {
            let (age, stamp) = (self.age, self.stamps + 1);
            if let Some(Some(s)) = self.slots.get_mut(slot as usize).filter(|s| s.is_some_and(|s| !s.fixed)) {
                self.arrivals += u64::from(s.at + age <= now);
                s.at = now;
                if s.port != port {
                    (s.port, s.stamp, self.stamps) = (port, stamp, stamp);
                    self.stats.moved += 1;
                }
            }
            return;
        }
        if self.index.len() >= self.limit {
            self.expire(now);
            if self.index.len() >= self.limit {
                return;
            }
        }
        self.stats.learned += 1;
        self.put(vlan, mac, port, now, false);
    }

    /// Puts an address at a port for good. False: it was put somewhere by hand already.
    pub fn fix(&mut self, vlan: u16, mac: u64, port: PortNo, now: Duration) -> bool {
        if self.seen(vlan, mac).is_some_and(|(_, s)| s.fixed) {
            return false;
        }
        self.remove(vlan, mac);
        self.put(vlan, mac, port, now, true);
        true
    }

    /// Takes an address off that was put there by hand; false if there is none.
    pub fn release(&mut self, vlan: u16, mac: u64) -> bool {
        let fixed = self.seen(vlan, mac).is_some_and(|(_, s)| s.fixed);
        if fixed {
            self.remove(vlan, mac);
        }
        fixed
    }

    fn remove(&mut self, vlan: u16, mac: u64) {
        if let Some(slot) = self.index.remove(&(vlan, mac)) {
            if let Some(s) = self.slots.get_mut(slot as usize) {
                *s = None;
            }
            self.free.push(slot);
        }
    }

    fn put(&mut self, vlan: u16, mac: u64, port: PortNo, now: Duration, fixed: bool) {
        self.stamps += 1;
        self.arrivals += 1;
        let seen = Some(Seen { port, at: now, fixed, stamp: self.stamps });
        let slot = match self.free.pop() {
            Some(i) => i,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        if let Some(s) = self.slots.get_mut(slot as usize) {
            *s = seen;
        }
        self.index.insert((vlan, mac), slot);
    }

    fn seen(&self, vlan: u16, mac: u64) -> Option<(u32, &Seen)> {
        let slot = *self.index.get(&(vlan, mac))?;
        Some((slot, self.slots.get(slot as usize)?.as_ref()?))
    }

    /// Where an address is.
    pub fn lookup(&self, vlan: u16, mac: u64, now: Duration) -> Option<PortNo> {
        self.seen(vlan, mac).filter(|(_, s)| s.holds(self.age, now)).map(|(_, s)| s.port)
    }

    /// The place of an address that is known at a port, however old.
    pub(crate) fn place(&self, vlan: u16, mac: u64, port: PortNo) -> Option<Place> {
        self.seen(vlan, mac).filter(|(_, s)| s.port == port).map(|(slot, s)| Place { slot, stamp: s.stamp })
    }

    fn at(&self, p: Place) -> Option<&Seen> {
        self.slots.get(p.slot as usize)?.as_ref().filter(|s| s.stamp == p.stamp)
    }

    /// Whether an address is still where it was, however old.
    pub(crate) fn stays(&self, p: Place) -> bool {
        self.at(p).is_some()
    }

    /// Whether a lookup still finds an address where it was.
    pub(crate) fn finds(&self, p: Place, now: Duration) -> bool {
        self.at(p).is_some_and(|s| s.holds(self.age, now))
    }

    /// A packet came from an address that stays where it was.
    pub(crate) fn refresh(&mut self, p: Place, now: Duration) {
        let age = self.age;
        if let Some(s) = self.slots.get_mut(p.slot as usize).and_then(Option::as_mut).filter(|s| s.stamp == p.stamp) {
            self.arrivals += u64::from(s.at + age <= now);
            s.at = now;
        }
    }

    /// Moves whenever a lookup that found nothing might find something.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    fn retain(&mut self, keep: impl Fn(&Seen) -> bool) {
        let MacTable { index, slots, free, .. } = self;
        index.retain(|_, i| {
            let Some(s) = slots.get_mut(*i as usize) else { return false };
            let stays = s.as_ref().is_some_and(&keep);
            if !stays {
                *s = None;
                free.push(*i);
            }
            stays
        });
    }

    /// Forgets old addresses.
    pub fn expire(&mut self, now: Duration) {
        let (age, before) = (self.age, self.index.len());
        self.retain(|s| s.holds(age, now));
        self.stats.expired += (before - self.index.len()) as u64;
    }

    /// Forgets a port's addresses.
    pub fn forget_port(&mut self, port: PortNo) {
        self.retain(|s| s.port != port);
    }

    /// Forgets all but those put there by hand.
    pub fn flush(&mut self) {
        self.retain(|s| s.fixed);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.retain(|_| false);
        self.stats = MacStats::default();
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Known> {
        self.index.iter().filter_map(|((v, m), i)| {
            let s = self.slots.get(*i as usize)?.as_ref()?;
            Some(Known { port: s.port, vlan: *v, mac: *m, seen: s.at, fixed: s.fixed })
        })
    }
}
