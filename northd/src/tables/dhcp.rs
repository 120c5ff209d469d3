//! The DHCP options that controllers understand (ovn-nb(5), table `DHCP_Options`; RFC 2132, RFC 8415).

use crate::context::Ctx;
use crate::model::{Columns, RowKey};
use ovn_schema::{Str, nb, sb};

const V4: &[(&str, i64, &str)] = &[
    ("offerip", 0, "ipv4"),
    ("netmask", 1, "ipv4"),
    ("router", 3, "ipv4"),
    ("dns_server", 6, "ipv4"),
    ("log_server", 7, "ipv4"),
    ("lpr_server", 9, "ipv4"),
    ("hostname", 12, "str"),
    ("domain_name", 15, "str"),
    ("swap_server", 16, "ipv4"),
    ("ip_forward_enable", 19, "bool"),
    ("policy_filter", 21, "ipv4"),
    ("default_ttl", 23, "uint8"),
    ("mtu", 26, "uint16"),
    ("broadcast_address", 28, "ipv4"),
    ("router_discovery", 31, "bool"),
    ("router_solicitation", 32, "ipv4"),
    ("arp_cache_timeout", 35, "uint32"),
    ("ethernet_encap", 36, "bool"),
    ("tcp_ttl", 37, "uint8"),
    ("tcp_keepalive_interval", 38, "uint32"),
    ("nis_server", 41, "ipv4"),
    ("ntp_server", 42, "ipv4"),
    ("netbios_name_server", 44, "ipv4"),
    ("netbios_node_type", 46, "uint8"),
    ("lease_time", 51, "uint32"),
    ("server_id", 54, "ipv4"),
    ("T1", 58, "uint32"),
    ("T2", 59, "uint32"),
    ("tftp_server", 66, "host_id"),
    ("bootfile_name", 67, "str"),
    ("domain_search_list", 119, "domains"),
    ("classless_static_route", 121, "static_routes"),
    ("tftp_server_address", 150, "ipv4"),
    ("path_prefix", 210, "str"),
    ("ms_classless_static_route", 249, "static_routes"),
    ("wpad", 252, "str"),
    ("next_server", 253, "ipv4"),
    ("bootfile_name_alt", 254, "str"),
];

const V6: &[(&str, i64, &str)] = &[
    ("server_id", 2, "mac"),
    ("ia_addr", 5, "ipv6"),
    ("dns_server", 23, "ipv6"),
    ("domain_search", 24, "str"),
    ("fqdn", 39, "domain"),
    ("bootfile_name", 59, "str"),
    ("bootfile_name_alt", 254, "str"),
];

/// Whether a DHCPv4 option is known, and whether its value is text.
pub fn v4_type(name: &str) -> Option<&'static str> {
    V4.iter().find(|(n, ..)| *n == name).map(|(.., t)| *t)
}

/// Whether a DHCPv6 option is known, and whether its value is text.
pub fn v6_type(name: &str) -> Option<&'static str> {
    V6.iter().find(|(n, ..)| *n == name).map(|(.., t)| *t)
}

/// The rows of both tables. Networks that are none are reported: no port in them is served.
pub fn run(ctx: &mut Ctx<'_, '_>) {
    for u in ctx.nb_table::<nb::DhcpOptions>() {
        if let Some(row) = ctx.nb::<nb::DhcpOptions>(u).filter(|r| crate::addresses::parse_net(&r.cidr).is_none()) {
            ctx.problem(format!(
                "DHCP options {u}: cidr \"{}\" must be a network, ADDRESS/LENGTH; nobody is served",
                row.cidr
            ));
        }
    }
    for (table, options) in [(sb::TableId::DhcpOptions, V4), (sb::TableId::Dhcpv6Options, V6)] {
        for (name, code, ty) in options {
            let columns =
                Columns::new().data("name", &Str::from(*name)).data("code", code).data("type", &Str::from(*ty));
            ctx.row(RowKey::new(table, name), columns);
        }
    }
}
