//! OVN northbound to southbound compiler.
//!
//! The compiler is a function from the northbound database, and what chassis wrote to the southbound one, to the rows
//! of the southbound database. It is cut into [units](model::Unit) on the engine of the `incremental` crate: a unit
//! reads rows and facts through a [`context::Ctx`] and puts out logical flows, rows and diagnostics.
//!
//! | module | holds |
//! |---|---|
//! | [`input`] | both databases with their indexes |
//! | [`model`] | units, outputs |
//! | [`sticky_ids`] | numbers of groups, tables and chains that are kept |
//! | [`source_line`] | which line put a flow out |
//! | `present` | the units that exist because of what the databases have |
//! | [`stage`] | the stages of the logical pipelines |
//! | [`facts`] | northbound rows, parsed and put in relation |
//! | [`switch`], [`router`] | the pipelines |
//! | [`tables`] | other southbound tables |
//! | [`ageing`] | what was learned long ago |
//! | [`clock`] | how long units take |
//! | [`checks`] | what is doubtful, reported only |
//! | [`sync`] | from outputs to the smallest change of the databases |
//! | `why` | where a row came from, and what became of one |

pub mod addresses;
pub mod ageing;
pub mod checks;
pub mod clock;
pub mod compiler;
pub mod context;
mod derivation;
pub mod facts;
pub mod input;
mod lifecycle;
pub mod model;
pub mod registers;
pub mod router;
pub mod source_line;
pub mod stage;
pub mod sticky_ids;
pub mod switch;
pub mod sync;
pub mod tables;
mod why;

pub use compiler::Compiler;
pub use model::Op;
pub use ovn_schema::order;
pub use sync::{Changes, NewFlow};
