//! Threads that switch packets: their priority, their processors, and how they wait.

use std::time::Duration;

/// Polls without packets before the worker sleeps.
const SPIN: u32 = 16;
/// Polls without packets before it waits to be woken, where that can be: some milliseconds.
const QUIET: u32 = 128;
/// The first sleep; it doubles up to the longest.
const SLEEP: Duration = Duration::from_micros(20);

/// Sets the calling thread's priority, and has it sleep exactly.
pub(crate) fn set_priority() {
    // A worker that waits for a processor loses packets and BFD sessions. Without the privilege it stays as it is.
    if let Err(e) = rustix::process::nice(-20) {
        tracing::debug!(target: "worker", "priority: {e}");
    }
    // The kernel would round sleeps of microseconds up by 50.
    if let Err(e) = nix::sys::prctl::set_timerslack(1000) {
        tracing::debug!(target: "worker", "timer slack: {e}");
    }
}

/// The calling thread goes on on one of these processors.
pub(crate) fn run_on(processors: &[usize]) {
    let mut set = nix::sched::CpuSet::new();
    for n in processors {
        // Numbers that the kernel's set cannot hold were not among those of the process.
        let _ = set.set(*n);
    }
    if let Err(e) = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set) {
        tracing::warn!(target: "worker", "processors {processors:?}: {e}; the worker stays where it is");
    }
}

/// A thread that sleeps the longer, the longer it had nothing to do.
#[derive(Debug)]
pub(crate) struct Idle {
    rounds: u32,
    sleep: Duration,
}

impl Default for Idle {
    fn default() -> Idle {
        Idle { rounds: 0, sleep: SLEEP }
    }
}

impl Idle {
    /// Nothing has come for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        self.rounds > QUIET
    }

    /// After a round that had something to do, or not. True if it slept.
    pub(crate) fn pause(&mut self, busy: bool, most: Duration) -> bool {
        if busy {
            *self = Idle::default();
            return false;
        }
        self.rounds = self.rounds.saturating_add(1);
        let sleeps = self.rounds > SPIN && !most.is_zero();
        if sleeps {
            std::thread::sleep(self.sleep.min(most));
            self.sleep = (self.sleep * 2).min(most);
        }
        sleeps
    }
}

/// The processors that the process may run on, by its main thread, which nobody moves.
pub fn processors() -> Vec<usize> {
    let main = nix::unistd::getpid();
    let Ok(set) = nix::sched::sched_getaffinity(main) else { return vec![0] };
    (0..nix::sched::CpuSet::count()).filter(|n| set.is_set(*n).unwrap_or(false)).collect()
}
