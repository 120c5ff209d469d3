//! Packets made from other packets.

use packet::{Headers, Mac, be16, be32, build, checksum, ethertype, ipproto, mac_at};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The Ethernet addresses, destination first.
fn macs(p: &[u8]) -> Option<(Mac, Mac)> {
    Some((mac_at(p, 0)?, mac_at(p, 6)?))
}

/// Source and destination.
fn addresses(p: &[u8], h: &Headers) -> Option<(IpAddr, IpAddr)> {
    let (src, dst) = h.addresses(p)?;
    Some(if h.is_ipv4() {
        (Ipv4Addr::from(src as u32).into(), Ipv4Addr::from(dst as u32).into())
    } else {
        (Ipv6Addr::from(src).into(), Ipv6Addr::from(dst).into())
    })
}

/// ovn-sb(5), action `arp`: an ARP request with the packet's addresses, which nested actions complete.
pub(super) fn arp(p: &[u8]) -> Option<Vec<u8>> {
    let h = Headers::parse(p)?;
    let (eth_dst, eth_src) = macs(p)?;
    let (spa, tpa) = match addresses(p, &h) {
        Some((IpAddr::V4(s), IpAddr::V4(d))) => (s, d),
        // An IPv6 packet whose next hop is an IPv4 one (RFC 5549) has no IPv4 address to offer.
        _ => (Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED),
    };
    Some(build::arp(1, eth_dst, eth_src, spa, Mac::ZERO, tpa))
}

/// ovn-sb(5), action `nd_ns`: asks for the next hop, wherever the packet goes in the end, and of whatever version it is.
pub(super) fn neighbour_solicitation(p: &[u8], next_hop: Ipv6Addr) -> Option<Vec<u8>> {
    let (_, eth_src) = macs(p)?;
    Some(build::nd_ns(eth_src, eth_src.link_local(), next_hop))
}

/// A packet of this controller: IPv4 packets may not be fragmented on the way.
fn own(eth_dst: Mac, eth_src: Mac, (src, dst): (IpAddr, IpAddr), proto: u8, ttl: u8, body: &[u8]) -> Option<Vec<u8>> {
    let mut p = build::ip_packet(eth_dst, eth_src, src, dst, proto, ttl, body)?;
    if src.is_ipv4() {
        *p.get_mut(20)? = 0x40;
        checksum::set_ipv4(&mut p, 14);
    }
    Some(p)
}

/// ovn-sb(5), actions `nd_na` and `nd_na_router`; `flags` as in RFC 4861 section 4.4.
pub(super) fn neighbour_advertisement(p: &[u8], flags: u8) -> Option<Vec<u8>> {
    let h = Headers::parse(p)?;
    let nd = packet::nd_options(p, &h)?;
    let (eth_dst, eth_src) = macs(p)?;
    let (IpAddr::V6(src), _) = addresses(p, &h)? else { return None };
    // Duplicate address detection asks from `::`, and the answer goes there, as ovn-controller's does: nobody takes it. One to all
    // nodes (RFC 4861 section 7.2.4) would forbid a router's address to the port that takes the router's routing protocols
    // (ovn-nb(5), routing-protocol-redirect), which has the same.
    Some(build::nd_na(eth_dst, Ipv6Addr::from(nd.target), eth_src, src, flags))
}

/// ovn-sb(5), actions `icmp4` and `icmp6`: an error about the packet, still with the packet's own addresses.
pub(super) fn icmp(p: &[u8]) -> Option<Vec<u8>> {
    error(p, false, 1)
}

/// The packet and its headers; one that says it is longer than it is says its true length in the copy. Errors go out about such
/// a packet as well, and quote it as it came.
fn fitted(p: &[u8]) -> Option<(Cow<'_, [u8]>, Headers)> {
    let h = Headers::parse(p)?;
    let (at, header) = match h.ethertype {
        ethertype::IPV4 => (h.l3 + 2, 0),
        ethertype::IPV6 => (h.l3 + 4, 40),
        _ => return Some((p.into(), h)),
    };
    let present = u16::try_from(p.len().saturating_sub(h.l3 + header)).ok()?;
    let said = u16::from_be_bytes(p.get(at..at + 2)?.try_into().ok()?);
    if said <= present {
        return Some((p.into(), h));
    }
    let mut copy = p.to_vec();
    copy.get_mut(at..at + 2)?.copy_from_slice(&present.to_be_bytes());
    let h = Headers::parse(&copy)?;
    Some((copy.into(), h))
}

fn error(p: &[u8], back: bool, code: u8) -> Option<Vec<u8>> {
    let (fitted, h) = fitted(p)?;
    let (mut eth_dst, mut eth_src) = macs(p)?;
    let (mut src, mut dst) = addresses(&fitted, &h)?;
    let quoted = p.get(h.l3..h.l3_end)?;
    if back {
        std::mem::swap(&mut eth_dst, &mut eth_src);
        std::mem::swap(&mut src, &mut dst);
    }
    // RFC 1812 section 4.3.2.3: as much as fits 576 octets; RFC 4443 section 2.4: the minimum MTU; the frame's header counts.
    let (proto, kind, most) = if h.is_ipv4() { (ipproto::ICMP, 3, 534) } else { (ipproto::ICMPV6, 1, 1218) };
    let mut body = vec![kind, code, 0, 0, 0, 0, 0, 0];
    body.extend_from_slice(quoted.get(..quoted.len().min(most))?);
    with_tag(p, own(eth_dst, eth_src, (src, dst), proto, 255, &body)?)
}

/// ovn-sb(5), action `tcp_reset`: a reset with exchanged ports; `back` exchanges the addresses, too.
pub(super) fn tcp_reset(p: &[u8], back: bool) -> Option<Vec<u8>> {
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    let h = Headers::parse(p)?;
    let l4 = h.l4.filter(|_| h.proto == ipproto::TCP)?;
    let (mut eth_dst, mut eth_src) = macs(p)?;
    let (mut src, mut dst) = addresses(p, &h)?;
    if back {
        std::mem::swap(&mut eth_dst, &mut eth_src);
        std::mem::swap(&mut src, &mut dst);
    }
    let (sport, dport) = h.ports(p)?;
    let (seq, ack, flags) = (be32(p, l4 + 4)?, be32(p, l4 + 8)?, *p.get(l4 + 13)?);
    // No reset answers a reset.
    if flags & RST != 0 {
        return None;
    }
    // RFC 9293 section 3.5.2: the reset takes its sequence number from the ACK field, or acknowledges the segment.
    let (seq, ack, out_flags) = if flags & ACK != 0 {
        (ack, 0, RST)
    } else {
        let data = h.l3_end.saturating_sub(h.payload) as u32;
        let len = data + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        (0, seq.wrapping_add(len), RST | ACK)
    };
    let mut body = Vec::with_capacity(20);
    body.extend(dport.to_be_bytes());
    body.extend(sport.to_be_bytes());
    body.extend(seq.to_be_bytes());
    body.extend(ack.to_be_bytes());
    body.extend([0x50, out_flags, 0, 0, 0, 0, 0, 0]);
    own(eth_dst, eth_src, (src, dst), ipproto::TCP, HOPS, &body)
}

/// How far resets and aborts go.
const HOPS: u8 = 63;

/// A packet with the VLAN tag of another.
fn with_tag(of: &[u8], mut p: Vec<u8>) -> Option<Vec<u8>> {
    if be16(of, 12) == Some(0x8100) {
        let tag = of.get(12..16)?.to_vec();
        p.splice(12..12, tag);
    }
    Some(p)
}

const SCTP: u8 = 132;

/// ovn-sb(5), action `sctp_abort`: an ABORT with exchanged ports (RFC 9260 section 8.4); `back` exchanges the addresses, too.
pub(super) fn sctp_abort(p: &[u8], back: bool) -> Option<Vec<u8>> {
    const INIT: u8 = 1;
    const ABORT: u8 = 6;
    const REFLECTED: u8 = 1;
    let h = Headers::parse(p)?;
    let l4 = h.l4.filter(|_| h.proto == SCTP)?;
    let (mut eth_dst, mut eth_src) = macs(p)?;
    let (mut src, mut dst) = addresses(p, &h)?;
    if back {
        std::mem::swap(&mut eth_dst, &mut eth_src);
        std::mem::swap(&mut src, &mut dst);
    }
    let (sport, dport, tag) = (be16(p, l4)?, be16(p, l4 + 2)?, be32(p, l4 + 4)?);
    let chunk = *p.get(l4 + 12)?;
    // No abort answers an abort.
    if chunk == ABORT {
        return None;
    }
    // Whoever opens an association says in the chunk by which tag it wants to be answered.
    let (tag, flags) = if tag == 0 && chunk == INIT { (be32(p, l4 + 16)?, 0) } else { (tag, REFLECTED) };
    let mut body = Vec::with_capacity(16);
    body.extend(dport.to_be_bytes());
    body.extend(sport.to_be_bytes());
    body.extend(tag.to_be_bytes());
    body.extend([0; 4]);
    body.extend([ABORT, flags, 0, 4]);
    let end = body.len();
    packet::checksum::set_sctp(&mut body, 0, end);
    own(eth_dst, eth_src, (src, dst), SCTP, HOPS, &body)
}

/// Whether a packet says that a destination is unreachable, as `reject` itself does: two that reject each other's packets would
/// go on for ever (RFC 1122 section 3.2.2).
fn is_error(p: &[u8], h: &Headers) -> bool {
    let unreachable = match h.proto {
        ipproto::ICMP => 3,
        ipproto::ICMPV6 => 1,
        _ => return false,
    };
    h.l4.and_then(|l4| p.get(l4)) == Some(&unreachable)
}

/// ovn-sb(5), action `reject`: what tells the sender that its packet is not wanted, on its way back.
pub(super) fn reject(p: &[u8]) -> Option<Vec<u8>> {
    let (fitted, h) = fitted(p)?;
    match h.proto {
        ipproto::TCP => tcp_reset(p, true),
        SCTP => sctp_abort(p, true),
        // Port unreachable for datagrams, host (for IPv6: administratively prohibited) for the rest.
        ipproto::UDP => error(p, true, if h.is_ipv4() { 3 } else { 4 }),
        _ if is_error(&fitted, &h) => None,
        _ => error(p, true, 1),
    }
}

/// Writes the next hop's MTU into an ICMP error (RFC 1191 section 4, RFC 4443 section 3.2); `field` says of which ICMP.
pub(super) fn set_mtu(p: &mut [u8], field: u16, value: &[u8]) {
    let Some(h) = Headers::parse(p) else { return };
    let Some(l4) = h.l4 else { return };
    let (at, len) = match field {
        0 if h.proto == ipproto::ICMP => (l4 + 6, 2),
        1 if h.proto == ipproto::ICMPV6 => (l4 + 4, 4),
        _ => return,
    };
    // Fragmentation needed; packet too big.
    let (kind, code) = if field == 0 { (3, 4) } else { (2, 0) };
    if let Some(place) = p.get_mut(l4..l4 + 2) {
        place.copy_from_slice(&[kind, code]);
    }
    if let (Some(place), Some(value)) = (p.get_mut(at..at + len), value.get(..len)) {
        place.copy_from_slice(value);
        checksum::set_l4(p, &h);
    }
}

/// Writes the source of the packet that an ICMP error quotes (ovn-sb(5), `icmp4.inner_ip4.src`).
pub(super) fn set_inner_source(p: &mut [u8], address: [u8; 4]) -> Option<()> {
    let h = Headers::parse(p)?;
    let inner = h.l4.filter(|_| h.proto == ipproto::ICMP)? + 8;
    if p.get(inner)? >> 4 != 4 {
        return None;
    }
    p.get_mut(inner + 12..inner + 16)?.copy_from_slice(&address);
    if p.len() >= inner + 20 {
        checksum::set_ipv4(p, inner);
    }
    checksum::set_l4(p, &h);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn tcp(flags: u8) -> Vec<u8> {
        let body = [0, 80, 1, 2, 0, 0, 0, 5, 0, 0, 0, 9, 0x50, flags, 0, 0, 0, 0, 0, 0];
        build::ip_packet(B, A, "10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 6, 64, &body).unwrap()
    }

    #[test]
    fn resets_follow_the_rfc() {
        let r = tcp_reset(&tcp(2), true).unwrap();
        let h = Headers::parse(&r).unwrap();
        let l4 = h.l4.unwrap();
        assert_eq!((be32(&r, l4 + 8), r[l4 + 13], h.ports(&r)), (Some(6), 0x14, Some((0x102, 80))));
        assert!(checksum::l4_ok(&r, &h));
        let r = tcp_reset(&tcp(16), false).unwrap();
        let l4 = Headers::parse(&r).unwrap().l4.unwrap();
        assert_eq!((be32(&r, l4 + 4), r[l4 + 13]), (Some(9), 4));
        assert_eq!(tcp_reset(&tcp(4), true), None);
    }

    #[test]
    fn solicitations_ask_for_the_next_hop() {
        let hop = "fd00::abcd:1234".parse().unwrap();
        let ns = neighbour_solicitation(&tcp(16), hop).unwrap();
        let h = Headers::parse(&ns).unwrap();
        assert_eq!(packet::nd_options(&ns, &h).unwrap().target, u128::from(hop));
        assert_eq!(ns[..6], [0x33, 0x33, 0xff, 0xcd, 0x12, 0x34]);
        let (src, dst) = addresses(&ns, &h).unwrap();
        assert_eq!(src, IpAddr::V6(A.link_local()));
        assert_eq!(dst, IpAddr::V6(build::solicited_node(hop)));
    }

    #[test]
    fn duplicate_address_detection_is_not_answered_to_all() {
        let target = "fe80::200:2ff:fe01:203".parse().unwrap();
        let ns = build::nd_ns(A, Ipv6Addr::UNSPECIFIED, target);
        let na = neighbour_advertisement(&ns, 0xe0).unwrap();
        let h = Headers::parse(&na).unwrap();
        assert_eq!(addresses(&na, &h), Some((target.into(), Ipv6Addr::UNSPECIFIED.into())));
    }

    #[test]
    fn a_packet_shorter_than_it_says_is_rejected_as_well() {
        let udp = [0x30, 0x39, 0x13, 0xba, 0, 12, 0, 0, 65, 65, 65, 65];
        for (a, b, at) in [("10.0.0.5", "10.0.0.4", 16), ("fd10::5", "fd10::4", 18)] {
            let (a, b): (IpAddr, IpAddr) = (a.parse().unwrap(), b.parse().unwrap());
            let mut p = build::ip_packet(B, A, a, b, ipproto::UDP, 64, &udp).unwrap();
            p[at..at + 2].copy_from_slice(&508u16.to_be_bytes());
            let e = reject(&p).unwrap();
            let h = Headers::parse(&e).unwrap();
            assert_eq!(addresses(&e, &h), Some((b, a)));
            assert_eq!(e[h.l4.unwrap() + 8..], p[14..], "the packet is quoted as it came");
            assert!(checksum::l4_ok(&e, &h));
        }
    }

    #[test]
    fn errors_are_not_answered_and_are_not_fragmented() {
        let e = icmp(&tcp(16)).unwrap();
        assert_eq!((e[20], e[22]), (0x40, 255));
        assert_eq!(reject(&e), None, "an error about an error");
        let r = tcp_reset(&tcp(2), true).unwrap();
        assert_eq!((r[20], r[22]), (0x40, 63));
    }

    #[test]
    fn associations_are_aborted() {
        let ip = |body: &[u8]| {
            build::ip_packet(B, A, "10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), SCTP, 64, body).unwrap()
        };
        let init = ip(&[0, 1, 0, 2, 0, 0, 0, 0, 9, 9, 9, 9, 1, 0, 0, 20, 0xa, 0xb, 0xc, 0xd, 0, 0, 0, 0]);
        let a = reject(&init).unwrap();
        assert_eq!(a[34..42], [0, 2, 0, 1, 0xa, 0xb, 0xc, 0xd]);
        assert_eq!(a[46..50], [6, 0, 0, 4]);
        assert_eq!(reject(&a), None, "an abort is not answered");
        let data = ip(&[0, 1, 0, 2, 1, 2, 3, 4, 9, 9, 9, 9, 0, 3, 0, 16]);
        let a = sctp_abort(&data, true).unwrap();
        assert_eq!((&a[38..42], a[47]), (&[1, 2, 3, 4][..], 1));
        let h = Headers::parse(&a).unwrap();
        assert!(h.l4.is_some() && packet::checksum::l4_ok(&a, &h));
    }

    #[test]
    fn rejects_answer_the_sender() {
        let udp =
            build::udp(B, A, ("10.0.0.1".parse().unwrap(), 5), ("10.0.0.2".parse().unwrap(), 6), 64, b"x").unwrap();
        let e = reject(&udp).unwrap();
        let h = Headers::parse(&e).unwrap();
        assert_eq!((mac_at(&e, 0), mac_at(&e, 6)), (Some(A), Some(B)));
        assert_eq!((h.proto, be16(&e, h.l4.unwrap())), (1, Some(0x0303)));
        assert!(checksum::l4_ok(&e, &h));
        assert_eq!(reject(&[0; 20]), None);
    }

    #[test]
    fn an_mtu_goes_into_the_error() {
        let mut p = icmp(&tcp(16)).unwrap();
        set_mtu(&mut p, 0, &1400u16.to_be_bytes());
        let h = Headers::parse(&p).unwrap();
        assert_eq!(be16(&p, h.l4.unwrap() + 6), Some(1400));
        assert!(checksum::l4_ok(&p, &h));
    }
}
