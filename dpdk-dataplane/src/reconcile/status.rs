//! Status columns (ovs-vswitchd.conf.db(5)): computed, compared with the rows, written where they differ.

use super::datapath_features;
use super::{RunningBridge, RunningPort};
use crate::config::bond::BondSpec;
use crate::config::mirror::{MirrorSpec, MirrorTarget};
use crate::config::port::{Kind, TYPES};
use crate::openflow::ControllerStatus;
use crate::ports::stp::bridges::StpPortStatus;
use dpdk_rs::PortInfo;
use openflow_rs::PortNo;
use ovn_schema::{Map, Set, Str, Uuid, Write, ovs};
use ovsdb_rs::client::Transaction;
use std::collections::BTreeMap;
use tokio::time::Instant;

fn set(values: &[&str]) -> Set<Str> {
    values.iter().map(|v| Str::from(*v)).collect()
}

fn text(s: &str) -> Option<Str> {
    Some(s.into())
}

/// Collects the columns of a row that differ from these values.
macro_rules! differing {
    ($T:ty, $row:expr, $($field:ident = $value:expr),* $(,)?) => {{
        let mut columns = Vec::new();
        $({
            let value = $value;
            if $row.$field != value {
                columns.push(<$T>::$field(&value));
            }
        })*
        columns
    }};
}

/// The row of Open_vSwitch.
pub(crate) fn root(db: &ovs::Database, applied: i64, statistics: &Map<Str, Str>, dummies: bool, txn: &mut Transaction) {
    let Some((id, row)) = db.open_vswitch.iter().next() else { return };
    let extra: &[&str] = if dummies { &["dummy"] } else { &[] };
    let columns = differing!(
        ovs::OpenVswitch,
        row,
        cur_cfg = applied,
        dpdk_initialized = true,
        dpdk_version = text(env!("ISTHMUS_DPDK_VERSION")),
        ovs_version = text(crate::OVS_VERSION),
        iface_types = set(&[TYPES, extra].concat()),
        datapath_types = set(&[&["netdev", "system"], extra].concat()),
        statistics = statistics.clone(),
    );
    if !columns.is_empty() {
        txn.update_row(*id, columns);
    }
}

/// The rows of the datapaths.
pub(crate) fn datapaths(db: &ovs::Database, txn: &mut Transaction) {
    let Some(root) = db.open_vswitch.values().next() else { return };
    let can: Map<Str, Str> = datapath_features::CAPABILITIES.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let version = Str::from(concat!("Isthmus ", env!("CARGO_PKG_VERSION")));
    for id in root.datapaths.values() {
        let Some(row) = db.datapath.get(id) else { continue };
        let mut columns = Vec::new();
        if row.capabilities != can {
            columns.push(ovs::Datapath::capabilities(&can));
        }
        if row.datapath_version != version {
            columns.push(ovs::Datapath::datapath_version(&version));
        }
        if !columns.is_empty() {
            txn.update_row(*id, columns);
        }
    }
}

/// The row of a bridge. `peers`: what is known of other gateways' connections, for the bridge that names these gateways.
pub(crate) fn bridge(db: &ovs::Database, b: &RunningBridge, peers: &BTreeMap<String, String>, txn: &mut Transaction) {
    let Some(row) = db.bridge.get(&b.spec.uuid) else { return };
    let peers = peers.iter().filter(|_| row.other_config.contains_key("ha-peers"));
    let stp = b.stp.iter().flat_map(|s| &s.bridge).map(|(k, v)| ((*k).into(), v.as_str().into()));
    let columns = differing!(
        ovs::Bridge,
        row,
        datapath_id = text(&format!("{:016x}", b.spec.datapath_id)),
        datapath_version = Str::from(concat!("Isthmus ", env!("CARGO_PKG_VERSION"))),
        rstp_status = b
            .rstp
            .iter()
            .flat_map(|s| &s.bridge)
            .map(|(k, v)| ((*k).into(), v.as_str().into()))
            .collect::<Map<Str, Str>>(),
        status = peers.map(|(k, v)| (k.as_str().into(), v.as_str().into())).chain(stp).collect::<Map<Str, Str>>(),
    );
    if !columns.is_empty() {
        txn.update_row(b.spec.uuid, columns);
    }
}

/// The rows of the ports of a spanning tree.
pub(crate) fn spanning(db: &ovs::Database, b: &RunningBridge, txn: &mut Transaction) {
    let Some(bridge) = db.bridge.get(&b.spec.uuid) else { return };
    for (id, row) in bridge.ports.iter().filter_map(|id| Some((*id, db.port.get(id)?))) {
        let of = b.stp.iter().flat_map(|s| &s.ports).find(|s| *s.name == *row.name);
        let rapid = b.rstp.iter().flat_map(|s| &s.ports).find(|s| *s.name == *row.name);
        let told = row.status.contains_key("stp_state") || !row.rstp_status.is_empty();
        if of.is_none() && rapid.is_none() && !told {
            continue;
        }
        let status = |s: Option<&StpPortStatus>| -> Map<Str, Str> {
            s.iter().flat_map(|s| &s.status).map(|(k, v)| ((*k).into(), v.as_str().into())).collect()
        };
        let counts = |s: Option<&StpPortStatus>| -> Map<Str, i64> {
            s.iter().flat_map(|s| &s.counts).map(|(k, n)| ((*k).into(), *n)).collect()
        };
        let columns = differing!(
            ovs::Port,
            row,
            status = status(of),
            statistics = counts(of),
            rstp_status = status(rapid),
            rstp_statistics = counts(rapid),
        );
        if !columns.is_empty() {
            txn.update_row(id, columns);
        }
    }
}

/// The row of a controller.
pub(crate) fn controller(db: &ovs::Database, id: Uuid, s: &ControllerStatus, now: Instant, txn: &mut Transaction) {
    let Some(row) = db.controller.get(&id) else { return };
    let mut status: Map<Str, Str> = Map::new();
    if !s.state.is_empty() {
        status.insert("state".into(), s.state.into());
    }
    /// Times are written anew when something else changes, and when so many seconds have passed.
    const TIMES: u64 = 5;
    let same = row.is_connected == s.connected && row.status.get("state").map_or("", |v| &**v) == s.state;
    let times = [("sec_since_connect", s.since.0), ("sec_since_disconnect", s.since.1)];
    for (key, since) in times.into_iter().filter(|_| !s.state.is_empty()) {
        let Some(seconds) = since.map(|t| now.saturating_duration_since(t).as_secs()) else { continue };
        let written = row.status.get(key).and_then(|v| v.parse::<u64>().ok());
        let v = written.filter(|old| same && (*old..*old + TIMES).contains(&seconds)).unwrap_or(seconds);
        status.insert(key.into(), v.to_string().as_str().into());
    }
    if let Some(e) = &s.last_error {
        status.insert("last_error".into(), e.as_str().into());
    }
    for (kind, c) in ["miss", "action"].iter().zip(s.limited.iter().flatten()) {
        let values = [("bypassed", c.bypassed), ("queued", c.queued), ("dropped", c.dropped), ("backlog", c.backlog)];
        for (what, n) in values {
            status.insert(format!("packet-in-{kind}-{what}").as_str().into(), n.to_string().as_str().into());
        }
    }
    let columns = differing!(
        ovs::Controller,
        row,
        is_connected = s.connected,
        role = s.role.map(Str::from),
        status = status.clone(),
    );
    if !columns.is_empty() {
        txn.update_row(id, columns);
    }
}

/// The row of a bond.
pub(crate) fn bond(db: &ovs::Database, s: &BondSpec, b: &RunningBridge, txn: &mut Transaction) {
    let Some(row) = db.port.get(&s.row) else { return };
    let active = b.bonds.get(&s.name).map(|s| s.active.unwrap_or_default());
    let columns = differing!(ovs::Port, row, bond_active_slave = active.and_then(|m| text(&m.to_string())));
    if !columns.is_empty() {
        txn.update_row(s.row, columns);
    }
}

/// The row of a mirror: the counters of its output port, which sends nothing else.
pub(crate) fn mirror(db: &ovs::Database, m: &MirrorSpec, b: &RunningBridge, txn: &mut Transaction) {
    let Some(row) = db.mirror.get(&m.uuid) else { return };
    let port = match &m.output {
        Some(MirrorTarget::Port(name)) => b.ports.get(name),
        _ => None,
    };
    let sent = |key: &str| port.and_then(|p| p.statistics.get(key)).map(|v| (Str::from(key), *v));
    let columns = differing!(
        ovs::Mirror,
        row,
        statistics = ["tx_bytes", "tx_packets"].iter().filter_map(|k| sent(k)).collect::<Map<Str, i64>>()
    );
    if !columns.is_empty() {
        txn.update_row(m.uuid, columns);
    }
}

/// The row of an interface. `alone`: the peer that a patch port names in vain.
pub(crate) fn interface(db: &ovs::Database, p: &RunningPort, alone: Option<&str>, txn: &mut Transaction) {
    let Some(row) = db.interface.get(&p.spec.interface) else { return };
    let up = |up: bool| text(if up { "up" } else { "down" });
    let Some(no) = p.no else {
        let columns = differing!(
            ovs::Interface,
            row,
            ofport = Some(-1),
            error = p.error.as_deref().map(Str::from),
            admin_state = None::<Str>,
            link_state = None::<Str>,
            mac_in_use = None::<Str>,
            link_speed = None::<i64>,
            duplex = None::<Str>,
            link_resets = None::<i64>,
            mtu = None::<i64>,
            ifindex = None::<i64>,
            bfd_status = Map::<Str, Str>::new(),
            cfm_fault = None::<bool>,
            cfm_fault_status = Set::<Str>::default(),
            cfm_flap_count = None::<i64>,
            cfm_health = None::<i64>,
            cfm_remote_mpids = Set::<i64>::default(),
            cfm_remote_opstate = None::<Str>,
            lacp_current = None::<bool>,
            statistics = Map::<Str, i64>::new(),
            status = Map::<Str, Str>::new(),
        );
        if !columns.is_empty() {
            txn.update_row(p.spec.interface, columns);
        }
        return;
    };
    let link = p.link;
    let cfm = p.spec.cfm.and(p.cfm.as_ref());
    let speed = i64::from(link.mbps) * 1_000_000;
    let number = if no == PortNo::LOCAL { 65534 } else { i64::from(no.0) };
    let columns = differing!(
        ovs::Interface,
        row,
        ofport = Some(number),
        error = match alone {
            Some(peer) => text(&format!("No usable peer '{peer}' exists in 'netdev' datapath.")),
            // The port runs, but not everything in its row could be done.
            None => p.error.as_deref().or(p.spec.complaint.as_deref()).map(Str::from),
        },
        admin_state = up(link.admin_up),
        link_state = up(link.up),
        link_speed = (speed > 0).then_some(speed),
        duplex = (speed > 0).then(|| Str::from(if link.full_duplex { "full" } else { "half" })),
        link_resets = Some(p.link_resets),
        mac_in_use = text(&p.mac.to_string()),
        mtu = link.mtu.map(i64::from),
        ifindex = match &p.spec.kind {
            Ok(Kind::Patch(_) | Kind::Tunnel(_)) => Some(0),
            _ => p.index().map(i64::from),
        },
        bfd_status = p.spec.bfd.and(p.bfd.as_ref()).map(|b| b.columns()).unwrap_or_default(),
        cfm_fault = cfm.map(|c| !c.faults.is_empty()),
        cfm_fault_status = cfm.iter().flat_map(|c| c.faults.names()).map(Str::from).collect::<Set<Str>>(),
        cfm_flap_count = cfm.map(|c| i64::try_from(c.flaps).unwrap_or(i64::MAX)),
        cfm_health = cfm.and_then(|c| c.health).map(i64::from),
        // The column is a signed number, as `cfm_mpid` is.
        cfm_remote_mpids = cfm.iter().flat_map(|c| &c.peers).map(|n| *n as i64).collect::<Set<i64>>(),
        cfm_remote_opstate = cfm.and_then(|c| c.remote_up).and_then(up),
        lacp_current = p.lacp_current,
        statistics = p.statistics.clone(),
        status = driver(p),
    );
    if !columns.is_empty() {
        txn.update_row(p.spec.interface, columns);
    }
}

fn driver(p: &RunningPort) -> Map<Str, Str> {
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect::<Map<Str, Str>>();
    match (&p.spec.kind, &p.info) {
        (Ok(Kind::System | Kind::Internal), _) => {
            let d = p.driver.clone().unwrap_or_default();
            let mut all =
                map(&[("driver_name", &d.name), ("driver_version", &d.version), ("firmware_version", &d.firmware)]);
            if let Some(peer) = p.peer {
                all.insert("peer_ifindex".into(), peer.to_string().as_str().into());
            }
            all
        }
        (Ok(Kind::Tunnel(_)), _) => p.egress.as_ref().map_or_else(Map::new, |(device, up)| {
            let carrier = if *up { "up" } else { "down" };
            map(&[("tunnel_egress_iface", device), ("tunnel_egress_iface_carrier", carrier)])
        }),
        (Ok(Kind::VhostClient(_)), _) => {
            map(&[("mode", "client"), ("status", if p.link.up { "connected" } else { "disconnected" })])
        }
        (Ok(Kind::Dpdk(_)), Some(i)) => dpdk(p, i),
        _ => Map::new(),
    }
}

/// `Interface:status` of a DPDK device: what Open vSwitch says there, and which offloads are in use.
fn dpdk(p: &RunningPort, i: &PortInfo) -> Map<Str, Str> {
    let speed = p.link.mbps;
    let speed = match (speed, speed / 1000) {
        (0, _) => "Unknown".to_string(),
        (n, 0) => format!("{n}Mbps"),
        (n, g) if n % 1000 == 0 => format!("{g}Gbps"),
        (n, _) => format!("{}.{}Gbps", n / 1000, n % 1000 / 100),
    };
    let yes = |b: bool| b.to_string();
    let values = [
        ("port_no", i.number.to_string()),
        // A device without a NUMA node counts as one of the first.
        ("numa_id", i.socket.max(0).to_string()),
        ("driver_name", i.driver.clone()),
        ("bus_info", format!("bus_name={}", i.bus)),
        ("min_rx_bufsize", i.min_rx_buffer.to_string()),
        ("max_rx_pktlen", (p.link.mtu.unwrap_or(0) + 18).to_string()),
        ("max_rx_queues", i.max_queues[0].to_string()),
        ("max_tx_queues", i.max_queues[1].to_string()),
        ("max_mac_addrs", i.max_macs[0].to_string()),
        ("max_hash_mac_addrs", i.max_macs[1].to_string()),
        ("max_vfs", i.max_vfs.to_string()),
        ("max_vmdq_pools", i.max_vmdq_pools.to_string()),
        ("n_rxq", i.queues[0].to_string()),
        ("n_txq", i.queues[1].to_string()),
        ("n_rxq_desc", i.descriptors[0].to_string()),
        ("n_txq_desc", i.descriptors[1].to_string()),
        // Ethernet (RFC 2863, IANAifType).
        ("if_type", "6".to_string()),
        ("if_descr", format!("{} {}", env!("ISTHMUS_DPDK_VERSION"), i.driver)),
        ("link_speed", speed),
        ("rx_csum_offload", yes(i.rx_checksums)),
        ("tx_ip_csum_offload", yes(i.tx_ipv4)),
        ("tx_udp_csum_offload", yes(i.tx_udp)),
    ];
    values.iter().map(|(k, v)| ((*k).into(), v.as_str().into())).collect()
}
