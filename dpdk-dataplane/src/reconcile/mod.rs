//! Brings the running switch into line with the database, and tells the database what became of it.

mod bridges;
mod collectors;
pub(crate) mod datapath_features;
mod devices;
mod links;
mod requests;
mod status;
mod underlay;
mod zones;

pub use requests::{Ask, Asked};
pub use underlay::OwnRoute;

use crate::ports::bfd::BfdStatus;
use crate::ports::bond::BondStatus;
use crate::export;
use crate::config::port::{Kind, PortSpec};
use crate::config::zones::ZoneSpecs;
use crate::config::{self, BridgeSpec};
use crate::kernel::netlink::{Host, Mirror};
use crate::kernel::sysfs;
use crate::openflow::{Connections, Controllers, Socket};
use crate::kernel::os_statistics;
use crate::pmd::{self, Handle, Notice};
use daemon::Daemon;
use openflow_rs::PortNo;
use ovn_schema::{Map, Str, ovs};
use ovsdb_rs::client::{Client, ClientError, Config, Event, TableRequest, Transaction};
use packet::Mac;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use switch::BridgeId;
use switch::PortLink;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// The tables that matter.
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
    "Flow_Table",
    "IPFIX",
    "sFlow",
    "NetFlow",
];

/// A bridge that runs.
pub(crate) struct RunningBridge {
    pub id: BridgeId,
    pub spec: BridgeSpec,
    /// The management socket, and the one to look on.
    pub sockets: Vec<Socket>,
    pub controllers: Controllers,
    /// Since when it runs.
    pub since: Instant,
    /// It switches by itself: it has no controller, or lost all, and `fail_mode` lets it.
    pub standalone: bool,
    pub ports: BTreeMap<String, RunningPort>,
    /// Where the search for free port numbers goes on.
    pub next: u16,
    /// The bridge's settings were given to the engine.
    pub configured: bool,
    /// The least size of frames of its other ports, which internal ports follow.
    pub least_mtu: Option<u32>,
    /// How its bonds are.
    pub bonds: BTreeMap<String, BondStatus>,
}

/// A port that runs, or does not.
pub(crate) struct RunningPort {
    pub spec: PortSpec,
    /// Its number; none: it does not run.
    pub no: Option<PortNo>,
    pub device: Option<u32>,
    pub mac: Mac,
    /// The kernel's index of its device.
    pub ifindex: Option<u32>,
    pub error: Option<String>,
    /// The device may come to be.
    pub wait_for_link: bool,
    /// The payload for which there is room.
    pub room: u32,
    pub bfd: Option<BfdStatus>,
    pub statistics: Map<Str, i64>,
    /// How its device is.
    pub link: PortLink,
    /// The index of the other end, where it is a veth.
    pub peer: Option<u32>,
    /// How often that went up or down.
    pub link_resets: i64,
    /// What the kernel knows of its device's driver.
    pub driver: Option<dpdk_rs::Driver>,
    /// Which device a tunnel's packets leave by, and whether that is up.
    pub egress: Option<(String, bool)>,
    /// What DPDK knows of its device.
    pub info: Option<dpdk_rs::PortInfo>,
    /// Its LACP partner speaks, where it has LACP.
    pub lacp_current: Option<bool>,
}

impl RunningPort {
    /// The number that its device is known by: the kernel's, or for DPDK's, which the kernel does not know, one of 24 bits that
    /// follows from its name (RFC 2863 wants a number that stays).
    pub(crate) fn index(&self) -> Option<u32> {
        match self.spec.kind {
            Ok(Kind::Dpdk(_) | Kind::VhostClient(_)) => {
                let hash = |h: u32, b: u8| (h ^ u32::from(b)).wrapping_mul(0x0100_0193);
                Some(self.spec.name.bytes().fold(0x811c_9dc5, hash) % 0xff_fffe + 1)
            }
            _ => self.ifindex,
        }
    }
}

/// A connection to the Open_vSwitch database with a typed copy.
pub struct Database {
    client: Client,
    events: mpsc::UnboundedReceiver<Event>,
    /// The copy.
    pub rows: ovs::Database,
    busy: bool,
}

impl Database {
    /// Starts connecting; tables are added to the configuration.
    pub fn start(config: Config) -> Database {
        let config = TABLES.iter().fold(config, |c, t| c.table(t, TableRequest::all()));
        let (client, events) = Client::start(config);
        Database { client, events, rows: ovs::Database::default(), busy: false }
    }

    /// Waits for the first row of Open_vSwitch.
    pub async fn first(&mut self) {
        while self.rows.open_vswitch.is_empty() {
            match self.events.recv().await {
                Some(e) => drop(self.take(e)),
                None => std::future::pending().await,
            }
        }
    }

    /// Takes an event over; true where rows changed.
    fn take(&mut self, e: Event) -> bool {
        let Event::Update(u) = e else { return false };
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

/// The daemon's state.
pub struct Control {
    pub(crate) worker: Handle,
    pub(crate) mirror: Mirror,
    pub(crate) connections: Connections,
    pub(crate) bridges: BTreeMap<String, RunningBridge>,
    /// Numbers of bridges that went.
    pub(crate) spare: Vec<BridgeId>,
    pub(crate) rundir: PathBuf,
    db: Database,
    notices: mpsc::UnboundedReceiver<Notice>,
    asks: mpsc::UnboundedReceiver<Asked>,
    /// Routes that operators have added.
    own_routes: Vec<OwnRoute>,
    host: watch::Receiver<Host>,
    zones: ZoneSpecs,
    collectors: watch::Sender<export::Wanted>,
    /// Where the worker runs.
    /// What the datapath can do was logged.
    probed: bool,
    processors: Option<Vec<usize>>,
    applied_cfg: i64,
    next_statistics: Instant,
    /// How the machine is, if that is asked for.
    statistics: Map<Str, Str>,
    done_tx: mpsc::UnboundedSender<Result<(), ClientError>>,
    done_rx: mpsc::UnboundedReceiver<Result<(), ClientError>>,
}

impl Control {
    /// A state without bridges.
    pub fn new(
        worker: Handle,
        (notices, asks): (mpsc::UnboundedReceiver<Notice>, mpsc::UnboundedReceiver<Asked>),
        mirror: Mirror,
        db: Database,
        rundir: PathBuf,
        connections: Connections,
        collectors: watch::Sender<export::Wanted>,
    ) -> Control {
        let (done_tx, done_rx) = mpsc::unbounded_channel();
        let host = mirror.watch();
        Control {
            worker,
            mirror,
            connections,
            bridges: BTreeMap::new(),
            spare: Vec::new(),
            rundir,
            db,
            notices,
            asks,
            own_routes: Vec::new(),
            host,
            zones: ZoneSpecs::default(),
            collectors,
            processors: None,
            probed: false,
            applied_cfg: 0,
            next_statistics: Instant::now(),
            statistics: Map::new(),
            done_tx,
            done_rx,
        }
    }

    /// Brings everything up as the database says.
    pub async fn first(&mut self) {
        self.reconcile().await;
        self.apply_host().await;
        self.follow_links().await;
        self.write();
    }

    /// Runs until the daemon is to exit.
    pub async fn run(&mut self, daemon: &Daemon) {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        loop {
            let (mut rows, mut host, mut time) = (false, false, false);
            tokio::select! {
                () = daemon.exiting() => return,
                Some(n) = self.notices.recv() => self.notice(n),
                Some(a) = self.asks.recv() => host = self.asked(a),
                Some(e) = self.db.events.recv() => rows = self.db.take(e),
                Ok(()) = self.host.changed() => host = true,
                Some(r) = self.done_rx.recv() => self.finished(r),
                _ = tick.tick() => time = true,
            }
            while let Ok(n) = self.notices.try_recv() {
                self.notice(n);
            }
            while let Ok(e) = self.db.events.try_recv() {
                rows |= self.db.take(e);
            }
            if rows || host && self.links_changed() {
                self.reconcile().await;
                host = true;
            }
            if host {
                self.apply_host().await;
            }
            if time || host {
                self.follow_links().await;
                self.follow_room().await;
                self.tell_ports();
                self.follow_bonds().await;
            }
            if time && self.connections.are_watching() {
                self.tell_flows();
            }
            if time {
                self.fail_over();
            }
            if time && Instant::now() >= self.next_statistics {
                self.collect().await;
            }
            self.write();
        }
    }

    /// Tells flow monitors of what nobody's message has changed: flows that were learned, or whose time is over.
    fn tell_flows(&self) {
        let (all, ids) = (self.connections.clone(), self.bridges.values().map(|b| b.id).collect::<Vec<_>>());
        self.worker.post(move |w| ids.into_iter().for_each(|id| all.tell_flows(w, id, None)));
    }

    fn notice(&mut self, n: Notice) {
        match n {
            Notice::Event(switch::Event::PacketIn { bridge, controller, packet_in }) => {
                self.connections.packet_in(bridge, controller, &packet_in);
            }
            Notice::Event(switch::Event::FlowRemoved { bridge, removed }) => {
                self.connections.flow_removed(bridge, &removed);
            }
            Notice::Event(_) => {}
            Notice::Live(bridge, port) => self.connections.port_status(bridge, 2, &port),
            Notice::Bfd(bridge, no, status) => {
                let port = self
                    .bridges
                    .values_mut()
                    .filter(|b| b.id == bridge)
                    .flat_map(|b| b.ports.values_mut())
                    .find(|p| p.no == Some(no));
                if let Some(p) = port {
                    if p.bfd.as_ref().map(|b| b.state) != Some(status.state) {
                        tracing::info!(target: "bfd", "{}: BFD state {}, remote {}, {}", p.spec.name, status.state.name(), status.remote_state, status.diagnostic);
                    }
                    p.bfd = Some(status);
                }
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
        let (wanted, cfg, sleep) = {
            let root = self.db.rows.open_vswitch.values().next();
            let sleep = config::dpdk::sleep_max(root.and_then(|r| r.other_config.get("pmd-sleep-max").map(|v| &**v)));
            (config::bridges(&self.db.rows), root.map_or(0, |r| r.next_cfg), sleep)
        };
        let other_config = self.db.rows.open_vswitch.values().next().map(|r| &r.other_config);
        let all = pmd::processors();
        let processors = other_config.map(|o| config::dpdk::worker_processors(o, &all)).unwrap_or_default();
        if self.processors.as_ref() != Some(&processors) {
            self.processors = Some(processors.clone());
            self.worker.post(move |w| w.move_to(&processors, &all));
        }
        let tags = other_config.map_or(1, config::tags);
        let (flows, idle) = (other_config.and_then(config::flow_limit), other_config.map(config::max_idle));
        let isolate = other_config.and_then(|o| o.get("pmd-rxq-isolate")).is_none_or(|v| &**v != "false");
        self.worker.post(move |w| {
            w.set_sleep_max(sleep);
            w.switch.underlay.set_tags(tags);
            w.switch.max_idle = idle.unwrap_or(switch::MAX_IDLE);
            w.limit_flows(flows);
            w.set_isolate(isolate);
        });
        self.apply_zones();
        self.apply_bridges(wanted).await;
        self.tell_collectors();
        self.applied_cfg = cfg;
    }

    async fn collect(&mut self) {
        let interval = self.db.rows.open_vswitch.values().next();
        let interval = interval.and_then(|r| r.other_config.get("stats-update-interval")?.parse::<u64>().ok());
        self.next_statistics = Instant::now() + Duration::from_millis(interval.unwrap_or(5000).max(5000));
        let root = self.db.rows.open_vswitch.values().next();
        let asked = root.is_some_and(|r| r.other_config.get("enable-statistics").is_some_and(|v| &**v == "true"));
        let rundir = self.rundir.clone();
        let read = tokio::task::spawn_blocking(move || if asked { os_statistics::statistics(&rundir) } else { Map::new() });
        self.statistics = read.await.unwrap_or_default();
        let all = self.worker.run(|w| pmd::port_statistics(w)).await.unwrap_or_default();
        for b in self.bridges.values_mut() {
            for p in b.ports.values_mut() {
                if let Some(s) = p.no.and_then(|no| all.get(&(b.id, no))) {
                    p.statistics = s.clone();
                    if matches!(p.spec.kind, Ok(Kind::Dpdk(_) | Kind::VhostClient(_))) {
                        // Nothing is left to devices that they might refuse, and nothing is tried twice.
                        p.statistics.insert("ovs_tx_invalid_hwol_drops".into(), 0);
                    }
                    if matches!(p.spec.kind, Ok(Kind::VhostClient(_))) {
                        p.statistics.insert("ovs_tx_retries".into(), 0);
                    }
                    let tap = matches!(p.spec.kind, Ok(Kind::Internal));
                    for (name, n) in p.ifindex.into_iter().flat_map(|i| sysfs::counters(&p.spec.name, i, tap)) {
                        // What was dropped here is counted there already.
                        *p.statistics.entry(name.into()).or_insert(0) += n;
                    }
                }
            }
        }
    }

    /// The peer that a patch port asks for, if there is none that asks for this port.
    fn missing_peer<'a>(&self, p: &'a RunningPort) -> Option<&'a str> {
        let Ok(Kind::Patch(peer)) = &p.spec.kind else { return None };
        let other = self.bridges.values().find_map(|b| b.ports.get(peer));
        let back = other.is_some_and(|o| o.spec.kind == Ok(Kind::Patch(p.spec.name.clone())));
        (!back).then_some(peer)
    }

    /// Writes to the database what it does not say yet.
    fn write(&mut self) {
        if self.db.busy || !self.db.client.is_connected() {
            return;
        }
        let Some(schema) = self.db.client.schema() else { return };
        let mut txn = Transaction::new(schema);
        status::root(&self.db.rows, self.applied_cfg, &self.statistics, &mut txn);
        status::datapaths(&self.db.rows, &mut txn);
        for b in self.bridges.values() {
            status::bridge(&self.db.rows, b, &mut txn);
            for s in &b.spec.bonds {
                status::bond(&self.db.rows, s, b, &mut txn);
            }
            for m in &b.spec.mirrors {
                status::mirror(&self.db.rows, m, b, &mut txn);
            }
            for (id, s) in b.controllers.status() {
                status::controller(&self.db.rows, id, &s, &mut txn);
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
            // The loop may have ended.
            let _ = done.send(client.commit(txn).await.map(drop));
        });
    }
}
