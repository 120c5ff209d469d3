//! OVSDB (RFC 7047 and ovsdb-server(7) extensions): values, schema, wire protocol,
//! storage, client replica and server.
//!
//! | module | holds |
//! |---|---|
//! | [`value`] | atoms, data, their JSON form, differences |
//! | [`schema`] | database, table and column schemas |
//! | [`mod@file`] | the standalone file format of ovsdb-server, read |
//! | [`storage`] | an open database file: append, sync, compact |
//! | [`engine`] | a database in memory and transactions on it; pure |
//! | [`server`] | serves databases on Unix sockets, TCP, TLS and within the process |
//! | [`client`] | replica, changes, transactions, locks, reconnection (see its example) |
//! | [`stream`], [`tls`] | connection methods |
//! | [`json`] | framing and writing of JSON |

pub mod client;
pub mod engine;
pub mod error;
mod failures;
pub mod file;
pub mod json;
mod lazy_writable;
mod message_log;
pub mod schema;
pub mod server;
mod sorted;
pub mod storage;
pub mod stream;
pub mod tls;
pub mod value;

pub use error::Error;
pub use schema::{BaseType, ColumnSchema, ColumnType, DatabaseSchema, RefType, TableSchema};
pub use server::Server;
pub use uuid::Uuid;
pub use value::{Atom, AtomType, Datum, Real, Str};

/// The values of one row, in the order of [`TableSchema::columns`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Row(pub Vec<Datum>);

impl Row {
    /// The default row of a table (RFC 7047 section 5.2.1: omitted columns).
    pub fn default_for(table: &TableSchema) -> Row {
        Row(table.columns.iter().map(|c| c.ty.default_datum()).collect())
    }

    /// The row as another schema of its table lays it out: columns by name, those that are not here with their default.
    pub fn laid_out(&self, from: &TableSchema, to: &TableSchema) -> Row {
        let value = |c: &ColumnSchema| self.get(from, &c.name).cloned().unwrap_or_else(|| c.ty.default_datum());
        Row(to.columns.iter().map(value).collect())
    }

    /// The value of the named column, if the table has it.
    pub fn get<'a>(&'a self, table: &TableSchema, column: &str) -> Option<&'a Datum> {
        self.0.get(table.column_index(column)?)
    }
}
