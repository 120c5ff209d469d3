//! `ovsdb`: a database server with ovsdb-server's options and control commands (ovsdb-server(1)).

mod config;

use anyhow::Context;
use clap::Parser;
use config::{Place, TlsPlaces, Watch};
use daemon::{Daemon, Family, Program};
use ovsdb_rs::Server;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "OVSDB server: serves databases from ovsdb-server's standalone files")]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
    /// Listen on, or connect to, a remote: `punix:FILE`, `ptcp:PORT[:IP]`, `pssl:…`, `unix:…`, `tcp:…`, `ssl:…`
    /// db:DB,TABLE,COLUMN takes the remotes from a served database.
    #[arg(long, value_name = "REMOTE")]
    remote: Vec<String>,
    /// Accepted for compatibility: older servers cannot read column differences in files.
    #[arg(long)]
    disable_file_column_diff: bool,
    /// Run a command as a child, and exit when it does.
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,
    /// Database files (default: conf.db in the configuration directory).
    database: Vec<PathBuf>,
}

fn version() -> String {
    format!("{} (Isthmus) {}", daemon::dirs::program_name(), env!("CARGO_PKG_VERSION"))
}

fn main() -> ExitCode {
    let args = Args::parse_from(daemon::arguments());
    let program = Program {
        version: version(),
        family: Family::Ovs,
        modules: &["ovsdb_file", "ovsdb_jsonrpc_server", "stream_ssl"],
    };
    let options = args.daemon.clone();
    daemon::run(program, &options, async move |d| serve(d, args).await)
}

async fn serve(d: Daemon, args: Args) -> anyhow::Result<()> {
    let server = Server::new();
    let files = if args.database.is_empty() { vec![daemon::dirs::ovs_dbdir().join("conf.db")] } else { args.database };
    for file in &files {
        server.add_file(file, None).await?;
    }
    let t = &args.daemon.tls;
    let tls = TlsPlaces {
        private_key: t.private_key.clone(),
        certificate: t.certificate.clone(),
        ca_cert: t.bootstrap_ca_cert.clone().or_else(|| t.ca_cert.clone()),
        bootstrap: t.bootstrap_ca_cert.is_some(),
    };
    let (mut plain, mut places) = (Vec::new(), Vec::new());
    for remote in &args.remote {
        match Place::parse(remote)? {
            Some(p) => places.push(p),
            None => plain.push(remote),
        }
    }
    let watch = Watch::start(&server, places, tls).await?;
    for remote in plain {
        server.listen(remote).await?;
    }
    commands(&d, &server);
    tracing::info!(target: "ovsdb_server", "{}", version());
    d.ready()?;
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
    drop(watch);
    server.shutdown().await;
    Ok(())
}

fn commands(d: &Daemon, server: &Server) {
    let c = d.commands();
    let first = |args: Vec<String>| args.into_iter().next().unwrap_or_default();
    let s = server.clone();
    c.register_async("ovsdb-server/add-remote", "REMOTE", 1, 1, move |args| {
        let s = s.clone();
        async move { s.listen(&first(args)).await.map(|_| String::new()).map_err(|e| e.to_string()) }
    });
    let s = server.clone();
    c.register("ovsdb-server/remove-remote", "REMOTE", 1, 1, move |args| {
        s.close(&first(args)).map(|()| String::new()).map_err(|_| "no such remote".to_string())
    });
    let s = server.clone();
    c.register("ovsdb-server/list-remotes", "", 0, 0, move |_| Ok(s.remotes().into_iter().map(|r| r + "\n").collect()));
    let s = server.clone();
    c.register_async("ovsdb-server/add-db", "DB", 1, 1, move |args| {
        let s = s.clone();
        async move { s.add_file(&PathBuf::from(first(args)), None).await.map(|_| String::new()).map_err(|e| e.to_string()) }
    });
    let s = server.clone();
    c.register_async("ovsdb-server/remove-db", "DB", 1, 1, move |args| {
        let s = s.clone();
        async move { s.remove_db(&first(args)).await.map(|()| String::new()).map_err(|e| e.to_string()) }
    });
    let s = server.clone();
    c.register("ovsdb-server/list-dbs", "", 0, 0, move |_| {
        Ok(s.databases().into_iter().map(|(n, _)| n + "\n").collect())
    });
    let s = server.clone();
    c.register_async("ovsdb-server/compact", "", 0, 1, move |args| {
        let s = s.clone();
        async move {
            let names = if args.is_empty() { s.databases().into_iter().map(|(n, _)| n).collect() } else { args };
            for name in names {
                s.compact(&name).await.map_err(|e| e.to_string())?;
            }
            Ok(String::new())
        }
    });
    let s = server.clone();
    c.register("ovsdb-server/reconnect", "", 0, 0, move |_| {
        s.reconnect();
        Ok(String::new())
    });
    c.register("ovsdb-server/sync-status", "", 0, 0, |_| Ok("state: active\n".into()));
    let s = server.clone();
    c.register_async("ovsdb-server/perf-counters-show", "", 0, 0, move |_| {
        let s = s.clone();
        async move {
            let mut out = String::new();
            for (name, _) in s.databases() {
                let t = s.statistics(&name).await.map_err(|e| e.to_string())?;
                out += &format!("{name}: rows {} monitors {} transactions {}\n", t.rows, t.monitors, t.transactions);
            }
            Ok(out)
        }
    });
}
