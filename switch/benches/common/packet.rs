//! Packets of benches.

use switch::PacketBuf;

const HEADROOM: usize = 128;
const ROOM: usize = 384;

/// A packet with headroom, as devices have them, that is used again and again.
pub struct Packet {
    room: Box<[u8; ROOM]>,
    at: usize,
    end: usize,
}

impl Packet {
    /// An empty one.
    pub fn new() -> Packet {
        Packet { room: Box::new([0; ROOM]), at: HEADROOM, end: HEADROOM }
    }

    /// Takes these bytes.
    pub fn becomes(&mut self, bytes: &[u8]) {
        (self.at, self.end) = (HEADROOM, HEADROOM + bytes.len());
        self.room[self.at..self.end].copy_from_slice(bytes);
    }
}

impl PacketBuf for Packet {
    fn data(&self) -> &[u8] {
        &self.room[self.at..self.end]
    }

    fn data_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.at..self.end]
    }

    fn grow_front(&mut self, n: usize) -> bool {
        let fits = n <= self.at;
        self.at -= if fits { n } else { 0 };
        fits
    }

    fn shrink_front(&mut self, n: usize) {
        self.at = (self.at + n).min(self.end);
    }

    fn truncate(&mut self, n: usize) {
        self.end = self.end.min(self.at + n);
    }

    fn duplicate(&self) -> Option<Packet> {
        self.with_bytes(self.data())
    }

    fn with_bytes(&self, bytes: &[u8]) -> Option<Packet> {
        let mut p = Packet::new();
        p.becomes(bytes);
        Some(p)
    }

    #[inline(always)]
    fn prefetch<T>(place: &T) {
        crate::prefetch(place);
    }
}
