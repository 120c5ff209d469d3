//! `interconnect`: joins the logical networks of availability zones (ovn-ic(8)).

use clap::Parser;
use daemon::{Daemon, Family, Program, Standby};
use interconnect::run::{Db, Interconnector, RoutesRequest, Setup, Shared, TRANSACTIONS, UNITS};
use ovn_schema::{ic_nb, ic_sb};
use ovsdb_rs::Server;
use ovsdb_rs::tls::Tls;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot};

/// The interconnection controller: exchanges gateways, ports, routes and more with other zones.
#[derive(Parser, Debug)]
#[command(disable_version_flag = true)]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
    /// Connect to the zone's northbound database.
    #[arg(short = 'D', long, value_name = "DATABASE")]
    ovnnb_db: Option<String>,
    /// Connect to the zone's southbound database.
    #[arg(short = 'd', long, value_name = "DATABASE")]
    ovnsb_db: Option<String>,
    /// Connect to the interconnection northbound database.
    #[arg(short = 'I', long, value_name = "DATABASE")]
    ic_nb_db: Option<String>,
    /// Connect to the interconnection southbound database.
    #[arg(short = 'i', long, value_name = "DATABASE")]
    ic_sb_db: Option<String>,
    /// Serve both interconnection databases itself, from files in this directory, on sockets beside them.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ic_nb_db", "ic_sb_db"])]
    embed: Option<PathBuf>,
    /// With --embed: listen on a remote too (ptcp:PORT[:IP], pssl:…, punix:FILE), for the other zones.
    #[arg(long, value_name = "REMOTE", requires = "embed")]
    listen: Vec<String>,
}

fn version() -> String {
    format!("{} 26.03.90\nOpen vSwitch Library 3.7.90", daemon::dirs::program_name())
}

fn main() -> ExitCode {
    let mut args: Args = daemon::parse();
    if let Some(dir) = &args.embed {
        args.embed = Some(std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
    }
    let program = Program {
        version: version(),
        family: Family::Ovn,
        modules: &["ovn_ic", "inc_proc_eng", "jsonrpc", "reconnect", "ovsdb_idl"],
        threads: daemon::Threads::PerProcessor,
    };
    let options = args.daemon.clone();
    daemon::run(program, &options, async move |d| serve(d, args).await)
}

async fn serve(d: Daemon, args: Args) -> anyhow::Result<()> {
    use daemon::dirs;
    let remotes = [
        (Db::Nb, args.ovnnb_db.clone().unwrap_or_else(dirs::default_nb_db)),
        (Db::Sb, args.ovnsb_db.clone().unwrap_or_else(dirs::default_sb_db)),
        (Db::IcNb, args.ic_nb_db.clone().unwrap_or_else(dirs::default_ic_nb_db)),
        (Db::IcSb, args.ic_sb_db.clone().unwrap_or_else(dirs::default_ic_sb_db)),
    ];
    let tls = Tls::from_options(&args.daemon.tls)?;
    let databases = [("ovn_ic_nb_db", ic_nb::Database::schema()), ("ovn_ic_sb_db", ic_sb::Database::schema())];
    let server = match &args.embed {
        Some(dir) => Some(Server::embedded(dir, &databases, &args.listen, tls.clone()).await?),
        None => None,
    };
    let setup = Setup { remotes: remotes.into_iter().collect(), tls, server: server.clone() };
    let (shared, wake) = (Shared::default(), Arc::new(Notify::new()));
    let (ask, requests) = mpsc::unbounded_channel();
    commands(&d, &shared, &wake);
    routes_command(&d, ask);
    let mut ic = Interconnector::start(&setup, shared, requests)?;
    d.ready()?;
    ic.run(&d, &wake).await;
    if let Some(server) = server {
        server.shutdown().await;
    }
    Ok(())
}

/// `routes/show [TEXT]`: the routes whose prefix or router begins with a text, and why they are told and learned or not.
fn routes_command(d: &Daemon, ask: mpsc::UnboundedSender<RoutesRequest>) {
    d.commands().register_async("routes/show", "[PREFIX|ROUTER]", 0, 1, move |args| {
        let (reply, answer) = oneshot::channel();
        let sent = ask.send(RoutesRequest { of: args.into_iter().next().unwrap_or_default(), reply });
        async move {
            sent.map_err(|_| "the daemon is exiting".to_string())?;
            answer.await.map_err(|_| "the daemon is exiting".to_string())
        }
    });
}

fn commands(d: &Daemon, shared: &Shared, wake: &Arc<Notify>) {
    d.counters(&[&UNITS, &TRANSACTIONS]);
    let c = d.commands();
    let s = shared.clone();
    d.memory(move || {
        let s = s.lock().unwrap_or_else(PoisonError::into_inner);
        s.sizes.iter().map(|(name, n)| ((*name).to_string(), *n as u64)).collect()
    });
    let names = [
        ("nb-connection-status", Db::Nb),
        ("sb-connection-status", Db::Sb),
        ("ic-nb-connection-status", Db::IcNb),
        ("ic-sb-connection-status", Db::IcSb),
    ];
    for (name, db) in names {
        let s = shared.clone();
        c.register_connection(name, move || {
            s.lock().unwrap_or_else(PoisonError::into_inner).connected.get(&db) == Some(&true)
        });
    }
    c.register_standby(&Arc::new(Instance { shared: shared.clone(), wake: wake.clone() }));
    let s = shared.clone();
    c.register("debug/problems", "", 0, 0, move |_| {
        Ok(s.lock().unwrap_or_else(PoisonError::into_inner).problems.iter().map(|p| format!("{p}\n")).collect())
    });
}

/// This process among those of its zone.
struct Instance {
    shared: Shared,
    wake: Arc<Notify>,
}

impl Standby for Instance {
    fn paused(&self) -> bool {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).paused
    }

    fn pause(&self, paused: bool) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).paused = paused;
        self.wake.notify_one();
    }

    fn active(&self) -> bool {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).active
    }
}
