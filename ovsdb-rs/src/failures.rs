//! What the log says of attempts to connect that fail again and again.

use std::collections::HashMap;
use std::fmt::Display;

/// The attempts of one connection since it was last there.
#[derive(Default)]
pub(crate) struct Failures {
    /// The last reason that was said of each remote.
    said: HashMap<String, String>,
    is_quiet: bool,
}

impl Failures {
    /// Says that an attempt failed. When the pauses between attempts grow no more it says so, and
    /// from then on only reasons that are new.
    pub(crate) fn failed(&mut self, remote: &str, why: impl Display, is_longest_pause: bool) {
        let why = why.to_string();
        if self.is_quiet && self.said.get(remote) == Some(&why) {
            return;
        }
        tracing::info!(target: "reconnect", "{remote}: connection attempt failed ({why})");
        self.said.insert(remote.to_string(), why);
        if is_longest_pause && !self.is_quiet {
            tracing::info!(
                target: "reconnect",
                "{remote}: continuing to reconnect in the background but suppressing further logging"
            );
            self.is_quiet = true;
        }
    }
}
