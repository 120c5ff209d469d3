//! IPFIX (RFC 7011): samples of `sample` actions as flow records, to the collectors of `Flow_Sample_Collector_Set` and `IPFIX` rows
//! (ovs-vswitchd.conf.db(5)).

mod flow;
mod message;

use flow::{Flow, Tally};
use message::{ACTIVE_TIMEOUT, NO_RESOURCES};
use openflow_rs::PortNo;
use ovn_schema::{Uuid, ovs};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use switch::{BridgeId, Sample};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};

/// Samples that wait for the exporter at most; more are dropped, and counted.
pub const QUEUE: usize = 4096;
/// Observation domains of a collector set whose templates are remembered.
const DOMAINS: usize = 1024;

/// A collector set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorSet {
    /// Where records go.
    pub targets: Vec<SocketAddr>,
    /// How long a flow is gathered; zero: each sample is a record.
    pub active: Duration,
    /// Flows that are gathered at most; 0: none.
    pub most: usize,
    /// How often templates are sent anew.
    pub template: Duration,
}

/// What the database asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Collector sets by bridge and number.
    pub sets: BTreeMap<(BridgeId, u32), CollectorSet>,
    /// Names of ports.
    pub ports: HashMap<(BridgeId, PortNo), String>,
}

/// Figures.
#[derive(Debug, Default)]
pub struct Figures {
    /// Records sent.
    pub records: AtomicU64,
    /// Messages that could not be sent.
    pub failed: AtomicU64,
}

/// A bridge's collector sets.
pub fn sets(db: &ovs::Database, bridge: Uuid) -> BTreeMap<u32, CollectorSet> {
    let rows = db.flow_sample_collector_set.values().filter(|s| s.bridge == bridge);
    rows.filter_map(|s| Some((u32::try_from(s.id).ok()?, set(db.ipfix.get(&s.ipfix?)?)))).collect()
}

fn set(row: &ovs::Ipfix) -> CollectorSet {
    let seconds =
        |v: Option<i64>, default| Duration::from_secs(v.and_then(|v| u64::try_from(v).ok()).unwrap_or(default));
    let target = |t: &ovn_schema::Str| match t.parse() {
        Ok(a) => Some(a),
        Err(_) => {
            tracing::warn!(target: "ipfix", "IPFIX target {t}: expected ADDRESS:PORT; it is left out");
            None
        }
    };
    CollectorSet {
        targets: row.targets.iter().filter_map(target).collect(),
        active: seconds(row.cache_active_timeout, 0),
        most: row.cache_max_flows.and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
        template: seconds(row.template_interval, 600),
    }
}

/// Runs until there are no more samples to come.
pub async fn run(
    mut samples: mpsc::Receiver<(BridgeId, Box<Sample>)>,
    mut wanted: watch::Receiver<Wanted>,
    figures: Arc<Figures>,
) {
    let mut exporters: HashMap<(BridgeId, u32), Exporter> = HashMap::new();
    let sockets = Sockets { v4: UdpSocket::bind("0.0.0.0:0").await.ok(), v6: UdpSocket::bind("[::]:0").await.ok() };
    let start = tokio::time::Instant::now();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut messages = Vec::new();
    loop {
        tokio::select! {
            sample = samples.recv() => {
                let Some((bridge, s)) = sample else { return };
                let now = start.elapsed();
                let w = wanted.borrow();
                if let Some(set) = w.sets.get(&(bridge, s.collector_set)) {
                    let name = |no| w.ports.get(&(bridge, no)).cloned().unwrap_or_default();
                    let e = exporters.entry((bridge, s.collector_set)).or_insert_with(|| Exporter::new(set.clone()));
                    e.sample(&s, name(s.in_port), now, &mut messages);
                }
            }
            _ = tick.tick() => {
                let now = start.elapsed();
                exporters.values_mut().for_each(|e| e.poll(now, &mut messages));
            }
            Ok(()) = wanted.changed() => {
                let w = wanted.borrow_and_update();
                for (key, mut e) in std::mem::take(&mut exporters) {
                    let set = w.sets.get(&key);
                    if set != Some(&e.set) {
                        e.flush(start.elapsed(), &mut messages);
                    }
                    if let Some(set) = set {
                        e.change(set);
                        exporters.insert(key, e);
                    }
                }
            }
        }
        for m in messages.drain(..) {
            figures.records.fetch_add(m.records, Ordering::Relaxed);
            for t in &m.targets {
                if let Err(e) = sockets.send(&m.bytes, *t).await {
                    figures.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(target: "ipfix", "{t}: {e}");
                }
            }
        }
    }
}

struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl Sockets {
    async fn send(&self, bytes: &[u8], to: SocketAddr) -> std::io::Result<()> {
        let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let socket = socket.as_ref().ok_or_else(|| std::io::Error::other("no socket of this protocol"))?;
        socket.send_to(bytes, to).await.map(drop)
    }
}

/// A message to send.
struct Outgoing {
    bytes: Vec<u8>,
    records: u64,
    targets: Vec<SocketAddr>,
}

/// An observation domain's state.
#[derive(Default)]
struct Domain {
    /// Records sent, modulo 2^32 (RFC 7011 section 3.1).
    sequence: u32,
    /// When templates were sent.
    templates: Option<Duration>,
}

/// A collector set's flows.
struct Exporter {
    set: CollectorSet,
    flows: HashMap<(u32, Flow), Tally>,
    domains: HashMap<u32, Domain>,
}

impl Exporter {
    fn new(set: CollectorSet) -> Exporter {
        Exporter { set, flows: HashMap::new(), domains: HashMap::new() }
    }

    /// Goes on with other settings, and in the same sequence; new collectors want templates.
    fn change(&mut self, set: &CollectorSet) {
        if self.set != *set {
            self.set = set.clone();
            self.domains.values_mut().for_each(|d| d.templates = None);
        }
    }

    fn sample(&mut self, s: &Sample, name: String, now: Duration, out: &mut Vec<Outgoing>) {
        let (flow, one) = flow::of(s, name, now);
        if self.set.active.is_zero() || self.set.most == 0 {
            return self.export(s.domain, &[(flow, one)], ACTIVE_TIMEOUT, now, out);
        }
        let key = (s.domain, flow);
        if self.flows.len() >= self.set.most && !self.flows.contains_key(&key) {
            self.finish(NO_RESOURCES, now, out, |_| true);
        }
        self.flows.entry(key).and_modify(|t| t.add(&one)).or_insert(one);
    }

    /// Sends what was gathered long enough.
    fn poll(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        let active = self.set.active;
        self.finish(ACTIVE_TIMEOUT, now, out, |t| t.first + active <= now);
    }

    fn flush(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
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
            // Their collectors get templates again.
            self.domains.clear();
        }
        let d = self.domains.entry(domain).or_default();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() as u32;
        let mut send = |sets: Vec<u8>, records: u64, sequence: u32| {
            let bytes = message::message(wall, sequence, domain, &sets);
            out.push(Outgoing { bytes, records, targets: self.set.targets.clone() });
        };
        if d.templates.is_none_or(|at| at + self.set.template <= now) {
            d.templates = Some(now);
            message::template_sets().into_iter().for_each(|sets| send(sets, 0, d.sequence));
        }
        for (sets, n) in message::record_sets(list, reason, now) {
            send(sets, n.into(), d.sequence);
            d.sequence = d.sequence.wrapping_add(n);
        }
    }
}
