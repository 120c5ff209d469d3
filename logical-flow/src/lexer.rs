//! Tokens of match expressions and actions.

use crate::Error;
use crate::constant::{Integer, scan};
use std::borrow::Cow;
use std::fmt::{self, Display, Write};

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token<'t> {
    /// A name such as `ip4.src`.
    Id(&'t str),
    /// A quoted string, without its escapes.
    String(Cow<'t, str>),
    /// A constant.
    Integer(Integer),
    /// `$NAME`.
    AddressSet(&'t str),
    /// `@NAME`.
    PortGroup(&'t str),
    /// `^NAME`.
    Template(&'t str),
    /// `( ) [ ] { } == != < <= > >= ! && || .. , ; = <-> -- - :`
    Punct(&'static str),
    /// What is no token, and why.
    Error(Cow<'static, str>),
    /// The end of the text.
    End,
}

/// The next token from `at` on: where it starts and ends.
fn next(text: &str, mut at: usize) -> (usize, usize, Token<'_>) {
    loop {
        let Some(rest) = text.get(at..) else { return (text.len(), text.len(), Token::End) };
        let b = rest.as_bytes();
        let (len, token) = match b {
            [] => (0, Token::End),
            [c, ..] if c.is_ascii_whitespace() || *c == 0x0b => {
                at += 1;
                continue;
            }
            [b'/', b'/', ..] => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            [b'/', b'*', ..] => match comment(b) {
                Some(len) => {
                    at += len;
                    continue;
                }
                None => (rest.len(), Token::Error("`/*' without matching `*/'.".into())),
            },
            _ => one(rest, b),
        };
        return (at, at + len, token);
    }
}

/// The length of a comment, which ends on its line.
fn comment(b: &[u8]) -> Option<usize> {
    let body = b.get(2..)?;
    let end = body.windows(2).position(|w| w == b"*/")?;
    (!body[..end].contains(&b'\n')).then_some(end + 4)
}

fn one<'t>(s: &'t str, b: &[u8]) -> (usize, Token<'t>) {
    let (first, second) = (b.first().copied().unwrap_or(0), b.get(1).copied().unwrap_or(0));
    let lone = |c: &str, both: &str| Token::Error(format!("`{c}' is only valid as part of `{both}'.").into());
    let (len, p) = match (first, second) {
        (b'"', _) => return string(s),
        (b':', b':') | (b'0'..=b'9', _) => return number(s),
        (b'a'..=b'f' | b'A'..=b'F', _) if address_ahead(b) => return number(s),
        (b'a'..=b'z' | b'A'..=b'Z' | b'_', _) => {
            let len = name_len(b);
            return (len, Token::Id(&s[..len]));
        }
        (c @ (b'$' | b'@' | b'^'), _) => return prefixed(s, c),
        (b'<', b'-') if b.get(2) == Some(&b'>') => (3, "<->"),
        (b'=', b'=') => (2, "=="),
        (b'!', b'=') => (2, "!="),
        (b'<', b'=') => (2, "<="),
        (b'>', b'=') => (2, ">="),
        (b'&', b'&') => (2, "&&"),
        (b'|', b'|') => (2, "||"),
        (b'.', b'.') => (2, ".."),
        (b'-', b'-') => (2, "--"),
        (b'(', _) => (1, "("),
        (b')', _) => (1, ")"),
        (b'[', _) => (1, "["),
        (b']', _) => (1, "]"),
        (b'{', _) => (1, "{"),
        (b'}', _) => (1, "}"),
        (b'<', _) => (1, "<"),
        (b'>', _) => (1, ">"),
        (b'!', _) => (1, "!"),
        (b',', _) => (1, ","),
        (b';', _) => (1, ";"),
        (b'=', _) => (1, "="),
        (b':', _) => (1, ":"),
        (b'-', _) => (1, "-"),
        (b'&', _) => return (1, lone("&", "&&")),
        (b'|', _) => return (1, lone("|", "||")),
        (b'.', _) => return (1, Token::Error("`.' is only valid as part of `..' or a number.".into())),
        (b'/', _) => return (1, Token::Error("`/' is only valid as part of `//' or `/*'.".into())),
        _ => {
            let c = s.chars().next().unwrap_or_default();
            return (c.len_utf8(), Token::Error(format!("Invalid character `{c}' in input.").into()));
        }
    };
    (len, Token::Punct(p))
}

fn number(s: &str) -> (usize, Token<'_>) {
    let (i, len) = scan(s);
    (len, i.map_or_else(|e| Token::Error(e.into()), Token::Integer))
}

/// Whether hexadecimal digits with a colon behind them start here: an address, as no name is followed by a colon.
fn address_ahead(b: &[u8]) -> bool {
    b.iter().find(|c| !c.is_ascii_hexdigit()) == Some(&b':')
}

fn prefixed(s: &str, c: u8) -> (usize, Token<'_>) {
    let name = &s[1..];
    let len = if name.starts_with(|c: char| c.is_ascii_digit()) { 0 } else { name_len(name.as_bytes()) };
    let token = match (c, &name[..len]) {
        (_, "") => Token::Error(format!("`{}' must be followed by a valid identifier.", char::from(c)).into()),
        (b'$', name) => Token::AddressSet(name),
        (b'@', name) => Token::PortGroup(name),
        (_, name) => Token::Template(name),
    };
    (len + 1, token)
}

/// The length of a name: letters, digits, `_` and `.`.
fn name_len(b: &[u8]) -> usize {
    b.iter().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.')).count()
}

fn string(s: &str) -> (usize, Token<'_>) {
    let mut escaped = false;
    for (i, c) in s.bytes().enumerate().skip(1) {
        match c {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                let body = unescape(&s[1..i]);
                return (i + 1, body.map_or(Token::Error("Invalid escape in string.".into()), Token::String));
            }
            _ => {}
        }
    }
    (s.len(), Token::Error("Input ends inside quoted string.".into()))
}

/// Undoes JSON's escapes.
fn unescape(s: &str) -> Option<Cow<'_, str>> {
    if !s.contains('\\') {
        return Some(Cow::Borrowed(s));
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
    Some(Cow::Owned(out))
}

/// A string in quotes, with JSON's escapes where they are needed.
pub(crate) struct Quoted<'s>(pub(crate) &'s str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                '\r' => f.write_str("\\r")?,
                '\u{8}' => f.write_str("\\b")?,
                '\u{c}' => f.write_str("\\f")?,
                c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// A walk over tokens.
#[derive(Debug)]
pub struct Cursor<'t> {
    text: &'t str,
    /// The token at hand, with its start and end.
    now: (usize, usize, Token<'t>),
    /// The one behind it, once it was asked for.
    ahead: Option<(usize, usize, Token<'t>)>,
}

impl<'t> Cursor<'t> {
    /// At the start of a text.
    pub fn new(text: &'t str) -> Cursor<'t> {
        Cursor { text, now: next(text, 0), ahead: None }
    }

    /// The token at hand.
    pub fn peek(&self) -> &Token<'t> {
        &self.now.2
    }

    /// The token after the one at hand.
    pub fn peek_second(&mut self) -> &Token<'t> {
        let (text, end) = (self.text, self.now.1);
        &self.ahead.get_or_insert_with(|| next(text, end)).2
    }

    /// The place of the token at hand.
    pub fn at(&self) -> usize {
        self.now.0
    }

    /// The text of the token at hand.
    pub fn source(&self) -> &'t str {
        self.text.get(self.now.0..self.now.1).unwrap_or_default()
    }

    /// Takes the token at hand.
    pub fn take(&mut self) -> Token<'t> {
        let following = self.ahead.take().unwrap_or_else(|| next(self.text, self.now.1));
        std::mem::replace(&mut self.now, following).2
    }

    /// Whether this punctuation is at hand.
    pub fn is(&self, p: &str) -> bool {
        matches!(self.peek(), Token::Punct(q) if *q == p)
    }

    /// Takes this punctuation if it is at hand.
    pub fn accept(&mut self, p: &str) -> bool {
        let hit = self.is(p);
        if hit {
            self.take();
        }
        hit
    }

    /// Takes this name if it is at hand.
    pub fn accept_id(&mut self, name: &str) -> bool {
        let hit = matches!(self.peek(), Token::Id(n) if *n == name);
        if hit {
            self.take();
        }
        hit
    }

    /// Takes this punctuation.
    ///
    /// # Errors
    /// Where something else is at hand.
    pub fn expect(&mut self, p: &'static str) -> Result<(), Error> {
        if self.accept(p) { Ok(()) } else { Err(self.syntax(&format!("expecting `{p}'"))) }
    }

    /// Takes a quoted string.
    ///
    /// # Errors
    /// Where something else is at hand; `what` says what was expected.
    pub fn string(&mut self, what: &str) -> Result<String, Error> {
        match self.peek() {
            Token::String(s) => {
                let s = s.clone().into_owned();
                self.take();
                Ok(s)
            }
            _ => Err(self.syntax(what)),
        }
    }

    /// Takes a decimal number of at most `max`.
    ///
    /// # Errors
    /// Where something else is at hand; `what` says what was expected.
    pub fn number(&mut self, max: u128, what: &str) -> Result<u128, Error> {
        use crate::constant::Format;
        match *self.peek() {
            Token::Integer(Integer { value, mask: None, format: Format::Decimal, .. }) if value <= max => {
                self.take();
                Ok(value)
            }
            _ => Err(self.syntax(what)),
        }
    }

    /// An error at the token at hand; where that is none, it is what is wrong.
    pub fn error(&self, text: impl Into<String>) -> Error {
        match self.peek() {
            Token::Error(e) => Error::new(self.at(), e.clone()),
            _ => Error::new(self.at(), text),
        }
    }

    /// A syntax error at the token at hand.
    pub fn syntax(&self, expectation: &str) -> Error {
        let at = if self.at_end() { "end of input".to_string() } else { format!("`{}'", self.source()) };
        let space = if expectation.is_empty() { "" } else { " " };
        self.error(format!("Syntax error at {at}{space}{expectation}."))
    }

    /// Whether all is taken.
    pub fn at_end(&self) -> bool {
        *self.peek() == Token::End
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(s: &str) -> Vec<&str> {
        let mut c = Cursor::new(s);
        let mut out = Vec::new();
        while !c.at_end() {
            out.push(c.source());
            c.take();
        }
        out
    }

    fn error(s: &str) -> Error {
        let mut c = Cursor::new(s);
        while !matches!(c.peek(), Token::Error(_) | Token::End) {
            c.take();
        }
        c.error("none")
    }

    #[test]
    fn constants_in_all_forms() {
        assert_eq!(texts("reg1[16..23] == 0x11"), ["reg1", "[", "16", "..", "23", "]", "==", "0x11"]);
        assert_eq!(texts("10.0.0.2:4369,[fe80::1]:80"), ["10.0.0.2", ":", "4369", ",", "[", "fe80::1", "]", ":", "80"]);
        assert_eq!(texts("eth.src == 00:00:00:01:02:03;"), ["eth.src", "==", "00:00:00:01:02:03", ";"]);
        assert_eq!(texts("fe80::1 /* c */ ff:ff:ff:ff:ff:ff aef0::"), ["fe80::1", "ff:ff:ff:ff:ff:ff", "aef0::"]);
        assert_eq!(texts("ip.ttl--; a<->b // rest"), ["ip.ttl", "--", ";", "a", "<->", "b"]);
        assert_eq!(texts("1.1.1.1, 1-65535"), ["1.1.1.1", ",", "1", "-", "65535"]);
        assert_eq!(texts("\"a\\\"b\"$as.x"), ["\"a\\\"b\"", "$as.x"]);
    }

    #[test]
    fn errors_name_the_place() {
        assert_eq!(error("a == \"x").at, 5);
        assert_eq!(error("a # b").text, "Invalid character `#' in input.");
        assert_eq!(error("a & b").text, "`&' is only valid as part of `&&'.");
        assert_eq!(error("a $1").text, "`$' must be followed by a valid identifier.");
        assert_eq!(error("a /* b\n */").text, "`/*' without matching `*/'.");
        assert_eq!(error("é").text, "Invalid character `é' in input.");
    }
}
