//! The wire between two dummies, of one switch or of two: a stream on which each frame follows its length, 16 bits,
//! most significant byte first. One end listens, the other connects, and does so again when the connection ends.

use super::Dummy;
use ovsdb_rs::stream::{BoxStream, Remote, connect, socket_file};
use std::io::{Error, Result};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

/// Frames that wait for a connection to take them; more are dropped.
const WAITING: usize = 1000;
/// The least and the longest time until a connection is tried again.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// An Ethernet header.
const SHORTEST: u16 = 14;

/// An end of a wire. Dropping it closes its connections.
#[derive(Debug)]
pub(super) struct Wire {
    task: JoinHandle<()>,
    /// It connects; else it listens.
    pub(super) active: bool,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    async fn accept(&self) -> Result<BoxStream> {
        match self {
            Listener::Unix(l) => Ok(Box::new(l.accept().await?.0)),
            Listener::Tcp(l) => Ok(Box::new(l.accept().await?.0)),
        }
    }
}

impl Wire {
    /// Lays a wire from a dummy to `method`; to be called in a task.
    ///
    /// # Errors
    /// The method is none, or cannot be listened on.
    pub(super) fn lay(dummy: &Arc<Dummy>, method: &str) -> Result<Wire> {
        let remote = Remote::parse(method).map_err(|e| Error::other(e.to_string()))?;
        let (dummy, active) = (Arc::downgrade(dummy), !remote.is_passive());
        if active {
            return Ok(Wire { task: tokio::spawn(keep_connected(dummy, remote)), active });
        }
        let listener = match remote {
            Remote::PassiveUnix(path) => {
                // The file of a daemon that has died is replaced.
                let path = socket_file(&path);
                let _ = std::fs::remove_file(&path);
                Listener::Unix(UnixListener::bind(path)?)
            }
            Remote::PassiveTcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Listener::Tcp(TcpListener::from_std(listener)?)
            }
            other => return Err(Error::other(format!("{other}: a dummy listens on punix: or ptcp: only"))),
        };
        Ok(Wire { task: tokio::spawn(accept(dummy, listener)), active })
    }
}

async fn accept(dummy: Weak<Dummy>, listener: Listener) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => drop(open.spawn(carry(dummy.clone(), stream))),
                Err(e) => {
                    tracing::warn!(target: "netdev_dummy", "accept: {e}");
                    tokio::time::sleep(BACKOFF[0]).await;
                }
            },
            Some(_) = open.join_next() => {}
        }
    }
}

async fn keep_connected(dummy: Weak<Dummy>, remote: Remote) {
    let [mut wait, longest] = BACKOFF;
    loop {
        if let Ok(stream) = connect(&remote, None).await {
            wait = BACKOFF[0];
            let ended = carry(dummy.clone(), stream).await;
            tracing::debug!(target: "netdev_dummy", "{remote}: the connection ended: {:?}", ended.err());
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(longest);
    }
}

/// Carries frames in both directions until the connection ends.
async fn carry(dummy: Weak<Dummy>, stream: BoxStream) -> Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (queue, mut frames) = mpsc::channel::<Vec<u8>>(WAITING);
    let Some(d) = dummy.upgrade() else { return Ok(()) };
    d.connected(queue);
    drop(d);
    let receive = async {
        loop {
            let length = reader.read_u16().await?;
            if length < SHORTEST {
                return Err(Error::other(format!("a frame of {length} bytes")));
            }
            let mut frame = vec![0; usize::from(length)];
            reader.read_exact(&mut frame).await?;
            let Some(d) = dummy.upgrade() else { return Ok(()) };
            d.inject(frame);
        }
    };
    let send = async {
        while let Some(frame) = frames.recv().await {
            // Longer ones cannot be told of; devices have no such MTU.
            let Ok(length) = u16::try_from(frame.len()) else { continue };
            writer.write_all(&[&length.to_be_bytes(), &*frame].concat()).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = receive => ended,
        ended = send => ended,
    }
}
