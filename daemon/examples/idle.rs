//! The smallest daemon: it idles until it is told to exit.

use clap::Parser;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    daemon: daemon::Options,
}

static GREETINGS: daemon::Counter = daemon::Counter::new("greetings");

fn main() -> std::process::ExitCode {
    let args: Args = daemon::parse();
    let program = daemon::Program { version: "idle 1.0".into(), family: daemon::Family::Ovn, modules: &["greeter"] };
    daemon::run(program, &args.daemon, async |d: daemon::Daemon| {
        d.counters(&[&GREETINGS]);
        d.memory(|| vec![("greetings".into(), GREETINGS.get())]);
        d.commands().register("greet", "NAME", 1, 2, |args| {
            GREETINGS.inc();
            tracing::debug!(target: "greeter", "greeting {}", args.join(" "));
            Ok(format!("hello {}", args.join(" ")))
        });
        d.ready()?;
        d.exiting().await;
        Ok(())
    })
}
