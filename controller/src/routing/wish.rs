//! What the kernel's tables are to hold, and which router ports learn from them.

use super::difference::Route;
use super::rows::{Advertised, Port, is_usable};
use ovn_schema::{Str, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// By which interfaces a port learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// By all.
    Any,
    /// By this one.
    Only(Str),
    /// By one that is not here: another chassis learns for the port.
    Absent,
}

/// A router port that learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learner {
    /// Its router.
    pub datapath: Uuid,
    /// The port.
    pub port: Uuid,
    /// The kernel's table.
    pub table: u32,
    /// By which interfaces; any where there is none.
    pub interface: Option<Str>,
    /// False: what it learned before goes, and nothing comes.
    pub learns: bool,
}

/// What the kernel is to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Tables with their routes; none where two routers have routes for one table: that is left as it is.
    pub tables: BTreeMap<u32, Option<BTreeSet<Route>>>,
    /// VRFs that are made and taken away again, with their tables.
    pub vrfs: BTreeMap<Str, u32>,
    /// VRFs that others look after.
    pub left: BTreeSet<Str>,
}

impl Wish {
    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.vrfs.is_empty()
    }
}

/// A router with its ports here.
#[derive(Debug)]
struct Router {
    table: u32,
    next_hops: [Option<IpAddr>; 2],
    maintain: bool,
    vrf: Option<Str>,
}

/// All of it, with what is wrong.
#[derive(Debug, Default)]
pub struct Wanted {
    /// For the kernel.
    pub wish: Wish,
    /// For the southbound database.
    pub learners: Vec<Learner>,
    /// Texts for the log.
    pub problems: Vec<String>,
}

/// Puts together what ports and prefixes ask for. `filter` says by which interfaces a port learns.
pub fn wanted(
    ports: &BTreeMap<Uuid, Port>,
    advertised: &BTreeMap<Uuid, Advertised>,
    filter: impl Fn(&Port) -> Filter,
) -> Wanted {
    let mut out = Wanted::default();
    let mut routers: BTreeMap<Uuid, Router> = BTreeMap::new();
    let mut learners: Vec<(Learner, Filter)> = Vec::new();
    // Where one port of a router has a filter, those without learn nothing.
    let mut filtered: BTreeSet<Uuid> = ports.values().filter(|p| p.by.is_some()).map(|p| p.datapath).collect();
    for (id, p) in ports.iter().filter(|(_, p)| p.here) {
        if !is_usable(p.table) {
            let (datapath, table) = (p.datapath, p.table);
            out.problems.push(format!("Unable to sync routes for datapath {datapath}: invalid table id: {table}"));
            continue;
        }
        let r = routers.entry(p.datapath).or_insert(Router {
            table: p.table,
            next_hops: p.next_hops,
            maintain: false,
            vrf: None,
        });
        r.maintain |= p.maintain;
        r.vrf = p.vrf.clone().or(r.vrf.take());
        let filter = filter(p);
        if matches!(filter, Filter::Only(_)) {
            filtered.insert(p.datapath);
        }
        let (datapath, table, learns) = (p.datapath, p.table, p.learns);
        learners.push((Learner { datapath, port: *id, table, interface: None, learns }, filter));
    }
    for (learner, filter) in learners {
        match filter {
            Filter::Any if !filtered.contains(&learner.datapath) => out.learners.push(learner),
            Filter::Only(name) => out.learners.push(Learner { interface: Some(name), ..learner }),
            _ => {}
        }
    }
    let mut routes: BTreeMap<Uuid, BTreeSet<Route>> = BTreeMap::new();
    for a in advertised.values() {
        let Some(r) = routers.get(&a.datapath) else { continue };
        let next_hop = r.next_hops[usize::from(a.prefix.0.is_ipv6())];
        routes.entry(a.datapath).or_default().insert(Route { prefix: a.prefix, priority: a.priority, next_hop });
    }
    for (id, r) in &routers {
        let own = routes.remove(id).unwrap_or_default();
        let vrf = r.vrf.clone().unwrap_or_else(|| format!("ovnvrf{}", r.table).into());
        match r.maintain {
            true => drop(out.wish.vrfs.insert(vrf, r.table)),
            false => drop(out.wish.left.insert(vrf)),
        }
        let table = out.wish.tables.entry(r.table).or_insert_with(|| Some(BTreeSet::new()));
        match table {
            Some(there) if there.is_empty() => *there = own,
            Some(_) if own.is_empty() => {}
            _ => {
                out.problems.push(format!("Multiple datapaths are distributing routes on routing table {}", r.table));
                *table = None;
            }
        }
    }
    // What one router maintains is maintained.
    let Wish { vrfs, left, .. } = &mut out.wish;
    left.retain(|name| !vrfs.contains_key(name));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rows::prefix;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn port(router: u128, table: u32) -> Port {
        Port {
            datapath: id(router),
            table,
            next_hops: [None, Some("fd00::1".parse().unwrap())],
            here: true,
            maintain: false,
            vrf: None,
            by: None,
            redirect: None,
            learns: true,
        }
    }

    fn advertised(router: u128, text: &str, priority: u32) -> Advertised {
        Advertised { datapath: id(router), prefix: prefix(text).unwrap(), priority }
    }

    fn all(ports: &[(u128, Port)], prefixes: &[Advertised]) -> Wanted {
        let ports = ports.iter().map(|(n, p)| (id(*n), p.clone())).collect();
        let prefixes = prefixes.iter().enumerate().map(|(n, a)| (id(n as u128), *a)).collect();
        // A port that is named is plugged in by this name.
        wanted(&ports, &prefixes, |p| match p.by.as_deref() {
            Some("away") => Filter::Absent,
            Some(name) => Filter::Only(name.into()),
            None => Filter::Any,
        })
    }

    #[test]
    fn prefixes_go_into_the_routers_table_by_its_next_hops() {
        let prefixes =
            [advertised(1, "10.0.0.1", 100), advertised(1, "fd01::/64", 1000), advertised(2, "10.9.0.0/16", 100)];
        let w = all(&[(11, port(1, 40))], &prefixes);
        let routes = w.wish.tables[&40].clone().unwrap();
        let text: Vec<String> =
            routes.iter().map(|r| format!("{}/{} {} {:?}", r.prefix.0, r.prefix.1, r.priority, r.next_hop)).collect();
        assert_eq!(text, ["10.0.0.1/32 100 None", "fd01::/64 1000 Some(fd00::1)"]);
        assert_eq!((w.wish.left.len(), w.wish.vrfs.len()), (1, 0));
        assert!(w.problems.is_empty());
        assert!(all(&[(11, Port { here: false, ..port(1, 40) })], &prefixes).wish.is_empty());
    }

    #[test]
    fn a_vrf_is_maintained_where_one_port_asks_for_it() {
        let w = all(&[(11, port(1, 40)), (12, Port { maintain: true, ..port(1, 40) })], &[]);
        assert_eq!(w.wish.vrfs, [("ovnvrf40".into(), 40)].into_iter().collect());
        assert!(w.wish.left.is_empty());
        let named = Port { vrf: Some("blue".into()), maintain: true, ..port(1, 40) };
        assert_eq!(all(&[(11, named)], &[]).wish.vrfs, [("blue".into(), 40)].into_iter().collect());
    }

    #[test]
    fn two_routers_cannot_fill_one_table() {
        let (a, b) = ((11, port(1, 40)), (12, port(2, 40)));
        let one = all(&[a.clone(), b.clone()], &[advertised(2, "10.0.0.1", 100)]);
        assert_eq!(one.wish.tables[&40].as_ref().map(BTreeSet::len), Some(1));
        let both = all(&[a, b], &[advertised(1, "10.0.0.2", 100), advertised(2, "10.0.0.1", 100)]);
        assert_eq!((&both.wish.tables[&40], both.problems.len()), (&None, 1));
        for table in [0, 252, 255, u32::MAX] {
            let w = all(&[(11, port(1, table))], &[]);
            assert_eq!((w.wish.is_empty(), w.problems.len()), (true, 1));
        }
    }

    #[test]
    fn a_filter_of_one_port_silences_those_without() {
        let by = |name: &str| Port { by: Some(name.into()), ..port(1, 40) };
        let learners = |ports: &[(u128, Port)]| -> Vec<(Uuid, Option<Str>)> {
            all(ports, &[]).learners.into_iter().map(|l| (l.port, l.interface)).collect()
        };
        assert_eq!(learners(&[(11, port(1, 40)), (12, port(1, 40))]), [(id(11), None), (id(12), None)]);
        assert_eq!(learners(&[(11, port(1, 40)), (12, by("vif"))]), [(id(12), Some("vif".into()))]);
        assert_eq!(learners(&[(11, port(1, 40)), (12, by("away"))]), []);
        // Also where the port itself is another chassis'.
        assert_eq!(learners(&[(11, port(1, 40)), (12, Port { here: false, ..by("vif") })]), []);
        assert_eq!(learners(&[(11, port(1, 40)), (12, Port { here: false, ..port(2, 41) })]), [(id(11), None)]);
    }
}
