//! Zones of OVN joined: takes the place of ovn-ic(8).
//!
//! ```text
//!   OVN_IC_Northbound ─┐                                                        ┌► OVN_IC_Southbound
//!   OVN_IC_Southbound ─┤                                                        │
//!   OVN_Northbound ────┼► model::Input ──► units (incremental) ──► wanted rows ─┼► OVN_Northbound
//!   OVN_Southbound ────┘        │                                       ▲       │
//!                               └── rows that are there ────────────────┘       └► OVN_Southbound
//! ```
//!
//! A zone's rows in the interconnection databases, and what a zone takes from the others into its own databases, are
//! derived from what the four databases hold. The difference between a wanted row and the row that is there is
//! written. Rows that carry the mark of an interconnection controller and are not wanted any more are deleted.

pub mod address;
pub mod model;
pub mod output;
pub mod plan;
pub mod run;
mod show;
pub mod units;
