//! Wires between bridges, for tests of spanning trees.

use packet::bpdu::Bpdu;
use std::time::Duration;

/// A bridge and one of its ports.
pub(super) type End = (usize, usize);
/// What joins two ports.
pub(super) type Wire = (End, End);

/// The other end of a port's wire.
pub(super) fn other_end<'a>(mut wires: impl Iterator<Item = &'a Wire>, from: End) -> Option<End> {
    wires.find_map(|(a, b)| match from {
        x if x == *a => Some(*b),
        x if x == *b => Some(*a),
        _ => None,
    })
}

/// What is told of a message at the other end of a wire, where it comes as a frame.
pub(super) fn as_received(m: &Bpdu) -> Bpdu {
    packet::bpdu::parse(&packet::bpdu::compose(packet::Mac([2; 6]), m)).expect("a BPDU")
}

/// Fails if packets that take these wires may come back to a bridge.
pub(super) fn assert_no_loop(bridges: usize, wires: impl Iterator<Item = Wire>, now: Duration) {
    // Bridges that wires join are of one group.
    let mut group: Vec<usize> = (0..bridges).collect();
    for ((a, _), (b, _)) in wires {
        let (x, y) = (group[a], group[b]);
        assert_ne!(x, y, "a loop at {now:?}");
        group.iter_mut().filter(|g| **g == y).for_each(|g| *g = x);
    }
}

/// Numbers that follow from a seed (a linear congruential generator with Knuth's factor).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    /// One below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    /// Wires with costs: a line, so that all bridges are joined, and up to as many besides.
    pub(super) fn wires(&mut self, bridges: usize) -> Vec<(usize, usize, u32)> {
        let mut wires: Vec<_> = (1..bridges).map(|i| (i - 1, i, 4 + self.below(100) as u32)).collect();
        for _ in 0..bridges {
            let (a, b) = (self.below(bridges), self.below(bridges));
            if a != b {
                wires.push((a, b, 4 + self.below(100) as u32));
            }
        }
        wires
    }
}
