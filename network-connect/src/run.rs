//! The loop: resources and changes of the northbound database in; annotations, conditions and transactions out.

use crate::manager::{Decision, READY, Settings, decide};
use crate::resource::connect::{ROUTER_KEY, SUBNETS};
use crate::resource::{Changed, ClusterNetworkConnect, Condition};
use crate::source::{Event, Feed, Request};
use crate::zone::northbound::{Effect, TABLES};
use crate::zone::plan::Plan;
use crate::zone::rows::Key;
use crate::zone::{Input, Read};
use daemon::{Counter, Daemon};
use ovn_schema::{Str, nb};
use ovsdb_rs::client::writer::{Done, Writer};
use ovsdb_rs::client::{Client, Config, Event as DbEvent, TableRequest, Update};
use ovsdb_rs::tls::Tls;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Notify, mpsc, oneshot};

/// The lock in the northbound database: one daemon writes.
pub const LOCK: &str = "network_connect";

/// How long what was asked for is waited for before it is asked for again.
const AGAIN: Duration = Duration::from_secs(10);

/// The most rows of one transaction.
const ROWS: usize = 2000;

/// How many problems a condition lists.
const LISTED: usize = 3;

/// Units of the derivation that ran.
pub static UNITS: Counter = Counter::new("network_connect_units_run");
/// Transactions that were sent.
pub static TRANSACTIONS: Counter = Counter::new("network_connect_transactions");
/// Decisions of the cluster manager's half.
pub static DECISIONS: Counter = Counter::new("network_connect_decisions");

/// What to do, and where.
pub struct Setup {
    /// Decide, where this process leads.
    pub manager: bool,
    /// Write the northbound database at this remote.
    pub northbound: Option<String>,
    /// TLS to the database.
    pub tls: Option<Tls>,
    /// The zone's name.
    pub zone: String,
    /// What the cluster has besides its resources.
    pub settings: Settings,
}

/// What commands of the control socket show and ask for.
#[derive(Debug, Default)]
pub struct Status {
    /// The source has told all.
    pub synced: bool,
    /// This process decides.
    pub leader: bool,
    /// The northbound database is connected.
    pub connected: bool,
    /// This process writes the northbound database.
    pub active: bool,
    /// It does nothing until it is resumed.
    pub paused: bool,
    /// How much there is.
    pub sizes: Vec<(&'static str, usize)>,
}

/// Somebody asks for a text that is made for them alone.
#[derive(Debug)]
pub struct Question {
    /// About what.
    pub about: About,
    /// Gets the answer.
    pub reply: oneshot::Sender<String>,
}

/// What questions are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// What people should know.
    Problems,
    /// Each resource, in a few lines.
    Connects,
}

/// What the control socket shares with the loop.
pub type Shared = Arc<Mutex<Status>>;

/// The northbound database.
struct Link {
    client: Client,
    events: mpsc::UnboundedReceiver<DbEvent>,
    /// The copy is complete.
    ready: bool,
    active: bool,
    writer: Writer<Key>,
    plan: Plan,
    reads: Vec<Read>,
}

/// The daemon's state.
pub struct Connector {
    feed: Feed,
    link: Option<Link>,
    ended: mpsc::UnboundedReceiver<Done<Key>>,
    tell: mpsc::UnboundedSender<Done<Key>>,
    input: Input,
    manager: bool,
    settings: Settings,
    synced: bool,
    leader: bool,
    paused: bool,
    /// Something that decisions depend on changed.
    undecided: bool,
    /// Something changed since resources and conditions were compared with what they should be.
    unchecked: bool,
    /// When that was compared last: what was asked for may have to be asked for again.
    checked: Instant,
    decisions: BTreeMap<Str, Decision>,
    /// What was asked for and has not come back yet.
    asked: HashMap<(String, String), (String, Instant)>,
    shared: Shared,
    questions: mpsc::UnboundedReceiver<Question>,
}

impl Connector {
    /// Connects to the database.
    ///
    /// # Errors
    /// Where the remote does not parse.
    pub fn start(
        setup: Setup,
        feed: Feed,
        shared: Shared,
        questions: mpsc::UnboundedReceiver<Question>,
    ) -> Result<Connector, ovsdb_rs::Error> {
        let (tell, ended) = mpsc::unbounded_channel();
        let link = match &setup.northbound {
            Some(remote) => {
                let config = Config::new(remote, nb::Database::NAME)?.tls(setup.tls.clone());
                let config = TABLES
                    .iter()
                    .fold(config, |c, (table, columns)| c.table(table, TableRequest::columns(columns.iter().copied())));
                let (client, events) = Client::start(config);
                client.lock(LOCK);
                let (writer, plan, reads) = (Writer::new(ROWS), Plan::default(), Vec::new());
                Some(Link { client, events, ready: false, active: false, writer, plan, reads })
            }
            None => None,
        };
        let input = Input { zone: setup.zone, services: setup.settings.services.clone(), ..Input::default() };
        Ok(Connector {
            feed,
            link,
            ended,
            tell,
            input,
            manager: setup.manager,
            settings: setup.settings,
            synced: false,
            leader: false,
            paused: false,
            undecided: true,
            unchecked: true,
            checked: Instant::now(),
            decisions: BTreeMap::new(),
            asked: HashMap::new(),
            shared,
            questions,
        })
    }

    /// Runs until the daemon is to exit.
    pub async fn run(&mut self, daemon: &Daemon, wake: &Notify) {
        loop {
            tokio::select! {
                () = daemon.exiting() => return,
                Some(e) = self.feed.events.recv() => self.told(e),
                Some(e) = database_event(&mut self.link) => self.database(e),
                Some(done) = self.ended.recv() => self.drain(vec![done]),
                Some(question) = self.questions.recv() => {
                    // Who asked may be gone.
                    let _ = question.reply.send(self.answer(question.about));
                    continue;
                }
                () = wake.notified() => self.unchecked = true,
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            self.drain(Vec::new());
            self.check_pause();
            if self.synced && !self.paused {
                self.unchecked |= self.checked.elapsed() >= AGAIN;
                self.manage();
                self.write();
                self.report();
            }
            self.publish();
        }
    }

    /// Takes in all that is there. A transaction's end comes behind the changes that it made: those go first, or its rows
    /// would be looked for and written twice.
    fn drain(&mut self, mut ended: Vec<Done<Key>>) {
        while let Ok(done) = self.ended.try_recv() {
            ended.push(done);
        }
        while let Some(Ok(e)) = self.link.as_mut().map(|l| l.events.try_recv()) {
            self.database(e);
        }
        while let Ok(e) = self.feed.events.try_recv() {
            self.told(e);
        }
        if let Some(link) = &mut self.link {
            self.unchecked |= !ended.is_empty();
            for done in ended {
                link.writer.finished(nb::Database::NAME, done).again.into_iter().for_each(|key| link.plan.touch(key));
            }
        }
    }

    fn told(&mut self, e: Event) {
        match e {
            Event::Object(name, object) => {
                let changed = self.input.resources.apply(&name, object.as_ref());
                self.unchecked |= !changed.is_empty();
                self.undecided |= changed.iter().any(|c| !matches!(c, Changed::Node(_)));
                if let Some(link) = &mut self.link {
                    link.reads.extend(changed.into_iter().map(Read::Resource));
                }
            }
            Event::Synced => self.synced = true,
            Event::Leader(leader) => {
                self.unchecked = true;
                self.undecided |= leader && !self.leader;
                self.leader = leader;
            }
        }
    }

    fn database(&mut self, e: DbEvent) {
        let Some(link) = &mut self.link else { return };
        self.unchecked = true;
        match e {
            DbEvent::Update(u) => self.update(&u),
            DbEvent::Lock { owned, .. } => {
                if owned && !link.active {
                    tracing::info!("{LOCK} lock acquired in OVN_Northbound: this process writes it");
                    link.plan.touch_all(&self.input);
                }
                link.active = owned;
            }
            DbEvent::Disconnected => link.active = false,
        }
    }

    fn update(&mut self, u: &Update) {
        let Some(link) = &mut self.link else { return };
        if u.reset {
            self.input.nb = Default::default();
            link.plan.restart();
        }
        for c in &u.changes {
            let Ok(schema) = u.schema.table(&c.table) else { continue };
            let applied = self.input.nb.db.apply(&c.table, schema, c.uuid, c.new.as_deref());
            match applied.map(|change| change.map(|change| self.input.nb.changed(&change))) {
                Ok(Some(Effect { reads, keys })) => {
                    link.reads.extend(reads);
                    keys.into_iter().for_each(|key| link.plan.touch(key));
                }
                Ok(None) => {}
                Err(e) => tracing::warn!("OVN_Northbound: row {} of {}: {e}; it is left out", c.uuid, c.table),
            }
        }
        link.ready = true;
        if u.reset {
            link.plan.touch_all(&self.input);
        }
    }

    fn check_pause(&mut self) {
        let wanted = self.shared.lock().unwrap_or_else(PoisonError::into_inner).paused;
        if wanted == std::mem::replace(&mut self.paused, wanted) {
            return;
        }
        if let Some(link) = &mut self.link {
            match wanted {
                true => {
                    link.client.unlock(LOCK);
                    link.active = false;
                }
                false => link.client.lock(LOCK),
            }
        }
    }

    /// Asks the source, unless it was asked for the same just now.
    fn ask(&mut self, what: String, text: String, request: Request) {
        let key = (request.connect().to_string(), what);
        let same = self.asked.get(&key).is_some_and(|(last, at)| *last == text && at.elapsed() < AGAIN);
        if !same {
            self.asked.insert(key, (text, Instant::now()));
            // The source ends with the program.
            let _ = self.feed.requests.send(request);
        }
    }

    /// What was asked for is there: whoever changes it from now on is answered at once.
    fn came_back(&mut self, connect: &str, what: &str) {
        if !self.asked.is_empty() {
            self.asked.remove(&(connect.to_string(), what.to_string()));
        }
    }

    /// The cluster manager's half.
    fn manage(&mut self) {
        if !self.manager || !self.leader {
            return;
        }
        if std::mem::take(&mut self.undecided) {
            DECISIONS.inc();
            let decisions = decide(&self.input.resources, &self.settings);
            let before = std::mem::replace(&mut self.decisions, decisions);
            self.asked.retain(|(connect, _), _| self.input.resources.connect_named(connect).is_some());
            self.unchecked = true;
            for (name, decision) in &self.decisions {
                self.tell_people(name, before.get(name), decision);
            }
        }
        if self.unchecked {
            let decisions = std::mem::take(&mut self.decisions);
            decisions.iter().for_each(|(name, decision)| self.enact(name, decision));
            self.decisions = decisions;
        }
    }

    /// Events for what is new in a decision.
    fn tell_people(&self, name: &Str, before: Option<&Decision>, now: &Decision) {
        let tell = |warning, reason: &str, message: &str| {
            tracing::info!("ClusterNetworkConnect {name}: {reason}: {message}");
            let (connect, reason, message) = (name.to_string(), reason.to_string(), message.to_string());
            let _ = self.feed.requests.send(Request::Event { connect, warning, reason, message });
        };
        for (reason, text) in &now.notes {
            if before.is_none_or(|b| !b.notes.iter().any(|(_, t)| t == text)) {
                tell(true, reason, text);
            }
        }
        let accepted = &now.accepted;
        let known = match before {
            Some(before) => before.accepted.says(accepted),
            // After a start, what the resource says was told.
            None => {
                let connect = self.input.resources.connect_named(name);
                connect.and_then(|c| c.condition(&accepted.kind)).is_some_and(|c| c.says(accepted))
            }
        };
        if !known {
            tell(accepted.status != "True", &accepted.reason, &accepted.message);
        }
    }

    fn enact(&mut self, name: &Str, decision: &Decision) {
        let Some(connect) = self.input.resources.connect_named(name).cloned() else { return };
        for (annotation, text) in [(SUBNETS, &decision.subnets), (ROUTER_KEY, &decision.router_key)] {
            match text {
                Some(text) if connect.meta.annotations.get(annotation) != Some(text) => {
                    let request = Request::Annotate { connect: name.to_string(), annotation, text: text.clone() };
                    self.ask(annotation.to_string(), text.clone(), request);
                }
                _ => self.came_back(name, annotation),
            }
        }
        self.set_condition(&connect, decision.accepted.clone(), Some(decision.word));
    }

    fn set_condition(&mut self, connect: &ClusterNetworkConnect, mut condition: Condition, word: Option<&'static str>) {
        let present = connect.condition(&condition.kind);
        if present.is_some_and(|c| c.says(&condition)) && word.is_none_or(|word| connect.status == word) {
            return self.came_back(&connect.meta.name, &condition.kind);
        }
        let since = present.filter(|c| c.status == condition.status && !c.last_transition_time.is_empty());
        let text = format!("{}|{}|{}|{word:?}", condition.status, condition.reason, condition.message);
        condition.last_transition_time =
            since.map_or_else(|| crate::time::rfc3339(SystemTime::now()), |c| c.last_transition_time.clone());
        let what = condition.kind.clone();
        self.ask(what, text, Request::Condition { connect: connect.meta.name.clone(), condition, word });
    }

    /// The zone's half.
    fn write(&mut self) {
        let Some(link) = &mut self.link else { return };
        if !link.ready || !link.active {
            return;
        }
        let ran = link.plan.derive(&self.input, std::mem::take(&mut link.reads));
        UNITS.add(ran as u64);
        for key in link.writer.unpark() {
            link.plan.touch(key);
            self.unchecked = true;
        }
        if !link.writer.is_free() || !link.client.is_connected() {
            return;
        }
        let Some(schema) = link.client.schema() else { return };
        let operations = link.plan.operations(&self.input.nb, &schema, link.writer.limit());
        if operations.is_empty() {
            return;
        }
        TRANSACTIONS.inc();
        let tell = self.tell.clone();
        link.writer.send(&link.client, operations, Some(LOCK), move |done| {
            // Nobody waits for it at the end of the program.
            let _ = tell.send(done);
        });
    }

    /// The condition of this zone, once all that follows is written.
    fn report(&mut self) {
        if !self.unchecked {
            return;
        }
        self.checked = Instant::now();
        let Some(link) = self.link.as_ref().filter(|link| link.active && link.ready) else {
            self.unchecked = false;
            return;
        };
        if !link.reads.is_empty() || !link.plan.is_settled() || !link.writer.is_idle() {
            return;
        }
        self.unchecked = false;
        let mut conditions = Vec::new();
        for (name, connect) in self.input.resources.connects() {
            let problems: Vec<String> =
                link.plan.problems(name).map(|p| p.to_string()).chain(refused(&link.writer, name)).collect();
            let (status, reason) =
                if problems.is_empty() { ("True", "OVNSetupSucceeded") } else { ("False", "OVNSetupFailed") };
            let mut message = problems.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
            if problems.len() > LISTED {
                message.push_str(&format!("; and {} more", problems.len() - LISTED));
            }
            if problems.is_empty() {
                message = "The connect router and all that belongs to it are in the northbound database".into();
            }
            conditions.push((
                connect.clone(),
                Condition {
                    kind: format!("{READY}{}", self.input.zone),
                    status: status.into(),
                    reason: reason.into(),
                    message,
                    ..Condition::default()
                },
            ));
        }
        for (connect, condition) in conditions {
            self.set_condition(&connect, condition, None);
        }
    }

    /// Shows commands what there is.
    fn publish(&self) {
        let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        (s.synced, s.leader) = (self.synced, self.leader && self.manager);
        if let Some(link) = &self.link {
            (s.connected, s.active) = (link.client.is_connected(), link.active);
            s.sizes = link.plan.sizes().to_vec();
        }
    }

    /// The text that a command asks for.
    fn answer(&self, about: About) -> String {
        let connects = self.input.resources.connects();
        match about {
            About::Connects => connects.map(|(name, c)| shown(name, c)).collect(),
            About::Problems => {
                let mut problems: Vec<String> = self.input.resources.problems().collect();
                for (name, link) in connects.filter_map(|(name, _)| Some((name, self.link.as_ref()?))) {
                    problems.extend(link.plan.problems(name).map(|p| format!("ClusterNetworkConnect {name}: {p}")));
                    problems.extend(refused(&link.writer, name));
                }
                problems.iter().map(|p| format!("{p}\n")).collect()
            }
        }
    }
}

/// What is refused of a resource, and why.
fn refused(writer: &Writer<Key>, connect: &str) -> impl Iterator<Item = String> {
    let of = writer.refused().filter(move |(key, _)| &**key.connect() == connect);
    of.map(|(key, why)| format!("{key} is refused: {why}"))
}

/// A resource, its conditions and its subnets.
fn shown(name: &str, connect: &ClusterNetworkConnect) -> String {
    let mut text = format!("{name}: {}\n", if connect.status.is_empty() { "pending" } else { &connect.status });
    for c in &connect.conditions {
        text.push_str(&format!("  {}={} {}: {}\n", c.kind, c.status, c.reason, c.message));
    }
    for annotation in [ROUTER_KEY, SUBNETS] {
        if let Some(value) = connect.meta.annotations.get(annotation) {
            text.push_str(&format!("  {annotation}: {value}\n"));
        }
    }
    text
}

/// Waits for something to happen in the database, if there is one.
async fn database_event(link: &mut Option<Link>) -> Option<DbEvent> {
    match link {
        Some(link) => link.events.recv().await,
        None => std::future::pending().await,
    }
}
