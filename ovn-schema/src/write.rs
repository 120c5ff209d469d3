//! Typed writes: a column can only be given a value of its type, in a row of its table.
//!
//! Each column is a function of its table's struct, so that a misspelt one does not compile:
//!
//! ```
//! use ovn_schema::{Write, sb};
//! # let schema = std::sync::Arc::new(sb::Database::schema());
//! let mut txn = ovsdb_rs::client::Transaction::new(schema);
//! let row = txn.insert_row([sb::Fdb::mac(&"0a:00:00:00:00:01".into()), sb::Fdb::dp_key(&1)]);
//! txn.update_row(row, [sb::Fdb::port_key(&7)]);
//! ```

use crate::Table;
use ovsdb_rs::client::Transaction;
use ovsdb_rs::{Datum, Uuid};
use std::marker::PhantomData;

/// A column of a table with a value to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell<T> {
    column: &'static str,
    value: Datum,
    table: PhantomData<fn() -> T>,
}

impl<T: Table> Cell<T> {
    pub(crate) fn new(column: &'static str, value: Datum) -> Cell<T> {
        Cell { column, value, table: PhantomData }
    }

    /// The column's name and the value.
    pub fn into_parts(self) -> (&'static str, Datum) {
        (self.column, self.value)
    }
}

/// Operations on rows of known tables. As with [`Transaction`] itself, columns that the server lacks are left out.
pub trait Write {
    /// Inserts a row under a fresh UUID, which other rows of the transaction may refer to. Defaults need not be given.
    fn insert_row<T: Table>(&mut self, cells: impl IntoIterator<Item = Cell<T>>) -> Uuid;

    /// Sets columns of a row; nothing where there are none.
    fn update_row<T: Table>(&mut self, row: Uuid, cells: impl IntoIterator<Item = Cell<T>>);

    /// Adds elements to a set, or pairs to a map, of a row.
    fn add_to_row<T: Table>(&mut self, row: Uuid, cell: Cell<T>);

    /// Takes elements out of a set, or pairs out of a map, of a row.
    fn remove_from_row<T: Table>(&mut self, row: Uuid, cell: Cell<T>);

    /// Takes elements out of a set, or pairs out of a map, of a row, and puts others in.
    fn exchange_in_row<T: Table>(&mut self, row: Uuid, gone: Cell<T>, added: Cell<T>);
}

impl Write for Transaction {
    fn insert_row<T: Table>(&mut self, cells: impl IntoIterator<Item = Cell<T>>) -> Uuid {
        self.insert(T::NAME, cells.into_iter().map(Cell::into_parts))
    }

    fn update_row<T: Table>(&mut self, row: Uuid, cells: impl IntoIterator<Item = Cell<T>>) {
        self.update(T::NAME, row, cells.into_iter().map(Cell::into_parts));
    }

    fn add_to_row<T: Table>(&mut self, row: Uuid, cell: Cell<T>) {
        self.mutate(T::NAME, row, cell.column, "insert", &cell.value);
    }

    fn remove_from_row<T: Table>(&mut self, row: Uuid, cell: Cell<T>) {
        self.mutate(T::NAME, row, cell.column, "delete", &cell.value);
    }

    fn exchange_in_row<T: Table>(&mut self, row: Uuid, gone: Cell<T>, added: Cell<T>) {
        self.exchange(T::NAME, row, added.column, &gone.value, &added.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Set, sb};
    use std::sync::Arc;

    #[test]
    fn typed_operations_are_those_written_by_hand() {
        let schema = Arc::new(sb::Database::schema());
        let (mut typed, mut by_hand) = (Transaction::new(schema.clone()), Transaction::new(schema));
        let (row, member) = (Uuid::new_v4(), Uuid::new_v4());
        let set = Set::from([member]);
        typed.update_row(row, [sb::PortBinding::chassis(&Some(member)), sb::PortBinding::r#type(&"patch".into())]);
        typed.add_to_row(row, sb::PortBinding::additional_chassis(&set));
        typed.remove_from_row(row, sb::PortBinding::additional_chassis(&set));
        let members = crate::ColumnValue::to_datum(&set);
        by_hand.update(
            "Port_Binding",
            row,
            [
                ("chassis", crate::ColumnValue::to_datum(&Some(member))),
                ("type", crate::ColumnValue::to_datum(&crate::Str::from("patch"))),
            ],
        );
        by_hand.mutate("Port_Binding", row, "additional_chassis", "insert", &members);
        by_hand.mutate("Port_Binding", row, "additional_chassis", "delete", &members);
        assert_eq!(typed.into_operations(), by_hand.into_operations());
    }
}
