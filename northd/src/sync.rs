//! Turns the outputs of the compiler into the smallest change of the southbound database.
//!
//! A row that exists and means the same keeps its UUID: rows are told apart by what is theirs alone (a port binding by
//! its port's name, a flow by what it matches and does), never by having been written by this process.

mod existing;
mod groups;
mod watch;

mod flows;

use crate::model::{Cell, Columns, Key, Op, RowKey, Value};
pub use flows::{Flows, NewFlow};
use groups::{Groups, Resolved};
use incremental::Outputs;
use ovn_schema::{Str, Uuid, nb, sb};
use ovsdb_rs::{Atom, Datum};
use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What to change in both databases, and what could not be compiled.
#[derive(Debug, Default)]
pub struct Changes {
    /// Southbound.
    pub sb: Vec<Op<sb::TableId>>,
    /// New flows; what they say is with the outputs ([`Sync::rows_of_flows`]), as there may be many.
    pub flows: Vec<NewFlow>,
    /// Northbound.
    pub nb: Vec<Op<nb::TableId>>,
    /// New diagnostics, and those about what has changed and is still wrong.
    pub diagnostics: Vec<Str>,
    /// Diagnostics that hold no longer.
    pub mended: Vec<Str>,
}

/// Columns that cannot be empty, where they refer to rows.
const MUST_REFER: [&str; 3] = ["datapath", "logical_port", "port"];

/// Which southbound row stands for which output.
#[derive(Default)]
pub struct Sync {
    rows: HashMap<RowKey, (Uuid, Option<Arc<Columns>>)>,
    /// The southbound datapaths by the northbound switch or router.
    datapaths: HashMap<Uuid, Uuid>,
    /// Whether switches or routers were without a datapath after the last run, as keys ran out.
    lacking: bool,
    /// Rows that cannot be, as they must refer to what is not there.
    unwritten: HashSet<RowKey>,
    waiting: HashMap<RowKey, BTreeSet<RowKey>>,
    flows: Flows,
    /// Columns of northbound rows.
    nb: HashMap<Uuid, (nb::TableId, Arc<Columns>)>,
    /// Such rows that were changed, by the compiler or others.
    nb_touched: BTreeSet<Uuid>,
    groups: Groups,
    /// The groups that columns of rows name, as far as they are the compiler's.
    pins: HashMap<(RowKey, &'static str), Uuid>,
    started: bool,
    watch: watch::Watch,
}

impl Sync {
    /// An empty state: the first outputs are matched with the rows that the database has.
    pub fn new() -> Sync {
        Sync::default()
    }

    /// Takes over changes of the outputs. `sb` and `nb` are the databases as they are.
    pub fn apply(
        &mut self,
        changes: incremental::Changes<'_, Key, Value>,
        sb: &sb::Database,
        nb: &nb::Database,
    ) -> Changes {
        let mut out = Changes::default();
        let first = !std::mem::replace(&mut self.started, true);
        let mut stale = HashSet::default();
        if first {
            let existing = existing::rows(sb);
            out.sb.extend(existing.duplicates.into_iter().map(|(t, u)| Op::Delete(t, u)));
            self.rows = existing.rows.into_iter().map(|(k, u)| (k, (u, None))).collect();
            self.watch.own(self.rows.iter().map(|(k, (u, _))| (*u, k)));
            stale = self.rows.keys().filter(|k| !existing.foreign.contains(k)).cloned().collect();
            self.flows.load(sb);
            self.groups.load(sb);
        }
        let mut resolved = Resolved::default();
        let mut fresh = HashSet::default();
        let flows = changes.of(|k| matches!(k, Key::Flow(_)));
        let changes: Vec<_> = changes.of(|k| !matches!(k, Key::Flow(_))).collect();
        for c in &changes {
            if let (Key::Row(key), Some(columns)) = (c.key, merged(&c.after)) {
                let row = self.rows.entry(key.clone()).or_insert_with(|| match existing::taken_over(key, sb) {
                    Some(uuid) => {
                        self.watch.own([(uuid, key)].into_iter());
                        (uuid, None)
                    }
                    None => {
                        fresh.insert(key.clone());
                        (existing::new_uuid(key), None)
                    }
                });
                row.1 = Some(columns);
                if let Some(datapath) = key.as_datapath() {
                    self.datapaths.insert(datapath, row.0);
                }
                stale.remove(key);
            }
        }
        let routers = nb.logical_router.values().filter(|r| r.enabled != Some(false)).count();
        let is_datapath = |k: &Key| matches!(k, Key::Row(k) if k.table == sb::TableId::DatapathBinding);
        let gone = changes.iter().filter(|c| is_datapath(c.key) && c.after.is_empty()).count();
        let lacking = nb.logical_switch.len() + routers + gone > self.datapaths.len();
        if lacking {
            self.leave_out(&fresh);
        }
        self.watch.own(fresh.iter().filter_map(|k| self.rows.get(k).map(|(u, _)| (*u, k))));
        self.move_groups(&changes, flows.clone(), &mut resolved, &mut out);
        let mut again = self.watch.touched();
        for key in &fresh {
            again.extend(self.waiting.remove(key).unwrap_or_default());
        }
        for c in &changes {
            match (c.key, c.after.first()) {
                (Key::Row(key), Some(_)) => {
                    again.remove(key);
                    let new = fresh.contains(key);
                    if !new && self.is_another(key, sb) {
                        again.extend(self.replace(key, &mut out));
                        self.write(key, true, sb, &mut resolved, &mut out);
                    } else {
                        self.write(key, new, sb, &mut resolved, &mut out);
                    }
                }
                (Key::Row(key), None) => self.remove(key, &mut out),
                (Key::Nb(table, uuid), _) => {
                    match merged(&c.after) {
                        Some(columns) => self.nb.insert(*uuid, (*table, columns)),
                        None => self.nb.remove(uuid),
                    };
                    self.nb_touched.insert(*uuid);
                }
                (Key::Stale(table, uuid), Some(_)) => out.sb.push(Op::Delete(*table, *uuid)),
                (Key::Diagnostic(text), Some(_)) => out.diagnostics.push(text.clone()),
                (Key::Diagnostic(text), None) => out.mended.push(text.clone()),
                _ => {}
            }
        }
        for uuid in std::mem::take(&mut self.nb_touched) {
            if let Some((table, columns)) = self.nb.get(&uuid) {
                write_nb(*table, uuid, columns, nb, &mut out);
            }
        }
        for key in again {
            self.write(&key, false, sb, &mut resolved, &mut out);
        }
        for key in stale {
            self.remove(&key, &mut out);
        }
        self.forget_who_waits();
        let datapaths = &self.datapaths;
        let members =
            |values: &[Value]| resolved.of(values.iter().filter_map(Value::datapaths), |u| datapaths.get(u).copied());
        self.flows.apply(flows, members, &mut self.groups, &mut out);
        if first {
            self.flows.drop_stale(&mut out.sb);
        }
        if self.lacking && fresh.iter().any(|k| k.table == sb::TableId::DatapathBinding) {
            // Flows that were left out for want of a datapath are written by the next run, which compares everything.
            self.watch.shatter();
        }
        self.lacking = lacking;
        self.watch.wrote(&out);
        out
    }

    /// The rows of new flows, one after the other.
    pub fn rows_of_flows<'a>(
        &'a self,
        outputs: &'a Outputs<Key, Value>,
    ) -> impl FnMut(&NewFlow) -> Option<Op<sb::TableId>> + 'a {
        let mut resolved = Resolved::default();
        let members = move |values: &[Value]| {
            resolved.of(values.iter().filter_map(Value::datapaths), |u| self.datapaths.get(u).copied())
        };
        flows::rows(outputs, members, &self.groups)
    }

    /// Forgets that rows wait for others, where they are gone themselves.
    fn forget_who_waits(&mut self) {
        let rows = &self.rows;
        self.waiting.retain(|_, all| {
            all.retain(|key| rows.contains_key(key));
            !all.is_empty()
        });
    }

    /// How many entries the tables have, but for that of flows, which has a place for each output.
    pub fn entries(&self) -> usize {
        let rows = self.rows.len() + self.datapaths.len() + self.unwritten.len() + self.waiting.len();
        let northbound = self.nb.len() + self.nb_touched.len();
        rows + northbound + self.pins.len() + self.groups.entries() + self.watch.entries()
    }

    /// Shrinks the tables to what they hold.
    pub fn trim(&mut self) {
        self.rows.shrink_to_fit();
        self.waiting.shrink_to_fit();
        self.flows.trim();
        self.watch.trim();
    }

    /// Whether a change is the echo of one that the compiler asked for.
    pub fn is_own(&self, change: &sb::AnyChange) -> bool {
        self.watch.has_written(change.key().1)
    }

    /// Takes note of what happened to the southbound database.
    pub fn note(&mut self, change: &sb::AnyChange, sb: &sb::Database) {
        if self.started {
            if let sb::AnyChange::LogicalDpGroup(c) = change {
                self.groups.note(c.uuid, c.new.as_deref());
            }
            self.watch.note(change, sb);
        }
    }

    /// Takes note that a northbound row was changed.
    pub fn note_nb(&mut self, uuid: Uuid) {
        if self.nb.contains_key(&uuid) {
            self.nb_touched.insert(uuid);
        }
    }

    /// The name of a southbound row of ours.
    pub fn name_of(&self, row: Uuid) -> Option<&RowKey> {
        self.watch.owner(row)
    }

    /// The southbound row of a name.
    pub fn row_of(&self, key: &RowKey) -> Option<Uuid> {
        self.rows.get(key).map(|(u, _)| *u)
    }

    /// The output that each flow row stands for.
    pub fn flows(&self) -> &Flows {
        &self.flows
    }

    /// Whether rows of ours were changed by others.
    pub fn touched(&self) -> bool {
        self.watch.any()
    }

    /// Whether others changed rows in a way that only a full comparison repairs.
    pub fn is_broken(&self) -> bool {
        self.watch.is_broken()
    }

    /// Gives new datapaths to groups all of whose users get the same new ones, so that one row changes instead of theirs.
    fn move_groups(
        &mut self,
        rows: &[incremental::Change<'_, Key, Value>],
        flows: incremental::Changes<'_, Key, Value>,
        resolved: &mut Resolved,
        out: &mut Changes,
    ) {
        let mut moves = groups::Moves::default();
        let datapaths = &self.datapaths;
        let datapath = |u: &Uuid| datapaths.get(u).copied();
        for c in rows {
            let (Key::Row(key), Some(columns)) = (c.key, merged(&c.after)) else { continue };
            for (name, cell) in &columns.0 {
                if let (Cell::Group(members), Some(group)) = (cell, self.pins.get(&(key.clone(), *name))) {
                    moves.note(*group, &resolved.list(members, datapath));
                }
            }
        }
        let flows = Some(flows).filter(|_| self.flows.any_groups());
        for c in flows.into_iter().flatten() {
            let Some(group) = self.flows.group(c.id) else { continue };
            let mut all = |values: &[Value]| resolved.of(values.iter().filter_map(Value::datapaths), datapath);
            let (before, now) = (all(&c.before), all(&c.after));
            // Datapaths that go take themselves out of groups.
            if before != now {
                moves.note(group, &now);
            }
        }
        self.groups.carry_out(moves, &mut out.sb);
    }

    /// Finds new rows that must refer to a row that is not there, and those that must refer to them.
    fn leave_out(&mut self, fresh: &HashSet<RowKey>) {
        loop {
            let there = |k: &RowKey| self.rows.get(k).is_some_and(|r| r.1.is_some()) && !self.unwritten.contains(k);
            let cannot = |columns: &Columns| {
                columns.0.iter().any(|(name, cell)| match cell {
                    Cell::Refs(keys) => MUST_REFER.contains(name) && !keys.iter().all(there),
                    _ => false,
                })
            };
            let candidates = fresh.iter().filter(|k| !self.unwritten.contains(*k));
            let found: Vec<RowKey> = candidates
                .filter(|k| self.rows.get(k).and_then(|r| r.1.as_ref()).is_some_and(|c| cannot(c)))
                .cloned()
                .collect();
            if found.is_empty() {
                return;
            }
            self.unwritten.extend(found);
        }
    }

    fn remove(&mut self, key: &RowKey, out: &mut Changes) {
        let Some((uuid, columns)) = self.rows.remove(key) else { return };
        for (name, _) in columns.iter().flat_map(|c| &c.0).filter(|(_, cell)| matches!(cell, Cell::Group(_))) {
            self.pin(key, name, None);
        }
        if self.unwritten.remove(key) {
            return;
        }
        if let Some(datapath) = key.as_datapath() {
            self.datapaths.remove(&datapath);
        }
        self.watch.disown(uuid);
        if existing::is_root(key.table) {
            out.sb.push(Op::Delete(key.table, uuid));
        }
    }

    /// Whether a port has become another one, whose row has to be another one too: what chassis wrote of the old one does not
    /// hold for it (ovn-nb(5), `Logical_Switch_Port`: containers' and virtual ports).
    fn is_another(&self, key: &RowKey, sb: &sb::Database) -> bool {
        let Some((uuid, Some(columns))) = self.rows.get(key) else { return false };
        let Some(old) = sb.port_binding.get(uuid).filter(|_| key.table == sb::TableId::PortBinding) else {
            return false;
        };
        let data = |name: &str| match columns.0.iter().find(|(n, _)| *n == name) {
            Some((_, Cell::Data(d))) => d.scalar().and_then(Atom::as_str),
            _ => None,
        };
        let new = data("type").unwrap_or_default();
        match (&*old.r#type, new) {
            ("", "") => old.parent_port.is_some() != data("parent_port").is_some(),
            (old, new) => old != new && [old, new].contains(&"virtual"),
        }
    }

    /// Puts a new row in the place of one, and gives those that refer to it.
    fn replace(&mut self, key: &RowKey, out: &mut Changes) -> Vec<RowKey> {
        let Some(row) = self.rows.get_mut(key) else { return Vec::new() };
        let old = std::mem::replace(&mut row.0, ovsdb_rs::engine::random_uuid());
        let new = row.0;
        out.sb.push(Op::Delete(key.table, old));
        self.watch.disown(old);
        self.watch.own(std::iter::once((new, key)));
        let refers = |cell: &Cell| match cell {
            Cell::Refs(keys) => keys.contains(key),
            Cell::RefMap(pairs) => pairs.iter().any(|(_, k)| k == key),
            Cell::Data(_) | Cell::Group(_) => false,
        };
        let all = self.rows.iter();
        let referring = all.filter(|(_, (_, c))| c.as_ref().is_some_and(|c| c.0.iter().any(|(_, cell)| refers(cell))));
        referring.map(|(k, _)| k.clone()).collect()
    }

    fn write(&mut self, key: &RowKey, fresh: bool, sb: &sb::Database, resolved: &mut Resolved, out: &mut Changes) {
        let Some((uuid, Some(columns))) = self.rows.get(key).cloned() else { return };
        if self.unwritten.contains(key) {
            return;
        }
        let mut values = Vec::with_capacity(columns.0.len());
        for (name, cell) in &columns.0 {
            let datum = self.resolve(key, cell, resolved, &mut out.sb);
            if matches!(cell, Cell::Group(_)) {
                self.pin(key, name, datum.scalar().and_then(Atom::as_uuid));
            }
            values.push((*name, datum));
        }
        if key.table == sb::TableId::HaChassisGroup && columns.0.iter().all(|(name, _)| *name != "ref_chassis") {
            values.push(("ref_chassis", Datum::empty_set()));
        }
        if fresh {
            if key.table == sb::TableId::PortBinding {
                values.push(("up", Datum::Scalar(Atom::Boolean(false))));
            }
            if key.table == sb::TableId::ServiceMonitor {
                values.push(("status", Datum::Scalar(Atom::String("offline".into()))));
            }
            values.retain(|(_, d)| !d.is_empty());
            out.sb.push(Op::Insert(key.table, uuid, values));
            return;
        }
        let present = sb.columns(key.table, uuid).unwrap_or_default();
        values.retain(|(name, datum)| !existing::same_group(sb, &present, name, datum, self.groups.members(datum)));
        values.retain(|(name, datum)| present.iter().find(|(n, _)| n == name).is_none_or(|(_, d)| d != datum));
        // A controller says that a port is up only where it was said to be down.
        let unsaid = |(name, datum): &(&str, Datum)| *name == "up" && datum.is_empty();
        if key.table == sb::TableId::PortBinding && present.iter().any(unsaid) {
            values.push(("up", Datum::Scalar(Atom::Boolean(false))));
        }
        if !values.is_empty() {
            out.sb.push(Op::Update(key.table, uuid, values));
        }
    }

    /// Takes note of the group that a column names.
    fn pin(&mut self, key: &RowKey, column: &'static str, group: Option<Uuid>) {
        let name = (key.clone(), column);
        let before = match group {
            Some(group) => self.pins.insert(name, group),
            None => self.pins.remove(&name),
        };
        self.groups.exchange(before, group);
    }

    fn resolve(&mut self, of: &RowKey, cell: &Cell, resolved: &mut Resolved, ops: &mut Vec<Op<sb::TableId>>) -> Datum {
        match cell {
            Cell::Data(d) => d.clone(),
            Cell::Refs(keys) => {
                let mut atoms = Vec::with_capacity(keys.len());
                for k in keys {
                    atoms.extend(self.find(of, k).map(Atom::Uuid));
                }
                Datum::set(atoms)
            }
            Cell::RefMap(pairs) => {
                let mut atoms = Vec::with_capacity(pairs.len());
                for (name, k) in pairs {
                    atoms.extend(self.find(of, k).map(|u| (Atom::String(name.clone()), Atom::Uuid(u))));
                }
                Datum::map(atoms)
            }
            Cell::Group(members) => {
                let found = resolved.list(members, |u| self.datapaths.get(u).copied());
                for m in members.iter().filter(|m| !self.datapaths.contains_key(m)) {
                    self.waiting.entry(RowKey::datapath(*m)).or_default().insert(of.clone());
                }
                if found.is_empty() {
                    return Datum::empty_set();
                }
                Datum::Scalar(Atom::Uuid(self.groups.get(&found, ops)))
            }
        }
    }

    /// The UUID of a row; where there is none yet, the row that asks is written again when there is.
    fn find(&mut self, of: &RowKey, key: &RowKey) -> Option<Uuid> {
        if let Some((uuid, Some(_))) = self.rows.get(key)
            && !self.unwritten.contains(key)
        {
            return Some(*uuid);
        }
        self.waiting.entry(key.clone()).or_default().insert(of.clone());
        None
    }
}

/// The columns of all values under one key. Several units may each put out some columns of a row.
fn merged(values: &[Value]) -> Option<Arc<Columns>> {
    let mut rows = values.iter().filter_map(|v| if let Value::Row(columns) = v { Some(columns) } else { None });
    let first = rows.next()?;
    let mut all: Option<Columns> = None;
    for more in rows {
        let all = all.get_or_insert_with(|| (**first).clone());
        for column in &more.0 {
            if all.0.iter().all(|(name, _)| *name != column.0) {
                all.0.push(column.clone());
            }
        }
    }
    Some(all.map_or_else(|| first.clone(), Arc::new))
}

fn write_nb(table: nb::TableId, uuid: Uuid, columns: &Columns, nb: &nb::Database, out: &mut Changes) {
    let present = nb.columns(table, uuid).unwrap_or_default();
    let mut values = Vec::new();
    for (name, cell) in &columns.0 {
        if let Cell::Data(datum) = cell
            && present.iter().find(|(n, _)| n == name).is_none_or(|(_, d)| d != datum)
        {
            values.push((*name, datum.clone()));
        }
    }
    if !values.is_empty() {
        out.nb.push(Op::Update(table, uuid, values));
    }
}
