//! Configures the export task, and which packets the PMD threads give it.

use super::Reconciler;
use crate::config::collectors::{self, AgentAddress};
use crate::config::port::Kind;
use crate::export::{ExportConfig, PortFacts};
use crate::kernel;
use crate::pmd::Jobs;
use openflow_rs::PortNo;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use switch::BridgeId;

impl Reconciler {
    /// Publishes what the database asks for, where that has changed.
    pub(super) fn publish_export_config(&self) {
        self.tell(self.export_config());
    }

    /// Publishes how ports are, which some records tell of.
    pub(super) fn publish_port_facts(&self) {
        let mut wanted = self.collectors.borrow().clone();
        if wanted.sets.is_empty() && wanted.rate().is_none() {
            return;
        }
        wanted.ports = self.port_facts();
        self.tell(wanted);
    }

    fn tell(&self, wanted: ExportConfig) {
        let told = |w: &ExportConfig| {
            let [observed, netflow] = [w.observed().collect(), w.netflow.keys().copied().collect::<BTreeSet<_>>()];
            (w.rate(), observed, netflow)
        };
        let before: (_, BTreeSet<_>, _) = told(&self.collectors.borrow());
        self.collectors.send_if_modified(|old| {
            let changed = *old != wanted;
            *old = wanted.clone();
            changed
        });
        let now = told(&wanted);
        if before == now {
            return;
        }
        let (rate, observed, netflow) = now;
        self.pmd.post(move |w| {
            let all: Vec<_> = w.switch.bridges().map(|(id, b)| (id, (b.observed, b.netflow))).collect();
            for (id, was) in all {
                let is = (observed.contains(&id), netflow.contains(&id));
                // `bridge_mut` makes all cached flows stale: not without need.
                if was != is
                    && let Some(b) = w.switch.bridge_mut(id)
                {
                    (b.observed, b.netflow) = is;
                }
            }
            w.observe(rate);
        });
    }

    fn export_config(&self) -> ExportConfig {
        let mut w = ExportConfig::default();
        let db = &self.db.rows;
        for b in self.bridges.values() {
            let Some(row) = db.bridge.get(&b.spec.uuid) else { continue };
            w.sets.extend(b.spec.collectors.iter().map(|(id, set)| ((b.id, *id), set.clone())));
            w.ipfix.extend(collectors::ipfix(db, row).map(|s| (b.id, s)));
            let agent = |a: AgentAddress<'_>| match a {
                AgentAddress::OfDevice(name) => self.address_of(name),
                AgentAddress::Towards(collector) => kernel::source_address(collector),
            };
            w.sflow.extend(collectors::sflow(db, row, b.spec.datapath_id, agent).map(|s| (b.id, s)));
            w.netflow.extend(collectors::netflow(db, row).map(|s| (b.id, s)));
        }
        if !w.sets.is_empty() || w.rate().is_some() {
            w.ports = self.port_facts();
        }
        w
    }

    fn port_facts(&self) -> HashMap<(BridgeId, PortNo), PortFacts> {
        let all = self.bridges.values().flat_map(|b| b.ports.values().map(|p| (b.id, p)));
        let facts = all.filter_map(|(bridge, p)| {
            let tap = matches!(p.spec.kind, Ok(Kind::Internal));
            let facts = PortFacts { name: p.spec.name.clone(), ifindex: p.index(), tap, link: p.link };
            Some(((bridge, p.no?), facts))
        });
        facts.collect()
    }

    /// The first address of a network device of the host; IPv4 goes before IPv6.
    fn address_of(&self, device: &str) -> Option<IpAddr> {
        let host = self.kernel.snapshot();
        let index = host.links.get(device)?.index;
        let own = host.addresses.iter().filter(|(link, ..)| *link == index).map(|(_, a, _)| *a);
        own.min_by_key(IpAddr::is_ipv6)
    }
}
