//! The active-backup options and commands (ovsdb-server(1)).

use crate::config::Setup;
use anyhow::Context;
use ovsdb_rs::Server;
use ovsdb_rs::server::Source;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

struct State {
    source: Option<String>,
    exclude: BTreeSet<(String, String)>,
    probe: Option<Duration>,
    connected: bool,
}

/// The server's role; clones are the same.
#[derive(Clone)]
pub struct Backup {
    server: Server,
    setup: Setup,
    state: Arc<Mutex<State>>,
}

fn tables(text: &str) -> anyhow::Result<BTreeSet<(String, String)>> {
    let pair = |word: &str| {
        let (db, table) = word.split_once(':').with_context(|| format!("\"{word}\": expected DB:TABLE"))?;
        Ok((db.to_string(), table.to_string()))
    };
    text.split(',').filter(|w| !w.is_empty()).map(pair).collect()
}

impl Backup {
    /// An active server that can become a backup.
    pub fn new(
        server: &Server,
        setup: &Setup,
        source: Option<String>,
        exclude: Option<&str>,
    ) -> anyhow::Result<Backup> {
        let exclude = tables(exclude.unwrap_or_default())?;
        let state = State { source, exclude, probe: Some(Duration::from_secs(60)), connected: false };
        Ok(Backup { server: server.clone(), setup: setup.clone(), state: Arc::new(Mutex::new(state)) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has_source(&self) -> bool {
        self.state().source.is_some()
    }

    /// Becomes a backup of the active server.
    pub fn connect(&self) -> anyhow::Result<()> {
        let tls = self.setup.tls();
        let mut state = self.state();
        let remote = state.source.clone().context("Unable to connect: active server is not specified.")?;
        self.server.replicate(Some(Source { remote, exclude: state.exclude.clone(), probe: state.probe, tls }))?;
        state.connected = true;
        Ok(())
    }

    /// Becomes an active server.
    pub fn disconnect(&self) -> anyhow::Result<()> {
        let was = std::mem::replace(&mut self.state().connected, false);
        if was {
            self.server.replicate(None)?;
        }
        Ok(())
    }

    fn reconnect(&self) -> anyhow::Result<()> {
        let connected = self.state().connected;
        if connected { self.connect() } else { Ok(()) }
    }

    pub fn set_source(&self, remote: &str) -> anyhow::Result<()> {
        self.state().source = Some(remote.to_string());
        self.reconnect()
    }

    pub fn source(&self) -> String {
        self.state().source.clone().unwrap_or_default()
    }

    pub fn set_exclude(&self, text: &str) -> anyhow::Result<()> {
        self.state().exclude = tables(text)?;
        self.reconnect()
    }

    pub fn exclude(&self) -> String {
        let list: Vec<String> = self.state().exclude.iter().map(|(d, t)| format!("{d}:{t}")).collect();
        list.join(",")
    }

    pub fn set_probe(&self, milliseconds: u64) -> anyhow::Result<()> {
        self.state().probe = (milliseconds > 0).then(|| Duration::from_millis(milliseconds));
        self.reconnect()
    }

    /// The text of `ovsdb-server/sync-status`.
    pub fn status(&self) -> String {
        let Some(status) = self.server.sync_status() else { return "state: active\n".into() };
        let source = self.source();
        let mut out = String::from("state: backup\n");
        if !status.replicating.is_empty() {
            let list: Vec<&str> = status.replicating.iter().map(String::as_str).collect();
            out += &format!("replicating: {source}\ndatabase: {}\n", list.join(", "));
            let exclude = self.exclude();
            if !exclude.is_empty() {
                out += &format!("exclude: {exclude}\n");
            }
        } else if status.errors.is_empty() {
            out += &format!("connecting: {source}\n");
        } else {
            out += &format!("error: {source}\n");
        }
        for (db, e) in &status.errors {
            out += &format!("not replicating {db}: {e}\n");
        }
        out
    }
}
