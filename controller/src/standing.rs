//! What a chassis makes of BFD around a change of gateways: sessions come up one after the other, and a claim may be heard of
//! before the claimant's session is up here. Two chassis that both go by their own sessions alone would take a port from
//! each other in turns.

use crate::plumbing::Sessions;
use ovn_schema::Str;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long the first session is waited for: sessions that are not up send once a second (RFC 5880 section 6.8.3).
const FIRST: Duration = Duration::from_secs(5);
/// How long the others are waited for after the first one.
const SETTLE: Duration = Duration::from_secs(2);
/// How long a chassis that claimed a gateway port counts as alive, whatever its session says.
const TRUST: Duration = Duration::from_secs(1);

/// How far a start has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Start {
    /// There is none.
    #[default]
    Over,
    /// Sessions are held down.
    Held,
    /// None is up; the moment after which that means something.
    First(Instant),
    /// Some are up, the others are waited for until this moment.
    Rest(Instant),
}

/// The state over time.
#[derive(Debug, Default)]
pub struct Standing {
    start: Start,
    claimants: BTreeMap<Str, Instant>,
}

impl Standing {
    /// Whether others cannot rely on this chassis yet.
    pub fn starting(&mut self, sessions: Sessions, now: Instant) -> bool {
        self.start = match (sessions, self.start) {
            (Sessions::Held, _) => Start::Held,
            (Sessions::All, _) | (_, Start::Over) => Start::Over,
            (Sessions::None, Start::Held) => Start::First(now + FIRST),
            (Sessions::Some, Start::Held | Start::First(_)) => Start::Rest(now + SETTLE),
            (_, Start::First(end) | Start::Rest(end)) if now >= end => Start::Over,
            (_, start) => start,
        };
        self.start != Start::Over
    }

    /// Another chassis claimed a gateway port.
    pub fn claimed(&mut self, chassis: Str, now: Instant) {
        self.claimants.insert(chassis, now + TRUST);
    }

    /// Those that claimed one a moment ago.
    pub fn trusted(&mut self, now: Instant) -> impl Iterator<Item = Str> + use<'_> {
        self.claimants.retain(|_, end| now < *end);
        self.claimants.keys().cloned()
    }

    /// When something of this ends.
    pub fn next(&self) -> Option<Instant> {
        let start = match self.start {
            Start::First(end) | Start::Rest(end) => Some(end),
            Start::Over | Start::Held => None,
        };
        self.claimants.values().copied().chain(start).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chassis_waits_for_all_sessions_but_not_for_long() {
        let (mut s, t) = (Standing::default(), Instant::now());
        assert!(!s.starting(Sessions::Some, t), "a session that went down is no start");
        assert!(s.starting(Sessions::Held, t));
        assert!(s.starting(Sessions::None, t));
        assert!(s.starting(Sessions::None, t + FIRST / 2));
        let first = t + FIRST * 3 / 4;
        assert!(s.starting(Sessions::Some, first));
        assert!(s.starting(Sessions::Some, first + SETTLE / 2));
        assert_eq!(s.next(), Some(first + SETTLE));
        assert!(!s.starting(Sessions::Some, first + SETTLE));
        assert!(
            s.starting(Sessions::Held, t) && s.starting(Sessions::None, t) && !s.starting(Sessions::None, t + FIRST)
        );
        assert!(s.starting(Sessions::Held, t) && s.starting(Sessions::Some, t));
        assert!(!s.starting(Sessions::All, t + SETTLE / 4));
        assert!(!s.starting(Sessions::Some, t + SETTLE / 2), "it was complete once");
    }

    #[test]
    fn a_claimant_is_trusted_for_a_moment() {
        let (mut s, t) = (Standing::default(), Instant::now());
        s.claimed("gw1".into(), t);
        assert_eq!(s.trusted(t + TRUST / 2).count(), 1);
        assert_eq!(s.next(), Some(t + TRUST));
        assert_eq!(s.trusted(t + TRUST).count(), 0);
        assert_eq!(s.next(), None);
    }
}
