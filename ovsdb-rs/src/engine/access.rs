//! Who may change what: read-only remotes (ovsdb-server(1)) and roles (ovn-architecture(7),
//! "Role-Based Access Controls for the Southbound DB").

use super::{Column, Database, OpError, RowView};
use crate::{Atom, Row, Str, TableSchema, Uuid};

/// What the one who sent a transaction may do. By default everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Nothing may be changed.
    pub read_only: bool,
    /// The role whose permissions hold, a row of `RBAC_Role`; "" for none.
    pub role: Str,
    /// Who the client is: the common name of its certificate.
    pub client: Str,
}

/// What a role may do to a table: a row of `RBAC_Permission`.
struct Permission<'a> {
    schema: &'a TableSchema,
    row: &'a Row,
}

impl Permission<'_> {
    fn strings(&self, column: &str) -> impl Iterator<Item = &str> {
        self.row.get(self.schema, column).into_iter().flat_map(|d| d.atoms().iter().filter_map(Atom::as_str))
    }

    /// Whether rows may be inserted and deleted.
    fn insert_delete(&self) -> bool {
        matches!(
            self.row.get(self.schema, "insert_delete").and_then(|d| d.scalar().cloned()),
            Some(Atom::Boolean(true))
        )
    }

    /// Whether one of the columns (or `column:key`s) named by the permission holds the client's name;
    /// an empty name stands for every client.
    fn authorizes(&self, client: &str, table: &TableSchema, row: &Row) -> bool {
        self.strings("authorization").any(|name| {
            if name.is_empty() {
                return true;
            }
            let value = match name.split_once(':') {
                Some((column, key)) => row.get(table, column).and_then(|d| d.get_str(key)),
                None => row.get(table, name).and_then(|d| d.scalar()),
            };
            value.and_then(Atom::as_str) == Some(client)
        })
    }

    fn may_update(&self, name: &str) -> bool {
        self.strings("update").any(|n| n == name)
    }
}

/// What may be done to one table.
pub(super) struct Rules<'a> {
    access: &'a Access,
    table: &'a TableSchema,
    /// The permission; none where the role has none for the table.
    permission: Option<Permission<'a>>,
}

impl Access {
    /// The rules for a table; none where there are no roles.
    pub(super) fn rules<'a>(&'a self, db: &'a Database, table: usize) -> Option<Rules<'a>> {
        if self.role.is_empty() {
            return None;
        }
        let roles = db.table_index("RBAC_Role")?;
        let schema = &db.tables[roles].schema;
        let is_ours = |r: &RowView<'_>| {
            let name = r.row.get(schema, "name").and_then(|d| d.scalar());
            name.and_then(Atom::as_str) == Some(&*self.role)
        };
        let table = &*db.tables[table].schema;
        let permission = db
            .rows(roles)
            .find(is_ours)
            .and_then(|r| r.row.get(schema, "permissions")?.get_str(&table.name)?.as_uuid())
            .and_then(|u| db.permission(u));
        Some(Rules { access: self, table, permission })
    }
}

impl Database {
    fn permission(&self, uuid: Uuid) -> Option<Permission<'_>> {
        let table = self.table_index("RBAC_Permission")?;
        Some(Permission { schema: &self.tables[table].schema, row: self.row(table, uuid)? })
    }
}

impl Rules<'_> {
    fn check<'r>(
        &self,
        mut rows: impl Iterator<Item = &'r Row>,
        allowed: impl Fn(&Permission<'_>) -> bool,
        what: &str,
    ) -> Result<(), OpError> {
        let may = |row: &Row| {
            let p = self.permission.as_ref();
            p.is_some_and(|p| allowed(p) && p.authorizes(&self.access.client, self.table, row))
        };
        // What concerns no row needs no permission.
        if rows.all(may) {
            return Ok(());
        }
        let (client, role, table) = (&self.access.client, &self.access.role, &self.table.name);
        let text = format!("RBAC rules for client \"{client}\" role \"{role}\" prohibit {what} table \"{table}\".");
        Err(OpError::new("permission error", text))
    }

    /// Whether a row may be inserted.
    pub(super) fn insert(&self, row: &Row) -> Result<(), OpError> {
        self.check(std::iter::once(row), |p| p.insert_delete(), "row insertion into")
    }

    /// Whether rows may be deleted.
    pub(super) fn delete<'r>(&self, rows: impl Iterator<Item = &'r Row>) -> Result<(), OpError> {
        self.check(rows, |p| p.insert_delete(), "row deletion from")
    }

    fn may_update(&self, p: &Permission<'_>, columns: &[Column]) -> bool {
        columns.iter().all(|c| p.may_update(c.name(self.table)))
    }

    /// Whether columns of rows may be set.
    pub(super) fn update<'r>(&self, columns: &[Column], rows: impl Iterator<Item = &'r Row>) -> Result<(), OpError> {
        self.check(rows, |p| self.may_update(p, columns), "modification of")
    }

    /// Whether columns of rows may be mutated. As in ovsdb-server, a permission for `column:key` alone does not suffice.
    pub(super) fn mutate<'r>(&self, columns: &[Column], rows: impl Iterator<Item = &'r Row>) -> Result<(), OpError> {
        if columns.is_empty() {
            return Ok(());
        }
        self.check(rows, |p| self.may_update(p, columns), "mutate operation on")
    }
}
