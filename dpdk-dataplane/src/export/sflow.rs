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
use openflow_rs::action::is_mpls;
use ovn_schema::{Map, Str};
use packet::{Headers, Mac, ipproto};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;
use switch::{BridgeId, CacheStats, Glimpse, Outer, Passage, TunnelKey, TunnelKind};

/// A datagram is sent once it has so many bytes.
const FULL: usize = 1100;
/// The data source of a bridge's samples: class 2, any number.
const SOURCE: u32 = 2 << 24 | 1000;
/// Bytes of the frame check sequence, which counts for the length and has been stripped.
const STRIPPED: u32 = 4;
/// The value of a counter that is not kept.
const UNKNOWN: u32 = u32::MAX;

/// The last entry of a label stack is marked so (RFC 3032 section 2.1).
const BOTTOM: u32 = 0x100;

/// Formats of samples and records.
const FLOW_SAMPLE: u32 = 1;
const COUNTERS_SAMPLE: u32 = 2;
const RAW_HEADER: u32 = 1;
const EXTENDED_SWITCH: u32 = 1001;
const EXTENDED_MPLS: u32 = 1006;
const GENERIC_COUNTERS: u32 = 1;
const ETHERNET_COUNTERS: u32 = 2;
const LACP: u32 = 7;
const OPENFLOW_PORT: u32 = 1004;
const PORT_NAME: u32 = 1005;
const APP_RESOURCES: u32 = 2203;
const OVS_DATAPATH: u32 = 2207;

/// Records of tunnels (sflow.org, "sFlow Tunnel Structures"): over IPv4, over IPv6, and the number of the network.
struct TunnelFormats([u32; 2], u32);
const EGRESS: TunnelFormats = TunnelFormats([1023, 1025], 1029);
const INGRESS: TunnelFormats = TunnelFormats([1024, 1026], 1030);

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

    /// A tunnel's header, and its key if it has one. Gives the number of records.
    fn tunnel(&mut self, t: Option<&Outer>, TunnelFormats([v4, v6], vni): TunnelFormats) -> u32 {
        let Some(t) = t else { return 0 };
        let [src, dst] = t.addresses;
        self.part(if dst.is_ipv4() { v4 } else { v6 }, |x| {
            // The outer packet's length is not known.
            x.words(&[0, protocol(t.kind).into()]);
            for a in [src, dst] {
                match a {
                    IpAddr::V4(a) => x.0.extend(a.octets()),
                    IpAddr::V6(a) => x.0.extend(a.octets()),
                }
            }
            // None of them is TCP, so there are no flags.
            x.words(&t.ports.map(u32::from)).words(&[0, t.tos.into()]);
        });
        if t.key == TunnelKey::NONE {
            return 1;
        }
        self.part(vni, |x| {
            x.words(&[t.key.0]);
        });
        2
    }

    /// The labels of a packet that came with the first stack and leaves with the second, if there are any. Gives the
    /// number of records.
    fn labels(&mut self, [came, left]: [Vec<u32>; 2]) -> u32 {
        if came.is_empty() && left.is_empty() {
            return 0;
        }
        self.part(EXTENDED_MPLS, |x| {
            // No next hop is known; no address is one of IPv4.
            x.words(&[1, 0]);
            for stack in [came, left] {
                x.words(&[stack.len() as u32]).words(&stack);
            }
        });
        1
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

/// The IP protocol of a tunnel's packets; 0 where that depends on what is in them.
fn protocol(kind: TunnelKind) -> u8 {
    match kind {
        TunnelKind::Gre | TunnelKind::Erspan => ipproto::GRE,
        TunnelKind::Geneve | TunnelKind::Vxlan | TunnelKind::Gtpu => ipproto::UDP,
        TunnelKind::Srv6 => 0,
    }
}

/// The label stack of a packet.
fn stack(g: &Glimpse) -> Vec<u32> {
    let Some(h) = Headers::parse(&g.head).filter(|h| is_mpls(h.ethertype)) else { return Vec::new() };
    let (entries, _) = g.head.get(h.l3..).unwrap_or_default().as_chunks();
    let entries = entries.iter().map(|e| u32::from_be_bytes(*e));
    let mut above = true;
    entries.take_while(|e| std::mem::replace(&mut above, e & BOTTOM == 0)).collect()
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
        let tag = |g: &Glimpse| {
            let tci = Headers::parse(&g.head).and_then(|h| h.vlans[0]).map_or(0, |v| u32::from(v.tci));
            [tci & 0xfff, tci >> 13]
        };
        let [from, to] = [tag(&p.packet), p.outputs.last().map_or(tag(&p.packet), |d| tag(&d.packet))];
        let head = p.packet.head.get(..self.spec.header).unwrap_or(&p.packet.head);
        let (samples, pool, rate, input) =
            (self.samples, self.pool, self.spec.sampling, index(bridge, p.in_port).unwrap_or(0));
        // What a packet left with is told if it left once.
        let mut more = Xdr::default();
        let mut records = more.tunnel(p.outer.as_ref(), INGRESS);
        if let [d] = p.outputs.as_slice() {
            records += more.tunnel(d.outer.as_ref(), EGRESS);
            records += more.labels([stack(&p.packet), stack(&d.packet)]);
        }
        self.waiting.part(FLOW_SAMPLE, |x| {
            x.words(&[samples, SOURCE, rate, pool, 0, input, output, 2 + records]);
            x.0.append(&mut more.0);
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
        let known = |key: &str| values.get(key).map_or(UNKNOWN, |v| *v as u32);
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
                x.long(get("rx_bytes")).words(&[known("rx_packets"), known("rx_multicast_packets"), UNKNOWN]);
                x.words(&[known("rx_dropped"), known("rx_errors"), UNKNOWN]);
                x.long(get("tx_bytes")).words(&[known("tx_packets"), UNKNOWN, UNKNOWN]);
                x.words(&[known("tx_dropped"), known("tx_errors"), 0]);
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

    /// What a packet came with and left with: tunnels of both families, and labels, whose last one is the bottom of the
    /// stack; of a packet that left twice, only what it came with.
    #[test]
    fn tunnels_and_labels_are_told() {
        let outer = |kind, ends: [&str; 2], key| Outer {
            kind,
            addresses: ends.map(|a| a.parse().expect("an address")),
            ports: [1000, 2000],
            key: TunnelKey(key),
            tos: 0x20,
        };
        let seen = |entries: &[u32]| {
            let kind: u16 = if entries.is_empty() { 0x88b5 } else { 0x8847 };
            let entries = entries.iter().flat_map(|e| e.to_be_bytes());
            Glimpse {
                head: [[2; 12].as_slice(), &kind.to_be_bytes()].concat().into_iter().chain(entries).collect(),
                len: 64,
            }
        };
        let left = |outer, entries: &[u32]| switch::Departure {
            bridge: BridgeId::default(),
            port: PortNo(2),
            packet: seen(entries),
            outer,
        };
        let records = |p: &Passage| {
            let mut a = agent();
            a.sample(p, BridgeId::default(), &HashMap::new(), &mut Vec::new());
            let words: Vec<u32> = a.waiting.0.as_chunks().0.iter().map(|w| u32::from_be_bytes(*w)).collect();
            let (mut rest, mut found) = (&words[10..], Vec::new());
            while let [format, n, inner @ ..] = rest {
                found.push((*format, inner[..*n as usize / 4].to_vec()));
                rest = &inner[*n as usize / 4..];
            }
            assert_eq!(found.len(), words[9] as usize);
            found.retain(|(format, _)| !matches!(*format, EXTENDED_SWITCH | RAW_HEADER));
            found
        };
        let came = Some(outer(TunnelKind::Vxlan, ["10.0.0.1", "10.0.0.2"], 7));
        let mut p = Passage {
            in_port: PortNo(1),
            packet: seen(&[0x1_0140, 0x2_0040]),
            outer: came,
            flooded: false,
            outputs: Vec::new(),
        };
        let v4 = |first, protocol, [from, to]: [u32; 2]| (first, vec![0, protocol, from, to, 1000, 2000, 0, 0x20]);
        let ingress = [v4(1024, 17, [0x0a00_0001, 0x0a00_0002]), (1030, vec![7])];
        assert_eq!(records(&p), ingress, "dropped");
        // The second entry stands behind the bottom of the stack, so it is none.
        let mut labels = (1006, vec![1, 0, 1, 0x1_0140, 2, 0x5_0020, 0x6_0120]);
        p.outputs.push(left(Some(outer(TunnelKind::Gre, ["10.0.0.3", "10.0.0.4"], 0)), &[0x5_0020, 0x6_0120]));
        let egress = v4(1023, 47, [0x0a00_0003, 0x0a00_0004]);
        assert_eq!(records(&p), [ingress.as_slice(), &[egress, labels.clone()]].concat());
        p.outputs = vec![left(Some(outer(TunnelKind::Geneve, ["fd00::1", "fd00::2"], 9)), &[])];
        labels.1 = vec![1, 0, 1, 0x1_0140, 0];
        let v6 = vec![0, 17, 0xfd00_0000, 0, 0, 1, 0xfd00_0000, 0, 0, 2, 1000, 2000, 0, 0x20];
        assert_eq!(records(&p), [ingress.as_slice(), &[(1025, v6), (1029, vec![9]), labels]].concat());
        p.outputs.push(left(None, &[0x5_0120]));
        assert_eq!(records(&p), ingress, "it left twice");
    }

    fn agent() -> Agent {
        let spec = SflowSpec {
            targets: vec![([127, 0, 0, 1], 6343).into()],
            agent: IpAddr::from([127, 0, 0, 1]),
            sampling: 1,
            header: 128,
            polling: Duration::from_secs(3),
            datapath_id: 1,
        };
        Agent::new(spec).expect("a target")
    }

    /// Counters are sent once an interval, the first time within the first second.
    #[test]
    fn counters_come_once_an_interval() {
        let mut a = agent();
        let due: Vec<bool> = (0..8).map(|_| a.due()).collect();
        assert_eq!(due, [true, false, false, true, false, false, true, false]);
        a.spec.polling = Duration::ZERO;
        assert!((0..8).all(|_| !a.due()), "none without an interval");
    }
}
