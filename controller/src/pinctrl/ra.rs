//! Router advertisements (RFC 4861 section 6.2.6) in answer to solicitations.

use super::dhcp::set_result;
use openflow_rs::message::PacketIn;
use packet::{Headers, build, ipproto, mac_at};
use std::net::{IpAddr, Ipv6Addr};

const SOLICITATION: u8 = 133;

/// The packet with an advertisement in its place and the result bit set; none where it is no solicitation. `data`: the result's
/// field and bit, the advertisement without its checksum. Addresses stay as they are; the next stage turns them round.
pub(super) fn reply(p: &PacketIn, data: &[u8]) -> Option<PacketIn> {
    let (result, body) = data.split_at_checked(8)?;
    let h = Headers::parse(&p.packet)?;
    if h.is_ipv4() || h.proto != ipproto::ICMPV6 || p.packet.get(h.l4?) != Some(&SOLICITATION) {
        return None;
    }
    let (src, dst) = h.addresses(&p.packet)?;
    let [src, dst] = [src, dst].map(Ipv6Addr::from);
    // Who has no address yet is answered with all others (RFC 4861 section 6.2.6).
    let src = if src.is_unspecified() { Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) } else { src };
    let [src, dst] = [src, dst].map(IpAddr::V6);
    let mut out = p.clone();
    out.packet = build::ip_packet(mac_at(&p.packet, 0)?, mac_at(&p.packet, 6)?, src, dst, ipproto::ICMPV6, 255, body)?;
    set_result(&mut out.metadata, result)?;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::FieldId;

    #[test]
    fn a_solicitation_becomes_an_advertisement() {
        let (host, all) = ("fe80::1".parse().unwrap(), "ff02::2".parse().unwrap());
        let rs = build::ip_packet(
            packet::Mac([0x33; 6]),
            packet::Mac([2; 6]),
            host,
            all,
            ipproto::ICMPV6,
            255,
            &[133, 0, 0, 0, 0, 0, 0, 0],
        )
        .unwrap();
        let mut data = crate::encode::of::field_header(FieldId::XxReg1).to_vec();
        data.extend(5u32.to_be_bytes());
        data.extend([134, 0, 0, 0, 255, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
        let o = reply(&PacketIn { packet: rs, ..PacketIn::default() }, &data).unwrap();
        let h = Headers::parse(&o.packet).unwrap();
        assert_eq!(o.packet[h.l4.unwrap()], 134);
        assert!(packet::checksum::l4_ok(&o.packet, &h));
        assert_eq!(o.metadata.get(FieldId::XxReg1).0, 1 << 5);
        assert!(reply(&o, &data).is_none(), "an advertisement is not answered");
        let nobody = "::".parse().unwrap();
        let rs = build::ip_packet(
            packet::Mac([0x33; 6]),
            packet::Mac([2; 6]),
            nobody,
            all,
            ipproto::ICMPV6,
            255,
            &[133, 0, 0, 0, 0, 0, 0, 0],
        )
        .unwrap();
        let o = reply(&PacketIn { packet: rs, ..PacketIn::default() }, &data).unwrap();
        let h = Headers::parse(&o.packet).unwrap();
        // The next stage makes the source the destination.
        assert_eq!(Ipv6Addr::from(h.addresses(&o.packet).unwrap().0).to_string(), "ff02::1");
    }
}
