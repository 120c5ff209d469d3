//! Health checks (`Service_Monitor`, ovn-sb(5)): each chassis asks the machines on its own ports whether they serve, and writes
//! what it found into the row. Northd takes backends that do not answer out of their load balancers.
//!
//! What is checked follows from the rows; answers come through the action `handle_svc_check`.

use crate::encode::of::{self, flag};
use crate::encode::tables;
use crate::input::model::Input;
use crate::plan::Plan;
use openflow_rs::message::{PacketIn, PacketOut};
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::sb;
use ovn_schema::{DatapathKey, PortKey, Str, Uuid, Write};
use packet::{Headers, Mac, build, ipproto};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Protocol {
    Tcp,
    Udp,
    Icmp,
}

/// By what an answer names its check: datapath and port by key, the machine's address, protocol and port.
type Key = (DatapathKey, PortKey, IpAddr, Protocol, u16);

/// What is checked, and how.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    key: Key,
    /// The port by which questions go out, by key.
    to: PortKey,
    mac: Mac,
    source: (Mac, IpAddr),
    interval: Duration,
    timeout: Duration,
    successes: u32,
    failures: u32,
    /// What the row says.
    status: Option<Str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was asked yet.
    New,
    /// An answer is due before this.
    Asked(Instant),
    /// The next question is due then.
    Resting(Instant),
}

#[derive(Debug)]
struct Check {
    target: Target,
    state: State,
    /// Good and bad answers since the verdict.
    good: u32,
    bad: u32,
    /// Whether the machine serves; none while that is not known.
    verdict: Option<bool>,
    /// The question's source port, or ICMP's identifier, and sequence number.
    question: (u16, u32),
}

/// All checks of this chassis.
#[derive(Debug, Default)]
pub struct Checks {
    checks: BTreeMap<Uuid, Check>,
    by_key: HashMap<Key, BTreeSet<Uuid>>,
    /// Checks whose row may not say what was found.
    unwritten: BTreeSet<Uuid>,
    asked: u64,
    random: RandomState,
}

/// What this chassis checks for a row, if anything. It follows from the ports that the row names, their datapath, and from which
/// chassis this is.
pub fn target(m: &sb::ServiceMonitor, input: &Input) -> Option<Target> {
    let me = input.local.chassis?;
    let here = |p: &sb::PortBinding| p.chassis == Some(me);
    let (_, p) = input.port(&m.logical_port).filter(|(_, p)| here(p) && p.up != Some(false) && !m.remote)?;
    let (ip, source): (IpAddr, IpAddr) = (m.ip.parse().ok()?, m.src_ip.parse().ok()?);
    if ip.is_ipv4() != source.is_ipv4() {
        return None;
    }
    let protocol = match m.protocol.as_deref() {
        Some("udp") => Protocol::Udp,
        Some("icmp") => Protocol::Icmp,
        _ => Protocol::Tcp,
    };
    let mut to = p.key();
    let owner_mac = match m.r#type.as_deref() {
        Some("network-function") if protocol == Protocol::Icmp => {
            // The question goes in by one port of the function, and has to come out by the other.
            let (_, entry) = input.port(&m.logical_input_port).filter(|(_, p)| here(p))?;
            to = entry.key();
            m.mac.parse::<Mac>().ok()?
        }
        Some("network-function") => return None,
        Some("logical-switch-port") => owner(p, ip)?,
        _ if protocol == Protocol::Icmp => return None,
        _ => owner(p, ip)?,
    };
    let datapath = input.sb.datapath_binding.get(&p.datapath)?.key();
    let number = |key: &str, or: u32| m.options.get(key).and_then(|v| v.parse::<u32>().ok()).unwrap_or(or);
    let seconds = |key: &str, or: u32| Duration::from_secs(number(key, or).max(1).into());
    Some(Target {
        key: (datapath, p.key(), ip, protocol, if protocol == Protocol::Icmp { 0 } else { m.port as u16 }),
        to,
        mac: owner_mac,
        source: (m.src_mac.parse::<Mac>().ok()?, source),
        interval: seconds("interval", 5),
        timeout: seconds("timeout", 3),
        successes: number("success_count", 1),
        failures: number("failure_count", 1),
        status: m.status.clone(),
    })
}

/// The Ethernet address with which a port has an IP address; one without IP addresses has any.
fn owner(p: &sb::PortBinding, ip: IpAddr) -> Option<Mac> {
    p.mac.iter().find_map(|text: &Str| {
        let mut words = text.split_whitespace();
        let mac = words.next()?.parse::<Mac>().ok()?;
        let ips: Vec<IpAddr> = words.filter_map(|w| w.split('/').next()?.parse().ok()).collect();
        (ips.is_empty() || ips.contains(&ip)).then_some(mac)
    })
}

impl Checks {
    /// Takes note of what a row asks for now; nothing where it is not for this chassis.
    pub fn observe(&mut self, id: Uuid, target: Option<Target>) {
        let old = self.checks.remove(&id);
        if let Some(c) = &old
            && let Some(all) = self.by_key.get_mut(&c.target.key)
        {
            all.remove(&id);
            if all.is_empty() {
                self.by_key.remove(&c.target.key);
            }
        }
        let Some(target) = target else { return };
        self.by_key.entry(target.key).or_default().insert(id);
        self.unwritten.insert(id);
        let check = match old.filter(|c| c.target.key == target.key) {
            Some(c) => Check { target, ..c },
            None => Check { target, state: State::New, good: 0, bad: 0, verdict: None, question: (0, 0) },
        };
        self.checks.insert(id, check);
    }

    /// What is to be asked now.
    pub fn due(&mut self, now: Instant) -> Vec<Message> {
        let mut out = Vec::new();
        let Checks { checks, asked, random, unwritten, .. } = self;
        for (id, c) in checks {
            if let State::Asked(until) = c.state
                && now >= until
            {
                // Who serves UDP need not answer.
                c.judge(c.target.key.3 == Protocol::Udp, now);
                unwritten.insert(*id);
            }
            let ask = match c.state {
                State::New => true,
                State::Asked(_) => false,
                State::Resting(until) => now >= until,
            };
            if ask {
                *asked += 1;
                let r = random.hash_one(*asked);
                c.question = ((r as u16) | 0x8000, (r >> 32) as u32);
                c.state = State::Asked(now + c.target.timeout);
                out.extend(c.ask());
            }
        }
        out
    }

    /// When something is due.
    pub fn next(&self) -> Option<Instant> {
        let at = |c: &Check| match c.state {
            // At the next look.
            State::New => None,
            State::Asked(t) | State::Resting(t) => Some(t),
        };
        self.checks.values().filter_map(at).min()
    }

    /// Takes note of an answer. What is to be sent: the end of a connection that was opened.
    pub fn answered(&mut self, p: &PacketIn, now: Instant) -> Vec<Message> {
        let (datapath, port) = super::place(p);
        let Some((ip, protocol, number, said)) = read(&p.packet) else { return Vec::new() };
        let Some(id) = self.by_key.get(&(datapath, port, ip, protocol, number)).and_then(BTreeSet::last).copied()
        else {
            return Vec::new();
        };
        let Some(c) = self.checks.get_mut(&id) else { return Vec::new() };
        self.unwritten.insert(id);
        let (source, sequence) = c.question;
        // A late answer is as good as one in time.
        match said {
            Said::Connected { to, ack } if (to, ack) == (source, sequence.wrapping_add(1)) => {
                c.judge(true, now);
                return c.tcp(RST, ack).into_iter().collect();
            }
            Said::Refused { to, ack } if (to, ack) == (source, sequence.wrapping_add(1)) => c.judge(false, now),
            Said::Echo { id, sequence: n } if (id, n) == (source, sequence as u16) => c.judge(true, now),
            Said::Unreachable { from } if from == source => c.judge(false, now),
            _ => {}
        }
        Vec::new()
    }

    /// Puts what was found into the plan, where the rows say something else.
    pub fn write(&mut self, input: &Input, plan: &mut Plan) {
        let checks = &self.checks;
        self.unwritten.retain(|id| {
            let verdict = checks.get(id).and_then(|c| c.verdict);
            let (Some(verdict), Some(row)) = (verdict, input.sb.service_monitor.get(id)) else { return false };
            let status = if verdict { "online" } else { "offline" };
            if row.status.as_deref() == Some(status) {
                return false;
            }
            let object = format!("Service_Monitor of {} {}:{}", row.logical_port, row.ip, row.port);
            let txn = &mut plan.part(object, status).txn;
            txn.update_row(*id, [sb::ServiceMonitor::status(&Some(Str::from(status)))]);
            true
        });
    }
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

impl Check {
    fn judge(&mut self, good: bool, now: Instant) {
        self.state = State::Resting(now + self.target.interval);
        let (count, enough) = match good {
            true => (&mut self.good, self.target.successes),
            false => (&mut self.bad, self.target.failures),
        };
        *count += 1;
        if *count >= enough {
            self.verdict = Some(good);
            (self.good, self.bad) = (0, 0);
        }
    }

    fn ask(&self) -> Option<Message> {
        match self.target.key.3 {
            Protocol::Tcp => self.tcp(SYN, self.question.1),
            Protocol::Udp => {
                let (source, port) = (self.question.0.to_be_bytes(), self.target.key.4.to_be_bytes());
                let mut body = [source, port, [0, 16], [0, 0]].concat();
                body.extend([0; 8]);
                self.packet(ipproto::UDP, 63, &body)
            }
            Protocol::Icmp => {
                let v4 = self.target.key.2.is_ipv4();
                let mut body = vec![if v4 { 8 } else { 128 }, 0, 0, 0];
                body.extend(self.question.0.to_be_bytes());
                body.extend((self.question.1 as u16).to_be_bytes());
                self.packet(if v4 { ipproto::ICMP } else { ipproto::ICMPV6 }, 255, &body)
            }
        }
    }

    fn tcp(&self, flags: u8, sequence: u32) -> Option<Message> {
        let mut body = [self.question.0.to_be_bytes(), self.target.key.4.to_be_bytes()].concat();
        body.extend(sequence.to_be_bytes());
        body.extend([0, 0, 0, 0, 5 << 4, flags]);
        // A window as Linux offers it first.
        body.extend(65_160u16.to_be_bytes());
        body.extend([0; 4]);
        self.packet(ipproto::TCP, 63, &body)
    }

    fn packet(&self, protocol: u8, ttl: u8, body: &[u8]) -> Option<Message> {
        let (mac, ip) = self.target.source;
        let packet = build::ip_packet(self.target.mac, mac, ip, self.target.key.2, protocol, ttl, body)?;
        let actions = vec![
            of::set(of::DATAPATH, self.target.key.0.into()),
            of::set(of::OUTPORT, self.target.to.into()),
            of::set_flags(flag::LOCAL_ONLY),
            Action::resubmit(tables::LOCAL_OUTPUT),
        ];
        Some(Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, packet, actions)))
    }
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Connected { to: u16, ack: u32 },
    Refused { to: u16, ack: u32 },
    Echo { id: u16, sequence: u16 },
    Unreachable { from: u16 },
}

/// An answer: the machine's address, protocol and port, and what it says.
fn read(p: &[u8]) -> Option<(IpAddr, Protocol, u16, Said)> {
    let h = Headers::parse(p)?;
    let (src, dst) = h.addresses(p)?;
    let address = |a: u128| match h.is_ipv4() {
        true => IpAddr::V4(Ipv4Addr::from(a as u32)),
        false => IpAddr::V6(Ipv6Addr::from(a)),
    };
    let l4 = h.l4?;
    match h.proto {
        ipproto::TCP => {
            let (port, to) = h.ports(p)?;
            let (ack, flags) = (packet::be32(p, l4 + 8)?, *p.get(l4 + 13)?);
            let said = match flags {
                f if f & (SYN | ACK) == SYN | ACK => Said::Connected { to, ack },
                f if f & RST != 0 => Said::Refused { to, ack },
                _ => return None,
            };
            Some((address(src), Protocol::Tcp, port, said))
        }
        ipproto::ICMP | ipproto::ICMPV6 => match (h.proto, *p.get(l4)?, *p.get(l4 + 1)?) {
            (ipproto::ICMP, kind @ (0 | 8), 0) | (ipproto::ICMPV6, kind @ (128 | 129), 0) => {
                let said = Said::Echo { id: packet::be16(p, l4 + 4)?, sequence: packet::be16(p, l4 + 6)? };
                // The question itself, behind a function that it went through.
                let question = matches!(kind, 8 | 128);
                Some((address(if question { dst } else { src }), Protocol::Icmp, 0, said))
            }
            // What could not be delivered is quoted behind eight octets.
            (ipproto::ICMP, 3, 3) | (ipproto::ICMPV6, 1, 4) => {
                let quoted = l4 + 8;
                let (header, protocol) = match h.is_ipv4() {
                    true => (usize::from(*p.get(quoted)? & 0xf) * 4, *p.get(quoted + 9)?),
                    false => (40, *p.get(quoted + 6)?),
                };
                let udp = quoted + header;
                let (from, to) = (packet::be16(p, udp)?, packet::be16(p, udp + 2)?);
                (protocol == ipproto::UDP).then_some((address(src), Protocol::Udp, to, Said::Unreachable { from }))
            }
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use openflow_rs::FieldId;
    use std::sync::Arc;

    const ME: Uuid = Uuid::from_u128(1);
    const MACHINE: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn world(protocol: &str, ip: &str, src: &str, change: impl Fn(&mut sb::ServiceMonitor)) -> Input {
        let mut db = sb::Database::default();
        db.datapath_binding
            .insert(Uuid::from_u128(7), Arc::new(sb::DatapathBinding { tunnel_key: 7, ..Default::default() }));
        let p = sb::PortBinding {
            logical_port: "lp".into(),
            datapath: Uuid::from_u128(7),
            tunnel_key: 2,
            chassis: Some(ME),
            up: Some(true),
            mac: [Str::from(format!("02:00:00:00:00:09 {ip}"))].into_iter().collect(),
            ..Default::default()
        };
        db.port_binding.insert(Uuid::from_u128(8), Arc::new(p));
        let mut m = sb::ServiceMonitor {
            logical_port: "lp".into(),
            ip: ip.into(),
            port: 80,
            protocol: Some(protocol.into()),
            src_ip: src.into(),
            src_mac: "02:00:00:00:00:01".into(),
            options: [("failure_count".into(), "2".into())].into_iter().collect(),
            ..Default::default()
        };
        change(&mut m);
        db.service_monitor.insert(Uuid::from_u128(9), Arc::new(m));
        Input::new(db, Local { chassis: Some(ME), ..Local::default() })
    }

    fn look(c: &mut Checks, input: &Input) {
        let (id, row) = input.sb.service_monitor.iter().next().unwrap();
        c.observe(*id, target(row, input));
    }

    fn packet(m: &Message) -> Vec<u8> {
        let Message::PacketOut(p) = m else { panic!("{m:?}") };
        p.packet.clone()
    }

    fn answer(packet: Vec<u8>) -> PacketIn {
        let mut p = PacketIn { packet, ..PacketIn::default() };
        p.metadata.set(of::DATAPATH, 7).set(of::INPORT, 2);
        assert_eq!(p.metadata.get(FieldId::Metadata).0, 7);
        p
    }

    fn written(c: &mut Checks, input: &Input) -> Option<String> {
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        c.write(input, &mut plan);
        let out = crate::plan::Attempts::default().choose(plan, Instant::now());
        out.first().map(|o| o["row"]["status"].as_str().unwrap_or_default().to_string())
    }

    /// The answer to a TCP question, with these flags.
    fn tcp_answer(question: &[u8], flags: u8) -> Vec<u8> {
        let h = Headers::parse(question).unwrap();
        let (l4, (src, dst)) = (h.l4.unwrap(), h.ports(question).unwrap());
        let mut body = [dst.to_be_bytes(), src.to_be_bytes()].concat();
        body.extend([0, 0, 0, 1]);
        body.extend(packet::be32(question, l4 + 4).unwrap().wrapping_add(1).to_be_bytes());
        body.extend([5 << 4, flags, 1, 0, 0, 0, 0, 0]);
        let (from, to): (IpAddr, IpAddr) = match h.is_ipv4() {
            true => ("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap()),
            false => ("fd00::9".parse().unwrap(), "fd00::1".parse().unwrap()),
        };
        build::ip_packet(Mac([2, 0, 0, 0, 0, 1]), MACHINE, from, to, ipproto::TCP, 64, &body).unwrap()
    }

    #[test]
    fn a_server_that_accepts_is_online_and_one_that_refuses_twice_is_not() {
        for (ip, src) in [("10.0.0.9", "10.0.0.1"), ("fd00::9", "fd00::1")] {
            let input = world("tcp", ip, src, |_| {});
            let (mut c, mut now) = (Checks::default(), Instant::now());
            look(&mut c, &input);
            let q = packet(&c.due(now)[0]);
            let h = Headers::parse(&q).unwrap();
            assert!(packet::checksum::l4_ok(&q, &h));
            assert_eq!((&q[..6], q[h.l4.unwrap() + 13]), (&MACHINE[..], SYN));
            let reset = c.answered(&answer(tcp_answer(&q, SYN | ACK)), now);
            assert_eq!(packet(&reset[0])[h.l4.unwrap() + 13], RST);
            assert_eq!(written(&mut c, &input).as_deref(), Some("online"));
            assert!(c.due(now).is_empty(), "it rests");
            for expected in ["online", "offline"] {
                now += Duration::from_secs(5);
                let q = packet(&c.due(now)[0]);
                assert!(c.answered(&answer(tcp_answer(&q, RST | ACK)), now).is_empty());
                assert_eq!(written(&mut c, &input).as_deref(), Some(expected));
            }
        }
    }

    #[test]
    fn silence_is_bad_for_tcp_and_good_for_udp() {
        for (protocol, status) in [("tcp", "offline"), ("udp", "online")] {
            let input = world(protocol, "10.0.0.9", "10.0.0.1", |_| {});
            let (mut c, mut now) = (Checks::default(), Instant::now());
            look(&mut c, &input);
            for _ in 0..2 {
                assert_eq!(c.due(now).len(), 1);
                now += Duration::from_secs(3);
                assert!(c.due(now).is_empty());
                now += Duration::from_secs(5);
            }
            assert_eq!(written(&mut c, &input).as_deref(), Some(status));
        }
    }

    #[test]
    fn an_unreachable_udp_port_is_bad() {
        let input = world("udp", "10.0.0.9", "10.0.0.1", |m| m.options = Default::default());
        let (mut c, now) = (Checks::default(), Instant::now());
        look(&mut c, &input);
        let q = packet(&c.due(now)[0]);
        let error = build::icmp_error(&q, MACHINE, "10.0.0.9".parse().unwrap(), 3, 3, 0).unwrap();
        c.answered(&answer(error), now);
        assert_eq!(written(&mut c, &input).as_deref(), Some("offline"));
    }

    #[test]
    fn only_machines_that_are_here_and_up_are_asked() {
        let asked = |input: &Input| {
            let mut c = Checks::default();
            look(&mut c, input);
            c.due(Instant::now()).len()
        };
        assert_eq!(asked(&world("icmp", "fd00::9", "fd00::1", |m| m.r#type = Some("logical-switch-port".into()))), 1);
        assert_eq!(asked(&world("icmp", "10.0.0.9", "10.0.0.1", |_| {})), 0, "not of a load balancer");
        assert_eq!(asked(&world("tcp", "10.0.0.9", "fd00::1", |_| {})), 0, "of two families");
        assert_eq!(asked(&world("tcp", "10.0.0.9", "10.0.0.1", |m| m.remote = true)), 0);
        let mut away = world("tcp", "10.0.0.9", "10.0.0.1", |_| {});
        away.local.chassis = Some(Uuid::from_u128(3));
        assert_eq!(asked(&away), 0);
    }
}
