//! EVPN (`Logical_Switch:other_config:dynamic-routing-vni`, ovn-nb(5)): a logical switch reaches into a VXLAN fabric whose control plane is
//! BGP (RFC 7432, RFC 8365). A routing daemon beside this controller, FRR as a rule, speaks BGP and keeps what it learned in devices of
//! the kernel: a VXLAN device and a bridge for each switch. What is on this chassis it reads from the same devices.
//!
//! ```text
//!   Datapath_Binding, Port_Binding, FDB, Advertised_MAC_Binding ─► rows ─► presence ─► wish
//!                                                                                       │ difference
//!   routing daemon ◄──────────────► VXLAN device, bridge, advertise device ◄────────► kernel
//!                                                                                       │ tables
//!   flows ◄── flows::evpn ◄── fabric: VTEPs, remote Ethernet addresses, neighbours ◄────┘
//! ```
//!
//! | device | what is learned from it | what is put there |
//! |---|---|---|
//! | VXLAN (`dynamic-routing-vxlan-ifname`) | VTEPs; which Ethernet address is behind which | nothing |
//! | bridge (`dynamic-routing-bridge-ifname`) | neighbours: IP and Ethernet addresses | `Advertised_MAC_Binding` of this chassis |
//! | advertise (`dynamic-routing-advertise-ifname`) | nothing | Ethernet addresses of this chassis |
//!
//! | module | holds |
//! |---|---|
//! | [`rows`] | what rows say of a switch, and of what is advertised |
//! | [`wish`] | which devices are read, and what they are to hold |
//! | [`difference`] | what is between a device and the wish, and what others put there, without I/O |
//! | [`kernel`] | reading, changing and watching devices |
//! | [`next_hops`] | the kernel's next hop objects, by netlink |
//! | [`fabric`] | what flows are derived from, and what `ovn-appctl evpn/…` shows |

pub mod difference;
pub mod fabric;
pub mod kernel;
pub mod next_hops;
pub mod rows;
pub mod wish;

pub use fabric::{Entry, Fabric};
