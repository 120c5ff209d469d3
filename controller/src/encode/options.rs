//! DHCP options and router advertisements as user data.

use super::{Error, Site};
use logical_flow::action::{Argument, Call, Value};
use logical_flow::constant::{Format, Integer};

fn named(call: &Call) -> impl Iterator<Item = (&str, &[Value])> {
    call.arguments.iter().filter_map(|a| match a {
        Argument::Named(n, v) | Argument::Set(n, v) => Some((n.as_str(), v.as_slice())),
        _ => None,
    })
}

/// Options of text have text for a value, those of a kind that both may be either, and all others numbers.
fn typed(call: &Call, name: &str, kind: &str, values: &[Value]) -> Result<(), Error> {
    let text = match kind {
        "host_id" => return Ok(()),
        "str" | "domains" | "domain" => true,
        _ => false,
    };
    match values.iter().all(|v| text != matches!(v, Value::Integer(_))) {
        true => Ok(()),
        false => {
            let wanted = if text { "string value, in double quotes" } else { "numeric value" };
            Err(Error::Unsupported(format!("option {name} of {} requires {wanted}", call.function.name())))
        }
    }
}

/// Options are named and have values, which are constant.
fn constant(call: &Call) -> Result<(), Error> {
    let function = call.function.name();
    for a in &call.arguments {
        match a {
            Argument::Named(name, v) | Argument::Set(name, v) if v.is_empty() => {
                return Err(Error::Unsupported(format!("option {name} of {function} has no value")));
            }
            Argument::Named(..) | Argument::Set(..) => {}
            _ => {
                let why = "has a value that no option is named for: a list of values needs braces";
                return Err(Error::Unsupported(format!("{function} {why}")));
            }
        }
    }
    match named(call)
        .find(|(_, v)| v.iter().any(|v| matches!(v, Value::Field(_) | Value::Variable(_) | Value::Template(_))))
    {
        Some((name, _)) => {
            Err(Error::Unsupported(format!("option {name} of {} has no constant value", call.function.name())))
        }
        None => Ok(()),
    }
}

fn integer(v: &Value) -> Option<&Integer> {
    if let Value::Integer(i) = v { Some(i) } else { None }
}

/// The offered address and then code, length, value of each option (RFC 2132).
pub(super) fn dhcpv4(call: &Call, site: &Site<'_>) -> Result<Vec<u8>, Error> {
    constant(call)?;
    let mut out = Vec::new();
    let offer = call.named("offerip").and_then(<[Value]>::first).and_then(integer).map_or(0, |i| i.value as u32);
    out.extend(offer.to_be_bytes());
    // What the boot loader is told comes first: old ones look no further.
    let place = |name: &str| match name {
        "bootfile_name" => 0,
        "bootfile_name_alt" => 1,
        "next_server" => 2,
        _ => 3,
    };
    let mut list: Vec<_> = named(call).filter(|(n, _)| *n != "offerip").collect();
    list.sort_by_key(|(name, _)| place(name));
    for (name, values) in list {
        let (code, kind) = (site.dhcp_option)(name, false).ok_or_else(|| Error::UnknownOption(name.to_string()))?;
        typed(call, name, &kind, values)?;
        // Only addresses and routes are lists, and only one server can be the next.
        let list = matches!(kind.as_str(), "ipv4" | "static_routes") && name != "next_server";
        let value = dhcpv4_value(&kind, if list { values } else { values.get(..1).unwrap_or_default() });
        let code = u8::try_from(code)
            .map_err(|_| Error::Unsupported(format!("DHCP option {name}: its code {code} is none of DHCPv4")))?;
        put(&mut out, code, &value);
    }
    Ok(out)
}

/// Adds an option; one of more than 255 octets as several, which clients join (RFC 3396).
fn put(out: &mut Vec<u8>, code: u8, value: &[u8]) {
    if value.is_empty() {
        out.extend([code, 0]);
    }
    for part in value.chunks(usize::from(u8::MAX)) {
        out.extend([code, part.len() as u8]);
        out.extend(part);
    }
}

/// RFC 3442: pairs of a destination (a prefix's length and its significant octets; without a mask it is a host) and a router.
fn static_routes(values: &[Value]) -> Vec<u8> {
    let mut out = Vec::new();
    for (n, i) in values.iter().filter_map(integer).enumerate() {
        let address = (i.value as u32).to_be_bytes();
        if n % 2 == 1 {
            out.extend(address);
            continue;
        }
        let len = i.mask.map_or(32, |m| (m as u32).count_ones()) as u8;
        out.push(len);
        out.extend(&address[..usize::from(len.div_ceil(8))]);
    }
    out
}

fn dhcpv4_value(kind: &str, values: &[Value]) -> Vec<u8> {
    if kind == "static_routes" {
        return static_routes(values);
    }
    let mut out = Vec::new();
    for v in values {
        match (kind, v) {
            ("bool" | "uint8", Value::Integer(i)) => out.push(i.value as u8),
            ("uint16", Value::Integer(i)) => out.extend((i.value as u16).to_be_bytes()),
            ("uint32", Value::Integer(i)) => out.extend((i.value as u32).to_be_bytes()),
            ("domains", Value::String(s)) => out.extend(domains(s)),
            ("host_id", Value::Integer(i)) => {
                out.extend((i.value as u32).to_be_bytes());
            }
            ("host_id", Value::String(s)) => {
                out.extend(s.bytes());
            }
            (_, Value::Integer(i)) => out.extend((i.value as u32).to_be_bytes()),
            (_, Value::String(s) | Value::Word(s)) => out.extend(s.bytes()),
            _ => {}
        }
    }
    out
}

/// Domain names as RFC 1035 labels, compressed as RFC 3397 says.
fn domains(list: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut known: std::collections::HashMap<String, u16> = std::collections::HashMap::new();
    for domain in list.split(',').map(str::trim).filter(|d| !d.is_empty()) {
        let mut rest = domain;
        loop {
            // The end of a name that was there before stands for itself (RFC 1035 section 4.1.4).
            if let Some(at) = known.get(rest) {
                out.extend((0xc000 | at).to_be_bytes());
                break;
            }
            if let Ok(at) = u16::try_from(out.len())
                && at < 0x4000
            {
                known.insert(rest.to_string(), at);
            }
            let (label, more) = rest.split_once('.').unwrap_or((rest, ""));
            if !label.is_empty() && label.len() < 64 {
                out.push(label.len() as u8);
                out.extend(label.bytes());
            }
            if more.is_empty() {
                out.push(0);
                break;
            }
            rest = more;
        }
    }
    out
}

fn labels(domain: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in domain.split('.').filter(|l| !l.is_empty() && l.len() < 64) {
        out.push(label.len() as u8);
        out.extend(label.bytes());
    }
    out.push(0);
    out
}

/// Code, length (two bytes each) and value of each option (RFC 8415).
pub(super) fn dhcpv6(call: &Call, site: &Site<'_>) -> Result<Vec<u8>, Error> {
    constant(call)?;
    let mut out = Vec::new();
    for (name, values) in named(call) {
        let (code, kind) = (site.dhcp_option)(name, true).ok_or_else(|| Error::UnknownOption(name.to_string()))?;
        typed(call, name, &kind, values)?;
        let mut value = Vec::new();
        for v in values {
            match (kind.as_str(), v) {
                ("ipv6", Value::Integer(i)) => value.extend(i.value.to_be_bytes()),
                ("mac", Value::Integer(i)) => value.extend(&i.value.to_be_bytes()[10..]),
                (_, Value::String(s)) if kind == "domain" => value.extend(labels(s)),
                (_, Value::String(s) | Value::Word(s)) => value.extend(s.bytes()),
                (_, Value::Integer(i)) => value.extend(i.value.to_be_bytes()),
                _ => {}
            }
        }
        out.extend(code.to_be_bytes());
        out.extend((value.len() as u16).to_be_bytes());
        out.extend(value);
    }
    Ok(out)
}

/// RFC 8106 section 5.2: a list of domains.
pub(crate) fn search_list(domains: &str) -> Vec<u8> {
    let mut names: Vec<u8> = domains.split(',').map(str::trim).filter(|d| !d.is_empty()).flat_map(labels).collect();
    if names.is_empty() {
        return Vec::new();
    }
    names.resize(names.len().next_multiple_of(8), 0);
    let mut out = vec![31, (1 + names.len() / 8) as u8, 0, 0, 0xff, 0xff, 0xff, 0xff];
    out.extend(names);
    out
}

/// RFC 4191 section 2.3: a route, with as many words of its prefix as it needs. An address alone is that of a host.
pub(crate) fn route_information(preference: u8, prefix: &str) -> Option<Vec<u8>> {
    let (address, len) = prefix.trim().split_once('/').unwrap_or((prefix.trim(), "128"));
    let (address, len): (std::net::Ipv6Addr, u8) = (address.parse().ok()?, len.parse().ok().filter(|n| *n <= 128)?);
    let words = usize::from(len.div_ceil(64));
    let mut out = vec![24, 1 + words as u8, len, preference, 0xff, 0xff, 0xff, 0xff];
    let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
    out.extend(&(u128::from(address) & mask).to_be_bytes()[..words * 8]);
    Some(out)
}

/// Whether a router advertisement may have this option with this value.
fn advertised(name: &str, v: &Value) -> bool {
    match (name, v) {
        ("addr_mode", Value::String(s)) => ["slaac", "dhcpv6_stateful", "dhcpv6_stateless"].contains(&s.as_str()),
        ("router_preference", Value::String(s)) => ["MEDIUM", "HIGH", "LOW"].contains(&s.as_str()),
        ("dnssl", Value::String(_)) => true,
        ("route_info", Value::String(s)) => s
            .split(',')
            .filter(|r| !r.is_empty())
            .all(|route| route.split_once('-').is_some_and(|(_, prefix)| route_information(0, prefix).is_some())),
        ("slla", Value::Integer(i)) => i.format == Format::Ethernet,
        ("prefix", Value::Integer(i)) => i.format == Format::Ipv6 && i.mask.is_some(),
        ("mtu", Value::Integer(i)) => i.format == Format::Decimal,
        ("rdnss", Value::Integer(i)) => i.format == Format::Ipv6,
        _ => false,
    }
}

/// A router advertisement (RFC 4861 section 4.2) without its checksum.
pub(super) fn router_advertisement(call: &Call) -> Result<Vec<u8>, Error> {
    constant(call)?;
    for (name, values) in named(call) {
        if !matches!(values, [v] if advertised(name, v)) {
            return Err(Error::Unsupported(format!("Invalid value for \"{name}\" option")));
        }
    }
    let mode = match call.named("addr_mode").and_then(<[Value]>::first) {
        Some(Value::String(s)) => s.as_str(),
        _ => return Err(Error::Unsupported("put_nd_ra_opts lacks addr_mode".into())),
    };
    if call.named("slla").is_none() {
        return Err(Error::Unsupported("slla option not present".into()));
    }
    if mode != "dhcpv6_stateful" && call.named("prefix").is_none() {
        let why = "prefix option needs to be set when address mode is slaac/dhcpv6_stateless.";
        return Err(Error::Unsupported(why.into()));
    }
    let flags: u8 = match mode {
        "dhcpv6_stateful" => 0x80,
        "dhcpv6_stateless" => 0x40,
        _ => 0,
    };
    let preference = |word: &str| match word {
        "HIGH" => 0x08,
        "LOW" => 0x18,
        _ => 0,
    };
    let text = |name: &str| match call.named(name).and_then(<[Value]>::first) {
        Some(Value::String(s) | Value::Word(s)) => Some(s.as_str()),
        _ => None,
    };
    let flags = flags | text("router_preference").map_or(0, preference);
    let mut out = vec![134, 0, 0, 0, 255, flags, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    // Prefixes are on-link; hosts configure themselves from them unless DHCPv6 does.
    let prefix_flags: u8 = if mode == "dhcpv6_stateful" { 0x80 } else { 0xc0 };
    for (name, values) in named(call) {
        match name {
            "dnssl" => out.extend(search_list(text(name).unwrap_or_default())),
            "route_info" => {
                for route in text(name).unwrap_or_default().split(',') {
                    out.extend(
                        route
                            .split_once('-')
                            .and_then(|(p, prefix)| route_information(preference(p), prefix))
                            .unwrap_or_default(),
                    );
                }
            }
            _ => {}
        }
        for i in values.iter().filter_map(integer) {
            match name {
                "rdnss" => {
                    // RFC 8106 section 5.1, with a lifetime that does not end.
                    out.extend([25, 3, 0, 0, 0xff, 0xff, 0xff, 0xff]);
                    out.extend(i.value.to_be_bytes());
                }
                "slla" => {
                    out.extend([1, 1]);
                    out.extend(&i.value.to_be_bytes()[10..]);
                }
                "mtu" => {
                    out.extend([5, 1, 0, 0]);
                    out.extend((i.value as u32).to_be_bytes());
                }
                "prefix" => {
                    let len = i.mask.unwrap_or(u128::MAX).count_ones() as u8;
                    out.extend([3, 4, len, prefix_flags]);
                    out.extend([0xff; 8]);
                    out.extend([0; 4]);
                    out.extend(i.value.to_be_bytes());
                }
                _ => {}
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use logical_flow::action::Function;
    use logical_flow::constant::Format;

    #[test]
    fn values_are_of_the_kind_of_their_option() {
        let call = Call { function: Function::PutDhcpOpts, result: None, arguments: Vec::new(), parentheses: true };
        let (word, text) = (Value::Word("abc".into()), Value::String("abc".into()));
        let number =
            Value::Integer(Integer { value: 7, mask: None, format: Format::Decimal, prefix: false, outside: 0 });
        for (kind, fits) in [
            ("uint32", [false, false, true]),
            ("ipv4", [false, false, true]),
            ("static_routes", [false, false, true]),
            ("str", [true, true, false]),
            ("domains", [true, true, false]),
            ("host_id", [true, true, true]),
        ] {
            let found = [&word, &text, &number].map(|v| typed(&call, "x", kind, std::slice::from_ref(v)).is_ok());
            assert_eq!(found, fits, "{kind}");
        }
        let refused = typed(&call, "lease_time", "uint32", &[word]).unwrap_err().to_string();
        assert_eq!(refused, "option lease_time of put_dhcp_opts requires numeric value");
    }

    fn number(value: u128, mask: Option<u128>, format: Format) -> Value {
        Value::Integer(Integer { value, mask, format, prefix: mask.is_some(), outside: 0 })
    }

    #[test]
    fn options_have_names_and_values() {
        let address = |n| number(n, None, Format::Ipv4);
        let call = |arguments| Call { function: Function::PutDhcpOpts, result: None, arguments, parentheses: true };
        let server = |values| Argument::Named("dns_server".into(), values);
        assert!(constant(&call(vec![server(vec![address(1)])])).is_ok());
        // A second address without braces, and none.
        assert!(constant(&call(vec![server(vec![address(1)]), Argument::Value(address(2))])).is_err());
        assert!(constant(&call(vec![Argument::Set("dns_server".into(), vec![])])).is_err());
    }

    #[test]
    fn an_advertisement_has_what_its_options_may_say() {
        let text = |s: &str| Value::String(s.into());
        let all = |name: &str, value: Vec<Value>| {
            let mut list = vec![
                ("addr_mode", vec![text("slaac")]),
                ("slla", vec![number(0x0200_0000_0001, None, Format::Ethernet)]),
                ("prefix", vec![number(0xfd << 120, Some(u128::MAX << 64), Format::Ipv6)]),
            ];
            list.retain(|(n, _)| *n != name);
            list.push((name, value));
            let arguments = list.into_iter().map(|(n, v)| Argument::Named(n.into(), v)).collect();
            router_advertisement(&Call { function: Function::PutNdRaOpts, result: None, arguments, parentheses: true })
        };
        let server = |n| number(n, None, Format::Ipv6);
        for (name, value, fits) in [
            ("rdnss", vec![server(1)], true),
            ("rdnss", vec![server(1), server(2)], false),
            ("rdnss", vec![number(0x0a00_0001, None, Format::Ipv4)], false),
            ("mtu", vec![number(1500, None, Format::Decimal)], true),
            ("mtu", vec![number(1500, None, Format::Hex)], false),
            ("prefix", vec![server(1)], false),
            ("addr_mode", vec![text("other")], false),
            ("router_preference", vec![text("LOW")], true),
            ("route_info", vec![text("HIGH-fd00::1")], true),
            ("route_info", vec![text("HIGH-10.0.0.0/8")], false),
        ] {
            assert_eq!(all(name, value.clone()).is_ok(), fits, "{name} {value:?}");
        }
        let found = all("route_info", vec![text("HIGH-fd00::1")]).unwrap();
        assert_eq!(found[found.len() - 24..found.len() - 20], [24, 3, 128, 8], "a host's route has all of its address");
    }

    #[test]
    fn long_values_are_several_options() {
        let mut out = Vec::new();
        put(&mut out, 121, &[7; 300]);
        put(&mut out, 12, b"");
        assert_eq!(out.len(), 2 + 255 + 2 + 45 + 2);
        let list = packet::dhcp::options(&out);
        assert_eq!(list.iter().map(|(c, v)| (*c, v.len())).collect::<Vec<_>>(), [(121, 255), (121, 45), (12, 0)]);
    }

    #[test]
    fn routes_and_search_lists_have_their_lengths() {
        assert_eq!(search_list("aa.bb.cc"), b"\x1f\x03\0\0\xff\xff\xff\xff\x02aa\x02bb\x02cc\0\0\0\0\0\0\0");
        assert_eq!(search_list(""), b"");
        assert_eq!(
            route_information(8, "1001::/48").unwrap(),
            [24, 2, 48, 8, 255, 255, 255, 255, 0x10, 0x01, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(route_information(0, "1001::1/128").map(|r| r.len()), Some(24));
        assert_eq!(route_information(0, "nonsense"), None);
    }
}
