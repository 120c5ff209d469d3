//! What every Isthmus daemon shares: options, pidfile, log, control socket, metrics, signals.
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Args {
//!     #[command(flatten)]
//!     daemon: daemon::Options,
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let args = daemon::parse::<Args>();
//!     let program = daemon::Program { version: "ovn-northd 26.03.90".into(), family: daemon::Family::Ovn, modules: &[], threads: Default::default() };
//!     daemon::run(program, &args.daemon, async |d: daemon::Daemon| {
//!         d.commands().register("is-paused", "", 0, 0, |_| Ok("false".into()));
//!         d.ready()?; // the parent of a detached daemon returns now
//!         d.exiting().await; // `exit`, SIGTERM, SIGINT
//!         Ok(())
//!     })
//! }
//! ```

pub mod coverage;
mod detach;
pub mod dirs;
mod engine;
mod levels;
mod limit;
mod log;
pub mod metrics;
mod modules;
mod options;
mod pattern;
pub mod pidfile;
mod run;
mod scrape;
mod standby;
mod stopwatch;
mod unixctl;

pub use coverage::{Counter, Coverage};
pub use dirs::Family;
pub use engine::EngineCounts;
pub use levels::Level;
pub use log::{Log, kind};
pub use metrics::{Metric, Metrics};
pub use options::{Options, TlsOptions, parse};
pub use run::{Daemon, Program, Threads, run};
pub use standby::Standby;
pub use stopwatch::Stopwatches;
pub use unixctl::{Commands, Reply};
