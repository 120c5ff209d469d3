//! Watching the folder of a local switch's socket, so that waiting for the switch costs nothing (inotify(7)).

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use std::path::Path;

/// Room for what happened, in octets; what does not fit is read next.
const ROOM: usize = 1024;

/// A folder in which files come and go.
#[derive(Debug)]
pub(super) struct Folder(EventStream<[u8; ROOM]>);

impl Folder {
    /// Watches a folder from now on.
    ///
    /// # Errors
    /// Where it is not there, or the system has no watch left (`fs.inotify.max_user_instances`).
    pub(super) fn watch(path: &Path) -> std::io::Result<Folder> {
        let queue = Inotify::init()?;
        let gone = WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
        let changes = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::ATTRIB;
        queue.watches().add(path, gone | changes | WatchMask::ONLYDIR)?;
        queue.into_event_stream([0; ROOM]).map(Folder)
    }

    /// Ends when something happened there. Says whether the folder is there still. Cancel-safe.
    pub(super) async fn changed(&mut self) -> bool {
        let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
        matches!(self.0.next().await, Some(Ok(event)) if !event.mask.intersects(gone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn what_comes_is_told_and_what_was_there_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        assert!(Folder::watch(&path).is_err(), "it is not there yet");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("before"), "").unwrap();
        let mut folder = Folder::watch(&path).unwrap();
        assert!(timeout(Duration::from_millis(100), folder.changed()).await.is_err(), "nothing happens");
        std::fs::create_dir(path.join("after")).unwrap();
        assert_eq!(timeout(Duration::from_secs(10), folder.changed()).await, Ok(true));
        assert!(timeout(Duration::from_millis(100), folder.changed()).await.is_err(), "it was told once");
        std::fs::remove_dir_all(&path).unwrap();
        let end = async { while folder.changed().await {} };
        timeout(Duration::from_secs(10), end).await.expect("the folder is gone");
    }
}
