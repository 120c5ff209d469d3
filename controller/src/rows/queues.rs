//! Rates of logical ports (`qos_min_rate`, `qos_max_rate`, `qos_burst` of ovn-nb(5)): queues of the interface by which a port's
//! packets leave for the provider network. Northd gives each such port a queue's number and puts its packets into it.

use crate::input::settings::{Settings, bridge};
use crate::plan::Plan;
use crate::units::presence::Presence;
use ovn_schema::{Map, Str, Uuid, Write, ovs, sb};
use ovsdb_rs::client::Transaction;
use std::collections::BTreeMap;

/// Marks a `QoS` row that is this controller's. Others are left alone.
const MARK: &str = "ovn_qos";
/// Names a queue's logical port.
const PORT: &str = "ovn_port";
/// The highest rate that Open vSwitch takes: 2^32 - 1 octets a second, in bits.
const HIGHEST: u64 = (u32::MAX as u64) * 8;

/// A queue: its logical port, and `other_config`.
pub type Queue = (Str, Map<Str, Str>);

/// The port's queue, its number and its provider network.
pub fn wanted_of(p: &sb::PortBinding) -> Option<(i64, Queue, &Str)> {
    let number = |key: &str| p.options.get(key).and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
    let rates = [("max-rate", "qos_max_rate"), ("min-rate", "qos_min_rate"), ("burst", "qos_burst")]
        .map(|(to, from)| (Str::from(to), number(from)));
    let queue = p.options.get("qdisc_queue_id")?.parse::<i64>().ok().filter(|n| *n > 0)?;
    let network = p.options.get("qos_physical_network")?;
    if rates.iter().all(|(_, n)| *n == 0) {
        return None;
    }
    let config = rates.into_iter().map(|(k, n)| (k, Str::from(n.to_string()))).collect();
    Some((queue, (p.logical_port.clone(), config), network))
}

/// The port of a bridge by which packets leave the machine.
fn exit<'a>(db: &'a ovs::Database, br: &ovs::Bridge) -> Option<(Uuid, &'a ovs::Port, &'a ovs::Interface)> {
    let leads_out = |i: &ovs::Interface| {
        let asked = ovn_schema::options::flag(&i.external_ids, "ovn-egress-iface");
        !i.external_ids.contains_key("iface-id") && (asked || matches!(&*i.r#type, "" | "system"))
    };
    let mut ports = br.ports.iter().filter_map(|p| Some((*p, db.port.get(p)?)));
    ports.find_map(|(id, p)| {
        let mut all = p.interfaces.iter().filter_map(|i| db.interface.get(i));
        all.find(|i| leads_out(i)).map(|i| (id, &**p, &**i))
    })
}

/// Brings the queues of all provider networks' interfaces into line.
pub fn reconcile(db: &ovs::Database, here: &Presence, s: &Settings, plan: &mut Plan) {
    let mut wanted: BTreeMap<&Str, BTreeMap<i64, &Queue>> = BTreeMap::new();
    for ((network, number), queue) in &here.queues {
        wanted.entry(network).or_default().insert(*number, queue);
    }
    let mut done = std::collections::BTreeSet::new();
    for (network, name) in &s.mappings {
        let Some((_, br)) = bridge(db, name) else { continue };
        // Several networks may share a bridge; what one of them wants is enough.
        let Some((id, port, interface)) = exit(db, br) else { continue };
        let sharing = s.mappings.iter().filter(|(_, b)| *b == name).map(|(n, _)| n);
        let queues: BTreeMap<i64, Queue> =
            sharing.filter_map(|n| wanted.get(n)).flatten().map(|(n, q)| (*n, (*q).clone())).collect();
        if done.insert(id) {
            let part = plan.part(format!("QoS of port {} ({network})", port.name), format!("{queues:?}"));
            port_queues(db, (id, port, interface), &queues, &mut part.txn);
        }
    }
}

fn port_queues(
    db: &ovs::Database,
    (id, port, interface): (Uuid, &ovs::Port, &ovs::Interface),
    wanted: &BTreeMap<i64, Queue>,
    txn: &mut Transaction,
) {
    let found = port.qos.and_then(|q| Some((q, db.qos.get(&q)?)));
    if found.is_some_and(|(_, q)| !ovn_schema::options::flag(&q.external_ids, MARK)) {
        return;
    }
    let have = found.map(|(_, q)| q.queues.clone()).unwrap_or_default();
    let mut queues: Map<i64, Uuid> = Map::new();
    for (number, (name, config)) in wanted {
        let ids = Map::<Str, Str>::from([(PORT.into(), name.clone())]);
        let known = have.get(number).and_then(|q| Some((*q, db.queue.get(q)?)));
        let columns = || [ovs::Queue::external_ids(&ids), ovs::Queue::other_config(config)];
        let row = match known {
            Some((q, row)) if row.external_ids == ids && row.other_config == *config => q,
            Some((q, _)) => {
                txn.update_row(q, columns());
                q
            }
            None => txn.insert_row(columns()),
        };
        queues.insert(*number, row);
    }
    let gone: Vec<Uuid> = have.values().filter(|q| !queues.values().any(|k| k == *q)).copied().collect();
    match found {
        Some((q, _)) if queues.is_empty() => {
            txn.update_row(id, [ovs::Port::qos(&None)]);
            txn.delete("QoS", q);
        }
        Some((q, row)) if row.queues != queues => txn.update_row(q, [ovs::Qos::queues(&queues)]),
        None if !queues.is_empty() => {
            // What virtual interfaces say of their speed is no limit.
            let virtual_one = matches!(interface.status.get("driver_name").map(|d| &**d), Some("veth" | "tap"));
            let speed = interface.link_speed.filter(|_| !virtual_one).and_then(|s| u64::try_from(s).ok());
            let rate: Str = speed.unwrap_or(HIGHEST).to_string().into();
            let q = txn.insert_row([
                ovs::Qos::r#type(&Str::from("linux-htb")),
                ovs::Qos::other_config(&Map::<Str, Str>::from([("max-rate".into(), rate)])),
                ovs::Qos::external_ids(&Map::<Str, Str>::from([(MARK.into(), "true".into())])),
                ovs::Qos::queues(&queues),
            ]);
            txn.update_row(id, [ovs::Port::qos(&Some(q))]);
        }
        _ => {}
    }
    for q in gone {
        txn.delete("Queue", q);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::{Input, Local, Vif};
    use std::sync::Arc;

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn world(rate: Option<&str>) -> Input {
        let mut db = sb::Database::default();
        db.chassis.insert(uuid(1), Arc::new(sb::Chassis { name: "hv".into(), ..Default::default() }));
        db.datapath_binding.insert(uuid(7), Arc::default());
        let mut p = sb::PortBinding {
            logical_port: "lp".into(),
            datapath: uuid(7),
            chassis: Some(uuid(1)),
            ..Default::default()
        };
        p.options = [("qdisc_queue_id", "3"), ("qos_physical_network", "phys")]
            .into_iter()
            .map(|(k, v)| (k.into(), v.into()))
            .collect();
        if let Some(r) = rate {
            p.options.insert("qos_min_rate".into(), r.into());
        }
        db.port_binding.insert(uuid(2), Arc::new(p));
        let vif = Vif { ofport: Some(1), version: None, encap_ip: None, mtu: None, row: uuid(9) };
        let local = Local {
            chassis: Some(uuid(1)),
            chassis_name: "hv".into(),
            vifs: [("lp".into(), vif)].into(),
            ..Local::default()
        };
        Input::new(db, local)
    }

    /// A provider bridge with one interface, and its queues, if any: number and `min-rate`.
    fn switch(mark: &str, queues: &[(i64, &str)]) -> ovs::Database {
        let mut db = ovs::Database::default();
        let b = ovs::Bridge { name: "br-phys".into(), ports: [uuid(20)].into_iter().collect(), ..Default::default() };
        db.bridge.insert(uuid(10), Arc::new(b));
        let has = !queues.is_empty();
        let p = ovs::Port {
            name: "eth0".into(),
            interfaces: [uuid(21)].into_iter().collect(),
            qos: has.then(|| uuid(22)),
            ..Default::default()
        };
        db.port.insert(uuid(20), Arc::new(p));
        db.interface.insert(uuid(21), Arc::new(ovs::Interface { name: "eth0".into(), ..Default::default() }));
        if has {
            let queues: Map<i64, Uuid> = queues
                .iter()
                .map(|(n, rate)| {
                    let config = [("max-rate", "0"), ("min-rate", *rate), ("burst", "0")];
                    let q = ovs::Queue {
                        external_ids: Map::from([(PORT.into(), "lp".into())]),
                        other_config: config.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
                        ..Default::default()
                    };
                    db.queue.insert(uuid(30 + *n as u128), Arc::new(q));
                    (*n, uuid(30 + *n as u128))
                })
                .collect();
            let q = ovs::Qos { external_ids: Map::from([(mark.into(), "true".into())]), queues, ..Default::default() };
            db.qos.insert(uuid(22), Arc::new(q));
        }
        db
    }

    fn operations(db: &ovs::Database, input: &Input) -> Vec<String> {
        let s = Settings { mappings: [("phys".into(), "br-phys".into())].into(), ..Settings::default() };
        let mut plan = Plan::new(Arc::new(ovs::Database::schema()));
        let (mut input, mut here) = (Input::new(input.sb.clone(), input.local.clone()), Presence::default());
        here.settle(&mut input, &[]);
        reconcile(db, &here, &s, &mut plan);
        let out = crate::plan::Attempts::default().choose(plan, std::time::Instant::now());
        out.iter().map(|o| format!("{} {}", o["op"].as_str().unwrap(), o["table"].as_str().unwrap())).collect()
    }

    #[test]
    fn queues_follow_the_ports() {
        let (fresh, same) = (switch(MARK, &[]), switch(MARK, &[(3, "5")]));
        assert_eq!(operations(&fresh, &world(Some("5"))), ["insert Queue", "insert QoS", "update Port"]);
        assert!(operations(&same, &world(Some("5"))).is_empty());
        assert_eq!(operations(&same, &world(Some("6"))), ["update Queue"]);
        assert_eq!(operations(&same, &world(None)), ["update Port", "delete QoS", "delete Queue"]);
        let old = switch(MARK, &[(3, "5"), (4, "5")]);
        assert_eq!(operations(&old, &world(Some("5"))), ["update QoS", "delete Queue"]);
        let mut gone = world(Some("5"));
        gone.local.vifs.clear();
        assert_eq!(operations(&same, &gone), ["update Port", "delete QoS", "delete Queue"]);
    }

    #[test]
    fn what_the_operator_made_is_left_alone() {
        let other = switch("mine", &[(4, "5")]);
        assert!(operations(&other, &world(Some("5"))).is_empty());
        assert!(operations(&other, &world(None)).is_empty());
    }
}
