//! Tokens of match expressions and actions.

use crate::Error;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// How an integer was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Decimal digits.
    Decimal,
    /// `0x…`.
    Hex,
    /// Dotted quad.
    Ipv4,
    /// RFC 5952 text.
    Ipv6,
    /// `xx:xx:xx:xx:xx:xx`.
    Ethernet,
}

/// An integer constant with an optional mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    /// The value.
    pub value: u128,
    /// The mask, where one was written.
    pub mask: Option<u128>,
    /// How it was written.
    pub format: Format,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A name such as `ip4.src`.
    Id(String),
    /// A quoted string.
    String(String),
    /// A constant.
    Integer(Integer),
    /// `$NAME`.
    AddressSet(String),
    /// `@NAME`.
    PortGroup(String),
    /// `^NAME`.
    Template(String),
    /// `( ) [ ] { } == != < <= > >= ! && || .. , ; = <-> -- :`
    Punct(&'static str),
    /// The end of the text.
    End,
}

const PUNCTUATION: [&str; 23] = [
    "<->", "==", "!=", "<=", ">=", "&&", "||", "..", "--", "(", ")", "[", "]", "{", "}", "<", ">", "!", ",", ";", "=",
    ":", "/",
];

/// The tokens of a text, each with the place of its first character; the last is [`Token::End`].
///
/// # Errors
/// An unknown character, an unterminated string or a malformed constant.
pub fn lex(text: &str) -> Result<Vec<(usize, Token)>, Error> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..) {
        let Some(c) = rest.chars().next() else { break };
        if c.is_ascii_whitespace() {
            at += 1;
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").ok_or_else(|| Error::new(at, "`/*' without matching `*/'."))? + 2;
        } else {
            let (token, len) = one(rest, at)?;
            out.push((at, token));
            at += len;
        }
    }
    out.push((text.len(), Token::End));
    Ok(out)
}

fn one(s: &str, at: usize) -> Result<(Token, usize), Error> {
    let c = s.chars().next().unwrap_or(' ');
    if c == '"' {
        return string(s, at);
    }
    if let Some(len) = address_or_number(s) {
        return integer(s, len, at);
    }
    if matches!(c, '$' | '@' | '^') {
        let len = name_len(&s[1..]);
        if len == 0 {
            return Err(Error::new(at, format!("`{c}' must be followed by a valid identifier.")));
        }
        let name = s[1..=len].to_string();
        let token = match c {
            '$' => Token::AddressSet(name),
            '@' => Token::PortGroup(name),
            _ => Token::Template(name),
        };
        return Ok((token, len + 1));
    }
    if c.is_ascii_alphabetic() || c == '_' {
        let len = name_len(s);
        return Ok((Token::Id(s[..len].to_string()), len));
    }
    for p in PUNCTUATION {
        if s.starts_with(p) {
            return Ok((Token::Punct(p), p.len()));
        }
    }
    Err(Error::new(at, format!("Invalid character `{c}' in input.")))
}

/// The length of a name: letters, digits, `_` and single dots inside.
pub(crate) fn name_len(s: &str) -> usize {
    let b = s.as_bytes();
    let mut n = 0;
    while let Some(&c) = b.get(n) {
        let inner_dot = c == b'.' && b.get(n + 1).is_some_and(|d| d.is_ascii_alphanumeric() || *d == b'_');
        if c.is_ascii_alphanumeric() || c == b'_' || inner_dot {
            n += 1;
        } else {
            break;
        }
    }
    n
}

fn string(s: &str, at: usize) -> Result<(Token, usize), Error> {
    let mut escaped = false;
    for (i, c) in s.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => {
                let body = &s[1..i];
                return Ok((
                    Token::String(unescape(body).ok_or_else(|| Error::new(at, "Invalid escape in string."))?),
                    i + 1,
                ));
            }
            _ => {}
        }
    }
    Err(Error::new(at, "Input ends inside quoted string."))
}

/// Undoes JSON's escapes.
fn unescape(s: &str) -> Option<String> {
    if !s.contains('\\') {
        return Some(s.to_string());
    }
    let mut out = String::new();
    let mut it = s.chars();
    while let Some(c) = it.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match it.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                let hex: String = it.by_ref().take(4).collect();
                char::from_u32(u32::from_str_radix(&hex, 16).ok()?)?
            }
            c @ ('"' | '\\' | '/') => c,
            _ => return None,
        });
    }
    Some(out)
}

/// The length of a constant's first part (before any `/`) at the start of `s`, if there is one.
fn address_or_number(s: &str) -> Option<usize> {
    let b = s.as_bytes();
    let hex_run = b.iter().take_while(|c| c.is_ascii_hexdigit()).count();
    if b.starts_with(b"0x") || b.starts_with(b"0X") {
        return Some(2 + b[2..].iter().take_while(|c| c.is_ascii_hexdigit()).count());
    }
    // An address with colons: at least two of them, in a run of hex digits, colons and dots.
    let run = b.iter().take_while(|c| c.is_ascii_hexdigit() || **c == b':').count();
    let colons = b[..run].iter().filter(|c| **c == b':').count();
    let dotted_first = b.get(hex_run) == Some(&b'.');
    if colons >= 2 && !dotted_first {
        let long = b.iter().take_while(|c| c.is_ascii_hexdigit() || matches!(c, b':' | b'.')).count();
        return (run..=long).rev().find(|n| s.get(..*n).is_some_and(is_colon_address)).or_else(|| {
            // `10.0.0.1:80`-like endings: fall back to the longest prefix that is an address.
            (3..run).rev().find(|n| s.get(..*n).is_some_and(is_colon_address))
        });
    }
    let digits = b.iter().take_while(|c| c.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let quad = b.iter().take_while(|c| c.is_ascii_digit() || **c == b'.').count();
    if s.get(..quad).is_some_and(|q| Ipv4Addr::from_str(q).is_ok()) {
        return Some(quad);
    }
    Some(digits)
}

fn is_colon_address(s: &str) -> bool {
    ethernet(s).is_some() || Ipv6Addr::from_str(s).is_ok()
}

/// An Ethernet address's value.
pub fn ethernet(s: &str) -> Option<u128> {
    let mut n = 0;
    let mut v = 0u128;
    for part in s.split(':') {
        if part.is_empty() || part.len() > 2 {
            return None;
        }
        v = v << 8 | u128::from(u8::from_str_radix(part, 16).ok()?);
        n += 1;
    }
    (n == 6).then_some(v)
}

fn number(s: &str) -> Option<(u128, Format)> {
    if let Some(v) = ethernet(s) {
        Some((v, Format::Ethernet))
    } else if let Ok(a) = Ipv4Addr::from_str(s) {
        Some((u128::from(u32::from(a)), Format::Ipv4))
    } else if let Ok(a) = Ipv6Addr::from_str(s) {
        Some((u128::from(a), Format::Ipv6))
    } else if let Some(h) = s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        u128::from_str_radix(h, 16).ok().map(|v| (v, Format::Hex))
    } else {
        s.parse().ok().map(|v| (v, Format::Decimal))
    }
}

fn integer(s: &str, len: usize, at: usize) -> Result<(Token, usize), Error> {
    let bad = |text: &str| Error::new(at, format!("Invalid numeric constant `{text}'."));
    let (value, format) = number(&s[..len]).ok_or_else(|| bad(&s[..len]))?;
    let rest = &s[len..];
    let mask_len = rest.strip_prefix('/').filter(|r| !r.starts_with(['/', '*'])).and_then(address_or_number);
    let Some(mask_len) = mask_len else {
        return Ok((Token::Integer(Integer { value, mask: None, format }), len));
    };
    let text = &rest[1..=mask_len];
    let (m, mformat) = number(text).ok_or_else(|| bad(text))?;
    let width: u8 = if format == Format::Ipv4 { 32 } else { 128 };
    let mask = match (format, mformat) {
        (Format::Ipv4 | Format::Ipv6, Format::Decimal) => {
            let n = u8::try_from(m).ok().filter(|n| *n <= width).ok_or_else(|| bad(&s[..len + 1 + mask_len]))?;
            crate::field::ones(width) & !crate::field::ones(width - n)
        }
        (a, b) if a == b || matches!((a, b), (Format::Decimal, Format::Hex) | (Format::Hex, Format::Decimal)) => m,
        _ => return Err(Error::new(at, "Value and mask have incompatible formats.")),
    };
    // Bits outside the mask say nothing.
    Ok((Token::Integer(Integer { value: value & mask, mask: Some(mask), format }), len + 1 + mask_len))
}

/// A walk over tokens.
#[derive(Debug)]
pub struct Cursor {
    tokens: Vec<(usize, Token)>,
    next: usize,
}

impl Cursor {
    /// At the start of a text.
    ///
    /// # Errors
    /// As [`lex`].
    pub fn new(text: &str) -> Result<Cursor, Error> {
        Ok(Cursor { tokens: lex(text)?, next: 0 })
    }

    /// The token at hand.
    pub fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |t| &t.1)
    }

    /// The token after the one at hand.
    pub fn peek_second(&self) -> &Token {
        self.tokens.get(self.next + 1).map_or(&Token::End, |t| &t.1)
    }

    /// The place of the token at hand.
    pub fn at(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |t| t.0)
    }

    /// Takes the token at hand.
    pub fn take(&mut self) -> Token {
        let t = self.peek().clone();
        self.next += 1;
        t
    }

    /// Takes this punctuation if it is at hand.
    pub fn accept(&mut self, p: &str) -> bool {
        let hit = matches!(self.peek(), Token::Punct(q) if *q == p);
        self.next += usize::from(hit);
        hit
    }

    /// Takes this name if it is at hand.
    pub fn accept_id(&mut self, name: &str) -> bool {
        let hit = matches!(self.peek(), Token::Id(n) if n == name);
        self.next += usize::from(hit);
        hit
    }

    /// Takes this punctuation.
    ///
    /// # Errors
    /// Where something else is at hand.
    pub fn expect(&mut self, p: &'static str) -> Result<(), Error> {
        if self.accept(p) { Ok(()) } else { Err(self.syntax(&format!("expecting `{p}'"))) }
    }

    /// A syntax error at the token at hand.
    pub fn syntax(&self, expectation: &str) -> Error {
        let at = match self.peek() {
            Token::End => "end of input".to_string(),
            t => format!("`{}'", describe(t)),
        };
        Error::new(self.at(), format!("Syntax error at {at} {expectation}."))
    }

    /// Whether all is taken.
    pub fn at_end(&self) -> bool {
        *self.peek() == Token::End
    }
}

/// A token as text.
pub fn describe(t: &Token) -> String {
    match t {
        Token::Id(s) => s.clone(),
        Token::String(s) => format!("\"{s}\""),
        Token::Integer(i) => match i.format {
            Format::Hex => format!("{:#x}", i.value),
            Format::Ipv4 => Ipv4Addr::from(i.value as u32).to_string(),
            Format::Ipv6 => Ipv6Addr::from(i.value).to_string(),
            Format::Decimal => i.value.to_string(),
            Format::Ethernet => {
                let b: Vec<String> = i.value.to_be_bytes()[10..].iter().map(|b| format!("{b:02x}")).collect();
                b.join(":")
            }
        },
        Token::AddressSet(s) => format!("${s}"),
        Token::PortGroup(s) => format!("@{s}"),
        Token::Template(s) => format!("^{s}"),
        Token::Punct(p) => (*p).to_string(),
        Token::End => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(s: &str) -> Vec<String> {
        lex(s).unwrap().iter().map(|(_, t)| describe(t)).filter(|t| !t.is_empty()).collect()
    }

    #[test]
    fn constants_in_all_forms() {
        assert_eq!(texts("reg1[16..23] == 0x11"), ["reg1", "[", "16", "..", "23", "]", "==", "0x11"]);
        assert_eq!(texts("10.0.0.2:4369,[fe80::1]:80"), ["10.0.0.2", ":", "4369", ",", "[", "fe80::1", "]", ":", "80"]);
        assert_eq!(texts("eth.src == 00:00:00:01:02:03;"), ["eth.src", "==", "00:00:00:01:02:03", ";"]);
        assert_eq!(texts("fe80::1 /* c */ ff:ff:ff:ff:ff:ff aef0::"), ["fe80::1", "ff:ff:ff:ff:ff:ff", "aef0::"]);
        let Token::Integer(i) = &lex("10.1.2.3/8").unwrap()[0].1 else { panic!() };
        assert_eq!((i.value, i.mask), (0x0a00_0000, Some(0xff00_0000)));
        assert_eq!(texts("ip.ttl--; a<->b"), ["ip.ttl", "--", ";", "a", "<->", "b"]);
    }

    #[test]
    fn errors_name_the_place() {
        assert_eq!(lex("a == \"x").unwrap_err().at, 5);
        assert!(lex("a # b").unwrap_err().text.contains("Invalid character"));
    }
}
