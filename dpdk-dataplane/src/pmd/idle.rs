//! How PMD threads run: their processors, and how they sleep without packets.

use std::time::Duration;

/// Polls without packets before a thread sleeps.
const SPIN: u32 = 16;
/// Polls without packets before a thread sleeps until it is woken, where it can be: some 6 ms. A packet by itself costs so many
/// wakeups.
const QUIET: u32 = 48;
/// The first sleep; it doubles up to the longest.
const SLEEP: Duration = Duration::from_micros(20);

/// Has the calling thread sleep to the microsecond. By default the kernel prolongs sleeps by up to 50 us.
///
/// Its priority stays what the daemon was started with (`ovs-ctl --ovs-vswitchd-priority`), as Open vSwitch's. With
/// nice -20 a thread that wakes some thousand times a second, beside a process that takes the rest of the processor,
/// kept all others from it for up to a minute, the kernel's own threads among them (Linux 6.18).
pub(crate) fn sleep_exactly() {
    if let Err(e) = nix::sys::prctl::set_timerslack(1000) {
        tracing::debug!(target: "dpif_netdev", "timer slack: {e}");
    }
}

/// Moves the calling thread to any of these processors.
pub(crate) fn run_on(processors: &[usize]) {
    let mut set = nix::sched::CpuSet::new();
    for n in processors {
        // A number that the kernel's set cannot hold is of no processor of this machine.
        let _ = set.set(*n);
    }
    if let Err(e) = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set) {
        tracing::warn!(target: "dpif_netdev", "processors {processors:?}: {e}; the PMD thread stays where it is");
    }
}

/// Lets a thread sleep the longer, the longer it had nothing to do.
#[derive(Debug)]
pub(crate) struct IdleBackoff {
    rounds: u32,
    /// Rounds that it does not sleep for, whatever came before.
    stays: u32,
    sleep: Duration,
}

impl Default for IdleBackoff {
    fn default() -> IdleBackoff {
        IdleBackoff { rounds: 0, stays: 0, sleep: SLEEP }
    }
}

impl IdleBackoff {
    /// Whether nothing has come for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        self.rounds > QUIET && self.stays == 0
    }

    /// Something came that wakes the thread by itself: it stays for some rounds, as more may follow at once. Then it sleeps for a
    /// short time, or until it is woken if it did before.
    pub(crate) fn stay(&mut self) {
        (self.stays, self.sleep) = (SPIN, SLEEP);
    }

    /// Called after each round, with whether it had something to do; sleeps for `most` at the longest, and not beyond what is
    /// `due` then. True if it slept.
    pub(crate) fn pause(&mut self, busy: bool, most: Duration, due: Duration) -> bool {
        if busy {
            *self = IdleBackoff::default();
            return false;
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.stays > 0 {
            self.stays -= 1;
            return false;
        }
        let sleeps = self.rounds > SPIN && !most.is_zero() && !due.is_zero();
        if sleeps {
            std::thread::sleep(self.sleep.min(most).min(due));
            self.sleep = (self.sleep * 2).min(most);
        }
        sleeps
    }
}

/// The processors that the process may run on: those of its first thread, which is never moved.
pub fn processors() -> Vec<usize> {
    let main = nix::unistd::getpid();
    let Ok(set) = nix::sched::sched_getaffinity(main) else { return vec![0] };
    (0..nix::sched::CpuSet::count()).filter(|n| set.is_set(*n).unwrap_or(false)).collect()
}
