//! Protocol states and timeouts.
//!
//! ```text
//! TCP:  SynSent --SYN+ACK back--> SynRecv --ACK--> Established --FIN--> Closing --FIN back--> TimeWait
//!       any --RST--> Closed;  TimeWait/Closed --SYN--> a new connection
//! ```

use super::{Connection, Direction, Packet};
use std::time::Duration;

const FIN: u16 = 1;
const SYN: u16 = 2;
const RST: u16 = 4;
const ACK: u16 = 16;

/// State of a TCP connection; other protocols stay `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TcpState {
    /// Not TCP.
    #[default]
    None,
    /// SYN seen.
    SynSent,
    /// SYN+ACK seen.
    SynRecv,
    /// Open.
    Established,
    /// One side closed.
    Closing,
    /// Both sides closed.
    TimeWait,
    /// Reset.
    Closed,
}

impl TcpState {
    /// The name that Open vSwitch prints.
    pub fn name(self) -> &'static str {
        match self {
            TcpState::None => "NONE",
            TcpState::SynSent => "SYN_SENT",
            TcpState::SynRecv => "SYN_RECV",
            TcpState::Established => "ESTABLISHED",
            TcpState::Closing => "CLOSING",
            TcpState::TimeWait => "TIME_WAIT",
            TcpState::Closed => "CLOSED",
        }
    }
}

/// What a packet does to its connection.
pub(super) enum Update {
    Valid,
    Invalid,
    Reopen,
}

fn bad_flags(f: u16) -> bool {
    f & SYN != 0 && f & (RST | FIN) != 0 || f & (SYN | RST | ACK) == 0
}

/// Whether a packet may open a connection.
pub(super) fn may_open(p: &Packet) -> bool {
    match p.tuple.proto {
        6 => !bad_flags(p.tcp_flags) && p.tcp_flags & (SYN | ACK) != SYN | ACK && p.tcp_flags & RST == 0,
        1 => matches!(p.tuple.icmp_type, 8 | 13 | 15),
        58 => p.tuple.icmp_type == 128,
        _ => true,
    }
}

/// The state after the first packet. Without a SYN the connection is taken up in the middle.
pub(super) fn opening(p: &Packet) -> TcpState {
    match (p.tuple.proto, p.tcp_flags & SYN != 0) {
        (6, true) => TcpState::SynSent,
        (6, false) => TcpState::Established,
        _ => TcpState::None,
    }
}

/// Seconds until an idle connection goes.
pub(super) fn timeout(c: &Connection) -> Duration {
    Duration::from_secs(match (c.original.proto, c.tcp) {
        (6, TcpState::SynSent | TcpState::SynRecv) => 30,
        (6, TcpState::Established) => 86_400,
        (6, TcpState::Closing) => 900,
        (6, TcpState::TimeWait) => 45,
        (6, _) => 30,
        (132, _) if c.replied => 210,
        _ if c.replied => 60,
        _ => 30,
    })
}

pub(super) fn update(c: &mut Connection, p: &Packet, dir: Direction, now: Duration) -> Update {
    let before = (c.tcp, c.replied);
    if c.original.proto == 6 {
        let f = p.tcp_flags;
        if bad_flags(f) {
            return Update::Invalid;
        }
        c.tcp = match (c.tcp, dir) {
            (TcpState::TimeWait | TcpState::Closed, _) if f & (SYN | ACK) == SYN => return Update::Reopen,
            (TcpState::SynSent, Direction::Reply) if f & (SYN | ACK) == SYN | ACK => TcpState::SynRecv,
            (TcpState::SynSent, Direction::Reply) if f & (RST | SYN) == 0 => return Update::Invalid,
            (_, _) if f & RST != 0 => TcpState::Closed,
            (TcpState::SynRecv, Direction::Original) if f & ACK != 0 && f & FIN == 0 => TcpState::Established,
            (TcpState::Established | TcpState::SynRecv, _) if f & FIN != 0 => TcpState::Closing,
            (TcpState::Closing, _) if f & FIN != 0 => TcpState::TimeWait,
            (s, _) => s,
        };
    }
    if dir == Direction::Reply {
        c.replied = true;
    }
    c.version = c.version.wrapping_add(u32::from(before != (c.tcp, c.replied)));
    c.expires = now + timeout(c);
    Update::Valid
}
