//! Drafts: a bridge's tables, groups, meters and options, to be changed by another thread while the switch goes on, and then
//! put in place at once. A bundle of a hundred thousand flows takes a fraction of a second to work in; packets wait for none
//! of it but the exchange.

use crate::bridge::changes::Changes;
use crate::bridge::mac::MacTable;
use crate::bridge::{Bridge, BridgeId};
use openflow_rs::Message;
use openflow_rs::wire::DecodeError;
use std::sync::Arc;
use std::time::Duration;

/// A bridge as it shall be.
#[derive(Debug)]
pub struct TableTransaction {
    pub(crate) id: BridgeId,
    bridge: Bridge,
    /// The version that it was made of.
    base: u64,
    epoch: u64,
    /// What is to be done beside the tables.
    pub(crate) flushes: Vec<Message>,
    pub(crate) changes: Changes,
}

/// What a draft has replaced: to be dropped where nobody waits for it.
#[derive(Debug)]
pub struct Replaced {
    pub(crate) _draft: Box<TableTransaction>,
}

impl TableTransaction {
    /// A draft of a bridge, to change it elsewhere.
    pub(crate) fn new(id: BridgeId, b: &Bridge) -> TableTransaction {
        TableTransaction {
            id,
            bridge: b.draft(),
            base: b.version,
            epoch: b.epoch,
            flushes: Vec::new(),
            changes: Changes::default(),
        }
    }

    /// Puts it in place of the bridge's tables, and takes those; false if the bridge has changed since.
    pub(crate) fn exchange(&mut self, b: &mut Bridge) -> bool {
        if b.version != self.base {
            return false;
        }
        b.epoch += self.bridge.epoch - self.epoch;
        b.exchange(&mut self.bridge);
        true
    }

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
