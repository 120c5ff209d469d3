//! Debian's Open vSwitch with its userspace datapath beside our switch: the same flows, groups, meters and packets in
//! both; the same packets, packet-ins, counters and connections must come out.

mod compare;
mod encap;
mod errors;
mod grammar;
mod mirrors;
mod ovs;
mod packets;
mod passes;
mod random;
mod states;
mod walk;
