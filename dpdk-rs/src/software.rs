//! Devices that are part of this process: other code makes the frames that their ports receive, and takes those that
//! they send.

use crate::{Mbuf, Memory, port::BURST};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device of this process. Its methods run in the threads that switch packets, so they must not wait for long.
pub trait Software: Debug + Send + Sync {
    /// There may be a frame to receive.
    fn ready(&self) -> bool;
    /// The next frame to receive.
    fn receive(&self) -> Option<Vec<u8>>;
    /// Takes a frame that was sent.
    fn send(&self, frame: &[u8]);
    /// The link is up.
    fn up(&self) -> bool;
}

/// Such a device behind a port.
#[derive(Debug)]
pub(crate) struct SoftwareDevice {
    device: Arc<dyn Software>,
    memory: Memory,
    /// Packets and bytes received and sent, and received ones for which there was no memory.
    pub(crate) counters: [AtomicU64; 5],
}

impl SoftwareDevice {
    pub(crate) fn new(memory: &Memory, device: Arc<dyn Software>) -> SoftwareDevice {
        SoftwareDevice { device, memory: memory.clone(), counters: Default::default() }
    }

    pub(crate) fn ready(&self) -> bool {
        self.device.ready()
    }

    pub(crate) fn up(&self) -> bool {
        self.device.up()
    }

    /// Receives up to [`BURST`] packets. Gives how many were lost, as there was no memory for their length.
    pub(crate) fn receive(&self, mut each: impl FnMut(Mbuf)) -> usize {
        let [packets, bytes, .., no_memory] = &self.counters;
        let mut lost = 0;
        for _ in 0..BURST {
            if !self.device.ready() {
                break;
            }
            let Some(frame) = self.device.receive() else { break };
            match self.memory.packet(&frame) {
                Some(m) => {
                    packets.fetch_add(1, Ordering::Relaxed);
                    bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
                    each(m);
                }
                None => lost += 1,
            }
        }
        no_memory.fetch_add(lost as u64, Ordering::Relaxed);
        lost
    }

    pub(crate) fn send(&self, m: &Mbuf) {
        let [_, _, packets, bytes, _] = &self.counters;
        packets.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(m.len() as u64, Ordering::Relaxed);
        self.device.send(m.data());
    }
}
