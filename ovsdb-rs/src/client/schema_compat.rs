//! Servers whose schema is older than the one that a client knows.

use super::Config;
use crate::DatabaseSchema;

/// What a server's schema lacks of the tables that are asked for, in the words of Open vSwitch's clients.
pub(super) fn lacks(config: &Config, server: &DatabaseSchema) -> Vec<String> {
    let Some(known) = &config.known else { return Vec::new() };
    let mut out = Vec::new();
    for ts in known.tables.values().filter(|t| config.tables.contains_key(&t.name)) {
        match server.tables.get(&ts.name) {
            None => {
                out.push(format!("{} database lacks {} table (database needs upgrade?)", config.database, ts.name));
            }
            Some(theirs) => {
                let missing = ts.columns.iter().filter(|c| theirs.column(&c.name).is_none());
                out.extend(missing.map(|c| {
                    let (table, database) = (&ts.name, &config.database);
                    format!("{table} table in {database} database lacks {} column (database needs upgrade?)", c.name)
                }));
            }
        }
    }
    out
}
