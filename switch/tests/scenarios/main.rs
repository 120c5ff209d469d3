//! Packets through small networks: what comes out, byte for byte.

mod bridges;
mod connections;
mod encap;
mod headers;
mod in_band;
mod normal;
mod packet_ins;
mod rig;
mod tables;
mod takeover;
mod traces;
mod tunnels;
