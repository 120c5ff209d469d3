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
//! then somebody must serve, so this chassis stays in `Serving`. So it does where it watches no chassis but the other
//! members of its groups, and these are lost one after the other, more than [`GRACE`] apart: the last of three members
//! serves. Where it watches hypervisors as well, they would still be there if only the members had died.
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
//! A chassis whose port is claimed by another goes on serving it for [`LINGER`]: others need some time to see the claim. A
//! machine's question by an external port is to have one answer: there a chassis lets go first when another one asks it to,
//! and does not claim the port back for [`YIELD`]. Of a gateway port that it serves on it sends nothing outside: packets from
//! hypervisors go on to the new one, which does not announce the port for [`HUSH`]: by then the old one does so.
//!
//! A switch may stand still while its controller and its database live, and then what the database says of sessions is what
//! they were. So a chassis claims a port only if its switch has answered a question within [`FRESH`]
//! ([`Takeover::switch_answers`]). One that owes the answer for [`LATE`] is taken for one that was away.

use crate::View;
use std::collections::{BTreeMap, BTreeSet};
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
/// How long a port that another chassis has claimed is served on: chassis see the claim and change their flows in less, also
/// busy ones, and what waits in queues has come. The new one announces its addresses after it once more, which moves what
/// the physical network learned meanwhile.
const LINGER: Duration = Duration::from_secs(2);
/// How long a chassis that took a port from one which serves on does not announce it: by then that one has changed its flows,
/// and the physical network learns the port's address at one place only.
const HUSH: Duration = Duration::from_millis(200);
/// How long an external port is left to the chassis that has asked for it.
const YIELD: Duration = Duration::from_secs(2);
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
    /// None shows life. Whether there are two or more, and whether they were lost together, as by a link of this chassis.
    Silent { several: bool, together: bool },
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
    /// When it was lost, as long as it is not up again.
    fell: Option<Instant>,
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
            fell: None,
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
            (self.new, self.grace, self.lost, self.fell) = (None, None, None, None);
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
        self.fell = Some(now);
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
    /// Ports that this chassis took from another one, which serves on, and until when it does not announce them.
    hushed: BTreeMap<Arc<str>, (Arc<str>, Instant)>,
    /// External ports that another chassis has asked for, and until when they are left to it.
    yielding: BTreeMap<Arc<str>, Instant>,
    /// Chassis whose connections are not all here, and until when they are waited for.
    behind: BTreeMap<Arc<str>, Instant>,
    /// Since when the switch owes an answer.
    asked: Option<Instant>,
    /// When it answered last.
    answered: Option<Instant>,
    /// The members of this chassis' HA chassis groups.
    members: BTreeSet<Arc<str>>,
}

impl Takeover {
    /// Takes in whose connections this chassis' switch is told and has not all yet; before [`Takeover::observe`].
    pub fn observe_connections<'a>(&mut self, behind: impl IntoIterator<Item = &'a Arc<str>>, now: Instant) {
        let mut before = std::mem::take(&mut self.behind);
        let since = |name: &Arc<str>| (name.clone(), before.remove(name).unwrap_or(now + CONNECTIONS));
        self.behind = behind.into_iter().map(since).collect();
    }

    /// Takes in who the members of this chassis' HA chassis groups are; before [`Takeover::observe`].
    pub fn observe_members(&mut self, members: &BTreeSet<Arc<str>>) {
        if self.members != *members {
            self.members = members.clone();
        }
    }

    /// Takes in whether all uplinks are there that this chassis' gateway ports need; before [`Takeover::observe`]. One that
    /// was lost counts again once it has been there for the hold-down.
    pub fn observe_uplink(&mut self, there: bool, hold_down: Duration, now: Instant) {
        self.uplink = self.uplink.follow(there, hold_down, now);
    }

    fn has_resigned(&self) -> bool {
        self.uplink != Uplink::There
    }

    fn is_cut_off(&self) -> bool {
        self.phase == Phase::CutOff || self.has_resigned()
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
            let p = Peer {
                claimed: p.claimed,
                last_claim: p.last_claim,
                patience: p.patience,
                proof: p.proof,
                ..Peer::new()
            };
            (n, p)
        }));
        [&mut self.lingering, &mut self.yielding].into_iter().for_each(|list| list.retain(|_, end| now < *end));
        self.hushed.retain(|_, (_, end)| now < *end);
        self.follow_switch(switch_is_there && self.asked.is_none_or(|t| now < t + LATE), now);
        // Its sessions are down because it has resigned. When they come up again, it is as after a start.
        let summary = if self.has_resigned() { Sessions::Held } else { self.summary(switch_is_there, watched) };
        self.phase = next_phase(self.phase, summary, now);
        if self.is_cut_off() {
            self.lingering.clear();
        }
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
            let several = watched > 1;
            let members =
                || self.peers.iter().filter(|(_, p)| p.session.is_some()).all(|(n, _)| self.members.contains(n));
            let together = if members() { self.fell_together().unwrap_or(several) } else { several };
            Sessions::Silent { several, together }
        }
    }

    /// Whether the last session was lost together with others; none where none was lost.
    fn fell_together(&self) -> Option<bool> {
        let all = || self.peers.values().filter_map(|p| p.fell);
        let last = all().max()?;
        Some(all().filter(|t| last.duration_since(*t) <= GRACE).count() > 1)
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

    /// This chassis writes that it claims a port: the port is its own from then on, even if it was relieved of it a moment ago.
    pub fn claims(&mut self, port: &Arc<str>) {
        self.lingering.remove(port);
    }

    /// This chassis has claimed a port from another one, which serves on for a moment.
    pub fn relieved(&mut self, port: &Arc<str>, chassis: &Arc<str>, now: Instant) {
        self.hushed.insert(port.clone(), (chassis.clone(), now + HUSH));
    }

    /// Another chassis asks for an external port that this one has.
    pub fn asked_for(&mut self, port: &Arc<str>, now: Instant) {
        self.yielding.insert(port.clone(), now + YIELD);
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
        let cut_off = self.is_cut_off();
        let lingering = self.lingering.iter().filter(|(_, end)| now < **end && !cut_off);
        let alive: BTreeSet<Arc<str>> =
            names(&|p| p.is_up() || [p.trusted(), p.new, p.grace].into_iter().flatten().any(|end| now < end));
        // Nobody speaks for the port of one that has died.
        let hushed = self.hushed.iter().filter(|(_, (from, end))| now < *end && alive.contains(from));
        View {
            hushed: hushed.map(|(n, _)| n.clone()).collect(),
            alive,
            doubted: names(&|p| !p.is_up() && p.last_claim.is_some_and(|t| now < t + DOUBT)),
            starting: !resigned && matches!(self.phase, Phase::Held | Phase::First(_) | Phase::Rest(_)),
            cut_off,
            resigned,
            lingering: lingering.map(|(n, _)| n.clone()).collect(),
            yielding: self.yielding.iter().filter(|(_, end)| now < **end).map(|(n, _)| n.clone()).collect(),
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
        let hushed = self.hushed.values().map(|(_, end)| end);
        let lists = [&self.lingering, &self.yielding, &self.behind].into_iter().flat_map(BTreeMap::values);
        let ports = lists.chain(hushed).copied().chain(uplink);
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

        (Phase::First(end), Sessions::Silent { several, .. }) if over(end) => silent(several),
        (Phase::First(end), Sessions::Silent { .. }) => Phase::First(end),

        (Phase::Rest(end), Sessions::Some) if over(end) => Phase::Serving,
        (Phase::Rest(end), Sessions::Some | Sessions::Stirring) => Phase::Rest(end),

        (Phase::Serving, Sessions::Stirring) => Phase::Rest(now + SETTLE),
        (Phase::Serving, Sessions::Some) => Phase::Serving,
        (Phase::Serving, Sessions::Silent { together, .. }) => silent(together),
        (Phase::Rest(_) | Phase::CutOff, Sessions::Silent { several, .. }) => silent(several),
    }
}

/// No session shows life, of one that may be the peer's fault or of several.
fn silent(several: bool) -> Phase {
    if several { Phase::CutOff } else { Phase::Serving }
}

#[cfg(test)]
mod tests;
