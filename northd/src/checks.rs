//! Warnings about northbound rows that compile, but cannot be meant so. Each names the object; the row is compiled as OVN
//! does.

use crate::addresses::{Mac, PortAddresses};
use crate::context::{Ctx, flag};
use crate::facts::lsp::Lsp;
use crate::model::RouterColumn;
use ovn_schema::{Map, Str, Uuid, nb};
use std::collections::HashMap;
use std::net::IpAddr;

/// The type of an option's value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number, not negative.
    Number,
    /// An IP address.
    Address,
    /// An IPv4 network, `ADDRESS/LENGTH`.
    Network4,
    /// An IPv6 prefix, its length optional.
    Prefix6,
    /// IPv4 addresses and ranges `FIRST..LAST`, with spaces between.
    Ranges4,
    /// An Ethernet address.
    Ethernet,
    /// Seconds, or `NETWORK:SECONDS` for several networks.
    Ages,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// Options with their kinds, from ovn-nb(5).
pub type Options = [(&'static str, Kind)];

/// `Logical_Switch_Port:options`.
pub const SWITCH_PORT: &Options = &[
    ("disable_arp_nd_rsp", Kind::Flag),
    ("disable_garp_rarp", Kind::Flag),
    ("ethtype", Kind::Word(&["802.1q", "802.11q", "802.1ad", "802.11ad"])),
    ("force_fdb_lookup", Kind::Flag),
    ("localnet_learn_fdb", Kind::Flag),
    ("mcast_flood", Kind::Flag),
    ("mcast_flood_reports", Kind::Flag),
    ("pkt_clone_type", Kind::Word(&["mc_unknown"])),
    ("qos_burst", Kind::Number),
    ("qos_max_rate", Kind::Number),
    ("qos_min_rate", Kind::Number),
    ("requested-tnl-key", Kind::Number),
    ("virtual-ip", Kind::Address),
    ("vlan-passthru", Kind::Flag),
];

/// `Logical_Router_Port:options`.
pub const ROUTER_PORT: &Options = &[
    ("gateway_mtu", Kind::Number),
    ("mcast_flood", Kind::Flag),
    ("prefix", Kind::Flag),
    ("prefix_delegation", Kind::Flag),
    ("redirect-type", Kind::Word(&["overlay", "bridged"])),
    ("requested-tnl-key", Kind::Number),
    ("reside-on-redirect-chassis", Kind::Flag),
];

/// `Logical_Switch:other_config`.
pub const SWITCH: &Options = &[
    ("broadcast-arps-to-all-routers", Kind::Flag),
    ("enable-stateless-acl-with-lb", Kind::Flag),
    ("exclude_ips", Kind::Ranges4),
    ("fdb_age_threshold", Kind::Number),
    ("ipv6_prefix", Kind::Prefix6),
    ("mac_only", Kind::Flag),
    ("mcast_eth_src", Kind::Ethernet),
    ("mcast_flood_unregistered", Kind::Flag),
    ("mcast_idle_timeout", Kind::Number),
    ("mcast_ip4_src", Kind::Address),
    ("mcast_ip6_src", Kind::Address),
    ("mcast_querier", Kind::Flag),
    ("mcast_query_interval", Kind::Number),
    ("mcast_query_max_response", Kind::Number),
    ("mcast_snoop", Kind::Flag),
    ("mcast_table_size", Kind::Number),
    ("requested-tnl-key", Kind::Number),
    ("subnet", Kind::Network4),
    ("vlan-passthru", Kind::Flag),
];

/// `Logical_Router:options`.
pub const ROUTER: &Options = &[
    ("always_learn_from_arp_request", Kind::Flag),
    ("ct-commit-all", Kind::Flag),
    ("dynamic_neigh_routers", Kind::Flag),
    ("mac_binding_age_threshold", Kind::Ages),
    ("mcast_relay", Kind::Flag),
    ("requested-tnl-key", Kind::Number),
    ("snat-ct-zone", Kind::Number),
];

impl Kind {
    /// Why a value is not of this type; none where it is.
    fn refuses(self, value: &str) -> Option<String> {
        let network = |v4: bool| crate::addresses::parse_net(value).is_some_and(|(a, _)| a.is_ipv4() == v4);
        let (fits, wants) = match self {
            Kind::Flag => {
                (["true", "false"].iter().any(|w| value.eq_ignore_ascii_case(w)), "must be true or false".into())
            }
            Kind::Number => (value.parse::<u64>().is_ok(), "must be a whole number".into()),
            Kind::Address => (value.parse::<IpAddr>().is_ok(), "must be an IP address".into()),
            Kind::Network4 => (value.contains('/') && network(true), "must be an IPv4 network, ADDRESS/LENGTH".into()),
            Kind::Prefix6 => (network(false), "must be an IPv6 prefix".into()),
            Kind::Ranges4 => (ranges(value), "must be IPv4 addresses or ranges FIRST..LAST".into()),
            Kind::Ages => (!crate::ageing::refuses(value), "must be SECONDS or NETWORK:SECONDS;…;SECONDS".into()),
            Kind::Ethernet => (value.parse::<crate::addresses::Mac>().is_ok(), "must be an Ethernet address".into()),
            Kind::Word(words) => (words.contains(&value), format!("must be {}", words.join(" or "))),
        };
        (!fits).then_some(wants)
    }
}

fn ranges(text: &str) -> bool {
    let address = |t: &str| t.parse::<std::net::Ipv4Addr>().ok();
    text.split_whitespace().all(|word| match word.split_once("..") {
        Some((first, last)) => address(first).zip(address(last)).is_some_and(|(f, l)| f <= l),
        None => address(word).is_some(),
    })
}

/// Reports values that an option cannot have.
pub fn options(ctx: &mut Ctx<'_, '_>, object: &str, map: &Map<Str, Str>, known: &Options) {
    for (name, kind) in known {
        if let Some(value) = map.get(*name)
            && let Some(wants) = kind.refuses(value)
        {
            ctx.problem(format!("{object}: option {name} is \"{value}\"; it {wants}"));
        }
    }
}

/// Reports addresses that two ports of a switch have, and the switch's own options.
pub fn switch(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) else { return };
    options(ctx, &format!("logical switch {}", row.name), &row.other_config, SWITCH);
    let mut owners: HashMap<IpAddr, &Str> = HashMap::new();
    for port in &row.ports {
        let Some(lsp) = ctx.lsp(*port).map(|l| &l.row) else { continue };
        for a in lsp.addresses.iter().filter_map(|text| PortAddresses::parse(text)) {
            let ips = a.v4.iter().map(|n| IpAddr::from(n.addr)).chain(a.v6.iter().map(|n| IpAddr::from(n.addr)));
            for ip in ips {
                match owners.insert(ip, &lsp.name) {
                    Some(other) if *other != lsp.name => {
                        let (a, b) = if *other < lsp.name { (other, &lsp.name) } else { (&lsp.name, other) };
                        ctx.problem(format!(
                            "logical switch {}: ports {a} and {b} both have the address {ip}; give one of them another",
                            row.name
                        ));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Reports a router's options, and address translation that nothing reaches.
pub fn router(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    options(ctx, &format!("logical router {}", router.name), &router.options, ROUTER);
    if router.ports.is_empty() {
        return;
    }
    let gateways: Vec<_> = router.ports.iter().filter(|p| router.is_gateway() || p.gateway).collect();
    for nat in ctx.rows_of(uuid, RouterColumn::Nat) {
        let Some(nat) = ctx.nb::<nb::Nat>(*nat) else { continue };
        let Ok(external) = nat.external_ip.parse::<IpAddr>() else { continue };
        let why = if gateways.is_empty() {
            "the router has no gateway: set options:chassis, or gateway chassis on the outer port"
        } else if !flag(&router.options, "dynamic-routing")
            && gateways.iter().all(|p| p.ip_in_network_of(external).is_none())
        {
            "external_ip is in no network of the router's gateway ports; it works only where others route it here"
        } else {
            continue;
        };
        ctx.problem(format!("NAT rule {} {} of logical router {}: {why}", nat.r#type, nat.external_ip, router.name));
    }
}

/// Reports port security entries that cannot be parsed, and so have no effect.
pub fn port_security(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) {
    for text in lsp.row.port_security.iter().filter(|t| !secures(t)) {
        ctx.problem(format!(
            "logical switch port {}: port_security \"{text}\" must be an Ethernet address and IP addresses or networks; \
             it does not secure the port",
            lsp.name
        ));
    }
}

/// `[VRRPv3] MAC… [IP…]`.
fn secures(text: &str) -> bool {
    let text = text.strip_prefix("VRRPv3").unwrap_or(text);
    let mut words = text.split_whitespace().skip_while(|w| w.parse::<Mac>().is_ok());
    text.split_whitespace().next().is_some_and(|w| w.parse::<Mac>().is_ok())
        && words.all(|w| crate::addresses::parse_net(w).is_some())
}

/// Reports a match that no controller can parse.
pub fn matches(ctx: &mut Ctx<'_, '_>, table: nb::TableId, uuid: Uuid) {
    let (object, text) = match table {
        nb::TableId::Acl => {
            let Some(r) = ctx.nb::<nb::Acl>(uuid) else { return };
            let name = r.name.as_ref().map_or_else(|| uuid.to_string(), ToString::to_string);
            (format!("ACL {name} ({}, priority {})", r.direction, r.priority), &r.r#match)
        }
        nb::TableId::Qos => {
            let Some(r) = ctx.nb::<nb::Qos>(uuid) else { return };
            (format!("QoS rule {uuid} ({}, priority {})", r.direction, r.priority), &r.r#match)
        }
        nb::TableId::LogicalRouterPolicy => {
            let Some(r) = ctx.nb::<nb::LogicalRouterPolicy>(uuid) else { return };
            (format!("logical router policy {uuid} (priority {})", r.priority), &r.r#match)
        }
        _ => return,
    };
    // What a template variable stands for is known to each chassis only.
    if text.contains('^') {
        return;
    }
    if let Err(e) = logical_flow::expr::parse(text) {
        ctx.problem(format!("{object}: match \"{text}\": {e}; it matches nothing until it is mended"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_security_needs_an_ethernet_address() {
        for good in [
            "0a:00:00:00:00:01",
            "0a:00:00:00:00:01 10.0.0.0/24 fd00::1",
            "VRRPv3 0a:00:00:00:00:01 00:00:5e:00:01:05 10.0.0.1",
        ] {
            assert!(secures(good), "{good}");
        }
        for bad in ["", "10.0.0.1", "0a:00:00:00:00:zz", "0a:00:00:00:00:01 10.0.0", "VRRPv3"] {
            assert!(!secures(bad), "{bad}");
        }
    }

    #[test]
    fn values_are_held_against_their_kinds() {
        let fits = |k: Kind, v: &str| k.refuses(v).is_none();
        assert!(fits(Kind::Flag, "TRUE") && !fits(Kind::Flag, "perhaps"));
        assert!(fits(Kind::Number, "10") && !fits(Kind::Number, "-1") && !fits(Kind::Number, "fast"));
        assert!(fits(Kind::Network4, "10.0.0.0/24"));
        assert!(
            !fits(Kind::Network4, "10.0.0.0/33")
                && !fits(Kind::Network4, "10.0.0.1")
                && !fits(Kind::Network4, "fd00::/64")
        );
        assert!(
            fits(Kind::Prefix6, "fd00::/64") && fits(Kind::Prefix6, "fd00::") && !fits(Kind::Prefix6, "10.0.0.0/8")
        );
        assert!(fits(Kind::Ranges4, "10.0.0.1 10.0.0.5..10.0.0.9") && !fits(Kind::Ranges4, "10.0.0.9..10.0.0.5"));
        assert!(!fits(Kind::Ranges4, "10.0.1.x"));
        assert!(fits(Kind::Word(&["a", "b"]), "b") && !fits(Kind::Word(&["a", "b"]), "c"));
    }
}
