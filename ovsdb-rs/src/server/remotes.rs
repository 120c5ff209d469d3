//! The remotes of a server: listeners, and connections that the server opens itself.

use super::{Inner, Server, session};
use crate::Error;
use crate::stream::{Remote, connect};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{AbortHandle, JoinSet};

/// An open remote; dropping it closes it and its connections.
pub(crate) struct Open {
    task: AbortHandle,
    socket: Option<PathBuf>,
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

pub(super) async fn open(server: &Arc<Inner>, text: &str) -> Result<Remote, Error> {
    let remotes = || server.remotes.lock().unwrap_or_else(PoisonError::into_inner);
    let mut remote = Remote::parse(text)?;
    if remotes().contains_key(text) {
        return Ok(remote);
    }
    let failed = |e: std::io::Error| Error::Constraint(format!("{text}: listen failed: {e}"));
    // Connections hold the databases only through this, so that a dropped server ends.
    let inner = Arc::downgrade(server);
    let mut socket = None;
    let task = match &mut remote {
        Remote::PassiveUnix(path) => {
            if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
                std::fs::create_dir_all(dir).map_err(failed)?;
            }
            let _ = std::fs::remove_file(&*path);
            let listener = UnixListener::bind(&*path).map_err(failed)?;
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o770);
            std::fs::set_permissions(&*path, mode).map_err(failed)?;
            *path = std::path::absolute(&*path).map_err(failed)?;
            socket = Some(path.clone());
            tokio::spawn(async move {
                let mut connections = JoinSet::new();
                loop {
                    let accepted = listener.accept().await;
                    while connections.try_join_next().is_some() {}
                    let Some(server) = inner.upgrade() else { return };
                    match accepted {
                        Ok((s, _)) => {
                            connections.spawn(session::serve(server, Box::new(s), "unix".into(), None));
                        }
                        Err(e) => pause(&e).await,
                    }
                }
            })
        }
        Remote::PassiveTcp(address) | Remote::PassiveTls(address) => {
            let listener = TcpListener::bind(*address).await.map_err(failed)?;
            *address = listener.local_addr().map_err(failed)?;
            let secure = matches!(remote, Remote::PassiveTls(_));
            let probe = Server::probe(&remote);
            tokio::spawn(async move {
                let mut connections = JoinSet::new();
                loop {
                    let accepted = listener.accept().await;
                    while connections.try_join_next().is_some() {}
                    let Some(server) = inner.upgrade() else { return };
                    match accepted {
                        Ok((s, peer)) => {
                            connections.spawn(async move {
                                let peer = peer.to_string();
                                // A socket that cannot be tuned works as well.
                                let _ = s.set_nodelay(true);
                                if !secure {
                                    return session::serve(server, Box::new(s), peer, probe).await;
                                }
                                let tls = server.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
                                let stream = match tls {
                                    Some(tls) => tls.accept(s).await,
                                    None => Err(std::io::Error::other("TLS is not configured")),
                                };
                                match stream {
                                    Ok(stream) => session::serve(server, stream, peer, probe).await,
                                    Err(e) => tracing::warn!(target: "stream_ssl", "{peer}: {e}"),
                                }
                            });
                        }
                        Err(e) => pause(&e).await,
                    }
                }
            })
        }
        active => {
            let active = active.clone();
            tokio::spawn(async move {
                let mut wait = Duration::from_secs(1);
                loop {
                    let Some(server) = inner.upgrade() else { return };
                    let tls = server.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
                    match connect(&active, tls.as_ref()).await {
                        Ok(stream) => {
                            wait = Duration::from_secs(1);
                            session::serve(server, stream, active.to_string(), Server::probe(&active)).await;
                        }
                        Err(e) => tracing::info!(target: "reconnect", "{active}: connection attempt failed ({e})"),
                    }
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(8));
                }
            })
        }
    };
    remotes().insert(text.to_string(), Open { task: task.abort_handle(), socket });
    Ok(remote)
}

async fn pause(e: &std::io::Error) {
    tracing::warn!(target: "ovsdb_jsonrpc_server", "accept failed: {e}");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

pub(super) fn close(server: &Arc<Inner>, text: &str) -> Result<(), Error> {
    let removed = server.remotes.lock().unwrap_or_else(PoisonError::into_inner).remove(text);
    removed.map(drop).ok_or_else(|| Error::Unknown { kind: "remote", name: text.to_string() })
}
