//! `ovsdb`: a database server with ovsdb-server's options and control commands (ovsdb-server(1)).

mod backup;
mod commands;
mod config;
mod config_file;

use anyhow::Context;
use backup::Backup;
use clap::Parser;
use config::{Setup, TlsPlaces};
use daemon::{Daemon, Family, Program};
use ovsdb_rs::Server;
use std::path::{Path, PathBuf};
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
    match text.strip_prefix("relay:") {
        Some(rest) => {
            let (name, remotes) = rest.split_once(':').with_context(|| format!("{text}: invalid syntax"))?;
            server.add_relay(name, remotes, setup.tls()).await?;
        }
        None => {
            server.add_file(Path::new(text), None).await?;
        }
    }
    Ok(())
}

/// Takes over what a configuration file says.
fn configure(args: &mut Args) -> anyhow::Result<()> {
    let Some(path) = &args.config_file else { return Ok(()) };
    let config = config_file::read(path)?;
    let mut excluded = Vec::new();
    for (file, tables) in config.excluded.iter().filter(|(_, tables)| !tables.is_empty()) {
        let name = ovsdb_rs::file::read(Path::new(file))?.schema.name;
        excluded.extend(tables.iter().map(|t| format!("{name}:{t}")));
    }
    (args.remote, args.database) = (config.remotes, config.databases);
    (args.sync_from, args.active) = (config.sync_from, config.active);
    args.sync_exclude_tables = Some(excluded.join(",")).filter(|t| !t.is_empty());
    Ok(())
}

async fn serve(d: Daemon, mut args: Args) -> anyhow::Result<()> {
    configure(&mut args)?;
    let named = args.config_file.is_some();
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
    let databases = match args.database {
        list if list.is_empty() && !named => {
            vec![daemon::dirs::ovs_dbdir().join("conf.db").to_string_lossy().into_owned()]
        }
        list => list,
    };
    // TLS files may stand in a database, and a relay may need TLS.
    let (relays, files): (Vec<_>, Vec<_>) = databases.into_iter().partition(|d| d.starts_with("relay:"));
    for file in &files {
        add_database(&server, &setup, file).await?;
    }
    setup.start().await?;
    for relay in &relays {
        add_database(&server, &setup, relay).await?;
    }
    let backup = Backup::new(&server, &setup, args.sync_from, args.sync_exclude_tables.as_deref())?;
    if backup.has_source() && !args.active {
        backup.connect()?;
    }
    for remote in &args.remote {
        setup.add(remote).await?;
    }
    commands::register(&d, &server, &setup, &backup);
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
