//! What the labs' tests share.

use hw_tests::network::programs;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Two cores are enough for one lab at a time.
static ONE: Mutex<()> = Mutex::new(());

/// The only lab that runs.
pub struct Guard(#[allow(dead_code, reason = "it is held, not read")] MutexGuard<'static, ()>);

impl Guard {
    /// Waits for the others to end.
    pub fn take() -> Guard {
        Guard(ONE.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether a lab can be made, with these programs of Debian's; where it cannot, the test is skipped.
///
/// # Panics
/// Where our own programs are not built.
pub fn able(programs_of_debian: &[&str]) -> bool {
    if !needs::root() || !needs::installed(programs_of_debian) {
        return false;
    }
    let bin = programs().expect("programs");
    for p in ["northd", "controller", "dpdk-dataplane", "isthmusctl", "isthmus-lab"] {
        assert!(bin.join(p).exists(), "{p} is not built: run `make test`, or cargo build --workspace --bins");
    }
    true
}
