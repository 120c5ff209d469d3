//! LLDP agents of ports (IEEE 802.1AB-2016 section 9): they tell of themselves each half minute, and keep what neighbours
//! say for as long as that holds. With `auto_attach` of the bridge they ask a neighbour for its services' VLANs.

mod show;

use crate::config::lldp::LldpSpec;
use openflow_rs::PortNo;
use packet::lldp::{self, Assignment, BRIDGE, Element, Id, Lldpdu, VIRTUAL_SWITCH};
use packet::{Mac, VlanId};
use std::collections::BTreeMap;
use std::time::Duration;
use switch::BridgeId;

/// "msgTxInterval" (section 9.2.5.7).
const INTERVAL: Duration = Duration::from_secs(30);
/// How long what is said holds: four intervals (section 9.2.5.6).
const TTL: u16 = 120;
/// The most neighbours of a port; a wire has one.
const NEIGHBOURS: usize = 16;
/// After a complaint in the log there is none about the same port for so long.
const QUIET: Duration = Duration::from_secs(60);
/// The state of a mapping that no neighbour has told of.
const PENDING: u8 = 255;

/// A port of a bridge.
type Key = (BridgeId, PortNo);

/// Something to do.
#[derive(Debug, PartialEq)]
pub enum LldpAction {
    /// Send this frame out of the port.
    Send(BridgeId, PortNo, Vec<u8>),
    /// Something about the port for the log.
    Warn(BridgeId, PortNo, String),
}

/// What an agent has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    sent: u64,
    received: u64,
    discarded: u64,
    unrecognized: u64,
    aged: u64,
    inserted: u64,
    deleted: u64,
    dropped: u64,
}

/// What a neighbour says, and until when that holds.
#[derive(Clone, Debug)]
struct Neighbour {
    unit: Lldpdu,
    until: Duration,
}

/// The agent of a port.
#[derive(Debug)]
struct Agent {
    spec: LldpSpec,
    mac: Mac,
    next_send: Duration,
    neighbours: BTreeMap<(Id, Id), Neighbour>,
    counts: Counts,
    /// No complaint is logged before.
    quiet_until: Duration,
}

impl Agent {
    fn unit(&self, ttl: u16) -> Lldpdu {
        let mut system = [0; 10];
        system.iter_mut().zip(self.mac.iter()).for_each(|(to, b)| *to = *b);
        let asked = |(isid, vlan): &(u32, VlanId)| Assignment { status: 0, vlan: *vlan, isid: *isid };
        Lldpdu {
            chassis: Id::chassis(self.mac),
            port: Id::interface(&self.spec.port),
            ttl,
            system_name: self.spec.system_name.clone(),
            system_description: self.spec.system_description.clone(),
            capabilities: Some((BRIDGE, BRIDGE)),
            element: Some(Element { kind: VIRTUAL_SWITCH, state: 0, vlan: VlanId::NONE, system }),
            assignments: self.spec.mappings.iter().map(asked).collect(),
            ..Lldpdu::default()
        }
    }

    fn frame(&mut self, ttl: u16) -> Vec<u8> {
        self.counts.sent += 1;
        lldp::compose(self.mac, &self.unit(ttl))
    }

    fn due(&self) -> Duration {
        self.neighbours.values().map(|n| n.until).fold(self.next_send, Duration::min)
    }

    /// Takes what a neighbour says; why not, if that cannot be.
    fn take(&mut self, unit: Lldpdu, now: Duration) -> Result<(), String> {
        let key = (unit.chassis.clone(), unit.port.clone());
        self.counts.unrecognized += u64::from(unit.unrecognized);
        // "A TTL of zero": the neighbour goes (section 9.2.7.7.4).
        if unit.ttl == 0 {
            self.counts.deleted += u64::from(self.neighbours.remove(&key).is_some());
            return Ok(());
        }
        let known = self.neighbours.contains_key(&key);
        if !known && self.neighbours.len() >= NEIGHBOURS {
            self.counts.dropped += 1;
            return Err(format!("more than {NEIGHBOURS} LLDP neighbours on"));
        }
        let until = now + Duration::from_secs(unit.ttl.into());
        self.neighbours.insert(key, Neighbour { unit, until });
        self.counts.inserted += u64::from(!known);
        Ok(())
    }

    /// What has become of a mapping, as a neighbour says.
    fn status(&self, isid: u32) -> u8 {
        let mut told = self.neighbours.values().flat_map(|n| &n.unit.assignments);
        told.find(|a| a.isid == isid && a.status != 0).map_or(PENDING, |a| a.status)
    }
}

/// All agents.
#[derive(Debug, Default)]
pub struct LldpAgents {
    all: BTreeMap<Key, Agent>,
    /// What is to be done at once.
    actions: Vec<LldpAction>,
}

impl LldpAgents {
    /// Starts, changes or (without a specification) ends the agent of a port with this address.
    pub fn set(&mut self, bridge: BridgeId, port: PortNo, spec: Option<LldpSpec>, mac: Mac, now: Duration) {
        let key = (bridge, port);
        let Some(spec) = spec else {
            // "A shutdown LLDPDU" (section 9.1.2.2).
            if let Some(mut agent) = self.all.remove(&key) {
                self.actions.push(LldpAction::Send(bridge, port, agent.frame(0)));
            }
            return;
        };
        match self.all.get_mut(&key) {
            // What has changed is told at once.
            Some(agent) => (agent.spec, agent.mac, agent.next_send) = (spec, mac, now),
            None => {
                let (neighbours, counts) = (BTreeMap::new(), Counts::default());
                let quiet_until = Duration::ZERO;
                self.all.insert(key, Agent { spec, mac, next_send: now, neighbours, counts, quiet_until });
            }
        }
    }

    /// Forgets a port that is removed.
    pub fn forget_port(&mut self, bridge: BridgeId, port: PortNo) {
        self.all.remove(&(bridge, port));
    }

    /// Tells of a port by another address.
    pub fn change_address(&mut self, bridge: BridgeId, port: PortNo, mac: Mac) {
        self.all.get_mut(&(bridge, port)).into_iter().for_each(|a| a.mac = mac);
    }

    /// Forgets a removed bridge, whose number another may get.
    pub fn forget_bridge(&mut self, bridge: BridgeId) {
        self.all.retain(|key, _| key.0 != bridge);
        self.actions.retain(|a| match a {
            LldpAction::Send(b, ..) | LldpAction::Warn(b, ..) => *b != bridge,
        });
    }

    /// Takes a frame that a port received.
    pub fn receive(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8], now: Duration) {
        let Some(agent) = self.all.get_mut(&(bridge, port)) else { return };
        agent.counts.received += 1;
        let taken = match lldp::parse(frame) {
            Ok(unit) => agent.take(unit, now),
            Err(e) => {
                agent.counts.discarded += 1;
                Err(format!("{e} received on"))
            }
        };
        if let Err(what) = taken
            && now >= agent.quiet_until
        {
            agent.quiet_until = now + QUIET;
            self.actions.push(LldpAction::Warn(bridge, port, format!("{what} {}", agent.spec.port)));
        }
    }

    /// When [`LldpAgents::poll`] wants to be called next; none without agents.
    pub fn due(&self) -> Option<Duration> {
        let now = (!self.actions.is_empty()).then_some(Duration::ZERO);
        now.or_else(|| self.all.values().map(Agent::due).min())
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Duration) -> Vec<LldpAction> {
        let mut out = std::mem::take(&mut self.actions);
        for ((bridge, port), agent) in &mut self.all {
            if now >= agent.next_send {
                agent.next_send = now + INTERVAL;
                out.push(LldpAction::Send(*bridge, *port, agent.frame(TTL)));
            }
            let before = agent.neighbours.len();
            agent.neighbours.retain(|_, n| n.until > now);
            agent.counts.aged += (before - agent.neighbours.len()) as u64;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortNo = PortNo(1);

    fn agents(name: &str, last: u8, mappings: &[(u32, u16)], now: Duration) -> LldpAgents {
        let spec = LldpSpec {
            port: name.into(),
            system_name: format!("system {name}"),
            mappings: mappings.iter().map(|(isid, vlan)| (*isid, VlanId::of_tci(*vlan))).collect(),
            ..LldpSpec::default()
        };
        let mut agents = LldpAgents::default();
        agents.set(BridgeId(0), PORT, Some(spec), Mac([2, 0, 0, 0, 0, last]), now);
        agents
    }

    fn sent(agents: &mut LldpAgents, now: Duration) -> Vec<Vec<u8>> {
        let frame = |a| if let LldpAction::Send(BridgeId(0), PORT, frame) = a { Some(frame) } else { None };
        agents.poll(now).into_iter().filter_map(frame).collect()
    }

    #[test]
    fn neighbours_know_each_other_until_they_fall_silent() {
        let mut now = Duration::from_secs(100);
        let (mut a, mut b) = (agents("a", 1, &[(7, 70)], now), agents("b", 2, &[], now));
        for _ in 0..3 {
            assert_eq!(a.due(), Some(now));
            for frame in sent(&mut a, now) {
                b.receive(BridgeId(0), PORT, &frame, now);
            }
            assert!(sent(&mut a, now + INTERVAL / 2).is_empty());
            now += INTERVAL;
        }
        let text = b.neighbours(None);
        for wanted in ["---- b ----", "02:00:00:00:00:01", "port: a", "system a"] {
            assert!(text.contains(wanted), "{text}");
        }
        // The last frame came an interval ago.
        let silent = now - INTERVAL + Duration::from_secs(TTL.into());
        b.poll(silent - Duration::from_secs(1));
        assert!(b.neighbours(None).contains("port: a"));
        b.poll(silent);
        assert!(!b.neighbours(None).contains("port: a") && b.statistics(None).contains("ageout cnt: 1"));
    }

    #[test]
    fn one_who_goes_says_so() {
        let now = Duration::from_secs(100);
        let (mut a, mut b) = (agents("a", 1, &[], now), agents("b", 2, &[], now));
        sent(&mut a, now).iter().for_each(|f| b.receive(BridgeId(0), PORT, f, now));
        assert!(b.neighbours(None).contains("port: a"));
        a.set(BridgeId(0), PORT, None, Mac::ZERO, now);
        let farewell = sent(&mut a, now);
        assert_eq!(farewell.len(), 1);
        farewell.iter().for_each(|f| b.receive(BridgeId(0), PORT, f, now));
        assert!(!b.neighbours(None).contains("port: a") && a.due().is_none());
        let text = b.statistics(None);
        for wanted in ["Statistics: b", "tx cnt: 0", "rx cnt: 2", "insert cnt: 1", "delete cnt: 1"] {
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn what_a_server_grants_is_shown() {
        let now = Duration::from_secs(100);
        let mut a = agents("a", 1, &[(7, 70), (8, 80)], now);
        assert!(a.services(None).lines().filter(|l| l.contains("Pending")).count() == 2);
        let mut server = Lldpdu {
            chassis: Id::chassis(Mac([2, 0, 0, 0, 0, 9])),
            port: Id::interface("1/1"),
            ttl: 120,
            system_description: "a server".into(),
            element: Some(Element { kind: 2, state: 0, vlan: VlanId::NONE, system: [9; 10] }),
            assignments: [(2, 7), (9, 8)]
                .map(|(status, isid)| Assignment { status, vlan: VlanId::of_tci(70), isid })
                .to_vec(),
            ..Lldpdu::default()
        };
        a.receive(BridgeId(0), PORT, &lldp::compose(Mac::ZERO, &server), now);
        let text = a.services(None);
        for wanted in ["LLDP: a", "7        70   Switch      Active", "8        80   Switch      Reject (Application"] {
            assert!(text.contains(wanted), "{text}");
        }
        let text = a.servers(None);
        for wanted in ["Primary Server Id: 02:00:00:00:00:09", "Server Descr: a server", "System Id: 09:09:09"] {
            assert!(text.contains(wanted), "{text}");
        }
        // Who asks hears what it asks for from nobody else.
        server.assignments.iter_mut().for_each(|a| a.status = 0);
        a.receive(BridgeId(0), PORT, &lldp::compose(Mac::ZERO, &server), now);
        assert!(a.services(None).lines().filter(|l| l.contains("Pending")).count() == 2);
    }

    #[test]
    fn floods_are_complained_of_once() {
        let now = Duration::from_secs(100);
        let mut a = agents("a", 1, &[], now);
        let from = |n: u8| {
            let unit = Lldpdu {
                chassis: Id::chassis(Mac([2, 0, 0, 0, 1, n])),
                port: Id::interface("x"),
                ttl: 9,
                ..Lldpdu::default()
            };
            lldp::compose(Mac::ZERO, &unit)
        };
        (0..200).for_each(|n| a.receive(BridgeId(0), PORT, &from(n), now));
        a.receive(BridgeId(0), PORT, &from(1)[..20], now);
        let said = |a: &mut LldpAgents| {
            a.poll(now)
                .into_iter()
                .filter(|x| matches!(x, LldpAction::Warn(BridgeId(0), PORT, text) if text.contains("on a")))
                .count()
        };
        assert_eq!(said(&mut a), 1);
        let text = a.statistics(None);
        assert!(text.contains("drop cnt: 184") && text.contains("rx discarded cnt: 1"), "{text}");
        assert_eq!(a.neighbours(None).matches("port: x").count(), NEIGHBOURS);
    }
}
