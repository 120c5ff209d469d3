//! What a change costs, and that it does not matter in which order and in which groups changes come.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/chassis.rs"]
mod chassis;
mod costs;
mod rows;
mod sequences;
mod steps;
