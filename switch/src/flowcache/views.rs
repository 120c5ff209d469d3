//! What checks of entries read, shared with the main thread.

use super::check::Check;
use crate::bridge::mac;
use crate::conntrack::Conntrack;
use crate::stamps::{GenerationTable, StampTable};
use crate::tunnel::Own;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Views {
    /// Connections.
    connections: StampTable,
    /// Generations that move when a tuple gets a connection.
    arrivals: GenerationTable,
    /// Learned addresses, by bridge.
    pub(crate) macs: Vec<mac::Shared>,
    /// Addresses at which tunnels end.
    pub(crate) own: Own,
    /// Flows were found to match TCP flags that connection tracking does not use: keys hold all flags from then on.
    exact_flags: Arc<AtomicBool>,
}

impl Views {
    pub(crate) fn new(ct: &Conntrack) -> Views {
        let (connections, arrivals) = ct.shared();
        Views {
            connections: connections.clone(),
            arrivals: arrivals.clone(),
            macs: Vec::new(),
            own: Own::default(),
            exact_flags: Arc::default(),
        }
    }

    /// Whether keys hold all TCP flags.
    #[inline(always)]
    pub(crate) fn exact_flags(&self) -> bool {
        self.exact_flags.load(Relaxed)
    }

    /// Keys hold all TCP flags from now on.
    pub(crate) fn set_exact_flags(&self) {
        self.exact_flags.store(true, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn connections(&self) -> &StampTable {
        &self.connections
    }

    #[inline(always)]
    fn length(which: u8, min: usize, max: usize, lengths: &[usize; 2]) -> bool {
        lengths.get(usize::from(which)).is_some_and(|n| (min..=max).contains(n))
    }

    /// Whether a check holds; `None`: for packets of any length. Times are in nanoseconds.
    pub(crate) fn holds(&self, c: Check, lengths: Option<[usize; 2]>, now: u64) -> bool {
        let macs = |b: u16| self.macs.get(usize::from(b));
        match c {
            Check::Connection { stamp, .. } | Check::Related(stamp) => {
                let (there, until) = self.connections.get(stamp.index);
                there == stamp.stamp && until > now
            }
            Check::Absent { place, arrivals } => self.arrivals.get(place) == arrivals,
            Check::Length { which, min, max } => lengths.is_none_or(|l| Self::length(which, min, max, &l)),
            Check::Known { bridge, place } => macs(bridge).is_some_and(|m| m.finds(place, now)),
            Check::Unknown { bridge, arrivals } => macs(bridge).is_some_and(|m| m.arrivals() == arrivals),
            Check::Source { bridge, place } => macs(bridge).is_some_and(|m| m.stays(place)),
        }
    }

    /// When the connection of a check last had a packet.
    pub(crate) fn last_packet(&self, c: Check) -> Option<Duration> {
        let Check::Connection { stamp, timeout } = c else { return None };
        let (there, until) = self.connections.get(stamp.index);
        let at = until.checked_sub(u64::from(timeout) * 1_000_000_000)?;
        (there == stamp.stamp).then(|| Duration::from_nanos(at))
    }

    /// Tests a check and does what the walk would have done with the checked object (a connection or learned address is
    /// refreshed); false if it does not hold. Checks are in the order of the walk, so what is done before one fails is
    /// what the walk would do, too.
    #[inline(always)]
    pub(crate) fn pass(&self, c: Check, lengths: &[usize; 2], now: u64) -> bool {
        match c {
            Check::Connection { stamp, timeout } => {
                let until = now + u64::from(timeout) * 1_000_000_000;
                self.connections.pass(stamp.index, stamp.stamp, now, until)
            }
            Check::Absent { place, arrivals } => self.arrivals.get(place) == arrivals,
            Check::Length { which, min, max } => Self::length(which, min, max, lengths),
            Check::Source { bridge, place } => {
                self.macs.get(usize::from(bridge)).is_some_and(|m| m.refresh(place, now))
            }
            Check::Known { bridge, place } => self.macs.get(usize::from(bridge)).is_some_and(|m| m.finds(place, now)),
            Check::Unknown { .. } | Check::Related(_) => self.holds(c, None, now),
        }
    }
}
