//! Remotes and TLS files, given on the command line or standing in a served database:
//! `db:DB,TABLE,COLUMN` (ovsdb-server(1)).

use anyhow::bail;
use ovsdb_rs::client::{Client, Config, Replica, TableRequest};
use ovsdb_rs::server::{RemoteOptions, RemoteStatus};
use ovsdb_rs::tls::{Limits, Tls, TlsFiles};
use ovsdb_rs::{Atom, DatabaseSchema, Datum, Row, Server, TableSchema, Uuid};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;

/// How often `status` columns are brought up to date.
const STATUS_INTERVAL: Duration = Duration::from_millis(2500);

/// A column that holds strings, or references to rows with a `target` column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    text: String,
    pub database: String,
    pub table: String,
    pub column: String,
}

impl Place {
    /// Parses `db:DB,TABLE,COLUMN`; none where it is something else.
    pub fn parse(text: &str) -> anyhow::Result<Option<Place>> {
        let Some(rest) = text.strip_prefix("db:") else { return Ok(None) };
        match rest.split(',').collect::<Vec<_>>().as_slice() {
            [database, table, column] => Ok(Some(Place {
                text: text.to_string(),
                database: database.to_string(),
                table: table.to_string(),
                column: column.to_string(),
            })),
            _ => bail!("\"{text}\": invalid syntax"),
        }
    }

    /// Whether the database, where it is being served, has such a column.
    fn check(&self, server: &Server) -> anyhow::Result<()> {
        let Place { text, database, table, column } = self;
        let Some(schema) = server.schema(database) else { bail!("\"{text}\": no database named {database}") };
        if schema.tables.is_empty() {
            // A relay that has not reached its source yet.
            return Ok(());
        }
        let Some(ts) = schema.tables.get(table) else { bail!("\"{text}\": no table named {table}") };
        if ts.column(column).is_none() {
            bail!("\"{text}\": table \"{table}\" has no column \"{column}\"");
        }
        Ok(())
    }

    /// The table that the column refers to, if it does.
    fn target<'s>(&self, schema: &'s DatabaseSchema) -> Option<&'s TableSchema> {
        let column = schema.tables.get(&self.table)?.column(&self.column)?;
        let (target, _) = column.ty.key.reference.as_ref()?;
        schema.tables.get(target)
    }

    /// The strings that stand there, in all rows.
    fn strings(&self, replica: &Replica) -> BTreeSet<String> {
        let table = replica.schema().and_then(|s| s.tables.get(&self.table));
        let values = replica.rows(&self.table).filter_map(|(_, row)| row.get(table?, &self.column));
        values.flat_map(|d| d.atoms().iter().filter_map(Atom::as_str).map(String::from)).collect()
    }

    /// The rows that are referred to there.
    fn targets<'r>(&self, replica: &'r Replica) -> Vec<(Uuid, &'r TableSchema, &'r Row)> {
        let Some(schema) = replica.schema() else { return Vec::new() };
        let (Some(target), Some(table)) = (self.target(schema), schema.tables.get(&self.table)) else {
            return Vec::new();
        };
        let values = replica.rows(&self.table).filter_map(|(_, row)| row.get(table, &self.column));
        let uuids = values.flat_map(|d| d.atoms().iter().filter_map(Atom::as_uuid));
        uuids.filter_map(|u| Some((u, target, &**replica.row(&target.name, u)?))).collect()
    }

    /// The remotes that stand there.
    fn remotes(&self, replica: &Replica) -> BTreeMap<String, RemoteOptions> {
        let mut out: BTreeMap<String, RemoteOptions> =
            self.strings(replica).into_iter().map(|s| (s, RemoteOptions::default())).collect();
        for (_, schema, row) in self.targets(replica) {
            let value = |c: &str| row.get(schema, c).and_then(Datum::scalar);
            let Some(target) = value("target").and_then(Atom::as_str) else { continue };
            // Without them, and with what is none, it is the default.
            let other = row.get(schema, "other_config").map(Datum::pairs).unwrap_or_default();
            let dscp = other.iter().find(|(k, _)| k.as_str() == Some("dscp")).and_then(|(_, v)| v.as_str());
            let time = |c| value(c).and_then(Atom::as_integer).and_then(|n| u64::try_from(n).ok());
            let options = RemoteOptions {
                inactivity_probe: time("inactivity_probe").map(Duration::from_millis),
                max_backoff: time("max_backoff").map(Duration::from_millis),
                dscp: dscp.and_then(|d| d.parse().ok()).filter(|d| *d < 64),
                read_only: value("read_only") == Some(&Atom::Boolean(true)),
                role: value("role").and_then(Atom::as_str).unwrap_or_default().into(),
            };
            out.insert(target.to_string(), options);
        }
        out.remove("");
        out
    }
}

/// The TLS files of the command line, each a path or a place in a database, and the limits.
#[derive(Clone, Debug, Default)]
pub struct TlsPlaces {
    pub private_key: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub ca_cert: Option<PathBuf>,
    pub peer_ca_cert: Option<PathBuf>,
    pub bootstrap: bool,
    pub protocols: Option<String>,
    pub ciphers: Option<String>,
    pub suites: Option<String>,
}

impl TlsPlaces {
    /// Whether what the command line itself says can be kept.
    pub fn check(&self) -> Result<(), ovsdb_rs::Error> {
        let said = [&self.protocols, &self.ciphers, &self.suites];
        let [protocols, ciphers, suites] = said.map(|l| l.as_deref().filter(|l| !l.starts_with("db:")));
        Limits::parse(protocols, ciphers, suites).map(drop)
    }
}

/// TLS as the command line and databases have it at present.
#[derive(Clone, Default, PartialEq, Eq)]
struct TlsSettings {
    files: Option<(PathBuf, PathBuf, Option<PathBuf>)>,
    /// Protocols, ciphers, ciphersuites.
    limits: [Option<String>; 3],
}

struct Follower {
    client: Client,
    tables: BTreeSet<String>,
    task: AbortHandle,
}

#[derive(Default)]
struct State {
    /// The remotes as the command line, commands or the configuration file gave them.
    remotes: BTreeMap<String, RemoteOptions>,
    places: Vec<Place>,
    clients: BTreeMap<String, Follower>,
    /// The remotes that came from databases and are open.
    open: BTreeMap<String, RemoteOptions>,
    /// Why others could not be opened.
    failed: BTreeMap<String, String>,
    tls: TlsSettings,
}

/// What is configured; clones are the same.
#[derive(Clone)]
pub struct Setup(Arc<Shared>);

struct Shared {
    server: Server,
    tls: TlsPlaces,
    state: Mutex<State>,
    /// One change after the other.
    turn: tokio::sync::Mutex<()>,
}

impl Setup {
    /// Starts with no remotes.
    pub fn new(server: &Server, tls: TlsPlaces) -> Setup {
        let shared =
            Shared { server: server.clone(), tls, state: Mutex::default(), turn: tokio::sync::Mutex::default() };
        let setup = Setup(Arc::new(shared));
        let s = setup.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(STATUS_INTERVAL).await;
                // What could not be opened may be possible now.
                s.refresh().await;
                s.write_status().await;
            }
        });
        setup
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads TLS files and places in databases.
    pub async fn start(&self) -> anyhow::Result<()> {
        for text in self.tls_texts() {
            if let Some(place) = Place::parse(&text)? {
                place.check(&self.0.server)?;
            }
        }
        self.follow().await;
        self.refresh().await;
        Ok(())
    }

    /// Adds a remote. One that is there already stays as it is.
    pub async fn add(&self, remote: &str) -> anyhow::Result<()> {
        if self.state().remotes.contains_key(remote) {
            return Ok(());
        }
        self.open(remote, &RemoteOptions::default()).await?;
        self.state().remotes.insert(remote.to_string(), RemoteOptions::default());
        Ok(())
    }

    /// Opens a remote, or gives it other options; follows the place that it names.
    async fn open(&self, remote: &str, options: &RemoteOptions) -> anyhow::Result<()> {
        match Place::parse(remote)? {
            Some(place) => {
                place.check(&self.0.server)?;
                let is_new = !self.state().places.contains(&place);
                if is_new {
                    self.state().places.push(place);
                }
                self.follow().await;
                self.refresh().await;
            }
            None => {
                self.0.server.listen_with(remote, options.clone()).await?;
            }
        }
        self.write_status().await;
        Ok(())
    }

    /// Has these remotes and no others. One that cannot be opened is said; it counts as configured, and the others are opened.
    ///
    /// # Errors
    /// Where one could not be opened.
    pub async fn configure(&self, wanted: BTreeMap<String, RemoteOptions>) -> anyhow::Result<()> {
        let present = std::mem::take(&mut self.state().remotes);
        for remote in present.keys().filter(|r| !wanted.contains_key(*r)) {
            // One that could not be opened is not there.
            let _ = self.close(remote).await;
        }
        self.state().remotes = wanted.clone();
        let mut failed = Vec::new();
        for (remote, options) in &wanted {
            if let Err(e) = self.open(remote, options).await {
                failed.push(format!("{e:#}"));
            }
        }
        anyhow::ensure!(failed.is_empty(), "failed to configure remotes: {}", failed.join("; "));
        Ok(())
    }

    /// Removes a remote.
    pub async fn remove(&self, remote: &str) -> Result<(), String> {
        if self.state().remotes.remove(remote).is_none() {
            return Err("no such remote".into());
        }
        self.close(remote).await
    }

    async fn close(&self, remote: &str) -> Result<(), String> {
        if remote.starts_with("db:") {
            self.state().places.retain(|p| p.text != remote);
            self.follow().await;
            self.refresh().await;
            Ok(())
        } else {
            self.0.server.close(remote).map_err(|e| e.to_string())
        }
    }

    /// The remotes as they were given.
    pub fn remotes(&self) -> Vec<String> {
        self.state().remotes.keys().cloned().collect()
    }

    /// TLS, as it is configured at present.
    pub fn tls(&self) -> Option<Tls> {
        let TlsSettings { files, limits: [protocols, ciphers, suites] } = self.state().tls.clone();
        let (private_key, certificate, ca_cert) = files?;
        let files = TlsFiles { private_key, certificate, ca_cert, bootstrap: self.0.tls.bootstrap };
        let tls = Tls::new(files).map_err(|e| tracing::warn!(target: "stream_ssl", "{e}")).ok()?;
        let limits = Limits::parse(protocols.as_deref(), ciphers.as_deref(), suites.as_deref());
        // A database can say anything: what it says wrongly has no effect.
        let limits = limits.unwrap_or_else(|e| {
            tracing::error!(target: "stream_ssl", "{e}");
            Limits::default()
        });
        Some(tls.limited(limits).peer_ca(self.0.tls.peer_ca_cert.clone()))
    }

    /// Everything of TLS that can stand in a database.
    fn tls_texts(&self) -> Vec<String> {
        let t = &self.0.tls;
        let files = [&t.private_key, &t.certificate, &t.ca_cert].into_iter().flatten();
        let limits = [&t.protocols, &t.ciphers, &t.suites].into_iter().flatten().cloned();
        files.map(|p| p.to_string_lossy().into_owned()).chain(limits).collect()
    }

    fn places(&self) -> Vec<Place> {
        let tls = self.tls_texts().into_iter().filter_map(|t| Place::parse(&t).ok().flatten());
        let mut places: Vec<Place> = tls.collect();
        places.extend(self.state().places.iter().cloned());
        places
    }

    /// Follows the tables that places name.
    async fn follow(&self) {
        let _turn = self.0.turn.lock().await;
        let mut wanted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for p in self.places() {
            let schema = self.0.server.schema(&p.database);
            let target = schema.as_ref().and_then(|s| p.target(s)).map(|t| t.name.clone());
            wanted.entry(p.database).or_default().extend(target.into_iter().chain([p.table]));
        }
        let stale = |s: &State| {
            let old = s.clients.iter().filter(|(n, f)| wanted.get(*n) != Some(&f.tables));
            old.map(|(n, _)| n.clone()).collect::<Vec<_>>()
        };
        let stale = stale(&self.state());
        for name in stale {
            if let Some(f) = self.state().clients.remove(&name) {
                f.task.abort();
            }
        }
        for (name, tables) in wanted {
            if self.state().clients.contains_key(&name) {
                continue;
            }
            let mut config = Config::in_process(&self.0.server, &name);
            for t in &tables {
                config = config.table(t, TableRequest::all());
            }
            let (client, mut events) = Client::start(config);
            // A database that is not there is waited for behind the scenes.
            let _ = tokio::time::timeout(Duration::from_secs(2), client.connected()).await;
            let setup = self.clone();
            let task = tokio::spawn(async move {
                while events.recv().await.is_some() {
                    setup.refresh().await;
                }
            });
            self.state().clients.insert(name, Follower { client, tables, task: task.abort_handle() });
        }
    }

    fn look<R: Default>(&self, place: &Place, f: impl FnOnce(&Replica) -> R) -> R {
        if self.0.server.schema(&place.database).is_none() {
            return R::default();
        }
        let client = self.state().clients.get(&place.database).map(|f| f.client.clone());
        client.map(|c| c.replica(f)).unwrap_or_default()
    }

    /// What an option says, or the place in a database that it names.
    fn text(&self, option: Option<&str>) -> Option<String> {
        let text = option?;
        match Place::parse(text) {
            Ok(Some(place)) => self.look(&place, |r| place.strings(r)).into_iter().find(|s| !s.is_empty()),
            _ => Some(text.to_string()),
        }
    }

    fn file(&self, path: Option<&PathBuf>) -> Option<PathBuf> {
        self.text(Some(&*path?.to_string_lossy())).map(PathBuf::from)
    }

    /// Brings remotes and TLS up to what the databases say.
    async fn refresh(&self) {
        let _turn = self.0.turn.lock().await;
        let t = &self.0.tls;
        let files = self.file(t.private_key.as_ref()).and_then(|key| {
            let certificate = self.file(t.certificate.as_ref())?;
            Some((key, certificate, self.file(t.ca_cert.as_ref())))
        });
        let limits = [&t.protocols, &t.ciphers, &t.suites].map(|l| self.text(l.as_deref()));
        let tls = TlsSettings { files, limits };
        if self.state().tls != tls {
            self.state().tls = tls;
            let tls = self.tls();
            self.0.server.set_tls(tls);
        }
        let places = self.state().places.clone();
        let mut wanted: BTreeMap<String, RemoteOptions> = BTreeMap::new();
        for p in &places {
            wanted.extend(self.look(p, |r| p.remotes(r)));
        }
        wanted.retain(|r, _| !self.state().remotes.contains_key(r));
        let open = self.state().open.clone();
        for remote in open.keys().filter(|r| !wanted.contains_key(*r)) {
            // It may have been removed by a command meanwhile.
            let _ = self.0.server.close(remote);
            self.state().open.remove(remote);
        }
        self.state().failed.retain(|r, _| wanted.contains_key(r));
        for (remote, options) in wanted.into_iter().filter(|(r, o)| open.get(r) != Some(o)) {
            match self.0.server.listen_with(&remote, options.clone()).await {
                Ok(_) => {
                    self.state().failed.remove(&remote);
                    self.state().open.insert(remote, options);
                }
                Err(e) => {
                    let text = e.to_string();
                    if self.state().failed.insert(remote, text.clone()).as_ref() != Some(&text) {
                        tracing::warn!(target: "ovsdb_jsonrpc_server", "{text}");
                    }
                }
            }
        }
    }

    /// Writes `is_connected` and `status` of the rows that name remotes.
    async fn write_status(&self) {
        let backups = self.0.server.sync_states();
        let places = self.state().places.clone();
        for p in places.iter().filter(|p| !backups.contains_key(&p.database)) {
            let rows = self.look(p, |r| {
                let rows = p.targets(r).into_iter().filter_map(|(uuid, schema, row)| {
                    let target = row.get(schema, "target")?.scalar()?.as_str()?;
                    let new = self.status_columns(target, schema);
                    let differs = |(c, v): (&String, &Value)| row.get(schema, c).is_some_and(|d| d.to_json() != *v);
                    new.as_object()?.iter().any(differs).then(|| (uuid, schema.name.clone(), new))
                });
                rows.collect::<Vec<_>>()
            });
            let update = |(uuid, table, row): (Uuid, String, Value)| {
                let is = json!([["_uuid", "==", ["uuid", uuid.to_string()]]]);
                json!({"op": "update", "table": table, "where": is, "row": row})
            };
            let operations: Vec<Value> = rows.into_iter().map(update).collect();
            if !operations.is_empty()
                && let Err(e) = self.0.server.transact(&p.database, operations).await
            {
                tracing::warn!(target: "ovsdb_server", "{}: {e}", p.text);
            }
        }
    }

    /// The columns of a row that tell what has become of its remote.
    fn status_columns(&self, target: &str, schema: &TableSchema) -> Value {
        let status = self.0.server.remote_status(target);
        let failure = self.state().failed.get(target).cloned();
        let mut map = BTreeMap::new();
        if let Some(s) = &status {
            describe(s, &mut map);
        } else {
            map.insert("state", "BACKOFF".to_string());
            map.extend(failure.map(|f| ("last_error", f)));
        }
        let pairs: Vec<Value> = map.into_iter().map(|(k, v)| json!([k, v])).collect();
        let mut row = serde_json::Map::new();
        if schema.column("is_connected").is_some() {
            row.insert("is_connected".into(), json!(status.is_some_and(|s| s.is_connected)));
        }
        if schema.column("status").is_some() {
            row.insert("status".into(), json!(["map", pairs]));
        }
        Value::Object(row)
    }
}

fn describe(s: &RemoteStatus, map: &mut BTreeMap<&'static str, String>) {
    map.extend(s.state.map(|v| ("state", v.to_string())));
    map.extend(s.sec_since_connect.map(|v| ("sec_since_connect", v.to_string())));
    map.extend(s.sec_since_disconnect.map(|v| ("sec_since_disconnect", v.to_string())));
    map.extend(s.bound_port.map(|v| ("bound_port", v.to_string())));
    map.extend((s.connections > 1).then(|| ("n_connections", s.connections.to_string())));
    for (name, locks) in
        [("locks_held", &s.locks.held), ("locks_waiting", &s.locks.waiting), ("locks_lost", &s.locks.lost)]
    {
        map.extend((!locks.is_empty()).then(|| (name, locks.join(" "))));
    }
}
