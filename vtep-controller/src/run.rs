//! The loop: events of all databases in, transactions out.

use crate::INTERNAL_VERSION;
use crate::link::{Link, ROWS, SB_TABLES, TOR_TABLES};
use crate::metrics::Service;
use crate::model::{Effect, Input, Read, Southbound, Tor, TorId};
use crate::output::Key;
use crate::plan::{Operations, Plan, lacks};
use daemon::{Counter, Daemon, Metric, Metrics};
use ovn_schema::{Str, sb, vtep};
use ovsdb_rs::client::writer::{Done, assert_lock};
use ovsdb_rs::client::{Client, Event, Update, probe_interval};
use ovsdb_rs::tls::Tls;
use serde_json::Value as Json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The lock that the active controller of a hardware_vtep database holds there.
pub const LOCK: &str = "ovn_controller_vtep";

/// How long the start waits for databases that do not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Units of the derivation that ran.
pub static UNITS: Counter = Counter::new("vtep_units_run");
/// Rows that were written.
pub static WRITTEN: Counter = Counter::new("vtep_operations");
/// Rows that a server refused.
pub static REFUSED: Counter = Counter::new("vtep_rows_refused");

/// What commands of the control socket show.
#[derive(Debug, Default, Clone)]
pub struct Status {
    /// The southbound database is connected.
    pub southbound: bool,
    /// For each hardware_vtep database: its remote, whether it is connected, whether this controller is active there.
    pub tors: Vec<(Str, bool, bool)>,
    /// What people should know.
    pub problems: Vec<String>,
    /// How much there is ([`Plan::sizes`]).
    pub sizes: Vec<(&'static str, usize)>,
}

/// What the control socket shares with the loop.
pub type Shared = Arc<Mutex<Status>>;

/// What to connect to.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The southbound database.
    pub southbound: String,
    /// The databases of the switches.
    pub tors: Vec<String>,
    /// TLS.
    pub tls: Option<Tls>,
    /// Ask for the lock in the databases of the switches.
    pub lock: bool,
}

/// A connection to a switch's database.
struct TorLink {
    link: Link,
    locked: bool,
    /// It was said that another controller has the lock.
    standing_by: bool,
    /// Its version is not the wanted one.
    barred: bool,
    said: Vec<String>,
}

/// Somebody who wants the metrics.
type Question = oneshot::Sender<Vec<Metric>>;

/// The end of a transaction, of a switch's database or (none) of the southbound one.
type Ended = (Option<TorId>, Done<Key>);

/// The controller.
pub struct Controller {
    sb: Link,
    tors: Vec<TorLink>,
    lock: bool,
    input: Input,
    reads: Vec<Read>,
    plan: Plan,
    tls: Option<Tls>,
    since: Instant,
    running: bool,
    mismatch: Option<String>,
    probe: Option<Duration>,
    done_tx: mpsc::UnboundedSender<Ended>,
    done_rx: mpsc::UnboundedReceiver<Ended>,
    asked: mpsc::UnboundedReceiver<Question>,
    shared: Shared,
}

impl Controller {
    /// Connects to all databases.
    ///
    /// # Errors
    /// Where a remote does not parse, or our certificate cannot be read.
    pub fn start(setup: &Setup, shared: Shared, metrics: &Metrics) -> Result<Controller, ovsdb_rs::Error> {
        let sb = Link::start(&setup.southbound, sb::Database::NAME, &SB_TABLES, setup.tls.clone())?;
        let mut tors = Vec::new();
        let mut input = Input::default();
        for (n, remote) in setup.tors.iter().enumerate() {
            let link = Link::start(remote, vtep::Database::NAME, &TOR_TABLES, setup.tls.clone())?;
            if setup.lock {
                link.client.lock(LOCK);
            }
            tors.push(TorLink { link, locked: !setup.lock, standing_by: false, barred: false, said: Vec::new() });
            input.tors.push(Tor::new(TorId(n as u16), remote.as_str().into()));
        }
        let (done_tx, done_rx) = mpsc::unbounded_channel();
        let (ask, asked) = mpsc::unbounded_channel::<Question>();
        metrics.register(move || {
            let (reply, answer) = oneshot::channel();
            let sent = ask.send(reply);
            async move {
                match sent {
                    Ok(()) => answer.await.unwrap_or_default(),
                    Err(_) => Vec::new(),
                }
            }
        });
        Ok(Controller {
            sb,
            plan: Plan::new(tors.len() as u16),
            tls: setup.tls.clone(),
            tors,
            lock: setup.lock,
            input,
            reads: Vec::new(),
            since: Instant::now(),
            running: false,
            mismatch: None,
            probe: probe_interval(None),
            done_tx,
            done_rx,
            asked,
            shared,
        })
    }

    /// Runs until the daemon is to exit.
    pub async fn run(&mut self, daemon: &Daemon) {
        tracing::info!(target: "main", "OVN internal version is : [{INTERNAL_VERSION}]");
        loop {
            tokio::select! {
                () = daemon.exiting() => return,
                () = self.event() => {}
            }
            self.drain();
            self.reconcile();
        }
    }

    /// Waits for something to happen and takes it in.
    async fn event(&mut self) {
        let tor = async {
            let waits =
                self.tors.iter_mut().enumerate().map(|(n, t)| Box::pin(async move { (n, t.link.events.recv().await) }));
            match waits.collect::<Vec<_>>() {
                waits if waits.is_empty() => std::future::pending().await,
                waits => first(waits).await,
            }
        };
        tokio::select! {
            Some(e) = self.sb.events.recv() => self.southbound_event(e),
            (n, Some(e)) = tor => self.tor_event(n, e),
            Some(d) = self.done_rx.recv() => self.finished(d),
            // Whoever asked may have lost interest.
            Some(q) = self.asked.recv() => { let _ = q.send(self.metrics()); }
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }

    /// Whatever is there already belongs to the same look at the world.
    fn drain(&mut self) {
        while let Ok(e) = self.sb.events.try_recv() {
            self.southbound_event(e);
        }
        for n in 0..self.tors.len() {
            while let Some(Ok(e)) = self.tors.get_mut(n).map(|t| t.link.events.try_recv()) {
                self.tor_event(n, e);
            }
        }
        while let Ok(d) = self.done_rx.try_recv() {
            self.finished(d);
        }
    }

    fn take(&mut self, effect: Effect) {
        self.reads.extend(effect.reads);
        for key in effect.keys {
            self.plan.touch(key);
        }
    }

    fn southbound_event(&mut self, event: Event) {
        let Event::Update(u) = event else { return };
        if u.reset {
            self.input.sb = Southbound::default();
            self.plan.restart();
        }
        for c in &u.changes {
            let Ok(schema) = u.schema.table(&c.table) else { continue };
            match self.input.sb.db.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
                Ok(Some(change)) => {
                    let effect = self.input.sb.changed(&change);
                    self.take(effect);
                }
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!(target: "ovsdb_idl", "OVN_Southbound row {} of {}: {e}; it is left out", c.uuid, c.table)
                }
            }
        }
        // The certificate may have come, or become another one, since the start.
        if !std::mem::replace(&mut self.sb.ready, true)
            && let Some(Ok(name)) = self.tls.as_ref().map(Tls::own_name)
        {
            self.plan.rename(name);
        }
    }

    fn tor_event(&mut self, n: usize, event: Event) {
        match event {
            Event::Update(u) => self.tor_update(n, &u),
            Event::Lock { name, owned } if name == LOCK => {
                let Some(tor) = self.tors.get_mut(n) else { return };
                (tor.locked, tor.standing_by) = (owned, !owned);
                let remote = self.input.tors.get(n).map(|t| t.name.clone()).unwrap_or_default();
                let text = if owned {
                    "lock acquired. This instance is now active."
                } else {
                    "lock lost. This instance is now on standby."
                };
                tracing::info!(target: "main", "{remote}: {text}");
                if owned {
                    self.plan.touch_all(&self.input);
                }
            }
            Event::Lock { .. } | Event::Disconnected => {}
        }
    }

    fn tor_update(&mut self, n: usize, u: &Update) {
        let Some(name) = self.input.tors.get(n).map(|t| t.name.clone()) else { return };
        if u.reset {
            if let Some(tor) = self.input.tors.get_mut(n) {
                *tor = Tor::new(TorId(n as u16), name.clone());
            }
            self.plan.restart();
            let said = lacks(&u.schema);
            if let Some(tor) = self.tors.get_mut(n).filter(|t| t.said != said) {
                for text in &said {
                    tracing::info!(target: "main", "{name}: hardware_vtep schema {}: {text}", u.schema.version);
                }
                tor.said = said;
            }
        }
        for c in &u.changes {
            let Ok(schema) = u.schema.table(&c.table) else { continue };
            let Some(tor) = self.input.tors.get_mut(n) else { return };
            match tor.db.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
                Ok(Some(change)) => {
                    let effect = tor.changed(&change);
                    self.take(effect);
                }
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!(target: "ovsdb_idl", "{name}: row {} of {}: {e}; it is left out", c.uuid, c.table)
                }
            }
        }
        if let Some(tor) = self.tors.get_mut(n) {
            tor.link.ready = true;
        }
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        self.tors.iter().map(|t| &t.link).chain([&self.sb])
    }

    fn link(&mut self, tor: Option<TorId>) -> Option<&mut Link> {
        match tor {
            None => Some(&mut self.sb),
            Some(TorId(n)) => self.tors.get_mut(usize::from(n)).map(|t| &mut t.link),
        }
    }

    fn finished(&mut self, (tor, done): Ended) {
        let place = match tor {
            None => "OVN_Southbound".to_string(),
            Some(t) => self.input.tor(t).map_or_else(String::new, |t| t.name.to_string()),
        };
        let Some(link) = self.link(tor) else { return };
        let outcome = link.writer.finished(&place, done);
        WRITTEN.add(outcome.written as u64);
        REFUSED.add(u64::from(outcome.refused));
        outcome.again.into_iter().for_each(|key| self.plan.touch(key));
    }

    /// Refused rows get another chance.
    fn unpark(&mut self) {
        let links = self.tors.iter_mut().map(|t| &mut t.link).chain([&mut self.sb]);
        let due: Vec<Key> = links.flat_map(|link| link.writer.unpark()).collect();
        due.into_iter().for_each(|key| self.plan.touch(key));
    }

    /// Whether a switch's database may be written to as far as the version of northd goes.
    fn check_versions(&mut self) {
        let options = self.input.sb.db.sb_global.values().next().map(|g| &g.options);
        let version = options.and_then(|o| o.get("northd_internal_version")).map_or("", |v| v).to_string();
        let (mut opened, mut barred_any) = (false, false);
        for (tor, t) in self.tors.iter_mut().zip(&self.input.tors) {
            let config = t.db.global.values().next().map(|g| &g.other_config);
            let wanted = config.is_some_and(|c| ovn_schema::options::flag(c, "ovn-match-northd-version"));
            let barred = wanted && version != INTERNAL_VERSION;
            opened |= tor.barred && !barred;
            tor.barred = barred;
            barred_any |= barred;
        }
        if barred_any && self.mismatch.as_ref() != Some(&version) {
            tracing::warn!(target: "main", "controller-vtep version - {INTERNAL_VERSION} mismatch with northd version - {version}");
        }
        self.mismatch = barred_any.then_some(version);
        if opened {
            self.plan.touch_all(&self.input);
        }
    }

    /// The silence after which the southbound server is asked for a sign of life: `ovn-remote-probe-interval` in the
    /// first `Global.other_config` that has it.
    fn check_probe(&mut self) {
        let configs = self.input.tors.iter().flat_map(|t| t.db.global.values());
        let setting = configs.filter_map(|g| g.other_config.get("ovn-remote-probe-interval")).next();
        let probe = probe_interval(setting.map(|s| &**s));
        if self.probe != probe {
            self.probe = probe;
            self.sb.client.set_probe(probe);
        }
    }

    /// Says once that another one is active.
    fn stand_by(&mut self) {
        if self.since.elapsed() < PATIENCE {
            return;
        }
        for (tor, t) in self.tors.iter_mut().zip(&self.input.tors).filter(|(l, _)| l.link.ready && !l.locked) {
            if !std::mem::replace(&mut tor.standing_by, true) {
                tracing::info!(target: "main", "{}: another controller has the lock {LOCK}; this instance is on standby (a server without locks needs --no-lock)", t.name);
            }
        }
    }

    fn active(&self) -> Vec<bool> {
        self.tors.iter().map(|t| t.link.ready && t.locked && !t.barred).collect()
    }

    /// Derives what has to be, and writes what is not so.
    fn reconcile(&mut self) {
        if !self.running {
            let all = self.tors.iter().all(|t| t.link.ready);
            let some = self.tors.iter().any(|t| t.link.ready) && self.since.elapsed() > PATIENCE;
            if !self.sb.ready || !(all || some) {
                self.publish();
                return;
            }
            self.running = true;
            self.plan.touch_all(&self.input);
        }
        self.check_versions();
        self.check_probe();
        self.stand_by();
        self.unpark();
        UNITS.add(self.plan.derive(&self.input, std::mem::take(&mut self.reads)) as u64);
        self.plan.say_late(Instant::now());
        let active = self.active();
        if self.sb.can_write()
            && let Some(schema) = self.sb.client.schema()
        {
            let operations = self.plan.southbound(&self.input, &schema, self.sb.writer.limit(), &active);
            self.submit(None, operations);
        }
        for n in 0..self.tors.len() {
            let Some(link) = self.tors.get(n).map(|t| &t.link) else { continue };
            if active.get(n) != Some(&true) || !link.can_write() {
                continue;
            }
            let Some(schema) = link.client.schema() else { continue };
            let id = TorId(n as u16);
            let operations = self.plan.tor(&self.input, id, &schema, link.writer.limit());
            self.submit(Some(id), operations);
        }
        self.publish();
    }

    fn submit(&mut self, tor: Option<TorId>, operations: Operations) {
        if operations.is_empty() {
            return;
        }
        let (lock, tx) = (self.lock && tor.is_some(), self.done_tx.clone());
        let Some(link) = self.link(tor) else { return };
        link.writer.send(&link.client, operations, lock.then_some(LOCK), move |done| {
            // Nobody waits for it at the end of the program.
            let _ = tx.send((tor, done));
        });
    }

    /// Shows commands what there is.
    fn publish(&self) {
        let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        s.southbound = self.sb.client.is_connected();
        let tors = self.tors.iter().zip(&self.input.tors);
        s.tors = tors.map(|(l, t)| (t.name.clone(), l.link.client.is_connected(), l.locked && !l.barred)).collect();
        s.problems = self.plan.notices().map(|n| n.text.to_string()).collect();
        s.problems.extend(self.links().flat_map(|l| l.writer.problems()));
        s.sizes = self.plan.sizes().to_vec();
    }

    fn metrics(&self) -> Vec<Metric> {
        let problems = self.plan.notices().filter(|n| !n.info).count();
        let parked = self.links().map(|l| l.writer.refused().count()).sum::<usize>();
        let mut out = vec![
            Metric::gauge(
                "isthmus_vtep_southbound_connected",
                "Whether the southbound database is connected (0 or 1).",
            )
            .with(&[], self.sb.client.is_connected().into()),
            Metric::gauge("isthmus_vtep_problems", "Warnings that hold now (debug/problems).")
                .with(&[], problems as u64),
            Metric::gauge("isthmus_vtep_refused_rows", "Rows that a server refused, left alone for a while.")
                .with(&[], parked as u64),
        ];
        let tors = self.input.tors.iter().zip(&self.tors).zip(self.active());
        out.extend(crate::metrics::switches(
            tors.map(|((tor, link), active)| (tor, Service { connected: link.link.client.is_connected(), active })),
        ));
        out
    }

    /// Takes everything of ours out of all databases in which this controller is active.
    pub async fn clean_up(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        let unsettled = |c: &Controller| c.links().any(|link| !link.writer.is_idle() || !link.ready);
        // Also where it has only just started: what is not read yet cannot be taken out.
        while unsettled(self) && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            if tokio::time::timeout(left, self.event()).await.is_err() {
                break;
            }
            self.drain();
        }
        self.plan.derive(&self.input, std::mem::take(&mut self.reads));
        let active = self.active();
        if !active.contains(&true) || !self.sb.ready {
            return;
        }
        if let Some(schema) = self.sb.client.schema() {
            let operations = self.plan.leave_southbound(&self.input, &schema, &active);
            leave("OVN_Southbound", &self.sb.client, operations, false).await;
        }
        for (n, tor) in self.tors.iter().enumerate().filter(|(n, _)| active.get(*n) == Some(&true)) {
            let Some(schema) = tor.link.client.schema() else { continue };
            let operations = self.plan.leave_tor(&self.input, TorId(n as u16), &schema);
            let name = self.input.tors.get(n).map(|t| t.name.to_string()).unwrap_or_default();
            leave(&name, &tor.link.client, operations, self.lock).await;
        }
    }
}

async fn leave(place: &str, client: &Client, operations: Operations, lock: bool) {
    for part in operations.operations().chunks(ROWS) {
        let all = lock.then(|| assert_lock(LOCK)).into_iter().chain(part.iter().cloned()).collect();
        let answer = tokio::time::timeout(Duration::from_secs(10), client.transact(all)).await;
        let failed = match answer {
            Ok(Ok(results)) => {
                results.iter().find(|r| r.get("error").is_some_and(|e| !e.is_null())).map(Json::to_string)
            }
            Ok(Err(e)) => Some(e.to_string()),
            Err(_) => Some("no answer".into()),
        };
        if let Some(why) = failed {
            tracing::warn!(target: "main", "{place}: clean-up is not complete: {why}");
        }
    }
}

/// The first of several futures to be done.
async fn first<T, F: Future<Output = T> + Unpin>(mut futures: Vec<F>) -> T {
    std::future::poll_fn(move |cx| {
        for f in &mut futures {
            if let std::task::Poll::Ready(value) = std::pin::Pin::new(f).poll(cx) {
                return std::task::Poll::Ready(value);
            }
        }
        std::task::Poll::Pending
    })
    .await
}
