//! Table transactions: another thread changes a copy of a bridge's tables, groups, meters and options while the switch
//! forwards; then the copy replaces them at once. A bundle of a hundred thousand flows takes a fraction of a second to
//! apply; packets wait for the exchange only.

use crate::bridge::changes::Changes;
use crate::bridge::hidden::InBand;
use crate::bridge::mac::MacTable;
use crate::bridge::queue_marks::QueueMarks;
use crate::bridge::{Bridge, validate};
use crate::classifier::Classifier;
use crate::conntrack::Flush;
use crate::ids::BridgeId;
use openflow_rs::message::{PacketOut, TlvMap};
use openflow_rs::wire::DecodeError;
use openflow_rs::{Message, OfError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A bridge as it is to become.
#[derive(Debug)]
pub struct TableTransaction {
    pub(crate) id: BridgeId,
    bridge: Bridge,
    /// The version of the bridge that was copied.
    base: u64,
    epoch: u64,
    /// Flushes of connections, to be done after the exchange.
    pub(crate) flushes: Vec<Flush>,
    pub(crate) changes: Changes,
    packet_outs: Vec<PacketOutThen>,
}

/// A packet-out among the changes of a bundle: it goes through the tables as they were between these.
#[derive(Debug)]
pub struct PacketOutThen {
    /// The packet and its actions.
    pub message: PacketOut,
    /// What the tables were, if changes came behind it.
    pub tables: Option<Box<TablesThen>>,
}

/// A bridge's tables, groups and meters at a time.
#[derive(Debug)]
pub struct TablesThen(Bridge);

/// The replaced tables: drop them on a thread that may take its time.
#[derive(Debug)]
pub struct Replaced {
    pub(crate) draft: Box<TableTransaction>,
}

impl Replaced {
    /// The packet-outs among the changes, in their order.
    pub fn packet_outs(&mut self) -> Vec<PacketOutThen> {
        std::mem::take(&mut self.draft.packet_outs)
    }

    /// Which connections are to be removed.
    pub fn flushes(&mut self) -> Vec<Flush> {
        std::mem::take(&mut self.draft.flushes)
    }
}

impl TableTransaction {
    /// Begins a transaction on a copy of a bridge.
    pub(crate) fn new(id: BridgeId, b: &Bridge) -> TableTransaction {
        TableTransaction {
            id,
            bridge: b.draft(),
            base: b.version,
            epoch: b.epoch,
            flushes: Vec::new(),
            packet_outs: Vec::new(),
            changes: Changes::default(),
        }
    }

    /// Exchanges the tables with the bridge's; false if the bridge has changed since.
    pub(crate) fn exchange(&mut self, b: &mut Bridge) -> bool {
        if b.version != self.base {
            return false;
        }
        b.epoch += self.bridge.epoch - self.epoch;
        b.exchange(&mut self.bridge);
        true
    }

    /// Applies a list of changes. Packet-outs are checked against the tables as they are then; they are sent by
    /// others, once the tables are in place ([`Replaced::packet_outs`]).
    ///
    /// # Errors Which change failed, from 0, and why. The transaction must be dropped then.
    pub fn apply(&mut self, list: &[Message], now: Duration) -> Result<(), (usize, DecodeError)> {
        for (i, m) in list.iter().enumerate() {
            if let Some(what) = Flush::asked(m) {
                self.flushes.push(what);
                continue;
            }
            match m {
                Message::PacketOut(p) => {
                    self.bridge.check_packet_out(&p.actions).map_err(|e| (i, e))?;
                    let changes = list.iter().skip(i + 1).any(|m| !matches!(m, Message::PacketOut(_)));
                    let tables = changes.then(|| Box::new(TablesThen(self.bridge.draft())));
                    self.packet_outs.push(PacketOutThen { message: p.clone(), tables });
                }
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
            // Flows, groups and meters are checked without them.
            ports: BTreeMap::new(),
            tables: self.tables.clone(),
            hidden: Classifier::default(),
            controlled: InBand::default(),
            fails_open: false,
            groups: self.groups.clone(),
            meters: self.meters.clone(),
            meter_numbers: self.meter_numbers.clone(),
            tlv: self.tlv.clone(),
            macs: MacTable::default(),
            snooping: None,
            mirrors: Vec::new(),
            queue_marks: QueueMarks::new(),
            bonds: Vec::new(),
            collectors: Vec::new(),
            observed: false,
            netflow: false,
            spans: false,
            description: (None, None),
            forward_bpdu: self.forward_bpdu,
            rapid: self.rapid,
            fragments: self.fragments,
            misses: self.misses.clone(),
            table_config: self.table_config.clone(),
            table_stats: Vec::new(),
            packet_ins: 0,
            watched: self.watched,
            told: Vec::new(),
            removed: Vec::new(),
            // Those that come.
            timed: Vec::new(),
            users: self.users.clone(),
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
                validate::option_map(self, t)?;
                if t.command != 0 && self.uses_options(t.command, &t.maps) {
                    return Err(OfError::OptionMapInUse.because("a flow uses the option; delete the flow first"));
                }
                self.tlv_mod(t.command, &t.maps);
                Ok(())
            }
            _ => Err(OfError::RequestBadType.because("not a change of tables")),
        }
    }

    /// Whether a flow uses an option that a change of the option map takes away.
    fn uses_options(&self, command: u16, maps: &[TlvMap]) -> bool {
        let mut after = self.draft();
        after.tlv_mod(command, maps);
        let unmapped = |e: DecodeError| e.error == OfError::FlowModInvalidTlvField;
        self.flows().any(|r| validate::flow(&after, &r.to_flow_mod()).is_err_and(unmapped))
    }

    /// Exchanges tables, groups and meters with those of another time. All cached flows have to become stale.
    pub(crate) fn swap_tables(&mut self, TablesThen(other): &mut TablesThen) {
        std::mem::swap(&mut self.tables, &mut other.tables);
        std::mem::swap(&mut self.groups, &mut other.groups);
        std::mem::swap(&mut self.meters, &mut other.meters);
        std::mem::swap(&mut self.users, &mut other.users);
    }

    /// Exchanges tables, groups, meters and options with a copy. Meters that are the same keep their state.
    fn exchange(&mut self, draft: &mut Bridge) {
        if !Arc::ptr_eq(&self.meters, &draft.meters) {
            for (id, new) in Arc::make_mut(&mut draft.meters) {
                if let Some(old) = self.meters.get(id).filter(|old| old.shared.is_like(&new.shared)) {
                    new.clone_from(old);
                }
            }
        }
        std::mem::swap(&mut self.tables, &mut draft.tables);
        std::mem::swap(&mut self.groups, &mut draft.groups);
        std::mem::swap(&mut self.meters, &mut draft.meters);
        std::mem::swap(&mut self.tlv, &mut draft.tlv);
        std::mem::swap(&mut self.users, &mut draft.users);
        self.timed.append(&mut draft.timed);
        self.told.append(&mut draft.told);
        self.removed.append(&mut draft.removed);
        self.touched.append(&mut draft.touched);
        self.version += 1;
    }
}
