//! Bridge protocol data units of the spanning tree protocol (IEEE 802.1D-1998 clause 9), with their frame.

use crate::Mac;
use std::time::Duration;

/// The address that bridges send them to (IEEE 802.1D table 7-9).
pub const ADDRESS: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 0]);
/// LLC: the spanning tree's service access points, unnumbered information.
const LLC: [u8; 3] = [0x42, 0x42, 0x03];
/// Octets of a configuration message and of a notification of a topology change.
const CONFIG: usize = 35;
const NOTIFICATION: usize = 4;
/// Types of messages.
const TYPE_CONFIG: u8 = 0;
const TYPE_NOTIFICATION: u8 = 0x80;
/// Flags: the topology changes; a notification of that is acknowledged.
const CHANGE: u8 = 0x01;
const ACKNOWLEDGED: u8 = 0x80;
/// The shortest frame of Ethernet without its checksum.
const SHORTEST: usize = 60;

/// What a bridge tells its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bpdu {
    /// The tree as it sees it.
    Config(Config),
    /// The topology has changed.
    Notification,
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
        TYPE_CONFIG if pdu.len() >= CONFIG => {
            let long = |at: usize| Some(u64::from(crate::be32(pdu, at)?) << 32 | u64::from(crate::be32(pdu, at + 4)?));
            let time = |at: usize| crate::be16(pdu, at).map(from_units);
            let flags = *pdu.get(4)?;
            Some(Bpdu::Config(Config {
                change: flags & CHANGE != 0,
                acknowledged: flags & ACKNOWLEDGED != 0,
                root: long(5)?,
                cost: crate::be32(pdu, 13)?,
                bridge: long(17)?,
                port: crate::be16(pdu, 25)?,
                age: time(27)?,
                max_age: time(29)?,
                hello: time(31)?,
                forward_delay: time(33)?,
            }))
        }
        _ => None,
    }
}

/// The frame of a BPDU from a port with this address.
pub fn compose(source: Mac, bpdu: &Bpdu) -> Vec<u8> {
    let (kind, n) = match bpdu {
        Bpdu::Config(_) => (TYPE_CONFIG, CONFIG),
        Bpdu::Notification => (TYPE_NOTIFICATION, NOTIFICATION),
    };
    let mut f = Vec::with_capacity(SHORTEST);
    f.extend_from_slice(&ADDRESS[..]);
    f.extend_from_slice(&source[..]);
    f.extend_from_slice(&((LLC.len() + n) as u16).to_be_bytes());
    f.extend_from_slice(&LLC);
    // Protocol, version.
    f.extend_from_slice(&[0, 0, 0, kind]);
    if let Bpdu::Config(c) = bpdu {
        f.push(if c.change { CHANGE } else { 0 } | if c.acknowledged { ACKNOWLEDGED } else { 0 });
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
