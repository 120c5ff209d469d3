//! sFlow version 5 (sflow.org, "sFlow Version 5"): samples of packets and counters of ports, to the collectors of a
//! bridge's row (ovs-vswitchd.conf.db(5), table sFlow).

use super::PortFacts;
use crate::config::collectors::SflowSpec;
use crate::export::ipfix::Outgoing;
use crate::kernel::sysfs;
use crate::pmd::{MainPmd, port_statistics};
use crate::ports::bond::Bond;
use crate::ports::bond::lacp::{Member, state};
use openflow_rs::PortNo;
use ovn_schema::{Map, Str};
use packet::Mac;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;
use switch::{BridgeId, CacheStats, Passage, TunnelKey};

/// A datagram is sent once it has so many bytes.
const FULL: usize = 1100;
/// The data source of a bridge's samples: class 2, any number.
const SOURCE: u32 = 2 << 24 | 1000;
/// Bytes of the frame check sequence, which counts for the length and has been stripped.
const STRIPPED: u32 = 4;
/// The value of a counter that is not kept.
const UNKNOWN: u32 = u32::MAX;

/// The IP protocol UDP.
const UDP: u32 = 17;

/// Formats of samples and records.
const FLOW_SAMPLE: u32 = 1;
const COUNTERS_SAMPLE: u32 = 2;
const RAW_HEADER: u32 = 1;
const EXTENDED_SWITCH: u32 = 1001;
const TUNNEL_INGRESS: u32 = 1024;
const VNI_INGRESS: u32 = 1030;
const GENERIC_COUNTERS: u32 = 1;
const ETHERNET_COUNTERS: u32 = 2;
const LACP: u32 = 7;
const OPENFLOW_PORT: u32 = 1004;
const PORT_NAME: u32 = 1005;
const APP_RESOURCES: u32 = 2203;
const OVS_DATAPATH: u32 = 2207;

/// Counters at one time.
#[derive(Debug, Default)]
pub struct CounterSnapshot {
    ports: HashMap<(BridgeId, PortNo), Map<Str, i64>>,
    lacp: HashMap<(BridgeId, PortNo), LacpFacts>,
    cache: CacheStats,
    flows: u32,
    lost: u32,
}

impl CounterSnapshot {
    /// Reads the counters, in the main PMD thread.
    pub fn take(w: &MainPmd) -> CounterSnapshot {
        CounterSnapshot {
            ports: port_statistics(w),
            lacp: w.bonds.list.iter().flat_map(lacp).collect(),
            cache: w.switch.cache_stats(),
            flows: w.switch.cache_size().0 as u32,
            lost: w.switch.drops.get(switch::DropReason::WalkersBusy) as u32,
        }
    }
}

/// LACP of a member of a bond.
#[derive(Debug)]
struct LacpFacts {
    systems: [Mac; 2],
    aggregation: u32,
    /// The state of this side as configured and as it is, then the same of the partner (dot3adAggPortActorAdminState
    /// and so on).
    states: [u8; 4],
    /// PDUs received, invalid ones, and PDUs sent.
    counts: [u32; 3],
}

/// The members of a bond with LACP.
fn lacp(b: &Bond) -> Vec<((BridgeId, PortNo), LacpFacts)> {
    let Some(l) = &b.lacp else { return Vec::new() };
    let admin = [(true, state::AGGREGATION), (l.spec.active, state::ACTIVITY), (l.spec.fast, state::TIMEOUT)];
    let admin = admin.iter().filter(|s| s.0).fold(0, |all, s| all | s.1);
    let of = |(i, m): (usize, &Member)| {
        let (actor, c) = (l.actor(i)?, m.counts);
        let facts = LacpFacts {
            systems: [actor.sys_id, m.partner.sys_id],
            aggregation: l.key.into(),
            // The partner does not say how it is configured.
            states: [admin, actor.state, 0, m.partner.state],
            counts: [c.received, c.bad, c.sent].map(|n| n as u32),
        };
        Some(((b.bridge, m.port), facts))
    };
    l.members.iter().enumerate().filter_map(of).collect()
}

/// Big-endian numbers and padded bytes (RFC 4506).
#[derive(Debug, Default)]
struct Xdr(Vec<u8>);

impl Xdr {
    fn words(&mut self, list: &[u32]) -> &mut Xdr {
        list.iter().for_each(|n| self.0.extend(n.to_be_bytes()));
        self
    }

    fn long(&mut self, n: u64) -> &mut Xdr {
        self.0.extend(n.to_be_bytes());
        self
    }

    /// Bytes, after their length.
    fn bytes(&mut self, b: &[u8]) -> &mut Xdr {
        self.words(&[b.len() as u32]);
        self.0.extend(b);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// An Ethernet address.
    fn mac(&mut self, mac: Mac) -> &mut Xdr {
        self.0.extend(*mac);
        self.0.extend([0; 2]);
        self
    }

    /// A structure, after its format and length.
    fn part(&mut self, format: u32, fill: impl FnOnce(&mut Xdr)) -> &mut Xdr {
        let mut inner = Xdr::default();
        fill(&mut inner);
        self.words(&[format, inner.0.len() as u32]);
        self.0.extend(inner.0);
        self
    }
}

/// The sFlow agent of a bridge.
#[derive(Debug)]
pub struct Agent {
    /// The configuration.
    pub spec: SflowSpec,
    begun: Instant,
    datagrams: u32,
    samples: u32,
    pool: u32,
    /// Counter samples sent, by source.
    counted: HashMap<u32, u32>,
    /// Seconds until counters are sent.
    left: u64,
    waiting: Xdr,
    parts: u32,
}

impl Agent {
    /// An agent; none without collectors.
    pub fn new(spec: SflowSpec) -> Option<Agent> {
        (!spec.targets.is_empty()).then(|| Agent {
            spec,
            begun: Instant::now(),
            datagrams: 0,
            samples: 0,
            pool: 0,
            counted: HashMap::new(),
            left: 1,
            waiting: Xdr::default(),
            parts: 0,
        })
    }

    /// Adds the sample of a packet.
    pub(crate) fn sample(
        &mut self,
        p: &Passage,
        bridge: BridgeId,
        ports: &HashMap<(BridgeId, PortNo), PortFacts>,
        out: &mut Vec<Outgoing>,
    ) {
        let index = |bridge, no| ports.get(&(bridge, no)).and_then(|p| p.ifindex);
        self.samples = self.samples.wrapping_add(1);
        self.pool = self.pool.wrapping_add(self.spec.sampling);
        let output = match p.outputs.as_slice() {
            // Dropped, for an unknown reason.
            [] => 0x4000_0000 | 256,
            [d] => index(d.bridge, d.port).unwrap_or(0x8000_0001),
            many => 0x8000_0000 | many.len() as u32,
        };
        let tag = |g: &switch::Glimpse| {
            let tci = packet::Headers::parse(&g.head).and_then(|h| h.vlans[0]).map_or(0, |v| u32::from(v.tci));
            [tci & 0xfff, tci >> 13]
        };
        let [from, to] = [tag(&p.packet), p.outputs.last().map_or(tag(&p.packet), |d| tag(&d.packet))];
        let head = p.packet.head.get(..self.spec.header).unwrap_or(&p.packet.head);
        let (samples, pool, rate, input) =
            (self.samples, self.pool, self.spec.sampling, index(bridge, p.in_port).unwrap_or(0));
        self.waiting.part(FLOW_SAMPLE, |x| {
            let outer = p.outer.as_ref().and_then(|o| match o.addresses {
                [IpAddr::V4(from), IpAddr::V4(to)] => Some((o, from.to_bits(), to.to_bits())),
                _ => None,
            });
            let key = outer.map_or(TunnelKey::NONE, |o| o.0.key);
            x.words(&[samples, SOURCE, rate, pool, 0, input, output]);
            x.words(&[2 + u32::from(outer.is_some()) + u32::from(key != TunnelKey::NONE)]);
            if let Some((o, from, to)) = outer {
                x.part(TUNNEL_INGRESS, |x| {
                    let [source, destination] = o.ports.map(u32::from);
                    // The outer packet's length is not known; UDP has no flags.
                    x.words(&[0, UDP, from, to, source, destination, 0, o.tos.into()]);
                });
            }
            if key != TunnelKey::NONE {
                x.part(VNI_INGRESS, |x| {
                    x.words(&[key.0]);
                });
            }
            x.part(EXTENDED_SWITCH, |x| {
                x.words(&[from, to].concat());
            });
            x.part(RAW_HEADER, |x| {
                // Ethernet.
                x.words(&[1, p.packet.len as u32 + STRIPPED, STRIPPED]).bytes(head);
            });
        });
        self.parts += 1;
        self.full(out);
    }

    /// Called once a second: whether it is time for counters.
    pub(crate) fn due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.spec.polling.is_zero() || self.left > 0 {
            return false;
        }
        self.left = self.spec.polling.as_secs();
        true
    }

    /// Adds the counters of the bridge's ports, and of the process.
    pub(crate) fn counters(
        &mut self,
        bridge: BridgeId,
        s: &CounterSnapshot,
        ports: &HashMap<(BridgeId, PortNo), PortFacts>,
        out: &mut Vec<Outgoing>,
    ) {
        let mut own: Vec<_> = ports.iter().filter(|((b, _), p)| *b == bridge && p.ifindex.is_some()).collect();
        own.sort_by_key(|((_, no), _)| no.0);
        for ((_, no), facts) in own {
            let Some(values) = s.ports.get(&(bridge, *no)) else { continue };
            self.port(*no, facts, values, s.lacp.get(&(bridge, *no)));
            self.full(out);
        }
        let n = self.count(SOURCE);
        self.waiting.part(COUNTERS_SAMPLE, |x| {
            x.words(&[n, SOURCE, 2]);
            x.part(APP_RESOURCES, |x| {
                let [user, system, memory] = usage();
                x.words(&[user as u32, system as u32]).long(memory).long(0).words(&[0; 4]);
            });
            x.part(OVS_DATAPATH, |x| {
                x.words(&[s.cache.hits as u32, s.cache.misses as u32, s.lost, UNKNOWN, s.flows, UNKNOWN]);
            });
        });
        self.parts += 1;
        self.flush(out);
    }

    fn count(&mut self, source: u32) -> u32 {
        let n = self.counted.entry(source).or_default();
        *n = n.wrapping_add(1);
        *n
    }

    fn port(&mut self, no: PortNo, p: &PortFacts, values: &Map<Str, i64>, lacp: Option<&LacpFacts>) {
        let index = p.ifindex.unwrap_or(0);
        let n = self.count(index);
        let mut values = values.clone();
        for (name, n) in sysfs::counters(&p.name, index, p.tap) {
            *values.entry(name.into()).or_insert(0) += n;
        }
        let get = |key: &str| values.get(key).map_or(0, |v| *v as u64);
        let low = |key: &str| get(key) as u32;
        let status = u32::from(p.link.admin_up) | u32::from(p.link.admin_up && p.link.up) << 1;
        let number = if no == PortNo::LOCAL { 0xfffe } else { u32::from(no.0) };
        self.waiting.part(COUNTERS_SAMPLE, |x| {
            x.words(&[n, index, 4 + u32::from(lacp.is_some())]);
            if let Some(l) = lacp {
                x.part(LACP, |x| {
                    for s in l.systems {
                        x.mac(s);
                    }
                    x.words(&[l.aggregation, u32::from_be_bytes(l.states)]);
                    let [received, bad, sent] = l.counts;
                    x.words(&[received, UNKNOWN, UNKNOWN, UNKNOWN, bad, sent, UNKNOWN, UNKNOWN]);
                });
            }
            x.part(ETHERNET_COUNTERS, |x| {
                let known = |key: &str| values.get(key).map_or(UNKNOWN, |v| *v as u32);
                x.words(&[known("rx_frame_err"), known("rx_crc_err")]).words(&[UNKNOWN; 11]);
            });
            x.part(OPENFLOW_PORT, |x| {
                x.long(self.spec.datapath_id).words(&[number]);
            });
            x.part(PORT_NAME, |x| {
                x.bytes(p.name.as_bytes());
            });
            x.part(GENERIC_COUNTERS, |x| {
                // Ethernet (RFC 2863, IANAifType); full duplex is 1, half is 2. A device that says nothing of either is
                // told as one of 100 Mbit/s, as Open vSwitch does.
                let (mbps, duplex) = match (p.link.mbps, p.link.full_duplex) {
                    (0, _) => (100, 0),
                    (mbps, full) => (mbps, if full { 1 } else { 2 }),
                };
                x.words(&[index, 6]).long(u64::from(mbps) * 1_000_000).words(&[duplex, status]);
                x.long(get("rx_bytes")).words(&[low("rx_packets"), low("rx_multicast_packets"), UNKNOWN]);
                x.words(&[low("rx_dropped"), low("rx_errors"), UNKNOWN]);
                x.long(get("tx_bytes")).words(&[low("tx_packets"), UNKNOWN, UNKNOWN]);
                x.words(&[low("tx_dropped"), low("tx_errors"), 0]);
            });
        });
        self.parts += 1;
    }

    fn full(&mut self, out: &mut Vec<Outgoing>) {
        if self.waiting.0.len() >= FULL {
            self.flush(out);
        }
    }

    /// Sends what has been gathered.
    pub(crate) fn flush(&mut self, out: &mut Vec<Outgoing>) {
        if self.parts == 0 {
            return;
        }
        self.datagrams = self.datagrams.wrapping_add(1);
        let mut x = Xdr::default();
        x.words(&[5]);
        match self.spec.agent {
            IpAddr::V4(a) => {
                x.words(&[1, a.to_bits()]);
            }
            IpAddr::V6(a) => {
                x.words(&[2]);
                x.0.extend(a.octets());
            }
        }
        x.words(&[0, self.datagrams, self.begun.elapsed().as_millis() as u32, self.parts]);
        x.0.append(&mut self.waiting.0);
        let records = u64::from(std::mem::take(&mut self.parts));
        out.push(Outgoing { bytes: x.0, records, targets: self.spec.targets.clone(), exporter: None });
    }
}

/// Processor time of the process in user mode and in the kernel, in milliseconds, and its memory in bytes
/// (proc_pid_stat(5)).
fn usage() -> [u64; 3] {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold any character.
    let fields: Vec<u64> = match text.rsplit_once(") ") {
        Some((_, rest)) => rest.split(' ').skip(1).map(|f| f.parse().unwrap_or(0)).collect(),
        None => Vec::new(),
    };
    let field = |n: usize| fields.get(n).copied().unwrap_or(0);
    // Clock ticks are hundredths of a second, pages 4 KiB, on Linux.
    [field(10) * 10, field(11) * 10, field(20) * 4096]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_the_process_takes_is_known() {
        // Other programs may have the processors for a while.
        let end = Instant::now() + Duration::from_secs(10);
        while usage()[0] < 20 && Instant::now() < end {}
        let [user, _, memory] = usage();
        assert!(user >= 20 && memory > 1 << 20, "{user} {memory}");
    }

    #[test]
    fn bytes_are_padded() {
        let mut x = Xdr::default();
        x.part(7, |x| {
            x.bytes(b"abcde").long(1);
        });
        let expected =
            [0, 0, 0, 7, 0, 0, 0, 20, 0, 0, 0, 5, b'a', b'b', b'c', b'd', b'e', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(x.0, expected);
    }

    /// Counters are sent once an interval, the first time within the first second.
    #[test]
    fn counters_come_once_an_interval() {
        let spec = SflowSpec {
            targets: vec![([127, 0, 0, 1], 6343).into()],
            agent: IpAddr::from([127, 0, 0, 1]),
            sampling: 1,
            header: 128,
            polling: Duration::from_secs(3),
            datapath_id: 1,
        };
        let mut a = Agent::new(spec).expect("a target");
        let due: Vec<bool> = (0..8).map(|_| a.due()).collect();
        assert_eq!(due, [true, false, false, true, false, false, true, false]);
        a.spec.polling = Duration::ZERO;
        assert!((0..8).all(|_| !a.due()), "none without an interval");
    }
}
