//! The compiler with its state: databases in, changes out.

use crate::input::{Input, Read};
use crate::model::Northd;
use crate::numbers;
use crate::sync::{Changes, Op, Sync};
use incremental::Engine;
use ovn_schema::{Rows, nb, sb};

/// Input, engine and the southbound rows' names.
pub struct Compiler {
    input: Input,
    engine: Engine<Northd>,
    sync: Sync,
    changed: Vec<Read>,
}

impl Compiler {
    /// A compiler for these databases that has not run.
    pub fn new(nb: nb::Database, sb: sb::Database) -> Compiler {
        Compiler { input: Input::new(nb, sb), engine: Engine::new(Northd), sync: Sync::new(), changed: Vec::new() }
    }

    /// What to change, after all changes noted so far.
    pub fn run(&mut self) -> Changes {
        if self.sync.is_broken() {
            self.restart();
        }
        let changed = std::mem::take(&mut self.changed);
        let (input, sync) = (&self.input, &mut self.sync);
        let first = !self.engine.started();
        let (changes, notes) = self.engine.update(input, changed, |changes| {
            let notes = numbers::notes(&changes);
            (sync.apply(changes, &input.sb, &input.nb), notes)
        });
        self.input.note_numbers(notes, first);
        changes
    }

    /// Whether it has not run yet, or is to start from nothing.
    pub fn is_new(&self) -> bool {
        !self.engine.started()
    }

    /// Whether anything was noted since the last run.
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty() || self.sync.touched()
    }

    /// Lets the next run start from nothing.
    pub fn restart(&mut self) {
        self.engine = Engine::new(Northd);
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

    /// Holds the flows of the southbound database no longer.
    pub fn forget_flows(&mut self) {
        self.input.sb.logical_flow = Rows::new();
    }

    /// Puts the columns of new flows back into changes that have been emptied of them: whoever writes many need not hold them
    /// twice.
    pub fn refill(&self, ops: &mut [Op<sb::TableId>]) {
        self.sync.refill(ops, self.engine.outputs());
    }

    /// Gives the databases back.
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
            self.input.note_sb(&change, &mut self.changed);
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
