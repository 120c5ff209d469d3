//! Bidirectional Forwarding Detection (RFC 5880, 5881, 5882, 5883), asynchronous mode: packets, state machine and
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
//!
//! Every MUST is quoted beside its code. Where it is, and the test that holds it (`tests/session.rs`, `tests/sessions.rs`):
//!
//! | clause | code | test |
//! |---|---|---|
//! | 5880 4.1, 6.8.6: what is discarded | [`Packet::parse`], [`PacketError`] | `what_must_be_discarded_is` |
//! | 5880 6.2, 6.8.6: transitions | [`Session::receive`] | `every_transition` |
//! | 5880 6.3, 6.8.1: discriminators | [`Sessions::open`] | `one_session_for_two_ends_and_source_ports_of_their_own` |
//! | 5880 6.5, 6.8.3: Poll Sequences, changes of times | [`Session::configure`] | `one_poll_sequence_ends_before_the_next_begins`, `a_change_of_times_is_polled_and_does_not_flap` |
//! | 5880 6.8.1: session state is kept for a Detection Time | [`Sessions::close`], [`Session::poll`] | `a_closed_session_is_told_of_before_it_goes` |
//! | 5880 6.8.3: a second where not up; shorter intervals at once | [`Session::poll`] | every test with two ends, `a_peer_that_can_receive_faster_gets_packets_at_once` |
//! | 5880 6.8.4: detection | [`Session::detection_time`] | `two_ends_come_up_negotiate_and_notice_silence_in_time` |
//! | 5880 6.8.7: jitter | [`Session::poll`] | `every_interval_is_jittered`, `sessions_of_one_interval_send_in_company` |
//! | 5880 6.8.7: peers that receive nothing, or are in Demand mode | [`Session::poll`] | `a_peer_that_can_receive_nothing_is_not_sent_to`, `a_peer_in_demand_mode_is_not_sent_to` |
//! | 5880 6.8.15: the forwarding plane is reset | [`Session::forwarding_reset`] | `the_diagnostic_outlives_the_failure` |
//! | 5880 6.8.16: administrative control | [`Config::admin_down`] | `admin_down_is_told_to_the_peer_and_ends` |
//! | 5880 6.8.17: concatenated paths | [`Config::concatenated_path_down`], [`Session::forwarding`] | `a_path_beyond_that_is_down_is_told` |
//! | 5880 7: congestion control | [`Config::congestion_control`] | `congestion_lowers_the_rate_and_its_end_raises_it`, `several_hops_have_congestion_control` |
//! | 5880 9, 5881 5: TTL 255 | [`Sessions::receive`], [`Outgoing`] | `over_one_hop_the_interface_and_the_sender_count` |
//! | 5881 2, 5882 4.4: one session a path and protocol | [`OpenError::Exists`] | `one_session_for_two_ends_and_source_ports_of_their_own` |
//! | 5881 3, 4, 6: first packets, ports, addresses | [`Sessions::receive`], [`Path`], [`Outgoing`] | `over_one_hop_…`, `over_a_point_to_point_link_any_address_is_the_peer` |
//! | 5882 3.2, 4.1: a peer or this side in AdminDown tells nothing of the path, and "the establishment of a control protocol adjacency MUST be allowed" | [`Session::state`], [`Session::remote`] | `a_closed_session_is_told_of_before_it_goes` |
//! | 5883 4.1, 5: address pairs, port 4784 | [`Path::MultiHop`] | `over_several_hops_both_addresses_and_the_allowed_distance_count` |
//!
//! What there is not, and which MUSTs therefore have nothing to apply to:
//!
//! - Authentication (5880 4.2 to 4.4, 6.7): optional; packets with it are discarded. 5883 section 6 recommends it over several
//!   hops; without it, what [`Path::MultiHop`] allows is the guard.
//! - The Echo function (5880 6.8.5, 6.8.8, 6.8.9, 6.8.13; 5881 section 4): packets say that none is received, none is sent, and "the
//!   Echo function MUST NOT be used over multiple hops" (5883 section 3).
//! - Demand mode of our own (5880 6.6, 6.8.10, 6.8.11): the bit is never set. A peer's is honoured.
//! - The Passive role (5880 6.1), and with it 5883's unidirectional links (section 4.3) and discriminators signalled out of
//!   band (section 4.2): every session sends from its start.
//! - Limits to the rate of answers to polls (5880 6.8.7): there are none.
//! - The bits of a session's wire that are the caller's: sending on the given interface with TTL 255, from an address of the
//!   link's subnet (5881 sections 5 and 6); what control protocols do with a session's state (5882 section 4).

mod congestion;
mod packet;
mod session;
mod sessions;
mod timers;

pub use packet::{Diagnostic, Packet, PacketError, State};
pub use session::{Config, Session, Timer};
pub use sessions::{
    Change, Datagram, Discard, Ends, MULTI_HOP_PORT, OpenError, Outgoing, Path, SINGLE_HOP_PORT, Sessions,
};
pub use timers::Timers;
