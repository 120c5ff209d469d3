//! What the databases, the switch and the packet-in services say.

use super::{Controller, milliseconds};
use crate::input::interfaces::bare;
use crate::input::model::Read;
use crate::openflow::{Command, Event as SwitchEvent};
use crate::pinctrl::Report;
use crate::pinctrl::task::{Resolved, Task};
use crate::rows::zones;
use crate::rows::{claims, learned};
use crate::units::flows::{self, ChassisFlows};
use incremental::Engine;
use ovn_schema::{Change, DatapathKey, PortKey, Uuid, ovs, sb};
use ovsdb_rs::client::{Event, Update};
use packet::Mac;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often what packets teach is looked at in the long run, at most: what a flood teaches is rows of a database that all
/// chassis share.
const REPORTS_PAUSE: Duration = Duration::from_millis(100);
/// How many looks may follow each other at once after a quiet time: the answer that a packet waits for comes a moment after
/// the packet.
const REPORTS_AT_ONCE: u32 = 8;
/// What was learned and waits to be written, at most.
const MOST_LEARNED: usize = 10_000;

impl Controller {
    pub(super) fn local_event(&mut self, e: Event) {
        self.look = true;
        match e {
            Event::Update(u) => {
                if u.reset {
                    self.ovs.db = ovs::Database::default();
                    self.interfaces.restart();
                }
                for c in &u.changes {
                    let Some(schema) = u.schema.tables.get(&*c.table) else { continue };
                    match self.ovs.db.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
                        Ok(Some(change)) => self.interfaces.changed(&change, self.is_own_mark(&change)),
                        Ok(None) => {}
                        Err(e) => {
                            tracing::warn!(target: "ovsdb_idl", "Open_vSwitch row {} of {}: {e}; it is left out", c.uuid, c.table)
                        }
                    }
                }
                self.local_updates += 1;
                self.ovs.ready = true;
                self.ovs.current = true;
            }
            Event::Disconnected => {
                self.ovs.current = false;
                tracing::info!(target: "reconnect", "Open_vSwitch: connection lost");
            }
            Event::Lock { .. } => {}
        }
    }

    /// Whether a change of the local database is what this controller wrote: that an interface's flows are in, the zones that there
    /// are; or the number by which the switch is asked to look. What is here does not follow from these.
    fn is_own_mark(&self, change: &ovs::AnyChange) -> bool {
        match change {
            ovs::AnyChange::Interface(Change { old: Some(old), new: Some(new), .. }) => {
                let bare = |i: &ovs::Interface| {
                    let mut i = i.clone();
                    i.external_ids.retain(|k, _| !matches!(&**k, "ovn-installed" | "ovn-installed-ts"));
                    i
                };
                old.external_ids != new.external_ids && bare(old) == bare(new)
            }
            ovs::AnyChange::Bridge(Change { old: Some(old), new: Some(new), .. }) => {
                old.ports == new.ports
                    && bare(old) == bare(new)
                    && zones::are_remembered(&new.external_ids, &self.input.local.zones)
            }
            ovs::AnyChange::OpenVswitch(Change { old: Some(old), new: Some(new), .. }) => {
                ovs::OpenVswitch { next_cfg: new.next_cfg, ..(**old).clone() } == **new
            }
            _ => false,
        }
    }

    pub(super) fn southbound_event(&mut self, e: Event) {
        match e {
            Event::Update(u) => self.southbound_update(&u),
            Event::Disconnected => {
                self.look = true;
                tracing::info!(target: "reconnect", "{}: connection lost", self.remote);
                tracing::info!(target: "main", "OVNSB commit failed: nothing is written until the connection is back.");
            }
            Event::Lock { .. } => self.look = true,
        }
    }

    pub(super) fn southbound_update(&mut self, u: &Update) {
        // An update without changes says that rows are complete.
        self.look |= u.reset || u.changes.is_empty();
        if u.reset {
            // Start from nothing, but keep what is in the switch until the new state is complete.
            self.input.restart();
            self.ids = Arc::default();
            self.engine = Engine::new(ChassisFlows::new(self.ids.clone()));
            self.presence.restart();
            (self.reads, self.settled_reads) = (Vec::new(), 0);
            (self.derived, self.settled) = (false, false);
        }
        for c in &u.changes {
            let Some(schema) = u.schema.tables.get(&*c.table) else { continue };
            match self.input.sb.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
                Ok(Some(change)) => {
                    self.look |= self.input.concerns(&change);
                    let mut reads = self.input.changed(&change);
                    if c.old.is_some() && c.new.is_some() {
                        // Which rows there are did not change.
                        reads.retain(|r| !matches!(r, Read::Table(_)));
                    }
                    self.reads.extend(reads);
                    if let sb::AnyChange::Chassis(ovn_schema::Change { old, new: Some(c), uuid }) = &change {
                        flows::check_mappings(c);
                        let asked = old.as_ref().map(|old| claims::asked(*uuid, (old, c), &self.input));
                        for port in asked.unwrap_or_default() {
                            self.takeover.asked_for(&port, Instant::now());
                        }
                    }
                    if let sb::AnyChange::LogicalFlow(ovn_schema::Change { uuid, new: None, .. }) = &change {
                        self.engine.derivation().forget(*uuid);
                    }
                    if let sb::AnyChange::PortBinding(ovn_schema::Change { old: Some(old), new: Some(new), .. }) =
                        &change
                    {
                        self.gateway_moved(old, new);
                    }
                    if let sb::AnyChange::MacBinding(ovn_schema::Change { new: Some(m), .. }) = &change {
                        self.resolved(m);
                    }
                }
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!(target: "ovsdb_idl", "OVN_Southbound row {} of {}: {e}; it is left out", c.uuid, c.table)
                }
            }
        }
        if let Some(l) = &mut self.sb {
            l.ready = true;
        }
    }

    /// Tells the take-over machine when another chassis claims a gateway port or gives one up.
    pub(super) fn gateway_moved(&mut self, old: &sb::PortBinding, new: &sb::PortBinding) {
        if new.ha_chassis_group.is_none() || old.chassis == new.chassis {
            return;
        }
        let (now, me) = (Instant::now(), self.input.local.chassis);
        let other =
            |c: Option<Uuid>| self.input.sb.chassis.get(&c?).filter(|c| c.name != self.input.local.chassis_name);
        match (other(old.chassis), other(new.chassis)) {
            (_, Some(claimant)) => self.takeover.claimed(&claimant.name, now),
            (Some(before), None) if new.chassis.is_none() => self.takeover.released(&before.name),
            _ => {}
        }
        if old.chassis.is_some() && old.chassis == me && new.chassis.is_some() {
            self.takeover.overtaken(&new.logical_port, now);
        }
        if new.chassis.is_some() && new.chassis == me {
            if let Some(before) = other(old.chassis).filter(|c| claims::is_orderly(c)) {
                self.takeover.relieved(&new.logical_port, &before.name, now);
            }
            // Until now the other one may have spoken for the port as well, and bridges have learned it there.
            self.announcer.restart(now);
        }
    }

    /// Packets that wait for a neighbour go on as soon as somebody, here or on another chassis, learned it.
    pub(super) fn resolved(&self, m: &sb::MacBinding) {
        let Some(task) = self.packets.as_ref().filter(|_| self.derived) else { return };
        let Some(dp) = self.input.sb.datapath_binding.get(&m.datapath) else { return };
        let Some((_, p)) = self.input.port(&m.logical_port) else { return };
        let (Ok(ip), Some(mac)) = (m.ip.parse(), m.mac.parse::<Mac>().ok()) else { return };
        task.resolved(Resolved { datapath: dp.key(), port: p.key(), ip, mac });
    }

    /// Packets that begin to wait for a neighbour that is known already go on at once.
    fn answer_waiting(&self, datapath: DatapathKey, port: PortKey, ip: IpAddr) {
        let Some(dp) = self.input.datapath(datapath) else { return };
        let Some((_, p)) = self.input.port_by_key(dp, port) else { return };
        if let Some((_, m)) = self.input.mac_binding(&p.logical_port, &ip.to_string().into()) {
            self.resolved(m);
        }
    }

    pub(super) fn send(&self, m: openflow_rs::Message) {
        if let Some(b) = &self.switch {
            b.flows.give(Command::Send(Box::new(m)));
        }
    }

    pub(super) fn switch_event(&mut self, e: SwitchEvent) {
        self.look |= match &e {
            SwitchEvent::Installed(_) => self.waits,
            SwitchEvent::Refused(_) => false,
            _ => true,
        };
        match e {
            SwitchEvent::Connected => {
                self.switch_up = true;
                self.flush_zones();
                if self.derived {
                    self.install_all();
                }
            }
            SwitchEvent::Disconnected => self.switch_up = false,
            SwitchEvent::Installed(n) => {
                if n > self.installed && n == self.sequence {
                    self.times.installed(self.given_at.elapsed());
                }
                self.installed = self.installed.max(n);
                if self.installed >= self.asked {
                    self.takeover.answered(Instant::now());
                }
            }
            SwitchEvent::Refused(text) => tracing::warn!(target: "ofctrl", kind = daemon::kind(&text), "{text}"),
            SwitchEvent::Features(f) => self.features = Some(f),
            SwitchEvent::Statistics(flows) => {
                for m in self.aging.observe(&flows, &self.input, milliseconds()) {
                    self.send(m);
                }
            }
        }
    }

    /// Takes over what packets taught, all that there is.
    pub(super) fn taught(&mut self, first: Report) {
        self.look = true;
        let now = Instant::now();
        self.reports_after = reports_after(self.reports_after, now);
        let mut next = Some(first);
        while let Some(r) = next {
            match r {
                Report::Activated(datapath, port) => self.activated.add(&self.input, datapath, port),
                Report::Waits(datapath, port, ip) => self.answer_waiting(datapath, port, ip),
                Report::Packet(p) => {
                    for m in self.monitors.packet(&p, &self.input, now) {
                        self.send(m);
                    }
                }
                Report::Session(row, state) => self.monitors.sessions.told(row, state),
                Report::Spoke(datapath, port, parent) => self.virtual_ports.spoke(datapath, port, parent, now),
                r => {
                    let room = self.learned.len() < MOST_LEARNED;
                    if let Some((key, everywhere)) = learned::Key::of(&r).filter(|_| room) {
                        self.learned.add(key, everywhere, now);
                    }
                }
            }
            next = self.packets.as_mut().and_then(Task::more);
        }
    }
}

/// When what packets teach may be looked at next: `before` says the same of the look at `now`.
fn reports_after(before: Instant, now: Instant) -> Instant {
    let saved = now.checked_sub(REPORTS_PAUSE * REPORTS_AT_ONCE).unwrap_or(before);
    before.max(saved) + REPORTS_PAUSE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays looks as often as they are allowed, beginning after a quiet time; gives when each was, in milliseconds.
    fn looks(n: usize) -> Vec<u128> {
        let start = Instant::now() + Duration::from_secs(60);
        let (mut now, mut after, mut at) = (start, start - Duration::from_secs(30), Vec::new());
        for _ in 0..n {
            now = now.max(after);
            at.push(now.duration_since(start).as_millis());
            after = reports_after(after, now);
        }
        at
    }

    #[test]
    fn a_few_looks_at_once_then_ten_a_second() {
        let at = looks(30);
        let at_once = REPORTS_AT_ONCE as usize;
        assert!(at[..at_once].iter().all(|t| *t == 0), "{at:?}");
        assert!(at[at_once..].windows(2).all(|w| w[1] - w[0] == 100), "{at:?}");
        assert!(at[at_once] <= 100);
    }
}
