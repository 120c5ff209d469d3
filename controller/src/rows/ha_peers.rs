//! Gateways that know each other's connections (docs/ha.md): where this chassis hears its peers
//! (`Chassis:other_config:isthmus-ha`), and which peers its switch tells (`Bridge:other_config:ha-peers`).
//!
//! The operator turns it on by `external_ids:isthmus-ha-listen`; without it nothing here is written.

use crate::input::model::Input;
use crate::input::settings::Settings;
use crate::plan::Plan;
use ovn_schema::{Map, Str, Uuid, ovs};
use ovsdb_rs::stream::Remote;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The key of `Chassis:other_config`.
pub const PUBLISHED: &str = "isthmus-ha";
/// The key of `Bridge:other_config`.
const PEERS: &str = "ha-peers";
/// The key of `Chassis:other_config` that says how far a gateway's peers know its connections, and it theirs.
pub const STATE: &str = "isthmus-ha-state";
/// The most peers in a group: the members with the highest priorities take over.
const MOST: usize = 2;

/// Where peers connect to: the address that the switch listens on, or else that of the tunnels. None: it is off, or the
/// method is no passive one, which the switch reports.
pub fn published(listen: &str, encap_ips: &[Str]) -> Option<Str> {
    let (address, secure) = match Remote::parse(listen).ok()? {
        Remote::PassiveTcp(a) => (a, false),
        Remote::PassiveTls(a) => (a, true),
        _ => return None,
    };
    let host = match address.ip() {
        ip if ip.is_unspecified() => encap_ips.first()?.to_string(),
        ip => ip.to_string(),
    };
    let remote = if secure { Remote::Tls(host, address.port()) } else { Remote::Tcp(host, address.port()) };
    Some(remote.to_string().into())
}

/// What the switch says of one peer (`Bridge:status`, `ha-from:PEER` and `ha-to:PEER`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// What is here of its connections: `in-step`, `dump` or `silent`.
    pub from: Str,
    /// What it has of these: `dump`, `silent`, or how old what it lacks may be, by its power of ten (`10ms`).
    pub to: Str,
}

/// What the switch says of its peers, by their names.
pub fn states(bridge: &ovs::Bridge) -> BTreeMap<Str, PeerState> {
    let mut all: BTreeMap<Str, PeerState> = BTreeMap::new();
    for (key, value) in bridge.status.iter() {
        if let Some(peer) = key.strip_prefix("ha-from:") {
            all.entry(peer.into()).or_default().from = value.clone();
        } else if let Some(peer) = key.strip_prefix("ha-to:") {
            all.entry(peer.into()).or_default().to = value.clone();
        }
    }
    all
}

/// The value of [`STATE`]: `PEER FROM TO`, separated by commas.
pub fn described(states: &BTreeMap<Str, PeerState>) -> Option<Str> {
    let one = |(name, s): (&Str, &PeerState)| format!("{name} {} {}", s.from, s.to);
    let text: Vec<String> = states.iter().map(one).collect();
    (!text.is_empty()).then(|| text.join(",").as_str().into())
}

/// The peers of whose connections some are not here yet.
pub fn behind(states: &BTreeMap<Str, PeerState>) -> impl Iterator<Item = &Str> {
    states.iter().filter(|(_, s)| &*s.from != "in-step").map(|(name, _)| name)
}

/// The other members of each group that this chassis is in, with their priorities.
fn groups(input: &Input) -> impl Iterator<Item = Vec<(i64, Uuid)>> {
    let me = input.local.chassis;
    input.sb.ha_chassis_group.values().filter_map(move |g| {
        let rows = g.ha_chassis.iter().filter_map(|h| input.sb.ha_chassis.get(h));
        let mut members: Vec<(i64, Uuid)> = rows.filter_map(|h| Some((h.priority, h.chassis?))).collect();
        let all = members.len();
        members.retain(|(_, c)| Some(*c) != me);
        (members.len() < all).then_some(members)
    })
}

/// The names of the other members of the groups that this chassis is in.
pub fn members(input: &Input) -> BTreeSet<Str> {
    groups(input).flatten().filter_map(|(_, c)| Some(input.sb.chassis.get(&c)?.name.clone())).collect()
}

/// Of each group that this chassis is in, the other members with the highest priorities that can be told.
fn peers(input: &Input) -> BTreeMap<Str, Str> {
    let mut all = BTreeMap::new();
    for mut members in groups(input) {
        members.sort_by_key(|(priority, c)| (Reverse(*priority), *c));
        let told = members.iter().filter_map(|(_, c)| {
            let c = input.sb.chassis.get(c)?;
            Some((c.name.clone(), c.other_config.get(PUBLISHED)?.clone()))
        });
        all.extend(told.take(MOST));
    }
    all
}

/// Gives the switch its peers.
pub fn reconcile((id, br): (Uuid, &ovs::Bridge), input: &Input, s: &Settings, plan: &mut Plan) {
    if !s.other.contains_key(PUBLISHED) {
        return;
    }
    let list: Vec<String> = peers(input).iter().map(|(name, at)| format!("{name}={at}")).collect();
    let mut want: Map<Str, Str> = br.other_config.clone();
    match list.is_empty() {
        true => drop(want.remove(PEERS)),
        false => drop(want.insert(PEERS.into(), list.join(",").into())),
    }
    if want != br.other_config {
        let part = plan.part(format!("Bridge {}:other_config:{PEERS}", br.name), &list);
        part.exchange_pairs(("Bridge", id), "other_config", &br.other_config, &want);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use ovn_schema::sb;
    use std::sync::Arc;

    #[test]
    fn what_is_published_can_be_dialled() {
        let ips = [Str::from("10.0.0.1"), Str::from("fd00::1")];
        let at = |listen: &str| published(listen, &ips).map(|s| s.to_string());
        assert_eq!(at("pssl:6655").as_deref(), Some("ssl:10.0.0.1:6655"));
        assert_eq!(at("ptcp:6655:192.0.2.7").as_deref(), Some("tcp:192.0.2.7:6655"));
        assert_eq!(at("pssl:6655:[fd00::9]").as_deref(), Some("ssl:[fd00::9]:6655"));
        assert_eq!(published("pssl:6655", &ips[1..]).as_deref(), Some("ssl:[fd00::1]:6655"));
        assert_eq!((at("tcp:1.2.3.4:5"), at("")), (None, None));
    }

    #[test]
    fn what_the_switch_says_of_peers() {
        let pairs = [("ha-from:gw2", "in-step"), ("ha-to:gw2", "10ms"), ("ha-from:gw3", "dump"), ("stp", "x")];
        let status = pairs.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect();
        let all = states(&ovs::Bridge { status, ..Default::default() });
        assert_eq!(described(&all).as_deref(), Some("gw2 in-step 10ms,gw3 dump "));
        assert_eq!(behind(&all).map(|n| &**n).collect::<Vec<_>>(), ["gw3"]);
        assert_eq!(described(&BTreeMap::new()), None, "it is off, or the switch is another");
    }

    #[test]
    fn the_next_in_line_are_told() {
        let uuid = Uuid::from_u128;
        let mut db = sb::Database::default();
        // gw5 does not listen; gw6 is of another group.
        for (n, priority) in [(1u128, 10), (2, 20), (3, 30), (4, 5), (5, 40), (6, 50)] {
            let mut other_config = Map::new();
            if n != 5 {
                other_config.insert(PUBLISHED.into(), format!("ssl:10.0.0.{n}:6655").into());
            }
            let c = sb::Chassis { name: format!("gw{n}").into(), other_config, ..Default::default() };
            db.chassis.insert(uuid(n), Arc::new(c));
            let h = sb::HaChassis { priority, chassis: Some(uuid(n)), ..Default::default() };
            db.ha_chassis.insert(uuid(10 + n), Arc::new(h));
        }
        for (id, members) in [(100, 11..=15), (101, 16..=16)] {
            let g = sb::HaChassisGroup { ha_chassis: members.map(uuid).collect(), ..Default::default() };
            db.ha_chassis_group.insert(uuid(id), Arc::new(g));
        }
        let of = |n: u128| {
            let local = Local { chassis: Some(uuid(n)), ..Local::default() };
            peers(&Input::new(db.clone(), local)).into_keys().map(|k| k.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(1), ["gw2", "gw3"]);
        assert_eq!(of(3), ["gw1", "gw2"]);
        assert_eq!(of(6), Vec::<String>::new());
    }
}
