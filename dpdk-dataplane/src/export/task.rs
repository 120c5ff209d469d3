//! The export task: takes samples and passing packets from the main PMD thread, and gives them to the exporters.

use super::ipfix::{self, Outgoing};
use super::netflow::Netflow;
use super::sflow::{self, Agent};
use crate::config::collectors::{CollectorSet, IpfixSpec, NetflowSpec, SflowSpec};
use crate::pmd::ipfix_statistics::ExporterId;
use crate::pmd::{CollectorInput, Handle};
use openflow_rs::PortNo;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use switch::{BridgeId, NetflowCount, Passage};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};

/// What records say of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortFacts {
    /// Name.
    pub name: String,
    /// Its `ifindex`.
    pub ifindex: Option<u32>,
    /// It is an internal port: what the kernel sends, the switch receives.
    pub tap: bool,
    /// Its link.
    pub link: switch::PortLink,
}

/// What is exported, and to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportConfig {
    /// Collector sets by bridge and number, for `sample` actions.
    pub sets: BTreeMap<(BridgeId, u32), CollectorSet>,
    /// IPFIX of all packets of a bridge.
    pub ipfix: BTreeMap<BridgeId, IpfixSpec>,
    /// sFlow.
    pub sflow: BTreeMap<BridgeId, SflowSpec>,
    /// NetFlow.
    pub netflow: BTreeMap<BridgeId, NetflowSpec>,
    /// The ports of these bridges.
    pub ports: HashMap<(BridgeId, PortNo), PortFacts>,
}

impl ExportConfig {
    /// Bridges whose packets are observed.
    pub fn observed(&self) -> impl Iterator<Item = BridgeId> {
        self.ipfix.keys().chain(self.sflow.keys()).copied()
    }

    /// Of how many packets one has to be observed: as many as the exporter wants that wants most; none: no packet.
    pub fn rate(&self) -> Option<u32> {
        let ipfix = self.ipfix.values().map(|s| s.sampling);
        let sflow = self.sflow.values().map(|s| s.sampling);
        ipfix.chain(sflow).min()
    }
}

/// Counters of all exporters.
#[derive(Debug, Default)]
pub struct ExportCounters {
    /// Records sent.
    pub records: AtomicU64,
    /// Messages that could not be sent.
    pub failed: AtomicU64,
}

/// Chooses, of the packets that are observed for all exporters, those for one that wants fewer.
#[derive(Debug)]
struct Subsampler(u64);

impl Subsampler {
    /// Whether a packet is for an exporter that wants one of `wanted` packets, where one of `observed` is observed.
    fn takes(&mut self, observed: u32, wanted: u32) -> bool {
        if wanted <= observed {
            return true;
        }
        // The high bits of a linear congruential generator (Knuth, MMIX).
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) % u64::from(wanted) < u64::from(observed)
    }
}

struct ExportTask {
    pmd: Handle,
    wanted: ExportConfig,
    exporters: HashMap<ExporterId, ipfix::Exporter>,
    /// Exporters whose counters may have changed since they were published.
    counted: BTreeSet<ExporterId>,
    agents: HashMap<BridgeId, Agent>,
    netflows: HashMap<BridgeId, Netflow>,
    subsampler: Subsampler,
    /// When it began, by the daemon's clock.
    start: Duration,
    out: Vec<Outgoing>,
}

/// Runs the task until the main PMD thread has ended.
pub async fn run(
    mut seen: mpsc::Receiver<CollectorInput>,
    mut wanted: watch::Receiver<ExportConfig>,
    figures: Arc<ExportCounters>,
    pmd: Handle,
) {
    let sockets = Sockets { v4: UdpSocket::bind("0.0.0.0:0").await.ok(), v6: UdpSocket::bind("[::]:0").await.ok() };
    let clock = pmd.clock.clone();
    // At whole seconds of the daemon's clock: what begins later, and does something each second, does so after the ticks.
    let mut tick = clock.instant() + Duration::from_nanos(1_000_000_000 - u64::from(clock.now().subsec_nanos()));
    let mut t = ExportTask {
        pmd,
        wanted: ExportConfig::default(),
        exporters: HashMap::new(),
        counted: BTreeSet::new(),
        agents: HashMap::new(),
        netflows: HashMap::new(),
        subsampler: Subsampler(1),
        start: clock.now(),
        out: Vec::new(),
    };
    loop {
        tokio::select! {
            s = seen.recv() => match s {
                None => return,
                Some(CollectorInput::Sample(bridge, s)) => t.sample(bridge, Some(s.collector_set), &s),
                Some(CollectorInput::Passage(bridge, rate, p)) => t.passage(bridge, rate, &p),
                Some(CollectorInput::Netflow(list)) => t.netflow(&list),
            },
            () = clock.sleep_until(tick) => {
                tick += Duration::from_secs(1);
                t.poll().await;
            }
            Ok(()) = wanted.changed() => {
                t.wanted = wanted.borrow_and_update().clone();
                t.change();
            }
        }
        for m in t.out.drain(..) {
            figures.records.fetch_add(m.records, Ordering::Relaxed);
            let mut counters = m.exporter.and_then(|id| t.exporters.get_mut(&id)).map(|e| &mut e.counters);
            for to in &m.targets {
                let sent = sockets.send(&m.bytes, *to).await;
                if let Some(c) = &mut counters {
                    c.sent += u64::from(sent.is_ok());
                    c.send_errors += u64::from(sent.is_err());
                }
                if let Err(e) = sent {
                    figures.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(target: "collectors", "{to}: {e}");
                }
            }
        }
        t.publish();
    }
}

impl ExportTask {
    fn set(&self, key: ExporterId) -> Option<&CollectorSet> {
        match key {
            (bridge, Some(n)) => self.wanted.sets.get(&(bridge, n)),
            (bridge, None) => self.wanted.ipfix.get(&bridge).map(|s| &s.set),
        }
    }

    /// The time since it began, by the daemon's clock.
    fn elapsed(&self) -> Duration {
        self.pmd.clock.now().saturating_sub(self.start)
    }

    fn sample(&mut self, bridge: BridgeId, set: Option<u32>, s: &switch::Sample) {
        // A departing packet is reported with the port by which it leaves.
        let of = if set.is_none() && s.egress { s.sampling_port } else { s.in_port };
        let name = self.wanted.ports.get(&(bridge, of)).map(|p| p.name.clone()).unwrap_or_default();
        let now = self.elapsed();
        let Some(e) = self.exporters.get_mut(&(bridge, set)) else { return };
        self.counted.insert((bridge, set));
        e.sample(s, name, now, &mut self.out);
    }

    fn passage(&mut self, bridge: BridgeId, rate: u32, p: &Passage) {
        if let Some(spec) = self.wanted.ipfix.get(&bridge)
            && self.subsampler.takes(rate, spec.sampling)
        {
            ipfix::samples(spec, p).iter().for_each(|s| self.sample(bridge, None, s));
        }
        if let Some(a) = self.agents.get_mut(&bridge)
            && self.subsampler.takes(rate, a.spec.sampling)
        {
            a.sample(p, bridge, &self.wanted.ports, &mut self.out);
        }
    }

    fn netflow(&mut self, list: &[NetflowCount]) {
        let now = self.elapsed();
        for c in list {
            if let Some(n) = self.netflows.get_mut(&c.flow.bridge) {
                n.count(c, now, &mut self.out);
            }
        }
    }

    async fn poll(&mut self) {
        let now = self.elapsed();
        self.exporters.values_mut().for_each(|e| e.poll(now, &mut self.out));
        self.counted.extend(self.exporters.keys());
        self.netflows.values_mut().for_each(|n| n.poll(now, &mut self.out));
        let due: Vec<BridgeId> = self.agents.iter_mut().filter_map(|(b, a)| a.due().then_some(*b)).collect();
        if !due.is_empty() {
            let snapshot = self.pmd.read(sflow::CounterSnapshot::take).await.unwrap_or_default();
            for b in due {
                if let Some(a) = self.agents.get_mut(&b) {
                    a.counters(b, &snapshot, &self.wanted.ports, &mut self.out);
                }
            }
        }
        self.agents.values_mut().for_each(|a| a.flush(&mut self.out));
    }

    /// Tells those that answer controllers what exporters have counted.
    fn publish(&mut self) {
        while let Some(id) = self.counted.pop_first() {
            if let Some(e) = self.exporters.get(&id) {
                self.pmd.ipfix.set(id, Some(e.statistics()));
            }
        }
    }

    /// Applies a changed configuration.
    fn change(&mut self) {
        let now = self.elapsed();
        for (key, mut e) in std::mem::take(&mut self.exporters) {
            let set = self.set(key).cloned();
            if set.as_ref() != Some(&e.set) {
                e.flush(now, &mut self.out);
            }
            match set {
                Some(set) => {
                    e.change(&set);
                    self.exporters.insert(key, e);
                }
                None => self.pmd.ipfix.set(key, None),
            }
        }
        let of_flows = self.wanted.sets.iter().map(|((bridge, n), set)| ((*bridge, Some(*n)), set));
        let of_bridges = self.wanted.ipfix.iter().map(|(bridge, spec)| ((*bridge, None), &spec.set));
        for (key, set) in of_flows.chain(of_bridges) {
            self.exporters.entry(key).or_insert_with(|| ipfix::Exporter::new(key, set.clone()));
            self.counted.insert(key);
        }
        let ExportConfig { sflow, netflow, .. } = &self.wanted;
        self.agents.retain(|b, a| sflow.get(b) == Some(&a.spec));
        for (b, spec) in sflow {
            if !self.agents.contains_key(b) {
                self.agents.extend(Agent::new(spec.clone()).map(|a| (*b, a)));
            }
        }
        let out = &mut self.out;
        self.netflows.retain(|b, n| {
            let stays = netflow.get(b) == Some(&n.spec);
            if !stays {
                n.finish(now, out);
            }
            stays
        });
        for (b, spec) in netflow {
            self.netflows.entry(*b).or_insert_with(|| Netflow::new(spec.clone(), now));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exporters_get_their_share() {
        let mut t = Subsampler(7);
        assert!((0..100).all(|_| t.takes(4, 4) && t.takes(4, 1)));
        let n = (0..100_000).filter(|_| t.takes(100, 400)).count();
        assert!((24_000..26_000).contains(&n), "{n}");
    }
}
