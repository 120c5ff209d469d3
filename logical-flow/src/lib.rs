//! The OVN logical flow language (ovn-sb(5), table Logical_Flow, columns `match` and `actions`).
//!
//! | module | holds |
//! |---|---|
//! | [`lexer`] | tokens |
//! | [`field`] | packet and metadata fields |
//! | [`symbol`] | the names that expressions use: fields, subfields, predicates, prerequisites |
//! | [`expr`] | match expressions: parse, evaluate against an [`expr::Environment`] |
//! | [`normal`] | normalisation to sets of field matches, conjunctions where they make fewer |
//! | [`action`] | actions: parse to a tree |
//! | [`template`] | variables that each chassis has its own values of |
//!
//! The crate knows no database and no OpenFlow bytes: ports, sets and residency come in through
//! [`expr::Environment`], and what comes out are [`normal::Match`]es and [`action::Action`]s.

pub mod action;
mod action_call;
mod error;
pub mod expr;
pub mod field;
pub mod lexer;
pub mod normal;
pub mod symbol;
pub mod template;

pub use error::Error;
