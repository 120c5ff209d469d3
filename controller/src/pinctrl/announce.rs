//! Gratuitous ARP (RFC 5227 section 3) and unsolicited neighbour advertisements for addresses that this chassis serves
//! on a provider network: at once when it begins to serve them, and again at growing intervals.

use crate::model::Input;
use crate::{binding, of, tables};
use openflow_rs::message::PacketOut;
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::Str;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// An address and where it is announced: datapath and input port by key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    datapath: u64,
    port: u64,
    mac: [u8; 6],
    ip: Option<IpAddr>,
}

#[derive(Debug)]
struct Schedule {
    next: Instant,
    pause: Duration,
}

/// The longest pause between announcements (`garp-max-timeout-sec` is 0, meaning no repetition beyond the first ones).
const LAST: Duration = Duration::from_secs(16);

/// What is announced, and when next.
#[derive(Debug, Default)]
pub struct Announcer {
    addresses: BTreeMap<Address, Schedule>,
}

/// `MAC [IP]… [is_chassis_resident("PORT")]` of `Port_Binding:nat_addresses`.
fn parse(text: &str) -> Option<([u8; 6], Vec<IpAddr>, Option<&str>)> {
    let (list, condition) = match text.split_once("is_chassis_resident(") {
        Some((list, port)) => (list, Some(port.trim_matches(['"', ')', ' ']))),
        None => (text, None),
    };
    let mut words = list.split_whitespace();
    let mac = logical_flow::constant::ethernet(words.next()?)?;
    let ips = words.filter_map(|w| w.split('/').next()?.parse().ok()).collect();
    let bytes = mac.to_be_bytes();
    Some((bytes[10..].try_into().ok()?, ips, condition))
}

/// Whether a port resides here, as the match language means it.
fn resident(input: &Input, name: &str) -> bool {
    let Some((_, p)) = input.port(name) else { return false };
    let me = input.local.chassis;
    match p.ha_chassis_group {
        Some(_) if &*p.r#type == "chassisredirect" => binding::active(p, input, &input.local) == me && me.is_some(),
        _ => p.chassis.is_some() && p.chassis == me,
    }
}

/// All addresses that this chassis serves on provider networks now.
pub fn served(input: &Input) -> Vec<Address> {
    let mut out = Vec::new();
    for dp in &input.local.datapaths {
        let plugged = |p: &ovn_schema::sb::PortBinding| {
            &*p.r#type == "localnet" && input.local.localnets.contains_key(&p.logical_port)
        };
        let Some(binding) = input.sb.datapath_binding.get(dp) else { continue };
        if !input.ports_of(*dp).any(|(_, p)| plugged(p)) {
            continue;
        }
        for (_, p) in input.ports_of(*dp) {
            let texts: Vec<(Str, bool)> = match &*p.r#type {
                "patch" | "l3gateway" => p.nat_addresses.iter().map(|t| (t.clone(), true)).collect(),
                "" if p.chassis.is_some() && p.chassis == input.local.chassis => {
                    p.mac.iter().map(|t| (t.clone(), false)).collect()
                }
                _ => continue,
            };
            for (text, conditional) in texts {
                add(input, &text, conditional, binding.tunnel_key as u64, p.tunnel_key as u64, &mut out);
            }
        }
    }
    out
}

fn add(input: &Input, text: &str, conditional: bool, datapath: u64, port: u64, out: &mut Vec<Address>) {
    let Some((mac, ips, condition)) = parse(text) else { return };
    if conditional && condition.is_some_and(|c| !resident(input, c)) {
        return;
    }
    if ips.is_empty() {
        out.push(Address { datapath, port, mac, ip: None });
    }
    out.extend(ips.into_iter().map(|ip| Address { datapath, port, mac, ip: Some(ip) }));
}

fn message(a: &Address) -> Message {
    let packet = match a.ip {
        Some(IpAddr::V4(ip)) => packet::build::gratuitous_arp(a.mac, ip),
        Some(IpAddr::V6(ip)) => {
            let all = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            packet::build::nd_na(a.mac, ip, [0x33, 0x33, 0, 0, 0, 1], all, 0x20)
        }
        None => packet::build::rarp(a.mac),
    };
    let actions =
        vec![of::set(of::DATAPATH, a.datapath), of::set(of::INPORT, a.port), Action::resubmit(tables::INGRESS)];
    Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, packet, actions))
}

impl Announcer {
    /// Takes over what is served now. What is new is announced at once.
    pub fn update(&mut self, served: Vec<Address>, now: Instant) {
        self.addresses.retain(|a, _| served.contains(a));
        for a in served {
            self.addresses.entry(a).or_insert(Schedule { next: now, pause: Duration::from_millis(250) });
        }
    }

    /// Announces everything again from the start, as after the switch lost its tables.
    pub fn restart(&mut self, now: Instant) {
        for s in self.addresses.values_mut() {
            *s = Schedule { next: now, pause: Duration::from_millis(250) };
        }
    }

    /// What is due.
    pub fn due(&mut self, now: Instant) -> Vec<Message> {
        let mut out = Vec::new();
        for (a, s) in &mut self.addresses {
            if s.next <= now && s.pause <= LAST {
                out.push(message(a));
                s.next = now + s.pause;
                s.pause *= 2;
            }
        }
        out
    }

    /// When something is due next.
    pub fn next(&self) -> Option<Instant> {
        self.addresses.values().filter(|s| s.pause <= LAST).map(|s| s.next).min()
    }
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
    fn new_addresses_are_announced_at_once_and_then_ever_less_often() {
        let a = Address { datapath: 1, port: 2, mac: [2; 6], ip: Some("10.0.0.1".parse().unwrap()) };
        let start = Instant::now();
        let mut n = Announcer::default();
        n.update(vec![a.clone()], start);
        assert_eq!(n.due(start).len(), 1);
        n.update(vec![a], start);
        assert_eq!(n.due(start).len(), 0);
        let mut times = 1;
        while let Some(t) = n.next() {
            times += n.due(t).len();
        }
        assert_eq!(times, 7);
        n.update(Vec::new(), start);
        assert!(n.addresses.is_empty());
    }
}
