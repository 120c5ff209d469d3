//! The time of the daemon. It is the machine's, which goes on by itself, unless a test bed stops it or moves it forward
//! (`time/stop`, `time/warp`): all threads and tasks that wait for something to be due go by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The clock; clones are the same one.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Hands>);

#[derive(Debug)]
struct Hands {
    begun: std::time::Instant,
    /// Nanoseconds that it is ahead of the machine's clock; of a stopped one ([`STILL`]), those since it began.
    offset: AtomicU64,
    /// It was stopped.
    stopped: watch::Sender<bool>,
}

/// The bit of the offset that says that the clock stands still. Both change at once, so that nobody sees another time in
/// between.
const STILL: u64 = 1 << 63;

impl Default for Clock {
    fn default() -> Clock {
        Clock(Arc::new(Hands {
            begun: std::time::Instant::now(),
            offset: AtomicU64::new(0),
            stopped: watch::Sender::new(false),
        }))
    }
}

impl Clock {
    /// The time since it began.
    #[inline]
    pub fn now(&self) -> Duration {
        let offset = self.0.offset.load(Ordering::Acquire);
        let ahead = Duration::from_nanos(offset & !STILL);
        if offset & STILL == 0 { self.0.begun.elapsed() + ahead } else { ahead }
    }

    /// The same as a point in time, to be compared with others of this clock only.
    pub fn instant(&self) -> Instant {
        Instant::from_std(self.0.begun + self.now())
    }

    /// Stops it; from now on it only moves by [`Clock::advance`].
    pub fn stop(&self) {
        self.0.stopped.send_if_modified(|stopped| {
            if *stopped {
                return false;
            }
            self.0.offset.store(self.now().as_nanos() as u64 | STILL, Ordering::Release);
            *stopped = true;
            true
        });
    }

    /// Moves it forward. Those who sleep by it look whether they are due.
    pub fn advance(&self, by: Duration) {
        self.0.offset.fetch_add(by.as_nanos() as u64, Ordering::AcqRel);
        self.0.stopped.send_modify(|_| {});
    }

    /// Waits until a point in time of this clock.
    pub async fn sleep_until(&self, at: Instant) {
        let mut changes = self.0.stopped.subscribe();
        loop {
            let left = at.saturating_duration_since(self.instant());
            if left.is_zero() {
                return;
            }
            let still = *changes.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep(left), if !still => {}
                // The clock is there for as long as `self` is.
                _ = changes.changed() => {}
            }
        }
    }

    /// Waits for so long.
    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.instant() + time).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;

    #[tokio::test]
    async fn a_stopped_clock_moves_when_it_is_told_to() {
        let clock = Clock::default();
        clock.stop();
        let (other, start) = (clock.clone(), clock.now());
        let mut sleep = Box::pin(clock.sleep(Duration::from_secs(60)));
        assert!(poll!(&mut sleep).is_pending());
        other.advance(Duration::from_secs(59));
        assert!(poll!(&mut sleep).is_pending(), "not yet due");
        assert_eq!(clock.now(), start + Duration::from_secs(59));
        other.advance(Duration::from_secs(1));
        assert!(poll!(&mut sleep).is_ready());
        clock.stop();
        assert_eq!(clock.now(), start + Duration::from_secs(60), "it is stopped already");
    }

    #[tokio::test]
    async fn a_running_clock_may_be_ahead() {
        let clock = Clock::default();
        let mut sleep = Box::pin(clock.sleep(Duration::from_secs(3600)));
        assert!(poll!(&mut sleep).is_pending());
        clock.advance(Duration::from_secs(3600));
        sleep.await;
        let before = clock.now();
        clock.sleep(Duration::from_millis(2)).await;
        assert!(clock.now() >= before + Duration::from_millis(2) && before >= Duration::from_secs(3600));
    }
}
