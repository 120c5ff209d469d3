//! Packets in DPDK's memory, as the switch takes them.

use dpdk_rs::{Mbuf, Memory};
use std::sync::OnceLock;
use switch::PacketBuf;

/// The process's packet memory. A process has one DPDK environment, so it has one memory.
static MEMORY: OnceLock<Memory> = OnceLock::new();

/// Sets the process's packet memory, once.
///
/// # Errors
/// There is one already: the new one comes back.
pub fn set_memory(memory: Memory) -> Result<(), Memory> {
    MEMORY.set(memory)
}

/// The process's packet memory, once set.
pub fn memory() -> Option<&'static Memory> {
    MEMORY.get()
}

/// A packet.
#[derive(Debug)]
pub struct Frame(pub Mbuf);

impl PacketBuf for Frame {
    fn data(&self) -> &[u8] {
        self.0.data()
    }

    fn data_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }

    #[inline(always)]
    fn grow_front(&mut self, n: usize) -> bool {
        self.0.forget_checksums();
        self.0.grow_front(n)
    }

    fn shrink_front(&mut self, n: usize) {
        self.0.settle();
        self.0.forget_checksums();
        self.0.take_front(n.min(self.0.len()));
    }

    fn truncate(&mut self, n: usize) {
        self.0.settle();
        self.0.take_back(self.0.len().saturating_sub(n));
    }

    fn duplicate(&self) -> Option<Frame> {
        memory()?.copy(&self.0).map(Frame)
    }

    fn with_bytes(&self, bytes: &[u8]) -> Option<Frame> {
        memory()?.packet(bytes).map(Frame)
    }

    #[inline(always)]
    fn leave_checksum(&mut self, udp: usize, rest: usize) -> bool {
        self.0.leave_checksum(udp, rest)
    }

    #[inline(always)]
    fn settle_checksum(&mut self) {
        self.0.settle();
    }

    fn checksum_good(&self) -> bool {
        self.0.checksum_good()
    }

    #[inline(always)]
    fn prefetch<T>(place: &T) {
        dpdk_rs::prefetch(place);
    }
}
