//! What southbound rows say of a router port that exchanges routes, and of a prefix that is advertised.

use crate::input::model::Input;
use crate::units::binding;
use ovn_schema::options::{bool as bool_option, flag};
use ovn_schema::{Map, Str, Uuid, sb};
use std::net::IpAddr;

/// Metrics of advertised prefixes: where what they belong to is on this chassis, and otherwise. Routing daemons tell them on, so that
/// the chassis which has it is preferred.
const LOCAL: u32 = 100;
const REMOTE: u32 = 1000;
/// The longest name of a network device.
const LONGEST_NAME: usize = 15;

/// A router port that exchanges routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Its router.
    pub datapath: Uuid,
    /// The kernel's table of the router.
    pub table: u32,
    /// The next hops that prefixes of the router get, by family; none: they are dropped by the kernel (blackhole).
    pub next_hops: [Option<IpAddr>; 2],
    /// This chassis has the port. Where another one does, only its name's filter counts.
    pub here: bool,
    /// The VRF is made, and taken away again.
    pub maintain: bool,
    /// The VRF's name where it is not made from the table.
    pub vrf: Option<Str>,
    /// Routes are learned only by the interface of this logical port (`dynamic-routing-port-name`).
    pub by: Option<Str>,
    /// Routing protocols are redirected to this logical port.
    pub redirect: Option<Str>,
    /// Routes are learned at all.
    pub learns: bool,
}

/// A prefix that is advertised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Advertised {
    /// The router.
    pub datapath: Uuid,
    /// The prefix.
    pub prefix: (IpAddr, u8),
    /// Its metric.
    pub priority: u32,
}

/// A table of the kernel that routes may be put into: not none, the local one, or one with a meaning of its own.
pub fn is_usable(table: u32) -> bool {
    !matches!(table, 0 | 252 | 255 | u32::MAX)
}

fn table(d: &sb::DatapathBinding) -> u32 {
    let asked = d.external_ids.get("dynamic-routing-vrf-id").and_then(|t| t.parse::<u32>().ok()).filter(|t| *t > 0);
    asked.unwrap_or(d.tunnel_key as u32)
}

/// The redirect port of a distributed port.
pub fn redirect_port(p: &sb::PortBinding) -> Option<&Str> {
    p.options.get("chassis-redirect-port")
}

/// How a router port exchanges routes; nothing where it does not. It follows from the port, its redirect port, the existence of its peer,
/// and its datapath.
pub fn port(p: &sb::PortBinding, input: &Input) -> Option<Port> {
    input.port(p.options.get("peer")?)?;
    let datapath = input.sb.datapath_binding.get(&p.datapath)?;
    let here = |p: &sb::PortBinding| binding::is_here(p, input, &input.local);
    let (from, here) = if flag(&p.options, "dynamic-routing") {
        (p, &*p.r#type != "l3gateway" || here(p))
    } else {
        let (_, redirect) = input.port(redirect_port(p)?)?;
        (redirect, here(redirect) && flag(&redirect.options, "dynamic-routing"))
    };
    let option = |key: &str| from.options.get(key).filter(|v| !v.is_empty()).cloned();
    let by = option("dynamic-routing-port-name");
    if !here && by.is_none() {
        return None;
    }
    let next_hop = |key: &str, v4: bool| {
        let ip = datapath.external_ids.get(key)?.parse::<IpAddr>().ok();
        // A prefix of IPv4 may have a next hop of IPv6 (RFC 5549); one of IPv6 may not have the other.
        ip.filter(|ip| v4 || ip.is_ipv6())
    };
    let v4 = next_hop("dynamic-routing-v4-prefix-nexthop", true);
    let v6 = next_hop("dynamic-routing-v6-prefix-nexthop", false);
    Some(Port {
        datapath: p.datapath,
        table: table(datapath),
        next_hops: [v4, v6],
        here,
        maintain: flag(&from.options, "dynamic-routing-maintain-vrf"),
        vrf: option("dynamic-routing-vrf-name").filter(|n| n.len() <= LONGEST_NAME),
        by,
        redirect: option("routing-protocol-redirect"),
        learns: !flag(&p.options, "dynamic-routing-no-learning"),
    })
}

/// Whether a port, or its redirect port, is this chassis'. A router's port that has none, and is no gateway router's, is on every
/// chassis.
fn is_local(p: &sb::PortBinding, input: &Input) -> bool {
    let here = |p: &sb::PortBinding| binding::is_here(p, input, &input.local);
    let redirect = redirect_port(p).and_then(|n| input.port(n));
    here(p) || redirect.map_or(&*p.r#type == "patch", |(_, r)| here(r))
}

/// What this chassis advertises for a row; nothing where it does not. It follows from the row's ports and their redirect ports.
pub fn advertised(row: &sb::AdvertisedRoute, input: &Input) -> Option<Advertised> {
    let port = |id: &Uuid| input.sb.port_binding.get(id).map(|p| &**p);
    let own = port(&row.logical_port).filter(|p| is_local(p, input))?;
    let tracked = row.tracked_port.as_ref().map(|id| port(id).is_some_and(|p| is_local(p, input)));
    let only_local = |options: &Map<Str, Str>| bool_option(options, "dynamic-routing-redistribute-local-only", false);
    let priority = match tracked {
        Some(true) => LOCAL,
        Some(false) if only_local(&own.options) => return None,
        _ => REMOTE,
    };
    Some(Advertised { datapath: row.datapath, prefix: prefix(&row.ip_prefix)?, priority })
}

/// A prefix with its length, without bits beyond it.
pub fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = match text.split_once('/') {
        Some((a, l)) => (a.parse::<IpAddr>().ok()?, Some(l.parse::<u8>().ok()?)),
        None => (text.parse().ok()?, None),
    };
    match address {
        IpAddr::V4(a) => {
            let length = length.unwrap_or(32);
            let mask = u32::MAX.checked_shl(32u32.checked_sub(length.into())?).unwrap_or(0);
            Some((IpAddr::from((a.to_bits() & mask).to_be_bytes()), length))
        }
        IpAddr::V6(a) => {
            let length = length.unwrap_or(128);
            let mask = u128::MAX.checked_shl(128u32.checked_sub(length.into())?).unwrap_or(0);
            Some((IpAddr::from((a.to_bits() & mask).to_be_bytes()), length))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use crate::plan::{Attempts, Plan};
    use crate::routing::difference::Learned;
    use crate::routing::{Learner, learned};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Instant;

    const ME: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn options(pairs: &[(&str, &str)]) -> Map<Str, Str> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    /// A distributed port (11) with its redirect port (12) on a chassis, its peer (13) and a machine (14) on another one.
    fn world(gateway: Uuid, machine: Uuid, of_redirect: &[(&str, &str)]) -> Input {
        let mut db = sb::Database::default();
        let ids = options(&[("dynamic-routing-vrf-id", "77"), ("dynamic-routing-v4-prefix-nexthop", "fd00::1")]);
        let router = sb::DatapathBinding { tunnel_key: 7, external_ids: ids, ..Default::default() };
        db.datapath_binding.insert(id(7), Arc::new(router));
        let port = |name: &str, kind: &str, chassis: Option<Uuid>, pairs: &[(&str, &str)]| sb::PortBinding {
            logical_port: name.into(),
            datapath: id(7),
            r#type: kind.into(),
            chassis,
            options: options(pairs),
            ..Default::default()
        };
        let local_only = ("dynamic-routing-redistribute-local-only", "true");
        for (n, p) in [
            (11, port("lrp", "patch", None, &[("peer", "lsp"), ("chassis-redirect-port", "cr-lrp"), local_only])),
            (12, port("cr-lrp", "chassisredirect", Some(gateway), of_redirect)),
            (13, port("lsp", "patch", None, &[("peer", "lrp")])),
            (14, port("vm", "virtual", Some(machine), &[])),
        ] {
            db.port_binding.insert(id(n), Arc::new(p));
        }
        Input::new(db, Local { chassis: Some(ME), ..Local::default() })
    }

    fn exchanges(input: &Input) -> Option<Port> {
        port(&input.sb.port_binding[&id(11)], input)
    }

    #[test]
    fn the_chassis_of_the_redirect_port_exchanges_routes() {
        let asked = [("dynamic-routing", "true"), ("dynamic-routing-vrf-name", "a-name-that-is-too-long")];
        let p = exchanges(&world(ME, ME, &asked)).unwrap();
        assert_eq!((p.table, p.here, p.maintain, p.vrf.clone()), (77, true, false, None));
        assert_eq!(p.next_hops, [Some("fd00::1".parse().unwrap()), None]);
        assert_eq!(exchanges(&world(OTHER, ME, &asked)), None);
        assert_eq!(exchanges(&world(ME, ME, &[])), None);
        // A filter counts for the router's other ports, wherever this one is.
        let filter = [("dynamic-routing", "true"), ("dynamic-routing-port-name", "vm")];
        let p = exchanges(&world(OTHER, ME, &filter)).unwrap();
        assert_eq!((p.here, p.by.as_deref()), (false, Some("vm")));
    }

    #[test]
    fn a_prefix_is_nearer_where_what_it_belongs_to_is() {
        let row = |tracked: Option<u128>| sb::AdvertisedRoute {
            datapath: id(7),
            logical_port: id(11),
            tracked_port: tracked.map(id),
            ip_prefix: "10.0.0.5/24".into(),
            ..Default::default()
        };
        let priority = |input: &Input, tracked| advertised(&row(tracked), input).map(|a| a.priority);
        let here = world(ME, ME, &[]);
        assert_eq!(advertised(&row(None), &here).unwrap().prefix, ("10.0.0.0".parse().unwrap(), 24));
        assert_eq!(priority(&here, None), Some(REMOTE));
        assert_eq!(priority(&here, Some(14)), Some(LOCAL));
        assert_eq!(priority(&world(ME, OTHER, &[]), Some(14)), None, "only what is local is advertised");
        assert_eq!(priority(&world(OTHER, ME, &[]), Some(14)), None, "the port is another's");
        let of = |port: u128| sb::AdvertisedRoute { logical_port: id(13), ..row(Some(port)) };
        let elsewhere = world(OTHER, OTHER, &[]);
        let all = [13, 11, 14].map(|tracked| advertised(&of(tracked), &elsewhere).map(|a| a.priority));
        assert_eq!(all, [LOCAL, REMOTE, REMOTE].map(Some), "a port without redirect port is everywhere");
        assert_eq!([prefix("10.0.0.1/33"), prefix("x/8"), prefix("fd00::/129")], [None; 3]);
        assert_eq!(prefix("0.0.0.0/0"), Some(("0.0.0.0".parse().unwrap(), 0)));
    }

    #[test]
    fn learned_rows_follow_the_table_of_ports_that_learn_here() {
        let mut input = world(ME, ME, &[]);
        let row = |port: u128, prefix: &str| sb::LearnedRoute {
            datapath: id(7),
            logical_port: id(port),
            ip_prefix: prefix.into(),
            nexthop: "192.0.2.1".into(),
            ..Default::default()
        };
        for (n, port, prefix) in [(21, 11, "10.1.0.1"), (22, 11, "10.9.0.0/16"), (23, 13, "10.9.0.0/16")] {
            input.sb.learned_route.insert(id(n), Arc::new(row(port, prefix)));
        }
        let route = |text: &str, interface: &str| Learned {
            prefix: prefix(text).unwrap(),
            next_hop: "192.0.2.1".parse().unwrap(),
            interface: Some(interface.into()),
        };
        let table = [route("10.1.0.1/32", "eth0"), route("10.2.0.0/16", "eth0"), route("10.3.0.0/16", "eth1")];
        let tables = BTreeMap::from([(77, table.into_iter().collect())]);
        let written = |learner: Learner| {
            let mut plan = Plan::new(Arc::new(sb::Database::schema()));
            learned::write(&input, &[learner], &tables, &mut plan);
            let out = Attempts::default().choose(plan, Instant::now());
            let word = |o: &serde_json::Value| {
                let prefix = o["row"]["ip_prefix"].as_str().map(str::to_string);
                format!("{} {}", o["op"].as_str().unwrap(), prefix.unwrap_or_else(|| o["where"][0][2][1].to_string()))
            };
            out.iter().map(word).collect::<Vec<String>>()
        };
        let learner = Learner { datapath: id(7), port: id(11), table: 77, interface: None, learns: true };
        let gone = format!("delete \"{}\"", id(22));
        assert_eq!(written(learner.clone()), [&gone, "insert 10.2.0.0/16", "insert 10.3.0.0/16"]);
        let one = Learner { interface: Some("eth1".into()), ..learner.clone() };
        assert_eq!(written(one), [&format!("delete \"{}\"", id(21)), &gone, "insert 10.3.0.0/16"]);
        let none = Learner { learns: false, ..learner.clone() };
        assert_eq!(written(none), [format!("delete \"{}\"", id(21)), gone]);
        assert!(written(Learner { table: 78, ..learner }).is_empty(), "a table that was not read says nothing");
    }
}
