//! `network-connect`: joins the user-defined networks of a Kubernetes cluster (OKEP-5224).

use clap::{Parser, Subcommand, ValueEnum};
use daemon::{Daemon, Family, Program, Standby};
use network_connect::address::Subnet;
use network_connect::manager::Settings;
use network_connect::resource::crd;
use network_connect::run::{About, Connector, DECISIONS, Question, Setup, Shared, Status, TRANSACTIONS, UNITS};
use network_connect::source::Source;
use network_connect::source::folder::Folder;
use network_connect::source::kubernetes::Kubernetes;
use ovsdb_rs::tls::Tls;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot};

/// Joins user-defined networks as ClusterNetworkConnect resources say.
#[derive(Parser, Debug)]
#[command(disable_version_flag = true, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    daemon: daemon::Options,
    /// Which half of the work to do: decide for the cluster, write a zone's northbound database, or both.
    #[arg(long, value_enum, default_value = "all")]
    role: Role,
    /// Take resources from the YAML files of this folder.
    #[arg(long, value_name = "DIR", required_unless_present = "kubernetes", conflicts_with = "kubernetes")]
    folder: Option<PathBuf>,
    /// Take resources from the API server that $KUBECONFIG, ~/.kube/config or the pod's account names.
    #[arg(long)]
    kubernetes: bool,
    /// With --kubernetes: the namespace of the Lease that says which process decides.
    #[arg(long, value_name = "NAMESPACE", default_value = "ovn-kubernetes")]
    lease_namespace: String,
    /// Connect to the zone's northbound database.
    #[arg(short = 'D', long, value_name = "DATABASE")]
    ovnnb_db: Option<String>,
    /// The zone's name: that of its node, or what the nodes' annotation k8s.ovn.org/zone-name says.
    #[arg(long, value_name = "NAME", default_value = "global")]
    zone: String,
    /// Where services of the cluster have their addresses; once for each IP family.
    #[arg(long, value_name = "CIDR")]
    service_cidr: Vec<Subnet>,
    /// The addresses that gateways masquerade with; once for each IP family.
    #[arg(long, value_name = "CIDR", default_values = ["169.254.169.0/29", "fd69::/125"])]
    masquerade_subnet: Vec<Subnet>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the CustomResourceDefinition, for `kubectl apply -f -`.
    Crd,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Select networks, validate, give out subnets and keys, set Accepted.
    Manager,
    /// Write the northbound database, set Ready-In-Zone-NAME.
    Zone,
    /// Both.
    All,
}

fn version() -> String {
    format!("{} 26.03.90\nOpen vSwitch Library 3.7.90", daemon::dirs::program_name())
}

fn main() -> ExitCode {
    let mut args: Args = daemon::parse();
    if let Some(Command::Crd) = args.command {
        return match crd::yaml() {
            Ok(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(e) => {
                eprintln!("the definition cannot be written as YAML: {e}");
                ExitCode::FAILURE
            }
        };
    }
    if let Some(dir) = &args.folder {
        args.folder = Some(std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
    }
    let program = Program {
        version: version(),
        family: Family::Ovn,
        modules: &["network_connect", "jsonrpc", "reconnect", "ovsdb_idl"],
        threads: daemon::Threads::PerProcessor,
    };
    let options = args.daemon.clone();
    daemon::run(program, &options, async move |d| serve(d, args).await)
}

async fn serve(d: Daemon, args: Args) -> anyhow::Result<()> {
    let northbound = args.ovnnb_db.clone().unwrap_or_else(daemon::dirs::default_nb_db);
    let setup = Setup {
        manager: args.role != Role::Zone,
        northbound: (args.role != Role::Manager).then_some(northbound),
        tls: Tls::from_options(&args.daemon.tls)?,
        zone: args.zone.clone(),
        settings: Settings { services: args.service_cidr.clone(), masquerade: args.masquerade_subnet.clone() },
    };
    let lease = (args.role != Role::Zone).then_some(args.lease_namespace.clone());
    let feed = match &args.folder {
        Some(path) => Folder { path: path.clone() }.start()?,
        None => Kubernetes { lease, zone: args.zone.clone() }.start()?,
    };
    let (shared, wake) = (Shared::default(), Arc::new(Notify::new()));
    commands(&d, &shared, &wake);
    let (ask, questions) = mpsc::unbounded_channel();
    questions_of(&d, &ask);
    let mut connector = Connector::start(setup, feed, shared, questions)?;
    d.ready()?;
    connector.run(&d, &wake).await;
    Ok(())
}

fn commands(d: &Daemon, shared: &Shared, wake: &Arc<Notify>) {
    d.counters(&[&UNITS, &TRANSACTIONS, &DECISIONS]);
    let c = d.commands();
    let s = shared.clone();
    d.memory(move || {
        let s = s.lock().unwrap_or_else(PoisonError::into_inner);
        s.sizes.iter().map(|(name, n)| ((*name).to_string(), *n as u64)).collect()
    });
    c.register_standby(&Arc::new(Instance { shared: shared.clone(), wake: wake.clone() }));
    let s = shared.clone();
    c.register_connection("nb-connection-status", move || s.lock().unwrap_or_else(PoisonError::into_inner).connected);
}

/// This process among those of its zone.
struct Instance {
    shared: Shared,
    wake: Arc<Notify>,
}

impl Instance {
    fn with<T>(&self, f: impl FnOnce(&mut Status) -> T) -> T {
        f(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Standby for Instance {
    fn paused(&self) -> bool {
        self.with(|s| s.paused)
    }

    fn pause(&self, paused: bool) {
        self.with(|s| s.paused = paused);
        self.wake.notify_one();
    }

    fn active(&self) -> bool {
        self.with(|s| s.active)
    }

    fn details(&self) -> String {
        let yes = |is: bool| if is { "yes" } else { "no" };
        self.with(|s| format!("resources read: {}\ndecides: {}\n", yes(s.synced), yes(s.leader)))
    }
}

/// Commands whose text the loop makes when it is asked.
fn questions_of(d: &Daemon, ask: &mpsc::UnboundedSender<Question>) {
    for (name, about) in [("connects/show", About::Connects), ("debug/problems", About::Problems)] {
        let ask = ask.clone();
        d.commands().register_async(name, "", 0, 0, move |_| {
            let (reply, answer) = oneshot::channel();
            let sent = ask.send(Question { about, reply });
            async move {
                sent.map_err(|_| "the daemon is exiting".to_string())?;
                answer.await.map_err(|_| "the daemon is exiting".to_string())
            }
        });
    }
}
