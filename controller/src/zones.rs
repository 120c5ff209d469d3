//! Connection tracking zones: one a local port, two a local datapath; numbers are kept in the integration bridge's
//! `external_ids:ct-zone-NAME`, so that a restart changes none and drops no connection.

use crate::model::Input;
use ovn_schema::{Map, Str, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// Where zone numbers are kept.
const PREFIX: &str = "ct-zone-";

/// The zones that the bridge remembers.
pub fn remembered(external_ids: &Map<Str, Str>) -> BTreeMap<Str, u16> {
    external_ids
        .iter()
        .filter_map(|(k, v)| Some((k.strip_prefix(PREFIX)?.into(), v.parse().ok().filter(|z| *z > 0)?)))
        .collect()
}

/// The zones that are needed.
pub fn wanted(input: &Input, datapaths: &BTreeSet<Uuid>, chassis: Option<Uuid>) -> BTreeSet<Str> {
    let mut out = BTreeSet::new();
    for dp in datapaths {
        out.insert(input.zone_name(*dp, "dnat"));
        out.insert(input.zone_name(*dp, "snat"));
        for (_, p) in input.ports_of(*dp) {
            let here = crate::local::is_here(p, chassis);
            if matches!(&*p.r#type, "" | "localport" | "virtual" | "l2gateway" | "l3gateway") && here
                || matches!(&*p.r#type, "localnet" | "localport")
            {
                out.insert(p.logical_port.clone());
            }
        }
    }
    out
}

/// Keeps the numbers of zones that are still wanted and gives the others free ones.
pub fn assign(have: &BTreeMap<Str, u16>, wanted: &BTreeSet<Str>, requested: &BTreeMap<Str, u16>) -> BTreeMap<Str, u16> {
    let mut out: BTreeMap<Str, u16> = BTreeMap::new();
    let mut used: BTreeSet<u16> = BTreeSet::new();
    for (name, zone) in requested.iter().filter(|(n, _)| wanted.contains(*n)) {
        if used.insert(*zone) {
            out.insert(name.clone(), *zone);
        }
    }
    for name in wanted {
        if let Some(z) = have.get(name)
            && !out.contains_key(name)
            && used.insert(*z)
        {
            out.insert(name.clone(), *z);
        }
    }
    let mut next = 1u16;
    for name in wanted {
        if out.contains_key(name) {
            continue;
        }
        while used.contains(&next) {
            next = next.saturating_add(1);
        }
        if next == u16::MAX {
            tracing::warn!(target: "ct_zone", "connection tracking zones are exhausted; {name} has none");
            break;
        }
        used.insert(next);
        out.insert(name.clone(), next);
    }
    out
}

/// The bridge's `external_ids` with these zones and no others.
pub fn remember(external_ids: &Map<Str, Str>, zones: &BTreeMap<Str, u16>) -> Map<Str, Str> {
    let mut out: Map<Str, Str> =
        external_ids.iter().filter(|(k, _)| !k.starts_with(PREFIX)).map(|(k, v)| (k.clone(), v.clone())).collect();
    out.extend(zones.iter().map(|(name, z)| (Str::from(format!("{PREFIX}{name}")), Str::from(z.to_string()))));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<Str> {
        names.iter().map(|n| Str::from(*n)).collect()
    }

    #[test]
    fn numbers_stay_and_are_unique() {
        let first = assign(&BTreeMap::new(), &set(&["a", "b", "c"]), &BTreeMap::new());
        assert_eq!(first.values().copied().collect::<BTreeSet<_>>().len(), 3);
        let second = assign(&first, &set(&["b", "c", "d"]), &BTreeMap::from([("d".into(), first["b"])]));
        assert_eq!((second["c"], second["d"]), (first["c"], first["b"]));
        assert_ne!(second["b"], second["d"]);
        let ids = remember(&Map::from([("ct-zone-old".into(), "9".into()), ("x".into(), "y".into())]), &second);
        assert_eq!(remembered(&ids), second);
        assert_eq!(&*ids["x"], "y");
    }
}
