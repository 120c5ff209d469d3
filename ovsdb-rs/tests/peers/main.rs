//! Our server and client beside Debian's: tools, dumps, roles, relays, clusters.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod access;
mod clients;
mod cluster;
mod dumps;
mod follow;
mod scripts;
mod servers;
mod tools;
