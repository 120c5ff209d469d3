//! The spanning trees of all bridges: which ports take part, what their links say, and what becomes of ports' states.

use super::{Role, Tree, TreeOutput};
use crate::config::stp::TreeSettings;
use openflow_rs::PortNo;
use packet::{Mac, bpdu};
use std::time::Duration;
use switch::{BridgeId, StpState, Switch};

/// A port that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StpPort {
    /// Its OpenFlow number.
    pub port: PortNo,
    /// Its name.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// Priority, then the number in the tree.
    pub id: u16,
    /// What the way through it costs; none: as its speed says.
    pub cost: Option<u32>,
}

/// The tree of a bridge.
#[derive(Debug)]
pub struct BridgeTree {
    /// The bridge.
    pub bridge: BridgeId,
    /// Its ports, in the places that the protocol has for them.
    pub ports: Vec<StpPort>,
    /// The protocol.
    pub tree: Tree,
    /// The states that the switch was told.
    told: Vec<StpState>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Trees {
    /// In no order.
    pub list: Vec<BridgeTree>,
}

/// A tree as the database has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StpStatus {
    /// `Bridge:status`.
    pub bridge: Vec<(&'static str, String)>,
    /// Its ports.
    pub ports: Vec<StpPortStatus>,
}

/// A port as the database has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StpPortStatus {
    /// Its name.
    pub name: String,
    /// `Port:status`.
    pub status: Vec<(&'static str, String)>,
    /// `Port:statistics`.
    pub counts: Vec<(&'static str, i64)>,
}

/// What trees have done.
#[derive(Debug, Default)]
pub struct Done {
    /// Frames to be sent, each by a port.
    pub frames: Vec<(BridgeId, PortNo, Vec<u8>)>,
    /// Changes of ports' states, for the log.
    pub changes: Vec<String>,
}

/// What a way costs by its speed in Mb/s (IEEE 802.1D-1998 table 8-5; 10 Gb/s and unknown speeds: 2).
fn cost_of(mbps: u32) -> u32 {
    match mbps {
        0 | 10_000.. => 2,
        1_000.. => 4,
        100.. => 19,
        16.. => 62,
        10.. => 100,
        4.. => 250,
        _ => 19,
    }
}

fn name(s: StpState) -> &'static str {
    match s {
        StpState::Disabled => "disabled",
        StpState::Blocking => "blocking",
        StpState::Listening => "listening",
        StpState::Learning => "learning",
        StpState::Forwarding => "forwarding",
    }
}

impl BridgeTree {
    /// The port that leads to the root.
    pub fn root_port(&self) -> Option<&StpPort> {
        self.tree.root_port.and_then(|i| self.ports.get(i))
    }

    /// The part and the state of a port, in words.
    pub fn words(&self, i: usize) -> (&'static str, &'static str) {
        let role = match self.tree.role(i) {
            Role::Disabled => "disabled",
            Role::Root => "root",
            Role::Designated => "designated",
            Role::Alternate => "alternate",
        };
        (role, self.tree.ports.get(i).map_or("disabled", |p| name(p.state)))
    }

    /// What the database is told.
    pub fn status(&self, now: Duration) -> StpStatus {
        let id = |id: u64| format!("{:04x}.{:012x}", id >> 48, id & 0xffff_ffff_ffff);
        let bridge = vec![
            ("stp_bridge_id", id(self.tree.settings().id)),
            ("stp_designated_root", id(self.tree.root)),
            ("stp_root_path_cost", self.tree.root_cost.to_string()),
        ];
        let of = |(i, (p, t)): (usize, (&StpPort, &super::TreePort))| {
            let (role, state) = self.words(i);
            let status = vec![
                ("stp_port_id", t.id.to_string()),
                ("stp_role", role.to_string()),
                ("stp_sec_in_state", now.saturating_sub(t.since).as_secs().to_string()),
                ("stp_state", state.to_string()),
            ];
            let [sent, received, wrong] = t.counts.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
            let counts = vec![("stp_tx_count", sent), ("stp_rx_count", received), ("stp_error_count", wrong)];
            StpPortStatus { name: p.name.clone(), status, counts }
        };
        StpStatus { bridge, ports: self.ports.iter().zip(&self.tree.ports).enumerate().map(of).collect() }
    }

    fn follow_links(&mut self, w: &Switch, now: Duration) {
        let Some(b) = w.bridge(self.bridge) else { return };
        for (i, p) in self.ports.iter().enumerate() {
            let Some(port) = b.ports.get(&p.port) else { continue };
            self.tree.set_cost(i, p.cost.unwrap_or_else(|| cost_of(port.link.mbps)), now);
            self.tree.set_link(i, port.link.up && port.link.admin_up, now);
        }
    }

    /// Tells the switch of changed states.
    fn carry_out(&mut self, w: &mut Switch, done: &mut Done) {
        let mut flush = false;
        for o in self.tree.take() {
            match o {
                TreeOutput::Flush => flush = true,
                TreeOutput::Send(i, m) => {
                    done.frames.extend(self.ports.get(i).map(|p| (self.bridge, p.port, bpdu::compose(p.mac, &m))));
                }
            }
        }
        for ((p, is), told) in self.ports.iter().zip(&self.tree.ports).zip(&mut self.told) {
            w.set_inputs(self.bridge, p.port, |port| port.stp = Some(is.state));
            if is.state != *told {
                let (before, now) = (name(*told), name(is.state));
                done.changes.push(format!("port {}: STP state changed from {before} to {now}", p.name));
                // What is behind such a port may be elsewhere.
                flush |= told.learns() != is.state.learns();
                *told = is.state;
            }
        }
        if flush {
            w.with_tables(self.bridge, |b| b.forget_addresses());
        }
    }
}

impl Trees {
    /// Sets a bridge's tree; none: it has none.
    pub fn configure(
        &mut self,
        bridge: BridgeId,
        wanted: Option<(TreeSettings, Vec<StpPort>)>,
        w: &mut Switch,
        now: Duration,
    ) {
        let old = self.list.iter().position(|t| t.bridge == bridge);
        let same =
            |t: &BridgeTree| wanted.as_ref().is_some_and(|(s, ports)| t.tree.settings() == s && t.ports == *ports);
        if old.and_then(|i| self.list.get(i)).is_some_and(same) {
            return;
        }
        let old = old.map(|i| self.list.swap_remove(i));
        let goes_on = |p: PortNo| wanted.as_ref().is_some_and(|(_, ports)| ports.iter().any(|q| q.port == p));
        for p in old.iter().flat_map(|t| &t.ports).filter(|p| !goes_on(p.port)) {
            w.set_inputs(bridge, p.port, |port| port.stp = None);
        }
        // What was behind a port that is gone may be elsewhere.
        let gone = |t: &BridgeTree| t.ports.iter().zip(&t.told).any(|(p, s)| s.learns() && !goes_on(p.port));
        if old.as_ref().is_some_and(gone) {
            w.with_tables(bridge, |b| b.forget_addresses());
        }
        let Some((settings, ports)) = wanted else { return };
        // What stays keeps its state, whatever its settings are.
        let (mut tree, mut told) = (Tree::new(settings, now), vec![StpState::Disabled; ports.len()]);
        match old {
            Some(t) => {
                tree = t.tree;
                let kept = |p: &StpPort| t.ports.iter().position(|q| q.port == p.port);
                let places: Vec<Option<usize>> = ports.iter().map(kept).collect();
                for (i, place) in places.iter().enumerate() {
                    let before = place.and_then(|at| t.told.get(at));
                    before.into_iter().zip(told.get_mut(i)).for_each(|(b, now)| *now = *b);
                }
                tree.arrange(&places, |i| ports.get(i).map_or(0, |p| p.id), now);
                ports.iter().enumerate().for_each(|(i, p)| tree.set_id(i, p.id, now));
                tree.set_settings(settings, now);
            }
            None => {
                for p in &ports {
                    tree.add_port(p.id, p.cost.unwrap_or(cost_of(0)), now);
                }
            }
        }
        self.list.push(BridgeTree { bridge, ports, tree, told });
    }

    /// When something is due.
    pub fn due(&self) -> Option<Duration> {
        self.list.iter().filter_map(|t| t.tree.due()).min()
    }

    /// Takes a BPDU.
    pub fn receive(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8], now: Duration) {
        let Some(t) = self.list.iter_mut().find(|t| t.bridge == bridge) else { return };
        let Some(i) = t.ports.iter().position(|p| p.port == port) else { return };
        match bpdu::parse(frame) {
            Some(m) => t.tree.receive(i, &m, now),
            None => t.tree.receive_error(i),
        }
    }

    /// Does what is due, and what links and messages have led to.
    pub fn poll(&mut self, w: &mut Switch, now: Duration, done: &mut Done) {
        for t in &mut self.list {
            t.follow_links(w, now);
            t.tree.run(now);
            t.carry_out(w, done);
        }
    }
}
