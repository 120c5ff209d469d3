//! Connectivity fault management of ports (IEEE 802.1ag, as ovs-vswitchd.conf.db(5) has it): maintenance points say that
//! they are there, and hear whom they reach. Messages, received packets' numbers and the time come in; messages and
//! changes of status go out.
//!
//! A point does not know whom it should hear, as the standard's does: its path works while it hears anybody. It looks at
//! what it heard each 3.5 intervals.
//!
//! ```text
//!              nobody was heard, or somebody reported a fault
//!     works ------------------------------------------------> fault
//!           <------------------------------------------------
//!              somebody was heard, and nobody reported one
//! ```

pub mod points;
mod show;

use crate::config::cfm::{CcmVlan, CfmSpec};
use packet::VlanId;
use packet::ccm::{self, Ccm};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The most peers that a point remembers.
const PEERS: usize = 256;
/// Health is told anew after so many looks.
const LOOKS: u32 = 6;
/// Messages of a healthy peer in that time: one an interval.
const HEALTHY: u32 = LOOKS * 7 / 2;
/// In demand mode the packets of a port are counted no more often than this allows (ovs-vswitchd.conf.db(5),
/// `cfm_demand`).
const DEMAND_INTERVAL: Duration = Duration::from_millis(500);
/// In demand mode a message still has to come within so many intervals.
const DEMAND_PATIENCE: u32 = 100;

/// Reasons of a fault, one bit each (ovs-vswitchd.conf.db(5), `cfm_fault_status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(u8);

impl Faults {
    /// Nobody is heard.
    pub const RECV: Faults = Faults(1);
    /// A peer hears nobody.
    pub const RDI: Faults = Faults(2);
    /// A message of another association came.
    pub const MAID: Faults = Faults(4);
    /// A message of this very point came.
    pub const LOOPBACK: Faults = Faults(8);
    /// There are more peers than can be remembered.
    pub const OVERFLOW: Faults = Faults(16);
    /// An operator says so (`cfm/set-fault`).
    pub const OVERRIDE: Faults = Faults(32);

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self == Faults::default()
    }

    /// The names of those that are there.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (Faults::RECV, "recv"),
            (Faults::RDI, "rdi"),
            (Faults::MAID, "maid"),
            (Faults::LOOPBACK, "loopback"),
            (Faults::OVERFLOW, "overflow"),
            (Faults::OVERRIDE, "override"),
        ];
        all.into_iter().filter(move |(f, _)| self.0 & f.0 != 0).map(|(_, name)| name)
    }

    fn add(&mut self, other: Faults) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(" "))
    }
}

/// What a point says of its path, for columns `cfm_*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CfmStatus {
    /// Why the path does not work.
    pub faults: Faults,
    /// Whether peers are operational; none: only extended ones say so.
    pub remote_up: Option<bool>,
    /// How often the path began or ceased to work.
    pub flaps: u64,
    /// Percent of the messages that should have come; none: not known yet, or there are several peers.
    pub health: Option<u8>,
    /// The peers that were heard.
    pub peers: Vec<u64>,
}

impl CfmStatus {
    /// Whether packets may be sent this way.
    pub fn forwards(&self) -> bool {
        self.faults.is_empty() && self.remote_up != Some(false)
    }
}

/// A point that is heard.
#[derive(Debug, Default)]
struct Peer {
    /// Since the last look.
    heard: bool,
    down: bool,
    /// Healthy messages since health was told.
    healthy: u32,
    /// Its interval was complained about.
    odd: bool,
}

/// The maintenance point of a port.
#[derive(Debug)]
pub struct MaintenancePoint {
    spec: CfmSpec,
    faults: Faults,
    /// Faults that messages since the last look have told of.
    told: Faults,
    /// What an operator says instead.
    forced: Option<bool>,
    flaps: u64,
    remote_up: bool,
    peers: BTreeMap<u64, Peer>,
    /// Those heard before the last look.
    heard: Vec<u64>,
    health: Option<u8>,
    /// Looks until health is told.
    until_health: u32,
    /// It has looked once.
    looked: bool,
    sequence: u32,
    next_send: Duration,
    next_look: Duration,
    /// Packets that the port had received at the last look.
    received: u64,
    /// Until when packets stand for messages.
    vouched: Duration,
}

impl MaintenancePoint {
    /// A point that sends its first message at once.
    pub fn new(spec: CfmSpec, now: Duration) -> MaintenancePoint {
        let mut p = MaintenancePoint {
            spec,
            faults: Faults::default(),
            told: Faults::default(),
            forced: None,
            flaps: 0,
            remote_up: true,
            peers: BTreeMap::new(),
            heard: Vec::new(),
            health: None,
            // One more than usual: this point begins amid its peer's messages.
            until_health: LOOKS + 1,
            looked: false,
            sequence: 0,
            next_send: now,
            next_look: now,
            received: 0,
            vouched: now,
        };
        p.next_look = now + p.look_interval();
        p
    }

    /// Changes what is asked of it. Peers and faults stay.
    pub fn configure(&mut self, spec: CfmSpec, received: u64, now: Duration) {
        let old = std::mem::replace(&mut self.spec, spec);
        if spec.demand && !old.demand {
            self.received = received;
        }
        if (old.code, old.interval) != (spec.code, spec.interval) {
            self.next_send = now;
            self.next_look = now + self.look_interval();
        }
    }

    /// Has it report a fault or none, whatever it finds; none: what it finds.
    pub fn force(&mut self, fault: Option<bool>) {
        self.forced = fault;
    }

    /// 3.5 intervals: three lost messages are a fault.
    fn look_interval(&self) -> Duration {
        let i = self.spec.interval;
        (if self.spec.demand { i.max(DEMAND_INTERVAL) } else { i }) * 7 / 2
    }

    /// When [`MaintenancePoint::poll`] wants to be called next.
    pub fn due(&self) -> Duration {
        self.next_send.min(self.next_look)
    }

    /// Takes a message. Gives what is wrong with it, for the log, once for each peer.
    pub fn receive(&mut self, m: &Ccm, now: Duration) -> Option<String> {
        if m.association != ccm::ASSOCIATION {
            let first = !self.told.names().any(|n| n == "maid");
            self.told.add(Faults::MAID);
            return first.then(|| "received a CCM of another association (MAID)".into());
        }
        let (point, down) = if self.spec.extended { (m.long_point, m.down) } else { (m.point.into(), false) };
        if self.peers.len() >= PEERS && !self.peers.contains_key(&point) {
            let first = !self.told.names().any(|n| n == "overflow");
            self.told.add(Faults::OVERFLOW);
            return first.then(|| format!("MPID {point} is one more than {PEERS}; it is left out"));
        }
        let mut faults = Faults::default();
        if m.defect {
            faults.add(Faults::RDI);
        }
        if point == self.spec.point {
            faults.add(Faults::LOOPBACK);
        }
        if faults.is_empty() && self.spec.demand {
            self.vouched = now + self.spec.interval * DEMAND_PATIENCE;
        }
        self.told.add(faults);
        let own = u16::try_from(self.spec.interval.as_millis()).unwrap_or(u16::MAX);
        let odd = m.interval != self.spec.code || self.spec.extended && m.interval == 0 && m.interval_ms != own;
        let p = self.peers.entry(point).or_default();
        (p.heard, p.down) = (true, down);
        p.healthy += u32::from(faults.is_empty());
        let complain = odd && !p.odd;
        p.odd = odd;
        complain.then(|| format!("MPID {point} sends CCMs at another interval than this side"))
    }

    /// Sends and looks, if that is due. `received` is the number of packets that the port has received.
    pub fn poll(&mut self, received: impl Fn() -> u64, now: Duration) -> Option<Vec<u8>> {
        let frame = (now >= self.next_send).then(|| {
            self.next_send = now + self.spec.interval;
            self.message()
        });
        if now >= self.next_look {
            self.look(received, now);
            self.next_look = now + self.look_interval();
        }
        frame
    }

    fn message(&mut self) -> Vec<u8> {
        self.sequence = self.sequence.wrapping_add(1);
        let s = &self.spec;
        let ms = u16::try_from(s.interval.as_millis()).unwrap_or(u16::MAX);
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (s.point >> shift) as u16);
        let m = Ccm {
            // "... not receiving CCMs themselves" (ovs-vswitchd.conf.db(5), `cfm_fault_status:rdi`).
            defect: self.looked && self.peers.is_empty(),
            interval: s.code,
            sequence: self.sequence,
            // Extended peers read the long number. This one keeps points apart for those who look at the wire.
            point: if s.extended { a ^ b ^ c ^ d } else { d },
            association: ccm::ASSOCIATION,
            interval_ms: if s.code == 0 { ms } else { 0 },
            long_point: if s.extended { s.point } else { 0 },
            down: s.down,
        };
        let vlan = match s.vlan {
            CcmVlan::Fixed(vlan) => vlan,
            CcmVlan::Random => {
                let seed = s.point.wrapping_add(u64::from(self.sequence)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                VlanId::of_tci((seed >> 52) as u16)
            }
        };
        let tag = vlan.get() | u16::from(s.priority) << 13;
        ccm::compose(s.address(), s.source, (tag != 0).then_some(tag), &m)
    }

    /// Finds out who was heard since the last look, and whether the path works.
    fn look(&mut self, received: impl Fn() -> u64, now: Duration) {
        let before = std::mem::replace(&mut self.faults, std::mem::take(&mut self.told));
        self.until_health -= 1;
        if self.until_health == 0 {
            self.until_health = LOOKS;
            self.health = match self.peers.len() {
                0 => Some(0),
                1 => self.peers.values().next().map(|p| (p.healthy * 100 / HEALTHY).min(100) as u8),
                _ => None,
            };
            self.peers.values_mut().for_each(|p| p.healthy = 0);
        }
        // "Demand mode disables itself when there are multiple remote maintenance points."
        let stands = self.spec.demand && {
            let n = received();
            let more = n > std::mem::replace(&mut self.received, n);
            more && self.peers.len() == 1 && now < self.vouched
        };
        self.heard = self.peers.iter().filter(|(_, p)| p.heard).map(|(point, _)| *point).collect();
        self.peers.retain(|_, p| p.heard || stands);
        let speaks = |down| self.peers.values().any(|p| p.heard && p.down == down);
        if speaks(true) || speaks(false) {
            self.remote_up = !speaks(true);
        }
        self.peers.values_mut().for_each(|p| p.heard = false);
        if self.peers.is_empty() {
            self.faults.add(Faults::RECV);
        }
        if before.is_empty() != self.faults.is_empty() {
            self.flaps += 1;
        }
        self.looked = true;
    }

    /// What it says of the path.
    pub fn status(&self) -> CfmStatus {
        CfmStatus {
            faults: match self.forced {
                Some(true) => Faults::OVERRIDE,
                Some(false) => Faults::default(),
                None => self.faults,
            },
            remote_up: self.spec.extended.then_some(self.remote_up),
            flaps: self.flaps,
            health: self.health,
            peers: self.heard.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
