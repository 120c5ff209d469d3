//! Answers to what the control socket asks.

use super::Controller;
use super::state::Sinks;
use crate::input::settings::{Settings, bridge};
use crate::openflow::install::Tables;
use crate::rows::claims::interface_name;
use crate::run::request::{Ask, Request};
use crate::{rows::zones, run::inject, units::flows};
use daemon::Reply;
use incremental::Engine;
use ovn_schema::Str;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

impl Controller {
    pub(super) fn answer(&mut self, r: Request) {
        let reply = self.reply(r.ask);
        // Who asked may be gone.
        let _ = r.reply.send(reply);
    }

    fn reply(&mut self, ask: Ask) -> Reply {
        match ask {
            Ask::Pause => {
                tracing::info!(target: "main", "User triggered execution pause.");
                self.paused = true;
            }
            Ask::Resume => {
                tracing::info!(target: "main", "User triggered execution resume.");
                self.paused = false;
            }
            Ask::Status => return Ok(if self.paused { "paused" } else { "running" }.into()),
            Ask::Recompute => self.recompute(),
            Ask::Delay(seconds) => {
                self.report_delay = seconds.parse().map_err(|_| "unsigned integer required".to_string())?;
                return Ok(match self.report_delay {
                    0 => "no delay for nb_cfg report.".into(),
                    n => format!("delay nb_cfg report for {n} seconds."),
                });
            }
            Ask::ResetSouthbound => {
                tracing::info!(target: "main", "Resetting southbound database cluster state");
                if let Some(l) = &self.sb {
                    l.client.reconnect();
                }
            }
            Ask::Inject(text) => {
                if !self.switch_up {
                    return Err("OpenFlow channel not ready.".into());
                }
                let m = inject::message(&text, &self.input)?;
                self.send(m);
            }
            Ask::Groups => return Ok(numbered(self.ids.groups())),
            Ask::Meters => return Ok(numbered(self.ids.meters())),
            Ask::Bindings => return Ok(self.dump_bindings()),
            Ask::Datapaths => return Ok(self.dump_datapaths()),
            Ask::RelatedPorts => return Ok(self.related_ports().iter().map(|p| format!("{p}\n")).collect()),
            Ask::PeerPorts => return Ok(self.dump_peers()),
            Ask::Conjunctions => return Ok(self.dump_conjunctions()),
            Ask::Variables => return Ok(self.dump_variables()),
            Ask::Neighbours => return Ok(self.dump_neighbours()),
            Ask::Evpn(what) => return Ok(self.show_evpn(what)),
            Ask::Plugs => return Ok(self.plugs.show(&self.ovs.db, &self.interfaces, &self.presence.plugs)),
        }
        Ok(String::new())
    }

    /// Derives everything anew and brings the switch to that. What differs from what was derived step by step is a fault.
    pub(super) fn recompute(&mut self) {
        tracing::info!(target: "inc_proc_eng", "User triggered force recompute.");
        // Of what a northd of another version wrote, nothing is derived.
        if !self.derived || self.version_complaint.is_some() {
            return;
        }
        // While it is not known what is here, what was before stays.
        self.recompute_later = !self.known;
        if self.recompute_later {
            return;
        }
        self.restore_zones();
        // Whatever was found in line is compared again.
        self.in_line = Sinks::default();
        let mut engine = Engine::new(flows::ChassisFlows::new(self.ids.clone()));
        let mut fresh = Tables::default();
        engine.update(&self.input, [], |c| drop(fresh.apply(c, &self.ids)));
        flows::RUNS.inc();
        let mut changes = self.tables.become_(self.engine.outputs(), fresh, engine.outputs());
        self.engine = engine;
        self.presence.restart();
        self.reads.clear();
        self.settled_reads = 0;
        self.to_forget.extend(changes.forget.drain(..));
        if !changes.is_empty() {
            tracing::warn!(target: "ofctrl", "recompute: {} changes to the flow tables", changes.tables.len());
            self.sequence += 1;
            self.bundle(changes);
        }
    }

    /// Takes the zones that the bridge remembers for those that there are.
    fn restore_zones(&mut self) {
        let Ok(s) = Settings::read(&self.ovs.db, &self.identity) else { return };
        let Some((_, br)) = bridge(&self.ovs.db, &s.bridge) else { return };
        let mut zones = zones::remembered(&br.external_ids, &self.input);
        for (name, zone) in &self.input.local.zones {
            if !zones.contains_key(name) && zones.values().all(|z| z != zone) {
                zones.insert(name.clone(), *zone);
            }
        }
        // All flows are derived anew: nobody waits for what changed.
        drop(self.input.set_zones(zones));
    }

    fn dump_bindings(&self) -> String {
        let mut children: BTreeMap<&Str, BTreeSet<&Str>> = BTreeMap::new();
        let mut primary: BTreeMap<&Str, &str> = BTreeMap::new();
        for p in self.input.sb.port_binding.values() {
            let name = interface_name(p);
            match &*p.r#type {
                "" if *name != p.logical_port => drop(children.entry(name).or_default().insert(&p.logical_port)),
                // An interface of another version is not this port's.
                "" if crate::rows::claims::other_version(p, &self.input.local).is_some() => {}
                "" => drop(primary.insert(&p.logical_port, "primary lport")),
                "localport" => drop(primary.insert(&p.logical_port, "localport lport")),
                _ => {}
            }
        }
        let vifs = self.input.local.vifs.iter().filter(|(_, v)| v.ofport.is_some());
        let mut names: BTreeMap<&Str, Str> = vifs.map(|(id, v)| (id, self.interface(v.row))).collect();
        for parent in children.keys() {
            names.entry(parent).or_insert_with(|| "NULL".into());
        }
        let mut out = String::from("Local bindings:\n");
        for (id, interface) in names {
            let (first, rest) = (primary.get(id), children.get(id));
            let n = usize::from(first.is_some()) + rest.map_or(0, BTreeSet::len);
            let _ = writeln!(out, "name: [{id}], OVS interface name : [{interface}], num binding lports : [{n}]");
            match first {
                Some(kind) => drop(writeln!(out, "{kind} : [{id}]")),
                None if n > 0 => out.push_str("no primary lport\n"),
                None => {}
            }
            for (i, c) in rest.into_iter().flatten().enumerate() {
                let _ = writeln!(out, "child lport[{}] : [{c}], type : [CONTAINER]", i + 1);
            }
            out.push_str("----------------------------------------\n");
        }
        out
    }

    fn interface(&self, row: ovn_schema::Uuid) -> Str {
        self.ovs.db.interface.get(&row).map_or_else(|| "NULL".into(), |i| i.name.clone())
    }

    fn dump_datapaths(&self) -> String {
        let mut out = String::from("Local datapaths:\n");
        for d in self.input.local.datapaths.iter().filter_map(|d| self.input.sb.datapath_binding.get(d)) {
            let kind = if crate::input::model::is_switch(d) { "switch" } else { "router" };
            let name = d.external_ids.get("name").map_or("", |n| n);
            let _ = writeln!(out, "Datapath: {name}, type: {kind}");
        }
        out
    }

    /// Ports that flows of this chassis are made for.
    fn related_ports(&self) -> BTreeSet<Str> {
        let mut out: BTreeSet<Str> = BTreeSet::new();
        let local = &self.input.local;
        for (_, p) in local.datapaths.iter().flat_map(|d| self.input.ports_of(*d)) {
            let related = match &*p.r#type {
                "" | "virtual" | "l2gateway" | "l3gateway" => crate::units::binding::is_here(p, &self.input, local),
                "localport" => local.vifs.contains_key(&p.logical_port),
                _ => true,
            };
            if related {
                out.insert(p.logical_port.clone());
            }
        }
        out
    }

    fn dump_peers(&self) -> String {
        let mut out = String::new();
        for dp in &self.input.local.datapaths {
            let Some(d) = self.input.sb.datapath_binding.get(dp) else { continue };
            let name = d.external_ids.get("name").map_or("unknown", |n| n);
            for (_, p) in self.input.ports_of(*dp) {
                let Some((_, peer)) = p.options.get("peer").and_then(|n| self.input.port(n)) else { continue };
                if self.input.local.datapaths.contains(&peer.datapath) {
                    let _ = writeln!(out, "dp {name} : local = {}, remote = {}", p.logical_port, peer.logical_port);
                }
            }
        }
        out
    }

    fn dump_conjunctions(&self) -> String {
        let mut out = String::from("Conjunction IDs allocations:\n");
        for (flow, datapath, first, n) in self.ids.conjunctions() {
            let _ = writeln!(out, "lflow: {flow}, dp: {datapath}, start: {first}, num: {n}");
        }
        out
    }

    fn dump_variables(&self) -> String {
        let mut out = String::from("Local template vars:\n");
        let rows = self.input.sb.chassis_template_var.values();
        for row in rows.filter(|r| r.chassis == self.input.local.chassis_name) {
            let sorted: BTreeMap<_, _> = row.variables.iter().collect();
            for (name, value) in sorted {
                let _ = writeln!(out, "name: '{name}' value: '{value}'");
            }
        }
        out
    }

    fn dump_neighbours(&self) -> String {
        let mut out = String::from("Local MAC bindings:\n");
        for (id, m) in &self.input.sb.mac_binding {
            if !self.input.local.datapaths.contains(&m.datapath) {
                continue;
            }
            let dp = self.input.sb.datapath_binding.get(&m.datapath).map(|d| d.key()).unwrap_or_default();
            let _ = writeln!(
                out,
                "cookie: 0x{:08x}, datapath-key: {dp}, port-key: 0, ip: {}, mac: {}",
                id.as_fields().0,
                m.ip,
                m.mac
            );
        }
        out
    }
}

fn numbered(list: BTreeMap<String, impl std::fmt::Display>) -> String {
    list.into_iter().map(|(name, id)| format!("{name}: {id}\n")).collect()
}
