//! Router advertisements without a solicitation (RFC 4861 section 6.2.4), of router ports that northd gave the options
//! `ipv6_ra_*`. Each chassis makes them for its own ports; only the gateway's leave by a provider network.

use crate::encode::of::{self, flag};
use crate::encode::tables;
use crate::encode::{route_information, search_list};
use crate::input::model::Input;
use crate::plan::once::Once;
use crate::units::binding::is_here;
use openflow_rs::message::PacketOut;
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::sb::PortBinding;
use ovn_schema::{DatapathKey, PortKey, Str};
use packet::{Mac, build, ipproto};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The longest pause where nothing is configured (RFC 4861 section 6.2.1, MaxRtrAdvInterval).
const LONGEST: u64 = 600;

/// What one router port advertises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The switch port that the router port is connected to: datapath and port by key.
    place: (DatapathKey, PortKey),
    /// It may leave by the provider network, too.
    leaves: bool,
    /// The shortest and the longest pause.
    pauses: (Duration, Duration),
    packet: Vec<u8>,
}

/// The advertisements of all router ports whose switch is on this chassis.
pub fn wanted(input: &Input, said: &mut Once) -> BTreeMap<Str, Advertisement> {
    let mut out = BTreeMap::new();
    for (_, p) in input.advertisers() {
        let Some((_, peer)) = p.options.get("peer").and_then(|n| input.port(n)) else { continue };
        let Some(dp) = input.sb.datapath_binding.get(&peer.datapath) else { continue };
        if !input.local.datapaths.contains(&peer.datapath) {
            continue;
        }
        match packet(p) {
            Ok(packet) => {
                let place = (dp.key(), peer.key());
                let a = Advertisement { place, leaves: leaves(p, input), pauses: pauses(p), packet };
                out.insert(p.logical_port.clone(), a);
            }
            Err(option) => {
                let value = p.options.get(option).map_or("", |v| v);
                let text = format!(
                    "router port {} does not advertise itself: options:{option} of its Port_Binding is {value:?}; see ipv6_ra_configs in ovn-nb(5)",
                    p.logical_port
                );
                if said.say(text.clone()) {
                    tracing::warn!(target: "pinctrl", "{text}");
                }
            }
        }
    }
    said.end();
    out
}

/// Whether this chassis speaks for the port on a provider network.
fn leaves(p: &PortBinding, input: &Input) -> bool {
    match p.options.get("chassis-redirect-port") {
        _ if &*p.r#type == "l3gateway" => is_here(p, input, &input.local),
        Some(name) => super::announce::resident(input, name),
        None => false,
    }
}

fn pauses(p: &PortBinding) -> (Duration, Duration) {
    let number = |key: &str| p.options.get(key).and_then(|v| v.parse::<u64>().ok());
    let max = number("ipv6_ra_max_interval").unwrap_or(LONGEST);
    // MinRtrAdvInterval of RFC 4861 section 6.2.1.
    let min = number("ipv6_ra_min_interval").unwrap_or(if max >= 9 { max / 3 } else { max * 3 / 4 }).min(max);
    (Duration::from_secs(min), Duration::from_secs(max))
}

/// The packet, or the option that makes none.
fn packet(p: &PortBinding) -> Result<Vec<u8>, &'static str> {
    let option = |key: &str| p.options.get(key).map(|v| &**v);
    let (managed, hosts_configure) = match option("ipv6_ra_address_mode") {
        Some("slaac") => (0, 0x40),
        Some("dhcpv6_stateless") => (0x40, 0x40),
        Some("dhcpv6_stateful") => (0x80, 0),
        _ => return Err("ipv6_ra_address_mode"),
    };
    let flags = managed | preference(option("ipv6_ra_prf").unwrap_or_default());
    let mac = option("ipv6_ra_src_eth").and_then(|m| m.parse::<Mac>().ok()).ok_or("ipv6_ra_src_eth")?;
    let src: Ipv6Addr = option("ipv6_ra_src_addr").and_then(|a| a.parse().ok()).ok_or("ipv6_ra_src_addr")?;
    let mut body = vec![134, 0, 0, 0, 255, flags, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    body.extend(*mac);
    if let Some(mtu) = option("ipv6_ra_mtu").and_then(|m| m.parse::<u32>().ok()).filter(|m| *m > 0) {
        body.extend([5, 1, 0, 0]);
        body.extend(mtu.to_be_bytes());
    }
    for prefix in option("ipv6_ra_prefixes").unwrap_or_default().split_whitespace() {
        let (address, len) = prefix.split_once('/').ok_or("ipv6_ra_prefixes")?;
        let address: Ipv6Addr = address.parse().map_err(|_| "ipv6_ra_prefixes")?;
        let len: u8 = len.parse().ok().filter(|n| *n <= 128).ok_or("ipv6_ra_prefixes")?;
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        body.extend([3, 4, len, 0x80 | hosts_configure]);
        // Valid for ever, and not preferred less than that.
        body.extend([0xff; 8]);
        body.extend([0; 4]);
        body.extend((u128::from(address) & mask).to_be_bytes());
    }
    if let Some(server) = option("ipv6_ra_rdnss") {
        let server: Ipv6Addr = server.parse().map_err(|_| "ipv6_ra_rdnss")?;
        body.extend([25, 3, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        body.extend(server.octets());
    }
    body.extend(search_list(option("ipv6_ra_dnssl").unwrap_or_default()));
    for route in option("ipv6_ra_route_info").unwrap_or_default().split(',').filter(|r| !r.is_empty()) {
        let (word, prefix) = route.split_once('-').ok_or("ipv6_ra_route_info")?;
        body.extend(route_information(preference(word), prefix).ok_or("ipv6_ra_route_info")?);
    }
    let to = Mac::of_ipv6_group(ALL_NODES);
    build::ip_packet(to, mac, IpAddr::V6(src), IpAddr::V6(ALL_NODES), ipproto::ICMPV6, 255, &body)
        .ok_or("ipv6_ra_src_addr")
}

/// The preference of a router or a route (RFC 4191 section 2.1), in its place.
fn preference(word: &str) -> u8 {
    match word {
        "HIGH" => 0x08,
        "LOW" => 0x18,
        _ => 0,
    }
}

fn message(a: &Advertisement) -> Message {
    let flags = if a.leaves { flag::LOCAL_ONLY | flag::OVERRIDE_LOCAL_ONLY } else { flag::LOCAL_ONLY };
    let actions = vec![
        of::set(of::DATAPATH, a.place.0.into()),
        of::set(of::INPORT, a.place.1.into()),
        of::set_flags(flags),
        Action::resubmit(tables::INGRESS),
    ];
    Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, a.packet.clone(), actions))
}

/// What is advertised, and when next.
#[derive(Debug, Default)]
pub struct Advertiser {
    ports: BTreeMap<Str, (Advertisement, Instant)>,
    /// What makes pauses differ.
    random: RandomState,
    said: Once,
    /// As of which generation of the input ports were listed.
    seen: Option<u64>,
}

impl Advertiser {
    /// Takes over what is to be advertised now.
    pub fn observe(&mut self, input: &Input, now: Instant) {
        if self.seen.replace(input.generation()) != Some(input.generation()) {
            let wanted = wanted(input, &mut self.said);
            self.update(wanted, now);
        }
    }

    fn update(&mut self, wanted: BTreeMap<Str, Advertisement>, now: Instant) {
        let names: BTreeSet<&Str> = wanted.keys().collect();
        self.ports.retain(|name, _| names.contains(name));
        for (name, a) in wanted {
            let before = self.ports.get(&name).filter(|(b, _)| b.pauses == a.pauses).map(|(_, next)| *next);
            let next = before.unwrap_or_else(|| self.after(&name, a.pauses, now));
            self.ports.insert(name, (a, next));
        }
    }

    /// A time at random between the shortest and the longest pause, so that routers do not speak in step.
    fn after(&self, name: &Str, (min, max): (Duration, Duration), now: Instant) -> Instant {
        let range = (max - min).as_millis() as u64;
        now + min + Duration::from_millis(self.random.hash_one((name, now)) % (range + 1))
    }

    /// What is due.
    pub fn due(&mut self, now: Instant) -> Vec<Message> {
        let due: Vec<Str> = self.ports.iter().filter(|(_, (_, next))| *next <= now).map(|(n, _)| n.clone()).collect();
        let mut out = Vec::new();
        for name in due {
            let Some(pauses) = self.ports.get(&name).map(|(a, _)| a.pauses) else { continue };
            let next = self.after(&name, pauses, now);
            if let Some((a, at)) = self.ports.get_mut(&name) {
                out.push(message(a));
                *at = next;
            }
        }
        out
    }

    /// When something is due next.
    pub fn next(&self) -> Option<Instant> {
        self.ports.values().map(|(_, next)| *next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{Headers, checksum};

    fn port(options: &[(&str, &str)]) -> PortBinding {
        let all = [
            ("ipv6_ra_address_mode", "slaac"),
            ("ipv6_ra_src_eth", "00:00:00:00:00:01"),
            ("ipv6_ra_src_addr", "fe80::1"),
            ("ipv6_ra_prf", "MEDIUM"),
        ];
        let mut p = PortBinding { logical_port: "lrp".into(), ..PortBinding::default() };
        p.options.extend(all.iter().chain(options).map(|(k, v)| (Str::from(*k), Str::from(*v))));
        p
    }

    fn body(options: &[(&str, &str)]) -> Vec<u8> {
        let made = packet(&port(options)).unwrap();
        let h = Headers::parse(&made).unwrap();
        assert!(checksum::l4_ok(&made, &h));
        assert_eq!((&made[..6], h.addresses(&made).unwrap().1), (&[0x33, 0x33, 0, 0, 0, 1][..], ALL_NODES.into()));
        made[h.l4.unwrap()..].to_vec()
    }

    #[test]
    fn an_advertisement_has_what_is_configured() {
        let plain = body(&[]);
        assert_eq!((plain.len(), plain[0], plain[4], plain[5]), (24, 134, 255, 0));
        assert_eq!(plain[16..], [1, 1, 0, 0, 0, 0, 0, 1]);
        let full = body(&[
            ("ipv6_ra_address_mode", "dhcpv6_stateful"),
            ("ipv6_ra_prf", "LOW"),
            ("ipv6_ra_mtu", "1500"),
            ("ipv6_ra_prefixes", "aef0::5/64 fd0f::/48"),
            ("ipv6_ra_rdnss", "aef0::11"),
            ("ipv6_ra_dnssl", "aa.bb.cc"),
            ("ipv6_ra_route_info", "HIGH-aef1::11/48,LOW-aef2::11/96"),
        ]);
        assert_eq!(full[5], 0x98);
        assert_eq!(full[24..32], [5, 1, 0, 0, 0, 0, 5, 0xdc]);
        assert_eq!(full[32..36], [3, 4, 64, 0x80]);
        assert_eq!(full[48..64], "aef0::".parse::<Ipv6Addr>().unwrap().octets(), "bits beyond the prefix are 0");
        assert_eq!(full[64..68], [3, 4, 48, 0x80]);
        assert_eq!((full[96], full[120], full[144], full[147], full[160]), (25, 31, 24, 8, 24));
        assert_eq!(full.len(), 184);
        assert_eq!(body(&[("ipv6_ra_prefixes", "aef0::/64")])[24..28], [3, 4, 64, 0xc0]);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (option, value) in [
            ("ipv6_ra_address_mode", "other"),
            ("ipv6_ra_src_eth", "x"),
            ("ipv6_ra_src_addr", "10.0.0.1"),
            ("ipv6_ra_prefixes", "aef0::/129"),
            ("ipv6_ra_rdnss", "10.0.0.1"),
            ("ipv6_ra_route_info", "HIGH"),
        ] {
            assert_eq!(packet(&port(&[(option, value)])), Err(option));
        }
    }

    #[test]
    fn pauses_are_as_configured_or_as_the_rfc_has_them() {
        let seconds = |options: &[(&str, &str)]| {
            let (a, b) = pauses(&port(options));
            (a.as_secs(), b.as_secs())
        };
        assert_eq!(seconds(&[]), (200, 600));
        assert_eq!(seconds(&[("ipv6_ra_max_interval", "4")]), (3, 4));
        assert_eq!(seconds(&[("ipv6_ra_max_interval", "4"), ("ipv6_ra_min_interval", "9")]), (4, 4));
    }

    #[test]
    fn advertisements_come_again_and_again() {
        let advertisement = |min: u64, max: u64| Advertisement {
            place: (DatapathKey(1), PortKey(2)),
            leaves: false,
            pauses: (Duration::from_secs(min), Duration::from_secs(max)),
            packet: vec![0; 64],
        };
        let start = Instant::now();
        let mut a = Advertiser::default();
        a.update([("lrp".into(), advertisement(3, 4))].into(), start);
        let mut now = start;
        for _ in 0..50 {
            let next = a.next().unwrap();
            assert!(next >= now + Duration::from_secs(3) && next <= now + Duration::from_secs(4));
            assert!(a.due(next - Duration::from_millis(1)).is_empty());
            now = next;
            assert_eq!(a.due(now).len(), 1);
        }
        // Another content does not put it off; other pauses do.
        let next = a.next();
        a.update([("lrp".into(), Advertisement { leaves: true, ..advertisement(3, 4) })].into(), now);
        assert_eq!(a.next(), next);
        a.update([("lrp".into(), advertisement(30, 40))].into(), now);
        assert!(a.next().unwrap() >= now + Duration::from_secs(30));
        a.update(BTreeMap::new(), now);
        assert_eq!(a.next(), None);
    }
}
