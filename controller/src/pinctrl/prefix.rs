//! Prefix delegation (RFC 8415 section 6.3): a router's port towards the provider asks there for prefixes, one for each of the
//! router's ports that want one, and the prefixes go into these ports' rows, where northd finds them.
//!
//! ```text
//!               ADVERTISE            REPLY                T1               T2
//!   Soliciting ──────────► Requesting ────► Bound ───────────► Renewing ───────► Rebinding
//!     ▲   ▲                    │              ▲                   │ REPLY            │  │
//!     │   └──── no answer ─────┘              └───────────────────┴──────────────────┘  │
//!     └────────────────────────────── the prefix is valid no more ──────────────────────┘
//! ```
//!
//! Who asks for what follows from rows; answers come through the action `handle_dhcpv6_reply`.

use super::bfd::redirect_port;
use crate::encode::of;
use crate::encode::tables;
use crate::input::model::Input;
use crate::plan::Plan;
use crate::units::binding;
use openflow_rs::message::{PacketIn, PacketOut};
use openflow_rs::{Action, Message, PortNo};
use ovn_schema::{DatapathKey, Map, PortKey, Str, Uuid, sb};
use packet::dhcpv6::kind::{ADVERTISE, REBIND, RENEW, REPLY, REQUEST, SOLICIT};
use packet::dhcpv6::option::{CLIENT_ID, ELAPSED_TIME, IA_PD, IA_PREFIX, SERVER_ID, STATUS};
use packet::dhcpv6::{duid_ll, options, put};
use packet::{Headers, Mac, build, ipproto};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

/// All DHCPv6 servers and relays of a link, and the ports (RFC 8415 section 7).
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const CLIENT_PORT: u16 = 546;
const SERVER_PORT: u16 = 547;
/// Where a port's row has its prefix: `IAID:PREFIX/LENGTH`.
pub const DELEGATED: &str = "ipv6_ra_pd_list";
/// Retransmission (RFC 8415 section 7.6): the first and the longest pause. The longest one of a solicitation is shorter than the
/// RFC's hour: a provider that is back after an outage is asked within two minutes.
const SOLICIT_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(120));
const REQUEST_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
const RENEW_PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// Requests without an answer before another server is looked for (REQ_MAX_RC).
const REQUESTS: u32 = 10;
/// The longest server identifier (RFC 8415 section 11.1).
const LONGEST_DUID: usize = 130;
/// A lifetime that never ends (RFC 8415 section 7.7).
const FOREVER: u32 = u32::MAX;

/// A port that is to get a prefix by another port of its router.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requester {
    /// The switch port behind the port towards the provider, by the keys of datapath and port.
    place: (DatapathKey, PortKey),
    /// The port towards the provider, by the same.
    uplink: (DatapathKey, PortKey),
    /// The addresses of the port towards the provider.
    mac: Mac,
    source: Ipv6Addr,
    /// What names the client: the address of the port that gets the prefix.
    client: Mac,
}

/// Whether a port asks for prefixes, and whether one gets them.
pub fn asks(p: &sb::PortBinding) -> bool {
    ovn_schema::options::flag(&p.options, "ipv6_prefix_delegation")
}

/// See [`asks`].
pub fn gets(p: &sb::PortBinding) -> bool {
    ovn_schema::options::flag(&p.options, "ipv6_prefix")
}

/// How a port gets a prefix by another one, if that one is this chassis'. It follows from both, from the asking port's peer and redirect
/// port, and from their datapaths.
pub fn requester(uplink: &sb::PortBinding, inner: &sb::PortBinding, input: &Input) -> Option<Requester> {
    let (_, peer) = input.port(uplink.options.get("peer")?)?;
    let resident = |p: &sb::PortBinding| binding::is_here(p, input, &input.local);
    let redirect = input.port(&redirect_port(&uplink.logical_port)).is_some_and(|(_, r)| resident(r));
    if !(redirect || &*uplink.r#type == "l3gateway" && resident(uplink)) {
        return None;
    }
    let key = |dp: &Uuid| Some(input.sb.datapath_binding.get(dp)?.key());
    let mac = |p: &sb::PortBinding| p.mac.first()?.split_whitespace().next()?.parse::<Mac>().ok();
    let own = mac(uplink)?;
    Some(Requester {
        place: (key(&peer.datapath)?, peer.key()),
        uplink: (key(&uplink.datapath)?, uplink.key()),
        mac: own,
        // "The client MUST use a link-local address assigned to the interface" (RFC 8415 section 18.2.10 and 16).
        source: own.link_local(),
        client: mac(inner)?,
    })
}

/// A prefix that was delegated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    address: Ipv6Addr,
    length: u8,
}

impl Prefix {
    /// The number of the association and the prefix that a row has.
    fn read(text: &str) -> Option<(u32, Prefix)> {
        let (iaid, prefix) = text.split_once(':')?;
        let (address, length) = prefix.split_once('/')?;
        Some((iaid.parse().ok()?, Prefix { address: address.parse().ok()?, length: length.parse().ok()? }))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Soliciting,
    /// The server, and how often it was asked.
    Requesting(Vec<u8>, u32),
    Bound(Lease),
    Renewing(Lease),
    Rebinding(Lease),
}

/// What a server granted, and when it is to be asked again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lease {
    server: Vec<u8>,
    /// None: it lasts.
    renew: Option<Instant>,
    rebind: Option<Instant>,
    end: Option<Instant>,
}

#[derive(Debug)]
struct Client {
    requester: Requester,
    state: State,
    iaid: u32,
    /// The prefix that there is, or that there was.
    prefix: Option<Prefix>,
    /// The transaction under way, since when, when it is repeated and after which pause.
    transaction: [u8; 3],
    since: Instant,
    next: Instant,
    pause: Duration,
}

/// The ports of this chassis that get prefixes.
#[derive(Debug, Default)]
pub struct Prefixes {
    clients: BTreeMap<Uuid, Client>,
    asked: u64,
    random: RandomState,
}

impl Prefixes {
    fn random(&mut self) -> u64 {
        self.asked += 1;
        self.random.hash_one(self.asked)
    }

    /// Takes note of how a port gets a prefix now, and of which one its row has.
    pub fn observe(&mut self, id: Uuid, requester: Option<Requester>, row: Option<&sb::PortBinding>, now: Instant) {
        let Some(requester) = requester else { return drop(self.clients.remove(&id)) };
        if self.clients.get(&id).is_some_and(|c| c.requester == requester) {
            return;
        }
        let known = row.and_then(|p| p.options.get(DELEGATED)).and_then(|t| Prefix::read(t));
        let r = self.random();
        let (iaid, prefix) = known.map_or((r as u32 >> 16, None), |(iaid, p)| (iaid, Some(p)));
        // "The client delays by a random amount of time between 0 and SOL_MAX_DELAY" of a second (RFC 8415 section 18.2.1).
        let next = now + Duration::from_millis(r >> 32 & 0x3ff);
        let (transaction, pause) = ([0; 3], Duration::ZERO);
        let client =
            Client { requester, state: State::Soliciting, iaid, prefix, transaction, since: next, next, pause };
        self.clients.insert(id, client);
    }

    /// What is to be sent now.
    pub fn due(&mut self, now: Instant) -> Vec<Message> {
        let due: Vec<Uuid> = self.clients.iter().filter(|(_, c)| c.next <= now).map(|(id, _)| *id).collect();
        let mut out = Vec::new();
        for id in due {
            let r = self.random();
            if let Some(c) = self.clients.get_mut(&id) {
                out.extend(c.go_on(now, r));
            }
        }
        out
    }

    /// When something is due.
    pub fn next(&self) -> Option<Instant> {
        self.clients.values().map(|c| c.next).min()
    }

    /// Takes an answer of a server. Gives what is to be sent at once.
    pub fn heard(&mut self, p: &PacketIn, now: Instant) -> Vec<Message> {
        let port = super::place(p);
        let Some((to, kind, id, given)) = message(&p.packet) else { return Vec::new() };
        let find = |code| given.iter().find(|(c, _)| *c == code).map(|(_, v)| *v);
        let Some((owner, server)) = find(CLIENT_ID).zip(find(SERVER_ID)) else { return Vec::new() };
        if server.is_empty() || server.len() > LONGEST_DUID {
            return Vec::new();
        }
        let r = self.random();
        let is_for = |c: &&mut Client| {
            let q = &c.requester;
            q.uplink == port && q.source == to && c.transaction == id && duid_ll(&q.client[..]) == owner
        };
        let Some(c) = self.clients.values_mut().find(is_for) else { return Vec::new() };
        let refused = find(STATUS).is_some_and(|s| !s.starts_with(&[0, 0]));
        let granted = Grant::read(&given, c.iaid).filter(|_| !refused);
        c.answered(kind, server, granted, now);
        c.next(now).then(|| c.go_on(now, r)).flatten().into_iter().collect()
    }

    /// Puts prefixes into the plan where the rows have others.
    pub fn write(&self, input: &Input, plan: &mut Plan) {
        for (id, c) in &self.clients {
            let held = matches!(c.state, State::Bound(_) | State::Renewing(_) | State::Rebinding(_));
            let Some(prefix) = c.prefix.filter(|_| held) else { continue };
            let Some(row) = input.sb.port_binding.get(id) else { continue };
            let text: Str = format!("{}:{}/{}", c.iaid, prefix.address, prefix.length).into();
            let have = row.options.get(DELEGATED);
            if have == Some(&text) {
                continue;
            }
            let part = plan.part(format!("Port_Binding of {}:{DELEGATED}", row.logical_port), &text);
            let only = |text: &Str| -> Map<Str, Str> { [(DELEGATED.into(), text.clone())].into_iter().collect() };
            let have = have.map(only).unwrap_or_default();
            part.exchange_pairs(("Port_Binding", *id), "options", &have, &only(&text));
        }
    }
}

/// A prefix with its times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    prefix: Prefix,
    t1: u32,
    t2: u32,
    preferred: u32,
    valid: u32,
}

impl Grant {
    /// What the options grant an association; nothing where the server says that there is nothing.
    fn read(given: &[(u16, &[u8])], iaid: u32) -> Option<Grant> {
        let of = |v: &[u8]| packet::be32(v, 0) == Some(iaid);
        let value = given.iter().find(|(c, v)| *c == IA_PD && of(v)).map(|(_, v)| *v)?;
        let (t1, t2) = (packet::be32(value, 4)?, packet::be32(value, 8)?);
        let inner = options(value.get(12..)?);
        if inner.iter().any(|(c, v)| *c == STATUS && !v.starts_with(&[0, 0])) {
            return None;
        }
        // "If T1 is greater than T2 and both are greater than 0, the client discards the IA_PD" (RFC 8415 section 21.21).
        if t1 > t2 && t2 > 0 {
            return None;
        }
        inner.iter().filter(|(c, _)| *c == IA_PREFIX).find_map(|(_, v)| {
            let (preferred, valid) = (packet::be32(v, 0)?, packet::be32(v, 4)?);
            let (length, address) = (*v.get(8)?, packet::be128(v, 9)?);
            let usable = preferred <= valid && valid > 0 && (1..=128).contains(&length);
            let mask = u128::MAX << (128 - u32::from(length.clamp(1, 128)));
            let prefix = Prefix { address: (address & mask).into(), length };
            usable.then_some(Grant { prefix, t1, t2, preferred, valid })
        })
    }

    fn lease(self, server: &[u8], now: Instant) -> Lease {
        let after = |seconds: u32| (seconds != FOREVER).then(|| now + Duration::from_secs(seconds.into()));
        // "If the client receives a value of 0, the time is at the client's discretion"; it is recommended to take a half and four
        // fifths of the shortest preferred lifetime (RFC 8415 sections 14.2 and 21.21).
        let share = |t: u32, tenths: u64| match t {
            0 if self.preferred == FOREVER => FOREVER,
            0 => (u64::from(self.preferred) * tenths / 10) as u32,
            t => t,
        };
        let (renew, rebind, end) = (after(share(self.t1, 5)), after(share(self.t2, 8)), after(self.valid));
        Lease { server: server.to_vec(), renew, rebind, end }
    }
}

/// A server's message: to whom, its type and transaction, its options.
type Received<'a> = (Ipv6Addr, u8, [u8; 3], Vec<(u16, &'a [u8])>);

fn message(p: &[u8]) -> Option<Received<'_>> {
    let h = Headers::parse(p)?;
    let (_, to) = h.addresses(p)?;
    if !h.is_ipv6() || h.proto != ipproto::UDP || h.ports(p) != Some((SERVER_PORT, CLIENT_PORT)) {
        return None;
    }
    let (head, rest) = p.get(h.payload..h.l3_end)?.split_at_checked(4)?;
    let [kind, a, b, c] = <[u8; 4]>::try_from(head).ok()?;
    Some((to.into(), kind, [a, b, c], options(rest)))
}

impl Client {
    /// Whether something is due.
    fn next(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// Begins an exchange: the first message goes out at once.
    fn begin(&mut self, state: State, now: Instant) {
        (self.state, self.next, self.since, self.pause) = (state, now, now, Duration::ZERO);
    }

    /// Takes over an answer of the exchange under way.
    fn answered(&mut self, kind: u8, server: &[u8], granted: Option<Grant>, now: Instant) {
        match (&self.state, kind, granted) {
            (State::Soliciting, ADVERTISE, Some(g)) => {
                self.prefix = Some(g.prefix);
                self.begin(State::Requesting(server.to_vec(), 0), now);
            }
            (State::Requesting(s, _), REPLY, _) if s != server => {}
            (State::Requesting(..) | State::Renewing(_) | State::Rebinding(_), REPLY, Some(g)) => {
                let (lease, p) = (g.lease(server, now), g.prefix);
                if self.prefix != Some(p) || matches!(self.state, State::Requesting(..)) {
                    tracing::info!(target: "pinctrl", "prefix {}/{} is delegated for {} s (IAID {})", p.address, p.length, g.valid, self.iaid);
                }
                self.prefix = Some(p);
                // Where the prefix lasts for ever there is nothing to do for a year at a time.
                self.next = lease.renew.unwrap_or(now + Duration::from_secs(365 * 86_400));
                self.state = State::Bound(lease);
            }
            // "NoBinding", or nothing for us: from the beginning (RFC 8415 section 18.2.10.1).
            (State::Requesting(..) | State::Renewing(_) | State::Rebinding(_), REPLY, None) => {
                self.begin(State::Soliciting, now);
                self.next = now + SOLICIT_PAUSES.0;
                self.since = self.next;
            }
            _ => {}
        }
    }

    /// Does what the time asks for, with a number at random.
    fn go_on(&mut self, now: Instant, r: u64) -> Option<Message> {
        let past = |t: Option<Instant>| t.is_some_and(|t| now >= t);
        match self.state.clone() {
            State::Bound(l) => self.begin(State::Renewing(l), now),
            State::Renewing(l) if past(l.rebind) => self.begin(State::Rebinding(l), now),
            State::Rebinding(l) | State::Renewing(l) if past(l.end) => {
                tracing::warn!(target: "pinctrl", "the delegated prefix of IAID {} is valid no more: no server answers", self.iaid);
                self.begin(State::Soliciting, now);
            }
            State::Requesting(_, REQUESTS) => self.begin(State::Soliciting, now),
            State::Requesting(server, n) => self.state = State::Requesting(server, n + 1),
            _ => {}
        }
        let (kind, server, (first, longest), limit) = match &self.state {
            State::Soliciting => (SOLICIT, None, SOLICIT_PAUSES, None),
            State::Requesting(s, _) => (REQUEST, Some(s.clone()), REQUEST_PAUSES, None),
            State::Bound(l) | State::Renewing(l) => (RENEW, Some(l.server.clone()), RENEW_PAUSES, l.rebind.or(l.end)),
            State::Rebinding(l) => (REBIND, None, RENEW_PAUSES, l.end),
        };
        if self.pause.is_zero() {
            let [_, transaction @ ..] = (r as u32).to_be_bytes();
            self.transaction = transaction;
        }
        // Doubled, and a tenth more or less (RFC 8415 section 15).
        let doubled = if self.pause.is_zero() { first } else { (self.pause * 2).min(longest) };
        self.pause = doubled;
        let tenth = doubled / 10;
        let at = now + doubled - tenth + tenth * ((r >> 40) as u32 & 0x1f) / 16;
        self.next = limit.map_or(at, |l| at.min(l.max(now)));
        self.message(kind, server.as_deref(), now)
    }

    fn message(&self, kind: u8, server: Option<&[u8]>, now: Instant) -> Option<Message> {
        let q = &self.requester;
        let mut m = vec![kind];
        m.extend(self.transaction);
        put(&mut m, CLIENT_ID, &duid_ll(&q.client[..]));
        if let Some(s) = server {
            put(&mut m, SERVER_ID, s);
        }
        let mut association = [&self.iaid.to_be_bytes()[..], &[0; 8]].concat();
        if let Some(p) = self.prefix {
            // No wish as to times.
            put(&mut association, IA_PREFIX, &[&[0; 8][..], &[p.length], &p.address.octets()].concat());
        }
        put(&mut m, IA_PD, &association);
        let hundredths = now.saturating_duration_since(self.since).as_millis() / 10;
        put(&mut m, ELAPSED_TIME, &u16::try_from(hundredths).unwrap_or(u16::MAX).to_be_bytes());
        let (from, to) = ((q.source.into(), CLIENT_PORT), (SERVERS.into(), SERVER_PORT));
        let packet = build::udp(Mac::of_ipv6_group(SERVERS), q.mac, from, to, 255, &m)?;
        let actions = vec![
            of::set(of::DATAPATH, q.place.0.into()),
            of::set(of::INPORT, q.place.1.into()),
            Action::resubmit(tables::INGRESS),
        ];
        Some(Message::PacketOut(PacketOut::new(PortNo::CONTROLLER, packet, actions)))
    }
}

#[cfg(test)]
mod tests;
