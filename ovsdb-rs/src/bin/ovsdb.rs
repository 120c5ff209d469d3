//! `ovsdb`: a database server with ovsdb-server's options and control commands (ovsdb-server(1)).

use anyhow::Context;
use clap::Parser;
use daemon::{Daemon, Family, Program};
use ovsdb_rs::Server;
use ovsdb_rs::tls::{Tls, TlsFiles};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "OVSDB server: serves databases from ovsdb-server's standalone files")]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
    /// Listen on, or connect to, a remote: punix:FILE, ptcp:PORT[:IP], pssl:…, unix:…, tcp:…, ssl:…
    #[arg(long, value_name = "REMOTE")]
    remote: Vec<String>,
    /// Accepted for compatibility: older servers cannot read column differences in files.
    #[arg(long)]
    disable_file_column_diff: bool,
    /// Database files (default: conf.db in the configuration directory).
    database: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse_from(daemon::arguments());
    let program = Program {
        version: format!("{} (Isthmus) {}", daemon::dirs::program_name(), env!("CARGO_PKG_VERSION")),
        family: Family::Ovs,
        modules: &["ovsdb_file", "ovsdb_jsonrpc_server", "stream_ssl"],
    };
    let options = args.daemon.clone();
    daemon::run(program, &options, async move |d| serve(d, args).await)
}

async fn serve(d: Daemon, args: Args) -> anyhow::Result<()> {
    let server = Server::new();
    server.set_tls(tls(&args.daemon.tls)?);
    let files = if args.database.is_empty() { vec![daemon::dirs::ovs_dbdir().join("conf.db")] } else { args.database };
    for file in &files {
        server.add_file(file, None).await?;
    }
    for remote in &args.remote {
        server.listen(remote).await?;
    }
    commands(&d, &server);
    d.ready()?;
    d.exiting().await;
    server.shutdown().await;
    Ok(())
}

fn tls(o: &daemon::TlsOptions) -> anyhow::Result<Option<Tls>> {
    let (Some(key), Some(certificate)) = (&o.private_key, &o.certificate) else { return Ok(None) };
    let ca = o.bootstrap_ca_cert.clone().or_else(|| o.ca_cert.clone());
    let files = TlsFiles {
        private_key: key.clone(),
        certificate: certificate.clone(),
        bootstrap: o.bootstrap_ca_cert.is_some(),
        ca_cert: ca,
    };
    Tls::new(files).map(Some).context("TLS")
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
