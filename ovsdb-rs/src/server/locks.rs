//! Locks (RFC 7047 sections 4.1.8 to 4.1.10): one owner, others wait in line.

use super::session::Session;
use crate::engine::OpError;
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The locks of a server; the first in line owns.
#[derive(Default, Debug)]
pub(crate) struct Locks(HashMap<String, VecDeque<Arc<Session>>>);

fn notify(session: &Session, method: &str, lock: &str) {
    session.out.send(&json!({"id": null, "method": method, "params": [lock]}));
}

impl Locks {
    /// Stands in line, at the head of it to steal. Tells whether the lock is owned now.
    pub(crate) fn lock(&mut self, name: &str, session: &Arc<Session>, steal: bool) -> Result<bool, OpError> {
        let line = self.0.entry(name.to_string()).or_default();
        if line.iter().any(|s| s.id == session.id) {
            return Err(OpError::syntax("must issue \"unlock\" before new \"lock\"").at(&json!([name])));
        }
        if !steal {
            line.push_back(session.clone());
            return Ok(line.len() == 1);
        }
        if let Some(victim) = line.front() {
            notify(victim, "stolen", name);
        }
        line.push_front(session.clone());
        Ok(true)
    }

    /// Leaves the line; the next is told that it owns the lock.
    pub(crate) fn unlock(&mut self, name: &str, session: u64) -> Result<(), OpError> {
        let missing = || OpError::syntax("unlock: \"unlock\" without \"lock\" or \"steal\"").at(&json!([name]));
        let line = self.0.get_mut(name).ok_or_else(missing)?;
        let place = line.iter().position(|s| s.id == session).ok_or_else(missing)?;
        line.remove(place);
        match line.front() {
            Some(next) if place == 0 => notify(next, "locked", name),
            Some(_) => {}
            None => {
                self.0.remove(name);
            }
        }
        Ok(())
    }

    /// Leaves all lines.
    pub(crate) fn leave(&mut self, session: u64) {
        let names: Vec<String> =
            self.0.iter().filter(|(_, l)| l.iter().any(|s| s.id == session)).map(|(n, _)| n.clone()).collect();
        for name in names {
            // It is in this line, as was just seen.
            let _ = self.unlock(&name, session);
        }
    }

    pub(crate) fn owns(&self, name: &str, session: u64) -> bool {
        self.0.get(name).and_then(VecDeque::front).is_some_and(|s| s.id == session)
    }
}
