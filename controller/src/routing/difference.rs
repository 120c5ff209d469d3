//! What is between a table of the kernel and what it is to hold.

use ovn_schema::Str;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The protocol number of OVN's routes (`RTPROT_OVN`).
pub const OVN: u8 = 84;
/// Protocols up to this are the kernel's and administrators'; those above are routing daemons'.
const STATIC: u8 = 4;

/// A route that this chassis puts into a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The prefix and its length.
    pub prefix: (IpAddr, u8),
    /// The metric.
    pub priority: u32,
    /// None: packets are dropped (blackhole).
    pub next_hop: Option<IpAddr>,
}

/// A route that is in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The table.
    pub table: u32,
    /// Who put it there.
    pub protocol: u8,
    /// The prefix and its length.
    pub prefix: (IpAddr, u8),
    /// The metric.
    pub priority: u32,
    /// Packets are sent on, not dropped or delivered.
    pub unicast: bool,
    /// The next hops: address, and the interface's name.
    pub hops: Vec<(Option<IpAddr>, Option<Str>)>,
}

/// A route that a routing daemon put into a table, by one of its next hops.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Learned {
    /// The prefix and its length.
    pub prefix: (IpAddr, u8),
    /// The next hop.
    pub next_hop: IpAddr,
    /// By which interface it is reached.
    pub interface: Option<Str>,
}

/// What is to be done with a table, and what is learned from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Routes of OVN's that are to go.
    pub remove: Vec<Route>,
    /// Routes that are missing.
    pub add: Vec<Route>,
    /// Routes of others.
    pub learned: BTreeSet<Learned>,
}

/// What is between the routes wanted in a table and those found.
pub fn difference(wanted: &BTreeSet<Route>, table: u32, found: &[Found]) -> Difference {
    let mut out = Difference::default();
    let mut missing = wanted.clone();
    for f in found.iter().filter(|f| f.table == table) {
        if f.protocol != OVN {
            out.learned.extend(learned(f));
            continue;
        }
        let next_hop = f.hops.first().and_then(|(ip, _)| *ip).filter(|_| f.unicast);
        let route = Route { prefix: f.prefix, priority: f.priority, next_hop };
        // One that is there twice goes once.
        if !missing.remove(&route) {
            out.remove.push(route);
        }
    }
    out.add.extend(missing);
    out
}

/// What a route of somebody else's teaches: routes of routing daemons by way of a neighbour, but no link-local ones.
fn learned(f: &Found) -> Vec<Learned> {
    let link_local = match f.prefix {
        (IpAddr::V4(a), length) => a.is_link_local() && length >= 16,
        (IpAddr::V6(a), length) => a.is_unicast_link_local() && length >= 10,
    };
    if f.protocol <= STATIC || !f.unicast || link_local {
        return Vec::new();
    }
    let one = |(ip, interface): &(Option<IpAddr>, Option<Str>)| {
        // Without an address it is a network of the link itself.
        let next_hop = ip.filter(|ip| !ip.is_unspecified())?;
        Some(Learned { prefix: f.prefix, next_hop, interface: interface.clone() })
    };
    f.hops.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rows::prefix;
    use proptest::prelude::*;

    fn found(table: u32, protocol: u8, text: &str, hops: &[&str]) -> Found {
        let hops = hops.iter().map(|h| (h.parse().ok(), Some("eth0".into()))).collect();
        Found { table, protocol, prefix: prefix(text).unwrap(), priority: 20, unicast: true, hops }
    }

    #[test]
    fn routes_of_routing_daemons_are_learned_and_no_others() {
        let all = [
            found(9, 186, "10.1.0.0/16", &["192.0.2.1", "192.0.2.2"]),
            found(9, 11, "2001:db8::/32", &["fe80::1"]),
            found(9, 186, "10.2.0.0/16", &["-"]),
            found(9, 4, "10.3.0.0/16", &["192.0.2.1"]),
            found(9, 2, "10.4.0.0/16", &["192.0.2.1"]),
            found(9, 186, "fe80::/64", &["fe80::1"]),
            found(9, 186, "169.254.3.0/24", &["192.0.2.1"]),
            found(8, 186, "10.5.0.0/16", &["192.0.2.1"]),
            Found { unicast: false, ..found(9, 186, "10.6.0.0/16", &["192.0.2.1"]) },
        ];
        let d = difference(&BTreeSet::new(), 9, &all);
        let seen: Vec<String> =
            d.learned.iter().map(|l| format!("{}/{} {}", l.prefix.0, l.prefix.1, l.next_hop)).collect();
        assert_eq!(seen, ["10.1.0.0/16 192.0.2.1", "10.1.0.0/16 192.0.2.2", "2001:db8::/32 fe80::1"]);
        assert!(d.remove.is_empty() && d.add.is_empty(), "what others put there stays");
    }

    fn route() -> impl Strategy<Value = Route> {
        let hop =
            prop_oneof![Just(None), Just(Some("192.0.2.9".parse().unwrap())), Just(Some("fe80::9".parse().unwrap()))];
        (0u8..6, prop_oneof![Just(100u32), Just(1000)], hop).prop_map(|(n, priority, next_hop)| Route {
            prefix: (IpAddr::from([10, n, 0, 0]), 16),
            priority,
            next_hop,
        })
    }

    fn of(table: u32, r: &Route) -> Found {
        let hops = r.next_hop.iter().map(|h| (Some(*h), None)).collect();
        Found { table, protocol: OVN, prefix: r.prefix, priority: r.priority, unicast: r.next_hop.is_some(), hops }
    }

    proptest! {
        /// Whatever is in the kernel: once the difference is carried out, the table has what is wanted, other tables and what others
        /// put there are as before, and there is nothing left to do.
        #[test]
        fn a_difference_leads_to_what_is_wanted(
            wanted in prop::collection::btree_set(route(), 0..8),
            own in prop::collection::btree_set(route(), 0..8),
            other in prop::collection::btree_set(route(), 0..4),
            foreign in prop::collection::vec(route(), 0..4),
        ) {
            let mut kernel: Vec<Found> = own.iter().map(|r| of(9, r)).chain(other.iter().map(|r| of(8, r))).collect();
            kernel.extend(foreign.iter().map(|r| Found { protocol: 186, ..of(9, r) }));
            let rest: Vec<Found> = kernel.iter().filter(|f| f.table != 9 || f.protocol != OVN).cloned().collect();
            let d = difference(&wanted, 9, &kernel);
            for r in &d.remove {
                let at = kernel.iter().position(|f| *f == of(9, r));
                prop_assert!(at.is_some(), "what is not there cannot be removed");
                kernel.remove(at.unwrap());
            }
            for r in &d.add {
                prop_assert!(!kernel.contains(&of(9, r)));
                kernel.push(of(9, r));
            }
            let again = difference(&wanted, 9, &kernel);
            prop_assert_eq!((again.remove.len(), again.add.len()), (0, 0));
            prop_assert_eq!(&again.learned, &d.learned);
            prop_assert!(rest.iter().all(|f| kernel.contains(f)));
            prop_assert_eq!(kernel.len(), rest.len() + wanted.len());
        }
    }
}
