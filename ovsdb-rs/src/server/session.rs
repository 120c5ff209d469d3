//! One client's connection: reads requests, answers what needs no database, passes on the rest.

use super::database::Request;
use super::monitor::Version;
use super::outbox::{Drain, Outbox, outbox};
use super::remotes::Shared;
use super::{Inner, Model, Served};
use crate::engine::parse::is_id;
use crate::engine::request::Transact;
use crate::engine::{Access, OpError, Operations};
use crate::json::{Framer, canonical};
use crate::stream::BoxStream;
use crate::{DatabaseSchema, Str, Uuid, message_log};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, ReadHalf, WriteHalf};
use tokio::runtime::RuntimeFlavor;
use tokio::sync::mpsc;

/// A client with a request longer than this is dropped: 256 MiB.
const LONGEST_REQUEST: usize = 256 << 20;
/// A request longer than this is parsed aside, so that others of the same worker go on: 1 MiB.
const LONG_REQUEST: usize = 1 << 20;

/// A client.
#[derive(Debug)]
pub(crate) struct Session {
    pub id: u64,
    pub peer: String,
    pub out: Outbox,
    pub remote: Arc<Shared>,
    access: Arc<Access>,
    aware: AtomicBool,
    /// The database of each monitor.
    monitors: Mutex<HashMap<String, String>>,
}

/// What logs call the other end of a connection.
pub(crate) enum PeerName {
    /// Its address, with the kind of connection in front.
    Address(String),
    /// A client of a file's socket has no address of its own: the number of its session stands for one.
    UnixClient,
}

/// Who is at the other end of a connection.
pub(crate) struct Peer {
    /// What it is called.
    pub name: PeerName,
    /// The common name of its certificate.
    pub client: Str,
    /// The remote on which it came.
    pub remote: Arc<Shared>,
}

impl Session {
    /// What the client may do.
    pub(crate) fn access(&self) -> Arc<Access> {
        self.access.clone()
    }

    /// Whether the client copes with databases that come, go or change.
    pub(crate) fn is_aware(&self) -> bool {
        self.aware.load(Ordering::Acquire)
    }

    fn monitors(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.monitors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget_monitor(&self, name: &Value) {
        self.monitors().remove(&canonical(name));
    }

    pub(crate) fn rename_monitor(&self, old: &Value, new: &Value) {
        let mut monitors = self.monitors();
        if let Some(db) = monitors.remove(&canonical(old)) {
            monitors.insert(canonical(new), db);
        }
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve(server: Arc<Inner>, stream: BoxStream, peer: Peer) {
    let (out, drain) = outbox(server.backlog);
    let options = peer.remote.options();
    let id = server.next_session.fetch_add(1, Ordering::Relaxed);
    let session = Arc::new(Session {
        id,
        peer: match peer.name {
            PeerName::Address(name) => name,
            PeerName::UnixClient => format!("unix#{id}"),
        },
        out,
        remote: peer.remote,
        access: Arc::new(Access { read_only: options.read_only, role: options.role, client: peer.client }),
        aware: AtomicBool::new(false),
        monitors: Mutex::default(),
    });
    server.sessions().insert(session.id, session.clone());
    let _leave = Leave { server: server.clone(), session: session.id };
    let (reader, writer) = tokio::io::split(stream);
    let result = tokio::select! {
        // Whoever is disconnected is told nothing of what comes after that.
        biased;
        () = session.out.closed() => Err(io::Error::other("disconnected by the server")),
        r = write(drain, writer, &session.peer) => r,
        r = read(&server, &session, reader) => r,
    };
    if let Err(e) = result {
        tracing::debug!(target: "jsonrpc", "{}: {e}", session.peer);
    }
}

/// Forgets a client when its connection ends, however it ends.
struct Leave {
    server: Arc<Inner>,
    session: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.server.sessions().remove(&self.session);
        self.server.locks().leave(self.session);
        let databases: Vec<mpsc::Sender<Request>> =
            self.server.databases().values().map(|d| d.requests.clone()).collect();
        let session = self.session;
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                for db in databases {
                    // A database that is gone has forgotten the session already.
                    let _ = db.send(Request::Gone { session }).await;
                }
            });
        }
    }
}

async fn write(mut drain: Drain, writer: WriteHalf<BoxStream>, peer: &str) -> io::Result<()> {
    let mut writer = BufWriter::with_capacity(64 << 10, writer);
    while let Some(first) = drain.next().await {
        let mut next = Some(first);
        while let Some(message) = next {
            if message.is_empty() {
                writer.flush().await?;
                return Err(io::Error::other("disconnected by the server"));
            }
            if message_log::is_logged() {
                message_log::log(peer, "send", &message.concat());
            }
            for part in &message {
                writer.write_all(part).await?;
            }
            drain.sent(&message);
            next = drain.more();
        }
        writer.flush().await?;
    }
    Ok(())
}

async fn read(server: &Arc<Inner>, session: &Arc<Session>, mut reader: ReadHalf<BoxStream>) -> io::Result<()> {
    let mut framer = Framer::default();
    let mut asked = false;
    loop {
        let received = match session.remote.probe() {
            None => reader.read_buf(framer.buffer()).await?,
            Some(limit) => match tokio::time::timeout(limit, reader.read_buf(framer.buffer())).await {
                Ok(n) => n?,
                Err(_) if asked => return Err(io::Error::other("no response to inactivity probe")),
                Err(_) => {
                    asked = true;
                    session.out.send(&json!({"id": "echo", "method": "echo", "params": []}));
                    continue;
                }
            },
        };
        if received == 0 {
            return Ok(());
        }
        asked = false;
        while let Some(text) = framer.next_text().map_err(io::Error::other)? {
            message_log::log(&session.peer, "received", &text);
            let text = if text.len() > LONG_REQUEST {
                match long(server, session, text).await {
                    Some(other) => other,
                    None => continue,
                }
            } else {
                text
            };
            let v = parse(text)?;
            if !message(server, session, v).await {
                return Err(io::Error::other("received bad JSON-RPC message"));
            }
        }
        if framer.pending() > LONGEST_REQUEST {
            return Err(io::Error::other("request is too long"));
        }
    }
}

fn parse(text: Vec<u8>) -> io::Result<Value> {
    let long = text.len() > LONG_REQUEST;
    let parse = move || serde_json::from_slice(&text).map_err(io::Error::other);
    if long { aside(parse) } else { parse() }
}

/// Works while others of the same worker go on.
pub(super) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let many = tokio::runtime::Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    if many { tokio::task::block_in_place(work) } else { work() }
}

/// Passes a long transaction on as text, which takes a small part of the memory of a tree. Gives the request back
/// where it is another one, or one that cannot be carried out.
async fn long(server: &Inner, session: &Arc<Session>, request: Vec<u8>) -> Option<Vec<u8>> {
    let t = match aside(|| Transact::recognise(request)) {
        Ok(t) => t,
        Err(request) => return Some(request),
    };
    // A relay looks at all operations itself.
    let own = |d: &&Served| d.ready && d.model == Model::Standalone;
    let db = server.databases().get(&t.database).filter(own).map(|d| d.requests.clone());
    let Some(db) = db else { return Some(t.operations.into_request()) };
    let operations = Operations::Text(t.operations);
    if let Err(error) = pass(&db, Request::Transact { session: session.clone(), id: t.id.clone(), operations }).await {
        session.out.send(&json!({"id": t.id, "error": error}));
    }
    None
}

/// Handles a message; false where it is no JSON-RPC and the connection has to end.
async fn message(server: &Arc<Inner>, session: &Arc<Session>, v: Value) -> bool {
    let Value::Object(mut o) = v else { return false };
    let id = o.remove("id").unwrap_or(Value::Null);
    let method = match o.remove("method") {
        Some(Value::String(m)) => m,
        // A reply, to an echo.
        None | Some(Value::Null) => return o.contains_key("result") || o.contains_key("error"),
        Some(_) => return false,
    };
    let params = match o.remove("params") {
        Some(Value::Array(p)) => p,
        None | Some(Value::Null) => Vec::new(),
        Some(_) => return false,
    };
    match answer(server, session, &id, &method, params).await {
        Ok(Some(result)) if !id.is_null() => {
            session.out.send(&json!({"id": id, "result": result, "error": null}));
        }
        Err(error) if !id.is_null() => session.out.send(&json!({"id": id, "error": error})),
        _ => {}
    }
    true
}

/// The result where it is known at once; none where a database will answer.
async fn answer(
    server: &Arc<Inner>,
    session: &Arc<Session>,
    id: &Value,
    method: &str,
    params: Vec<Value>,
) -> Result<Option<Value>, Value> {
    match method {
        "echo" => Ok(Some(Value::Array(params))),
        "list_dbs" => Ok(Some(json!(server.databases().keys().collect::<Vec<_>>()))),
        "get_schema" => {
            let (_, db) = database(server, method, &params)?;
            let schema = server.databases().get(&db).filter(|d| d.ready).map(|d| d.schema.to_json());
            schema.map(Some).ok_or_else(|| unavailable(method, &db))
        }
        "get_server_id" => Ok(Some(json!(server.id.to_string()))),
        "set_db_change_aware" => match params.as_slice() {
            [Value::Bool(b)] => {
                session.aware.store(*b, Ordering::Release);
                Ok(Some(json!({})))
            }
            _ => Err(syntax("set_db_change_aware: true or false parameter expected", params)),
        },
        "lock" | "steal" | "unlock" if session.access.read_only || server.is_backup() => {
            Err(json!("lock and unlock methods not allowed, DB server is read only."))
        }
        "lock" | "steal" | "unlock" => lock(server, session, method, params),
        "transact" => {
            let (db, _) = available(server, method, &params)?;
            let operations = Operations::Tree(params.into_iter().skip(1).collect());
            pass(&db, Request::Transact { session: session.clone(), id: id.clone(), operations }).await
        }
        "cancel" => {
            let target = params.first().cloned().unwrap_or_default();
            let all: Vec<_> = server.databases().values().map(|d| d.requests.clone()).collect();
            for db in all {
                pass(&db, Request::Cancel { session: session.clone(), id: target.clone() }).await?;
            }
            Ok(None)
        }
        "monitor" => monitor(server, session, id, method, Version::V1, params).await,
        "monitor_cond" | "monitor_cond_since" | "monitor_cond_change"
            if server.plain_monitors.load(Ordering::Acquire) =>
        {
            Err(json!("unknown method"))
        }
        "monitor_cond" => monitor(server, session, id, method, Version::V2, params).await,
        "monitor_cond_since" => monitor(server, session, id, method, Version::V3, params).await,
        "monitor_cond_change" => {
            let mut p = params.into_iter();
            let (Some(old), Some(new), Some(requests)) = (p.next(), p.next(), p.next()) else {
                return Err(syntax("invalid parameters", p.collect()));
            };
            let unknown = || OpError::syntax("unknown monitor session").at(&old).to_json();
            let db = monitored(server, session, &old).ok_or_else(unknown)?;
            if old != new && session.monitors().contains_key(&canonical(&new)) {
                return Err(OpError::syntax("duplicate monitor ID").at(&new).to_json());
            }
            let request = Request::ChangeMonitor { session: session.clone(), id: id.clone(), old, new, requests };
            pass(&db, request).await
        }
        "monitor_cancel" => {
            let [name] = <[Value; 1]>::try_from(params).map_err(|_| json!("invalid parameters"))?;
            let db = monitored(server, session, &name).ok_or_else(|| json!("unknown monitor"))?;
            session.forget_monitor(&name);
            pass(&db, Request::CancelMonitor { session: session.clone(), id: id.clone(), name }).await
        }
        "convert" => {
            let (db, name) = available(server, method, &params)?;
            let follows = |d: &Served| d.model == Model::Relay || d.backup.load(Ordering::Acquire);
            let follows = server.databases().get(&name).is_some_and(follows);
            if session.access.read_only || !session.access.role.is_empty() || follows {
                let text =
                    "convert is not allowed on relays and backups, to read-only clients and to those with a role";
                return Err(OpError::new("not allowed", text).to_json());
            }
            let schema = params.get(1).cloned().unwrap_or_default();
            let schema = DatabaseSchema::from_json(&schema)
                .map_err(|e| OpError::syntax(format!("Parsing database schema failed: {e}")).at(&schema).to_json())?;
            let schema = Box::new(schema);
            pass(&db, Request::Convert { session: session.clone(), id: id.clone(), schema }).await
        }
        _ => Err(json!("unknown method")),
    }
}

/// A relay does not know its schema before it has reached its source.
fn unavailable(method: &str, db: &str) -> Value {
    let text = format!(
        "{method} request specifies database {db} which is not yet available because it has not completed joining its cluster"
    );
    OpError::new("database not available", text).to_json()
}

fn syntax(text: &str, params: Vec<Value>) -> Value {
    OpError::syntax(text).at(&Value::Array(params)).to_json()
}

/// The database that the first parameter names.
fn database(server: &Inner, method: &str, params: &[Value]) -> Result<(mpsc::Sender<Request>, String), Value> {
    let whole = || Value::Array(params.to_vec());
    let Some(name) = params.first().and_then(Value::as_str) else {
        let text = format!("{method} request params must begin with <db-name>");
        return Err(OpError::syntax(text).at(&whole()).to_json());
    };
    match server.databases().get(name) {
        Some(db) => Ok((db.requests.clone(), name.to_string())),
        None => {
            let text = format!("{method} request specifies unknown database {name}");
            Err(OpError::new("unknown database", text).at(&whole()).to_json())
        }
    }
}

/// As [`database`], where the database can be used.
fn available(server: &Inner, method: &str, params: &[Value]) -> Result<(mpsc::Sender<Request>, String), Value> {
    let (requests, name) = database(server, method, params)?;
    let ready = server.databases().get(&name).is_some_and(|d| d.ready);
    if ready { Ok((requests, name)) } else { Err(unavailable(method, &name)) }
}

fn monitored(server: &Inner, session: &Session, name: &Value) -> Option<mpsc::Sender<Request>> {
    let db = session.monitors().get(&canonical(name)).cloned()?;
    server.databases().get(&db).map(|d| d.requests.clone())
}

async fn pass(db: &mpsc::Sender<Request>, request: Request) -> Result<Option<Value>, Value> {
    match db.send(request).await {
        Ok(()) => Ok(None),
        Err(_) => Err(OpError::new("canceled", "the database is being removed").to_json()),
    }
}

fn lock(server: &Inner, session: &Arc<Session>, method: &str, params: Vec<Value>) -> Result<Option<Value>, Value> {
    let name = match params.as_slice() {
        [Value::String(s)] if is_id(s) => s.clone(),
        _ => return Err(syntax(&format!("{method} request params must be <id>"), params)),
    };
    let mut locks = server.locks();
    if method == "unlock" {
        return locks.unlock(&name, session.id).map(|()| Some(json!({}))).map_err(|e| e.to_json());
    }
    let owned = locks.lock(&name, session, method == "steal").map_err(|e| e.to_json())?;
    Ok(Some(json!({ "locked": owned })))
}

async fn monitor(
    server: &Inner,
    session: &Arc<Session>,
    id: &Value,
    method: &str,
    version: Version,
    params: Vec<Value>,
) -> Result<Option<Value>, Value> {
    let (db, db_name) = available(server, method, &params)?;
    let wanted = if version == Version::V3 { 4 } else { 3 };
    if params.len() < wanted {
        return Err(syntax("invalid parameters", params));
    }
    let mut p = params.into_iter().skip(1);
    let (name, requests) = (p.next().unwrap_or_default(), p.next().unwrap_or_default());
    let since: Option<Uuid> = match p.next() {
        Some(v) if version == Version::V3 => {
            let u = v.as_str().and_then(crate::engine::parse::uuid);
            Some(u.ok_or_else(|| OpError::syntax("last-txn-id must be UUID format.").at(&v).to_json())?)
        }
        _ => None,
    };
    {
        let mut monitors = session.monitors();
        if monitors.contains_key(&canonical(&name)) {
            return Err(OpError::syntax("duplicate monitor ID").at(&name).to_json());
        }
        monitors.insert(canonical(&name), db_name);
    }
    let request = Request::Monitor { session: session.clone(), id: id.clone(), name, version, requests, since };
    pass(&db, request).await
}
