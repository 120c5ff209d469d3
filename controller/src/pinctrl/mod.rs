//! Packets that flows send to the controller: each names by the first byte of its user data what is wanted.

mod acl_log;
pub mod advertise;
pub mod announce;
pub mod bfd;
pub mod boot;
mod dhcp;
mod dhcpv6;
mod dns;
pub mod events;
#[cfg(test)]
mod flood;
pub mod health;
mod make;
mod monitors;
pub mod multicast;
pub mod next_hops;
pub mod prefix;
pub mod probes;
mod queue;
mod ra;
mod relay;
mod snapshot;
pub mod task;
pub mod trace;

use crate::encode::opcode;
use crate::input::model::Input;
use crate::plan::Plan;
use crate::{encode::of, units::flows};
use openflow_rs::message::{PacketIn, PacketOut};
use openflow_rs::wire::decode_actions;
use openflow_rs::{Action, FieldId, Match, Message, PortNo, Version};
use ovn_schema::{DatapathKey, PortKey, Uuid, Write, sb};
use packet::Headers;
use packet::Mac;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant, SystemTime};
use trace::{Exchange, Trace};

pub use monitors::Monitors;
pub use snapshot::{Snapshot, Told};

/// Packets that came to the controller.
pub static PACKETS: daemon::Counter = daemon::Counter::new("pinctrl_total_pin_pkts");
/// Notices of the loop to the thread that serves packets.
static NOTIFIED: daemon::Counter = daemon::Counter::new("pinctrl_notify_handler_thread");
/// What packets taught and the loop had no room for.
static LOST: daemon::Counter = daemon::Counter::new("pinctrl_drop_report");

/// Event counters of the services.
pub fn counters() -> Vec<&'static daemon::Counter> {
    let mut all: Vec<&'static daemon::Counter> = dns::COUNTERS.to_vec();
    all.extend([&PACKETS, &NOTIFIED, &LOST, &queue::DROPPED]);
    all
}

/// Something that a packet taught, for the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// A neighbour behind a router port.
    Neighbour {
        /// The datapath's key.
        datapath: DatapathKey,
        /// The port's key.
        port: PortKey,
        /// Its IP address.
        ip: IpAddr,
        /// Its Ethernet address.
        mac: Mac,
        /// The packet was for all: other chassis may have seen it.
        everywhere: bool,
    },
    /// An Ethernet address behind a switch port.
    Forwarding {
        /// The datapath's key.
        datapath: DatapathKey,
        /// The port's key.
        port: PortKey,
        /// The address.
        mac: Mac,
    },
    /// A port's machine runs here now (`activation_strategy`); datapath and port by key.
    Activated(DatapathKey, PortKey),
    /// A parent spoke for a virtual port: the keys of datapath, port and parent.
    Spoke(DatapathKey, PortKey, PortKey),
    /// A packet waits for a neighbour: the keys of datapath and port, and its address. It may be known by now: the packet came before
    /// the flow did, and no answer of the neighbour will be told again.
    Waits(DatapathKey, PortKey, IpAddr),
    /// The state of a BFD session, by its row.
    Session(Uuid, bfd_rs::State),
    /// A packet for [`Monitors`].
    Packet(Box<PacketIn>),
}

/// What a packet came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Messages to the switch.
    pub send: Vec<Message>,
    /// What was learned.
    pub report: Option<Report>,
}

/// Packets that wait for their next hop's Ethernet address.
#[derive(Debug, Default)]
struct Waiting {
    packets: Vec<PacketIn>,
    since: Option<Instant>,
}

/// A next hop: the datapath's key, the output port's key, the address.
type NextHop = (DatapathKey, PortKey, IpAddr);

/// Packets kept for one next hop, next hops waited for, and how long.
const MAX_PACKETS: usize = 4;
const MAX_HOPS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(10);

/// The packet-in services' state.
#[derive(Debug, Default)]
pub struct Services {
    waiting: HashMap<NextHop, Waiting>,
    unknown: u64,
    trace: Trace,
}

/// A register of a packet's metadata.
fn register(p: &PacketIn, f: FieldId) -> u128 {
    p.metadata.get(f).0
}

/// By which port a packet came in: the keys of its datapath and of the port.
fn place(p: &PacketIn) -> (DatapathKey, PortKey) {
    (of::datapath_in(&p.metadata), of::port_in(&p.metadata, of::INPORT))
}

/// What the machine that sent a packet is to load.
fn boot_rules<'a>(p: &PacketIn, known: &'a Snapshot) -> Option<&'a boot::Rules> {
    known.boot(of::datapath_in(&p.metadata), packet::mac_at(&p.packet, 6)?)
}

impl Services {
    /// Services that keep their exchanges of DHCP there.
    pub fn new(trace: Trace) -> Services {
        Services { trace, ..Services::default() }
    }

    /// Serves a packet.
    pub fn handle(&mut self, p: PacketIn, known: &Snapshot, now: Instant) -> Outcome {
        let code = match p.userdata.get(..4) {
            Some([0, 0, 0, c]) => *c,
            _ => return self.unknown(&p),
        };
        let data = p.userdata.get(8..).unwrap_or_default().to_vec();
        match code {
            opcode::ARP | opcode::ND_NS => self.resolve(p, &data, known, now),
            opcode::PUT_ARP => learn(&p, IpAddr::V4(Ipv4Addr::from(register(&p, FieldId::Reg0) as u32))),
            opcode::PUT_ND => learn(&p, IpAddr::V6(Ipv6Addr::from(register(&p, FieldId::XxReg0)))),
            opcode::PUT_FDB => forwarding(&p),
            opcode::ACTIVATION_STRATEGY => {
                let (datapath, port) = place(&p);
                report(Report::Activated(datapath, port))
            }
            opcode::BIND_VPORT => {
                let (datapath, parent) = place(&p);
                let port = packet::be32(&data, 0).map(PortKey::from_register);
                port.map_or_else(Outcome::default, |port| report(Report::Spoke(datapath, port, parent)))
            }
            opcode::PUT_DHCP_OPTS => {
                let served = dhcp::reply(&p, &data, boot_rules(&p, known).map(|r| &r.v4));
                result(self.traced(&p, served), p, &data)
            }
            opcode::PUT_DHCPV6_OPTS => {
                let served = dhcpv6::reply(&p, &data, boot_rules(&p, known).map(|r| &r.v6));
                result(self.traced(&p, served), p, &data)
            }
            opcode::PUT_ND_RA_OPTS => result(ra::reply(&p, &data), p, &data),
            opcode::DNS_LOOKUP => {
                let mut out = result(dns::reply(&p, &data, known), p, &data);
                // Whatever became of it: the packet was here, and need not come again.
                for m in &mut out.send {
                    if let Message::Resume(p) = m {
                        p.metadata.set_masked(of::FLAGS, FROM_CONTROLLER, FROM_CONTROLLER);
                    }
                }
                out
            }
            opcode::ICMP | opcode::ICMP4_ERROR | opcode::ICMP6_ERROR => made(&p, make::icmp(&p.packet), &data),
            opcode::TCP_RESET => made(&p, make::tcp_reset(&p.packet, false), &data),
            opcode::SCTP_ABORT => made(&p, make::sctp_abort(&p.packet, false), &data),
            opcode::REJECT => made(&p, make::reject(&p.packet), &data),
            opcode::ND_NA => made(&p, make::neighbour_advertisement(&p.packet, 0x60), &data),
            opcode::ND_NA_ROUTER => made(&p, make::neighbour_advertisement(&p.packet, 0xe0), &data),
            opcode::PUT_ICMP4_INNER_SRC => {
                let mut p = p;
                if let Ok(address) = <[u8; 4]>::try_from(data.as_slice()) {
                    // What quotes nothing stays as it is.
                    let _ = make::set_inner_source(&mut p.packet, address);
                }
                resume(p)
            }
            code if monitors::takes(code) => report(Report::Packet(Box::new(p))),
            opcode::DHCP_RELAY_REQ_CHK => result(relay::request(&p, &data), p, &data),
            opcode::DHCP_RELAY_RESP_CHK => result(relay::response(&p, &data), p, &data),
            opcode::LOG => {
                acl_log::log(&p, &data);
                Outcome::default()
            }
            _ => self.unknown(&p),
        }
    }

    /// The answer to a packet, which is kept for `dhcp/trace`.
    fn traced(&self, p: &PacketIn, served: dhcp::Served) -> Option<PacketIn> {
        let (answer, said) = match served.answer {
            Ok((answer, said)) => (Some(answer), said),
            Err(why) => (None, format!("not answered: {why}")),
        };
        let exchange = Exchange { at: SystemTime::now(), port: place(p), asked: served.asked, said };
        self.trace.add(packet::mac_at(&p.packet, 6).unwrap_or_default(), exchange);
        answer
    }

    fn unknown(&mut self, p: &PacketIn) -> Outcome {
        self.unknown += 1;
        if self.unknown.is_power_of_two() {
            let code = p.userdata.get(3).copied().unwrap_or_default();
            tracing::warn!(target: "pinctrl", "unrecognized packet-in opcode {code} ({} such packets so far)", self.unknown);
        }
        // A packet that waits for an answer goes on without one.
        if p.continuation.is_some() { resume(p.clone()) } else { Outcome::default() }
    }

    /// `arp { … }` and `nd_ns { … }`: asks for the next hop's address, and keeps the packet until it is known.
    fn resolve(&mut self, p: PacketIn, actions: &[u8], known: &Snapshot, now: Instant) -> Outcome {
        if Headers::parse(&p.packet).is_none() {
            return Outcome::default();
        }
        let (hop, request) = if p.userdata.get(3) == Some(&opcode::ARP) {
            let ip = Ipv4Addr::from(register(&p, FieldId::Reg0) as u32);
            (IpAddr::V4(ip), make::arp(&p.packet))
        } else {
            let ip = Ipv6Addr::from(register(&p, FieldId::XxReg0));
            (IpAddr::V6(ip), make::neighbour_solicitation(&p.packet, ip))
        };
        let mut out = made(&p, request, actions);
        let datapath = of::datapath_in(&p.metadata);
        let key = (datapath, known.distributed(datapath, of::port_in(&p.metadata, of::OUTPORT)), hop);
        if p.continuation.is_some() && (self.waiting.len() < MAX_HOPS || self.waiting.contains_key(&key)) {
            let w = self.waiting.entry(key).or_default();
            w.since.get_or_insert(now);
            if w.packets.len() == MAX_PACKETS {
                w.packets.remove(0);
            }
            w.packets.push(p);
            out.report = Some(Report::Waits(key.0, key.1, key.2));
        }
        out
    }

    /// Sends the packets on whose next hop is known now.
    pub fn resolved(&mut self, datapath: DatapathKey, port: PortKey, ip: IpAddr, mac: Mac) -> Vec<Message> {
        let Some(w) = self.waiting.remove(&(datapath, port, ip)) else { return Vec::new() };
        w.packets
            .into_iter()
            .map(|mut p| {
                if let Some(dst) = p.packet.get_mut(..6) {
                    dst.copy_from_slice(&mac[..]);
                }
                Message::Resume(p)
            })
            .collect()
    }

    /// For how many next hops packets wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The next hops that packets wait for.
    pub fn wanted(&self) -> Vec<NextHop> {
        self.waiting.keys().copied().collect()
    }

    /// Drops packets that waited too long.
    pub fn expire(&mut self, now: Instant) {
        self.waiting.retain(|_, w| w.since.is_none_or(|s| now.duration_since(s) < PATIENCE));
    }
}

/// Ports whose machines said that they run here, until the database says so.
#[derive(Debug, Default)]
pub struct Activated(pub BTreeSet<Uuid>);

impl Activated {
    /// A port, by key, whose machine runs here.
    pub fn add(&mut self, input: &Input, datapath: DatapathKey, port: PortKey) {
        let port = input.datapath(datapath).and_then(|dp| input.port_by_key(dp, port));
        self.0.extend(port.map(|(id, _)| id));
    }

    /// Puts into the plan that machines run here. What the database says already is done with.
    pub fn write(&mut self, input: &Input, plan: &mut Plan) {
        let (me, name) = (input.local.chassis, &input.local.chassis_name);
        let waits = |p: &sb::PortBinding| {
            me.is_some_and(|me| p.additional_chassis.contains(&me)) && !flows::is_activated(p, name)
        };
        self.0.retain(|id| input.sb.port_binding.get(id).is_some_and(|p| waits(p)));
        for (id, p) in self.0.iter().filter_map(|id| Some((*id, input.sb.port_binding.get(id)?))) {
            let before = p.options.get(flows::ACTIVATED).filter(|l| !l.is_empty());
            let list = before.map_or_else(|| name.clone(), |l| format!("{l},{name}").into());
            let mut options = p.options.clone();
            options.insert(flows::ACTIVATED.into(), list.clone());
            let part = plan.part(format!("Port_Binding of {}:{}", p.logical_port, flows::ACTIVATED), list);
            part.txn.update_row(id, [sb::PortBinding::options(&options)]);
        }
    }
}

/// `flags.from_ctrl`.
const FROM_CONTROLLER: u128 = of::flag::FROM_CONTROLLER as u128;

/// The packet with an answer in its place, or the packet itself with the result 0. `data` begins with the result's place.
fn result(answer: Option<PacketIn>, mut p: PacketIn, data: &[u8]) -> Outcome {
    if let Some(a) = answer {
        return resume(a);
    }
    // A place that does not parse is nothing that could be written.
    let _ = data.get(..8).and_then(|place| dhcp::write_result(&mut p.metadata, place, false));
    resume(p)
}

fn resume(p: PacketIn) -> Outcome {
    Outcome { send: vec![Message::Resume(p)], report: None }
}

fn report(r: Report) -> Outcome {
    Outcome { send: Vec::new(), report: Some(r) }
}

fn learn(p: &PacketIn, ip: IpAddr) -> Outcome {
    let Some(mac) = packet::mac_at(&p.packet, 6) else { return Outcome::default() };
    let (datapath, port) = place(p);
    let everywhere = packet::mac_at(&p.packet, 0).is_some_and(Mac::is_multicast);
    report(Report::Neighbour { datapath, port, ip, mac, everywhere })
}

fn forwarding(p: &PacketIn) -> Outcome {
    let Some(mac) = packet::mac_at(&p.packet, 6) else { return Outcome::default() };
    let (datapath, port) = place(p);
    report(Report::Forwarding { datapath, port, mac })
}

/// Sends a packet that was made from another through the nested actions, with the other's registers.
fn made(p: &PacketIn, packet: Option<Vec<u8>>, nested: &[u8]) -> Outcome {
    let Some(mut packet) = packet else { return Outcome::default() };
    let nested = match decode_actions(nested, Version::Of15) {
        Ok(a) => a,
        Err(e) => {
            tracing::warn!(target: "pinctrl", "failed to parse actions from userdata: {e}");
            return Outcome::default();
        }
    };
    for a in &nested {
        if let Action::Note(note) = a
            && let Some((field, value)) = crate::encode::noted(note)
        {
            make::set_mtu(&mut packet, field, value);
        }
    }
    let mut actions = restore(&p.metadata);
    actions.extend(nested);
    Outcome { send: vec![Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, packet, actions))], report: None }
}

/// Actions that give a packet another's registers.
fn restore(metadata: &Match) -> Vec<Action> {
    let mut out = Vec::new();
    for f in (0..16).map(of::register).chain([of::DATAPATH]) {
        let (value, mask) = metadata.get(f);
        if mask != 0 {
            out.push(Action::set(f, value));
        }
    }
    out
}

/// What a packet was sent here for, by the name that OVN gives it.
fn opcode_name(userdata: &[u8]) -> String {
    let code = userdata.get(3).copied().unwrap_or(u8::MAX);
    opcode::name(code).map_or_else(|| format!("unrecognized({code})"), str::to_string)
}
