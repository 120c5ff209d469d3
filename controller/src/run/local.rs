//! What the controller writes into the local Open_vSwitch database.

use super::state::{Done, LocalState};
use super::{Controller, milliseconds};
use crate::input::settings::{Settings, bridge};
use crate::plan::{self, Plan};
use crate::{
    rows::ha_peers, rows::mirrors, rows::plumbing, rows::queues, rows::switch_config, rows::tunnels, rows::zones,
};
use ovn_schema::sb::TableId;
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
            devices: self.plugs.version(),
            installed: self.is_installed(),
            realised: self.realised_cfg,
            known: southbound_ready,
        };
        let mut line = std::mem::take(&mut self.in_line.local);
        line.unless(state, &mut plan, |plan| self.compare_local(s, &schema, southbound_ready, plan));
        self.in_line.local = line;
        self.send_local(plan);
    }

    /// Puts what the local database lacks into the plan.
    fn compare_local(&mut self, s: &Settings, schema: &DatabaseSchema, southbound_ready: bool, plan: &mut Plan) {
        self.write_index(s, plan);
        switch_config::vlan_limit(&self.ovs.db, plan);
        switch_config::flow_restore(&self.ovs.db, plan);
        if let Some(br) = plumbing::ensure_bridge(&self.ovs.db, s, plan)
            && southbound_ready
            && s.index.is_some()
            // Before this chassis is in the database nobody can tell what belongs to it.
            && self.input.local.chassis.is_some()
        {
            let (db, input, here) = (&self.ovs.db, &self.input, &self.presence);
            let (plugged, said, lines) = (&self.interfaces, &mut self.patch_said, &mut self.in_line);
            let (ports, versions) = (plugged.plumbing(), here.versions);
            let resigned = input.local.gateways.resigned;
            lines.tunnels.unless((ports, versions.tunnels, input.options_generation(), resigned), plan, |plan| {
                plumbing::clear_old_tunnels(db, s, plan);
                tunnels::reconcile_tunnels(db, br, input, here, s, plan);
                switch_config::prefixes(db, schema, br, plan);
            });
            let groups = [TableId::HaChassisGroup, TableId::HaChassis, TableId::Chassis].map(|t| input.version(t));
            lines.peers.unless((ports, groups), plan, |plan| ha_peers::reconcile(br, input, s, plan));
            lines.patches.unless((ports, versions.patches, versions.queues), plan, |plan| {
                plumbing::reconcile_patches(db, br, here, s, said, plan);
                plumbing::reconcile_evpn(db, br, s, said, plan);
                said.end();
                queues::reconcile(db, here, s, plan);
            });
            lines.mirrors.unless((ports, versions.mirrored), plan, |plan| {
                mirrors::reconcile(db, br, (plugged, here), plan);
            });
            let plugs = &mut self.plugs;
            lines.plugs.unless((plugged.generation(), versions.plugs, plugs.version()), plan, |plan| {
                plugs.reconcile(db, br, (plugged, &here.plugs), plan);
            });
            lines.limits.unless((ports, versions.limits, input.zones_generation()), plan, |plan| {
                switch_config::connection_limits(db, br.1, &input.local, here, plan);
            });
            self.write_bridge(br, plan);
            self.write_interfaces(plan);
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
        let cfg = self.realised_cfg.map(|(c, _)| c).filter(|c| *c != 0);
        let said = |key: &str| br.external_ids.get(key).map(|v| &**v);
        if zones::are_remembered(&br.external_ids, &self.input.local.zones)
            && said("ovn-startup-ts") == Some(&*self.startup)
            && cfg.is_none_or(|c| said("ovn-nb-cfg").and_then(|v| v.parse().ok()) == Some(c))
        {
            return;
        }
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

    /// `ovn-installed` on interfaces whose port this chassis has and whose flows are in, and on no other, be it that its `iface-id`
    /// was taken away.
    fn write_interfaces(&mut self, plan: &mut Plan) {
        let installed = self.is_installed();
        self.marks.append(&mut self.interfaces.unmarked);
        self.marks.append(&mut self.presence.bound_anew);
        let (bound, db) = (&self.presence.bound, &self.ovs.db);
        // What is as it is to be is looked at again when it changes.
        self.marks.retain(|iid| {
            let Some(i) = db.interface.get(iid).filter(|_| self.interfaces.port_of(iid).is_some()) else {
                return false;
            };
            let name = bound.get(iid);
            if name.is_some() == ovn_schema::options::flag(&i.external_ids, "ovn-installed") {
                return false;
            }
            if name.is_none() || installed {
                mark(*iid, i, name, plan);
            }
            true
        });
    }

    /// Takes what this controller made out of the local database.
    pub(super) async fn clean_up_local(&mut self, s: &Settings) {
        let Some(schema) = self.ovs.client.schema() else { return };
        let mut plan = Plan::new(schema);
        if let Some(br) = bridge(&self.ovs.db, &s.bridge) {
            plumbing::remove_all(&self.ovs.db, br, s, &mut plan);
            for (id, i) in &self.ovs.db.interface {
                let is_marked = ovn_schema::options::flag(&i.external_ids, "ovn-installed");
                if is_marked && self.interfaces.port_of(id).is_some() {
                    mark(*id, i, None, &mut plan);
                }
            }
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

/// Marks an interface as that of a port whose flows are in, or takes the mark away.
fn mark(id: Uuid, i: &ovs::Interface, port: Option<&Str>, plan: &mut Plan) {
    let mut ids: Map<Str, Str> = i.external_ids.clone();
    let part = plan.part(format!("Interface {}:external_ids", i.name), (&i.external_ids, port.is_some()));
    if let Some(name) = port {
        part.log.push(format!("Setting lport {name} ovn-installed in OVS"));
        ids.insert("ovn-installed".into(), "true".into());
        ids.insert("ovn-installed-ts".into(), milliseconds().to_string().into());
    } else {
        part.log.push(format!("Removing iface {} ovn-installed in OVS", i.name));
        ids.remove("ovn-installed");
        ids.remove("ovn-installed-ts");
    }
    part.exchange_pairs(("Interface", id), "external_ids", &i.external_ids, &ids);
}
