//! The macro that turns the statement of a database's tables into structs, schemas and an in-memory database.

/// States a database. Each `table STRUCT FIELD = "NAME" ATTRIBUTES { COLUMNS }` becomes a struct;
/// attributes are `root`, `max_rows(N)` and `index("COLUMN", …)`; a column is
/// `FIELD: RUST_TYPE = "NAME" { TYPE } FLAGS;` with the flags `ephemeral` and `immutable`.
macro_rules! database {
    (name $name:literal, version $version:literal, manual $manual:literal;
     $(table $T:ident $snake:ident = $tname:literal $($attr:ident $(($($arg:literal),*))?)* {
        $($field:ident: $ty:ty = $cname:literal { $ct:expr } $($flag:ident)*;)*
     })*) => {
        $(
        #[doc = concat!("A row of `", $tname, "` (", $manual, ").")]
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $T {
            $(#[doc = concat!("Column `", $cname, "`.")] pub $field: $ty,)*
        }

        impl $T {
            $(#[doc = concat!("Column `", $cname, "` with a value to write.")]
            #[inline]
            pub fn $field(value: &$ty) -> $crate::Cell<$T> {
                $crate::Cell::new($cname, $crate::ColumnValue::to_datum(value))
            })*
        }

        impl $crate::Table for $T {
            const NAME: &'static str = $tname;

            fn schema() -> ovsdb_rs::TableSchema {
                #[allow(unused_mut, reason = "a table without attributes changes nothing")]
                let mut t = ovsdb_rs::TableSchema {
                    name: $tname.to_string(),
                    columns: vec![$({
                        #[allow(unused_mut, reason = "a column without flags changes nothing")]
                        let mut c = ovsdb_rs::ColumnSchema {
                            name: $cname.to_string(), ty: $ct, ephemeral: false, mutable: true,
                        };
                        $($crate::macros::flag!(c, $flag);)*
                        c
                    }),*],
                    max_rows: None,
                    is_root: false,
                    indexes: Vec::new(),
                };
                $($crate::macros::attribute!(t, $attr $(($($arg),*))?);)*
                t
            }

            fn from_row(row: &ovsdb_rs::Row, schema: &ovsdb_rs::TableSchema) -> Result<$T, ovsdb_rs::Error> {
                let mut next = 0;
                Ok($T { $($field: $crate::table::read((row, schema), $tname, $cname, &mut next)?,)* })
            }

            fn columns(&self) -> Vec<(&'static str, ovsdb_rs::Datum)> {
                vec![$(($cname, $crate::ColumnValue::to_datum(&self.$field)),)*]
            }
        }

        impl $crate::InDatabase for $T {
            type Database = Database;
            fn rows(db: &Database) -> &$crate::Rows<$T> {
                &db.$snake
            }
            fn rows_mut(db: &mut Database) -> &mut $crate::Rows<$T> {
                &mut db.$snake
            }
        }
        )*

        #[doc = concat!("The tables of ", $name, " in memory.")]
        #[derive(Clone, Debug, Default)]
        pub struct Database {
            $(#[doc = concat!("`", $tname, "`.")] pub $snake: $crate::Rows<$T>,)*
        }

        #[doc = concat!("A table of ", $name, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum TableId {
            $(#[doc = concat!("`", $tname, "`.")] $T,)*
        }

        impl TableId {
            /// All tables.
            pub const ALL: &'static [TableId] = &[$(TableId::$T),*];

            /// The table's name.
            pub fn name(self) -> &'static str {
                match self { $(TableId::$T => $tname,)* }
            }

            /// The table of this name.
            pub fn from_name(name: &str) -> Option<TableId> {
                match name { $($tname => Some(TableId::$T),)* _ => None }
            }
        }

        /// What became of one row, by table.
        #[derive(Clone, Debug, PartialEq)]
        pub enum AnyChange {
            $(#[doc = concat!("A row of `", $tname, "`.")] $T($crate::Change<$T>),)*
        }

        impl AnyChange {
            /// The table and the row's name.
            pub fn key(&self) -> (TableId, ovsdb_rs::Uuid) {
                match self { $(AnyChange::$T(c) => (TableId::$T, c.uuid),)* }
            }
        }

        impl Database {
            #[doc = concat!("The name, `", $name, "`.")]
            pub const NAME: &'static str = $name;

            #[doc = concat!("The schema's version, `", $version, "`.")]
            pub const VERSION: &'static str = $version;

            /// The columns of a row; none where there is no such row.
            pub fn columns(
                &self,
                table: TableId,
                uuid: ovsdb_rs::Uuid,
            ) -> Option<Vec<(&'static str, ovsdb_rs::Datum)>> {
                match table { $(TableId::$T => self.$snake.get(&uuid).map(|r| $crate::Table::columns(&**r)),)* }
            }

            /// Whether there is a row.
            pub fn has(&self, table: TableId, uuid: ovsdb_rs::Uuid) -> bool {
                match table { $(TableId::$T => self.$snake.contains_key(&uuid),)* }
            }

            /// The names of a table's rows, in no order.
            pub fn uuids(&self, table: TableId) -> Vec<ovsdb_rs::Uuid> {
                match table { $(TableId::$T => self.$snake.keys().copied().collect(),)* }
            }

            /// The schema, generated from the structs.
            pub fn schema() -> ovsdb_rs::DatabaseSchema {
                ovsdb_rs::DatabaseSchema {
                    name: $name.to_string(),
                    version: $version.to_string(),
                    cksum: None,
                    tables: [$(($tname.to_string(), <$T as $crate::Table>::schema())),*].into_iter().collect(),
                }
            }

            /// The database that a file holds. Tables that this crate does not know are passed over.
            ///
            /// # Errors
            /// [`ovsdb_rs::Error::Syntax`] where a value is of another shape.
            pub fn load(content: &ovsdb_rs::file::Content) -> Result<Database, ovsdb_rs::Error> {
                let mut db = Database::default();
                for (table, rows) in &content.tables {
                    let Some(schema) = content.schema.tables.get(table) else { continue };
                    for (uuid, row) in rows {
                        db.apply(table, schema, *uuid, Some(row))?;
                    }
                }
                Ok(db)
            }

            /// Takes over a row's new state (none: deleted), laid out by the server's `schema`.
            /// Gives nothing where this crate does not know the table.
            ///
            /// # Errors
            /// [`ovsdb_rs::Error::Syntax`] where a value is of another shape; nothing is changed then.
            pub fn apply(
                &mut self,
                table: &str,
                schema: &ovsdb_rs::TableSchema,
                uuid: ovsdb_rs::Uuid,
                row: Option<&ovsdb_rs::Row>,
            ) -> Result<Option<AnyChange>, ovsdb_rs::Error> {
                Ok(match TableId::from_name(table) {
                    None => None,
                    $(Some(TableId::$T) => {
                        Some(AnyChange::$T($crate::table::replace(&mut self.$snake, uuid, row, schema)?))
                    })*
                })
            }
        }
    };
}

/// A column's flag.
macro_rules! flag {
    ($c:ident, ephemeral) => {
        $c.ephemeral = true;
    };
    ($c:ident, immutable) => {
        $c.mutable = false;
    };
}

/// A table's attribute.
macro_rules! attribute {
    ($t:ident, root) => {
        $t.is_root = true;
    };
    ($t:ident, max_rows($n:literal)) => {
        $t.max_rows = Some($n);
    };
    ($t:ident, index($($c:literal),*)) => {
        $t.indexes.push(vec![$($c.to_string()),*]);
    };
}

pub(crate) use {attribute, database, flag};
