//! The databases that are served, by the name that the command line or the configuration file gives each: a file, or the name of
//! a relay's database.

use crate::backup::{Backup, Role};
use crate::config::Setup;
use anyhow::Context;
use ovsdb_rs::server::{Source, SourceOptions};
use ovsdb_rs::{Error, Server};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The service model that somebody asks for (ovsdb(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// That of the file.
    #[default]
    Inferred,
    Standalone,
    Clustered,
    Relay,
    ActiveBackup,
}

impl Model {
    /// The model of a name of the configuration file.
    pub fn parse(name: &str) -> Option<Model> {
        Some(match name {
            "standalone" => Model::Standalone,
            "clustered" => Model::Clustered,
            "relay" => Model::Relay,
            "active-backup" => Model::ActiveBackup,
            _ => return None,
        })
    }
}

/// How one database is to be served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseConfig {
    pub model: Model,
    /// The server that a relay or backup follows, and how the connection behaves.
    pub source: Option<(String, SourceOptions)>,
    pub backup: bool,
    /// Tables that a backup leaves alone.
    pub exclude: BTreeSet<String>,
}

impl DatabaseConfig {
    /// A relay of a server.
    pub fn relay(remotes: &str) -> DatabaseConfig {
        let source = Some((remotes.to_string(), SourceOptions::default()));
        DatabaseConfig { model: Model::Relay, source, ..DatabaseConfig::default() }
    }

    fn role(&self) -> Option<Role> {
        let source =
            |(remote, options): (String, SourceOptions)| Source { remote, exclude: self.exclude.clone(), options };
        (self.model == Model::ActiveBackup)
            .then(|| Role { source: self.source.clone().map(source), backup: self.backup })
    }

    /// Whether the same database would be opened. What a backup follows can be changed while it is open.
    fn opens_as(&self, other: &DatabaseConfig) -> bool {
        let relays = |c: &DatabaseConfig| c.model == Model::Relay;
        relays(self) == relays(other) && (!relays(self) || self.source == other.source)
    }
}

/// What a database is served from, and how.
struct Open {
    config: DatabaseConfig,
    /// The name in its schema.
    name: String,
}

/// The databases of a configuration file.
pub struct Databases {
    server: Server,
    setup: Setup,
    backup: Backup,
    open: BTreeMap<String, Open>,
    /// Where names of files start: a daemon may leave the directory that it was started in.
    base: PathBuf,
}

/// Opens a database.
///
/// # Errors
/// In ovsdb-server's words, where it has some.
pub async fn open(server: &Server, setup: &Setup, key: &str, config: &DatabaseConfig) -> anyhow::Result<String> {
    if config.model == Model::Relay {
        let (remotes, options) = config.source.as_ref().context("a relay needs a source")?;
        server.add_relay(key, remotes, options, setup.tls()).await?;
        return Ok(key.to_string());
    }
    let path = PathBuf::from(key);
    let clustered = is_clustered(&path);
    let name = path.file_name().map_or_else(|| key.into(), |n| n.to_string_lossy());
    match (config.model, clustered) {
        (Model::Clustered, false) => anyhow::bail!("ovsdb error: {name}: database is standalone and not clustered"),
        (Model::Standalone, true) => anyhow::bail!("ovsdb error: {name}: database is clustered and not standalone"),
        (Model::ActiveBackup, true) => {
            anyhow::bail!("ovsdb error: {name}: database is clustered and not active-backup")
        }
        (_, true) => anyhow::bail!(
            "ovsdb error: {name}: clustered databases are served by ovsdb-server; serve a relay of the cluster here"
        ),
        (_, false) => {}
    }
    Ok(server.add_file(&path, None).await?)
}

/// Whether a file is one of a clustered database, by its first line.
fn is_clustered(path: &std::path::Path) -> bool {
    use std::io::Read;
    let mut start = [0; 13];
    std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut start)).is_ok() && start == *b"OVSDB CLUSTER"
}

/// An error in ovsdb-server's words.
fn describe(e: &anyhow::Error) -> String {
    match e.downcast_ref() {
        Some(Error::Constraint(text)) => format!("ovsdb error: {text}"),
        Some(Error::File { path, reason }) => format!("I/O error: {path}: {reason}"),
        _ => format!("{e:#}"),
    }
}

impl Databases {
    /// Serves none yet.
    ///
    /// # Errors
    /// Where the process has no directory.
    pub fn new(server: &Server, setup: &Setup, backup: &Backup) -> anyhow::Result<Databases> {
        let base = std::env::current_dir()?;
        let (server, setup, backup) = (server.clone(), setup.clone(), backup.clone());
        Ok(Databases { server, setup, backup, open: BTreeMap::new(), base })
    }

    /// Serves these and no others. What cannot be opened is said, and the rest is served.
    ///
    /// # Errors
    /// Where one could not be opened or follow its source.
    pub async fn configure(&mut self, wanted: BTreeMap<String, DatabaseConfig>) -> anyhow::Result<()> {
        let gone: Vec<String> = self
            .open
            .iter()
            .filter(|(key, open)| wanted.get(*key).is_none_or(|w| !w.opens_as(&open.config)))
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            if let Some(open) = self.open.remove(&key) {
                self.backup.forget(&open.name);
                // A command cannot have removed it: with a file there are none.
                let _ = self.server.remove_db(&open.name).await;
            }
        }
        let mut all_open = true;
        let (relays, files): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|(_, c)| c.model == Model::Relay);
        for (key, config) in files {
            all_open &= self.bring(&key, config).await;
        }
        // TLS files may stand in a database, and a relay may need TLS.
        self.setup.start().await?;
        for (key, config) in relays {
            all_open &= self.bring(&key, config).await;
        }
        anyhow::ensure!(all_open, "failed to configure databases");
        Ok(())
    }

    /// Whether the database is served as it is wanted; why not is said.
    async fn bring(&mut self, key: &str, config: DatabaseConfig) -> bool {
        let done = self.try_bring(key, config).await;
        if let Err(e) = &done {
            tracing::warn!(target: "ovsdb_server", "failed to open database '{key}': {}", describe(e));
        }
        done.is_ok()
    }

    async fn try_bring(&mut self, key: &str, config: DatabaseConfig) -> anyhow::Result<()> {
        let name = match self.open.get(key) {
            Some(open) => open.name.clone(),
            None => {
                let place = if config.model == Model::Relay { key.into() } else { self.base.join(key) };
                open(&self.server, &self.setup, &place.to_string_lossy(), &config).await?
            }
        };
        let role = config.role();
        self.open.insert(key.to_string(), Open { config, name: name.clone() });
        self.backup.assign(&name, role)
    }
}
