//! What belongs to single ports: state machines without clock and device, but for [`netdev`] and [`frame`], which are
//! DPDK's.
//!
//! | file | holds |
//! |---|---|
//! | [`bfd`] | BFD sessions over tunnels |
//! | [`cfm`] | maintenance points |
//! | [`lldp`] | what neighbours are told and tell |
//! | [`bond`] | bonds and LACP |
//! | [`stp`] | the spanning tree protocol |
//! | [`rstp`] | the rapid spanning tree protocol |
//! | [`qos`] | policers, and queues that shape what a port sends |
//! | [`netdev`] | network devices: which driver opens which |
//! | [`absent`] | what is in the place of a device that is gone |
//! | [`dummy`] | devices of this process alone, for test beds |
//! | [`neighbours`] | Ethernet addresses of tunnels' next hops |
//! | [`held`] | packets that wait for them |
//! | [`frame`] | packets in DPDK's memory |

pub mod absent;
pub mod bfd;
pub mod bond;
pub mod cfm;
pub mod dummy;
pub mod frame;
pub mod held;
pub mod lldp;
#[cfg(test)]
mod mesh;
pub mod neighbours;
pub mod netdev;
pub mod qos;
pub mod rstp;
pub mod stp;
