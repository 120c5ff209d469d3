//! BFD with the next hops of routes and policies (`BFD`, ovn-sb(5)): the chassis that has a router's port holds the port's sessions,
//! as the rows say, and writes their states into the rows. Northd takes routes whose session is not up out of use.
//!
//! ```text
//!   BFD row ─► Wanted ─► Sessions (packet thread) ─► Report::Session ─► Found (loop) ─► BFD.status
//! ```
//!
//! Packets come through the action `handle_bfd_msg` and go out through the router's ingress pipeline.

use crate::input::model::Input;
use crate::plan::Plan;
use crate::units::binding;
use crate::{encode::of, encode::tables};
use bfd_rs::{Config, Packet, SINGLE_HOP_PORT, Session, State, Timer};
use openflow_rs::message::{PacketIn, PacketOut};
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::{DatapathKey, PortKey, Str, Uuid, Write, sb};
use packet::{Headers, Mac, build, ipproto};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// TTL and hop limit of all packets, sent and received (RFC 5881 section 5).
const TTL: u8 = 255;

/// A session that this chassis holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The router's port, by the keys of datapath and port.
    port: (DatapathKey, PortKey),
    mac: Mac,
    local: IpAddr,
    remote: IpAddr,
    source_port: u16,
    discriminator: u32,
    /// In milliseconds.
    min_tx: u32,
    min_rx: u32,
    detect_mult: u8,
    /// No route and no policy needs it.
    admin_down: bool,
}

/// The session that a row asks this chassis for; nothing where another chassis has the port. It follows from the port, from its peer,
/// from its redirect port, and from their datapath.
pub fn wanted(row: &sb::Bfd, input: &Input) -> Option<Wanted> {
    let (_, p) = input.port(&row.logical_port)?;
    input.port(p.options.get("peer")?)?;
    let resident = |p: &sb::PortBinding| binding::is_here(p, input, &input.local);
    let redirect = input.port(&redirect_port(&row.logical_port)).is_some_and(|(_, r)| resident(r));
    if !(redirect || &*p.r#type == "l3gateway" && resident(p)) {
        return None;
    }
    let remote: IpAddr = row.dst_ip.parse().ok()?;
    let (mac, local) = p.mac.iter().find_map(|text| source(text, remote))?;
    let datapath = input.sb.datapath_binding.get(&p.datapath)?.key();
    let milliseconds = |n: i64| u32::try_from(n).unwrap_or(0).min(u32::MAX / 1000);
    Some(Wanted {
        port: (datapath, p.key()),
        mac,
        local,
        remote,
        source_port: u16::try_from(row.src_port).ok()?,
        discriminator: u32::try_from(row.disc).ok().filter(|d| *d != 0)?,
        min_tx: milliseconds(row.min_tx),
        min_rx: milliseconds(row.min_rx),
        detect_mult: u8::try_from(row.detect_mult.clamp(1, 255)).ok()?,
        admin_down: &*row.status == "admin_down",
    })
}

/// The name of a distributed port's redirect port.
pub fn redirect_port(port: &str) -> Str {
    format!("cr-{port}").into()
}

/// The addresses of a port from which a next hop is reached: the one of the next hop's network, or else the first of its family. A
/// link-local address is reached from the port's own.
fn source(addresses: &str, remote: IpAddr) -> Option<(Mac, IpAddr)> {
    let mut words = addresses.split_whitespace();
    let mac = words.next()?.parse::<Mac>().ok()?;
    if let IpAddr::V6(ip) = remote
        && ip.is_unicast_link_local()
    {
        return Some((mac, mac.link_local().into()));
    }
    let all = words.filter_map(|w| {
        let (ip, length) = w.split_once('/').unwrap_or((w, "128"));
        Some((ip.parse::<IpAddr>().ok()?, length.parse::<u32>().ok()?))
    });
    let own: Vec<(IpAddr, u32)> = all.filter(|(ip, _)| ip.is_ipv4() == remote.is_ipv4()).collect();
    let near = own.iter().find(|(ip, length)| match (ip, remote) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= (*length).min(32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= *length,
        _ => false,
    });
    near.or(own.first()).map(|(ip, _)| (mac, *ip))
}

impl Wanted {
    fn config(&self) -> Config {
        Config {
            desired_min_tx: self.min_tx * 1000,
            required_min_rx: self.min_rx * 1000,
            detect_mult: self.detect_mult,
            admin_down: self.admin_down,
            ..Config::default()
        }
    }

    /// Whether another one is the same session with other settings.
    fn same_session(&self, other: &Wanted) -> bool {
        let ends = |w: &Wanted| (w.port, w.local, w.remote, w.source_port, w.discriminator);
        ends(self) == ends(other)
    }

    /// How long a session may take to come up before its row is told that it is not, in microseconds. A session that this chassis
    /// takes over, or finds at its start, was up with the peer until now: the route stays while it comes up again.
    fn patience(&self) -> Timer {
        u64::from(self.detect_mult) * u64::from(self.min_tx.max(self.min_rx).max(1000)) * 1000
    }

    fn message(&self, packet: &Packet) -> Option<Message> {
        let (from, to) = ((self.local, self.source_port), (self.remote, SINGLE_HOP_PORT));
        let frame = build::udp(Mac::BROADCAST, self.mac, from, to, TTL, &packet.to_bytes())?;
        let actions = vec![
            of::set(of::DATAPATH, self.port.0.into()),
            of::set(of::INPORT, self.port.1.into()),
            Action::resubmit(tables::INGRESS),
        ];
        Some(Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, frame, actions)))
    }
}

#[derive(Debug)]
struct Entry {
    wanted: Wanted,
    session: Session,
    /// The state that the loop was told.
    told: Option<State>,
    /// Until then nothing but that it is up is told.
    patient_until: Timer,
    /// The peer is to be told once that the session is held down.
    farewell: bool,
}

impl Entry {
    fn new(wanted: Wanted, now: Timer) -> Entry {
        let session = Session::new(wanted.config(), wanted.discriminator, now);
        let patient_until = now + wanted.patience();
        Entry { wanted, session, told: None, patient_until, farewell: false }
    }

    /// What the loop is to be told.
    fn news(&self, now: Timer) -> Option<State> {
        let state = self.session.state();
        let ripe = state == State::Up || self.told.is_some() || now >= self.patient_until;
        (self.told != Some(state) && state != State::AdminDown && ripe).then_some(state)
    }

    /// When there is something to do.
    fn deadline(&self) -> Option<Timer> {
        if self.wanted.admin_down {
            return self.farewell.then_some(0);
        }
        let waits = self.told.is_none() && self.session.state() != State::Up;
        let session = self.session.deadline();
        Some(if waits { session.min(self.patient_until) } else { session })
    }
}

/// The sessions of this chassis.
#[derive(Debug)]
pub struct Sessions {
    entries: BTreeMap<Uuid, Entry>,
    /// By which the clock of sessions counts.
    epoch: Instant,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions { entries: BTreeMap::new(), epoch: Instant::now() }
    }
}

impl Sessions {
    fn timer(&self, now: Instant) -> Timer {
        u64::try_from(now.saturating_duration_since(self.epoch).as_micros()).unwrap_or(Timer::MAX)
    }

    /// Takes over what sessions there are to be.
    pub fn observe(&mut self, all: &BTreeMap<Uuid, Wanted>, now: Instant) {
        let now = self.timer(now);
        self.entries.retain(|id, e| all.get(id).is_some_and(|w| w.same_session(&e.wanted)));
        for (id, w) in all {
            let e = self.entries.entry(*id).or_insert_with(|| Entry::new(w.clone(), now));
            if e.wanted == *w {
                continue;
            }
            if w.admin_down != e.wanted.admin_down {
                // A peer that was never heard waits for nothing.
                e.farewell = w.admin_down && e.session.remote_discriminator() != 0;
                (e.told, e.patient_until) = (None, now + w.patience());
            }
            e.session.configure(w.config(), now);
            e.wanted = w.clone();
        }
    }

    /// Whether a packet is for sessions.
    pub fn takes(p: &PacketIn) -> bool {
        p.userdata.get(3) == Some(&crate::encode::opcode::HANDLE_BFD_MSG)
    }

    /// Takes a packet. Gives what is to be sent at once.
    pub fn heard(&mut self, p: &PacketIn, now: Instant) -> Vec<Message> {
        let port = super::place(p);
        let Some((source, payload)) = control_packet(&p.packet) else {
            tracing::debug!(target: "pinctrl", "BFD action on a packet that is no BFD of one hop, on port {} of datapath {}", port.1, port.0);
            return Vec::new();
        };
        let timer = self.timer(now);
        let number = Packet::parse(payload).map_or(0, |p| p.your_discriminator);
        // "If the Your Discriminator field is nonzero, it MUST be used to select the session" (RFC 5880 section 6.8.6).
        let is_for = |e: &&mut Entry| {
            let w = &e.wanted;
            w.port == port && if number == 0 { w.remote == source } else { w.discriminator == number }
        };
        let Some(e) = self.entries.values_mut().find(is_for) else {
            tracing::debug!(target: "pinctrl", "BFD from {source}: no session {number:#x} on port {} of datapath {}", port.1, port.0);
            return Vec::new();
        };
        match e.session.receive(payload, timer) {
            Ok(state) => e.say(state),
            Err(why) => tracing::debug!(target: "pinctrl", "BFD from {source} is discarded: {why}"),
        }
        self.due(now)
    }

    /// What is to be sent now.
    pub fn due(&mut self, now: Instant) -> Vec<Message> {
        let now = self.timer(now);
        let mut out = Vec::new();
        for e in self.entries.values_mut() {
            if e.wanted.admin_down {
                // The state is told once, and packets cease, as ovn-controller's do.
                if std::mem::take(&mut e.farewell) {
                    out.extend(e.wanted.message(&e.session.says()));
                }
                continue;
            }
            if e.session.deadline() > now {
                continue;
            }
            let (packet, state) = e.session.poll(now);
            e.say(state);
            out.extend(packet.and_then(|p| e.wanted.message(&p)));
        }
        out
    }

    /// When there is something to send, or a peer counts as gone.
    pub fn next(&self) -> Option<Instant> {
        let first = self.entries.values().filter_map(Entry::deadline).min()?;
        Some(self.epoch + Duration::from_micros(first))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// States that the loop does not know. It is told by `tell`, which says whether there was room.
    pub fn report(&mut self, now: Instant, mut tell: impl FnMut(Uuid, State) -> bool) {
        let now = self.timer(now);
        for (id, e) in &mut self.entries {
            if let Some(state) = e.news(now)
                && tell(*id, state)
            {
                e.told = Some(state);
            }
        }
    }
}

impl Entry {
    fn say(&self, changed: Option<State>) {
        if let Some(state) = changed {
            let (name, why) = (state.name(), self.session.diagnostic().text());
            tracing::info!(target: "pinctrl", "BFD with {}: {name} ({why})", self.wanted.remote);
        }
    }
}

/// The sender and the control packet of a frame, if it is BFD over one hop.
fn control_packet(p: &[u8]) -> Option<(IpAddr, &[u8])> {
    let h = Headers::parse(p)?;
    let (from, _) = h.addresses(p)?;
    let (source, ttl) = match h.is_ipv4() {
        true => (IpAddr::V4(Ipv4Addr::from(from as u32)), *p.get(h.l3 + 8)?),
        false => (IpAddr::V6(Ipv6Addr::from(from)), *p.get(h.l3 + 7)?),
    };
    let (l4, (_, to)) = (h.l4?, h.ports(p)?);
    if h.proto != ipproto::UDP || to != SINGLE_HOP_PORT || ttl != TTL {
        return None;
    }
    let length = usize::from(packet::be16(p, l4 + 4)?);
    Some((source, p.get(l4 + 8..(l4 + length).min(h.l3_end))?))
}

/// States of sessions that the packet thread told.
#[derive(Debug, Default)]
pub struct Found {
    states: BTreeMap<Uuid, State>,
}

impl Found {
    /// Takes note of a session's state.
    pub fn told(&mut self, id: Uuid, state: State) {
        self.states.insert(id, state);
    }

    /// Puts states into the plan where the rows say something else. Whether a session is needed at all is northd's to say.
    pub fn write(&mut self, input: &Input, wanted: &BTreeMap<Uuid, Wanted>, plan: &mut Plan) {
        self.states.retain(|id, _| wanted.get(id).is_some_and(|w| !w.admin_down));
        for (id, state) in &self.states {
            let name = state.name();
            let Some(row) = input.sb.bfd.get(id).filter(|r| &*r.status != name) else { continue };
            let object = format!("BFD of {} with {}", row.logical_port, row.dst_ip);
            plan.part(object, name).txn.update_row(*id, [sb::Bfd::status(&name.into())]);
        }
    }
}

#[cfg(test)]
mod tests;
