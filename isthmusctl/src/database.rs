//! Connections, and `isthmusctl db`.

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use ovsdb_rs::client::{Client, Config, Event, TableRequest};
use ovsdb_rs::{Row, TableSchema, Uuid};
use serde_json::Value;
use std::time::Duration;

/// What to do with a database.
#[derive(Subcommand)]
pub enum Command {
    /// Lists the tables with their number of rows.
    Tables {
        /// The database.
        database: String,
    },
    /// Prints the rows of a table.
    Dump {
        /// The database.
        database: String,
        /// The table.
        table: String,
    },
    /// Carries out a transaction of RFC 7047 operations.
    Transact {
        /// The database.
        database: String,
        /// A JSON array of operations.
        operations: String,
    },
    /// Prints changes as they happen, until interrupted.
    Watch {
        /// The database.
        database: String,
        /// The table.
        table: String,
    },
}

/// Connects and waits for the first copy of these tables.
pub async fn connect(remote: &str, database: &str, tables: &[&str], limit: Duration) -> Result<Client> {
    Ok(connect_watching(remote, database, tables, limit).await?.0)
}

/// Gives each row of these tables to `apply`, which puts it into a typed database.
pub fn rows<T>(
    client: &Client,
    tables: &[&str],
    mut apply: impl FnMut(&str, &TableSchema, Uuid, Option<&Row>) -> Result<T, ovsdb_rs::Error>,
) -> Result<()> {
    client.replica(|r| {
        let schema = r.schema().context("the database has no schema")?;
        for table in tables {
            for (id, row) in r.rows(table) {
                apply(table, schema.table(table)?, *id, Some(row))?;
            }
        }
        Ok(())
    })
}

async fn connect_watching(
    remote: &str,
    database: &str,
    tables: &[&str],
    limit: Duration,
) -> Result<(Client, tokio::sync::mpsc::UnboundedReceiver<Event>)> {
    let config = Config::new(remote, database)?;
    let config = tables.iter().fold(config, |c, t| c.table(t, TableRequest::all()));
    let (client, events) = Client::start(config);
    match tokio::time::timeout(limit, client.connected()).await {
        Ok(()) => Ok((client, events)),
        Err(_) => bail!("{remote}: database {database} cannot be reached within {limit:?}"),
    }
}

/// Runs a command.
pub async fn run(remote: &str, command: Command, limit: Duration) -> Result<()> {
    match command {
        Command::Tables { database } => {
            let client = connect(remote, &database, &[], limit).await?;
            let schema = client.schema().context("the database has no schema")?;
            let names: Vec<String> = schema.tables.keys().cloned().collect();
            let all: Vec<&str> = names.iter().map(String::as_str).collect();
            let client = connect(remote, &database, &all, limit).await?;
            client.replica(|r| names.iter().for_each(|t| println!("{:>8}  {t}", r.rows(t).count())));
        }
        Command::Dump { database, table } => {
            let client = connect(remote, &database, &[&table], limit).await?;
            let schema = client.schema().context("the database has no schema")?;
            let ts = schema.table(&table)?;
            client.replica(|r| {
                for (uuid, row) in r.rows(&table) {
                    println!("{uuid}");
                    for (c, d) in ts.columns.iter().zip(&row.0).filter(|(_, d)| !d.is_empty()) {
                        println!("    {}: {}", c.name, d.to_json());
                    }
                }
            });
        }
        Command::Transact { database, operations } => {
            let operations: Vec<Value> =
                serde_json::from_str(&operations).context("the operations are no JSON array")?;
            let client = connect(remote, &database, &[], limit).await?;
            let results = client.transact(operations).await?;
            println!("{}", Value::Array(results.clone()));
            if let Some(e) = results.iter().find(|r| r.get("error").is_some()) {
                bail!("the transaction failed: {e}");
            }
        }
        Command::Watch { database, table } => {
            let (_client, mut events) = connect_watching(remote, &database, &[&table], limit).await?;
            while let Some(e) = events.recv().await {
                let Event::Update(u) = e else { continue };
                for c in u.changes {
                    let sign = match (&c.old, &c.new) {
                        (None, _) => '+',
                        (_, None) => '-',
                        _ => '~',
                    };
                    println!("{sign} {}", c.uuid);
                    let Some(ts) = u.schema.tables.get(&*c.table) else { continue };
                    for (n, col) in ts.columns.iter().enumerate() {
                        let of =
                            |r: &Option<std::sync::Arc<ovsdb_rs::Row>>| r.as_ref().and_then(|r| r.0.get(n).cloned());
                        let (old, new) = (of(&c.old), of(&c.new));
                        if let Some(d) = new.filter(|d| old.as_ref() != Some(d) && !(old.is_none() && d.is_empty())) {
                            println!("    {}: {}", col.name, d.to_json());
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Prints a schema.
pub fn schema(database: &str) -> Result<()> {
    use ovn_schema::{ic_nb, ic_sb, nb, ovs, sb, vtep};
    let s = match database {
        nb::Database::NAME => nb::Database::schema(),
        sb::Database::NAME => sb::Database::schema(),
        ic_nb::Database::NAME => ic_nb::Database::schema(),
        ic_sb::Database::NAME => ic_sb::Database::schema(),
        ovs::Database::NAME => ovs::Database::schema(),
        vtep::Database::NAME => vtep::Database::schema(),
        other => bail!("there is no schema {other}; --help lists them"),
    };
    println!("{}", s.to_json());
    Ok(())
}
