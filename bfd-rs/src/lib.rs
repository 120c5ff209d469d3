//! Bidirectional Forwarding Detection (RFC 5880, 5881, 5883), asynchronous mode: packets, state machine and
//! sessions, without sockets, clocks or tasks. Time comes in as microseconds of any monotonic clock; packets come in
//! and go out as bytes.
//!
//! ```text
//!                             +--+
//!                             |  | UP, ADMIN DOWN, timer
//!                             |  V
//!                     DOWN  +------+  INIT
//!              +------------|      |------------+
//!              |            | DOWN |            |
//!              |  +-------->|      |<--------+  |
//!              |  |         +------+         |  |
//!              |  |     ADMIN DOWN,|         |  |
//!              |  |ADMIN DOWN,     |   DOWN, |  |
//!              |  |TIMER      TIMER|         |  |
//!              V  |                |         |  V
//!            +------+            +------+
//!       +----|      |            |      |----+
//!   DOWN|    | INIT |----------->|  UP  |    |INIT, UP
//!       +--->|      | INIT, UP   |      |<---+
//!            +------+            +------+
//! ```
//! (RFC 5880 section 6.2.)

mod packet;
mod session;
mod sessions;

pub use packet::{Diagnostic, Packet, PacketError, State};
pub use session::{Config, Session, Timer};
pub use sessions::{
    Change, Datagram, Discard, Ends, MULTI_HOP_PORT, OpenError, Outgoing, Path, SINGLE_HOP_PORT, Sessions,
};
