//! `ovsdb`: a database server with ovsdb-server's options and control commands (ovsdb-server(1)).

mod backup;
mod commands;
mod config;
mod config_file;
mod databases;

use anyhow::Context;
use backup::Backup;
use clap::Parser;
use config::{Setup, TlsPlaces};
use daemon::{Daemon, Family, Program};
use databases::{DatabaseConfig, Databases};
use ovsdb_rs::Server;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "OVSDB server: serves databases from ovsdb-server's standalone files, and relays")]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
    /// Listen on, or connect to, a remote: `punix:FILE`, `ptcp:PORT[:IP]`, `pssl:…`, `unix:…`, `tcp:…`, `ssl:…`
    /// db:DB,TABLE,COLUMN takes the remotes from a served database.
    #[arg(long, value_name = "REMOTE")]
    remote: Vec<String>,
    /// Be a backup of another server.
    #[arg(long, value_name = "SERVER")]
    sync_from: Option<String>,
    /// Tables that a backup leaves alone.
    #[arg(long, value_name = "DB:TABLE[,DB:TABLE]")]
    sync_exclude_tables: Option<String>,
    /// With --sync-from, start as an active server.
    #[arg(long)]
    active: bool,
    /// Take remotes and databases from a JSON file instead (ovsdb-server(1)).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["remote", "sync_from", "sync_exclude_tables", "active", "database"])]
    config_file: Option<PathBuf>,
    /// Further certificates to show to peers, so that they can bootstrap.
    #[arg(long, value_name = "FILE")]
    peer_ca_cert: Option<PathBuf>,
    /// Accepted for compatibility: older servers cannot read column differences in files.
    #[arg(long)]
    disable_file_column_diff: bool,
    /// Run a command as a child, and exit when it does.
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,
    /// Database files (default: conf.db in the configuration directory), or relay:DB:REMOTES.
    database: Vec<String>,
}

fn version() -> String {
    format!("{} (Isthmus) {}", daemon::dirs::program_name(), env!("CARGO_PKG_VERSION"))
}

fn main() -> ExitCode {
    let args: Args = daemon::parse();
    let program = Program {
        version: version(),
        family: Family::Ovs,
        modules: &[
            "ovsdb_file",
            "ovsdb_jsonrpc_server",
            "ovsdb_relay",
            "replication",
            "socket_util",
            "stream_ssl",
            "transaction",
        ],
        threads: daemon::Threads::PerProcessor,
    };
    let options = args.daemon.clone();
    daemon::run(program, &options, async move |d| serve(d, args).await)
}

/// Adds a database: a file, or `relay:DB:REMOTES`.
async fn add_database(server: &Server, setup: &Setup, text: &str) -> anyhow::Result<()> {
    let (key, config) = match text.strip_prefix("relay:") {
        Some(rest) => {
            let (name, remotes) = rest.split_once(':').with_context(|| format!("{text}: invalid syntax"))?;
            (name, DatabaseConfig::relay(remotes))
        }
        None => (text, DatabaseConfig::default()),
    };
    databases::open(server, setup, key, &config).await.map(drop)
}

/// What the options and arguments say: databases, then remotes.
async fn configure(server: &Server, setup: &Setup, backup: &Backup, args: &Args) -> anyhow::Result<()> {
    let databases = match &args.database {
        list if list.is_empty() => vec![daemon::dirs::ovs_dbdir().join("conf.db").to_string_lossy().into_owned()],
        list => list.clone(),
    };
    // TLS files may stand in a database, and a relay may need TLS.
    let (relays, files): (Vec<_>, Vec<_>) = databases.into_iter().partition(|d| d.starts_with("relay:"));
    for file in &files {
        add_database(server, setup, file).await?;
    }
    setup.start().await?;
    for relay in &relays {
        add_database(server, setup, relay).await?;
    }
    if backup.has_source() && !args.active {
        backup.connect()?;
    }
    for remote in &args.remote {
        setup.add(remote).await?;
    }
    Ok(())
}

/// The configuration file and what is served because of it.
struct Configured {
    path: PathBuf,
    databases: Databases,
    setup: Setup,
}

impl Configured {
    /// Reads the file and brings the server in line with it. What is wrong is said in the log; the rest takes effect.
    async fn load(&mut self) -> anyhow::Result<()> {
        let path = self.path.display();
        tracing::info!(target: "ovsdb_server", "loading configuration from '{path}'");
        let config = config_file::read(&self.path).inspect_err(|e| {
            e.chain().rev().for_each(|e| tracing::warn!(target: "ovsdb_server", "{e}"));
            tracing::warn!(target: "ovsdb_server", "failed to load configuration from {path}");
        })?;
        let databases = self.databases.configure(config.databases).await;
        let remotes = self.setup.configure(config.remotes).await;
        for e in [&databases, &remotes].into_iter().filter_map(|r| r.as_ref().err()) {
            tracing::warn!(target: "ovsdb_server", "{e:#}");
        }
        databases.and(remotes)
    }
}

async fn serve(d: Daemon, args: Args) -> anyhow::Result<()> {
    let server = Server::new();
    let t = &args.daemon.tls;
    let tls = TlsPlaces {
        private_key: t.private_key.clone(),
        certificate: t.certificate.clone(),
        ca_cert: t.bootstrap_ca_cert.clone().or_else(|| t.ca_cert.clone()),
        peer_ca_cert: args.peer_ca_cert.clone(),
        bootstrap: t.bootstrap_ca_cert.is_some(),
        protocols: t.ssl_protocols.clone(),
        ciphers: t.ssl_ciphers.clone(),
        suites: t.ssl_ciphersuites.clone(),
    };
    tls.check()?;
    let setup = Setup::new(&server, tls);
    let backup = Backup::new(&server, &setup, args.sync_from.clone(), args.sync_exclude_tables.as_deref())?;
    let configured = match &args.config_file {
        None => {
            configure(&server, &setup, &backup, &args).await?;
            None
        }
        Some(path) => {
            let databases = Databases::new(&server, &setup, &backup)?;
            let mut configured = Configured { path: std::path::absolute(path)?, databases, setup: setup.clone() };
            // What is wrong stands in the log.
            configured.load().await.map_err(|_| anyhow::anyhow!("server configuration failed"))?;
            Some(configured)
        }
    };
    commands::register(&d, &server, &setup, &backup, configured);
    d.ready()?;
    if args.run.is_none() {
        tracing::info!(target: "ovsdb_server", "{}", version());
    }
    let mut child = match &args.run {
        Some(command) => Some(tokio::process::Command::new("/bin/sh").arg("-c").arg(command).spawn().context("--run")?),
        None => None,
    };
    match &mut child {
        Some(c) => {
            tokio::select! {
                status = c.wait() => {
                    let status = status.context("--run")?;
                    anyhow::ensure!(status.success(), "--run: {status}");
                }
                () = d.exiting() => {}
            }
        }
        None => d.exiting().await,
    }
    server.shutdown().await;
    Ok(())
}
