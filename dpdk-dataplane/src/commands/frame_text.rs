//! Frames from flows in the words of ovs-dpctl(8): `eth(src=…,dst=…),eth_type(0x0800),ipv4(…),udp(…)`. Headers are put
//! one behind the other as the words have it; lengths and checksums follow from them.

use openflow_rs::action::PacketType;
use packet::{Headers, Mac, checksum, ethertype, ipproto};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of payload behind a header that has some, where no length is asked for.
const PAYLOAD: usize = 64;
/// The EtherType of a tag, where no word says another.
const TAG_TYPE: u16 = ethertype::VLAN;
/// SYN, FIN and RST: segments with these carry no payload.
const TCP_CONTROL: u16 = 0x07;
/// More fragments, and the offset of a later one in units of 8 bytes.
const MORE_FRAGMENTS: u16 = 0x2000;
const LATER: u16 = 100;

/// One word with its arguments: `name(key=value,…)`.
pub(super) struct Word<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

impl Word<'_> {
    /// The value of a key; what stands behind a slash is a mask and does not count.
    fn get(&self, key: &str) -> Option<&str> {
        let pairs = self.text.split(',').filter_map(|p| p.split_once('='));
        pairs.filter(|(k, _)| k.trim() == key).map(|(_, v)| value(v)).next()
    }

    /// A number; 0 without the key.
    pub(super) fn number(&self, key: &str) -> Result<u64, String> {
        self.get(key).map_or(Ok(0), |v| number(v).ok_or_else(|| format!("{}: {key}={v}: expected a number", self.name)))
    }

    pub(super) fn parsed<T: std::str::FromStr>(&self, key: &str, none: T) -> Result<T, String> {
        self.get(key)
            .map_or(Ok(none), |v| v.parse().map_err(|_| format!("{}: {key}={v}: expected an address", self.name)))
    }
}

fn value(text: &str) -> &str {
    text.split_once('/').map_or(text, |(v, _)| v).trim()
}

pub(super) fn number(text: &str) -> Option<u64> {
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
}

/// The words of a flow; those within `encap(…)` come behind those before it.
fn words(text: &str) -> Result<Vec<Word<'_>>, String> {
    let (mut rest, mut found) = (text.trim(), Vec::new());
    while !rest.is_empty() {
        let open = rest.find('(').ok_or_else(|| format!("{rest}: expected NAME(...)"))?;
        let mut depth = 0;
        let close = rest.char_indices().skip(open).find_map(|(i, c)| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            (depth == 0).then_some(i)
        });
        let close = close.ok_or_else(|| format!("{rest}: a parenthesis is not closed"))?;
        let (name, inner) = (rest.get(..open).unwrap_or_default(), rest.get(open + 1..close).unwrap_or_default());
        match name.trim() {
            "encap" => found.extend(words(inner)?),
            name => found.push(Word { name, text: inner }),
        }
        rest = rest.get(close + 1..).unwrap_or_default().trim_start_matches([',', ' ']);
    }
    Ok(found)
}

/// What is between the parentheses of a word, without a mask.
pub(super) fn word<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    words(text).ok()?.into_iter().find(|w| w.name == name).map(|w| value(w.text))
}

/// All that is in the parentheses of a word.
pub(super) fn text_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    words(text).ok()?.into_iter().find(|w| w.name == name).map(|w| w.text)
}

/// What a flow says that its packets begin with: `packet_type(ns=…,id=…)`.
///
/// # Errors
/// It is no type of OpenFlow's (ONF EXT-112).
pub(super) fn packet_type(text: &str) -> Result<Option<PacketType>, String> {
    let Some(inside) = text_of(text, "packet_type") else { return Ok(None) };
    let word = Word { name: "packet_type", text: inside };
    let (namespace, kind) = (word.number("ns")?, word.number("id")?);
    match (namespace, u16::try_from(kind)) {
        (0, Ok(0)) => Ok(Some(PacketType::ETHERNET)),
        (1, Ok(kind)) => Ok(Some(PacketType::of(kind))),
        _ => Err(format!("packet_type({inside}): expected ns=0,id=0 or ns=1 and an EtherType")),
    }
}

/// The frame of a flow, of `len` bytes if that is given.
///
/// # Errors
/// What is wrong with the text, or that the headers are longer than `len`.
pub(super) fn compose(text: &str, len: Option<usize>) -> Result<Vec<u8>, String> {
    let words = words(text)?;
    let payload = match len {
        None => None,
        Some(len) => {
            let headers = build(&words, Some(0))?.len();
            Some(len.checked_sub(headers).ok_or_else(|| format!("the headers have {headers} bytes, more than {len}"))?)
        }
    };
    build(&words, payload)
}

/// The same with so many bytes behind the headers.
pub(super) fn compose_with(text: &str, payload: usize) -> Result<Vec<u8>, String> {
    build(&words(text)?, Some(payload))
}

fn build(words: &[Word<'_>], payload: Option<usize>) -> Result<Vec<u8>, String> {
    let word = |name: &str| words.iter().find(|w| w.name == name);
    // Of a header that the flow does not name any would fit.
    let none = Word { name: "eth", text: "" };
    let eth = word("eth").unwrap_or(&none);
    let mut f = eth.parsed("dst", Mac::ZERO)?.to_vec();
    f.extend_from_slice(&eth.parsed("src", Mac::ZERO)?[..]);
    let (mut kind, mut typed) = (0, false);
    for w in words {
        match w.name {
            // Without an Ethernet header: one without addresses stands in for it.
            "packet_type" if w.number("ns")? == 1 => {
                kind = w.number("id")? as u16;
                f.extend_from_slice(&kind.to_be_bytes());
                typed = true;
            }
            "eth_type" => {
                kind =
                    number(value(w.text)).and_then(|n| u16::try_from(n).ok()).ok_or("eth_type(): expected a number")?;
                f.extend_from_slice(&kind.to_be_bytes());
                typed = true;
            }
            "vlan" => {
                if !std::mem::take(&mut typed) {
                    f.extend_from_slice(&TAG_TYPE.to_be_bytes());
                }
                let tci = w.number("pcp")? << 13 | w.number("vid")? & 0xfff;
                f.extend_from_slice(&(tci as u16).to_be_bytes());
                typed = false;
            }
            _ => {}
        }
    }
    // Without an EtherType it is that of the header behind it, else 0, a length of IEEE 802.3.
    if !typed {
        let types = [("ipv4", ethertype::IPV4), ("ipv6", ethertype::IPV6), ("arp", ethertype::ARP)];
        kind = types.iter().find(|(name, _)| word(name).is_some()).map_or(0, |(_, kind)| *kind);
        f.extend_from_slice(&kind.to_be_bytes());
    }
    if let Some(labels) = word("mpls") {
        put_labels(&mut f, labels)?;
    }
    // A header that the EtherType says and no word describes has zeros.
    let header = |name| word(name).unwrap_or(&none);
    match kind {
        ethertype::IPV4 => ipv4(&mut f, header("ipv4"), words, payload)?,
        ethertype::IPV6 => ipv6(&mut f, header("ipv6"), words, payload)?,
        ethertype::ARP | ethertype::RARP => {
            let arp = header("arp");
            let mac = |key| arp.parsed(key, Mac::ZERO);
            let ip = |key| arp.parsed(key, Ipv4Addr::UNSPECIFIED);
            f.extend_from_slice(&[0, 1, 8, 0, 6, 4]);
            f.extend_from_slice(&(arp.number("op")? as u16).to_be_bytes());
            for (hardware, protocol) in [("sha", "sip"), ("tha", "tip")] {
                f.extend_from_slice(&mac(hardware)?[..]);
                f.extend_from_slice(&ip(protocol)?.octets());
            }
        }
        _ => {}
    }
    Ok(f)
}

/// Appends label stack entries: `mpls(label=…,tc=…,ttl=…,bos=…)`, or `mpls(lse0=0x…,lse1=0x…)` for several.
fn put_labels(f: &mut Vec<u8>, w: &Word<'_>) -> Result<(), String> {
    let whole: Vec<u32> =
        (0..3).map_while(|i| w.get(&format!("lse{i}"))).filter_map(number).map(|n| n as u32).collect();
    whole.iter().for_each(|entry| f.extend_from_slice(&entry.to_be_bytes()));
    if whole.is_empty() {
        let entry = w.number("label")? << 12 | w.number("tc")? << 9 | w.number("bos")? << 8 | w.number("ttl")? & 0xff;
        f.extend_from_slice(&(entry as u32).to_be_bytes());
    }
    Ok(())
}

fn ipv4(f: &mut Vec<u8>, ip: &Word<'_>, words: &[Word<'_>], payload: Option<usize>) -> Result<(), String> {
    let (l3, proto) = (f.len(), ip.number("proto")? as u8);
    let fragment = match ip.get("frag") {
        Some("first") => MORE_FRAGMENTS,
        Some("later") => MORE_FRAGMENTS | LATER,
        _ => 0,
    };
    f.extend_from_slice(&[0x45, ip.number("tos")? as u8, 0, 0, 0, 0]);
    f.extend_from_slice(&fragment.to_be_bytes());
    f.extend_from_slice(&[ip.number("ttl")? as u8, proto, 0, 0]);
    f.extend_from_slice(&ip.parsed("src", Ipv4Addr::UNSPECIFIED)?.octets());
    f.extend_from_slice(&ip.parsed("dst", Ipv4Addr::UNSPECIFIED)?.octets());
    if fragment & !MORE_FRAGMENTS == 0 {
        transport(f, proto, words, payload)?;
    }
    let total = (f.len() - l3) as u16;
    f.splice(l3 + 2..l3 + 4, total.to_be_bytes());
    checksum::set_ipv4(f, l3);
    set_transport_checksum(f);
    Ok(())
}

fn ipv6(f: &mut Vec<u8>, ip: &Word<'_>, words: &[Word<'_>], payload: Option<usize>) -> Result<(), String> {
    let (l3, proto) = (f.len(), ip.number("proto")? as u8);
    let first = 6 << 28 | (ip.number("tclass")? & 0xff) << 20 | ip.number("label")? & 0xf_ffff;
    f.extend_from_slice(&(first as u32).to_be_bytes());
    f.extend_from_slice(&[0, 0, proto, ip.number("hlimit")? as u8]);
    f.extend_from_slice(&ip.parsed("src", Ipv6Addr::UNSPECIFIED)?.octets());
    f.extend_from_slice(&ip.parsed("dst", Ipv6Addr::UNSPECIFIED)?.octets());
    transport(f, proto, words, payload)?;
    let length = (f.len() - l3 - 40) as u16;
    f.splice(l3 + 4..l3 + 6, length.to_be_bytes());
    set_transport_checksum(f);
    Ok(())
}

fn set_transport_checksum(f: &mut [u8]) {
    if let Some(h) = Headers::parse_tags(f, 2) {
        checksum::set_l4(f, &h);
    }
}

/// Appends a transport header and its payload.
fn transport(f: &mut Vec<u8>, proto: u8, words: &[Word<'_>], payload: Option<usize>) -> Result<(), String> {
    let none = Word { name: "", text: "" };
    let word = |name: &str| words.iter().find(|w| w.name == name).unwrap_or(&none);
    let ports = |f: &mut Vec<u8>, w: &Word<'_>| -> Result<(), String> {
        for key in ["src", "dst"] {
            f.extend_from_slice(&(w.number(key)? as u16).to_be_bytes());
        }
        Ok(())
    };
    let mut carries = true;
    match proto {
        ipproto::TCP => {
            let flags = tcp_flags(value(word("tcp_flags").text))?;
            ports(f, word("tcp"))?;
            f.extend_from_slice(&[0; 8]);
            f.extend_from_slice(&(5 << 12 | flags).to_be_bytes());
            f.extend_from_slice(&[0; 6]);
            carries = flags & TCP_CONTROL == 0;
        }
        ipproto::UDP => {
            ports(f, word("udp"))?;
            f.extend_from_slice(&(8 + payload.unwrap_or(PAYLOAD) as u16).to_be_bytes());
            f.extend_from_slice(&[0, 0]);
        }
        ipproto::SCTP => {
            ports(f, word("sctp"))?;
            f.extend_from_slice(&[0; 8]);
            carries = false;
        }
        ipproto::ICMP | ipproto::ICMPV6 => {
            let w = word(if proto == ipproto::ICMP { "icmp" } else { "icmpv6" });
            let (kind, code) = (w.number("type")? as u8, w.number("code")? as u8);
            f.extend_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
            if proto == ipproto::ICMPV6 && matches!(kind, 135 | 136) {
                neighbour(f, word("nd"))?;
            }
            // Echo requests and answers.
            carries =
                code == 0 && if proto == ipproto::ICMP { matches!(kind, 0 | 8) } else { matches!(kind, 128 | 129) };
        }
        _ => carries = false,
    }
    // A length that is asked for is made up with payload of whatever header.
    let room = payload.unwrap_or(if carries { PAYLOAD } else { 0 });
    f.extend((0..room).map(|i| i as u8));
    Ok(())
}

/// TCP's flags, as a number or by name: `syn|ack`, `+syn-ack`.
fn tcp_flags(text: &str) -> Result<u16, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let given = match number(text) {
        Some(n) => n as u128,
        None => {
            let named =
                if text.starts_with(['+', '-']) { text.to_string() } else { format!("+{}", text.replace('|', "+")) };
            let m = openflow_rs::text::parse_match(&format!("tcp,tcp_flags={named}"));
            m.map_err(|e| format!("tcp_flags({text}): {e}"))?.get(openflow_rs::FieldId::TcpFlags).0
        }
    };
    Ok(given as u16 & 0xfff)
}

/// Appends what neighbour discovery has behind its header (RFC 4861 sections 4.3 and 4.6.1).
fn neighbour(f: &mut Vec<u8>, nd: &Word<'_>) -> Result<(), String> {
    f.extend_from_slice(&nd.parsed("target", Ipv6Addr::UNSPECIFIED)?.octets());
    for (option, key) in [(1, "sll"), (2, "tll")] {
        let mac = nd.parsed(key, Mac::ZERO)?;
        if mac != Mac::ZERO {
            f.extend_from_slice(&[option, 1]);
            f.extend_from_slice(&mac[..]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{compose, packet_type};
    use openflow_rs::action::PacketType;
    use packet::{Headers, Mac, build, checksum};
    use std::net::Ipv4Addr;

    #[test]
    fn words_are_the_frames_that_builders_make() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let ends = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let eth = format!("in_port(1),eth(src={a},dst={b})");
        let udp = "ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=no),udp(src=5,dst=0x10)";
        let payload: Vec<u8> = (0..64).collect();
        let wanted = build::udp(b, a, (ends.0.into(), 5), (ends.1.into(), 16), 64, &payload);
        assert_eq!(compose(&format!("{eth},eth_type(0x0800),{udp}"), None).ok(), wanted);
        let short = build::udp(b, a, (ends.0.into(), 5), (ends.1.into(), 16), 64, &payload[..18]);
        assert_eq!(compose(&format!("{eth},eth_type(0x0800),{udp}"), Some(60)).ok(), short);
        let arp = format!(
            "eth(src={a},dst=ff:ff:ff:ff:ff:ff),eth_type(0x0806),arp(sip=10.0.0.1,tip=10.0.0.2,op=1,sha={a},tha=00:00:00:00:00:00)"
        );
        assert_eq!(compose(&arp, None), Ok(build::arp_request(a, ends.0, ends.1)));
        // A tag, and the frame within it.
        let tagged = compose(&format!("{eth},eth_type(0x8100),vlan(vid=7,pcp=2),encap(eth_type(0x0800),{udp})"), None);
        let (tagged, plain) = (tagged.unwrap_or_default(), wanted.unwrap_or_default());
        assert_eq!(tagged, [&plain[..12], &[0x81, 0, 0x40, 7], &plain[12..]].concat());
    }

    #[test]
    fn other_headers_are_whole() {
        for text in [
            "eth(),eth_type(0x0800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=6,ttl=3),tcp(src=1,dst=2),tcp_flags(0x002)",
            "eth(),eth_type(0x0800),ipv4(proto=1,ttl=3),icmp(type=8,code=0)",
            "eth(),eth_type(0x86dd),ipv6(src=fe80::1,dst=fe80::2,label=1,proto=58,tclass=0x4,hlimit=255),icmpv6(type=135),nd(target=fe80::2,sll=02:00:00:00:00:01)",
        ] {
            let f = compose(text, None).unwrap_or_else(|e| panic!("{text}: {e}"));
            let h = Headers::parse(&f).unwrap_or_else(|| panic!("{text}"));
            assert!(h.ip_ok && checksum::l4_ok(&f, &h), "{text}: {f:02x?}");
        }
        for wrong in ["eth(", "eth(src=1),eth_type(1)", "eth(),eth_type(x)", "word"] {
            assert!(compose(wrong, None).is_err(), "{wrong}");
        }
        assert_eq!(compose("eth()", None), Ok(vec![0; 14]), "without an EtherType it is 0");
        assert_eq!(compose("in_port(1)", None), Ok(vec![0; 14]), "of a header that is not named any would fit");
        let label = "eth(),eth_type(0x8847),mpls(label=10,tc=3,ttl=64,bos=1)";
        assert_eq!(compose(label, None).map(|f| f[14..].to_vec()), Ok(vec![0, 0, 0xa7, 0x40]));
        let stack = "eth(),eth_type(0x8847),mpls(lse0=0xa040,lse1=0x14140)";
        assert_eq!(compose(stack, None).map(|f| f[14..].to_vec()), Ok(vec![0, 0, 0xa0, 0x40, 0, 1, 0x41, 0x40]));
        // What has no Ethernet header begins with a stand-in for one.
        let plain =
            "in_port(1),packet_type(ns=1,id=0x800),ipv4(src=1.2.3.4,dst=5.6.7.8,proto=17,ttl=3),udp(src=1,dst=2)";
        let with = plain.replace("packet_type(ns=1,id=0x800)", "packet_type(ns=0,id=0),eth(),eth_type(0x0800)");
        assert_eq!(compose(plain, None), compose(&with, None));
        assert_eq!(compose("packet_type(ns=1,id=0),ipv4(frag=no)", None), Ok(vec![0; 14]));
        let types = [(plain, Some(PacketType::IPV4)), (with.as_str(), Some(PacketType::ETHERNET)), ("eth()", None)];
        types.into_iter().for_each(|(text, kind)| assert_eq!(packet_type(text), Ok(kind)));
        for wrong in ["packet_type(ns=2,id=0)", "packet_type(ns=0,id=5)", "packet_type(ns=1,id=0x10000)"] {
            assert!(packet_type(wrong).is_err(), "{wrong}");
        }
        let long = "eth(),eth_type(0x0800),ipv4(proto=17),udp(src=1)";
        assert!(compose(long, Some(20)).is_err());
    }
}
