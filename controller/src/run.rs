//! The controller's loop: events in, the state brought into line, transactions and flows out.

use crate::flows::ChassisFlows;
use crate::install::{Changes, Tables};
use crate::model::{Input, Local, Read};
use crate::openflow::{Command, Event as SwitchEvent, Switch};
use crate::pinctrl::announce::{Announcer, served};
use crate::pinctrl::{Learned, Services};
use crate::settings::{self, Incomplete, Settings, bridge, interfaces};
use crate::{binding, chassis, local, plumbing, zones};
use daemon::Daemon;
use gateway_ha::Takeover;
use incremental::Engine;
use ovn_schema::{ColumnValue, Map, Str, Uuid, ovs, sb};
use ovsdb_rs::client::{Client, ClientError, Config, Event, TableRequest, Transaction, Update};
use ovsdb_rs::tls::{Tls, TlsFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;

/// A database with its typed copy.
struct Link<D> {
    client: Client,
    events: mpsc::UnboundedReceiver<Event>,
    db: D,
    /// The copy is complete.
    ready: bool,
    /// It is what the server has now, not what it had before the connection was lost.
    current: bool,
    /// A transaction is under way; what it changes has not been seen yet.
    busy: bool,
}

/// What commands of the control socket show.
#[derive(Debug, Default, Clone)]
pub struct Status {
    /// `connected` or `not connected`.
    pub southbound: bool,
    /// Flows and groups.
    pub tables: (usize, usize),
    /// Zones by name.
    pub zones: BTreeMap<Str, u16>,
    /// What could not be turned into flows.
    pub problems: Vec<String>,
    /// Loops in which something was derived.
    pub runs: u64,
}

/// What the control socket shares with the loop.
pub type Shared = Arc<Mutex<Status>>;

/// What the program was told to do at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Take the chassis out of the southbound database.
    Cleanup,
    /// Leave everything as it is, for the next one.
    Restart,
}

enum Done {
    Southbound(Result<(), ClientError>),
    Local(Result<(), ClientError>),
}

/// The controller's state.
pub struct Controller {
    rundir: PathBuf,
    ovs: Link<ovs::Database>,
    sb: Option<Link<()>>,
    remote: String,
    probe: Option<Duration>,
    /// The command line's key, certificate and CA; without them those of the local database's SSL table count.
    given: Option<TlsFiles>,
    tls: Option<TlsFiles>,
    tls_complaint: String,
    input: Input,
    engine: Engine<ChassisFlows>,
    reads: Vec<Read>,
    tables: Tables,
    switch: Option<(Str, Switch, mpsc::UnboundedReceiver<SwitchEvent>)>,
    switch_up: bool,
    derived: bool,
    sequence: u64,
    installed: u64,
    /// nb_cfg by the bundle whose installation realises it.
    pending_cfg: Vec<(u64, i64)>,
    realised_cfg: i64,
    services: Services,
    learned: BTreeMap<Learned2, Instant>,
    announcer: Announcer,
    complaint: Option<Incomplete>,
    takeover: Takeover,
    done_tx: mpsc::UnboundedSender<Done>,
    done_rx: mpsc::UnboundedReceiver<Done>,
    shared: Shared,
    startup: String,
}

/// What was learned, in an order.
type Learned2 = (bool, u64, u32, Option<IpAddr>, [u8; 6]);

/// The southbound tables that flows and bindings need.
const TABLES: &[&str] = &[
    "SB_Global",
    "Chassis",
    "Chassis_Private",
    "Encap",
    "Logical_Flow",
    "Logical_DP_Group",
    "Multicast_Group",
    "Meter",
    "Meter_Band",
    "Datapath_Binding",
    "Port_Binding",
    "MAC_Binding",
    "Static_MAC_Binding",
    "DHCP_Options",
    "DHCPv6_Options",
    "HA_Chassis",
    "HA_Chassis_Group",
    "Address_Set",
    "Port_Group",
    "Load_Balancer",
    "FDB",
    "DNS",
    "Chassis_Template_Var",
];

/// The local tables.
const LOCAL_TABLES: &[&str] = &["Open_vSwitch", "Bridge", "Port", "Interface", "SSL"];

fn config(remote: &str, database: &str, tables: &[&str]) -> Result<Config, ovsdb_rs::Error> {
    let c = Config::new(remote, database)?;
    Ok(tables.iter().fold(c, |c, t| c.table(t, TableRequest::all())))
}

impl Controller {
    /// Connects to the local database.
    ///
    /// # Errors
    /// Where the remote does not parse.
    pub fn start(
        ovs_remote: &str,
        rundir: PathBuf,
        given: Option<TlsFiles>,
        shared: Shared,
    ) -> Result<Controller, ovsdb_rs::Error> {
        let (client, events) =
            Client::start(config(ovs_remote, "Open_vSwitch", LOCAL_TABLES)?.known(ovs::Database::schema()));
        let (done_tx, done_rx) = mpsc::unbounded_channel();
        Ok(Controller {
            rundir,
            ovs: Link { client, events, db: ovs::Database::default(), ready: false, current: false, busy: false },
            sb: None,
            remote: String::new(),
            probe: None,
            given,
            tls: None,
            tls_complaint: String::new(),
            input: Input::default(),
            engine: Engine::new(ChassisFlows::default()),
            reads: Vec::new(),
            tables: Tables::default(),
            switch: None,
            switch_up: false,
            derived: false,
            sequence: 0,
            installed: 0,
            pending_cfg: Vec::new(),
            realised_cfg: -1,
            services: Services::default(),
            learned: BTreeMap::new(),
            announcer: Announcer::default(),
            complaint: None,
            takeover: Takeover::default(),
            done_tx,
            done_rx,
            shared,
            startup: milliseconds().to_string(),
        })
    }

    /// Runs until the daemon is to exit.
    pub async fn run(&mut self, daemon: &Daemon) {
        loop {
            let wake = self.next_timer();
            tokio::select! {
                () = daemon.exiting() => return,
                Some(e) = self.ovs.events.recv() => self.local_event(e),
                Some(e) = next_event(&mut self.sb) => self.southbound_event(e),
                Some(e) = next_switch(&mut self.switch) => self.switch_event(e),
                Some(d) = self.done_rx.recv() => self.finished(d),
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            // Whatever is there already belongs to the same look at the world.
            while let Ok(e) = self.ovs.events.try_recv() {
                self.local_event(e);
            }
            while let Some(Ok(e)) = self.sb.as_mut().map(|l| l.events.try_recv()) {
                self.southbound_event(e);
            }
            while let Some(Ok(e)) = self.switch.as_mut().map(|s| s.2.try_recv()) {
                self.switch_event(e);
            }
            while let Ok(d) = self.done_rx.try_recv() {
                self.finished(d);
            }
            self.reconcile();
        }
    }

    fn next_timer(&self) -> Instant {
        let limit = Instant::now() + Duration::from_secs(1);
        self.announcer.next().into_iter().chain(self.takeover.next()).fold(limit, Instant::min)
    }

    fn finished(&mut self, d: Done) {
        let (what, result) = match d {
            Done::Local(r) => {
                self.ovs.busy = false;
                ("Open_vSwitch", r)
            }
            Done::Southbound(r) => {
                if let Some(l) = &mut self.sb {
                    l.busy = false;
                }
                ("OVN_Southbound", r)
            }
        };
        if let Err(e) = result {
            tracing::warn!(target: "main", "{what}: {e}; it will be tried again");
        }
    }

    fn local_event(&mut self, e: Event) {
        match e {
            Event::Update(u) => {
                if u.reset {
                    self.ovs.db = ovs::Database::default();
                }
                for c in &u.changes {
                    let Some(schema) = u.schema.tables.get(&*c.table) else { continue };
                    if let Err(e) = self.ovs.db.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
                        tracing::warn!(target: "ovsdb_idl", "Open_vSwitch row {} of {}: {e}; it is left out", c.uuid, c.table);
                    }
                }
                self.ovs.ready = true;
                self.ovs.current = true;
            }
            Event::Disconnected => {
                self.ovs.current = false;
                tracing::info!(target: "reconnect", "Open_vSwitch: connection lost");
            }
            Event::Lock { .. } => {}
        }
    }

    fn southbound_event(&mut self, e: Event) {
        match e {
            Event::Update(u) => self.southbound_update(&u),
            Event::Disconnected => tracing::info!(target: "reconnect", "{}: connection lost", self.remote),
            Event::Lock { .. } => {}
        }
    }

    fn southbound_update(&mut self, u: &Update) {
        if u.reset {
            // Start from nothing, but keep what is in the switch until the new state is complete.
            let local = std::mem::take(&mut self.input.local);
            self.input = Input::new(sb::Database::default(), local);
            self.engine = Engine::new(ChassisFlows::default());
            self.derived = false;
        }
        for c in &u.changes {
            let Some(schema) = u.schema.tables.get(&*c.table) else { continue };
            match self.input.sb.apply(&c.table, schema, c.uuid, c.new.as_deref()) {
                Ok(Some(change)) => {
                    let mut reads = self.input.changed(&change);
                    if c.old.is_some() && c.new.is_some() {
                        // Which rows there are did not change.
                        reads.retain(|r| !matches!(r, Read::Table(_)));
                    }
                    self.reads.extend(reads);
                    if let sb::AnyChange::PortBinding(c) = &change
                        && let Some(p) = &c.new
                        && p.ha_chassis_group.is_some()
                        && p.chassis != c.old.as_ref().and_then(|o| o.chassis)
                        && let Some(claimant) = p.chassis.and_then(|c| self.input.sb.chassis.get(&c))
                        && claimant.name != self.input.local.chassis_name
                    {
                        self.takeover.claimed(&claimant.name, Instant::now());
                    }
                    if let sb::AnyChange::MacBinding(ovn_schema::Change { new: Some(m), .. }) = &change {
                        self.resolved(m.datapath, &m.logical_port.clone(), &m.ip.clone(), &m.mac.clone());
                    }
                }
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!(target: "ovsdb_idl", "OVN_Southbound row {} of {}: {e}; it is left out", c.uuid, c.table)
                }
            }
        }
        if let Some(l) = &mut self.sb {
            l.ready = true;
        }
    }

    /// Packets that wait for a neighbour go on as soon as somebody, here or on another chassis, learned it.
    fn resolved(&mut self, datapath: Uuid, port: &str, ip: &str, mac: &str) {
        let Some(dp) = self.input.sb.datapath_binding.get(&datapath) else { return };
        let Some((_, p)) = self.input.port(port) else { return };
        let (Ok(ip), Some(mac)) = (ip.parse(), logical_flow::constant::ethernet(mac)) else { return };
        let bytes = mac.to_be_bytes();
        let Ok(mac) = <[u8; 6]>::try_from(&bytes[10..]) else { return };
        for m in self.services.resolved(dp.tunnel_key as u64, p.tunnel_key as u32, ip, mac) {
            self.send(m);
        }
    }

    fn send(&self, m: openflow_rs::Message) {
        if let Some((_, s, _)) = &self.switch {
            s.give(Command::Send(Box::new(m)));
        }
    }

    fn switch_event(&mut self, e: SwitchEvent) {
        match e {
            SwitchEvent::Connected => {
                self.switch_up = true;
                if self.derived {
                    self.install_all();
                }
            }
            SwitchEvent::Disconnected => self.switch_up = false,
            SwitchEvent::Installed(n) => self.installed = self.installed.max(n),
            SwitchEvent::Refused(text) => tracing::warn!(target: "ofctrl", "{text}"),
            SwitchEvent::PacketIn(p) => {
                tracing::debug!(target: "pinctrl", "pinctrl received packet-in | opcode={:?} | OF_Table_ID={} | OF_Cookie_ID={:#x}", p.userdata.get(3), p.table, p.cookie);
                let out = self.services.handle(*p, &self.input, Instant::now());
                for m in out.send {
                    self.send(m);
                }
                if let Some(l) = out.learned {
                    self.learn(l);
                }
            }
        }
    }

    fn learn(&mut self, l: Learned) {
        let key = match l {
            Learned::Neighbour { datapath, port, ip, mac } => {
                for m in self.services.resolved(datapath, port, ip, mac) {
                    self.send(m);
                }
                (true, datapath, port, Some(ip), mac)
            }
            Learned::Forwarding { datapath, port, mac } => (false, datapath, port, None, mac),
        };
        if self.learned.len() < 10_000 {
            self.learned.insert(key, Instant::now());
        }
    }

    /// Brings everything into line with everything.
    fn reconcile(&mut self) {
        if !self.ovs.ready {
            return;
        }
        let settings = match Settings::read(&self.ovs.db) {
            Ok(s) => s,
            Err(e) => {
                if self.complaint.as_ref() != Some(&e) {
                    tracing::warn!(target: "main", "{e}");
                    self.complaint = Some(e);
                }
                return;
            }
        };
        self.complaint = None;
        self.connect(&settings);
        self.observe(&settings);
        let southbound_ready = self.sb.as_ref().is_some_and(|l| l.ready);
        if southbound_ready {
            self.derive();
            self.write_southbound(&settings);
            self.announce();
        }
        self.write_local(&settings, southbound_ready);
        self.report();
    }

    /// Connects to the southbound database and to the integration bridge, or to others when they change.
    fn connect(&mut self, s: &Settings) {
        let tls = self.given.clone().or_else(|| settings::tls(&self.ovs.db));
        if self.remote != s.remote || self.tls != tls {
            let usable = match tls.clone().map(Tls::new).transpose() {
                Ok(t) => t,
                Err(e) => {
                    // They may be on their way; each look at the world tries again.
                    let text = format!("certificates for {}: {e}", s.remote);
                    if self.tls_complaint != text {
                        tracing::warn!(target: "stream_ssl", "{text}");
                        self.tls_complaint = text;
                    }
                    return;
                }
            };
            self.tls = tls;
            match config(&s.remote, "OVN_Southbound", TABLES) {
                Ok(c) => {
                    let c = c.tls(usable).leader_only(false).probe(s.probe).known(sb::Database::schema());
                    let (client, events) = Client::start(c);
                    self.sb = Some(Link { client, events, db: (), ready: false, current: false, busy: false });
                }
                Err(e) => tracing::warn!(target: "main", "external_ids:ovn-remote {:?}: {e}", s.remote),
            }
            self.remote.clone_from(&s.remote);
            self.probe = s.probe;
        }
        if self.probe != s.probe
            && let Some(sb) = &self.sb
        {
            sb.client.set_probe(s.probe);
            self.probe = s.probe;
        }
        if self.switch.as_ref().is_none_or(|(name, ..)| *name != s.bridge) {
            let (switch, events) = Switch::start(self.rundir.join(format!("{}.mgmt", s.bridge)));
            self.switch = Some((s.bridge.clone(), switch, events));
            self.switch_up = false;
        }
    }

    /// Looks at the local database and notes what changed for the flows.
    fn observe(&mut self, s: &Settings) {
        let old = self.input.local.clone();
        let mut new = old.clone();
        new.chassis_name = s.system_id.clone();
        new.chassis = self.input.sb.chassis.iter().find(|(_, c)| c.name == s.system_id).map(|(id, _)| *id);
        if let Some((_, br)) = bridge(&self.ovs.db, &s.bridge) {
            let sessions = plumbing::observe(&self.ovs.db, br, &self.input.sb, &mut new);
            // Without either of them, what the copy says of sessions is what they were.
            let switch_is_there = self.switch_up && self.ovs.current;
            let now = Instant::now();
            self.takeover.observe(switch_is_there, sessions.iter().map(|(name, s)| (name, *s)), now);
            new.gateways = self.takeover.view(now);
            if new.zones.is_empty() {
                new.zones = zones::remembered(&br.external_ids);
            }
        }
        self.input.local = new;
        let datapaths = local::datapaths(&self.input, &self.input.local);
        let wanted = zones::wanted(&self.input, &datapaths, self.input.local.chassis);
        let requested = self.requested_zones(&datapaths);
        self.input.local.zones = zones::assign(&self.input.local.zones, &wanted, &requested);
        self.input.local.datapaths = datapaths;
        self.note_changes(&old);
    }

    /// `snat-ct-zone` of routers.
    fn requested_zones(&self, datapaths: &BTreeSet<Uuid>) -> BTreeMap<Str, u16> {
        let one = |dp: &Uuid| {
            let b = self.input.sb.datapath_binding.get(dp)?;
            let zone = b.external_ids.get("snat-ct-zone")?.parse().ok().filter(|z| *z > 0)?;
            Some((self.input.zone_name(*dp, "snat"), zone))
        };
        datapaths.iter().filter_map(one).collect()
    }

    fn note_changes(&mut self, old: &Local) {
        let new = &self.input.local;
        if (&old.chassis, &old.chassis_name) != (&new.chassis, &new.chassis_name) {
            self.reads.push(Read::Chassis);
        }
        if old.gateways != new.gateways {
            self.reads.push(Read::Alive);
        }
        if old.tunnels != new.tunnels {
            self.reads.push(Read::Tunnels);
        }
        if old.datapaths != new.datapaths {
            self.reads.push(Read::Datapaths);
        }
        differing(&old.vifs, &new.vifs).for_each(|k| self.reads.push(Read::Vif(k)));
        differing(&old.localnets, &new.localnets).for_each(|k| self.reads.push(Read::Localnet(k)));
        differing(&old.zones, &new.zones).for_each(|k| self.reads.push(Read::Zone(k)));
    }

    fn derive(&mut self) {
        let nb_cfg = self.input.sb.sb_global.values().next().map_or(0, |g| g.nb_cfg);
        let first = !self.derived;
        let reads = std::mem::take(&mut self.reads);
        let mut changes = Changes::default();
        if first || !reads.is_empty() {
            if first {
                self.tables = Tables::default();
            }
            let tables = &mut self.tables;
            changes = self.engine.update(&self.input, reads, |c| tables.apply(c));
            self.derived = true;
            let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            s.runs += 1;
        }
        if self.switch_up && first {
            self.install_all();
        } else if self.switch_up && !changes.is_empty() {
            self.sequence += 1;
            self.bundle(changes);
        }
        if self.switch_up && self.pending_cfg.last().map_or(self.realised_cfg, |(_, c)| *c) != nb_cfg {
            self.pending_cfg.push((self.sequence, nb_cfg));
        }
    }

    fn install_all(&mut self) {
        self.sequence += 1;
        let changes = self.tables.replace();
        tracing::info!(target: "ofctrl", "replacing the flow tables: {} flows, {} groups", self.tables.len().0, self.tables.len().1);
        self.bundle(changes);
        self.announcer.restart(Instant::now());
    }

    fn bundle(&self, Changes { meters, tables, unused }: Changes) {
        if let Some((_, s, _)) = &self.switch {
            s.give(Command::Bundle { changes: tables, meters, unused, sequence: self.sequence });
        }
    }

    /// Whether the switch has all that was derived.
    fn is_installed(&self) -> bool {
        self.switch_up && self.derived && self.installed >= self.sequence
    }

    fn write_southbound(&mut self, s: &Settings) {
        let installed = self.is_installed();
        let Some(l) = &self.sb else { return };
        if l.busy || !l.client.is_connected() {
            return;
        }
        let Some(schema) = l.client.schema() else { return };
        let mut txn = Transaction::new(schema);
        chassis::reconcile(&self.input.sb, &self.ovs.db, s, &mut txn);
        for line in binding::reconcile(&self.input, &self.input.local, installed, &mut txn) {
            tracing::info!(target: "binding", "{line}");
        }
        while let Some((sequence, cfg)) = self.pending_cfg.first().copied() {
            if sequence > self.installed {
                break;
            }
            self.realised_cfg = cfg;
            self.pending_cfg.remove(0);
        }
        if let Some((id, p)) = self.input.sb.chassis_private.iter().find(|(_, p)| p.name == s.system_id)
            && self.realised_cfg > p.nb_cfg
        {
            let columns = [("nb_cfg", self.realised_cfg.to_datum()), ("nb_cfg_timestamp", milliseconds().to_datum())];
            txn.update("Chassis_Private", *id, columns);
        }
        write_learned(&self.input, &mut self.learned, &mut txn);
        if txn.is_empty() {
            return;
        }
        let (client, done) = (l.client.clone(), self.done_tx.clone());
        if let Some(l) = &mut self.sb {
            l.busy = true;
        }
        tokio::spawn(async move {
            let r = client.commit(txn).await.map(drop);
            let _ = done.send(Done::Southbound(r));
        });
    }

    fn write_local(&mut self, s: &Settings, southbound_ready: bool) {
        if self.ovs.busy || !self.ovs.client.is_connected() {
            return;
        }
        let Some(schema) = self.ovs.client.schema() else { return };
        let mut txn = Transaction::new(schema);
        if let Some(br) = plumbing::ensure_bridge(&self.ovs.db, s, &mut txn)
            && southbound_ready
        {
            let me = self.input.local.chassis;
            plumbing::reconcile_tunnels(&self.ovs.db, br, &self.input, s, me, &mut txn);
            plumbing::reconcile_patches(&self.ovs.db, br, &self.input, &self.input.local, s, &mut txn);
            self.write_bridge(br, &mut txn);
            self.write_interfaces(br.1, &mut txn);
        }
        if txn.is_empty() {
            return;
        }
        self.ovs.busy = true;
        let (client, done) = (self.ovs.client.clone(), self.done_tx.clone());
        tokio::spawn(async move {
            let r = client.commit(txn).await.map(drop);
            let _ = done.send(Done::Local(r));
        });
    }

    /// Zones, start and configuration number, in the bridge's `external_ids`.
    fn write_bridge(&self, (id, br): (Uuid, &ovs::Bridge), txn: &mut Transaction) {
        let mut ids = zones::remember(&br.external_ids, &self.input.local.zones);
        ids.insert("ovn-startup-ts".into(), self.startup.as_str().into());
        if self.realised_cfg >= 0 {
            let cfg: Str = self.realised_cfg.to_string().into();
            if ids.insert("ovn-nb-cfg".into(), cfg.clone()) != Some(cfg) {
                ids.insert("ovn-nb-cfg-ts".into(), milliseconds().to_string().into());
            }
        }
        if ids != br.external_ids {
            txn.update("Bridge", id, [("external_ids", ids.to_datum())]);
        }
    }

    /// `ovn-installed` on interfaces whose port is bound here and whose flows are in.
    fn write_interfaces(&self, br: &ovs::Bridge, txn: &mut Transaction) {
        let installed = self.is_installed();
        for (_, _, iid, i) in interfaces(&self.ovs.db, br) {
            let Some(name) = i.external_ids.get("iface-id") else { continue };
            let bound = self
                .input
                .port(name)
                .is_some_and(|(_, p)| p.chassis.is_some() && p.chassis == self.input.local.chassis);
            let marked = i.external_ids.get("ovn-installed").is_some_and(|v| &**v == "true");
            if bound == marked || bound && !installed {
                continue;
            }
            let mut ids: Map<Str, Str> = i.external_ids.clone();
            if bound {
                tracing::info!(target: "binding", "Setting lport {name} ovn-installed in OVS");
                ids.insert("ovn-installed".into(), "true".into());
                ids.insert("ovn-installed-ts".into(), milliseconds().to_string().into());
            } else {
                ids.remove("ovn-installed");
                ids.remove("ovn-installed-ts");
            }
            txn.update("Interface", iid, [("external_ids", ids.to_datum())]);
        }
    }

    fn announce(&mut self) {
        let now = Instant::now();
        self.services.expire(now);
        if !self.is_installed() || self.input.local.gateways.starting {
            return;
        }
        self.announcer.update(served(&self.input), now);
        for m in self.announcer.due(now) {
            self.send(m);
        }
    }

    fn report(&self) {
        let mut problems: Vec<String> = self.engine.derivation().problems().into_values().collect();
        problems.sort();
        let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for p in problems.iter().filter(|p| !s.problems.contains(p)) {
            tracing::warn!(target: "lflow", "{p}");
        }
        s.problems = problems;
        s.southbound = self.sb.as_ref().is_some_and(|l| l.client.is_connected());
        s.tables = self.tables.len();
        s.zones.clone_from(&self.input.local.zones);
    }

    /// Takes this chassis out of the southbound database.
    pub async fn clean_up(&mut self) {
        let Ok(s) = Settings::read(&self.ovs.db) else { return };
        let Some(l) = self.sb.as_ref().filter(|l| l.client.is_connected()) else { return };
        let Some(schema) = l.client.schema() else { return };
        let mut txn = Transaction::new(schema);
        if let Some(me) = self.input.local.chassis {
            binding::release_all(&self.input.sb, me, &mut txn);
        }
        chassis::remove(&self.input.sb, &s, &mut txn);
        let end = tokio::time::timeout(Duration::from_secs(5), l.client.commit(txn)).await;
        if !matches!(end, Ok(Ok(_))) {
            tracing::warn!(target: "main", "the chassis could not be taken out of the southbound database");
        }
    }
}

fn milliseconds() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// The keys whose values differ.
fn differing<'a, V: PartialEq>(
    a: &'a BTreeMap<Str, V>,
    b: &'a BTreeMap<Str, V>,
) -> impl Iterator<Item = Str> + use<'a, V> {
    let gone = a.iter().filter(|(k, v)| b.get(*k) != Some(*v)).map(|(k, _)| k.clone());
    let new = b.keys().filter(|k| !a.contains_key(*k)).cloned();
    gone.chain(new)
}

async fn next_event<D>(link: &mut Option<Link<D>>) -> Option<Event> {
    match link {
        Some(l) => l.events.recv().await,
        None => std::future::pending().await,
    }
}

async fn next_switch(switch: &mut Option<(Str, Switch, mpsc::UnboundedReceiver<SwitchEvent>)>) -> Option<SwitchEvent> {
    match switch {
        Some((_, _, events)) => events.recv().await,
        None => std::future::pending().await,
    }
}

/// Writes what packets taught, where the database does not say it already; what it says is done with.
fn write_learned(input: &Input, learned: &mut BTreeMap<Learned2, Instant>, txn: &mut Transaction) {
    const FORGET: Duration = Duration::from_secs(10);
    learned.retain(|_, since| since.elapsed() < FORGET);
    let mut known = Vec::new();
    for key in learned.keys() {
        let (neighbour, dp, port, ip, mac) = key;
        let text: Str = mac.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":").into();
        let Some((dp_id, binding)) = input.sb.datapath_binding.iter().find(|(_, d)| d.tunnel_key as u64 == *dp) else {
            continue;
        };
        if !neighbour {
            match input.sb.fdb.iter().find(|(_, f)| f.mac == text && f.dp_key == binding.tunnel_key) {
                Some((_, f)) if f.port_key == i64::from(*port) => known.push(*key),
                Some((id, _)) => txn.update(
                    "FDB",
                    *id,
                    [("port_key", i64::from(*port).to_datum()), ("timestamp", milliseconds().to_datum())],
                ),
                None => {
                    let columns = [
                        ("mac", text.to_datum()),
                        ("dp_key", binding.tunnel_key.to_datum()),
                        ("port_key", i64::from(*port).to_datum()),
                        ("timestamp", milliseconds().to_datum()),
                    ];
                    txn.insert("FDB", columns);
                }
            }
            continue;
        }
        let Some(ip) = ip.map(|ip| Str::from(ip.to_string())) else { continue };
        // A redirect port stands for its distributed port.
        let Some((_, p)) = input.ports_of(*dp_id).find(|(_, p)| p.tunnel_key == i64::from(*port)) else { continue };
        let name = p.options.get("distributed-port").unwrap_or(&p.logical_port).clone();
        match input.sb.mac_binding.iter().find(|(_, m)| m.logical_port == name && m.ip == ip) {
            Some((_, m)) if m.mac == text => known.push(*key),
            Some((id, _)) => {
                txn.update("MAC_Binding", *id, [("mac", text.to_datum()), ("timestamp", milliseconds().to_datum())])
            }
            None => {
                let columns = [
                    ("logical_port", name.to_datum()),
                    ("ip", ip.to_datum()),
                    ("mac", text.to_datum()),
                    ("datapath", dp_id.to_datum()),
                    ("timestamp", milliseconds().to_datum()),
                ];
                txn.insert("MAC_Binding", columns);
            }
        }
    }
    for k in known {
        learned.remove(&k);
    }
}
