//! Hidden flows stand before all flows of the first table; OpenFlow neither sees nor changes them. Those of in-band
//! control (ovs-vswitchd.conf.db(5), `Controller:connection_mode`) have the host behind a bridge's own port, and its
//! neighbours, reach controllers through the bridge whatever its tables say. That of a bridge that fails open
//! (`Bridge:fail_mode` standalone) switches all packets.

use crate::bridge::Bridge;
use crate::classifier::{Classifier, Rule};
use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, FlowMod, Match, PortNo};
use packet::arp_op::{REPLY, REQUEST};
use packet::{Mac, ethertype, ipproto};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

/// The priority of the first kind of hidden flows, as Open vSwitch has it: no flow of a controller has one so high.
const FIRST_PRIORITY: u32 = 180_000;

/// The kind of the hidden flow of a bridge that fails open, above those of in-band control, and its priority, as Open
/// vSwitch has it.
const FAIL_OPEN: u16 = 9;
const FAIL_OPEN_PRIORITY: u32 = 0xf0_f0f0;

/// The priority of a hidden flow, whose rule has its kind for one.
pub(crate) fn hidden_priority(rule: &Rule) -> u32 {
    match rule.priority {
        FAIL_OPEN => FAIL_OPEN_PRIORITY,
        kind => FIRST_PRIORITY + u32::from(kind),
    }
}

/// UDP ports of DHCP (RFC 2131 section 4.1).
pub(crate) const DHCP_SERVER: u16 = 67;
pub(crate) const DHCP_CLIENT: u16 = 68;

/// A controller that is reached through the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InBandRemote {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its TCP port.
    pub port: u16,
    /// The Ethernet address of the next hop to it, if that is known.
    pub next_hop: Option<Mac>,
}

/// What in-band control has to let through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InBand {
    /// The address of the bridge's own port.
    pub local: Mac,
    /// Controllers; none: there is no in-band control.
    pub remotes: Vec<InBandRemote>,
    /// The queue of such packets (`other_config:in-band-queue`).
    pub queue: Option<u32>,
}

impl InBand {
    /// The hidden flows: kind and match of each.
    fn matches(&self) -> Vec<(u16, Match)> {
        let of = |kind: u16, fields: &[(F, u128)]| (kind, fields.iter().fold(Match::new(), |m, (f, v)| m.with(*f, *v)));
        let arp = |op: u16, field, value| [(F::EthType, ethertype::ARP.into()), (F::ArpOp, op.into()), (field, value)];
        let tcp = |address, of: Ipv4Addr, port, number: u16| {
            let ip = [(F::EthType, ethertype::IPV4.into()), (F::IpProto, ipproto::TCP.into())];
            [ip[0], ip[1], (address, u32::from(of).into()), (port, number.into())]
        };
        let mut all = Vec::new();
        if !self.remotes.is_empty() {
            let local = self.local.to_u64().into();
            let dhcp = [
                (F::InPort, PortNo::LOCAL.0.into()),
                (F::EthType, ethertype::IPV4.into()),
                (F::EthSrc, local),
                (F::IpProto, ipproto::UDP.into()),
                (F::UdpSrc, DHCP_CLIENT.into()),
                (F::UdpDst, DHCP_SERVER.into()),
            ];
            all.push(of(0, &dhcp));
            all.push(of(1, &arp(REPLY, F::EthDst, local)));
            all.push(of(2, &arp(REQUEST, F::EthSrc, local)));
        }
        for hop in self.remotes.iter().filter_map(|r| r.next_hop) {
            all.push(of(3, &arp(REPLY, F::EthDst, hop.to_u64().into())));
            all.push(of(4, &arp(REQUEST, F::EthSrc, hop.to_u64().into())));
        }
        for r in &self.remotes {
            let address = u32::from(r.address).into();
            all.push(of(5, &arp(REPLY, F::ArpTpa, address)));
            all.push(of(6, &arp(REQUEST, F::ArpSpa, address)));
            all.push(of(7, &tcp(F::IpDst, r.address, F::TcpDst, r.port)));
            all.push(of(8, &tcp(F::IpSrc, r.address, F::TcpSrc, r.port)));
        }
        all
    }
}

impl Bridge {
    /// Sets what in-band control lets through. Flows that stay keep their counters; cached flows become stale if any
    /// changes.
    pub fn set_in_band(&mut self, wanted: &InBand, now: Duration) {
        self.controlled = wanted.clone();
        self.set_hidden(now);
    }

    /// Has the bridge switch all packets by itself, whatever its flows say, or not.
    pub fn set_fails_open(&mut self, open: bool, now: Duration) {
        self.fails_open = open;
        self.set_hidden(now);
    }

    fn set_hidden(&mut self, now: Duration) {
        let mut hidden = Classifier::default();
        let mut changed = false;
        let open = self.fails_open.then(|| (FAIL_OPEN, Match::new()));
        for (kind, matches) in self.controlled.matches().into_iter().chain(open) {
            let queue = self.controlled.queue.filter(|_| kind != FAIL_OPEN).map(Action::SetQueue);
            let normal = Action::Output { port: PortNo::NORMAL, max_len: 0 };
            let actions: Vec<Action> = queue.into_iter().chain([normal]).collect();
            let old = self.hidden.find(&matches, kind).filter(|r| *r.actions == *actions).cloned();
            changed |= old.is_none();
            hidden.insert(old.unwrap_or_else(|| {
                Arc::new(Rule::new(&FlowMod { priority: kind, matches, actions, ..FlowMod::default() }, now))
            }));
        }
        if changed || hidden.len() != self.hidden.len() {
            self.hidden = hidden;
            self.epoch += 1;
        }
    }

    /// What in-band control lets through.
    pub fn controlled(&self) -> &InBand {
        &self.controlled
    }

    /// The hidden flows, with their priorities.
    pub fn hidden_flows(&self) -> impl Iterator<Item = (u32, &Arc<Rule>)> {
        self.hidden.iter().map(|r| (hidden_priority(r), r))
    }
}
