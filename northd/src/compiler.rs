//! The compiler with its state: databases in, changes out.

use crate::clock::Clock;
use crate::input::{Input, Read};
use crate::model::Northd;
use crate::model::Op;
use crate::sticky_ids;
use crate::sync::{Changes, NewFlow, Sync};
use incremental::Engine;
use ovn_schema::{Rows, nb, sb};
use std::sync::Arc;

/// The input, the engine, and the map from outputs to southbound rows.
pub struct Compiler {
    input: Input,
    engine: Engine<Northd>,
    sync: Sync,
    changed: Vec<Read>,
}

impl Compiler {
    /// A compiler for these databases that has not run.
    pub fn new(nb: nb::Database, sb: sb::Database) -> Compiler {
        Compiler::measured(nb, sb, Arc::default())
    }

    /// As [`Compiler::new`], with a clock that measures units.
    pub fn measured(nb: nb::Database, sb: sb::Database, clock: Arc<Clock>) -> Compiler {
        let engine = Engine::new(Northd { clock });
        Compiler { input: Input::new(nb, sb), engine, sync: Sync::new(), changed: Vec::new() }
    }

    /// Compiles the changes noted so far; returns what to change in both databases.
    pub fn run(&mut self) -> Changes {
        let mut changes = self.derive();
        let flows = std::mem::take(&mut changes.flows);
        changes.sb.extend(flows.iter().filter_map(self.rows_of_flows()));
        changes
    }

    /// As [`Compiler::run`], without the columns of new flows, which [`Compiler::rows_of_flows`] gives.
    pub fn derive(&mut self) -> Changes {
        if self.sync.is_broken() {
            self.restart();
        }
        let changed = std::mem::take(&mut self.changed);
        let (input, sync) = (&self.input, &mut self.sync);
        let first = !self.engine.started();
        let (changes, notes) = self.engine.update(input, changed, |changes| {
            let notes = sticky_ids::notes(&changes);
            (sync.apply(changes, &input.sb, &input.nb), notes)
        });
        self.input.note_numbers(notes, first);
        changes
    }

    /// The rows of new flows, each made when it is asked for: whoever writes many need not hold them all.
    pub fn rows_of_flows(&self) -> impl FnMut(&NewFlow) -> Option<Op<sb::TableId>> {
        self.sync.rows_of_flows(self.engine.outputs())
    }

    /// Whether the next run is a full one: the first, or one after [`Compiler::restart`].
    pub fn is_new(&self) -> bool {
        !self.engine.started()
    }

    /// Whether anything was noted since the last run.
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty() || self.sync.touched()
    }

    /// Makes the next run a full recompute.
    pub fn restart(&mut self) {
        self.engine = Engine::new(Northd { clock: self.engine.derivation().clock.clone() });
        self.sync = Sync::new();
        self.changed.clear();
        self.input.load_numbers();
    }

    /// Whether the next run compares all flows with [`Input::sb`], so that they have to be there. Otherwise they need not.
    pub fn wants_flows(&self) -> bool {
        self.is_new() || self.sync.is_broken()
    }

    /// Takes over the flows that the southbound database has.
    pub fn load_flows(&mut self, flows: Rows<sb::LogicalFlow>) {
        self.input.sb.logical_flow = flows;
        self.input.load_numbers();
    }

    /// Drops the copy of the southbound flows.
    pub fn forget_flows(&mut self) {
        self.input.sb.logical_flow = Rows::default();
    }

    /// Shrinks the tables to what they hold.
    pub fn trim(&mut self) {
        self.engine.trim();
        self.sync.trim();
        self.changed.shrink_to_fit();
    }

    /// Ends the compiler and returns its databases.
    pub fn into_databases(self) -> (nb::Database, sb::Database) {
        (self.input.nb, self.input.sb)
    }

    /// Compares everything with the databases anew, as after a start.
    pub fn recompute(&mut self) -> Changes {
        self.restart();
        self.run()
    }

    /// The databases.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// Changes the northbound database; `apply` gives what it changed.
    pub fn change_nb(&mut self, apply: impl FnOnce(&mut nb::Database) -> Vec<nb::AnyChange>) {
        for change in apply(&mut self.input.nb) {
            self.input.note_nb(&change, &mut self.changed);
            self.sync.note_nb(change.key().1);
        }
    }

    /// Changes the southbound database; `apply` gives what it changed.
    pub fn change_sb(&mut self, apply: impl FnOnce(&mut sb::Database) -> Vec<sb::AnyChange>) {
        for change in apply(&mut self.input.sb) {
            let before = self.changed.len();
            self.input.note_sb(&change, &mut self.changed);
            if self.sync.is_own(&change) && says_nothing(&change) {
                let told = self.changed.split_off(before);
                self.changed.extend(told.into_iter().filter(|r| matches!(r, Read::DatapathKey(_))));
            }
            self.sync.note(&change, &self.input.sb);
        }
    }

    /// Which southbound row stands for which output.
    pub fn sync(&self) -> &Sync {
        &self.sync
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<Northd> {
        &self.engine
    }
}

/// Whether a row that the compiler put in says nothing that it did not know: units see such a row as they see none.
fn says_nothing(change: &sb::AnyChange) -> bool {
    match change {
        sb::AnyChange::PortBinding(c) => c.old.is_none() && c.new.as_ref().is_some_and(|b| is_unbound(b)),
        sb::AnyChange::DatapathBinding(c) => c.old.is_none(),
        _ => false,
    }
}

/// Whether no chassis has written anything in a binding.
fn is_unbound(b: &sb::PortBinding) -> bool {
    b.chassis.is_none()
        && b.additional_chassis.is_empty()
        && b.encap.is_none()
        && b.virtual_parent.is_none()
        && b.up == Some(false)
}
