//! What exporters of IPFIX have counted, where those that export write it and those that answer controllers read it.

use openflow_rs::message::IpfixStats;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use switch::BridgeId;

/// An exporter: that of all packets of a bridge, or that of one of its collector sets.
pub type ExporterId = (BridgeId, Option<u32>);

/// The counters of each exporter that is configured. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct IpfixStatistics(Arc<Mutex<BTreeMap<ExporterId, IpfixStats>>>);

impl IpfixStatistics {
    /// Writes an exporter's counters; `None`: it is not configured any more.
    pub fn set(&self, exporter: ExporterId, counters: Option<IpfixStats>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counters {
            Some(c) => drop(all.insert(exporter, c)),
            None => drop(all.remove(&exporter)),
        }
    }

    /// The counters of the exporter of all packets of a bridge; `None`: it has none.
    pub fn of_bridge(&self, bridge: BridgeId) -> Option<IpfixStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(bridge, None)).copied()
    }

    /// Those of a bridge's collector sets, by number.
    pub fn of_flows(&self, bridge: BridgeId) -> Vec<IpfixStats> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.range((bridge, Some(0))..=(bridge, Some(u32::MAX))).map(|(_, s)| *s).collect()
    }
}
