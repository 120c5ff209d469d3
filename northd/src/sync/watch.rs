//! What others do to the rows that the compiler keeps.
//!
//! Everything written comes back as a change; what comes and was not written is somebody else's. A changed row is compared
//! and written again. A flow changed, a row taken away or one put in has everything compared: that should not happen, and
//! is not worth an index over all flows.

use super::{Changes, Op};
use crate::model::RowKey;
use ovn_schema::{Uuid, sb};
use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use std::collections::BTreeSet;

/// Tables that nobody else has rows to put into.
const ALONE: [sb::TableId; 5] = [
    sb::TableId::DatapathBinding,
    sb::TableId::PortBinding,
    sb::TableId::AddressSet,
    sb::TableId::PortGroup,
    sb::TableId::LoadBalancer,
];

/// Whether a row that somebody put in stands for the same as one of the compiler's may.
fn is_rival(table: sb::TableId, change: &sb::AnyChange) -> bool {
    match change {
        sb::AnyChange::RbacRole(c) => c.new.as_ref().is_some_and(|r| crate::tables::rbac::is_own_role(&r.name)),
        _ => ALONE.contains(&table),
    }
}

#[derive(Default)]
pub(super) struct Watch {
    owners: HashMap<Uuid, RowKey>,
    written: HashSet<Uuid>,
    touched: BTreeSet<RowKey>,
    broken: bool,
}

impl Watch {
    pub(super) fn own<'a>(&mut self, rows: impl Iterator<Item = (Uuid, &'a RowKey)>) {
        self.owners.extend(rows.map(|(u, k)| (u, k.clone())));
    }

    pub(super) fn disown(&mut self, uuid: Uuid) {
        self.owners.remove(&uuid);
    }

    pub(super) fn owner(&self, uuid: Uuid) -> Option<&RowKey> {
        self.owners.get(&uuid)
    }

    /// The number of rows of ours, and of those that were written and have not come back.
    pub(super) fn entries(&self) -> usize {
        self.owners.len() + self.written.len()
    }

    pub(super) fn trim(&mut self) {
        self.owners.shrink_to_fit();
        self.written.shrink_to_fit();
    }

    /// Whether a row was written and has not come back.
    pub(super) fn has_written(&self, row: Uuid) -> bool {
        self.written.contains(&row)
    }

    /// These will come back.
    pub(super) fn wrote(&mut self, changes: &Changes) {
        self.written.extend(changes.sb.iter().map(|op| match op {
            Op::Insert(_, u, _) | Op::Update(_, u, _) | Op::Delete(_, u) => *u,
        }));
        self.written.extend(changes.flows.iter().map(|f| f.row));
    }

    pub(super) fn touched(&mut self) -> BTreeSet<RowKey> {
        std::mem::take(&mut self.touched)
    }

    pub(super) fn any(&self) -> bool {
        self.broken || !self.touched.is_empty()
    }

    /// Has everything compared.
    pub(super) fn shatter(&mut self) {
        self.broken = true;
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn note(&mut self, change: &sb::AnyChange, db: &sb::Database) {
        let (table, uuid) = change.key();
        if self.written.remove(&uuid) {
            return;
        }
        match change {
            sb::AnyChange::LogicalFlow(_) => self.broken = true,
            sb::AnyChange::LogicalDpGroup(c) => {
                if let (Some(old), Some(new)) = (&c.old, &c.new) {
                    // Datapaths that went took themselves out.
                    let gone = |d: &Uuid| !new.datapaths.contains(d) && db.datapath_binding.contains_key(d);
                    self.broken |=
                        new.datapaths.iter().any(|d| !old.datapaths.contains(d)) || old.datapaths.iter().any(gone);
                }
            }
            _ => match self.owners.get(&uuid) {
                Some(key) if db.has(table, uuid) => {
                    self.touched.insert(key.clone());
                }
                Some(_) => self.broken = true,
                None => self.broken |= is_rival(table, change) && db.has(table, uuid),
            },
        }
    }
}
