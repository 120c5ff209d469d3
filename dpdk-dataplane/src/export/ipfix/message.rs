//! IPFIX messages: templates and records (RFC 7011 section 3; the elements are those of IANA's registry).

use super::flow::{Flow, Tally, Transport};
use packet::VlanId;
use std::net::IpAddr;
use std::time::Duration;
use switch::TunnelKind;

/// flowEndReason (RFC 5102): active timeout, forced end, lack of resources.
pub(super) const ACTIVE_TIMEOUT: u8 = 2;
pub(super) const FORCED_END: u8 = 4;
pub(super) const NO_RESOURCES: u8 = 5;

/// The most bytes of a message's sets: they fit into a packet of any path (RFC 7011 section 10.3.3).
const ROOM: usize = 1200;
/// The first template's number.
const FIRST: u16 = 256;
/// The length in templates of elements that carry their length (RFC 7011 section 7).
const VARIABLE: u16 = 65535;

/// Elements of the enterprise VMware (RFC 7011 section 3.2), as in Open vSwitch's records.
const OWN: u16 = 0x8000;
const ENTERPRISE: u32 = 6876;
const TYPE: u16 = OWN | 891;
const KEY: u16 = OWN | 892;
const SOURCE: u16 = OWN | 893;
const DESTINATION: u16 = OWN | 894;
const PROTOCOL: u16 = OWN | 895;
const SOURCE_PORT: u16 = OWN | 896;
const DESTINATION_PORT: u16 = OWN | 897;
const OBSERVER: u16 = OWN | 898;

/// The kind of a record: which elements it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    vlan: bool,
    /// 0: not IP; 4, 6.
    ip: u8,
    /// 0: none; 1: ports; 2: ICMP.
    transport: u8,
    tunnel: bool,
    observer: bool,
}

impl Kind {
    fn of(f: &Flow) -> Kind {
        let ip = f.ip.as_ref().map_or(0, |i| if i.addresses[0].is_ipv4() { 4 } else { 6 });
        let transport = f.ip.as_ref().map_or(0, |i| match i.transport {
            Transport::None => 0,
            Transport::Ports(..) => 1,
            Transport::Icmp(..) => 2,
        });
        let (tunnel, observer) = (f.outer.is_some(), f.observer.is_some());
        Kind { vlan: f.tci.is_some(), ip, transport, tunnel, observer }
    }

    fn all() -> impl Iterator<Item = Kind> {
        let layers = [(0, 0), (4, 0), (4, 1), (4, 2), (6, 0), (6, 1), (6, 2)];
        let more = [(false, false), (true, false), (false, true), (true, true)];
        more.into_iter().flat_map(move |(tunnel, observer)| {
            let of = move |(ip, transport)| [false, true].map(|vlan| Kind { vlan, ip, transport, tunnel, observer });
            layers.into_iter().flat_map(of)
        })
    }

    /// The number of its template.
    fn template(self) -> u16 {
        FIRST + Kind::all().position(|k| k == self).unwrap_or(0) as u16
    }

    /// Its elements, each with its length.
    fn elements(self) -> Vec<(u16, u16)> {
        let mut v = vec![(138, 4), (61, 1), (56, 6), (80, 6), (256, 2), (240, 1), (10, 4), (14, 4), (82, VARIABLE)];
        if self.vlan {
            v.extend([(58, 2), (243, 2), (244, 1)]);
        }
        if self.ip != 0 {
            v.extend([(60, 1), (192, 1), (4, 1), (195, 1), (196, 1), (5, 1)]);
        }
        match self.ip {
            4 => v.extend([(8, 4), (12, 4)]),
            6 => v.extend([(27, 16), (28, 16), (31, 4)]),
            _ => {}
        }
        match (self.transport, self.ip) {
            (1, _) => v.extend([(7, 2), (11, 2)]),
            (2, 4) => v.extend([(176, 1), (177, 1)]),
            (2, _) => v.extend([(178, 1), (179, 1)]),
            _ => {}
        }
        if self.tunnel {
            v.extend([(SOURCE, 4), (DESTINATION, 4), (PROTOCOL, 1), (SOURCE_PORT, 2), (DESTINATION_PORT, 2)]);
            v.extend([(TYPE, 1), (KEY, VARIABLE)]);
        }
        if self.observer {
            v.push((OBSERVER, VARIABLE));
        }
        v.extend([(158, 4), (159, 4), (2, 8), (352, 8), (136, 1)]);
        if self.ip != 0 {
            v.extend([(1, 8), (25, 8), (26, 8)]);
        }
        v
    }
}

/// Writes the value of an element.
fn value(element: u16, f: &Flow, t: &Tally, reason: u8, now: Duration, o: &mut Vec<u8>) {
    let address = |o: &mut Vec<u8>, at: usize| match f.ip.as_ref().and_then(|i| i.addresses.get(at)) {
        Some(IpAddr::V4(a)) => o.extend(a.octets()),
        Some(IpAddr::V6(a)) => o.extend(a.octets()),
        None => {}
    };
    let tos = f.ip.as_ref().map_or(0, |i| i.tos);
    let (ports, icmp) = match f.ip.as_ref().map(|i| i.transport) {
        Some(Transport::Ports(s, d)) => ([s, d], [0; 2]),
        Some(Transport::Icmp(kind, code)) => ([0; 2], [kind, code]),
        _ => ([0; 2], [0; 2]),
    };
    let ago = |at: Duration| (now.saturating_sub(at).as_micros().min(u32::MAX.into()) as u32).to_be_bytes();
    let tci = f.tci.unwrap_or(0);
    match element {
        // observationPointId, flowDirection
        138 => o.extend(f.point.to_be_bytes()),
        61 => o.push(f.egress.into()),
        // sourceMacAddress, destinationMacAddress, ethernetType, ethernetHeaderLength
        56 => o.extend(*f.macs[0]),
        80 => o.extend(*f.macs[1]),
        256 => o.extend(f.ethertype.to_be_bytes()),
        240 => o.push(f.header_len),
        // ingressInterface, egressInterface, interfaceName
        10 => o.extend(f.in_port.to_be_bytes()),
        14 => o.extend(f.out_port.to_be_bytes()),
        82 => text(&f.in_name, o),
        // vlanId, dot1qVlanId, dot1qPriority
        58 | 243 => o.extend(VlanId::of_tci(tci).get().to_be_bytes()),
        244 => o.push((tci >> 13) as u8),
        // ipVersion, ipTTL, protocolIdentifier, ipDiffServCodePoint, ipPrecedence, ipClassOfService
        60 => o.push(f.ip.as_ref().map_or(0, |i| if i.addresses[0].is_ipv4() { 4 } else { 6 })),
        192 => o.push(f.ip.as_ref().map_or(0, |i| i.ttl)),
        4 => o.push(f.ip.as_ref().map_or(0, |i| i.proto)),
        195 => o.push(tos >> 2),
        196 => o.push(tos >> 5),
        5 => o.push(tos),
        // source and destination address, flowLabelIPv6
        8 | 27 => address(o, 0),
        12 | 28 => address(o, 1),
        31 => o.extend(f.ip.as_ref().map_or(0, |i| i.label).to_be_bytes()),
        // source and destination port, ICMP's type and code
        7 => o.extend(ports[0].to_be_bytes()),
        11 => o.extend(ports[1].to_be_bytes()),
        176 | 178 => o.push(icmp[0]),
        177 | 179 => o.push(icmp[1]),
        // flowStartDeltaMicroseconds, flowEndDeltaMicroseconds
        158 => o.extend(ago(t.first)),
        159 => o.extend(ago(t.last)),
        // packetDeltaCount, layer2OctetDeltaCount, flowEndReason
        2 => o.extend(t.packets.to_be_bytes()),
        352 => o.extend(t.frames.to_be_bytes()),
        136 => o.push(reason),
        // octetDeltaCount, minimumIpTotalLength, maximumIpTotalLength
        1 => o.extend(t.octets.to_be_bytes()),
        25 => o.extend(t.least.to_be_bytes()),
        26 => o.extend(t.most.to_be_bytes()),
        _ => own_value(element, f, o),
    }
}

/// Writes the value of an enterprise element.
fn own_value(element: u16, f: &Flow, o: &mut Vec<u8>) {
    if element == OBSERVER {
        return text(f.observer.as_deref().unwrap_or_default(), o);
    }
    let Some(t) = &f.outer else { return };
    let address = |o: &mut Vec<u8>, n: usize| {
        if let Some(IpAddr::V4(a)) = t.addresses.get(n) {
            o.extend(a.octets());
        }
    };
    match element {
        // tunnelType; tunnelKey
        TYPE => o.push(match t.kind {
            TunnelKind::Vxlan => 1,
            TunnelKind::Gre | TunnelKind::Erspan => 2,
            TunnelKind::Geneve => 7,
            // The registry has no number for them.
            TunnelKind::Srv6 | TunnelKind::Gtpu => 0,
        }),
        KEY => o.extend([3].into_iter().chain(t.key.0.to_be_bytes().into_iter().skip(1))),
        // tunnelSourceIPv4Address and tunnelDestinationIPv4Address, tunnelProtocolIdentifier (UDP)
        SOURCE => address(o, 0),
        DESTINATION => address(o, 1),
        PROTOCOL => o.push(match t.kind {
            TunnelKind::Gre | TunnelKind::Erspan => 47,
            TunnelKind::Srv6 => 43,
            TunnelKind::Geneve | TunnelKind::Vxlan | TunnelKind::Gtpu => 17,
        }),
        // tunnelSourceTransportPort, tunnelDestinationTransportPort
        SOURCE_PORT => o.extend(t.ports[0].to_be_bytes()),
        DESTINATION_PORT => o.extend(t.ports[1].to_be_bytes()),
        _ => {}
    }
}

/// Writes a text after its length.
fn text(text: &str, o: &mut Vec<u8>) {
    let text = text.as_bytes();
    let text = text.get(..254).unwrap_or(text);
    o.push(text.len() as u8);
    o.extend(text);
}

/// A set with its header.
fn set(id: u16, body: &[u8]) -> Vec<u8> {
    let mut o = id.to_be_bytes().to_vec();
    o.extend((body.len() as u16 + 4).to_be_bytes());
    o.extend(body);
    o
}

/// Sets of all templates that may be used; each set is for a message of its own.
pub(super) fn template_sets(tunnels: bool, observer: bool) -> Vec<Vec<u8>> {
    let mut bodies = vec![Vec::new()];
    for k in Kind::all().filter(|k| k.observer == observer && (tunnels || !k.tunnel)) {
        let elements = k.elements();
        let mut t = k.template().to_be_bytes().to_vec();
        t.extend((elements.len() as u16).to_be_bytes());
        for (id, len) in elements {
            t.extend([id.to_be_bytes(), len.to_be_bytes()].concat());
            if id & OWN != 0 {
                t.extend(ENTERPRISE.to_be_bytes());
            }
        }
        match bodies.last_mut() {
            Some(b) if b.len() + t.len() <= ROOM => b.extend(t),
            _ => bodies.push(t),
        }
    }
    bodies.iter().map(|b| set(2, b)).collect()
}

/// Sets of records, and how many records they have; each set is for a message of its own.
pub(super) fn record_sets(list: &[(Flow, Tally)], reason: u8, now: Duration) -> Vec<(Vec<u8>, u32)> {
    let mut out = Vec::new();
    for k in Kind::all() {
        let (mut body, mut n) = (Vec::new(), 0);
        for (f, t) in list.iter().filter(|(f, _)| Kind::of(f) == k) {
            let mut record = Vec::new();
            k.elements().iter().for_each(|(id, _)| value(*id, f, t, reason, now, &mut record));
            if !body.is_empty() && body.len() + record.len() > ROOM {
                out.push((set(k.template(), &body), std::mem::take(&mut n)));
                body.clear();
            }
            body.extend(record);
            n += 1;
        }
        if n > 0 {
            out.push((set(k.template(), &body), n));
        }
    }
    out
}

/// A message.
pub(super) fn message(seconds: u32, sequence: u32, domain: u32, sets: &[u8]) -> Vec<u8> {
    let mut o = vec![0, 10];
    o.extend((sets.len() as u16 + 16).to_be_bytes());
    [seconds, sequence, domain].iter().for_each(|v| o.extend(v.to_be_bytes()));
    o.extend(sets);
    o
}

#[cfg(test)]
mod tests {
    use super::super::flow::Ip;
    use super::*;
    use std::net::Ipv4Addr;
    use switch::{Outer, TunnelKey};

    fn flow(ip: Option<Ip>, tci: Option<u16>) -> Flow {
        Flow { in_name: "vif7".into(), ethertype: 0x800, tci, ip, ..Flow::default() }
    }

    fn ip(a: &str, transport: Transport) -> Option<Ip> {
        let a: IpAddr = a.parse().expect("an address");
        Some(Ip { addresses: [a, a], proto: 1, tos: 0xb8, ttl: 9, label: 5, transport })
    }

    /// Each element is as long as the template says.
    #[test]
    fn records_fit_their_templates() {
        let t = Tally {
            packets: 1,
            frames: 60,
            octets: 46,
            least: 46,
            most: 46,
            first: Duration::ZERO,
            last: Duration::from_millis(5),
        };
        let mut seen = Vec::new();
        let here = Ipv4Addr::LOCALHOST.into();
        let outer =
            Outer { kind: TunnelKind::Geneve, addresses: [here, here], ports: [1, 2], key: TunnelKey(7), tos: 0 };
        let more = [(None, None), (Some(outer), None), (None, Some("me")), (Some(outer), Some("me"))];
        for ((outer, observer), tci) in more.into_iter().flat_map(|m| [(m, None), (m, Some(0x2005))]) {
            for a in ["", "10.0.0.1", "fd00::1"] {
                for l4 in [Transport::None, Transport::Ports(1, 2), Transport::Icmp(8, 0)] {
                    let f = flow(if a.is_empty() { None } else { ip(a, l4) }, tci);
                    let f = Flow { outer, observer: observer.map(String::from), ..f };
                    let kind = Kind::of(&f);
                    seen.push(kind.template());
                    for (id, len) in kind.elements() {
                        let mut v = Vec::new();
                        value(id, &f, &t, 2, Duration::from_millis(9), &mut v);
                        let expected = if len == VARIABLE { 1 + usize::from(v[0]) } else { len.into() };
                        assert_eq!(v.len(), expected, "element {id}");
                    }
                }
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (FIRST..FIRST + 56).collect::<Vec<_>>());
        let sets = template_sets(true, true);
        assert!(sets.len() > 1 && sets.iter().all(|s| s.len() <= ROOM + 4));
        let many: Vec<(Flow, Tally)> =
            (0..100).map(|_| (flow(ip("10.0.0.1", Transport::None), None), t.clone())).collect();
        let records = record_sets(&many, 2, Duration::ZERO);
        assert!(records.len() > 1 && records.iter().all(|(s, _)| s.len() <= ROOM + 4));
        assert_eq!(records.iter().map(|(_, n)| n).sum::<u32>(), 100);
    }
}
