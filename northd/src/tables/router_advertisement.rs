//! What a router port's binding says of the router advertisements that controllers send.

use crate::context::{flag, number};
use crate::facts::lrp::Lrp;
use ovn_schema::{Map, Str};

/// Prefix delegation, and the `ipv6_ra_*` options of a port that advertises periodically.
pub fn options(lrp: &Lrp, out: &mut Map<Str, Str>) {
    for (option, key) in [("prefix_delegation", "ipv6_prefix_delegation"), ("prefix", "ipv6_prefix")] {
        if lrp.enabled() && flag(&lrp.row.options, option) {
            out.insert(key.into(), "true".into());
        }
    }
    let config = &lrp.row.ipv6_ra_configs;
    let Some(mode) = config.get("address_mode") else { return };
    if !flag(config, "send_periodic") || !matches!(&**mode, "slaac" | "dhcpv6_stateful" | "dhcpv6_stateless") {
        return;
    }
    let mut put = |key: &str, value: String| {
        out.insert(format!("ipv6_ra_{key}").into(), value.into());
    };
    let max = number(config, "max_interval").unwrap_or(600).clamp(4, 1800);
    let min_default = if max >= 9 { max / 3 } else { max };
    let min = number(config, "min_interval").unwrap_or(min_default).clamp(3, (max * 3 / 4).max(3));
    put("send_periodic", "true".into());
    put("address_mode", mode.to_string());
    put("max_interval", max.to_string());
    put("min_interval", min.to_string());
    if let Some(mtu) = number(config, "mtu").filter(|m| *m >= 1280) {
        put("mtu", mtu.to_string());
    }
    let mut prefixes: Vec<String> =
        lrp.v6.iter().filter(|n| !n.is_link_local()).map(|n| format!("{}/{}", n.network(), n.plen)).collect();
    prefixes.extend(lrp.row.ipv6_prefix.iter().map(ToString::to_string));
    put("prefixes", prefixes.join(" "));
    if let Some(link_local) = lrp.v6.iter().rfind(|n| n.is_link_local()) {
        put("src_addr", link_local.addr.to_string());
    }
    put("src_eth", lrp.mac.to_string());
    let preference = config.get("router_preference").filter(|p| matches!(&***p, "HIGH" | "LOW"));
    put("prf", preference.map_or("MEDIUM".into(), |p| p.to_string()));
    for (key, option) in [("rdnss", "rdnss"), ("dnssl", "dnssl"), ("route_info", "route_info")] {
        if let Some(value) = config.get(key) {
            put(option, value.to_string());
        }
    }
}
