//! OpenFlow connections (OpenFlow 1.0 to 1.5).
//!
//! | file | holds |
//! |---|---|
//! | here | a bridge's sockets: management, and `ovs-ofctl snoop` |
//! | `controllers` | connections to the controllers that `Controller` rows name |
//! | `session` | one connection: messages, bundles, its role |
//! | `connections` | all connections: who wants to be told what |
//! | `changes`, `reply`, `monitors` | changes of tables, statistics, flow monitors; they run in the main PMD thread |
//! | `requests` | what connections ask of the main PMD thread |
//! | `packet_in_queue` | the rate of a controller's packet-ins |

mod changes;
mod connections;
mod controllers;
mod monitors;
mod packet_in_queue;
mod reply;
mod requests;
mod session;

pub use connections::Connections;
pub use controllers::{ControllerStatus, Controllers, session};
pub use session::Session;

use nix::sys::socket::sockopt::SndBuf;
use openflow_rs::connection::{ConnectionError, negotiate};
use std::future::Future;
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// Bytes that a peer has not read which the kernel holds at a management socket (it takes twice as many). A packet-in waits
/// behind all of them, so the usual 200 kB are too many.
const IN_FLIGHT: usize = 1 << 13;

/// An open socket. Dropping this closes it, and its connections.
pub struct Socket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
        // The file may be gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Socket {
    /// Opens a bridge's management socket; the file of a daemon that has died is replaced.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn management(path: &Path, session: Session) -> std::io::Result<Socket> {
        Socket::open(path, move |stream| {
            let session = session.clone();
            async move {
                if let Err(e) = session::serve(stream, session, None, |_| {}).await {
                    tracing::info!(target: "rconn", "{e}");
                }
            }
        })
    }

    /// Opens the socket of `ovs-ofctl snoop`, which shows the messages of all connections of a bridge.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn snoop(path: &Path, session: Session) -> std::io::Result<Socket> {
        Socket::open(path, move |stream| {
            let session = session.clone();
            async move {
                match show(stream, session).await {
                    Ok(()) | Err(ConnectionError::Closed) => {}
                    Err(e) => tracing::info!(target: "rconn", "snoop: {e}"),
                }
            }
        })
    }

    fn open<F: Future<Output = ()> + Send + 'static>(
        path: &Path,
        serve: impl Fn(UnixStream) -> F + Send + 'static,
    ) -> std::io::Result<Socket> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            // With the size of before a packet-in waits longer; nothing else is wrong.
                            let _ = nix::sys::socket::setsockopt(&stream, SndBuf, &IN_FLIGHT);
                            drop(open.spawn(serve(stream)));
                        }
                        Err(e) => {
                            tracing::warn!(target: "rconn", "accept: {e}");
                            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                        }
                    },
                    Some(_) = open.join_next() => {}
                }
            }
        });
        Ok(Socket { path: path.to_path_buf(), task })
    }
}

async fn show(stream: UnixStream, session: Session) -> Result<(), ConnectionError> {
    let (mut sender, mut receiver) = negotiate(stream, session.versions).await?;
    let mut messages = session.all.snoop(session.bridge);
    loop {
        tokio::select! {
            Some(m) = messages.recv() => sender.raw(&m).await?,
            r = receiver.recv() => drop(r?),
        }
    }
}
