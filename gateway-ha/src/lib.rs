//! Who is the active chassis of a gateway: a pure function of priorities and liveness, the same on every chassis.
//!
//! ovn-architecture(7), "High Availability for Distributed Gateways".

/// A chassis of an HA chassis group, as one chassis sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The chassis' name.
    pub name: String,
    /// Its priority in the group; the greatest is preferred.
    pub priority: i64,
    /// Whether its tunnel's BFD session is up. A chassis knows itself to be alive.
    pub alive: bool,
}

/// The active chassis in the view of chassis `me`: the live one of the greatest priority; of equal ones the
/// first by name. A chassis that sees no member alive takes the preferred one, so that traffic has somewhere to go
/// as soon as it is back.
///
/// `holder` is the chassis that has claimed the port. Where that is `me`, it goes on until another has claimed it: one that
/// comes back first puts its tables in place and announces itself, and nothing is lost in between.
pub fn select<'a>(me: &str, members: &'a [Member], holder: Option<&str>) -> Option<&'a str> {
    let preferred = |a: &&Member, b: &&Member| a.priority.cmp(&b.priority).then_with(|| b.name.cmp(&a.name));
    if holder == Some(me)
        && let Some(own) = members.iter().find(|m| m.name == me)
    {
        return Some(&own.name);
    }
    let live = members.iter().filter(|m| m.alive || m.name == me).max_by(preferred);
    live.or_else(|| members.iter().max_by(preferred)).map(|m| m.name.as_str())
}

/// Whether a chassis that sees these sessions should take itself for cut off and stand back: several peers, none of
/// them alive. With a single peer the loss of the peer and the loss of one's own link look alike; then somebody must
/// serve, so it does.
pub fn is_isolated(sessions_alive: &[bool]) -> bool {
    sessions_alive.len() > 1 && !sessions_alive.contains(&true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(name: &str, priority: i64, alive: bool) -> Member {
        Member { name: name.into(), priority, alive }
    }

    #[test]
    fn the_preferred_live_member_is_active() {
        let group = [member("gw1", 20, true), member("gw2", 10, true)];
        assert_eq!(select("gw2", &group, None), Some("gw1"));
        let group = [member("gw1", 20, false), member("gw2", 10, false)];
        assert_eq!(select("gw2", &group, None), Some("gw2"));
        assert_eq!(select("hv1", &group, None), Some("gw1"));
        assert_eq!(select("hv1", &[], None), None);
    }

    #[test]
    fn the_holder_goes_on_until_another_has_claimed() {
        let group = [member("gw1", 20, true), member("gw2", 10, true)];
        assert_eq!(select("gw2", &group, Some("gw2")), Some("gw2"), "gw1 is back, but has not claimed yet");
        assert_eq!(select("gw1", &group, Some("gw2")), Some("gw1"), "it prepares, then claims");
        assert_eq!(select("hv1", &group, Some("gw2")), Some("gw1"));
        assert_eq!(select("gw2", &group, Some("gw1")), Some("gw1"));
        // A chassis that is no member any more does not hold on, and one that is cut off (it calls itself nobody) neither.
        assert_eq!(select("gw3", &group, Some("gw3")), Some("gw1"));
        assert_eq!(select("", &group, Some("gw2")), Some("gw1"));
    }

    #[test]
    fn isolation_needs_more_than_one_silent_peer() {
        assert!(!is_isolated(&[]));
        assert!(!is_isolated(&[false]));
        assert!(is_isolated(&[false, false]));
        assert!(!is_isolated(&[false, true]));
    }

    proptest! {
        /// Chassis with the same view choose the same master, whatever the order they learn of members in.
        #[test]
        fn the_same_view_gives_the_same_choice(
            mut group in prop::collection::btree_map("[a-d]", (0i64..3, any::<bool>()), 1..5)
                .prop_map(|m| m.into_iter().map(|(n, (p, a))| member(&n, p, a)).collect::<Vec<_>>()),
            seed in any::<usize>(),
        ) {
            let live: Vec<String> = group.iter().filter(|m| m.alive).map(|m| m.name.clone()).collect();
            let holder = group.get(seed % group.len()).map(|m| m.name.clone());
            let choice = |g: &[Member], me: &str| select(me, g, holder.as_deref()).map(String::from);
            let first = choice(&group, "elsewhere");
            let n = group.len();
            group.rotate_left(seed % n);
            prop_assert_eq!(&choice(&group, "elsewhere"), &first);
            for me in live.iter().filter(|me| Some(*me) != holder.as_ref()) {
                prop_assert_eq!(&choice(&group, me), &first, "{} sees the same sessions", me);
            }
            if let Some(f) = &first && !live.is_empty() {
                prop_assert!(live.contains(f));
            }
        }
    }
}
