//! The columns that tell how things are (ovs-vswitchd.conf.db(5)): computed, compared with the rows, written where they
//! differ.

use crate::config::{Kind, MirrorSpec};
use crate::control::{RunningBridge, RunningPort};
use crate::device::mac_text;
use crate::host::Host;
use crate::openflow::ControllerStatus;
use crate::worker::Worker;
use openflow_rs::PortNo;
use ovn_schema::{ColumnValue, Map, Set, Str, Uuid, ovs};
use ovsdb_rs::client::Transaction;
use std::collections::HashMap;
use switch::BridgeId;

/// The interface types of this switch.
const TYPES: &[&str] = &["dpdk", "dpdkvhostuserclient", "geneve", "internal", "patch", "system", "tap", "vxlan"];

fn set(values: &[&str]) -> Set<Str> {
    values.iter().map(|v| Str::from(*v)).collect()
}

fn text(s: &str) -> Option<Str> {
    Some(s.into())
}

/// Collects the columns that differ.
macro_rules! differing {
    ($row:expr, $($field:ident = $value:expr),* $(,)?) => {{
        let mut columns = Vec::new();
        $({
            let value = $value;
            if $row.$field != value {
                columns.push((stringify!($field), value.to_datum()));
            }
        })*
        columns
    }};
}

/// The row of Open_vSwitch.
pub(crate) fn root(db: &ovs::Database, applied: i64, txn: &mut Transaction) {
    let Some((id, row)) = db.open_vswitch.iter().next() else { return };
    let columns = differing!(
        row,
        cur_cfg = applied,
        dpdk_initialized = true,
        dpdk_version = text(env!("ISTHMUS_DPDK_VERSION")),
        ovs_version = text(env!("CARGO_PKG_VERSION")),
        iface_types = set(TYPES),
        datapath_types = set(&["netdev", "system"]),
    );
    if !columns.is_empty() {
        txn.update("Open_vSwitch", *id, columns);
    }
}

/// The row of a bridge.
pub(crate) fn bridge(db: &ovs::Database, b: &RunningBridge, txn: &mut Transaction) {
    let Some(row) = db.bridge.get(&b.spec.uuid) else { return };
    let columns = differing!(
        row,
        datapath_id = text(&format!("{:016x}", b.spec.datapath_id)),
        datapath_version = Str::from(concat!("Isthmus ", env!("CARGO_PKG_VERSION"))),
    );
    if !columns.is_empty() {
        txn.update("Bridge", b.spec.uuid, columns);
    }
}

/// The row of a controller.
pub(crate) fn controller(db: &ovs::Database, id: Uuid, s: &ControllerStatus, txn: &mut Transaction) {
    let Some(row) = db.controller.get(&id) else { return };
    let mut status: Map<Str, Str> = Map::new();
    status.insert("state".into(), s.state.into());
    // Times are written when something else changes, not each second.
    let same = row.is_connected == s.connected && row.status.get("state").map(|v| &**v) == Some(s.state);
    for (key, since) in [("sec_since_connect", s.since.0), ("sec_since_disconnect", s.since.1)] {
        let old = row.status.get(key).filter(|_| same).cloned();
        if let Some(v) = old.or_else(|| since.map(|t| t.elapsed().as_secs().to_string().as_str().into())) {
            status.insert(key.into(), v);
        }
    }
    if let Some(e) = &s.last_error {
        status.insert("last_error".into(), e.as_str().into());
    }
    let columns = differing!(row, is_connected = s.connected, role = s.role.map(Str::from), status = status.clone(),);
    if !columns.is_empty() {
        txn.update("Controller", id, columns);
    }
}

/// The row of a mirror: what its port sent, as it sends nothing else.
pub(crate) fn mirror(db: &ovs::Database, m: &MirrorSpec, b: &RunningBridge, txn: &mut Transaction) {
    let Some(row) = db.mirror.get(&m.uuid) else { return };
    let port = m.output.as_ref().ok().and_then(|name| b.ports.get(name.as_ref()?));
    let sent = |key: &str| port.and_then(|p| p.statistics.get(key)).map(|v| (Str::from(key), *v));
    let columns = differing!(
        row,
        statistics = ["tx_bytes", "tx_packets"].iter().filter_map(|k| sent(k)).collect::<Map<Str, i64>>()
    );
    if !columns.is_empty() {
        txn.update("Mirror", m.uuid, columns);
    }
}

/// The row of an interface.
pub(crate) fn interface(db: &ovs::Database, p: &RunningPort, host: &Host, txn: &mut Transaction) {
    let Some(row) = db.interface.get(&p.spec.interface) else { return };
    let up = |up: bool| text(if up { "up" } else { "down" });
    let Some(no) = p.no else {
        let columns = differing!(
            row,
            ofport = Some(-1),
            error = p.error.as_deref().map(Str::from),
            admin_state = None::<Str>,
            link_state = None::<Str>,
            mac_in_use = None::<Str>,
            mtu = None::<i64>,
            ifindex = None::<i64>,
            bfd_status = Map::<Str, Str>::new(),
            statistics = Map::<Str, i64>::new(),
            status = Map::<Str, Str>::new(),
        );
        if !columns.is_empty() {
            txn.update("Interface", p.spec.interface, columns);
        }
        return;
    };
    let link = p.ifindex.and_then(|_| host.links.get(&p.spec.name));
    let number = if no == PortNo::LOCAL { 65534 } else { i64::from(no.0) };
    let columns = differing!(
        row,
        ofport = Some(number),
        error = None::<Str>,
        admin_state = up(link.is_none_or(|l| l.admin_up)),
        link_state = up(link.is_none_or(|l| l.up)),
        mac_in_use = text(&mac_text(p.mac)),
        mtu = link.map(|l| i64::from(l.mtu)),
        ifindex = p.ifindex.map(i64::from),
        bfd_status = p.spec.bfd.and(p.bfd.as_ref()).map(|b| b.columns()).unwrap_or_default(),
        statistics = p.statistics.clone(),
        status = driver(p),
    );
    if !columns.is_empty() {
        txn.update("Interface", p.spec.interface, columns);
    }
}

fn driver(p: &RunningPort) -> Map<Str, Str> {
    let name = match &p.spec.kind {
        Ok(Kind::System) => "net_af_packet",
        Ok(Kind::Internal) => "net_tap",
        Ok(Kind::VhostClient(_)) => "net_vhost",
        Ok(Kind::Dpdk(_)) => "dpdk",
        _ => return Map::new(),
    };
    [("driver_name".into(), name.into())].into_iter().collect()
}

/// The counters of all ports, as column `statistics` names them.
pub(crate) fn statistics(w: &Worker) -> HashMap<(BridgeId, PortNo), Map<Str, i64>> {
    let mut all = HashMap::new();
    let bridges = (0..).map_while(|id| w.switch.bridge(id).map(|b| (id, b)));
    for (id, b) in bridges {
        for p in b.ports.values() {
            let s = p.stats;
            let mut m: Map<Str, i64> = Map::new();
            let names = ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped"];
            for (name, v) in names.into_iter().zip(s) {
                m.insert(name.into(), v as i64);
            }
            if let switch::PortKind::Device(n) | switch::PortKind::Internal(n) = &p.kind
                && let Some(d) = w.device(*n)
            {
                let policed = w.policed(*n);
                for (name, dropped) in ["rx_dropped", "tx_dropped"].into_iter().zip(policed) {
                    let known = m.get(name).copied().unwrap_or(0);
                    m.insert(name.into(), known + dropped as i64);
                }
                let hw = d.port.statistics();
                m.insert("rx_errors".into(), hw.rx_errors as i64);
                m.insert("tx_errors".into(), hw.tx_errors as i64);
                m.insert("rx_missed_errors".into(), hw.rx_missed as i64);
            }
            all.insert((id, p.no), m);
        }
    }
    all
}
