//! What the Open_vSwitch database asks for (ovs-vswitchd.conf.db(5)): rows are parsed once, here, into specifications.
//! This room imports nothing of the crate; what others need of the configuration, they find here.
//!
//! | file | holds |
//! |---|---|
//! | here | bridges, their tables, settings of the whole switch |
//! | [`port`], [`tunnel`], [`bfd`], [`cfm`], [`lldp`] | interfaces |
//! | [`bond`], [`mirror`], [`controller`], [`qos`] | the tables of these names |
//! | [`collectors`] | IPFIX, sFlow and NetFlow |
//! | [`zones`] | connection tracking zones |
//! | [`ha`] | gateways that know each other's connections |
//! | [`dummy`] | which devices are dummies, and their options |
//! | [`dpdk`] | DPDK's arguments, processors and memory |

pub mod bfd;
pub mod bond;
pub mod cfm;
pub mod collectors;
pub mod controller;
pub mod dpdk;
pub mod dummy;
pub mod ha;
pub mod lldp;
pub mod mirror;
pub mod port;
pub mod qos;
pub mod rstp;
pub mod stp;
pub mod tunnel;
pub mod zones;

use bond::BondSpec;
use collectors::CollectorSet;
use controller::ControllerSpec;
use dummy::DummyMode;
use mirror::MirrorSpec;
use openflow_rs::TableId;
use openflow_rs::connection::OUR_VERSIONS;
use ovn_schema::{Map, Set, Str, Uuid, ovs};
use packet::{Mac, VlanId};
use port::{Kind, Owner, PortError, PortSpec, queues_of};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use switch::{SnoopingSettings, TableConfig, TunnelConfig};

/// A bridge.
#[derive(Clone, Debug, PartialEq)]
pub struct BridgeSpec {
    /// The row.
    pub uuid: Uuid,
    /// Name.
    pub name: String,
    /// Datapath id.
    pub datapath_id: u64,
    /// The address of the bridge's own port, unless its Interface row has one.
    pub mac: Mac,
    /// `fail_mode` is secure: without a controller's flows it drops everything.
    pub secure: bool,
    /// `mac-aging-time`: the age at which learned addresses are forgotten.
    pub mac_age: Duration,
    /// `mac-table-size`: the most learned addresses.
    pub mac_limit: usize,
    /// `flood_vlans`: VLANs in which no address is learned.
    pub flood_vlans: BTreeSet<VlanId>,
    /// `other_config:forward-bpdu`.
    pub forward_bpdu: bool,
    /// `other_config:dp-desc` and `dp-sn`.
    pub description: (Option<String>, Option<String>),
    /// How it snoops multicast (`mcast_snooping_enable`); none: it does not.
    pub snooping: Option<SnoopingSettings>,
    /// Its spanning tree (`stp_enable`); none: it has none.
    pub stp: Option<stp::TreeSettings>,
    /// Its rapid spanning tree (`rstp_enable`), in whose place it has none of the other kind; none: it has none.
    pub rstp: Option<rstp::RstpSettings>,
    /// The OpenFlow versions that it speaks, one bit each.
    pub versions: u32,
    /// Its controllers.
    pub controllers: Vec<ControllerSpec>,
    /// Its in-band control.
    pub in_band: controller::InBandSpec,
    /// Its collector sets, by number.
    pub collectors: BTreeMap<u32, CollectorSet>,
    /// Its Flow_Table rows, by table.
    pub tables: BTreeMap<TableId, TableConfig>,
    /// Its mirrors.
    pub mirrors: Vec<MirrorSpec>,
    /// Ports, in the order in which they get numbers.
    pub ports: Vec<PortSpec>,
    /// The bonds among them.
    pub bonds: Vec<BondSpec>,
}

fn get<'a>(m: &'a Map<Str, Str>, key: &str) -> Option<&'a str> {
    m.get(key).map(|v| &**v)
}

/// A value that has to be a number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}={value}: expected a number")]
pub struct NotANumber {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
}

fn number<T: std::str::FromStr>(m: &Map<Str, Str>, key: &str) -> Result<Option<T>, NotANumber> {
    match get(m, key) {
        None => Ok(None),
        Some(v) => v.trim().parse().map(Some).map_err(|_| NotANumber { key: key.into(), value: v.into() }),
    }
}

/// VLANs of a column. Others than from 0 to 4095 are not in it, as the schema has that range.
fn vlans(column: &Set<i64>) -> Vec<VlanId> {
    column.iter().filter_map(|v| VlanId::try_from(*v).ok()).collect()
}

/// An address that follows from a row's id: the same after a restart, and hardly the same for two bridges.
fn own_mac(id: Uuid) -> Mac {
    let b = id.as_bytes();
    Mac([0x02 | (b[0] & 0xfc), b[1], b[2], b[3], b[4], b[5]])
}

/// The bridges that the database asks for, by name.
pub fn bridges(db: &ovs::Database, dummies: DummyMode) -> Vec<BridgeSpec> {
    let Some(root) = db.open_vswitch.values().next() else { return Vec::new() };
    let mut v: Vec<BridgeSpec> = root
        .bridges
        .iter()
        .filter_map(|id| Some((*id, db.bridge.get(id)?)))
        .filter(|(_, b)| is_safe(b))
        .map(|(id, b)| bridge(db, id, b, dummies))
        .collect();
    v.sort_by(|a, b| a.name.cmp(&b.name));
    refuse_twins(&mut v);
    v
}

/// Whether a bridge's name may be part of a file's: its sockets are in the run directory, whatever the database says.
fn is_safe(b: &ovs::Bridge) -> bool {
    let safe = !b.name.contains(['/', '\\']);
    if !safe {
        tracing::warn!(target: "bridge", "ignoring bridge with invalid name \"{}\"", b.name);
    }
    safe
}

/// Refuses all but one of the ports that want the same tunnel or device: the one that has it keeps it, else the first
/// gets it.
fn refuse_twins(bridges: &mut [BridgeSpec]) {
    let same = |a: &Kind, b: &Kind| match (a, b) {
        (Kind::Tunnel(a), Kind::Tunnel(b)) => {
            let what =
                |t: &TunnelConfig| (t.kind, t.udp_port, t.remote, t.local, t.local_of_flow, t.in_key, t.mode, t.gpe);
            what(a) == what(b)
        }
        (Kind::Dpdk(a), Kind::Dpdk(b)) => a.is_same(b),
        (Kind::VhostClient(a), Kind::VhostClient(b)) => a == b,
        _ => false,
    };
    let mut had: Vec<(Kind, String)> = Vec::new();
    for running in [true, false] {
        for p in bridges.iter_mut().flat_map(|b| &mut b.ports).filter(|p| p.last.is_some() == running) {
            let Ok(kind @ (Kind::Tunnel(_) | Kind::Dpdk(_) | Kind::VhostClient(_))) = &p.kind else { continue };
            let twin = had.iter().find(|(k, _)| same(k, kind)).map(|(k, name)| (k, name.clone()));
            p.kind = match twin {
                None => {
                    had.push((kind.clone(), p.name.clone()));
                    continue;
                }
                Some((Kind::Tunnel(_), twin)) => Err(PortError::TunnelExists { port: p.name.clone(), twin }),
                Some((Kind::Dpdk(_), twin)) => {
                    let Kind::Dpdk(wanted) = kind else { continue };
                    Err(PortError::DeviceInUse { port: p.name.clone(), device: wanted.to_string(), twin })
                }
                Some((Kind::VhostClient(path), twin)) => {
                    Err(PortError::DeviceInUse { port: p.name.clone(), device: path.clone(), twin })
                }
                Some(_) => continue,
            };
        }
    }
}

fn bridge(db: &ovs::Database, uuid: Uuid, b: &ovs::Bridge, dummies: DummyMode) -> BridgeSpec {
    let mac = get(&b.other_config, "hwaddr").and_then(|m| m.parse::<Mac>().ok()).unwrap_or_else(|| own_mac(uuid));
    let wanted = get(&b.other_config, "datapath-id")
        .and_then(|s| u64::from_str_radix(s.trim_start_matches("0x"), 16).ok())
        .filter(|d| *d != 0);
    let attach = b.auto_attach.and_then(|id| db.auto_attach.get(&id)).map(|row| &**row);
    let owner = Owner { name: &b.name, mac, dummy: dummies.covers_datapath(&b.datapath_type), attach };
    let mut ports = Vec::new();
    let queues = db.open_vswitch.values().next().and_then(|r| queues_of(&r.other_config, "n-dpdk-rxqs"));
    for p in b.ports.iter().filter_map(|id| db.port.get(id)) {
        for id in p.interfaces.iter() {
            let Some(i) = db.interface.get(id) else { continue };
            let mut s = port::port(*id, i, p, &owner, dummies);
            if let (Some(n), Ok(Kind::Dpdk(_) | Kind::VhostClient(_))) = (queues, &s.kind) {
                s.setup.rx_queues = queues_of(&i.options, "n_rxq").unwrap_or(n);
            }
            s.egress = qos::egress(db, p);
            s.queue_marks = qos::marks(db, p);
            ports.push(s);
        }
    }
    // Of ports whose numbers are known tunnels are the last: the datapath numbers their common ports behind devices.
    fn order(p: &PortSpec) -> (bool, bool, bool, &str) {
        let (asked, before) = (p.request.is_some(), p.last.is_some());
        (!asked, !before, (asked || before) && matches!(p.kind, Ok(Kind::Tunnel(_))), &p.name)
    }
    ports.sort_by(|a, b| order(a).cmp(&order(b)));
    let text = |config, key| get(config, key).map(str::to_string);
    let limit = |key, default| number(&b.other_config, key).ok().flatten().unwrap_or(default);
    let mut controllers: Vec<ControllerSpec> = b
        .controller
        .iter()
        .filter_map(|id| db.controller.get(id).map(|c| controller::controller(db, *id, c)))
        .collect();
    controllers.sort_by(|a, b| a.target.cmp(&b.target));
    BridgeSpec {
        uuid,
        versions: versions(b),
        collectors: collectors::collector_sets(db, uuid),
        tables: b.flow_tables.iter().filter_map(|(n, id)| table(*n, db.flow_table.get(id)?)).collect(),
        mirrors: b.mirrors.iter().filter_map(|id| db.mirror.get(id).map(|m| mirror::mirror(db, *id, m))).collect(),
        controllers,
        in_band: controller::in_band(db, b),
        name: b.name.to_string(),
        datapath_id: wanted.unwrap_or(mac.to_u64()),
        mac,
        secure: b.fail_mode.as_deref() == Some("secure"),
        mac_age: idle(limit("mac-aging-time", 300)),
        mac_limit: entries(limit("mac-table-size", 8192)),
        flood_vlans: vlans(&b.flood_vlans).into_iter().collect(),
        description: (text(&b.other_config, "dp-desc"), text(&b.other_config, "dp-sn")),
        forward_bpdu: get(&b.other_config, "forward-bpdu") == Some("true"),
        snooping: b.mcast_snooping_enable.then(|| snooping(&b.other_config)),
        stp: stp::settings(b, mac).filter(|_| !b.rstp_enable),
        rstp: rstp::settings(b, mac),
        bonds: b.ports.iter().filter_map(|id| bond::bond(db, *id, mac)).collect(),
        ports,
    }
}

/// How long what is learned is kept, within the bounds of Open vSwitch, in seconds.
fn idle(seconds: u64) -> Duration {
    Duration::from_secs(seconds.clamp(15, 3600))
}

/// How much is learned at most, within the same.
fn entries(n: u64) -> usize {
    n.clamp(10, 1_000_000) as usize
}

/// Keys `mcast-snooping-*`; 0 stands for what is usual.
fn snooping(other_config: &Map<Str, Str>) -> SnoopingSettings {
    let or = |key, usual| number(other_config, key).ok().flatten().filter(|n: &u64| *n != 0).unwrap_or(usual);
    SnoopingSettings {
        idle: idle(or("mcast-snooping-aging-time", 300)),
        limit: entries(or("mcast-snooping-table-size", 2048)),
        flood_unregistered: get(other_config, "mcast-snooping-disable-flood-unregistered") != Some("true"),
    }
}

/// The OpenFlow versions of column `protocols`; all of ours if it is empty.
fn versions(b: &ovs::Bridge) -> u32 {
    let bit = |p: &Str| match &**p {
        "OpenFlow10" => 1 << 1,
        "OpenFlow11" => 1 << 2,
        "OpenFlow12" => 1 << 3,
        "OpenFlow13" => 1 << 4,
        "OpenFlow14" => 1 << 5,
        "OpenFlow15" => 1 << 6,
        _ => 0,
    };
    if b.protocols.is_empty() { OUR_VERSIONS } else { b.protocols.iter().fold(0, |v, p| v | bit(p)) }
}

/// A Flow_Table row. Its prefixes have no effect: the classifier finds by itself what flows have in common.
fn table(n: i64, t: &ovs::FlowTable) -> Option<(TableId, TableConfig)> {
    let n = TableId(u8::try_from(n).ok()?);
    let group = |g: &Str| match g.parse() {
        Ok(s) => Some(s),
        Err(e) => {
            tracing::warn!(target: "bridge", "Flow_Table of table {n}: groups: {g}: {e}; it is left out");
            None
        }
    };
    let config = TableConfig {
        name: t.name.as_deref().map(String::from),
        limit: t.flow_limit.and_then(|l| usize::try_from(l).ok()),
        evict: t.overflow_policy.as_deref() == Some("evict"),
        name_openflow: None,
        evict_openflow: false,
        vacancy: None,
        groups: t.groups.iter().filter_map(group).collect(),
    };
    Some((n, config))
}

/// The most flows of a cache (`other_config:flow-limit`, at least 1); none: as many as fit.
pub fn flow_limit(other_config: &Map<Str, Str>) -> Option<usize> {
    number(other_config, "flow-limit").ok().flatten().map(|n: usize| n.max(1))
}

/// How long flows without packets stay in the cache (`other_config:max-idle` in milliseconds, at least 500).
pub fn max_idle(other_config: &Map<Str, Str>) -> std::time::Duration {
    match number(other_config, "max-idle") {
        Ok(Some(n)) => std::time::Duration::from_millis(500.max(n)),
        _ => switch::MAX_IDLE,
    }
}

/// How long a bundle waits for its next message (`other_config:bundle-idle-timeout` in seconds; without it, or with 0,
/// ten of them).
pub fn bundle_idle(other_config: &Map<Str, Str>) -> std::time::Duration {
    let seconds = number(other_config, "bundle-idle-timeout").ok().flatten().filter(|n: &u32| *n > 0);
    std::time::Duration::from_secs(seconds.map_or(10, u64::from))
}

/// How many VLAN tags of a packet are parsed (`other_config:vlan-limit`); 0 there stands for as many as the switch can.
pub fn tags(other_config: &Map<Str, Str>) -> usize {
    match number(other_config, "vlan-limit") {
        Ok(Some(0)) => switch::extract::TAGS,
        Ok(Some(n)) => n,
        _ => 1,
    }
}
