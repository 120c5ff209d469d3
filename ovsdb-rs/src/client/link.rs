//! The client's task: connects, monitors, passes messages, reconnects.

use super::schema_compat::lacks;
use super::{ClientError, Command, Conditions, Config, Event, Pieces, Place, Shared, TableRequest, Update, VERSION};
use crate::failures::Failures;
use crate::json::{Framer, Text};
use crate::message_log::{is_logged, log};
use crate::stream::{BoxStream, Remote, dial};
use crate::tls::{Tls, Watch};
use crate::{DatabaseSchema, Uuid};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The name of the monitor of a database, as OVSDB's own client library has it: tools that read logs look for it.
fn monitor_name(database: &str) -> Value {
    json!(["monid", database])
}

/// The database that tells of the others (ovsdb-server(5)).
const SERVER: &str = "_Server";

/// How often the files of a connection over TLS are looked at: one that was opened with certificates which were replaced or taken
/// away does not go on.
const LOOK: Duration = Duration::from_secs(1);

const METHODS: [&str; 3] = ["monitor_cond_since", "monitor_cond", "monitor"];

enum Pending {
    /// A request whose result somebody waits for.
    Answer(oneshot::Sender<Result<String, ClientError>>),
    /// A monitor request, by its place in [`METHODS`].
    Monitor(usize),
    /// A change of conditions, by its number.
    Conditions(u64),
    Lock(String),
    Other,
}

/// A message without its long objects; what may be large stays text.
#[derive(serde::Deserialize)]
struct Message<'a> {
    id: Option<Value>,
    method: Option<String>,
    #[serde(borrow, default)]
    params: Vec<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

fn parse<'a, T: serde::Deserialize<'a>>(text: &'a str) -> io::Result<T> {
    serde_json::from_str(text).map_err(io::Error::other)
}

/// A part of a message with the long objects that are in it.
fn whole<'a>(text: &'a Text, part: &'a str) -> io::Result<Cow<'a, str>> {
    text.whole(part).map_err(io::Error::other)
}

/// What outlives a connection.
struct Task {
    config: Config,
    events: mpsc::UnboundedSender<Event>,
    shared: Arc<Shared>,
    locks: BTreeSet<String>,
    /// The state of the replica, for `monitor_cond_since`.
    last: Uuid,
    /// Conditions changed and the server has not answered: the replica does not follow from `last`.
    unsettled: bool,
    /// The last change of conditions that is in the configuration.
    conditions: u64,
    reset: bool,
}

/// One connection.
struct Link {
    reader: ReadHalf<BoxStream>,
    framer: Framer,
    out: mpsc::UnboundedSender<Out>,
    /// The server, as the log names it.
    name: Arc<str>,
    next: u64,
    pending: HashMap<u64, Pending>,
    /// On a Unix socket, or to ourselves: no probes.
    local: bool,
    /// The certificates that it was opened with.
    files: Option<Watch>,
    asked: bool,
    /// Which of [`METHODS`] the server answered.
    method: usize,
}

enum Ended {
    /// The connection is gone.
    Lost(io::Error),
    /// Nobody holds the client any more.
    Dropped,
}

impl From<io::Error> for Ended {
    fn from(e: io::Error) -> Ended {
        Ended::Lost(e)
    }
}

pub(super) async fn run(
    config: Config,
    mut commands: mpsc::UnboundedReceiver<Command>,
    events: mpsc::UnboundedSender<Event>,
    shared: Arc<Shared>,
) {
    let mut task = Task {
        config,
        events,
        shared,
        locks: BTreeSet::new(),
        last: Uuid::nil(),
        unsettled: false,
        conditions: 0,
        reset: true,
    };
    let places = match &task.config.place {
        Place::Remotes(r) => r.len(),
        Place::InProcess(_) => 1,
    };
    let (mut place, mut wait, mut failures) = (0, Duration::ZERO, Failures::default());
    loop {
        let name = task.place_name(place);
        let ended = task.connection(place, &mut commands).await;
        let was_up = task.shared.connected.send_replace(false);
        if was_up {
            let owned = task.shared.owned.send_replace(BTreeSet::new());
            for name in owned {
                task.tell(Event::Lock { name, owned: false });
            }
            task.tell(Event::Disconnected);
        }
        place = (place + 1) % places;
        wait = if was_up { Duration::from_millis(50) } else { (wait * 2).max(Duration::from_millis(100)) };
        // A local server comes back within moments; others get time to recover.
        let longest = Duration::from_secs(if name.starts_with("unix:") || places > 1 { 1 } else { 8 });
        let longest = task.config.max_backoff.unwrap_or(longest);
        wait = wait.min(longest);
        match ended {
            Ended::Dropped => return,
            Ended::Lost(e) if was_up => {
                failures = Failures::default();
                tracing::info!(target: "reconnect", "{name}: connection dropped ({e})");
            }
            Ended::Lost(e) => failures.failed(&name, e, wait == longest),
        }
        let until = Instant::now() + wait;
        loop {
            match tokio::time::timeout_at(until, commands.recv()).await {
                Err(_) => break,
                Ok(None) => return,
                Ok(Some(c)) => task.offline(c),
            }
        }
    }
}

impl Task {
    fn tell(&self, event: Event) {
        // A client without a reader of events still has its replica.
        let _ = self.events.send(event);
    }

    fn place_name(&self, place: usize) -> String {
        match &self.config.place {
            Place::Remotes(r) => r.get(place).map_or_else(String::new, Remote::to_string),
            Place::InProcess(_) => "in-process".to_string(),
        }
    }

    /// A command while there is no connection.
    fn offline(&mut self, command: Command) {
        match command {
            Command::Transact { reply, .. } | Command::ServerId(reply) => {
                // Whoever asked may have lost interest.
                let _ = reply.send(Err(ClientError::NotConnected));
            }
            Command::Lock(name) => {
                self.locks.insert(name);
            }
            Command::Unlock(name) => {
                self.locks.remove(&name);
            }
            Command::Conditions(number, all) => {
                self.conditions = number;
                for (table, conditions) in all {
                    self.config.tables.entry(table).or_default().conditions = conditions;
                }
                self.unsettled = true;
            }
            Command::Probe(probe, local) => self.probe(probe, local),
            Command::Reconnect => {}
        }
    }

    async fn connection(&mut self, place: usize, commands: &mut mpsc::UnboundedReceiver<Command>) -> Ended {
        let opened = tokio::time::timeout(Duration::from_secs(10), self.open(place)).await;
        let mut link = match opened {
            Ok(Ok(link)) => link,
            Ok(Err(e)) => return Ended::Lost(e),
            Err(_) => return Ended::Lost(io::Error::other("timed out")),
        };
        let result = self.pump(&mut link, commands).await;
        for (_, p) in link.pending {
            if let Pending::Answer(reply) = p {
                let _ = reply.send(Err(ClientError::Disconnected));
            }
        }
        match result {
            Ok(()) => Ended::Dropped,
            Err(e) => e,
        }
    }

    /// Connects and asks for the monitor.
    async fn open(&mut self, place: usize) -> io::Result<Link> {
        let mut files = None;
        let (stream, local): (BoxStream, bool) = match &self.config.place {
            Place::InProcess(server) => (Box::new(server.connect()), true),
            Place::Remotes(remotes) => {
                let remote = remotes.get(place).ok_or_else(|| io::Error::other("no remote"))?;
                let tls = self.config.tls.as_ref().filter(|_| matches!(remote, Remote::Tls(..)));
                files = tls.map(Tls::watch);
                let (stream, _) = dial(remote, self.config.tls.as_ref(), self.config.dscp).await?;
                (stream, matches!(remote, Remote::Unix(_)))
            }
        };
        let (reader, writer) = tokio::io::split(stream);
        let (out, rx) = mpsc::unbounded_channel();
        let name: Arc<str> = self.place_name(place).into();
        tokio::spawn(write(writer, rx, name.clone()));
        let framer = Framer::default();
        let mut link =
            Link { reader, framer, out, name, next: 0, pending: HashMap::new(), local, files, asked: false, method: 0 };
        link.request("set_db_change_aware", json!([true]), Pending::Other);
        self.check_server(&mut link).await?;
        let schema = link.call("get_schema", json!([self.config.database])).await?;
        let schema = DatabaseSchema::from_json(&schema).map_err(io::Error::other)?;
        if let Some(but) = &self.config.all_but {
            let wanted = schema.tables.keys().filter(|t| !but.contains(*t));
            self.config.tables = wanted.map(|t| (t.clone(), TableRequest::all())).collect();
        }
        let lacks = lacks(&self.config, &schema);
        let replaced = self.shared.replica.write().unwrap_or_else(PoisonError::into_inner).set_schema(schema);
        if replaced || self.unsettled {
            self.last = Uuid::nil();
        }
        for text in lacks.iter().filter(|_| replaced) {
            // Each is said once, so there is nothing to limit; all of them are needed to know what to upgrade.
            tracing::warn!(target: "ovsdb_idl", kind = text.as_str(), "{text}");
        }
        self.reset |= replaced;
        self.unsettled = false;
        self.monitor(&mut link, 0);
        for name in &self.locks {
            link.request("lock", json!([name]), Pending::Lock(name.clone()));
        }
        Ok(link)
    }

    /// Refuses a server that cannot serve the database as wanted, and watches whether it goes on doing so.
    async fn check_server(&self, link: &mut Link) -> io::Result<()> {
        let request = json!({"Database": [{"columns": ["name", "model", "leader", "connected"]}]});
        // Servers older than 2.9 have no `_Server`, and no clusters.
        let Ok(rows) = link.call("monitor", json!([SERVER, monitor_name(SERVER), request])).await else {
            return Ok(());
        };
        self.leads(&rows)
    }

    fn leads(&self, updates: &Value) -> io::Result<()> {
        for row in updates.get("Database").and_then(Value::as_object).into_iter().flat_map(Map::values) {
            let Some(new) = row.get("new") else { continue };
            let is = |k: &str| new.get(k).and_then(Value::as_bool).unwrap_or(true);
            let ours = new.get("name").and_then(Value::as_str) == Some(self.config.database.as_str());
            if !ours {
                continue;
            }
            let why = match new.get("model").and_then(Value::as_str) {
                Some("clustered") if !is("connected") => "clustered database server is disconnected from cluster",
                Some("clustered") if self.config.leader_only && !is("leader") => {
                    "clustered database server is not the cluster leader"
                }
                // Locks of a relay are its own, so it cannot stand in for the leader.
                Some("relay") if self.config.leader_only => "database server is a relay, not the cluster leader",
                _ => continue,
            };
            return Err(io::Error::other(why));
        }
        Ok(())
    }

    /// Asks for other rows than before.
    fn change_conditions(&mut self, link: &mut Link, number: u64, all: Conditions) {
        self.conditions = number;
        let mut changed = BTreeSet::new();
        for (table, conditions) in all {
            let request = self.config.tables.entry(table.clone()).or_default();
            if request.conditions != conditions {
                request.conditions = conditions;
                changed.insert(table);
            }
        }
        // A server that knows no conditions sends everything. What a monitor request that waits for its answer asked for is
        // changed behind it.
        let asks = link.method < 2 && !changed.is_empty();
        if asks {
            self.unsettled = true;
            let name = monitor_name(&self.config.database);
            let params = json!([name, name, self.requests(Some(&changed), true)]);
            link.request("monitor_cond_change", params, Pending::Conditions(number));
        } else if !link.pending.values().any(|p| matches!(p, Pending::Conditions(_) | Pending::Monitor(_))) {
            self.answered(number);
        }
    }

    /// The replica has what a change of conditions asked for.
    fn answered(&self, number: u64) {
        self.shared.answered.store(number, Ordering::Release);
        let schema = self.shared.replica.read().unwrap_or_else(PoisonError::into_inner).schema().cloned();
        if let Some(schema) = schema {
            self.tell(Event::Update(Update { reset: false, schema, changes: Vec::new(), state: self.last }));
        }
    }

    /// The monitor request of what the server's schema has.
    fn requests(&self, only: Option<&BTreeSet<String>>, change: bool) -> Value {
        let replica = self.shared.replica.read().unwrap_or_else(PoisonError::into_inner);
        let mut out = Map::new();
        for (name, r) in self.config.tables.iter().filter(|(n, _)| only.is_none_or(|o| o.contains(n.as_str()))) {
            let Some(ts) = replica.schema().and_then(|s| s.tables.get(name)) else { continue };
            let mut o = Map::new();
            if !change {
                let all = || ts.columns.iter().map(|c| c.name.clone()).collect();
                let mut columns: Vec<String> = r.columns.clone().unwrap_or_else(all);
                columns.retain(|c| c == VERSION || ts.column(c).is_some());
                o.insert("columns".into(), json!(columns));
            }
            let all = vec![json!(true)];
            let none = vec![json!(false)];
            // No row of a server that lacks a column satisfies a condition on it.
            let has = |c: &&Value| c.get(0).and_then(Value::as_str).is_none_or(|column| ts.column(column).is_some());
            let known = r.conditions.as_ref().map(|c| c.iter().filter(has).cloned().collect::<Vec<_>>());
            let conditions = known.map_or(all, |c| if c.is_empty() { none } else { c });
            o.insert("where".into(), json!(conditions));
            out.insert(name.clone(), json!([o]));
        }
        Value::Object(out)
    }

    fn monitor(&self, link: &mut Link, method: usize) {
        let mut requests = self.requests(None, false);
        if method == 2 {
            for r in requests.as_object_mut().into_iter().flat_map(|o| o.values_mut()) {
                if let Some(o) = r.get_mut(0).and_then(Value::as_object_mut) {
                    o.remove("where");
                }
            }
        }
        let name = monitor_name(&self.config.database);
        let mut params = vec![json!(self.config.database), name, requests];
        if method == 0 {
            params.push(json!(self.last.to_string()));
        }
        link.request(METHODS[method], Value::Array(params), Pending::Monitor(method));
    }

    async fn pump(&mut self, link: &mut Link, commands: &mut mpsc::UnboundedReceiver<Command>) -> Result<(), Ended> {
        let mut look = tokio::time::interval(LOOK);
        let mut heard = Instant::now();
        loop {
            while let Some(text) = link.framer.next_with_long().map_err(io::Error::other)? {
                log(&link.name, "received", &text.bytes);
                let short = text.without_long().map_err(io::Error::other)?;
                self.message(link, parse(&short)?, &text)?;
            }
            let probe = self.config.probe.filter(|_| !link.local || self.config.probe_local);
            tokio::select! {
                n = link.reader.read_buf(link.framer.buffer()) => {
                    if n? == 0 {
                        return Err(Ended::Lost(io::Error::other("connection closed by peer")));
                    }
                    (link.asked, heard) = (false, Instant::now());
                }
                command = commands.recv() => match command {
                    None => return Ok(()),
                    Some(c) => self.command(link, c)?,
                },
                _ = look.tick(), if link.files.is_some() => {
                    if let Some(file) = link.files.as_ref().and_then(Watch::changed) {
                        return Err(Ended::Lost(io::Error::other(format!("{} changed", file.display()))));
                    }
                }
                () = tokio::time::sleep_until(heard + probe.unwrap_or_default()), if probe.is_some() => {
                    if link.asked {
                        return Err(Ended::Lost(io::Error::other("no response to inactivity probe")));
                    }
                    (link.asked, heard) = (true, Instant::now());
                    link.send(&json!({"id": "echo", "method": "echo", "params": []}));
                }
            }
        }
    }

    fn command(&mut self, link: &mut Link, command: Command) -> Result<(), Ended> {
        match command {
            Command::Transact { operations, reply } => {
                link.transact(json!(self.config.database).to_string(), operations, reply);
            }
            Command::ServerId(reply) => {
                link.request("get_server_id", json!([]), Pending::Answer(reply));
            }
            Command::Lock(name) => {
                if self.locks.insert(name.clone()) {
                    link.request("lock", json!([name]), Pending::Lock(name));
                }
            }
            Command::Unlock(name) => {
                if self.locks.remove(&name) {
                    link.request("unlock", json!([name]), Pending::Other);
                    self.owns(&name, false);
                }
            }
            Command::Conditions(number, all) => self.change_conditions(link, number, all),
            Command::Probe(probe, local) => self.probe(probe, local),
            Command::Reconnect => return Err(Ended::Lost(io::Error::other("reconnecting on request"))),
        }
        Ok(())
    }

    fn probe(&mut self, probe: Option<Duration>, local: Option<bool>) {
        self.config.probe = probe;
        self.config.probe_local = local.unwrap_or(self.config.probe_local);
    }

    fn owns(&self, name: &str, owned: bool) {
        let changed = self
            .shared
            .owned
            .send_if_modified(|set| if owned { set.insert(name.to_string()) } else { set.remove(name) });
        if changed {
            self.tell(Event::Lock { name: name.to_string(), owned });
        }
    }

    fn message(&mut self, link: &mut Link, m: Message<'_>, text: &Text) -> Result<(), Ended> {
        let Some(method) = &m.method else { return self.reply(link, m, text) };
        match (method.as_str(), m.params.as_slice()) {
            ("echo", params) => {
                let values: io::Result<Vec<Value>> = params.iter().map(|p| parse(&whole(text, p.get())?)).collect();
                link.send(&json!({"id": m.id, "result": values?, "error": null}));
            }
            ("update" | "update2", [name, updates]) => {
                let updates = whole(text, updates.get())?;
                if parse::<Value>(name.get())? == monitor_name(SERVER) {
                    self.leads(&parse(&updates)?)?;
                } else {
                    self.update(&updates, false)?;
                }
            }
            ("update3", [_, last, updates]) => {
                self.remember(&parse(last.get())?);
                self.update(&whole(text, updates.get())?, false)?;
            }
            ("update" | "update2" | "update3", _) => {
                return Err(Ended::Lost(io::Error::other(format!("{method} with {} parameters", m.params.len()))));
            }
            ("locked" | "stolen", params) => {
                if let Some(Value::String(name)) = params.first().map(|p| parse(p.get())).transpose()? {
                    self.owns(&name, method == "locked");
                }
            }
            ("monitor_canceled", _) => return Err(Ended::Lost(io::Error::other("the database changed its schema"))),
            (other, _) => tracing::debug!(target: "jsonrpc", "unexpected notification {other}"),
        }
        Ok(())
    }

    fn remember(&mut self, id: &Value) {
        self.last = id.as_str().and_then(|s| Uuid::try_parse(s).ok()).unwrap_or_default();
    }

    fn update(&mut self, updates: &str, whole: bool) -> io::Result<()> {
        let (applied, schema) = {
            let mut replica = self.shared.replica.write().unwrap_or_else(PoisonError::into_inner);
            let applied = replica.apply(updates, whole);
            if applied.is_err() {
                // A part was taken over and nobody told: all is read again.
                replica.clear();
                (self.unsettled, self.reset) = (true, true);
            }
            (applied, replica.schema().cloned())
        };
        let (changes, errors) = applied.map_err(io::Error::other)?;
        for e in errors {
            tracing::warn!(target: "ovsdb_idl", "{}: {e}", self.config.database);
        }
        let reset = std::mem::take(&mut self.reset);
        if let Some(schema) = schema
            && (reset || whole || !changes.is_empty())
        {
            self.tell(Event::Update(Update { reset, schema, changes, state: self.last }));
        }
        Ok(())
    }

    fn reply(&mut self, link: &mut Link, m: Message<'_>, text: &Text) -> Result<(), Ended> {
        let Some(pending) = m.id.and_then(|id| id.as_u64()).and_then(|id| link.pending.remove(&id)) else {
            return Ok(());
        };
        let error = m.error.map(|e| parse::<Value>(&whole(text, e.get())?)).transpose()?;
        let result = m.result.map_or("null", RawValue::get);
        match pending {
            Pending::Answer(reply) => {
                let answer = match error {
                    Some(e) => Err(ClientError::Refused(e)),
                    None => Ok(whole(text, result)?.into_owned()),
                };
                let _ = reply.send(answer);
            }
            Pending::Monitor(method) => match error {
                Some(e) if method + 1 < METHODS.len() && e.as_str() == Some("unknown method") => {
                    self.monitor(link, method + 1);
                }
                Some(e) => return Err(Ended::Lost(io::Error::other(format!("monitor request failed: {e}")))),
                None => {
                    link.method = method;
                    let mut found = false;
                    if method == 0 {
                        let (known, last, updates): (bool, Value, &RawValue) = parse(result)?;
                        found = known;
                        self.remember(&last);
                        self.update(&whole(text, updates.get())?, !found)?;
                    } else {
                        self.last = Uuid::nil();
                        self.update(&whole(text, result)?, true)?;
                    }
                    if found {
                        // Told even where nothing changed, as after each connection.
                        let schema =
                            self.shared.replica.read().unwrap_or_else(PoisonError::into_inner).schema().cloned();
                        if let Some(schema) = schema {
                            self.tell(Event::Update(Update {
                                reset: false,
                                schema,
                                changes: Vec::new(),
                                state: self.last,
                            }));
                        }
                    }
                    // Changes that came while the request waited are asked for behind it, and have answers of their own.
                    if !link.pending.values().any(|p| matches!(p, Pending::Conditions(_))) {
                        self.shared.answered.store(self.conditions, Ordering::Release);
                    }
                    self.shared.connected.send_replace(true);
                }
            },
            Pending::Conditions(number) => {
                match error {
                    Some(e) => tracing::warn!(target: "ovsdb_cs", "monitor_cond_change failed: {e}"),
                    None => self.unsettled = link.pending.values().any(|p| matches!(p, Pending::Conditions(_))),
                }
                // A change that asked for nothing new has no answer of its own.
                let last = !link.pending.values().any(|p| matches!(p, Pending::Conditions(_)));
                self.answered(if last { self.conditions } else { number });
            }
            Pending::Lock(name) => {
                let owned = parse::<Value>(result)?.get("locked").and_then(Value::as_bool).unwrap_or(false);
                self.owns(&name, owned && self.locks.contains(&name));
            }
            Pending::Other => {}
        }
        Ok(())
    }
}

impl Link {
    fn send(&self, v: &Value) {
        // A dead writer shows as an end of the stream.
        let _ = self.out.send(Out::Whole(v.to_string()));
    }

    fn request(&mut self, method: &str, params: Value, pending: Pending) -> u64 {
        let id = self.next;
        self.next += 1;
        self.pending.insert(id, pending);
        self.send(&json!({"id": id, "method": method, "params": params}));
        id
    }

    /// A `transact` request, sent in pieces.
    fn transact(&mut self, database: String, operations: Pieces, reply: oneshot::Sender<Result<String, ClientError>>) {
        let id = self.next;
        self.next += 1;
        self.pending.insert(id, Pending::Answer(reply));
        let start = format!("{{\"id\":{id},\"method\":\"transact\",\"params\":[{database}");
        // A dead writer shows as an end of the stream.
        let _ = self.out.send(Out::Transact(start, operations));
    }

    fn parsed(&mut self) -> io::Result<Option<Value>> {
        match self.framer.next_text().map_err(io::Error::other)? {
            Some(text) => {
                log(&self.name, "received", &text);
                serde_json::from_slice(&text).map(Some).map_err(io::Error::other)
            }
            None => Ok(None),
        }
    }

    /// A request whose reply is awaited before anything else goes on.
    async fn call(&mut self, method: &str, params: Value) -> io::Result<Value> {
        let id = self.request(method, params, Pending::Other);
        loop {
            while let Some(mut v) = self.parsed()? {
                if v.get("method").is_some() {
                    continue;
                }
                let Some(got) = v.get("id").and_then(Value::as_u64) else { continue };
                self.pending.remove(&got);
                if got == id {
                    return match v.get("error").filter(|e| !e.is_null()) {
                        Some(e) => Err(io::Error::other(format!("{method}: {e}"))),
                        None => Ok(v.get_mut("result").map(Value::take).unwrap_or_default()),
                    };
                }
            }
            if self.reader.read_buf(self.framer.buffer()).await? == 0 {
                return Err(io::Error::other("connection closed by peer"));
            }
        }
    }
}

/// How much text goes out at once at least, while there is more.
const ENOUGH: usize = 1 << 16;

/// A message on its way out.
enum Out {
    Whole(String),
    /// A start, and operations.
    Transact(String, Pieces),
}

impl Out {
    async fn write(self, writer: &mut WriteHalf<BoxStream>, name: &str) -> io::Result<()> {
        let text = match self {
            Out::Whole(text) => {
                log(name, "send", text.as_bytes());
                text
            }
            Out::Transact(mut text, mut pieces) => {
                let mut whole = is_logged().then(|| text.clone());
                loop {
                    let piece = pieces.recv().await.ok_or_else(|| io::Error::other("given up half way"))?;
                    let Some(piece) = piece else { break };
                    text.push(',');
                    text.push_str(&piece);
                    if let Some(w) = &mut whole {
                        w.push(',');
                        w.push_str(&piece);
                    }
                    if text.len() >= ENOUGH {
                        writer.write_all(text.as_bytes()).await?;
                        text.clear();
                    }
                }
                text.push_str("]}");
                if let Some(w) = whole {
                    log(name, "send", (w + "]}").as_bytes());
                }
                text
            }
        };
        writer.write_all(text.as_bytes()).await?;
        writer.flush().await
    }
}

async fn write(mut writer: WriteHalf<BoxStream>, mut messages: mpsc::UnboundedReceiver<Out>, name: Arc<str>) {
    while let Some(message) = messages.recv().await {
        if message.write(&mut writer, &name).await.is_err() {
            break;
        }
    }
    // The peer may be gone already.
    let _ = writer.shutdown().await;
}
