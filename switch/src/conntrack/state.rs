//! Protocol states and timeouts, as in Open vSwitch's userspace connection tracking.
//!
//! Each end of a TCP connection has its own state; dumps show the later of the two.
//!
//! ```text
//! an end:  Closed --sends--> SynSent --is acknowledged--> Established --sends FIN--> Closing --is acknowledged--> FinWait2
//! RST from either: both TimeWait.  A SYN where both are FinWait2 or later: a new connection.
//! ```

use super::window::{self, Segment};
use super::{Connection, Direction, Packet};
use std::time::Duration;

const FIN: u16 = 1;
const SYN: u16 = 2;
const RST: u16 = 4;
const PSH: u16 = 8;
const ACK: u16 = 16;
const URG: u16 = 32;

/// State of one end of a TCP connection, in order; ends of other protocols stay `Closed`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum TcpState {
    /// Nothing was sent.
    #[default]
    Closed,
    /// Something was sent, and not acknowledged.
    SynSent,
    /// Open.
    Established,
    /// FIN was sent.
    Closing,
    /// FIN was acknowledged.
    FinWait2,
    /// Reset.
    TimeWait,
}

impl TcpState {
    /// The name that Open vSwitch prints.
    pub fn name(self) -> &'static str {
        match self {
            TcpState::Closed => "CLOSED",
            TcpState::SynSent => "SYN_SENT",
            TcpState::Established => "ESTABLISHED",
            TcpState::Closing => "CLOSING",
            TcpState::FinWait2 => "FIN_WAIT_2",
            TcpState::TimeWait => "TIME_WAIT",
        }
    }
}

/// Phases of connections; each has a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The first packet of a TCP connection.
    TcpFirst,
    /// TCP that is not open yet.
    TcpOpening,
    /// Open TCP.
    TcpEstablished,
    /// One end has sent FIN.
    TcpClosing,
    /// Both ends have sent FIN.
    TcpFinWait,
    /// Both ends are closed, or one has sent RST.
    TcpClosed,
    /// The first packet of UDP and others.
    First,
    /// Several packets from the same end.
    Single,
    /// Packets from both ends.
    Multiple,
    /// ICMP without a reply.
    IcmpFirst,
    /// ICMP with a reply.
    IcmpReply,
}

impl TcpState {
    const ALL: [TcpState; 6] = [
        TcpState::Closed,
        TcpState::SynSent,
        TcpState::Established,
        TcpState::Closing,
        TcpState::FinWait2,
        TcpState::TimeWait,
    ];

    /// The state that is numbered so, from 0 in the order above, when connections leave this process.
    pub fn from_number(n: u8) -> Option<TcpState> {
        TcpState::ALL.get(usize::from(n)).copied()
    }
}

impl Phase {
    const ALL: [Phase; 11] = [
        Phase::TcpFirst,
        Phase::TcpOpening,
        Phase::TcpEstablished,
        Phase::TcpClosing,
        Phase::TcpFinWait,
        Phase::TcpClosed,
        Phase::First,
        Phase::Single,
        Phase::Multiple,
        Phase::IcmpFirst,
        Phase::IcmpReply,
    ];

    /// The phase that is numbered so, from 0 in the order above, when connections leave this process.
    pub fn from_number(n: u8) -> Option<Phase> {
        Phase::ALL.get(usize::from(n)).copied()
    }
}

/// Timeouts, in seconds by [`Phase`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts([u32; 11]);

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts([30, 30, 86_400, 900, 45, 30, 60, 60, 30, 60, 30])
    }
}

impl Timeouts {
    /// Sets one by its key in `CT_Timeout_Policy:timeouts` (ovs-vswitchd.conf.db(5)); false where the key is unknown.
    /// Keys that only the kernel uses are accepted and have no effect.
    pub fn set(&mut self, key: &str, seconds: u32) -> bool {
        let phase = match key {
            "tcp_syn_sent" => Phase::TcpFirst,
            "tcp_syn_recv" => Phase::TcpOpening,
            "tcp_established" => Phase::TcpEstablished,
            "tcp_fin_wait" => Phase::TcpClosing,
            "tcp_time_wait" => Phase::TcpFinWait,
            "tcp_close" => Phase::TcpClosed,
            "udp_first" => Phase::First,
            "udp_single" => Phase::Single,
            "udp_multiple" => Phase::Multiple,
            "icmp_first" => Phase::IcmpFirst,
            "icmp_reply" => Phase::IcmpReply,
            "tcp_close_wait" | "tcp_last_ack" | "tcp_retransmit" | "tcp_unack" => return true,
            _ => return false,
        };
        if let Some(t) = self.0.get_mut(phase as usize) {
            *t = seconds;
        }
        true
    }

    /// How long a connection in a phase lives after a packet.
    pub(super) fn get(&self, phase: Phase) -> Duration {
        Duration::from_secs(self.0.get(phase as usize).copied().unwrap_or(0).into())
    }
}

/// What a packet is to its connection.
pub(super) enum Update {
    /// It belongs to it, and is new or established.
    Valid {
        established: bool,
    },
    Invalid,
    Reopen,
}

fn bad_flags(f: u16) -> bool {
    f & SYN != 0 && f & (RST | FIN) != 0 || f & (SYN | ACK | RST) == 0 || f & ACK == 0 && f & (FIN | PSH | URG) != 0
}

/// Whether a packet may open a connection.
pub(super) fn may_open(p: &Packet) -> bool {
    match p.tuple.proto {
        6 => !bad_flags(p.tcp_flags) && p.tcp_flags & (SYN | ACK) != SYN | ACK,
        1 => matches!(p.tuple.icmp_type, 8 | 13 | 15),
        58 => p.tuple.icmp_type == 128,
        _ => true,
    }
}

/// Whether a packet asks for a connection: it belongs to none that is open.
pub(super) fn asks(p: &Packet) -> bool {
    match p.tuple.proto {
        6 => p.tcp_flags & (SYN | ACK) == SYN,
        1 | 58 => may_open(p),
        _ => false,
    }
}

/// Sets the state of a new connection after its first packet.
pub(super) fn open(c: &mut Connection, p: &Packet, track_windows: bool) {
    c.phase = match p.tuple.proto {
        6 => Phase::TcpFirst,
        1 | 58 => Phase::IcmpFirst,
        _ => Phase::First,
    };
    if p.tuple.proto == 6 {
        c.ends[0] = TcpState::SynSent;
        c.window =
            p.segment.filter(|_| track_windows).map(|s| Box::new(window::Window::open(&s, p.tcp_flags & SYN != 0)));
    }
}

/// Updates the state of a connection after a packet.
pub(super) fn update(c: &mut Connection, p: &Packet, dir: Direction) -> Update {
    let before = (c.ends, c.phase, c.replied);
    let result = match c.original.proto {
        6 => tcp(c, p, dir),
        1 | 58 => {
            if dir == Direction::Reply {
                c.phase = Phase::IcmpReply;
            }
            Update::Valid { established: c.phase == Phase::IcmpReply }
        }
        _ => {
            c.phase = match (c.phase, dir) {
                (_, Direction::Reply) | (Phase::Multiple, _) => Phase::Multiple,
                _ => Phase::Single,
            };
            Update::Valid { established: c.phase == Phase::Multiple }
        }
    };
    if matches!(result, Update::Valid { .. }) {
        c.replied |= dir == Direction::Reply;
        c.version = c.version.wrapping_add(u32::from(before != (c.ends, c.phase, c.replied)));
    }
    result
}

fn tcp(c: &mut Connection, p: &Packet, dir: Direction) -> Update {
    use TcpState as S;
    let f = p.tcp_flags;
    if bad_flags(f) {
        return Update::Invalid;
    }
    let (from, to) = match dir {
        Direction::Original => (0, 1),
        Direction::Reply => (1, 0),
    };
    let [mut src, mut dst] = [c.ends[from], c.ends[to]];
    if f & (SYN | ACK) == SYN {
        if src >= S::FinWait2 && dst >= S::FinWait2 {
            return Update::Reopen;
        }
        if src <= S::SynSent {
            c.ends[from] = S::SynSent;
            c.phase = Phase::TcpOpening;
            if let (Some(w), Some(s)) = (&mut c.window, &p.segment) {
                w.restart(s, from);
            }
            return Update::Valid { established: false };
        }
    }
    if !fits(c, p.segment.as_ref(), f, from) {
        return Update::Invalid;
    }
    src = src.max(S::SynSent);
    if f & FIN != 0 {
        src = src.max(S::Closing);
    }
    if f & ACK != 0 {
        dst = match dst {
            S::SynSent => S::Established,
            S::Closing => S::FinWait2,
            s => s,
        };
    }
    if f & RST != 0 {
        (src, dst) = (S::TimeWait, S::TimeWait);
    }
    (c.ends[from], c.ends[to]) = (src, dst);
    let (low, high) = (src.min(dst), src.max(dst));
    c.phase = if low >= S::FinWait2 {
        Phase::TcpClosed
    } else if low >= S::Closing {
        Phase::TcpFinWait
    } else if low < S::Established {
        Phase::TcpOpening
    } else if high >= S::Closing {
        Phase::TcpClosing
    } else {
        Phase::TcpEstablished
    };
    Update::Valid { established: true }
}

/// Whether a segment lies within the windows, if they are tracked.
fn fits(c: &mut Connection, s: Option<&Segment>, flags: u16, from: usize) -> bool {
    let loose = c.ends[1 - from] < TcpState::SynSent || c.ends.iter().any(|e| *e >= TcpState::FinWait2);
    let (Some(w), Some(s)) = (&mut c.window, s) else { return true };
    w.accept(s, flags, from, loose)
}
