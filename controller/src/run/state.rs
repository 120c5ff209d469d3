//! What the controller holds, and how it begins.

use super::evpn::Evpn;
use super::milliseconds;
use super::routing::Routing;
use super::times::Times;
use crate::input::interfaces::Interfaces;
use crate::input::model::{Input, Read};
use crate::input::settings::{Identity, Incomplete, Settings};
use crate::openflow::features::Features;
use crate::openflow::install::Tables;
use crate::openflow::statistics::Statistics;
use crate::openflow::{Event as SwitchEvent, Switch};
use crate::pinctrl::advertise::Advertiser;
use crate::pinctrl::announce::Announcer;
use crate::pinctrl::task::Task;
use crate::pinctrl::trace::Trace;
use crate::pinctrl::{Activated, Monitors};
use crate::plan::once::Once;
use crate::plan::{Attempts, Failure, InLine};
use crate::plug::Plugs;
use crate::rows::aging::Watch;
use crate::rows::plumbing::Sessions;
use crate::rows::uplinks::Uplinks;
use crate::run::request::Request;
use crate::units::flows::{self, ChassisFlows, Ids};
use crate::units::presence::Presence;
use crate::{rows::chassis, rows::claims, rows::learned, rows::virtual_ports};
use gateway_ha::Takeover;
use incremental::Engine;
use ovn_schema::{Str, Uuid, ovs, sb};
use ovsdb_rs::DatabaseSchema;
use ovsdb_rs::client::{Client, Conditions, Config, Event, TableRequest};
use ovsdb_rs::tls::{Limits, TlsFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// A database with its typed copy.
pub(super) struct Link<D> {
    pub(super) client: Client,
    pub(super) events: mpsc::UnboundedReceiver<Event>,
    pub(super) db: D,
    /// The copy is complete.
    pub(super) ready: bool,
    /// It is what the server has now, not what it had before the connection was lost.
    pub(super) current: bool,
    /// A transaction is under way; what it changes has not been seen yet.
    pub(super) busy: bool,
    /// Which connection this is: an answer to one before is nobody's.
    pub(super) number: u64,
    /// Which rows were asked for last.
    pub(super) asked: Conditions,
}

/// The integration bridge, as it is managed.
pub(super) struct Bridge {
    /// Where and how.
    pub(super) key: Str,
    pub(super) flows: Switch,
    pub(super) statistics: Statistics,
    pub(super) events: mpsc::Receiver<SwitchEvent>,
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
    /// What could not be turned into flows, by row.
    pub problems: BTreeMap<Uuid, Str>,
    /// How often flows are derived, and how long that takes.
    pub times: Arc<Times>,
    /// The last exchanges of DHCP.
    pub trace: Trace,
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

pub(super) enum Done {
    Southbound(u64, Result<(), Failure>),
    Local(Result<(), Failure>),
}

/// A configuration that is in the switch once a bundle is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Configuration {
    /// The bundle's number.
    pub(super) sequence: u64,
    pub(super) nb_cfg: i64,
    /// When northd wrote it, in milliseconds since 1970.
    pub(super) timestamp: i64,
}

/// Counts of what changed: [`Interfaces::plumbing`], and the input's generation.
pub(super) type Counts = (u64, u64);

/// What the rows of the local database follow from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LocalState {
    pub(super) counts: Counts,
    /// Updates of the database, and changes of zones.
    pub(super) updates: u64,
    pub(super) zones: u64,
    /// Devices that may be plugged in.
    pub(super) devices: u64,
    /// The switch has all flows.
    pub(super) installed: bool,
    /// The configuration that it has.
    pub(super) realised: Option<(i64, i64)>,
    /// It is known what is here.
    pub(super) known: bool,
}

/// What uplinks follow from: the local database, patch ports, bindings, groups, their members and their chassis, and which
/// next hops are silent.
pub(super) type UplinkState = (u64, u64, [u64; 4], u64);

/// What this chassis' rows follow from: the local database, these rows, networks that it does not reach, external ports that it
/// asks for, and the switch's features.
pub(super) type ChassisState = (u64, u64, BTreeSet<Str>, BTreeSet<Uuid>, Option<Features>);

/// What is in line with what was derived, and as of which state.
#[derive(Debug, Default)]
pub(super) struct Sinks {
    /// The local database.
    pub(super) local: InLine<LocalState>,
    /// Of it, tunnels: by its own state, theirs, and that of the times that the operator set for BFD.
    pub(super) tunnels: InLine<(u64, u64, u64, bool)>,
    /// Patch ports and queues.
    pub(super) patches: InLine<(u64, u64, u64)>,
    /// Gateways that know this one's connections: by groups, their members and their chassis.
    pub(super) peers: InLine<(u64, [u64; 3])>,
    /// Mirrors.
    pub(super) mirrors: InLine<(u64, u64)>,
    /// Plugged devices: by the bridge's interfaces, what is asked for, and the devices that there are.
    pub(super) plugs: InLine<(u64, u64, u64)>,
    /// How many connections zones may have.
    pub(super) limits: InLine<(u64, u64, u64)>,
    /// This chassis' rows.
    pub(super) chassis: InLine<ChassisState>,
    /// As of when the bridge was looked through for zones that are named by rows.
    pub(super) rows: Option<(u64, u64)>,
    /// As of when BFD sessions were looked at.
    pub(super) sessions: Option<(u64, u64)>,
    /// As of when the members of this chassis' groups were looked at: the chassis, and the tables that say so.
    pub(super) members: Option<(Option<Uuid>, [u64; 3])>,
    /// As of when uplinks were looked at, and how they were.
    pub(super) uplinks: Option<(UplinkState, Uplinks)>,
    /// As of when zones were assigned, and in which range.
    pub(super) zones: Option<(u64, u64, (u16, u16))>,
    /// As of when announcements were listed, and the longest pause between them.
    pub(super) served: Option<(u64, Option<Duration>)>,
    /// As of when the kernel's side was told what routes there are: by ports and prefixes, and by the local database.
    pub(super) routes: Option<(u64, u64)>,
    /// As of when the fabric was looked at: by switches and what they advertise, the local database, and the kernel's devices.
    pub(super) fabric: Option<(u64, u64, u64)>,
    /// Learned routes: by what was learned, and by their table.
    pub(super) learned_routes: InLine<(u64, u64)>,
    /// As of when the southbound server was asked for rows, all or not, and by which connection.
    pub(super) asked: Option<(u64, bool, u64)>,
}

/// The controller's state.
pub struct Controller {
    pub(super) rundir: PathBuf,
    pub(super) ovs: Link<ovs::Database>,
    pub(super) sb: Option<Link<()>>,
    pub(super) remote: String,
    /// The probe interval, and whether the operator asked for it.
    pub(super) probe: (Option<Duration>, bool),
    /// The command line's key, certificate and CA; those of the local database's SSL table come before them.
    pub(super) given: Option<TlsFiles>,
    /// The command line's protocols and ciphers, wherever the files come from.
    pub(super) limits: Limits,
    pub(super) identity: Identity,
    /// How often the local database was heard of.
    pub(super) local_updates: u64,
    /// What the bridge's interfaces say.
    pub(super) interfaces: Interfaces,
    /// What it says of this chassis, as of which of these changes.
    pub(super) settings: Option<(u64, Arc<Settings>)>,
    pub(super) tls: Option<TlsFiles>,
    pub(super) tls_complaint: String,
    pub(super) input: Input,
    pub(super) ids: Arc<Ids>,
    pub(super) engine: Engine<ChassisFlows>,
    /// What changed since flows were derived, and how much of that `presence` has seen.
    pub(super) reads: Vec<Read>,
    pub(super) settled_reads: usize,
    /// What is here, besides flows.
    pub(super) presence: Presence,
    /// Interfaces whose mark is not yet what it is to be.
    pub(super) marks: BTreeSet<Uuid>,
    pub(super) tables: Tables,
    pub(super) switch: Option<Bridge>,
    /// What the switch can do, once that is known.
    pub(super) features: Option<Features>,
    pub(super) switch_up: bool,
    pub(super) switch_complaint: String,
    pub(super) derived: bool,
    /// Flows changed while there was no switch to have them.
    pub(super) unsent: bool,
    /// Something changed that more than flows follows from.
    pub(super) look: bool,
    /// At the last look all rows that were asked for had been taken over.
    pub(super) complete: bool,
    /// All rows of what is here were there once, since this chassis is in the database.
    pub(super) settled: bool,
    /// At the last look it was known what is here, and something waited for the switch.
    pub(super) known: bool,
    pub(super) waits: bool,
    /// An operator asked for everything to be derived anew while it was not known what is here.
    pub(super) recompute_later: bool,
    pub(super) sequence: u64,
    pub(super) installed: u64,
    /// When the switch was given the last bundle.
    pub(super) given_at: Instant,
    pub(super) times: Arc<Times>,
    /// The number with which the switch was asked for a sign of life last.
    pub(super) asked: u64,
    pub(super) pending_cfg: Vec<Configuration>,
    /// `nb_cfg` and its time, of what the switch has.
    pub(super) realised_cfg: Option<(i64, i64)>,
    /// Since when it has it, in milliseconds since 1970.
    pub(super) realised_at: i64,
    /// Seconds by which the report of `nb_cfg` is held back (`debug/delay-nb-cfg-report`), and until when it is.
    pub(super) report_delay: u64,
    pub(super) report_after: Option<Instant>,
    /// The packet-in services.
    pub(super) packets: Option<Task>,
    /// The services have not seen what there is now.
    pub(super) stale: bool,
    /// When what packets teach is looked at again.
    pub(super) reports_after: Instant,
    pub(super) virtual_ports: virtual_ports::Claims,
    pub(super) activated: Activated,
    /// Multicast, health checks and events.
    pub(super) monitors: Monitors,
    pub(super) learned: learned::Pending,
    pub(super) announcer: Announcer,
    pub(super) advertiser: Advertiser,
    pub(super) aging: Watch,
    /// `garp-max-timeout-sec`.
    pub(super) longest_pause: Option<Duration>,
    pub(super) claims: claims::Claims,
    pub(super) chassis_writer: chassis::Writer,
    pub(super) in_line: Sinks,
    pub(super) sb_attempts: Attempts,
    pub(super) local_attempts: Attempts,
    pub(super) patch_said: Once,
    /// What plugs devices in.
    pub(super) plugs: Plugs,
    /// Devices changed.
    pub(super) devices: Arc<Notify>,
    /// Zones whose connections the switch is to forget.
    pub(super) to_flush: BTreeSet<u16>,
    /// Connections that it is to forget once the flows that made them are gone.
    pub(super) to_forget: BTreeSet<flows::Connections>,
    /// There were not enough zones at the last look.
    pub(super) exhausted: bool,
    pub(super) paused: bool,
    pub(super) routing: Routing,
    pub(super) evpn: Evpn,
    pub(super) requests: mpsc::UnboundedReceiver<Request>,
    pub(super) complaint: Option<Incomplete>,
    pub(super) version_complaint: Option<String>,
    pub(super) takeover: Takeover,
    /// BFD sessions as they were last seen.
    pub(super) sessions: Sessions,
    pub(super) done_tx: mpsc::UnboundedSender<Done>,
    pub(super) done_rx: mpsc::UnboundedReceiver<Done>,
    pub(super) shared: Shared,
    pub(super) startup: String,
}

/// The southbound tables that flows and bindings need.
pub(super) const TABLES: &[&str] = &[
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
    "BFD",
    "Advertised_MAC_Binding",
    "Advertised_Route",
    "Learned_Route",
    "ACL_ID",
    "Controller_Event",
    "Mirror",
    "IP_Multicast",
    "IGMP_Group",
];

/// Columns of southbound tables that nothing here reads: they are neither replicated nor held.
const UNREAD: &[(&str, &[&str])] =
    &[("Logical_Flow", &["external_ids", "flow_desc"]), ("Port_Binding", &["gateway_chassis"])];

/// Likewise of local tables. Most of these the switch writes every few seconds, and each time when a port comes.
const UNREAD_LOCAL: &[(&str, &[&str])] = &[
    ("Open_vSwitch", &["cur_cfg", "statistics", "db_version", "ovs_version", "system_type", "system_version"]),
    ("Bridge", &["rstp_status", "datapath_version"]),
    ("Port", &["status", "statistics", "rstp_status", "rstp_statistics", "bond_active_slave"]),
    ("Mirror", &["statistics"]),
    (
        "Interface",
        &[
            "admin_state",
            "cfm_fault",
            "cfm_fault_status",
            "cfm_flap_count",
            "cfm_health",
            "cfm_mpid",
            "cfm_remote_mpids",
            "cfm_remote_opstate",
            "duplex",
            "error",
            "ifindex",
            "lacp_current",
            "link_resets",
            "lldp",
            "mac",
            "mac_in_use",
            "ofport_request",
            "statistics",
        ],
    ),
];

/// The columns of a table that are replicated.
fn columns(table: &str, unread: &[(&str, &[&str])], schema: &DatabaseSchema) -> TableRequest {
    let unread = unread.iter().find(|(t, _)| *t == table).map(|(_, columns)| *columns);
    match (unread, schema.tables.get(table)) {
        (Some(unread), Some(t)) => {
            let read = t.columns.iter().map(|c| c.name.as_str()).filter(|c| !unread.contains(c));
            TableRequest::columns(read)
        }
        _ => TableRequest::all(),
    }
}

/// A southbound database of which the rows that satisfy the conditions are replicated.
pub(super) fn southbound(remote: &str, asked: &Conditions) -> Result<Config, ovsdb_rs::Error> {
    let (config, schema) = (Config::new(remote, "OVN_Southbound")?, sb::Database::schema());
    Ok(TABLES.iter().fold(config, |c, table| {
        let conditions = asked.get(*table).cloned().flatten();
        c.table(table, TableRequest { conditions, ..columns(table, UNREAD, &schema) })
    }))
}

/// The local database.
fn local(remote: &str) -> Result<Config, ovsdb_rs::Error> {
    let (config, schema) = (Config::new(remote, "Open_vSwitch")?, ovs::Database::schema());
    let config = LOCAL_TABLES.iter().fold(config, |c, t| c.table(t, columns(t, UNREAD_LOCAL, &schema)));
    Ok(config.known(schema))
}

/// What ovn-northd and ovn-controller compare: OVN's version, the southbound schema's, the number of logical actions and a count
/// of changes without any of these.
pub const INTERNAL_VERSION: &str = "26.03.90-21.11.0-82.15";

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
    "Flow_Sample_Collector_Set",
];

impl Controller {
    /// Connects to the local database.
    ///
    /// # Errors
    /// Where the remote does not parse.
    pub fn start(
        ovs_remote: &str,
        rundir: PathBuf,
        (given, limits): (Option<TlsFiles>, Limits),
        identity: Identity,
        (shared, requests): (Shared, mpsc::UnboundedReceiver<Request>),
    ) -> Result<Controller, ovsdb_rs::Error> {
        let (client, events) = Client::start(local(ovs_remote)?);
        let (done_tx, done_rx) = mpsc::unbounded_channel();
        let ids: Arc<Ids> = Arc::default();
        let times = shared.lock().unwrap_or_else(PoisonError::into_inner).times.clone();
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
                asked: Conditions::new(),
            },
            sb: None,
            remote: String::new(),
            probe: (None, false),
            given,
            limits,
            identity,
            local_updates: 0,
            interfaces: Interfaces::default(),
            settings: None,
            tls: None,
            tls_complaint: String::new(),
            input: Input::default(),
            engine: Engine::new(ChassisFlows::new(ids.clone())),
            ids,
            reads: Vec::new(),
            settled_reads: 0,
            presence: Presence::default(),
            marks: BTreeSet::new(),
            tables: Tables::default(),
            switch: None,
            features: None,
            switch_up: false,
            switch_complaint: String::new(),
            derived: false,
            unsent: false,
            look: true,
            complete: true,
            settled: false,
            known: false,
            recompute_later: false,
            waits: true,
            sequence: 0,
            installed: 0,
            given_at: Instant::now(),
            times,
            asked: 0,
            pending_cfg: Vec::new(),
            realised_cfg: None,
            realised_at: 0,
            report_delay: 0,
            report_after: None,
            packets: None,
            stale: true,
            reports_after: Instant::now(),
            virtual_ports: virtual_ports::Claims::default(),
            activated: Activated::default(),
            monitors: Monitors::default(),
            learned: learned::Pending::default(),
            announcer: Announcer::default(),
            advertiser: Advertiser::default(),
            aging: Watch::default(),
            longest_pause: None,
            claims: claims::Claims::default(),
            chassis_writer: chassis::Writer::default(),
            in_line: Sinks::default(),
            sb_attempts: Attempts::default(),
            local_attempts: Attempts::default(),
            patch_said: Once::default(),
            plugs: Plugs::default(),
            devices: Arc::default(),
            to_flush: BTreeSet::new(),
            to_forget: BTreeSet::new(),
            exhausted: false,
            paused: false,
            routing: Routing::default(),
            evpn: Evpn::default(),
            requests,
            complaint: None,
            version_complaint: None,
            takeover: Takeover::default(),
            sessions: Sessions::new(),
            done_tx,
            done_rx,
            shared,
            startup: milliseconds().to_string(),
        })
    }
}
