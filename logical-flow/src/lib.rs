//! The OVN logical flow language (ovn-sb(5), table Logical_Flow, columns `match` and `actions`).
//!
//! | module | holds |
//! |---|---|
//! | [`lexer`] | tokens |
//! | [`constant`] | numbers and addresses in the forms in which they are written |
//! | [`field`] | packet and metadata fields |
//! | [`fields`] | the field values of one match |
//! | [`symbol`] | the names that expressions use: fields, subfields, predicates, prerequisites |
//! | [`expr`] | match expressions: parse, evaluate against an [`expr::Environment`], print |
//! | [`normal`] | normalisation to sets of field matches, conjunctions for two lists and more |
//! | [`sets`] | the same with members of address sets apart, so that these come and go alone |
//! | [`action`] | actions: parse to a tree, print |
//! | [`written`] | trees that print exactly as their text was laid out |
//! | [`template`] | variables that each chassis has its own values of |
//!
//! The crate knows no database and no OpenFlow bytes: ports, sets and residency come in through
//! [`expr::Environment`], and what comes out are [`normal::Match`]es and [`action::Action`]s.

pub mod action;
mod action_call;
mod action_parse;
pub mod constant;
mod error;
pub mod evaluate;
pub mod expr;
pub mod field;
pub mod fields;
pub mod lexer;
pub mod normal;
mod print;
pub mod sets;
pub mod symbol;
pub mod template;
pub mod written;

pub use error::Error;
