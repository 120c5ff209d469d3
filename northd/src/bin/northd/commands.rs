//! Control commands (ovn-northd(8), "RUNTIME MANAGEMENT COMMANDS").

use crate::databases::{Databases, LOCK};
use crate::stopwatch;
use crate::worker::State;
use daemon::{Daemon, Standby};
use ovsdb_rs::client::Client;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Registers the commands.
pub fn register(d: &Daemon, state: &Arc<State>, databases: &Databases) {
    let c = d.commands();
    c.register_standby(&Arc::new(Instance { state: state.clone(), sb: databases.sb.clone() }));
    for (name, client) in [("nb", databases.nb.clone()), ("sb", databases.sb.clone())] {
        let k = client.clone();
        c.register_connection(&format!("{name}-connection-status"), move || k.is_connected());
        c.register(&format!("{name}-cluster-state-reset"), "", 0, 0, move |_| {
            client.reconnect();
            Ok(String::new())
        });
    }
    let s = state.clone();
    c.register_async("why", "[TABLE] ROW", 1, 2, move |args| {
        let s = s.clone();
        async move { s.why(args).await }
    });
    engine(d, state);
    threads(d, state);
    times(d, state);
    let sb = databases.sb.clone();
    c.register("debug/chassis-features-list", "", 0, 0, move |_| Ok(features(&sb)));
}

/// This process among those of its cloud.
struct Instance {
    state: Arc<State>,
    sb: Client,
}

impl Standby for Instance {
    fn paused(&self) -> bool {
        self.state.paused()
    }

    fn pause(&self, paused: bool) {
        self.state.pause(paused);
    }

    fn active(&self) -> bool {
        self.sb.has_lock(LOCK)
    }
}

fn engine(d: &Daemon, state: &Arc<State>) {
    let c = d.commands();
    let s = state.clone();
    c.register("inc-engine/recompute", "", 0, 0, move |_| {
        s.recompute();
        Ok(String::new())
    });
    state.counts.register_clear(d);
    let s = state.clone();
    c.register("inc-engine/show-stats", "[NODE [COUNTER]]", 0, 2, move |args| {
        let node = args.first().map_or("northd", |n| n);
        Ok(s.counts.show(node, args.get(1).map(String::as_str)).unwrap_or_else(|unknown| unknown))
    });
}

/// Times: what is measured, and from when on a slow compile is logged.
fn times(d: &Daemon, state: &Arc<State>) {
    let c = d.commands();
    state.watches.all.register(d);
    for (name, on) in [("inc-engine/enable-stopwatch", true), ("inc-engine/disable-stopwatch", false)] {
        let s = state.clone();
        c.register(name, "[NODE]", 0, 1, move |args| s.watches.measure(args.first().map(String::as_str), on));
    }
    c.register("inc-engine/list-stopwatches", "[NODE]", 0, 1, |args| {
        let wanted = |n: &&str| args.first().is_none_or(|node| node == n);
        Ok(stopwatch::nodes().filter(wanted).map(|n| format!("{n}\n")).collect())
    });
    let s = state.clone();
    c.register("inc-engine/compute-log-timeout", "MSECS", 1, 1, move |args| {
        match args.first().and_then(|n| n.parse().ok()) {
            Some(ms) => {
                s.log_from.store(ms, Ordering::Relaxed);
                Ok(String::new())
            }
            None => Err("unsigned integer required".into()),
        }
    });
}

fn threads(d: &Daemon, state: &Arc<State>) {
    let c = d.commands();
    for name in ["parallel-build/set-n-threads", "set-n-threads"] {
        let s = state.clone();
        c.register(name, "N_THREADS", 1, 1, move |args| {
            match args.first().and_then(|n| n.parse::<i64>().ok()).unwrap_or(0) {
                n @ 1..=256 => s.set_threads(n as usize).map(|()| String::new()).map_err(|e| format!("{e}\n")),
                n => Err(format!("invalid n_threads: {n}\n")),
            }
        });
    }
    for name in ["parallel-build/get-n-threads", "get-n-threads"] {
        let s = state.clone();
        c.register(name, "", 0, 0, move |_| Ok(format!("{}\n", s.threads())));
    }
}

/// What all chassis of this zone can do: the command's names, and those that chassis use.
const FEATURES: [(&str, &str); 6] = [
    ("ct_commit_nat_v2", "ct-commit-nat-v2"),
    ("ct_commit_to_zone", "ct-commit-to-zone"),
    ("sample_with_reg", "ovn-sample-with-registers"),
    ("ct_next_zone", "ct-next-zone"),
    ("ct_label_flush", "ct-label-flush"),
    ("ct_state_save", "ct-state-save"),
];

fn features(sb: &Client) -> String {
    sb.replica(|r| {
        let Some(table) = r.schema().and_then(|s| s.table("Chassis").ok()) else { return String::new() };
        let set = |row: &ovsdb_rs::Row, option: &str| {
            let value = row.get(table, "other_config").and_then(|d| d.get_str(option)).and_then(|a| a.as_str());
            value.is_some_and(|v| ovn_schema::options::is_on(v, false))
        };
        let mut lines = String::new();
        for (name, option) in FEATURES {
            let all = r.rows("Chassis").all(|(_, row)| set(row, "is-remote") || set(row, option));
            lines.push_str(&format!("{name}: {all}\n"));
        }
        lines
    })
}
