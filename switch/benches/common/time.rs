//! Time that benches count.

use std::time::Duration;

/// Processor time of this thread (proc(5), `schedstat`).
pub fn processor_time() -> Duration {
    let s = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    Duration::from_nanos(s.split(' ').next().and_then(|n| n.parse().ok()).expect("a number"))
}
