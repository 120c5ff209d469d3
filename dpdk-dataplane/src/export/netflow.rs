//! NetFlow version 5: records of IPv4 flows (ovs-vswitchd.conf.db(5), table NetFlow).

use crate::config::collectors::NetflowSpec;
use crate::export::ipfix::Outgoing;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use switch::{Leaves, NetflowCount, NetflowFlow, NetflowKey};

/// A flow ends after so long without a packet.
const IDLE: Duration = Duration::from_secs(10);
/// The most records of a message.
const RECORDS: usize = 30;
/// The most flows that are gathered. Beyond that, each report of one is a record.
const FLOWS: usize = 100_000;
/// Output ports of flows that leave by all ports, by several, by none.
const FLOOD: u16 = 0xffff;
const SEVERAL: u16 = 0xfffe;
const NONE: u16 = 0xfffd;

#[derive(Clone, Copy, Debug)]
struct Tally {
    output: u16,
    packets: u32,
    bytes: u32,
    first: Duration,
    last: Duration,
    flags: u8,
    /// When it began, or when it was last reported.
    since: Duration,
}

/// A bridge's flows.
#[derive(Debug)]
pub struct Netflow {
    /// The configuration.
    pub spec: NetflowSpec,
    flows: HashMap<NetflowKey, Tally>,
    /// Records sent.
    sent: u32,
    boot: Duration,
}

impl Netflow {
    /// No flows yet.
    pub fn new(spec: NetflowSpec, now: Duration) -> Netflow {
        Netflow { spec, flows: HashMap::new(), sent: 0, boot: now }
    }

    /// Counts packets.
    pub(crate) fn count(&mut self, c: &NetflowCount, now: Duration, out: &mut Vec<Outgoing>) {
        let NetflowFlow { key, flags, .. } = *c.flow;
        let output = match c.flow.leaves() {
            Leaves::ByAll => FLOOD,
            Leaves::No => NONE,
            Leaves::By(p) => p.0,
            Leaves::BySeveral => SEVERAL,
        };
        let (packets, bytes) = (c.packets as u32, c.bytes as u32);
        let new = Tally { output, packets, bytes, first: now, last: now, flags, since: now };
        let full = self.flows.len() >= FLOWS;
        match self.flows.get_mut(&key) {
            Some(t) if t.output == output => {
                if t.packets == 0 {
                    t.first = now;
                }
                t.packets = t.packets.wrapping_add(packets);
                t.bytes = t.bytes.wrapping_add(bytes);
                (t.last, t.flags) = (now, t.flags | flags);
            }
            // The flow leaves by another port from now on.
            Some(t) => {
                let old = std::mem::replace(t, new);
                self.export(&[(key, old)], now, out);
            }
            None if full => self.export(&[(key, new)], now, out),
            None => drop(self.flows.insert(key, new)),
        }
    }

    /// Reports flows that have ended, or that have been gathered for long enough.
    pub(crate) fn poll(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        let active = self.spec.active;
        let mut list: Vec<(NetflowKey, Tally)> = self.flows.extract_if(|_, t| t.last + IDLE <= now).collect();
        for (k, t) in &mut self.flows {
            if active.is_some_and(|a| t.since + a <= now) {
                list.push((*k, *t));
                (t.packets, t.bytes, t.flags, t.since) = (0, 0, 0, now);
            }
        }
        self.export(&list, now, out);
    }

    /// Reports all flows.
    pub(crate) fn finish(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        let list: Vec<(NetflowKey, Tally)> = self.flows.drain().collect();
        self.export(&list, now, out);
    }

    fn export(&mut self, list: &[(NetflowKey, Tally)], now: Duration, out: &mut Vec<Outgoing>) {
        let told: Vec<&(NetflowKey, Tally)> = list.iter().filter(|(_, t)| t.packets > 0).collect();
        for part in told.chunks(RECORDS) {
            let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let mut o = vec![0, 5];
            o.extend((part.len() as u16).to_be_bytes());
            [self.ms(now), wall.as_secs() as u32, wall.subsec_nanos(), self.sent]
                .iter()
                .for_each(|n| o.extend(n.to_be_bytes()));
            o.extend(self.spec.engine);
            o.extend([0, 0]);
            part.iter().for_each(|(k, t)| self.record(k, t, &mut o));
            self.sent = self.sent.wrapping_add(part.len() as u32);
            out.push(Outgoing {
                bytes: o,
                records: part.len() as u64,
                targets: self.spec.targets.clone(),
                exporter: None,
            });
        }
    }

    /// `at` in milliseconds since the start.
    fn ms(&self, at: Duration) -> u32 {
        at.saturating_sub(self.boot).as_millis() as u32
    }

    fn record(&self, k: &NetflowKey, t: &Tally, o: &mut Vec<u8>) {
        let port = |n: u16| {
            let engine = u16::from(self.spec.engine[1] & 0x7f) << 9;
            if self.spec.engine_in_ports { engine | n & 0x1ff } else { n }
        };
        // Addresses, next hop.
        [k.addresses[0], k.addresses[1], 0].iter().for_each(|n| o.extend(n.to_be_bytes()));
        [port(k.in_port.0), port(t.output)].iter().for_each(|n| o.extend(n.to_be_bytes()));
        [t.packets, t.bytes, self.ms(t.first), self.ms(t.last)].iter().for_each(|n| o.extend(n.to_be_bytes()));
        k.ports.iter().for_each(|n| o.extend(n.to_be_bytes()));
        o.extend([0, t.flags, k.proto, k.tos]);
        // Autonomous systems and prefix lengths: a switch knows neither.
        o.extend([0; 8]);
    }
}
