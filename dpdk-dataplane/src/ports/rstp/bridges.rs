//! The rapid spanning trees of all bridges: which ports take part, what their links say, and what becomes of ports'
//! states.

use super::port::RapidPort;
use super::{Rapid802, RapidOutput, Role};
use crate::config::rstp::RstpSettings;
use crate::ports::stp::bridges::{Done, StpPortStatus, StpStatus};
use openflow_rs::PortNo;
use packet::{Mac, bpdu};
use std::time::Duration;
use switch::{BridgeId, StpState, Switch};

/// A port that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RstpPort {
    /// Its OpenFlow number.
    pub port: PortNo,
    /// Its name.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// Its number in the tree; none: the first that is free.
    pub number: Option<u16>,
    /// Its priority.
    pub priority: u8,
    /// What the way through it costs; none: as its speed says.
    pub cost: Option<u32>,
    /// It leads to no bridge, and whether that may be found out.
    pub edge: (bool, bool),
    /// It is to try again whether others speak the rapid protocol.
    pub check: bool,
}

/// The tree of a bridge.
#[derive(Debug)]
pub struct BridgeRapid {
    /// The bridge.
    pub bridge: BridgeId,
    /// Its ports, in the places that the protocol has for them.
    pub ports: Vec<RstpPort>,
    /// The protocol.
    pub tree: Rapid802,
    /// The states that the switch was told.
    told: Vec<StpState>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct RapidTrees {
    /// In no order.
    pub list: Vec<BridgeRapid>,
}

/// What a way costs by its speed in Mb/s (IEEE 802.1D-2004 table 17-3).
fn cost_of(mbps: u32) -> u32 {
    match mbps {
        0 => 200_000,
        n => (20_000_000 / n).max(2),
    }
}

fn state(p: &RapidPort) -> StpState {
    match (p.enabled, p.learning, p.forwarding) {
        (false, ..) => StpState::Disabled,
        (true, _, true) => StpState::Forwarding,
        (true, true, false) => StpState::Learning,
        (true, false, false) => StpState::Blocking,
    }
}

fn name(s: StpState) -> &'static str {
    match s {
        StpState::Disabled => "Disabled",
        StpState::Blocking | StpState::Listening => "Discarding",
        StpState::Learning => "Learning",
        StpState::Forwarding => "Forwarding",
    }
}

fn role(r: Role) -> &'static str {
    match r {
        Role::Disabled => "Disabled",
        Role::Root => "Root",
        Role::Designated => "Designated",
        Role::Alternate => "Alternate",
        Role::Backup => "Backup",
    }
}

/// A bridge's number as `rstp_status` has it: priority, extension, address.
fn number(id: u64) -> String {
    format!("{:x}.{:03x}.{:012x}", id >> 60, id >> 48 & 0xfff, id & 0xffff_ffff_ffff)
}

impl BridgeRapid {
    /// The part and the state of a port, in words; its link may be down.
    pub fn words(&self, i: usize) -> (&'static str, &'static str) {
        // A port without a link discards, in the role of a disabled one.
        let word = |p: &RapidPort| if p.enabled { name(state(p)) } else { "Discarding" };
        self.tree.ports.get(i).map_or(("Disabled", "Disabled"), |p| (role(p.role), word(p)))
    }

    /// What the database is told.
    pub fn status(&self, now: Duration) -> StpStatus {
        let v = self.tree.root;
        let by = self.tree.root_port.and_then(|i| self.tree.ports.get(i)).map_or(0, |p| p.id);
        let bridge = vec![
            ("rstp_bridge_id", number(self.tree.settings().id)),
            ("rstp_root_path_cost", v.cost.to_string()),
            ("rstp_root_id", number(v.root)),
            ("rstp_designated_id", number(v.bridge)),
            ("rstp_designated_port_id", format!("{:04x}", v.port)),
            ("rstp_bridge_port_id", format!("{by:04x}")),
        ];
        let of = |(i, (p, t)): (usize, (&RstpPort, &RapidPort))| {
            let (role, state) = self.words(i);
            let status = vec![
                ("rstp_port_id", format!("{:04x}", t.id)),
                ("rstp_port_role", role.to_string()),
                ("rstp_port_state", state.to_string()),
                ("rstp_designated_bridge_id", number(t.priority.bridge)),
                ("rstp_designated_port_id", format!("{:04x}", t.priority.port)),
                ("rstp_designated_path_cost", t.priority.cost.to_string()),
            ];
            let [sent, received, wrong] = t.counts.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
            let uptime = i64::try_from(now.saturating_sub(t.since).as_secs()).unwrap_or(i64::MAX);
            let counts = vec![
                ("rstp_tx_count", sent),
                ("rstp_rx_count", received),
                ("rstp_error_count", wrong),
                ("rstp_uptime", uptime),
            ];
            StpPortStatus { name: p.name.clone(), status, counts }
        };
        StpStatus { bridge, ports: self.ports.iter().zip(&self.tree.ports).enumerate().map(of).collect() }
    }

    fn follow_links(&mut self, w: &Switch) {
        let Some(b) = w.bridge(self.bridge) else { return };
        for (i, p) in self.ports.iter().enumerate() {
            let Some(port) = b.ports.get(&p.port) else { continue };
            self.tree.set_cost(i, p.cost.unwrap_or_else(|| cost_of(port.link.mbps)));
            self.tree.set_link(i, port.link.up && port.link.admin_up);
        }
    }

    /// Tells the switch of changed states.
    fn carry_out(&mut self, w: &mut Switch, done: &mut Done) {
        for o in self.tree.take() {
            match o {
                RapidOutput::Flush(i) => {
                    if let Some(p) = self.ports.get(i) {
                        w.with_tables(self.bridge, |b| b.forget_port(p.port));
                    }
                }
                RapidOutput::Send(i, m) => {
                    done.frames.extend(self.ports.get(i).map(|p| (self.bridge, p.port, bpdu::compose(p.mac, &m))));
                }
            }
        }
        for ((p, is), told) in self.ports.iter().zip(&self.tree.ports).zip(&mut self.told) {
            let is = state(is);
            w.set_inputs(self.bridge, p.port, |port| port.stp = Some(is));
            if is != *told {
                let (before, now) = (name(*told), name(is));
                done.changes.push(format!("port {}: RSTP state changed from {before} to {now}", p.name));
                // What is behind such a port may be elsewhere.
                if told.learns() && !is.learns() {
                    w.with_tables(self.bridge, |b| b.forget_port(p.port));
                }
                *told = is;
            }
        }
    }
}

/// The numbers of ports: those that they ask for, those that they had, or the first that are free.
fn number_ports(ports: &[RstpPort], old: &[(PortNo, u16)]) -> Vec<u16> {
    let mut taken: Vec<u16> = ports.iter().filter_map(|p| p.number).collect();
    let mut out = Vec::new();
    for p in ports {
        let had = old.iter().find(|(no, n)| *no == p.port && !taken.contains(n)).map(|(_, n)| *n);
        let n = p.number.or(had).or_else(|| (1..4096).find(|n| !taken.contains(n))).unwrap_or(0);
        taken.push(n);
        out.push(n);
    }
    out
}

impl RapidTrees {
    /// Sets a bridge's tree; none: it has none.
    pub fn configure(
        &mut self,
        bridge: BridgeId,
        wanted: Option<(RstpSettings, Vec<RstpPort>)>,
        w: &mut Switch,
        now: Duration,
    ) {
        let at = self.list.iter().position(|t| t.bridge == bridge);
        let same =
            |t: &BridgeRapid| wanted.as_ref().is_some_and(|(s, ports)| t.tree.settings() == s && t.ports == *ports);
        if at.is_none() && wanted.is_none() || at.and_then(|i| self.list.get(i)).is_some_and(same) {
            return;
        }
        let old = at.map(|i| self.list.swap_remove(i));
        let goes_on = |p: PortNo| wanted.as_ref().is_some_and(|(_, ports)| ports.iter().any(|q| q.port == p));
        for p in old.iter().flat_map(|t| &t.ports).filter(|p| !goes_on(p.port)) {
            w.set_inputs(bridge, p.port, |port| port.stp = None);
            // What was behind it may be elsewhere.
            w.with_tables(bridge, |b| b.forget_port(p.port));
        }
        w.with_tables(bridge, |b| b.rapid = wanted.is_some());
        let Some((settings, ports)) = wanted else { return };
        let had = old.iter().flat_map(|t| t.ports.iter().zip(&t.tree.ports)).map(|(p, t)| (p.port, t.id & 0xfff));
        let numbers = number_ports(&ports, &had.collect::<Vec<_>>());
        let ids: Vec<u16> =
            ports.iter().zip(numbers).map(|(p, n)| u16::from(p.priority & 0xf0) << 8 | n & 0xfff).collect();
        let make = |i: usize| {
            let (id, p) = (ids.get(i).copied().unwrap_or(0), ports.get(i));
            let cost = p.and_then(|p| p.cost).unwrap_or(cost_of(0));
            (id, cost, p.map_or((false, true), |p| p.edge))
        };
        // Ports that stay keep their states, unless the bridge speaks another version of the protocol.
        let (mut tree, mut told) = (Rapid802::new(settings, now), vec![StpState::Disabled; ports.len()]);
        match old.filter(|t| t.tree.settings().rapid() == settings.rapid()) {
            Some(mut t) => {
                let kept = |p: &RstpPort| t.ports.iter().position(|q| q.port == p.port);
                let places: Vec<Option<usize>> = ports.iter().map(kept).collect();
                for (place, told) in places.iter().zip(&mut told) {
                    *told = place.and_then(|at| t.told.get(at)).copied().unwrap_or(StpState::Disabled);
                }
                t.tree.arrange(&places, make, now);
                t.tree.set_settings(settings, &ids);
                for (i, p) in ports.iter().enumerate() {
                    t.tree.set_edge(i, p.edge);
                    let before = places.get(i).copied().flatten().and_then(|at| t.ports.get(at));
                    if p.check && before.is_some_and(|b| !b.check) {
                        t.tree.check(i);
                    }
                }
                tree = t.tree;
            }
            None => {
                for (id, cost, edge) in (0..ports.len()).map(make) {
                    tree.add_port(id, cost, edge, now);
                }
            }
        }
        self.list.push(BridgeRapid { bridge, ports, tree, told });
    }

    /// When something is due.
    pub fn due(&self) -> Option<Duration> {
        self.list.iter().map(|t| t.tree.due()).min()
    }

    /// Takes a BPDU; false if the bridge has no such tree.
    pub fn receive(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8]) -> bool {
        let Some(t) = self.list.iter_mut().find(|t| t.bridge == bridge) else { return false };
        if let Some(i) = t.ports.iter().position(|p| p.port == port) {
            match bpdu::parse(frame) {
                Some(m) => t.tree.receive(i, &m),
                None => t.tree.receive_error(i),
            }
        }
        true
    }

    /// Does what is due, and what links and messages have led to.
    pub fn poll(&mut self, w: &mut Switch, now: Duration, done: &mut Done) {
        for t in &mut self.list {
            t.follow_links(w);
            t.tree.run(now);
            t.carry_out(w, done);
        }
    }
}
