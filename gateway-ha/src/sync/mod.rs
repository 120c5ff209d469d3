//! How gateways tell each other of their connections, so that these survive the death of one. No I/O, no clock.
//!
//! Each chassis opens a stream to each of its peers and tells it its own connections there; what the peer has to say
//! comes over the peer's own stream. Records of a stream stay in order. What changed is known to the switch's journal
//! (`switch::conntrack::journal`), so a stream that is cut needs no memory: the next one begins with a dump.
//!
//! ```text
//! sender                                        receiver
//!   │ HELLO version, boot, chassis' name          │
//!   │ ───────────────────────────────────────────►│
//!   │ ◄────────────────────────────── WELCOME ─── │
//!   │ ZONE number, name …                         │ numbers differ between chassis, names do not
//!   │ BEGIN   PUT … STATE … CLOSE … PUT …   END   │ what the dump did not tell is gone
//!   │ PUT  STATE  CLOSE  …                        │ live
//!   │ GAVE-WAY slot, CLOSE slot                   │ it is the receiver's; who gave way as well takes it back
//!   │ LEARN idle, flow                            │ what keeps clients at their backends
//!   │ FENCE n ───────────────────────────────────►│
//!   │ ◄────────────────────────────── FENCE n ─── │ all before it is in the table: the time between is the lag
//!   │ ◄────────────────────────────── AGAIN ───── │ the receiver lacks something: a dump, please
//!   │ ◄─────────────────────────── WANT slot ──── │ it refused what is in this slot: once more, please
//! ```

pub mod codec;
mod incoming;
mod lags;
mod outgoing;

pub use codec::{Connection, Decoder, Record, State, Tuple};
pub use incoming::{Effect, Incoming, ProtocolError};
pub use lags::Lags;
pub use outgoing::{Outgoing, Reply};

/// The version of the records. A receiver takes any later one: it skips records that it does not know, and what it does
/// not know at the end of others.
pub const VERSION: u16 = 1;
