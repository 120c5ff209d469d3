//! One chassis over time: its start, whether it is cut off, and whom it takes for alive.
//!
//! ```text
//!                    switch away, or holds BFD down
//!        ┌───────────────────────────────┬───────────────────────────┐
//!        ▼                               │                           │
//!      Held ── BFD released ──► First ───┼── FIRST over ─────────► Serving ◄──┐
//!        │                        │      │                           │        │
//!        └──── a sign of life ────┴──► Rest ── all up, or SETTLE ────│────────┘
//!                                        ▲ │ none up                 │ none up
//!                        a sign of life  │ ▼                         ▼
//!                                     CutOff ◄───────────────────────┘
//! ```
//!
//! `CutOff` needs two sessions or more. With a single one the loss of the peer and the loss of one's own link look alike;
//! then somebody must serve, so this chassis stays in `Serving`.
//!
//! A session that has just been set up is down, which says nothing: for [`FIRST`] it does not count, and the peer is taken
//! for alive. So a group that gets another member, or its first second one, does not lose its port meanwhile.
//!
//! Likewise a session that came up a moment ago and is lost again: a switch that is busy loses its first sessions while
//! flows go in, and a link may flap (RFC 5882 section 3.2). A loss counts at once when the session had been up for
//! [`PROOF`]; otherwise the peer is taken for alive for another [`GRACE`], and the session has to hold twice as long the
//! next time. A chassis that loses such a session and, within [`GRACE`], a proven one is cut off all the same when none is
//! left.
//!
//! A peer is alive while its session is up. One whose session is down may still be alive: sessions come up one after the
//! other, and a link may fail between two gateways alone. A claim of a gateway port that is seen after the session went
//! down proves it, so the claimant is trusted for its patience; if that ends and the peer claims again, still without a
//! session, it is trusted twice as long. So two chassis that do not see each other do not take a port from each other in
//! turns, and a chassis that died without a session is replaced in the end. A claimant that gives the port up is not trusted
//! any more: it found itself cut off.
//!
//! Two that lose each other do not know whose link failed. The preferred one, if it has just lost its session to the
//! claimant, goes on serving who still reaches it, but waits for [`DOUBT`] before it claims back: it may find meanwhile that
//! it is cut off.
//!
//! A chassis whose uplink is lost resigns, though its tunnels live: it gives its ports up, as one that is cut off does, and
//! its BFD sessions are taken down. That is what every OVN controller and switch understands: a C gateway takes a peer
//! for alive as long as the session's state is up, and looks at no diagnostic (`cpath_down`). Once the uplink is back it
//! waits for a hold-down, so that a link that comes and goes does not move ports each time, and then begins as after a
//! start (`Held`).
//!
//! A chassis that is told another's connections (docs/ha.md) takes no port from it, while it is alive, before it has them
//! all; it waits for [`CONNECTIONS`] at most.
//!
//! A chassis whose port is claimed by another goes on serving it for [`LINGER`]: others need some time to see the claim.
//!
//! A switch may stand still while its controller and its database live, and then what the database says of sessions is what
//! they were. So a chassis claims a port only if its switch has answered a question within [`FRESH`]
//! ([`Takeover::switch_answers`]). One that owes the answer for [`LATE`] is taken for one that was away.

use crate::View;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the first session is waited for, and how long a new one may be down: sessions that are not up send once a second (RFC 5880 section 6.8.3).
const FIRST: Duration = Duration::from_secs(5);
/// How long a session is to be up before its loss counts at once.
const PROOF: Duration = Duration::from_secs(3);
/// The longest time for which one that flaps is to be up before that.
const PROOF_MAX: Duration = Duration::from_secs(60);
/// How long the peer is taken for alive that lost a session before that: what detection takes with ovn-controller's default timers.
const GRACE: Duration = Duration::from_secs(3);
/// How long the others are waited for after the first one.
const SETTLE: Duration = Duration::from_secs(3);
/// How long a session that was up when the switch went away is not believed, unless the switch says it anew.
const CONFIRM: Duration = Duration::from_secs(2);
/// How long a claimant without a session is trusted at first: a session between two that are well comes up in less.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a claim by a chassis without a session is not answered by a claim: the time in which a chassis loses all of its
/// sessions, one after the other, at default timers.
const DOUBT: Duration = Duration::from_secs(2);
/// How long a port that another chassis has claimed is served on: chassis see the claim and change their flows in less. The
/// new one's third announcement comes after it, and moves what the physical network learned meanwhile.
const LINGER: Duration = Duration::from_millis(500);
/// How long a chassis' connections are waited for before a port is claimed from it: a dump of a million takes 3 s.
const CONNECTIONS: Duration = Duration::from_secs(10);
/// How long an answer of the switch proves that it lives.
const FRESH: Duration = Duration::from_secs(1);
/// How long a switch may owe an answer until what it said of sessions is not believed any more.
const LATE: Duration = Duration::from_secs(1);
/// The longest time that a claimant is trusted without a session.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// A BFD session to another chassis, as the switch reports it. Of several tunnels to one chassis the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Session {
    /// This chassis' switch holds it in AdminDown, because its flow tables are not in place yet.
    Held,
    /// Nothing is heard.
    Down,
    /// Packets of the peer arrive (RFC 5880 state Init).
    Init,
    /// It is up here; the peer has not said that it is up there.
    Up,
    /// It is up at both ends.
    UpBoth,
}

impl Session {
    /// From `Interface:bfd_status`, keys `state` and `remote_state` (ovs-vswitchd.conf.db(5)).
    pub fn from_status(state: Option<&str>, remote_state: Option<&str>) -> Session {
        match state {
            Some("up") if remote_state == Some("up") => Session::UpBoth,
            Some("up") => Session::Up,
            Some("init") => Session::Init,
            Some("down") => Session::Down,
            _ => Session::Held,
        }
    }

    fn is_up(self) -> bool {
        self >= Session::Up
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Serving,
    Held,
    /// No session shows life yet; the moment after which that means something.
    First(Instant),
    /// Some do; the others are waited for until this moment.
    Rest(Instant),
    CutOff,
}

/// What all sessions together say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sessions {
    /// The switch is away or holds all of them down.
    Held,
    /// None shows life. Whether there are two or more.
    Silent { several: bool },
    /// None is up, but one that is not is new.
    New,
    /// Some show life, none is up.
    Stirring,
    /// Some are up.
    Some,
    /// All are up at both ends, or there are none.
    All,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    session: Option<Session>,
    /// It was up when the switch went away, and the switch has not said anything new of it.
    stale: bool,
    /// Until when it may be down because it is new.
    new: Option<Instant>,
    /// Until when its loss proves nothing, because it had been up for less than `proof`.
    grace: Option<Instant>,
    /// Until when its loss, which counts, is a recent one.
    lost: Option<Instant>,
    /// Since when it is up.
    up_since: Option<Instant>,
    /// How long it is to be up before its loss counts at once.
    proof: Duration,
    /// When it claimed a port without a session, as long as that proves that it is alive.
    claimed: Option<Instant>,
    /// When it claimed a port last.
    last_claim: Option<Instant>,
    /// How long the next claim will be trusted.
    patience: Duration,
}

impl Peer {
    fn new() -> Peer {
        Peer {
            session: None,
            stale: false,
            new: None,
            grace: None,
            lost: None,
            up_since: None,
            proof: PROOF,
            claimed: None,
            last_claim: None,
            patience: PATIENCE,
        }
    }

    fn is_up(&self) -> bool {
        !self.stale && self.session.is_some_and(Session::is_up)
    }

    fn report(&mut self, new: Session, now: Instant) {
        let was_up = self.is_up();
        if self.session != Some(new) {
            self.stale = false;
        }
        self.session = Some(new);
        if self.is_up() {
            (self.new, self.grace, self.lost) = (None, None, None);
            (self.claimed, self.patience) = (None, PATIENCE);
            self.up_since.get_or_insert(now);
        } else if was_up && matches!(new, Session::Down | Session::Init) {
            // It was heard until now: what it claimed before proves nothing any more.
            self.claimed = None;
            self.lost(now);
        }
    }

    /// The session that was up is lost.
    fn lost(&mut self, now: Instant) {
        let held = self.up_since.take().is_some_and(|since| now.duration_since(since) >= self.proof);
        if held {
            self.lost = Some(now + GRACE);
            self.proof = PROOF;
        } else {
            self.grace = Some(now + GRACE);
            self.proof = (self.proof * 2).min(PROOF_MAX);
        }
    }

    /// Until when it is trusted.
    fn trusted(&self) -> Option<Instant> {
        self.claimed.map(|t| t + self.patience)
    }

    fn expire(&mut self, now: Instant) {
        for end in [&mut self.new, &mut self.grace, &mut self.lost] {
            *end = end.filter(|end| now < *end);
        }
        if self.trusted().is_some_and(|end| end <= now) {
            self.claimed = None;
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
        }
    }
}

/// What gateway ports need of the physical network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Uplink {
    #[default]
    There,
    Lost,
    /// It is there again; the moment after which that is believed.
    Back(Instant),
}

impl Uplink {
    fn follow(self, there: bool, hold_down: Duration, now: Instant) -> Uplink {
        match (self, there) {
            (_, false) => Uplink::Lost,
            (Uplink::Lost, true) => Uplink::Back(now + hold_down),
            (Uplink::Back(end), true) if now >= end => Uplink::There,
            (same, true) => same,
        }
    }
}

/// One chassis over time; the module's head has the diagram.
#[derive(Debug, Default)]
pub struct Takeover {
    phase: Phase,
    uplink: Uplink,
    peers: BTreeMap<Arc<str>, Peer>,
    /// When stale sessions are believed; none while the switch is away.
    confirm: Option<Instant>,
    /// Ports that another chassis has claimed from this one, and until when they are served on.
    lingering: BTreeMap<Arc<str>, Instant>,
    /// Chassis whose connections are not all here, and until when they are waited for.
    behind: BTreeMap<Arc<str>, Instant>,
    /// Since when the switch owes an answer.
    asked: Option<Instant>,
    /// When it answered last.
    answered: Option<Instant>,
}

impl Takeover {
    /// Takes in whose connections this chassis' switch is told and has not all yet; before [`Takeover::observe`].
    pub fn observe_connections<'a>(&mut self, behind: impl IntoIterator<Item = &'a Arc<str>>, now: Instant) {
        let mut before = std::mem::take(&mut self.behind);
        let since = |name: &Arc<str>| (name.clone(), before.remove(name).unwrap_or(now + CONNECTIONS));
        self.behind = behind.into_iter().map(since).collect();
    }

    /// Takes in whether all uplinks are there that this chassis' gateway ports need; before [`Takeover::observe`]. One that
    /// was lost counts again once it has been there for the hold-down.
    pub fn observe_uplink(&mut self, there: bool, hold_down: Duration, now: Instant) {
        self.uplink = self.uplink.follow(there, hold_down, now);
    }

    fn has_resigned(&self) -> bool {
        self.uplink != Uplink::There
    }

    /// Takes in the present state: whether this chassis' switch is there, and the sessions to the chassis that it watches.
    /// May be called as often as one likes.
    pub fn observe<'a>(
        &mut self,
        switch_is_there: bool,
        sessions: impl IntoIterator<Item = (&'a Arc<str>, Session)>,
        now: Instant,
    ) {
        let mut watched = 0;
        for p in self.peers.values_mut() {
            p.expire(now);
        }
        let mut before = std::mem::take(&mut self.peers);
        for (name, session) in sessions {
            let mut p = before.remove(name).unwrap_or_else(Peer::new);
            if p.session.is_none() {
                p.new = Some(now + FIRST);
            }
            p.report(session, now);
            self.peers.insert(name.clone(), p);
            watched += 1;
        }
        // Claims of those that are not watched.
        self.peers.extend(before.into_iter().filter(|(_, p)| p.claimed.is_some()).map(|(n, p)| {
            let p = Peer { session: None, stale: false, new: None, grace: None, lost: None, up_since: None, ..p };
            (n, p)
        }));
        self.lingering.retain(|_, end| now < *end);
        self.follow_switch(switch_is_there && self.asked.is_none_or(|t| now < t + LATE), now);
        // Its sessions are down because it has resigned. When they come up again, it is as after a start.
        let summary = if self.has_resigned() { Sessions::Held } else { self.summary(switch_is_there, watched) };
        self.phase = next_phase(self.phase, summary, now);
    }

    /// What the database says of sessions while the switch is away is what they were when it went.
    fn follow_switch(&mut self, switch_is_there: bool, now: Instant) {
        if !switch_is_there {
            self.confirm = None;
            self.peers.values_mut().filter(|p| p.session.is_some_and(Session::is_up)).for_each(|p| p.stale = true);
            return;
        }
        let end = *self.confirm.get_or_insert(now + CONFIRM);
        if now >= end {
            self.peers.values_mut().for_each(|p| p.stale = false);
        }
    }

    fn summary(&self, switch_is_there: bool, watched: usize) -> Sessions {
        let list = || self.peers.values().filter_map(|p| p.session);
        let any = |which: fn(&Peer) -> bool| self.peers.values().any(which);
        if !switch_is_there || any(|p| p.stale) {
            Sessions::Held
        } else if watched == 0 {
            Sessions::All
        } else if list().all(|s| s == Session::Held) {
            Sessions::Held
        } else if list().all(|s| s == Session::UpBoth) {
            Sessions::All
        } else if list().any(Session::is_up) {
            Sessions::Some
        } else if any(|p| p.new.is_some()) || any(|p| p.grace.is_some()) && !any(|p| p.lost.is_some()) {
            Sessions::New
        } else if list().any(|s| s == Session::Init) {
            Sessions::Stirring
        } else {
            Sessions::Silent { several: watched > 1 }
        }
    }

    /// Another chassis claimed a gateway port.
    pub fn claimed(&mut self, chassis: &Arc<str>, now: Instant) {
        let p = self.peers.entry(chassis.clone()).or_insert_with(Peer::new);
        p.expire(now);
        p.last_claim = Some(now);
        if !p.is_up() {
            p.claimed = Some(now);
        }
    }

    /// Another chassis gave a gateway port up, and nobody has it.
    pub fn released(&mut self, chassis: &Arc<str>) {
        if let Some(p) = self.peers.get_mut(chassis) {
            (p.claimed, p.last_claim) = (None, None);
            (p.new, p.grace) = (None, None);
        }
    }

    /// Another chassis claimed a port that this one had.
    pub fn overtaken(&mut self, port: &Arc<str>, now: Instant) {
        self.lingering.insert(port.clone(), now + LINGER);
    }

    /// The switch is asked for a sign of life.
    pub fn ask(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// The switch has answered.
    pub fn answered(&mut self, now: Instant) {
        (self.asked, self.answered) = (None, Some(now));
    }

    /// Whether the switch has shown a moment ago that it lives. Otherwise it is to be asked before a port is claimed.
    pub fn switch_answers(&self, now: Instant) -> bool {
        self.answered.is_some_and(|t| now < t + FRESH)
    }

    /// What follows from all this.
    pub fn view(&self, now: Instant) -> View {
        let names = |which: &dyn Fn(&Peer) -> bool| {
            self.peers.iter().filter(|(_, p)| which(p)).map(|(n, _)| n.clone()).collect()
        };
        let resigned = self.has_resigned();
        let cut_off = self.phase == Phase::CutOff || resigned;
        let lingering = self.lingering.iter().filter(|(_, end)| now < **end && !cut_off);
        View {
            alive: names(&|p| p.is_up() || [p.trusted(), p.new, p.grace].into_iter().flatten().any(|end| now < end)),
            doubted: names(&|p| !p.is_up() && p.last_claim.is_some_and(|t| now < t + DOUBT)),
            starting: !resigned && matches!(self.phase, Phase::Held | Phase::First(_) | Phase::Rest(_)),
            cut_off,
            resigned,
            lingering: lingering.map(|(n, _)| n.clone()).collect(),
            behind: self.behind.iter().filter(|(_, end)| now < **end).map(|(n, _)| n.clone()).collect(),
        }
    }

    /// When the view may change by itself; `observe` is to be called then.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let phase = match self.phase {
            Phase::First(end) | Phase::Rest(end) => Some(end),
            Phase::Serving | Phase::Held | Phase::CutOff => None,
        };
        let confirm = self.confirm.filter(|_| self.peers.values().any(|p| p.stale));
        let peers = self.peers.values().flat_map(|p| [p.trusted(), p.new, p.grace, p.last_claim.map(|t| t + DOUBT)]);
        let peers = peers.flatten();
        let uplink = match self.uplink {
            Uplink::Back(end) => Some(end),
            Uplink::There | Uplink::Lost => None,
        };
        let ports = self.lingering.values().chain(self.behind.values()).copied().chain(uplink);
        let late = self.asked.map(|t| t + LATE);
        let all = peers.chain(ports).chain(phase).chain(confirm).chain(late);
        all.filter(|t| *t > now).min()
    }
}

fn next_phase(phase: Phase, sessions: Sessions, now: Instant) -> Phase {
    let over = |end: Instant| now >= end;
    match (phase, sessions) {
        (_, Sessions::Held) => Phase::Held,
        (_, Sessions::All) => Phase::Serving,

        (Phase::Held, Sessions::Silent { .. } | Sessions::New) => Phase::First(now + FIRST),
        (Phase::First(end), Sessions::New) if over(end) => Phase::Serving,
        (Phase::Serving | Phase::First(_) | Phase::Rest(_) | Phase::CutOff, Sessions::New) => phase,
        (Phase::Held | Phase::First(_) | Phase::CutOff, Sessions::Stirring | Sessions::Some) => {
            Phase::Rest(now + SETTLE)
        }

        (Phase::First(end), Sessions::Silent { several }) if over(end) => silent(several),
        (Phase::First(end), Sessions::Silent { .. }) => Phase::First(end),

        (Phase::Rest(end), Sessions::Some) if over(end) => Phase::Serving,
        (Phase::Rest(end), Sessions::Some | Sessions::Stirring) => Phase::Rest(end),

        (Phase::Serving, Sessions::Stirring) => Phase::Rest(now + SETTLE),
        (Phase::Serving, Sessions::Some) => Phase::Serving,
        (Phase::Serving | Phase::Rest(_) | Phase::CutOff, Sessions::Silent { several }) => silent(several),
    }
}

/// No session shows life.
fn silent(several: bool) -> Phase {
    if several { Phase::CutOff } else { Phase::Serving }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let expected: [(Sessions, [Phase; 7]); 7] = [
            (Sessions::Held, [Phase::Held; 7]),
            (Sessions::All, [Phase::Serving; 7]),
            (
                Sessions::Silent { several: true },
                [Phase::CutOff, first, Phase::First(later), Phase::CutOff, Phase::CutOff, Phase::CutOff, Phase::CutOff],
            ),
            (
                Sessions::Silent { several: false },
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
        assert!(t.view(at(12.0)).lingering.is_empty());
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
        assert_eq!(
            see(t, true, &[UpBoth, UpBoth, UpBoth], 24.0),
            's',
            "it goes on, and has not looked at its sessions"
        );
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
}
