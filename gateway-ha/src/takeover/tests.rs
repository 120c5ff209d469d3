use super::*;
use crate::Member;

const GW1: &str = "gw1";

fn at(seconds: f64) -> Instant {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_secs_f64(seconds)
}

/// Feeds sessions to gw1, hv1, hv2 and says what follows: `S`erving, `s`tarting or `C`ut off.
fn see(t: &mut Takeover, switch: bool, sessions: &[Session], seconds: f64) -> char {
    let names: Vec<Arc<str>> = [GW1, "hv1", "hv2"].map(Arc::from).to_vec();
    t.observe(switch, names.iter().zip(sessions.iter().copied()), at(seconds));
    let v = t.view(at(seconds));
    match (v.starting, v.cut_off) {
        (true, _) => 's',
        (_, true) => 'C',
        _ => 'S',
    }
}

use Session::{Down, Held, Init, Up, UpBoth};

/// Every state against every summary of sessions, before and after its time is over.
#[test]
fn the_transition_table() {
    let now = at(100.0);
    let (later, before) = (now + Duration::from_secs(1), now - Duration::from_secs(1));
    let (first, rest) = (Phase::First(now + FIRST), Phase::Rest(now + SETTLE));
    let phases = [
        Phase::Serving,
        Phase::Held,
        Phase::First(later),
        Phase::First(before),
        Phase::Rest(later),
        Phase::Rest(before),
        Phase::CutOff,
    ];
    let expected: [(Sessions, [Phase; 7]); 8] = [
        (Sessions::Held, [Phase::Held; 7]),
        (Sessions::All, [Phase::Serving; 7]),
        (
            Sessions::Silent { several: true, together: true },
            [Phase::CutOff, first, Phase::First(later), Phase::CutOff, Phase::CutOff, Phase::CutOff, Phase::CutOff],
        ),
        (
            Sessions::Silent { several: true, together: false },
            [Phase::Serving, first, Phase::First(later), Phase::CutOff, Phase::CutOff, Phase::CutOff, Phase::CutOff],
        ),
        (
            Sessions::Silent { several: false, together: false },
            [
                Phase::Serving,
                first,
                Phase::First(later),
                Phase::Serving,
                Phase::Serving,
                Phase::Serving,
                Phase::Serving,
            ],
        ),
        (
            Sessions::New,
            [
                Phase::Serving,
                first,
                Phase::First(later),
                Phase::Serving,
                Phase::Rest(later),
                Phase::Rest(before),
                Phase::CutOff,
            ],
        ),
        (Sessions::Stirring, [rest, rest, rest, rest, Phase::Rest(later), Phase::Rest(before), rest]),
        (Sessions::Some, [Phase::Serving, rest, rest, rest, Phase::Rest(later), Phase::Serving, rest]),
    ];
    for (sessions, row) in expected {
        for (phase, want) in phases.into_iter().zip(row) {
            assert_eq!(next_phase(phase, sessions, now), want, "{phase:?} and {sessions:?}");
        }
    }
}

#[test]
fn a_start_waits_for_all_sessions_but_not_for_long() {
    let t = &mut Takeover::default();
    see(t, true, &[UpBoth, UpBoth, UpBoth], 0.0);
    assert_eq!(see(t, true, &[UpBoth, Down, Down], 0.5), 'S', "a session that went down is no start");
    assert_eq!(see(t, true, &[Held, Held, Held], 1.0), 's');
    assert_eq!(see(t, true, &[Down, Down, Down], 2.0), 's');
    assert_eq!(see(t, true, &[Up, Down, Down], 4.0), 's');
    assert_eq!(t.next(at(0.0)), Some(at(4.0) + SETTLE));
    assert_eq!(see(t, true, &[Up, Down, Down], 7.0), 'S', "hv1 and hv2 may be dead");
    assert_eq!(see(t, true, &[Held, Held, Held], 8.0), 's');
    assert_eq!(see(t, true, &[UpBoth, UpBoth, Up], 8.1), 's', "hv2 does not send here yet");
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 8.2), 'S');
    assert_eq!(see(t, true, &[UpBoth, Up, Down], 8.3), 'S', "it was complete once");
}

#[test]
fn what_the_database_says_of_sessions_after_a_crash_of_the_switch_is_not_believed() {
    let t = &mut Takeover::default();
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 0.0), 'S');
    assert_eq!(see(t, false, &[UpBoth, UpBoth, UpBoth], 1.0), 's', "the switch was killed");
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 2.0), 's', "it is back, its sessions are not");
    assert!(!t.view(at(2.0)).alive.contains(GW1));
    assert_eq!(see(t, true, &[Held, UpBoth, UpBoth], 2.1), 's');
    assert_eq!(see(t, true, &[Down, Down, Down], 2.2), 's');
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 3.5), 'S');
    // Only the OpenFlow connection was lost: nothing new comes, and what is there holds after a while.
    assert_eq!(see(t, false, &[UpBoth, UpBoth, UpBoth], 4.0), 's');
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 5.0), 's');
    assert_eq!(t.next(at(0.0)), Some(at(5.0) + CONFIRM));
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 7.0), 'S');
}

#[test]
fn cut_off_needs_more_than_one_silent_session() {
    let t = &mut Takeover::default();
    assert_eq!(see(t, true, &[], 0.0), 'S');
    assert_eq!(see(t, true, &[Up], 5.0), 'S');
    assert_eq!(see(t, true, &[Down], 10.0), 'S');
    see(t, true, &[Down, Up], 15.0);
    assert_eq!(see(t, true, &[Down, Down], 20.0), 'C');
    assert_eq!(see(t, true, &[Down, Init], 30.0), 's', "the link is back: it prepares");
    assert_eq!(see(t, true, &[UpBoth, UpBoth], 35.0), 'S');
    assert_eq!(see(t, true, &[Down, UpBoth], 40.0), 'S');
    assert_eq!(see(t, true, &[Down, Down], 50.0), 'C');
    assert_eq!(see(t, true, &[Down], 60.0), 'S', "the other one is not watched any more");
}

#[test]
fn the_last_of_three_members_serves() {
    let t = &mut Takeover::default();
    // The other members of its group, and nobody else.
    t.observe_members(&[GW1, "hv1"].map(Arc::from).into());
    see(t, true, &[Up, Up], 0.0);
    assert_eq!(see(t, true, &[Down, Up], 10.0), 'S', "one dies");
    assert_eq!(see(t, true, &[Down, Down], 20.0), 'S', "the other one dies as well");
    assert_eq!(see(t, true, &[Down, Down], 60.0), 'S', "and both stay away");
    assert_eq!(see(t, true, &[Down, Init], 70.0), 's');
    assert_eq!(see(t, true, &[Down, UpBoth], 71.0), 's', "one is back: the other one is waited for");
    assert_eq!(see(t, true, &[Down, UpBoth], 74.0), 'S');
    see(t, true, &[UpBoth, UpBoth], 75.0);
    assert_eq!(see(t, true, &[Down, UpBoth], 90.0), 'S');
    assert_eq!(see(t, true, &[Down, Down], 92.0), 'C', "both were lost together");
    // A hypervisor that is watched as well would be there still.
    let t = &mut Takeover::default();
    t.observe_members(&[GW1, "hv1"].map(Arc::from).into());
    see(t, true, &[Up, Up, Up], 0.0);
    see(t, true, &[Down, Up, Up], 10.0);
    see(t, true, &[Down, Down, Up], 20.0);
    assert_eq!(see(t, true, &[Down, Down, Down], 30.0), 'C');
}

#[test]
fn a_session_that_was_just_set_up_says_nothing() {
    let t = &mut Takeover::default();
    assert_eq!(see(t, true, &[], 0.0), 'S', "the only gateway watches nobody");
    assert_eq!(see(t, true, &[Down, Down, Down], 1.0), 'S', "its group gets other members: it serves on");
    assert!(t.view(at(1.0)).alive.contains(GW1), "and they do not take the port from each other");
    assert_eq!(t.next(at(1.0)), Some(at(1.0) + FIRST));
    assert_eq!(see(t, true, &[Down, Down, Down], 6.0), 'C', "by now they would have come up");
    assert!(t.view(at(6.0)).alive.is_empty());
    // A chassis that is cut off stays so, whoever is added.
    let t = &mut Takeover::default();
    see(t, true, &[Up, Up], 0.0);
    assert_eq!(see(t, true, &[Down, Down], 10.0), 'C');
    assert_eq!(see(t, true, &[Down, Down, Down], 20.0), 'C');
}

#[test]
fn the_loss_of_a_session_that_came_up_a_moment_ago_proves_nothing() {
    let (t, gw1) = (&mut Takeover::default(), Arc::from(GW1));
    let alive = |t: &Takeover, seconds| t.view(at(seconds)).alive.contains(GW1);
    see(t, true, &[UpBoth], 1.0);
    assert_eq!(see(t, true, &[Down], 1.5), 'S');
    assert_eq!(see(t, true, &[Init], 1.6), 'S', "it is on its way: nobody has to wait for it");
    let t = &mut Takeover::default();
    see(t, true, &[UpBoth, UpBoth], 1.0);
    see(t, true, &[Down, UpBoth], 2.5);
    assert_eq!(t.next(at(2.5)), Some(at(2.5) + GRACE));
    assert!(alive(t, 5.4) && !alive(t, 5.5), "it is dead if it does not come back");
    see(t, true, &[UpBoth, UpBoth], 4.0);
    see(t, true, &[Down, UpBoth], 9.0);
    assert!(alive(t, 11.9), "it flapped: three seconds prove nothing now");
    see(t, true, &[UpBoth, UpBoth], 10.0);
    see(t, true, &[Down, UpBoth], 23.0);
    assert!(!alive(t, 23.0), "it held twelve seconds");
    see(t, true, &[UpBoth, UpBoth], 24.0);
    see(t, true, &[Down, UpBoth], 27.0);
    assert!(!alive(t, 27.0), "it is as good as any again");
    see(t, true, &[UpBoth, UpBoth], 30.0);
    see(t, true, &[Down, UpBoth], 31.0);
    t.released(&gw1);
    assert!(!alive(t, 31.0), "it gave the port up");
}

#[test]
fn a_chassis_whose_uplink_is_lost_resigns_until_it_holds() {
    const HOLD: Duration = Duration::from_secs(3);
    let t = &mut Takeover::default();
    assert_eq!(see(t, true, &[UpBoth, UpBoth], 0.0), 'S');
    t.observe_uplink(false, HOLD, at(1.0));
    assert_eq!(see(t, true, &[UpBoth, UpBoth], 1.0), 'C', "its tunnels live");
    let group = [("gw1", 20), ("gw2", 10)].map(|(n, priority)| crate::Member { name: n.into(), priority });
    let active = |v: &View, holder| v.active("gw1", &group, holder).map(|m| m.name.to_string());
    let v = t.view(at(1.0));
    assert!(v.resigned && !v.may_claim("gw1", &group, None));
    assert_eq!([Some("gw1"), Some("gw2"), None].map(|h| active(&v, h)), [(); 3].map(|()| Some("gw2".into())));
    // Its sessions are taken down, so none is watched.
    assert_eq!(see(t, true, &[], 2.0), 'C');
    t.observe_uplink(true, HOLD, at(3.0));
    assert_eq!((see(t, true, &[], 3.0), t.next(at(3.0))), ('C', Some(at(3.0) + HOLD)));
    t.observe_uplink(false, HOLD, at(4.0));
    t.observe_uplink(true, HOLD, at(5.0));
    t.observe_uplink(true, HOLD, at(7.9));
    assert_eq!(see(t, true, &[], 7.9), 'C', "it was gone again meanwhile");
    t.observe_uplink(true, HOLD, at(8.0));
    assert_eq!(see(t, true, &[Down, Down], 8.0), 's', "sessions are to come up before it claims");
    assert!(!t.view(at(8.0)).resigned);
    assert_eq!(see(t, true, &[UpBoth, UpBoth], 9.0), 'S');
}

#[test]
fn a_claim_proves_life_until_the_session_fails_after_it() {
    let (t, gw1) = (&mut Takeover::default(), Arc::from(GW1));
    see(t, true, &[UpBoth, UpBoth], 0.0);
    t.claimed(&gw1, at(0.5));
    see(t, true, &[Down, UpBoth], 11.0);
    assert!(!t.view(at(11.0)).alive.contains(GW1), "it claimed before its session failed");
    t.claimed(&gw1, at(12.0));
    assert!(t.view(at(12.0)).alive.contains(GW1));
    assert_eq!(t.next(at(12.0)), Some(at(12.0) + DOUBT));
    assert_eq!(t.next(at(12.0) + DOUBT), Some(at(12.0) + PATIENCE));
    see(t, true, &[UpBoth, UpBoth], 13.0);
    see(t, true, &[Down, UpBoth], 16.0);
    assert!(!t.view(at(16.0)).alive.contains(GW1), "its session came and failed");
}

#[test]
fn a_claimant_that_gives_up_is_not_trusted_any_more() {
    let (t, gw1) = (&mut Takeover::default(), Arc::from(GW1));
    see(t, true, &[UpBoth, UpBoth], 0.0);
    see(t, true, &[Down, UpBoth], 11.0);
    t.claimed(&gw1, at(12.0));
    t.released(&gw1);
    let v = t.view(at(12.0));
    assert!(!v.alive.contains(GW1) && !v.doubted.contains(GW1));
}

#[test]
fn a_claim_by_one_that_was_just_lost_is_not_contested_at_once() {
    let (t, gw1) = (&mut Takeover::default(), Arc::from(GW1));
    see(t, true, &[UpBoth, UpBoth], 1.0);
    t.claimed(&gw1, at(1.1));
    assert!(!t.view(at(1.2)).doubted.contains(GW1), "its session is up: who is preferred, claims");
    see(t, true, &[Down, UpBoth], 1.2);
    assert!(t.view(at(1.2)).doubted.contains(GW1));
    assert_eq!(t.next(at(1.2)), Some(at(1.1) + DOUBT));
    assert!(!t.view(at(1.1) + DOUBT).doubted.contains(GW1));
}

#[test]
fn a_port_that_another_claimed_is_served_on_for_a_moment() {
    let t = &mut Takeover::default();
    let port = Arc::from("cr-lr0-public");
    see(t, true, &[UpBoth, UpBoth], 1.0);
    t.overtaken(&port, at(11.0));
    assert!(t.view(at(11.2)).lingering.contains(&port));
    assert_eq!(t.next(at(11.2)), Some(at(11.0) + LINGER));
    see(t, true, &[Down, Down], 11.3);
    assert!(t.view(at(11.3)).lingering.is_empty(), "it is cut off: nobody sends to it");
    see(t, true, &[UpBoth, UpBoth], 12.0);
    assert!(t.view(at(12.0)).lingering.is_empty(), "it was taken for dead meanwhile");
    t.overtaken(&port, at(20.0));
    see(t, true, &[UpBoth, UpBoth], 20.5);
    assert!(t.view(at(20.5)).lingering.contains(&port));
    assert!(t.view(at(20.0) + LINGER).lingering.is_empty());
}

#[test]
fn a_port_that_is_claimed_back_is_not_passed_on_any_more() {
    let t = &mut Takeover::default();
    let port: Arc<str> = Arc::from("cr-lr0-public");
    let member = |name: &str, priority| Member { name: name.into(), priority };
    let (gw2_first, gw1_first) = ([member("gw2", 10), member(GW1, 5)], [member("gw2", 10), member(GW1, 20)]);
    see(t, true, &[UpBoth, UpBoth], 1.0);
    let passes_on = |t: &Takeover, m: &[Member], s| t.view(at(s)).passes_on("gw2", &port, m, GW1);
    assert!(!passes_on(t, &gw1_first, 10.9), "it was not relieved");
    t.overtaken(&port, at(11.0));
    assert!(passes_on(t, &gw1_first, 11.1));
    assert!(!passes_on(t, &gw2_first, 11.1), "it will claim the port");
    t.claims(&port);
    assert!(!passes_on(t, &gw1_first, 11.2), "it has claimed the port, and sees the other one's claim of before");
}

#[test]
fn a_port_is_not_announced_while_the_other_one_may_still_send() {
    let t = &mut Takeover::default();
    let (port, gw1): (Arc<str>, Arc<str>) = (Arc::from("cr-lr0-public"), Arc::from(GW1));
    see(t, true, &[UpBoth, UpBoth], 1.0);
    t.relieved(&port, &gw1, at(11.0));
    assert_eq!(t.view(at(11.1)).hushed, [port.clone()].into());
    assert_eq!(t.next(at(11.1)), Some(at(11.0) + HUSH));
    assert!(t.view(at(11.0) + HUSH).hushed.is_empty());
    t.relieved(&port, &gw1, at(20.0));
    see(t, true, &[Down, UpBoth], 20.1);
    assert!(t.view(at(20.1)).hushed.is_empty(), "it has died");
}

#[test]
fn a_port_that_another_asks_for_is_left_to_it_for_a_while() {
    let t = &mut Takeover::default();
    let port = Arc::from("machine");
    see(t, true, &[UpBoth, UpBoth], 1.0);
    t.asked_for(&port, at(11.0));
    assert_eq!(t.next(at(11.0)), Some(at(11.0) + YIELD));
    see(t, true, &[UpBoth, UpBoth], 12.0);
    assert_eq!(t.view(at(12.0)).yielding, [port].into());
    assert!(t.view(at(11.0) + YIELD).yielding.is_empty(), "the other one did not claim it");
}

#[test]
fn a_switch_that_stands_still_is_not_believed() {
    let t = &mut Takeover::default();
    see(t, true, &[UpBoth, UpBoth, UpBoth], 1.0);
    assert!(!t.switch_answers(at(1.0)), "it was not asked yet");
    t.ask(at(11.0));
    t.answered(at(11.01));
    assert!(t.switch_answers(at(12.0)) && !t.switch_answers(at(11.01) + FRESH));
    t.ask(at(20.0));
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 20.1), 'S');
    t.ask(at(20.5));
    assert_eq!(t.next(at(20.6)), Some(at(20.0) + LATE), "it owes the answer since it was first asked");
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 21.0), 's');
    t.answered(at(24.0));
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 24.0), 's', "it goes on, and has not looked at its sessions");
    assert_eq!(see(t, true, &[Down, Down, Down], 24.1), 's');
    assert_eq!(see(t, true, &[UpBoth, UpBoth, UpBoth], 24.3), 'S');
}

#[test]
fn connections_of_another_are_waited_for_but_not_for_ever() {
    let (t, gw1) = (&mut Takeover::default(), Arc::from(GW1));
    see(t, true, &[UpBoth, UpBoth], 1.0);
    t.observe_connections([&gw1], at(1.0));
    assert!(t.view(at(1.0)).behind.contains(GW1));
    t.observe_connections([&gw1], at(5.0));
    assert_eq!(t.next(at(5.0)), Some(at(1.0) + CONNECTIONS));
    assert!(t.view(at(1.0) + CONNECTIONS).behind.is_empty());
    t.observe_connections([], at(20.0));
    t.observe_connections([&gw1], at(21.0));
    assert!(t.view(at(21.0)).behind.contains(GW1), "it is behind anew");
}

#[test]
fn a_claimant_without_a_session_is_trusted_ever_longer() {
    let (t, gw1) = (&mut Takeover::default(), Arc::from(GW1));
    let (mut now, mut trusted) = (0.0, Vec::new());
    for _ in 0..4 {
        see(t, true, &[Down, UpBoth], now);
        t.claimed(&gw1, at(now));
        let end = t.next(at(now) + DOUBT).unwrap();
        assert!(t.view(at(now)).alive.contains(GW1) && !t.view(end).alive.contains(GW1));
        trusted.push((end - at(now)).as_secs());
        now += (end - at(now)).as_secs_f64() + 0.1;
    }
    assert_eq!(trusted, [5, 10, 20, 40]);
    see(t, true, &[UpBoth, UpBoth], now);
    see(t, true, &[Down, UpBoth], now + 1.0);
    t.claimed(&gw1, at(now + 2.0));
    assert_eq!(t.next(at(now + 2.0) + DOUBT), Some(at(now + 2.0) + PATIENCE), "a session that came up starts anew");
    // One that nobody watches is forgotten with its claim.
    t.claimed(&Arc::from("gw9"), at(now + 2.0));
    see(t, true, &[UpBoth, UpBoth], now + 60.0);
    assert!(!t.peers.contains_key("gw9"));
}
