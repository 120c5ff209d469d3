//! The services that keep account and write rows: multicast, health checks, events. They are the loop's, which has the rows; packets
//! for them come from the packet thread as reports.

use super::{bfd, events, health, multicast, next_hops, prefix, probes};
use crate::encode::opcode;
use crate::input::model::Input;
use crate::plan::Plan;
use crate::units::presence::Presence;
use openflow_rs::Message;
use openflow_rs::message::PacketIn;
use std::time::{Duration, Instant};

/// Their state.
#[derive(Debug, Default)]
pub struct Monitors {
    /// IGMP and MLD.
    pub multicast: multicast::Snooping,
    /// Controller events.
    pub events: events::Events,
    /// Health checks.
    pub health: health::Checks,
    /// Next hops of symmetric replies.
    pub next_hops: next_hops::NextHops,
    /// Next hops without which this chassis is no gateway.
    pub probes: probes::Probes,
    /// Ports that get prefixes.
    pub prefixes: prefix::Prefixes,
    /// States of BFD sessions.
    pub sessions: bfd::Found,
    /// The longest pause between questions to them, see [`next_hops::NextHops::pause`].
    pub next_hop_pause: Option<Duration>,
}

/// Whether packets with this opcode are for them.
pub(super) fn takes(code: u8) -> bool {
    const CODES: [u8; 5] =
        [opcode::IGMP, opcode::EVENT, opcode::HANDLE_SVC_CHECK, opcode::HANDLE_DHCPV6_REPLY, opcode::NEXT_HOP_ANSWERED];
    CODES.contains(&code)
}

impl Monitors {
    /// Takes note of a packet; gives what is to be sent for it.
    pub fn packet(&mut self, p: &PacketIn, input: &Input, now: Instant) -> Vec<Message> {
        match p.userdata.get(3) {
            Some(&opcode::IGMP) => self.multicast.heard(p, input, now),
            Some(&opcode::HANDLE_SVC_CHECK) => self.health.answered(p, now),
            Some(&opcode::NEXT_HOP_ANSWERED) => {
                self.probes.heard(p);
                Vec::new()
            }
            Some(&opcode::HANDLE_DHCPV6_REPLY) => self.prefixes.heard(p, now),
            Some(&opcode::EVENT) => {
                self.events.happened(p.userdata.get(8..).unwrap_or_default(), now);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// What they send without being asked, now.
    pub fn due(&mut self, input: &Input, here: &mut Presence, now: Instant) -> Vec<Message> {
        for id in std::mem::take(&mut here.checks_anew) {
            self.health.observe(id, here.checks.get(&id).cloned());
        }
        self.multicast.observe(input, now);
        self.next_hops.pause(self.next_hop_pause, now);
        for id in std::mem::take(&mut here.next_hops_anew) {
            self.next_hops.observe(id, here.next_hops.get(&id).cloned(), now);
        }
        for id in std::mem::take(&mut here.delegations_anew) {
            let row = input.sb.port_binding.get(&id).map(|p| &**p);
            self.prefixes.observe(id, here.delegations.get(&id).cloned(), row, now);
        }
        let mut out = self.health.due(now);
        out.extend(self.prefixes.due(now));
        out.extend(self.next_hops.due(now));
        out.extend(self.multicast.due(input, now));
        out
    }

    /// When one of them is due.
    pub fn next(&self) -> Option<Instant> {
        [self.health.next(), self.multicast.next(), self.next_hops.next(), self.prefixes.next()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Puts what they found out into the plan.
    pub fn write(&mut self, input: &Input, here: &Presence, now: Instant, plan: &mut Plan) {
        self.sessions.write(input, &here.sessions, plan);
        self.health.write(input, plan);
        self.multicast.write(input, plan);
        self.events.write(input, now, plan);
        self.prefixes.write(input, plan);
    }
}
