//! Servers that follow another: relays (ovsdb(7), "Relay Database Service Model") and backups
//! (ovsdb-server(1), "Active-Backup Options").

use super::database::{Forward, Request};
use super::{Inner, Model, Server};
use crate::client::{Client, ClientError, Config, Event};
use crate::engine::Database;
use crate::tls::Tls;
use crate::{DatabaseSchema, Error};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

/// Transactions that a relay passes on at a time; others wait.
const IN_FLIGHT: usize = 1000;

/// Where a backup gets a database from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The active server, such as `tcp:192.0.2.1:6641`.
    pub remote: String,
    /// Tables that are not replicated.
    pub exclude: BTreeSet<String>,
    /// How the connection behaves.
    pub options: SourceOptions,
}

/// How the connection of a relay or backup to its source behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// The silence after which the source is asked for a sign of life; zero: never. None: as clients do by default.
    pub inactivity_probe: Option<Duration>,
    /// The longest wait between attempts to connect; none: as clients do by default.
    pub max_backoff: Option<Duration>,
    /// The Differentiated Services Code Point of what is sent over TCP; none: 48.
    pub dscp: Option<u8>,
}

impl SourceOptions {
    fn apply(&self, config: Config) -> Config {
        let probe = self.inactivity_probe;
        let config = match probe {
            None => config,
            Some(d) => config.probe(Some(d).filter(|d| !d.is_zero())),
        };
        config.max_backoff(self.max_backoff).dscp(self.dscp)
    }
}

/// What a database that is a backup does at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncState {
    /// It has not reached the active server, or has lost it.
    Connecting,
    /// It follows.
    Replicating,
    /// What the active server sent could not be taken; the reason.
    Failed(String),
}

/// The task of a database that is a backup; dropping it ends that.
pub(super) struct Replication {
    task: AbortHandle,
    state: Arc<Mutex<SyncState>>,
}

impl Drop for Replication {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<SyncState>) -> MutexGuard<'_, SyncState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Serves a database that another server owns: changes of clients go there. It is empty until that
    /// server is reached.
    ///
    /// # Errors
    /// Where the remotes do not parse, or a database of this name is being served.
    pub async fn add_relay(
        &self,
        name: &str,
        remotes: &str,
        options: &SourceOptions,
        tls: Option<Tls>,
    ) -> Result<(), Error> {
        let config = Config::new(remotes, name)?.leader_only(false).everything_but(BTreeSet::new()).tls(tls);
        let config = options.apply(config);
        if self.0.databases().contains_key(name) {
            return Err(Error::Constraint(format!("{name}: duplicate database name")));
        }
        let schema = DatabaseSchema { name: name.to_string(), ..DatabaseSchema::default() };
        let (forward, forwards) = mpsc::unbounded_channel();
        self.serve(Database::new(schema), None, super::database::Mode::Relay(forward));
        if let Some(db) = self.0.databases().get_mut(name) {
            (db.model, db.connected, db.ready) = (Model::Relay, false, false);
            db.path = Some(format!("relay:{name}:{remotes}").into());
            // It may reach the source at once. What it then says of the database waits until this is done.
            let task = tokio::spawn(relay(Arc::downgrade(&self.0), name.to_string(), config, forwards));
            db.follower = Some(task.abort_handle());
        }
        self.0.disconnect_unaware();
        self.publish().await;
        Ok(())
    }

    /// Makes a database a backup of another server's, or active again. All clients have to come back.
    ///
    /// # Errors
    /// Where the source's remote does not parse, or there is no such database.
    pub fn replicate(&self, database: &str, source: Option<Source>, tls: Option<Tls>) -> Result<(), Error> {
        let unknown = || Error::Unknown { kind: "database", name: database.to_string() };
        let follower = match source {
            None => None,
            Some(source) => {
                let config = Config::new(&source.remote, database)?.leader_only(false);
                let config = source.options.apply(config.everything_but(source.exclude.clone()).tls(tls));
                let state = Arc::new(Mutex::new(SyncState::Connecting));
                let follower = Follower {
                    inner: Arc::downgrade(&self.0),
                    name: database.to_string(),
                    keep: Arc::new(source.exclude),
                    state: state.clone(),
                };
                Some((follower.run(config), state))
            }
        };
        {
            let mut databases = self.0.databases();
            let db = databases.get_mut(database).ok_or_else(unknown)?;
            db.backup.store(follower.is_some(), Ordering::Release);
            // It may give up at once, which waits until this is done.
            db.replication = follower.map(|(run, state)| Replication { task: tokio::spawn(run).abort_handle(), state });
        }
        self.reconnect();
        Ok(())
    }

    /// The databases that are backups, and what each does.
    pub fn sync_states(&self) -> BTreeMap<String, SyncState> {
        let databases = self.0.databases();
        let states =
            databases.iter().filter_map(|(n, d)| Some((n.clone(), lock(&d.replication.as_ref()?.state).clone())));
        states.collect()
    }
}

fn requests(inner: &Weak<Inner>, name: &str) -> Option<mpsc::Sender<Request>> {
    inner.upgrade()?.databases().get(name).map(|d| d.requests.clone())
}

/// Follows the source of a relay and passes transactions on.
async fn relay(inner: Weak<Inner>, name: String, config: Config, mut forwards: mpsc::UnboundedReceiver<Forward>) {
    let (client, mut events) = Client::start(config);
    let (done, mut answered) = mpsc::unbounded_channel();
    let mut in_flight = 0;
    let (mut schema, keep) = (None, Arc::new(BTreeSet::new()));
    loop {
        let Some(db) = requests(&inner, &name) else { return };
        // What a transaction changed comes before its answer: events are looked at first.
        tokio::select! {
            biased;
            event = events.recv() => match event {
                None => return,
                Some(Event::Lock { .. }) => {}
                Some(Event::Disconnected) => connected(&inner, &name, false, None).await,
                Some(Event::Update(u)) => {
                    let other = schema.as_ref() != Some(&u.schema);
                    schema = Some(u.schema.clone());
                    let (reply, taken) = oneshot::channel();
                    let follow = Request::Follow {
                        schema: u.schema.clone(), rows: u.changes, whole: u.reset, keep: keep.clone(), state: u.state, reply,
                    };
                    if db.send(follow).await.is_err() {
                        return;
                    }
                    if let Ok(Err(e)) = taken.await {
                        tracing::error!(target: "ovsdb_relay", "{name}: {e}");
                    }
                    connected(&inner, &name, true, other.then_some(u.schema)).await;
                }
            },
            Some((session, message)) = answered.recv() => {
                in_flight -= 1;
                if let Some(message) = message && db.send(Request::Answered { session, message }).await.is_err() {
                    return;
                }
            }
            Some(f) = forwards.recv(), if client.is_connected() && in_flight < IN_FLIGHT => {
                in_flight += 1;
                let (client, done) = (client.clone(), done.clone());
                tokio::spawn(async move {
                    let message = pass_on(&client, &f).await;
                    // The relay may have been removed meanwhile.
                    let _ = done.send((f.session, message));
                });
            }
        }
    }
}

/// The answer to a transaction that is passed on. Where it is not known whether the source has carried
/// it out, there is none: the client is disconnected, which says just that.
async fn pass_on(client: &Client, f: &Forward) -> Option<serde_json::Value> {
    loop {
        return match client.transact(f.operations.clone()).await {
            Ok(results) => Some(json!({"id": f.id, "result": results, "error": null})),
            Err(ClientError::Refused(e)) => Some(json!({"id": f.id, "error": e})),
            Err(ClientError::NotConnected) => {
                client.connected().await;
                continue;
            }
            Err(_) => {
                f.session.out.close();
                None
            }
        };
    }
}

/// Records whether a relay reaches its source.
async fn connected(inner: &Weak<Inner>, name: &str, is: bool, schema: Option<Arc<DatabaseSchema>>) {
    let Some(inner) = inner.upgrade() else { return };
    let other = schema.is_some();
    let changed = match inner.databases().get_mut(name) {
        None => return,
        Some(db) => {
            if let Some(schema) = schema {
                db.schema = schema;
            }
            let changed = db.connected != is || other;
            (db.connected, db.ready) = (is, db.ready || is);
            changed
        }
    };
    if changed {
        let server = Server(inner);
        if other {
            server.0.disconnect_unaware();
        }
        server.publish().await;
    }
}

/// Follows the active server with one database.
struct Follower {
    inner: Weak<Inner>,
    name: String,
    /// Tables that stay as they are.
    keep: Arc<BTreeSet<String>>,
    state: Arc<Mutex<SyncState>>,
}

impl Follower {
    async fn run(self, config: Config) {
        let (client, mut events) = Client::start(config);
        // What was there before the source was reached is not known to be as it is there.
        let mut whole = true;
        let mut schema = None;
        while let Some(event) = events.recv().await {
            let update = match event {
                Event::Lock { .. } => continue,
                Event::Disconnected => {
                    *lock(&self.state) = SyncState::Connecting;
                    continue;
                }
                Event::Update(update) => update,
            };
            if schema.as_ref() != Some(&update.schema) {
                if let Err(why) = self.check(&client, &update.schema).await {
                    return self.give_up(why);
                }
                schema = Some(update.schema.clone());
            }
            whole |= update.reset;
            let Some(db) = requests(&self.inner, &self.name) else { return };
            let (reply, taken) = oneshot::channel();
            let (rows, keep, state) = (update.changes, self.keep.clone(), update.state);
            let follow = Request::Follow { schema: update.schema, rows, whole, keep, state, reply };
            if db.send(follow).await.is_err() {
                return;
            }
            *lock(&self.state) = match taken.await {
                Ok(Ok(())) => {
                    whole = false;
                    SyncState::Replicating
                }
                Ok(Err(e)) => {
                    tracing::error!(target: "replication", "{}: {e}", self.name);
                    SyncState::Failed(e)
                }
                // The database is being removed.
                Err(_) => return,
            };
        }
    }

    /// Whether the server that was reached can be followed.
    async fn check(&self, client: &Client, theirs: &DatabaseSchema) -> Result<(), String> {
        let Some((id, ours)) = self.inner.upgrade().and_then(|inner| {
            let schema = inner.databases().get(&self.name)?.schema.clone();
            Some((inner.id, schema))
        }) else {
            return Ok(());
        };
        // A server older than 2.9 has no identity; it is none of ours.
        if client.server_id().await.is_ok_and(|their_id| their_id == id) {
            return Err(format!("{}: Self replicating is not allowed", self.name));
        }
        if *theirs == *ours {
            return Ok(());
        }
        let name = &self.name;
        tracing::info!(
            target: "replication",
            "{name}: Schema version mismatch, checking if {name} can still be replicated or not."
        );
        match theirs.first_missing_from(&ours) {
            None => {
                tracing::info!(target: "replication", "{name} can be replicated.");
                Ok(())
            }
            Some(what) => {
                tracing::info!(target: "replication", "{name} cannot be replicated.");
                Err(format!("{name}: the active server has {what} and this backup has not; convert the backup first"))
            }
        }
    }

    /// The database becomes active, as ovsdb-server's does.
    fn give_up(self, why: String) {
        tracing::error!(target: "replication", "{why}");
        let Some(inner) = self.inner.upgrade() else { return };
        let server = Server(inner);
        // It may have been removed meanwhile. This task ends with the replication, whose last act this is.
        let _ = server.replicate(&self.name, None, None);
    }
}
