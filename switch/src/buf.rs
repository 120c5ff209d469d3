//! Packet buffers: the engine changes packets in place and leaves their ownership to the caller.

/// A packet that can grow and shrink at its front. Implemented by plain vectors here and by mbufs in the DPDK
/// dataplane.
pub trait PacketBuf: Sized {
    /// The bytes.
    fn data(&self) -> &[u8];
    /// The bytes.
    fn data_mut(&mut self) -> &mut [u8];
    /// Adds `n` bytes, of any value, before the first. False if there is no headroom.
    fn grow_front(&mut self, n: usize) -> bool;
    /// Removes `n` bytes from the front.
    fn shrink_front(&mut self, n: usize);
    /// Cuts to `n` bytes.
    fn truncate(&mut self, n: usize);
    /// A copy; `None` if memory is short.
    fn duplicate(&self) -> Option<Self>;
    /// A new packet from bytes (packet-outs); `None` if memory is short.
    fn with_bytes(&self, bytes: &[u8]) -> Option<Self>;
    /// Leaves a part of the frame's UDP checksum to the device or driver that sends it: the sum over its last `rest`
    /// bytes; the UDP packet is the last `udp` bytes. False if nobody will add it.
    fn leave_checksum(&mut self, _udp: usize, _rest: usize) -> bool {
        false
    }
    /// Completes a checksum that was left, as the frame is about to be encapsulated.
    fn settle_checksum(&mut self) {}
    /// Whether the device has verified the outer transport checksum.
    fn checksum_good(&self) -> bool {
        false
    }
    /// Prefetches a place in memory. Only speed depends on it.
    #[inline(always)]
    fn prefetch<T>(_place: &T) {}
}

impl PacketBuf for Vec<u8> {
    fn data(&self) -> &[u8] {
        self
    }

    fn data_mut(&mut self) -> &mut [u8] {
        self
    }

    fn grow_front(&mut self, n: usize) -> bool {
        self.splice(0..0, std::iter::repeat_n(0, n));
        true
    }

    fn shrink_front(&mut self, n: usize) {
        self.drain(..n.min(self.len()));
    }

    fn truncate(&mut self, n: usize) {
        Vec::truncate(self, n);
    }

    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn with_bytes(&self, bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}
