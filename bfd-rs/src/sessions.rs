//! Sessions of a system over UDP: which session a datagram belongs to, and which datagrams are nobody's
//! (RFC 5881 for one hop, RFC 5883 for several).

use crate::{Config, Packet, PacketError, Session, State, Timer, Timers};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

/// The port of control packets over one hop: "BFD Control packets MUST be transmitted in UDP packets with destination
/// port 3784" (RFC 5881 section 4).
pub const SINGLE_HOP_PORT: u16 = 3784;
/// The port over several hops: "the UDP destination port MUST have a value of 4784" (RFC 5883 section 5).
pub const MULTI_HOP_PORT: u16 = 4784;

/// How far the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// On the same link: the interface's number.
    SingleHop(u32),
    /// At the other end of a link or tunnel that has two ends only: the interface's number. Which address the peer sends from
    /// does not matter: "On a point-to-point link, the source address of a BFD Control packet MUST NOT be used to identify
    /// the session. This means that the initial BFD packet MUST be accepted with any source address" (RFC 5881 section 6).
    PointToPoint(u32),
    /// Behind routers. Packets with a lower TTL or hop limit than this are discarded (RFC 5082 section 3: 255 less the
    /// number of routers on the way; 0 for any).
    MultiHop(u8),
}

impl Path {
    /// The port that packets go to.
    pub fn port(self) -> u16 {
        match self {
            Path::SingleHop(_) | Path::PointToPoint(_) => SINGLE_HOP_PORT,
            Path::MultiHop(_) => MULTI_HOP_PORT,
        }
    }

    /// The interface of a single hop.
    fn interface(self) -> Option<u32> {
        match self {
            Path::SingleHop(interface) | Path::PointToPoint(interface) => Some(interface),
            Path::MultiHop(_) => None,
        }
    }
}

/// The two ends of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ends {
    /// This side's address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// How far it is.
    pub path: Path,
}

/// A datagram that came in on one of the ports.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub source: IpAddr,
    /// Whom it was sent to.
    pub destination: IpAddr,
    /// The port that it was sent to.
    pub port: u16,
    /// The number of the interface that it came in on.
    pub interface: u32,
    /// TTL or hop limit, as received.
    pub ttl: u8,
    /// The control packet.
    pub payload: &'a [u8],
}

/// A datagram to send, on the interface of a single hop: "Implementations MUST ensure that all BFD Control packets are
/// transmitted over the one-hop path being protected by BFD" (RFC 5881 section 6). Its TTL or hop limit is 255: "all BFD Control packets for the session MUST be sent with a Time to
/// Live (TTL) or Hop Limit value of 255" where authentication is not in use (RFC 5881 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Between whom, as opened: "If the received source address changes, the local system MUST NOT use that address as the
    /// destination in outgoing BFD Control packets; rather, it MUST continue to use the address configured at session
    /// creation" (RFC 5881 section 6).
    pub ends: Ends,
    /// "The source port MUST be in the range 49152 through 65535. The same UDP source port number MUST be used for all
    /// BFD Control packets associated with a particular session" (RFC 5881 section 4).
    pub source_port: u16,
    /// The control packet.
    pub packet: Packet,
}

/// A session that came up or went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// This side's number for the session.
    pub discriminator: u32,
    /// Its new state.
    pub state: State,
}

/// Why a datagram is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Discard {
    /// The packet itself is wrong.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// "All received BFD Control packets that are demultiplexed to the session MUST be discarded if the received TTL or Hop
    /// Limit is not equal to 255" (RFC 5881 section 5); over several hops, if it is less than is allowed.
    #[error("TTL {0} is lower than the session allows")]
    Ttl(u8),
    /// "If the Your Discriminator field is zero, the session MUST be selected based on some combination of other fields
    /// ... If a matching session is not found, a new session MAY be created, or the packet MAY be discarded"
    /// (RFC 5880 section 6.8.6): it is.
    #[error("no session with {0}")]
    Nobody(IpAddr),
    /// The discriminator is that of a session on another path: over one hop at another interface, or not over as many.
    #[error("session {0:#x} is not with {1} here")]
    Elsewhere(u32, IpAddr),
}

/// Why a session cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// "If multiple control protocols wish to establish BFD sessions with the same remote system for the same data protocol,
    /// all MUST share a single BFD session" (RFC 5882 section 4.4); and "Each BFD session between a pair of systems MUST traverse
    /// a separate network-layer path" (RFC 5881 section 2).
    #[error("there is a session between {} and {} already", .0.local, .0.remote)]
    Exists(Ends),
    /// Source ports tell sessions apart.
    #[error("all 16,384 source ports are taken by sessions")]
    Full,
}

#[derive(Debug)]
struct Entry {
    ends: Ends,
    source_port: u16,
    session: Session,
    /// It is closed, and goes then.
    until: Option<Timer>,
}

/// What tells sessions apart before the peer knows our number.
type Key = (IpAddr, IpAddr, Option<u32>);

/// All sessions of a system.
#[derive(Debug)]
pub struct Sessions {
    sessions: BTreeMap<u32, Entry>,
    by_ends: BTreeMap<Key, u32>,
    /// Source ports that sessions have.
    ports: HashSet<u16>,
    timers: Timers<u32>,
    next: u32,
}

/// The first source port, and how many there are.
const SOURCE: (u16, u32) = (49152, 16384);

impl Sessions {
    /// None yet. Discriminators begin near `seed`: take another one at each start, so that a peer's packets for a session
    /// before a restart are not taken for one after it.
    pub fn new(seed: u32) -> Sessions {
        let (sessions, by_ends) = Default::default();
        Sessions { sessions, by_ends, ports: HashSet::new(), timers: Timers::default(), next: seed }
    }

    /// What tells sessions apart before the peer knows our number: over one hop "any BFD packet from the remote machine with a
    /// zero value of Your Discriminator MUST be associated with the session bound to the remote system, interface, and
    /// protocol" (RFC 5881 section 3), over several "based on the source/destination address pair" (RFC 5883 section 4.1).
    fn key(local: IpAddr, remote: IpAddr, path: Path) -> Key {
        let any = if remote.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        match path {
            // Which of our addresses the peer took does not matter on a link.
            Path::SingleHop(interface) => (any, remote, Some(interface)),
            Path::PointToPoint(interface) => (any, any, Some(interface)),
            Path::MultiHop(_) => (local, remote, None),
        }
    }

    /// Opens a session. Gives this side's number for it. One over several hops has congestion control (RFC 5880 section 7).
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, ends: Ends, config: Config, now: Timer) -> Result<u32, OpenError> {
        let key = Sessions::key(ends.local, ends.remote, ends.path);
        let config = on_path(config, ends.path);
        if let Some(number) = self.by_ends.get(&key).copied() {
            // One that was just closed goes on.
            let Some(e) = self.sessions.get_mut(&number).filter(|e| e.until.is_some()) else {
                return Err(OpenError::Exists(ends));
            };
            e.session.configure(config, now);
            (e.ends, e.until) = (ends, None);
            self.timers.set(number, e.session.deadline());
            return Ok(number);
        }
        if self.sessions.len() >= SOURCE.1 as usize {
            return Err(OpenError::Full);
        }
        // "My Discriminator: a unique, nonzero discriminator value" (RFC 5880 section 4.1); the source port goes by it, and
        // "SHOULD be unique among all BFD sessions on the system" (RFC 5881 section 4).
        let port = |n: u32| SOURCE.0 + (n % SOURCE.1) as u16;
        loop {
            self.next = self.next.wrapping_add(1);
            let taken = |n| self.sessions.contains_key(&n) || self.ports.contains(&port(n));
            if self.next != 0 && !taken(self.next) {
                break;
            }
        }
        let number = self.next;
        let session = Session::new(config, number, now);
        self.timers.set(number, session.deadline());
        self.ports.insert(port(number));
        self.sessions.insert(number, Entry { ends, source_port: port(number), session, until: None });
        self.by_ends.insert(key, number);
        Ok(number)
    }

    /// Ends a session. A peer that was heard is told so: the session is held down, and goes a Detection Time later. "Once
    /// session state is created, and at least one BFD Control packet is received from the remote end, it MUST be preserved for at
    /// least one Detection Time ... subsequent to the receipt of the last BFD Control packet" (RFC 5880 section 6.8.1), and "the
    /// system on which BFD is being deconfigured SHOULD put the session into AdminDown state and maintain this state for a
    /// Detection Time" (RFC 5882 section 8).
    pub fn close(&mut self, discriminator: u32, now: Timer) {
        let Some(e) = self.sessions.get_mut(&discriminator).filter(|e| e.until.is_none()) else { return };
        if e.session.remote_discriminator() == 0 {
            self.remove(discriminator);
            return;
        }
        // Packets are to be sent for as long as the peer takes to notice silence, too (RFC 5880 section 6.8.16).
        let config = e.session.config();
        let theirs = u64::from(config.detect_mult) * u64::from(e.session.tx_interval());
        e.until = Some(now + e.session.detection_time().max(theirs));
        e.session.configure(Config { admin_down: true, ..config }, now);
        self.timers.set(discriminator, e.session.deadline());
    }

    fn remove(&mut self, discriminator: u32) {
        if let Some(e) = self.sessions.remove(&discriminator) {
            self.by_ends.remove(&Sessions::key(e.ends.local, e.ends.remote, e.ends.path));
            self.ports.remove(&e.source_port);
            self.timers.remove(discriminator);
        }
    }

    /// Changes what the operator wants of a session.
    pub fn configure(&mut self, discriminator: u32, config: Config, now: Timer) {
        if let Some(e) = self.sessions.get_mut(&discriminator).filter(|e| e.until.is_none()) {
            e.session.configure(on_path(config, e.ends.path), now);
            self.timers.set(discriminator, e.session.deadline());
        }
    }

    /// A session by its number.
    pub fn get(&self, discriminator: u32) -> Option<&Session> {
        self.sessions.get(&discriminator).map(|e| &e.session)
    }

    /// All sessions: number, ends, session.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Ends, &Session)> {
        self.sessions.iter().map(|(n, e)| (*n, &e.ends, &e.session))
    }

    /// Takes a datagram. Gives the session's new state where it changed.
    ///
    /// # Errors
    /// [`Discard`]: it was discarded, and changed nothing.
    pub fn receive(&mut self, d: &Datagram<'_>, now: Timer) -> Result<Option<Change>, Discard> {
        let packet = Packet::parse(d.payload)?;
        let path = if d.port == SINGLE_HOP_PORT { Path::SingleHop(d.interface) } else { Path::MultiHop(0) };
        // "If the Your Discriminator field is nonzero, it MUST be used to select the session" (RFC 5880 section 6.8.6), "solely by
        // the Your Discriminator field (as is always the case)" (RFC 5881 section 6): whoever sent it.
        let number = match packet.your_discriminator {
            0 => self.first(d, path).ok_or(Discard::Nobody(d.source))?,
            n => n,
        };
        let e = self.sessions.get_mut(&number).ok_or(PacketError::Unknown(number))?;
        if e.ends.path.interface() != path.interface() || e.ends.remote.is_ipv4() != d.source.is_ipv4() {
            return Err(Discard::Elsewhere(number, d.source));
        }
        let lowest = match e.ends.path {
            Path::SingleHop(_) | Path::PointToPoint(_) => 255,
            Path::MultiHop(lowest) => lowest,
        };
        if d.ttl < lowest {
            return Err(Discard::Ttl(d.ttl));
        }
        let state = e.session.receive(d.payload, now)?;
        self.timers.set(number, e.session.deadline());
        Ok(state.map(|state| Change { discriminator: number, state }))
    }

    /// Whose the first packet of a session is.
    fn first(&self, d: &Datagram<'_>, path: Path) -> Option<u32> {
        let key = |path| self.by_ends.get(&Sessions::key(d.destination, d.source, path)).copied();
        key(path).or_else(|| key(Path::PointToPoint(path.interface()?)))
    }

    /// When [`Sessions::poll`] wants to be called next; none where there are no sessions.
    pub fn deadline(&self) -> Option<Timer> {
        self.timers.next()
    }

    /// Does what the time asks for: gives packets that are due and sessions that went down.
    pub fn poll(&mut self, now: Timer) -> (Vec<Outgoing>, Vec<Change>) {
        let (mut packets, mut changes) = (Vec::new(), Vec::new());
        // Each once: an answer to a poll and a packet that is due are two packets, and two calls.
        let mut due: Vec<u32> = std::iter::from_fn(|| self.timers.pop(now)).collect();
        due.sort_unstable();
        for number in due {
            let Some(e) = self.sessions.get_mut(&number) else { continue };
            let (packet, state) = e.session.poll(now);
            packets.extend(packet.map(|packet| Outgoing { ends: e.ends, source_port: e.source_port, packet }));
            changes.extend(state.map(|state| Change { discriminator: number, state }));
            // The peer may go on sending: it, too, was heard until now.
            if e.until.is_some_and(|until| now >= until) {
                self.remove(number);
            } else {
                self.timers.set(number, e.session.deadline());
            }
        }
        (packets, changes)
    }
}

/// What the path asks of a session.
fn on_path(config: Config, path: Path) -> Config {
    Config { congestion_control: config.congestion_control || matches!(path, Path::MultiHop(_)), ..config }
}
