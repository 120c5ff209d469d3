//! A daemon's life: options, background, pidfile, control socket, exit.

use crate::dirs::{Family, program_name};
use crate::pidfile::Pidfile;
use crate::unixctl::{Commands, Socket};
use crate::{Counter, Coverage, Log, Metric, Metrics, Options, coverage, detach, scrape};
use anyhow::Context;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What a program says of itself.
#[derive(Debug, Clone)]
pub struct Program {
    /// The text of `--version` and of the command `version`.
    pub version: String,
    /// Whose directories it uses.
    pub family: Family,
    /// Log modules that exist before they log.
    pub modules: &'static [&'static str],
    /// Which threads its tasks run on.
    pub threads: Threads,
}

/// Which threads a daemon's tasks run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// One for each processor: for a daemon that works for several clients at once, or computes for seconds.
    #[default]
    PerProcessor,
    /// One: for a daemon that mostly waits. What an event passes through (a connection, then the daemon's loop, then another connection)
    /// runs without waking another thread.
    One,
}

type MemoryReport = Arc<dyn Fn() -> Vec<(String, u64)> + Send + Sync>;

struct Shared {
    name: String,
    commands: Commands,
    log: Log,
    coverage: Coverage,
    memory: Arc<Mutex<Vec<MemoryReport>>>,
    metrics: Metrics,
    exit: watch::Sender<bool>,
    detached: Mutex<Option<detach::Notify>>,
    stay: bool,
}

/// A running daemon; clones are the same one.
#[derive(Clone)]
pub struct Daemon(Arc<Shared>);

impl Daemon {
    /// The daemon's name: the basename of `argv[0]`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The commands of the control socket.
    pub fn commands(&self) -> &Commands {
        &self.0.commands
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.0.log
    }

    /// Makes event counters visible to `coverage/show`.
    pub fn counters(&self, counters: &[&'static Counter]) {
        self.0.coverage.register(counters);
    }

    /// Has `coverage/show` and `coverage/read-counter` wait for this first: the counters are those of another thread.
    pub fn before_coverage<F, Fut>(&self, refresh: F)
    where
        F: Fn() -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        let (c, coverage, first) = (self.commands(), self.0.coverage.clone(), refresh.clone());
        c.register_async("coverage/show", "", 0, 0, move |_| {
            let (coverage, first) = (coverage.clone(), first());
            async move {
                first.await;
                Ok(coverage.show())
            }
        });
        let coverage = self.0.coverage.clone();
        c.register_async("coverage/read-counter", "COUNTER", 1, 1, move |args| {
            let (coverage, first) = (coverage.clone(), refresh());
            async move {
                first.await;
                read_counter(&coverage, &args)
            }
        });
    }

    /// Adds a source of figures for `memory/show`.
    pub fn memory<F: Fn() -> Vec<(String, u64)> + Send + Sync + 'static>(&self, report: F) {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(report));
    }

    /// The metrics: what `--metrics` answers and the command `metrics/show` prints.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The daemon can be used from now on: a detached daemon's parent returns, and stderr is given up.
    /// Relative paths must have been made absolute before, as the working directory becomes `/`.
    ///
    /// # Errors
    /// Where the working directory or standard streams cannot be changed.
    pub fn ready(&self) -> anyhow::Result<()> {
        if let Some(notify) = self.0.detached.lock().unwrap_or_else(PoisonError::into_inner).take() {
            if !self.0.stay {
                std::env::set_current_dir("/").context("/: cannot become the working directory")?;
            }
            self.0.log.leave_console();
            notify.ready().context("/dev/null")?;
        }
        Ok(())
    }

    /// Asks the daemon to exit.
    pub fn exit(&self) {
        self.0.exit.send_replace(true);
    }

    /// Returns once the daemon was asked to exit: by `exit`, SIGTERM, SIGINT or SIGHUP.
    pub async fn exiting(&self) {
        // The sender lives in self, so the channel cannot close.
        let _ = self.0.exit.subscribe().wait_for(|e| *e).await;
    }
}

/// Runs a daemon: to be called first in `main`, before any thread exists.
/// Errors of `main` are printed and logged, and the process returns 1.
pub fn run<F, Fut>(program: Program, options: &Options, main: F) -> ExitCode
where
    F: FnOnce(Daemon) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let name = program_name();
    if options.version {
        // Who asked may be gone already.
        let _ = writeln!(std::io::stdout(), "{}", program.version);
        return ExitCode::SUCCESS;
    }
    match try_run(&name, program, options, main) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("{name}: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn try_run<F, Fut>(name: &str, program: Program, options: &Options, main: F) -> anyhow::Result<ExitCode>
where
    F: FnOnce(Daemon) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let log = Log::new(name);
    log.declare(program.modules);
    // Names of modules come and go with versions; a service must start all the same.
    let wrong: Vec<String> = options
        .verbose
        .iter()
        .filter_map(|spec| log.set(spec).err().map(|e| format!("processing \"{spec}\": {e}")))
        .collect();
    let mut detached = None;
    if options.detach {
        match detach::child().context("cannot detach")? {
            None => return detach::parent().context("cannot detach"),
            child => detached = child,
        }
    }
    let pidfile = match &options.pidfile {
        Some(path) => Some(Pidfile::create(&pidfile_path(path, name)?, options.overwrite_pidfile)?),
        None => None,
    };
    if let Some(user) = &options.user {
        become_user(user)?;
    }
    log.set_syslog(options.syslog_method.as_deref().unwrap_or("libc")).map_err(anyhow::Error::msg)?;
    if let Some(target) = &options.syslog_target {
        log.set_syslog_target(target).map_err(anyhow::Error::msg)?;
    }
    log.install();
    fall_of_faults();
    if let Some(file) = &options.log_file {
        let path = if file.is_empty() { program.family.logdir().join(format!("{name}.log")) } else { file.into() };
        log.open_file(&path).with_context(|| format!("failed to open {} for logging", path.display()))?;
    }
    for text in wrong {
        tracing::warn!(target: "vlog", "{text}");
    }
    let daemon = Daemon(Arc::new(Shared {
        name: name.to_string(),
        commands: Commands::default(),
        log,
        coverage: Coverage::default(),
        memory: Arc::default(),
        metrics: Metrics::default(),
        exit: watch::Sender::new(false),
        detached: Mutex::new(detached),
        stay: options.no_chdir,
    }));
    let mut runtime = match program.threads {
        Threads::PerProcessor => tokio::runtime::Builder::new_multi_thread(),
        Threads::One => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime.enable_all().build()?;
    let result = runtime.block_on(live(daemon, program, options, main));
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(pidfile);
    result.map(|()| ExitCode::SUCCESS)
}

/// Lets SIGSEGV and SIGBUS end the process whoever sends them.
///
/// Rust's runtime catches both to explain overflows of a stack. For any other fault its handler restores the default and
/// returns, so that the faulty instruction ends the process when it runs again. Where the signal came by kill(2) there is
/// none: the first would be lost. So each is raised here once, which restores the default.
fn fall_of_faults() {
    use nix::sys::signal::{Signal, raise};
    for signal in [Signal::SIGSEGV, Signal::SIGBUS] {
        if is_caught(signal as u32) {
            let _ = raise(signal);
        }
    }
}

/// Whether this process has a handler for a signal.
fn is_caught(signal: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

async fn live<F, Fut>(daemon: Daemon, program: Program, options: &Options, main: F) -> anyhow::Result<()>
where
    F: FnOnce(Daemon) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let version = match program.family {
        // `ovs-appctl version` answers with one line, whatever `--version` says beside it.
        Family::Ovs => program.version.lines().next().unwrap_or_default(),
        Family::Ovn => &program.version,
    };
    built_in_commands(&daemon, version);
    own_metrics(&daemon, &program.version);
    if let Some(at) = &options.metrics {
        let at = scrape::open(scrape::parse_address(at)?, daemon.metrics().clone()).await?;
        tracing::info!(target: "metrics", "metrics at http://{at}/metrics");
    }
    let socket = match control_socket(options, daemon.name(), program.family) {
        Some(path) => Some(
            Socket::open(&path, daemon.commands().clone())
                .with_context(|| format!("{}: cannot open the control socket", path.display()))?,
        ),
        None => None,
    };
    for (kind, number, text) in [
        (SignalKind::terminate(), 15, "Terminated"),
        (SignalKind::interrupt(), 2, "Interrupt"),
        (SignalKind::hangup(), 1, "Hangup"),
    ] {
        let mut signals = signal(kind)?;
        let d = daemon.clone();
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                tracing::warn!(target: "fatal_signal", "terminating with signal {number} ({text})");
                d.exit();
            }
        });
    }
    let coverage = daemon.0.coverage.clone();
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(coverage::SAMPLE_SECONDS));
        loop {
            tick.tick().await;
            coverage.sample();
        }
    });
    let result = main(daemon.clone()).await;
    if let Err(e) = &result {
        // Standard error gets it from `run`.
        daemon.0.log.leave_console();
        tracing::error!(target: "daemon", "{e:#}");
    }
    // The command that asked for the exit is answered before the process is gone.
    for _ in 0..100 {
        if daemon.commands().busy() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(socket);
    result
}

fn pidfile_path(option: &str, name: &str) -> anyhow::Result<PathBuf> {
    let file = if option.is_empty() { format!("{name}.pid") } else { option.to_string() };
    let path = crate::dirs::ovs_rundir().join(file);
    std::path::absolute(&path).with_context(|| path.display().to_string())
}

fn control_socket(options: &Options, name: &str, family: Family) -> Option<PathBuf> {
    match options.unixctl.as_deref() {
        Some("none") => None,
        Some(path) => Some(family.rundir().join(path)),
        None => Some(family.rundir().join(format!("{name}.{}.ctl", std::process::id()))),
    }
}

fn become_user(spec: &str) -> anyhow::Result<()> {
    use nix::unistd::{Group, User, initgroups, setgid, setuid};
    let (user, group) = spec.split_once(':').map_or((spec, ""), |(u, g)| (u, g));
    let user = User::from_name(user)?.with_context(|| format!("--user={spec}: no such user"))?;
    let gid = match group {
        "" => user.gid,
        g => Group::from_name(g)?.with_context(|| format!("--user={spec}: no such group"))?.gid,
    };
    if nix::unistd::geteuid() == user.uid {
        return Ok(());
    }
    let name = std::ffi::CString::new(user.name.clone())?;
    initgroups(&name, gid).with_context(|| format!("--user={spec}"))?;
    setgid(gid).with_context(|| format!("--user={spec}"))?;
    setuid(user.uid).with_context(|| format!("--user={spec}"))
}

/// The answer of `coverage/read-counter`.
fn read_counter(coverage: &Coverage, args: &[String]) -> Result<String, String> {
    let value = args.first().and_then(|name| coverage.read(name));
    value.map(|v| v.to_string()).ok_or_else(|| "No such counter".to_string())
}

fn built_in_commands(daemon: &Daemon, version: &str) {
    let c = daemon.commands();
    let (commands, d) = (c.clone(), daemon.clone());
    c.register("list-commands", "", 0, 0, move |_| Ok(commands.list()));
    let version = version.to_string();
    c.register("version", "", 0, 0, move |_| Ok(version.clone()));
    c.register("exit", "", 0, 0, move |_| {
        d.exit();
        Ok(String::new())
    });
    let coverage = daemon.0.coverage.clone();
    c.register("coverage/show", "", 0, 0, move |_| Ok(coverage.show()));
    let coverage = daemon.0.coverage.clone();
    c.register("coverage/read-counter", "COUNTER", 1, 1, move |args| read_counter(&coverage, &args));
    let reports = daemon.0.memory.clone();
    c.register("memory/show", "", 0, 0, move |_| {
        let mut out = String::new();
        for report in reports.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            for (name, value) in report() {
                let _ = write!(out, "{}{name}:{value}", if out.is_empty() { "" } else { " " });
            }
        }
        Ok(out)
    });
    let metrics = daemon.metrics().clone();
    c.register_async("metrics/show", "", 0, 0, move |_| {
        let metrics = metrics.clone();
        async move { Ok(metrics.show().await) }
    });
    log_commands(c, daemon.log());
}

/// What every daemon says of itself.
fn own_metrics(daemon: &Daemon, version: &str) {
    let (coverage, reports) = (daemon.0.coverage.clone(), daemon.0.memory.clone());
    let version = version.lines().next().unwrap_or_default().to_string();
    let started = Instant::now();
    daemon.metrics().register(move || {
        let info = Metric::gauge("isthmus_info", "The program's version.").with(&[("version", &version)], 1);
        let mut up = Metric::gauge("isthmus_uptime_seconds", "Seconds since the start.");
        up.add_real(&[], started.elapsed().as_secs_f64());
        let mut events = Metric::counter("isthmus_events_total", "Events that coverage/show counts.");
        for (name, n) in coverage.values() {
            events.add(&[("event", name)], n);
        }
        let mut sizes = Metric::gauge("isthmus_objects", "Objects in memory that memory/show counts.");
        for report in reports.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            for (name, n) in report() {
                sizes.add(&[("kind", &name)], n);
            }
        }
        std::future::ready(vec![info, up, events, sizes])
    });
}

fn log_commands(c: &Commands, log: &Log) {
    let l = log.clone();
    c.register("vlog/set", "{spec | PATTERN:destination:pattern}", 0, usize::MAX, move |args| {
        if args.is_empty() {
            l.set("dbg")?;
        }
        args.iter().try_for_each(|spec| l.set(spec)).map(|()| String::new())
    });
    let l = log.clone();
    c.register("vlog/list", "", 0, 0, move |_| Ok(l.list()));
    let l = log.clone();
    c.register("vlog/list-pattern", "", 0, 0, move |_| Ok(l.list_patterns()));
    let l = log.clone();
    c.register("vlog/reopen", "", 0, 0, move |_| l.reopen().map(|()| String::new()));
    let l = log.clone();
    c.register("vlog/close", "", 0, 0, move |_| {
        l.close();
        Ok(String::new())
    });
    for (name, on) in [("vlog/enable-rate-limit", true), ("vlog/disable-rate-limit", false)] {
        let l = log.clone();
        c.register(name, "[module]...", 0, usize::MAX, move |args| l.limit(&args, on).map(|()| String::new()));
    }
}
