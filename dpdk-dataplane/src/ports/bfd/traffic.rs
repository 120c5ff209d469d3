//! What a port's packets mean for its BFD session (ovs-vswitchd.conf.db(5)). `bfd:decay_min_rx`: while none come, the
//! peer may send fewer control packets. `bfd:forwarding_if_rx`: while some come, the path works even if control packets
//! are missing.

use std::time::Duration;

/// How often received packets are counted.
const LOOK: Duration = Duration::from_millis(100);
/// A packet counts for so long at least.
const LEAST: Duration = Duration::from_secs(2);
/// With `forwarding_if_rx`, a control packet still has to come within so many times `min_rx`.
const PATIENCE: u32 = 100;

/// Which of this is enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficSpec {
    /// `min_rx`.
    pub min_rx: Duration,
    /// `decay_min_rx`; none: off.
    pub decay: Option<Duration>,
    /// `forwarding_if_rx`.
    pub forwards: bool,
}

/// What a port has received of late.
#[derive(Debug, Default)]
pub struct Traffic {
    wanted: TrafficSpec,
    next_look: Duration,
    /// Packets at the last look.
    seen: u64,
    /// Until when packets, and control packets, prove that the path works.
    vouched: [Duration; 2],
    up: bool,
    /// Packets when decay was last decided, control packets since then, and when to decide again.
    counted: u64,
    control: u64,
    until: Duration,
    decayed: bool,
}

impl Traffic {
    /// Sets what is enabled. A change of intervals ends decay.
    pub fn configure(&mut self, wanted: TrafficSpec, now: Duration) {
        let old = std::mem::replace(&mut self.wanted, wanted);
        if (old.min_rx, old.decay) != (wanted.min_rx, wanted.decay) {
            self.decayed = false;
            self.begin(self.seen, now);
        }
        if old.forwards != wanted.forwards {
            self.vouched[0] = Duration::ZERO;
        }
    }

    /// A control packet came.
    pub fn heard(&mut self, now: Duration) {
        self.control += 1;
        self.vouched[1] = now + self.wanted.min_rx * PATIENCE;
    }

    /// When [`Traffic::look`] is to be called next, or [`Traffic::vouches`] may say something else; none: never.
    pub fn next_look(&self, now: Duration) -> Option<Duration> {
        let ends = self.vouched.into_iter().filter(|t| self.wanted.forwards && *t > now).min();
        let look = self.watches().then_some(self.next_look);
        look.into_iter().chain(ends).min()
    }

    /// Whether packets mean anything for the session.
    pub fn watches(&self) -> bool {
        self.wanted.decay.is_some() || self.wanted.forwards
    }

    /// Whether [`Traffic::look`] wants to know how many packets the port has received.
    pub fn due(&self, now: Duration) -> bool {
        self.watches() && now >= self.next_look
    }

    /// Tells how many packets the port has received, control packets included. `detection` is the session's detection
    /// time.
    pub fn look(&mut self, received: u64, detection: Duration, now: Duration) {
        self.next_look = now + LOOK;
        if std::mem::replace(&mut self.seen, received) != received {
            self.vouched[0] = now + detection.max(LEAST);
        }
        if self.up && self.wanted.decay.is_some() && now >= self.until {
            // Packets are counted a little later than control packets, hence some tolerance.
            self.decayed = received.saturating_sub(self.counted) <= 2 * self.control.max(1);
            self.begin(received, now);
        }
    }

    fn begin(&mut self, received: u64, now: Duration) {
        self.counted = received;
        self.control = 0;
        self.until = now + self.wanted.decay.unwrap_or_default().max(LEAST);
    }

    /// Tells whether the session is up.
    pub fn set_up(&mut self, up: bool, now: Duration) {
        if std::mem::replace(&mut self.up, up) != up {
            self.decayed = false;
            self.begin(self.seen, now);
        }
    }

    /// The interval of control packets while nothing else comes; none: there is traffic, or decay is off.
    pub fn decayed(&self) -> Option<Duration> {
        self.wanted.decay.filter(|_| self.decayed)
    }

    /// Whether packets prove that the path works: one came lately, and a control packet not too long ago.
    pub fn vouches(&self, now: Duration) -> bool {
        self.wanted.forwards && self.vouched.iter().all(|t| *t > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn without_packets_decay_begins_and_with_some_it_ends() {
        let wanted = TrafficSpec { min_rx: ms(300), decay: Some(ms(3000)), forwards: false };
        let mut t = Traffic::default();
        assert!(!t.due(ms(0)), "nothing is asked for");
        t.configure(wanted, ms(0));
        t.set_up(true, ms(0));
        // Control packets, and nothing else.
        for n in 1..=10 {
            t.heard(ms(n * 300));
            t.look(n, ms(900), ms(n * 300));
            assert_eq!(t.decayed(), (n == 10).then_some(ms(3000)), "{n}");
        }
        assert!(!t.due(ms(3050)) && t.due(ms(3100)));
        t.heard(ms(6000));
        t.look(12, ms(900), ms(6000));
        assert_eq!(t.decayed(), Some(ms(3000)), "twice as many as control packets are none to speak of");
        t.look(15, ms(900), ms(9000));
        assert_eq!(t.decayed(), None);
        t.look(15, ms(900), ms(12_000));
        assert_eq!(t.decayed(), Some(ms(3000)));
        t.configure(TrafficSpec { min_rx: ms(200), ..wanted }, ms(12_000));
        assert_eq!(t.decayed(), None, "a change of times ends it");
        t.look(15, ms(900), ms(15_000));
        assert!(t.decayed().is_some());
        t.set_up(false, ms(15_000));
        assert_eq!(t.decayed(), None, "so does a session that goes down");
    }

    #[test]
    fn packets_vouch_for_a_path_while_control_packets_came() {
        let mut t = Traffic::default();
        t.configure(TrafficSpec { min_rx: ms(100), decay: None, forwards: true }, ms(0));
        t.heard(ms(0));
        assert!(!t.vouches(ms(0)), "there was no packet yet");
        t.look(1, ms(500), ms(1000));
        assert!(t.vouches(ms(2999)) && !t.vouches(ms(3000)));
        t.look(1, ms(500), ms(4000));
        assert!(!t.vouches(ms(4000)), "no packet came since");
        t.look(2, ms(7000), ms(5000));
        assert!(t.vouches(ms(9999)), "longer detection times count");
        assert!(!t.vouches(ms(10_000)), "a hundred times min_rx without a control packet");
        t.configure(TrafficSpec { min_rx: ms(100), decay: None, forwards: false }, ms(5000));
        assert!(!t.vouches(ms(5000)));
    }
}
