//! Syntax errors.

/// What is wrong with an expression or an action, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text} (at character {at})")]
pub struct Error {
    /// What is wrong and what was expected, in the words operators know from ovn-nbctl and ovn-trace.
    pub text: String,
    /// The character, counted from 0, at which it was noticed.
    pub at: usize,
}

impl Error {
    /// An error at a place.
    pub fn new(at: usize, text: impl Into<String>) -> Error {
        Error { text: text.into(), at }
    }
}
