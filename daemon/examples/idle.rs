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
    let program = daemon::Program {
        version: "idle 1.0".into(),
        family: daemon::Family::Ovn,
        modules: &["greeter"],
        threads: daemon::Threads::One,
    };
    daemon::run(program, &args.daemon, async |d: daemon::Daemon| {
        d.counters(&[&GREETINGS]);
        d.memory(|| vec![("greetings".into(), GREETINGS.get())]);
        d.commands().register("greet", "NAME", 1, 2, |args| {
            GREETINGS.inc();
            tracing::debug!(target: "greeter", "greeting {}", args.join(" "));
            Ok(format!("hello {}", args.join(" ")))
        });
        d.commands().register("complain", "TIMES", 1, 1, |args| {
            for n in 0..args.iter().find_map(|a| a.parse().ok()).unwrap_or(1) {
                tracing::warn!(target: "greeter", "complaint {n}");
            }
            Ok(String::new())
        });
        d.commands().register("panic", "TEXT", 1, 1, |args| {
            tokio::spawn(async move { panic!("{}", args.join(" ")) });
            Ok(String::new())
        });
        d.ready()?;
        d.exiting().await;
        Ok(())
    })
}
