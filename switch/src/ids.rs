//! Numbers of bridges.

/// A bridge's number in its switch: from 0, in the order in which bridges were added.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct BridgeId(pub usize);

packet::decimal!(BridgeId);

impl BridgeId {
    /// No bridge has this number.
    pub const NONE: BridgeId = BridgeId(usize::MAX);

    /// Its place in a list of a switch's bridges.
    #[inline]
    pub const fn index(self) -> usize {
        self.0
    }
}
