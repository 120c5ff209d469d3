//! Control packets (RFC 5880 section 4.1).

/// The state of a session (RFC 5880 section 4.1, field Sta).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Held down by the operator.
    AdminDown,
    /// Not up, or the peer does not hear us.
    Down,
    /// The peer is heard; it does not say that it hears us.
    Init,
    /// Both hear each other.
    Up,
}

impl State {
    fn from_bits(b: u8) -> State {
        match b & 3 {
            0 => State::AdminDown,
            1 => State::Down,
            2 => State::Init,
            _ => State::Up,
        }
    }

    fn bits(self) -> u8 {
        match self {
            State::AdminDown => 0,
            State::Down => 1,
            State::Init => 2,
            State::Up => 3,
        }
    }

    /// The name that Open vSwitch writes into `bfd_status`.
    pub fn name(self) -> &'static str {
        match self {
            State::AdminDown => "admin_down",
            State::Down => "down",
            State::Init => "init",
            State::Up => "up",
        }
    }
}

/// Why the session last left Up (RFC 5880 section 4.1, field Diag).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Diagnostic {
    /// No Diagnostic.
    #[default]
    None,
    /// Control Detection Time Expired.
    TimeExpired,
    /// Echo Function Failed.
    EchoFailed,
    /// Neighbor Signaled Session Down.
    NeighborDown,
    /// Forwarding Plane Reset.
    ForwardingReset,
    /// Path Down.
    PathDown,
    /// Concatenated Path Down.
    ConcatenatedPathDown,
    /// Administratively Down.
    AdminDown,
    /// Reverse Concatenated Path Down.
    ReverseConcatenatedPathDown,
    /// A value that RFC 5880 reserves.
    Reserved(u8),
}

impl Diagnostic {
    fn from_bits(b: u8) -> Diagnostic {
        match b & 0x1f {
            0 => Diagnostic::None,
            1 => Diagnostic::TimeExpired,
            2 => Diagnostic::EchoFailed,
            3 => Diagnostic::NeighborDown,
            4 => Diagnostic::ForwardingReset,
            5 => Diagnostic::PathDown,
            6 => Diagnostic::ConcatenatedPathDown,
            7 => Diagnostic::AdminDown,
            8 => Diagnostic::ReverseConcatenatedPathDown,
            n => Diagnostic::Reserved(n),
        }
    }

    fn bits(self) -> u8 {
        match self {
            Diagnostic::None => 0,
            Diagnostic::TimeExpired => 1,
            Diagnostic::EchoFailed => 2,
            Diagnostic::NeighborDown => 3,
            Diagnostic::ForwardingReset => 4,
            Diagnostic::PathDown => 5,
            Diagnostic::ConcatenatedPathDown => 6,
            Diagnostic::AdminDown => 7,
            Diagnostic::ReverseConcatenatedPathDown => 8,
            Diagnostic::Reserved(n) => n & 0x1f,
        }
    }

    /// The text that Open vSwitch writes into `bfd_status`.
    pub fn text(self) -> &'static str {
        match self {
            Diagnostic::None => "No Diagnostic",
            Diagnostic::TimeExpired => "Control Detection Time Expired",
            Diagnostic::EchoFailed => "Echo Function Failed",
            Diagnostic::NeighborDown => "Neighbor Signaled Session Down",
            Diagnostic::ForwardingReset => "Forwarding Plane Reset",
            Diagnostic::PathDown => "Path Down",
            Diagnostic::ConcatenatedPathDown => "Concatenated Path Down",
            Diagnostic::AdminDown => "Administratively Down",
            Diagnostic::ReverseConcatenatedPathDown => "Reverse Concatenated Path Down",
            Diagnostic::Reserved(_) => "Reserved",
        }
    }
}

/// A control packet without authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Why the sender's session last left Up.
    pub diagnostic: Diagnostic,
    /// The sender's state.
    pub state: State,
    /// The sender wants its change of parameters confirmed.
    pub poll: bool,
    /// This confirms a poll.
    pub final_: bool,
    /// The sender's BFD shares fate with its forwarding plane rather than its control plane when this is set.
    pub control_plane_independent: bool,
    /// The sender asks not to be sent periodic packets.
    pub demand: bool,
    /// Packets that may be missed before the session is declared down.
    pub detect_mult: u8,
    /// The sender's number for the session; never 0.
    pub my_discriminator: u32,
    /// The receiver's number as the sender knows it; 0 if it does not.
    pub your_discriminator: u32,
    /// How often the sender would like to send, in microseconds.
    pub desired_min_tx: u32,
    /// How often the sender can receive, in microseconds; 0: not at all.
    pub required_min_rx: u32,
    /// How often it can receive echo packets, in microseconds; 0: not at all.
    pub required_min_echo_rx: u32,
}

/// Why a packet is discarded (RFC 5880 section 6.8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// "If the version number is not correct (1), the packet MUST be discarded."
    #[error("version {0}, only 1 is known")]
    Version(u8),
    /// "If the Length field is less than the minimum correct value (24 if the A bit is clear, or 26 if the A bit is
    /// set), the packet MUST be discarded"; and if it is greater than the payload.
    #[error("length {0} does not fit the packet")]
    Length(usize),
    /// "If the Detect Mult field is zero, the packet MUST be discarded."
    #[error("detect multiplier is zero")]
    DetectMult,
    /// "If the Multipoint (M) bit is nonzero, the packet MUST be discarded." We never set it: "It MUST be zero on both
    /// transmit and receipt" (RFC 5880 section 4.1).
    #[error("multipoint bit is set")]
    Multipoint,
    /// "If the My Discriminator field is zero, the packet MUST be discarded."
    #[error("my discriminator is zero")]
    MyDiscriminator,
    /// "If the A bit is set and no authentication is in use (bfd.AuthType is zero), the packet MUST be discarded."
    #[error("authentication is not in use here")]
    Authentication,
    /// "If the Your Discriminator field is zero and the State field is not Down or AdminDown, the packet MUST be
    /// discarded."
    #[error("your discriminator is zero in state {0:?}")]
    YourDiscriminator(State),
    /// "If the Your Discriminator field is nonzero, it MUST be used to select the session ... If no session is found,
    /// the packet MUST be discarded."
    #[error("your discriminator {0:#x} is not this session's")]
    Unknown(u32),
}

const LEN: usize = 24;

impl Packet {
    /// Parses a UDP payload.
    ///
    /// # Errors
    /// [`PacketError`]: the packet is to be discarded.
    pub fn parse(b: &[u8]) -> Result<Packet, PacketError> {
        let Some(h) = b.first_chunk::<LEN>() else { return Err(PacketError::Length(b.len())) };
        let version = h[0] >> 5;
        if version != 1 {
            return Err(PacketError::Version(version));
        }
        let flags = h[1];
        let length = usize::from(h[3]);
        let authenticated = flags & 0x04 != 0;
        if length < if authenticated { 26 } else { LEN } || length > b.len() {
            return Err(PacketError::Length(length));
        }
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let p = Packet {
            diagnostic: Diagnostic::from_bits(h[0]),
            state: State::from_bits(flags >> 6),
            poll: flags & 0x20 != 0,
            final_: flags & 0x10 != 0,
            control_plane_independent: flags & 0x08 != 0,
            demand: flags & 0x02 != 0,
            detect_mult: h[2],
            my_discriminator: word(4),
            your_discriminator: word(8),
            desired_min_tx: word(12),
            required_min_rx: word(16),
            required_min_echo_rx: word(20),
        };
        if p.detect_mult == 0 {
            return Err(PacketError::DetectMult);
        }
        if flags & 0x01 != 0 {
            return Err(PacketError::Multipoint);
        }
        if p.my_discriminator == 0 {
            return Err(PacketError::MyDiscriminator);
        }
        if p.your_discriminator == 0 && !matches!(p.state, State::Down | State::AdminDown) {
            return Err(PacketError::YourDiscriminator(p.state));
        }
        if authenticated {
            return Err(PacketError::Authentication);
        }
        Ok(p)
    }

    /// The bytes of the UDP payload.
    pub fn to_bytes(&self) -> [u8; LEN] {
        let mut b = [0; LEN];
        b[0] = 1 << 5 | self.diagnostic.bits();
        b[1] = self.state.bits() << 6
            | u8::from(self.poll) << 5
            | u8::from(self.final_) << 4
            | u8::from(self.control_plane_independent) << 3
            | u8::from(self.demand) << 1;
        b[2] = self.detect_mult;
        b[3] = LEN as u8;
        let words = [
            self.my_discriminator,
            self.your_discriminator,
            self.desired_min_tx,
            self.required_min_rx,
            self.required_min_echo_rx,
        ];
        for (n, w) in words.iter().enumerate() {
            b[4 + 4 * n..8 + 4 * n].copy_from_slice(&w.to_be_bytes());
        }
        b
    }
}
