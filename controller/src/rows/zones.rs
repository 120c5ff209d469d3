//! Connection tracking zones: one a local port, two a local datapath; numbers are kept in the integration bridge's
//! `external_ids:ct-zone-NAME`, so that a restart changes none and drops no connection.

use crate::input::model::Input;
use ovn_schema::sb::{DatapathBinding, PortBinding};
use ovn_schema::{Map, Str};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Where zone numbers are kept.
const PREFIX: &str = "ct-zone-";

/// The zones that the bridge remembers. Older versions named a datapath's by its row; they go on under its name.
pub fn remembered(external_ids: &Map<Str, Str>, input: &Input) -> BTreeMap<Str, u16> {
    let mut out = BTreeMap::new();
    for (key, value) in external_ids {
        let (Some(name), Ok(zone)) = (key.strip_prefix(PREFIX).filter(|n| !n.is_empty()), value.parse()) else {
            continue;
        };
        out.insert(renamed(name, input).unwrap_or_else(|| name.into()), zone);
    }
    out
}

/// The zones that the bridge remembers by rows of datapaths, under the datapaths' names: what an older controller wrote counts,
/// whenever it did.
pub fn from_rows(external_ids: &Map<Str, Str>, input: &Input) -> BTreeMap<Str, u16> {
    let mut out = BTreeMap::new();
    for (key, value) in external_ids {
        if let (Some(name), Ok(zone)) = (key.strip_prefix(PREFIX), value.parse())
            && let Some(new) = renamed(name, input)
        {
            tracing::debug!(target: "ct_zone", "ct zone {zone} replace uuid name '{name}' with '{new}'");
            out.insert(new, zone);
        }
    }
    out
}

/// The name of a datapath's zone that is named by the datapath's row.
fn renamed(name: &str, input: &Input) -> Option<Str> {
    let (id, suffix) = name.rsplit_once('_').filter(|(_, s)| matches!(*s, "dnat" | "snat"))?;
    let id = id.parse().ok()?;
    input.sb.datapath_binding.get(&id)?.external_ids.get("name")?;
    Some(input.zone_name(id, suffix))
}

/// Whether a port has a zone where it is bound.
pub fn of_machine(p: &PortBinding) -> bool {
    matches!(&*p.r#type, "" | "virtual" | "l2gateway" | "l3gateway" | "chassisredirect" | "external")
}

/// Whether a port has a zone wherever its datapath is local.
pub fn of_datapath(p: &PortBinding) -> bool {
    matches!(&*p.r#type, "localnet" | "localport") || filters(p)
}

/// Whether access rules are applied at a port to a router (ovn-nb(5), `enable_router_port_acl`), which then tracks connections.
fn filters(p: &PortBinding) -> bool {
    &*p.r#type == "patch" && ovn_schema::options::flag(&p.options, "enable_router_port_acl")
}

/// `snat-ct-zone` of a router. Several may ask for one zone, and 0 is one, too.
pub fn requested(d: &DatapathBinding) -> Option<u16> {
    d.external_ids.get("snat-ct-zone")?.parse().ok()
}

/// Keeps the numbers of zones that are still wanted and within the range, and gives the others free ones. Requested numbers come
/// first; who had one gets another.
pub fn assign(
    have: &BTreeMap<Str, u16>,
    wanted: &BTreeSet<Str>,
    requested: &BTreeMap<Str, u16>,
    (min, max): (u16, u16),
) -> BTreeMap<Str, u16> {
    let mut out: BTreeMap<Str, u16> =
        requested.iter().filter(|(n, _)| wanted.contains(*n)).map(|(n, z)| (n.clone(), *z)).collect();
    let mut used: BTreeSet<u16> = out.values().copied().collect();
    for name in wanted.iter().filter(|n| !requested.contains_key(*n)) {
        if let Some(z) = have.get(name).filter(|z| (min..=max).contains(*z))
            && used.insert(*z)
        {
            out.insert(name.clone(), *z);
        }
    }
    // What was somebody's a moment ago comes last.
    let recent: BTreeSet<u16> = have.values().copied().collect();
    let mut free = (min..=max).filter(|z| !recent.contains(z)).chain((min..=max).filter(|z| recent.contains(z)));
    for name in wanted {
        if !out.contains_key(name)
            && let Some(z) = free.by_ref().find(|z| !used.contains(z))
        {
            used.insert(z);
            out.insert(name.clone(), z);
        }
    }
    out
}

/// The zones whose connections are another's than before: they are forgotten, so that nobody inherits them.
pub fn to_flush(before: &BTreeMap<Str, u16>, after: &BTreeMap<Str, u16>) -> BTreeSet<u16> {
    let moved = |a: &BTreeMap<Str, u16>, b: &BTreeMap<Str, u16>| {
        a.iter().filter(|(n, z)| b.get(*n) != Some(*z)).map(|(_, z)| *z).collect::<Vec<_>>()
    };
    moved(before, after).into_iter().chain(moved(after, before)).collect()
}

/// Whether the bridge's `external_ids` have these zones and no others. Both are sorted by name.
pub fn are_remembered(external_ids: &Map<Str, Str>, zones: &BTreeMap<Str, u16>) -> bool {
    let from = external_ids.range::<str, _>((Bound::Included(PREFIX), Bound::Unbounded));
    let there = from.map_while(|(k, v)| Some((k.strip_prefix(PREFIX)?, v.parse().ok())));
    there.eq(zones.iter().map(|(name, zone)| (&**name, Some(*zone))))
}

/// The bridge's `external_ids` with these zones and no others. Most stay as they are.
pub fn remember(external_ids: &Map<Str, Str>, zones: &BTreeMap<Str, u16>) -> Map<Str, Str> {
    let from = external_ids.range::<str, _>((Bound::Included(PREFIX), Bound::Unbounded));
    let there = from.map_while(|(k, v)| Some((k, k.strip_prefix(PREFIX)?, v)));
    let (mut out, mut wanted) = (external_ids.clone(), zones.iter().peekable());
    let put = |out: &mut Map<Str, Str>, (name, zone): (&Str, &u16)| {
        out.insert(format!("{PREFIX}{name}").into(), zone.to_string().into());
    };
    // Both are sorted by name.
    for (key, name, value) in there {
        while let Some(new) = wanted.next_if(|(n, _)| ***n < *name) {
            put(&mut out, new);
        }
        match wanted.next_if(|(n, _)| ***n == *name) {
            Some((_, zone)) if value.parse() == Ok(*zone) => {}
            Some(other) => put(&mut out, other),
            None => drop(out.remove(key)),
        }
    }
    wanted.for_each(|new| put(&mut out, new));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<Str> {
        names.iter().map(|n| Str::from(*n)).collect()
    }

    const ALL: (u16, u16) = (1, u16::MAX);

    #[test]
    fn numbers_stay_and_are_unique() {
        let first = assign(&BTreeMap::new(), &set(&["a", "b", "c"]), &BTreeMap::new(), ALL);
        assert_eq!(first.values().copied().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2, 3]));
        let second = assign(&first, &set(&["b", "c", "d"]), &BTreeMap::from([("d".into(), first["b"])]), ALL);
        assert_eq!((second["c"], second["d"]), (first["c"], first["b"]));
        assert_ne!(second["b"], second["d"]);
        let ids = remember(&Map::from([("ct-zone-old".into(), "9".into()), ("x".into(), "y".into())]), &second);
        assert_eq!(remembered(&ids, &Input::default()), second);
        assert!(are_remembered(&ids, &second) && !are_remembered(&ids, &first));
        let mut more = ids.clone();
        more.insert("ct-zone-zzz".into(), "7".into());
        assert!(!are_remembered(&more, &second), "one too many");
        assert!(!are_remembered(&Map::new(), &second) && are_remembered(&Map::new(), &BTreeMap::new()));
        assert_eq!(&*ids["x"], "y");
        for next in [&first, &second, &BTreeMap::new(), &BTreeMap::from([("0".into(), 7), ("zz".into(), 8)])] {
            for before in [&ids, &more] {
                let after = remember(before, next);
                assert!(are_remembered(&after, next) && after["x"] == "y".into(), "{before:?} {next:?}");
                assert_eq!(after.len(), next.len() + 1);
            }
        }
    }

    #[test]
    fn ports_to_routers_have_a_zone_where_rules_are_applied() {
        use crate::units::presence::Presence;
        use ovn_schema::{Uuid, sb};
        use std::sync::Arc;
        let (dp, mut db) = (Uuid::from_u128(7), sb::Database::default());
        db.datapath_binding.insert(dp, Arc::new(sb::DatapathBinding { tunnel_key: 1, ..Default::default() }));
        let pair = |k: &str, v: &str| Map::from([(Str::from(k), Str::from(v))]);
        let ports = [
            (2, "patch", Map::new()),
            (3, "patch", pair("enable_router_port_acl", "true")),
            // By this one the datapath is local.
            (4, "l2gateway", pair("l2gateway-chassis", "hv1")),
        ];
        for (n, kind, options) in ports {
            let p = PortBinding {
                logical_port: format!("p{n}").into(),
                datapath: dp,
                r#type: kind.into(),
                tunnel_key: n,
                options,
                ..Default::default()
            };
            db.port_binding.insert(Uuid::from_u128(n as u128), Arc::new(p));
        }
        let local = crate::input::model::Local {
            chassis_name: "hv1".into(),
            chassis: Some(Uuid::from_u128(1)),
            ..Default::default()
        };
        let (mut input, mut here) = (Input::new(db, local), Presence::default());
        here.settle(&mut input, &[]);
        let names = &here.zones;
        assert!(names.contains("p3") && !names.contains("p2"), "{names:?}");
    }

    #[test]
    fn a_new_owner_inherits_nothing() {
        let first = assign(&BTreeMap::new(), &set(&["a", "b"]), &BTreeMap::new(), ALL);
        let second = assign(&first, &set(&["b", "c"]), &BTreeMap::new(), ALL);
        assert_ne!(second["c"], first["a"], "a number is not given again at once");
        assert_eq!(to_flush(&first, &second), BTreeSet::from([first["a"], second["c"]]));
        assert!(to_flush(&second, &second).is_empty());
        // With no other number left it is given again, and flushed.
        let tight = assign(&first, &set(&["b", "c"]), &BTreeMap::new(), (1, 2));
        assert_eq!(to_flush(&first, &tight), BTreeSet::from([first["a"]]));
    }

    #[test]
    fn routers_may_share_a_zone_and_ask_for_0() {
        let requested = BTreeMap::from([("r1_snat".into(), 0), ("r2_snat".into(), 0)]);
        let z = assign(&BTreeMap::new(), &set(&["r1_snat", "r2_snat", "a"]), &requested, ALL);
        assert_eq!((z["r1_snat"], z["r2_snat"], z["a"]), (0, 0, 1));
    }

    #[test]
    fn the_range_is_kept() {
        let have = BTreeMap::from([("a".into(), 5), ("b".into(), 15)]);
        let z = assign(&have, &set(&["a", "b", "c", "d"]), &BTreeMap::new(), (10, 12));
        assert!(z.values().all(|z| (10..=12).contains(z)), "{z:?}");
        assert_eq!(z.len(), 3, "one is left without");
    }
}
