//! The loop: events of all databases in, transactions out.

use crate::model::{Effect, Input, Read};
use crate::output::{Key, Place};
use crate::plan::Plan;
use daemon::{Counter, Daemon};
use ovn_schema::{ColumnValue, Str, Uuid, ic_nb, ic_sb, nb, sb};
use ovsdb_rs::Server;
use ovsdb_rs::client::writer::{Done, Writer};
use ovsdb_rs::client::{Client, Config, Event, TableRequest, Transaction, Update, probe_interval};
use ovsdb_rs::tls::Tls;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The lock in the southbound database: one daemon of a zone is active.
pub const LOCK: &str = "ovn_ic";

/// The lock in the interconnection southbound database: one zone writes what belongs to all.
pub const SHARED_LOCK: &str = "ovn_ic_sb";

/// The most rows of one transaction: a row takes some KiB while its transaction is made, and nothing is written faster by
/// larger ones.
const ROWS: usize = 500;

/// How long another zone of the same name may have its lock before it is said.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many units have to have run before unused room is looked for.
const MUCH: usize = 1000;

/// How long after that nothing of the kind must happen.
const REST: Duration = Duration::from_secs(2);

/// Units of the derivation that ran.
pub static UNITS: Counter = Counter::new("ic_units_run");
/// Transactions that were sent.
pub static TRANSACTIONS: Counter = Counter::new("ic_transactions");

/// A database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Db {
    /// OVN_Northbound.
    Nb,
    /// OVN_Southbound.
    Sb,
    /// OVN_IC_Northbound.
    IcNb,
    /// OVN_IC_Southbound.
    IcSb,
}

impl Db {
    const ALL: [Db; 4] = [Db::Nb, Db::Sb, Db::IcNb, Db::IcSb];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Db::Nb => nb::Database::NAME,
            Db::Sb => sb::Database::NAME,
            Db::IcNb => ic_nb::Database::NAME,
            Db::IcSb => ic_sb::Database::NAME,
        }
    }

    /// What is read of it.
    fn tables(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Db::Nb => &[
                ("NB_Global", &["name", "options"]),
                ("Logical_Switch", &["name", "ports", "other_config"]),
                ("Logical_Switch_Port", &["name", "addresses", "options", "type", "up", "peer"]),
                (
                    "Logical_Router",
                    &["name", "static_routes", "ports", "options", "enabled", "load_balancer", "load_balancer_group"],
                ),
                ("Logical_Router_Port", &["mac", "name", "networks", "options"]),
                (
                    "Logical_Router_Static_Route",
                    &["route_table", "ip_prefix", "nexthop", "external_ids", "options", "policy"],
                ),
                ("Load_Balancer", &["vips"]),
                ("Load_Balancer_Group", &["load_balancer"]),
                ("Address_Set", &["name", "addresses", "external_ids"]),
            ],
            Db::Sb => &[
                ("SB_Global", &["options"]),
                ("Chassis", &["name", "hostname", "encaps", "other_config"]),
                ("Encap", &["chassis_name", "type", "ip", "options"]),
                ("Datapath_Binding", &["external_ids", "nb_uuid"]),
                ("Port_Binding", &["datapath", "mac", "options", "logical_port", "type", "chassis", "up"]),
                (
                    "Service_Monitor",
                    &[
                        "chassis_name",
                        "type",
                        "ip",
                        "logical_port",
                        "port",
                        "protocol",
                        "src_ip",
                        "src_mac",
                        "remote",
                        "ic_learned",
                        "status",
                        "options",
                    ],
                ),
                ("Learned_Route", &["datapath", "ip_prefix"]),
                ("Address_Set", &["name", "addresses", "options"]),
            ],
            Db::IcNb => &[
                ("IC_NB_Global", &["nb_ic_cfg", "sb_ic_cfg", "options"]),
                ("Transit_Switch", &["name", "ports"]),
                ("Transit_Switch_Port", &["name", "type", "chassis", "peer", "addresses"]),
                ("Transit_Router", &["name", "ports"]),
                ("Transit_Router_Port", &["name", "mac", "networks", "chassis"]),
            ],
            Db::IcSb => &[
                ("IC_SB_Global", &["nb_ic_cfg"]),
                ("Availability_Zone", &["name", "nb_ic_cfg"]),
                ("Gateway", &["name", "availability_zone", "hostname", "encaps"]),
                ("Encap", &["type", "ip", "options", "gateway_name"]),
                ("Datapath_Binding", &["transit_switch", "type", "nb_ic_uuid", "tunnel_key"]),
                (
                    "Port_Binding",
                    &[
                        "logical_port",
                        "transit_switch",
                        "availability_zone",
                        "tunnel_key",
                        "gateway",
                        "address",
                        "type",
                        "nb_ic_uuid",
                        "external_ids",
                    ],
                ),
                (
                    "Route",
                    &[
                        "transit_switch",
                        "availability_zone",
                        "route_table",
                        "ip_prefix",
                        "nexthop",
                        "origin",
                        "options",
                        "external_ids",
                    ],
                ),
                (
                    "Service_Monitor",
                    &[
                        "type",
                        "ip",
                        "protocol",
                        "port",
                        "logical_port",
                        "src_ip",
                        "src_mac",
                        "status",
                        "target_availability_zone",
                        "source_availability_zone",
                        "options",
                    ],
                ),
                ("Address_Set", &["name", "addresses", "availability_zone"]),
            ],
        }
    }
}

impl From<Place> for Db {
    fn from(place: Place) -> Db {
        match place {
            Place::IcSb | Place::Shared => Db::IcSb,
            Place::Nb => Db::Nb,
            Place::Sb => Db::Sb,
        }
    }
}

/// What to connect to.
#[derive(Clone)]
pub struct Setup {
    /// The remotes.
    pub remotes: HashMap<Db, String>,
    /// TLS.
    pub tls: Option<Tls>,
    /// Serves the interconnection databases in this process.
    pub server: Option<Server>,
}

/// What commands of the control socket show and ask for.
#[derive(Debug, Default)]
pub struct Status {
    /// The databases that are connected.
    pub connected: HashMap<Db, bool>,
    /// This daemon is active in its zone.
    pub active: bool,
    /// It does nothing until it is resumed.
    pub paused: bool,
    /// What people should know.
    pub problems: Vec<String>,
    /// How much there is ([`Plan::sizes`]).
    pub sizes: Vec<(&'static str, usize)>,
}

/// What the control socket shares with the loop.
pub type Shared = Arc<Mutex<Status>>;

/// A connection to a database.
struct Link {
    client: Client,
    events: mpsc::UnboundedReceiver<Event>,
    /// The copy is complete.
    ready: bool,
    probe: Option<Duration>,
}

/// Somebody asks for the routes whose prefix or router begins with a text.
#[derive(Debug)]
pub struct RoutesRequest {
    /// The text; empty: all.
    pub of: String,
    /// Gets the answer.
    pub reply: oneshot::Sender<String>,
}

/// The end of a transaction.
enum Ended {
    /// Of one that brings a place closer to what is wanted.
    Rows(Place, Done<Key>),
    /// Of one about the zone itself or about sequence numbers.
    Zone,
}

/// The daemon's state.
pub struct Interconnector {
    links: HashMap<Db, Link>,
    ended: mpsc::UnboundedReceiver<Ended>,
    tell: mpsc::UnboundedSender<Ended>,
    input: Input,
    reads: Vec<Read>,
    plan: Plan,
    writers: HashMap<Place, Writer<Key>>,
    /// A transaction about the zone itself or about sequence numbers is under way.
    zone_busy: bool,
    zone_not_before: Instant,
    /// The name under which this daemon registered the zone.
    registered: Str,
    /// This daemon has the zone's lock, and the lock of all zones.
    active: bool,
    /// The lock of the zone's name in the interconnection southbound database: which, since when it is waited for.
    name_lock: Option<(String, Instant)>,
    said: bool,
    paused: bool,
    /// When unused room is to be given back; none where little happened.
    trim_at: Option<Instant>,
    shared: Shared,
    requests: mpsc::UnboundedReceiver<RoutesRequest>,
}

impl Interconnector {
    /// Connects to all databases; answers requests while it runs.
    ///
    /// # Errors
    /// Where a remote does not parse.
    pub fn start(
        setup: &Setup,
        shared: Shared,
        requests: mpsc::UnboundedReceiver<RoutesRequest>,
    ) -> Result<Interconnector, ovsdb_rs::Error> {
        let (tell, ended) = mpsc::unbounded_channel();
        let mut links = HashMap::new();
        for db in Db::ALL {
            let remote = setup.remotes.get(&db).map(String::as_str).unwrap_or_default();
            let config = match &setup.server {
                Some(server) if matches!(db, Db::IcNb | Db::IcSb) => Config::in_process(server, db.name()),
                _ => Config::new(remote, db.name())?.tls(setup.tls.clone()),
            };
            let config = db
                .tables()
                .iter()
                .fold(config, |c, (table, columns)| c.table(table, TableRequest::columns(columns.iter().copied())));
            let (client, events) = Client::start(config);
            links.insert(db, Link { client, events, ready: false, probe: probe_interval(None) });
        }
        let mut ic = Interconnector {
            links,
            ended,
            tell,
            input: Input::default(),
            reads: Vec::new(),
            plan: Plan::default(),
            writers: Place::ALL.into_iter().map(|p| (p, Writer::new(ROWS))).collect(),
            zone_busy: false,
            zone_not_before: Instant::now(),
            registered: Str::default(),
            active: false,
            name_lock: None,
            said: false,
            paused: false,
            trim_at: None,
            shared,
            requests,
        };
        ic.ask_for_locks();
        Ok(ic)
    }

    /// Runs until the daemon is to exit.
    pub async fn run(&mut self, daemon: &Daemon, wake: &tokio::sync::Notify) {
        loop {
            let (mut ended, mut request) = (Vec::new(), None);
            tokio::select! {
                () = daemon.exiting() => return,
                (db, e) = event(&mut self.links) => self.take(db, e),
                Some(e) = self.ended.recv() => ended.push(e),
                Some(r) = self.requests.recv() => request = Some(r),
                () = wake.notified() => {}
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            // A transaction's end comes behind the changes that it made: those are taken in before it is, or its rows
            // would be looked for and written twice. Whatever else is there belongs to the same look at the world.
            while let Ok(e) = self.ended.try_recv() {
                ended.push(e);
            }
            for db in Db::ALL {
                while let Some(Ok(e)) = self.links.get_mut(&db).map(|l| l.events.try_recv()) {
                    self.take(db, e);
                }
            }
            ended.into_iter().for_each(|e| self.finished(e));
            self.check_pause();
            self.reconcile();
            self.publish();
            if let Some(r) = request {
                // Whoever hung up needs no answer.
                let _ = r.reply.send(self.routes(&r.of));
            }
        }
    }

    /// The answer of `routes/show`.
    fn routes(&self, of: &str) -> String {
        if self.paused || !self.active {
            return "this daemon is not active in its zone: ask the one that is\n".into();
        }
        crate::show::routes(&self.plan, &self.input, of, |key| {
            let writer = key.place().and_then(|place| self.writers.get(&place));
            writer?.refused().find(|(refused, _)| *refused == key).map(|(_, why)| why.to_string())
        })
    }

    fn ask_for_locks(&mut self) {
        if let Some(l) = self.links.get(&Db::Sb) {
            l.client.lock(LOCK);
        }
        if let Some(l) = self.links.get(&Db::IcSb) {
            tracing::info!(target: "ovn_ic", "Acquiring OVN ISB lock.");
            l.client.lock(SHARED_LOCK);
        }
    }

    /// Paused, it has no lock and writes nothing, but goes on reading.
    fn check_pause(&mut self) {
        let wanted = self.shared.lock().unwrap_or_else(PoisonError::into_inner).paused;
        if wanted == std::mem::replace(&mut self.paused, wanted) {
            return;
        }
        if !wanted {
            self.ask_for_locks();
            return;
        }
        tracing::info!(target: "ovn_ic", "This ovn-ic instance is now paused. Removing IC-SB lock.");
        if let Some(l) = self.links.get(&Db::Sb) {
            l.client.unlock(LOCK);
        }
        if let Some(l) = self.links.get(&Db::IcSb) {
            l.client.unlock(SHARED_LOCK);
        }
        self.release_name();
        self.active = false;
        self.lead(false);
    }

    fn take(&mut self, db: Db, e: Event) {
        match e {
            Event::Update(u) => self.update(db, &u),
            Event::Lock { name, owned } => self.locked(db, &name, owned),
            Event::Disconnected => match db {
                // A lock ends with its connection.
                Db::Sb => self.locked(Db::Sb, LOCK, false),
                Db::IcSb => self.locked(Db::IcSb, SHARED_LOCK, false),
                Db::Nb | Db::IcNb => {}
            },
        }
    }

    fn finished(&mut self, ended: Ended) {
        match ended {
            Ended::Rows(place, done) => {
                let name = Db::from(place).name();
                let again = self.writers.get_mut(&place).map(|w| w.finished(name, done).again).unwrap_or_default();
                again.into_iter().for_each(|key| self.plan.touch(key));
            }
            Ended::Zone => self.zone_busy = false,
        }
    }

    fn locked(&mut self, db: Db, name: &str, owned: bool) {
        if self.paused && owned {
            return;
        }
        match (db, name) {
            (Db::Sb, LOCK) => {
                if owned && !self.active {
                    tracing::info!(target: "ovn_ic", "ovn-ic lock acquired. This ovn-ic instance is now active.");
                    self.plan.touch_all(&self.input);
                } else if !owned && self.active {
                    tracing::info!(target: "ovn_ic", "ovn-ic lock lost. This ovn-ic instance is now on standby.");
                    self.release_name();
                }
                self.active = owned;
            }
            (Db::IcSb, SHARED_LOCK) => self.lead(owned),
            (Db::IcSb, _) if owned && self.name_lock.as_ref().is_some_and(|(n, _)| n == name) => self.said = false,
            _ => {}
        }
    }

    /// This zone writes what belongs to all, or not any more.
    fn lead(&mut self, leader: bool) {
        if std::mem::replace(&mut self.input.leader, leader) == leader {
            return;
        }
        self.reads.push(Read::Leader);
        if leader {
            tracing::info!(target: "ovn_ic", "OVN ISB lock acquired. This ovn-ic instance is now active.");
            self.plan.touch_all(&self.input);
        } else {
            tracing::info!(target: "ovn_ic", "OVN ISB lock lost.");
        }
    }

    fn update(&mut self, db: Db, u: &Update) {
        if u.reset {
            match db {
                Db::Nb => self.input.nb = Default::default(),
                Db::Sb => self.input.sb = Default::default(),
                Db::IcNb => self.input.icnb = Default::default(),
                Db::IcSb => self.input.icsb = Default::default(),
            }
            self.plan.restart();
        }
        for c in &u.changes {
            let Ok(schema) = u.schema.table(&c.table) else { continue };
            let (table, new) = (&*c.table, c.new.as_deref());
            let effect = match db {
                Db::Nb => self.input.nb.db.apply(table, schema, c.uuid, new).map(|c| Some(self.input.nb.changed(&c?))),
                Db::Sb => self.input.sb.db.apply(table, schema, c.uuid, new).map(|c| Some(self.input.sb.changed(&c?))),
                Db::IcNb => {
                    self.input.icnb.db.apply(table, schema, c.uuid, new).map(|c| Some(self.input.icnb.changed(&c?)))
                }
                Db::IcSb => {
                    self.input.icsb.db.apply(table, schema, c.uuid, new).map(|c| Some(self.input.icsb.changed(&c?)))
                }
            };
            match effect {
                Ok(Some(Effect { reads, keys })) => {
                    self.reads.extend(reads);
                    keys.into_iter().for_each(|key| self.plan.touch(key));
                }
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!(target: "ovsdb_idl", "{}: row {} of {table}: {e}; it is left out", db.name(), c.uuid);
                }
            }
        }
        let reset = u.reset;
        if let Some(l) = self.links.get_mut(&db) {
            l.ready = true;
        }
        if reset {
            self.plan.touch_all(&self.input);
        }
    }

    /// Derives what has to be, and writes what is not so.
    fn reconcile(&mut self) {
        self.check_probes();
        let ready = self.links.values().all(|l| l.ready);
        if !ready || !self.active || self.paused {
            return;
        }
        if !self.check_zone() {
            return;
        }
        let ran = self.plan.derive(&self.input, std::mem::take(&mut self.reads));
        UNITS.add(ran as u64);
        if ran >= MUCH {
            self.trim_at = Some(Instant::now() + REST);
        } else if self.trim_at.is_some_and(|at| at <= Instant::now()) {
            self.trim_at = None;
            self.plan.trim();
        }
        for place in Place::ALL {
            self.write(place);
        }
        if !self.zone_busy && self.is_settled() {
            self.sequence();
        }
    }

    fn write(&mut self, place: Place) {
        let (Some(writer), Some(link)) = (self.writers.get_mut(&place), self.links.get(&Db::from(place))) else {
            return;
        };
        writer.unpark().into_iter().for_each(|key| self.plan.touch(key));
        if place == Place::Shared && !self.input.leader || !writer.is_free() || !link.client.is_connected() {
            return;
        }
        let Some(schema) = link.client.schema() else { return };
        let operations = self.plan.operations(place, &self.input, &schema, writer.limit());
        if operations.is_empty() {
            return;
        }
        TRANSACTIONS.inc();
        let tell = self.tell.clone();
        let lock = (place == Place::Shared).then_some(SHARED_LOCK);
        writer.send(&link.client, operations, lock, move |done| {
            // Nobody waits for it at the end of the program.
            let _ = tell.send(Ended::Rows(place, done));
        });
    }

    /// Whether all that follows from the databases is written.
    fn is_settled(&self) -> bool {
        let settled = |place: Place| {
            let idle = self.writers.get(&place).is_none_or(Writer::is_idle);
            idle && (self.plan.is_settled(place) || place == Place::Shared && !self.input.leader)
        };
        self.reads.is_empty() && Place::ALL.into_iter().all(settled)
    }

    /// Registers the zone under its name; tells whether it is registered.
    fn check_zone(&mut self) -> bool {
        let name = self.input.zone_name();
        let moved = !self.registered.is_empty() && self.registered != name;
        let old = self.input.icsb.zone(&self.registered).map(|(id, _)| id).filter(|_| moved);
        if self.zone_busy || Instant::now() < self.zone_not_before {
            return !moved && !name.is_empty() && self.input.icsb.zone(&name).is_some();
        }
        if !self.check_name_lock(&name) {
            return false;
        }
        if let Some(id) = old {
            match name.is_empty() {
                true => {
                    tracing::info!(target: "ovn_ic", "the zone {} has no name any more; it leaves", self.registered)
                }
                false => tracing::info!(target: "ovn_ic", "the zone {} is {name} from now on", self.registered),
            }
            self.zone_transaction(Db::IcSb, |txn| match name.is_empty() {
                true => txn.delete("Availability_Zone", id),
                false => txn.update("Availability_Zone", id, [("name", name.to_datum())]),
            });
            self.registered = name;
            return false;
        }
        self.registered = name.clone();
        if name.is_empty() {
            return false;
        }
        if self.input.icsb.zone(&name).is_none() {
            tracing::info!(target: "ovn_ic", "Register AZ {name} to interconnection DB.");
            self.zone_transaction(Db::IcSb, |txn| {
                txn.comment(&format!("AZ {name}"));
                txn.insert("Availability_Zone", [("name", name.to_datum())]);
            });
            return false;
        }
        true
    }

    /// Each name of a zone has a lock: two deployments of one name would take each other's rows away. Tells whether this
    /// one may go on.
    fn check_name_lock(&mut self, name: &str) -> bool {
        let Some(link) = self.links.get(&Db::IcSb) else { return false };
        let lock: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let lock = format!("ovn_ic_az_{lock}");
        if self.name_lock.as_ref().is_none_or(|(now, _)| *now != lock) {
            if let Some((old, _)) = self.name_lock.take() {
                link.client.unlock(&old);
            }
            link.client.lock(&lock);
            (self.name_lock, self.said) = (Some((lock.clone(), Instant::now())), false);
        }
        if link.client.has_lock(&lock) {
            return true;
        }
        let late = self.name_lock.as_ref().is_some_and(|(_, since)| since.elapsed() > PATIENCE);
        if late && link.client.is_connected() && !std::mem::replace(&mut self.said, true) {
            tracing::warn!(target: "ovn_ic", "another deployment uses the name {name} for its zone, and this one waits: set NB_Global:name of one of them to another name");
        }
        false
    }

    /// Whoever is active now in this zone needs the name.
    fn release_name(&mut self) {
        if let (Some((name, _)), Some(l)) = (self.name_lock.take(), self.links.get(&Db::IcSb)) {
            l.client.unlock(&name);
        }
    }

    /// Sends a transaction about the zone itself; the next waits for its end.
    fn zone_transaction(&mut self, db: Db, build: impl FnOnce(&mut Transaction)) {
        let Some(link) = self.links.get(&db).filter(|l| l.client.is_connected()) else { return };
        let Some(schema) = link.client.schema() else { return };
        let mut txn = Transaction::new(schema);
        build(&mut txn);
        if txn.is_empty() {
            return;
        }
        self.zone_busy = true;
        self.zone_not_before = Instant::now() + Duration::from_millis(100);
        let (client, tell, name) = (link.client.clone(), self.tell.clone(), db.name());
        tokio::spawn(async move {
            let result = client.transact(txn.into_operations()).await;
            let failed = match &result {
                Ok(results) => {
                    results.iter().find(|r| r.get("error").is_some_and(|e| !e.is_null())).map(|r| r.to_string())
                }
                Err(e) => Some(e.to_string()),
            };
            if let Some(why) = failed {
                // Zones write the same rows, and one of them comes late: what is missing is seen and written again.
                tracing::debug!(target: "ovn_ic", "{name}: {why}");
            }
            let _ = tell.send(Ended::Zone);
        });
    }

    /// Sequence numbers (ovn-ic-nb(5), `IC_NB_Global`): this zone tells that it has written what follows from
    /// `nb_ic_cfg`; when all have, everybody is told.
    fn sequence(&mut self) {
        let Some(global) = self.input.icnb.global() else {
            self.zone_transaction(Db::IcNb, |txn| {
                txn.insert("IC_NB_Global", []);
            });
            return;
        };
        let (wanted, told) = (global.nb_ic_cfg, global.sb_ic_cfg);
        let Some((zone, row)) = self.input.icsb.zone(&self.registered) else { return };
        if row.nb_ic_cfg != wanted {
            let value = [("nb_ic_cfg", wanted.to_datum())];
            self.zone_transaction(Db::IcSb, |txn| txn.update("Availability_Zone", zone, value));
            return;
        }
        if self.input.icsb.db.availability_zone.values().any(|z| z.nb_ic_cfg != wanted) {
            return;
        }
        match self.input.icsb.global() {
            None => self.zone_transaction(Db::IcSb, |txn| {
                txn.insert("IC_SB_Global", []);
            }),
            Some((id, g)) if g.nb_ic_cfg != wanted => {
                let value = [("nb_ic_cfg", wanted.to_datum())];
                self.zone_transaction(Db::IcSb, |txn| txn.update("IC_SB_Global", id, value));
            }
            Some(_) if told != wanted => {
                let id: Option<Uuid> = self.input.icnb.db.ic_nb_global.keys().next().copied();
                let value = [("sb_ic_cfg", wanted.to_datum())];
                self.zone_transaction(Db::IcNb, |txn| {
                    id.into_iter().for_each(|id| txn.update("IC_NB_Global", id, value.clone()))
                });
            }
            Some(_) => {}
        }
    }

    /// The silence after which servers are asked for a sign of life: `ic_probe_interval`, in milliseconds.
    fn check_probes(&mut self) {
        let name = "ic_probe_interval";
        let zone = self.input.nb.global().and_then(|g| g.options.get(name).cloned());
        let all = self.input.icnb.global().and_then(|g| g.options.get(name).cloned());
        for (db, link) in &mut self.links {
            let setting = if matches!(db, Db::Nb | Db::Sb) { &zone } else { &all };
            let probe = probe_interval(setting.as_deref());
            if link.probe != probe {
                link.probe = probe;
                link.client.set_probe(probe);
            }
        }
    }

    /// Shows commands what there is.
    fn publish(&self) {
        let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        s.connected = self.links.iter().map(|(db, l)| (*db, l.client.is_connected())).collect();
        s.active = self.active;
        s.problems = self.plan.notices().filter(|n| !n.info).map(|n| n.text.to_string()).collect();
        s.problems.extend(self.writers.values().flat_map(Writer::problems));
        s.sizes = self.plan.sizes().to_vec();
    }
}

/// Waits for something to happen in a database.
async fn event(links: &mut HashMap<Db, Link>) -> (Db, Event) {
    std::future::poll_fn(|cx| {
        for (db, link) in links.iter_mut() {
            if let Poll::Ready(Some(e)) = link.events.poll_recv(cx) {
                return Poll::Ready((*db, e));
            }
        }
        Poll::Pending
    })
    .await
}
