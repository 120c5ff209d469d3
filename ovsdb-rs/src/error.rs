//! Errors of values, schemas and files.

/// An error in a value, a schema or a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// JSON that is not of the form RFC 7047 asks for.
    #[error("syntax error: {0}")]
    Syntax(String),
    /// A value outside what its column allows.
    #[error("constraint violation: {0}")]
    Constraint(String),
    /// A set or map that holds an element twice.
    #[error("{0}")]
    Duplicate(&'static str),
    /// A named object that the schema does not have.
    #[error("unknown {kind} {name}")]
    Unknown {
        /// `table`, `column`, `database`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A file that cannot be read or is not a standalone database.
    #[error("{path}: {reason}")]
    File {
        /// The file's path.
        path: String,
        /// What is wrong, and where.
        reason: String,
    },
}

impl Error {
    /// A syntax error with this text.
    pub fn syntax(text: impl Into<String>) -> Error {
        Error::Syntax(text.into())
    }
}
