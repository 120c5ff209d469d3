//! The table as text: `ovs-appctl dpctl/dump-conntrack`.

use super::{Connection, Conntrack, TcpState, Tuple, Zone};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

impl Tuple {
    fn address(&self, v: u128) -> IpAddr {
        if self.v6 { IpAddr::V6(Ipv6Addr::from(v)) } else { IpAddr::V4(Ipv4Addr::from(v as u32)) }
    }

    fn text(&self) -> String {
        let (s, d) = (self.address(self.src), self.address(self.dst));
        match self.proto {
            1 | 58 => format!("src={s},dst={d},id={},type={},code={}", self.sport, self.icmp_type, self.icmp_code),
            _ => format!("src={s},dst={d},sport={},dport={}", self.sport, self.dport),
        }
    }
}

fn protocol(n: u8) -> String {
    match n {
        1 => "icmp".into(),
        2 => "igmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        33 => "dccp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        136 => "udplite".into(),
        n => n.to_string(),
    }
}

/// What a line of a connection has besides the usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// `-m`: its status, and the states of both ends.
    pub more: bool,
    /// `-s`: when it expires, at this time.
    pub timeout: Option<Duration>,
}

impl Connection {
    /// The state of a TCP connection in a word, as the kernel names it.
    pub fn tcp_state(&self) -> &'static str {
        match self.ends[0].max(self.ends[1]) {
            TcpState::FinWait2 => "TIME_WAIT",
            state => state.name(),
        }
    }

    /// One line.
    pub fn line(&self, detail: Detail) -> String {
        let proto = protocol(self.original.proto);
        let mut out = format!("{proto},orig=({}),reply=({})", self.original.text(), self.reply.text());
        if self.zone != Zone::DEFAULT {
            let _ = write!(out, ",zone={}", self.zone);
        }
        if detail.more {
            out += ",status=0";
        }
        if let Some(now) = detail.timeout {
            let _ = write!(out, ",timeout={}", self.expires.saturating_sub(now).as_secs());
        }
        if self.mark != 0 {
            let _ = write!(out, ",mark={}", self.mark);
        }
        if self.label != 0 {
            let _ = write!(out, ",labels={:#x}", self.label);
        }
        if self.original.proto == 6 {
            let [a, b] = self.ends;
            let _ = match detail.more {
                false => write!(out, ",protoinfo=(state={})", self.tcp_state()),
                true => write!(out, ",protoinfo=(state_orig={},state_reply={})", a.name(), b.name()),
            };
        }
        out
    }
}

impl Conntrack {
    /// The connections in `n` slots from one on, of one zone or of all, and where to go on; none: there are no more. Those of
    /// other chassis, which have no time here, have all of it from `now` on.
    pub fn shown_part(
        &self,
        (from, n): (usize, usize),
        zone: Option<Zone>,
        now: Duration,
    ) -> (Vec<Connection>, Option<usize>) {
        let next = from.saturating_add(n);
        if zone.is_some_and(|z| self.zones.is_empty(z)) {
            return (Vec::new(), None);
        }
        let time = |mut c: Connection| {
            if c.owner != 0 {
                c.expires = now + self.timeout(c.zone, c.phase);
            }
            c
        };
        let list = self.export_part(from, n).filter(|c| zone.is_none_or(|z| z == c.zone)).map(time).collect();
        (list, Some(next).filter(|next| *next < self.slots.len()))
    }

    /// The table, or one zone of it, one line per connection; with the time, in the format of `-m -s`.
    pub fn dump(&self, zone: Option<Zone>, now: Option<Duration>) -> String {
        let (list, _) = self.shown_part((0, usize::MAX), zone, now.unwrap_or_default());
        let detail = Detail { more: now.is_some(), timeout: now };
        list.iter().map(|c| c.line(detail) + "\n").collect()
    }
}
