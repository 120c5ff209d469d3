//! A stream of a peer, as its receiver sees it.

use super::VERSION;
use super::codec::{Connection, Record, State};
use std::collections::{BTreeSet, HashMap};

/// Why a stream is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The first record is not HELLO.
    #[error("it does not begin with HELLO: the sender speaks something else")]
    NoHello,
    /// HELLO came twice, or from another chassis than the certificate's.
    #[error("it calls itself {0:?}, and was taken for {1:?}")]
    OtherName(String, String),
    /// A connection's zone has no name.
    #[error("zone {0} of a connection has no name")]
    UnknownZone(u16),
    /// A record that only receivers send.
    #[error("{0} is for senders to read")]
    WrongWay(&'static str),
}

/// What follows from a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// Send this back at once.
    Answer(Record),
    /// A dump begins.
    Begin,
    /// A connection is in a slot of the peer; its zone is this chassis' number.
    Put(u32, Connection),
    /// The connection of a slot has another state.
    State(u32, State),
    /// A slot of the peer is empty.
    Close(u32),
    /// The peer gave up the connection of a slot for the same one of this chassis.
    GaveWay(u32),
    /// The peer learned a flow, an OpenFlow message, and used it last so many milliseconds ago.
    Learn(u32, Vec<u8>),
    /// Send this back when everything before it is in the table.
    Fence(u64),
    /// A dump is complete; the peer counts so many connections. Without a number, some were left out here.
    End(Option<u32>),
}

/// The state of a stream.
#[derive(Debug)]
pub struct Incoming {
    own: String,
    /// The peer's name, by its certificate or its address, if known, then by HELLO.
    peer: Option<String>,
    greeted: bool,
    boot: u64,
    /// This chassis' zones by name.
    zones: HashMap<String, u16>,
    /// The peer's zones by number, with this chassis' number.
    map: HashMap<u16, (String, Option<u16>)>,
    /// Zones of the peer that this chassis does not have, of which it has left out connections.
    missing: BTreeSet<String>,
    /// Some were left out since the last dump began.
    left_out: bool,
}

impl Incoming {
    /// A new stream. `own`: this chassis' name; `peer`: the name in the peer's certificate, if it has one.
    pub fn new(own: &str, peer: Option<&str>, zones: HashMap<String, u16>) -> Incoming {
        let peer = peer.map(str::to_owned);
        let (map, missing) = (HashMap::new(), BTreeSet::new());
        Incoming { own: own.into(), peer, greeted: false, boot: 0, zones, map, missing, left_out: false }
    }

    /// The peer's name.
    pub fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// A number that differs after each start of the peer: another one has forgotten everything.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Zones whose connections are left out, as this chassis does not have them.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.missing.iter().map(String::as_str)
    }

    /// Takes this chassis' zones as they are now. The answer asks for a dump if connections were left out that have a
    /// zone now, or zones have other numbers.
    pub fn set_zones(&mut self, zones: HashMap<String, u16>) -> Option<Record> {
        self.zones = zones;
        let mut again = false;
        for (name, number) in self.map.values_mut() {
            let now = self.zones.get(name).copied();
            again |= now != *number && (number.is_some() || self.missing.contains(name));
            *number = now;
            if now.is_some() {
                self.missing.remove(name);
            }
        }
        again.then_some(Record::Again)
    }

    /// Takes a record.
    ///
    /// # Errors
    /// The stream is to be closed. What came before stays.
    pub fn take(&mut self, r: Record) -> Result<Effect, ProtocolError> {
        if !self.greeted {
            let Record::Hello(_, boot, name) = r else { return Err(ProtocolError::NoHello) };
            if let Some(known) = self.peer.as_ref().filter(|p| **p != name) {
                return Err(ProtocolError::OtherName(name, known.clone()));
            }
            self.peer = Some(name);
            self.boot = boot;
            self.greeted = true;
            return Ok(Effect::Answer(Record::Welcome(VERSION, self.own.clone())));
        }
        let effect = match r {
            Record::Hello(_, _, name) => {
                return Err(ProtocolError::OtherName(name, self.peer.clone().unwrap_or_default()));
            }
            Record::Zone(number, name) => {
                let own = self.zones.get(&name).copied();
                self.map.insert(number, (name, own));
                Effect::Nothing
            }
            Record::Begin => {
                self.left_out = false;
                Effect::Begin
            }
            Record::Put(slot, c) => {
                let (name, own) = self.map.get(&c.zone).ok_or(ProtocolError::UnknownZone(c.zone))?;
                match own {
                    Some(zone) => Effect::Put(slot, Connection { zone: *zone, ..c }),
                    None => {
                        self.missing.insert(name.clone());
                        self.left_out = true;
                        // What the slot had before is gone all the same.
                        Effect::Close(slot)
                    }
                }
            }
            Record::State(slot, s) => Effect::State(slot, s),
            Record::Close(slot) => Effect::Close(slot),
            Record::GaveWay(slot) => Effect::GaveWay(slot),
            Record::Learn(idle, flow) => Effect::Learn(idle, flow),
            Record::Fence(n) => Effect::Fence(n),
            Record::End(n) => Effect::End((!self.left_out).then_some(n)),
            Record::Welcome(..) => return Err(ProtocolError::WrongWay("WELCOME")),
            Record::Again => return Err(ProtocolError::WrongWay("AGAIN")),
            Record::Want(_) => return Err(ProtocolError::WrongWay("WANT")),
        };
        Ok(effect)
    }
}
