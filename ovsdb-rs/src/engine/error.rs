//! Errors of operations, as replies carry them (RFC 7047 section 3.1 `<error>`).

use crate::Error;
use crate::json::canonical;
use serde_json::{Map, Value};

/// An error object: its name, what is wrong, and the JSON that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpError {
    /// The name, such as `constraint violation`.
    pub error: &'static str,
    /// What is wrong, for people.
    pub details: String,
    /// The JSON at fault.
    pub syntax: Option<String>,
}

impl OpError {
    /// An error of this name.
    pub fn new(error: &'static str, details: impl Into<String>) -> OpError {
        OpError { error, details: details.into(), syntax: None }
    }

    /// A `syntax error`.
    pub fn syntax(details: impl Into<String>) -> OpError {
        OpError::new("syntax error", details)
    }

    /// A `constraint violation`.
    pub fn constraint(details: impl Into<String>) -> OpError {
        OpError::new("constraint violation", details)
    }

    /// The same, pointing at the JSON at fault.
    #[must_use]
    pub fn at(self, v: &Value) -> OpError {
        OpError { syntax: Some(canonical(v)), ..self }
    }

    /// The error object.
    pub fn to_json(&self) -> Value {
        let mut o = Map::new();
        if let Some(s) = &self.syntax {
            o.insert("syntax".into(), Value::String(s.clone()));
        }
        o.insert("details".into(), Value::String(self.details.clone()));
        o.insert("error".into(), Value::String(self.error.to_string()));
        Value::Object(o)
    }

    /// The error of a value: where it is one of syntax, it points at `v`.
    pub(crate) fn of_value(e: Error, v: &Value) -> OpError {
        match e {
            Error::Constraint(text) => OpError::constraint(text),
            Error::Duplicate(text) => OpError::new("ovsdb error", text),
            Error::Syntax(text) => OpError::syntax(text).at(v),
            other => OpError::syntax(other.to_string()).at(v),
        }
    }
}

impl std::fmt::Display for OpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.error, self.details)?;
        match &self.syntax {
            Some(s) => write!(f, " (at {s})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OpError {}
