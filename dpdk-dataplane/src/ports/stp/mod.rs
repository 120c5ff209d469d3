//! The spanning tree protocol of one bridge (IEEE 802.1D-1998 clause 8). Messages, links and times come in; messages and
//! changes of ports' states go out. The names are the standard's.
//!
//! ```text
//!             link up            forward delay          forward delay
//!  Disabled ----------> Blocking/Listening ----------> Learning ----------> Forwarding
//!      ^                      ^   |                       |                     |
//!      | link down            |   +---- root or designated port                 |
//!      +---- any state        +---- neither: Blocking <---+---------------------+
//! ```

pub mod bridges;

use crate::config::stp::TreeSettings;
use packet::bpdu::{Bpdu, Config};
use std::time::Duration;
use switch::StpState;

/// The least time between two configuration messages of a port (table 8-3).
const HOLD: Duration = Duration::from_secs(1);
/// By how much a message is older for the bridge that it passes (table 8-3).
const AGE_INCREMENT: Duration = Duration::from_secs(1);

/// The part of a port in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its link is down.
    Disabled,
    /// Leads to the root.
    Root,
    /// Leads others to the root.
    Designated,
    /// Neither.
    Alternate,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePort {
    /// Priority, then the number.
    pub id: u16,
    /// What the way through it costs.
    pub path_cost: u32,
    /// Its state.
    pub state: StpState,
    /// When the state began.
    pub since: Duration,
    /// Messages sent, received, and received in error.
    pub counts: [u64; 3],
    designated_root: u64,
    designated_cost: u32,
    designated_bridge: u64,
    designated_port: u16,
    acknowledge: bool,
    config_pending: bool,
    /// When what was heard is forgotten.
    message_age: Option<Duration>,
    /// When the next state begins.
    forward_delay: Option<Duration>,
    /// When the next message may be sent.
    hold: Option<Duration>,
}

/// What a bridge does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeOutput {
    /// Send a message through the port of this place.
    Send(usize, Bpdu),
    /// Learned addresses may be wrong.
    Flush,
}

/// A bridge.
#[derive(Clone, Debug)]
pub struct Tree {
    settings: TreeSettings,
    /// The ports.
    pub ports: Vec<TreePort>,
    /// The root.
    pub root: u64,
    /// What the way to it costs.
    pub root_cost: u32,
    /// The place of the port that leads to it.
    pub root_port: Option<usize>,
    /// Times that the root has set.
    pub times: TreeSettings,
    change_detected: bool,
    change: bool,
    hello: Option<Duration>,
    notify: Option<Duration>,
    change_ends: Option<Duration>,
    out: Vec<TreeOutput>,
}

impl Tree {
    /// A bridge without ports, which is the root.
    pub fn new(settings: TreeSettings, now: Duration) -> Tree {
        Tree {
            settings,
            ports: Vec::new(),
            root: settings.id,
            root_cost: 0,
            root_port: None,
            times: settings,
            change_detected: false,
            change: false,
            hello: Some(now + settings.hello),
            notify: None,
            change_ends: None,
            out: Vec::new(),
        }
    }

    /// Adds a port whose link is down; gives its place.
    pub fn add_port(&mut self, id: u16, path_cost: u32, now: Duration) -> usize {
        self.ports.push(TreePort {
            id,
            path_cost,
            state: StpState::Disabled,
            since: now,
            counts: [0; 3],
            designated_root: self.root,
            designated_cost: self.root_cost,
            designated_bridge: self.settings.id,
            designated_port: id,
            acknowledge: false,
            config_pending: false,
            message_age: None,
            forward_delay: None,
            hold: None,
        });
        self.ports.len() - 1
    }

    /// Arranges the ports anew: each comes from this place, or is new, with a link that is down. Ports that no place
    /// names are gone.
    pub fn arrange(&mut self, places: &[Option<usize>], id: impl Fn(usize) -> u16, now: Duration) {
        let gone = (0..self.ports.len()).filter(|i| !places.contains(&Some(*i)));
        for i in gone.collect::<Vec<_>>() {
            self.set_link(i, false, now);
        }
        let old = std::mem::take(&mut self.ports);
        let root_port = self.root_port.take();
        for (i, place) in places.iter().enumerate() {
            match place.and_then(|at| old.get(at)) {
                Some(p) => self.ports.push(p.clone()),
                None => drop(self.add_port(id(i), 0, now)),
            }
        }
        self.root_port = root_port.and_then(|r| places.iter().position(|p| *p == Some(r)));
        let moved = |o: TreeOutput| match o {
            TreeOutput::Send(i, m) => places.iter().position(|p| *p == Some(i)).map(|i| TreeOutput::Send(i, m)),
            o => Some(o),
        };
        self.out = std::mem::take(&mut self.out).into_iter().filter_map(moved).collect();
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.root == self.settings.id
    }

    /// Its settings.
    pub fn settings(&self) -> &TreeSettings {
        &self.settings
    }

    /// The bridge gets other settings (8.8.4). Ports keep their states where their parts stay as they are.
    pub fn set_settings(&mut self, settings: TreeSettings, now: Duration) {
        if self.settings == settings {
            return;
        }
        let was_root = self.is_root();
        let old = std::mem::replace(&mut self.settings, settings).id;
        for p in self.ports.iter_mut().filter(|p| p.designated_bridge == old && p.designated_port == p.id) {
            p.designated_bridge = settings.id;
        }
        self.update();
        self.select_states(now);
        match (was_root, self.is_root()) {
            (false, true) => self.become_root(now),
            (true, true) => {
                self.times = settings;
                self.generate(now);
            }
            (true, false) => self.root_is_lost(now),
            (false, false) => {}
        }
    }

    /// A port gets another id (8.8.5).
    pub fn set_id(&mut self, i: usize, id: u16, now: Duration) {
        let Some(p) = self.ports.get(i).filter(|p| p.id != id) else { return };
        let designated = self.is_designated(p);
        if let Some(p) = self.ports.get_mut(i) {
            p.id = id;
            if designated {
                p.designated_port = id;
            }
        }
        self.update();
        self.select_states(now);
    }

    /// Another bridge is the root instead.
    fn root_is_lost(&mut self, now: Duration) {
        self.hello = None;
        if self.change_detected {
            self.change_ends = None;
            self.notify(now);
        }
    }

    /// The part of a port.
    pub fn role(&self, i: usize) -> Role {
        match self.ports.get(i) {
            None => Role::Disabled,
            Some(p) if p.state == StpState::Disabled => Role::Disabled,
            Some(_) if self.root_port == Some(i) => Role::Root,
            Some(p) if self.is_designated(p) => Role::Designated,
            Some(_) => Role::Alternate,
        }
    }

    /// What is to be done since the last call.
    pub fn take(&mut self) -> Vec<TreeOutput> {
        std::mem::take(&mut self.out)
    }

    /// When something is due next.
    pub fn due(&self) -> Option<Duration> {
        let of = |p: &TreePort| [p.message_age, p.forward_delay, p.hold].into_iter().flatten().min();
        let own = [self.hello, self.notify, self.change_ends].into_iter().flatten();
        own.chain(self.ports.iter().filter_map(of)).min()
    }

    /// A port's link goes up or down (8.8.2, 8.8.3).
    pub fn set_link(&mut self, i: usize, up: bool, now: Duration) {
        let Some(p) = self.ports.get(i) else { return };
        if up == (p.state != StpState::Disabled) {
            return;
        }
        if up {
            self.become_designated(i);
            self.set_state(i, StpState::Blocking, now);
            if let Some(p) = self.ports.get_mut(i) {
                (p.acknowledge, p.config_pending) = (false, false);
                (p.message_age, p.forward_delay, p.hold) = (None, None, None);
            }
            return self.select_states(now);
        }
        let was_root = self.is_root();
        self.become_designated(i);
        self.set_state(i, StpState::Disabled, now);
        if let Some(p) = self.ports.get_mut(i) {
            (p.acknowledge, p.config_pending) = (false, false);
            (p.message_age, p.forward_delay, p.hold) = (None, None, None);
        }
        self.update();
        self.select_states(now);
        if self.is_root() && !was_root {
            self.become_root(now);
        }
    }

    /// The cost of a port's way changes (8.8.6).
    pub fn set_cost(&mut self, i: usize, cost: u32, now: Duration) {
        if let Some(p) = self.ports.get_mut(i).filter(|p| p.path_cost != cost) {
            p.path_cost = cost;
            self.update();
            self.select_states(now);
        }
    }

    /// A message arrives at a port.
    pub fn receive(&mut self, i: usize, bpdu: &Bpdu, now: Duration) {
        let Some(p) = self.ports.get_mut(i).filter(|p| p.state != StpState::Disabled) else { return };
        p.counts[1] += 1;
        match bpdu {
            // A rapid bridge sends messages of this protocol as soon as it hears one.
            Bpdu::Rapid(_) => {}
            Bpdu::Config(c) => self.receive_config(i, c, now),
            Bpdu::Notification => {
                if self.ports.get(i).is_some_and(|p| self.is_designated(p)) {
                    self.detect_change(now);
                    // 8.6.16
                    self.ports.get_mut(i).into_iter().for_each(|p| p.acknowledge = true);
                    self.transmit_config(i, now);
                }
            }
        }
    }

    /// A message in error arrived at a port.
    pub fn receive_error(&mut self, i: usize) {
        self.ports.get_mut(i).into_iter().for_each(|p| p.counts[2] += 1);
    }

    /// 8.7.1
    fn receive_config(&mut self, i: usize, c: &Config, now: Duration) {
        let was_root = self.is_root();
        if self.supersedes(i, c) {
            // 8.6.2
            if let Some(p) = self.ports.get_mut(i) {
                (p.designated_root, p.designated_cost) = (c.root, c.cost);
                (p.designated_bridge, p.designated_port) = (c.bridge, c.port);
                p.message_age = Some(now + c.max_age.saturating_sub(c.age));
            }
            self.update();
            self.select_states(now);
            if !self.is_root() && was_root {
                self.root_is_lost(now);
            }
            if self.root_port == Some(i) {
                // 8.6.3
                self.times =
                    TreeSettings { hello: c.hello, max_age: c.max_age, forward_delay: c.forward_delay, ..self.times };
                if c.change {
                    self.out.push(TreeOutput::Flush);
                }
                self.change = c.change;
                self.generate(now);
                if c.acknowledged {
                    (self.change_detected, self.notify) = (false, None);
                }
            }
        } else if self.ports.get(i).is_some_and(|p| self.is_designated(p)) {
            self.transmit_config(i, now);
        }
    }

    /// Does what is due (8.7.3 to 8.7.8).
    pub fn run(&mut self, now: Duration) {
        let due = |t: &mut Option<Duration>| t.is_some_and(|at| at <= now).then(|| *t = None).is_some();
        if due(&mut self.hello) {
            self.generate(now);
            self.hello = Some(now + self.settings.hello);
        }
        if due(&mut self.notify) {
            self.notify(now);
        }
        if due(&mut self.change_ends) {
            (self.change_detected, self.change) = (false, false);
        }
        for i in 0..self.ports.len() {
            let Some(p) = self.ports.get_mut(i) else { break };
            let (aged, delayed, held) = (due(&mut p.message_age), due(&mut p.forward_delay), due(&mut p.hold));
            if aged {
                let was_root = self.is_root();
                self.become_designated(i);
                self.update();
                self.select_states(now);
                if self.is_root() && !was_root {
                    self.become_root(now);
                }
            }
            if delayed {
                self.forward_delay_ends(i, now);
            }
            if held && self.ports.get(i).is_some_and(|p| p.config_pending) {
                self.transmit_config(i, now);
            }
        }
    }

    /// 8.7.5
    fn forward_delay_ends(&mut self, i: usize, now: Duration) {
        match self.ports.get(i).map(|p| p.state) {
            Some(StpState::Listening) => {
                self.set_state(i, StpState::Learning, now);
                let delay = self.times.forward_delay;
                self.ports.get_mut(i).into_iter().for_each(|p| p.forward_delay = Some(now + delay));
            }
            Some(StpState::Learning) => {
                self.set_state(i, StpState::Forwarding, now);
                if self.ports.iter().any(|p| p.designated_bridge == self.settings.id) {
                    self.detect_change(now);
                }
            }
            _ => {}
        }
    }

    /// An operator says that the topology has changed.
    pub fn detect_change(&mut self, now: Duration) {
        // 8.6.14
        if self.is_root() {
            self.change = true;
            self.change_ends = Some(now + self.settings.max_age + self.settings.forward_delay);
        } else if !self.change_detected {
            self.notify(now);
        }
        self.change_detected = true;
        self.out.push(TreeOutput::Flush);
    }

    fn become_root(&mut self, now: Duration) {
        self.times = self.settings;
        self.detect_change(now);
        self.notify = None;
        self.generate(now);
        self.hello = Some(now + self.settings.hello);
    }

    /// Whether a message is better than what the port has heard (8.6.2.2).
    fn supersedes(&self, i: usize, c: &Config) -> bool {
        let Some(p) = self.ports.get(i) else { return false };
        let (new, old) = ((c.root, c.cost, c.bridge), (p.designated_root, p.designated_cost, p.designated_bridge));
        new < old || new == old && (c.bridge != self.settings.id || c.port <= p.designated_port)
    }

    fn is_designated(&self, p: &TreePort) -> bool {
        p.designated_bridge == self.settings.id && p.designated_port == p.id
    }

    /// 8.6.11
    fn become_designated(&mut self, i: usize) {
        let (root, cost, bridge) = (self.root, self.root_cost, self.settings.id);
        if let Some(p) = self.ports.get_mut(i) {
            (p.designated_root, p.designated_cost) = (root, cost);
            (p.designated_bridge, p.designated_port) = (bridge, p.id);
        }
    }

    /// Chooses the root and its port, and the designated ports (8.6.7).
    fn update(&mut self) {
        let candidate = |p: &&TreePort| {
            !self.is_designated(p) && p.state != StpState::Disabled && p.designated_root < self.settings.id
        };
        let rank = |p: &TreePort| {
            let cost = p.designated_cost.saturating_add(p.path_cost);
            (p.designated_root, cost, p.designated_bridge, p.designated_port, p.id)
        };
        let best = self.ports.iter().enumerate().filter(|(_, p)| candidate(p)).min_by_key(|(_, p)| rank(p));
        let best = best.map(|(i, p)| (i, rank(p)));
        (self.root_port, self.root, self.root_cost) = match best {
            Some((i, (root, cost, ..))) => (Some(i), root, cost),
            None => (None, self.settings.id, 0),
        };
        for i in 0..self.ports.len() {
            let Some(p) = self.ports.get(i) else { break };
            let (ours, theirs) =
                ((self.root_cost, self.settings.id, p.id), (p.designated_cost, p.designated_bridge, p.designated_port));
            if self.is_designated(p) || p.designated_root != self.root || ours <= theirs {
                self.become_designated(i);
            }
        }
    }

    /// 8.6.12, 8.6.13, 8.6.15
    fn select_states(&mut self, now: Duration) {
        for i in 0..self.ports.len() {
            let role = self.role(i);
            let delay = self.times.forward_delay;
            let Some(p) = self.ports.get_mut(i) else { break };
            if role == Role::Designated {
                p.message_age = None;
            } else {
                (p.config_pending, p.acknowledge) = (false, false);
            }
            match (role, p.state) {
                (Role::Root | Role::Designated, StpState::Blocking) => {
                    p.forward_delay = Some(now + delay);
                    self.set_state(i, StpState::Listening, now);
                }
                (Role::Alternate, state) if !matches!(state, StpState::Disabled | StpState::Blocking) => {
                    p.forward_delay = None;
                    self.set_state(i, StpState::Blocking, now);
                    if state.learns() {
                        self.detect_change(now);
                    }
                }
                _ => {}
            }
        }
    }

    fn set_state(&mut self, i: usize, state: StpState, now: Duration) {
        if let Some(p) = self.ports.get_mut(i).filter(|p| p.state != state) {
            (p.state, p.since) = (state, now);
        }
    }

    /// Sends a message through each designated port (8.6.4).
    fn generate(&mut self, now: Duration) {
        for i in 0..self.ports.len() {
            if self.role(i) == Role::Designated {
                self.transmit_config(i, now);
            }
        }
    }

    /// 8.6.1
    fn transmit_config(&mut self, i: usize, now: Duration) {
        let (own, times) = (self.settings.id, self.times);
        let (root, cost, change) = (self.root, self.root_cost, self.change);
        let left = self.root_port.and_then(|r| self.ports.get(r)?.message_age);
        // What is left of the time of the root's message says how old it is.
        let age = match self.root_port {
            None => Duration::ZERO,
            Some(_) => {
                let left = left.map_or(Duration::ZERO, |at| at.saturating_sub(now));
                times.max_age.saturating_sub(left) + AGE_INCREMENT
            }
        };
        let Some(p) = self.ports.get_mut(i) else { return };
        if p.hold.is_some() {
            p.config_pending = true;
        } else if age < times.max_age {
            let c = Config {
                change,
                acknowledged: p.acknowledge,
                root,
                cost,
                bridge: own,
                port: p.id,
                age,
                max_age: times.max_age,
                hello: times.hello,
                forward_delay: times.forward_delay,
            };
            (p.acknowledge, p.config_pending, p.hold) = (false, false, Some(now + HOLD));
            p.counts[0] += 1;
            self.out.push(TreeOutput::Send(i, Bpdu::Config(c)));
        }
    }

    /// Tells the root that the topology has changed, and does so again until that is acknowledged (8.6.6).
    fn notify(&mut self, now: Duration) {
        self.notify = Some(now + self.settings.hello);
        if let Some((i, p)) = self.root_port.and_then(|i| Some((i, self.ports.get_mut(i)?))) {
            p.counts[0] += 1;
            self.out.push(TreeOutput::Send(i, Bpdu::Notification));
        }
    }
}

#[cfg(test)]
mod tests;
