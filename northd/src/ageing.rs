//! Neighbours and Ethernet addresses that chassis learned long ago (ovn-nb(5): `Logical_Router:options:
//! mac_binding_age_threshold`, `Logical_Switch:other_config:fdb_age_threshold`, `NB_Global:options:
//! mac_binding_removal_limit` and `fdb_removal_limit`). Chassis renew the time stamps of what is in use.
//!
//! This depends on the time, so it is no unit: it is asked for once a second.

use crate::addresses::parse_net;
use crate::context::number;
use crate::input::Input;
use crate::model::Op;
use ipnetwork::IpNetwork;
use ovn_schema::{Map, Str, sb};
use std::net::IpAddr;

/// After how many seconds a neighbour is forgotten: by network, and for all others; 0 is never.
#[derive(Debug, Default, PartialEq)]
struct Thresholds {
    networks: Vec<(IpNetwork, u64)>,
    others: u64,
}

impl Thresholds {
    /// `[NETWORK:]SECONDS[;…]`, the longest prefix counts; none where it says something else.
    fn parse(text: &str) -> Option<Thresholds> {
        let mut all = Thresholds::default();
        for entry in text.split(';').map(str::trim).filter(|e| !e.is_empty()) {
            match entry.rsplit_once(':') {
                None => all.others = entry.parse().ok()?,
                Some((network, seconds)) => {
                    let (address, length) = parse_net(network)?;
                    all.networks.push((IpNetwork::new(address, length).ok()?, seconds.parse().ok()?));
                }
            }
        }
        all.networks.sort_by_key(|(n, _)| std::cmp::Reverse(n.prefix()));
        Some(all)
    }

    fn of(&self, ip: IpAddr) -> u64 {
        self.networks.iter().find(|(n, _)| n.contains(ip)).map_or(self.others, |(_, seconds)| *seconds)
    }
}

/// What has to go at this time (milliseconds since 1970), and whether a limit kept more of it.
pub fn expired(input: &Input, now: i64) -> (Vec<Op<sb::TableId>>, bool) {
    let options = input.nb.nb_global.values().next().map(|g| &g.options);
    let limit = |key: &str| {
        let limit = options.and_then(|o| number(o, key)).filter(|n| *n > 0);
        limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX)
    };
    let mut neighbours = neighbours(input, now);
    let mut addresses = addresses(input, now);
    let (most, most_addresses) = (limit("mac_binding_removal_limit"), limit("fdb_removal_limit"));
    let more = neighbours.len() > most || addresses.len() > most_addresses;
    neighbours.truncate(most);
    addresses.truncate(most_addresses);
    neighbours.append(&mut addresses);
    (neighbours, more)
}

fn old(timestamp: i64, seconds: u64, now: i64) -> bool {
    let limit = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000);
    seconds > 0 && now.saturating_sub(timestamp) >= limit
}

fn neighbours(input: &Input, now: i64) -> Vec<Op<sb::TableId>> {
    let with = input.nb.logical_router.iter().filter_map(|(u, r)| {
        let text = r.options.get("mac_binding_age_threshold")?;
        Some((input.datapath(*u)?.0, Thresholds::parse(text)?))
    });
    let thresholds: std::collections::HashMap<_, _> = with.collect();
    if thresholds.is_empty() {
        return Vec::new();
    }
    let rows = input.sb.mac_binding.iter().filter(|(_, row)| {
        let seconds = thresholds.get(&row.datapath).zip(row.ip.parse().ok()).map_or(0, |(t, ip)| t.of(ip));
        old(row.timestamp, seconds, now)
    });
    rows.map(|(u, _)| Op::Delete(sb::TableId::MacBinding, *u)).collect()
}

fn addresses(input: &Input, now: i64) -> Vec<Op<sb::TableId>> {
    let seconds = |config: &Map<Str, Str>| config.get("fdb_age_threshold")?.parse::<u64>().ok().filter(|s| *s > 0);
    if input.nb.logical_switch.values().all(|s| seconds(&s.other_config).is_none()) {
        return Vec::new();
    }
    let rows = input.sb.fdb.iter().filter(|(_, row)| {
        let switch = input.datapath_by_key(row.datapath()).and_then(|u| input.nb.logical_switch.get(&u));
        old(row.timestamp, switch.and_then(|s| seconds(&s.other_config)).unwrap_or(0), now)
    });
    rows.map(|(u, _)| Op::Delete(sb::TableId::Fdb, *u)).collect()
}

/// The shortest time after which some neighbour is forgotten (`options:mac_binding_age_threshold`), in seconds.
pub(crate) fn shortest(text: &str) -> Option<u64> {
    let all = Thresholds::parse(text)?;
    all.networks.iter().map(|(_, seconds)| *seconds).chain([all.others]).filter(|s| *s > 0).min()
}

/// What is wrong with a threshold.
pub(crate) fn refuses(text: &str) -> bool {
    Thresholds::parse(text).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovn_schema::{Uuid, nb};
    use std::sync::Arc;

    #[test]
    fn the_longest_prefix_counts() {
        let t = Thresholds::parse("10.0.0.0/8:300;10.1.0.0/16:0;fd00::/64:5;7").unwrap();
        let of = |ip: &str| t.of(ip.parse().unwrap());
        assert_eq!((of("10.2.0.1"), of("10.1.0.1"), of("fd00::1"), of("192.0.2.1")), (300, 0, 5, 7));
        assert_eq!(Thresholds::parse("20"), Some(Thresholds { networks: vec![], others: 20 }));
        assert!(refuses("soon") && refuses("10.0.0.0/33:1") && refuses("10.0.0.0/8:x"));
    }

    #[test]
    fn old_ones_go_up_to_the_limit() {
        let (router, datapath) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let map = |k: &str, v: &str| Map::from([(Str::from(k), Str::from(v))]);
        let (mut nb, mut sb) = (nb::Database::default(), sb::Database::default());
        let lr = nb::LogicalRouter { options: map("mac_binding_age_threshold", "10"), ..Default::default() };
        nb.logical_router.insert(router, Arc::new(lr));
        let binding = sb::DatapathBinding { tunnel_key: 1, nb_uuid: Some(router), ..Default::default() };
        sb.datapath_binding.insert(datapath, Arc::new(binding));
        for n in 0..4 {
            let row = sb::MacBinding {
                datapath,
                ip: format!("10.0.0.{n}").into(),
                timestamp: n * 5000,
                ..Default::default()
            };
            sb.mac_binding.insert(Uuid::from_u128(100 + n as u128), Arc::new(row));
        }
        let at = |nb: &nb::Database, now| {
            let (ops, more) = expired(&Input::new(nb.clone(), sb.clone()), now);
            (ops.len(), more)
        };
        assert_eq!((at(&nb, 9_999), at(&nb, 10_000), at(&nb, 15_000)), ((0, false), (1, false), (2, false)));
        let limited = nb::NbGlobal { options: map("mac_binding_removal_limit", "3"), ..Default::default() };
        nb.nb_global.insert(Uuid::from_u128(9), Arc::new(limited));
        assert_eq!(at(&nb, 60_000), (3, true));
    }
}
