//! A chassis with what is derived of it, step by step, and what a start over the same databases gives.

#[path = "switch.rs"]
mod switch;

use controller::input::model::{Input, Local, Read};
use controller::openflow::install::Tables;
use controller::pinctrl::{Snapshot, health, next_hops, prefix};
use controller::rows::zones;
use controller::units::flows::{ChassisFlows, Ids};
use controller::units::presence::Presence;
use incremental::Engine;
use ovn_schema::{Table, Uuid, sb};
use ovsdb_rs::Row;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use switch::Switch;

/// A chassis with its derivation.
pub struct Chassis {
    pub input: Input,
    pub ids: Arc<Ids>,
    pub engine: Engine<ChassisFlows>,
    pub tables: Tables,
    /// What the switch came to by the changes that it was sent, and what it refused of them.
    pub switch: Switch,
    pub refused: Vec<String>,
    pub presence: Presence,
    /// What the packet-in services know by what they were told.
    pub services: Snapshot,
    /// What is checked and asked by the differences that were told.
    pub checks: BTreeMap<Uuid, health::Target>,
    pub next_hops: BTreeMap<Uuid, next_hops::Question>,
    pub delegations: BTreeMap<Uuid, prefix::Requester>,
    pub reads: Vec<Read>,
}

impl Chassis {
    pub fn new(db: sb::Database, local: Local) -> Chassis {
        let ids: Arc<Ids> = Arc::default();
        let engine = Engine::new(ChassisFlows::new(ids.clone()));
        let (input, presence) = (Input::new(db, local), Presence::default());
        let mut c = Chassis {
            input,
            ids,
            engine,
            tables: Tables::default(),
            switch: Switch::default(),
            refused: Vec::new(),
            presence,
            services: Snapshot::default(),
            checks: BTreeMap::new(),
            delegations: BTreeMap::new(),
            next_hops: BTreeMap::new(),
            reads: Vec::new(),
        };
        c.settle();
        c
    }

    /// Changes a row of the southbound database.
    pub fn set<T: Table>(&mut self, uuid: Uuid, new: Option<T>) {
        let row = new.map(|r| Row(r.columns().into_iter().map(|(_, d)| d).collect()));
        if let Some(change) = self.input.sb.apply(T::NAME, &T::schema(), uuid, row.as_ref()).unwrap() {
            let reads = self.input.changed(&change);
            self.reads.extend(reads);
        }
    }

    pub fn change_local(&mut self, change: impl FnOnce(&mut Local)) {
        let mut local = self.input.local.clone();
        change(&mut local);
        self.reads.extend(self.input.set_local(local));
    }

    /// Derives what follows from the changes so far. Returns how many units that took: those of what is here, and those of flows.
    pub fn settle(&mut self) -> (usize, usize) {
        let more = self.presence.settle(&mut self.input, &self.reads);
        self.presence.news(false).into_iter().for_each(|t| self.services.take(t));
        let here = &mut self.presence;
        follow(&mut self.checks, &here.checks, std::mem::take(&mut here.checks_anew));
        follow(&mut self.next_hops, &here.next_hops, std::mem::take(&mut here.next_hops_anew));
        follow(&mut self.delegations, &here.delegations, std::mem::take(&mut here.delegations_anew));
        self.reads.extend(more);
        let here = &self.presence;
        let zones = zones::assign(&self.input.local.zones, &here.zones, &here.requested, (1, 65535));
        self.reads.extend(self.input.set_zones(zones));
        let (tables, ids) = (&mut self.tables, &self.ids);
        let changes = self.engine.update(&self.input, std::mem::take(&mut self.reads), |c| tables.apply(c, ids));
        self.refused.extend(self.switch.take(&changes));
        (self.presence.ran(), self.engine.stats().ran)
    }

    /// What a start over the same databases differs in.
    pub fn differs_from_fresh(&mut self) -> Vec<String> {
        let mut input = Input::new(self.input.sb.clone(), self.input.local.clone());
        // Neither is it known which datapaths are local.
        input.local.datapaths.clear();
        let mut presence = Presence::default();
        presence.settle(&mut input, &[]);
        let mut out = self.presence.differences(&presence);
        if self.services != presence.snapshot() {
            out.push("what the packet-in services were told".to_string());
        }
        if (&self.checks, &self.next_hops) != (&presence.checks, &presence.next_hops) {
            out.push("what health checks and next hops were told".to_string());
        }
        if self.delegations != presence.delegations {
            out.push("what was told of delegated prefixes".to_string());
        }
        if input.local.datapaths != self.input.local.datapaths {
            out.push("local datapaths".to_string());
        }
        let mut engine = Engine::new(ChassisFlows::new(self.ids.clone()));
        let mut fresh = Tables::default();
        engine.update(&input, [], |c| drop(fresh.apply(c, &self.ids)));
        let mut switch = Switch::default();
        out.extend(switch.take(&fresh.replace(engine.outputs())));
        out.append(&mut self.refused);
        if self.switch != switch {
            out.push(format!("what the switch has: {:?}, and what a fresh start sends it: {switch:?}", self.switch));
        }
        let changes = self.tables.become_(self.engine.outputs(), fresh, engine.outputs());
        out.extend(changes.tables.iter().map(|m| format!("{m:?}")));
        out.extend(changes.meters.iter().chain(&changes.unused).map(|m| format!("{m:?}")));
        out
    }
}

/// Takes over what is said to have changed.
fn follow<V: Clone>(mine: &mut BTreeMap<Uuid, V>, all: &BTreeMap<Uuid, V>, changed: BTreeSet<Uuid>) {
    for id in changed {
        match all.get(&id) {
            Some(v) => drop(mine.insert(id, v.clone())),
            None => drop(mine.remove(&id)),
        }
    }
}
