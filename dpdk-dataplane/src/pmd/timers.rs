//! What the main PMD thread does when its time has come: messages of BFD, CFM, LLDP, LACP and spanning trees, and what
//! follows from their states.

use super::MainPmd;
use super::main::{ControllerEvent, PathChange};
use crate::ports::bfd::BfdPorts;
use crate::ports::cfm::points::CfmAction;
use crate::ports::frame::{Frame, memory};
use crate::ports::lldp::LldpAction;
use crate::ports::stp::bridges::Done;
use openflow_rs::action::Action;
use openflow_rs::{FieldId, Match, PortNo};
use std::collections::HashMap;
use std::time::Duration;
use switch::{BridgeId, DropReason, KnownWay, Outputs, Switch};

/// How many packets a port has received.
fn received(switch: &Switch, bridge: BridgeId, port: PortNo) -> u64 {
    switch.bridge(bridge).and_then(|b| b.ports.get(&port)).map_or(0, |p| p.stats[0])
}

/// Where frames of BFD sessions go.
struct Ways<'a> {
    switch: &'a mut Switch,
    out: &'a mut Outputs<Frame>,
    now: Duration,
}

impl BfdPorts for Ways<'_> {
    fn received(&mut self, bridge: BridgeId, port: PortNo) -> u64 {
        self.switch.count();
        received(self.switch, bridge, port)
    }

    fn send(&mut self, bridge: BridgeId, port: PortNo, frame: &[u8], oam: bool, way: &mut KnownWay) {
        let Some(m) = memory().and_then(|m| m.packet(frame)) else {
            return self.switch.drops.add(DropReason::NoBuffer);
        };
        let Err(p) = self.switch.send_again(way, Frame(m), self.now, self.out) else { return };
        let marked = if oam { Match::new().with(FieldId::TunFlags, 1) } else { Match::new() };
        let actions = [Action::Output { port, max_len: 0 }];
        self.switch.packet_out_again(way, bridge, (&marked, &actions), p, self.now, self.out);
    }
}

impl MainPmd {
    /// Runs all timers. False if no BFD session was due, as most of the time.
    pub(super) fn run_timers(&mut self, now: Duration) -> bool {
        let MainPmd { bfd, bfd_changes, switch, out, .. } = self;
        let looked_at = bfd.poll(now, &mut Ways { switch, out, now }, bfd_changes);
        for (bridge, port, status) in self.bfd_changes.drain(..) {
            self.liveness_due = true;
            let _ = self.path_changes.send(PathChange::Bfd(bridge, port, status));
        }
        if self.cfm.due().is_some_and(|t| t <= now) {
            self.switch.count();
        }
        for a in self.cfm.poll(now, |bridge, port| received(&self.switch, bridge, port)) {
            match a {
                CfmAction::Send(bridge, port, frame) => {
                    self.inject(bridge, Match::new(), frame, vec![Action::Output { port, max_len: 0 }]);
                }
                CfmAction::Status(bridge, port, status) => {
                    self.liveness_due = true;
                    let _ = self.path_changes.send(PathChange::Cfm(bridge, port, status));
                }
                CfmAction::Warn(bridge, port, what) => {
                    tracing::warn!(target: "cfm", "{}: {what}", self.port_name(bridge, port));
                }
            }
        }
        for a in self.lldp.poll(now) {
            match a {
                LldpAction::Send(bridge, port, frame) => {
                    self.inject(bridge, Match::new(), frame, vec![Action::Output { port, max_len: 0 }]);
                }
                LldpAction::Warn(_, _, what) => tracing::warn!(target: "lldp", "{what}"),
            }
        }
        self.liveness_due |= self.bonds.due(now);
        for (bridge, port, frame) in self.bonds.poll(&mut self.switch, now) {
            self.inject(bridge, Match::new(), frame, vec![Action::Output { port, max_len: 0 }]);
        }
        self.run_trees(now);
        let tick = now >= self.next_tick;
        if std::mem::take(&mut self.liveness_due) || tick {
            self.update_liveness();
        }
        if tick {
            self.next_tick = now + Duration::from_secs(1);
            self.switch.tick(now, &mut self.out);
            self.log_oversize_datagrams();
            self.log_exhausted_ranges();
            self.fast.join_ended();
            if let Some(processors) = self.fast.ended() {
                self.set_fast_pmds(&processors);
            }
            self.age_next_hops(now);
        }
        looked_at > 0
    }

    /// Advances spanning trees, and sends their messages.
    pub fn run_trees(&mut self, now: Duration) {
        let mut done = Done::default();
        self.trees.poll(&mut self.switch, now, &mut done);
        self.rapid.poll(&mut self.switch, now, &mut done);
        for (bridge, port, frame) in done.frames {
            self.inject(bridge, Match::new(), frame, vec![Action::Output { port, max_len: 0 }]);
        }
        done.changes.into_iter().for_each(|c| drop(self.events.send(ControllerEvent::Spanning(c))));
    }

    /// Logs datagrams that were too long to be reassembled, once a second at most.
    fn log_oversize_datagrams(&mut self) {
        let now = self.switch.fragments.counts.map(|c| c.big);
        let before = std::mem::replace(&mut self.big, now);
        for (version, (n, old)) in ["v4", "v6"].into_iter().zip(now.into_iter().zip(before)) {
            if n > old {
                tracing::warn!(target: "ipf", "Unsupported big reassembled {version} packet: {} fragments dropped", n - old);
            }
        }
    }

    /// Logs packets that found no address and port left to be translated to, once a second at most.
    fn log_exhausted_ranges(&mut self) {
        let now = self.switch.drops.get(switch::DropReason::NatExhausted);
        let before = std::mem::replace(&mut self.exhausted, now);
        if now > before {
            let n = now - before;
            tracing::warn!(
                target: "conntrack",
                "Unable to NAT due to tuple space exhaustion - if DoS attack, use firewalling and/or zone partitioning: {n} packets dropped"
            );
        }
    }

    /// Tells the switch what BFD, CFM and LACP say of each port: all of it on each change and once a second, so that a
    /// change which was missed for whatever reason holds a port up for a second at most.
    pub fn update_liveness(&mut self) {
        let bfd: HashMap<_, _> = self.bfd.forwarding().collect();
        let cfm: HashMap<_, _> = self.cfm.forwarding().collect();
        let lacp: HashMap<_, _> = self.bonds.lacp().collect();
        let ports: Vec<(BridgeId, PortNo)> = self
            .switch
            .bridges()
            .flat_map(|(id, b)| b.ports.values().map(move |p| ((id, p.no), [p.bfd, p.cfm, p.lacp])))
            .filter(|(at, old)| [&bfd, &cfm, &lacp].map(|m| m.get(at).copied()) != *old)
            .map(|(at, _)| at)
            .collect();
        for at in ports {
            let now = [&bfd, &cfm, &lacp].map(|m| m.get(&at).copied());
            if self.switch.set_inputs(at.0, at.1, |p| [p.bfd, p.cfm, p.lacp] = now)
                && let Some(p) = self.switch.bridge(at.0).and_then(|b| b.ports.get(&at.1))
            {
                let _ = self.events.send(ControllerEvent::Liveness(at.0, Box::new(p.clone())));
            }
        }
    }
}
