//! DHCPv4 messages (RFC 2131, options of RFC 2132): their places, codes and options.

use crate::{Headers, Mac, be32, ipproto, mac_at};
use std::net::Ipv4Addr;

/// Operations, the first octet.
pub const BOOTREQUEST: u8 = 1;
/// See [`BOOTREQUEST`].
pub const BOOTREPLY: u8 = 2;

/// Values of the option [`option::MESSAGE_TYPE`] (RFC 2132 section 9.6).
pub mod kind {
    #![allow(missing_docs)]
    pub const DISCOVER: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const DECLINE: u8 = 4;
    pub const ACK: u8 = 5;
    pub const NAK: u8 = 6;
    pub const RELEASE: u8 = 7;
    pub const INFORM: u8 = 8;
}

/// Option codes (RFC 2132).
pub mod option {
    #![allow(missing_docs)]
    pub const PAD: u8 = 0;
    pub const NETMASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const REQUESTED_IP: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const OVERLOAD: u8 = 52;
    pub const VENDOR_OPTIONS: u8 = 43;
    pub const SERVER_ID: u8 = 54;
    pub const MAX_SIZE: u8 = 57;
    pub const VENDOR_CLASS: u8 = 60;
    pub const USER_CLASS: u8 = 77;
    /// The client's architecture (RFC 4578 section 2.1).
    pub const ARCHITECTURE: u8 = 93;
    pub const RENEWAL: u8 = 58;
    pub const REBINDING: u8 = 59;
    pub const BOOT_FILE: u8 = 67;
    /// By which iPXE says that it is iPXE.
    pub const IPXE: u8 = 175;
    pub const END: u8 = 255;
}

/// Stands between the fixed part and the options (RFC 2131 section 3).
pub const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Octets of the fixed part, before the cookie (RFC 2131 section 2).
pub const FIXED: usize = 236;

/// Places in the fixed part (RFC 2131 section 2).
pub mod place {
    #![allow(missing_docs)]
    pub const HOPS: usize = 3;
    pub const XID: usize = 4;
    pub const FLAGS: usize = 10;
    pub const CIADDR: usize = 12;
    pub const YIADDR: usize = 16;
    pub const SIADDR: usize = 20;
    pub const GIADDR: usize = 24;
    pub const CHADDR: usize = 28;
    pub const SNAME: usize = 44;
    pub const FILE: usize = 108;
}

/// Code and value of each option, up to the end or to the first that is cut off.
pub fn options(mut b: &[u8]) -> Vec<(u8, &[u8])> {
    let mut out = Vec::new();
    while let [code, rest @ ..] = b {
        match (*code, rest) {
            (option::END, _) => break,
            (option::PAD, _) => b = rest,
            (code, [len, rest @ ..]) if rest.len() >= usize::from(*len) => {
                let (value, after) = rest.split_at(usize::from(*len));
                out.push((code, value));
                b = after;
            }
            _ => break,
        }
    }
    out
}

/// A message in a frame.
#[derive(Debug)]
pub struct Message<'a> {
    /// The frame's headers.
    pub headers: Headers,
    /// The message, from its operation on.
    pub bytes: &'a [u8],
    /// The fixed part.
    pub fixed: [u8; FIXED],
    /// Its options.
    pub options: Vec<(u8, &'a [u8])>,
}

impl<'a> Message<'a> {
    /// Reads the message of a frame; none where it holds no whole IPv4 datagram with one.
    pub fn parse(frame: &'a [u8]) -> Option<Message<'a>> {
        let headers = Headers::parse(frame)?;
        if !headers.is_ipv4() || headers.proto != ipproto::UDP || headers.fragment {
            return None;
        }
        let bytes = frame.get(headers.l4? + 8..headers.l3_end)?;
        let fixed = bytes.get(..FIXED)?.try_into().ok()?;
        let options = bytes.get(FIXED..)?.strip_prefix(&COOKIE).map(options)?;
        Some(Message { headers, bytes, fixed, options })
    }

    /// [`BOOTREQUEST`] or [`BOOTREPLY`].
    pub fn operation(&self) -> u8 {
        self.fixed[0]
    }

    /// Whether the client's hardware is Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.fixed[1..3] == [1, 6]
    }

    /// Whether the client asks for an answer by broadcast (RFC 2131 section 2, "B").
    pub fn broadcast(&self) -> bool {
        self.fixed[place::FLAGS] & 0x80 != 0
    }

    /// The address at a [`place`].
    pub fn address(&self, at: usize) -> Ipv4Addr {
        be32(&self.fixed, at).unwrap_or(0).into()
    }

    /// The client's Ethernet address.
    pub fn client(&self) -> Mac {
        mac_at(&self.fixed, place::CHADDR).unwrap_or_default()
    }

    /// The transaction's number.
    pub fn xid(&self) -> u32 {
        be32(&self.fixed, place::XID).unwrap_or(0)
    }

    /// An option's value.
    pub fn option(&self, code: u8) -> Option<&'a [u8]> {
        self.options.iter().find(|(c, _)| *c == code).map(|(_, v)| *v)
    }

    /// An option whose value is an address.
    pub fn option_address(&self, code: u8) -> Option<Ipv4Addr> {
        self.option(code).and_then(address)
    }

    /// What kind of message it is ([`kind`]); none where it says nothing, or 0.
    pub fn kind(&self) -> Option<u8> {
        self.option(option::MESSAGE_TYPE)?.first().copied().filter(|k| *k != 0)
    }

    /// The kind's name, as logs have it.
    pub fn kind_name(&self) -> &'static str {
        const NAMES: [&str; 9] = ["", "DISCOVER", "OFFER", "REQUEST", "DECLINE", "ACK", "NAK", "RELEASE", "INFORM"];
        self.kind().and_then(|k| NAMES.get(usize::from(k))).unwrap_or(&"UNKNOWN")
    }
}

/// An option's value as an address.
pub fn address(value: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from)
}
