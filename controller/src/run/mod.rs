//! The controller's loop: events in, the state brought into line, transactions and flows out.

mod ask;
mod connect;
mod local;
mod southbound;

use crate::aging::Watch;
use crate::flows::{self, ChassisFlows, Ids};
use crate::install::{Changes, Tables};
use crate::model::{Input, Local, Read};
use crate::once::Once;
use crate::openflow::{Command, Event as SwitchEvent, Switch};
use crate::pinctrl::advertise::Advertiser;
use crate::pinctrl::announce::{Announcer, neighbours, served};
use crate::pinctrl::{Learned, Services};
use crate::plan::{Attempts, Failure};
use crate::request::Request;
use crate::settings::{Identity, Incomplete, Settings, bridge};
use crate::{chassis, claims, learned, plumbing, zones};
use daemon::Daemon;
use gateway_ha::Takeover;
use incremental::Engine;
use ovn_schema::{Str, Uuid, ovs, sb};
use ovsdb_rs::client::{Client, Config, Event, TableRequest, Update};
use ovsdb_rs::tls::TlsFiles;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Which connection this is: an answer to one before is nobody's.
    number: u64,
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
    Southbound(u64, Result<(), Failure>),
    Local(Result<(), Failure>),
}

/// A configuration that is in the switch once a bundle is.
#[derive(Clone, Copy, Debug)]
struct Configuration {
    /// The bundle's number.
    sequence: u64,
    nb_cfg: i64,
    /// When northd wrote it, in milliseconds since 1970.
    timestamp: i64,
}

/// The controller's state.
pub struct Controller {
    rundir: PathBuf,
    ovs: Link<ovs::Database>,
    sb: Option<Link<()>>,
    remote: String,
    probe: (Option<Duration>, bool),
    /// The command line's key, certificate and CA; those of the local database's SSL table come before them.
    given: Option<TlsFiles>,
    identity: Identity,
    tls: Option<TlsFiles>,
    tls_complaint: String,
    input: Input,
    ids: Arc<Ids>,
    engine: Engine<ChassisFlows>,
    reads: Vec<Read>,
    tables: Tables,
    switch: Option<(Str, Switch, mpsc::Receiver<SwitchEvent>)>,
    switch_up: bool,
    switch_complaint: String,
    derived: bool,
    /// Flows changed while there was no switch to have them.
    unsent: bool,
    sequence: u64,
    installed: u64,
    pending_cfg: Vec<Configuration>,
    /// `nb_cfg` and its time, of what the switch has.
    realised_cfg: Option<(i64, i64)>,
    /// Since when it has it, in milliseconds since 1970.
    realised_at: i64,
    /// Seconds by which the report of `nb_cfg` is held back (`debug/delay-nb-cfg-report`), and until when it is.
    report_delay: u64,
    report_after: Option<Instant>,
    services: Services,
    learned: learned::Pending,
    announcer: Announcer,
    advertiser: Advertiser,
    aging: Watch,
    /// `garp-max-timeout-sec`.
    longest_pause: Option<Duration>,
    claims: claims::Claims,
    chassis_writer: chassis::Writer,
    sb_attempts: Attempts,
    local_attempts: Attempts,
    patch_said: Once,
    /// The integration bridge of the last look; none at the start.
    bridge_before: Option<Str>,
    /// Zones whose connections the switch is to forget.
    to_flush: BTreeSet<u16>,
    /// Connections that it is to forget once the flows that made them are gone.
    to_forget: BTreeSet<flows::Connections>,
    /// There were not enough zones at the last look.
    exhausted: bool,
    paused: bool,
    requests: mpsc::UnboundedReceiver<Request>,
    complaint: Option<Incomplete>,
    version_complaint: Option<String>,
    takeover: Takeover,
    done_tx: mpsc::UnboundedSender<Done>,
    done_rx: mpsc::UnboundedReceiver<Done>,
    shared: Shared,
    startup: String,
}

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
    "Service_Monitor",
    "ECMP_Nexthop",
    "ACL_ID",
    "Controller_Event",
    "Mirror",
    "IP_Multicast",
    "IGMP_Group",
];

/// What ovn-northd and ovn-controller compare: OVN's version, the southbound schema's, the number of logical actions and a count
/// of changes without any of these.
pub const INTERNAL_VERSION: &str = "26.03.90-21.11.0-82.15";

/// Packets served in one turn of the loop at most.
const PACKETS_A_TURN: usize = 64;

/// The local tables.
const LOCAL_TABLES: &[&str] = &[
    "Open_vSwitch",
    "Bridge",
    "Port",
    "Interface",
    "SSL",
    "Flow_Table",
    "Datapath",
    "CT_Zone",
    "QoS",
    "Queue",
    "Mirror",
];

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
        identity: Identity,
        (shared, requests): (Shared, mpsc::UnboundedReceiver<Request>),
    ) -> Result<Controller, ovsdb_rs::Error> {
        let (client, events) =
            Client::start(config(ovs_remote, "Open_vSwitch", LOCAL_TABLES)?.known(ovs::Database::schema()));
        let (done_tx, done_rx) = mpsc::unbounded_channel();
        let ids: Arc<Ids> = Arc::default();
        Ok(Controller {
            rundir,
            ovs: Link {
                client,
                events,
                db: ovs::Database::default(),
                ready: false,
                current: false,
                busy: false,
                number: 0,
            },
            sb: None,
            remote: String::new(),
            probe: (None, false),
            given,
            identity,
            tls: None,
            tls_complaint: String::new(),
            input: Input::default(),
            engine: Engine::new(ChassisFlows::new(ids.clone())),
            ids,
            reads: Vec::new(),
            tables: Tables::default(),
            switch: None,
            switch_up: false,
            switch_complaint: String::new(),
            derived: false,
            unsent: false,
            sequence: 0,
            installed: 0,
            pending_cfg: Vec::new(),
            realised_cfg: None,
            realised_at: 0,
            report_delay: 0,
            report_after: None,
            services: Services::default(),
            learned: BTreeMap::new(),
            announcer: Announcer::default(),
            advertiser: Advertiser::default(),
            aging: Watch::default(),
            longest_pause: None,
            claims: claims::Claims::default(),
            chassis_writer: chassis::Writer::default(),
            sb_attempts: Attempts::default(),
            local_attempts: Attempts::default(),
            patch_said: Once::default(),
            bridge_before: None,
            to_flush: BTreeSet::new(),
            to_forget: BTreeSet::new(),
            exhausted: false,
            paused: false,
            requests,
            complaint: None,
            version_complaint: None,
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
            let wake = self.next_timer(Instant::now());
            let live = !self.paused;
            tokio::select! {
                () = daemon.exiting() => return,
                Some(r) = self.requests.recv() => self.answer(r),
                Some(e) = self.ovs.events.recv(), if live => self.local_event(e),
                Some(e) = next_event(&mut self.sb), if live => self.southbound_event(e),
                Some(e) = next_switch(&mut self.switch) => self.switch_event(e),
                Some(d) = self.done_rx.recv() => self.finished(d),
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            self.drain();
            if !self.paused {
                self.reconcile();
            }
        }
    }

    /// What is there already belongs to the same look at the world. Of packets only some do: a flood of them must not keep
    /// databases and claims waiting.
    fn drain(&mut self) {
        while let Some(Ok(e)) = (!self.paused).then(|| self.ovs.events.try_recv()) {
            self.local_event(e);
        }
        while let Some(Ok(e)) = self.sb.as_mut().filter(|_| !self.paused).map(|l| l.events.try_recv()) {
            self.southbound_event(e);
        }
        for _ in 0..PACKETS_A_TURN {
            let Some(Ok(e)) = self.switch.as_mut().map(|s| s.2.try_recv()) else { break };
            self.switch_event(e);
        }
        while let Ok(d) = self.done_rx.try_recv() {
            self.finished(d);
        }
    }

    /// When there is something to do without an event. Only what the next look can act on counts: what waits for a switch, a
    /// database or an answer comes with an event.
    fn next_timer(&self, now: Instant) -> Instant {
        let limit = now + Duration::from_secs(1);
        if self.paused {
            return limit;
        }
        let periodic = [self.announcer.next(), self.advertiser.next(), self.aging.next(), self.services.next()];
        let periodic = periodic.into_iter().flatten().min();
        let announcements = periodic.filter(|_| self.can_announce());
        let writes = |l: bool, t: Option<Instant>| t.filter(|_| l);
        let sb_free = self.sb.as_ref().is_some_and(|l| !l.busy && l.client.is_connected());
        let ovs_free = !self.ovs.busy && self.ovs.client.is_connected();
        let all = [
            announcements,
            self.takeover.next(now),
            writes(sb_free, self.claims.next()),
            writes(sb_free, self.sb_attempts.next()),
            writes(sb_free, self.report_after.filter(|t| *t > now)),
            writes(ovs_free, self.local_attempts.next()),
        ];
        // Whatever is overdue, nothing is worth more than a look each millisecond.
        all.into_iter().flatten().fold(limit, Instant::min).max(now + Duration::from_millis(1))
    }

    fn finished(&mut self, d: Done) {
        let now = Instant::now();
        let (what, said) = match d {
            Done::Local(r) => {
                self.ovs.busy = false;
                ("Open_vSwitch", self.local_attempts.finished(r, now))
            }
            Done::Southbound(number, r) => {
                let Some(l) = self.sb.as_mut().filter(|l| l.number == number) else { return };
                l.busy = false;
                if matches!(r, Err(Failure::Refused(..))) {
                    tracing::info!(target: "main", "OVNSB commit failed, what was refused is tried again later.");
                }
                ("OVN_Southbound", self.sb_attempts.finished(r, now))
            }
        };
        if let Some(text) = said {
            tracing::warn!(target: "main", kind = daemon::kind(&text), "{what}: {text}");
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
            Event::Disconnected => {
                tracing::info!(target: "reconnect", "{}: connection lost", self.remote);
                tracing::info!(target: "main", "OVNSB commit failed: nothing is written until the connection is back.");
            }
            Event::Lock { .. } => {}
        }
    }

    fn southbound_update(&mut self, u: &Update) {
        if u.reset {
            // Start from nothing, but keep what is in the switch until the new state is complete.
            let local = std::mem::take(&mut self.input.local);
            self.input = Input::new(sb::Database::default(), local);
            self.ids = Arc::default();
            self.engine = Engine::new(ChassisFlows::new(self.ids.clone()));
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
                    if let sb::AnyChange::Chassis(ovn_schema::Change { new: Some(c), .. }) = &change {
                        flows::check_mappings(c);
                    }
                    if let sb::AnyChange::LogicalFlow(ovn_schema::Change { uuid, new: None, .. }) = &change {
                        self.engine.derivation().forget(*uuid);
                    }
                    if let sb::AnyChange::PortBinding(ovn_schema::Change { old: Some(old), new: Some(new), .. }) =
                        &change
                    {
                        self.gateway_moved(old, new);
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

    /// Tells the take-over machine when another chassis claims a gateway port or gives one up.
    fn gateway_moved(&mut self, old: &sb::PortBinding, new: &sb::PortBinding) {
        if new.ha_chassis_group.is_none() || old.chassis == new.chassis {
            return;
        }
        let (now, me) = (Instant::now(), self.input.local.chassis);
        let other =
            |c: Option<Uuid>| self.input.sb.chassis.get(&c?).filter(|c| c.name != self.input.local.chassis_name);
        match (other(old.chassis), other(new.chassis)) {
            (_, Some(claimant)) => self.takeover.claimed(&claimant.name, now),
            (Some(before), None) if new.chassis.is_none() => self.takeover.released(&before.name),
            _ => {}
        }
        if old.chassis.is_some() && old.chassis == me && new.chassis.is_some() {
            self.takeover.overtaken(&new.logical_port, now);
        }
        if new.chassis.is_some() && new.chassis == me {
            // Until now the other one may have spoken for the port as well, and bridges have learned it there.
            self.announcer.restart(now);
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
                tracing::info!(target: "pinctrl", "connected: packets for this controller come by the connection to the integration bridge");
                self.flush_zones();
                if self.derived {
                    self.install_all();
                }
            }
            SwitchEvent::Disconnected => self.switch_up = false,
            SwitchEvent::Installed(n) => self.installed = self.installed.max(n),
            SwitchEvent::Refused(text) => tracing::warn!(target: "ofctrl", kind = daemon::kind(&text), "{text}"),
            SwitchEvent::Statistics(flows) => {
                for m in self.aging.observe(&flows, &self.input, milliseconds()) {
                    self.send(m);
                }
            }
            SwitchEvent::PacketIn(p) => {
                crate::pinctrl::PACKETS.inc();
                tracing::debug!(target: "vconn", "received: NXT_PACKET_IN2 (OF1.5): table_id={} cookie=0x{:x} total_len={}", p.table, p.cookie, p.total_len);
                tracing::debug!(target: "pinctrl", "pinctrl received  packet-in | opcode={}| OF_Table_ID={}| OF_Cookie_ID=0x{:x}", opcode_name(&p.userdata), p.table, p.cookie);
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
        if let Learned::Neighbour { datapath, port, ip, mac } = l {
            for m in self.services.resolved(datapath, port, ip, mac) {
                self.send(m);
            }
        }
        if self.learned.len() < 10_000 {
            self.learned.insert(learned::Key::from(&l), Instant::now());
        }
    }

    /// Brings everything into line with everything.
    fn reconcile(&mut self) {
        if !self.ovs.ready {
            return;
        }
        let settings = match Settings::read(&self.ovs.db, &self.identity) {
            Ok(s) => s,
            Err(e) => {
                if self.complaint.as_ref() != Some(&e) {
                    tracing::warn!(target: "main", kind = daemon::kind(&e.to_string()), "{e}");
                    self.complaint = Some(e);
                }
                self.make_bridge();
                return;
            }
        };
        self.complaint = None;
        self.longest_pause = settings.garp_longest;
        self.services.next_hop_pause = settings.arp_longest;
        self.connect(&settings);
        self.connect_switch(&settings);
        self.observe(&settings);
        let southbound_ready = self.sb.as_ref().is_some_and(|l| l.ready) && self.version_matches(&settings);
        if southbound_ready {
            self.derive();
            self.write_southbound(&settings);
            self.announce();
        }
        self.write_local(&settings, southbound_ready);
        self.report();
    }

    /// Looks at the local database and notes what changed for the flows.
    fn observe(&mut self, s: &Settings) {
        let old = self.input.local.clone();
        let mut new = old.clone();
        new.chassis_name = s.system_id.clone();
        new.hostname = s.hostname.clone();
        new.encap_ips = s.encap_ips();
        new.activated = self.services.activated.clone();
        new.southbound = self.sb.as_ref().is_some_and(|l| l.client.is_connected());
        new.chassis = self.input.sb.chassis.iter().find(|(_, c)| c.name == s.system_id).map(|(id, _)| *id);
        if let Some((_, br)) = bridge(&self.ovs.db, &s.bridge) {
            let sessions = plumbing::observe(&self.ovs.db, br, &self.input.sb, &mut new);
            new.claimants = plumbing::claimants(&self.ovs.db, br);
            // Without either of them, what the copy says of sessions is what they were.
            let switch_is_there = self.switch_up && self.ovs.current;
            let now = Instant::now();
            self.takeover.observe(switch_is_there, sessions.iter().map(|(name, s)| (name, *s)), now);
            new.gateways = self.takeover.view(now);
            if new.zones.is_empty() && self.sb.as_ref().is_some_and(|l| l.ready) {
                new.zones = zones::remembered(&br.external_ids, &self.input);
            }
        }
        if let Some((_, br)) = bridge(&self.ovs.db, &s.bridge).filter(|_| !self.ovs.busy) {
            new.zones.extend(zones::from_rows(&br.external_ids, &self.input));
        }
        self.input.local = new;
        let datapaths = crate::local::datapaths(&self.input, &self.input.local);
        let wanted = zones::wanted(&self.input, &datapaths, self.input.local.chassis);
        let requested = zones::requested(&self.input, &datapaths);
        // Zones stay as they are until it is known what is here.
        if self.sb.as_ref().is_some_and(|l| l.ready) && self.input.local.chassis.is_some() {
            let assigned = zones::assign(&self.input.local.zones, &wanted, &requested, s.zone_range);
            if let Some(name) = wanted.iter().find(|n| !assigned.contains_key(*n)).filter(|_| !self.exhausted) {
                tracing::warn!(target: "ct_zone", "connection tracking zones are exhausted; {name} has none");
            }
            self.exhausted = assigned.len() < wanted.len();
            self.to_flush.extend(zones::to_flush(&self.input.local.zones, &assigned));
            self.input.local.zones = assigned;
        }
        self.input.local.datapaths = datapaths;
        self.note_changes(&old);
    }

    /// Lets the switch forget the connections of zones that change hands, before flows of the new owner are there.
    fn flush_zones(&mut self) {
        if self.switch_up {
            for zone in std::mem::take(&mut self.to_flush) {
                self.send(openflow_rs::Message::CtFlushZone(zone));
            }
        }
    }

    /// Lets the switch forget the connections of backends that went, behind the flows of what took their place.
    fn forget_connections(&mut self) {
        if self.switch_up {
            for c in std::mem::take(&mut self.to_forget) {
                tracing::debug!(target: "ofctrl", "{c}");
                self.send(openflow_rs::Message::CtFlush(c.flush()));
            }
        }
    }

    fn note_changes(&mut self, old: &Local) {
        let new = &self.input.local;
        if (&old.chassis, &old.chassis_name, &old.hostname) != (&new.chassis, &new.chassis_name, &new.hostname) {
            self.reads.push(Read::Chassis);
        }
        if (&old.gateways, old.southbound) != (&new.gateways, new.southbound) {
            self.reads.push(Read::Alive);
        }
        if (&old.tunnels, &old.encap_ips) != (&new.tunnels, &new.encap_ips) {
            self.reads.push(Read::Tunnels);
        }
        let activated = old.activated.symmetric_difference(&new.activated);
        self.reads.extend(activated.map(|id| Read::Row(sb::TableId::PortBinding, *id)));
        if old.datapaths != new.datapaths {
            self.reads.push(Read::Datapaths);
        }
        differing(&old.vifs, &new.vifs).for_each(|k| self.reads.push(Read::Vif(k)));
        differing(&old.localnets, &new.localnets).for_each(|k| self.reads.push(Read::Localnet(k)));
        differing(&old.zones, &new.zones).for_each(|k| self.reads.push(Read::Zone(k)));
    }

    fn derive(&mut self) {
        self.flush_zones();
        let global = self.input.sb.sb_global.values().next();
        let (nb_cfg, timestamp) = global.map_or((0, 0), |g| (g.nb_cfg, g.nb_cfg_timestamp));
        let first = !self.derived;
        let reads = std::mem::take(&mut self.reads);
        let mut changes = Changes::default();
        if first || !reads.is_empty() {
            let before = first.then(|| self.tables.restart());
            let (tables, ids) = (&mut self.tables, &self.ids);
            changes = self.engine.update(&self.input, reads, |c| tables.apply(c, ids));
            self.to_forget.extend(changes.forget.drain(..));
            if let Some(before) = before {
                self.to_forget.extend(self.tables.left_behind(&before));
                flows::RUNS.inc();
            }
            self.derived = true;
            let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            s.runs += 1;
        }
        if self.switch_up && first {
            self.install_all();
        } else if self.switch_up && !changes.is_empty() {
            self.sequence += 1;
            self.bundle(changes);
        } else if !self.switch_up {
            self.unsent |= first || !changes.is_empty();
        }
        self.forget_connections();
        let last = self.pending_cfg.last().map(|p| (p.nb_cfg, p.timestamp)).or(self.realised_cfg);
        // A configuration that changes no flow is realised without a switch, too.
        if (self.switch_up || !self.unsent) && last != Some((nb_cfg, timestamp)) {
            self.pending_cfg.push(Configuration { sequence: self.sequence, nb_cfg, timestamp });
        }
    }

    fn install_all(&mut self) {
        self.unsent = false;
        self.sequence += 1;
        let changes = self.tables.replace();
        tracing::debug!(target: "ofctrl", "clearing all flows");
        tracing::info!(target: "ofctrl", "replacing the flow tables: {} flows, {} groups", self.tables.len().0, self.tables.len().1);
        self.bundle(changes);
        self.announcer.restart(Instant::now());
    }

    fn bundle(&self, Changes { meters, tables, unused, .. }: Changes) {
        if let Some((_, s, _)) = &self.switch {
            s.give(Command::Bundle { changes: tables, meters, unused, sequence: self.sequence });
        }
    }

    /// Whether the switch has all that was derived.
    fn is_installed(&self) -> bool {
        self.switch_up && self.derived && self.installed >= self.sequence
    }

    fn can_announce(&self) -> bool {
        self.is_installed() && !self.input.local.gateways.starting
    }

    fn announce(&mut self) {
        let now = Instant::now();
        self.services.expire(now);
        if !self.can_announce() {
            return;
        }
        let new = self.announcer.update(served(&self.input), self.longest_pause, now);
        for key in new.iter().flat_map(|a| neighbours(&self.input, a)) {
            self.learned.insert(key, now);
        }
        for m in self.announcer.due(now) {
            self.send(m);
        }
        self.advertiser.observe(&self.input, now);
        for m in self.advertiser.due(now) {
            self.send(m);
        }
        for m in self.aging.due(&self.input, now).into_iter().chain(self.services.due(&self.input, now)) {
            self.send(m);
        }
    }

    /// Whether northd is of the version that this controller is made for, where the operator wants that to matter.
    fn version_matches(&mut self, s: &Settings) -> bool {
        let theirs = self.input.sb.sb_global.values().next().and_then(|g| g.options.get("northd_internal_version"));
        let text = match theirs {
            _ if !s.match_northd_version => None,
            Some(v) if **v == *INTERNAL_VERSION => None,
            Some(v) => Some(format!("controller version - {INTERNAL_VERSION} mismatch with northd version - {v}")),
            None => Some("northd does not tell its version".to_string()),
        };
        if self.version_complaint != text {
            if let Some(t) = &text {
                tracing::warn!(target: "main", "{t}");
            }
            self.version_complaint = text;
        }
        self.version_complaint.is_none()
    }

    fn report(&self) {
        let mut problems: Vec<String> = self.engine.derivation().problems().into_values().collect();
        problems.sort();
        let mut s = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for p in problems.iter().filter(|p| !s.problems.contains(p)) {
            tracing::warn!(target: "lflow", kind = daemon::kind(p), "{p}");
        }
        s.problems = problems;
        s.southbound = self.sb.as_ref().is_some_and(|l| l.client.is_connected());
        s.tables = self.tables.len();
        s.zones.clone_from(&self.input.local.zones);
    }
}

/// What a packet was sent here for, by the name that OVN gives it.
fn opcode_name(userdata: &[u8]) -> String {
    let code = userdata.get(3).copied().unwrap_or(u8::MAX);
    crate::encode::opcode::name(code).map_or_else(|| format!("unrecognized({code})"), str::to_string)
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

async fn next_switch(switch: &mut Option<(Str, Switch, mpsc::Receiver<SwitchEvent>)>) -> Option<SwitchEvent> {
    match switch {
        Some((_, _, events)) => events.recv().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
