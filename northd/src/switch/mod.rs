//! The pipelines of logical switches.

pub mod acl;
pub mod arp;
pub mod base;
pub mod dhcp;
pub mod l2_lookup;
pub mod lb;
pub mod log;
pub mod mirror;
pub mod network_function;
pub mod port;
pub mod qos;
pub mod sample;
pub mod security;

use crate::registers::REGBIT_ACL_VERDICT_ALLOW;

/// Gives a packet the verdict that it may pass the access lists.
const ALLOW: &str = const_format::formatcp!("{REGBIT_ACL_VERDICT_ALLOW} = 1; next;");

/// A tunnelled "packet too big" that comes back in.
pub const TOO_BIG: &str = "((ip4 && icmp4.type == 3 && icmp4.code == 4) || \
                           (ip6 && icmp6.type == 2 && icmp6.code == 0)) && flags.tunnel_rx == 1";
