//! What must hold before a cached flow's steps are repeated, as words of its entry.

use crate::bridge::mac::Place;
use crate::conntrack::Stamp;
use std::time::Duration;

/// Words of a check.
pub(super) const CHECK: usize = 2;

/// Something that must hold before a flow's steps are repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// The connection is as it was; it is refreshed for so many seconds.
    Connection { stamp: Stamp, timeout: u32 },
    /// The connection that an ICMP error is about is as it was; it is not refreshed.
    Related(Stamp),
    /// A tuple that had no connection has none, if this number is still at this place.
    Absent { place: u32, arrivals: u32 },
    /// The packet as received (0) or taken out of its tunnel (1) has at least and at most so many bytes.
    Length { which: u8, min: usize, max: usize },
    /// A lookup finds an address where it was.
    Known { bridge: u16, place: Place },
    /// No address became known since.
    Unknown { bridge: u16, arrivals: u64 },
    /// The source address is known at this port; its age is refreshed.
    Source { bridge: u16, place: Place },
}

/// Longest timeout of a connection in a check, in seconds.
pub(crate) const LONGEST: u32 = (1 << 24) - 1;

/// What a check is, in its first word's top byte.
mod kind {
    pub(super) const CONNECTION: u64 = 0;
    pub(super) const LENGTH: u64 = 1;
    pub(super) const KNOWN: u64 = 2;
    pub(super) const UNKNOWN: u64 = 3;
    pub(super) const SOURCE: u64 = 4;
    pub(super) const ABSENT: u64 = 5;
    pub(super) const RELATED: u64 = 6;
}

impl Check {
    /// A connection is as it was; none if it lives longer than checks can say.
    pub(crate) fn connection(stamp: Stamp, timeout: Duration) -> Option<Check> {
        let timeout = u32::try_from(timeout.as_secs()).ok().filter(|t| *t <= LONGEST)?;
        Some(Check::Connection { stamp, timeout })
    }

    /// The connection that it is of.
    #[inline(always)]
    pub(crate) fn stamp(self) -> Option<Stamp> {
        match self {
            Check::Connection { stamp, .. } | Check::Related(stamp) => Some(stamp),
            _ => None,
        }
    }

    pub(super) fn words(self) -> [u64; CHECK] {
        let at = |kind: u64, more: u32, slot: u32| kind << 56 | u64::from(more) << 32 | u64::from(slot);
        match self {
            Check::Connection { stamp, timeout } => {
                [at(kind::CONNECTION, timeout.min(LONGEST), stamp.index), stamp.stamp]
            }
            Check::Related(stamp) => [at(kind::RELATED, 0, stamp.index), stamp.stamp],
            Check::Length { which, min, max } => {
                let short = |n: usize| n.min(u32::MAX as usize) as u64;
                [at(kind::LENGTH, 0, which.into()), short(min) << 32 | short(max)]
            }
            Check::Known { bridge, place } => [at(kind::KNOWN, bridge.into(), place.slot), place.stamp],
            Check::Unknown { bridge, arrivals } => [at(kind::UNKNOWN, bridge.into(), 0), arrivals],
            Check::Source { bridge, place } => [at(kind::SOURCE, bridge.into(), place.slot), place.stamp],
            Check::Absent { place, arrivals } => [at(kind::ABSENT, 0, place), arrivals.into()],
        }
    }

    #[inline(always)]
    pub(super) fn of([head, a]: [u64; CHECK]) -> Check {
        let (more, slot) = ((head >> 32) as u32 & LONGEST, head as u32);
        let bridge = more as u16;
        match head >> 56 {
            kind::CONNECTION => Check::Connection { stamp: Stamp { index: slot, stamp: a }, timeout: more },
            kind::LENGTH => Check::Length { which: slot as u8, min: (a >> 32) as usize, max: a as u32 as usize },
            kind::KNOWN => Check::Known { bridge, place: Place { slot, stamp: a } },
            kind::UNKNOWN => Check::Unknown { bridge, arrivals: a },
            kind::RELATED => Check::Related(Stamp { index: slot, stamp: a }),
            kind::SOURCE => Check::Source { bridge, place: Place { slot, stamp: a } },
            _ => Check::Absent { place: slot, arrivals: a as u32 },
        }
    }
}
