//! Addresses that northd gives to ports with `dynamic` in their `addresses` (ovn-nb(5), `Logical_Switch:other_config`:
//! `subnet`, `exclude_ips`, `ipv6_prefix`, `mac_only`).
//!
//! A port keeps what it has as long as that fits; what is new gets the lowest free address of the subnet, an Ethernet
//! address of the prefix in `NB_Global.options:mac_prefix` that goes with it, and an IPv6 address made of that.

use super::Fact;
use crate::addresses::{Mac, PortAddresses, parse_net4};
use crate::context::{Ctx, flag};
use crate::input::Read;
use crate::model::Columns;
use ovn_schema::{Str, Uuid, nb};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Ethernet addresses under a prefix.
const MAC_SPACE: u64 = 0xff_ffff;

/// The dynamic addresses that a switch has to give.
struct Pool {
    /// The first address of the subnet, and how many there are; none without a subnet.
    v4: Option<(u32, u32)>,
    used: BTreeSet<u32>,
    v6: Option<Ipv6Addr>,
}

/// What a port asks for in an `addresses` entry with `dynamic`.
#[derive(Default)]
struct Wish {
    mac: Option<Mac>,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

/// A port that asks for a dynamic address.
struct Request {
    port: Uuid,
    name: Str,
    wish: Wish,
    kept_mac: Option<Mac>,
    kept_v4: Option<Ipv4Addr>,
    kept_v6: Option<Ipv6Addr>,
}

/// Whether an entry of `addresses` asks for a dynamic address.
pub fn is_dynamic(text: &str) -> bool {
    wish(text).is_some()
}

/// `dynamic [IPV4] [IPV6]` or `MAC dynamic`.
fn wish(text: &str) -> Option<Wish> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["dynamic"] => Some(Wish::default()),
        [mac, "dynamic"] => Some(Wish { mac: Some(mac.parse().ok()?), ..Wish::default() }),
        ["dynamic", one] => match (one.parse(), one.parse()) {
            (Ok(v4), _) => Some(Wish { v4: Some(v4), ..Wish::default() }),
            (_, Ok(v6)) => Some(Wish { v6: Some(v6), ..Wish::default() }),
            _ => None,
        },
        ["dynamic", v4, v6] => Some(Wish { v4: Some(v4.parse().ok()?), v6: Some(v6.parse().ok()?), mac: None }),
        _ => None,
    }
}

impl Pool {
    fn new(ctx: &mut Ctx<'_, '_>, row: &nb::LogicalSwitch) -> Option<Pool> {
        let config = &row.other_config;
        let (subnet, prefix) = (config.get("subnet"), config.get("ipv6_prefix"));
        let mac_only = flag(config, "mac_only") && subnet.is_none() && prefix.is_none();
        let v4 = subnet.and_then(|s| parse_net4(s)).filter(|n| n.plen < 32).map(|n| {
            let mask = u32::from(n.mask());
            ((u32::from(n.addr) & mask) + 1, !mask)
        });
        let v6 = prefix.and_then(|p| prefix64(p));
        if v4.is_none() && v6.is_none() && !mac_only {
            return None;
        }
        let mut pool = Pool { v4, used: BTreeSet::new(), v6 };
        if let Some((first, _)) = v4 {
            pool.used.insert(first);
            for word in config.get("exclude_ips").map_or("", |e| e).split_whitespace() {
                let (from, to) = word.split_once("..").unwrap_or((word, word));
                let (Ok(from), Ok(to)) = (from.parse::<Ipv4Addr>(), to.parse::<Ipv4Addr>()) else {
                    ctx.problem(format!("logical switch {}: bad exclude_ips \"{word}\"", row.name));
                    break;
                };
                if !pool.exclude(from.into(), to.into()) {
                    let why = "excluded addresses not in subnet";
                    ctx.problem(format!("logical switch {}: bad exclude_ips \"{word}\" ({why})", row.name));
                }
            }
        }
        Some(pool)
    }

    /// The offset of an address in the subnet.
    fn inside(&self, ip: Ipv4Addr) -> bool {
        self.v4.is_some_and(|(first, count)| u32::from(ip).checked_sub(first).is_some_and(|i| i < count))
    }

    /// Keeps what of a range is in the subnet from being given; false if nothing is.
    fn exclude(&mut self, from: u32, to: u32) -> bool {
        let Some((first, count)) = self.v4 else { return true };
        let range = from.max(first)..=to.min(first.saturating_add(count).saturating_sub(1));
        let any = !range.is_empty();
        self.used.extend(range);
        any
    }

    fn take(&mut self, ip: Ipv4Addr) {
        if self.inside(ip) {
            self.used.insert(ip.into());
        }
    }

    /// Whether a port may have an address: it is in the subnet, not the broadcast one, and free.
    fn grants(&self, ip: Ipv4Addr) -> bool {
        let broadcast = self.v4.is_some_and(|(first, count)| u32::from(ip) == first + (count - 1));
        self.inside(ip) && !broadcast && !self.used.contains(&ip.into())
    }

    fn lowest_free(&self) -> Option<Ipv4Addr> {
        let (first, count) = self.v4?;
        (first..first + (count - 1)).find(|ip| !self.used.contains(ip)).map(Ipv4Addr::from)
    }
}

/// A prefix of 64 bits; its length need not be written.
fn prefix64(text: &str) -> Option<Ipv6Addr> {
    let (ip, plen) = text.split_once('/').unwrap_or((text, "64"));
    let ip: Ipv6Addr = ip.parse().ok()?;
    let plen_fits = plen == "64" || plen.parse::<Ipv6Addr>().is_ok_and(|m| u128::from(m) == !0 << 64);
    plen_fits.then(|| Ipv6Addr::from(u128::from(ip) & !0 << 64))
}

fn in_prefix(ip: Ipv6Addr, prefix: Ipv6Addr) -> bool {
    u128::from(ip) >> 64 == u128::from(prefix) >> 64
}

/// The address that an Ethernet address has under a prefix (modified EUI-64).
fn eui64(prefix: Ipv6Addr, mac: Mac) -> Ipv6Addr {
    let host = u128::from(mac.link_local()) & u128::from(u64::MAX);
    Ipv6Addr::from(u128::from(prefix) | host)
}

/// Derives [`Fact::Ipam`]: the dynamic addresses of a switch's ports.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) else { return };
    let mut pool = Pool::new(ctx, row);
    let mut ports = Vec::new();
    for p in &row.ports {
        // A switch without dynamic addresses needs no port's row but those that had one.
        let had = pool.is_some() || ctx.read(Read::Dynamic(*p)).has_dynamic(*p);
        ports.extend(had.then(|| ctx.nb::<nb::LogicalSwitchPort>(*p)).flatten().map(|row| (*p, row)));
    }
    ports.sort_by_key(|(_, row)| row.name.clone());
    let mut given: BTreeMap<Uuid, Str> = BTreeMap::new();
    if let Some(pool) = &mut pool {
        occupy(ctx, &ports, pool);
        let requests = keep(ctx, &ports, pool, &mut given);
        assign(ctx, requests, pool, &mut given);
    }
    for (p, row) in ports {
        let addresses = given.get(&p).cloned();
        if addresses != row.dynamic_addresses {
            let columns = Columns::new().data("dynamic_addresses", &addresses);
            ctx.nb_columns(nb::TableId::LogicalSwitchPort, p, columns);
        }
    }
    ctx.derive(Fact::Ipam(given));
}

/// Marks as taken the addresses that ports and routers have of their own.
fn occupy(ctx: &mut Ctx<'_, '_>, ports: &[(Uuid, &Arc<nb::LogicalSwitchPort>)], pool: &mut Pool) {
    for (_, row) in ports {
        for text in row.addresses.iter().filter(|t| !is_dynamic(t)) {
            let own = PortAddresses::parse(text).map(|a| a.v4).unwrap_or_default();
            own.iter().for_each(|n| pool.take(n.addr));
        }
        let name = row.options.get("router-port").filter(|_| &*row.r#type == "router");
        let lrp = name.and_then(|n| ctx.read(Read::LrpName(n.clone())).lrp_by_name(n)).and_then(|l| ctx.lrp(l));
        if let Some(lrp) = lrp.filter(|l| ctx.datapath(l.router).is_some()) {
            lrp.v4.iter().for_each(|n| pool.take(n.addr));
        }
    }
}

/// The addresses that ports name with `dynamic`, by whom: whoever has one of these without having asked for it gives way.
fn reserve(ports: &[(Uuid, &Arc<nb::LogicalSwitchPort>)], pool: &mut Pool) -> BTreeMap<Ipv4Addr, Uuid> {
    let mut reserved = BTreeMap::new();
    for (p, row) in ports {
        let named = row.addresses.iter().find_map(|t| wish(t)).and_then(|w| w.v4);
        if let Some(ip) = named.filter(|ip| pool.grants(*ip)) {
            pool.take(ip);
            reserved.insert(ip, *p);
        }
    }
    reserved
}

/// Lets ports keep the addresses that still fit; returns the requests that remain.
fn keep(
    ctx: &mut Ctx<'_, '_>,
    ports: &[(Uuid, &Arc<nb::LogicalSwitchPort>)],
    pool: &mut Pool,
    given: &mut BTreeMap<Uuid, Str>,
) -> Vec<Request> {
    let prefix = mac_prefix(ctx);
    let reserved = reserve(ports, pool);
    let mut requests = Vec::new();
    for (p, row) in ports {
        let mut wishes = row.addresses.iter().filter_map(|t| wish(t));
        let Some(mut wish) = wishes.next() else { continue };
        let own = |ip: Ipv4Addr| reserved.get(&ip) == Some(p);
        if let Some(ip) = wish.v4.filter(|ip| pool.v4.is_some() && !own(*ip)) {
            ctx.problem(format!(
                "logical switch port {}: {ip} is taken, or not in the subnet: the port gets another address",
                row.name
            ));
            wish.v4 = None;
        }
        if wishes.next().is_some() {
            ctx.problem(format!("logical switch port {}: more than one dynamic address; the first counts", row.name));
        }
        let present = row.dynamic_addresses.as_ref().and_then(|d| PortAddresses::parse(d));
        let name = row.name.clone();
        let Some(present) = present else {
            requests.push(Request { port: *p, name, wish, kept_mac: None, kept_v4: None, kept_v6: None });
            continue;
        };
        let kept_mac = match wish.mac {
            Some(mac) => (mac == present.mac).then_some(mac),
            None => (present.mac.to_u64() >> 24 == prefix >> 24
                && !ctx.read(Read::Mac(present.mac)).mac_before(present.mac, *p))
            .then_some(present.mac),
        };
        let v4 = present.v4.first().map(|n| n.addr);
        let kept_v4 = v4.filter(|ip| own(*ip) || pool.grants(*ip) && wish.v4.is_none());
        let v6 = present.v6.first().map(|n| n.addr);
        let made =
            |ip: Ipv6Addr| pool.v6.is_some_and(|p| in_prefix(ip, p)) && (wish.v6 == Some(ip) || wish.v6.is_none());
        let kept_v6 = v6.filter(|ip| {
            made(*ip)
                && kept_mac.is_some()
                && (wish.mac.is_none() || pool.v6.is_some_and(|p| eui64(p, present.mac) == *ip))
        });
        if let Some(ip) = kept_v4 {
            pool.take(ip);
        }
        let complete = kept_mac.is_some()
            && (kept_v4.is_some() || v4.is_none() && pool.v4.is_none())
            && (kept_v6.is_some() || v6.is_none() && pool.v6.is_none());
        match &row.dynamic_addresses {
            Some(text) if complete => {
                given.insert(*p, text.clone());
            }
            _ => requests.push(Request { port: *p, name, wish, kept_mac, kept_v4, kept_v6 }),
        }
    }
    requests
}

/// `NB_Global.options:mac_prefix`, as the upper half of an Ethernet address.
fn mac_prefix(ctx: &mut Ctx<'_, '_>) -> u64 {
    upper_half(ctx.global().options.get("mac_prefix").map_or("", |text| text))
}

/// The first three octets of a prefix, which may have more (people write whole addresses), as an address' upper half.
fn upper_half(text: &str) -> u64 {
    let octets: String = text.trim().split(':').take(3).flat_map(|octet| [octet, ":"]).collect();
    format!("{octets}00:00:00").parse::<Mac>().map_or(0, Mac::to_u64)
}

/// The first three octets of a prefix, as text; none where they are no prefix, or zeros.
pub fn prefix(text: &str) -> Option<String> {
    let half = Some(upper_half(text)).filter(|half| *half != 0)?;
    Some(Mac::from_u64(half).to_string().chars().take(8).collect())
}

fn assign(ctx: &mut Ctx<'_, '_>, requests: Vec<Request>, pool: &mut Pool, given: &mut BTreeMap<Uuid, Str>) {
    let prefix = mac_prefix(ctx);
    let mut macs: BTreeSet<u64> = BTreeSet::new();
    for r in requests {
        let v4 = match (r.kept_v4, r.wish.v4) {
            (Some(ip), _) => Some(ip),
            // An address of a family that the switch does not give is nobody's: OVN writes it, and takes it back with its next
            // compile.
            (None, Some(ip)) if pool.v4.is_some() => Some(ip),
            (None, None) if pool.v4.is_some() => {
                let free = pool.lowest_free();
                if free.is_none() {
                    ctx.problem(format!("logical switch port {}: Subnet address space has been exhausted.", r.name));
                }
                free
            }
            _ => None,
        };
        if let Some(ip) = v4 {
            pool.take(ip);
        }
        let Some(mac) = r.wish.mac.or(r.kept_mac).or_else(|| free_mac(ctx, r.port, prefix, v4, &macs)) else {
            ctx.problem(format!("logical switch port {}: MAC address space exhausted.", r.name));
            continue;
        };
        macs.insert(mac.to_u64());
        let v6 = match (r.kept_v6, r.wish.v6, pool.v6) {
            (Some(ip), ..) => Some(ip),
            (None, Some(ip), Some(prefix)) if in_prefix(ip, prefix) => Some(ip),
            (None, _, prefix) => prefix.map(|p| eui64(p, mac)),
        };
        let mut text = mac.to_string();
        if let Some(ip) = v4 {
            text.push_str(&format!(" {ip}"));
        }
        if let Some(ip) = v6 {
            text.push_str(&format!(" {ip}"));
        }
        given.insert(r.port, text.into());
    }
}

/// The first free Ethernet address, beginning with the one made of the IPv4 address.
fn free_mac(
    ctx: &mut Ctx<'_, '_>,
    port: Uuid,
    prefix: u64,
    v4: Option<Ipv4Addr>,
    given: &BTreeSet<u64>,
) -> Option<Mac> {
    let start = v4.map_or(0, |ip| u64::from(u32::from(ip)) & MAC_SPACE);
    let candidates = (0..MAC_SPACE - 1).map(|i| prefix | ((start + i) % (MAC_SPACE - 1) + 1));
    candidates
        .filter(|mac| !given.contains(mac))
        .map(Mac::from_u64)
        .find(|mac| !ctx.read(Read::Mac(*mac)).mac_taken(*mac, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_three_octets_or_begins_with_them() {
        for text in ["0a:1b:2c", "0a:1b:2c:00:00:00", "0a:1b:2c:ff:ff:ff", " 0a:1b:2c "] {
            assert_eq!(upper_half(text), 0x0a1b_2c00_0000, "{text}");
        }
        assert_eq!([upper_half(""), upper_half("0a:1b"), upper_half("x:y:z")], [0; 3]);
    }

    #[test]
    fn who_names_an_address_has_it() {
        let port = |n: u128, addresses: &[&str]| {
            let addresses = addresses.iter().map(|a| (*a).into()).collect();
            (Uuid::from_u128(n), Arc::new(nb::LogicalSwitchPort { addresses, ..Default::default() }))
        };
        let rows = [
            port(1, &["dynamic"]),
            port(2, &["dynamic 10.0.0.2"]),
            port(3, &["dynamic 10.0.0.2"]),
            port(4, &["dynamic 10.0.0.1"]),
            port(5, &["dynamic 10.0.1.1 fd00::1"]),
        ];
        let mut pool = Pool { v4: Some((0x0a00_0001, 255)), used: [0x0a00_0001].into(), v6: None };
        let ports: Vec<_> = rows.iter().map(|(id, row)| (*id, row)).collect();
        let reserved = reserve(&ports, &mut pool);
        // The first of two, none of what is excluded, and none of another subnet.
        assert_eq!(reserved, BTreeMap::from([(Ipv4Addr::new(10, 0, 0, 2), Uuid::from_u128(2))]));
        assert_eq!(pool.lowest_free(), Some(Ipv4Addr::new(10, 0, 0, 3)));
    }

    #[test]
    fn what_ports_ask_for() {
        assert!(
            is_dynamic("dynamic") && is_dynamic("00:00:00:00:00:01 dynamic") && is_dynamic("dynamic 10.0.0.1 fd00::1")
        );
        assert!(!is_dynamic("unknown") && !is_dynamic("00:00:00:00:00:01 10.0.0.1") && !is_dynamic("dynamic x"));
    }

    #[test]
    fn the_subnet_is_used_from_below() {
        let mut pool = Pool { v4: Some((0x0a00_0001, 7)), used: BTreeSet::from([0x0a00_0001]), v6: None };
        pool.exclude(0x0a00_0002, 0x0a00_0003);
        assert_eq!(pool.lowest_free(), Some(Ipv4Addr::new(10, 0, 0, 4)));
        for last in 4..7 {
            pool.take(Ipv4Addr::new(10, 0, 0, last));
        }
        assert_eq!(pool.lowest_free(), None);
        assert!(!pool.grants(Ipv4Addr::new(10, 0, 0, 7)) && !pool.grants(Ipv4Addr::new(10, 0, 1, 1)));
    }

    #[test]
    fn prefixes_have_64_bits() {
        assert_eq!(prefix64("aef0::1").map(|p| p.to_string()), Some("aef0::".into()));
        assert!(prefix64("aef0::/64").is_some() && prefix64("aef0::/48").is_none());
    }
}
