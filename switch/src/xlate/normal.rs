//! The learning switch: `NORMAL` and `FLOOD`, with VLANs, bonds and mirrors.

use crate::bridge::Port;
use crate::bridge::bond::{BUCKETS, SLOW_ADDRESS, SLOW_PROTOCOLS, Spread, State, bucket};
use crate::bridge::mirror::{Mirror, MirrorOutput};
use crate::bridge::vlan::{PriorityTags, VlanMode};
use crate::buf::PacketBuf;
use crate::classifier::mix;
use crate::dependency::Dependency;
use crate::drops::DropReason;
use crate::events::Event;
use crate::extract::mac_text;
use crate::xlate::snooping::Multicast;
use crate::xlate::{Counted, Kind, Observer, SlowPath, Xlate, selection};
use openflow_rs::{FieldId as F, FlowKey, Match, PortNo};
use packet::VlanId;

/// Addresses of protocols between neighbours, which bridges do not forward: those of IEEE 802.1D table 7-10, and of Cisco (ISL, CDP
/// and what shares its address, PVST+, uplink fast, CFM) and Extreme (EDP, EAPS), as in Open vSwitch.
fn is_reserved(dst: u64) -> bool {
    matches!(
        dst,
        0x0180_c200_0000..=0x0180_c200_000f
            | 0x0100_0c00_0000
            | 0x0100_0ccc_ccc0..=0x0100_0ccc_ccc7
            | 0x0100_0ccc_cccc
            | 0x0100_0ccc_cccd
            | 0x0100_0ccd_cdcd
            | 0x00e0_2b00_0000
            | 0x00e0_2b00_0004
            | 0x00e0_2b00_0006
    )
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    pub(crate) fn flood(&mut self, all: bool) {
        self.passes_to_all();
        let inp = self.own_port();
        let Some(b) = self.backer.bridges.get(self.pipeline.bridge) else { return };
        let list: Vec<PortNo> =
            b.ports.values().filter(|p| p.no != inp && (all || !p.no_flood)).map(|p| p.no).collect();
        self.not_last(|x| list.into_iter().for_each(|p| x.emit(p)));
    }

    pub(crate) fn normal(&mut self) {
        let inp = self.own_port();
        let now = self.backer.now;
        let (src, dst) = (self.packet.key.get(F::EthSrc) as u64, self.packet.key.get(F::EthDst) as u64);
        let tci = self.packet.key.get(F::VlanTci) as u16;
        let (dry, tracing) = (self.observer.dry(), O::TRACES);
        let ethernet = self.packet.key.get(F::PacketType) == 0;
        let Some(b) = self.backer.bridges.get_mut(self.pipeline.bridge) else { return };
        if b.is_mirror_output(inp) {
            return self.because(DropReason::MirrorPort);
        }
        let vlan = match b.ports.get(&inp) {
            Some(p) => match p.vlan.ingress(tci) {
                Some(v) => v,
                None => return self.because(DropReason::Vlan),
            },
            // A controller's packet comes from no port of the bridge, nor does one that is traced without a port.
            None if matches!(inp, PortNo::CONTROLLER | PortNo::ANY) || O::TRACES && inp.0 == 0 => VlanId::of_tci(tci),
            None => {
                self.observer.tell(Kind::Warning, || "no input bundle, dropping".into());
                return self.because(DropReason::NoSuchPort);
            }
        };
        if b.ports.contains_key(&inp) && !b.forward_bpdu && is_reserved(dst) {
            self.observer.tell(Kind::Detail, || "packet has reserved destination MAC, dropping".into());
            return self.because(DropReason::Action);
        }
        if !self.bond_takes(inp, vlan, src, dst) {
            self.observer.tell(Kind::Detail, || "bonding refused admissibility, dropping".into());
            return self.because(DropReason::BondMember);
        }
        let Some(b) = self.backer.bridges.get_mut(self.pipeline.bridge) else { return };
        // A bond learns and forwards as one port.
        let inp = b.face(inp);
        let mut learned = None;
        let learns = b.ports.contains_key(&inp) && src >> 40 & 1 == 0 && ethernet && !b.macs.floods_in(vlan);
        if learns && !dry {
            if tracing && b.macs.lookup(vlan, src, now) != Some(inp) {
                learned = b.ports.get(&inp).map(|p| p.name.clone());
            }
            b.macs.learn(vlan, src, inp, now);
        }
        if learns {
            self.observer.learns_mac(self.pipeline.bridge, vlan, src, inp);
        }
        if let Some(name) = learned {
            let mac = mac_text(src.into());
            self.observer.tell(Kind::Detail, || format!("learned that {mac} is on port {name} in VLAN {vlan}"));
        }
        let multicast = self.snoop(inp, vlan, dst);
        let Some(b) = self.backer.bridges.get_mut(self.pipeline.bridge) else { return };
        let known = (dst >> 40 & 1 == 0).then(|| b.macs.lookup(vlan, dst, now)).flatten();
        if dst >> 40 & 1 == 0 {
            self.observer.looks_up_mac(self.pipeline.bridge, vlan, dst, known);
        }
        let tunnel = matches!(b.ports.get(&inp).map(|p| &p.vlan), Some(VlanMode::Dot1qTunnel { .. }));
        let inner = VlanId::of_tci(if tunnel { tci } else { self.packet.key.get(F::Vlan1Tci) as u16 });
        let protected = |no: &PortNo| b.ports.get(no).is_some_and(|p| p.protected);
        let barred = |no: &PortNo| protected(&inp) && protected(no);
        let admits = |p: &Port| p.vlan.admits(vlan, inner) && b.floods_to(p.no) && !barred(&p.no) && p.stp_forwards();
        let list: Vec<PortNo> = match (known, &multicast) {
            (Some(_), _) => Vec::new(),
            (None, Some(Multicast::Ports(list))) => {
                list.iter().filter(|no| b.ports.get(no).is_some_and(admits)).copied().collect()
            }
            (None, _) => {
                let all = b.ports.values().filter(|p| p.no != inp && !p.no_flood && admits(p)).map(|p| p.no);
                let mut list: Vec<PortNo> = all.collect();
                // The bridge's own port comes first, as in Open vSwitch.
                list.sort_by_key(|p| *p != PortNo::LOCAL);
                list
            }
        };
        let to = known.filter(|p| *p != inp && !barred(p));
        match known {
            Some(p) if p == inp => self.observer.tell(Kind::Detail, || "learned port is input port, dropping".into()),
            Some(_) => self.observer.tell(Kind::Detail, || "forwarding to learned port".into()),
            None => match multicast {
                Some(Multicast::Ports(_)) => {}
                Some(Multicast::All(words)) => self.floods_because(words),
                None => self.floods_because("no learned MAC for destination, flooding"),
            },
        }
        let before = match self
            .backer
            .bridges
            .get(self.pipeline.bridge)
            .and_then(|b| b.ports.get(&self.own_port()))
            .map(|p| &p.vlan)
        {
            Some(VlanMode::Dot1qTunnel { tpid, .. }) => Some((self.packet.key.clone(), *tpid)),
            _ => None,
        };
        if let Some((_, tpid)) = before
            && !self.push_service_tag(vlan, tpid)
        {
            return self.because(DropReason::Vlan);
        }
        let (last, n) = (self.pipeline.last, list.len());
        if let Some(p) = to {
            self.emit_vlan(p, vlan, tci.into(), None);
        }
        for (i, p) in list.into_iter().enumerate() {
            self.pipeline.last = last && i + 1 == n;
            self.emit_vlan(p, vlan, tci.into(), None);
        }
        if let Some((key, _)) = before {
            self.packet.key = key;
        }
        self.pipeline.last = last;
    }

    /// The packet goes to all ports of its VLAN; the words are for a trace.
    fn floods_because(&mut self, words: &'static str) {
        self.passes_to_all();
        self.observer.tell(Kind::Detail, || words.into());
    }

    /// Pushes the tag of a service VLAN; false if the packet has two tags already.
    fn push_service_tag(&mut self, vlan: VlanId, tpid: u16) -> bool {
        if self.packet.key.get(F::Vlan1Tci) != 0 {
            return false;
        }
        let (tci, old) = (self.packet.key.get(F::VlanTci), self.packet.key.get(F::VlanTpid));
        // A tag with VLAN 0 and priority 0 is dropped.
        if tci & 0xefff != 0 {
            self.packet.key.set(F::Vlan1Tci, tci);
            self.packet.key.set(F::Vlan1Tpid, old);
        }
        self.packet.key.set(F::VlanTci, 0x1000 | u128::from(vlan));
        self.packet.key.set(F::VlanTpid, tpid.into());
        true
    }

    /// Sends the packet to a port of a VLAN, with or without a tag; no more than `most` bytes, the tag included.
    pub(crate) fn emit_vlan(&mut self, port: PortNo, vlan: VlanId, came: u128, most: Option<usize>) {
        let Some(port) = self.member_for(port, vlan) else { return };
        let Some(p) = self.backer.bridges.get(self.pipeline.bridge).and_then(|b| b.ports.get(&port)) else { return };
        let (untagged, access) = (p.vlan.sends_untagged(vlan), matches!(p.vlan, VlanMode::Access(_)));
        let trunk = matches!(p.vlan, VlanMode::Trunk(_) | VlanMode::NativeTagged(..));
        let priorities = p.priority_tags;
        let saved = (!self.is_last()).then(|| self.packet.key.clone());
        let tci = self.packet.key.get(F::VlanTci);
        if self.packet.key.get(F::Vlan1Tci) == 0x1000 && priorities != PriorityTags::Always {
            // A tag with VLAN 0 and priority 0 is dropped.
            self.packet.key.set(F::Vlan1Tci, 0);
            self.packet.key.set(F::Vlan1Tpid, 0);
        }
        // Between trunks a tag without a VLAN stays for the priority that it tells.
        let prioritized = trunk && vlan == VlanId::NONE && tci & 0xe000 != 0;
        if !untagged {
            self.packet.key.set(F::VlanTci, (tci & 0xe000) | 0x1000 | u128::from(vlan));
        } else if tci & 0x1000 != 0 && !prioritized {
            // An access port sends no tag at all.
            let inner = [F::Vlan1Tci, F::Vlan1Tpid].map(|f| if access { 0 } else { self.packet.key.get(f) });
            self.packet.key.set(F::VlanTci, inner[0]);
            self.packet.key.set(F::VlanTpid, inner[1]);
            self.packet.key.set(F::Vlan1Tci, 0);
            self.packet.key.set(F::Vlan1Tpid, 0);
        }
        self.keep_priority(priorities, access, came);
        self.cut_copy(most, |x| x.emit(port));
        if let Some(key) = saved {
            self.packet.key = key;
        }
    }

    /// Restores the priority that the packet arrived with, in a new tag if it has none.
    fn keep_priority(&mut self, how: PriorityTags, access: bool, came: u128) {
        let (tci, priority) = (self.packet.key.get(F::VlanTci), came & 0xe000);
        let alone = priority != 0 || how == PriorityTags::Always && !access && came & 0x1000 != 0;
        if how == PriorityTags::Never || tci & 0x1000 == 0 && !alone {
            return;
        }
        self.packet.key.set(F::VlanTci, tci & 0xfff | priority | 0x1000);
        if tci & 0x1000 == 0 {
            self.packet.key.set(F::VlanTpid, packet::ethertype::VLAN.into());
        }
    }
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Hands a LACP packet to its bond; false if it is another packet.
    pub(crate) fn slow_protocol(&mut self, no: PortNo) -> bool {
        let Some(b) = self.backer.bridges.get(self.pipeline.bridge).filter(|b| !b.bonds.is_empty()) else {
            return false;
        };
        let its = self.packet.key.get(F::EthType) as u16 == SLOW_PROTOCOLS && b.bond_of(no).is_some_and(|b| b.lacp);
        if !its {
            return false;
        }
        self.observer.decides(F::EthDst);
        let its = self.packet.buf.data().get(..6) == Some(&SLOW_ADDRESS[..]);
        if its {
            self.ends_at_daemon(SlowPath::Lacp, |bridge, packet| Event::Slow { bridge, port: no, packet });
        }
        its
    }

    /// Whether the bond of a port admits a packet.
    pub(crate) fn bond_takes(&mut self, no: PortNo, vlan: VlanId, src: u64, dst: u64) -> bool {
        let now = self.backer.now;
        let Some(b) = self.backer.bridges.get(self.pipeline.bridge) else { return true };
        let Some(bond) = b.bond_of(no) else { return true };
        let face = b.face(no);
        let known = b.macs.lookup(vlan, src, now);
        // A gratuitous ARP announces a host that has moved: it is no reflection.
        let elsewhere = bond.reflects && known.is_some_and(|p| p != face);
        let moved = elsewhere && !self.announces_itself();
        let group = dst >> 40 & 1 != 0 && bond.active != Some(no) && !bond.all_active;
        let takes = bond.takes.contains(&no) && !group && !moved;
        let asks = bond.reflects;
        self.observer.depends(Dependency::Live(self.pipeline.bridge, no));
        if elsewhere {
            [F::ArpOp, F::ArpSpa, F::ArpTpa].into_iter().for_each(|f| self.observer.decides(f));
        }
        if asks {
            self.observer.looks_up_mac(self.pipeline.bridge, vlan, src, known);
        }
        takes
    }

    /// A gratuitous ARP packet.
    fn announces_itself(&self) -> bool {
        let k = &self.packet.key;
        let arp = k.get(F::EthType) == 0x806 && k.get(F::EthDst) == 0xffff_ffff_ffff;
        arp && (k.get(F::ArpOp) == 2 || k.get(F::ArpOp) == 1 && k.get(F::ArpSpa) == k.get(F::ArpTpa))
    }

    /// The port that a packet leaves by: for a bond, the member chosen by hash.
    pub(crate) fn member_for(&mut self, no: PortNo, vlan: VlanId) -> Option<PortNo> {
        let b = self.backer.bridges.get(self.pipeline.bridge)?;
        let Some((i, State { bond, .. })) = b.state_of(no) else { return Some(no) };
        let place = match bond.spread {
            Spread::Active => None,
            Spread::Source => Some(bucket(self.packet.key.get(F::EthSrc) as u64, vlan.get(), bond.basis)),
            Spread::Transport => {
                let ip = matches!(self.packet.key.get(F::EthType), 0x800 | 0x86dd);
                let basis = u64::from(bond.basis) << 16 | u64::from(vlan.get());
                let hash = if ip { selection::hash(&self.packet.key, &[], basis) } else { 0 };
                let macs = (self.packet.key.get(F::EthSrc) ^ self.packet.key.get(F::EthDst)) as u64;
                Some((mix(hash ^ macs) % BUCKETS as u64) as usize)
            }
        };
        let member = match place {
            None => bond.active,
            Some(n) => bond.buckets.get(n).copied().flatten(),
        };
        self.observer.depends(Dependency::Live(self.pipeline.bridge, no));
        let n = self.packet.buf.data().len();
        if let Some(bucket) = place {
            if !self.is_uncounted()
                && let Some(x) = self
                    .backer
                    .bridges
                    .get_mut(self.pipeline.bridge)
                    .and_then(|b| b.bonds.get_mut(i)?.bytes.get_mut(bucket))
            {
                *x += n as u64;
            }
            self.observer.counts(Counted::Bond { bridge: self.pipeline.bridge, bond: i, bucket }, n);
        }
        if member.is_none() {
            self.because(DropReason::NoBondMember);
        }
        member
    }
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Copies what a port receives or sends to the mirrors that want it and have no copy yet.
    pub(crate) fn copy(&mut self, no: PortNo, received: bool) {
        let Some(b) = self.backer.bridges.get(self.pipeline.bridge).filter(|b| !b.mirrors.is_empty()) else { return };
        if received && !b.ports.contains_key(&no) {
            // A packet of a trace that no port receives.
            return;
        }
        let tci = self.packet.key.get(F::VlanTci) as u16;
        let vlan = match b.ports.get(&no).map(|p| &p.vlan) {
            // An untagged packet of an access port belongs to its VLAN.
            Some(VlanMode::Access(v) | VlanMode::Dot1qTunnel { vlan: v, .. }) => *v,
            Some(mode) => mode.ingress(tci).unwrap_or(VlanId::of_tci(tci)),
            None => VlanId::of_tci(tci),
        };
        let wants = |m: &Mirror| {
            let ports = if received { &m.sources } else { &m.destinations };
            (m.all || ports.contains(&no)) && (m.vlans.is_empty() || m.vlans.contains(&vlan))
        };
        let undone = |i: usize| self.packet.mirrored >> i & 1 == 0;
        let asked = b.mirrors.iter().enumerate().filter(|(i, m)| undone(*i) && wants(m));
        let fields: Vec<F> =
            asked.filter_map(|(_, m)| m.filter.as_ref()).flat_map(Match::fields).map(|(f, ..)| f).collect();
        let fits = |m: &Mirror, key: &FlowKey| m.filter.as_ref().is_none_or(|f| f.matches(key));
        let mut list = Vec::new();
        for (i, m) in b.mirrors.iter().enumerate() {
            if self.packet.mirrored >> i & 1 == 0 && wants(m) && fits(m, &self.packet.key) {
                // Mirrors with the same output share one copy.
                for (j, other) in b.mirrors.iter().enumerate() {
                    self.packet.mirrored |= u32::from(other.output == m.output) << j;
                }
                list.push(m.clone());
            }
        }
        for f in fields {
            self.observer.reads(f);
            self.observer.decides(f);
        }
        if list.is_empty() {
            return;
        }
        // What follows depends on the copies that were made.
        self.segment_ends();
        let last = std::mem::take(&mut self.pipeline.last);
        for m in list {
            match m.output {
                MirrorOutput::Port(p) if p == no => {}
                MirrorOutput::Port(p) => self.cut_copy(m.snaplen, |x| x.emit(p)),
                MirrorOutput::Vlan(v) => self.copy_to_vlan(v, vlan, m.snaplen),
            }
        }
        self.pipeline.last = last;
        self.segment_ends();
    }

    /// Sends a copy, of no more than so many bytes.
    fn cut_copy(&mut self, most: Option<usize>, send: impl FnOnce(&mut Self)) {
        let Some(n) = most else { return send(self) };
        self.observer.cuts(n, true);
        self.shortened((n, n), send);
    }

    fn copy_to_vlan(&mut self, vlan: VlanId, of: VlanId, most: Option<usize>) {
        // A copy within the packet's own VLAN would be a loop; one of a protocol between neighbours would be taken for that.
        self.observer.decides(F::EthDst);
        if vlan == of || is_reserved(self.packet.key.get(F::EthDst) as u64) {
            return;
        }
        let Some(b) = self.backer.bridges.get(self.pipeline.bridge) else { return };
        let ports: Vec<PortNo> =
            b.ports.values().filter(|p| p.vlan.carries(vlan) && b.floods_to(p.no)).map(|p| p.no).collect();
        let came = self.packet.key.get(F::VlanTci);
        for p in ports {
            self.emit_vlan(p, vlan, came, most);
        }
    }
}
