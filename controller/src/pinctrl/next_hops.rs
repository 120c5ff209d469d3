//! Asks next hops of symmetric replies for their Ethernet addresses (`ECMP_Nexthop`, ovn-sb(5)), again and again, so that a change
//! shows: northd keeps the addresses in the rows, and connections follow them.

use crate::input::model::Input;
use crate::units::binding;
use crate::{encode::of, encode::tables};
use openflow_rs::message::PacketOut;
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::{DatapathKey, PortKey, Uuid, sb};
use packet::Mac;
use packet::build;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
/// The longest pause where `arp-nd-max-timeout-sec` says nothing.
pub const LONGEST: Duration = Duration::from_secs(16);

/// A question: where it goes out, by key, and its packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    datapath: DatapathKey,
    port: PortKey,
    packet: Vec<u8>,
}

/// A question that is asked again and again.
#[derive(Debug)]
struct Asked {
    question: Question,
    next: Instant,
    pause: Duration,
    over: bool,
}

/// The next hops that this chassis asks.
#[derive(Debug, Default)]
pub struct NextHops {
    questions: BTreeMap<Uuid, Asked>,
    longest: Option<Duration>,
}

/// What this chassis asks for a row; nothing where another one asks. It follows from the row's port, its datapath, and from who has
/// the port.
pub fn question(n: &sb::EcmpNexthop, input: &Input) -> Option<Question> {
    let p = input.sb.port_binding.get(&n.port)?;
    if &*p.r#type != "l3gateway" || !binding::is_here(p, input, &input.local) {
        return None;
    }
    let ip: IpAddr = n.nexthop.parse().ok()?;
    let mut words = p.mac.first()?.split_whitespace();
    let mac = words.next()?.parse::<Mac>().ok()?;
    let own: Vec<IpAddr> = words.filter_map(|w| w.split('/').next()?.parse().ok()).collect();
    let packet = match ip {
        IpAddr::V4(ip) => {
            let source = own.iter().find_map(|a| if let IpAddr::V4(a) = a { Some(*a) } else { None })?;
            build::arp_request(mac, source, ip)
        }
        IpAddr::V6(ip) => {
            let source = own.iter().find_map(|a| if let IpAddr::V6(a) = a { Some(*a) } else { None });
            build::nd_ns(mac, source.unwrap_or_else(|| mac.link_local()), ip)
        }
    };
    let dp = input.sb.datapath_binding.get(&p.datapath)?;
    Some(Question { datapath: dp.key(), port: p.key(), packet })
}

impl NextHops {
    /// Takes over the longest pause; 0 ends the questions when the pauses have grown.
    pub fn pause(&mut self, longest: Option<Duration>, now: Instant) {
        if self.longest != longest {
            self.longest = longest;
            for q in self.questions.values_mut() {
                (q.next, q.pause, q.over) = (now + FIRST, FIRST, false);
            }
        }
    }

    /// Takes note of what is to be asked for a row now.
    pub fn observe(&mut self, id: Uuid, question: Option<Question>, now: Instant) {
        match question {
            None => drop(self.questions.remove(&id)),
            Some(q) if self.questions.get(&id).is_some_and(|a| a.question == q) => {}
            Some(question) => {
                self.questions.insert(id, Asked { question, next: now + FIRST, pause: FIRST, over: false });
            }
        }
    }

    /// The questions that are due.
    pub fn due(&mut self, now: Instant) -> Vec<Message> {
        let longest = self.longest.unwrap_or(LONGEST);
        let mut out = Vec::new();
        for q in self.questions.values_mut().filter(|q| !q.over && q.next <= now) {
            let actions = vec![
                of::set(of::DATAPATH, q.question.datapath.into()),
                of::set(of::OUTPORT, q.question.port.into()),
                Action::resubmit(tables::LOCAL_OUTPUT),
            ];
            out.push(Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, q.question.packet.clone(), actions)));
            q.pause = (q.pause * 2).min(if longest.is_zero() { LONGEST } else { longest });
            q.over = longest.is_zero() && q.pause == LONGEST;
            q.next = now + q.pause;
        }
        out
    }

    /// When a question is due.
    pub fn next(&self) -> Option<Instant> {
        self.questions.values().filter(|q| !q.over).map(|q| q.next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use std::sync::Arc;

    fn world(chassis: &str) -> Input {
        let uuid = Uuid::from_u128;
        let mut db = sb::Database::default();
        db.datapath_binding.insert(uuid(7), Arc::new(sb::DatapathBinding { tunnel_key: 7, ..Default::default() }));
        let mut p = sb::PortBinding {
            logical_port: "rp".into(),
            r#type: "l3gateway".into(),
            datapath: uuid(7),
            tunnel_key: 2,
            mac: ["02:00:00:00:00:01 10.0.0.1/24 fd00::1/64".into()].into_iter().collect(),
            ..Default::default()
        };
        p.options.insert("l3gateway-chassis".into(), chassis.into());
        db.port_binding.insert(uuid(8), Arc::new(p));
        for (n, ip) in (10..).zip(["10.0.0.9", "fd00::9"]) {
            let row = sb::EcmpNexthop { datapath: uuid(7), port: uuid(8), nexthop: ip.into(), ..Default::default() };
            db.ecmp_nexthop.insert(uuid(n), Arc::new(row));
        }
        Input::new(db, Local { chassis: Some(uuid(1)), chassis_name: "hv1".into(), ..Local::default() })
    }

    fn look(n: &mut NextHops, input: &Input, now: Instant) {
        for (id, row) in &input.sb.ecmp_nexthop {
            n.observe(*id, question(row, input), now);
        }
    }

    #[test]
    fn next_hops_of_both_families_are_asked_ever_more_rarely() {
        let (mut n, start) = (NextHops::default(), Instant::now());
        look(&mut n, &world("hv1"), start);
        let mut times = Vec::new();
        for s in 0..70 {
            let sent = n.due(start + Duration::from_secs(s));
            assert!(sent.is_empty() || sent.len() == 2);
            times.extend((!sent.is_empty()).then_some(s));
        }
        assert_eq!(times, [1, 3, 7, 15, 31, 47, 63]);
        n.pause(Some(Duration::ZERO), start);
        let asked = (0..1000).filter(|s| !n.due(start + Duration::from_secs(*s)).is_empty()).count();
        assert_eq!((asked, n.next()), (4, None), "then they end");
    }

    #[test]
    fn only_the_gateway_asks() {
        let (mut n, start) = (NextHops::default(), Instant::now());
        look(&mut n, &world("hv2"), start);
        assert!(n.due(start + FIRST).is_empty());
        assert_eq!(n.next(), None);
    }
}
