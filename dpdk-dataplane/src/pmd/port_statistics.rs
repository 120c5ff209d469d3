//! Counters of ports: the switch's, with what policers and devices dropped and got wrong.

use super::MainPmd;
use openflow_rs::PortNo;
use ovn_schema::{Map, Str};
use std::collections::HashMap;
use switch::{BridgeId, Port, PortKind};

/// The counters that are of a port's kind of device alone, by name, as Open vSwitch has them: of devices of DPDK those
/// of queues, of errors, and of what is dropped here; of dummies some for tests.
pub fn custom_counters(w: &MainPmd, p: &Port) -> Vec<(String, u64)> {
    let (PortKind::Device(n) | PortKind::Internal(n)) = &p.kind else { return Vec::new() };
    let Some(d) = w.device(*n) else { return Vec::new() };
    if w.of_dummies() {
        let [rx_packets, tx_packets, rx_bytes, tx_bytes, ..] = p.stats;
        let list = [
            ("rx_custom_packets_1", rx_packets),
            ("rx_custom_packets_2", rx_packets),
            ("rx_q0_bytes", rx_bytes),
            ("rx_q0_packets", rx_packets),
            ("tx_q0_bytes", tx_bytes),
            ("tx_q0_packets", tx_packets),
        ];
        return list.map(|(name, v)| (name.into(), v)).into();
    }
    let [rx_policed, tx_policed] = w.policed(*n);
    let own = [
        ("ovs_rx_qos_drops", rx_policed),
        ("ovs_tx_failure_drops", d.full),
        ("ovs_tx_mtu_exceeded_drops", d.port.too_long()),
        ("ovs_tx_qos_drops", tx_policed),
    ];
    let known = ["rx_errors", "tx_errors", "rx_missed_errors", "rx_mbuf_allocation_errors"];
    let drivers = d.port.extended_statistics().into_iter().filter(|(name, _)| {
        let queue = name.starts_with("rx_q") || name.starts_with("tx_q");
        queue || (name.ends_with("_errors") || name.ends_with("_dropped")) && !known.contains(&&**name)
    });
    own.map(|(name, v)| (name.to_string(), v)).into_iter().chain(drivers).collect()
}

/// The counters of all ports, as column `statistics` names them.
pub fn port_statistics(w: &MainPmd) -> HashMap<(BridgeId, PortNo), Map<Str, i64>> {
    let mut all = HashMap::new();
    let bridges = (0..).map(BridgeId).map_while(|id| w.switch.bridge(id).map(|b| (id, b)));
    for (id, b) in bridges {
        for p in b.ports.values() {
            let mut m: Map<Str, i64> = Map::new();
            let [rx_packets, tx_packets, rx_bytes, tx_bytes, ..] = p.stats;
            let mut put = |name: &str, v: u64| m.insert(name.into(), v as i64);
            put("rx_packets", rx_packets);
            put("tx_packets", tx_packets);
            put("rx_bytes", rx_bytes);
            put("tx_bytes", tx_bytes);
            // Nobody counts drops and errors of dummies.
            if !w.of_dummies()
                && let PortKind::Device(n) | PortKind::Internal(n) = &p.kind
                && let Some(d) = w.device(*n)
            {
                let [rx_policed, tx_policed] = w.policed(*n);
                let hw = d.port.statistics();
                put("rx_dropped", rx_policed);
                put("tx_dropped", tx_policed + d.full + d.port.too_long());
                put("rx_errors", hw.rx_errors);
                put("tx_errors", hw.tx_errors);
                put("rx_missed_errors", hw.rx_missed);
                put("rx_mbuf_allocation_errors", hw.rx_no_memory);
            }
            for (name, v) in custom_counters(w, p) {
                put(&name, v);
            }
            all.insert((id, p.no), m);
        }
    }
    all
}
