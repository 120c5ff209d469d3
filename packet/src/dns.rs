//! DNS messages (RFC 1035 section 4): a query with one question, and its response.

use crate::be16;

/// Record types (RFC 1035 section 3.2.2, RFC 3596).
pub mod kind {
    #![allow(missing_docs)]
    pub const A: u16 = 1;
    pub const PTR: u16 = 12;
    pub const AAAA: u16 = 28;
    pub const ANY: u16 = 255;
}

/// The Internet's class.
const INTERNET: u16 = 1;
/// The response code of a server that does not answer for the name.
const REFUSED: u8 = 5;
/// Octets of the header.
const HEADER: usize = 12;

/// A question.
#[derive(Debug)]
pub struct Question<'a> {
    /// The name in lower case, labels joined by dots.
    pub name: String,
    /// What is asked for ([`kind`]).
    pub kind: u16,
    /// The question as it came.
    bytes: &'a [u8],
}

/// Why a message is no query with one question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Useless {
    /// It ends within its header.
    Truncated,
    /// It is a response.
    Response,
    /// It asks nothing.
    NoQuestion,
    /// It is no standard query, asks several things, or cannot be read.
    Malformed,
}

/// The only question of a query in the Internet's class.
///
/// # Errors
/// See [`Useless`].
pub fn question(message: &[u8]) -> Result<Question<'_>, Useless> {
    let (header, rest) = message.split_at_checked(HEADER).ok_or(Useless::Truncated)?;
    if header[2] & 0x80 != 0 {
        return Err(Useless::Response);
    }
    if header[4..6] == [0, 0] {
        return Err(Useless::NoQuestion);
    }
    if header[2] >> 3 & 0xf != 0 || header[4..6] != [0, 1] {
        return Err(Useless::Malformed);
    }
    one(rest).ok_or(Useless::Malformed)
}

fn one(rest: &[u8]) -> Option<Question<'_>> {
    let (mut name, mut at) = (String::new(), 0);
    loop {
        let len = usize::from(*rest.get(at)?);
        at += 1;
        if len == 0 {
            break;
        }
        // Questions are not compressed.
        let label = rest.get(at..at + len).filter(|_| len < 64)?;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&String::from_utf8_lossy(label).to_lowercase());
        at += len;
    }
    let (kind, class) = (be16(rest, at)?, be16(rest, at + 2)?);
    (class == INTERNET).then_some(Question { name, kind, bytes: rest.get(..at + 4)? })
}

/// A name as labels. Empty labels, and those of more than 63 octets, are left out.
pub fn name(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    for label in text.split('.').filter(|l| !l.is_empty() && l.len() < 64) {
        out.push(label.len() as u8);
        out.extend(label.bytes());
    }
    out.push(0);
    out
}

/// The response to a query with type and data of each answer, which may be kept for `ttl` seconds. It has the query's flags. Without an
/// answer the query is refused, which ends the client's waiting.
pub fn response(query: &[u8], q: &Question<'_>, answers: &[(u16, Vec<u8>)], ttl: u32) -> Vec<u8> {
    let [id0, id1, flags0, flags1, ..] = *query else { return Vec::new() };
    let mut m = vec![id0, id1, flags0 | 0x80, flags1 | if answers.is_empty() { REFUSED } else { 0 }, 0, 1];
    m.extend((answers.len() as u16).to_be_bytes());
    m.extend([0, 0, 0, 0]);
    m.extend(q.bytes);
    let name = q.bytes.get(..q.bytes.len() - 4).unwrap_or_default();
    for (kind, data) in answers {
        m.extend(name);
        m.extend(kind.to_be_bytes());
        m.extend(INTERNET.to_be_bytes());
        m.extend(ttl.to_be_bytes());
        m.extend((data.len() as u16).to_be_bytes());
        m.extend(data);
    }
    m
}
