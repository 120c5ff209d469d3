//! What the local database and the switch say, and what is local.

use super::{Controller, INTERNAL_VERSION};
use crate::input::model::is_vtep;
use crate::input::settings::{Settings, bridge};
use crate::{rows::ha_peers, rows::switch_config, rows::uplinks, rows::zones};
use ovn_schema::{Str, sb};
use std::time::{Duration, Instant};

impl Controller {
    /// Takes over what changed of the local database, and what follows from it and from the southbound database besides flows.
    pub(super) fn observe(&mut self, s: &Settings) {
        let southbound = self.sb.as_ref().is_some_and(|l| l.client.is_connected());
        let chassis = self.input.chassis(&s.system_id);
        let mut reads = self.input.set_identity(s.system_id.clone(), s.hostname.clone(), s.encap_ips(), chassis);
        if self.input.local.activated != self.activated.0 {
            reads.extend(self.input.set_activated(self.activated.0.clone()));
        }
        reads.extend(self.input.set_tunnelling(s.tunnelling()));
        let br = bridge(&self.ovs.db, &s.bridge);
        if let Some(br) = br {
            let vifs = self.interfaces.look(&self.ovs.db, br);
            reads.extend(self.input.set_vifs(vifs));
            reads.extend(self.input.set_collectors(switch_config::collectors(&self.ovs.db, br.0)));
        }
        let state = Some((self.interfaces.plumbing(), self.input.version(sb::TableId::Chassis)));
        if self.in_line.sessions != state && br.is_some() {
            self.in_line.sessions = state;
            let (localnets, tunnels) = (self.interfaces.localnets(), self.interfaces.tunnels());
            reads.extend(self.input.set_ports(localnets, tunnels));
            // A top-of-rack switch watches us; it says nothing of gateways.
            let chassis = |name: &Str| self.input.sb.chassis.get(&self.input.chassis(name)?);
            self.sessions = self.interfaces.sessions();
            self.sessions.retain(|name, _| !chassis(name).is_some_and(|c| is_vtep(c)));
        }
        // Without either of them, what the copy says of sessions is what they were.
        let switch_is_there = self.switch_up && self.ovs.current;
        let now = Instant::now();
        self.look_at_uplinks(s, now);
        self.takeover.observe_connections(ha_peers::behind(&s.peers), now);
        self.look_at_members();
        self.takeover.observe(switch_is_there, self.sessions.iter().map(|(name, s)| (name, *s)), now);
        reads.extend(self.input.set_alive(self.takeover.view(now), southbound));
        self.reads.extend(reads);
        self.restore_older_zones(s);
        self.settle();
    }

    /// Takes over who is in the HA chassis groups of this chassis.
    fn look_at_members(&mut self) {
        let tables = [sb::TableId::HaChassisGroup, sb::TableId::HaChassis, sb::TableId::Chassis];
        let state = (self.input.local.chassis, tables.map(|t| self.input.version(t)));
        if self.in_line.members != Some(state) {
            self.in_line.members = Some(state);
            self.takeover.observe_members(&ha_peers::members(&self.input));
        }
    }

    /// Takes over whether the uplinks are there that gateway ports need.
    fn look_at_uplinks(&mut self, s: &Settings, now: Instant) {
        use sb::TableId;
        let tables = [TableId::PortBinding, TableId::HaChassisGroup, TableId::HaChassis, TableId::Chassis];
        let versions = tables.map(|t| self.input.version(t));
        let probes = &mut self.monitors.probes;
        let state = (self.interfaces.plumbing(), self.presence.versions.patches, versions, probes.changes());
        if self.in_line.uplinks.as_ref().is_none_or(|(of, _)| *of != state) {
            probes.observe(uplinks::questions(&self.input, &self.presence, s), now);
            let found = uplinks::look(&self.ovs.db, &self.input, &self.presence, s, probes);
            let before = self.in_line.uplinks.as_ref().map(|(_, u)| u);
            for text in found.news(before) {
                tracing::warn!(target: "main", "{text}");
            }
            if before.is_some_and(|u| !u.lost.is_empty()) && found.lost.is_empty() {
                tracing::info!(target: "main", "all uplinks of gateway ports are there again");
            }
            self.in_line.uplinks = Some((state, found));
        }
        let there = self.in_line.uplinks.as_ref().is_none_or(|(_, u)| !u.resigns());
        match s.uplink_hold_down {
            Some(hold_down) => self.takeover.observe_uplink(there, hold_down, now),
            None => self.takeover.observe_uplink(true, Duration::ZERO, now),
        }
    }

    /// Brings local datapaths, and all else that is here besides flows, up to date.
    pub(super) fn settle(&mut self) {
        let seen = self.settled_reads.min(self.reads.len());
        let more = self.presence.settle(&mut self.input, self.reads.get(seen..).unwrap_or_default());
        self.reads.extend(more);
        self.settled_reads = self.reads.len();
    }

    /// Takes over the zones that the bridge remembers: at the start all, later on those that an older controller named by rows.
    fn restore_older_zones(&mut self, s: &Settings) {
        let Some((_, br)) = bridge(&self.ovs.db, &s.bridge) else { return };
        if self.input.local.zones.is_empty() && self.sb.as_ref().is_some_and(|l| l.ready) {
            let zones = zones::remembered(&br.external_ids, &self.input);
            self.reads.extend(self.input.set_zones(zones));
        }
        let state = Some((self.interfaces.plumbing(), self.input.version(sb::TableId::DatapathBinding)));
        // What was written and is not there yet may be of these.
        if self.ovs.busy || self.in_line.rows == state {
            return;
        }
        self.in_line.rows = state;
        let older = zones::from_rows(&br.external_ids, &self.input);
        if !older.is_empty() {
            let mut zones = self.input.local.zones.clone();
            zones.extend(older);
            self.reads.extend(self.input.set_zones(zones));
        }
    }

    /// Gives what is here connection tracking zones.
    pub(super) fn assign_zones(&mut self, s: &Settings) {
        let state = |c: &Controller| Some((c.presence.versions.zones, c.input.zones_generation(), s.zone_range));
        let local = &self.input.local;
        if local.chassis.is_none() || self.in_line.zones == state(self) {
            return;
        }
        let wanted = &self.presence.zones;
        let assigned = zones::assign(&local.zones, wanted, &self.presence.requested, s.zone_range);
        if let Some(name) = wanted.iter().find(|n| !assigned.contains_key(*n)).filter(|_| !self.exhausted) {
            tracing::warn!(target: "ct_zone", "connection tracking zones are exhausted; {name} has none");
        }
        self.exhausted = assigned.len() < wanted.len();
        self.to_flush.extend(zones::to_flush(&local.zones, &assigned));
        let reads = self.input.set_zones(assigned);
        self.reads.extend(reads);
        self.in_line.zones = state(self);
    }

    /// Tells the services what changed for them.
    pub(super) fn publish(&mut self) {
        let Some(task) = &self.packets else { return };
        for told in self.presence.news(std::mem::take(&mut self.stale)) {
            task.tell(told);
        }
    }

    /// Whether northd is of the version that this controller is made for, where the operator wants that to matter.
    pub(super) fn version_matches(&mut self, s: &Settings) -> bool {
        let theirs = self.input.sb.sb_global.values().next().and_then(|g| g.options.get("northd_internal_version"));
        let text = match theirs {
            _ if !s.match_northd_version => None,
            Some(v) if **v == *INTERNAL_VERSION => None,
            Some(v) => Some(format!("controller version - {INTERNAL_VERSION} mismatch with northd version - {v}")),
            None => Some("northd does not tell its version".to_string()),
        };
        if self.version_complaint != text {
            if let Some(t) = &text {
                tracing::warn!(target: "main", "{t}");
            }
            self.version_complaint = text;
        }
        self.version_complaint.is_none()
    }
}
