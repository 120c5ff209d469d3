//! Whole packets: ARP, neighbour discovery, ICMP errors, UDP.

use crate::{Headers, Mac, checksum, ethertype, ipproto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn ethernet(dst: Mac, src: Mac, et: u16) -> Vec<u8> {
    let mut p = Vec::with_capacity(128);
    p.extend_from_slice(&dst[..]);
    p.extend_from_slice(&src[..]);
    p.extend_from_slice(&et.to_be_bytes());
    p
}

/// An ARP packet (RFC 826); `op` 1 asks, 2 answers.
pub fn arp(op: u16, eth_dst: Mac, sha: Mac, spa: Ipv4Addr, tha: Mac, tpa: Ipv4Addr) -> Vec<u8> {
    let mut p = ethernet(eth_dst, sha, ethertype::ARP);
    p.extend_from_slice(&[0, 1, 8, 0, 6, 4]);
    p.extend_from_slice(&op.to_be_bytes());
    p.extend_from_slice(&sha[..]);
    p.extend_from_slice(&spa.octets());
    p.extend_from_slice(&tha[..]);
    p.extend_from_slice(&tpa.octets());
    p
}

/// Who has `target`?
pub fn arp_request(mac: Mac, ip: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    arp(1, Mac::BROADCAST, mac, ip, Mac::ZERO, target)
}

/// `ip` is at `mac`.
pub fn arp_reply(mac: Mac, ip: Ipv4Addr, to_mac: Mac, to_ip: Ipv4Addr) -> Vec<u8> {
    arp(2, to_mac, mac, ip, to_mac, to_ip)
}

/// Tells everyone that `ip` is at `mac`.
pub fn gratuitous_arp(mac: Mac, ip: Ipv4Addr) -> Vec<u8> {
    arp(1, Mac::BROADCAST, mac, ip, Mac::ZERO, ip)
}

/// A reverse ARP announcement, for addresses without IP.
pub fn rarp(mac: Mac) -> Vec<u8> {
    let mut p = ethernet(Mac::BROADCAST, mac, ethertype::RARP);
    p.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 3]);
    p.extend_from_slice(&mac[..]);
    p.extend_from_slice(&[0; 4]);
    p.extend_from_slice(&mac[..]);
    p.extend_from_slice(&[0; 4]);
    p
}

/// Solicited-node multicast address (RFC 4291 section 2.7.1).
pub fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(o[13]), u16::from(o[14]) << 8 | u16::from(o[15]))
}

/// Fills lengths and checksums of the IP packet of a frame built here.
fn finish(mut p: Vec<u8>) -> Vec<u8> {
    let total = p.len() - 14;
    match crate::be16(&p, 12) {
        Some(ethertype::IPV4) => {
            p[16..18].copy_from_slice(&(total as u16).to_be_bytes());
            checksum::set_ipv4(&mut p, 14);
        }
        Some(ethertype::IPV6) => p[18..20].copy_from_slice(&((total - 40) as u16).to_be_bytes()),
        _ => {}
    }
    if let Some(h) = Headers::parse(&p) {
        checksum::set_l4(&mut p, &h);
    }
    p
}

/// An Ethernet and IP header; the caller appends the payload.
fn ip(eth_dst: Mac, eth_src: Mac, src: IpAddr, dst: IpAddr, proto: u8, ttl: u8) -> Option<Vec<u8>> {
    match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            let mut p = ethernet(eth_dst, eth_src, ethertype::IPV4);
            p.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, ttl, proto, 0, 0]);
            p.extend_from_slice(&s.octets());
            p.extend_from_slice(&d.octets());
            Some(p)
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            let mut p = ethernet(eth_dst, eth_src, ethertype::IPV6);
            p.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, proto, ttl]);
            p.extend_from_slice(&s.octets());
            p.extend_from_slice(&d.octets());
            Some(p)
        }
        _ => None,
    }
}

/// Any IP packet; `None` if the addresses are of different families.
pub fn ip_packet(
    eth_dst: Mac,
    eth_src: Mac,
    src: IpAddr,
    dst: IpAddr,
    proto: u8,
    ttl: u8,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let mut p = ip(eth_dst, eth_src, src, dst, proto, ttl)?;
    p.extend_from_slice(payload);
    Some(finish(p))
}

/// A UDP packet; `None` if the addresses are of different families.
pub fn udp(
    eth_dst: Mac,
    eth_src: Mac,
    src: (IpAddr, u16),
    dst: (IpAddr, u16),
    ttl: u8,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let mut body = Vec::with_capacity(8 + payload.len());
    body.extend_from_slice(&src.1.to_be_bytes());
    body.extend_from_slice(&dst.1.to_be_bytes());
    body.extend_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    body.extend_from_slice(&[0, 0]);
    body.extend_from_slice(payload);
    ip_packet(eth_dst, eth_src, src.0, dst.0, ipproto::UDP, ttl, &body)
}

/// A neighbour solicitation (RFC 4861 section 4.3).
pub fn nd_ns(mac: Mac, src: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let dst = solicited_node(target);
    let mut body = vec![135, 0, 0, 0, 0, 0, 0, 0];
    body.extend_from_slice(&target.octets());
    body.extend_from_slice(&[1, 1]);
    body.extend_from_slice(&mac[..]);
    ip_packet(Mac::of_ipv6_group(dst), mac, src.into(), dst.into(), ipproto::ICMPV6, 255, &body).unwrap_or_default()
}

/// A neighbour advertisement (RFC 4861 section 4.4); flags: 0x80 router, 0x40 solicited, 0x20 override.
pub fn nd_na(mac: Mac, target: Ipv6Addr, to_mac: Mac, to: Ipv6Addr, flags: u8) -> Vec<u8> {
    let mut body = vec![136, 0, 0, 0, flags, 0, 0, 0];
    body.extend_from_slice(&target.octets());
    body.extend_from_slice(&[2, 1]);
    body.extend_from_slice(&mac[..]);
    ip_packet(to_mac, mac, target.into(), to.into(), ipproto::ICMPV6, 255, &body).unwrap_or_default()
}

/// An ICMP or ICMPv6 error about a packet, from `src` back to its sender (RFC 792, RFC 4443 section 3).
/// `rest` is the second word (next-hop MTU and the like). `None` if the packet is not IP, or itself an ICMP error.
pub fn icmp_error(original: &[u8], eth_src: Mac, src: IpAddr, kind: u8, code: u8, rest: u32) -> Option<Vec<u8>> {
    let h = Headers::parse(original)?;
    let (from, _) = h.addresses(original)?;
    let first = h.l4.and_then(|l4| original.get(l4)).copied();
    let back = match (src, h.proto) {
        (IpAddr::V4(_), ipproto::ICMP) if matches!(first, Some(3..=5 | 11 | 12)) => return None,
        (IpAddr::V6(_), ipproto::ICMPV6) if first.is_some_and(|t| t < 128) => return None,
        (IpAddr::V4(_), _) if h.is_ipv4() => IpAddr::V4(Ipv4Addr::from(from as u32)),
        (IpAddr::V6(_), _) if h.is_ipv6() => IpAddr::V6(Ipv6Addr::from(from)),
        _ => return None,
    };
    let (proto, most) = if h.is_ipv4() { (ipproto::ICMP, 548) } else { (ipproto::ICMPV6, 1232) };
    let quoted = original.get(h.l3..h.l3_end)?;
    let mut body = vec![kind, code, 0, 0];
    body.extend_from_slice(&rest.to_be_bytes());
    body.extend_from_slice(quoted.get(..quoted.len().min(most))?);
    ip_packet(crate::mac_at(original, 6)?, eth_src, src, back, proto, 64, &body)
}

/// The headers of a UDP datagram with another payload; lengths and checksums are set anew. Over IPv4 there is no UDP
/// checksum, as none is needed.
/// None where `request` is too short or the result too long.
pub fn with_payload(request: &[u8], h: &Headers, payload: &[u8]) -> Option<Vec<u8>> {
    let l4 = h.l4?;
    let mut out = request.get(..l4 + 8)?.to_vec();
    out.extend(payload);
    let length = u16::try_from(8 + payload.len()).ok()?;
    out.get_mut(l4 + 4..l4 + 6)?.copy_from_slice(&length.to_be_bytes());
    out.get_mut(l4 + 6..l4 + 8)?.fill(0);
    if h.is_ipv4() {
        let total = u16::try_from(out.len() - h.l3).ok()?;
        out.get_mut(h.l3 + 2..h.l3 + 4)?.copy_from_slice(&total.to_be_bytes());
        checksum::set_ipv4(&mut out, h.l3);
    } else {
        out.get_mut(h.l3 + 4..h.l3 + 6)?.copy_from_slice(&length.to_be_bytes());
        let h = Headers::parse(&out)?;
        checksum::set_l4(&mut out, &h);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    #[test]
    fn built_packets_check() {
        let a: IpAddr = "10.0.0.1".parse().expect("address");
        let b: IpAddr = "10.0.0.2".parse().expect("address");
        let p = udp(A, B, (a, 5), (b, 6), 64, b"abc").expect("udp");
        let h = Headers::parse(&p).expect("headers");
        assert_eq!((h.ports(&p), checksum::l4_ok(&p, &h)), (Some((5, 6)), true));
        let e = icmp_error(&p, A, b, 3, 3, 0).expect("error");
        let h = Headers::parse(&e).expect("headers");
        assert!(h.is_ipv4() && checksum::l4_ok(&e, &h) && h.proto == 1);
        assert!(icmp_error(&e, A, b, 3, 3, 0).is_none(), "no error about an error");
        let t: Ipv6Addr = "fe80::1".parse().expect("address");
        let p = nd_ns(A, A.link_local(), t);
        let h = Headers::parse(&p).expect("headers");
        let nd = crate::nd_options(&p, &h).expect("nd");
        assert_eq!((nd.target, nd.sll.map(|s| s.0), checksum::l4_ok(&p, &h)), (t.into(), Some(A), true));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(mut b in proptest::collection::vec(any::<u8>(), 0..160), kind in 0usize..5) {
            if b.len() > 24 {
                let et = [[8u8, 0], [0x86, 0xdd], [0x81, 0], [8, 6], [0x88, 0xa8]][kind];
                b[12..14].copy_from_slice(&et);
                b[14] = if kind == 0 { 0x45 } else { 0x60 };
            }
            if let Some(h) = Headers::parse(&b) {
                prop_assert!(h.l3_end <= b.len().max(h.l3));
                let _ = crate::nd_options(&b, &h);
                let _ = checksum::l4_ok(&b, &h);
                checksum::set_l4(&mut b, &h);
                checksum::set_ipv4(&mut b, h.l3);
            }
            let _ = crate::tunnel::Geneve::parse(&b);
            let _ = crate::tunnel::vxlan_vni(&b);
            let _ = icmp_error(&b, A, "1.2.3.4".parse().expect("address"), 3, 1, 0);
        }

        #[test]
        fn incremental_update_equals_full(mut b in proptest::collection::vec(any::<u8>(), 40..41), new in any::<[u8; 4]>(), at in 0usize..18) {
            let at = at * 2;
            let before = checksum::of(&b);
            let old: Vec<u8> = b[at..at + 4].to_vec();
            b[at..at + 4].copy_from_slice(&new);
            let full = checksum::of(&b);
            let inc = checksum::update(before, &old, &new);
            prop_assert!(inc == full || (inc ^ full) == 0xffff && (full == 0 || full == 0xffff));
        }

        #[test]
        fn geneve_round_trips(vni in (0u32..0x100_0000).prop_map(crate::Vni::of_low_bits), v in any::<u32>()) {
            let mut b = Vec::new();
            crate::tunnel::Geneve::put(&mut b, vni, false, &[(0x102, 0x80, v.to_be_bytes().to_vec())]);
            let g = crate::tunnel::Geneve::parse(&b).expect("parses");
            prop_assert_eq!((g.vni, g.critical, g.len, g.options[0].data), (vni, true, b.len(), &v.to_be_bytes()[..]));
        }
    }
}
