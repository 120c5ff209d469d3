//! `isthmusctl gateways drain` and `undrain`: a chassis gives its gateway ports away, in order, and gets them back.
//!
//! A drained chassis has priority 0 wherever another one can serve, and the row remembers its own priority. So it is
//! stored where every OVN tool shows it (`ovn-nbctl lrp-get-gateway-chassis`), survives restarts, and the C stack's
//! gateways follow it, too.

use crate::database::{connect, rows};
use crate::show::southbound;
use anyhow::{Context, Result, bail};
use ovn_schema::{Map, Str, Uuid, Write, nb, sb};
use ovsdb_rs::client::{Client, Transaction};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The key of `external_ids` that remembers a drained member's own priority.
pub const KEY: &str = "isthmus-drained-priority";

const TABLES: [&str; 4] = ["Gateway_Chassis", "HA_Chassis", "Logical_Router_Port", "HA_Chassis_Group"];

/// How often it is looked whether ports have moved.
const LOOK: Duration = Duration::from_millis(200);

/// A member of a group, of either of the two tables that have members.
#[derive(Clone, Debug)]
struct Member<'a> {
    id: Uuid,
    chassis: &'a str,
    priority: i64,
    external_ids: &'a Map<Str, Str>,
}

impl<'a> Member<'a> {
    fn of(id: Uuid, chassis: &'a str, priority: i64, external_ids: &'a Map<Str, Str>) -> Member<'a> {
        Member { id, chassis, priority, external_ids }
    }

    /// Its own priority, if it is drained.
    fn drained(&self) -> Option<i64> {
        self.external_ids.get(KEY)?.parse().ok()
    }
}

/// Who may serve a gateway port, or the ports of a group.
#[derive(Clone, Debug)]
struct Group<'a> {
    name: &'a str,
    table: &'static str,
    members: Vec<Member<'a>>,
}

fn groups(db: &nb::Database) -> Vec<Group<'_>> {
    let ports = db.logical_router_port.values().map(|p| {
        let members = p.gateway_chassis.iter().filter_map(|id| db.gateway_chassis.get_key_value(id));
        let members = members.map(|(id, m)| Member::of(*id, &m.chassis_name, m.priority, &m.external_ids));
        Group { name: &p.name, table: "Gateway_Chassis", members: members.collect() }
    });
    let groups = db.ha_chassis_group.values().map(|g| {
        let members = g.ha_chassis.iter().filter_map(|id| db.ha_chassis.get_key_value(id));
        let members = members.map(|(id, m)| Member::of(*id, &m.chassis_name, m.priority, &m.external_ids));
        Group { name: &g.name, table: "HA_Chassis", members: members.collect() }
    });
    ports.chain(groups).filter(|g| !g.members.is_empty()).collect()
}

/// A row that gets another priority.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    table: &'static str,
    id: Uuid,
    priority: i64,
    external_ids: Map<Str, Str>,
}

/// What drains a chassis, and what is to be said of groups in which it stays.
fn drained(groups: &[Group<'_>], chassis: &str) -> Result<(Vec<Change>, Vec<String>)> {
    let (mut changes, mut stays) = (Vec::new(), Vec::new());
    let mut member_of_any = false;
    for g in groups {
        let Some(own) = g.members.iter().find(|m| m.chassis == chassis) else { continue };
        member_of_any = true;
        if own.drained().is_some() {
            continue;
        }
        // Others that are drained serve no better than this one.
        let mut others = g.members.iter().filter(|m| m.chassis != chassis && m.drained().is_none()).peekable();
        if others.peek().is_none() {
            stays.push(format!("{}: {chassis} stays, as no other chassis may serve it", g.name));
            continue;
        }
        if let Some(lowest) = others.find(|m| m.priority <= 0) {
            bail!(
                "{}: {} has priority 0, so {chassis} cannot get a lower one: give it one above 0",
                g.name,
                lowest.chassis
            );
        }
        let mut external_ids = own.external_ids.clone();
        external_ids.insert(KEY.into(), own.priority.to_string().into());
        changes.push(Change { table: g.table, id: own.id, priority: 0, external_ids });
    }
    if !member_of_any {
        bail!("{chassis} is in no group of gateways");
    }
    Ok((changes, stays))
}

/// What gives a chassis its priorities back.
fn undrained(groups: &[Group<'_>], chassis: &str) -> Vec<Change> {
    let of = |g: &Group<'_>| {
        let own = g.members.iter().find(|m| m.chassis == chassis)?;
        let priority = own.drained()?;
        let mut external_ids = own.external_ids.clone();
        external_ids.remove(KEY);
        Some(Change { table: g.table, id: own.id, priority, external_ids })
    };
    groups.iter().filter_map(of).collect()
}

async fn load(remote: &str, limit: Duration) -> Result<(Client, nb::Database)> {
    let client = connect(remote, "OVN_Northbound", &TABLES, limit).await?;
    let mut db = nb::Database::default();
    rows(&client, &TABLES, |table, schema, id, row| db.apply(table, schema, id, row))?;
    Ok((client, db))
}

async fn write(client: &Client, changes: &[Change]) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut txn = Transaction::new(client.schema().context("the database has no schema")?);
    for c in changes {
        if c.table == "Gateway_Chassis" {
            let of = [nb::GatewayChassis::priority(&c.priority), nb::GatewayChassis::external_ids(&c.external_ids)];
            txn.update_row(c.id, of);
        } else {
            let of = [nb::HaChassis::priority(&c.priority), nb::HaChassis::external_ids(&c.external_ids)];
            txn.update_row(c.id, of);
        }
    }
    client.commit(txn).await.context("nothing was changed")?;
    Ok(())
}

/// For each gateway port, by the port of the router: who serves it, and the preferred one of the chassis that are there.
type Served = BTreeMap<Str, (Option<Str>, Option<Str>)>;

/// What the southbound database says of that.
fn served(db: &sb::Database) -> Served {
    let name = |c: Uuid| db.chassis.get(&c).map(|c| c.name.clone());
    let of = |p: &sb::PortBinding| {
        let group = db.ha_chassis_group.get(&p.ha_chassis_group?)?;
        let members = group.ha_chassis.iter().filter_map(|h| db.ha_chassis.get(h));
        let registered = members.filter_map(|h| Some((h.priority, name(h.chassis?)?)));
        let preferred = registered.max().map(|(_, name)| name);
        let port = p.options.get("distributed-port").unwrap_or(&p.logical_port).clone();
        Some((port, (p.chassis.and_then(name), preferred)))
    };
    db.port_binding.values().filter_map(|p| of(p)).collect()
}

/// Waits until the southbound database says what is wanted of each port.
async fn until(remote: &str, limit: Duration, done: impl Fn(&sb::Database) -> Vec<String>) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = done(&southbound(remote, limit).await?);
        if left.is_empty() {
            return Ok(());
        }
        if start.elapsed() > limit {
            bail!("after {limit:?} it is not over:\n  {}", left.join("\n  "));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Moves all gateway ports away from a chassis, and waits until they have moved.
pub async fn drain(nb: &str, sb: &str, chassis: &str, limit: Duration) -> Result<()> {
    let (client, db) = load(nb, limit).await?;
    let groups = groups(&db);
    let (changes, stays) = drained(&groups, chassis)?;
    let before = served(&southbound(sb, limit).await?);
    write(&client, &changes).await?;
    stays.iter().for_each(|s| println!("{s}"));
    until(sb, limit, |db| {
        // Without a change northd has nothing to copy; where the chassis is alone it stays the preferred one.
        let copied = changes.is_empty() || has_priority(db, chassis, 0);
        let mut left = left(&before, &served(db), chassis, copied);
        left.extend(lag(db, chassis).filter(|_| !copied));
        left
    })
    .await?;
    println!("{chassis} is drained; isthmusctl gateways undrain {chassis} gives it its ports back");
    Ok(())
}

/// What a drained chassis still serves, and what it served when nobody has taken that over yet: OVN's own controller releases a port
/// before another chassis claims it.
fn left(before: &Served, now: &Served, chassis: &str, copied: bool) -> Vec<String> {
    let held = |port: &Str| before.get(port).is_some_and(|(holder, _)| holder.as_deref() == Some(chassis));
    let of = |(port, (holder, preferred)): (&Str, &(Option<Str>, Option<Str>))| match holder.as_deref() {
        _ if copied && preferred.as_deref() == Some(chassis) => None,
        Some(h) => (h == chassis).then(|| format!("{port} is still served by {chassis}")),
        None => held(port).then(|| format!("{port} is served by nobody")),
    };
    now.iter().filter_map(of).collect()
}

/// Gives a chassis back what it had before it was drained, and waits until it serves it.
pub async fn undrain(nb: &str, sb: &str, chassis: &str, limit: Duration) -> Result<()> {
    let (client, db) = load(nb, limit).await?;
    let groups = groups(&db);
    let changes = undrained(&groups, chassis);
    if changes.is_empty() {
        println!("{chassis} is not drained");
        return Ok(());
    }
    write(&client, &changes).await?;
    let wanted: Vec<(&str, i64)> = groups
        .iter()
        .filter_map(|g| Some((g.name, changes.iter().find(|c| g.members.iter().any(|m| m.id == c.id))?.priority)))
        .collect();
    until(sb, limit, |db| {
        let back = |(port, (holder, preferred)): (Str, (Option<Str>, Option<Str>))| {
            let own = wanted.iter().find(|(name, _)| *name == &*port)?;
            let copied = has_priority(db, chassis, own.1);
            let waits = !copied || preferred.as_deref() == Some(chassis) && holder != preferred;
            waits.then(|| format!("{port} is served by {}", holder.as_deref().unwrap_or("nobody")))
        };
        served(db).into_iter().filter_map(back).collect()
    })
    .await?;
    println!("{chassis} is a gateway as before");
    Ok(())
}

/// The places of a chassis in the southbound database's groups.
fn memberships<'a>(db: &'a sb::Database, chassis: &'a str) -> impl Iterator<Item = &'a sb::HaChassis> {
    let of = move |h: &&sb::HaChassis| h.chassis.and_then(|c| db.chassis.get(&c)).is_some_and(|c| &*c.name == chassis);
    db.ha_chassis.values().map(|h| &**h).filter(of)
}

/// What is to be said of a chassis that is there and in no group with priority 0. Even if it serves nothing, it would get a
/// port still, if the one that serves it died now.
fn lag(db: &sb::Database, chassis: &str) -> Option<String> {
    let lags = memberships(db, chassis).next().is_some() && !has_priority(db, chassis, 0);
    lags.then(|| format!("{chassis} has its priority still: northd has not copied the new one"))
}

/// northd has copied a priority of a chassis.
fn has_priority(db: &sb::Database, chassis: &str, priority: i64) -> bool {
    memberships(db, chassis).any(|h| h.priority == priority)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A port with these gateways.
    fn network(ports: &[(&str, &[(&str, i64)])]) -> nb::Database {
        let mut db = nb::Database::default();
        let mut next = 0u128;
        let mut id = || {
            next += 1;
            Uuid::from_u128(next)
        };
        for (port, gateways) in ports {
            let mut all = Vec::new();
            for (chassis, priority) in *gateways {
                let row =
                    nb::GatewayChassis { chassis_name: (*chassis).into(), priority: *priority, ..Default::default() };
                let id = id();
                db.gateway_chassis.insert(id, Arc::new(row));
                all.push(id);
            }
            let port = nb::LogicalRouterPort {
                name: (*port).into(),
                gateway_chassis: all.into_iter().collect(),
                ..Default::default()
            };
            db.logical_router_port.insert(id(), Arc::new(port));
        }
        db
    }

    fn apply(db: &mut nb::Database, changes: &[Change]) {
        for c in changes {
            let row = Arc::make_mut(db.gateway_chassis.get_mut(&c.id).expect("a row"));
            (row.priority, row.external_ids) = (c.priority, c.external_ids.clone());
        }
    }

    fn priorities(db: &nb::Database, chassis: &str) -> Vec<i64> {
        let mut all: Vec<i64> =
            db.gateway_chassis.values().filter(|g| &*g.chassis_name == chassis).map(|g| g.priority).collect();
        all.sort();
        all
    }

    #[test]
    fn a_drained_chassis_gets_its_own_priorities_back() {
        let mut db =
            network(&[("a", &[("gw1", 20), ("gw2", 10)]), ("b", &[("gw1", 5), ("gw2", 10)]), ("c", &[("gw1", 7)])]);
        let (changes, stays) = drained(&groups(&db), "gw1").expect("drained");
        assert_eq!(stays, ["c: gw1 stays, as no other chassis may serve it"]);
        apply(&mut db, &changes);
        assert_eq!(priorities(&db, "gw1"), [0, 0, 7]);
        // Again: what it remembers is not overwritten. The other one cannot go now.
        assert_eq!(drained(&groups(&db), "gw1").expect("drained").0, []);
        let (none, stays) = drained(&groups(&db), "gw2").expect("drained");
        assert_eq!((none, stays.len()), (vec![], 2), "gw1 is drained: nobody else would serve");
        let back = undrained(&groups(&db), "gw1");
        apply(&mut db, &back);
        assert_eq!(priorities(&db, "gw1"), [5, 7, 20]);
        assert!(db.gateway_chassis.values().all(|g| g.external_ids.is_empty()));
        assert_eq!(undrained(&groups(&db), "gw1"), []);
    }

    #[test]
    fn a_port_between_two_gateways_is_waited_for() {
        let served = |of: &[(&str, Option<&str>, &str)]| -> Served {
            of.iter().map(|(p, holder, first)| ((*p).into(), (holder.map(Into::into), Some((*first).into())))).collect()
        };
        let before = served(&[("a", Some("gw1"), "gw1"), ("b", None, "gw2"), ("c", Some("gw1"), "gw1")]);
        let now = |a, c| served(&[("a", a, "gw2"), ("b", None, "gw2"), ("c", c, "gw2")]);
        let left = |now: &Served| left(&before, now, "gw1", true);
        assert_eq!(left(&now(Some("gw1"), None)), ["a is still served by gw1", "c is served by nobody"]);
        assert_eq!(left(&now(Some("gw2"), Some("gw2"))), Vec::<String>::new(), "nobody served b before");
        // Where it is alone it goes on, once its new priority is there.
        assert_eq!(left(&before), Vec::<String>::new());
        assert_eq!(super::left(&before, &before, "gw1", false).len(), 2);
    }

    #[test]
    fn a_chassis_is_drained_once_northd_has_copied_its_priority() {
        let (gw1, member) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut db = sb::Database::default();
        assert_eq!(lag(&db, "gw1"), None, "it is switched off");
        db.chassis.insert(gw1, Arc::new(sb::Chassis { name: "gw1".into(), ..Default::default() }));
        let row = |priority| Arc::new(sb::HaChassis { chassis: Some(gw1), priority, ..Default::default() });
        db.ha_chassis.insert(member, row(10));
        assert_eq!(lag(&db, "gw1").as_deref(), Some("gw1 has its priority still: northd has not copied the new one"));
        db.ha_chassis.insert(member, row(0));
        assert_eq!(lag(&db, "gw1"), None);
    }

    #[test]
    fn what_cannot_be_drained_is_said() {
        let db = network(&[("a", &[("gw1", 20), ("gw2", 0)])]);
        let said = |chassis| drained(&groups(&db), chassis).expect_err("refused").to_string();
        assert_eq!(said("gw1"), "a: gw2 has priority 0, so gw1 cannot get a lower one: give it one above 0");
        assert_eq!(said("gw9"), "gw9 is in no group of gateways");
    }
}
