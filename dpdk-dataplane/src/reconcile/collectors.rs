//! What collectors are to hear: told to the task that makes records, and to the worker, which gives it packets.

use super::Control;
use crate::config::collectors::{self, AgentAddress};
use crate::config::port::Kind;
use crate::export::{PortFacts, Wanted};
use crate::kernel;
use openflow_rs::PortNo;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use switch::BridgeId;

impl Control {
    /// Tells who is concerned what the database wants, where that has changed.
    pub(super) fn tell_collectors(&self) {
        self.tell(self.wanted_of_collectors());
    }

    /// Tells collectors' task how ports are.
    pub(super) fn tell_ports(&self) {
        let mut wanted = self.collectors.borrow().clone();
        if wanted.sets.is_empty() && wanted.rate().is_none() {
            return;
        }
        wanted.ports = self.port_facts();
        self.tell(wanted);
    }

    fn tell(&self, wanted: Wanted) {
        let before = self.collectors.borrow().observed().collect::<BTreeSet<_>>();
        let rate_before = self.collectors.borrow().rate();
        self.collectors.send_if_modified(|old| {
            let changed = *old != wanted;
            *old = wanted.clone();
            changed
        });
        if (rate_before, before) == (wanted.rate(), wanted.observed().collect()) {
            return;
        }
        let (rate, observed) = (wanted.rate(), wanted.observed().collect::<BTreeSet<_>>());
        self.worker.post(move |w| {
            let all: Vec<_> = w.switch.bridges().map(|(id, b)| (id, b.observed)).collect();
            for (id, was) in all {
                let is = observed.contains(&id);
                // Opening a bridge to change makes cached flows stale.
                if was != is
                    && let Some(b) = w.switch.bridge_mut(id)
                {
                    b.observed = is;
                }
            }
            w.observe(rate);
        });
    }

    fn wanted_of_collectors(&self) -> Wanted {
        let mut w = Wanted::default();
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

    /// The first address of a device of the host.
    fn address_of(&self, device: &str) -> Option<IpAddr> {
        let host = self.mirror.picture();
        let index = host.links.get(device)?.index;
        let own = host.addresses.iter().filter(|(link, ..)| *link == index).map(|(_, a, _)| *a);
        // One of IPv4, if there is one.
        own.min_by_key(IpAddr::is_ipv6)
    }
}
