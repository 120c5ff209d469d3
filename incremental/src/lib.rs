//! Derivation engine: outputs are a function of an input, cut into units.
//!
//! A *unit* is plain code that looks at the input through a [`View`]. The view records every
//! thing that was looked at (a row, an index key, a whole table: whatever the
//! [`Derivation`] calls a `Read`), and takes what the unit makes: *output* pairs of a key and a
//! value, at most one *fact* that units of later layers can look at, and further units.
//!
//! ```text
//!   input ──read──► unit (layer 0) ──fact──► unit (layer 1) ──fact──► unit (layer n)
//!                      │    └──spawn───────────►│                        │
//!                      └──emit──►  key → {value, value, …}  ◄──emit──────┘
//! ```
//!
//! When a thing changes, the units that looked at it run again. A fact that comes out equal wakes
//! nobody. Outputs of all units are kept as one relation: several units may emit the same key with
//! different values (one logical flow in many datapaths), and [`Engine::update`] tells for which keys
//! the set of values changed. A full run is an update in which every unit is new; units of one layer
//! run in parallel.

mod engine;
mod outputs;
mod readers;
mod view;

pub use engine::{Engine, Lost, Origin, Stats};
pub use outputs::{Change, Changes, Outputs, Values};
pub use view::View;

use std::fmt::Debug;
use std::hash::Hash;

/// What a program derives, and from what.
pub trait Derivation: Sync + Sized {
    /// Where units read.
    type Input: Sync + ?Sized;
    /// The name of a thing in the input that can be read and can change.
    type Read: Eq + Hash + Clone + Debug + Send + Sync;
    /// The name of a unit.
    type Unit: Eq + Hash + Clone + Debug + Send + Sync;
    /// What a unit derives for others to read.
    type Fact: PartialEq + Send + Sync;
    /// The key of an output.
    type Key: Eq + Hash + Send + Sync;
    /// The value of an output under its key.
    type Value: Ord + Clone + Send + Sync;

    /// The number of layers.
    fn layers(&self) -> usize;

    /// The layer of a unit, below [`Derivation::layers`]. A unit reads facts of lower layers, and
    /// creates units of higher layers, only.
    fn layer(&self, unit: &Self::Unit) -> usize;

    /// The units that always exist.
    fn roots(&self) -> Vec<Self::Unit>;

    /// The units that exist because of what the input has.
    fn present(&self, _input: &Self::Input) -> Vec<Self::Unit> {
        Vec::new()
    }

    /// The units whose existence a thing of the input decides, and whether they are among [`Derivation::present`] now. So one thing
    /// of many comes or goes without a unit that makes a list of all.
    fn decided(&self, _input: &Self::Input, _thing: &Self::Read) -> Vec<(Self::Unit, bool)> {
        Vec::new()
    }

    /// Runs a unit.
    fn run(&self, unit: &Self::Unit, view: &mut View<'_, Self>);
}
