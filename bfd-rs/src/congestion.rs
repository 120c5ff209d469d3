//! Congestion control (RFC 5880 section 7): "When BFD is used across multiple hops, a congestion control mechanism MUST
//! be implemented, and when congestion is detected, the BFD implementation MUST reduce the amount of traffic it
//! generates. The exact mechanism used is outside the scope of this specification."
//!
//! Ours counts packets that did not come. No peer may wait longer than the agreed interval, so that a longer gap is a loss.
//! An eighth of a window lost, or a session that goes down out of a window with a loss, doubles both intervals ("the control of
//! the local and remote packet transmission rate via the Min RX Interval and Min TX Interval fields"); windows with hardly
//! any loss halve them again. A session that falls silent after a window without loss had its path cut; it sends one packet
//! a second then anyway.

use crate::Timer;

/// Packets, lost ones included, that are judged together.
const WINDOW: u32 = 32;
/// Of these, how many lost ones are congestion, and how many are none.
const CONGESTED: u32 = 4;
const CLEAR: u32 = 1;
/// Clear windows until the rate is doubled again.
const PATIENCE: u8 = 4;
/// Intervals are at most 2 to this power as long as configured.
const SLOWEST: u8 = 4;

/// What a session knows of its path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Congestion {
    level: u8,
    packets: u32,
    lost: u32,
    clear: u8,
    /// The last packet: when, and the interval that was agreed then.
    last: Option<(Timer, u64)>,
}

impl Congestion {
    /// A configured interval as the path bears it.
    pub fn stretch(&self, interval: u32) -> u32 {
        interval.saturating_mul(1 << self.level)
    }

    /// The session came up or went down: what the gap before the next packet is, says nothing.
    pub fn restart(&mut self) {
        self.last = None;
    }

    /// A packet came while the session is up, and its sender's next one is due within `interval`. True if the level changed.
    pub fn heard(&mut self, now: Timer, interval: u64) -> bool {
        if let Some((before, agreed)) = self.last.replace((now, interval)) {
            // An interval that changes is in force for the peer only when it knows.
            let agreed = agreed.max(interval).max(1);
            let gap = now.saturating_sub(before);
            // Packets come after 75 to 100 % of the interval; the rest of the 140 % is the network's.
            if gap > agreed * 7 / 5 {
                let lost = u32::try_from(gap * 8 / (agreed * 7)).unwrap_or(WINDOW).clamp(1, WINDOW);
                self.lost += lost;
                self.packets += lost;
            }
        }
        self.packets += 1;
        let congested = self.lost >= CONGESTED;
        if self.packets < WINDOW && !congested {
            return false;
        }
        let clear = self.lost <= CLEAR;
        self.judge(congested, clear)
    }

    /// The session goes down, as nothing was heard. True if the level changed.
    pub fn silent(&mut self) -> bool {
        let lossy = self.lost > 0;
        self.judge(lossy, false)
    }

    fn judge(&mut self, congested: bool, clear: bool) -> bool {
        (self.packets, self.lost) = (0, 0);
        self.clear = if clear { self.clear + 1 } else { 0 };
        let before = self.level;
        if congested {
            self.level = (self.level + 1).min(SLOWEST);
        } else if self.clear >= PATIENCE {
            self.level = self.level.saturating_sub(1);
            self.clear = 0;
        }
        self.level != before
    }
}
