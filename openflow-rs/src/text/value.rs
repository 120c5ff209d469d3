//! Values of fields in text.

use super::{ParseError, Result};
use crate::field::{FieldId, Format, Subfield, ones};
use crate::port::PortNo;
use packet::Mac;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Connection state flags, by bit.
pub(crate) const CT_STATE: [&str; 8] = ["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"];
/// TCP flags, by bit.
const TCP_FLAGS: [&str; 12] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]"];
const TUN_FLAGS: [&str; 4] = ["oam", "df", "csum", "key"];

/// Hexadecimal as C's `%#x` prints it: zero is plain `0`.
pub(crate) fn hex(v: u128) -> String {
    if v == 0 { "0".into() } else { format!("{v:#x}") }
}

pub(crate) fn eth_text(v: u128) -> String {
    Mac::from_u64(v as u64).to_string()
}

pub(crate) fn ipv6_text(a: Ipv6Addr) -> String {
    let s = a.segments();
    if s[..6].iter().all(|x| *x == 0) && s[6] != 0 {
        let o = a.octets();
        return format!("::{}.{}.{}.{}", o[12], o[13], o[14], o[15]);
    }
    a.to_string()
}

fn prefix_len(mask: u128, width: u32) -> Option<u32> {
    let lead = (mask << (128 - width)).leading_ones();
    (mask == ones(width) & !ones(width - lead.min(width))).then_some(lead)
}

fn flags_text(names: &[&str], v: u128, mask: u128) -> String {
    let mut s = String::new();
    for (i, n) in names.iter().enumerate() {
        if mask >> i & 1 != 0 {
            s.push(if v >> i & 1 != 0 { '+' } else { '-' });
            s.push_str(n);
        }
    }
    // Bits without names are a number.
    if s.is_empty() { format!("{}/{}", hex(v), hex(mask)) } else { s }
}

/// All flags of a word by name: `syn|ack`, or `0`.
fn all_flags_text(names: &[&str], v: u128) -> String {
    let set: Vec<&str> = names.iter().enumerate().filter(|(i, _)| v >> i & 1 != 0).map(|(_, n)| *n).collect();
    if set.is_empty() { "0".into() } else { set.join("|") }
}

/// What [`all_flags_text`] writes; `None` for anything else.
fn all_flags(names: &[&str], s: &str) -> Option<u128> {
    let bit = |word: &str| names.iter().position(|n| *n == word).map(|i| 1 << i);
    s.split('|').map(bit).try_fold(0, |all, bit| Some(all | bit?))
}

/// VALUE or VALUE/MASK in the field's own form. `None` prints no mask.
pub(crate) fn value_text(id: FieldId, v: u128, mask: Option<u128>) -> String {
    let d = id.def();
    match d.format {
        Format::Hex => match mask {
            Some(m) => format!("{}/{}", hex(v), hex(m)),
            None => hex(v),
        },
        Format::Dec => match mask {
            Some(m) => format!("{v}/{}", hex(m)),
            None => v.to_string(),
        },
        Format::Eth => match mask {
            Some(m) => format!("{}/{}", eth_text(v), eth_text(m)),
            None => eth_text(v),
        },
        Format::Ipv4 => {
            let a = Ipv4Addr::from(v as u32);
            match mask {
                None => a.to_string(),
                Some(m) => match prefix_len(m, 32) {
                    Some(n) => format!("{a}/{n}"),
                    None => format!("{a}/{}", Ipv4Addr::from(m as u32)),
                },
            }
        }
        Format::Ipv6 => {
            let a = ipv6_text(Ipv6Addr::from(v));
            match mask {
                None => a,
                Some(m) => match prefix_len(m, 128) {
                    Some(n) => format!("{a}/{n}"),
                    None => format!("{a}/{}", ipv6_text(Ipv6Addr::from(m))),
                },
            }
        }
        Format::Port => PortNo(v as u16).to_string(),
        Format::Frag => match (mask.unwrap_or(3), v) {
            (3, 0) => "no",
            (3, 1) => "first",
            (3, _) => "later",
            (1, 0) => "no",
            (1, _) => "yes",
            (_, 0) => "not_later",
            _ => "later",
        }
        .into(),
        Format::CtState => flags_text(&CT_STATE, v, mask.unwrap_or(0xff)),
        Format::TcpFlags => match mask {
            None => all_flags_text(&TCP_FLAGS, v),
            Some(m) => flags_text(&TCP_FLAGS, v, m),
        },
        Format::TunFlags => flags_text(&TUN_FLAGS, v, mask.unwrap_or(1)),
        Format::PacketType => {
            let word = |v: u128| if v > 9 { format!("{v:#x}") } else { v.to_string() };
            format!("({},{})", word(v >> 16 & 0xffff), word(v & 0xffff))
        }
    }
}

pub(crate) fn parse_int(s: &str) -> Result<u128> {
    let s = s.trim();
    let r = match s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        Some(h) => u128::from_str_radix(h, 16).ok(),
        None => s.parse().ok(),
    };
    r.ok_or_else(|| ParseError::new(format!("\"{s}\" is not a number; write it in decimal or with 0x")))
}

pub(crate) fn parse_u16(s: &str) -> Result<u16> {
    u16::try_from(parse_int(s)?).map_err(|_| ParseError::new(format!("{s} is above 65535")))
}

pub(crate) fn parse_u8(s: &str) -> Result<u8> {
    u8::try_from(parse_int(s)?).map_err(|_| ParseError::new(format!("{s} is above 255")))
}

pub(crate) fn parse_u32(s: &str) -> Result<u32> {
    u32::try_from(parse_int(s)?).map_err(|_| ParseError::new(format!("{s} does not fit 32 bits")))
}

pub(crate) fn parse_u64(s: &str) -> Result<u64> {
    u64::try_from(parse_int(s)?).map_err(|_| ParseError::new(format!("{s} does not fit 64 bits")))
}

fn parse_eth(s: &str) -> Result<u128> {
    s.parse::<Mac>().map(u128::from).map_err(|e| ParseError::new(format!("\"{s}\" is {e}")))
}

fn parse_flags(names: &[&str], s: &str) -> Result<(u128, u128)> {
    let (mut v, mut m) = (0, 0);
    let mut rest = s;
    while !rest.is_empty() {
        let set = match rest.as_bytes()[0] {
            b'+' => true,
            b'-' => false,
            _ => return Err(ParseError::new(format!("\"{s}\": flags are written +name or -name"))),
        };
        rest = &rest[1..];
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let name = &rest[..end];
        let bit = names
            .iter()
            .position(|n| *n == name)
            .ok_or_else(|| ParseError::new(format!("unknown flag \"{name}\"; known are {}", names.join(", "))))?;
        m |= 1 << bit;
        if set {
            v |= 1 << bit;
        }
        rest = &rest[end..];
    }
    Ok((v, m))
}

fn scalar(id: FieldId, s: &str) -> Result<u128> {
    match id.def().format {
        Format::Eth => parse_eth(s),
        Format::Ipv4 => s
            .parse::<Ipv4Addr>()
            .map(|a| u128::from(u32::from(a)))
            .map_err(|_| ParseError::new(format!("\"{s}\" is not an IPv4 address"))),
        Format::Ipv6 => s
            .parse::<Ipv6Addr>()
            .map(u128::from)
            .map_err(|_| ParseError::new(format!("\"{s}\" is not an IPv6 address"))),
        Format::Port => s.parse::<PortNo>().map(|p| u128::from(p.0)).map_err(ParseError),
        Format::PacketType if s.starts_with('(') => {
            let inner = s.strip_prefix('(').and_then(|s| s.strip_suffix(')')).and_then(|s| s.split_once(','));
            let (ns, kind) =
                inner.ok_or_else(|| ParseError::new(format!("\"{s}\" is no packet type such as (1,0x800)")))?;
            Ok(u128::from(parse_u16(ns)?) << 16 | u128::from(parse_u16(kind)?))
        }
        _ => parse_int(s),
    }
}

/// Parses VALUE or VALUE/MASK; the mask is `None` if there is none.
pub(crate) fn parse_value(id: FieldId, s: &str) -> Result<(u128, Option<u128>)> {
    let d = id.def();
    match d.format {
        Format::Frag => {
            return match s {
                "no" => Ok((0, Some(3))),
                "yes" => Ok((1, Some(1))),
                "first" => Ok((1, Some(3))),
                "later" => Ok((2, Some(2))),
                "not_later" => Ok((0, Some(2))),
                _ => Err(ParseError::new(format!("nw_frag={s}: use no, yes, first, later or not_later"))),
            };
        }
        Format::CtState | Format::TcpFlags | Format::TunFlags => {
            let names: &[&str] = match d.format {
                Format::CtState => &CT_STATE,
                Format::TcpFlags => &TCP_FLAGS,
                _ => &TUN_FLAGS,
            };
            if s.starts_with(['+', '-']) {
                let (v, m) = parse_flags(names, s)?;
                return Ok((v, Some(m)));
            }
            if let Some(v) = all_flags(names, s) {
                return Ok((v, None));
            }
        }
        _ => {}
    }
    let (vs, ms) = match s.split_once('/') {
        Some((v, m)) => (v, Some(m)),
        None => (s, None),
    };
    let v = scalar(id, vs)?;
    let m = match ms {
        None => None,
        Some(m) => match d.format {
            Format::Ipv4 if !m.contains('.') => Some(cidr(m, 32)?),
            Format::Ipv6 if !m.contains(':') => Some(cidr(m, 128)?),
            _ => Some(scalar(id, m)?),
        },
    };
    let wide = v > ones(d.bits).max(ones((d.bytes as u32 * 8).min(128)));
    if wide {
        return Err(ParseError::new(format!("value {vs} does not fit the {} bits of {}", d.bits, d.name)));
    }
    Ok((v, m))
}

fn cidr(s: &str, width: u32) -> Result<u128> {
    let n: u32 = s.parse().map_err(|_| ParseError::new(format!("bad prefix length {s}")))?;
    if n > width {
        return Err(ParseError::new(format!("prefix length {n} is above {width}")));
    }
    Ok(ones(width) & !ones(width - n))
}

/// Subfield notation.
impl std::fmt::Display for Subfield {
    /// `NXM_NX_REG0[0..15]`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&subfield_text(self))
    }
}

pub(crate) fn subfield_text(s: &Subfield) -> String {
    let name = s.field.def().nxm_name;
    if s.is_full() {
        format!("{name}[]")
    } else if s.n_bits == 1 {
        format!("{name}[{}]", s.ofs)
    } else {
        format!("{name}[{}..{}]", s.ofs, s.ofs + s.n_bits - 1)
    }
}

/// Parses `NAME[]`, `NAME[N]`, `NAME[A..B]`, or a bare field name.
impl std::str::FromStr for Subfield {
    type Err = String;

    /// Reads `NXM_OF_IN_PORT[]`, `reg0[0..15]` and the like.
    fn from_str(s: &str) -> std::result::Result<Subfield, String> {
        parse_subfield(s).map_err(|e| e.to_string())
    }
}

pub(crate) fn parse_subfield(s: &str) -> Result<Subfield> {
    let s = s.trim();
    let (name, range) = match s.split_once('[') {
        Some((n, r)) => (n, r.strip_suffix(']').ok_or_else(|| ParseError::new(format!("{s}: missing ]")))?),
        None => (s, ""),
    };
    let field = FieldId::by_name(name).ok_or_else(|| ParseError::new(format!("unknown field \"{name}\"")))?;
    if range.is_empty() {
        return Ok(Subfield::full(field));
    }
    let (a, b) = match range.split_once("..") {
        Some((a, b)) => (a, b),
        None => (range, range),
    };
    let (a, b) = (parse_u32(a)?, parse_u32(b)?);
    Subfield::bits(field, a, b)
        .ok_or_else(|| ParseError::new(format!("{s}: bits must lie within 0 to {}", field.bits() - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exact TCP flags as `ovs-ofctl dump-flows` prints them.
    #[test]
    fn exact_tcp_flags_are_names() {
        for (value, text) in
            [(0, "0"), (2, "syn"), (0x12, "syn|ack"), (0xfff, "fin|syn|rst|psh|ack|urg|ece|cwr|ns|[200]|[400]|[800]")]
        {
            assert_eq!(value_text(FieldId::TcpFlags, value, None), text);
            assert_eq!(parse_value(FieldId::TcpFlags, text), Ok((value, None)));
        }
        assert_eq!(parse_value(FieldId::TcpFlags, "0x12/0x3f"), Ok((0x12, Some(0x3f))));
        assert_eq!(parse_value(FieldId::TcpFlags, "+syn-ack"), Ok((2, Some(0x12))));
        assert!(parse_value(FieldId::TcpFlags, "syn|nack").is_err());
        assert_eq!(parse_value(FieldId::CtState, "trk|est"), Ok((0x22, None)));
        assert_eq!(parse_value(FieldId::CtState, "0x22"), Ok((0x22, None)));
    }
}
