//! The log: a `tracing` layer that writes Open vSwitch's format, `TIME|SEQUENCE|MODULE|LEVEL|TEXT`,
//! to stderr, a file and syslog, with a level per module and destination that can change at run time.
//!
//! A module is the last part of an event's target, so `debug!(target: "jsonrpc", …)` logs as `jsonrpc`.
//! A statement that passes on texts of several kinds says in a field `kind`, which is not shown, what is limited together.

use crate::levels::{DESTINATIONS, Destination, Level, Levels};
use crate::limit::{Limits, Verdict};
use crate::pattern::{Record, format};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The facility of a daemon's messages, and all by their numbers.
const DAEMON: u8 = 3;
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "clock", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock2", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];

/// A message for a syslog server (RFC 5424 section 6).
const RFC_5424: &str = "<%B>1 %D{%Y-%m-%dT%H:%M:%S.###Z} %E %A %P %c - \u{feff}%m";

enum Syslog {
    None,
    Unix(UnixDatagram, PathBuf),
    Udp(UdpSocket),
}

struct Outputs {
    file: Option<File>,
    path: Option<PathBuf>,
    syslog: Syslog,
    /// A syslog server besides.
    server: Option<UdpSocket>,
    facility: Option<u8>,
    patterns: [String; 3],
}

struct Shared {
    program: String,
    sequence: AtomicU64,
    levels: RwLock<Levels>,
    limits: Mutex<Limits>,
    outputs: Mutex<Outputs>,
}

/// The process's log; clones share it.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

impl Log {
    /// A log that writes INFO and above to stderr.
    pub(crate) fn new(program: &str) -> Log {
        Log(Arc::new(Shared {
            program: program.to_string(),
            sequence: AtomicU64::new(0),
            levels: RwLock::new(Levels::default()),
            limits: Mutex::default(),
            outputs: Mutex::new(Outputs {
                file: None,
                path: None,
                syslog: Syslog::None,
                server: None,
                facility: None,
                patterns: [
                    "%D{%Y-%m-%dT%H:%M:%SZ}|%05N|%c%T|%p|%m".to_string(),
                    "ovs|%05N|%c%T|%p|%m".to_string(),
                    "%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m".to_string(),
                ],
            }),
        }))
    }

    /// Makes this the process's log.
    pub(crate) fn install(&self) {
        self.catch_panics();
        use tracing_subscriber::layer::SubscriberExt;
        // A test may have installed one already; then that one stays.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(LogLayer(self.clone())));
    }

    /// A panic's text goes where the log goes: a detached daemon's stderr is /dev/null.
    fn catch_panics(&self) {
        let usual = std::panic::take_hook();
        let log = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let payload = panic.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text");
            let place = panic.location().map_or_else(|| "an unknown place".to_string(), ToString::to_string);
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("without a name").to_string();
            log.write("daemon", Level::Emer, &format!("thread {name} panicked at {place}: {text}"));
            usual(panic);
        }));
    }

    fn outputs(&self) -> MutexGuard<'_, Outputs> {
        self.0.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes modules known to `vlog/set` before they have logged anything.
    pub fn declare(&self, modules: &[&str]) {
        let mut levels = self.0.levels.write().unwrap_or_else(PoisonError::into_inner);
        modules.iter().for_each(|m| levels.declare(m));
    }

    /// Applies one word list as `-v` and `vlog/set` take it, or `PATTERN:DESTINATION:PATTERN`.
    ///
    /// # Errors
    /// The text that ovs-appctl shows.
    pub fn set(&self, spec: &str) -> Result<(), String> {
        if let Some(rest) = spec.strip_prefix("PATTERN:") {
            let (name, pattern) = rest.split_once(':').ok_or("missing destination in pattern")?;
            let mut out = self.outputs();
            for d in DESTINATIONS {
                if name.eq_ignore_ascii_case("any") || name.eq_ignore_ascii_case(d.name()) {
                    out.patterns[d as usize] = pattern.to_string();
                }
            }
            return Ok(());
        }
        if let Some(name) = spec.strip_prefix("FACILITY:") {
            let place = FACILITIES.iter().position(|f| f.eq_ignore_ascii_case(name)).ok_or("invalid facility")?;
            self.outputs().facility = u8::try_from(place).ok();
            return Ok(());
        }
        self.0.levels.write().unwrap_or_else(PoisonError::into_inner).set(spec)?;
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }

    /// The table of `vlog/list`.
    pub fn list(&self) -> String {
        self.0.levels.read().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Sets whether messages of these modules are rate-limited; no name means all modules.
    ///
    /// # Errors
    /// The text that ovs-appctl shows.
    pub fn limit(&self, modules: &[String], on: bool) -> Result<(), String> {
        let mut levels = self.0.levels.write().unwrap_or_else(PoisonError::into_inner);
        if modules.is_empty() {
            return levels.limit("any", on);
        }
        modules.iter().try_for_each(|m| levels.limit(m, on))
    }

    /// Whether a message may pass; what was lost before it is said first.
    fn passes(&self, site: usize, kind: &str, module: &str, level: Level) -> bool {
        if !self.0.levels.read().unwrap_or_else(PoisonError::into_inner).limited(module) {
            return true;
        }
        let mut limits = self.0.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let verdict = limits.check(site, kind, module, level, Instant::now());
        drop(limits);
        match verdict {
            Verdict::Pass => true,
            Verdict::Drop => false,
            Verdict::PassAfter(lost) => {
                self.write(module, level, &lost);
                true
            }
        }
    }

    /// The table of `vlog/list-pattern`.
    pub fn list_patterns(&self) -> String {
        let out = self.outputs();
        let mut s = String::from("         prefix                            format\n");
        s.push_str("         ------                            ------\n");
        for d in [Destination::Syslog, Destination::Console, Destination::File] {
            let _ = writeln!(s, "{:<8} {:<33} {}", d.name().to_uppercase(), "none", out.patterns[d as usize]);
        }
        s
    }

    /// Starts logging to a file.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub fn open_file(&self, path: &Path) -> io::Result<()> {
        let path = std::path::absolute(path)?;
        let file = open(&path)?;
        let mut out = self.outputs();
        out.file = Some(file);
        out.path = Some(path.clone());
        drop(out);
        tracing::info!(target: "vlog", "opened log file {}", path.display());
        Ok(())
    }

    /// Opens the file anew, as log rotation asks.
    ///
    /// # Errors
    /// The text that ovs-appctl shows.
    pub fn reopen(&self) -> Result<(), String> {
        let path = self.outputs().path.clone().ok_or("Logging to file not configured")?;
        self.outputs().file = None;
        self.open_file(&path).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Stops logging to the file until [`Log::reopen`].
    pub fn close(&self) {
        self.outputs().file = None;
    }

    /// Chooses the way to syslog: `libc`, `null`, `unix:FILE`, `udp:IP:PORT`.
    ///
    /// # Errors
    /// Where the method is unknown or its address bad.
    pub fn set_syslog(&self, method: &str) -> Result<(), String> {
        let socket = || UnixDatagram::unbound().map_err(|e| format!("syslog: {e}"));
        let sink = match method.split_once(':') {
            None if method == "null" => Syslog::None,
            None if method == "libc" => Syslog::Unix(socket()?, "/dev/log".into()),
            Some(("unix", path)) => Syslog::Unix(socket()?, path.into()),
            Some(("udp", address)) => {
                let udp = UdpSocket::bind("0.0.0.0:0").and_then(|s| s.connect(address).map(|()| s));
                Syslog::Udp(udp.map_err(|e| format!("syslog method {method}: {e}"))?)
            }
            _ => return Err(format!("unsupported syslog method {method}: use libc, null, unix:FILE or udp:IP:PORT")),
        };
        self.outputs().syslog = sink;
        Ok(())
    }

    /// Sends what goes to syslog to a server too (ovn-northd(8), `--syslog-target`).
    ///
    /// # Errors
    /// Where the target is not an address and a port.
    pub fn set_syslog_target(&self, target: &str) -> Result<(), String> {
        let bad =
            |e: &dyn std::fmt::Display| format!("syslog target {target}: {e}; give a numerical address and a port");
        let to: SocketAddr = target.parse().map_err(|e| bad(&e))?;
        let from: SocketAddr =
            if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let socket = UdpSocket::bind(from).and_then(|s| s.connect(to).map(|()| s));
        self.outputs().server = Some(socket.map_err(|e| bad(&e))?);
        Ok(())
    }

    /// Nothing more goes to stderr: it was given up.
    pub(crate) fn leave_console(&self) {
        let _ = self.set("console:off");
    }

    fn write(&self, module: &str, level: Level, text: &str) {
        let sequence = self.0.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let wanted = {
            let levels = self.0.levels.read().unwrap_or_else(PoisonError::into_inner);
            DESTINATIONS.map(|d| levels.enabled(module, d, level))
        };
        let now = std::time::SystemTime::now();
        let mut out = self.outputs();
        let out = &mut *out;
        let facility = out.facility;
        let record = Record { program: &self.0.program, sequence, module, level, text, now, facility };
        // A destination that fails must not stop the daemon, and there is nowhere to say so.
        if wanted[Destination::Console as usize] {
            let _ = io::stderr().write_all(format!("{}\n", format(&out.patterns[0], &record)).as_bytes());
        }
        if wanted[Destination::Syslog as usize] {
            let line = |host: &str| {
                format!("<{}>{host}{}: {}", record.priority(DAEMON), self.0.program, format(&out.patterns[1], &record))
            };
            let _ = match &out.syslog {
                Syslog::None => Ok(0),
                Syslog::Unix(s, path) => s.send_to(line("").as_bytes(), path),
                Syslog::Udp(s) => s.send(line("").as_bytes()),
            };
            if let Some(server) = &out.server {
                let _ = server.send(format(RFC_5424, &record).as_bytes());
            }
        }
        if wanted[Destination::File as usize]
            && let Some(f) = &mut out.file
        {
            let _ = f.write_all(format!("{}\n", format(&out.patterns[2], &record)).as_bytes());
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// What kind of text this is, for the field `kind`: its first words, without those that have digits or quotes and so
/// name an object.
pub fn kind(text: &str) -> String {
    let plain = |w: &&str| !w.contains(|c: char| c.is_ascii_digit() || c == '"' || c == '\'');
    text.split_whitespace().filter(plain).take(4).collect::<Vec<_>>().join(" ")
}

struct LogLayer(Log);

impl<S: Subscriber> Layer<S> for LogLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Hints are what `tracing::enabled!` asks.
        if metadata.is_span() {
            return Interest::never();
        }
        let module = metadata.target().rsplit("::").next().unwrap_or_default();
        let mut levels = self.0.0.levels.write().unwrap_or_else(PoisonError::into_inner);
        levels.declare(module);
        let level = Level::of(*metadata.level());
        if DESTINATIONS.iter().any(|d| levels.enabled(module, *d, level)) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let m = event.metadata();
        let module = m.target().rsplit("::").next().unwrap_or_default();
        let level = Level::of(*m.level());
        // A statement's metadata lives as long as the program, so its place names it.
        if self.0.passes(std::ptr::from_ref(m).addr(), &text.kind, module, level) {
            self.0.write(module, level, &(text.message + &text.fields));
        }
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
    kind: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            "kind" => self.kind.push_str(value),
            name => {
                let _ = write!(self.fields, " {name}={value}");
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "kind" => write!(self.kind, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
