//! DPDK: generated bindings and a safe layer over the part of it that a switch needs.
//!
//! ```text
//! Eal ──► Pool ──► Mbuf          Eal ──► Port ──► receive / transmit
//! ```
//! One [`Eal`] a process; ports keep it alive by a reference, and a [`Pool`] is there for good, as packets are of it. An [`Mbuf`] is owned:
//! it is freed when it is dropped, and [`Port::transmit`] takes those that it sent.

mod allocator;
mod eal;
mod error;
mod ethtool;
mod events;
mod ffi;
mod info;
mod mbuf;
mod memory;
mod port;
mod socket;
mod software;
mod tap;

pub use allocator::Allocator;
pub use eal::{Eal, Registered};
pub use error::Error;
pub use ethtool::{Driver, driver};
pub use events::Health;
pub use info::{LinkState, PortInfo, Statistics};
pub use mbuf::{Mbuf, Pool};
pub use memory::{LARGER, Memory, ORDINARY};
pub use port::{BURST, Port, PortConfig};
pub use socket::Ring;
pub use software::Software;
pub use tap::{wake, wake_now};

/// Asks the processor to bring a place in memory near, and does not wait for it.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint about an address: nothing is read or written, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// The same for all of a value's memory.
#[inline(always)]
pub fn prefetch_all<T>(place: &T) {
    /// Bytes that the processor fetches at once.
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of::<T>()).step_by(LINE) {
        // SAFETY: hints about addresses: nothing is read or written, whatever they are.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast::<i8>().wrapping_add(at));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (place, LINE);
}
