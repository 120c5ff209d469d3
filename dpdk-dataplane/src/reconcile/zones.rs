//! Gives connection tracking its limits and timeouts.

use super::Reconciler;
use crate::config::zones::zones;
use crate::pmd::Jobs;

impl Reconciler {
    /// Applies limits and timeouts of zones, where they have changed.
    pub(super) fn apply_zones(&mut self) {
        let new = zones(&self.db.rows);
        if new == self.zones {
            return;
        }
        let old = std::mem::replace(&mut self.zones, new.clone());
        self.pmd.post(move |w| {
            w.switch.set_timeouts(new.timeouts);
            w.zones_of_database = new.limited;
            let mut ct = w.switch.conntrack.lock();
            for z in old.limits.keys().filter(|z| !new.limits.contains_key(z)) {
                ct.delete_limit(*z);
            }
            for (z, l) in new.limits {
                ct.set_limit(Some(z), l);
            }
            if old.default_limit != new.default_limit {
                ct.set_limit(None, new.default_limit);
            }
        });
    }
}
