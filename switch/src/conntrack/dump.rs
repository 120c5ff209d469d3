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

impl Connection {
    /// One line; with the time, what `-m` adds: when it expires, and the states of both ends.
    pub fn line(&self, more: Option<Duration>) -> String {
        let proto = protocol(self.original.proto);
        let mut out = format!("{proto},orig=({}),reply=({})", self.original.text(), self.reply.text());
        if self.zone != Zone::DEFAULT {
            let _ = write!(out, ",zone={}", self.zone);
        }
        if let Some(now) = more {
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
            let _ = match more {
                // Without `-m`, closing states are named as by the kernel.
                None if a.max(b) == TcpState::FinWait2 => write!(out, ",protoinfo=(state=TIME_WAIT)"),
                None => write!(out, ",protoinfo=(state={})", a.max(b).name()),
                Some(_) => write!(out, ",protoinfo=(state_orig={},state_reply={})", a.name(), b.name()),
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

    /// The table, or one zone of it, one line per connection; with the time, in the format of `-m`.
    pub fn dump(&self, zone: Option<Zone>, more: Option<Duration>) -> String {
        let (list, _) = self.shown_part((0, usize::MAX), zone, more.unwrap_or_default());
        list.iter().map(|c| c.line(more) + "\n").collect()
    }
}
