//! The dataplane daemon, in the place of ovs-vswitchd.

use anyhow::Context;
use clap::Parser;
use daemon::{Daemon, Family, Program};
use dpdk_dataplane::config::dummy::DummyMode;
use dpdk_dataplane::kernel::{dpdk_rundir, netlink};
use dpdk_dataplane::openflow::Connections;
use dpdk_dataplane::ports::dummy::Dummies;
use dpdk_dataplane::reconcile::{Database, HaStreams, Inputs, Reconciler, TestBed};
use dpdk_dataplane::{commands, config, export, ha, metrics, pmd};
use ovsdb_rs::Server;
use ovsdb_rs::client::Config;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Tables are reserved at full size; pages that are not used take no memory.
#[global_allocator]
static MEMORY: dpdk_rs::Allocator = dpdk_rs::Allocator;

/// The switch of a host: devices by DPDK, configured by the Open_vSwitch database, driven by OpenFlow.
#[derive(Parser)]
#[command(disable_version_flag = true)]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
    /// Serve the Open_vSwitch database from conf.db in this directory (created if absent) on RUNDIR/db.sock.
    #[arg(long, value_name = "DIR")]
    embed: Option<PathBuf>,
    /// Arguments for DPDK's environment, before those of other_config:dpdk-extra.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, default_value = "")]
    dpdk_args: String,
    #[command(flatten)]
    compatible: Compatible,
    /// Keep all memory that is used in RAM.
    #[arg(long)]
    mlockall: bool,
    /// Do not use the kernel's routes, but only those of ovs/route/add.
    #[arg(long)]
    disable_system_route: bool,
    /// For test beds: interfaces of type dummy are devices of this process alone; with `system` also those of type
    /// system (or of none), with `override` those of all types but patch ports and tunnels.
    #[arg(long, value_name = "system|override", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    enable_dummy: Option<DummyMode>,
    /// The Open_vSwitch database (default: unix:RUNDIR/db.sock).
    #[arg(value_name = "DATABASE")]
    database: Option<String>,
}

/// Options of ovs-vswitchd that are accepted so that its scripts run.
#[derive(clap::Args)]
struct Compatible {
    /// Accepted for compatibility: devices that need raw access get it from the system's rules.
    #[arg(long)]
    hw_rawio_access: bool,
    /// Accepted for compatibility: peers get no CA certificate by the connection.
    #[arg(long, value_name = "FILE")]
    peer_ca_cert: Option<String>,
    /// Accepted for compatibility: this switch never uses the kernel's.
    #[arg(long)]
    disable_system: bool,
    /// Accepted for compatibility: the processors of test beds are the machine's.
    #[arg(long, value_name = "NODE,...")]
    dummy_numa: Option<String>,
}

/// The text of `--version`. `ovs-ctl` takes the last word of the line with "Open vSwitch" for the version.
fn version() -> String {
    format!(
        "dpdk-dataplane (Isthmus) {}\n{}\nOpenFlow versions 0x1:0x6\nIn place of Open vSwitch {}",
        env!("CARGO_PKG_VERSION"),
        env!("ISTHMUS_DPDK_VERSION"),
        dpdk_dataplane::OVS_VERSION
    )
}

/// Keeps memory in RAM from its first use on. What is only reserved is not used.
fn lock_memory() {
    use nix::libc::MCL_ONFAULT;
    use nix::sys::mman::{MlockAllFlags, mlockall};
    let flags = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | MlockAllFlags::from_bits_retain(MCL_ONFAULT);
    if let Err(e) = mlockall(flags) {
        tracing::error!(target: "vswitchd", "mlockall failed: {}", e.desc());
    }
}

fn main() -> ExitCode {
    let args: Args = daemon::parse();
    let program = Program {
        version: version(),
        family: Family::Ovs,
        modules: &[
            "bfd",
            "bridge",
            "cfm",
            "dpif_netdev",
            "netdev",
            "netlink",
            "ofproto",
            "ovsdb_idl",
            "rconn",
            "reconnect",
        ],
        threads: daemon::Threads::PerProcessor,
    };
    let options = args.daemon.clone();
    daemon::run(program, &options, async move |d: Daemon| serve(d, args).await)
}

async fn serve(d: Daemon, args: Args) -> anyhow::Result<()> {
    if args.mlockall {
        lock_memory();
    }
    let rundir = daemon::dirs::ovs_rundir();
    std::fs::create_dir_all(&rundir).with_context(|| rundir.display().to_string())?;
    let server = match &args.embed {
        Some(dir) => Some(embed(dir, &rundir).await?),
        None => None,
    };
    let place = match &server {
        Some(s) => Config::in_process(s, ovn_schema::ovs::Database::NAME),
        None => {
            let remote = args.database.unwrap_or_else(daemon::dirs::default_ovs_db);
            Config::new(&remote, ovn_schema::ovs::Database::NAME)?
        }
    };
    let clean_up = commands::register_exit(&d);
    let mut db = Database::start(place);
    tokio::select! {
        () = db.read() => {}
        () = d.exiting() => return Ok(()),
    }
    let alone = tokio::select! {
        alone = db.become_owner() => alone,
        () = d.exiting() => return Ok(()),
    };
    if !alone {
        // Who starts this daemon waits for the start to end.
        d.ready()?;
        let id = std::process::id();
        tracing::error!(target: "bridge", "another ovs-vswitchd process is running, disabling this process (pid {id}) until it goes away");
        tokio::select! {
            () = db.owner() => {}
            () = d.exiting() => return Ok(()),
        }
    }
    if !db.has_row() {
        // DPDK's arguments are in that row. Who starts this daemon before making the row waits for the start to end.
        d.ready()?;
        tracing::info!(target: "bridge", "the database has no row of Open_vSwitch yet: \"ovs-vsctl init\" makes it");
        tokio::select! {
            () = db.row() => {}
            () = d.exiting() => return Ok(()),
        }
    }
    let other_config = db.rows.open_vswitch.values().next().map(|r| r.other_config.clone()).unwrap_or_default();
    let cpus = config::dpdk::pmd_processors(&other_config, &pmd::processors());
    let mode = args.enable_dummy.unwrap_or_default();
    let memory = if mode.is_on() { config::dpdk::MEMORY_OF_TEST_BEDS } else { config::dpdk::MEMORY };
    let arguments = config::dpdk::dpdk_arguments(&args.dpdk_args, &other_config, &cpus, hugepages(), memory);
    let eal_arguments = arguments.join(" ");
    let kernel = netlink::KernelTables::start().await.context("the kernel's tables")?;
    dpdk_rundir::sweep();
    let running = pmd::start(arguments).await.with_context(|| format!("EAL ARGS: {eal_arguments}"))?;
    let connections = Connections::default();
    if args.daemon.no_self_confinement {
        connections.set_unconfined();
    }
    let (request, requests) = tokio::sync::mpsc::unbounded_channel();
    let no_kernel_routes = args.disable_system_route || mode.replaces_the_machine();
    let test_bed = TestBed { mode, dummies: Dummies::default(), no_kernel_routes };
    let dummies = mode.is_on().then_some(&test_bed.dummies);
    let (ha_spec, ha_wanted) = tokio::sync::watch::channel(config::ha::HaSpec::default());
    let ha_status = Arc::new(ha::status::Status::default());
    commands::register(&d, &running.handle, &connections, &request, dummies);
    commands::register_ha(&d, &running.handle, &ha_status);
    let exported = Arc::new(export::ExportCounters::default());
    metrics::register(&d, &running.handle, &connections, &exported, &ha_status);
    let pmd::Running { handle, paths, events, floods, samples, thread } = running;
    let (collectors, wanted) = tokio::sync::watch::channel(export::ExportConfig::default());
    // A task of its own: the reconciler may wait long for a device, and packet-ins must not.
    tokio::spawn(connections.clone().tell(events, floods));
    tokio::spawn(export::run(samples, wanted, exported, handle.clone()));
    ha::file::restore(&handle, &rundir, &db.rows).await;
    let inputs = Inputs { db, kernel, paths, requests, test_bed };
    let streams = HaStreams::new(ha_spec, ha_status.clone());
    let mut reconciler = Reconciler::new(inputs, handle.clone(), rundir, connections, collectors, streams);
    reconciler.first().await;
    tokio::spawn(ha::run(ha_wanted, handle.clone(), ha_status));
    d.ready()?;
    // Logged after the parent of a detached daemon has returned: scripts take what a start writes to stderr for an
    // error.
    tracing::info!(target: "dpdk", "EAL ARGS: {eal_arguments}");
    reconciler.run(&d).await;
    if clean_up.load(Ordering::Relaxed) {
        reconciler.clean_up().await;
    } else {
        reconciler.save_connections().await;
    }
    drop(reconciler);
    pmd::stop(&handle, thread).await;
    dpdk_rundir::remove_own();
    if let Some(s) = server {
        s.shutdown().await;
    }
    Ok(())
}

/// Serves the database from a directory's conf.db.
async fn embed(dir: &Path, rundir: &Path) -> anyhow::Result<Server> {
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let server = Server::new();
    let name = ovn_schema::ovs::Database::NAME;
    server.add_file(&dir.join("conf.db"), Some(&ovn_schema::ovs::Database::schema())).await?;
    let select = serde_json::json!({"op": "select", "table": name, "where": [], "columns": ["_uuid"]});
    let found = server.transact(name, vec![select]).await?;
    let empty = found.first().and_then(|r| r.get("rows")?.as_array()).is_none_or(Vec::is_empty);
    if empty {
        let insert = serde_json::json!({"op": "insert", "table": name, "row": {}});
        server.transact(name, vec![insert]).await?;
    }
    server.listen(&format!("punix:{}", rundir.join("db.sock").display())).await?;
    Ok(server)
}

/// Whether there are free hugepages.
fn hugepages() -> bool {
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    sizes
        .filter_map(|s| std::fs::read_to_string(s.path().join("free_hugepages")).ok())
        .any(|n| n.trim().parse::<u64>().is_ok_and(|n| n > 0))
}
