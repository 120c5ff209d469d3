//! The rapid spanning tree protocol of one bridge (IEEE 802.1D-2004 clause 17). Messages, links and seconds come in;
//! messages and changes of ports' states go out. The names are the standard's, in this language's spelling.
//!
//! | file | holds |
//! |---|---|
//! | here | the bridge: its ports, its priorities, and how the machines are run |
//! | [`port`] | a port's variables |
//! | `machines` | the state machines of 17.23 to 17.31 |
//! | `roles` | who is the root, and which part each port has (17.21.25) |
//! | [`bridges`] | the trees of all bridges, and the switch |
//!
//! ```text
//!                      proposal, agreement: at once
//!              +-----------------------------------------------+
//!              |                                               v
//!  Discarding -+----> forward delay ----> Learning ----> Forwarding
//!      ^                                     |                 |
//!      +------- another role, or a sync -----+-----------------+
//! ```

pub mod bridges;
mod machines;
pub mod port;
mod roles;

use crate::config::rstp::RstpSettings;
use packet::bpdu::{Bpdu, Config, Rapid, Role as Told};
use port::RapidPort;
use std::time::Duration;

/// How long a port sends one kind of messages before it listens for the other, in seconds (table 17-1).
const MIGRATE_TIME: u32 = 3;
/// The hello time in seconds (table 17-1).
pub const HELLO_TIME: u32 = 2;

/// The part of a port in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its link is down.
    Disabled,
    /// Leads to the root.
    Root,
    /// Leads others to the root.
    Designated,
    /// Another way to the root.
    Alternate,
    /// Another way to where this bridge leads already.
    Backup,
}

/// A priority vector without the port that received it (17.5): the lesser, the better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vector {
    /// Priority and address of the root.
    pub root: u64,
    /// What the way to it costs.
    pub cost: u32,
    /// Priority and address of the designated bridge.
    pub bridge: u64,
    /// Priority and number of its port.
    pub port: u16,
}

/// Times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How many bridges the message has passed.
    pub age: u32,
    /// After how many it is forgotten.
    pub max_age: u32,
    /// How long ports listen, and learn.
    pub forward_delay: u32,
    /// How often messages come.
    pub hello: u32,
}

/// What a bridge does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RapidOutput {
    /// Send a message through the port of this place.
    Send(usize, Bpdu),
    /// What was learned at the port of this place may be wrong.
    Flush(usize),
}

/// A bridge.
#[derive(Clone, Debug)]
pub struct Rapid802 {
    settings: RstpSettings,
    /// The ports.
    pub ports: Vec<RapidPort>,
    /// The root's vector, as this bridge's ports tell it on.
    pub root: Vector,
    root_times: Times,
    /// The place of the port that leads to the root.
    pub root_port: Option<usize>,
    next_tick: Duration,
    out: Vec<RapidOutput>,
}

impl Rapid802 {
    /// A bridge without ports, which is the root.
    pub fn new(settings: RstpSettings, now: Duration) -> Rapid802 {
        let root = Vector { root: settings.id, cost: 0, bridge: settings.id, port: 0 };
        let root_times = own_times(&settings);
        let next_tick = now + Duration::from_secs(1);
        Rapid802 { settings, ports: Vec::new(), root, root_times, root_port: None, next_tick, out: Vec::new() }
    }

    /// The settings.
    pub fn settings(&self) -> &RstpSettings {
        &self.settings
    }

    /// Sets others with the same version of the protocol, and what ports are called. Ports keep their states where their roles
    /// stay as they are.
    pub fn set_settings(&mut self, settings: RstpSettings, ids: &[u16]) {
        let same = self.settings == settings && self.ports.iter().map(|p| &p.id).eq(ids);
        if same {
            return;
        }
        self.settings = settings;
        self.ports.iter_mut().zip(ids).for_each(|(p, id)| p.id = *id);
        self.reselect();
        self.settle();
    }

    /// Hello time, max age and forward delay of the root, in seconds.
    pub fn times(&self) -> [u32; 3] {
        [self.root_times.hello, self.root_times.max_age, self.root_times.forward_delay]
    }

    /// Adds a port whose link is down.
    pub fn add_port(&mut self, id: u16, cost: u32, edge: (bool, bool), now: Duration) {
        let times = own_times(&self.settings);
        self.ports.push(RapidPort::new(id, cost, edge, self.settings.rapid(), times, now));
    }

    /// Arranges the ports anew: each comes from this place, or is new (`make`). Ports that no place names are gone.
    pub fn arrange(
        &mut self,
        places: &[Option<usize>],
        make: impl Fn(usize) -> (u16, u32, (bool, bool)),
        now: Duration,
    ) {
        let old = std::mem::take(&mut self.ports);
        for (i, place) in places.iter().enumerate() {
            match place.and_then(|at| old.get(at)) {
                Some(p) => self.ports.push(p.clone()),
                None => {
                    let (id, cost, edge) = make(i);
                    self.add_port(id, cost, edge, now);
                }
            }
        }
        let moved = |o: RapidOutput| {
            let to = |i| places.iter().position(|p| *p == Some(i));
            match o {
                RapidOutput::Send(i, m) => to(i).map(|i| RapidOutput::Send(i, m)),
                RapidOutput::Flush(i) => to(i).map(RapidOutput::Flush),
            }
        };
        self.out = std::mem::take(&mut self.out).into_iter().filter_map(moved).collect();
        self.root_port = self.root_port.and_then(|r| places.iter().position(|p| *p == Some(r)));
        // Roles follow from ports that are there.
        self.reselect();
        self.settle();
    }

    /// Sets whether a port's link is up. A port whose link comes up takes part from the next second on, as there.
    pub fn set_link(&mut self, i: usize, up: bool) {
        let Some(p) = self.ports.get_mut(i).filter(|p| p.enabled != up) else { return };
        p.enabled = up;
        if !up {
            (p.edge_delay_while, p.rcvd_rstp, p.rcvd_stp) = (MIGRATE_TIME, false, false);
            self.settle();
        }
    }

    /// Sets what the way through a port costs.
    pub fn set_cost(&mut self, i: usize, cost: u32) {
        let Some(p) = self.ports.get_mut(i).filter(|p| p.path_cost != cost) else { return };
        p.path_cost = cost;
        self.reselect();
        self.settle();
    }

    /// Sets whether a port is an edge, and whether that may be found out.
    pub fn set_edge(&mut self, i: usize, (admin, auto): (bool, bool)) {
        let Some(p) = self.ports.get_mut(i).filter(|p| (p.admin_edge, p.auto_edge) != (admin, auto)) else { return };
        (p.admin_edge, p.auto_edge) = (admin, auto);
        p.oper_edge = admin;
        self.settle();
    }

    /// Has a port try again whether others speak the rapid protocol.
    pub fn check(&mut self, i: usize) {
        let Some(p) = self.ports.get_mut(i).filter(|_| self.settings.rapid()) else { return };
        p.mcheck = true;
        self.settle();
    }

    /// The topology has changed, says an operator.
    pub fn detect_change(&mut self) {
        self.ports.iter_mut().for_each(|p| p.rcvd_tc = true);
        self.settle();
    }

    /// Takes a message (17.23).
    pub fn receive(&mut self, i: usize, m: &Bpdu) {
        let Some(p) = self.ports.get_mut(i) else { return };
        p.counts[1] += 1;
        if !p.enabled {
            return;
        }
        match m {
            Bpdu::Rapid(_) => p.rcvd_rstp = true,
            Bpdu::Config(_) | Bpdu::Notification => p.rcvd_stp = true,
        }
        (p.oper_edge, p.edge_delay_while, p.message) = (false, MIGRATE_TIME, Some(*m));
        self.settle();
    }

    /// Counts a message that cannot be read.
    pub fn receive_error(&mut self, i: usize) {
        if let Some(p) = self.ports.get_mut(i) {
            p.counts[2] += 1;
        }
    }

    /// When [`Rapid802::run`] wants to be called next.
    pub fn due(&self) -> Duration {
        self.next_tick
    }

    /// Lets time pass (17.22).
    pub fn run(&mut self, now: Duration) {
        while self.next_tick <= now {
            self.next_tick += Duration::from_secs(1);
            self.ports.iter_mut().for_each(RapidPort::tick);
            self.settle();
        }
    }

    /// What there is to do.
    pub fn take(&mut self) -> Vec<RapidOutput> {
        std::mem::take(&mut self.out)
    }

    fn reselect(&mut self) {
        self.ports.iter_mut().for_each(|p| (p.reselect, p.selected) = (true, false));
    }

    /// Runs all machines until none has anything to do.
    fn settle(&mut self) {
        /// More steps than any bridge needs for one event: each port's machines take some ten.
        const STEPS: usize = 10_000;
        for _ in 0..STEPS {
            let mut changed = self.select_roles();
            for i in 0..self.ports.len() {
                changed |= self.step(i);
            }
            if !changed {
                return;
            }
        }
        tracing::error!(target: "rstp", "the machines of bridge {:016x} find no rest", self.settings.id);
    }

    /// Composes the message of a port (17.21.19, 17.21.20).
    fn message(&self, p: &RapidPort) -> Bpdu {
        let seconds = |n: u32| Duration::from_secs(n.into());
        let (v, t) = (p.designated, p.designated_times);
        let config = Config {
            change: p.tc_while != 0,
            acknowledged: !p.send_rstp && p.tc_ack,
            root: v.root,
            cost: v.cost,
            bridge: v.bridge,
            port: v.port,
            age: seconds(t.age),
            max_age: seconds(t.max_age),
            hello: seconds(t.hello),
            forward_delay: seconds(t.forward_delay),
        };
        if !p.send_rstp {
            return if p.role == Role::Root { Bpdu::Notification } else { Bpdu::Config(config) };
        }
        Bpdu::Rapid(Rapid {
            config,
            role: match p.role {
                Role::Root => Told::Root,
                Role::Designated => Told::Designated,
                Role::Alternate | Role::Backup => Told::Alternate,
                Role::Disabled => Told::Unknown,
            },
            proposal: p.proposing,
            learning: p.learning,
            forwarding: p.forwarding,
            agreement: p.agree,
        })
    }
}

/// What the bridge says of times when it is the root.
fn own_times(s: &RstpSettings) -> Times {
    Times { age: 0, max_age: s.max_age, forward_delay: s.forward_delay, hello: HELLO_TIME }
}

#[cfg(test)]
mod tests;
