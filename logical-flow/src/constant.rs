//! Integer constants and the forms in which they are written.

use crate::field::ones;
use packet::Mac;
use std::fmt::{self, Display};
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
    /// The value; no bits outside the mask.
    pub value: u128,
    /// The mask, where one was written.
    pub mask: Option<u128>,
    /// How it was written.
    pub format: Format,
    /// Whether the mask was written as the length of a prefix.
    pub prefix: bool,
    /// Bits of the value that were written outside the mask, and say nothing.
    pub outside: u128,
}

impl Integer {
    /// A number without mask.
    pub fn plain(value: u128, format: Format) -> Integer {
        Integer { value, mask: None, format, prefix: false, outside: 0 }
    }

    /// Value and mask in a field of this width, which holds it: all bits count where none are named.
    pub fn masked(&self, width: u8) -> (u128, u128) {
        let mask = self.mask.unwrap_or(u128::MAX) & ones(width);
        (self.value & mask, mask)
    }

    /// How many bits a field needs to hold it: addresses need those of their kind, numbers as many as they have.
    pub fn width(&self) -> u32 {
        match self.format {
            Format::Ipv4 => 32,
            Format::Ipv6 => 128,
            Format::Ethernet => 48,
            Format::Decimal | Format::Hex => 128 - self.mask.unwrap_or(self.value).leading_zeros(),
        }
    }
}

impl Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zero_in_hex = self.format == Format::Hex && self.mask.is_some() && self.value | self.outside == 0;
        // Upstream's way to write bits that have to be 0.
        write(f, self.value | self.outside, if zero_in_hex { Format::Decimal } else { self.format })?;
        match self.mask {
            None => Ok(()),
            Some(m) if self.prefix => write!(f, "/{}", m.count_ones()),
            Some(m) => {
                f.write_str("/")?;
                write(f, m, self.format)
            }
        }
    }
}

fn write(f: &mut fmt::Formatter<'_>, value: u128, format: Format) -> fmt::Result {
    match format {
        Format::Hex => write!(f, "{value:#x}"),
        Format::Ipv4 => Ipv4Addr::from(value as u32).fmt(f),
        Format::Ipv6 => Ipv6Addr::from(value).fmt(f),
        Format::Decimal => value.fmt(f),
        Format::Ethernet => Mac::from_u64(value as u64).fmt(f),
    }
}

/// An Ethernet address as the language writes it: one or two digits a byte.
fn ethernet(s: &str) -> Option<u128> {
    if s.split(':').any(|byte| byte.len() > 2) {
        return None;
    }
    s.parse().ok().map(|mac: Mac| mac.into())
}

/// The length of what can be a constant's part at the start of `s`: up to two dots, and up to a colon behind a dot, so
/// that `1..4` are three tokens and so are `10.0.0.1:80`.
fn extent(s: &[u8]) -> usize {
    let mut dotted = false;
    let mut n = 0;
    while let Some(&c) = s.get(n) {
        match c {
            b':' if !dotted => {}
            b'.' if s.get(n + 1) != Some(&b'.') => dotted = true,
            c if c.is_ascii_alphanumeric() => {}
            _ => break,
        }
        n += 1;
    }
    n
}

type Part = Result<(u128, Format), &'static str>;

fn part(s: &str) -> Part {
    const INVALID: &str = "Invalid numeric constant.";
    let b = s.as_bytes();
    if b.iter().all(u8::is_ascii_digit) {
        return match b {
            [] => Err("Integer constant expected."),
            [b'0', _, ..] => Err("Decimal constants must not have leading zeros."),
            _ => match s.parse::<u64>() {
                Ok(v) => Ok((v.into(), Format::Decimal)),
                Err(_) => Err("Decimal constants must be less than 2**64."),
            },
        };
    }
    if let Some(hex) = s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        if hex.is_empty() {
            return Err(if b.contains(&b'X') {
                "Hex digits expected following 0X."
            } else {
                "Hex digits expected following 0x."
            });
        }
        if !hex.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err("Invalid syntax in hexadecimal constant.");
        }
        return match u128::from_str_radix(hex.trim_start_matches('0'), 16) {
            Ok(v) => Ok((v, Format::Hex)),
            Err(_) if hex.bytes().all(|c| c == b'0') => Ok((0, Format::Hex)),
            Err(_) => Err("Hexadecimal constant requires more than 128 bits."),
        };
    }
    if s.len() == 17
        && let Some(v) = ethernet(s)
    {
        return Ok((v, Format::Ethernet));
    }
    if !b.contains(&b':') {
        return Ipv4Addr::from_str(s).map(|a| (u32::from(a).into(), Format::Ipv4)).map_err(|_| INVALID);
    }
    Ipv6Addr::from_str(s).map(|a| (a.into(), Format::Ipv6)).map_err(|_| INVALID)
}

/// The constant at the start of `s`, and its length; or what is wrong with it, in the words of ovn-controller.
///
/// # Errors
/// What is no constant.
pub fn scan(s: &str) -> (Result<Integer, &'static str>, usize) {
    let len = extent(s.as_bytes());
    let (value, format) = match part(s.get(..len).unwrap_or_default()) {
        Ok(p) => p,
        Err(e) => return (Err(e), len),
    };
    let Some(rest) = s.get(len..).and_then(|r| r.strip_prefix('/')) else {
        return (Ok(Integer::plain(value, format)), len);
    };
    let mask_len = extent(rest.as_bytes());
    let len = len + 1 + mask_len;
    let (m, mask_format) = match part(rest.get(..mask_len).unwrap_or_default()) {
        Ok(p) => p,
        Err(e) => return (Err(e), len),
    };
    let prefix = |width: u8| ones(width) & !ones(width - m as u8);
    let (mask, format, prefix) = match (format, mask_format) {
        (a, b) if a == b => (m, format, false),
        (Format::Ipv4, Format::Decimal) if m <= 32 => (prefix(32), format, true),
        (Format::Ipv6, Format::Decimal) if m <= 128 => (prefix(128), format, true),
        (Format::Decimal, Format::Hex) if value == 0 => (m, Format::Hex, false),
        _ => return (Err("Value and mask have incompatible formats."), len),
    };
    // Bits outside the mask say nothing.
    (Ok(Integer { value: value & mask, mask: Some(mask), format, prefix, outside: value & !mask }), len)
}

/// A text that is one constant and nothing else, such as a member of an address set.
pub fn integer(s: &str) -> Option<Integer> {
    let s = s.trim();
    match scan(s) {
        (Ok(i), len) if len == s.len() => Some(i),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_print_as_they_are_written() {
        for s in [
            "0",
            "18446744073709551615",
            "0x0",
            "0xff",
            "0xff/0xf",
            "0/0x1234",
            "3/1",
            "10.0.0.1",
            "10.0.0.1/24",
            "10.0.0.0/255.0.255.0",
            "0.0.0.0/0",
            "::/0",
            "fe80::1/64",
            "fe80::1/ffff::ffff",
            "::ffff:1.2.3.4",
            "00:00:00:01:02:ff",
            "01:00:00:00:00:00/01:00:00:00:00:00",
        ] {
            let i = integer(s).unwrap_or_else(|| panic!("{s}"));
            assert_eq!(i.to_string(), s);
            assert_eq!(i.value & !i.mask.unwrap_or(u128::MAX), 0);
        }
        let i = integer("10.1.2.3/8").unwrap();
        assert_eq!((i.value, i.mask, i.outside), (0x0a00_0000, Some(0xff00_0000), 0x0001_0203));
    }

    #[test]
    fn what_is_no_constant_is_named_in_ovn_s_words() {
        for (s, e) in [
            ("", "Integer constant expected."),
            ("01", "Decimal constants must not have leading zeros."),
            ("18446744073709551616", "Decimal constants must be less than 2**64."),
            ("0x", "Hex digits expected following 0x."),
            ("0xfg", "Invalid syntax in hexadecimal constant."),
            ("0x100000000000000000000000000000000", "Hexadecimal constant requires more than 128 bits."),
            ("1.2.3", "Invalid numeric constant."),
            ("12ab", "Invalid numeric constant."),
            ("10.0.0.1/33", "Value and mask have incompatible formats."),
            ("1/0x3", "Value and mask have incompatible formats."),
            ("10.0.0.1/", "Integer constant expected."),
        ] {
            assert_eq!(scan(s).0.unwrap_err(), e, "{s}");
        }
    }
}
