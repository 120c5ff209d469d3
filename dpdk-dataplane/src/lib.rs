//! The dataplane daemon, in the place of ovs-vswitchd. Its rooms, from the ground up; each may import those above it in
//! this table, as far as `tests/imports.rs` says:
//!
//! | room | holds |
//! |---|---|
//! | [`clock`] | the time, by which all threads and tasks go |
//! | [`token_bucket`] | so much a second, and so much at once: what limits of all kinds count by |
//! | [`config`] | what the Open_vSwitch database asks for, parsed into specifications |
//! | [`kernel`] | what the kernel says of the machine and its network |
//! | [`ports`] | what belongs to single ports: BFD, bonds, QoS, devices, next hops |
//! | [`pmd`] | the threads that poll devices and switch packets |
//! | [`openflow`] | OpenFlow connections |
//! | [`export`] | IPFIX, sFlow and NetFlow |
//! | [`ha`] | gateways that know each other's connections |
//! | [`reconcile`] | makes the running switch what the database asks for, and writes back what became of it |
//! | [`commands`] | the control socket |
//! | [`metrics`] | counters for monitoring |
//!
//! ```text
//!                    Open_vSwitch database
//!                             │ ▲
//!   control socket     ┌──────▼─┴──────┐          OpenFlow connections
//!   (commands) ───────►│   reconcile   │          (openflow)
//!        │             └──────┬────────┘               │
//!        │ asynchronous tasks │ jobs                   │ jobs
//!   ─────┼────────────────────┼────────────────────────┼─────────────────────── pmd::Handle
//!        └───────────────► main PMD thread ◄───────────┘
//!                          │ ▲          │ samples
//!             flows, views │ │ upcalls  └──────────► export task ───► collectors
//!                          ▼ │
//!                      fast PMD threads
//! ```

/// The version of Open vSwitch that this switch stands for: its database, its OpenFlow and its commands.
pub const OVS_VERSION: &str = "3.7.90";

pub mod clock;
pub mod commands;
pub mod config;
pub mod export;
pub mod ha;
pub mod kernel;
pub mod metrics;
pub mod openflow;
pub mod pmd;
pub mod ports;
pub mod reconcile;
pub mod token_bucket;
