//! The lab: the demo and the agents that run inside its machines.

use anyhow::Result;
use clap::{Parser, Subcommand};
use hw_tests::agent::{self, Agent};
use hw_tests::lab::Lab;
use hw_tests::network::{Cast, Maker, Network};
use hw_tests::report;
use hw_tests::scenario::Runner;
use std::path::PathBuf;
use std::process::ExitCode;

/// End-to-end scenarios of Isthmus.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Builds the gateway scenario on this machine, checks it, fails a gateway over and back.
    Gateway {
        /// The logical network.
        #[arg(long, default_value = "hw-tests/demo.yaml")]
        network: PathBuf,
        /// Leaves everything up at the end.
        #[arg(long)]
        keep: bool,
        /// Machines whose switch is Debian's ovs-vswitchd.
        #[arg(long, value_delimiter = ',')]
        ovs: Vec<String>,
        /// Debian's ovsdb-server serves the central databases.
        #[arg(long)]
        ovsdb: bool,
        /// Debian's ovn-northd compiles.
        #[arg(long)]
        northd: bool,
        /// Leaves the failover out.
        #[arg(long)]
        steady: bool,
    },
    /// Runs inside a machine of the lab.
    Agent {
        #[command(subcommand)]
        agent: Agent,
    },
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Agent { agent } => agent::run(&agent).map(|()| true),
        Command::Gateway { network, keep, ovs, ovsdb, northd, steady } => {
            let maker = |debian| if debian { Maker::Debian } else { Maker::Ours };
            let switches = ovs.into_iter().map(|m| (m, Maker::Debian)).collect();
            let cast = Cast { northd: maker(northd), databases: maker(ovsdb || northd), controller: Maker::Ours, switches };
            gateway(&network, keep, cast, steady)
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("isthmus-lab: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn gateway(file: &std::path::Path, keep: bool, cast: Cast, steady: bool) -> Result<bool> {
    let dir = std::env::temp_dir().join("isthmus-lab");
    let mut lab = Lab::new("isthmus", &dir)?;
    if keep {
        lab.keep();
    }
    let mut network = Network::start(lab, cast, |what| println!("• {what}"))?;
    println!("• applying {}", file.display());
    print!("{}", network.apply(&file.canonicalize()?)?);
    let mut tell = |c: &hw_tests::scenario::Check| println!("{} {}: {}", if c.held { "✓" } else { "✗" }, c.name, c.detail);
    let mut runner = Runner::new(&mut network, &mut tell);
    runner.steady();
    if !steady {
        runner.failover();
    }
    let checks = runner.checks;
    println!("\n{}", report::table(&checks));
    Ok(checks.iter().all(|c| c.held))
}
