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
    /// Unlike that of any other address or port before.
    stamp: u64,
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
            if let Some(Some(s)) = self.slots.get_mut(slot as usize) {
                self.arrivals += u64::from(s.at + age <= now);
                s.at = now;
                if s.port != port {
                    (s.port, s.stamp, self.stamps) = (port, stamp, stamp);
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
        self.stamps += 1;
        self.arrivals += 1;
        let seen = Some(Seen { port, at: now, stamp: self.stamps });
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
        self.seen(vlan, mac).filter(|(_, s)| s.at + self.age > now).map(|(_, s)| s.port)
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
        self.at(p).is_some_and(|s| s.at + self.age > now)
    }

    /// A packet came from an address; false if it does not stay where it was.
    #[inline(always)]
    pub(crate) fn refresh(&mut self, p: Place, now: Duration) -> bool {
        let age = self.age;
        match self.slots.get_mut(p.slot as usize).and_then(Option::as_mut) {
            Some(s) if s.stamp == p.stamp => {
                self.arrivals += u64::from(s.at + age <= now);
                s.at = now;
                true
            }
            _ => false,
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
        let age = self.age;
        self.retain(|s| s.at + age > now);
    }

    /// Forgets a port's addresses.
    pub fn forget_port(&mut self, port: PortNo) {
        self.retain(|s| s.port != port);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.retain(|_| false);
    }

    /// (port, VLAN, address, time last seen) of all.
    pub fn iter(&self) -> impl Iterator<Item = (PortNo, u16, u64, Duration)> {
        self.index.iter().filter_map(|((v, m), i)| {
            let s = self.slots.get(*i as usize)?.as_ref()?;
            Some((s.port, *v, *m, s.at))
        })
    }
}
