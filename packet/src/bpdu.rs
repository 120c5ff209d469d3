//! Bridge protocol data units of the spanning tree protocol (IEEE 802.1D-1998 clause 9) and of the rapid one (IEEE
//! 802.1D-2004 clause 9), with their frame.

use crate::Mac;
use std::time::Duration;

/// The address that bridges send them to (IEEE 802.1D table 7-9).
pub const ADDRESS: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 0]);
/// LLC: the spanning tree's service access points, unnumbered information.
const LLC: [u8; 3] = [0x42, 0x42, 0x03];
/// Octets of a configuration message and of a notification of a topology change.
const CONFIG: usize = 35;
const NOTIFICATION: usize = 4;
/// Octets of a rapid one.
const RAPID: usize = 36;
/// Types of messages.
const TYPE_CONFIG: u8 = 0;
const TYPE_NOTIFICATION: u8 = 0x80;
const TYPE_RAPID: u8 = 2;
/// The version of the rapid protocol.
const VERSION_RAPID: u8 = 2;
/// Flags: the topology changes; a notification of that is acknowledged.
const CHANGE: u8 = 0x01;
const ACKNOWLEDGED: u8 = 0x80;
/// Flags of rapid messages (IEEE 802.1D-2004 figure 9-3); the role is in two bits.
const PROPOSAL: u8 = 0x02;
const ROLE_SHIFT: u8 = 2;
const LEARNING: u8 = 0x10;
const FORWARDING: u8 = 0x20;
const AGREEMENT: u8 = 0x40;
/// The shortest frame of Ethernet without its checksum.
const SHORTEST: usize = 60;

/// What a bridge tells its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bpdu {
    /// The tree as it sees it.
    Config(Config),
    /// The topology has changed.
    Notification,
    /// The tree as it sees it, in the rapid protocol.
    Rapid(Rapid),
}

/// The part of the port that sends a rapid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Of an older kind.
    Unknown,
    /// Another way to the root, or back to the bridge itself.
    Alternate,
    /// Leads to the root.
    Root,
    /// Leads others to the root.
    Designated,
}

/// A rapid message. Its `acknowledged` is never set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rapid {
    /// What the older protocol says as well.
    pub config: Config,
    /// The part of the port.
    pub role: Role,
    /// It would forward if the other side agreed.
    pub proposal: bool,
    /// It learns addresses.
    pub learning: bool,
    /// It forwards.
    pub forwarding: bool,
    /// It agrees.
    pub agreement: bool,
}

/// A configuration message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Config {
    /// The topology changes: addresses age faster.
    pub change: bool,
    /// Answers a notification.
    pub acknowledged: bool,
    /// Priority and address of the root.
    pub root: u64,
    /// The way to it.
    pub cost: u32,
    /// Priority and address of the sender.
    pub bridge: u64,
    /// Priority and number of its port.
    pub port: u16,
    /// How old this is.
    pub age: Duration,
    /// When it is forgotten.
    pub max_age: Duration,
    /// How often it comes.
    pub hello: Duration,
    /// How long ports listen, and learn.
    pub forward_delay: Duration,
}

/// Times are sent in units of 1/256 s.
fn from_units(n: u16) -> Duration {
    Duration::from_nanos(u64::from(n) * 1_000_000_000 / 256)
}

fn to_units(d: Duration) -> u16 {
    u16::try_from((d.as_nanos() * 256).div_ceil(1_000_000_000)).unwrap_or(u16::MAX)
}

/// Reads the frame of a BPDU; none if it is another one, or malformed.
pub fn parse(frame: &[u8]) -> Option<Bpdu> {
    let length = usize::from(crate::be16(frame, 12)?);
    let pdu = frame.get(14..)?.get(..length)?.strip_prefix(&LLC)?;
    if frame.get(..6)? != &ADDRESS[..] || crate::be16(pdu, 0)? != 0 {
        return None;
    }
    match *pdu.get(3)? {
        TYPE_NOTIFICATION => Some(Bpdu::Notification),
        kind @ (TYPE_CONFIG | TYPE_RAPID) if pdu.len() >= CONFIG => {
            let long = |at: usize| Some(u64::from(crate::be32(pdu, at)?) << 32 | u64::from(crate::be32(pdu, at + 4)?));
            let time = |at: usize| crate::be16(pdu, at).map(from_units);
            let flags = *pdu.get(4)?;
            let config = Config {
                change: flags & CHANGE != 0,
                acknowledged: kind == TYPE_CONFIG && flags & ACKNOWLEDGED != 0,
                root: long(5)?,
                cost: crate::be32(pdu, 13)?,
                bridge: long(17)?,
                port: crate::be16(pdu, 25)?,
                age: time(27)?,
                max_age: time(29)?,
                hello: time(31)?,
                forward_delay: time(33)?,
            };
            if kind == TYPE_CONFIG {
                return Some(Bpdu::Config(config));
            }
            // A message of a bridge that calls itself older is none of the rapid protocol (9.3.4).
            (*pdu.get(2)? >= VERSION_RAPID).then_some({
                Bpdu::Rapid(Rapid {
                    config,
                    role: match flags >> ROLE_SHIFT & 3 {
                        1 => Role::Alternate,
                        2 => Role::Root,
                        3 => Role::Designated,
                        _ => Role::Unknown,
                    },
                    proposal: flags & PROPOSAL != 0,
                    learning: flags & LEARNING != 0,
                    forwarding: flags & FORWARDING != 0,
                    agreement: flags & AGREEMENT != 0,
                })
            })
        }
        _ => None,
    }
}

/// The frame of a BPDU from a port with this address.
pub fn compose(source: Mac, bpdu: &Bpdu) -> Vec<u8> {
    let (kind, version, n) = match bpdu {
        Bpdu::Config(_) => (TYPE_CONFIG, 0, CONFIG),
        Bpdu::Notification => (TYPE_NOTIFICATION, 0, NOTIFICATION),
        Bpdu::Rapid(_) => (TYPE_RAPID, VERSION_RAPID, RAPID),
    };
    let mut f = Vec::with_capacity(SHORTEST);
    f.extend_from_slice(&ADDRESS[..]);
    f.extend_from_slice(&source[..]);
    f.extend_from_slice(&((LLC.len() + n) as u16).to_be_bytes());
    f.extend_from_slice(&LLC);
    // Protocol, version.
    f.extend_from_slice(&[0, 0, version, kind]);
    let flag = |is: bool, bit: u8| if is { bit } else { 0 };
    let fields = match bpdu {
        Bpdu::Notification => None,
        Bpdu::Config(c) => Some((c, flag(c.acknowledged, ACKNOWLEDGED))),
        Bpdu::Rapid(r) => {
            let role = match r.role {
                Role::Unknown => 0,
                Role::Alternate => 1,
                Role::Root => 2,
                Role::Designated => 3,
            };
            let states = flag(r.learning, LEARNING) | flag(r.forwarding, FORWARDING);
            let words = flag(r.proposal, PROPOSAL) | flag(r.agreement, AGREEMENT);
            Some((&r.config, role << ROLE_SHIFT | states | words))
        }
    };
    // The rapid message's last octet, the length of what version 1 has of its own, is 0, as padding is.
    if let Some((c, flags)) = fields {
        f.push(flag(c.change, CHANGE) | flags);
        f.extend_from_slice(&c.root.to_be_bytes());
        f.extend_from_slice(&c.cost.to_be_bytes());
        f.extend_from_slice(&c.bridge.to_be_bytes());
        f.extend_from_slice(&c.port.to_be_bytes());
        for t in [c.age, c.max_age, c.hello, c.forward_delay] {
            f.extend_from_slice(&to_units(t).to_be_bytes());
        }
    }
    f.resize(f.len().max(SHORTEST), 0);
    f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_hold_what_they_are_made_of() {
        let c = Config {
            change: true,
            acknowledged: false,
            root: 0x8000_aa66_aa66_0000,
            cost: 19,
            bridge: 0x8000_aa66_aa66_0001,
            port: 0x8003,
            age: Duration::from_secs(1),
            max_age: Duration::from_secs(20),
            hello: Duration::from_secs(2),
            forward_delay: Duration::from_secs(15),
        };
        let source = Mac([2, 0, 0, 0, 0, 1]);
        let rapid = Rapid {
            config: c,
            role: Role::Designated,
            proposal: true,
            learning: true,
            forwarding: false,
            agreement: false,
        };
        let frame = compose(source, &Bpdu::Rapid(rapid));
        // Length 39 with LLC; protocol 0, version 2, type 2; change, proposal, designated, learning.
        assert_eq!(frame.get(12..22), Some(&[0, 39, 0x42, 0x42, 3, 0, 0, 2, 2, 0x1f][..]));
        assert_eq!((frame.len(), parse(&frame)), (60, Some(Bpdu::Rapid(rapid))));
        let frame = compose(source, &Bpdu::Config(c));
        assert_eq!((frame.len(), parse(&frame)), (60, Some(Bpdu::Config(c))));
        assert_eq!(parse(&compose(source, &Bpdu::Notification)), Some(Bpdu::Notification));
        // A message of the kernel's bridge: priority 32768, the port is number 1.
        let kernel = [0x42, 0x42, 0x03, 0, 0, 0, 0, 0, 0x80, 0, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0x80, 0];
        let rest = [2, 0, 0, 0, 0, 9, 0x80, 1, 0, 0, 0x14, 0, 2, 0, 0x0f, 0];
        let mut frame = [&ADDRESS[..], &source[..], &[0, 38], &kernel, &rest].concat();
        frame.resize(60, 0);
        let Some(Bpdu::Config(c)) = parse(&frame) else { panic!("{:?}", parse(&frame)) };
        assert_eq!((c.root, c.port, c.max_age.as_secs()), (0x8000_0200_0000_0009, 0x8001, 20));
        for n in 0..52 {
            assert_eq!(parse(frame.get(..n).unwrap_or_default()), None, "{n} octets");
        }
        frame[0] = 3;
        assert_eq!(parse(&frame), None);
    }
}
