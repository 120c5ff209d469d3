//! Why a route is neither told nor learned.

use super::filter::{Against, Rule};
use ipnetwork::IpNetwork;
use ovn_schema::Str;
use std::fmt;

/// Why a route is neither told nor learned. Its text names the setting that would change that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The zone does not tell or learn routes of this kind: the setting that is off.
    Off(&'static str),
    /// A list denies it: the option, whose it is, and the prefix in the list.
    Denied(&'static str, Rule, IpNetwork),
    /// The lists of allowed prefixes lack it: the option.
    NotAllowed(&'static str),
    /// Its prefix means something on its own link only.
    LinkLocalPrefix,
    /// Its next hop means something on its own link only.
    LinkLocalNexthop,
    /// It is chosen by where packets come from.
    SourceRoute,
    /// It is in a route table for which traffic does not go by this port: its table and the port's.
    OtherTable(Str, Str),
    /// The port on the transit switch has no addresses yet, or ones that are invalid.
    NoAddresses,
    /// The port on the transit switch has no address of the family of the prefix.
    NoNexthop,
    /// Its prefix or its next hop is none.
    BadFormat,
    /// The load balancer's address is none.
    BadVip,
    /// This router tells it itself.
    OwnRoute,
    /// This zone tells it.
    OwnZone,
    /// The port refuses routes with this tag.
    Tag(Str),
    /// The next hop is in no network of the port.
    NotReached,
    /// The router is disabled.
    Disabled,
    /// The router has a static route of its own to the prefix.
    HasStatic,
    /// One of the router's load balancers has an address in the prefix.
    HasVip,
    /// The router learned the prefix from a neighbour by dynamic routing.
    HasDynamic,
}

impl Reason {
    /// Of what a filter of one direction (`adv` or `learn`) has against a route.
    pub fn filtered(against: Against, learning: bool) -> Reason {
        match against {
            Against::Denied(Rule::Zone, net) => Reason::Denied("ic-route-denylist", Rule::Zone, net),
            Against::Denied(rule, net) => {
                Reason::Denied(if learning { "ic-route-deny-learn" } else { "ic-route-deny-adv" }, rule, net)
            }
            Against::NotAllowed => {
                Reason::NotAllowed(if learning { "ic-route-filter-learn" } else { "ic-route-filter-adv" })
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Off(option) => write!(f, "{option} is off in NB_Global:options"),
            Reason::Denied(option, rule, net) => {
                let whose = match rule {
                    Rule::Port => "the router port",
                    Rule::Router => "the router",
                    Rule::Zone => "NB_Global",
                };
                write!(f, "denied: {option} of {whose} has {net}")
            }
            Reason::NotAllowed(option) => write!(f, "not allowed: {option} has no prefix that contains it"),
            Reason::LinkLocalPrefix => f.write_str("link-local prefix"),
            Reason::LinkLocalNexthop => f.write_str("link-local next hop"),
            Reason::SourceRoute => f.write_str("policy src-ip"),
            Reason::OtherTable(table, port) => {
                write!(f, "in route table {}, the port's is {}", named(table), named(port))
            }
            Reason::NoAddresses => f.write_str("the port on the transit switch has no valid addresses yet"),
            Reason::NoNexthop => f.write_str("the port on the transit switch has no address of this family"),
            Reason::BadFormat => f.write_str("prefix or next hop is not valid"),
            Reason::BadVip => f.write_str("the load balancer's VIP is not valid"),
            Reason::OwnRoute => f.write_str("told by this router itself"),
            Reason::OwnZone => f.write_str("told by this zone itself"),
            Reason::Tag(tag) => write!(f, "filtered: ic-route-filter-tag of the router port is its tag, {tag}"),
            Reason::NotReached => f.write_str("the next hop is in no network of the router port"),
            Reason::Disabled => f.write_str("the router is disabled"),
            Reason::HasStatic => f.write_str("the router has a static route of its own to it"),
            Reason::HasVip => f.write_str("a load balancer of the router has a VIP in it"),
            Reason::HasDynamic => f.write_str("the router learned it from a neighbour by dynamic routing"),
        }
    }
}

fn named(table: &str) -> &str {
    if table.is_empty() { "<main>" } else { table }
}
