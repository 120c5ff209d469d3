//! Zones: limits of connections, and timeouts (`CT_Zone`, `CT_Timeout_Policy`, `dpctl/ct-set-limits`).

use super::{Conntrack, Phase, Timeouts, Zone};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Why a connection was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The limit of the zone is reached.
    ZoneLimit,
    /// The limit of the table is reached.
    Full,
    /// No address or port is left to translate to.
    NoPort,
}

/// Connections in each zone.
#[derive(Debug, Default)]
pub(super) struct Zones {
    /// By zone, up to the highest that has had connections.
    counts: Vec<u32>,
    limits: HashMap<Zone, u32>,
    /// Zones that admit no new connection.
    closed: HashSet<Zone>,
    /// Default limit; 0: none.
    default: u32,
}

impl Zones {
    /// A zone has got so many connections.
    pub(super) fn come(&mut self, zone: Zone, more: u32) {
        let zone = zone.index();
        if self.counts.len() <= zone {
            self.counts.resize(zone + 1, 0);
        }
        if let Some(n) = self.counts.get_mut(zone) {
            *n += more;
        }
    }

    /// A zone has lost one.
    pub(super) fn gone(&mut self, zone: Zone) {
        if let Some(n) = self.counts.get_mut(zone.index()) {
            *n -= 1;
        }
    }

    /// Whether the zone has no connection.
    pub(super) fn is_empty(&self, zone: Zone) -> bool {
        self.count(zone) == 0
    }

    fn count(&self, zone: Zone) -> u32 {
        self.counts.get(zone.index()).copied().unwrap_or(0)
    }

    fn limit(&self, zone: Zone) -> u32 {
        self.limits.get(&zone).copied().unwrap_or(self.default)
    }

    /// Whether the zone has a limit, for which its connections have to be counted one by one.
    pub(super) fn limited(&self, zone: Zone) -> bool {
        self.limit(zone) != 0 || self.closed.contains(&zone)
    }

    /// Whether the zone admits no more.
    pub(super) fn full(&self, zone: Zone) -> bool {
        let limit = self.limit(zone);
        limit != 0 && self.count(zone) >= limit || limit == 0 && self.closed.contains(&zone)
    }
}

/// The timeouts of a zone.
pub(super) fn of(all: &HashMap<Zone, Timeouts>, zone: Zone) -> Timeouts {
    all.get(&zone).copied().unwrap_or_default()
}

impl Conntrack {
    pub(super) fn timeout(&self, zone: Zone, phase: Phase) -> Duration {
        of(&self.timeouts, zone).get(phase)
    }

    /// Sets the timeouts of all zones with a policy. Connections adopt them with their next packet.
    pub(crate) fn set_timeouts(&mut self, timeouts: HashMap<Zone, Timeouts>) {
        self.timeouts = timeouts;
    }

    /// Sets the limit of a zone, or the default limit; 0: no limit.
    pub fn set_limit(&mut self, zone: Option<Zone>, limit: u32) {
        match zone {
            Some(z) => {
                self.zones.closed.remove(&z);
                self.zones.limits.insert(z, limit);
            }
            None => self.zones.default = limit,
        }
    }

    /// Closes a zone for new connections until it gets another limit.
    pub fn close_zone(&mut self, zone: Zone) {
        self.zones.limits.insert(zone, 0);
        self.zones.closed.insert(zone);
    }

    /// Removes the limit of a zone; false if it has none of its own.
    pub fn delete_limit(&mut self, zone: Zone) -> bool {
        self.zones.closed.remove(&zone);
        self.zones.limits.remove(&zone).is_some()
    }

    /// The default limit, and (zone, limit, connections) of zones with a limit of their own, or of the zones given.
    pub fn limits(&self, zones: &[Zone]) -> (u32, Vec<(Zone, u32, u32)>) {
        let mut list: Vec<Zone> =
            if zones.is_empty() { self.zones.limits.keys().copied().collect() } else { zones.to_vec() };
        list.sort_unstable();
        let row = |z: Zone| (z, self.zones.limit(z), self.zones.count(z));
        (self.zones.default, list.into_iter().map(row).collect())
    }
}
