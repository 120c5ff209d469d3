//! Packets of this crate's benches prefetch nothing: that takes unsafe code.

/// Does nothing.
pub fn prefetch<T>(_place: &T) {}
