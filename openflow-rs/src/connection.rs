//! OpenFlow over a byte stream: framing, version negotiation (OpenFlow 1.5 section 6.3.1), transaction ids.

use crate::OfError;
use crate::message::{Header, Message, TooLong, Version};
use crate::wire::DecodeError;
use std::collections::VecDeque;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

/// What ends or disturbs a connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The stream failed.
    #[error("OpenFlow connection: {0}")]
    Io(#[from] std::io::Error),
    /// The peer closed.
    #[error("OpenFlow connection closed by the peer")]
    Closed,
    /// The peer speaks no version that we do.
    #[error(
        "no common OpenFlow version: the peer offers {0:#x}, we speak 1.0 to 1.5; allow one of them on the bridge (protocols)"
    )]
    Version(u32),
    /// The bytes are not OpenFlow.
    #[error("not OpenFlow: {0}")]
    Framing(String),
}

/// A message that arrived, or bytes that could not be decoded, with the header for the error reply.
#[derive(Debug)]
pub struct Received {
    /// Header.
    pub header: Header,
    /// The message, or why it is none.
    pub message: Result<Message, DecodeError>,
    /// The message's bytes, for an error reply.
    pub raw: Vec<u8>,
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver<S> {
    stream: ReadHalf<S>,
    buf: Vec<u8>,
    start: usize,
    /// The version that was agreed on; none until then.
    version: Option<Version>,
}

/// The sending half.
#[derive(Debug)]
pub struct Sender<S> {
    stream: WriteHalf<S>,
    version: Version,
    next_xid: u32,
    queue: VecDeque<u8>,
}

/// Versions that we speak: 1.0 to 1.5.
pub const OUR_VERSIONS: u32 = 0b111_1110;

/// The highest of a set of versions that we speak.
fn highest(versions: u32) -> Option<Version> {
    (1..=6).rev().filter(|v| versions >> v & 1 != 0).find_map(Version::from_u8)
}

/// Versions in words; the wire numbers of `versions` are its bits.
fn versions_text(versions: u32) -> String {
    let list: Vec<String> = (0..32).filter(|v| versions >> v & 1 != 0).map(|v| format!("0x{v:02x}")).collect();
    match list.as_slice() {
        [] => "no versions".into(),
        [one] => format!("version {one}"),
        all => format!("versions {}", all.join(", ")),
    }
}

impl<S: AsyncRead> Receiver<S> {
    async fn frame(&mut self) -> Result<Vec<u8>, ConnectionError> {
        loop {
            let have = self.buf.len() - self.start;
            if let Some(h) = self.buf.get(self.start..).and_then(Header::parse) {
                let len = usize::from(h.length);
                if len < Header::LEN {
                    return Err(ConnectionError::Framing(format!("message length {len}")));
                }
                if have >= len {
                    let out = self.buf.get(self.start..self.start + len).unwrap_or_default().to_vec();
                    self.start += len;
                    return Ok(out);
                }
            }
            if self.start > 0 {
                self.buf.drain(..self.start);
                self.start = 0;
            }
            if self.stream.read_buf(&mut self.buf).await? == 0 {
                return Err(ConnectionError::Closed);
            }
        }
    }

    /// The next message. Cancel-safe. A message that cannot be decoded does not end the connection.
    ///
    /// # Errors
    /// The stream ended or is not OpenFlow.
    pub async fn recv(&mut self) -> Result<Received, ConnectionError> {
        let raw = self.frame().await?;
        let header = Header::parse(&raw).ok_or_else(|| ConnectionError::Framing("short header".into()))?;
        /// Hellos, errors and echoes may be of any version.
        const ANY_VERSION: std::ops::RangeInclusive<u8> = 0..=3;
        let other = |v: &Version| header.version != *v as u8 && !ANY_VERSION.contains(&header.kind);
        if let Some(v) = self.version.filter(other) {
            let text = format!("version {} where {} was agreed on", header.version, v as u8);
            return Ok(Received { header, message: Err(OfError::RequestBadVersion.because(text)), raw });
        }
        Ok(match Message::decode(&raw) {
            Ok((_, m)) => Received { header, message: Ok(m), raw },
            Err(e) => Received { header, message: Err(e), raw },
        })
    }
}

impl<S: AsyncWrite> Sender<S> {
    /// The negotiated version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// A new transaction id, never 0.
    pub fn xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.checked_add(1).unwrap_or(1);
        self.next_xid
    }

    /// Queues a message under a transaction id; [`Sender::flush`] sends it. One that is too long for a message is left out, as
    /// it would break the stream; [`Sender::try_queue`] tells.
    pub fn queue(&mut self, xid: u32, m: &Message) {
        // Whoever sends messages of any size asks with `try_queue`.
        let _ = self.try_queue(xid, m);
    }

    /// As [`Sender::queue`], for messages whose size is not known.
    ///
    /// # Errors
    /// [`TooLong`] where the message cannot be sent.
    pub fn try_queue(&mut self, xid: u32, m: &Message) -> Result<(), TooLong> {
        m.try_encode(self.version, xid)?.into_iter().for_each(|part| self.queue.extend(part));
        Ok(())
    }

    /// Queues a message that is encoded already.
    pub fn queue_octets(&mut self, message: Vec<u8>) {
        self.queue.extend(message);
    }

    /// Bytes queued and not yet sent.
    pub fn backlog(&self) -> usize {
        self.queue.len()
    }

    /// Writes all that is queued. Cancel-safe: what was not written stays queued.
    ///
    /// # Errors
    /// The stream failed.
    pub async fn flush(&mut self) -> Result<(), ConnectionError> {
        while !self.queue.is_empty() {
            let (head, _) = self.queue.as_slices();
            let n = self.stream.write(head).await?;
            if n == 0 {
                return Err(ConnectionError::Closed);
            }
            self.queue.drain(..n);
        }
        self.stream.flush().await?;
        Ok(())
    }

    /// Sends bytes as they are: a message of another connection.
    ///
    /// # Errors
    /// The stream failed.
    pub async fn raw(&mut self, m: &[u8]) -> Result<(), ConnectionError> {
        self.queue.extend(m);
        self.flush().await
    }

    /// Sends a message under a new transaction id, which it returns.
    ///
    /// # Errors
    /// The stream failed.
    pub async fn send(&mut self, m: &Message) -> Result<u32, ConnectionError> {
        let xid = self.xid();
        self.queue(xid, m);
        self.flush().await?;
        Ok(xid)
    }

    /// Answers a message.
    ///
    /// # Errors
    /// The stream failed.
    pub async fn reply(&mut self, xid: u32, m: &Message) -> Result<(), ConnectionError> {
        self.queue(xid, m);
        self.flush().await
    }
}

/// Bytes of an offending message in the error reply, at most: with them it is still a message.
const MOST: usize = 65_000;

/// The error reply to a message that could not be decoded or done.
pub fn error_reply(e: &DecodeError, offending: &[u8]) -> Message {
    let (error_type, code) = e.numbers();
    Message::Error { error_type, code, data: offending.iter().copied().take(MOST).collect() }
}

/// Exchanges hellos and picks the highest common version. Works for both roles.
///
/// # Errors
/// The stream failed, or there is no common version (the peer is told).
pub async fn negotiate<S: AsyncRead + AsyncWrite>(
    stream: S,
    offer: u32,
) -> Result<(Sender<S>, Receiver<S>), ConnectionError> {
    let (rd, mut wr) = tokio::io::split(stream);
    let first = highest(offer).unwrap_or(Version::Of13);
    wr.write_all(&crate::message::encode::hello(first, offer, 1)).await?;
    let mut rx = Receiver { stream: rd, buf: Vec::with_capacity(16 * 1024), start: 0, version: None };
    let hello = rx.recv().await?;
    let theirs = match hello.message {
        Ok(Message::Hello(Some(bitmap))) => bitmap,
        Ok(Message::Hello(None)) => (0..=hello.header.version.min(31)).fold(0, |b, v| b | 1 << v),
        _ => return Err(ConnectionError::Framing("the first message is not a hello".into())),
    };
    let common = theirs & offer & OUR_VERSIONS;
    let Some(version) = highest(common) else {
        let (ours, yours) = (versions_text(offer), versions_text(theirs));
        let data = format!("We support {ours}, you support {yours}, no common versions.").into_bytes();
        // OFPET_HELLO_FAILED, OFPHFC_INCOMPATIBLE, in a version that the peer reads.
        let m = Message::Error { error_type: 0, code: 0, data };
        wr.write_all(&m.encode(highest(theirs).unwrap_or(first), hello.header.xid)).await?;
        return Err(ConnectionError::Version(theirs));
    };
    rx.version = Some(version);
    Ok((Sender { stream: wr, version, next_xid: 1, queue: VecDeque::new() }, rx))
}
