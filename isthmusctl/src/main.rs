//! isthmusctl: one command for people.

mod apply;
mod chassis;
mod database;
mod document;
mod drain;
mod gateways;
mod ic;
mod nic;
mod plan;
mod show;
mod switchdev;
mod vtep;
mod why;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Looks after an Isthmus network: applies a description of it, shows what there is, who serves it.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The northbound database.
    #[arg(long, env = "OVN_NB_DB", default_value_t = daemon::dirs::default_nb_db(), global = true)]
    nb: String,
    /// The southbound database.
    #[arg(long, env = "OVN_SB_DB", default_value_t = daemon::dirs::default_sb_db(), global = true)]
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
    /// Shows which gateway serves each distributed gateway port, and takes a gateway out of service.
    Gateways {
        #[command(subcommand)]
        command: Option<Gateways>,
    },
    /// Tells where a southbound row came from, or what became of a northbound one.
    ///
    /// Of a southbound row, say a logical flow: the northbound rows without which it would not be. Of a northbound row: the
    /// southbound rows, and columns of northbound ones, that would not be without it. The running northd is asked, over
    /// its control socket; it must be the active one.
    #[command(allow_missing_positional = true)]
    Why {
        /// The table, southbound or northbound; may be left out.
        table: Option<String>,
        /// The row: its UUID, the first digits of it (as ovn-sbctl lflow-list --uuid and ovn-trace show them), or its name.
        row: String,
        /// The program, by its pidfile in the run directory (OVN_RUNDIR, /var/run/ovn), or its control socket.
        #[arg(long, value_name = "TARGET")]
        northd: Option<String>,
    },
    /// DHCP and network boot.
    Dhcp {
        #[command(subcommand)]
        command: DhcpCommand,
    },
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
        #[arg(long, env = "OVS_DB", default_value_t = daemon::dirs::default_ovs_db())]
        ovs: String,
        #[command(subcommand)]
        command: chassis::Command,
    },
    /// This machine's network cards: functions, representors, and the logical ports that they serve.
    Nic {
        /// The chassis' Open_vSwitch database.
        #[arg(long, env = "OVS_DB", default_value_t = daemon::dirs::default_ovs_db())]
        ovs: String,
        #[command(subcommand)]
        command: nic::Command,
    },
    /// Zones that are joined.
    Ic {
        /// The interconnection southbound database.
        #[arg(long, env = "OVN_IC_SB_DB", default_value_t = daemon::dirs::default_ic_sb_db())]
        ic_sb: String,
        #[command(subcommand)]
        command: ic::Command,
    },
    /// Top-of-rack switches that are joined to logical networks.
    Vtep {
        /// A switch's hardware_vtep database; may be given several times.
        #[arg(long, value_name = "DATABASE", default_values_t = [daemon::dirs::default_ovs_db()])]
        vtep_db: Vec<String>,
        #[command(subcommand)]
        command: vtep::Command,
    },
}

/// What to do with a gateway.
#[derive(Subcommand)]
enum Gateways {
    /// Moves all gateway ports away from a chassis, and waits until others serve them: no connection is lost. It stays
    /// so until `undrain`.
    Drain {
        /// The chassis.
        chassis: String,
    },
    /// Gives a drained chassis its gateway ports back.
    Undrain {
        /// The chassis.
        chassis: String,
    },
}

#[derive(Subcommand)]
enum DhcpCommand {
    /// Shows the last exchanges with this chassis' controller: what a machine asked and was answered, or why not.
    Trace {
        /// The machine's Ethernet address; without it, all machines.
        mac: Option<String>,
        /// The program, by its pidfile in the run directory (OVN_RUNDIR, /var/run/ovn), or its control socket.
        #[arg(long, value_name = "TARGET")]
        controller: Option<String>,
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
            Command::Gateways { command: None } => gateways::run(&args.sb, limit).await,
            Command::Gateways { command: Some(Gateways::Drain { chassis }) } => {
                drain::drain(&args.nb, &args.sb, &chassis, limit).await
            }
            Command::Gateways { command: Some(Gateways::Undrain { chassis }) } => {
                drain::undrain(&args.nb, &args.sb, &chassis, limit).await
            }
            Command::Why { table, row, northd } => why::run(northd.as_deref(), table, row, limit).await,
            Command::Dhcp { command: DhcpCommand::Trace { mac, controller } } => {
                why::dhcp_trace(controller.as_deref(), mac, limit).await
            }
            Command::Db { remote, command } => database::run(&remote, command, limit).await,
            Command::Schema { database } => database::schema(&database),
            Command::Chassis { ovs, command } => chassis::run(&ovs, command, limit).await,
            Command::Nic { ovs, command } => nic::run(&ovs, command, limit).await,
            Command::Ic { ic_sb, command } => ic::run(&ic_sb, &command, limit).await,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
        let why = |args: &[&str]| match Args::try_parse_from([&["isthmusctl", "why"], args].concat()).unwrap().command {
            Command::Why { table, row, .. } => (table, row),
            _ => panic!("why"),
        };
        assert_eq!(why(&["3f2a"]), (None, "3f2a".to_string()));
        assert_eq!(why(&["Port_Binding", "p1"]), (Some("Port_Binding".to_string()), "p1".to_string()));
    }
}
