//! Where resources come from, and where annotations, conditions and events go.

pub mod folder;
pub mod kubernetes;

use crate::resource::{Condition, Name};
use serde_json::Value as Json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// What a source tells.
#[derive(Debug)]
pub enum Event {
    /// A resource as it is now; none: it is gone.
    Object(Name, Option<Json>),
    /// All that there was at the start has been told.
    Synced,
    /// Whether this process is the one that decides.
    Leader(bool),
}

/// What a source is asked to write about a `ClusterNetworkConnect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Sets an annotation.
    Annotate {
        /// The resource.
        connect: String,
        /// The annotation.
        annotation: &'static str,
        /// Its text.
        text: String,
    },
    /// Sets a condition.
    Condition {
        /// The resource.
        connect: String,
        /// The condition.
        condition: Condition,
        /// `status.status`, where that is to be set too.
        word: Option<&'static str>,
    },
    /// Tells people.
    Event {
        /// The resource.
        connect: String,
        /// Whether something is wrong.
        warning: bool,
        /// One word.
        reason: String,
        /// A sentence.
        message: String,
    },
}

impl Request {
    /// The resource.
    pub fn connect(&self) -> &str {
        match self {
            Request::Annotate { connect, .. } | Request::Condition { connect, .. } | Request::Event { connect, .. } => {
                connect
            }
        }
    }
}

/// Both ends of a source that runs.
pub struct Feed {
    /// What it tells.
    pub events: UnboundedReceiver<Event>,
    /// What it is asked.
    pub requests: UnboundedSender<Request>,
}

/// A place where resources are.
pub trait Source {
    /// Begins to tell and to write, in the background.
    ///
    /// # Errors
    /// Where the place cannot be used at all.
    fn start(self) -> anyhow::Result<Feed>;
}
