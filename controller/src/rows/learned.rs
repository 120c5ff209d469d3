//! What packets taught and the southbound database does not say yet.

use crate::input::model::Input;
use crate::pinctrl::Report;
use crate::plan::Plan;
use ovn_schema::{ColumnValue, DatapathKey, PortKey, Str, Write, sb};
use packet::Mac;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What was learned, in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A neighbour behind a router port: datapath and port by key, and its addresses.
    Neighbour(DatapathKey, PortKey, IpAddr, Mac),
    /// An Ethernet address behind a switch port.
    Forwarding(DatapathKey, PortKey, Mac),
}

impl Key {
    /// Whether the database has a row of the same neighbour or Ethernet address, be it elsewhere.
    pub fn is_row_of(self, input: &Input) -> bool {
        match self {
            Key::Neighbour(dp, port, ip, _) => {
                let p = input.datapath(dp).and_then(|dp| input.port_by_key(dp, port));
                p.is_some_and(|(_, p)| input.mac_binding(&p.logical_port, &ip.to_string().into()).is_some())
            }
            Key::Forwarding(dp, _, mac) => input.fdb(&text(mac), dp).is_some(),
        }
    }

    /// What a packet taught, where that is for the database, and whether other chassis have most likely seen it as well.
    pub fn of(r: &Report) -> Option<(Key, bool)> {
        match *r {
            Report::Neighbour { datapath, port, ip, mac, everywhere } => {
                Some((Key::Neighbour(datapath, port, ip, mac), everywhere))
            }
            // Such a network carries what switches do not know yet to all chassis.
            Report::Forwarding { datapath, port, mac } => Some((Key::Forwarding(datapath, port, mac), true)),
            _ => None,
        }
    }
}

/// What waits to be written.
#[derive(Debug, Default)]
pub struct Pending {
    list: BTreeMap<Key, Taught>,
    random: RandomState,
}

/// When something was taught last, and from when on it may be written.
#[derive(Clone, Copy, Debug)]
struct Taught {
    at: Instant,
    from: Instant,
}

impl Pending {
    /// How much waits.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds what was taught. What other chassis have seen `everywhere` waits a moment at random, so that one of them writes it, and
    /// the others have it from the database.
    pub fn add(&mut self, key: Key, everywhere: bool, now: Instant) {
        let pause = if everywhere { 1 + self.random.hash_one((key, now)) % LONGEST_PAUSE } else { 0 };
        let from = now + Duration::from_millis(pause);
        let t = self.list.entry(key).or_insert(Taught { at: now, from });
        (t.at, t.from) = (now, t.from.min(from));
    }

    /// When the next of those that wait a moment may be written.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.list.values().map(|t| t.from).filter(|from| *from > now).min()
    }
}

/// The longest moment, in milliseconds, as in ovn-controller.
const LONGEST_PAUSE: u64 = 50;

/// What could not be written for so long is forgotten: the packets that taught it come again.
const FORGET: Duration = Duration::from_secs(10);

/// Rows of one transaction at most: what else it has to write does not wait for a flood.
const AT_ONCE: usize = 500;

/// Puts into the plan what the database does not say already; what it says is done with. `timestamp` is `now` in milliseconds since
/// 1970.
pub fn write(input: &Input, pending: &mut Pending, (now, timestamp): (Instant, i64), plan: &mut Plan) {
    let list = &mut pending.list;
    list.retain(|_, t| now.saturating_duration_since(t.at) < FORGET);
    let due = list.iter().filter(|(_, t)| t.from <= now).map(|(key, _)| *key);
    let known: Vec<Key> = due.take(AT_ONCE).filter(|key| is_known(*key, input, timestamp, plan)).collect();
    known.iter().for_each(|k| _ = list.remove(k));
}

fn text(mac: Mac) -> Str {
    mac.to_string().into()
}

fn is_known(key: Key, input: &Input, now: i64, plan: &mut Plan) -> bool {
    match key {
        Key::Forwarding(dp, port, mac) => {
            let mac = text(mac);
            let row = input.fdb(&mac, dp);
            let kind = |key| Some(&*input.port_by_key(input.datapath(dp)?, key)?.1.r#type);
            let by_network = kind(port) == Some("localnet");
            if row.is_some_and(|(_, f)| f.port() == port || by_network && kind(f.port()) == Some("")) {
                return true;
            }
            let part = plan.part(format!("FDB {mac} of datapath {dp}"), port);
            match row {
                Some((id, f)) => {
                    // The provider network carries what a machine of another chassis sends, whose controller may write at this moment.
                    if by_network {
                        part.txn.verify("FDB", id, [("port_key", f.port_key.to_datum())]);
                    }
                    part.txn.update_row(id, [sb::Fdb::port_key(&port.0), sb::Fdb::timestamp(&now)]);
                }
                None => {
                    let (dp, port) = (sb::Fdb::dp_key(&dp.0), sb::Fdb::port_key(&port.0));
                    let columns = [sb::Fdb::mac(&mac), dp, port, sb::Fdb::timestamp(&now)];
                    part.txn.insert_row(columns);
                }
            }
        }
        Key::Neighbour(dp, port, ip, mac) => {
            let Some(dp) = input.datapath(dp) else { return true };
            // A redirect port stands for its distributed port.
            let Some((_, p)) = input.port_by_key(dp, port) else { return true };
            let name = p.options.get("distributed-port").unwrap_or(&p.logical_port).clone();
            let (ip, mac) = (Str::from(ip.to_string()), text(mac));
            let row = input.mac_binding(&name, &ip);
            if row.is_some_and(|(_, m)| m.mac == mac) {
                return true;
            }
            let part = plan.part(format!("MAC_Binding of {name} {ip}"), &mac);
            match row {
                Some((id, _)) => part.txn.update_row(id, [sb::MacBinding::mac(&mac), sb::MacBinding::timestamp(&now)]),
                None => {
                    let columns = [
                        sb::MacBinding::logical_port(&name),
                        sb::MacBinding::ip(&ip),
                        sb::MacBinding::mac(&mac),
                        sb::MacBinding::datapath(&dp),
                        sb::MacBinding::timestamp(&now),
                    ];
                    part.txn.insert_row(columns);
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use ovn_schema::Uuid;
    use std::sync::Arc;

    /// What is written where a row says that a machine's port, or the provider network's, has an address.
    fn written(has: i64, learned: i64) -> Vec<String> {
        let mut db = sb::Database::default();
        let dp = Uuid::from_u128(1);
        db.datapath_binding.insert(dp, Arc::new(sb::DatapathBinding { tunnel_key: 7, ..Default::default() }));
        for (key, kind) in [(1, "localnet"), (2, ""), (3, "")] {
            let (logical_port, r#type) = (Str::from(format!("p{key}")), Str::from(kind));
            let row = sb::PortBinding { datapath: dp, tunnel_key: key, logical_port, r#type, ..Default::default() };
            db.port_binding.insert(Uuid::from_u128(10 + key as u128), Arc::new(row));
        }
        let row = sb::Fdb { mac: "02:00:00:00:00:01".into(), dp_key: 7, port_key: has, ..Default::default() };
        db.fdb.insert(Uuid::from_u128(20), Arc::new(row));
        let input = Input::new(db, Local::default());
        let key = Key::Forwarding(DatapathKey(7), PortKey(learned), "02:00:00:00:00:01".parse().unwrap());
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        let (mut pending, now) = (Pending::default(), Instant::now());
        pending.add(key, true, now);
        write(&input, &mut pending, (now, 0), &mut plan);
        let due = pending.next(now).expect("other chassis write as well");
        assert!(due - now <= Duration::from_millis(LONGEST_PAUSE));
        assert!(crate::plan::Attempts::default().choose(plan, now).is_empty(), "not before");
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        write(&input, &mut pending, (due, 0), &mut plan);
        let operations = crate::plan::Attempts::default().choose(plan, Instant::now());
        operations.iter().map(|o| o["op"].as_str().unwrap().to_string()).collect()
    }

    #[test]
    fn an_address_of_a_machine_is_not_the_networks() {
        assert_eq!(written(2, 1), [""; 0], "the provider network carries what the machine sends");
        assert_eq!(written(1, 2), ["update"]);
        assert_eq!(written(2, 3), ["update"]);
        assert_eq!(written(9, 1), ["wait", "update"], "unless its controller writes at this moment");
    }
}
