//! One session (RFC 5880 section 6.8).

use crate::congestion::Congestion;
use crate::{Diagnostic, Packet, PacketError, State};

/// Slowest rate at which a session that is not up sends: "The initial value MUST be ... at least one second"
/// (RFC 5880 section 6.8.3), in microseconds.
const SLOW: u32 = 1_000_000;

/// Sessions send at ticks that all sessions of about the same interval share: those of many peers leave together, and a thread that
/// has a thousand of them wakes up for a hundred and not for each. A session has at least so many ticks to choose from.
const CHOICES: u64 = 3;

/// What the operator wants of a session. Times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How often to send when up.
    pub desired_min_tx: u32,
    /// How often packets can be received.
    pub required_min_rx: u32,
    /// Packets that the peer may miss.
    pub detect_mult: u8,
    /// Hold the session down.
    pub admin_down: bool,
    /// This side's BFD runs with the forwarding plane.
    pub control_plane_independent: bool,
    /// A path beyond this system is down: the peer is told so, the session stays up (RFC 5880 section 6.8.17).
    pub concatenated_path_down: bool,
    /// Slow down on a path that loses packets (RFC 5880 section 7). Over several hops that is done always.
    pub congestion_control: bool,
}

impl Default for Config {
    /// Open vSwitch's defaults (ovs-vswitchd.conf.db(5), `bfd`): 100 ms, 1000 ms, 3.
    fn default() -> Config {
        Config {
            desired_min_tx: 100_000,
            required_min_rx: 1_000_000,
            detect_mult: 3,
            admin_down: false,
            control_plane_independent: false,
            concatenated_path_down: false,
            congestion_control: false,
        }
    }
}

/// A clock's reading in microseconds.
pub type Timer = u64;

/// A session with one peer.
#[derive(Clone, Debug)]
pub struct Session {
    config: Config,
    state: State,
    diagnostic: Diagnostic,
    local_discriminator: u32,
    remote_discriminator: u32,
    remote_state: State,
    remote_diagnostic: Diagnostic,
    remote_min_rx: u32,
    remote_min_tx: u32,
    remote_mult: u8,
    remote_demand: bool,
    /// The interval in force for sending; differs from the configured one while a poll is under way.
    tx_in_force: u32,
    rx_in_force: u32,
    poll: Poll,
    answer_poll: bool,
    /// The last periodic packet, and when the next one is due.
    last_tx: Option<Timer>,
    next_tx: Timer,
    /// The last packet from the peer; none once that is a detection time ago.
    last_rx: Option<Timer>,
    heard: Option<Packet>,
    jitter: u32,
    flaps: u64,
    congestion: Congestion,
}

/// Where a Poll Sequence stands. If parameters change again before it has ended, its Final says nothing of the new ones; of the
/// three ways that RFC 5880 section 6.8.3 leaves, this is the third: "an additional BFD Control packet with the Final (F) bit
/// *clear* MUST be received after the Poll Sequence has completed prior to the initiation of another Poll Sequence".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poll {
    /// None.
    Idle,
    /// Packets carry the Poll bit; whether there must be another sequence after this one.
    Active { again: bool },
    /// A sequence has ended; no packet without the Final bit came since. Whether there must be another one.
    Ended { again: bool },
}

impl Session {
    /// A session that starts in Down (AdminDown if so configured). `discriminator` is this side's number for it,
    /// unique on this system and not 0; it seeds the jitter, too.
    pub fn new(config: Config, discriminator: u32, now: Timer) -> Session {
        let mut s = Session {
            config,
            // "bfd.SessionState ... MUST be initialized to Down", and so must bfd.RemoteSessionState (RFC 5880 section
            // 6.8.1, as all that follow).
            state: State::Down,
            // "bfd.LocalDiag ... MUST be initialized to zero (No Diagnostic)."
            diagnostic: Diagnostic::None,
            // "bfd.LocalDiscr ... MUST be unique across all BFD sessions on this system, and nonzero."
            local_discriminator: discriminator.max(1),
            // "bfd.RemoteDiscr ... MUST be initialized to zero."
            remote_discriminator: 0,
            remote_state: State::Down,
            remote_diagnostic: Diagnostic::None,
            // "bfd.RemoteMinRxInterval ... MUST be initialized to 1."
            remote_min_rx: 1,
            remote_min_tx: 0,
            remote_mult: 0,
            // "bfd.RemoteDemandMode ... MUST be initialized to zero."
            remote_demand: false,
            // "bfd.DesiredMinTxInterval ... MUST be initialized to a value of at least one second."
            tx_in_force: config.desired_min_tx.max(SLOW),
            rx_in_force: config.required_min_rx,
            poll: Poll::Idle,
            answer_poll: false,
            last_tx: None,
            next_tx: now,
            last_rx: None,
            heard: None,
            jitter: discriminator | 1,
            flaps: 0,
            congestion: Congestion::default(),
        };
        if config.admin_down {
            s.go(State::AdminDown, Diagnostic::AdminDown);
        }
        s
    }

    /// What the operator wants.
    pub fn config(&self) -> Config {
        self.config
    }

    /// This side's state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why this side last left Up; while it is up, whether a path beyond is down.
    pub fn diagnostic(&self) -> Diagnostic {
        // "A system MAY signal one of these failure states by simply setting bfd.LocalDiag to the appropriate diagnostic code
        // ... if the BFD session subsequently fails, the diagnostic code will be overwritten" (RFC 5880 section 6.8.17).
        let beyond = self.config.concatenated_path_down && self.state == State::Up;
        if beyond { Diagnostic::ConcatenatedPathDown } else { self.diagnostic }
    }

    /// Packets may take this path: the session is up, and the peer does not tell of a path that is down.
    pub fn forwarding(&self) -> bool {
        self.state == State::Up && !self.path_down()
    }

    /// The peer tells of a path to it or beyond it that is down.
    pub fn path_down(&self) -> bool {
        use Diagnostic::{ConcatenatedPathDown, PathDown, ReverseConcatenatedPathDown};
        matches!(self.remote_diagnostic, PathDown | ConcatenatedPathDown | ReverseConcatenatedPathDown)
    }

    /// The state and diagnostic that the peer last sent.
    pub fn remote(&self) -> (State, Diagnostic) {
        (self.remote_state, self.remote_diagnostic)
    }

    /// The peer's last packet; none once that is a detection time ago.
    pub fn heard(&self) -> Option<&Packet> {
        self.heard.as_ref()
    }

    /// The packet that would be sent now.
    pub fn says(&self) -> Packet {
        self.packet(self.answer_poll)
    }

    /// When the peer counts as gone, when the next periodic packet is due, and when the last one was sent.
    pub fn timers(&self) -> [Option<Timer>; 3] {
        [self.detect_at(), Some(self.next_tx), self.last_tx]
    }

    /// This side's number for the session.
    pub fn discriminator(&self) -> u32 {
        self.local_discriminator
    }

    /// The peer's number; 0 until it is heard.
    pub fn remote_discriminator(&self) -> u32 {
        self.remote_discriminator
    }

    /// How often the state changed to or from Up.
    pub fn flaps(&self) -> u64 {
        self.flaps
    }

    /// Changes what the operator wants. A change of times while up is agreed upon with the peer by a poll
    /// (RFC 5880 section 6.8.3).
    pub fn configure(&mut self, config: Config, now: Timer) {
        if config == self.config {
            return;
        }
        let old = std::mem::replace(&mut self.config, config);
        if config.admin_down != old.admin_down {
            // "If enabling session: Set bfd.SessionState to Down. Else: Set bfd.SessionState to AdminDown, Set
            // bfd.LocalDiag to an appropriate value" (section 6.8.16).
            if config.admin_down {
                self.go(State::AdminDown, Diagnostic::AdminDown);
            } else {
                self.go(State::Down, Diagnostic::None);
            }
            self.next_tx = now;
            return;
        }
        if !config.congestion_control {
            self.congestion = Congestion::default();
        }
        let times = |c: &Config| (c.desired_min_tx, c.required_min_rx, c.congestion_control);
        if times(&config) != times(&old) {
            self.times_changed(now);
        }
        if config.concatenated_path_down != old.concatenated_path_down && self.state == State::Up {
            // "If Demand mode is active on the remote system ..., a Poll Sequence MUST be initiated to ensure that the
            // diagnostic code is transmitted" (section 6.8.17).
            if self.remote_demand {
                self.start_poll();
            }
            self.next_tx = now;
        }
    }

    /// "When the forwarding plane in the local system is reset for some reason, such that the remote system can no longer
    /// rely on the local forwarding state, the local system MUST set bfd.LocalDiag to 4 (Forwarding Plane Reset), and set
    /// bfd.SessionState to Down" (RFC 5880 section 6.8.15).
    pub fn forwarding_reset(&mut self, now: Timer) {
        if matches!(self.state, State::Init | State::Up) {
            self.go(State::Down, Diagnostic::ForwardingReset);
            self.next_tx = now;
        }
    }

    /// "If either bfd.DesiredMinTxInterval is changed or bfd.RequiredMinRxInterval is changed, a Poll Sequence MUST be
    /// initiated" (RFC 5880 section 6.8.3): at once in Up; a session that is not up yet begins one when it comes up.
    fn times_changed(&mut self, now: Timer) {
        if self.state == State::Up {
            self.start_poll();
            // "If bfd.DesiredMinTxInterval is increased and bfd.SessionState is Up, the actual transmission interval used
            // MUST NOT change until the Poll Sequence ... has terminated", and likewise "if bfd.RequiredMinRxInterval is reduced
            // ..., the previous value ... MUST be used when calculating the Detection Time": what is in force stays the
            // more careful of both until then.
            self.tx_in_force = self.tx_in_force.min(self.wanted_tx());
            self.rx_in_force = self.rx_in_force.max(self.wanted_rx());
        } else {
            self.settle();
        }
        // "In any case other than those explicitly called out above, timing parameter changes MUST be effected immediately."
        self.hurry(now);
    }

    /// "The Poll Sequence MUST be performed by setting the Poll (P) bit on those scheduled periodic transmissions; additional
    /// packets MUST NOT be sent" (RFC 5880 section 6.5).
    fn start_poll(&mut self) {
        self.poll = match self.poll {
            Poll::Idle => Poll::Active { again: false },
            Poll::Active { .. } => Poll::Active { again: true },
            Poll::Ended { .. } => Poll::Ended { again: true },
        };
    }

    /// What is wanted is in force.
    fn settle(&mut self) {
        self.tx_in_force = self.wanted_tx();
        self.rx_in_force = self.wanted_rx();
    }

    /// A shorter interval counts from the last packet: "the local system cannot wait longer than the new interval between the
    /// previous packet transmission and the next one. If this interval has already passed ..., the local system MUST send
    /// the next periodic BFD Control packet as soon as practicable" (RFC 5880 section 6.8.3).
    fn hurry(&mut self, now: Timer) {
        let due = self.last_tx.map_or(now, |t| t + u64::from(self.tx_interval())).max(now);
        self.next_tx = self.next_tx.min(due);
    }

    /// "When bfd.SessionState is not Up, the system MUST set bfd.DesiredMinTxInterval to a value of not less than one
    /// second" (RFC 5880 section 6.8.3).
    fn wanted_tx(&self) -> u32 {
        let wanted = self.congestion.stretch(self.config.desired_min_tx).max(1);
        if self.state == State::Up { wanted } else { wanted.max(SLOW) }
    }

    fn wanted_rx(&self) -> u32 {
        self.congestion.stretch(self.config.required_min_rx)
    }

    fn go(&mut self, state: State, diagnostic: Diagnostic) {
        if state == self.state {
            return;
        }
        if state == State::Up || self.state == State::Up {
            self.flaps += 1;
            self.congestion.restart();
        }
        self.state = state;
        self.diagnostic = diagnostic;
        if state == State::Up {
            // The faster rate is announced at once and agreed upon by a poll.
            self.poll = Poll::Active { again: false };
            self.tx_in_force = self.tx_in_force.min(self.wanted_tx());
        } else {
            self.poll = Poll::Idle;
            self.settle();
        }
    }

    /// A detection time has passed without a packet: "If a period of a Detection Time passes without the receipt of a valid,
    /// authenticated BFD packet from the remote system, [bfd.RemoteDiscr] MUST be set to zero" (RFC 5880 section 6.8.1), and "it
    /// SHOULD reset bfd.RemoteMinRxInterval to its initial value of 1" (section 6.8.18).
    fn forget_peer(&mut self) {
        self.last_rx = None;
        self.heard = None;
        self.remote_discriminator = 0;
        self.remote_min_rx = 1;
        self.remote_demand = false;
        self.remote_state = State::Down;
        self.remote_diagnostic = Diagnostic::None;
    }

    /// Takes a received packet. Gives the new state where it changed.
    ///
    /// # Errors
    /// [`PacketError`]: the packet was discarded, and changed nothing.
    pub fn receive(&mut self, bytes: &[u8], now: Timer) -> Result<Option<State>, PacketError> {
        let p = Packet::parse(bytes)?;
        if p.your_discriminator != 0 && p.your_discriminator != self.local_discriminator {
            return Err(PacketError::Unknown(p.your_discriminator));
        }
        self.heard = Some(p);
        self.remote_discriminator = p.my_discriminator;
        self.remote_state = p.state;
        self.remote_diagnostic = p.diagnostic;
        self.remote_min_rx = p.required_min_rx;
        self.remote_min_tx = p.desired_min_tx;
        self.remote_mult = p.detect_mult;
        self.remote_demand = p.demand;
        // "If a Poll Sequence is being transmitted by the local system and the Final (F) bit in the received packet is
        // set, the Poll Sequence MUST be terminated."
        match (self.poll, p.final_) {
            (Poll::Active { again }, true) => {
                self.poll = Poll::Ended { again };
                if !again {
                    self.settle();
                }
            }
            (Poll::Ended { again: true }, false) => self.poll = Poll::Active { again: false },
            (Poll::Ended { again: false }, false) => self.poll = Poll::Idle,
            _ => {}
        }
        self.last_rx = Some(now);
        // "If bfd.SessionState is AdminDown, discard the packet."
        if self.state == State::AdminDown {
            return Ok(None);
        }
        let before = self.state;
        self.transition(p.state);
        // "If a BFD Control packet is received with the Poll (P) bit set to 1, the receiving system MUST transmit a BFD
        // Control packet with the Poll (P) bit clear and the Final (F) bit set as soon as practicable, without respect to
        // the transmission timer" (section 6.8.7).
        if p.poll {
            self.answer_poll = true;
        }
        if before != self.state {
            // The peer learns of the change at once.
            self.next_tx = now;
            return Ok(Some(self.state));
        }
        if self.config.congestion_control
            && self.state == State::Up
            && self.congestion.heard(now, self.receive_interval())
        {
            self.times_changed(now);
        }
        // "If the local system reduces its transmit interval due to bfd.RemoteMinRxInterval being reduced ..., and the
        // remote system is not in Demand mode, the local system MUST honor the new interval immediately" (section 6.8.3).
        // "If bfd.RemoteDemandMode is 0, or bfd.SessionState is not Up, or bfd.RemoteSessionState is not Up, ... the local
        // system MUST send periodic BFD Control packets" (section 6.8.6).
        if self.sends_periodically() {
            self.hurry(now);
        }
        Ok(None)
    }

    /// "A system MUST NOT periodically transmit BFD Control packets if bfd.RemoteMinRxInterval is zero", nor "if Demand mode
    /// is active on the remote system (bfd.RemoteDemandMode is 1, bfd.SessionState is Up, and bfd.RemoteSessionState is Up) and a
    /// Poll Sequence is not being transmitted" (RFC 5880 section 6.8.7).
    fn sends_periodically(&self) -> bool {
        let demand = self.remote_demand && self.state == State::Up && self.remote_state == State::Up;
        self.remote_min_rx != 0 && (!demand || self.polling())
    }

    fn polling(&self) -> bool {
        matches!(self.poll, Poll::Active { .. })
    }

    /// RFC 5880 section 6.8.6: what the peer's state does to this side's.
    fn transition(&mut self, remote: State) {
        match (self.state, remote) {
            (State::Init | State::Up, State::AdminDown) => self.go(State::Down, Diagnostic::NeighborDown),
            // The diagnostic says why the session last went down, also when it is up again (section 4.1).
            (State::Down, State::Down) => self.go(State::Init, self.diagnostic),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => self.go(State::Up, self.diagnostic),
            (State::Up, State::Down) => self.go(State::Down, Diagnostic::NeighborDown),
            _ => {}
        }
    }

    /// How long without a packet means that the peer is gone, in microseconds: "the value of Detect Mult received from
    /// the remote system, multiplied by the agreed transmit interval of the remote system (the greater of
    /// bfd.RequiredMinRxInterval and the last received Desired Min TX Interval)" (RFC 5880 section 6.8.4).
    pub fn detection_time(&self) -> u64 {
        u64::from(self.remote_mult) * self.receive_interval()
    }

    /// The interval at which the peer may send at most, in microseconds.
    pub fn receive_interval(&self) -> u64 {
        u64::from(self.rx_in_force.max(self.remote_min_tx))
    }

    fn detect_at(&self) -> Option<Timer> {
        self.last_rx.map(|t| t + self.detection_time())
    }

    /// The interval between packets that this side sends, without jitter, in microseconds: "a system MUST NOT transmit
    /// BFD Control packets at an interval less than the larger of bfd.DesiredMinTxInterval and bfd.RemoteMinRxInterval"
    /// (RFC 5880 section 6.8.7).
    pub fn tx_interval(&self) -> u32 {
        self.tx_in_force.max(self.remote_min_rx)
    }

    /// When the next packet is due after one at `now`, at a tick that sessions share: "The periodic
    /// transmission of BFD Control packets MUST be jittered on a per-packet basis by up to 25% ... If bfd.DetectMult is equal
    /// to 1, the interval ... MUST be no more than 90% of the negotiated transmission interval, and MUST be no less than 75%"
    /// (RFC 5880 section 6.8.7).
    ///
    /// Ticks are a power of two apart, so that those of a longer interval are among those of a shorter one: 8.2 ms at 100 ms.
    fn next_in_company(&mut self, now: Timer) -> Timer {
        self.jitter = self.jitter.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let interval = u64::from(self.tx_interval());
        let most = if self.config.detect_mult == 1 { 90 } else { 100 };
        let (soonest, latest) = (now + (interval * 75).div_ceil(100), now + interval * most / 100);
        let tick = 1 << ((latest.saturating_sub(soonest)) / CHOICES).max(1).ilog2();
        let (first, last) = (soonest.div_ceil(tick), latest / tick);
        match (last + 1).checked_sub(first) {
            None | Some(0) => latest,
            Some(choices) => (first + u64::from(self.jitter >> 16) % choices) * tick,
        }
    }

    /// When [`Session::poll`] wants to be called next.
    pub fn deadline(&self) -> Timer {
        let tx = if self.answer_poll { 0 } else { self.next_tx };
        self.detect_at().map_or(tx, |d| d.min(tx))
    }

    /// Does what the time asks for: declares a silent peer down, and gives a packet to send if one is due.
    /// The second value is the new state where it changed.
    pub fn poll(&mut self, now: Timer) -> (Option<Packet>, Option<State>) {
        let mut changed = None;
        if self.detect_at().is_some_and(|d| now >= d) {
            self.forget_peer();
            // "If Demand mode is not active, and a period of time equal to the Detection Time passes without receiving a BFD
            // Control packet from the remote system, and bfd.SessionState is Init or Up, the session has gone down -- the local
            // system MUST set bfd.SessionState to Down and bfd.LocalDiag to 1" (section 6.8.4).
            if matches!(self.state, State::Init | State::Up) {
                if self.config.congestion_control && self.state == State::Up {
                    self.congestion.silent();
                }
                self.go(State::Down, Diagnostic::TimeExpired);
                self.next_tx = now;
                changed = Some(self.state);
            }
        }
        if self.answer_poll {
            // An answer does not wait for its turn, and does not change when the next packet is due.
            self.answer_poll = false;
            return (Some(self.packet(true)), changed);
        }
        if now < self.next_tx {
            return (None, changed);
        }
        if !self.sends_periodically() {
            self.next_tx = now + u64::from(SLOW);
            return (None, changed);
        }
        self.last_tx = Some(now);
        self.next_tx = self.next_in_company(now);
        (Some(self.packet(false)), changed)
    }

    /// The packet that says how things are: "The contents of transmitted BFD Control packets MUST be set as follows"
    /// (RFC 5880 section 6.8.7). "A BFD Control packet MUST NOT have both the Poll (P) and Final (F) bits set" (section
    /// 6.5).
    fn packet(&self, answer: bool) -> Packet {
        Packet {
            diagnostic: self.diagnostic(),
            state: self.state,
            poll: self.polling() && !answer,
            final_: answer,
            control_plane_independent: self.config.control_plane_independent,
            demand: false,
            detect_mult: self.config.detect_mult.max(1),
            my_discriminator: self.local_discriminator,
            your_discriminator: self.remote_discriminator,
            desired_min_tx: self.wanted_tx(),
            required_min_rx: self.wanted_rx(),
            // No Echo function here.
            required_min_echo_rx: 0,
        }
    }
}
