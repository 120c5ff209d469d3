//! End-to-end scenarios: the same code for the demo, for tests in mixed company and for benchmarks.
//!
//! | module | holds |
//! |---|---|
//! | [`lab`] | namespaces, links, processes, and their end |
//! | [`agent`] | what runs inside a machine of the lab: probes, transfers, a DHCP client |
//! | [`network`] | the machines and wires of the gateway scenario |
//! | [`next_hop`] | a gateway whose next hop is lost |
//! | [`programs`] | our programs on machines of a lab |
//! | [`frr`] | FRR's daemons on them |
//! | [`scenario`] | the checks of the gateway scenario |
//! | [`zones`] | two zones that interconnect joins, and their checks |
//! | [`transit`] | a transit router and a transit switch, and their checks |
//! | [`mod@bench`] | measurements beside the C stack |
//! | [`switch_bench`] | how fast the switch forwards, beside Open vSwitch with DPDK |
//! | [`bfd_bench`] | what many BFD sessions cost a switch |
//! | [`idle_bench`] | what daemons take that cannot do their work |
//! | [`sync_bench`] | what it costs that gateways share connections |
//! | [`report`] | the table on the terminal and the page |

pub mod agent;
pub mod bench;
pub mod bfd_bench;
pub mod frr;
pub mod hold;
pub mod idle_bench;
pub mod lab;
pub mod network;
pub mod next_hop;
pub mod programs;
pub mod report;
pub mod scenario;
pub mod survive;
pub mod switch_bench;
pub mod sync_bench;
pub mod transit;
pub mod zones;
