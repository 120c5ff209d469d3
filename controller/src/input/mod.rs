//! What flows and rows are derived from, as it is looked at.
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | southbound rows with their indexes, and what is known of this chassis |
//! | [`conditions`] | which southbound rows are replicated |
//! | [`interfaces`] | what the integration bridge's interfaces say |
//! | [`settings`] | the operator's configuration in the local database |

pub mod conditions;
pub mod interfaces;
pub mod model;
pub mod settings;
