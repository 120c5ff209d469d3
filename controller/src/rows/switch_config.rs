//! What the controller asks of the switch through the local database besides ports: tags, look-ups, connection limits.

use crate::input::model::Local;
use crate::plan::Plan;
use crate::units::presence::Presence;
use ovn_schema::{Map, Set, Str, Uuid, Write, ovs};
use ovsdb_rs::DatabaseSchema;
use std::collections::{BTreeMap, BTreeSet};

/// The addresses by which most flows are told apart, the most useful first.
const PREFIXES: [&str; 4] = ["ip_src", "ip_dst", "ipv6_src", "ipv6_dst"];
/// How many OpenFlow tables a bridge has that can be configured.
const FLOW_TABLES: i64 = 255;

/// Has the switch look through all tags of a packet: rules must see what is behind them (ovs-vswitchd.conf.db(5), `vlan-limit`).
pub fn vlan_limit(db: &ovs::Database, plan: &mut Plan) {
    let Some((root, row)) = db.open_vswitch.iter().next() else { return };
    if row.other_config.get("vlan-limit").is_some_and(|v| &**v == "0") {
        return;
    }
    let mut other = row.other_config.clone();
    other.insert("vlan-limit".into(), "0".into());
    let txn = &mut plan.part("Open_vSwitch:other_config:vlan-limit", ()).txn;
    txn.update_row(*root, [ovs::OpenVswitch::other_config(&other)]);
}

/// Takes back what an older OVN has set: while its mark stands, `flow-restore-wait` is OVN's, not an operator's, and a switch
/// that starts with it receives nothing for good.
pub fn flow_restore(db: &ovs::Database, plan: &mut Plan) {
    const MARK: &str = "ovn-managed-flow-restore-wait";
    const WAIT: &str = "flow-restore-wait";
    let Some((root, row)) = db.open_vswitch.iter().next() else { return };
    if !ovn_schema::options::flag(&row.external_ids, MARK) {
        return;
    }
    let pair = |m: &Map<Str, Str>, key: &str| m.get(key).map(|v| Map::from([(key.into(), v.clone())]));
    let Some(wait) = pair(&row.other_config, WAIT) else { return };
    let txn = &mut plan.part("Open_vSwitch:other_config:flow-restore-wait", ()).txn;
    txn.remove_from_row(*root, ovs::OpenVswitch::other_config(&wait));
    if let Some(mark) = pair(&row.external_ids, MARK) {
        txn.remove_from_row(*root, ovs::OpenVswitch::external_ids(&mark));
    }
}

/// A bridge's sets of sample collectors, by number.
pub fn collectors(db: &ovs::Database, bridge: Uuid) -> BTreeSet<u32> {
    let own = db.flow_sample_collector_set.values().filter(|s| s.bridge == bridge);
    own.filter_map(|s| u32::try_from(s.id).ok()).collect()
}

/// Has the switch look addresses up by their prefixes in all tables, as many as the database's schema allows.
pub fn prefixes(db: &ovs::Database, schema: &DatabaseSchema, (id, br): (Uuid, &ovs::Bridge), plan: &mut Plan) {
    let column = schema.table("Flow_Table").ok().and_then(|t| t.column("prefixes"));
    let Some(most) = column.map(|c| c.ty.max as usize) else { return };
    let wanted: Vec<&str> = PREFIXES.into_iter().take(most).collect();
    let value: Set<Str> = wanted.iter().map(|p| Str::from(*p)).collect();
    let first = br.flow_tables.values().next().copied();
    let uniform = br.flow_tables.len() as i64 == FLOW_TABLES && br.flow_tables.values().all(|t| Some(*t) == first);
    let table = first.filter(|_| uniform);
    if table.and_then(|t| db.flow_table.get(&t)).is_some_and(|t| t.prefixes == value) {
        return;
    }
    let part = plan.part(format!("Bridge {}:flow_tables", br.name), &wanted);
    part.log.push(format!("Setting flow table prefixes: {}.", wanted.join(", ")));
    let columns = [ovs::FlowTable::prefixes(&value)];
    match table {
        Some(t) => part.txn.update_row(t, columns),
        None => {
            let t = part.txn.insert_row(columns);
            let all: Map<i64, Uuid> = (0..FLOW_TABLES).map(|n| (n, t)).collect();
            part.txn.update_row(id, [ovs::Bridge::flow_tables(&all)]);
        }
    }
}

/// A number of connections; none: as many as there are.
pub fn limit(text: Option<&Str>) -> Option<i64> {
    text.and_then(|t| t.parse().ok()).filter(|n| (0..=i64::from(u32::MAX)).contains(n))
}

/// The limits that northd gives (`ct-zone-limit` of routers, switches and ports), by zone.
fn limits(here: &Presence, local: &Local) -> BTreeMap<i64, i64> {
    here.limits.iter().filter_map(|(name, limit)| Some((i64::from(*local.zones.get(name)?), *limit))).collect()
}

/// Brings the limits of the switch's zones into line. Zones of others are left alone, and timeouts, which are an operator's
/// (`ovs-vsctl add-zone-tp`).
pub fn connection_limits(db: &ovs::Database, br: &ovs::Bridge, local: &Local, here: &Presence, plan: &mut Plan) {
    let Some((root, row)) = db.open_vswitch.iter().next() else { return };
    let wanted = limits(here, local);
    let kind: Str = if br.datapath_type.is_empty() { "system".into() } else { br.datapath_type.clone() };
    let found = row.datapaths.get(&kind).and_then(|id| Some((*id, db.datapath.get(id)?)));
    let have: BTreeMap<i64, Uuid> =
        found.map(|(_, d)| d.ct_zones.iter().map(|(zone, id)| (*zone, *id)).collect()).unwrap_or_default();
    let row_of = |zone: &i64| have.get(zone).and_then(|id| db.ct_zone.get(id));
    let limit_of = |zone: &i64| row_of(zone).and_then(|z| z.limit);
    let has_timeouts = |zone: &i64| row_of(zone).is_some_and(|z| z.timeout_policy.is_some());
    let mut gone: Vec<i64> = have.keys().copied().filter(|z| !wanted.contains_key(z)).collect();
    if !gone.is_empty() {
        let mine: BTreeSet<i64> = local.zones.values().map(|z| i64::from(*z)).collect();
        gone.retain(|z| mine.contains(z));
    }
    gone.retain(|z| !has_timeouts(z) || limit_of(z).is_some());
    if gone.is_empty() && wanted.iter().all(|(zone, limit)| limit_of(zone) == Some(*limit)) {
        return;
    }
    let txn = &mut plan.part(format!("Datapath {kind}:ct_zones"), (&wanted, &gone)).txn;
    let rest = have.iter().filter(|(z, _)| !gone.contains(z) || has_timeouts(z));
    let mut all: Map<i64, Uuid> = rest.map(|(zone, id)| (*zone, *id)).collect();
    for id in gone.iter().filter(|z| has_timeouts(z)).filter_map(|z| have.get(z)) {
        txn.update_row(*id, [ovs::CtZone::limit(&None)]);
    }
    for (zone, limit) in &wanted {
        let columns = [ovs::CtZone::limit(&Some(*limit))];
        match have.get(zone) {
            Some(_) if limit_of(zone) == Some(*limit) => {}
            Some(id) => txn.update_row(*id, columns),
            None => drop(all.insert(*zone, txn.insert_row(columns))),
        }
    }
    match found {
        Some((id, _)) => txn.update_row(id, [ovs::Datapath::ct_zones(&all)]),
        None => {
            let id = txn.insert_row([ovs::Datapath::ct_zones(&all)]);
            let pair = Map::from([(kind, id)]);
            txn.add_to_row(*root, ovs::OpenVswitch::datapaths(&pair));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const BRIDGE: Uuid = Uuid::from_u128(1);
    const DATAPATH: Uuid = Uuid::from_u128(2);

    /// The zones of a switch afterwards, each with its limit and whether it has timeouts, and how many operations that took; `have` are
    /// the zones before.
    fn after(have: &[(i64, Option<i64>, bool)], wanted: &[(&str, i64)]) -> (Vec<(i64, Option<i64>, bool)>, usize) {
        let mut db = ovs::Database::default();
        let mut zones = Map::default();
        for (zone, limit, timeouts) in have {
            let id = Uuid::from_u128(100 + *zone as u128);
            let timeout_policy = timeouts.then_some(Uuid::from_u128(7));
            db.ct_zone.insert(id, Arc::new(ovs::CtZone { limit: *limit, timeout_policy, ..Default::default() }));
            zones.insert(*zone, id);
        }
        db.datapath.insert(DATAPATH, Arc::new(ovs::Datapath { ct_zones: zones, ..Default::default() }));
        let datapaths = Map::from([("netdev".into(), DATAPATH)]);
        db.open_vswitch.insert(Uuid::from_u128(3), Arc::new(ovs::OpenVswitch { datapaths, ..Default::default() }));
        let bridge = ovs::Bridge { name: "br-int".into(), datapath_type: "netdev".into(), ..Default::default() };
        db.bridge.insert(BRIDGE, Arc::new(bridge.clone()));
        let zones = [("a", 1), ("b", 2)].map(|(name, zone)| (Str::from(name), zone));
        let local = Local { zones: zones.into_iter().collect(), ..Local::default() };
        let limits = wanted.iter().map(|(name, limit)| (Str::from(*name), *limit)).collect();
        let mut here = Presence::default();
        here.limits = limits;
        let mut plan = Plan::new(Arc::new(ovs::Database::schema()));
        connection_limits(&db, &bridge, &local, &here, &mut plan);
        let operations = crate::plan::Attempts::default().choose(plan, std::time::Instant::now());
        let mut now: BTreeMap<i64, (Option<i64>, bool)> = have.iter().map(|(z, l, t)| (*z, (*l, *t))).collect();
        for o in &operations {
            let row = &o["row"];
            if o["table"] == "CT_Zone" && o["op"] == "update" {
                let id = o["where"][0][2][1].as_str().expect("a row's").to_string();
                let zone = now.iter_mut().find(|(z, _)| Uuid::from_u128(100 + **z as u128).to_string() == id);
                zone.expect("a zone").1.0 = row["limit"].as_i64();
            } else if o["table"] == "Datapath" {
                let pairs = row["ct_zones"][1].as_array().expect("a map");
                let left: Vec<i64> = pairs.iter().filter_map(|p| p[0].as_i64()).collect();
                now.retain(|z, _| left.contains(z));
                for z in left {
                    now.entry(z).or_insert((wanted.first().map(|(_, l)| *l), false));
                }
            }
        }
        (now.into_iter().map(|(z, (l, t))| (z, l, t)).collect(), operations.len())
    }

    #[test]
    fn limits_follow_northd_and_timeouts_stay() {
        // A limit that nobody wants goes, and a zone with nothing else.
        assert_eq!(after(&[(1, Some(5), false)], &[]).0, []);
        assert_eq!(after(&[(1, Some(5), true)], &[]).0, [(1, None, true)]);
        // An operator's timeouts alone are left alone, as zones of others are.
        assert_eq!(
            after(&[(1, None, true), (9, Some(4), false)], &[]),
            (vec![(1, None, true), (9, Some(4), false)], 0)
        );
        assert_eq!(after(&[(1, None, true)], &[("a", 8)]).0, [(1, Some(8), true)]);
        assert_eq!(after(&[(1, Some(8), true)], &[("a", 8)]).1, 0);
        assert_eq!(after(&[(1, None, true)], &[("b", 8)]).0, [(1, None, true), (2, Some(8), false)]);
    }
}
