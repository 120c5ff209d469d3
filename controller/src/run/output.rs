//! What the switch is told: flows, what it is to forget, and announcements.

use super::Controller;
use super::state::Configuration;
use crate::openflow::Command;
use crate::openflow::install::Changes;
use crate::units::flows;
use std::sync::PoisonError;
use std::time::Instant;

impl Controller {
    pub(super) fn derive(&mut self) {
        self.flush_zones();
        let global = self.input.sb.sb_global.values().next();
        let (nb_cfg, timestamp) = global.map_or((0, 0), |g| (g.nb_cfg, g.nb_cfg_timestamp));
        let first = !self.derived;
        let reads = std::mem::take(&mut self.reads);
        self.settled_reads = 0;
        let mut changes = Changes::default();
        if first || !reads.is_empty() {
            let start = Instant::now();
            let before = first.then(|| self.tables.restart());
            let (tables, ids) = (&mut self.tables, &self.ids);
            changes = self.engine.update(&self.input, reads, |c| tables.apply(c, ids));
            self.to_forget.extend(changes.forget.drain(..));
            if let Some(before) = before {
                self.to_forget.extend(self.tables.left_behind(&before));
                flows::RUNS.inc();
            }
            self.derived = true;
            self.times.derived(first, start.elapsed());
        }
        if self.switch_up && first {
            self.install_all();
        } else if self.switch_up && !changes.is_empty() {
            self.sequence += 1;
            self.bundle(changes);
        } else if !self.switch_up {
            self.unsent |= first || !changes.is_empty();
        }
        self.forget_connections();
        let last = self.pending_cfg.last().map(|p| (p.nb_cfg, p.timestamp)).or(self.realised_cfg);
        // A configuration that changes no flow is realised without a switch, too.
        if (self.switch_up || !self.unsent) && self.has_all_rows() && last != Some((nb_cfg, timestamp)) {
            self.pending_cfg.push(Configuration { sequence: self.sequence, nb_cfg, timestamp });
        }
    }

    pub(super) fn install_all(&mut self) {
        self.unsent = false;
        self.sequence += 1;
        let changes = self.tables.replace(self.engine.outputs());
        tracing::debug!(target: "ofctrl", "clearing all flows");
        tracing::info!(target: "ofctrl", "replacing the flow tables: {} flows, {} groups", self.tables.len().0, self.tables.len().1);
        self.bundle(changes);
        self.announcer.restart(Instant::now());
    }

    /// Asks the switch for a sign of life, unless it owes one: a bundle without changes is confirmed like any other.
    pub(super) fn ask_switch(&mut self, now: Instant) {
        if self.switch_up && self.asked <= self.installed {
            self.sequence += 1;
            self.asked = self.sequence;
            self.takeover.ask(now);
            self.bundle(Changes::default());
        }
    }

    pub(super) fn bundle(&mut self, Changes { meters, tables, unused, .. }: Changes) {
        self.given_at = Instant::now();
        if let Some(b) = &self.switch {
            b.flows.give(Command::Bundle { changes: tables, meters, unused, sequence: self.sequence });
        }
    }

    /// Lets the switch forget the connections of zones that change hands, before flows of the new owner are there.
    pub(super) fn flush_zones(&mut self) {
        if self.switch_up {
            for zone in std::mem::take(&mut self.to_flush) {
                self.send(openflow_rs::Message::CtFlushZone(zone));
            }
        }
    }

    /// Lets the switch forget the connections of backends that went, behind the flows of what took their place.
    pub(super) fn forget_connections(&mut self) {
        if self.switch_up {
            for c in std::mem::take(&mut self.to_forget) {
                tracing::debug!(target: "ofctrl", "{c}");
                self.send(openflow_rs::Message::CtFlush(c.flush()));
            }
        }
    }

    /// Whether the switch has all that follows from what is here.
    pub(super) fn is_installed(&self) -> bool {
        self.is_sent() && self.installed >= self.sequence
    }

    /// Whether the switch has been sent all that follows from what is known.
    pub(super) fn is_sent(&self) -> bool {
        self.switch_up && self.derived && self.has_all_rows()
    }

    pub(super) fn can_announce(&self) -> bool {
        self.is_installed() && !self.input.local.gateways.starting
    }

    /// Asks the next hops that gateway ports need, also while nothing is announced: before it serves, a gateway is to know.
    fn ask_next_hops(&mut self, now: Instant) {
        if !self.is_installed() {
            return;
        }
        let before = self.monitors.probes.changes();
        for m in self.monitors.probes.due(now) {
            self.send(m);
        }
        self.look |= before != self.monitors.probes.changes();
    }

    pub(super) fn announce(&mut self) {
        let now = Instant::now();
        self.ask_next_hops(now);
        if !self.can_announce() {
            return;
        }
        let state = Some((self.presence.versions.addresses, self.longest_pause));
        if self.in_line.served != state {
            self.in_line.served = state;
            self.announcer.update(&self.presence.addresses, self.longest_pause, now);
            for (key, only_known) in std::mem::take(&mut self.presence.to_tell) {
                if !only_known || key.is_row_of(&self.input) {
                    self.learned.add(key, false, now);
                }
            }
        }
        for m in self.announcer.due(now) {
            self.send(m);
        }
        self.advertiser.observe(&self.input, now);
        for m in self.advertiser.due(now) {
            self.send(m);
        }
        for question in self.aging.due(&self.input, now) {
            if let Some(b) = &self.switch {
                b.statistics.ask(question);
            }
        }
        for m in self.monitors.due(&self.input, &mut self.presence, now) {
            self.send(m);
        }
    }

    pub(super) fn report(&self) {
        self.report_problems();
        let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        s.southbound = self.sb.as_ref().is_some_and(|l| l.client.is_connected());
        if s.zones != self.input.local.zones {
            s.zones.clone_from(&self.input.local.zones);
        }
    }

    /// Says what could not be turned into flows, once.
    pub(super) fn report_problems(&self) {
        let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        s.tables = self.tables.len();
        let problems = self.tables.problems();
        if s.problems != *problems {
            for (_, p) in problems.iter().filter(|(row, p)| s.problems.get(*row) != Some(*p)) {
                tracing::warn!(target: "lflow", kind = daemon::kind(p), "{p}");
            }
            s.problems.clone_from(problems);
        }
    }
}
