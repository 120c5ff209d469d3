//! A gateway that says by BFD that it is alive before it has its peers' connections would break them: claims follow BFD.
//! So after a start its sessions stay down until each peer's dump has been taken. A peer that cannot be reached is not
//! waited for.

use super::status::Status;
use crate::config::ha::HaSpec;
use crate::pmd::Handle;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long a peer may take to open its stream.
const CONTACT: Duration = Duration::from_secs(2);
/// How long all of it may take.
const MOST: Duration = Duration::from_secs(60);

/// Lets BFD sessions come up when all is there.
pub(super) async fn run(pmd: Handle, status: Arc<Status>, spec: watch::Receiver<HaSpec>) {
    let start = Instant::now();
    loop {
        let changed = status.changed.notified();
        let peers: Vec<String> = spec.borrow().peers.keys().cloned().collect();
        let late = start.elapsed() >= CONTACT;
        let waits = |name: &String| {
            let p = status.get(name);
            p.dumps == 0 && (p.heard || !late)
        };
        if !peers.iter().any(waits) {
            break;
        }
        if start.elapsed() >= MOST {
            let missing: Vec<String> = peers.into_iter().filter(waits).collect();
            tracing::warn!(target: "ha", "no dump of {} in {MOST:?}; going on without", missing.join(", "));
            break;
        }
        let next = start + if late { MOST } else { CONTACT };
        tokio::select! {
            () = changed => {}
            () = sleep_until(next) => {}
        }
    }
    pmd.connections_ready();
}
