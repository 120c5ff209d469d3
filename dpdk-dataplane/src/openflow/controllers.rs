//! Connections to the controllers of a bridge, which the switch makes or waits for (ovs-vswitchd.conf.db(5), table
//! Controller).

use super::connections::{Connections, PRIMARY, SECONDARY};
use super::packet_in_queue::{self, Counts};
use super::session::{ControllerOptions, Session, serve};
use crate::config::controller::ControllerSpec;
use crate::pmd::Handle;
use ovn_schema::Uuid;
use ovsdb_rs::stream::{self, BoxStream, Remote};
use ovsdb_rs::tls::Tls;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use switch::BridgeId;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// OpenFlow's TCP port.
const PORT: u16 = 6653;

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
    /// Counters of its limit for misses and for other packets, if it has one.
    pub limited: Option<[Counts; 2]>,
}

type Shared = Arc<Mutex<ControllerStatus>>;

struct Task {
    spec: ControllerSpec,
    status: Shared,
    packet_ins: packet_in_queue::Shared,
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
    /// Starts and stops connections so that they are those of `wanted`.
    pub fn apply(&mut self, wanted: &[ControllerSpec], session: &Session) {
        // A connection survives a change of its limit.
        let same = |w: &ControllerSpec, t: &ControllerSpec| ControllerSpec { limit: t.limit, ..w.clone() } == *t;
        self.tasks.retain(|id, t| wanted.iter().any(|w| w.uuid == *id && same(w, &t.spec)));
        for spec in wanted {
            if let Some(t) = self.tasks.get_mut(&spec.uuid) {
                if t.spec.limit != spec.limit {
                    let mut state = packet_in_queue::lock(&t.packet_ins);
                    if state.limit.is_none() {
                        state.counts = Default::default();
                    }
                    (state.limit, t.spec.limit) = (spec.limit, spec.limit);
                }
                continue;
            }
            let (status, packet_ins) = (Shared::default(), packet_in_queue::Shared::default());
            packet_in_queue::lock(&packet_ins).limit = spec.limit;
            let handle = tokio::spawn(keep(spec.clone(), session.clone(), status.clone(), packet_ins.clone()));
            self.tasks.insert(spec.uuid, Task { spec: spec.clone(), status, packet_ins, handle });
        }
    }

    /// Ends all connections, and begins them anew.
    pub fn reconnect(&mut self, session: &Session) {
        for t in self.tasks.values_mut() {
            t.handle.abort();
            set(&t.status, |s| {
                if std::mem::take(&mut s.connected) {
                    s.since.1 = Some(Instant::now());
                }
                s.role = None;
            });
            t.handle = tokio::spawn(keep(t.spec.clone(), session.clone(), t.status.clone(), t.packet_ins.clone()));
        }
    }

    /// The state of each.
    pub fn status(&self) -> impl Iterator<Item = (Uuid, ControllerStatus)> {
        self.tasks.iter().map(|(id, t)| (*id, t.status()))
    }

    /// For how long no controller has been connected, at the longest since `since`; `None` if one is, or if the bridge
    /// has none.
    pub fn alone(&self, since: Instant) -> Option<Duration> {
        let mut ends = Vec::new();
        for t in self.tasks.values() {
            let s = t.status();
            if s.connected {
                return None;
            }
            ends.push(s.since.1.unwrap_or(since));
        }
        ends.into_iter().max().map(|e| e.elapsed())
    }

    /// How long the bridge waits for a controller before it switches by itself: three of the longest probe intervals.
    pub fn patience(&self) -> Duration {
        self.tasks.values().map(|t| t.spec.probe).max().unwrap_or_default().max(Duration::from_secs(5)) * 3
    }
}

impl Task {
    fn status(&self) -> ControllerStatus {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let packet_ins = *packet_in_queue::lock(&self.packet_ins);
        ControllerStatus { limited: packet_ins.limit.map(|_| packet_ins.counts), ..status }
    }
}

fn set(status: &Shared, f: impl FnOnce(&mut ControllerStatus)) {
    f(&mut status.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Parses a target; without a port it gets OpenFlow's.
fn parse(target: &str) -> Result<Remote, String> {
    let with_port = match target.split_once(':') {
        Some(("tcp" | "ssl", host)) if !host.is_empty() && (host.ends_with(']') || !host.contains(':')) => {
            format!("{target}:{PORT}")
        }
        Some((kind @ ("ptcp" | "pssl"), rest)) if rest.is_empty() || rest.starts_with(':') => {
            format!("{kind}:{PORT}{rest}")
        }
        _ => target.to_string(),
    };
    match Remote::parse(&with_port) {
        Ok(Remote::PassiveTls(_)) => Err(format!("{target}: pssl is not supported; let the switch connect (ssl:)")),
        Ok(r) => Ok(r),
        Err(e) => Err(e.to_string()),
    }
}

/// Keeps a controller connected.
async fn keep(spec: ControllerSpec, session: Session, status: Shared, packet_ins: packet_in_queue::Shared) {
    let remote = match parse(&spec.target) {
        Ok(r) => r,
        Err(e) => {
            tracing::error!(target: "rconn", "controller {}: {e}", spec.target);
            return set(&status, |s| (s.state, s.last_error) = ("VOID", Some(e)));
        }
    };
    if remote.is_passive() {
        return listen(&spec, &remote, &session, (&status, &packet_ins)).await;
    }
    let mut wait = Duration::from_secs(1);
    loop {
        set(&status, |s| s.state = "CONNECTING");
        let end = match connect(&remote, &spec).await {
            Ok(s) => {
                tracing::info!(target: "rconn", "{}<->{}: connected", session.name, spec.target);
                let started = Instant::now();
                let end = connected(s, &spec, &session, (&status, &packet_ins)).await;
                if started.elapsed() > spec.max_backoff {
                    wait = Duration::from_secs(1);
                }
                end
            }
            Err(e) => reason(&e),
        };
        tracing::info!(target: "rconn", "{}<->{}: {end}; trying again in {} s", session.name, spec.target, wait.as_secs());
        set(&status, |s| (s.state, s.last_error) = ("BACKOFF", Some(end)));
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(spec.max_backoff);
    }
}

/// An error in the system's words, without its number.
fn reason(e: &impl std::fmt::Display) -> String {
    let text = e.to_string();
    text.split(" (os error ").next().unwrap_or(&text).into()
}

async fn connect(remote: &Remote, spec: &ControllerSpec) -> io::Result<BoxStream> {
    let tls = match (remote, &spec.tls) {
        (Remote::Tls(..), Some(files)) => Some(Tls::new(files.clone()).map_err(io::Error::other)?),
        (Remote::Tls(..), None) => return Err(io::Error::other("needs key and certificates: ovs-vsctl set-ssl")),
        _ => None,
    };
    stream::connect(remote, tls.as_ref()).await
}

async fn connected(
    s: BoxStream,
    spec: &ControllerSpec,
    session: &Session,
    (status, packet_ins): (&Shared, &packet_in_queue::Shared),
) -> String {
    set(status, |s| {
        (s.connected, s.state, s.role) = (true, "ACTIVE", Some("other"));
        s.since.0 = Some(Instant::now());
    });
    let told = status.clone();
    let options = ControllerOptions { probe: spec.probe, primary: spec.primary, packet_ins: packet_ins.clone() };
    let end = serve(s, session.clone(), Some(options), move |role| {
        let word = match role {
            PRIMARY => "master",
            SECONDARY => "slave",
            _ => "other",
        };
        set(&told, |s| s.role = Some(word));
    });
    let end = end.await.map_or_else(|e| reason(&e), |()| "the connection was closed".into());
    set(status, |s| {
        (s.connected, s.role) = (false, None);
        s.since.1 = Some(Instant::now());
    });
    end
}

/// Listens for controllers.
async fn listen(spec: &ControllerSpec, remote: &Remote, session: &Session, of: (&Shared, &packet_in_queue::Shared)) {
    let status = of.0;
    set(status, |s| s.state = "");
    let mut open = tokio::task::JoinSet::new();
    loop {
        let e = match accept(spec, remote, session, of, &mut open).await {
            Ok(()) => continue,
            Err(e) => e,
        };
        tracing::warn!(target: "rconn", "{}: {}: {e}", session.name, spec.target);
        set(status, |s| s.last_error = Some(reason(&e)));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn accept(
    spec: &ControllerSpec,
    remote: &Remote,
    session: &Session,
    (status, packet_ins): (&Shared, &packet_in_queue::Shared),
    open: &mut tokio::task::JoinSet<()>,
) -> io::Result<()> {
    let mut take = |s: BoxStream| {
        let (spec, session, status, packet_ins) = (spec.clone(), session.clone(), status.clone(), packet_ins.clone());
        open.spawn(async move {
            connected(s, &spec, &session, (&status, &packet_ins)).await;
            // Listening has no state, as another controller may connect next.
            set(&status, |s| s.state = "");
        });
        while open.try_join_next().is_some() {}
    };
    match remote {
        Remote::PassiveUnix(path) => {
            let _ = std::fs::remove_file(path);
            let l = UnixListener::bind(path)?;
            loop {
                take(Box::new(l.accept().await?.0));
            }
        }
        Remote::PassiveTcp(address) => {
            let l = TcpListener::bind(address).await?;
            loop {
                let (s, _) = l.accept().await?;
                s.set_nodelay(true)?;
                take(Box::new(s));
            }
        }
        _ => Err(io::Error::other("not a passive remote")),
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
    fn targets_have_openflows_port() {
        for (target, is) in [
            ("tcp:10.0.0.1", "tcp:10.0.0.1:6653"),
            ("tcp:[fd00::1]", "tcp:[fd00::1]:6653"),
            ("tcp:10.0.0.1:6633", "tcp:10.0.0.1:6633"),
            ("ptcp:", "ptcp:6653:0.0.0.0"),
            ("ptcp:7000:127.0.0.1", "ptcp:7000:127.0.0.1"),
            ("punix:/run/x", "punix:/run/x"),
        ] {
            assert_eq!(parse(target).map(|r| r.to_string()), Ok(is.to_string()));
        }
        assert!(parse("pssl:").is_err() && parse("udp:1").is_err());
    }
}
