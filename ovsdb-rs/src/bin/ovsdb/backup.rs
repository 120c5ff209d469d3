//! The active-backup service model (ovsdb(7)): which databases are backups, of whom. The command line and commands give one source
//! to all databases, a configuration file one to each.

use crate::config::Setup;
use anyhow::Context;
use ovsdb_rs::Server;
use ovsdb_rs::server::{SERVER_DATABASE, Source, SourceOptions, SyncState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A database of the active-backup service model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The active server, if it is known.
    pub source: Option<Source>,
    /// It follows the source; otherwise it is active itself.
    pub backup: bool,
}

/// What the options and commands say of all databases.
struct Shared {
    source: Option<String>,
    exclude: BTreeSet<(String, String)>,
    probe: Duration,
    connected: bool,
    roles: BTreeMap<String, Role>,
}

/// The roles of the databases; clones are the same.
#[derive(Clone)]
pub struct Backup {
    server: Server,
    setup: Setup,
    state: Arc<Mutex<Shared>>,
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
        let probe = Duration::from_secs(60);
        let state = Shared { source, exclude, probe, connected: false, roles: BTreeMap::new() };
        Ok(Backup { server: server.clone(), setup: setup.clone(), state: Arc::new(Mutex::new(state)) })
    }

    fn state(&self) -> MutexGuard<'_, Shared> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has_source(&self) -> bool {
        self.state().source.is_some()
    }

    /// Gives a database a role, or takes it back: then it is a standalone one, or a relay.
    ///
    /// # Errors
    /// Where the source's remote does not parse.
    pub fn assign(&self, database: &str, role: Option<Role>) -> anyhow::Result<()> {
        let of = |role: Option<Role>| role.filter(|r| r.backup).and_then(|r| r.source);
        // One that could not follow has become active by itself.
        let follows = self.server.sync_states().contains_key(database);
        let was = of(self.state().roles.get(database).cloned()).filter(|_| follows);
        let wanted = of(role.clone());
        if was != wanted {
            self.server.replicate(database, wanted, self.setup.tls())?;
        }
        match role {
            Some(role) => self.state().roles.insert(database.to_string(), role),
            None => self.state().roles.remove(database),
        };
        Ok(())
    }

    /// A database is served no longer.
    pub fn forget(&self, database: &str) {
        self.state().roles.remove(database);
    }

    /// All databases become backups of the active server.
    pub fn connect(&self) -> anyhow::Result<()> {
        let remote = self.state().source.clone().context("Unable to connect: active server is not specified.")?;
        for (name, path) in self.server.databases() {
            let relays = path.is_some_and(|p| p.to_string_lossy().starts_with("relay:"));
            if name == SERVER_DATABASE || relays {
                continue;
            }
            let source = {
                let state = self.state();
                let of_this = state.exclude.iter().filter(|(d, _)| *d == name);
                let exclude = of_this.map(|(_, t)| t.clone()).collect();
                let options = SourceOptions { inactivity_probe: Some(state.probe), ..SourceOptions::default() };
                Source { remote: remote.clone(), exclude, options }
            };
            self.assign(&name, Some(Role { source: Some(source), backup: true }))?;
        }
        self.state().connected = true;
        Ok(())
    }

    /// All databases become active.
    pub fn disconnect(&self) -> anyhow::Result<()> {
        self.state().connected = false;
        let roles = self.state().roles.clone();
        for (name, role) in roles {
            self.assign(&name, Some(Role { backup: false, ..role }))?;
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
        self.state().probe = Duration::from_millis(milliseconds);
        self.reconnect()
    }

    /// The text of `ovsdb-server/sync-status`. Without a configuration file it has the form of Open vSwitch up to 3.2, as
    /// `ovn-ctl` up to 24.03 looks for the state in the first line; later ones find it in both forms.
    pub fn status(&self, from_file: bool) -> String {
        let states = self.server.sync_states();
        if !from_file {
            return self.of_all(&states);
        }
        let roles = self.state().roles.clone();
        let texts: Vec<String> = roles.iter().map(|(name, role)| of_one(name, role, states.get(name))).collect();
        if texts.is_empty() { "state: active\n".into() } else { texts.join("\n") }
    }

    fn of_all(&self, states: &BTreeMap<String, SyncState>) -> String {
        if states.is_empty() {
            return "state: active\n".into();
        }
        let source = self.source();
        let follow = states.iter().filter(|(_, s)| **s == SyncState::Replicating);
        let follow: Vec<&str> = follow.map(|(n, _)| n.as_str()).collect();
        let failed = states.iter().filter_map(|(n, s)| match s {
            SyncState::Failed(e) => Some(format!("not replicating {n}: {e}\n")),
            _ => None,
        });
        let failed: String = failed.collect();
        let mut out = String::from("state: backup\n");
        if !follow.is_empty() {
            out += &format!("replicating: {source}\ndatabase: {}\n", follow.join(", "));
            let exclude = self.exclude();
            if !exclude.is_empty() {
                out += &format!("exclude: {exclude}\n");
            }
        } else {
            out += &format!("{}: {source}\n", if failed.is_empty() { "connecting" } else { "error" });
        }
        out + &failed
    }
}

fn of_one(name: &str, role: &Role, state: Option<&SyncState>) -> String {
    let mut out = format!("database: {name}\nstate: {}\n", if state.is_some() { "backup" } else { "active" });
    let Some((state, source)) = state.zip(role.source.as_ref()) else { return out };
    let remote = &source.remote;
    out += &match state {
        SyncState::Connecting => format!("connecting: {remote}\n"),
        SyncState::Failed(e) => format!("Replication to ({remote}) failed: {e}\n"),
        SyncState::Replicating => format!("replicating: {remote}\n"),
    };
    let exclude: Vec<String> = source.exclude.iter().map(|t| format!("{name}:{t}")).collect();
    if *state == SyncState::Replicating && !exclude.is_empty() {
        out += &format!("exclude: {}\n", exclude.join(","));
    }
    out
}
