//! Multicast snooping in NORMAL: where packets to groups go, and what reports and queries say (RFC 4541).

use crate::bridge::Invalidation;
use crate::bridge::snooping::Snooping;
use crate::buf::PacketBuf;
use crate::dependency::Dependency;
use crate::xlate::{Kind, Observer, SlowPath, Xlate};
use openflow_rs::{FieldId as F, PortNo};
use packet::multicast::{Said, read};
use packet::{VlanId, ethertype, ipproto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a packet to a group goes.
pub(super) enum Multicast {
    /// To all ports of its VLAN; the word tells of it.
    All(&'static str),
    /// To these, each once.
    Ports(Vec<PortNo>),
}

/// Which kind of packet it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speech {
    /// Reports, and that somebody leaves.
    Report,
    Query,
    /// IGMP of another type.
    Other,
}

const BROADCAST: u64 = 0xffff_ffff_ffff;

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Where a packet that `port` brought to `vlan` goes; none: it is to no group, or the bridge does not snoop.
    pub(super) fn snoop(&mut self, port: PortNo, vlan: VlanId, dst: u64) -> Option<Multicast> {
        let bridge = self.pipeline.bridge;
        self.backer.bridges.get(bridge).and_then(|b| b.snooping.as_ref())?;
        let v4 = match self.packet.key.get(F::EthType) as u16 {
            ethertype::IPV4 => true,
            ethertype::IPV6 => false,
            _ => return None,
        };
        if dst >> 40 & 1 == 0 || dst == BROADCAST {
            return None;
        }
        self.observer.examines(F::IpProto);
        let speech = self.speech(v4);
        if let Some(speech) = speech {
            // Each of them is heard.
            self.observer.side_effect();
            self.observer.slow_path(SlowPath::Action);
            if speech != Speech::Other && !self.observer.dry() {
                self.hear(port, vlan);
            }
        }
        let ip = if v4 { F::IpDst } else { F::Ipv6Dst };
        let to = self.packet.key.get(ip);
        let group = if v4 { IpAddr::V4(Ipv4Addr::from(to as u32)) } else { IpAddr::V6(Ipv6Addr::from(to)) };
        if speech.is_none() {
            self.observer.examines(ip);
            self.observer.depends(Dependency::Multicast(bridge));
        }
        let s = self.backer.bridges.get(bridge).and_then(|b| b.snooping.as_ref())?;
        let mut ports = Listed { observer: &mut self.observer, port, list: Vec::new() };
        match speech {
            Some(Speech::Report) => {
                ports.routers(s, vlan);
                let words =
                    ("forwarding report to mcast flagged port", "mcast port is input port, dropping the Report");
                s.flood_reports.iter().for_each(|p| ports.add(*p, words));
            }
            Some(_) if v4 => return Some(Multicast::All("multicast traffic, flooding")),
            Some(_) => return Some(Multicast::All("MLD query, flooding")),
            // RFC 4541 section 2.1.2 (2), and for IPv6 section 3.
            None if local(group) => return Some(Multicast::All("RFC4541: section 2.1.2, item 2, flooding")),
            None => match s.members(vlan, group) {
                Some(members) => {
                    let words = ("forwarding to mcast group port", "mcast group port is input port, dropping");
                    members.for_each(|p| ports.add(p, words));
                    ports.flood(s);
                    ports.routers(s, vlan);
                }
                None if s.floods_unregistered() => return Some(Multicast::All("unregistered multicast, flooding")),
                None => {
                    ports.routers(s, vlan);
                    ports.flood(s);
                }
            },
        }
        Some(Multicast::Ports(ports.list))
    }

    /// What the packet is, if it is one of IGMP or of MLD.
    fn speech(&mut self, v4: bool) -> Option<Speech> {
        let proto = self.packet.key.get(F::IpProto) as u8;
        if v4 {
            let at = self.packet.headers.l3;
            let kind = || {
                let b = self.packet.buf.data().get(..self.packet.headers.l3_end)?;
                let message = b.get(at + usize::from(b.get(at)? & 15) * 4..)?.first_chunk::<8>()?;
                Some(message[0])
            };
            return (proto == ipproto::IGMP).then(|| match kind() {
                Some(0x12 | 0x16 | 0x17 | 0x22) => Speech::Report,
                Some(0x11) => Speech::Query,
                _ => Speech::Other,
            });
        }
        if proto != ipproto::ICMPV6 {
            return None;
        }
        self.observer.examines(F::Icmpv6Type);
        match self.packet.key.get(F::Icmpv6Type) {
            131 | 132 | 143 => Some(Speech::Report),
            130 => Some(Speech::Query),
            _ => None,
        }
    }

    /// Takes note of what the packet says.
    fn hear(&mut self, port: PortNo, vlan: VlanId) {
        let (bridge, now) = (self.pipeline.bridge, self.backer.now);
        let v4 = self.packet.key.get(F::EthType) as u16 == ethertype::IPV4;
        let source = self.packet.key.get(F::IpSrc);
        let Some(b) = self.backer.bridges.get_mut(bridge) else { return };
        let Some(name) = b.ports.get(&port).map(|p| p.name.clone()) else { return };
        let Some(s) = b.snooping.as_mut() else { return };
        let tell =
            |o: &mut O, text: &dyn Fn() -> String| o.tell(Kind::Detail, || format!("multicast snooping {}", text()));
        let Some((said, _)) = read(self.packet.buf.data()) else {
            let kind = if v4 { "IGMP" } else { "MLD" };
            return tell(&mut self.observer, &|| format!("received bad {kind} checksum on port {name} in VLAN {vlan}"));
        };
        let (mut news, mut changed) = (0, false);
        let records =
            !v4 || said.len() != 1 || matches!(said.first(), Some(Said::Join(_, packet::multicast::Version::Igmp3)));
        for one in &said {
            // Who has no address yet is no router.
            if v4 && *one == Said::Query && source == 0 {
                continue;
            }
            let heard = s.hear(one, vlan, port, now);
            (news, changed) = (news + u32::from(heard.new), changed | heard.changed);
            if !heard.new {
                continue;
            }
            match one {
                Said::Query if v4 => tell(&mut self.observer, &|| {
                    let from = Ipv4Addr::from(source as u32);
                    format!("query from {from} is on port {name} in VLAN {vlan}")
                }),
                Said::Query => tell(&mut self.observer, &|| format!("query on port {name} in VLAN {vlan}")),
                Said::Join(a, _) if !records => {
                    tell(&mut self.observer, &|| format!("learned that {a} is on port {name} in VLAN {vlan}"))
                }
                Said::Leave(a) if !records => {
                    tell(&mut self.observer, &|| format!("leaving {a} is on port {name} in VLAN {vlan}"))
                }
                Said::Join(..) | Said::Leave(_) => {}
            }
        }
        if records && news > 0 && said != [Said::Query] {
            tell(&mut self.observer, &|| format!("processed {news} addresses on port {name} in VLAN {vlan}"));
        }
        if changed {
            b.touched.push(Invalidation::Multicast);
        }
    }
}

/// Whether all ports get packets to a group, whoever asked for it: 224.0.0.0/24, and all nodes of IPv6's link.
fn local(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(a) => a.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(a) => a == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    }
}

/// Ports that get a packet, and who is told of them.
struct Listed<'a, O> {
    observer: &'a mut O,
    /// The port that it came by.
    port: PortNo,
    list: Vec<PortNo>,
}

impl<O: Observer> Listed<'_, O> {
    /// A port, and what a trace says of it: that it gets the packet, or that it is the one that brought it.
    fn add(&mut self, port: PortNo, (sent, dropped): (&'static str, &'static str)) {
        if port == self.port {
            return self.observer.tell(Kind::Detail, || dropped.into());
        }
        self.observer.tell(Kind::Detail, || sent.into());
        if !self.list.contains(&port) {
            self.list.push(port);
        }
    }

    fn flood(&mut self, s: &Snooping) {
        let words = ("forwarding to mcast flood port", "mcast flood port is input port, dropping");
        s.flood.iter().for_each(|p| self.add(*p, words));
    }

    fn routers(&mut self, s: &Snooping, vlan: VlanId) {
        for (v, port) in s.routers() {
            if v != vlan {
                self.observer.tell(Kind::Detail, || "mcast router is on another vlan, dropping".into());
                continue;
            }
            self.add(port, ("forwarding to mcast router port", "mcast router port is input port, dropping"));
        }
    }
}
