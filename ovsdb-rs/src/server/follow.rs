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

/// Where a backup gets its databases from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The active server, such as `tcp:192.0.2.1:6641`.
    pub remote: String,
    /// Tables that are not replicated, by database.
    pub exclude: BTreeSet<(String, String)>,
    /// The silence after which the active server is asked for a sign of life; none: never.
    pub probe: Option<Duration>,
    /// TLS for `ssl:` remotes.
    pub tls: Option<Tls>,
}

/// The state of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStatus {
    /// The databases that follow the active server at present.
    pub replicating: BTreeSet<String>,
    /// Why a database does not follow, by database.
    pub errors: BTreeMap<String, String>,
}

/// The backup's tasks; dropping it ends them.
#[derive(Default)]
pub(super) struct Backup {
    tasks: Vec<AbortHandle>,
    status: Arc<Mutex<SyncStatus>>,
}

impl Drop for Backup {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

fn lock(status: &Mutex<SyncStatus>) -> MutexGuard<'_, SyncStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Serves a database that another server owns: changes of clients go there. It is empty until that
    /// server is reached.
    ///
    /// # Errors
    /// Where the remotes do not parse, or a database of this name is being served.
    pub async fn add_relay(&self, name: &str, remotes: &str, tls: Option<Tls>) -> Result<(), Error> {
        let config = Config::new(remotes, name)?.leader_only(false).everything_but(BTreeSet::new()).tls(tls);
        if self.0.databases().contains_key(name) {
            return Err(Error::Constraint(format!("{name}: duplicate database name")));
        }
        let schema = DatabaseSchema { name: name.to_string(), ..DatabaseSchema::default() };
        let (forward, forwards) = mpsc::unbounded_channel();
        self.serve(Database::new(schema), None, super::database::Mode::Relay(forward));
        let task = tokio::spawn(relay(Arc::downgrade(&self.0), name.to_string(), config, forwards));
        if let Some(db) = self.0.databases().get_mut(name) {
            (db.model, db.connected, db.ready) = (Model::Relay, false, false);
            db.follower = Some(task.abort_handle());
            db.path = Some(format!("relay:{name}:{remotes}").into());
        }
        self.publish().await;
        self.0.disconnect_unaware();
        Ok(())
    }

    /// Becomes a backup of another server, or active again. All clients have to come back.
    ///
    /// # Errors
    /// Where the source's remote does not parse.
    pub fn replicate(&self, source: Option<Source>) -> Result<(), Error> {
        let mut backup = Backup::default();
        if let Some(source) = &source {
            for (name, _) in self.databases().into_iter().filter(|(n, _)| n != super::SERVER_DATABASE) {
                let of_this = source.exclude.iter().filter(|(d, _)| *d == name);
                let keep: BTreeSet<String> = of_this.map(|(_, t)| t.clone()).collect();
                let config = Config::new(&source.remote, &name)?.leader_only(false).everything_but(keep.clone());
                let config = config.tls(source.tls.clone()).probe(source.probe);
                let status = backup.status.clone();
                let task = tokio::spawn(replicate(Arc::downgrade(&self.0), name, config, keep, status));
                backup.tasks.push(task.abort_handle());
            }
        }
        self.0.backup.store(source.is_some(), Ordering::Release);
        *self.0.replication.lock().unwrap_or_else(PoisonError::into_inner) = source.map(|_| backup);
        self.reconnect();
        Ok(())
    }

    /// What the server does as a backup; none where it is active.
    pub fn sync_status(&self) -> Option<SyncStatus> {
        let backup = self.0.replication.lock().unwrap_or_else(PoisonError::into_inner);
        backup.as_ref().map(|b| lock(&b.status).clone())
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
                        schema: u.schema.clone(), rows: u.changes, whole: u.reset, keep: keep.clone(), reply,
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
        server.publish().await;
        if other {
            server.0.disconnect_unaware();
        }
    }
}

/// Follows the active server with one database.
async fn replicate(
    inner: Weak<Inner>,
    name: String,
    config: Config,
    keep: BTreeSet<String>,
    status: Arc<Mutex<SyncStatus>>,
) {
    let (_client, mut events) = Client::start(config);
    let keep = Arc::new(keep);
    // What was there before the source was reached is not known to be as it is there.
    let mut whole = true;
    while let Some(event) = events.recv().await {
        match event {
            Event::Lock { .. } => {}
            Event::Disconnected => {
                lock(&status).replicating.remove(&name);
            }
            Event::Update(u) => {
                whole |= u.reset;
                let Some(db) = requests(&inner, &name) else { return };
                let (reply, taken) = oneshot::channel();
                let rows = u.changes;
                let follow = Request::Follow { schema: u.schema, rows, whole, keep: keep.clone(), reply };
                if db.send(follow).await.is_err() {
                    return;
                }
                let mut status = lock_after(taken.await, &status);
                match &mut status {
                    (Ok(()), s) => {
                        whole = false;
                        s.errors.remove(&name);
                        s.replicating.insert(name.clone());
                    }
                    (Err(e), s) => {
                        tracing::error!(target: "replication", "{name}: {e}");
                        s.replicating.remove(&name);
                        s.errors.insert(name.clone(), std::mem::take(e));
                    }
                }
            }
        }
    }
}

type Taken = Result<Result<(), String>, oneshot::error::RecvError>;

fn lock_after(taken: Taken, status: &Mutex<SyncStatus>) -> (Result<(), String>, MutexGuard<'_, SyncStatus>) {
    (taken.unwrap_or_else(|_| Err("the database is being removed".into())), lock(status))
}
