//! Gratuitous ARP (RFC 5227 section 3) and unsolicited neighbour advertisements for addresses that this chassis serves
//! on a provider network: at once when it begins to serve them, and again at growing intervals.

use crate::input::model::Input;
use crate::{encode::of, encode::tables, units::binding};
use openflow_rs::message::PacketOut;
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::sb::PortBinding;
use ovn_schema::{DatapathKey, PortKey, Str};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// An address and where it is announced: datapath and input port by key.
#[derive(Default, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    datapath: DatapathKey,
    port: PortKey,
    mac: Mac,
    ip: Option<IpAddr>,
    /// It moves from chassis to chassis, so that time counts when it does.
    moves: bool,
}

#[derive(Debug)]
struct Schedule {
    next: Instant,
    pause: Duration,
}

/// The longest pause between announcements where `garp-max-timeout-sec` does not want them repeated for ever.
const LAST: Duration = Duration::from_secs(16);
/// The first pause, of addresses that move between chassis and of others. An answer that leaves by the old chassis and the new one's
/// announcement may cross on the wire: bridges then have the address at the old chassis, and the provider bridge there has it outside, until
/// the next announcement.
const SOON: Duration = Duration::from_millis(25);
const LATER: Duration = Duration::from_secs(1);

/// What is announced, and when next.
#[derive(Debug, Default)]
pub struct Announcer {
    addresses: BTreeMap<Address, Schedule>,
    /// `garp-max-timeout-sec`: announcements go on for ever, with pauses of this length at most.
    longest: Option<Duration>,
}

/// `MAC [IP]… [is_chassis_resident("PORT")]` of `Port_Binding:nat_addresses`.
fn parse(text: &str) -> Option<(Mac, Vec<IpAddr>, Option<&str>)> {
    let (list, condition) = match text.split_once("is_chassis_resident(") {
        Some((list, port)) => (list, Some(port.trim_matches(['"', ')', ' ']))),
        None => (text, None),
    };
    let mut words = list.split_whitespace();
    let mac = words.next()?.parse().ok()?;
    let ips = words.filter_map(|w| w.split('/').next()?.parse().ok()).collect();
    Some((mac, ips, condition))
}

/// Whether this chassis speaks for a port: it is here, of a gateway port as [`binding::speaks`] says.
pub(crate) fn resident(input: &Input, name: &str) -> bool {
    let Some((_, p)) = input.port(name) else { return false };
    let me = input.local.chassis;
    match p.ha_chassis_group {
        Some(_) if &*p.r#type == "chassisredirect" => binding::speaks(p, input, &input.local),
        _ => p.chassis.is_some() && p.chassis == me,
    }
}

/// The ports on whose residence it depends what is announced of a port's addresses.
pub fn conditions(p: &PortBinding) -> impl Iterator<Item = &str> {
    p.nat_addresses.iter().filter_map(|t| parse(t)?.2)
}

/// The addresses that this chassis serves at a port of a provider network; the datapath by key.
pub fn of_port(input: &Input, p: &PortBinding, datapath: DatapathKey) -> Vec<Address> {
    let mut out = Vec::new();
    if !is_enabled(input, p) {
        return out;
    }
    let (texts, conditional): (Vec<&Str>, bool) = match &*p.r#type {
        // Of a router that is everywhere only somebody's addresses are announced.
        "patch" => (p.nat_addresses.iter().filter(|t| t.contains("is_chassis_resident")).collect(), true),
        "l3gateway" => (p.nat_addresses.iter().collect(), true),
        "" => (p.mac.iter().collect(), false),
        _ => return out,
    };
    for text in texts {
        add(input, text, conditional, datapath, p.key(), &mut out);
    }
    out
}

/// Whether neither the port nor the router behind it forbids announcements (ovn-nb(5), `disable_garp_rarp`).
fn is_enabled(input: &Input, p: &PortBinding) -> bool {
    let yes = |v: Option<&Str>| v.is_some_and(|v| ovn_schema::options::is_on(v, false));
    let router = || {
        let (_, peer) = input.port(p.options.get("peer")?)?;
        input.sb.datapath_binding.get(&peer.datapath)?.external_ids.get("disable_garp_rarp")
    };
    !yes(p.options.get("disable_garp_rarp")) && !yes(router())
}

/// The routers on this chassis that are to know of an address that is announced here: they do not hear the announcement, which leaves
/// by the provider network. `doors` are the ports of the address' datapath to routers, with the routers' ports. True: only a router that
/// knows the address already is told that it moved (ovn-nb(5), `always_learn_from_arp_request`).
pub fn listeners<'a>(
    input: &Input,
    a: &Address,
    doors: impl Iterator<Item = (&'a PortBinding, &'a PortBinding)>,
) -> Vec<(crate::rows::learned::Key, bool)> {
    let Some(ip @ IpAddr::V4(_)) = a.ip else { return Vec::new() };
    let mut out = Vec::new();
    for (_, peer) in doors.filter(|(door, _)| door.key() != a.port) {
        if !input.local.datapaths.contains(&peer.datapath) {
            continue;
        }
        let Some(router) = input.sb.datapath_binding.get(&peer.datapath) else { continue };
        let learns = ovn_schema::options::bool(&router.external_ids, "always_learn_from_arp_request", true);
        let key = crate::rows::learned::Key::Neighbour(router.key(), peer.key(), ip, a.mac);
        out.push((key, !learns));
    }
    out
}

fn add(input: &Input, text: &str, conditional: bool, datapath: DatapathKey, port: PortKey, out: &mut Vec<Address>) {
    let Some((mac, mut ips, condition)) = parse(text) else { return };
    if !conditional {
        // A machine speaks for its IPv6 addresses itself; where it is, reverse ARP tells the switches.
        ips.retain(IpAddr::is_ipv4);
    }
    if conditional && condition.is_some_and(|c| !resident(input, c)) {
        return;
    }
    let moves = condition.is_some();
    if ips.is_empty() {
        out.push(Address { datapath, port, mac, ip: None, moves });
    }
    out.extend(ips.into_iter().map(|ip| Address { datapath, port, mac, ip: Some(ip), moves }));
}

fn message(a: &Address) -> Message {
    let packet = match a.ip {
        Some(IpAddr::V4(ip)) => packet::build::gratuitous_arp(a.mac, ip),
        Some(IpAddr::V6(ip)) => {
            let all = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            packet::build::nd_na(a.mac, ip, Mac([0x33, 0x33, 0, 0, 0, 1]), all, 0x20)
        }
        None => packet::build::rarp(a.mac),
    };
    let actions = vec![
        of::set(of::DATAPATH, a.datapath.into()),
        of::set(of::INPORT, a.port.into()),
        Action::resubmit(tables::INGRESS),
    ];
    Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, packet, actions))
}

impl Announcer {
    /// Takes over what is served now. What is new is announced at once.
    pub fn update(&mut self, served: &BTreeSet<Address>, longest: Option<Duration>, now: Instant) {
        self.addresses.retain(|a, _| served.contains(a));
        if self.longest != longest {
            self.longest = longest;
            self.restart(now);
        }
        let new: Vec<Address> = served.iter().filter(|a| !self.addresses.contains_key(*a)).cloned().collect();
        self.addresses.extend(new.into_iter().map(|a| (a.clone(), first(&a, now))));
    }

    /// Announces everything again from the start, as after the switch lost its tables.
    pub fn restart(&mut self, now: Instant) {
        for (a, s) in &mut self.addresses {
            *s = first(a, now);
        }
    }

    /// What is due.
    pub fn due(&mut self, now: Instant) -> Vec<Message> {
        let mut out = Vec::new();
        let longest = self.longest;
        for (a, s) in self.addresses.iter_mut().filter(|(_, s)| s.next <= now && goes_on(s, longest)) {
            out.push(message(a));
            s.pause = longest.map_or(s.pause, |l| s.pause.min(l));
            s.next = now + s.pause;
            s.pause *= 2;
        }
        out
    }

    /// When something is due next.
    pub fn next(&self) -> Option<Instant> {
        self.addresses.values().filter(|s| goes_on(s, self.longest)).map(|s| s.next).min()
    }
}

fn first(a: &Address, now: Instant) -> Schedule {
    Schedule { next: now, pause: if a.moves { SOON } else { LATER } }
}

fn goes_on(s: &Schedule, longest: Option<Duration>) -> bool {
    longest.is_some() || s.pause <= LAST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nat_addresses_read_as_the_manual_says() {
        let (mac, ips, c) = parse("80:fa:5b:06:72:b7 158.36.44.22 158.36.44.24 is_chassis_resident(\"foo1\")").unwrap();
        assert_eq!((mac[0], ips.len(), c), (0x80, 2, Some("foo1")));
        assert!(parse("router").is_none());
    }

    #[test]
    fn a_machine_speaks_for_its_ipv6_addresses_itself() {
        let of = |text: &str, conditional| {
            let mut out = Vec::new();
            add(&Input::default(), text, conditional, DatapathKey(1), PortKey(2), &mut out);
            out.into_iter().map(|a| a.ip.map(|ip| ip.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(of("02:00:00:00:00:01 10.0.0.1 fd00::1", false), [Some("10.0.0.1".into())]);
        assert_eq!(of("02:00:00:00:00:01 fd00::1", false), [None], "reverse ARP");
        assert_eq!(of("02:00:00:00:00:01 fd00::1", true), [Some("fd00::1".into())], "a translated address");
    }

    #[test]
    fn new_addresses_are_announced_at_once_and_then_ever_less_often() {
        let a = Address {
            datapath: DatapathKey(1),
            port: PortKey(2),
            mac: Mac([2; 6]),
            ip: Some("10.0.0.1".parse().unwrap()),
            moves: true,
        };
        let start = Instant::now();
        let mut n = Announcer::default();
        n.update(&[a.clone()].into(), None, start);
        assert_eq!(n.due(start).len(), 1);
        n.update(&[a.clone()].into(), None, start);
        assert_eq!(n.due(start).len(), 0);
        let again = n.next().unwrap() - start;
        assert!(again <= Duration::from_millis(25), "for so long nobody may forward what comes for it: {again:?}");
        let mut times = 1;
        while let Some(t) = n.next() {
            times += n.due(t).len();
        }
        assert_eq!(times, 10);
        // Told to repeat them, it does so for ever.
        n.update(&[a].into(), Some(Duration::from_secs(2)), start);
        let mut now = start;
        for _ in 0..20 {
            let next = n.next().unwrap().max(now);
            assert!(next - now <= Duration::from_secs(2));
            now = next;
            assert_eq!(n.due(now).len(), 1);
        }
        n.update(&BTreeSet::new(), None, start);
        assert!(n.addresses.is_empty());
    }
}
