//! isthmusctl: one command for people.

mod apply;
mod chassis;
mod database;
mod document;
mod gateways;
mod plan;
mod show;
mod vtep;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Looks after an Isthmus network: applies a description of it, shows what there is, who serves it.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The northbound database.
    #[arg(long, env = "OVN_NB_DB", default_value = "unix:/var/run/ovn/ovnnb_db.sock", global = true)]
    nb: String,
    /// The southbound database.
    #[arg(long, env = "OVN_SB_DB", default_value = "unix:/var/run/ovn/ovnsb_db.sock", global = true)]
    sb: String,
    /// Seconds to wait for databases and chassis.
    #[arg(long, default_value_t = 30, global = true)]
    timeout: u64,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes the logical network what a file says, and waits until all chassis have realised it.
    Apply {
        /// The description (YAML).
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Shows what would change and changes nothing.
        #[arg(long)]
        dry_run: bool,
        /// Does not wait for the chassis.
        #[arg(long)]
        no_wait: bool,
    },
    /// Shows the logical network, and where its ports are.
    Show,
    /// Shows which gateway serves each distributed gateway port.
    Gateways,
    /// Looks into a database.
    Db {
        /// Its remote.
        remote: String,
        #[command(subcommand)]
        command: database::Command,
    },
    /// Prints the schema of a database, as `ovsdb-tool create` takes it.
    Schema {
        /// OVN_Northbound, OVN_Southbound, OVN_IC_Northbound, OVN_IC_Southbound, Open_vSwitch or hardware_vtep.
        database: String,
    },
    /// Configures a chassis: its local database's settings, bridges and interfaces.
    Chassis {
        /// The chassis' Open_vSwitch database.
        #[arg(long, env = "OVS_DB", default_value = "unix:/var/run/openvswitch/db.sock")]
        ovs: String,
        #[command(subcommand)]
        command: chassis::Command,
    },
    /// Top-of-rack switches that are joined to logical networks.
    Vtep {
        /// A switch's hardware_vtep database; may be given several times.
        #[arg(long, value_name = "DATABASE", default_value = "unix:/var/run/openvswitch/db.sock")]
        vtep_db: Vec<String>,
        #[command(subcommand)]
        command: vtep::Command,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(r) => r,
        Err(e) => {
            eprintln!("isthmusctl: {e}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        let limit = std::time::Duration::from_secs(args.timeout);
        match args.command {
            Command::Apply { file, dry_run, no_wait } => apply::run(&args.nb, &file, dry_run, !no_wait, limit).await,
            Command::Show => show::run(&args.nb, &args.sb, limit).await,
            Command::Gateways => gateways::run(&args.sb, limit).await,
            Command::Db { remote, command } => database::run(&remote, command, limit).await,
            Command::Schema { database } => database::schema(&database),
            Command::Chassis { ovs, command } => chassis::run(&ovs, command, limit).await,
            Command::Vtep { vtep_db, command } => vtep::run(&args.sb, &vtep_db, &command, limit).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("isthmusctl: {e:#}");
            ExitCode::FAILURE
        }
    }
}
