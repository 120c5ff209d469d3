//! A bridge: ports, flow tables, groups, meters, option map, learned addresses.

pub mod bond;
pub(crate) mod changes;
pub(crate) mod eviction;
pub(crate) mod groups;
pub mod hidden;
pub(crate) mod learned;
pub(crate) mod list;
pub mod mac;
pub mod meter;
pub mod mirror;
pub mod misses;
pub(crate) mod queue_marks;
pub mod snooping;
pub(crate) mod tables;
pub(crate) mod transaction;
mod users;
pub(crate) mod validate;
pub(crate) mod vlan;

pub use groups::GroupState;
pub(crate) use list::Bridges;
pub use tables::flow_stats;
pub use validate::{check_table, is_writable};
pub use vlan::{PriorityTags, VlanMode};

use crate::bridge::changes::Change;
use crate::bridge::mac::MacTable;
use crate::bridge::meter::{BridgeMeter, Meter, MeterNumbers};
use crate::bridge::queue_marks::QueueMarks;
use crate::classifier::{Classifier, Rule};
use crate::ids::DeviceId;
use crate::tunnel::TunnelConfig;
use openflow_rs::OfError as E;
use openflow_rs::action::Action;
use openflow_rs::message::{FlowRemoved, TlvMap};
use openflow_rs::wire::DecodeError;
use openflow_rs::{GroupId, MeterId, MeterMod, MeterModCommand, PortNo, TableId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Number of flow tables.
pub const N_TABLES: usize = 254;

/// The tables that a request means: the one that it names, or all.
fn meant(table: TableId) -> impl Iterator<Item = TableId> {
    let numbers = if table == TableId::ALL { 0..=N_TABLES as u8 - 1 } else { table.0..=table.0 };
    numbers.map(TableId)
}

/// What is behind a port.
#[derive(Clone, PartialEq, Debug)]
pub enum PortKind {
    /// A device of the caller's numbering.
    Device(DeviceId),
    /// A bridge's own or another port that the host's network stack owns; tunnels end here.
    Internal(DeviceId),
    /// A patch port: the name of its peer.
    Patch(String),
    /// A tunnel.
    Tunnel(Box<TunnelConfig>),
}

/// What becomes of IP fragments (OpenFlow 1.5 section 7.3.2; ovs-ofctl(8), `set-frags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fragments {
    /// They pass as if their transport ports, or ICMP type and code, were 0.
    #[default]
    Normal = 0,
    /// They are dropped.
    Drop = 1,
    /// The first fragment's ports are looked at; those of later ones are 0.
    Match = 3,
}

/// State of a port's device. Ports without a device are up and have no speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortLink {
    /// It carries packets.
    pub up: bool,
    /// It is administratively up.
    pub admin_up: bool,
    /// Megabits a second; 0: unknown.
    pub mbps: u32,
    /// Full duplex.
    pub full_duplex: bool,
    /// A device of the kernel reports copper as its medium.
    pub copper: bool,
    /// The largest payload of a frame.
    pub mtu: Option<u32>,
}

impl Default for PortLink {
    fn default() -> PortLink {
        PortLink { up: true, admin_up: true, mbps: 0, full_duplex: false, copper: false, mtu: None }
    }
}

/// What the spanning tree lets a port do (IEEE 802.1D-1998 section 8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StpState {
    /// Nothing: its link is down.
    Disabled,
    /// Nothing: another port leads to the root.
    Blocking,
    /// Nothing yet.
    Listening,
    /// Learns addresses.
    Learning,
    /// All.
    Forwarding,
}

impl StpState {
    /// Addresses of what it receives are learned.
    pub fn learns(self) -> bool {
        matches!(self, StpState::Learning | StpState::Forwarding)
    }

    /// It carries packets.
    pub fn forwards(self) -> bool {
        self == StpState::Forwarding
    }
}

/// Which IPv4 packets to BFD's port belong to a port's session; others are forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BfdPackets {
    /// Only those to this Ethernet address.
    pub eth_dst: Option<packet::Mac>,
    /// Only those to this address.
    pub ip_dst: Option<std::net::Ipv4Addr>,
    /// Only those whose tunnel key is zero.
    pub no_key: bool,
}

/// Which packets with the EtherType of connectivity fault management belong to a port's maintenance point; others are
/// forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CcmPackets {
    /// Only those to this address.
    pub eth_dst: packet::Mac,
    /// Only those whose tunnel key is zero.
    pub no_key: bool,
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// OpenFlow number.
    pub no: PortNo,
    /// Name.
    pub name: String,
    /// What is behind it.
    pub kind: PortKind,
    /// Its VLANs.
    pub vlan: VlanMode,
    /// Whether a tag is sent for a priority alone.
    pub priority_tags: PriorityTags,
    /// Protected ports do not forward to each other.
    pub protected: bool,
    /// Address.
    pub hw_addr: packet::Mac,
    /// Left out of `FLOOD`.
    pub no_flood: bool,
    /// What a controller forbids it: the bits below. Change it with
    /// [`crate::Switch::set_inputs`].
    pub config: u32,
    /// State of its device. Change it with [`crate::Switch::set_inputs`].
    pub link: PortLink,
    /// What it receives that is for its BFD session and not for the tables.
    pub bfd_packets: Option<BfdPackets>,
    /// Whether its BFD session lets it forward; none: no session is configured.
    pub bfd: Option<bool>,
    /// What it receives that is for its maintenance point and not for the tables.
    pub ccm_packets: Option<CcmPackets>,
    /// It takes LLDP for itself, and the tables get none.
    pub lldp: bool,
    /// Whether connectivity fault management lets it forward; none: it has no maintenance point.
    pub cfm: Option<bool>,
    /// Whether LACP lets it forward; none: it is no member of a bond with LACP.
    pub lacp: Option<bool>,
    /// What the spanning tree lets it do; none: it takes no part. Change it with [`crate::Switch::set_inputs`].
    pub stp: Option<StpState>,
    /// When it was added.
    pub created: Duration,
    /// Packets received and sent, bytes received and sent, packets dropped on receiving and sending.
    pub stats: [u64; 6],
}

impl Port {
    /// Neither receives nor sends (OFPPC_PORT_DOWN).
    pub const DOWN: u32 = 1;
    /// Kept for who asks (OFPPC_NO_STP of OpenFlow 1.0): whether a port is in a spanning tree is said in the database.
    pub const NO_STP: u32 = 2;
    /// What it receives is dropped, but for packets of spanning trees.
    pub const NO_RECV: u32 = 4;
    /// Packets of spanning trees that it receives are dropped (OFPPC_NO_RECV_STP of OpenFlow 1.0).
    pub const NO_RECV_STP: u32 = 8;
    /// What is sent to it is dropped.
    pub const NO_FWD: u32 = 0x20;
    /// What no flow matches does not go to controllers (OFPPC_NO_PACKET_IN).
    pub const NO_PACKET_IN: u32 = 0x40;

    /// A trunk port that is up.
    pub fn new(no: PortNo, name: &str, kind: PortKind) -> Port {
        Port {
            no,
            name: name.into(),
            kind,
            vlan: VlanMode::Trunk(Vec::new()),
            priority_tags: PriorityTags::Never,
            protected: false,
            hw_addr: packet::Mac::ZERO,
            no_flood: false,
            config: 0,
            link: PortLink::default(),
            bfd_packets: None,
            bfd: None,
            ccm_packets: None,
            lldp: false,
            cfm: None,
            lacp: None,
            stp: None,
            created: Duration::ZERO,
            stats: [0; 6],
        }
    }

    /// Whether the spanning tree lets it carry packets.
    pub(crate) fn stp_forwards(&self) -> bool {
        self.stp.is_none_or(StpState::forwards)
    }

    /// Whether it carries packets: what groups watch, and OpenFlow's OFPPS_LIVE. It is derived, never stored.
    pub fn live(&self) -> bool {
        self.config & Port::DOWN == 0 && is_live(&self.link, [self.bfd, self.cfm], self.lacp)
    }
}

/// Whether a port carries packets: its device is administratively up and has a link, one of BFD and CFM (`path`), where
/// any is configured, says that its path works, and LACP, where configured, lets it forward.
pub fn is_live(link: &PortLink, path: [Option<bool>; 2], lacp: Option<bool>) -> bool {
    let works = path == [None; 2] || path.contains(&Some(true));
    link.admin_up && link.up && works && lacp != Some(false)
}

/// A bridge.
#[derive(Debug)]
pub struct Bridge {
    /// Name.
    pub name: String,
    /// Datapath id.
    pub datapath_id: u64,
    /// Ports by number.
    pub ports: BTreeMap<PortNo, Port>,
    /// Transactions of this bridge share these tables, the groups and the meters; of what is shared as much is copied as is
    /// changed.
    pub(crate) tables: Vec<Arc<Classifier>>,
    /// Hidden flows before the first table ([`hidden`]).
    pub(crate) hidden: Classifier,
    /// What they are made of.
    pub(crate) controlled: hidden::InBand,
    /// It switches all packets by itself ([`Bridge::set_fails_open`]).
    pub(crate) fails_open: bool,
    pub(crate) groups: Arc<BTreeMap<GroupId, GroupState>>,
    pub(crate) meters: Arc<BTreeMap<MeterId, BridgeMeter>>,
    /// Where the numbers of meters come from.
    pub(crate) meter_numbers: MeterNumbers,
    /// Geneve options mapped to `tun_metadata` fields.
    pub tlv: Vec<TlvMap>,
    /// Learned addresses.
    pub macs: MacTable,
    /// Multicast snooping, if it is on.
    pub(crate) snooping: Option<snooping::Snooping>,
    pub(crate) mirrors: Vec<mirror::Mirror>,
    /// What packets of a port's queue are marked with ([`Bridge::set_queue_marks`]).
    pub(crate) queue_marks: QueueMarks,
    pub(crate) bonds: Vec<bond::State>,
    /// Numbers of the `Flow_Sample_Collector_Set` rows of this bridge.
    pub collectors: Vec<u32>,
    /// An exporter wants some of its packets ([`crate::Switch::observe`]).
    pub observed: bool,
    /// Its flows are counted for NetFlow ([`crate::Switch::take_netflow`]).
    pub netflow: bool,
    /// What it is called in its description, in place of its name, and its serial number (`other_config:dp-desc`,
    /// `dp-sn`).
    pub description: (Option<String>, Option<String>),
    /// NORMAL forwards packets of protocols between neighbours, too (`other_config:forward-bpdu`).
    pub forward_bpdu: bool,
    /// A port of it takes part in a spanning tree.
    pub(crate) spans: bool,
    /// Its spanning tree is a rapid one.
    pub rapid: bool,
    /// How lookups treat fragments.
    pub fragments: Fragments,
    /// What becomes of packets that no flow matches.
    pub(crate) misses: misses::Misses,
    /// Limits and names of tables.
    pub(crate) table_config: BTreeMap<TableId, eviction::TableConfig>,
    /// (lookups, hits) of each table.
    pub table_stats: Vec<(u64, u64)>,
    /// Packets sent to controllers.
    pub packet_ins: u64,
    /// A flow monitor exists: flow updates are recorded.
    pub(crate) watched: bool,
    /// Flow updates since the last drain.
    pub(crate) told: Vec<FlowUpdate>,
    /// Flow-removed messages to send.
    pub(crate) removed: Vec<FlowRemoved>,
    /// Flows with timeouts.
    pub(crate) timed: Vec<Weak<Rule>>,
    /// How many flows use each group and meter, and learn flows.
    pub(crate) users: users::Users,
    /// Changes of flows that the flow cache has not seen yet.
    pub(crate) changes: Vec<Change>,
    /// Changes of groups and ports that it has not seen yet.
    pub(crate) touched: Vec<Invalidation>,
    /// Moves with what makes all cached flows stale: ports and options.
    pub epoch: u64,
    /// Moves whenever flows, groups, meters or options change.
    pub(crate) version: u64,
}

/// A flow that came (`new`), went (`old`), or took another's place (both).
#[derive(Clone, Debug)]
pub struct FlowUpdate {
    /// What was there.
    pub old: Option<Arc<Rule>>,
    /// What is there.
    pub new: Option<Arc<Rule>>,
    /// `old` was modified to `new`; else `new` replaced `old`.
    pub modified: bool,
    /// Why it went (OFPRR_*).
    pub reason: u8,
}

/// What has changed beside flows, and makes cached flows stale that depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Invalidation {
    Group(GroupId),
    Live(PortNo),
    Multicast,
    Meter(MeterId),
}

impl Bridge {
    /// An empty bridge: it drops everything.
    pub fn new(name: &str, datapath_id: u64) -> Bridge {
        Bridge {
            name: name.into(),
            datapath_id,
            ports: BTreeMap::new(),
            tables: vec![Arc::default(); N_TABLES],
            hidden: Classifier::default(),
            controlled: hidden::InBand::default(),
            fails_open: false,
            groups: Arc::default(),
            meters: Arc::default(),
            meter_numbers: MeterNumbers::default(),
            tlv: Vec::new(),
            macs: MacTable::default(),
            snooping: None,
            mirrors: Vec::new(),
            queue_marks: QueueMarks::new(),
            bonds: Vec::new(),
            collectors: Vec::new(),
            observed: false,
            netflow: false,
            spans: false,
            rapid: false,
            description: (None, None),
            forward_bpdu: false,
            fragments: Fragments::default(),
            misses: misses::Misses::default(),
            table_config: BTreeMap::new(),
            table_stats: vec![(0, 0); N_TABLES],
            packet_ins: 0,
            watched: false,
            told: Vec::new(),
            removed: Vec::new(),
            timed: Vec::new(),
            users: users::Users::default(),
            changes: Vec::new(),
            touched: Vec::new(),
            epoch: 0,
            version: 0,
        }
    }

    /// Resets what controllers set beside flows, and counters: another bridge is to reuse the place.
    pub fn forget(&mut self) {
        (self.fragments, self.misses) = (Fragments::default(), misses::Misses::default());
        self.table_stats = vec![(0, 0); N_TABLES];
        (self.packet_ins, self.observed, self.netflow, self.datapath_id) = (0, false, false, 0);
        self.record_flow_updates(false);
        self.removed.clear();
        self.timed.clear();
        self.users = users::Users::default();
        (self.snooping, self.hidden, self.controlled) = (None, Classifier::default(), Default::default());
        self.fails_open = false;
        self.epoch += 1;
    }

    /// Starts or stops recording flow updates for [`Bridge::drain_flow_updates`].
    pub fn record_flow_updates(&mut self, on: bool) {
        if self.watched != on {
            self.watched = on;
            self.told.clear();
            // Transactions that are open must record them, too.
            self.version += 1;
        }
    }

    /// Takes the flows that were removed since the last call and whose removal controllers want to hear of.
    /// [`crate::Switch::tick`] reports those that are left.
    pub fn drain_removed(&mut self) -> Vec<FlowRemoved> {
        std::mem::take(&mut self.removed)
    }

    /// Takes the flow updates since the last call, in order.
    pub fn drain_flow_updates(&mut self) -> Vec<FlowUpdate> {
        std::mem::take(&mut self.told)
    }

    /// A port by name.
    pub fn port_by_name(&self, name: &str) -> Option<&Port> {
        self.ports.values().find(|p| p.name == name)
    }

    /// All flows.
    pub fn flows(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.tables.iter().flat_map(|t| t.iter())
    }

    /// How many flows there are.
    pub fn flow_count(&self) -> usize {
        self.tables.iter().map(|t| t.len()).sum()
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = &GroupState> {
        self.groups.values()
    }

    /// All meters, as they are now.
    pub fn meters(&self) -> impl Iterator<Item = Meter> {
        self.meters.values().map(|m| m.shared.lock().clone())
    }

    /// Moves whenever flows, groups, meters or options change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Applies a meter-mod.
    ///
    /// # Errors
    /// The error to send to the controller; nothing has changed then.
    pub fn meter_mod(&mut self, m: &MeterMod, now: Duration) -> Result<(), DecodeError> {
        let id = m.meter.id;
        let have = self.meters.contains_key(&id);
        if m.command != MeterModCommand::Delete {
            validate::meter(&m.meter)?;
        }
        let all = self.meters.keys().copied().filter(|_| id == MeterId::ALL);
        self.touched.extend(all.chain([id]).map(Invalidation::Meter));
        match m.command {
            MeterModCommand::Add if have => return Err(E::MeterModExists.because(format!("meter {id} exists"))),
            MeterModCommand::Modify if !have => {
                return Err(E::MeterModUnknownMeter.because(format!("meter {id} does not exist")));
            }
            MeterModCommand::Add | MeterModCommand::Modify => {
                let old = self.meters.get(&id);
                let new = BridgeMeter::new(m.meter.clone(), now, old, &self.meter_numbers);
                Arc::make_mut(&mut self.meters).insert(id, new);
            }
            MeterModCommand::Delete => {
                let gone: Vec<MeterId> =
                    self.meters.keys().copied().filter(|m| id == MeterId::ALL || *m == id).collect();
                let meters = Arc::make_mut(&mut self.meters);
                gone.iter().for_each(|m| drop(meters.remove(m)));
                self.remove_users_of_meters(&gone, now);
            }
        }
        self.version += 1;
        Ok(())
    }

    /// Validates the actions of a packet-out.
    ///
    /// # Errors The error to send to the controller.
    pub fn check_packet_out(&self, actions: &[Action]) -> Result<(), DecodeError> {
        validate::packet_out(self, actions)
    }

    /// Changes the option map: 0 adds, 1 deletes, 2 clears.
    pub fn tlv_mod(&mut self, command: u16, maps: &[TlvMap]) {
        match command {
            0 => {
                for m in maps {
                    self.tlv.retain(|x| x.index != m.index && (x.class, x.kind) != (m.class, m.kind));
                    self.tlv.push(*m);
                }
            }
            1 => self.tlv.retain(|x| !maps.iter().any(|m| m.index == x.index)),
            _ => self.tlv.clear(),
        }
        self.version += 1;
        self.epoch += 1;
    }

    /// The number of flows of each table that is not empty.
    pub fn table_sizes(&self) -> HashMap<TableId, usize> {
        self.tables
            .iter()
            .enumerate()
            .filter(|(_, t)| !t.is_empty())
            .map(|(i, t)| (TableId(i as u8), t.len()))
            .collect()
    }
}
