//! Connections to the controllers of a bridge, which the switch makes or waits for (ovs-vswitchd.conf.db(5), table
//! Controller).

use super::connections::{Connections, PRIMARY, SECONDARY};
use super::packet_in_queue::{self, Counts};
use super::session::{ControllerOptions, Peer, Session, serve};
use crate::clock::Clock;
use crate::config::controller::{ControllerSpec, OPENFLOW_PORT};
use crate::pmd::Handle;
use ovn_schema::{Str, Uuid};
use ovsdb_rs::stream::{self, BoxStream, Remote, socket_file};
use ovsdb_rs::tls::Tls;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use switch::BridgeId;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// The state of a controller's connection, for its row.
#[derive(Clone, Debug, Default)]
pub struct ControllerStatus {
    /// Whether it is connected.
    pub connected: bool,
    /// `other`, `master` or `slave`.
    pub role: Option<&'static str>,
    /// The state of the connection's machine; empty while the switch listens.
    pub state: &'static str,
    /// Why it is not connected.
    pub last_error: Option<String>,
    /// When the last connection was made, and when the last one ended.
    pub since: (Option<Instant>, Option<Instant>),
    /// Whether the controller controls the bridge by this connection: it says more than who tries one out.
    pub admitted: bool,
    /// When it last said something after that, or when this began.
    pub heard: Option<Instant>,
    /// Counters of its limit for misses and for other packets, if it has one.
    pub limited: Option<[Counts; 2]>,
}

type Shared = Arc<Mutex<ControllerStatus>>;

/// How long a controller that connects by TLS has for its certificate.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A controller: its row, what the connections of its bridge share, and its state, which others read.
#[derive(Clone)]
struct Controller {
    target: Str,
    /// Its row as it is now: a connection that is open keeps its key and its first messages, and goes by all else.
    spec: watch::Sender<ControllerSpec>,
    session: Session,
    status: Shared,
    packet_ins: packet_in_queue::Shared,
}

/// The task that keeps a controller connected.
struct Task {
    controller: Controller,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// The controllers of a bridge. Dropping this ends their connections.
#[derive(Default)]
pub struct Controllers {
    tasks: BTreeMap<Uuid, Task>,
}

impl Controllers {
    /// Starts and stops connections so that they are those of `wanted`. One survives whatever changes but its target and code
    /// point, also where another row has these (`ovs-vsctl set-controller` writes all rows anew).
    pub fn apply(&mut self, wanted: &[ControllerSpec], session: &Session) {
        let mut old = std::mem::take(&mut self.tasks);
        for spec in wanted {
            let same = |t: &Task| *t.controller.target == *spec.target && t.controller.spec.borrow().dscp == spec.dscp;
            let own = old.get(&spec.uuid).filter(|t| same(t)).map(|_| spec.uuid);
            let free = |id: &Uuid| wanted.iter().all(|w| w.uuid != *id);
            let id = own.or_else(|| old.iter().find(|(id, t)| same(t) && free(id)).map(|(id, _)| *id));
            let task = match id.and_then(|id| old.remove(&id)) {
                Some(task) => task.with(spec),
                None => Task::start(Controller::new(spec, session)),
            };
            self.tasks.insert(spec.uuid, task);
        }
    }

    /// Ends all connections, and begins them anew.
    pub fn reconnect(&mut self, session: &Session) {
        for t in self.tasks.values_mut() {
            t.handle.abort();
            t.controller.set(|s| {
                if std::mem::take(&mut s.connected) {
                    s.since.1 = Some(session.pmd.clock.instant());
                }
                (s.role, s.admitted) = (None, false);
            });
            let controller = Controller { session: session.clone(), ..t.controller.clone() };
            *t = Task::start(controller);
        }
    }

    /// The state of each.
    pub fn status(&self) -> impl Iterator<Item = (Uuid, ControllerStatus)> {
        self.tasks.iter().map(|(id, t)| (*id, t.status()))
    }

    fn primary(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values().filter(|t| !t.controller.spec.borrow().service)
    }

    /// For how long no controller has controlled the bridge; `None` if one does, or if the bridge has none.
    pub fn alone(&self, now: Instant) -> Option<Duration> {
        let all: Vec<ControllerStatus> = self.primary().map(Task::status).collect();
        if all.iter().any(|s| s.connected && s.admitted) {
            return None;
        }
        all.iter().filter_map(|s| s.heard).max().map(|heard| now.saturating_duration_since(heard))
    }

    /// Whether a controller is connected, which need not control the bridge yet.
    pub fn any_connected(&self) -> bool {
        self.primary().any(|t| t.status().connected)
    }

    /// How long the bridge waits for a controller before it switches by itself: three of the longest probe intervals,
    /// in which each can be probed and come again.
    pub fn patience(&self) -> Duration {
        self.primary().map(|t| t.controller.spec.borrow().interval).max().unwrap_or_default() * 3
    }
}

impl Task {
    fn start(controller: Controller) -> Task {
        let handle = tokio::spawn(controller.clone().keep());
        Task { controller, handle }
    }

    /// The same connection, by another row.
    fn with(self, spec: &ControllerSpec) -> Task {
        let c = &self.controller;
        if c.spec.borrow().limit != spec.limit {
            let mut state = packet_in_queue::lock(&c.packet_ins);
            if state.limit.is_none() {
                state.counts = Default::default();
            }
            state.limit = spec.limit;
        }
        c.spec.send_if_modified(|s| std::mem::replace(s, spec.clone()) != *spec);
        self
    }

    fn status(&self) -> ControllerStatus {
        let status = self.controller.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let packet_ins = *packet_in_queue::lock(&self.controller.packet_ins);
        ControllerStatus { limited: packet_ins.limit.map(|_| packet_ins.counts), ..status }
    }
}

/// Why a controller's target cannot be used.
#[derive(Debug, thiserror::Error)]
enum TargetError {
    /// The database asks for a socket that would take another file's place.
    #[error(
        "bridge {bridge}: Not adding Unix domain socket controller \"{target}\" due to possibility of overwriting local files. Instead, specify path in permitted format \"punix:{rundir}/{bridge}.*\" or connect to \"unix:{rundir}/{bridge}.mgmt\" (which is always available without special configuration)."
    )]
    Overwrites { bridge: String, target: String, rundir: String },
    /// The database asks for a connection to a socket that may be anybody's.
    #[error(
        "bridge {bridge}: Not connecting to socket controller \"{target}\" due to possibility for remote exploit.  Instead, specify socket in permitted directory \"unix:{rundir}/\" or connect to \"unix:{rundir}/{bridge}.mgmt\" (which is always available without special configuration)."
    )]
    Elsewhere { bridge: String, target: String, rundir: String },
    /// It is no connection method.
    #[error(transparent)]
    Syntax(#[from] ovsdb_rs::Error),
}

/// Parses a target; without a port it gets OpenFlow's.
fn parse(target: &str) -> Result<Remote, TargetError> {
    let with_port = match target.split_once(':') {
        Some(("tcp" | "ssl", host)) if !host.is_empty() && (host.ends_with(']') || !host.contains(':')) => {
            format!("{target}:{OPENFLOW_PORT}")
        }
        Some((kind @ ("ptcp" | "pssl"), rest)) if rest.is_empty() || rest.starts_with(':') => {
            format!("{kind}:{OPENFLOW_PORT}{rest}")
        }
        _ => target.to_string(),
    };
    Ok(Remote::parse(&with_port)?)
}

/// Refuses sockets outside the run directory, and those that listen there under another name than the bridge's: who may
/// write to the database may not overwrite files of this machine.
fn confine(remote: &Remote, bridge: &str, rundir: &Path) -> Result<(), TargetError> {
    let wrong = |path: &Path| path.components().any(|c| c == Component::ParentDir);
    let (target, here) = (remote.to_string(), rundir.display().to_string());
    let (bridge, rundir_text) = (bridge.to_string(), here);
    match remote {
        Remote::PassiveUnix(path) => {
            let path = rundir.join(path);
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let own = name.strip_prefix(&bridge).is_some_and(|rest| rest.starts_with('.'));
            match path.parent() == Some(rundir) && own {
                true => Ok(()),
                false => Err(TargetError::Overwrites { bridge, target, rundir: rundir_text }),
            }
        }
        Remote::Unix(path) if wrong(path) || !rundir.join(path).starts_with(rundir) => {
            Err(TargetError::Elsewhere { bridge, target, rundir: rundir_text })
        }
        _ => Ok(()),
    }
}

/// An error in the system's words, without its number. Who ends TLS without a word has closed the connection.
fn reason(e: &impl std::fmt::Display) -> String {
    let text = e.to_string();
    if text.contains("without sending TLS close_notify") {
        return "connection closed by peer".into();
    }
    text.split(" (os error ").next().unwrap_or(&text).into()
}

/// The pause before the next attempt to connect: twice the one `before`, `most` at most, but one second where there was a
/// connection that lasted as long as that pause, as in Open vSwitch.
fn next_pause(before: Duration, lasted: Option<Duration>, most: Duration) -> Duration {
    const FIRST: Duration = Duration::from_secs(1);
    if lasted.is_some_and(|t| t >= before) { FIRST } else { (before * 2).min(most).max(FIRST) }
}

impl Controller {
    fn new(spec: &ControllerSpec, session: &Session) -> Controller {
        let packet_ins = packet_in_queue::Shared::default();
        packet_in_queue::lock(&packet_ins).limit = spec.limit;
        let began = ControllerStatus { heard: Some(session.pmd.clock.instant()), ..ControllerStatus::default() };
        let (target, spec) = (spec.target.as_str().into(), watch::Sender::new(spec.clone()));
        Controller { target, spec, session: session.clone(), status: Arc::new(Mutex::new(began)), packet_ins }
    }

    fn set(&self, f: impl FnOnce(&mut ControllerStatus)) {
        f(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn clock(&self) -> &Clock {
        &self.session.pmd.clock
    }

    /// Keeps the controller connected.
    async fn keep(self) {
        let (name, target) = (&self.session.name, &self.target);
        let confined = |r: Remote| match self.session.all.unconfined() {
            true => Ok(r),
            false => confine(&r, name, &daemon::dirs::ovs_rundir()).map(|()| r),
        };
        let remote = match parse(target).and_then(confined) {
            Ok(r) => r,
            Err(e) => {
                tracing::error!(target: "rconn", "controller {target}: {e}");
                return self.set(|s| (s.state, s.last_error) = ("VOID", Some(e.to_string())));
            }
        };
        if remote.is_passive() {
            return self.listen(&remote).await;
        }
        let mut pause = Duration::ZERO;
        loop {
            self.set(|s| s.state = "CONNECTING");
            let attempt = self.clock().instant();
            let (end, connected) = match self.connect(&remote).await {
                Ok(s) => {
                    tracing::info!(target: "rconn", "{name}<->{target}: connected");
                    (self.serve(s).await, true)
                }
                Err(e) => (reason(&e), false),
            };
            let lasted = self.clock().instant() - attempt;
            pause = next_pause(pause, connected.then_some(lasted), self.spec.borrow().max_backoff);
            tracing::info!(target: "rconn", "{name}<->{target}: {end}; trying again in {} s", pause.as_secs());
            self.set(|s| (s.state, s.last_error) = ("BACKOFF", Some(end)));
            self.clock().sleep(pause).await;
        }
    }

    async fn connect(&self, remote: &Remote) -> io::Result<BoxStream> {
        let tls = if matches!(remote, Remote::Tls(..)) { Some(self.tls()?) } else { None };
        let dscp = self.spec.borrow().dscp;
        stream::dial(remote, tls.as_ref(), dscp).await.map(|(s, _)| s)
    }

    /// Key and certificates as they are now.
    fn tls(&self) -> io::Result<Tls> {
        let files = self.spec.borrow().tls.clone();
        let files = files.ok_or_else(|| io::Error::other("needs key and certificates: ovs-vsctl set-ssl"))?;
        Tls::new(files).map_err(io::Error::other)
    }

    /// Serves a connection; gives why it ended.
    async fn serve(&self, s: BoxStream) -> String {
        /// Who is connected for so long controls the bridge, whatever it says.
        const ADMITTED_AFTER: Duration = Duration::from_secs(30);
        let made = self.clock().instant();
        self.set(|s| {
            (s.connected, s.state, s.role) = (true, "ACTIVE", Some("other"));
            s.since.0 = Some(made);
        });
        let options = ControllerOptions { row: self.spec.subscribe(), packet_ins: self.packet_ins.clone() };
        let end = serve(s, self.session.clone(), Some(options), |did| match did {
            Peer::Role(role) => {
                let word = match role {
                    PRIMARY => "master",
                    SECONDARY => "slave",
                    _ => "other",
                };
                self.set(|s| s.role = Some(word));
            }
            Peer::Said { controls } => {
                let now = self.clock().instant();
                self.set(|s| {
                    s.admitted |= controls || now.saturating_duration_since(made) >= ADMITTED_AFTER;
                    if s.admitted {
                        s.heard = Some(now);
                    }
                });
            }
        });
        let end = end.await.map_or_else(|e| reason(&e), |()| "the connection was closed".into());
        self.set(|s| {
            (s.connected, s.role, s.admitted) = (false, None, false);
            s.since.1 = Some(self.clock().instant());
        });
        end
    }

    /// Listens for controllers.
    async fn listen(&self, remote: &Remote) {
        self.set(|s| s.state = "");
        let (mut open, mut said) = (JoinSet::new(), None);
        loop {
            let why = match self.accept(remote, &mut open).await {
                Ok(()) => continue,
                Err(e) => reason(&e),
            };
            if said.as_ref() != Some(&why) {
                tracing::warn!(target: "rconn", "{}: {}: {why}", self.session.name, self.target);
                said = Some(why.clone());
            }
            self.set(|s| s.last_error = Some(why));
            self.clock().sleep(Duration::from_secs(1)).await;
        }
    }

    /// Serves a controller that has connected.
    async fn heed(&self, s: BoxStream) {
        self.serve(s).await;
        // Listening has no state, as another controller may connect next.
        self.set(|s| s.state = "");
    }

    async fn accept(&self, remote: &Remote, open: &mut JoinSet<()>) -> io::Result<()> {
        let take = |s: BoxStream, open: &mut JoinSet<()>| {
            let controller = self.clone();
            open.spawn(async move { controller.heed(s).await });
            while open.try_join_next().is_some() {}
        };
        match remote {
            Remote::PassiveUnix(path) => {
                let path = socket_file(path);
                let _ = std::fs::remove_file(&path);
                let l = UnixListener::bind(&path)?;
                let _file = SocketFile::new(path);
                loop {
                    take(Box::new(l.accept().await?.0), open);
                }
            }
            Remote::PassiveTcp(address) => {
                let l = TcpListener::bind(address).await?;
                loop {
                    let (s, _) = l.accept().await?;
                    s.set_nodelay(true)?;
                    stream::mark(&s, self.spec.borrow().dscp);
                    take(Box::new(s), open);
                }
            }
            Remote::PassiveTls(address) => {
                self.tls()?;
                let l = TcpListener::bind(address).await?;
                loop {
                    let (s, from) = l.accept().await?;
                    s.set_nodelay(true)?;
                    stream::mark(&s, self.spec.borrow().dscp);
                    let controller = self.clone();
                    open.spawn(async move {
                        let secure = async { controller.tls()?.accept(s).await };
                        match tokio::time::timeout(HANDSHAKE, secure).await {
                            Ok(Ok((s, _))) => controller.heed(s).await,
                            Ok(Err(e)) => tracing::warn!(target: "rconn", "{}: {from}: {e}", controller.target),
                            Err(_) => tracing::warn!(
                                target: "rconn", "{}: {from}: no certificate in {HANDSHAKE:?}", controller.target
                            ),
                        }
                    });
                    while open.try_join_next().is_some() {}
                }
            }
            _ => Err(io::Error::other("not a passive remote")),
        }
    }
}

/// A socket's file, which goes with it.
struct SocketFile {
    path: PathBuf,
    /// It may be another one's by then.
    number: Option<u64>,
}

impl SocketFile {
    fn new(path: PathBuf) -> SocketFile {
        let number = std::fs::metadata(&path).ok().map(|m| m.ino());
        SocketFile { path, number }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::metadata(&self.path).ok().map(|m| m.ino()) == self.number {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What the connections of a bridge share.
pub fn session(name: &str, bridge: BridgeId, pmd: &Handle, all: &Connections, versions: u32) -> Session {
    Session { name: name.into(), bridge, pmd: pmd.clone(), all: all.clone(), versions }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_while_nobody_is_there() {
        let s = Duration::from_secs;
        let pauses = |ends: &[Option<u64>]| {
            let next = |p: &mut Duration, lasted: &Option<u64>| {
                *p = next_pause(*p, lasted.map(s), s(8));
                Some(p.as_secs())
            };
            ends.iter().scan(Duration::ZERO, next).collect::<Vec<_>>()
        };
        assert_eq!(pauses(&[None; 6]), [1, 2, 4, 8, 8, 8]);
        assert_eq!(
            pauses(&[Some(0), Some(4), Some(4), Some(4)]),
            [1; 4],
            "a controller that starts anew again and again"
        );
        assert_eq!(pauses(&[None, None, None, Some(4), None]), [1, 2, 4, 1, 2], "back for as long as the pause before");
        assert_eq!(pauses(&[Some(0), Some(0), Some(0)]), [1, 2, 4], "one that hangs up at once");
    }

    #[test]
    fn targets_have_openflows_port() {
        for (target, is) in [
            ("tcp:10.0.0.1", "tcp:10.0.0.1:6653"),
            ("tcp:[fd00::1]", "tcp:[fd00::1]:6653"),
            ("tcp:10.0.0.1:6633", "tcp:10.0.0.1:6633"),
            ("ptcp:", "ptcp:6653:0.0.0.0"),
            ("ptcp:7000:127.0.0.1", "ptcp:7000:127.0.0.1"),
            ("pssl:", "pssl:6653:0.0.0.0"),
            ("punix:/run/x", "punix:/run/x"),
        ] {
            assert_eq!(parse(target).map(|r| r.to_string()).ok().as_deref(), Some(is), "{target}");
        }
        assert!(parse("udp:1").is_err());
    }

    #[test]
    fn sockets_of_controllers_stay_in_the_run_directory() {
        let allowed = |target: &str| confine(&parse(target).expect("a target"), "br0", Path::new("/run/ovs")).is_ok();
        for target in ["punix:/run/ovs/br0.x", "punix:br0.x", "unix:/run/ovs/x", "unix:x", "unix:a/x", "tcp:10.0.0.1"] {
            assert!(allowed(target), "{target}");
        }
        for target in [
            "punix:/run/ovs/br1.x",
            "punix:/run/ovs/br0",
            "punix:/run/ovs/br0.d/x",
            "punix:/run/ovs/br0.d/../x",
            "punix:/etc/br0.x",
            "unix:/etc/x",
            "unix:../x",
            "unix:/run/ovs/../x",
        ] {
            assert!(!allowed(target), "{target}");
        }
    }
}
