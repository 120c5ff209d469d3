//! Next hops of tunnels: who is asked for an Ethernet address, which packets wait for it, and which addresses are forgotten.

use super::MainPmd;
use crate::ports::frame::{Frame, memory};
use openflow_rs::action::Action;
use openflow_rs::{FieldId, Match, PortNo};
use packet::build;
use std::net::IpAddr;
use std::time::Duration;
use switch::{DropReason, HeldPacket};

impl MainPmd {
    /// Has a packet wait for a next hop without an Ethernet address, and asks for that.
    pub(super) fn hold_for_next_hop(&mut self, hop: IpAddr, packet: Box<HeldPacket>, now: Duration) {
        let lost = self.neighbours.held.put(hop, packet, now);
        self.switch.drops.add_many(DropReason::TunnelNoNeighbour, lost);
        self.resolve_next_hop(hop, now);
    }

    /// Gives up on packets that have waited for too long, forgets what has aged, and asks again for what is in use.
    pub(super) fn age_next_hops(&mut self, now: Duration) {
        self.forget_neighbours();
        let lost = self.neighbours.held.give_up(now);
        self.switch.drops.add_many(DropReason::TunnelNoNeighbour, lost);
        let (ask, forget) = self.neighbours.age(now);
        self.neighbours_gone(forget);
        for a in ask {
            self.resolve_next_hop(a, now);
        }
    }

    /// Forgets neighbours of ports that are gone.
    pub fn forget_neighbours(&mut self) {
        let MainPmd { neighbours, switch, .. } = self;
        let gone = neighbours.forget_devices(|name| switch.has_port(name));
        self.neighbours_gone(gone);
    }

    /// Tells the switch of forgotten neighbours, which the kernel may still know.
    fn neighbours_gone(&mut self, gone: Vec<IpAddr>) {
        for a in gone {
            let kernel = self.neighbours.of_kernel(a);
            self.switch.underlay.set_neighbour(a, kernel);
        }
    }

    /// Sends what waits for next hops that have an Ethernet address now; whether there was any.
    pub(super) fn send_held(&mut self, now: Duration) -> bool {
        let MainPmd { switch, neighbours, out, .. } = self;
        let ready = neighbours.held.take(|hop| switch.underlay.neighbour(hop).is_some());
        for held in &ready {
            match memory().and_then(|m| m.ordinary().allocate()) {
                Some(like) => switch.send_held(held, &Frame(like), now, out),
                None => switch.drops.add(DropReason::NoBuffer),
            }
        }
        !ready.is_empty()
    }

    /// Sends an ARP request or a neighbour solicitation for a next hop, unless that was done a moment ago.
    fn resolve_next_hop(&mut self, a: IpAddr, now: Duration) {
        if !self.neighbours.want(a, now) {
            return;
        }
        // The route with this next hop says by which device a link-local address is reached; its prefix may be of the
        // other IP version.
        let underlay = &self.switch.underlay;
        let hop = underlay.routes().find(|r| r.gateway == Some(a));
        let Some(route) = hop.or_else(|| underlay.route(a)) else { return };
        let (mac, source) = (route.source_mac, route.hop_source.unwrap_or(route.source));
        let request = match (source, a) {
            (IpAddr::V4(s), IpAddr::V4(t)) => build::arp_request(mac, s, t),
            (IpAddr::V6(s), IpAddr::V6(t)) => build::nd_ns(mac, s, t),
            _ => return,
        };
        match route.egress.clone() {
            switch::Egress::Port(name) => {
                let Some((b, no)) = self.switch.addressed_port(&name) else { return };
                let from = Match::new().with(FieldId::InPort, u128::from(no.0));
                self.inject(b, from, request, vec![Action::Output { port: PortNo::TABLE, max_len: 0 }]);
            }
            switch::Egress::Device(d) => {
                if let Some(p) = memory().and_then(|m| m.packet(&request)) {
                    self.out.packets.push((d.into(), Frame(p)));
                }
            }
            switch::Egress::Host(_) => {}
        }
    }
}
