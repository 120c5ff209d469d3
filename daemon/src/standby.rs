//! Commands of daemons that write for a whole database: several run, one is active, and each can be paused
//! (ovn-northd(8) and ovn-ic(8), "RUNTIME MANAGEMENT COMMANDS").

use crate::Commands;
use std::sync::Arc;

/// A daemon that works when it is active and not paused.
pub trait Standby: Send + Sync + 'static {
    /// Whether `pause` was the last that it was told.
    fn paused(&self) -> bool;

    /// Pauses or resumes it. A paused daemon gives up its lock and writes nothing.
    fn pause(&self, paused: bool);

    /// Whether it holds the lock, so that the others stand by.
    fn active(&self) -> bool;

    /// Further lines of `status`, each with its line feed.
    fn details(&self) -> String {
        String::new()
    }
}

impl Commands {
    /// Adds `pause`, `resume`, `is-paused` and `status`.
    pub fn register_standby(&self, daemon: &Arc<impl Standby>) {
        for (name, paused) in [("pause", true), ("resume", false)] {
            let d = daemon.clone();
            self.register(name, "", 0, 0, move |_| {
                d.pause(paused);
                Ok(String::new())
            });
        }
        let d = daemon.clone();
        self.register("is-paused", "", 0, 0, move |_| Ok(format!("{}\n", d.paused())));
        let d = daemon.clone();
        self.register("status", "", 0, 0, move |_| {
            let state = match (d.paused(), d.active()) {
                (true, _) => "paused",
                (false, true) => "active",
                (false, false) => "standby",
            };
            Ok(format!("Status: {state}\n{}", d.details()))
        });
    }

    /// Adds a command that says whether a database is connected, such as `sb-connection-status`.
    pub fn register_connection(&self, name: &str, connected: impl Fn() -> bool + Send + Sync + 'static) {
        self.register(name, "", 0, 0, move |_| {
            Ok(if connected() { "connected\n" } else { "not connected\n" }.to_string())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct Fake {
        paused: AtomicBool,
        locked: AtomicBool,
    }

    impl Standby for Fake {
        fn paused(&self) -> bool {
            self.paused.load(Ordering::Relaxed)
        }

        fn pause(&self, paused: bool) {
            self.paused.store(paused, Ordering::Relaxed);
        }

        fn active(&self) -> bool {
            self.locked.load(Ordering::Relaxed)
        }

        fn details(&self) -> String {
            "rows: 3\n".to_string()
        }
    }

    #[tokio::test]
    async fn a_paused_daemon_says_so_whoever_holds_the_lock() {
        let (commands, daemon) = (Commands::default(), Arc::new(Fake::default()));
        commands.register_standby(&daemon);
        let ask = |name: &'static str| commands.run(name, Vec::new());
        assert_eq!(ask("status").await, Ok("Status: standby\nrows: 3\n".into()));
        daemon.locked.store(true, Ordering::Relaxed);
        assert_eq!(ask("status").await, Ok("Status: active\nrows: 3\n".into()));
        assert_eq!(ask("pause").await, Ok(String::new()));
        assert_eq!(ask("is-paused").await, Ok("true\n".into()));
        assert_eq!(ask("status").await, Ok("Status: paused\nrows: 3\n".into()));
        assert_eq!(ask("resume").await, Ok(String::new()));
        assert_eq!(ask("is-paused").await, Ok("false\n".into()));
    }
}
