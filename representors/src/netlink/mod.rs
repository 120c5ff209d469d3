//! Messages of netlink (RFC 3549), as far as the inventory needs them: no I/O.

pub mod devlink;
pub mod link;

use std::fmt;

/// The type of a message that ends an answer.
pub const DONE: u16 = 3;
/// The type of a message that says how a request went.
pub const ERROR: u16 = 2;
/// Length of a message's header.
pub const HEADER: usize = 16;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// The upper two bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;

/// A message that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("netlink: {0}")]
pub struct Malformed(pub &'static str);

/// A message: its type, and what is behind the header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The type.
    pub kind: u16,
    /// The number of the request that it answers.
    pub sequence: u32,
    /// The rest.
    pub body: &'a [u8],
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message of type {}, {} octets", self.kind, self.body.len())
    }
}

pub(crate) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

const fn aligned(n: usize) -> usize {
    n.next_multiple_of(4)
}

/// The messages of a datagram.
///
/// # Errors
/// Where one is longer than the datagram, or shorter than its header.
pub fn messages(mut b: &[u8]) -> Result<Vec<Message<'_>>, Malformed> {
    let mut out = Vec::new();
    while b.len() >= HEADER {
        let length = u32_at(b, 0).unwrap_or(0) as usize;
        let body = b.get(HEADER..length).ok_or(Malformed("a message is longer than its datagram, or too short"))?;
        let (kind, sequence) = (u16_at(b, 4).unwrap_or(0), u32_at(b, 8).unwrap_or(0));
        out.push(Message { kind, sequence, body });
        b = b.get(aligned(length)..).unwrap_or_default();
    }
    Ok(out)
}

/// The attributes of a message or of an attribute: type and value.
///
/// # Errors
/// Where one is longer than what it is in, or shorter than its header.
pub fn attributes(mut b: &[u8]) -> Result<Vec<(u16, &[u8])>, Malformed> {
    let mut out = Vec::new();
    while b.len() >= 4 {
        let length = usize::from(u16_at(b, 0).unwrap_or(0));
        let value = b.get(4..length).ok_or(Malformed("an attribute is longer than its message, or too short"))?;
        out.push((u16_at(b, 2).unwrap_or(0) & TYPE_MASK, value));
        b = b.get(aligned(length)..).unwrap_or_default();
    }
    Ok(out)
}

/// A text, which ends with 0.
pub(crate) fn text(b: &[u8]) -> String {
    let end = b.iter().position(|c| *c == 0).unwrap_or(b.len());
    String::from_utf8_lossy(b.get(..end).unwrap_or_default()).into_owned()
}

/// Puts an attribute behind others.
pub(crate) fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((value.len() as u16 + 4).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(aligned(out.len()), 0);
}

/// A request. Of a dump the answer ends with [`DONE`], of another with [`ERROR`].
pub(crate) fn request(kind: u16, dump: bool, sequence: u32, body: &[u8]) -> Vec<u8> {
    let flags = REQUEST | if dump { DUMP } else { ACK };
    let mut out = Vec::with_capacity(HEADER + body.len());
    out.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    out.extend(0u32.to_ne_bytes());
    out.extend(body);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_cut_off_is_said() {
        let mut b = request(20, false, 7, &[1, 2, 3, 4]);
        assert_eq!(messages(&b).unwrap(), [Message { kind: 20, sequence: 7, body: &[1, 2, 3, 4] }]);
        b.truncate(18);
        assert!(messages(&b).is_err());
        b[0] = 3;
        assert!(messages(&b).is_err(), "shorter than its header");
        let mut a = Vec::new();
        put(&mut a, 5 | 0x8000, b"eth0\0");
        put(&mut a, 6, &[]);
        assert_eq!(attributes(&a).unwrap(), [(5, &b"eth0\0"[..]), (6, &[][..])]);
        assert!(attributes(&a[..6]).is_err());
    }

    proptest! {
        #[test]
        fn any_octets_are_read_to_their_end(b in prop::collection::vec(any::<u8>(), 0..200)) {
            for m in messages(&b).into_iter().flatten() {
                let _ = devlink::event(m.body);
                let _ = devlink::family(m.body);
                let _ = link::event(m.kind, m.body);
            }
            let _ = devlink::event(&b);
            let _ = devlink::family(&b);
            let _ = link::event(link::NEW, &b);
        }
    }
}
