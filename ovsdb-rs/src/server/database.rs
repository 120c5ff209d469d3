//! One database being served: a task of its own that carries out transactions in order, many to one disk sync, and tells monitors
//! of changes before it answers. What takes long is done while other tasks go on; from one task to the next costs a fraction of what
//! it does to wake another thread.

use super::changelog::Watched;
use super::locks::Locks;
use super::monitor::{Spec, Version};
use super::outbox::{Dispatcher, Message};
use super::session::{Session, aside};
use crate::client::RowChange;
use crate::engine::{Access, Change, Context, Database, OpError, Operations, Outcome, random_uuid};
use crate::json::canonical;
use crate::storage::Storage;
use crate::{DatabaseSchema, Error, Row, Uuid};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Transactions that one disk sync may serve.
const LARGEST_BATCH: usize = 256;
/// A disk that last took longer is waited for while others of the same worker go on.
const SLOW: Duration = Duration::from_millis(2);
/// Row changes remembered for clients that come back (`monitor_cond_since`).
const HISTORY_CHANGES: usize = 50_000;

/// A transaction that a relay passes on.
pub(crate) struct Forward {
    pub session: Arc<Session>,
    pub id: Value,
    pub operations: Vec<Value>,
}

/// Who may change the database.
pub(crate) enum Mode {
    /// Clients, unless the database is a backup.
    Own,
    /// The server alone.
    Reserved,
    /// The source of a relay; what clients want goes there.
    Relay(mpsc::UnboundedSender<Forward>),
}

static READ_ONLY: LazyLock<Arc<Access>> = LazyLock::new(|| Arc::new(Access { read_only: true, ..Access::default() }));

pub(crate) enum Request {
    Transact {
        session: Arc<Session>,
        id: Value,
        operations: Operations,
    },
    Cancel {
        session: Arc<Session>,
        id: Value,
    },
    Monitor {
        session: Arc<Session>,
        id: Value,
        name: Value,
        version: Version,
        requests: Value,
        since: Option<Uuid>,
    },
    ChangeMonitor {
        session: Arc<Session>,
        id: Value,
        old: Value,
        new: Value,
        requests: Value,
    },
    CancelMonitor {
        session: Arc<Session>,
        id: Value,
        name: Value,
    },
    Convert {
        session: Arc<Session>,
        id: Value,
        schema: Box<DatabaseSchema>,
    },
    Gone {
        session: u64,
    },
    /// A transaction of the server itself.
    Own {
        operations: Vec<Value>,
        reply: oneshot::Sender<Vec<Value>>,
    },
    /// Rows as they are at the source of a relay or backup. Where `whole`, there are no others, but in tables to keep.
    Follow {
        schema: Arc<DatabaseSchema>,
        rows: Vec<RowChange>,
        whole: bool,
        keep: Arc<BTreeSet<String>>,
        /// The source's name for its state; nil where it has none.
        state: Uuid,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// A relay's source has answered a transaction that was passed on.
    Answered {
        session: Arc<Session>,
        message: Value,
    },
    Compact {
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// The compaction has written the new file.
    Compacted,
    Statistics {
        reply: oneshot::Sender<Statistics>,
    },
    Stop {
        reply: oneshot::Sender<()>,
    },
}

impl Request {
    /// Whether its cost grows with the size of the database.
    fn is_long(&self) -> bool {
        match self {
            Request::Transact { operations: Operations::Tree(list), .. } => list.iter().any(selects),
            Request::Own { operations, .. } => operations.iter().any(selects),
            Request::Transact { .. }
            | Request::Monitor { .. }
            | Request::ChangeMonitor { .. }
            | Request::Convert { .. }
            | Request::Follow { .. }
            | Request::Compacted
            | Request::Statistics { .. } => true,
            Request::Cancel { .. }
            | Request::CancelMonitor { .. }
            | Request::Gone { .. }
            | Request::Answered { .. }
            | Request::Compact { .. }
            | Request::Stop { .. } => false,
        }
    }
}

/// Counters of a served database (`memory/show`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Rows in all tables.
    pub rows: usize,
    /// Values in all rows, `_uuid` and `_version` among them.
    pub cells: usize,
    /// Atoms in all values.
    pub atoms: usize,
    /// Rows that weak references point at, counted once for each row that does.
    pub weak_references: usize,
    /// Transactions that clients can catch up with.
    pub history: usize,
    /// Monitors of all clients.
    pub monitors: usize,
    /// Transactions that changed something since the start.
    pub transactions: u64,
}

struct Monitor {
    session: Arc<Session>,
    name: Value,
    spec: Arc<Spec>,
}

struct Waiting {
    session: Arc<Session>,
    id: Value,
    operations: Operations,
    since: Instant,
    limit: Option<u64>,
}

/// A transaction to remember: its identifier and what it changed.
struct Past {
    id: Uuid,
    changes: Arc<Vec<Change>>,
}

pub(crate) struct Actor {
    db: Database,
    storage: Option<Storage>,
    locks: Arc<Mutex<Locks>>,
    mode: Mode,
    /// Whether the database is a backup.
    backup: Arc<AtomicBool>,
    monitors: Vec<Monitor>,
    specs: HashMap<(Version, String), Arc<Spec>>,
    waiting: Vec<Waiting>,
    /// The state's identifier, and how it came about: `oldest` is the state before the first of `history`.
    current: Uuid,
    oldest: Uuid,
    history: VecDeque<Past>,
    remembered: usize,
    transactions: u64,
    /// Messages that may go out once the disk has what they speak of.
    outgoing: Vec<(Arc<Session>, Message)>,
    /// The requests that transactions among these answer.
    answers: Vec<(u64, Value)>,
    dispatcher: Dispatcher,
    own: Vec<(oneshot::Sender<Vec<Value>>, Vec<Value>)>,
    /// Who wants the file to be rewritten, and who waits for the one that is being written.
    compactions: Vec<oneshot::Sender<Result<(), Error>>>,
    compacting: Vec<oneshot::Sender<Result<(), Error>>>,
    converted: mpsc::UnboundedSender<(String, Arc<DatabaseSchema>)>,
    /// Tables whose changes are logged.
    watched: Watched,
    /// The duration of the last disk sync.
    disk: Duration,
}

impl Actor {
    pub(crate) fn new(
        db: Database,
        storage: Option<Storage>,
        locks: Arc<Mutex<Locks>>,
        mode: Mode,
        backup: Arc<AtomicBool>,
        converted: mpsc::UnboundedSender<(String, Arc<DatabaseSchema>)>,
        watched: Watched,
    ) -> Actor {
        let current = random_uuid();
        Actor {
            db,
            storage,
            locks,
            mode,
            backup,
            monitors: Vec::new(),
            specs: HashMap::new(),
            waiting: Vec::new(),
            current,
            oldest: current,
            history: VecDeque::new(),
            remembered: 0,
            transactions: 0,
            outgoing: Vec::new(),
            answers: Vec::new(),
            dispatcher: Dispatcher::start(),
            own: Vec::new(),
            compactions: Vec::new(),
            compacting: Vec::new(),
            converted,
            watched,
            disk: SLOW,
        }
    }

    /// Serves until it is stopped or nobody can send requests any more.
    pub(crate) async fn run(mut self, mut requests: mpsc::Receiver<Request>, own: mpsc::WeakSender<Request>) {
        loop {
            let deadline = self.waiting.iter().filter_map(|w| Some(w.since + Duration::from_millis(w.limit?))).min();
            let first = match deadline {
                None => requests.recv().await.map(Some),
                Some(d) => match tokio::time::timeout_at(d, requests.recv()).await {
                    Ok(r) => r.map(Some),
                    Err(_) => Some(None),
                },
            };
            let Some(first) = first else { break };
            let mut batch = 0;
            let mut next = first;
            let mut stopped = None;
            while let Some(request) = next.take() {
                if let Request::Stop { reply } = request {
                    stopped = Some(reply);
                    break;
                }
                if request.is_long() {
                    aside(|| self.handle(request));
                } else {
                    self.handle(request);
                }
                batch += 1;
                if batch < LARGEST_BATCH {
                    next = requests.try_recv().ok();
                }
            }
            self.retry_waiting();
            if stopped.is_some() {
                self.cancel_all();
            }
            self.flush();
            self.compact(&own);
            if let Some(reply) = stopped {
                requests.close();
                drop(self);
                // Whoever asked may have lost interest.
                let _ = reply.send(());
                return;
            }
        }
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Transact { session, id, operations } => {
                let now = Instant::now();
                self.transact(Waiting { session, id, operations, since: now, limit: None }, now);
            }
            Request::Cancel { session, id } => {
                let place = self.waiting.iter().position(|w| w.session.id == session.id && w.id == id);
                if let Some(place) = place {
                    let w = self.waiting.swap_remove(place);
                    self.send(&w.session, &json!({"id": id, "error": "canceled"}));
                }
            }
            Request::Monitor { session, id, name, version, requests, since } => {
                match self.monitor(&session, &name, version, &requests, since) {
                    Ok(result) => {
                        let parts = vec![
                            Bytes::from(format!("{{\"id\":{id},\"error\":null,\"result\":")),
                            Bytes::from(result),
                            Bytes::from_static(b"}"),
                        ];
                        self.outgoing.push((session, parts));
                    }
                    Err(e) => {
                        session.forget_monitor(&name);
                        self.send(&session, &json!({"id": id, "error": e.to_json()}));
                    }
                }
            }
            Request::ChangeMonitor { session, id, old, new, requests } => {
                self.change_monitor(&session, &id, &old, new, &requests);
            }
            Request::CancelMonitor { session, id, name } => {
                self.monitors.retain(|m| m.session.id != session.id || m.name != name);
                self.send(&session, &json!({"id": id, "result": {}, "error": null}));
            }
            Request::Convert { session, id, schema } => self.convert(&session, &id, *schema),
            Request::Gone { session } => {
                self.monitors.retain(|m| m.session.id != session);
                self.waiting.retain(|w| w.session.id != session);
                self.specs.retain(|_, s| Arc::strong_count(s) > 1);
            }
            Request::Own { operations, reply } => {
                if let Outcome::Executed(x) = self.db.transact(&operations, &Context::unrestricted()) {
                    self.committed(x.changes, &x.comments, random_uuid());
                    self.own.push((reply, x.results.to_values()));
                }
            }
            Request::Follow { schema, rows, whole, keep, state, reply } => {
                // Whoever asked may have lost interest.
                let _ = reply.send(self.follow(&schema, rows, whole, &keep, state));
            }
            Request::Answered { session, message } => self.send(&session, &message),
            Request::Compact { reply } => self.compactions.push(reply),
            Request::Compacted => {
                let result = self.storage.as_mut().map_or(Ok(()), Storage::finish_compaction);
                if let Err(e) = &result {
                    tracing::warn!(target: "ovsdb_file", "compaction failed: {e}");
                }
                for reply in self.compacting.drain(..) {
                    let _ = reply.send(result.clone());
                }
            }
            Request::Statistics { reply } => {
                let statistics = self.statistics();
                let _ = reply.send(statistics);
            }
            Request::Stop { .. } => {}
        }
    }

    fn send(&mut self, session: &Arc<Session>, v: &Value) {
        self.outgoing.push((session.clone(), vec![Bytes::from(v.to_string())]));
    }

    fn transact(&mut self, mut t: Waiting, now: Instant) {
        let locks = self.locks.clone();
        let session = t.session.id;
        let owns_lock = move |l: &str| locks.lock().unwrap_or_else(PoisonError::into_inner).owns(l, session);
        let waited = u64::try_from(now.duration_since(t.since).as_millis()).unwrap_or(u64::MAX);
        let backup = self.backup.load(Ordering::Acquire);
        let access = match self.mode {
            Mode::Reserved => READ_ONLY.clone(),
            Mode::Own if backup => READ_ONLY.clone(),
            _ => t.session.access(),
        };
        let context = Context { owns_lock: &owns_lock, waited, access: &access };
        if let (Mode::Relay(_), Operations::Text(_)) = (&self.mode, &t.operations) {
            // Nobody has told the session yet that this is a relay; the client comes back.
            t.session.out.close();
            return;
        }
        if let (Mode::Relay(source), Operations::Tree(operations)) = (&self.mode, &t.operations)
            && operations.iter().any(writes)
        {
            let restricted = *access != Access::default();
            if restricted && let Err(results) = self.db.permits(operations, &context) {
                self.send(&t.session, &json!({"id": t.id, "result": results, "error": null}));
                return;
            }
            // The relay's task ends only with the database.
            let _ = source.send(Forward { session: t.session, id: t.id, operations: operations.clone() });
            return;
        }
        let outcome = match self.db.execute(&t.operations, &context) {
            Ok(outcome) => outcome,
            Err(e) => {
                tracing::debug!(target: "jsonrpc", "{}: {e}", t.session.peer);
                t.session.out.close();
                return;
            }
        };
        match outcome {
            Outcome::Waiting { limit } => {
                t.limit = limit;
                self.waiting.push(t);
            }
            Outcome::Executed(x) => {
                self.answers.push((session, t.id.clone()));
                // A long request is not held while what it did is written.
                drop(t.operations);
                self.committed(x.changes, &x.comments, random_uuid());
                let parts = vec![
                    Bytes::from(format!("{{\"id\":{},\"result\":[", t.id)),
                    Bytes::from(x.results.into_text()),
                    Bytes::from_static(b"],\"error\":null}"),
                ];
                self.outgoing.push((t.session, parts));
            }
        }
    }

    /// Tries transactions again that wait for a change, as long as one of them changes something.
    fn retry_waiting(&mut self) {
        let now = Instant::now();
        loop {
            let before = self.current;
            for t in std::mem::take(&mut self.waiting) {
                self.transact(t, now);
            }
            if self.current == before || self.waiting.is_empty() {
                return;
            }
        }
    }

    /// Takes note of what a transaction changed: for the disk, for monitors, for those who come back.
    /// Writes changes to the file, and tells of them. They lead to `state`.
    fn committed(&mut self, changes: Vec<Change>, comments: &[String], state: Uuid) {
        if let Some(storage) = &mut self.storage {
            storage.append(&self.db, &changes, comments);
        }
        if changes.is_empty() {
            return;
        }
        self.transactions += 1;
        self.watched.log(&self.db, &changes);
        let mut texts: HashMap<*const Spec, Option<Bytes>> = HashMap::new();
        for m in &self.monitors {
            let text =
                texts.entry(Arc::as_ptr(&m.spec)).or_insert_with(|| m.spec.update(&self.db, &changes).map(Bytes::from));
            if let Some(text) = text {
                self.outgoing.push((m.session.clone(), notification(m, state, text.clone())));
            }
        }
        self.reached(state, changes);
    }

    /// The database is in another state, for clients that come back.
    fn reached(&mut self, state: Uuid, changes: Vec<Change>) {
        self.current = state;
        self.remembered += changes.len().max(1);
        self.history.push_back(Past { id: state, changes: Arc::new(changes) });
        while self.remembered > HISTORY_CHANGES {
            let Some(past) = self.history.pop_front() else { break };
            self.remembered -= past.changes.len().max(1);
            self.oldest = past.id;
        }
    }

    fn statistics(&self) -> Statistics {
        let mut out = Statistics {
            monitors: self.monitors.len(),
            transactions: self.transactions,
            history: self.history.len(),
            ..Statistics::default()
        };
        for t in 0..self.db.tables() {
            let columns = self.db.table_schema(t).map_or(0, |s| s.columns.len());
            out.rows += self.db.row_count(t);
            out.cells += self.db.row_count(t) * (columns + 2);
            let atoms = |d: &crate::Datum| if d.pairs().is_empty() { d.len() } else { 2 * d.len() };
            out.atoms += self.db.rows(t).map(|r| 2 + r.row.0.iter().map(atoms).sum::<usize>()).sum::<usize>();
        }
        out.weak_references = self.db.weak_references();
        out
    }

    /// Takes over rows from another server.
    fn follow(
        &mut self,
        schema: &Arc<DatabaseSchema>,
        rows: Vec<RowChange>,
        whole: bool,
        keep: &BTreeSet<String>,
        state: Uuid,
    ) -> Result<(), String> {
        let differs = **schema != **self.db.schema();
        let is_relay = matches!(self.mode, Mode::Relay(_));
        if differs && is_relay {
            self.replace(Database::new(DatabaseSchema::clone(schema)));
        } else if differs && let Some(what) = schema.first_missing_from(self.db.schema()) {
            return Err(format!("{}: the active server has {what} and this backup has not", schema.name));
        }
        let mut wanted: HashMap<(usize, Uuid), Option<Arc<Row>>> = HashMap::with_capacity(rows.len());
        for r in rows {
            let Some(table) = self.db.table_index(&r.table) else { continue };
            let row = match (r.new, schema.tables.get(&*r.table), self.db.table_schema(table)) {
                // A backup may have a newer schema.
                (Some(row), Some(theirs), Some(ours)) if differs && !is_relay => {
                    Some(Arc::new(row.laid_out(theirs, ours)))
                }
                (row, ..) => row,
            };
            wanted.insert((table, r.uuid), row);
        }
        if whole {
            for table in 0..self.db.tables() {
                if self.db.table_schema(table).is_none_or(|t| keep.contains(&t.name)) {
                    continue;
                }
                let there: Vec<Uuid> = self.db.rows(table).map(|r| r.uuid).collect();
                for uuid in there {
                    wanted.entry((table, uuid)).or_insert(None);
                }
            }
        }
        let rows = wanted.into_iter().map(|((table, uuid), row)| (table, uuid, row));
        let changes = self.db.follow(rows).map_err(|e| e.to_string())?;
        // Relays of one source name states alike, so that a client that goes from one to another takes up where it was.
        let state = Some(state).filter(|s| is_relay && !s.is_nil());
        match state {
            Some(state) if changes.is_empty() && state != self.current => self.reached(state, Vec::new()),
            _ => self.committed(changes, &[], state.unwrap_or_else(random_uuid)),
        }
        Ok(())
    }

    /// Writes what was appended and lets go of the messages that speak of it.
    fn flush(&mut self) {
        let mut failed = None;
        if let Some(storage) = self.storage.as_mut().filter(|s| s.has_pending()) {
            let start = Instant::now();
            let written = if self.disk < SLOW { storage.commit() } else { aside(|| storage.commit()) };
            self.disk = start.elapsed();
            if let Err(e) = written {
                tracing::error!(target: "ovsdb_file", "{e}; writing the whole database instead");
                // A file written anew holds what could not be appended.
                failed = aside(|| storage.compact(&self.db)).err();
            }
        }
        if let Some(e) = failed {
            tracing::error!(target: "ovsdb_file", "{e}: no further transactions until the disk is in order");
            self.give_up(&e);
            return;
        }
        self.answers.clear();
        self.dispatcher.send(&mut self.outgoing);
        for (reply, results) in self.own.drain(..) {
            let _ = reply.send(results);
        }
    }

    /// Starts a compaction where one is due.
    fn compact(&mut self, own: &mpsc::WeakSender<Request>) {
        let Some(storage) = &mut self.storage else {
            for reply in self.compactions.drain(..) {
                let _ = reply.send(Ok(()));
            }
            return;
        };
        let wanted = storage.wants_compaction() || !self.compactions.is_empty();
        if storage.is_compacting() || !wanted {
            return;
        }
        let own = own.clone();
        let done = move || {
            if let Some(own) = own.upgrade() {
                // The database may have been removed meanwhile.
                let _ = own.blocking_send(Request::Compacted);
            }
        };
        let begun = storage.begin_compaction(&self.db, done);
        self.compacting.append(&mut self.compactions);
        if let Err(e) = begun {
            tracing::warn!(target: "ovsdb_file", "compaction failed: {e}");
            for reply in self.compacting.drain(..) {
                let _ = reply.send(Err(e.clone()));
            }
        }
    }

    /// Tells clients that their monitors and transactions have ended. Those that would not understand are
    /// disconnected by the server.
    fn cancel_all(&mut self) {
        for m in std::mem::take(&mut self.monitors) {
            m.session.forget_monitor(&m.name);
            if m.session.is_aware() {
                self.send(&m.session, &json!({"id": null, "method": "monitor_canceled", "params": [m.name]}));
            }
        }
        for w in std::mem::take(&mut self.waiting).into_iter().filter(|w| w.session.is_aware()) {
            self.send(&w.session, &json!({"id": w.id, "error": "canceled"}));
        }
    }

    /// Nothing of what waits for the disk has happened as far as anybody may know. Whoever waits for an answer gets one
    /// and is disconnected, as it may have seen more than the file will hold.
    fn give_up(&mut self, e: &Error) {
        let error = json!({"error": "I/O error", "details": e.to_string()});
        let waiting: HashMap<u64, Arc<Session>> = self.outgoing.drain(..).map(|(s, _)| (s.id, s)).collect();
        for (session, id) in self.answers.drain(..) {
            if let Some(session) = waiting.get(&session) {
                session.out.send(&json!({"id": id, "result": [error], "error": null}));
            }
        }
        waiting.values().for_each(|s| s.out.finish());
        for (reply, results) in self.own.drain(..) {
            // Who asked from within may have gone.
            let _ = reply.send(vec![error.clone(); results.len().max(1)]);
        }
        self.end_sessions();
    }

    fn end_sessions(&mut self) {
        for m in self.monitors.drain(..) {
            m.session.out.finish();
        }
        for w in self.waiting.drain(..) {
            w.session.out.finish();
        }
    }

    fn monitor(
        &mut self,
        session: &Arc<Session>,
        name: &Value,
        version: Version,
        requests: &Value,
        since: Option<Uuid>,
    ) -> Result<String, OpError> {
        let key = (version, canonical(requests));
        let spec = match self.specs.get(&key) {
            Some(s) => s.clone(),
            None => {
                let spec = Arc::new(Spec::parse(&self.db, version, requests)?);
                self.specs.insert(key, spec.clone());
                spec
            }
        };
        let result = match (version, since.and_then(|id| self.changes_since(id))) {
            (Version::V3, Some(changes)) => {
                let text = spec.update(&self.db, &changes).unwrap_or_else(|| "{}".to_string());
                format!("[true,\"{}\",{text}]", self.current)
            }
            (Version::V3, None) => format!("[false,\"{}\",{}]", self.current, spec.initial(&self.db)),
            _ => spec.initial(&self.db),
        };
        self.monitors.push(Monitor { session: session.clone(), name: name.clone(), spec });
        Ok(result)
    }

    /// What became of each row since a state, where that is remembered.
    fn changes_since(&self, id: Uuid) -> Option<Vec<Change>> {
        let skip = if id == self.oldest { 0 } else { self.history.iter().position(|p| p.id == id)? + 1 };
        let mut rows: HashMap<(usize, Uuid), Change> = HashMap::new();
        for c in self.history.iter().skip(skip).flat_map(|p| p.changes.iter()) {
            rows.entry((c.table, c.uuid))
                .and_modify(|e| {
                    e.new.clone_from(&c.new);
                    e.version = c.version;
                })
                .or_insert_with(|| c.clone());
        }
        let mut changes: Vec<Change> = rows.into_values().filter(|c| c.old.is_some() || c.new.is_some()).collect();
        changes.sort_by_key(|c| c.table);
        Some(changes)
    }

    fn change_monitor(&mut self, session: &Arc<Session>, id: &Value, old: &Value, new: Value, requests: &Value) {
        let Some(place) = self.monitors.iter().position(|m| m.session.id == session.id && m.name == *old) else {
            let e = OpError::syntax("unknown monitor session").at(old);
            self.send(session, &json!({"id": id, "error": e.to_json()}));
            return;
        };
        if self.specs.len() > 2 * self.monitors.len() {
            self.specs.retain(|_, s| Arc::strong_count(s) > 1);
        }
        match self.monitors[place].spec.changed(&self.db, requests) {
            Err(e) => self.send(session, &json!({"id": id, "error": e.to_json()})),
            Ok(spec) => {
                let key = (spec.version, spec.key());
                let spec = self.specs.entry(key).or_insert_with(|| Arc::new(spec)).clone();
                let m = &mut self.monitors[place];
                let text = m.spec.reconsider(&self.db, &spec);
                session.rename_monitor(old, &new);
                m.name = new;
                m.spec = spec;
                if let Some(text) = text {
                    let message = notification(m, self.current, Bytes::from(text));
                    self.outgoing.push((session.clone(), message));
                }
                self.send(session, &json!({"id": id, "result": {}, "error": null}));
            }
        }
    }

    fn convert(&mut self, session: &Arc<Session>, id: &Value, schema: DatabaseSchema) {
        let result = if schema.name == self.db.schema().name {
            self.db.convert(schema)
        } else {
            let (new, old) = (&schema.name, &self.db.schema().name);
            let text = format!("new schema name ({new}) does not match database name ({old})");
            Err(OpError::new("invalid parameters", text))
        };
        let db = match result {
            Ok(db) => db,
            Err(e) => {
                self.send(session, &json!({"id": id, "error": e.to_json()}));
                return;
            }
        };
        if let Some(storage) = &mut self.storage
            && let Err(e) = storage.compact(&db)
        {
            let e = OpError::new("I/O error", e.to_string());
            self.send(session, &json!({"id": id, "error": e.to_json()}));
            return;
        }
        self.send(session, &json!({"id": id, "result": {}, "error": null}));
        self.replace(db);
    }

    /// Puts another database in place: whoever used the old one starts anew.
    fn replace(&mut self, db: Database) {
        self.db = db;
        self.specs.clear();
        self.history.clear();
        self.remembered = 0;
        self.current = random_uuid();
        self.oldest = self.current;
        self.cancel_all();
        // The server disconnects clients that know nothing of such changes, and tells the others.
        let _ = self.converted.send((self.db.schema().name.clone(), self.db.schema().clone()));
    }
}

/// Whether an operation gives rows.
fn selects(operation: &Value) -> bool {
    operation.get("op").and_then(Value::as_str) == Some("select")
}

/// Whether an operation changes rows.
fn writes(operation: &Value) -> bool {
    matches!(operation.get("op").and_then(Value::as_str), Some("insert" | "update" | "mutate" | "delete"))
}

fn notification(m: &Monitor, state: Uuid, text: Bytes) -> Message {
    let name = &m.name;
    let head = match m.spec.version {
        Version::V1 => format!("{{\"id\":null,\"method\":\"update\",\"params\":[{name},"),
        Version::V2 => format!("{{\"id\":null,\"method\":\"update2\",\"params\":[{name},"),
        Version::V3 => format!("{{\"id\":null,\"method\":\"update3\",\"params\":[{name},\"{state}\","),
    };
    vec![Bytes::from(head), text, Bytes::from_static(b"]}")]
}
