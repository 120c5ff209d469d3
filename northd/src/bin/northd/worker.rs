//! The loop: events of both databases in, changes out.

use crate::commit::{self, commit, write};
use crate::databases::{Databases, LOCK};
use crate::made_once::{Exchange, Missing};
use crate::progress;
use crate::stopwatch::{self, Stopwatches};
use daemon::{Counter, EngineCounts};
use northd::clock::Clock;
use northd::{Changes, Compiler, Op};
use ovn_schema::{ColumnValue, Rows, Str, Table, nb, sb};
use ovsdb_rs::client::{Client, ClientError, Event, Transaction, Update, probe_interval};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How often to look for what has grown too old.
const AGE_EVERY: Duration = Duration::from_secs(1);

/// The pause after as many as a limit allows have gone (ovn-nb(5), `mac_binding_removal_limit`).
const AGE_AGAIN: Duration = Duration::from_secs(5);

/// After what time without a compile memory is given back, in milliseconds, and the least (ovn-nb(5),
/// `NB_Global:options:northd_trim_timeout`).
const TRIM: u32 = 30_000;
const LEAST_TRIM: u32 = 1000;

static RECOMPUTES: Counter = Counter::new("northd_recompute");
static COMPUTES: Counter = Counter::new("northd_compute");
static UNITS: Counter = Counter::new("northd_units_run");
static TRIMS: Counter = Counter::new("northd_trim");

/// What `coverage/show` counts.
pub static COUNTERS: [&Counter; 8] =
    [&RECOMPUTES, &COMPUTES, &UNITS, &TRIMS, &commit::OPERATIONS, &commit::LEFT_OUT, &commit::SUCCESS, &commit::ERROR];

/// The pause before what could not be written is tried again, which doubles with each failure, and the longest.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(16);

/// After as many failures everything is compared with the databases anew: what is tried again may be what is wrong.
const FAILURES: u32 = 3;

/// How often a compile follows another one at once, for what that one wrote northbound.
const ROUNDS: u8 = 2;

/// A question for the compiler.
pub struct Question {
    arguments: Vec<String>,
    reply: oneshot::Sender<Result<String, String>>,
}

/// What commands see and set.
pub struct State {
    paused: AtomicBool,
    recompute: AtomicBool,
    wake: Notify,
    questions: UnboundedSender<Question>,
    threads: AtomicUsize,
    /// The threads of a compile; none: as many as there are processors.
    pool: Mutex<Option<Arc<ThreadPool>>>,
    /// Compiles, full ones and of what changed.
    pub counts: Arc<EngineCounts>,
    /// How long things take.
    pub watches: Stopwatches,
    /// Units, outputs, the room that outputs have, names of units and of what they look at, entries of indexes and of tables of rows.
    sizes: [AtomicU64; 6],
    /// Compiles that take longer, in milliseconds, are logged.
    pub log_from: AtomicU64,
}

impl State {
    /// The state at the start.
    pub fn new(paused: bool) -> (State, UnboundedReceiver<Question>) {
        let (questions, asked) = unbounded_channel();
        let state = State {
            questions,
            paused: AtomicBool::new(paused),
            recompute: AtomicBool::new(false),
            wake: Notify::new(),
            threads: AtomicUsize::new(1),
            pool: Mutex::default(),
            counts: Arc::default(),
            watches: Stopwatches::default(),
            sizes: Default::default(),
            log_from: AtomicU64::new(500),
        };
        (state, asked)
    }

    /// Where a row came from, or what became of it; the arguments are those of the command `why`.
    pub async fn why(&self, arguments: Vec<String>) -> Result<String, String> {
        let (reply, answer) = oneshot::channel();
        let ended = || "northd is ending".to_string();
        self.questions.send(Question { arguments, reply }).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    /// The number of threads that was asked for; 1 where none was, as in OVN.
    pub fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    /// Lets compiles from now on use so many threads.
    ///
    /// # Errors
    /// Where the system gives no more threads.
    pub fn set_threads(&self, n: usize) -> Result<(), ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().num_threads(n).build()?;
        *self.pool.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(pool));
        self.threads.store(n, Ordering::Relaxed);
        Ok(())
    }

    fn run(&self, compiler: &mut Compiler) -> Changes {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let long = compiler.is_new();
        self.watches.clock.clear();
        let derive = || match pool {
            Some(pool) => pool.install(|| compiler.derive()),
            None => compiler.derive(),
        };
        // Others of the same worker go on meanwhile.
        let changes = if long { tokio::task::block_in_place(derive) } else { derive() };
        UNITS.add(compiler.engine().stats().ran as u64);
        self.note_sizes(compiler);
        changes
    }

    fn note_sizes(&self, compiler: &Compiler) {
        let stats = compiler.engine().stats();
        let (entries, rows) = (compiler.input().index_entries(), compiler.sync().entries());
        let sizes = [stats.units, stats.keys, compiler.engine().outputs().room(), stats.names, entries, rows];
        for (of, n) in self.sizes.iter().zip(sizes) {
            of.store(n as u64, Ordering::Relaxed);
        }
    }

    /// What `memory/show` tells of the compiler.
    pub fn sizes(&self) -> impl Iterator<Item = (String, u64)> {
        let names = ["units", "outputs", "room-for-outputs", "names", "index-entries", "row-entries"];
        let names = names.map(|name| format!("northd-{name}"));
        names.into_iter().zip(self.sizes.iter().map(|n| n.load(Ordering::Relaxed)))
    }

    /// Whether nothing is written.
    pub fn paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Stops or resumes writing.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Asks for a full compile.
    pub fn recompute(&self) {
        self.recompute.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

/// Rows as they are before both databases are complete.
#[derive(Default)]
struct Loading {
    nb: Option<nb::Database>,
    sb: Option<sb::Database>,
}

/// Changes that were derived and could not be written. They go before those that follow.
#[derive(Default)]
struct Unwritten {
    sb: Vec<Op<sb::TableId>>,
    nb: Vec<Op<nb::TableId>>,
    /// How often in a row it failed.
    failures: u32,
    /// Not again before this.
    until: Option<Instant>,
}

impl Unwritten {
    fn is_empty(&self) -> bool {
        self.sb.is_empty() && self.nb.is_empty()
    }

    /// When to try again after one more failure.
    fn back_off(&mut self) {
        let pause = RETRY.saturating_mul(1 << self.failures.min(8)).min(LONGEST_RETRY);
        self.failures += 1;
        self.until = Some(Instant::now() + pause);
    }
}

struct Worker {
    unwritten: Unwritten,
    databases: Databases,
    loading: Loading,
    compiler: Option<Compiler>,
    clock: Arc<Clock>,
    locked: bool,
    in_southbound: i64,
    /// Something came in since counts were last looked at.
    unseen: bool,
    /// What could not be compiled, as far as it has been said.
    said: HashSet<Str>,
    /// When to look for what has grown too old.
    age_at: Instant,
    /// No compile before this.
    rest_until: Instant,
    /// The last compile, unless memory has been given back since.
    active: Option<Instant>,
    /// How often both servers are asked whether they are there.
    probe: Option<Duration>,
}

/// Works until the clients end.
pub async fn run(
    databases: Databases,
    state: std::sync::Arc<State>,
    mut questions: UnboundedReceiver<Question>,
) -> anyhow::Result<()> {
    let mut w = Worker {
        unwritten: Unwritten::default(),
        databases,
        loading: Loading::default(),
        compiler: None,
        clock: state.watches.clock.clone(),
        locked: false,
        in_southbound: -1,
        unseen: true,
        said: HashSet::new(),
        age_at: Instant::now(),
        rest_until: Instant::now(),
        active: None,
        probe: probe_interval(None),
    };
    let mut asked = false;
    loop {
        let retry = w.unwritten.until;
        if asked == state.paused() {
            asked = !asked;
            if asked {
                w.databases.sb.lock(LOCK);
            } else {
                w.databases.sb.unlock(LOCK);
                w.locked = false;
            }
        }
        let trim_at = w.trim_at();
        let waits = w.has_changes() || w.counts_wait();
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(w.rest_until), if waits && retry.is_none() && w.locked && !state.paused() => {}
            Some(event) = w.databases.nb_events.recv() => w.nb_event(event),
            Some(event) = w.databases.sb_events.recv() => w.sb_event(event),
            () = state.wake.notified() => {}
            Some(question) = questions.recv() => {
                w.answer(question);
                continue;
            }
            () = tokio::time::sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {}
            () = tokio::time::sleep_until(w.age_at) => {}
            () = tokio::time::sleep_until(trim_at), if w.active.is_some() => {
                w.trim(&state);
                continue;
            }
        }
        w.drain();
        let aged = w.age_at <= Instant::now();
        if aged {
            w.age_at = Instant::now() + AGE_EVERY;
        }
        if state.paused() || !w.locked {
            continue;
        }
        if aged {
            let new = w.compiler.as_ref().is_some_and(Compiler::is_new);
            let start = Instant::now();
            if !new && let Err(e) = w.age().await {
                tracing::warn!(target: "northd", "what has grown old stays: {e}");
            }
            state.watches.add(stopwatch::AGEING, start.elapsed());
            if !(new || retry.is_some() || w.has_changes() || state.recompute.load(Ordering::Relaxed)) {
                continue;
            }
        }
        if Instant::now() < w.rest_until.max(w.unwritten.until.unwrap_or(w.rest_until)) {
            continue;
        }
        let start = Instant::now();
        let full = state.recompute.swap(false, Ordering::Relaxed) || w.compiler.as_ref().is_some_and(Compiler::is_new);
        state.counts.count(full);
        if full { &RECOMPUTES } else { &COMPUTES }.inc();
        match w.work(full, ROUNDS, &state).await {
            Ok(()) => w.unwritten = Unwritten::default(),
            Err(e) => {
                tracing::warn!(target: "northd", "{e}; trying again");
                w.unwritten.back_off();
                if full || w.unwritten.failures.is_multiple_of(FAILURES) {
                    w.start_anew();
                }
            }
        }
        state.watches.add(stopwatch::LOOP, start.elapsed());
        w.active = Some(Instant::now());
        w.rest(start.elapsed());
    }
}

impl Worker {
    fn drain(&mut self) {
        while let Ok(event) = self.databases.nb_events.try_recv() {
            self.nb_event(event);
        }
        while let Ok(event) = self.databases.sb_events.try_recv() {
            self.sb_event(event);
        }
        if self.compiler.is_none()
            && let (Some(_), Some(_)) = (&self.loading.nb, &self.loading.sb)
        {
            let (nb, sb) = (self.loading.nb.take(), self.loading.sb.take());
            let (nb, sb) = (nb.unwrap_or_default(), sb.unwrap_or_default());
            self.compiler = Some(Compiler::measured(nb, sb, self.clock.clone()));
        }
    }

    /// Both databases anew, as one of them has to be read again from nothing.
    fn unload(&mut self) {
        if let Some(c) = self.compiler.take() {
            let (nb, sb) = c.into_databases();
            (self.loading.nb, self.loading.sb) = (Some(nb), Some(sb));
        }
    }

    fn nb_event(&mut self, event: Event) {
        let Event::Update(update) = event else { return };
        self.unseen = true;
        if update.reset {
            self.unload();
            self.loading.nb = Some(nb::Database::default());
        }
        match (&mut self.compiler, &mut self.loading.nb) {
            (Some(c), _) => c.change_nb(|db| apply_nb(db, &update)),
            (None, Some(db)) => {
                apply_nb(db, &update);
            }
            (None, None) => {}
        }
    }

    fn sb_event(&mut self, event: Event) {
        match event {
            Event::Lock { name, owned } if name == LOCK => {
                self.locked = owned;
                let text = if owned {
                    "lock acquired. This ovn-northd instance is now active."
                } else {
                    "lock lost. This ovn-northd instance is now on standby."
                };
                tracing::info!(target: "ovn_northd", "ovn-northd {text}");
                self.unwritten.until = None;
                // What others wrote in the meantime was told. What was not written may not hold any more.
                if owned && !self.unwritten.is_empty() {
                    self.start_anew();
                }
            }
            Event::Update(update) => {
                self.unseen = true;
                if update.reset {
                    self.unload();
                    self.loading.sb = Some(sb::Database::default());
                }
                match (&mut self.compiler, &mut self.loading.sb) {
                    (Some(c), _) => c.change_sb(|db| apply_sb(db, &update)),
                    (None, Some(db)) => {
                        apply_sb(db, &update);
                    }
                    (None, None) => {}
                }
            }
            _ => {}
        }
    }

    /// Has everything compared with the databases.
    fn start_anew(&mut self) {
        self.unwritten.sb.clear();
        self.unwritten.nb.clear();
        if let Some(c) = &mut self.compiler {
            c.restart();
        }
    }

    /// Keeps changes that could not be written: they are derived only once.
    fn keep(&mut self, mut changes: Changes, e: ClientError) -> ClientError {
        if let Some(compiler) = &self.compiler {
            changes.sb.extend(changes.flows.iter().filter_map(compiler.rows_of_flows()));
        }
        self.unwritten.sb = changes.sb;
        self.unwritten.nb = changes.nb;
        e
    }

    /// Puts what could not be written before what is to be written. A transaction whose answer was lost may have been
    /// carried out; then its rows are there.
    fn take_up(&mut self, changes: &mut Changes) {
        fn before<T: commit::TableName>(client: &Client, unwritten: &mut Vec<Op<T>>, ops: &mut Vec<Op<T>>) {
            let there = |op: &Op<T>| match op {
                Op::Insert(t, u, _) => client.replica(|r| r.row(t.table(), *u).is_some()),
                _ => false,
            };
            let mut all = std::mem::take(unwritten);
            all.retain(|op| !there(op));
            all.append(ops);
            *ops = all;
        }
        before(&self.databases.sb, &mut self.unwritten.sb, &mut changes.sb);
        before(&self.databases.nb, &mut self.unwritten.nb, &mut changes.nb);
    }

    /// Compiles and writes; with `rounds` more of that while what it writes northbound (dynamic addresses) leads to more
    /// southbound, and only then says that the southbound database has all.
    async fn work(&mut self, full: bool, rounds: u8, state: &State) -> Result<(), ClientError> {
        let Some(compiler) = &mut self.compiler else { return Ok(()) };
        let missing = Missing::of(compiler.input());
        if !missing.is_empty() {
            commit(&self.databases.nb, missing.nb, None).await?;
            if let Some(Exchange { row, gone, new }) = missing.options {
                let schema = self.databases.nb.schema().ok_or(ClientError::NotConnected)?;
                let mut transaction = Transaction::new(schema);
                transaction.exchange("NB_Global", row, "options", &gone.to_datum(), &new.to_datum());
                self.databases.nb.commit(transaction).await?;
            }
            commit(&self.databases.sb, missing.sb, Some(LOCK)).await?;
            self.drain();
            return Box::pin(self.work(full, rounds, state)).await;
        }
        let probe = progress::option(compiler.input(), "northd_probe_interval");
        let probe = probe_interval(probe.as_deref());
        if std::mem::replace(&mut self.probe, probe) != probe {
            self.databases.nb.set_probe(probe);
            self.databases.sb.set_probe(probe);
        }
        if full {
            compiler.restart();
        }
        if compiler.wants_flows() {
            let flows = flows(&self.databases.sb).await?;
            self.drain();
            let Some(compiler) = &mut self.compiler else { return Ok(()) };
            compiler.load_flows(flows);
        }
        let Some(compiler) = &mut self.compiler else { return Ok(()) };
        let start = Instant::now();
        let mut changes = state.run(compiler);
        compiler.forget_flows();
        let took = start.elapsed();
        state.watches.compiled(full, took);
        if took > Duration::from_millis(state.log_from.load(Ordering::Relaxed)) {
            let how = if full { "recompute" } else { "compute" };
            tracing::info!(target: "inc_proc_eng", "node: northd, {how} took {}ms", took.as_millis());
        }
        self.say(full, &mut changes);
        self.take_up(&mut changes);
        let Some(compiler) = &self.compiler else { return Ok(()) };
        let settled = changes.nb.is_empty() || rounds == 0;
        changes.sb.extend(progress::down(compiler.input()).filter(|_| settled));
        let nb_cfg = progress::globals(compiler.input()).map_or(0, |((_, nb), _)| nb.nb_cfg);
        let start = Instant::now();
        let make = compiler.rows_of_flows();
        let written = write(&self.databases.sb, &mut changes.sb, &mut changes.flows, make, Some(LOCK)).await;
        written.map_err(|e| self.keep(std::mem::take(&mut changes), e))?;
        state.watches.add(stopwatch::WRITE, start.elapsed());
        let none = |_: &()| -> Option<Op<nb::TableId>> { None };
        let written = write(&self.databases.nb, &mut changes.nb, &mut Vec::new(), none, None).await;
        (changes.sb, changes.flows) = Default::default();
        written.map_err(|e| self.keep(changes, e))?;
        self.drain();
        if !settled {
            return Box::pin(self.work(false, rounds - 1, state)).await;
        }
        self.in_southbound = nb_cfg;
        if let Some(compiler) = &self.compiler {
            let op = progress::up(compiler.input(), self.in_southbound);
            commit(&self.databases.nb, op.into_iter().collect(), None).await?;
        }
        self.drain();
        Ok(())
    }

    /// Logs what could not be compiled. A compile from nothing finds all of it again, and only what is new is said.
    fn say(&mut self, full: bool, changes: &mut Changes) {
        for text in changes.mended.drain(..) {
            self.said.remove(&text);
        }
        let before = if full { std::mem::take(&mut self.said) } else { HashSet::new() };
        for text in changes.diagnostics.drain(..) {
            if !before.contains(&text) {
                tracing::warn!(target: "northd", kind = daemon::kind(&text), "{text}");
            }
            self.said.insert(text);
        }
    }

    /// Lets as much time pass before the next compile as the last one took, up to `NB_Global:options:
    /// northd-backoff-interval-ms`.
    fn rest(&mut self, spent: Duration) {
        let most: u64 = self.option("northd-backoff-interval-ms").unwrap_or(0);
        self.rest_until = Instant::now() + spent.min(Duration::from_millis(most));
    }

    fn option<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.compiler.as_ref().and_then(|c| progress::option(c.input(), key)?.parse().ok())
    }

    /// When memory is to be given back.
    fn trim_at(&self) -> Instant {
        let wanted: u32 = self.option("northd_trim_timeout").unwrap_or(TRIM).max(LEAST_TRIM);
        self.active.unwrap_or_else(Instant::now) + Duration::from_millis(wanted.into())
    }

    /// Gives back the room that tables have and do not use.
    fn trim(&mut self, state: &State) {
        let Some(active) = self.active.take() else { return };
        let ago = active.elapsed().as_millis();
        tracing::info!(target: "memory_trim", "Detected inactivity (last active {ago} ms ago): trimming memory");
        TRIMS.inc();
        if let Some(compiler) = &mut self.compiler {
            compiler.trim();
            state.note_sizes(compiler);
        }
        self.said.shrink_to_fit();
    }

    /// Deletes what has grown too old; where a limit keeps more of it, goes on later.
    async fn age(&mut self) -> Result<(), ClientError> {
        let Some(compiler) = &self.compiler else { return Ok(()) };
        let (ops, more) = northd::ageing::expired(compiler.input(), progress::now());
        if more {
            self.age_at = Instant::now() + AGE_AGAIN;
        }
        commit(&self.databases.sb, ops, Some(LOCK)).await?;
        self.drain();
        Ok(())
    }

    fn answer(&self, question: Question) {
        let row = question.arguments.last().map_or("", |r| r);
        let table = question.arguments.first().filter(|_| question.arguments.len() > 1);
        let answer = match self.compiler.as_ref().filter(|c| !c.is_new()) {
            Some(compiler) => compiler.why(table.map(String::as_str), row),
            None => {
                Err("this northd has compiled nothing: it is on standby, paused, or waits for its databases".into())
            }
        };
        // Whoever asked may have gone.
        let _ = question.reply.send(answer);
    }

    /// Whether a count by which clients wait is to be passed on. Such a change concerns no unit; it may have come in while
    /// something else was written, and then no event tells of it any more.
    fn counts_wait(&mut self) -> bool {
        let Some(compiler) = self.compiler.as_ref().filter(|c| !c.is_new()) else { return false };
        if !std::mem::take(&mut self.unseen) {
            return false;
        }
        let input = compiler.input();
        self.unseen = progress::down(input).is_some() || progress::up(input, self.in_southbound).is_some();
        self.unseen
    }

    /// Whether what came in meanwhile waits for a compile.
    fn has_changes(&self) -> bool {
        self.compiler.as_ref().is_some_and(Compiler::has_changes)
    }
}

fn apply_nb(db: &mut nb::Database, update: &Update) -> Vec<nb::AnyChange> {
    let mut out = Vec::with_capacity(update.changes.len());
    for c in &update.changes {
        let Ok(schema) = update.schema.table(&c.table) else { continue };
        match db.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
            Ok(change) => out.extend(change),
            Err(e) => tracing::error!(target: "northd", "northbound {} {}: {e}", c.table, c.uuid),
        }
    }
    out
}

/// Flows are not replicated but for their names: what they say is read when all of them are compared, and after that is what was
/// written. A change of one that was not written tells that somebody else did it.
fn apply_sb(db: &mut sb::Database, update: &Update) -> Vec<sb::AnyChange> {
    let mut out = Vec::with_capacity(update.changes.len());
    for c in &update.changes {
        if &*c.table == sb::TableId::LogicalFlow.name() {
            out.push(sb::AnyChange::LogicalFlow(ovn_schema::Change { uuid: c.uuid, old: None, new: None }));
            continue;
        }
        let Ok(schema) = update.schema.table(&c.table) else { continue };
        match db.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
            Ok(change) => out.extend(change),
            Err(e) => tracing::error!(target: "northd", "southbound {} {}: {e}", c.table, c.uuid),
        }
    }
    out
}

/// The flows that the southbound database has.
async fn flows(client: &Client) -> Result<Rows<sb::LogicalFlow>, ClientError> {
    let table = sb::TableId::LogicalFlow.name();
    let schema = client.schema().ok_or(ClientError::NotConnected)?;
    let mut flows = Rows::default();
    let Ok(schema) = schema.table(table) else { return Ok(flows) };
    let take = |uuid, row: ovsdb_rs::Row| match sb::LogicalFlow::from_row(&row, schema) {
        Ok(flow) => {
            flows.insert(uuid, Arc::new(flow));
        }
        Err(e) => tracing::error!(target: "northd", "southbound {table} {uuid}: {e}"),
    };
    client.every_row(table, take).await?;
    Ok(flows)
}
