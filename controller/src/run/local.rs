//! What the controller writes into the local Open_vSwitch database.

use super::state::{Done, LocalState};
use super::{Controller, milliseconds};
use crate::plan::{self, Plan};
use crate::settings::{Settings, bridge, interfaces};
use crate::{mirrors, plumbing, queues, switch_config, zones};
use ovn_schema::{Map, Str, Uuid, Write, ovs};
use ovsdb_rs::DatabaseSchema;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

impl Controller {
    pub(super) fn write_local(&mut self, s: &Settings, southbound_ready: bool) {
        if self.ovs.busy || !self.ovs.client.is_connected() {
            return;
        }
        let Some(schema) = self.ovs.client.schema() else { return };
        let mut plan = Plan::new(schema.clone());
        let state = LocalState {
            counts: self.counts(),
            updates: self.local_updates,
            zones: self.input.zones_generation(),
            installed: self.is_installed(),
            realised: self.realised_cfg,
            known: southbound_ready,
        };
        let mut line = std::mem::take(&mut self.in_line.local);
        line.unless(state, &mut plan, |plan| self.compare_local(s, &schema, southbound_ready, plan));
        self.in_line.local = line;
        self.send_local(plan);
        if southbound_ready && s.index.is_some() {
            self.bridge_before = Some(s.bridge.clone());
        }
    }

    /// Puts what the local database lacks into the plan.
    fn compare_local(&mut self, s: &Settings, schema: &DatabaseSchema, southbound_ready: bool, plan: &mut Plan) {
        let counts = self.counts();
        self.write_index(s, plan);
        switch_config::vlan_limit(&self.ovs.db, plan);
        if let Some(br) = plumbing::ensure_bridge(&self.ovs.db, s, plan)
            && southbound_ready
            && s.index.is_some()
            // Before this chassis is in the database nobody can tell what belongs to it.
            && let Some(me) = self.input.local.chassis
        {
            let mut line = std::mem::take(&mut self.in_line.ports);
            let (db, input, said) = (&self.ovs.db, &self.input, &mut self.patch_said);
            let before = self.bridge_before.as_deref();
            line.unless((counts, southbound_ready), plan, |plan| {
                if before != Some(&*s.bridge) {
                    plumbing::clear_old_tunnels(db, s, before, plan);
                }
                plumbing::reconcile_tunnels(db, br, input, s, Some(me), plan);
                plumbing::reconcile_patches(db, br, input, s, said, plan);
                plumbing::reconcile_evpn(db, br, s, said, plan);
                said.end();
                queues::reconcile(db, input, s, plan);
                mirrors::reconcile(db, br, input, plan);
                switch_config::prefixes(db, schema, br, plan);
            });
            self.in_line.ports = line;
            switch_config::connection_limits(&self.ovs.db, br.1, &self.input, plan);
            self.write_bridge(br, plan);
            self.write_interfaces(br.1, plan);
        }
    }

    /// Makes the integration bridge, which needs no more than the database.
    pub(super) fn make_bridge(&mut self) {
        if self.ovs.busy || !self.ovs.client.is_connected() {
            return;
        }
        let (Some(schema), Some(s)) = (self.ovs.client.schema(), Settings::of_bridge(&self.ovs.db)) else { return };
        let mut plan = Plan::new(schema);
        plumbing::ensure_bridge(&self.ovs.db, &s, &mut plan);
        self.send_local(plan);
    }

    /// Sends what may be sent now.
    fn send_local(&mut self, plan: Plan) {
        let operations = self.local_attempts.choose(plan, Instant::now());
        if operations.is_empty() {
            return;
        }
        self.ovs.busy = true;
        let (client, done) = (self.ovs.client.clone(), self.done_tx.clone());
        tokio::spawn(async move {
            let r = plan::commit(client, operations).await;
            let _ = done.send(Done::Local(r));
        });
    }

    /// The sign by which this controller's ports are told from those of others on this machine: nothing for the first one, then
    /// 0 to 9 and a to z.
    fn write_index(&self, s: &Settings, plan: &mut Plan) {
        let Some((root, row)) = self.ovs.db.open_vswitch.iter().next().filter(|_| s.index.is_none()) else { return };
        let used: BTreeSet<&str> =
            row.other_config.iter().filter(|(k, _)| k.starts_with("ovn-chassis-idx-")).map(|(_, v)| &**v).collect();
        let signs = std::iter::once(String::new()).chain(('0'..='9').chain('a'..='z').map(|c| c.to_string()));
        let Some(free) = signs.into_iter().find(|i| !used.contains(&**i)) else {
            tracing::error!(target: "chassis", "All unique controller indices consumed: take other_config:ovn-chassis-idx-* of controllers that are gone out of the Open_vSwitch table");
            return;
        };
        let key: Str = format!("ovn-chassis-idx-{}", s.system_id).into();
        let pair = Map::from([(key, free.into())]);
        let txn = &mut plan.part("Open_vSwitch:other_config", &s.system_id).txn;
        txn.add_to_row(*root, ovs::OpenVswitch::other_config(&pair));
    }

    /// Zones, start and configuration number, in the bridge's `external_ids`.
    fn write_bridge(&self, (id, br): (Uuid, &ovs::Bridge), plan: &mut Plan) {
        let mut ids = zones::remember(&br.external_ids, &self.input.local.zones);
        ids.insert("ovn-startup-ts".into(), self.startup.as_str().into());
        if let Some((cfg, timestamp)) = self.realised_cfg.filter(|(c, _)| *c != 0) {
            let cfg: Str = cfg.to_string().into();
            if ids.insert("ovn-nb-cfg".into(), cfg.clone()) != Some(cfg) {
                ids.insert("ovn-nb-cfg-ts".into(), self.realised_at.to_string().into());
                match timestamp {
                    0 => drop(ids.remove("ovn-nb-cfg-sb-ts")),
                    t => drop(ids.insert("ovn-nb-cfg-sb-ts".into(), t.to_string().into())),
                }
            }
        }
        if ids != br.external_ids {
            let wish = (&self.input.local.zones, self.realised_cfg);
            let part = plan.part(format!("Bridge {}:external_ids", br.name), wish);
            part.exchange_pairs(("Bridge", id), "external_ids", &br.external_ids, &ids);
        }
    }

    /// `ovn-installed` on interfaces whose port is bound here and whose flows are in, and on no other, be it that its `iface-id`
    /// was taken away.
    fn write_interfaces(&self, br: &ovs::Bridge, plan: &mut Plan) {
        let installed = self.is_installed();
        for (_, _, iid, i) in interfaces(&self.ovs.db, br) {
            // One that is no port's any more loses the mark as well.
            let name = i.external_ids.get("iface-id").unwrap_or(&i.name);
            let claims = i.external_ids.contains_key("iface-id");
            let chosen = claims && self.input.local.vifs.get(name).is_some_and(|v| v.row == iid);
            let here = |p: &ovn_schema::sb::PortBinding| crate::binding::is_bound(p, self.input.local.chassis);
            let bound = chosen && self.input.port(name).is_some_and(|(_, p)| here(p));
            let marked = ovn_schema::options::flag(&i.external_ids, "ovn-installed");
            if bound == marked || bound && !installed {
                continue;
            }
            let mut ids: Map<Str, Str> = i.external_ids.clone();
            let part = plan.part(format!("Interface {}:external_ids", i.name), (&i.external_ids, bound));
            if bound {
                part.log.push(format!("Setting lport {name} ovn-installed in OVS"));
                ids.insert("ovn-installed".into(), "true".into());
                ids.insert("ovn-installed-ts".into(), milliseconds().to_string().into());
            } else {
                part.log.push(format!("Removing iface {} ovn-installed in OVS", i.name));
                ids.remove("ovn-installed");
                ids.remove("ovn-installed-ts");
            }
            part.exchange_pairs(("Interface", iid), "external_ids", &i.external_ids, &ids);
        }
    }

    /// Takes what this controller made out of the local database.
    pub(super) async fn clean_up_local(&mut self, s: &Settings) {
        let Some(schema) = self.ovs.client.schema() else { return };
        let mut plan = Plan::new(schema);
        if let Some(br) = bridge(&self.ovs.db, &s.bridge) {
            plumbing::remove_all(&self.ovs.db, br, s, &mut plan);
        }
        let operations = crate::plan::Attempts::default().choose(plan, Instant::now());
        if operations.is_empty() {
            return;
        }
        let end = tokio::time::timeout(Duration::from_secs(5), plan::commit(self.ovs.client.clone(), operations)).await;
        if !matches!(end, Ok(Ok(()))) {
            tracing::warn!(target: "main", "tunnels and patch ports could not be taken out of the local database");
        }
    }
}
