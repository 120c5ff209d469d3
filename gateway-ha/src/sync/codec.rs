//! Records as bytes: one of kind, two of length (little endian, without these three), then the fields in the order in
//! which they are listed here, little endian.

/// What a packet's direction is known by. ICMP has its id in both ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Tuple {
    /// Source; IPv4 in the low 32 bits.
    pub src: u128,
    /// Destination.
    pub dst: u128,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// ICMP type.
    pub icmp_type: u8,
    /// ICMP code.
    pub icmp_code: u8,
}

/// What changes in a connection's life. The numbers are those of the tables in docs/ha.md.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct State {
    /// TCP state of the originator and of the other end.
    pub ends: [u8; 2],
    /// Which timeout holds.
    pub phase: u8,
    /// A reply was seen.
    pub replied: bool,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
}

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Connection {
    /// The sender's number of its zone.
    pub zone: u16,
    /// IPv6, else IPv4.
    pub v6: bool,
    /// IP protocol.
    pub proto: u8,
    /// First packet's tuple, before translation.
    pub original: Tuple,
    /// The tuple of replies, before they are translated back.
    pub reply: Tuple,
    /// 0: nobody's address is translated, 1: the originator's, 2: the other end's.
    pub translates: u8,
    /// It was the receiver's until a packet of it came to the sender.
    pub was_receivers: bool,
    /// The sender has it as its owner was lost, and has seen no packet of it.
    pub orphan: bool,
    /// How long ago its last packet came, in milliseconds.
    pub idle: u32,
    /// How long until it expires, in milliseconds; in a file only.
    pub left: u64,
    /// State, mark and label.
    pub state: State,
}

/// A record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The first of a sender: version, a number that differs after each start of the sender, and the chassis' name.
    Hello(u16, u64, String),
    /// The first of a receiver, the same.
    Welcome(u16, String),
    /// A zone's number at the sender, and its name.
    Zone(u16, String),
    /// A dump begins.
    Begin,
    /// This connection is in this slot; what was there before is gone.
    Put(u32, Connection),
    /// The connection of this slot has another state.
    State(u32, State),
    /// This slot is empty.
    Close(u32),
    /// The receiver sends it back when all before it is in its table.
    Fence(u64),
    /// A dump is complete; the sender has told of so many connections that are still there.
    End(u32),
    /// The receiver wants a dump.
    Again,
    /// A flow that the sender's flows learned, such as keeps a client at its backend: how long ago it was used, in
    /// milliseconds, and the flow as an OpenFlow message (flow-mod). [`FLOW`] bytes at most.
    Learn(u32, Vec<u8>),
    /// The receiver wants what is in this slot of the sender: it has refused it before.
    Want(u32),
    /// The sender has given up the connection of this slot, as the receiver has the same one. A receiver that has given it
    /// up in turn takes it back. CLOSE follows, for receivers that do not know this.
    GaveWay(u32),
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const ZONE: u8 = 3;
const BEGIN: u8 = 4;
const PUT: u8 = 5;
const STATE: u8 = 6;
const CLOSE: u8 = 7;
const FENCE: u8 = 8;
const END: u8 = 9;
const AGAIN: u8 = 10;
const WANT: u8 = 11;
const LEARN: u8 = 12;
const GAVE_WAY: u8 = 13;

/// The longest flow of a LEARN, in bytes.
pub const FLOW: usize = 32 * 1024;

/// The longest name of a chassis or a zone, in bytes; longer ones are cut.
const NAME: usize = 1024;

fn name(text: &str) -> &[u8] {
    let end = (0..=text.len().min(NAME)).rev().find(|n| text.is_char_boundary(*n)).unwrap_or(0);
    text.as_bytes().get(..end).unwrap_or_default()
}

/// Bits of the byte of flags in PUT.
const V6: u8 = 1;
const REPLIED: u8 = 2;
const WAS_RECEIVERS: u8 = 4;
const ORPHAN: u8 = 8;

impl Record {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([self.kind(), 0, 0]);
        match self {
            Record::Hello(version, boot, text) => {
                out.extend(version.to_le_bytes());
                out.extend(boot.to_le_bytes());
                out.extend(name(text));
            }
            Record::Welcome(version, text) => {
                out.extend(version.to_le_bytes());
                out.extend(name(text));
            }
            Record::Zone(number, text) => {
                out.extend(number.to_le_bytes());
                out.extend(name(text));
            }
            Record::Begin | Record::Again => {}
            Record::Put(slot, c) => {
                out.extend(slot.to_le_bytes());
                c.encode(out);
            }
            Record::State(slot, s) => {
                out.extend(slot.to_le_bytes());
                out.push(u8::from(s.replied));
                s.encode(out);
            }
            Record::Close(n) | Record::End(n) | Record::Want(n) | Record::GaveWay(n) => out.extend(n.to_le_bytes()),
            Record::Fence(n) => out.extend(n.to_le_bytes()),
            Record::Learn(idle, flow) => {
                out.extend(idle.to_le_bytes());
                out.extend(flow.iter().take(FLOW));
            }
        }
        let length = u16::try_from(out.len() - start - 3).unwrap_or(u16::MAX);
        if let Some(place) = out.get_mut(start + 1..start + 3) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Record::Hello(..) => HELLO,
            Record::Welcome(..) => WELCOME,
            Record::Zone(..) => ZONE,
            Record::Begin => BEGIN,
            Record::Put(..) => PUT,
            Record::State(..) => STATE,
            Record::Close(_) => CLOSE,
            Record::Fence(_) => FENCE,
            Record::End(_) => END,
            Record::Again => AGAIN,
            Record::Want(_) => WANT,
            Record::Learn(..) => LEARN,
            Record::GaveWay(_) => GAVE_WAY,
        }
    }

    /// Reads the fields of a record; `Ok(None)`: its kind is not known.
    fn decode(kind: u8, bytes: &[u8]) -> Result<Option<Record>, Malformed> {
        let mut r = Reader(bytes);
        let record = match kind {
            HELLO => Record::Hello(r.u16()?, r.u64()?, r.text()?),
            WELCOME => Record::Welcome(r.u16()?, r.text()?),
            ZONE => Record::Zone(r.u16()?, r.text()?),
            BEGIN => Record::Begin,
            PUT => Record::Put(r.u32()?, Connection::decode(&mut r)?),
            STATE => {
                let (slot, flags) = (r.u32()?, r.u8()?);
                Record::State(slot, State::decode(&mut r, flags & 1 != 0)?)
            }
            CLOSE => Record::Close(r.u32()?),
            FENCE => Record::Fence(r.u64()?),
            END => Record::End(r.u32()?),
            AGAIN => Record::Again,
            WANT => Record::Want(r.u32()?),
            GAVE_WAY => Record::GaveWay(r.u32()?),
            LEARN => Record::Learn(r.u32()?, std::mem::take(&mut r.0).to_vec()),
            _ => return Ok(None),
        };
        Ok(Some(record))
    }
}

impl State {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend([self.ends[0], self.ends[1], self.phase]);
        out.extend(self.mark.to_le_bytes());
        out.extend(self.label.to_le_bytes());
    }

    fn decode(r: &mut Reader<'_>, replied: bool) -> Result<State, Malformed> {
        let (ends, phase) = ([r.u8()?, r.u8()?], r.u8()?);
        Ok(State { ends, phase, replied, mark: r.u32()?, label: r.u128()? })
    }
}

impl Connection {
    fn encode(&self, out: &mut Vec<u8>) {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        out.extend(self.zone.to_le_bytes());
        let state = bit(self.v6, V6) | bit(self.state.replied, REPLIED);
        out.push(state | bit(self.was_receivers, WAS_RECEIVERS) | bit(self.orphan, ORPHAN));
        out.extend([self.proto, self.translates]);
        for t in [&self.original, &self.reply] {
            for a in [t.src, t.dst] {
                if self.v6 {
                    out.extend(a.to_le_bytes());
                } else {
                    out.extend((a as u32).to_le_bytes());
                }
            }
            out.extend(t.sport.to_le_bytes());
            out.extend(t.dport.to_le_bytes());
            out.extend([t.icmp_type, t.icmp_code]);
        }
        out.extend(self.idle.to_le_bytes());
        self.state.encode(out);
        out.extend(self.left.to_le_bytes());
    }

    fn decode(r: &mut Reader<'_>) -> Result<Connection, Malformed> {
        let (zone, flags, proto, translates) = (r.u16()?, r.u8()?, r.u8()?, r.u8()?);
        let v6 = flags & V6 != 0;
        let mut tuple = || {
            let mut address = || if v6 { r.u128() } else { r.u32().map(u128::from) };
            let (src, dst) = (address()?, address()?);
            Ok(Tuple { src, dst, sport: r.u16()?, dport: r.u16()?, icmp_type: r.u8()?, icmp_code: r.u8()? })
        };
        let (original, reply) = (tuple()?, tuple()?);
        let idle = r.u32()?;
        let state = State::decode(r, flags & REPLIED != 0)?;
        let (was_receivers, orphan) = (flags & WAS_RECEIVERS != 0, flags & ORPHAN != 0);
        Ok(Connection {
            zone,
            v6,
            proto,
            original,
            reply,
            translates,
            was_receivers,
            orphan,
            idle,
            left: r.u64()?,
            state,
        })
    }
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record is shorter than its fields, or a name is longer than {NAME} bytes or not UTF-8")]
pub struct Malformed;

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.take().map(|[n]| n)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Result<u128, Malformed> {
        self.take().map(u128::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.len() > NAME {
            return Err(Malformed);
        }
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed)
    }
}

/// Cuts a stream of bytes into records.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    at: usize,
}

impl Decoder {
    /// Takes further bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.at));
        self.bytes.extend(bytes);
    }

    /// The next record that is there in full. Records of unknown kinds are skipped.
    ///
    /// # Errors
    /// The stream holds something that is no record; what follows cannot be read either.
    pub fn record(&mut self) -> Result<Option<Record>, Malformed> {
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let Some(([kind, low, high], rest)) = rest.split_first_chunk() else { return Ok(None) };
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let Some(fields) = rest.get(..length) else { return Ok(None) };
            let record = Record::decode(*kind, fields)?;
            self.at += 3 + length;
            if record.is_some() {
                return Ok(record);
            }
        }
    }
}
