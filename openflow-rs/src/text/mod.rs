//! The text form of flows, groups and meters, as `ovs-ofctl` prints and reads it (ovs-ofctl(8), ovs-actions(7)).

mod match_text;
mod message;
mod parse;
mod parse_actions;
mod print;
mod value;

pub use message::message_to_string;
pub use parse::{parse_filter, parse_flow, parse_group, parse_match, parse_meter};
pub use parse_actions::parse_actions;
pub use print::{actions_to_string, flow_to_string, group_to_string, meter_to_string};

/// Text that is not a flow, group, meter, match or action.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub String);

impl ParseError {
    pub(crate) fn new(s: impl Into<String>) -> Self {
        ParseError(s.into())
    }
}

pub(crate) type Result<T> = std::result::Result<T, ParseError>;
