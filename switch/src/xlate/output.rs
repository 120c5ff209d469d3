//! Output: ports, patch ports, tunnels, NORMAL and FLOOD.

use crate::bridge::{BfdPackets, CcmPackets, Port, PortKind};
use crate::buf::PacketBuf;
use crate::drops::DropReason;
use crate::events::{Event, HeldPacket};
use crate::extract::{PACKET_WORDS, STAND_IN as ETHERNET, stand_in, write_front};
use crate::ids::{BridgeId, DeviceId, Target};
use crate::tunnel::{self, Egress, PacketMode, Shim, TunnelConfig, Unreachable};
use crate::xlate::encap::packet_type;
use crate::xlate::packet::PacketState;
use crate::xlate::{Counted, Encapsulation, Kind, Observer, SlowPath, Within, Xlate, prereq_ok};
use openflow_rs::action::{ControllerAction, PacketInReason, PacketType};
use openflow_rs::{FieldId as F, MeterId, PortNo, Prereq, TableId};
use packet::{Mac, bpdu, ccm, ipproto, lldp};
use std::net::IpAddr;

/// UDP port of BFD for single hops (RFC 5881 section 4).
const BFD: u16 = 3784;
/// Most bridges that a packet may cross.
const MAX_BRIDGES: u32 = 16;

/// What is behind a port.
enum PortTarget {
    Device(DeviceId),
    Internal(DeviceId),
    /// The other end, if it is there.
    Patch(Option<(BridgeId, PortNo)>),
    Tunnel(Box<TunnelConfig>),
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Receives a packet at its port and walks the tables.
    pub(crate) fn arrive(&mut self) {
        let no = PortNo(self.packet.key.get(F::InPort) as u16);
        self.packet.key.set(F::ActsetOutput, PortNo::UNSET.0.into());
        if self.backer.restoring {
            self.observer.side_effect();
            return self.because(DropReason::Restoring);
        }
        let port = self.backer.bridges.get(self.pipeline.bridge).and_then(|b| b.ports.get(&no));
        let config = port.map_or(0, |p| p.config);
        if config & Port::DOWN != 0 {
            return self.because(DropReason::PortConfig);
        }
        let (session, stp) = (port.and_then(|p| p.bfd_packets), port.and_then(|p| p.stp));
        let (point, listens) = (port.and_then(|p| p.ccm_packets), port.is_some_and(|p| p.lldp));
        if stp.is_some() && self.bpdu(no) {
            return;
        }
        // What is for the switch itself comes whatever the port may receive, and is not copied; a path that the spanning
        // tree blocks is still watched.
        let blocked = stp.is_some_and(|s| !s.learns());
        let watches = point.is_some_and(|c| self.ccm(&c, no)) || session.is_some_and(|b| self.bfd(&b, no));
        let taken = watches || listens && self.lldp(no);
        if taken || !blocked && self.slow_protocol(no) {
            return;
        }
        if config & (Port::NO_RECV | Port::NO_RECV_STP) != 0 && self.may_not_receive(config) {
            return self.because(DropReason::PortConfig);
        }
        if blocked {
            return self.because(DropReason::StpState);
        }
        self.copy(no, true);
        self.run_first_table();
    }

    /// Whether a port's configuration forbids to receive this packet: one of a spanning tree, or any other.
    fn may_not_receive(&mut self, config: u32) -> bool {
        let bars = if self.is_bpdu() { Port::NO_RECV_STP } else { Port::NO_RECV };
        config & bars != 0
    }

    pub(crate) fn output(&mut self, port: PortNo, max_len: u16) {
        match port {
            PortNo::IN_PORT => self.emit(self.own_port()),
            PortNo::TABLE => self.run_table(TableId::FIRST),
            PortNo::NORMAL => self.normal(),
            PortNo::FLOOD => self.flood(false),
            PortNo::ALL => self.flood(true),
            PortNo::CONTROLLER => {
                let reason = match self.pipeline.within {
                    Within::Flow => PacketInReason::Action,
                    Within::ActionSet => PacketInReason::ActionSet,
                    Within::Bucket { .. } => PacketInReason::Group,
                    Within::PacketOut => PacketInReason::PacketOut,
                };
                self.controller(&ControllerAction { max_len, reason, ..Default::default() });
            }
            PortNo::ANY | PortNo::UNSET => {}
            p if p == self.own_port() => self.observer.tell(Kind::Warning, || "skipping output to input port".into()),
            p => self.emit(p),
        }
    }

    /// The number of bytes to cut is computed before pending tags are written, as in Open vSwitch, which happens where the
    /// packet leaves.
    pub(crate) fn output_truncated(&mut self, port: PortNo, n: usize) {
        if port == self.own_port() {
            return self.output(port, 0);
        }
        let len = self.packet.buf.data().len();
        if self.commit() {
            let now = self.packet.buf.data().len();
            // What is pushed or popped first is none of the bytes that count.
            let left = (n + now).saturating_sub(len);
            self.observer.compares_length(now, left);
            if left < ETHERNET && now > left {
                return self.because(DropReason::Short);
            }
            self.observer.cuts(n, self.backer.cuts);
            self.shortened((left, n), |x| x.output(port, 0));
        }
    }

    /// Whether a port is a patch port whose peer is the one of this name.
    fn is_peer(&self, (bridge, no): (BridgeId, PortNo), name: &str) -> bool {
        let port = self.backer.bridges.get(bridge).and_then(|b| b.ports.get(&no));
        port.is_some_and(|p| matches!(&p.kind, PortKind::Patch(peer) if **peer == *name))
    }

    /// Sends the packet out of a port.
    pub(crate) fn emit(&mut self, no: PortNo) {
        let Some(port) = self.backer.bridges.get(self.pipeline.bridge).and_then(|b| b.ports.get(&no)) else {
            return self.because(DropReason::NoSuchPort);
        };
        if port.config & (Port::DOWN | Port::NO_FWD) != 0 {
            return self.because(DropReason::PortConfig);
        }
        if self.spans()
            && (!port.stp_forwards() || self.arrived_too_early())
            && self.packet.buf.data().get(..6) != Some(&bpdu::ADDRESS[..])
            && !self.is_of_the_link()
        {
            let rapid = self.backer.bridges.get(self.pipeline.bridge).is_some_and(|b| b.rapid);
            let kind = if rapid { "RSTP" } else { "STP" };
            self.observer.tell(Kind::Warning, || format!("{kind} not in forwarding state, skipping output"));
            return self.because(DropReason::StpState);
        }
        let to = match &port.kind {
            PortKind::Device(d) => PortTarget::Device(*d),
            PortKind::Internal(d) => PortTarget::Internal(*d),
            PortKind::Patch(peer) => match self.backer.peers.patches.get(&(self.pipeline.bridge, no)) {
                Some(end) => PortTarget::Patch(*end),
                None => {
                    let end = self.backer.find_port(peer).filter(|end| self.is_peer(*end, &port.name));
                    self.backer.peers.patches.insert((self.pipeline.bridge, no), end);
                    PortTarget::Patch(end)
                }
            },
            PortKind::Tunnel(cfg) => PortTarget::Tunnel(cfg.clone()),
        };
        let any_type = match &to {
            PortTarget::Patch(_) => true,
            PortTarget::Tunnel(cfg) => cfg.mode != PacketMode::LegacyL2,
            PortTarget::Device(_) | PortTarget::Internal(_) => false,
        };
        if !any_type && !self.has_ethernet() {
            return;
        }
        self.pipeline.reached_host |= no == PortNo::LOCAL;
        let n = self.wire_len() as u64;
        self.count(no, 1, n);
        if self.backer.bridges.get(self.pipeline.bridge).is_none_or(|b| b.mirrors().is_empty()) {
            return self.send(to, no);
        }
        // Mirrors' copies come behind the packet.
        self.not_last(|x| x.send(to, no));
        self.copy(no, false);
    }

    /// Hands the packet to what is behind a port.
    fn send(&mut self, to: PortTarget, no: PortNo) {
        match to {
            PortTarget::Device(d) if !self.backer.underlay.is_host(d) => self.send_device(d, no),
            PortTarget::Device(d) | PortTarget::Internal(d) => {
                if !self.tunnel_end() {
                    self.send_device(d, no);
                }
            }
            PortTarget::Patch(Some((bridge, no))) => self.enter_bridge(bridge, no),
            PortTarget::Patch(None) => self.because(DropReason::NoSuchPort),
            PortTarget::Tunnel(cfg) => self.send_tunnel(&cfg, no),
        }
    }

    fn count(&mut self, no: PortNo, direction: usize, bytes: u64) {
        if !self.is_uncounted()
            && let Some(p) = self.backer.bridges.get_mut(self.pipeline.bridge).and_then(|b| b.ports.get_mut(&no))
        {
            p.stats[direction] += 1;
            p.stats[2 + direction] += bytes;
        }
        let counted = Counted::Port { bridge: self.pipeline.bridge, no, sent: direction == 1 };
        self.observer.counts(counted, bytes as usize);
    }

    /// The DSCP of the packet's queue at a port, if it is an IP packet.
    fn queue_mark(&self, no: PortNo) -> Option<u8> {
        let marks = self.backer.bridges.get(self.pipeline.bridge).map(|b| &b.queue_marks).filter(|m| !m.is_empty())?;
        let mark = *marks.get(&(no, self.packet.queue?))?;
        prereq_ok(&self.packet.key, Prereq::Ip).then_some(mark)
    }

    fn send_device(&mut self, device: DeviceId, no: PortNo) {
        let Some(mark) = self.queue_mark(no) else { return self.send_as_it_is(device, no) };
        let tos = self.packet.key.get(F::NwTos);
        self.observer.decides(F::IpDscp);
        self.packet.key.set(F::IpDscp, mark.into());
        self.send_as_it_is(device, no);
        self.packet.key.set(F::NwTos, tos);
    }

    fn send_as_it_is(&mut self, device: DeviceId, no: PortNo) {
        if !self.commit() {
            return;
        }
        self.passes(no, None);
        let target = device.queue(self.packet.queue);
        if self.is_last() {
            self.pipeline.sent += 1;
            self.observer.sends(&self.packet.base, target);
            self.packet.target = Some(target);
            return;
        }
        match self.packet.buf.duplicate() {
            Some(p) => {
                self.observer.sends(&self.packet.base, target);
                self.pipeline.sent += 1;
                self.out.packets.push((target, p));
            }
            None => self.because(DropReason::NoBuffer),
        }
    }

    /// Enters a bridge: clears what does not cross from one to another.
    fn enter(&mut self, bridge: BridgeId, in_port: PortNo) {
        let kind = self.packet.key.get(F::PacketType);
        for (w, x) in self.packet.key.0.iter_mut().enumerate() {
            // The packet mark (upper half of word 1) stays with the packet.
            if !PACKET_WORDS.contains(&w) && w != 1 {
                *x = 0;
            }
        }
        self.packet.key.set(F::PacketType, kind);
        self.packet.key.set(F::InPort, in_port.0.into());
        self.pipeline.bridge = bridge;
        self.packet.conn = None;
        self.packet.mirrored = 0;
        self.pipeline.stack.clear();
    }

    fn enter_bridge(&mut self, bridge: BridgeId, no: PortNo) {
        if self.pipeline.bridge_hops >= MAX_BRIDGES {
            return self.because(DropReason::TooDeep);
        }
        self.pipeline.bridge_hops += 1;
        self.observer.crosses(&self.packet.base, &self.packet.key);
        let depth = std::mem::take(&mut self.pipeline.depth);
        self.isolated(|x| {
            x.enter(bridge, no);
            let n = x.wire_len() as u64;
            x.count(no, 0, n);
            let Xlate { observer, backer, .. } = x;
            observer.open(Kind::Bridge, || backer.bridges.get(bridge).map(|b| b.name.clone()).unwrap_or_default());
            x.arrive();
            x.observer.close();
        });
        self.pipeline.depth = depth;
        self.pipeline.bridge_hops -= 1;
    }

    fn send_tunnel(&mut self, cfg: &TunnelConfig, no: PortNo) {
        let mark = self.packet.key.get(F::PktMark);
        if let Some(own) = cfg.mark {
            self.packet.key.set(F::PktMark, own.into());
        }
        if O::TRACES && !self.backer.pushes {
            self.tell_tunnel(cfg);
        } else if self.commit() {
            self.passes(no, Some(cfg));
            self.observer.tell(Kind::Detail, || "output to native tunnel".into());
            let begun = self.observer.copy_begins();
            let sent = self.encapsulated(cfg, no);
            self.observer.copy_ends(begun, sent);
        }
        self.packet.key.set(F::PktMark, mark);
    }

    /// Sends the packet into a tunnel; false if it does not get there.
    fn encapsulated(&mut self, cfg: &TunnelConfig, no: PortNo) -> bool {
        let Some(kind) = self.type_in(cfg) else { return false };
        // Ethernet stays behind where the tunnel has none.
        let skipped = if kind == PacketType::ETHERNET { 0 } else { ETHERNET };
        cfg.follows().for_each(|f| self.observer.decides(f));
        self.examines_followed(cfg);
        if self.backer.underlay.looks_at_marks() {
            self.observer.decides(F::PktMark);
        }
        let entropy = tunnel::entropy(&self.packet.key);
        let sequence = cfg.has_sequence().then(|| self.backer.sequence((self.pipeline.bridge, no)));
        let dry = self.observer.dry();
        let number = || sequence.as_ref().map_or(0, |s| if dry { s.next() } else { s.take() });
        let tlv = self.backer.bridges.get(self.pipeline.bridge).map(|b| b.tlv.clone()).unwrap_or_default();
        let mut needs = Vec::new();
        let made = tunnel::outer_headers(
            cfg,
            &self.packet.key,
            &tlv,
            (kind, self.packet.buf.data().get(skipped..).unwrap_or_default()),
            &self.backer.underlay,
            (entropy, &number, self.backer.now),
            |n| {
                needs.push(n);
            },
        );
        needs.into_iter().for_each(|n| self.observer.depends(n));
        let (outer, egress) = match made {
            Ok(x) => x,
            Err(why) => {
                match &why {
                    Unreachable::Neighbour(a) => self.observer.lacks_neighbour(cfg, &self.packet.key, *a, self.backer),
                    Unreachable::Route(_) => {
                        self.observer.tell(Kind::Warning, || "native tunnel routing failed".into())
                    }
                    Unreachable::PacketType(t) => {
                        let (ns, kind) = (t.namespace(), t.kind());
                        self.observer
                            .tell(Kind::Warning, || format!("the tunnel has no packets of type ({ns},{kind:#x})"))
                    }
                    Unreachable::Erspan(id) => self.observer.tell(Kind::Warning, || {
                        format!("no header of ERSPAN for session {id} and the version that flows set: tun_erspan_ver is 1 or 2, a session 1023 at most")
                    }),
                    Unreachable::Destination => {
                        self.observer.tell(Kind::Warning, || "the tunnel has no destination".into())
                    }
                }
                if let Unreachable::Neighbour(a) = why
                    && !self.observer.dry()
                {
                    self.hold_for(a, no);
                    return false;
                }
                self.because(match why {
                    Unreachable::Destination => DropReason::TunnelNoDestination,
                    Unreachable::Route(_) => DropReason::TunnelNoRoute,
                    Unreachable::Neighbour(_) => DropReason::TunnelNoNeighbour,
                    Unreachable::PacketType(_) => DropReason::NotEthernet,
                    Unreachable::Erspan(_) => DropReason::TunnelNoHeader,
                });
                return false;
            }
        };
        self.observer.tunnels(cfg, &outer, &egress, self.backer);
        let Some(mut p) = self.packet.buf.duplicate() else {
            self.because(DropReason::NoBuffer);
            return false;
        };
        p.shrink_front(skipped);
        if !p.grow_front(outer.len()) {
            self.because(DropReason::NoBuffer);
            return false;
        }
        if let Some(d) = p.data_mut().get_mut(..outer.len()) {
            d.copy_from_slice(&outer);
        }
        self.passes_within(p.data());
        if tunnel::is_timed(cfg, &self.packet.key) {
            // Its header has the time of each packet.
            self.observer.side_effect();
        }
        let record = |x: &mut Self, target: Option<Target>| {
            let v6 = outer.get(12) == Some(&0x86);
            let n = x.packet.buf.data().len();
            let shim = match cfg.kind.is_gre() {
                true => Shim::Gre { csum: cfg.csum == Some(true), sequence },
                false => Shim::Udp { csum: cfg.checksums(!v6), ports: x.backer.underlay.source_ports() },
            };
            let e = Encapsulation { headers: outer.into(), v6, shim, target };
            x.observer.encapsulates(&x.packet.base, e, n);
        };
        match egress {
            Egress::Device(d) => {
                let target = d.queue(self.packet.queue);
                record(self, Some(target));
                self.pipeline.sent += 1;
                self.out.packets.push((target, p));
            }
            Egress::Port(name) => match self.backer.addressed_port(&name) {
                Some((bridge, no)) => {
                    record(self, None);
                    let mark = self.packet.key.get(F::PktMark);
                    self.with_packet(p, |x| {
                        x.packet.key.set(F::PktMark, mark);
                        if O::TRACES {
                            x.packet.base.set(F::PktMark, mark);
                        }
                        x.below(|x| x.enter_bridge(bridge, no));
                    });
                }
                None => self.because(DropReason::TunnelNoRoute),
            },
            // `outer_headers` takes no such route.
            Egress::Host(_) => self.because(DropReason::TunnelNoRoute),
        }
        true
    }

    /// Leaves the packet to the caller until the next hop has an Ethernet address.
    fn hold_for(&mut self, hop: IpAddr, port: PortNo) {
        let PacketState { buf, base, key, queue, .. } = &self.packet;
        let (packet, base, key) = (buf.data().to_vec(), base.clone(), key.clone());
        let held = HeldPacket { bridge: self.pipeline.bridge, port, packet, base, key, queue: *queue };
        self.pipeline.sent += 1;
        self.out.events.push(Event::NeighbourWanted(hop, Box::new(held)));
    }

    /// Sends a packet that was held, if there is its tunnel still.
    pub(crate) fn send_held(&mut self, held: &HeldPacket) {
        let PacketState { base, key, queue, .. } = &mut self.packet;
        base.clone_from(&held.base);
        key.clone_from(&held.key);
        *queue = held.queue;
        let port = self.backer.bridges.get(held.bridge).and_then(|b| b.ports.get(&held.port));
        match port.map(|p| &p.kind) {
            Some(PortKind::Tunnel(cfg)) => {
                let cfg = cfg.clone();
                self.send_tunnel(&cfg, held.port);
            }
            _ => self.because(DropReason::NoSuchPort),
        }
    }

    /// Tells what a datapath is told that puts packets into tunnels by itself.
    fn tell_tunnel(&mut self, cfg: &TunnelConfig) {
        let tlv = self.backer.bridges.get(self.pipeline.bridge).map(|b| b.tlv.clone()).unwrap_or_default();
        let key = &self.packet.key;
        self.observer.datapath(|| super::tunnel_text::text(cfg, key, &tlv));
        self.examines_followed(cfg);
        if self.type_in(cfg).is_some() && self.commit() {
            let number = self.backer.tunnel_number(cfg);
            self.observer.tell(Kind::Detail, || "output to kernel tunnel".into());
            self.observer.datapath(|| number.to_string());
            self.pipeline.sent += 1;
        }
    }

    /// Tells a trace which fields of an IP packet the tunnel's header follows.
    fn examines_followed(&mut self, cfg: &TunnelConfig) {
        if O::TRACES && matches!(self.packet.key.get(F::EthType), 0x0800 | 0x86dd) {
            cfg.follows().for_each(|f| self.observer.examines(f));
        }
    }

    /// The type of the packet as it is within a tunnel; none if it cannot be there.
    fn type_in(&mut self, cfg: &TunnelConfig) -> Option<PacketType> {
        let mut kind = packet_type(&self.packet.key);
        if cfg.mode == PacketMode::LegacyL3 && kind == PacketType::ETHERNET {
            if self.packet.key.get(F::VlanTci) & 0x1000 != 0 {
                self.because(DropReason::Vlan);
                return None;
            }
            kind = PacketType::of(self.packet.key.get(F::EthType) as u16);
            self.observer.datapath(|| "pop_eth".into());
        }
        // Such packets walk the tables one by one.
        if kind != PacketType::ETHERNET {
            self.observer.side_effect();
        }
        Some(kind)
    }

    /// Decapsulates a tunnel packet for a local address; false if it is none.
    pub(crate) fn tunnel_end(&mut self) -> bool {
        if !self.commit() {
            return true;
        }
        if !self.backer.has_tunnels() {
            return false;
        }
        [F::IpProto, F::IpDst, F::Ipv6Dst, F::UdpDst].into_iter().for_each(|f| self.observer.decides(f));
        let data = self.packet.buf.data();
        let Some((_, dst)) = tunnel::outer_addresses(data, &self.packet.headers) else { return false };
        if !self.backer.underlay.is_local(dst) {
            return false;
        }
        // A frame for another host, or of a VLAN, may come here because it is flooded.
        [F::EthDst, F::VlanTci].into_iter().for_each(|f| self.observer.decides(f));
        let mac = Mac::from_u64(self.packet.key.get(F::EthDst) as u64);
        if !self.backer.underlay.ends_at(dst, mac) || self.packet.key.get(F::VlanTci) != 0 {
            return false;
        }
        if self.packet.headers.proto == ipproto::GRE && !self.backer.has_gre() {
            return false;
        }
        let local = &self.backer.underlay.local;
        if self.packet.headers.proto == ipproto::GRE || tunnel::tunnel_kind(data, &self.packet.headers, local).is_some()
        {
            self.observer.reads_tunnel_header();
        }
        if matches!(self.packet.headers.proto, tunnel::IPV4_WITHIN | tunnel::IPV6_WITHIN) {
            if !self.backer.has_srv6() {
                return false;
            }
            self.observer.side_effect();
        }
        let data = self.packet.buf.data();
        let d = match tunnel::decapsulate(data, &self.packet.headers, &self.backer.underlay.local) {
            Ok(None) => return false,
            Ok(Some(d)) => d,
            Err(tunnel::Malformed) => {
                if O::TRACES {
                    self.tell_pop();
                }
                self.because(DropReason::TunnelMalformed);
                return true;
            }
        };
        if d.packet_type != PacketType::ETHERNET || d.gtpu.is_some() {
            self.observer.side_effect();
        }
        self.packet.buf.settle_checksum();
        // Open vSwitch 3.1 sums before it writes GTP-U's length, so that none of its sums is right.
        let good = self.packet.buf.checksum_good() || d.kind == tunnel::TunnelKind::Gtpu;
        let h = &self.packet.headers;
        let places = [h.l3, h.l4.unwrap_or(d.inner), d.end];
        if !O::TRACES && !tunnel::is_sound(self.packet.buf.data(), places, (h.is_ipv6(), h.proto), good) {
            // Others with the same key are good.
            self.observer.side_effect();
            self.because(DropReason::TunnelChecksum);
            return true;
        }
        // Whether there was congestion in the tunnel.
        self.observer.decides(F::IpEcn);
        let Some((bridge, no)) = self.backer.tunnel_port(&d) else {
            self.because(DropReason::TunnelUnknown);
            return true;
        };
        let made = if self.is_last() { None } else { self.packet.buf.duplicate() };
        if made.is_none() && !self.is_last() {
            self.because(DropReason::NoBuffer);
            return true;
        }
        let behind = d.inner.saturating_sub(self.packet.headers.l3);
        self.observer.decapsulates(&self.packet.base, behind, d.end - d.inner);
        let arrive = |x: &mut Self| x.enter_from_tunnel(bridge, no, &d);
        let inner = |p: &mut P| {
            p.truncate(d.end);
            match d.packet_type.ethertype() {
                None => p.shrink_front(d.inner),
                Some(kind) => {
                    p.shrink_front(d.inner.saturating_sub(ETHERNET));
                    write_front(p, &stand_in(kind));
                }
            }
        };
        match made {
            Some(mut p) => {
                inner(&mut p);
                self.with_packet(p, arrive);
            }
            None => {
                inner(&mut self.packet.buf);
                self.anew(arrive);
            }
        }
        true
    }

    /// Tells that a packet with such an outer header ends at a tunnel, though nothing is in it: traces are often asked
    /// for the header alone.
    fn tell_pop(&mut self) {
        let kind = tunnel::tunnel_kind(self.packet.buf.data(), &self.packet.headers, &self.backer.underlay.local);
        let fits = |t: &&TunnelConfig| kind.map_or(t.kind.is_gre(), |k| k == t.kind);
        if let Some(number) = self.backer.tunnels().find(fits).map(|t| self.backer.tunnel_number(t)) {
            self.observer.datapath(|| format!("tnl_pop({number})"));
        }
    }

    /// Whether the bridge has a spanning tree.
    fn spans(&self) -> bool {
        self.backer.bridges.get(self.pipeline.bridge).is_some_and(|b| b.spans)
    }

    /// Whether the packet is a continuity check or LLDP of this switch, which are of the link below the spanning tree (IEEE
    /// 802.1Q section 22.1.3, IEEE 802.1AB section 6.7).
    fn is_of_the_link(&self) -> bool {
        let b = self.backer.bridges.get(self.pipeline.bridge);
        let received = b.is_some_and(|b| b.ports.contains_key(&self.own_port()));
        !received && [ccm::ETHERTYPE, lldp::ETHERTYPE].map(u128::from).contains(&self.packet.key.get(F::EthType))
    }

    /// Whether the port that the packet came by may only learn its address yet.
    fn arrived_too_early(&self) -> bool {
        let b = self.backer.bridges.get(self.pipeline.bridge);
        b.and_then(|b| b.ports.get(&self.own_port())).is_some_and(|p| !p.stp_forwards())
    }

    /// The packet goes no further than to the daemon, which is told of it by an event.
    pub(crate) fn ends_at_daemon(&mut self, why: SlowPath, event: impl FnOnce(BridgeId, Vec<u8>) -> Event) {
        self.observer.slow_path(why);
        if self.observer.dry() {
            return;
        }
        if !self.backer.meter_pass(self.pipeline.bridge, MeterId::SLOWPATH, self.packet.buf.data().len()) {
            return self.because(DropReason::Meter);
        }
        self.pipeline.sent += 1;
        self.out.events.push(event(self.pipeline.bridge, self.packet.buf.data().to_vec()));
    }

    /// The packet goes no further than to the BFD session of a port. Packets of the same flow go there without a walk.
    fn ends_at_session(&mut self, no: PortNo) {
        self.observer.slow_path(SlowPath::Bfd);
        if self.observer.dry() {
            return;
        }
        let Some(p) = self.packet.buf.duplicate() else { return self.because(DropReason::NoBuffer) };
        match self.backer.meter(self.pipeline.bridge, MeterId::SLOWPATH) {
            None => self.observer.ends_at_session(&self.packet.base, self.pipeline.bridge, no),
            Some(meter) if meter.pass(p.data().len(), self.backer.now) => {}
            Some(_) => return self.because(DropReason::Meter),
        }
        self.pipeline.sent += 1;
        self.out.bfd.push((self.pipeline.bridge, no, p));
    }

    /// Hands a BPDU to the spanning tree; false if it is another packet.
    fn bpdu(&mut self, no: PortNo) -> bool {
        let its = self.is_bpdu();
        if its {
            self.ends_at_daemon(SlowPath::Stp, |bridge, packet| Event::Bpdu { bridge, port: no, packet });
        }
        its
    }

    fn is_bpdu(&mut self) -> bool {
        if self.packet.key.get(F::EthType) as u16 != packet::ethertype::NONE {
            return false;
        }
        self.observer.decides(F::EthDst);
        self.packet.key.get(F::EthDst) as u64 == bpdu::ADDRESS.to_u64()
    }

    /// Hands a BFD packet to the session of its port; false if it is another packet.
    fn bfd(&mut self, wanted: &BfdPackets, no: PortNo) -> bool {
        let port = self.packet.key.get(F::UdpDst);
        self.observer.decides_whether(F::UdpDst, port, BFD.into());
        let fields = [F::EthType, F::IpProto, F::IpDst, F::EthDst, F::TunId].map(|f| self.packet.key.get(f));
        let [kind, proto, ip, eth, tunnel] = fields;
        if port != BFD.into() || kind != 0x0800 || proto != ipproto::UDP.into() {
            return false;
        }
        [F::EthDst, F::IpDst, F::TunId].into_iter().for_each(|f| self.observer.decides(f));
        let its = wanted.eth_dst.is_none_or(|m| u128::from(m) == eth)
            && wanted.ip_dst.is_none_or(|a| u128::from(u32::from(a)) == ip)
            && !(wanted.no_key && tunnel != 0);
        if its {
            self.ends_at_session(no);
        }
        its
    }

    /// Hands a continuity check to the maintenance point of its port; false if it is another packet.
    fn ccm(&mut self, wanted: &CcmPackets, no: PortNo) -> bool {
        if self.packet.key.get(F::EthType) != ccm::ETHERTYPE.into() {
            return false;
        }
        [F::EthDst, F::TunId].into_iter().for_each(|f| self.observer.decides(f));
        let [to, key] = [F::EthDst, F::TunId].map(|f| self.packet.key.get(f));
        let its = to == u128::from(wanted.eth_dst.to_u64()) && !(wanted.no_key && key != 0);
        if its {
            self.ends_at_daemon(SlowPath::Cfm, |bridge, packet| Event::Ccm { bridge, port: no, packet });
        }
        its
    }

    /// Hands LLDP to the agent of its port; false if it is another packet.
    fn lldp(&mut self, no: PortNo) -> bool {
        let its = self.packet.key.get(F::EthType) == lldp::ETHERTYPE.into();
        if its {
            self.ends_at_daemon(SlowPath::Lldp, |bridge, packet| Event::Lldp { bridge, port: no, packet });
        }
        its
    }

    /// Congestion in the tunnel is told on (RFC 3168 section 9.1.1), or, if the packet's sender takes no notice of it, answered by a
    /// drop, as there: false.
    pub(crate) fn take_notice(&mut self, tos: u8) -> bool {
        if tos & tunnel::CE != tunnel::CE || !matches!(self.packet.key.get(F::EthType), 0x0800 | 0x86dd) {
            return true;
        }
        self.observer.decides(F::IpEcn);
        if O::TRACES {
            self.observer.examines(F::IpEcn);
        }
        let capable = self.packet.key.get(F::IpEcn) != 0;
        if capable {
            self.set(F::IpEcn, tunnel::CE.into(), u128::MAX);
        }
        capable
    }

    fn enter_from_tunnel(&mut self, bridge: BridgeId, no: PortNo, d: &tunnel::Decapsulated) {
        if self.pipeline.bridge_hops >= MAX_BRIDGES {
            return self.because(DropReason::TooDeep);
        }
        self.pipeline.bridge_hops += 1;
        let depth = std::mem::take(&mut self.pipeline.depth);
        self.isolated(|x| {
            x.enter(bridge, no);
            x.packet.key.set(F::PacketType, d.packet_type.0.into());
            let n = x.wire_len() as u64;
            if let Some(b) = x.backer.bridges.get(bridge)
                && let Some(PortKind::Tunnel(cfg)) = b.ports.get(&no).map(|p| &p.kind)
            {
                tunnel::to_key(d, cfg, &b.tlv, &mut x.packet.key);
                // Such a port gives the packet an empty Ethernet header, which flows do not count, as in Open vSwitch.
                x.packet.uncounted = if cfg.mode == PacketMode::LegacyL3 { ETHERNET } else { 0 };
            }
            if !x.take_notice(d.tos) {
                return x.because(DropReason::TunnelCongestion);
            }
            x.packet.tunnel = Some(d.outer());
            x.count(no, 0, n);
            let Xlate { observer, backer, packet, .. } = &mut *x;
            observer.arrives_by_tunnel(&packet.key, (bridge, no), backer);
            x.arrive_outside();
            x.observer.arrived_by_tunnel(&x.packet.key);
        });
        self.pipeline.depth = depth;
        self.pipeline.bridge_hops -= 1;
    }
}
