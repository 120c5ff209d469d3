//! Export of packets and counters to collectors of IPFIX, sFlow and NetFlow.
//!
//! | file | holds |
//! |---|---|
//! | [`task`] | the task that gets samples and passing packets from the main PMD thread, and gives them to exporters |
//! | [`ipfix`], [`sflow`], [`netflow`] | the records of each protocol |

pub mod ipfix;
pub mod netflow;
pub mod sflow;
pub mod task;

pub use task::{ExportConfig, ExportCounters, PortFacts, run};
