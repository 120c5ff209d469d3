//! Output: ports, patch ports, tunnels, NORMAL and FLOOD.

use crate::bridge::{PortKind, VlanMode};
use crate::buf::PacketBuf;
use crate::cache::{Condition, Encap};
use crate::drops::DropReason;
use crate::extract::PACKET_WORDS;
use crate::switch::Event;
use crate::tunnel::{self, Egress, TunnelConfig, Unreachable};
use crate::xlate::Xlate;
use openflow_rs::action::{Action, ControllerAction};
use openflow_rs::{FieldId as F, FlowKey, PortNo};

/// Bridges that a packet may cross.
const MAX_BRIDGES: u32 = 16;

/// An action set in the order of OpenFlow 1.5 section 5.6; the last of a kind wins.
pub(crate) fn ordered_action_set(set: Vec<Action>) -> Vec<Action> {
    fn rank(a: &Action) -> u32 {
        match a {
            Action::PopVlan => 1,
            Action::PushVlan(_) => 2,
            Action::DecTtl(_) => 3,
            Action::Move { .. } => 4,
            Action::Load { .. } => 5,
            Action::SetField { field, .. } => 100 + *field as u32,
            Action::SetQueue(_) => 900,
            Action::Group(_) => 1000,
            Action::Output { .. } | Action::OutputReg { .. } | Action::Controller(_) => 1001,
            Action::Resubmit { .. } => 1002,
            Action::Ct(_) => 1003,
            _ => 6,
        }
    }
    let mut v: Vec<Action> = Vec::new();
    for a in set {
        let r = rank(&a);
        v.retain(|b| rank(b) != r || r < 7 && r > 3);
        v.push(a);
    }
    v.sort_by_key(rank);
    if let Some(i) =
        v.iter().position(|a| matches!(a, Action::Group(_) | Action::Output { .. } | Action::OutputReg { .. }))
    {
        v.truncate(i + 1);
    }
    v
}

impl VlanMode {
    /// The VLAN of a packet that arrives with this tag; `None` if it is not allowed.
    pub(crate) fn ingress(&self, tci: u16) -> Option<u16> {
        let tag = (tci & 0x1000 != 0 && tci & 0xfff != 0).then_some(tci & 0xfff);
        match (self, tag) {
            (VlanMode::Access(v), None) => Some(*v),
            (VlanMode::Access(_), Some(_)) => None,
            (VlanMode::Trunk(_), None) => self.carries(0).then_some(0),
            (VlanMode::NativeTagged(n, _) | VlanMode::NativeUntagged(n, _), None) => Some(*n),
            (_, Some(v)) => self.carries(v).then_some(v),
        }
    }

    pub(crate) fn carries(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Access(v) => *v == vlan,
            VlanMode::Trunk(t) => t.is_empty() || t.contains(&vlan),
            VlanMode::NativeTagged(n, t) | VlanMode::NativeUntagged(n, t) => {
                *n == vlan || t.is_empty() || t.contains(&vlan)
            }
        }
    }

    fn sends_untagged(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Access(_) => true,
            VlanMode::NativeUntagged(n, _) => *n == vlan,
            _ => vlan == 0,
        }
    }
}

impl<P: PacketBuf> Xlate<'_, P> {
    fn in_port(&self) -> PortNo {
        PortNo(self.key.get(F::InPort) as u16)
    }

    pub(crate) fn output(&mut self, port: PortNo, max_len: u16) {
        match port {
            PortNo::IN_PORT => self.emit(self.in_port()),
            PortNo::TABLE => self.run_table(0),
            PortNo::NORMAL => self.normal(),
            PortNo::FLOOD => self.flood(false),
            PortNo::ALL => self.flood(true),
            PortNo::CONTROLLER => self.controller(&ControllerAction { max_len, ..Default::default() }),
            PortNo::ANY | PortNo::UNSET => {}
            p if p == self.in_port() => self.warn(|| "skipping output to input port".into()),
            p => self.emit(p),
        }
    }

    pub(crate) fn output_truncated(&mut self, port: PortNo, n: usize) {
        self.shortened(n, |x| x.output(port, 0));
    }

    /// Runs something on the first bytes of the packet.
    pub(crate) fn shortened(&mut self, n: usize, body: impl FnOnce(&mut Self)) {
        self.unrepeatable();
        if !self.commit() {
            return;
        }
        let Some(mut short) = self.pkt.duplicate() else { return self.because(DropReason::NoBuffer) };
        short.truncate(n);
        let whole = std::mem::replace(&mut self.pkt, short);
        let checked = std::mem::take(&mut self.checked);
        body(self);
        (self.pkt, self.checked) = (whole, checked);
    }

    fn flood(&mut self, all: bool) {
        let inp = self.in_port();
        let Some(b) = self.sw.bridges.get(self.bridge) else { return };
        let list: Vec<PortNo> =
            b.ports.values().filter(|p| p.no != inp && (all || !p.no_flood)).map(|p| p.no).collect();
        for p in list {
            self.emit(p);
        }
    }

    fn normal(&mut self) {
        let inp = self.in_port();
        let now = self.sw.now;
        let (src, dst) = (self.key.get(F::EthSrc) as u64, self.key.get(F::EthDst) as u64);
        let tci = self.key.get(F::VlanTci) as u16;
        let (dry, tracing) = (self.dry(), self.trace.is_some());
        let Some(b) = self.sw.bridges.get_mut(self.bridge) else { return };
        if b.is_mirror_output(inp) {
            return self.because(DropReason::MirrorPort);
        }
        let vlan = match b.ports.get(&inp) {
            Some(p) => match p.vlan.ingress(tci) {
                Some(v) => v,
                None => return self.because(DropReason::Vlan),
            },
            // Packet-outs come from no port.
            None => tci & 0xfff,
        };
        if !self.bond_takes(inp, vlan, src, dst) {
            return self.because(DropReason::BondMember);
        }
        let Some(b) = self.sw.bridges.get_mut(self.bridge) else { return };
        // A bond learns and sends as one port.
        let inp = b.face(inp);
        let mut learned = None;
        let learns = b.ports.contains_key(&inp) && src >> 40 & 1 == 0;
        if learns && !dry {
            if tracing && b.macs.lookup(vlan, src, now) != Some(inp) {
                learned = b.ports.get(&inp).map(|p| p.name.clone());
            }
            b.macs.learn(vlan, src, inp, now);
        }
        if let (true, Some(r)) = (learns, &mut self.rec) {
            r.condition(Condition::Source { bridge: self.bridge, vlan, mac: src, port: inp });
        }
        // Reserved group addresses are not forwarded (IEEE 802.1D table 7-10).
        if dst & 0xffff_ffff_fff0 == 0x0180_c200_0000 {
            return self.because(DropReason::Action);
        }
        let known = (dst >> 40 & 1 == 0).then(|| b.macs.lookup(vlan, dst, now)).flatten();
        if let (true, Some(r)) = (dst >> 40 & 1 == 0, &mut self.rec) {
            r.condition(Condition::Address { bridge: self.bridge, vlan, mac: dst, port: known });
        }
        let list: Vec<PortNo> = match known {
            Some(p) if p == inp => Vec::new(),
            Some(p) => vec![p],
            None => b
                .ports
                .values()
                .filter(|p| p.no != inp && !p.no_flood && p.vlan.carries(vlan) && b.floods_to(p.no))
                .map(|p| p.no)
                .collect(),
        };
        if let Some(name) = learned {
            let mac = crate::trace::mac(src.into());
            self.detail(|| format!("learned that {mac} is on port {name} in VLAN {vlan}"));
        }
        match known {
            Some(p) if p == inp => self.detail(|| "learned port is input port, dropping".into()),
            Some(_) => self.detail(|| "forwarding to learned port".into()),
            None => self.detail(|| "no learned MAC for destination, flooding".into()),
        }
        for p in list {
            self.emit_vlan(p, vlan);
        }
    }

    pub(crate) fn emit_vlan(&mut self, port: PortNo, vlan: u16) {
        let Some(port) = self.member_for(port, vlan) else { return };
        let Some(untagged) =
            self.sw.bridges.get(self.bridge).and_then(|b| b.ports.get(&port)).map(|p| p.vlan.sends_untagged(vlan))
        else {
            return;
        };
        let saved = self.key.clone();
        let tci = self.key.get(F::VlanTci);
        if untagged {
            if tci & 0x1000 != 0 {
                let (t, p) = (self.key.get(F::Vlan1Tci), self.key.get(F::Vlan1Tpid));
                self.key.set(F::VlanTci, t);
                self.key.set(F::VlanTpid, p);
                self.key.set(F::Vlan1Tci, 0);
                self.key.set(F::Vlan1Tpid, 0);
            }
        } else {
            self.key.set(F::VlanTci, (tci & 0xe000) | 0x1000 | u128::from(vlan));
        }
        self.emit(port);
        self.key = saved;
    }

    /// Sends the packet out of a port.
    pub(crate) fn emit(&mut self, no: PortNo) {
        let Some(port) = self.sw.bridges.get(self.bridge).and_then(|b| b.ports.get(&no)) else {
            return self.because(DropReason::NoSuchPort);
        };
        let kind = port.kind.clone();
        self.copy(no, false);
        let n = self.pkt.data().len() as u64;
        self.count(no, 1, n);
        match kind {
            PortKind::Device(d) => self.send_device(d),
            PortKind::Internal(d) => {
                if !self.tunnel_end() {
                    self.send_device(d);
                }
            }
            PortKind::Patch(peer) => self.send_patch(&peer),
            PortKind::Tunnel(cfg) => self.send_tunnel(&cfg),
        }
    }

    fn count(&mut self, no: PortNo, direction: usize, bytes: u64) {
        if !self.dry()
            && let Some(p) = self.sw.bridges.get_mut(self.bridge).and_then(|b| b.ports.get_mut(&no))
        {
            p.stats[direction] += 1;
            p.stats[2 + direction] += bytes;
        }
        if let Some(r) = &mut self.rec {
            r.port(self.bridge, no, direction == 1, bytes as usize);
        }
    }

    fn send_device(&mut self, device: u32) {
        if !self.commit() {
            return;
        }
        let device = crate::buf::target(device, self.queue);
        match self.pkt.duplicate() {
            Some(p) => {
                self.tell_sent(device);
                self.sent += 1;
                if let Some(r) = &mut self.rec {
                    r.send(&self.base, device);
                }
                self.out.packets.push((device, p));
            }
            None => self.because(DropReason::NoBuffer),
        }
    }

    /// Clears what does not cross from one bridge to another.
    fn enter(&mut self, bridge: usize, in_port: PortNo) {
        for (w, x) in self.key.0.iter_mut().enumerate() {
            // The packet mark (upper half of word 1) stays with the packet.
            if !PACKET_WORDS.contains(&w) && w != 1 {
                *x = 0;
            }
        }
        self.key.set(F::InPort, in_port.0.into());
        self.bridge = bridge;
        self.pass = None;
        self.mirrored = 0;
        self.stack.clear();
    }

    fn send_patch(&mut self, peer: &str) {
        let Some((bridge, no)) = self.sw.find_port(peer) else { return self.because(DropReason::NoSuchPort) };
        self.enter_bridge(bridge, no);
    }

    fn enter_bridge(&mut self, bridge: usize, no: PortNo) {
        if self.crossed >= MAX_BRIDGES {
            return self.because(DropReason::TooDeep);
        }
        self.crossed += 1;
        let depth = std::mem::take(&mut self.depth);
        self.isolated(|x| {
            x.enter(bridge, no);
            let n = x.pkt.data().len() as u64;
            x.count(no, 0, n);
            x.tell_bridge();
            x.arrive();
            x.tell_up();
        });
        self.depth = depth;
        self.crossed -= 1;
    }

    fn send_tunnel(&mut self, cfg: &TunnelConfig) {
        if !self.commit() {
            return;
        }
        self.detail(|| "output to native tunnel".into());
        let entropy = 0xc000 | (self.flow_hash(&[], 0) as u16 & 0x3fff);
        let tlv = self.sw.bridges.get(self.bridge).map(|b| b.tlv.clone()).unwrap_or_default();
        let mut needs = Vec::new();
        let made = tunnel::outer_headers(cfg, &self.key, &tlv, self.pkt.data(), &self.sw.underlay, entropy, |n| {
            needs.push(n);
        });
        needs.into_iter().for_each(|n| self.needs(n));
        let (outer, egress) = match made {
            Ok(x) => x,
            Err(why) => {
                match &why {
                    Unreachable::Neighbour(a) => self.tell_miss(cfg, *a),
                    Unreachable::Route(_) => self.warn(|| "native tunnel routing failed".into()),
                    Unreachable::Destination => self.warn(|| "the tunnel has no destination".into()),
                }
                if let Unreachable::Neighbour(a) = why {
                    self.out.events.push(Event::NeighbourWanted(a));
                }
                return self.because(match why {
                    Unreachable::Destination => DropReason::TunnelNoDestination,
                    Unreachable::Route(_) => DropReason::TunnelNoRoute,
                    Unreachable::Neighbour(_) => DropReason::TunnelNoNeighbour,
                });
            }
        };
        if self.trace.is_some() {
            self.tell_tunnel(cfg, &outer, &egress);
        }
        let Some(mut p) = self.pkt.duplicate() else { return self.because(DropReason::NoBuffer) };
        if !p.grow_front(outer.len()) {
            return self.because(DropReason::NoBuffer);
        }
        if let Some(d) = p.data_mut().get_mut(..outer.len()) {
            d.copy_from_slice(&outer);
        }
        let record = |x: &mut Self, device: Option<u32>| {
            let v6 = outer.get(12) == Some(&0x86);
            let n = x.pkt.data().len();
            if let Some(r) = &mut x.rec {
                r.encap(&x.base, Encap { headers: outer.into(), v6, csum: cfg.csum, device }, n);
            }
        };
        match egress {
            Egress::Device(d) => {
                let d = crate::buf::target(d, self.queue);
                record(self, Some(d));
                self.tell_sent(d);
                self.sent += 1;
                self.out.packets.push((d, p));
            }
            Egress::Bridge(name) => match self.sw.bridge_by_name(&name) {
                Some(b) => {
                    record(self, None);
                    self.with_packet(p, |x| x.enter_bridge(b, PortNo::LOCAL));
                }
                None => self.because(DropReason::TunnelNoRoute),
            },
        }
    }

    /// Runs something on another packet.
    pub(crate) fn with_packet(&mut self, p: P, body: impl FnOnce(&mut Self)) {
        let mut key = FlowKey::new();
        let h = crate::extract::extract(p.data(), self.sw.underlay.local.tags(), &mut key);
        let pkt = std::mem::replace(&mut self.pkt, p);
        let saved = (self.h, std::mem::replace(&mut self.base, key.clone()), std::mem::replace(&mut self.key, key));
        self.h = h;
        let recorded = self.rec.as_mut().map(|r| r.enter(&self.base));
        let known = (self.pass.take(), std::mem::take(&mut self.checked));
        self.stretch_ends();
        body(self);
        self.stretch_ends();
        (self.pass, self.checked) = known;
        if let (Some(r), Some(s)) = (&mut self.rec, recorded) {
            r.leave(s);
        }
        self.pkt = pkt;
        (self.h, self.base, self.key) = saved;
    }

    /// Takes a tunnel packet for us out of its tunnel; false if it is none.
    pub(crate) fn tunnel_end(&mut self) -> bool {
        if !self.commit() {
            return true;
        }
        let data = self.pkt.data();
        let Some((_, dst)) = tunnel::outer_addresses(data, &self.h) else { return false };
        if !self.sw.underlay.is_local(dst) {
            return false;
        }
        if crate::cache::key::tunnel_port(data, &self.h).is_some()
            && let Some(r) = &mut self.rec
        {
            r.tunnelled();
        }
        let data = self.pkt.data();
        let d = match tunnel::decapsulate(data, &self.h) {
            Ok(None) => return false,
            Ok(Some(d)) => d,
            Err(tunnel::Malformed) => {
                self.because(DropReason::TunnelMalformed);
                return true;
            }
        };
        let Some((bridge, no, bfd)) = self.sw.tunnel_port(&d) else {
            self.because(DropReason::TunnelUnknown);
            return true;
        };
        let Some(mut p) = self.pkt.duplicate() else {
            self.because(DropReason::NoBuffer);
            return true;
        };
        if let (Some(r), Some(l4)) = (&mut self.rec, self.h.l4) {
            r.decap(&self.base, d.inner - l4, d.end - d.inner);
        }
        p.truncate(d.end);
        p.shrink_front(d.inner);
        self.with_packet(p, |x| {
            if bfd && x.key.get(F::UdpDst) == 3784 && x.key.get(F::IpProto) == 17 {
                x.sent += 1;
                let packet = x.pkt.data().to_vec();
                return x.out.events.push(Event::Bfd { bridge, port: no, remote: d.src, packet });
            }
            x.enter_from_tunnel(bridge, no, &d);
        });
        true
    }

    fn enter_from_tunnel(&mut self, bridge: usize, no: PortNo, d: &tunnel::Decapsulated) {
        if self.crossed >= MAX_BRIDGES {
            return self.because(DropReason::TooDeep);
        }
        self.crossed += 1;
        let depth = std::mem::take(&mut self.depth);
        self.isolated(|x| {
            x.enter(bridge, no);
            let tlv = x.sw.bridges.get(bridge).map(|b| b.tlv.clone()).unwrap_or_default();
            tunnel::to_key(d, &tlv, &mut x.key);
            let n = x.pkt.data().len() as u64;
            x.count(no, 0, n);
            x.arrive();
        });
        self.depth = depth;
        self.crossed -= 1;
    }
}
