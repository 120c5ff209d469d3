//! Messages of all kinds that are wrong, byte by byte, to our switch and to Debian's Open vSwitch: the same are
//! refused, with the same error type and code.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
const OF10: u8 = 1;
const OF13: u8 = 4;
const OF14: u8 = 5;
const OF15: u8 = 6;

/// Bytes as hexadecimal digits; what is between them does not count.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    assert!(digits.len().is_multiple_of(2), "{text}");
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

/// A message, whatever is in it.
fn message(version: u8, kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    let len = (8 + body.len() as u16).to_be_bytes();
    [&[version, kind, len[0], len[1]], &xid.to_be_bytes()[..], body].concat()
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Answer {
    Taken,
    Refused(u16, u16),
    Gone,
}

/// A connection, and what it has seen.
struct Talk {
    stream: UnixStream,
    version: u8,
    xid: u32,
}

impl Talk {
    fn begin(path: &str, version: u8) -> Talk {
        let stream = UnixStream::connect(path).expect("connects");
        stream.set_read_timeout(Some(SOON)).expect("timeout");
        let mut t = Talk { stream, version, xid: 100 };
        let hello = [&[0, 1, 0, 8], &(1u32 << version).to_be_bytes()[..]].concat();
        t.stream.write_all(&message(version, 0, 1, &hello)).expect("sent");
        t
    }

    fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head).ok()?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]])).checked_sub(8)?];
        self.stream.read_exact(&mut body).ok()?;
        Some((head[1], u32::from_be_bytes([head[4], head[5], head[6], head[7]]), body))
    }

    /// Sends a message, and an echo request behind it.
    fn ask(&mut self, kind: u8, body: &[u8]) -> Answer {
        self.xid += 2;
        let (own, echo) = (self.xid, self.xid + 1);
        // A bundle's message has the number of the one around it.
        let mut body = body.to_vec();
        if kind == 34 && body.get(12..16) == Some(&0x5555u32.to_be_bytes()) {
            body[12..16].copy_from_slice(&own.to_be_bytes());
        }
        let body = &body;
        let both = [message(self.version, kind, own, body), message(self.version, 2, echo, &[])].concat();
        if self.stream.write_all(&both).is_err() {
            return Answer::Gone;
        }
        let mut answer = Answer::Taken;
        loop {
            match self.next() {
                None => return Answer::Gone,
                Some((3, xid, _)) if xid == echo => return answer,
                Some((1, xid, b)) if xid == own && b.len() >= 4 && answer == Answer::Taken => {
                    answer = Answer::Refused(u16::from_be_bytes([b[0], b[1]]), u16::from_be_bytes([b[2], b[3]]));
                }
                _ => {}
            }
        }
    }
}

include!("refusals/cases.rs");

#[test]
fn what_is_malformed_is_refused_alike() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("rfo"), Namespace::new("rfd"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for s in &switches {
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure");
        s.vsctl("add-port br0 i1 -- set interface i1 type=internal ofport_request=1");
        s.becomes("get interface i1 ofport", "1", SOON);
        eventually("OpenFlow", SOON, || s.try_ofctl(&["show", "br0"]).map(drop));
    }
    let (mut bad, mut refused, mut n) = (Vec::new(), 0, 0);
    for version in [OF10, OF13, OF14, OF15] {
        let [mut ours, mut theirs] = switches.each_ref().map(|s| Talk::begin(&s.path("br0.mgmt"), version));
        for (name, kind, body) in cases(version) {
            let [mine, other] = [&mut ours, &mut theirs].map(|t| t.ask(kind, &body));
            n += 1;
            refused += usize::from(other != Answer::Taken);
            if mine != other {
                bad.push(format!("version {version}, {name}: ours {mine:?}, theirs {other:?}"));
            }
            for (s, t, answer) in [(&switches[0], &mut ours, mine), (&switches[1], &mut theirs, other)] {
                if answer == Answer::Gone {
                    *t = Talk::begin(&s.path("br0.mgmt"), version);
                }
            }
        }
    }
    // Errors of Nicira's say whose they are, or nobody could name them.
    for s in &switches {
        let e = s.try_ofctl(&["add-flow", "br0", "tun_metadata1=1,actions=drop"]).expect_err("no such option");
        assert!(e.contains("NXFMFC_INVALID_TLV_FIELD"), "{e}");
    }
    println!("{n} messages, {refused} refused, {} otherwise by ours", bad.len());
    assert!(refused > n / 2, "{refused} of {n}");
    assert!(bad.is_empty(), "{} of {n}\n{}", bad.len(), bad.join("\n"));
}
