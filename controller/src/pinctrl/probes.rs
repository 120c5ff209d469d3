//! Asks next hops of a provider network whether they are there. A gateway whose next hops are silent is to resign
//! ([`crate::rows::uplinks`]).
//!
//! The operator names them at the network's localnet port (`options:isthmus-next-hops`). Each gateway asks, also one that
//! serves nothing yet, by an Ethernet address of its own, as it has none of the router's: IPv4 by ARP probes, whose sender
//! has no address (RFC 5227 section 1.1), IPv6 by solicitations from the link-local address of that Ethernet address. The
//! answers come by flows of their own, before OVN's pipeline ([`crate::units::flows`]).

use crate::encode::opcode;
use openflow_rs::message::{PacketIn, PacketOut};
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::{Uuid, sb};
use packet::{Mac, build};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// `Port_Binding:options` of a localnet port: addresses of next hops, separated by commas or spaces.
pub const OPTION: &str = "isthmus-next-hops";
/// How often a next hop is asked.
const EVERY: Duration = Duration::from_millis(500);
/// How many questions in a row are not answered by a next hop that is lost.
const MISSED: u32 = 3;

/// A next hop: the row of its localnet port, and its address.
pub type Hop = (Uuid, IpAddr);

/// The next hops that a localnet port names, and words that are no address.
pub fn next_hops(localnet: &sb::PortBinding) -> (Vec<IpAddr>, Vec<&str>) {
    let text = localnet.options.get(OPTION).map_or("", |t| t);
    let (mut hops, mut bad) = (Vec::new(), Vec::new());
    for word in text.split([',', ' ']).filter(|w| !w.is_empty()) {
        match word.parse() {
            Ok(ip) => hops.push(ip),
            Err(_) => bad.push(word),
        }
    }
    (hops, bad)
}

/// The Ethernet address by which a chassis asks: a local one, made of what is random in its row's UUID.
pub fn asking_address(chassis: Uuid) -> Mac {
    let [.., a, b, c, d, e] = *chassis.as_bytes();
    Mac::from([0x0a, a, b, c, d, e])
}

/// What the flow for a next hop's answers tells the controller.
pub fn userdata((port, ip): Hop) -> Vec<u8> {
    let mut data = vec![0, 0, 0, opcode::NEXT_HOP_ANSWERED, 0, 0, 0, 0];
    data.extend_from_slice(port.as_bytes());
    match ip {
        IpAddr::V4(ip) => data.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => data.extend_from_slice(&ip.octets()),
    }
    data
}

fn hop(userdata: &[u8]) -> Option<Hop> {
    let (port, ip) = userdata.get(8..)?.split_at_checked(16)?;
    let port = Uuid::from_bytes(port.try_into().ok()?);
    let v4 = <[u8; 4]>::try_from(ip).map(IpAddr::from);
    Some((port, v4.or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from)).ok()?))
}

/// How a next hop is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The sender.
    pub mac: Mac,
    /// Actions that bring a packet into the provider network.
    pub output: Vec<Action>,
}

impl Question {
    fn message(&self, ip: IpAddr) -> Message {
        let frame = match ip {
            IpAddr::V4(ip) => build::arp_request(self.mac, Ipv4Addr::UNSPECIFIED, ip),
            IpAddr::V6(ip) => build::nd_ns(self.mac, self.mac.link_local(), ip),
        };
        Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, frame, self.output.clone()))
    }
}

#[derive(Debug)]
struct Asked {
    question: Question,
    next: Instant,
    /// Questions since the last answer. They are counted rather than timed: a controller that stood still has asked nothing.
    unanswered: u32,
    lost: bool,
}

/// The next hops that this chassis asks.
#[derive(Debug, Default)]
pub struct Probes {
    asked: BTreeMap<Hop, Asked>,
    /// How often it changed which ones are lost.
    changes: u64,
}

impl Probes {
    /// Takes over which next hops are to be asked. A new one counts as there.
    pub fn observe(&mut self, wanted: BTreeMap<Hop, Question>, now: Instant) {
        let before = self.asked.len();
        self.asked.retain(|hop, _| wanted.contains_key(hop));
        self.changes += u64::from(self.asked.len() < before);
        for (hop, question) in wanted {
            match self.asked.entry(hop) {
                Entry::Occupied(mut e) => e.get_mut().question = question,
                Entry::Vacant(e) => drop(e.insert(Asked { question, next: now, unanswered: 0, lost: false })),
            }
        }
    }

    /// Takes note of an answer.
    pub fn heard(&mut self, p: &PacketIn) {
        let Some(a) = hop(&p.userdata).and_then(|hop| self.asked.get_mut(&hop)) else { return };
        a.unanswered = 0;
        self.changes += u64::from(a.lost);
        a.lost = false;
    }

    /// The questions that are due.
    pub fn due(&mut self, now: Instant) -> Vec<Message> {
        let mut out = Vec::new();
        for ((_, ip), a) in self.asked.iter_mut().filter(|(_, a)| a.next <= now) {
            if a.unanswered >= MISSED && !a.lost {
                a.lost = true;
                self.changes += 1;
            }
            a.unanswered = a.unanswered.saturating_add(1);
            a.next = now + EVERY;
            out.push(a.question.message(*ip));
        }
        out
    }

    /// When a question is due.
    pub fn next(&self) -> Option<Instant> {
        self.asked.values().map(|a| a.next).min()
    }

    /// The next hops of a localnet port whose loss is the network's: all of one family.
    pub fn lost(&self, port: Uuid) -> Vec<IpAddr> {
        let of = |v4: bool| self.asked.iter().filter(move |((p, ip), _)| *p == port && ip.is_ipv4() == v4);
        let lost = |v4: &bool| of(*v4).all(|(_, a)| a.lost);
        [true, false].into_iter().filter(lost).flat_map(of).map(|((_, ip), _)| *ip).collect()
    }

    /// How often it changed which ones are lost.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Uuid = Uuid::from_u128(7);

    fn hops(all: &[&str]) -> Vec<IpAddr> {
        all.iter().map(|a| a.parse().expect("an address")).collect()
    }

    fn probes(all: &[&str], now: Instant) -> Probes {
        let question = Question { mac: asking_address(Uuid::from_u128(1)), output: Vec::new() };
        let mut p = Probes::default();
        p.observe(hops(all).into_iter().map(|ip| ((PORT, ip), question.clone())).collect(), now);
        p
    }

    /// Asks for so many times as a second has; those that answer do.
    fn ask(p: &mut Probes, times: u32, answer: &[&str], now: &mut Instant) {
        for _ in 0..times {
            drop(p.due(*now));
            for ip in hops(answer) {
                p.heard(&PacketIn { userdata: userdata((PORT, ip)), ..PacketIn::default() });
            }
            *now += EVERY;
        }
    }

    #[test]
    fn a_next_hop_is_lost_after_three_questions_and_back_with_one_answer() {
        let mut now = Instant::now();
        let mut p = probes(&["192.0.2.1", "2001:db8::1"], now);
        ask(&mut p, 9, &["192.0.2.1", "2001:db8::1"], &mut now);
        assert_eq!((p.lost(PORT), p.changes()), (vec![], 0));
        ask(&mut p, 3, &["192.0.2.1"], &mut now);
        assert!(p.lost(PORT).is_empty(), "the third may still be answered");
        ask(&mut p, 1, &["192.0.2.1"], &mut now);
        assert_eq!((p.lost(PORT), p.changes()), (hops(&["2001:db8::1"]), 1));
        assert!(p.lost(Uuid::from_u128(8)).is_empty(), "another network");
        ask(&mut p, 1, &["2001:db8::1"], &mut now);
        assert_eq!((p.lost(PORT), p.changes()), (vec![], 2));
    }

    #[test]
    fn a_family_is_lost_with_its_last_next_hop() {
        let mut now = Instant::now();
        let mut p = probes(&["192.0.2.1", "192.0.2.2"], now);
        ask(&mut p, 9, &["192.0.2.2"], &mut now);
        assert!(p.lost(PORT).is_empty());
        ask(&mut p, 9, &[], &mut now);
        assert_eq!(p.lost(PORT), hops(&["192.0.2.1", "192.0.2.2"]));
    }

    #[test]
    fn a_controller_that_stood_still_has_lost_nobody() {
        let mut now = Instant::now();
        let mut p = probes(&["192.0.2.1"], now);
        ask(&mut p, 1, &[], &mut now);
        now += Duration::from_secs(60);
        ask(&mut p, 2, &[], &mut now);
        assert!(p.lost(PORT).is_empty());
    }

    #[test]
    fn what_is_not_asked_any_more_is_not_lost() {
        let mut now = Instant::now();
        let mut p = probes(&["192.0.2.1"], now);
        ask(&mut p, 9, &[], &mut now);
        let changes = p.changes();
        p.observe(BTreeMap::new(), now);
        assert!(p.lost(PORT).is_empty() && p.changes() > changes && p.next().is_none());
    }

    #[test]
    fn the_option_and_the_address() {
        let mut row = sb::PortBinding::default();
        row.options.insert(OPTION.into(), "192.0.2.1, 2001:db8::1 router".into());
        assert_eq!(next_hops(&row), (hops(&["192.0.2.1", "2001:db8::1"]), vec!["router"]));
        let mac = asking_address(Uuid::from_u128(0x0102_0304_0506));
        assert_eq!(mac.to_string(), "0a:02:03:04:05:06");
    }
}
