//! MAC learning (ovs-vswitchd.conf.db(5), mac-aging-time).

use openflow_rs::PortNo;
use std::collections::HashMap;
use std::time::Duration;

/// Default age at which an address is forgotten.
pub const AGE: Duration = Duration::from_secs(300);
/// Default number of addresses.
pub const LIMIT: usize = 8192;

/// Which port an address was last seen at, by VLAN.
#[derive(Debug)]
pub struct MacTable {
    entries: HashMap<(u16, u64), (PortNo, Duration)>,
    /// Age at which an address is forgotten.
    pub age: Duration,
    /// Most addresses.
    pub limit: usize,
}

impl Default for MacTable {
    fn default() -> Self {
        MacTable { entries: HashMap::new(), age: AGE, limit: LIMIT }
    }
}

impl MacTable {
    /// Learns a source address; multicast sources are not learned.
    pub fn learn(&mut self, vlan: u16, mac: u64, port: PortNo, now: Duration) {
        if mac >> 40 & 1 != 0 {
            return;
        }
        if self.entries.len() >= self.limit && !self.entries.contains_key(&(vlan, mac)) {
            self.expire(now);
            if self.entries.len() >= self.limit {
                return;
            }
        }
        self.entries.insert((vlan, mac), (port, now));
    }

    /// Where an address is.
    pub fn lookup(&self, vlan: u16, mac: u64, now: Duration) -> Option<PortNo> {
        self.entries.get(&(vlan, mac)).filter(|(_, t)| *t + self.age > now).map(|(p, _)| *p)
    }

    /// The port that an address is known at, however old.
    pub(crate) fn port_of(&self, vlan: u16, mac: u64) -> Option<PortNo> {
        self.entries.get(&(vlan, mac)).map(|(p, _)| *p)
    }

    /// Forgets old addresses.
    pub fn expire(&mut self, now: Duration) {
        let age = self.age;
        self.entries.retain(|_, (_, t)| *t + age > now);
    }

    /// Forgets a port's addresses.
    pub fn forget_port(&mut self, port: PortNo) {
        self.entries.retain(|_, (p, _)| *p != port);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// (port, VLAN, address, time last seen) of all.
    pub fn iter(&self) -> impl Iterator<Item = (PortNo, u16, u64, Duration)> {
        self.entries.iter().map(|((v, m), (p, t))| (*p, *v, *m, *t))
    }
}
