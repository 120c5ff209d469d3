//! `northd`: compiles the northbound database into the southbound one (ovn-northd(8)).

mod commands;
mod commit;
mod databases;
mod made_once;
mod progress;
mod stopwatch;
mod worker;

use clap::Parser;
use daemon::{Daemon, Family, Program};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Parser, Debug)]
#[command(about = "OVN central control: northbound to southbound")]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
    /// Connect to the northbound database (default: the socket in the run directory).
    #[arg(short = 'D', long, value_name = "DATABASE", env = "OVN_NB_DB")]
    ovnnb_db: Option<String>,
    /// Connect to the southbound database.
    #[arg(short = 'd', long, value_name = "DATABASE", env = "OVN_SB_DB")]
    ovnsb_db: Option<String>,
    /// Serve both databases itself, from files in this directory, on sockets beside them.
    #[arg(long, value_name = "DIR")]
    embed: Option<PathBuf>,
    /// With --embed: listen on a remote too (ptcp:PORT[:IP], pssl:…, punix:FILE).
    #[arg(long, value_name = "REMOTE", requires = "embed")]
    listen: Vec<String>,
    /// Start paused: nothing is written until `resume`.
    #[arg(long)]
    dry_run: bool,
    /// The number of threads for a compile; without it, as many as there are processors.
    #[arg(long, value_name = "N")]
    n_threads: Option<usize>,
}

fn version() -> String {
    format!(
        "{} {}\nOpen vSwitch Library 3.7.90\n",
        daemon::dirs::program_name(),
        northd::tables::global::INTERNAL_VERSION.split('-').next().unwrap_or_default()
    )
}

fn main() -> ExitCode {
    let mut args: Args = daemon::parse();
    if let Some(dir) = &args.embed {
        args.embed = Some(std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
    }
    let program = Program {
        version: version().trim_end().to_string(),
        family: Family::Ovn,
        modules: &["northd", "ovn_northd", "jsonrpc", "reconnect", "ovsdb_idl", "inc_proc_eng", "memory_trim"],
        threads: daemon::Threads::PerProcessor,
    };
    let options = args.daemon.clone();
    daemon::run(program, &options, async move |d| serve(d, args).await)
}

async fn serve(d: Daemon, args: Args) -> anyhow::Result<()> {
    let databases = databases::open(&args).await?;
    let (state, questions) = worker::State::new(args.dry_run);
    let state = Arc::new(state);
    if let Some(n) = args.n_threads.filter(|n| *n > 0) {
        state.set_threads(n.min(256))?;
    }
    commands::register(&d, &state, &databases);
    d.counters(&worker::COUNTERS);
    let (s, nb, sb) = (state.clone(), databases.nb.clone(), databases.sb.clone());
    d.memory(move || {
        let cells = |c: &ovsdb_rs::client::Client| c.replica(ovsdb_rs::client::Replica::cells) as u64;
        let idl = [("idl-cells-OVN_Northbound", cells(&nb)), ("idl-cells-OVN_Southbound", cells(&sb))];
        idl.into_iter().map(|(name, n)| (name.to_string(), n)).chain(s.sizes()).collect()
    });
    tracing::info!(target: "ovn_northd", "OVN internal version is : [{}]", northd::tables::global::INTERNAL_VERSION);
    d.ready()?;
    let server = databases.server.clone();
    // A task beside those of the clients and the embedded server: what one tells the next needs no other thread to wake up.
    let mut work = tokio::spawn(worker::run(databases, state, questions));
    tokio::select! {
        result = &mut work => result??,
        () = d.exiting() => work.abort(),
    }
    if let Some(server) = server {
        server.shutdown().await;
    }
    Ok(())
}
