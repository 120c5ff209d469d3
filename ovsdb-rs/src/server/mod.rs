//! The OVSDB server: databases, their clients, the remotes on which they come.
//!
//! ```no_run
//! # async fn f(schema: ovsdb_rs::DatabaseSchema) -> Result<(), Box<dyn std::error::Error>> {
//! let server = ovsdb_rs::Server::new();
//! server.add_file(std::path::Path::new("/var/lib/ovn/ovnnb_db.db"), Some(&schema)).await?;
//! server.listen("punix:/var/run/ovn/ovnnb_db.sock").await?;
//! let stream = server.connect(); // in-process, for the daemon itself
//! # Ok(()) }
//! ```

mod changelog;
mod database;
mod follow;
mod locks;
mod monitor;
mod outbox;
mod remotes;
mod session;

pub use database::Statistics;
pub use follow::{Source, SourceOptions, SyncState};
pub use locks::Held;
pub use remotes::{RemoteOptions, RemoteStatus};

use crate::engine::{Database, random_uuid};
use crate::storage::Storage;
use crate::stream::Remote;
use crate::tls::Tls;
use crate::{DatabaseSchema, Error, Str, Uuid};
use database::{Actor, Mode, Request};
use locks::Locks;
use serde_json::{Value, json};
use session::Session;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

/// The name of the database that describes the others (ovsdb-server(5)).
pub const SERVER_DATABASE: &str = "_Server";

/// Requests that may wait for a database before its clients are held up.
const QUEUED_REQUESTS: usize = 256;

/// The source of a database's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    Standalone,
    Relay,
}

pub(crate) struct Served {
    pub requests: mpsc::Sender<Request>,
    pub schema: Arc<DatabaseSchema>,
    pub path: Option<PathBuf>,
    pub model: Model,
    /// Whether a relay reaches its source.
    pub connected: bool,
    /// Whether the schema is known.
    pub ready: bool,
    /// Tables whose changes are logged.
    watched: changelog::Watched,
    /// The task of a relay.
    pub follower: Option<AbortHandle>,
    /// Whether it is a backup, which clients may not change.
    pub backup: Arc<AtomicBool>,
    /// The task of a backup.
    replication: Option<follow::Replication>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(task) = &self.follower {
            task.abort();
        }
    }
}

pub(crate) struct Inner {
    pub id: Uuid,
    pub backlog: usize,
    pub next_session: AtomicU64,
    databases: Mutex<BTreeMap<String, Served>>,
    locks: Arc<Mutex<Locks>>,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    remotes: Mutex<BTreeMap<String, remotes::Open>>,
    tls: RwLock<Option<Tls>>,
    converted: mpsc::UnboundedSender<(String, Arc<DatabaseSchema>)>,
    /// Whether the monitors that ovsdb-server(7) adds to RFC 7047 are off.
    pub plain_monitors: AtomicBool,
    /// The row of each database in `_Server`.
    published: tokio::sync::Mutex<BTreeMap<String, Value>>,
}

impl Inner {
    pub(crate) fn databases(&self) -> MutexGuard<'_, BTreeMap<String, Served>> {
        self.databases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, HashMap<u64, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one of the databases is a backup.
    pub(crate) fn is_backup(&self) -> bool {
        self.databases().values().any(|d| d.backup.load(Ordering::Acquire))
    }

    /// Ends the connections of clients that do not know how to cope with a change of databases, before that is told.
    fn disconnect_unaware(&self) {
        for s in self.sessions().values().filter(|s| !s.is_aware()) {
            s.out.close();
        }
    }
}

/// A server; clones are the same one. Databases and connections are tasks of the tokio runtime.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

impl Default for Server {
    fn default() -> Server {
        Server::new()
    }
}

impl Server {
    /// A server without databases. A client for which more than 256 MiB wait is dropped.
    pub fn new() -> Server {
        Server::with_backlog(256 << 20)
    }

    /// As [`Server::new`], dropping clients for which more than `backlog` bytes wait.
    pub fn with_backlog(backlog: usize) -> Server {
        let (converted, mut conversions) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            id: random_uuid(),
            backlog,
            next_session: AtomicU64::new(0),
            databases: Mutex::default(),
            locks: Arc::default(),
            sessions: Mutex::default(),
            remotes: Mutex::default(),
            tls: RwLock::new(None),
            converted,
            plain_monitors: AtomicBool::new(false),
            published: tokio::sync::Mutex::default(),
        });
        let server = Server(inner);
        server.serve(Database::new(server_schema()), None, Mode::Reserved);
        let weak = Arc::downgrade(&server.0);
        tokio::spawn(async move {
            while let Some((name, schema)) = conversions.recv().await {
                let Some(inner) = weak.upgrade() else { return };
                let server = Server(inner);
                if let Some(db) = server.0.databases().get_mut(&name) {
                    db.schema = schema;
                }
                server.0.disconnect_unaware();
                server.publish().await;
            }
        });
        server
    }

    /// Serves the database in a file; where there is no file and a schema is given, creates it.
    ///
    /// # Errors
    /// Where the file cannot be opened or its database is being served already.
    pub async fn add_file(&self, path: &Path, schema: Option<&DatabaseSchema>) -> Result<String, Error> {
        let (path, schema) = (path.to_path_buf(), schema.cloned());
        let opened = tokio::task::spawn_blocking(move || {
            let (storage, content) = match &schema {
                Some(s) => Storage::open_or_create(&path, s)?,
                None => Storage::open(&path)?,
            };
            let db = Database::load(content)
                .map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })?;
            Ok((db, storage))
        });
        let (db, storage) = opened.await.map_err(|e| Error::Syntax(e.to_string()))??;
        self.add(db, Some(storage)).await
    }

    /// A server for a daemon that serves its databases itself: from `NAME.db` in a directory, which come into being
    /// where they are not there, on `NAME.sock` beside them and on further remotes.
    ///
    /// # Errors
    /// Where the directory cannot be made, a file cannot be opened, or a remote cannot be bound.
    pub async fn embedded(
        dir: &Path,
        databases: &[(&str, DatabaseSchema)],
        remotes: &[String],
        tls: Option<Tls>,
    ) -> Result<Server, Error> {
        let unmade = |e: std::io::Error| Error::File { path: dir.display().to_string(), reason: e.to_string() };
        std::fs::create_dir_all(dir).map_err(unmade)?;
        let server = Server::new();
        server.set_tls(tls);
        for (name, schema) in databases {
            server.add_file(&dir.join(format!("{name}.db")), Some(schema)).await?;
        }
        // Only now: a client that does not expect databases to come would be disconnected, and ovn-nbctl then waits for
        // ever.
        for (name, _) in databases {
            server.listen(&format!("punix:{}", dir.join(format!("{name}.sock")).display())).await?;
        }
        for remote in remotes {
            server.listen(remote).await?;
        }
        Ok(server)
    }

    /// Serves a database in memory only.
    ///
    /// # Errors
    /// Where one of its name is being served already.
    pub async fn add_memory(&self, db: Database) -> Result<String, Error> {
        self.add(db, None).await
    }

    async fn add(&self, db: Database, storage: Option<Storage>) -> Result<String, Error> {
        let name = db.schema().name.clone();
        if self.0.databases().contains_key(&name) {
            return Err(Error::Constraint(format!("{name}: duplicate database name")));
        }
        self.serve(db, storage, Mode::Own);
        self.0.disconnect_unaware();
        self.publish().await;
        Ok(name)
    }

    fn serve(&self, db: Database, storage: Option<Storage>, mode: Mode) {
        let (tx, rx) = mpsc::channel(QUEUED_REQUESTS);
        let schema = db.schema().clone();
        let path = storage.as_ref().map(|s| s.path().to_path_buf());
        let name = schema.name.clone();
        let (inner, watched) = (&self.0, changelog::Watched::default());
        let (locks, backup, converted) = (inner.locks.clone(), Arc::<AtomicBool>::default(), inner.converted.clone());
        let actor = Actor::new(db, storage, locks, mode, backup.clone(), converted, watched.clone());
        tokio::spawn(actor.run(rx, tx.downgrade()));
        let served = Served {
            requests: tx,
            schema,
            path,
            model: Model::Standalone,
            connected: true,
            ready: true,
            watched,
            follower: None,
            backup,
            replication: None,
        };
        self.0.databases().insert(name, served);
    }

    /// Serves a database no longer. Clients that cannot cope are disconnected.
    ///
    /// # Errors
    /// Where there is none of this name.
    pub async fn remove_db(&self, name: &str) -> Result<(), Error> {
        let removed = if name == SERVER_DATABASE { None } else { self.0.databases().remove(name) };
        let db = removed.ok_or_else(|| Error::Unknown { kind: "database", name: name.to_string() })?;
        let (reply, done) = oneshot::channel();
        if db.requests.send(Request::Stop { reply }).await.is_ok() {
            // A thread that ended without an answer is as good.
            let _ = done.await;
        }
        self.0.disconnect_unaware();
        self.publish().await;
        Ok(())
    }

    /// The databases being served, `_Server` among them, with their files.
    pub fn databases(&self) -> Vec<(String, Option<PathBuf>)> {
        self.0.databases().iter().map(|(n, d)| (n.clone(), d.path.clone())).collect()
    }

    /// The schema of a database.
    pub fn schema(&self, database: &str) -> Option<Arc<DatabaseSchema>> {
        self.0.databases().get(database).map(|d| d.schema.clone())
    }

    async fn ask<T>(&self, database: &str, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Error> {
        let unknown = || Error::Unknown { kind: "database", name: database.to_string() };
        let requests = self.0.databases().get(database).map(|d| d.requests.clone()).ok_or_else(unknown)?;
        let (tx, rx) = oneshot::channel();
        requests.send(request(tx)).await.map_err(|_| unknown())?;
        rx.await.map_err(|_| unknown())
    }

    /// Carries out a transaction without a connection: `operations` as RFC 7047 section 5.2 has them.
    ///
    /// # Errors
    /// Where there is no such database. Failures of operations are in the result, as in a reply.
    pub async fn transact(&self, database: &str, operations: Vec<Value>) -> Result<Vec<Value>, Error> {
        self.ask(database, |reply| Request::Own { operations, reply }).await
    }

    /// Rewrites a database's file without its history.
    ///
    /// # Errors
    /// Where there is no such database, or the file cannot be written.
    pub async fn compact(&self, database: &str) -> Result<(), Error> {
        self.ask(database, |reply| Request::Compact { reply }).await?
    }

    /// The counters of a database.
    ///
    /// # Errors
    /// Where there is no such database.
    pub async fn statistics(&self, database: &str) -> Result<Statistics, Error> {
        self.ask(database, |reply| Request::Statistics { reply }).await
    }

    /// Logs every change of a table's rows from now on, or no longer.
    ///
    /// # Errors
    /// Where there is no such database or table.
    pub fn log_changes(&self, database: &str, table: &str, on: bool) -> Result<(), Error> {
        let unknown = |kind, name: &str| Error::Unknown { kind, name: name.to_string() };
        let databases = self.0.databases();
        let db = databases.get(database).ok_or_else(|| unknown("database", database))?;
        db.schema.tables.get(table).ok_or_else(|| unknown("table", table))?;
        db.watched.set(table, on);
        Ok(())
    }

    /// All tables of all databases, and whether changes of their rows are logged.
    pub fn logged_tables(&self) -> Vec<(String, Vec<(String, bool)>)> {
        let of = |d: &Served| d.schema.tables.keys().map(|t| (t.clone(), d.watched.contains(t))).collect();
        self.0.databases().iter().map(|(n, d)| (n.clone(), of(d))).collect()
    }

    /// How many clients are connected.
    pub fn sessions(&self) -> usize {
        self.0.sessions().len()
    }

    /// Ends all connections; clients that still want something come back.
    pub fn reconnect(&self) {
        for s in self.0.sessions().values() {
            s.out.close();
        }
    }

    /// From now on offers the monitors of RFC 7047 alone; clients come back to find out.
    pub fn disable_conditional_monitors(&self) {
        if !self.0.plain_monitors.swap(true, Ordering::AcqRel) {
            self.reconnect();
        }
    }

    /// The TLS configuration of `pssl:` and `ssl:` remotes, for connections from now on.
    pub fn set_tls(&self, tls: Option<Tls>) {
        *self.0.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
    }

    /// Listens on a passive remote, or keeps connecting to an active one.
    /// Gives the remote as it came to be: with the port that the system chose.
    ///
    /// # Errors
    /// Where the remote cannot be parsed or bound.
    pub async fn listen(&self, remote: &str) -> Result<Remote, Error> {
        self.listen_with(remote, RemoteOptions::default()).await
    }

    /// As [`Server::listen`], with options. A remote that is open already takes them over.
    ///
    /// # Errors
    /// As [`Server::listen`].
    pub async fn listen_with(&self, remote: &str, options: RemoteOptions) -> Result<Remote, Error> {
        remotes::open(&self.0, remote, options).await
    }

    /// The status of an open remote.
    pub fn remote_status(&self, remote: &str) -> Option<RemoteStatus> {
        remotes::status(&self.0, remote)
    }

    /// Closes a remote that [`Server::listen`] opened, and its connections.
    ///
    /// # Errors
    /// Where there is no such remote.
    pub fn close(&self, remote: &str) -> Result<(), Error> {
        remotes::close(&self.0, remote)
    }

    /// The remotes that are open, as they were given.
    pub fn remotes(&self) -> Vec<String> {
        self.0.remotes.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// A connection within the process.
    pub fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let name = session::PeerName::Address("internal".into());
        let peer = session::Peer { name, client: Str::default(), remote: remotes::Shared::internal() };
        tokio::spawn(session::serve(self.0.clone(), Box::new(theirs), peer));
        ours
    }

    /// Stops all databases, when what they have answered is on disk.
    pub async fn shutdown(&self) {
        for remote in self.remotes() {
            // It was in the list just now; another caller may have closed it.
            let _ = self.close(&remote);
        }
        for (name, _) in self.databases() {
            if name != SERVER_DATABASE {
                let _ = self.remove_db(&name).await;
            }
        }
    }

    /// Updates `_Server` to the databases that are served.
    async fn publish(&self) {
        let mut published = self.0.published.lock().await;
        let mut wanted = BTreeMap::new();
        for (name, d) in self.0.databases().iter() {
            let schema = crate::json::canonical(&d.schema.to_json());
            let (model, leader) = match d.model {
                Model::Standalone => ("standalone", true),
                Model::Relay => ("relay", false),
            };
            let schema = if d.ready { json!(schema) } else { json!(["set", []]) };
            wanted.insert(
                name.clone(),
                json!({"name": name, "model": model, "schema": schema, "connected": d.connected, "leader": leader}),
            );
        }
        let is = |name: &String| json!([["name", "==", name]]);
        let gone = published.keys().filter(|n| !wanted.contains_key(*n));
        let mut operations: Vec<Value> =
            gone.map(|n| json!({"op": "delete", "table": "Database", "where": is(n)})).collect();
        for (name, row) in &wanted {
            match published.get(name) {
                None => operations.push(json!({"op": "insert", "table": "Database", "row": row})),
                Some(old) if old != row => {
                    operations.push(json!({"op": "update", "table": "Database", "where": is(name), "row": row}));
                }
                Some(_) => {}
            }
        }
        match self.transact(SERVER_DATABASE, operations).await {
            Ok(_) => *published = wanted,
            Err(e) => tracing::error!(target: "ovsdb_server", "{SERVER_DATABASE}: {e}"),
        }
    }
}

/// The schema of `_Server` (ovsdb-server(5)).
fn server_schema() -> DatabaseSchema {
    use crate::{AtomType, BaseType, ColumnSchema, ColumnType, TableSchema};
    let optional = |t| ColumnType::optional(BaseType::new(t));
    let columns = [
        ("cid", optional(AtomType::Uuid)),
        ("connected", ColumnType::scalar(BaseType::new(AtomType::Boolean))),
        ("index", optional(AtomType::Integer)),
        ("leader", ColumnType::scalar(BaseType::new(AtomType::Boolean))),
        ("model", ColumnType::scalar(BaseType::one_of(&["clustered", "relay", "standalone"]))),
        ("name", ColumnType::scalar(BaseType::new(AtomType::String))),
        ("schema", optional(AtomType::String)),
        ("sid", optional(AtomType::Uuid)),
    ];
    let columns = columns
        .into_iter()
        .map(|(name, ty)| ColumnSchema { name: name.to_string(), ty, ephemeral: false, mutable: true })
        .collect();
    let table = TableSchema { name: "Database".into(), columns, max_rows: None, is_root: true, indexes: Vec::new() };
    DatabaseSchema {
        name: SERVER_DATABASE.into(),
        version: "1.2.0".into(),
        cksum: Some("3009684573 744".into()),
        tables: [("Database".to_string(), table)].into_iter().collect(),
    }
}
