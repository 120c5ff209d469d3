//! The databases that Isthmus speaks, as Rust structs: one struct is one table, and the JSON
//! schema is generated from the structs.
//!
//! | module | database | manual |
//! |---|---|---|
//! | [`nb`] | OVN_Northbound | ovn-nb(5) |
//! | [`sb`] | OVN_Southbound | ovn-sb(5) |
//! | [`ic_nb`], [`ic_sb`] | OVN_IC_Northbound, OVN_IC_Southbound | ovn-ic-nb(5), ovn-ic-sb(5) |
//! | [`ovs`] | Open_vSwitch | ovs-vswitchd.conf.db(5) |
//! | [`vtep`] | hardware_vtep | vtep(5) |
//!
//! Each module has a `Database`: its tables in memory, typed. It is filled from a file
//! (`Database::load`) or from the changes that a replica reports (`Database::apply`).
//! A column that the server lacks reads as its default (the clients say so: `ovsdb_rs::client::Config::known`), and one that this crate
//! does not know is passed over, as OVN tolerates older and newer servers.

pub mod columns;
mod index;
mod keys;
mod macros;
pub mod options;
pub mod order;
mod table;
mod write;

pub mod ic_nb;
pub mod ic_sb;
pub mod nb;
pub mod ovs;
pub mod sb;
pub mod vtep;

pub use index::Index;
pub use keys::{DatapathKey, PortKey};
pub(crate) use macros::database;
pub use ovsdb_rs::{Real, Str, Uuid};
pub use table::{Change, ColumnValue, InDatabase, Map, Rows, Set, Table};
pub use write::{Cell, Write};
