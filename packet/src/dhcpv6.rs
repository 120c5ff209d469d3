//! DHCPv6 messages (RFC 8415): codes, and the form of options.

/// Message types (RFC 8415 section 7.3).
pub mod kind {
    #![allow(missing_docs)]
    pub const SOLICIT: u8 = 1;
    pub const ADVERTISE: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const CONFIRM: u8 = 4;
    pub const RENEW: u8 = 5;
    pub const REBIND: u8 = 6;
    pub const REPLY: u8 = 7;
    pub const RELEASE: u8 = 8;
    pub const DECLINE: u8 = 9;
    pub const INFORMATION_REQUEST: u8 = 11;
}

/// The name of a message type, as the RFC has it.
pub fn kind_name(kind: u8) -> &'static str {
    const NAMES: [&str; 12] = [
        "",
        "SOLICIT",
        "ADVERTISE",
        "REQUEST",
        "CONFIRM",
        "RENEW",
        "REBIND",
        "REPLY",
        "RELEASE",
        "DECLINE",
        "RECONFIGURE",
        "INFORMATION-REQUEST",
    ];
    NAMES.get(usize::from(kind)).filter(|n| !n.is_empty()).unwrap_or(&"UNKNOWN")
}

/// Option codes (RFC 8415 section 21, RFC 3646, RFC 4704, RFC 5970).
pub mod option {
    #![allow(missing_docs)]
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_ADDR: u16 = 5;
    pub const ELAPSED_TIME: u16 = 8;
    pub const STATUS: u16 = 13;
    pub const USER_CLASS: u16 = 15;
    pub const VENDOR_CLASS: u16 = 16;
    pub const DOMAIN_SEARCH: u16 = 24;
    pub const IA_PD: u16 = 25;
    pub const IA_PREFIX: u16 = 26;
    pub const FQDN: u16 = 39;
    pub const BOOT_FILE: u16 = 59;
    pub const BOOT_PARAMETERS: u16 = 60;
    pub const ARCHITECTURE: u16 = 61;
}

/// Lifetimes that never end (RFC 8415 section 7.7).
pub const FOREVER: [u8; 4] = [0xff; 4];
/// The status code of success (RFC 8415 section 21.13).
pub const SUCCESS: [u8; 2] = [0, 0];

/// Code and value of each option (RFC 8415 section 21.1), up to the first that is cut off.
pub fn options(mut b: &[u8]) -> Vec<(u16, &[u8])> {
    let mut out = Vec::new();
    while let Some((head, rest)) = b.split_at_checked(4) {
        let (code, len) = (u16::from_be_bytes([head[0], head[1]]), u16::from_be_bytes([head[2], head[3]]));
        let Some((value, after)) = rest.split_at_checked(usize::from(len)) else { break };
        out.push((code, value));
        b = after;
    }
    out
}

/// Adds an option of at most 65,535 octets.
pub fn put(message: &mut Vec<u8>, code: u16, value: &[u8]) {
    message.extend(code.to_be_bytes());
    message.extend((value.len() as u16).to_be_bytes());
    message.extend(value);
}

/// The DUID of an Ethernet address (DUID-LL, RFC 8415 section 11.4).
pub fn duid_ll(mac: &[u8]) -> Vec<u8> {
    [&[0, 3, 0, 1], mac].concat()
}

/// An identity association with one address for ever (RFC 8415 sections 21.4 and 21.6).
pub fn association(iaid: &[u8], address: &[u8]) -> Vec<u8> {
    let mut a = [iaid, &FOREVER, &FOREVER].concat();
    put(&mut a, option::IA_ADDR, &[address, &FOREVER, &FOREVER].concat());
    a
}
