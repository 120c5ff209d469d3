//! The control commands (ovsdb-server(1), "Runtime Management Commands").

use crate::Configured;
use crate::backup::Backup;
use crate::config::Setup;
use daemon::{Commands, Daemon};
use ovsdb_rs::Server;
use ovsdb_rs::server::SERVER_DATABASE;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

fn first(args: Vec<String>) -> String {
    args.into_iter().next().unwrap_or_default()
}

fn done<E: std::fmt::Display>(result: Result<(), E>) -> Result<String, String> {
    result.map(|()| String::new()).map_err(|e| format!("{e:#}"))
}

/// Adds all commands. Where there is a configuration file, those that would contradict it refuse.
pub fn register(d: &Daemon, server: &Server, setup: &Setup, backup: &Backup, configured: Option<Configured>) {
    remotes(d, server, setup);
    databases(d, server, setup);
    roles(d, backup, configured.is_some());
    changes(d, server);
    figures(d, server);
    if let Some(c) = &configured {
        refuse_changes(d.commands(), &c.path.display().to_string());
    }
    let configured = Arc::new(tokio::sync::Mutex::new(configured));
    d.commands().register_async("ovsdb-server/reload", "", 0, 0, move |_| {
        let configured = configured.clone();
        async move {
            let mut configured = configured.lock().await;
            let file = configured.as_mut().ok_or("Configuration file was not specified on command line")?;
            let loaded = file.load().await;
            loaded.map(|()| String::new()).map_err(|_| "Configuration failed.  See the log file for details.".into())
        }
    });
}

/// The commands that change what a configuration file says.
fn refuse_changes(c: &Commands, path: &str) {
    for (name, usage, most) in [
        ("ovsdb-server/add-remote", "REMOTE", 1),
        ("ovsdb-server/remove-remote", "REMOTE", 1),
        ("ovsdb-server/add-db", "DB", 1),
        ("ovsdb-server/remove-db", "DB", 1),
        ("ovsdb-server/set-active-ovsdb-server", "", 1),
        ("ovsdb-server/connect-active-ovsdb-server", "", 0),
        ("ovsdb-server/disconnect-active-ovsdb-server", "", 0),
        ("ovsdb-server/set-active-ovsdb-server-probe-interval", "", 1),
        ("ovsdb-server/set-sync-exclude-tables", "", 1),
    ] {
        let text = format!("Update the {path} and use ovsdb-server/reload instead");
        c.register(name, usage, most, most, move |_| Err(text.clone()));
    }
}

fn remotes(d: &Daemon, server: &Server, setup: &Setup) {
    let c = d.commands();
    let s = setup.clone();
    c.register_async("ovsdb-server/add-remote", "REMOTE", 1, 1, move |args| {
        let s = s.clone();
        async move { done(s.add(&first(args)).await) }
    });
    let s = setup.clone();
    c.register_async("ovsdb-server/remove-remote", "REMOTE", 1, 1, move |args| {
        let s = s.clone();
        async move { done(s.remove(&first(args)).await) }
    });
    let s = setup.clone();
    c.register("ovsdb-server/list-remotes", "", 0, 0, move |_| Ok(s.remotes().into_iter().map(|r| r + "\n").collect()));
    let s = server.clone();
    c.register("ovsdb-server/reconnect", "", 0, 0, move |_| {
        s.reconnect();
        Ok(String::new())
    });
    let s = server.clone();
    c.register("ovsdb-server/disable-monitor-cond", "", 0, 0, move |_| {
        s.disable_conditional_monitors();
        Ok(String::new())
    });
}

fn databases(d: &Daemon, server: &Server, setup: &Setup) {
    let c = d.commands();
    let (s, t) = (server.clone(), setup.clone());
    c.register_async("ovsdb-server/add-db", "DB", 1, 1, move |args| {
        let (s, t) = (s.clone(), t.clone());
        async move {
            let name = first(args);
            if !name.starts_with("relay:") {
                if let Err(e) = std::fs::metadata(&name) {
                    let why =
                        if e.kind() == std::io::ErrorKind::NotFound { "No such file or directory" } else { "failed" };
                    return Err(format!("I/O error: {name}: open failed ({why})"));
                }
                let path = std::fs::canonicalize(&name).unwrap_or_else(|_| Path::new(&name).to_path_buf());
                if s.databases().iter().any(|(_, p)| p.as_deref() == Some(&*path)) {
                    return Err(format!("ovsdb error: {name}: already open"));
                }
            }
            done(crate::add_database(&s, &t, &name).await)
        }
    });
    let s = server.clone();
    c.register_async("ovsdb-server/remove-db", "DB", 1, 1, move |args| {
        let s = s.clone();
        async move {
            let name = first(args);
            if name == SERVER_DATABASE {
                return Err("Cannot remove reserved database.".into());
            }
            s.remove_db(&name).await.map(|()| String::new()).map_err(|_| "Failed to find the database.".into())
        }
    });
    let s = server.clone();
    c.register("ovsdb-server/list-dbs", "", 0, 0, move |_| {
        Ok(s.databases().into_iter().map(|(n, _)| n + "\n").collect())
    });
    let s = server.clone();
    c.register_async("ovsdb-server/compact", "", 0, 1, move |args| {
        let s = s.clone();
        async move {
            let all = s.databases().into_iter().map(|(n, _)| n).filter(|n| n != SERVER_DATABASE);
            let names = match args.into_iter().next() {
                None => all.collect(),
                Some(n) if n == SERVER_DATABASE => return Err("cannot compact built-in databases".into()),
                Some(n) if s.schema(&n).is_none() => return Err("no database by that name".into()),
                Some(n) => vec![n],
            };
            for name in names {
                s.compact(&name).await.map_err(|e| e.to_string())?;
            }
            Ok(String::new())
        }
    });
    let s = server.clone();
    c.register("ovsdb-server/get-db-storage-status", "DB", 1, 1, move |args| match s.schema(&first(args)) {
        Some(_) => Ok("status: ok\n".into()),
        None => Err("Failed to find the database.".into()),
    });
    c.register("ovsdb-server/memory-trim-on-compaction", "on|off", 1, 1, |args| match first(args).as_str() {
        "on" | "off" => Ok(String::new()),
        _ => Err("invalid argument".into()),
    });
}

fn roles(d: &Daemon, backup: &Backup, from_file: bool) {
    let c = d.commands();
    // Failures of these commands are told as ordinary output, as ovsdb-server tells them.
    let told = |r: anyhow::Result<()>| Ok(r.map_or_else(|e| format!("{e:#}\n"), |()| String::new()));
    let b = backup.clone();
    c.register("ovsdb-server/sync-status", "", 0, 0, move |_| Ok(b.status(from_file)));
    let b = backup.clone();
    c.register("ovsdb-server/set-active-ovsdb-server", "", 1, 1, move |args| told(b.set_source(&first(args))));
    let b = backup.clone();
    c.register("ovsdb-server/get-active-ovsdb-server", "", 0, 0, move |_| Ok(b.source()));
    let b = backup.clone();
    c.register("ovsdb-server/connect-active-ovsdb-server", "", 0, 0, move |_| told(b.connect()));
    let b = backup.clone();
    c.register("ovsdb-server/disconnect-active-ovsdb-server", "", 0, 0, move |_| told(b.disconnect()));
    let b = backup.clone();
    c.register("ovsdb-server/set-active-ovsdb-server-probe-interval", "", 1, 1, move |args| {
        match first(args).parse() {
            Ok(n) => told(b.set_probe(n)),
            Err(_) => Ok("Invalid probe interval, integer value expected\n".into()),
        }
    });
    let b = backup.clone();
    c.register("ovsdb-server/set-sync-exclude-tables", "", 1, 1, move |args| told(b.set_exclude(&first(args))));
    let b = backup.clone();
    c.register("ovsdb-server/get-sync-exclude-tables", "", 0, 0, move |_| Ok(b.exclude()));
}

fn changes(d: &Daemon, server: &Server) {
    let c = d.commands();
    let s = server.clone();
    c.register("ovsdb-server/tlog-set", "DB:TABLE on|off", 2, 2, move |args| {
        let (place, how) = (args.first().map_or("", |a| a), args.get(1).map_or("", |a| a));
        let (database, table) = place.split_once(':').ok_or("invalid DB:TABLE argument")?;
        let schema = s.schema(database).ok_or("no such database")?;
        if !schema.tables.contains_key(table) {
            return Err("no such table".into());
        }
        let on = match how.to_ascii_lowercase().as_str() {
            "on" => true,
            "off" => false,
            _ => return Err("invalid command argument".into()),
        };
        done(s.log_changes(database, table, on))
    });
    let s = server.clone();
    c.register("ovsdb-server/tlog-list", "", 0, 0, move |_| {
        let mut out = String::from("database        table                       logging\n");
        out += "--------        -----                       -------\n";
        for (database, tables) in s.logged_tables() {
            out += &format!("{database:<16} \n");
            for (table, on) in tables {
                out += &format!("{:<16}{table:<28}{}\n", "", if on { "ON" } else { "OFF" });
            }
        }
        Ok(out)
    });
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn figures(d: &Daemon, server: &Server) {
    static STARTED: OnceCell<std::time::Instant> = OnceCell::const_new();
    // Set once, before anyone can ask.
    let _ = STARTED.set(std::time::Instant::now());
    let c = d.commands();
    let s = server.clone();
    // How many transactions each database had had when the counters were cleared.
    let cleared: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let since = cleared.clone();
    c.register_async("ovsdb-server/perf-counters-show", "", 0, 0, move |_| {
        let (s, since) = (s.clone(), since.clone());
        async move {
            let up = STARTED.get().map_or(0, |t| t.elapsed().as_secs());
            let mut out = format!("up {up} s, sessions {}\n", s.sessions());
            for (name, _) in s.databases() {
                let t = s.statistics(&name).await.map_err(|e| e.to_string())?;
                let before = locked(&since).get(&name).copied().unwrap_or(0);
                out += &format!("{name}: rows {} monitors {} ", t.rows, t.monitors);
                out += &format!("transactions {} remembered {}\n", t.transactions.saturating_sub(before), t.history);
            }
            Ok(out)
        }
    });
    let s = server.clone();
    c.register_async("ovsdb-server/perf-counters-clear", "", 0, 0, move |_| {
        let (s, cleared) = (s.clone(), cleared.clone());
        async move {
            for (name, _) in s.databases() {
                let t = s.statistics(&name).await.map_err(|e| e.to_string())?;
                locked(&cleared).insert(name, t.transactions);
            }
            Ok(String::new())
        }
    });
    let s = server.clone();
    c.register_async("memory/show", "", 0, 0, move |_| {
        let s = s.clone();
        async move {
            let (mut atoms, mut cells, mut monitors, mut weak) = (0, 0, 0, 0);
            for (name, _) in s.databases() {
                let t = s.statistics(&name).await.map_err(|e| e.to_string())?;
                atoms += t.atoms;
                cells += t.cells;
                monitors += t.monitors;
                weak += t.weak_references;
            }
            let sessions = if s.sessions() > 0 { format!(" sessions:{}", s.sessions()) } else { String::new() };
            Ok(format!("atoms:{atoms} cells:{cells} monitors:{monitors} n-weak-refs:{weak}{sessions}\n"))
        }
    });
}
