//! Remotes and TLS files that stand in a served database: `db:DB,TABLE,COLUMN` (ovsdb-server(1)).

use anyhow::{Context, bail};
use ovsdb_rs::client::{Client, Config, Replica, TableRequest};
use ovsdb_rs::tls::{Tls, TlsFiles};
use ovsdb_rs::{DatabaseSchema, Datum, Server};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A column that holds strings, or references to rows with a `target` column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub database: String,
    pub table: String,
    pub column: String,
}

impl Place {
    /// Parses `db:DB,TABLE,COLUMN`; none where it is something else.
    pub fn parse(text: &str) -> anyhow::Result<Option<Place>> {
        let Some(rest) = text.strip_prefix("db:") else { return Ok(None) };
        match rest.split(',').collect::<Vec<_>>().as_slice() {
            [database, table, column] => {
                Ok(Some(Place { database: database.to_string(), table: table.to_string(), column: column.to_string() }))
            }
            _ => bail!("\"{text}\": expected db:DB,TABLE,COLUMN"),
        }
    }

    /// The table that the column refers to, if it does.
    fn target<'s>(&self, schema: &'s DatabaseSchema) -> anyhow::Result<Option<&'s str>> {
        let table = schema.table(&self.table)?;
        let column = table
            .column(&self.column)
            .with_context(|| format!("\"db:{},{},{}\": no such column", self.database, self.table, self.column))?;
        Ok(column.ty.key.reference.as_ref().map(|(t, _)| t.as_str()))
    }

    /// What stands there, in all rows.
    fn values(&self, replica: &Replica) -> BTreeSet<String> {
        let Some(schema) = replica.schema() else { return BTreeSet::new() };
        let (Ok(table), Ok(target)) = (schema.table(&self.table), self.target(schema)) else { return BTreeSet::new() };
        let mut out = BTreeSet::new();
        let strings = |d: &Datum| d.atoms().iter().filter_map(|a| a.as_str().map(String::from)).collect::<Vec<_>>();
        for (_, row) in replica.rows(&self.table) {
            let Some(value) = row.get(table, &self.column) else { continue };
            out.extend(strings(value));
            let Some((name, ts)) = target.and_then(|t| Some((t, schema.table(t).ok()?))) else { continue };
            for uuid in value.atoms().iter().filter_map(|a| a.as_uuid()) {
                let row = replica.row(name, uuid);
                out.extend(row.and_then(|r| r.get(ts, "target")).map(strings).unwrap_or_default());
            }
        }
        out.retain(|s| !s.is_empty());
        out
    }
}

/// The TLS files of the command line, each a path or a place in a database.
#[derive(Clone, Debug, Default)]
pub struct TlsPlaces {
    pub private_key: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub ca_cert: Option<PathBuf>,
    pub bootstrap: bool,
}

/// What is configured by databases.
pub struct Watch {
    server: Server,
    remotes: Vec<Place>,
    tls: TlsPlaces,
    clients: Vec<(String, Client)>,
    /// The remotes that came from databases and are open.
    open: Mutex<BTreeSet<String>>,
}

impl Watch {
    /// Starts to follow the databases.
    pub async fn start(server: &Server, remotes: Vec<Place>, tls: TlsPlaces) -> anyhow::Result<Arc<Watch>> {
        let mut places = remotes.clone();
        for path in [&tls.private_key, &tls.certificate, &tls.ca_cert].into_iter().flatten() {
            places.extend(Place::parse(&path.to_string_lossy())?);
        }
        let mut names: Vec<&str> = places.iter().map(|p| p.database.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let (mut clients, mut streams) = (Vec::new(), Vec::new());
        for name in names {
            let schema = server.schema(name).with_context(|| format!("\"db:{name},…\": no database {name}"))?;
            let mut config = Config::in_process(server, name);
            for p in places.iter().filter(|p| p.database == name) {
                config = config.table(&p.table, TableRequest::all());
                if let Some(target) = p.target(&schema)? {
                    config = config.table(target, TableRequest::all());
                }
            }
            let (client, events) = Client::start(config);
            client.connected().await;
            clients.push((name.to_string(), client));
            streams.push(events);
        }
        let watch = Arc::new(Watch { server: server.clone(), remotes, tls, clients, open: Mutex::default() });
        watch.refresh().await;
        for mut events in streams {
            let watch = watch.clone();
            tokio::spawn(async move {
                while events.recv().await.is_some() {
                    watch.refresh().await;
                }
            });
        }
        Ok(watch)
    }

    fn values(&self, place: &Place) -> BTreeSet<String> {
        let client = self.clients.iter().find(|(n, _)| *n == place.database);
        client.map(|(_, c)| c.replica(|r| place.values(r))).unwrap_or_default()
    }

    fn file(&self, path: Option<&PathBuf>) -> Option<PathBuf> {
        let path = path?;
        match Place::parse(&path.to_string_lossy()) {
            Ok(Some(place)) => self.values(&place).into_iter().next().map(PathBuf::from),
            _ => Some(path.clone()),
        }
    }

    /// Brings remotes and TLS up to what the databases say.
    async fn refresh(&self) {
        let key = self.file(self.tls.private_key.as_ref());
        let certificate = self.file(self.tls.certificate.as_ref());
        if let (Some(private_key), Some(certificate)) = (key, certificate) {
            let ca_cert = self.file(self.tls.ca_cert.as_ref());
            match Tls::new(TlsFiles { private_key, certificate, ca_cert, bootstrap: self.tls.bootstrap }) {
                Ok(tls) => self.server.set_tls(Some(tls)),
                Err(e) => tracing::warn!(target: "stream_ssl", "{e}"),
            }
        }
        let wanted: BTreeSet<String> = self.remotes.iter().flat_map(|p| self.values(p)).collect();
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for remote in open.difference(&wanted) {
            // It may have been removed by a command meanwhile.
            let _ = self.server.close(remote);
            self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(remote);
        }
        for remote in wanted.difference(&open) {
            match self.server.listen(remote).await {
                Ok(_) => {
                    self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(remote.clone());
                }
                Err(e) => tracing::warn!(target: "ovsdb_jsonrpc_server", "{e}"),
            }
        }
    }
}
