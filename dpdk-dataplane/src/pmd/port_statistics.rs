//! Counters of ports: the switch's, with what policers and devices dropped and got wrong.

use super::MainPmd;
use openflow_rs::PortNo;
use ovn_schema::{Map, Str};
use std::collections::HashMap;
use switch::BridgeId;

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
                && let switch::PortKind::Device(n) | switch::PortKind::Internal(n) = &p.kind
                && let Some(d) = w.device(*n)
            {
                let [rx_policed, tx_policed] = w.policed(*n);
                let hw = d.port.statistics();
                put("rx_dropped", rx_policed);
                put("tx_dropped", tx_policed + d.full + d.port.too_long());
                put("ovs_tx_mtu_exceeded_drops", d.port.too_long());
                put("rx_errors", hw.rx_errors);
                put("tx_errors", hw.tx_errors);
                put("rx_missed_errors", hw.rx_missed);
                put("rx_mbuf_allocation_errors", hw.rx_no_memory);
                put("ovs_rx_qos_drops", rx_policed);
                put("ovs_tx_qos_drops", tx_policed);
                put("ovs_tx_failure_drops", d.full);
                // Those of queues, and of errors, as Open vSwitch has it.
                for (name, v) in d.port.extended_statistics() {
                    let known = ["rx_errors", "tx_errors", "rx_missed_errors", "rx_mbuf_allocation_errors"];
                    let queue = name.starts_with("rx_q") || name.starts_with("tx_q");
                    if queue || (name.ends_with("_errors") || name.ends_with("_dropped")) && !known.contains(&&*name) {
                        put(&name, v);
                    }
                }
            }
            all.insert((id, p.no), m);
        }
    }
    all
}
