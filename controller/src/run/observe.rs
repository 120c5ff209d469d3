//! What the local database and the switch say, and what is local.

use super::{Controller, INTERNAL_VERSION};
use crate::model::Local;
use crate::pinctrl::Snapshot;
use crate::settings::{Settings, bridge};
use crate::{plumbing, zones};
use std::time::Instant;

impl Controller {
    /// Looks at the local database and notes what changed for the flows.
    pub(super) fn observe(&mut self, s: &Settings) {
        let southbound = self.sb.as_ref().is_some_and(|l| l.client.is_connected());
        // Without either of them, what the copy says of sessions is what they were.
        let switch_is_there = self.switch_up && self.ovs.current;
        let now = Instant::now();
        let seen = self.in_line.observed == Some((self.counts(), switch_is_there, southbound));
        let rows_came = self.in_line.rows_wait && !self.ovs.busy;
        if seen && !rows_came && self.input.local.activated == self.activated.0 {
            self.takeover.observe(switch_is_there, self.sessions.iter().map(|(name, s)| (name, *s)), now);
            if self.takeover.view(now) == self.input.local.gateways {
                return;
            }
        }
        let old = self.input.local.clone();
        let mut new = old.clone();
        new.chassis_name = s.system_id.clone();
        new.hostname = s.hostname.clone();
        new.encap_ips = s.encap_ips();
        new.activated = self.activated.0.clone();
        new.southbound = southbound;
        new.chassis = self.input.sb.chassis.iter().find(|(_, c)| c.name == s.system_id).map(|(id, _)| *id);
        if let Some((_, br)) = bridge(&self.ovs.db, &s.bridge) {
            self.sessions = plumbing::observe(&self.ovs.db, br, &self.input.sb, &mut new);
            new.claimants = plumbing::claimants(&self.ovs.db, br);
            self.takeover.observe(switch_is_there, self.sessions.iter().map(|(name, s)| (name, *s)), now);
            new.gateways = self.takeover.view(now);
            if new.zones.is_empty() && self.sb.as_ref().is_some_and(|l| l.ready) {
                new.zones = zones::remembered(&br.external_ids, &self.input);
            }
        }
        self.in_line.rows_wait = self.ovs.busy;
        if let Some((_, br)) = bridge(&self.ovs.db, &s.bridge).filter(|_| !self.ovs.busy) {
            new.zones.extend(zones::from_rows(&br.external_ids, &self.input));
        }
        self.input.local = new;
        let datapaths = crate::local::datapaths(&self.input, &self.input.local);
        let new = Local { datapaths, ..std::mem::replace(&mut self.input.local, old) };
        let reads = self.input.set_local(new);
        self.reads.extend(reads);
        self.in_line.observed = Some((self.counts(), switch_is_there, southbound));
    }

    /// Gives what is here connection tracking zones.
    pub(super) fn assign_zones(&mut self, s: &Settings) {
        let (local, counts) = (&self.input.local, self.counts());
        if local.chassis.is_none() || self.in_line.zones == Some(counts) {
            return;
        }
        let wanted = zones::wanted(&self.input);
        let assigned = zones::assign(&local.zones, &wanted, &zones::requested(&self.input), s.zone_range);
        if let Some(name) = wanted.iter().find(|n| !assigned.contains_key(*n)).filter(|_| !self.exhausted) {
            tracing::warn!(target: "ct_zone", "connection tracking zones are exhausted; {name} has none");
        }
        self.exhausted = assigned.len() < wanted.len();
        self.to_flush.extend(zones::to_flush(&local.zones, &assigned));
        let reads = self.input.set_zones(assigned);
        self.reads.extend(reads);
        self.in_line.zones = Some(counts);
    }

    /// Shows the services what there is now.
    pub(super) fn publish(&mut self) {
        if self.stale
            && let Some(task) = &self.packets
        {
            task.publish(Snapshot::of(&self.input));
            self.stale = false;
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
