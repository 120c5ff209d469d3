//! Locks (RFC 7047 sections 4.1.8 to 4.1.10): one owner, others wait in line.

use super::session::Session;
use crate::engine::OpError;
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The locks of a server; the first in line owns.
#[derive(Default, Debug)]
pub(crate) struct Locks {
    lines: HashMap<String, VecDeque<Arc<Session>>>,
    /// The stolen locks, with the clients that they were stolen from.
    lost: HashMap<u64, Vec<String>>,
}

/// The locks of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The locks that it owns.
    pub held: Vec<String>,
    /// The locks that it waits for.
    pub waiting: Vec<String>,
    /// The locks that were stolen from it.
    pub lost: Vec<String>,
}

fn notify(session: &Session, method: &str, lock: &str) {
    session.out.send(&json!({"id": null, "method": method, "params": [lock]}));
}

impl Locks {
    /// Stands in line, at the head of it to steal. Tells whether the lock is owned now.
    pub(crate) fn lock(&mut self, name: &str, session: &Arc<Session>, steal: bool) -> Result<bool, OpError> {
        let line = self.lines.entry(name.to_string()).or_default();
        if line.iter().any(|s| s.id == session.id) {
            return Err(OpError::syntax("must issue \"unlock\" before new \"lock\"").at(&json!([name])));
        }
        if !steal {
            line.push_back(session.clone());
            return Ok(line.len() == 1);
        }
        if let Some(victim) = line.front() {
            notify(victim, "stolen", name);
            self.lost.entry(victim.id).or_default().push(name.to_string());
        }
        line.push_front(session.clone());
        Ok(true)
    }

    /// Releases a lock, or waits for it no longer; who owns it then is notified of that, though it may have owned it before,
    /// as by ovsdb-server.
    pub(crate) fn unlock(&mut self, name: &str, session: u64) -> Result<(), OpError> {
        let missing = || OpError::syntax("unlock: \"unlock\" without \"lock\" or \"steal\"").at(&json!([name]));
        let line = self.lines.get_mut(name).ok_or_else(missing)?;
        let place = line.iter().position(|s| s.id == session).ok_or_else(missing)?;
        line.remove(place);
        if let Some(lost) = self.lost.get_mut(&session) {
            lost.retain(|n| n != name);
        }
        match line.front() {
            Some(owner) => notify(owner, "locked", name),
            None => {
                self.lines.remove(name);
            }
        }
        Ok(())
    }

    /// Releases all locks, and waits for none.
    pub(crate) fn leave(&mut self, session: u64) {
        let names: Vec<String> =
            self.lines.iter().filter(|(_, l)| l.iter().any(|s| s.id == session)).map(|(n, _)| n.clone()).collect();
        for name in names {
            // It is in this line, as was just seen.
            let _ = self.unlock(&name, session);
        }
        self.lost.remove(&session);
    }

    /// The locks of a session.
    pub(crate) fn held(&self, session: u64) -> Held {
        let mut held = Held { lost: self.lost.get(&session).cloned().unwrap_or_default(), ..Held::default() };
        for (name, line) in &self.lines {
            match line.iter().position(|s| s.id == session) {
                Some(0) => held.held.push(name.clone()),
                Some(_) if !held.lost.contains(name) => held.waiting.push(name.clone()),
                _ => {}
            }
        }
        held.held.sort_unstable();
        held.waiting.sort_unstable();
        held
    }

    pub(crate) fn owns(&self, name: &str, session: u64) -> bool {
        self.lines.get(name).and_then(VecDeque::front).is_some_and(|s| s.id == session)
    }
}
