//! A unit's view of the databases, typed.

use crate::facts::{Fact, global::Global};
use crate::input::{Input, Read};
use crate::model::{Columns, Datapaths, Flow, FlowExtra, Hint, Key, Northd, Placed, RowKey, Unit, Value};
use crate::source_line::SourceLine;
use crate::stage::Stage;
use incremental::View;
use ovn_schema::{InDatabase, Str, Table, Uuid, nb, sb};
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::Arc;

/// What a unit works with.
pub struct Ctx<'v, 'a> {
    view: &'v mut View<'a, Northd>,
    hint: Option<Hint>,
}

impl<'v, 'a> Ctx<'v, 'a> {
    pub(crate) fn new(view: &'v mut View<'a, Northd>) -> Ctx<'v, 'a> {
        Ctx { view, hint: None }
    }

    /// The same, for flows that are there for a northbound row.
    pub fn about(&mut self, row: Uuid) -> Ctx<'_, 'a> {
        Ctx { view: self.view, hint: Hint::of(row) }
    }

    /// The same, for flows that are there for no row in particular.
    pub fn about_none(&mut self) -> Ctx<'_, 'a> {
        Ctx { view: self.view, hint: None }
    }

    /// A northbound row.
    pub fn nb<T: InDatabase<Database = nb::Database>>(&mut self, uuid: Uuid) -> Option<&'a Arc<T>> {
        let read = Read::Nb(uuid);
        let hidden = self.view.hides(&read);
        T::rows(&self.view.read(read).nb).get(&uuid).filter(|_| !hidden)
    }

    /// The names of all rows of a northbound table.
    pub fn nb_table<T: InDatabase<Database = nb::Database>>(&mut self) -> BTreeSet<Uuid> {
        let Some(id) = nb::TableId::from_name(<T as Table>::NAME) else { return BTreeSet::new() };
        T::rows(&self.view.read(Read::NbTable(id)).nb).keys().copied().collect()
    }

    /// A southbound row.
    pub fn sb<T: InDatabase<Database = sb::Database>>(&mut self, uuid: Uuid) -> Option<&'a Arc<T>> {
        let read = Read::Sb(uuid);
        let hidden = self.view.hides(&read);
        T::rows(&self.view.read(read).sb).get(&uuid).filter(|_| !hidden)
    }

    /// The names of all rows of a southbound table.
    pub fn sb_table<T: InDatabase<Database = sb::Database>>(&mut self) -> BTreeSet<Uuid> {
        let Some(id) = sb::TableId::from_name(<T as Table>::NAME) else { return BTreeSet::new() };
        T::rows(&self.view.read(Read::SbTable(id)).sb).keys().copied().collect()
    }

    /// Anything that the input can be asked, under its name.
    pub fn read(&mut self, read: Read) -> &'a Input {
        self.view.read(read)
    }

    /// The numbers that the last run put out, before the first run those of the southbound database. They are not recorded as
    /// read: see [`Input::numbers`].
    pub fn numbers(&self) -> &'a crate::sticky_ids::StickyIds {
        self.view.history().numbers()
    }

    /// What another unit derived.
    pub fn fact(&mut self, unit: Unit) -> Option<&'a Fact> {
        self.view.fact(&unit)
    }

    /// The options that hold for all.
    pub fn global(&mut self) -> &'a Global {
        match self.fact(Unit::Global) {
            Some(Fact::Global(g)) => g,
            _ => Global::none(),
        }
    }

    /// Makes a unit exist.
    pub fn spawn(&mut self, unit: Unit) {
        self.view.spawn(unit);
    }

    /// Sets what other units see under the name of one that does not run.
    pub fn give(&mut self, unit: Unit, fact: Fact) {
        self.view.give(unit, fact);
    }

    /// Sets what other units see of this one.
    pub fn derive(&mut self, fact: Fact) {
        self.view.derive(fact);
    }

    /// Puts out a logical flow.
    #[track_caller]
    pub fn flow(
        &mut self,
        datapaths: impl Into<Datapaths>,
        stage: Stage,
        priority: u16,
        matches: impl Into<Str>,
        actions: impl Into<Str>,
    ) {
        self.flow_with(datapaths, stage, priority, matches, actions, FlowExtra::default());
    }

    /// Puts out a logical flow that concerns one port.
    #[track_caller]
    pub fn port_flow(
        &mut self,
        datapath: Uuid,
        stage: Stage,
        priority: u16,
        matches: impl Into<Str>,
        actions: impl Into<Str>,
        port: &Str,
    ) {
        let extra = FlowExtra { port: Some(port.clone()), ..FlowExtra::default() };
        self.flow_with(datapath, stage, priority, matches, actions, extra);
    }

    /// Puts out a logical flow with rare columns.
    #[track_caller]
    pub fn flow_with(
        &mut self,
        datapaths: impl Into<Datapaths>,
        stage: Stage,
        priority: u16,
        matches: impl Into<Str>,
        actions: impl Into<Str>,
        extra: FlowExtra,
    ) {
        let extra = (extra != FlowExtra::default()).then(|| Box::new(extra));
        let flow = Flow { stage, priority, matches: matches.into(), actions: actions.into(), extra };
        let place = SourceLine::of(Location::caller());
        let placed = Placed { datapaths: datapaths.into(), hint: self.hint, place };
        self.view.emit(Key::Flow(flow), Value::Flow(placed));
    }

    /// Puts out a row.
    pub fn row(&mut self, key: RowKey, columns: Columns) {
        self.view.emit(Key::Row(key), Value::Row(Arc::new(columns)));
    }

    /// Puts out columns of a northbound row.
    pub fn nb_columns(&mut self, table: nb::TableId, uuid: Uuid, columns: Columns) {
        self.view.emit(Key::Nb(table, uuid), Value::Row(Arc::new(columns)));
    }

    /// Says that a row that somebody else made has to go.
    pub fn stale(&mut self, table: sb::TableId, uuid: Uuid) {
        self.view.emit(Key::Stale(table, uuid), Value::Said(0));
    }

    /// Says what could not be compiled, and why.
    pub fn problem(&mut self, text: impl AsRef<str>) {
        self.view.emit(Key::Diagnostic(Str::from(text.as_ref())), Value::Said(0));
    }

    /// The same, said again whenever `of`, which it is about, has changed and is still wrong.
    pub fn problem_of(&mut self, text: impl AsRef<str>, of: &impl std::hash::Hash) {
        use std::hash::Hasher;
        let mut state = rustc_hash::FxHasher::default();
        of.hash(&mut state);
        self.view.emit(Key::Diagnostic(Str::from(text.as_ref())), Value::Said(state.finish()));
    }
}

pub use ovn_schema::options::{bool as flag_or, flag};

/// A numeric option.
pub fn number(map: &ovn_schema::Map<Str, Str>, key: &str) -> Option<i64> {
    map.get(key)?.parse().ok()
}
