//! Drafts: a bridge's tables, groups, meters and options, to be changed by another thread while the switch goes on, and then
//! put in place at once. A bundle of a hundred thousand flows takes a fraction of a second to work in; packets wait for none
//! of it but the exchange.

use crate::bridge::mac::MacTable;
use crate::bridge::{Bridge, Touched};
use crate::datapath::{BridgeId, Switch};
use crate::flowcache::depend::Changes;
use openflow_rs::Message;
use openflow_rs::wire::DecodeError;
use std::sync::Arc;
use std::time::Duration;

/// A bridge as it shall be.
#[derive(Debug)]
pub struct Draft {
    id: BridgeId,
    bridge: Bridge,
    /// The version that it was made of.
    base: u64,
    epoch: u64,
    /// What is to be done beside the tables.
    flushes: Vec<Message>,
    changes: Changes,
}

/// What a draft has replaced: to be dropped where nobody waits for it.
#[derive(Debug)]
pub struct Replaced {
    _draft: Box<Draft>,
}

impl Draft {
    /// Applies changes: all, or none, and says then which one failed, from 0, and why.
    ///
    /// # Errors
    /// As above. The draft is of no use any more.
    pub fn apply(&mut self, list: &[Message], now: Duration) -> Result<(), (usize, DecodeError)> {
        for (i, m) in list.iter().enumerate() {
            match m {
                Message::CtFlushZone(_) | Message::CtFlush(_) => self.flushes.push(m.clone()),
                m => self.bridge.change(m, now).map_err(|e| (i, e))?,
            }
        }
        self.changes = Changes::sum(std::mem::take(&mut self.bridge.changes));
        Ok(())
    }
}

impl Bridge {
    fn draft(&self) -> Bridge {
        Bridge {
            name: self.name.clone(),
            datapath_id: self.datapath_id,
            ports: self.ports.clone(),
            tables: self.tables.clone(),
            groups: self.groups.clone(),
            meters: self.meters.clone(),
            tlv: self.tlv.clone(),
            macs: MacTable::default(),
            mirrors: Vec::new(),
            bonds: Vec::new(),
            collectors: Vec::new(),
            observed: false,
            fragments: self.fragments,
            table_config: self.table_config.clone(),
            table_stats: Vec::new(),
            packet_ins: 0,
            watched: self.watched,
            told: Vec::new(),
            removed: Vec::new(),
            timed: self.timed.clone(),
            changes: Vec::new(),
            touched: Vec::new(),
            epoch: self.epoch,
            version: self.version,
        }
    }

    /// Applies one change from a controller: flow, group or meter-mod, option map.
    pub(crate) fn change(&mut self, m: &Message, now: Duration) -> Result<(), DecodeError> {
        match m {
            Message::FlowMod(f) => self.flow_mod(f, now),
            Message::GroupMod(g) => self.group_mod(g, now),
            Message::MeterMod(x) => self.meter_mod(x, now),
            Message::TlvTableMod(t) => {
                crate::bridge::validate::option_map(self, t)?;
                self.tlv_mod(t.command, &t.maps);
                Ok(())
            }
            _ => Err(DecodeError { error_type: 1, code: 1, detail: "not a change of tables".into() }),
        }
    }

    /// Takes a draft's tables over; the draft gets what was there. Counters of what is the same go on.
    fn exchange(&mut self, draft: &mut Bridge) {
        for (id, new) in &mut draft.groups {
            if let Some(old) = self.groups.get(id).filter(|old| Arc::ptr_eq(&old.group, &new.group)) {
                new.clone_from(old);
            }
        }
        for (id, new) in &mut draft.meters {
            if let Some(old) = self.meters.get(id).filter(|old| old.config == new.config) {
                new.clone_from(old);
            }
        }
        std::mem::swap(&mut self.tables, &mut draft.tables);
        std::mem::swap(&mut self.groups, &mut draft.groups);
        std::mem::swap(&mut self.meters, &mut draft.meters);
        std::mem::swap(&mut self.tlv, &mut draft.tlv);
        std::mem::swap(&mut self.timed, &mut draft.timed);
        self.told.append(&mut draft.told);
        self.removed.append(&mut draft.removed);
        self.touched.append(&mut draft.touched);
        self.version += 1;
    }
}

impl Switch {
    /// A draft of a bridge, to change it elsewhere; `None` if the bridge is not there.
    pub fn draft(&self, bridge: BridgeId) -> Option<Draft> {
        let b = self.bridges.get(bridge)?;
        Some(Draft {
            id: bridge,
            bridge: b.draft(),
            base: b.version,
            epoch: b.epoch,
            flushes: Vec::new(),
            changes: Changes::default(),
        })
    }

    /// Puts a draft in place: packets see the old tables or the new, nothing between.
    ///
    /// # Errors
    /// The bridge has changed since, and the draft is of no use any more: make another.
    pub fn adopt(&mut self, mut draft: Box<Draft>, now: Duration) -> Result<Replaced, Replaced> {
        self.now = now;
        // What the cache has not seen of the tables that go is no change of those that come.
        self.settle();
        let Some(b) = self.bridges.get_mut(draft.id).filter(|b| b.version == draft.base) else {
            return Err(Replaced { _draft: draft });
        };
        b.epoch += draft.bridge.epoch - draft.epoch;
        b.exchange(&mut draft.bridge);
        self.pay_out();
        if let Some(b) = self.bridges.get(draft.id) {
            self.paths.tables_changed(draft.id, &draft.changes, &b.tables);
        }
        self.settle();
        for m in &draft.flushes {
            // What they name may have gone already.
            let _ = self.apply(draft.id, m, now);
        }
        Ok(Replaced { _draft: draft })
    }

    /// Applies a bundle: all of it, or nothing. Packets see the old tables or the new, nothing between.
    ///
    /// # Errors
    /// Which message failed, from 0, and why.
    pub fn apply_bundle(
        &mut self,
        bridge: BridgeId,
        list: &[Message],
        now: Duration,
    ) -> Result<(), (usize, DecodeError)> {
        let Some(mut draft) = self.draft(bridge) else {
            return Err((0, DecodeError { error_type: 1, code: 4, detail: format!("bridge {bridge} does not exist") }));
        };
        draft.apply(list, now)?;
        // Nobody can have changed the bridge since.
        drop(self.adopt(Box::new(draft), now));
        Ok(())
    }

    /// Changes what is said of tables; cached flows know what that changes.
    pub fn with_tables(&mut self, bridge: BridgeId, change: impl FnOnce(&mut Bridge)) {
        if let Some(b) = self.bridges.get_mut(bridge) {
            change(b);
        }
    }

    /// Changes what a port's liveness follows from. Cached flows that asked for it become stale where it changes; gives whether it does.
    pub fn set_inputs(
        &mut self,
        bridge: BridgeId,
        no: openflow_rs::PortNo,
        change: impl FnOnce(&mut crate::bridge::Port),
    ) -> bool {
        let Some(b) = self.bridges.get_mut(bridge) else { return false };
        let Some(p) = b.ports.get_mut(&no) else { return false };
        let (before, config) = (p.live(), p.config);
        change(p);
        let changed = p.live() != before;
        if p.config != config {
            b.epoch += 1;
        }
        if changed {
            b.touched.push(Touched::Live(no));
        }
        changed
    }
}
