//! IPFIX (RFC 7011): samples of `sample` actions, and of all packets of a bridge, as flow records
//! (ovs-vswitchd.conf.db(5), `Flow_Sample_Collector_Set` and `IPFIX`).

mod flow;
mod message;

use crate::config::collectors::{CollectorSet, IpfixSpec};
use crate::pmd::ipfix_statistics::ExporterId;
use flow::{Flow, Tally};
use message::{ACTIVE_TIMEOUT, NO_RESOURCES};
use openflow_rs::PortNo;
use openflow_rs::message::IpfixStats;
use packet::{ethertype, ipproto};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};
use switch::{Glimpse, Passage, Sample};

/// The most observation domains of a collector set that are remembered.
const DOMAINS: usize = 1024;

/// The samples of a passing packet: one for its arrival, and one for each departure.
pub(crate) fn samples(spec: &IpfixSpec, p: &Passage) -> Vec<Sample> {
    let [domain, point] = spec.observation;
    let sample = |g: &Glimpse, outer, sampling_port, egress: bool| {
        let headers = packet::Headers::parse(&g.head)?;
        let (in_port, head, len) = (p.in_port, g.head.clone(), g.len);
        let weight = spec.sampling;
        Some(Sample {
            collector_set: 0,
            domain,
            point,
            in_port,
            sampling_port,
            egress,
            head,
            headers,
            len,
            outer,
            weight,
        })
    };
    let [arrivals, departures] = spec.directions;
    let arrival = arrivals.then(|| sample(&p.packet, p.outer, PortNo::ANY, false)).flatten();
    let departures = p.outputs.iter().filter(|_| departures).filter_map(|d| sample(&d.packet, d.outer, d.port, true));
    arrival.into_iter().chain(departures).collect()
}

/// A message to send.
pub(crate) struct Outgoing {
    pub bytes: Vec<u8>,
    pub records: u64,
    pub targets: Vec<SocketAddr>,
    /// The exporter of IPFIX that counts whether it can be sent.
    pub exporter: Option<ExporterId>,
}

/// The state of an observation domain.
#[derive(Default)]
struct Domain {
    /// Records sent, modulo 2^32 (RFC 7011 section 3.1).
    sequence: u32,
    /// When templates were last sent.
    templates: Option<Duration>,
}

/// The exporter of a collector set.
pub(crate) struct Exporter {
    pub set: CollectorSet,
    /// What it has counted, but for how many flows it has now.
    pub counters: IpfixStats,
    id: ExporterId,
    flows: HashMap<(u32, Flow), Tally>,
    domains: HashMap<u32, Domain>,
}

impl Exporter {
    pub fn new(id: ExporterId, set: CollectorSet) -> Exporter {
        let counters = IpfixStats { collector_set: id.1.unwrap_or(0), ..IpfixStats::default() };
        Exporter { set, counters, id, flows: HashMap::new(), domains: HashMap::new() }
    }

    /// What it has counted.
    pub fn statistics(&self) -> IpfixStats {
        IpfixStats { current_flows: self.flows.len() as u64, ..self.counters }
    }

    /// Counts a sampled packet. As in Open vSwitch an IP packet whose transport is none of TCP, UDP, SCTP and ICMP is an
    /// error, as is one that cannot be read.
    fn count(&mut self, s: &Sample, proto: Option<u8>) {
        let c = &mut self.counters;
        c.packets += 1;
        let icmp = if s.headers.ethertype == ethertype::IPV6 { ipproto::ICMPV6 } else { ipproto::ICMP };
        let known = proto.is_some_and(|p| [ipproto::TCP, ipproto::UDP, ipproto::SCTP, icmp].contains(&p));
        let counter = match (s.headers.ethertype, known) {
            (ethertype::IPV4, true) => &mut c.ipv4,
            (ethertype::IPV6, true) => &mut c.ipv6,
            (ethertype::IPV4, false) => &mut c.ipv4_errors,
            (ethertype::IPV6, false) => &mut c.ipv6_errors,
            _ => return,
        };
        *counter += 1;
        c.errors = c.ipv4_errors + c.ipv6_errors;
    }

    /// Changes the settings. Sequence numbers go on; templates are repeated, for new collectors.
    pub fn change(&mut self, set: &CollectorSet) {
        if self.set != *set {
            self.set = set.clone();
            self.domains.values_mut().for_each(|d| d.templates = None);
        }
    }

    pub fn sample(&mut self, s: &Sample, name: String, now: Duration, out: &mut Vec<Outgoing>) {
        let (mut flow, one) = flow::of(s, name, now);
        self.count(s, flow.ip.as_ref().map(|ip| ip.proto));
        flow.outer = flow.outer.filter(|_| self.set.tunnels);
        flow.observer = self.set.observer.clone();
        if self.set.active.is_zero() || self.set.most == 0 {
            self.counters.flows += 1;
            return self.export(s.domain, &[(flow, one)], ACTIVE_TIMEOUT, now, out);
        }
        let key = (s.domain, flow);
        if self.flows.len() >= self.set.most && !self.flows.contains_key(&key) {
            self.finish(NO_RESOURCES, now, out, |_| true);
        }
        match self.flows.entry(key) {
            Entry::Occupied(mut e) => e.get_mut().add(&one),
            Entry::Vacant(e) => {
                e.insert(one);
                self.counters.flows += 1;
            }
        }
    }

    /// Reports flows that have been gathered for long enough.
    pub fn poll(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        let active = self.set.active;
        self.finish(ACTIVE_TIMEOUT, now, out, |t| t.first + active <= now);
    }

    pub fn flush(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        self.finish(message::FORCED_END, now, out, |_| true);
    }

    fn finish(&mut self, reason: u8, now: Duration, out: &mut Vec<Outgoing>, over: impl Fn(&Tally) -> bool) {
        let mut by_domain: BTreeMap<u32, Vec<(Flow, Tally)>> = BTreeMap::new();
        for ((domain, flow), tally) in self.flows.extract_if(|_, t| over(t)) {
            by_domain.entry(domain).or_default().push((flow, tally));
        }
        for (domain, records) in by_domain {
            self.export(domain, &records, reason, now, out);
        }
    }

    fn export(&mut self, domain: u32, list: &[(Flow, Tally)], reason: u8, now: Duration, out: &mut Vec<Outgoing>) {
        if self.domains.len() >= DOMAINS && !self.domains.contains_key(&domain) {
            // All domains send their templates again.
            self.domains.clear();
        }
        let d = self.domains.entry(domain).or_default();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() as u32;
        let exporter = Some(self.id);
        let mut send = |sets: Vec<u8>, records: u64, sequence: u32| {
            let bytes = message::message(wall, sequence, domain, &sets);
            out.push(Outgoing { bytes, records, targets: self.set.targets.clone(), exporter });
        };
        if d.templates.is_none_or(|at| at + self.set.template <= now) {
            d.templates = Some(now);
            message::template_sets(self.set.tunnels, self.set.observer.is_some())
                .into_iter()
                .for_each(|sets| send(sets, 0, d.sequence));
        }
        for (sets, n) in message::record_sets(list, reason, now) {
            send(sets, n.into(), d.sequence);
            d.sequence = d.sequence.wrapping_add(n);
        }
    }
}
