//! Lists of prefixes that are told or learned, or are not.

use super::super::{V, Zone, warn};
use crate::address::{option, prefix};
use ipnetwork::IpNetwork;
use ovn_schema::{Map, Str};

/// Whose list it is: the first that matches is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `ic-route-deny-*` of the transit switch's router port.
    Port,
    /// `ic-route-deny-*` of the router.
    Router,
    /// `ic-route-denylist` (or `ic-route-blacklist`) of the zone.
    Zone,
}

/// A prefix that the list of denied ones has, or that the list of allowed ones lacks, is neither told nor learned.
/// Lists are options of the transit switch's router port and of the router; denied is what the zone's list has as well.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    denied: Vec<(Rule, IpNetwork)>,
    /// None: all are.
    allowed: Option<Vec<IpNetwork>>,
}

/// What a filter has against a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// A list of denied prefixes has this one.
    Denied(Rule, IpNetwork),
    /// The lists of allowed prefixes lack it.
    NotAllowed,
}

impl Filter {
    /// The lists of one direction, `adv` or `learn`. Warns of what does not parse.
    pub fn of(direction: &str, zone: &Zone, port: &Map<Str, Str>, router: &Map<Str, Str>, v: &mut V<'_>) -> Filter {
        let (deny, allow) = (format!("ic-route-deny-{direction}"), format!("ic-route-filter-{direction}"));
        let list = ["ic-route-denylist", "ic-route-blacklist"].map(|k| option(&zone.options, k));
        let list = list.into_iter().find(|l| !l.is_empty()).unwrap_or_default();
        let lists = [(Rule::Port, option(port, &deny)), (Rule::Router, option(router, &deny)), (Rule::Zone, list)];
        let denied = lists.iter().flat_map(|(rule, list)| items(list).map(|item| (*rule, item)));
        let denied = denied.filter_map(|(rule, item)| Some((rule, parse(&deny, item, v)?))).collect();
        let lists = [option(port, &allow), option(router, &allow)];
        let mut allowed = None;
        for item in lists.iter().flat_map(|list| items(list)) {
            // A list with nothing in it that parses allows nothing.
            allowed.get_or_insert_with(Vec::new).extend(parse(&allow, item, v));
        }
        Filter { denied, allowed }
    }

    /// What there is against a prefix.
    pub fn against(&self, net: &IpNetwork) -> Option<Against> {
        if let Some((rule, outer)) = self.denied.iter().find(|(_, outer)| contains(outer, net)) {
            return Some(Against::Denied(*rule, *outer));
        }
        let lacking = self.allowed.as_ref().is_some_and(|a| !a.iter().any(|outer| contains(outer, net)));
        lacking.then_some(Against::NotAllowed)
    }
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|i| !i.is_empty())
}

fn parse(key: &str, item: &str, v: &mut V<'_>) -> Option<IpNetwork> {
    let net = prefix(item);
    if net.is_none() {
        warn(v, format!("Bad prefix ({key}) format: {item}. CIDR expected."));
    }
    net
}

fn contains(outer: &IpNetwork, net: &IpNetwork) -> bool {
    outer.prefix() <= net.prefix() && outer.contains(net.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_prefixes_are_in_lists_and_those_of_the_other_family_are_not() {
        let net = |text: &str| prefix(text).unwrap();
        let filter = |denied: &[(Rule, &str)], allowed: Option<&[&str]>| Filter {
            denied: denied.iter().map(|(rule, text)| (*rule, net(text))).collect(),
            allowed: allowed.map(|list| list.iter().map(|text| net(text)).collect()),
        };
        let it = net("192.168.0.0/16");
        assert_eq!(filter(&[], None).against(&it), None);
        assert_eq!(filter(&[(Rule::Port, "192.168.0.0/17"), (Rule::Zone, "::/0")], None).against(&it), None);
        let lists = [(Rule::Port, "10.0.0.0/8"), (Rule::Router, "192.0.0.0/8"), (Rule::Zone, "192.168.0.0/16")];
        let denied = Against::Denied(Rule::Router, net("192.0.0.0/8"));
        assert_eq!(filter(&lists, None).against(&it), Some(denied));
        assert_eq!(filter(&[], Some(&["10.0.0.0/8"])).against(&it), Some(Against::NotAllowed));
        assert_eq!(filter(&[], Some(&[])).against(&it), Some(Against::NotAllowed));
        assert_eq!(filter(&[], Some(&["10.0.0.0/8", "192.0.0.0/8"])).against(&it), None);
    }
}
