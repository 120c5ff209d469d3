//! The transition table, and two machines on a virtual clock with loss.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bfd_rs::{Config, Diagnostic, Packet, PacketError, Session, State};
use proptest::prelude::*;

fn packet(state: State, mine: u32, yours: u32) -> Packet {
    Packet {
        diagnostic: Diagnostic::None,
        state,
        poll: false,
        final_: false,
        control_plane_independent: false,
        demand: false,
        detect_mult: 3,
        my_discriminator: mine,
        your_discriminator: yours,
        desired_min_tx: 100_000,
        required_min_rx: 100_000,
        required_min_echo_rx: 0,
    }
}

/// A session brought into a state by the packets that lead there.
fn session_in(state: State) -> Session {
    let mut s = Session::new(Config { admin_down: state == State::AdminDown, ..Config::default() }, 7, 0);
    let path: &[State] = match state {
        State::AdminDown | State::Down => &[],
        State::Init => &[State::Down],
        State::Up => &[State::Down, State::Init],
    };
    for p in path {
        s.receive(&packet(*p, 9, 7).to_bytes(), 0).unwrap();
    }
    assert_eq!(s.state(), state);
    s
}

/// RFC 5880 section 6.8.6 and the diagram of section 6.2: every state with every state received.
#[test]
fn every_transition() {
    use State::{AdminDown, Down, Init, Up};
    let table = [
        (AdminDown, AdminDown, AdminDown),
        (AdminDown, Down, AdminDown),
        (AdminDown, Init, AdminDown),
        (AdminDown, Up, AdminDown),
        (Down, AdminDown, Down),
        (Down, Down, Init),
        (Down, Init, Up),
        (Down, Up, Down),
        (Init, AdminDown, Down),
        (Init, Down, Init),
        (Init, Init, Up),
        (Init, Up, Up),
        (Up, AdminDown, Down),
        (Up, Down, Down),
        (Up, Init, Up),
        (Up, Up, Up),
    ];
    for (from, received, to) in table {
        let mut s = session_in(from);
        s.receive(&packet(received, 9, 7).to_bytes(), 10).unwrap();
        assert_eq!(s.state(), to, "{from:?} receives {received:?}");
        if from == Up && to == Down {
            assert_eq!(s.diagnostic(), Diagnostic::NeighborDown);
        }
    }
    for from in [AdminDown, Down, Init, Up] {
        let mut s = session_in(from);
        s.poll(1_000_000_000);
        let expected = if matches!(from, Init | Up) { Down } else { from };
        assert_eq!(s.state(), expected, "{from:?} hears nothing");
        if expected != from {
            assert_eq!(s.diagnostic(), Diagnostic::TimeExpired);
        }
    }
}

/// What the session last went down for is said also when it is up again (section 4.1).
#[test]
fn the_diagnostic_outlives_the_failure() {
    let mut s = session_in(State::Up);
    s.receive(&packet(State::Down, 9, 7).to_bytes(), 10).unwrap();
    s.receive(&packet(State::Down, 9, 7).to_bytes(), 20).unwrap();
    s.receive(&packet(State::Init, 9, 7).to_bytes(), 30).unwrap();
    assert_eq!((s.state(), s.diagnostic()), (State::Up, Diagnostic::NeighborDown));
    s.forwarding_reset(40);
    assert_eq!((s.state(), s.diagnostic()), (State::Down, Diagnostic::ForwardingReset));
    let p = s.poll(40).0.unwrap();
    assert_eq!((p.state, p.diagnostic), (State::Down, Diagnostic::ForwardingReset), "said at once");
    // Nothing to take down in a session that is held down.
    let mut s = session_in(State::AdminDown);
    s.forwarding_reset(40);
    assert_eq!((s.state(), s.diagnostic()), (State::AdminDown, Diagnostic::AdminDown));
}

/// Section 6.8.17: told and heard, the session stays up; to a peer in Demand mode by a poll.
#[test]
fn a_path_beyond_that_is_down_is_told() {
    let mut s = session_in(State::Up);
    s.poll(0);
    let down = Config { concatenated_path_down: true, ..Config::default() };
    s.configure(down, 10);
    let p = s.poll(10).0.unwrap();
    assert_eq!((p.state, p.diagnostic, s.forwarding()), (State::Up, Diagnostic::ConcatenatedPathDown, true));
    for (diagnostic, forwarding) in [
        (Diagnostic::PathDown, false),
        (Diagnostic::ConcatenatedPathDown, false),
        (Diagnostic::ReverseConcatenatedPathDown, false),
        (Diagnostic::NeighborDown, true),
    ] {
        let p = Packet { diagnostic, final_: true, ..packet(State::Up, 9, 7) };
        s.receive(&p.to_bytes(), 20).unwrap();
        assert_eq!((s.state(), s.forwarding()), (State::Up, forwarding), "{diagnostic:?}");
    }
    let demand = Packet { demand: true, ..packet(State::Up, 9, 7) };
    s.receive(&demand.to_bytes(), 30).unwrap();
    assert_eq!(s.poll(250_000).0, None, "Demand mode is active");
    s.configure(Config::default(), 260_000);
    let p = s.poll(260_000).0.unwrap();
    assert_eq!((p.poll, p.diagnostic), (true, Diagnostic::None));
    // A failure overwrites it.
    s.configure(down, 260_000);
    s.receive(&packet(State::Down, 9, 7).to_bytes(), 270_000).unwrap();
    assert_eq!(s.diagnostic(), Diagnostic::NeighborDown);
}

/// Sections 6.8.7 and 6.8.18: a peer that asks for nothing gets nothing but answers, until it is forgotten.
#[test]
fn a_peer_that_can_receive_nothing_is_not_sent_to() {
    let mut s = session_in(State::Up);
    s.poll(0);
    let deaf = Packet { required_min_rx: 0, desired_min_tx: 1_000_000, ..packet(State::Up, 9, 7) };
    s.receive(&deaf.to_bytes(), 10).unwrap();
    for now in (10..2_500_000).step_by(50_000) {
        assert_eq!(s.poll(now).0, None);
    }
    s.receive(&Packet { poll: true, ..deaf }.to_bytes(), 2_500_000).unwrap();
    assert!(s.poll(2_500_000).0.unwrap().final_);
    assert_eq!(s.poll(2_600_000).0, None);
    // A Detection Time later its wish has no force.
    assert_eq!(s.poll(5_500_000).0.unwrap().state, State::Down);
}

/// Section 6.8.3: a shorter interval counts from the last packet, and at once.
#[test]
fn a_peer_that_can_receive_faster_gets_packets_at_once() {
    let mut s = session_in(State::Up);
    s.configure(fast(50, 3), 0);
    let slow = Packet { required_min_rx: 2_000_000, final_: true, ..packet(State::Up, 9, 7) };
    s.receive(&slow.to_bytes(), 0).unwrap();
    while s.poll(0).0.is_some() {}
    s.receive(&packet(State::Up, 9, 7).to_bytes(), 40_000).unwrap();
    assert!((40_000..=100_000).contains(&s.deadline()), "due at {}", s.deadline());
    s.receive(&slow.to_bytes(), 40_000).unwrap();
    s.poll(100_000);
    s.receive(&slow.to_bytes(), 110_000).unwrap();
    s.receive(&packet(State::Up, 9, 7).to_bytes(), 900_000).unwrap();
    assert!(s.poll(900_000).0.is_some(), "the interval has passed already");
}

/// Section 6.8.3: changes of times take effect at once or when the peer knows; a Final counts for what was asked when its
/// sequence began.
#[test]
fn one_poll_sequence_ends_before_the_next_begins() {
    let mut s = session_in(State::Up);
    let answer = |s: &mut Session, final_: bool, now| {
        s.receive(&Packet { final_, ..packet(State::Up, 9, 7) }.to_bytes(), now).unwrap();
    };
    s.configure(fast(200, 3), 0);
    answer(&mut s, true, 0);
    answer(&mut s, false, 0);
    answer(&mut s, true, 0);
    answer(&mut s, false, 0);
    assert_eq!((s.tx_interval(), s.detection_time()), (200_000, 600_000));
    // Longer: the detection time at once, the interval when it is agreed.
    s.configure(fast(400, 3), 10_000);
    assert_eq!((s.tx_interval(), s.detection_time()), (200_000, 1_200_000));
    // Meanwhile another change: the answer to the first says nothing of it.
    s.configure(fast(600, 3), 20_000);
    answer(&mut s, true, 30_000);
    assert_eq!(s.tx_interval(), 200_000);
    let next = |s: &mut Session, now| loop {
        let (p, _) = s.poll(now);
        if let Some(p) = p {
            break p;
        }
    };
    assert!(!next(&mut s, 250_000).poll, "no packet without Final came since");
    answer(&mut s, false, 260_000);
    assert!(next(&mut s, 500_000).poll);
    assert_eq!(s.tx_interval(), 200_000);
    answer(&mut s, true, 510_000);
    assert_eq!((s.tx_interval(), s.detection_time()), (600_000, 1_800_000));
    // Shorter: the interval at once, the detection time when it is agreed.
    answer(&mut s, false, 520_000);
    s.configure(fast(100, 3), 530_000);
    assert_eq!((s.tx_interval(), s.detection_time()), (100_000, 1_800_000));
    answer(&mut s, true, 540_000);
    assert_eq!((s.tx_interval(), s.detection_time()), (100_000, 300_000));
}

/// "If bfd.DetectMult is equal to 1, the interval ... MUST be no more than 90% of the negotiated transmission interval, and
/// MUST be no less than 75%" (section 6.8.7); else between 75 and 100 %, and not always the same.
/// Times between a session's packets, each sent when it is due.
fn intervals(ms: u32, mult: u8, discriminator: u32) -> Vec<u64> {
    let config = fast(ms, mult);
    let mut s = Session::new(config, discriminator, 0);
    let times = |p: Packet| Packet { desired_min_tx: ms * 1000, required_min_rx: ms * 1000, ..p };
    for state in [State::Down, State::Init] {
        s.receive(&times(packet(state, 9, discriminator)).to_bytes(), 0).unwrap();
    }
    s.receive(&Packet { final_: true, ..times(packet(State::Up, 9, discriminator)) }.to_bytes(), 0).unwrap();
    s.poll(0);
    let (mut last, mut all) = (0, Vec::new());
    for _ in 0..400 {
        s.receive(&times(packet(State::Up, 9, discriminator)).to_bytes(), last).unwrap();
        let now = s.deadline();
        assert!(s.poll(now).0.is_some());
        all.push(now - last);
        last = now;
    }
    all
}

#[test]
fn every_interval_is_jittered() {
    for (ms, mult, most) in
        [(100, 1, 90), (100, 3, 100), (10, 3, 100), (10, 1, 90), (1000, 3, 100), (317, 4, 100), (1, 3, 100)]
    {
        let (least, most) = (u64::from(ms) * 750, u64::from(ms) * most * 10);
        let all = intervals(ms, mult, 7);
        assert!(all.iter().all(|t| (least..=most).contains(t)), "{ms} ms, {mult}: {all:?}");
        // Each part of the range is met, none most of the time, and what comes next does not follow from the last two.
        let third = |t: &u64| ((t - least) * 3 / (most - least + 1)) as usize;
        let thirds: Vec<usize> = all.iter().map(third).collect();
        for part in 0..3 {
            let n = thirds.iter().filter(|t| **t == part).count();
            assert!((60..=240).contains(&n), "{ms} ms, {mult}: {n} of 400 in part {part}");
        }
        let triples: std::collections::BTreeSet<&[usize]> = thirds.windows(3).collect();
        assert_eq!(triples.len(), 27, "{ms} ms, {mult}");
        assert_ne!(all, intervals(ms, mult, 8), "two sessions do not move together");
    }
}

#[test]
fn sessions_of_one_interval_send_in_company() {
    let mut all: Vec<Session> = (0..200u32)
        .map(|i| {
            let now = u64::from(i) * 777;
            let mut s = session_in(State::Up);
            s.configure(fast(100, 3), now);
            s.receive(&Packet { final_: true, ..packet(State::Up, 9, 7) }.to_bytes(), now).unwrap();
            s.poll(now);
            s
        })
        .collect();
    let mut moments = std::collections::BTreeSet::new();
    for s in &mut all {
        let last = s.timers()[2].unwrap();
        s.receive(&packet(State::Up, 9, 7).to_bytes(), last).unwrap();
        let due = s.deadline();
        assert!((75_000..=100_000).contains(&(due - last)));
        moments.insert(due);
    }
    let span = moments.last().unwrap() - moments.first().unwrap();
    assert!(moments.iter().all(|t| t % 8192 == 0) && span > 100_000, "{moments:?}");
}

#[test]
fn what_must_be_discarded_is() {
    let mut s = session_in(State::Down);
    let good = packet(State::Down, 9, 7).to_bytes();
    let mut tampered = |at: usize, v: u8| {
        let mut b = good;
        b[at] = v;
        s.receive(&b, 0).unwrap_err()
    };
    assert_eq!(tampered(0, 2 << 5), PacketError::Version(2));
    assert_eq!(tampered(3, 23), PacketError::Length(23));
    assert_eq!(tampered(3, 25), PacketError::Length(25));
    assert_eq!(tampered(2, 0), PacketError::DetectMult);
    assert_eq!(tampered(1, 0x41), PacketError::Multipoint);
    assert_eq!(s.receive(&packet(State::Down, 0, 7).to_bytes(), 0), Err(PacketError::MyDiscriminator));
    assert_eq!(s.receive(&packet(State::Up, 9, 0).to_bytes(), 0), Err(PacketError::YourDiscriminator(State::Up)));
    assert_eq!(s.receive(&packet(State::Up, 9, 8).to_bytes(), 0), Err(PacketError::Unknown(8)));
    let mut authenticated = [0u8; 26];
    authenticated[..24].copy_from_slice(&good);
    authenticated[1] |= 0x04;
    authenticated[3] = 26;
    assert_eq!(s.receive(&authenticated, 0), Err(PacketError::Authentication));
    assert_eq!(s.receive(&good[..20], 0), Err(PacketError::Length(20)));
    assert_eq!(s.state(), State::Down);
}

/// Two sessions and the packets between them; `lost` says which are lost. Gives the time at the end.
struct Pair {
    ends: [Session; 2],
    now: u64,
    wire: Vec<(u64, usize, [u8; 24])>,
    sent: [Vec<u64>; 2],
}

impl Pair {
    fn new(a: Config, b: Config) -> Pair {
        Pair {
            ends: [Session::new(a, 0x1111, 0), Session::new(b, 0x2222, 0)],
            now: 0,
            wire: Vec::new(),
            sent: Default::default(),
        }
    }

    fn run(&mut self, until: u64, mut lost: impl FnMut() -> bool) {
        const DELAY: u64 = 200;
        while self.now < until {
            let due = self.wire.iter().map(|w| w.0).chain(self.ends.iter().map(Session::deadline)).min().unwrap();
            self.now = due.clamp(self.now, until);
            let (arrived, rest): (Vec<_>, Vec<_>) = self.wire.drain(..).partition(|w| w.0 <= self.now);
            self.wire = rest;
            for (_, to, bytes) in arrived {
                self.ends[to].receive(&bytes, self.now).unwrap();
            }
            for from in 0..2 {
                if let (Some(p), _) = self.ends[from].poll(self.now) {
                    let s = &self.ends[from];
                    assert!(!(p.poll && p.final_), "poll and final at once (section 6.5)");
                    assert!(p.state == State::Up || p.desired_min_tx >= 1_000_000, "not up and fast (section 6.8.3)");
                    assert!(!p.demand && p.my_discriminator == s.discriminator() && p.state == s.state());
                    if !p.final_ {
                        self.sent[from].push(self.now);
                    }
                    if !lost() {
                        self.wire.push((self.now + DELAY, 1 - from, p.to_bytes()));
                    }
                }
            }
            if due > self.now {
                break;
            }
        }
        self.now = until;
    }

    fn states(&self) -> [State; 2] {
        [self.ends[0].state(), self.ends[1].state()]
    }
}

fn fast(ms: u32, mult: u8) -> Config {
    Config { desired_min_tx: ms * 1000, required_min_rx: ms * 1000, detect_mult: mult, ..Config::default() }
}

#[test]
fn two_ends_come_up_negotiate_and_notice_silence_in_time() {
    for (a, b, agreed) in [(fast(10, 3), fast(10, 3), 10u64), (fast(100, 3), fast(20, 5), 100)] {
        let mut pair = Pair::new(a, b);
        pair.run(3_000_000, || false);
        assert_eq!(pair.states(), [State::Up, State::Up]);
        assert_eq!(u64::from(pair.ends[0].tx_interval()), agreed * 1000);
        let first = pair.sent[0].iter().filter(|t| **t > 2_900_000).copied().collect::<Vec<_>>();
        assert!(first.windows(2).all(|w| (w[1] - w[0]) <= agreed * 1000 && (w[1] - w[0]) >= agreed * 740), "{first:?}");
        let detection = pair.ends[0].detection_time();
        assert_eq!(detection, u64::from(b.detect_mult) * agreed * 1000);
        pair.run(3_000_000 + detection + agreed * 1000, || true);
        assert_eq!(pair.ends[0].state(), State::Down);
        assert_eq!(pair.ends[0].diagnostic(), Diagnostic::TimeExpired);
        pair.run(9_000_000, || false);
        assert_eq!(pair.states(), [State::Up, State::Up]);
    }
}

#[test]
fn admin_down_is_told_to_the_peer_and_ends() {
    let mut pair = Pair::new(fast(10, 3), fast(10, 3));
    pair.run(3_000_000, || false);
    pair.ends[0].configure(Config { admin_down: true, ..fast(10, 3) }, 3_000_000);
    pair.run(3_010_000, || false);
    assert_eq!(pair.states(), [State::AdminDown, State::Down]);
    assert_eq!(pair.ends[1].diagnostic(), Diagnostic::NeighborDown);
    pair.ends[0].configure(fast(10, 3), 3_010_000);
    pair.run(6_000_000, || false);
    assert_eq!(pair.states(), [State::Up, State::Up]);
    // A peer that falls silent meanwhile is forgotten, too.
    pair.ends[0].configure(Config { admin_down: true, ..fast(10, 3) }, 6_000_000);
    assert_ne!(pair.ends[0].remote_discriminator(), 0);
    pair.run(12_000_000, || true);
    assert_eq!((pair.ends[0].state(), pair.ends[0].remote_discriminator()), (State::AdminDown, 0));
}

#[test]
fn a_change_of_times_is_polled_and_does_not_flap() {
    let mut pair = Pair::new(fast(10, 3), fast(10, 3));
    pair.run(3_000_000, || false);
    let flaps = pair.ends[1].flaps();
    for ms in [300, 20, 1000, 10] {
        let at = pair.now;
        pair.ends[0].configure(fast(ms, 3), at);
        pair.run(at + 5_000_000, || false);
        assert_eq!(u64::from(pair.ends[0].tx_interval()), u64::from(ms.max(10)) * 1000);
        assert_eq!(pair.ends[1].flaps(), flaps, "at {ms} ms");
    }
}

/// RFC 5880 section 7: what is lost slows both sides down, whoever sees it; what is not lost does not.
#[test]
fn congestion_lowers_the_rate_and_its_end_raises_it() {
    let config = Config { congestion_control: true, ..fast(10, 5) };
    let mut pair = Pair::new(config, config);
    pair.run(3_000_000, || false);
    let count = |pair: &Pair, from: u64| pair.sent.each_ref().map(|s| s.iter().filter(|t| **t >= from).count());
    pair.run(13_000_000, || false);
    let clear = count(&pair, 3_000_000);
    assert!(clear.iter().all(|n| (1000..1350).contains(n)), "10 s at 10 ms: {clear:?}");
    // A quarter is lost in turn, so that no session goes down for it.
    let mut n = 0u32;
    pair.run(23_000_000, || {
        n += 1;
        n.is_multiple_of(4)
    });
    let congested = count(&pair, 13_000_000);
    assert!(congested.iter().all(|n| *n < 300), "under a quarter of {clear:?}: {congested:?}");
    assert_eq!((pair.states(), pair.ends[0].flaps()), ([State::Up; 2], 1));
    pair.run(83_000_000, || false);
    let again = count(&pair, 73_000_000);
    assert!(again.iter().all(|n| (1000..1350).contains(n)), "{again:?}");
    // A cut path is none.
    pair.run(85_000_000, || true);
    assert_eq!(pair.states(), [State::Down; 2]);
    pair.run(90_000_000, || false);
    assert_eq!(pair.ends.each_ref().map(Session::tx_interval), [10_000; 2]);
    // Where it is not asked for, nothing of it.
    let mut pair = Pair::new(fast(10, 5), fast(10, 5));
    pair.run(23_000_000, || {
        n += 1;
        n.is_multiple_of(4)
    });
    assert_eq!(pair.ends.each_ref().map(Session::tx_interval), [10_000; 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is lost, the session comes back once packets pass again, and both ends agree.
    #[test]
    fn recovers_from_any_loss(
        pattern in prop::collection::vec(any::<bool>(), 1..200), a in 1u32..200, b in 1u32..200, congestion_control: bool
    ) {
        let config = |ms| Config { congestion_control, ..fast(ms, 3) };
        let mut pair = Pair::new(config(a), config(b));
        let mut n = 0;
        pair.run(4_000_000, || { n += 1; pattern[n % pattern.len()] });
        pair.run(12_000_000, || false);
        prop_assert_eq!(pair.states(), [State::Up, State::Up]);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40), state in 0usize..4) {
        let mut s = session_in([State::AdminDown, State::Down, State::Init, State::Up][state]);
        let _ = s.receive(&bytes, 5);
        s.poll(6);
    }

    #[test]
    fn packets_survive_the_wire(diag in 0u8..32, words in any::<[u32; 5]>(), mult in 1u8.., poll: bool, fin: bool) {
        let mut p = packet(State::Down, words[0].max(1), words[1]);
        p.detect_mult = mult;
        (p.desired_min_tx, p.required_min_rx, p.required_min_echo_rx, p.poll, p.final_) = (words[2], words[3], words[4], poll, fin);
        let mut b = p.to_bytes();
        b[0] = 1 << 5 | diag;
        let parsed = Packet::parse(&b).unwrap();
        prop_assert_eq!(parsed.to_bytes(), b);
    }
}
