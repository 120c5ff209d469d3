//! Makes the running switch what the database asks for, and writes to the database what became of it.
//!
//! | file | holds |
//! |---|---|
//! | here | the loop: events in, one pass over everything that may differ |
//! | `bridges`, `devices` | bridges and ports; what is behind ports |
//! | `links` | links, MTUs and bonds as they change |
//! | `presence` | DPDK's devices that go and come back |
//! | `underlay` | the kernel's routes and neighbours, for tunnels |
//! | `zones`, `collectors` | connection tracking zones; IPFIX, sFlow, NetFlow |
//! | `ha` | what gateways tell each other |
//! | `requests` | commands of operators that this loop carries out |
//! | `status`, `datapath_features` | columns of the database that say how things are |

mod bridges;
mod collectors;
pub(crate) mod datapath_features;
mod devices;
mod ha;
mod links;
mod presence;
mod requests;
mod status;
mod underlay;
mod zones;

pub use requests::{OperatorRequest, Request};
pub use underlay::OwnRoute;

use crate::config::dummy::DummyMode;
use crate::config::ha::HaSpec;
use crate::config::port::{Kind, PortSpec};
use crate::config::zones::ZoneSpecs;
use crate::config::{self, BridgeSpec};
use crate::export;
use crate::ha::status::Status;
use crate::kernel::netlink::{KernelSnapshot, KernelTables};
use crate::kernel::os_statistics;
use crate::kernel::sysfs;
use crate::kernel::tc::TrafficControl;
use crate::openflow::{Connections, Controllers, Socket};
use crate::pmd::{self, Handle, Jobs, PathChange};
use crate::ports::bfd::BfdStatus;
use crate::ports::bond::BondStatus;
use crate::ports::cfm::CfmStatus;
use crate::ports::dummy::Dummies;
use crate::ports::stp::bridges::StpStatus;
use daemon::Daemon;
use openflow_rs::PortNo;
use ovn_schema::{Map, Str, options, ovs};
use ovsdb_rs::client::{Client, ClientError, Config, Event, TableRequest, Transaction};
use packet::Mac;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use switch::PortLink;
use switch::{BridgeId, DeviceId};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How often links, bonds and status are looked at.
const TICK: Duration = Duration::from_millis(500);

/// The lock of the switch that serves a database, as Open vSwitch's own has it: there is one for each.
const LOCK: &str = "ovs_vswitchd";
/// The server answers within this whether the lock is free.
const PATIENCE: Duration = Duration::from_secs(1);

/// The tables that are replicated, beside managers.
const TABLES: &[&str] = &[
    "Open_vSwitch",
    "SSL",
    "Bridge",
    "Controller",
    "Mirror",
    "QoS",
    "Queue",
    "Port",
    "Interface",
    "Datapath",
    "CT_Zone",
    "CT_Timeout_Policy",
    "Flow_Sample_Collector_Set",
    "AutoAttach",
    "Flow_Table",
    "IPFIX",
    "sFlow",
    "NetFlow",
];

/// A running bridge.
pub(crate) struct RunningBridge {
    pub id: BridgeId,
    pub spec: BridgeSpec,
    /// The management socket, and the one of `ovs-ofctl snoop`.
    pub sockets: Vec<Socket>,
    pub controllers: Controllers,
    /// It switches by itself, as `fail_mode` is standalone and it has no controller.
    pub standalone: bool,
    /// It switches by itself, as `fail_mode` is standalone and its controllers do not control it.
    pub fails_open: bool,
    /// When its controllers may get the next packet that they may answer.
    pub next_bogus: Instant,
    pub ports: BTreeMap<String, RunningPort>,
    /// Where the search for free port numbers goes on.
    pub next: u16,
    /// The switch has the bridge's settings.
    pub configured: bool,
    /// The least MTU of the ports that are not internal, which internal ones follow.
    pub least_mtu: Option<u32>,
    /// The state of its bonds.
    pub bonds: BTreeMap<String, BondStatus>,
    /// The state of its spanning tree; none: it has none, or had none when the database was told last.
    pub stp: Option<StpStatus>,
    /// The same of its rapid one.
    pub rstp: Option<StpStatus>,
}

/// A port of a running bridge.
pub(crate) struct RunningPort {
    pub spec: PortSpec,
    /// Its number; none: it could not be made.
    pub no: Option<PortNo>,
    pub device: Option<DeviceId>,
    pub mac: Mac,
    /// The address that the kernel's device was seen to have last.
    pub seen_mac: Option<Mac>,
    /// The kernel's index of its device, if the kernel knows it.
    pub ifindex: Option<u32>,
    pub error: Option<String>,
    /// Its device does not exist yet; it is made when that comes.
    pub wait_for_link: bool,
    /// Where its device is, if that is DPDK's.
    pub presence: presence::Presence,
    /// The MTU for which its buffers have room.
    pub room: u32,
    pub bfd: Option<BfdStatus>,
    pub cfm: Option<CfmStatus>,
    pub statistics: Map<Str, i64>,
    /// The state of its link.
    pub link: PortLink,
    /// The index of the other end of a veth.
    pub peer: Option<u32>,
    /// How often the link went up or down.
    pub link_resets: i64,
    /// The driver of its device, if the kernel has one.
    pub driver: Option<dpdk_rs::Driver>,
    /// The device by which a tunnel's packets leave, and whether it is up.
    pub egress: Option<(String, bool)>,
    /// What DPDK says of its device.
    pub info: Option<dpdk_rs::PortInfo>,
    /// Whether its LACP partner speaks; none without LACP.
    pub lacp_current: Option<bool>,
    /// What of its limits the kernel has.
    pub traffic_control: TrafficControl,
}

impl RunningPort {
    /// `ifindex`: the kernel's index; for a DPDK device, which has none, a number of 24 bits that follows from the
    /// name, as RFC 2863 wants one that stays.
    pub(crate) fn index(&self) -> Option<u32> {
        match self.spec.kind {
            Ok(Kind::Dummy { .. }) => self.spec.dummy.ifindex,
            Ok(Kind::Dpdk(_) | Kind::VhostClient(_)) => {
                let hash = |h: u32, b: u8| (h ^ u32::from(b)).wrapping_mul(0x0100_0193);
                Some(self.spec.name.bytes().fold(0x811c_9dc5, hash) % 0xff_fffe + 1)
            }
            _ => self.ifindex,
        }
    }
}

/// A connection to the Open_vSwitch database, with a typed replica.
pub struct Database {
    client: Client,
    events: mpsc::UnboundedReceiver<Event>,
    /// The replica.
    pub rows: ovs::Database,
    busy: bool,
    /// No other switch serves the database.
    owned: bool,
}

impl Database {
    /// Starts to connect.
    pub fn start(config: Config) -> Database {
        let config = TABLES.iter().fold(config, |c, t| c.table(t, TableRequest::all()));
        // Their status changes often, and is not ours.
        let config = config.table("Manager", TableRequest::columns(["target", "connection_mode"]));
        let (client, events) = Client::start(config);
        client.lock(LOCK);
        Database { client, events, rows: ovs::Database::default(), busy: false, owned: false }
    }

    /// Waits until the database was read.
    pub async fn read(&mut self) {
        while !self.event().await {}
    }

    /// Whether no other switch serves the database; this one does from then on.
    pub async fn become_owner(&mut self) -> bool {
        // Whoever has the lock keeps it for longer than that.
        let _ = tokio::time::timeout(PATIENCE, self.owner()).await;
        self.owned
    }

    /// Waits until no other switch serves the database.
    pub async fn owner(&mut self) {
        while !self.owned {
            self.event().await;
        }
    }

    /// Whether there is the row of Open_vSwitch, without which nothing is asked for.
    pub fn has_row(&self) -> bool {
        !self.rows.open_vswitch.is_empty()
    }

    /// Waits for the row of Open_vSwitch.
    pub async fn row(&mut self) {
        while !self.has_row() {
            self.event().await;
        }
    }

    /// Waits for the next event; true if it is rows.
    async fn event(&mut self) -> bool {
        match self.events.recv().await {
            Some(e) => self.take(e),
            None => std::future::pending().await,
        }
    }

    /// Takes an event over; true if rows changed.
    fn take(&mut self, e: Event) -> bool {
        let u = match e {
            Event::Update(u) => u,
            Event::Lock { owned, .. } => {
                self.owned = owned;
                return false;
            }
            Event::Disconnected => return false,
        };
        if u.reset {
            self.rows = ovs::Database::default();
        }
        for c in &u.changes {
            let Some(schema) = u.schema.tables.get(&*c.table) else { continue };
            if let Err(e) = self.rows.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
                tracing::warn!(target: "ovsdb_idl", "Open_vSwitch row {} of {}: {e}; it is left out", c.uuid, c.table);
            }
        }
        true
    }
}

/// What the control plane listens to.
pub struct Inputs {
    /// The Open_vSwitch database.
    pub db: Database,
    /// The kernel's tables.
    pub kernel: KernelTables,
    /// What the main PMD thread tells of BFD sessions and maintenance points.
    pub paths: mpsc::UnboundedReceiver<PathChange>,
    /// Commands of operators.
    pub requests: mpsc::UnboundedReceiver<OperatorRequest>,
    /// What is in the place of the machine.
    pub test_bed: TestBed,
}

/// What is in the place of the machine's network, for test beds.
pub struct TestBed {
    /// Which devices are dummies.
    pub mode: DummyMode,
    /// The dummies.
    pub dummies: Dummies,
    /// The kernel's routes are not used (`--disable-system-route`, or because all its devices are dummies).
    pub no_kernel_routes: bool,
}

/// The streams to other gateways ([`crate::ha`]).
pub struct HaStreams {
    /// Their configuration.
    pub spec: watch::Sender<HaSpec>,
    /// What is known of them.
    pub status: Arc<Status>,
    /// Of that, what the database says.
    summary: watch::Receiver<BTreeMap<String, String>>,
}

impl HaStreams {
    /// What the streams are configured by, and what they say.
    pub fn new(spec: watch::Sender<HaSpec>, status: Arc<Status>) -> HaStreams {
        HaStreams { spec, summary: status.summary(), status }
    }
}

/// The state of the control plane.
pub struct Reconciler {
    pub(crate) pmd: Handle,
    pub(crate) kernel: KernelTables,
    pub(crate) connections: Connections,
    pub(crate) bridges: BTreeMap<String, RunningBridge>,
    /// Numbers of removed bridges, for new ones.
    pub(crate) spare: Vec<BridgeId>,
    pub(crate) rundir: PathBuf,
    db: Database,
    /// Rows have changed that were not followed yet.
    rows_wait: bool,
    /// From the start on, as long as `other_config:flow-restore-wait` is set, `ovs-ctl restart` restores flows: nothing is
    /// received and no controller connected.
    restoring: bool,
    /// Since when another switch serves the database, and whether that was told.
    displaced: Option<(Instant, bool)>,
    paths: mpsc::UnboundedReceiver<PathChange>,
    requests: mpsc::UnboundedReceiver<OperatorRequest>,
    /// Routes that operators have added (`ovs/route/add`).
    own_routes: Vec<OwnRoute>,
    own_rules: Vec<switch::RouteRule>,
    host: watch::Receiver<KernelSnapshot>,
    pub(super) test_bed: TestBed,
    zones: ZoneSpecs,
    collectors: watch::Sender<export::ExportConfig>,
    ha: HaStreams,
    /// The datapath's features have been logged.
    probed: bool,
    /// The processors of PMD threads.
    processors: Option<Vec<usize>>,
    applied_cfg: i64,
    /// When statistics were collected last; none: not yet.
    collected: Option<Instant>,
    /// `Open_vSwitch:statistics`, if these are enabled.
    statistics: Map<Str, Str>,
    done_tx: mpsc::UnboundedSender<Result<(), ClientError>>,
    done_rx: mpsc::UnboundedReceiver<Result<(), ClientError>>,
}

impl Reconciler {
    /// No bridges yet; [`Reconciler::first`] makes them.
    pub fn new(
        inputs: Inputs,
        pmd: Handle,
        rundir: PathBuf,
        connections: Connections,
        collectors: watch::Sender<export::ExportConfig>,
        ha: HaStreams,
    ) -> Reconciler {
        let (done_tx, done_rx) = mpsc::unbounded_channel();
        let Inputs { db, kernel, paths, requests, test_bed } = inputs;
        let host = kernel.watch();
        Reconciler {
            collected: None,
            pmd,
            kernel,
            connections,
            bridges: BTreeMap::new(),
            spare: Vec::new(),
            rundir,
            db,
            rows_wait: false,
            restoring: true,
            displaced: None,
            paths,
            requests,
            own_routes: Vec::new(),
            own_rules: Vec::new(),
            host,
            test_bed,
            zones: ZoneSpecs::default(),
            collectors,
            ha,
            processors: None,
            probed: false,
            applied_cfg: 0,
            statistics: Map::new(),
            done_tx,
            done_rx,
        }
    }

    /// The first pass: brings up what the database asks for.
    pub async fn first(&mut self) {
        if let Some(name) = self.test_bed.mode.datapath() {
            self.pmd.post(move |w| (w.datapath, w.switch.numbers_by_name) = (name, true));
        }
        self.wait_for_peers();
        self.reconcile().await;
        self.apply_underlay().await;
        self.update_links().await;
        self.write();
    }

    /// Runs until the daemon is to exit.
    pub async fn run(&mut self, daemon: &Daemon) {
        let clock = self.pmd.clock.clone();
        let mut tick = clock.instant();
        loop {
            let (mut rows, mut host, mut time, mut asked) = (false, false, false, None);
            tokio::select! {
                () = daemon.exiting() => return self.write_last().await,
                Some(c) = self.paths.recv() => self.path_changed(c),
                Some((request, answer)) = self.requests.recv() => {
                    time = matches!(request, Request::Tick);
                    let (routes, done) = self.serve_request(request);
                    (host, asked) = (routes, Some((answer, done)));
                }
                Some(e) = self.db.events.recv() => rows = self.db.take(e),
                Ok(()) = self.host.changed() => host = true,
                Some(r) = self.done_rx.recv() => self.finished(r),
                Ok(()) = self.ha.summary.changed() => {}
                () = clock.sleep_until(tick) => time = true,
            }
            if time {
                tick = clock.instant() + TICK;
                self.ha.status.refresh();
            }
            while let Ok(c) = self.paths.try_recv() {
                self.path_changed(c);
            }
            while let Ok(e) = self.db.events.try_recv() {
                rows |= self.db.take(e);
            }
            self.rows_wait |= rows;
            if self.serves() && (std::mem::take(&mut self.rows_wait) || (host || time) && self.links_changed()) {
                self.reconcile().await;
                host = true;
            }
            if host {
                self.apply_underlay().await;
            }
            if time || host {
                self.follow_presence().await;
                self.update_links().await;
                self.follow_mtus().await;
                self.publish_port_facts();
                self.update_bonds().await;
            }
            if time && self.connections.have_flow_monitors() {
                self.send_flow_updates();
            }
            if time {
                self.fail_over();
            }
            if time && self.collect_due() {
                self.collect().await;
            }
            self.write();
            // What a command has led to is done when it is answered. The one who asked may have gone.
            if let Some((answer, done)) = asked {
                let _ = answer.send(done);
            }
        }
    }

    /// Whether this switch follows the database. While another one does, which may have come first after a restart of the
    /// server, this one leaves everything as it is: flows stay, rows are neither followed nor written.
    fn serves(&mut self) -> bool {
        if self.db.owned || !self.db.client.is_connected() {
            self.displaced = None;
            return self.db.owned;
        }
        let (since, told) = self.displaced.get_or_insert_with(|| (Instant::now(), false));
        if !*told && since.elapsed() >= PATIENCE {
            *told = true;
            let id = std::process::id();
            tracing::error!(target: "bridge", "another ovs-vswitchd process is running, disabling this process (pid {id}) until it goes away");
        }
        false
    }

    /// Before an orderly exit: writes what changed since the last look, such as which member of a bond is active, by which
    /// the next start goes on.
    async fn write_last(&mut self) {
        /// A database that does not answer keeps nobody from ending.
        const PATIENCE: Duration = Duration::from_millis(500);
        let last = async {
            self.update_bonds().await;
            // A write that is under way ends first.
            for _ in 0..2 {
                self.write();
                if !self.db.busy {
                    return;
                }
                if let Some(r) = self.done_rx.recv().await {
                    self.finished(r);
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, last).await;
    }

    /// Tells flow monitors of changes that no message made: flows were learned, or expired.
    fn send_flow_updates(&self) {
        let (all, ids) = (self.connections.clone(), self.bridges.values().map(|b| b.id).collect::<Vec<_>>());
        self.pmd.post(move |w| ids.into_iter().for_each(|id| all.send_flow_updates(w, id, None)));
    }

    fn path_changed(&mut self, change: PathChange) {
        let (PathChange::Bfd(bridge, no, _) | PathChange::Cfm(bridge, no, _)) = &change;
        let ports = self.bridges.values_mut().filter(|b| b.id == *bridge).flat_map(|b| b.ports.values_mut());
        let Some(p) = ports.into_iter().find(|p| p.no == Some(*no)) else { return };
        match change {
            PathChange::Bfd(.., status) => {
                if p.bfd.as_ref().map(|b| b.state) != Some(status.state) {
                    tracing::info!(target: "bfd", "{}: BFD state {}, remote {}, {}", p.spec.name, status.state.name(), status.remote_state, status.diagnostic);
                }
                p.bfd = Some(status);
            }
            PathChange::Cfm(.., status) => {
                let before = p.cfm.as_ref().map(|c| c.faults).unwrap_or_default();
                if before != status.faults {
                    tracing::info!(target: "cfm", "{}: CFM faults changed from [{before}] to [{}].", p.spec.name, status.faults);
                }
                p.cfm = Some(status);
            }
        }
    }

    fn finished(&mut self, r: Result<(), ClientError>) {
        self.db.busy = false;
        if let Err(e) = r {
            tracing::warn!(target: "ovsdb_idl", "Open_vSwitch: {e}; it will be tried again");
        }
    }

    async fn reconcile(&mut self) {
        let (mut wanted, cfg, sleep) = {
            let root = self.db.rows.open_vswitch.values().next();
            let sleep = config::dpdk::sleep_max(root.and_then(|r| r.other_config.get("pmd-sleep-max").map(|v| &**v)));
            (config::bridges(&self.db.rows, self.test_bed.mode), root.map_or(0, |r| r.next_cfg), sleep)
        };
        let other_config = self.db.rows.open_vswitch.values().next().map(|r| &r.other_config);
        let all = pmd::processors();
        let processors = other_config.map(|o| config::dpdk::pmd_processors(o, &all)).unwrap_or_default();
        if self.processors.as_ref() != Some(&processors) {
            self.processors = Some(processors.clone());
            self.pmd.post(move |w| w.move_to(&processors, &all));
        }
        let tags = other_config.map_or(1, config::tags);
        let (flows, idle) = (other_config.and_then(config::flow_limit), other_config.map(config::max_idle));
        if let Some(idle) = other_config.map(config::bundle_idle) {
            self.connections.set_bundle_idle(idle);
        }
        let isolate = other_config.is_none_or(|o| options::bool(o, "pmd-rxq-isolate", true));
        self.restoring &= other_config.is_some_and(|o| options::bool(o, "flow-restore-wait", false));
        let restoring = self.restoring;
        let sampled_drops = other_config.is_some_and(|o| options::bool(o, "explicit-sampled-drops", false));
        self.pmd.post(move |w| {
            w.set_sleep_max(sleep);
            w.switch.set_restoring(restoring);
            w.switch.set_sampled_drops(sampled_drops);
            w.switch.underlay.set_tags(tags);
            w.switch.max_idle = idle.unwrap_or(switch::MAX_IDLE);
            w.limit_flows(flows);
            w.set_isolate(isolate);
        });
        if restoring {
            wanted.iter_mut().for_each(|b| b.controllers.clear());
        }
        self.apply_zones();
        self.publish_ha();
        self.apply_bridges(wanted).await;
        self.publish_export_config();
        self.applied_cfg = cfg;
    }

    /// Whether `other_config:stats-update-interval` has passed since statistics were collected.
    fn collect_due(&self) -> bool {
        /// The least and the usual one.
        const INTERVAL: u64 = 5000;
        let root = self.db.rows.open_vswitch.values().next();
        let asked = root.and_then(|r| r.other_config.get("stats-update-interval")?.parse::<u64>().ok());
        let interval = Duration::from_millis(asked.unwrap_or(INTERVAL).max(INTERVAL));
        self.collected.is_none_or(|t| self.pmd.clock.instant() >= t + interval)
    }

    async fn collect(&mut self) {
        self.collected = Some(self.pmd.clock.instant());
        let root = self.db.rows.open_vswitch.values().next();
        let asked = root.is_some_and(|r| options::flag(&r.other_config, "enable-statistics"));
        let rundir = self.rundir.clone();
        let read =
            tokio::task::spawn_blocking(move || if asked { os_statistics::statistics(&rundir) } else { Map::new() });
        self.statistics = read.await.unwrap_or_default();
        self.update_trees().await;
        let all = self.pmd.read(pmd::port_statistics).await.unwrap_or_default();
        for b in self.bridges.values_mut() {
            for p in b.ports.values_mut() {
                if let Some(s) = p.no.and_then(|no| all.get(&(b.id, no))) {
                    p.statistics = s.clone();
                    if matches!(p.spec.kind, Ok(Kind::Dpdk(_) | Kind::VhostClient(_))) {
                        // No work is left to devices that they might refuse, and nothing is sent twice.
                        p.statistics.insert("ovs_tx_invalid_hwol_drops".into(), 0);
                    }
                    if matches!(p.spec.kind, Ok(Kind::VhostClient(_))) {
                        p.statistics.insert("ovs_tx_retries".into(), 0);
                    }
                    let tap = matches!(p.spec.kind, Ok(Kind::Internal));
                    for (name, n) in p.ifindex.into_iter().flat_map(|i| sysfs::counters(&p.spec.name, i, tap)) {
                        // The switch's own drops are in the map already.
                        *p.statistics.entry(name.into()).or_insert(0) += n;
                    }
                }
            }
        }
    }

    /// The peer that a patch port names, if that is not there or does not name this port.
    fn missing_peer<'a>(&self, p: &'a RunningPort) -> Option<&'a str> {
        let Ok(Kind::Patch(peer)) = &p.spec.kind else { return None };
        let other = self.bridges.values().find_map(|b| b.ports.get(peer));
        let back = other.is_some_and(|o| o.spec.kind == Ok(Kind::Patch(p.spec.name.clone())));
        (!back).then_some(peer)
    }

    /// Writes the columns that differ to the database.
    fn write(&mut self) {
        if self.db.busy || !self.db.owned || !self.db.client.is_connected() {
            return;
        }
        let Some(schema) = self.db.client.schema() else { return };
        let (mut txn, now) = (Transaction::new(schema), self.pmd.clock.instant());
        let peers = self.ha.summary.borrow().clone();
        status::root(&self.db.rows, self.applied_cfg, &self.statistics, self.test_bed.mode.is_on(), &mut txn);
        status::datapaths(&self.db.rows, &mut txn);
        for b in self.bridges.values() {
            status::bridge(&self.db.rows, b, &peers, &mut txn);
            status::spanning(&self.db.rows, b, &mut txn);
            for s in &b.spec.bonds {
                status::bond(&self.db.rows, s, b, &mut txn);
            }
            for m in &b.spec.mirrors {
                status::mirror(&self.db.rows, m, b, &mut txn);
            }
            for (id, s) in b.controllers.status() {
                status::controller(&self.db.rows, id, &s, now, &mut txn);
            }
            for p in b.ports.values() {
                status::interface(&self.db.rows, p, self.missing_peer(p), &mut txn);
            }
        }
        if txn.is_empty() {
            return;
        }
        self.db.busy = true;
        let (client, done) = (self.db.client.clone(), self.done_tx.clone());
        tokio::spawn(async move {
            // The loop may have ended meanwhile.
            let _ = done.send(client.commit(txn).await.map(drop));
        });
    }
}
