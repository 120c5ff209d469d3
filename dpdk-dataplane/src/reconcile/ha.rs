//! Gives the streams to other gateways their configuration.

use super::Reconciler;
use crate::config::ha::ha;
use crate::pmd::Jobs;

impl Reconciler {
    /// At the start, BFD sessions wait for the peers' connections, if there are peers ([`crate::ha`] ends that).
    pub(super) fn wait_for_peers(&self) {
        if !ha(&self.db.rows).peers.is_empty() {
            self.pmd.post(|w| {
                let now = w.now();
                w.bfd.hold(true, now);
            });
        }
    }

    /// Publishes the configuration, where it has changed.
    pub(super) fn publish_ha(&mut self) {
        let new = ha(&self.db.rows);
        self.ha.spec.send_if_modified(|old| {
            let differs = *old != new;
            *old = new;
            differs
        });
    }

    /// Writes the connections of this chassis to a file, for the next start.
    pub async fn save_connections(&self) {
        crate::ha::file::save(&self.pmd, &self.rundir, &self.db.rows).await;
    }
}
