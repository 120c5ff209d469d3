//! Sessions of a system over UDP: which session a datagram belongs to, and which datagrams are nobody's
//! (RFC 5881 for one hop, RFC 5883 for several).

use crate::{Config, Packet, PacketError, Session, State, Timer};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The port of control packets over one hop: "BFD Control packets MUST be transmitted in UDP packets with destination
/// port 3784" (RFC 5881 section 4).
pub const SINGLE_HOP_PORT: u16 = 3784;
/// The port over several hops (RFC 5883 section 5).
pub const MULTI_HOP_PORT: u16 = 4784;

/// How far the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// On the same link: the interface's number.
    SingleHop(u32),
    /// Behind routers. Packets with a lower TTL or hop limit than this are discarded (RFC 5082 section 3: 255 less the
    /// number of routers on the way; 0 for any).
    MultiHop(u8),
}

impl Path {
    /// The port that packets go to.
    pub fn port(self) -> u16 {
        match self {
            Path::SingleHop(_) => SINGLE_HOP_PORT,
            Path::MultiHop(_) => MULTI_HOP_PORT,
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

/// A datagram to send. Its TTL or hop limit is 255: "all BFD Control packets for the session MUST be sent with a Time to
/// Live (TTL) or Hop Limit value of 255" where authentication is not in use (RFC 5881 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Between whom.
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
    /// The discriminator is that of a session with somebody else, or at another interface.
    #[error("session {0:#x} is not with {1} here")]
    Elsewhere(u32, IpAddr),
}

/// Why a session cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There can be one only.
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
}

/// All sessions of a system.
#[derive(Debug)]
pub struct Sessions {
    sessions: BTreeMap<u32, Entry>,
    by_ends: BTreeMap<(IpAddr, IpAddr, Option<u32>), u32>,
    next: u32,
}

/// The first source port, and how many there are.
const SOURCE: (u16, u32) = (49152, 16384);

impl Sessions {
    /// None yet. Discriminators begin near `seed`: take another one at each start, so that a peer's packets for a session
    /// before a restart are not taken for one after it.
    pub fn new(seed: u32) -> Sessions {
        Sessions { sessions: BTreeMap::new(), by_ends: BTreeMap::new(), next: seed }
    }

    /// What tells sessions apart before the peer knows our number: "demultiplexed based on the source IP address and the
    /// interface" over one hop (RFC 5881 section 3), by both addresses over several (RFC 5883 section 3).
    fn key(local: IpAddr, remote: IpAddr, path: Path) -> (IpAddr, IpAddr, Option<u32>) {
        match path {
            // Which of our addresses the peer took does not matter on a link.
            Path::SingleHop(interface) => (remote, remote, Some(interface)),
            Path::MultiHop(_) => (local, remote, None),
        }
    }

    /// Opens a session. Gives this side's number for it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, ends: Ends, config: Config, now: Timer) -> Result<u32, OpenError> {
        let key = Sessions::key(ends.local, ends.remote, ends.path);
        if self.by_ends.contains_key(&key) {
            return Err(OpenError::Exists(ends));
        }
        if self.sessions.len() >= SOURCE.1 as usize {
            return Err(OpenError::Full);
        }
        // "My Discriminator: a unique, nonzero discriminator value" (RFC 5880 section 4.1); the source port goes by it, and
        // "SHOULD be unique among all BFD sessions on the system" (RFC 5881 section 4).
        let port = |n: u32| SOURCE.0 + (n % SOURCE.1) as u16;
        loop {
            self.next = self.next.wrapping_add(1);
            let taken = |n| self.sessions.contains_key(&n) || self.sessions.values().any(|e| e.source_port == port(n));
            if self.next != 0 && !taken(self.next) {
                break;
            }
        }
        let number = self.next;
        let session = Session::new(config, number, now);
        self.sessions.insert(number, Entry { ends, source_port: port(number), session });
        self.by_ends.insert(key, number);
        Ok(number)
    }

    /// Ends a session. To have the peer told why, hold it down first ([`Config::admin_down`]).
    pub fn close(&mut self, discriminator: u32) -> Option<Session> {
        let e = self.sessions.remove(&discriminator)?;
        self.by_ends.remove(&Sessions::key(e.ends.local, e.ends.remote, e.ends.path));
        Some(e.session)
    }

    /// Changes what the operator wants of a session.
    pub fn configure(&mut self, discriminator: u32, config: Config, now: Timer) {
        if let Some(e) = self.sessions.get_mut(&discriminator) {
            e.session.configure(config, now);
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
        let single = d.port == SINGLE_HOP_PORT;
        let path = if single { Path::SingleHop(d.interface) } else { Path::MultiHop(0) };
        let key = Sessions::key(d.destination, d.source, path);
        let number = match packet.your_discriminator {
            0 => *self.by_ends.get(&key).ok_or(Discard::Nobody(d.source))?,
            n => n,
        };
        let e = self.sessions.get_mut(&number).ok_or(PacketError::Unknown(number))?;
        if Sessions::key(e.ends.local, e.ends.remote, e.ends.path) != key {
            return Err(Discard::Elsewhere(number, d.source));
        }
        let lowest = match e.ends.path {
            Path::SingleHop(_) => 255,
            Path::MultiHop(lowest) => lowest,
        };
        if d.ttl < lowest {
            return Err(Discard::Ttl(d.ttl));
        }
        let state = e.session.receive(d.payload, now)?;
        Ok(state.map(|state| Change { discriminator: number, state }))
    }

    /// When [`Sessions::poll`] wants to be called next; none where there are no sessions.
    pub fn deadline(&self) -> Option<Timer> {
        self.sessions.values().map(|e| e.session.deadline()).min()
    }

    /// Does what the time asks for: gives packets that are due and sessions that went down.
    pub fn poll(&mut self, now: Timer) -> (Vec<Outgoing>, Vec<Change>) {
        let (mut packets, mut changes) = (Vec::new(), Vec::new());
        for (number, e) in self.sessions.iter_mut().filter(|(_, e)| e.session.deadline() <= now) {
            let (packet, state) = e.session.poll(now);
            packets.extend(packet.map(|packet| Outgoing { ends: e.ends, source_port: e.source_port, packet }));
            changes.extend(state.map(|state| Change { discriminator: *number, state }));
        }
        (packets, changes)
    }
}
