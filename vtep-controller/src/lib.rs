//! Top-of-rack switches in logical networks: takes the place of ovn-controller-vtep(8).
//!
//! ```text
//!   OVN_Southbound ──► model::Input ──► units (incremental) ──► desired rows ──► plan ──► transactions
//!   hardware_vtep ──►       │                                        ▲             │       of both
//!                           └── rows that are there ─────────────────┴─────────────┘
//! ```
//!
//! What the databases should hold is derived from what they hold; the difference between a derived row and the row
//! that is there is written. A row that somebody else changed is a difference like any other, so it is mended.

pub mod address;
mod link;
pub mod metrics;
pub mod model;
pub mod output;
pub mod plan;
pub mod run;
pub mod settings;
pub mod units;

/// The version that this controller says it is: that of ovn-northd 26.03, the database schema it was made for.
pub const INTERNAL_VERSION: &str = "26.03.90-21.11.0-82.15";
