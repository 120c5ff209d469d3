//! What each case sends.

use super::frames::{self, Content, Flow, Tunnel};
use super::machine::{HERE, HERE6, L2, MIRROR, Machine, NEXT, OVERLAYS, PLAIN, ROUTER, THERE, THERE6, VLANS};
use anyhow::Result;
use packet::{Mac, Vni};
use std::net::Ipv4Addr;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of the tunnel, to the VLAN; in at the plain bridge.
    Out,
    /// From the VLAN, into the tunnel.
    Back,
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Case {
    name: String,
    /// Which of the traffic's directions it measures.
    pub direction: Direction,
}

impl Case {
    /// As it is printed.
    pub fn name(&self) -> String {
        self.name.clone()
    }
}

/// What is translated on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    /// The same through a meter whose rate nothing reaches.
    Metered,
    /// The same, and the bridge's flows learn who sent the packet, each time anew, as those of `br-tun` of OpenStack.
    Learned,
    /// Plain, and a copy of each packet leaves in GRE, as by a mirror of OVN.
    Mirrored,
    /// The same in ERSPAN, whose packets have numbers.
    Erspan,
    /// Out of GRE, as at the other end of such a mirror.
    FromGre,
    /// Plain, and of a hundred packets one is sampled for a collector, as by a sample of OVN.
    Sampled,
    /// Plain, and NetFlow counts the bridge's flows.
    Netflow,
    /// By learned addresses.
    Normal,
    /// A group chooses one of four buckets by a hash, as ECMP routes of OVN do, which all lead to the same port.
    Grouped,
    /// Requests of ARP are answered, as by OVN's switches.
    Answered,
    /// The destination port becomes another one.
    Port,
    /// The packet's length is compared with an MTU, as OVN's routers do.
    Larger,
    /// Into a VXLAN tunnel, as at a VTEP, and out of it.
    Vxlan,
    /// Into a Geneve tunnel over IPv6, and out of it.
    Geneve6,
    Routed,
    Snat,
    Floating,
    L2,
    /// The same through ACLs that ask for connections.
    Guarded,
    Service,
    /// A service with several backends, of which each switch takes its own.
    Balanced,
}

/// Packets of one kind, both ways.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Its name.
    pub name: String,
    /// Different packets; each of a connection of its own.
    pub packets: usize,
    /// Ports that they come in by, each of which has the next of them: a port holds its packets in one pool, and Open
    /// vSwitch's pools have room for no more than 262,144.
    pub sources: usize,
    /// What is measured are packets of connections that are not there yet.
    pub fresh: bool,
    /// What is measured of it.
    pub cases: Vec<Case>,
    way: Way,
    content: Content,
}

/// Packets of one port.
const SOURCE: usize = 200_000;

/// A bridge and the port that is its device.
pub type Side = (&'static str, &'static str);

fn traffic(name: &str, way: Way, packets: usize, content: Content, out: Option<&str>, back: Option<&str>) -> Traffic {
    let case = |n: Option<&str>, direction| n.map(|n| Case { name: n.into(), direction });
    let cases = [case(out, Direction::Out), case(back, Direction::Back)].into_iter().flatten().collect();
    Traffic { name: name.into(), packets, sources: packets.div_ceil(SOURCE), fresh: false, cases, way, content }
}

/// All traffic.
pub fn all() -> Vec<Traffic> {
    use Content::{Arp, Broken, Echo, Esp, Imix, Malformed, Sctp, Small, Stray, Tcp, V6};
    let mut v = vec![
        traffic("forward", Way::Plain, 1000, Small, Some("forward"), None),
        traffic("forward-imix", Way::Plain, 1200, Imix, Some("forward-imix"), None),
        traffic("malformed", Way::Plain, 1000, Malformed, Some("forward-malformed"), None),
        traffic("metered", Way::Metered, 1000, Small, Some("metered"), None),
        traffic("learned", Way::Learned, 1000, Small, Some("learned"), None),
        traffic("mirrored", Way::Mirrored, 1000, Small, Some("mirrored"), None),
        traffic("erspan", Way::Erspan, 1000, Small, Some("erspan"), None),
        traffic("from-gre", Way::FromGre, 1000, Small, Some("from-gre"), None),
        traffic("sampled", Way::Sampled, 1000, Small, Some("sampled"), None),
        traffic("netflow", Way::Netflow, 1000, Small, Some("netflow"), None),
        traffic("normal", Way::Normal, 1000, Small, Some("normal"), None),
        traffic("grouped", Way::Grouped, 1000, Small, Some("grouped"), None),
        traffic("arp", Way::Answered, 1000, Arp, Some("arp"), None),
        traffic("sctp-port", Way::Port, 1000, Sctp, Some("sctp-port"), None),
        traffic("larger", Way::Larger, 1000, Small, Some("larger"), None),
        traffic("vxlan", Way::Vxlan, 1000, Small, Some("into-vxlan"), Some("from-vxlan")),
        traffic("geneve6", Way::Geneve6, 1000, Small, Some("into-geneve6"), Some("from-geneve6")),
        traffic("geneve66", Way::Geneve6, 1000, V6, Some("into-geneve6-v6"), Some("from-geneve6-v6")),
        traffic("routed", Way::Routed, 1000, Small, Some("routed-out"), None),
    ];
    for n in [1, 1000, 100_000, 1_000_000] {
        let (out, back) = (format!("snat-{n}"), format!("unsnat-{n}"));
        v.push(traffic(&out, Way::Snat, n, Small, Some(&out), Some(&back)));
    }
    v.extend([
        traffic("snat-imix", Way::Snat, 1200, Imix, Some("snat-1200-imix"), Some("unsnat-1200-imix")),
        traffic("fragments", Way::Snat, 400, Content::Halves, Some("snat-fragments"), Some("unsnat-fragments")),
        traffic("errors", Way::Snat, 1600, Content::Errors, Some("snat-errors"), Some("unsnat-errors")),
        traffic("broken", Way::Snat, 100_000, Broken, Some("broken-out"), None),
        traffic("stray", Way::Snat, 100_000, Stray, Some("stray-out"), None),
        traffic("tcp", Way::Snat, 1000, Tcp, Some("snat-tcp"), Some("unsnat-tcp")),
        traffic("esp", Way::Snat, 1000, Esp, Some("snat-esp"), Some("unsnat-esp")),
        traffic("echo", Way::Snat, 1000, Echo, Some("snat-echo"), Some("unsnat-echo")),
        traffic("routed6", Way::Routed, 1000, V6, Some("routed6-out"), Some("routed6-in")),
        traffic("snat6", Way::Snat, 1000, V6, Some("snat6"), Some("unsnat6")),
        traffic("floating6", Way::Floating, 1000, V6, Some("floating6-out"), Some("floating6-in")),
        traffic("acl", Way::Guarded, 1000, Small, Some("acl-out"), Some("acl-in")),
        traffic("acl-tcp", Way::Guarded, 1000, Tcp, Some("acl-tcp-out"), Some("acl-tcp-in")),
        traffic("floating", Way::Floating, 1000, Small, Some("floating-out"), Some("floating-in")),
        traffic("l2", Way::L2, 1000, Small, Some("l2gateway-out"), Some("l2gateway-in")),
        traffic("service", Way::Service, 1000, Small, None, Some("loadbalancer-in")),
    ]);
    v.push(Traffic { fresh: true, ..traffic("new", Way::Snat, 200_000, Small, Some("new-connections"), None) });
    for (name, content) in [("new-tcp", Tcp), ("new-echo", Echo), ("new-esp", Esp), ("new-snat6", V6)] {
        v.push(Traffic { fresh: true, ..traffic(name, Way::Snat, 200_000, content, Some(name), None) });
    }
    v.push(Traffic { fresh: true, ..traffic("balanced", Way::Balanced, 200_000, Small, None, Some("new-balanced")) });
    v
}

impl Traffic {
    /// It passes a bridge that leaves packets as they are, by these actions: `OUT` is the port that they leave by.
    pub fn plain(&self) -> Option<&'static str> {
        match self.way {
            Way::Plain | Way::FromGre | Way::Netflow => Some("output:OUT"),
            Way::Metered => Some("meter:1,output:OUT"),
            Way::Learned => Some(
                "learn(table=1,hard_timeout=300,priority=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0->NXM_OF_VLAN_TCI[],\
                 output:NXM_OF_IN_PORT[]),output:OUT",
            ),
            Way::Mirrored => Some("output:40,output:OUT"),
            Way::Erspan => Some("output:41,output:OUT"),
            Way::Sampled => {
                Some("sample(probability=655,collector_set_id=1,obs_domain_id=1,obs_point_id=1),output:OUT")
            }
            Way::Answered => Some(
                "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],mod_dl_src:02:00:00:00:00:0e,load:2->NXM_OF_ARP_OP[],\
                 move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],load:0x02000000000e->NXM_NX_ARP_SHA[],push:NXM_OF_ARP_SPA[],\
                 move:NXM_OF_ARP_TPA[]->NXM_OF_ARP_SPA[],pop:NXM_OF_ARP_TPA[],output:OUT",
            ),
            Way::Port => Some("set_field:3868->sctp_dst,output:OUT"),
            Way::Normal => Some("NORMAL"),
            Way::Grouped => Some("group:1"),
            Way::Larger => Some("check_pkt_larger(1500)->NXM_NX_REG0[0],output:OUT"),
            Way::Vxlan => Some("output:42"),
            Way::Geneve6 => Some("output:43"),
            _ => None,
        }
    }

    /// Which packets have these actions, as a flow's match.
    pub fn matches(&self) -> &'static str {
        match self.way {
            Way::Answered => "arp,",
            Way::Port => "sctp,",
            _ => "",
        }
    }

    /// It passes a bridge that has no logical network.
    pub fn is_plain(&self) -> bool {
        self.plain().is_some()
    }

    /// NetFlow counts the flows of the plain bridge.
    pub fn is_counted(&self) -> bool {
        self.way == Way::Netflow
    }

    /// Its packets can come back as they left.
    pub fn goes_round(&self) -> bool {
        self.is_plain() && !matches!(self.way, Way::FromGre | Way::Vxlan | Way::Geneve6 | Way::Answered | Way::Port)
    }

    /// Where a direction's packets come in, and where they go out.
    pub fn sides(&self, d: Direction) -> (Side, Side) {
        let (a, b) = match self.way {
            Way::FromGre => (("br-under", "under0"), ("br-plain", "out0")),
            Way::Vxlan | Way::Geneve6 if d == Direction::Out => (("br-plain", "in0"), ("br-under", "under0")),
            Way::Vxlan | Way::Geneve6 => (("br-plain", "out0"), ("br-under", "under0")),
            _ if self.is_plain() => (("br-plain", "in0"), ("br-plain", "out0")),
            _ => (("br-under", "under0"), ("br-phys", "phys0")),
        };
        if d == Direction::Out { (a, b) } else { (b, a) }
    }

    /// The packets of each port, of all or of so many that are spread over them.
    pub fn shares(&self, n: usize) -> impl Iterator<Item = impl Iterator<Item = usize>> {
        let (each, step) = (self.packets.div_ceil(self.sources), self.packets / n);
        (0..self.sources).map(move |s| {
            let own = (s * each).div_ceil(step)..((s + 1) * each).div_ceil(step);
            own.take_while(move |i| *i < n).map(move |i| i * step)
        })
    }

    /// What of a packet that left is the same whichever switch sent it.
    pub fn comparable(&self, frame: &[u8]) -> Vec<u8> {
        match self.way {
            Way::Balanced => frames::inner_source(frame),
            _ => frames::comparable(frame, self.sources > 1),
        }
    }

    /// A packet.
    ///
    /// # Errors
    /// The logical network lacks something.
    pub fn frame(&self, m: &Machine, d: Direction, n: usize) -> Result<Vec<u8>> {
        // Pairs of port and far address are unique, so that translation can keep every port.
        let connection = n / self.content.frames();
        let port = 10_000 + (connection % 50_000) as u16;
        // Without ports that two hosts with one address can have, each has a far address of its own.
        let fars = if matches!(self.content, Content::Esp) { connection } else { connection / 50_000 };
        let far = Ipv4Addr::from(0xac1f_0001 + fars as u32);
        let near = match self.way {
            Way::Snat => Ipv4Addr::new(10, 0, 1, 11 + (connection % 4) as u8),
            Way::Floating => Ipv4Addr::new(10, 0, 1, 30),
            Way::L2 | Way::Guarded => Ipv4Addr::new(10, 9, 0, 1),
            Way::Service | Way::Balanced => Ipv4Addr::new(10, 0, 1, 11),
            _ => Ipv4Addr::new(10, 0, 3, 11),
        };
        // Who sends through another port is another host of the network.
        let source = (n / self.packets.div_ceil(self.sources)) as u8;
        let sender = |Mac([a, b, c, d, e, f]): Mac| Mac([a, b, c, d, e + source, f]);
        let flow = |macs: (Mac, Mac), from, to, vlan| Flow { macs, from, to, vlan, asks: d == Direction::Out };
        let ends = if matches!(self.way, Way::Service | Way::Balanced) {
            ((near, 5000), (far, port))
        } else {
            ((near, port), (far, 53))
        };
        if self.is_plain() {
            let frame = frames::frame(&flow(PLAIN, ends.0, ends.1, None), self.content, n)?;
            return match self.way {
                Way::FromGre => frames::gre((THERE, HERE), MIRROR, &frame),
                Way::Vxlan if d == Direction::Back => {
                    let ips = (THERE.1.into(), HERE.1.into());
                    frames::vxlan((THERE.0, HERE.0), ips, Vni::new(OVERLAYS)?, &frame, n)
                }
                Way::Geneve6 if d == Direction::Back => {
                    let (macs, ips) = ((THERE.0, HERE.0), (THERE6.into(), HERE6.into()));
                    frames::geneve(&Tunnel { macs, ips, vni: Vni::new(OVERLAYS)?, ports: None }, &frame, n)
                }
                _ => Ok(frame),
            };
        }
        if d == Direction::Out {
            // As the hypervisor's router leaves it: routed, and bound for the port that its gateway serves.
            let (macs, datapath, ports) = match self.way {
                Way::L2 => ((L2.1, L2.0), "datapath wire", ("vm7", "wire-gw")),
                Way::Guarded => ((L2.1, L2.0), "datapath guarded", ("vm8", "guard-gw")),
                Way::Routed => ((ROUTER, NEXT.0), "datapath edge", ("edge-plain", "cr-edge-public")),
                _ => ((ROUTER, NEXT.0), "datapath edge", ("edge-inside", "cr-edge-public")),
            };
            let t = Tunnel {
                macs: (sender(THERE.0), HERE.0),
                ips: (THERE.1.into(), HERE.1.into()),
                vni: Vni::new(m.key(datapath)?)?,
                ports: Some((m.key(ports.0)?, m.key(ports.1)?)),
            };
            return frames::geneve(&t, &frames::frame(&flow(macs, ends.0, ends.1, None), self.content, n)?, n);
        }
        let seen = match self.way {
            Way::Snat => (Ipv4Addr::new(172, 16, 0, 1), ends.0.1),
            Way::Floating => (Ipv4Addr::new(172, 16, 0, 30), ends.0.1),
            Way::Service => (Ipv4Addr::new(172, 16, 0, 100), 5000),
            Way::Balanced => (Ipv4Addr::new(172, 16, 0, 101), 5000),
            _ => ends.0,
        };
        let (macs, vlan) = match self.way {
            Way::L2 => (L2, VLANS.1),
            Way::Guarded => (L2, VLANS.2),
            _ => ((sender(NEXT.0), ROUTER), VLANS.0),
        };
        frames::frame(&flow(macs, ends.1, seen, Some(vlan)), self.content, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_share_all_packets() {
        for t in all() {
            for n in [t.packets, t.packets.min(500)] {
                let shares: Vec<Vec<usize>> = t.shares(n).map(Iterator::collect).collect();
                let step = t.packets / n;
                let whole: Vec<usize> = shares.concat();
                assert_eq!(whole, (0..n).map(|i| i * step).collect::<Vec<_>>(), "{}", t.name);
                assert!(shares.len() == t.sources && shares.iter().all(|s| !s.is_empty() && s.len() <= SOURCE));
            }
        }
    }
}
