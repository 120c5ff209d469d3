//! TCP windows: whether a segment can belong to its connection (van Rooij, "Real Stateful TCP Packet Filtering in IP
//! Filter", 2001).
//!
//! For each end the tracker knows what it has sent, what it may send according to the other's acknowledgements and
//! window, and the largest window that it has offered. A segment is valid if it ends within what its sender may send,
//! begins at most a window before what was sent, and acknowledges something near what the other has sent. A reset has to
//! begin where what was sent ends, give or take one, or whoever guesses a window could end the connection (RFC 5961 section
//! 3).

/// How far an acknowledgement may be from what was sent, in bytes: an unscaled window and some more.
const NEAR: u32 = 65_535 + 1500;

const FIN: u16 = 1;
const SYN: u16 = 2;
const RST: u16 = 4;
const ACK: u16 = 16;

/// What a TCP header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Window, not scaled.
    pub window: u16,
    /// Bytes of payload.
    pub len: u32,
    /// The window scale option of a SYN.
    pub scale: Option<u8>,
}

/// What one end has sent and may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct End {
    seen: bool,
    /// Sequence number up to which it has sent.
    sent: u32,
    /// Sequence number up to which it may send.
    may: u32,
    /// The largest window that it has offered, not scaled.
    window: u32,
    /// Its window scale; none before its SYN was seen, or where the connection was met in its middle.
    scale: Option<u8>,
}

/// Both ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    ends: [End; 2],
    /// Both ends' SYNs offered scaling; without, or where they were not seen, windows count as they are.
    scaling: bool,
    /// Met in its middle: windows may be scaled, by nobody knows what.
    unknown: bool,
}

/// Whether `a` is at or after `b` on the circle of sequence numbers.
fn from(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) >= 0
}

fn length(s: &Segment, flags: u16) -> u32 {
    s.len + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0)
}

impl Window {
    /// The windows after the first segment.
    pub(super) fn open(s: &Segment, syn: bool) -> Window {
        let mut w = Window { ends: [End::default(); 2], scaling: false, unknown: !syn };
        w.begin(0, s, if syn { SYN } else { ACK });
        w
    }

    /// The first segment came again, perhaps with other numbers.
    pub(super) fn restart(&mut self, s: &Segment, at: usize) {
        self.begin(at, s, SYN);
    }

    fn begin(&mut self, at: usize, s: &Segment, flags: u16) {
        let end = s.seq.wrapping_add(length(s, flags));
        let other = self.offered(1 - at).max(1);
        let scale = s.scale.filter(|_| flags & SYN != 0).map(|n| n.min(14));
        if let Some(e) = self.ends.get_mut(at) {
            *e = End { seen: true, sent: end, may: end.wrapping_add(other), window: s.window.max(1).into(), scale };
        }
        self.scaling = self.ends.iter().all(|e| e.scale.is_some());
    }

    fn shift(&self, at: usize) -> u32 {
        match self.ends.get(at).and_then(|e| e.scale) {
            Some(n) if self.scaling => n.into(),
            _ if self.unknown => 14,
            _ => 0,
        }
    }

    /// The largest window that an end has offered, scaled.
    fn offered(&self, at: usize) -> u32 {
        self.ends.get(at).map_or(0, |e| e.window) << self.shift(at)
    }

    /// Whether a segment from an end fits; if so it counts. `loose`: the connection begins or ends, and less is asked.
    pub(super) fn accept(&mut self, s: &Segment, flags: u16, at: usize, loose: bool) -> bool {
        let to = 1 - at;
        if self.ends.get(at).is_none_or(|e| !e.seen) {
            self.begin(at, s, flags);
        }
        let (Some(mine), Some(theirs)) = (self.ends.get(at).copied(), self.ends.get(to).copied()) else { return false };
        let end = s.seq.wrapping_add(length(s, flags));
        // A reset or a segment without an acknowledgement says nothing of the other end.
        let ack = if flags & ACK != 0 && !(flags & RST != 0 && s.ack == 0) { s.ack } else { theirs.sent };
        let back = self.offered(to).max(1);
        let skew = NEAR << if self.unknown || self.scaling { self.shift(at) } else { 0 };
        let near = theirs.seen.then_some(theirs.sent).is_none_or(|sent| {
            let d = sent.wrapping_sub(ack) as i32;
            d >= -(NEAR as i32) && i64::from(d) <= i64::from(skew)
        });
        let room = if loose { NEAR } else { 0 };
        let resets = flags & RST == 0 || loose || s.seq.wrapping_sub(mine.sent).wrapping_add(1) <= 2;
        let fits = near
            && resets
            && from(mine.may.wrapping_add(room), end)
            && from(s.seq, mine.sent.wrapping_sub(back + room));
        if !fits {
            return false;
        }
        let scaled = u32::from(s.window.max(1)) << if flags & SYN != 0 { 0 } else { self.shift(at) };
        if let Some(e) = self.ends.get_mut(at) {
            e.window = e.window.max(s.window.into());
            if from(end, e.sent) {
                e.sent = end;
            }
            if flags & SYN != 0 && e.scale.is_none() {
                e.scale = s.scale.map(|n| n.min(14));
            }
        }
        self.scaling = self.ends.iter().all(|e| e.scale.is_some());
        if flags & ACK != 0
            && let Some(e) = self.ends.get_mut(to)
        {
            if !e.seen {
                *e = End { seen: false, sent: ack, may: ack, window: 1, scale: None };
            }
            let may = ack.wrapping_add(scaled);
            if from(may, e.may) {
                e.may = may;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seq: u32, ack: u32, window: u16, len: u32) -> Segment {
        Segment { seq, ack, window, len, scale: None }
    }

    #[test]
    fn segments_outside_are_refused() {
        let mut w = Window::open(&s(100, 0, 1000, 0), true);
        assert!(w.accept(&s(500, 101, 2000, 0), SYN | ACK, 1, true));
        assert!(w.accept(&s(101, 501, 1000, 1500), ACK, 0, false));
        assert!(!w.accept(&s(1601, 501, 1000, 1000), ACK, 0, false), "more than the peer's window");
        assert!(w.accept(&s(501, 1601, 2000, 0), ACK, 1, false));
        assert!(w.accept(&s(1601, 501, 1000, 1000), ACK, 0, false), "acknowledged meanwhile");
        assert!(w.accept(&s(1601, 501, 1000, 1000), ACK, 0, false), "again");
        assert!(!w.accept(&s(100_000_000, 501, 1000, 1), ACK, 0, false), "far ahead");
        assert!(!w.accept(&s(2601u32.wrapping_sub(10_000), 501, 1000, 1), ACK, 0, false), "far behind");
        assert!(!w.accept(&s(501, 1 << 30, 1000, 1), ACK, 1, false), "acknowledges what was not sent");
    }

    #[test]
    fn resets_begin_where_the_connection_is() {
        let mut w = Window::open(&s(100, 0, 8192, 0), true);
        assert!(w.accept(&s(500, 101, 8192, 0), SYN | ACK, 1, true));
        assert!(w.accept(&s(101, 501, 8192, 20), ACK, 0, false));
        for (seq, taken) in
            [(5000, false), (101, false), (119, false), (120, true), (121, true), (122, true), (123, false)]
        {
            assert_eq!(w.clone().accept(&s(seq, 0, 0, 0), RST, 0, false), taken, "{seq}");
            assert_eq!(w.clone().accept(&s(seq, 501, 0, 0), RST | ACK, 0, false), taken, "{seq}, with an ACK");
        }
        assert!(!w.clone().accept(&s(4000, 0, 0, 0), RST, 1, false) && w.accept(&s(501, 0, 0, 0), RST, 1, false));
    }

    #[test]
    fn windows_scale_where_both_offer_it() {
        let syn = |seq, ack, scale| Segment { scale: Some(scale), ..s(seq, ack, 1000, 0) };
        let mut w = Window::open(&syn(0, 0, 7), true);
        assert!(w.accept(&syn(0, 1, 4), SYN | ACK, 1, true));
        assert!(w.accept(&s(1, 1, 1000, 0), ACK, 0, false));
        assert!(w.accept(&s(1, 1, 1000, 100_000), ACK, 1, false), "128,000 bytes were offered");
        assert!(!w.accept(&s(100_001, 1, 1000, 100_000), ACK, 1, false));
    }

    #[test]
    fn numbers_wrap_and_the_middle_is_taken_up() {
        let mut w = Window::open(&s(u32::MAX - 10, 7, 100, 50), false);
        assert!(w.accept(&s(7, 40, 100, 20), ACK, 1, true));
        assert!(w.accept(&s(40, 27, 100, 50), ACK, 0, false));
    }
}
