//! Which member of a group is active, as one chassis sees it.

use std::collections::BTreeSet;
use std::sync::Arc;

/// A chassis of an HA chassis group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The chassis' name.
    pub name: Arc<str>,
    /// Its priority in the group; the greatest is preferred.
    pub priority: i64,
}

impl Member {
    /// What members are ordered by, the preferred last: priority, then name, as ovn-controller does
    /// (OVN, `HA_Chassis:priority`; of equal priorities it takes the last name).
    fn rank(&self) -> (i64, &str) {
        (self.priority, &self.name)
    }

    /// Puts the preferred member first.
    pub fn sort(members: &mut [Member]) {
        members.sort_by(|a, b| b.rank().cmp(&a.rank()));
    }
}

/// What a chassis makes of its sessions and of others' claims at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Chassis that are known to be alive: their session is up, or they claimed a gateway port since it went down.
    pub alive: BTreeSet<Arc<str>>,
    /// Of those, chassis that claimed a port a moment ago though there is no session to them: their claim is not contested yet.
    pub doubted: BTreeSet<Arc<str>>,
    /// Nobody relies on this chassis yet: its switch is away or holds BFD down, or sessions are still coming up. It installs
    /// the flows of what it will serve, but claims and announces nothing.
    pub starting: bool,
    /// Two sessions or more were lost together and all are down: this chassis is cut off, rather than all others dead. So is one
    /// that has resigned.
    pub cut_off: bool,
    /// An uplink that gateway ports need is lost: others are to take this chassis for dead, so it has no BFD sessions.
    pub resigned: bool,
    /// Ports that another chassis claimed from this one a moment ago: this one serves them on until everybody has seen it.
    pub lingering: BTreeSet<Arc<str>>,
    /// Ports that this chassis took a moment ago from one that lives and serves on: it does not announce them yet.
    pub hushed: BTreeSet<Arc<str>>,
    /// External ports that another chassis asked for a moment ago: this one lets go of them.
    pub yielding: BTreeSet<Arc<str>>,
    /// Chassis whose connections this one is told and has not all yet: no port is taken from them while they are alive.
    pub behind: BTreeSet<Arc<str>>,
}

impl View {
    /// The active member of a group in the view of chassis `me`. `holder` is the chassis that has claimed the port.
    ///
    /// - A holder that is not cut off goes on until another chassis has claimed the port: a preferred chassis that comes
    ///   back first installs its flows, and no packet is lost in between.
    /// - Otherwise it is the preferred one of those that are alive. A starting chassis takes all members for alive, to
    ///   prepare for what it will be.
    /// - A chassis that is cut off never chooses itself, unless it is the only member.
    /// - Where nobody is alive it is the preferred one, so that traffic has somewhere to go as soon as it is back.
    pub fn active<'a>(&self, me: &str, members: &'a [Member], holder: Option<&str>) -> Option<&'a Member> {
        if let [only] = members {
            return Some(only);
        }
        let is_me = |m: &Member| &*m.name == me;
        let eligible = || members.iter().filter(|m| !(self.cut_off && is_me(m)));
        if holder == Some(me)
            && let Some(own) = eligible().find(|m| is_me(m))
        {
            return Some(own);
        }
        let alive = |m: &&Member| self.starting || is_me(m) || self.alive.contains(&m.name);
        eligible().filter(alive).max_by_key(|m| m.rank()).or_else(|| eligible().max_by_key(|m| m.rank()))
    }
}

impl View {
    /// Whether chassis `me` may claim a port of the group from its holder now.
    pub fn may_claim(&self, me: &str, members: &[Member], holder: Option<&str>) -> bool {
        let contested = holder.is_some_and(|h| self.doubted.contains(h));
        let waits = holder.is_some_and(|h| self.behind.contains(h) && self.alive.contains(h));
        !self.starting && !contested && !waits && self.active(me, members, holder).is_some_and(|m| &*m.name == me)
    }

    /// Whether chassis `me`, which was relieved of a port of the group a moment ago, passes packets for it on to the holder.
    /// Where the holder is dead, or this chassis is to take the port back, it serves as before.
    pub fn passes_on(&self, me: &str, port: &str, members: &[Member], holder: &str) -> bool {
        let mine = || self.active(me, members, Some(holder)).is_some_and(|m| &*m.name == me);
        holder != me && self.lingering.contains(port) && self.alive.contains(holder) && !mine()
    }

    /// The members in the order in which a chassis outside the group tries them: by priority, but the one that holds the
    /// port first while it is alive. The one that takes over has its flows by the time it claims, not earlier.
    pub fn order(&self, members: &mut [Member], holder: Option<&str>) {
        Member::sort(members);
        let holds = |m: &Member| holder == Some(&*m.name) && self.alive.contains(&m.name);
        members.sort_by_key(|m| !holds(m));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(name: &str, priority: i64) -> Member {
        Member { name: name.into(), priority }
    }

    fn group() -> [Member; 2] {
        [member("gw1", 20), member("gw2", 10)]
    }

    fn sees(alive: &[&str]) -> View {
        View { alive: alive.iter().map(|n| Arc::from(*n)).collect(), ..View::default() }
    }

    fn active(view: &View, me: &str, holder: Option<&str>) -> Option<String> {
        view.active(me, &group(), holder).map(|m| m.name.to_string())
    }

    #[test]
    fn the_preferred_live_member_is_active() {
        assert_eq!(active(&sees(&["gw1"]), "gw2", None).as_deref(), Some("gw1"));
        assert_eq!(active(&sees(&[]), "gw2", None).as_deref(), Some("gw2"));
        assert_eq!(active(&sees(&[]), "hv1", None).as_deref(), Some("gw1"));
        assert_eq!(sees(&[]).active("hv1", &[], None), None);
    }

    #[test]
    fn of_equal_priorities_the_last_name_counts() {
        let group = [member("gw1", 10), member("gw2", 10)];
        let both = sees(&["gw1", "gw2"]);
        assert_eq!(both.active("hv1", &group, None).map(|m| &*m.name), Some("gw2"));
    }

    #[test]
    fn the_holder_goes_on_until_another_has_claimed() {
        let both = sees(&["gw1", "gw2"]);
        assert_eq!(active(&both, "gw2", Some("gw2")).as_deref(), Some("gw2"), "gw1 is back, but has not claimed yet");
        assert_eq!(active(&both, "gw1", Some("gw2")).as_deref(), Some("gw1"), "it prepares, then claims");
        assert_eq!(active(&both, "hv1", Some("gw2")).as_deref(), Some("gw1"));
        assert_eq!(active(&both, "gw2", Some("gw1")).as_deref(), Some("gw1"));
        assert_eq!(active(&both, "gw3", Some("gw3")).as_deref(), Some("gw1"), "gw3 is no member any more");
    }

    #[test]
    fn a_chassis_that_is_cut_off_never_chooses_itself() {
        let cut = View { cut_off: true, ..View::default() };
        for holder in [None, Some("gw1"), Some("gw2")] {
            assert_eq!(active(&cut, "gw1", holder).as_deref(), Some("gw2"));
            assert_eq!(active(&cut, "gw2", holder).as_deref(), Some("gw1"));
        }
        let alone = [member("gw1", 1)];
        assert_eq!(cut.active("gw1", &alone, None).map(|m| &*m.name), Some("gw1"), "nobody else could serve");
    }

    #[test]
    fn a_starting_chassis_takes_all_members_for_alive() {
        let starting = View { starting: true, ..View::default() };
        assert_eq!(active(&starting, "gw2", None).as_deref(), Some("gw1"));
        assert_eq!(active(&starting, "gw1", Some("gw2")).as_deref(), Some("gw1"));
    }

    #[test]
    fn others_try_the_holder_first_while_it_is_alive() {
        let order = |view: &View, holder: Option<&str>| {
            let mut members = group().to_vec();
            view.order(&mut members, holder);
            members.iter().map(|m| m.name.to_string()).collect::<Vec<_>>()
        };
        let both = sees(&["gw1", "gw2"]);
        assert_eq!(order(&both, Some("gw2")), ["gw2", "gw1"], "gw1 has not claimed yet");
        assert_eq!(order(&both, Some("gw1")), ["gw1", "gw2"]);
        assert_eq!(order(&both, None), ["gw1", "gw2"]);
        assert_eq!(order(&sees(&["gw1"]), Some("gw2")), ["gw1", "gw2"], "gw2 is not reached from here");
    }

    #[test]
    fn a_claim_waits_while_the_holder_is_doubted() {
        let mut view = sees(&["gw2"]);
        assert!(view.may_claim("gw1", &group(), Some("gw2")));
        view.doubted.insert("gw2".into());
        assert!(!view.may_claim("gw1", &group(), Some("gw2")));
        assert!(view.may_claim("gw1", &group(), None));
        view.starting = true;
        assert!(!view.may_claim("gw1", &group(), None));
    }

    #[test]
    fn a_claim_waits_for_the_connections_of_a_holder_that_lives() {
        let mut view = View { behind: ["gw2".into()].into(), ..sees(&["gw2"]) };
        assert!(!view.may_claim("gw1", &group(), Some("gw2")));
        assert!(view.may_claim("gw1", &group(), None), "nobody's connections are waited for");
        view.alive.clear();
        assert!(view.may_claim("gw1", &group(), Some("gw2")), "the dead tell nothing more");
    }

    proptest! {
        /// Chassis with the same view choose the same member, whatever the order they learn of members in.
        #[test]
        fn the_same_view_gives_the_same_choice(
            members in prop::collection::btree_map("[a-d]", (0i64..3, any::<bool>()), 1..5),
            seed in any::<usize>(),
        ) {
            let mut group: Vec<Member> = members.iter().map(|(n, (p, _))| member(n, *p)).collect();
            let live: Vec<&str> = members.iter().filter(|(_, (_, alive))| *alive).map(|(n, _)| n.as_str()).collect();
            let view = sees(&live);
            let holder = group.get(seed % group.len()).map(|m| m.name.clone());
            let choice = |g: &[Member], me: &str| view.active(me, g, holder.as_deref()).map(|m| m.name.clone());
            let first = choice(&group, "elsewhere");
            let n = group.len();
            group.rotate_left(seed % n);
            prop_assert_eq!(&choice(&group, "elsewhere"), &first);
            for me in live.iter().filter(|me| Some(**me) != holder.as_deref()) {
                prop_assert_eq!(&choice(&group, me), &first, "{} sees the same sessions", me);
            }
            if let Some(f) = &first && !live.is_empty() && members.len() > 1 {
                prop_assert!(live.contains(&&**f));
            }
        }
    }
}
