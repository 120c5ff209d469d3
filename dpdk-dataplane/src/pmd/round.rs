//! A round of a PMD thread: all its receive queues in turn, and again while whole bursts come.

use crate::ports::frame::Frame;
use dpdk_rs::BURST;
use switch::DeviceId;

/// After so many packets, or the turn of all queues that passes them, a thread sees to its other work: jobs, timers, what
/// other threads say. It is spread over them, as it costs what a burst of packets does.
const PACKETS: usize = 8 * BURST;
/// After so many walks through the tables it does so as well: a walk takes as long as some fifty packets with cached
/// flows, and BFD's packets have to leave in time.
pub(super) const WALKS: u64 = BURST as u64;

/// Packets of a round, with the device of each.
pub(super) type Batch = Vec<(DeviceId, Frame)>;

/// What a PMD thread does in a round.
pub(super) trait Round {
    /// How many devices there may be.
    fn devices(&self) -> usize;

    /// Receives from one of the queues that this thread polls of a device, by its place among these; false if there is
    /// none at this place.
    fn receive(&mut self, at: (usize, usize), batch: &mut Batch) -> bool;

    /// Forwards what was received, and sends it.
    fn forward(&mut self, batch: &mut Batch);

    /// How many packets have walked through the tables, ever.
    fn walks(&self) -> u64;

    /// Receives and forwards; returns how many packets came.
    #[inline(always)]
    fn packets(&mut self, batch: &mut Batch) -> usize {
        let (mut all, walks) = (0, self.walks());
        loop {
            let before = all;
            for device in 0..self.devices() {
                for place in 0.. {
                    if !self.receive((device, place), batch) {
                        break;
                    }
                    // A full burst goes on before the next one is read: its headers, and the translations of its addresses,
                    // are in the processor's caches now.
                    if batch.len() >= BURST {
                        all += batch.len();
                        self.forward(batch);
                    }
                }
            }
            if !batch.is_empty() {
                all += batch.len();
                self.forward(batch);
            }
            if all - before < BURST || all >= PACKETS || self.walks() - walks >= WALKS {
                return all;
            }
        }
    }
}
