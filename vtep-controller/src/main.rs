//! `vtep-controller`: joins top-of-rack switches to logical networks (ovn-controller-vtep(8)).

use clap::Parser;
use daemon::{Daemon, Family, Program};
use ovsdb_rs::tls::Tls;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use vtep_controller::INTERNAL_VERSION;
use vtep_controller::run::{Controller, REFUSED, Setup, Shared, UNITS, WRITTEN};

/// The controller of VTEP gateways: top-of-rack switches that speak the OVSDB hardware_vtep schema.
#[derive(Parser, Debug)]
#[command(disable_version_flag = true)]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
    /// Connect to a switch's hardware_vtep database (default: unix:RUNDIR/db.sock). May be given several times.
    #[arg(short = 'D', long, value_name = "DATABASE")]
    vtep_db: Vec<String>,
    /// Connect to the southbound database.
    #[arg(short = 'd', long, value_name = "DATABASE", env = "OVN_SB_DB")]
    ovnsb_db: Option<String>,
    /// Do not ask for the lock in the switches' databases: there is no second controller, or a server has no locks.
    #[arg(long)]
    no_lock: bool,
    /// Accepted for compatibility: certificates between this one and the CA are read from the file of --certificate.
    #[arg(long, value_name = "FILE")]
    peer_ca_cert: Option<std::path::PathBuf>,
}

fn version() -> String {
    let ovn = INTERNAL_VERSION.split('-').next().unwrap_or_default();
    format!("{} {ovn}\nOpen vSwitch Library 3.7.90\nSB DB Schema 21.11.0", daemon::dirs::program_name())
}

fn main() -> ExitCode {
    let args: Args = daemon::parse();
    let program = Program {
        version: version(),
        family: Family::Ovn,
        modules: &["main", "gateway", "binding", "vtep", "jsonrpc", "reconnect", "ovsdb_idl"],
        threads: daemon::Threads::PerProcessor,
    };
    let options = args.daemon.clone();
    daemon::run(program, &options, async move |d| serve(d, args).await)
}

async fn serve(d: Daemon, args: Args) -> anyhow::Result<()> {
    let mut tors = args.vtep_db.clone();
    if tors.is_empty() {
        tors.push(daemon::dirs::default_ovs_db());
    }
    let southbound = args.ovnsb_db.clone().unwrap_or_else(daemon::dirs::default_sb_db);
    let setup = Setup { southbound, tors, tls: Tls::from_options(&args.daemon.tls)?, lock: !args.no_lock };
    // A signal leaves everything in place, so that one that is started anew goes on with it.
    let (shared, keep) = (Shared::default(), Arc::new(AtomicBool::new(true)));
    commands(&d, &shared, &keep);
    let mut controller = Controller::start(&setup, shared, d.metrics())?;
    d.ready()?;
    controller.run(&d).await;
    let keep = keep.load(Ordering::Relaxed);
    tracing::info!(target: "main", "Exiting {}, resource cleanup: {}", d.name(), if keep { "False" } else { "True" });
    if !keep {
        controller.clean_up().await;
    }
    Ok(())
}

fn connected(is: bool) -> String {
    if is { "connected".into() } else { "not connected".into() }
}

fn commands(d: &Daemon, shared: &Shared, keep: &Arc<AtomicBool>) {
    d.counters(&[&UNITS, &WRITTEN, &REFUSED]);
    let s = shared.clone();
    d.memory(move || {
        let s = s.lock().unwrap_or_else(PoisonError::into_inner);
        s.sizes.iter().map(|(name, n)| ((*name).to_string(), *n as u64)).collect()
    });
    let s = shared.clone();
    let c = d.commands();
    c.register_connection("sb-connection-status", move || s.lock().unwrap_or_else(PoisonError::into_inner).southbound);
    let s = shared.clone();
    c.register("vtep-connection-status", "", 0, 0, move |_| {
        let s = s.lock().unwrap_or_else(PoisonError::into_inner);
        if let [(_, up, _)] = s.tors.as_slice() {
            return Ok(connected(*up));
        }
        Ok(s.tors.iter().map(|(name, up, _)| format!("{name} {}\n", connected(*up))).collect())
    });
    let s = shared.clone();
    c.register("debug/status", "", 0, 0, move |_| {
        let s = s.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(s.tors
            .iter()
            .map(|(name, _, active)| format!("{name} {}\n", if *active { "active" } else { "standby" }))
            .collect())
    });
    let s = shared.clone();
    c.register("debug/problems", "", 0, 0, move |_| {
        Ok(s.lock().unwrap_or_else(PoisonError::into_inner).problems.iter().map(|p| format!("{p}\n")).collect())
    });
    let (daemon, keep) = (d.clone(), keep.clone());
    c.register("exit", "[--restart]", 0, 1, move |args| {
        keep.store(args.first().is_some_and(|a| a == "--restart"), Ordering::Relaxed);
        daemon.exit();
        Ok(String::new())
    });
}
