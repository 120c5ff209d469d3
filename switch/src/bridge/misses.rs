//! What becomes of packets that no flow of a table matches. OpenFlow 1.3 and newer drop them; older controllers get
//! them (OpenFlow 1.0 section 3.4), unless a controller of OpenFlow 1.1 or 1.2 has said otherwise for the table
//! (OpenFlow 1.1 section A.3.3, `ovs-ofctl mod-table`).

use crate::bridge::{Bridge, N_TABLES, meant};
use openflow_rs::TableId;
use std::collections::BTreeMap;

/// What a controller has a table do with packets that none of its flows matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableMiss {
    /// They go to controllers of OpenFlow 1.0 to 1.2, if any is connected, and are dropped else.
    #[default]
    Default,
    /// They go to controllers of OpenFlow 1.0 to 1.2 (OFPTC_TABLE_MISS_CONTROLLER).
    Controller,
    /// They are looked up in the next table; behind the last one they go to controllers (OFPTC_TABLE_MISS_CONTINUE).
    Continue,
    /// They are dropped (OFPTC_TABLE_MISS_DROP).
    Drop,
}

/// A bridge's settings for such packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Misses {
    tables: BTreeMap<TableId, TableMiss>,
    /// A controller is connected that wants them.
    wanted: bool,
}

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnMiss {
    Drop,
    Controller,
    Table(TableId),
}

impl Bridge {
    /// Sets what a table, or each of all, does with packets that no flow matches.
    pub fn set_table_miss(&mut self, table: TableId, miss: TableMiss) {
        for t in meant(table) {
            self.misses.tables.insert(t, miss);
        }
        self.epoch += 1;
    }

    /// What a table does with such packets.
    pub fn table_miss(&self, table: TableId) -> TableMiss {
        self.misses.tables.get(&table).copied().unwrap_or_default()
    }

    /// Tells whether a controller of OpenFlow 1.0 to 1.2 is connected.
    pub fn set_misses_wanted(&mut self, wanted: bool) {
        if self.misses.wanted != wanted {
            self.misses.wanted = wanted;
            self.epoch += 1;
        }
    }

    pub(crate) fn on_miss(&self, table: TableId) -> OnMiss {
        match self.table_miss(table) {
            TableMiss::Default if self.misses.wanted => OnMiss::Controller,
            TableMiss::Default | TableMiss::Drop => OnMiss::Drop,
            TableMiss::Continue if table.index() + 1 < N_TABLES => OnMiss::Table(TableId(table.0 + 1)),
            TableMiss::Continue | TableMiss::Controller => OnMiss::Controller,
        }
    }
}
