//! The remotes of a server: listeners, and connections that the server opens itself.

use super::session::{self, Peer, PeerName};
use super::{Inner, locks};
use crate::failures::Failures;
use crate::lazy_writable::LazyWritable;
use crate::stream::{BoxStream, DEFAULT_DSCP, Remote, dial, mark, socket_file};
use crate::{Error, Str};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::{AbortHandle, JoinSet};

/// A peer that does not finish the TLS handshake within this time is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that one remote may have at a time.
const MOST_CONNECTIONS: usize = 100_000;

/// How a remote's connections behave (ovsdb-server(1), `--remote=db:DB,TABLE,COLUMN`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteOptions {
    /// The silence after which a client is asked for a sign of life; zero: never. By default 5 s, and never on Unix sockets.
    pub inactivity_probe: Option<Duration>,
    /// The longest wait between attempts to connect; by default 8 s.
    pub max_backoff: Option<Duration>,
    /// Clients may not change anything.
    pub read_only: bool,
    /// The Differentiated Services Code Point of what is sent over TCP; by default 48.
    pub dscp: Option<u8>,
    /// The role of the clients, a row of `RBAC_Role`; "" for none.
    pub role: Str,
}

/// What has become of a remote, as a `status` column shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteStatus {
    /// Whether a client is connected.
    pub is_connected: bool,
    /// `ACTIVE`, `CONNECTING` or `BACKOFF`; none where it listens.
    pub state: Option<&'static str>,
    /// Seconds since it was last connected; a remote that listens says 0.
    pub sec_since_connect: Option<u64>,
    /// Seconds since a client last disconnected.
    pub sec_since_disconnect: Option<u64>,
    /// The number of connected clients.
    pub connections: usize,
    /// The port on which it listens.
    pub bound_port: Option<u16>,
    /// The locks that a client holds and waits for.
    pub locks: locks::Held,
}

#[derive(Debug, Default)]
struct Progress {
    state: Option<&'static str>,
    connected: Option<Instant>,
    disconnected: Option<Instant>,
}

/// What a remote shares with its connections.
#[derive(Debug)]
pub(crate) struct Shared {
    pub name: String,
    local: bool,
    port: Option<u16>,
    options: RwLock<RemoteOptions>,
    progress: Mutex<Progress>,
}

impl Shared {
    /// What connections within the process share.
    pub(crate) fn internal() -> Arc<Shared> {
        let name = "internal".to_string();
        Arc::new(Shared { name, local: true, port: None, options: RwLock::default(), progress: Mutex::default() })
    }

    pub(crate) fn options(&self) -> RemoteOptions {
        self.options.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The silence after which a client is asked for a sign of life.
    pub(crate) fn probe(&self) -> Option<Duration> {
        let wanted = self.options.read().unwrap_or_else(PoisonError::into_inner).inactivity_probe;
        match wanted {
            None => (!self.local).then(|| Duration::from_secs(5)),
            // ovsdb-server takes nothing below one second either.
            Some(d) => (!d.is_zero()).then(|| d.max(Duration::from_secs(1))),
        }
    }

    fn longest_wait(&self) -> Duration {
        let wanted = self.options.read().unwrap_or_else(PoisonError::into_inner).max_backoff;
        wanted.unwrap_or(Duration::from_secs(8)).max(Duration::from_secs(1))
    }

    fn dscp(&self) -> u8 {
        self.options.read().unwrap_or_else(PoisonError::into_inner).dscp.unwrap_or(DEFAULT_DSCP)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open remote; dropping it closes it and its connections.
pub(crate) struct Open {
    task: AbortHandle,
    socket: Option<PathBuf>,
    shared: Arc<Shared>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(path) = &self.socket {
            // Someone else may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn remotes(server: &Inner) -> MutexGuard<'_, std::collections::BTreeMap<String, Open>> {
    server.remotes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a remote, or gives the one that is open already other options.
pub(super) async fn open(server: &Arc<Inner>, text: &str, options: RemoteOptions) -> Result<Remote, Error> {
    let mut remote = Remote::parse(text)?;
    let shared = remotes(server).get(text).map(|o| o.shared.clone());
    if let Some(shared) = shared {
        reconfigure(server, &shared, options);
        return Ok(remote);
    }
    let failed = |e: std::io::Error| Error::Constraint(format!("{text}: listen failed: {e}"));
    let (socket, listener) = match &mut remote {
        Remote::PassiveUnix(path) => {
            let listener = bind(path).map_err(failed)?;
            (Some(path.clone()), Some(Listener::Unix(listener)))
        }
        Remote::PassiveTcp(address) | Remote::PassiveTls(address) => {
            let listener = TcpListener::bind(*address).await.map_err(failed)?;
            let chosen_by_kernel = address.port() == 0;
            *address = listener.local_addr().map_err(failed)?;
            if chosen_by_kernel {
                // In the words that scripts look for.
                let target = text.split_once(':').map_or(text, |(_, rest)| rest);
                tracing::info!(target: "socket_util", "{target}: listening on port {}", address.port());
            }
            let secure = matches!(remote, Remote::PassiveTls(_));
            (None, Some(Listener::Tcp { listener, secure }))
        }
        _ => (None, None),
    };
    let port = match &remote {
        Remote::PassiveTcp(a) | Remote::PassiveTls(a) => Some(a.port()),
        _ => None,
    };
    let shared = Arc::new(Shared {
        name: text.to_string(),
        local: matches!(remote, Remote::Unix(_) | Remote::PassiveUnix(_)),
        port,
        options: RwLock::new(options),
        progress: Mutex::default(),
    });
    // Connections hold the databases only through this, so that a dropped server ends.
    let inner = Arc::downgrade(server);
    let task = match listener {
        Some(l) => tokio::spawn(accept(l, inner, shared.clone())),
        None => tokio::spawn(keep_connecting(remote.clone(), inner, shared.clone())),
    };
    remotes(server).insert(text.to_string(), Open { task: task.abort_handle(), socket, shared });
    Ok(remote)
}

fn bind(path: &mut PathBuf) -> std::io::Result<UnixListener> {
    *path = std::path::absolute(socket_file(path))?;
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir)?;
    }
    let _ = std::fs::remove_file(&*path);
    let listener = UnixListener::bind(&*path)?;
    std::fs::set_permissions(&*path, std::os::unix::fs::PermissionsExt::from_mode(0o770))?;
    Ok(listener)
}

/// Other options: clients whose rights or marks change have to come back.
fn reconfigure(server: &Inner, shared: &Shared, options: RemoteOptions) {
    let was = std::mem::replace(&mut *shared.options.write().unwrap_or_else(PoisonError::into_inner), options.clone());
    if (was.read_only, &was.role, was.dscp) != (options.read_only, &options.role, options.dscp) {
        for s in server.sessions().values().filter(|s| s.remote.name == shared.name) {
            s.out.close();
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp { listener: TcpListener, secure: bool },
}

enum Accepted {
    Unix(BoxStream),
    Tcp(TcpStream, String, bool),
}

impl Listener {
    async fn accept(&self, shared: &Shared) -> std::io::Result<Accepted> {
        Ok(match self {
            Listener::Unix(l) => Accepted::Unix(Box::new(LazyWritable::new(l.accept().await?.0.into_std()?)?)),
            Listener::Tcp { listener, secure } => {
                let (s, peer) = listener.accept().await?;
                // A socket that cannot be tuned works as well.
                let _ = s.set_nodelay(true);
                mark(&s, shared.dscp());
                Accepted::Tcp(s, peer.to_string(), *secure)
            }
        })
    }
}

async fn accept(listener: Listener, inner: std::sync::Weak<Inner>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = listener.accept(&shared).await;
        while connections.try_join_next().is_some() {}
        let Some(server) = inner.upgrade() else { return };
        match accepted {
            Ok(_) if connections.len() >= MOST_CONNECTIONS => {
                tracing::warn!(target: "ovsdb_jsonrpc_server", "{}: too many connections", shared.name);
            }
            Ok(a) => {
                let shared = shared.clone();
                connections.spawn(greet(server, a, shared));
            }
            Err(e) => {
                tracing::warn!(target: "ovsdb_jsonrpc_server", "accept failed: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn greet(server: Arc<Inner>, accepted: Accepted, remote: Arc<Shared>) {
    match accepted {
        Accepted::Unix(s) => {
            session::serve(server, s, Peer { name: PeerName::UnixClient, client: Str::default(), remote }).await
        }
        Accepted::Tcp(s, name, false) => {
            let stream = match s.into_std().and_then(LazyWritable::new) {
                Ok(stream) => stream,
                Err(e) => return tracing::warn!(target: "ovsdb_jsonrpc_server", "tcp:{name}: {e}"),
            };
            session::serve(
                server,
                Box::new(stream),
                Peer { name: PeerName::Address(format!("tcp:{name}")), client: Str::default(), remote },
            )
            .await;
        }
        Accepted::Tcp(s, name, true) => {
            let name = format!("ssl:{name}");
            let tls = server.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
            let stream = match tls {
                Some(tls) => tokio::time::timeout(HANDSHAKE, tls.accept(s))
                    .await
                    .unwrap_or_else(|_| Err(std::io::Error::other("no handshake within 10 s"))),
                None => Err(std::io::Error::other("--private-key, --certificate and --ca-cert are not configured")),
            };
            match stream {
                Ok((stream, client)) => {
                    session::serve(server, stream, Peer { name: PeerName::Address(name), client, remote }).await
                }
                Err(e) => tracing::warn!(target: "stream_ssl", "{name}: {e}"),
            }
        }
    }
}

async fn keep_connecting(remote: Remote, inner: std::sync::Weak<Inner>, shared: Arc<Shared>) {
    let (mut wait, mut failures) = (Duration::from_secs(1), Failures::default());
    loop {
        let Some(server) = inner.upgrade() else { return };
        let tls = server.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
        shared.progress().state = Some("CONNECTING");
        let connected = tokio::time::timeout(HANDSHAKE, dial(&remote, tls.as_ref(), shared.dscp())).await;
        match connected.unwrap_or_else(|_| Err(std::io::Error::other("timed out"))) {
            Ok((stream, client)) => {
                (wait, failures) = (Duration::from_secs(1), Failures::default());
                {
                    let mut p = shared.progress();
                    (p.state, p.connected) = (Some("ACTIVE"), Some(Instant::now()));
                }
                let peer = Peer { name: PeerName::Address(remote.to_string()), client, remote: shared.clone() };
                session::serve(server, stream, peer).await;
                shared.progress().disconnected = Some(Instant::now());
            }
            Err(e) => {
                drop(server);
                failures.failed(&remote.to_string(), e, wait >= shared.longest_wait());
            }
        }
        shared.progress().state = Some("BACKOFF");
        let longest = shared.longest_wait();
        tokio::time::sleep(wait.min(longest)).await;
        wait = (wait * 2).min(longest);
    }
}

/// The status of a remote.
pub(super) fn status(server: &Inner, text: &str) -> Option<RemoteStatus> {
    let shared = remotes(server).get(text).map(|o| o.shared.clone())?;
    let ids: Vec<u64> = server.sessions().values().filter(|s| s.remote.name == text).map(|s| s.id).collect();
    let locks = ids.first().map(|id| server.locks().held(*id)).unwrap_or_default();
    let p = shared.progress();
    let passive = shared.port.is_some() || p.state.is_none();
    let seconds = |at: Option<Instant>| if passive { Some(0) } else { at.map(|i| i.elapsed().as_secs()) };
    let is_connected = !ids.is_empty();
    Some(RemoteStatus {
        is_connected,
        state: p.state,
        sec_since_connect: seconds(p.connected),
        sec_since_disconnect: seconds(p.disconnected),
        connections: ids.len(),
        bound_port: shared.port,
        locks,
    })
}

pub(super) fn close(server: &Arc<Inner>, text: &str) -> Result<(), Error> {
    remotes(server).remove(text).map(drop).ok_or_else(|| Error::Unknown { kind: "remote", name: text.to_string() })
}
