//! An inventory in a file, for tests and for looking at a machine's cards elsewhere.

use crate::{Event, Follow, Inventory, Snapshot};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often the file is looked at.
const PAUSE: Duration = Duration::from_millis(200);

/// Reads a file of a [`Snapshot`] in JSON.
///
/// # Errors
/// Where it cannot be read, or is none.
pub fn read(file: &Path) -> std::io::Result<Snapshot> {
    let text = std::fs::read(file)?;
    serde_json::from_slice(&text).map_err(|e| std::io::Error::new(std::io::ErrorKind::InvalidData, e))
}

/// Follows a file. While it cannot be read, what it said stays.
pub fn follow(file: PathBuf) -> Follow {
    let (tx, rx) = watch::channel(Arc::default());
    tokio::spawn(async move {
        let (mut inventory, mut said) = (Inventory::default(), String::new());
        loop {
            match read(&file) {
                Ok(s) => {
                    said.clear();
                    if inventory.apply(Event::Dump(s)) && tx.send(Arc::new(inventory.clone())).is_err() {
                        return;
                    }
                }
                Err(e) => {
                    let text = format!("{}: {e}", file.display());
                    if text != said {
                        tracing::warn!(target: "vif_plug", "{text}");
                        said = text;
                    }
                }
            }
            if tx.is_closed() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    rx
}
