//! The chassis controller: takes the place of ovn-controller.

use clap::Parser;
use controller::input::settings::Identity;
use controller::plug;
use controller::run::{Controller, Exit, Shared, Status};
use daemon::{Daemon, Family, Program};
use ovsdb_rs::tls::{Limits, TlsFiles};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// The local controller of a chassis: makes the southbound database's logical network out of flows of the local switch.
#[derive(Parser)]
#[command(disable_version_flag = true)]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
    /// The chassis' name; without it the file system-id-override's, or external_ids:system-id's of the Open_vSwitch table.
    #[arg(short = 'n', long, value_name = "CHASSIS")]
    chassis: Option<String>,
    /// Plugs internal ports in for logical ports with options:vif-plug-type=dummy, as tests of the field do.
    #[arg(long)]
    enable_dummy_vif_plug: bool,
    /// Takes the network cards' representors (options:vif-plug-type=representor) out of this file
    /// instead of asking the kernel.
    #[arg(long, value_name = "FILE")]
    representors: Option<std::path::PathBuf>,
    /// Accepted for compatibility: the CA of the peer is --ca-cert's.
    #[arg(long, value_name = "FILE")]
    peer_ca_cert: Option<std::path::PathBuf>,
    /// The local Open_vSwitch database (default: unix:RUNDIR/db.sock).
    #[arg(value_name = "OVS-DATABASE")]
    database: Option<String>,
}

/// What `--version` says, in the words that OVN's tools look for.
const VERSION: &str = "ovn-controller (Isthmus) 0.1.0\nOpenFlow versions 0x6:0x6\nSB DB Schema 21.11.0";

fn main() -> ExitCode {
    let args: Args = daemon::parse();
    let program = Program {
        version: VERSION.into(),
        family: Family::Ovn,
        modules: &[
            "main",
            "binding",
            "lflow",
            "ofctrl",
            "patch",
            "pinctrl",
            "acl_log",
            "rconn",
            "reconnect",
            "ovsdb_idl",
            "ct_zone",
            "chassis",
            "encaps",
            "inc_proc_eng",
            "if_status",
            "jsonrpc",
            "vconn",
            "physical",
            "poll_loop",
            "stream_ssl",
            "garp_rarp",
            "features",
            "vif_plug",
        ],
        threads: daemon::Threads::One,
    };
    let database = args.database.unwrap_or_else(daemon::dirs::default_ovs_db);
    let files = TlsFiles::from_options(&args.daemon.tls);
    let limits = Limits::from_options(&args.daemon.tls);
    daemon::run(program, &args.daemon, async move |d: Daemon| {
        let shared: Shared = Arc::new(Mutex::new(Status::default()));
        let how = Arc::new(Mutex::new(Exit::Restart));
        commands(&d, &shared, &how);
        shared.lock().unwrap_or_else(PoisonError::into_inner).times.register(&d);
        d.counters(&[
            &controller::units::flows::LOGICAL_FLOWS,
            &controller::units::flows::RUNS,
            &controller::units::flows::UNEXPECTED,
        ]);
        d.counters(&controller::pinctrl::counters());
        let requests = controller::run::request::register(&d);
        let identity = Identity::find(args.chassis.as_deref(), &daemon::dirs::ovn_sysconfdir());
        let mut c =
            Controller::start(&database, daemon::dirs::ovs_rundir(), (files, limits?), identity, (shared, requests))?;
        if args.enable_dummy_vif_plug {
            c.provide("dummy", Box::new(plug::Dummy));
        }
        let cards = args.representors.map_or(plug::Source::Kernel, plug::Source::File);
        c.provide("representor", Box::new(plug::Representors::new(cards, c.devices())));
        tracing::info!(target: "main", "OVN internal version is : [{}]", controller::run::INTERNAL_VERSION);
        d.ready()?;
        c.run(&d).await;
        let how = *how.lock().unwrap_or_else(PoisonError::into_inner);
        let clean = how == Exit::Cleanup && c.cleans_up();
        tracing::info!(target: "main", "Exiting ovn-controller, resource cleanup: {}", if clean { "True" } else { "False (--restart)" });
        if clean {
            c.clean_up().await;
        }
        Ok(())
    })
}

fn commands(d: &Daemon, shared: &Shared, how: &Arc<Mutex<Exit>>) {
    let show = |name: &'static str, f: fn(&Status) -> String| {
        let shared = shared.clone();
        d.commands().register(name, "", 0, 0, move |_| Ok(f(&shared.lock().unwrap_or_else(PoisonError::into_inner))));
    };
    let status = shared.clone();
    d.commands().register_connection("connection-status", move || {
        status.lock().unwrap_or_else(PoisonError::into_inner).southbound
    });
    show("ct-zone-list", |s| s.zones.iter().map(|(n, z)| format!("{n} {z}\n")).collect());
    show("debug/problems", |s| s.problems.values().map(|p| format!("{p}\n")).collect());
    let status = shared.clone();
    d.commands().register("dhcp/trace", "[MAC]", 0, 1, move |args| {
        let of = args.first().map(|a| a.parse().map_err(|_| format!("\"{a}\" is no Ethernet address"))).transpose()?;
        let trace = status.lock().unwrap_or_else(PoisonError::into_inner).trace.clone();
        Ok(trace.show(of))
    });
    let (daemon, how) = (d.clone(), how.clone());
    d.commands().register("exit", "[--restart]", 0, 1, move |args| {
        let restart = args.first().is_some_and(|a| a == "--restart");
        *how.lock().unwrap_or_else(PoisonError::into_inner) = if restart { Exit::Restart } else { Exit::Cleanup };
        daemon.exit();
        Ok(String::new())
    });
}
