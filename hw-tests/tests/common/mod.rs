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

/// Whether a lab can be made, with these programs of Debian's; says why not.
///
/// # Panics
/// Where our own programs are not built.
pub fn able(needs: &[&str]) -> bool {
    if !nix::unistd::Uid::effective().is_root() {
        println!("skipped: labs make network namespaces, so they need root");
        return false;
    }
    let installed = |program: &str| {
        std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()))
    };
    if let Some(p) = needs.iter().find(|p| !installed(p)) {
        println!("skipped: {p} is not installed (scripts/install test)");
        return false;
    }
    let bin = programs().expect("programs");
    for p in ["northd", "controller", "dpdk-dataplane", "isthmusctl", "isthmus-lab"] {
        assert!(bin.join(p).exists(), "{p} is not built: run `make test`, or cargo build --workspace --bins");
    }
    true
}
