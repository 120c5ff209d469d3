//! Attempts to connect to a bridge, for one of the controller's connections.
//!
//! The pauses between them double, as rconn's do. The folder of a local switch's socket is watched meanwhile: a socket that is
//! made anew belongs to a switch that has just started, and is tried at once.

use super::folder::Folder;
use super::{Halves, Target, connect};
use ovsdb_rs::stream::{Remote, socket_file};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between attempts at a socket that was made anew.
const AGAIN: Duration = Duration::from_millis(50);
/// Between looks at the socket of a local switch whatever its folder tells: the folder may come later than the controller, or
/// be one that the kernel does not watch.
const LOOK: Duration = Duration::from_secs(1);
/// For so long a socket counts as made anew: its switch may not listen yet.
const NEW: Duration = Duration::from_secs(1);
/// The first pause, which is also the longest before a switch on another machine: nothing tells when that is back.
const FIRST: Duration = Duration::from_secs(1);
/// The longest before a local switch.
const LONGEST: Duration = Duration::from_secs(8);

/// A socket by device, number and time of its last change: another one has others.
type Socket = (u64, u64, i64, i64);

fn socket(path: &Path) -> Option<Socket> {
    let m = std::fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.ctime(), m.ctime_nsec()))
}

/// Attempts to connect, and when the next one is due.
pub(crate) struct Attempts {
    target: Target,
    /// Whether this connection speaks for the others, which fail with it, of attempts that fail.
    speaks: bool,
    due: Instant,
    /// The pause before that.
    pause: Option<Duration>,
    /// Since when there is a connection.
    since: Option<Instant>,
    /// The socket of the last look, and since when it is there.
    socket: Option<Socket>,
    appeared: Option<Instant>,
    /// Its folder, while it is waited for.
    folder: Option<Folder>,
    /// What was said of the last failure.
    complaint: String,
    silent: bool,
}

impl Attempts {
    /// For the connection of this name, whose failures are told where `speaks`.
    pub(crate) fn new(name: &str, target: Target, speaks: bool) -> Attempts {
        tracing::info!(target: "rconn", "{name}: connecting to switch: \"{}\"", target.remote);
        Attempts {
            target,
            speaks,
            due: Instant::now(),
            pause: None,
            since: None,
            socket: None,
            appeared: None,
            folder: None,
            complaint: String::new(),
            silent: false,
        }
    }

    /// Where the bridge is managed.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    fn path(&self) -> Option<PathBuf> {
        match &self.target.remote {
            Remote::Unix(path) => Some(socket_file(path)),
            _ => None,
        }
    }

    /// Ends when the next attempt is due. Cancel-safe.
    pub(crate) async fn due(&mut self) {
        while let Some(wait) = self.due.checked_duration_since(Instant::now()).filter(|w| !w.is_zero()) {
            let Some(path) = self.path() else {
                tokio::time::sleep(wait).await;
                continue;
            };
            // What comes between this look and the wait is told of.
            if self.folder.is_none() {
                self.folder = path.parent().and_then(|f| Folder::watch(f).ok());
            }
            if self.is_new(Instant::now()) {
                return tokio::time::sleep(wait.min(AGAIN)).await;
            }
            let there = async {
                match &mut self.folder {
                    Some(f) => f.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                there = there => if !there { self.folder = None },
                () = tokio::time::sleep(wait.min(LOOK)) => {}
            }
        }
    }

    /// Whether the socket was made anew just now.
    fn is_new(&mut self, now: Instant) -> bool {
        let there = self.path().as_deref().and_then(socket);
        if there != self.socket {
            self.appeared = there.is_some().then_some(now);
            self.socket = there;
        }
        self.appeared.is_some_and(|a| now.saturating_duration_since(a) < NEW)
    }

    /// Tries to connect.
    pub(crate) async fn connect(&mut self) -> Option<Halves> {
        // What it finds is the socket of before or a later one, which the next look then takes for a new one.
        let now = Instant::now();
        self.is_new(now);
        match connect(&self.target).await {
            Ok(halves) => {
                self.since = Some(Instant::now());
                (self.silent, self.appeared, self.folder) = (false, None, None);
                self.complaint.clear();
                Some(halves)
            }
            Err(e) => {
                let text = e.to_string();
                if self.speaks && self.complaint != text {
                    tracing::info!(target: "rconn", "{}: connection failed ({text})", self.target.remote);
                    self.complaint = text;
                }
                self.wait(now);
                None
            }
        }
    }

    /// The connection is lost.
    pub(crate) fn lost(&mut self) {
        let now = Instant::now();
        // One that held was good: the switch is tried once more before it is taken for gone.
        if self.since.take().is_some_and(|s| now.saturating_duration_since(s) >= FIRST) {
            (self.pause, self.due) = (None, now + AGAIN);
        } else {
            self.wait(now);
        }
    }

    fn wait(&mut self, now: Instant) {
        // While a switch starts, its socket refuses for a moment.
        if self.due <= now || self.pause.is_none() {
            let longest = if self.path().is_some() { LONGEST } else { FIRST };
            let pause = self.pause.map_or(FIRST, |p| (p * 2).min(longest));
            self.tell(pause, longest);
            self.pause = Some(pause);
            self.due = now + pause;
        }
    }

    fn tell(&mut self, pause: Duration, longest: Duration) {
        if !self.speaks || self.silent {
            return;
        }
        let remote = &self.target.remote;
        let socket = if self.path().is_some() { ", or as soon as its socket is made anew" } else { "" };
        if pause < longest {
            tracing::info!(target: "rconn", "{remote}: waiting {} seconds before reconnect{socket}", pause.as_secs());
        } else {
            let pause = pause.as_secs();
            tracing::info!(
                target: "rconn",
                "{remote}: continuing to retry connections in the background every {pause} seconds{socket} but suppressing further logging"
            );
            self.silent = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::connection::{OUR_VERSIONS, negotiate};
    use std::os::unix::net::UnixListener;
    use tokio::time::timeout;

    fn attempts(path: &Path) -> Attempts {
        Attempts::new("test", Target { remote: Remote::Unix(path.into()), tls: None, probe: None }, true)
    }

    #[tokio::test]
    async fn pauses_double_up_to_eight_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let mut a = attempts(&dir.path().join("br-int.mgmt"));
        let mut pauses = Vec::new();
        for _ in 0..5 {
            assert!(a.connect().await.is_none());
            pauses.push(a.pause.unwrap().as_secs());
            // As if it had passed.
            a.due = Instant::now();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 8]);
    }

    #[tokio::test]
    async fn another_machine_is_tried_each_second() {
        let remote = Remote::parse("tcp:127.0.0.1:1").unwrap();
        let mut a = Attempts::new("test", Target { remote, tls: None, probe: None }, true);
        for _ in 0..3 {
            assert!(a.connect().await.is_none());
            assert_eq!(a.pause, Some(FIRST));
            a.due = Instant::now();
        }
    }

    #[tokio::test]
    async fn a_socket_that_is_made_anew_ends_the_pause() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("br-int.mgmt");
        // What a switch that crashed left behind.
        drop(UnixListener::bind(&path).unwrap());
        let mut a = attempts(&path);
        for _ in 0..4 {
            assert!(a.connect().await.is_none());
            (a.due, a.appeared) = (Instant::now(), None);
        }
        assert!(a.connect().await.is_none());
        a.appeared = None;
        assert!(timeout(Duration::from_millis(500), a.due()).await.is_err(), "the old socket says nothing");
        std::fs::remove_file(&path).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        timeout(Duration::from_millis(500), a.due()).await.expect("a switch has started");
        // It may not listen yet.
        assert!(timeout(Duration::from_millis(500), a.due()).await.is_ok());
    }

    #[tokio::test]
    async fn a_folder_may_come_later_than_the_controller() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/br-int.mgmt");
        let mut a = attempts(&path);
        assert!(a.connect().await.is_none());
        (a.pause, a.due) = (Some(LONGEST), Instant::now() + LONGEST);
        assert!(timeout(Duration::from_millis(100), a.due()).await.is_err(), "there is nothing to try");
        std::fs::create_dir(dir.path().join("run")).unwrap();
        let switch = tokio::net::UnixListener::bind(&path).unwrap();
        let before = Instant::now();
        a.due().await;
        assert!(before.elapsed() < LONGEST / 2, "it is not waited out");
        let answer = tokio::spawn(async move { negotiate(switch.accept().await.unwrap().0, OUR_VERSIONS).await });
        assert!(a.connect().await.is_some());
        assert!(answer.await.unwrap().is_ok());
        assert!(a.folder.is_none(), "a connection needs no watch");
    }

    #[tokio::test]
    async fn what_else_comes_into_the_folder_is_no_switch() {
        let dir = tempfile::tempdir().unwrap();
        let mut a = attempts(&dir.path().join("br-int.mgmt"));
        assert!(a.connect().await.is_none());
        a.due = Instant::now() + LONGEST;
        std::fs::write(dir.path().join("other.pid"), "1").unwrap();
        assert!(timeout(Duration::from_millis(300), a.due()).await.is_err());
    }
}
