//! The OVSDB client: keeps a replica of some tables of a database, tells of their changes,
//! carries out transactions, holds locks; reconnects by itself and takes up where it left off.
//!
//! ```no_run
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! use ovsdb_rs::client::{Client, Config, Event, TableRequest, Transaction};
//! use ovsdb_rs::{Atom, Datum};
//!
//! let config = Config::new("unix:/var/run/ovn/ovnnb_db.sock", "OVN_Northbound")?
//!     .table("Logical_Switch", TableRequest::all())
//!     .table("NB_Global", TableRequest::columns(["nb_cfg"]));
//! let (client, mut events) = Client::start(config);
//! while let Some(event) = events.recv().await {
//!     let Event::Update(update) = event else { continue };
//!     for c in &update.changes {
//!         println!("{} {}: {:?} -> {:?}", c.table, c.uuid, c.old, c.new);
//!     }
//!     let mut txn = Transaction::new(update.schema.clone());
//!     txn.insert("Logical_Switch", [("name", Datum::Scalar(Atom::String("ls1".into())))]);
//!     client.commit(txn).await?;
//! }
//! # Ok(()) }
//! ```

mod index;
mod link;
mod parse;
mod replica;
mod schema_compat;
mod transaction;
pub mod writer;

pub use replica::{Replica, RowChange};
pub use transaction::Transaction;

use crate::server::Server;
use crate::stream::{DEFAULT_DSCP, Remote};
use crate::tls::Tls;
use crate::{DatabaseSchema, Error, Row, Uuid};
use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// The column that is another one after each change of a row (RFC 7047 section 3.2).
pub(crate) const VERSION: &str = "_version";

/// What to replicate of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableRequest {
    /// The columns; none: all. Those that the server lacks are passed over.
    pub columns: Option<Vec<String>>,
    /// Conditions (ovsdb-server(7) section 5.1) of which a row has to satisfy one; none: all rows. Those on columns that the server
    /// lacks hold for no row.
    pub conditions: Option<Vec<Value>>,
}

impl TableRequest {
    /// All columns of all rows.
    pub fn all() -> TableRequest {
        TableRequest::default()
    }

    /// Which rows there are, without their columns. A change of a row is told of as a change of nothing.
    pub fn names() -> TableRequest {
        TableRequest::columns([VERSION])
    }

    /// These columns of all rows.
    pub fn columns<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> TableRequest {
        TableRequest { columns: Some(columns.into_iter().map(Into::into).collect()), conditions: None }
    }

    /// The same for the rows only that satisfy one of the conditions.
    #[must_use]
    pub fn when(self, conditions: Vec<Value>) -> TableRequest {
        TableRequest { conditions: Some(conditions), ..self }
    }
}

/// Where the database is.
#[derive(Clone)]
pub(crate) enum Place {
    Remotes(Vec<Remote>),
    InProcess(Server),
}

/// What a client connects to and replicates.
#[derive(Clone)]
pub struct Config {
    pub(crate) place: Place,
    pub(crate) database: String,
    pub(crate) tables: BTreeMap<String, TableRequest>,
    /// Replicate all tables that the server has but these.
    pub(crate) all_but: Option<BTreeSet<String>>,
    /// The schema that the client is written for.
    pub(crate) known: Option<DatabaseSchema>,
    /// Columns of the replica's indexes, by table.
    pub(crate) indexes: BTreeMap<String, Vec<Vec<String>>>,
    pub(crate) leader_only: bool,
    pub(crate) probe: Option<Duration>,
    /// A server on a Unix socket is asked, too.
    pub(crate) probe_local: bool,
    /// The longest wait between attempts to connect.
    pub(crate) max_backoff: Option<Duration>,
    pub(crate) dscp: u8,
    pub(crate) tls: Option<Tls>,
}

impl Config {
    /// A client of a database at one of several remotes (separated by commas), replicating nothing yet.
    ///
    /// # Errors
    /// Where the remotes do not parse or are passive.
    pub fn new(remotes: &str, database: &str) -> Result<Config, Error> {
        let remotes = Remote::parse_list(remotes)?;
        if let Some(r) = remotes.iter().find(|r| r.is_passive()) {
            return Err(Error::Syntax(format!("{r}: expected unix:, tcp: or ssl:")));
        }
        if remotes.is_empty() {
            return Err(Error::syntax("no remote to connect to"));
        }
        Ok(Config::at(Place::Remotes(remotes), database))
    }

    /// A client of a server in the same process.
    pub fn in_process(server: &Server, database: &str) -> Config {
        Config::at(Place::InProcess(server.clone()), database)
    }

    fn at(place: Place, database: &str) -> Config {
        Config {
            place,
            database: database.to_string(),
            tables: BTreeMap::new(),
            all_but: None,
            known: None,
            indexes: BTreeMap::new(),
            leader_only: true,
            probe: probe_interval(None),
            probe_local: false,
            max_backoff: None,
            dscp: DEFAULT_DSCP,
            tls: None,
        }
    }

    /// Lets the replica find rows of a table by what these columns hold ([`Replica::find`]).
    #[must_use]
    pub fn index(mut self, table: &str, columns: &[&str]) -> Config {
        let columns = columns.iter().map(|c| c.to_string()).collect();
        self.indexes.entry(table.to_string()).or_default().push(columns);
        self
    }

    /// Replicates a table too.
    #[must_use]
    pub fn table(mut self, name: &str, request: TableRequest) -> Config {
        self.tables.insert(name.to_string(), request);
        self
    }

    /// Replicates all tables that the server's schema has, but for some.
    #[must_use]
    pub fn everything_but(self, tables: BTreeSet<String>) -> Config {
        Config { all_but: Some(tables), ..self }
    }

    /// The schema that the client is written for. What a server's lacks of it, in the tables that are replicated, is said in the
    /// log, and again only when the server's schema changes.
    #[must_use]
    pub fn known(self, schema: DatabaseSchema) -> Config {
        Config { known: Some(schema), ..self }
    }

    /// Whether to stay connected only with the leader of a cluster (the default) or with any member.
    #[must_use]
    pub fn leader_only(self, leader_only: bool) -> Config {
        Config { leader_only, ..self }
    }

    /// The silence after which a server over TCP or TLS is asked for a sign of life; none: never. By default 5 s.
    #[must_use]
    pub fn probe(self, probe: Option<Duration>) -> Config {
        Config { probe, ..self }
    }

    /// Whether a server on a Unix socket is asked for a sign of life, too, as where an operator wants probes.
    #[must_use]
    pub fn probe_local(self, probe_local: bool) -> Config {
        Config { probe_local, ..self }
    }

    /// The longest wait between attempts to connect; by default 1 s to a Unix socket or where there are several remotes, else 8 s.
    #[must_use]
    pub fn max_backoff(self, max_backoff: Option<Duration>) -> Config {
        Config { max_backoff, ..self }
    }

    /// The Differentiated Services Code Point (RFC 2474) of what is sent over TCP; by default 48.
    #[must_use]
    pub fn dscp(self, dscp: Option<u8>) -> Config {
        Config { dscp: dscp.unwrap_or(DEFAULT_DSCP), ..self }
    }

    /// TLS for `ssl:` remotes.
    #[must_use]
    pub fn tls(self, tls: Option<Tls>) -> Config {
        Config { tls, ..self }
    }
}

/// Changes of the replica, as one transaction (or several) of the server made them.
#[derive(Clone, Debug)]
pub struct Update {
    /// The changes start from nothing: forget all rows. So at first, and when the server's schema has changed.
    pub reset: bool,
    /// The schema by which rows are laid out.
    pub schema: Arc<DatabaseSchema>,
    /// What changed.
    pub changes: Vec<RowChange>,
    /// The server's name for the state that the changes lead to (ovsdb-server(7), `monitor_cond_since`); nil where it has none.
    pub state: Uuid,
}

/// What a client tells of.
#[derive(Clone, Debug)]
pub enum Event {
    /// The replica changed. After each connection there is one, even without changes.
    Update(Update),
    /// A lock that was asked for is owned now, or not any more.
    Lock {
        /// Its name.
        name: String,
        /// Whether it is owned.
        owned: bool,
    },
    /// The connection was lost; the replica stays as it was.
    Disconnected,
}

/// Why a transaction has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// There is no connection at present; nothing was done.
    #[error("not connected to the database")]
    NotConnected,
    /// The connection was lost before the answer: the transaction may or may not have been carried out.
    #[error("connection lost before the transaction was answered")]
    Disconnected,
    /// The server refused the request.
    #[error("the server refused: {0}")]
    Refused(Value),
    /// An operation failed, so the whole transaction did.
    #[error("transaction failed: {0}")]
    Failed(Value),
}

pub(crate) enum Command {
    /// Operations; the answer is the text of the results.
    Transact {
        operations: Pieces,
        reply: oneshot::Sender<Result<String, ClientError>>,
    },
    /// The answer is the text of the server's identity.
    ServerId(oneshot::Sender<Result<String, ClientError>>),
    Lock(String),
    Unlock(String),
    /// Conditions of tables, and the number of this change.
    Conditions(u64, Conditions),
    Probe(Option<Duration>, Option<bool>),
    Reconnect,
}

/// Text that goes out in pieces; none is the end, without which the connection is given up: half a request must not be taken for
/// a whole one.
pub(crate) type Pieces = mpsc::Receiver<Option<String>>;

/// Text in one piece.
fn whole(text: String) -> Pieces {
    let (tx, rx) = mpsc::channel(2);
    for piece in [Some(text).filter(|t| !t.is_empty()), None] {
        // There is room for both.
        let _ = tx.try_send(piece);
    }
    rx
}

/// The error of an operation (RFC 7047 section 4.1.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub struct OpFailed {
    /// The kind; empty where the operation succeeded.
    #[serde(default)]
    pub error: String,
    /// What exactly.
    #[serde(default)]
    pub details: String,
}

type Answer = oneshot::Receiver<Result<String, ClientError>>;

async fn answer(answer: Answer) -> Result<String, ClientError> {
    answer.await.map_err(|_| ClientError::Disconnected)?
}

/// The first error among the results of operations, with its place.
fn first_error(results: Result<String, ClientError>) -> Result<Option<(usize, OpFailed)>, ClientError> {
    let results = results?;
    let mut reader = serde_json::Deserializer::from_str(&results);
    let found = FirstError.deserialize(&mut reader);
    found.map_err(|_| ClientError::Refused(Value::String(results)))
}

/// Reads results one by one, as there may be many.
struct FirstError;

impl<'de> DeserializeSeed<'de> for FirstError {
    type Value = Option<(usize, OpFailed)>;

    fn deserialize<D: serde::Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for FirstError {
    type Value = Option<(usize, OpFailed)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("results of operations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut place) = (None, 0);
        while let Some(result) = seq.next_element::<Option<OpFailed>>()? {
            let failed = result.filter(|r| !r.error.is_empty());
            found = found.or_else(|| Some((place, failed?)));
            place += 1;
        }
        Ok(found)
    }
}

/// The result of a `select`; each row is parsed by itself.
#[derive(serde::Deserialize)]
struct Selected<'a> {
    #[serde(borrow)]
    rows: Vec<&'a serde_json::value::RawValue>,
}

/// By table, of which rows at least one of these holds; none: all rows (ovsdb-server(7), `monitor_cond_change`).
pub type Conditions = BTreeMap<String, Option<Vec<Value>>>;

/// What a client's handle shares with its task.
pub(crate) struct Shared {
    pub replica: RwLock<Replica>,
    /// Changes of conditions that were asked for, and up to which one the replica has what they say.
    pub asked: AtomicU64,
    pub answered: AtomicU64,
    pub owned: watch::Sender<BTreeSet<String>>,
    pub connected: watch::Sender<bool>,
}

/// A client; clones are the same one. When the last one goes, the connection ends.
#[derive(Clone)]
pub struct Client {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
}

impl Client {
    /// Starts a client in the tokio runtime. Its events are not held back: read them.
    pub fn start(config: Config) -> (Client, mpsc::UnboundedReceiver<Event>) {
        let (commands, rx) = mpsc::unbounded_channel();
        let (tx, events) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            replica: RwLock::new(Replica::new(config.indexes.clone())),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            owned: watch::Sender::default(),
            connected: watch::Sender::default(),
        });
        tokio::spawn(link::run(config, rx, tx, shared.clone()));
        (Client { commands, shared }, events)
    }

    /// Carries out a transaction of operations as RFC 7047 section 5.2 has them, and gives its results,
    /// errors of operations among them. The changes it makes are told of before it returns.
    ///
    /// # Errors
    /// All but [`ClientError::Failed`].
    pub async fn transact(&self, operations: Vec<Value>) -> Result<Vec<Value>, ClientError> {
        let mut text = String::new();
        for (i, operation) in operations.into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            // A string takes anything.
            let _ = write!(text, "{comma}{operation}");
        }
        let results = answer(self.request(whole(text))?).await?;
        serde_json::from_str(&results).map_err(|_| ClientError::Refused(Value::String(results)))
    }

    fn request(&self, operations: Pieces) -> Result<Answer, ClientError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Transact { operations, reply });
        sent.map_err(|_| ClientError::NotConnected)?;
        Ok(answer)
    }

    /// Carries out a transaction whose results matter only where one is an error: gives the first one, with its place
    /// among the results. It comes in parts, each asked for when the one before is on its way, so that a large one is never held
    /// whole. The changes it makes are told of before it returns.
    ///
    /// # Errors
    /// All but [`ClientError::Failed`].
    pub async fn carry_out(
        &self,
        parts: impl Iterator<Item = Transaction> + Send,
    ) -> Result<Option<(usize, OpFailed)>, ClientError> {
        let (pieces, operations) = mpsc::channel(1);
        let mut result = self.request(operations)?;
        let texts = parts.map(Transaction::into_text).filter(|t| !t.is_empty()).map(Some);
        for piece in texts.chain(std::iter::once(None)) {
            tokio::select! {
                sent = pieces.send(piece) => if sent.is_err() { break },
                // Not before the end, unless the connection is gone.
                result = &mut result => return first_error(result.map_err(|_| ClientError::Disconnected)?),
            }
        }
        first_error(answer(result).await)
    }

    /// Carries out operations as JSON with commas between them, as [`Client::carry_out`].
    pub(crate) async fn carry_out_text(&self, operations: String) -> Result<Option<(usize, OpFailed)>, ClientError> {
        first_error(answer(self.request(whole(operations))?).await)
    }

    /// Carries out a transaction, as [`Client::transact`]. An empty one is not sent.
    ///
    /// # Errors
    /// [`ClientError::Failed`] with the first failed operation's error, and the others.
    pub async fn commit(&self, transaction: Transaction) -> Result<Vec<Value>, ClientError> {
        if transaction.is_empty() {
            return Ok(Vec::new());
        }
        let results = self.transact(transaction.into_operations()).await?;
        match results.iter().find(|r| r.get("error").is_some()) {
            Some(e) => Err(ClientError::Failed(e.clone())),
            None => Ok(results),
        }
    }

    /// Every row of a table, whether it is replicated or not, each handed to `each` with its name, laid out by the schema.
    ///
    /// # Errors
    /// Where the connection is gone, or the server does not answer with rows.
    pub async fn every_row(&self, table: &str, mut each: impl FnMut(Uuid, Row)) -> Result<(), ClientError> {
        let schema = self.schema().ok_or(ClientError::NotConnected)?;
        let refused = |e: &dyn std::fmt::Display| ClientError::Refused(Value::String(e.to_string()));
        let ts = schema.table(table).map_err(|e| refused(&e))?;
        let operation = serde_json::json!({"op": "select", "table": table, "where": []}).to_string();
        let text = answer(self.request(whole(operation))?).await?;
        let results: Vec<Selected<'_>> = serde_json::from_str(&text).map_err(|e| refused(&e))?;
        for row in results.iter().flat_map(|r| &r.rows) {
            let (uuid, row) = replica::selected(ts, row.get()).map_err(|e| refused(&e))?;
            each(uuid, row);
        }
        Ok(())
    }

    /// The identity of the server that the client is connected to (ovsdb-server(7), `get_server_id`).
    ///
    /// # Errors
    /// Where there is no connection, or the server tells none.
    pub async fn server_id(&self) -> Result<Uuid, ClientError> {
        let (reply, result) = oneshot::channel();
        self.commands.send(Command::ServerId(reply)).map_err(|_| ClientError::NotConnected)?;
        let text = answer(result).await?;
        let id = serde_json::from_str(&text).ok().and_then(|id: String| Uuid::try_parse(&id).ok());
        id.ok_or(ClientError::Refused(Value::String(text)))
    }

    fn send(&self, command: Command) {
        // The task lives as long as a handle does.
        let _ = self.commands.send(command);
    }

    /// Asks for a lock, now and after each reconnection; [`Event::Lock`] tells when it is owned.
    pub fn lock(&self, name: &str) {
        self.send(Command::Lock(name.to_string()));
    }

    /// Gives a lock up.
    pub fn unlock(&self, name: &str) {
        self.send(Command::Unlock(name.to_string()));
    }

    /// Whether a lock is owned.
    pub fn has_lock(&self, name: &str) -> bool {
        self.shared.owned.borrow().contains(name)
    }

    /// Changes which rows of a table are replicated; none: all.
    pub fn set_conditions(&self, table: &str, conditions: Option<Vec<Value>>) {
        self.change_conditions(BTreeMap::from([(table.to_string(), conditions)]));
    }

    /// Changes which rows of some tables are replicated, in one request. When the replica has them, there is an
    /// [`Event::Update`], which may be without changes, and [`Client::has_wanted`] says so.
    pub fn change_conditions(&self, conditions: Conditions) {
        let number = self.shared.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.send(Command::Conditions(number, conditions));
    }

    /// Whether the replica has the rows of the conditions that were set last: the server has answered.
    pub fn has_wanted(&self) -> bool {
        self.shared.asked.load(Ordering::Acquire) == self.shared.answered.load(Ordering::Acquire)
    }

    /// Changes the silence after which a server over TCP or TLS is asked for a sign of life; none: never.
    pub fn set_probe(&self, probe: Option<Duration>) {
        self.send(Command::Probe(probe, None));
    }

    /// Sets the probe interval, and whether it holds on a Unix socket ([`Config::probe_local`]).
    pub fn set_probe_local(&self, probe: Option<Duration>, local: bool) {
        self.send(Command::Probe(probe, Some(local)));
    }

    /// Drops the connection and connects anew.
    pub fn reconnect(&self) {
        self.send(Command::Reconnect);
    }

    /// Whether the client is connected and its replica is complete.
    pub fn is_connected(&self) -> bool {
        *self.shared.connected.borrow()
    }

    /// Returns once the client is connected and its replica is complete.
    pub async fn connected(&self) {
        // The sender lives in self.
        let _ = self.shared.connected.subscribe().wait_for(|c| *c).await;
    }

    /// Looks at the replica. It does not change meanwhile, so be quick. `f` must not look at the same client's replica again
    /// ([`Client::schema`] does, too): a change that waits in between would wait for `f`, and `f` for it. Debug builds panic instead.
    pub fn replica<R>(&self, f: impl FnOnce(&Replica) -> R) -> R {
        #[cfg(debug_assertions)]
        let _looking = looking::Looking::at(Arc::as_ptr(&self.shared).cast());
        f(&self.shared.replica.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// The server's schema, once known.
    pub fn schema(&self) -> Option<Arc<DatabaseSchema>> {
        self.replica(|r| r.schema().cloned())
    }
}

/// Which replicas a thread looks at: a second look at one of them would wait for ever if a change came in between.
#[cfg(debug_assertions)]
mod looking {
    use std::cell::RefCell;

    thread_local!(static REPLICAS: RefCell<Vec<*const ()>> = const { RefCell::new(Vec::new()) });

    pub(super) struct Looking;

    impl Looking {
        pub(super) fn at(replica: *const ()) -> Self {
            REPLICAS.with_borrow_mut(|all| {
                assert!(!all.contains(&replica), "a look at a replica from within a look at the same replica");
                all.push(replica);
            });
            Looking
        }
    }

    impl Drop for Looking {
        fn drop(&mut self) {
            REPLICAS.with_borrow_mut(|all| all.pop());
        }
    }
}

/// The probe interval that a setting in milliseconds asks for, as OVN's daemons take it (ovn-controller(8),
/// `ovn-remote-probe-interval`): 0 for none, at least a second otherwise; 5 s where there is no number.
pub fn probe_interval(setting: Option<&str>) -> Option<Duration> {
    match setting.and_then(|s| s.trim().parse::<u64>().ok()) {
        Some(0) => None,
        Some(ms) => Some(Duration::from_millis(ms.max(1000))),
        None => Some(Duration::from_secs(5)),
    }
}

/// The UUID of the row that an insert's result names.
pub fn inserted(result: &Value) -> Option<Uuid> {
    Uuid::try_parse(result.get("uuid")?.get(1)?.as_str()?).ok()
}
