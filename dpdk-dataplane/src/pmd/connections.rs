//! Tracked connections as operators and controllers ask for them: taken and removed a few at a time, as packets wait
//! meanwhile.

use super::handle::{Handle, Jobs, PmdEnded};
use switch::conntrack::{Connection, Flush, Zone};

/// Slots of the table that are looked through in one job, for connections to show: some 0.2 ms if all have one.
const SHOWN: usize = 2048;
/// The same, for connections to remove: some 0.3 ms.
const FLUSHED: usize = 1024;

impl Handle {
    /// Gives each connection, of one zone or of all, to `each`. What comes or goes meanwhile may be left out.
    ///
    /// # Errors
    /// The main thread has ended.
    pub async fn connections(&self, zone: Option<Zone>, mut each: impl FnMut(Connection)) -> Result<(), PmdEnded> {
        let mut next = Some(0);
        while let Some(from) = next {
            let part = self.read_with((from, zone), |w, (from, zone)| {
                w.switch.conntrack.lock().shown_part((from, SHOWN), zone, w.now())
            });
            let (list, then) = part.await?;
            list.into_iter().for_each(&mut each);
            next = then;
        }
        Ok(())
    }

    /// Removes connections; returns how many. Those that are made meanwhile may stay.
    ///
    /// # Errors
    /// The main thread has ended.
    pub async fn flush(&self, what: Flush) -> Result<usize, PmdEnded> {
        let (mut all, mut next) = (0, Some(0));
        while let Some(from) = next {
            let what = what.clone();
            let part = self.run(move |w| w.switch.conntrack.lock().flush_part(&what, from, FLUSHED));
            let (removed, then) = part.await?;
            (all, next) = (all + removed, then);
        }
        Ok(all)
    }
}
