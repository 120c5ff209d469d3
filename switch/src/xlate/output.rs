//! Output: ports, patch ports, tunnels, NORMAL and FLOOD.

use crate::bridge::{Port, PortKind, PriorityTags, VlanMode};
use crate::buf::PacketBuf;
use crate::datapath::Event;
use crate::drops::DropReason;
use crate::extract::PACKET_WORDS;
use crate::flowcache::{Condition, Encap};
use crate::tunnel::{self, BfdPackets, Egress, TunnelConfig, Unreachable};
use crate::xlate::{Within, Xlate};
use openflow_rs::action::{Action, ControllerAction, PacketInReason};
use openflow_rs::{FieldId as F, FlowKey, PortNo};

/// UDP port of BFD for single hops (RFC 5881 section 4), which tunnels use.
const BFD: u16 = 3784;
/// An Ethernet header, without which nothing is sent.
const ETHERNET: usize = 14;
/// Bridges that a packet may cross.
const MAX_BRIDGES: u32 = 16;

/// An action set as a list, as Open vSwitch has it: the last pop, push and decrement, then what sets fields in the order that it
/// was written, then one action that sends or goes on. Without such a one nothing is done; buckets may hold other actions, which
/// have no effect.
pub(crate) fn ordered_action_set(set: Vec<Action>) -> Vec<Action> {
    fn once(a: &Action) -> Option<usize> {
        match a {
            Action::PopVlan => Some(0),
            Action::PushVlan(_) => Some(1),
            Action::DecTtl(_) => Some(2),
            _ => None,
        }
    }
    fn last(a: &Action) -> Option<u32> {
        match a {
            Action::Ct(_) => Some(1),
            Action::CtClear => Some(2),
            Action::Resubmit { .. } => Some(3),
            Action::Output { .. } => Some(4),
            Action::Group(_) => Some(5),
            _ => None,
        }
    }
    let mut first: [Option<Action>; 3] = Default::default();
    let (mut middle, mut end): (Vec<Action>, Option<Action>) = (Vec::new(), None);
    for a in set {
        if let Some(slot) = once(&a).and_then(|i| first.get_mut(i)) {
            *slot = Some(a);
        } else if let Some(n) = last(&a) {
            if end.as_ref().and_then(last).is_none_or(|m| n >= m) {
                end = Some(a);
            }
        } else if matches!(a, Action::SetField { .. } | Action::Load { .. } | Action::Move { .. } | Action::SetQueue(_))
        {
            middle.push(a);
        }
    }
    match end {
        Some(end) => first.into_iter().flatten().chain(middle).chain([end]).collect(),
        None => Vec::new(),
    }
}

/// What is behind a port.
enum Way {
    Device(u32),
    Internal(u32),
    /// The other end, if it is there.
    Patch(Option<(usize, PortNo)>),
    Tunnel(Box<TunnelConfig>),
}

impl VlanMode {
    /// The VLAN of a packet that arrives with this tag; `None` if it is not allowed.
    pub(crate) fn ingress(&self, tci: u16) -> Option<u16> {
        let tag = (tci & 0x1000 != 0 && tci & 0xfff != 0).then_some(tci & 0xfff);
        match (self, tag) {
            (VlanMode::Access(v), None) => Some(*v),
            (VlanMode::Access(_), Some(_)) => None,
            (VlanMode::Dot1qTunnel { vlan, customers, .. }, tag) => {
                (customers.is_empty() || customers.contains(&tag.unwrap_or(0))).then_some(*vlan)
            }
            (VlanMode::Trunk(_), None) => self.carries(0).then_some(0),
            (VlanMode::NativeTagged(n, _) | VlanMode::NativeUntagged(n, _), None) => Some(*n),
            (_, Some(v)) => self.carries(v).then_some(v),
        }
    }

    pub(crate) fn carries(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Access(v) | VlanMode::Dot1qTunnel { vlan: v, .. } => *v == vlan,
            VlanMode::Trunk(t) => t.is_empty() || t.contains(&vlan),
            VlanMode::NativeTagged(n, t) | VlanMode::NativeUntagged(n, t) => {
                // Where there is a native VLAN, what is in none is in that one.
                *n == vlan || vlan != 0 && (t.is_empty() || t.contains(&vlan))
            }
        }
    }

    /// Whether a packet of a VLAN, with this one inside (0: none), may leave.
    fn admits(&self, vlan: u16, inner: u16) -> bool {
        match self {
            VlanMode::Access(_) => self.carries(vlan) && inner == 0,
            VlanMode::Dot1qTunnel { customers, .. } => {
                self.carries(vlan) && (customers.is_empty() || customers.contains(&inner))
            }
            _ => self.carries(vlan),
        }
    }

    fn sends_untagged(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Access(_) | VlanMode::Dot1qTunnel { .. } => true,
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
            PortNo::CONTROLLER => {
                let reason = match self.within {
                    Within::Flow => PacketInReason::Action,
                    Within::ActionSet => PacketInReason::ActionSet,
                    Within::Bucket { .. } => PacketInReason::Group,
                    Within::PacketOut => PacketInReason::PacketOut,
                };
                self.controller(&ControllerAction { max_len, reason, ..Default::default() });
            }
            PortNo::ANY | PortNo::UNSET => {}
            p if p == self.in_port() => self.warn(|| "skipping output to input port".into()),
            p => self.emit(p),
        }
    }

    /// What is cut off is worked out before tags that are due are written, as in Open vSwitch.
    pub(crate) fn output_truncated(&mut self, port: PortNo, n: usize) {
        let cut = self.pkt.data().len().saturating_sub(n);
        if self.commit() {
            let left = self.pkt.data().len().saturating_sub(cut);
            if left < ETHERNET {
                return self.because(DropReason::Short);
            }
            self.tell_cut(n);
            self.shortened(left, |x| x.output(port, 0));
        }
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
        self.not_last(body);
        (self.pkt, self.checked) = (whole, checked);
    }

    fn flood(&mut self, all: bool) {
        self.passes_to_all();
        let inp = self.in_port();
        let Some(b) = self.sw.bridges.get(self.bridge) else { return };
        let list: Vec<PortNo> =
            b.ports.values().filter(|p| p.no != inp && (all || !p.no_flood)).map(|p| p.no).collect();
        self.not_last(|x| list.into_iter().for_each(|p| x.emit(p)));
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
        let tunnel = matches!(b.ports.get(&inp).map(|p| &p.vlan), Some(VlanMode::Dot1qTunnel { .. }));
        let inner = if tunnel { tci } else { self.key.get(F::Vlan1Tci) as u16 } & 0xfff;
        let protected = |no: &PortNo| b.ports.get(no).is_some_and(|p| p.protected);
        let barred = |no: &PortNo| protected(&inp) && protected(no);
        let mut list: Vec<PortNo> = match known {
            Some(_) => Vec::new(),
            None => b
                .ports
                .values()
                .filter(|p| p.no != inp && !p.no_flood && p.vlan.admits(vlan, inner) && b.floods_to(p.no))
                .map(|p| p.no)
                .filter(|no| !barred(no))
                .collect(),
        };
        // The bridge's own port comes first, as in Open vSwitch.
        list.sort_by_key(|p| *p != PortNo::LOCAL);
        let to = known.filter(|p| *p != inp && !barred(p));
        if let Some(name) = learned {
            let mac = crate::trace::mac(src.into());
            self.detail(|| format!("learned that {mac} is on port {name} in VLAN {vlan}"));
        }
        match known {
            Some(p) if p == inp => self.detail(|| "learned port is input port, dropping".into()),
            Some(_) => self.detail(|| "forwarding to learned port".into()),
            None => {
                self.passes_to_all();
                self.detail(|| "no learned MAC for destination, flooding".into());
            }
        }
        let before = match self.sw.bridges.get(self.bridge).and_then(|b| b.ports.get(&self.in_port())).map(|p| &p.vlan)
        {
            Some(VlanMode::Dot1qTunnel { tpid, .. }) => Some((self.key.clone(), *tpid)),
            _ => None,
        };
        if let Some((_, tpid)) = before
            && !self.push_service_tag(vlan, tpid)
        {
            return self.because(DropReason::Vlan);
        }
        let (last, n) = (self.last, list.len());
        if let Some(p) = to {
            self.emit_vlan(p, vlan, tci.into());
        }
        for (i, p) in list.into_iter().enumerate() {
            self.last = last && i + 1 == n;
            self.emit_vlan(p, vlan, tci.into());
        }
        if let Some((key, _)) = before {
            self.key = key;
        }
        self.last = last;
    }

    /// Puts the tag of a service VLAN before those that the packet has; false if it has too many.
    fn push_service_tag(&mut self, vlan: u16, tpid: u16) -> bool {
        if self.key.get(F::Vlan1Tci) != 0 {
            return false;
        }
        let (tci, old) = (self.key.get(F::VlanTci), self.key.get(F::VlanTpid));
        // A tag without VLAN and priority says nothing.
        if tci & 0xefff != 0 {
            self.key.set(F::Vlan1Tci, tci);
            self.key.set(F::Vlan1Tpid, old);
        }
        self.key.set(F::VlanTci, 0x1000 | u128::from(vlan));
        self.key.set(F::VlanTpid, tpid.into());
        true
    }

    pub(crate) fn emit_vlan(&mut self, port: PortNo, vlan: u16, came: u128) {
        let Some(port) = self.member_for(port, vlan) else { return };
        let Some(p) = self.sw.bridges.get(self.bridge).and_then(|b| b.ports.get(&port)) else { return };
        let (untagged, access) = (p.vlan.sends_untagged(vlan), matches!(p.vlan, VlanMode::Access(_)));
        let priorities = p.priority_tags;
        let saved = (!self.is_last()).then(|| self.key.clone());
        let tci = self.key.get(F::VlanTci);
        if self.key.get(F::Vlan1Tci) == 0x1000 && priorities != PriorityTags::Always {
            // A tag without VLAN and priority says nothing.
            self.key.set(F::Vlan1Tci, 0);
            self.key.set(F::Vlan1Tpid, 0);
        }
        if !untagged {
            self.key.set(F::VlanTci, (tci & 0xe000) | 0x1000 | u128::from(vlan));
        } else if tci & 0x1000 != 0 {
            // Of an access port's packets no tag is left.
            let inner = [F::Vlan1Tci, F::Vlan1Tpid].map(|f| if access { 0 } else { self.key.get(f) });
            self.key.set(F::VlanTci, inner[0]);
            self.key.set(F::VlanTpid, inner[1]);
            self.key.set(F::Vlan1Tci, 0);
            self.key.set(F::Vlan1Tpid, 0);
        }
        self.keep_priority(priorities, access, came);
        self.emit(port);
        if let Some(key) = saved {
            self.key = key;
        }
    }

    /// Gives the first tag the priority that the packet came with, and a tag for it where there is none.
    fn keep_priority(&mut self, how: PriorityTags, access: bool, came: u128) {
        let (tci, priority) = (self.key.get(F::VlanTci), came & 0xe000);
        let alone = priority != 0 || how == PriorityTags::Always && !access && came & 0x1000 != 0;
        if how == PriorityTags::Never || tci & 0x1000 == 0 && !alone {
            return;
        }
        self.key.set(F::VlanTci, tci & 0xfff | priority | 0x1000);
        if tci & 0x1000 == 0 {
            self.key.set(F::VlanTpid, packet::ethertype::VLAN.into());
        }
    }

    /// Sends the packet out of a port.
    pub(crate) fn emit(&mut self, no: PortNo) {
        let Some(port) = self.sw.bridges.get(self.bridge).and_then(|b| b.ports.get(&no)) else {
            return self.because(DropReason::NoSuchPort);
        };
        if port.config & (Port::DOWN | Port::NO_FWD) != 0 {
            return self.because(DropReason::PortConfig);
        }
        let way = match &port.kind {
            PortKind::Device(d) => Way::Device(*d),
            PortKind::Internal(d) => Way::Internal(*d),
            PortKind::Patch(peer) => match self.sw.ends.patches.get(&(self.bridge, no)) {
                Some(end) => Way::Patch(*end),
                None => {
                    let end = self.sw.find_port(peer);
                    self.sw.ends.patches.insert((self.bridge, no), end);
                    Way::Patch(end)
                }
            },
            PortKind::Tunnel(cfg) => Way::Tunnel(cfg.clone()),
        };
        self.copy(no, false);
        let n = self.pkt.data().len() as u64;
        self.count(no, 1, n);
        match way {
            Way::Device(d) => self.send_device(d, no),
            Way::Internal(d) => {
                if !self.tunnel_end() {
                    self.send_device(d, no);
                }
            }
            Way::Patch(Some((bridge, no))) => self.enter_bridge(bridge, no),
            Way::Patch(None) => self.because(DropReason::NoSuchPort),
            Way::Tunnel(cfg) => self.send_tunnel(&cfg, no),
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

    fn send_device(&mut self, device: u32, no: PortNo) {
        if !self.commit() {
            return;
        }
        self.passes(no);
        let device = crate::buf::target(device, self.queue);
        if self.is_last() {
            self.sent += 1;
            if let Some(r) = &mut self.rec {
                r.send(&self.base, device);
            }
            self.leaves = Some(device);
            return;
        }
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

    fn send_tunnel(&mut self, cfg: &TunnelConfig, no: PortNo) {
        if !self.commit() {
            return;
        }
        self.passes(no);
        self.detail(|| "output to native tunnel".into());
        let entropy = tunnel::entropy(&self.key);
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
                r.encap(&x.base, Encap { headers: outer.into(), v6, csum: cfg.csum, spread: false, device }, n);
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
            // `encapsulate` takes no such route.
            Egress::Host(_) => self.because(DropReason::TunnelNoRoute),
        }
    }

    /// Runs something on what the packet has become, as on another; nothing is done with it afterwards.
    fn anew(&mut self, body: impl FnOnce(&mut Self)) {
        self.key.0.fill(0);
        self.h = crate::extract::extract(self.pkt.data(), self.sw.underlay.local.tags(), &mut self.key);
        self.base.clone_from(&self.key);
        let recorded = self.rec.as_mut().map(|r| r.enter(&self.base));
        (self.pass, self.checked) = (None, false);
        self.stretch_ends();
        body(self);
        self.stretch_ends();
        if let (Some(r), Some(s)) = (&mut self.rec, recorded) {
            r.leave(s);
        }
    }

    /// Runs something on another packet.
    pub(crate) fn with_packet(&mut self, p: P, body: impl FnOnce(&mut Self)) {
        if self.is_last() {
            self.pkt = p;
            return self.anew(body);
        }
        let mut key = FlowKey::new();
        let h = crate::extract::extract(p.data(), self.sw.underlay.local.tags(), &mut key);
        let pkt = std::mem::replace(&mut self.pkt, p);
        let saved = (self.h, std::mem::replace(&mut self.base, key.clone()), std::mem::replace(&mut self.key, key));
        self.h = h;
        self.stretch_ends();
        let recorded = self.rec.as_mut().map(|r| r.enter(&self.base));
        let known = (self.pass.take(), std::mem::take(&mut self.checked));
        let around = (std::mem::take(&mut self.apart), self.kept.take());
        self.not_last(body);
        self.stretch_ends();
        (self.pass, self.checked) = known;
        (self.apart, self.kept) = around;
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
        if !self.sw.has_tunnels() {
            return false;
        }
        if let Some(r) = &mut self.rec {
            [F::IpProto, F::IpDst, F::Ipv6Dst, F::UdpDst].into_iter().for_each(|f| r.looked.field(f));
        }
        let data = self.pkt.data();
        let Some((_, dst)) = tunnel::outer_addresses(data, &self.h) else { return false };
        if !self.sw.underlay.is_local(dst) {
            return false;
        }
        if crate::flowcache::key::tunnel_port(data, &self.h).is_some()
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
        let made = if self.is_last() { None } else { self.pkt.duplicate() };
        if made.is_none() && !self.is_last() {
            self.because(DropReason::NoBuffer);
            return true;
        }
        if let (Some(r), Some(l4)) = (&mut self.rec, self.h.l4) {
            r.decap(&self.base, d.inner - l4, d.end - d.inner);
        }
        let arrive = |x: &mut Self| {
            if bfd.is_some_and(|b| x.is_bfd(&b, d.vni)) {
                x.sent += 1;
                let n = x.pkt.data().len() as u64;
                if let (false, Some(b)) = (x.dry(), x.sw.bridges.get_mut(bridge))
                    && let Some(p) = b.ports.get_mut(&no)
                {
                    p.stats[0] += 1;
                    p.stats[2] += n;
                }
                let packet = x.pkt.data().to_vec();
                return x.out.events.push(Event::Bfd { bridge, port: no, remote: d.src, packet });
            }
            x.enter_from_tunnel(bridge, no, &d);
        };
        let inner = |p: &mut P| {
            p.truncate(d.end);
            p.shrink_front(d.inner);
        };
        match made {
            Some(mut p) => {
                inner(&mut p);
                self.with_packet(p, arrive);
            }
            None => {
                inner(&mut self.pkt);
                self.anew(arrive);
            }
        }
        true
    }

    /// Whether the packet from a tunnel is one for the session there.
    fn is_bfd(&mut self, wanted: &BfdPackets, vni: u32) -> bool {
        let port = self.key.get(F::UdpDst);
        if let Some(r) = &mut self.rec {
            r.looked.compared(F::UdpDst, port, BFD.into());
        }
        let [kind, proto, ip, eth] = [F::EthType, F::IpProto, F::IpDst, F::EthDst].map(|f| self.key.get(f));
        if port != BFD.into() || kind != 0x0800 || proto != 17 {
            return false;
        }
        if let Some(r) = &mut self.rec {
            [F::EthDst, F::IpDst].into_iter().for_each(|f| r.looked.field(f));
        }
        let mac = |m: packet::Mac| m.iter().fold(0, |v, b| v << 8 | u128::from(*b));
        wanted.eth_dst.is_none_or(|m| mac(m) == eth)
            && wanted.ip_dst.is_none_or(|a| u128::from(u32::from(a)) == ip)
            && !(wanted.no_key && vni != 0)
    }

    fn enter_from_tunnel(&mut self, bridge: usize, no: PortNo, d: &tunnel::Decapsulated) {
        if self.crossed >= MAX_BRIDGES {
            return self.because(DropReason::TooDeep);
        }
        self.crossed += 1;
        let depth = std::mem::take(&mut self.depth);
        self.isolated(|x| {
            x.enter(bridge, no);
            if let Some(b) = x.sw.bridges.get(bridge) {
                tunnel::to_key(d, &b.tlv, &mut x.key);
            }
            x.outer = Some(d.outer());
            let n = x.pkt.data().len() as u64;
            x.count(no, 0, n);
            x.arrive_outside();
        });
        self.depth = depth;
        self.crossed -= 1;
    }
}
